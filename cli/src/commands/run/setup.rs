//! From the command line to a pipeline with all that it works with.

use std::io::BufWriter;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_engine::NO_RANGES;
use doorbell_host::{QueueConfig, TokenRegion};
use doorbell_runtime::events::{Clock, Collector, Perfetto, TickRate};
use doorbell_runtime::kv::{AnswerStart, PrefixConfig, Prefixes, Sharing};
use doorbell_runtime::metrics::{CollectorThread, Metrics};
use doorbell_runtime::pipeline::{
    Credits, Discard, Inline, LanguageParts, Options, Parts, Pipeline, PromptSpans, RewardStage,
    SequenceMemory, TrajectoryStage,
};
use doorbell_runtime::reward::{
    AnswerMemory, DigestJudge, Judge, Pool, PoolOptions, Prompts, RangeJudge, RuleJudge, Rules, SlowJudge,
};
use doorbell_runtime::trajectory::log::{Log, LogOptions, Run, Sync};
use doorbell_runtime::trajectory::{Carried, RolloutMemory, Spans, WriterHandle, WriterOptions};
use doorbell_trace::{PREFIX_BLOCK_TOKENS, Request, Trace};

use super::super::GpuList;
use super::carry::{self, NicCarrier};
use super::identity;
use super::inject::Faulty;
use super::language::{self, Checked, Models, Publishing, Verdict};
use super::reward::{self, Who};
use super::{Args, Wait};
use crate::busy::Busy;
use crate::failure::Failure;
use crate::output::{self, Output};
use doorbell_devices::{Gpus, Kind, Memory, Opened, Settings};

/// Slots of a function's event ring, of which three quarters are for what the device tells of descriptors.
const LIVES: u32 = 8192;
/// Blocks that the KV arena has at most if nobody says how many: no request has less than it needs.
const BLOCKS: u64 = 1 << 16;
/// Tokens of a KV block.
const BLOCK_TOKENS: u32 = 32;
/// Events that may wait for the collector: it looks every millisecond, and a segment makes about eight.
const EVENTS: usize = 1 << 18;

/// Versions of the policy that one rollout may see, if it has as many tokens and nobody limits its staleness.
const SPANS: u32 = 1024;

/// A pipeline, and what is not in it.
pub struct Built {
    pub pipeline: Pipeline,
    pub metrics: Arc<Metrics>,
    pub collector: Option<CollectorThread>,
    /// Name of the device.
    pub device: String,
    /// Slots of its submission queue.
    pub capacity: usize,
    /// Its token regions, by which the memory that it shares is found, if that was placed.
    pub placed: Option<Vec<TokenRegion>>,
    /// What publishes the weights of a language model.
    pub publishing: Option<Publishing>,
    /// What the oracle says of the trajectories, if it is asked.
    pub verdict: Option<Arc<Mutex<Verdict>>>,
    /// What the log has noted of the run.
    pub run: Option<Run>,
}

