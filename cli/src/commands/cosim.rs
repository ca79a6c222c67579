//! `doorbell cosim`.

/// Runs the cases of the conformance suite on the RTL.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "cosim"), allow(dead_code, reason = "no simulated device is built"))]
pub struct Args {
    /// The cases; without one, all of them
    cases: Vec<String>,
    /// Names of the cases, without running them
    #[arg(long)]
    list: bool,
    /// Workers of the RTL
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
    /// Memory with random latency, stalls and order from this seed
    #[arg(long, value_name = "SEED")]
    memory: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "cosim")]
pub use suite::{Run, named, run, title};

#[cfg(feature = "cosim")]
mod suite {
    use std::path::PathBuf;
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use doorbell_cosim::{RtlConfig, RtlPlatform, Wave};
    use doorbell_host::{DeviceError, Platform};
    use doorbell_verify::conformance::{self, Bench, CASES, Case};
    use serde_json::json;

    use super::Args;
    use crate::failure::{DIFFERENT, Failure};
    use crate::{output, waveform};

    /// Prints a line per case; fails when one does.
    pub fn run(args: Args) -> Result<ExitCode, Failure> {
        let Args { cases: names, list, workers, memory, json } = args;
        let selected = if names.is_empty() {
            CASES.iter().collect()
        } else {
            names.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?
        };
        if list && json {
            let names: Vec<String> = selected.iter().map(|case| title(case)).collect();
            output::print_raw(&output::json(&json!({ "cases": names })))?;
            return Ok(ExitCode::SUCCESS);
        }
        if list {
            selected.iter().try_for_each(|case| output::print(&format!("{}\n", title(case))))?;
            return Ok(ExitCode::SUCCESS);
        }
        let (mut failed, mut told) = (0, vec![]);
        for case in &selected {
            let Run { outcome, cycles } = Run::of(case, workers, memory, None)?;
            if json {
                failed += usize::from(outcome.is_err());
                let problem = outcome.err().map(|error| error.to_string());
                told.push(json!({ "case": title(case), "passed": problem.is_none(), "cycles": cycles, "problem": problem }));
                continue;
            }
            let verdict = match &outcome {
                Ok(()) => "PASS".to_owned(),
                Err(error) => {
                    failed += 1;
                    format!("FAIL: {error}")
                }
            };
            output::print(&format!("RTL co-sim {}: {verdict}\n", title(case)))?;
            if outcome.is_err() {
                output::print(&record(case, workers, memory, cycles))?;
            }
        }
        let passed = selected.len() - failed;
        if json {
            output::print_raw(&output::json(&json!({ "cases": told, "passed": passed, "failed": failed })))?;
        } else {
            output::print(&format!("{passed} passed, {failed} failed\n"))?;
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
    }

    /// Repeats a case that failed, which a simulation does exactly, and records the cycles before its end; says where.
    fn record(case: &Case, workers: u32, memory: Option<u64>, cycles: u64) -> String {
        let file = PathBuf::from(format!("{}.fst", title(case).replace(' ', "-")));
        match waveform::record_end(&file, workers, cycles, |wave| {
            Run::of(case, workers, memory, Some(wave)).map(drop)
        }) {
            Ok(told) => told,
            Err(failure) => format!("waveform: {} was not recorded: {failure}\n", file.display()),
        }
    }

    /// What became of a case.
    pub struct Run {
        /// Whether it passed.
        pub outcome: Result<(), conformance::Failure>,
        /// Clock cycles of the last device that it made, which is the one that failed if one did.
        pub cycles: u64,
    }

    impl Run {
        /// Runs `case` on RTL with so many workers; `wave` is what to record of the last device that it makes.
        ///
        /// # Errors
        /// When no such device can be had.
        pub fn of(
            case: &Case,
            workers: u32,
            memory: Option<u64>,
            wave: Option<Wave>,
        ) -> Result<Run, Failure> {
            let plain = RtlConfig { workers, ..RtlConfig::default() };
            let config = memory.map_or(plain.clone(), |seed| plain.with_random_memory(seed));
            RtlPlatform::new(&config).map_err(DeviceError::from)?;
            let config = RtlConfig { wave, ..config };
            let mut clock = Arc::<AtomicU64>::default();
            let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
                let platform = RtlPlatform::new(&config)?;
                clock = platform.clock();
                Ok(Box::new(platform))
            };
            let outcome = Bench::new(&mut make, 1).run(case);
            Ok(Run { outcome, cycles: clock.load(Ordering::Relaxed) })
        }
    }

    /// The name that users read and type; they may type that of the code as well.
    pub fn title(case: &Case) -> String {
        case.name.replace('_', " ")
    }

    /// The case of this name.
    ///
    /// # Errors
    /// A usage failure that names those that may have been meant, one a line, or all of them. A case that is the only one to begin with
    /// the name is taken for it.
    pub fn named(name: &str) -> Result<&'static Case, Failure> {
        let wanted = name.trim().to_lowercase().replace('_', " ");
        let is = |case: &&Case| title(case) == wanted;
        let begins = |case: &&Case| title(case).starts_with(&wanted);
        if let Some(case) = CASES.iter().find(is) {
            return Ok(case);
        }
        let mut beginning = CASES.iter().filter(begins);
        if let (false, Some(case), None) = (wanted.is_empty(), beginning.next(), beginning.next()) {
            return Ok(case);
        }
        let titles: Vec<String> = CASES.iter().map(title).collect();
        let near = near(&wanted, &titles);
        let (what, shown) = match near.is_empty() {
            false => ("did you mean", near),
            true => ("the cases are", titles.iter().map(String::as_str).collect()),
        };
        let mut message = format!("unknown case '{name}'; {what}:\n");
        shown.iter().for_each(|title| message += &format!("  '{title}'\n"));
        Err(Failure::input(message + "`doorbell cosim --list` names all"))
    }

    /// The titles that `wanted` may stand for, the nearest first: those that have it in them, then those that differ from it in a few
    /// letters.
    fn near<'t>(wanted: &str, titles: &'t [String]) -> Vec<&'t str> {
        if wanted.is_empty() {
            return vec![];
        }
        let mut found: Vec<(usize, &str)> = titles
            .iter()
            .filter_map(|title| {
                let begins: String = title.chars().take(wanted.chars().count()).collect();
                let nearest = distance(wanted, title).min(distance(wanted, &begins));
                let distance = if title.contains(wanted) { 0 } else { nearest };
                // A third of the letters may be others.
                (3 * distance <= wanted.chars().count()).then_some((distance, title.as_str()))
            })
            .collect();
        found.sort_by_key(|(distance, _)| *distance);
        found.truncate(12);
        found.into_iter().map(|(_, title)| title).collect()
    }

    /// Letters to put in, leave out or change, to make one of the other.
    fn distance(one: &str, other: &str) -> usize {
        let other: Vec<char> = other.chars().collect();
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (line, letter) in one.chars().enumerate() {
            let mut before = row[0];
            row[0] = line + 1;
            for (column, &facing) in other.iter().enumerate() {
                let changed = before + usize::from(letter != facing);
                before = row[column + 1];
                row[column + 1] = changed.min(row[column] + 1).min(before + 1);
            }
        }
        row[other.len()]
    }
}

/// Without the simulated device there is nothing to run.
#[cfg(not(feature = "cosim"))]
pub fn run(_: Args) -> Result<std::process::ExitCode, crate::failure::Failure> {
    Err(crate::failure::Failure::unavailable("rtl is not part of this build; build with the feature 'cosim'"))
}
