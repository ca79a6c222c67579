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
fn cases_are_told_to_programs() {
    let run = doorbell(tempdir().unwrap().path(), "cosim basic_decode --json");
    let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&json["passed"], &json["failed"], &json["json_version"]), (&1.into(), &0.into(), &1.into()));
    assert_eq!(json["cases"][0]["case"], "basic decode");
    assert!(json["cases"][0]["cycles"].as_u64().unwrap() > 1000, "{json}");
}

/// A case that is not there is bad usage, and told with what may have been meant, one a line.
#[test]
fn an_unknown_case_gets_suggestions() {
    let unknown = |name: &str| {
        let run = doorbell(tempdir().unwrap().path(), &format!("cosim {name}"));
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
        let lines: Vec<String> = run.stderr.lines().map(str::to_owned).collect();
        assert_eq!(lines.last().unwrap(), "`doorbell cosim --list` names all");
        lines
    };
    assert_eq!(
        unknown("basik_decod")[..2],
        ["error: unknown case 'basik_decod'; did you mean:", "  'basic decode'"]
    );
    assert_eq!(unknown("basik")[1..2], ["  'basic decode'"]);
    let stops = unknown("stop");
    assert!(
        stops.len() > 3 && stops[1..stops.len() - 1].iter().all(|line| line.contains("stop")),
        "{stops:?}"
    );
    let all = unknown("xyzzy");
    assert_eq!(
        (all[0].as_str(), all.len()),
        ("error: unknown case 'xyzzy'; the cases are:", CASES.len() + 2)
    );
}

#[test]
fn the_beginning_of_a_name_is_enough_if_one_case_has_it() {
    let run = doorbell(tempdir().unwrap().path(), "cosim basic_dec --list");
    assert_eq!((run.code, run.stdout.as_str()), (0, "basic decode\n"), "{}", run.stderr);
}
