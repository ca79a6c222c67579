//! The operators, one function each, in plain loops: docs/engine.md has them as equations.

use crate::number::{FRACTION, bits, clamp, isqrt, round_divide, round_shift};
use crate::rival::{Rival, is};
use crate::tables::{GELU, SIGMOID, TANH, weight_of};
use crate::weights::{Gain, Matrix};

/// Channels that share a shift, and tokens that share a maximum.
pub const BLOCK: usize = 32;

/// Largest mantissa of an activation, of a key and of a value.
pub const MANTISSA: i32 = 127;

/// Largest magnitude of the residual stream: the squares of 4,096 such channels add up within 64 bits.
pub const RESIDUAL: i32 = (1 << 26) - 1;

/// Largest magnitude that a stored vector keeps: its scale then has 16 bits, and no sum of an attention leaves 64.
pub const STORED: i32 = (u16::MAX as i32 * MANTISSA) / 16;

/// Largest shift of a block.
pub const SHIFT: u32 = 8;

/// Largest sum of the magnitudes of a row's weights, so that no sum of its products, in no order, leaves 32 bits.
pub const LARGEST_SUM: u64 = i32::MAX as u64 / ((MANTISSA as u64) << SHIFT);

/// A vector as the multipliers take it: channel c is `mantissas[c]` · 2^`shifts[c / 32]` · `scale` · 2^`exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    /// -127 to 127.
    pub mantissas: Vec<i8>,
    /// Of each block, 0 to 8.
    pub shifts: Vec<u8>,
    /// 2^15 to 2^16 - 1.
    pub scale: u16,
    /// Of the whole vector.
    pub exponent: i32,
}

/// The vector `values` · 2^`exponent` · `scale`: 16 bits for all of it, then 8 for each block.
pub fn activate(values: &[i64], scale: u16, exponent: i32) -> Activation {
    let largest = values.iter().map(|value| value.unsigned_abs()).max().unwrap_or(0);
    let shift = bits(largest).saturating_sub(15) as i32;
    let mut activation = Activation { mantissas: vec![], shifts: vec![], scale, exponent: exponent + shift };
    for block in values.chunks(BLOCK) {
        let halves: Vec<i64> =
            block.iter().map(|&value| round_shift(value, shift).clamp(-32_767, 32_767)).collect();
        let largest = halves.iter().map(|value| value.unsigned_abs()).max().unwrap_or(0);
        let down = bits(largest).saturating_sub(7);
        let most = i64::from(MANTISSA);
        activation
            .mantissas
            .extend(halves.iter().map(|&half| round_shift(half, down as i32).clamp(-most, most) as i8));
        activation.shifts.push(down as u8);
    }
    activation
}

/// Σ w · m · 2^shift of a row and an activation.
pub fn dot(row: &[i8], activation: &Activation) -> i32 {
    let blocks = row.chunks(BLOCK).zip(activation.mantissas.chunks(BLOCK)).zip(&activation.shifts);
    blocks.fold(0i32, |sum, ((weights, mantissas), &shift)| {
        let block: i32 = weights.iter().zip(mantissas).map(|(&w, &m)| i32::from(w) * i32::from(m)).sum();
        sum + (block << shift)
    })
}

/// A row's sum as a number with 10 fraction bits.
pub fn requantise(matrix: &Matrix, row: usize, sum: i32, activation: &Activation) -> i32 {
    // 24 bits.
    let factor = (i64::from(matrix.rows[row]) * i64::from(activation.scale)) >> 8;
    clamp(round_shift(i64::from(sum) * factor, -(matrix.exponent + activation.exponent + 8 + FRACTION)))
}

/// A matrix times a vector.
pub fn multiply(matrix: &Matrix, activation: &Activation) -> Vec<i32> {
    let rows = matrix.weights.chunks_exact(matrix.columns).enumerate();
    rows.map(|(row, weights)| requantise(matrix, row, dot(weights, activation), activation)).collect()
}

/// What a token begins with: its row of the matrix.
///
/// # Panics
/// If there is no such row.
pub fn embed(tokens: &Matrix, token: u32) -> Vec<i32> {
    let row = token as usize;
    embed_within(tokens, row, RESIDUAL)
}

/// Its row, within ±`most`.
pub(crate) fn embed_within(tokens: &Matrix, row: usize, most: i32) -> Vec<i32> {
    let (scale, most) = (i64::from(tokens.rows[row]), i64::from(most));
    let value = |&weight: &i8| {
        round_shift(i64::from(weight) * scale, -(tokens.exponent + FRACTION)).clamp(-most, most) as i32
    };
    tokens.row(row).iter().map(value).collect()
}

