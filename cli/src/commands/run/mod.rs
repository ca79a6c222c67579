//! `doorbell run`: drives every rollout of a trace through its whole life.

mod carry;
mod identity;
mod inject;
mod language;
mod prompts;
mod publish;
mod report;
mod reward;
mod setup;
mod strict;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_engine::Ranges;
use doorbell_guard::Facts;
use doorbell_host::Placement;
use doorbell_runtime::metrics::{Metrics, Server, WorkerTime};
use doorbell_runtime::pipeline::{Feed, Pipeline, Publisher, RuntimeError};
use doorbell_runtime::policy::PolicyKind;
use doorbell_trace::Trace;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::trace;
use crate::failure::{DIFFERENT, Failure};
use crate::models;
use crate::output::{self, Sink};
use crate::signals::Signals;
use doorbell_devices::Kind;
use language::{Models, Publishing, Verdict};
use prompts::Prompts;
use report::{Placed, Report};
use setup::Built;

/// How often progress and the judges' times are shown.
const TICK: Duration = Duration::from_millis(100);
/// KV blocks at most: the positions of them are half a billion.
const MOST_BLOCKS: i64 = 1 << 24;
/// How long judges may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a trace on one device: every request becomes a group of rollouts, each of which is decoded, judged at its
/// checkpoints and at its end, and stored as a trajectory. A rollout on which no judge has a verdict fails, is reported,
/// and leaves no trajectory. Ends with code 1 if the device or the writer fails, no judge is left, more rollouts fail than
/// --max-failures or all do, the device refuses a descriptor, or --strict finds a violation.
#[derive(clap::Args)]
pub struct Args {
    /// Device to run on: model, rtl, gpu, pcie:ADDRESS, or vfio-user:SOCKET, which `doorbell vfio-user` serves
    #[arg(long, default_value = "model")]
    device: String,
    /// Trace to run (own format, Mooncake or Azure); by default a small built-in one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Requests to take from the start of the trace
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Which waiting rollout decodes next: fifo, shortest-remaining, prefix-sharing or longest-expected
    #[arg(long, default_value_t = PolicyKind::Fifo)]
    policy: PolicyKind,
    /// Language model that the rollouts run (engine 1), as `doorbell model list` has it: prompts are drawn by the seed, equal ones where the trace has
    /// equal ids, and the KV blocks lie on the device; needs a function for each queue pair
    #[arg(long, conflicts_with = "reward_queue")]
    model: Option<String>,
    #[command(flatten)]
    cap: models::CapArgs,
    /// Prompts, as JSON lines {"prompt":"…","answer":"…","max_tokens":N}, in place of a trace: each is a request, numbered from 0, and the model's own ends end its answers. The
    /// answer, which rules compare with, and the most tokens may be left out
    #[arg(long, value_name = "FILE", requires = "model", conflicts_with = "trace")]
    prompts: Option<PathBuf>,
    /// Most tokens of an answer, if the line of its prompt does not say
    #[arg(long, value_name = "N", default_value = "256", requires = "prompts")]
    max_tokens: NonZeroU32,
    /// Take the prompts as they stand, not as chats
    #[arg(long, requires = "prompts")]
    raw: bool,
    /// How freely the language model's tokens are drawn; 0 takes the most likely one each time
    #[arg(long, value_name = "T", default_value_t = 1.0, requires = "model")]
    temperature: f64,
    /// Most positions of a prompt that one PREFILL computes; 0 is no limit
    #[arg(long, value_name = "TOKENS", default_value_t = 0, requires = "model")]
    prefill_tokens: u32,
    /// Host memory for swapping, in KV blocks, at most 2^24: a rollout that waits at a checkpoint may be swapped out when a request needs blocks, and resumes in other blocks
    /// later; 0 turns this off
    #[arg(long, value_name = "N", default_value_t = 0, requires = "model", value_parser = clap::value_parser!(u32).range(..=MOST_BLOCKS))]
    swap_blocks: u32,
    /// Hold each trajectory to the oracle before it is stored: tokens, log-probabilities, keys and values (asks for log-probabilities); one that differs is
    /// exit code 1
    #[arg(long, requires = "model", conflicts_with = "strict")]
    check: bool,
    /// Run the trace this many times over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    repeat: u64,
    /// Rollouts per request; above 1 they share a prefix, which a PREFILL registers first
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    group: u32,
    /// Tokens between checkpoints; 0 is never
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    checkpoint: u32,
    /// Who scores: judges on threads of the host, the device by itself at checkpoints (flag RESIDENT: one descriptor for each
    /// rollout), or the device when it is asked (REWARD descriptors)
    #[arg(long, value_name = "WHO", default_value = "host")]
    reward: reward::Who,
    /// Reward model: digest folds the digest of the tokens, ranges counts those that lie in --reward-ranges
    #[arg(long, value_name = "MODEL", default_value = "digest")]
    reward_model: reward::Model,
    /// Ranges of --reward-model ranges, up to 16, the last token of each included, as 0..999+5000..5999
    #[arg(long, value_name = "RANGES", value_parser = reward::ranges)]
    reward_ranges: Option<Box<Ranges>>,
    /// Send the REWARDs of --reward device to queue pairs of their own, one beside each of the device's
    #[arg(long)]
    reward_queue: bool,
    /// Score below which a rollout ends at a checkpoint; of the digest, scores are from 0 to 1
    #[arg(long, value_name = "SCORE", default_value_t = 0.0, value_parser = reward::threshold)]
    reward_threshold: f64,
    /// Rules by which answers are judged instead of their digest, as TOML (see the book)
    #[arg(long, value_name = "FILE", conflicts_with = "reward_threshold")]
    rules: Option<PathBuf>,
    /// Threads that judge; 0 judges on the hot thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=4096))]
    judges: u16,
    /// Judge the final answers of a group together, in one call of one judge; trajectories then have the group's mean and
    /// each answer's advantage
    #[arg(long)]
    judge_group: bool,
    /// Publish another version of the policy each time that this many rollouts have ended; 0 is never
    #[arg(long, value_name = "ROLLOUTS", default_value_t = 0)]
    publish_every: u64,
    /// What becomes of rollouts under the version before: wait lets them end under it, keep goes on under the new one with what
    /// they have, abort ends them
    #[arg(long, value_name = "MODE", default_value = "keep", requires = "publish_every")]
    publish_mode: publish::Mode,
    /// How many versions the oldest token of a trajectory may lie back; older rollouts are dropped
    #[arg(long, value_name = "VERSIONS", value_parser = clap::value_parser!(u32).range(..1 << 15))]
    max_staleness: Option<u32>,
    /// Ask the device for the log-probability of each token, and store them with the trajectories
    #[arg(long)]
    logprobs: bool,
    /// How long a judge may take for one answer, in milliseconds: after that another judge gets it, and another thread
    /// replaces the judge; by default 30 seconds beyond --judge-delay. 0 is no deadline: then a run in which nothing moves for a minute ends
    #[arg(long, value_name = "MS")]
    judge_deadline: Option<u64>,
    /// Rollouts that may fail before the run ends with code 1; by default any number, if not all
    #[arg(long, value_name = "N")]
    max_failures: Option<u64>,
    /// Let judges fail on purpose: panic:1% or error:1% fails at that share of the rollouts, which the seed
    /// chooses; hang:N hangs judge N forever at its first answer; can be given several times
    #[arg(long, value_name = "FAULT")]
    inject_judge: Vec<inject::Fault>,
    /// Let every judge take this much longer for an answer, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3_600_000_000))]
    judge_delay: u64,
    /// Probability of an end of sequence per token, 0 to 1; it ends the rollout. With --model any above 0 lets the model's own ends do so
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = super::fraction)]
    eos: f64,
    /// Abort every Nth rollout as soon as it decodes; 0 is none
    #[arg(long, value_name = "N", default_value_t = 0)]
    abort_every: u32,
    /// Seed of the token draws, and of latency, stalls and order in simulated memory; by default 1, or with --store the first from 1 on that no run
    /// in that log had
    #[arg(long = "seed", value_name = "SEED")]
    given_seed: Option<u32>,
    /// The one that is used.
    #[arg(skip = 1u32)]
    seed: u32,
    /// Rollouts under way at a time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    slots: u32,
    /// Rollouts that each stage may hold before admission waits; by default as many as there are slots
    #[arg(long, value_name = "N")]
    credits: Option<u32>,
    /// Descriptors in flight on the device at most; by default what its queue takes
    #[arg(long, value_name = "N", default_value_t = 0)]
    in_flight: usize,
    /// Ring the doorbell once this many descriptors are ready, while the device still has work
    #[arg(long, value_name = "N", default_value_t = 16)]
    window: usize,
    /// Blocks of the KV arena, of 32 tokens each, at most 2^24; by default what the trace can have in use at a time, within 65,536, and with --model within
    /// 1 GiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_BLOCKS))]
    kv_blocks: Option<u32>,
    /// Share equal prompts within a group only, not across requests
    #[arg(long)]
    share_groups_only: bool,
    /// Workers of a device that has several, on the gpu for each queue pair; by default all
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Queue pairs of the device, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    queues: u8,
    /// Functions that the queue pairs are spread over, at most as many as those; each has memory of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    functions: u8,
    /// GPUs to use as one device, as in 0,1: requests are spread over them; by default the first
    #[arg(long, value_name = "LIST", value_parser = super::gpus)]
    gpus: Option<super::GpuList>,
    /// Multiprocessors to take of each GPU, at least one more than queue pairs, two with --model; by default all
    #[arg(long, value_name = "N")]
    sms: Option<u32>,
    /// What the hot thread does while nothing moves: poll looks, and gives a simulated device its time; sleep sleeps until the device
    /// interrupts it, and a simulated device has a thread of its own
    #[arg(long, value_name = "HOW", default_value = "poll", conflicts_with = "strict")]
    wait: Wait,
    /// With --wait sleep, when the device interrupts, besides errors and ends of groups: after COUNT completions (0: never),
    /// or TICKS ticks after the first of them, as 8:1000; by default at each completion
    #[arg(long, value_name = "COUNT[:TICKS]", value_parser = coalescing)]
    coalesce: Option<(u32, u32)>,
    /// Where the memory lies that host and device share (rings, tokens, arenas), and in which pages: words joined by '+',
    /// as transparent+near+locked, which `doorbell doctor` explains; by default the system decides
    #[arg(long, value_name = "WORDS")]
    memory: Option<Placement>,
    /// Slots of the queues, a power of two
    #[arg(long, value_name = "SLOTS", default_value_t = 1024)]
    depth: u32,
    /// Store trajectories in the log in this directory, after those that it has; without it they are counted only
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Carry each trajectory to `doorbell nic collect` at this address too, by a modelled NIC: the bytes of the record that --store has
    #[arg(long, value_name = "HOST:PORT")]
    nic: Option<String>,
    /// Count a trajectory as stored once the operating system has it, instead of once the disk has it
    #[arg(long)]
    no_sync: bool,
    /// Write the events as a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Record no events: no latencies in the report
    #[arg(long, conflicts_with = "perfetto")]
    no_events: bool,
    /// Ask the device when each descriptor was fetched, begun, had its first token, ended and was visible, by its own clock: the
    /// report and --perfetto show it (a device with CAPABILITY.EVENTS)
    #[arg(long, conflicts_with = "no_events")]
    device_times: bool,
    /// Serve /metrics (Prometheus) and /status.json, as 127.0.0.1:9464, for `doorbell top` and others
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Fail if the hot thread allocates, takes a page fault, waits or calls the system after the warm-up
    #[arg(long)]
    strict: bool,
    /// Start to watch the hot thread once this share of the rollouts has ended
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = super::fraction, requires = "strict")]
    warm_up: f64,
    /// Write the result as JSON; '-' is standard output, and the table goes to standard error then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the hot thread does while nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Wait {
    /// It looks.
    Poll,
    /// It sleeps until the device interrupts.
    Sleep,
}

