//! GTKWave's save files, as far as ours go: groups, aliases, single bits, filters, colours, and how numbers are shown.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// What is shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Save {
    /// Time at the left edge; without it all of the waveform is shown.
    pub start: Option<u64>,
    /// Time of the marker.
    pub marker: u64,
    /// Width of the picture in pixels.
    pub width: usize,
    /// Width of the column of names in pixels.
    pub names: usize,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

/// A line of the picture.
#[derive(Debug, PartialEq, Eq)]
pub enum Row {
    /// The name of a group, or nothing.
    Heading(String),
    /// A signal, or bits of some.
    Trace(Trace),
}

/// A signal, or bits of some.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// What it is called in the picture.
    pub name: String,
    /// Names of signals in the waveform, each with the bit that is meant, counted from the left; `None` is all.
    pub parts: Vec<(String, Option<usize>)>,
    /// How its numbers are written.
    pub base: Base,
    /// Names of values, as they are written in the base of the filter.
    pub filter: HashMap<String, String>,
    /// Whether it stands out.
    pub accent: bool,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Digit by digit.
    Binary,
    /// Unsigned.
    Decimal,
    /// With as many digits as there are.
    Hexadecimal,
}

const HEXADECIMAL: u64 = 0x2;
const DECIMAL: u64 = 0x4;
const GROUP_BEGINS: u64 = 0x80_0000;
const GROUP_ENDS: u64 = 0x100_0000;
const FILTERED: u64 = 0x2000;

impl Save {
    /// Reads `text`; `read` gives the text of a filter, a file with names of values, by its path in `text`.
    ///
    /// # Errors
    /// What is wrong, with the line; and those of `read`.
    pub fn parse(text: &str, read: &dyn Fn(&str) -> Result<String, String>) -> Result<Self, String> {
        let mut save = Self { width: 1560, names: 300, ..Self::default() };
        let (mut flags, mut accent, mut filter) = (0, false, HashMap::new());
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            let wrong = |what: &str| format!("line {number}: {what}: {line}");
            let word = |nth: usize| {
                line.split_whitespace()
                    .nth(nth)
                    .and_then(|word| word.parse().ok())
                    .ok_or_else(|| wrong("no number"))
            };
            match line.as_bytes().first() {
                None => {}
                Some(b'[') if line.starts_with("[timestart]") => save.start = Some(word(1)?),
                Some(b'[') if line.starts_with("[size]") => save.width = word(1)? as usize,
                Some(b'[') if line.starts_with("[signals_width]") => save.names = word(1)? as usize,
                Some(b'[') => accent |= line.starts_with("[color]"),
                Some(b'*') => save.marker = word(1)?,
                Some(b'@') => flags = u64::from_str_radix(&line[1..], 16).map_err(|_| wrong("no flags"))?,
                Some(b'^') => {
                    let path = line.split_once(' ').ok_or_else(|| wrong("no filter"))?.1;
                    filter = names(&read(path)?);
                }
                Some(b'-') => {
                    if flags & GROUP_ENDS == 0 {
                        save.rows.push(Row::Heading(line[1..].to_owned()));
                    } else if flags & GROUP_BEGINS != 0 {
                        return Err(wrong("a group that begins and ends"));
                    }
                }
                Some(_) => {
                    let base = match flags {
                        _ if flags & HEXADECIMAL != 0 => Base::Hexadecimal,
                        _ if flags & DECIMAL != 0 => Base::Decimal,
                        _ => Base::Binary,
                    };
                    let filter =
                        if flags & FILTERED == 0 { HashMap::new() } else { std::mem::take(&mut filter) };
                    save.rows.push(Row::Trace(Trace {
                        base,
                        filter,
                        accent,
                        ..trace(line).ok_or_else(|| wrong("no trace"))?
                    }));
                    accent = false;
                }
            }
        }
        Ok(save)
    }
}

/// `signal`, `(bit)signal`, `+{alias} signal` or `#{alias} (bit)signal (bit)signal …`.
fn trace(line: &str) -> Option<Trace> {
    let (alias, words) = match line.strip_prefix(['+', '#']) {
        Some(rest) => {
            let (alias, words) = rest.strip_prefix('{')?.split_once("} ")?;
            (Some(alias.to_owned()), words)
        }
        None => (None, line),
    };
    let part = |word: &str| match word.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((bit, name)) => Some((name.to_owned(), Some(bit.parse().ok()?))),
        None => Some((word.to_owned(), None)),
    };
    let parts = words.split(' ').map(part).collect::<Option<Vec<_>>>()?;
    let name = alias.unwrap_or_else(|| words.rsplit('.').next().unwrap_or(words).to_owned());
    Some(Trace { name, parts, base: Base::Binary, filter: HashMap::new(), accent: false })
}

