//! The one driver: queue-pair logic over any [`Platform`].

use bitflags::Flags;

use crate::config::{Checked, Layout, QueueConfig};
use crate::device::{Counters, Device, TokenRegion};
use crate::error::{DeviceError, Timeout};
use crate::memory::SharedMemory;
use crate::platform::Platform;
use crate::queue::{CompletionQueue, SubmissionQueue};
use doorbell_contract::{
    CONTRACT_VERSION, Control, Counter, DEVICE_ID, DeviceFault, HwCompletion, HwDesc, Register, State,
};

/// A device with its queue pair.
pub struct Driver<P: Platform> {
    platform: P,
    config: QueueConfig,
    layout: Layout,
    memory: SharedMemory,
    tokens: TokenRegion,
    sq: SubmissionQueue,
    cq: CompletionQueue,
    enabled: bool,
    submitted: u64,
    completed: u64,
    /// Advances since progress was last seen (R15).
    fruitless: u32,
    /// What the progress counters were then.
    progress: Progress,
}

/// Device counters of which at least one moves while the device is alive and has work.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    consumed: u64,
    completed: u64,
    tokens: u64,
}

impl<P: Platform> Driver<P> {
    /// Takes over the device behind `platform`, sets it up as `config` says, and starts it.
    ///
    /// # Errors
    /// `RingDepth` or `Config` for a bad configuration, `NotADevice` or `Version` if this is no device of ours,
    /// `NotStarted` or `Timeout` if it does not start, or another failure of the device.
    pub fn new(mut platform: P, config: QueueConfig) -> Result<Self, DeviceError> {
        let Checked { layout, .. } = config.check()?;
        identify(&mut platform)?;
        let memory = platform.map(layout.bytes)?;
        let (sq, cq) = queues(&config, &memory)?;
        let tokens = TokenRegion::new(memory.clone(), layout.tokens, config.token_bytes)?;
        let mut driver = Self {
            platform,
            config,
            layout,
            memory,
            tokens,
            sq,
            cq,
            enabled: true,
            submitted: 0,
            completed: 0,
            fruitless: 0,
            progress: Progress::default(),
        };
        // Somebody else may have left it running.
        driver.disable()?;
        driver.enable()?;
        Ok(driver)
    }

    /// The configuration.
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// Where the parts of the queue pair lie in [`memory`](Self::memory).
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The shared memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// The platform, to look at.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The platform, to turn knobs of the device that are no registers. Registers belong to the driver: DOORBELL,
    /// CQ_HEAD and CONTROL written here lose the queue pair.
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Gives the platform back; the device stays as it is.
    pub fn into_platform(self) -> P {
        self.platform
    }

    /// The submission queue, to write slots that [`ring`](Self::ring) publishes later.
    pub fn submission_queue(&mut self) -> &mut SubmissionQueue {
        &mut self.sq
    }

