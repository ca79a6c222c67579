//! `doorbell serve`.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use doorbell_checkpoint::text::Text;
use doorbell_devices::{Kind, Memory, Settings};
use doorbell_host::{Placement, QueueConfig};
use doorbell_lm::KvCap;
use doorbell_npu::Published;
use doorbell_runtime::kv::AnswerCap;
use doorbell_serve::engine::{Engine, Size};
use doorbell_serve::fault::Fault;
use doorbell_serve::http::{Limits, Server, Setup, bind, serve};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::busy::Busy;
use crate::failure::Failure;
use crate::inputs;
use crate::models;
use crate::output;

/// Bytes of keys and values if nobody says how many blocks.
const ARENA: u64 = 1 << 30;
/// KV blocks at most if nobody says how many.
const BLOCKS: u64 = 1 << 16;
/// KV blocks at most, whoever says how many: the positions of them are half a billion.
const MOST_BLOCKS: i64 = 1 << 24;
/// Tokens of a KV block.
const BLOCK_TOKENS: u32 = 32;
/// Exit codes of a server that a signal ended.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// Serves a language model over HTTP, by the requests of OpenAI, vLLM and SGLang, until a signal ends it. Rollouts run on any device; pausing them,
/// new weights and aborts are requests too.
#[derive(clap::Args)]
pub struct Args {
    /// A name (`doorbell model list`), an image, a GGUF file or a directory of Hugging Face
    #[arg(long, default_value = models::DEFAULT)]
    model: String,
    #[command(flatten)]
    cap: models::CapArgs,
    /// Device to run on: model, rtl or gpu
    #[arg(long, default_value = "model")]
    device: String,
    /// Address to listen at; port 0 takes one that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: String,
    /// Name that clients call the model by; that of --model if it is not given
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Name of the version of the weights that it begins with
    #[arg(long, value_name = "NAME", default_value = "0")]
    weight_version: String,
    /// Rollouts at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    slots: u32,
    /// Longest prompt, in tokens; by default as long as the model takes, at most 4096
    #[arg(long, value_name = "N")]
    max_prompt: Option<u32>,
    /// Longest answer, in tokens; by default as long as the model takes, at most 4096
    #[arg(long, value_name = "N")]
    max_answer: Option<u32>,
    /// Blocks of keys and values, of 32 positions each, at most 2^24; by default enough for all slots, at most 1 GiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_BLOCKS))]
    kv_blocks: Option<u32>,
    /// Keep no keys and values for later requests
    #[arg(long)]
    no_prefix_cache: bool,
    /// Workers of the rtl; by default as many as it is built with
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Where the memory lies that host and device share, and in which pages: words joined by '+', which `doorbell doctor` lists;
    /// by default the system decides
    #[arg(long, value_name = "WORDS")]
    memory: Option<Placement>,
    /// Tokens between looks at an answer that is streamed or has stops
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint: u32,
    /// Decides what is drawn for requests without a seed; by default another one for each server, which it tells
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
    /// File with the chat template, in Jinja, in the place of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Key that clients have to send (Authorization: Bearer KEY); by default that of DOORBELL_API_KEY, if that is set
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Requests that may wait for room; further ones are answered with 429
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_waiting: usize,
    /// Connections at a time; others wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = connections)]
    max_connections: usize,
    /// Bytes of a request
    #[arg(long, value_name = "N", default_value_t = 32 << 20)]
    max_body: usize,
    /// Seconds that a request may take to come, and a client to take more of its answer; at most a day, 86400
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    request_timeout: u64,
    /// Plants a fault, for suites that look for it: docs/lifecycle.md
    #[arg(long, value_name = "NAME", hide = true)]
    fault: Option<Fault>,
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=65_536) => Ok(count),
        _ => Err("expected 1 to 65536".into()),
    }
}

