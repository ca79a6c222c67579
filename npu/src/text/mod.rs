//! Words as text, and back.
//!
//! A line is a name and its fields, `gemv dest=512 src=300 acc scale desc=1 shape=3 lanes=4`: numbers by their name, in any order,
//! and flags that are 1. Addresses are in words, whatever the word's own unit. What follows `;` is a comment.

mod assemble;

use crate::isa::{Field, Form, Unit};

pub use assemble::{AssembleError, Wrong, assemble};

/// Words of a line: operands of VEC, ATTN and HEAD are in lines.
const LINE_WORDS: u64 = 4;

/// A word as text; one that is none as `.word`, with the reason as a comment.
pub fn disassemble(word: u64) -> String {
    match Form::of(word) {
        Ok(form) => {
            form.fields.iter().fold(form.mnemonic.to_owned(), |text, field| match written(field, word) {
                Some(part) => text + " " + &part,
                None => text,
            })
        }
        Err(fault) => format!(".word {word:#018x} ; {fault}"),
    }
}

/// A program as text, each word with its place and its bits.
pub fn listing(words: &[u64]) -> String {
    let line = |(pc, &word): (usize, &u64)| format!("{:<64} ; {pc:3}  {word:016x}\n", disassemble(word));
    words.iter().enumerate().map(line).collect()
}

fn written(field: &Field, word: u64) -> Option<String> {
    let bits = field.of(word);
    match field.unit {
        Unit::Flag => (bits == 1).then(|| field.name.to_owned()),
        Unit::Number => Some(format!("{}={bits}", field.name)),
        Unit::Line => Some(format!("{}={}", field.name, bits * LINE_WORDS)),
        Unit::Signed => {
            let up = 64 - field.width();
            Some(format!("{}={}", field.name, (bits << up) as i64 >> up))
        }
    }
}

#[cfg(test)]
mod tests;
