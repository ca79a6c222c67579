//! What the order of waiting rollouts is worth where KV blocks are scarce: the runtime's own policies and admission, over the golden
//! model in simulated time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_contract::{HwCompletion, HwDesc, Opcode};
use doorbell_host::{Counters, Device, DeviceError, Driver, Features, QueueConfig, TokenRegion};
use doorbell_runtime::events::Clock;
use doorbell_runtime::kv::{AnswerStart, PrefixConfig, Prefixes, Sharing};
use doorbell_runtime::metrics::Metrics;
use doorbell_runtime::pipeline::{
    Credits, Discard, Inline, Next, Options, Parts, Pipeline, Source, TrajectoryStage,
};
use doorbell_runtime::policy::PolicyKind;
use doorbell_runtime::reward::{AnswerMemory, DigestJudge, Prompts};
use doorbell_runtime::rollout::{RolloutId, State};
use doorbell_runtime::trajectory::{Finished, PostError, Spans, Stored, WriterError};
use doorbell_trace::{PREFIX_BLOCK_TOKENS, Request, Trace};
use doorbell_verify::ModelPlatform;
use serde_json::{Value, json};

use crate::{BenchError, Section, percent, table};

/// Workers of the device, each with one descriptor at a time.
const WORKERS: usize = 64;
/// Answers to each request.
const MEMBERS: u32 = 8;
/// Tokens between checkpoints, after which the policy decides anew.
const CHECKPOINT: u32 = 64;
const BLOCK_TOKENS: u32 = 32;
/// Rollouts under way at most: more than the blocks let in.
const SLOTS: u32 = 1024;
/// The cap on KV blocks has room for so many rollouts a worker, by their mean; at least for the largest request.
const ROLLOUTS: u64 = 3;
/// Points of the depth of the queue over time.
const POINTS: usize = 96;
/// Requests of a quick run.
const QUICK: usize = 200;

/// A device of [`WORKERS`] workers in simulated time: the golden model makes the tokens, and each descriptor takes as many cycles as the
/// golden model's CYCLES counts, 1 and 1 for each token. Time passes only in `poll`, to the next completion. So the whole run follows
/// from the trace and the policy alone.
struct Timed {
    model: Driver<ModelPlatform>,
    now: Arc<AtomicU64>,
    /// Cycles of all workers.
    busy: Arc<AtomicU64>,
    /// When what is under way ends, in the order of its submission where that is the same, and its place in `ends`.
    running: BinaryHeap<Reverse<(u64, u64, usize)>>,
    ends: Vec<HwCompletion>,
    free: Vec<usize>,
    submitted: u64,
}

impl Timed {
    fn new(config: QueueConfig) -> Result<Self, DeviceError> {
        Ok(Self {
            model: Driver::new(ModelPlatform::new(), config)?,
            now: Arc::default(),
            busy: Arc::default(),
            running: BinaryHeap::with_capacity(WORKERS),
            ends: vec![HwCompletion::default(); WORKERS],
            free: (0..WORKERS).collect(),
            submitted: 0,
        })
    }

    /// What has ended by now.
    fn take(&mut self, out: &mut [HwCompletion]) -> usize {
        let now = self.now.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < out.len() && self.running.peek().is_some_and(|Reverse((end, ..))| *end <= now) {
            let Some(Reverse((.., place))) = self.running.pop() else { break };
            out[taken] = self.ends[place];
            self.free.push(place);
            taken += 1;
        }
        taken
    }
}

impl Device for Timed {
    fn name(&self) -> &str {
        "model in simulated time"
    }

    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        let mut out = [HwCompletion::default()];
        for desc in &batch[..batch.len().min(self.free.len())] {
            if self.model.submit(std::slice::from_ref(desc))? == 0 {
                break;
            }
            while self.model.poll(&mut out)? == 0 {}
            let [completion] = out;
            let tokens = match Opcode::try_from(desc.opcode) {
                Ok(Opcode::Decode) => completion.final_seq_len.saturating_sub(desc.seq_len),
                _ => 0,
            };
            let cycles = 1 + u64::from(tokens);
            let place = self.free.pop().expect("the batch is no longer than what is free");
            self.ends[place] = completion;
            let end = self.now.load(Ordering::Relaxed) + cycles;
            self.running.push(Reverse((end, self.submitted, place)));
            self.busy.fetch_add(cycles, Ordering::Relaxed);
            self.submitted += 1;
            taken += 1;
        }
        Ok(taken)
    }

    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        let taken = self.take(out);
        if let (0, Some(Reverse((end, ..)))) = (taken, self.running.peek()) {
            self.now.store(*end, Ordering::Relaxed);
            return Ok(self.take(out));
        }
        Ok(taken)
    }

    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        Ok(self.take(out))
    }

    fn in_flight(&self) -> usize {
        self.running.len()
    }

    fn capacity(&self) -> usize {
        self.model.capacity()
    }

    fn room(&self) -> usize {
        self.free.len()
    }

    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.model.tokens(delta_offset, out)
    }

    fn token_regions(&self) -> Vec<TokenRegion> {
        self.model.token_regions()
    }

    fn token_shard(&self, delta_offset: u64) -> usize {
        self.model.token_shard(delta_offset)
    }

    fn features(&self) -> Features {
        // Its completions come in the order of their ends, so the host keeps the groups.
        Features { groups: 0, ..self.model.features() }
    }

    fn counters(&mut self) -> Result<Counters, DeviceError> {
        self.model.counters()
    }

    fn disable(&mut self) -> Result<(), DeviceError> {
        self.model.disable()
    }

    fn enable(&mut self) -> Result<(), DeviceError> {
        self.model.enable()
    }
}

