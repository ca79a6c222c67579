//! vLLM's endpoint for tokens.

use std::sync::Arc;

use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::{self, cached, logp, reasons, usage, versions};
use super::error::Wrong;
use super::openai::noted;
use super::sampling::{Sampling, unknown};
use super::{Server, Told, named, names, read};
use crate::engine::{Ask, End, Piece};

#[derive(Clone, Debug, Deserialize)]
struct Generate {
    #[serde(deserialize_with = "named::token_ids")]
    token_ids: Vec<u32>,
    #[serde(default, deserialize_with = "named::model")]
    model: Option<String>,
    #[serde(default, deserialize_with = "named::sampling_params")]
    sampling_params: Params,
    #[serde(default, deserialize_with = "named::stream")]
    stream: Option<bool>,
    #[serde(default, deserialize_with = "named::request_id")]
    request_id: Option<String>,
    #[serde(default, deserialize_with = "named::cache_salt")]
    cache_salt: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Params {
    #[serde(deserialize_with = "named::logprobs")]
    logprobs: Option<i64>,
    #[serde(flatten)]
    sampling: Sampling,
}

const KNOWN: [&str; 5] =
    ["detokenize", "flat_logprobs", "output_kind", "priority", "spaces_between_special_tokens"];

/// `POST /inference/v1/generate`.
pub async fn generate(State(server): State<Arc<Server>>, request: Request) -> Told {
    let header = request.headers().get("x-request-id").and_then(|text| text.to_str().ok()).map(str::to_owned);
    let Generate { token_ids, model, sampling_params, stream, request_id, cache_salt, rest } =
        read(&server, request).await?;
    let Params { logprobs, sampling } = sampling_params;
    server.names_model(model.as_deref())?;
    let mut ignored = sampling.unknown(&KNOWN)?;
    ignored.extend(unknown(&rest, &KNOWN, sampling.members())?);
    if let Some(most) = logprobs.filter(|most| !(0..=1).contains(most)) {
        let message = format!(
            "logprobs is {most}; log-probabilities are those of the tokens that were drawn, so it must be 0 or 1"
        );
        return Err(Wrong::field("logprobs", message));
    }
    // A sampled token need not be the most likely one, so there are no top log-probabilities.
    if logprobs == Some(1) {
        ignored.push("top_logprobs".into());
    }
    let streams = stream.unwrap_or(false);
    let read = token_ids.len() as u64;
    let most = server.room(token_ids.len()).min(16);
    let prompt = token_ids.clone();
    let ask = sampling.ask(token_ids, most, server.draw(), streams)?;
    let ask = Ask { salt: server.salt(cache_salt.as_deref())?, ..ask };
    let raw = sampling.raw(&server, std::slice::from_ref(&ask))?;
    let scores = sampling.prompt_logprobs.is_some();
    let id = match request_id.or(header) {
        Some(name) => names::check("request_id", name)?,
        None => server.id("generate-tokens"),
    };
    // What came along may be long, and nothing of it is wanted any more.
    drop((sampling, rest, cache_salt, model));
    let mut asked = answers::ask(&server, vec![ask], vec![id.clone()])?;
    let wants = logprobs.is_some();
    if streams {
        let (of, shape) = (server.clone(), id.clone());
        let tell = move |index: u32, piece: Piece| {
            let told = choice(&of, index, &piece.tokens, &piece.logps, wants, piece.end.as_ref());
            vec![json!({ "request_id": shape, "choices": [told] })]
        };
        return Ok(noted(asked.streamed(tell, Vec::new), &ignored));
    }
    let mut choices = asked.whole().await?;
    if let Some(raw) = raw {
        raw.score(&server, &asked, &mut choices).await?;
    }
    let made = choices.iter().map(|choice| choice.tokens.len() as u64).sum();
    let told: Vec<Value> = choices
        .iter()
        .map(|of| choice(&server, of.index, &of.tokens, &of.logps, wants, Some(&of.end)))
        .collect();
    let scored = scores.then(|| answers::scored(&server, &prompt, choices.first()));
    let body = json!({
        "request_id": id, "choices": told, "prompt_logprobs": scored, "kv_transfer_params": null,
        "usage": usage(read, cached(&choices, choices.len() as u32), made),
    });
    Ok(noted(axum::Json(body), &ignored))
}

fn choice(
    server: &Server,
    index: u32,
    tokens: &[u32],
    logps: &[i32],
    wants: bool,
    end: Option<&End>,
) -> Value {
    // Before vLLM 0.32 `token` named the id, since then `token_id` does: clients read one or the other.
    let each = tokens.iter().zip(logps).map(|(&token, &word)| {
        json!({
            "token": format!("token_id:{token}"), "token_id": token, "logprob": logp(word),
            "bytes": server.bytes(token), "top_logprobs": [],
        })
    });
    // Raw ones that another version would have made are none.
    let wants = wants && (tokens.is_empty() || !logps.is_empty());
    let logprobs = wants.then(|| json!({ "content": each.collect::<Vec<_>>() }));
    let mut told = json!({
        "index": index, "token_ids": tokens, "logprobs": logprobs, "finish_reason": null, "stop_reason": null,
    });
    if let Some(end) = end {
        let (reason, stopped) = reasons(&end.finish);
        told["finish_reason"] = json!(reason);
        told["stop_reason"] = stopped;
        told["weight_versions"] = versions(&end.versions);
        told["prompt_weight_versions"] = versions(&end.prompt_versions);
    }
    told
}
