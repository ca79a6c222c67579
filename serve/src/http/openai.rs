//! OpenAI's endpoints, with the fields that vLLM adds to them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::answers::{self, Choice, cached, logp, reasons, usage, versions};
use super::error::Wrong;
use super::sampling::Sampling;
use super::{Place, Server, Told, apart, calls, named, names, now, read_held};
use crate::engine::{Ask, Piece};

/// A prompt, or several, as text or tokens.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens of one prompt.
    Tokens(Vec<u32>),
    /// Texts.
    Texts(Vec<String>),
    /// Tokens of several.
    Many(Vec<Vec<u32>>),
}

impl Prompt {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Prompt::Text(_) | Prompt::Tokens(_) => 1,
            Prompt::Texts(texts) => texts.len(),
            Prompt::Many(prompts) => prompts.len(),
        }
    }
}

/// Prompts of a request that are read at all: an empty one takes many times the bytes that it has in the request.
const MOST: usize = 1 << 16;

/// Read as it comes: kept as values first, a long prompt would take many times its own length.
impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Prompt, D::Error> {
        from.deserialize_any(OfPrompt)
    }
}

struct OfPrompt;

impl<'de> Visitor<'de> for OfPrompt {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Prompt: a text, tokens, or a list of either")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let mut prompt = match list.next_element()? {
            None => return Ok(Prompt::Tokens(vec![])),
            Some(Part::Token(token)) => Prompt::Tokens(vec![token]),
            Some(Part::Text(text)) => Prompt::Texts(vec![text]),
            Some(Part::Tokens(tokens)) => Prompt::Many(vec![tokens]),
        };
        loop {
            if prompt.count() > MOST {
                return Err(de::Error::custom(format!(
                    "there are more than {MOST} prompts, or tokens of one; send fewer"
                )));
            }
            match &mut prompt {
                Prompt::Text(_) => return Ok(prompt),
                Prompt::Tokens(all) => match list.next_element()? {
                    Some(token) => all.push(token),
                    None => return Ok(prompt),
                },
                Prompt::Texts(all) => match list.next_element()? {
                    Some(text) => all.push(text),
                    None => return Ok(prompt),
                },
                Prompt::Many(all) => match list.next_element()? {
                    Some(tokens) => all.push(tokens),
                    None => return Ok(prompt),
                },
            }
        }
    }
}

/// The first of a list.
enum Part {
    Token(u32),
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Part, D::Error> {
        from.deserialize_any(OfPart)
    }
}

struct OfPart;

impl<'de> Visitor<'de> for OfPart {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token, a text, or a list of tokens, as parts of a Prompt")
    }

    fn visit_u64<E: de::Error>(self, token: u64) -> Result<Part, E> {
        let bad = |_| de::Error::custom(format!("{token} is no token of a Prompt"));
        u32::try_from(token).map(Part::Token).map_err(bad)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Part, E> {
        Ok(Part::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Part, A::Error> {
        let mut tokens = vec![];
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Part::Tokens(tokens))
    }
}

/// What both endpoints read beside sampling.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Common {
    #[serde(deserialize_with = "named::model")]
    model: Option<String>,
    #[serde(deserialize_with = "named::stream")]
    stream: Option<bool>,
    #[serde(deserialize_with = "named::stream_options")]
    stream_options: Option<Value>,
    #[serde(deserialize_with = "named::request_id")]
    request_id: Option<String>,
    #[serde(deserialize_with = "named::return_token_ids")]
    return_token_ids: Option<bool>,
    #[serde(deserialize_with = "named::return_tokens_as_token_ids")]
    return_tokens_as_token_ids: Option<bool>,
    #[serde(deserialize_with = "named::echo")]
    echo: Option<bool>,
    #[serde(deserialize_with = "named::cache_salt")]
    cache_salt: Option<String>,
    #[serde(flatten)]
    sampling: Sampling,
}

