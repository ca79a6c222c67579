//! What belongs to one token sequence: its on-chip memory, its registers, where its keys and values are.

use crate::layout::LINE;

/// Bytes of the memory of keys and values in which a context's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// First byte.
    pub base: u64,
    /// How many.
    pub bytes: u64,
}

/// The token that a step chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Which one.
    pub token: u32,
    /// Its logit, 10 fraction bits.
    pub logit: i32,
}

/// The sampler between one `head` and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampler {
    /// Rows that it has seen.
    pub rows: u32,
    /// The best so far.
    pub best: Option<Sample>,
}

/// One of those that execute a program together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Register: the token whose successor is wanted.
    pub token: u32,
    /// Register: its position; there are `position + 1` tokens to attend to.
    pub position: u32,
    /// Register: whether no token is wanted, as in a prefill.
    pub silent: bool,
    /// Where its blocks lie.
    pub arena: Arena,
    /// Number of the block of each 32 positions.
    pub blocks: Vec<u32>,
    /// What `memcpy.out` writes.
    pub output: Vec<u8>,
    /// On-chip memory.
    pub(super) chip: Vec<u8>,
    pub(super) sampler: Option<Sampler>,
}

impl Context {
    /// At position 0, with `lines` lines of memory, all 0.
    pub(super) fn new(lines: u32, arena: Arena, blocks: Vec<u32>) -> Self {
        Self {
            token: 0,
            position: 0,
            silent: false,
            arena,
            blocks,
            output: vec![],
            chip: vec![0; lines as usize * LINE],
            sampler: None,
        }
    }

    /// On-chip memory.
    pub fn chip(&self) -> &[u8] {
        &self.chip
    }

    /// On-chip memory, to begin with something in it.
    pub fn chip_mut(&mut self) -> &mut [u8] {
        &mut self.chip
    }

    /// Bytes from a line on.
    pub(super) fn lines(&self, start: u32, count: u64) -> &[u8] {
        &self.chip[start as usize * LINE..][..count as usize * LINE]
    }
}
