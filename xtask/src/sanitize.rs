//! `cargo xtask sanitize`: engine 1's kernels under NVIDIA's compute-sanitizer, on a GPU.
//!
//! The persistent kernel never ends, and tells its warps apart by orders that the tools do not know. So what runs here are probes: the same
//! text without queues, a prompt and a few tokens, which end.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::steps::Steps;
use crate::test::FULL;
use doorbell_setup::shell;

/// The exit code of a tool that found something: none that a test runner has.
const FOUND: &str = "86";

/// What runs under which tool.
#[derive(clap::Args)]
pub struct Options {
    /// Tools to run, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_value = "memcheck,racecheck,synccheck")]
    tools: Vec<Tool>,
    /// Tests of gpu/tests/language_arithmetic.rs to run, by the beginning of their names
    #[arg(default_value = "micro_is_the_oracles")]
    tests: Vec<String>,
}

/// A tool of compute-sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Tool {
    /// Accesses outside of what is allocated
    Memcheck,
    /// Words of shared memory that are not ordered by barriers
    Racecheck,
    /// Barriers that not all threads reach
    Synccheck,
    /// Device memory that is read and was never written
    Initcheck,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
            Self::Synccheck => "synccheck",
            Self::Initcheck => "initcheck",
        }
    }
}

/// Runs the tests under each tool.
///
/// # Errors
/// When there is no compute-sanitizer, a tool finds something, or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let program = find(&shell::path())?;
    let mut build = shell::cargo(root, &TEST);
    shell::run(build.arg("--no-run"))?;
    let mut steps = Steps::new("sanitize");
    for tool in &options.tools {
        steps.run(tool.name(), || shell::run(&mut under(&program, root, *tool, &options.tests)));
    }
    steps.finish()
}

/// As `cargo test` of the workspace has built it.
const TEST: [&str; 7] =
    ["test", "--release", "--workspace", "--features", FULL, "--test", "language_arithmetic"];

fn find(path: &OsStr) -> Result<std::path::PathBuf> {
    shell::find("compute-sanitizer", path).context(
        "there is no compute-sanitizer in PATH: it comes with the CUDA toolkit, in its folder `bin` or `compute-sanitizer`",
    )
}

/// Cargo, and so the program of tests, under a tool.
fn under(program: &Path, root: &Path, tool: Tool, tests: &[String]) -> Command {
    let cargo = shell::cargo(root, &TEST);
    let mut command = Command::new(program);
    command.current_dir(root).args([
        "--target-processes",
        "all",
        "--error-exitcode",
        FOUND,
        "--tool",
        tool.name(),
    ]);
    command.arg(cargo.get_program()).args(cargo.get_args()).args(["--", "--test-threads", "1"]).args(tests);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::fake;

    #[test]
    fn a_machine_without_the_tool_is_told_where_it_comes_from() {
        let error = find(OsStr::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("CUDA toolkit"), "{error}");
    }

    #[test]
    fn each_tool_runs_the_tests_and_what_it_finds_fails() {
        let dir = tempfile::tempdir().unwrap();
        fake(
            dir.path(),
            "compute-sanitizer",
            "echo \"$@\" >> \"$0.log\"; case \"$*\" in *racecheck*) exit 86;; esac",
        );
        let program = dir.path().join("compute-sanitizer");
        let tests = ["micro_is_the_oracles".to_owned()];
        let ran = [Tool::Memcheck, Tool::Racecheck]
            .map(|tool| shell::run(&mut under(&program, dir.path(), tool, &tests)).is_ok());
        assert_eq!(ran, [true, false]);
        let log = std::fs::read_to_string(dir.path().join("compute-sanitizer.log")).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert!(
            lines[0].contains("--tool memcheck")
                && lines[0].ends_with("--test-threads 1 micro_is_the_oracles"),
            "{log}"
        );
        assert!(
            lines[1].contains("--tool racecheck") && lines[1].contains("--test language_arithmetic"),
            "{log}"
        );
    }
}
