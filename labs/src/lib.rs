//! What the labs share: where threads run, how they wait, and how a result is shown. Each lab is a program in `src/bin`.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The options that every lab has.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Under a second, for a look or for a test: the figures are rougher
    #[arg(long)]
    pub quick: bool,
}

impl Options {
    /// One of two sizes.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// What a lab found.
#[derive(Debug)]
pub struct Report {
    /// What was measured, and in which unit.
    pub heading: String,
    /// The figures.
    pub table: Table,
    /// What to look at, in a few sentences.
    pub look: String,
    /// What could not be measured here, and why.
    pub unmeasured: Vec<String>,
}

impl Report {
    /// Prints the report to standard output.
    pub fn print(&self) {
        let unmeasured = self.unmeasured.iter().map(|what| format!("Not measured here: {what}\n"));
        let unmeasured: String = unmeasured.collect();
        let text = format!("{}\n\n{}\n\nWhat to look at: {}\n", self.heading, self.table, self.look);
        // A reader that has seen enough, such as `head`, closes the pipe.
        let _ = io::stdout().write_all((text + &unmeasured).as_bytes());
    }
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

/// Middle of the values; the lower of two, and 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Nanoseconds for each of `count` things that took `elapsed` together.
pub fn nanoseconds_each(elapsed: Duration, count: u64) -> f64 {
    elapsed.as_nanos() as f64 / count as f64
}

/// How long the calling thread has run: time in which others had the processor is not in it.
pub fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Two processors for two threads.
#[derive(Debug)]
pub struct Pair {
    cpus: [Option<usize>; 2],
    /// What the figures of two threads lack on this machine.
    pub unmeasured: Vec<String>,
}

impl Pair {
    /// Two processors of different cores, if the process may use such.
    pub fn find() -> Self {
        let allowed: Vec<usize> = sched_getaffinity(None)
            .map(|set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
            .unwrap_or_default();
        let first = allowed.first().copied();
        let other_core = || allowed.iter().copied().find(|&cpu| Some(core(cpu)) != first.map(core));
        let second = other_core().or(allowed.get(1).copied());
        let mut unmeasured = vec![];
        match (first, second) {
            (None, _) => unmeasured.push("threads are not pinned: the system does not tell the processors".into()),
            (_, None) => unmeasured.push(
                "two threads at once: there is one processor, on which they take turns; what needs two at the same \
                 moment does not show"
                    .into(),
            ),
            (Some(first), Some(second)) if core(first) == core(second) => unmeasured.push(format!(
                "two cores: processors {first} and {second} are two threads of one core and share its caches"
            )),
            _ => {}
        }
        Self { cpus: [first, second.or(first)], unmeasured }
    }

    /// Keeps the calling thread on the first processor or on the second.
    pub fn pin(&self, which: usize) {
        if let Some(cpu) = self.cpus[which] {
            let mut set = CpuSet::new();
            set.set(cpu);
            // Without it the figures are noisier and not wrong.
            let _ = sched_setaffinity(None, &set);
        }
    }

    /// Whether two threads can run at the same moment.
    pub fn is_parallel(&self) -> bool {
        self.cpus[0].is_some() && self.cpus[0] != self.cpus[1]
    }
}

/// The physical core that a processor belongs to; the processor itself where that is not told.
fn core(cpu: usize) -> (usize, usize) {
    let read = |file| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
    };
    (read("physical_package_id").unwrap_or(0), read("core_id").unwrap_or(cpu))
}

/// Waits by looking again and again; gives the processor away when that takes long, as whoever is waited for may need
/// this very one.
#[derive(Debug, Default)]
pub struct Spin(u32);

impl Spin {
    /// Looks before the processor is given away.
    const LOOKS: u32 = 1000;

    /// Once for each look in vain.
    #[inline]
    pub fn wait(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(Self::LOOKS) {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Waits until `done`.
    #[inline]
    pub fn until(mut done: impl FnMut() -> bool) {
        let mut spin = Self::default();
        while !done() {
            spin.wait();
        }
    }
}

/// Why a lab shows time and not `events`, and how to see those.
pub fn needs_counters(events: &str, perf: &str) -> String {
    if Path::new("/sys/bus/event_source/devices/cpu").exists() {
        format!("{events}: run this program under `perf stat -e {perf}`")
    } else {
        format!(
            "{events}: this machine shows no hardware performance counters (often so in a virtual machine)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0]), 1.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_wait_ends_when_another_thread_is_done_even_on_one_processor() {
        let done = std::sync::atomic::AtomicBool::new(false);
        let pair = Pair::find();
        thread::scope(|scope| {
            pair.pin(0);
            scope.spawn(|| {
                pair.pin(0);
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            Spin::until(|| done.load(std::sync::atomic::Ordering::Acquire));
        });
    }
}
