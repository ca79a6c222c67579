//! The golden model: a device in plain Rust, and the executable specification of rules R1 to R14.
//!
//! It executes from the same shared memory as any other device, in SQ order, one descriptor at a time (so R5 and R7
//! hold by construction), and only when given time by `advance`. It has no clock: CYCLES counts one per descriptor
//! and 1 + WAIT_STATES per token, BUSY the same, WAIT the wait states alone; STALL_CQ counts the advances that found
//! the completion queue full; the other stall counters and IDLE stay 0.

mod engine;
mod mutation;
mod registers;
#[cfg(test)]
mod tests;

pub use mutation::{BadMutation, Mutation};

use bytemuck::cast;

use crate::contract::{
    Counter, DescFlags, DeviceFault, ErrorCode, HwCompletion, HwDesc, Opcode, Register, Status,
};
use crate::error::DeviceError;
use crate::memory::{SIMULATED_BUS_ADDRESS, SharedMemory};
use crate::platform::Platform;
use crate::queue::{COMPLETION_WORDS, DESC_WORDS};
use engine::{Decode, TokenSink, check, complete};
use mutation::Mutator;
use registers::{Registers, Session};

/// Tokens and descriptors that one `advance` executes at most.
const SLICE: u32 = 1 << 14;

/// How far the model looks for the STOP of a DECODE that runs.
const STOP_LOOKAHEAD: u32 = 16;

/// The model as a platform for [`Driver`](crate::driver::Driver).
#[derive(Debug)]
pub struct ModelPlatform {
    memory: Option<SharedMemory>,
    registers: Registers,
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
        Self { memory: None, registers: Registers::new(), running: None, mutator: None }
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
        self.registers.write(register, value).map_err(|_| DeviceError::WriteRefused {
            device: "model".to_owned(),
            register,
            value,
        })?;
        if self.registers.session.is_none() {
            // R12: nothing outlives a disable.
            self.running = None;
        }
        Ok(())
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        Ok(self.registers.read(register, self.running.is_some()))
    }

    #[inline]
    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        let Self { memory: Some(memory), registers, running, mutator } = self else { return Ok(()) };
        Execution { memory, registers, running, mutator }.run(want.max(1));
        Ok(())
    }
}

/// The model while it has time.
struct Execution<'a> {
    memory: &'a SharedMemory,
    registers: &'a mut Registers,
    running: &'a mut Option<Decode>,
    mutator: &'a mut Option<Mutator>,
}