/// When requests were admitted, and how long after that their rollouts ended.
#[derive(Default)]
struct Times {
    admitted: HashMap<u64, u64>,
    took: Vec<u64>,
}

/// The requests of a trace, all there from the start.
struct Waiting<'a> {
    requests: &'a [Request],
    next: usize,
    now: Arc<AtomicU64>,
    times: Arc<Mutex<Times>>,
}

impl Source for Waiting<'_> {
    fn next(&mut self) -> Next<'_> {
        self.requests.get(self.next).map_or(Next::End, Next::Request)
    }

    fn admitted(&mut self, number: u64) {
        self.next += 1;
        let now = self.now.load(Ordering::Relaxed);
        self.times.lock().unwrap_or_else(PoisonError::into_inner).admitted.insert(number, now);
    }
}

/// Notes when trajectories end, and keeps none.
struct Ends {
    discard: Discard,
    now: Arc<AtomicU64>,
    times: Arc<Mutex<Times>>,
}

impl TrajectoryStage for Ends {
    fn post(&mut self, finished: Finished) -> Result<(), PostError> {
        let now = self.now.load(Ordering::Relaxed);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let since = times.admitted.get(&finished.request).copied().unwrap_or(now);
        times.took.push(now - since);
        self.discard.post(finished)
    }

    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        self.discard.stored(out)
    }

    fn has_failed(&self) -> bool {
        self.discard.has_failed()
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        Box::new(self.discard).finish()
    }
}

/// What a policy made of a trace, in cycles.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    makespan: u64,
    p50: u64,
    p99: u64,
    /// Most blocks in use at a time.
    peak: u64,
    /// Share of the workers' cycles in which they had nothing.
    idle: f64,
    /// Rollouts that wait for a worker: at each change, since when.
    depth: Vec<(u64, u32)>,
    /// Mean of the rollouts under way.
    live: f64,
}

impl Outcome {
    /// The mean depth in each of so many equal parts of the time.
    fn points(&self, count: usize) -> Vec<(f64, f64)> {
        let width = self.makespan as f64 / count as f64;
        let mut sums = vec![0.0; count];
        let ends = self.depth.iter().skip(1).map(|(at, _)| *at).chain([self.makespan]);
        for (&(from, depth), to) in self.depth.iter().zip(ends) {
            let first = ((from as f64 / width) as usize).min(count - 1);
            let last = ((to as f64 / width) as usize).min(count - 1);
            for (place, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
                let (begin, end) = (place as f64 * width, (place + 1) as f64 * width);
                *sum += f64::from(depth) * ((to as f64).min(end) - (from as f64).max(begin)).max(0.0);
            }
        }
        (0..).zip(sums).map(|(place, sum)| ((f64::from(place) + 0.5) * width, sum / width)).collect()
    }

    fn mean_depth(&self) -> f64 {
        self.points(1)[0].1
    }
}

/// Blocks that a request takes at most.
fn need(request: &Request) -> u64 {
    let blocks = |tokens: u32| u64::from(tokens.div_ceil(BLOCK_TOKENS));
    blocks(request.prompt_tokens) + u64::from(MEMBERS) * blocks(request.output_tokens)
}

