//! `doorbell compare --chaos SEED`: devices under everything that can go wrong.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use doorbell_devices::{Kind, Shape};
use doorbell_host::DeviceError;
use doorbell_verify::chaos::{self, Broken, Options, Tally};

use crate::failure::{DIFFERENT, Failure};
use crate::output;

/// Seeds behind which a long run says how far it has come.
const STRIDE: u64 = 20;

/// Seeds that there are. A further one would draw what one of these does.
pub const SEEDS: u64 = 1 << 32;
/// Rounds of a seed likewise.
pub const ROUNDS: u32 = 1 << 16;
/// Descriptors of a round at most: days of them.
pub const DESCRIPTORS: u64 = 1_000_000_000;

/// The shapes that seeds take in turn: queue pairs, functions and workers of the RTL.
pub const SHAPES: [(u8, u8, u32); 4] = [(4, 4, 4), (1, 1, 4), (16, 4, 16), (1, 1, 1)];

/// What `compare --chaos` was asked for.
pub struct Chaos {
    pub seed: u64,
    /// At most [`SEEDS`] together with those below the first.
    pub seeds: u64,
    pub rounds: u32,
    pub first_round: u32,
    pub descriptors: u64,
    /// Seeds take them in turn.
    pub shapes: Vec<Shape>,
    /// Seeds that run side by side.
    pub jobs: usize,
    /// No seed is begun later than this.
    pub limit: Option<Duration>,
}

impl Chaos {
    fn end(&self) -> u64 {
        self.seed + self.seeds
    }

    fn shape(&self, seed: u64) -> &Shape {
        &self.shapes[(seed % self.shapes.len() as u64) as usize]
    }
}

/// What came of one device.
struct Outcome {
    kind: Kind,
    tally: Tally,
    broken: Option<Box<Broken>>,
}

/// Runs seed after seed on every device, and prints what was drawn and what came of it.
pub fn run(kinds: &[(Kind, bool)], chaos: &Chaos, wave: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut outcomes = Vec::new();
    let mut skipped = String::new();
    for &(kind, is_named) in kinds {
        let opened = chaos.shapes.iter().try_for_each(|shape| kind.open_for_chaos(shape, 0).map(drop));
        match opened {
            Ok(()) => outcomes.push(Outcome { kind, tally: Tally::default(), broken: None }),
            Err(error) => match error.missing() {
                Some(reason) if !is_named => skipped += &format!("{}: skipped, {reason}\n", kind.name()),
                _ => return Err(error.into()),
            },
        }
    }
    if outcomes.is_empty() {
        return Err(Failure::unavailable(format!("there is no device to disturb: {skipped}")));
    }
    let sweep = Sweep::new(chaos, outcomes);
    thread::scope(|scope| {
        for _ in 1..chaos.jobs {
            scope.spawn(|| sweep.work());
        }
        sweep.work();
    });
    let (begun, outcomes) = sweep.over();
    let mut text = table(&outcomes) + &skipped;
    for outcome in &outcomes {
        text += &verdict(outcome, chaos, wave);
    }
    let holds = outcomes.iter().all(|outcome| outcome.broken.is_none());
    if holds && begun < chaos.end() {
        let left = chaos.end() - begun;
        text += &format!("the time is over: go on with --chaos {begun} --chaos-seeds {left}\n");
    }
    output::print(&text)?;
    Ok(ExitCode::from(if holds { 0 } else { DIFFERENT }))
}

/// Seeds that are handed out one by one.
struct Sweep<'a> {
    chaos: &'a Chaos,
    start: Instant,
    next: AtomicU64,
    /// And how many seeds are done.
    outcomes: Mutex<(u64, Vec<Outcome>)>,
    /// A process has one kernel on a GPU at a time.
    gpu: Mutex<()>,
}

impl<'a> Sweep<'a> {
    fn new(chaos: &'a Chaos, outcomes: Vec<Outcome>) -> Self {
        Self {
            chaos,
            start: Instant::now(),
            next: AtomicU64::new(chaos.seed),
            outcomes: Mutex::new((0, outcomes)),
            gpu: Mutex::new(()),
        }
    }

