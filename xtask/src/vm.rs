//! `cargo xtask vm`: Doorbell's driver in a virtual machine, over the kernel's vfio-pci, against the RTL on this side.
//!
//! QEMU, a kernel and busybox come from Debian's packages (`packages`) and are not installed. The guest's only file system is the one
//! that the kernel unpacks at its start (`guest`).

mod guest;
mod packages;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use doorbell_setup::shell;

/// What the program needs on both sides: `compare` polls, and `run` sleeps until an interrupt.
const BUILD: [&str; 6] =
    ["build", "--release", "--package", "doorbell", "--no-default-features", "--features"];
/// The exit code where QEMU or a kernel cannot be had.
const NOT_RUN: u8 = 3;
/// The guest's memory, in MiB.
const MEMORY: u32 = 512;
/// How long the server may take to listen.
const LISTEN: Duration = Duration::from_secs(20);
/// Between looks at a program.
const LOOK: Duration = Duration::from_millis(20);
/// How long a program in the guest has run when the guest is killed.
const UNDER_WAY: Duration = Duration::from_secs(2);
/// How long the server counts after the guest's end.
const LEAVE: Duration = Duration::from_millis(500);
/// Requests that are slept for, one at a time.
const SLEPT: usize = 100;

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
    /// Longest that the guest may run
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    time: u64,
}

/// Boots a guest, and runs there what compares the device behind the bus with the golden model.
///
/// # Errors
/// When something that is there does not work: the build, the server, the guest's start, or its programs in their time.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let folder = std::path::absolute(doorbell_setup::target(root).join("vm"))
        .context("cannot tell where target is")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let packages = match packages::get(&folder)? {
        Ok(packages) => packages,
        Err(reason) => {
            println!("vm: NOT RUN: {reason}");
            return Ok(ExitCode::from(NOT_RUN));
        }
    };
    // Several functions are those of an RTL that has them.
    let features = if options.functions > 1 { "rtl,runtime,variants,vfio" } else { "rtl,runtime,vfio" };
    shell::run(shell::cargo(root, &BUILD).arg(features))?;
    let program = doorbell_setup::target(root).join("release/doorbell");
    let addresses: Vec<String> = (0..options.functions).map(address).collect();
    let rounds = rounds(options, &addresses);
    let trace = options.trace.as_deref();
    let image = guest::pack(&folder, &packages, &program, trace, &addresses, &rounds)?;

    let room = tempfile::tempdir().context("cannot make a folder for the sockets")?;
    let socket = room.path().join("function");
    let sockets = sockets(&socket, options.functions);
    let logs = [folder.join("server.log"), folder.join("guest.log")];
    let mut server = Command::new(&program);
    server.args(["vfio-user", "--device", &options.device, "--functions", &options.functions.to_string()]);
    let mut server = Running::start(server.arg("--socket").arg(&socket), &logs[0])?;
    let deadline = Instant::now() + LISTEN;
    while !sockets.iter().all(|socket| socket.exists()) {
        ensure!(!server.has_ended()?, "the server has ended: {}", read(&logs[0]).trim());
        ensure!(Instant::now() < deadline, "the server does not listen: {}", read(&logs[0]).trim());
        std::thread::sleep(LOOK);
    }

    let start = Instant::now();
    let mut machine = packages.qemu();
    machine.args(arguments(&packages.kernel()?, &image, &addresses, &sockets)?);
    let mut machine = Running::start(&mut machine, &logs[1])?;
    let limit = start + Duration::from_secs(options.time);
    if options.kill {
        machine.wait(limit, || read(&logs[1]).contains(guest::STARTED))?;
        std::thread::sleep(UNDER_WAY);
        ensure!(
            !machine.has_ended()?,
            "the guest ended before it was to be killed: see {}",
            logs[1].display()
        );
        machine.kill();
        println!("vm: the guest was killed");
    }
    let in_time = machine.wait(limit, || false)?;
    let took = start.elapsed();
    machine.kill();
    // It counts until its clients have gone.
    std::thread::sleep(LEAVE);

    let [served, told] = logs.each_ref().map(|path| read(path));
    for line in told.lines().skip_while(|line| !line.contains(guest::MARK)) {
        println!("guest  {line}");
    }
    for line in served.lines() {
        println!("server {line}");
    }
    ensure!(in_time, "the guest did not end within {} s: see {}", options.time, logs[1].display());
    println!("vm: {:.1} s from the guest's start to its end", took.as_secs_f64());
    let ends = ends(&told);
    if options.kill {
        ensure!(ends.is_empty(), "its program had ended before the guest was killed");
        let function = format!("model,vfio-user:{}", socket.display());
        return shell::forward(Command::new(&program).args([
            "compare",
            "--limit",
            "100",
            "--devices",
            &function,
        ]));
    }
    let programs: usize = rounds.iter().map(Vec::len).sum();
    let see = format!("see {}", logs[1].display());
    ensure!(ends.len() == programs, "{} of {programs} programs ended in the guest: {see}", ends.len());
    if let Some(&code) = ends.iter().find(|&&code| code != 0) {
        println!("vm: one of {programs} programs ended with {code}");
        return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
    }
    let interrupts = interrupts(&served, options.functions);
    ensure!(
        interrupts.iter().all(|&count| count > 0),
        "drivers slept, and interrupts came: {interrupts:?}, by function; see {}",
        logs[0].display()
    );
    println!(
        "vm: each of {programs} programs ended with 0; interrupts by MSI-X, by function: {interrupts:?}"
    );
    Ok(ExitCode::SUCCESS)
}

