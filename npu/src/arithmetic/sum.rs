//! What the GEMV engine does: a row of 8-bit weights times an activation, 64 products a beat.

use doorbell_lm::fast::dot::{self, Present};
use doorbell_lm::number::{FRACTION, clamp, round_shift};
use doorbell_lm::ops::BLOCK;

use super::Speed;
use crate::layout::{self, LINE, i16_at, u16_at};

/// An activation in the multipliers' registers: the preamble of a GEMV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// 2^15 to 2^16 - 1.
    pub scale: u16,
    /// Of the whole vector.
    pub exponent: i16,
    /// Of each block of 32 channels; four bits count.
    shifts: Vec<u8>,
    mantissas: Vec<i8>,
    /// Mantissas, shifted, if they all fit.
    shifted: Option<Vec<i16>>,
}

impl Prepared {
    /// The activation of `count` channels in these lines.
    pub fn of(lines: &[u8], count: usize) -> Self {
        let shifts: Vec<u8> = lines[LINE..][..count / BLOCK].iter().map(|shift| shift & 15).collect();
        let first = LINE * (1 + layout::shifts(count as u64) as usize);
        let mantissas: Vec<i8> = lines[first..][..count].iter().map(|&mantissa| mantissa as i8).collect();
        let fits = shifts.iter().all(|&shift| shift <= 8);
        let blocks = || mantissas.chunks(BLOCK).zip(&shifts);
        let shifted = fits.then(|| {
            blocks().flat_map(|(block, &shift)| block.iter().map(move |&m| i16::from(m) << shift)).collect()
        });
        Self { scale: u16_at(lines, 0), exponent: i16_at(lines, 2), shifts, mantissas, shifted }
    }

    fn plain(&self, row: &[u8]) -> i32 {
        let blocks = row.chunks(BLOCK).zip(self.mantissas.chunks(BLOCK)).zip(&self.shifts);
        blocks.fold(0i32, |sum, ((weights, mantissas), &shift)| {
            let products = weights.iter().zip(mantissas).map(|(&w, &m)| i32::from(w as i8) * i32::from(m));
            sum.wrapping_add(products.sum::<i32>().wrapping_shl(shift.into()))
        })
    }
}

/// The multipliers with the activations of a gang in their registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipliers {
    /// Of each context.
    pub activations: Vec<Prepared>,
    instructions: Option<Present>,
}

impl Multipliers {
    /// With these activations.
    pub fn new(activations: Vec<Prepared>, speed: Speed) -> Self {
        // Products of what does not fit 16 bits go one by one.
        let fit = activations.iter().all(|activation| activation.shifted.is_some());
        let instructions = (speed == Speed::Fast && fit).then(Present::best);
        Self { activations, instructions }
    }

    /// The sums of a row of weights with each activation, in place of what `sums` holds.
    pub fn row(&self, row: &[u8], sums: &mut Vec<i32>) {
        sums.clear();
        let Some(instructions) = self.instructions else {
            sums.extend(self.activations.iter().map(|activation| activation.plain(row)));
            return;
        };
        let (weights, wide) =
            (signed(row), |at: usize| self.activations[at].shifted.as_deref().unwrap_or(&[]));
        let fours = self.activations.len() / 4 * 4;
        for at in (0..fours).step_by(4) {
            let four = std::array::from_fn(|place| wide(at + place));
            sums.extend(dot::four(instructions, weights, four));
        }
        sums.extend((fours..self.activations.len()).map(|at| dot::one(instructions, weights, wide(at))));
    }
}

fn signed(row: &[u8]) -> &[i8] {
    // SAFETY: elements of both are one byte, of which any is one of each.
    unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), row.len()) }
}

/// What a row's sum is multiplied by: 24 bits, and how far the product is shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    exponent: i32,
}

impl Factor {
    /// For a matrix with this exponent, and an activation.
    pub fn new(matrix: i16, activation: &Prepared) -> Self {
        Self { exponent: i32::from(matrix) + i32::from(activation.exponent) }
    }

    /// A row's sum as a number with 10 fraction bits.
    pub fn requantise(self, sum: i32, row: u16, activation: &Prepared) -> i32 {
        let factor = (i64::from(row) * i64::from(activation.scale)) >> 8;
        clamp(round_shift(i64::from(sum) * factor, -(self.exponent + 8 + FRACTION)))
    }
}
