//! What the SFU makes of means: lines are read once or twice for sums, and once more for what becomes of each number.

use doorbell_lm::number::{FRACTION, bits, clamp, isqrt, round_shift};
use doorbell_lm::ops::within;

use super::vector::activate;
use crate::layout::{LINE, i16_at};

/// Largest magnitude of what is cut: the squares of 2^16 such distances take 64 bits.
const CUT: i32 = (1 << 24) - 1;

/// Within the residual stream's bounds, as everything that is normalised is taken.
fn bound(value: i32) -> i64 {
    within(value.into()).into()
}

/// √(mean x² + ε) · 2^(10 + `up` / 2), with 31 bits, and `up`. Of at most 4,096 numbers the sum of squares takes 64 bits; of more it wraps.
fn root_mean_square(x: &[i32], epsilon: u32) -> (u64, i32) {
    let count = x.len() as u64;
    let squares = x.iter().fold(0u64, |sum, &value| sum.wrapping_add(bound(value).unsigned_abs().pow(2)));
    let mean = (squares.wrapping_add(count / 2) / count).wrapping_add(epsilon.into()).max(1);
    let up = 62u32.saturating_sub(bits(mean)) / 2 * 2;
    (isqrt(mean << up), up as i32)
}

/// 2^46 / `root`, with 16 bits.
fn inverse(root: u64) -> u16 {
    ((1u64 << 46) / root).min(65_535) as u16
}

/// The exponent of a gain's lines, and its factors.
fn gain(lines: &[u8]) -> (i32, impl Fn(usize) -> i64) {
    (i16_at(lines, 0).into(), |k| i16_at(lines, LINE + 2 * k).into())
}

/// The activation of x · gain / √(mean x² + ε); `gain` as its lines, ε with 20 fraction bits.
///
/// The sum of squares and the largest product come from the same first pass.
pub fn normalise(x: &[i32], lines: &[u8], epsilon: u32) -> Vec<u8> {
    let (root, up) = root_mean_square(x, epsilon);
    let (exponent, factor) = gain(lines);
    activate(x.len(), |k| bound(x[k]) * factor(k), inverse(root), exponent - FRACTION - 36 + up / 2)
}

/// The same of a head as numbers with 10 fraction bits, within the residual stream's bounds.
pub fn level(x: &[i32], lines: &[u8], epsilon: u32) -> Vec<i32> {
    let (root, up) = root_mean_square(x, epsilon);
    let (exponent, factor) = gain(lines);
    let inverse = i64::from(inverse(root));
    // 26, 15 and 16 bits, whatever the bytes; the shift may be any.
    let shift = 36 - exponent - up / 2;
    let value = |(k, &x): (usize, &i32)| within(round_shift(bound(x) * factor(k) * inverse, shift));
    x.iter().enumerate().map(value).collect()
}

/// x with the root mean square of `like`.
pub fn rescale(x: &[i32], like: &[i32], epsilon: u32) -> Vec<i32> {
    let (root, up) = root_mean_square(x, epsilon);
    let (wanted, wanted_up) = root_mean_square(like, epsilon);
    let factor = i64::from(inverse(root)) * (wanted >> 15) as i64;
    let shift = 31 - (up - wanted_up) / 2;
    x.iter().map(|&x| within(round_shift(bound(x) * factor, shift))).collect()
}

/// What each number is above the mean and `deviations` of them, 16 fraction bits, or 0; of 0 deviations the numbers as they are.
///
/// Three passes: the sum, the squares, and what is kept.
pub fn cut(x: &[i32], deviations: u32) -> Vec<i32> {
    if deviations == 0 {
        return x.to_vec();
    }
    let near = |&value: &i32| i64::from(value.clamp(-CUT, CUT));
    let count = x.len() as u64;
    let sum: i64 = x.iter().map(near).sum();
    let mean = ((sum.unsigned_abs() + count / 2) / count) as i64 * sum.signum();
    let squares = x.iter().fold(0u64, |sum, x| sum.wrapping_add((near(x) - mean).unsigned_abs().pow(2)));
    let deviation = isqrt((squares.wrapping_add(count / 2) / count) << 10) as i64;
    let floor = mean + round_shift(deviation * i64::from(deviations), 21);
    x.iter().map(|x| clamp((near(x) - floor).max(0))).collect()
}
