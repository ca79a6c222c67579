//! The registers of a device in software: who may write what when, and what the writes do (docs/contract.md,
//! "Registers"). The model and the GPU, whose registers are its host's, share it.

mod events;
mod interrupt;
mod plain;
mod policy;
mod queue;

use std::collections::HashMap;

use crate::queue::Depth;
use doorbell_contract::{
    ARENAS, Access, Block, CONTRACT_VERSION, Capability, Control, Counter, DEVICE_ID, DeviceFault,
    EventControl, FunctionControl, HwEvent, LENGTH_LIMIT_MAX, MessageControl, Place, QueueCounter, RANGES,
    Register, SqKey,
};
use events::Events;
pub use events::{EventRing, EventWrite, Life};
pub use interrupt::Coalescing;
pub use plain::{Counts, Plain};
pub use policy::{PolicySlot, PolicySlots};
pub use queue::{Abort, QueueRegisters, Region, Ring, Session};

/// The device answers SLVERR and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Bytes of a page of registers.
const PAGE_BYTES: u32 = 4096;

/// What a device was built with: its capability words.
#[derive(Clone, Copy, Debug)]
pub struct Built {
    /// CAPABILITY.
    pub features: Capability,
    /// CAP_WORKERS, at least 1.
    pub workers: u32,
    /// CAP_QUEUES, 1 to 16.
    pub queues: u8,
    /// CAP_FUNCTIONS, 1 to 16.
    pub functions: u8,
    /// Whether the device confines each function to its windows (R11).
    pub windows: bool,
    /// CAP_ENGINES.
    pub engines: u32,
    /// CAP_REWARD_MODELS.
    pub reward_models: u32,
    /// CAP_GROUPS.
    pub groups: u32,
    /// CAP_TICK_HZ.
    pub tick_hz: u32,
}

impl Built {
    /// Whether the device has what this register is for.
    fn has(&self, register: Register) -> bool {
        let within = |first, last| (first..=last).contains(&register);
        if within(Register::Window0BaseLo, Register::Window2SizeHi) {
            self.windows
        } else if within(Register::PolicySlot0, Register::PolicySlot1) {
            self.features.contains(Capability::POLICY)
        } else if within(Register::Range0Lo, Register::Range15Hi) {
            self.reward_models > 1
        } else if within(Register::ModelBaseLo, Register::Arena3SizeHi) {
            self.engines > 1
        } else if within(Register::LogpBaseLo, Register::LogpSizeHi) {
            self.features.contains(Capability::LOGP)
        } else if within(Register::EqBaseLo, Register::EventsDropped) {
            self.features.contains(Capability::EVENTS)
        } else if matches!(register, Register::Arm | Register::CoalesceCount | Register::CoalesceTime)
            || register.block() == Block::DeviceMessage
        {
            self.features.contains(Capability::INTERRUPT)
        } else if register.block() == Block::Worker {
            self.features.contains(Capability::WORKER_COUNTERS)
        } else if register == Register::BusTimeout {
            self.features.contains(Capability::WATCHDOG)
        } else {
            register != Register::Abort || self.features.contains(Capability::ABORT)
        }
    }
}

/// A window's base and size, low halves; the high ones are 4 above.
const WINDOWS: [[Register; 2]; 3] = [
    [Register::Window0BaseLo, Register::Window0SizeLo],
    [Register::Window1BaseLo, Register::Window1SizeLo],
    [Register::Window2BaseLo, Register::Window2SizeLo],
];

/// Base and size of the MODEL region and of each arena, likewise.
const MODEL: [Register; 2] = [Register::ModelBaseLo, Register::ModelSizeLo];
const ARENA_REGISTERS: [[Register; 2]; ARENAS as usize] = [
    [Register::Arena0BaseLo, Register::Arena0SizeLo],
    [Register::Arena1BaseLo, Register::Arena1SizeLo],
    [Register::Arena2BaseLo, Register::Arena2SizeLo],
    [Register::Arena3BaseLo, Register::Arena3SizeLo],
];

/// All registers of a device.
#[derive(Debug)]
pub struct Registers {
    built: Built,
    /// Config registers that were written, by address.
    config: HashMap<u32, u32>,
    queues: Vec<QueueRegisters>,
    /// By function.
    policies: Vec<PolicySlots>,
    /// By function.
    events: Vec<Events>,
    counters: [u64; Counter::ALL.len()],
    /// Ticks that have passed while there was nothing to do.
    idle_ticks: u64,
}

