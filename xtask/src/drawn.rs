//! `cargo xtask test --long`: the random tests over many seeds, the testbenches and those of proptest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::rtl_test;
use crate::seeds::{LONG, PROPTEST};
use crate::steps::Steps;
use doorbell_setup::shell;

/// Runs each random test with 200 seeds; `only_rust`: without the testbenches.
///
/// # Errors
/// When one fails.
pub fn long(root: &Path, first: u32, only_rust: bool) -> Result<()> {
    let mut steps = Steps::new("test --long");
    if !only_rust {
        steps.run("testbenches", || rtl_test::run(root, &rtl_test::Options::long(first)));
    }
    steps.run("random Rust tests", || rust(root, first));
    steps.finish()
}

/// The tests of proptest, package by package and seed by seed.
fn rust(root: &Path, first: u32) -> Result<()> {
    let mut failed = Vec::new();
    for (package, Drawn { targets, names }) in drawn_tests(root)? {
        let mut lost = 0;
        for seed in (0..LONG).map(|k| first.wrapping_add(k)) {
            let manifest = root.join(&package).join("Cargo.toml");
            let mut command = shell::cargo(root, &["test", "--quiet", "--release"]);
            command
                .args(&targets)
                .arg("--manifest-path")
                .arg(manifest)
                .arg("--")
                .args(&names)
                .env(PROPTEST, seed.to_string());
            let output =
                command.output().with_context(|| format!("cannot run {}", shell::shown(&command)))?;
            if !output.status.success() {
                let log = [output.stdout, output.stderr].concat();
                println!("{package}, seed {seed}: FAIL\n{}", String::from_utf8_lossy(&log));
                failed.push(format!("{PROPTEST}={seed} cargo test --release in {package}"));
                lost += 1;
            }
        }
        println!("{package}: {} of {LONG} seeds passed, {} random tests", LONG - lost, names.len());
    }
    ensure!(failed.is_empty(), "random tests failed; again: {}", failed.join(", "));
    Ok(())
}

/// The tests of proptest in a package.
#[derive(Debug, Default)]
struct Drawn {
    /// Arguments of cargo that name the programs in which they are. Other programs of the package may have a runner of their own, which
    /// takes no list of names.
    targets: BTreeSet<String>,
    names: BTreeSet<String>,
}

/// The tests of proptest, by the folder of their package.
fn drawn_tests(root: &Path) -> Result<BTreeMap<String, Drawn>> {
    let mut found = BTreeMap::new();
    for entry in list(root)? {
        if !entry.join("Cargo.toml").exists() {
            continue;
        }
        let mut drawn = Drawn::default();
        let mut add = |path: &Path, target: String| -> Result<()> {
            let mut names = BTreeSet::new();
            collect(path, &mut names)?;
            if !names.is_empty() {
                drawn.targets.insert(target);
                drawn.names.append(&mut names);
            }
            Ok(())
        };
        if entry.join("src").exists() {
            add(&entry.join("src"), "--lib".to_owned())?;
        }
        if entry.join("tests").exists() {
            for program in list(&entry.join("tests"))? {
                // tests/NAME.rs or tests/NAME/main.rs
                let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                add(&program, format!("--test={name}"))?;
            }
        }
        if let (false, Some(name)) = (drawn.names.is_empty(), entry.file_name()) {
            found.insert(name.to_string_lossy().into_owned(), drawn);
        }
    }
    ensure!(!found.is_empty(), "no package of {} has random tests", root.display());
    Ok(found)
}

/// What lies in a folder.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let told = || format!("cannot list {}", folder.display());
    fs::read_dir(folder).with_context(told)?.map(|entry| Ok(entry?.path())).collect()
}

/// Takes in the names of the tests in a source, or in all sources of a folder.
fn collect(path: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    if path.is_dir() {
        for path in list(path)? {
            collect(&path, names)?;
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        names.extend(of_source(&text));
    }
    Ok(())
}

/// Functions in the blocks `proptest! { … }` of a source that rustfmt laid out.
fn of_source(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut end = None;
    for line in text.lines() {
        if let Some(indent) = line.strip_suffix("proptest! {").filter(|indent| indent.trim().is_empty()) {
            end = Some(format!("{indent}}}"));
        } else if end.as_deref() == Some(line) {
            end = None;
        } else if let (Some(_), Some((name, _))) =
            (&end, line.trim_start().strip_prefix("fn ").and_then(|rest| rest.split_once('(')))
        {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tests_are_those_of_proptest() {
        let text = "fn other() {}\n    proptest! {\n        #[test]\n        fn one(a in 0..1) {\n        }\n    }\nfn two() {}\n";
        assert_eq!(of_source(text), ["one"]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let all = drawn_tests(root).unwrap();
        assert!(all["lm"].names.len() > 5 && all.contains_key("runtime"), "{all:?}");
        // Its `conformance` has a runner that takes one name.
        let targets = &all["verify"].targets;
        assert!(
            targets.contains("--test=properties") && !targets.contains("--test=conformance"),
            "{targets:?}"
        );
    }
}
