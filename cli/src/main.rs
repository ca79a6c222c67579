//! `doorbell`: replays traces of rollouts on several devices and compares what they did.
//!
//! Exit codes: 0 all agree, 1 they differ, a device failed or stored data is damaged, 2 bad usage, input or output, 3 a
//! device that was asked for is not there.

// Text goes through `output`, which lets nothing steer the terminal.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod busy;
mod commands;
mod failure;
#[cfg(feature = "rtl")]
mod full_disk;
mod help;
mod inputs;
#[cfg(not(feature = "full"))]
mod left_out;
#[cfg(any(feature = "runtime", feature = "vfio"))]
mod lines;
#[cfg(all(feature = "lm", feature = "rtl"))]
mod lockstep;
#[cfg(feature = "lm")]
mod models;
mod output;
#[cfg(all(test, feature = "full"))]
mod pages;
mod paint;
mod report;
#[cfg(feature = "lm")]
mod session;
#[cfg(feature = "runtime")]
mod signals;
#[cfg(feature = "rtl")]
mod waveform;
mod why;
mod workers;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Counts, so that `run --strict` can tell what the hot thread allocates.
#[cfg(feature = "runtime")]
#[global_allocator]
static ALLOCATOR: doorbell_guard::CountingAllocator = doorbell_guard::CountingAllocator::new();

#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Exit codes: 0 success, all devices agree; 1 devices differ, one failed, or stored data is damaged; \
    2 bad usage, input or output; 3 a device that was asked for is not there."
)]
#[cfg_attr(
    not(feature = "full"),
    command(before_help = left_out::HELP)
)]
struct Cli {
    /// Leave out progress and notes; results and errors stay
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Tell one story on every device of this machine, side by side, and compare every byte
    #[cfg(feature = "lm")]
    Demo(commands::demo::Args),
    #[cfg(not(feature = "lm"))]
    #[command(hide = true, disable_help_flag = true)]
    Demo(left_out::Args),
    /// Run a trace on several devices and compare every completion and every token
    Compare(Box<commands::compare::Args>),
    /// Write one HTML page of a run: where the time of each device went
    #[cfg(feature = "report")]
    Report(Box<commands::report::Args>),
    #[cfg(not(feature = "report"))]
    #[command(hide = true, disable_help_flag = true)]
    Report(left_out::Args),
    /// Explain what happened: the life of one descriptor on each device, or who waits for whom in a run that went wrong
    Why(Box<commands::why::Args>),
    /// Run every rollout of a trace end to end on one device: admit, decode, score, store
    #[cfg(feature = "runtime")]
    Run(Box<commands::run::Args>),
    #[cfg(not(feature = "runtime"))]
    #[command(hide = true, disable_help_flag = true)]
    Run(left_out::Args),
    /// Look at traces, convert and generate them
    #[command(subcommand)]
    Trace(commands::trace::Command),
    /// Show, check and export the trajectories that a run stored
    #[cfg(feature = "runtime")]
    #[command(subcommand)]
    Trajectories(commands::trajectories::Command),
    #[cfg(not(feature = "runtime"))]
    #[command(hide = true, disable_help_flag = true)]
    Trajectories(left_out::Args),
    /// Collect what modelled NICs send, and show what was collected
    #[cfg(feature = "runtime")]
    #[command(subcommand)]
    Nic(commands::nic::Command),
    #[cfg(not(feature = "runtime"))]
    #[command(hide = true, disable_help_flag = true)]
    Nic(left_out::Args),
    /// Run conformance cases on the RTL
    #[cfg(feature = "cosim")]
    Cosim(commands::cosim::Args),
    #[cfg(not(feature = "cosim"))]
    #[command(hide = true, disable_help_flag = true)]
    Cosim(left_out::Args),
    /// Answer a prompt with a language model, token by token
    #[cfg(feature = "lm")]
    Generate(commands::generate::Args),
    #[cfg(not(feature = "lm"))]
    #[command(hide = true, disable_help_flag = true)]
    Generate(left_out::Args),
    /// List, show, import and judge language models
    #[cfg(feature = "lm")]
    #[command(subcommand)]
    Model(commands::model::Command),
    #[cfg(not(feature = "lm"))]
    #[command(hide = true, disable_help_flag = true)]
    Model(left_out::Args),
    /// Measure throughput, each figure beside its limit
    #[cfg(feature = "bench")]
    Bench(commands::bench::Args),
    #[cfg(not(feature = "bench"))]
    #[command(hide = true, disable_help_flag = true)]
    Bench(left_out::Args),
    /// Run candle for `bench lm`, which starts it
    #[cfg(feature = "candle")]
    #[command(name = doorbell_bench::candle::COMMAND, hide = true)]
    Candle {
        file: std::path::PathBuf,
        #[arg(long)]
        repack: bool,
    },
    /// Record a conformance case on the RTL as a waveform
    #[cfg(feature = "cosim")]
    Wave(commands::wave::Args),
    #[cfg(not(feature = "cosim"))]
    #[command(hide = true, disable_help_flag = true)]
    Wave(left_out::Args),
    /// Serve a language model over HTTP, as vLLM and SGLang do
    #[cfg(feature = "serve")]
    Serve(commands::serve::Args),
    #[cfg(not(feature = "serve"))]
    #[command(hide = true, disable_help_flag = true)]
    Serve(left_out::Args),
    /// Serve a device as functions of PCI Express, each at a socket of its own
    #[cfg(feature = "vfio")]
    VfioUser(commands::vfio_user::Args),
    #[cfg(not(feature = "vfio"))]
    #[command(hide = true, disable_help_flag = true)]
    VfioUser(left_out::Args),
    /// Watch a run: stages, rates, latencies
    #[cfg(feature = "runtime")]
    Top(commands::top::Args),
    #[cfg(not(feature = "runtime"))]
    #[command(hide = true, disable_help_flag = true)]
    Top(left_out::Args),
    /// List the devices, what they are, and why one is not there
    Devices(commands::devices::Args),
    /// Check this machine, and list what will not work on it, and why
    Doctor(commands::doctor::Args),
    /// Print a script that completes commands and options in a shell
    #[cfg(feature = "shell")]
    Completions(commands::shell::Completions),
    #[cfg(not(feature = "shell"))]
    #[command(hide = true, disable_help_flag = true)]
    Completions(left_out::Args),
    /// Write a manual page for each command
    #[cfg(feature = "shell")]
    Man(commands::shell::Man),
    #[cfg(not(feature = "shell"))]
    #[command(hide = true, disable_help_flag = true)]
    Man(left_out::Args),
}

