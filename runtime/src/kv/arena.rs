//! Blocks, for one thread: which are free, and how many hold each of the others.
//!
//! They are counted and have no memory here: whoever reads and writes their bytes keeps those where it can reach them.

use super::KvError;

/// No block, row or node.
pub(super) const NONE: u32 = u32::MAX;

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

/// Blocks by their numbers, 0 to [`blocks`](Self::blocks) - 1. After the constructor nothing allocates, waits or calls the
/// system.
#[derive(Debug)]
pub struct Arena {
    /// How many hold each block.
    references: Box<[u32]>,
    free: Vec<u32>,
    acquired: u64,
    released: u64,
    peak: u64,
}

impl Arena {
    /// An arena of `blocks` blocks, all of them free.
    ///
    /// # Errors
    /// `Config`.
    pub fn new(blocks: u32) -> Result<Arena, KvError> {
        if !(1..NONE).contains(&blocks) {
            return Err(KvError::Config { field: "blocks", value: blocks.into(), expected: "1 to 2^32 - 2" });
        }
        Ok(Arena {
            // Written one by one, so that the pages are there: zeroed memory would only be promised.
            references: (0..blocks).map(|_| std::hint::black_box(0)).collect(),
            free: (0..blocks).rev().collect(),
            acquired: 0,
            released: 0,
            peak: 0,
        })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.references.len() as u32
    }

    /// What it has done.
    pub fn counts(&self) -> ArenaCounts {
        let Self { acquired, released, peak, .. } = *self;
        ArenaCounts { capacity: self.blocks(), acquired, released, in_use: acquired - released, peak }
    }

    /// Acquires a block, with one reference.
    ///
    /// # Errors
    /// `Exhausted`.
    #[inline]
    pub fn acquire(&mut self) -> Result<u32, KvError> {
        let block = self.free.pop().ok_or(KvError::Exhausted { blocks: self.references.len() as u32 })?;
        self.references[block as usize] = 1;
        self.acquired += 1;
        self.peak = self.peak.max(self.acquired - self.released);
        Ok(block)
    }

    /// How many hold the block.
    ///
    /// # Errors
    /// `Free`.
    #[inline]
    pub fn references(&self, block: u32) -> Result<u32, KvError> {
        match self.references.get(block as usize) {
            Some(&references) if references > 0 => Ok(references),
            _ => Err(KvError::Free { block }),
        }
    }

    /// One more holder of the block.
    ///
    /// # Errors
    /// `Free`.
    #[inline]
    pub fn retain(&mut self, block: u32) -> Result<(), KvError> {
        self.references[block as usize] = self.references(block)? + 1;
        Ok(())
    }

    /// One holder less; returns whether it was the last one, which frees the block.
    ///
    /// # Errors
    /// `Free`, and nothing changes.
    #[inline]
    pub fn release(&mut self, block: u32) -> Result<bool, KvError> {
        let left = self.references(block)? - 1;
        self.references[block as usize] = left;
        if left == 0 {
            self.released += 1;
            self.free.push(block);
        }
        Ok(left == 0)
    }
}

#[cfg(test)]
mod tests;
