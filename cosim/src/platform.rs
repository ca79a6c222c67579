//! The verilated device as a platform for the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cxx::UniquePtr;
use doorbell_contract::{EventKind, HwEvent, Place, Register};
use doorbell_host::memory::SIMULATED_BUS_ADDRESS;
use doorbell_host::{DeviceError, Pages, Placement, Platform, SharedMemory};
use doorbell_npu::run::Event;

use crate::bridge::ffi::{self, Owed};
use crate::built;
use crate::config::{Injected, MAX_LATENCY, Moment, RtlConfig, Weather};
use crate::error::CosimError;
use crate::function_memory::Given;
use crate::npu::NpuObserver;
use crate::strip::Pins;

pub(crate) const NAME: &str = "rtl";

/// A simulated device with its memory. Time passes only in its functions: a register access takes a few cycles,
/// [`advance`](Platform::advance) up to a [slice](RtlConfig::slice).
pub struct RtlPlatform {
    // Declared before the memory, which it must not outlive.
    simulator: Simulator,
    memory: Option<SharedMemory>,
    placement: Placement,
    pub(crate) given: Given,
    built: ffi::Built,
    clock: Arc<AtomicU64>,
    watch: Option<Arc<Watch>>,
    /// Whether LIFE events are read off the signals.
    lives: bool,
    changes: bool,
    slice: u64,
}

/// What the memory saw beside a hostile function ([`RtlConfig::hostile`]), as of the device's last function.
#[derive(Debug, Default)]
pub struct Watch {
    bursts: AtomicU64,
    strays: AtomicU64,
}

impl Watch {
    /// Bursts of the hostile function.
    pub fn bursts(&self) -> u64 {
        self.bursts.load(Ordering::Relaxed)
    }

    /// Bursts, of any function, that lay in no window of the function that AxUSER named (R11).
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }
}

const NO_LIFE: ffi::Life =
    ffi::Life { stamp: 0, index: 0, worker: 0, start: 0, first_token: 0, ended: 0, visible: 0 };

struct Simulator(UniquePtr<ffi::Simulator>);

// SAFETY: a simulator is bound to no thread: each of its functions sets Verilator's thread-local context and its own
// on entry, and it shares no mutable state with others but what Verilator guards itself. `&mut` keeps it to one thread
// at a time.
unsafe impl Send for Simulator {}

impl RtlPlatform {
    /// Makes the device and takes it through reset.
    ///
    /// # Errors
    /// `NotBuilt` or `Config` for a configuration that cannot be had; `Simulator` if the waveform cannot be written or
    /// an assertion fails in reset.
    pub fn new(config: &RtlConfig) -> Result<Self, CosimError> {
        let bridged = config.simulator()?;
        let built = variant_for(config)?;
        let simulator = ffi::make_simulator(&built, &bridged)
            .map_err(|error| CosimError::Simulator { message: error.what().to_owned() })?;
        let watch = config.hostile.map(|_| Arc::default());
        Ok(Self {
            simulator: Simulator(simulator),
            memory: None,
            placement: Placement::default(),
            given: Given::new(),
            built,
            clock: Arc::default(),
            watch,
            lives: false,
            changes: config.changes,
            slice: config.slice,
        })
    }

