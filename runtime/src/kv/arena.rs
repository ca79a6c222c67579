//! An arena of blocks of one size, for one thread: which are free, and who holds the others how often.
//!
//! Its memory is mapped when the first byte is written; whoever only counts blocks has none.

use std::sync::atomic::{AtomicU32, Ordering};

use super::region::Region;

/// No block, row or node.
pub(super) const NONE: u32 = u32::MAX;

/// Blocks are multiples of this many bytes, a cache line, and aligned to it.
pub const BLOCK_ALIGN: usize = 64;

/// What an arena is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes of a block: a multiple of [`BLOCK_ALIGN`].
    pub block_bytes: usize,
}

impl Default for ArenaConfig {
    /// 4096 blocks of 16 KiB.
    fn default() -> Self {
        Self { blocks: 4096, block_bytes: 16_384 }
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

/// What an arena has done.
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
    /// The most blocks that were in use at once.
    pub peak: u64,
}

/// A block, in use or free.
struct Block {
    /// Of its use; of a free block, of the next one. The first is 1.
    generation: u32,
    references: u32,
    /// What its holder keeps with it: see [`Arena::note`].
    note: [u32; 2],
}

/// Blocks of one size. After the constructor nothing allocates, waits or calls the system, but for the first byte that is
/// written.
///
/// A name is found stale up to the 2^32nd use of its block.
pub struct Arena {
    number: u32,
    block_bytes: usize,
    blocks: Box<[Block]>,
    free: Vec<u32>,
    acquired: u64,
    released: u64,
    peak: u64,
    region: Option<Region>,
}

impl Arena {
    /// An arena, all of its blocks free and zeroed.
    ///
    /// # Errors
    /// `Config`.
    pub fn new(config: ArenaConfig) -> Result<Arena, ArenaError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let ArenaConfig { blocks, block_bytes } = config;
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
        let fits =
            (blocks as usize).checked_mul(block_bytes).is_some_and(|bytes| isize::try_from(bytes).is_ok());
        check(
            "block_bytes",
            block_bytes as u64,
            fits,
            "less: all blocks together must fit the address space",
        )?;
        Ok(Arena {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            block_bytes,
            // No element is written as zero, so none is left to be touched later.
            blocks: (0..blocks).map(|_| Block { generation: 1, references: 0, note: [NONE; 2] }).collect(),
            free: (0..blocks).rev().collect(),
            acquired: 0,
            released: 0,
            peak: 0,
            region: None,
        })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// What it has done.
    pub fn counts(&self) -> ArenaCounts {
        let Self { acquired, released, peak, .. } = *self;
        ArenaCounts { capacity: self.blocks(), acquired, released, in_use: acquired - released, peak }
    }

    /// Byte offset of a block in the arena's memory.
    ///
    /// # Errors
    /// `Foreign`, `Released`.
    pub fn offset(&self, block: BlockId) -> Result<usize, ArenaError> {
        self.live(block).map(|()| self.offset_of(block.index))
    }

    /// How many hold the block.
    ///
    /// # Errors
    /// `Foreign`, `Released`.
    pub fn references(&self, block: BlockId) -> Result<u32, ArenaError> {
        self.live(block).map(|()| self.references_of(block.index))
    }

    /// Acquires a block, with one reference. Its bytes are whatever its last holder left.
    ///
    /// # Errors
    /// `Exhausted`.
    #[inline]
    pub fn acquire(&mut self) -> Result<BlockId, ArenaError> {
        let index = self.free.pop().ok_or(ArenaError::Exhausted { blocks: self.blocks.len() as u32 })?;
        let block = &mut self.blocks[index as usize];
        block.references = 1;
        self.acquired += 1;
        self.peak = self.peak.max(self.acquired - self.released);
        Ok(BlockId { arena: self.number, index, generation: block.generation })
    }

    /// One more holder of the block.
    ///
    /// # Errors
    /// `Foreign`, `Released`, `References`.
    #[inline]
    pub fn retain(&mut self, block: BlockId) -> Result<(), ArenaError> {
        self.live(block)?;
        let references = &mut self.blocks[block.index as usize].references;
        *references = references.checked_add(1).ok_or(ArenaError::References { index: block.index })?;
        Ok(())
    }

