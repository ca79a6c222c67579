//! What a page draws.

use serde::Serialize;

use crate::ask::Phase;
use crate::check::Checked;
use crate::units::Word;

/// A token of the answer.
#[derive(Clone, Debug, Serialize)]
pub struct Token {
    /// Its number.
    pub token: u32,
    /// What it adds to the text; empty as long as a letter is not whole.
    pub text: String,
    /// Its log-probability, 16 fraction bits.
    pub logp: i32,
    /// Whether it ends the text.
    pub ends: bool,
}

/// A field of a record of the contract.
#[derive(Clone, Debug, Serialize)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// In hexadecimal: 64 bits are more than a number of JavaScript holds.
    pub value: String,
}

/// A register as it was read last.
#[derive(Clone, Debug, Serialize)]
pub struct Register {
    /// Its name.
    pub name: &'static str,
    /// What it held.
    pub value: u32,
}

/// A ring: running indices, of which the lower bits are the slot.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Ring {
    /// Slots.
    pub depth: u32,
    /// The consumer's index.
    pub head: u32,
    /// The producer's index.
    pub tail: u32,
}

/// All that a page draws of a moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// How far the answer is.
    pub phase: Phase,
    /// Clock cycles since the device was made.
    pub cycle: u64,
    /// The prompt's tokens, as texts.
    pub prompt: Vec<String>,
    /// The answer's tokens from the asked one on.
    pub tokens: Vec<Token>,
    /// Tokens of the whole answer.
    pub made: usize,
    /// The descriptor that was submitted last: its fields.
    pub descriptor: Vec<Field>,
    /// Its 64 bytes as they lie in the ring, in hexadecimal.
    pub bytes: String,
    /// Its slot's running index.
    pub slot: u32,
    /// The completion that came last.
    pub completion: Vec<Field>,
    /// Completions that came.
    pub completions: u64,
    /// The submission queue, as the host has it.
    pub submission: Ring,
    /// The completion queue, as the host has it.
    pub completed: Ring,
    /// The registers, as of `registers_at`.
    pub registers: Vec<Register>,
    /// The clock cycle in which they were read.
    pub registers_at: u64,
    /// Cycles in which each unit of engine 1 had a word, since the device was made.
    pub busy: [u64; 4],
    /// Words that engine 1 has done.
    pub words: u64,
    /// The last of them.
    pub word: Option<Word>,
    /// The pins of the last cycles, packed as `doorbell_cosim::strip` says.
    pub strip: Vec<u64>,
    /// What the oracle says.
    pub checked: Option<Checked>,
    /// The same in a sentence.
    pub verdict: Option<String>,
    /// The sha256 of the answer, once it is whole.
    pub sha256: Option<String>,
    /// Why it failed, why it waits, or why there is no answer.
    pub note: Option<String>,
    /// Who waits for whom, while no completion comes.
    pub chain: Vec<String>,
}