/// COALESCE_COUNT and COALESCE_TIME.
fn coalescing(text: &str) -> Result<(u32, u32), String> {
    let (count, time) = text.split_once(':').unwrap_or((text, "0"));
    let count = count.parse().ok().filter(|&count| count <= 0xFFFF);
    let count = count.ok_or("expected a number of completions, at most 65535, as 8 or 8:1000")?;
    let time = time.parse().map_err(|_| "expected ticks after the colon, as 8:1000".to_owned())?;
    Ok((count, time))
}

/// How a run went.
struct Ran {
    pipeline: Pipeline,
    result: Result<(), RuntimeError>,
    facts: Option<Result<Facts, String>>,
    wall: Duration,
    /// Why a version was not published.
    refused: Option<String>,
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    args.seed = identity::seed(args.given_seed, args.store.as_deref())?;
    let (kind, _) = Kind::choose(&args.device)?;
    for (option, is_given) in [("--gpus", args.gpus.is_some()), ("--sms", args.sms.is_some())] {
        if is_given && kind != Kind::Gpu {
            return Err(Failure::input(format!(
                "{option} is for --device gpu, and the device is the {kind}"
            )));
        }
    }
    if args.coalesce.is_some() && (args.wait != Wait::Sleep || kind == Kind::Gpu) {
        return Err(Failure::input("--coalesce is for --wait sleep on model or rtl, which interrupt"));
    }
    if args.strict && args.model.is_some() && kind == Kind::Model {
        return Err(Failure::input(
            "--strict judges the hot thread, and on --device model the golden model computes on that thread and allocates for \
             each token, so the verdict would be the golden model's; give --device rtl or gpu, or leave out --strict or --model",
        ));
    }
    args.cap.needs(args.model.as_deref())?;
    let image = args.model.as_deref().map(|model| args.cap.apply(models::image(model)?)).transpose()?;
    let (mut trace, format, prompts) = match (&args.prompts, &image) {
        (Some(path), Some(image)) => {
            let (prompts, trace) = Prompts::read(path, &args, image)?;
            (trace, None, Some(prompts))
        }
        _ => {
            let (trace, format) = trace::read(args.trace.as_deref())?;
            (trace, format, None)
        }
    };
    trace.requests.truncate(args.limit.unwrap_or(usize::MAX));
    if trace.requests.is_empty() {
        return Err(Failure::input(
            "the trace has no requests to run; use one with requests and a limit of at least 1",
        ));
    }
    let models = image.map(|image| Models::new(&args, image, prompts, &mut trace)).transpose()?;
    let json = args.json.as_deref().map(|path| Sink::open("JSON", path)).transpose()?;
    // Before the device is opened and anything is written: a port that is taken is told at once.
    let bound = args.listen.as_deref().map(Server::bind).transpose().map_err(Failure::input)?;
    let Built { mut pipeline, metrics, collector, device, capacity, placed, publishing, verdict, run } =
        setup::build(&args, kind, &trace, models)?;
    let server = bound.map(|bound| bound.serve(metrics.clone())).transpose().map_err(Failure::input)?;
    if let Some(server) = &server {
        output::tell(format_args!("serving http://{0}/metrics and http://{0}/status.json", server.address()));
    }

