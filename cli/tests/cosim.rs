//! `doorbell cosim`.
#![cfg(feature = "cosim")]

mod common;

use common::doorbell;
use doorbell_verify::conformance::CASES;
use tempfile::tempdir;

#[test]
fn every_case_of_the_conformance_suite_is_listed() {
    let run = doorbell(tempdir().unwrap().path(), "cosim --list");
    assert_eq!((run.code, run.stdout.lines().count()), (0, CASES.len()), "{}", run.stderr);
    assert!(
        run.stdout.starts_with("basic decode\nr01 without a doorbell nothing happens\n"),
        "{}",
        run.stdout
    );
}

#[test]
fn a_case_is_a_line() {
    let run =
        doorbell(tempdir().unwrap().path(), "cosim basic_decode counters_count --workers 16 --memory 3");
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "RTL co-sim basic decode: PASS\nRTL co-sim counters count: PASS\n2 passed, 0 failed\n"),
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
