//! One queue pair between host and kernel: its mailbox, and its indices as the host's stores have them. Its driver rings and
//! releases here, without the lock of its device; whoever has that lock reads the indices, and opens and closes the line.

use std::hint;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_contract::HwCompletion;
use doorbell_host::memory::Slots;
use doorbell_host::platform::MESSAGE;
use doorbell_host::queue::{self, COMPLETION_WORDS, Depth, between};
use doorbell_host::registers::{EventRing, Session};
use doorbell_host::{Awaited, DeviceError, SharedMemory};

use crate::engine::Engine;
use crate::mailbox::Mailbox;

/// 64-bit word of a completion whose high half is `sq_head`.
const SQ_HEAD_WORD: usize = offset_of!(HwCompletion, sq_head) / 8;
const _: () = assert!(offset_of!(HwCompletion, sq_head) % 8 == 4);

/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 64;

/// Longest sleep of who waits for long.
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// How long who sleeps believes that the kernel lives.
const CHECKED_EVERY: Duration = Duration::from_millis(10);

/// `open` of a line that takes nothing, everything, and all but doorbells.
const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const DRAINS: u32 = 2;

/// The line of a queue pair, which its driver and its device share. Of the indices only whoever drives it writes, and nothing is published by them but to the
/// kernel, through the mailbox: so relaxed accesses do.
// Each is another thread's: on cache lines of its own.
#[repr(align(128))]
pub(crate) struct SharedLine {
    pub mailbox: Mailbox,
    engine: Arc<dyn Engine>,
    memory: SharedMemory,
    open: AtomicU32,
    /// Sessions that were opened: what was found in one says nothing of the next.
    sessions: AtomicU32,
    sq_slots: AtomicU32,
    sq_head: AtomicU32,
    sq_tail: AtomicU32,
    cq_base: AtomicU64,
    cq_slots: AtomicU32,
    cq_head: AtomicU32,
    /// Written up to, as far as a release has shown.
    cq_tail: AtomicU32,
}

impl SharedLine {
    /// The line of queue pair `queue` of `engine`, closed.
    ///
    /// # Errors
    /// `OutOfBounds` if there is no such queue pair.
    pub fn new(engine: Arc<dyn Engine>, queue: usize) -> Result<Self, DeviceError> {
        let zero = || AtomicU32::new(0);
        Ok(Self {
            mailbox: Mailbox::new(engine.mailbox(queue)?)?,
            memory: engine.memory()?,
            engine,
            open: zero(),
            sessions: zero(),
            sq_slots: zero(),
            sq_head: zero(),
            sq_tail: zero(),
            cq_base: AtomicU64::new(0),
            cq_slots: zero(),
            cq_head: zero(),
            cq_tail: zero(),
        })
    }

