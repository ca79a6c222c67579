//! How long the interpreter takes for tokens of a model, an image or `micro`, and whether they are those of crate `lm`.
//!
//!     cargo run --release -p doorbell-npu --example speed -- FILE.image [Plain1|Fast1|Fast8]

use std::time::Instant;

use doorbell_lm::fast::Runner;
use doorbell_lm::image::{entries, header};
use doorbell_lm::sample::{Draw, Sharpness, sample};
use doorbell_lm::{Cache, Image, micro};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::compile;
use doorbell_npu::run::{Arena, Machine, Sampling, Settings};

/// Of temperature 1.
const SHARPNESS: Sharpness = Sharpness::ONE;

fn main() {
    let bytes = match std::env::args().nth(1) {
        Some(path) if path != "micro" => std::fs::read(path).expect("an image that can be read"),
        _ => micro().to_bytes(),
    };
    let (header, entries) = (header(&bytes).expect("an image"), entries(&bytes).expect("an image"));
    let length = bytes.len() as u64;
    let program = compile(&header.shape, header.epsilon, &entries, length).expect("a shape that fits");
    let image = Image::from_bytes(&bytes).expect("an image");
    let memory = program.memory(bytes);
    let blocks = 2u64;
    println!("| loops | gang | tokens/s |\n|---|--:|--:|");
    let only = std::env::args().nth(2);
    for (speed, gang) in [(Speed::Plain, 1), (Speed::Fast, 1), (Speed::Fast, 8)] {
        if only.as_ref().is_some_and(|only| *only != format!("{speed:?}{gang}")) {
            continue;
        }
        let settings = Settings { lines: program.lines(), speed };
        let arena = program.block * blocks;
        let mut machine = Machine::new(settings, memory.clone(), arena as usize * gang);
        for context in 0..gang as u64 {
            machine.admit(Arena { base: context * arena, bytes: arena }, (0..blocks as u32).collect());
            let context = machine.contexts.last_mut().expect("it was admitted");
            let rollout = context.arena.base as u32;
            context.sampling = Sampling { sharpness: SHARPNESS, seed: 1, rollout, scores: false };
        }
        let all: Vec<usize> = (0..gang).collect();
        let start = Instant::now();
        let (mut tokens, mut sequence, mut samples) = (0, vec![], vec![]);
        for position in 0..64 {
            for context in &mut machine.contexts {
                context.position = position;
            }
            sequence.push(machine.contexts[gang - 1].token);
            let outcomes = machine.step(&program.words, &all, &mut ());
            for (number, (context, outcome)) in machine.contexts.iter_mut().zip(outcomes).enumerate() {
                let sample = outcome.expect("a sound program").sample.expect("a token");
                context.token = sample.token;
                tokens += 1;
                if number == gang - 1 {
                    samples.push(sample);
                }
            }
            if start.elapsed().as_secs() >= 10 {
                break;
            }
        }
        let elapsed = start.elapsed();
        // All of the last context's tokens at once, by another program.
        let runner = Runner::new(&image.model);
        let streams = runner.extend(&mut Cache::new(&image.model), &sequence);
        let rollout = machine.contexts[gang - 1].sampling.rollout;
        for (position, (logits, found)) in runner.logits(&streams).iter().zip(&samples).enumerate() {
            let expected = sample(logits, SHARPNESS, Draw::new(1, rollout, position as u32 + 1));
            let found = (found.token, found.log_probability);
            assert_eq!((expected.token, expected.log_probability), found, "at {position}");
        }
        println!("| {speed:?} | {gang} | {:.1} |", f64::from(tokens) / elapsed.as_secs_f64());
    }
}