    /// Reads a register.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn read(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.platform.read_register(register)
    }

    /// Writes a register.
    ///
    /// # Errors
    /// `WriteRefused`, or another failure of the device.
    pub fn write(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.platform.write_register(register, value)
    }

    /// Reads a 64-bit counter; reading the low half latches the high half.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn counter(&mut self, counter: Counter) -> Result<u64, DeviceError> {
        let low = self.read(counter.lo())?;
        let high = self.read(counter.hi())?;
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    /// Publishes every slot written so far (R1) with one doorbell.
    ///
    /// # Errors
    /// `Disabled`, or a failure of the device.
    #[inline]
    pub fn ring(&mut self) -> Result<(), DeviceError> {
        self.require_enabled("ringing the doorbell")?;
        let tail = self.sq.tail();
        self.write(Register::Doorbell, tail)?;
        self.submitted = self.published(tail);
        Ok(())
    }

    /// Descriptors published up to `tail`, which is at most one ring's depth ahead of those known.
    #[inline]
    fn published(&self, tail: u32) -> u64 {
        let known = self.config.sq_start.wrapping_add(self.submitted as u32);
        self.submitted + u64::from(tail.wrapping_sub(known))
    }

    /// Copies fresh completions, and releases them.
    #[inline]
    fn take(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let taken = self.cq.pop(out)?;
        if taken == 0 {
            return Ok(0);
        }
        for completion in &out[..taken] {
            self.completed += 1;
            // Each completion's own descriptor, at least, has been consumed.
            let floor = self.config.sq_start.wrapping_add(self.completed as u32);
            if self.completed > self.submitted || !self.sq.consumed_to(floor, completion.sq_head) {
                return Err(self.implausible(completion));
            }
        }
        self.write(Register::CqHead, self.cq.head())?;
        self.fruitless = 0;
        Ok(taken)
    }

    #[cold]
    fn implausible(&self, completion: &HwCompletion) -> DeviceError {
        if self.completed > self.submitted {
            let what = format!("{} completions for {} descriptors", self.completed, self.submitted);
            return self.protocol("R3", what);
        }
        let (found, head, tail) = (completion.sq_head, self.sq.head(), self.sq.tail());
        let what = format!(
            "sq_head {found:#x} of completion {} is not within {head:#x} to {tail:#x}, or less than the completions",
            self.completed
        );
        self.protocol("R13", what)
    }

    fn protocol(&self, rule: &'static str, what: String) -> DeviceError {
        DeviceError::Protocol { device: self.platform.name().to_owned(), rule, what }
    }

    #[inline]
    fn require_enabled(&self, operation: &'static str) -> Result<(), DeviceError> {
        if self.enabled {
            return Ok(());
        }
        Err(DeviceError::Disabled { device: self.platform.name().to_owned(), operation })
    }

    /// Counts an advance that brought no completion, and gives up once `patience` of them saw no progress (R15).
    fn note_fruitless(&mut self) -> Result<(), DeviceError> {
        self.fruitless += 1;
        if self.fruitless < self.config.patience {
            return Ok(());
        }
        let progress = Progress {
            consumed: self.counter(Counter::Descriptors)?,
            completed: self.counter(Counter::Completions)?,
            tokens: self.counter(Counter::Tokens)?,
        };
        if progress != self.progress {
            self.progress = progress;
            self.fruitless = 0;
            return Ok(());
        }
        Err(self.timeout("a completion")?)
    }

    /// Waits until STATE is as `reached` wants it, for at most `patience` advances (R15).
    fn wait_for_state(
        &mut self,
        waited_for: &'static str,
        reached: impl Fn(State) -> bool,
    ) -> Result<(), DeviceError> {
        for _ in 0..self.config.patience {
            if reached(State::from_bits_retain(self.read(Register::State)?)) {
                return Ok(());
            }
            self.platform.advance(1)?;
        }
        Err(self.timeout(waited_for)?)
    }

    #[cold]
    fn timeout(&mut self, waited_for: &'static str) -> Result<DeviceError, DeviceError> {
        let state = State::from_bits_retain(self.read(Register::State)?);
        let status = self.read(Register::Status)?;
        let fault = self.read(Register::Error)?;
        Ok(DeviceError::Timeout(Box::new(Timeout {
            device: self.platform.name().to_owned(),
            waited_for,
            patience: self.config.patience,
            in_flight: self.in_flight(),
            sq_tail: self.sq.tail(),
            sq_head: self.sq.head(),
            cq_head: self.cq.head(),
            state: format!("{:#x} ({})", state.bits(), names(state)),
            status: format!(
                "{status:#010x} ({} workers busy, worker 0 in state {}, {} descriptors and {} completions queued, {} \
                 doorbells refused)",
                status >> 27,
                status >> 24 & 7,
                status >> 16 & 0xFF,
                status >> 8 & 0xFF,
                status & 0xFF
            ),
            fault: names(DeviceFault::from_bits_retain(fault)),
            consumed: self.counter(Counter::Descriptors)?,
            completed: self.counter(Counter::Completions)?,
            tokens: self.counter(Counter::Tokens)?,
            report: self.platform.report().map(|report| format!("; {report}")).unwrap_or_default(),
        })))
    }
}

impl<P: Platform> Device for Driver<P> {
    fn name(&self) -> &str {
        self.platform.name()
    }

