//! The host's side of what it shares with the kernel beside the queues: one page per queue pair.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_contract::{Counter, HwEvent};
use doorbell_host::memory::PAGE;
use doorbell_host::registers::{Abort, EventRing, Session};
use doorbell_host::{DeviceError, SharedMemory};

use crate::layout;

const _: () = assert!(layout::SIZE == PAGE);

/// The host's side of a mailbox.
#[derive(Debug)]
pub struct Mailbox(SharedMemory);

/// What the kernel last told of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// SQ slots consumed up to.
    pub sq_head: u32,
    /// Completions reserved up to.
    pub cq_tail: u32,
    /// Descriptors consumed and not completed.
    pub outstanding: u32,
    /// Completions that asked for an interrupt, and the index of the newest.
    pub asks: u32,
    /// Index of the newest of them.
    pub asked: u32,
}

impl Mailbox {
    /// The mailbox in `page`, which is zeroed when the kernel starts.
    ///
    /// # Errors
    /// `OutOfBounds` if `page` is smaller than a page.
    pub fn new(page: SharedMemory) -> Result<Self, DeviceError> {
        Ok(Self(page.part(0, PAGE)?))
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.0.word32(offset).expect("a mailbox is a page, and its fields lie in it")
    }

    fn wide(&self, offset: usize) -> &AtomicU64 {
        self.0.word64(offset).expect("a mailbox is a page, and its fields lie in it")
    }

    /// Publishes the descriptors below `tail`.
    #[inline]
    pub fn ring(&self, tail: u32) {
        self.word(layout::SQ_TAIL).store(tail, Ordering::Release);
    }

    /// Releases the completions below `head`.
    #[inline]
    pub fn release(&self, head: u32) {
        self.word(layout::CQ_HEAD).store(head, Ordering::Release);
    }

    /// Asks for a session with these registers; the last one has ended. `workers` is 0 for all, and `life` that of the function,
    /// whose event ring, if it has one, is released up to the index beside it.
    pub fn start(&self, session: &Session, workers: u32, life: u32, events: Option<(EventRing, u32)>) {
        let (eq_base, eq_size, eq_life, eq_head) = events
            .map_or((0, 0, 0, 0), |(ring, head)| (ring.base, ring.depth.slots(), u32::from(ring.life), head));
        for (offset, value) in [
            (layout::SQ_BASE, session.sq.base),
            (layout::CQ_BASE, session.cq.base),
            (layout::TOKEN_BASE, session.token_base),
            (layout::TOKEN_SIZE, session.token_size),
            (layout::KV_SIZE, session.kv_size),
            (layout::LOGP_BASE, session.logp_base),
            (layout::LOGP_SIZE, session.logp_size),
            (layout::KV_BASE, session.kv_base),
            (layout::MODEL_BASE, session.model.base),
            (layout::MODEL_SIZE, session.model.size),
            (layout::EQ_BASE, eq_base),
            (layout::TOLD, session.cq.head.into()),
            (layout::WRITTEN, 0),
        ] {
            self.wide(offset).store(value, Ordering::Relaxed);
        }
        for (arena, offset) in session.arenas.iter().zip((layout::ARENAS..).step_by(16)) {
            self.wide(offset).store(arena.base, Ordering::Relaxed);
            self.wide(offset + 8).store(arena.size, Ordering::Relaxed);
        }
        for (offset, value) in [
            (layout::SQ_SIZE, session.sq.depth.slots()),
            (layout::CQ_SIZE, session.cq.depth.slots()),
            (layout::SQ_START, session.sq.tail),
            (layout::CQ_START, session.cq.head),
            (layout::CHECKPOINT_DEFAULT, session.checkpoint_default),
            (layout::WAIT_STATES, session.wait_states),
            (layout::LENGTH_LIMIT, session.length_limit),
            (layout::EOS_THRESHOLD, session.eos_threshold),
            (layout::REWARD_THRESHOLD, session.reward_threshold as u32),
            (layout::WORKERS, workers),
            (layout::SQ_KEY, session.sq_key.value()),
            (layout::WEIGHT, session.weight),
            (layout::FUNCTION, session.function.into()),
            (layout::LIFE, life),
            (layout::SQ_TAIL, session.sq.tail),
            (layout::CQ_HEAD, session.cq.head),
            (layout::ABORT, 0),
            // What the kernel tells, as it will be when the session starts.
            (layout::SQ_HEAD, session.sq.tail),
            (layout::CQ_TAIL, session.cq.head),
            (layout::OUTSTANDING, 0),
            (layout::ASKS, 0),
            (layout::ASKED, session.cq.head.wrapping_sub(1)),
            (layout::WAITS_FOR, 0),
            (layout::ABORTED, 0),
            (layout::EQ_SIZE, eq_size),
            (layout::EQ_LIFE, eq_life),
            (layout::EQ_HEAD, eq_head),
            (layout::FAULTS, 0),
            (layout::FAULTS_TOLD, 0),
        ] {
            self.word(offset).store(value, Ordering::Relaxed);
        }
        for counter in Counter::ALL {
            self.wide(layout::COUNTERS + 8 * counter as usize).store(0, Ordering::Relaxed);
        }
        let ranges = session.ranges.iter().flat_map(|&(first, last)| [first, last]);
        for (k, value) in ranges.enumerate() {
            self.word(layout::RANGES + 4 * k).store(value, Ordering::Relaxed);
        }
        self.want(1);
    }

