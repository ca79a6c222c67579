//! The engines' arithmetic against the operators of crate `lm`, and the fast loops against the plain ones.

mod gemma;

use super::*;
use crate::layout::{self, Block, LINE, i16_at, u16_at, whole};
use doorbell_lm::ops::{self, Activation, Attended, Stored};
use doorbell_lm::{Gain, Matrix};
use proptest::prelude::*;

/// An activation's lines, as crate `lm` has it.
fn read(lines: &[u8], count: usize) -> Activation {
    assert_eq!(lines.len() as u64, layout::activation(count as u64) * LINE as u64);
    assert!(lines[4..LINE].iter().all(|&byte| byte == 0), "the rest of the head is 0");
    let first = LINE * (1 + layout::shifts(count as u64) as usize);
    assert!(lines[LINE + count / 32..first].iter().all(|&byte| byte == 0), "the rest of the shifts is 0");
    assert!(lines[first + count..].iter().all(|&byte| byte == 0), "the rest of the mantissas is 0");
    Activation {
        mantissas: lines[first..][..count].iter().map(|&byte| byte as i8).collect(),
        shifts: lines[LINE..][..count / 32].to_vec(),
        scale: u16_at(lines, 0),
        exponent: i16_at(lines, 2).into(),
    }
}

/// Numbers of all sizes: residuals, and what is near the bounds.
fn number() -> impl Strategy<Value = i32> {
    (any::<i32>(), 0..32u32).prop_map(|(value, down)| value >> down)
}

fn residual() -> impl Strategy<Value = i32> {
    number().prop_map(|value| value.clamp(-RESIDUAL, RESIDUAL))
}

