//! What the RTL does with its cycles. Everything here is in simulated cycles and thus exact: the same on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use doorbell_contract::{Counter, HwCompletion, HwDesc, Status};
use doorbell_cosim::{CosimError, RtlConfig, RtlPlatform, built_workers};
use doorbell_host::{Counters, Device, DeviceError, Driver, QueueConfig, SharedMemory};
use doorbell_trace::{Request, Trace};
use doorbell_verify::replay::{ReplayOptions, ReplayPlan};
use serde_json::json;

use crate::BenchError;
use crate::{Elapsed, Section, percent, table, timed, verdict};

/// Tokens in a beat of 64 bytes.
const LINE: u32 = 16;
const LATENCIES: [u32; 3] = [0, 16, 64];
const LENGTHS: [u32; 8] = [1, 2, 3, 4, 8, 16, 32, 100];
/// Share of the limit, or of the worker cycles, that has to be reached.
const BAR: f64 = 0.99;
/// Cycles that a difference of two runs may be off per descriptor: where in a poll the last completion falls.
const NOISE: f64 = 0.01;

/// DECODEs of distinct rollouts, each with its own area of the token region.
pub struct Workload {
    pub descs: Vec<HwDesc>,
    pub config: QueueConfig,
}

impl Workload {
    /// One DECODE per request.
    pub fn of(trace: &Trace) -> Result<Workload, BenchError> {
        let plan = ReplayPlan::new(trace, ReplayOptions::default()).map_err(BenchError::input)?;
        Ok(Workload {
            descs: (0..plan.ids()).map(|id| plan.first(id)).collect(),
            config: plan.queue_config(),
        })
    }

    /// `count` DECODEs of `length` tokens, in rings that hold them all.
    pub fn uniform(count: u32, length: u32) -> Result<Workload, BenchError> {
        let request = Request { arrival_ms: 0, prompt_tokens: 0, output_tokens: length, prefix: vec![] };
        let requests = vec![request; count as usize];
        let mut workload = Workload::of(&Trace { source: "uniform".to_owned(), requests })?;
        let depth = count.next_power_of_two().max(2);
        (workload.config.sq_depth, workload.config.cq_depth) = (depth, depth);
        Ok(workload)
    }

    pub fn tokens(&self) -> u64 {
        self.descs.iter().map(|desc| u64::from(desc.max_tokens)).sum()
    }

    /// Beats that the write port has to carry: token lines, and completions of which two share one.
    fn write_beats(&self) -> f64 {
        self.descs.iter().map(|desc| write_beats(desc.max_tokens)).sum()
    }

    /// Cycles that no device of `workers` workers can undercut which takes descriptors in order and makes one token
    /// per worker and cycle, nor any device with one write port.
    fn fewest_cycles(&self, workers: u32) -> f64 {
        let mut free: BinaryHeap<Reverse<u64>> = (0..workers).map(|_| Reverse(0)).collect();
        let mut end = 0;
        for desc in &self.descs {
            let Reverse(start) = free.pop().expect("there is a worker");
            end = end.max(start + u64::from(desc.max_tokens));
            free.push(Reverse(start + u64::from(desc.max_tokens)));
        }
        self.write_beats().max(end as f64)
    }
}

fn write_beats(tokens: u32) -> f64 {
    f64::from(tokens.div_ceil(LINE)) + 0.5
}

/// From the first doorbell to the last completion.
pub struct Run {
    pub cycles: u64,
    pub elapsed: Elapsed,
    pub counters: Counters,
}

/// Runs everything on RTL with `workers` workers in use, behind a memory of this latency, and checks every completion.
pub fn cosimulate(workers: u32, latency: u32, workload: &Workload) -> Result<Run, BenchError> {
    let config = RtlConfig { workers, latency: latency..=latency, ..RtlConfig::default() };
    let platform = RtlPlatform::new(&config).map_err(|error| match error {
        CosimError::Config { .. } => BenchError::input(error),
        other => DeviceError::from(other).into(),
    })?;
    let queue = QueueConfig { workers: Some(workers), ..workload.config.clone() };
    let mut driver = Driver::new(platform, queue)?;
    touch(driver.memory());
    let first = driver.platform().cycles();
    let (ended, elapsed) = timed(|| drive(&mut driver, &workload.descs));
    ended?;
    let cycles = driver.platform().cycles() - first;
    Ok(Run { cycles, elapsed, counters: driver.counters()? })
}

