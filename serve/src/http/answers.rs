//! From asks to answers: whole, or as they come.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Value, json};

use super::Server;
use super::error::Wrong;
use super::names::Named;
use crate::engine::{Answers, Ask, End, Finish, Piece, VersionSpan};
use crate::fault::{self, Fault};

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which of all prompts' answers it is, from 0.
    pub index: u32,
    pub tokens: Vec<u32>,
    pub logps: Vec<i32>,
    pub text: String,
    /// Tokens of its prompt that were kept from earlier requests.
    pub cached: u32,
    pub end: End,
}

/// Prompts that are being answered.
pub struct Asked {
    server: Arc<Server>,
    answers: Vec<Answers>,
    members: u32,
    /// One name for all prompts, one for each, or none.
    named: Vec<Named>,
}

/// Has prompts answered, under one name for all, one for each, or none.
pub fn ask(server: &Arc<Server>, asks: Vec<Ask>, names: Vec<String>) -> Result<Asked, Wrong> {
    for ask in &asks {
        server.known("prompt", &ask.prompt)?;
        server.known("stop_token_ids", &ask.stops.tokens)?;
        let (prompt, positions) = (ask.prompt.len() as u64, u64::from(server.positions));
        if prompt + u64::from(ask.most) > positions {
            let most = ask.most;
            return Err(Wrong::request(format!(
                "the prompt has {prompt} tokens and the answer may have {most}, and the model has {positions} positions; shorten either"
            )));
        }
        server.engine.check(ask).map_err(Wrong::request)?;
    }
    let fault = server.engine.size().fault;
    let mut asks = fault::halves(fault, asks);
    if fault == Some(Fault::SeedIgnored) {
        asks.iter_mut().for_each(|(ask, _)| ask.draws.key = server.draw());
    }
    let members = asks.first().map_or(1, |(ask, _)| ask.members);
    // Those that were taken are aborted if one is not.
    let all = || asks.into_iter().map(|(ask, wait)| server.engine.ask_by_fault(ask, wait)).collect();
    let (answers, named) = Named::begin(server, names, all)?;
    Ok(Asked { server: server.clone(), answers, members, named })
}

impl Asked {
    /// Waits for all of them. They have their names until this is dropped.
    pub async fn whole(&mut self) -> Result<Vec<Choice>, Wrong> {
        let mut choices = vec![];
        for (prompt, mut answers) in (0..).zip(std::mem::take(&mut self.answers)) {
            choices.extend(all(&self.server, prompt * self.members, &mut answers).await?);
        }
        Ok(choices)
    }

    /// Has more asked for a request that was taken, each for one of its `prompts`, under their names; waits for all. What was aborted in between is
    /// not asked.
    pub async fn more(&self, prompts: usize, asks: Vec<(usize, Ask)>) -> Result<Vec<Option<Choice>>, Wrong> {
        let mut asked = vec![];
        for (prompt, ask) in asks {
            let ask = || self.server.engine.ask_more(ask);
            asked.push(match self.named.get(prompt * self.named.len() / prompts.max(1)) {
                Some(named) => named.ask(ask)?,
                None => Some(ask()?),
            });
        }
        let mut choices = vec![];
        for answers in asked {
            choices.push(match answers {
                Some(mut answers) => all(&self.server, 0, &mut answers).await?.pop(),
                None => None,
            });
        }
        Ok(choices)
    }

    /// Tells of all of them as they come: `tell` makes what is sent of each piece, with its index, and `last` what is sent behind the last.
    pub fn streamed(
        self,
        mut tell: impl FnMut(u32, Piece) -> Vec<Value> + Send + 'static,
        last: impl FnOnce() -> Vec<Value> + Send + 'static,
    ) -> Response {
        let Asked { server, answers, members, named } = self;
        let each = (0u32..).zip(answers).map(|(prompt, answers)| Box::pin(pieces(prompt * members, answers)));
        let told = stream::select_all(each).flat_map(move |(first, mut piece)| {
            if let Some(end) = &mut piece.end {
                fault::relabel(server.engine.size().fault, end, || server.engine.version());
            }
            let values = match &piece.end {
                Some(End { finish: Finish::Failed(why), .. }) => {
                    vec![json!({ "error": { "message": why, "type": "internal_error", "code": 500 } })]
                }
                _ => tell(first + piece.member, piece),
            };
            stream::iter(values)
        });
        let behind = stream::once(async move {
            drop(named);
            stream::iter(last())
        });
        let lines = told.chain(behind.flatten()).map(|value| Event::default().data(value.to_string()));
        let done = stream::once(async { Event::default().data("[DONE]") });
        Sse::new(lines.chain(done).map(Ok::<_, Infallible>)).into_response()
    }
}

