//! SGLang's door.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{self, Choice, logp, versions};
use super::error::Wrong;
use super::openai::Prompt;
use super::raw::Raw;
use super::sampling::{Sampling, Texts};
use super::{Server, Told, json, read};
use crate::engine::{Ask, End, Finish, Piece};

/// One of something, or one for each prompt.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Each<T> {
    One(T),
    Many(Vec<T>),
}

#[derive(Clone, Debug, Deserialize)]
struct Generate {
    input_ids: Option<Prompt>,
    text: Option<Texts>,
    sampling_params: Option<Each<Sampling>>,
    return_logprob: Option<Each<bool>>,
    logprob_start_len: Option<i64>,
    stream: Option<bool>,
    rid: Option<Texts>,
    #[serde(alias = "extra_key")]
    cache_salt: Option<String>,
}

const KNOWN: [&str; 4] =
    ["no_stop_trim", "skip_special_tokens", "spaces_between_special_tokens", "stop_regex_max_length"];

/// `POST /generate`.
pub async fn generate(State(server): State<Arc<Server>>, request: Request) -> Told {
    let began = Instant::now();
    let Generate {
        input_ids,
        text,
        sampling_params,
        return_logprob,
        logprob_start_len,
        stream,
        rid,
        cache_salt,
    } = read(&server, request).await?;
    let (prompts, many) = match (input_ids, text) {
        (Some(Prompt::Tokens(tokens)), None) => (vec![tokens], false),
        (Some(Prompt::Many(prompts)), None) => (prompts, true),
        (None, Some(Texts::One(text))) => (vec![server.encode(&text)?], false),
        (None, Some(Texts::Many(texts))) => {
            (texts.iter().map(|text| server.encode(text)).collect::<Result<_, _>>()?, true)
        }
        _ => return Err(Wrong::request("give either input_ids or text")),
    };
    let most = server.limits.prompts;
    if prompts.is_empty() || prompts.len() > most {
        return Err(Wrong::request(format!("there are {} prompts; give 1 to {most}", prompts.len())));
    }
    let params = |place: usize| match &sampling_params {
        None => Ok(Sampling::default()),
        Some(Each::One(params)) => Ok(params.clone()),
        Some(Each::Many(all)) => all.get(place).cloned().ok_or_else(|| {
            Wrong::field(
                "sampling_params",
                "there are fewer of these than prompts; give one for each, or one for all",
            )
        }),
    };
    let streams = stream.unwrap_or(false);
    let salt = server.salt(cache_salt.as_deref())?;
    let mut asks = vec![];
    let mut raws = false;
    for (place, prompt) in prompts.iter().enumerate() {
        let params = params(place)?;
        params.unknown(&KNOWN)?;
        let room = server.room(prompt.len()).clamp(1, 128);
        let ask = params.ask(prompt.clone(), room, server.draw(), streams)?;
        asks.push(Ask { salt, ..ask });
        raws |= params.wants_raw()?;
    }
    let raw = if raws { Some(Raw::new(&server, &asks)?) } else { None };
    let logprobs = match return_logprob {
        Some(Each::One(wants)) => wants,
        Some(Each::Many(wants)) => wants.contains(&true),
        None => false,
    };
    // -1 is behind the prompt.
    let scored = logprob_start_len.filter(|&start| logprobs && start >= 0).map(|start| start as usize);
    asks.iter_mut().for_each(|ask| ask.scored |= scored.is_some());
    let members = asks.first().map_or(1, |ask| ask.members);
    if asks.iter().any(|ask| ask.members != members) {
        return Err(Wrong::field("sampling_params", "n must be the same for all prompts of a request"));
    }
    let names = match &rid {
        Some(Texts::One(name)) => Some(name.clone()),
        Some(Texts::Many(names)) => names.first().cloned(),
        _ => None,
    };
    let id = names.clone().unwrap_or_else(|| server.id("rid"));
    let asked = answers::ask(&server, asks, names)?;
    let total = prompts.len() as u32 * members;
    let tell = move |server: &Server, choice: &Choice, whole: bool| {
        let place = (choice.index / members) as usize;
        let meta = Meta { id: &id, prompt: &prompts[place], began, logprobs, scored };
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
        return Ok(asked.streamed(each, Vec::new));
    }
    let mut choices = asked.whole().await?;
    if let Some(raw) = raw {
        raw.score(&server, &mut choices).await?;
    }
    let mut all: Vec<Value> = choices.iter().map(|choice| tell(&server, choice, true)).collect();
    match all.pop() {
        Some(only) if all.is_empty() && !many => json(only),
        last => {
            all.extend(last);
            json(Value::Array(all))
        }
    }
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
        let each = tokens.iter().zip(logps).map(|(&token, &word)| json!([logp(word), token, null]));
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
