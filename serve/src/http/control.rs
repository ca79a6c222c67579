//! Pause, abort, update and resume, by the names that vLLM, SGLang and AReaL have for them.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::routing::{get, post};
use doorbell_contract::PolicyMode;
use serde::Deserialize;
use serde_json::json;

use super::error::Wrong;
use super::{Routes, Server, Told, apart, json, read, whole};
use crate::engine::{How, NotPaused, Pause, Refused};
use crate::fault::{self, Fault};

pub(super) fn routes() -> Routes {
    super::routes()
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/is_paused", get(is_paused))
        .route("/sleep", post(sleep))
        .route("/wake_up", post(resume))
        .route("/reset_prefix_cache", post(flush))
        .route("/flush_cache", post(flush).get(flush))
        .route("/abort_requests", post(abort_requests))
        .route("/update_weights", post(update_weights))
        .route("/start_weight_update", post(nothing))
        .route("/finish_weight_update", post(finish_update))
        .route("/update_weight_version", post(finish_update))
        .route("/weight_info", get(weight_info))
        .route("/areal_pause_generation", post(areal_pause))
        .route("/areal_continue_generation", post(areal_resume))
        .route("/areal_update_weights", post(areal_update))
        .route("/abort_request", post(abort_request))
        .route("/pause_generation", post(pause_generation))
        .route("/continue_generation", post(resume))
        .route("/get_weight_version", get(weight_version))
        .route("/update_weights_from_disk", post(update_from_disk))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PauseQuery {
    mode: Option<String>,
    clear_cache: Option<bool>,
}

/// `POST /pause?mode=abort|wait|keep`.
async fn pause(State(server): State<Arc<Server>>, Query(query): Query<PauseQuery>) -> Told {
    let how = match query.mode.as_deref().unwrap_or("abort") {
        "abort" => How::Abort,
        "wait" => How::Wait,
        "keep" => How::Keep,
        other => {
            return Err(Wrong::field("mode", format!("mode is {other}; it must be abort, wait or keep")));
        }
    };
    // As with vLLM, what is kept is kept no longer unless it is to be.
    hold(&server, how, query.clear_cache.unwrap_or(true)).await?;
    json(json!({ "status": "paused" }))
}

/// Pauses, and forgets what is kept if it is not to be.
async fn hold(server: &Arc<Server>, how: How, flushes: bool) -> Result<(), Wrong> {
    let server = server.clone();
    let paused = whole(async move {
        server.engine.pause(how).await?;
        if flushes {
            server.engine.flush().await;
        }
        Ok(())
    });
    paused.await?.map_err(|error: NotPaused| match error {
        NotPaused::Ended => Wrong::from(Refused::Over),
        error => Wrong::conflict(error.to_string()),
    })
}

/// `POST /resume`, `/continue_generation`, `/wake_up`.
async fn resume(State(server): State<Arc<Server>>) -> Told {
    server.engine.resume().await;
    json(json!({ "status": "resumed" }))
}

async fn is_paused(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "is_paused": server.engine.pause_of() != Pause::Running }))
}

/// The device keeps its memory: requests that run are aborted, and new ones wait.
async fn sleep(State(server): State<Arc<Server>>) -> Told {
    hold(&server, How::Abort, false).await?;
    json(json!({ "status": "sleeping" }))
}

