//! Memory of a completion queue, which host and device share.

use std::cell::{Cell, RefCell};

/// 64-bit words of a slot.
pub const WORDS: usize = 4;

#[derive(Debug)]
pub struct Memory {
    slots: RefCell<Vec<[u64; WORDS]>>,
    /// Slot that the host wrote last.
    pub written: Cell<Option<usize>>,
}

impl Memory {
    /// As an earlier queue has left it.
    pub fn new(depth: u32) -> Self {
        let left = [0xDEAD_BEEF, 0x8000_0001_DEAD_BEEF, 0, 0x0123_4567];
        Self { slots: RefCell::new(vec![left; depth as usize]), written: Cell::new(None) }
    }

    pub fn load(&self, slot: usize, word: usize) -> u64 {
        self.slots.borrow()[slot][word]
    }

    /// The host writes.
    pub fn store(&self, slot: usize, word: usize, value: u64) {
        self.written.set(Some(slot));
        self.post(slot, word, value);
    }

    /// The device writes.
    pub fn post(&self, slot: usize, word: usize, value: u64) {
        self.slots.borrow_mut()[slot][word] = value;
    }
}
