//! An arena of blocks of one size over one region.
//!
//! Free blocks lie in a lock-free stack that all threads share.
//!
//! A locked instruction takes about 7 ns on the machine that the figures are of, and a shared stack needs three for
//! each pair of acquire and release. A thread therefore works through an [`ArenaHandle`], whose *magazine* keeps some
//! free blocks for it, and moves blocks from and to the stack by the half magazine; one locked instruction is left,
//! the one that detects a double release.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::pages::{PageOptions, PageReport, Region};
use super::stack::{NONE, Stack};

/// Blocks are multiples of this many bytes, a cache line, and aligned to it.
pub const BLOCK_ALIGN: usize = 64;

/// What an arena is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes of a block: a multiple of [`BLOCK_ALIGN`].
    pub block_bytes: usize,
    /// How many handles may live at once.
    pub handles: usize,
    /// Free blocks that a handle may keep for itself; 0 for none. Others do not get at them, so an acquire may fail
    /// while up to this many blocks a handle are free.
    pub magazine: u32,
    /// What is asked of the system.
    pub pages: PageOptions,
}

impl Default for ArenaConfig {
    /// 4096 blocks of 16 KiB, for one thread.
    fn default() -> Self {
        Self { blocks: 4096, block_bytes: 16_384, handles: 1, magazine: 64, pages: PageOptions::default() }
    }
}

/// Names one use of a block: a block that is acquired again has another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    arena: u32,
    index: u32,
    generation: u32,
}

impl BlockId {
    /// Which block of the arena.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Index in the low half, generation in the high half; the arena's [`Arena::named`] reverses it.
    pub(super) const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }
}

/// Why an arena, or a call of it, was refused. What was refused has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No such arena can be.
    #[error("{field} is {value}: it must be {expected}")]
    Config {
        /// Field of the configuration.
        field: &'static str,
        /// What it held.
        value: u64,
        /// The range, in words.
        expected: &'static str,
    },
    /// The system has not the memory.
    #[error("no memory for an arena of {bytes} bytes (errno {errno}); ask for fewer or smaller blocks")]
    Memory {
        /// Bytes of the arena.
        bytes: u64,
        /// What the system said.
        errno: i32,
    },
    /// All handles are in use.
    #[error("all {handles} handles of the arena are in use; drop one, or configure more")]
    Handles {
        /// How many there are.
        handles: usize,
    },
    /// No block is free.
    #[error("none of the arena's {blocks} blocks is free; release some first")]
    Exhausted {
        /// How many there are.
        blocks: u32,
    },
    /// The block is of another arena.
    #[error("block {index} is of arena {of}, and was given to arena {to}")]
    Foreign {
        /// Which block.
        index: u32,
        /// Number of its arena.
        of: u32,
        /// Number of this arena.
        to: u32,
    },
    /// The block was released before.
    #[error(
        "block {index} was released before: the name is of its use {generation}, and {current} is the latest"
    )]
    Released {
        /// Which block.
        index: u32,
        /// The use that was named.
        generation: u32,
        /// The latest use.
        current: u32,
    },
    /// More references than can be counted.
    #[error("block {index} has 2^32 - 1 references, the most that are counted")]
    References {
        /// Which block.
        index: u32,
    },
}

/// What an arena has done. `acquired`, `released` and `in_use` are exact for every call that happened before; a call
/// that runs meanwhile may or may not be in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaCounts {
    /// Blocks that it has.
    pub capacity: u32,
    /// Blocks acquired so far.
    pub acquired: u64,
    /// Blocks released so far, by their last holder.
    pub released: u64,
    /// Blocks in use.
    pub in_use: u64,
    /// The most blocks that were in use at once. If several handles have magazines, the free blocks in these count as
    /// in use; with one handle, or without magazines, it is exact.
    pub peak: u64,
}

/// What one handle did; only its owner writes, so no locked instruction is needed.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    claimed: AtomicBool,
    acquired: AtomicU64,
    released: AtomicU64,
    /// The most that this handle acquired beyond what it released.
    peak: AtomicU64,
}

/// References in the low half, generation in the high half. A free block has no references, and the generation of its
/// next use.
const fn state(generation: u32, references: u32) -> u64 {
    (generation as u64) << 32 | references as u64
}

