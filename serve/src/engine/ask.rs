//! What a client asks for, and what it hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_runtime::pipeline::{Draws, Unstored};
use tokio::sync::mpsc::UnboundedSender;

use crate::fault::{Fault, Wait};

/// A prompt, and how it is to be answered.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its tokens.
    pub prompt: Vec<u32>,
    /// Answers, at least 1: the members of a group.
    pub members: u32,
    /// Longest answer, in tokens.
    pub most: u32,
    /// How tokens are drawn.
    pub draws: Draws,
    /// Whether the model's own end tokens end an answer.
    pub ends: bool,
    /// What else ends one.
    pub stops: Stops,
    /// Whether tokens are wanted as they come.
    pub streams: bool,
    /// Whether the tokens of the prompt are scored.
    pub scored: bool,
    /// Keys and values are shared with asks of equal salt only.
    pub salt: u64,
}

/// What ends an answer beside its length and the model's end tokens.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Tokens: the answer ends with the first of these.
    pub tokens: Vec<u32>,
    /// Texts: the answer ends with the token after which its text is known to hold the first of these. That is the one behind it where the text
    /// ends in a run of byte tokens.
    pub texts: Vec<String>,
    /// Whether that text is a part of the answer's text.
    pub keeps_text: bool,
}

impl Stops {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.texts.is_empty()
    }
}

/// Tokens of an answer, as they come: all of them at its end if the client does not want them before.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Which answer, from 0.
    pub member: u32,
    /// New tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities under the distribution that they were drawn from, natural, with 16 fraction bits.
    pub logps: Vec<i32>,
    /// New text. It lags behind the tokens while a letter is not whole, or a text that ends the answer may have begun.
    pub text: String,
    /// Tokens of the prompt whose keys and values were kept from earlier asks.
    pub cached: u32,
    /// How it ended; nothing follows.
    pub end: Option<End>,
}

impl Piece {
    /// The end of an answer, without a token.
    pub(super) fn ended(member: u32, finish: Finish) -> Piece {
        let end = End { finish, versions: vec![], prompt_versions: vec![], prompt_logps: vec![] };
        Piece { member, tokens: vec![], logps: vec![], text: String::new(), cached: 0, end: Some(end) }
    }

    /// The same of one that failed.
    pub(crate) fn failed(member: u32, why: &str) -> Piece {
        Piece::ended(member, Finish::Failed(why.to_owned()))
    }
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// Names of the versions that made its tokens.
    pub versions: Vec<VersionSpan>,
    /// Names of the versions that made keys and values of the prompt's tokens but the last, whose are made by the step that adds the first
    /// token of the answer.
    pub prompt_versions: Vec<VersionSpan>,
    /// Log-probabilities of the prompt's tokens but the first, at temperature 1, natural, with 16 fraction bits, if the prompt was scored.
    pub prompt_logps: Vec<i32>,
}

/// Tokens of an answer, or of a prompt, that one version made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSpan {
    /// The version's name.
    pub version: String,
    /// The number of its weights. Two versions of the same name may have different weights.
    pub weights: u64,
    /// Its first token, from 0.
    pub start: u32,
    /// The token behind its last.
    pub end: u32,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It is as long as it may be.
    Length,
    /// By an end token of the model.
    EndToken,
    /// By a token of [`Stops::tokens`].
    StopToken(u32),
    /// By a text of [`Stops::texts`].
    StopText(String),
    /// Somebody aborted it. It has the tokens that it had.
    Aborted,
    /// It failed.
    Failed(String),
}

impl From<Unstored> for Finish {
    fn from(why: Unstored) -> Finish {
        match why {
            Unstored::Aborted => Finish::Aborted,
            Unstored::Failed(reason) => Finish::Failed(reason.to_string()),
            Unstored::Stale(versions) => {
                Finish::Failed(format!("its oldest tokens are {versions} versions old (R22)"))
            }
        }
    }
}

/// An ask on its way through the engine.
#[derive(Debug)]
pub(super) struct Job {
    /// Names it among those that live.
    pub ticket: u64,
    pub ask: Ask,
    pub to: UnboundedSender<Piece>,
    /// Set once nobody wants it any more.
    pub cancelled: Arc<AtomicBool>,
    /// A fault that is planted.
    pub fault: Option<Fault>,
    /// What it waits for, by that fault.
    pub wait: Option<Wait>,
}

impl Job {
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Tells that all its answers ended without a token.
    pub fn end(&self, finish: &Finish) {
        for member in 0..self.ask.members {
            // Whoever has gone does not hear it.
            let _ = self.to.send(Piece::ended(member, finish.clone()));
        }
    }
}