/// A value may be a negative number, so that the option's own error tells what it takes, and not an error that takes it for an option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_action().takes_values();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

/// The whole command line, as it is parsed, printed and completed.
fn command_line() -> clap::Command {
    help::complete(with_negative_numbers(Cli::command()))
}

/// A panic of a library that reads untrusted files becomes an error with its text, so it is not printed as well.
#[cfg(feature = "lm")]
fn keep_contained_panics_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !doorbell_checkpoint::contains() {
            usual(panic);
        }
    }));
}

/// Prints help, a version, or what is wrong with the command line.
fn say(told: &clap::Error) -> ExitCode {
    let printed = output::reached(told.print());
    match printed {
        // Nobody is there to read that standard error cannot be written.
        Err(failure) if !told.use_stderr() => {
            output::tell(format_args!("error: {failure}"));
            failure.exit_code()
        }
        _ => ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(2)),
    }
}

fn main() -> ExitCode {
    let mut command = command_line();
    let parsed = command
        .try_get_matches_from_mut(std::env::args_os())
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(told) => return say(&told),
    };
    if let Err(failure) = inputs::check(&command, &matches) {
        output::tell(format_args!("error: {failure}"));
        return failure.exit_code();
    }
    inputs::note(&matches);
    #[cfg(feature = "lm")]
    keep_contained_panics_quiet();
    if cli.quiet {
        output::be_quiet();
    }
    let Some(command) = cli.command else {
        output::tell(help::FIRST);
        return ExitCode::from(2);
    };
    let result = match command {
        #[cfg(feature = "lm")]
        Command::Demo(args) => commands::demo::run(args),
        #[cfg(not(feature = "lm"))]
        Command::Demo(_) => Err(left_out::command("demo", "lm")),
        Command::Compare(args) => commands::compare::run(*args),
        Command::Why(args) => commands::why::run(&args),
        #[cfg(feature = "report")]
        Command::Report(args) => commands::report::run(&args),
        #[cfg(not(feature = "report"))]
        Command::Report(_) => Err(left_out::command("report", "report")),
        #[cfg(feature = "runtime")]
        Command::Run(args) => commands::run::run(*args),
        #[cfg(not(feature = "runtime"))]
        Command::Run(_) => Err(left_out::command("run", "runtime")),
        Command::Trace(command) => commands::trace::run(command),
        #[cfg(feature = "runtime")]
        Command::Trajectories(command) => commands::trajectories::run(command),
        #[cfg(not(feature = "runtime"))]
        Command::Trajectories(_) => Err(left_out::command("trajectories", "runtime")),
        #[cfg(feature = "runtime")]
        Command::Nic(command) => commands::nic::run(command),
        #[cfg(not(feature = "runtime"))]
        Command::Nic(_) => Err(left_out::command("nic", "runtime")),
        #[cfg(feature = "cosim")]
        Command::Cosim(args) => commands::cosim::run(args),
        #[cfg(not(feature = "cosim"))]
        Command::Cosim(_) => Err(left_out::command("cosim", "cosim")),
        #[cfg(feature = "lm")]
        Command::Generate(args) => commands::generate::run(args),
        #[cfg(not(feature = "lm"))]
        Command::Generate(_) => Err(left_out::command("generate", "lm")),
        #[cfg(feature = "lm")]
        Command::Model(command) => commands::model::run(command),
        #[cfg(not(feature = "lm"))]
        Command::Model(_) => Err(left_out::command("model", "lm")),
        #[cfg(feature = "bench")]
        Command::Bench(args) => commands::bench::run(args),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => Err(left_out::command("bench", "bench")),
        #[cfg(feature = "candle")]
        Command::Candle { file, repack } => doorbell_bench::candle::serve(&file, repack)
            .map(|()| ExitCode::SUCCESS)
            .map_err(failure::Failure::from),
        #[cfg(feature = "cosim")]
        Command::Wave(args) => commands::wave::run(args),
        #[cfg(not(feature = "cosim"))]
        Command::Wave(_) => Err(left_out::command("wave", "cosim")),
        #[cfg(feature = "serve")]
        Command::Serve(args) => commands::serve::run(&args),
        #[cfg(not(feature = "serve"))]
        Command::Serve(_) => Err(left_out::command("serve", "serve")),
        #[cfg(feature = "vfio")]
        Command::VfioUser(args) => commands::vfio_user::run(&args),
        #[cfg(not(feature = "vfio"))]
        Command::VfioUser(_) => Err(left_out::command("vfio-user", "vfio")),
        #[cfg(feature = "runtime")]
        Command::Top(args) => commands::top::run(args),
        #[cfg(not(feature = "runtime"))]
        Command::Top(_) => Err(left_out::command("top", "runtime")),
        Command::Devices(args) => commands::devices::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        #[cfg(feature = "shell")]
        Command::Completions(args) => commands::shell::completions(args),
        #[cfg(not(feature = "shell"))]
        Command::Completions(_) => Err(left_out::command("completions", "shell")),
        #[cfg(feature = "shell")]
        Command::Man(args) => commands::shell::man(args),
        #[cfg(not(feature = "shell"))]
        Command::Man(_) => Err(left_out::command("man", "shell")),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            if !failure.is_quiet() {
                output::tell(format_args!("error: {failure}"));
            }
            failure.exit_code()
        }
    }
}