    /// Opens the line for a session.
    pub fn open(&self, session: &Session) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        self.sq_slots.store(session.sq.depth.slots(), Ordering::Relaxed);
        self.cq_slots.store(session.cq.depth.slots(), Ordering::Relaxed);
        self.cq_base.store(session.cq.base, Ordering::Relaxed);
        self.adopt(session);
        self.open.store(OPEN, Ordering::Release);
    }

    /// Takes over what the registers have let pass.
    pub fn adopt(&self, session: &Session) {
        let (sq, cq) = (&session.sq, &session.cq);
        for (index, value) in [
            (&self.sq_head, sq.head),
            (&self.sq_tail, sq.tail),
            (&self.cq_head, cq.head),
            (&self.cq_tail, cq.tail),
        ] {
            index.store(value, Ordering::Relaxed);
        }
    }

    /// Takes no doorbell any more.
    pub fn drain(&self) {
        self.open.store(DRAINS, Ordering::Relaxed);
    }

    /// Takes nothing any more.
    pub fn close(&self) {
        self.open.store(CLOSED, Ordering::Relaxed);
    }

    /// Heads and tails, of the submission queue and of the completion queue, as the host's stores have them.
    pub fn indices(&self) -> [[u32; 2]; 2] {
        let load = |index: &AtomicU32| index.load(Ordering::Relaxed);
        [[load(&self.sq_head), load(&self.sq_tail)], [load(&self.cq_head), load(&self.cq_tail)]]
    }

    /// Publishes the descriptors below `tail`, if that is all that there is to it.
    #[inline]
    pub fn ring(&self, tail: u32) -> bool {
        let [[head, before], _] = self.indices();
        let last = head.wrapping_add(self.sq_slots.load(Ordering::Relaxed));
        if self.open.load(Ordering::Relaxed) != OPEN || !between(before, tail, last) {
            return false;
        }
        self.sq_tail.store(tail, Ordering::Relaxed);
        self.mailbox.ring(tail);
        true
    }

    /// Releases the completions below `head`, if that is all that there is to it: what lies below must have been written,
    /// which the slot below it shows. It also tells how many SQ slots are free again.
    #[inline]
    pub fn release(&self, head: u32) -> bool {
        let [[sq_head, sq_tail], [before, tail]] = self.indices();
        let slots = self.cq_slots.load(Ordering::Relaxed);
        let (known, taken) = (tail.wrapping_sub(before), head.wrapping_sub(before));
        if self.open.load(Ordering::Acquire) == CLOSED || taken > slots {
            return false;
        }
        if taken > 0 {
            let Some((completions, depth)) = self.completions() else { return false };
            let last = head.wrapping_sub(1);
            if known > slots || taken > known {
                if !queue::is_fresh(&completions, depth, last) {
                    return false;
                }
                self.cq_tail.store(head, Ordering::Relaxed);
            }
            let consumed = (completions.word(last, SQ_HEAD_WORD) >> 32) as u32;
            if between(sq_head, consumed, sq_tail) {
                self.sq_head.store(consumed, Ordering::Relaxed);
            }
        }
        self.cq_head.store(head, Ordering::Relaxed);
        self.mailbox.release(head);
        true
    }

    /// SQ slots consumed, as the newest visible completion that is not released says: a host that has read it may ring for them before it
    /// releases it.
    #[cold]
    pub fn told(&self) -> Option<u32> {
        let (completions, depth) = self.completions()?;
        let first = self.cq_head.load(Ordering::Relaxed);
        let indices = (0..depth.slots()).map(|k| first.wrapping_add(k));
        let last = indices.take_while(|&index| queue::is_fresh(&completions, depth, index)).last()?;
        Some((completions.word(last, SQ_HEAD_WORD) >> 32) as u32)
    }

    /// The slots of the completion queue, and how many.
    fn completions(&self) -> Option<(Slots<'_, COMPLETION_WORDS>, Depth)> {
        let depth = Depth::new("cq_size", self.cq_slots.load(Ordering::Relaxed)).ok()?;
        let offset = self.cq_base.load(Ordering::Relaxed).wrapping_sub(self.memory.bus_address());
        Some((self.memory.slots(offset as usize, depth.slots()).ok()?, depth))
    }

    /// The first event of `ring` that is not there, from `tail` on, of those below `head` plus its size: events from `head` on are not
    /// released. Whatever lies there, it is no further.
    pub fn events_up_to(&self, ring: &EventRing, head: u32, mut tail: u32) -> u32 {
        let slots = ring.depth.slots();
        let offset = ring.base.wrapping_sub(self.memory.bus_address());
        let Ok(events) = self.memory.slots::<COMPLETION_WORDS>(offset as usize, slots) else { return tail };
        while tail.wrapping_sub(head) < slots && queue::is_fresh(&events, ring.depth, tail) {
            tail = tail.wrapping_add(1);
        }
        tail
    }

    /// Whether a completion that the host can see has no event yet, and is not counted either, or a FAULT that was asked for.
    pub fn is_untold(&self, life: bool) -> bool {
        if !self.mailbox.is_reached() {
            return false;
        }
        let (told, _) = self.mailbox.told();
        let behind = self.cq_head.load(Ordering::Relaxed).wrapping_sub(told) as i32;
        life && (behind > 0 || self.is_ahead(told)) || !self.mailbox.is_fault_told()
    }

    /// Whether the completion with this index, above the head, is there.
    fn is_ahead(&self, index: u32) -> bool {
        let above = index.wrapping_sub(self.cq_head.load(Ordering::Relaxed));
        above < self.cq_slots.load(Ordering::Relaxed) && self.is_fresh(index)
    }

    /// Whether the completion with this index is there.
    pub fn is_fresh(&self, index: u32) -> bool {
        self.completions().is_some_and(|(slots, depth)| queue::is_fresh(&slots, depth, index))
    }

    /// Whether the next completion that the host has not released is there, or the end of the last session.
    pub fn has_news(&self) -> bool {
        let is_closed = self.open.load(Ordering::Acquire) == CLOSED;
        self.mailbox.is_reached() && (is_closed || self.is_fresh(self.cq_head.load(Ordering::Relaxed)))
    }

    /// Whether a completion at or above the running index `from` has asked for an interrupt (R14).
    pub fn has_asked(&self, from: u32) -> bool {
        let status = self.mailbox.status();
        self.mailbox.is_reached() && status.asks > 0 && status.asked.wrapping_sub(from) as i32 >= 0
    }

    /// Whether anything is awaited here: a completion, or the end of a session.
    pub fn is_awaited(&self) -> bool {
        self.open.load(Ordering::Relaxed) != CLOSED || !self.mailbox.is_reached()
    }

    /// Where the host is: in which session, and how far.
    fn stand(&self) -> (u32, u32) {
        (self.sessions.load(Ordering::Relaxed), self.cq_head.load(Ordering::Relaxed))
    }

    /// The same, and what it has submitted.
    fn position(&self) -> [u32; 3] {
        let (session, released) = self.stand();
        [session, released, self.sq_tail.load(Ordering::Relaxed)]
    }

    /// Who waits for what (R15).
    pub fn report(&self) -> String {
        let before = self.mailbox.heartbeat();
        std::thread::sleep(Duration::from_millis(10));
        let alive = if self.mailbox.heartbeat() == before { "does not answer" } else { "answers" };
        format!(
            "front end {alive}, its oldest descriptor waits for {}, {} are outstanding",
            self.mailbox.waits_for(),
            self.mailbox.status().outstanding
        )
    }
}

