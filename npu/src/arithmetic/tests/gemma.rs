//! What Gemma 3N's words do, against crate `lm`, at the edges and of any bytes.

use super::*;
use doorbell_lm::{CUT, STREAMS};
use rstest::rstest;

/// A gain as its lines, whose exponent has 16 bits there, and as crate `lm` has it.
fn gain(factors: &[i16], exponent: i16) -> (Vec<u8>, Gain) {
    let data = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let lines = [whole(exponent.to_le_bytes().to_vec()), whole(data)].concat();
    (lines, Gain { factors: factors.to_vec(), exponent: exponent.into() })
}

fn by_stream(streams: &[i32]) -> Vec<Vec<i32>> {
    streams.chunks(streams.len() / STREAMS).map(<[i32]>::to_vec).collect()
}

/// Numbers at which something changes, and beside them.
const EDGES: [i32; 12] = [
    i32::MIN,
    i32::MAX,
    RESIDUAL,
    -RESIDUAL,
    (1 << 24) - 1,
    -(1 << 24),
    4 << 10,
    -(4 << 10),
    30 << 10,
    16 << 10,
    0,
    1,
];

fn edge() -> impl Strategy<Value = i32> {
    let near = (0..EDGES.len(), -2..=2i32).prop_map(|(edge, by)| EDGES[edge].saturating_add(by));
    prop_oneof![near, number()]
}

fn edges(blocks: usize) -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(edge(), 32 * blocks)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn levels_are_those_of_lm(
        x in (1..4usize).prop_flat_map(edges),
        factors in prop::collection::vec(any::<i16>(), 96),
        exponent in prop_oneof![-128..=127i16, any::<i16>()],
        epsilon in prop_oneof![0..1u32 << 20, any::<u32>()],
    ) {
        let (lines, gain) = gain(&factors[..x.len()], exponent);
        prop_assert_eq!(level(&x, &lines, epsilon), ops::level(&x, &gain, epsilon));
    }

    #[test]
    fn gelu_and_tanh_are_those_of_lm((gate, up) in (1..4usize).prop_flat_map(|blocks| (edges(blocks), edges(blocks)))) {
        let products: Vec<i64> = gate.iter().zip(&up).map(|(&gate, &up)| ops::product(ops::gelu(gate), up)).collect();
        prop_assert_eq!(read(&geglu(&gate, &up), gate.len()), ops::activate_plain(&products));
        prop_assert_eq!(read(&tanh(&gate), gate.len()), ops::activate_tanh(&gate));
    }

    #[test]
    fn rescaled_and_cut_vectors_are_those_of_lm(
        (x, like) in (1..4usize).prop_flat_map(|blocks| (edges(blocks), edges(blocks))),
        epsilon in prop_oneof![0..1u32 << 20, any::<u32>()],
        deviations in prop_oneof![Just(CUT), 1..=u32::MAX],
    ) {
        prop_assert_eq!(rescale(&x, &like, epsilon), ops::rescale(&x, &like, epsilon));
        prop_assert_eq!(cut(&x, deviations), ops::cut(&x, deviations));
        prop_assert_eq!(cut(&x, 0), x);
    }

    #[test]
    fn streams_are_those_of_lm(
        streams in prop::collection::vec(residual(), STREAMS * 32),
        coefficients in prop::collection::vec(number(), STREAMS * STREAMS),
        anything in edges(STREAMS),
        found in edges(1),
    ) {
        let expected = ops::predict(&by_stream(&streams), &coefficients).concat();
        prop_assert_eq!(predict(&streams, &coefficients, STREAMS), expected);
        let mut corrected = by_stream(&anything);
        ops::correct(&mut corrected, &found, &coefficients[..STREAMS]);
        prop_assert_eq!(correct(&anything, &found, &coefficients), corrected.concat());
    }

    /// Whatever a context's memory holds.
    #[test]
    fn any_bytes_mean_something(
        x in prop::collection::vec(any::<i32>(), STREAMS * 32),
        y in prop::collection::vec(any::<i32>(), STREAMS * 32),
        bytes in prop::collection::vec(any::<u8>(), 5 * LINE),
        register in any::<u32>(),
    ) {
        let within = |values: Vec<i32>| values.iter().all(|value| (-RESIDUAL..=RESIDUAL).contains(value));
        prop_assert!(within(level(&x, &bytes, register)));
        prop_assert!(within(rescale(&x, &y, register)));
        prop_assert!(within(predict(&x, &y, STREAMS)));
        prop_assert!(within(correct(&x, &y[..32], &x)));
        prop_assert!(cut(&x, register.max(1)).iter().all(|&value| value >= 0));
        normalise(&x, &bytes, register);
        geglu(&x, &y);
        tanh(&x);
    }
}

/// Where a shift is negative it saturates, and beyond 63 nothing is left.
#[rstest]
// Of a mean square of 1 the root is 2^30 and its inverse 65,535: 2^24 · 65,535, shifted by 16 and what the exponent says.
#[case(1024, 1 << 14, -14, 1024)]
#[case(1024, 1 << 14, -13, 2048)]
#[case(1024, 1 << 14, 1, 65_535 << 9)]
#[case(1024, 1 << 14, 2, 65_535 << 10)]
#[case(1024, 1 << 14, 3, RESIDUAL)]
#[case(-1024, 1 << 14, 3, -RESIDUAL)]
#[case(1024, 1 << 14, 127, RESIDUAL)]
#[case(-1024, 1 << 14, 127, -RESIDUAL)]
#[case(1024, 1, i16::MAX, RESIDUAL)]
#[case(1024, 0, i16::MAX, 0)]
#[case(1024, i16::MIN, i16::MAX, -RESIDUAL)]
#[case(1024, 1 << 14, -24, 1)]
#[case(1024, 1 << 14, -25, 0)]
#[case(1024, i16::MAX, -128, 0)]
#[case(-1024, i16::MAX, i16::MIN, 0)]
fn a_gains_exponent_may_be_any(
    #[case] x: i32,
    #[case] factor: i16,
    #[case] exponent: i16,
    #[case] expected: i32,
) {
    let (lines, _) = gain(&[factor; 32], exponent);
    assert_eq!(level(&[x; 32], &lines, 0), [expected; 32]);
}

