//! `doorbell-setup [--check] [--wave] [--perf] [--guest] [--gpu] [--cocotb] [-- COMMAND …]`: installs what is missing, while COMMAND runs.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

use doorbell_setup::{Options, run, run_beside};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
    let mut options = Options::default();
    let mut words = env::args_os().skip(1);
    let result = loop {
        let Some(word) = words.next() else { break run(root, options).map(|()| ExitCode::SUCCESS) };
        match word.to_str() {
            Some("--check") => options.check = true,
            Some("--wave") => options.wave = true,
            Some("--perf") => options.perf = true,
            Some("--guest") => options.guest = true,
            Some("--gpu") => options.gpu = true,
            Some("--cocotb") => options.cocotb = true,
            Some("--") => match words.next() {
                Some(program) => break run_beside(root, options, Command::new(program).args(words)),
                None => break run(root, options).map(|()| ExitCode::SUCCESS),
            },
            _ => {
                eprintln!(
                    "usage: doorbell-setup [--check] [--wave] [--perf] [--guest] [--gpu] [--cocotb] [-- COMMAND …]"
                );
                return ExitCode::from(2);
            }
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
