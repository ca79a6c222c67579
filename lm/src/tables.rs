//! Tables, so that no device needs a library of floating-point functions. They were computed once, and are held to the functions that
//! they stand for by tests.

/// 2^x of a block's scores: 255 · 2^(-x / 256), rounded, from 0 to where it is 0.
pub fn weight_of(below: i64) -> i64 {
    let (whole, part) = (below >> 8, (below & 255) as usize);
    if whole > 8 {
        return 0;
    }
    // 255 · 2^(-part / 256) with 8 more bits; halves go up.
    let full = i64::from(EXP2[part]);
    (full + (1 << (7 + whole))) >> (8 + whole)
}

/// 65,280 · 2^(-k / 256), rounded.
#[rustfmt::skip]
pub const EXP2: [u16; 256] = exp2();

/// Integers alone: each entry by repeated square roots of 2 in 62 bits, at compile time.
const fn exp2() -> [u16; 256] {
    // roots[j] = 2^(-1 / 2^(j + 1)) with 62 fraction bits.
    let mut roots = [0u128; 8];
    let mut j = 0;
    let mut square = 1u128 << 61;
    while j < 8 {
        let root = (square << 62).isqrt();
        roots[j] = root;
        square = root;
        j += 1;
    }
    let mut table = [0u16; 256];
    let mut k = 0;
    while k < 256 {
        let mut value = 65_280u128 << 62;
        let mut j = 0;
        while j < 8 {
            if k >> (7 - j) & 1 == 1 {
                value = (value >> 31) * (roots[j] >> 31);
            }
            j += 1;
        }
        table[k] = ((value + (1 << 61)) >> 62) as u16;
        k += 1;
    }
    table
}

/// It is the logistic function, at -16, -15.5, ... 16, with 15 fraction bits.
pub const SIGMOID: [u16; 65] = sigmoid();

const fn sigmoid() -> [u16; 65] {
    // e^(-1/2) with 62 fraction bits, and its powers.
    const ROOT_OF_E: u128 = 2_797_133_298_413_440_826;
    let mut powers = [0u128; 33];
    powers[0] = 1 << 62;
    let mut k = 1;
    while k < 33 {
        powers[k] = (powers[k - 1] * ROOT_OF_E) >> 62;
        k += 1;
    }
    let mut table = [0u16; 65];
    let mut k = 0;
    while k < 33 {
        // 1 / (1 + e^(-k / 2)) above the middle, and the rest below it.
        let one = 1u128 << 62;
        let high = ((one << 16) / (one + powers[k]) + 1) >> 1;
        table[32 + k] = high as u16;
        table[32 - k] = 32_768 - high as u16;
        k += 1;
    }
    table
}

