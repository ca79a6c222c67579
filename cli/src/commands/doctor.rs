//! `doorbell doctor`.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use doorbell_devices::machine::Machine;
use doorbell_devices::{Kind, Settings};
use doorbell_host::memory::SIMULATED_BUS_ADDRESS;
use doorbell_host::placement::HUGE;
use doorbell_host::{DeviceError, SharedMemory};
use doorbell_setup::nvcc::Places;
use doorbell_setup::shell;
use serde_json::{Value, json};

use crate::failure::{DIFFERENT, Failure};
use crate::output;

/// Shows machine, GPUs, tools and devices, and what would be refused here and why. Ends with code 1 if the model or a
/// device that needs no hardware does not open, or a tool is there that does not work.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Nothing is refused.
    Ok,
    /// Something is refused that not every machine has.
    Without,
    /// What should work does not.
    Problem,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Without => "without",
            Level::Problem => "PROBLEM",
        })
    }
}

struct Finding {
    /// `machine`, `memory`, `gpu`, `tool` or `device`.
    about: &'static str,
    name: String,
    level: Level,
    /// What was found.
    found: String,
    /// What does not work because of that, and what to do; empty if all does.
    refused: String,
}

impl Finding {
    fn ok(about: &'static str, name: &str, found: impl Into<String>) -> Self {
        Self { about, name: name.into(), level: Level::Ok, found: found.into(), refused: String::new() }
    }

    fn bad(level: Level, about: &'static str, name: &str, found: impl Into<String>, refused: String) -> Self {
        Self { about, name: name.into(), level, found: found.into(), refused }
    }
}

/// Prints what was found.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let findings: Vec<Finding> = machine()
        .into_iter()
        .chain(gpus())
        .chain(tools())
        .chain(Kind::ALL.map(device))
        .chain(pcie())
        .collect();
    let healthy = findings.iter().all(|finding| finding.level != Level::Problem);
    if args.json {
        let value =
            json!({ "healthy": healthy, "findings": findings.iter().map(object).collect::<Vec<_>>() });
        output::print_raw(&output::json(&value))?;
    } else {
        for Finding { about, name, level, found, refused } in &findings {
            let refused = if refused.is_empty() { String::new() } else { format!("\n{:27}{refused}", "") };
            output::print(&format!("{about:<8} {name:<9} {level:<8} {found}{refused}\n"))?;
        }
        if !healthy {
            output::print("not all is well: see PROBLEM above\n")?;
        }
    }
    Ok(ExitCode::from(if healthy { 0 } else { DIFFERENT }))
}

fn object(finding: &Finding) -> Value {
    json!({
        "about": finding.about,
        "name": finding.name,
        "level": finding.level.to_string().to_lowercase(),
        "found": finding.found,
        "refused": (!finding.refused.is_empty()).then_some(&finding.refused),
    })
}

fn machine() -> Vec<Finding> {
    let facts = Machine::this().facts();
    let mut findings: Vec<Finding> = facts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| Finding::ok("machine", name, value))
        .collect();
    let (about, memory) = ("machine", read("/proc/meminfo"));
    let free = field(&memory, "HugePages_Free").unwrap_or_default();
    let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let transparent = transparent.split(['[', ']']).nth(1).unwrap_or("not offered").to_owned();
    let found =
        format!("{} free of 2 MiB, transparent: {transparent}", if free.is_empty() { "0" } else { free });
    findings.push(if matches!(free, "" | "0") && transparent == "never" {
        let refused = "--memory transparent and reserved, and lab 3: `sysctl vm.nr_hugepages=N` reserves N pages of 2 MiB, or set \
                       transparent ones to madvise in /sys/kernel/mm/transparent_hugepage/enabled";
        Finding::bad(Level::Without, about, "pages", found, refused.into())
    } else {
        Finding::ok(about, "pages", found)
    });
    findings.extend(placements());
    findings.push(nodes());
    let limits = read("/proc/self/limits");
    let locked = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    if let Some(soft) = locked.and_then(|line| line.split_whitespace().next()) {
        findings.push(Finding::ok(about, "locked", format!("{soft} bytes may be locked")));
    }
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    findings.push(if cfg!(target_arch = "x86_64") && actions.contains("user_notif") {
        Finding::ok(about, "seccomp", "listeners are offered")
    } else {
        let refused = "`run --strict`: it needs x86-64 and a kernel that offers seccomp listeners".into();
        Finding::bad(
            Level::Without,
            about,
            "seccomp",
            format!("{}: no listener", std::env::consts::ARCH),
            refused,
        )
    });
    findings
}

