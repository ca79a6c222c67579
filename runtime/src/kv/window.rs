//! Attention sinks and a sliding window: a sequence of any length in a fixed number of blocks.
//!
//! The blocks of the first tokens, the *sinks*, stay. The others form a ring: a new block takes the place of the oldest.
//! If the window is the only holder of that, it is used again as it is; if others hold it, as they do a prompt's, it is
//! let go, and a fresh one is acquired.

use std::ops::Range;

use super::arena::{ArenaHandle, BlockId};
use super::error::KvError;

/// What a window keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The first tokens that are kept; may be 0.
    pub sink_tokens: u32,
    /// The latest tokens that are kept, at least.
    pub window_tokens: u32,
}

impl WindowConfig {
    /// Blocks of the sinks.
    pub const fn sink_blocks(self) -> u32 {
        self.sink_tokens.div_ceil(self.block_tokens)
    }

    /// Blocks of the ring: the latest `w` tokens touch up to `ceil((w - 1) / b) + 1` blocks of `b`.
    pub const fn ring_blocks(self) -> u32 {
        (self.window_tokens - 1).div_ceil(self.block_tokens) + 1
    }

    /// The most blocks that the window ever holds.
    pub const fn cap(self) -> u32 {
        self.sink_blocks() + self.ring_blocks()
    }
}

/// The blocks of one sequence. It must be [released](Self::release), or it keeps them for ever.
#[derive(Debug)]
pub struct Window {
    config: WindowConfig,
    /// The sinks, then the ring.
    blocks: Box<[Option<BlockId>]>,
    tokens: u32,
}

impl Window {
    /// An empty window; all of its storage is allocated here.
    ///
    /// # Errors
    /// `Config`.
    pub fn new(config: WindowConfig) -> Result<Self, KvError> {
        let check = |field, value: u32, ok: bool, expected| {
            if ok { Ok(()) } else { Err(KvError::Config { field, value: value.into(), expected }) }
        };
        const MAX: u32 = 1 << 24;
        check("block_tokens", config.block_tokens, (1..=MAX).contains(&config.block_tokens), "1 to 2^24")?;
        check("sink_tokens", config.sink_tokens, config.sink_tokens <= MAX, "at most 2^24")?;
        check("window_tokens", config.window_tokens, (1..=MAX).contains(&config.window_tokens), "1 to 2^24")?;
        Ok(Self { config, blocks: vec![None; config.cap() as usize].into(), tokens: 0 })
    }

    /// What it keeps.
    pub fn config(&self) -> WindowConfig {
        self.config
    }

    /// Tokens of the sequence, resident or not.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Blocks that it holds, at most [`WindowConfig::cap`].
    pub fn held(&self) -> u32 {
        self.blocks_so_far().min(self.config.cap())
    }

    /// The positions that are resident: those of the sinks, and the latest ones. The first range is empty if the second
    /// begins with the sequence.
    pub fn resident(&self) -> [Range<u32>; 2] {
        let WindowConfig { block_tokens, .. } = self.config;
        let sinks = self.config.sink_blocks();
        let oldest = self.blocks_so_far().saturating_sub(self.config.ring_blocks());
        if oldest <= sinks {
            return [0..0, 0..self.tokens];
        }
        [0..sinks * block_tokens, oldest * block_tokens..self.tokens]
    }

    /// The block that holds a position, or `None` if that is no longer resident, or not yet there.
    pub fn block_of(&self, position: u32) -> Option<BlockId> {
        let logical = position / self.config.block_tokens;
        let sink = logical < self.config.sink_blocks();
        let recent = u64::from(logical) + u64::from(self.config.ring_blocks()) >= self.blocks_so_far().into();
        let there = position < self.tokens && (sink || recent);
        there.then(|| self.blocks[self.place(logical)]).flatten()
    }

    /// Makes the sequence `tokens` tokens longer, in blocks that the window alone holds.
    ///
    /// # Errors
    /// `Arena(Exhausted)`: the tokens for which there were blocks have been added, see [`tokens`](Self::tokens).
    /// `Position`: the sequence would have more than 2^32 - 1 tokens, and nothing has changed.
    pub fn append(&mut self, arena: &mut ArenaHandle, tokens: u32) -> Result<(), KvError> {
        let end = self.end(tokens)?;
        while self.tokens < end {
            let used = self.tokens % self.config.block_tokens;
            if used == 0 {
                let place = self.place(self.blocks_so_far());
                if !matches!(self.blocks[place], Some(old) if arena.arena().references(old)? == 1) {
                    let fresh = arena.acquire()?;
                    self.put(arena, fresh)?;
                }
            }
            self.tokens += (self.config.block_tokens - used).min(end - self.tokens);
        }
        Ok(())
    }

    /// Makes the sequence one block longer: one that others hold, whose tokens it has in common with them. The window
    /// never writes it.
    ///
    /// # Errors
    /// `Boundary`: the sequence's last block is not full; `Arena`: there is no such block; `Position`.
    pub fn share(&mut self, arena: &mut ArenaHandle, block: BlockId) -> Result<(), KvError> {
        let WindowConfig { block_tokens, .. } = self.config;
        if !self.tokens.is_multiple_of(block_tokens) {
            return Err(KvError::Boundary { tokens: self.tokens, block_tokens });
        }
        let end = self.end(block_tokens)?;
        arena.arena().retain(block)?;
        self.put(arena, block)?;
        self.tokens = end;
        Ok(())
    }

    /// Lets all blocks go, and begins anew with an empty sequence.
    ///
    /// # Errors
    /// `Arena(Foreign)`: the handle is of another arena, and nothing has changed.
    pub fn release(&mut self, arena: &mut ArenaHandle) -> Result<(), KvError> {
        for place in &mut self.blocks {
            if let Some(block) = *place {
                arena.release(block)?;
                *place = None;
            }
        }
        self.tokens = 0;
        Ok(())
    }

    fn end(&self, tokens: u32) -> Result<u32, KvError> {
        let too_long = KvError::Position { position: u32::MAX, tokens: self.tokens };
        self.tokens.checked_add(tokens).ok_or(too_long)
    }

    fn blocks_so_far(&self) -> u32 {
        self.tokens.div_ceil(self.config.block_tokens)
    }

    fn place(&self, logical: u32) -> usize {
        let sinks = self.config.sink_blocks();
        match logical.checked_sub(sinks) {
            None => logical as usize,
            Some(later) => (sinks + later % self.config.ring_blocks()) as usize,
        }
    }

    /// Puts the next block in place, and lets the one go that was there.
    fn put(&mut self, arena: &mut ArenaHandle, block: BlockId) -> Result<(), KvError> {
        let place = self.place(self.blocks_so_far());
        if let Some(old) = self.blocks[place].replace(block) {
            arena.release(old)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