/// What an interrupt writes, where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bus address, a multiple of 4.
    pub address: u64,
    /// Its 4 bytes.
    pub data: u32,
}

impl Registers {
    /// The registers after reset.
    pub fn new(built: Built) -> Self {
        Self {
            config: HashMap::new(),
            queues: (0..built.queues).map(|_| QueueRegisters::new()).collect(),
            policies: vec![PolicySlots::new(); usize::from(built.functions)],
            events: (0..built.functions).map(|_| Events::default()).collect(),
            counters: [0; Counter::ALL.len()],
            idle_ticks: 0,
            built,
        }
    }

    /// What the device was built with.
    pub fn built(&self) -> Built {
        self.built
    }

    /// The queue pairs, by number.
    #[inline]
    pub fn queues(&self) -> &[QueueRegisters] {
        &self.queues
    }

    /// One queue pair.
    ///
    /// # Panics
    /// If the device has no such queue pair.
    #[inline]
    pub fn queue(&self, queue: u8) -> &QueueRegisters {
        &self.queues[usize::from(queue)]
    }

    /// One queue pair, to run it.
    ///
    /// # Panics
    /// If the device has no such queue pair.
    #[inline]
    pub fn queue_mut(&mut self, queue: u8) -> &mut QueueRegisters {
        &mut self.queues[usize::from(queue)]
    }

    /// The policy slots of the function with this number.
    ///
    /// # Panics
    /// If the device has no such function.
    #[inline]
    pub fn policies(&self, function: u8) -> &PolicySlots {
        &self.policies[usize::from(function)]
    }

    /// The same, to publish.
    ///
    /// # Panics
    /// If the device has no such function.
    pub fn policies_mut(&mut self, function: u8) -> &mut PolicySlots {
        &mut self.policies[usize::from(function)]
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&mut self, counter: Counter, amount: u64) {
        self.counters[counter as usize] += amount;
    }

    /// Adds to a counter of a queue pair, and to that of the device which counts the same.
    ///
    /// # Panics
    /// If the device has no such queue pair.
    #[inline]
    pub fn count_of(&mut self, queue: u8, counter: QueueCounter, amount: u64) {
        self.queue_mut(queue).count(counter, amount);
        self.count(counter.of_device(), amount);
    }

    /// A counter's value.
    #[inline]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Sets a counter that the device keeps elsewhere.
    #[inline]
    pub fn set_counter(&mut self, counter: Counter, value: u64) {
        self.counters[counter as usize] = value;
    }

    /// The device's time, in ticks, of a device that counts a cycle for each completion, token and wait state.
    pub fn ticks(&self) -> u64 {
        let counted = |counter| self.counted(counter);
        self.idle_ticks + counted(Counter::Completions) + counted(Counter::Tokens) + counted(Counter::Wait)
    }

    /// The newest completion of `queue` has become visible, and may fire (R14).
    #[inline]
    pub fn note_visible(&mut self, queue: u8, asks: bool) {
        self.queue_mut(queue).note_posted(asks);
        if self.queue(queue).is_armed() {
            let now = self.ticks();
            self.queue_mut(queue).look_at_interrupt(now);
        }
    }

    /// Fires what is due by its time; where a time runs and `idle` says that nothing else is left to do, that time passes.
    pub fn look_at_times(&mut self, idle: bool) {
        let Some(first) = self.queues.iter().filter_map(QueueRegisters::interrupt_deadline).min() else {
            return;
        };
        if idle {
            self.idle_ticks += first.saturating_sub(self.ticks());
        }
        let now = self.ticks();
        self.queues.iter_mut().for_each(|queue| queue.look_at_interrupt(now));
    }

    /// The message of `queue`'s vector, if it is pending and not masked: it is to be sent now.
    pub fn take_message(&mut self, queue: u8) -> Option<Message> {
        let place = Place { queue, ..Place::FIRST };
        if !self.has_message(queue) || !self.queue_mut(queue).take_pending() {
            return None;
        }
        let half = |register| u64::from(self.config(register, place));
        let address = half(Register::MessageAddressHi) << 32 | half(Register::MessageAddressLo);
        Some(Message { address, data: self.config(Register::MessageData, place) })
    }

    /// Whether the vector of `queue` is pending and not masked.
    #[must_use]
    pub fn has_message(&self, queue: u8) -> bool {
        let place = Place { queue, ..Place::FIRST };
        let masked = self.config(Register::MessageControl, place) & MessageControl::MASK.bits() != 0;
        !masked && self.queue(queue).is_pending()
    }