const fn generation(state: u64) -> u32 {
    (state >> 32) as u32
}

const fn references(state: u64) -> u32 {
    state as u32
}

/// Blocks of one size over one region, shared by the threads that have a handle.
///
/// A name is found stale up to the 2^32nd use of its block.
pub struct Arena {
    number: u32,
    block_bytes: usize,
    magazine: u32,
    region: Region,
    states: Box<[AtomicU64]>,
    free: Stack,
    tallies: Box<[Tally]>,
}

impl Arena {
    /// An arena, all of its memory touched.
    ///
    /// # Errors
    /// `Config`, `Memory`.
    pub fn new(config: ArenaConfig) -> Result<Arc<Arena>, ArenaError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let ArenaConfig { blocks, block_bytes, handles, magazine, pages } = config;
        let check = |field, value: u64, ok: bool, expected| {
            if ok { Ok(()) } else { Err(ArenaError::Config { field, value, expected }) }
        };
        check("blocks", blocks.into(), (1..NONE).contains(&blocks), "1 to 2^32 - 2")?;
        check(
            "block_bytes",
            block_bytes as u64,
            block_bytes > 0 && block_bytes.is_multiple_of(BLOCK_ALIGN),
            "a positive multiple of 64",
        )?;
        check("handles", handles as u64, (1..=4096).contains(&handles), "1 to 4096")?;
        check("magazine", magazine.into(), magazine <= 1 << 16, "at most 65536")?;
        let bytes = (blocks as usize).saturating_mul(block_bytes);
        let region = Region::new(bytes, pages).map_err(|error| ArenaError::Memory {
            bytes: bytes as u64,
            errno: error.raw_os_error().unwrap_or(libc::ENOMEM),
        })?;
        Ok(Arc::new(Arena {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            block_bytes,
            magazine,
            region,
            // The first use is number 1: no element is written as zero, so none is left to be touched later.
            states: (0..blocks).map(|_| AtomicU64::new(state(1, 0))).collect(),
            free: Stack::full(blocks),
            tallies: (0..handles).map(|_| Tally::default()).collect(),
        }))
    }

    /// A handle for one thread. It keeps up to a magazine of free blocks until it is dropped.
    ///
    /// # Errors
    /// `Handles`.
    pub fn handle(self: &Arc<Self>) -> Result<ArenaHandle, ArenaError> {
        let claim = |tally: &Tally| !tally.claimed.swap(true, Ordering::Acquire);
        let tally =
            self.tallies.iter().position(claim).ok_or(ArenaError::Handles { handles: self.tallies.len() })?;
        Ok(ArenaHandle {
            arena: self.clone(),
            tally,
            magazine: vec![NONE; self.magazine as usize].into(),
            loaded: 0,
        })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.free.len()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// How many handles may live at once.
    pub fn handles(&self) -> usize {
        self.tallies.len()
    }

    /// Free blocks that a handle may keep for itself.
    pub fn magazine(&self) -> u32 {
        self.magazine
    }

    /// On what pages it lies, and why not on better ones.
    pub fn report(&self) -> &PageReport {
        self.region.report()
    }

    /// Where the region begins. Valid while the arena lives.
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    /// What it has done.
    pub fn counts(&self) -> ArenaCounts {
        // Releases first: a block that is acquired and released meanwhile must not make the difference negative.
        let sum = |of: fn(&Tally) -> &AtomicU64| {
            self.tallies.iter().map(|tally| of(tally).load(Ordering::Acquire)).sum::<u64>()
        };
        let released = sum(|tally| &tally.released);
        let acquired = sum(|tally| &tally.acquired);
        let peak = match &*self.tallies {
            [only] => only.peak.load(Ordering::Relaxed),
            _ => u64::from(self.blocks() - self.free.low_water()),
        };
        ArenaCounts { capacity: self.blocks(), acquired, released, in_use: acquired - released, peak }
    }

    /// Byte offset of a block in the region.
    ///
    /// # Errors
    /// `Foreign`, `Released`.
    pub fn offset(&self, block: BlockId) -> Result<usize, ArenaError> {
        self.live(block).map(|_| self.offset_of(block.index))
    }

    /// How many hold the block.
    ///
    /// # Errors
    /// `Foreign`, `Released`.
    pub fn references(&self, block: BlockId) -> Result<u32, ArenaError> {
        self.live(block).map(references)
    }

    /// One more holder of the block. One locked instruction.
    ///
    /// # Errors
    /// `Foreign`, `Released`, `References`.
    pub fn retain(&self, block: BlockId) -> Result<(), ArenaError> {
        let mut seen = self.live(block)?;
        loop {
            if references(seen) == u32::MAX {
                return Err(ArenaError::References { index: block.index });
            }
            let word = &self.states[block.index as usize];
            // Relaxed: whoever names the block holds it, so it cannot go away meanwhile unless the name is stale, and
            // then the exchange fails.
            match word.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(_) => seen = self.live(block)?,
            }
        }
    }

    /// The state of a block in use.
    #[inline]
    fn live(&self, block: BlockId) -> Result<u64, ArenaError> {
        if block.arena != self.number {
            return Err(ArenaError::Foreign { index: block.index, of: block.arena, to: self.number });
        }
        // The arena gave out the name, so the index is in range.
        let seen = self.states[block.index as usize].load(Ordering::Acquire);
        if generation(seen) == block.generation && references(seen) > 0 {
            return Ok(seen);
        }
        Err(self.released(block, seen))
    }

    #[cold]
    fn released(&self, block: BlockId, seen: u64) -> ArenaError {
        let free = u32::from(references(seen) == 0);
        ArenaError::Released {
            index: block.index,
            generation: block.generation,
            current: generation(seen).wrapping_sub(free),
        }
    }

    #[inline]
    pub(super) fn offset_of(&self, index: u32) -> usize {
        index as usize * self.block_bytes
    }

    /// The use of a block of this arena with these [bits](BlockId::to_bits).
    #[inline]
    pub(super) fn named(&self, bits: u64) -> BlockId {
        BlockId { arena: self.number, index: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// The name of the present use of a block.
    #[inline]
    pub(super) fn id(&self, index: u32) -> BlockId {
        let generation = generation(self.states[index as usize].load(Ordering::Relaxed));
        BlockId { arena: self.number, index, generation }
    }

    /// How many hold the block, as the last release of another thread left it.
    #[inline]
    pub(super) fn references_of(&self, index: u32) -> u32 {
        references(self.states[index as usize].load(Ordering::Acquire))
    }

    /// What the holder of a block keeps with it.
    #[inline]
    pub(super) fn note(&self, index: u32) -> &AtomicU64 {
        self.free.note(index)
    }

    /// Copies a block's bytes into another one.
    ///
    /// # Safety
    /// Nobody writes `from`, and nobody else reads or writes `to`, meanwhile.
    pub(super) unsafe fn copy(&self, from: u32, to: u32) {
        assert!(from < self.blocks() && to < self.blocks() && from != to);
        // SAFETY: both blocks lie in the region and differ; the rest is the caller's.
        unsafe {
            let source = self.base().add(self.offset_of(from));
            self.base().add(self.offset_of(to)).copy_from_nonoverlapping(source, self.block_bytes);
        }
    }

    /// Overwrites bytes of a block.
    ///
    /// # Safety
    /// Nobody else reads or writes the block meanwhile.
    ///
    /// # Panics
    /// If the bytes do not lie in the block.
    pub(super) unsafe fn put(&self, index: u32, at: usize, bytes: &[u8]) {
        assert!(index < self.blocks() && at <= self.block_bytes && bytes.len() <= self.block_bytes - at);
        // SAFETY: the bytes lie in the region; `bytes` cannot overlap it, as nobody has a slice of it.
        unsafe {
            let to = self.base().add(self.offset_of(index) + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len());
        }
    }

    /// Copies bytes of a block out.
    ///
    /// # Safety
    /// Nobody writes the block meanwhile.
    ///
    /// # Panics
    /// If the bytes do not lie in the block.
    pub(super) unsafe fn get(&self, index: u32, at: usize, out: &mut [u8]) {
        assert!(index < self.blocks() && at <= self.block_bytes && out.len() <= self.block_bytes - at);
        // SAFETY: the bytes lie in the region; `out` cannot overlap it, as nobody has a slice of it.
        unsafe {
            let from = self.base().add(self.offset_of(index) + at);
            std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len());
        }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} blocks of {} bytes)", self.blocks(), self.block_bytes)
    }
}

