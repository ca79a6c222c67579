//! Several drivers over one device: each has a queue pair of its own, a [`QueuePort`], and the device's owner has divided
//! the rest among them beforehand ([`Ports::divide`]).
//!
//! A device that is driven through one queue pair alone needs none of this: it is a [`Platform`] by itself, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use crate::attendant::is_idle;
use crate::attendant::{Attendance, Attendant, Bell};
use crate::driver::check_workers;
use crate::error::DeviceError;
use crate::memory::{PAGE, SharedMemory};
use crate::platform::{Awaited, Platform, message_table};
use doorbell_contract::{Block, HwEvent, Place, Register, State};

/// Completions of other queue pairs that may come between two of one: the weights of all others.
const OTHERS: u32 = 15 * 255;
/// Advances after which a queue pair that does not stop is an error (R15).
const PATIENCE: u32 = 10_000;
/// Advances within which a queue pair usually stops, and how long the others have the device between two of the advances after that.
const BRIEF: u32 = 16;
const PAUSE: Duration = Duration::from_micros(20);
/// How long one look at a device that runs by itself holds the lock.
const LOOK: Duration = Duration::from_micros(100);
/// How long one sleep until a message takes.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);
/// How long one slice of a device on a thread of its own is waited for.
const LONGEST_SLICE: Duration = Duration::from_secs(1);

/// The registers of a window: base and size, low and high halves.
const WINDOWS: [[Register; 4]; 3] = [
    [Register::Window0BaseLo, Register::Window0BaseHi, Register::Window0SizeLo, Register::Window0SizeHi],
    [Register::Window1BaseLo, Register::Window1BaseHi, Register::Window1SizeLo, Register::Window1SizeHi],
    [Register::Window2BaseLo, Register::Window2BaseHi, Register::Window2SizeLo, Register::Window2SizeHi],
];

/// A platform whose registers can be reached for every queue pair and function: what a device with several brings. As a
/// [`Platform`] alone it is queue pair 0 of function 0.
pub trait Pages: Platform {
    /// As [`write_register`](Platform::write_register), of the register that `place` has under this name.
    ///
    /// # Errors
    /// As [`write_register`](Platform::write_register).
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError>;

    /// As [`read_register`](Platform::read_register), of the register that `place` has under this name.
    ///
    /// # Errors
    /// As [`read_register`](Platform::read_register).
    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError>;

    /// As [`advance`](Platform::advance), until about `want` completions of the queue pair at `place` have been posted.
    ///
    /// The default goes on as long as completions come and none of them is of this queue pair, for as many as the weights
    /// of all others can make it wait: so an advance that brings it nothing is one in which the device brought nothing.
    ///
    /// # Errors
    /// As [`advance`](Platform::advance).
    fn advance_for(&mut self, place: Place, want: usize) -> Result<(), DeviceError> {
        let tail = self.read_at(place, Register::CqTail)?;
        let mut posted = self.read_at(place, Register::CompletionsLo)?;
        for _ in 0..OTHERS {
            self.advance(want)?;
            let before = posted;
            posted = self.read_at(place, Register::CompletionsLo)?;
            if posted == before || self.read_at(place, Register::CqTail)? != tail {
                break;
            }
        }
        Ok(())
    }

    /// A path for the queue pair at `place` that bypasses the device, if there is one. Only its driver uses it, in the place of
    /// this platform. The default, `None`, is for a device that must take part in everything.
    fn line(&mut self, place: Place) -> Option<Box<dyn Line>> {
        let _ = place;
        None
    }
}

/// What a driver does all the time, for a queue pair that can do it without its device: [`QueuePort`] then takes no lock.
pub trait Line: Send {
    /// Publishes the descriptors below `tail`; false: nothing has happened, and the device is to be asked.
    fn ring(&mut self, tail: u32) -> bool;

    /// Releases the completions below `head`; false: nothing has happened, and the device is to be asked.
    fn release(&mut self, head: u32) -> bool;

    /// As [`advance`](Platform::advance), of this queue pair alone.
    ///
    /// # Errors
    /// As [`advance`](Platform::advance).
    fn advance(&mut self) -> Result<(), DeviceError>;

    /// As [`route`](Platform::route), of this queue pair alone.
    ///
    /// # Errors
    /// As [`route`](Platform::route).
    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError>;

    /// As [`wait`](Platform::wait), of this queue pair alone.
    ///
    /// # Errors
    /// As [`wait`](Platform::wait).
    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError>;

    /// As [`report`](Platform::report), of this queue pair alone.
    fn report(&mut self) -> Option<String>;
}

