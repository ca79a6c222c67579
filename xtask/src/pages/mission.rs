//! Holds docs/mission.md to the repository: what its rows name exists, its counts are those of its rows, and what is not there whole says why.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::CommandFactory;

use super::{read, shell};

const PAGE: &str = "docs/mission.md";
const STATES: [&str; 5] = ["done", "better", "partial", "absent", "other"];

/// A row of the page.
#[derive(Debug)]
struct Row {
    number: usize,
    state: String,
    /// What stands between backticks in its last cell.
    shown: Vec<String>,
}

/// What is between backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The cells of a line of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect())
}

/// The rows of the page: lines of a table of five cells, the first of which is a number.
fn rows(page: &str) -> Vec<Row> {
    let lines = page.lines().filter_map(cells).filter(|cells| cells.len() == 5);
    lines
        .filter_map(|cells| {
            let number = cells[0].parse().ok()?;
            Some(Row { number, state: cells[3].to_owned(), shown: code(cells[4]) })
        })
        .collect()
}

/// The names of the functions of a source that are tests; of all functions with `all`.
fn tests(source: &str, all: bool) -> Vec<String> {
    let (mut is_test, mut out) = (false, Vec::new());
    for line in source.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[rstest");
        let line = line.strip_prefix("pub(super) ").unwrap_or(line);
        if let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next()) {
            if is_test || all {
                out.push(name.to_owned());
            }
            is_test = false;
        }
    }
    out
}

/// What the repository has that a row may name.
struct There {
    /// Tests in Rust, and cases of the conformance suite.
    tests: BTreeSet<String>,
    /// Benches of Icarus and proofs.
    benches: BTreeSet<String>,
    makefile: String,
}

impl There {
    fn look() -> Self {
        let mut there = Self { tests: BTreeSet::new(), benches: BTreeSet::new(), makefile: read("Makefile") };
        there.walk(&crate::root());
        there
    }

    fn walk(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap_or_default().to_owned();
            if path.is_symlink() || name == "target" || name.starts_with('.') {
                continue;
            } else if path.is_dir() {
                self.walk(&path);
            } else if name.ends_with(".rs") {
                // The conformance suite is a table of functions.
                let is_suite = path.parent().unwrap().ends_with("conformance");
                self.tests.extend(tests(&fs::read_to_string(&path).unwrap(), is_suite));
            } else if let Some(name) = name.strip_suffix("_tb.sv").or_else(|| name.strip_suffix(".sv")) {
                self.benches.insert(name.to_owned());
            }
        }
    }

    /// Why `name` cannot be found, if it cannot.
    fn lacks(&self, name: &str) -> Option<String> {
        let words: Vec<&str> = name.split_whitespace().collect();
        let is_there = match words[..] {
            ["make", target] => self.makefile.lines().any(|line| line.starts_with(&format!("{target}:"))),
            ["cargo", "xtask", command, ..] => {
                let args = shell::commands(&format!("    {name}\n"), &["cargo", "xtask"]).remove(0);
                let parsed =
                    crate::Cli::command().try_get_matches_from(["xtask".to_owned()].iter().chain(&args));
                if let Err(error) = parsed {
                    return Some(error.to_string());
                }
                // A case is named as its function is, with blanks.
                let is_case =
                    |case: &String| case.starts_with('-') || self.tests.contains(&case.replace(' ', "_"));
                match command {
                    "rtl-test" => args[1..].iter().all(|bench| self.benches.contains(bench)),
                    "cosim" => args[1..].iter().all(is_case),
                    _ => true,
                }
            }
            // The program's own tests parse these: an option of `doorbell` is not known here.
            ["doorbell", ..] => true,
            [path] if path.contains('/') => crate::root().join(path).exists(),
            [name] => self.tests.contains(name) || self.benches.contains(name),
            _ => false,
        };
        (!is_there).then(|| "there is no such test, command or file".to_owned())
    }
}

#[test]
fn what_the_mission_names_exists() {
    let there = There::look();
    assert!(there.lacks("what_the_mission_names_exists").is_none());
    for name in [
        "no_such_test",
        "cargo xtask nothing",
        "cargo xtask rtl-test nothing",
        "cargo xtask cosim \"no such case\"",
        "make nothing",
        "docs/no.md",
    ] {
        assert!(there.lacks(name).is_some(), "{name} is found");
    }
    let mut wrong = Vec::new();
    for Row { number, shown, .. } in rows(&read(PAGE)) {
        for name in shown {
            wrong.extend(there.lacks(&name).map(|why| format!("{PAGE}: row {number}: `{name}`: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_missions_rows_are_numbered_counted_and_explained() {
    let page = read(PAGE);
    let rows = rows(&page);
    let numbers: Vec<usize> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=rows.len()).collect::<Vec<_>>());
    assert!(page.contains(&format!("the page has {} rows", rows.len())), "it has {} rows", rows.len());

    let mut counts: BTreeMap<&str, usize> = STATES.map(|state| (state, 0)).into();
    for Row { number, state, shown } in &rows {
        *counts.get_mut(state.as_str()).unwrap_or_else(|| panic!("row {number}: {state} is no state")) += 1;
        let lacks = matches!(state.as_str(), "partial" | "absent");
        assert!(!shown.is_empty() || lacks, "row {number} is {state} and nothing shows it");

        let why = page.lines().find_map(|line| line.strip_prefix(&format!("- **{number}.** ")));
        assert_eq!(why.is_some(), lacks, "row {number} is {state}");
        if let Some(why) = why {
            let says = why.split(". ").count() >= 2 && why.to_lowercase().contains("it takes ");
            assert!(says, "row {number} says either not why, or not what it takes: {why}");
        }
    }
    let told: Vec<(&str, usize)> = page
        .lines()
        .filter_map(cells)
        .filter(|cells| cells.len() == 3 && STATES.contains(&cells[0]))
        .map(|cells| (cells[0], cells[1].parse().unwrap()))
        .collect();
    assert_eq!(told.into_iter().collect::<BTreeMap<_, _>>(), counts);
}

#[test]
fn tests_are_told_from_other_functions() {
    let source = "fn helper() {}\n#[rstest]\n#[case(1)]\nfn one(#[case] n: u32) {\n    fn inner() {}\n}\nproptest! {\n    #[test]\n    fn two(seed in any::<u64>()) {}\n}\n";
    assert_eq!(tests(source, false), ["one", "two"]);
    assert_eq!(tests(source, true), ["helper", "one", "inner", "two"]);
}
