//! `cargo xtask cosim` and `compare`: the program `doorbell`, built and run.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::shell;

/// Builds `doorbell` and runs `doorbell <subcommand> <args>`; its exit code is the result.
///
/// # Errors
/// When cargo cannot be started.
pub fn forward(root: &Path, subcommand: &str, args: &[String]) -> Result<ExitCode> {
    shell::forward(&mut command(root, subcommand, args))
}

/// As [`forward`], as a step that passes or fails.
///
/// # Errors
/// When cargo cannot be started or the exit code is not 0.
pub fn run(root: &Path, subcommand: &str, args: &[String]) -> Result<()> {
    shell::run(&mut command(root, subcommand, args))
}

/// Runs where the caller stands: paths in `args` are relative to that.
fn command(root: &Path, subcommand: &str, args: &[String]) -> Command {
    let mut command = shell::cargo(Path::new("."), &["run", "--release", "--package", "doorbell"]);
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).args(["--", subcommand]).args(args);
    command
}
