//! Text to tokens and back, and the prompt of a chat.

mod apart;
mod chat;
mod fitting;
mod stream;

use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;
use thiserror::Error;
use tokenizers::Tokenizer;

pub use self::stream::Stream;
use crate::contained::contained;
use doorbell_lm::About;

/// Why text cannot be had.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TextError {
    /// The tokeniser cannot be used.
    #[error("the model's tokeniser cannot be used: {0}; import the model again")]
    Tokenizer(String),
    /// The template of a chat cannot be used.
    #[error("the model's template of a chat cannot be used: {0}; give the prompt as it stands, with --raw")]
    Chat(String),
    /// The tokeniser knows tokens that the model has not.
    #[error(
        "the tokeniser gives token {token} for the text, and the model has {vocabulary}; give a text without that token, or a model with its own \
         tokeniser"
    )]
    Beyond {
        /// Which token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
}

/// A model's tokeniser.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    about: About,
    vocabulary: usize,
}

impl Text {
    /// The tokeniser of a model with so many tokens.
    ///
    /// # Errors
    /// If the file's is none.
    pub fn new(about: &About, vocabulary: usize) -> Result<Self, TextError> {
        let fitted = fitting::fitted(&about.tokenizer).map_err(TextError::Tokenizer)?;
        let tokenizer = contained(|| serde_json::from_value::<Tokenizer>(fitted))
            .map_err(TextError::Tokenizer)?
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(Self { tokenizer, about: About { tokenizer: String::new(), ..about.clone() }, vocabulary })
    }

    /// Turns a short text into tokens and back, as an importer does before it writes a model that nobody could use.
    ///
    /// # Errors
    /// As [`Text::encode`] and [`Text::decode`].
    pub fn tried(self) -> Result<Self, TextError> {
        let tokens = self.encode("The quick brown fox, 12 times:\n\tjumps!")?;
        self.decode(&tokens)?;
        Ok(self)
    }

    /// What people should know of the tokeniser, a line each: that it adds tokens which the model has not.
    pub fn notes(&self) -> Vec<String> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let beyond = added.iter().filter(|&(&id, _)| id as usize >= self.vocabulary);
        let Some((id, first)) = beyond.clone().min_by_key(|&(id, _)| id) else { return vec![] };
        vec![format!(
            "the model has {} tokens, and the tokeniser adds {} beyond them, the first {:?} with id {id}; a text that holds one is refused",
            self.vocabulary,
            beyond.count(),
            first.content
        )]
    }

    /// The tokens of a raw text: with what the tokeniser puts before and behind it, as the beginning of a sequence.
    ///
    /// # Errors
    /// If the tokeniser fails, or gives tokens that the model has not.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let begin = self.about.begin.into_iter().collect();
        self.tokens(text, begin, true)
    }

    /// The tokens of what [`Text::chat`] rendered, as it stands: the template says where a sequence begins.
    ///
    /// # Errors
    /// As [`Text::encode`].
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.tokens(text, vec![], false)
    }

    fn tokens(&self, text: &str, mut tokens: Vec<u32>, special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = contained(|| self.tokenizer.encode_fast(text, special))
            .map_err(TextError::Tokenizer)?
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        tokens.extend_from_slice(encoding.get_ids());
        match tokens.iter().find(|&&token| token as usize >= self.vocabulary) {
            Some(&token) => Err(TextError::Beyond { token, vocabulary: self.vocabulary }),
            None => Ok(tokens),
        }
    }

    /// Whether the model has a template of a chat.
    pub fn chats(&self) -> bool {
        !self.about.chat.is_empty()
    }

    /// Whether the model has a template for chats with tools: a template of its own for them, or one for all chats.
    pub fn chats_with_tools(&self) -> bool {
        self.chats() || !self.about.chat_tools.is_empty()
    }

    /// What a user says as the prompt of a chat, up to where the answer begins.
    ///
    /// # Errors
    /// If the template fails.
    pub fn chat(&self, says: &str) -> Result<String, TextError> {
        if !self.chats() {
            return Err(TextError::Chat("there is none".into()));
        }
        self.render(
            &self.about.chat,
            &Value::from(vec![context! { role => "user", content => says }]),
            &Value::from(()),
        )
    }

    /// Renders the messages of a chat as its prompt, up to the place where the answer begins. Messages are objects with a `role`, a
    /// `content` and any further fields that the template reads. `tools` is a list of objects, or null. `template` overrides the model's
    /// templates, one of which may be for chats with tools.
    ///
    /// # Errors
    /// If the template fails.
    pub fn chat_of(
        &self,
        messages: &impl Serialize,
        tools: &impl Serialize,
        template: Option<&str>,
    ) -> Result<String, TextError> {
        let (messages, tools) = (Value::from(Serde(messages)), Value::from(Serde(tools)));
        let own = match &self.about {
            About { chat_tools, .. } if !tools.is_none() && !chat_tools.is_empty() => chat_tools,
            about => &about.chat,
        };
        let template = template.unwrap_or(own);
        if template.is_empty() {
            return Err(TextError::Chat("there is none for chats without tools".into()));
        }
        self.render(template, &messages, &tools)
    }

    fn render(&self, template: &str, messages: &Value, tools: &Value) -> Result<String, TextError> {
        // Images of before name no texts.
        let special = self.about.special.clone().unwrap_or_else(|| {
            let ids = [("bos_token", self.about.begin), ("eos_token", self.about.ends.first().copied())];
            let text = |id: Option<u32>| self.tokenizer.id_to_token(id?);
            ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), text(id)?))).collect()
        });
        chat::render(template, messages, tools, &special).map_err(TextError::Chat)
    }

    /// Whether nothing follows this token.
    pub fn ends(&self, token: u32) -> bool {
        self.about.ends.contains(&token)
    }

    /// Turns tokens into text as they come.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(self)
    }

    /// Turns tokens into text as they arrive, as a continuation of `tokens`. It yields only the text that the new tokens add.
    pub fn stream_behind(&self, tokens: &[u32]) -> Stream<'_> {
        Stream::behind(self, tokens)
    }

    /// The text of tokens, without those that only steer, as an end; bytes that are no letter read as U+FFFD.
    ///
    /// # Errors
    /// If the tokeniser fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TextError> {
        let mut stream = self.stream();
        let mut text = stream.take(tokens)?;
        text.push_str(&stream.end()?);
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
