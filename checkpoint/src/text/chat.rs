//! Chat templates as `transformers` renders them, within the limits of untrusted files.

mod python;
mod source;

use std::collections::BTreeMap;
use std::io::{self, Write};

use chrono::{DateTime, NaiveDate, NaiveDateTime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};

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
    // Read the time here: the child must not wait for another thread's lock on the environment, nor read the time zone.
    let now = now()?;
    apart(bounds.output, || rendered(&source::rewritten(&template)?, messages, tools, special, bounds, now))
}

/// The local time, or the time of SOURCE_DATE_EPOCH in UTC.
fn now() -> Result<NaiveDateTime, String> {
    if let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let seconds = text.to_str().and_then(|text| text.parse().ok());
        let time = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        return time.map(|time| time.naive_utc()).ok_or_else(|| {
            format!(
                "SOURCE_DATE_EPOCH is {text:?}, expected seconds since 1970; unset it, or set another one"
            )
        });
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.map_err(|_| "the clock says that it is before 1970; set it".to_owned())?;
    // SAFETY: all fields are integers, except one pointer that is never followed.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or_default();
    // SAFETY: both values belong to this thread.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut time) };
    let [month, day, hour, minute, second] =
        [time.tm_mon + 1, time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec.min(59)]
            .map(|part| u32::try_from(part).unwrap_or_default());
    NaiveDate::from_ymd_opt(time.tm_year + 1900, month, day)
        .and_then(|date| date.and_hms_micro_opt(hour, minute, second, since.subsec_micros()))
        .ok_or_else(|| "the clock says no time; set it".to_owned())
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
    now: NaiveDateTime,
) -> Result<String, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(bounds.steps));
    environment.set_recursion_limit(usize::try_from(bounds.depth).unwrap_or(usize::MAX));
    python::add(&mut environment);
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

/// Formats like Python's `datetime.now().strftime`, whose time has no time zone.
fn strftime(now: NaiveDateTime, format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let wrong = || {
        let problem =
            format!("strftime_now({format:?}) has a format that is not known; use %Y-%m-%d and its like");
        Error::new(ErrorKind::InvalidOperation, problem)
    };
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut kind = letters.next().ok_or_else(wrong)?;
        let flag = matches!(kind, '-' | '_' | '0').then_some(kind);
        if flag.is_some() {
            kind = letters.next().ok_or_else(wrong)?;
        }
        let own = match kind {
            'f' => "",
            'c' => "%a %b %e %H:%M:%S %Y",
            'x' => "%m/%d/%y",
            'X' => "%H:%M:%S",
            'r' => "%I:%M:%S %p",
            'z' | 'Z' => "",
            '%' => "%%",
            'a' | 'A' | 'b' | 'B' | 'C' | 'd' | 'D' | 'e' | 'F' | 'g' | 'G' | 'h' | 'H' | 'I' | 'j' | 'k'
            | 'l' | 'm' | 'M' | 'n' | 'p' | 'P' | 'R' | 'S' | 't' | 'T' | 'u' | 'U' | 'V' | 'w' | 'W'
            | 'y' | 'Y' => {
                let flag = flag.map_or_else(String::new, String::from);
                write!(text, "{}", now.format(&format!("%{flag}{kind}"))).map_err(|_| wrong())?;
                continue;
            }
            _ => return Err(wrong()),
        };
        if flag.is_some() {
            return Err(wrong());
        }
        match kind {
            'f' => write!(text, "{:06}", now.and_utc().timestamp_subsec_micros()),
            _ => write!(text, "{}", now.format(own)),
        }
        .map_err(|_| wrong())?;
    }
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

fn no_json(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value of type {kind} cannot be written as JSON"))
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
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.text.push('{');
                for (number, key) in keys.iter().enumerate() {
                    self.begin(number, depth);
                    match key.kind() {
                        ValueKind::String => self.string(&key.to_string()),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            self.text.push('"');
                            self.put(key, depth)?;
                            self.text.push('"');
                        }
                        kind => return Err(no_json(kind)),
                    }
                    let pair = self.pair.clone();
                    self.text.push_str(&pair);
                    self.put(&value.get_item(key)?, depth + 1)?;
                }
                self.end(keys.len(), depth);
                self.text.push('}');
            }
            // The crate represents the sum of two lists as an iterator, so iterators, which Python rejects, have to be accepted here.
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
            ValueKind::String => self.string(&value.to_string()),
            kind => return Err(no_json(kind)),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match python::float(value).as_deref() {
            None => self.text.push_str(&value.to_string()),
            Some("nan") => self.text.push_str("NaN"),
            Some("inf") => self.text.push_str("Infinity"),
            Some("-inf") => self.text.push_str("-Infinity"),
            Some(number) => self.text.push_str(number),
        }
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