impl Common {
    /// The client's name of the request, or one of the server's.
    fn id(&self, server: &Server, kind: &str) -> Result<String, Wrong> {
        match &self.request_id {
            Some(name) => names::check("request_id", name.clone()),
            None => Ok(server.id(kind)),
        }
    }

    fn wants(&self, logprobs: bool) -> Wants {
        Wants {
            logprobs,
            tops: false,
            ids: self.return_token_ids.unwrap_or(false),
            tokens_as_ids: self.return_tokens_as_token_ids.unwrap_or(false),
            usage: self
                .stream_options
                .as_ref()
                .and_then(|options| options.get("include_usage")?.as_bool())
                .unwrap_or(false),
        }
    }
}

/// What of an answer a client wants to see.
#[derive(Clone, Copy, Debug)]
struct Wants {
    logprobs: bool,
    /// Whether the client also wants the log-probabilities by the tokens' texts (`top_logprobs`).
    tops: bool,
    ids: bool,
    tokens_as_ids: bool,
    usage: bool,
}

const KNOWN: [&str; 11] = [
    "messages",
    "metadata",
    "parallel_tool_calls",
    "priority",
    "prompt",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
    "tools",
    "top_logprobs",
    "user",
];

#[derive(Clone, Debug, Deserialize)]
struct Completions {
    #[serde(deserialize_with = "named::prompt")]
    prompt: Prompt,
    #[serde(default, deserialize_with = "named::logprobs")]
    logprobs: Option<u32>,
    #[serde(default, deserialize_with = "named::add_special_tokens")]
    add_special_tokens: Option<bool>,
    #[serde(flatten)]
    common: Common,
}

/// Tokens of answers that are told as they come, and those of their prompts that were kept.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<(AtomicU64, AtomicU64)>);

impl Counts {
    fn count(&self, piece: &Piece) {
        self.0.0.fetch_add(piece.tokens.len() as u64, Ordering::Relaxed);
        if piece.member == 0 && piece.end.is_some() {
            self.0.1.fetch_add(piece.cached.into(), Ordering::Relaxed);
        }
    }

    fn usage(&self, prompts: u64) -> Value {
        usage(prompts, self.0.1.load(Ordering::Relaxed), self.0.0.load(Ordering::Relaxed))
    }
}

/// Bytes of the header that names the fields that were left alone.
const NAMES: usize = 1024;

/// Tells which fields were left alone.
pub fn noted(response: impl IntoResponse, ignored: &[String]) -> Response {
    let mut response = response.into_response();
    let mut all = String::new();
    for name in ignored.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic())) {
        if all.len() + name.len() > NAMES {
            all.push_str("...,");
            break;
        }
        all.push_str(name);
        all.push(',');
    }
    if let Ok(value) = HeaderValue::from_str(all.trim_end_matches(','))
        && !value.is_empty()
    {
        response.headers_mut().insert("x-doorbell-ignored", value);
    }
    response
}

