//! `cargo xtask lifecycle`: the tests of the Python package in `lifecycle/` against `doorbell serve`, plain and with each planted fault.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use doorbell_setup::{self as setup, shell};

use crate::test::FULL;

/// The package.
const PACKAGE: &str = "lifecycle";

#[derive(clap::Args, Default)]
pub struct Options {
    /// Every check against every fault, and every moment of a request
    #[arg(long)]
    long: bool,
    /// Only tests whose names match, as with pytest's -k
    #[arg(short, value_name = "EXPRESSION")]
    k: Option<String>,
}

/// Installs pytest where it is missing, builds the server, and runs the tests.
///
/// # Errors
/// When something cannot be installed, the server does not build, or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let package = root.join(PACKAGE);
    let python = setup::python(root, PACKAGE, &package.join("tests/requirements.txt"), None)?;
    // As the tests build it, so that nothing is built twice.
    let build = ["test", "--workspace", "--release", "--features", FULL, "--test", "serve", "--no-run"];
    shell::run(&mut shell::cargo(root, &build))?;
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]);
    command.args(options.long.then_some("--long"));
    command.args(options.k.iter().flat_map(|expression| ["-k", expression]));
    command.current_dir(package).env("PYTHONDONTWRITEBYTECODE", "1");
    shell::run(command.env("DOORBELL", setup::target(root).join("release/doorbell")))
}
