//! The model's way to memory, which can be told to answer with errors.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;

use doorbell_host::memory::{BusFault, SharedMemory};

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
    faults: Option<BusFaults>,
    injected: RefCell<Vec<Injected>>,
    /// Addresses, first and last, of which no access is answered.
    withheld: Vec<RangeInclusive<u64>>,
}

/// Accesses of one token for each of a beat.
const TOKENS_OF_A_BEAT: u32 = 16;
/// The same of 64 bits.
const WORDS_OF_A_BEAT: u32 = 8;

impl Bus {
    pub fn new(memory: SharedMemory) -> Self {
        Self { memory, faults: None, injected: RefCell::default(), withheld: Vec::new() }
    }

    pub fn set_faults(&mut self, faults: Option<BusFaults>) {
        self.faults = faults;
    }

    pub fn withhold(&mut self, ranges: Vec<RangeInclusive<u64>>) {
        self.withheld = ranges;
    }

    /// Whether some access may be answered with an error although memory has it.
    #[inline]
    pub fn has_faults(&self) -> bool {
        self.faults.is_some()
    }

    /// The memory, of a bus [without faults](Self::has_faults).
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

    #[inline]
    fn answer(&self, address: u64, bytes: u32, scale: u32, is_write: bool) -> Result<(), BusFault> {
        match &self.faults {
            None => Ok(()),
            Some(faults) => self.draw(faults, address, bytes, scale, is_write),
        }
    }

    #[cold]
    fn draw(
        &self,
        faults: &BusFaults,
        address: u64,
        bytes: u32,
        scale: u32,
        is_write: bool,
    ) -> Result<(), BusFault> {
        let Some(bits) = faults.hits(address, scale) else { return Ok(()) };
        let is_decerr = bits & 1 == 1;
        self.injected.borrow_mut().push(Injected { address, bytes, is_write, is_decerr });
        Err(BusFault)
    }

    /// Reads a record.
    #[inline]
    pub fn read<const N: usize>(&self, address: u64, out: &mut [u64; N]) -> Result<(), BusFault> {
        self.answer(address, 8 * N as u32, 1, false)?;
        self.memory.bus_read(address, out)
    }

    /// Looks at a record that is read again when its turn has come.
    #[inline]
    pub fn peek<const N: usize>(&self, address: u64, out: &mut [u64; N]) -> Result<(), BusFault> {
        self.memory.bus_read(address, out)
    }

    /// Writes a record.
    #[inline]
    pub fn write<const N: usize>(&self, address: u64, words: [u64; N]) -> Result<(), BusFault> {
        self.answer(address, 8 * N as u32, 1, true)?;
        self.memory.bus_write(address, words)
    }

    /// Reads 64 bits, an eighth of a beat.
    pub fn read_word(&self, address: u64) -> Result<u64, BusFault> {
        self.answer(address, 8, WORDS_OF_A_BEAT, false)?;
        let mut word = [0];
        self.memory.bus_read(address, &mut word)?;
        Ok(word[0])
    }

    /// Writes the bits of `mask` of 64 bits, as a bus does with its strobes.
    pub fn write_word(&self, address: u64, value: u64, mask: u64) -> Result<(), BusFault> {
        self.answer(address, 8, WORDS_OF_A_BEAT, true)?;
        let mut word = [0];
        self.memory.bus_read(address, &mut word)?;
        self.memory.bus_write(address, [word[0] & !mask | value & mask])
    }

    /// Reads one 32-bit word.
    #[inline]
    pub fn read_u32(&self, address: u64) -> Result<u32, BusFault> {
        self.answer(address, 4, TOKENS_OF_A_BEAT, false)?;
        self.memory.bus_read_u32(address)
    }

    /// Writes one 32-bit word.
    #[inline]
    pub fn write_u32(&self, address: u64, value: u32) -> Result<(), BusFault> {
        self.answer(address, 4, TOKENS_OF_A_BEAT, true)?;
        self.memory.bus_write_u32(address, value)
    }

    /// Sends the message of an interrupt (R14).
    pub fn send(&self, address: u64, data: u32) -> Result<(), BusFault> {
        self.answer(address, 4, 1, true)?;
        self.memory.bus_send(address, data)
    }
}
