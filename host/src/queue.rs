//! Ring arithmetic and the host's halves of a queue pair.
//!
//! Indices are free-running `u32` (R13): slot = index mod depth, distance = wrapping difference. A full ring and an
//! empty one thus differ, and no slot is wasted.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable, cast, cast_mut};

use crate::error::DeviceError;
use crate::memory::{SharedMemory, Slots};
use doorbell_contract::{HwCompletion, HwDesc, HwEvent, RING_MAX_LOG2, SqKey};

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

    /// The phase of the completion with running index `index`: true on the first pass from index 0, then in turn.
    #[inline]
    pub const fn phase(self, index: u32) -> bool {
        index & self.0 == 0
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
    key: SqKey,
}

impl SubmissionQueue {
    /// The queue at byte `offset` of `memory`, empty, starting at running index `start`, its slots sealed with `key`,
    /// the value of SQ_KEY. Every slot is cleared, so that none verifies.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn new(
        memory: &SharedMemory,
        offset: usize,
        depth: Depth,
        start: u32,
        key: u32,
    ) -> Result<Self, DeviceError> {
        let queue =
            Self { memory: memory.clone(), offset, depth, head: start, tail: start, key: SqKey::new(key) };
        let slots = queue.slots()?;
        for index in 0..depth.slots() {
            slots.store(index, cast(HwDesc::default()));
        }
        Ok(queue)
    }

    /// What its descriptors are sealed with.
    #[inline]
    pub fn key(&self) -> &SqKey {
        &self.key
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
        self.write(batch, |desc, key, index| desc.seal(key, index))
    }

    /// As [`push`](Self::push), with the check words as they stand: for tests of R2.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_unsealed(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.write(batch, |desc, _, _| desc)
    }

    // With a hint alone the compiler makes it a call of its own in some programs: 30 instructions of each batch (`cargo xtask perf nop_1`).
    #[inline(always)]
    fn write(
        &mut self,
        batch: &[HwDesc],
        seal: impl Fn(HwDesc, &SqKey, u32) -> HwDesc,
    ) -> Result<usize, DeviceError> {
        let taken = batch.len().min(self.free());
        let slots = self.slots()?;
        let mut tail = self.tail;
        for desc in &batch[..taken] {
            slots.store(tail, cast(seal(*desc, &self.key, tail)));
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
        self.reader().at(index)
    }

    /// What its slots hold, for another thread to look at.
    pub(crate) fn reader(&self) -> Written {
        let Self { memory, offset, depth, key, .. } = self;
        Written { memory: memory.clone(), offset: *offset, depth: *depth, key: *key }
    }
}

/// The slots of a submission queue, to be read.
#[derive(Debug)]
pub(crate) struct Written {
    memory: SharedMemory,
    offset: usize,
    depth: Depth,
    key: SqKey,
}

impl Written {
    /// How many there are.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// As [`SubmissionQueue::written`].
    pub fn at(&self, index: u32) -> Option<HwDesc> {
        let mut desc = HwDesc::default();
        let slots: Slots<'_, DESC_WORDS> = self.memory.slots(self.offset, self.depth.slots()).ok()?;
        slots.load(index, cast_mut(&mut desc));
        // The check word holds the index, too (R2).
        desc.verify(&self.key, index).then_some(desc)
    }
}

/// Whether both halves of the slot of running index `index` carry the phase of its completion: then all of it is there.
///
/// A device writes a completion in two halves of 16 bytes, each at once, and one whose memory does not order them (a
/// GPU, but for a fence that costs as much as a fifth of a round trip) may make either visible first. So each carries the
/// phase, in the last bit of its last word (R4).
#[inline]
pub fn is_fresh(slots: &Slots<'_, COMPLETION_WORDS>, depth: Depth, index: u32) -> bool {
    let phase = if depth.phase(index) { HwCompletion::PHASE } else { 0 };
    // The half that the host writes last in a model, and a device in memory that has an order.
    (slots.acquire(index, 3) ^ phase) & HwCompletion::PHASE == 0
        && (slots.acquire(index, 1) ^ phase) & HwCompletion::PHASE == 0
}

/// What a device writes into the slots of a ring of 32 bytes each: both halves of it carry a phase (R4).
pub trait Phased: Pod {
    /// This with `phase` in both halves, as it stands in its slot.
    #[must_use]
    fn with_phase(self, phase: bool) -> Self;
}

impl Phased for HwCompletion {
    #[inline]
    fn with_phase(self, phase: bool) -> Self {
        HwCompletion::with_phase(self, phase)
    }
}

impl Phased for HwEvent {
    #[inline]
    fn with_phase(self, phase: bool) -> Self {
        HwEvent::with_phase(self, phase)
    }
}

/// The host's half of a ring that the device fills: sees fresh slots by their phases.
#[derive(Debug)]
pub struct FilledRing<T> {
    memory: SharedMemory,
    offset: usize,
    depth: Depth,
    head: u32,
    holds: PhantomData<fn() -> T>,
}