/// Serves.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (kind, own) = Kind::choose(&args.device)?;
    let image = args.cap.apply(models::image(&args.model)?)?;
    let shape = image.model.shape;
    let text = Arc::new(Text::new(&image.about, shape.vocabulary).map_err(Failure::input)?);
    let ends = image.about.ends.clone();
    let model = Published::new(image.to_bytes(), &ends).map_err(Failure::input)?;
    models::fits(&model, kind)?;
    drop(image);
    let template = args.chat_template.as_deref();
    let template = template.map(|path| inputs::text("the chat template", path)).transpose()?;
    let size = size(args, &model)?;
    let key = key(args.api_key.as_deref(), std::env::var_os("DOORBELL_API_KEY"))?;
    let settings = settings(args, &size, &model).and(&own)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("threads cannot be started: {error}")))?;
    // Before the device is opened: a port that is taken is told at once.
    let listener = runtime.block_on(bind(&args.listen)).map_err(|error| {
        Failure::input(format!("cannot listen at {}: {error}; give another address by --listen", args.listen))
    })?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    let device = Busy::during(format!("opening {kind}"), || kind.open(&settings))?;
    let import = {
        let (cap, ends, served) = (args.cap, ends.clone(), PathBuf::from(&args.model));
        Box::new(move |path: &Path| {
            models::weights(path, &served, shape, cap, &ends, kind).map_err(|failure| failure.to_string())
        })
    };
    let engine = Engine::start(device, size, model, text.clone(), &args.weight_version);
    let engine = engine.map_err(Failure::input)?;
    let name = args.served_model_name.clone().unwrap_or_else(|| args.model.clone());
    let server = Server::new(Setup {
        model: name.clone(),
        text,
        template,
        positions: shape.context as u32,
        vocabulary: shape.vocabulary as u32,
        import,
        key,
        limits: Limits {
            body: args.max_body,
            patience: Duration::from_secs(args.request_timeout),
            connections: args.max_connections,
            prompts: 1024,
        },
        engine,
    });
    let told = server.clone();
    let code = runtime.block_on(async move {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let seed = told.engine.size().seed;
        // A result, so it is told with --quiet too: a port that was free and a seed that was drawn stand nowhere else.
        output::tell(format_args!("{name} on {}, seed {seed}: http://{address}", told.engine.device()));
        let mut code = INTERRUPTED;
        let over = async {
            code = signalled(&mut interrupt, &mut terminate).await;
            // Whoever asks twice waits for nothing.
            tokio::spawn(async move {
                std::process::exit(signalled(&mut interrupt, &mut terminate).await.into());
            });
        };
        serve(server, listener, over).await?;
        Ok::<_, std::io::Error>(code)
    });
    // Weights that are still being read, from a disk that may not answer, delay nothing.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let code = code.map_err(|error| Failure::failed(format!("the server failed: {error}")))?;
    Ok(ExitCode::from(code))
}

/// Waits for a signal that ends the server; tells the exit code.
async fn signalled(interrupt: &mut Signal, terminate: &mut Signal) -> u8 {
    tokio::select! {
        _ = interrupt.recv() => INTERRUPTED,
        _ = terminate.recv() => TERMINATED,
    }
}

/// The key that clients have to send, if there is one. A key that no client can send would lock all out. Without a key all are let in, so one that
/// cannot be read is refused.
fn key(given: Option<&str>, variable: Option<OsString>) -> Result<Option<String>, Failure> {
    let (name, key) = match (given, variable) {
        (Some(key), _) => ("--api-key", key.into()),
        (None, Some(key)) => ("DOORBELL_API_KEY", key),
        (None, None) => return Ok(None),
    };
    match key.into_string() {
        Ok(key) if !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(key)),
        _ => Err(Failure::input(format!(
            "{name} is no key: give at least one letter, digit or sign of ASCII, and no blanks; without a key leave it out"
        ))),
    }
}

fn size(args: &Args, model: &Published) -> Result<Size, Failure> {
    let record = model.at(0);
    let most = record.positions.saturating_sub(1).max(1);
    let longest = |name: &str, given: Option<u32>| match given {
        None => Ok(most.min(4096)),
        Some(given) if (1..=most).contains(&given) => Ok(given),
        Some(given) => Err(Failure::input(format!(
            "{name} is {given}, and the model takes {} tokens with prompt and answer together; give 1 to {most}",
            record.positions
        ))),
    };
    let prompt_tokens = longest("--max-prompt", args.max_prompt)?;
    let answer_tokens = longest("--max-answer", args.max_answer)?;
    let positions = record.positions.min(prompt_tokens + answer_tokens);
    let each = positions.div_ceil(BLOCK_TOKENS) + 1;
    // With a cap: those of a prompt, and what its answer writes in turn.
    let capped = model.kv_cap.map_or(u32::MAX, |KvCap { window, sinks }| {
        let cap = AnswerCap { window: window as u32, sinks: sinks as u32 };
        prompt_tokens.div_ceil(BLOCK_TOKENS) + cap.blocks(BLOCK_TOKENS, 0)
    });
    // Of the system's: servers beside each other are to draw apart.
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(()) as u32);
    let each = u64::from(each.min(capped));
    let all = each * u64::from(args.slots);
    let most = BLOCKS.min(ARENA / record.block_bytes()).max(each);
    Ok(Size {
        slots: args.slots,
        members: args.slots.min(64),
        prompt_tokens,
        answer_tokens,
        blocks: args.kv_blocks.unwrap_or(all.min(most) as u32),
        keeps: !args.no_prefix_cache,
        waiting: args.max_waiting,
        checkpoint: args.checkpoint,
        seed,
        fault: args.fault,
    })
}

fn settings(args: &Args, size: &Size, model: &Published) -> Settings {
    let depth = args.slots.next_power_of_two().clamp(64, 2048);
    let queue =
        QueueConfig { sq_depth: depth, cq_depth: depth, workers: args.workers, ..QueueConfig::default() };
    Settings {
        queue: size.queue(model, queue),
        patience: None,
        memory: Memory { latency: 0..=0, stalls: 0, reorder: false, random: false, seed: size.seed.into() },
        placement: args.memory.unwrap_or_default(),
        queues: 1,
        functions: 1,
        own_thread: false,
        tap: false,
        socket: None,
        address: None,
        gpus: Default::default(),
        fault: None,
    }
}
