//! Chat templates as `transformers` renders them, within the limits of untrusted files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};

use super::apart::apart;
use doorbell_lm::limits::{TEMPLATE_BYTES, TEMPLATE_DEPTH, TEMPLATE_OUTPUT, TEMPLATE_STEPS};

/// Renders the messages of a chat, up to where the answer begins; `special` are the texts of `bos_token` and its like.
pub(super) fn render(
    template: &str,
    messages: &Value,
    tools: &Value,
    special: &BTreeMap<String, String>,
) -> Result<String, String> {
    let most = TEMPLATE_BYTES.value()?;
    if template.len() as u64 > most {
        return Err(TEMPLATE_BYTES.exceeded(most));
    }
    // Jinja's lines end so.
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let bounds = Bounds {
        steps: TEMPLATE_STEPS.value()?,
        output: TEMPLATE_OUTPUT.value()?,
        depth: TEMPLATE_DEPTH.value()?,
    };
    // Read here: the child must not wait for whoever writes the environment.
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs() as i64)
    };
    let now = epoch.unwrap_or_else(now);
    apart(bounds.output, || rendered(&without_generation(&template), messages, tools, special, bounds, now))
}

#[derive(Clone, Copy)]
struct Bounds {
    steps: u64,
    output: u64,
    depth: u64,
}

fn rendered(
    template: &str,
    messages: &Value,
    tools: &Value,
    special: &BTreeMap<String, String>,
    bounds: Bounds,
    now: i64,
) -> Result<String, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(bounds.steps));
    environment.set_recursion_limit(usize::try_from(bounds.depth).unwrap_or(usize::MAX));
    environment.set_unknown_method_callback(method);
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_function("raise_exception", |text: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_function("strftime_now", move |format: String| strftime(now, &format));
    environment.add_filter("tojson", move |value: Value, options: Kwargs| -> Result<String, Error> {
        let indent = options.get::<Option<usize>>("indent")?;
        let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
        let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
        let separators = options.get::<Option<Vec<String>>>("separators")?;
        options.assert_all_used()?;
        let item = if indent.is_some() { "," } else { ", " };
        let (item, pair) = match separators.as_deref() {
            Some([item, pair]) => (item.clone(), pair.clone()),
            Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators are two texts")),
            None => (item.into(), ": ".into()),
        };
        let mut json = Json { text: String::new(), indent, ascii, sorted, item, pair, depth: bounds.depth };
        json.put(&value, 1)?;
        Ok(json.text)
    });
    let failed = |error: Error| match error.kind() {
        ErrorKind::OutOfFuel => TEMPLATE_STEPS.exceeded(bounds.steps),
        _ => error.to_string(),
    };
    environment.add_template("chat", template).map_err(failed)?;
    let mut values: BTreeMap<&str, Value> = BTreeMap::new();
    for (name, text) in special {
        values.insert(name, Value::from(text.as_str()));
    }
    values.insert("messages", messages.clone());
    values.insert("add_generation_prompt", Value::from(true));
    values.insert("tools", tools.clone());
    values.insert("documents", Value::from(()));
    let mut out = Bounded { bytes: vec![], most: bounds.output, full: false };
    let chat = environment.get_template("chat").map_err(failed)?;
    let result = chat.render_captured_to(values, &mut out).map(drop);
    if out.full {
        return Err(TEMPLATE_OUTPUT.exceeded(bounds.output));
    }
    result.map_err(failed)?;
    String::from_utf8(out.bytes).map_err(|error| error.to_string())
}

/// Blocks `{% generation %}` mark what an assistant said, for training; they render as what is in them. Comments, raw blocks and what stands
/// between quotes stay as they are.
fn without_generation(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        let kind = tag.as_bytes().get(1);
        let length = match kind {
            Some(b'#') => tag.find("#}").map(|end| end + 2),
            Some(b'%') => end(tag, "%}"),
            Some(b'{') => end(tag, "}}"),
            _ => Some(1),
        };
        // What does not end is an error, which the template's parser tells.
        let Some(length) = length else {
            rest = tag;
            break;
        };
        let (mut tag, after) = tag.split_at(length);
        rest = after;
        if kind == Some(&b'%') {
            let inner = &tag[2..tag.len() - 2];
            match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
                "generation" => {
                    text.push_str(&tag.replace("generation", "with"));
                    tag = "";
                }
                "endgeneration" => {
                    text.push_str(&tag.replace("endgeneration", "endwith"));
                    tag = "";
                }
                "raw" => {
                    let raw = endraw(rest).unwrap_or(rest.len());
                    text.push_str(tag);
                    (tag, rest) = rest.split_at(raw);
                }
                _ => {}
            }
        }
        text.push_str(tag);
    }
    text + rest
}

