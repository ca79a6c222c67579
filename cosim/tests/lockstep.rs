//! The RTL's NPU in lockstep with the interpreter: it agrees in any memory, at no cycle's cost, and what a device's memory has alone is named.

mod common;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use doorbell_contract::Counter;
use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::{Device, Driver};
use doorbell_lm::micro_gemma;
use doorbell_npu::isa::Form;
use doorbell_npu::run::{Event, Function, Issue, Next, Sequencer, Work};
use doorbell_verify::lockstep::{Held, Lockstep};
use doorbell_verify::replay::{Replay, ReplayPlan, replay};
use rstest::rstest;

use common::{plan, plan_of};

/// What became of the plan on a device whose memory `touch` may change when it begins its first step: with `held` in lockstep.
fn run(config: RtlConfig, held: bool, touch: Option<(u64, u64)>) -> (Replay, u64, Held) {
    run_plan(&plan(), config, held, touch)
}

fn run_plan(
    plan: &ReplayPlan,
    config: RtlConfig,
    held: bool,
    touch: Option<(u64, u64)>,
) -> (Replay, u64, Held) {
    let platform = RtlPlatform::new(&RtlConfig { engines: 2, ..config }).unwrap();
    let mut driver = Driver::new(platform, plan.queue_config()).unwrap();
    let regions = driver.language_regions().pop().unwrap();
    let lockstep = Arc::new(Mutex::new(Lockstep::new(plan.language().unwrap(), regions.clone())));
    let listener = Arc::clone(&lockstep);
    let mut touch = touch;
    if held {
        let listen = move |event: &Event| {
            if let Some((at, bits)) = touch.take() {
                let mut word = [0; 8];
                regions.model.read(at, &mut word).unwrap();
                let word = u64::from_le_bytes(word) ^ bits;
                regions.model.write(at, &word.to_le_bytes()).unwrap();
            }
            listener.lock().unwrap().happened(event)
        };
        driver.platform_mut().observe_npu(listen).unwrap();
    }
    let replay = replay(plan, &mut driver, &mut |_| ControlFlow::Continue(()));
    let cycles = driver.counters().map_or(0, |counters| counters.get(Counter::Cycles));
    let held = lockstep.lock().unwrap().held().clone();
    (replay, cycles, held)
}

#[test]
fn who_watches_changes_nothing() {
    let (alone, cycles, _) = run(RtlConfig::default(), false, None);
    let (watched, as_many, held) = run(RtlConfig::default(), true, None);
    assert!(alone.failure.is_none() && watched.failure.is_none(), "{:?}", watched.failure);
    assert_eq!((cycles, alone.completions), (as_many, watched.completions));
    assert_eq!(held.difference, None);
    // A step for each token of an answer, 79 or 82 words each, and for each position of a prefix.
    assert!(held.steps > watched.tokens && held.words >= 78 * held.steps, "{held:?}");
}

#[test]
fn it_agrees_in_memories_of_all_kinds() {
    for seed in 1..4 {
        let (replay, _, held) = run(RtlConfig::default().with_random_memory(seed), true, None);
        assert!(replay.failure.is_none(), "seed {seed}: {:?}", replay.failure);
        assert!(held.difference.is_none() && held.steps > 100, "seed {seed}: {held:?}");
    }
}

/// A weight is changed in the device's memory, between the publish and the first step: the word that takes it is named.
#[test]
fn a_weight_that_only_the_device_has_is_named() {
    let plan = plan();
    let published = &plan.language().unwrap().published;
    let image = published.at(0);
    let words = published.memory[image.program_at as usize..][..8 * image.words as usize].chunks_exact(8);
    let words: Vec<u64> = words.map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
    let mut sequencer = Sequencer::new(&words, &published.memory, 1024);
    let mut matrices = vec![];
    while let Ok(Next::Issue(issue)) = sequencer.next() {
        if let Work::Multiply { matrix, .. } = issue.work {
            matrices.push((issue, matrix));
        }
    }
    assert_eq!(matrices.len(), 4 * 7);
    for (issue, matrix) in [matrices[0], matrices[9], matrices[27]] {
        // The weight of the first row and the first channel.
        let (replay, _, held) = run(RtlConfig::default(), true, Some((matrix.weights, 0x7E)));
        let difference = held.difference.expect("a difference");
        let named = difference.instruction.as_ref().expect("an instruction");
        assert_eq!((named.pc, named.layer), (issue.pc, issue.layer), "{difference}");
        assert!(difference.is_prefill && difference.position == 0, "{difference}");
        assert!(named.began.is_some_and(|began| began < difference.cycle), "{difference}");
        // The device ends there, in that very cycle.
        let failure = replay.failure.expect("the device ends").to_string();
        assert!(failure.contains(&format!("cycle {}", difference.cycle)), "{failure}");
        assert!(failure.contains(&named.text), "{failure}");
    }
}

