//! What the hot thread notes of what it does.

use super::submission::Tag;
use crate::events::{Clock, EventKind, Recorder, Ticks};
use crate::rollout::{RolloutId, State};

/// The events of the hot thread: one reading of the clock for all that happens in a step. And what lies in the submission
/// queue, by which a descriptor that the device could not read is known.
pub(super) struct Journal {
    recorder: Option<Recorder>,
    clock: Clock,
    now: Ticks,
    /// What lies in each slot of the submission queue, if it is one queue.
    slots: Box<[Option<Slot>]>,
    /// Running index of the next descriptor to be submitted.
    tail: u32,
    /// Running index below which the device has taken all.
    head: u32,
}

/// A descriptor in the submission queue: whose it is, and what tells it from others of the same: the running number of a
/// DECODE, the first id of the group of a PREFILL.
pub(super) type Slot = (Tag, u32);

impl Journal {
    pub fn new(recorder: Option<Recorder>, sq_start: Option<u32>, capacity: usize) -> Journal {
        let slots = if sq_start.is_some() { capacity } else { 0 };
        let start = sq_start.unwrap_or(0);
        Journal {
            clock: Clock::new(),
            now: Ticks::default(),
            slots: vec![None; slots].into(),
            tail: start,
            head: start,
            recorder,
        }
    }

    #[inline]
    pub fn read_clock(&mut self) -> Ticks {
        self.now = self.clock.now();
        self.now
    }

    #[inline]
    pub fn record(&mut self, kind: EventKind, id: RolloutId, descriptor: u32, value: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(kind, id, descriptor, value, self.now);
        }
    }

    #[inline]
    pub fn entered(&mut self, id: RolloutId, stage: State) {
        match stage {
            State::PrefillReady => self.record(EventKind::RolloutAlloc, id, 0, 0),
            State::Free => self.record(EventKind::RolloutFree, id, 0, 0),
            stage => self.record(EventKind::StageEntered, id, 0, stage as u32),
        }
    }

    /// A descriptor was put into the batch.
    #[inline]
    pub fn posted(&mut self, tag: Tag, descriptor: u32) {
        if let Tag::Decode(id) = tag {
            self.record(EventKind::DescPosted, id, descriptor, 0);
        }
        let mask = self.slots.len().wrapping_sub(1);
        if let Some(slot) = self.slots.get_mut(self.tail as usize & mask) {
            *slot = Some((tag, descriptor));
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// What was posted at running index `index` of the submission queue; `None` if that is too long ago, is still to come,
    /// or is not known, as there are several queues.
    #[cold]
    pub fn at(&self, index: u32) -> Option<Slot> {
        let behind = self.tail.wrapping_sub(index).wrapping_sub(1) as usize;
        let mask = self.slots.len().wrapping_sub(1);
        if behind < self.slots.len() { self.slots[index as usize & mask] } else { None }
    }

    /// Whether there is one submission queue, so that [`at`](Self::at) knows what lies in it.
    pub fn knows_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The device has taken all below `sq_head`, as a completion tells.
    #[inline]
    pub fn consumed(&mut self, sq_head: u32) {
        if self.slots.is_empty() || self.recorder.is_none() {
            return;
        }
        let mask = self.slots.len() - 1;
        // What the driver let through lies between head and tail.
        while self.head != sq_head && self.head != self.tail {
            if let Some((Tag::Decode(id), descriptor)) = self.slots[self.head as usize & mask] {
                self.record(EventKind::DescConsumed, id, descriptor, 0);
            }
            self.head = self.head.wrapping_add(1);
        }
    }
}