/// Reads the filters of [`Save::parse`] from files; their paths are relative to `root`.
pub fn files(root: &Path) -> impl Fn(&str) -> Result<String, String> {
    let root = root.to_owned();
    move |path| {
        let path = root.join(path);
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    }
}

/// The names of values: lines of a value and its name.
fn names(text: &str) -> HashMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs.map(|(value, name)| (value.to_lowercase(), name.trim().to_owned())).collect()
}

impl Trace {
    /// How a value of these bits (`0`, `1`, `x`, `z`, from the left) is written.
    pub fn write(&self, bits: &str) -> String {
        let defined = bits.bytes().all(|bit| matches!(bit, b'0' | b'1'));
        let base = if self.filter.is_empty() { self.base } else { Base::Hexadecimal };
        let text = match base {
            Base::Binary => bits.to_owned(),
            _ if !defined => "x".to_owned(),
            Base::Decimal if bits.len() <= 128 => u128::from_str_radix(bits, 2).unwrap_or(0).to_string(),
            _ => {
                let padded = format!("{}{bits}", "0".repeat(bits.len().wrapping_neg() % 4));
                let digit = |four: &[u8]| four.iter().fold(0, |sum, bit| 2 * sum + u32::from(bit - b'0'));
                padded.as_bytes().chunks(4).filter_map(|four| char::from_digit(digit(four), 16)).collect()
            }
        };
        self.filter.get(&text).cloned().unwrap_or(text)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn parse(text: &str) -> Result<Save, String> {
        Save::parse(text, &files(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()))
    }

    #[test]
    fn groups_aliases_bits_filters_and_colours() {
        let save = parse(
            "[*] a remark\n[timestart] 962\n[size] 800 600\n*-5.4 985 -1\n@28\ntop.clk_i\n@800200\n-1 registers\n@2022\n\
             ^1 tb/wave/worker_state.txt\n#{state} (3)top.run_q[3:0] (3)top.wait_q[3:0]\n@24\n[color] 2\n\
             +{alias} top.a.b[7:0]\n@28\n(3)top.done[3:0]\n@1000200\n-1 registers\n",
        )
        .unwrap();
        assert_eq!((save.start, save.marker, save.width, save.names), (Some(962), 985, 800, 300));
        assert_eq!(save.rows.len(), 5);
        assert_eq!(save.rows[1], Row::Heading("1 registers".into()));
        let trace = |row: usize| match &save.rows[row] {
            Row::Trace(trace) => trace,
            Row::Heading(heading) => panic!("{heading}"),
        };
        assert_eq!((trace(0).name.as_str(), trace(0).base, trace(0).accent), ("clk_i", Base::Binary, false));
        assert_eq!(trace(2).name, "state");
        assert_eq!(trace(2).parts, [("top.run_q[3:0]".into(), Some(3)), ("top.wait_q[3:0]".into(), Some(3))]);
        assert_eq!(["00", "01", "10"].map(|bits| trace(2).write(bits)), ["Idle", "Wait", "Run"]);
        assert_eq!((trace(3).name.as_str(), trace(3).base, trace(3).accent), ("alias", Base::Decimal, true));
        assert!(!trace(4).accent && trace(4).parts == [("top.done[3:0]".into(), Some(3))]);
    }

    #[rstest]
    #[case(Base::Binary, "0x10", "0x10")]
    #[case(Base::Decimal, "11111111", "255")]
    #[case(Base::Decimal, "1x", "x")]
    #[case(Base::Hexadecimal, "1111011", "7b")]
    #[case(Base::Hexadecimal, "00010000", "10")]
    fn numbers(#[case] base: Base, #[case] bits: &str, #[case] expected: &str) {
        let trace = Trace { name: String::new(), parts: vec![], base, filter: HashMap::new(), accent: false };
        assert_eq!(trace.write(bits), expected);
    }

    #[rstest]
    #[case("@zz\n", "line 1: no flags")]
    #[case("@28\n[timestart] soon\n", "line 2: no number")]
    #[case("^1 no/such/file\n", "cannot read ")]
    #[case("#{name (1)top.a\n", "line 1: no trace")]
    fn what_is_wrong_is_told(#[case] text: &str, #[case] message: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(message), "{error}");
    }
}
