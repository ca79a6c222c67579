//! The attention of one head to what came before, with sums of 32 bits wherever they suffice.

#[cfg(any(target_arch = "x86_64", test))]
use super::dot::Instructions;
use super::dot::Present;
use crate::ops::{Attended, BLOCK, Stored, score_factor, score_of};
use crate::shape::Seen;
use crate::tables::weight_of;

/// The mean of the values that the token at a position sees, by the scores of their keys; both are given from position 0 on.
pub(super) fn attend(
    instructions: Present,
    query: &Stored,
    keys: &[Stored],
    values: &[Stored],
    seen: (Seen, usize),
) -> Vec<i32> {
    match instructions.get() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX2, as `Present` says of both.
        Instructions::Avx2 | Instructions::Avx512 => unsafe { avx2(query, keys, values, seen) },
        _ => plain(query, keys, values, seen),
    }
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(query: &Stored, keys: &[Stored], values: &[Stored], seen: (Seen, usize)) -> Vec<i32> {
    plain(query, keys, values, seen)
}

#[inline(always)]
fn plain(query: &Stored, keys: &[Stored], values: &[Stored], seen: (Seen, usize)) -> Vec<i32> {
    let width = query.mantissas.len();
    let factor = score_factor(width);
    let wide: Vec<i16> = query.mantissas.iter().map(|&m| m.into()).collect();
    let mut attended = Attended::new(width);
    let mut sums = vec![0i32; width];
    // Blocks of absolute positions, of which the window's first may be seen in part.
    let (seen, position) = seen;
    for block in seen.blocks(position) {
        let (keys, values) = (&keys[block.clone()], &values[block]);
        let mut scores = [0i64; BLOCK];
        for (score, key) in scores.iter_mut().zip(keys) {
            let dot: i32 = wide.iter().zip(&key.mantissas).map(|(&q, &k)| i32::from(q) * i32::from(k)).sum();
            *score = score_of(dot.into(), query, key, factor);
        }
        let scores = &scores[..keys.len()];
        let largest = scores.iter().copied().fold(i64::MIN, i64::max);
        let ceiling = (largest + 255) >> 8;
        let Some(bin) = attended.bin(ceiling >> 4) else { continue };
        let up = ceiling & 15;
        let mut weights = [0i64; BLOCK];
        let mut all = 0;
        for ((weight, &score), value) in weights.iter_mut().zip(scores).zip(values) {
            let share = weight_of((ceiling << 8) - score);
            bin.weight += share << up;
            *weight = share * i64::from(value.scale);
            all += *weight;
        }
        let weighted = || weights.iter().zip(values).filter(|(weight, _)| **weight != 0);
        // A mantissa that is read from memory may be -128.
        if all * 128 <= i64::from(i32::MAX) {
            sums.fill(0);
            for (&weight, value) in weighted() {
                for (sum, &mantissa) in sums.iter_mut().zip(&value.mantissas) {
                    *sum += weight as i32 * i32::from(mantissa);
                }
            }
            for (total, &sum) in bin.values.iter_mut().zip(&sums) {
                *total += i64::from(sum) << up;
            }
        } else {
            for (&weight, value) in weighted() {
                for (total, &mantissa) in bin.values.iter_mut().zip(&value.mantissas) {
                    *total += (weight * i64::from(mantissa)) << up;
                }
            }
        }
    }
    attended.mean()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{score, store};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_way_of_attending_comes_to_the_same(seed in any::<u64>(), tokens in 1..150usize, large in 1..26u32, first in 0..150usize, sinks in 0..4usize) {
            let mut state = seed;
            let mut head = |large: u32| {
                let values: Vec<i32> = (0..64)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) as i32 % (1 << large)
                    })
                    .collect();
                store(&values)
            };
            let query = head(13);
            let keys: Vec<Stored> = (0..tokens).map(|_| head(13)).collect();
            let values: Vec<Stored> = (0..tokens).map(|_| head(large)).collect();
            let first = first % tokens;
            let sinks = (sinks * BLOCK).min(first / BLOCK * BLOCK);
            let mut expected = Attended::new(64);
            for block in 0..tokens.div_ceil(BLOCK) {
                let seen = || (block * BLOCK..tokens.min((block + 1) * BLOCK)).filter(|&at| at < sinks || at >= first);
                let scores: Vec<i64> = seen().map(|at| score(&query, &keys[at], score_factor(64))).collect();
                if scores.is_empty() {
                    continue;
                }
                expected.add(&scores, &seen().map(|at| &values[at]).collect::<Vec<_>>());
            }
            for instructions in Instructions::available().into_iter().map(Instructions::present) {
                let seen = (Seen { sinks, first }, tokens - 1);
                prop_assert_eq!(attend(instructions, &query, &keys, &values, seen), expected.mean());
            }
        }
    }
}
