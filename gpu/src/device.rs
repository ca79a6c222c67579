//! A GPU as a device: its registers are the host's, and what matters of them to the kernel goes through the mailboxes, one for
//! each queue pair.

use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::{Block, Capability, Counter, DeviceFault, HwEvent, Place, QueueCounter, Register};
use doorbell_host::memory::PAGE;
use doorbell_host::queue::between;
use doorbell_host::registers::{Built, Region, Registers, Session};
use doorbell_host::{Awaited, DeviceError, Line, Pages, Platform, SharedMemory};

use crate::engine::Engine;
use crate::layout;
use crate::line::{Message, OwnLine, SharedLine, Watch};
use crate::phases::Phases;

/// How long a session may take to end when its device is dropped (R15).
const PATIENCE: Duration = Duration::from_secs(10);

/// Descriptors of a queue pair that may run at a time: places of the kernel, of which one is never given out.
const WORKERS: u32 = 2047;

/// How long one `advance` waits at most, if not told otherwise.
const SLICE: Duration = Duration::from_micros(100);

/// The kernel's clock counts nanoseconds (R23).
const TICK_HZ: u32 = 1_000_000_000;

/// Looks at the kernel while the events of completions that are visible are on their way: it takes microseconds.
const EVENT_LOOKS: u32 = 32;

/// What a queue pair counts, by place in the register page.
type Counts = [u64; Counter::ALL.len()];

/// The queue pairs of an [`Engine`], as one device: as many functions as queue pairs at most. By itself it is queue pair 0 of
/// function 0; [`Ports`](doorbell_host::Ports) divides it.
pub struct GpuDevice {
    engine: Arc<dyn Engine>,
    registers: Registers,
    lines: Vec<Arc<SharedLine>>,
    memory: SharedMemory,
    /// What the sessions that are over have counted, of each queue pair.
    counted: Vec<Counts>,
    /// How often each function has begun anew (R18).
    lives: Vec<u32>,
    /// Events of each function that were dropped by the sessions that are over, since its ring started, and by the host.
    lost: Vec<u32>,
    /// Events that these sessions have written, and the end of the last slots that they were given.
    written: Vec<(u32, u32)>,
    watch: Watch,
    /// Of queue pair 0, whose driver has the device alone.
    message: Message,
}

impl GpuDevice {
    /// The device of all queue pairs of `engine`, which nobody else may use.
    ///
    /// # Errors
    /// `OutOfBounds` if its queue pairs are not there.
    pub fn new(engine: Arc<dyn Engine>) -> Result<Self, DeviceError> {
        let queues = engine.queues();
        let lines = (0..queues).map(|queue| Ok(Arc::new(SharedLine::new(engine.clone(), queue)?)));
        let lines: Vec<Arc<SharedLine>> = lines.collect::<Result<_, DeviceError>>()?;
        let features = Capability::PREFILL
            | Capability::REWARD
            | Capability::RESIDENT
            | Capability::SLOT_POLLING
            | Capability::LOGP
            | Capability::POLICY
            | Capability::ABORT
            | Capability::EVENTS
            | Capability::TRUNCATION;
        let built = Built {
            features,
            workers: WORKERS,
            queues: queues as u8,
            functions: queues as u8,
            // Checked when a queue pair is enabled, and then trusted: hence no ISOLATED.
            windows: true,
            engines: engine.engines(),
            // As the kernel's table in engine.cuh.
            reward_models: 2,
            groups: layout::GROUPS,
            tick_hz: TICK_HZ,
        };
        Ok(Self {
            registers: Registers::new(built),
            memory: engine.memory()?,
            counted: vec![[0; _]; queues],
            lives: vec![0; queues],
            lost: vec![0; queues],
            written: vec![(0, 0); queues],
            watch: Watch::new(lines.clone(), SLICE),
            message: Message::default(),
            lines,
            engine,
        })
    }

    /// How often the front end of a queue pair has looked at its mailbox, as last told.
    ///
    /// # Panics
    /// If there is no such queue pair.
    pub fn heartbeat(&self, queue: usize) -> u32 {
        self.lines[queue].mailbox.heartbeat()
    }

