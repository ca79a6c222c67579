use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn exact(logits: &[i32], temperature: f64) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / 1024.0 / temperature).collect();
    crate::float::log_softmax(&scaled)
}

fn numbers(seed: u32, count: usize, spread: i32) -> Vec<i32> {
    (0..count as u32).map(|k| (mix(seed ^ mix(k)) % (2 * spread as u32)) as i32 - spread).collect()
}

/// Pearson's statistic, against its mean and its standard deviation for as many cells: of chance it lies below five of those.
fn chi_square(counts: &[u64], expected: &[f64]) -> f64 {
    let freedom = counts.len() as f64 - 1.0;
    let sum: f64 = counts
        .iter()
        .zip(expected)
        .map(|(&count, &expected)| (count as f64 - expected).powi(2) / expected)
        .sum();
    (sum - freedom) / (2.0 * freedom).sqrt()
}

#[rstest]
#[case::flat(0, 0.7)]
#[case::even(2048, 1.0)]
#[case::sharp(4096, 0.8)]
#[case::hot(8192, 4.0)]
fn tokens_are_drawn_as_often_as_they_are_likely(#[case] spread: i32, #[case] temperature: f64) {
    let logits = numbers(7, 64, spread.max(1));
    let likely = exact(&logits, temperature);
    let draws = 200_000u32;
    let mut counts = [0u64; 64];
    for draw in 0..draws {
        let draw = Draw::new(draw / 1000, 5 + draw % 10, draw / 10 % 100);
        counts[sample(&logits, Sharpness::of(temperature).unwrap(), draw).token as usize] += 1;
    }
    // Cells in which few are expected go together.
    let (mut cells, mut expected, mut rest) = (vec![], vec![], (0, 0.0));
    for (&count, log) in counts.iter().zip(&likely) {
        let often = log.exp() * f64::from(draws);
        if often < 10.0 {
            rest = (rest.0 + count, rest.1 + often);
        } else {
            cells.push(count);
            expected.push(often);
        }
    }
    if rest.1 > 5.0 {
        cells.push(rest.0);
        expected.push(rest.1);
    }
    let statistic = chi_square(&cells, &expected);
    assert!(statistic.abs() < 5.0, "{statistic}: {counts:?} for {expected:?}");
}

/// What few bits of randomness would not do: in a large vocabulary each of the unlikely tokens comes as often as it should.
#[test]
fn unlikely_tokens_of_a_large_vocabulary_come_too() {
    let mut logits = vec![0; 49_152];
    // e^10.8 = 49,021: about as likely as all others together.
    logits[77] = 11_059;
    let likely = exact(&logits, 1.0)[77].exp();
    let draws = 4_000;
    let mut cells = [0u64; 33];
    for draw in 0..draws {
        let token = sample(&logits, Sharpness::ONE, Draw::new(3, draw, 100)).token;
        cells[if token == 77 { 32 } else { token as usize / 1536 }] += 1;
    }
    let mut expected = vec![f64::from(draws) * (1.0 - likely) / 32.0; 32];
    expected.push(f64::from(draws) * likely);
    let statistic = chi_square(&cells, &expected);
    assert!(statistic.abs() < 5.0, "{statistic}: {cells:?} for {expected:?}");
}

