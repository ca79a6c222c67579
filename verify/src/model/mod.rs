//! The golden model: a device in plain Rust, and the executable specification of rules R1 to R21.
//!
//! It executes from the same shared memory as any other device, of each queue pair in SQ order, one descriptor at a time (so
//! R5 and R7 hold by construction), and only when given time by `advance`. It has no clock: CYCLES counts one per descriptor
//! and 1 + WAIT_STATES per token, BUSY the same, WAIT the wait states alone; STALL_CQ counts the advances that found
//! a completion queue full, for each such queue pair; the other stall counters and IDLE stay 0.
//!
//! **Turns.** Several queue pairs take turns: in its turn a queue pair has as many *steps* as its WEIGHT, and a step is one
//! descriptor, or [`STEP_TOKENS`] tokens of one that has more and goes on in a later step. So of descriptors with no more tokens
//! than that the shares are exactly the weights, and a queue pair that could run waits for at most as many steps as the weights
//! of the others sum up to, thus for at most 1024 tokens times that sum, however long their descriptors are.

mod engine;
mod groups;
mod mutation;
#[cfg(test)]
mod tests;

pub use mutation::{BadMutation, Mutation, PolicyFault};

use std::collections::HashMap;

use bytemuck::{cast, cast_mut};

use doorbell_contract::{
    Capability, CompletionFlags, Counter, DescFlags, DeviceFault, ErrorCode, HwCompletion, HwDesc, HwPolicy,
    MEMBER_NONE, Opcode, Place, PolicyMode, Register, SlotState, Status,
};
use doorbell_engine::{Engine, RewardModel};
use doorbell_host::error::DeviceError;
use doorbell_host::memory::{BusFault, SIMULATED_BUS_ADDRESS, SharedMemory};
use doorbell_host::platform::Platform;
use doorbell_host::ports::Pages;
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS};
use doorbell_host::registers::{Built, Registers, Session};
use engine::{Decode, Outcome, check, fits};
use groups::{GROUPS, Groups, Part};
use mutation::Mutator;

/// Tokens and descriptors that one `advance` executes at most.
const SLICE: u32 = 1 << 14;

/// Tokens of one DECODE after which the next step is due, where there are several queue pairs.
pub const STEP_TOKENS: u32 = SLICE / 16;

/// How far the model looks for the STOP of a DECODE that runs.
const STOP_LOOKAHEAD: u32 = 16;

const BUILT: Built = Built {
    features: Capability::PREFILL
        .union(Capability::REWARD)
        .union(Capability::RESIDENT)
        .union(Capability::INTERRUPT)
        .union(Capability::LOGP)
        .union(Capability::POLICY)
        .union(Capability::ABORT),
    // It executes in SQ order, one descriptor of a queue pair at a time.
    workers: 1,
    queues: 1,
    functions: 1,
    windows: true,
    engines: Engine::ALL.len() as u32,
    reward_models: RewardModel::ALL.len() as u32,
    groups: GROUPS,
};

/// The model as a platform for [`Driver`](doorbell_host::driver::Driver).
#[derive(Debug)]
pub struct ModelPlatform {
    memory: Option<SharedMemory>,
    registers: Registers,
    /// What each queue pair executes.
    lanes: Vec<Lane>,
    tables: Tables,
    turn: Turn,
    mutator: Option<Mutator>,
}

/// What a queue pair executes.
#[derive(Debug, Default)]
struct Lane {
    /// The descriptor fetched last.
    desc: HwDesc,
    /// Present while `desc` is a DECODE that has not ended.
    running: Option<Decode>,
    /// What of a group `desc` belongs to.
    part: Option<Part>,
}

/// What queue pairs look at of each other's.
#[derive(Debug)]
struct Tables {
    /// By queue pair.
    groups: Vec<Groups>,
    /// DECODEs that run under the version in each policy slot, by function.
    users: Vec<[u32; 2]>,
    /// Beats of 64 bytes that REWARD and POLICY have read.
    read_beats: u64,
    /// Where DECODEs, by their `user_data`, are to end early, and as what.
    cuts: HashMap<u64, (u32, Status)>,
}