/// Where a block or an expression ends, behind `close`; what stands between quotes does not end it.
fn end(tag: &str, close: &str) -> Option<usize> {
    let (mut quote, mut escaped, mut braces) = (None, false, 0);
    for (at, letter) in tag.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if letter == '\\' => escaped = true,
            Some(own) if letter == own => quote = None,
            Some(_) => {}
            None if braces == 0 && tag[at..].starts_with(close) => return Some(at + close.len()),
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            None if letter == '{' => braces += 1,
            None if letter == '}' => braces -= 1,
            None => {}
        }
    }
    None
}

/// Where the tag begins that ends a raw block.
fn endraw(text: &str) -> Option<usize> {
    text.match_indices("{%").map(|(at, _)| at).find(|&at| {
        let inner = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let after = inner.strip_prefix("endraw").map(|rest| rest.trim_start().trim_start_matches(['-', '+']));
        after.is_some_and(|rest| rest.starts_with("%}"))
    })
}

/// Methods of Python's texts that crate `minijinja-contrib` lacks, and those that it has.
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
            return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
        }
        let parts = at.map_or(missing, |at| [&text[..at], by, &text[at + by.len()..]]);
        Ok(Value::from(Tuple::from(parts.map(Value::from))))
    };
    match name {
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
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
            if by == Some("") {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
            let mut parts = vec![];
            let mut rest = if by.is_some() { text } else { text.trim() };
            while parts.len() < most {
                let at = match by {
                    Some(by) => rest.rfind(by).map(|at| (at, at + by.len())),
                    None => rest
                        .char_indices()
                        .rev()
                        .find(|(_, letter)| letter.is_whitespace())
                        .map(|(at, letter)| (at, at + letter.len_utf8())),
                };
                let Some((end, from)) = at else { break };
                parts.push(&rest[from..]);
                rest = if by.is_some() { &rest[..end] } else { rest[..end].trim_end() };
            }
            if by.is_some() || !rest.is_empty() {
                parts.push(rest);
            }
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let missing = || Error::new(ErrorKind::InvalidOperation, "substring not found");
            let at = text.find(part).ok_or_else(missing)?;
            Ok(text[..at].chars().count().into())
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
        "casefold" => Ok(text.to_lowercase().into()),
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

fn strftime(seconds: i64, format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let wrong = || Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}) is no format"));
    let time = chrono::DateTime::from_timestamp(seconds, 0).ok_or_else(wrong)?;
    let mut text = String::new();
    write!(text, "{}", time.format(format)).map_err(|_| wrong())?;
    Ok(text)
}

/// Takes so many bytes.
struct Bounded {
    bytes: Vec<u8>,
    most: u64,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.most {
            self.full = true;
            return Err(io::Error::other("full"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes JSON as Python's `json.dumps`.
struct Json {
    text: String,
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    depth: u64,
    item: String,
    pair: String,
}

impl Json {
    fn put(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth as u64 > self.depth {
            return Err(Error::new(ErrorKind::InvalidOperation, TEMPLATE_DEPTH.exceeded(self.depth)));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&value.to_string()),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.text.push('{');
                for (number, key) in keys.iter().enumerate() {
                    self.begin(number, depth);
                    self.string(&key.to_string());
                    let pair = self.pair.clone();
                    self.text.push_str(&pair);
                    self.put(&value.get_item(key)?, depth + 1)?;
                }
                self.end(keys.len(), depth);
                self.text.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.text.push('[');
                for (number, item) in items.iter().enumerate() {
                    self.begin(number, depth);
                    self.put(item, depth + 1)?;
                }
                self.end(items.len(), depth);
                self.text.push(']');
            }
            _ => self.string(&value.to_string()),
        }
        Ok(())
    }

    fn begin(&mut self, number: usize, depth: usize) {
        if number > 0 {
            let item = self.item.clone();
            self.text.push_str(&item);
        }
        self.line(depth);
    }

    fn end(&mut self, items: usize, depth: usize) {
        if items > 0 {
            self.line(depth - 1);
        }
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            self.text.push_str(&" ".repeat(indent.min(64) * depth));
        }
    }

    fn string(&mut self, text: &str) {
        let quoted = serde_json::to_string(text).unwrap_or_default();
        if !self.ascii {
            return self.text.push_str(&quoted);
        }
        for letter in quoted.chars() {
            if letter.is_ascii() {
                self.text.push(letter);
            } else {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    self.text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}
