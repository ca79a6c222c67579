//! `doorbell cosim`.

use std::process::ExitCode;

use crate::failure::Failure;

/// Runs the named cases of the co-simulation: the RTL behind the driver, held to the contract.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "rtl"), allow(dead_code, reason = "no simulated device is built"))]
pub struct Args {
    /// The cases; without one, all of them
    cases: Vec<String>,
    /// Names and subjects of the cases, without running them
    #[arg(long)]
    list: bool,
    /// Workers of the RTL; cases that need their own device keep it
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: Option<u32>,
    /// Memory with random latency, stalls and order from this seed; cases that need their own memory keep it
    #[arg(long, value_name = "SEED")]
    memory: Option<u64>,
}

/// Prints a line per case; fails when one does.
#[cfg(feature = "rtl")]
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    use doorbell_cosim::cases::{CASES, CaseOptions};

    use crate::failure::DIFFERENT;
    use crate::output;

    let Args { cases: names, list, workers, memory } = args;
    let selected = if names.is_empty() {
        CASES.iter().collect()
    } else {
        names.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?
    };
    if list {
        for case in selected {
            output::print(&format!("{:<32} {}\n", case.name, case.about))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut failed = 0;
    for case in &selected {
        let verdict = match case.run(&CaseOptions { workers, memory_seed: memory, ..Default::default() }) {
            Ok(_) => "PASS".to_owned(),
            Err(error) => {
                failed += 1;
                format!("FAIL: {error}")
            }
        };
        output::print(&format!("RTL co-sim {}: {verdict}\n", case.name))?;
    }
    output::print(&format!("{} passed, {failed} failed\n", selected.len() - failed))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// The case of this name.
///
/// # Errors
/// A usage failure that names the known ones.
#[cfg(feature = "rtl")]
pub fn named(name: &str) -> Result<&'static doorbell_cosim::cases::Case, Failure> {
    use doorbell_cosim::cases::{CASES, find};

    find(name).ok_or_else(|| {
        let known: Vec<String> = CASES.iter().map(|case| format!("'{}'", case.name)).collect();
        Failure::input(format!("unknown case '{name}'; known cases: {}", known.join(", ")))
    })
}

/// Without the simulated device there is nothing to run.
#[cfg(not(feature = "rtl"))]
pub fn run(_: Args) -> Result<ExitCode, Failure> {
    Err(Failure::unavailable("rtl is not part of this build; build with the feature 'rtl'"))
}
