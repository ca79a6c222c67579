//! What host and kernel share beside the queues: one page per queue pair, the layout of `kernels/mailbox.h`.

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_host::contract::Counter;
use doorbell_host::memory::PAGE;
use doorbell_host::registers::Session;
use doorbell_host::{DeviceError, SharedMemory};

/// Asks the kernel to end. (Else: odd asks for a session, even for none; each request is another number.)
const EXIT: u32 = 0xFFFF_FFFE;

/// The page. Host and kernel access it a word at a time: this type is never made, it only gives the offsets.
#[repr(C)]
struct Layout {
    // By the host; `wanted` behind the others, with release order.
    wanted: u32,
    sq_tail: u32,
    cq_head: u32,
    unused0: [u32; 13],
    // Fixed while a session runs.
    sq_base: u64,
    cq_base: u64,
    token_base: u64,
    token_size: u64,
    kv_size: u64,
    sq_size: u32,
    cq_size: u32,
    sq_start: u32,
    cq_start: u32,
    checkpoint_default: u32,
    wait_states: u32,
    length_limit: u32,
    eos_threshold: u32,
    reward_threshold: u32,
    workers: u32,
    unused1: [u32; 28],
    // By the kernel; `reached` behind the others, with release order.
    reached: u32,
    sq_head: u32,
    cq_tail: u32,
    outstanding: u32,
    asks: u32,
    asked: u32,
    waits_for: u32,
    heartbeat: u32,
    unused2: [u32; 8],
    counters: [u64; Counter::ALL.len()],
    unused3: [u32; 912],
}

macro_rules! at {
    ($field:ident) => {
        std::mem::offset_of!(Layout, $field)
    };
}

// The numbers that kernels/mailbox.h asserts as well.
const _: () = assert!(size_of::<Layout>() == PAGE);
const _: () = assert!(at!(sq_base) == 64 && at!(sq_size) == 104 && at!(workers) == 140);
const _: () = assert!(at!(reached) == 256 && at!(heartbeat) == 284 && at!(counters) == 320);