/// Opens and allocates everything. What can refuse comes first, then the run is noted in its log, and an old trace for Perfetto is
/// replaced: a run that does not begin leaves both as they were.
pub fn build(args: &Args, kind: Kind, trace: &Trace, models: Option<Models>) -> Result<Built, Failure> {
    reward::check(args, kind)?;
    if models.is_some() && args.queues != args.functions {
        return Err(Failure::input(format!(
            "--model needs a function for each queue pair, with a MODEL region and an arena of its own; give --functions {}",
            args.queues
        )));
    }
    let language = models.as_ref().map(|models| models.language(args));
    let options = Options { language, ..options(args, trace)? };
    options.check().map_err(Failure::input)?;
    args.nic.as_deref().map(carry::reach).transpose()?;
    let perfetto =
        args.perfetto.as_deref().map(|path| Output::open("the trace for Perfetto", path)).transpose()?;
    let slots = options.slots;
    let kv = blocks(args, trace, options.max_output_tokens, models.as_ref())?;
    let (_, own) = Kind::choose(&args.device)?;
    let mut settings = settings(args, kind, &options).and(&own)?;
    if let Some(models) = &models {
        settings.queue = models.regions(&options, kv.blocks, settings.queue);
    }
    // A GPU's kernels may have to be compiled first.
    let opening = format!("opening {kind}");
    let Opened { device, rewards: beside } = match args.reward_queue {
        true => Busy::during(opening, || kind.open_with_rewards(&settings))?,
        false => Busy::during(opening, || kind.open(&settings))?.into(),
    };
    let regions = device.token_regions();
    let placed = (!settings.placement.is_default()).then(|| regions.clone());
    let longest = options.max_output_tokens;

    let kv = Prefixes::new(kv).map_err(Failure::input)?;

    let ids = trace.requests.iter().map(|request| request.prefix.len()).max().unwrap_or(0);
    let prompts = Prompts::new(slots, ids);
    let memory = AnswerMemory { tokens: regions.clone(), prompts: prompts.clone() };
    let mut loads = None;
    let rewards: Box<dyn RewardStage> = if args.reward == Who::Device {
        reward::stage(args, &*device, beside, slots, threshold(args))?
    } else if args.judges == 0 {
        Box::new(Inline::new(memory, slots, longest, judge(args, models.as_ref())?))
    } else {
        let options = PoolOptions {
            judges: args.judges.into(),
            capacity: (slots as usize).next_power_of_two().max(2),
            longest: longest as usize,
            deadline: deadline(args),
            ..PoolOptions::default()
        };
        let pool = Pool::start(options, &memory, judge(args, models.as_ref())?).map_err(Failure::input)?;
        loads = Some(pool.loads());
        Box::new(pool)
    };

    let spans = Spans::new(slots, longest_spans(args, longest));
    let log = match &args.store {
        None => None,
        Some(directory) => {
            let sync = if args.no_sync { Sync::Never } else { Sync::EveryGroup };
            let (log, recovery) =
                Log::open(directory, LogOptions { sync, ..LogOptions::default() }).map_err(Failure::input)?;
            if let Some(torn) = &recovery.torn {
                output::tell(format_args!(
                    "{}: {} bytes of a write that had not come to its end were cut off",
                    torn.file.display(),
                    torn.bytes
                ));
            }
            for damage in &recovery.damage {
                output::tell(format_args!("{damage}"));
            }
            Some(log)
        }
    };
    let next_run = args.store.as_deref().zip(log.as_ref().map(Log::next_run));
    let nic = args.nic.as_deref().map(NicCarrier::new).transpose()?;
    let written = WriterOptions::new((slots as usize).next_power_of_two().max(2), longest as usize);
    let memory =
        RolloutMemory { tokens: regions.clone(), logprobs: device.logp_regions(), spans: spans.clone() };
    let asked = models.as_ref().map(Models::stored_prompts);
    let started = match (nic, log) {
        (None, None) => None,
        (Some(nic), log) => Some(WriterHandle::start_keeping(Carried::new(nic, log), memory, written, asked)),
        (None, Some(log)) => Some(WriterHandle::start_keeping(log, memory, written, asked)),
    };
    let trajectories: Box<dyn TrajectoryStage> = match started.transpose().map_err(Failure::input)? {
        None => Box::new(Discard::new(slots)),
        Some(writer) => Box::new(writer),
    };

    let publishing = models.as_ref().map(|models| models.weights(&*device));
    let (mut trajectories, mut language, mut verdict) = (trajectories, None, None);
    if let Some(models) = models {
        let made = PromptSpans::new(&options);
        language = Some(LanguageParts { prompts: models.prompts(), made: made.clone() });
        if args.check {
            let memory = SequenceMemory::new(options.clone(), &*device, spans.clone(), made);
            let (checked, told) = Checked::start(trajectories, models, memory, slots)?;
            (trajectories, verdict) = (Box::new(checked), Some(told));
        }
    }
    let (name, capacity) = (device.name().to_owned(), device.capacity());
    let clock = Clock::new();
    let metrics = Metrics::new(&format!("{} on {name}", trace.source), clock.clone(), loads);
    // With --strict the hot thread allocates nothing, not even for those who look.
    let shows_workers = args.listen.is_some() && !args.strict;
    let metrics = Arc::new(if shows_workers { metrics.with_workers() } else { metrics });
    let rate = args.device_times.then(|| TickRate(device.features().tick_hz));
    let (collector, recorder) = match rate {
        _ if args.no_events => None,
        Some(rate) => Some(Collector::with_device(clock, slots, EVENTS, rate)),
        None => Some(Collector::new(clock, slots, EVENTS)),
    }
    .unzip();
    let parts = Parts {
        device,
        sq_start: Some(0),
        policy: args.policy.build(slots),
        kv,
        rewards,
        prompts,
        trajectories,
        spans,
        language,
        recorder,
        metrics: metrics.clone(),
    };
    let pipeline = Pipeline::new(options, parts).map_err(Failure::input)?;
    let run = next_run.map(|(directory, next)| identity::note(args, next, directory, &name)).transpose()?;
    let start = |collector: Collector| {
        let perfetto = perfetto.map(|out| trace_for_perfetto(out, &collector, slots, rate)).transpose()?;
        CollectorThread::start(collector, metrics.clone(), perfetto)
            .map_err(|error| Failure::failed(format!("the collector could not be started: {error}")))
    };
    let collector = collector.map(start).transpose()?;
    Ok(Built { pipeline, metrics, collector, device: name, capacity, placed, publishing, verdict, run })
}