/// Writes to every page of a block that is still empty, so that the kernel's first look at it is not measured. The bare
/// loop's memory is touched before it starts, too.
fn touch(memory: &SharedMemory) {
    for page in (0..memory.len() as u64).step_by(4096) {
        memory.bus_write(memory.bus_address() + page, [0; 4]).expect("the page lies in the block");
    }
}

fn drive(driver: &mut Driver<RtlPlatform>, descs: &[HwDesc]) -> Result<(), DeviceError> {
    let mut out = vec![HwCompletion::default(); 1024];
    let (mut submitted, mut completed) = (0, 0);
    while completed < descs.len() {
        if submitted < descs.len() {
            submitted += driver.submit(&descs[submitted..])?;
        }
        let taken = driver.poll(&mut out)?;
        completed += taken;
        for completion in &out[..taken] {
            let asked = descs.get(completion.rollout_id as usize);
            let is_right = completion.status == Status::Done as u8
                && asked.is_some_and(|desc| desc.seq_len + desc.max_tokens == completion.final_seq_len);
            if !is_right {
                return Err(DeviceError::Protocol {
                    device: driver.name().to_owned(),
                    rule: "R10",
                    what: format!(
                        "rollout {} ended with status {:#04x} at length {}, not DONE at its full length",
                        completion.rollout_id, completion.status, completion.final_seq_len
                    ),
                });
            }
        }
    }
    Ok(())
}

/// Those of `counts` that some built RTL can run, and a note that names the others.
pub fn runnable(counts: &[u32]) -> (Vec<u32>, Vec<String>) {
    let most = built_workers().last().copied().unwrap_or(0);
    let (here, missing): (Vec<u32>, Vec<u32>) = counts.iter().partition(|&&workers| workers <= most);
    let note =
        |workers| format!("not measured: {workers} workers (the largest RTL that was built has {most})");
    (here, missing.into_iter().map(note).collect())
}

/// Cycles of one worker per descriptor of `length` tokens: what a run of 2 `count` takes longer than one of `count`,
/// so that start and end do not count.
fn cycles_per_descriptor(length: u32, latency: u32, count: u32) -> Result<f64, BenchError> {
    let cycles =
        |count| Ok::<u64, BenchError>(cosimulate(1, latency, &Workload::uniform(count, length)?)?.cycles);
    let (short, long) = (cycles(count)?, cycles(2 * count)?);
    Ok((long as f64 - short as f64) / f64::from(count))
}

/// (a) One worker, streaming.
pub fn descriptors() -> Result<Section, BenchError> {
    let mut table = table(
        [
            "max_tokens",
            "limit",
            "latency 0",
            "lost",
            "latency 16",
            "lost",
            "latency 64",
            "lost",
            "bar: lost",
            "bar is",
        ],
        0,
    );
    let mut rows = vec![];
    for length in LENGTHS {
        let limit = f64::from(length).max(write_beats(length));
        let mut cells = vec![length.to_string(), format!("{limit:.2}")];
        let mut met = true;
        for latency in LATENCIES {
            let cycles = cycles_per_descriptor(length, latency, 1000)?;
            let lost = cycles - limit;
            met &= lost <= NOISE;
            cells.extend([format!("{cycles:.3}"), format!("{lost:.3}")]);
            rows.push(json!({
                "max_tokens": length, "latency": latency, "cycles": cycles, "limit": limit, "lost": lost,
            }));
        }
        cells.extend(["0".to_owned(), verdict(met).to_owned()]);
        table.add_row(cells);
    }
    Ok(Section {
        heading: "RTL, one worker streaming: cycles per descriptor, by memory latency in cycles".to_owned(),
        table,
        notes: vec![
            "The limit is max_tokens at one token per cycle, or the beats of the write port where these are more: one \
             per 64-byte line of tokens, and half a beat for the completion, as two neighbours share one."
                .to_owned(),
        ],
        json: rows.into(),
    })
}