/// The host's side of a mailbox.
#[derive(Debug)]
pub struct Mailbox {
    page: SharedMemory,
}

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
        Ok(Self { page: page.part(0, PAGE)? })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.page.word32(offset).expect("a mailbox is a page, and its fields lie in it")
    }

    fn store64(&self, offset: usize, value: u64) {
        let word = self.page.word64(offset).expect("a mailbox is a page, and its fields lie in it");
        word.store(value, Ordering::Relaxed);
    }

    /// Publishes the descriptors below `tail`.
    #[inline]
    pub fn ring(&self, tail: u32) {
        self.word(at!(sq_tail)).store(tail, Ordering::Release);
    }

    /// Releases the completions below `head`.
    #[inline]
    pub fn release(&self, head: u32) {
        self.word(at!(cq_head)).store(head, Ordering::Release);
    }

    /// Asks for a session with these registers. `workers` is 0 for all.
    pub fn start(&self, session: &Session, workers: u32) {
        self.store64(at!(sq_base), session.sq.base);
        self.store64(at!(cq_base), session.cq.base);
        self.store64(at!(token_base), session.token_base);
        self.store64(at!(token_size), session.token_size);
        self.store64(at!(kv_size), session.kv_size);
        for (offset, value) in [
            (at!(sq_size), session.sq.depth.slots()),
            (at!(cq_size), session.cq.depth.slots()),
            (at!(sq_start), session.sq.tail),
            (at!(cq_start), session.cq.head),
            (at!(checkpoint_default), session.checkpoint_default),
            (at!(wait_states), session.wait_states),
            (at!(length_limit), session.length_limit),
            (at!(eos_threshold), session.eos_threshold),
            (at!(reward_threshold), session.reward_threshold),
            (at!(workers), workers),
            (at!(sq_tail), session.sq.tail),
            (at!(cq_head), session.cq.head),
        ] {
            self.word(offset).store(value, Ordering::Relaxed);
        }
        self.want(1);
    }

    /// Asks for the session to end (R12).
    pub fn stop(&self) {
        self.want(0);
    }

    /// Asks the kernel to end.
    pub fn exit(&self) {
        self.word(at!(wanted)).store(EXIT, Ordering::Release);
    }

    /// Asks for the next number of this parity, past the one that means EXIT.
    fn want(&self, parity: u32) {
        let mut wanted = self.word(at!(wanted)).load(Ordering::Relaxed).wrapping_add(1);
        while wanted % 2 != parity || wanted == EXIT {
            wanted = wanted.wrapping_add(1);
        }
        self.word(at!(wanted)).store(wanted, Ordering::Release);
    }

    /// Whether the kernel has come to what was asked for last. What it wrote before is then visible.
    #[inline]
    pub fn is_reached(&self) -> bool {
        self.word(at!(reached)).load(Ordering::Acquire) == self.word(at!(wanted)).load(Ordering::Relaxed)
    }

    /// What the kernel last told.
    pub fn status(&self) -> Status {
        let load = |offset| self.word(offset).load(Ordering::Acquire);
        Status {
            // `asks` counts after `asked` is set, and is told behind it.
            asks: load(at!(asks)),
            asked: load(at!(asked)),
            // What is consumed by then is outstanding or has completed by now.
            outstanding: load(at!(outstanding)),
            sq_head: load(at!(sq_head)),
            cq_tail: load(at!(cq_tail)),
        }
    }

    /// A counter of the session.
    pub fn counter(&self, counter: Counter) -> u64 {
        let offset = at!(counters) + 8 * counter as usize;
        self.page.word64(offset).expect("a mailbox holds all counters").load(Ordering::Acquire)
    }

    /// How often the front end has looked at its mailbox, as last told: it rises as long as the front end lives.
    pub fn heartbeat(&self) -> u32 {
        self.word(at!(heartbeat)).load(Ordering::Acquire)
    }

    /// What the oldest descriptor that has not started waits for.
    pub fn waits_for(&self) -> &'static str {
        // `doorbell_wait` of kernels/mailbox.h.
        match self.word(at!(waits_for)).load(Ordering::Acquire) {
            0 => "nothing",
            1 => "the host to release completions (R4)",
            2 => "an earlier descriptor of its rollout (R5)",
            3 => "a fence (R7)",
            4 => "the rollout that it stops (R8)",
            5 => "a place among the rollouts that run",
            _ => "something unknown",
        }
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
        let wanted = || mailbox.word(at!(wanted)).load(Ordering::Relaxed);
        assert!(mailbox.is_reached());
        mailbox.want(1);
        assert_eq!(wanted(), 1);
        assert!(!mailbox.is_reached());
        mailbox.stop();
        assert_eq!(wanted(), 2);
        mailbox.stop();
        assert_eq!(wanted(), 4);
        mailbox.word(at!(wanted)).store(EXIT - 1, Ordering::Relaxed);
        mailbox.stop();
        assert_eq!(wanted(), 0);
    }

    /// The header states the layout a second time; here both are compared, name by name.
    #[test]
    fn the_header_has_the_same_fields_in_the_same_order() {
        let names = |text: &str, from: &str| -> Vec<String> {
            let body = text.split_once(from).unwrap().1.split_once("\n}").unwrap().0;
            let code = body.lines().map(|line| line.split("//").next().unwrap().trim());
            code.filter_map(|line| line.strip_suffix([';', ',']))
                .map(|line| {
                    line.split(['[', ':']).next().unwrap().split_whitespace().last().unwrap().to_owned()
                })
                .collect()
        };
        let header = include_str!("../kernels/mailbox.h");
        let session = names(header, "struct doorbell_session {");
        let mut expected = Vec::new();
        for name in names(header, "struct doorbell_mailbox {") {
            if name == "session" { expected.extend(session.clone()) } else { expected.push(name) }
        }
        assert_eq!(names(include_str!("mailbox.rs"), "struct Layout {"), expected);
    }
}
