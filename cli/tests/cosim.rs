//! `doorbell cosim`.
#![cfg(feature = "cosim")]

mod common;

use common::doorbell;
use tempfile::tempdir;

#[test]
fn every_case_passes_under_its_name() {
    let run = doorbell(tempdir().unwrap().path(), "cosim");
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.starts_with("RTL co-sim basic decode: PASS\n"), "{}", run.stdout);
    assert!(run.stdout.ends_with(" passed, 0 failed\n"), "{}", run.stdout);
}

#[test]
fn a_case_is_a_line() {
    let run = doorbell(tempdir().unwrap().path(), "cosim registers prefill");
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "RTL co-sim registers: PASS\nRTL co-sim prefill: PASS\n2 passed, 0 failed\n"),
        "{}",
        run.stderr
    );
}

#[test]
fn an_unknown_case_is_bad_usage() {
    let run = doorbell(tempdir().unwrap().path(), "cosim nonsense");
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.contains("unknown case 'nonsense'") && run.stderr.contains("'basic decode'"),
        "{}",
        run.stderr
    );
}
