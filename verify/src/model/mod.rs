//! The golden model: a device in plain Rust, and the executable specification of rules R1 to R14.
//!
//! It executes from the same shared memory as any other device, in SQ order, one descriptor at a time (so R5 and R7
//! hold by construction), and only when given time by `advance`. It has no clock: CYCLES counts one per descriptor
//! and 1 + WAIT_STATES per token, BUSY the same, WAIT the wait states alone; STALL_CQ counts the advances that found
//! the completion queue full; the other stall counters and IDLE stay 0.

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
use doorbell_host::queue::{COMPLETION_WORDS, DESC_WORDS};
use doorbell_host::registers::{Built, Registers, Session};
use engine::{Decode, Outcome, check};
use mutation::Mutator;

/// Tokens and descriptors that one `advance` executes at most.
const SLICE: u32 = 1 << 14;

/// How far the model looks for the STOP of a DECODE that runs.
const STOP_LOOKAHEAD: u32 = 16;

const BUILT: Built = Built {
    features: Capability::PREFILL.union(Capability::RESIDENT).union(Capability::INTERRUPT),
    // It executes in SQ order, one descriptor at a time.
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
    /// The descriptor fetched last.
    desc: HwDesc,
    /// Present while `desc` is a DECODE that has not ended.
    running: Option<Decode>,
    mutator: Option<Mutator>,
}

impl Default for ModelPlatform {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelPlatform {
    /// A model after reset.
    pub fn new() -> Self {
        Self {
            memory: None,
            // It executes in SQ order, one descriptor at a time: one worker.
            registers: Registers::new(BUILT),
            desc: HwDesc::default(),
            running: None,
            mutator: None,
        }
    }

    /// A model with a fault, to prove that comparisons and bounded waits notice it.
    #[must_use]
    pub fn with_mutation(self, mutation: Mutation) -> Self {
        Self { mutator: Some(Mutator::new(mutation)), ..self }
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
        self.registers.write(register, Place::FIRST, value).map_err(|_| DeviceError::WriteRefused {
            device: "model".to_owned(),
            register,
            value,
        })?;
        if self.registers.queue(0).session.is_none() {
            // R12: nothing outlives a disable.
            self.running = None;
        }
        Ok(())
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.derive_counters();
        let queue = self.registers.queue_mut(0);
        queue.busy = self.running.is_some();
        if queue.is_drained() {
            queue.stop();
        }
        let read = self.registers.read(register, Place::FIRST);
        read.map_err(|_| DeviceError::ReadRefused { device: "model".to_owned(), register })
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        let Self { memory: Some(memory), registers, desc, running, mutator } = self else { return Ok(()) };
        Execution { memory, registers, desc, running, mutator }.run(want.max(1));
        Ok(())
    }
}

impl ModelPlatform {
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
}

/// The model while it has time.
struct Execution<'a> {
    memory: &'a SharedMemory,
    registers: &'a mut Registers,
    desc: &'a mut HwDesc,
    running: &'a mut Option<Decode>,
    mutator: &'a mut Option<Mutator>,
}

impl Execution<'_> {
    fn run(&mut self, want: usize) {
        let mut budget = SLICE;
        // A STOP is looked for once per advance: it can only have been published in between.
        let mut stop_waits = self.stop_waits();
        for _ in 0..want {
            let Some(session) = &self.registers.queue(0).session else { return };
            if self.running.is_none() && session.sq.fill() == 0 || budget == 0 {
                return;
            }
            // R4: without a free slot for its completion no descriptor is even fetched.
            if session.cq.is_full() {
                return self.registers.count(Counter::StallCq, 1);
            }
            if self.mutator.as_ref().is_some_and(Mutator::hangs) {
                return;
            }
            let outcome = match self.running.take() {
                Some(decode) => self.decode(decode, &mut budget, std::mem::take(&mut stop_waits)),
                None => self.next(&mut budget),
            };
            match outcome {
                Some(outcome) => self.post(outcome),
                None => return,
            }
        }
    }

    /// Fetches the oldest published descriptor and executes it; `None` if it needs more time than there is.
    #[inline(always)]
    fn next(&mut self, budget: &mut u32) -> Option<Outcome> {
        *budget -= 1;
        self.registers.count(Counter::Descriptors, 1);
        let session = self.registers.queue_mut(0).session.as_mut()?;
        let index = session.sq.head;
        session.sq.head = index.wrapping_add(1);
        if fetch(self.memory, session, index, self.desc).is_err() {
            self.registers.queue_mut(0).raise(DeviceFault::DMA_READ);
            *self.desc = HwDesc::default();
            return Some(Outcome::no_echo(ErrorCode::DmaFault, index));
        }
        Some(match check(self.desc, index, session) {
            Err(ErrorCode::BadCheck) => {
                *self.desc = HwDesc::default();
                Outcome::no_echo(ErrorCode::BadCheck, index)
            }
            Err(code) => Outcome::rejected(code),
            Ok(Opcode::Decode) => match Engine::of(self.desc.model_id) {
                Some(engine) => {
                    let decode = Decode::new(engine, self.desc, session);
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
        let session = self.registers.queue(0).session.as_ref()?;
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
        let outcome = decode.run(self.desc, *budget, stop_waits, session, write);

        let produced = decode.produced - before;
        *budget -= produced;
        let waited = u64::from(produced) * u64::from(session.wait_states);
        self.registers.count(Counter::Tokens, produced.into());
        self.registers.count(Counter::Wait, waited);
        self.registers.count(Counter::WriteBeats, lines(self.desc.delta_offset, before, decode.produced));

        match outcome {
            None => *self.running = Some(decode),
            Some(Outcome { error: ErrorCode::DmaFault, .. }) => {
                self.registers.queue_mut(0).raise(DeviceFault::DMA_WRITE)
            }
            Some(_) => {}
        }
        outcome
    }

    /// Makes the completion of `desc` visible; the caller has made sure that its slot is released (R4).
    #[inline(always)]
    fn post(&mut self, outcome: Outcome) {
        let Some(session) = &mut self.registers.queue_mut(0).session else { return };
        let index = session.cq.tail;
        session.cq.tail = index.wrapping_add(1);
        let completion = HwCompletion { sq_head: session.sq.head, ..outcome.of(self.desc) };
        let mut words: [u64; COMPLETION_WORDS] = cast(completion.with_phase(session.cq.depth.phase(index)));
        if let Some(mutator) = self.mutator {
            words = mutator.completion(words);
        }
        let address = session.cq.address(index, size_of::<HwCompletion>() as u64);
        if self.memory.bus_write(address, words).is_err() {
            self.registers.queue_mut(0).raise(DeviceFault::COMPLETION_WRITE);
        }
        self.registers.count(Counter::Completions, 1);
        self.registers.count(Counter::WriteBeats, 1);
        if outcome.status == Status::Error {
            self.registers.count(Counter::Errors, 1);
        }
        // R14: an ERROR asks as well.
        if self.desc.flags & DescFlags::INTERRUPT.bits() != 0 || outcome.status == Status::Error {
            self.registers.queue_mut(0).ask_interrupt(index);
        }
    }

    /// Whether the device has come to a STOP of the rollout that runs (R8): it comes past descriptors of other
    /// rollouts, but not past a fence (R7) nor past another descriptor of this rollout (R5).
    fn stop_waits(&self) -> bool {
        let Some(session) = &self.registers.queue(0).session else { return false };
        if self.running.is_none() || self.desc.flags & DescFlags::FENCE.bits() != 0 {
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
                Ok(opcode) if desc.rollout_id == self.desc.rollout_id => return opcode == Opcode::Stop,
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
