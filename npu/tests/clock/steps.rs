// Steps of the built-in models as `vectors MODEL 1 0` has them for tb/npu/npu_top_tb.sv, and what the RTL said of them.

use doorbell_lm::image::{entries, header};
use doorbell_lm::{Image, micro, micro_gemma, tiny};
use doorbell_npu::clock::trace::{Traced, read};
use doorbell_npu::clock::{Bases, Step, Timed, step};
use doorbell_npu::{Program, compile};

/// Models of which there are traces.
pub const MODELS: [&str; 3] = ["micro", "micro-gemma", "tiny"];
/// Cycles until memory answers.
pub const LATENCIES: [u64; 3] = [0, 16, 64];
/// Where traces lie.
pub const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clock");
/// Blocks of the context, in the order that this seed gives.
const BLOCKS: usize = 4;
pub const SEED: u64 = 1;

/// A model that is ready for steps.
pub struct Bench {
    program: Program,
    memory: Vec<u8>,
    blocks: Vec<u32>,
}

impl Bench {
    pub fn new(model: &str) -> Self {
        let image: Image = match model {
            "micro" => micro(),
            "micro-gemma" => micro_gemma(),
            _ => tiny(),
        };
        let bytes = image.to_bytes();
        let (header, entries) = (header(&bytes).expect("an image"), entries(&bytes).expect("an image"));
        let program =
            compile(&image.model.shape, header.epsilon, &entries, bytes.len() as u64).expect("it fits");
        let mut state = SEED;
        let mut draw = |end: usize| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ z >> 31) as usize % end
        };
        let mut blocks: Vec<u32> = (0..BLOCKS as u32).collect();
        for last in (1..BLOCKS).rev() {
            blocks.swap(last, draw(last + 1));
        }
        Self { memory: program.memory(bytes), program, blocks }
    }

    /// The step that the RTL took.
    pub fn step(&self, traced: &Traced, latency: u64) -> Timed {
        let of = Step {
            words: &self.program.words,
            memory: &self.memory,
            program: self.program.start / 64,
            lines: self.program.lines(),
            bases: Bases { arena: traced.arena, ..Bases::default() },
            token: traced.token,
            position: traced.position,
            silent: traced.silent,
            blocks: &self.blocks,
        };
        step(&of, latency).expect("words that can be executed")
    }
}

/// What the RTL said.
pub fn traces(model: &str, latency: u64) -> Vec<Traced> {
    let path = format!("{TRACES}/{model}-{latency}.txt");
    read(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
}
