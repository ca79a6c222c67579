//! What a server says of itself.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use doorbell_runtime::pipeline::Draws;
use serde::Deserialize;
use serde_json::json;

use super::answers;
use super::error::Wrong;
use super::openai::Prompt;
use super::{Routes, Server, Told, apart, json, named, read_held};
use crate::engine::{Ask, Pause, Stops};

/// How long a request to `/health_generate` may take to come back.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn routes() -> Routes {
    super::routes()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/health_generate", get(health_generate))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/version", get(version))
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/get_model_info", get(model_info))
        .route("/model_info", get(model_info))
        .route("/get_world_size", get(world_size))
        .route("/v1/loads", get(loads))
        .route("/get_load", get(loads))
        .route("/load", get(load))
        .route("/workers", get(workers))
        .route("/metrics", get(metrics))
}

async fn health(State(server): State<Arc<Server>>) -> Told {
    lives(&server)
}

/// An empty object, or 503 with the reason once the engine has ended.
fn lives(server: &Server) -> Told {
    match server.engine.failure() {
        None => json(json!({})),
        Some(why) => {
            let message = format!("the engine has ended: {why}; start the server again");
            let told =
                json!({ "error": { "message": message, "type": "service_unavailable_error", "code": 503 } });
            Ok((StatusCode::SERVICE_UNAVAILABLE, axum::Json(told)).into_response())
        }
    }
}

/// Has one token drawn. While the server is paused none is drawn, so it is `health`: an engine that ended in a pause stays paused.
async fn health_generate(State(server): State<Arc<Server>>) -> Told {
    if server.engine.failure().is_some() || server.engine.pause_of() != Pause::Running {
        return lives(&server);
    }
    let ask = Ask {
        prompt: vec![0],
        members: 1,
        most: 1,
        draws: Draws::default(),
        ends: true,
        stops: Stops::default(),
        streams: false,
        scored: false,
        salt: 0,
    };
    let mut asked = answers::ask(&server, vec![ask], vec![])?;
    match tokio::time::timeout(PATIENCE, asked.whole()).await {
        Ok(whole) => whole.and_then(|_| json(json!({}))),
        Err(_) => Err(Wrong::failed("no token came within 20 seconds")),
    }
}

async fn models(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "object": "list", "data": [about(&server)] }))
}

async fn model(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Told {
    // The model's name may be a path.
    let name =
        if server.model.starts_with('/') { format!("/{}", name.trim_start_matches('/')) } else { name };
    server.names_model(Some(&name))?;
    json(about(&server))
}

fn about(server: &Server) -> serde_json::Value {
    json!({
        "id": server.model, "object": "model", "created": server.started, "owned_by": "doorbell",
        "root": server.model, "parent": null, "max_model_len": server.positions, "permission": [],
    })
}

async fn version() -> Told {
    json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// Fields of vLLM and of SGLang.
async fn server_info(State(server): State<Arc<Server>>) -> Told {
    let size = server.engine.size();
    json(json!({
        "model_path": server.model, "served_model_name": server.model, "device": server.engine.device(),
        "dtype": "float32", "tp_size": 1, "dp_size": 1, "pp_size": 1, "context_length": server.positions,
        "max_running_requests": size.slots, "max_total_num_tokens": u64::from(size.blocks) * 32,
        "kv_window": server.engine.cap().map(|cap| cap.window), "kv_sinks": server.engine.cap().map(|cap| cap.sinks),
        "random_seed": size.seed, "weight_version": server.engine.version(),
        "version": env!("CARGO_PKG_VERSION"),
        "vllm_config": {
            "model_config": { "dtype": "torch.float32", "max_model_len": server.positions, "model": server.model },
            "parallel_config": { "world_size": 1, "data_parallel_size": 1 },
        },
    }))
}

async fn model_info(State(server): State<Arc<Server>>) -> Told {
    json(json!({
        "model_path": server.model, "tokenizer_path": server.model, "is_generation": true,
        "weight_version": server.engine.version(),
    }))
}

async fn world_size() -> Told {
    json(json!({ "world_size": 1 }))
}

async fn loads(State(server): State<Arc<Server>>) -> Told {
    let load = server.engine.load();
    let running = load.live - load.waiting;
    // Blocks kept for later requests are evicted on demand, so they do not count as used.
    let values = server.engine.metrics().counters.values();
    let used = values.kv_blocks_in_use.saturating_sub(values.kv_blocks_cold);
    let usage = used as f64 / f64::from(server.engine.size().blocks).max(1.0);
    let core = json!({
        "dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": load.waiting, "num_total_reqs": load.live,
        "num_reqs": load.live, "num_used_tokens": used * 32, "token_usage": usage,
    });
    json(json!({
        "loads": [core], "num_running_reqs": running, "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.live, "aggregate": core,
    }))
}

async fn load(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "server_load": server.engine.load().live }))
}

/// As a router of one worker: whoever asked reached it under this address.
async fn workers(State(_): State<Arc<Server>>, request: Request) -> Told {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or("127.0.0.1");
    json(json!({ "workers": [{ "url": format!("http://{host}"), "is_healthy": true }] }))
}

async fn metrics(State(server): State<Arc<Server>>) -> Told {
    let text = server.engine.metrics().status().prometheus();
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response())
}

#[derive(Debug, Deserialize)]
struct Tokenize {
    #[serde(default, deserialize_with = "named::prompt")]
    prompt: Option<String>,
    #[serde(default, deserialize_with = "named::add_special_tokens")]
    add_special_tokens: Option<bool>,
}

/// `POST /tokenize`.
pub async fn tokenize(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (Tokenize { prompt, add_special_tokens }, place) = read_held(&server, request).await?;
    let prompt = prompt.ok_or_else(|| Wrong::field("prompt", "give a text as prompt"))?;
    let prompts = server.prompts(Prompt::Text(prompt), add_special_tokens.unwrap_or(true), place).await?;
    let tokens = prompts.concat();
    json(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": server.positions }))
}

#[derive(Debug, Deserialize)]
struct Detokenize {
    #[serde(deserialize_with = "named::tokens")]
    tokens: Vec<u32>,
}

/// `POST /detokenize`.
pub async fn detokenize(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (Detokenize { tokens }, place) = read_held(&server, request).await?;
    // Check the count before decoding.
    let (count, positions) = (tokens.len(), server.positions);
    if count > positions as usize {
        let message = format!(
            "there are {count} tokens, and the model has {positions} positions; send fewer at a time"
        );
        return Err(Wrong::field("tokens", message));
    }
    server.known("tokens", &tokens)?;
    let decode = move || {
        let _place = place;
        server.text.decode(&tokens)
    };
    let text = apart(decode).await?.map_err(|error| Wrong::field("tokens", error.to_string()))?;
    json(json!({ "prompt": text }))
}