    /// Gives an event of `queue`, which is active, a slot of its function's ring, if there is one and it has room; else it is
    /// dropped (R23). Only `urgent` events have the last quarter.
    ///
    /// # Panics
    /// If the device has no such queue pair.
    pub fn place_event(&mut self, queue: u8, event: HwEvent, urgent: bool) -> Option<EventWrite> {
        self.events_of(queue).place(event, urgent)
    }

    /// The event of the faults of `queue` that none has told of, if a ring of its function runs (R23).
    ///
    /// # Panics
    /// If the device has no such queue pair.
    pub fn take_fault_event(&mut self, queue: u8) -> Option<HwEvent> {
        let untold = self.queue_mut(queue).take_untold()?;
        let function = self.owner(queue) as u8;
        self.is_function_active(function).then(|| untold.event(queue, self.ticks()))
    }

    /// The write of an event of `queue` was answered with an error.
    pub fn lose_event(&mut self, queue: u8) {
        self.events_of(queue).lose();
    }

    /// The event ring of `function`, if it has one that runs, or ran last.
    ///
    /// # Panics
    /// If the device has no such function.
    pub fn event_ring(&self, function: u8) -> Option<EventRing> {
        self.events[usize::from(function)].ring()
    }

    /// EQ_HEAD, EQ_TAIL and EVENTS_DROPPED of `function`.
    ///
    /// # Panics
    /// If the device has no such function.
    pub fn event_words(&self, function: u8) -> [u32; 3] {
        self.events[usize::from(function)].words()
    }

    /// Sets EQ_TAIL and EVENTS_DROPPED of `function`, of a device that writes events elsewhere.
    ///
    /// # Panics
    /// If the device has no such function.
    pub fn show_events(&mut self, function: u8, tail: u32, dropped: u32) {
        self.events[usize::from(function)].show(tail, dropped);
    }

    fn events_of(&mut self, queue: u8) -> &mut Events {
        let session = self.queue(queue).session.as_ref();
        // One that was refused has none.
        let function = session.map_or_else(|| self.owner(queue) as u8, |session| session.function);
        &mut self.events[usize::from(function)]
    }

    /// A write by the host of the register that `place` has under this name.
    ///
    /// # Errors
    /// `Refused`, where the device answers SLVERR.
    #[inline]
    pub fn write(&mut self, register: Register, place: Place, value: u32) -> Result<(), Refused> {
        let queue = self.queues.get_mut(usize::from(place.queue));
        match (register, queue) {
            (Register::Doorbell, Some(queue)) => queue.ring_doorbell(value),
            (Register::CqHead, Some(queue)) => queue.release_completions(value),
            _ => self.write_slow(register, place, value),
        }
    }

    /// The same register, named without what its block does not belong to, where the device has it.
    fn known(&self, register: Register, place: Place) -> Result<Place, Refused> {
        let block = register.block();
        let function = if block.per_function() == 0 { 0 } else { place.function };
        let queue = if block.per_queue() == 0 { 0 } else { place.queue };
        let place = Place { function, queue };
        let is_here = function < self.built.functions
            && queue < self.built.queues
            && (block != Block::FunctionQueue || self.owner(queue) == u32::from(function))
            && self.built.has(register);
        if is_here { Ok(place) } else { Err(Refused) }
    }

    /// The function that owns a queue pair.
    pub fn owner(&self, queue: u8) -> u32 {
        self.config(Register::QueueFunction, Place { queue, ..Place::FIRST })
    }

    /// Whether what a register belongs to is active.
    fn is_active(&self, register: Register, place: Place) -> bool {
        match register.block() {
            Block::Device | Block::Worker => self.queues.iter().any(QueueRegisters::is_active),
            Block::DeviceFunction | Block::Function => self.is_function_active(place.function),
            Block::DeviceQueue | Block::DeviceMessage | Block::FunctionQueue | Block::Queue => {
                self.queue(place.queue).is_active()
            }
        }
    }

    /// Whether a queue pair of `function` is active.
    pub fn is_function_active(&self, function: u8) -> bool {
        self.of_function(function).any(|queue| self.queue(queue).is_active())
    }

    /// The queue pairs of `function`.
    fn of_function(&self, function: u8) -> impl Iterator<Item = u8> {
        (0..self.built.queues).filter(move |&queue| self.owner(queue) == u32::from(function))
    }