    /// Bytes of device memory in which keys and values stay between descriptors (rule R26).
    pub fn kept_bytes(&self) -> u64 {
        self.engine.kept_bytes()
    }

    /// Where the time of teams' steps went so far, each of which its leader tells at its end; `None` if the kernel was not compiled for it
    /// ([`GpuOptions::phases`](crate::GpuOptions::phases)).
    pub fn phases(&self) -> Option<Phases> {
        self.engine.phases()
    }

    /// Sets the time that one `advance` waits at most, 100 us by default: longer for a kernel that is slow because it is
    /// being watched. What was divided before keeps its own.
    pub fn set_slice(&mut self, slice: Duration) {
        self.watch.slice = slice;
    }

    fn line_of(&self, queue: u8) -> &SharedLine {
        &self.lines[usize::from(queue)]
    }

    fn queues(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.lines.len() as u8
    }

    #[cold]
    fn refused(&self, register: Register, value: u32) -> DeviceError {
        DeviceError::WriteRefused { device: self.engine.name().to_owned(), register, value }
    }

    /// Brings the registers of a queue pair up to what its driver did, and to what the kernel last told.
    fn sync(&mut self, queue: u8) {
        let at = usize::from(queue);
        let line = &self.lines[at];
        let (mailbox, registers) = (&line.mailbox, &mut self.registers);
        // Asked once: what it says at the end of a session is to be all of it.
        let is_reached = mailbox.is_reached();
        if registers.queue(queue).is_active() && is_reached {
            // A front end counts for its own queue pair.
            for counter in QueueCounter::ALL {
                registers.queue_mut(queue).set_counter(counter, mailbox.counter(counter.of_device()));
            }
        }
        if registers.queue(queue).is_ending() {
            if is_reached {
                let status = mailbox.status();
                self.end_events(queue);
                let (mailbox, registers) = (&self.lines[at].mailbox, &mut self.registers);
                registers.queue_mut(queue).ended(status.sq_head, status.cq_tail);
                for counter in Counter::ALL {
                    let total = &mut self.counted[at][counter as usize];
                    *total = total.saturating_add(mailbox.counter(counter));
                }
            }
            return;
        }
        let Some(function) = registers.queue(queue).session.as_ref().map(|session| session.function) else {
            return;
        };
        let [[consumed, published], [released, written]] = line.indices();
        let status = mailbox.status();
        let page = &self.lines[usize::from(function)].mailbox;
        registers.policies_mut(function).show(page.policy_slots());
        let registers = registers.queue_mut(queue);
        registers.catch_up(published, released);
        if registers.abort().is_some() && mailbox.is_abort_over() {
            registers.forget_abort();
        }
        let Some(session) = &mut registers.session else { return };
        // Until the kernel has come to this session it tells of the one before.
        for head in [Some(consumed), is_reached.then_some(status.sq_head)].into_iter().flatten() {
            if between(session.sq.head, head, session.sq.tail) {
                session.sq.head = head;
            }
        }
        for tail in [Some(written), is_reached.then_some(status.cq_tail)].into_iter().flatten() {
            if between(session.cq.tail, tail, session.cq.head.wrapping_add(session.cq.depth.slots())) {
                session.cq.tail = tail;
            }
        }
        let busy = self.is_busy(queue);
        let registers = self.registers.queue_mut(queue);
        registers.busy = busy;
        // Where nothing is left the kernel's word need not be waited for.
        registers.settle_abort();
        if registers.is_drained() {
            self.end(queue);
        }
    }

    /// The same of all queue pairs.
    fn sync_all(&mut self) {
        for queue in self.queues() {
            self.sync(queue);
        }
    }

    /// Brings EQ_TAIL and EVENTS_DROPPED of a function that runs up to what its front ends have written. They share the ring,
    /// and none of them knows how far the others are; so what is written is what lies in memory. Somebody may have laid memory
    /// out anew over that: where as many are written as there are slots up to the last that was given, all are.
    fn sync_events(&mut self, function: u8) {
        let Some(ring) = self.registers.event_ring(function) else { return };
        if !self.registers.is_function_active(function) {
            return;
        }
        let at = usize::from(function);
        let dropped = self.members(function).map(|line| line.mailbox.told().1);
        let dropped = dropped.fold(self.lost[at], u32::saturating_add);
        let [head, tail, _] = self.registers.event_words(function);
        let (written, end) = self
            .members(function)
            .fold(self.written[at], |before, line| together(before, line.mailbox.written(), tail));
        let found = self.lines[0].events_up_to(&ring, head, tail);
        let all = written == end && end.wrapping_sub(tail) <= ring.depth.slots();
        let tail =
            if all && between(found, end, head.wrapping_add(ring.depth.slots())) { end } else { found };
        self.registers.show_events(function, tail, dropped);
    }