/// Tokens per cycle of `workers` workers on long decodes, and the limit; start and end do not count.
fn tokens_per_cycle(workers: u32) -> Result<(f64, f64), BenchError> {
    const LENGTH: u32 = 1024;
    let run = |each: u32| {
        let workload = Workload::uniform(each * workers, LENGTH)?;
        Ok::<_, BenchError>((workload.tokens(), cosimulate(workers, 0, &workload)?.cycles))
    };
    let ((tokens, cycles), (more_tokens, more_cycles)) = (run(4)?, run(8)?);
    let measured = (more_tokens - tokens) as f64 / (more_cycles as f64 - cycles as f64);
    let port = f64::from(LENGTH) / write_beats(LENGTH);
    Ok((measured, port.min(workers.into())))
}

/// (b) Many workers.
pub fn scaling() -> Result<Section, BenchError> {
    let (counts, notes) = runnable(&[1, 2, 4, 8, 12, 15, 16]);
    let mut table = table(["workers", "tokens/cycle", "limit", "of the limit", "bar", "bar is"], 0);
    let mut rows = vec![];
    for workers in counts {
        let (measured, limit) = tokens_per_cycle(workers)?;
        let share = measured / limit;
        table.add_row([
            workers.to_string(),
            format!("{measured:.3}"),
            format!("{limit:.3}"),
            percent(share),
            percent(BAR),
            verdict(share >= BAR).to_owned(),
        ]);
        rows.push(json!({ "workers": workers, "tokens_per_cycle": measured, "limit": limit }));
    }
    Ok(Section {
        heading: "RTL, long decodes (1024 tokens each): tokens per cycle by workers in use".to_owned(),
        table,
        notes: [
            "The limit is one token per worker, or 16 tokens per beat of the write port less its beats for completions."
                .to_owned(),
        ]
        .into_iter()
        .chain(notes)
        .collect(),
        json: rows.into(),
    })
}

/// What became of the worker cycles of one run; shares of all worker cycles, or for the causes marked so of cycles.
struct Usage {
    cycles: u64,
    producing: f64,
    /// What `producing` would be in the fewest cycles that there can be.
    limit: f64,
    idle: f64,
    held_by_port: f64,
    /// Cycles.
    fetch: f64,
    /// Cycles.
    order: f64,
    /// Cycles.
    full_cq: f64,
}

impl Usage {
    fn of(workers: u32, workload: &Workload) -> Result<Usage, BenchError> {
        let Run { cycles, counters, .. } = cosimulate(workers, 0, workload)?;
        let of_cycles = |counter| counters.get(counter) as f64 / cycles as f64;
        let of_workers = |counter| of_cycles(counter) / f64::from(workers);
        let tokens = counters.get(Counter::Tokens);
        if tokens != workload.tokens() {
            return Err(DeviceError::Protocol {
                device: "rtl".to_owned(),
                rule: "R3",
                what: format!("counter TOKENS reads {tokens}, after {} tokens", workload.tokens()),
            }
            .into());
        }
        Ok(Usage {
            cycles,
            producing: of_workers(Counter::Tokens),
            limit: tokens as f64 / (workload.fewest_cycles(workers) * f64::from(workers)),
            // BUSY stands still before the first doorbell and after the last completion; IDLE does not.
            idle: 1.0 - of_workers(Counter::Busy),
            held_by_port: of_workers(Counter::StallWrite),
            fetch: of_cycles(Counter::StallFetch),
            order: of_cycles(Counter::StallOrder) + of_cycles(Counter::StallFence),
            full_cq: of_cycles(Counter::StallCq),
        })
    }
}

