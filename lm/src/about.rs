//! What surrounds a model's weights.

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
    /// Tokens behind which nothing follows.
    pub ends: Vec<u32>,
    /// Token that a sequence begins with, where one does.
    pub begin: Option<u32>,
}
