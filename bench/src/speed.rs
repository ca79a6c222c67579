//! How fast the simulation is, beside the bare C++ loop over the same verilated model.

use doorbell_cosim::bare_loop;
use doorbell_host::{DeviceError, QueueConfig};
use doorbell_trace::{Request, Trace};
use serde_json::json;

use crate::BenchError;
use crate::rtl::{Run, Workload, cosimulate, runnable};
use crate::{Rates, Section, median, table, verdict};

/// Share of the bare loop's speed that co-simulation has to reach.
const RATIO_BAR: f64 = 0.9;
/// Simulated tokens per second of wall time, at the best number of workers.
const TOKENS_BAR: f64 = 25e6;
/// What the bare loop takes.
const MOST_DESCRIPTORS: usize = 1 << 16;

struct Speed {
    /// Cycles per second.
    cosimulation: f64,
    /// Cycles per second.
    bare: f64,
    /// Median of the ratios of neighbouring runs.
    ratio: f64,
    /// Tokens per second.
    tokens: Rates,
    /// Tokens per second of wall time of the fastest run.
    best: f64,
}

/// (d) Both run the same descriptors in turn, so that a machine that slows down slows both.
pub fn speed(trace: &Trace, quick: bool) -> Result<Section, BenchError> {
    let (cycles, pairs) = if quick { (30_000, 3) } else { (300_000, 7) };
    let (counts, mut notes) = runnable(&[1, 4, 8, 15, 16]);
    let mut table = table(
        [
            "workers",
            "co-simulation",
            "bare loop",
            "ratio",
            "bar",
            "bar is",
            "tokens/s",
            "best run",
            "tokens/CPU s",
        ],
        0,
    );
    let mut rows = vec![];
    let mut top = (Rates { wall: 0.0, cpu: 0.0 }, 0);
    for workers in counts {
        let Speed { cosimulation, bare, ratio, tokens, best } = measure(trace, workers, cycles, pairs)?;
        if tokens.wall > top.0.wall {
            top = (tokens, workers);
        }
        let mega = |rate: f64, unit: &str| format!("{:.2} M{unit}", rate / 1e6);
        table.add_row([
            workers.to_string(),
            mega(cosimulation, "Hz"),
            mega(bare, "Hz"),
            format!("{ratio:.3}"),
            RATIO_BAR.to_string(),
            verdict(ratio >= RATIO_BAR).to_owned(),
            mega(tokens.wall, ""),
            mega(best, ""),
            mega(tokens.cpu, ""),
        ]);
        rows.push(json!({
            "workers": workers, "cycles_per_second": cosimulation, "bare_cycles_per_second": bare, "ratio": ratio,
            "tokens_per_second": tokens.wall, "best_tokens_per_second": best, "tokens_per_cpu_second": tokens.cpu,
        }));
    }
    let (tokens, workers) = top;
    notes.insert(
        0,
        format!(
            "Simulated tokens per second of wall time at the best number of workers, {workers}: {:.2} M ({:.2} M per \
             second of CPU time); bar {:.0} M: {}",
            tokens.wall / 1e6,
            tokens.cpu / 1e6,
            TOKENS_BAR / 1e6,
            tokens.verdict(TOKENS_BAR)
        ),
    );
    Ok(Section {
        heading: format!(
            "Simulation speed: driver over co-simulation, and the bare C++ loop, on the same descriptors; medians of \
             {pairs} pairs of runs of about {cycles} cycles"
        ),
        table,
        notes,
        json: rows.into(),
    })
}

fn measure(trace: &Trace, workers: u32, cycles: u64, pairs: usize) -> Result<Speed, BenchError> {
    let workload = repeated(trace, u64::from(workers) * cycles)?;
    let queue = QueueConfig { workers: Some(workers), ..workload.config.clone() };
    let (mut runs, mut tokens) = (vec![], vec![]);
    for _ in 0..pairs {
        let bare = bare_loop(workers, &queue, &workload.descs).map_err(DeviceError::from)?;
        let Run { cycles, elapsed, .. } = cosimulate(workers, 0, &workload)?;
        runs.push((elapsed.rates(cycles).wall, bare.cycles as f64 / bare.elapsed.as_secs_f64()));
        tokens.push(elapsed.rates(workload.tokens()));
    }
    Ok(Speed {
        cosimulation: median(runs.iter().map(|run| run.0)),
        bare: median(runs.iter().map(|run| run.1)),
        ratio: median(runs.iter().map(|run| run.0 / run.1)),
        tokens: Rates::median(&tokens),
        best: tokens.iter().map(|rates| rates.wall).fold(0.0, f64::max),
    })
}

/// The trace from its start, again and again, until it has `tokens` tokens.
fn repeated(trace: &Trace, tokens: u64) -> Result<Workload, BenchError> {
    let mut sum = 0;
    let requests: Vec<Request> = trace
        .requests
        .iter()
        .cycle()
        .take(MOST_DESCRIPTORS)
        .take_while(|request| {
            let goes_on = sum < tokens;
            sum += u64::from(request.output_tokens);
            goes_on
        })
        .cloned()
        .collect();
    Workload::of(&Trace { source: trace.source.clone(), requests })
}