/// Truncated draws against 64-bit floating point: which tokens are kept, and how often each of them comes.
#[rstest]
fn truncated_draws_come_from_what_is_kept(
    #[values(1, 2, 40)] top_k: u32,
    #[values(0.1, 0.9, 1.0)] top_p: f64,
    #[values(0, 3000)] min_p: u32,
) {
    let mut logits = numbers(11, 64, 3000);
    // Equals at the largest one, at the 40th largest, and beyond.
    let order = |logits: &[i32]| {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by_key(|&token| -logits[token]);
        order
    };
    let by_logit = order(&logits);
    for [from, to] in [[1, 2], [38, 39], [38, 40], [10, 11]] {
        logits[by_logit[to]] = logits[by_logit[from]];
    }
    let (by_logit, temperature) = (order(&logits), 0.8);
    let likely: Vec<f64> = exact(&logits, temperature).iter().map(|log| log.exp()).collect();
    // One after the other, the most likely first, and equals together.
    let kth = logits[by_logit[top_k as usize - 1]];
    let among: f64 = (0..64).filter(|&token| logits[token] >= kth).map(|token| likely[token]).sum();
    let mut kept = vec![];
    for group in by_logit.chunk_by(|&a, &b| logits[a] == logits[b]) {
        let before: f64 = kept.iter().map(|&token: &usize| likely[token]).sum();
        let far = (likely[by_logit[0]] / likely[group[0]]).log2() * 1024.0 > f64::from(min_p);
        if logits[group[0]] < kth || before >= top_p * among || (min_p > 0 && far) {
            break;
        }
        kept.extend(group);
    }
    let share = (top_p * 65536.0) as u32;
    let top_p = if share > Truncation::TOP_P_MAX { 0 } else { share };
    let (truncation, draws) = (Truncation { top_k, top_p, min_p }, 100_000u32);
    let mut counts = [0u64; 64];
    for draw in 0..draws {
        let draw = Draw::new(draw / 1000, 5 + draw % 10, draw / 10 % 100);
        counts[choose(&logits, Sharpness::of(temperature).unwrap(), truncation, draw) as usize] += 1;
    }
    let all: f64 = kept.iter().map(|&token| likely[token]).sum();
    let expected: Vec<f64> = kept.iter().map(|&token| likely[token] / all * f64::from(draws)).collect();
    let cells: Vec<u64> = kept.iter().map(|&token| counts[token]).collect();
    assert_eq!(cells.iter().sum::<u64>(), u64::from(draws), "{counts:?}, kept are {kept:?}");
    println!("{truncation:?} keeps {}", kept.len());
    if kept.len() > 1 {
        let statistic = chi_square(&cells, &expected);
        assert!(statistic.abs() < 5.0, "{statistic}: {cells:?} for {expected:?}");
    }
}

/// By the definition, token by token, for anything that logits may be.
#[test]
fn what_is_kept_is_what_the_rule_says() {
    for seed in 0..400u32 {
        let draws = |k: u32| mix(seed ^ mix(k));
        let count = 1 + draws(1) as usize % 200;
        let spread = [3, 3000, 100_000, i32::MAX / 2][draws(2) as usize % 4];
        let logits = numbers(seed, count, spread);
        let sharpness = Sharpness(1 + (draws(3) >> (4 + draws(4) % 24)));
        let truncation = Truncation {
            top_k: draws(5) % 3 * (draws(6) % (count as u32 + 2)),
            top_p: draws(7) % 3 * (draws(8) % 0x8000),
            min_p: draws(9) % 3 * (draws(10) >> (draws(11) % 32)) / 3,
        };
        let y = |token: usize| round_shift(i64::from(logits[token]) * i64::from(sharpness.0), 20);
        let most = (0..count).map(y).max().unwrap();
        let above = |token: usize| logits.iter().filter(|&&logit| logit > logits[token]).count();
        let is_first = |token: usize| truncation.top_k == 0 || above(token) < truncation.top_k as usize;
        let ceiling = (most + 1023).div_euclid(1024) * 1024;
        let weight = |token: usize| i128::from(power_of_logit(ceiling - y(token)));
        let sum = |least: i64| -> i128 {
            (0..count).filter(|&token| is_first(token) && y(token) >= least).map(weight).sum()
        };
        let wanted = (i128::from(truncation.top_p) * sum(i64::MIN) + 0xFFFF) / 0x1_0000;
        // A token is within T_p if those that are likelier do not reach the share by themselves.
        let is_within = |token: usize| truncation.top_p == 0 || sum(y(token) + 1) < wanted;
        let is_near = |token: usize| truncation.min_p == 0 || y(token) >= most - i64::from(truncation.min_p);
        let held = truncation.of(&logits, sharpness);
        for (token, &logit) in logits.iter().enumerate() {
            let kept = logit >= held.logit && y(token) >= held.power;
            let expected = is_first(token) && is_within(token) && is_near(token);
            assert_eq!(kept, expected, "token {token} of {count}, {truncation:?}, {sharpness:?}");
        }
        let draw = Draw::new(seed, 1, 2);
        let whole = sample(&logits, sharpness, draw);
        let neutral = Truncation { top_k: count as u32, ..Truncation::NONE };
        assert_eq!(sample_among(&logits, sharpness, neutral, draw), whole);
        let greedy = sample_among(&logits, Sharpness::GREEDY, truncation, draw);
        assert_eq!(greedy, sample(&logits, Sharpness::GREEDY, draw), "truncated or not");
    }
}