    /// The lines of the queue pairs of a function that have a session, or had one that is not over.
    fn members(&self, function: u8) -> impl Iterator<Item = &SharedLine> {
        let of = move |queue: &u8| {
            self.registers.owner(*queue) == u32::from(function) && self.registers.queue(*queue).is_active()
        };
        self.queues().filter(of).map(|queue| self.line_of(queue))
    }

    /// The session of a queue pair is over: what it dropped stays counted, and so is a FAULT to which it has not come.
    fn end_events(&mut self, queue: u8) {
        let function = self.registers.owner(queue) as u8;
        self.sync_events(function);
        let mailbox = &self.line_of(queue).mailbox;
        let dropped = mailbox.told().1.saturating_add(u32::from(!mailbox.is_fault_told()));
        let lost = &mut self.lost[usize::from(function)];
        *lost = lost.saturating_add(dropped);
        if self.registers.event_ring(function).is_some() {
            let [_, tail, _] = self.registers.event_words(function);
            let at = usize::from(function);
            self.written[at] = together(self.written[at], self.line_of(queue).mailbox.written(), tail);
            let lost = &mut self.lost[usize::from(function)];
            let lost = *lost;
            let others = self.members(function).filter(|&line| !std::ptr::eq(line, self.line_of(queue)));
            let all = others.map(|line| line.mailbox.told().1).fold(lost, u32::saturating_add);
            let [_, tail, _] = self.registers.event_words(function);
            self.registers.show_events(function, tail, all);
        }
    }

    /// Waits until the events of the completions that the host of `function` can see are there, or are counted: for some
    /// microseconds, but not for a kernel that does not come to it.
    fn wait_for_events(&mut self, function: u8) -> Result<(), DeviceError> {
        let Some(ring) = self.registers.event_ring(function) else { return Ok(()) };
        for _ in 0..EVENT_LOOKS {
            let start = Instant::now();
            while self.members(function).any(|line| line.is_untold(ring.life)) {
                if start.elapsed() >= self.watch.slice / EVENT_LOOKS {
                    break;
                }
                hint::spin_loop();
            }
            if !self.members(function).any(|line| line.is_untold(ring.life)) {
                break;
            }
            self.engine.check()?;
        }
        Ok(())
    }

    /// Has the faults that no event has told of told by a front end of their function (R23).
    fn tell_faults(&mut self) {
        for queue in self.queues() {
            let Some(event) = self.registers.take_fault_event(queue) else { continue };
            let function = self.registers.owner(queue) as u8;
            if self.registers.event_ring(function).is_none() {
                continue;
            }
            let runs = |queue: &u8| {
                self.registers.owner(*queue) == u32::from(function)
                    && self.registers.queue(*queue).session.is_some()
                    && self.line_of(*queue).mailbox.is_fault_told()
            };
            match self.queues().find(runs) {
                Some(teller) => self.line_of(teller).mailbox.tell_fault(&event),
                // No room on its way.
                None => {
                    let lost = &mut self.lost[usize::from(function)];
                    *lost = lost.saturating_add(1);
                }
            }
        }
    }