/// Adds to the residual stream.
pub fn add(x: &mut [i32], addend: impl IntoIterator<Item = i32>) {
    for (sum, addend) in x.iter_mut().zip(addend) {
        *sum = sum.saturating_add(addend).clamp(-RESIDUAL, RESIDUAL);
    }
}

/// A number within the bounds of the residual stream.
pub fn within(value: i64) -> i32 {
    value.clamp((-RESIDUAL).into(), RESIDUAL.into()) as i32
}

/// The root of a mean of squares, with 31 bits, and how far it is shifted: √(mean x² + ε) = `root` · 2^-(10 + `up` / 2), ε with 20
/// fraction bits. What is beyond the residual stream's bounds counts as if it were there.
fn root_mean_square(x: &[i32], epsilon: u32) -> (u64, i32) {
    let count = x.len() as u64;
    let squares: u64 = x.iter().map(|&value| u64::from(within(value.into()).unsigned_abs()).pow(2)).sum();
    // With 20 fraction bits, and at least 1.
    let mean = (squares + count / 2) / count;
    let mean = if is(Rival::MeanIsAtLeast1) { mean.max(1) } else { mean };
    let mean = (mean + u64::from(epsilon)).max(1);
    // Shifted by an even number to 61 or 62 bits: its root has 31.
    let up = (62 - bits(mean)) / 2 * 2;
    (isqrt(mean << up), up as i32)
}

/// 2^46 / `root`, with 16 bits.
fn inverse(root: u64) -> u16 {
    ((1u64 << 46) / root).min(65_535) as u16
}

/// x · gain, of x within the residual stream's bounds.
fn gained(x: &[i32], gain: &Gain) -> impl Iterator<Item = i64> {
    x.iter().zip(&gain.factors).map(|(&x, &factor)| i64::from(within(x.into())) * i64::from(factor))
}

/// RMSNorm: x · gain / √(mean x² + ε), ε with 20 fraction bits.
pub fn normalise(x: &[i32], gain: &Gain, epsilon: u32) -> Activation {
    let (root, up) = root_mean_square(x, epsilon);
    let products: Vec<i64> = gained(x, gain).collect();
    activate(&products, inverse(root), gain.exponent - FRACTION - 36 + up / 2)
}

/// The same as numbers with 10 fraction bits, within the residual stream's bounds.
pub fn level(x: &[i32], gain: &Gain, epsilon: u32) -> Vec<i32> {
    let (root, up) = root_mean_square(x, epsilon);
    let inverse = i64::from(inverse(root));
    // 26, 15 and 16 bits.
    let shift = 36 - gain.exponent - up / 2;
    gained(x, gain).map(|product| within(round_shift(product * inverse, shift))).collect()
}

/// x with the root mean square of `like`: x · √((mean like² + ε) / (mean x² + ε)).
pub fn rescale(x: &[i32], like: &[i32], epsilon: u32) -> Vec<i32> {
    let (root, up) = root_mean_square(x, epsilon);
    let (wanted, wanted_up) = root_mean_square(like, epsilon);
    // 16 bits each.
    let factor = i64::from(inverse(root)) * (wanted >> 15) as i64;
    let shift = 31 - (up - wanted_up) / 2;
    x.iter().map(|&x| within(round_shift(i64::from(within(x.into())) * factor, shift))).collect()
}

/// What the gate of a sparse layer keeps: how far x is above its mean and `cut` deviations, `cut` with 16 fraction bits, and 0 below; x within ±(2^24 - 1).
pub fn cut(x: &[i32], cut: u32) -> Vec<i32> {
    const MOST: i32 = (1 << 24) - 1;
    let x: Vec<i64> = x.iter().map(|&x| x.clamp(-MOST, MOST).into()).collect();
    let count = x.len() as u64;
    let sum: i64 = x.iter().sum();
    let mean = ((sum.unsigned_abs() + count / 2) / count) as i64 * sum.signum();
    let squares: u64 = x.iter().map(|x| (x - mean).unsigned_abs().pow(2)).sum();
    // With 20 fraction bits; the root has 15.
    let variance = (squares + count / 2) / count;
    let deviation = isqrt(variance << 10) as i64;
    let bound = mean + round_shift(deviation * i64::from(cut), 21);
    x.into_iter().map(|x| clamp((x - bound).max(0))).collect()
}

/// √½ of the sum of two parts of the residual stream.
pub fn blend(a: i32, b: i32) -> i32 {
    within(round_shift((i64::from(a) + i64::from(b)) * 46_341, 16))
}