    let rollouts = trace.requests.len() as f64 * args.repeat as f64 * f64::from(args.group);
    let warm_up = args.strict.then_some((rollouts * args.warm_up).ceil() as u64);
    let publisher = (args.publish_every > 0 || publishing.is_some()).then(|| pipeline.publisher());
    let over = AtomicBool::new(false);
    let signals = Signals::catch()?;
    let ran = thread::scope(|scope| {
        let feed = Feed::repeated(&trace.requests, args.repeat);
        let hot = thread::Builder::new()
            .name("hot".into())
            .spawn_scoped(scope, || hot(pipeline, feed, warm_up, &signals));
        let hot =
            hot.map_err(|error| Failure::failed(format!("the hot thread could not be started: {error}")))?;
        let publisher =
            publisher.map(|publisher| start_publisher(scope, publisher, publishing, &args, &metrics, &over));
        show_progress(&trace, &args, &metrics, || hot.is_finished());
        let ran = hot.join().map_err(|_| Failure::failed("the hot thread panicked"));
        over.store(true, Ordering::Release);
        let refused = publisher.transpose()?.and_then(|publisher| publisher.join().ok().flatten());
        ran.map(|ran| Ran { refused, ..ran })
    })?;

    let Ran { mut pipeline, mut result, facts, wall, refused } = ran;
    let (kv, preempted) = (pipeline.kv_counts(), pipeline.preempted());
    let (alone, first_error) = (pipeline.blocks_alone(), pipeline.first_error().copied());
    let failures = pipeline.failures().to_vec();
    // The kernel's own account of it, while it is mapped.
    let memory = placed.map(|regions| Placed::of(&regions));
    let mut ends = pipeline.into_ends();
    let judges = ends.rewards.shutdown(PATIENCE);
    let stored = ends.trajectories.finish();
    let device_counters = ends.device.counters();
    let workers = ends.device.worker_counters().unwrap_or_default();
    metrics.show_workers(workers.iter().map(WorkerTime::from).collect());
    let events = collector.map(|collector| collector.finish());
    metrics.end();
    // Why the writer failed is known only now.
    let mut reasons: Vec<String> = refused.into_iter().collect();
    let unwritten = match &events {
        Some((_, Err(error))) => Some(format!("the trace for Perfetto could not be written: {error}")),
        _ => None,
    };
    if let Err(error) = &mut result {
        reasons.push(error.to_string());
    }
    let stored = stored.map_err(|error| reasons.push(error.to_string())).ok();
    let verdict = verdict.map(|verdict| verdict.lock().unwrap_or_else(PoisonError::into_inner).clone());
    if let Some(Verdict { checked, different, first: Some(first) }) = &verdict {
        reasons.push(format!(
            "{different} of {checked} trajectories are not the oracle's; the first is {first}"
        ));
    }
    let values = metrics.counters.values();
    if result.is_ok() && values.rollouts_failed > 0 && values.rollouts_completed == 0 {
        reasons.push("no rollout has ended with a trajectory, and some have failed".to_owned());
    }