/// The place of the first word of the layers that sets this register, and its value; `from` on there are such words.
fn register(memory: &[u8], from: usize, name: &str, fits: impl Fn(u64) -> bool) -> (u64, u64) {
    let form = Form::named(name).unwrap();
    let mut words = memory[from..].chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap()));
    let value = |word: u64| (word >> 20) & 0xFFFF_FFFF;
    let is_one = |word: u64| Form::of(word).is_ok_and(|of| of.mnemonic == form.mnemonic) && fits(value(word));
    let at = words.clone().position(is_one).expect("a layer sets it");
    (from as u64 + 8 * at as u64, value(words.nth(at).unwrap()))
}

/// What is planted in the program of Gemma 3N's shape, in the device's memory alone: what a wrong one does is named. Another window by one
/// position, another layer to share keys and values with, what is per layer added to the first stream.
#[rstest]
fn what_is_planted_in_gemma_3ns_words_is_named(#[values("window", "source", "stream")] what: &str) {
    let image = micro_gemma();
    let (bytes, own) = (image.to_bytes().len(), image.model.shape.gemma.unwrap().own as u64);
    let plan = plan_of(image);
    let published = &plan.language().unwrap().published;
    let (memory, program) = (&published.memory, published.at(0));
    let words = memory[program.program_at as usize..][..8 * program.words as usize].chunks_exact(8);
    let words: Vec<u64> = words.map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
    let (touch, named_as) = match what {
        "window" => {
            let (at, window) = register(memory, bytes, "memset.window", |value| value < 65_536);
            assert_eq!(window, 41);
            ((at, 1 << 20), "attn ")
        }
        "source" => {
            let (at, source) = register(memory, bytes, "memset.source", |_| true);
            ((at, (source ^ ((source + 1) % own)) << 20), "attn ")
        }
        _ => {
            let mut sequencer = Sequencer::new(&words, memory, published.lines);
            let mut first_layer: Vec<Issue> = vec![];
            while let Ok(Next::Issue(issue)) = sequencer.next() {
                match issue.layer {
                    Some(0) => first_layer.push(issue),
                    Some(_) => break,
                    None => {}
                }
            }
            let places = |wanted: Function| {
                let is_it = move |issue: &&Issue| matches!(issue.work, Work::Vector { function, .. } if function == wanted);
                let place = |issue: &Issue| match issue.work {
                    Work::Vector { dst, .. } => (issue.pc, u64::from(dst)),
                    _ => unreachable!(),
                };
                first_layer.iter().filter(is_it).map(place).collect::<Vec<_>>()
            };
            // The last three of a layer add to the streams behind the first one.
            let (streams, adds) = (places(Function::Predict)[0].1, places(Function::Add));
            let (pc, second) = adds[adds.len() - 3];
            assert!(second > streams && adds[adds.len() - 2].1 - second == second - streams);
            let dst =
                Form::named("vec.add").unwrap().fields.iter().find(|field| field.name == "dst").unwrap();
            ((program.program_at + 8 * u64::from(pc), (second ^ streams) << dst.low), "vec.add ")
        }
    };
    let (replay, _, held) = run_plan(&plan, RtlConfig::default(), true, Some(touch));
    let difference = held.difference.expect("a difference");
    let named = difference.instruction.as_ref().expect("an instruction");
    assert!(named.text.starts_with(named_as), "{difference}");
    assert_eq!(named.layer, Some(0), "{difference}");
    // The window's end shows at the first position that it leaves one behind, all else at once.
    assert_eq!(difference.position, if what == "window" { 40 } else { 0 }, "{difference}");
    assert!(replay.failure.expect("the device ends").to_string().contains(&named.text));
    // Nothing is named where nothing is planted.
    let (replay, _, held) = run_plan(&plan, RtlConfig::default().with_random_memory(5), true, None);
    assert!(replay.failure.is_none() && held.difference.is_none() && held.steps > 100, "{held:?}");
}

#[test]
fn a_device_without_an_npu_is_refused() {
    let mut platform = RtlPlatform::new(&RtlConfig { workers: 1, ..RtlConfig::default() }).unwrap();
    let refused = platform.observe_npu(|_| Ok(())).unwrap_err().to_string();
    assert_eq!(refused, "engines is 1: it must be 2, where an NPU is to be observed");
}
