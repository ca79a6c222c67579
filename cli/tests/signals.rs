//! SIGINT and SIGTERM end a run in order.
#![cfg(feature = "runtime")]

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use common::doorbell;
use rstest::rstest;
use serde_json::Value;

/// Nothing more is admitted, what decodes is aborted, what has ended is stored, and the report is told; then the program exits with the signal's code.
#[rstest]
#[case::hash("-INT", 130, "--group 4 --checkpoint 16")]
#[case::hash("-TERM", 143, "--judges 2 --judge-delay 200")]
#[case::language("-TERM", 143, "--model micro --group 2")]
fn a_signal_ends_a_run_in_order(#[case] signal: &str, #[case] code: i32, #[case] args: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(cargo_bin("doorbell"));
    command.args("run --json - --repeat 1000000 --store log".split(' ')).args(args.split(' '));
    command.current_dir(directory.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    let log = directory.path().join("log");
    let since = Instant::now();
    let size = || {
        let files = std::fs::read_dir(&log).into_iter().flatten();
        files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum::<u64>()
    };
    while size() < 1 << 14 {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing is stored");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).expect("the report is told");
    assert_eq!(output.status.code(), Some(code), "{report}");
    let count = |name: &str| report["counters"][name].as_u64().unwrap();
    assert_eq!(count("rollouts_admitted"), count("rollouts_completed") + count("rollouts_aborted"));
    assert!(count("rollouts_completed") > 0);
    assert_eq!(report["trajectories"]["stored"], count("rollouts_completed"));
    let verified = doorbell(directory.path(), "trajectories verify log");
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    let (verified, stored) = (verified.stdout, count("rollouts_completed"));
    assert!(verified.starts_with(&format!("{stored} of {stored} records whole")), "{verified}");
}
