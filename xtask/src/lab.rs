//! `cargo xtask lab`: the programs of `labs/`, by number or name.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use doorbell_setup::shell;

/// Each lab and what it teaches; its number is its place, from 1.
const LABS: [(&str, &str); 6] = [
    ("false-sharing", "what the distance of two counters costs"),
    ("spsc-ring", "a ring between two threads, made fast step by step"),
    ("huge-pages", "what it costs to find a page"),
    ("waiting", "handing over by a system call, and by looking"),
    ("doorbell", "a driver and a device, and what the doorbell between them costs"),
    ("memory-ordering", "a stale read, shown and then prevented"),
];

#[derive(clap::Args)]
pub struct Options {
    /// Number or name of a lab, or 'all'
    which: Option<String>,
    /// Arguments that the lab gets, such as --quick
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs the labs that are asked for, one after the other; the first exit code other than 0 is the result.
///
/// # Errors
/// When there is no such lab, or cargo cannot be started.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let Some(which) = &options.which else {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    };
    for name in select(which)? {
        let code = shell::forward(&mut command(root, name, &options.args))?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
        println!();
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let lab = |(k, (name, what)): (usize, &(&str, &str))| format!("{} {name:<16} {what}\n", k + 1);
    LABS.iter().enumerate().map(lab).collect()
}

fn select(which: &str) -> Result<Vec<&'static str>> {
    let named = |(k, (name, _)): (usize, &(&'static str, &str))| {
        (which == "all" || which == *name || which == (k + 1).to_string()).then_some(*name)
    };
    let selected: Vec<_> = LABS.iter().enumerate().filter_map(named).collect();
    if selected.is_empty() {
        bail!("there is no lab '{which}'; there are 'all' and\n{}", list());
    }
    Ok(selected)
}

fn command(root: &Path, name: &str, args: &[String]) -> Command {
    let mut command = shell::cargo(root, &["run", "--release", "--quiet", "--package", "doorbell-labs"]);
    // The prefix keeps them apart from the program `doorbell` in the folder that all programs are built into.
    command.args(["--bin", &format!("lab-{name}"), "--"]).args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1", &["false-sharing"])]
    #[case("6", &["memory-ordering"])]
    #[case("waiting", &["waiting"])]
    fn labs_have_numbers_and_names(#[case] which: &str, #[case] expected: &[&str]) {
        assert_eq!(select(which).unwrap(), expected);
    }

    #[rstest]
    fn others_are_refused_with_the_list(#[values("0", "7", "", "ring", "01")] which: &str) {
        let error = select(which).unwrap_err().to_string();
        assert!(error.contains(&format!("no lab '{which}'")) && error.contains("2 spsc-ring"), "{error}");
    }

    #[test]
    fn every_program_is_a_lab_and_has_a_page() {
        let root = crate::root();
        let mut programs: Vec<_> = std::fs::read_dir(root.join("labs/src/bin"))
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        programs.sort();
        let mut all: Vec<String> = select("all").unwrap().iter().map(|name| format!("lab-{name}")).collect();
        all.sort_unstable();
        assert_eq!(programs, all);
        let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
        for (k, (name, _)) in LABS.iter().enumerate() {
            let page = format!("labs/{}-{name}.md", k + 1);
            assert!(root.join("docs").join(&page).exists(), "docs/{page} is missing");
            assert!(summary.contains(&format!("({page})")), "docs/SUMMARY.md does not link {page}");
        }
    }
}