impl<P: Pages + ?Sized> Pages for Box<P> {
    fn line(&mut self, place: Place) -> Option<Box<dyn Line>> {
        (**self).line(place)
    }

    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        (**self).write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        (**self).read_at(place, register)
    }

    fn advance_for(&mut self, place: Place, want: usize) -> Result<(), DeviceError> {
        (**self).advance_for(place, want)
    }
}

/// What the drivers of one device's queue pairs have in common: equal for those of the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedDevice(u64);

impl SharedDevice {
    /// A device that differs from all earlier ones.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// How a device is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Queue pairs to use, 1 to 16: the first so many.
    pub queues: u8,
    /// Functions to use, 1 to 16: queue pairs take turns in belonging to them, `row` at a time.
    pub functions: u8,
    /// Queue pairs in a row that belong to the same function: 2 where each has another one beside it, which works on the same
    /// tokens ([`Driver::over`](crate::Driver::over)). `queues` is a multiple of it.
    pub row: u8,
    /// Bytes of shared memory for each queue pair, as [`QueueConfig::shared_bytes`](crate::QueueConfig::shared_bytes) says.
    pub bytes: usize,
    /// Number of workers to use, counted from the first; `None` is all. With at least as many workers as functions, each
    /// function has workers of its own; otherwise all functions share all workers. Of a device that has them by the thousand: descriptors of a queue pair
    /// that may run at a time, 1 to 31.
    pub workers: Option<u32>,
    /// Cycles before each token, at most 65535: the device has one number for all.
    pub wait_states: u32,
}

impl Default for Division {
    fn default() -> Self {
        Self { queues: 1, functions: 1, row: 1, bytes: PAGE, workers: None, wait_states: 0 }
    }
}

impl Division {
    /// Where queue pair `queue` is.
    pub fn place(&self, queue: u8) -> Place {
        Place { function: queue / self.row.max(1) % self.functions.max(1), queue }
    }

    /// FN_WORKERS of `function` on a device with so many workers.
    pub fn worker_mask(&self, function: u8, built: u32) -> u32 {
        let first = |count: u32| u32::MAX >> 32u32.saturating_sub(count);
        let (workers, functions) = (self.workers.unwrap_or(built), u32::from(self.functions));
        // A device of more than 32 takes the number of bits for how many may run at a time.
        if workers > 32 || functions == 1 || workers < functions {
            return first(workers);
        }
        let (each, rest) = (workers / functions, workers % functions);
        let function = u32::from(function);
        let start = each * function + function.min(rest);
        first(each + u32::from(function < rest)) << start
    }
}

/// A device that was divided, for its owner: gives out the ports, one for each queue pair.
pub struct Ports<D: Pages> {
    shared: Arc<Shared<D>>,
    division: Division,
    /// The memory of each queue pair.
    parts: Vec<SharedMemory>,
    attendant: Option<Arc<Attendant>>,
}

/// What the ports of a device share.
pub(crate) struct Shared<D> {
    device: Mutex<D>,
    pub(crate) name: String,
    key: SharedDevice,
    runs_alone: bool,
    /// Where each queue pair is.
    places: Vec<Place>,
    /// Of each queue pair, where its messages go.
    pub(crate) bells: Vec<Bell>,
    pub(crate) attendance: Attendance,
    /// Whether a queue pair has its port given out.
    taken: Vec<AtomicBool>,
}

impl<D> Shared<D> {
    /// A thread that died while it held the device left at worst its own queue pair's work half done.
    pub(crate) fn lock(&self) -> MutexGuard<'_, D> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, in front of the attendant.
    #[inline]
    fn device(&self) -> MutexGuard<'_, D> {
        self.attendance.in_front(|| self.lock())
    }

    /// As [`stop`], beside drivers of other queue pairs, which have the device in between.
    fn stop(&self, place: Place) -> Result<(), DeviceError>
    where
        D: Pages,
    {
        self.device().write_at(place, Register::Control, 0)?;
        for advance in 0..PATIENCE {
            if has_stopped(&mut *self.device(), place)? {
                return Ok(());
            }
            // A lock that is taken again at once mostly goes to whoever had it.
            if advance >= BRIEF {
                thread::sleep(PAUSE);
            }
        }
        Err(never_stops(&self.name, place))
    }

    /// Where each queue pair is.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Place> {
        self.places.iter().copied()
    }
}