    /// The first seed that was not begun, and what came of those that were.
    fn over(self) -> (u64, Vec<Outcome>) {
        let begun = self.next.into_inner().min(self.chaos.end());
        (begun, self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).1)
    }

    fn outcomes(&self) -> MutexGuard<'_, (u64, Vec<Outcome>)> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes seeds until there is none left, the time is over, or every device has broken a rule.
    fn work(&self) {
        loop {
            let sound: Vec<Kind> = {
                let outcomes = self.outcomes();
                outcomes.1.iter().filter(|one| one.broken.is_none()).map(|one| one.kind).collect()
            };
            // The first seed is run whatever the limit.
            let late = self.chaos.limit.is_some_and(|limit| self.start.elapsed() >= limit)
                && self.next.load(Ordering::Relaxed) > self.chaos.seed;
            if sound.is_empty() || late {
                return;
            }
            let claim = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seed| {
                (seed < self.chaos.end()).then(|| seed + 1)
            });
            let Ok(seed) = claim else { return };
            for kind in sound {
                self.run(kind, seed);
            }
            let mut outcomes = self.outcomes();
            outcomes.0 += 1;
            if outcomes.0.is_multiple_of(STRIDE) {
                self.report(seed, &outcomes);
            }
        }
    }

    fn run(&self, kind: Kind, seed: u64) {
        let alone = (kind == Kind::Gpu).then(|| self.gpu.lock().unwrap_or_else(PoisonError::into_inner));
        let chaos = self.chaos;
        let options = Options {
            seed,
            rounds: chaos.rounds,
            first_round: chaos.first_round,
            descriptors: chaos.descriptors,
        };
        let result = one_seed(kind, chaos.shape(seed), &options);
        drop(alone);
        let mut outcomes = self.outcomes();
        let Some(outcome) = outcomes.1.iter_mut().find(|outcome| outcome.kind == kind) else { return };
        match result {
            Ok(tally) => outcome.tally += &tally,
            Err(broken) => {
                outcome.tally += &broken.tally;
                // Of several that were under way the first.
                if outcome.broken.as_ref().is_none_or(|other| broken.seed < other.seed) {
                    outcome.broken = Some(broken);
                }
            }
        }
    }

    /// A run that is broken off has said how far it came.
    fn report(&self, seed: u64, outcomes: &(u64, Vec<Outcome>)) {
        let sums: Vec<String> = outcomes
            .1
            .iter()
            .map(|one| format!("{} {} descriptors", one.kind.name(), one.tally.descriptors))
            .collect();
        let (seconds, end) = (self.start.elapsed().as_secs_f64(), self.chaos.end());
        output::tell(format_args!(
            "{} seeds, the last {seed} below {end}, {seconds:.0} s: {}",
            outcomes.0,
            sums.join(", ")
        ));
    }
}

fn one_seed(kind: Kind, shape: &Shape, options: &Options) -> Result<Tally, Box<Broken>> {
    chaos::run(options, &mut |seed| {
        let opened = kind.open_for_chaos(shape, seed);
        opened.map_err(|error| DeviceError::Unavailable {
            device: kind.name().to_owned(),
            reason: error.to_string(),
        })
    })
}

/// Everything that was counted, by device.
fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    let names = outcomes.iter().map(|outcome| outcome.kind.name().to_owned());
    table.set_header(std::iter::once("chaos".to_owned()).chain(names));
    let mut row = |name: &str, count: &dyn Fn(&Tally) -> u64| {
        let counts = outcomes.iter().map(|outcome| count(&outcome.tally).to_string());
        table.add_row(std::iter::once(name.to_owned()).chain(counts));
    };
    row("rounds", &|tally| tally.rounds);
    row("lives of queue pairs", &|tally| tally.lives);
    row("descriptors", &|tally| tally.descriptors);
    row("completions", &Tally::completed_total);
    row("lost to a bus error", &|tally| tally.lost);
    row("cancelled", &|tally| tally.cancelled);
    let names = |of: fn(&Tally) -> Vec<&'static str>| {
        let mut names: Vec<&str> = outcomes.iter().flat_map(|outcome| of(&outcome.tally)).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    for name in names(|tally| tally.completions.keys().copied().collect()) {
        row(&format!("completed as {name}"), &|tally| tally.completions.get(name).copied().unwrap_or(0));
    }
    for name in names(|tally| tally.disturbances.keys().copied().collect()) {
        row(&format!("drawn: {name}"), &|tally| tally.disturbances.get(name).copied().unwrap_or(0));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

fn verdict(outcome: &Outcome, chaos: &Chaos, wave: Option<&Path>) -> String {
    let name = outcome.kind.name();
    let Some(broken) = &outcome.broken else {
        let Tally { descriptors, lost, cancelled, .. } = outcome.tally;
        return format!(
            "{name}: every rule held: {descriptors} descriptors, {lost} lost to bus errors, {cancelled} cancelled, none doubled, \
             none wrong, nothing written outside, no hang\n"
        );
    };
    let Shape { workers, queues, functions, .. } = *chaos.shape(broken.seed);
    let mut text = format!(
        "{name}: {broken}\n  repeat it: doorbell compare --devices {name} --chaos {} --chaos-round {} --chaos-descriptors {} \
         --queues {queues} --functions {functions} --workers {workers}\n",
        broken.seed, broken.round, chaos.descriptors
    );
    if outcome.kind == Kind::Rtl {
        let path = wave.map_or_else(|| PathBuf::from("chaos.fst"), Path::to_owned);
        #[cfg(feature = "rtl")]
        let recording = match crate::output::Recording::open(&path) {
            Ok(recording) => recording,
            Err(failure) => return format!("{text}  waveform: none was recorded: {failure}\n"),
        };
        #[cfg(feature = "rtl")]
        let written = recording.path().to_owned();
        #[cfg(not(feature = "rtl"))]
        let written = path.clone();
        let shape = Shape { wave: Some(written), ..chaos.shape(broken.seed).clone() };
        let options = Options {
            seed: broken.seed,
            rounds: 1,
            first_round: broken.round,
            descriptors: chaos.descriptors,
        };
        text += &match one_seed(outcome.kind, &shape, &options) {
            Err(again) if again.violation == broken.violation => {
                #[cfg(feature = "rtl")]
                let finished = recording.finish();
                #[cfg(not(feature = "rtl"))]
                let finished = Ok::<(), Failure>(());
                match finished {
                    Ok(()) => format!("  waveform: {}\n", path.display()),
                    Err(failure) => format!("  waveform: none was recorded: {failure}\n"),
                }
            }
            _ => "  it could not be repeated for a waveform\n".to_owned(),
        };
    }
    text
}
