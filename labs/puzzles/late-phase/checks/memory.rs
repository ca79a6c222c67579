//! Memory of a completion queue, which host and device share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// 64-bit words of a slot.
pub const WORDS: usize = 4;

/// Half of a completion, as the device writes it.
#[derive(Debug)]
pub struct Half {
    pub slot: usize,
    /// 0 or 1.
    pub half: usize,
    pub words: [u64; 2],
    /// The step, in words.
    pub step: String,
}

#[derive(Debug)]
pub struct Memory {
    slots: RefCell<Vec<[u64; WORDS]>>,
    /// Slot that the host wrote last.
    pub written: Cell<Option<usize>>,
    /// Halves that become visible before a later load of the host, and how many loads come before that.
    due: RefCell<VecDeque<(u32, Half)>>,
    /// Whether loads are steps.
    pub shows_loads: Cell<bool>,
    /// What happened.
    pub steps: RefCell<Vec<String>>,
}

impl Memory {
    /// As an earlier queue has left it.
    pub fn new(depth: u32) -> Self {
        let left = [0xDEAD_BEEF, 0x8000_0001_DEAD_BEEF, 0, 0x0123_4567];
        Self {
            slots: RefCell::new(vec![left; depth as usize]),
            written: Cell::new(None),
            due: RefCell::default(),
            shows_loads: Cell::new(false),
            steps: RefCell::default(),
        }
    }

    /// The host reads, with acquire order: loads come one after the other.
    pub fn load(&self, slot: usize, word: usize) -> u64 {
        let mut due = self.due.borrow_mut();
        while due.front().is_some_and(|(loads, _)| *loads == 0) {
            let (_, half) = due.pop_front().expect("there is a first one");
            self.post(half);
        }
        if let Some((loads, _)) = due.front_mut() {
            *loads -= 1;
        }
        if self.shows_loads.get() {
            self.note(format!("the host loads word {word} of slot {slot}"));
        }
        self.slots.borrow()[slot][word]
    }

    /// The host writes.
    pub fn store(&self, slot: usize, word: usize, value: u64) {
        self.written.set(Some(slot));
        self.slots.borrow_mut()[slot][word] = value;
    }

    /// The device writes: the half becomes visible as a whole.
    pub fn post(&self, Half { slot, half, words, step }: Half) {
        self.slots.borrow_mut()[slot][2 * half..][..2].copy_from_slice(&words);
        self.note(step);
    }

    /// The device writes once the host has loaded so many words more, behind what is due already.
    pub fn post_after(&self, loads: u32, half: Half) {
        self.due.borrow_mut().push_back((loads, half));
    }

    /// What is due becomes visible now.
    pub fn post_due(&self) {
        for (_, half) in self.due.take() {
            self.post(half);
        }
    }

    pub fn note(&self, step: String) {
        self.steps.borrow_mut().push(step);
    }

    /// The words of a slot, as the report shows them.
    pub fn words(&self, slot: usize) -> [u64; WORDS] {
        self.slots.borrow()[slot]
    }
}