/// AltUp's prediction: each stream, and all of them by its row of coefficients.
pub fn predict(streams: &[Vec<i32>], coefficients: &[i32]) -> Vec<Vec<i32>> {
    let rows = coefficients.chunks_exact(streams.len());
    let stream = |(stream, row): (&Vec<i32>, &[i32])| -> Vec<i32> {
        let sum = |channel: usize| -> i64 {
            row.iter().zip(streams).map(|(&c, other)| i64::from(c) * i64::from(other[channel])).sum()
        };
        let values = stream.iter().enumerate();
        values.map(|(channel, &x)| within(i64::from(x) + round_shift(sum(channel), FRACTION))).collect()
    };
    streams.iter().zip(rows).map(stream).collect()
}

/// AltUp's correction: to each stream, what the layer found beyond the first one's prediction, once and by the stream's coefficient.
pub fn correct(streams: &mut [Vec<i32>], found: &[i32], coefficients: &[i32]) {
    let news: Vec<i64> = found.iter().zip(&streams[0]).map(|(&a, &b)| i64::from(a) - i64::from(b)).collect();
    for (stream, &coefficient) in streams.iter_mut().zip(coefficients) {
        for (x, &news) in stream.iter_mut().zip(&news) {
            *x = within(i64::from(*x) + news + round_shift(news * i64::from(coefficient), FRACTION));
        }
    }
}

/// A head's rotation: its pairs are neighbours.
pub fn rotate(head: &mut [i32], turns: &[[i16; 2]]) {
    for (pair, &[cosine, sine]) in head.chunks_exact_mut(2).zip(turns) {
        let [a, b] = [i64::from(pair[0]), i64::from(pair[1])];
        let (c, s) = (i64::from(cosine), i64::from(sine));
        pair[0] = clamp(round_shift(a * c - b * s, 14));
        pair[1] = clamp(round_shift(a * s + b * c, 14));
    }
}

/// A head's vector in 8 bits: channel c is `mantissas[c]` · `scale` / 16, with 10 fraction bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// -127 to 127.
    pub mantissas: Vec<i8>,
    /// 1 to 65,535.
    pub scale: u32,
}

/// The nearest such vector.
pub fn store(head: &[i32]) -> Stored {
    let largest = head.iter().map(|value| value.unsigned_abs()).max().unwrap_or(0).min(STORED as u32);
    let scale = (largest * 16).div_ceil(127).max(1);
    let nearest =
        |&value: &i32| round_divide(i64::from(value.clamp(-STORED, STORED)) * 16, i64::from(scale)) as i8;
    Stored { mantissas: head.iter().map(nearest).collect(), scale }
}

/// A score: how much of a token's value is wanted, as a power of 2 with 8 fraction bits. `factor` is log2(e) / √(head width)
/// with 16 fraction bits.
pub fn score(query: &Stored, key: &Stored, factor: u32) -> i64 {
    let dot: i64 =
        query.mantissas.iter().zip(&key.mantissas).map(|(&q, &k)| i64::from(q) * i64::from(k)).sum();
    score_of(dot, query, key, factor)
}

/// The score, of the sum of the products of the mantissas.
#[inline]
pub(crate) fn score_of(dot: i64, query: &Stored, key: &Stored, factor: u32) -> i64 {
    // 8 fraction bits of the scales, 20 of what they scale; 4 go before the factor, so that 64 bits hold it.
    let product = round_shift(dot * i64::from(query.scale) * i64::from(key.scale), 4);
    round_shift(product * i64::from(factor), 20 + 8 + 16 - 4 - 8)
}

/// log2(e) / √(head width) with 16 fraction bits.
pub fn score_factor(head_width: usize) -> u32 {
    // log2(e) with 60 fraction bits.
    const LOG2_E: u128 = 1_663_324_966_706_823_425;
    // Its square, divided, and the root of that: 60 fraction bits.
    let square = LOG2_E * LOG2_E / head_width as u128;
    ((square.isqrt() + (1 << 43)) >> 44) as u32
}

/// What is known of the tokens attended to so far: two bins of blocks, by 16 powers of 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attended {
    bins: [Bin; 2],
    /// Of `bins[0]`; `bins[1]` is the one below.
    highest: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) weight: i64,
    pub(crate) values: Vec<i64>,
}

impl Bin {
    fn new(width: usize) -> Self {
        Self { weight: 0, values: vec![0; width] }
    }
}

impl Attended {
    /// Nothing yet.
    pub fn new(width: usize) -> Self {
        Self { bins: [Bin::new(width), Bin::new(width)], highest: i64::MIN }
    }

    /// Adds a block of at most 32 tokens, of which there is one: their scores and their values.
    pub fn add(&mut self, scores: &[i64], values: &[&Stored]) {
        let Some(&largest) = scores.iter().max() else { return };
        let ceiling = (largest + 255) >> 8;
        let Some(bin) = self.bin(ceiling >> 4) else { return };
        let up = ceiling & 15;
        for (&score, value) in scores.iter().zip(values) {
            let weight = weight_of((ceiling << 8) - score);
            bin.weight += weight << up;
            let scaled = weight * i64::from(value.scale);
            for (sum, &mantissa) in bin.values.iter_mut().zip(&value.mantissas) {
                *sum += (scaled * i64::from(mantissa)) << up;
            }
        }
    }

