//! Values, methods and filters that behave as in Python and `jinja2`, where crates `minijinja` and `minijinja-contrib` differ.

use minijinja::value::{ArgType, Kwargs, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

/// Adds the tests, filters and methods to the environment.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match float(value) {
        Some(value) => out.write_str(&value).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.is_undefined() {
            true => Ok(0),
            false => minijinja::filters::length(value),
        });
    }
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    for name in ["escape", "e"] {
        environment.add_filter(name, escape);
    }
    environment.add_filter("int", int);
    environment.add_filter("indent", indent);
    environment.add_filter("replace", |value: Value, old: String, new: String, count: Option<i64>| {
        let text = value.to_string();
        match count.and_then(|count| usize::try_from(count).ok()) {
            Some(count) => text.replacen(&old, &new, count),
            None => text.replace(&old, &new),
        }
    });
    environment.add_filter("trim", |value: Value, letters: Option<String>| {
        let text = value.to_string();
        match letters {
            Some(letters) => text.trim_matches(|letter| letters.contains(letter)).to_owned(),
            None => text.trim_matches(is_space).to_owned(),
        }
    });
}

fn wrong(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// Python's `repr` of a float; `None` for any other value.
pub(super) fn float(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    let number = f64::try_from(value.clone()).ok()?;
    if !number.is_finite() {
        return Some(
            if number.is_nan() {
                "nan"
            } else if number > 0.0 {
                "inf"
            } else {
                "-inf"
            }
            .into(),
        );
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e')?;
    Some(match exponent.parse::<i32>().ok()? {
        -4..16 if number.fract() == 0.0 => format!("{number}.0"),
        -4..16 => number.to_string(),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    })
}

/// Whether Python counts the character as whitespace.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\x1c'..='\x1f')
}

/// A positional or keyword argument.
fn argument<'a, T: ArgType<'a, Output = T>>(
    placed: Option<Value>,
    named: &'a Kwargs,
    name: &'a str,
    read: impl Fn(&Value) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let value = match placed {
        Some(value) => Some(value),
        None => named.get::<Option<Value>>(name)?,
    };
    value.filter(|value| !value.is_none()).map(|value| read(&value)).transpose()
}

fn number(value: &Value) -> Result<i64, Error> {
    i64::try_from(value.clone())
}

fn truth(value: &Value) -> Result<bool, Error> {
    Ok(value.is_true())
}

fn default(value: Value, given: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    if given.len() > 2 {
        return Err(ErrorKind::TooManyArguments.into());
    }
    // An `Option` would treat an explicit none as a missing argument.
    let other = match given.first() {
        Some(other) => other.clone(),
        None if named.has("default_value") => named.get::<Value>("default_value")?,
        None => "".into(),
    };
    let lax = argument(given.get(1).cloned(), &named, "boolean", truth)?.unwrap_or(false);
    named.assert_all_used()?;
    Ok(if value.is_undefined() || lax && !value.is_true() { other } else { value })
}

fn escape(value: Value) -> Value {
    if value.is_safe() {
        return value;
    }
    let mut text = String::new();
    for letter in value.to_string().chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&#34;"),
            '\'' => text.push_str("&#39;"),
            letter => text.push(letter),
        }
    }
    Value::from_safe_string(text)
}

/// Filter `int`: a value that is not a number yields the default.
fn int(value: Value, default: Option<Value>, base: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => named.get::<Option<Value>>("default")?.unwrap_or_else(|| 0.into()),
    };
    let base = argument(base, &named, "base", number)?.unwrap_or(10);
    named.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "what is not defined is no number"));
    }
    let whole = |number: f64| match number.is_finite() && number.abs() < 1e38 {
        true => Value::from(number as i128),
        false => default.clone(),
    };
    if value.kind() == ValueKind::Bool {
        return Ok(i64::from(value.is_true()).into());
    }
    if value.kind() == ValueKind::Number {
        return Ok(if value.is_integer() {
            value
        } else {
            f64::try_from(value).map_or(default.clone(), whole)
        });
    }
    let Some(text) = value.as_str() else { return Ok(default) };
    let text = text.trim_matches(is_space);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        10 => "",
        16 => "0x",
        _ => return Err(wrong(format!("base is {base}, expected 2, 8, 10 or 16"))),
    };
    let lower = digits.to_lowercase();
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    // Python allows single underscores between digits.
    let plain = !digits.starts_with(['_', '+', '-']) && !digits.ends_with('_') && !digits.contains("__");
    let digits = digits.replace('_', "");
    let parsed = i128::from_str_radix(&digits, base as u32).ok().filter(|_| plain);
    if let Some(number) = parsed {
        return Ok(Value::from(sign * number));
    }
    Ok(text.replace('_', "").parse().map_or(default.clone(), whole))
}

