use super::*;
use crate::quantise;
use crate::tables::Rope;
use crate::weights::Gain;
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
    assert!(2 * sum + ((16 * 255i128) << 31) < 1 << 63 && 4 * sum > 1 << 63, "no larger context would do");
    // Scores of the widest heads.
    for (width, sign) in [(32, 1), (256, 1), (256, -1)] {
        let [query, key] = [store(&vec![i32::MAX; width]), store(&vec![sign * i32::MAX; width])];
        let exact = i128::from(sign) * 127 * 127 * width as i128 * 65_535 * 65_535;
        let exact = ((exact + 8) >> 4) * i128::from(score_factor(width));
        let exact = (exact + (1 << 31)) >> 32;
        assert_eq!(i128::from(score(&query, &key, score_factor(width))), exact);
        assert!(exact.abs() < 1 << 31);
    }
    // The widest gate, half of it at each end: no larger variance is there, and 65 bits would be too many.
    let most = (1 << 24) - 1;
    let ends: Vec<i32> = (0..1 << 16).map(|at| if at % 2 == 0 { i32::MAX } else { i32::MIN }).collect();
    assert!(i128::from(most).pow(2) * (1 << 16) + (1 << 15) < 1 << 64 && 1i128 << (48 + 16) >= 1 << 64);
    assert_eq!(cut(&ends, crate::CUT).iter().filter(|&&x| x == 0).count(), 1 << 16);
    assert_eq!(cut(&ends, 0)[..2], [most, 0]);
    // With one apart from all others the mean is as far off as it can be.
    let mut apart = vec![i32::MIN; 1 << 16];
    apart[7] = i32::MAX;
    assert_eq!(cut(&apart, crate::CUT).iter().filter(|&&x| x > 0).count(), 1);
    // Streams and coefficients at their bounds.
    for (sign, coefficient) in [(1, i32::MAX), (-1, i32::MAX), (1, i32::MIN), (-1, i32::MIN)] {
        let streams = vec![vec![sign * RESIDUAL; 2]; 4];
        let sum = i128::from(sign * RESIDUAL) * i128::from(coefficient) * 4;
        assert!(sum.abs() < 1 << 60);
        let exact = i128::from(sign * RESIDUAL) + ((sum + 512) >> 10);
        let bounded = exact.clamp((-RESIDUAL).into(), RESIDUAL.into());
        assert_eq!(i128::from(predict(&streams, &[coefficient; 16])[2][1]), bounded);
        for found in [i32::MIN, -RESIDUAL, RESIDUAL, i32::MAX] {
            let mut corrected = streams.clone();
            correct(&mut corrected, &[found; 2], &[coefficient; 4]);
            let news = i128::from(found) - i128::from(sign * RESIDUAL);
            let exact = i128::from(sign * RESIDUAL) + news + ((news * i128::from(coefficient) + 512) >> 10);
            let bounded = exact.clamp((-RESIDUAL).into(), RESIDUAL.into());
            assert_eq!(corrected.iter().map(|x| i128::from(x[0])).collect::<Vec<_>>(), [bounded; 4]);
        }
    }
    // Levelled and rescaled: the least beside the largest, with whatever exponent an image may have.
    for exponent in [-100, -15, 0, 100] {
        let gain = Gain { factors: vec![i16::MIN, i16::MAX], exponent };
        for x in [[i32::MIN, i32::MAX], [1, 0], [0, 0], [i32::MIN, 0]] {
            for epsilon in [0, 1, (1 << 20) - 1] {
                let (root, up) = root_mean_square(&x, epsilon);
                let exact = |at: usize| {
                    let bounded = i128::from(within(x[at].into()));
                    let product = bounded * i128::from(gain.factors[at]) * i128::from(inverse(root));
                    assert!(product.abs() < 1 << 58);
                    let shift = 36 - exponent - up / 2;
                    let result = if shift > 0 {
                        ((product >> (shift.min(120) - 1)) + 1) >> 1
                    } else {
                        product << (-shift).min(60)
                    };
                    result.clamp((-RESIDUAL).into(), RESIDUAL.into()) as i32
                };
                assert_eq!(level(&x, &gain, epsilon), [exact(0), exact(1)], "{x:?}, {exponent}, {epsilon}");
                for like in [[i32::MAX, i32::MAX], [0, 1], [0, 0]] {
                    let (wanted, wanted_up) = root_mean_square(&like, epsilon);
                    assert!(
                        i128::from(RESIDUAL) * i128::from(inverse(root)) * i128::from(wanted >> 15) < 1 << 58
                    );
                    let rescaled = rescale(&x, &like, epsilon);
                    assert!(31 - (up - wanted_up) / 2 >= 0 && rescaled.iter().all(|x| x.abs() <= RESIDUAL));
                }
            }
        }
    }
    assert_eq!((blend(i32::MAX, i32::MAX), blend(i32::MIN, i32::MIN)), (RESIDUAL, -RESIDUAL));
    let widest = i128::from(product(i32::MIN, i32::MIN));
    assert_eq!(widest, ((1i128 << 62) + 512) >> 10);
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

