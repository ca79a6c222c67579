//! Doorbell's benches: each figure beside the limit or rival that was measured or computed in the same run.

#[cfg(feature = "candle")]
pub mod candle;
mod clock;
mod cow;
pub mod decoding;
mod events;
#[cfg(feature = "gpu")]
mod gpu;
mod handoff;
mod leftovers;
mod lm;
mod memory;
mod nic;
#[cfg(feature = "rtl")]
mod npu;
#[cfg(feature = "rtl")]
pub mod perf;
mod pipeline;
mod policies;
mod queue;
#[cfg(feature = "rtl")]
mod recording;
#[cfg(feature = "rtl")]
mod rtl;
#[cfg(feature = "rtl")]
mod rtl_interrupts;
#[cfg(feature = "rtl")]
mod rtl_queues;
mod savings;
#[cfg(feature = "serve")]
mod serve;
#[cfg(all(feature = "rtl", feature = "vfio"))]
mod sockets;
#[cfg(feature = "rtl")]
mod speed;
mod tax;
mod throughput;
mod trajectories;
mod wait;

pub use leftovers::clear;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use doorbell_devices::Kind;
use doorbell_host::DeviceError;
use doorbell_lm::Model;
use doorbell_trace::Trace;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// Key of the machine in the JSON, beside those of the tables.
pub const MACHINE: &str = "machine";

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Round trips of descriptors through driver and model, on one core
    #[value(alias = "queue")]
    HwFastpath,
    /// The runtime over the model: rollout segments per second on one core
    Pipeline,
    /// Policies on a trace while KV blocks are scarce, over the golden model in simulated cycles: makespan, latencies, blocks, idle workers
    Policies,
    /// The bottleneck table: each cost that the design avoids, beside what replaces it; and what the runtime adds to a segment
    Tax,
    /// KV blocks: what sharing saves on a trace, and what a block of the arena costs
    Cow,
    /// Trajectories stored per second, beside a plain write and sync of the same bytes
    Trajectories,
    /// A language model in integers: tokens per second, beside reading its weights and, where it is built in, candle
    Lm,
    /// The RTL: cycles per descriptor, tokens per cycle, a trace, and the speed of the simulation
    Rtl,
    /// Recording the lives of descriptors of the RTL, as `report` does: the speed of the simulation without and with it
    Recording,
    /// The RTL's NPU: share of cycles in which each unit is busy, by rollouts, and what it waits for otherwise
    Npu,
    /// Waiting: a host that looks, and one that sleeps until it is interrupted
    Wait,
    /// The RTL behind a socket: a register, and a DECODE that a driver in front of it sleeps for, beside the bare socket
    Sockets,
    /// A server of language models under 64 clients, beside a run of the same prompts
    Serve,
    /// An event ring: descriptors per second without one, with one, and with the life of each descriptor told
    Events,
    /// Each device: from the post of a descriptor to the read of its slot, from its completion to the look that sees it and to the stored trajectory,
    /// on one clock
    Clock,
    /// The modelled NIC: posts to completions beside a flag, and entries carried to a collector that is killed on the way
    Nic,
    /// The GPU: round trips, descriptors per second, and what a token costs in control
    Gpu,
    /// The GPU: tokens per second of language models by batch and context, prompts, and new versions, beside torch with --python
    Decode,
    /// Everything that is there
    All,
}

/// One table.
pub struct Section {
    /// What it is about, in a line.
    pub heading: String,
    /// The figures, for people.
    pub table: Table,
    /// Remarks, a line each.
    pub notes: Vec<String>,
    /// The figures, for programs.
    pub json: Value,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n\n{}\n", self.heading, self.table)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))?;
        if self.notes.is_empty() { Ok(()) } else { writeln!(f) }
    }
}

/// Why a bench gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// It cannot run here, or on this trace.
    #[error("{0}")]
    Input(String),
    /// What it ran is not what it must be.
    #[error("{0}")]
    Failed(String),
    /// What it would measure is not there.
    #[error("{0}")]
    Unavailable(String),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl BenchError {
    fn input(message: impl fmt::Display) -> Self {
        Self::Input(message.to_string())
    }

    fn failed(message: impl fmt::Display) -> Self {
        Self::Failed(message.to_string())
    }
}

/// What the bench of language models lets one continue.
pub const PROMPT: &str = "A queue pair is a ring of work orders and a ring of completions in memory that a host and a device share. The host \
    writes an order into the next free slot, makes it visible, and rings a doorbell: one store to a register. The device reads the order, \
    does the work, writes a completion, and, if it was asked to, raises an interrupt. Neither waits for the other. The host may have many \
    orders on their way, and the device may end them in any order, as long as each completion names the order that it belongs to. What \
    makes such a pair fast is what it leaves out: no lock, no system call, no copy. What makes it hard is";