fn indent(
    value: Value,
    width: Option<Value>,
    first: Option<Value>,
    blank: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => named.get::<Option<Value>>("width")?,
    };
    let before = match width {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(number(&width)?).unwrap_or(0)),
        },
    };
    let first = argument(first, &named, "first", truth)?.unwrap_or(false);
    let blank = argument(blank, &named, "blank", truth)?.unwrap_or(false);
    named.assert_all_used()?;
    let text = value.to_string() + "\n";
    let mut indented = String::new();
    for (place, line) in lines(&text, false).into_iter().enumerate() {
        if place > 0 {
            indented.push('\n');
        }
        if if place == 0 { first } else { blank || !line.is_empty() } {
            indented.push_str(&before);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// Splits a string into lines, at the line breaks of Python's `splitlines`.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = vec![];
    let mut rest = text;
    while !rest.is_empty() {
        let ends = |c: char| {
            matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
        };
        let Some((at, end)) = rest.char_indices().find(|&(_, letter)| ends(letter)) else {
            lines.push(rest);
            break;
        };
        let length = if rest[at..].starts_with("\r\n") { 2 } else { end.len_utf8() };
        lines.push(&rest[..if keep { at + length } else { at }]);
        rest = &rest[at + length..];
    }
    lines
}

/// Splits a string at whitespace, or at `by`, at most `most` times from the left.
fn split<'t>(text: &'t str, by: Option<&str>, most: usize) -> Vec<&'t str> {
    if let Some(by) = by {
        return text.splitn(most.saturating_add(1), by).collect();
    }
    let mut parts = vec![];
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = rest.find(is_space).filter(|_| parts.len() < most);
        let Some(end) = end else {
            parts.push(rest);
            break;
        };
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

/// Splits a string at whitespace, or at `by`, at most `most` times from the right.
fn rsplit<'t>(text: &'t str, by: Option<&str>, most: usize) -> Vec<&'t str> {
    let mut parts: Vec<&str> = match by {
        Some(by) => text.rsplitn(most.saturating_add(1), by).collect(),
        None => {
            let mut parts = vec![];
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let begin = rest.char_indices().rev().find(|&(_, letter)| is_space(letter));
                let Some((at, letter)) = begin.filter(|_| parts.len() < most) else {
                    parts.push(rest);
                    break;
                };
                parts.push(&rest[at + letter.len_utf8()..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            parts
        }
    };
    parts.reverse();
    parts
}

/// The substring between two positions, and the number of characters before it. Python counts positions in characters, negative ones from
/// the end. `None` if the start is beyond the end.
fn window(text: &str, from: Option<i64>, to: Option<i64>) -> Option<(&str, usize)> {
    let length = text.chars().count() as i64;
    let place = |at: i64| if at < 0 { (at + length).max(0) } else { at };
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(length)).min(length));
    if from > to {
        return None;
    }
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Some((&text[byte(from)..byte(to)], from as usize))
}

/// Puts the first character of each word in title case, and the others in lowercase.
fn title(text: &str) -> Result<String, Error> {
    let mut all = String::new();
    let mut inside = false;
    for letter in text.chars() {
        let digraph = match letter {
            'Ǆ'..='ǆ' => Some('ǅ'),
            'Ǉ'..='ǉ' => Some('ǈ'),
            'Ǌ'..='ǌ' => Some('ǋ'),
            'Ǳ'..='ǳ' => Some('ǲ'),
            _ => None,
        };
        match letter {
            _ if inside => all.extend(letter.to_lowercase()),
            _ if digraph.is_some() => all.extend(digraph),
            // Georgian has no title case.
            'ა'..='ჿ' => all.push(letter),
            'ŉ' => all.push_str("ʼN"),
            '\u{1f80}'..='\u{1fff}' => return Err(wrong(format!("title() of {letter:?} is not known"))),
            letter => {
                let mut large = letter.to_uppercase();
                all.extend(large.next());
                all.extend(large.flat_map(char::to_lowercase));
            }
        }
        inside = letter.is_lowercase() || letter.is_uppercase() || digraph.is_some();
    }
    Ok(all)
}

