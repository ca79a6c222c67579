//! What it costs to record the life of every descriptor of the RTL, as `doorbell report` does: each run without and with it, in turns.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use doorbell_contract::Counter;
use doorbell_devices::{Kind, Settings};
use doorbell_host::QueueConfig;
use doorbell_lm::sample::Sharpness;
use doorbell_lm::tiny;
use doorbell_npu::Published;
use doorbell_trace::{Request, Trace};
use doorbell_verify::language::Version;
use doorbell_verify::replay::{Language, Progress, Replay, ReplayOptions, ReplayPlan, replay, replay_lives};
use serde_json::{Value, json};

use crate::{BenchError, Section, cpu_now, median, percent, table, verdict};

/// Share of the simulation's time that recording may take.
const BAR: f64 = 0.05;
/// By hash: rollouts of a request, and tokens between checkpoints. So two descriptors end in three cycles.
const GROUP: u32 = 32;
const CHECKPOINT: u32 = 16;
/// Requests of the trace.
const REQUESTS: usize = 256;
/// The language model's run: tokens of the prompt, and of each of the rollouts.
const PROMPT: u32 = 8;
const TOKENS: u32 = 8;
const ROLLOUTS: u32 = 4;

/// CPU time of a run: until its last completion was taken, and what followed, in which lives are put together. And its clock cycles.
struct Run {
    runs: Duration,
    enters: Duration,
    cycles: u64,
    descriptors: u64,
}

/// The table.
pub fn cost(trace: &Trace, quick: bool) -> Result<Section, BenchError> {
    let turns = if quick { 3 } else { 9 };
    let columns = [
        "run",
        "descriptors",
        "cycles",
        "cycles/CPU s",
        "recorded",
        "costs",
        "bar",
        "bar is",
        "and at the end",
    ];
    let (mut table, mut rows) = (table(columns, 1), Vec::<Value>::new());
    for (name, plan) in [("hash", by_hash(trace)?), ("tiny", of_tiny()?)] {
        let (mut plain, mut recorded) = (vec![], vec![]);
        for turn in 0..=turns {
            let pair = (run(&plan, false)?, run(&plan, true)?);
            // The first brings all of it into caches.
            if turn > 0 {
                plain.push(pair.0);
                recorded.push(pair.1);
            }
        }
        let Run { cycles, descriptors, .. } = plain[0];
        let middle = |runs: &[Run]| median(runs.iter().map(|run| run.runs.as_secs_f64()));
        let (without, with) = (middle(&plain), middle(&recorded));
        // Of neighbours, as a machine that slows down slows both.
        let of_neighbour = |time: fn(&Run) -> Duration| {
            let pairs = plain.iter().zip(&recorded);
            median(pairs.map(|(plain, recorded)| time(recorded).as_secs_f64() / plain.runs.as_secs_f64()))
        };
        let (cost, end) = (of_neighbour(|run| run.runs) - 1.0, of_neighbour(|run| run.enters));
        let rate = |seconds: f64| format!("{:.3} M", cycles as f64 / seconds / 1e6);
        table.add_row([
            name.to_owned(),
            descriptors.to_string(),
            cycles.to_string(),
            rate(without),
            rate(with),
            percent(cost),
            percent(BAR),
            verdict(cost <= BAR).to_owned(),
            percent(end),
        ]);
        rows.push(json!({
            "run": name, "descriptors": descriptors, "cycles": cycles, "cycles_per_cpu_second": cycles as f64 / without,
            "recorded_cycles_per_cpu_second": cycles as f64 / with, "cost": cost, "bar": BAR, "at_the_end": end,
        }));
    }
    let notes = vec![format!(
        "CPU time of the thread that has driver and device, medians of {turns} turns, costs those of the ratios of neighbours; hash: {REQUESTS} requests of the trace at most in groups of \
         {GROUP}, checkpoints every {CHECKPOINT} tokens; tiny: a prompt of {PROMPT} tokens and {ROLLOUTS} answers of {TOKENS}; and at the end: putting \
         the lives together, once the last completion is there, of the time without"
    )];
    Ok(Section {
        heading: "Recording the lives of all descriptors of the RTL".to_owned(),
        table,
        notes,
        json: rows.into(),
    })
}

fn by_hash(trace: &Trace) -> Result<ReplayPlan, BenchError> {
    let options =
        ReplayOptions { group: GROUP, checkpoint: CHECKPOINT, limit: REQUESTS, ..ReplayOptions::default() };
    ReplayPlan::new(trace, options).map_err(BenchError::input)
}

fn of_tiny() -> Result<ReplayPlan, BenchError> {
    let image = tiny();
    let published = Published::new(image.to_bytes(), &image.about.ends).map_err(BenchError::failed)?;
    let version = Version { model: image.model, ends: image.about.ends };
    let language = Arc::new(Language { published, version, sharpness: Sharpness::ONE });
    let request = Request { arrival_ms: 0, prompt_tokens: PROMPT, output_tokens: TOKENS, prefix: vec![] };
    let trace = Trace { source: "one request".into(), requests: vec![request] };
    let options = ReplayOptions { group: ROLLOUTS, ..ReplayOptions::default() };
    ReplayPlan::with_language(&trace, options, language).map_err(BenchError::failed)
}

fn run(plan: &ReplayPlan, records: bool) -> Result<Run, BenchError> {
    let queue = QueueConfig {
        life_events: records,
        event_slots: if records { 1 << 14 } else { 0 },
        ..plan.queue_config()
    };
    let settings = Settings { queue, tap: records, ..Settings::default() };
    let mut device = Kind::Rtl.open(&settings).map_err(BenchError::failed)?;
    let start = cpu_now();
    let mut last = start;
    let mut progress = |_: Progress| {
        last = cpu_now();
        ControlFlow::Continue(())
    };
    let Replay { failure, descriptors, .. } = if records {
        let (replay, lives) = replay_lives(plan, &mut *device, &mut progress);
        let told = lives.all().iter().filter(|life| life.event.is_some()).count();
        if told != lives.all().len() {
            return Err(BenchError::failed(format!("{told} of {} lives were told", lives.all().len())));
        }
        replay
    } else {
        replay(plan, &mut *device, &mut progress)
    };
    let end = cpu_now();
    match failure {
        Some(failure) => Err(BenchError::failed(failure)),
        None => {
            let cycles = device.counters()?.get(Counter::Cycles);
            Ok(Run { runs: last - start, enters: end - last, cycles, descriptors })
        }
    }
}