/// `POST /v1/completions`.
pub async fn completions(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (completions, place) = read_held(&server, request).await?;
    let Completions { prompt, logprobs, add_special_tokens, common } = completions;
    server.names_model(common.model.as_deref())?;
    let mut ignored = common.sampling.unknown(&KNOWN)?;
    if logprobs.is_some_and(|most| most > 1) {
        let message = "log-probabilities are those of the tokens that were drawn; logprobs must be 0 or 1";
        return Err(Wrong::field("logprobs", message));
    }
    // A sampled token need not be the most likely one, so there are no top log-probabilities.
    if logprobs == Some(1) {
        ignored.push("top_logprobs".into());
    }
    let prompts = server.prompts(prompt, add_special_tokens.unwrap_or(true), place).await?;
    let streams = common.stream.unwrap_or(false);
    let echo = common.echo.unwrap_or(false);
    let scores = common.sampling.prompt_logprobs.is_some();
    if streams && (echo || scores) {
        return Err(Wrong::field("stream", "echo and prompt_logprobs come whole; leave out stream"));
    }
    let salt = server.salt(common.cache_salt.as_deref())?;
    let asks = prompts.iter().map(|prompt| {
        // OpenAI's own default.
        let most = server.room(prompt.len()).min(16);
        let ask = common.sampling.ask(prompt.clone(), most, server.draw(), streams)?;
        Ok(Ask { scored: ask.scored || echo && logprobs.is_some(), salt, ..ask })
    });
    let asks = asks.collect::<Result<Vec<Ask>, Wrong>>()?;
    let members = common.sampling.members();
    let raw = common.sampling.raw(&server, &asks)?;
    let wants = Wants { tops: logprobs == Some(0), ..common.wants(logprobs.is_some()) };
    let id = common.id(&server, "cmpl")?;
    // What came along may be long, and nothing of it is wanted any more.
    drop(common);
    let mut asked = answers::ask(&server, asks, vec![id.clone()])?;
    let head = json!({
        "id": id, "object": "text_completion", "created": now(), "model": server.model,
    });
    let read: u64 = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    if streams {
        let mut offsets = vec![0; prompts.len() * members as usize];
        let mut begun = vec![false; offsets.len()];
        let counts = Counts::default();
        let (counted, of, shape) = (counts.clone(), server.clone(), head.clone());
        let tell = move |index: u32, piece: Piece| {
            counted.count(&piece);
            let offset = &mut offsets[index as usize];
            let prompt = &prompts[index as usize / members as usize];
            let first = !std::mem::replace(&mut begun[index as usize], true);
            let mut choice = json!({
                "index": index, "text": piece.text,
                "logprobs": parallel(&of, &piece.tokens, &piece.logps, offset, wants),
                "finish_reason": null, "stop_reason": null,
                "token_ids": wants.ids.then_some(&piece.tokens),
                "prompt_token_ids": (wants.ids && first).then_some(prompt),
            });
            finish(&mut choice, piece.end.as_ref());
            vec![with(&shape, json!({ "choices": [choice] }))]
        };
        let last = move || match wants.usage {
            false => vec![],
            true => {
                vec![with(&head, json!({ "choices": [], "usage": counts.usage(read) }))]
            }
        };
        return Ok(noted(asked.streamed(tell, last), &ignored));
    }
    let mut choices = asked.whole().await?;
    if let Some(raw) = raw {
        raw.score(&server, &asked, &mut choices).await?;
    }
    let made = choices.iter().map(|choice| choice.tokens.len() as u64).sum();
    let told: Vec<Value> = choices
        .iter()
        .map(|choice| {
            let prompt = &prompts[choice.index as usize / members as usize];
            let mut told = json!({
                "index": choice.index, "text": choice.text,
                "logprobs": parallel(&server, &choice.tokens, &choice.logps, &mut 0, wants),
                "token_ids": wants.ids.then_some(&choice.tokens),
                "prompt_token_ids": wants.ids.then_some(prompt),
                "prompt_logprobs": scores.then(|| answers::scored(&server, prompt, Some(choice))),
            });
            if echo {
                echoed(&server, &mut told, prompt, choice, wants);
            }
            finish(&mut told, Some(&choice.end));
            told
        })
        .collect();
    let usage = usage(read, cached(&choices, members), made);
    let body = with(&head, json!({ "choices": told, "usage": usage }));
    Ok(noted(axum::Json(body), &ignored))
}

#[derive(Clone, Debug, Deserialize)]
struct Chat {
    #[serde(deserialize_with = "named::messages")]
    messages: Vec<Value>,
    #[serde(default, deserialize_with = "named::tools")]
    tools: Option<Vec<Value>>,
    #[serde(default, deserialize_with = "named::chat::logprobs")]
    logprobs: Option<bool>,
    #[serde(default, deserialize_with = "named::top_logprobs")]
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    common: Common,
}

