//! `doorbell wave`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;

/// Records a case of the conformance suite on the RTL, every signal in every cycle, for GTKWave or Surfer. Of a case that
/// makes several devices, the last.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "cosim"), allow(dead_code, reason = "no simulated device is built"))]
pub struct Args {
    /// The case
    #[arg(default_value = "basic decode")]
    case: String,
    /// File to write, in FST format
    #[arg(long, value_name = "FILE.fst")]
    out: PathBuf,
    /// Workers of the RTL
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
}

/// Runs the case. One that fails is recorded up to the failure.
#[cfg(feature = "cosim")]
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    use doorbell_cosim::Wave;

    use super::cosim::{Run, named, title};
    use crate::failure::DIFFERENT;
    use crate::output::{self, Output};

    let Args { case, out, workers } = args;
    let case = named(&case)?;
    let file = Output::open("waveform", &out)?;
    let Run { outcome, cycles } =
        Run::of(case, workers, None, Some(Wave { path: out.clone(), window: None }))?;
    file.keep();
    let (out, name) = (out.display(), title(case));
    match outcome {
        Ok(()) => {
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
#[cfg(not(feature = "cosim"))]
pub fn run(_: Args) -> Result<ExitCode, Failure> {
    Err(Failure::unavailable("rtl is not part of this build; build with the feature 'cosim'"))
}