impl<D: Pages> Ports<D> {
    /// Takes over a device and divides it: disables every queue pair, maps the memory once, gives each function the queue
    /// pairs, workers and the window that are its own. A window holds exactly the memory of the function's queue pairs, which
    /// lie side by side; functions that are not used have none.
    ///
    /// # Errors
    /// `Unavailable` if the device was not built with so many queue pairs, functions or workers; `Config` for numbers that
    /// no device can have; or a failure of the device.
    pub fn divide(mut device: D, division: &Division) -> Result<Self, DeviceError> {
        let name = device.name().to_owned();
        check(division)?;
        let mut built = |register| -> Result<u32, DeviceError> { device.read_at(Place::FIRST, register) };
        let (queues, functions) = (built(Register::CapQueues)?, built(Register::CapFunctions)?);
        let (workers, windows) = (built(Register::CapWorkers)?, built(Register::CapWindows)?);
        for (what, wanted, built) in [
            ("queue pair", u32::from(division.queues), queues),
            ("function", u32::from(division.functions), functions),
            ("worker", division.workers.unwrap_or(1), workers),
        ] {
            if wanted > built {
                let plural = if built == 1 { "" } else { "s" };
                let reason = format!("it was built with {built} {what}{plural}, and {wanted} were asked for");
                return Err(DeviceError::Unavailable { device: name, reason });
            }
        }
        check_workers(division.workers, workers)?;
        let each = division.bytes.max(1).checked_next_multiple_of(PAGE);
        let bytes = each.and_then(|each| each.checked_mul(division.queues.into()));
        let (Some(each), Some(bytes)) = (each, bytes) else {
            return Err(DeviceError::Memory { bytes: division.bytes, reason: "the size overflows".into() });
        };
        let memory = device.map(bytes)?;
        for queue in 0..queues as u8 {
            let owner = device.read_at(Place { queue, ..Place::FIRST }, Register::QueueFunction)?;
            stop(&mut device, Place { function: owner as u8, queue })?;
        }
        if device.read_at(Place::FIRST, Register::WaitStates)? != division.wait_states {
            device.write_at(Place::FIRST, Register::WaitStates, division.wait_states)?;
        }
        let mut offset = 0;
        let mut offsets = vec![0; division.queues.into()];
        for function in 0..functions as u8 {
            let start = offset;
            // Those that are not used belong to somebody, too, and have no memory.
            for queue in (0..queues as u8).filter(|&queue| division.place(queue).function == function) {
                let place = Place { function, queue };
                device.write_at(place, Register::QueueFunction, function.into())?;
                if let Some(part) = offsets.get_mut(usize::from(queue)) {
                    *part = offset;
                    offset += each;
                }
            }
            let place = Place { function, ..Place::FIRST };
            if function < division.functions {
                device.write_at(place, Register::FnWorkers, division.worker_mask(function, workers))?;
            }
            let (base, size) = (memory.bus_address() + start as u64, (offset - start) as u64);
            for (window, registers) in WINDOWS.iter().enumerate().take(windows as usize) {
                let (base, size) = if window == 0 && size > 0 { (base, size) } else { (0, 0) };
                let halves = [base as u32, (base >> 32) as u32, size as u32, (size >> 32) as u32];
                for (&register, half) in registers.iter().zip(halves) {
                    device.write_at(place, register, half)?;
                }
            }
        }
        let parts = offsets.into_iter().map(|offset| memory.part(offset, each));
        let parts: Vec<SharedMemory> = parts.collect::<Result<_, _>>()?;
        Ok(Self {
            shared: Arc::new(Shared {
                runs_alone: device.runs_alone(),
                device: Mutex::new(device),
                name,
                key: SharedDevice::next(),
                places: (0..division.queues).map(|queue| division.place(queue)).collect(),
                bells: parts.iter().map(|_| Bell::default()).collect(),
                attendance: Attendance::default(),
                taken: parts.iter().map(|_| AtomicBool::new(false)).collect(),
            }),
            division: division.clone(),
            parts,
            attendant: None,
        })
    }

    /// Gives a device that does not run by itself a thread of its own, for as long as it has an owner or a port. Then its drivers'
    /// threads may sleep, and they poll instead of giving it time.
    ///
    /// # Errors
    /// `Unavailable` if no thread can be had.
    pub fn attended(mut self) -> Result<Self, DeviceError>
    where
        D: 'static,
    {
        if !self.shared.runs_alone && self.attendant.is_none() {
            self.attendant = Some(Arc::new(Attendant::new(self.shared.clone())?));
        }
        Ok(self)
    }

