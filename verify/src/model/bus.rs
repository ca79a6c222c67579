//! The model's way to memory, which can be told to answer with errors.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;

use doorbell_host::error::DeviceError;
use doorbell_host::memory::{BusFault, SIMULATED_BUS_ADDRESS, SharedMemory};
use doorbell_host::registers::Registers;

use super::functions::Functions;

/// A range of addresses whose accesses are answered with an error now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultyRange {
    /// Its first byte.
    pub first: u64,
    /// Its last byte.
    pub last: u64,
    /// One access of so many, at least 1, chosen at random.
    pub one_in: u32,
}

/// An access that was answered with an error, by what it would have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// Bus address of the first byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u32,
    /// Whether it was a write, which memory has not seen.
    pub is_write: bool,
    /// Whether the answer was DECERR, else SLVERR.
    pub is_decerr: bool,
}

/// Which accesses are answered with an error.
#[derive(Clone, Debug)]
pub struct BusFaults {
    ranges: Vec<FaultyRange>,
    state: Cell<u64>,
}

impl BusFaults {
    /// Faults in `ranges`, drawn from `seed`.
    pub fn new(ranges: Vec<FaultyRange>, seed: u64) -> Self {
        Self { ranges, state: Cell::new(seed) }
    }

    /// Whether this access is hit; `scale` makes up for accesses that are smaller than a beat.
    fn hits(&self, address: u64, scale: u32) -> Option<u64> {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&address))?;
        // SplitMix64.
        self.state.set(self.state.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        let mut z = self.state.get();
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 1).is_multiple_of(u64::from(range.one_in) * u64::from(scale)).then_some(z)
    }
}

/// The memory as the model reaches it.
#[derive(Debug)]
pub(super) struct Bus {
    memory: SharedMemory,
    /// What makes an access something else than one of `memory`.
    special: Option<Special>,
    injected: RefCell<Vec<Injected>>,
    /// Addresses, first and last, of which no access is answered.
    withheld: Vec<RangeInclusive<u64>>,
}

#[derive(Debug)]
enum Special {
    Faults(BusFaults),
    Functions(Box<Functions>),
}

/// Accesses of one token for each of a beat.
const TOKENS_OF_A_BEAT: u32 = 16;
/// The same of 64 bits.
const WORDS_OF_A_BEAT: u32 = 8;

impl Bus {
    pub fn new(memory: SharedMemory) -> Self {
        Self { memory, special: None, injected: RefCell::default(), withheld: Vec::new() }
    }

    /// A bus on which each function has a memory of its own.
    ///
    /// # Errors
    /// `Memory` if the system refuses a page.
    pub fn by_function() -> Result<Self, DeviceError> {
        // Nobody reaches it.
        let nobodys = SharedMemory::allocate(1, SIMULATED_BUS_ADDRESS)?;
        Ok(Self { special: Some(Special::Functions(Box::default())), ..Self::new(nobodys) })
    }

    /// The memories of functions, where they have their own.
    pub fn functions(&mut self) -> Option<&mut Functions> {
        match &mut self.special {
            Some(Special::Functions(functions)) => Some(functions),
            _ => None,
        }
    }

    pub fn functions_seen(&self) -> Option<&Functions> {
        match &self.special {
            Some(Special::Functions(functions)) => Some(functions),
            _ => None,
        }
    }

    /// The accesses from here on are those of `queue`, and of the function that owns it.
    #[inline]
    pub fn serve(&self, registers: &Registers, queue: u8) {
        if let Some(Special::Functions(functions)) = &self.special {
            functions.serve(registers, queue);
        }
    }

    pub fn set_faults(&mut self, faults: Option<BusFaults>) {
        self.special = faults.map(Special::Faults);
    }

    pub fn withhold(&mut self, ranges: Vec<RangeInclusive<u64>>) {
        self.withheld = ranges;
    }

    /// Whether an access may be another than one of [`memory`](Self::memory).
    #[inline]
    pub fn is_special(&self) -> bool {
        self.special.is_some()
    }

