//! Runs `ring.rs` with a device and a host at once, in every interleaving that its memory orders allow.

#[path = "../ring.rs"]
mod ring;

use std::sync::Arc;

use doorbell_puzzles::sync::{AtomicU32, Cell};
use doorbell_puzzles::{explore, solved, spawn, still_wrong, wait, wrong};
use ring::{Ring, SLOTS};

/// The index of the first slot: the indices wrap.
const START: u32 = u32::MAX - 1;
/// More than fit, so that one slot is used twice.
const COUNT: u32 = SLOTS + 1;
/// Looks at what the other side is to do before a side gives up.
const LOOKS: u32 = 2;

/// Looks for something, and gives up after some looks.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..=LOOKS {
        if let Some(found) = look() {
            return Some(found);
        }
        wait();
    }
    None
}

fn model() -> bool {
    let ring = Arc::new(Ring {
        head: AtomicU32::new("head", START),
        tail: AtomicU32::new("tail", START),
        slots: std::array::from_fn(|k| Cell::new(format!("slot {k}"), 0)),
    });
    let theirs = ring.clone();
    let device = spawn("device", move || (1..=COUNT).all(|k| until(|| theirs.post(k).then_some(())).is_some()));
    let mut whole = true;
    for expected in 1..=COUNT {
        match until(|| ring.take()) {
            Some(found) if found == expected => {}
            Some(found) => wrong(format!("The host takes completion {found} and expects completion {expected}.")),
            None => {
                whole = false;
                break;
            }
        }
    }
    device.join().unwrap() && whole
}

fn main() {
    let why = "R4: a device writes a slot only after the host has released it, and the host reads it before that.";
    match explore(model) {
        Ok(count) => solved(&format!("{count} interleavings, and in each the host takes every completion once.")),
        Err(failure) => still_wrong(&format!("{COUNT} completions through {SLOTS} slots"), &failure, why),
    }
}
