//! The golden model: a device in plain Rust, and the executable specification of rules R1 to R21 and R23 to R27.
//!
//! It executes from the same shared memory as any other device, of each queue pair in SQ order, one descriptor at a time (so
//! R5 and R7 hold by construction), and only when given time by `advance`. It has no clock: CYCLES counts one per descriptor
//! and 1 + WAIT_STATES per token, BUSY the same, WAIT the wait states alone; STALL_CQ counts the advances that found
//! a completion queue full, for each such queue pair; the other stall counters and IDLE stay 0.
//!
//! **Turns.** Several queue pairs take turns: in its turn a queue pair has as many *steps* as its WEIGHT, and a step is one
//! descriptor, or [`STEP_TOKENS`] tokens of one that has more and goes on in a later step. Of the image of engine 1 that a POLICY reads,
//! 64 bytes count as a token. So of descriptors with no more tokens than that the shares are exactly the weights. A queue pair that could run
//! waits for at most as many steps as the weights of the others sum up to, thus for at most 1024 tokens times that sum. Two things are one step
//! however long they take: a token of a language model, and the check of a whole image.

mod bus;
mod engine;
mod execution;
mod functions;
mod groups;
mod language;
mod mutation;
mod plain;
#[cfg(test)]
mod tests;
mod turns;

pub use mutation::{BadMutation, LanguageFault, Mutation, PolicyFault};

use std::collections::HashMap;
use std::ops::RangeInclusive;

use bus::Bus;
pub use bus::{BusFaults, FaultyRange, Injected};
use doorbell_contract::{Capability, Counter, Place, Register, Status};
use doorbell_engine::{Engine, RewardModel};
use doorbell_host::error::DeviceError;
use doorbell_host::memory::{SIMULATED_BUS_ADDRESS, SharedMemory};
use doorbell_host::placement::Placement;
use doorbell_host::platform::Platform;
use doorbell_host::ports::Pages;
use doorbell_host::registers::{Built, Registers};
use engine::Outcome;
use execution::{Awaited, Execution, Lane, Tables, send, tell_faults};
use groups::{GROUPS, Groups};
use mutation::Mutator;
use turns::{Turn, Turns};

/// Tokens and descriptors that one `advance` executes at most.
const SLICE: u32 = 1 << 14;

/// Tokens of one DECODE after which the next step is due, where there are several queue pairs.
pub const STEP_TOKENS: u32 = SLICE / 16;

const BUILT: Built = Built {
    features: Capability::PREFILL
        .union(Capability::REWARD)
        .union(Capability::RESIDENT)
        .union(Capability::INTERRUPT)
        .union(Capability::LOGP)
        .union(Capability::POLICY)
        .union(Capability::ABORT)
        .union(Capability::EVENTS)
        .union(Capability::TRUNCATION)
        .union(Capability::WATCHDOG)
        .union(Capability::ISOLATED),
    // It executes in SQ order, one descriptor of a queue pair at a time.
    workers: 1,
    queues: 1,
    functions: 1,
    windows: true,
    engines: Engine::ALL.len() as u32,
    reward_models: RewardModel::ALL.len() as u32,
    groups: GROUPS,
    // It has no time of its own.
    tick_hz: 0,
};

/// The model as a platform for [`Driver`](doorbell_host::driver::Driver).
#[derive(Debug)]
pub struct ModelPlatform {
    bus: Option<Bus>,
    registers: Registers,
    /// What each queue pair executes.
    lanes: Vec<Lane>,
    tables: Tables,
    turn: Turn,
    mutator: Option<Mutator>,
    placement: Placement,
}

impl Default for ModelPlatform {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelPlatform {
    /// A model after reset, with one queue pair.
    pub fn new() -> Self {
        Self::built(BUILT)
    }

    /// A model after reset, with so many queue pairs and functions, 1 to 16 each.
    ///
    /// # Errors
    /// `Config` for other numbers.
    pub fn with_queues(queues: u8, functions: u8) -> Result<Self, DeviceError> {
        for (field, value) in [("queues", queues), ("functions", functions)] {
            if !(1..=16).contains(&value) {
                return Err(DeviceError::Config { field, value: value.into(), expected: "1 to 16".into() });
            }
        }
        Ok(Self::built(Built { queues, functions, ..BUILT }))
    }

    fn built(built: Built) -> Self {
        Self {
            bus: None,
            lanes: (0..built.queues).map(|_| Lane::default()).collect(),
            tables: Tables {
                groups: (0..built.queues).map(|_| Groups::default()).collect(),
                users: vec![[0; 2]; usize::from(built.functions)],
                weights: vec![[None, None]; usize::from(built.functions)],
                read_beats: 0,
                cuts: HashMap::new(),
            },
            registers: Registers::new(built),
            // The first turn is that of queue pair 0.
            turn: Turn { queue: built.queues - 1, steps: 0 },
            mutator: None,
            placement: Placement::default(),
        }
    }