/// `POST /v1/chat/completions`.
pub async fn chat(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (chat, place) = read_held(&server, request).await?;
    let Chat { messages, tools, logprobs, top_logprobs, common } = chat;
    server.names_model(common.model.as_deref())?;
    let ignored = common.sampling.unknown(&KNOWN)?;
    if let Some(most) = top_logprobs.filter(|&most| most > 0) {
        let message = format!(
            "top_logprobs is {most}; there are log-probabilities of the tokens that were drawn alone, so ask for 0"
        );
        return Err(Wrong::field("top_logprobs", message));
    }
    let streams = common.stream.unwrap_or(false);
    let scores = common.sampling.prompt_logprobs.is_some();
    if common.echo.unwrap_or(false) || streams && scores {
        let message = "a chat has no echo, and prompt_logprobs come whole; leave out echo, or stream";
        return Err(Wrong::field("echo", message));
    }
    let prompt = server.chat_prompt(messages, tools, place).await?;
    let most = server.room(prompt.len()).max(1);
    let ask = common.sampling.ask(prompt.clone(), most, server.draw(), streams)?;
    let ask = Ask { salt: server.salt(common.cache_salt.as_deref())?, ..ask };
    let raw = common.sampling.raw(&server, std::slice::from_ref(&ask))?;
    let members = common.sampling.members();
    let wants = common.wants(logprobs.unwrap_or(false));
    let id = common.id(&server, "chatcmpl")?;
    // What came along may be long, and nothing of it is wanted any more.
    drop(common);
    let mut asked = answers::ask(&server, vec![ask], vec![id.clone()])?;
    let head = |object: &str| json!({ "id": id, "object": object, "created": now(), "model": server.model });
    let read = prompt.len() as u64;
    if streams {
        let shape = head("chat.completion.chunk");
        let mut begun = vec![false; members as usize];
        let counts = Counts::default();
        let (counted, of, last_shape) = (counts.clone(), server.clone(), shape.clone());
        let tell = move |index: u32, piece: Piece| {
            counted.count(&piece);
            let mut told = vec![];
            if !std::mem::replace(&mut begun[index as usize], true) {
                let choice = json!({
                    "index": index, "delta": { "role": "assistant", "content": "" },
                    "logprobs": null, "finish_reason": null,
                });
                let mut first = with(&shape, json!({ "choices": [choice] }));
                if wants.ids {
                    first["prompt_token_ids"] = json!(prompt);
                }
                told.push(first);
            }
            let mut choice = json!({
                "index": index, "delta": { "content": piece.text },
                "logprobs": content(&of, &piece.tokens, &piece.logps, wants),
                "finish_reason": null, "stop_reason": null,
                "token_ids": wants.ids.then_some(&piece.tokens),
            });
            finish(&mut choice, piece.end.as_ref());
            told.push(with(&shape, json!({ "choices": [choice] })));
            told
        };
        let last = move || match wants.usage {
            false => vec![],
            true => {
                vec![with(&last_shape, json!({ "choices": [], "usage": counts.usage(read) }))]
            }
        };
        return Ok(noted(asked.streamed(tell, last), &ignored));
    }
    let mut choices = asked.whole().await?;
    if let Some(raw) = raw {
        raw.score(&server, &asked, &mut choices).await?;
    }
    let made = choices.iter().map(|choice| choice.tokens.len() as u64).sum();
    let told: Vec<Value> = choices
        .iter()
        .map(|Choice { index, tokens, logps, text, end, .. }| {
            let mut told = json!({
                "index": index,
                "message": { "role": "assistant", "content": text, "refusal": null },
                "logprobs": content(&server, tokens, logps, wants),
                "token_ids": wants.ids.then_some(tokens),
            });
            finish(&mut told, Some(end));
            told
        })
        .collect();
    let usage = usage(read, cached(&choices, choices.len() as u32), made);
    let mut body = with(&head("chat.completion"), json!({ "choices": told, "usage": usage }));
    if wants.ids {
        body["prompt_token_ids"] = json!(prompt);
    }
    if scores {
        body["prompt_logprobs"] = answers::scored(&server, &prompt, choices.first());
    }
    Ok(noted(axum::Json(body), &ignored))
}

