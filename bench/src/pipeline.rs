//! The runtime over the model: rollout segments per second, and what the runtime adds to a segment.

use std::sync::Arc;

use crate::throughput::measure;
use doorbell_contract::{CHECKPOINT_NEVER, HwDesc};
use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_runtime::events::{Clock, Collector, Report, TickRate};
use doorbell_runtime::kv::{PrefixConfig, Prefixes};
use doorbell_runtime::metrics::{CollectorThread, Metrics};
use doorbell_runtime::pipeline::{Discard, Feed, Inline, Options, Parts, Pipeline, RewardStage, Scoring};
use doorbell_runtime::policy::PolicyKind;
use doorbell_runtime::reward::{
    Answer, AnswerMemory, Judge, JudgeError, Pool, PoolOptions, Prompts, Verdict,
};
use doorbell_runtime::trajectory::Spans;
use doorbell_trace::Request;
use doorbell_verify::ModelPlatform;
use serde_json::json;

use crate::BenchError;
use crate::{Rates, Section, median, table, timed};

/// Rollout segments per second on one core.
const SEGMENTS_BAR: f64 = 2e6;
/// What the runtime may add to a segment, in nanoseconds.
const COST_BAR: f64 = 200.0;
/// Segments of each rollout.
const SEGMENTS: u32 = 8;
const PROMPT_TOKENS: u32 = 64;
const SLOTS: u32 = 1024;
/// Events that may wait for the collector.
const EVENTS: usize = 1 << 20;

/// A judge that lets everything go on: what is measured is the way to it and back.
struct Nod;

impl Judge for Nod {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        Ok(Verdict { score: (answer.digest >> 16) as i32, proceed: true })
    }
}

/// What runs beside the hot thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    /// The judge scores on the hot thread, and no events are recorded.
    Alone,
    /// As `Alone`, with events recorded and collected.
    Events,
    /// A judge on a thread of its own.
    Judge,
    /// No judge: the device scores at checkpoints by itself (RESIDENT), and no answer is read.
    Resident,
}

/// The same, one by one.
#[derive(Clone, Copy)]
pub(crate) struct Beside {
    /// A judge has a thread of its own.
    pub judge: bool,
    /// Events are recorded and collected.
    pub events: bool,
    /// So are LIFE events of the device, whose clock has this rate.
    pub lives: Option<TickRate>,
    /// Who scores at checkpoints.
    pub scoring: Scoring,
}

impl Setup {
    fn name(self) -> &'static str {
        match self {
            Setup::Alone => "hot thread alone",
            Setup::Events => "and events",
            Setup::Judge => "and a judge's thread",
            Setup::Resident => "RESIDENT, no judge",
        }
    }
}

pub(crate) struct Workload {
    segment_tokens: u32,
    requests: Vec<Request>,
}

impl Workload {
    pub(crate) fn new(segment_tokens: u32, segments: u32) -> Workload {
        let request = Request {
            arrival_ms: 0,
            prompt_tokens: PROMPT_TOKENS,
            output_tokens: SEGMENTS * segment_tokens,
            prefix: vec![],
        };
        Workload { segment_tokens, requests: vec![request; (segments / SEGMENTS) as usize] }
    }

    pub(crate) fn segments(&self) -> u64 {
        self.requests.len() as u64 * u64::from(SEGMENTS)
    }

    fn options(&self) -> Options {
        Options {
            slots: SLOTS,
            checkpoint: self.segment_tokens,
            max_output_tokens: SEGMENTS * self.segment_tokens,
            ..Options::default()
        }
    }

    /// Bytes of the token region that it takes.
    pub(crate) fn token_bytes(&self) -> u64 {
        self.options().token_bytes()
    }

    fn device(&self) -> Result<Driver<ModelPlatform>, BenchError> {
        let config = QueueConfig { token_bytes: self.options().token_bytes(), ..QueueConfig::default() };
        Ok(Driver::new(ModelPlatform::new(), config)?)
    }

    /// The same segments without a runtime: descriptors made before, submitted and polled.
    fn bare(&self) -> Result<Rates, BenchError> {
        let mut device = self.device()?;
        let area = self.options().area_bytes();
        let batch: Vec<HwDesc> = (0..256)
            .map(|k| {
                HwDesc::decode(k, PROMPT_TOKENS, self.segment_tokens)
                    .with_checkpoint(CHECKPOINT_NEVER)
                    .with_delta_offset(u64::from(k) * area)
            })
            .collect();
        let rounds = self.segments() / batch.len() as u64;
        let (seen, elapsed) = timed(|| measure(&mut device, &batch, rounds));
        Ok(elapsed.rates(seen?.descriptors))
    }

