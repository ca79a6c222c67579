//! `doorbell compare --chaos SEED`: devices under everything that can go wrong.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use doorbell_devices::{Kind, Shape};
use doorbell_host::DeviceError;
use doorbell_verify::chaos::{self, Broken, Options, Tally};

use crate::failure::{DIFFERENT, Failure};
use crate::output;

/// What `compare --chaos` was asked for.
pub struct Chaos {
    pub seed: u64,
    pub seeds: u64,
    pub rounds: u32,
    pub first_round: u32,
    pub descriptors: u64,
    pub shape: Shape,
}

/// What came of one device.
struct Outcome {
    kind: Kind,
    tally: Tally,
    broken: Option<Box<Broken>>,
}

/// Runs the devices one after the other, and prints what was drawn and what came of it.
pub fn run(kinds: &[(Kind, bool)], chaos: &Chaos, wave: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut outcomes = Vec::new();
    let mut skipped = String::new();
    for &(kind, is_named) in kinds {
        match kind.open_for_chaos(&chaos.shape, 0) {
            Ok(_) => outcomes.push(of_device(kind, chaos)),
            Err(error) => match error.missing() {
                Some(reason) if !is_named => skipped += &format!("{}: skipped, {reason}\n", kind.name()),
                _ => return Err(error.into()),
            },
        }
    }
    if outcomes.is_empty() {
        return Err(Failure::unavailable(format!("there is no device to disturb: {skipped}")));
    }
    let mut text = table(&outcomes) + &skipped;
    for outcome in &outcomes {
        text += &verdict(outcome, chaos, wave);
    }
    output::print(&text)?;
    let holds = outcomes.iter().all(|outcome| outcome.broken.is_none());
    Ok(ExitCode::from(if holds { 0 } else { DIFFERENT }))
}

fn of_device(kind: Kind, chaos: &Chaos) -> Outcome {
    let mut tally = Tally::default();
    for seed in chaos.seed..chaos.seed.saturating_add(chaos.seeds) {
        let options = Options {
            seed,
            rounds: chaos.rounds,
            first_round: chaos.first_round,
            descriptors: chaos.descriptors,
        };
        match one_seed(kind, &chaos.shape, &options) {
            Ok(one) => tally += &one,
            Err(broken) => {
                tally += &broken.tally;
                return Outcome { kind, tally, broken: Some(broken) };
            }
        }
    }
    Outcome { kind, tally, broken: None }
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
    let Shape { workers, queues, functions, .. } = chaos.shape;
    let mut text = format!(
        "{name}: {broken}\n  repeat it: doorbell compare --devices {name} --chaos {} --chaos-round {} --chaos-descriptors {} \
         --queues {queues} --functions {functions} --workers {workers}\n",
        broken.seed, broken.round, chaos.descriptors
    );
    if outcome.kind == Kind::Rtl {
        let path = wave.map_or_else(|| PathBuf::from("chaos.fst"), Path::to_owned);
        let shape = Shape { wave: Some(path.clone()), ..chaos.shape.clone() };
        let options = Options {
            seed: broken.seed,
            rounds: 1,
            first_round: broken.round,
            descriptors: chaos.descriptors,
        };
        text += &match one_seed(outcome.kind, &shape, &options) {
            Err(again) if again.violation == broken.violation => format!("  waveform: {}\n", path.display()),
            _ => "  it could not be repeated for a waveform\n".to_owned(),
        };
    }
    text
}
