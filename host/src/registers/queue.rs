//! What a device in software keeps of one queue pair: its rings while it is active, its faults.

use super::Refused;
use super::events::Untold;
use super::interrupt::{Coalescing, Interrupt, Visible};
use crate::queue::{Depth, between};
use doorbell_contract::{ARENAS, Control, DeviceFault, QueueCounter, RANGES, SqKey, State};

/// One ring as the device sees it; indices are free-running (R13).
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Bus address of slot 0.
    pub base: u64,
    /// Its slots.
    pub depth: Depth,
    /// Oldest slot in use: next to fetch (SQ) or oldest not released (CQ).
    pub head: u32,
    /// Next slot to be filled.
    pub tail: u32,
}

impl Ring {
    /// Slots in use.
    #[inline]
    pub fn fill(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether every slot is in use.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.fill() == self.depth.slots()
    }

    /// Bus address of the slot of `index`, slots being `bytes` long.
    #[inline]
    pub fn address(&self, index: u32, bytes: u64) -> u64 {
        self.base.wrapping_add(bytes * u64::from(self.depth.slot(index)))
    }
}

/// Memory of a function, of which the device knows base and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Bus address of its first byte, a multiple of 64.
    pub base: u64,
    /// Its bytes.
    pub size: u64,
}

/// What is fixed while a queue pair is active, and its rings.
#[derive(Clone, Debug)]
pub struct Session {
    /// Submission queue: `head` is consumed up to, `tail` published up to.
    pub sq: Ring,
    /// Completion queue: `head` is released up to, `tail` written up to.
    pub cq: Ring,
    /// What descriptors are sealed with.
    pub sq_key: SqKey,
    /// Bus address of the token region.
    pub token_base: u64,
    /// Bytes of the token region.
    pub token_size: u64,
    /// Bus address of the KV region.
    pub kv_base: u64,
    /// Bytes of the KV region.
    pub kv_size: u64,
    /// Of the function: where models lie (R25).
    pub model: Region,
    /// Of the function: where blocks of keys and values lie (R26).
    pub arenas: [Region; ARENAS as usize],
    /// Checkpoint of descriptors that give 0; 0 and `CHECKPOINT_NEVER` are never.
    pub checkpoint_default: u32,
    /// Cycles before each token.
    pub wait_states: u32,
    /// Time after which an access that is not answered makes the queue pair dead (R24); 0: never.
    pub bus_timeout: u32,
    /// Largest `seq_len` + `max_tokens`.
    pub length_limit: u32,
    /// Probability of end of sequence, in 1/32768.
    pub eos_threshold: u32,
    /// RESIDENT: scores below it end the rollout; Q16.16.
    pub reward_threshold: i32,
    /// Bus address of the log-probability region.
    pub logp_base: u64,
    /// Bytes of the log-probability region.
    pub logp_size: u64,
    /// Ranges of reward model 1, first and last token.
    pub ranges: [(u32, u32); RANGES as usize],
    /// The function that owns the queue pair.
    pub function: u8,
    /// Workers that its descriptors may run on, a bit each.
    pub workers: u32,
    /// Descriptors in a row that this queue pair may have before another's turn.
    pub weight: u32,
    /// Whether its completions have events (R23).
    pub life: bool,
    /// What fires besides completions that ask for an interrupt.
    pub coalescing: Coalescing,
}

/// What ABORT was written for (R8): the DECODEs of a rollout below an index of the submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The rollout.
    pub rollout: u32,
    /// The queue's tail at the write.
    pub upto: u32,
}

impl Abort {
    /// Whether it ends the DECODE of `rollout` at `index`.
    #[inline]
    pub fn ends(&self, rollout: u32, index: u32) -> bool {
        self.rollout == rollout && self.is_ahead_of(index)
    }

    /// Whether `index` was published when ABORT was written.
    #[inline]
    pub fn is_ahead_of(&self, index: u32) -> bool {
        (index.wrapping_sub(self.upto) as i32) < 0
    }
}