/// The host's half of the completion queue: it writes none of its slots.
pub type CompletionQueue = FilledRing<HwCompletion>;

/// The host's half of a function's event ring (R23): it writes no slots but those of events that are lost.
pub type EventQueue = FilledRing<HwEvent>;

impl<T: Phased> FilledRing<T> {
    const SLOT: () = assert!(size_of::<T>() == 8 * COMPLETION_WORDS);

    /// The ring at byte `offset` of `memory`, read from running index `start` on. Both halves of every slot are filled with the
    /// phase opposite to the one that its next use will carry, so that none looks fresh.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn new(memory: &SharedMemory, offset: usize, depth: Depth, start: u32) -> Result<Self, DeviceError> {
        let () = Self::SLOT;
        let ring = Self { memory: memory.clone(), offset, depth, head: start, holds: PhantomData };
        let slots = ring.slots()?;
        for index in (0..depth.slots()).map(|k| start.wrapping_add(k)) {
            slots.store(index, cast(T::zeroed().with_phase(!depth.phase(index))));
        }
        Ok(ring)
    }

    #[inline]
    fn slots(&self) -> Result<Slots<'_, COMPLETION_WORDS>, DeviceError> {
        self.memory.slots(self.offset, self.depth.slots())
    }

    /// Running index of the next one; what CQ_HEAD, or EQ_HEAD, releases.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Copies what is fresh into the head of `out` and returns how many. They are not released yet.
    ///
    /// # Errors
    /// `OutOfBounds`, which a ring that was constructed does not have.
    #[inline]
    pub fn pop(&mut self, out: &mut [T]) -> Result<usize, DeviceError> {
        let slots = self.slots()?;
        let mut head = self.head;
        let mut taken = 0;
        for out in out.iter_mut() {
            if !is_fresh(&slots, self.depth, head) {
                break;
            }
            slots.load(head, cast_mut(out));
            *out = out.with_phase(false);
            head = head.wrapping_add(1);
            taken += 1;
        }
        self.head = head;
        Ok(taken)
    }

    /// Whether [`pop`](Self::pop) would bring one.
    ///
    /// # Errors
    /// `OutOfBounds`, which a ring that was constructed does not have.
    #[inline]
    pub fn is_fresh(&self) -> Result<bool, DeviceError> {
        Ok(is_fresh(&self.slots()?, self.depth, self.head))
    }
}

impl FilledRing<HwCompletion> {
    /// The completion of running index `index`, if it is there and was not popped yet.
    pub(crate) fn ahead(&self, index: u32) -> Option<HwCompletion> {
        let slots = self.slots().ok()?;
        if index.wrapping_sub(self.head) >= self.depth.slots() || !is_fresh(&slots, self.depth, index) {
            return None;
        }
        let mut completion = HwCompletion::zeroed();
        slots.load(index, cast_mut(&mut completion));
        Some(completion.with_phase(false))
    }
}

impl FilledRing<HwCompletion> {
    /// What the slot of the next one holds that is not fresh, and whether one half of it is.
    pub(crate) fn stale(&self) -> Option<(HwCompletion, bool)> {
        let slots = self.slots().ok()?;
        let mut words = [0u64; COMPLETION_WORDS];
        slots.load(self.head, &mut words);
        let phase = if self.depth.phase(self.head) { HwCompletion::PHASE } else { 0 };
        let is_fresh = |word: usize| (words[word] ^ phase) & HwCompletion::PHASE == 0;
        let halves = [is_fresh(1), is_fresh(3)];
        (halves != [true; 2])
            .then(|| (cast::<_, HwCompletion>(words).with_phase(false), halves[0] != halves[1]))
    }

    /// Completions that memory shows: of the `taken` that were popped the last ones, then those that are there to be popped.
    pub(crate) fn shown(&self, taken: u64) -> (Vec<HwCompletion>, Vec<HwCompletion>) {
        let Ok(slots) = self.slots() else { return (vec![], vec![]) };
        let depth = self.depth.slots();
        let behind = taken.min(depth.into()) as u32;
        let read = |index: u32| {
            let mut completion = HwCompletion::zeroed();
            slots.load(index, cast_mut(&mut completion));
            is_fresh(&slots, self.depth, index).then(|| completion.with_phase(false))
        };
        let popped = (1..=behind).rev().filter_map(|back| read(self.head.wrapping_sub(back)));
        let ahead = (0..depth).map_while(|k| read(self.head.wrapping_add(k)));
        (popped.collect(), ahead.collect())
    }
}

