//! One queue pair of a GPU, as a platform for the driver: the register page is the host's, and what matters of it to the
//! kernel goes through the mailbox.

use std::hint;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::{
    Access, Capability, Counter, DeviceFault, FunctionControl, HwCompletion, Place, QueueCounter, Register,
    State,
};
use doorbell_host::memory::PAGE;
use doorbell_host::memory::Slots;
use doorbell_host::queue::{self, COMPLETION_WORDS, between};
use doorbell_host::registers::{Built, Registers, Session};
use doorbell_host::{DeviceError, Platform, SharedMemory};

use crate::engine::Engine;
use crate::layout;
use crate::mailbox::Mailbox;

/// How long a session may take to end when its platform is dropped (R15).
const PATIENCE: Duration = Duration::from_secs(10);

/// Descriptors of a queue pair that may run at a time: places of the kernel, of which one is never given out.
const WORKERS: u32 = 1023;

/// How long one `advance` waits at most, if not told otherwise.
const SLICE: Duration = Duration::from_micros(100);

/// 64-bit word of a completion whose high half is `sq_head`.
const SQ_HEAD_WORD: usize = offset_of!(HwCompletion, sq_head) / 8;
const _: () = assert!(offset_of!(HwCompletion, sq_head) % 8 == 4);

/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 64;

/// One queue pair of an [`Engine`].
pub struct GpuPlatform {
    engine: Arc<dyn Engine>,
    registers: Registers,
    mailbox: Mailbox,
    memory: SharedMemory,
    /// `asks` of the mailbox as last seen.
    asks: u32,
    slice: Duration,
    /// CQ head at which `advance` last found news.
    told_at: Option<u32>,
}

impl GpuPlatform {
    /// Queue pair `queue` of `engine`; nobody else may use it.
    ///
    /// # Errors
    /// `OutOfBounds` if there is no such queue pair.
    pub fn new(engine: Arc<dyn Engine>, queue: usize) -> Result<Self, DeviceError> {
        let features = Capability::PREFILL
            | Capability::REWARD
            | Capability::RESIDENT
            | Capability::INTERRUPT
            | Capability::SLOT_POLLING
            | Capability::LOGP
            | Capability::POLICY
            | Capability::ABORT;
        let built = Built {
            features,
            workers: WORKERS,
            // Each queue pair shows itself as a device of its own.
            queues: 1,
            functions: 1,
            windows: false,
            // As the kernel's tables in engine.cuh.
            engines: 1,
            reward_models: 2,
            groups: layout::GROUPS,
        };
        Ok(Self {
            registers: Registers::new(built),
            mailbox: Mailbox::new(engine.mailbox(queue)?)?,
            memory: engine.memory(queue)?,
            engine,
            asks: 0,
            told_at: None,
            slice: SLICE,
        })
    }

    /// How often the front end has looked at its mailbox, as last told.
    pub fn heartbeat(&self) -> u32 {
        self.mailbox.heartbeat()
    }

    /// Sets the time that one `advance` waits at most, 100 us by default: longer for a kernel that is slow because it is
    /// being watched.
    pub fn set_slice(&mut self, slice: Duration) {
        self.slice = slice;
    }

    fn refused(&self, register: Register, value: u32) -> DeviceError {
        DeviceError::WriteRefused { device: self.engine.name().to_owned(), register, value }
    }

    /// Brings the register page up to what the kernel last told.
    fn sync(&mut self) {
        if !self.mailbox.is_reached() {
            return;
        }
        for counter in Counter::ALL {
            self.registers.set_counter(counter, self.mailbox.counter(counter));
        }
        // A front end counts for its own queue pair.
        for counter in QueueCounter::ALL {
            let value = self.registers.counted(counter.of_device());
            self.registers.queue_mut(0).set_counter(counter, value);
        }
        self.registers.policies_mut(0).show(self.mailbox.slots());
        let status = self.mailbox.status();
        let queue = self.registers.queue_mut(0);
        if queue.abort().is_some() && self.mailbox.is_abort_over() {
            queue.forget_abort();
        }
        let Some(session) = &mut queue.session else { return };
        // Completions may have told more.
        if between(session.sq.head, status.sq_head, session.sq.tail) {
            session.sq.head = status.sq_head;
        }
        if between(session.cq.tail, status.cq_tail, session.cq.head.wrapping_add(session.cq.depth.slots())) {
            session.cq.tail = status.cq_tail;
        }
        let visible =
            session.cq.fill() > 0 && between(session.cq.head, status.asked, session.cq.tail.wrapping_sub(1));
        if status.asks != self.asks {
            self.asks = status.asks;
            if visible {
                queue.ask_interrupt(status.asked);
            } else {
                // R14: it has become visible while armed, and the host was faster than its news.
                queue.interrupt();
            }
        }
    }