    /// How it was divided.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// The port of a queue pair, which is disabled first, whatever its last driver left. Dropping the port gives it back.
    ///
    /// # Errors
    /// `Unavailable` if there is no such queue pair or somebody has its port; or a failure of the device.
    pub fn take(&self, queue: u8) -> Result<QueuePort<D>, DeviceError> {
        let place = self.division.place(queue);
        let name = port_name(&self.shared.name, place);
        let unavailable =
            |reason: &str| DeviceError::Unavailable { device: name.clone(), reason: reason.into() };
        let (Some(part), Some(taken)) =
            (self.parts.get(usize::from(queue)), self.shared.taken.get(usize::from(queue)))
        else {
            return Err(unavailable("the device was divided among fewer queue pairs"));
        };
        if taken.swap(true, Ordering::AcqRel) {
            return Err(unavailable("somebody drives it"));
        }
        // From here on it is given back by being dropped.
        let mut port = QueuePort {
            shared: self.shared.clone(),
            place,
            name: name.clone(),
            memory: part.clone(),
            line: None,
            attendant: self.attendant.clone(),
        };
        self.shared.stop(place).map_err(|error| port.named(error))?;
        port.line = self.shared.device().line(place);
        Ok(port)
    }

    /// The ports of all queue pairs, by number.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_all(&self) -> Result<Vec<QueuePort<D>>, DeviceError> {
        (0..self.division.queues).map(|queue| self.take(queue)).collect()
    }

    /// The device, for its owner: all drivers wait as long as this is held.
    pub fn device(&self) -> MutexGuard<'_, D> {
        self.shared.device()
    }
}

/// Rejects divisions that no device can have.
fn check(division: &Division) -> Result<(), DeviceError> {
    let config =
        |field, value: u32, expected: String| DeviceError::Config { field, value: value.into(), expected };
    for (field, value) in [("queues", division.queues), ("functions", division.functions)] {
        if !(1..=16).contains(&value) {
            return Err(config(field, value.into(), "1 to 16".into()));
        }
    }
    if division.row == 0 || !division.queues.is_multiple_of(division.row) {
        let expected = format!("a divisor of {}, the number of queue pairs", division.queues);
        return Err(config("row", division.row.into(), expected));
    }
    let rows = division.queues / division.row;
    if division.functions > rows {
        let what = if division.row == 1 { "queue pairs" } else { "rows of queue pairs" };
        let expected = format!("at most {rows}, the number of {what}");
        return Err(config("functions", division.functions.into(), expected));
    }
    if division.workers == Some(0) {
        return Err(config("workers", 0, "at least 1".into()));
    }
    if division.wait_states > 0xFFFF {
        return Err(config("wait_states", division.wait_states, "at most 65535".into()));
    }
    Ok(())
}

/// Disables a queue pair, and waits until it is (R12). Nobody else drives the device yet.
fn stop(device: &mut impl Pages, place: Place) -> Result<(), DeviceError> {
    device.write_at(place, Register::Control, 0)?;
    for _ in 0..PATIENCE {
        if has_stopped(device, place)? {
            return Ok(());
        }
    }
    Err(never_stops(device.name(), place))
}

/// Whether a queue pair is inactive. If it is not, the device gets some time.
fn has_stopped(device: &mut impl Pages, place: Place) -> Result<bool, DeviceError> {
    let active = device.read_at(place, Register::State)? & State::ACTIVE.bits() != 0;
    if active {
        device.advance(1)?;
    }
    Ok(!active)
}

#[cold]
fn never_stops(device: &str, place: Place) -> DeviceError {
    DeviceError::Failed {
        device: port_name(device, place),
        what: format!("it is still active {PATIENCE} advances after a disable; reset the device"),
    }
}

fn port_name(device: &str, place: Place) -> String {
    format!("{device} (queue pair {} of function {})", place.queue, place.function)
}

/// One queue pair of a device that others use too, as a platform for a driver of its own, on a thread of its own.
///
/// It reaches what a process would have mapped: the pages of its function and its queue pair, and page 0 to read. The device
/// is behind a mutex, held for a register access or one slice of its time, which any driver gives to all queue pairs.
pub struct QueuePort<D: Pages> {
    shared: Arc<Shared<D>>,
    place: Place,
    name: String,
    memory: SharedMemory,
    /// What needs no lock, where there is such.
    line: Option<Box<dyn Line>>,
    /// Whoever gives the device its time does so as long as it has a port.
    attendant: Option<Arc<Attendant>>,
}

impl<D: Pages> QueuePort<D> {
    /// Which queue pair it is, and whose.
    pub fn place(&self) -> Place {
        self.place
    }

