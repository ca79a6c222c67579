//! SGLang's endpoint.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::answers::{self, Choice, logp, versions};
use super::error::Wrong;
use super::openai::{Prompt, noted};
use super::raw::Raw;
use super::sampling::{Sampling, unknown};
use super::{Server, Told, named, names, read_held};
use crate::engine::{Ask, End, Finish, Piece};

/// One of something, or one for each prompt.
#[derive(Clone, Debug)]
enum Each<T> {
    One(T),
    Many(Vec<T>),
}

/// Deserialises without buffering, so that an error inside the value is reported as such.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Each<T>, D::Error> {
        from.deserialize_any(OfEach(PhantomData))
    }
}

struct OfEach<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OfEach<T> {
    type Value = Each<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value for all prompts, or a list with one for each")
    }

    fn visit_bool<E: de::Error>(self, is: bool) -> Result<Each<T>, E> {
        T::deserialize(is.into_deserializer()).map(Each::One)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Each<T>, E> {
        T::deserialize(number.into_deserializer()).map(Each::One)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Each<T>, E> {
        T::deserialize(number.into_deserializer()).map(Each::One)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Each<T>, E> {
        T::deserialize(number.into_deserializer()).map(Each::One)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Each<T>, E> {
        T::deserialize(text.into_deserializer()).map(Each::One)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Each<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Each::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Each<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Each::Many)
    }
}

impl<T> Each<T> {
    /// Refuses a list that does not have one for each of so many prompts.
    fn fits(self, field: &str, prompts: usize) -> Result<Self, Wrong> {
        match &self {
            Each::Many(all) if all.len() != prompts => {
                let less = if all.len() < prompts { "fewer" } else { "more" };
                Err(Wrong::field(
                    field,
                    format!("there are {less} of these than prompts; give one for each, or one for all"),
                ))
            }
            _ => Ok(self),
        }
    }

    /// That of a prompt.
    fn at(&self, prompt: usize) -> &T {
        match self {
            Each::One(one) => one,
            Each::Many(all) => &all[prompt],
        }
    }

    /// Those that the request has.
    fn all(&self) -> &[T] {
        match self {
            Each::One(one) => std::slice::from_ref(one),
            Each::Many(all) => all,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Generate {
    #[serde(default, deserialize_with = "named::input_ids")]
    input_ids: Option<Prompt>,
    #[serde(default, deserialize_with = "named::text")]
    text: Option<Prompt>,
    #[serde(default, deserialize_with = "named::sampling_params")]
    sampling_params: Option<Each<Sampling>>,
    #[serde(default, deserialize_with = "named::return_logprob")]
    return_logprob: Option<Each<bool>>,
    #[serde(default, deserialize_with = "named::logprob_start_len")]
    logprob_start_len: Option<i64>,
    #[serde(default, deserialize_with = "named::stream")]
    stream: Option<bool>,
    #[serde(default, deserialize_with = "named::rid")]
    rid: Option<Each<String>>,
    #[serde(default, alias = "extra_key", deserialize_with = "named::cache_salt")]
    cache_salt: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

const KNOWN: [&str; 3] = ["priority", "spaces_between_special_tokens", "stop_regex_max_length"];

/// `POST /generate`.
pub async fn generate(State(server): State<Arc<Server>>, request: Request) -> Told {
    let began = Instant::now();
    let (generate, place) = read_held(&server, request).await?;
    let Generate {
        input_ids,
        text,
        sampling_params,
        return_logprob,
        logprob_start_len,
        stream,
        rid,
        cache_salt,
        rest,
    } = generate;
    let mut ignored = unknown(&rest, &KNOWN, 1)?;
    drop(rest);
    let prompt = match (input_ids, text) {
        (Some(tokens @ (Prompt::Tokens(_) | Prompt::Many(_))), None) => tokens,
        (None, Some(texts @ (Prompt::Text(_) | Prompt::Texts(_)))) => texts,
        _ => return Err(Wrong::request("give either input_ids or text")),
    };
    let many = matches!(prompt, Prompt::Many(_) | Prompt::Texts(_));
    let prompts = server.prompts(prompt, true, place).await?;
    let count = prompts.len();
    let params = sampling_params.unwrap_or_else(|| Each::One(Sampling::default()));
    let params = params.fits("sampling_params", count)?;
    let logprobs = return_logprob.unwrap_or(Each::One(false)).fits("return_logprob", count)?;
    let streams = stream.unwrap_or(false);
    let salt = server.salt(cache_salt.as_deref())?;
    // -1 is behind the prompt.
    let scored = logprob_start_len.filter(|&start| start >= 0).map(|start| start as usize);
    let (mut asks, mut raws) = (vec![], vec![]);
    let mut named: HashSet<String> = ignored.iter().cloned().collect();
    for params in params.all() {
        ignored.extend(params.unknown(&KNOWN)?.into_iter().filter(|name| named.insert(name.clone())));
    }
    drop(named);
    for (place, prompt) in prompts.iter().enumerate() {
        let (params, wants) = (params.at(place), *logprobs.at(place));
        let room = server.room(prompt.len()).clamp(1, 128);
        let ask = params.ask(prompt.clone(), room, server.draw(), streams)?;
        asks.push(Ask { salt, scored: ask.scored || wants && scored.is_some(), ..ask });
        raws.push(params.wants_raw()?);
    }
    // What came along may be long, and nothing of it is wanted any more.
    drop((params, cache_salt));
    let members = asks.first().map_or(1, |ask| ask.members);
    if asks.iter().any(|ask| ask.members != members) {
        return Err(Wrong::field("sampling_params", "n must be the same for all prompts of a request"));
    }
    let wants_raw = raws.first() == Some(&true);
    if raws.iter().any(|&raw| raw != wants_raw) {
        let message = "logprobs_mode must be the same for all prompts of a request";
        return Err(Wrong::field("sampling_params", message));
    }
    let raw = if wants_raw { Some(Raw::new(&server, &asks)?) } else { None };
    let ids = match rid {
        None => vec![server.id("rid")],
        Some(each) => {
            let all = match each.fits("rid", count)? {
                Each::One(name) => vec![name],
                Each::Many(all) => all,
            };
            all.into_iter().map(|name| names::check("rid", name)).collect::<Result<_, _>>()?
        }
    };
    let mut asked = answers::ask(&server, asks, ids.clone())?;
    let total = prompts.len() as u32 * members;
    let tell = move |server: &Server, choice: &Choice, whole: bool| {
        let place = (choice.index / members) as usize;
        let (id, logprobs) = (&ids[place * ids.len() / count], *logprobs.at(place));
        let meta = Meta { id, prompt: &prompts[place], began, logprobs, scored };
        told(server, choice, whole, &meta)
    };
    if streams {
        let of = server.clone();
        let empty = |index| Choice {
            index,
            tokens: vec![],
            logps: vec![],
            text: String::new(),
            cached: 0,
            end: End {
                finish: Finish::Length,
                versions: vec![],
                prompt_versions: vec![],
                prompt_logps: vec![],
            },
        };
        let mut choices: Vec<Choice> = (0..total).map(empty).collect();
        let each = move |index: u32, piece: Piece| {
            // Each line has all of the answer so far.
            let choice = &mut choices[index as usize];
            choice.tokens.extend(piece.tokens);
            choice.logps.extend(piece.logps);
            choice.text.push_str(&piece.text);
            choice.cached = piece.cached;
            let whole = piece.end.is_some();
            if let Some(end) = piece.end {
                choice.end = end;
            }
            let mut told = tell(&of, choice, whole);
            if total > 1 {
                told["index"] = json!(index);
            }
            vec![told]
        };
        return Ok(noted(asked.streamed(each, Vec::new), &ignored));
    }
    let mut choices = asked.whole().await?;
    if let Some(raw) = raw {
        raw.score(&server, &asked, &mut choices).await?;
    }
    let mut all: Vec<Value> = choices.iter().map(|choice| tell(&server, choice, true)).collect();
    let body = match all.pop() {
        Some(only) if all.is_empty() && !many => only,
        last => {
            all.extend(last);
            Value::Array(all)
        }
    };
    Ok(noted(axum::Json(body), &ignored))
}

struct Meta<'a> {
    id: &'a str,
    prompt: &'a [u32],
    began: Instant,
    logprobs: bool,
    /// From which token of the prompt on it was scored.
    scored: Option<usize>,
}

fn told(server: &Server, choice: &Choice, whole: bool, meta: &Meta<'_>) -> Value {
    let Choice { tokens, logps, text, cached, end, .. } = choice;
    let finish = match &end.finish {
        _ if !whole => Value::Null,
        Finish::Length => json!({ "type": "length", "length": tokens.len() }),
        Finish::EndToken => json!({ "type": "stop", "matched": tokens.last() }),
        Finish::StopToken(token) => json!({ "type": "stop", "matched": token }),
        Finish::StopText(stop) => json!({ "type": "stop", "matched": stop }),
        Finish::Aborted => json!({ "type": "abort", "message": "the request was aborted" }),
        Finish::Failed(why) => json!({ "type": "abort", "message": why }),
    };
    let version = end.versions.last().map_or_else(|| server.engine.version(), |span| span.version.clone());
    let mut info = json!({
        "id": meta.id, "finish_reason": finish, "prompt_tokens": meta.prompt.len(), "completion_tokens": tokens.len(),
        "cached_tokens": cached, "weight_version": version, "weight_versions": versions(&end.versions),
        "prompt_weight_versions": versions(&end.prompt_versions),
        "e2e_latency": meta.began.elapsed().as_secs_f64(),
    });
    if meta.logprobs {
        let each = tokens.iter().enumerate().map(|(place, &token)| {
            let word = logps.get(place).map(|&word| logp(word));
            json!([word, token, null])
        });
        info["output_token_logprobs"] = each.collect();
        let start = meta.scored.unwrap_or(meta.prompt.len());
        let scored = meta.prompt.iter().enumerate().skip(start).map(|(place, token)| {
            let word = place.checked_sub(1).and_then(|place| end.prompt_logps.get(place));
            json!([word.map(|&word| logp(word)), token, null])
        });
        info["input_token_logprobs"] = scored.collect();
    }
    json!({ "text": text, "output_ids": tokens, "meta_info": info })
}