    /// Ends the DECODEs of a rollout that are published (R8). The last that was asked for is [over](Self::is_abort_over).
    pub fn abort(&self, abort: Abort) {
        let of = u64::from(abort.upto) << 32 | u64::from(abort.rollout);
        self.wide(layout::ABORT_OF).store(of, Ordering::Relaxed);
        let number = self.word(layout::ABORT).load(Ordering::Relaxed).wrapping_add(1);
        self.word(layout::ABORT).store(number, Ordering::Release);
    }

    /// Whether the last abort has come to all that it ends.
    pub fn is_abort_over(&self) -> bool {
        self.word(layout::ABORTED).load(Ordering::Acquire) == self.word(layout::ABORT).load(Ordering::Relaxed)
    }

    /// Releases the events of the function below `head`.
    pub fn release_events(&self, head: u32) {
        self.word(layout::EQ_HEAD).store(head, Ordering::Release);
    }

    /// Asks for a FAULT event with the bits, queue pair and index of this one. The last that was asked for is
    /// [told](Self::is_fault_told).
    pub fn tell_fault(&self, event: &HwEvent) {
        let of = u64::from(event.index) << 32 | u64::from(event.queue_id) << 16 | u64::from(event.start);
        self.wide(layout::FAULT_OF).store(of, Ordering::Relaxed);
        let number = self.word(layout::FAULTS).load(Ordering::Relaxed).wrapping_add(1);
        self.word(layout::FAULTS).store(number, Ordering::Release);
    }

    /// Whether the last FAULT event that was asked for is written, or counted as dropped.
    pub fn is_fault_told(&self) -> bool {
        self.word(layout::FAULTS_TOLD).load(Ordering::Acquire)
            == self.word(layout::FAULTS).load(Ordering::Relaxed)
    }

    /// Completions of the session up to which each has its event, or is counted, and events dropped.
    pub fn told(&self) -> (u32, u32) {
        let told = self.wide(layout::TOLD).load(Ordering::Acquire);
        (told as u32, (told >> 32) as u32)
    }

    /// Events written in the session, and the end of the last slots of the ring that it was given.
    pub fn written(&self) -> (u32, u32) {
        let written = self.wide(layout::WRITTEN).load(Ordering::Acquire);
        (written as u32, (written >> 32) as u32)
    }

    /// The policy slots of the function with the page's number, as their registers show them.
    pub fn policy_slots(&self) -> [u32; 2] {
        let slots = self.wide(layout::POLICY_SLOTS).load(Ordering::Acquire);
        [slots as u32, (slots >> 32) as u32]
    }

    /// Sets them, while no queue pair of the function is active.
    pub fn show_policy_slots(&self, slots: [u32; 2]) {
        let slots = u64::from(slots[1]) << 32 | u64::from(slots[0]);
        self.wide(layout::POLICY_SLOTS).store(slots, Ordering::Relaxed);
    }

    /// Asks for the session to end (R12).
    pub fn stop(&self) {
        self.want(0);
    }

    /// Asks the kernel to end.
    pub fn exit(&self) {
        self.word(layout::WANTED).store(layout::EXIT, Ordering::Release);
    }

    /// Asks for the next number of this parity, past the one that means layout::EXIT.
    fn want(&self, parity: u32) {
        let mut wanted = self.word(layout::WANTED).load(Ordering::Relaxed).wrapping_add(1);
        while wanted % 2 != parity || wanted == layout::EXIT {
            wanted = wanted.wrapping_add(1);
        }
        self.word(layout::WANTED).store(wanted, Ordering::Release);
    }