    let report = Report {
        args: &args,
        trace: &trace,
        format,
        device,
        wall,
        values,
        failures: &failures,
        hot: metrics.status().threads.into_iter().next(),
        mean_score: metrics.status().mean_score(),
        judges: &judges,
        device_counters: device_counters.ok(),
        workers,
        capacity,
        events: events.map(|(report, _)| report),
        kv,
        alone,
        preempted,
        stored,
        run,
        first_error,
        facts: facts.as_ref(),
        memory,
        verdict,
        reasons: &reasons,
    };
    let mut failures: Vec<Failure> = unwritten.map(Failure::input).into_iter().collect();
    failures.extend(output::report(&report.text(), json.map(|json| (json, report.json()))));
    failures.iter().for_each(|failure| output::tell(format_args!("error: {failure}")));
    // How the run went matters more than where it could not be written.
    Ok(match failures.first() {
        _ if !report.succeeded() => ExitCode::from(DIFFERENT),
        _ if signals.come() => signals.exit_code(),
        Some(failure) => failure.exit_code(),
        None => ExitCode::SUCCESS,
    })
}

/// The hot thread. With `warm_up`, it is watched once that many rollouts have ended. Once a signal has come nothing more is admitted, what decodes is
/// aborted, and what has ended is stored.
fn hot(mut pipeline: Pipeline, mut feed: Feed<'_>, warm_up: Option<u64>, signals: &Signals) -> Ran {
    let start = Instant::now();
    let (mut result, facts) = match warm_up {
        None => (pipeline.run(&mut feed, |_| signals.come()), None),
        Some(warm_up) => strict::run(&mut pipeline, &mut feed, warm_up, signals),
    };
    if result.is_ok() && signals.come() {
        output::note("stopping: what has ended is stored; a second signal ends the program at once");
        result = pipeline.abort_all().and_then(|_| pipeline.run(&mut Feed::new(&[]), |_| false));
    }
    Ran { pipeline, result, facts, wall: start.elapsed(), refused: None }
}