    pub(crate) fn run(&self, setup: Setup) -> Result<Rates, BenchError> {
        let scoring = if setup == Setup::Resident { Scoring::Resident } else { Scoring::Stage };
        let beside =
            Beside { judge: setup == Setup::Judge, events: setup == Setup::Events, lives: None, scoring };
        Ok(self.run_on(Box::new(self.device()?), beside)?.0)
    }

    /// Runs it on `device`, and what its events say.
    pub(crate) fn run_on(
        &self,
        device: Box<dyn Device>,
        beside: Beside,
    ) -> Result<(Rates, Option<Report>), BenchError> {
        let resident = beside.scoring == Scoring::Resident;
        let options = Options { scoring: beside.scoring, ..self.options() };
        let kv = PrefixConfig {
            blocks: 1 << 15,
            prefixes: SLOTS,
            branches: SLOTS,
            prompt_tokens: PROMPT_TOKENS,
            answer_tokens: options.max_output_tokens,
            ..PrefixConfig::default()
        };
        let prompts = Prompts::new(SLOTS, 0);
        let memory = AnswerMemory { tokens: device.token_regions(), prompts: prompts.clone() };
        let longest = options.max_output_tokens;
        let rewards: Box<dyn RewardStage> = if beside.judge {
            let pool = PoolOptions {
                judges: 1,
                capacity: SLOTS as usize,
                longest: longest as usize,
                ..PoolOptions::default()
            };
            Box::new(Pool::start(pool, &memory, |_| Nod).map_err(BenchError::input)?)
        } else {
            Box::new(Inline::new(memory, SLOTS, longest, |_| Nod))
        };
        let clock = Clock::new();
        let metrics = Arc::new(Metrics::new("bench", clock.clone(), None));
        let (recorder, collector) = if beside.events {
            let (collector, recorder) = match beside.lives {
                Some(rate) => Collector::with_device(clock, SLOTS, EVENTS, rate),
                None => Collector::new(clock, SLOTS, EVENTS),
            };
            let thread = CollectorThread::start::<std::io::Sink>(collector, metrics.clone(), None);
            (Some(recorder), Some(thread.map_err(BenchError::input)?))
        } else {
            (None, None)
        };
        let parts = Parts {
            device,
            sq_start: Some(0),
            policy: PolicyKind::Fifo.build(SLOTS),
            kv: Prefixes::new(kv).map_err(BenchError::input)?,
            rewards,
            prompts,
            trajectories: Box::new(Discard::new(SLOTS)),
            spans: Spans::new(SLOTS, 1),
            recorder,
            metrics: metrics.clone(),
            language: None,
        };
        let mut pipeline = Pipeline::new(options, parts).map_err(BenchError::input)?;
        let (result, elapsed) = timed(|| pipeline.run(&mut Feed::new(&self.requests), |_| false));
        result.map_err(BenchError::failed)?;
        drop(pipeline);
        let mut report = None;
        if let Some(collector) = collector {
            let (told, written) = collector.finish();
            written.map_err(BenchError::failed)?;
            report = Some(told);
        }
        // One descriptor takes all segments of a RESIDENT rollout.
        let expected = if resident { self.requests.len() as u64 } else { self.segments() };
        let segments = metrics.counters.values().segments;
        if segments != expected {
            return Err(BenchError::failed(format!("{segments} segments completed of {expected}")));
        }
        // Rates are of segments, however many descriptors took them.
        Ok((elapsed.rates(self.segments()), report))
    }
}

struct Row {
    segment_tokens: u32,
    setup: Setup,
    bare: Rates,
    rate: Rates,
    /// Nanoseconds of CPU time, over the bare device of the same round.
    cost: f64,
}

/// Segments of a run and rounds, where they are to be few.
const QUICK: (u32, usize) = (1 << 18, 3);

