//! `doorbell doctor`.

mod common;

use common::doorbell;
use serde_json::Value;
use tempfile::tempdir;

#[test]
fn what_is_there_and_what_is_refused_is_told() {
    let run = doorbell(tempdir().unwrap().path(), "doctor --json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(run.code == 0, report["healthy"].as_bool().unwrap(), "{}{}", run.stdout, run.stderr);
    let findings = report["findings"].as_array().unwrap();
    let finding = |about: &str, name: &str| {
        let found = findings.iter().find(|finding| finding["about"] == about && finding["name"] == name);
        found.unwrap_or_else(|| panic!("no {about} {name} in {}", run.stdout))
    };
    for name in ["cpu", "cores", "kernel", "compiler", "load"] {
        assert!(!finding("machine", name)["found"].as_str().unwrap().is_empty(), "{name}");
    }
    assert_eq!(finding("device", "model")["level"], "ok");
    assert_eq!(finding("device", "rtl")["level"], if cfg!(feature = "rtl") { "ok" } else { "without" });
    // Whatever is not as it could be says what does not work.
    for finding in findings {
        assert_eq!(finding["level"] == "ok", finding["refused"].is_null(), "{finding}");
    }
}

#[test]
fn text_has_a_line_for_each() {
    let run = doorbell(tempdir().unwrap().path(), "doctor");
    for line in ["machine  cpu ", "tool     g++ ", "device   model     ok ", "device   gpu "] {
        assert!(run.stdout.lines().any(|found| found.starts_with(line)), "{line:?} in\n{}", run.stdout);
    }
}
