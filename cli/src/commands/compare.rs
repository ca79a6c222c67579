//! `doorbell compare`.

use std::ops::{ControlFlow, Range, RangeInclusive};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use doorbell_contract::PolicyMode;
use doorbell_devices::{Gpus, Kind, Memory, OpenError, Settings, Shape, cycles};
use doorbell_host::{Device, QueueConfig};
use doorbell_trace::{Format, Trace};
use doorbell_verify::compare::{Outcome, compare, compare_lives};
use doorbell_verify::lockstep::Held;
use doorbell_verify::replay::{Progress, ReplayOptions, ReplayPlan};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::GpuList;
use super::chaos::{self, Chaos};
use super::trace;
use crate::busy::Busy;
use crate::failure::{DIFFERENT, Failure};
use crate::output::{self, Sink};
use crate::report::{Fault, Report, Skipped, Waveform};
use crate::why;

/// Runs a trace on several devices, the first being the reference, and compares every compared field of every
/// completion and every token byte. Ends with code 1 if any differs, and also if one fails or stops answering.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    runs: Runs,
    /// Write the result as JSON; '-' is standard output, and the table goes to standard error then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to record the RTL's waveform around a divergence; by default divergence.fst
    #[arg(long, value_name = "FILE")]
    wave: Option<PathBuf>,
    /// Record the RTL's waveform from this cycle on, whether anything goes wrong or not
    #[arg(long, value_name = "CYCLE", conflicts_with = "chaos")]
    trace_from: Option<u64>,
    /// Up to this cycle; by default 100,000 cycles after --trace-from
    #[arg(long, value_name = "CYCLE", conflicts_with = "chaos")]
    trace_to: Option<u64>,
    /// Have the save file show the signals of this instance of the RTL, as u_dispatcher
    #[arg(long, value_name = "INSTANCE", conflicts_with = "chaos")]
    trace_scope: Option<String>,
    /// In place of a trace: draw descriptors, bus errors, disables, resets and nonsense from this seed, and judge each device by the
    /// rules; of the other options --devices, --queues, --functions, --workers and --wave count
    #[arg(long, value_name = "SEED", conflicts_with_all = ["trace", "inject", "json"], value_parser = clap::value_parser!(u64).range(..chaos::SEEDS))]
    #[cfg_attr(feature = "lm", arg(conflicts_with = "model"))]
    #[cfg_attr(all(feature = "lm", feature = "rtl"), arg(conflicts_with = "lockstep"))]
    chaos: Option<u64>,
    /// Seeds, from that one on
    #[arg(long, value_name = "N", default_value_t = 1, requires = "chaos", value_parser = clap::value_parser!(u64).range(1..=chaos::SEEDS))]
    chaos_seeds: u64,
    /// Rounds of each seed, each with a device made anew
    #[arg(long, value_name = "N", default_value_t = 4, requires = "chaos", value_parser = clap::value_parser!(u32).range(1..=i64::from(chaos::ROUNDS)))]
    chaos_rounds: u32,
    /// Only this round of the seed
    #[arg(long, value_name = "ROUND", requires = "chaos", conflicts_with = "chaos_rounds", value_parser = clap::value_parser!(u32).range(..i64::from(chaos::ROUNDS)))]
    chaos_round: Option<u32>,
    /// Descriptors of a round, about; at most 1,000,000,000
    #[arg(long, value_name = "N", default_value_t = 500, requires = "chaos", value_parser = clap::value_parser!(u64).range(1..=chaos::DESCRIPTORS))]
    chaos_descriptors: u64,
    /// Seeds that run side by side, each on a thread, at most 1024; on the GPU one after the other
    #[arg(long, value_name = "N", default_value_t = 1, requires = "chaos", value_parser = clap::value_parser!(u16).range(1..=1024))]
    chaos_jobs: u16,
    /// Seeds take four shapes in turn, one queue pair with one worker and with four, four in as many functions, 16 in four
    #[arg(long, requires = "chaos", conflicts_with_all = ["queues", "functions", "workers"])]
    chaos_shapes: bool,
    /// Begin no further seed after this many seconds, and print the seed to go on with
    #[arg(long, value_name = "SECONDS", requires = "chaos")]
    chaos_seconds: Option<u64>,
}

