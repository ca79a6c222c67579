//! Words of the programs of the built-in models and of SmolLM2-135M's shape, and the cycles that a step is expected to take; what gangs
//! would bring, and what units wait for.
//!
//!     cargo run --release -p doorbell-npu --example cycles [-- --listing | --gangs | --exact] [MODEL …]
//!
//! Of words as formulas, but `--exact`: gangs of one rollout each, cycle by cycle as in the RTL.

use std::ops::Range;

use doorbell_lm::image::{entries, header};
use doorbell_lm::{
    About, Gain, Image, KeyValue, Layer, Matrix, Model, Rope, Shape, micro, micro_gemma, tiny,
};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::clock::{self, Bases, Begin, Setup, Step, Timed};
use doorbell_npu::cycles::Costs;
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Arena, Engine, Idle, Latency, Machine, Scoreboard, Settings, Timing};
use doorbell_npu::text::listing;
use doorbell_npu::{Program, compile};

/// A model of SmolLM2-135M's shape. Cycles do not depend on weights, so they are all 0.
fn smollm2() -> Image {
    let shape = Shape { context: 1024, ..Shape::SMOLLM2 };
    let matrix = |rows: usize, columns: usize| Matrix {
        columns,
        weights: vec![0; rows * columns],
        rows: vec![1; rows],
        exponent: 0,
    };
    let gain = || Gain { factors: vec![0; 576], exponent: 0 };
    let layer = || Layer {
        attention_gain: gain(),
        query: matrix(576, 576),
        key_value: Some(KeyValue { key: matrix(192, 576), value: matrix(192, 576), gains: None }),
        output: matrix(576, 576),
        hidden_gain: gain(),
        gate: matrix(1536, 576),
        up: matrix(1536, 576),
        down: matrix(576, 1536),
        gemma: None,
    };
    let model = Model {
        shape,
        epsilon: 10,
        tokens: matrix(49_152, 576),
        layers: (0..30).map(|_| layer()).collect(),
        last_gain: gain(),
        rope: Rope::of(100_000.0, 64, shape.context),
        gemma: None,
    };
    Image { model, about: About::default() }
}

/// Cycles a second of the machine of which tokens per second are told.
const CLOCK: u64 = 100_000_000;
/// Positions of the tokens that each gang makes, one behind the other.
const TOKENS: Range<u32> = 252..256;
/// Blocks of keys and values of a context.
const BLOCKS: u32 = 8;

/// A program with its memory, and contexts for it.
struct Bench {
    words: Vec<u64>,
    machine: Machine,
    arena: u64,
    /// The program's first line in memory.
    first: u64,
}

impl Bench {
    fn new(program: &Program, image: Vec<u8>) -> Self {
        let settings = Settings { lines: program.lines(), speed: Speed::Fast };
        let arena = program.block * u64::from(BLOCKS);
        let machine = Machine::new(settings, program.memory(image), arena as usize);
        let first = program.start / LINE as u64;
        Self { words: program.words.clone(), machine, arena, first }
    }

    /// A step of so many gangs of so many contexts.
    fn step(&mut self, board: &Scoreboard, [gangs, each]: [usize; 2], position: u32, silent: bool) -> Timing {
        while self.machine.contexts.len() < gangs * each {
            self.machine.admit(Arena { base: 0, bytes: self.arena }, (0..BLOCKS).collect());
        }
        for context in &mut self.machine.contexts {
            (context.position, context.silent) = (position, silent);
        }
        let all: Vec<usize> = (0..gangs * each).collect();
        let all: Vec<&[usize]> = all.chunks(each).collect();
        let (outcomes, timing) = board.steps(&mut self.machine, &self.words, &all, &mut ());
        assert!(outcomes.concat().iter().all(Result::is_ok), "{outcomes:?}");
        timing
    }
}

impl Bench {
    /// Cycles of a step of one rollout by formulas of words, on a machine of its own.
    fn formulas(&self, position: u32, memory: u64) -> u64 {
        let mut alone = Self { words: self.words.clone(), machine: self.machine.clone(), ..*self };
        alone.step(&board(memory, true), [1, 1], position, false).cycles
    }
}

fn share(part: u64, timing: &Timing) -> String {
    format!("{:.1} %", part as f64 * 100.0 / timing.cycles as f64)
}

fn shares(timing: &Timing) -> String {
    timing.busy.map(|busy| share(busy, timing)).join(" | ")
}

/// A board where memory answers after so many cycles.
fn board(memory: u64, overlap: bool) -> Scoreboard {
    let costs = Costs { memory, ..Costs::default() };
    Scoreboard { overlap, ..Scoreboard::new(Latency::Expected(costs)) }
}

/// What a step takes with one gang.
fn steps(bench: &mut Bench) {
    println!("| gang | position | token | words | cycles | a token | MEM | GEMV | SFU | KV |");
    println!("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for (gang, position, silent) in [
        (1, 0, false),
        (1, 0, true),
        (1, 255, false),
        (1, 255, true),
        (4, 255, false),
        (8, 255, false),
        (8, 255, true),
    ] {
        let timing = bench.step(&board(64, true), [1, gang], position, silent);
        println!(
            "| {gang} | {position} | {} | {} | {} | {} | {} |",
            if silent { "no" } else { "yes" },
            timing.words,
            timing.cycles,
            timing.cycles / gang as u64,
            shares(&timing)
        );
    }
}

