//! `cargo xtask cocotb`: the tests in `tb/cocotb` under Icarus Verilog and Verilator. Which of them ran and whether they
//! passed is for `tb/cocotb/run.py` to judge, which works without this too.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::seeds::Start;
use crate::steps::Steps;
use doorbell_setup::{self as setup, Cocotb, shell};

/// Builds the device and runs the tests on it.
const RUNNER: &str = "tb/cocotb/run.py";

#[derive(clap::Args, Default)]
pub struct Options {
    /// Tests whose names match alone, each a regular expression; all of them when none is given
    tests: Vec<String>,
    /// The simulator
    #[arg(long, value_enum, default_value_t)]
    sim: Sim,
    /// The seed is that of everything random, the order of the tests included
    #[command(flatten)]
    start: Start,
    /// Record a waveform
    #[arg(long)]
    wave: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Sim {
    Icarus,
    Verilator,
    #[default]
    Both,
}

/// Installs what the tests run on where it is missing, then runs them.
///
/// # Errors
/// When it cannot be installed, the device does not build, a test fails, or none ran.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    setup::run(root, setup::Options { cocotb: true, ..setup::Options::default() })?;
    let seed = options.start.first();
    let mut steps = Steps::new("cocotb");
    let simulators: &[&str] = match options.sim {
        Sim::Icarus => &["icarus"],
        Sim::Verilator => &["verilator"],
        Sim::Both => &["icarus", "verilator"],
    };
    for simulator in simulators {
        steps.run(format!("{simulator}, seed {seed}"), || {
            let mut command = Command::new(Cocotb::of(root).python());
            command.arg(RUNNER).args(&options.tests).current_dir(root);
            command.args(["--sim", simulator, "--seed", &seed.to_string(), "--out"]);
            command.arg(setup::target(root).join("cocotb")).args(options.wave.then_some("--wave"));
            shell::run(&mut command)
        });
    }
    steps.finish()
}
