//! From logits to a token and its log-probability: what docs/engine.md calls *Sampling*. Each is a maximum or a sum over the vocabulary, so a device may
//! take it in any order.

use doorbell_contract::{GOLDEN, mix};

use crate::number::{clamp, round_shift};
use crate::ops::BLOCK;
use crate::rival::{Rival, is};
use crate::tables::{LOG_FRACTION, log2, power_of_logit, ratio_log2};

/// log2(e) / temperature with 20 fraction bits, by which logits become powers of 2; 0 stands for temperature 0, the most likely token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharpness(pub u32);

impl Sharpness {
    /// Of temperature 1, and of the log-probabilities at temperature 0.
    pub const ONE: Self = Self(1_512_775);
    /// At temperature 0.
    pub const GREEDY: Self = Self(0);
    /// 28 bits: the product with a logit then has 60.
    const MOST: f64 = ((1 << 28) - 1) as f64;

    /// Of a temperature; `None` for what is none, and for what is too near to 0 or too far from it. The host computes it, once for a rollout.
    pub fn of(temperature: f64) -> Option<Self> {
        if temperature == 0.0 {
            return Some(Self::GREEDY);
        }
        let sharpness = (std::f64::consts::LOG2_E / temperature * 1_048_576.0).round();
        (1.0..=Self::MOST).contains(&sharpness).then_some(Self(sharpness as u32))
    }
}

/// What is drawn at one position of one rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw([u32; 2]);

impl Draw {
    /// The same for the same three numbers, on every device.
    pub const fn new(seed: u32, rollout: u32, position: u32) -> Self {
        // The first is engine 0's; the second keeps two positions apart whose first ones come near to each other.
        let first =
            mix(mix(seed ^ mix(rollout.wrapping_add(GOLDEN))).wrapping_add(position.wrapping_mul(GOLDEN)));
        let second = mix(mix(position ^ mix(seed.wrapping_add(GOLDEN))).wrapping_add(rollout));
        Self([first, second])
    }

    /// 32 bits for a token.
    pub const fn of(self, token: u32) -> u32 {
        mix(mix(self.0[0].wrapping_add(token.wrapping_mul(GOLDEN))) ^ self.0[1])
    }
}

/// The noise that uniform bits stand for, with 24 fraction bits: -log2(-log2(1 - w)), w = (bits + 1/2) / 2^32.
pub fn gumbel(bits: u32) -> i64 {
    // With 33 fraction bits, and odd: neither 0 nor 1.
    let w = 2 * u64::from(bits) + 1;
    if bits >> 31 == 0 {
        (33 << LOG_FRACTION) - log2(w) - ratio_log2(w)
    } else {
        let surprise = (33 << LOG_FRACTION) - log2((1 << 33) - w);
        i64::from(LOG_FRACTION << LOG_FRACTION) - log2(surprise as u64)
    }
}

/// A token, and how likely it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Which token.
    pub token: u32,
    /// Its log-probability at the temperature that sampled, at temperature 0 that of 1: with 16 fraction bits, never above 0.
    pub log_probability: i32,
}

/// The token of these logits: the one with the largest sum of sharpened logit and noise, the lower one of equals.
///
/// # Panics
/// Without logits.
pub fn sample(logits: &[i32], sharpness: Sharpness, draw: Draw) -> Sampled {
    let key = |(&logit, token): (&i32, u32)| match sharpness.0 {
        0 => i64::from(logit),
        // 30 fraction bits.
        factor => i64::from(logit) * i64::from(factor) + (gumbel(draw.of(token)) << 6),
    };
    let mut best = (i64::MIN, 0);
    for (logit, token) in logits.iter().zip(0..) {
        let key = key((logit, token));
        if key > best.0 {
            best = (key, token);
        }
    }
    let token = best.1;
    Sampled { token, log_probability: log_probability(logits, sharpness, token) }
}

/// The log-probability of a token, with 16 fraction bits.
///
/// # Panics
/// If there is no such token.
pub fn log_probability(logits: &[i32], sharpness: Sharpness, token: u32) -> i32 {
    let sharpness = if sharpness == Sharpness::GREEDY { Sharpness::ONE } else { sharpness };
    // A power of 2 with 10 fraction bits.
    let power = |&logit: &i32| {
        let power = round_shift(i64::from(logit) * i64::from(sharpness.0), 20);
        if is(Rival::PowerStaysWithin32Bits) { clamp(power).into() } else { power }
    };
    let mut bins = Bins::new();
    for block in logits.chunks(BLOCK) {
        let mut powers = [0; BLOCK];
        powers.iter_mut().zip(block).for_each(|(held, logit)| *held = power(logit));
        bins.add(&powers[..block.len()]);
    }
    let chosen = power(&logits[token as usize]) << (LOG_FRACTION - 10);
    // ln(2) with 24 fraction bits.
    let nats = i128::from(chosen - bins.log2()) * 11_629_080;
    // 48 fraction bits to 16; halves go up.
    ((nats + (1 << 31)) >> 32).clamp(i32::MIN.into(), 0) as i32
}

/// Bins that count. Of 2^20 tokens, those below the third hold less than 2^-12 of the sum: docs/engine.md has the proof.
const BINS: usize = 3;

/// Σ 2^y in three bins of blocks, by 16 powers of 2.
struct Bins {
    sums: [i64; BINS],
    /// Of the first; the others are those below it.
    highest: i64,
}

impl Bins {
    fn new() -> Self {
        Self { sums: [0; BINS], highest: i64::MIN }
    }

    /// Adds a block of powers of 2 with 10 fraction bits.
    fn add(&mut self, powers: &[i64]) {
        let ceiling = (powers.iter().copied().fold(i64::MIN, i64::max) + 1023) >> 10;
        let block: i64 = powers.iter().map(|&power| power_of_logit((ceiling << 10) - power)).sum();
        self.enter(ceiling >> 4, block << (ceiling & 15));
    }

    /// Adds a sum of blocks of one bin.
    fn enter(&mut self, bin: i64, sum: i64) {
        if bin > self.highest {
            // All sums are still 0 if nothing was added.
            let up = bin.abs_diff(self.highest).min(BINS as u64) as usize;
            self.sums.copy_within(..BINS - up, up);
            self.sums[..up].fill(0);
            self.highest = bin;
        }
        if let Some(held) = self.sums.get_mut((self.highest - bin) as usize) {
            *held += sum;
        }
    }

    /// Adds what was found of other blocks, as a device does that splits the vocabulary.
    #[cfg(test)]
    fn join(&mut self, other: &Self) {
        for (bin, &sum) in (0..).map(|below| other.highest.saturating_sub(below)).zip(&other.sums) {
            self.enter(bin, sum);
        }
    }

    /// The logarithm, with 24 fraction bits. A power of 2 was counted as 2^20.
    fn log2(&self) -> i64 {
        let sum = self.sums[0] + (self.sums[1] >> 16) + (self.sums[2] >> 32);
        log2(sum as u64) + ((self.highest * 16 - 20) << LOG_FRACTION)
    }
}

#[cfg(test)]
mod tests;
