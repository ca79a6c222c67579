//! BAR 0 of a function: its own pages of the device, renumbered from 0, and what of page 0 concerns it.
//!
//! A host of a function never owns page 0: whoever serves the device does. It reads there what its function is, as if that were the
//! whole device, and writes nothing.

use std::sync::OnceLock;

use doorbell_contract::{Block, Capability, Counter, Place, QueueCounter, Register};
use doorbell_host::{DeviceError, Pages};

use crate::config_space::{BAR0_BYTES, PENDING_BITS, TABLE};
use crate::vectors::Vectors;

/// Most queue pairs of a function.
const MOST_QUEUES: u8 = 16;

/// Which part of the device a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Its number in the device.
    pub function: u8,
    /// Its first queue pair there; the others follow.
    pub first_queue: u8,
    /// How many it has.
    pub queues: u8,
    /// Its workers, as many as bits.
    pub workers: u32,
}

/// The registers of one function with 16 queue pairs by their word in BAR 0.
fn registers() -> &'static [Option<(Register, Place)>] {
    static REGISTERS: OnceLock<Vec<Option<(Register, Place)>>> = OnceLock::new();
    REGISTERS.get_or_init(|| {
        let mut words = vec![None; BAR0_BYTES as usize / 4];
        for register in Register::ALL {
            let block = register.block();
            // Those of workers are the device's owner's.
            if block == Block::Worker {
                continue;
            }
            let queues = if block.per_queue() > 0 { MOST_QUEUES } else { 1 };
            for queue in 0..queues {
                let place = Place { function: 0, queue };
                words[register.address(place) as usize / 4] = Some((register, place));
            }
        }
        words
    })
}

impl View {
    /// The register at `address` of BAR 0, if the function has one there.
    fn at(&self, address: u32) -> Option<(Register, Place)> {
        let &(register, place) = registers().get(address as usize / 4)?.as_ref()?;
        (address.is_multiple_of(4) && place.queue < self.queues.max(1)).then_some((register, place))
    }

    /// The same place in the device.
    fn place(&self, place: Place) -> Place {
        Place { function: self.function, queue: self.first_queue + place.queue }
    }

    /// Where its queue pairs are.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let Self { function, first_queue, queues, .. } = *self;
        (0..queues).map(move |queue| Place { function, queue: first_queue + queue })
    }

    /// Reads the register at `address`; `None` where there is none, or the device refuses.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn read(
        &self,
        device: &mut impl Pages,
        vectors: &Vectors,
        address: u32,
    ) -> Result<Option<u32>, DeviceError> {
        if let Some(word) = table_word(address) {
            return Ok(vectors.read(word));
        }
        if address == PENDING_BITS || address == PENDING_BITS + 4 {
            return if address == PENDING_BITS {
                self.pending(device, vectors).map(Some)
            } else {
                Ok(Some(0))
            };
        }
        let Some((register, place)) = self.at(address) else { return Ok(None) };
        let read = match register.block() {
            Block::Device => self.read_device(device, vectors, register),
            // The first so many of its own, and the windows of the function.
            Block::DeviceFunction if register == Register::FnWorkers => {
                Ok(u32::MAX >> (32 - self.workers.count_ones().max(1)))
            }
            Block::DeviceQueue => Ok(0),
            _ => device.read_at(self.place(place), register),
        };
        answered(read)
    }

    /// A register of page 0, as if the function were the whole device.
    fn read_device(
        &self,
        device: &mut impl Pages,
        vectors: &Vectors,
        register: Register,
    ) -> Result<u32, DeviceError> {
        let first = self.place(Place::FIRST);
        match register {
            Register::Capability => {
                Ok(device.read_at(first, register)? & !Capability::WORKER_COUNTERS.bits())
            }
            // Of the workers of others nothing is told.
            Register::WorkerState => Ok(0),
            Register::MessagesPending => self.pending(device, vectors),
            Register::CapWorkers => Ok(self.workers.count_ones()),
            Register::CapQueues => Ok(self.queues.into()),
            Register::CapFunctions => Ok(1),
            _ => match counter(register) {
                None => device.read_at(first, register),
                Some((counter, is_high)) => {
                    let sum = self.count(device, counter)?;
                    Ok(if is_high { (sum >> 32) as u32 } else { sum as u32 })
                }
            },
        }
    }

    /// Its own vectors that have fired and whose message has not gone, renumbered.
    fn pending(&self, device: &mut impl Pages, vectors: &Vectors) -> Result<u32, DeviceError> {
        let all = device.read_at(Place::FIRST, Register::MessagesPending)?;
        Ok(all >> self.first_queue & ((1 << self.queues) - 1) | vectors.pending())
    }

    /// What the function's queue pairs have counted together; 0 where they do not count that.
    fn count(&self, device: &mut impl Pages, counter: Counter) -> Result<u64, DeviceError> {
        let Some(own) = QueueCounter::ALL.into_iter().find(|own| own.of_device() == counter) else {
            return Ok(0);
        };
        let mut sum = 0u64;
        for place in self.places() {
            let mut half = |register| device.read_at(place, register);
            let (high, mut low, again) = (half(own.hi())?, half(own.lo())?, half(own.hi())?);
            if high != again {
                low = half(own.lo())?;
            }
            sum = sum.wrapping_add(u64::from(again) << 32 | u64::from(low));
        }
        Ok(sum)
    }

    /// Writes the register at `address`; false where there is none that the function may write, or the device refuses.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn write(
        &self,
        device: &mut impl Pages,
        vectors: &mut Vectors,
        address: u32,
        value: u32,
    ) -> Result<bool, DeviceError> {
        if let Some(word) = table_word(address) {
            return Ok(vectors.write(word, value));
        }
        match self.at(address) {
            Some((register, place))
                if matches!(register.block(), Block::Function | Block::FunctionQueue | Block::Queue) =>
            {
                Ok(answered(device.write_at(self.place(place), register, value))?.is_some())
            }
            _ => Ok(false),
        }
    }
}

/// The word of the table of messages at `address`, if it lies there.
fn table_word(address: u32) -> Option<usize> {
    let word = address.checked_sub(TABLE)?;
    (address < PENDING_BITS && word.is_multiple_of(4)).then_some(word as usize / 4)
}

/// The counter that a register is half of, and whether it is the high one.
fn counter(register: Register) -> Option<(Counter, bool)> {
    let counter =
        Counter::ALL.into_iter().find(|counter| [counter.lo(), counter.hi()].contains(&register))?;
    Some((counter, register == counter.hi()))
}

/// What the device answered; `None` where it refused.
fn answered<T>(answer: Result<T, DeviceError>) -> Result<Option<T>, DeviceError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(DeviceError::ReadRefused { .. } | DeviceError::WriteRefused { .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}