/// The registers of one queue pair that change while it is active.
#[derive(Debug)]
pub struct QueueRegisters {
    /// Present while STATE.ACTIVE is 1.
    pub session: Option<Session>,
    /// Whether a descriptor that was consumed has no completion yet; who executes sets it before registers are read.
    pub busy: bool,
    fault: DeviceFault,
    untold: Option<Untold>,
    pub(super) interrupt: Interrupt,
    /// Completions since the start, lost ones too, for the interrupt.
    pub(super) posted: u64,
    refused: u8,
    /// CONTROL.DRAIN was written.
    draining: bool,
    /// The last ABORT, until it has come to all that it ends; and what was written.
    pub(super) abort: Option<Abort>,
    aborted: u32,
    /// SQ_HEAD and CQ_TAIL as the last session left them.
    ends: [u32; 2],
    counters: [u64; QueueCounter::ALL.len()],
    /// The session is over here, and not yet in a device elsewhere, which may still write memory.
    ending: bool,
    /// Whether a reset of the function ended it.
    by_reset: bool,
    /// The bus owes an answer for too long (R24).
    pub(super) dead: bool,
}

impl QueueRegisters {
    pub(super) fn new() -> Self {
        Self {
            session: None,
            busy: false,
            fault: DeviceFault::empty(),
            untold: None,
            interrupt: Interrupt::default(),
            posted: 0,
            refused: 0,
            draining: false,
            abort: None,
            aborted: 0,
            ends: [0; 2],
            counters: [0; QueueCounter::ALL.len()],
            ending: false,
            by_reset: false,
            dead: false,
        }
    }

    /// Adds to a counter of the queue pair alone.
    #[inline]
    pub(super) fn count(&mut self, counter: QueueCounter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    /// A counter's value.
    #[inline]
    pub fn counted(&self, counter: QueueCounter) -> u64 {
        self.counters[counter as usize]
    }

    /// Sets a counter that the device keeps elsewhere.
    #[inline]
    pub fn set_counter(&mut self, counter: QueueCounter, value: u64) {
        self.counters[counter as usize] = value;
    }

    /// STATE.ACTIVE: a session runs, or a device elsewhere has not come to the end of the last one.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.session.is_some() || self.ending
    }

    /// Whether a device elsewhere has not come to the end of the last session.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Keeps STATE.ACTIVE up behind a [`stop`](Self::stop), until a device elsewhere [has come](Self::ended) to the end of
    /// the session: until then nothing is taken (R12).
    pub fn wait_for_the_end(&mut self) {
        self.ending = true;
    }

    /// The device has come to the end of the session, with its queues there.
    pub fn ended(&mut self, sq_head: u32, cq_tail: u32) {
        self.answered();
        self.ends = [sq_head, cq_tail];
    }

    /// The end of a session need not be waited for any more: the queues are where it left them.
    pub fn answered(&mut self) {
        (self.ending, self.by_reset, self.dead) = (false, false, false);
    }

    /// The bus owes an answer for too long: no descriptor is handed out any more, until the queue pair has been disabled, and no
    /// interrupt comes (R24).
    pub fn die(&mut self) {
        self.dead = true;
        self.abort = None;
        self.interrupt.forget();
        self.raise(DeviceFault::BUS_TIMEOUT);
    }

    /// Whether it has [died](Self::die).
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    pub(super) fn reset(&mut self) {
        self.stop();
        self.by_reset = true;
    }

    pub(super) fn is_resetting(&self) -> bool {
        self.ending && self.by_reset
    }

    /// The faults that ERROR shows.
    pub fn fault(&self) -> DeviceFault {
        self.fault
    }

    /// Adds to ERROR, whose bits stay until the host clears them.
    pub fn raise(&mut self, fault: DeviceFault) {
        let new = fault - self.fault;
        self.fault |= fault;
        if new.is_empty() {
            return;
        }
        // A completion's slot is given to it before its write is answered.
        let index = self.cq_tail().wrapping_sub(new.contains(DeviceFault::COMPLETION_WRITE).into());
        let nothing = Untold { faults: DeviceFault::empty(), index };
        self.untold.get_or_insert(nothing).faults |= new;
    }