    /// Whether a published descriptor is without its completion. A completion's `sq_head` does not tell: it is ahead of
    /// descriptors that the kernel has read and that wait for their turn.
    fn is_busy(&self) -> bool {
        let Some(session) = &self.registers.queue(0).session else { return false };
        let status = self.mailbox.status();
        // What the check words alone have published is beyond the tail (R1).
        let waiting = session.sq.tail.wrapping_sub(status.sq_head);
        if status.outstanding > 0 || waiting != 0 && waiting <= session.sq.depth.slots() {
            return true;
        }
        // The kernel counts a completion when it has written it; here it may come a little later.
        let posted = status.cq_tail.wrapping_sub(session.cq.head);
        posted <= session.cq.depth.slots()
            && (0..posted).any(|k| !self.is_fresh(session, session.cq.head.wrapping_add(k)))
    }

    /// The slots of the completion queue.
    fn completions(&self, session: &Session) -> Result<Slots<'_, COMPLETION_WORDS>, DeviceError> {
        let offset = session.cq.base.wrapping_sub(self.memory.bus_address()) as usize;
        self.memory.slots(offset, session.cq.depth.slots())
    }

    /// Whether the completion with this index is there.
    fn is_fresh(&self, session: &Session, index: u32) -> bool {
        self.completions(session).is_ok_and(|slots| queue::is_fresh(&slots, session.cq.depth, index))
    }

    /// ENABLE was written and the configuration is good: starts a session, if the kernel can reach all of it.
    fn start(&mut self, session: &Session) {
        let within = |base: u64, bytes: u64| {
            let offset = base.wrapping_sub(self.memory.bus_address());
            offset.checked_add(bytes).is_some_and(|end| end <= self.memory.len() as u64)
        };
        let (sq, cq) = (session.sq, session.cq);
        if !(within(sq.base, 64 * u64::from(sq.depth.slots()))
            && within(cq.base, 32 * u64::from(cq.depth.slots()))
            && within(session.token_base, session.token_size)
            && (session.logp_size == 0 || within(session.logp_base, session.logp_size)))
        {
            // R11: nothing but what was mapped.
            let queue = self.registers.queue_mut(0);
            queue.stop();
            return queue.raise(DeviceFault::BAD_CONFIG);
        }
        let workers = if session.workers == u32::MAX { 0 } else { session.workers.count_ones() };
        self.mailbox.start(session, workers);
        // The kernel counts from 0 in each session.
        self.asks = 0;
        self.told_at = None;
    }

    /// A write that may start or end the session.
    fn write_control(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        let was_active = self.registers.queue(0).session.is_some();
        self.write_refusable(register, value)?;
        match (was_active, self.registers.queue(0).session.clone()) {
            (false, Some(session)) => self.start(&session),
            (true, None) => self.mailbox.stop(),
            _ => {}
        }
        Ok(())
    }

    /// ABORT = `rollout`: what the kernel has to end, if there is anything.
    fn abort(&mut self, rollout: u32) -> Result<(), DeviceError> {
        self.sync();
        let busy = self.is_busy();
        let queue = self.registers.queue_mut(0);
        queue.busy = busy;
        queue.settle_abort();
        self.write_refusable(Register::Abort, rollout)?;
        if let Some(abort) = self.registers.queue(0).abort() {
            self.mailbox.abort(abort);
        }
        Ok(())
    }

    /// CQ_HEAD = `head`: what lies below must have been written, which the slot below it shows. It also tells how many
    /// SQ slots are free again.
    #[inline]
    fn release_completions(&mut self, head: u32) -> Result<(), DeviceError> {
        let Some(session) = &mut self.registers.queue_mut(0).session else {
            return self.write_refusable(Register::CqHead, head);
        };
        let (cq, last) = (session.cq, head.wrapping_sub(1));
        if !between(cq.head, head, cq.tail) && between(cq.head, head, cq.head.wrapping_add(cq.depth.slots()))
        {
            let slots = self.memory.slots::<COMPLETION_WORDS>(
                cq.base.wrapping_sub(self.memory.bus_address()) as usize,
                cq.depth.slots(),
            )?;
            if queue::is_fresh(&slots, cq.depth, last) {
                session.cq.tail = head;
                let sq_head = (slots.word(last, SQ_HEAD_WORD) >> 32) as u32;
                if between(session.sq.head, sq_head, session.sq.tail) {
                    session.sq.head = sq_head;
                }
            }
        }
        self.write_refusable(Register::CqHead, head)?;
        self.mailbox.release(head);
        Ok(())
    }

    #[inline]
    fn ring_doorbell(&mut self, tail: u32) -> Result<(), DeviceError> {
        if let Some(session) = &self.registers.queue(0).session {
            // Completions tell how far the kernel is; where they have not yet, it is asked.
            if tail.wrapping_sub(session.sq.head) > session.sq.depth.slots() {
                self.sync();
            }
        }
        self.write_refusable(Register::Doorbell, tail)?;
        self.mailbox.ring(tail);
        Ok(())
    }

    #[inline]
    fn write_refusable(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        match self.registers.write(register, Place::FIRST, value) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refused(register, value)),
        }
    }

    /// Whether the next completion that the host has not released is there, or no session runs.
    fn has_news(&self) -> Result<bool, DeviceError> {
        let Some(session) = &self.registers.queue(0).session else { return Ok(self.mailbox.is_reached()) };
        if !self.mailbox.is_reached() {
            return Ok(false);
        }
        Ok(self.is_fresh(session, session.cq.head))
    }
}

