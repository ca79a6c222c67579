//! The RTL's NPU in lockstep with the interpreter: it agrees in any memory, at no cycle's cost, and what a device's memory has alone is named.

mod common;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use doorbell_contract::Counter;
use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::{Device, Driver};
use doorbell_npu::run::{Event, Next, Sequencer, Work};
use doorbell_verify::lockstep::{Held, Lockstep};
use doorbell_verify::replay::{Replay, replay};

use common::plan;

/// What became of the plan on a device whose memory `touch` may change when it begins its first step: with `held` in lockstep.
fn run(config: RtlConfig, held: bool, touch: Option<(u64, u8)>) -> (Replay, u64, Held) {
    let plan = plan();
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
                regions.model.read(at / 8 * 8, &mut word).unwrap();
                word[(at % 8) as usize] ^= bits;
                regions.model.write(at / 8 * 8, &word).unwrap();
            }
            listener.lock().unwrap().happened(event)
        };
        driver.platform_mut().observe_npu(listen).unwrap();
    }
    let replay = replay(&plan, &mut driver, &mut |_| ControlFlow::Continue(()));
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

#[test]
fn a_device_without_an_npu_is_refused() {
    let mut platform = RtlPlatform::new(&RtlConfig { workers: 1, ..RtlConfig::default() }).unwrap();
    let refused = platform.observe_npu(|_| Ok(())).unwrap_err().to_string();
    assert_eq!(refused, "engines is 1: it must be 2, where an NPU is to be observed");
}
