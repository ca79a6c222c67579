//! The one driver: queue-pair logic over any [`Platform`].

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::Ordering;
use std::time::Instant;

use bitflags::Flags;
use bytemuck::cast_slice_mut;

use crate::config::{Checked, Layout, QueueConfig};
use crate::device::{Counters, Device, Features, QueueCounters, TokenRegion, WorkerCounters};
use crate::error::{DeviceError, Timeout};
use crate::language::{LanguageRegions, WordRegion};
use crate::ledger::{Broken, Ledger};
use crate::memory::SharedMemory;
use crate::platform::{Awaited, Platform};
use crate::ports::SharedDevice;
use crate::queue::{CompletionQueue, Depth, EventQueue, SubmissionQueue};
use crate::split::{Completer, Submitter, split};
use crate::why::{Known, Outstanding, Seen, Why};
use doorbell_contract::{
    Block, CONTRACT_VERSION, Capability, CompletionFlags, Control, Counter, DEVICE_ID, DeviceFault,
    EventKind, HwCompletion, HwDesc, HwEvent, HwPolicy, QueueCounter, Register, State, WorkerCounter,
};

/// A device with its queue pair.
///
/// Once the device has broken a rule, the queue pair is lost: every operation returns the same `Protocol` error, until
/// it is disabled and enabled. Completions that came before the impossible one are returned first.
// Drivers lie side by side in arrays, each written by another thread with every batch: on cache lines of its own, and of no
// pair that a processor fetches together.
#[repr(align(128))]
pub struct Driver<P: Platform> {
    pub(crate) platform: P,
    pub(crate) parts: Parts,
    pub(crate) sq: SubmissionQueue,
    pub(crate) cq: CompletionQueue,
    pub(crate) condition: Condition,
    pub(crate) submitted: u64,
    pub(crate) ledger: Ledger,
    pub(crate) patience: Patience,
    /// Where the interrupt is armed, if it is and has not come.
    pub(crate) armed: Option<u32>,
    /// The event ring of the function, where this queue pair has laid it out.
    pub(crate) events: Option<EventQueue>,
    /// The last EQ_HEAD that was written.
    pub(crate) released: u32,
    /// The `user_data` of the completions taken last, by the lower bits of their index; empty without LIFE events.
    pub(crate) answers: Vec<u64>,
    /// The [tap](Platform::tapped) has yielded the LIFE events of all completions below this index.
    pub(crate) told: u32,
    /// Whether the platform itself keeps all LIFE events until they are read, instead of an event ring.
    pub(crate) keeps_lives: bool,
}

/// What stays the same as long as the driver lives.
pub(crate) struct Parts {
    pub config: QueueConfig,
    pub layout: Layout,
    pub memory: SharedMemory,
    pub tokens: TokenRegion,
    /// What the device says that it can do.
    pub features: Features,
    /// Whether the device polls the slots: then the check word publishes, and the doorbell only wakes (R1).
    pub slot_polling: bool,
    /// Whether the device's platform has interrupts.
    pub interrupts: bool,
}

impl Parts {
    /// What this driver wrote to the registers that locate the rings and coalesce interrupts. SQ_KEY is left out: a slot that was sealed
    /// with another key completes with an error (R2).
    pub fn settings(&self) -> Vec<(Register, u32)> {
        use Register as R;
        let rings = [
            R::SqBaseLo,
            R::SqBaseHi,
            R::SqSize,
            R::SqStart,
            R::CqBaseLo,
            R::CqBaseHi,
            R::CqSize,
            R::CqStart,
        ];
        let all = self.config.registers(&self.layout, self.memory.bus_address(), 0);
        let mut settings: Vec<_> = all.into_iter().filter(|(register, _)| rings.contains(register)).collect();
        if self.features.capability.contains(Capability::INTERRUPT) {
            settings.extend(self.config.coalescing_registers());
        }
        settings
    }
}

/// Whether the queue pair can be used.
pub(crate) enum Condition {
    Ready,
    /// It failed behind completions that were returned: the next operation returns the error, and the queue pair is ready again.
    Failed(Box<DeviceError>),
    Disabled,
    /// The device broke a rule.
    Lost(Box<Broken>),
}

/// How many times in a row `patience` advances may show no progress other than tokens of any queue pair. These may be the queue pair's own,
/// because its counter may count them only with their completion. Or the queue pair may wait for a worker that others use.
const TOKENS_ALONE: u32 = 1000;

/// Counts waits without progress of the device (R15).
pub(crate) struct Patience {
    limit: u32,
    /// Advances since progress was last seen.
    fruitless: u32,
    /// How many times in a row tokens of the whole device were the only progress.
    excused: u32,
    /// What the progress counters were then.
    progress: Progress,
}

/// What changes while the device is alive and the queue pair has work: its own indices and tokens, or the tokens of any queue pair.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    consumed: u32,
    completed: u32,
    own_tokens: u64,
    tokens: u64,
}

impl Patience {
    fn new(limit: u32) -> Self {
        Self { limit, fruitless: 0, excused: 0, progress: Progress::default() }
    }

    /// Something came.
    #[inline]
    pub fn reset(&mut self) {
        self.fruitless = 0;
    }

