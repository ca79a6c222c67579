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

    /// With a key other than 0 that of the key, in the place of seed and rollout.
    pub const fn keyed(key: u64, seed: u32, rollout: u32, position: u32) -> Self {
        match key {
            0 => Self::new(seed, rollout, position),
            key => Self::new(key as u32, (key >> 32) as u32, position),
        }
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

/// What leaves tokens out of a draw; 0 leaves out none. The most likely token is always kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Truncation {
    /// Those below the k-th largest logit.
    pub top_k: u32,
    /// Of these, those behind the most likely ones that have this share of the sum together, in 2^-16.
    pub top_p: u32,
    /// Those further below the most likely one, a power of 2 with 10 fraction bits.
    pub min_p: u32,
}

/// The bounds of a truncated draw: a token is kept if neither its logit nor its power of 2 is below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    logit: i32,
    power: i64,
}

impl Truncation {
    /// Leaves out none.
    pub const NONE: Self = Self { top_k: 0, top_p: 0, min_p: 0 };
    /// Largest `top_p`: 1 less 2^-16.
    pub const TOP_P_MAX: u32 = 0xFFFF;

    /// Of a number of tokens, a share of all and a share of the most likely one, which 0, 1 and 0 leave out none by; `None` for what is none.
    pub fn new(top_k: u32, top_p: f64, min_p: f64) -> Option<Self> {
        if !(top_p > 0.0 && top_p <= 1.0 && (0.0..=1.0).contains(&min_p)) {
            return None;
        }
        // A share that would be rounded to all of it is that; the least is one unit.
        let share = (top_p * 65_536.0).round().max(1.0) as u32;
        // The smallest distance is one unit, the largest that of 2^-(2^22).
        let distance = if min_p == 0.0 { 0.0 } else { (-1024.0 * min_p.log2()).round().max(1.0) };
        Some(Self { top_k, top_p: if share > Self::TOP_P_MAX { 0 } else { share }, min_p: distance as u32 })
    }

    /// Whether it leaves out none, whatever the logits are.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    fn of(self, logits: &[i32], sharpness: Sharpness) -> Kept {
        let mut kept = Kept { logit: i32::MIN, power: i64::MIN };
        if (1..logits.len()).contains(&(self.top_k as usize)) {
            let mut sorted = logits.to_vec();
            kept.logit = *sorted.select_nth_unstable_by(self.top_k as usize - 1, |a, b| b.cmp(a)).1;
        }
        let power = |&logit: &i32| power(logit, sharpness);
        let most = logits.iter().map(power).max().unwrap_or_default();
        if self.top_p > 0 {
            let mut powers: Vec<i64> =
                logits.iter().filter(|&&logit| logit >= kept.logit).map(power).collect();
            powers.sort_unstable_by(|a, b| b.cmp(a));
            let ceiling = (most + 1023) >> 10;
            let weight = |&power: &i64| power_of_logit((ceiling << 10) - power);
            let sum: i64 = powers.iter().map(weight).sum();
            let mut missing = (i64::from(self.top_p) * sum + 0xFFFF) >> 16;
            for held in &powers {
                kept.power = *held;
                missing -= weight(held);
                if missing <= 0 {
                    break;
                }
            }
        }
        if self.min_p > 0 {
            kept.power = kept.power.max(most - i64::from(self.min_p));
        }
        kept
    }
}

/// A logit as a power of 2 with 10 fraction bits.
fn power(logit: i32, sharpness: Sharpness) -> i64 {
    round_shift(i64::from(logit) * i64::from(sharpness.0), 20)
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
    sample_among(logits, sharpness, Truncation::NONE, draw)
}

/// The same among those that `truncation` keeps. The log-probability is that among all.
///
/// # Panics
/// Without logits.
pub fn sample_among(logits: &[i32], sharpness: Sharpness, truncation: Truncation, draw: Draw) -> Sampled {
    let token = choose(logits, sharpness, truncation, draw);
    Sampled { token, log_probability: log_probability(logits, sharpness, token) }
}

fn choose(logits: &[i32], sharpness: Sharpness, truncation: Truncation, draw: Draw) -> u32 {
    // At temperature 0 the most likely token is the largest, and it is always kept.
    let all = truncation.is_none() || sharpness == Sharpness::GREEDY;
    let kept = (!all).then(|| truncation.of(logits, sharpness));
    let is_kept =
        |logit: i32| kept.is_none_or(|kept| logit >= kept.logit && power(logit, sharpness) >= kept.power);
    let key = |(&logit, token): (&i32, u32)| match sharpness.0 {
        0 => i64::from(logit),
        // 30 fraction bits.
        factor => i64::from(logit) * i64::from(factor) + (gumbel(draw.of(token)) << 6),
    };
    let mut best = (i64::MIN, 0);
    for (logit, token) in logits.iter().zip(0..) {
        if !is_kept(*logit) {
            continue;
        }
        let key = key((logit, token));
        if key > best.0 {
            best = (key, token);
        }
    }
    best.1
}

/// The log-probability of a token, with 16 fraction bits.
///
/// # Panics
/// If there is no such token.
pub fn log_probability(logits: &[i32], sharpness: Sharpness, token: u32) -> i32 {
    let sharpness = if sharpness == Sharpness::GREEDY { Sharpness::ONE } else { sharpness };
    let power = |&logit: &i32| {
        let power = power(logit, sharpness);
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
