//! Programs give what the oracle says, to the byte.

mod common;

use common::{Beside, Draws, Logits, assert_same_kv, chosen, machine, program};
use doorbell_lm::{About, EXTREMES, Gemma, Image, KvCap, Shape, extreme, hashed, micro, micro_gemma, steep};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::isa::Form;
use doorbell_npu::text::{assemble, disassemble, listing};
use rstest::rstest;

const GEMMA: Gemma = Gemma { embedding: 32, laurel: 32, window: 11, global: 2, own: 2, cut: 2 };
const SMALL: Shape = Shape {
    width: 32,
    layers: 5,
    heads: 2,
    kv_heads: 1,
    head_width: 32,
    hidden: 64,
    vocabulary: 64,
    context: 64,
    gemma: None,
    kv_cap: None,
};

/// A model whose layers without a window see sinks and a window.
fn capped(mut image: Image, window: usize, sinks: usize) -> Image {
    image.model.shape.kv_cap = Some(KvCap { window, sinks });
    image
}

/// Two blocks and some: bins, tables and a last block that is not full. Of Gemma 3N's shape four, and windows that begin within blocks.
#[rstest]
#[case(micro(), 75, Speed::Plain)]
#[case(micro(), 75, Speed::Fast)]
#[case(micro_gemma(), 110, Speed::Plain)]
#[case(micro_gemma(), 110, Speed::Fast)]
#[case(capped(micro(), 40, 32), 127, Speed::Fast)]
#[case(capped(micro(), 1, 0), 70, Speed::Fast)]
#[case(capped(micro(), 33, 64), 127, Speed::Plain)]
#[case(capped(micro_gemma(), 50, 32), 127, Speed::Fast)]
fn a_program_gives_the_logits_and_the_keys_and_values_of_the_oracle(
    #[case] image: Image,
    #[case] positions: u32,
    #[case] speed: Speed,
) {
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 3, 4, speed, 7);
    let mut oracles: Vec<Beside> = (0..3).map(|_| Beside::new(&image)).collect();
    let mut draws = Draws(1);
    for position in 0..positions {
        // The contexts are not at the same position.
        let gang: Vec<usize> = if position < 10 { vec![0, 2] } else { vec![2, 0, 1] };
        for &context in &gang {
            machine.contexts[context].token = draws.below(64) as u32;
        }
        let mut logits = Logits::default();
        let outcomes = machine.step(&program.words, &gang, &mut logits);
        for (&context, outcome) in gang.iter().zip(outcomes) {
            let expected = oracles[context].step(machine.contexts[context].token);
            assert_eq!(logits.0[context], expected, "context {context} at {position}");
            assert_eq!(outcome.unwrap().sample, Some(chosen(&expected, &machine.contexts[context])));
            machine.contexts[context].position += 1;
        }
    }
    for (number, oracle) in oracles.iter().enumerate() {
        assert_same_kv(&machine, &image, &program, number, &oracle.cache);
    }
}

/// A prompt as a gang of consecutive tokens of one context's sequence, and tokens behind it.
#[rstest]
#[case(micro())]
#[case(micro_gemma())]
#[case(capped(micro(), 20, 32))]
#[case(capped(micro_gemma(), 41, 64))]
fn a_prompt_goes_many_tokens_at_a_time(#[case] image: Image) {
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 9, 4, Speed::Fast, 3);
    // Eight contexts of the first one's sequence; the ninth has one of its own.
    let (arena, blocks) = (machine.contexts[0].arena, machine.contexts[0].blocks.clone());
    for context in &mut machine.contexts[..8] {
        (context.arena, context.blocks) = (arena, blocks.clone());
    }
    let mut draws = Draws(4);
    let prompt: Vec<u32> = (0..107).map(|_| draws.below(64) as u32).collect();
    let mut oracle = Beside::new(&image);
    let expected: Vec<Vec<i32>> = prompt.iter().map(|&token| oracle.step(token)).collect();
    for (eight, tokens) in prompt.chunks(8).enumerate() {
        for (place, &token) in tokens.iter().enumerate() {
            let context = &mut machine.contexts[place];
            (context.token, context.position) = (token, (8 * eight + place) as u32);
            context.silent = context.position as usize + 1 < prompt.len();
        }
        let gang: Vec<usize> = (0..tokens.len()).collect();
        let mut logits = Logits::default();
        for (place, outcome) in machine.step(&program.words, &gang, &mut logits).into_iter().enumerate() {
            let wanted = !machine.contexts[place].silent;
            assert_eq!(outcome.unwrap().sample.is_some(), wanted);
            if wanted {
                assert_eq!(logits.0[place], expected[106]);
            }
        }
    }
    assert_same_kv(&machine, &image, &program, 0, &oracle.cache);
}

