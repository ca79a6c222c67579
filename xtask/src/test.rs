//! `cargo xtask test` and `ci`: what decides whether a change may go in.

use std::path::Path;

use anyhow::Result;

use crate::steps::Steps;
use crate::{contract, gpu_check, lint, rtl_test, tsan};
use doorbell_setup::nvcc::Places;
use doorbell_setup::{self as setup, shell};

/// What the tests need.
const TOOLS: setup::Options = setup::Options { check: false, wave: false, gpu: true };

/// Installs what is missing, then runs every test.
///
/// # Errors
/// When something cannot be installed or a test fails.
pub fn run(root: &Path) -> Result<()> {
    setup::run(root, TOOLS)?;
    let mut steps = Steps::new("test");
    steps.run("contract", || contract::run(root, true));
    steps.run("testbenches", || rtl_test::run(root, &rtl_test::Options::default()));
    if Places::this().is_off() {
        steps.skip("gpu-check", "DOORBELL_CUDA is off");
    } else {
        steps.run("gpu-check", || gpu_check::run(root));
    }
    steps.run("cargo test", || {
        shell::run(&mut shell::cargo(root, &["test", "--workspace", "--release", "--no-fail-fast"]))
    });
    match tsan::missing() {
        Some(reason) => steps.skip("tsan", reason),
        None => steps.run("tsan", || tsan::run(root)),
    }
    steps.finish()
}

/// The models under loom alone; `cargo test` runs them as well.
///
/// # Errors
/// When one of them fails.
pub fn loom(root: &Path) -> Result<()> {
    let test = ["test", "--release", "--package", "doorbell-gpu", "--test", "protocol"];
    shell::run(&mut shell::cargo(root, &test))
}

/// Lints and tests.
///
/// # Errors
/// As [`lint::run`] and [`run`].
pub fn ci(root: &Path) -> Result<()> {
    setup::run(root, TOOLS)?;
    let mut steps = Steps::new("ci");
    steps.run("lint", || lint::run(root));
    steps.run("test", || run(root));
    steps.finish()
}