impl Execution<'_> {
    fn run(&mut self, want: usize) {
        let mut budget = SLICE;
        // A STOP is looked for once per advance: it can only have been published in between.
        let mut stop_waits = self.stop_waits();
        for _ in 0..want {
            let Some(session) = &self.registers.session else { return };
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
            let completion = match self.running.take() {
                Some(decode) => self.decode(decode, &mut budget, std::mem::take(&mut stop_waits)),
                None => self.next(&mut budget),
            };
            match completion {
                Some((completion, asks)) => self.post(completion, asks),
                None => return,
            }
        }
    }

    /// Fetches the oldest published descriptor and executes it; `None` if it needs more time than there is.
    #[inline]
    fn next(&mut self, budget: &mut u32) -> Option<(HwCompletion, bool)> {
        *budget -= 1;
        self.registers.count(Counter::Descriptors, 1);
        self.registers.count(Counter::ReadBeats, 1);
        let session = self.registers.session.as_mut()?;
        let index = session.sq.head;
        session.sq.head = index.wrapping_add(1);
        let Some(desc) = fetch(self.memory, session, index) else {
            self.registers.raise(DeviceFault::DmaRead);
            let blank = HwDesc::default();
            let completion = complete(&blank, Status::Error, ErrorCode::DmaFault);
            return Some((HwCompletion { result: index, ..completion }, true));
        };
        let asks = desc.flags & DescFlags::INTERRUPT.bits() != 0;
        let completion = match check(&desc, index, session) {
            Err(code) => return Some((complete(&desc, Status::Error, code), true)),
            Ok(Opcode::Decode) => {
                let decode = Decode::new(desc, session);
                return self.decode(decode, budget, false);
            }
            Ok(Opcode::Prefill) => {
                self.registers.count(Counter::Prefixes, 1);
                complete(&desc, Status::Done, ErrorCode::None)
            }
            // R8: whatever this STOP could have stopped has completed before it, or was stopped by `stop_waits`.
            Ok(Opcode::Stop) => complete(&desc, Status::Stopped, ErrorCode::None),
            Ok(Opcode::Nop | Opcode::Reward) => complete(&desc, Status::Done, ErrorCode::None),
        };
        Some((completion, asks))
    }

    /// Runs `decode` as far as `budget` allows; `None` if it has not ended, and then it stays.
    #[inline]
    fn decode(
        &mut self,
        mut decode: Decode,
        budget: &mut u32,
        stop_waits: bool,
    ) -> Option<(HwCompletion, bool)> {
        let session = self.registers.session.as_ref()?;
        let before = decode.produced;
        let mut tokens = Tokens { memory: self.memory, session, mutator: self.mutator };
        let completion = decode.run(*budget, stop_waits, session, &mut tokens);
        let wait_states = u64::from(session.wait_states);

        let produced = decode.produced - before;
        *budget -= produced;
        let written = if produced == 0 { 0 } else { lines(&decode, before) };
        for (counter, amount) in [
            (Counter::Tokens, u64::from(produced)),
            (Counter::Cycles, u64::from(produced) * (1 + wait_states)),
            (Counter::Busy, u64::from(produced) * (1 + wait_states)),
            (Counter::Wait, u64::from(produced) * wait_states),
            (Counter::WriteBeats, written),
        ] {
            self.registers.count(counter, amount);
        }

        let Some(completion) = completion else {
            *self.running = Some(decode);
            return None;
        };
        if completion.error == ErrorCode::DmaFault as u8 {
            self.registers.raise(DeviceFault::DmaWrite);
        }
        let asks = decode.desc.flags & DescFlags::INTERRUPT.bits() != 0 || completion.error != 0;
        Some((completion, asks))
    }

    /// Makes `completion` visible; the caller has made sure that its slot is released (R4).
    #[inline]
    fn post(&mut self, mut completion: HwCompletion, asks: bool) {
        let Some(session) = &mut self.registers.session else { return };
        let index = session.cq.tail;
        session.cq.tail = index.wrapping_add(1);
        completion.sq_head = session.sq.head;
        completion.phase = session.cq.depth.phase(index);
        if let Some(mutator) = self.mutator {
            completion = mutator.completion(completion);
        }
        const BYTES: u64 = size_of::<HwCompletion>() as u64;
        let slot = session.cq.address(index, BYTES).and_then(|address| self.memory.offset_of(address, BYTES));
        let words: [u64; COMPLETION_WORDS] = cast(completion);
        if slot.is_none_or(|offset| self.memory.store(offset, words).is_err()) {
            self.registers.raise(DeviceFault::CompletionWrite);
        }
        self.registers.count(Counter::Completions, 1);
        self.registers.count(Counter::WriteBeats, 1);
        self.registers.count(Counter::Cycles, 1);
        self.registers.count(Counter::Busy, 1);
        if completion.status == Status::Error as u8 {
            self.registers.count(Counter::Errors, 1);
        }
        if asks {
            self.registers.ask_interrupt(index);
        }
    }

    /// Whether the device has come to a STOP of the rollout that runs (R8): it comes past descriptors of other
    /// rollouts, but not past a fence (R7) nor past another descriptor of this rollout (R5).
    fn stop_waits(&self) -> bool {
        let (Some(decode), Some(session)) = (&*self.running, &self.registers.session) else { return false };
        if decode.desc.flags & DescFlags::FENCE.bits() != 0 {
            return false;
        }
        // R1: never at or beyond the published tail.
        for k in 0..session.sq.fill().min(STOP_LOOKAHEAD) {
            let index = session.sq.head.wrapping_add(k);
            let Some(desc) = fetch(self.memory, session, index) else { return false };
            match check(&desc, index, session) {
                Err(_) => {}
                Ok(_) if desc.flags & DescFlags::FENCE.bits() != 0 => return false,
                Ok(opcode) if desc.rollout_id == decode.desc.rollout_id => return opcode == Opcode::Stop,
                Ok(_) => {}
            }
        }
        false
    }
}

/// Reads the slot of `index`; `None` if the memory answers with an error.
#[inline]
fn fetch(memory: &SharedMemory, session: &Session, index: u32) -> Option<HwDesc> {
    const BYTES: u64 = size_of::<HwDesc>() as u64;
    let address = session.sq.address(index, BYTES)?;
    let words: [u64; DESC_WORDS] = memory.load(memory.offset_of(address, BYTES)?).ok()?;
    Some(cast(words))
}

/// 64-byte lines that the tokens from number `before` on touch.
#[inline]
fn lines(decode: &Decode, before: u32) -> u64 {
    let line = |token: u32| (decode.desc.delta_offset + 4 * u64::from(token)) / 64;
    line(decode.produced - 1) - line(before) + 1
}

/// The token region.
struct Tokens<'a> {
    memory: &'a SharedMemory,
    session: &'a Session,
    mutator: &'a mut Option<Mutator>,
}

impl TokenSink for Tokens<'_> {
    #[inline]
    fn write(&mut self, offset: u64, mut token: u32) -> bool {
        if let Some(mutator) = self.mutator {
            token = mutator.token(token);
        }
        // R11: within the region by the checks of the descriptor; what the region covers is the host's word.
        debug_assert!(offset + 4 <= self.session.token_size, "R11: token at {offset:#x}");
        let address = self.session.token_base.checked_add(offset);
        let slot = address.and_then(|address| self.memory.offset_of(address, 4));
        slot.is_some_and(|slot| self.memory.store_u32(slot, token).is_ok())
    }
}