impl Platform for GpuPlatform {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let (len, capacity) = (bytes.max(1).next_multiple_of(PAGE), self.memory.len());
        if len > capacity {
            return Err(DeviceError::Memory {
                bytes,
                reason: format!("{} was opened with {capacity} bytes per queue", self.engine.name()),
            });
        }
        let memory = self.memory.part(0, len)?;
        memory.clear();
        Ok(memory)
    }

    #[inline]
    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        match register {
            Register::Doorbell => self.ring_doorbell(value),
            Register::CqHead => self.release_completions(value),
            Register::Control | Register::FnControl => self.write_control(register, value),
            Register::Abort => self.abort(value),
            // The kernel may still hold on to the session that ends.
            _ if register.access() == Access::Config && !self.mailbox.is_reached() => {
                Err(self.refused(register, value))
            }
            _ => {
                if register == Register::Irq {
                    self.sync();
                }
                self.write_refusable(register, value)
            }
        }
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.sync();
        let busy = self.is_busy();
        let queue = self.registers.queue_mut(0);
        queue.busy = busy;
        // Where nothing is left the kernel's word need not be waited for.
        queue.settle_abort();
        if queue.is_drained() {
            queue.stop();
            self.mailbox.stop();
        }
        let read = self.registers.read(register, Place::FIRST);
        let value =
            read.map_err(|_| DeviceError::ReadRefused { device: self.engine.name().to_owned(), register })?;
        // What was asked for may not have happened yet.
        Ok(match register {
            Register::State if !self.mailbox.is_reached() => value ^ State::ACTIVE.bits(),
            Register::FnControl if !self.mailbox.is_reached() => FunctionControl::RESET.bits(),
            _ => value,
        })
    }

    fn advance(&mut self, _want: usize) -> Result<(), DeviceError> {
        let start = Instant::now();
        let head = self.registers.queue(0).session.as_ref().map(|session| session.cq.head);
        // A host that was told and has taken nothing waits for something else: give the device its time.
        let told = head.is_some() && self.told_at == head;
        loop {
            for _ in 0..LOOKS {
                if !told && self.has_news()? {
                    self.told_at = head;
                    return Ok(());
                }
                hint::spin_loop();
            }
            if start.elapsed() >= self.slice {
                return self.engine.check();
            }
        }
    }

    /// Looks without sleeping for one slice, then ever less often: a completion waits at most 500 us to be seen (and what
    /// the system adds to a sleep), and a thread that waits for long wakes 2,000 times a second.
    fn wait(&mut self, deadline: Instant) -> Result<(), DeviceError> {
        self.advance(1)?;
        let mut pause = Duration::from_micros(20);
        while !self.has_news()? {
            self.engine.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(Duration::from_micros(500));
        }
        Ok(())
    }

    fn runs_alone(&self) -> bool {
        true
    }

    fn report(&mut self) -> Option<String> {
        let before = self.mailbox.heartbeat();
        std::thread::sleep(Duration::from_millis(10));
        let alive = if self.mailbox.heartbeat() == before { "does not answer" } else { "answers" };
        Some(format!(
            "front end {alive}, its oldest descriptor waits for {}, {} are outstanding",
            self.mailbox.waits_for(),
            self.mailbox.status().outstanding
        ))
    }
}

impl Drop for GpuPlatform {
    fn drop(&mut self) {
        let queue = self.registers.queue_mut(0);
        if queue.session.is_none() {
            return;
        }
        queue.stop();
        // The memory may go to somebody else: the session must not outlive its driver. What it waits for are steps of
        // rollouts that run; an engine that has died writes nothing any more.
        self.mailbox.stop();
        let start = Instant::now();
        while !self.mailbox.is_reached() && self.engine.check().is_ok() {
            if start.elapsed() > PATIENCE {
                eprintln!(
                    "warning: {}: a session did not end within {PATIENCE:?}; its memory is not freed",
                    self.engine.name()
                );
                // It may still be written: nobody else gets it.
                std::mem::forget((self.engine.clone(), self.memory.clone()));
                return;
            }
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use doorbell_contract::HwDesc;
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

        fn mailbox(&self, _queue: usize) -> Result<SharedMemory, DeviceError> {
            Ok(self.mailbox.clone())
        }

        fn memory(&self, _queue: usize) -> Result<SharedMemory, DeviceError> {
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
        let mut driver = Driver::new(GpuPlatform::new(engine.clone(), 0).unwrap(), config).unwrap();
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
}
