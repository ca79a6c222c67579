//! Faults that the model can be given on purpose.

use std::str::FromStr;

use doorbell_contract::{Field, HwCompletion};
use doorbell_host::queue::COMPLETION_WORDS;

/// One fault of the model, counted over its whole life. In text: `token:NTH`, `completion:NTH:FIELD`, `hang:AFTER`.
#[derive(Clone, Copy, Debug)]
pub enum Mutation {
    /// The `nth` token (from 0) has its lowest bit flipped in memory; the digest is that of the right one.
    Token {
        /// Which token.
        nth: u64,
    },
    /// The `nth` completion (from 0) has the lowest bit of a field flipped; of `phase`, its one bit.
    Completion {
        /// Which completion.
        nth: u64,
        /// Which field.
        field: Field<HwCompletion>,
    },
    /// No answer after this many completions.
    Hang {
        /// Completions before.
        after: u64,
    },
}

/// A text that is no [`Mutation`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is no fault of the model: expected token:NTH, completion:NTH:FIELD or hang:AFTER, with FIELD one of {}",
    HwCompletion::FIELDS.map(|field| field.name).join(", ")
)]
pub struct BadMutation {
    text: String,
}

impl FromStr for Mutation {
    type Err = BadMutation;

    fn from_str(text: &str) -> Result<Self, BadMutation> {
        let parts: Vec<&str> = text.split(':').collect();
        let parsed = match parts[..] {
            ["token", nth] => nth.parse().ok().map(|nth| Self::Token { nth }),
            ["hang", after] => after.parse().ok().map(|after| Self::Hang { after }),
            ["completion", nth, name] => nth.parse().ok().and_then(|nth| {
                let field = HwCompletion::FIELDS.into_iter().find(|field| field.name == name)?;
                Some(Self::Completion { nth, field })
            }),
            _ => None,
        };
        parsed.ok_or_else(|| BadMutation { text: text.to_owned() })
    }
}

/// A mutation at work.
#[derive(Debug)]
pub(super) struct Mutator {
    mutation: Mutation,
    tokens: u64,
    completions: u64,
}

impl Mutator {
    pub fn new(mutation: Mutation) -> Self {
        Self { mutation, tokens: 0, completions: 0 }
    }

    pub fn hangs(&self) -> bool {
        matches!(self.mutation, Mutation::Hang { after } if self.completions >= after)
    }

    pub fn token(&mut self, token: u32) -> u32 {
        let hit = matches!(self.mutation, Mutation::Token { nth } if nth == self.tokens);
        self.tokens += 1;
        token ^ u32::from(hit)
    }

    #[cold]
    pub fn completion(&mut self, mut words: [u64; COMPLETION_WORDS]) -> [u64; COMPLETION_WORDS] {
        if let Mutation::Completion { nth, field } = self.mutation
            && nth == self.completions
        {
            bytemuck::bytes_of_mut(&mut words)[field.offset] ^= if field.name == "phase" { 0x80 } else { 1 };
        }
        self.completions += 1;
        words
    }
}
