//! `cargo xtask vm`: Doorbell's driver in a virtual machine, over the kernel's vfio-pci, against the RTL on this side.
//!
//! QEMU, a kernel and busybox come from Debian's packages (`packages`) and are not installed. The guest's only file system is the one
//! that the kernel unpacks at its start (`guest`). A guest with the device behind it is a `stage`.

mod guest;
mod long;
mod packages;
mod stage;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use doorbell_setup::shell;
use guest::Round;
use stage::{Kit, Scene, Stage, Told, address};

/// What the program needs on both sides: `compare` polls, and `run` sleeps until an interrupt.
const BUILD: [&str; 6] =
    ["build", "--release", "--package", "doorbell", "--no-default-features", "--features"];
/// The exit code where QEMU or a kernel cannot be had.
const NOT_RUN: u8 = 3;
/// Requests that are slept for, one at a time.
const SLEPT: usize = 100;
/// Of the guest that `test` boots: it takes seconds.
const SHORT: Duration = Duration::from_secs(120);
/// Whether `test` may go without a guest.
const VARIABLE: &str = "DOORBELL_VM";
/// Its value where it may.
const OPTIONAL: &str = "optional";

#[derive(clap::Args)]
pub struct Options {
    /// Requests to take from the start of the trace
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Trace to run; by default the built-in one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Device to serve: rtl or model
    #[arg(long, value_name = "NAME", default_value = "rtl")]
    device: String,
    /// Functions of the device, all in the same guest, 1 to 16; each is driven by a process of its own, all at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    functions: u8,
    /// Kill the guest while its driver waits for the device; another driver, of this machine, must then find the function as new
    #[arg(long, conflicts_with = "functions")]
    kill: bool,
    /// Everything that is shown of a guest, in guests of their own, beside that also a program in C, the conformance suite, 100,000 sleeps, a
    /// language model, a reset under load, and each side killed: minutes
    #[arg(long, conflicts_with_all = ["functions", "kill"])]
    long: bool,
    /// Only the parts of --long whose names have this
    #[arg(long, value_name = "TEXT", requires = "long")]
    only: Option<String>,
    /// Longest that the guest may run
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    time: u64,
}