/// What is beyond the residual stream counts as if it were at its bound.
#[test]
fn norms_stay_within_the_residual_stream() {
    let (lines, _) = gain(&[1 << 13; 32], -13);
    let [mut beyond, mut at] = [[5; 32], [5; 32]];
    (beyond[0], beyond[1], at[0], at[1]) = (i32::MIN, RESIDUAL + 1, -RESIDUAL, RESIDUAL);
    assert_eq!(normalise(&beyond, &lines, 10), normalise(&at, &lines, 10));
    assert_eq!(level(&beyond, &lines, 10), level(&at, &lines, 10));
    assert_eq!(rescale(&beyond, &at, 10), rescale(&at, &at, 10));
    assert_eq!(rescale(&at, &beyond, 10), rescale(&at, &at, 10));
    // 4,096 of the largest squares fit 64 bits; all come out as 1.
    let (lines, _) = gain(&[1 << 13; 4096], -13);
    assert_eq!(level(&[i32::MAX; 4096], &lines, u32::MAX), vec![1024; 4096]);
}

#[rstest]
#[case(0, 0)]
#[case(1, 32)]
#[case(-16, -512)]
#[case(i32::MAX, 32_746)]
#[case(i32::MIN, -32_746)]
#[case((4 << 10) - 1, 32_746)]
fn tanh_ends_with_its_table(#[case] x: i32, #[case] expected: i64) {
    assert_eq!(ops::tanh(x), expected);
    // As an activation: 15 bits of it, and the mantissa of 7.
    let lines = tanh(&[x; 32]);
    let found = read(&lines, 32);
    assert_eq!(found, ops::activate(&[expected; 32], 1 << 15, -30));
}

#[rstest]
#[case(0, 0)]
#[case(30 << 10, 23_396)]
#[case(-(30 << 10), -23_396)]
#[case(i32::MAX, 30_699)]
#[case(i32::MIN, -30_699)]
fn caps_are_near_30(#[case] x: i32, #[case] expected: i32) {
    assert_eq!(softcap(x), expected);
}

#[rstest]
#[case(&[])]
#[case(&[(1, 1000)])]
#[case(&[(1, i32::MAX)])]
#[case(&[(1, 1000), (40, 2000)])]
fn a_cut_keeps_what_stands_out(#[case] high: &[(usize, i32)]) {
    let mut x = [7; 64];
    high.iter().for_each(|&(place, value)| x[place] = value);
    let found = cut(&x, CUT);
    assert_eq!(found.iter().filter(|&&value| value > 0).count(), high.len(), "{found:?}");
    // At its mean, and at its bound, nothing is left: it has to be above.
    assert_eq!(cut(&[i32::MIN; 32], CUT), [0; 32]);
    let flat: Vec<i32> = (0..64).map(|k| if k % 2 == 0 { 1024 } else { -1024 }).collect();
    assert!(cut(&flat, 1 << 16).iter().all(|&value| value == 0));
    let kept: Vec<i32> = cut(&flat, (1 << 16) - 64);
    assert_eq!((kept[0], kept[1]), (1, 0));
}

/// Of 65,536 of the largest numbers both signs of which are as often there, no square is lost.
#[test]
fn the_longest_cut_fits_64_bits() {
    let x: Vec<i32> = (0..1 << 16).map(|k| if k % 2 == 0 { i32::MAX } else { i32::MIN }).collect();
    assert_eq!(cut(&x, 1 << 15)[..2], [(1 << 23) - 1, 0]);
}

#[test]
fn sums_of_streams_wrap_at_64_bits() {
    // 4 · 2^62 is 2^64, of which nothing is left, and three of them are -2^62.
    let (streams, all) = ([i32::MIN; STREAMS * 32], [i32::MIN; STREAMS * STREAMS]);
    assert_eq!(predict(&streams, &all, STREAMS), [-RESIDUAL; STREAMS * 32]);
    let mut first = [5; STREAMS * 32];
    first[..32].fill(0);
    assert_eq!(predict(&first, &[0; 16], STREAMS), first, "each is itself");
    let mut three = all;
    three[3] = 0;
    let found = predict(&[i32::MIN; STREAMS * 32], &three, STREAMS);
    assert_eq!((found[0], found[32]), (-RESIDUAL, -RESIDUAL));
    let mut two = [0; 16];
    (two[0], two[1]) = (i32::MIN, i32::MIN);
    // 2^63 is -2^63, which stays below whatever the stream is.
    assert_eq!(predict(&[i32::MIN; STREAMS * 32], &two, STREAMS)[0], -RESIDUAL);
    two[1] = 0;
    assert_eq!(predict(&[i32::MIN; STREAMS * 32], &two, STREAMS)[0], RESIDUAL);
    // The largest that there is of news and coefficients.
    let mut streams = [i32::MAX; 2 * 32];
    streams[32..].fill(0);
    let found = correct(&streams, &[i32::MIN; 32], &[i32::MIN, 1 << 10]);
    assert_eq!((found[0], found[32]), (RESIDUAL, -RESIDUAL));
}
