//! Steps for the bench of the whole NPU: tokens of `micro` and of `micro-gemma`, and programs by chance over a few lines, so that most words depend on each other, and
//! some fail at what a context brings along. Each with all that it leaves behind.
//!
//! A line is a letter and numbers in hexadecimal:
//!
//!     C line data     on-chip memory; M: model memory; A: the arena; B: the block table; D: the output region      what the step finds
//!     F line          a line of model memory that is answered with an error; G: of the arena; V 1: all that is written
//!     S token position silent sharpness seed rollout
//!     X model_lines program_line words arena_lines entries region_lines
//!     W line data     on-chip memory behind it; K: the arena; U: the output region
//!     R sampled token logp log        what it gives (an npu_log_t); and the step runs
//!
//! Where something is answered with an error, the step may end so as well.

use doorbell_lm::image::{entries, header};
use doorbell_lm::sample::Sharpness;
use doorbell_lm::{Image, micro, micro_gemma};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::compile;
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Arena, Machine, Sampling, Settings};
use doorbell_npu::text::assemble;

use super::sequences::log;
use super::{Draws, line_hex};

/// Of on-chip memory, as the bench has it.
const LINES: u32 = 128;
/// Of the output region.
const REGION: usize = 8;

fn say(letter: char, first: usize, bytes: &[u8]) {
    for (line, bytes) in (first..).zip(bytes.chunks_exact(LINE)) {
        println!("{letter} {line:x} {}", line_hex(bytes));
    }
}

/// Lines that differ.
fn changed(letter: char, before: &[u8], after: &[u8]) {
    let pairs = before.chunks_exact(LINE).zip(after.chunks_exact(LINE));
    for (line, (_, after)) in pairs.enumerate().filter(|(_, (before, after))| before != after) {
        say(letter, line, after);
    }
}

/// A machine, and where its program stands.
struct Case {
    machine: Machine,
    words: Vec<u64>,
    program: usize,
}

impl Case {
    fn new(
        draws: &mut Draws,
        mut memory: Vec<u8>,
        words: Vec<u64>,
        program: usize,
        arena: u64,
        table: Vec<u32>,
        on_chip: u32,
    ) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.resize(memory.len().max(program * LINE + bytes.len().next_multiple_of(LINE)), 0);
        memory[program * LINE..][..bytes.len()].copy_from_slice(&bytes);
        say('M', 0, &memory);
        let entries: Vec<u8> = table.iter().flat_map(|block| block.to_le_bytes()).collect();
        let mut lines = entries;
        lines.resize(lines.len().next_multiple_of(LINE), 0xA5);
        say('B', 0, &lines);
        let mut machine =
            Machine::new(Settings { lines: on_chip, speed: Speed::Fast }, memory, arena as usize);
        machine.admit(Arena { base: 0, bytes: arena }, table);
        machine.kv = draws.bytes(arena);
        machine.contexts[0].output = draws.bytes((REGION * LINE) as u64);
        machine.contexts[0].chip_mut().copy_from_slice(&draws.bytes(u64::from(on_chip) * LINE as u64));
        let case = Self { machine, words, program };
        say('C', 0, case.machine.contexts[0].chip());
        say('A', 0, &case.machine.kv);
        case.region();
        case
    }

    fn region(&self) {
        say('D', 0, &self.machine.contexts[0].output);
    }

    fn step(&mut self, draws: &mut Draws, token: u32, position: u32, silent: bool) -> Option<u32> {
        let sharpness = if draws.chance(50) { Sharpness::GREEDY } else { Sharpness::ONE };
        let (seed, rollout) = (draws.next() as u32, draws.next() as u32);
        let sampling = Sampling { sharpness, seed, rollout, scores: false };
        let context = &mut self.machine.contexts[0];
        (context.token, context.position, context.silent, context.sampling) =
            (token, position, silent, sampling);
        println!("S {token:x} {position:x} {:x} {:x} {seed:x} {rollout:x}", u8::from(silent), sharpness.0);
        let (table, region) = (context.blocks.len(), context.output.len() / LINE);
        let [model, arena] = [self.machine.memory.len(), self.machine.kv.len()].map(|bytes| bytes / LINE);
        println!("X {model:x} {:x} {:x} {arena:x} {table:x} {region:x}", self.program, self.words.len());
        let before = self.machine.clone();
        let outcome = self.machine.step(&self.words, &[0], &mut ()).remove(0);
        let (old, new) = (&before.contexts[0], &self.machine.contexts[0]);
        changed('W', old.chip(), new.chip());
        changed('K', &before.kv, &self.machine.kv);
        changed('U', &old.output, &new.output);
        let (sample, log) = match outcome {
            Ok(outcome) => (outcome.sample, log(0, 0, None, 0)),
            Err(stop) => (None, log(stop.fault.code(), stop.pc, stop.layer, stop.word)),
        };
        let (token, logp) = sample.map_or((0, 0), |sample| (sample.token, sample.log_probability as u32));
        println!("R {:x} {token:x} {logp:x} {log}", u8::from(sample.is_some()));
        sample.map(|sample| sample.token)
    }
}