/// A language model as it was published.
#[derive(Clone, Copy, Debug)]
pub struct Language<'a> {
    /// In integers.
    pub model: &'a Model,
    /// The GGUF file that it comes from.
    pub file: &'a Path,
    /// [`PROMPT`] in its tokens.
    pub prompt: &'a [u32],
}

/// What benches are given.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Trace for the RTL and for KV blocks.
    pub trace: &'a Trace,
    /// Shorter and fewer runs: figures of time are rougher, those in cycles stay exact.
    pub quick: bool,
    /// Queue pairs of the model in the bench of round trips.
    pub queues: u8,
    /// Entries that the modelled NIC carries, if not its default.
    pub entries: Option<u64>,
    /// Functions that they are spread over, and, of each row with as many, the queue pairs of a GPU.
    pub functions: u8,
    /// The language model to measure; without one it is one by hash.
    pub language: Option<Language<'a>>,
    /// What is decoded on a GPU, if that is asked for.
    pub decode: Option<&'a decoding::Decode>,
}

type Run = fn(&Load<'_>) -> Result<Vec<Section>, BenchError>;

/// A measurement: who asks for it, a key in the JSON for each of its tables, and how it is made.
struct Bench {
    what: What,
    keys: &'static [&'static str],
    run: Run,
}

const fn bench(what: What, keys: &'static [&'static str], run: Run) -> Bench {
    Bench { what, keys, run }
}

/// Every measurement that this build has, in the order in which they run.
const BENCHES: &[Bench] = &[
    bench(What::HwFastpath, &["queue"], |load| one(queue::round_trips(load))),
    bench(What::Pipeline, &["pipeline"], |load| one(pipeline::throughput(load.quick))),
    bench(What::Policies, &["policies"], |load| one(policies::policies(load.trace, load.quick))),
    bench(
        What::Tax,
        &["bottlenecks", "tax", "first_touch", "handoff_submission", "handoff_telling"],
        |load| tax::sections(load.quick),
    ),
    bench(What::Cow, &["cow_savings"], |load| one(cow::savings(&cow::part(load.trace, load.quick)))),
    bench(What::Cow, &["arena"], |load| one(cow::arena(load.quick))),
    bench(What::Trajectories, &["trajectories"], |load| one(trajectories::stored(load.quick))),
    bench(What::Lm, &["lm"], |load| one(lm::tokens(load.quick, load.language))),
    #[cfg(feature = "rtl")]
    bench(What::Rtl, &["descriptors"], |_| one(rtl::descriptors())),
    #[cfg(feature = "rtl")]
    bench(What::Rtl, &["scaling"], |_| one(rtl::scaling())),
    #[cfg(feature = "rtl")]
    bench(What::Rtl, &["trace"], |load| one(rtl::trace(load.trace))),
    #[cfg(feature = "rtl")]
    bench(What::Rtl, &["queue_pairs"], |_| one(rtl_queues::queue_pairs())),
    #[cfg(feature = "rtl")]
    bench(What::Rtl, &["interrupts"], |_| one(rtl_interrupts::interrupts())),
    #[cfg(feature = "rtl")]
    bench(What::Rtl, &["speed"], |load| one(speed::speed(load.trace, load.quick))),
    #[cfg(feature = "rtl")]
    bench(What::Recording, &["recording"], |load| one(recording::cost(load.trace, load.quick))),
    #[cfg(feature = "rtl")]
    bench(What::Npu, &["npu", "npu_causes"], npu::sections),
    bench(What::Wait, &["wait"], |load| one(wait::waiting(load.quick))),
    #[cfg(all(feature = "rtl", feature = "vfio"))]
    bench(What::Sockets, &["sockets"], |load| one(sockets::times(load.quick))),
    #[cfg(feature = "serve")]
    bench(What::Serve, &["serve"], |load| one(serve::on_the_model(load.quick))),
    #[cfg(feature = "serve")]
    bench(What::Serve, &["serve_gpu"], |load| serve::on_a_gpu(load.quick)),
    bench(What::Events, &["events"], |load| one(events::cost(load.quick))),
    bench(What::Clock, &["clock"], |load| one(clock::latencies(load.quick))),
    bench(What::Nic, &["nic"], |load| one(nic::posts(load.quick))),
    bench(What::Nic, &["nic_entries"], |load| one(nic::entries(load.quick, load.entries))),
    #[cfg(feature = "gpu")]
    bench(What::Gpu, &["gpu_round_trip", "gpu_rate", "gpu_idle", "gpu_token"], |load| {
        gpu::sections(load.quick, load.functions)
    }),
    #[cfg(feature = "gpu")]
    bench(What::Decode, &["decode", "prompts", "policy", "gaps", "disturbed", "gpus", "phases"], |load| {
        load.decode.map_or(Ok(vec![]), |decode| gpu::decode::sections(load.quick, decode))
    }),
];