/// Versions that one rollout may see: each gives it a token at least.
fn longest_spans(args: &Args, longest: u32) -> u32 {
    match (args.publish_every, args.max_staleness) {
        (0, _) => 1,
        (_, Some(staleness)) => longest.min(staleness + 1),
        (_, None) => longest.min(SPANS),
    }
}

/// How long a judge may be at an answer.
fn deadline(args: &Args) -> Option<Duration> {
    match args.judge_deadline {
        None => Some(Duration::from_secs(30) + Duration::from_micros(args.judge_delay)),
        Some(0) => None,
        Some(milliseconds) => Some(Duration::from_millis(milliseconds)),
    }
}

fn options(args: &Args, trace: &Trace) -> Result<Options, Failure> {
    if args.judges == 0 && args.judge_deadline.is_some_and(|deadline| deadline > 0) {
        return Err(Failure::input(
            "--judge-deadline cannot be kept by --judges 0, which judges on the hot thread; give at least 1 judge",
        ));
    }
    let outputs = trace.requests.iter().map(|request| request.output_tokens);
    Ok(Options {
        slots: args.slots.max(args.group),
        group: args.group,
        checkpoint: args.checkpoint,
        scoring: args.reward.scoring(),
        eos_stops: args.eos > 0.0 || args.prompts.is_some(),
        seed: args.seed,
        max_output_tokens: outputs.max().unwrap_or(1),
        credits: Credits::new(args.credits.unwrap_or(args.slots.max(args.group))),
        in_flight: args.in_flight,
        window: args.window,
        abort_every: args.abort_every,
        judge_group: args.judge_group,
        logprobs: args.logprobs || args.check,
        max_staleness: args.max_staleness,
        sleeps: args.wait == Wait::Sleep,
        max_failures: args.max_failures,
        // A slow judge without a deadline is waited for, and so is one that comes after it.
        patience: Duration::from_secs(60) + 2 * Duration::from_micros(args.judge_delay),
        ..Options::default()
    })
}

fn settings(args: &Args, kind: Kind, options: &Options) -> Settings {
    // A GPU looks for the completions that ask.
    let sleeps = args.wait == Wait::Sleep && kind != Kind::Gpu;
    let (coalesce_count, coalesce_time) = if sleeps { args.coalesce.unwrap_or((1, 0)) } else { (0, 0) };
    Settings {
        queue: QueueConfig {
            sq_depth: args.depth,
            cq_depth: args.depth,
            token_bytes: options.token_bytes(),
            logp_bytes: options.logp_bytes(),
            eos_threshold: (args.eos * 32_768.0).round() as u32,
            reward_threshold: threshold(args),
            // The judges of the host count by themselves.
            ranges: args
                .reward_ranges
                .as_deref()
                .filter(|_| args.reward == Who::Device)
                .copied()
                .unwrap_or(NO_RANGES),
            length_limit: options.length_limit,
            workers: args.workers,
            coalesce_count,
            coalesce_time,
            event_slots: if args.device_times { LIVES } else { 0 },
            life_events: args.device_times,
            ..QueueConfig::default()
        },
        patience: None,
        memory: Memory { latency: 0..=0, stalls: 0, reorder: false, random: false, seed: args.seed.into() },
        placement: args.memory.unwrap_or_default(),
        queues: args.queues,
        functions: args.functions,
        own_thread: sleeps && !kind.runs_elsewhere(),
        tap: args.device_times,
        socket: None,
        address: None,
        gpus: Gpus {
            gpus: args.gpus.as_ref().map_or_else(|| Gpus::default().gpus, |GpuList(gpus)| gpus.clone()),
            sms: args.sms,
        },
        fault: None,
    }
}

/// Q16.16.
fn threshold(args: &Args) -> i32 {
    (args.reward_threshold * 65_536.0).round() as i32
}

/// What is wrong with the rules, with the name of their file.
fn of_rules(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    let (name, told) = (path.display().to_string(), error.to_string());
    Failure::input(if told.contains(&name) { told } else { format!("--rules {name}: {told}") })
}