/// tanh(k / 64) with 15 fraction bits.
#[rustfmt::skip]
pub const TANH: [u16; 257] = [
    0, 512, 1024, 1535, 2045, 2555, 3063, 3570, 4075, 4578, 5079, 5577, 6073, 6566, 7056, 7542, 8025, 8505,
    8980, 9452, 9919, 10_382, 10_840, 11_294, 11_743, 12_186, 12_625, 13_058, 13_486, 13_909, 14_326, 14_737,
    15_143, 15_542, 15_936, 16_324, 16_706, 17_082, 17_452, 17_816, 18_173, 18_525, 18_870, 19_209, 19_542,
    19_869, 20_189, 20_504, 20_813, 21_115, 21_411, 21_702, 21_986, 22_265, 22_538, 22_804, 23_066, 23_321,
    23_571, 23_815, 24_054, 24_287, 24_516, 24_738, 24_956, 25_168, 25_376, 25_578, 25_776, 25_969, 26_157,
    26_340, 26_519, 26_694, 26_864, 27_029, 27_191, 27_348, 27_502, 27_651, 27_797, 27_938, 28_076, 28_211,
    28_341, 28_469, 28_592, 28_713, 28_830, 28_944, 29_055, 29_163, 29_268, 29_370, 29_470, 29_566, 29_660,
    29_751, 29_840, 29_926, 30_010, 30_091, 30_170, 30_247, 30_322, 30_394, 30_465, 30_533, 30_600, 30_664,
    30_727, 30_788, 30_847, 30_904, 30_960, 31_014, 31_067, 31_118, 31_167, 31_215, 31_262, 31_307, 31_351,
    31_394, 31_435, 31_476, 31_515, 31_553, 31_589, 31_625, 31_659, 31_693, 31_726, 31_757, 31_788, 31_817,
    31_846, 31_874, 31_901, 31_928, 31_953, 31_978, 32_002, 32_025, 32_048, 32_070, 32_091, 32_112, 32_132,
    32_151, 32_170, 32_188, 32_206, 32_223, 32_240, 32_256, 32_271, 32_287, 32_301, 32_316, 32_329, 32_343,
    32_356, 32_368, 32_381, 32_392, 32_404, 32_415, 32_426, 32_436, 32_447, 32_456, 32_466, 32_475, 32_484,
    32_493, 32_501, 32_509, 32_517, 32_525, 32_532, 32_540, 32_547, 32_553, 32_560, 32_566, 32_573, 32_579,
    32_584, 32_590, 32_596, 32_601, 32_606, 32_611, 32_616, 32_620, 32_625, 32_629, 32_634, 32_638, 32_642,
    32_646, 32_649, 32_653, 32_657, 32_660, 32_663, 32_667, 32_670, 32_673, 32_676, 32_678, 32_681, 32_684,
    32_686, 32_689, 32_691, 32_694, 32_696, 32_698, 32_700, 32_702, 32_704, 32_706, 32_708, 32_710, 32_712,
    32_714, 32_715, 32_717, 32_718, 32_720, 32_721, 32_723, 32_724, 32_726, 32_727, 32_728, 32_729, 32_731,
    32_732, 32_733, 32_734, 32_735, 32_736, 32_737, 32_738, 32_739, 32_740, 32_741, 32_741, 32_742, 32_743,
    32_744, 32_745, 32_745, 32_746,
];

/// What GELU multiplies by, (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, at -4, -3.875, ... 4, with 15 fraction bits; 0 and 1 at the ends.
#[rustfmt::skip]
pub const GELU: [u16; 65] = [
    0, 1, 2, 3, 6, 10, 16, 25, 40, 61, 92, 136, 198, 282, 396, 547, 744, 996, 1315, 1710, 2194, 2777, 3468,
    4275, 5204, 6256, 7429, 8718, 10_111, 11_595, 13_150, 14_754, 16_384, 18_014, 19_618, 21_173, 22_657,
    24_050, 25_339, 26_512, 27_564, 28_493, 29_300, 29_991, 30_574, 31_058, 31_453, 31_772, 32_024, 32_221,
    32_372, 32_486, 32_570, 32_632, 32_676, 32_707, 32_728, 32_743, 32_752, 32_758, 32_762, 32_765, 32_766,
    32_767, 32_768,
];

/// Fraction bits of a logarithm.
pub(crate) const LOG_FRACTION: u32 = 24;

/// log2(1 + k / 256) with 24 fraction bits.
pub const LOG2: [u32; 257] = {
    let mut table = [0; 257];
    let mut k = 0;
    while k < 256 {
        table[k] = log2_of((256 + k as u128) << 54) as u32;
        k += 1;
    }
    table[256] = 1 << LOG_FRACTION;
    table
};

/// log2(-log2(1 - k / 512) / (k / 512)) with 24 fraction bits: how an exponential draw differs from the uniform one that it is made of.
pub const RATIO: [u32; 257] = {
    let mut table = [0; 257];
    // log2(log2(e)), where k is 0.
    table[0] = 8_871_228;
    let mut k = 1;
    while k <= 256 {
        // The number whose logarithm is taken is below 1: twice it is not.
        let surprise = (1 << 62) - logarithm(((512 - k as u128) << 62) / 256);
        table[k] = log2_of(surprise * 512 / k as u128) as u32;
        k += 1;
    }
    table
};