impl FilledRing<HwEvent> {
    /// Passes over the slots below `tail`, as EQ_TAIL read, that are not fresh: their events are lost. Whether there were any.
    /// They get the phase that the event would have brought, which the device cannot bring any more: else they would look fresh
    /// in the next pass.
    ///
    /// # Errors
    /// `OutOfBounds`, which a ring that was constructed does not have.
    pub fn pass_lost(&mut self, tail: u32) -> Result<bool, DeviceError> {
        let slots = self.slots()?;
        let (before, mut head) = (self.head, self.head);
        let below = |head: u32| (1..=self.depth.slots()).contains(&tail.wrapping_sub(head));
        while below(head) && !is_fresh(&slots, self.depth, head) {
            slots.store(head, cast(HwEvent::zeroed().with_phase(self.depth.phase(head))));
            head = head.wrapping_add(1);
        }
        self.head = head;
        Ok(head != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_contract::LENGTH_LIMIT_MAX;
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
    #[case(4, 0, true)]
    #[case(4, 3, true)]
    #[case(4, 4, false)]
    #[case(4, 8, true)]
    #[case(4, u32::MAX, false)]
    #[case(65_536, 65_535, true)]
    #[case(65_536, 65_536, false)]
    fn r13_phase_alternates_by_pass(#[case] slots: u32, #[case] index: u32, #[case] phase: bool) {
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
        let mut queue = SubmissionQueue::new(&memory, 0, depth(4), start, 9).unwrap();
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
            assert!(desc.verify(&SqKey::new(9), index) && desc.rollout_id == k);
        }
    }

    #[rstest]
    fn r04_a_completion_is_there_once_both_halves_are(#[values(0, u32::MAX - 2)] start: u32) {
        let memory = SharedMemory::allocate(1, BUS).unwrap();
        let mut queue = CompletionQueue::new(&memory, 0, depth(2), start).unwrap();
        let mut out = [HwCompletion::zeroed()];
        for index in (0..6).map(|k| start.wrapping_add(k)) {
            let fresh = HwCompletion {
                user_data: index.into(),
                final_seq_len: LENGTH_LIMIT_MAX,
                ..HwCompletion::zeroed()
            };
            let words: [u64; 4] = cast(fresh.with_phase(depth(2).phase(index)));
            let mut stale = [0; 4];
            queue.slots().unwrap().load(index, &mut stale);
            // One half, and the other one.
            for half in [[words[0], words[1], stale[2], stale[3]], [stale[0], stale[1], words[2], words[3]]] {
                queue.slots().unwrap().store(index, half);
                assert!(!queue.is_fresh().unwrap());
                assert_eq!(queue.pop(&mut out).unwrap(), 0, "completion {index} was taken half written");
            }
            queue.slots().unwrap().store(index, words);
            assert!(queue.is_fresh().unwrap());
            assert_eq!(queue.pop(&mut out).unwrap(), 1);
            assert_eq!(out[0], fresh);
        }
    }

    /// R23: what is lost is passed over once EQ_TAIL has passed it, and nothing else is.
    #[rstest]
    fn r13_r23_lost_events_are_passed_over(#[values(0, 2, u32::MAX - 2)] start: u32) {
        let memory = SharedMemory::allocate(1, BUS).unwrap();
        let mut queue = EventQueue::new(&memory, 0, depth(4), start).unwrap();
        let at = |k| start.wrapping_add(k);
        let write = |queue: &EventQueue, k| {
            let event = HwEvent { index: k, visible: 5, ..HwEvent::zeroed() };
            queue.slots().unwrap().store(at(k), cast(event.with_phase(depth(4).phase(at(k)))));
        };
        let mut out = [HwEvent::zeroed(); 4];
        assert!(!queue.pass_lost(at(0)).unwrap());
        // Two are lost, and two are not; the ring is full.
        write(&queue, 2);
        write(&queue, 3);
        assert_eq!(queue.pop(&mut out).unwrap(), 0);
        assert!(!queue.pass_lost(at(0)).unwrap());
        assert!(queue.pass_lost(at(1)).unwrap());
        assert_eq!(queue.pop(&mut out).unwrap(), 0);
        assert!(queue.pass_lost(at(4)).unwrap());
        assert_eq!(queue.pop(&mut out).unwrap(), 2);
        assert_eq!((out[0].index, out[1].index, out[0].visible, queue.head()), (2, 3, 5, at(4)));
        assert!(!queue.pass_lost(at(4)).unwrap());
        assert!(!queue.pass_lost(at(3)).unwrap(), "a tail below the head");
        // The second pass.
        write(&queue, 4);
        assert!(!queue.pass_lost(at(5)).unwrap());
        assert_eq!(queue.pop(&mut out).unwrap(), 1);
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
            let fresh = HwCompletion { user_data: k.into(), ..HwCompletion::zeroed() };
            queue.slots().unwrap().store(index, cast(fresh.with_phase(depth(slots).phase(index))));
            assert_eq!(queue.pop(&mut out).unwrap(), 1);
            assert_eq!(out[0].user_data, u64::from(k));
        }
    }
}
