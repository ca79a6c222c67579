//! Ring arithmetic and the host's halves of a queue pair.
//!
//! Indices are free-running `u32` (R13): slot = index mod depth, distance = wrapping difference. A full ring and an
//! empty one thus differ, and no slot is wasted.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytemuck::{Zeroable, cast, cast_mut};

use crate::error::DeviceError;
use crate::memory::{SharedMemory, Slots};
use doorbell_contract::{HwCompletion, HwDesc, RING_MAX_LOG2};

/// 64-bit words of a descriptor.
pub const DESC_WORDS: usize = size_of::<HwDesc>() / 8;
/// 64-bit words of a completion.
pub const COMPLETION_WORDS: usize = size_of::<HwCompletion>() / 8;

/// A valid ring depth: a power of two of slots, from 2 to 2^[`RING_MAX_LOG2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth(u32);

impl Depth {
    /// Checks `slots`; `field` names it in the error.
    ///
    /// # Errors
    /// `RingDepth`.
    pub fn new(field: &'static str, slots: u32) -> Result<Self, DeviceError> {
        if slots.is_power_of_two() && (2..=1 << RING_MAX_LOG2).contains(&slots) {
            Ok(Self(slots))
        } else {
            Err(DeviceError::RingDepth { field, value: slots })
        }
    }

    /// Number of slots.
    #[inline]
    pub const fn slots(self) -> u32 {
        self.0
    }

    /// Slot of a running index.
    #[inline]
    pub const fn slot(self, index: u32) -> u32 {
        index & (self.0 - 1)
    }

    /// The phase bit of the completion with running index `index`: 1 on the first pass from index 0, then in turn.
    #[inline]
    pub const fn phase(self, index: u32) -> u8 {
        1 ^ ((index >> self.0.trailing_zeros()) & 1) as u8
    }
}

/// Whether `index` lies in `first..=last`, a range of running indices that may wrap.
#[inline]
pub const fn between(first: u32, index: u32, last: u32) -> bool {
    index.wrapping_sub(first) <= last.wrapping_sub(first)
}

/// The host's half of the submission queue: writes slots, and learns from completions which are free again.
#[derive(Debug)]
pub struct SubmissionQueue {
    memory: SharedMemory,
    offset: usize,
    depth: Depth,
    head: u32,
    tail: u32,
}

impl SubmissionQueue {
    /// The queue at byte `offset` of `memory`, empty, starting at running index `start`. Every slot is made vacant:
    /// none verifies for the index of its first use.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn new(memory: &SharedMemory, offset: usize, depth: Depth, start: u32) -> Result<Self, DeviceError> {
        let queue = Self { memory: memory.clone(), offset, depth, head: start, tail: start };
        let slots = queue.slots()?;
        for index in (0..depth.slots()).map(|k| start.wrapping_add(k)) {
            slots.store(index, cast(HwDesc::vacant(index)));
        }
        Ok(queue)
    }

    #[inline]
    fn slots(&self) -> Result<Slots<'_, DESC_WORDS>, DeviceError> {
        self.memory.slots(self.offset, self.depth.slots())
    }

    /// Running index of the next descriptor; what DOORBELL publishes.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Running index below which slots are free again.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Free slots.
    #[inline]
    pub fn free(&self) -> usize {
        (self.depth.slots() - self.tail.wrapping_sub(self.head)) as usize
    }

    /// Writes the descriptors that fit, sealed, and returns how many. They are not published yet.
    ///
    /// # Errors
    /// `OutOfBounds`, which a queue that was constructed does not have.
    #[inline]
    pub fn push(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.write(batch, HwDesc::seal)
    }

    /// As [`push`](Self::push), with the check words as they stand: for tests of R2.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_unsealed(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.write(batch, |desc, _| desc)
    }

    #[inline]
    fn write(
        &mut self,
        batch: &[HwDesc],
        seal: impl Fn(HwDesc, u32) -> HwDesc,
    ) -> Result<usize, DeviceError> {
        let taken = batch.len().min(self.free());
        let slots = self.slots()?;
        let mut tail = self.tail;
        for desc in &batch[..taken] {
            slots.store(tail, cast(seal(*desc, tail)));
            tail = tail.wrapping_add(1);
        }
        self.tail = tail;
        Ok(taken)
    }

    /// Takes over the `sq_head` of a completion; `false` if it is below `floor`, went backwards or is beyond the tail.
    #[inline]
    pub fn consumed_to(&mut self, floor: u32, sq_head: u32) -> bool {
        let plausible = between(self.head, sq_head, self.tail) && between(floor, sq_head, self.tail);
        if plausible {
            self.head = sq_head;
        }
        plausible
    }

    /// Takes over an `sq_head` that the ledger has let pass.
    #[inline]
    pub(crate) fn consumed(&mut self, sq_head: u32) {
        self.head = sq_head;
    }

    /// The descriptor that was written for running index `index`, if its slot has not been used again since.
    pub(crate) fn written(&self, index: u32) -> Option<HwDesc> {
        let mut desc = HwDesc::default();
        self.slots().ok()?.load(index, cast_mut(&mut desc));
        // The check word holds the index, too (R2).
        desc.verify(index).then_some(desc)
    }
}