    /// Whether a published descriptor is without its completion. A completion's `sq_head` does not tell: it is ahead of
    /// descriptors that the kernel has read and that wait for their turn.
    fn is_busy(&self, queue: u8) -> bool {
        let Some(session) = &self.registers.queue(queue).session else { return false };
        let line = self.line_of(queue);
        if !line.mailbox.is_reached() {
            return session.sq.fill() > 0;
        }
        let status = line.mailbox.status();
        // It is told every few rounds: where completions have told of more, what it says of the others is too old as well. And what the
        // check words alone have published is beyond the tail (R1).
        let is_old = (status.sq_head.wrapping_sub(session.sq.head) as i32) < 0;
        let waits = session.sq.tail.wrapping_sub(status.sq_head) as i32 > 0;
        if is_old || waits || status.outstanding > 0 {
            return true;
        }
        // The kernel counts a completion when it has written it; here it may come a little later.
        let posted = status.cq_tail.wrapping_sub(session.cq.head);
        posted <= session.cq.depth.slots()
            && (0..posted).any(|k| !line.is_fresh(session.cq.head.wrapping_add(k)))
    }

    /// The kernel is to end the session of a queue pair, which is over here.
    fn end(&mut self, queue: u8) {
        let registers = self.registers.queue_mut(queue);
        registers.stop();
        registers.wait_for_the_end();
        let line = self.line_of(queue);
        line.close();
        line.mailbox.stop();
    }

    /// ENABLE was written and the configuration is good: starts a session, if the kernel can reach all of it. `first` says
    /// that no queue pair of its function is active.
    fn start(&mut self, queue: u8, session: &Session, first: bool) {
        let within = |base: u64, bytes: u64| self.is_mapped(base, bytes);
        let (sq, cq) = (session.sq, session.cq);
        let ring = self.registers.event_ring(session.function);
        if !(within(sq.base, 64 * u64::from(sq.depth.slots()))
            && within(cq.base, 32 * u64::from(cq.depth.slots()))
            && (session.token_size == 0 || within(session.token_base, session.token_size))
            && (session.logp_size == 0 || within(session.logp_base, session.logp_size))
            && (self.engine.engines() == 1 || self.reaches_language(session))
            && ring.is_none_or(|ring| {
                within(ring.base, size_of::<HwEvent>() as u64 * u64::from(ring.depth.slots()))
            }))
        {
            // R11: nothing but what was mapped.
            let queue = self.registers.queue_mut(queue);
            queue.stop();
            return queue.raise(DeviceFault::BAD_CONFIG);
        }
        let function = usize::from(session.function);
        if first {
            // R18: nobody has told the kernel of this function.
            self.lives[function] = self.lives[function].wrapping_add(1);
            let slots = self.registers.policies(session.function);
            self.lines[function].mailbox.show_policy_slots([slots.word(0), slots.word(1)]);
            self.lost[function] = 0;
            self.written[function] = (0, 0);
        }
        let workers = if session.workers == u32::MAX { 0 } else { session.workers.count_ones() };
        let line = self.line_of(queue);
        let [head, ..] = self.registers.event_words(session.function);
        line.mailbox.start(session, workers, self.lives[function], ring.map(|ring| (ring, head)));
        line.open(session);
        // The kernel counts from 0 in each session.
    }

    /// Waits until the kernel has come to the end of the sessions that are over. What it waits for are steps of rollouts that run; an engine that has died
    /// writes nothing any more.
    fn wait_for_the_end(&self) -> Result<(), DeviceError> {
        let start = Instant::now();
        while !self.lines.iter().all(|line| line.mailbox.is_reached()) && self.engine.check().is_ok() {
            if start.elapsed() > PATIENCE {
                return Err(DeviceError::Failed {
                    device: self.engine.name().to_owned(),
                    what: format!(
                        "a session did not end within {PATIENCE:?}, so the kernel may still write its memory; close the device, and \
                         open it anew"
                    ),
                });
            }
            hint::spin_loop();
        }
        Ok(())
    }

    /// Whether the kernel can reach the regions of engine 1.
    fn reaches_language(&self, session: &Session) -> bool {
        let kv = Region { base: session.kv_base, size: session.kv_size };
        let mut regions = session.arenas.iter().chain([&session.model, &kv]);
        regions.all(|region| region.size == 0 || self.is_mapped(region.base, region.size))
    }

    /// Whether all of it lies in the memory that the kernel has.
    fn is_mapped(&self, base: u64, bytes: u64) -> bool {
        let offset = base.wrapping_sub(self.memory.bus_address());
        offset.checked_add(bytes).is_some_and(|end| end <= self.memory.len() as u64)
    }

