use super::*;
use crate::quantise;
use crate::tables::Rope;
use proptest::prelude::*;
use proptest::test_runner::Config;

/// What an activation stands for.
fn values_of(activation: &Activation) -> Vec<f64> {
    let unit = f64::from(activation.scale) * 2f64.powi(activation.exponent);
    let shifted = activation.mantissas.chunks(BLOCK).zip(&activation.shifts);
    shifted
        .flat_map(|(block, &shift)| block.iter().map(move |&m| f64::from(i32::from(m) << shift) * unit))
        .collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

fn fixed(values: &[i32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value) / 1024.0).collect()
}

fn stored(token: &Stored) -> Vec<f64> {
    token.mantissas.iter().map(|&m| f64::from(m) * f64::from(token.scale) / 16.0 / 1024.0).collect()
}

#[test]
fn no_row_that_is_taken_overflows() {
    let row: Vec<i8> = (0..LARGEST_SUM / 127).map(|_| 127).collect();
    let activation = Activation {
        mantissas: vec![127; row.len()],
        shifts: vec![8; row.len().div_ceil(BLOCK)],
        scale: 1 << 15,
        exponent: 0,
    };
    // An addition that overflows panics here.
    assert_eq!(i64::from(dot(&row, &activation)), 127 * 127 * 256 * row.len() as i64);
    let less: Vec<i8> = row.iter().map(|&w| -w).collect();
    assert!(dot(&less, &activation) < 0);
    assert!((LARGEST_SUM + 1) * 127 * 256 > i32::MAX as u64, "no smaller bound would do");
}

/// What docs/engine.md promises of the largest shape that is taken: no sum leaves 64 bits.
#[test]
fn nothing_leaves_64_bits() {
    let largest = store(&[i32::MAX; 32]);
    assert_eq!((largest.scale, largest.mantissas[0]), (65_535, 127));
    assert_eq!(store(&[i32::MIN; 32]).mantissas[0], -127);
    // As many tokens as a context has, each with the largest weight, in the block whose sum is shifted furthest.
    let mut attended = Attended::new(32);
    let (scores, values) = ([15 << 8; BLOCK], vec![&largest; BLOCK]);
    for _ in 0..65_536 / BLOCK {
        attended.add(&scores, &values);
    }
    assert_eq!(attended.mean(), [STORED; 32]);
    let sum = (255i128 << 15) * 65_536 * 65_535 * 127;
    assert!(2 * sum + (16 * 255i128 << 31) < 1 << 63 && 4 * sum > 1 << 63, "no larger context would do");
    // Scores of the widest heads.
    for (width, sign) in [(32, 1), (256, 1), (256, -1)] {
        let [query, key] = [store(&vec![i32::MAX; width]), store(&vec![sign * i32::MAX; width])];
        let exact = i128::from(sign) * 127 * 127 * width as i128 * 65_535 * 65_535;
        let exact = ((exact + 8) >> 4) * i128::from(score_factor(width));
        let exact = (exact + (1 << 31)) >> 32;
        assert_eq!(i128::from(score(&query, &key, score_factor(width))), exact);
        assert!(exact.abs() < 1 << 31);
    }
    // Squares of the widest stream.
    let gain = quantise::gain(&[1.0; 4096]).unwrap();
    let held = values_of(&normalise(&[RESIDUAL; 4096], &gain, (1 << 20) - 1));
    assert!(held.iter().all(|x| (x - 1.0).abs() < 0.01), "{held:?}");
    assert!(u64::try_from(4096 * i128::from(RESIDUAL).pow(2) + 2048).is_ok());
}

