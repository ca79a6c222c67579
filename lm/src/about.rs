//! What surrounds a model's weights.

use std::collections::BTreeMap;

/// What a model is called, how text becomes its tokens, and where sequences end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// What whoever published it calls it.
    pub name: String,
    /// Licence of the weights, as far as it was told.
    pub licence: String,
    /// The tokeniser, as a tokenizer.json.
    pub tokenizer: String,
    /// The template of a chat, in Jinja; empty where there is none.
    pub chat: String,
    /// The template of a chat with tools, where that is another one; else empty.
    pub chat_tools: String,
    /// Tokens behind which nothing follows.
    pub ends: Vec<u32>,
    /// Token that a raw text begins with, where one does and the tokeniser does not put it there itself.
    pub begin: Option<u32>,
    /// The texts of tokens that a chat template names, as `bos_token`. Images of before do not have them.
    pub special: Option<BTreeMap<String, String>>,
}