    /// A write that may start, drain or end sessions.
    fn write_control(&mut self, register: Register, place: Place, value: u32) -> Result<(), DeviceError> {
        self.sync_all();
        let was_idle = self.registers.queues().iter().all(|queue| !queue.is_active());
        let was_first = !self.registers.is_function_active(place.function);
        let before: Vec<bool> = self.registers.queues().iter().map(|queue| queue.session.is_some()).collect();
        self.write_registers(register, place, value)?;
        for (queue, was_active) in self.queues().zip(before) {
            let registers = self.registers.queue(queue);
            match (was_active, registers.session.clone()) {
                (false, Some(session)) => {
                    if was_idle {
                        self.counted.fill([0; _]);
                    }
                    self.start(queue, &session, was_first);
                }
                (true, None) => self.end(queue),
                (true, Some(_)) if registers.is_draining() => self.line_of(queue).drain(),
                _ => {}
            }
        }
        self.tell_faults();
        Ok(())
    }

    /// EQ_HEAD = `head`, if so many events are written.
    fn release_events(&mut self, place: Place, head: u32) -> Result<(), DeviceError> {
        self.sync_all();
        if place.function < self.lines.len() as u8 {
            self.sync_events(place.function);
        }
        self.write_registers(Register::EqHead, place, head)?;
        for line in self.members(place.function) {
            line.mailbox.release_events(head);
        }
        Ok(())
    }

    /// A doorbell or a release that its line has not taken.
    #[cold]
    fn write_index(&mut self, register: Register, place: Place, value: u32) -> Result<(), DeviceError> {
        self.sync(place.queue);
        if register == Register::Doorbell {
            self.take_told(place.queue);
        }
        self.write_registers(register, place, value)?;
        let line = self.line_of(place.queue);
        if let Some(session) = &self.registers.queue(place.queue).session {
            line.adopt(session);
        }
        if register == Register::Doorbell {
            line.mailbox.ring(value);
        } else {
            line.mailbox.release(value);
        }
        Ok(())
    }

    /// Takes over what the completions say of the slots consumed. By a check word alone a slot may be consumed above the tail (R1).
    fn take_told(&mut self, queue: u8) {
        let told = self.line_of(queue).told();
        let Some((told, session)) = told.zip(self.registers.queue_mut(queue).session.as_mut()) else {
            return;
        };
        let sq = &mut session.sq;
        // A host that has read that all is consumed may fill the ring anew, and what it has written may have been consumed by now as well.
        if between(sq.head, told, sq.head.wrapping_add(2 * sq.depth.slots())) {
            sq.head = told;
            if !between(told, sq.tail, told.wrapping_add(sq.depth.slots())) {
                sq.tail = told;
            }
        }
    }

    /// ABORT = `rollout`: what the kernel has to end, if there is anything.
    fn abort(&mut self, place: Place, rollout: u32) -> Result<(), DeviceError> {
        self.sync(place.queue);
        self.write_registers(Register::Abort, place, rollout)?;
        if let Some(abort) = self.registers.queue(place.queue).abort() {
            self.line_of(place.queue).mailbox.abort(abort);
        }
        Ok(())
    }

    #[inline]
    fn write_registers(&mut self, register: Register, place: Place, value: u32) -> Result<(), DeviceError> {
        match self.registers.write(register, place, value) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refused(register, value)),
        }
    }

    /// Sets the counters to what all queue pairs have counted. Their front ends run at the same time, so cycles are those of
    /// the one that ran longest.
    fn sum(&mut self) {
        for counter in Counter::ALL {
            let counts = self.lines.iter().zip(&self.counted).zip(self.registers.queues()).map(
                |((line, counted), queue)| {
                    let now = if queue.is_active() { line.mailbox.counter(counter) } else { 0 };
                    counted[counter as usize].saturating_add(now)
                },
            );
            let all = if counter == Counter::Cycles { counts.max().unwrap_or(0) } else { counts.sum() };
            self.registers.set_counter(counter, all);
        }
    }
}

/// What two have written together, and the end of the last slots of the ring that either was given; `tail` is no further than a ring
/// before it.
fn together(one: (u32, u32), other: (u32, u32), tail: u32) -> (u32, u32) {
    // One that has written none was given none.
    let ahead =
        |(written, end): (u32, u32)| if written == 0 { i32::MIN } else { end.wrapping_sub(tail) as i32 };
    let end = if ahead(one) >= ahead(other) { one.1 } else { other.1 };
    (one.0.wrapping_add(other.0), end)
}