/// Tries each kind of placed memory on a block of 2 MiB, as `--memory` would.
fn placements() -> Vec<Finding> {
    [("huge", "transparent"), ("reserved", "reserved"), ("near", "near"), ("locked", "locked")]
        .map(|(name, word)| {
            let placement = word.parse().expect("it is one of the words");
            match SharedMemory::placed(HUGE, SIMULATED_BUS_ADDRESS, &placement) {
                Ok(memory) => {
                    let account = memory
                        .account()
                        .map_or_else(|error| error.to_string(), |account| account.to_string());
                    Finding::ok("memory", name, account)
                }
                Err(error) => Finding::bad(
                    Level::Without,
                    "memory",
                    name,
                    match error {
                        DeviceError::Placement { reason, .. } => reason,
                        other => other.to_string(),
                    },
                    format!("`--memory {word}` of run and serve (docs/tuning.md)"),
                ),
            }
        })
        .into()
}

/// The nodes of memory.
fn nodes() -> Finding {
    let online = read("/sys/devices/system/node/online");
    match online.as_str() {
        "" => Finding::bad(
            Level::Without,
            "memory",
            "nodes",
            "the kernel shows none",
            "`--memory near` and `node=N`: a kernel with CONFIG_NUMA".into(),
        ),
        one if !one.contains([',', '-']) => {
            Finding::ok("memory", "nodes", format!("{one}: one node, so none is far"))
        }
        several => {
            Finding::ok("memory", "nodes", format!("{several}: `--memory near` or `node=N` keeps to one"))
        }
    }
}

fn gpus() -> Vec<Finding> {
    let driver = read("/proc/driver/nvidia/version");
    let Some(version) = driver.lines().next() else {
        let refused = "the device gpu: install NVIDIA's driver on a machine with a GPU".into();
        return vec![Finding::bad(Level::Without, "gpu", "driver", "no NVIDIA driver is loaded", refused)];
    };
    let driver = Finding::ok("gpu", "driver", version.trim_start_matches("NVRM version:").trim());
    std::iter::once(driver).chain(described()).collect()
}

/// Every GPU as the driver shows it to this process: what a device on it would be refused for.
#[cfg(feature = "gpu")]
fn described() -> Vec<Finding> {
    let gpus = match doorbell_devices::describe_gpus() {
        Ok(gpus) => gpus,
        Err(error) => {
            let refused = "the device gpu".into();
            return vec![Finding::bad(Level::Problem, "gpu", "driver", error.to_string(), refused)];
        }
    };
    let described = |gpu: doorbell_devices::GpuInfo| {
        let slice = if gpu.mig { " (a MIG slice)" } else { "" };
        let node =
            gpu.numa_node.map_or_else(|| "no NUMA node told".into(), |node| format!("NUMA node {node}"));
        let found = format!(
            "{}{slice}, {} multiprocessors, {} bytes of shared memory in a block, compute capability {}.{}, CUDA up to {}, {}, {}, {node}",
            gpu.name,
            gpu.processors,
            gpu.shared_bytes,
            gpu.compute_capability.0,
            gpu.compute_capability.1,
            gpu.driver,
            gpu.pci,
            gpu.link.as_deref().unwrap_or("no link told"),
        );
        let name = gpu.ordinal.to_string();
        let without: Vec<String> = gpu.warnings.into_iter().chain(gpu.without_language).collect();
        match (gpu.refusals.is_empty(), without.is_empty()) {
            (true, true) => Finding::ok("gpu", &name, found),
            (true, false) => Finding::bad(Level::Without, "gpu", &name, found, without.join("; ")),
            (false, _) => Finding::bad(Level::Problem, "gpu", &name, found, gpu.refusals.join("; ")),
        }
    };
    gpus.into_iter().map(described).collect()
}