    /// Takes the faults that no event has told of.
    pub(super) fn take_untold(&mut self) -> Option<Untold> {
        self.untold.take()
    }

    pub(super) fn clear(&mut self, faults: u32) {
        self.fault -= DeviceFault::from_bits_truncate(faults);
    }

    /// A good ENABLE: starts with empty queues (R12).
    pub(super) fn start(&mut self, session: Session) {
        self.session = Some(session);
        (self.refused, self.draining, self.busy, self.abort) = (0, false, false, None);
        self.counters.fill(0);
        self.posted = 0;
        (self.by_reset, self.dead) = (false, false);
    }

    /// A disable: nothing outlives it but faults, and how far the queues came.
    pub fn stop(&mut self) {
        if let Some(session) = self.session.take() {
            self.ends = [session.sq.head, session.cq.tail];
        }
        (self.draining, self.busy, self.abort) = (false, false, None);
        self.interrupt.forget();
    }

    pub(super) fn drain(&mut self) {
        self.draining = self.session.is_some();
    }

    /// Whether CONTROL.DRAIN was written: then no doorbell is taken.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether it drains and nothing is left: then it is to be disabled.
    pub fn is_drained(&self) -> bool {
        self.draining && self.is_idle() && !self.dead
    }

    /// Publishes the slots below `tail` (R1).
    #[inline]
    pub(super) fn ring_doorbell(&mut self, tail: u32) -> Result<(), Refused> {
        match &mut self.session {
            Some(Session { sq, .. })
                if between(sq.tail, tail, sq.head.wrapping_add(sq.depth.slots()))
                    && !self.draining
                    && !self.dead =>
            {
                sq.tail = tail;
                Ok(())
            }
            _ => self.refuse_doorbell(),
        }
    }

    /// Releases the completions below `head` (R4).
    #[inline]
    pub(super) fn release_completions(&mut self, head: u32) -> Result<(), Refused> {
        match &mut self.session {
            Some(session) if between(session.cq.head, head, session.cq.tail) => {
                session.cq.head = head;
                Ok(())
            }
            _ => self.refuse_doorbell(),
        }
    }

    /// Catches up with doorbells and releases that a device elsewhere has taken without these registers.
    pub fn catch_up(&mut self, sq_tail: u32, cq_head: u32) {
        if let Some(session) = &mut self.session {
            session.sq.tail = sq_tail;
            if !between(session.cq.head, cq_head, session.cq.tail) {
                session.cq.tail = cq_head;
            }
            session.cq.head = cq_head;
        }
    }

    #[cold]
    fn refuse_doorbell(&mut self) -> Result<(), Refused> {
        self.refused = self.refused.saturating_add(1);
        Err(Refused)
    }

    /// Ends the DECODEs of `rollout` that are published (R8); of a dead queue pair none goes on.
    pub(super) fn write_abort(&mut self, rollout: u32) -> Result<(), Refused> {
        match &self.session {
            Some(_) if self.dead => {
                self.aborted = rollout;
                Ok(())
            }
            Some(session) if self.abort.is_none() => {
                self.abort = Some(Abort { rollout, upto: session.sq.tail });
                self.aborted = rollout;
                self.settle_abort();
                Ok(())
            }
            _ => Err(Refused),
        }
    }

    /// What ABORT was written last.
    pub(super) fn aborted(&self) -> u32 {
        self.aborted
    }

    /// The ABORT that has not come to all that it ends.
    #[inline]
    pub fn abort(&self) -> Option<Abort> {
        self.abort
    }

    /// Forgets the ABORT if all that was published before it has been consumed and completed up to `index`; who executes
    /// calls it before it begins with that.
    #[inline]
    pub fn come_to(&mut self, index: u32) {
        if self.abort.is_some_and(|abort| !abort.is_ahead_of(index)) {
            self.abort = None;
        }
    }