/// The thread that publishes versions; it ends with why one was refused, if one was.
fn start_publisher<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    publisher: Publisher,
    publishing: Option<Publishing>,
    args: &'scope Args,
    metrics: &'scope Metrics,
    over: &'scope AtomicBool,
) -> Result<thread::ScopedJoinHandle<'scope, Option<String>>, Failure> {
    let publish = move || publish::run(publisher, publishing, args, metrics, over);
    let thread = thread::Builder::new().name("publisher".into()).spawn_scoped(scope, publish);
    thread.map_err(|error| Failure::failed(format!("the publisher's thread could not be started: {error}")))
}

/// A progress bar once the run takes over a second and somebody watches, until the run is over.
fn show_progress(trace: &Trace, args: &Args, metrics: &Arc<Metrics>, over: impl Fn() -> bool) {
    let rollouts = trace.requests.len() as u64 * args.repeat * u64::from(args.group);
    let style = ProgressStyle::with_template("{prefix:8} {wide_bar} {pos}/{len} rollouts {msg} {eta}")
        .expect("the template is valid");
    let bar = ProgressBar::with_draw_target(Some(rollouts), ProgressDrawTarget::hidden())
        .with_style(style)
        .with_prefix(args.device.clone());
    let start = Instant::now();
    let mut last = Instant::now();
    let mut shown = false;
    while !over() {
        // Short runs end without waiting for the next look.
        thread::sleep(if start.elapsed() < TICK { Duration::from_millis(2) } else { TICK });
        if last.elapsed() < TICK {
            continue;
        }
        last = Instant::now();
        if output::shows_progress() && start.elapsed() > Duration::from_secs(1) {
            if !shown {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                shown = true;
            }
            let values = metrics.counters.values();
            let seconds = start.elapsed().as_secs_f64();
            bar.set_position(report::ended(&values));
            bar.set_message(format!(
                "{} tokens/s",
                output::thousands(values.tokens_generated as f64 / seconds)
            ));
        }
    }
    bar.finish_and_clear();
}