    /// Counts an advance that brought no completion. Returns whether too many in a row made no progress.
    pub fn is_over(&mut self, platform: &mut impl Platform) -> Result<bool, DeviceError> {
        self.fruitless += 1;
        if self.fruitless < self.limit {
            return Ok(false);
        }
        let progress = Progress {
            consumed: platform.read_register(Register::SqHead)?,
            completed: platform.read_register(Register::CqTail)?,
            own_tokens: halves(platform, QueueCounter::Tokens.lo(), QueueCounter::Tokens.hi())?,
            tokens: counter(platform, Counter::Tokens)?,
        };
        let before = self.progress;
        let own = Progress { tokens: before.tokens, ..progress } != before;
        self.excused = if own { 0 } else { self.excused + 1 };
        if progress == before || self.excused > TOKENS_ALONE {
            return Ok(true);
        }
        (self.progress, self.fruitless) = (progress, 0);
        Ok(false)
    }
}

fn counter(platform: &mut impl Platform, counter: Counter) -> Result<u64, DeviceError> {
    halves(platform, counter.lo(), counter.hi())
}

/// Reads a 64-bit counter that counts on between its halves.
fn halves(platform: &mut impl Platform, low: Register, high: Register) -> Result<u64, DeviceError> {
    halves_by(|register| platform.read_register(register), low, high)
}

/// Likewise, each register through `read`.
fn halves_by(
    mut read: impl FnMut(Register) -> Result<u32, DeviceError>,
    low: Register,
    high: Register,
) -> Result<u64, DeviceError> {
    let before = read(high)?;
    let mut value = read(low)?;
    let after = read(high)?;
    if after != before {
        // The low half ran over; it takes 2^32 counts to do so again.
        value = read(low)?;
    }
    Ok(u64::from(after) << 32 | u64::from(value))
}

/// The error for a rule that the device `device` broke.
pub(crate) fn protocol(device: &str, broken: &Broken) -> DeviceError {
    DeviceError::Protocol { device: device.to_owned(), rule: broken.rule, what: broken.what.clone() }
}

/// The rule that the device broke first: if a register does not hold what the driver wrote, that explains `broken`.
#[cold]
pub(crate) fn explained(
    platform: &mut impl Platform,
    parts: &Parts,
    known: &Known,
    broken: Broken,
) -> Broken {
    // Registers that cannot be read explain nothing.
    let altered = Seen::of(platform, parts).ok().and_then(|seen| seen.altered(known));
    match altered {
        Some((root, rule)) => Broken { rule, what: format!("{root}; {}", broken.what) },
        None => broken,
    }
}

/// What the driver waits for, unless it waits for STATE.
pub(crate) const COMPLETION: &str = "a completion";

/// What the device's workers do, in words.
fn workers(platform: &mut impl Platform) -> Result<String, DeviceError> {
    if !platform.shows_workers() {
        return Ok("what its workers do is not shown".to_owned());
    }
    let workers = platform.read_register(Register::WorkerState)?;
    let busy: String = [
        (1 << 2, ", one held back by the write port"),
        (1 << 1, ", one in wait states"),
        (1 << 0, ", one that runs"),
    ]
    .iter()
    .filter(|&&(bit, _)| workers & bit != 0)
    .map(|&(_, name)| name)
    .collect();
    Ok(format!("{} workers busy{busy}", workers >> 3 & 0x1F))
}

/// The report of a wait that ran out.
#[cold]
pub(crate) fn timeout(
    platform: &mut impl Platform,
    waited_for: &'static str,
    parts: &Parts,
    known: &Known,
    outstanding: impl FnOnce() -> Outstanding,
) -> Result<DeviceError, DeviceError> {
    let state = State::from_bits_retain(platform.read_register(Register::State)?);
    let status = platform.read_register(Register::Status)?;
    let workers = workers(platform)?;
    let fault = platform.read_register(Register::Error)?;
    let why = if waited_for == COMPLETION {
        Some(Why::of(&Seen::of(platform, parts)?, known, outstanding()))
    } else {
        None
    };
    Ok(DeviceError::Timeout(Box::new(Timeout {
        device: platform.name().to_owned(),
        waited_for,
        patience: parts.config.patience,
        in_flight: known.in_flight as usize,
        sq_tail: known.sq_tail,
        sq_head: known.sq_head,
        cq_head: known.cq_head,
        state: format!("{:#x} ({})", state.bits(), names(state)),
        status: format!(
            "{status:#010x} ({} descriptors and {} completions queued, {} doorbells refused; {workers})",
            status >> 16 & 0xFF,
            status >> 8 & 0xFF,
            status & 0xFF,
        ),
        fault: names(DeviceFault::from_bits_retain(fault)),
        consumed: counter(platform, Counter::Descriptors)?,
        completed: counter(platform, Counter::Completions)?,
        tokens: counter(platform, Counter::Tokens)?,
        report: platform.report().map(|report| format!("; {report}")).unwrap_or_default(),
        why,
    })))
}

impl<P: Platform> Driver<P> {
    /// Takes over the device behind `platform`, sets it up as `config` says, and starts it.
    ///
    /// # Errors
    /// `RingDepth` or `Config` for a bad configuration, `NotADevice` or `Version` if this is no device of ours,
    /// `NotStarted` or `Timeout` if it does not start, or another failure of the device.
    pub fn new(platform: P, config: QueueConfig) -> Result<Self, DeviceError> {
        let Checked { layout, .. } = config.check()?;
        Self::start(platform, config, layout, None)
    }

