//! Traces of requests: what is to be decoded, without the tokens themselves.
//!
//! A trace comes from a file in one of three formats, recognised by content ([`Format`]), or from the
//! seeded [`Generator`]. Doorbell's own format is JSON lines: a header
//! `{"doorbell_trace":1,"source":"…"}`, then one [`Request`] per line.
//!
//! Where the text is there, prompts come from a file of their own ([`Prompt`]).

mod azure;
mod error;
mod generate;
mod lines;
mod mooncake;
mod native;
mod prompts;
mod summary;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use error::TraceError;
pub use generate::{Generator, GeneratorError};
pub use native::VERSION;
pub use prompts::Prompt;
pub use summary::{Lengths, TraceSummary};

use lines::Lines;

/// Prompt tokens that one entry of [`Request::prefix`] stands for.
pub const PREFIX_BLOCK_TOKENS: u32 = 512;

/// One request: a prompt and the length of its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Milliseconds since the trace began.
    pub arrival_ms: u64,
    /// Length of the prompt, in tokens.
    pub prompt_tokens: u32,
    /// Length of the answer, in tokens; at least 1.
    pub output_tokens: u32,
    /// The prompt's blocks of [`PREFIX_BLOCK_TOKENS`] tokens, from its start: two requests that begin with the same
    /// ids begin with the same tokens. At most one id per started block; empty when nothing is known.
    pub prefix: Vec<u32>,
}

impl Request {
    /// What is wrong with the request beyond the types of its fields: the field, and what was expected of it.
    fn flaw(&self) -> Option<(&'static str, String)> {
        if self.output_tokens == 0 {
            return Some(("output_tokens", "at least 1".into()));
        }
        let blocks = self.prompt_tokens.div_ceil(PREFIX_BLOCK_TOKENS) as usize;
        (self.prefix.len() > blocks).then(|| {
            let expected = format!(
                "at most {blocks} block ids for {} prompt tokens (blocks of {PREFIX_BLOCK_TOKENS}), not {}",
                self.prompt_tokens,
                self.prefix.len()
            );
            ("prefix", expected)
        })
    }
}

/// A file format that [`Trace::read`] recognises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Doorbell's own JSON lines.
    Doorbell,
    /// Mooncake's JSON lines (`timestamp`, `input_length`, `output_length`, `hash_ids`).
    Mooncake,
    /// The Azure LLM inference traces (`TIMESTAMP,ContextTokens,GeneratedTokens`).
    Azure,
}

impl Format {
    /// All formats, in the order in which they are tried.
    pub const ALL: [Format; 3] = [Format::Doorbell, Format::Mooncake, Format::Azure];

    /// How a file of this format begins, for error messages.
    pub fn signature(self) -> &'static str {
        match self {
            Format::Doorbell => r#"a first line {"doorbell_trace":1,"source":"…"}"#,
            Format::Mooncake => r#"lines {"timestamp":…,"input_length":…,"output_length":…,"hash_ids":[…]}"#,
            Format::Azure => "a first line TIMESTAMP,ContextTokens,GeneratedTokens",
        }
    }

    fn recognise(first_line: &str) -> Option<Format> {
        let has_key = |key: &str| first_line.trim_start().starts_with('{') && first_line.contains(key);
        if has_key(r#""doorbell_trace""#) {
            Some(Format::Doorbell)
        } else if has_key(r#""input_length""#) || has_key(r#""hash_ids""#) {
            Some(Format::Mooncake)
        } else if first_line.split(',').any(|name| name.trim() == "ContextTokens") {
            Some(Format::Azure)
        } else {
            None
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Doorbell => "doorbell trace",
            Format::Mooncake => "Mooncake JSON lines",
            Format::Azure => "Azure LLM CSV",
        })
    }
}

/// Reads a whole file or pipe, as users give them to commands. A device is refused: it may never end.
///
/// # Errors
/// If it cannot be read, or is a directory or a device.
pub fn read_input(path: &Path) -> io::Result<Vec<u8>> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory; give a file"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_char_device() || kind.is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device; give a file or a pipe"));
        }
    }
    fs::read(path)
}

/// A sequence of requests and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Where the requests come from, in words.
    pub source: String,
    /// The requests, in the order of the file.
    pub requests: Vec<Request>,
}

impl Trace {
    /// Reads a file in any known format.
    ///
    /// # Errors
    /// The file cannot be read, its format is not known, or a line is malformed.
    pub fn read(path: &Path) -> Result<(Trace, Format), TraceError> {
        let file = path.display().to_string();
        let bytes = read_input(path).map_err(|source| TraceError::Read { file: file.clone(), source })?;
        Trace::parse(&file, &bytes)
    }

    /// Reads the content of a file; `file` is its name in error messages.
    ///
    /// A byte order mark, CRLF line ends, a missing last newline and blank lines at the end are accepted.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn parse(file: &str, bytes: &[u8]) -> Result<(Trace, Format), TraceError> {
        let lines = Lines::split(file, bytes)?;
        let Some(first) = lines.first() else {
            return Err(TraceError::Empty { file: file.into() });
        };
        let format = Format::recognise(first).ok_or_else(|| TraceError::Unrecognised {
            file: file.into(),
            found: first.chars().take(80).collect(),
        })?;
        let trace = match format {
            Format::Doorbell => native::parse(&lines),
            Format::Mooncake => mooncake::parse(&lines),
            Format::Azure => azure::parse(&lines),
        }?;
        Ok((trace, format))
    }

    /// Writes the trace in Doorbell's own format.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        native::write(self, out)
    }

    /// The trace that `compare` uses when no file is given: 256 requests, generated with a fixed seed.
    pub fn built_in() -> Trace {
        Generator { output_median: 64, output_max: 512, prompt_median: 1024, ..Generator::new(256, 1, 4) }
            .generate()
            .expect("the built-in parameters are valid")
    }

    /// Totals and quantiles of the trace.
    pub fn summary(&self) -> TraceSummary {
        TraceSummary::of(self)
    }
}

#[cfg(test)]
mod tests;
