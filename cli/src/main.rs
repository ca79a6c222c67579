//! `doorbell`: replays traces of rollouts on several devices and compares what they did.
//!
//! Exit codes: 0 all agree, 1 they differ, a device failed or stored data is damaged, 2 bad usage, input or output, 3 a
//! device that was asked for is not there.

mod commands;
mod devices;
mod failure;
mod output;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use doorbell_guard::CountingAllocator;

/// Counts, so that `run --strict` can tell what the hot thread allocates.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Exit codes: 0 success, all devices agree; 1 devices differ, one failed, or stored data is damaged; \
    2 bad usage, input or output; 3 a device that was asked for is not there."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a trace on several devices and compare every completion and every token
    Compare(commands::compare::Args),
    /// Drive every rollout of a trace through its life on one device, to stored trajectories
    Run(commands::run::Args),
    /// Look at traces, convert and generate them
    #[command(subcommand)]
    Trace(commands::trace::Command),
    /// Look into the trajectories that a run stored, check and export them
    #[command(subcommand)]
    Trajectories(commands::trajectories::Command),
    /// Run the named cases of the co-simulation
    Cosim(commands::cosim::Args),
    /// Measure throughput, each figure beside its limit
    Bench(commands::bench::Args),
    /// Record a case of the co-simulation as a waveform
    Wave(commands::wave::Args),
    /// Watch a run: stages, rates, latencies
    Top(commands::top::Args),
    /// List the devices, what they are, and why one is not there
    Devices,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Compare(args) => commands::compare::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Trace(command) => commands::trace::run(command),
        Command::Trajectories(command) => commands::trajectories::run(command),
        Command::Cosim(args) => commands::cosim::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Wave(args) => commands::wave::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Devices => commands::devices::run(),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}
