//! From the command line to a pipeline with all that it works with.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use doorbell_host::QueueConfig;
use doorbell_runtime::events::{Clock, Collector, Perfetto};
use doorbell_runtime::kv::{PageReport, PrefixConfig, Prefixes, Sharing};
use doorbell_runtime::metrics::{CollectorThread, Metrics};
use doorbell_runtime::pipeline::{
    Credits, Discard, Inline, Options, Parts, Pipeline, RewardStage, Scoring, TrajectoryStage,
};
use doorbell_runtime::reward::{DigestJudge, Judge, Loads, Pool, PoolOptions, RuleJudge, Rules, SlowJudge};
use doorbell_runtime::trajectory::log::{Log, LogOptions, Sync};
use doorbell_runtime::trajectory::{WriterHandle, WriterOptions};
use doorbell_trace::{PREFIX_BLOCK_TOKENS, Request, Trace};

use super::Args;
use crate::failure::Failure;
use crate::output::Output;
use doorbell_devices::{Gpus, Kind, Memory, Settings};

/// Bytes that the KV arena takes at most if nobody says how many blocks it has.
const ARENA_BYTES: u64 = 1 << 30;
/// Tokens of a KV block.
const BLOCK_TOKENS: u32 = 32;
/// Events that may wait for the collector: it looks every millisecond, and a segment makes about eight.
const EVENTS: usize = 1 << 18;

/// A pipeline, and what is not in it.
pub struct Built {
    pub pipeline: Pipeline,
    pub metrics: Arc<Metrics>,
    pub collector: Option<CollectorThread>,
    pub loads: Option<Loads>,
    /// What the KV blocks lie on.
    pub pages: PageReport,
    /// Name of the device.
    pub device: String,
    /// Slots of its submission queue.
    pub capacity: usize,
}

/// Opens and allocates everything.
pub fn build(args: &Args, kind: Kind, trace: &Trace) -> Result<Built, Failure> {
    let options = options(args, trace);
    let slots = options.slots;
    let device = kind.open(&settings(args, &options))?;
    let regions = device.token_regions();
    let longest = options.max_output_tokens;

    let kv = Prefixes::new(blocks(args, trace, longest)).map_err(Failure::input)?;
    let pages = kv.arena().report().clone();

    let mut loads = None;
    let rewards: Box<dyn RewardStage> = if args.judges == 0 {
        Box::new(Inline::new(judge(args)?(), regions.clone(), slots, longest))
    } else {
        let options = PoolOptions {
            judges: args.judges,
            capacity: (slots as usize).next_power_of_two().max(2),
            longest: longest as usize,
            check_digest: false,
        };
        let judge = judge(args)?;
        let pool = Pool::start(options, &regions, |_| judge()).map_err(Failure::input)?;
        loads = Some(pool.loads());
        Box::new(pool)
    };

    let trajectories: Box<dyn TrajectoryStage> = match &args.store {
        None => Box::new(Discard::new(slots)),
        Some(directory) => {
            let sync = if args.no_sync { Sync::Never } else { Sync::EveryGroup };
            let (log, recovery) =
                Log::open(directory, LogOptions { sync, ..LogOptions::default() }).map_err(Failure::input)?;
            if let Some(torn) = &recovery.torn {
                eprintln!(
                    "{}: {} bytes of a write that had not come to its end were cut off",
                    torn.file.display(),
                    torn.bytes
                );
            }
            for damage in &recovery.damage {
                eprintln!("{damage}");
            }
            let options = WriterOptions {
                capacity: (slots as usize).next_power_of_two().max(2),
                longest: longest as usize,
            };
            Box::new(WriterHandle::start(log, regions.clone(), options).map_err(Failure::input)?)
        }
    };

    let (name, capacity) = (device.name().to_owned(), device.capacity());
    let clock = Clock::new();
    let metrics = Arc::new(Metrics::new(&format!("{} on {name}", trace.source), clock.clone(), args.judges));
    let (recorder, collector) = if args.no_events {
        (None, None)
    } else {
        let mut collector = Collector::new(clock, slots);
        let recorder = collector.recorder("hot", EVENTS).map_err(Failure::input)?;
        let perfetto = args.perfetto.as_deref().map(|path| perfetto(path, &collector, slots)).transpose()?;
        let thread = CollectorThread::start(collector, metrics.clone(), perfetto);
        let thread = thread
            .map_err(|error| Failure::failed(format!("the collector could not be started: {error}")))?;
        (Some(recorder), Some(thread))
    };
    let parts = Parts {
        device,
        // The sq_head of several queue pairs is of none of them.
        sq_start: (regions.len() == 1).then_some(0),
        policy: args.policy.build(slots),
        kv,
        rewards,
        trajectories,
        recorder,
        metrics: metrics.clone(),
    };
    let pipeline = Pipeline::new(options, parts).map_err(Failure::input)?;
    Ok(Built { pipeline, metrics, collector, loads, pages, device: name, capacity })
}