/// So many segments a run, and so many rounds. Each round runs everything once, so that a machine that slows down slows all.
fn rows(lengths: &[u32], setups: &[Setup], (segments, rounds): (u32, usize)) -> Result<Vec<Row>, BenchError> {
    let mut rows = vec![];
    for &segment_tokens in lengths {
        let workload = Workload::new(segment_tokens, segments);
        let mut bare = vec![];
        let mut rates: Vec<Vec<Rates>> = vec![vec![]; setups.len()];
        for _ in 0..rounds {
            bare.push(workload.bare()?);
            for (rates, &setup) in rates.iter_mut().zip(setups) {
                rates.push(workload.run(setup)?);
            }
        }
        for (rates, &setup) in rates.iter().zip(setups) {
            let cost = median(rates.iter().zip(&bare).map(|(rate, bare)| 1e9 / rate.cpu - 1e9 / bare.cpu));
            let (bare, rate) = (Rates::median(&bare), Rates::median(rates));
            rows.push(Row { segment_tokens, setup, bare, rate, cost });
        }
    }
    Ok(rows)
}

fn million(rate: f64) -> String {
    format!("{:.2} M", rate / 1e6)
}

/// Segments per second, everything on one core.
pub fn throughput(quick: bool) -> Result<Section, BenchError> {
    let mut table = table(
        [
            "tokens/segment",
            "segments/s",
            "per CPU second",
            "tokens/s",
            "bare device",
            "of bare",
            "bar",
            "bar is",
        ],
        0,
    );
    let mut json = vec![];
    let size = if quick { QUICK } else { (1 << 21, 7) };
    for row in rows(&[1, 8, 32], &[Setup::Alone], size)? {
        let Row { segment_tokens, bare, rate, .. } = row;
        table.add_row([
            segment_tokens.to_string(),
            million(rate.wall),
            million(rate.cpu),
            million(rate.wall * f64::from(segment_tokens)),
            million(bare.wall),
            format!("{:.2}", rate.wall / bare.wall),
            million(SEGMENTS_BAR),
            rate.verdict(SEGMENTS_BAR).to_owned(),
        ]);
        json.push(json!({
            "segment_tokens": segment_tokens, "segments_per_second": rate.wall, "per_cpu_second": rate.cpu,
            "bare_per_second": bare.wall, "bar": SEGMENTS_BAR,
        }));
    }
    Ok(Section {
        heading: format!(
            "Runtime over the model on one core: rollouts of {SEGMENTS} segments, each judged at its checkpoint"
        ),
        table,
        notes: vec![
            "Every segment is a DECODE that ends as REWARD_NEEDED or DONE, with its states, KV blocks, policy, verdict \
             and counters. The bare device submits and polls the same DECODEs, made before, and nothing else."
                .to_owned(),
        ],
        json: json.into(),
    })
}

/// Nanoseconds of a segment of 32 tokens in a table of [`tax`].
pub(crate) fn per_segment(tax: &Section, setup: Setup) -> f64 {
    let rows = tax.json.as_array().into_iter().flatten();
    let row = rows.filter(|row| row["segment_tokens"] == 32 && row["with"] == setup.name());
    row.filter_map(|row| row["runtime_ns"].as_f64()).next().expect("the table has every setup with 32 tokens")
}

/// What the runtime adds to a segment.
pub fn tax(quick: bool) -> Result<Section, BenchError> {
    let mut table =
        table(["tokens/segment", "with", "bare device", "runtime", "cost per segment", "bar", "bar is"], 0);
    let mut json = vec![];
    // With a judge's thread a segment takes a microsecond or more: two million of each took a minute and a half.
    let size = if quick { QUICK } else { (1 << 19, 7) };
    for row in rows(&[1, 32], &[Setup::Alone, Setup::Events, Setup::Judge, Setup::Resident], size)? {
        let Row { segment_tokens, setup, bare, rate, cost } = row;
        let nanos = |rate: Rates| format!("{:.1} ns", 1e9 / rate.cpu);
        table.add_row([
            segment_tokens.to_string(),
            setup.name().to_owned(),
            nanos(bare),
            nanos(rate),
            format!("{cost:.1} ns"),
            format!("{COST_BAR:.0} ns"),
            crate::verdict(cost <= COST_BAR).to_owned(),
        ]);
        json.push(json!({
            "segment_tokens": segment_tokens, "with": setup.name(), "bare_ns": 1e9 / bare.cpu,
            "runtime_ns": 1e9 / rate.cpu, "cost_ns": cost, "bar_ns": COST_BAR,
        }));
    }
    Ok(Section {
        heading:
            "What the runtime adds to a segment: CPU time of the hot thread, over that of the bare device"
                .to_owned(),
        table,
        notes: vec![],
        json: json.into(),
    })
}
