// Steps of the built-in models as `vectors MODEL 1 0` has them for tb/npu/npu_top_tb.sv, and what the RTL said of them.

use doorbell_lm::image::{entries, header};
use doorbell_lm::{Image, micro, micro_gemma, tiny};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::clock::trace::{Traced, read};
use doorbell_npu::clock::{Bases, Step, Timed, step};
use doorbell_npu::run::{Arena, Machine, Observer, Place, Settings, Write};
use doorbell_npu::{Program, compile};

/// Where traces lie.
pub const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clock");
/// Blocks of the context, in the order that this seed gives.
const BLOCKS: usize = 4;
pub const SEED: u64 = 1;

/// A model that is ready for steps.
pub struct Bench {
    program: Program,
    machine: Machine,
}

/// What the interpreter says of `attn`.
#[derive(Default)]
pub struct Skipped(pub Vec<Vec<bool>>);

impl Observer for Skipped {
    fn executed(&mut self, _: &Place, _: &[Write]) {}

    fn skipped(&mut self, _: &Place, blocks: &[bool]) {
        self.0.push(blocks.to_vec());
    }
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
        let mut draw = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ z >> 31
        };
        let mut blocks: Vec<u32> = (0..BLOCKS as u32).collect();
        for last in (1..BLOCKS).rev() {
            blocks.swap(last, draw() as usize % (last + 1));
        }
        let arena = program.block * BLOCKS as u64;
        let settings = Settings { lines: program.lines(), speed: Speed::Fast };
        let mut machine = Machine::new(settings, program.memory(bytes), arena as usize);
        machine.admit(Arena { base: 0, bytes: arena }, blocks);
        // What the first step finds is nonsense.
        machine.kv = (0..arena).map(|_| draw() as u8).collect();
        Self { program, machine }
    }

    /// The step that the RTL took, behind those before it.
    pub fn step(&mut self, traced: &Traced, latency: u64) -> Timed {
        let context = &mut self.machine.contexts[0];
        (context.token, context.position, context.silent) = (traced.token, traced.position, traced.silent);
        let mut skipped = Skipped::default();
        let outcomes = self.machine.step(&self.program.words, &[0], &mut skipped);
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
        let of = Step {
            words: &self.program.words,
            memory: &self.machine.memory,
            program: self.program.start / 64,
            lines: self.program.lines(),
            bases: Bases { arena: traced.arena, ..Bases::default() },
            token: traced.token,
            position: traced.position,
            silent: traced.silent,
            blocks: &self.machine.contexts[0].blocks,
            skipped: &skipped.0,
        };
        step(&of, latency).expect("words that can be executed")
    }
}

/// What the RTL said.
pub fn traces(model: &str, latency: u64) -> Vec<Traced> {
    read_trace(model, &latency.to_string())
}

/// The same, of memory that answers at its latency, or as it comes: `random`.
pub fn read_trace(model: &str, memory: &str) -> Vec<Traced> {
    let path = format!("{TRACES}/{model}-{memory}.txt");
    read(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
}
