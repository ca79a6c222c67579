//! Words of the programs of `micro`, of `micro-gemma` and of SmolLM2-135M's shape, and the cycles that a step is expected to take.
//!
//!     cargo run --release -p doorbell-npu --example cycles [-- --listing]

use doorbell_lm::image::{entries, header};
use doorbell_lm::{About, Gain, Image, KeyValue, Layer, Matrix, Model, Rope, Shape, micro, micro_gemma};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::compile;
use doorbell_npu::cycles::Costs;
use doorbell_npu::run::{Arena, Engine, Latency, Machine, Scoreboard, Settings};
use doorbell_npu::text::listing;

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

fn main() {
    let with_listing = std::env::args().any(|argument| argument == "--listing");
    for (name, image) in [("micro", micro()), ("micro-gemma", micro_gemma()), ("smollm2", smollm2())] {
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
        if with_listing {
            println!("{}; of layer 0\n{}", listing(&program.words), listing(&program.layers[0]));
        }
        let blocks = 8u32;
        let settings = Settings { lines: program.lines(), speed: Speed::Fast };
        let arena = program.block * u64::from(blocks);
        let mut machine = Machine::new(settings, program.memory(bytes), arena as usize);
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
            while machine.contexts.len() < gang {
                machine.admit(Arena { base: 0, bytes: arena }, (0..blocks).collect());
            }
            for context in &mut machine.contexts {
                (context.position, context.silent) = (position, silent);
            }
            let all: Vec<usize> = (0..gang).collect();
            let scoreboard = Scoreboard::new(Latency::Expected(Costs::default()));
            let (outcomes, timing) = scoreboard.step(&mut machine, &program.words, &all, &mut ());
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            let share = |engine: Engine| {
                format!("{:.1} %", timing.busy[engine as usize] as f64 * 100.0 / timing.cycles as f64)
            };
            println!(
                "| {gang} | {position} | {} | {} | {} | {} | {} |",
                if silent { "no" } else { "yes" },
                timing.words,
                timing.cycles,
                timing.cycles / gang as u64,
                Engine::ALL.map(share).join(" | ")
            );
        }
    }
}