    /// The device with memory that is placed so.
    #[must_use]
    pub fn with_placement(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Workers that the RTL was built with.
    pub fn workers(&self) -> u32 {
        self.built.workers
    }

    /// What the RTL was built with.
    pub fn built(&self) -> ffi::Built {
        self.built
    }

    /// Clock cycles since the device was made.
    pub fn cycles(&self) -> u64 {
        self.simulator.0.cycles()
    }

    /// Clock cycles since the device was made, as of its last function; to be read while a driver has it.
    pub fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.clock)
    }

    /// What is seen of a hostile function, to be read while drivers have the device; `None` where there is none.
    pub fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.clone()
    }

    /// Messages of a queue pair's interrupt (R14) that have come to memory since the device was made; 0 where there is no such queue
    /// pair.
    pub fn messages(&self, queue: u32) -> u64 {
        self.simulator.0.messages(queue)
    }

    /// The failure that ended this device, if one did.
    pub fn failure(&self) -> Option<CosimError> {
        CosimError::from_failure(self.simulator.0.failure())
    }

    /// Holds the reset pin for `cycles` cycles, at least 2. What is in flight is lost; registers take their reset
    /// values.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn reset(&mut self, cycles: u32) -> Result<(), CosimError> {
        let result = self.simulator.0.pin_mut().reset(cycles.max(2), true);
        result.map_err(|error| self.failed(&error))
    }

    /// Holds the reset pin of the device alone for `cycles` cycles, at least 2: the bus lives on, and STATE.ACTIVE is 1 until it
    /// has taken and given what was promised. Registers take their reset values.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn reset_alone(&mut self, cycles: u32) -> Result<(), CosimError> {
        let result = self.simulator.0.pin_mut().reset(cycles.max(2), false);
        result.map_err(|error| self.failed(&error))
    }

    /// Tells the memory of a device that was made with [`RtlConfig::changes`] how to behave from here on.
    ///
    /// # Errors
    /// `Config` if it was made without, or cannot behave like that; else the failure that ended the device.
    pub fn set_weather(&mut self, weather: &Weather) -> Result<(), CosimError> {
        let refuse = |field, value: String, expected| Err(CosimError::Config { field, value, expected });
        if !self.changes {
            return refuse("changes", "false".to_owned(), "true, where the memory is to change");
        }
        if weather.stall_percent.iter().any(|&percent| percent > 95) {
            return refuse("stall_percent", format!("{:?}", weather.stall_percent), "at most 95");
        }
        if weather.latency[0] > weather.latency[1] || weather.latency[1] > MAX_LATENCY {
            return refuse("latency", format!("{:?}", weather.latency), "from low to high, at most 1000000");
        }
        if weather.faults.iter().any(|range| range.one_in == 0) {
            return refuse("one_in", "0".to_owned(), "at least 1");
        }
        let result = self.simulator.0.pin_mut().set_weather(weather);
        result.map_err(|error| self.failed(&error))
    }

    /// The beats that its memory answered with an error, by the weather, since this was asked last.
    pub fn take_injected(&mut self) -> Vec<Injected> {
        self.simulator.0.pin_mut().take_injected()
    }

    /// When descriptors came and writes were answered since this was asked last, of a device that was made with
    /// [`RtlConfig::moments`].
    pub fn take_moments(&mut self) -> Vec<Moment> {
        self.simulator.0.pin_mut().take_moments()
    }

    /// Lets exactly `cycles` cycles pass.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn run(&mut self, cycles: u64) -> Result<(), CosimError> {
        self.simulate(cycles, u64::MAX)
    }

    /// Writes those bytes that `strobe` names of the register at any address. Returns whether it answered OKAY.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn write_bytes(&mut self, address: u32, value: u32, strobe: u8) -> Result<bool, CosimError> {
        let answer = self.simulator.0.pin_mut().write_register(address, value, strobe & 0xF);
        self.tick();
        answer.map(|answer| answer.okay).map_err(|error| self.failed(&error))
    }

    /// Reads at any address. Returns the data and whether the device answered OKAY.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn read_address(&mut self, address: u32) -> Result<(u32, bool), CosimError> {
        let answer = self.simulator.0.pin_mut().read_register(address);
        self.tick();
        answer.map(|answer| (answer.value, answer.okay)).map_err(|error| self.failed(&error))
    }

    /// Writes the register that `place` has under this name.
    ///
    /// # Errors
    /// `WriteRefused` where it answers SLVERR; else failures of the device.
    pub fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        if self.write_bytes(register.address(place), value, 0xF)? {
            return Ok(());
        }
        Err(DeviceError::WriteRefused { device: NAME.to_owned(), register, value })
    }

    /// Reads the register that `place` has under this name.
    ///
    /// # Errors
    /// `ReadRefused` where it answers SLVERR; else failures of the device.
    pub fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        match self.read_address(register.address(place))? {
            (value, true) => Ok(value),
            (_, false) => Err(DeviceError::ReadRefused { device: NAME.to_owned(), register }),
        }
    }

    /// From here on `listener` is told what the NPU of a device with engine 1 does, in the cycle in which it does it. What it answers
    /// ends the device, as an assertion of RTL would.
    ///
    /// # Errors
    /// `Config` for a device without an NPU.
    pub fn observe_npu(
        &mut self,
        listener: impl FnMut(&Event) -> Result<(), String> + Send + 'static,
    ) -> Result<(), CosimError> {
        self.observe(NpuObserver::new(Box::new(listener)), true)
    }

    /// As [`observe_npu`](Self::observe_npu), without [what the words write](doorbell_npu::run::Retired::writes), which costs most of it.
    ///
    /// # Errors
    /// `Config` for a device without an NPU.
    pub fn observe_words(
        &mut self,
        listener: impl FnMut(&Event) -> Result<(), String> + Send + 'static,
    ) -> Result<(), CosimError> {
        self.observe(NpuObserver::new(Box::new(listener)), false)
    }

    fn observe(&mut self, observer: NpuObserver, writes: bool) -> Result<(), CosimError> {
        if self.simulator.0.pin_mut().observe_npu(Box::new(observer), writes) {
            return Ok(());
        }
        let value = self.built.engines.to_string();
        Err(CosimError::Config { field: "engines", value, expected: "2, where an NPU is to be observed" })
    }

    /// From here on counts the [cycles](Self::rested) in which a part of the device rests; with `awake` the clocks of what rests
    /// go on in each of them.
    pub fn watch_rests(&mut self, awake: bool) {
        self.simulator.0.pin_mut().watch_rests(awake);
    }

    /// Cycles since that [was asked for](Self::watch_rests) in which all but engine 1 has rested, or in a device of one engine what
    /// descriptors pass on their way to a worker.
    pub fn rested(&self) -> u64 {
        self.simulator.0.rested()
    }

    /// From here on takes the LIFE events of all queue pairs from the device's signals (R23), for [`tapped`](Platform::tapped): they are those of
    /// an event ring, but none is dropped, the device needs no ring and is not slowed, and ticks are [`cycles`](Self::cycles).
    ///
    /// # Errors
    /// `Simulator` in a build without waveforms, where those signals have no names.
    pub fn watch_lives(&mut self) -> Result<(), CosimError> {
        if !self.simulator.0.pin_mut().watch_lives() {
            let message = "this build records no waveforms, and so has no names for what tells the lives of \
                           descriptors: use an event ring";
            return Err(CosimError::Simulator { message: message.to_owned() });
        }
        self.lives = true;
        Ok(())
    }

    /// From here on keeps the pins of the last 256 cycles, for [`strip`](Self::strip).
    pub fn keep_strip(&mut self) {
        self.simulator.0.pin_mut().keep_strip();
    }

    /// The pins of the last cycles that were [kept](Self::keep_strip), the oldest first, the last of them that of the cycle before
    /// [`cycles`](Self::cycles).
    pub fn strip(&self) -> Vec<Pins> {
        self.simulator.0.strip().into_iter().map(Pins).collect()
    }

    /// What the bus owes the device.
    pub fn owed(&self) -> Owed {
        self.simulator.0.owed()
    }

    /// Writes the waveform recorded so far to its file.
    ///
    /// # Errors
    /// `Simulator` if it cannot be written.
    pub fn flush_wave(&mut self) -> Result<(), CosimError> {
        let result = self.simulator.0.pin_mut().flush_wave();
        result.map_err(|error| self.failed(&error))
    }

    pub(crate) fn simulator_mut(&mut self) -> std::pin::Pin<&mut ffi::Simulator> {
        self.simulator.0.pin_mut()
    }

    pub(crate) fn refused(&self, function: u8) -> u64 {
        self.simulator.0.refused(function.into())
    }

    fn simulate(&mut self, cycles: u64, want: u64) -> Result<(), CosimError> {
        let result = self.simulator.0.pin_mut().run(cycles, want);
        self.tick();
        result.map(drop).map_err(|error| self.failed(&error))
    }

    fn tick(&self) {
        self.clock.store(self.cycles(), Ordering::Relaxed);
        if let Some(watch) = &self.watch {
            watch.bursts.store(self.simulator.0.hostile_bursts(), Ordering::Relaxed);
            watch.strays.store(self.simulator.0.strays(), Ordering::Relaxed);
        }
    }

    fn failed(&self, error: &cxx::Exception) -> CosimError {
        self.failure().unwrap_or_else(|| CosimError::Simulator { message: error.what().to_owned() })
    }
}