fn one(section: Result<Section, BenchError>) -> Result<Vec<Section>, BenchError> {
    section.map(|section| vec![section])
}

/// Measures `what` and hands each table to `show` with its key, as it comes. With [`What::All`], returns what was
/// left out and why.
///
/// # Errors
/// `Unavailable` if what alone was asked for is not there; the first error of a bench or of `show`.
pub fn run<E: From<BenchError>>(
    what: What,
    load: &Load<'_>,
    mut show: impl FnMut(&'static str, Section) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let mut skipped = vec![];
    let needs = [
        (What::Rtl, Kind::Rtl),
        (What::Recording, Kind::Rtl),
        (What::Npu, Kind::Rtl),
        (What::Sockets, Kind::Rtl),
        (What::Gpu, Kind::Gpu),
        (What::Decode, Kind::Gpu),
    ];
    for (needed, kind) in needs {
        if what != needed && what != What::All {
            continue;
        }
        let left_out = (kind == Kind::Rtl && !cfg!(feature = "rtl"))
            .then(|| {
                "its benches are not part of this build; `cargo build --release --package doorbell --features full` has them".to_owned()
            });
        if let Some(reason) = left_out.or_else(|| kind.missing()) {
            if what != What::All {
                let message = format!("{} is not there: {reason}", kind.name());
                return Err(BenchError::Unavailable(message).into());
            }
            skipped.push((needed, format!("{} ({reason})", kind.name())));
        }
    }
    let wanted = |bench: &&Bench| what == bench.what || what == What::All;
    for bench in BENCHES.iter().filter(wanted) {
        if skipped.iter().any(|(needed, _)| *needed == bench.what) {
            continue;
        }
        let sections = (bench.run)(load)?;
        assert!(sections.is_empty() || sections.len() == bench.keys.len(), "{:?}", bench.keys);
        bench.keys.iter().zip(sections).try_for_each(|(key, section)| show(key, section))?;
    }
    Ok(skipped.into_iter().map(|(_, reason)| reason).collect())
}

/// An empty table with these columns, all but the first `left` ones aligned to the right.
pub fn table<const N: usize>(columns: [&str; N], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(columns);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// How a figure stands to its bar.
fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

/// Middle of the values, of which there is at least one; the lower of two.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// How long something took. On a machine with other work to do the thread does not always run, and `cpu` tells what
/// it would have taken alone, but for caches and clocks that it shares.
#[derive(Clone, Copy)]
struct Elapsed {
    wall: Duration,
    /// Time in which the thread ran.
    cpu: Duration,
}

impl Elapsed {
    /// `count` per second of wall time, and per second of CPU time.
    fn rates(self, count: u64) -> Rates {
        Rates {
            wall: count as f64 / self.wall.as_secs_f64(),
            // The clock of CPU time may be coarser than the shortest runs.
            cpu: count as f64 / self.cpu.max(Duration::from_millis(1)).as_secs_f64(),
        }
    }
}

#[derive(Clone, Copy)]
struct Rates {
    wall: f64,
    cpu: f64,
}

impl Rates {
    /// Medians, each for itself.
    fn median(rates: &[Rates]) -> Rates {
        Rates {
            wall: median(rates.iter().map(|rates| rates.wall)),
            cpu: median(rates.iter().map(|rates| rates.cpu)),
        }
    }

    /// How they stand to a bar that is set in wall time.
    fn verdict(self, bar: f64) -> &'static str {
        match (self.wall >= bar, self.cpu >= bar) {
            (true, _) => "met",
            (false, true) => "missed, met in CPU time",
            (false, false) => "missed",
        }
    }
}

/// Whether instructions are counted, and no clock is read.
static COUNTS: AtomicBool = AtomicBool::new(false);

/// Time in which this thread ran.
fn cpu_now() -> Duration {
    // rustix asks the kernel's vDSO, where valgrind lets it find none, and ends the program.
    if COUNTS.load(Ordering::Relaxed) {
        return Duration::ZERO;
    }
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Elapsed) {
    let (mut work, mut value) = (Some(work), None);
    let elapsed = doorbell_bench_timed(&mut || value = work.take().map(|work| work()));
    (value.expect("it has run, once"), elapsed)
}

/// What is timed runs inside this function, which `cargo xtask perf` knows by its name: callgrind counts there and nowhere else. It does
/// not end with the call, so that it is still on the stack meanwhile.
#[unsafe(no_mangle)]
#[inline(never)]
fn doorbell_bench_timed(work: &mut dyn FnMut()) -> Elapsed {
    let (start, cpu) = (Instant::now(), cpu_now());
    work();
    Elapsed { wall: start.elapsed(), cpu: cpu_now().saturating_sub(cpu) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_table_has_its_own_key() {
        let keys: Vec<&str> = BENCHES.iter().flat_map(|bench| bench.keys).copied().chain([MACHINE]).collect();
        let distinct: BTreeSet<&str> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }
}