/// What runs, and on what.
#[derive(clap::Args)]
pub struct Runs {
    /// Devices to compare, the reference first; by default all that are there. Settings of one device follow its name, as
    /// in model,model:queues=4:functions=2 (an unknown key lists them); vfio-user:SOCKET is one that `doorbell vfio-user`
    /// serves, pcie:ADDRESS a function that is bound to vfio-pci
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    devices: Vec<String>,
    /// Trace to run (own format, Mooncake or Azure); by default a small built-in one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Rollouts per request; above 1 they share a prefix, which a PREFILL registers first, and are a group of the device
    #[arg(long, value_name = "K", default_value_t = 1)]
    group: u32,
    /// Tokens between checkpoints; 0 is never
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    checkpoint: u32,
    /// Let the devices score checkpoints themselves (flag RESIDENT)
    #[arg(long)]
    resident: bool,
    /// Score below which a resident rollout ends, 0 to 1
    #[arg(long, value_name = "SCORE", default_value_t = 0.02, value_parser = super::fraction)]
    reward_threshold: f64,
    /// Probability of an end of sequence per token, 0 to 1; it ends the rollout
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = super::fraction)]
    eos: f64,
    /// Send a STOP to every Nth rollout; 0 is none
    #[arg(long, value_name = "N", default_value_t = 0)]
    stop_every: u32,
    /// Send every Nth group a STOP of all its rollouts; 0 is none
    #[arg(long, value_name = "N", default_value_t = 0)]
    stop_groups: u32,
    /// Publish the next version of the policy after every N completions; 0 is never
    #[arg(long, value_name = "N", default_value_t = 0)]
    publish_every: u64,
    /// What becomes of the version before
    #[arg(long, value_name = "MODE", default_value = "keep", value_parser = publish_mode)]
    publish_mode: PolicyMode,
    /// Language model that the rollouts run (engine 1), as `doorbell model list` has it: prompts are drawn by the seed, tokens at temperature 1, and each device is
    /// held to the oracle, log-probabilities, keys and values included; one device is enough. Without a name it is tiny
    #[cfg(feature = "lm")]
    #[arg(long, num_args = 0..=1, default_missing_value = crate::models::DEFAULT, conflicts_with = "publish_every")]
    model: Option<String>,
    #[cfg(feature = "lm")]
    #[command(flatten)]
    cap: crate::models::CapArgs,
    /// Not built: says so.
    #[cfg(not(feature = "lm"))]
    #[arg(long = "model", num_args = 0..=1, default_missing_value = "", hide = true)]
    no_model: Option<String>,
    /// Not built: says so.
    #[cfg(not(all(feature = "lm", feature = "rtl")))]
    #[arg(long = "lockstep", hide = true)]
    no_lockstep: bool,
    /// Compare each instruction of the RTL's NPU with the interpreter when it is done, and name the first that differs
    #[cfg(all(feature = "lm", feature = "rtl"))]
    #[arg(long, requires = "model")]
    lockstep: bool,
    /// Requests to take from the start of the trace
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Seed of the token draws, and of latency, stalls and order in simulated memory
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Workers of the devices that have several, on the gpu for each queue pair; by default all
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// GPUs to use as one device, as in 0,1: rollouts are spread over them by prefix; by default the first. Naming any
    /// asks for the gpu
    #[arg(long, value_name = "LIST", value_parser = super::gpus)]
    gpus: Option<GpuList>,
    /// Multiprocessors to take of each GPU, at least one more than queue pairs, two with --model; by default all
    #[arg(long, value_name = "N")]
    sms: Option<u32>,
    /// Queue pairs of each device, on the gpu of each GPU, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    queues: u8,
    /// Functions that the queue pairs of a device are spread over, at most as many as those; each has memory of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    functions: u8,
    /// Slots of a submission queue, a power of two
    #[arg(long, value_name = "SLOTS", default_value_t = QueueConfig::default().sq_depth)]
    sq_depth: u32,
    /// Slots of a completion queue, a power of two
    #[arg(long, value_name = "SLOTS", default_value_t = QueueConfig::default().cq_depth)]
    cq_depth: u32,
    /// Cycles to wait before each token
    #[arg(long, value_name = "CYCLES", default_value_t = 0)]
    wait_states: u32,
    /// Cycles that the memory takes to answer, as 5 or 0..40
    #[arg(long, value_name = "A..B", default_value = "0", value_parser = cycles)]
    latency: RangeInclusive<u32>,
    /// Chance in percent, up to 95, that a channel stands still in a cycle
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=95))]
    stalls: u8,
    /// Answer writes out of order
    #[arg(long)]
    reorder: bool,
    /// Draw latency, stalls and reordering from the seed
    #[arg(long, conflicts_with_all = ["latency", "stalls", "reorder"])]
    random_memory: bool,
    /// Advances without progress after which a device counts as hung; by default what suits the device
    #[arg(long, value_name = "ADVANCES", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,
    /// Put a fault into the last device that takes one, to see it found: token, completion or hang (exit code 1 each, also if
    /// the run ends before the fault's place comes, which the report says then);
    /// with a place as token:1000 or completion:5:status on the model, token:BEAT:BIT and more on the RTL (an unknown one
    /// lists them); none on the gpu
    #[arg(long, value_name = "FAULT")]
    inject: Option<String>,
}