    fn config(&self, register: Register, place: Place) -> u32 {
        let written = self.config.get(&register.address(place)).copied();
        // What depends on how a device was built: function 0 owns all addresses until somebody takes them from it.
        let built = || match register {
            Register::FnWorkers => self.built_mask(),
            _ if place.function == 0 => u32::MAX,
            _ => 0,
        };
        written.or(register.reset()).unwrap_or_else(built)
    }

    fn write_slow(&mut self, register: Register, place: Place, value: u32) -> Result<(), Refused> {
        let place = self.known(register, place)?;
        let require = |holds: bool| if holds { Ok(()) } else { Err(Refused) };
        let value = match register {
            Register::Control => return self.control(place, Control::from_bits_truncate(value)),
            Register::FnControl => {
                if FunctionControl::from_bits_truncate(value).contains(FunctionControl::RESET) {
                    self.reset_function(place.function);
                }
                return Ok(());
            }
            Register::Error => {
                self.queue_mut(place.queue).clear(value);
                return Ok(());
            }
            Register::Arm => {
                let now = self.ticks();
                return self.queue_mut(place.queue).write_arm(value, now);
            }
            Register::MessageAddressLo => {
                require(value.is_multiple_of(4))?;
                value
            }
            Register::MessageAddressHi | Register::MessageData => value,
            // A message is written at once: SENDING reads 0.
            Register::MessageControl => value & MessageControl::MASK.bits(),
            Register::Abort => return self.queue_mut(place.queue).write_abort(value),
            Register::EqHead => {
                require(self.is_function_active(place.function))?;
                return self.events[usize::from(place.function)].release(value);
            }
            _ => {
                require(register.access() == Access::Config && !self.is_active(register, place))?;
                match register {
                    Register::FnWorkers => {
                        require(value & self.built_mask() != 0)?;
                        value & self.built_mask()
                    }
                    Register::QueueFunction => {
                        require(value < self.built.functions.into())?;
                        value
                    }
                    Register::Weight => {
                        require((1..=255).contains(&value))?;
                        value
                    }
                    Register::LengthLimit => {
                        require(value <= LENGTH_LIMIT_MAX)?;
                        value
                    }
                    Register::EventControl => value & EventControl::all().bits(),
                    Register::WaitStates | Register::EosThreshold | Register::CoalesceCount => value & 0xFFFF,
                    _ => value,
                }
            }
        };
        self.config.insert(register.address(place), value);
        Ok(())
    }

    /// Workers that were built, a bit each.
    fn built_mask(&self) -> u32 {
        u32::MAX >> 32u32.saturating_sub(self.built.workers)
    }

    fn control(&mut self, place: Place, control: Control) -> Result<(), Refused> {
        let is_active = self.queue(place.queue).session.is_some();
        match (control.contains(Control::ENABLE), is_active) {
            // R12: not before the end of the last session. One that is dead and not disabled is enabled still (R24).
            (true, false) if self.queue(place.queue).is_active() => return Err(Refused),
            (true, false) => self.enable(place),
            (true, true) if control.contains(Control::DRAIN) => self.queue_mut(place.queue).drain(),
            (true, true) => {}
            (false, _) => self.queue_mut(place.queue).stop(),
        }
        Ok(())
    }

    fn reset_function(&mut self, function: u8) {
        for queue in 0..self.built.queues {
            if self.owner(queue) == u32::from(function) {
                self.queue_mut(queue).reset();
            }
        }
    }

    /// ENABLE: a bad configuration is a fault; a good one starts with empty queues (R12).
    fn enable(&mut self, place: Place) {
        let is_first = !self.is_function_active(place.function);
        // R23: the ring of a function that runs was checked.
        let events = if is_first { self.configured_events(place) } else { Some(None) };
        let (Some(mut session), Some(events)) = (self.configured(place), events) else {
            return self.queue_mut(place.queue).raise(DeviceFault::BAD_CONFIG);
        };
        if !self.queues.iter().any(QueueRegisters::is_active) {
            self.counters.fill(0);
        }
        // R18: the first queue pair of a function begins with version 0.
        let function = usize::from(place.function);
        if is_first {
            self.policies[function] = PolicySlots::new();
            self.events[function].start(events);
        }
        session.life = self.events[function].has_life();
        self.queue_mut(place.queue).start(session);
    }