    /// A model whose memory is placed so.
    #[must_use]
    pub fn with_placement(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// A model with a fault, to prove that comparisons and bounded waits notice it.
    #[must_use]
    pub fn with_mutation(self, mutation: Mutation) -> Self {
        Self { mutator: Some(Mutator::new(mutation)), ..self }
    }

    /// A model that ends DECODEs, by their `user_data`, at these lengths, as STOPPED or SUPERSEDED: at the switch points that
    /// another device had, so that their bytes are to be the same (R6, R20).
    #[must_use]
    pub fn with_cuts(mut self, cuts: HashMap<u64, (u32, Status)>) -> Self {
        self.tables.cuts = cuts;
        self
    }

    /// Ends the drains that have nothing left, and tells the registers who is busy.
    fn settle(&mut self) {
        for (queue, lane) in (0..).zip(&self.lanes) {
            let queue = self.registers.queue_mut(queue);
            queue.busy = lane.running.is_some();
            queue.settle_abort();
        }
        self.end_drains();
    }

    /// Ends the drains that have nothing left, each behind the message of its last completion (R14).
    fn end_drains(&mut self) {
        for queue in 0..self.lanes.len() as u8 {
            if !self.registers.queue(queue).is_drained() {
                continue;
            }
            self.registers.queue_mut(queue).fire_last();
            // A message is an access like any other.
            if let Some(bus) = &self.bus
                && self.lanes[usize::from(queue)].awaited.is_none()
            {
                send(bus, &mut self.registers, queue);
            }
            if !self.registers.has_message(queue) {
                self.registers.queue_mut(queue).stop();
            }
        }
    }

    /// R12: what runs does not outlive a disable.
    fn forget(&mut self) {
        self.tables.users.fill([0; 2]);
        for (queue, lane) in (0..).zip(&mut self.lanes) {
            match (&self.registers.queue(queue).session, &lane.running) {
                (None, _) => {
                    (lane.running, lane.life) = (None, None);
                    self.tables.groups[usize::from(queue)].clear();
                    if lane.awaited.is_some() {
                        // What the bus was promised it may still move.
                        self.registers.queue_mut(queue).wait_for_the_end();
                    }
                }
                // R24: a dead one keeps no version.
                (Some(_), Some(_)) if self.registers.queue(queue).is_dead() => {}
                (Some(session), Some(running)) => {
                    if let Some(slot) = running.slot() {
                        self.tables.users[usize::from(session.function)][slot] += 1;
                    }
                }
                (Some(_), None) => {}
            }
        }
    }

    /// Sets the counters that follow from the others.
    fn derive_counters(&mut self) {
        let counted = |counter| self.registers.counted(counter);
        let descriptors = counted(Counter::Descriptors);
        let cycles = counted(Counter::Completions) + counted(Counter::Tokens) + counted(Counter::Wait);
        let read = descriptors + self.tables.read_beats;
        for (counter, value) in
            [(Counter::ReadBeats, read), (Counter::Cycles, cycles), (Counter::Busy, cycles)]
        {
            self.registers.set_counter(counter, value);
        }
    }

    /// Runs until `want` completions of `queue`, or of any queue pair, are posted, or a slice is over.
    fn run(&mut self, want: usize, queue: Option<u8>, mut budget: u32) {
        let want = want.max(1);
        let (mut posted, mut rest) = (0, None);
        let Self { bus: Some(bus), registers, lanes, tables, mutator, .. } = self else { return };
        // Where descriptors are plain, no answer and no time is waited for, and no message is to be sent.
        if let [lane] = &mut lanes[..] {
            let mut execution = Execution { bus, registers, queue: 0, lane, tables, mutator };
            (posted, rest) = execution.run_plain::<false>(want, &mut budget);
            if posted == want {
                return;
            }
        }
        self.run_any(want - posted, queue, budget, rest);
    }

    /// The same, in a frame of its own, of descriptors of any kind; `rest` is how the first one has ended, if it has.
    #[inline(never)]
    fn run_any(&mut self, want: usize, queue: Option<u8>, budget: u32, rest: Option<Outcome>) {
        let Self { bus: Some(bus), registers, lanes, tables, turn, mutator, placement: _ } = self else {
            return;
        };
        // Neither an answer nor a time is waited for, and no message is to be sent: only the host can change that.
        let rests = !bus.withholds_some()
            && lanes.iter().all(|lane| lane.awaited.is_none())
            && registers.queues().iter().all(|queue| !queue.is_armed() && !queue.is_pending());
        let mut before = 0;
        if !rests {
            before = registers.ticks();
            await_answers(bus, registers, lanes, tables);
        }
        match &mut lanes[..] {
            [lane] => {
                bus.serve(registers, 0);
                Execution { bus, registers, queue: 0, lane, tables, mutator }.run(want, budget, rest);
            }
            lanes => Turns { bus, registers, lanes, tables, turn, mutator }.run(want, queue, budget),
        }
        if !rests {
            registers.look_at_times(registers.ticks() == before);
            for (queue, lane) in (0..).zip(lanes.iter()) {
                let queue = registers.queue_mut(queue);
                queue.busy = lane.running.is_some();
                if queue.is_drained() {
                    queue.fire_last();
                }
            }
            self.send_all();
        }
    }

    /// Sends the messages that are pending and not masked (R14).
    fn send_all(&mut self) {
        let Self { bus: Some(bus), registers, lanes, .. } = self else { return };
        for queue in 0..lanes.len() as u8 {
            // A message is an access like any other.
            if lanes[usize::from(queue)].awaited.is_some() {
                continue;
            }
            send(bus, registers, queue);
        }
    }

    /// Runs for so many tokens and descriptors, at most: less than an [`advance`](Platform::advance), so that the host comes in
    /// between.
    pub fn pass(&mut self, budget: u32) {
        self.run(usize::MAX, None, budget.max(1));
    }

    /// Its memory answers accesses with errors from here on; none where there is no memory yet.
    pub fn set_faults(&mut self, faults: Option<BusFaults>) {
        if let Some(bus) = &mut self.bus {
            bus.set_faults(faults);
        }
    }

    /// Its memory answers no access of queue pairs whose rings or tokens begin at these addresses, from here on until this is called
    /// again; no range is a memory that answers all of them (R24).
    pub fn withhold(&mut self, ranges: Vec<RangeInclusive<u64>>) {
        if let Some(bus) = &mut self.bus {
            bus.withhold(ranges);
            await_answers(bus, &mut self.registers, &mut self.lanes, &mut self.tables);
        }
    }

    /// The accesses that its memory has answered with an error since this was asked last.
    pub fn take_injected(&mut self) -> Vec<Injected> {
        self.bus.as_mut().map(Bus::take_injected).unwrap_or_default()
    }

    /// The reset pin: registers take their reset values, and nothing is in flight.
    pub fn reset(&mut self) {
        let built = self.registers.built();
        let bus = self.bus.take();
        let mutator = self.mutator.take();
        *self = Self { bus, mutator, placement: self.placement, ..Self::built(built) };
    }
}

/// Who has something to do, and whose memory does not answer, waits; an advance is a cycle of that. Behind BUS_TIMEOUT of them the queue
/// pair is dead (R24).
fn await_answers(bus: &Bus, registers: &mut Registers, lanes: &mut [Lane], tables: &mut Tables) {
    if !bus.withholds_some() && lanes.iter().all(|lane| lane.awaited.is_none()) {
        return;
    }
    for (queue, lane) in (0..).zip(lanes) {
        let own = registers.queue_mut(queue);
        if let Some(awaited) = &lane.awaited
            && !bus.withholds(&awaited.places)
        {
            lane.awaited = None;
            if own.is_ending() {
                own.answered();
            }
        }
        if let Some(session) = &own.session
            && lane.awaited.is_none()
        {
            let places = [session.sq.base, session.cq.base, session.token_base];
            let works = lane.running.is_some() || session.sq.fill() > 0 && !session.cq.is_full();
            if works && !own.is_dead() && bus.withholds(&places) {
                lane.awaited = Some(Awaited { places, age: 0, timeout: session.bus_timeout });
            }
        }
        let Some(awaited) = &mut lane.awaited else { continue };
        awaited.age = awaited.age.saturating_add(1);
        if awaited.timeout != 0 && awaited.age >= awaited.timeout && !own.is_dead() {
            own.die();
            if let (Some(session), Some(slot)) =
                (&own.session, lane.running.as_ref().and_then(execution::Running::slot))
            {
                tables.users[usize::from(session.function)][slot] -= 1;
            }
            tell_faults(bus, registers, queue);
        }
    }
}

impl Platform for ModelPlatform {
    fn name(&self) -> &str {
        "model"
    }

