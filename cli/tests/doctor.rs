//! `doorbell doctor` and `doorbell devices`, and what the command line says of itself.

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
    if cfg!(feature = "vfio") {
        assert!(!finding("device", "pcie")["found"].as_str().unwrap().is_empty());
    }
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

#[test]
fn devices_are_told_to_programs() {
    let run = doorbell(tempdir().unwrap().path(), "devices --json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        (&report["json_version"], &report["doorbell"]),
        (&1.into(), &env!("CARGO_PKG_VERSION").into())
    );
    let names: Vec<&str> =
        report["devices"].as_array().unwrap().iter().filter_map(|device| device["name"].as_str()).collect();
    assert_eq!(names, ["model", "rtl", "gpu"]);
    assert!(report["devices"][0]["missing"].is_null());
}

#[cfg(feature = "shell")]
#[test]
fn shells_and_manual_pages_know_every_command() {
    let directory = tempdir().unwrap();
    let script = doorbell(directory.path(), "completions bash");
    let pages = doorbell(directory.path(), "man pages");
    assert_eq!((script.code, pages.code), (0, 0), "{}{}", script.stderr, pages.stderr);
    let help = doorbell(directory.path(), "--help").stdout;
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Begin:")
        .take_while(|line| *line != "Options:")
        .filter_map(|line| line.strip_prefix("  ")?.split_once(' ').map(|(name, _)| name))
        .filter(|name| !["", "help"].contains(name))
        .collect();
    assert!(commands.len() >= 10 && commands.contains(&"compare"), "{commands:?}");
    for command in commands {
        assert!(script.stdout.contains(&format!("doorbell,{command})")), "{command}");
        let page =
            std::fs::read_to_string(directory.path().join(format!("pages/doorbell-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    let page = std::fs::read_to_string(directory.path().join("pages/doorbell-compare.1")).unwrap();
    assert!(page.contains("Examples:") && page.contains("doorbell compare"), "{page}");
}