impl Platform for GpuDevice {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let (len, capacity) = (bytes.max(1).next_multiple_of(PAGE), self.memory.len());
        if len > capacity {
            return Err(DeviceError::Memory {
                bytes,
                reason: format!("{} was opened with {capacity} bytes", self.engine.name()),
            });
        }
        // Nobody may write what is cleared: who had the device before may have left it running.
        for queue in self.queues() {
            if self.registers.queue(queue).session.is_some() {
                self.end(queue);
            }
        }
        self.wait_for_the_end()?;
        let memory = self.memory.part(0, len)?;
        memory.clear();
        Ok(memory)
    }

    #[inline]
    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn advance(&mut self, _want: usize) -> Result<(), DeviceError> {
        self.watch.advance()
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.message.route(memory, offset);
        Ok(())
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.watch.wait(awaited, deadline)?;
        self.message.look(&self.lines[0], awaited)
    }

    fn runs_alone(&self) -> bool {
        true
    }

    /// Of the kernel the host sees completions, and tokens in memory.
    fn shows_workers(&self) -> bool {
        false
    }

    fn report(&mut self) -> Option<String> {
        if let [line] = &self.lines[..] {
            return Some(line.report());
        }
        let active = self.queues().filter(|&queue| self.registers.queue(queue).is_active());
        let reports = active.map(|queue| format!("queue pair {queue}: {}", self.line_of(queue).report()));
        Some(reports.collect::<Vec<_>>().join("; ")).filter(|report| !report.is_empty())
    }
}

impl Pages for GpuDevice {
    #[inline]
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        let Some(line) = self.lines.get(usize::from(place.queue)) else {
            if register.block().per_queue() == 0 {
                return self.write_at(Place { queue: 0, ..place }, register, value);
            }
            return Err(self.refused(register, value));
        };
        match register {
            Register::Doorbell if line.ring(value) => Ok(()),
            Register::CqHead if line.release(value) => Ok(()),
            Register::Doorbell | Register::CqHead => self.write_index(register, place, value),
            Register::Control | Register::FnControl => self.write_control(register, place, value),
            Register::Abort => self.abort(place, value),
            Register::EqHead => self.release_events(place, value),
            _ => {
                self.sync_all();
                self.write_registers(register, place, value)
            }
        }
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        if register.block() == Block::Queue && place.queue < self.lines.len() as u8 {
            self.sync(place.queue);
        } else {
            self.sync_all();
            let of_events = matches!(register, Register::EqHead | Register::EqTail | Register::EventsDropped);
            if of_events && place.function < self.lines.len() as u8 {
                if register != Register::EqHead {
                    self.wait_for_events(place.function)?;
                }
                self.sync_events(place.function);
            }
            if Counter::ALL.into_iter().any(|counter| [counter.lo(), counter.hi()].contains(&register)) {
                self.sum();
            }
        }
        let read = self.registers.read(register, place);
        read.map_err(|_| DeviceError::ReadRefused { device: self.engine.name().to_owned(), register })
    }

    fn advance_for(&mut self, place: Place, _want: usize) -> Result<(), DeviceError> {
        let line = self.lines.get(usize::from(place.queue));
        let line = line.ok_or_else(|| DeviceError::ReadRefused {
            device: self.engine.name().to_owned(),
            register: Register::CqTail,
        })?;
        self.watch.advance_for(line)
    }

    fn line(&mut self, place: Place) -> Option<Box<dyn Line>> {
        let line = self.lines.get(usize::from(place.queue))?;
        Some(Box::new(OwnLine::new(line.clone(), self.watch.slice)))
    }
}