/// The function's address in the guest.
fn address(function: u8) -> String {
    format!("0000:00:{:02x}.0", 3 + function)
}

/// As `doorbell vfio-user` names them.
fn sockets(socket: &Path, functions: u8) -> Vec<PathBuf> {
    let numbered = |function| PathBuf::from(format!("{}.{function}", socket.display()));
    if functions == 1 { vec![socket.to_owned()] } else { (0..functions).map(numbered).collect() }
}

/// What the guest runs: arguments of `doorbell`. Those of a round run at once; after it, the functions are unbound from vfio-pci and bound
/// again.
fn rounds(options: &Options, addresses: &[String]) -> Vec<Vec<String>> {
    let trace = if options.trace.is_some() { format!(" --trace {}", guest::TRACE) } else { String::new() };
    let limit = options.limit.map_or(String::new(), |limit| format!(" --limit {limit}"));
    let slept = options.limit.unwrap_or(SLEPT).min(SLEPT);
    let each = |command: &dyn Fn(&String) -> String| addresses.iter().map(command).collect();
    if options.kill {
        // Long enough to be killed, and asleep most of the time.
        return vec![each(&|address| {
            format!("run --device pcie:{address} --wait sleep --in-flight 1 --repeat 1000{trace}")
        })];
    }
    vec![
        each(&|address| format!("compare --devices model,pcie:{address}{limit}{trace}")),
        each(&|address| {
            format!("run --device pcie:{address} --wait sleep --in-flight 1 --limit {slept}{trace}")
        }),
    ]
}

/// Of QEMU. Memory is a memfd, which the server can map; behind the IOMMU, vfio-pci gives single pages of it.
fn arguments(
    kernel: &Path,
    image: &Path,
    addresses: &[String],
    sockets: &[PathBuf],
) -> Result<Vec<OsString>> {
    let memory = format!("{MEMORY}M");
    let backend = format!("memory-backend-memfd,id=memory,size={memory},share=on");
    let words = [
        ["-accel", "tcg"],
        ["-cpu", "max"],
        ["-smp", "1"],
        ["-m", &memory],
        ["-object", &backend],
        ["-machine", "q35,memory-backend=memory"],
        ["-device", "intel-iommu,caching-mode=on,intremap=on"],
        ["-serial", "stdio"],
        ["-append", "console=ttyS0 quiet panic=-1 intel_iommu=on"],
    ];
    let mut words: Vec<OsString> = words.as_flattened().iter().map(OsString::from).collect();
    words.extend(["-nodefaults", "-no-reboot", "-nographic"].map(OsString::from));
    words.extend(["-kernel".into(), kernel.into(), "-initrd".into(), image.into()]);
    for (address, socket) in addresses.iter().zip(sockets) {
        let device = serde_json::json!({
            "driver": "vfio-user-pci",
            "addr": address.trim_start_matches("0000:00:"),
            "socket": { "type": "unix", "path": socket.to_str().context("the socket's path is no UTF-8")? },
        });
        words.extend(["-device".into(), device.to_string().into()]);
    }
    Ok(words)
}

