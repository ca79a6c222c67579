//! `cargo xtask test --long`: the random tests over many seeds, the testbenches and those of proptest, and tests that are longer where a
//! variable says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::rtl_test;
use crate::seeds::{LONG, PROPTEST};
use crate::steps::Steps;
use doorbell_setup::shell;

/// Tests that draw more, or try longer, where variables say so.
struct Longer {
    /// The folder of the package.
    package: &'static str,
    /// Arguments of `cargo test` behind the package.
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// All of them. docs/testing.md says what is longer.
const LONGER: [Longer; 3] = [
    Longer { package: "cosim", arguments: &["--test", "conformance"], variables: &[("DOORBELL_SEEDS", "8")] },
    Longer {
        package: "gpu",
        arguments: &["--test", "language", "r06_teams"],
        variables: &[("DOORBELL_SEEDS", "8")],
    },
    Longer {
        package: "vfio",
        arguments: &[],
        variables: &[
            ("DOORBELL_SEEDS", "1000"),
            ("DOORBELL_HOSTILE", "1000000"),
            ("DOORBELL_SLEEPS", "100000"),
            ("DOORBELL_FUZZ", "1000000"),
        ],
    },
];
/// The seed of tests that draw by themselves.
const SEED: &str = "DOORBELL_SEED";

/// Which long tests.
#[derive(Clone, Copy)]
pub struct Which<'a> {
    /// Without the testbenches.
    pub only_rust: bool,
    /// Of this package alone, by its folder, and without the testbenches.
    pub package: Option<&'a str>,
}

/// Runs each random test with 200 seeds, and the tests that can be longer.
///
/// # Errors
/// When one fails, or the package has none.
pub fn long(root: &Path, first: u32, which: Which<'_>) -> Result<()> {
    let Which { only_rust, package } = which;
    let is_chosen = |folder: &str| package.is_none_or(|package| package == folder);
    let mut drawn = drawn_tests(root)?;
    drawn.retain(|folder, _| is_chosen(folder));
    let longer: Vec<&Longer> = LONGER.iter().filter(|longer| is_chosen(longer.package)).collect();
    ensure!(
        !drawn.is_empty() || !longer.is_empty(),
        "no package has the folder {} and random tests or longer ones",
        package.unwrap_or_default()
    );
    let mut steps = Steps::new("test --long");
    if !only_rust && package.is_none() {
        steps.run("testbenches", || rtl_test::run(root, &rtl_test::Options::long(first)));
    }
    if !drawn.is_empty() {
        steps.run("random Rust tests", || rust(root, first, drawn));
    }
    for longer in longer {
        steps.run(format!("longer tests of {}", longer.package), || {
            shell::run(&mut longer.command(root, first))
        });
    }
    steps.finish()
}

impl Longer {
    /// Its draws begin at `first`.
    fn command(&self, root: &Path, first: u32) -> Command {
        let package = format!("doorbell-{}", self.package);
        let mut command = shell::cargo(root, &["test", "--release", "--package", &package]);
        command.args(self.arguments).envs(self.variables.iter().copied()).env(SEED, first.to_string());
        let set: Vec<String> = self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        println!("{SEED}={first} {}", set.join(" "));
        command
    }
}

/// The tests of proptest, package by package and seed by seed.
fn rust(root: &Path, first: u32, drawn: BTreeMap<String, Drawn>) -> Result<()> {
    let mut failed = Vec::new();
    for (package, Drawn { targets, names }) in drawn {
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

    /// Each variable is one that a test of its package reads.
    #[test]
    fn longer_tests_read_what_is_set_for_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for longer in LONGER {
            let tests = list(&root.join(longer.package).join("tests")).unwrap();
            let sources: String = tests.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
            for (name, _) in longer.variables.iter().chain(&[(SEED, "")]) {
                assert!(sources.contains(&format!("\"{name}\"")), "{}: no test reads {name}", longer.package);
            }
        }
    }

    #[test]
    fn a_package_without_long_tests_is_told() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let which = Which { only_rust: true, package: Some("toaster") };
        let error = long(root, 1, which).unwrap_err().to_string();
        assert!(error.contains("the folder toaster"), "{error}");
    }

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