/// log2 of a number from 1 to 2 with 62 fraction bits, with 24.
const fn log2_of(x: u128) -> u64 {
    ((logarithm(x) + (1 << 37)) >> 38) as u64
}

/// log2 of a number from 1 to 2, both with 62 fraction bits: a bit for each squaring.
const fn logarithm(mut x: u128) -> u128 {
    if x >= 2 << 62 {
        return 1 << 62;
    }
    let mut log = 0;
    let mut bit = 61;
    while bit >= 12 {
        x = (x * x) >> 62;
        if x >= 2 << 62 {
            x >>= 1;
            log |= 1 << bit;
        }
        bit -= 1;
    }
    log
}

/// Straight lines between the entries of a table: at `index` and `part` / 2^24 beyond.
#[inline]
fn between(table: &[u32; 257], index: usize, part: u64) -> i64 {
    let (low, high) = (i64::from(table[index]), i64::from(table[index + 1]));
    low + (((high - low) * part as i64 + (1 << 23)) >> 24)
}

/// log2 of a whole number that is not 0, with 24 fraction bits.
#[inline]
pub(crate) fn log2(x: u64) -> i64 {
    let whole = x.ilog2();
    let mantissa = x << (63 - whole);
    i64::from(whole << LOG_FRACTION)
        + between(&LOG2, (mantissa >> 55 & 255) as usize, mantissa >> 31 & 0xFF_FFFF)
}

/// log2(-log2(1 - w) / w) of w below 1/2, which has 33 fraction bits; the result has 24.
#[inline]
pub(crate) fn ratio_log2(w: u64) -> i64 {
    between(&RATIO, (w >> 24) as usize, w & 0xFF_FFFF)
}

/// 2^20 · 2^(-k / 1024), rounded.
pub const POWERS: [u32; 1024] = {
    let mut table = [0; 1024];
    let mut roots = [0u128; 10];
    let mut j = 0;
    let mut square = 1u128 << 61;
    while j < 10 {
        roots[j] = (square << 62).isqrt();
        square = roots[j];
        j += 1;
    }
    let mut k = 0;
    while k < 1024 {
        let mut value = 1u128 << 62;
        let mut j = 0;
        while j < 10 {
            if k >> (9 - j) & 1 == 1 {
                value = (value * roots[j]) >> 62;
            }
            j += 1;
        }
        table[k] = ((value + (1 << 41)) >> 42) as u32;
        k += 1;
    }
    table
};

/// 2^20 · 2^(-below / 1024), rounded.
#[inline]
pub(crate) fn power_of_logit(below: i64) -> i64 {
    let (whole, part) = (below >> 10, (below & 1023) as usize);
    if whole > 21 { 0 } else { (i64::from(POWERS[part]) + (1 << whole >> 1)) >> whole }
}

/// The rotations of positions: cosine and sine of position · base^(-2i / head width), with 14 fraction bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rope {
    half: usize,
    /// By position, then by pair of channels.
    turns: Vec<[i16; 2]>,
}

impl Rope {
    /// The table of an image: for each position `half` pairs.
    pub fn new(half: usize, turns: Vec<[i16; 2]>) -> Self {
        assert!(
            half != 0 && turns.len().is_multiple_of(half),
            "{} turns are not for {half} pairs each",
            turns.len()
        );
        Self { half, turns }
    }

    /// The table of a model that is imported. This is the one place where floating-point functions decide what an image
    /// holds; what runs it reads the image.
    pub fn of(base: f64, head_width: usize, positions: usize) -> Self {
        let half = head_width / 2;
        let turn = |position: usize, pair: usize| {
            let angle = position as f64 * base.powf(-2.0 * pair as f64 / head_width as f64);
            [angle.cos(), angle.sin()].map(|part| (part * 16_384.0).round() as i16)
        };
        Self::new(half, (0..positions).flat_map(|at| (0..half).map(move |pair| turn(at, pair))).collect())
    }

