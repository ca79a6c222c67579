//! A queue pair as two halves that two threads can hold: one submits, one takes completions.
//!
//! Each half owns its queue. What passes between them are two numbers, an atomic each: how many descriptors are
//! submitted (from the submitter, so that the completer can hold completions against it, R3), and `sq_head` (from the
//! completer, so that the submitter knows which slots are free again). The platform, which is software for some devices
//! and a few stores for others, is behind a mutex that is held for a doorbell, a release or one slice of time; never
//! while a half sleeps.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::device::TokenRegion;
use crate::driver::{COMPLETION, Condition, Driver, Parts, Patience, explained, protocol, timeout};
use crate::error::DeviceError;
use crate::ledger::{Broken, Ledger};
use crate::platform::{Awaited, Platform};
use crate::queue::{CompletionQueue, EventQueue, SubmissionQueue, Written};
use crate::why::{Known, Outstanding};
use doorbell_contract::{HwCompletion, HwDesc, Register};

/// For how long a completer looks without sleeping, on a device that runs by itself.
const SPIN: Duration = Duration::from_micros(50);
/// The longest sleep between two looks, which is how long a completion may wait to be seen.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// How often a device that runs by itself, and says nothing, is asked whether it still lives.
const CHECK: Duration = Duration::from_millis(100);

/// What the halves share.
struct Shared<P> {
    name: String,
    platform: Mutex<P>,
    /// Descriptors submitted since the queue pair was enabled; told before the device can see the newest of them.
    submitted: AtomicU64,
    /// Those that the submitter has rung for; it is written with the platform locked.
    rung: AtomicU64,
    /// SQ slots consumed, a running index.
    sq_head: AtomicU32,
    /// Why the queue pair is lost.
    lost: OnceLock<Broken>,
}

impl<P> Shared<P> {
    fn platform(&self) -> MutexGuard<'_, P> {
        self.platform.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn require_sound(&self) -> Result<(), DeviceError> {
        self.lost.get().map_or(Ok(()), |broken| Err(protocol(&self.name, broken)))
    }
}

/// The half that submits; see [`Driver::split`]. One thread has it at a time.
pub struct Submitter<P: Platform> {
    shared: Arc<Shared<P>>,
    sq: SubmissionQueue,
    submitted: u64,
    not_sync: PhantomData<Cell<()>>,
}

/// The half that takes completions; see [`Driver::split`]. One thread has it at a time.
pub struct Completer<P: Platform> {
    shared: Arc<Shared<P>>,
    cq: CompletionQueue,
    /// The submitter's slots, to say what a wait that runs out was for.
    written: Written,
    ledger: Ledger,
    patience: Patience,
    parts: Parts,
    /// The function's event ring: its events wait until the halves are one again.
    events: Option<EventQueue>,
    released: u32,
    runs_alone: bool,
    /// A failure that came behind completions: it is told of next.
    failure: Option<Box<DeviceError>>,
    not_sync: PhantomData<Cell<()>>,
}

/// The halves of a driver whose descriptors are all published.
pub(crate) fn split<P: Platform>(driver: Driver<P>) -> (Submitter<P>, Completer<P>) {
    let Driver { platform, parts, sq, cq, submitted, ledger, patience, events, released, .. } = driver;
    let shared = Arc::new(Shared {
        name: platform.name().to_owned(),
        submitted: AtomicU64::new(submitted),
        rung: AtomicU64::new(submitted),
        sq_head: AtomicU32::new(ledger.sq_head()),
        lost: OnceLock::new(),
        platform: Mutex::new(platform),
    });
    let runs_alone = shared.platform().runs_alone();
    let written = sq.reader();
    (
        Submitter { shared: shared.clone(), sq, submitted, not_sync: PhantomData },
        Completer {
            shared,
            cq,
            written,
            ledger,
            patience,
            parts,
            events,
            released,
            runs_alone,
            failure: None,
            not_sync: PhantomData,
        },
    )
}

