//! Pause, abort, update and resume, by the names that vLLM, SGLang and AReaL have for them.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::http::Uri;
use axum::routing::{get, post};
use doorbell_contract::PolicyMode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::Wrong;
use super::openai::noted;
use super::{Routes, Server, Told, apart, json, named, names, read, whole};
use crate::engine::{How, NotPaused, Pause, Refused};
use crate::fault::{self, Fault};

pub(super) fn routes() -> Routes {
    super::routes()
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/is_paused", get(is_paused))
        .route("/sleep", post(sleep))
        .route("/wake_up", post(wake_up))
        .route("/is_sleeping", get(is_sleeping))
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

/// The parameters of the request's query, as text.
fn query(uri: &Uri) -> Result<Vec<(String, String)>, Wrong> {
    let read = Query::<Vec<(String, String)>>::try_from_uri(uri);
    read.map(|Query(pairs)| pairs)
        .map_err(|error| Wrong::request(format!("the query cannot be read: {error}")))
}

/// The settings of a request, from its query and its body; each may be given once. Unknown names are an error: a request that misspells
/// what to spare would abort everything.
async fn settings(server: &Server, request: Request, known: &[&str]) -> Result<Map<String, Value>, Wrong> {
    let pairs = query(request.uri())?;
    let mut all: Map<String, Value> = read(server, request).await?;
    for (name, value) in pairs {
        // Only `tags` may be given several times.
        let before = all.remove(&name);
        let value = match before {
            None if name == "tags" => Value::Array(vec![value.into()]),
            None => value.into(),
            Some(Value::Array(mut tags)) if name == "tags" => {
                tags.push(value.into());
                Value::Array(tags)
            }
            Some(_) => return Err(Wrong::field(&name, format!("{name} is given twice; give it once"))),
        };
        all.insert(name, value);
    }
    match all.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(all),
        Some(name) => {
            let name: String = name.chars().take(100).collect();
            let message =
                format!("{name} is not known here, and nothing was done; there are {}", known.join(", "));
            Err(Wrong::field(&name, message))
        }
    }
}

/// A boolean setting, in the spellings that Python servers accept.
fn flag(settings: &Map<String, Value>, name: &str) -> Result<Option<bool>, Wrong> {
    let Some(value) = settings.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_lowercase);
    match &*text {
        "true" | "1" | "yes" | "on" | "t" | "y" => Ok(Some(true)),
        "false" | "0" | "no" | "off" | "f" | "n" => Ok(Some(false)),
        _ => Err(Wrong::field(name, format!("{name} is {text}; it must be true or false"))),
    }
}

/// How to pause: from `mode`, or from vLLM's older name.
fn how(settings: &Map<String, Value>) -> Result<How, Wrong> {
    const WAIT: &str = "wait_for_inflight_requests";
    let mode = settings.get("mode").filter(|mode| !mode.is_null());
    let waits = flag(settings, WAIT)?;
    let how = match mode.map(|mode| mode.as_str().map_or_else(|| mode.to_string(), str::to_owned)).as_deref()
    {
        None if waits == Some(true) => return Ok(How::Wait),
        None | Some("abort") => How::Abort,
        Some("wait") => How::Wait,
        Some("keep") => How::Keep,
        Some(other) => {
            return Err(Wrong::field("mode", format!("mode is {other}; it must be abort, wait or keep")));
        }
    };
    if waits.is_some_and(|waits| waits != (how == How::Wait)) {
        return Err(Wrong::field(WAIT, format!("{WAIT} contradicts mode; leave it out")));
    }
    Ok(how)
}

/// `POST /pause?mode=abort
/// wait
/// keep`.
async fn pause(State(server): State<Arc<Server>>, request: Request) -> Told {
    let known = ["mode", "clear_cache", "wait_for_inflight_requests"];
    let settings = settings(&server, request, &known).await?;
    // As with vLLM, what is kept is kept no longer unless it is to be.
    let flushes = flag(&settings, "clear_cache")?.unwrap_or(true);
    hold(&server, how(&settings)?, flushes).await?;
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

/// `POST /resume`, `/continue_generation`.
async fn resume(State(server): State<Arc<Server>>) -> Told {
    go_on(&server).await;
    json(json!({ "status": "resumed" }))
}

/// Wakes all parts and resumes all requests.
async fn go_on(server: &Server) {
    *server.asleep() = None;
    server.engine.resume().await;
}

/// The parts of a server that sleep, and that tags wake.
const SLEEPS: [&str; 2] = ["weights", "kv_cache"];
/// vLLM's third tag, which starts waiting requests if no part sleeps.
const SCHEDULING: &str = "scheduling";

/// The tags that a request names.
fn tags(settings: &Map<String, Value>) -> Result<Vec<String>, Wrong> {
    let tags = match settings.get("tags") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(tags)) => tags,
        Some(tag) => std::slice::from_ref(tag),
    };
    let known = |tag: &str| SLEEPS.contains(&tag) || tag == SCHEDULING;
    let each = tags.iter().map(|tag| match tag.as_str() {
        Some(tag) if known(tag) => Ok(tag.to_owned()),
        _ => {
            let tag = tag.as_str().map_or_else(|| tag.to_string(), str::to_owned);
            let message =
                format!("tags is {tag}; it must be one of {}, {}, {SCHEDULING}", SLEEPS[0], SLEEPS[1]);
            Err(Wrong::field("tags", message))
        }
    });
    each.collect()
}

