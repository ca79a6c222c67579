//! The host's half of a submission queue: it writes descriptors into slots, and publishes them by the doorbell.

use crate::shared::{DEPTH, Descriptor, Shared};
// These are the types of `std::sync::atomic`, and may all be used.
#[allow(unused_imports)]
use doorbell_puzzles::sync::{Ordering, fence};

/// Writes the slots that the device reads. Indices run freely: the slot of index i is i modulo `DEPTH`.
pub struct SubmissionQueue<'a> {
    shared: &'a Shared,
    /// The device has consumed the slots below it.
    head: u32,
    /// The next slot to write.
    tail: u32,
}

impl<'a> SubmissionQueue<'a> {
    /// A queue that is empty, and begins at index `start`.
    pub fn new(shared: &'a Shared, start: u32) -> Self {
        Self { shared, head: start, tail: start }
    }

    /// Slots that may be written.
    fn free(&self) -> usize {
        DEPTH - self.tail.wrapping_sub(self.head) as usize
    }

    /// Submits the descriptors that fit, and returns how many. The device may fetch them from then on.
    pub fn submit(&mut self, batch: &[Descriptor]) -> usize {
        let taken = batch.len().min(self.free());
        let first = self.tail;
        self.tail = first.wrapping_add(taken as u32);

        // The device wakes up while the slots are written: that hides its latency.
        self.shared.doorbell.store(self.tail, Ordering::Release);

        for (k, descriptor) in batch[..taken].iter().enumerate() {
            let index = first.wrapping_add(k as u32);
            self.write(index, descriptor);
        }
        taken
    }

    /// Writes the slot of `index`: the fields, and the check word last.
    fn write(&self, index: u32, descriptor: &Descriptor) {
        let slot = self.shared.slot(index);
        slot.rollout.store(descriptor.rollout, Ordering::Relaxed);
        slot.check.store(descriptor.check(index), Ordering::Relaxed);
    }
}
