//! `cargo xtask cosim` and `compare`: the program `doorbell`, built and run.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use doorbell_setup::shell;

/// What `compare` needs of the program; the rest takes several times as long to build. The Makefile says the same.
const COMPARE: [&str; 3] = ["--no-default-features", "--features", "rtl,gpu"];
/// With several queue pairs, the RTL that has them too.
const COMPARE_SEVERAL: [&str; 3] = ["--no-default-features", "--features", "rtl,gpu,doorbell-cosim/variants"];

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
        let several = args.iter().any(|arg| arg.contains("queues") || arg.contains("chaos"));
        command.args(if several { COMPARE_SEVERAL } else { COMPARE });
    }
    command.arg("--manifest-path").arg(root.join("Cargo.toml")).args(["--", subcommand]).args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_of_several_queue_pairs_builds_the_rtl_that_has_them() {
        let features = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let command = command(Path::new("."), "compare", &args);
            command.get_args().any(|arg| arg == "rtl,gpu,doorbell-cosim/variants")
        };
        assert!(!features(&["--trace", "x.jsonl"]));
        assert!(features(&["--queues", "4"]) && features(&["--queues=4"]));
        assert!(features(&["--devices", "model,rtl:queues=4"]));
        assert!(features(&["--chaos", "7"]));
    }
}
