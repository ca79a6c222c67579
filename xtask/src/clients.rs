//! `cargo xtask clients`: clients of RL stacks, from PyPI, against `doorbell serve`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use doorbell_setup::{self as setup, shell};

use crate::test::FULL;

/// Where the tests are.
const TESTS: &str = "serve/clients";

#[derive(clap::Args)]
pub struct Options {
    /// The device of the server: model, rtl or gpu
    #[arg(long, default_value = "model")]
    device: String,
}

impl Default for Options {
    fn default() -> Options {
        Options { device: "model".into() }
    }
}

/// Installs the clients where they are missing, builds the server, and runs the tests.
///
/// # Errors
/// When they cannot be installed, the server does not build, or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let tests = root.join(TESTS);
    let python =
        setup::python(root, "clients", &tests.join("requirements.txt"), Some(&tests.join("packages.txt")))?;
    // As the tests build them, so that nothing is built twice: the program, and the C library for a test of its own.
    let build = [
        "test",
        "--workspace",
        "--release",
        "--features",
        FULL,
        "--test",
        "serve",
        "--test",
        "c",
        "--no-run",
    ];
    shell::run(&mut shell::cargo(root, &build))?;
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-W", "ignore"]);
    command.current_dir(tests).env("PYTHONDONTWRITEBYTECODE", "1");
    let built = setup::target(root).join("release");
    command
        .env("DOORBELL", built.join("doorbell"))
        .env("DOORBELL_LIBRARY", built.join("deps/libdoorbell.so"))
        .env("DOORBELL_DEVICE", &options.device);
    shell::run(&mut command)
}