/// Some tokens: the first ones of a sequence, and some at the edges of blocks and of windows.
fn tokens(draws: &mut Draws, image: &Image, positions: &[(u32, bool)]) {
    let bytes = image.to_bytes();
    let (header, all) = (header(&bytes).expect("an image"), entries(&bytes).expect("an image"));
    let program =
        compile(&header.shape, header.epsilon, &all, bytes.len() as u64).expect("a shape that fits");
    let on_chip = program.lines().max(LINES);
    let memory = program.memory(bytes);
    let blocks = 4;
    let mut table: Vec<u32> = (0..blocks).collect();
    for last in (1..table.len()).rev() {
        table.swap(last, draws.below(last as u64 + 1) as usize);
    }
    let line = program.start as usize / LINE;
    let mut case =
        Case::new(draws, memory, program.words, line, program.block * u64::from(blocks), table, on_chip);
    let mut token = draws.below(64) as u32;
    for &(position, silent) in positions {
        token = case.step(draws, token, position, silent).unwrap_or(draws.below(64) as u32);
    }
}

/// A program of words by chance over a few lines, of all units.
fn drawn(draws: &mut Draws) {
    let mut text = String::from(
        "memset.fmap index=0 m=1 n=1 k=64\nmemset.fmap index=1 m=2 n=1 k=32\nmemset.fmap index=2 m=1 n=1 k=32\n\
         memset.fmap index=3 m=1 n=4 k=4\nmemset.weight index=0 m=1 n=64 k=64\nmemset.desc index=0 base=1 aux=-20\n\
         memset.fmap index=4 m=1 n=40 k=16\nmemset.desc index=5 base=3 aux=3\n\
         memset.desc index=1 base=65 aux=0\nmemset.desc index=2 base=3 aux=5\nmemset.desc index=3 base=140 aux=70\n\
         memset.weight index=1 m=1 n=37 k=64\nmemset.desc index=4 base=0 aux=0\nmemset.epsilon value=10\nmemset.factor value=16715\n",
    );
    text += &format!(
        "memset.window value={}\nmemset.source value={}\nmemset.cut value={}\nmemset.sinks value={}\nlayers count=2 words=0 desc=4\n",
        draws.from(1, 40),
        draws.below(2),
        draws.one(&[0, 107_797]),
        draws.one(&[0, 32])
    );
    // One of these fails: copies of them stand among others.
    let fails = draws.chance(25);
    for _ in 0..if draws.chance(10) { 80 } else { 20 } {
        let mut line = || draws.below(4) * 16;
        let (x, y) = (line(), line());
        let z = 64 + line();
        let sync = if draws.chance(80) { "async" } else { "" };
        let row = match draws.below(28) {
            0 | 1 => format!("gemv dest={x} src={z} desc=0 shape=0 lanes=0 scale"),
            2 | 3 => {
                format!("gemv dest={x} src={z} desc=0 shape=0 lanes=0 acc {}", draws.one(&["scale", ""]))
            }
            4 => {
                format!("memcpy.in dest={} src={} desc=2 shape=3 {sync}", draws.one(&[x, z]), draws.below(40))
            }
            5 => format!("memcpy.gain dest={z} desc=2 shape=0 {sync}"),
            6 => format!("memcpy.row dest={x} desc=5 shape=4 {sync}"),
            7 => format!("memcpy.embed dest={x} desc=0 shape=0 {sync}"),
            8 => format!("vec.act dst={z} a={x} shape=0"),
            9 => format!("{} dst={x} a={x} b={y} shape=0", draws.one(&["vec.add", "vec.mul"])),
            10 => format!("vec.store dst={z} a={x} shape=1"),
            11 => format!("vec.rope dst={x} a={x} b={z} shape=1"),
            12 => format!(
                "{} dst={z} a={x} b={} shape=0",
                draws.one(&["vec.swiglu", "vec.norm"]),
                if x == y { x } else { y }
            ),
            13 => {
                format!("memcpy.out dest={} src={x} shape=3 {sync}", draws.below(if fails { 7 } else { 5 }))
            }
            14 => format!("memcpy.kv src={z} desc=3 shape=1 {sync}"),
            15 | 16 => format!(
                "attn dst={x} src={z} shape=1 desc=3 {}",
                draws.one(&["", "window", "source", "window source", "window sinks", "window source sinks"])
            ),
            17 => format!("gemv dest={x} src={z} desc=0 shape=1 lanes=0 scale"),
            18 => format!("vec.level dst={x} a={} b={z} shape=1", draws.one(&[x, y])),
            19 => format!("vec.tanh dst={z} a={x} shape=0"),
            20 => format!("vec.geglu dst={z} a={x} b={y} shape=0"),
            21 => format!("vec.{} dst={x} a={x} b={z} shape=0", draws.one(&["blend", "rescale"])),
            22 => format!("vec.cut dst={x} a={} shape=0", draws.one(&[x, y])),
            23 => format!("vec.predict dst={x} a={} b={z} shape=1", draws.one(&[x, y])),
            24 => format!("vec.correct dst={x} a={} b={z} shape=1", if x == y { z } else { y }),
            // A chain of one word, or of two: another gang's HEAD has to wait for its end.
            25 => format!(
                "head src={z} desc=0 shape=0 {} last {}",
                if fails && draws.chance(30) { "" } else { "first" },
                draws.one(&["", "cap"])
            ),
            _ => format!(
                "head src={z} desc=0 shape=0 first\nhead src={z} desc=0 shape=0 last {}",
                draws.one(&["", "cap"])
            ),
        };
        text += &(row + "\n");
    }
    text += "next\nend\n";
    let words = assemble(&text).expect("words");
    let memory = draws.bytes(200 * LINE as u64);
    let table = if fails && draws.chance(30) { vec![1, 0, 3] } else { vec![1, 0, 2] };
    let program = 200 + draws.below(20) as usize;
    let mut case = Case::new(draws, memory, words, program, 3 * 140 * LINE as u64, table, LINES);
    let position = if draws.chance(10) { draws.below(96) } else { draws.below(34) } as u32;
    let position = if fails && draws.chance(40) { 30 + draws.below(80) as u32 } else { position };
    let token = draws.below(if fails { 70 } else { 64 }) as u32;
    match draws.below(20) {
        0 => println!("F {:x}", 1 + draws.below(70)),
        1 => println!("G {:x}", draws.below(420)),
        2 => println!("V 1"),
        _ => {}
    }
    case.step(draws, token, position.min(if fails { u32::MAX } else { 39 }), false);
}

