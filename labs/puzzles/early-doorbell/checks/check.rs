//! Runs `submission.rs` against a device that fetches at any moment, in every interleaving.

#[path = "shared.rs"]
mod shared;
#[path = "../submission.rs"]
mod submission;

use std::sync::Arc;

use doorbell_puzzles::sync::Ordering::{Acquire, Relaxed};
use doorbell_puzzles::{explore, solved, spawn, still_wrong, wait, wrong};
use shared::{DEPTH, Descriptor, Shared};
use submission::SubmissionQueue;

/// The index of the first slot: the ring wraps in the middle of a batch.
const START: u32 = u32::MAX;

/// Looks at the doorbell before the device gives up.
const LOOKS: u32 = 2;

fn batch(count: u64) -> Vec<Descriptor> {
    (0..count).map(|k| Descriptor { rollout: 7 + k }).collect()
}

/// Fetches what the doorbell publishes; whether it saw `count` descriptors.
fn device(shared: &Shared, count: u32, fits: u32) -> bool {
    let mut at = START;
    for _ in 0..=LOOKS {
        let tail = shared.doorbell.load(Acquire);
        let published = tail.wrapping_sub(START);
        if published > fits {
            wrong(format!("The doorbell publishes {published} descriptors, and only {fits} fit into the ring."));
        }
        while at != tail {
            let k = at.wrapping_sub(START);
            let slot = shared.slot(at);
            let (check, rollout) = (slot.check.load(Relaxed), slot.rollout.load(Relaxed));
            let expected = Descriptor { rollout: 7 + u64::from(k) };
            if (rollout, check) != (expected.rollout, expected.check(at)) {
                wrong(format!(
                    "The device fetches slot {} (index {at:#x}) and finds rollout {rollout}, check {check:#x}; the host wrote, or will write, rollout {}, check {:#x}.",
                    at as usize % DEPTH, expected.rollout, expected.check(at)
                ));
            }
            at = at.wrapping_add(1);
        }
        if published == count {
            return true;
        }
        wait();
    }
    false
}

fn run(count: u32) {
    let fits = count.min(DEPTH as u32);
    let case = format!("a batch of {count} on a ring of {DEPTH}, the first index {START:#x}");
    let outcome = explore(move || {
        let shared = Arc::new(Shared::new(START));
        let theirs = shared.clone();
        let fetcher = spawn("device", move || device(&theirs, fits, fits));
        let mut queue = SubmissionQueue::new(&shared, START);
        let taken = queue.submit(&batch(count.into()));
        if taken != fits as usize {
            wrong(format!("submit() says that it took {taken} descriptors; {fits} fit."));
        }
        let told = shared.doorbell.load(Relaxed);
        if told != START.wrapping_add(fits) {
            wrong(format!(
                "submit() took {fits} descriptors and has returned; the doorbell publishes {} of them.",
                told.wrapping_sub(START) as i32
            ));
        }
        fetcher.join().unwrap()
    });
    if let Err(failure) = outcome {
        still_wrong(&case, &failure, "R1: a device never acts on a slot before the host has published it, so a slot is complete, and visible, before its doorbell.");
    }
}

fn main() {
    run(1);
    run(2);
    run(3);
    solved("in every interleaving the device finds each slot as it was written.");
}