    /// The event ring of a function, if it has one; `None` if its configuration is bad.
    fn configured_events(&self, place: Place) -> Option<Option<EventRing>> {
        let get = |register| self.config(register, place);
        let slots = get(Register::EqSize);
        if slots == 0 || !self.built.has(Register::EqSize) {
            return Some(None);
        }
        let depth = Depth::new("", slots).ok()?;
        let base = u64::from(get(Register::EqBaseHi)) << 32 | u64::from(get(Register::EqBaseLo));
        let lies = !self.built.windows
            || self.has_window(place, base, size_of::<HwEvent>() as u64 * u64::from(slots));
        let control = EventControl::from_bits_truncate(get(Register::EventControl));
        let life = control.contains(EventControl::LIFE);
        (base.is_multiple_of(64) && lies).then_some(Some(EventRing { base, depth, life }))
    }

    fn configured(&self, place: Place) -> Option<Session> {
        use Register as R;
        let get = |register| self.config(register, place);
        let wide = |low, high| u64::from(get(high)) << 32 | u64::from(get(low));
        let lines = |low, high| Some(wide(low, high)).filter(|value| value % 64 == 0);
        let ring = |base, size, start| {
            let depth = Depth::new("", get(size)).ok()?;
            Some(Ring { base, depth, head: get(start), tail: get(start) })
        };
        let sq = ring(lines(R::SqBaseLo, R::SqBaseHi)?, R::SqSize, R::SqStart)?;
        let cq = ring(lines(R::CqBaseLo, R::CqBaseHi)?, R::CqSize, R::CqStart)?;
        // R11: regions are whole lines, as a device may read them by the line.
        let (token_base, token_size) =
            (lines(R::TokenBaseLo, R::TokenBaseHi)?, lines(R::TokenSizeLo, R::TokenSizeHi)?);
        let (kv_base, kv_size) = (lines(R::KvBaseLo, R::KvBaseHi)?, lines(R::KvSizeLo, R::KvSizeHi)?);
        let (logp_base, logp_size) =
            (lines(R::LogpBaseLo, R::LogpBaseHi), lines(R::LogpSizeLo, R::LogpSizeHi));
        // Of a device that has no log-probabilities these registers hold nothing of meaning.
        let (logp_base, logp_size) =
            if self.built.has(R::LogpBaseLo) { (logp_base?, logp_size?) } else { (0, 0) };
        let region = |[low, size]: [Register; 2]| {
            let region = Region { base: self.wide(low, place), size: self.wide(size, place) };
            (region.base | region.size).is_multiple_of(64).then_some(region)
        };
        let (model, arenas) = if self.built.has(R::ModelBaseLo) {
            let [first, second, third, fourth] = ARENA_REGISTERS.map(region);
            (region(MODEL)?, [first?, second?, third?, fourth?])
        } else {
            (Region::default(), [Region::default(); ARENAS as usize])
        };
        let own = [
            (sq.base, 64 * u64::from(sq.depth.slots())),
            (cq.base, 32 * u64::from(cq.depth.slots())),
            (token_base, token_size),
            (kv_base, kv_size),
            (logp_base, logp_size),
        ];
        let of_function = [model].into_iter().chain(arenas).map(|region| (region.base, region.size));
        let mut regions = own.into_iter().chain(of_function);
        let range = |k: usize| {
            let at = R::Range0Lo.address(place) + 8 * k as u32;
            let half =
                |address| Register::at(address).map_or(0, |(register, place)| self.config(register, place));
            (half(at), half(at + 4))
        };
        let ranges: [_; RANGES as usize] = if self.built.has(R::Range0Lo) {
            std::array::from_fn(range)
        } else {
            [(u32::MAX, 0); RANGES as usize]
        };
        if self.built.windows && !regions.all(|(base, bytes)| self.has_window(place, base, bytes)) {
            return None;
        }
        Some(Session {
            sq,
            cq,
            sq_key: SqKey::new(get(R::SqKey)),
            token_base,
            token_size,
            kv_base,
            kv_size,
            model,
            arenas,
            checkpoint_default: get(R::CheckpointDefault),
            wait_states: get(R::WaitStates),
            bus_timeout: if self.built.has(R::BusTimeout) { get(R::BusTimeout) } else { 0 },
            workers: get(R::FnWorkers),
            weight: get(R::Weight),
            length_limit: get(R::LengthLimit),
            eos_threshold: get(R::EosThreshold),
            reward_threshold: get(R::RewardThreshold) as i32,
            logp_base,
            logp_size,
            ranges,
            function: place.function,
            life: false,
            coalescing: Coalescing { count: get(R::CoalesceCount), time: get(R::CoalesceTime) },
        })
    }