#[cfg(not(feature = "gpu"))]
fn described() -> Vec<Finding> {
    vec![]
}

fn tools() -> Vec<Finding> {
    let verilator = std::env::var("VERILATOR").unwrap_or_else(|_| "verilator".into());
    let mut findings: Vec<Finding> = [
        (verilator.as_str(), "--version", "building the device rtl: `cargo xtask setup`"),
        ("g++", "--version", "building the device rtl: `cargo xtask setup`"),
        ("iverilog", "-V", "`cargo xtask rtl-test`: `cargo xtask setup`"),
        ("gtkwave", "--version", "`cargo xtask wave` without --png: `cargo xtask setup --wave`"),
    ]
    .map(|(program, flag, refused)| tool(program, flag, refused))
    .into();
    findings.push(match Places::this().find() {
        Ok(Some(nvcc)) => {
            Finding::ok("tool", "nvcc", format!("{} at {}", nvcc.version, nvcc.program.display()))
        }
        Ok(None) => {
            let refused =
                "kernels compiled ahead, and `cargo xtask gpu-check`: `cargo xtask setup --gpu`".into();
            Finding::bad(
                Level::Without,
                "tool",
                "nvcc",
                "not found, or switched off by DOORBELL_CUDA",
                refused,
            )
        }
        Err(problem) => {
            Finding::bad(Level::Problem, "tool", "nvcc", problem, "building the device gpu".into())
        }
    });
    findings
}

/// A program in `PATH`, with its version.
fn tool(line: &str, flag: &str, refused: &str) -> Finding {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !program.contains('/') && shell::find(program, &shell::path()).is_none() {
        return Finding::bad(Level::Without, "tool", &name, "not installed", refused.into());
    }
    match Command::new(program).args(words).arg(flag).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no version told");
            Finding::ok("tool", &name, version)
        }
        Ok(output) => Finding::bad(Level::Problem, "tool", &name, output.status.to_string(), refused.into()),
        Err(error) => Finding::bad(Level::Problem, "tool", &name, error.to_string(), refused.into()),
    }
}

/// Opens the device, as a command would.
fn device(kind: Kind) -> Finding {
    match kind.open(&Settings::default()) {
        Ok(_) => Finding::ok("device", kind.name(), kind.description()),
        Err(error) => {
            let level = if error.missing().is_some() { Level::Without } else { Level::Problem };
            let refused = format!("every command with the device {kind}");
            Finding::bad(level, "device", kind.name(), error.to_string(), refused)
        }
    }
}

/// Every function of PCI Express that is one of Doorbell's, opened as a command would.
#[cfg(feature = "vfio")]
fn pcie() -> Vec<Finding> {
    let name = Kind::Pcie.name();
    let addresses = doorbell_devices::pcie_functions();
    if addresses.is_empty() {
        let refused = format!(
            "every command with the device {name}: `doorbell vfio-user` shows one to a guest (docs/pcie.md)"
        );
        return vec![Finding::bad(
            Level::Without,
            "device",
            name,
            "no PCI device is a function of Doorbell's",
            refused,
        )];
    }
    let told = |address: String| {
        let settings = Settings { address: Some(address.clone()), ..Settings::default() };
        match Kind::Pcie.open(&settings) {
            Ok(_) => Finding::ok("device", name, format!("{address}, over vfio-pci")),
            Err(error) => {
                let level = if error.missing().is_some() { Level::Without } else { Level::Problem };
                let refused = format!("every command with the device {name}:{address}");
                Finding::bad(level, "device", name, error.to_string(), refused)
            }
        }
    };
    addresses.into_iter().map(told).collect()
}

#[cfg(not(feature = "vfio"))]
fn pcie() -> Vec<Finding> {
    vec![]
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// What stands behind `key` and a colon.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(name, value)| (name == key).then_some(value.trim()))
}
