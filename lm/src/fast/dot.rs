//! Sums of products, as the processor has them: each comes to what the plain loop comes to.

/// What a processor multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Loops that every processor runs.
    Plain,
    /// 256 bits of x86-64.
    Avx2,
    /// 512 bits of x86-64, with sums of pairs of products.
    Avx512,
}

impl Instructions {
    /// The best that this processor has.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Plain)
    }

    /// All that this processor has.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "others have nothing else"))]
        let mut all = vec![Self::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2");
            if avx2 {
                all.push(Self::Avx2);
            }
            let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            if avx2 && wide && is_x86_feature_detected!("avx512vnni") {
                all.push(Self::Avx512);
            }
        }
        all
    }

    /// The processor is asked here, and not where the instructions run.
    ///
    /// # Panics
    /// If this processor does not have them.
    pub fn present(self) -> Present {
        assert!(
            Self::available().contains(&self),
            "this processor has no {self:?}: give one of Instructions::available()"
        );
        Present(self)
    }
}

/// Instructions that this processor was seen to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present(Instructions);

impl Present {
    /// The best that this processor has.
    pub fn best() -> Self {
        Self(Instructions::best())
    }

    /// Which they are.
    #[inline]
    pub fn get(self) -> Instructions {
        self.0
    }
}

/// Σ w · x of a row of weights and an input.
///
/// # Panics
/// If they differ in length, or have no whole blocks of 32; where integers are checked, if a sum leaves 32 bits.
#[inline]
pub fn one(instructions: Present, weights: &[i8], input: &[i16]) -> i32 {
    let [sum] = many(instructions, weights, [input]);
    sum
}

/// The same of four inputs, which share the row.
///
/// # Panics
/// As [`one`].
#[inline]
pub fn four(instructions: Present, weights: &[i8], inputs: [&[i16]; 4]) -> [i32; 4] {
    many(instructions, weights, inputs)
}

#[inline]
fn many<const N: usize>(instructions: Present, weights: &[i8], inputs: [&[i16]; N]) -> [i32; N] {
    let fits = weights.len().is_multiple_of(32) && inputs.iter().all(|input| input.len() == weights.len());
    assert!(fits, "inputs are as long as rows, whole blocks");
    match instructions.get() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has it, as `Present` says; the lengths were looked at.
        Instructions::Avx2 => unsafe { x86::avx2(weights, inputs) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx512 => unsafe { x86::avx512(weights, inputs) },
        _ => inputs.map(|input| weights.iter().zip(input).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// The processor has AVX2; the inputs are as long as the weights, a multiple of 32.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2<const N: usize>(weights: &[i8], inputs: [&[i16]; N]) -> [i32; N] {
        let mut sums = [_mm256_setzero_si256(); N];
        for at in (0..weights.len()).step_by(16) {
            // SAFETY: 16 weights, and 16 values of each input, lie from `at` on.
            let row = unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(weights.as_ptr().add(at).cast())) };
            for (sum, input) in sums.iter_mut().zip(inputs) {
                // SAFETY: as above.
                let values = unsafe { _mm256_loadu_si256(input.as_ptr().add(at).cast()) };
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(row, values));
            }
        }
        sums.map(|sum| {
            let half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
            let quarter = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
            _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32::<0b10_11_00_01>(quarter)))
        })
    }

    /// # Safety
    /// The processor has AVX-512 with BW and VNNI; the inputs are as long as the weights, a multiple of 32.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn avx512<const N: usize>(weights: &[i8], inputs: [&[i16]; N]) -> [i32; N] {
        let mut sums = [_mm512_setzero_si512(); N];
        for at in (0..weights.len()).step_by(32) {
            // SAFETY: 32 weights, and 32 values of each input, lie from `at` on.
            let row = unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(weights.as_ptr().add(at).cast())) };
            for (sum, input) in sums.iter_mut().zip(inputs) {
                // SAFETY: as above.
                let values = unsafe { _mm512_loadu_si512(input.as_ptr().add(at).cast()) };
                *sum = _mm512_dpwssd_epi32(*sum, row, values);
            }
        }
        sums.map(|sum| _mm512_reduce_add_epi32(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Activation, LARGEST_SUM, dot};
    use proptest::prelude::*;

    fn wide(activation: &Activation) -> Vec<i16> {
        super::super::Wide::new(activation.clone()).values
    }

    proptest! {
        #[test]
        fn every_way_of_adding_comes_to_the_same(
            weights in prop::collection::vec(-127i8..=127, 96..=96),
            mantissas in prop::collection::vec(prop::collection::vec(-127i8..=127, 96..=96), 4),
            shifts in prop::collection::vec(0..=8u8, 12),
        ) {
            let inputs: Vec<Activation> = mantissas
                .into_iter()
                .zip(shifts.chunks(3))
                .map(|(mantissas, shifts)| Activation { mantissas, shifts: shifts.to_vec(), scale: 1 << 15, exponent: 0 })
                .collect();
            let plain: Vec<i32> = inputs.iter().map(|input| dot(&weights, input)).collect();
            let wide: Vec<Vec<i16>> = inputs.iter().map(wide).collect();
            for instructions in Instructions::available().into_iter().map(Instructions::present) {
                let sums = four(instructions, &weights, [&wide[0], &wide[1], &wide[2], &wide[3]]);
                prop_assert_eq!(&sums[..], &plain[..], "{:?}", instructions);
                prop_assert_eq!(one(instructions, &weights, &wide[2]), plain[2]);
            }
        }
    }

    #[test]
    fn the_largest_sums_fit() {
        let columns = LARGEST_SUM as usize / 127 / 32 * 32;
        let input = vec![127 << 8; columns];
        for sign in [1, -1] {
            let weights = vec![sign * 127; columns];
            for instructions in Instructions::available().into_iter().map(Instructions::present) {
                let exact = i64::from(sign) * 127 * 127 * 256 * columns as i64;
                assert_eq!(i64::from(one(instructions, &weights, &input)), exact, "{instructions:?}");
            }
        }
    }
}