/// `POST /wake_up?tags=weights&tags=kv_cache` wakes the parts that the tags name, or all parts. Requests resume once no part sleeps.
async fn wake_up(State(server): State<Arc<Server>>, request: Request) -> Told {
    let settings = settings(&server, request, &["tags"]).await?;
    let tags = tags(&settings)?;
    let sleeps = match &mut *server.asleep() {
        Some(asleep) => {
            asleep.retain(|part| !tags.is_empty() && !tags.iter().any(|tag| tag == part));
            !asleep.is_empty()
        }
        None => false,
    };
    if sleeps {
        return json(json!({ "status": "sleeping" }));
    }
    go_on(&server).await;
    json(json!({ "status": "resumed" }))
}

async fn is_sleeping(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "is_sleeping": server.asleep().is_some() }))
}

async fn is_paused(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "is_paused": server.engine.pause_of() != Pause::Running }))
}

/// `POST /sleep?level=0
/// 1
/// 2` aborts running requests and makes new ones wait. The device keeps its memory. At level 0 no part sleeps.
async fn sleep(State(server): State<Arc<Server>>, request: Request) -> Told {
    let settings = settings(&server, request, &["level", "mode", "tags"]).await?;
    let level =
        settings.get("level").map_or_else(|| "1".to_owned(), |level| level.to_string().replace('"', ""));
    let parts = match &*level {
        "0" => vec![],
        "1" | "2" | "null" => {
            let tags = tags(&settings)?;
            SLEEPS.into_iter().filter(|part| tags.is_empty() || tags.iter().any(|tag| tag == part)).collect()
        }
        other => return Err(Wrong::field("level", format!("level is {other}; it must be 0, 1 or 2"))),
    };
    hold(&server, how(&settings)?, false).await?;
    // Parts that an earlier request put to sleep stay asleep.
    let mut asleep = server.asleep();
    let before = asleep.take().unwrap_or_default();
    let sleeps = |part: &&str| parts.contains(part) || before.contains(part);
    *asleep = Some(SLEEPS.into_iter().filter(sleeps).collect());
    drop(asleep);
    json(json!({ "status": "sleeping" }))
}

/// `POST /reset_prefix_cache`, `/flush_cache`.
async fn flush(State(server): State<Arc<Server>>) -> Told {
    server.engine.flush().await;
    json(json!({ "success": true, "message": "what was kept for later requests is forgotten" }))
}

