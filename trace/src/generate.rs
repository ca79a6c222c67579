//! A seeded generator of traces that look like group sampling: several answers per prompt, a long tail of answer
//! lengths, prompts that share their beginnings.
//!
//! The result is the same on every machine: ChaCha8 is specified bit by bit, integers are drawn from it by our own
//! mapping, and the transcendental functions come from the `libm` crate rather than from the system.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{PREFIX_BLOCK_TOKENS, Request, Trace};

/// Parameters of a generated trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Generator {
    /// Number of requests in all.
    pub requests: u32,
    /// Seed; the same parameters and seed give the same trace.
    pub seed: u64,
    /// Requests per prompt: that many neighbours have the same arrival, prompt and prefix, and differ in length.
    /// The last group is cut when `requests` is not a multiple.
    pub group: u32,
    /// Median answer length, in tokens.
    pub output_median: u32,
    /// Answers are cut at this many tokens.
    pub output_max: u32,
    /// Median length of a fresh prompt, in tokens.
    pub prompt_median: u32,
}

/// Why a generator's parameters make no trace.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} is {value}; it must be {expected}")]
#[non_exhaustive]
pub struct GeneratorError {
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Its value.
    pub value: u32,
    /// What it must be.
    pub expected: String,
}

/// Spread of the logarithm of lengths: the 99th percentile is about six times the median, as in chat traces.
const SIGMA: f64 = 0.8;
/// Prompts are cut at this many tokens, which bounds conversations.
const PROMPT_MAX: u32 = 131_072;
/// System prompts that fresh prompts begin with, and the blocks that each has.
const SYSTEM_PROMPTS: u32 = 8;
const SYSTEM_BLOCKS: u32 = 2;
/// A prompt goes on from one of this many latest prompts with a chance of 1 in 4.
const RECENT: usize = 64;
/// Mean time between prompts, in milliseconds.
const MEAN_GAP_MS: f64 = 300.0;

impl Generator {
    /// Default lengths: a median answer of 350 tokens, at most 2000, to a prompt of 2048.
    pub fn new(requests: u32, seed: u64, group: u32) -> Generator {
        Generator { requests, seed, group, output_median: 350, output_max: 2000, prompt_median: 2048 }
    }

    /// Generates the trace.
    ///
    /// # Errors
    /// A parameter is zero, or a median exceeds its maximum.
    pub fn generate(&self) -> Result<Trace, GeneratorError> {
        self.check()?;
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(self.seed));
        let mut requests: Vec<Request> = Vec::with_capacity(self.requests as usize);
        let mut recent: Vec<(u32, Vec<u32>)> = Vec::new();
        let mut next_block = SYSTEM_PROMPTS * SYSTEM_BLOCKS;
        let mut arrival_ms = 0;
        while requests.len() < self.requests as usize {
            let (prompt_tokens, prefix) = self.prompt(&mut draw, &recent, &mut next_block);
            for _ in 0..self.group.min(self.requests - requests.len() as u32) {
                requests.push(Request {
                    arrival_ms,
                    prompt_tokens,
                    output_tokens: draw.log_normal(self.output_median, self.output_max),
                    prefix: prefix.clone(),
                });
            }
            if recent.len() == RECENT {
                recent.remove(0);
            }
            recent.push((prompt_tokens, prefix));
            arrival_ms += draw.exponential(MEAN_GAP_MS);
        }
        let source = format!(
            "generated: requests {}, seed {}, group {}, output median {} max {}, prompt median {}",
            self.requests, self.seed, self.group, self.output_median, self.output_max, self.prompt_median
        );
        Ok(Trace { source, requests })
    }

    fn check(&self) -> Result<(), GeneratorError> {
        let within = |parameter, value, max: u32| {
            let bad = value == 0 || value > max;
            if bad {
                Err(GeneratorError { parameter, value, expected: format!("1 to {max}") })
            } else {
                Ok(())
            }
        };
        within("requests", self.requests, 10_000_000)?;
        within("group", self.group, u32::MAX)?;
        within("output_max", self.output_max, 1 << 20)?;
        within("output_median", self.output_median, self.output_max)?;
        within("prompt_median", self.prompt_median, PROMPT_MAX)
    }

    /// A fresh prompt behind a system prompt, or the next turn of a recent conversation.
    fn prompt(&self, draw: &mut Draw, recent: &[(u32, Vec<u32>)], next_block: &mut u32) -> (u32, Vec<u32>) {
        let turn = draw.log_normal(self.prompt_median, PROMPT_MAX);
        let (before, mut prefix) = if !recent.is_empty() && draw.below(4) == 0 {
            recent[draw.below(recent.len() as u32) as usize].clone()
        } else {
            // The smaller of two draws, so that some system prompts are used more than others.
            let system = draw.below(SYSTEM_PROMPTS).min(draw.below(SYSTEM_PROMPTS));
            let blocks = (system * SYSTEM_BLOCKS..(system + 1) * SYSTEM_BLOCKS).collect();
            (SYSTEM_BLOCKS * PREFIX_BLOCK_TOKENS, blocks)
        };
        let prompt_tokens = before.saturating_add(turn).min(PROMPT_MAX).max(before);
        // Only whole blocks are shared: what follows the last whole block of `before` is new.
        prefix.truncate((before / PREFIX_BLOCK_TOKENS) as usize);
        while prefix.len() < prompt_tokens.div_ceil(PREFIX_BLOCK_TOKENS) as usize {
            prefix.push(*next_block);
            *next_block += 1;
        }
        (prompt_tokens, prefix)
    }
}

struct Draw(ChaCha8Rng);

impl Draw {
    /// Uniform in `0..bound`; the bias of the multiply is below 2^-32.
    fn below(&mut self, bound: u32) -> u32 {
        let high = (u128::from(self.0.next_u64()) * u128::from(bound)) >> 64;
        high as u32
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Box-Muller; the second value is dropped.
    fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(2.0 * std::f64::consts::PI * self.unit())
    }

    fn log_normal(&mut self, median: u32, max: u32) -> u32 {
        let value = f64::from(median) * libm::exp(SIGMA * self.normal());
        libm::round(value).clamp(1.0, f64::from(max)) as u32
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        libm::round(-mean * libm::log(self.unit())) as u64
    }
}
