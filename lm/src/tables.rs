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
pub(crate) const EXP2: [u16; 256] = exp2();

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

/// 1 / (1 + 2^(-x)) would do; it is the logistic function, at -16, -15.5, ... 16, with 15 fraction bits.
pub(crate) const SIGMOID: [u16; 65] = sigmoid();

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
        assert_eq!((weight_of(0), weight_of(256), weight_of(2302), weight_of(2303)), (255, 128, 1, 0));
        for below in 0..3000 {
            let exact = 255.0 * 2f64.powf(-below as f64 / 256.0);
            assert!((weight_of(below) as f64 - exact).abs() <= 0.51, "{below}");
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
