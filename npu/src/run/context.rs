//! What belongs to one token sequence: its on-chip memory, its registers, where its keys and values are.

use doorbell_lm::sample::{Draw, Sharpness, log_probability, sample};

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
    /// 16 fraction bits, never above 0.
    pub log_probability: i32,
}

/// How a context draws tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// log2(e) / temperature.
    pub sharpness: Sharpness,
    /// Of the run.
    pub seed: u32,
    /// Of the sequence.
    pub rollout: u32,
    /// Draws none: the token is given, in the place of the seed, and its log-probability is wanted.
    pub scores: bool,
}

/// The sampler between one `head` and the next. Hardware keeps the best key, its token and power, and the three bins alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sampler {
    /// Logits that it has seen.
    pub logits: Vec<i32>,
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
    /// Registers: how its tokens are drawn.
    pub sampling: Sampling,
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
            sampling: Sampling { sharpness: Sharpness::GREEDY, seed: 0, rollout: 0, scores: false },
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

    /// The token behind `position`, from all logits; `None` of none.
    pub(super) fn choose(&self, sampler: &Sampler) -> Option<Sample> {
        let Sampling { sharpness, seed, rollout, scores } = self.sampling;
        if sampler.logits.is_empty() {
            return None;
        }
        if scores {
            // A token beyond the vocabulary is nobody's: a device does not begin with it.
            let is_known = (seed as usize) < sampler.logits.len();
            let log = is_known.then(|| log_probability(&sampler.logits, sharpness, seed));
            return log.map(|log_probability| Sample { token: seed, log_probability });
        }
        // Drawn at the position of the token that is chosen.
        let draw = Draw::new(seed, rollout, self.position.wrapping_add(1));
        let chosen = sample(&sampler.logits, sharpness, draw);
        Some(Sample { token: chosen.token, log_probability: chosen.log_probability })
    }

    /// Bytes from a line on.
    pub(super) fn lines(&self, start: u32, count: u64) -> &[u8] {
        &self.chip[start as usize * LINE..][..count as usize * LINE]
    }
}