/// What a program has printed; a serial line ends lines with two letters.
fn read(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).replace('\r', "")
}

/// The exit codes that the guest told, in their order.
fn ends(told: &str) -> Vec<i32> {
    told.lines().filter_map(|line| line.strip_prefix(guest::ENDED)?.trim().parse().ok()).collect()
}

/// How many interrupts the server counted for the clients of each function: what it told last.
fn interrupts(served: &str, functions: u8) -> Vec<u64> {
    let of = |function| {
        let own = format!("function {function}: ");
        let mut counts = served.lines().filter(|line| line.contains(&own)).filter_map(|line| {
            let (before, _) = line.split_once(" interrupts")?;
            before.rsplit(' ').next()?.parse().ok()
        });
        counts.next_back().unwrap_or(0)
    };
    (0..functions).map(of).collect()
}

/// A program that ends with this.
struct Running(Child);

impl Running {
    /// What it prints goes to `log`.
    fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let errors = file.try_clone().context("cannot share a file")?;
        println!("$ {} > {}", shell::shown(command), log.display());
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        Ok(Self(child.with_context(|| format!("cannot run {}", shell::shown(command)))?))
    }

    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.0.try_wait().context("cannot wait for a program")?.is_some())
    }

    /// Waits until it has ended, or `enough`; false if that did not come in time.
    fn wait(&mut self, limit: Instant, enough: impl Fn() -> bool) -> Result<bool> {
        while !self.has_ended()? && !enough() {
            if Instant::now() >= limit {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_in_the_guest_is_read_from_its_log() {
        let told = format!("[ 0.1] kernel\n{0} 0\nidentical\n{0} 3\n{0} x\n", guest::ENDED);
        assert_eq!(ends(&told), [0, 3]);
        assert_eq!(ends(""), [] as [i32; 0]);
    }

    #[test]
    fn the_last_count_of_interrupts_is_the_whole() {
        let served = "function 0: a client has come\n\
                      function 1: its client has gone; so far 12 messages, 7 interrupts, 1 resets\n\
                      function 0: its client has gone; so far 12 messages, 0 interrupts, 1 resets\n\
                      function 0: its client has gone; so far 90 messages, 41 interrupts, 2 resets\n";
        assert_eq!(interrupts(served, 3), [41, 7, 0]);
    }

    #[test]
    fn a_function_has_the_address_that_the_guest_is_told() {
        let addresses = [0, 15].map(address);
        assert_eq!(addresses, ["0000:00:03.0", "0000:00:12.0"]);
        let sockets = sockets(Path::new("/s"), 2);
        let words = arguments(Path::new("/k"), Path::new("/i"), &addresses, &sockets).unwrap();
        let devices =
            words.iter().filter_map(|word| word.to_str()).filter(|word| word.contains("vfio-user-pci"));
        let devices: Vec<serde_json::Value> =
            devices.map(|text| serde_json::from_str(text).unwrap()).collect();
        let places: Vec<_> =
            devices.iter().map(|device| (&device["addr"], &device["socket"]["path"])).collect();
        assert_eq!(places, [(&"03.0".into(), &"/s.0".into()), (&"12.0".into(), &"/s.1".into())]);
    }
}
