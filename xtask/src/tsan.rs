//! `cargo xtask tsan`: the text of the GPU's kernel under ThreadSanitizer.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::test::FULL;
use doorbell_setup::shell;

/// A test of a kernel in which no release orders anything: ThreadSanitizer has to report it.
const WEAKENED_KERNEL: &str = "weakened";

/// Cases in which front ends talk to each other. The others of several queue pairs take minutes each.
const BETWEEN_QUEUE_PAIRS: [&str; 5] = [
    "r12_resets_under_load_lose_nothing_of_others",
    "r18_a_version_is_of_its_function_alone",
    "r19_a_slot_in_use_by_another_queue_pair_is_not_loaded",
    "r20_a_publish_ends_the_decodes_of_all_queue_pairs",
    "r21_a_publish_reaches_the_groups_of_all_queue_pairs",
];

/// At most so many processes share the cases: a case has five threads and more of its own.
const PARTS: usize = 8;

/// Why it cannot run here, if it cannot.
pub fn missing() -> Option<&'static str> {
    let here = cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"));
    (!here).then_some("ThreadSanitizer is run on x86-64 Linux with glibc alone")
}

/// How much of the conformance suite runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cases {
    /// Each case once: on the last of three queue pairs, interrupted at random.
    Short,
    /// Each case also alone on its kernel, at the pace at which `cargo test` runs it without ThreadSanitizer; a POLICY
    /// beside rollouts and at the end of a session (`publish_race`); and steps and prompts of language models of many
    /// shapes (`language_arithmetic`).
    All,
}

/// Runs the conformance suite on the kernel's text under ThreadSanitizer, clean, and then the weakened kernel, which it
/// must report.
///
/// # Errors
/// When it cannot run here, finds a race, or does not find the one in the weakened kernel.
pub fn run(root: &Path, cases: Cases) -> Result<()> {
    if let Some(reason) = missing() {
        bail!("cannot run ThreadSanitizer: {reason}");
    }
    // The host's side is not instrumented, and shares nothing but atomics with the kernel.
    if cases == Cases::All {
        in_parts(root, &["of 1, calm"])?;
        shell::run(&mut instrumented(root, "publish_race", &[]))?;
        shell::run(&mut instrumented(root, "language_arithmetic", &["models_of_any_shape"]))?;
    }
    // Threads of the CPU post into the NIC's send ring; the test finds its own planted mistake.
    shell::run(&mut instrumented(root, "nic_race", &[]))?;
    in_parts(root, &["of 3, stress"])?;
    for case in BETWEEN_QUEUE_PAIRS {
        shell::run(&mut instrumented(
            root,
            "kernel",
            &["--exact", &format!("{case} of 4 queue pairs, calm")],
        ))?;
    }
    let mut command = instrumented(root, "kernel", &["--ignored", "--exact", WEAKENED_KERNEL]);
    println!("$ {}   (must be reported)", shell::shown(&command));
    let output = command.output().context("cannot run cargo")?;
    reported(WEAKENED_KERNEL, output.status.success(), &String::from_utf8_lossy(&output.stderr))
}

/// The cases that `filter` picks, shared by as many processes as there are cores: each runs one case at a time.
fn in_parts(root: &Path, filter: &[&str]) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(PARTS);
    // Compiled once, before the first of them runs.
    shell::run(instrumented(root, "kernel", &["--list"]).stdout(Stdio::null()))?;
    let ended = std::thread::scope(|scope| {
        let parts = (0..cores).map(|part| {
            scope.spawn(move || {
                let mut command = instrumented(root, "kernel", filter);
                let output = command.env("DOORBELL_PART", format!("{part}/{cores}")).output();
                (shell::shown(&command), output)
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().expect("a thread that only waits")).collect::<Vec<_>>()
    });
    for (shown, output) in ended {
        let output = output.with_context(|| format!("cannot run {shown}"))?;
        println!("$ {shown}\n{}", String::from_utf8_lossy(&output.stdout));
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{shown} ended with {}:\n{errors}", output.status);
    }
    Ok(())
}

/// A test program of the kernel's text, instrumented, with these arguments of its own. Built as a test of the
/// workspace, whose other tests have compiled most of it: for its package alone cargo would choose other features. One case
/// at a time: with two, ThreadSanitizer reports the channel between the runner's threads, which are not instrumented.
fn instrumented(root: &Path, test: &str, args: &[&str]) -> Command {
    let test =
        ["test", "--release", "--workspace", "--features", FULL, "--test", test, "--", "--test-threads", "1"];
    let mut command = shell::cargo(root, &test);
    command.args(args).env("DOORBELL_KERNEL_TSAN", "1").env("TSAN_OPTIONS", "halt_on_error=1");
    command
}

/// # Errors
/// When the weakened kernel's test passed, or failed of anything but a data race.
fn reported(test: &str, passed: bool, stderr: &str) -> Result<()> {
    ensure!(!passed, "ThreadSanitizer did not report {test}: it would not see a race in the kernel either");
    ensure!(
        stderr.contains("WARNING: ThreadSanitizer: data race"),
        "{test} failed, but of no data race:\n{stderr}"
    );
    println!("{test}: reported as a data race");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_data_race_counts_as_reported() {
        let race = "WARNING: ThreadSanitizer: data race (pid=1)";
        assert!(reported("t", false, race).is_ok());
        assert!(reported("t", true, race).unwrap_err().to_string().contains("did not report t"));
        let error = reported("t", false, "error: could not compile").unwrap_err().to_string();
        assert!(error.contains("of no data race") && error.contains("could not compile"), "{error}");
    }
}