    /// The rotations at `position`.
    ///
    /// # Panics
    /// Beyond the last one.
    pub fn at(&self, position: usize) -> &[[i16; 2]] {
        &self.turns[position * self.half..][..self.half]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gelu_factor(x: f64) -> f64 {
        (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()) / 2.0
    }

    #[test]
    fn tables_are_the_functions_that_they_stand_for() {
        for (k, &entry) in EXP2.iter().enumerate() {
            let exact = 65_280.0 * 2f64.powf(-(k as f64) / 256.0);
            assert!((f64::from(entry) - exact).abs() <= 0.51, "{k}: {entry} for {exact}");
        }
        for (k, &entry) in SIGMOID.iter().enumerate() {
            let exact = 32_768.0 / (1.0 + (-(k as f64 - 32.0) / 2.0).exp());
            assert!((f64::from(entry) - exact).abs() <= 0.51, "{k}: {entry} for {exact}");
        }
        for (k, &entry) in TANH.iter().enumerate() {
            let exact = 32_768.0 * (k as f64 / 64.0).tanh();
            assert!((f64::from(entry) - exact).abs() <= 0.51, "{k}: {entry} for {exact}");
        }
        for (k, &entry) in GELU.iter().enumerate() {
            let exact = 32_768.0 * gelu_factor(k as f64 / 8.0 - 4.0);
            assert!((f64::from(entry) - exact).abs() <= 0.6, "{k}: {entry} for {exact}");
        }
        assert_eq!((weight_of(0), weight_of(256), weight_of(2302), weight_of(2303)), (255, 128, 1, 0));
        for below in 0..3000 {
            let exact = 255.0 * 2f64.powf(-below as f64 / 256.0);
            assert!((weight_of(below) as f64 - exact).abs() <= 0.51, "{below}");
        }
    }

    #[test]
    fn logarithms_are_near() {
        for (k, &entry) in LOG2.iter().enumerate() {
            let exact = (1.0 + k as f64 / 256.0).log2() * f64::from(1 << 24);
            assert!((f64::from(entry) - exact).abs() <= 0.51, "{k}: {entry} for {exact}");
        }
        for (k, &entry) in RATIO.iter().enumerate().skip(1) {
            let w = k as f64 / 512.0;
            let exact = (-(-w).ln_1p() * std::f64::consts::LOG2_E / w).log2() * f64::from(1 << 24);
            assert!((f64::from(entry) - exact).abs() <= 0.51, "{k}: {entry} for {exact}");
        }
        let exact = std::f64::consts::LOG2_E.log2() * f64::from(1 << 24);
        assert!((f64::from(RATIO[0]) - exact).abs() <= 0.5, "{} for {exact}", RATIO[0]);
        for x in (1..100_000u64).chain((20..64).map(|bit| 0xB504_F333_F9DE_6484 >> bit)) {
            let exact = (x as f64).log2() * f64::from(1 << 24);
            assert!((log2(x) as f64 - exact).abs() <= 48.0, "{x}: {} for {exact}", log2(x));
        }
        for below in (0..25_000).step_by(7) {
            let exact = 1_048_576.0 * 2f64.powf(-below as f64 / 1024.0);
            assert!((power_of_logit(below) as f64 - exact).abs() <= 1.01, "{below}");
        }
    }

    #[test]
    fn a_turn_is_a_rotation() {
        let rope = Rope::of(100_000.0, 64, 8);
        assert_eq!(rope.at(0), [[16_384, 0]; 32]);
        assert_eq!(rope.at(1)[0], [8852, 13_787]);
        for [cosine, sine] in (0..8).flat_map(|at| rope.at(at).to_vec()) {
            let length = f64::from(cosine).hypot(f64::from(sine));
            assert!((length - 16_384.0).abs() < 1.0, "{length}");
        }
    }
}