/// Other shapes of Gemma 3N's kind: all layers with keys and values of their own, all of them global, heads that share none or many, numbers of
/// channels that no two vectors share.
#[rstest]
#[case::own(SMALL, Gemma { own: 5, window: 3, ..GEMMA })]
#[case::global(SMALL, Gemma { global: 1, own: 1, cut: 5, ..GEMMA })]
#[case::heads(Shape { heads: 6, kv_heads: 3, ..SMALL }, Gemma { window: 1, own: 4, cut: 0, ..GEMMA })]
#[case::odd(Shape { width: 96, hidden: 160, head_width: 64, vocabulary: 70, ..SMALL }, Gemma { embedding: 64, laurel: 128, global: 3, own: 3, window: 32, ..GEMMA })]
#[case::wide(Shape { width: 160, hidden: 2080, layers: 4, ..SMALL }, Gemma { embedding: 96, laurel: 64, window: 33, ..GEMMA })]
fn other_shapes_give_what_the_oracle_says(#[case] shape: Shape, #[case] gemma: Gemma) {
    let shape = Shape { gemma: Some(gemma), ..shape };
    let image = Image { model: hashed(shape), about: About::default() };
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 2, 2, Speed::Fast, 15);
    let mut oracles = [Beside::new(&image), Beside::new(&image)];
    let mut draws = Draws(16);
    for position in 0..40 {
        for context in &mut machine.contexts {
            (context.token, context.position) = (draws.below(64) as u32, position);
        }
        let mut logits = Logits::default();
        let outcomes = machine.step(&program.words, &[0, 1], &mut logits);
        for (context, (oracle, outcome)) in oracles.iter_mut().zip(outcomes).enumerate() {
            let expected = oracle.step(machine.contexts[context].token);
            assert_eq!(logits.0[context], expected, "context {context} at {position}");
            assert_eq!(outcome.unwrap().sample, Some(chosen(&expected, &machine.contexts[context])));
        }
    }
    for (number, oracle) in oracles.iter().enumerate() {
        assert_same_kv(&machine, &image, &program, number, &oracle.cache);
    }
}

/// Images in which what can saturate does, and one whose third bin counts.
#[rstest]
fn what_saturates_does_so_as_the_oracles(#[values(Speed::Plain, Speed::Fast)] speed: Speed) {
    for image in EXTREMES.map(extreme).chain([steep()]) {
        let (program, memory) = program(&image);
        let mut machine = machine(&program, memory, 1, 1, speed, 7);
        // Temperature 0.01.
        machine.contexts[0].sampling.sharpness = doorbell_lm::sample::Sharpness::of(0.01).unwrap();
        let (mut oracle, mut draws) = (Beside::new(&image), Draws(2));
        for position in 0..9 {
            let context = &mut machine.contexts[0];
            (context.token, context.position) = (draws.below(64) as u32, position);
            let mut logits = Logits::default();
            let outcome = machine.step(&program.words, &[0], &mut logits).remove(0);
            let expected = oracle.step(machine.contexts[0].token);
            assert_eq!(logits.0[0], expected, "{} at {position}", image.about.name);
            assert_eq!(outcome.unwrap().sample, Some(chosen(&expected, &machine.contexts[0])));
        }
        assert_same_kv(&machine, &image, &program, 0, &oracle.cache);
    }
}

/// Random weights of SmolLM2's shape: a prompt of two, and a token.
#[test]
fn smollm2s_shape_gives_what_the_oracle_says() {
    let image = common::smollm2(64);
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 2, 1, Speed::Fast, 5);
    let mut oracles = [Beside::new(&image), Beside::new(&image)];
    let mut draws = Draws(6);
    for position in 0..3 {
        for context in &mut machine.contexts {
            context.token = draws.below(49_152) as u32;
            (context.position, context.silent) = (position, position < 1);
        }
        let mut logits = Logits::default();
        let outcomes = machine.step(&program.words, &[0, 1], &mut logits);
        for (context, (oracle, outcome)) in oracles.iter_mut().zip(outcomes).enumerate() {
            let token = machine.contexts[context].token;
            if position < 1 {
                oracle.oracle.step(&mut oracle.cache, token);
                assert_eq!(outcome.unwrap().sample, None);
            } else {
                let expected = oracle.step(token);
                assert_eq!(logits.0[context], expected);
                let extremes = (expected.iter().min().unwrap(), expected.iter().max().unwrap());
                assert!(
                    (-60_000..-3000).contains(extremes.0) && (3000..60_000).contains(extremes.1),
                    "{extremes:?}"
                );
                assert_eq!(outcome.unwrap().sample, Some(chosen(&expected, &machine.contexts[context])));
            }
        }
    }
    for (number, oracle) in oracles.iter().enumerate() {
        assert_same_kv(&machine, &image, &program, number, &oracle.cache);
    }
}

/// The head in two words: what the sampler holds goes over from one to the next.
#[test]
fn a_head_may_be_cut() {
    let image = micro();
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 3, 1, Speed::Fast, 13);
    let text = listing(&program.words);
    let (whole, first) = ("n=64 k=32", "n=32 k=32");
    let cut = text.lines().map(|line| match line {
        // Rows of 64 bytes: the second half is 32 lines and a line of scales further.
        _ if line.starts_with("memset.weight index=0") => format!(
            "{line}\n{}\n{}\n{}",
            line.replace("index=0", "index=20").replace(whole, first),
            second(&program.words, 0, 20, 32 * 64),
            second(&program.words, 1, 21, 64),
        ),
        _ if line.starts_with("head") => {
            let first = line.replace(" last", "").replace("shape=0", "shape=20");
            let last = line.replace(" first", "").replace("shape=0", "shape=20").replace("desc=0", "desc=20");
            format!("{first}\n{last}")
        }
        _ => line.to_owned(),
    });
    let words = assemble(&cut.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(words.len(), program.words.len() + 4);
    for position in 0..5 {
        for context in &mut machine.contexts {
            (context.token, context.position) = (position * 3, position);
        }
        let expected = machine.step(&program.words, &[0, 1, 2], &mut ());
        assert_eq!(machine.step(&words, &[0, 1, 2], &mut ()), expected);
    }
}

/// Another descriptor, of what lies `bytes` further.
fn second(words: &[u64], index: u64, other: u64, bytes: u64) -> String {
    let of = |word: &&u64| disassemble(**word).starts_with(&format!("memset.desc index={index} "));
    let word = words.iter().find(of).unwrap();
    let form = Form::of(*word).unwrap();
    let [base, aux] = ["base", "aux"].map(|name| form.field(name).unwrap().of(*word));
    disassemble(form.word(&[("index", other), ("base", base + bytes / 64), ("aux", aux)]))
}