/// All answers to a prompt; `first` is the index of the first.
async fn all(server: &Server, first: u32, asked: &mut Answers) -> Result<Vec<Choice>, Wrong> {
    let mut whole: Vec<Option<Choice>> = vec![None; asked.members as usize];
    let mut parts: Vec<(Vec<u32>, Vec<i32>, String)> = vec![Default::default(); whole.len()];
    while let Some(piece) = asked.pieces.recv().await {
        let Piece { member, tokens, logps, text, cached, end } = piece;
        let part = &mut parts[member as usize];
        part.0.extend(tokens);
        part.1.extend(logps);
        part.2.push_str(&text);
        if let Some(mut end) = end {
            fault::relabel(server.engine.size().fault, &mut end, || server.engine.version());
            let (tokens, logps, text) = std::mem::take(part);
            whole[member as usize] = Some(Choice { index: first + member, tokens, logps, text, cached, end });
        }
    }
    let each = whole.into_iter().map(|choice| match choice {
        None => Err(Wrong::failed(GONE)),
        Some(Choice { end: End { finish: Finish::Failed(why), .. }, .. }) => Err(Wrong::failed(why)),
        Some(choice) => Ok(choice),
    });
    each.collect()
}

/// What is said of answers whose end nobody told.
const GONE: &str = "the engine has ended; /health says why";

/// The pieces of one prompt's answers, with the index of the first of these. Each ends, as one that failed if nobody tells its end. Whoever drops the
/// stream aborts them.
fn pieces(first: u32, answers: Answers) -> impl Stream<Item = (u32, Piece)> {
    let lives: Vec<u32> = (0..answers.members).collect();
    stream::unfold((answers, lives), move |(mut answers, mut lives)| async move {
        let piece = match answers.pieces.recv().await {
            Some(piece) => piece,
            None => Piece::failed(*lives.last()?, GONE),
        };
        lives.retain(|&member| piece.end.is_none() || member != piece.member);
        Some(((first, piece), (answers, lives)))
    })
}

/// A log-probability, natural.
pub fn logp(word: i32) -> f64 {
    f64::from(word) / 65_536.0
}

/// How the endpoints of OpenAI's shape say why an answer ended, and what stopped it.
pub fn reasons(finish: &Finish) -> (&'static str, Value) {
    match finish {
        Finish::Length => ("length", Value::Null),
        Finish::EndToken => ("stop", Value::Null),
        Finish::StopToken(token) => ("stop", json!(token)),
        Finish::StopText(text) => ("stop", json!(text)),
        Finish::Aborted => ("abort", Value::Null),
        Finish::Failed(_) => ("error", Value::Null),
    }
}

/// Spans of versions, as vLLM tells them.
pub fn versions(spans: &[VersionSpan]) -> Value {
    spans
        .iter()
        .map(|span| json!({ "version": span.version, "start": span.start, "end": span.end }))
        .collect()
}

/// Log-probabilities of a prompt's tokens, as vLLM tells them: null for the first one.
pub fn scored(server: &Server, prompt: &[u32], choice: Option<&Choice>) -> Value {
    // An answer that ended before its prompt was scored has no log-probabilities of the prompt.
    let words = choice.map(|choice| &choice.end.prompt_logps).filter(|words| words.len() + 1 == prompt.len());
    let Some(words) = words else { return Value::Null };
    let each = prompt.iter().skip(1).zip(words).map(|(&token, &word)| {
        let text = server.token(token);
        json!({ token.to_string(): { "logprob": logp(word), "rank": null, "decoded_token": text } })
    });
    std::iter::once(Value::Null).chain(each).collect()
}

/// Counts of tokens: of prompts, of those that were kept from earlier requests among these, and of answers.
pub fn usage(prompts: u64, cached: u64, answers: u64) -> Value {
    json!({
        "prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

/// Tokens of prompts that were kept from earlier requests; each prompt has `members` answers.
pub fn cached(choices: &[Choice], members: u32) -> u64 {
    choices.iter().step_by(members.max(1) as usize).map(|choice| u64::from(choice.cached)).sum()
}