/// The smallest variant with at least so many of each.
pub(crate) fn variant_for(config: &RtlConfig) -> Result<ffi::Built, CosimError> {
    let RtlConfig { workers, queues, functions, engines, .. } = *config;
    let wanted = [("workers", workers), ("queues", queues), ("functions", functions), ("engines", engines)];
    for (field, value) in wanted {
        if value == 0 {
            return Err(CosimError::Config { field, value: "0".to_owned(), expected: "at least 1" });
        }
    }
    let variants = built();
    variants
        .iter()
        .copied()
        .find(|built| {
            built.workers >= workers
                && built.queues >= queues
                && built.functions >= functions
                && built.engines == engines
        })
        .ok_or_else(|| {
            if queues == 1 && functions == 1 && engines == 1 {
                CosimError::NotBuilt { wanted: workers, built: crate::built_workers() }
            } else {
                CosimError::NoSuchDevice { workers, queues, functions, engines }
            }
        })
}

impl Platform for RtlPlatform {
    fn name(&self) -> &str {
        NAME
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let memory = SharedMemory::placed(bytes, SIMULATED_BUS_ADDRESS, &self.placement)?;
        // SAFETY: the block is writable and kept alive by the clone in `self`, which outlives the simulator; the
        // simulator accesses it atomically, as everybody else does.
        unsafe {
            self.simulator.0.pin_mut().attach(
                memory.host_pointer().as_ptr(),
                memory.len() as u64,
                memory.bus_address(),
            );
        }
        // Only now may an earlier block go.
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    fn read_worker(&mut self, worker: u8, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place { queue: worker, ..Place::FIRST }, register)
    }