/// The host's half of the completion queue: sees fresh slots by their phase.
///
/// A device writes a completion in two halves of 16 bytes, and one whose memory does not order them (a GPU, but for a
/// fence that costs as much as a fifth of a round trip) may make the half with the phase visible first. So the host
/// leaves a *mark* in the first half of each slot that it releases: a completion is there once its phase is fresh and
/// the mark is gone (R4). The mark is 128 random bits: a completion that equals it by chance would never be seen.
#[derive(Debug)]
pub struct CompletionQueue {
    memory: SharedMemory,
    offset: usize,
    depth: Depth,
    head: u32,
    mark: [u64; 2],
}

impl CompletionQueue {
    /// The queue at byte `offset` of `memory`, empty, starting at running index `start`. Every slot is filled with
    /// the phase opposite to the one that its first use will carry, so that it does not look fresh.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn new(memory: &SharedMemory, offset: usize, depth: Depth, start: u32) -> Result<Self, DeviceError> {
        let mark = [(); 2].map(|()| RandomState::new().build_hasher().finish());
        let queue = Self { memory: memory.clone(), offset, depth, head: start, mark };
        let slots = queue.slots()?;
        for index in (0..depth.slots()).map(|k| start.wrapping_add(k)) {
            let stale = HwCompletion { phase: depth.phase(index) ^ 1, ..HwCompletion::zeroed() };
            slots.store(index, cast(stale));
            slots.store_head(index, mark);
        }
        Ok(queue)
    }

    #[inline]
    fn slots(&self) -> Result<Slots<'_, COMPLETION_WORDS>, DeviceError> {
        self.memory.slots(self.offset, self.depth.slots())
    }

    /// Running index of the next completion; what CQ_HEAD releases.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Copies fresh completions into the head of `out` and returns how many. They are not released yet.
    ///
    /// # Errors
    /// `OutOfBounds`, which a queue that was constructed does not have.
    #[inline]
    pub fn pop(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let slots = self.slots()?;
        let mut head = self.head;
        let mut taken = 0;
        for out in out.iter_mut() {
            if !self.read(&slots, head, cast_mut(out)) {
                break;
            }
            slots.store_head(head, self.mark);
            head = head.wrapping_add(1);
            taken += 1;
        }
        self.head = head;
        Ok(taken)
    }

    /// Whether [`pop`](Self::pop) would bring a completion.
    ///
    /// # Errors
    /// `OutOfBounds`, which a queue that was constructed does not have.
    #[inline]
    pub fn is_fresh(&self) -> Result<bool, DeviceError> {
        Ok(self.read(&self.slots()?, self.head, &mut [0; COMPLETION_WORDS]))
    }

    /// Reads the completion with running index `index`; `false` if it is not there.
    #[inline]
    fn read(
        &self,
        slots: &Slots<'_, COMPLETION_WORDS>,
        index: u32,
        words: &mut [u64; COMPLETION_WORDS],
    ) -> bool {
        // The phase is the top byte of the last word, which the device makes visible last.
        if ((slots.last_word(index) >> 56) as u8 ^ self.depth.phase(index)) & 1 != 0 {
            return false;
        }
        slots.load(index, words);
        words[0] != self.mark[0] && words[1] != self.mark[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const BUS: u64 = 1 << 32;

    fn depth(slots: u32) -> Depth {
        Depth::new("depth", slots).unwrap()
    }

    #[rstest]
    #[case(0, false)]
    #[case(1, false)]
    #[case(2, true)]
    #[case(3, false)]
    #[case(65_536, true)]
    #[case(131_072, false)]
    fn depths(#[case] slots: u32, #[case] valid: bool) {
        assert_eq!(Depth::new("sq_depth", slots).is_ok(), valid);
    }

    #[rstest]
    #[case(4, 0, 1)]
    #[case(4, 3, 1)]
    #[case(4, 4, 0)]
    #[case(4, 8, 1)]
    #[case(4, u32::MAX, 0)]
    #[case(65_536, 65_535, 1)]
    #[case(65_536, 65_536, 0)]
    fn r13_phase_alternates_by_pass(#[case] slots: u32, #[case] index: u32, #[case] phase: u8) {
        assert_eq!(depth(slots).phase(index), phase);
    }

    #[rstest]
    #[case(0, 0, 0, true)]
    #[case(0, 1, 0, false)]
    #[case(u32::MAX, 0, 1, true)]
    #[case(u32::MAX, u32::MAX - 1, 1, false)]
    #[case(u32::MAX, 2, 1, false)]
    fn r13_ranges_wrap(#[case] first: u32, #[case] index: u32, #[case] last: u32, #[case] inside: bool) {
        assert_eq!(between(first, index, last), inside);
    }

    #[rstest]
    fn r13_submission_takes_what_fits_across_the_wrap(#[values(0, u32::MAX - 1, u32::MAX)] start: u32) {
        let memory = SharedMemory::allocate(1, BUS).unwrap();
        let mut queue = SubmissionQueue::new(&memory, 0, depth(4), start).unwrap();
        let batch = [0, 1, 2, 3, 4, 5].map(|k| HwDesc::decode(k, 0, 1));
        assert_eq!(queue.push(&batch).unwrap(), 4);
        assert_eq!(queue.push(&batch[4..]).unwrap(), 0);
        assert_eq!(queue.written(start).map(|desc| desc.rollout_id), Some(0));
        let at = |k| start.wrapping_add(k);
        assert!(queue.consumed_to(at(1), at(3)));
        assert!(!queue.consumed_to(at(1), at(2)), "backwards");
        assert!(!queue.consumed_to(at(1), at(5)), "beyond the tail");
        assert!(!queue.consumed_to(at(4), at(3)), "less than the completions");
        assert_eq!(queue.push(&batch[4..]).unwrap(), 2);
        assert_eq!(queue.written(start), None, "its slot has another descriptor");
        for k in 2..6u32 {
            let index = start.wrapping_add(k);
            let mut desc = HwDesc::default();
            queue.slots().unwrap().load(index, cast_mut(&mut desc));
            assert!(desc.verify(index) && desc.rollout_id == k);
        }
    }

    #[test]
    fn r04_a_completion_is_there_once_both_halves_are() {
        let memory = SharedMemory::allocate(1, BUS).unwrap();
        let mut queue = CompletionQueue::new(&memory, 0, depth(2), 0).unwrap();
        let mut out = [HwCompletion::zeroed()];
        for index in 0..6u32 {
            let fresh = HwCompletion {
                user_data: index.into(),
                phase: depth(2).phase(index),
                ..HwCompletion::zeroed()
            };
            let words: [u64; 4] = cast(fresh);
            let slots = queue.slots().unwrap();
            let first_half = [slots.word(index, 0), slots.word(index, 1)];
            slots.store(index, words);
            // The half with the phase alone, and then with each word of the other.
            for part in [first_half, [words[0], first_half[1]], [first_half[0], words[1]]] {
                queue.slots().unwrap().store_head(index, part);
                assert_eq!(queue.pop(&mut out).unwrap(), 0, "completion {index} was taken half written");
            }
            queue.slots().unwrap().store_head(index, [words[0], words[1]]);
            assert_eq!(queue.pop(&mut out).unwrap(), 1);
            assert_eq!(out[0], fresh);
        }
    }

    #[rstest]
    fn a_new_completion_queue_is_empty_wherever_it_starts(
        #[values(0, 1, 3, 4, 5, u32::MAX, u32::MAX - 5)] start: u32,
        #[values(2, 4)] slots: u32,
    ) {
        let memory = SharedMemory::allocate(1, BUS).unwrap();
        let mut queue = CompletionQueue::new(&memory, 0, depth(slots), start).unwrap();
        let mut out = [HwCompletion::zeroed(); 8];
        for k in 0..9 {
            assert_eq!(queue.pop(&mut out).unwrap(), 0);
            let index = start.wrapping_add(k);
            let fresh = HwCompletion {
                user_data: k.into(),
                phase: depth(slots).phase(index),
                ..HwCompletion::zeroed()
            };
            queue.slots().unwrap().store(index, cast(fresh));
            assert_eq!(queue.pop(&mut out).unwrap(), 1);
            assert_eq!(out[0].user_data, u64::from(k));
        }
    }
}