impl Drop for GpuDevice {
    fn drop(&mut self) {
        for queue in self.queues() {
            if self.registers.queue(queue).session.is_some() {
                self.end(queue);
            }
        }
        // The memory may go to somebody else: no session must outlive its device.
        if self.wait_for_the_end().is_err() {
            eprintln!(
                "warning: {}: a session did not end within {PATIENCE:?}; its memory is not freed",
                self.engine.name()
            );
            // It may still be written: nobody else gets it.
            std::mem::forget((self.engine.clone(), self.memory.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use doorbell_contract::{Control, FunctionControl, HwCompletion, HwDesc, State};
    use doorbell_host::device::Device;
    use doorbell_host::{Driver, QueueConfig};

    use super::*;

    /// Acknowledges sessions at once, and does nothing else.
    struct Still {
        mailbox: SharedMemory,
        memory: SharedMemory,
        checks: AtomicU32,
    }

    impl Engine for Still {
        fn name(&self) -> &str {
            "still"
        }

        fn queues(&self) -> usize {
            1
        }

        fn engines(&self) -> u32 {
            1
        }

        fn mailbox(&self, _queue: usize) -> Result<SharedMemory, DeviceError> {
            Ok(self.mailbox.clone())
        }

        fn memory(&self) -> Result<SharedMemory, DeviceError> {
            Ok(self.memory.clone())
        }

        fn check(&self) -> Result<(), DeviceError> {
            let wanted = self.mailbox.word32(layout::WANTED)?.load(Ordering::Acquire);
            self.mailbox.word32(layout::REACHED)?.store(wanted, Ordering::Release);
            self.checks.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn r04_half_a_completion_is_no_news() {
        let memory = SharedMemory::allocate(1 << 20, 1 << 32).unwrap();
        let mailbox = SharedMemory::allocate(PAGE, 1 << 32).unwrap();
        let engine = Arc::new(Still { mailbox, memory: memory.clone(), checks: AtomicU32::new(0) });
        let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
        let mut driver = Driver::new(GpuDevice::new(engine.clone()).unwrap(), config).unwrap();
        driver.platform_mut().advance(1).unwrap();
        driver.submit(&[HwDesc::nop()]).unwrap();
        let cq = driver.layout().cq;
        let word = |k: usize, value: u64| memory.word64(cq + 8 * k).unwrap().store(value, Ordering::Release);
        // One half is there, and the other is not.
        word(3, HwCompletion::PHASE);
        let checks = engine.checks.load(Ordering::Relaxed);
        driver.platform_mut().advance(1).unwrap();
        assert_eq!(engine.checks.load(Ordering::Relaxed), checks + 1, "half a completion was taken for news");
        word(1, HwCompletion::PHASE);
        driver.platform_mut().advance(1).unwrap();
        assert_eq!(engine.checks.load(Ordering::Relaxed), checks + 1, "a whole completion was waited for");
    }

    /// R11: an empty region lies everywhere, as on every other device.
    #[test]
    fn r11_an_empty_token_region_needs_no_memory() {
        let memory = SharedMemory::allocate(1 << 20, 1 << 32).unwrap();
        let mailbox = SharedMemory::allocate(PAGE, 1 << 32).unwrap();
        let engine = Arc::new(Still { mailbox, memory, checks: AtomicU32::new(0) });
        let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
        let mut device =
            Driver::new(GpuDevice::new(engine.clone()).unwrap(), config).unwrap().into_platform();
        for base in [0, 1 << 20, !63] {
            device.write_register(Register::Control, 0).unwrap();
            engine.check().unwrap();
            let registers = [
                (Register::TokenBaseLo, base),
                (Register::TokenBaseHi, 0),
                (Register::TokenSizeLo, 0),
                (Register::TokenSizeHi, 0),
                (Register::Control, Control::ENABLE.bits()),
            ];
            registers
                .into_iter()
                .for_each(|(register, value)| device.write_register(register, value).unwrap());
            let state = State::from_bits_retain(device.read_register(Register::State).unwrap());
            let fault = device.read_register(Register::Error).unwrap();
            assert_eq!((state.contains(State::ACTIVE), fault), (true, 0), "TOKEN_BASE {base:#x}");
        }
        engine.check().unwrap();
    }

    /// R15: one long wait for what never comes is many advances, whether the host looks for a completion or for its interrupt.
    #[rstest::rstest]
    fn r15_a_long_wait_for_nothing_is_a_timeout(#[values(false, true)] armed: bool) {
        let memory = SharedMemory::allocate(1 << 20, 1 << 32).unwrap();
        let mailbox = SharedMemory::allocate(PAGE, 1 << 32).unwrap();
        let engine = Arc::new(Still { mailbox, memory, checks: AtomicU32::new(0) });
        let config = QueueConfig { token_bytes: 1 << 16, patience: 3, ..Default::default() };
        let mut driver = Driver::new(GpuDevice::new(engine).unwrap(), config).unwrap();
        driver.submit(&[HwDesc::nop()]).unwrap();
        if armed {
            assert!(driver.arm().unwrap());
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(driver.wait(Instant::now() + Duration::from_secs(3600))));
        let waited = receiver.recv_timeout(Duration::from_secs(30)).expect("R15: a wait that does not end");
        assert!(matches!(waited, Err(DeviceError::Timeout(_))), "{waited:?}");
    }

    #[test]
    fn r12_nothing_is_taken_until_the_kernel_has_come_to_the_end() {
        let memory = SharedMemory::allocate(1 << 20, 1 << 32).unwrap();
        let mailbox = SharedMemory::allocate(PAGE, 1 << 32).unwrap();
        let engine = Arc::new(Still { mailbox, memory, checks: AtomicU32::new(0) });
        let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
        let mut device =
            Driver::new(GpuDevice::new(engine.clone()).unwrap(), config).unwrap().into_platform();
        engine.check().unwrap();
        let is_active = |device: &mut GpuDevice| {
            device.read_register(Register::State).unwrap() & State::ACTIVE.bits() != 0
        };
        device.write_register(Register::Control, 0).unwrap();
        assert!(is_active(&mut device), "it may still write memory");
        for register in [Register::Doorbell, Register::SqSize, Register::LengthLimit, Register::WaitStates] {
            assert!(device.write_register(register, 2).is_err(), "{register} while the session ends");
        }
        let enable = device.write_register(Register::Control, Control::ENABLE.bits());
        assert!(enable.is_err(), "ENABLE while the session ends");
        assert_eq!(device.read_register(Register::Control).unwrap(), 0, "ENABLE while the session ends");
        assert_eq!(device.read_register(Register::FnControl).unwrap(), 0, "nobody has reset the function");
        let reset = FunctionControl::RESET.bits();
        device.write_register(Register::FnControl, reset).unwrap();
        assert_eq!(device.read_register(Register::FnControl).unwrap(), reset);
        engine.check().unwrap();
        assert_eq!(device.read_register(Register::FnControl).unwrap(), 0);
        assert!(!is_active(&mut device));
        device.write_register(Register::SqSize, 2).unwrap();
        device.write_register(Register::Control, Control::ENABLE.bits()).unwrap();
        assert!(is_active(&mut device));
        engine.check().unwrap();
    }

    #[test]
    fn counters_of_a_session_count_once() {
        let memory = SharedMemory::allocate(1 << 20, 1 << 32).unwrap();
        let mailbox = SharedMemory::allocate(PAGE, 1 << 32).unwrap();
        let engine = Arc::new(Still { mailbox: mailbox.clone(), memory, checks: AtomicU32::new(0) });
        let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
        let mut device =
            Driver::new(GpuDevice::new(engine.clone()).unwrap(), config).unwrap().into_platform();
        engine.check().unwrap();
        let word = mailbox.word64(layout::COUNTERS + 8 * Counter::Tokens as usize).unwrap();
        word.store(7, Ordering::Release);
        let tokens = |device: &mut GpuDevice| device.read_register(Counter::Tokens.lo()).unwrap();
        assert_eq!(tokens(&mut device), 7);
        device.write_register(Register::Control, 0).unwrap();
        assert_eq!(tokens(&mut device), 7, "while the session ends");
        engine.check().unwrap();
        assert_eq!(tokens(&mut device), 7, "after its end");
        // The mailbox has the numbers of the last session until the kernel has come to the next.
        device.write_register(Register::Control, Control::ENABLE.bits()).unwrap();
        assert_eq!(tokens(&mut device), 0, "at the next ENABLE");
        word.store(0, Ordering::Release);
        engine.check().unwrap();
        word.store(3, Ordering::Release);
        assert_eq!(tokens(&mut device), 3);
    }
}