/// Whose turn it is, and how many steps are left of it.
#[derive(Debug)]
struct Turn {
    queue: u8,
    steps: u32,
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
            memory: None,
            lanes: (0..built.queues).map(|_| Lane::default()).collect(),
            tables: Tables {
                groups: (0..built.queues).map(|_| Groups::default()).collect(),
                users: vec![[0; 2]; usize::from(built.functions)],
                read_beats: 0,
                cuts: HashMap::new(),
            },
            registers: Registers::new(built),
            // The first turn is that of queue pair 0.
            turn: Turn { queue: built.queues - 1, steps: 0 },
            mutator: None,
        }
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
            if queue.is_drained() {
                queue.stop();
            }
        }
    }

    /// R12: what runs does not outlive a disable.
    fn forget(&mut self) {
        self.tables.users.fill([0; 2]);
        for (queue, lane) in (0..).zip(&mut self.lanes) {
            match (&self.registers.queue(queue).session, &lane.running) {
                (None, _) => {
                    lane.running = None;
                    self.tables.groups[usize::from(queue)].clear();
                }
                (Some(session), Some(decode)) => {
                    self.tables.users[usize::from(session.function)][decode.slot] += 1
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
    fn run(&mut self, want: usize, queue: Option<u8>) {
        let Self { memory: Some(memory), registers, lanes, tables, turn, mutator } = self else { return };
        match &mut lanes[..] {
            [lane] => Execution { memory, registers, queue: 0, lane, tables, mutator }.run(want.max(1)),
            lanes => Turns { memory, registers, lanes, tables, turn, mutator }.run(want.max(1), queue),
        }
    }
}

impl Platform for ModelPlatform {
    fn name(&self) -> &str {
        "model"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        let memory = SharedMemory::allocate(bytes, SIMULATED_BUS_ADDRESS)?;
        self.memory = Some(memory.clone());
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
        self.run(want, None);
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
        self.run(want, Some(place.queue));
        Ok(())
    }
}

/// A model of several queue pairs while it has time.
struct Turns<'a> {
    memory: &'a SharedMemory,
    registers: &'a mut Registers,
    lanes: &'a mut [Lane],
    tables: &'a mut Tables,
    turn: &'a mut Turn,
    mutator: &'a mut Option<Mutator>,
}

impl Turns<'_> {
    fn run(&mut self, want: usize, of: Option<u8>) {
        let (mut budget, mut posted) = (SLICE, 0);
        while budget > 0 && posted < want && !self.mutator.as_ref().is_some_and(Mutator::hangs) {
            let Some(queue) = self.next_turn() else { break };
            self.turn.steps -= 1;
            let lane = &mut self.lanes[usize::from(queue)];
            let Self { memory, registers, tables, mutator, .. } = self;
            let mut execution = Execution { memory, registers, queue, lane, tables, mutator };
            // A descriptor costs as much as a token, in the slice and not in the step.
            let most = if execution.lane.running.is_some() { STEP_TOKENS } else { STEP_TOKENS + 1 };
            let mut step = most;
            let stop_waits = execution.stop_waits();
            if let Some(outcome) = execution.step(&mut step, stop_waits) {
                execution.post(outcome);
                posted += usize::from(of.is_none_or(|of| of == queue));
            }
            budget = budget.saturating_sub(most - step);
        }
        // R4: the heads of these wait for a slot alone.
        let waiting = (0..).zip(&*self.lanes).filter(|(queue, lane)| {
            let session = &self.registers.queue(*queue).session;
            let waits = session.as_ref().is_some_and(|session| session.sq.fill() > 0 && session.cq.is_full());
            waits && lane.running.is_none()
        });
        let waiting = waiting.count() as u64;
        self.registers.count(Counter::StallCq, waiting);
    }

    /// The queue pair that has the next step: the one whose turn it is, as long as it has steps left and can use them, else
    /// the next one that can, in circular order. One that cannot loses the rest of its turn.
    fn next_turn(&mut self) -> Option<u8> {
        if self.turn.steps > 0 && self.weight(self.turn.queue).is_some() {
            return Some(self.turn.queue);
        }
        self.turn.steps = 0;
        let count = self.lanes.len() as u8;
        let behind = (1..=count).map(|k| (self.turn.queue + k) % count);
        let (queue, steps) = behind.filter_map(|queue| Some((queue, self.weight(queue)?))).next()?;
        *self.turn = Turn { queue, steps };
        Some(queue)
    }

    /// The weight of a queue pair that can use a step: a descriptor runs, its slot reserved (R4), or one is published and a
    /// slot is free.
    fn weight(&self, queue: u8) -> Option<u32> {
        let session = self.registers.queue(queue).session.as_ref()?;
        let runs = self.lanes[usize::from(queue)].running.is_some();
        (runs || session.sq.fill() > 0 && !session.cq.is_full()).then_some(session.weight)
    }
}

/// One queue pair of the model while it has time.
struct Execution<'a> {
    memory: &'a SharedMemory,
    registers: &'a mut Registers,
    queue: u8,
    lane: &'a mut Lane,
    tables: &'a mut Tables,
    mutator: &'a mut Option<Mutator>,
}