fn vector(blocks: usize) -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(number(), 32 * blocks)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn activations_are_those_of_lm(values in (1..5usize).prop_flat_map(vector)) {
        let wide: Vec<i64> = values.iter().map(|&value| value.into()).collect();
        prop_assert_eq!(read(&plain(&values), values.len()), ops::activate_plain(&wide));
    }

    #[test]
    fn gates_are_those_of_lm((gate, up) in (1..70usize).prop_flat_map(|blocks| (vector(blocks), vector(blocks)))) {
        let products: Vec<i64> = gate.iter().zip(&up).map(|(&gate, &up)| ops::product(ops::swish(gate), up)).collect();
        prop_assert_eq!(read(&swiglu(&gate, &up), gate.len()), ops::activate_plain(&products));
    }

    #[test]
    fn norms_are_those_of_lm(
        x in prop::collection::vec(number(), 64),
        factors in prop::collection::vec(any::<i16>(), 64),
        exponent in -100..100i16,
        epsilon in 0..1u32 << 20,
    ) {
        let data = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        let lines = [whole(exponent.to_le_bytes().to_vec()), whole(data)].concat();
        let gain = Gain { factors, exponent: exponent.into() };
        prop_assert_eq!(read(&normalise(&x, &lines, epsilon), 64), ops::normalise(&x, &gain, epsilon));
    }

    #[test]
    fn turns_and_stores_are_those_of_lm(head in vector(1), turns in prop::collection::vec(any::<[i16; 2]>(), 16)) {
        let mut turned = head.clone();
        ops::rotate(&mut turned, &turns);
        let line: Vec<u8> = turns.concat().into_iter().flat_map(i16::to_le_bytes).collect();
        prop_assert_eq!(rotate(&head, &line), turned);
        let expected = ops::store(&head);
        let (scale, mantissas) = store(&head);
        prop_assert_eq!(u32::from(scale), expected.scale);
        prop_assert!(mantissas.iter().zip(expected.mantissas).all(|(&found, expected)| found as i8 == expected));
    }

    #[test]
    fn products_are_those_of_lm(values in vector(3), weights in prop::collection::vec(-127i8..=127, 2 * 96), rows in any::<[u16; 2]>(), exponent in -40..10i32) {
        let matrix = Matrix { columns: 96, weights, rows: rows.to_vec(), exponent };
        let lines = plain(&values);
        let prepared = vec![Prepared::of(&lines, 96); 6];
        let expected = ops::multiply(&matrix, &read(&lines, 96));
        for speed in [Speed::Plain, Speed::Fast] {
            for row in 0..2 {
                let bytes: Vec<u8> = matrix.row(row).iter().map(|&weight| weight as u8).collect();
                let (multipliers, mut sums) = (Multipliers::new(prepared.clone(), speed), vec![]);
                multipliers.row(&bytes, &mut sums);
                prop_assert_eq!(sums.len(), 6);
                let factor = Factor::new(exponent as i16, &prepared[0]);
                for sum in sums {
                    prop_assert_eq!(factor.requantise(sum, rows[row], &prepared[0]), expected[row]);
                }
            }
        }
    }

    /// Whatever a context's memory holds.
    #[test]
    fn fast_sums_are_the_plain_ones_of_any_bytes(
        contexts in prop::collection::vec(prop::collection::vec(any::<u8>(), 5 * LINE), 1..10),
        row in prop::collection::vec(any::<u8>(), 160),
        sound in any::<bool>(),
    ) {
        let prepared = |mut lines: Vec<u8>| {
            if sound {
                lines[LINE..][..5].iter_mut().for_each(|shift| *shift %= 9);
            }
            Prepared::of(&lines, 160)
        };
        let prepared: Vec<Prepared> = contexts.into_iter().map(prepared).collect();
        let [plain, fast] = [Speed::Plain, Speed::Fast].map(|speed| {
            let mut sums = vec![];
            Multipliers::new(prepared.clone(), speed).row(&row, &mut sums);
            sums
        });
        prop_assert_eq!(plain.len(), prepared.len());
        prop_assert_eq!(plain, fast);
    }

    #[test]
    fn attention_is_that_of_lm(
        query in prop::collection::vec(-127i8..=127, 32),
        scales in prop::collection::vec((1..=u16::MAX, 1..=u16::MAX), 1..100),
        small in 0..16u32,
        seed in any::<u64>(),
    ) {
        let mut state = seed;
        let mut mantissas = || -> Vec<i8> {
            (0..32).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 56) as i8).max(-127)
            }).collect()
        };
        let stored = |scale: u16, mantissas| Stored { mantissas, scale: u32::from(scale >> small).max(1) };
        let tokens: Vec<[Stored; 2]> =
            scales.iter().map(|&(key, value)| [stored(key, mantissas()), stored(value, mantissas())]).collect();
        let query = stored(30_000, query);
        let factor = ops::score_factor(32);
        let mut expected = Attended::new(32);
        let bytes: Vec<u8> = query.mantissas.iter().map(|&mantissa| mantissa as u8).collect();
        let registers = Query { mantissas: &bytes, scale: query.scale as u16, factor };
        let mut joined = [Joined::new(32), Joined::new(32)];
        for tokens in tokens.chunks(32) {
            let scores: Vec<i64> = tokens.iter().map(|[key, _]| ops::score(&query, key, factor)).collect();
            expected.add(&scores, &tokens.iter().map(|[_, value]| value).collect::<Vec<_>>());
            let place = Block { width: 32 };
            let mut block = vec![0xA5; place.bytes() as usize];
            for (token, pair) in (0..).zip(tokens) {
                for (part, stored) in (0..).zip(pair) {
                    let at = place.scale(part, token) as usize;
                    block[at..at + 2].copy_from_slice(&(stored.scale as u16).to_le_bytes());
                    let at = place.mantissas(part, token) as usize;
                    for (byte, &mantissa) in block[at..].iter_mut().zip(&stored.mantissas) {
                        *byte = mantissa as u8;
                    }
                }
            }
            joined[0].add(&registers, &block, 0..tokens.len() as u64, Speed::Plain);
            joined[1].add(&registers, &block, 0..tokens.len() as u64, Speed::Fast);
        }
        prop_assert_eq!(joined[0].mean().collect::<Vec<_>>(), expected.mean());
        prop_assert_eq!(joined[1].mean().collect::<Vec<_>>(), expected.mean());
    }
}

#[test]
fn sums_stay_within_their_bounds() {
    assert_eq!(add(RESIDUAL, 1), RESIDUAL);
    assert_eq!(add(i32::MIN, i32::MIN), -RESIDUAL);
    assert_eq!(add(3, -5), -2);
    assert_eq!(multiply(1536, -1024), -1536);
    assert_eq!(multiply(i32::MIN, i32::MIN), i32::MAX);
    assert_eq!(Joined::new(2).mean().collect::<Vec<_>>(), [0, 0], "of nothing");
}
