//! What host and kernel share beside the queues: one page per queue pair, the layout of `kernels/mailbox.h`. The kernel's
//! side is here too, for the emulation.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use doorbell_contract::Counter;
use doorbell_host::memory::PAGE;
use doorbell_host::registers::Session;
use doorbell_host::{DeviceError, SharedMemory};

/// Asks the kernel to end. (Else: odd asks for a session, even for none; each request is another number.)
pub(crate) const EXIT: u32 = 0xFFFF_FFFE;

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

/// `doorbell_wait` of kernels/mailbox.h: what the oldest descriptor that has not started waits for (R15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Wait {
    Nothing,
    CompletionSlot,
    Rollout,
    Fence,
    Stop,
    Worker,
}

impl Wait {
    /// By number.
    const TEXT: [&str; 6] = [
        "nothing",
        "the host to release completions (R4)",
        "an earlier descriptor of its rollout (R5)",
        "a fence (R7)",
        "the rollout that it stops (R8)",
        "a place among the rollouts that run",
    ];
}

/// The words of a mailbox.
#[derive(Debug)]
struct Page(SharedMemory);

impl Page {
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.0.word32(offset).expect("a mailbox is a page, and its fields lie in it")
    }

    fn wide(&self, offset: usize) -> &AtomicU64 {
        self.0.word64(offset).expect("a mailbox is a page, and its fields lie in it")
    }
}

/// The host's side of a mailbox.
#[derive(Debug)]
pub struct Mailbox {
    page: Page,
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
        Ok(Self { page: Page(page.part(0, PAGE)?) })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.page.word(offset)
    }

    fn store64(&self, offset: usize, value: u64) {
        self.page.wide(offset).store(value, Ordering::Relaxed);
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
            sq_head: load(at!(sq_head)),
            outstanding: load(at!(outstanding)),
            cq_tail: load(at!(cq_tail)),
        }
    }

    /// A counter of the session.
    pub fn counter(&self, counter: Counter) -> u64 {
        let offset = at!(counters) + 8 * counter as usize;
        self.page.wide(offset).load(Ordering::Acquire)
    }

    /// How often the front end has looked at its mailbox, as last told: it rises as long as the front end lives.
    pub fn heartbeat(&self) -> u32 {
        self.word(at!(heartbeat)).load(Ordering::Acquire)
    }

    /// What the oldest descriptor that has not started waits for.
    pub fn waits_for(&self) -> &'static str {
        let number = self.word(at!(waits_for)).load(Ordering::Acquire);
        Wait::TEXT.get(number as usize).copied().unwrap_or("something unknown")
    }
}

/// The kernel's side of a mailbox.
#[derive(Debug)]
pub(crate) struct KernelSide {
    page: Page,
}

/// What the host writes as it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostWords {
    pub wanted: u32,
    pub sq_tail: u32,
    pub cq_head: u32,
}

/// `doorbell_session` of kernels/mailbox.h: the registers that are fixed while a session runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionRegisters {
    pub sq_base: u64,
    pub cq_base: u64,
    pub token_base: u64,
    pub token_size: u64,
    pub kv_size: u64,
    pub sq_size: u32,
    pub cq_size: u32,
    pub sq_start: u32,
    pub cq_start: u32,
    pub checkpoint_default: u32,
    pub wait_states: u32,
    pub length_limit: u32,
    pub eos_threshold: u32,
    pub reward_threshold: u32,
    pub workers: u32,
}

/// What the kernel tells of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    pub status: Status,
    pub waits_for: u32,
    pub heartbeat: u32,
    pub counters: [u64; Counter::ALL.len()],
}

impl KernelSide {
    /// The mailbox in `page`.
    ///
    /// # Errors
    /// `OutOfBounds` if `page` is smaller than a page.
    pub fn new(page: &SharedMemory) -> Result<Self, DeviceError> {
        Ok(Self { page: Page(page.part(0, PAGE)?) })
    }

    /// What the host wants.
    pub fn host(&self) -> HostWords {
        let load = |offset| self.page.word(offset).load(Ordering::Acquire);
        HostWords { wanted: load(at!(wanted)), sq_tail: load(at!(sq_tail)), cq_head: load(at!(cq_head)) }
    }

    /// The registers of the session that is wanted, which the host wrote before it wanted it.
    pub fn session(&self) -> SessionRegisters {
        let word = |offset| self.page.word(offset).load(Ordering::Relaxed);
        let wide = |offset| self.page.wide(offset).load(Ordering::Relaxed);
        SessionRegisters {
            sq_base: wide(at!(sq_base)),
            cq_base: wide(at!(cq_base)),
            token_base: wide(at!(token_base)),
            token_size: wide(at!(token_size)),
            kv_size: wide(at!(kv_size)),
            sq_size: word(at!(sq_size)),
            cq_size: word(at!(cq_size)),
            sq_start: word(at!(sq_start)),
            cq_start: word(at!(cq_start)),
            checkpoint_default: word(at!(checkpoint_default)),
            wait_states: word(at!(wait_states)),
            length_limit: word(at!(length_limit)),
            eos_threshold: word(at!(eos_threshold)),
            reward_threshold: word(at!(reward_threshold)),
            workers: word(at!(workers)),
        }
    }

    /// Tells the host how far the session is.
    pub fn tell(&self, news: &News) {
        let store = |offset, value| self.page.word(offset).store(value, Ordering::Relaxed);
        for (k, &value) in news.counters.iter().enumerate() {
            self.page.wide(at!(counters) + 8 * k).store(value, Ordering::Relaxed);
        }
        // The completions that the news is about come before it.
        fence(Ordering::AcqRel);
        let Status { sq_head, cq_tail, outstanding, asks, asked } = news.status;
        store(at!(cq_tail), cq_tail);
        store(at!(waits_for), news.waits_for);
        store(at!(heartbeat), news.heartbeat);
        // Each before what the host reads before it: see `Mailbox::status`.
        store(at!(outstanding), outstanding);
        self.page.word(at!(sq_head)).store(sq_head, Ordering::Release);
        store(at!(asked), asked);
        self.page.word(at!(asks)).store(asks, Ordering::Release);
    }

    /// Shows that the front end lives.
    pub fn beat(&self, heartbeat: u32) {
        self.page.word(at!(heartbeat)).store(heartbeat, Ordering::Relaxed);
    }

    /// Acknowledges that the session `wanted` has come.
    pub fn reach(&self, wanted: u32) {
        self.page.word(at!(reached)).store(wanted, Ordering::Release);
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

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let mailbox = mailbox();
        let kernel = KernelSide::new(&mailbox.page.0).unwrap();
        mailbox.ring(7);
        mailbox.release(5);
        mailbox.want(1);
        let host = kernel.host();
        assert_eq!((host.wanted, host.sq_tail, host.cq_head), (1, 7, 5));
        kernel.reach(host.wanted);
        assert!(mailbox.is_reached());
        let status = Status { sq_head: 1, cq_tail: 2, outstanding: 3, asks: 4, asked: 5 };
        let mut counters = [0; Counter::ALL.len()];
        counters[Counter::Errors as usize] = 6;
        kernel.tell(&News { status, waits_for: Wait::Stop as u32, heartbeat: 8, counters });
        assert_eq!(mailbox.status(), status);
        assert_eq!(mailbox.counter(Counter::Errors), 6);
        assert_eq!(mailbox.waits_for(), "the rollout that it stops (R8)");
        assert_eq!(mailbox.heartbeat(), 8);
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