    /// The memory, of a bus that is not [special](Self::is_special).
    #[inline]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Whether some access is not answered.
    #[inline]
    pub fn withholds_some(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// Whether an access at one of these addresses is not.
    #[cold]
    pub fn withholds(&self, addresses: &[u64]) -> bool {
        addresses.iter().any(|address| self.withheld.iter().any(|range| range.contains(address)))
    }

    pub fn take_injected(&mut self) -> Vec<Injected> {
        self.injected.take()
    }

    /// The memory that has these bytes; an error where they are hit by a fault, or where nobody is.
    #[inline]
    fn of(&self, address: u64, bytes: u32, scale: u32, is_write: bool) -> Result<&SharedMemory, BusFault> {
        match &self.special {
            None => Ok(&self.memory),
            Some(special) => self.of_special(special, address, bytes, scale, is_write),
        }
    }

    #[cold]
    fn of_special<'a>(
        &'a self,
        special: &'a Special,
        address: u64,
        bytes: u32,
        scale: u32,
        is_write: bool,
    ) -> Result<&'a SharedMemory, BusFault> {
        match special {
            Special::Functions(functions) => functions.find(address, is_write),
            Special::Faults(faults) => {
                let Some(bits) = faults.hits(address, scale) else { return Ok(&self.memory) };
                let is_decerr = bits & 1 == 1;
                self.injected.borrow_mut().push(Injected { address, bytes, is_write, is_decerr });
                Err(BusFault)
            }
        }
    }

    /// Reads a record.
    #[inline]
    pub fn read<const N: usize>(&self, address: u64, out: &mut [u64; N]) -> Result<(), BusFault> {
        self.of(address, 8 * N as u32, 1, false)?.bus_read(address, out)
    }

    /// Looks at a record that is read again when its turn has come.
    #[inline]
    pub fn peek<const N: usize>(&self, address: u64, out: &mut [u64; N]) -> Result<(), BusFault> {
        let memory = match &self.special {
            Some(Special::Functions(functions)) => functions.find(address, false)?,
            _ => &self.memory,
        };
        memory.bus_read(address, out)
    }

    /// Writes a record.
    #[inline]
    pub fn write<const N: usize>(&self, address: u64, words: [u64; N]) -> Result<(), BusFault> {
        self.of(address, 8 * N as u32, 1, true)?.bus_write(address, words)
    }

    /// Reads 64 bits, an eighth of a beat.
    pub fn read_word(&self, address: u64) -> Result<u64, BusFault> {
        let mut word = [0];
        self.of(address, 8, WORDS_OF_A_BEAT, false)?.bus_read(address, &mut word)?;
        Ok(word[0])
    }

    /// Writes the bits of `mask` of 64 bits, as a bus does with its strobes.
    pub fn write_word(&self, address: u64, value: u64, mask: u64) -> Result<(), BusFault> {
        let memory = self.of(address, 8, WORDS_OF_A_BEAT, true)?;
        let mut word = [0];
        memory.bus_read(address, &mut word)?;
        memory.bus_write(address, [word[0] & !mask | value & mask])
    }

    /// Reads one 32-bit word.
    #[inline]
    pub fn read_u32(&self, address: u64) -> Result<u32, BusFault> {
        self.of(address, 4, TOKENS_OF_A_BEAT, false)?.bus_read_u32(address)
    }

    /// Writes one 32-bit word.
    #[inline]
    pub fn write_u32(&self, address: u64, value: u32) -> Result<(), BusFault> {
        self.of(address, 4, TOKENS_OF_A_BEAT, true)?.bus_write_u32(address, value)
    }

    /// Sends the message of an interrupt (R14).
    pub fn send(&self, address: u64, data: u32) -> Result<(), BusFault> {
        if let Some(Special::Functions(functions)) = &self.special {
            functions.count_message();
            return Ok(());
        }
        self.of(address, 4, 1, true)?.bus_send(address, data)
    }
}
