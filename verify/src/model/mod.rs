//! The golden model: a device in plain Rust, and the executable specification of rules R1 to R14.
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
mod mutation;
#[cfg(test)]
mod tests;

pub use mutation::{BadMutation, Mutation};

use bytemuck::{cast, cast_mut};

use doorbell_contract::{
    Capability, Counter, DescFlags, DeviceFault, ErrorCode, HwCompletion, HwDesc, Opcode, Place, Register,
    Status,
};
use doorbell_engine::{Engine, RewardModel};
use doorbell_host::error::DeviceError;
use doorbell_host::memory::{BusFault, SIMULATED_BUS_ADDRESS, SharedMemory};
use doorbell_host::platform::Platform;
use doorbell_host::ports::Pages;
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS};
use doorbell_host::registers::{Built, Registers, Session};
use engine::{Decode, Outcome, check};
use mutation::Mutator;

/// Tokens and descriptors that one `advance` executes at most.
const SLICE: u32 = 1 << 14;

/// Tokens of one DECODE after which the next step is due, where there are several queue pairs.
pub const STEP_TOKENS: u32 = SLICE / 16;

/// How far the model looks for the STOP of a DECODE that runs.
const STOP_LOOKAHEAD: u32 = 16;

const BUILT: Built = Built {
    features: Capability::PREFILL.union(Capability::RESIDENT).union(Capability::INTERRUPT),
    // It executes in SQ order, one descriptor of a queue pair at a time.
    workers: 1,
    queues: 1,
    functions: 1,
    windows: true,
    engines: Engine::ALL.len() as u32,
    reward_models: RewardModel::ALL.len() as u32,
};

/// The model as a platform for [`Driver`](doorbell_host::driver::Driver).
#[derive(Debug)]
pub struct ModelPlatform {
    memory: Option<SharedMemory>,
    registers: Registers,
    /// What each queue pair executes.
    lanes: Vec<Lane>,
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

    /// Ends the drains that have nothing left, and tells the registers who is busy.
    fn settle(&mut self) {
        for (queue, lane) in (0..).zip(&self.lanes) {
            let queue = self.registers.queue_mut(queue);
            queue.busy = lane.running.is_some();
            if queue.is_drained() {
                queue.stop();
            }
        }
    }

    /// Sets the counters that follow from the others.
    fn derive_counters(&mut self) {
        let counted = |counter| self.registers.counted(counter);
        let descriptors = counted(Counter::Descriptors);
        let cycles = counted(Counter::Completions) + counted(Counter::Tokens) + counted(Counter::Wait);
        for (counter, value) in
            [(Counter::ReadBeats, descriptors), (Counter::Cycles, cycles), (Counter::Busy, cycles)]
        {
            self.registers.set_counter(counter, value);
        }
    }

    /// Runs until `want` completions of `queue`, or of any queue pair, are posted, or a slice is over.
    fn run(&mut self, want: usize, queue: Option<u8>) {
        let Self { memory: Some(memory), registers, lanes, turn, mutator } = self else { return };
        match &mut lanes[..] {
            [lane] => Execution { memory, registers, queue: 0, lane, mutator }.run(want.max(1)),
            lanes => Turns { memory, registers, lanes, turn, mutator }.run(want.max(1), queue),
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
            for (queue, lane) in (0..).zip(&mut self.lanes) {
                if self.registers.queue(queue).session.is_none() {
                    // R12: nothing outlives a disable.
                    lane.running = None;
                }
            }
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
            let Self { memory, registers, mutator, .. } = self;
            let mut execution = Execution { memory, registers, queue, lane, mutator };
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
            Ok(Opcode::Decode) => match Engine::of(self.lane.desc.model_id) {
                Some(engine) => {
                    let decode = Decode::new(engine, &self.lane.desc, session);
                    return self.decode(decode, budget, false);
                }
                None => Outcome::rejected(ErrorCode::BadModel),
            },
            Ok(Opcode::Prefill) => {
                self.registers.count(Counter::Prefixes, 1);
                Outcome::plain(Status::Done)
            }
            // R8: whatever this STOP could have stopped has completed before it, or was stopped by `stop_waits`.
            Ok(Opcode::Stop) => Outcome::plain(Status::Stopped),
            Ok(Opcode::Nop | Opcode::Reward) => Outcome::plain(Status::Done),
        })
    }

    /// Runs the DECODE as far as `budget` allows; `None` if it has not ended.
    #[inline(always)]
    fn decode(&mut self, mut decode: Decode, budget: &mut u32, stop_waits: bool) -> Option<Outcome> {
        let session = self.registers.queue(self.queue).session.as_ref()?;
        let before = decode.produced;
        let (memory, mutator) = (self.memory, &mut *self.mutator);
        let write = |offset: u64, mut token: u32| {
            if let Some(mutator) = mutator {
                token = mutator.token(token);
            }
            // R11: within the region by the checks of the descriptor, and within the memory by those of the bus.
            debug_assert!(offset + 4 <= session.token_size, "R11: token at {offset:#x}");
            memory.bus_write_u32(session.token_base.wrapping_add(offset), token)
        };
        let outcome = decode.run(&self.lane.desc, *budget, stop_waits, session, write);

        let produced = decode.produced - before;
        *budget -= produced;
        let waited = u64::from(produced) * u64::from(session.wait_states);
        self.registers.count(Counter::Tokens, produced.into());
        self.registers.count(Counter::Wait, waited);
        self.registers
            .count(Counter::WriteBeats, lines(self.lane.desc.delta_offset, before, decode.produced));

        match outcome {
            None => self.lane.running = Some(decode),
            Some(Outcome { error: ErrorCode::DmaFault, .. }) => {
                self.registers.queue_mut(self.queue).raise(DeviceFault::DMA_WRITE)
            }
            Some(_) => {}
        }
        outcome
    }

    /// Makes the completion of `desc` visible; the caller has made sure that its slot is released (R4).
    #[inline(always)]
    fn post(&mut self, outcome: Outcome) {
        let Some(session) = &mut self.registers.queue_mut(self.queue).session else { return };
        let index = session.cq.tail;
        session.cq.tail = index.wrapping_add(1);
        let completion = HwCompletion { sq_head: session.sq.head, ..outcome.of(&self.lane.desc) };
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
        // R14: an ERROR asks as well.
        if self.lane.desc.flags & DescFlags::INTERRUPT.bits() != 0 || outcome.status == Status::Error {
            self.registers.queue_mut(self.queue).ask_interrupt(index);
        }
    }

    /// Whether the device has come to a STOP of the rollout that runs (R8): it comes past descriptors of other
    /// rollouts, but not past a fence (R7) nor past another descriptor of this rollout (R5).
    fn stop_waits(&self) -> bool {
        let Some(session) = &self.registers.queue(self.queue).session else { return false };
        if self.lane.running.is_none() || self.lane.desc.flags & DescFlags::FENCE.bits() != 0 {
            return false;
        }
        let mut desc = HwDesc::default();
        // R1: never at or beyond the published tail.
        for k in 0..session.sq.fill().min(STOP_LOOKAHEAD) {
            let index = session.sq.head.wrapping_add(k);
            if fetch(self.memory, session, index, &mut desc).is_err() {
                return false;
            }
            match check(&desc, index, session) {
                Err(_) => {}
                Ok(_) if desc.flags & DescFlags::FENCE.bits() != 0 => return false,
                Ok(opcode) if desc.rollout_id == self.lane.desc.rollout_id => return opcode == Opcode::Stop,
                Ok(_) => {}
            }
        }
        false
    }
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