/// Runs all requests under a policy.
fn outcome(requests: &[Request], policy: PolicyKind, blocks: u32) -> Result<Outcome, BenchError> {
    let most = |of: fn(&Request) -> u32| requests.iter().map(of).max().unwrap_or(1).max(1);
    let longest = most(|request| request.output_tokens);
    let longest_prompt = most(|request| request.prompt_tokens);
    let options = Options {
        slots: SLOTS,
        group: MEMBERS,
        checkpoint: CHECKPOINT,
        max_output_tokens: longest,
        credits: Credits::new(SLOTS),
        // A worker that is free is worth a doorbell, and the queue is the policy's.
        in_flight: WORKERS,
        window: 1,
        ..Options::default()
    };
    let config = QueueConfig { token_bytes: options.token_bytes(), ..QueueConfig::default() };
    let device = Timed::new(config)?;
    let (now, busy) = (device.now.clone(), device.busy.clone());
    let pieces: usize = requests.iter().map(|request| request.prefix.len()).sum();
    let kv = PrefixConfig {
        blocks,
        block_tokens: BLOCK_TOKENS,
        answer_start: AnswerStart::NewBlock,
        sharing: Sharing::Requests,
        prefixes: SLOTS,
        branches: SLOTS,
        prompt_tokens: longest_prompt,
        answer_tokens: longest,
        nodes: (pieces.min(blocks as usize) as u32).max(longest_prompt.div_ceil(PREFIX_BLOCK_TOKENS)).max(1),
        cap: None,
    };
    let ids = requests.iter().map(|request| request.prefix.len()).max().unwrap_or(0);
    let prompts = Prompts::new(SLOTS, ids);
    let memory = AnswerMemory { tokens: device.token_regions(), prompts: prompts.clone() };
    let times = Arc::new(Mutex::new(Times::default()));
    let metrics = Arc::new(Metrics::new("bench", Clock::new(), None));
    let parts = Parts {
        device: Box::new(device),
        sq_start: None,
        policy: policy.build(SLOTS),
        kv: Prefixes::new(kv).map_err(BenchError::input)?,
        rewards: Box::new(Inline::new(memory, SLOTS, longest, |_| DigestJudge { threshold: 0 })),
        prompts,
        trajectories: Box::new(Ends { discard: Discard::new(SLOTS), now: now.clone(), times: times.clone() }),
        spans: Spans::new(SLOTS, 1),
        recorder: None,
        metrics: metrics.clone(),
        language: None,
    };
    let mut pipeline = Pipeline::new(options, parts).map_err(BenchError::input)?;
    let mut source = Waiting { requests, next: 0, now: now.clone(), times: times.clone() };
    let mut depth: Vec<(u64, u32)> = vec![(0, 0)];
    let (mut live, mut last) = (0.0, (0, 0));
    let ran = pipeline.run(&mut source, |pipeline| {
        let (at, occupancy) = (now.load(Ordering::Relaxed), pipeline.occupancy());
        live += f64::from(last.1) * (at - last.0) as f64;
        last = (at, SLOTS - occupancy.of(State::Free));
        let ready = occupancy.ready as u32;
        match depth.last_mut() {
            // Of one moment what it came to.
            Some((since, depth)) if *since == at => *depth = ready,
            Some((_, depth)) if *depth == ready => {}
            _ => depth.push((at, ready)),
        }
        false
    });
    ran.map_err(BenchError::failed)?;
    let peak = pipeline.kv_counts().arena.peak;
    drop(pipeline);
    let mut took = std::mem::take(&mut times.lock().unwrap_or_else(PoisonError::into_inner).took);
    let expected = requests.len() * MEMBERS as usize;
    if took.len() != expected {
        return Err(BenchError::failed(format!(
            "{} of {expected} rollouts ended with a trajectory",
            took.len()
        )));
    }
    took.sort_unstable();
    let quantile = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let makespan = now.load(Ordering::Relaxed).max(1);
    Ok(Outcome {
        makespan,
        p50: quantile(0.5),
        p99: quantile(0.99),
        peak,
        idle: 1.0 - busy.load(Ordering::Relaxed) as f64 / (WORKERS as u64 * makespan) as f64,
        depth,
        live: live / makespan as f64,
    })
}

/// A row: name, blocks, and what came of it.
type Row = (String, u32, Outcome);

/// FIFO with blocks for all slots, and every policy under the cap.
fn rows(requests: &[Request]) -> Result<Vec<Row>, BenchError> {
    let largest = requests.iter().map(need).max().unwrap_or(1);
    let blocks = |count: u64| {
        u32::try_from(count)
            .map_err(|_| BenchError::input(format!("the trace needs {count} KV blocks, more than 2^32")))
    };
    let mean = requests.iter().map(need).sum::<u64>() / requests.len().max(1) as u64;
    let mean_cap = mean * ROLLOUTS * WORKERS as u64 / u64::from(MEMBERS);
    let (cap, all) = (blocks(mean_cap.max(largest))?, blocks(u64::from(SLOTS / MEMBERS) * largest)?);
    let free = PolicyKind::Fifo;
    let mut rows = vec![(format!("{}, no limit", free.name()), all, outcome(requests, free, all)?)];
    for policy in PolicyKind::ALL {
        rows.push((policy.name().to_owned(), cap, outcome(requests, policy, cap)?));
    }
    Ok(rows)
}