/// One thread's way into an [`Arena`]. Nothing here allocates, waits or calls the system.
#[derive(Debug)]
pub struct ArenaHandle {
    arena: Arc<Arena>,
    tally: usize,
    magazine: Box<[u32]>,
    /// Blocks in the magazine.
    loaded: usize,
}

impl ArenaHandle {
    /// The arena.
    #[inline]
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Acquires a block, with one reference. Its bytes are whatever its last holder left.
    ///
    /// # Errors
    /// `Exhausted`.
    #[inline]
    pub fn acquire(&mut self) -> Result<BlockId, ArenaError> {
        let index = if self.loaded > 0 {
            self.loaded -= 1;
            self.magazine[self.loaded]
        } else {
            self.refill()?
        };
        let word = &self.arena.states[index as usize];
        // The block is this thread's alone, and nobody else may change the state of a free one.
        let generation = generation(word.load(Ordering::Relaxed));
        word.store(state(generation, 1), Ordering::Release);
        let tally = &self.arena.tallies[self.tally];
        let acquired = tally.acquired.load(Ordering::Relaxed) + 1;
        tally.acquired.store(acquired, Ordering::Release);
        let held = acquired.saturating_sub(tally.released.load(Ordering::Relaxed));
        if held > tally.peak.load(Ordering::Relaxed) {
            tally.peak.store(held, Ordering::Relaxed);
        }
        Ok(BlockId { arena: self.arena.number, index, generation })
    }