impl Server {
    /// Refuses another model than the one that is served.
    pub(super) fn names_model(&self, model: Option<&str>) -> Result<(), Wrong> {
        match model {
            Some(model) if model != self.model && !model.is_empty() => {
                Err(Wrong::missing(format!("the model {model} is not served here; {} is", self.model)))
            }
            _ => Ok(()),
        }
    }

    /// The prompt of a chat.
    async fn chat_prompt(
        self: &Arc<Self>,
        mut messages: Vec<Value>,
        tools: Option<Vec<Value>>,
        place: Place,
    ) -> Result<Vec<u32>, Wrong> {
        let tools = tools.filter(|tools| !tools.is_empty());
        let chats = if tools.is_some() { self.text.chats_with_tools() } else { self.text.chats() };
        if self.template.is_none() && !chats {
            let message =
                "the model has no template of a chat; give one by --chat-template, or use /v1/completions";
            return Err(Wrong::field("messages", message));
        }
        if messages.is_empty() {
            return Err(Wrong::field("messages", "there are no messages; give at least one"));
        }
        for (place, message) in messages.iter_mut().enumerate() {
            plain(message)
                .map_err(|problem| Wrong::field("messages", format!("messages[{place}]{problem}")))?;
            calls::read(message)?;
        }
        let server = self.clone();
        let render = move || {
            let _place = place;
            let rendered = server.text.chat_of(&messages, &tools, server.template.as_deref());
            let chat = rendered.map_err(|error| Wrong::field("messages", error.to_string()))?;
            server.encode("messages", &chat, false)
        };
        apart(render).await?
    }

    /// The text that the token adds after another token.
    pub(super) fn token(&self, token: u32) -> String {
        self.words.get(token as usize).map(|word| word.to_string()).unwrap_or_default()
    }

    /// The bytes of the token, even if they are a part of a character.
    pub(super) fn bytes(&self, token: u32) -> Vec<u8> {
        self.parts.get(&token).cloned().unwrap_or_else(|| self.token(token).into_bytes())
    }

    /// The number of characters that begin in the token.
    fn letters(&self, token: u32) -> usize {
        match (self.parts.get(&token), self.words.get(token as usize)) {
            (Some(part), _) => part.iter().filter(|&&byte| byte & 0xC0 != 0x80).count(),
            (None, Some(word)) => word.chars().count(),
            (None, None) => 0,
        }
    }
}

/// Checks a message of a chat, and joins its parts of text as vLLM does. The caller puts the position of the message before the error text.
fn plain(message: &mut Value) -> Result<(), &'static str> {
    let fields = message.as_object_mut().ok_or(" is no object; give an object with role and content")?;
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(" has no role; give one, as a text");
    }
    let calls = fields.get("tool_calls").is_some_and(|calls| !calls.is_null());
    let content = match fields.get_mut("content") {
        None if calls => return Ok(()),
        None => return Err(" has no content; give a text, or parts of text"),
        Some(Value::Null | Value::String(_)) => return Ok(()),
        Some(content) => content,
    };
    let parts = content.as_array().ok_or(": content is no text; give a text, or parts of text")?;
    let text = |part: &Value| match part {
        Value::String(text) => Some(text.clone()),
        part if part.get("type").is_none_or(|kind| kind == "text") => {
            part.get("text")?.as_str().map(str::to_owned)
        }
        _ => None,
    };
    let texts: Option<Vec<String>> = parts.iter().map(text).collect();
    *content =
        texts.ok_or(": a part of its content is no text; give parts of type text only")?.join("\n").into();
    Ok(())
}