    /// One holder less; returns whether it was the last one, which frees the block.
    ///
    /// # Errors
    /// `Foreign`, `Released`.
    #[inline]
    pub fn release(&mut self, block: BlockId) -> Result<bool, ArenaError> {
        self.live(block)?;
        Ok(self.release_of(block.index))
    }

    /// As [`release`](Self::release), of a block that is known to be in use.
    #[inline]
    pub(super) fn release_of(&mut self, index: u32) -> bool {
        let block = &mut self.blocks[index as usize];
        block.references -= 1;
        if block.references > 0 {
            return false;
        }
        block.generation = block.generation.wrapping_add(1);
        self.released += 1;
        self.free.push(index);
        true
    }

    /// Whether the name is of a block in use.
    #[inline]
    fn live(&self, block: BlockId) -> Result<(), ArenaError> {
        if block.arena != self.number {
            return Err(ArenaError::Foreign { index: block.index, of: block.arena, to: self.number });
        }
        // The arena gave out the name, so the index is in range.
        let Block { generation, references, .. } = self.blocks[block.index as usize];
        if generation == block.generation && references > 0 {
            return Ok(());
        }
        let free = u32::from(references == 0);
        let current = generation.wrapping_sub(free);
        Err(ArenaError::Released { index: block.index, generation: block.generation, current })
    }

    #[inline]
    pub(super) fn offset_of(&self, index: u32) -> usize {
        index as usize * self.block_bytes
    }

    /// How many hold the block.
    #[inline]
    pub(super) fn references_of(&self, index: u32) -> u32 {
        self.blocks[index as usize].references
    }

    /// One more holder of a block that is known to be in use.
    #[inline]
    pub(super) fn retain_of(&mut self, index: u32) {
        self.blocks[index as usize].references += 1;
    }

    /// What the holder of a block keeps with it.
    #[inline]
    pub(super) fn note(&mut self, index: u32) -> &mut [u32; 2] {
        &mut self.blocks[index as usize].note
    }

    /// The same, to be read.
    #[inline]
    pub(super) fn noted(&self, index: u32) -> [u32; 2] {
        self.blocks[index as usize].note
    }

    /// Copies a block's bytes into another one.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.offset_of(from), self.offset_of(to));
        // Before a byte is written all are zero, and so is the copy.
        if let Some(region) = &mut self.region {
            region.bytes_mut().copy_within(from..from + self.block_bytes, to);
        }
    }

    /// Overwrites bytes of a block.
    ///
    /// # Errors
    /// `Memory`: these were the first bytes, and there is no memory for the blocks.
    ///
    /// # Panics
    /// If the bytes do not lie in the block.
    pub(super) fn put(&mut self, index: u32, at: usize, bytes: &[u8]) -> Result<(), ArenaError> {
        assert!(at + bytes.len() <= self.block_bytes);
        let from = self.offset_of(index) + at;
        if self.region.is_none() {
            let all = self.blocks.len() * self.block_bytes;
            let memory = |error: std::io::Error| ArenaError::Memory {
                bytes: all as u64,
                errno: error.raw_os_error().unwrap_or_default(),
            };
            self.region = Some(Region::new(all).map_err(memory)?);
        }
        if let Some(region) = &mut self.region {
            region.bytes_mut()[from..from + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Copies bytes of a block out.
    ///
    /// # Panics
    /// If the bytes do not lie in the block.
    pub(super) fn get(&self, index: u32, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.block_bytes);
        let from = self.offset_of(index) + at;
        match &self.region {
            Some(region) => out.copy_from_slice(&region.bytes()[from..from + out.len()]),
            None => out.fill(0),
        }
    }

    /// Whether its memory is mapped.
    pub fn is_mapped(&self) -> bool {
        self.region.is_some()
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} blocks of {} bytes)", self.blocks(), self.block_bytes)
    }
}

#[cfg(test)]
mod tests;
