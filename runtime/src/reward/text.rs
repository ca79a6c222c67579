//! What rules over text read.

use std::fmt;
use std::sync::Arc;

use super::JudgeError;

/// How tokens become text.
type Decode = dyn Fn(&[u32]) -> Result<String, JudgeError> + Send + Sync;

/// The text of answers, and the reference answers that prompts come with: what judges by [`Rules`](super::Rules) share.
#[derive(Clone)]
pub struct Texts {
    decode: Arc<Decode>,
    /// Of each prompt.
    references: Arc<[Option<String>]>,
}

impl Texts {
    /// With a tokenizer's `decode`, and of each prompt its reference answer, if it has one: request `n` has prompt `n` modulo their
    /// number. There are none where nothing is known of the prompts.
    pub fn new(
        decode: impl Fn(&[u32]) -> Result<String, JudgeError> + Send + Sync + 'static,
        references: Vec<Option<String>>,
    ) -> Texts {
        Texts { decode: Arc::new(decode), references: references.into() }
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, JudgeError> {
        (self.decode)(tokens)
    }

    /// Of all prompts.
    pub(super) fn references(&self) -> &[Option<String>] {
        &self.references
    }

    /// Of the prompt of a request.
    pub(super) fn reference(&self, request: u64) -> Option<&str> {
        let prompt = request.checked_rem(self.references.len() as u64)?;
        self.references[prompt as usize].as_deref()
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Texts").field("references", &self.references).finish_non_exhaustive()
    }
}