proptest! {
    #![proptest_config(Config::with_cases(200))]

    /// Within 2^-15 and half of the last bit; where the mean square is small, its own last bit shows besides.
    #[test]
    fn a_vector_is_levelled(x in prop::collection::vec(-(1i32 << 25)..1 << 25, 64), down in 0..26u32, epsilon in 1..2000u32) {
        let x: Vec<i32> = x.iter().map(|x| x >> down).collect();
        let factors: Vec<f32> = (0..64).map(|k| (k as f32 - 20.0) / 40.0).collect();
        let gain = quantise::gain(&factors).unwrap();
        let held = level(&x, &gain, epsilon);
        // In units of the last bit of its own: 20 fraction bits.
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 64.0 + f64::from(epsilon);
        for ((&held, &x), &factor) in held.iter().zip(&x).zip(&gain.factors) {
            let exact = f64::from(x) * 1024.0 / mean.sqrt() * f64::from(factor) * 2f64.powi(gain.exponent);
            let bound = exact.abs() * (2f64.powi(-15) + 0.26 / mean) + 0.51;
            prop_assert!((f64::from(held) - exact).abs() <= bound, "{} for {}, bound {}", held, exact, bound);
        }
    }

    /// Within 2^-14 and half of the last bit, and as much more for each mean square that is small.
    #[test]
    fn a_vector_is_rescaled(x in prop::collection::vec(-(1i32 << 25)..1 << 25, 64), like in prop::collection::vec(-(1i32 << 25)..1 << 25, 64), downs in (0..26u32, 0..26u32), epsilon in 1..2000u32) {
        let x: Vec<i32> = x.iter().map(|x| x >> downs.0).collect();
        let like: Vec<i32> = like.iter().map(|x| x >> downs.1).collect();
        let mean = |x: &[i32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 64.0 + f64::from(epsilon);
        let (mean_of_x, mean_of_like) = (mean(&x), mean(&like));
        for (&held, &x) in rescale(&x, &like, epsilon).iter().zip(&x) {
            let exact = (f64::from(x) * (mean_of_like / mean_of_x).sqrt()).clamp(-f64::from(RESIDUAL), RESIDUAL.into());
            let bound = exact.abs() * (2f64.powi(-14) + 0.26 / mean_of_x + 0.26 / mean_of_like) + 0.51;
            prop_assert!((f64::from(held) - exact).abs() <= bound, "{} for {}, bound {}", held, exact, bound);
        }
    }

    /// Within 2.5 units of the last bit: the mean's rounding, the deviation's, and its product's.
    #[test]
    fn a_gate_is_cut(x in prop::collection::vec(-(1i32 << 23)..1 << 23, 96), down in 0..24u32, by in -(1i32 << 22)..1 << 22) {
        let x: Vec<i32> = x.iter().map(|x| (x >> down) + (by >> down)).collect();
        let values: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let mean = values.iter().sum::<f64>() / 96.0;
        let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 96.0).sqrt();
        let bound = mean + 1.644_853_6 * deviation;
        for (&held, &x) in cut(&x, crate::CUT).iter().zip(&values) {
            prop_assert!((f64::from(held) - (x - bound).max(0.0)).abs() <= 2.5 + 1e-5 * deviation, "{} of {} beyond {}", held, x, bound);
        }
    }

    /// Within half of the last bit, √½ within 1.1e-6.
    #[test]
    fn a_blend_is_near(a in -RESIDUAL..=RESIDUAL, b in -RESIDUAL..=RESIDUAL) {
        let most = f64::from(RESIDUAL);
        let sum = f64::from(a) + f64::from(b);
        let exact = (sum * std::f64::consts::FRAC_1_SQRT_2).clamp(-most, most);
        prop_assert!((f64::from(blend(a, b)) - exact).abs() <= 0.51 + 1.1e-6 * sum.abs());
    }

    /// One rounding each.
    #[test]
    fn streams_are_predicted_and_corrected(x in prop::collection::vec(-(1i32 << 24)..1 << 24, 4 * 8), found in prop::collection::vec(-(1i32 << 24)..1 << 24, 8), coefficients in prop::collection::vec(-2000i32..2000, 16)) {
        let mut streams: Vec<Vec<i32>> = x.chunks(8).map(<[i32]>::to_vec).collect();
        let most = f64::from(RESIDUAL);
        let c = |at: usize| f64::from(coefficients[at]) / 1024.0;
        let predicted = predict(&streams, &coefficients);
        for (k, predicted) in predicted.iter().enumerate() {
            for (channel, &held) in predicted.iter().enumerate() {
                let sum: f64 = (0..4).map(|j| c(4 * k + j) * f64::from(streams[j][channel])).sum();
                let exact = (f64::from(streams[k][channel]) + sum).clamp(-most, most);
                prop_assert!((f64::from(held) - exact).abs() <= 0.51, "{} for {}", held, exact);
            }
        }
        let before = streams.clone();
        correct(&mut streams, &found, &coefficients[..4]);
        for (k, corrected) in streams.iter().enumerate() {
            for (channel, &held) in corrected.iter().enumerate() {
                let news = f64::from(found[channel]) - f64::from(before[0][channel]);
                let exact = (f64::from(before[k][channel]) + (1.0 + c(k)) * news).clamp(-most, most);
                prop_assert!((f64::from(held) - exact).abs() <= 0.51, "{} for {}", held, exact);
            }
        }
    }

    #[test]
    fn routes_are_near(x in prop::collection::vec(-8000i32..8000, 4)) {
        let mut routes = x.clone();
        routes.resize(BLOCK, 0);
        let held = values_of(&activate_tanh(&routes));
        let exact: Vec<f64> = x.iter().map(|&x| (f64::from(x) / 1024.0).tanh()).collect();
        let largest = exact.iter().fold(0f64, |most, x| most.max(x.abs()));
        for (held, exact) in held.iter().zip(&exact) {
            prop_assert!((held - exact).abs() <= largest / 127.0 * 1.01 + 0.001, "{} for {}", held, exact);
        }
        prop_assert!(held[4..].iter().all(|&x| x == 0.0));
    }
}