    /// Adds what was found of other blocks: attention may be split among any number of places.
    pub fn join(&mut self, other: &Self) {
        if other.highest == i64::MIN {
            return;
        }
        for (below, added) in (0..).zip(&other.bins) {
            if let Some(bin) = self.bin(other.highest - below) {
                bin.weight += added.weight;
                bin.values.iter_mut().zip(&added.values).for_each(|(sum, added)| *sum += added);
            }
        }
    }

    /// Where blocks of this bin are added up; nowhere if they count no more.
    pub(crate) fn bin(&mut self, bin: i64) -> Option<&mut Bin> {
        if bin > self.highest {
            let width = self.bins[0].values.len();
            // What was highest is one below now, or counts no more.
            let below = if bin - 1 == self.highest {
                std::mem::replace(&mut self.bins[0], Bin::new(width))
            } else {
                self.bins[0] = Bin::new(width);
                Bin::new(width)
            };
            self.bins[1] = below;
            self.highest = bin;
        }
        self.bins.get_mut((self.highest - bin) as usize)
    }

    /// The mean of the values, with 10 fraction bits.
    ///
    /// # Panics
    /// If nothing was added.
    pub fn mean(&self) -> Vec<i32> {
        let weight = self.bins[0].weight + (self.bins[1].weight >> 16);
        let values = self.bins[0].values.iter().zip(&self.bins[1].values);
        // The scales of values have 4 fraction bits.
        values.map(|(&high, &low)| clamp(round_divide(high + (low >> 16), weight << 4))).collect()
    }
}

/// x · logistic(x), of numbers with 10 fraction bits.
pub fn swish(x: i32) -> i32 {
    let at = (i64::from(x) + (16 << FRACTION)).clamp(0, (32 << FRACTION) - 1);
    let (step, part) = ((at >> 9) as usize, at & 511);
    let (low, high) = (i64::from(SIGMOID[step]), i64::from(SIGMOID[step + 1]));
    let logistic = low + (((high - low) * part + 256) >> 9);
    clamp(round_shift(i64::from(x) * logistic, 15))
}

/// tanh of a magnitude that has 14 fraction bits; the result has 15.
fn tanh_of(magnitude: i64) -> i64 {
    let at = magnitude.min((4 << 14) - 1);
    let (step, part) = ((at >> 8) as usize, at & 255);
    let (low, high) = (i64::from(TANH[step]), i64::from(TANH[step + 1]));
    low + (((high - low) * part + 128) >> 8)
}

/// tanh of a number with 10 fraction bits; the result has 15.
pub fn tanh(x: i32) -> i64 {
    tanh_of(i64::from(x.unsigned_abs()) << 4) * i64::from(x.signum())
}

/// The activation of a vector with 15 fraction bits.
pub fn activate_tanh(values: &[i32]) -> Activation {
    let values: Vec<i64> = values.iter().map(|&x| tanh(x)).collect();
    activate(&values, 1 << 15, -15 - 15)
}

/// 30 · tanh(x / 30), of numbers with 10 fraction bits.
pub fn softcap(x: i32) -> i32 {
    // 1 / 30 with 20 fraction bits.
    let part = round_shift(i64::from(x.unsigned_abs()) * 34_953, 16);
    // 30 · 2^10 / 2^15 is 15 / 16.
    round_shift(tanh_of(part) * 15, 4) as i32 * x.signum()
}

/// GELU, of numbers with 10 fraction bits: x times a table over ±4.
pub fn gelu(x: i32) -> i32 {
    let at = (i64::from(x) + (4 << FRACTION)).clamp(0, (8 << FRACTION) - 1);
    let (step, part) = ((at >> 7) as usize, at & 127);
    let (low, high) = (i64::from(GELU[step]), i64::from(GELU[step + 1]));
    let factor = low + (((high - low) * part + 64) >> 7);
    clamp(round_shift(i64::from(x) * factor, 15))
}

/// The product of two numbers with 10 fraction bits.
pub fn product(a: i32, b: i32) -> i64 {
    let product = round_shift(i64::from(a) * i64::from(b), FRACTION);
    if is(Rival::ProductStaysWithin32Bits) { clamp(product).into() } else { product }
}

/// The activation of a vector with 10 fraction bits.
pub fn activate_plain(values: &[i64]) -> Activation {
    activate(values, 1 << 15, -15 - FRACTION)
}

#[cfg(test)]
mod tests;
