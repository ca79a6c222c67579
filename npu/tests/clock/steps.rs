// Steps of the built-in models as `vectors MODEL 1 0` has them for tb/npu/npu_top_tb.sv, and what the RTL said of them.

use doorbell_lm::image::{entries, header};
use doorbell_lm::{Image, micro, micro_gemma, tiny};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::clock::trace::{Traced, read};
use doorbell_npu::clock::{Bases, Begin, Setup, Step, Timed, steps};
use doorbell_npu::compile;
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Arena, Machine, Observer, Place, Settings, Write};
use doorbell_npu::text::assemble;

/// Where traces lie.
pub const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clock");
/// Blocks of the context, in the order that this seed gives.
const BLOCKS: usize = 4;
pub const SEED: u64 = 1;

/// Lines of the output region.
const REGION: usize = 8;

/// Numbers from a seed, as `vectors` draws them.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// A model that is ready for steps.
pub struct Bench {
    words: Vec<u64>,
    program: u64,
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
        let mut draws = Draws(SEED);
        if model == "words" {
            let words = assemble(include_str!("words.txt")).expect("words");
            return Self::of(
                &mut draws,
                words,
                vec![0; (203 + 20) * LINE],
                203,
                3 * 140 * LINE as u64,
                vec![1, 0, 2],
                128,
            );
        }
        let image: Image = match model {
            "micro" => micro(),
            "micro-gemma" => micro_gemma(),
            _ => tiny(),
        };
        let bytes = image.to_bytes();
        let (header, entries) = (header(&bytes).expect("an image"), entries(&bytes).expect("an image"));
        let program =
            compile(&image.model.shape, header.epsilon, &entries, bytes.len() as u64).expect("it fits");
        let mut blocks: Vec<u32> = (0..BLOCKS as u32).collect();
        for last in (1..BLOCKS).rev() {
            blocks.swap(last, draws.next() as usize % (last + 1));
        }
        let (arena, lines) = (program.block * BLOCKS as u64, program.lines());
        let memory = program.memory(bytes);
        Self::of(&mut draws, program.words, memory, program.start / LINE as u64, arena, blocks, lines)
    }

    /// What the first step finds is nonsense: keys and values, an output region, on-chip memory.
    fn of(
        draws: &mut Draws,
        words: Vec<u64>,
        memory: Vec<u8>,
        program: u64,
        arena: u64,
        blocks: Vec<u32>,
        lines: u32,
    ) -> Self {
        let mut machine = Machine::new(Settings { lines, speed: Speed::Fast }, memory, arena as usize);
        machine.admit(Arena { base: 0, bytes: arena }, blocks);
        machine.kv = draws.bytes(arena as usize);
        machine.contexts[0].output = draws.bytes(REGION * LINE);
        let chip = machine.contexts[0].chip_mut();
        chip.copy_from_slice(&draws.bytes(chip.len()));
        Self { words, program, machine }
    }

    /// The step that the RTL took, behind those before it.
    pub fn step(&mut self, traced: &Traced, latency: u64) -> Timed {
        self.steps(std::slice::from_ref(traced), latency).remove(0)
    }

    /// Steps that gangs took: each of the first gang's, and behind it the same step of the others.
    pub fn steps(&mut self, traced: &[Traced], latency: u64) -> Vec<Timed> {
        let mut said: Vec<Skipped> = vec![];
        for traced in traced {
            // What one gang has done each of the others begins with as well.
            said.push(match said.last() {
                Some(same) if traced.gang > 0 => Skipped(same.0.clone()),
                _ => self.skipped(traced),
            });
        }
        let begins: Vec<Begin<'_>> = traced
            .iter()
            .zip(&said)
            .map(|(traced, skipped)| {
                let step = Step {
                    words: &self.words,
                    memory: &self.machine.memory,
                    program: self.program,
                    lines: self.machine.settings.lines,
                    bases: Bases { arena: traced.arena, ..Bases::default() },
                    token: traced.token,
                    position: traced.position,
                    silent: traced.silent,
                    blocks: &self.machine.contexts[0].blocks,
                    skipped: &skipped.0,
                };
                Begin { gang: traced.gang, at: traced.began, step }
            })
            .collect();
        steps(&begins, Setup::rtl(latency)).expect("words that can be executed")
    }

    /// What the interpreter says of it.
    fn skipped(&mut self, traced: &Traced) -> Skipped {
        let context = &mut self.machine.contexts[0];
        (context.token, context.position, context.silent) = (traced.token, traced.position, traced.silent);
        let mut skipped = Skipped::default();
        let outcomes = self.machine.step(&self.words, &[0], &mut skipped);
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
        skipped
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

/// What it said of two gangs.
pub fn both(model: &str, memory: &str) -> Vec<Traced> {
    read_trace(&format!("{model}-both"), memory)
}
