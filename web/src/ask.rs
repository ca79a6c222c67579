//! What a visitor asks, and how far its answer is.

use serde::{Deserialize, Serialize};

/// A question to the language model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Ask {
    /// The beginning, as text.
    pub prompt: String,
    /// Most tokens of the answer.
    pub tokens: usize,
    /// Decides what is drawn.
    pub seed: u32,
    /// How freely tokens are drawn; 0 takes the most likely one each time.
    pub temperature: f64,
}

/// How far an answer is. The variants are in the order in which they follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The device is being given the model: a POLICY is in flight.
    Publish,
    /// Nothing is asked.
    Ready,
    /// Keys and values of the prompt are made: a PREFILL is in flight.
    Prefill,
    /// A DECODE is in flight, of one token.
    Decode,
    /// The answer is whole.
    Done,
    /// The device ended a descriptor with an error, or broke a rule.
    Failed,
}

impl Phase {
    /// Whether the device has something to do.
    pub fn is_busy(self) -> bool {
        matches!(self, Self::Publish | Self::Prefill | Self::Decode)
    }
}