impl Runs {
    /// Whether a device of this kind was named, rather than tried with all others.
    fn asks_for(&self, kind: Kind) -> bool {
        !self.devices.is_empty() || kind == Kind::Gpu && self.gpus.is_some()
    }
}

/// A device to compare, and the settings that are its alone.
struct Chosen {
    kind: Kind,
    own: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    #[cfg(not(feature = "lm"))]
    if args.runs.no_model.is_some() || args.runs.no_lockstep {
        return Err(crate::left_out::option(
            if args.runs.no_lockstep { "--lockstep" } else { "--model" },
            "lm",
        ));
    }
    #[cfg(all(feature = "lm", not(feature = "rtl")))]
    if args.runs.no_lockstep {
        return Err(Failure::unavailable(
            "--lockstep holds the RTL's NPU, and rtl is not part of this build",
        ));
    }
    if let Some(seed) = args.chaos {
        return run_chaos(&args, seed);
    }
    let json = args.json.as_deref().map(|path| Sink::open("JSON", path)).transpose()?;
    // Told before the work, if it cannot be written.
    #[cfg(feature = "rtl")]
    args.wave.as_deref().map(output::Recording::open).transpose()?;
    #[cfg(not(feature = "rtl"))]
    args.wave.as_deref().map(|path| output::Output::open("waveform", path)).transpose()?;
    let window = window(args.trace_from, args.trace_to)?;
    #[cfg(not(feature = "rtl"))]
    if window.is_some() {
        let why = "--trace-from and --trace-to record the RTL, which is not part of this build";
        return Err(Failure::unavailable(why));
    }
    #[cfg(not(feature = "cosim"))]
    if args.trace_scope.is_some() {
        return Err(crate::left_out::option("--trace-scope", "cosim"));
    }
    let Compared { prepared, outcomes } = compared(&args.runs, false, Lives::Dropped)?;
    let Prepared { trace, format, plan, opened } = &prepared;
    let Opened { kinds, settings, skipped, .. } = opened;

    let agree = outcomes.iter().all(Outcome::agrees);
    let fault = planted(settings, &outcomes);
    let missed = fault.as_ref().is_some_and(|fault| !fault.found);
    let path = args.wave.unwrap_or(if agree { "trace.fst" } else { "divergence.fst" }.into());
    let cut = Cut {
        window,
        #[cfg(feature = "cosim")]
        scope: args.trace_scope,
    };
    let asked = cut.window.is_some();
    let waveform = record_wave(plan, kinds, settings, &outcomes, path, cut);
    let waveform_is_missing = waveform.is_none();
    let unrecorded = asked && waveform.as_ref().is_none_or(|waveform| waveform.recorded.is_err());
    let mut why = String::new();
    why::of_outcomes(plan, kinds, settings, &outcomes, &|_| true, &mut |text: &str| {
        why += text;
        Ok::<_, Failure>(())
    })?;
    let report = Report { trace, format: *format, plan, outcomes: &outcomes, skipped, fault, why, waveform };
    let mut failures = output::report(&report.text(), json.map(|json| (json, report.json())));
    if unrecorded {
        let why = match waveform_is_missing {
            true => "--trace-from and --trace-to record the RTL, and it is none of these devices",
            false => "the cycles that --trace-from and --trace-to name were not recorded",
        };
        failures.push(Failure::input(why));
    }
    failures.iter().for_each(|failure| output::tell(format_args!("error: {failure}")));
    // What was compared matters more than where it could not be written.
    Ok(match failures.first() {
        _ if !agree || missed => ExitCode::from(DIFFERENT),
        Some(failure) => failure.exit_code(),
        None => ExitCode::SUCCESS,
    })
}

