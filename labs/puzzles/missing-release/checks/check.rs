//! Runs `ring.rs` with a device and a host at once, in every interleaving that its memory orders allow.

#[path = "../ring.rs"]
mod ring;

use std::sync::Arc;

use doorbell_puzzles::sync::{AtomicU32, Cell};
use doorbell_puzzles::{explore, explore_newest, solved, spawn, still_wrong, wait, wrong};
use ring::{Ring, SLOTS};

/// A first index from which the indices wrap at 2^32.
const LATE: u32 = u32::MAX - 1;
const _: () = assert!(SLOTS == 2, "the ring has two slots: SLOTS stays 2");
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

fn ring(start: u32) -> Arc<Ring> {
    Arc::new(Ring {
        head: AtomicU32::new("head", start),
        tail: AtomicU32::new("tail", start),
        slots: std::array::from_fn(|k| Cell::new(format!("slot {k}"), 0)),
    })
}

/// The device fills the ring, and the host does nothing.
fn fill(start: u32) -> bool {
    let ring = ring(start);
    let device = spawn("device", move || {
        for k in 1..=SLOTS {
            if !ring.post(k) {
                wrong(format!("The device has filled {} of {SLOTS} slots, and post() returns false.", k - 1));
            }
        }
    });
    device.join().unwrap();
    true
}

/// A device and a host at once.
fn hand_over(start: u32) -> bool {
    let ring = ring(start);
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
    let order = "R4: a device writes a slot only after the host has released it, and the host reads it before that.";
    let room = "R4: the device stalls only where no slot is free. A ring of two slots holds two completions.";
    let fits = |start| format!("{SLOTS} completions into an empty ring, the first index {start:#x}");
    let passes = |start| format!("{COUNT} completions through {SLOTS} slots, the first index {start:#x}");
    explore_newest(|| fill(0)).unwrap_or_else(|failure| still_wrong(&fits(0), &failure, room));
    let count = explore(|| hand_over(0)).unwrap_or_else(|failure| still_wrong(&passes(0), &failure, order));
    // What the orders allow does not depend on where the indices wrap.
    explore_newest(|| fill(LATE)).unwrap_or_else(|failure| still_wrong(&fits(LATE), &failure, room));
    explore_newest(|| hand_over(LATE)).unwrap_or_else(|failure| still_wrong(&passes(LATE), &failure, order));
    solved(&format!("{count} interleavings, and in each the host takes every completion once."));
}