    #[inline]
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.require_enabled("submitting")?;
        let taken = self.sq.push(batch)?;
        if taken > 0 {
            self.ring()?;
        }
        Ok(taken)
    }

    #[inline]
    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.require_enabled("polling")?;
        let taken = self.take(out)?;
        if taken > 0 || out.is_empty() || self.in_flight() == 0 {
            return Ok(taken);
        }
        self.platform.advance((self.in_flight() / 4).max(1))?;
        let taken = self.take(out)?;
        if taken == 0 {
            self.note_fruitless()?;
        }
        Ok(taken)
    }

    #[inline]
    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.require_enabled("polling")?;
        self.take(out)
    }

    #[inline]
    fn in_flight(&self) -> usize {
        (self.submitted - self.completed) as usize
    }

    fn capacity(&self) -> usize {
        self.config.sq_depth as usize
    }

    fn room(&self) -> usize {
        self.sq.free()
    }

    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.tokens.read(delta_offset, out)
    }

    fn token_regions(&self) -> Vec<TokenRegion> {
        vec![self.tokens.clone()]
    }

    #[inline]
    fn token_shard(&self, _: u64) -> usize {
        0
    }

    fn counters(&mut self) -> Result<Counters, DeviceError> {
        Counters::read(|counter| self.counter(counter))
    }

    fn disable(&mut self) -> Result<(), DeviceError> {
        self.enabled = false;
        self.write(Register::Control, 0)?;
        self.wait_for_state("the end of a disable (STATE.ACTIVE = 0)", |state| {
            !state.contains(State::ACTIVE)
        })?;
        (self.submitted, self.completed) = (0, 0);
        Ok(())
    }

    fn enable(&mut self) -> Result<(), DeviceError> {
        if self.enabled {
            return Ok(());
        }
        (self.sq, self.cq) = queues(&self.config, &self.memory)?;
        (self.submitted, self.completed, self.fruitless, self.progress) = (0, 0, 0, Progress::default());
        self.write(Register::Error, u32::MAX)?;
        for (register, value) in self.config.registers(&self.layout, self.memory.bus_address()) {
            self.write(register, value)?;
        }
        let built = self.read(Register::Capability)? & 0xFF;
        let workers = self.config.workers.unwrap_or(built);
        if workers > built {
            return Err(DeviceError::Config {
                field: "workers",
                value: workers.into(),
                expected: format!("at most {built}, which is what {} has", self.platform.name()),
            });
        }
        self.write(Register::Workers, workers)?;
        self.write(Register::Control, Control::ENABLE.bits())?;
        self.wait_for_state("the start after ENABLE (STATE.ACTIVE = 1)", |state| {
            state.intersects(State::ACTIVE | State::FAULT)
        })?;
        let fault = self.read(Register::Error)?;
        if fault != 0 {
            let reason = format!("ERROR reads {}", names(DeviceFault::from_bits_retain(fault)));
            return Err(DeviceError::NotStarted { device: self.platform.name().to_owned(), reason });
        }
        self.enabled = true;
        Ok(())
    }
}

fn queues(
    config: &QueueConfig,
    memory: &SharedMemory,
) -> Result<(SubmissionQueue, CompletionQueue), DeviceError> {
    let Checked { sq_depth, cq_depth, layout } = config.check()?;
    Ok((
        SubmissionQueue::new(memory, layout.sq, sq_depth, config.sq_start)?,
        CompletionQueue::new(memory, layout.cq, cq_depth, config.cq_start)?,
    ))
}

fn identify(platform: &mut impl Platform) -> Result<(), DeviceError> {
    let found = platform.read_register(Register::Id)?;
    if found != DEVICE_ID {
        return Err(DeviceError::NotADevice {
            device: platform.name().to_owned(),
            found,
            expected: DEVICE_ID,
        });
    }
    let found = platform.read_register(Register::Version)?;
    if found >> 16 != CONTRACT_VERSION >> 16 {
        return Err(DeviceError::Version {
            device: platform.name().to_owned(),
            found,
            expected: CONTRACT_VERSION,
        });
    }
    Ok(())
}

fn names<F: Flags>(flags: F) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
