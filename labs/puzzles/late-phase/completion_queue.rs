//! The host's half of a completion queue: it tells by a phase bit which slots the device has written.
//!
//! Indices run freely, as `u32` that wraps: the slot of index i is i modulo `depth`, which is a power of two. A completion is 32 bytes, four words of
//! 64 bits. The device writes it in two halves of 16 bytes, in any order. Each half carries the phase in the last bit of its last word.

use crate::memory::{Memory, WORDS};

/// Where both halves carry the phase: the last bit of words 1 and 3.
const PHASE: u64 = 1 << 63;

/// What the host takes, without phases.
pub type Completion = [u64; WORDS];

pub struct CompletionQueue<'a> {
    memory: &'a Memory,
    depth: u32,
    /// Running index of the next completion.
    head: u32,
}

impl<'a> CompletionQueue<'a> {
    /// The queue, from running index `start` on. The device is not enabled yet. Both halves of every slot get the phase opposite to that of
    /// their first use, so that none looks fresh.
    pub fn new(memory: &'a Memory, depth: u32, start: u32) -> Self {
        let queue = Self { memory, depth, head: start };
        for k in 0..depth {
            let index = start.wrapping_add(k);
            let stale = if queue.phase(index) { 0 } else { PHASE };
            for (word, value) in [0, stale, 0, stale].into_iter().enumerate() {
                memory.store(queue.slot(index), word, value);
            }
        }
        queue
    }

    fn slot(&self, index: u32) -> usize {
        (index % self.depth) as usize
    }

    /// The phase of the completion with this running index.
    fn phase(&self, index: u32) -> bool {
        index & (self.depth << 1) == 0
    }

    /// Whether both halves of the completion with this running index are there.
    fn is_fresh(&self, index: u32) -> bool {
        let phase = if self.phase(index) { PHASE } else { 0 };
        let is_there = |word| (self.memory.load(self.slot(index), word) ^ phase) & PHASE == 0;
        is_there(3) && is_there(1)
    }

    /// The next completion, if it is there. Its slot may be written again once the caller has released it.
    pub fn pop(&mut self) -> Option<Completion> {
        if !self.is_fresh(self.head) {
            return None;
        }
        let slot = self.slot(self.head);
        let words = [0, 1, 2, 3].map(|word| self.memory.load(slot, word) & !(if word % 2 == 1 { PHASE } else { 0 }));
        self.head = self.head.wrapping_add(1);
        Some(words)
    }
}