impl<P: Platform> Submitter<P> {
    /// As [`Device::submit`](crate::Device::submit).
    ///
    /// # Errors
    /// `Protocol` once the queue pair is lost, or a failure of the device.
    pub fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.shared.require_sound()?;
        let taken = batch.len().min(self.room());
        if taken == 0 {
            return Ok(0);
        }
        // Told first: a device that polls the slots may complete what is only just written.
        self.submitted += taken as u64;
        self.shared.submitted.store(self.submitted, Ordering::Release);
        self.sq.push(&batch[..taken])?;
        let mut platform = self.shared.platform();
        let written = platform.write_register(Register::Doorbell, self.sq.tail());
        self.shared.rung.store(self.submitted, Ordering::Release);
        written.map(|()| taken)
    }

    /// Free slots of the submission queue, as far as the completer has learnt of them.
    pub fn room(&mut self) -> usize {
        // What the completer read before it told this index is read: the slots below it may be written.
        let sq_head = self.shared.sq_head.load(Ordering::Acquire);
        self.sq.consumed(sq_head);
        self.sq.free()
    }

    /// The driver again, from both halves of one.
    ///
    /// # Errors
    /// Both halves, if they are not of one driver.
    pub fn join(self, completer: Completer<P>) -> Result<Driver<P>, Box<(Self, Completer<P>)>> {
        if !Arc::ptr_eq(&self.shared, &completer.shared) {
            return Err(Box::new((self, completer)));
        }
        let Self { shared, mut sq, submitted, .. } = self;
        let Completer {
            shared: other,
            cq,
            written,
            ledger,
            patience,
            parts,
            events,
            released,
            runs_alone,
            failure,
            ..
        } = completer;
        drop(shared);
        sq.consumed(ledger.sq_head());
        match Arc::try_unwrap(other) {
            Ok(Shared { platform, lost, .. }) => {
                let condition = match (lost.into_inner(), failure) {
                    (Some(broken), _) => Condition::Lost(Box::new(broken)),
                    (None, Some(error)) => Condition::Failed(error),
                    (None, None) => Condition::Ready,
                };
                let platform = platform.into_inner().unwrap_or_else(PoisonError::into_inner);
                Ok(Driver {
                    platform,
                    parts,
                    sq,
                    cq,
                    condition,
                    submitted,
                    ledger,
                    patience,
                    armed: None,
                    events,
                    released,
                    // Whose completions the halves took is not known.
                    answers: vec![],
                    told: 0,
                    keeps_lives: false,
                })
            }
            // Each half has one reference and gives none away, so this does not happen.
            Err(shared) => Err(Box::new((
                Self { shared: shared.clone(), sq, submitted, not_sync: PhantomData },
                Completer {
                    shared,
                    cq,
                    written,
                    ledger,
                    patience,
                    parts,
                    events,
                    released,
                    runs_alone,
                    failure,
                    not_sync: PhantomData,
                },
            ))),
        }
    }
}