/// The largest difference of a function from what it stands for.
fn farthest(range: std::ops::Range<i32>, held: impl Fn(i32) -> f64, exact: impl Fn(f64) -> f64) -> f64 {
    range.map(|x| (held(x) - exact(f64::from(x) / 1024.0)).abs()).fold(0.0, f64::max)
}

/// Every number from where they begin to where they end.
#[test]
fn functions_of_one_number_are_near() {
    let gelu_of =
        |x: f64| x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()) / 2.0;
    let held = |x: i32| f64::from(gelu(x)) / 1024.0;
    assert!(farthest(-20_000..20_000, held, gelu_of) < 0.0012);
    assert_eq!([i32::MIN, -4096, 0, 4096, i32::MAX].map(gelu), [0, 0, 0, 4096, i32::MAX]);

    let held = |x: i32| tanh(x) as f64 / 32_768.0;
    assert!(farthest(-4095..4096, held, f64::tanh) < 5e-5);
    // Beyond 4 it stays.
    assert!(farthest(-20_000..20_000, held, f64::tanh) < 7e-4);
    let ends = [i32::MIN, -1, 0, 1, i32::MAX].map(tanh);
    assert_eq!(ends, [-tanh(4096), -tanh(1), 0, 32, tanh(4096)]);

    let capped = |x: f64| 30.0 * (x / 30.0).tanh();
    let held = |x: i32| f64::from(softcap(x)) / 1024.0;
    assert!(farthest(-92_160..92_160, held, capped) < 0.0025);
    assert!(farthest(-400_000..400_000, held, capped) < 0.021);
    assert!([i32::MIN, i32::MAX].iter().all(|&x| f64::from(softcap(x).abs()) < 30.0 * 1024.0));
    // It keeps order, so the most likely token stays that.
    assert!(
        (-400_000..400_000).all(|x| softcap(x) <= softcap(x + 1) && gelu(x.max(0)) <= gelu(x.max(0) + 1))
    );
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