    /// As [`new`](Self::new), over `tokens`, the token region of another queue pair of the same device. The region keeps its contents. This
    /// gives a process that only reads tokens, to score them (REWARD), its own queue pair. `token_bytes` of the configuration is ignored.
    ///
    /// There is no order between two queue pairs (R5): submit a descriptor that reads tokens only after you have seen the completion of the
    /// descriptor that wrote them.
    ///
    /// # Errors
    /// As [`new`](Self::new); also `NotStarted` if no window of this queue pair's function contains the region (R11).
    pub fn over(platform: P, config: QueueConfig, tokens: TokenRegion) -> Result<Self, DeviceError> {
        let Checked { layout, .. } = QueueConfig { token_bytes: 0, ..config.clone() }.check()?;
        let config = QueueConfig { token_bytes: tokens.bytes(), ..config };
        Self::start(platform, config, layout, Some(tokens))
    }

    fn start(
        mut platform: P,
        config: QueueConfig,
        layout: Layout,
        tokens: Option<TokenRegion>,
    ) -> Result<Self, DeviceError> {
        identify(&mut platform)?;
        let memory = platform.map(layout.bytes)?;
        let (sq, cq) = queues(&config, &memory, 0)?;
        let tokens = match tokens {
            Some(tokens) => tokens,
            None => TokenRegion::new(memory.clone(), layout.tokens, config.token_bytes)?,
        };
        let features = Features::of(&mut platform)?;
        let slot_polling = features.capability.contains(Capability::SLOT_POLLING);
        let interrupts = match platform.route(&memory, layout.message) {
            Err(DeviceError::WriteRefused { .. }) => false,
            routed => routed.map(|()| true)?,
        };
        let mut driver = Self {
            platform,
            sq,
            cq,
            condition: Condition::Disabled,
            submitted: 0,
            ledger: Ledger::new(config.sq_start),
            patience: Patience::new(config.patience),
            armed: None,
            events: None,
            released: 0,
            answers: vec![],
            told: 0,
            keeps_lives: false,
            parts: Parts { config, layout, memory, tokens, features, slot_polling, interrupts },
        };
        // Somebody else may have left it running.
        driver.disable()?;
        driver.enable()?;
        Ok(driver)
    }

    /// The configuration.
    pub fn config(&self) -> &QueueConfig {
        &self.parts.config
    }

    /// Where the parts of the queue pair lie in [`memory`](Self::memory).
    pub fn layout(&self) -> Layout {
        self.parts.layout
    }