/// Every policy on a trace.
pub fn policies(trace: &Trace, quick: bool) -> Result<Section, BenchError> {
    let taken = if quick { QUICK } else { usize::MAX };
    let requests = &trace.requests[..trace.requests.len().min(taken)];
    if requests.is_empty() {
        return Err(BenchError::input("the trace has no requests"));
    }
    let rows = rows(requests)?;
    let cap = rows.last().map_or(0, |(_, blocks, _)| *blocks);
    let columns = ["policy", "makespan", "p50", "p99", "KV peak", "idle", "waiting", "live"];
    let mut table = table(columns, 1);
    let mut figures: Vec<Value> = vec![];
    let kilo = |cycles: u64| format!("{:.1} k", cycles as f64 / 1e3);
    for (name, blocks, outcome) in &rows {
        let Outcome { makespan, p50, p99, peak, idle, live, .. } = outcome;
        let share = *peak as f64 / f64::from(*blocks);
        table.add_row([
            name.clone(),
            kilo(*makespan),
            kilo(*p50),
            kilo(*p99),
            format!("{peak} ({:.0} %)", 100.0 * share),
            percent(*idle),
            format!("{:.0}", outcome.mean_depth()),
            format!("{live:.0}"),
        ]);
        figures.push(json!({
            "policy": name, "blocks": blocks, "capped": *blocks == cap, "makespan": makespan, "p50": p50, "p99": p99, "kv_peak": peak, "idle": idle,
            "mean_waiting": outcome.mean_depth(), "mean_live": live, "waiting_over_time": outcome.points(POINTS),
        }));
    }
    Ok(Section {
        heading: format!(
            "Policies under memory pressure, in simulated cycles: {} requests, {MEMBERS} answers each",
            requests.len()
        ),
        table,
        notes: vec![
            format!(
                "{WORKERS} workers, checkpoints every {CHECKPOINT} tokens, {cap} KV blocks of {BLOCK_TOKENS} tokens: room for \
                 {ROLLOUTS} mean rollouts a worker."
            ),
            "A descriptor takes 1 cycle and 1 for each token, as CYCLES of the golden model. Prompts take no more.".to_owned(),
            "p50, p99: of a rollout, from the admission of its request to its end. Waiting, live: means over time.".to_owned(),
            "No clock is read: the same trace gives the same figures on every machine.".to_owned(),
        ],
        json: figures.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_trace::Generator;

    fn requests() -> Vec<Request> {
        Generator { output_median: 200, ..Generator::new(60, 3, 1) }.generate().unwrap().requests
    }

    #[test]
    fn a_run_follows_from_trace_and_policy_alone() {
        let rows_of = || rows(&requests()).unwrap();
        let first = rows_of();
        assert_eq!(first, rows_of());
        let [free, fifo, shortest, prefix, longest] = &first[..] else { panic!("{first:?}") };
        // The cap binds: fewer rollouts are under way, and blocks run out.
        assert!(fifo.2.live < 0.8 * free.2.live, "{} of {}", fifo.2.live, free.2.live);
        assert!(fifo.2.peak <= u64::from(fifo.1) && 2 * fifo.2.peak > u64::from(fifo.1), "{}", fifo.2.peak);
        // Orders differ, and each is one: shortest remaining ends half of the rollouts sooner, longest expected the last.
        assert!(shortest.2.p50 < fifo.2.p50 && shortest.2.p50 < longest.2.p50, "{first:?}");
        assert_ne!(prefix.2, fifo.2);
        // Work is conserved: workers were busy for the same cycles, whatever the order.
        let busy = |row: &Row| ((1.0 - row.2.idle) * (WORKERS as u64 * row.2.makespan) as f64).round() as u64;
        assert!(first.iter().all(|row| busy(row) == busy(fifo)), "{first:?}");
    }

    #[test]
    fn depth_over_time_keeps_its_mean() {
        let outcome = Outcome {
            makespan: 100,
            p50: 0,
            p99: 0,
            peak: 0,
            idle: 0.0,
            depth: vec![(0, 4), (25, 0), (75, 8)],
            live: 0.0,
        };
        assert_eq!(outcome.mean_depth(), 3.0);
        let points = outcome.points(4);
        assert_eq!(points, [(12.5, 4.0), (37.5, 0.0), (62.5, 0.0), (87.5, 8.0)]);
    }
}
