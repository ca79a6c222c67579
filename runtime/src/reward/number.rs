//! Numbers in a text.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// Digits, commas between some of them, and a fraction.
static DIGITS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[0-9]+(?:,[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+").expect("the pattern is one"));

/// A decimal number of any length, by its value: 8.50 is 8.5, 1,000 is 1000, and -0 is 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Number {
    negative: bool,
    /// Without zeros at its beginning.
    whole: String,
    /// Without zeros at its end.
    fraction: String,
}

impl Number {
    /// The last one of a text, if it has any.
    pub fn last(text: &str) -> Option<Number> {
        Self::find_last(text).map(|(number, _)| number)
    }

    /// A text that is a number, and nothing else but blanks around it.
    pub fn parse(text: &str) -> Option<Number> {
        let text = text.trim();
        Self::find_last(text).filter(|(_, place)| *place == (0..text.len())).map(|(number, _)| number)
    }

    /// With the bytes that it takes.
    fn find_last(text: &str) -> Option<(Number, Range<usize>)> {
        let run = DIGITS.find_iter(text).last()?;
        // Commas that do not part thousands part numbers.
        let start = match run.as_str().rfind(',') {
            Some(comma) if !parts_thousands(run.as_str()) => run.start() + comma + 1,
            _ => run.start(),
        };
        let digits = text[start..run.end()].replace(',', "");
        let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        // Behind what may be a number or its name a dash takes away.
        let sign = text[..start].strip_suffix(['-', '\u{2212}']);
        let sign =
            sign.filter(|before| !before.ends_with(|last: char| last.is_alphanumeric() || last == ')'));
        let negative = sign.is_some() && !(whole.is_empty() && fraction.is_empty());
        let number = Number { negative, whole: whole.to_owned(), fraction: fraction.to_owned() };
        Some((number, sign.map_or(start, str::len)..run.end()))
    }
}

fn parts_thousands(digits: &str) -> bool {
    let whole = digits.split('.').next().unwrap_or_default();
    let mut pieces = whole.split(',');
    pieces.next().is_some_and(|first| first.len() <= 3) && pieces.all(|piece| piece.len() == 3)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", None)]
    #[case::no_number("four, - and .", None)]
    #[case::last("2 + 2 = 4", Some("4"))]
    #[case::in_a_sentence("It is 12.", Some("12"))]
    #[case::decimal("so 3.50 dollars", Some("3.5"))]
    #[case::below_one("it is .25", Some("0.25"))]
    #[case::negative("x = -7", Some("-7"))]
    #[case::minus("x = \u{2212}7", Some("-7"))]
    #[case::negative_fraction("(-0.5)", Some("-0.5"))]
    #[case::taken_away("10-3", Some("3"))]
    #[case::taken_from_a_name("x-3 or f(x)-3", Some("3"))]
    #[case::apart("10 - 3", Some("3"))]
    #[case::twice("3--2", Some("-2"))]
    #[case::zero("-0.0", Some("0"))]
    #[case::zeros("007", Some("7"))]
    #[case::thousands("about 1,234,567.80kg", Some("1234567.8"))]
    #[case::list("one of 1,2,3", Some("3"))]
    #[case::long_piece("1,2345", Some("2345"))]
    #[case::short_pieces("1,000,5", Some("5"))]
    #[case::negative_thousands("-1,000", Some("-1000"))]
    #[case::comma_behind("4, I think", Some("4"))]
    #[case::other_digits("\u{664}", None)]
    #[case::torn_letters("\u{FFFD}4\u{FFFD}", Some("4"))]
    #[case::long("123456789012345678901234567890", Some("123456789012345678901234567890"))]
    fn the_last_number_is_found(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(Number::last(text), expected.map(|number| Number::parse(number).unwrap()));
    }

    #[rstest]
    #[case("42", "42.0", true)]
    #[case("+42", "42", false)]
    #[case(" -1,000 ", "-1000", true)]
    #[case("-4", "4", false)]
    #[case("0.1", "0.10000000000000001", false)]
    #[case("4 apples", "4", false)]
    #[case("1 2", "2", false)]
    #[case("", "0", false)]
    fn numbers_are_equal_by_value(#[case] one: &str, #[case] other: &str, #[case] equal: bool) {
        let (one, other) = (Number::parse(one), Number::parse(other));
        assert!(other.is_some());
        assert_eq!(one == other, equal);
    }
}