fn options(args: &Args, trace: &Trace) -> Options {
    let outputs = trace.requests.iter().map(|request| request.output_tokens);
    Options {
        slots: args.slots.max(args.group),
        group: args.group,
        checkpoint: args.checkpoint,
        scoring: if args.resident { Scoring::Device } else { Scoring::Host },
        eos_stops: args.eos > 0.0,
        seed: args.seed,
        max_output_tokens: outputs.max().unwrap_or(1),
        credits: Credits::new(args.credits.unwrap_or(args.slots.max(args.group))),
        in_flight: args.in_flight,
        window: args.window,
        abort_every: args.abort_every,
        // A slow judge is waited for.
        patience: Duration::from_secs(60) + Duration::from_micros(args.judge_delay),
        ..Options::default()
    }
}

fn settings(args: &Args, options: &Options) -> Settings {
    Settings {
        queue: QueueConfig {
            sq_depth: args.depth,
            cq_depth: args.depth,
            token_bytes: options.token_bytes(),
            eos_threshold: (args.eos * 32_768.0).round() as u32,
            reward_threshold: threshold(args),
            length_limit: options.length_limit,
            workers: args.workers,
            ..QueueConfig::default()
        },
        patience: None,
        memory: Memory { latency: 0..=0, stalls: 0, reorder: false, random: false, seed: args.seed.into() },
        gpus: Gpus { gpus: vec![0], queues: args.queues.into() },
        fault: None,
    }
}

/// Q16.16.
fn threshold(args: &Args) -> u32 {
    (args.reward_threshold * 65_536.0).round() as u32
}

/// Makes judges.
fn judge(args: &Args) -> Result<impl Fn() -> Box<dyn Judge> + use<>, Failure> {
    let rules = match &args.rules {
        None => None,
        Some(path) => Some(Rules::read(path).map_err(Failure::input)?),
    };
    let threshold = threshold(args);
    let delay = Duration::from_micros(args.judge_delay);
    Ok(move || {
        let judge: Box<dyn Judge> = match &rules {
            Some(rules) => Box::new(RuleJudge::new(rules.clone())),
            None => Box::new(DigestJudge { threshold }),
        };
        if delay.is_zero() { judge } else { Box::new(SlowJudge { judge, delay }) }
    })
}

fn blocks(args: &Args, trace: &Trace, longest: u32) -> PrefixConfig {
    let prompts = || trace.requests.iter().map(|request| request.prompt_tokens);
    let longest_prompt = prompts().max().unwrap_or(0);
    let slots = args.slots.max(args.group);
    // What a group takes at most, and what all slots do.
    let answer = longest.div_ceil(BLOCK_TOKENS);
    let group = longest_prompt.div_ceil(BLOCK_TOKENS) + args.group * answer;
    let all = u64::from(slots / args.group) * u64::from(group);
    // No more than the whole trace takes.
    let need = |request: &Request| {
        let answers = u64::from(args.group) * u64::from(request.output_tokens.div_ceil(BLOCK_TOKENS));
        u64::from(request.prompt_tokens.div_ceil(BLOCK_TOKENS)) + answers
    };
    let all = all.min(trace.requests.iter().map(need).sum());
    let fits = ARENA_BYTES / args.kv_block_bytes as u64;
    let blocks = args.kv_blocks.unwrap_or(all.min(fits).max(group.into()) as u32);
    let pieces: usize = trace.requests.iter().map(|request| request.prefix.len()).sum();
    PrefixConfig {
        blocks,
        block_bytes: args.kv_block_bytes,
        block_tokens: BLOCK_TOKENS,
        sharing: if args.share_groups_only { Sharing::Group } else { Sharing::Requests },
        prefixes: slots,
        branches: slots,
        prompt_tokens: longest_prompt.max(1),
        answer_tokens: longest,
        // Each has at least one block while it is remembered; the longest prompt must fit.
        nodes: (pieces.min(blocks as usize) as u32).max(longest_prompt.div_ceil(PREFIX_BLOCK_TOKENS)).max(1),
        ..PrefixConfig::default()
    }
}

fn perfetto(path: &Path, collector: &Collector, slots: u32) -> Result<Perfetto<BufWriter<File>>, Failure> {
    let failed =
        |error: std::io::Error| Failure::input(format!("cannot write the trace {}: {error}", path.display()));
    // Told before the run, if it cannot be written.
    Output::open("the trace for Perfetto", path)?.keep();
    let file = BufWriter::new(File::create(path).map_err(failed)?);
    Perfetto::new(file, collector.clock().clone(), collector.threads(), slots).map_err(failed)
}