/// The fault that was asked for, and whether it was found: one that nobody saw is a failure, as it was planted to be found.
pub(super) fn planted(settings: &[Settings], outcomes: &[Outcome]) -> Option<Fault> {
    let found = !outcomes.iter().all(Outcome::agrees);
    settings.iter().zip(outcomes).find_map(|(settings, outcome)| {
        Some(Fault { fault: settings.fault.clone()?, device: outcome.name.clone(), found })
    })
}

/// What is replayed, and on what.
pub(super) struct Prepared {
    trace: Trace,
    /// `None` for the built-in trace.
    format: Option<Format>,
    pub plan: ReplayPlan,
    pub opened: Opened,
}

/// What devices did with a plan.
pub(super) struct Compared {
    pub prepared: Prepared,
    pub outcomes: Vec<Outcome>,
}

impl Prepared {
    /// What runs, in words.
    #[cfg(feature = "report")]
    pub fn heading(&self) -> String {
        crate::report::heading(&self.trace, self.format, &self.plan)
    }
}

/// Whether the life of each descriptor is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lives {
    Kept,
    Dropped,
}

/// Reads the trace and opens the devices; one is enough where `alone`.
pub(super) fn prepare(args: &Runs, alone: bool, lives: Lives) -> Result<Prepared, Failure> {
    let alone = alone || args.has_language();
    let chosen = select(args, alone)?;
    let (mut trace, format) = trace::read(args.trace.as_deref())?;
    let plan = plan(args, &mut trace)?;
    #[cfg(feature = "lm")]
    if let Some(language) = plan.language() {
        chosen.iter().try_for_each(|chosen| crate::models::fits(&language.published, chosen.kind))?;
    }
    let opened = open(args, &plan, &chosen, alone, lives)?;
    Ok(Prepared { trace, format, plan, opened })
}

/// Runs the plan on all devices and compares them.
pub(super) fn compared(args: &Runs, alone: bool, lives: Lives) -> Result<Compared, Failure> {
    let mut prepared = prepare(args, alone, lives)?;
    let Prepared { plan, opened, .. } = &mut prepared;
    let mut devices = std::mem::take(&mut opened.devices);
    let bars = Bars::new(&devices, plan);
    let compare = if lives == Lives::Kept { compare_lives } else { compare };
    let mut outcomes = compare(plan, &mut devices, &|place, progress| bars.show(place, progress));
    bars.clear();
    // The clock of a GPU runs on while the host is busy: what it did is measured in time alone.
    for (outcome, _) in outcomes.iter_mut().zip(&opened.kinds).filter(|(_, kind)| **kind == Kind::Gpu) {
        outcome.cycles = None;
    }
    drop(devices);
    for (outcome, held) in outcomes.iter_mut().zip(std::mem::take(&mut opened.held)) {
        outcome.lockstep = held.map(|held| held());
    }
    Ok(Compared { prepared, outcomes })
}