    /// A write that the device itself decides on.
    fn write_by_device(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        // Pages 0 and 1 are its owner's.
        if matches!(
            register.block(),
            Block::Device | Block::DeviceFunction | Block::DeviceQueue | Block::DeviceMessage
        ) {
            return Err(DeviceError::WriteRefused { device: self.name.clone(), register, value });
        }
        let written = self.shared.device().write_at(self.place, register, value);
        if self.attendant.is_some() {
            self.shared.attendance.stir();
        }
        written.map_err(|error| self.named(error))
    }

    fn is_attended(&self) -> bool {
        self.attendant.is_some() && self.shared.attendance.is_attended()
    }

    fn bell(&self) -> &Bell {
        &self.shared.bells[usize::from(self.place.queue)]
    }

    /// The same error, of this queue pair.
    #[cold]
    fn named(&self, error: DeviceError) -> DeviceError {
        let device = self.name.clone();
        match error {
            DeviceError::WriteRefused { register, value, .. } => {
                DeviceError::WriteRefused { device, register, value }
            }
            DeviceError::ReadRefused { register, .. } => DeviceError::ReadRefused { device, register },
            other => other,
        }
    }
}

impl<D: Pages> Platform for QueuePort<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        if bytes > self.memory.len() {
            let reason = format!("{} was given {} bytes", self.name, self.memory.len());
            return Err(DeviceError::Memory { bytes, reason });
        }
        // Nobody may write what is cleared.
        self.shared.stop(self.place).map_err(|error| self.named(error))?;
        self.memory.clear();
        Ok(self.memory.clone())
    }

    #[inline]
    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if let Some(line) = &mut self.line {
            let taken = match register {
                Register::Doorbell => line.ring(value),
                Register::CqHead => line.release(value),
                _ => false,
            };
            if taken {
                return Ok(());
            }
        }
        self.write_by_device(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        let read = self.shared.device().read_at(self.place, register);
        read.map_err(|error| self.named(error))
    }

    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        let read = self.shared.device().read_worker(worker, register);
        read.map_err(|error| self.named(error))
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        if let Some(line) = &mut self.line {
            return line.advance();
        }
        if self.is_attended() {
            self.shared.attendance.pass_slice(Instant::now() + LONGEST_SLICE);
            return Ok(());
        }
        self.shared.device().advance_for(self.place, want)
    }

    /// The device's owner sets its table, as an operating system would.
    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        if let Some(line) = &mut self.line {
            return line.route(memory, offset);
        }
        let mut device = self.shared.device();
        let mut table = message_table(memory, offset).into_iter();
        let routed = table.try_for_each(|(register, value)| device.write_at(self.place, register, value));
        drop(device);
        routed.map_err(|error| self.named(error))?;
        self.bell().route(memory, offset);
        Ok(())
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        if let Some(line) = &mut self.line {
            return line.wait(awaited, deadline);
        }
        if self.is_attended() {
            match awaited {
                // Not for longer at a time: a wait counts as one advance, and a message may be lost (R15).
                Awaited::Interrupt { .. } => {
                    self.shared.attendance.sleep(self.bell(), deadline.min(Instant::now() + LONGEST_SLEEP));
                }
                Awaited::Completion => self.shared.attendance.pass_slice(deadline),
            }
            return Ok(());
        }
        if self.shared.runs_alone {
            // Not for longer at a time: others have doorbells to ring.
            return self.shared.device().wait(awaited, deadline.min(Instant::now() + LOOK));
        }
        self.advance(1)
    }

    fn runs_alone(&self) -> bool {
        self.shared.runs_alone || self.is_attended()
    }

    fn report(&mut self) -> Option<String> {
        match &mut self.line {
            Some(line) => line.report(),
            None => self.shared.device().report(),
        }
    }

    fn keeps_lives(&self) -> bool {
        self.shared.device().keeps_lives()
    }

    fn ticks(&mut self) -> Option<u64> {
        self.shared.device().ticks()
    }

    fn tapped(&mut self, queue: u8, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        self.shared.device().tapped(queue, out)
    }

    fn shared_device(&self) -> Option<SharedDevice> {
        Some(self.shared.key)
    }

    fn function(&self) -> u8 {
        self.place.function
    }

    fn shows_workers(&self) -> bool {
        self.shared.device().shows_workers()
    }

    fn queue(&self) -> u8 {
        self.place.queue
    }
}

/// What its driver left in flight is cancelled, so that it takes no time from the others; whoever has the queue pair next
/// waits for the end of it.
impl<D: Pages> Drop for QueuePort<D> {
    fn drop(&mut self) {
        // A device that does not even take this has failed, which the others will be told.
        let _ = self.shared.device().write_at(self.place, Register::Control, 0);
        self.shared.taken[usize::from(self.place.queue)].store(false, Ordering::Release);
    }
}