    /// Forgets the ABORT once nothing that it could end is left; who executes calls it where it has taken a step.
    #[inline]
    pub fn settle_abort(&mut self) {
        if let (Some(abort), Some(session)) = (self.abort, &self.session)
            && !abort.is_ahead_of(session.sq.head)
            && !self.busy
        {
            self.abort = None;
        }
    }

    /// Forgets the ABORT, which has come to all that it ends, as a device elsewhere says.
    pub fn forget_abort(&mut self) {
        self.abort = None;
    }

    /// Arms the interrupt (R14); `now` in ticks.
    pub(super) fn write_arm(&mut self, index: u32, now: u64) -> Result<(), Refused> {
        let session = self.session.as_ref().ok_or(Refused)?;
        if self.dead {
            return Ok(());
        }
        let visible = Visible { below: session.cq.tail, count: self.posted };
        self.interrupt.arm(index, visible, session.coalescing, now);
        Ok(())
    }

    /// What ARM reads.
    pub(super) fn armed_at(&self) -> u32 {
        self.interrupt.index()
    }

    /// ARM was written, and it has not fired since.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.interrupt.is_armed()
    }

    /// It has fired, and its message is not sent.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.interrupt.is_pending()
    }

    /// Takes what is pending, to send its message.
    pub(super) fn take_pending(&mut self) -> bool {
        self.interrupt.take()
    }

    /// Notes that another completion counts for the interrupt, and whether it asks for one.
    #[inline]
    pub(super) fn note_posted(&mut self, asks: bool) {
        self.posted += 1;
        if let Some(session) = &self.session
            && asks
        {
            self.interrupt.ask(session.cq.tail.wrapping_sub(1));
        }
    }

    /// Fires if it is time to; `now` in ticks.
    pub(super) fn look_at_interrupt(&mut self, now: u64) {
        if let Some(session) = &self.session {
            let visible = Visible { below: session.cq.tail, count: self.posted };
            self.interrupt.look(visible, session.coalescing, now);
        }
    }

    /// Fires if a completion at or above ARM is visible, as at the end of a drain.
    pub fn fire_last(&mut self) {
        if let Some(session) = &self.session {
            self.interrupt.fire_last(Visible { below: session.cq.tail, count: self.posted });
        }
    }

    /// When COALESCE_TIME is over, in ticks, if it runs.
    pub(super) fn interrupt_deadline(&self) -> Option<u64> {
        self.interrupt.deadline()
    }

    fn is_idle(&self) -> bool {
        !self.busy && self.session.as_ref().is_none_or(|session| session.sq.fill() == 0)
    }

    pub(super) fn control(&self) -> Control {
        let mut control = Control::empty();
        control.set(Control::ENABLE, self.session.is_some());
        control.set(Control::DRAIN, self.draining);
        control
    }

    pub(super) fn doorbell(&self) -> u32 {
        self.session.as_ref().map_or(self.ends[0], |session| session.sq.tail)
    }

    pub(super) fn cq_head(&self) -> u32 {
        self.session.as_ref().map_or(self.ends[1], |session| session.cq.head)
    }

    pub(super) fn sq_head(&self) -> u32 {
        self.session.as_ref().map_or(self.ends[0], |session| session.sq.head)
    }

    pub(super) fn cq_tail(&self) -> u32 {
        self.session.as_ref().map_or(self.ends[1], |session| session.cq.tail)
    }

    pub(super) fn state(&self) -> State {
        let mut state = State::empty();
        state.set(State::ACTIVE, self.is_active());
        state.set(State::IDLE, self.is_idle());
        state.set(State::FAULT, !self.fault.is_empty());
        state.set(State::ABORTING, self.abort.is_some());
        state.set(State::ARMED, self.is_armed());
        state.set(State::DEAD, self.dead && self.is_active());
        state
    }

    pub(super) fn status(&self) -> u32 {
        let fill = |ring: fn(&Session) -> &Ring| {
            self.session.as_ref().map_or(0, |session| ring(session).fill().min(0xFF))
        };
        fill(|session| &session.sq) << 16 | fill(|session| &session.cq) << 8 | u32::from(self.refused)
    }
}
