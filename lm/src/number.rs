//! Fixed-point arithmetic: what docs/engine.md calls *Numbers*.

/// Fraction bits of the residual stream, and of everything that is not said to have others.
pub const FRACTION: i32 = 10;

/// `value` / 2^`shift`, halves rounded up; for a negative `shift` times 2^-`shift`, saturating.
#[inline]
pub const fn round_shift(value: i64, shift: i32) -> i64 {
    if shift <= 0 {
        let up = -shift as u32;
        if up >= 63 {
            return if value == 0 { 0 } else { saturate(value) };
        }
        let shifted = value << up;
        return if shifted >> up == value { shifted } else { saturate(value) };
    }
    if shift > 63 {
        return 0;
    }
    // The half is the bit below, so that nothing is added that could overflow.
    (value >> shift) + (value >> (shift - 1) & 1)
}

const fn saturate(value: i64) -> i64 {
    if value < 0 { i64::MIN } else { i64::MAX }
}

/// The nearest number of 32 bits.
#[inline]
pub const fn clamp(value: i64) -> i32 {
    if value > i32::MAX as i64 {
        i32::MAX
    } else if value < i32::MIN as i64 {
        i32::MIN
    } else {
        value as i32
    }
}

/// Bits that a number takes: 0 for 0.
#[inline]
pub const fn bits(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// The largest integer whose square is at most `value`.
pub const fn isqrt(value: u64) -> u64 {
    value.isqrt()
}

/// `numerator` / `denominator`, halves rounded up; the denominator is positive.
#[inline]
pub const fn round_divide(numerator: i64, denominator: i64) -> i64 {
    (2 * numerator + denominator).div_euclid(2 * denominator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(5, 1, 3)]
    #[case(-5, 1, -2)]
    #[case(-6, 2, -1)]
    #[case(3, 0, 3)]
    #[case(3, -2, 12)]
    #[case(i64::MAX, 1, 1 << 62)]
    #[case(i64::MIN, 63, -1)]
    #[case(i64::MAX, 63, 1)]
    #[case(i64::MAX, 64, 0)]
    #[case(1, -63, i64::MAX)]
    #[case(-1, -64, i64::MIN)]
    #[case(0, -64, 0)]
    fn halves_go_up(#[case] value: i64, #[case] shift: i32, #[case] expected: i64) {
        assert_eq!(round_shift(value, shift), expected);
    }

    proptest! {
        #[test]
        fn a_shift_is_a_division_by_a_power_of_two(value in any::<i64>(), shift in 1..62i32) {
            let exact = (i128::from(value) + (1i128 << (shift - 1))) >> shift;
            prop_assert_eq!(i128::from(round_shift(value, shift)), exact);
        }

        #[test]
        fn a_division_rounds_to_the_nearest(numerator in -(1i64 << 60)..1i64 << 60, denominator in 1..1i64 << 40) {
            let quotient = round_divide(numerator, denominator);
            let rest = i128::from(numerator) * 2 - i128::from(quotient) * 2 * i128::from(denominator);
            prop_assert!((-i128::from(denominator)..i128::from(denominator)).contains(&rest), "{}", rest);
        }
    }
}
