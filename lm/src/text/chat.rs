//! Chat templates as `transformers` renders them, within the limits of untrusted files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};

use crate::limits::{self, TEMPLATE_BYTES, TEMPLATE_DEPTH, TEMPLATE_OUTPUT, TEMPLATE_STEPS};

/// Renders what a user says, up to where the answer begins; `special` are the texts of `bos_token` and its like.
pub(super) fn render(
    template: &str,
    says: &str,
    special: &BTreeMap<String, String>,
) -> Result<String, String> {
    if template.len() as u64 > TEMPLATE_BYTES.value() {
        return Err(TEMPLATE_BYTES.exceeded());
    }
    let template = without_generation(template);
    limits::contained(|| rendered(&template, says, special))?
}

fn rendered(template: &str, says: &str, special: &BTreeMap<String, String>) -> Result<String, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(TEMPLATE_STEPS.value()));
    environment.set_recursion_limit(usize::try_from(TEMPLATE_DEPTH.value()).unwrap_or(usize::MAX));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // As Python prints them.
    environment.set_formatter(|out, _, value| {
        let text = match value.kind() {
            ValueKind::None => "None",
            ValueKind::Bool if value.is_true() => "True",
            ValueKind::Bool => "False",
            _ => return write!(out, "{value}").map_err(Error::from),
        };
        out.write_str(text).map_err(Error::from)
    });
    environment.add_function("raise_exception", |text: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_function("strftime_now", |format: String| {
        let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |since| since.as_secs() as i64)
        };
        strftime(seconds.unwrap_or_else(now), &format)
    });
    environment.add_filter("tojson", |value: Value, options: Kwargs| -> Result<String, Error> {
        let indent = options.get::<Option<usize>>("indent")?;
        let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
        let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
        let separators = options.get::<Option<(String, String)>>("separators")?;
        options.assert_all_used()?;
        let item = if indent.is_some() { "," } else { ", " };
        let (item, pair) = separators.unwrap_or_else(|| (item.into(), ": ".into()));
        let mut json = Json { text: String::new(), indent, ascii, sorted, item, pair };
        json.put(&value, 1)?;
        Ok(json.text)
    });
    let failed = |error: Error| match error.kind() {
        ErrorKind::OutOfFuel => TEMPLATE_STEPS.exceeded(),
        _ => error.to_string(),
    };
    environment.add_template("chat", template).map_err(failed)?;
    let messages = [context! { role => "user", content => says }];
    let mut values: BTreeMap<&str, Value> = BTreeMap::new();
    for (name, text) in special {
        values.insert(name, Value::from(text.as_str()));
    }
    values.insert("messages", Value::from_serialize(&messages));
    values.insert("add_generation_prompt", Value::from(true));
    values.insert("tools", Value::from(()));
    values.insert("documents", Value::from(()));
    let mut out = Bounded { bytes: vec![], most: TEMPLATE_OUTPUT.value(), full: false };
    let chat = environment.get_template("chat").map_err(failed)?;
    let result = chat.render_to_write(values, &mut out);
    if out.full {
        return Err(TEMPLATE_OUTPUT.exceeded());
    }
    result.map_err(failed)?;
    String::from_utf8(out.bytes).map_err(|error| error.to_string())
}

/// Blocks `{% generation %}` mark what an assistant said, for training; they render as what is in them.
fn without_generation(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        text.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let name = tag[2..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match name {
            "generation" => text.push_str(&tag.replace("generation", "with")),
            "endgeneration" => text.push_str(&tag.replace("endgeneration", "endwith")),
            _ => text.push_str(tag),
        }
        rest = after;
    }
    text + rest
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
    item: String,
    pair: String,
}

impl Json {
    fn put(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth as u64 > TEMPLATE_DEPTH.value() {
            return Err(Error::new(ErrorKind::InvalidOperation, TEMPLATE_DEPTH.exceeded()));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool | ValueKind::Number => self.text.push_str(&value.to_string()),
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