/// `--chaos`.
fn run_chaos(args: &Args, seed: u64) -> Result<ExitCode, Failure> {
    let mut kinds = Vec::new();
    for text in &args.runs.devices {
        let (kind, own) = Kind::choose(text)?;
        // A place that follows a name is told to be of no use here when the device is opened.
        if !own.is_empty() && !kind.runs_elsewhere() {
            return Err(Failure::input(format!(
                "--chaos takes no settings of one device, and '{text}' has some; give --queues, --functions and --workers, for all"
            )));
        }
        // Outcomes are told by the kind. A second device of it would draw the same again.
        if kinds.contains(&(kind, true)) {
            return Err(Failure::input(format!(
                "--devices names {kind} twice, and --chaos would draw the same on both; name it once, and give --chaos-seeds for more draws"
            )));
        }
        kinds.push((kind, true));
    }
    if kinds.is_empty() {
        kinds.extend(Kind::ALL.map(|kind| (kind, args.runs.asks_for(kind))));
    }
    if args.runs.functions > args.runs.queues {
        let queues = args.runs.queues;
        return Err(Failure::input(format!(
            "functions is {}: it must be at most {queues}, the number of queue pairs",
            args.runs.functions
        )));
    }
    let left = chaos::SEEDS - seed;
    if args.chaos_seeds > left {
        return Err(Failure::input(format!(
            "--chaos-seeds is {}: from seed {seed} on there are {left}; give at most so many",
            args.chaos_seeds
        )));
    }
    let shapes = if args.chaos_shapes {
        chaos::SHAPES.to_vec()
    } else {
        vec![(args.runs.queues, args.runs.functions, args.runs.workers.unwrap_or(4))]
    };
    let chaos = Chaos {
        seed,
        seeds: args.chaos_seeds,
        rounds: if args.chaos_round.is_some() { 1 } else { args.chaos_rounds },
        first_round: args.chaos_round.unwrap_or(0),
        descriptors: args.chaos_descriptors,
        shapes: shapes
            .into_iter()
            .map(|(queues, functions, workers)| Shape { workers, queues, functions, wave: None })
            .collect(),
        jobs: args.chaos_jobs.into(),
        limit: args.chaos_seconds.map(Duration::from_secs),
    };
    chaos::run(&kinds, &chaos, args.wave.as_deref())
}

/// What is replayed.
#[cfg_attr(
    not(feature = "lm"),
    expect(clippy::needless_pass_by_ref_mut, reason = "a language model cuts it")
)]
fn plan(args: &Runs, trace: &mut Trace) -> Result<ReplayPlan, Failure> {
    let options = replay_options(args);
    #[cfg(feature = "lm")]
    args.cap.needs(args.model.as_deref())?;
    #[cfg(feature = "lm")]
    if let Some(model) = &args.model {
        let image = args.cap.apply(crate::models::image(model)?)?;
        let language = std::sync::Arc::new(crate::models::language_of(image)?);
        if args.trace.is_none() {
            crate::models::fit(trace, language.version.model.shape.context as u32);
        }
        return ReplayPlan::with_language(trace, options, language).map_err(Failure::input);
    }
    ReplayPlan::new(trace, options).map_err(Failure::input)
}

impl Runs {
    /// Whether the RTL's NPU is held to the interpreter.
    fn in_lockstep(&self) -> bool {
        #[cfg(all(feature = "lm", feature = "rtl"))]
        return self.lockstep;
        #[cfg(not(all(feature = "lm", feature = "rtl")))]
        false
    }

    /// Whether each device is held to the oracle.
    fn has_language(&self) -> bool {
        #[cfg(feature = "lm")]
        return self.model.is_some();
        #[cfg(not(feature = "lm"))]
        false
    }
}

/// The devices asked for, or all; of those that have no language model none without being asked.
fn select(args: &Runs, alone: bool) -> Result<Vec<Chosen>, Failure> {
    let names = &args.devices;
    if names.is_empty() && args.has_language() {
        return Ok(vec![Chosen { kind: Kind::Model, own: String::new() }]);
    }
    if names.is_empty() {
        return Ok(Kind::ALL.map(|kind| Chosen { kind, own: String::new() }).into());
    }
    let choose = |text: &String| Kind::choose(text).map(|(kind, own)| Chosen { kind, own });
    let chosen = names.iter().map(choose).collect::<Result<Vec<Chosen>, OpenError>>()?;
    if chosen.len() < 2 && !alone {
        let name = chosen[0].kind.name();
        return Err(Failure::input(format!(
            "a comparison takes two devices or more; '{name}' is one (--devices model,{name})"
        )));
    }
    Ok(chosen)
}

/// The devices that are there, and what each was opened with.
#[derive(Default)]
pub(super) struct Opened {
    pub kinds: Vec<Kind>,
    pub settings: Vec<Settings>,
    pub devices: Vec<Box<dyn Device>>,
    skipped: Vec<Skipped>,
    /// Of each device what was held of it in lockstep, to be asked behind its run; `None` of those that are not.
    held: Vec<Option<Tells>>,
}

type Tells = Box<dyn FnOnce() -> Held>;