#[rstest]
#[case(0, 1.0, 0.0, Some([0, 0, 0]))]
#[case(40, 0.9, 0.05, Some([40, 58_982, 4426]))]
#[case(1, 1e-9, 1.0, Some([1, 1, 1]))]
#[case(0, 0.999_999, 0.5, Some([0, 0, 1024]))]
#[case(0, 0.0, 0.0, None)]
#[case(0, 1.1, 0.0, None)]
#[case(0, 1.0, -0.1, None)]
#[case(0, 1.0, 1.1, None)]
#[case(0, f64::NAN, 0.0, None)]
#[case(0, 1.0, f64::NAN, None)]
fn truncations(
    #[case] top_k: u32,
    #[case] top_p: f64,
    #[case] min_p: f64,
    #[case] expected: Option<[u32; 3]>,
) {
    let expected = expected.map(|[top_k, top_p, min_p]| Truncation { top_k, top_p, min_p });
    assert_eq!(Truncation::new(top_k, top_p, min_p), expected);
}

#[test]
fn a_key_takes_the_place_of_seed_and_rollout() {
    assert_eq!(Draw::keyed(0, 5, 6, 7), Draw::new(5, 6, 7));
    assert_eq!(Draw::keyed(9 << 32 | 8, 5, 6, 7), Draw::new(8, 9, 7));
    assert_eq!(Draw::keyed(9 << 32, 5, 6, 7), Draw::new(0, 9, 7));
}

#[test]
fn noise_is_the_published_function() {
    let mut largest: f64 = 0.0;
    for k in 0..2_000_000u32 {
        // All magnitudes of bits, at both ends.
        let bits = if k % 2 == 0 { mix(k) >> (k / 2 % 32) } else { !(mix(k) >> (k / 2 % 32)) };
        let w = (f64::from(bits) + 0.5) / 4_294_967_296.0;
        let exact = -(-(-w).ln_1p() * std::f64::consts::LOG2_E).log2();
        largest = largest.max((gumbel(bits) as f64 / 16_777_216.0 - exact).abs());
    }
    println!("noise: at most {largest:.2e} from the exact function");
    assert!(largest < 8e-6, "{largest}");
    assert_eq!([gumbel(0), gumbel(u32::MAX)], [544_776_900, -84_630_890]);
}

#[test]
fn equals_go_to_the_lower_token_and_temperature_0_to_the_most_likely() {
    let draw = Draw::new(1, 2, 3);
    assert_eq!(sample(&[5, 9, 9, 1], Sharpness::GREEDY, draw).token, 1);
    assert_eq!(sample(&[i32::MIN; 3], Sharpness::GREEDY, draw).token, 0);
    assert_eq!(sample(&[-7], Sharpness::ONE, draw), Sampled { token: 0, log_probability: 0 });
    // Half, by two equals: ln(1/2) with 16 fraction bits.
    assert_eq!(log_probability(&[100, 100], Sharpness::GREEDY, 1), -45_426);
}

#[rstest]
#[case(0.0, Some(0))]
#[case(1.0, Some(1_512_775))]
#[case(0.7, Some(2_161_108))]
#[case(0.005, None)]
#[case(1e9, None)]
#[case(-1.0, None)]
#[case(f64::NAN, None)]
#[case(f64::INFINITY, None)]
fn temperatures(#[case] temperature: f64, #[case] expected: Option<u32>) {
    assert_eq!(Sharpness::of(temperature), expected.map(Sharpness));
}

/// The bound that docs/engine.md proves, in nats, of any token that may be drawn.
const BOUND: f64 = 9.9e-4;

/// How far the log-probability of a token is from that of 64-bit floating point at the very same sharpness.
fn distance(logits: &[i32], sharpness: u32, token: usize) -> f64 {
    let nats = f64::from(sharpness) / 1_048_576.0 / 1024.0 * std::f64::consts::LN_2;
    let above = |&logit: &i32| ((f64::from(logit) - f64::from(logits[token])) * nats).exp();
    let exact = -logits.iter().map(above).sum::<f64>().ln();
    let held = log_probability(logits, Sharpness(sharpness), token as u32);
    (f64::from(held) / 65_536.0 - exact).abs()
}

#[test]
fn log_probabilities_are_near_those_of_64_bits() {
    let mut largest: f64 = 0.0;
    for (seed, count, spread, temperature) in [
        (1, 64, 3000, 1.0),
        (2, 49_152, 20_000, 1.0),
        (3, 49_152, 12_000, 0.7),
        (4, 1000, 30_000, 1.3),
        (5, 33, 1, 1.0),
        (6, 49_152, 2000, 2.5),
    ] {
        let logits = numbers(seed, count, spread);
        for token in (0..count).step_by(1 + count / 100) {
            largest = largest.max(distance(&logits, Sharpness::of(temperature).unwrap().0, token));
        }
    }
    println!("log-probabilities: at most {largest:.2e} nats from those of 64 bits");
    assert!(largest < BOUND, "{largest}");
}

