//! What the SFU does: 16 lanes, a line of 32-bit numbers a cycle, in one or two passes.

use doorbell_lm::number::{FRACTION, bits, clamp, round_divide, round_shift};
use doorbell_lm::ops::{self, BLOCK, MANTISSA, RESIDUAL, STORED, gelu, swish};

use crate::layout::{i16_at, whole};

/// The activation of `count` values times `scale` · 2^`exponent`, as lines.
///
/// Two passes over the values: the first finds the largest magnitude, the second shifts, and holds a block back until its own
/// largest is known.
pub fn activate(count: usize, value: impl Fn(usize) -> i64, scale: u16, exponent: i32) -> Vec<u8> {
    let largest = (0..count).map(|k| value(k).unsigned_abs()).max().unwrap_or(0);
    let shift = bits(largest).saturating_sub(15) as i32;
    let head = [scale, (exponent + shift) as u16].into_iter().flat_map(u16::to_le_bytes);
    let (mut shifts, mut mantissas) = (vec![], Vec::with_capacity(count));
    for block in 0..count / BLOCK {
        let halves: [i64; BLOCK] =
            std::array::from_fn(|k| round_shift(value(block * BLOCK + k), shift).clamp(-32_767, 32_767));
        let largest = halves.iter().map(|half| half.unsigned_abs()).max().unwrap_or(0);
        let down = bits(largest).saturating_sub(7);
        shifts.push(down as u8);
        let mantissa = |half: i64| round_shift(half, down as i32).clamp((-MANTISSA).into(), MANTISSA.into());
        mantissas.extend(halves.map(|half| mantissa(half) as u8));
    }
    [whole(head.collect()), whole(shifts), whole(mantissas)].concat()
}

/// The activation of numbers with 10 fraction bits.
pub fn plain(values: &[i32]) -> Vec<u8> {
    activate(values.len(), |k| values[k].into(), 1 << 15, -15 - FRACTION)
}

/// The activation of [swish(gate) · up >> 10].
pub fn swiglu(gate: &[i32], up: &[i32]) -> Vec<u8> {
    let product = |k: usize| round_shift(i64::from(swish(gate[k])) * i64::from(up[k]), FRACTION);
    activate(gate.len(), product, 1 << 15, -15 - FRACTION)
}

/// The activation of [gelu(gate) · up >> 10].
pub fn geglu(gate: &[i32], up: &[i32]) -> Vec<u8> {
    let product = |k: usize| round_shift(i64::from(gelu(gate[k])) * i64::from(up[k]), FRACTION);
    activate(gate.len(), product, 1 << 15, -15 - FRACTION)
}

/// The activation of tanh, which has 15 fraction bits.
pub fn tanh(values: &[i32]) -> Vec<u8> {
    activate(values.len(), |k| ops::tanh(values[k]), 1 << 15, -15 - 15)
}

/// A head's rotation: its pairs are neighbours; `turns` as its line.
pub fn rotate(head: &[i32], turns: &[u8]) -> Vec<i32> {
    let pairs = head.chunks_exact(2).enumerate().flat_map(|(pair, values)| {
        let [a, b] = [i64::from(values[0]), i64::from(values[1])];
        let [c, s] = [i64::from(i16_at(turns, 4 * pair)), i64::from(i16_at(turns, 4 * pair + 2))];
        [clamp(round_shift(a * c - b * s, 14)), clamp(round_shift(a * s + b * c, 14))]
    });
    pairs.collect()
}

/// A head's mantissas and scale.
pub fn store(head: &[i32]) -> (u16, Vec<u8>) {
    let largest = head.iter().map(|value| value.unsigned_abs()).max().unwrap_or(0).min(STORED as u32);
    let scale = (largest * 16).div_ceil(MANTISSA as u32).max(1);
    let nearest = |&value: &i32| {
        let value = value.clamp(-STORED, STORED);
        round_divide(i64::from(value) * 16, scale.into()) as u8
    };
    (scale as u16, head.iter().map(nearest).collect())
}

/// A row of weights as numbers with 10 fraction bits.
pub fn embed(row: &[u8], scale: u16, exponent: i32) -> impl Iterator<Item = i32> + '_ {
    row.iter().map(move |&weight| {
        let value = round_shift(i64::from(weight as i8) * i64::from(scale), -(exponent + FRACTION));
        value.clamp((-RESIDUAL).into(), RESIDUAL.into()) as i32
    })
}
