//! What host and device share: the slots and the doorbell.

use doorbell_puzzles::sync::{AtomicU32, AtomicU64};

/// Slots of the ring.
pub const DEPTH: usize = 2;

/// A descriptor, with one field and its check word.
#[derive(Clone, Copy)]
pub struct Descriptor {
    pub rollout: u64,
}

impl Descriptor {
    /// Depends on the fields and on the index, and is never 0.
    pub fn check(&self, index: u32) -> u64 {
        ((self.rollout << 32) ^ (u64::from(index) << 8) ^ 0x5A) | 1
    }
}

/// A slot; the check word is written last.
#[derive(Debug)]
pub struct Slot {
    pub rollout: AtomicU64,
    pub check: AtomicU64,
}

#[derive(Debug)]
pub struct Shared {
    slots: [Slot; DEPTH],
    pub doorbell: AtomicU32,
}

impl Shared {
    pub fn new(start: u32) -> Self {
        let slot = |k| Slot {
            rollout: AtomicU64::new(format!("slot {k}'s rollout"), 0),
            check: AtomicU64::new(format!("slot {k}'s check"), 0),
        };
        Self { slots: std::array::from_fn(slot), doorbell: AtomicU32::new("DOORBELL", start) }
    }

    pub fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize % DEPTH]
    }
}