impl<P: Platform> Completer<P> {
    /// As [`Device::collect`](crate::Device::collect).
    ///
    /// # Errors
    /// `Protocol` if the device broke the contract, or another failure of the device.
    pub fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.require_sound()?;
        let taken = self.cq.pop(out)?;
        if taken == 0 {
            return Ok(0);
        }
        // Read behind the completions: whoever submitted what they answer had told so before.
        let submitted = self.shared.submitted.load(Ordering::Acquire);
        if let Err((count, broken)) = self.ledger.take(&out[..taken], submitted, self.ledger.index(submitted))
        {
            // Locked first: the submitter counts before it rings, so no doorbell is ahead of what is known here.
            let mut platform = self.shared.platform();
            let known = self.known()?;
            let broken = explained(&mut *platform, &self.parts, &known, broken);
            drop(platform);
            let error = protocol(&self.shared.name, &broken);
            // Only this half says so, and only once.
            let _ = self.shared.lost.set(broken);
            return if count > 0 { Ok(count) } else { Err(error) };
        }
        self.shared.sq_head.store(self.ledger.sq_head(), Ordering::Release);
        // The completions come once.
        if let Err(error) = self.shared.platform().write_register(Register::CqHead, self.cq.head()) {
            self.failure = Some(Box::new(error));
        }
        self.patience.reset();
        Ok(taken)
    }

    #[inline]
    fn require_sound(&mut self) -> Result<(), DeviceError> {
        if self.failure.is_some()
            && let Some(error) = self.failure.take()
        {
            return Err(*error);
        }
        self.shared.require_sound()
    }

    /// As [`Device::wait`](crate::Device::wait), but that it waits for what is yet to be submitted, too: with nothing
    /// in flight it sleeps until `deadline`.
    ///
    /// # Errors
    /// As [`Device::poll`](crate::Device::poll).
    pub fn wait(&mut self, deadline: Instant) -> Result<bool, DeviceError> {
        self.require_sound()?;
        let start = Instant::now();
        let (mut checked, mut sleep) = (start, Duration::ZERO);
        loop {
            if self.cq.is_fresh()? {
                return Ok(true);
            }
            let now = Instant::now();
            let late = now >= deadline;
            let idle = self.in_flight() == 0;
            if !self.runs_alone && !idle {
                let mut platform = self.shared.platform();
                platform.wait(Awaited::Completion, deadline)?;
                if !self.cq.is_fresh()?
                    && Self::gives_up(&mut self.patience, &self.ledger, &self.shared, &mut *platform)?
                {
                    return Err(self.timeout(&mut platform)?);
                }
            } else if !late && (idle || now - start >= SPIN) {
                sleep = LONGEST_SLEEP.min(2 * sleep + Duration::from_micros(20));
                thread::sleep(sleep.min(deadline - now));
            } else {
                std::hint::spin_loop();
            }
            if self.runs_alone && !idle && now - checked >= CHECK {
                checked = now;
                let mut platform = self.shared.platform();
                platform.advance(1)?;
                if !self.cq.is_fresh()?
                    && Self::gives_up(&mut self.patience, &self.ledger, &self.shared, &mut *platform)?
                {
                    return Err(self.timeout(&mut platform)?);
                }
            }
            if late {
                return self.cq.is_fresh();
            }
        }
    }

    /// Counts an advance that brought no completion (R15). The submitter tells of descriptors before it rings: what it was
    /// kept from ringing for is no fault of the device, which then has completed all that it knows of. What it has rung for and the
    /// device does not know of is a doorbell that was lost.
    fn gives_up(
        patience: &mut Patience,
        ledger: &Ledger,
        shared: &Shared<P>,
        platform: &mut P,
    ) -> Result<bool, DeviceError> {
        if !patience.is_over(platform)? {
            return Ok(false);
        }
        let is_not_rung = shared.rung.load(Ordering::Acquire) != shared.submitted.load(Ordering::Acquire);
        if is_not_rung && platform.read_register(Register::Doorbell)? == ledger.index(ledger.completed()) {
            patience.reset();
            thread::yield_now();
            return Ok(false);
        }
        Ok(true)
    }

    fn known(&self) -> Result<Known, DeviceError> {
        let submitted = self.shared.submitted.load(Ordering::Acquire);
        Ok(Known {
            in_flight: submitted - self.ledger.completed(),
            sq_tail: self.ledger.index(submitted),
            sq_head: self.ledger.sq_head(),
            cq_head: self.cq.head(),
            is_fresh: self.cq.is_fresh()?,
            armed: None,
            stale: self.cq.stale(),
        })
    }

    #[cold]
    fn timeout(&self, platform: &mut P) -> Result<DeviceError, DeviceError> {
        let known = self.known()?;
        let ends = (known.sq_head, known.sq_tail);
        let find =
            || Outstanding::find(&self.written, &self.cq, self.ledger.completed(), ends, known.in_flight);
        timeout(platform, COMPLETION, &self.parts, &known, find)
    }

    /// Descriptors submitted and not yet returned by [`collect`](Self::collect).
    pub fn in_flight(&self) -> usize {
        (self.shared.submitted.load(Ordering::Acquire) - self.ledger.completed()) as usize
    }

    /// The token region.
    pub fn tokens(&self) -> &TokenRegion {
        &self.parts.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QueueConfig;
    use crate::memory::{SIMULATED_BUS_ADDRESS, SharedMemory};
    use crate::registers::{Built, Registers};
    use crate::why::Root;
    use doorbell_contract::{Capability, Place};

    /// A device that does nothing, ever.
    struct Silent {
        registers: Registers,
        loses_doorbells: bool,
    }

    impl Platform for Silent {
        fn name(&self) -> &str {
            "silent"
        }

        fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
            SharedMemory::allocate(bytes, SIMULATED_BUS_ADDRESS)
        }

        fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
            if self.loses_doorbells && register == Register::Doorbell {
                return Ok(());
            }
            self.registers.write(register, Place::FIRST, value).map_err(|_| DeviceError::WriteRefused {
                device: "silent".to_owned(),
                register,
                value,
            })
        }

        fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
            let read = self.registers.read(register, Place::FIRST);
            read.map_err(|_| DeviceError::ReadRefused { device: "silent".to_owned(), register })
        }

        fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn halves(loses_doorbells: bool) -> (Submitter<Silent>, Completer<Silent>) {
        let built = Built {
            features: Capability::empty(),
            workers: 1,
            queues: 1,
            functions: 1,
            windows: false,
            engines: 1,
            reward_models: 1,
            groups: 0,
            tick_hz: 0,
        };
        let config = QueueConfig { patience: 3, ..QueueConfig::default() };
        let silent = Silent { registers: Registers::new(built), loses_doorbells };
        Driver::new(silent, config).unwrap().split().unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    /// The submitter lost its processor between telling and ringing.
    #[test]
    fn r15_what_is_told_and_not_rung_is_not_held_against_the_device() {
        let (submitter, mut completer) = halves(false);
        submitter.shared.submitted.store(1, Ordering::Release);
        assert!(!completer.wait(soon()).unwrap(), "nothing has come");
        submitter.shared.platform().write_register(Register::Doorbell, 1).unwrap();
        let error = completer.wait(Instant::now() + Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, DeviceError::Timeout(_)), "{error}");
    }

    #[test]
    fn r15_a_doorbell_that_is_lost_is_the_reason() {
        let (mut submitter, mut completer) = halves(true);
        assert_eq!(submitter.submit(&[HwDesc::decode(1, 4, 4)]).unwrap(), 1);
        let error = completer.wait(Instant::now() + Duration::from_secs(60)).unwrap_err();
        let DeviceError::Timeout(timeout) = error else { panic!("{error}") };
        assert_eq!(timeout.why.unwrap().root, Root::LostDoorbell { wrote: 1, has: 0 });
    }
}
