//! From text to words.

use thiserror::Error;

use super::LINE_WORDS;
use crate::isa::{Field, Form, Unit};

/// Why a line is no word.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}: {wrong}")]
#[non_exhaustive]
pub struct AssembleError {
    /// From 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub wrong: Wrong,
}

/// What is wrong with a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Wrong {
    /// No instruction has this name.
    #[error("there is no instruction {0:?}")]
    UnknownName(String),
    /// The instruction has no such field.
    #[error("{mnemonic} has no {name:?}: it has {has}")]
    UnknownField {
        /// Of the instruction.
        mnemonic: &'static str,
        /// As it was written.
        name: String,
        /// What there would be.
        has: String,
    },
    /// A field stands there twice.
    #[error("{0} stands there twice")]
    Twice(&'static str),
    /// A number is not said.
    #[error("{0}= is missing")]
    Missing(&'static str),
    /// A number without a value, or a flag with one.
    #[error("{0:?}: a number has a value after '=', a flag has none")]
    Value(String),
    /// Not a number.
    #[error("{0:?} is no number")]
    Number(String),
    /// More than the field holds.
    #[error("{name}={value} does not fit: {least} to {most}")]
    TooLarge {
        /// Of the field.
        name: &'static str,
        /// As it was written.
        value: i64,
        /// Smallest.
        least: i64,
        /// Largest.
        most: i64,
    },
    /// Not the first word of a line.
    #[error("{name}={value} is no multiple of 4")]
    Misaligned {
        /// Of the field.
        name: &'static str,
        /// As it was written.
        value: i64,
    },
}

/// The words of a program.
///
/// # Errors
/// The first line that is none.
pub fn assemble(text: &str) -> Result<Vec<u64>, AssembleError> {
    let lines = text.lines().enumerate().filter_map(|(number, line)| {
        let code = line.split_once(';').map_or(line, |(code, _)| code).trim();
        (!code.is_empty()).then(|| word(code).map_err(|wrong| AssembleError { line: number + 1, wrong }))
    });
    lines.collect()
}

fn word(code: &str) -> Result<u64, Wrong> {
    let mut parts = code.split_whitespace();
    let name = parts.next().unwrap_or_default();
    if name == ".word" {
        // A word as it is, for tests of what refuses it.
        let bits = parts.next().unwrap_or_default();
        let digits = bits.strip_prefix("0x").ok_or_else(|| Wrong::Number(bits.to_owned()))?;
        return u64::from_str_radix(digits, 16).map_err(|_| Wrong::Number(bits.to_owned()));
    }
    let form = Form::named(name).ok_or_else(|| Wrong::UnknownName(name.to_owned()))?;
    let (mut word, mut seen) = (form.value, 0u64);
    for part in parts {
        let (name, value) = part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
        let field = form.field(name).ok_or_else(|| unknown(form, name))?;
        if seen & field.mask() != 0 {
            return Err(Wrong::Twice(field.name));
        }
        seen |= field.mask();
        let bits = match (field.unit, value) {
            (Unit::Flag, None) => 1,
            (Unit::Flag, Some(_)) | (_, None) => return Err(Wrong::Value(part.to_owned())),
            (_, Some(value)) => bits_of(field, number(value)?)?,
        };
        word |= bits << field.low;
    }
    match form.fields.iter().find(|field| field.unit != Unit::Flag && seen & field.mask() == 0) {
        Some(field) => Err(Wrong::Missing(field.name)),
        None => Ok(word),
    }
}

fn unknown(form: &'static Form, name: &str) -> Wrong {
    let has: Vec<&str> = form.fields.iter().map(|field| field.name).collect();
    let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
    Wrong::UnknownField { mnemonic: form.mnemonic, name: name.to_owned(), has }
}

fn number(text: &str) -> Result<i64, Wrong> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| Wrong::Number(text.to_owned()))
}

fn bits_of(field: &'static Field, value: i64) -> Result<u64, Wrong> {
    let (unit, half) = match field.unit {
        Unit::Line => (LINE_WORDS as i64, 0),
        Unit::Signed => (1, 1i64 << (field.width() - 1)),
        _ => (1, 0),
    };
    let (least, most) = (-half, (field.most() as i64 - half) * unit);
    if !(least..=most).contains(&value) {
        return Err(Wrong::TooLarge { name: field.name, value, least, most });
    }
    if value % unit != 0 {
        return Err(Wrong::Misaligned { name: field.name, value });
    }
    Ok((value / unit) as u64 & field.most())
}