/// Makes judges, given their numbers.
fn judge(
    args: &Args,
    models: Option<&Models>,
) -> Result<impl FnMut(usize) -> Box<dyn Judge> + Send + use<>, Failure> {
    let rules = args.rules.as_ref().map(|path| {
        let rules = Rules::read(path).map_err(|error| of_rules(path, &error))?;
        let texts = models.filter(|_| rules.reads_text()).map(Models::texts).transpose()?;
        RuleJudge::new(rules, texts).map_err(|error| of_rules(path, &error))
    });
    let rules = rules.transpose()?;
    let threshold = threshold(args);
    let ranges = args.reward_ranges.as_deref().copied();
    let delay = Duration::from_micros(args.judge_delay);
    let (faults, seed) = (args.inject_judge.clone(), args.seed);
    Ok(move |number| {
        let judge: Box<dyn Judge> = match (&rules, ranges) {
            (Some(rules), _) => Box::new(rules.clone()),
            (None, Some(ranges)) => Box::new(RangeJudge { ranges, threshold }),
            (None, None) => Box::new(DigestJudge { threshold }),
        };
        let judge = if delay.is_zero() { judge } else { Box::new(SlowJudge { judge, delay }) };
        let faults = faults.clone();
        if faults.is_empty() { judge } else { Box::new(Faulty { judge, number, faults, seed }) }
    })
}

/// The tables of KV blocks; refuses to have fewer blocks than some request needs.
fn blocks(
    args: &Args,
    trace: &Trace,
    longest: u32,
    models: Option<&Models>,
) -> Result<PrefixConfig, Failure> {
    let longest_prompt = trace.requests.iter().map(|request| request.prompt_tokens).max().unwrap_or(0);
    let slots = args.slots.max(args.group);
    let cap = models.and_then(Models::cap);
    // What a group takes at most: each member writes on in the prompt's last block, if that is not full.
    let need = |request: &Request| {
        // The keys and values of the last token are the first step's.
        let prompt = request.prompt_tokens.saturating_sub(models.is_some().into());
        let partial = u64::from(prompt % BLOCK_TOKENS);
        let answer = (partial + u64::from(request.output_tokens)).div_ceil(BLOCK_TOKENS.into());
        let most = cap.map_or(u32::MAX, |cap| cap.blocks(BLOCK_TOKENS, prompt / BLOCK_TOKENS));
        let answer = answer.min(most.into());
        u64::from(prompt.div_ceil(BLOCK_TOKENS)) + u64::from(args.group) * answer
    };
    let (least, number) = trace.requests.iter().map(need).zip(0u64..).max().unwrap_or_default();
    // What all slots take at a time, and no more than the whole trace does.
    let all = u64::from((slots / args.group).max(1)).saturating_mul(least);
    let whole = trace.requests.iter().map(need).fold(0, u64::saturating_add).saturating_mul(args.repeat);
    let most = models.map_or(BLOCKS, |models| BLOCKS.min(language::ARENA / models.block_bytes()));
    let blocks = match args.kv_blocks {
        // The tables say what is wrong with none at all.
        Some(blocks) if blocks > 0 && u64::from(blocks) < least => {
            return Err(Failure::input(format!(
                "--kv-blocks {blocks} are too few: request {number} needs {least} in groups of {}; give at least {least}",
                args.group
            )));
        }
        Some(blocks) => blocks,
        None => u32::try_from(all.min(whole).min(most).max(least)).map_err(|_| {
            Failure::input(format!(
                "request {number} needs {least} KV blocks in groups of {}, more than there can be (2^32); give smaller \
                 groups",
                args.group
            ))
        })?,
    };
    let swaps = args.swap_blocks > 0;
    let pieces: usize = trace.requests.iter().map(|request| request.prefix.len()).sum();
    Ok(PrefixConfig {
        blocks,
        block_tokens: BLOCK_TOKENS,
        answer_start: if models.is_some() { AnswerStart::SamePage } else { AnswerStart::NewBlock },
        sharing: if args.share_groups_only { Sharing::Group } else { Sharing::Requests },
        prefixes: slots,
        branches: slots,
        prompt_tokens: longest_prompt.max(1),
        // Of who gave its blocks back the end of the prompt is a part of the answer.
        answer_tokens: longest + if swaps { BLOCK_TOKENS } else { 0 },
        // Each has at least one block while it is remembered; the longest prompt must fit.
        nodes: (pieces.min(blocks as usize) as u32).max(longest_prompt.div_ceil(PREFIX_BLOCK_TOKENS)).max(1),
        cap,
    })
}

/// Replaces what the file had.
fn trace_for_perfetto(
    out: Output,
    collector: &Collector,
    slots: u32,
    rate: Option<TickRate>,
) -> Result<Perfetto<BufWriter<Output>>, Failure> {
    let trace = Perfetto::new(out.stream()?, collector.clock().clone(), slots)
        .map_err(|error| Failure::input(format!("cannot begin the trace for Perfetto: {error}")))?;
    Ok(match rate {
        Some(rate) => trace.with_device(rate),
        None => trace,
    })
}