    /// The shared memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.parts.memory
    }

    /// The platform, to look at.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The platform, for settings of the device that are not registers. The driver owns the registers: a write to DOORBELL, CQ_HEAD or
    /// CONTROL through this reference makes the queue pair unusable.
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

    /// Sets a register, unless it already holds this value. Other queue pairs may share the register and be in use.
    fn configure(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        let own = matches!(register.block(), Block::FunctionQueue | Block::Queue);
        let found = if own { None } else { Some(self.read(register)?) };
        match found {
            Some(found) if found == value => Ok(()),
            Some(found) if register == Register::WaitStates && self.platform.shared_device().is_some() => {
                Err(self.owned("wait_states", value, found))
            }
            _ => self.write(register, value),
        }
    }

    /// The error for a register that the device's owner has set to another value.
    #[cold]
    fn owned(&self, field: &'static str, value: u32, found: u32) -> DeviceError {
        let expected = format!("{found}, as the owner of {} has set it", self.platform.name());
        DeviceError::Config { field, value: value.into(), expected }
    }

    /// Sets the registers of the parts that not every device has.
    fn configure_parts(&mut self) -> Result<(), DeviceError> {
        let Parts { config, layout, memory, features, .. } = &self.parts;
        let logp = config.logp_registers(layout, memory.bus_address());
        let (logp_bytes, ranges, features) = (config.logp_bytes, config.range_registers(), *features);
        let coalescing = config.coalescing_registers();
        if features.capability.contains(Capability::LOGP) {
            for (register, value) in logp {
                self.configure(register, value)?;
            }
        } else if logp_bytes > 0 {
            return Err(self.lacks("logp_bytes", logp_bytes, "log-probabilities (CAPABILITY.LOGP)"));
        }
        if features.capability.contains(Capability::INTERRUPT) {
            for (register, value) in coalescing {
                self.configure(register, value)?;
            }
        } else if let Some((register, value)) = coalescing.into_iter().find(|&(_, value)| value != 0) {
            let field = if register == Register::CoalesceCount { "coalesce_count" } else { "coalesce_time" };
            return Err(self.lacks(field, value.into(), "coalesced interrupts (CAPABILITY.INTERRUPT)"));
        }
        self.configure_language()?;
        if features.reward_models > 1 {
            for (register, value) in ranges {
                self.configure(register, value)?;
            }
        } else if let Some(&(lo, _)) = self.parts.config.ranges.iter().find(|(lo, hi)| lo <= hi) {
            return Err(self.lacks("ranges", lo.into(), "reward model 1 (CAP_REWARD_MODELS)"));
        }
        Ok(())
    }

    /// Sets the MODEL region and the arenas. If this queue pair has none, it keeps those that another active queue pair of the function has
    /// set.
    fn configure_language(&mut self) -> Result<(), DeviceError> {
        let Parts { config, layout, memory, features, .. } = &self.parts;
        let arenas = config.arena_bytes.iter().sum::<u64>();
        let (model_bytes, registers) =
            (config.model_bytes, config.language_registers(layout, memory.bus_address()));
        let asked = [("model_bytes", model_bytes), ("arena_bytes", arenas)];
        let asked = asked.into_iter().find(|&(_, bytes)| bytes > 0);
        if features.engines < 2 {
            return asked
                .map_or(Ok(()), |(field, bytes)| Err(self.lacks(field, bytes, "engine 1 (CAP_ENGINES)")));
        }
        for (register, value) in registers {
            match (self.configure(register, value), asked) {
                (Err(DeviceError::WriteRefused { .. }), None) => return Ok(()),
                (Err(DeviceError::WriteRefused { .. }), Some((field, bytes))) => {
                    let expected = "that of the first queue pair of its function that is enabled".into();
                    return Err(DeviceError::Config { field, value: bytes, expected });
                }
                (written, _) => written?,
            }
        }
        Ok(())
    }

    /// Sets up the event ring if no queue pair of the function is active, and returns whether it did.
    fn configure_events(&mut self) -> Result<bool, DeviceError> {
        let Parts { config, layout, memory, features, .. } = &self.parts;
        if !features.capability.contains(Capability::EVENTS) {
            return match config.event_slots {
                0 => Ok(false),
                slots => Err(self.lacks("event_slots", slots.into(), "events (CAPABILITY.EVENTS)")),
            };
        }
        for (register, value) in config.event_registers(layout, memory.bus_address()) {
            match self.write(register, value) {
                Err(DeviceError::WriteRefused { .. }) => return Ok(false),
                written => written?,
            }
        }
        Ok(true)
    }

    /// Whether the ring of the function, which runs, is the one that this queue pair lays out.
    fn owns_events(&mut self) -> Result<bool, DeviceError> {
        let Parts { config, layout, memory, .. } = &self.parts;
        for (register, value) in config.event_registers(layout, memory.bus_address()) {
            if self.read(register)? != value {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes over the ring of an active function in the state that an earlier driver of this queue pair left.
    fn take_over_events(&mut self, depth: Depth) -> Result<(), DeviceError> {
        let tail = self.read(Register::EqTail)?;
        // What the device writes meanwhile is lost where it is overwritten: its slot is passed over.
        self.events = Some(EventQueue::new(&self.parts.memory, self.parts.layout.events, depth, tail)?);
        self.released = tail;
        self.write(Register::EqHead, tail)
    }

    /// The error for a configuration that needs something the device does not have.
    #[cold]
    fn lacks(&self, field: &'static str, value: u64, what: &str) -> DeviceError {
        let expected = format!("unset: {} has no {what}", self.platform.name());
        DeviceError::Config { field, value, expected }
    }

    /// Ends the published DECODEs of `rollout`, as a STOP does, without a descriptor and its completion (R8).
    ///
    /// # Errors
    /// `WriteRefused` if the device has no ABORT or has not finished the previous one, or another failure of the device.
    pub fn abort(&mut self, rollout: u32) -> Result<(), DeviceError> {
        self.ring()?;
        self.write(Register::Abort, rollout)
    }

    /// Writes the header of a policy to `delta_offset` of the token region, for a POLICY to load (R19).
    ///
    /// # Errors
    /// `OutOfBounds` if it does not lie in the region.
    pub fn place_policy(&mut self, delta_offset: u64, header: &HwPolicy) -> Result<(), DeviceError> {
        self.parts.tokens.place_policy(delta_offset, header)
    }

    fn logp_region(&self) -> Result<TokenRegion, DeviceError> {
        let Parts { config, layout, memory, .. } = &self.parts;
        TokenRegion::new(memory.clone(), layout.logp, config.logp_bytes)
    }

    /// Where engine 1 has its memory, if this queue pair has laid it out.
    fn language(&self) -> Result<Option<LanguageRegions>, DeviceError> {
        let Parts { config, layout, memory, .. } = &self.parts;
        if config.model_bytes == 0 {
            return Ok(None);
        }
        let region = |name, start, bytes| WordRegion::new(memory.clone(), name, start, bytes);
        let [a, b, c, d] = std::array::from_fn(|k| region("arena", layout.arenas[k], config.arena_bytes[k]));
        Ok(Some(LanguageRegions {
            model: region("MODEL region", layout.model, config.model_bytes)?,
            sequences: region("KV region", layout.kv, config.kv_bytes)?,
            arenas: [a?, b?, c?, d?],
        }))
    }

    /// Copies the log-probabilities, Q16.16, of the tokens from `delta_offset` on.
    ///
    /// # Errors
    /// `OutOfBounds` if they do not lie in the region.
    pub fn logps(&self, delta_offset: u64, out: &mut [i32]) -> Result<(), DeviceError> {
        self.logp_region()?.read(delta_offset, cast_slice_mut(out))
    }

    /// Sets the workers that the configuration asks for. If other queue pairs use the device too, its owner has already chosen them.
    fn choose_workers(&mut self) -> Result<(), DeviceError> {
        let wanted = self.parts.config.workers;
        if self.platform.shared_device().is_some() {
            let found = self.read(Register::FnWorkers)?.count_ones();
            return match wanted {
                Some(workers) if workers != found => Err(self.owned("workers", workers, found)),
                _ => Ok(()),
            };
        }
        let built = self.read(Register::CapWorkers)?;
        check_workers(wanted, built)?;
        let workers = wanted.unwrap_or(built);
        if workers > built {
            return Err(DeviceError::Config {
                field: "workers",
                value: workers.into(),
                expected: format!("at most {built}, which is what {} has", self.platform.name()),
            });
        }
        self.configure(Register::FnWorkers, mask(workers) & mask(built))
    }

    /// Reads a counter of the device.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn counter(&mut self, counter: Counter) -> Result<u64, DeviceError> {
        self::counter(&mut self.platform, counter)
    }

    /// Reads a counter of the queue pair.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn queue_counter(&mut self, counter: QueueCounter) -> Result<u64, DeviceError> {
        halves(&mut self.platform, counter.lo(), counter.hi())
    }

    /// Reads a counter of the worker of this number.
    ///
    /// # Errors
    /// `ReadRefused` where the device has no such worker or no CAPABILITY.WORKER_COUNTERS, or a failure of the device.
    pub fn worker_counter(&mut self, worker: u8, counter: WorkerCounter) -> Result<u64, DeviceError> {
        let platform = &mut self.platform;
        halves_by(|register| platform.read_worker(worker, register), counter.lo(), counter.hi())
    }

    /// The queue pair as two halves, for two threads: one submits, one takes completions.
    ///
    /// # Errors
    /// `Disabled` or `Protocol` if the queue pair cannot be used, or a failure of the device; the driver is gone then.
    pub fn split(mut self) -> Result<(Submitter<P>, Completer<P>), DeviceError> {
        self.ring()?;
        Ok(split(self))
    }

    /// Publishes every slot written so far (R1) with one doorbell.
    ///
    /// # Errors
    /// `Disabled`, or a failure of the device.
    #[inline]
    pub fn ring(&mut self) -> Result<(), DeviceError> {
        self.require_ready("ringing the doorbell")?;
        self.publish()
    }

    #[inline]
    fn publish(&mut self) -> Result<(), DeviceError> {
        self.tell(Register::Doorbell, self.sq.tail())?;
        self.submitted = self.written();
        Ok(())
    }

    /// Writes an index that an active queue pair accepts.
    #[inline]
    fn tell(&mut self, register: Register, index: u32) -> Result<(), DeviceError> {
        match self.write(register, index) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// The error for a failed write, with its root if the registers show it.
    #[cold]
    fn refused(&mut self, error: DeviceError) -> DeviceError {
        let DeviceError::WriteRefused { device, register, value } = error else { return error };
        let known = self.known().ok();
        let seen = known.and_then(|known| Some((Seen::of(&mut self.platform, &self.parts).ok()?, known)));
        match seen.and_then(|(seen, known)| seen.refuses(&known)) {
            Some(root) => DeviceError::Refused { device, register, value, root: Box::new(root) },
            None => DeviceError::WriteRefused { device, register, value },
        }
    }

    /// Descriptors written to the queue so far, which is at most one ring's depth ahead of those known.
    #[inline]
    fn written(&self) -> u64 {
        self.submitted + u64::from(self.sq.tail().wrapping_sub(self.ledger.index(self.submitted)))
    }

    /// Copies fresh completions, and releases them.
    #[inline]
    fn take(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let taken = self.cq.pop(out)?;
        if taken == 0 {
            return Ok(0);
        }
        let most = self.ledger.completed() + taken as u64;
        if most > self.submitted {
            self.notice_polled(most);
        }
        if let Err((count, broken)) = self.ledger.take(&out[..taken], self.submitted, self.sq.tail()) {
            return self.lose(count, broken);
        }
        self.sq.consumed(self.ledger.sq_head());
        if let Err(error) = self.tell(Register::CqHead, self.cq.head()) {
            self.tell_later(error);
        }
        self.patience.reset();
        if !self.answers.is_empty() {
            self.note_answers(out, taken);
        }
        Ok(taken)
    }

    /// Keeps the `user_data` of the completions taken last, for their events.
    #[cold]
    fn note_answers(&mut self, completions: &[HwCompletion], taken: usize) {
        let first = self.cq.head().wrapping_sub(taken as u32);
        if self.keeps_lives {
            self.make_room_for_answers(first);
        }
        let mask = self.answers.len() - 1;
        for (k, completion) in (0..).zip(&completions[..taken]) {
            self.answers[first.wrapping_add(k) as usize & mask] = completion.user_data;
        }
    }

    /// Makes room, so that completions whose events are unread keep their `user_data`.
    #[cold]
    fn make_room_for_answers(&mut self, first: u32) {
        // Negative if events arrived for completions that the host has not taken, because an earlier completion was lost.
        let unread = i64::from(self.cq.head().wrapping_sub(self.told) as i32);
        if unread <= self.answers.len() as i64 {
            return;
        }
        let old = std::mem::take(&mut self.answers);
        self.answers = vec![0; (unread as usize).next_power_of_two()];
        for index in (0..old.len() as u32).map(|behind| first.wrapping_sub(behind + 1)) {
            let place = index as usize & (self.answers.len() - 1);
            self.answers[place] = old[index as usize & (old.len() - 1)];
        }
    }

    /// Notes that there are `most` completions. If the device polls slots, some may belong to descriptors that the doorbell has not
    /// announced.
    #[cold]
    fn notice_polled(&mut self, most: u64) {
        if self.parts.slot_polling {
            self.submitted = most.min(self.written());
        }
    }

    /// Keeps an error for the next operation: the completions before it come once.
    #[cold]
    fn tell_later(&mut self, error: DeviceError) {
        self.condition = Condition::Failed(Box::new(error));
    }

    /// Marks the queue pair as lost. Completions that came earlier are returned first, if there are any.
    #[cold]
    fn lose(&mut self, count: usize, broken: Broken) -> Result<usize, DeviceError> {
        let known = self.known()?;
        let broken = explained(&mut self.platform, &self.parts, &known, broken);
        let error = protocol(self.platform.name(), &broken);
        self.condition = Condition::Lost(Box::new(broken));
        if count > 0 { Ok(count) } else { Err(error) }
    }

    #[inline]
    fn require_ready(&mut self, operation: &'static str) -> Result<(), DeviceError> {
        if matches!(self.condition, Condition::Ready) {
            return Ok(());
        }
        Err(self.not_ready(operation))
    }

    #[cold]
    fn not_ready(&mut self, operation: &'static str) -> DeviceError {
        match std::mem::replace(&mut self.condition, Condition::Ready) {
            Condition::Failed(error) => *error,
            other => {
                self.condition = other;
                match &self.condition {
                    Condition::Lost(broken) => protocol(self.platform.name(), broken),
                    _ => DeviceError::Disabled { device: self.platform.name().to_owned(), operation },
                }
            }
        }
    }

    #[cold]
    fn still_active(&self) -> DeviceError {
        let reason = "it is still active (STATE.ACTIVE), since its last disable has not come to its end; call disable() again, and reset the \
                      device together with the bus if that times out too";
        DeviceError::NotStarted { device: self.platform.name().to_owned(), reason: reason.into() }
    }

    /// Whether the interrupt's message has come since it was last looked for.
    fn take_message(&mut self) -> Result<bool, DeviceError> {
        let word = self.parts.memory.word32(self.parts.layout.message)?;
        let came = word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Acquire) != 0;
        if came {
            self.armed = None;
        }
        Ok(came)
    }

    /// As [`Device::wait`], for the interrupt that is armed at `from`.
    fn wait_for_message(&mut self, from: u32, deadline: Instant) -> Result<bool, DeviceError> {
        loop {
            if self.take_message()? {
                return Ok(true);
            }
            if self.in_flight() == 0 {
                return Ok(false);
            }
            let late = Instant::now() >= deadline;
            self.platform.wait(Awaited::Interrupt { from }, deadline)?;
            if self.take_message()? {
                return Ok(true);
            }
            if late {
                self.require_enabled()?;
                return Ok(false);
            }
            // What is there and does not ask is no failure of the device.
            if !self.cq.is_fresh()? {
                self.note_fruitless()?;
            }
        }
    }

    /// An error if somebody else has disabled the queue pair: nobody rings for it any more.
    fn require_enabled(&mut self) -> Result<(), DeviceError> {
        let control = self.platform.read_register(Register::Control)?;
        if Control::from_bits_retain(control).contains(Control::ENABLE) {
            return Ok(());
        }
        let what = format!(
            "its queue pair is disabled with {} descriptors in flight, and this driver did not do that (R12): the function was reset; open it again",
            self.in_flight()
        );
        Err(DeviceError::Failed { device: self.platform.name().to_owned(), what })
    }

    /// Counts an advance that brought no completion, and gives up once too many of them saw no progress (R15).
    fn note_fruitless(&mut self) -> Result<(), DeviceError> {
        if self.patience.is_over(&mut self.platform)? {
            return Err(self.timeout(COMPLETION)?);
        }
        Ok(())
    }

    /// Waits until STATE is as `reached` wants it, for at most `patience` advances (R15).
    fn wait_for_state(
        &mut self,
        waited_for: &'static str,
        reached: impl Fn(State) -> bool,
    ) -> Result<(), DeviceError> {
        for _ in 0..self.parts.config.patience {
            if reached(State::from_bits_retain(self.read(Register::State)?)) {
                return Ok(());
            }
            self.platform.advance(1)?;
        }
        Err(self.timeout(waited_for)?)
    }

    #[cold]
    fn timeout(&mut self, waited_for: &'static str) -> Result<DeviceError, DeviceError> {
        let known = self.known()?;
        let outstanding = Self::outstanding(&self.sq, &self.cq, &self.ledger, &known);
        timeout(&mut self.platform, waited_for, &self.parts, &known, outstanding)
    }

    fn known(&self) -> Result<Known, DeviceError> {
        Ok(Known {
            in_flight: self.submitted - self.ledger.completed(),
            sq_tail: self.sq.tail(),
            sq_head: self.sq.head(),
            cq_head: self.cq.head(),
            is_fresh: self.cq.is_fresh()?,
            armed: self.armed,
            stale: self.cq.stale(),
        })
    }

    /// Collects the descriptors that have no completion at the time of the call.
    fn outstanding<'q>(
        sq: &'q SubmissionQueue,
        cq: &'q CompletionQueue,
        ledger: &'q Ledger,
        known: &'q Known,
    ) -> impl FnOnce() -> Outstanding + use<'q, P> {
        let taken = ledger.completed();
        let &Known { sq_head, sq_tail, in_flight, .. } = known;
        move || Outstanding::find(&sq.reader(), cq, taken, (sq_head, sq_tail), in_flight)
    }
}