    /// What a register and the one 4 above hold, its low half and its high one.
    fn wide(&self, low: Register, place: Place) -> u64 {
        let at = low.address(place);
        let half =
            |address: u32| Register::at(address).map_or(0, |(register, place)| self.config(register, place));
        u64::from(half(at + 4)) << 32 | u64::from(half(at))
    }

    /// R11: whether a region lies, whole, in one window of the function; an empty one lies everywhere. Nothing wraps: a window that does
    /// holds nothing.
    fn has_window(&self, place: Place, base: u64, bytes: u64) -> bool {
        let get = |low: Register| self.wide(low, place);
        bytes == 0
            || WINDOWS.iter().any(|&[start, size]| {
                let (start, size) = (get(start), get(size));
                let wraps = size.checked_sub(1).is_some_and(|last| start.checked_add(last).is_none());
                let above = base.checked_sub(start).filter(|_| !wraps);
                above.is_some_and(|above| size.checked_sub(above).is_some_and(|room| bytes <= room))
            })
    }

    /// Reads the register that `place` has under this name.
    ///
    /// # Errors
    /// `Refused`, where the device answers SLVERR.
    pub fn read(&self, register: Register, place: Place) -> Result<u32, Refused> {
        let place = self.known(register, place)?;
        let queue = self.queue(place.queue);
        let built = &self.built;
        Ok(match register {
            Register::Id => DEVICE_ID,
            Register::Version => CONTRACT_VERSION,
            Register::Capability => built.features.bits(),
            Register::CapWorkers => built.workers,
            Register::CapQueues => built.queues.into(),
            Register::CapFunctions => built.functions.into(),
            Register::CapPageBytes => PAGE_BYTES,
            Register::CapWindows => {
                if built.windows {
                    WINDOWS.len() as u32
                } else {
                    0
                }
            }
            Register::CapEngines => built.engines,
            Register::CapRewardModels => built.reward_models,
            Register::CapGroups => built.groups,
            Register::CapPolicySlots => {
                if built.has(Register::PolicySlot0) {
                    2
                } else {
                    0
                }
            }
            Register::PolicySlot0 => self.policies(place.function).word(0),
            Register::PolicySlot1 => self.policies(place.function).word(1),
            Register::Abort => queue.aborted(),
            Register::WorkerState => {
                let busy = self.queues.iter().filter(|queue| queue.busy).count() as u32;
                busy << 3 | u32::from(busy > 0)
            }
            Register::FnControl => {
                let resets = self.of_function(place.function).any(|queue| self.queue(queue).is_resetting());
                if resets { FunctionControl::RESET.bits() } else { 0 }
            }
            Register::Control => queue.control().bits(),
            Register::Doorbell => queue.doorbell(),
            Register::CqHead => queue.cq_head(),
            Register::SqHead => queue.sq_head(),
            Register::CqTail => queue.cq_tail(),
            Register::State => queue.state().bits(),
            Register::Error => queue.fault().bits(),
            Register::Status => queue.status(),
            Register::Arm => queue.armed_at(),
            Register::MessagesPending => {
                (0..).zip(&self.queues).map(|(bit, queue)| u32::from(queue.is_pending()) << bit).sum()
            }
            Register::CapTickHz => built.tick_hz,
            Register::EqHead => self.events[usize::from(place.function)].words()[0],
            Register::EqTail => self.events[usize::from(place.function)].words()[1],
            Register::EventsDropped => self.events[usize::from(place.function)].words()[2],
            _ if register.block() == Block::DeviceMessage => self.config(register, place),
            _ if register.access() == Access::Config => self.config(register, place),
            _ => self.read_counter(register, queue),
        })
    }

    /// A half of a counter. Neither is kept for the other: who reads both looks at the high one again.
    fn read_counter(&self, register: Register, queue: &QueueRegisters) -> u32 {
        let own = QueueCounter::ALL.map(|counter| (counter.lo(), counter.hi(), queue.counted(counter)));
        let all = Counter::ALL.map(|counter| (counter.lo(), counter.hi(), self.counted(counter)));
        let half = |(low, high, value): (Register, Register, u64)| {
            (register == low).then_some(value as u32).or((register == high).then_some((value >> 32) as u32))
        };
        all.into_iter().chain(own).find_map(half).unwrap_or(0)
    }
}
