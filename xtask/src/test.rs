//! `cargo xtask test` and `ci`: what decides whether a change may go in.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::seeds::Start;
use crate::steps::{Beside, Steps};
use crate::{clients, contract, drawn, formal, gpu_check, lint, perf, rtl_test, tsan, vm};
use doorbell_setup::nvcc::Places;
use doorbell_setup::{self as setup, shell};

/// What the tests need, but for cocotb: that is installed in its own step, which alone fails without PyPI.
const TOOLS: setup::Options =
    setup::Options { check: false, wave: false, perf: true, guest: false, gpu: true, cocotb: false };

/// What `test` draws.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Only the random tests, each over 200 seeds, and longer runs of those that have some; `test` without it draws from the committed seed
    #[arg(long)]
    long: bool,
    /// Without the testbenches
    #[arg(long, requires = "long")]
    rust: bool,
    /// Only the tests of this package, by its folder, as in `--package vfio`; without the testbenches
    #[arg(long, value_name = "FOLDER", requires = "long")]
    package: Option<String>,
    #[command(flatten)]
    start: Start,
}

/// Installs what is missing, then runs every test.
///
/// # Errors
/// When something cannot be installed or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(
        options.long || !options.start.is_given(),
        "`test` draws from committed seeds: --seed and --fresh go with --long, as in `cargo xtask test --long --fresh`"
    );
    let guest = !options.long && vm::needs_keys(root)?;
    setup::run(root, setup::Options { guest, ..TOOLS })?;
    if options.long {
        let which = drawn::Which { only_rust: options.rust, package: options.package.as_deref() };
        return drawn::long(root, options.start.first(), which);
    }
    let mut steps = Steps::new("test").with_purposes(&PURPOSES);
    steps.run("contract", || contract::run(root, true));
    steps.run("testbenches", || rtl_test::run(root, &rtl_test::Options::default()));
    // Steps that leave a core idle for a part of their time run beside others.
    let cocotb = beside(root, "cocotb");
    steps.run("formal", || formal::run(root, &formal::Options::default()));
    steps.end(cocotb);
    steps.run("cargo test: build", || {
        shell::run(&mut shell::cargo(root, &[&WORKSPACE[..], &["--no-run"]].concat()))
    });
    // The build compiles the kernels beside everything else, and this judges what came of it.
    let without_gpu = Places::this().is_off();
    if without_gpu {
        steps.skip("gpu-check", "DOORBELL_CUDA is off");
    } else {
        steps.run("gpu-check", || gpu_check::kernels(root));
    }
    steps.run("cargo test", || cargo_test(root));
    let lifecycle = beside(root, "lifecycle");
    steps.run_or_skip("guest", || vm::short(root));
    steps.run("clients", || clients::run(root, &clients::Options::default()));
    steps.run_or_skip("perf", || perf::run(root, &perf::Options::default()));
    if !without_gpu {
        gpu_check::nvrtc(root, &mut steps);
    }
    steps.end(lifecycle);
    match tsan::missing() {
        Some(reason) => steps.skip("tsan", reason),
        None => steps.run("tsan", || tsan::run(root, tsan::Cases::Short)),
    }
    steps.finish()
}

/// Begins `cargo xtask NAME` beside the steps that follow.
fn beside(root: &Path, name: &'static str) -> Beside {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "cargo-xtask".into()));
    command.arg(name).current_dir(root);
    Beside::start(name, command)
}

/// What each step of `test` is for; docs/testing.md says it too, with what the step costs.
const PURPOSES: [(&str, &str); 13] = [
    ("contract", "generated files are the contract's"),
    (
        "testbenches",
        "the RTL, by benches of its own language that share nothing with the Rust side but the contract",
    ),
    ("formal", "no wake-up is lost, and eight further properties, for every order of small blocks"),
    ("cocotb", "the RTL as an integrator sees it, from Python, on two simulators"),
    (
        "cargo test: build",
        "the devices verilated and compiled, the GPU's kernels, and every program of tests",
    ),
    ("gpu-check", "the kernels compile, spill no register and fence each proxy"),
    (
        "cargo test",
        "every Rust test, including the conformance suite on golden model, RTL and the kernel's text",
    ),
    ("guest", "a Debian guest under QEMU drives the RTL over its kernel's vfio-pci, by polling and by MSI-X"),
    ("clients", "shipped clients of RL stacks drive the server unchanged"),
    (
        "lifecycle",
        "a suite for rollout servers passes `doorbell serve`, and names each fault that is planted in it",
    ),
    ("perf", "no fixed workload takes 2 % more instructions than its committed count"),
    ("NVRTC", "the kernels compile at run time too"),
    ("tsan", "ThreadSanitizer finds no data race in the kernel's text, and reports a weakened kernel"),
];