/// `head`, and these fields.
fn with(head: &Value, fields: Value) -> Value {
    let mut all = head.clone();
    if let (Some(all), Value::Object(fields)) = (all.as_object_mut(), fields) {
        all.extend(fields);
    }
    all
}

/// Says how an answer ended, if it has.
fn finish(choice: &mut Value, end: Option<&crate::engine::End>) {
    let Some(end) = end else { return };
    let (reason, stopped) = reasons(&end.finish);
    choice["finish_reason"] = json!(reason);
    choice["stop_reason"] = stopped;
    choice["weight_versions"] = versions(&end.versions);
    choice["prompt_weight_versions"] = versions(&end.prompt_versions);
}

/// Puts the prompt before its answer.
fn echoed(server: &Server, told: &mut Value, prompt: &[u32], choice: &Choice, wants: Wants) {
    let before = server.text.decode(prompt).unwrap_or_default();
    let length = before.chars().count();
    told["text"] = json!(before + &choice.text);
    // The list would be incomplete if the answer ended before its prompt was scored, or if the answer's own log-probabilities are gone.
    let lacks = choice.end.prompt_logps.len() + 1 != prompt.len();
    if !wants.logprobs || lacks || choice.logps.len() != choice.tokens.len() {
        told["logprobs"] = Value::Null;
        return;
    }
    let words: Vec<i32> = std::iter::once(&0).chain(&choice.end.prompt_logps).copied().collect();
    let mut offset = 0;
    let mut all = parallel(server, prompt, &words, &mut offset, wants);
    // Nothing says how likely the first token was.
    for key in ["token_logprobs", "top_logprobs"] {
        if let Some(first) = all[key].get_mut(0) {
            *first = Value::Null;
        }
    }
    // A decoder may strip characters from the start of a text. The text of the first token still has them.
    let stripped = offset.saturating_sub(length);
    for offset in all["text_offset"].as_array_mut().into_iter().flatten() {
        *offset = json!((offset.as_u64().unwrap_or(0) as usize).saturating_sub(stripped));
    }
    offset = length;
    let own = parallel(server, &choice.tokens, &choice.logps, &mut offset, wants);
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        if let (Some(all), Some(own)) = (all[key].as_array_mut(), own[key].as_array()) {
            all.extend(own.clone());
        }
    }
    told["logprobs"] = all;
}

/// Log-probabilities as lists side by side; `offset` is where in the text the first token begins, in letters.
fn parallel(server: &Server, tokens: &[u32], logps: &[i32], offset: &mut usize, wants: Wants) -> Value {
    if !wants.logprobs {
        return Value::Null;
    }
    // Raw ones that another version would have made.
    if logps.is_empty() && !tokens.is_empty() {
        return Value::Null;
    }
    let (mut names, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for (&token, &word) in tokens.iter().zip(logps) {
        let text = server.token(token);
        offsets.push(*offset);
        *offset += server.letters(token);
        let name = if wants.tokens_as_ids { format!("token_id:{token}") } else { text };
        if wants.tops {
            tops.push(json!({ name.clone(): logp(word) }));
        }
        names.push(name);
        values.push(logp(word));
    }
    let tops = wants.tops.then_some(tops);
    json!({ "tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}

/// Log-probabilities as a list of tokens.
fn content(server: &Server, tokens: &[u32], logps: &[i32], wants: Wants) -> Value {
    if !wants.logprobs || logps.is_empty() && !tokens.is_empty() {
        return Value::Null;
    }
    let each = tokens.iter().zip(logps).map(|(&token, &word)| {
        let (text, bytes) = (server.token(token), server.bytes(token));
        let name = if wants.tokens_as_ids { format!("token_id:{token}") } else { text };
        json!({ "token": name, "logprob": logp(word), "bytes": bytes, "top_logprobs": [] })
    });
    json!({ "content": each.collect::<Vec<_>>() })
}