/// `POST /reset_prefix_cache`, `/flush_cache`.
async fn flush(State(server): State<Arc<Server>>) -> Told {
    server.engine.flush().await;
    json(json!({ "success": true, "message": "what was kept for later requests is forgotten" }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AbortRequests {
    request_ids: Vec<String>,
}

/// `POST /abort_requests`: those, or all.
async fn abort_requests(State(server): State<Arc<Server>>, request: Request) -> Told {
    let AbortRequests { request_ids } = read(&server, request).await?;
    abort(&server, &request_ids).await;
    json(json!({ "status": "aborted" }))
}

async fn abort(server: &Arc<Server>, names: &[String]) {
    if server.engine.size().fault == Some(Fault::AbortReturnsEarly) {
        let (server, names) = (server.clone(), names.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(fault::LATE).await;
            abort_now(&server, &names).await;
        });
        return;
    }
    abort_now(server, names).await;
}

async fn abort_now(server: &Server, names: &[String]) {
    let names = Some(names).filter(|names| !names.is_empty());
    let tickets = server.names.mark_aborted(names);
    server.engine.abort(names.map(|_| &tickets[..])).await;
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AbortRequest {
    rid: Option<String>,
    abort_all: Option<bool>,
}

/// `POST /abort_request`.
async fn abort_request(State(server): State<Arc<Server>>, request: Request) -> Told {
    let AbortRequest { rid, abort_all } = read(&server, request).await?;
    match (abort_all.unwrap_or(false), rid) {
        (true, _) => abort(&server, &[]).await,
        (false, Some(rid)) => abort(&server, &[rid]).await,
        (false, None) => return Err(Wrong::request("give rid, or abort_all")),
    }
    json(json!({ "success": true }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PauseGeneration {
    mode: Option<String>,
}

/// `POST /pause_generation`.
async fn pause_generation(State(server): State<Arc<Server>>, request: Request) -> Told {
    let PauseGeneration { mode } = read(&server, request).await?;
    let how = match mode.as_deref().unwrap_or("abort") {
        "abort" => How::Abort,
        // Rollouts keep what they have either way.
        "in_place" | "retract" => How::Keep,
        other => {
            let message = format!("mode is {other}; it must be abort, retract or in_place");
            return Err(Wrong::field("mode", message));
        }
    };
    hold(&server, how, false).await?;
    json(json!({ "status": "ok", "message": "generation is paused" }))
}

async fn areal_pause(State(server): State<Arc<Server>>) -> Told {
    hold(&server, How::Abort, false).await?;
    json(json!({ "success": true, "message": "generation is paused" }))
}

async fn areal_resume(State(server): State<Arc<Server>>) -> Told {
    server.engine.resume().await;
    json(json!({ "success": true, "message": "generation goes on" }))
}

/// What an update says. vLLM's clients put it behind `update_info` too.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Update {
    #[serde(alias = "weight_dir", alias = "path", alias = "weights_path")]
    model_path: Option<PathBuf>,
    weight_version: Option<Name>,
    update_info: Option<Box<Update>>,
    mode: Option<String>,
    abort_all_requests: Option<bool>,
}

/// A version's name, as a text or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Number(u64),
}

impl Name {
    fn text(self) -> String {
        match self {
            Name::Text(text) => text,
            Name::Number(number) => number.to_string(),
        }
    }
}

async fn update(server: &Arc<Server>, request: Request) -> Result<String, Wrong> {
    let update: Update = read(server, request).await?;
    let update = match update.update_info {
        Some(inner) if update.model_path.is_none() => {
            Update { weight_version: inner.weight_version.or(update.weight_version), ..*inner }
        }
        _ => update,
    };
    let Update { model_path, weight_version, mode, abort_all_requests, .. } = update;
    let path = model_path.ok_or_else(|| {
        Wrong::field(
            "model_path",
            "give the directory of the weights as model_path or weight_dir; weights come from disk only",
        )
    })?;
    let mode = match mode.as_deref().unwrap_or("keep") {
        "keep" => PolicyMode::Keep,
        "abort" => PolicyMode::Abort,
        "wait" => PolicyMode::Wait,
        other => {
            return Err(Wrong::field("mode", format!("mode is {other}; it must be keep, abort or wait")));
        }
    };
    let name = weight_version.map(Name::text);
    let server = server.clone();
    let updated = whole(async move {
        // Before anything is aborted: while it is read the version before serves on.
        let reader = server.clone();
        let weights = apart(move || (reader.import)(&path)).await?.map_err(Wrong::request)?;
        if abort_all_requests.unwrap_or(false) {
            abort_now(&server, &[]).await;
        }
        server.engine.publish(Box::new(weights), name.as_deref(), mode).await.map_err(Wrong::conflict)
    });
    updated.await?
}

async fn update_weights(State(server): State<Arc<Server>>, request: Request) -> Told {
    let name = update(&server, request).await?;
    json(json!({ "status": "ok", "message": "the weights are resident", "weight_version": name }))
}

async fn areal_update(State(server): State<Arc<Server>>, request: Request) -> Told {
    let name = update(&server, request).await?;
    json(json!({ "success": true, "message": "the weights are resident", "weight_version": name }))
}

async fn update_from_disk(State(server): State<Arc<Server>>, request: Request) -> Told {
    let name = update(&server, request).await?;
    json(json!({
        "success": true, "message": "the weights are resident", "num_paused_requests": 0, "weight_version": name,
    }))
}

async fn nothing() -> Told {
    json(json!({ "status": "ok" }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FinishUpdate {
    #[serde(alias = "new_version")]
    weight_version: Option<Name>,
}

/// Names the version that is resident.
async fn finish_update(State(server): State<Arc<Server>>, request: Request) -> Told {
    let FinishUpdate { weight_version } = read(&server, request).await?;
    if let Some(name) = weight_version {
        server.engine.rename(&name.text()).await;
    }
    json(json!({ "status": "ok", "success": true, "weight_version": server.engine.version() }))
}

async fn weight_info(State(server): State<Arc<Server>>) -> Told {
    let version = server.engine.version();
    json(json!({ "weight_version": version, "version": version, "model": server.model }))
}

async fn weight_version(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "weight_version": server.engine.version() }))
}
