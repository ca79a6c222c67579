//! The endpoints, and what they have in common.

mod answers;
mod calls;
mod control;
mod error;
mod fields;
mod inference;
mod information;
mod listen;
mod named;
mod names;
mod openai;
mod raw;
mod sampling;
mod sglang;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use doorbell_checkpoint::text::Text;
use doorbell_npu::Published;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

pub use listen::{bind, serve};
pub use sampling::key_of;

use crate::engine::Engine;
use error::Wrong;
use names::Names;
use openai::Prompt;

/// Reads weights that a trainer left in a directory, as a device takes them, or says what is wrong with them.
pub type Import = Box<dyn Fn(&Path) -> Result<Published, String> + Send + Sync>;

/// What a server takes from whom.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request.
    pub body: usize,
    /// How long a request may take to come, and a client to take more of its answer.
    pub patience: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// Prompts of a request.
    pub prompts: usize,
}

/// An engine behind endpoints.
pub struct Server {
    setup: Setup,
    /// Running number of what was drawn without a seed, and of ids.
    numbers: AtomicU64,
    names: Names,
    /// Room for the bytes of long requests, in KiB.
    long: Arc<Semaphore>,
    /// One request at a time may exceed that room.
    beyond: Arc<Semaphore>,
    /// Bytes of the longest token.
    longest_token: usize,
    /// The text that each token adds after another token.
    words: Vec<Box<str>>,
    /// The bytes of tokens that are parts of characters.
    parts: HashMap<u32, Vec<u8>>,
    /// The parts that still sleep; `None` if the server is awake.
    asleep: Mutex<Option<Vec<&'static str>>>,
    /// Serialises the reading of weights.
    imports: tokio::sync::Mutex<()>,
    /// Whether the server is shutting down.
    ending: watch::Sender<bool>,
    /// Makes numbers of salts.
    salts: RandomState,
    started: u64,
}

impl Deref for Server {
    type Target = Setup;

    fn deref(&self) -> &Setup {
        &self.setup
    }
}

/// What a server is made of.
pub struct Setup {
    /// The engine.
    pub engine: Engine,
    /// Name of the model.
    pub model: String,
    /// Its tokeniser.
    pub text: Arc<Text>,
    /// The template of chats, if it is not the model's own.
    pub template: Option<String>,
    /// Positions of the longest sequence.
    pub positions: u32,
    /// Tokens that there are.
    pub vocabulary: u32,
    /// Reads new weights.
    pub import: Import,
    /// The key that clients have to send, if they have to.
    pub key: Option<String>,
    /// What is taken.
    pub limits: Limits,
}

impl Server {
    /// A server that takes nothing yet.
    pub fn new(setup: Setup) -> Arc<Server> {
        let words = words(&setup.text, setup.vocabulary);
        let is_part = |token: &u32| words[*token as usize].contains('\u{FFFD}');
        let parts = (0..setup.vocabulary).filter(is_part);
        let parts = parts.filter_map(|token| Some((token, setup.text.bytes(token)?))).collect();
        Arc::new(Server {
            numbers: AtomicU64::new(0),
            names: Names::default(),
            long: Arc::new(Semaphore::new(LONG * kib(setup.limits.body) as usize)),
            longest_token: words.iter().map(|word| word.len()).max().unwrap_or(0).max(4),
            words,
            parts,
            beyond: Arc::new(Semaphore::new(1)),
            asleep: Mutex::new(None),
            imports: tokio::sync::Mutex::new(()),
            ending: watch::channel(false).0,
            salts: RandomState::new(),
            started: now(),
            setup,
        })
    }