/// Every test of the workspace.
const WORKSPACE: [&str; 5] = ["test", "--workspace", "--release", "--features", FULL];
/// Every command of the program `doorbell`. Each step that builds the workspace says so, as cargo builds anew what has other features.
pub const FULL: &str = "doorbell/full";
/// Programs of tests that take longer than this are listed.
const SLOW: Duration = Duration::from_secs(5);

/// Every test of the workspace, and a list of the programs that took longest; the error names those that failed, which by then lie thousands of lines back.
fn cargo_test(root: &Path) -> Result<()> {
    let mut command = shell::cargo(root, &[&WORKSPACE[..], &["--no-fail-fast"]].concat());
    println!("$ {}", shell::shown(&command));
    // Cargo names each program on its standard error, just before the program prints: the two must stay in order.
    let (output, errors) = std::io::pipe().context("cannot make a pipe")?;
    command.stdout(errors.try_clone().context("cannot share a pipe")?).stderr(errors);
    let mut child = command.spawn().context("cannot run cargo")?;
    let shown = shell::shown(&command);
    // It holds the pipe open too.
    drop(command);
    let mut failed = Vec::new();
    let mut programs: Vec<(String, Instant)> = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read what cargo prints")?;
        println!("{line}");
        failed.extend(failed_test(&line).map(str::to_owned));
        programs.extend(program(&line).map(|name| (name.to_owned(), Instant::now())));
    }
    let status = child.wait()?;
    print_slow(&programs, Instant::now());
    ensure!(
        status.success(),
        "`{}` ended with {status}; failed: {}",
        shown,
        if failed.is_empty() { "no test, see above".to_owned() } else { failed.join(", ") }
    );
    Ok(())
}

/// The program of tests that this line of cargo's says is run.
fn program(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests "))
}

/// Prints the programs that took longer than [`SLOW`], each with the moment when it began; the last one ended at `end`.
fn print_slow(programs: &[(String, Instant)], end: Instant) {
    let ends = programs.iter().skip(1).map(|(_, start)| *start).chain([end]);
    let took = programs.iter().zip(ends).map(|((name, start), end)| (end.duration_since(*start), name));
    let mut slow: Vec<(Duration, &String)> = took.filter(|(took, _)| *took > SLOW).collect();
    slow.sort_unstable_by(|one, other| other.cmp(one));
    println!("\nPrograms of tests that took more than {} s:", SLOW.as_secs());
    slow.iter().for_each(|(took, name)| println!("{:>7.1} s  {name}", took.as_secs_f64()));
}

/// The test that this line of a test runner says has failed.
fn failed_test(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("test ")?.rsplit_once(" ... FAILED")?;
    Some(name.trim_end())
}

/// The models under loom alone; `cargo test` runs them as well.
///
/// # Errors
/// When one of them fails.
pub fn loom(root: &Path) -> Result<()> {
    for (package, test) in [("doorbell-gpu", "protocol"), ("doorbell-nic", "loom")] {
        let test = ["test", "--release", "--package", package, "--test", test];
        shell::run(&mut shell::cargo(root, &test))?;
    }
    Ok(())
}

/// Lints and tests.
///
/// # Errors
/// As [`lint::run`] and [`run`].
pub fn ci(root: &Path) -> Result<()> {
    setup::run(root, TOOLS)?;
    let mut steps = Steps::new("ci");
    steps.run("lint", || lint::run(root));
    steps.run("test", || run(root, &Options::default()));
    steps.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_without_the_long_draw_is_refused() {
        let options = Options { start: Start::at(7), ..Options::default() };
        let error = run(Path::new("nowhere"), &options).unwrap_err().to_string();
        assert!(error.contains("--long"), "{error}");
    }

    #[test]
    fn the_page_of_tests_has_each_step_with_its_purpose() {
        let page = include_str!("../../docs/testing.md");
        for (step, purpose) in PURPOSES {
            let is_row = |line: &str| {
                line.starts_with(&format!("| {step} | ")) && line.ends_with(&format!(" | {purpose} |"))
            };
            assert!(page.lines().any(is_row), "docs/testing.md has no row of the step {step}: {purpose}");
        }
    }

    #[test]
    fn a_program_of_tests_is_known_by_cargos_line() {
        let line = "     Running tests/run.rs (target/release/deps/run-3fd679bc9788adc4)";
        assert_eq!(program(line), Some("tests/run.rs (target/release/deps/run-3fd679bc9788adc4)"));
        assert_eq!(program("   Doc-tests doorbell_lm"), Some("doorbell_lm"));
        assert_eq!(program("running 3 tests"), None);
    }

    #[test]
    fn a_failed_test_is_known_by_its_line() {
        // As the standard runner prints it, and as libtest-mimic does.
        assert_eq!(failed_test("test events::tests::a ... FAILED"), Some("events::tests::a"));
        assert_eq!(
            failed_test("test r05 on the last of 3, weak       ... FAILED"),
            Some("r05 on the last of 3, weak")
        );
        assert_eq!(failed_test("test events::tests::a ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed; 1 failed"), None);
    }
}