proptest! {
    #![proptest_config(Config::with_cases(200))]

    #[test]
    fn an_activation_is_near(values in prop::collection::vec(-(1i64 << 40)..1i64 << 40, 96), small in 0..40u32) {
        // One block far below the others.
        let values: Vec<i64> = values.iter().enumerate().map(|(k, &v)| if k < 32 { v >> small } else { v }).collect();
        let activation = activate(&values, 1 << 15, -15);
        let held = values_of(&activation);
        let largest = values.iter().map(|v| v.abs()).max().unwrap() as f64;
        for (block, held) in values.chunks(32).zip(held.chunks(32)) {
            let most = block.iter().map(|v| v.abs()).max().unwrap() as f64;
            for (&value, &held) in block.iter().zip(held) {
                let bound = most / 127.0 * 1.01 + largest / 16_383.0;
                prop_assert!((value as f64 - held).abs() <= bound, "{} for {}, bound {}", held, value, bound);
            }
        }
        prop_assert!(activation.shifts.iter().all(|&shift| u32::from(shift) <= SHIFT));
    }

    #[test]
    fn order_does_not_matter(weights in prop::collection::vec(-127i8..=127, 128), seed in any::<u64>()) {
        let x: Vec<i64> = (0..128u64).map(|k| ((seed ^ k).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i64 - (1 << 23)).collect();
        let activation = activate_plain(&x);
        let whole = dot(&weights, &activation);
        // Blocks backwards, and split in two.
        let mut backwards = activation.clone();
        backwards.mantissas.reverse();
        backwards.shifts.reverse();
        let mut reversed = weights.clone();
        reversed.reverse();
        prop_assert_eq!(dot(&reversed, &backwards), whole);
        let part = |range: std::ops::Range<usize>| {
            let part = Activation {
                mantissas: activation.mantissas[range.clone()].to_vec(),
                shifts: activation.shifts[range.start / 32..range.end / 32].to_vec(),
                ..activation.clone()
            };
            dot(&weights[range], &part)
        };
        prop_assert_eq!(part(64..128) + part(0..64), whole);
    }

    #[test]
    fn a_product_is_near(values in prop::collection::vec(-2f32..2.0, 4 * 64), x in prop::collection::vec(-(1i64 << 20)..1i64 << 20, 64)) {
        let matrix = quantise::matrix(&values, 64).unwrap();
        let exact: Vec<f64> = values
            .chunks(64)
            .map(|row| row.iter().zip(&x).map(|(&w, &x)| f64::from(w) * x as f64 / 1024.0).sum())
            .collect();
        let held = fixed(&multiply(&matrix, &activate_plain(&x)));
        let size = norm(&x.iter().map(|&x| x as f64 / 1024.0).collect::<Vec<_>>()) * 2.0;
        prop_assert!(distance(&exact, &held) < 0.05 * size + 0.01, "{:?} for {:?}", held, exact);
    }

    #[test]
    fn a_vector_is_normalised(x in prop::collection::vec(-(1i32 << 24)..1 << 24, 64), down in 0..20u32) {
        let x: Vec<i32> = x.iter().map(|x| x >> down).collect();
        let gain: Vec<f32> = (0..64).map(|k| 0.5 + k as f32 / 40.0).collect();
        let held = values_of(&normalise(&x, &quantise::gain(&gain).unwrap(), 10));
        let values = fixed(&x);
        let root = (values.iter().map(|x| x * x).sum::<f64>() / 64.0 + 10.0 / 1_048_576.0).sqrt();
        let exact: Vec<f64> = values.iter().zip(&gain).map(|(x, &g)| x / root * f64::from(g)).collect();
        prop_assert!(distance(&exact, &held) <= 0.03 * norm(&exact) + 1e-9, "{:?} for {:?}", held, exact);
    }

    #[test]
    fn a_turn_keeps_lengths(head in prop::collection::vec(-(1i32 << 17)..1 << 17, 64), position in 0..64usize) {
        let rope = Rope::of(10_000.0, 64, 64);
        let mut turned = head.clone();
        rotate(&mut turned, rope.at(position));
        let (before, after) = (norm(&fixed(&head)), norm(&fixed(&turned)));
        prop_assert!((before - after).abs() <= 1e-3 * before + 0.01);
        if position == 0 {
            prop_assert_eq!(head, turned);
        }
    }

    #[test]
    fn a_stored_vector_is_near(head in prop::collection::vec(-(1i32 << 17)..1 << 17, 64)) {
        let largest = head.iter().map(|x| x.abs()).max().unwrap();
        for (held, &value) in stored(&store(&head)).iter().zip(&head) {
            prop_assert!((held * 1024.0 - f64::from(value)).abs() <= f64::from(largest) / 127.0 * 0.51 + 0.1);
        }
    }

    /// Blocks in any order, as a device that splits a sequence adds them, come to the same bits.
    #[test]
    fn attention_is_near_and_knows_no_order(seed in any::<u64>(), tokens in 1..200usize, spread in 1..2000i64) {
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i64
        };
        // Blocks lie up to 40 powers of 2 apart, so that all that may become of their bins does.
        let apart: Vec<i64> = (0..tokens.div_ceil(BLOCK)).map(|_| draw() % 10_240 - 5120).collect();
        let scores: Vec<i64> = (0..tokens).map(|at| apart[at / BLOCK] + draw() % (2 * spread) - spread).collect();
        let values: Vec<Stored> = (0..tokens).map(|_| store(&[0; 32].map(|_| (draw() % 40_000) as i32 - 20_000))).collect();
        let blocks: Vec<(&[i64], Vec<&Stored>)> =
            scores.chunks(BLOCK).zip(values.chunks(BLOCK)).map(|(s, v)| (s, v.iter().collect())).collect();
        let mean = |order: &mut dyn Iterator<Item = &(&[i64], Vec<&Stored>)>| {
            let mut attended = Attended::new(32);
            for (scores, values) in order {
                attended.add(scores, values);
            }
            attended.mean()
        };
        let forwards = mean(&mut blocks.iter());
        prop_assert_eq!(&forwards, &mean(&mut blocks.iter().rev()));
        // Split in three, each from the middle outwards, and joined in any order.
        let parts = [0, 1, 2].map(|part| {
            let mut attended = Attended::new(32);
            let mine: Vec<_> = blocks.iter().skip(part).step_by(3).collect();
            let (front, back) = mine.split_at(mine.len() / 2);
            front.iter().rev().chain(back).for_each(|(scores, values)| attended.add(scores, values));
            attended
        });
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let mut all = Attended::new(32);
            order.iter().for_each(|&part| all.join(&parts[part]));
            prop_assert_eq!(&forwards, &all.mean());
        }
        let weights: Vec<f64> = scores.iter().map(|&s| 2f64.powf(s as f64 / 256.0)).collect();
        let all: f64 = weights.iter().sum();
        let exact: Vec<f64> = (0..32)
            .map(|c| weights.iter().zip(&values).map(|(w, v)| w * stored(v)[c]).sum::<f64>() / all)
            .collect();
        prop_assert!(distance(&exact, &fixed(&forwards)) <= 0.02 * 20.0 * 32f64.sqrt(), "{:?} for {:?}", fixed(&forwards), exact);
    }

    #[test]
    fn swish_is_near(x in -(40i32 << 10)..40 << 10) {
        let exact = f64::from(x) / 1024.0 / (1.0 + (-f64::from(x) / 1024.0).exp());
        prop_assert!((f64::from(swish(x)) / 1024.0 - exact).abs() < 0.02, "{} for {}", f64::from(swish(x)) / 1024.0, exact);
    }
}

#[test]
fn a_score_is_a_power_of_two() {
    // q . k / 8 = 2: e^2 = 2^2.885.
    let mut query = [0; 64];
    let mut key = [0; 64];
    query[5] = 4 << 10;
    key[5] = 4 << 10;
    let held = score(&store(&query), &store(&key), score_factor(64));
    assert!((held as f64 / 256.0 - 2.0 / std::f64::consts::LN_2).abs() < 0.02, "{held}");
    assert_eq!(score_factor(64), 11_819);
    assert_eq!(score_factor(32), 16_714);
}