    /// All endpoints.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/v1/completions", post(openai::completions))
            .route("/v1/chat/completions", post(openai::chat))
            .route("/inference/v1/generate", post(inference::generate))
            .route("/generate", post(sglang::generate))
            .route("/tokenize", post(information::tokenize))
            .route("/detokenize", post(information::detokenize))
            .merge(control::routes())
            .merge(information::routes())
            .fallback(missing)
            .method_not_allowed_fallback(async || Wrong::method())
            .layer(middleware::from_fn_with_state(self.clone(), guard))
            .with_state(self.clone())
    }

    /// A key that draws what nothing else has drawn: by the server's seed and a running number.
    fn draw(&self) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        key_of(u64::from(self.engine.size().seed) << 32 ^ number.rotate_left(17) ^ number)
    }

    /// An id that no other answer of this server has.
    fn id(&self, kind: &str) -> String {
        format!("{kind}-{:x}-{:x}", self.started, self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// What a client's salt is among those of the engine: nobody can guess another's.
    fn salt(&self, salt: Option<&str>) -> Result<u64, Wrong> {
        match salt {
            None => Ok(0),
            Some("") => Err(Wrong::field("cache_salt", "cache_salt is empty; leave it out, or give a text")),
            Some(salt) => Ok(self.salts.hash_one(salt).max(1)),
        }
    }

    /// The prompts of a request, as tokens; texts are the beginnings of sequences, or stand as they are. More than may come are refused before they are
    /// read.
    async fn prompts(
        self: &Arc<Self>,
        prompt: Prompt,
        begins: bool,
        place: Place,
    ) -> Result<Vec<Vec<u32>>, Wrong> {
        let (most, count) = (self.limits.prompts, prompt.count());
        if count == 0 || count > most {
            return Err(Wrong::field("prompt", format!("there are {count} prompts; give 1 to {most}")));
        }
        let texts = match prompt {
            Prompt::Tokens(tokens) => return Ok(vec![tokens]),
            Prompt::Many(prompts) => return Ok(prompts),
            Prompt::Text(text) => vec![text],
            Prompt::Texts(texts) => texts,
        };
        let server = self.clone();
        let encode = move || {
            let _place = place;
            texts.iter().map(|text| server.encode("prompt", text, begins)).collect()
        };
        apart(encode).await?
    }

    /// Tokens of a text, as the beginning of a sequence, or as it stands. One that has too many is refused before it is read. Takes long: for threads
    /// that may wait.
    fn encode(&self, field: &str, text: &str, begins: bool) -> Result<Vec<u32>, Wrong> {
        let most = SHORTER * self.longest_token * self.engine.size().prompt_tokens as usize;
        if text.len() > most {
            let message = format!(
                "the prompt has {} bytes, more than {} tokens can stand for; shorten it",
                text.len(),
                self.engine.size().prompt_tokens
            );
            return Err(Wrong::field(field, message));
        }
        let encoded = if begins { self.text.encode(text) } else { self.text.encode_chat(text) };
        encoded.map_err(|error| Wrong::field(field, error.to_string()))
    }

    fn asleep(&self) -> MutexGuard<'_, Option<Vec<&'static str>>> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses tokens that the model has not.
    fn known(&self, field: &str, tokens: &[u32]) -> Result<(), Wrong> {
        match tokens.iter().find(|&&token| token >= self.vocabulary) {
            None => Ok(()),
            Some(token) => {
                Err(Wrong::field(field, format!("{token} is no token; the model has {}", self.vocabulary)))
            }
        }
    }

    /// The most tokens that an answer to a prompt may have.
    fn room(&self, prompt: usize) -> u32 {
        let room = u64::from(self.positions).saturating_sub(prompt as u64) as u32;
        room.min(self.engine.size().answer_tokens)
    }
}

/// The text that each token adds after another one: a decoder treats the first tokens of a text differently.
fn words(text: &Text, vocabulary: u32) -> Vec<Box<str>> {
    let is_word = |token: &u32, least: usize| {
        let word = text.decode(&[*token]).unwrap_or_default();
        word.len() >= least && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    // A token of several letters does not stand for a single byte.
    let before = (0..vocabulary).find(|token| is_word(token, 2));
    let before = before.or_else(|| (0..vocabulary).find(|token| is_word(token, 1)));
    let behind = text.stream_behind(before.as_slice());
    let word = |token| {
        let mut stream = behind.clone();
        let word = stream.next(token).and_then(|word| Ok(word + &stream.end()?));
        word.unwrap_or_default().into_boxed_str()
    };
    (0..vocabulary).map(word).collect()
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A request of more bytes than this takes room among the long requests, in steps of this size. There is room for a few of the longest.
const SHORT: usize = 64 << 10;
const LONG: usize = 3;
/// How many times as long as its tokens' texts a text may be, as a tokeniser may shorten it.
const SHORTER: usize = 4;

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

/// Room among the long requests, held until other limits bound the memory that the request takes.
#[derive(Default)]
struct Place {
    room: Option<OwnedSemaphorePermit>,
    /// Held by the one request that may exceed the room.
    beyond: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Takes room for a request of `length` bytes. If there is no room left for anyone, one request proceeds without it, so that it ends
    /// and returns its own.
    async fn hold(&mut self, server: &Server, length: usize) {
        let has = self.room.as_ref().map_or(0, |room| room.num_permits() as u32);
        let more = kib(length.next_multiple_of(SHORT)).saturating_sub(has);
        if more == 0 || self.beyond.is_some() {
            return;
        }
        tokio::select! {
            biased;
            room = server.long.clone().acquire_many_owned(more) => match (&mut self.room, room.ok()) {
                (Some(all), Some(room)) => all.merge(room),
                (none, room) => *none = room,
            },
            beyond = server.beyond.clone().acquire_owned() => self.beyond = beyond.ok(),
        }
    }
}

/// Reads a request whole, within limits of size and time, and as JSON.
async fn read<T: DeserializeOwned + Send + 'static>(server: &Server, request: Request) -> Result<T, Wrong> {
    Ok(read_held(server, request).await?.0)
}

/// The same, with its place.
async fn read_held<T: DeserializeOwned + Send + 'static>(
    server: &Server,
    request: Request,
) -> Result<(T, Place), Wrong> {
    let (bytes, place) = read_bytes(server, request).await?;
    let long = bytes.len() > SHORT;
    let parse = move || {
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let read = fields::check(bytes).and_then(|()| serde_json::from_slice(bytes));
        let read = read.map_err(|error: serde_json::Error| {
            let mut error = error.to_string();
            let field = named::field(&error).map(str::to_owned);
            // For an error in a named field, serde gives the position where all fields end, which is of no use.
            if field.is_some() {
                error.truncate(named::placeless(&error).len());
            }
            let message = format!("the request is not as it should be: {error}");
            field.map_or_else(|| Wrong::request(&*message), |field| Wrong::field(&field, &*message))
        });
        Ok((read?, place))
    };
    if long { apart(parse).await? } else { parse() }
}

/// Does what takes long on a thread of its own, beside those that answer others. It comes to its end though nobody waits for it any more.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Wrong> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Wrong::failed(error.to_string()))
}