/// Somebody who waits for news of lines.
pub(crate) struct Watch {
    lines: Vec<Arc<SharedLine>>,
    /// How long one `advance` waits at most.
    pub slice: Duration,
    /// Of each line, where the host was when its news was told.
    told: Vec<Option<(u32, u32)>>,
    rest: Rest,
}

/// A wait that goes on if nothing has happened since its last call, each of which sleeps once.
struct Rest {
    /// What was waited for, in vain.
    awaited: Option<Awaited>,
    /// Of each line, where the host was.
    stands: Vec<[u32; 3]>,
    pause: Duration,
    checked: Instant,
}

impl Watch {
    /// Watches `lines`, of which there is at least one.
    pub fn new(lines: Vec<Arc<SharedLine>>, slice: Duration) -> Self {
        let stands = vec![[0; 3]; lines.len()];
        let rest = Rest { awaited: None, stands, pause: Duration::ZERO, checked: Instant::now() };
        Self { told: vec![None; lines.len()], lines, slice, rest }
    }

    /// As [`advance`](Self::advance), of `line` alone, which is one of those watched.
    pub fn advance_for(&mut self, line: &Arc<SharedLine>) -> Result<(), DeviceError> {
        let number = self.lines.iter().position(|other| Arc::ptr_eq(other, line));
        self.advance_some(number)
    }

    /// Gives the device time, until one of the lines has news. A host that was told and has taken nothing waits for something
    /// else.
    pub fn advance(&mut self) -> Result<(), DeviceError> {
        self.advance_some(None)
    }