/// Unicode's case folding.
fn casefold(text: &str) -> String {
    let mut all = String::new();
    for letter in text.chars() {
        match letter {
            'ẞ' => all.push_str("ss"),
            'ı' | '\u{13a0}'..='\u{13f5}' => all.push(letter),
            '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => all.extend(letter.to_uppercase()),
            letter => all.extend(letter.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    all
}

/// Methods of Python's strings. Crate `minijinja-contrib` handles the methods that are not here.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    let padded = |before: bool| -> Result<Value, Error> {
        let (width, fill): (usize, Option<&str>) = from_args(args)?;
        let fill = fill.unwrap_or(" ").repeat(width.saturating_sub(text.chars().count()));
        Ok(if before { fill + text } else { text.to_owned() + &fill }.into())
    };
    let parts = |at: Option<usize>, by: &str, missing: [&str; 3]| {
        if by.is_empty() {
            return Err(wrong("empty separator"));
        }
        let parts = at.map_or(missing, |at| [&text[..at], by, &text[at + by.len()..]]);
        Ok(Value::from(Tuple::from(parts.map(Value::from))))
    };
    let stripped = |front: bool, back: bool| -> Result<Value, Error> {
        let (letters,): (Option<&str>,) = from_args(args)?;
        let strips = |letter: char| letters.map_or_else(|| is_space(letter), |own| own.contains(letter));
        let rest = if front { text.trim_start_matches(strips) } else { text };
        Ok(if back { rest.trim_end_matches(strips) } else { rest }.into())
    };
    let cut = |back: bool| -> Result<Value, Error> {
        let (by, most, named): (Option<Value>, Option<Value>, Kwargs) = from_args(args)?;
        let string =
            |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| wrong("a separator is a text"));
        let by = argument(by, &named, "sep", string)?;
        let most = argument(most, &named, "maxsplit", number)?;
        named.assert_all_used()?;
        if by.as_deref() == Some("") {
            return Err(wrong("empty separator"));
        }
        let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        let parts = if back { rsplit(text, by.as_deref(), most) } else { split(text, by.as_deref(), most) };
        Ok(parts.into_iter().map(Value::from).collect())
    };
    // Finds a substring within a part of this string, and returns its position in characters.
    let found = |back: bool| -> Result<Option<usize>, Error> {
        let (part, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
        let Some((inside, before)) = window(text, from, to) else { return Ok(None) };
        let at = if back { inside.rfind(part) } else { inside.find(part) };
        Ok(at.map(|at| before + inside[..at].chars().count()))
    };
    let bordered = |matches: fn(&str, &str) -> bool| -> Result<Value, Error> {
        let (part, from, to): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
        let Some((inside, _)) = window(text, from, to) else { return Ok(false.into()) };
        let one = |part: &Value| {
            let part =
                part.as_str().ok_or_else(|| wrong(format!("{name} takes a text or a tuple of texts")))?;
            Ok(matches(inside, part))
        };
        if part.kind() != ValueKind::Seq {
            return one(part).map(Value::from);
        }
        for part in part.try_iter()? {
            if one(&part)? {
                return Ok(true.into());
            }
        }
        Ok(false.into())
    };
    match name {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "split" => cut(false),
        "rsplit" => cut(true),
        "splitlines" => {
            let (keep, named): (Option<Value>, Kwargs) = from_args(args)?;
            let keep = argument(keep, &named, "keepends", truth)?.unwrap_or(false);
            named.assert_all_used()?;
            Ok(lines(text, keep).into_iter().map(Value::from).collect())
        }
        "find" => Ok(found(false)?.map_or(Value::from(-1), Value::from)),
        "rfind" => Ok(found(true)?.map_or(Value::from(-1), Value::from)),
        "index" => found(false)?.map(Value::from).ok_or_else(|| wrong("substring not found")),
        "rindex" => found(true)?.map(Value::from).ok_or_else(|| wrong("substring not found")),
        "count" => {
            let (part, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            Ok(window(text, from, to).map_or(0, |(inside, _)| inside.matches(part).count()).into())
        }
        "startswith" => bordered(|text, part| text.starts_with(part)),
        "endswith" => bordered(|text, part| text.ends_with(part)),
        "isspace" => Ok((!text.is_empty() && text.chars().all(is_space)).into()),
        "title" => title(text).map(Value::from),
        "casefold" => Ok(casefold(text).into()),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" => {
            let (by,): (&str,) = from_args(args)?;
            parts(text.find(by), by, [text, "", ""])
        }
        "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            parts(text.rfind(by), by, ["", "", text])
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
            Ok(format!("{sign}{zeros}{digits}").into())
        }
        "ljust" => padded(false),
        "rjust" => padded(true),
        "swapcase" => {
            let swapped = text.chars().map(|letter| match letter.is_uppercase() {
                true => letter.to_lowercase().to_string(),
                false => letter.to_uppercase().to_string(),
            });
            Ok(swapped.collect::<String>().into())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