/// Does what is asked whole, also if whoever asked hangs up.
async fn whole<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Wrong> {
    tokio::spawn(work).await.map_err(|error| Wrong::failed(error.to_string()))
}

async fn read_bytes(server: &Server, request: Request) -> Result<(Vec<u8>, Place), Wrong> {
    let Limits { body, patience, .. } = server.limits;
    let declared = request.headers().get("content-length").and_then(|text| text.to_str().ok()?.parse().ok());
    if declared.is_some_and(|length: usize| length > body) {
        return Err(Wrong::large(body));
    }
    let mut waits = false;
    let reading = async {
        let (mut bytes, mut place) = (vec![], Place::default());
        let mut pieces = request.into_body().into_data_stream();
        while let Some(piece) = pieces.next().await {
            // One that has gone hears nothing.
            let piece = piece.map_err(|_| Wrong::request("the request ended before it was whole"))?;
            let length = bytes.len() + piece.len();
            if length > body {
                return Err(Wrong::large(body));
            }
            if length > SHORT {
                waits = true;
                place.hold(server, length).await;
                waits = false;
            }
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, place))
    };
    match tokio::time::timeout(patience, reading).await {
        Err(_) if waits => Err(Wrong::busy()),
        Err(_) => Err(Wrong::slow()),
        Ok(read) => read,
    }
}

/// Lets through whoever has the key.
async fn guard(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let open = matches!(request.uri().path(), "/health" | "/ping");
    if let Some(key) = server.key.as_ref().filter(|_| !open) {
        let given = request.headers().get(AUTHORIZATION).and_then(|text| text.to_str().ok());
        // The name of an authentication scheme is case-insensitive.
        let given = given.and_then(|text| text.split_once(' '));
        let given = given
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, given)| given.trim_start());
        if !given.is_some_and(|given| same(given.as_bytes(), key.as_bytes())) {
            return Wrong::key().into_response();
        }
    }
    next.run(request).await
}

/// Compares in a time that does not tell where two keys differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

async fn missing(request: Request) -> Wrong {
    Wrong::missing(format!("there is no endpoint {}; see docs/serve.md", request.uri().path()))
}

/// An answer that is JSON.
type Told = Result<Response, Wrong>;

fn json(value: serde_json::Value) -> Told {
    Ok(axum::Json(value).into_response())
}

/// The endpoints of one kind.
type Routes = Router<Arc<Server>>;

fn routes() -> Routes {
    Router::new()
}
