//! What can be wrong with a file of a trace, or of prompts.

use std::io;

use super::Format;

/// Why a trace, or a file of prompts, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file itself could not be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Name of the file.
        file: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Nothing but blank lines.
    #[error("{file}: the file is empty; {}", known_formats())]
    Empty {
        /// Name of the file.
        file: String,
    },
    /// The first line is that of no known format.
    #[error("{file}:1:1: not a trace in a known format; found `{}`\n{}", found.escape_debug(), known_formats())]
    Unrecognised {
        /// Name of the file.
        file: String,
        /// The beginning of its first line.
        found: String,
    },
    /// A line is not what the format asks for.
    #[error("{file}:{line}:{column}: {problem}\nexpected {expected}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Byte within the line, from 1; where a field is missing, the end of its record.
        column: usize,
        /// What was found.
        problem: String,
        /// What should have stood there.
        expected: String,
    },
}

fn known_formats() -> String {
    let known: Vec<String> =
        Format::ALL.iter().map(|format| format!("\n  {format}: {}", format.signature())).collect();
    format!("known formats:{}", known.concat())
}