/// What gangs, the scoreboard and reading ahead bring.
fn gangs(bench: &mut Bench) {
    println!(
        "| gangs | contexts of each | words at a time | memory | cycles a token | tokens/s | MEM | GEMV | SFU | KV |"
    );
    println!("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for (gangs, each) in [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 4), (2, 8), (4, 2), (4, 8)] {
        for (overlap, memory) in [(false, 64), (true, 64), (true, 0)] {
            let timing = bench.step(&board(memory, overlap), [gangs, each], 255, false);
            let token = timing.cycles / (gangs * each) as u64;
            println!(
                "| {gangs} | {each} | {} | {memory} | {token} | {} | {} |",
                if overlap { "several" } else { "one" },
                CLOCK / token,
                shares(&timing)
            );
        }
    }
}

/// What each unit does in each cycle.
fn causes(bench: &mut Bench) {
    println!(
        "| gangs | contexts of each | unit | busy | {} |",
        Idle::ALL.map(|idle| idle.to_string()).join(" | ")
    );
    println!("|--:|--:|---|--:|--:|--:|--:|--:|--:|");
    for (gangs, each) in [(1, 1), (1, 8), (2, 8)] {
        let timing = bench.step(&board(64, true), [gangs, each], 255, false);
        for engine in Engine::ALL {
            let busy = timing.busy[engine as usize];
            let causes = timing.idle[engine as usize].map(|idle| share(idle, &timing)).join(" | ");
            println!("| {gangs} | {each} | {engine:?} | {} | {causes} |", share(busy, &timing));
        }
    }
}

impl Bench {
    /// A step; keys and values are 0, so no block is below the others.
    fn exact<'m>(&'m self, position: u32, blocks: &'m [u32]) -> Step<'m> {
        Step {
            words: &self.words,
            memory: &self.machine.memory,
            program: self.first,
            lines: self.machine.settings.lines,
            bases: Bases::default(),
            token: 0,
            position,
            silent: false,
            blocks,
            skipped: &[],
        }
    }
}

/// What share of so many cycles each unit has a word.
fn busy(steps: &[Timed], cycles: u64) -> String {
    let mut busy = [0; 4];
    for span in steps.iter().flat_map(|step| &step.words) {
        busy[span.issue.engine() as usize] += span.done - span.start;
    }
    busy.map(|busy| format!("{:.1} %", busy as f64 * 100.0 / cycles as f64)).join(" | ")
}

/// What each unit is busy, cycle by cycle: with one rollout, and with several, each on a gang of its own.
fn exact(bench: &Bench) {
    println!("| position | memory | cycles | by formulas | MEM | GEMV | SFU | KV |");
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|");
    let blocks: Vec<u32> = (0..BLOCKS).collect();
    for position in [0, 3, 127, 200] {
        for memory in [0, 16, 64] {
            let timed =
                clock::step(&bench.exact(position, &blocks), memory).expect("words that can be executed");
            let (cycles, formulas) = (timed.cycles, bench.formulas(position, memory));
            println!("| {position} | {memory} | {cycles} | {formulas} | {} |", busy(&[timed], cycles));
        }
    }
    println!("| gangs | words at a time | weights | cycles a token | tokens/s | MEM | GEMV | SFU | KV |");
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for gangs in [1, 2, 4] {
        for (overlap, weights) in [(false, 64), (false, 0), (true, 64), (true, 0)] {
            let begins: Vec<Begin<'_>> = (TOKENS
                .flat_map(|position| (0..gangs).map(move |gang| (gang, position))))
            .map(|(gang, position)| Begin { gang, at: 2 * gang as u64, step: bench.exact(position, &blocks) })
            .collect();
            let timed = clock::steps(&begins, Setup { weights, overlap, ..Setup::rtl(64) })
                .expect("words that can be executed");
            let cycles = timed.iter().map(|step| step.began + step.cycles).max().unwrap_or_default();
            let token = cycles / begins.len() as u64;
            println!(
                "| {gangs} | {} | {weights} | {token} | {} | {} |",
                if overlap { "several" } else { "one" },
                CLOCK / token,
                busy(&timed, cycles)
            );
        }
    }
}

fn main() {
    let asked = |name: &str| std::env::args().any(|argument| argument == name);
    let models =
        [("micro", micro()), ("micro-gemma", micro_gemma()), ("tiny", tiny()), ("smollm2", smollm2())];
    let all = !models.iter().any(|(name, _)| asked(name));
    for (name, image) in models.into_iter().filter(|(name, _)| all || asked(name)) {
        let (bytes, shape) = (image.to_bytes(), image.model.shape);
        let (header, entries) = (header(&bytes).expect("an image"), entries(&bytes).expect("an image"));
        let program =
            compile(&shape, header.epsilon, &entries, bytes.len() as u64).expect("a shape that fits");
        let layer_words = program.layers[0].len();
        println!(
            "{name}: {} words and {layer_words} for each layer, {} words of memory a context, {} bytes of keys and values for 32 tokens",
            program.words.len(),
            program.lines() * 4,
            program.block
        );
        if asked("--listing") {
            println!("{}; of layer 0\n{}", listing(&program.words), listing(&program.layers[0]));
        }
        let mut bench = Bench::new(&program, bytes);
        if asked("--exact") {
            exact(&bench);
        } else if asked("--gangs") {
            gangs(&mut bench);
            causes(&mut bench);
        } else {
            steps(&mut bench);
        }
    }
}