    /// Those of a device whose [lives are watched](RtlPlatform::watch_lives): the ticks of an event ring are others.
    fn ticks(&mut self) -> Option<u64> {
        self.lives.then(|| self.cycles())
    }

    fn tapped(&mut self, queue: u8, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        while taken < out.len() && self.lives {
            let mut lives = [NO_LIFE; 64];
            let room = lives.len().min(out.len() - taken);
            let count = self.simulator.0.pin_mut().take_lives(queue.into(), &mut lives[..room]);
            for (out, life) in out[taken..].iter_mut().zip(&lives[..count]) {
                *out = HwEvent {
                    kind: EventKind::Life as u8,
                    queue_id: queue,
                    worker_id: life.worker as u16,
                    index: life.index,
                    stamp: life.stamp,
                    start: life.start,
                    first_token: life.first_token,
                    ended: life.ended,
                    visible: life.visible,
                };
            }
            taken += count;
            if count < room {
                break;
            }
        }
        Ok(taken)
    }

    fn keeps_lives(&self) -> bool {
        self.lives
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        Ok(self.simulate(self.slice, want.max(1) as u64)?)
    }
}

impl Pages for RtlPlatform {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        RtlPlatform::write_at(self, place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        RtlPlatform::read_at(self, place, register)
    }
}