/// Opens the devices. One that nobody named may be missing.
fn open(
    args: &Runs,
    plan: &ReplayPlan,
    chosen: &[Chosen],
    alone: bool,
    lives: Lives,
) -> Result<Opened, Failure> {
    let mut opened = Opened::default();
    let mut fault = args.inject.clone();
    for Chosen { own, .. } in chosen.iter().filter(|_| args.has_language()) {
        let Settings { queues, functions, .. } = settings(args, plan).and(own)?;
        if queues > functions {
            return Err(Failure::input(format!(
                "--model takes one queue pair in each function, and this is {queues} queue pairs in {functions} \
                 functions: the queue pairs of a function share one region for models, which compare fills for each; \
                 give --queues {queues} --functions {queues}"
            )));
        }
    }
    // From the last, which is to have the fault.
    for &Chosen { kind, ref own } in chosen.iter().rev() {
        let settings =
            Settings { fault: fault.clone().filter(|_| kind.takes_faults()), ..settings(args, plan) };
        let mut settings = settings.and(own)?;
        if lives == Lives::Kept {
            why::keep_lives(&mut settings);
        }
        // A GPU's kernels may have to be compiled first.
        match Busy::during(format!("opening {kind}"), || open_one(args, plan, kind, &settings)) {
            Ok((device, held)) => {
                opened.held.insert(0, held);
                fault = fault.filter(|_| settings.fault.is_none());
                opened.kinds.insert(0, kind);
                opened.settings.insert(0, settings);
                opened.devices.insert(0, device);
            }
            Err(failure) => match failure.missing() {
                Some(reason) if !args.asks_for(kind) => {
                    opened.skipped.insert(0, Skipped { kind, reason: reason.to_owned() });
                }
                _ => return Err(failure.into()),
            },
        }
    }
    if let [device] = &opened.devices[..]
        && !alone
    {
        let reasons: Vec<String> = opened
            .skipped
            .iter()
            .map(|Skipped { kind, reason }| format!("{}: {reason}", kind.name()))
            .collect();
        return Err(Failure::unavailable(format!(
            "there is nothing to compare {} with ({}); name devices with --devices",
            device.name(),
            reasons.join("; ")
        )));
    }
    if args.in_lockstep() && opened.held.iter().all(Option::is_none) {
        return Err(Failure::input("--lockstep holds the RTL's NPU: name it with --devices rtl"));
    }
    if fault.is_some() {
        return Err(Failure::input("none of these devices takes a fault: model and rtl do"));
    }
    Ok(opened)
}

#[cfg(all(feature = "lm", feature = "rtl"))]
fn open_one(
    args: &Runs,
    plan: &ReplayPlan,
    kind: Kind,
    settings: &Settings,
) -> Result<(Box<dyn Device>, Option<Tells>), OpenError> {
    match plan.language() {
        Some(language) if args.in_lockstep() && kind == Kind::Rtl => {
            let (device, held) = crate::lockstep::open(settings, language)?;
            Ok((device, Some(Box::new(held))))
        }
        _ => Ok((kind.open(settings)?, None)),
    }
}

#[cfg(not(all(feature = "lm", feature = "rtl")))]
fn open_one(
    _: &Runs,
    _: &ReplayPlan,
    kind: Kind,
    settings: &Settings,
) -> Result<(Box<dyn Device>, Option<Tells>), OpenError> {
    Ok((kind.open(settings)?, None))
}

/// A mode by its name.
fn publish_mode(text: &str) -> Result<PolicyMode, String> {
    let named = |mode: &PolicyMode| mode.name().eq_ignore_ascii_case(text);
    PolicyMode::ALL.into_iter().find(named).ok_or_else(|| "expected wait, keep or abort".into())
}

fn replay_options(args: &Runs) -> ReplayOptions {
    ReplayOptions {
        group: args.group,
        checkpoint: args.checkpoint,
        resident: args.resident,
        reward_threshold: (args.reward_threshold * 65_536.0).round() as i32,
        eos_threshold: (args.eos * 32_768.0).round() as u16,
        stop_every: args.stop_every,
        stop_group_every: args.stop_groups,
        publish_every: args.publish_every,
        publish_mode: args.publish_mode,
        limit: args.limit.unwrap_or(usize::MAX),
        seed: args.seed,
        ..ReplayOptions::default()
    }
}