/// `POST /abort_requests` aborts the named requests, or all requests if it names none.
async fn abort_requests(State(server): State<Arc<Server>>, request: Request) -> Told {
    const NAMES: [&str; 3] = ["request_ids", "request_id", "rid"];
    let settings = settings(&server, request, &NAMES).await?;
    let mut given = settings.into_iter().filter(|(_, value)| !value.is_null());
    let Some((field, value)) = given.next() else {
        abort(&server, &[]).await;
        return json(json!({ "status": "aborted" }));
    };
    if given.next().is_some() {
        return Err(Wrong::field(
            &field,
            format!("there is more than one of {}; give one", NAMES.join(", ")),
        ));
    }
    let names = match value {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let names =
        names.ok_or_else(|| Wrong::field(&field, format!("{field} is no list of names; give texts")))?;
    // As in vLLM, an empty list means all requests.
    abort(&server, &names).await;
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
    #[serde(deserialize_with = "named::rid")]
    rid: Option<String>,
    #[serde(deserialize_with = "named::abort_all")]
    abort_all: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// `POST /abort_request`.
async fn abort_request(State(server): State<Arc<Server>>, request: Request) -> Told {
    let AbortRequest { rid, abort_all, rest } = read(&server, request).await?;
    match (abort_all.unwrap_or(false), rid) {
        (true, _) => abort(&server, &[]).await,
        (false, Some(rid)) => abort(&server, &[rid]).await,
        (false, None) => return Err(Wrong::request("give rid, or abort_all")),
    }
    left(json!({ "success": true }), &rest)
}

/// Adds the names of the request's ignored fields to an answer.
fn left(told: Value, rest: &Map<String, Value>) -> Told {
    let names: Vec<String> = rest.keys().map(|name| name.chars().take(100).collect()).collect();
    Ok(noted(axum::Json(told), &names))
}

/// `POST /pause_generation`.
async fn pause_generation(State(server): State<Arc<Server>>, request: Request) -> Told {
    let settings = settings(&server, request, &["mode"]).await?;
    let how = match settings
        .get("mode")
        .filter(|mode| !mode.is_null())
        .map(|mode| mode.as_str().unwrap_or("no text"))
    {
        None | Some("abort") => How::Abort,
        // Rollouts keep what they have either way.
        Some("in_place" | "retract") => How::Keep,
        Some(other) => {
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
    go_on(&server).await;
    json(json!({ "success": true, "message": "generation goes on" }))
}

/// What an update says. vLLM's clients put it behind `update_info` too.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Update {
    #[serde(
        alias = "weight_dir",
        alias = "path",
        alias = "weights_path",
        deserialize_with = "named::model_path"
    )]
    model_path: Option<PathBuf>,
    #[serde(deserialize_with = "named::weight_version")]
    weight_version: Option<Name>,
    #[serde(deserialize_with = "named::update_info")]
    update_info: Option<Box<Update>>,
    #[serde(deserialize_with = "named::mode")]
    mode: Option<String>,
    #[serde(deserialize_with = "named::abort_all_requests")]
    abort_all_requests: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A version's name, as a text or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, or a number from 0 on")]
enum Name {
    Text(String),
    Number(u64),
}

impl Name {
    fn text(self) -> Result<String, Wrong> {
        let text = match self {
            Name::Text(text) => text,
            Name::Number(number) => number.to_string(),
        };
        if text.is_empty() {
            return Err(Wrong::field(
                "weight_version",
                "weight_version is empty; leave it out, or give a name",
            ));
        }
        names::check("weight_version", text)
    }
}

/// Performs an update. Returns the name of the version, and the ignored fields.
async fn update(server: &Arc<Server>, request: Request) -> Result<(String, Map<String, Value>), Wrong> {
    let update: Update = read(server, request).await?;
    let update = match update.update_info {
        Some(inner) if update.model_path.is_none() => {
            let inner = *inner;
            let mut rest = update.rest;
            rest.extend(inner.rest);
            Update {
                weight_version: inner.weight_version.or(update.weight_version),
                mode: inner.mode.or(update.mode),
                abort_all_requests: inner.abort_all_requests.or(update.abort_all_requests),
                rest,
                ..inner
            }
        }
        _ => update,
    };
    let Update { model_path, weight_version, mode, abort_all_requests, rest, .. } = update;
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
    let name = weight_version.map(Name::text).transpose()?;
    let mut ending = server.ending.subscribe();
    let server = server.clone();
    let updated = whole(async move {
        let _turn = server.imports.lock().await;
        // Before anything is aborted: while it is read the version before serves on.
        let reader = server.clone();
        let weights = apart(move || (reader.import)(&path)).await?.map_err(Wrong::request)?;
        if abort_all_requests.unwrap_or(false) {
            abort_now(&server, &[]).await;
        }
        server.engine.publish(Box::new(weights), name.as_deref(), mode).await.map_err(Wrong::conflict)
    });
    tokio::select! {
        biased;
        updated = updated => Ok((updated??, rest)),
        // The server ends, so nothing will use the weights that are being read.
        _ = ending.wait_for(|&ending| ending) => Err(Wrong::ending()),
    }
}

async fn update_weights(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (name, rest) = update(&server, request).await?;
    left(json!({ "status": "ok", "message": "the weights are resident", "weight_version": name }), &rest)
}

async fn areal_update(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (name, rest) = update(&server, request).await?;
    left(json!({ "success": true, "message": "the weights are resident", "weight_version": name }), &rest)
}

async fn update_from_disk(State(server): State<Arc<Server>>, request: Request) -> Told {
    let (name, rest) = update(&server, request).await?;
    let told = json!({
        "success": true, "message": "the weights are resident", "num_paused_requests": 0, "weight_version": name,
    });
    left(told, &rest)
}

async fn nothing() -> Told {
    json(json!({ "status": "ok" }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FinishUpdate {
    #[serde(alias = "new_version", deserialize_with = "named::weight_version")]
    weight_version: Option<Name>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Names the version that is resident.
async fn finish_update(State(server): State<Arc<Server>>, request: Request) -> Told {
    let FinishUpdate { weight_version, rest } = read(&server, request).await?;
    if let Some(name) = weight_version {
        server.engine.rename(&name.text()?).await;
    }
    left(json!({ "status": "ok", "success": true, "weight_version": server.engine.version() }), &rest)
}

async fn weight_info(State(server): State<Arc<Server>>) -> Told {
    let version = server.engine.version();
    json(json!({ "weight_version": version, "version": version, "model": server.model }))
}

async fn weight_version(State(server): State<Arc<Server>>) -> Told {
    json(json!({ "weight_version": server.engine.version() }))
}
