//! The free list of blocks in every order that its memory orders allow, from the very source that the arena uses.

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
#[allow(dead_code, reason = "the arena uses the rest")]
#[path = "../src/kv/stack.rs"]
mod stack;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;
use stack::Stack;

/// The stack, and what each index stands for: loom fails if two threads have an index at once, or if a holder does not
/// see what the last one wrote.
struct Shared {
    stack: Stack,
    blocks: Vec<UnsafeCell<usize>>,
}

// SAFETY: loom checks that no two threads are in a cell at once.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(len: u32) -> Arc<Self> {
        let blocks = (0..len).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { stack: Stack::full(len), blocks })
    }

    /// Takes up to `N`, uses them, gives them back in the same order; returns how many.
    fn turn<const N: usize>(&self) -> usize {
        let mut taken = [0; N];
        let count = self.stack.pop(&mut taken);
        for &index in &taken[..count] {
            // What a holder does with the note must not lead others astray.
            self.stack.note(index).store(u64::MAX, sync::Ordering::Relaxed);
            // SAFETY: loom checks that no other access is concurrent.
            self.blocks[index as usize].with_mut(|block| unsafe { *block += 1 });
        }
        self.stack.push(&taken[..count]);
        count
    }

    fn uses(&self) -> usize {
        // SAFETY: loom checks that no other access is concurrent.
        self.blocks.iter().map(|block| block.with(|block| unsafe { *block })).sum()
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// One thread takes two and gives them back in another order while the other is about to take one: ABA.
#[test]
fn no_index_is_with_two_threads() {
    check(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let thread = thread::spawn(move || other.turn::<2>());
        let mine = shared.turn::<1>() + shared.turn::<1>();
        let uses = mine + thread.join().unwrap();
        assert_eq!(shared.uses(), uses);
        let mut all = [0; 3];
        assert_eq!(shared.stack.pop(&mut all), 2, "an index was lost or doubled");
        assert_ne!(all[0], all[1]);
    });
}

#[test]
fn the_low_water_is_the_fewest_at_any_time() {
    check(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let thread = thread::spawn(move || other.turn::<1>());
        let mut mine = [0; 1];
        assert_eq!(shared.stack.pop(&mut mine), 1);
        assert_eq!(thread.join().unwrap(), 1);
        assert!(shared.stack.low_water() <= 1);
        shared.stack.push(&mine);
        let mut all = [0; 3];
        assert_eq!(shared.stack.pop(&mut all), 2);
        assert_eq!(shared.stack.low_water(), 0);
    });
}