fn settings(args: &Runs, plan: &ReplayPlan) -> Settings {
    Settings {
        queue: QueueConfig {
            sq_depth: args.sq_depth,
            cq_depth: args.cq_depth,
            wait_states: args.wait_states,
            workers: args.workers,
            ..plan.queue_config()
        },
        patience: args.patience,
        memory: Memory {
            latency: args.latency.clone(),
            stalls: args.stalls,
            reorder: args.reorder,
            random: args.random_memory,
            seed: args.seed.into(),
        },
        placement: Default::default(),
        queues: args.queues,
        functions: args.functions,
        gpus: Gpus {
            gpus: args.gpus.as_ref().map_or_else(|| vec![0], |GpuList(gpus)| gpus.clone()),
            sms: args.sms,
        },
        own_thread: false,
        tap: false,
        socket: None,
        address: None,
        fault: None,
    }
}

/// The cycles that were asked for, if any were.
fn window(from: Option<u64>, to: Option<u64>) -> Result<Option<Range<u64>>, Failure> {
    let (from, to) = match (from, to) {
        (None, None) => return Ok(None),
        (Some(from), None) => (from, from.saturating_add(100_000)),
        (from, Some(to)) => (from.unwrap_or(0), to),
    };
    if from >= to {
        return Err(Failure::input(format!(
            "--trace-from is {from} and --trace-to {to}: the first must be smaller"
        )));
    }
    Ok(Some(from..to))
}

/// What of the RTL is recorded, and shown.
pub struct Cut {
    /// Cycles; `None` is around what went wrong.
    pub window: Option<Range<u64>>,
    /// The instance whose signals the save file shows; `None` is those that a descriptor or a token passes.
    #[cfg(feature = "cosim")]
    pub scope: Option<String>,
}

/// Records the first RTL device that went wrong; with cycles that were asked for, the first.
#[cfg(feature = "rtl")]
fn record_wave(
    plan: &ReplayPlan,
    kinds: &[Kind],
    settings: &[Settings],
    outcomes: &[Outcome],
    path: PathBuf,
    cut: Cut,
) -> Option<Waveform> {
    let mut rtl = (0..kinds.len()).filter(|&place| kinds[place] == Kind::Rtl);
    let any = rtl.clone().next().filter(|_| cut.window.is_some());
    let place = rtl.find(|&place| !outcomes[place].agrees()).or(any)?;
    let outcome = &outcomes[place];
    let recorded = crate::waveform::record_wave(plan, &settings[place], outcome, &path, cut);
    Some(Waveform {
        device: outcome.name.clone(),
        path,
        recorded: recorded.map_err(|failure| failure.to_string()),
    })
}

#[cfg(not(feature = "rtl"))]
fn record_wave(
    _: &ReplayPlan,
    _: &[Kind],
    _: &[Settings],
    _: &[Outcome],
    _: PathBuf,
    _: Cut,
) -> Option<Waveform> {
    None
}

/// A progress bar per device, once a run takes over a second and somebody watches.
struct Bars {
    multi: MultiProgress,
    bars: Vec<ProgressBar>,
    start: Instant,
    shown: OnceLock<()>,
}

impl Bars {
    fn new(devices: &[Box<dyn Device>], plan: &ReplayPlan) -> Bars {
        let style = ProgressStyle::with_template("{prefix:8} {wide_bar} {pos}/{len} tokens {eta}")
            .expect("the template is valid");
        let multi = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        let bars = devices
            .iter()
            .map(|device| {
                let bar = ProgressBar::new(plan.token_budget()).with_style(style.clone());
                multi.add(bar.with_prefix(device.name().to_owned()))
            })
            .collect();
        Bars { multi, bars, start: Instant::now(), shown: OnceLock::new() }
    }

    fn show(&self, place: usize, progress: Progress) -> ControlFlow<()> {
        if output::shows_progress() && self.start.elapsed() > Duration::from_secs(1) {
            self.shown.get_or_init(|| self.multi.set_draw_target(ProgressDrawTarget::stderr()));
            self.bars[place].set_position(progress.tokens + progress.saved);
        }
        ControlFlow::Continue(())
    }

    fn clear(self) {
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
    }
}