impl<P: Platform> Device for Driver<P> {
    fn name(&self) -> &str {
        self.platform.name()
    }

    #[inline]
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.require_ready("submitting")?;
        let taken = self.sq.push(batch)?;
        if taken > 0 {
            self.publish()?;
        }
        Ok(taken)
    }

    #[inline]
    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.require_ready("polling")?;
        // Mostly nothing is there before the device has had its time.
        let taken = if self.cq.is_fresh()? { self.take(out)? } else { 0 };
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
        self.require_ready("polling")?;
        self.take(out)
    }

    fn arm(&mut self) -> Result<bool, DeviceError> {
        self.require_ready("arming")?;
        if !self.parts.interrupts {
            return Ok(false);
        }
        // A message of an earlier arming is taken back, if it has come.
        self.take_message()?;
        let from = self.cq.head();
        if self.parts.features.capability.contains(Capability::INTERRUPT) {
            self.tell(Register::Arm, from)?;
        }
        self.armed = Some(from);
        Ok(true)
    }

    fn wait(&mut self, deadline: Instant) -> Result<bool, DeviceError> {
        self.require_ready("waiting")?;
        if let Some(from) = self.armed {
            return self.wait_for_message(from, deadline);
        }
        loop {
            if self.cq.is_fresh()? {
                return Ok(true);
            }
            if self.in_flight() == 0 {
                return Ok(false);
            }
            let late = Instant::now() >= deadline;
            self.platform.wait(Awaited::Completion, deadline)?;
            if self.cq.is_fresh()? || late {
                return self.cq.is_fresh();
            }
            self.note_fruitless()?;
        }
    }

    fn unread(&self, completion: &HwCompletion) -> Option<HwDesc> {
        self.sq.written(completion.result).filter(|_| completion.has(CompletionFlags::NO_ECHO))
    }

    #[inline]
    fn in_flight(&self) -> usize {
        (self.submitted - self.ledger.completed()) as usize
    }

    fn why(&mut self) -> Result<Vec<(usize, Why)>, DeviceError> {
        if self.in_flight() == 0 {
            return Ok(vec![]);
        }
        // A completion that comes meanwhile is there when the registers have been read.
        let seen = Seen::of(&mut self.platform, &self.parts)?;
        let known = self.known()?;
        let outstanding = Self::outstanding(&self.sq, &self.cq, &self.ledger, &known)();
        Ok(vec![(0, Why::of(&seen, &known, outstanding))])
    }

    fn capacity(&self) -> usize {
        self.parts.config.sq_depth as usize
    }

    fn room(&self) -> usize {
        self.sq.free()
    }

    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.parts.tokens.read(delta_offset, out)
    }

    fn token_regions(&self) -> Vec<TokenRegion> {
        vec![self.parts.tokens.clone()]
    }

    fn logp_regions(&self) -> Vec<TokenRegion> {
        if self.parts.config.logp_bytes == 0 {
            return vec![];
        }
        self.logp_region().into_iter().collect()
    }

    fn language_regions(&self) -> Vec<LanguageRegions> {
        self.language().ok().flatten().into_iter().collect()
    }

    #[inline]
    fn token_shard(&self, _: u64) -> usize {
        0
    }

    fn features(&self) -> Features {
        self.parts.features
    }

    fn counters(&mut self) -> Result<Counters, DeviceError> {
        Counters::read(|counter| self.counter(counter))
    }

    fn queue_counters(&mut self) -> Result<Vec<QueueCounters>, DeviceError> {
        Ok(vec![QueueCounters::read(|counter| self.queue_counter(counter))?])
    }

    fn worker_counters(&mut self) -> Result<Vec<WorkerCounters>, DeviceError> {
        if !self.parts.features.capability.contains(Capability::WORKER_COUNTERS) {
            return Ok(vec![]);
        }
        // Workers have numbers of 4 bits where they have counters.
        let workers = self.platform.read_register(Register::CapWorkers)?.min(16) as u8;
        (0..workers)
            .map(|worker| WorkerCounters::read(|counter| self.worker_counter(worker, counter)))
            .collect()
    }

    fn shared_device(&self) -> Option<SharedDevice> {
        self.platform.shared_device()
    }

    fn function(&self) -> u8 {
        self.platform.function()
    }

    fn queue(&self) -> u8 {
        self.platform.queue()
    }

    fn events(&mut self, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        let Some(events) = &mut self.events else {
            let queue = self.platform.queue();
            let mut taken = self.platform.tapped(queue, out)?;
            // The host may see a completion before the bus has answered its write. The LIFE event comes after that answer.
            let is_due = self.cq.head().wrapping_sub(self.told) as i32 > 0;
            if taken == 0
                && !out.is_empty()
                && self.keeps_lives
                && is_due
                && self.submitted == self.ledger.completed()
            {
                self.platform.advance(1)?;
                taken = self.platform.tapped(queue, out)?;
            }
            self.told = out[..taken].last().map_or(self.told, |event| event.index.wrapping_add(1));
            return Ok(taken);
        };
        let mut taken = events.pop(out)?;
        if taken == 0 && !out.is_empty() {
            // R23: one whose write failed stays stale, and EQ_TAIL passes it.
            let tail = self.platform.read_register(Register::EqTail)?;
            if events.pass_lost(tail)? {
                taken = events.pop(out)?;
            }
        }
        let head = events.head();
        // While this queue pair is disabled the ring may have ended, and then EQ_HEAD is refused. Where other queue pairs of the
        // function keep it running, what was read meanwhile is released after the next enable.
        if head != self.released && !matches!(self.condition, Condition::Disabled) {
            match self.write(Register::EqHead, head) {
                Ok(()) => self.released = head,
                // What was read comes once. The next call writes it again, and tells.
                Err(error) if taken == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(taken)
    }

    fn keeps_lives(&self) -> bool {
        self.events.is_none() && self.platform.keeps_lives()
    }

    fn ticks(&mut self) -> Option<u64> {
        self.platform.ticks()
    }

    fn taken(&self, queue: usize) -> Option<u32> {
        (queue == 0).then(|| self.cq.head())
    }

    fn answered(&self, event: &HwEvent) -> Option<u64> {
        if event.kind != EventKind::Life as u8
            || event.queue_id != self.platform.queue()
            || self.answers.is_empty()
        {
            return None;
        }
        // Of those that were taken the last so many are known.
        let behind = self.cq.head().wrapping_sub(event.index) as usize;
        if (1..=self.answers.len()).contains(&behind) && behind as u64 <= self.ledger.completed() {
            return Some(self.answers[event.index as usize & (self.answers.len() - 1)]);
        }
        self.cq.ahead(event.index).map(|completion| completion.user_data)
    }

    fn disable(&mut self) -> Result<(), DeviceError> {
        self.condition = Condition::Disabled;
        self.armed = None;
        self.write(Register::Control, 0)?;
        self.wait_for_state("the end of a disable (STATE.ACTIVE = 0)", |state| {
            !state.contains(State::ACTIVE)
        })?;
        (self.submitted, self.ledger) = (0, Ledger::new(self.parts.config.sq_start));
        Ok(())
    }

    fn enable(&mut self) -> Result<(), DeviceError> {
        match self.condition {
            Condition::Ready => return Ok(()),
            Condition::Failed(_) | Condition::Lost(_) => return Err(self.not_ready("enabling")),
            Condition::Disabled => {}
        }
        // R12: until then the rings are the device's.
        if State::from_bits_retain(self.read(Register::State)?).contains(State::ACTIVE) {
            return Err(self.still_active());
        }
        // R2: what the memory still holds of an earlier queue must not verify.
        let fresh = || RandomState::new().build_hasher().finish() as u32;
        let key = self.parts.config.sq_key.unwrap_or_else(fresh);
        (self.sq, self.cq) = queues(&self.parts.config, &self.parts.memory, key)?;
        (self.submitted, self.ledger) = (0, Ledger::new(self.parts.config.sq_start));
        self.patience = Patience::new(self.parts.config.patience);
        self.write(Register::Error, u32::MAX)?;
        let Parts { config, layout, memory, tokens, .. } = &self.parts;
        for (register, value) in config.registers(layout, memory.bus_address(), tokens.bus_address()) {
            self.configure(register, value)?;
        }
        self.configure_parts()?;
        let Checked { event_depth, .. } = self.parts.config.check()?;
        let starts_events = self.configure_events()?;
        if starts_events {
            let Parts { memory, layout, .. } = &self.parts;
            let ring = |depth| EventQueue::new(memory, layout.events, depth, 0);
            self.events = event_depth.map(ring).transpose()?;
            self.released = 0;
        }
        self.answers.clear();
        self.told = self.parts.config.cq_start;
        self.keeps_lives = self.events.is_none() && self.platform.keeps_lives();
        if self.parts.config.life_events {
            self.answers.resize(self.parts.config.event_slots.max(self.parts.config.cq_depth) as usize, 0);
        }
        self.write(Register::SqKey, key)?;
        self.choose_workers()?;
        self.write(Register::Control, Control::ENABLE.bits())?;
        self.wait_for_state("the start after ENABLE (STATE.ACTIVE = 1)", |state| {
            state.intersects(State::ACTIVE | State::FAULT)
        })?;
        let fault = self.read(Register::Error)?;
        if fault != 0 {
            let reason = format!("ERROR reads {}", names(DeviceFault::from_bits_retain(fault)));
            return Err(DeviceError::NotStarted { device: self.platform.name().to_owned(), reason });
        }
        // Another queue pair of the function may have been faster.
        match event_depth {
            Some(depth) if self.owns_events()? => {
                if self.events.is_none() {
                    self.take_over_events(depth)?;
                }
            }
            _ => self.events = None,
        }
        self.condition = Condition::Ready;
        Ok(())
    }
}

/// Whether a device with so many workers can tell the number that was asked for from all. FN_WORKERS has a bit for each of 32; of more workers it holds how
/// many descriptors may run at a time, and all bits are no limit.
///
/// # Errors
/// `Config` if it cannot.
pub(crate) fn check_workers(wanted: Option<u32>, built: u32) -> Result<(), DeviceError> {
    match wanted {
        Some(workers) if built > 32 && (32..built).contains(&workers) => Err(DeviceError::Config {
            field: "workers",
            value: workers.into(),
            expected: format!("1 to 31 where a device has {built}; leave it out to use all of them"),
        }),
        _ => Ok(()),
    }
}

/// The first `workers` workers, a bit each; all of 32 or more.
fn mask(workers: u32) -> u32 {
    u32::MAX >> 32u32.saturating_sub(workers)
}

fn queues(
    config: &QueueConfig,
    memory: &SharedMemory,
    key: u32,
) -> Result<(SubmissionQueue, CompletionQueue), DeviceError> {
    let Checked { sq_depth, cq_depth, layout, .. } = config.check()?;
    Ok((
        SubmissionQueue::new(memory, layout.sq, sq_depth, config.sq_start, key)?,
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

pub(crate) fn names<F: Flags>(flags: F) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