/// One likely token, and all others alike: with two bins, of 49,152 tokens -0.0004 came out for -0.5219.
#[rstest]
#[case(1024, -0.014_16)]
#[case(49_152, -0.521_9)]
fn many_unlikely_tokens_count_together(#[case] count: usize, #[case] expected: f64) {
    let mut largest: f64 = 0.0;
    // The same constant is added to all logits: 16 powers of 2, and some.
    for constant in (-6000..6000).step_by(if count > 2000 { 97 } else { 1 }) {
        let mut logits = vec![constant - 11_449; count];
        logits[count / 3] = constant;
        largest = largest.max(distance(&logits, Sharpness::ONE.0, count / 3));
        let held = log_probability(&logits, Sharpness::ONE, count as u32 / 3);
        assert!((f64::from(held) / 65_536.0 - expected).abs() < BOUND + 1e-4, "{held} with {constant} added");
    }
    assert!(largest < BOUND, "{largest}");
}

/// Tokens around every edge of a bin, so many that what is dropped is as much as can be, at sharpnesses at which powers are rounded apart.
#[rstest]
fn what_is_dropped_stays_within_the_bound(
    #[values(1 << 20, 1 << 14, 100)] count: usize,
    // A power of 2 is this many logits, and fractions are halves, eighths, or anything.
    #[values(1 << 20, 3 << 18, 5 << 17, 1_512_775, 15_127_750)] sharpness: u32,
) {
    let logit = |power: f64| (power * 1024.0 * 1_048_576.0 / f64::from(sharpness)).round() as i32;
    let mut largest: f64 = 0.0;
    let is_large = count > 1 << 16;
    for bins in if is_large { 2..4 } else { 0..5 } {
        for edge in if is_large { 0..1 } else { -1..3 } {
            for part in if is_large { 0..1 } else { -1..2 } {
                // The top is the lowest of its bin, the others are at an edge of one `bins` below.
                let mut logits = vec![logit(f64::from(-16 * bins - 1)) + edge; count];
                logits[count / 2] = logit(-1.0) + 1 + part;
                largest = largest.max(distance(&logits, sharpness, count / 2));
                // Among the others there are some of all bins.
                for (k, logit) in (0..).zip(logits.iter_mut().step_by(37)) {
                    *logit -= (mix(k) % (1 << 15)) as i32;
                }
                largest = largest.max(distance(&logits, sharpness, count / 2));
            }
        }
    }
    println!("{count} tokens: at most {largest:.2e} nats from those of 64 bits");
    assert!(largest < BOUND, "{largest}");
}

proptest! {
    /// Whatever the logits are: no overflow, and no order or split of blocks that shows.
    #[test]
    fn no_order_and_no_split_of_blocks_shows(
        logits in prop::collection::vec(any::<i32>(), 1..300),
        close in any::<bool>(),
        sharpness in 1..1u32 << 28,
        seed: u32,
    ) {
        // Either anything, or within some bins of each other.
        let factor = if close { Sharpness::ONE.0 } else { sharpness };
        let powers: Vec<i64> = logits
            .iter()
            .map(|&logit| round_shift(i64::from(if close { logit >> 16 } else { logit }) * i64::from(factor), 20))
            .collect();
        let mut blocks: Vec<(u32, &[i64])> = (0..).zip(powers.chunks(BLOCK)).collect();
        let whole = |blocks: &[(u32, &[i64])]| {
            let mut bins = Bins::new();
            blocks.iter().for_each(|(_, block)| bins.add(block));
            (bins.sums, bins.highest, bins.log2())
        };
        let expected = whole(&blocks);
        blocks.sort_by_key(|(number, _)| mix(seed ^ number));
        prop_assert_eq!(whole(&blocks), expected);
        let mut parts = [(); 4].map(|()| Bins::new());
        for (number, block) in &blocks {
            parts[mix(seed.wrapping_add(*number)) as usize % 4].add(block);
        }
        let mut bins = Bins::new();
        parts.iter().for_each(|part| bins.join(part));
        prop_assert_eq!((bins.sums, bins.highest, bins.log2()), expected);
        let sampled = sample(&logits, Sharpness(sharpness), Draw::new(1, 2, 3));
        prop_assert!(sampled.log_probability <= 0);
    }
}
