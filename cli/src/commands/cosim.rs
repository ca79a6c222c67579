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
}

#[cfg(feature = "cosim")]
pub use suite::{Run, named, run, title};

#[cfg(feature = "cosim")]
mod suite {
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use doorbell_cosim::{RtlConfig, RtlPlatform, Wave};
    use doorbell_host::{DeviceError, Platform};
    use doorbell_verify::conformance::{self, Bench, CASES, Case};

    use super::Args;
    use crate::failure::{DIFFERENT, Failure};
    use crate::output;

    /// Prints a line per case; fails when one does.
    pub fn run(args: Args) -> Result<ExitCode, Failure> {
        let Args { cases: names, list, workers, memory } = args;
        let selected = if names.is_empty() {
            CASES.iter().collect()
        } else {
            names.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?
        };
        if list {
            selected.iter().try_for_each(|case| output::print(&format!("{}\n", title(case))))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut failed = 0;
        for case in &selected {
            let verdict = match Run::of(case, workers, memory, None)?.outcome {
                Ok(()) => "PASS".to_owned(),
                Err(error) => {
                    failed += 1;
                    format!("FAIL: {error}")
                }
            };
            output::print(&format!("RTL co-sim {}: {verdict}\n", title(case)))?;
        }
        output::print(&format!("{} passed, {failed} failed\n", selected.len() - failed))?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
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
    /// A usage failure that names the known ones.
    pub fn named(name: &str) -> Result<&'static Case, Failure> {
        let wanted = name.replace('_', " ");
        CASES.iter().find(|case| title(case) == wanted).ok_or_else(|| {
            let known: Vec<String> = CASES.iter().map(|case| format!("'{}'", title(case))).collect();
            Failure::input(format!("unknown case '{name}'; known cases: {}", known.join(", ")))
        })
    }
}

/// Without the simulated device there is nothing to run.
#[cfg(not(feature = "cosim"))]
pub fn run(_: Args) -> Result<std::process::ExitCode, crate::failure::Failure> {
    Err(crate::failure::Failure::unavailable("rtl is not part of this build; build with the feature 'cosim'"))
}
