//! The oracle beside the device: each token as soon as it is in memory, and at the end the keys and values.

use doorbell_lm::sample::Sharpness;
use doorbell_verify::language::{Reference, Sampling, Version};
use serde::Serialize;

/// The first thing in which the device and the oracle differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "what")]
pub enum Wrong {
    /// Another token.
    Token {
        /// Its number in the answer, from 0.
        place: usize,
        /// What the device wrote.
        found: u32,
        /// What the oracle drew.
        expected: u32,
    },
    /// The token is right, its log-probability is not; 16 fraction bits.
    Logp {
        /// The token's number in the answer, from 0.
        place: usize,
        /// What the device wrote.
        found: i32,
        /// What the oracle computed.
        expected: i32,
    },
    /// The tokens are right, and a key or a value is not.
    KeyValue {
        /// Where, in words.
        place: String,
    },
}

/// How far the oracle has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Tokens of the answer that were compared.
    pub tokens: usize,
    /// Whether keys and values were compared too: at the end.
    pub whole: bool,
    /// The first difference.
    pub wrong: Option<Wrong>,
}

pub(crate) struct Check {
    reference: Reference,
    sampling: Sampling,
    prompt: usize,
    pub checked: Checked,
}

impl Check {
    pub fn new(version: &Version, prompt: &[u32], sharpness: Sharpness, seed: u32) -> Self {
        Self {
            reference: Reference::new(version, prompt),
            sampling: Sampling::new(sharpness, seed, 0),
            prompt: prompt.len(),
            checked: Checked { tokens: 0, whole: false, wrong: None },
        }
    }

    /// Compares one more token of the answer. Behind the first difference nothing is compared: what follows depends on it.
    pub fn token(&mut self, version: &Version, token: u32, logp: i32) {
        if self.checked.wrong.is_some() {
            return;
        }
        let place = self.checked.tokens;
        // A token beyond the vocabulary has no row that the oracle could go on from.
        let beyond = token as usize >= version.model.shape.vocabulary;
        self.reference.tokens.push(if beyond { 0 } else { token });
        let steps = self.reference.teach(&[(usize::MAX, version)], self.sampling, self.prompt + place);
        let Some(step) = steps.first() else { return };
        self.checked.tokens += 1;
        if step.token != token {
            self.checked.wrong = Some(Wrong::Token { place, found: token, expected: step.token });
        } else if step.logp != logp {
            self.checked.wrong = Some(Wrong::Logp { place, found: logp, expected: step.logp });
        }
    }

    /// Compares keys and values; `blocks` has the bytes of each block of the sequence.
    pub fn end(&mut self, version: &Version, blocks: &[Vec<u8>]) {
        self.checked.whole = true;
        if self.checked.wrong.is_some() {
            return;
        }
        let made = self.reference.made();
        let difference = self.reference.kv_difference(version, blocks, 0, made);
        self.checked.wrong = difference.map(|place| Wrong::KeyValue { place: place.to_string() });
    }

    /// Positions whose keys and values the oracle has made.
    pub fn made(&self) -> usize {
        self.reference.made()
    }
}
