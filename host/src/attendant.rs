//! A device that lives only in the time that it is given, on a thread of its own: so that the threads of its drivers can sleep.
//!
//! What an interrupt controller and an operating system do, the attendant does for the threads of one process: it sees a message
//! in memory (R14) and wakes the thread that sleeps on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::error::DeviceError;
use crate::memory::SharedMemory;
use crate::ports::{Pages, Shared};
use doorbell_contract::{Place, Register, State};

/// How long the attendant of a device with nothing to do sleeps, unless somebody wakes it.
const REST: Duration = Duration::from_millis(1);

/// Where the message of a queue pair goes, and who sleeps on it.
#[derive(Default)]
pub(crate) struct Bell {
    message: Mutex<Option<(SharedMemory, usize)>>,
    wake: Condvar,
}

impl Bell {
    /// The message goes to the word at `offset` of `memory` from now on.
    pub fn route(&self, memory: &SharedMemory, offset: usize) {
        *self.message() = Some((memory.clone(), offset));
    }

    fn message(&self) -> std::sync::MutexGuard<'_, Option<(SharedMemory, usize)>> {
        self.message.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_come(message: &Option<(SharedMemory, usize)>) -> bool {
        let word = message.as_ref().and_then(|(memory, offset)| memory.word32(*offset).ok());
        word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Sleeps until the message has come, or until `deadline`, or until the attendant has ended.
    fn sleep(&self, deadline: Instant, attended: &AtomicBool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let awaits = |message: &mut Option<_>| !Self::has_come(message) && attended.load(Ordering::Acquire);
        let slept = self.wake.wait_timeout_while(self.message(), left, awaits);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
    }

    /// Wakes who sleeps, if the message has come.
    fn ring(&self) {
        if Self::has_come(&self.message()) {
            self.wake.notify_all();
        }
    }
}

/// What the attendant and the ports of its device share.
#[derive(Default)]
pub(crate) struct Attendance {
    /// Whether a thread gives the device its time.
    attended: AtomicBool,
    /// Slices of time that it has given.
    slices: AtomicU64,
    /// Ports that want the device: its lock would else go from the attendant to the attendant.
    wanted: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Attendance {
    /// Whether a thread gives the device its time.
    #[inline]
    pub fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Acquire)
    }

    /// Takes `lock` in front of the attendant.
    #[inline]
    pub fn in_front<T>(&self, lock: impl FnOnce() -> T) -> T {
        if !self.is_attended() {
            return lock();
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let guard = lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// There is something new to do.
    #[inline]
    pub fn stir(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Looks until a slice is over, and at most until `deadline`.
    pub fn pass_slice(&self, deadline: Instant) {
        let before = self.slices.load(Ordering::Acquire);
        while self.slices.load(Ordering::Acquire) == before && self.is_attended() {
            for _ in 0..64 {
                std::hint::spin_loop();
            }
            if Instant::now() >= deadline {
                break;
            }
            thread::yield_now();
        }
    }

    /// Sleeps until the message of `bell` has come.
    pub fn sleep(&self, bell: &Bell, deadline: Instant) {
        bell.sleep(deadline, &self.attended);
    }
}

/// The thread that gives a device its time, as long as this lives.
pub(crate) struct Attendant {
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    /// Gives the device its time from now on.
    ///
    /// # Errors
    /// `Unavailable` if no thread can be had.
    pub fn new<D: Pages + 'static>(shared: Arc<Shared<D>>) -> Result<Self, DeviceError> {
        let leave = Arc::new(AtomicBool::new(false));
        let (name, leaves) = (shared.name.clone(), leave.clone());
        shared.attendance.attended.store(true, Ordering::Release);
        let leaving = Leaving(shared);
        let spawned = thread::Builder::new().name(format!("{name} device")).spawn(move || {
            let shared = &*leaving.0;
            // The only one that sets it.
            let _ = shared.attendance.thread.set(thread::current());
            let mut idle = false;
            while !leaves.load(Ordering::Acquire) {
                let Ok(now) = attend(shared) else { return };
                // A completion ends a slice, and its message may still be on its way: so only behind a whole slice of nothing.
                if idle && now {
                    thread::park_timeout(REST);
                }
                idle = now;
            }
        });
        let thread = spawned.map_err(|error| DeviceError::Unavailable {
            device: name,
            reason: format!("no thread can be had for it: {error}"),
        })?;
        Ok(Self { leave, thread: Some(thread) })
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Whoever sleeps is woken when the attendant goes, however it does, and the ports give the device its time again.
struct Leaving<D: Pages>(Arc<Shared<D>>);

impl<D: Pages> Drop for Leaving<D> {
    fn drop(&mut self) {
        self.0.attendance.attended.store(false, Ordering::Release);
        for bell in &self.0.bells {
            // Under the lock: nobody is between his look and his sleep.
            drop(bell.message());
            bell.wake.notify_all();
        }
    }
}

/// One slice of the device's time, and whether the device has nothing to do behind it.
///
/// # Errors
/// The device has failed, which whoever uses it next will be told, too.
fn attend<D: Pages>(shared: &Shared<D>) -> Result<bool, DeviceError> {
    while shared.attendance.wanted.load(Ordering::Relaxed) > 0 {
        thread::yield_now();
    }
    let mut device = shared.lock();
    // A message ends the slice, and so does a completion.
    let idle = device.advance(1).and_then(|()| is_idle(&mut *device, shared.queues()));
    drop(device);
    shared.attendance.slices.fetch_add(1, Ordering::Release);
    shared.bells.iter().for_each(Bell::ring);
    idle
}

/// Whether the queue pairs at `places` have nothing to do until somebody writes a register: no descriptor, and no time of an interrupt
/// that runs. The message of the last completion may still be on its way.
///
/// # Errors
/// Failures of the device.
pub fn is_idle(device: &mut impl Pages, places: impl Iterator<Item = Place>) -> Result<bool, DeviceError> {
    for place in places {
        let state = State::from_bits_retain(device.read_at(place, Register::State)?);
        if !state.contains(State::IDLE) {
            return Ok(false);
        }
        if state.contains(State::ARMED)
            && device.read_at(place, Register::CqTail)? != device.read_at(place, Register::Arm)?
            && device.read_at(place, Register::CoalesceTime)? != 0
        {
            return Ok(false);
        }
    }
    Ok(true)
}