    /// The same of one line, if not of all.
    fn advance_some(&mut self, only: Option<usize>) -> Result<(), DeviceError> {
        let start = Instant::now();
        let lines = only.map_or(0..self.lines.len(), |only| only..only + 1);
        loop {
            for _ in 0..LOOKS {
                let mut awaited = false;
                for (line, told) in self.lines[lines.clone()].iter().zip(&mut self.told[lines.clone()]) {
                    let stand = Some(line.stand());
                    let is_open = line.is_awaited();
                    awaited |= is_open;
                    if is_open && *told != stand && line.has_news() {
                        *told = stand;
                        return Ok(());
                    }
                }
                if !awaited {
                    return Ok(());
                }
                hint::spin_loop();
            }
            if start.elapsed() >= self.slice {
                return self.lines[0].engine.check();
            }
        }
    }

    /// Looks without sleeping for one slice, then ever less often: a completion waits at most 500 us to be seen (and what
    /// the system adds to a sleep), and a thread that waits for long wakes 2,000 times a second. Who waits for an interrupt does not
    /// begin with looking, and sleeps longer at once, as he expects to wait for long.
    ///
    /// A call sleeps once: the caller counts it as one advance (R15), and calls again. That goes on where this one was.
    pub fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        let mut goes_on = self.rest.awaited.take() == Some(awaited);
        for (line, stand) in self.lines.iter().zip(&mut self.rest.stands) {
            let position = line.position();
            goes_on &= std::mem::replace(stand, position) == position;
        }
        if !goes_on {
            if awaited == Awaited::Completion {
                self.advance()?;
            }
            let first = if awaited == Awaited::Completion { 20 } else { 100 };
            (self.rest.pause, self.rest.checked) = (Duration::from_micros(first), Instant::now());
        }
        let has_news = |line: &SharedLine| match awaited {
            Awaited::Completion => line.has_news(),
            Awaited::Interrupt { from } => line.has_asked(from),
        };
        let is_awaited = self.lines.iter().any(|line| line.is_awaited());
        if !is_awaited || self.lines.iter().any(|line| line.is_awaited() && has_news(line)) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // Asking CUDA costs as much as a sleep does.
        if left.is_zero() || self.rest.checked.elapsed() >= CHECKED_EVERY {
            self.lines[0].engine.check()?;
            self.rest.checked = Instant::now();
        }
        if !left.is_zero() {
            std::thread::sleep(self.rest.pause.min(left));
            self.rest.pause = (2 * self.rest.pause).min(LONGEST_PAUSE);
        }
        self.rest.awaited = Some(awaited);
        Ok(())
    }
}

/// What the driver of one queue pair does without the device.
pub(crate) struct OwnLine {
    line: Arc<SharedLine>,
    watch: Watch,
    message: Message,
}

impl OwnLine {
    pub fn new(line: Arc<SharedLine>, slice: Duration) -> Self {
        Self { watch: Watch::new(vec![line.clone()], slice), line, message: Message::default() }
    }
}

/// Where a driver looks for the message of its interrupt. Nothing in a GPU interrupts the host: who waits writes it himself, once he has seen
/// in the mailbox that a completion has asked.
#[derive(Default)]
pub(crate) struct Message(Option<(SharedMemory, usize)>);

impl Message {
    /// The message goes to the word at `offset` of `memory`.
    pub fn route(&mut self, memory: &SharedMemory, offset: usize) {
        self.0 = Some((memory.clone(), offset));
    }

    /// Writes it if a completion at or above `from` has asked.
    pub fn look(&self, line: &SharedLine, awaited: Awaited) -> Result<(), DeviceError> {
        if let (Awaited::Interrupt { from }, Some((memory, offset))) = (awaited, &self.0)
            && line.has_asked(from)
        {
            memory.word32(*offset)?.store(MESSAGE, Ordering::Release);
        }
        Ok(())
    }
}

impl doorbell_host::Line for OwnLine {
    #[inline]
    fn ring(&mut self, tail: u32) -> bool {
        self.line.ring(tail)
    }

    #[inline]
    fn release(&mut self, head: u32) -> bool {
        self.line.release(head)
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        self.watch.advance()
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.message.route(memory, offset);
        Ok(())
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.watch.wait(awaited, deadline)?;
        self.message.look(&self.line, awaited)
    }

    fn report(&mut self) -> Option<String> {
        Some(self.line.report())
    }
}
