//! `cargo xtask cosim` and `compare`: the program `doorbell`, built and run.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use doorbell_setup::shell;

/// What `compare` needs of the program; the rest takes several times as long to build. The Makefile says the same.
const COMPARE: [&str; 3] = ["--no-default-features", "--features", "rtl,gpu"];

/// Builds `doorbell` and runs `doorbell <subcommand> <args>`; its exit code is the result.
///
/// # Errors
/// When cargo cannot be started.
pub fn forward(root: &Path, subcommand: &str, args: &[String]) -> Result<ExitCode> {
    shell::forward(&mut command(root, subcommand, args))
}

/// Runs where the caller stands: paths in `args` are relative to that.
fn command(root: &Path, subcommand: &str, args: &[String]) -> Command {
    let mut command = shell::cargo(Path::new("."), &["run", "--release", "--package", "doorbell"]);
    if subcommand == "compare" {
        command.args(COMPARE);
    }
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).args(["--", subcommand]).args(args);
    command
}