/// (c) A trace.
pub fn trace(trace: &Trace) -> Result<Section, BenchError> {
    let workload = Workload::of(trace)?;
    let (counts, missing) = runnable(&[1, 4, 15, 16]);
    let mut table = table(
        [
            "workers",
            "cycles",
            "producing",
            "limit",
            "idle",
            "held by the port",
            "no descriptor",
            "order, fence",
            "CQ full",
            "bar",
            "bar is",
        ],
        0,
    );
    let mut rows = vec![];
    for workers in counts {
        let usage = Usage::of(workers, &workload)?;
        // What the trace or the port does not allow is no fault of the device.
        let judged = if usage.limit >= BAR { verdict(usage.producing >= BAR) } else { "bar exceeds limit" };
        table.add_row([
            workers.to_string(),
            usage.cycles.to_string(),
            percent(usage.producing),
            percent(usage.limit),
            percent(usage.idle),
            percent(usage.held_by_port),
            percent(usage.fetch),
            percent(usage.order),
            percent(usage.full_cq),
            percent(BAR),
            judged.to_owned(),
        ]);
        rows.push(json!({
            "workers": workers, "cycles": usage.cycles, "producing": usage.producing, "limit": usage.limit,
            "idle": usage.idle, "stall_write": usage.held_by_port, "stall_fetch": usage.fetch,
            "stall_order_fence": usage.order, "stall_cq": usage.full_cq,
        }));
    }
    let notes = [
        "producing, idle and held by the port are shares of all worker cycles from the first doorbell to the last \
         completion; the other causes are shares of cycles. The limit is what one token per worker and cycle gives, in \
         order, within the beats of the write port: below 100 % where the last long rollouts leave workers without \
         work, or the port is full."
            .to_owned(),
    ];
    Ok(Section {
        heading: format!(
            "RTL, trace: {} ({} rollouts, {} tokens): what worker cycles go to",
            trace.source,
            workload.descs.len(),
            workload.tokens()
        ),
        table,
        notes: notes.into_iter().chain(missing).collect(),
        json: rows.into(),
    })
}

#[cfg(test)]
mod tests {
    use doorbell_trace::Generator;
    use rstest::rstest;

    use super::*;

    #[rstest]
    fn streaming_loses_no_cycle_between_descriptors(
        #[values(1, 2, 3, 4, 8, 16, 17, 32, 100)] length: u32,
        #[values(0, 16, 64)] latency: u32,
    ) {
        let limit = f64::from(length).max(write_beats(length));
        let cycles = cycles_per_descriptor(length, latency, 500).unwrap();
        assert!((limit - NOISE..=limit + NOISE).contains(&cycles), "{cycles} cycles, the limit is {limit}");
    }

    #[rstest]
    fn workers_add_up(#[values(1, 2, 4, 8, 15, 16)] workers: u32) {
        if runnable(&[workers]).0.is_empty() {
            eprintln!("no RTL with {workers} workers was built");
            return;
        }
        let (measured, limit) = tokens_per_cycle(workers).unwrap();
        assert!(measured >= BAR * limit, "{measured} tokens per cycle, the limit is {limit}");
        assert!(measured <= limit * 1.001, "{measured} tokens per cycle, more than the limit of {limit}");
    }

    #[rstest]
    fn a_trace_keeps_the_workers_busy(#[values(1, 4, 15)] workers: u32) {
        if runnable(&[workers]).0.is_empty() {
            eprintln!("no RTL with {workers} workers was built");
            return;
        }
        // Long answers, or the write port binds 15 workers: a short one ends with a line that is not full.
        let generator = Generator {
            output_median: 400,
            output_max: 800,
            prompt_median: 64,
            ..Generator::new(4000, 7, 4)
        };
        let workload = Workload::of(&generator.generate().unwrap()).unwrap();
        let usage = Usage::of(workers, &workload).unwrap();
        assert!(usage.producing >= BAR, "{} (limit {})", usage.producing, usage.limit);
        assert!(usage.producing <= usage.limit, "{} (limit {})", usage.producing, usage.limit);
    }

    #[test]
    fn the_fewest_cycles_are_those_of_a_schedule_or_of_the_port() {
        let of = |lengths: &[u32]| {
            let request =
                |&length| Request { arrival_ms: 0, prompt_tokens: 0, output_tokens: length, prefix: vec![] };
            let requests = lengths.iter().map(request).collect();
            Workload::of(&Trace { source: String::new(), requests }).unwrap()
        };
        assert_eq!(of(&[10, 10, 30, 5]).fewest_cycles(2), 40.0);
        assert_eq!(of(&[1; 8]).fewest_cycles(1), 12.0, "8 lines and 4 pairs of completions");
    }
}
