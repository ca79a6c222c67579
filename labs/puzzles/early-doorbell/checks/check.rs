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

/// Looks at the doorbell before the device gives up.
const LOOKS: u32 = 2;

/// Those that follow the first `before` of a run.
fn batch(before: u32, count: u32) -> Vec<Descriptor> {
    (0..count).map(|k| Descriptor { rollout: 7 + u64::from(before + k) }).collect()
}

/// Fetches what the doorbell publishes, from index `start` on; whether that were all that fit.
fn device(shared: &Shared, start: u32, fits: u32) -> bool {
    let mut at = start;
    for _ in 0..=LOOKS {
        let tail = shared.doorbell.load(Acquire);
        let published = tail.wrapping_sub(start);
        if published > fits {
            wrong(format!("The doorbell publishes {published} descriptors, and only {fits} fit into the ring."));
        }
        while at != tail {
            let k = at.wrapping_sub(start);
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
        if published == fits {
            return true;
        }
        wait();
    }
    false
}

/// Submits batches of these counts, one after the other, from index `start` on.
fn run(start: u32, counts: &'static [u32]) {
    let fits = counts.iter().sum::<u32>().min(DEPTH as u32);
    let batches = match counts {
        [count] => format!("a batch of {count}"),
        counts => format!("batches of {}", counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ")),
    };
    let case = format!("{batches} on a ring of {DEPTH}, the first index {start:#x}");
    let outcome = explore(move || {
        let shared = Arc::new(Shared::new(start));
        let theirs = shared.clone();
        let fetcher = spawn("device", move || device(&theirs, start, fits));
        let mut queue = SubmissionQueue::new(&shared, start);
        let mut before = 0;
        for (calls, &count) in (1..).zip(counts) {
            let room = count.min(DEPTH as u32 - before);
            let taken = queue.submit(&batch(before, count));
            if taken != room as usize {
                wrong(format!("submit() says that it took {taken} descriptors; {room} fit."));
            }
            before += room;
            let told = shared.doorbell.look();
            if told != start.wrapping_add(before) {
                let calls = if calls > 1 { format!(" in {calls} calls") } else { String::new() };
                wrong(format!(
                    "submit() took {before} descriptors{calls} and has returned; the doorbell publishes {} of them.",
                    told.wrapping_sub(start) as i32
                ));
            }
        }
        fetcher.join().unwrap()
    });
    if let Err(failure) = outcome {
        still_wrong(&case, &failure, "R1: a device never acts on a slot before the host has published it, so a slot is complete, and visible, before its doorbell.");
    }
}

fn main() {
    run(5, &[1]);
    run(5, &[2]);
    // The indices wrap, and the batch does not fit.
    run(u32::MAX, &[2]);
    run(u32::MAX, &[3]);
    run(u32::MAX, &[1, 1]);
    solved("in every interleaving the device finds each slot as it was written.");
}