    fn ticks(&mut self) -> Option<u64> {
        Some(self.registers.ticks())
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let memory = SharedMemory::placed(bytes, SIMULATED_BUS_ADDRESS, &self.placement)?;
        self.bus = Some(Bus::new(memory.clone()));
        Ok(memory)
    }

    #[inline]
    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.write_at(Place::FIRST, register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.read_at(Place::FIRST, register)
    }

    #[inline]
    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.run(want, None, SLICE);
        Ok(())
    }
}

impl Pages for ModelPlatform {
    #[inline]
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        if !matches!(register, Register::Doorbell | Register::CqHead) {
            self.settle();
        }
        self.registers.write(register, place, value).map_err(|_| DeviceError::WriteRefused {
            device: "model".to_owned(),
            register,
            value,
        })?;
        if matches!(register, Register::Control | Register::FnControl) {
            self.forget();
            if let (Register::Control, Some(bus)) = (register, &self.bus) {
                tell_faults(bus, &mut self.registers, place.queue);
            }
        }
        if matches!(register, Register::Arm | Register::MessageControl) {
            self.send_all();
        }
        Ok(())
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.derive_counters();
        self.settle();
        let read = self.registers.read(register, place);
        read.map_err(|_| DeviceError::ReadRefused { device: "model".to_owned(), register })
    }

    fn advance_for(&mut self, place: Place, want: usize) -> Result<(), DeviceError> {
        self.run(want, Some(place.queue), SLICE);
        Ok(())
    }
}