impl Execution<'_> {
    /// Runs as the only queue pair.
    fn run(&mut self, want: usize) {
        let mut budget = SLICE;
        // A STOP is looked for once per advance: it can only have been published in between.
        let mut stop_waits = self.stop_waits();
        for _ in 0..want {
            let Some(session) = &self.registers.queue(self.queue).session else { return };
            if self.lane.running.is_none() && session.sq.fill() == 0 || budget == 0 {
                return;
            }
            // R4: without a free slot for its completion no descriptor is even fetched.
            if session.cq.is_full() {
                return self.registers.count(Counter::StallCq, 1);
            }
            if self.mutator.as_ref().is_some_and(Mutator::hangs) {
                return;
            }
            match self.step(&mut budget, std::mem::take(&mut stop_waits)) {
                Some(outcome) => self.post(outcome),
                None => return,
            }
        }
    }

    /// Goes on with what runs, or begins with the next; `None` if it needs more than `budget`. `stop_waits` says whether the
    /// device has come to a STOP of what runs.
    #[inline(always)]
    fn step(&mut self, budget: &mut u32, stop_waits: bool) -> Option<Outcome> {
        match self.lane.running.take() {
            Some(decode) => self.decode(decode, budget, stop_waits),
            None => self.next(budget),
        }
    }

    /// Fetches the oldest published descriptor and executes it; `None` if it needs more time than there is.
    #[inline(always)]
    fn next(&mut self, budget: &mut u32) -> Option<Outcome> {
        *budget -= 1;
        self.registers.count(Counter::Descriptors, 1);
        let session = self.registers.queue_mut(self.queue).session.as_mut()?;
        let index = session.sq.head;
        session.sq.head = index.wrapping_add(1);
        self.lane.part = None;
        if fetch(self.memory, session, index, &mut self.lane.desc).is_err() {
            self.registers.queue_mut(self.queue).raise(DeviceFault::DMA_READ);
            self.lane.desc = HwDesc::default();
            return Some(Outcome::no_echo(ErrorCode::DmaFault, index));
        }
        Some(match check(&self.lane.desc, index, session) {
            Err(ErrorCode::BadCheck) => {
                self.lane.desc = HwDesc::default();
                Outcome::no_echo(ErrorCode::BadCheck, index)
            }
            Err(code) => Outcome::rejected(code),
            Ok(Opcode::Decode) => match self.begin(index) {
                Ok(decode) => return self.decode(decode, budget, false),
                Err(outcome) => outcome,
            },
            Ok(Opcode::Prefill) => self.prefill(),
            // R8: whatever this STOP could have stopped has completed before it, or was stopped by `stop_waits`.
            Ok(Opcode::Stop) => {
                let groups = &self.tables.groups[usize::from(self.queue)];
                self.lane.part = groups.part(&self.lane.desc, Opcode::Stop);
                Outcome::plain(Status::Stopped)
            }
            Ok(Opcode::Nop) => Outcome::plain(Status::Done),
            Ok(Opcode::Reward) => self.reward(),
            Ok(Opcode::Policy) => self.publish(),
        })
    }

    /// Begins the DECODE, found at `index`; or how it ends without a token.
    #[inline(always)]
    fn begin(&mut self, index: u32) -> Result<Decode, Outcome> {
        let desc = &self.lane.desc;
        let rejected = Outcome::rejected;
        let engine = Engine::of(desc.model_id).ok_or(rejected(ErrorCode::BadModel))?;
        let session = self.registers.queue(self.queue).session.as_ref().ok_or(rejected(ErrorCode::None))?;
        let policies = self.registers.policies(session.function);
        let number = policies.find(desc.policy_version).ok_or(rejected(ErrorCode::BadVersion))?;
        let slot = policies.slot(number);
        let groups = &self.tables.groups[usize::from(self.queue)];
        self.lane.part = groups.part(desc, Opcode::Decode);
        let has = |fault| self.mutator.as_ref().is_some_and(|mutator| mutator.has(fault));
        match slot.state {
            _ if has(PolicyFault::LateStop) => {}
            SlotState::Kept => return Err(Outcome::unstarted(Status::Superseded)),
            SlotState::Aborted => return Err(Outcome::unstarted(Status::Stopped)),
            SlotState::Resident | SlotState::Empty => {}
        }
        let stale = self.lane.part.is_some() && groups.is_stale(desc.prefix_id, number);
        if stale && !has(PolicyFault::StalePrefix) {
            return Err(rejected(ErrorCode::StalePrefix));
        }
        if let Some(&(0, status)) = self.tables.cuts.get(&desc.user_data) {
            return Err(Outcome::unstarted(status));
        }
        let mut salt = slot.salt;
        if let Some(mutator) = self.mutator {
            salt = mutator.salt(slot.version, salt, policies.slot(1 - number).salt);
        }
        let decode = Decode::new(engine, desc, session, number, salt);
        let function = session.function;
        if let Some(abort) = self.registers.queue(self.queue).abort() {
            if abort.ends(desc.rollout_id, index) {
                return Err(Outcome::unstarted(Status::Stopped));
            }
            self.registers.queue_mut(self.queue).come_to(index);
        }
        self.tables.users[usize::from(function)][number] += 1;
        Ok(decode)
    }

    fn prefill(&mut self) -> Outcome {
        let desc = &self.lane.desc;
        let Some(session) = &self.registers.queue(self.queue).session else {
            return Outcome::plain(Status::Done);
        };
        let policies = self.registers.policies(session.function);
        let slot = policies.find(desc.policy_version);
        let opened = match slot.filter(|_| policies.is_resident(desc.policy_version)) {
            Some(slot) => self.tables.groups[usize::from(self.queue)].open(desc, slot),
            None => Err(ErrorCode::BadVersion),
        };
        match opened {
            Ok(()) => {
                self.registers.count(Counter::Prefixes, 1);
                Outcome::plain(Status::Done)
            }
            Err(code) => Outcome::rejected(code),
        }
    }

    /// Scores tokens that lie in memory.
    fn reward(&mut self) -> Outcome {
        let desc = &self.lane.desc;
        let model = RewardModel::of(desc.reward_model_id);
        let Some((session, model)) = self.registers.queue(self.queue).session.as_ref().zip(model) else {
            return Outcome::rejected(ErrorCode::BadModel);
        };
        let start = session.token_base.wrapping_add(desc.delta_offset);
        // One by one: whoever counts the allocations of his thread gives the model its time there.
        let mut fault = None;
        let tokens = (0..u64::from(desc.max_tokens)).map_while(|k| {
            let read = self.memory.bus_read_u32(start.wrapping_add(4 * k));
            read.map_err(|error| fault = Some(error)).ok()
        });
        let score = model.score(tokens, &session.ranges);
        self.tables.read_beats += lines(desc.delta_offset, 0, desc.max_tokens);
        match fault {
            None => Outcome { result: score as u32, ..Outcome::plain(Status::Scored) },
            Some(BusFault) => self.unreadable(),
        }
    }

    /// What a descriptor wants to read is not there.
    #[cold]
    fn unreadable(&mut self) -> Outcome {
        self.registers.queue_mut(self.queue).raise(DeviceFault::DMA_READ);
        Outcome::rejected(ErrorCode::DmaFault)
    }

    /// Makes a version of the policy resident (R19), and retires the one before (R20).
    fn publish(&mut self) -> Outcome {
        let desc = self.lane.desc;
        let Some(session) = &self.registers.queue(self.queue).session else {
            return Outcome::plain(Status::Done);
        };
        let function = session.function;
        let policies = self.registers.policies(function);
        let mode = u8::try_from(desc.checkpoint).ok().and_then(|mode| PolicyMode::try_from(mode).ok());
        let Some(mode) = mode.filter(|_| !policies.is_resident(desc.policy_version)) else {
            return Outcome::rejected(ErrorCode::BadPolicy);
        };
        let (old, new) = (1 - policies.target(), policies.target());
        if self.tables.users[usize::from(function)][new] > 0 {
            return Outcome::rejected(ErrorCode::PolicyBusy);
        }
        let start = session.token_base.wrapping_add(desc.delta_offset);
        let mut words = [0u32; 4];
        self.tables.read_beats += 1;
        for (word, k) in words.iter_mut().zip(0..) {
            match self.memory.bus_read_u32(start.wrapping_add(4 * k)) {
                Ok(value) => *word = value,
                Err(_) => return self.unreadable(),
            }
        }
        let header: HwPolicy = cast(words);
        if !fits(&header, &desc) {
            return Outcome::rejected(ErrorCode::BadPolicy);
        }
        if let Some(mutator) = self.mutator {
            mutator.published(desc.policy_version, self.registers.policies(function).slot(new).salt);
        }
        self.registers.policies_mut(function).publish(desc.policy_version, header.salt, mode);
        for (queue, groups) in (0..).zip(&mut self.tables.groups) {
            let session = &self.registers.queue(queue).session;
            if session.as_ref().is_some_and(|session| session.function == function) {
                groups.spoil(new);
                match mode {
                    PolicyMode::Wait => {}
                    PolicyMode::Keep => groups.pass(old, new),
                    PolicyMode::Abort => groups.spoil(old),
                }
            }
        }
        Outcome::plain(Status::Done)
    }

    /// Runs the DECODE as far as `budget` allows; `None` if it has not ended.
    #[inline(always)]
    fn decode(&mut self, mut decode: Decode, budget: &mut u32, stop_waits: bool) -> Option<Outcome> {
        let before = decode.produced;
        let mut cut = self.cut(&decode, stop_waits);
        let mut most = *budget;
        if !self.tables.cuts.is_empty()
            && let Some(&(length, status)) = self.tables.cuts.get(&self.lane.desc.user_data)
        {
            // The token with which it ends on its own.
            (most, cut) = match length.saturating_sub(before) {
                0 | 1 => (most.min(1), Some(status)),
                left => (most.min(left - 1), None),
            };
        }
        let session = self.registers.queue(self.queue).session.as_ref()?;
        let (memory, mutator) = (self.memory, &mut *self.mutator);
        let logps = self.lane.desc.flags & DescFlags::LOGP.bits() != 0;
        let write = |offset: u64, mut token: u32, logp: i32| {
            if let Some(mutator) = mutator {
                token = mutator.token(token);
            }
            // R11: within the region by the checks of the descriptor, and within the memory by those of the bus.
            debug_assert!(offset + 4 <= session.token_size, "R11: token at {offset:#x}");
            memory.bus_write_u32(session.token_base.wrapping_add(offset), token)?;
            if logps {
                debug_assert!(offset + 4 <= session.logp_size, "R11: log-probability at {offset:#x}");
                memory.bus_write_u32(session.logp_base.wrapping_add(offset), logp as u32)?;
            }
            Ok(())
        };
        let outcome = decode.run(&self.lane.desc, most, cut, session, write);
        let function = session.function;

        let produced = decode.produced - before;
        *budget -= produced;
        let waited = u64::from(produced) * u64::from(session.wait_states);
        self.registers.count(Counter::Tokens, produced.into());
        self.registers.count(Counter::Wait, waited);
        let beats = lines(self.lane.desc.delta_offset, before, decode.produced);
        self.registers.count(Counter::WriteBeats, if logps { 2 * beats } else { beats });

        match outcome {
            None => self.lane.running = Some(decode),
            Some(Outcome { error, .. }) => {
                self.tables.users[usize::from(function)][decode.slot] -= 1;
                if error == ErrorCode::DmaFault {
                    self.registers.queue_mut(self.queue).raise(DeviceFault::DMA_WRITE);
                }
            }
        }
        outcome
    }

    /// How the DECODE that runs is to end early, if it is.
    #[inline(always)]
    fn cut(&self, decode: &Decode, stop_waits: bool) -> Option<Status> {
        let queue = self.registers.queue(self.queue);
        let session = queue.session.as_ref()?;
        // The descriptor that runs is the one fetched last.
        let index = session.sq.head.wrapping_sub(1);
        let aborted = queue.abort().is_some_and(|abort| abort.ends(self.lane.desc.rollout_id, index));
        match self.registers.policies(session.function).slot(decode.slot).state {
            SlotState::Aborted => Some(Status::Stopped),
            _ if stop_waits || aborted => Some(Status::Stopped),
            SlotState::Kept => Some(Status::Superseded),
            SlotState::Resident | SlotState::Empty => None,
        }
    }

    /// Makes the completion of `desc` visible; the caller has made sure that its slot is released (R4).
    #[inline(always)]
    fn post(&mut self, outcome: Outcome) {
        let Some(session) = &mut self.registers.queue_mut(self.queue).session else { return };
        let index = session.cq.tail;
        session.cq.tail = index.wrapping_add(1);
        let mut completion = HwCompletion { sq_head: session.sq.head, ..outcome.of(&self.lane.desc) };
        let closes = self.lane.part.is_some() && self.end_part(outcome.status);
        if closes {
            completion.flags |= CompletionFlags::GROUP_DONE.bits();
        }
        let Some(session) = &mut self.registers.queue_mut(self.queue).session else { return };
        let mut words: [u64; COMPLETION_WORDS] = cast(completion.with_phase(session.cq.depth.phase(index)));
        if let Some(mutator) = self.mutator {
            words = mutator.completion(words);
        }
        let address = session.cq.address(index, size_of::<HwCompletion>() as u64);
        if self.memory.bus_write(address, words).is_err() {
            self.registers.queue_mut(self.queue).raise(DeviceFault::COMPLETION_WRITE);
        }
        self.registers.count(Counter::Completions, 1);
        self.registers.count(Counter::WriteBeats, 1);
        if outcome.status == Status::Error {
            self.registers.count(Counter::Errors, 1);
        }
        // R14: an ERROR asks as well, and the end of a group.
        let asks = self.lane.desc.flags & DescFlags::INTERRUPT.bits() != 0;
        if asks || closes || outcome.status == Status::Error {
            self.registers.queue_mut(self.queue).ask_interrupt(index);
        }
    }

    /// R17: ends the part of a group to which the descriptor belongs, if its status does; whether that was the last.
    fn end_part(&mut self, status: Status) -> bool {
        let Some(part) = self.lane.part.filter(|_| matches!(status, Status::Done | Status::Stopped)) else {
            return false;
        };
        self.tables.groups[usize::from(self.queue)].end(self.lane.desc.prefix_id, part)
    }

    /// Whether the device has come to a STOP of the rollout that runs (R8): it comes past descriptors of other
    /// rollouts, but not past a fence (R7) nor past another descriptor of this rollout (R5).
    fn stop_waits(&self) -> bool {
        let Some(session) = &self.registers.queue(self.queue).session else { return false };
        if self.lane.running.is_none() || self.lane.desc.flags & DescFlags::FENCE.bits() != 0 {
            return false;
        }
        let mut desc = HwDesc::default();
        let running = &self.lane.desc;
        let prefix = (running.flags & DescFlags::COW_PREFIX.bits() != 0).then_some(running.prefix_id);
        // R1: never at or beyond the published tail.
        for k in 0..session.sq.fill().min(STOP_LOOKAHEAD) {
            let index = session.sq.head.wrapping_add(k);
            if fetch(self.memory, session, index, &mut desc).is_err() {
                return false;
            }
            match check(&desc, index, session) {
                Err(_) => {}
                Ok(_) if desc.flags & DescFlags::FENCE.bits() != 0 => return false,
                Ok(Opcode::Stop) if stops_group(&desc) => {
                    if prefix == Some(desc.prefix_id) {
                        return true;
                    }
                }
                Ok(opcode) if desc.rollout_id == running.rollout_id => return opcode == Opcode::Stop,
                Ok(_) => {}
            }
        }
        false
    }
}

/// Whether `desc`, a STOP, is one of a whole group.
fn stops_group(desc: &HwDesc) -> bool {
    desc.flags & DescFlags::COW_PREFIX.bits() != 0 && desc.member == MEMBER_NONE
}

/// Reads the slot of `index` into `desc`.
#[inline]
fn fetch(memory: &SharedMemory, session: &Session, index: u32, desc: &mut HwDesc) -> Result<(), BusFault> {
    let words: &mut [u64; DESC_WORDS] = cast_mut(desc);
    memory.bus_read(session.sq.address(index, size_of::<HwDesc>() as u64), words)
}

/// 64-byte lines that tokens number `from` up to, not including, `to` touch, number 0 being at `delta_offset`.
#[inline]
fn lines(delta_offset: u64, from: u32, to: u32) -> u64 {
    let offset = |token: u32| delta_offset + 4 * u64::from(token);
    if from == to { 0 } else { offset(to - 1) / 64 - offset(from) / 64 + 1 }
}