/// Boots a guest, and runs there what compares the device behind the bus with the golden model.
///
/// # Errors
/// When something that is there does not work: the build, the server, the guest's start, or its programs in their time.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let (folder, packages) = match packages(root)? {
        Ok(found) => found,
        Err(reason) => {
            println!("vm: NOT RUN: {reason}");
            return Ok(ExitCode::from(NOT_RUN));
        }
    };
    // Several functions are those of an RTL that has them.
    let several = options.functions > 1 || options.long;
    let features = if several { "rtl,runtime,variants,vfio" } else { "rtl,runtime,vfio" };
    shell::run(shell::cargo(root, &BUILD).arg(features))?;
    let kit = Kit { folder, packages, program: program(root) };
    if options.long {
        long::run(root, &kit, options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let trace = &trace(options);
    let scene = Scene {
        serve: vec!["--device".to_owned(), options.device.clone()],
        functions: options.functions,
        rounds: if options.kill {
            vec![Round { starts: vec![endless(0, trace)], meanwhile: vec![] }]
        } else {
            rounds(options.functions, options.limit, trace)
        },
        programs: &[],
        trace: options.trace.as_deref(),
        time: Duration::from_secs(options.time),
    };
    if options.kill {
        kill_guest(&kit, &scene)?;
    } else {
        require_success(&scene, &play(&kit, &scene)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The guest that `test` boots, with the program that the tests of the workspace have built; why not, where QEMU or a kernel cannot be
/// had and the variable allows that.
///
/// # Errors
/// As [`run`], and where a guest cannot be had and has to be.
pub fn short(root: &Path) -> Result<Option<String>> {
    let allowed = may_be_missing(env::var(VARIABLE).ok().as_deref())?;
    let (folder, packages) = match packages(root)? {
        Ok(found) => found,
        Err(reason) if allowed => return Ok(Some(format!("NOT RUN: {reason}"))),
        Err(reason) => bail!("NOT RUN: {reason}; {VARIABLE}={OPTIONAL} lets `test` pass without a guest"),
    };
    let kit = Kit { folder, packages, program: program(root) };
    let scene = Scene {
        serve: vec![],
        functions: 1,
        rounds: rounds(1, None, ""),
        programs: &[],
        trace: None,
        time: SHORT,
    };
    require_success(&scene, &play(&kit, &scene)?)?;
    Ok(None)
}

/// Whether `test` has to have what Debian's packages are signed with: they are yet to be fetched, and the variable does not say that a guest may be missing.
///
/// # Errors
/// When the variable has another value.
pub fn needs_keys(root: &Path) -> Result<bool> {
    let may_be_missing = may_be_missing(env::var(VARIABLE).ok().as_deref())?;
    let is_fetched = doorbell_setup::target(root).join("vm/root").exists();
    let can_fetch = shell::find("apt-get", &shell::path()).is_some();
    // Elsewhere the step `guest` says what is missing.
    Ok(cfg!(target_arch = "x86_64") && can_fetch && !may_be_missing && !is_fetched)
}

/// What the variable says: whether a guest may be missing.
fn may_be_missing(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("") => Ok(false),
        Some(OPTIONAL) => Ok(true),
        Some(other) => bail!("{VARIABLE} is '{other}'; it is not set, or {OPTIONAL}"),
    }
}

/// The folder that guests are made in, with QEMU and a kernel; inside, why they cannot be had here.
fn packages(root: &Path) -> Result<Result<(PathBuf, packages::Packages), String>> {
    let folder = std::path::absolute(doorbell_setup::target(root).join("vm"))
        .context("cannot tell where target is")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(packages::get(&folder)?.map(|packages| (folder, packages)))
}

/// The option that names the trace in the guest, if there is one.
fn trace(options: &Options) -> String {
    options.trace.as_ref().map_or(String::new(), |_| format!(" --trace {}", guest::TRACE))
}

fn program(root: &Path) -> PathBuf {
    doorbell_setup::target(root).join("release/doorbell")
}

/// Boots a guest, and waits for its end.
fn play(kit: &Kit, scene: &Scene<'_>) -> Result<Told> {
    Stage::open(kit, scene)?.finish()
}

/// Every program in the guest has succeeded, and interrupts came to each function.
fn require_success(scene: &Scene<'_>, told: &Told) -> Result<()> {
    require_ends(scene, told)?;
    let interrupts = &told.interrupts;
    ensure!(
        interrupts.iter().all(|&count| count > 0),
        "drivers slept, and interrupts came: {interrupts:?}, by function"
    );
    Ok(())
}

/// Every program in the guest has succeeded.
fn require_ends(scene: &Scene<'_>, told: &Told) -> Result<()> {
    let programs: usize = scene.rounds.iter().map(|round| round.starts.len()).sum();
    let Told { ends, interrupts, .. } = told;
    ensure!(ends.len() == programs, "{} of {programs} programs ended in the guest", ends.len());
    ensure!(ends.iter().all(|&code| code == 0), "the guest's {programs} programs ended with {ends:?}");
    println!(
        "vm: each of {programs} programs ended with 0; interrupts by MSI-X, by function: {interrupts:?}"
    );
    Ok(())
}

/// Kills the guest; then a driver of this machine must find the function as new.
fn kill_guest(kit: &Kit, scene: &Scene<'_>) -> Result<()> {
    let mut stage = Stage::open(kit, scene)?;
    stage.wait_until_under_way()?;
    stage.kill_guest();
    let told = stage.finish()?;
    ensure!(told.ends.is_empty(), "its program had ended before the guest was killed");
    let devices = format!("model,vfio-user:{}", stage.socket().display());
    let mut compare = Command::new(&kit.program);
    shell::run(compare.args(["compare", "--limit", "100", "--devices", &devices]))
}

/// What the guest runs: first all functions are compared, and then a driver of each sleeps for its answers.
fn rounds(functions: u8, limit: Option<usize>, trace: &str) -> Vec<Round> {
    let slept = limit.unwrap_or(SLEPT).min(SLEPT);
    let limit = limit.map_or(String::new(), |limit| format!(" --limit {limit}"));
    let each = |command: &dyn Fn(String) -> String| Round {
        starts: (0..functions).map(|function| command(address(function))).collect(),
        meanwhile: vec![],
    };
    vec![
        each(&|address| format!("doorbell compare --devices model,pcie:{address}{limit}{trace}")),
        each(&|address| {
            format!("doorbell run --device pcie:{address} --wait sleep --in-flight 1 --limit {slept}{trace}")
        }),
    ]
}

/// A driver that can be killed: it runs long, and sleeps most of the time.
fn endless(function: u8, trace: &str) -> String {
    let address = address(function);
    format!("doorbell run --device pcie:{address} --wait sleep --in-flight 1 --repeat 1000{trace}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_may_be_missing_only_where_that_is_said() {
        assert!(!may_be_missing(None).unwrap() && !may_be_missing(Some("")).unwrap());
        assert!(may_be_missing(Some("optional")).unwrap());
        let error = may_be_missing(Some("of")).unwrap_err().to_string();
        assert!(error.contains("DOORBELL_VM is 'of'"), "{error}");
    }

    /// What a guest tells is not taken for success unless each program ended with 0, and interrupts came to each function.
    #[test]
    fn a_guest_that_fails_is_no_success() {
        let rounds = rounds(2, Some(9), "");
        let scene =
            Scene { serve: vec![], functions: 2, rounds, programs: &[], trace: None, time: Duration::ZERO };
        let told = |ends: &[i32], interrupts: &[u64]| Told {
            ends: ends.to_vec(),
            interrupts: interrupts.to_vec(),
            guest: String::new(),
        };
        let judge = |told| require_success(&scene, &told).map_err(|error| error.to_string());
        assert_eq!(judge(told(&[0; 4], &[1, 1])), Ok(()));
        assert!(judge(told(&[0; 3], &[1, 1])).unwrap_err().contains("3 of 4 programs"));
        assert!(judge(told(&[0, 0, 1, 0], &[1, 1])).unwrap_err().contains("[0, 0, 1, 0]"));
        assert!(judge(told(&[0; 4], &[1, 0])).unwrap_err().contains("[1, 0], by function"));
    }
}