    /// Whether the kernel has come to what was asked for last. What it wrote before is then visible.
    #[inline]
    pub fn is_reached(&self) -> bool {
        self.word(layout::REACHED).load(Ordering::Acquire)
            == self.word(layout::WANTED).load(Ordering::Relaxed)
    }

    /// What the kernel last told.
    pub fn status(&self) -> Status {
        let load = |offset| self.word(offset).load(Ordering::Acquire);
        Status {
            // `asks` counts after `asked` is set, and is told behind it.
            asks: load(layout::ASKS),
            asked: load(layout::ASKED),
            // What is consumed by then is outstanding or has completed by now.
            sq_head: load(layout::SQ_HEAD),
            outstanding: load(layout::OUTSTANDING),
            cq_tail: load(layout::CQ_TAIL),
        }
    }

    /// A counter of the session.
    pub fn counter(&self, counter: Counter) -> u64 {
        let offset = layout::COUNTERS + 8 * counter as usize;
        self.wide(offset).load(Ordering::Acquire)
    }

    /// How often the front end has looked at its mailbox, as last told: it rises as long as the front end lives.
    pub fn heartbeat(&self) -> u32 {
        self.word(layout::HEARTBEAT).load(Ordering::Acquire)
    }

    /// What the oldest descriptor that has not started waits for.
    pub fn waits_for(&self) -> &'static str {
        let number = self.word(layout::WAITS_FOR).load(Ordering::Acquire);
        layout::WAITS.get(number as usize).copied().unwrap_or("something unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailbox() -> Mailbox {
        Mailbox::new(SharedMemory::allocate(PAGE, 1 << 32).unwrap()).unwrap()
    }

    #[test]
    fn requests_are_all_different_and_never_mean_exit() {
        let mailbox = mailbox();
        let wanted = || mailbox.word(layout::WANTED).load(Ordering::Relaxed);
        assert!(mailbox.is_reached());
        mailbox.want(1);
        assert_eq!(wanted(), 1);
        assert!(!mailbox.is_reached());
        mailbox.stop();
        assert_eq!(wanted(), 2);
        mailbox.stop();
        assert_eq!(wanted(), 4);
        mailbox.word(layout::WANTED).store(layout::EXIT - 1, Ordering::Relaxed);
        mailbox.stop();
        assert_eq!(wanted(), 0);
    }

    #[test]
    fn what_the_kernel_tells_is_read() {
        let mailbox = mailbox();
        let tell = |offset, value| mailbox.word(offset).store(value, Ordering::Release);
        mailbox.want(1);
        tell(layout::REACHED, 1);
        assert!(mailbox.is_reached());
        for (offset, value) in
            [layout::SQ_HEAD, layout::CQ_TAIL, layout::OUTSTANDING, layout::ASKS, layout::ASKED]
                .into_iter()
                .zip(1..)
        {
            tell(offset, value);
        }
        let status = Status { sq_head: 1, cq_tail: 2, outstanding: 3, asks: 4, asked: 5 };
        assert_eq!(mailbox.status(), status);
        mailbox.wide(layout::COUNTERS + 8 * Counter::Errors as usize).store(6 << 32, Ordering::Release);
        assert_eq!(mailbox.counter(Counter::Errors), 6 << 32);
        tell(layout::WAITS_FOR, 4);
        assert_eq!(mailbox.waits_for(), "the rollout that it stops (R8)");
        tell(layout::WAITS_FOR, 99);
        assert_eq!(mailbox.waits_for(), "something unknown");
        tell(layout::HEARTBEAT, 8);
        assert_eq!(mailbox.heartbeat(), 8);
        mailbox.show_policy_slots([9, 10]);
        assert_eq!(mailbox.policy_slots(), [9, 10]);
        assert!(mailbox.is_abort_over(), "none was asked for");
        mailbox.abort(Abort { rollout: 11, upto: 12 });
        assert!(!mailbox.is_abort_over());
        assert_eq!(mailbox.wide(layout::ABORT_OF).load(Ordering::Relaxed), 12 << 32 | 11);
        tell(layout::ABORTED, mailbox.word(layout::ABORT).load(Ordering::Relaxed));
        assert!(mailbox.is_abort_over());
    }
}