/// Some tokens of one model: what its words take.
pub fn of(image: &Image, seed: u64) {
    let positions = [(0, false), (1, true), (3, false), (31, false), (32, false), (94, false)];
    tokens(&mut Draws(seed), image, &positions);
}

/// A program of every kind of word, twice; what it finds is nonsense.
pub fn words(seed: u64) {
    let draws = &mut Draws(seed);
    let words = assemble(include_str!("../../tests/clock/words.txt")).expect("words");
    let arena = 3 * 140 * LINE as u64;
    let mut case = Case::new(draws, vec![0; 200 * LINE], words, 203, arena, vec![1, 0, 2], LINES);
    for position in [0, 31, 32, 36, 38, 39] {
        case.step(draws, 37, position, false);
    }
}

/// Programs by chance from which on the models' steps are all run, and not only some.
const ALL: u64 = 6;

/// `micro` and `micro-gemma` first, then programs by chance.
pub fn print(seed: u64, count: u64) {
    let mut draws = Draws(seed);
    let micros: &[_] = if count < ALL {
        &[(0, false), (1, true), (32, false)]
    } else {
        &[(0, false), (1, true), (2, false), (31, false), (32, false), (95, false)]
    };
    tokens(&mut draws, &micro(), micros);
    // A window of 41 is full at 40, and leaves a position behind at 41.
    let gemmas: &[_] = if count < ALL {
        &[(0, false), (41, false)]
    } else {
        &[(0, false), (1, true), (40, false), (41, false), (127, false)]
    };
    tokens(&mut draws, &micro_gemma(), gemmas);
    for _ in 0..count {
        drawn(&mut draws);
    }
}
