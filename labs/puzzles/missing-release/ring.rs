//! A completion queue of two slots between the device and the host, who run at the same time.
//!
//! Indices run freely: the slot of index i is i modulo `SLOTS`. The device fills the slots from `tail` on, up to `head + SLOTS`.
//! The host takes those from `head` on, up to `tail`.

// These are the types of `std::sync::atomic`, with a name for the report; `Cell` is plain memory, without any order.
#[allow(unused_imports)]
use doorbell_puzzles::sync::{AtomicU32, Cell, Ordering, fence};

/// Slots of the ring.
pub const SLOTS: u32 = 2;

/// What host and device share.
pub struct Ring {
    /// The host has released the slots below it (CQ_HEAD).
    pub head: AtomicU32,
    /// The device has filled the slots below it.
    pub tail: AtomicU32,
    pub slots: [Cell<u32>; SLOTS as usize],
}

impl Ring {
    fn slot(&self, index: u32) -> &Cell<u32> {
        &self.slots[(index % SLOTS) as usize]
    }

    /// The device posts a completion; `false` while no slot is free.
    pub fn post(&self, completion: u32) -> bool {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail.wrapping_sub(self.head.load(Ordering::Acquire)) == SLOTS {
            return false;
        }
        self.slot(tail).set(completion);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// The host takes the next completion, if there is one, and releases its slot.
    pub fn take(&self) -> Option<u32> {
        let head = self.head.load(Ordering::Relaxed);
        if self.tail.load(Ordering::Acquire) == head {
            return None;
        }
        let completion = self.slot(head).get();
        self.head.store(head.wrapping_add(1), Ordering::Relaxed);
        Some(completion)
    }
}
