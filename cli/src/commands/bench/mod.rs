//! `doorbell bench`: measures, and shows each figure beside the limit that was measured or computed in the same run.

mod cow;
mod events;
#[cfg(feature = "gpu")]
mod gpu;
mod handoff;
mod kv_layout;
mod layout;
mod pipeline;
mod queue;
mod rings;
#[cfg(feature = "rtl")]
mod rtl;
mod savings;
#[cfg(feature = "rtl")]
mod speed;
mod trajectories;

use std::ops::AddAssign;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value};

use super::trace;
use crate::devices::Kind;
use crate::failure::Failure;
use crate::output::{self, Sink};

/// Measures throughput. Figures of time are shown and judged, and never end in another exit code; a descriptor that
/// does not end as it should does.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Trace for the RTL and for copy-on-write (own format, Mooncake or Azure); by default a small built-in one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the figures as JSON; '-' is standard output, and the tables go to standard error then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shorter and fewer runs: figures of time are rougher, those in cycles stay exact
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Round trips of descriptors through driver and model, on one core
    #[value(alias = "queue")]
    HwFastpath,
    /// The rings between threads, beside their rivals
    Rings,
    /// The runtime over the model: rollout segments per second on one core
    Pipeline,
    /// What the runtime adds to a segment, and what it costs to tell another thread
    Tax,
    /// What recording and collecting an event costs
    Trace,
    /// KV blocks: what sharing saves on a trace, what a copy-on-write costs, and a block of the arena
    Cow,
    /// Reads of K and V in the layout of KV blocks, beside other layouts
    KvLayout,
    /// Trajectories stored per second, beside a plain write and sync of the same bytes
    Trajectories,
    /// The RTL: cycles per descriptor, tokens per cycle, a trace, and the speed of the simulation
    Rtl,
    /// The GPU: round trips, descriptors per second, and what a token costs in control
    Gpu,
    /// Everything that is there
    All,
}

/// One table.
struct Section {
    /// Key in the JSON.
    key: &'static str,
    heading: String,
    table: Table,
    notes: Vec<String>,
    json: Value,
}

/// Runs the benches.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.what == What::Rtl && !cfg!(feature = "rtl") {
        return Err(Failure::unavailable("rtl is not part of this build; build with the feature 'rtl'"));
    }
    // Read in any case, so that a bad one is told.
    let (trace, _) = trace::read(args.trace.as_deref())?;
    let json = args.json.as_deref().map(|path| Sink::open("JSON", path)).transpose()?;
    let to_stderr = matches!(json, Some(Sink::Standard));
    let mut figures = Map::new();
    // Shown as they come: the whole takes a while.
    let mut show = |section: Section| {
        let Section { key, heading, table, notes, json } = section;
        let notes: String = notes.into_iter().map(|note| format!("{note}\n")).collect();
        let text = format!("{heading}\n\n{table}\n\n{notes}{}", if notes.is_empty() { "" } else { "\n" });
        figures.insert(key.to_owned(), json);
        if to_stderr {
            eprint!("{text}");
            return Ok(());
        }
        output::print(&text)
    };
    let wanted = |what| args.what == what || args.what == What::All;
    if wanted(What::HwFastpath) {
        show(queue::round_trips(args.quick)?)?;
    }
    if wanted(What::Rings) {
        rings::sections(args.quick)?.into_iter().try_for_each(&mut show)?;
    }
    if wanted(What::Pipeline) {
        show(pipeline::throughput(args.quick)?)?;
    }
    if wanted(What::Tax) {
        show(pipeline::tax(args.quick)?)?;
        show(handoff::submission(args.quick)?)?;
        show(handoff::telling(args.quick)?)?;
    }
    if wanted(What::Trace) {
        show(events::recording(args.quick)?)?;
    }
    if wanted(What::Cow) {
        let trace = cow::part(&trace, args.quick);
        show(cow::savings(&trace)?)?;
        show(cow::first_write(&trace, args.quick)?)?;
        show(cow::arena(args.quick)?)?;
    }
    if wanted(What::KvLayout) {
        show(kv_layout::kv_layout(args.quick)?)?;
    }
    if wanted(What::Trajectories) {
        show(trajectories::stored(args.quick)?)?;
    }
    #[cfg(feature = "rtl")]
    if wanted(What::Rtl) {
        show(rtl::descriptors()?)?;
        show(rtl::scaling()?)?;
        show(rtl::trace(&trace)?)?;
        show(speed::speed(&trace, args.quick)?)?;
    }
    if wanted(What::Gpu) {
        match (Kind::Gpu.missing(), args.what) {
            #[cfg(feature = "gpu")]
            (None, _) => gpu::sections(args.quick)?.into_iter().try_for_each(&mut show)?,
            (Some(reason), What::All) => eprintln!("skipped: gpu ({reason})"),
            (reason, _) => {
                let reason = reason.unwrap_or_else(|| "not part of this build".into());
                return Err(Failure::unavailable(format!("gpu is not there: {reason}")));
            }
        }
    }
    if cfg!(not(feature = "rtl")) && args.what == What::All {
        eprintln!("skipped: rtl (not part of this build; build with the feature 'rtl')");
    }
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&Value::Object(figures)).map_err(Failure::input)?;
        json.write(&format!("{text}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An empty table with these columns, all but the first `left` ones aligned to the right.
pub(super) fn table<const N: usize>(columns: [&str; N], left: usize) -> Table {
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
#[derive(Clone, Copy, Default)]
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

impl AddAssign for Elapsed {
    fn add_assign(&mut self, other: Elapsed) {
        self.wall += other.wall;
        self.cpu += other.cpu;
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

fn timed<T>(work: impl FnOnce() -> T) -> (T, Elapsed) {
    let cpu_now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let (start, cpu) = (Instant::now(), cpu_now());
    let value = work();
    (value, Elapsed { wall: start.elapsed(), cpu: cpu_now().saturating_sub(cpu) })
}
