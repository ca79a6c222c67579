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

#[test]
fn log_probabilities_are_near_those_of_64_bits() {
    let mut largest: f64 = 0.0;
    for (seed, count, spread, temperature) in [
        (1, 64, 3000, 1.0),
        (2, 49_152, 20_000, 0.0),
        (3, 49_152, 12_000, 0.7),
        (4, 1000, 100_000, 1.3),
        (5, 33, 1, 1.0),
        (6, 49_152, 2000, 2.5),
    ] {
        let logits = numbers(seed, count, spread);
        let exact = exact(&logits, if temperature == 0.0 { 1.0 } else { temperature });
        for token in (0..count).step_by(1 + count / 500) {
            let held = log_probability(&logits, Sharpness::of(temperature).unwrap(), token as u32);
            largest = largest.max((f64::from(held) / 65_536.0 - exact[token]).abs());
        }
    }
    println!("log-probabilities: at most {largest:.2e} nats from those of 64 bits");
    assert!(largest < 6e-4, "{largest}");
}

proptest! {
    /// Whatever the logits are: no overflow, and no order of blocks that shows.
    #[test]
    fn no_order_of_blocks_shows(logits in prop::collection::vec(any::<i32>(), 1..300), sharpness in 1..1u32 << 28) {
        let powers: Vec<i64> =
            logits.iter().map(|&logit| round_shift(i64::from(logit) * i64::from(sharpness), 20)).collect();
        let sum = |blocks: &mut dyn Iterator<Item = &[i64]>| {
            let mut bins = Bins::new();
            blocks.for_each(|block| bins.add(block));
            bins.log2()
        };
        prop_assert_eq!(sum(&mut powers.chunks(BLOCK)), sum(&mut powers.chunks(BLOCK).rev()));
        let sampled = sample(&logits, Sharpness(sharpness), Draw::new(1, 2, 3));
        prop_assert!(sampled.log_probability <= 0);
    }
}
