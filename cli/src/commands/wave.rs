//! `doorbell wave`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;

/// Records a case of the co-simulation, every signal in every cycle, for GTKWave or Surfer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The case
    #[arg(default_value = "basic decode")]
    #[cfg_attr(not(feature = "rtl"), allow(dead_code, reason = "no simulated device is built"))]
    case: String,
    /// File to write, in FST format
    #[arg(long, value_name = "FILE.fst")]
    #[cfg_attr(not(feature = "rtl"), allow(dead_code, reason = "no simulated device is built"))]
    out: PathBuf,
    /// Workers of the RTL; without it, the case's own number
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    #[cfg_attr(not(feature = "rtl"), allow(dead_code, reason = "no simulated device is built"))]
    workers: Option<u32>,
}

/// Runs the case. One that fails is recorded up to the failure.
#[cfg(feature = "rtl")]
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    use doorbell_cosim::Wave;
    use doorbell_cosim::cases::{CaseError, CaseOptions};
    use doorbell_host::DeviceError;

    use super::cosim::named;
    use crate::failure::DIFFERENT;
    use crate::output::{self, Output};

    let Args { case: name, out, workers } = args;
    let case = named(&name)?;
    if workers.is_some() && !case.is_portable() {
        return Err(Failure::input(format!(
            "case '{name}' holds for its own device alone: run it without --workers"
        )));
    }
    let file = Output::open("waveform", &out)?;
    let wave = Some(Wave { path: out.clone(), window: None });
    let outcome = case.run(&CaseOptions { workers, wave, ..Default::default() });
    if let Err(CaseError::Device(error @ DeviceError::Unavailable { .. })) = outcome {
        return Err(error.into());
    }
    file.keep();
    let out = out.display();
    match outcome {
        Ok(cycles) => {
            output::print(&format!("{out}: {cycles} cycles of case '{name}'\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("error: case '{name}' failed: {error}\n{out} shows it up to the failure");
            Ok(ExitCode::from(DIFFERENT))
        }
    }
}

/// Without the simulated device there is nothing to record.
#[cfg(not(feature = "rtl"))]
pub fn run(_: Args) -> Result<ExitCode, Failure> {
    Err(Failure::unavailable("rtl is not part of this build; build with the feature 'rtl'"))
}