    /// One holder less; returns whether it was the last one, which frees the block.
    ///
    /// # Errors
    /// `Foreign`, `Released`.
    #[inline]
    pub fn release(&mut self, block: BlockId) -> Result<bool, ArenaError> {
        let mut seen = self.arena.live(block)?;
        let word = &self.arena.states[block.index as usize];
        loop {
            let last = references(seen) == 1;
            let new = if last { state(block.generation.wrapping_add(1), 0) } else { seen - 1 };
            // Release, so that the next holder, or the one that finds itself the last, sees what was done with the
            // block; acquire, so that this thread hands on what the others did.
            match word.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if last => break,
                Ok(_) => return Ok(false),
                Err(_) => seen = self.arena.live(block)?,
            }
        }
        let tally = &self.arena.tallies[self.tally];
        tally.released.store(tally.released.load(Ordering::Relaxed) + 1, Ordering::Release);
        if self.loaded == self.magazine.len() {
            self.spill();
        }
        if let Some(place) = self.magazine.get_mut(self.loaded) {
            *place = block.index;
            self.loaded += 1;
        } else {
            self.arena.free.push(&[block.index]);
        }
        Ok(true)
    }

    /// Takes half a magazine, at least one block, and returns one of them.
    #[cold]
    #[inline(never)]
    fn refill(&mut self) -> Result<u32, ArenaError> {
        let exhausted = ArenaError::Exhausted { blocks: self.arena.blocks() };
        let half = self.magazine.len().div_ceil(2);
        if half == 0 {
            let mut one = [NONE];
            return if self.arena.free.pop(&mut one) == 1 { Ok(one[0]) } else { Err(exhausted) };
        }
        let count = self.arena.free.pop(&mut self.magazine[..half]);
        // The stack's top is to be used first.
        self.magazine[..count].reverse();
        self.loaded = count.checked_sub(1).ok_or(exhausted)?;
        Ok(self.magazine[self.loaded])
    }

    /// Gives the half of the magazine that was not used for longest back.
    #[cold]
    #[inline(never)]
    fn spill(&mut self) {
        let half = self.magazine.len().div_ceil(2);
        self.arena.free.push(&self.magazine[..half]);
        self.magazine.copy_within(half.., 0);
        self.loaded -= half;
    }
}

impl Drop for ArenaHandle {
    fn drop(&mut self) {
        self.arena.free.push(&self.magazine[..self.loaded]);
        self.arena.tallies[self.tally].claimed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
