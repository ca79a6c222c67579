//! One guest and the device behind it, from the server's start to what each program in the guest ended with.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::guest::{self, Round};
use super::packages::Packages;
use doorbell_setup::shell;

/// The guest's memory, in MiB.
const MEMORY: u32 = 512;
/// Of the kernel. Where others use the processors the guest's timer may be too late for the kernel's check of it, which then panics.
const APPEND: &str = "console=ttyS0 quiet panic=-1 intel_iommu=on no_timer_check";
/// How long the server may take to listen.
const LISTEN: Duration = Duration::from_secs(20);
/// Between looks at a program.
const LOOK: Duration = Duration::from_millis(20);
/// How long a program in the guest has run when a side is killed.
const UNDER_WAY: Duration = Duration::from_secs(2);
/// How long the server counts after the guest's end.
const LEAVE: Duration = Duration::from_millis(500);

/// What a guest is made of.
pub struct Kit {
    /// Where logs and the guest's file system go.
    pub folder: PathBuf,
    pub packages: Packages,
    /// `doorbell`, for both sides.
    pub program: PathBuf,
}

/// What is served, and what the guest runs.
pub struct Scene<'a> {
    /// Arguments of `doorbell vfio-user`, without its functions and its socket.
    pub serve: Vec<String>,
    /// All in the same guest.
    pub functions: u8,
    pub rounds: Vec<Round>,
    /// Programs beside `doorbell`.
    pub programs: &'a [PathBuf],
    pub trace: Option<&'a Path>,
    /// Longest that the guest may run.
    pub time: Duration,
}

/// A guest that runs.
pub struct Stage {
    // In this order they end.
    machine: Running,
    server: Running,
    socket: PathBuf,
    _room: TempDir,
    logs: [PathBuf; 2],
    functions: u8,
    start: Instant,
    time: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Told {
    /// The exit codes of the guest's programs, in the order of their start.
    pub ends: Vec<i32>,
    /// What the guest printed.
    pub guest: String,
    /// How many interrupts came to each function.
    pub interrupts: Vec<u64>,
}

impl Stage {
    /// Serves the device and boots the guest.
    ///
    /// # Errors
    /// When the server does not listen or a program cannot be started.
    pub fn open(kit: &Kit, scene: &Scene<'_>) -> Result<Self> {
        let Kit { folder, packages, program } = kit;
        let functions = scene.functions;
        let addresses: Vec<String> = (0..functions).map(address).collect();
        let programs: Vec<&Path> =
            [program].into_iter().chain(scene.programs).map(PathBuf::as_path).collect();
        let image = guest::pack(folder, packages, &programs, scene.trace, &addresses, &scene.rounds)?;

        let room = tempfile::tempdir().context("cannot make a folder for the sockets")?;
        let socket = room.path().join("function");
        let sockets = sockets(&socket, functions);
        let logs = [folder.join("server.log"), folder.join("guest.log")];
        let mut serve = Command::new(program);
        serve.arg("vfio-user").args(&scene.serve);
        serve.args(["--functions", &functions.to_string(), "--socket"]).arg(&socket);
        let mut server = Running::start(&mut serve, &logs[0])?;
        let deadline = Instant::now() + LISTEN;
        while !sockets.iter().all(|socket| socket.exists()) {
            ensure!(!server.has_ended()?, "the server has ended: {}", read(&logs[0]).trim());
            ensure!(Instant::now() < deadline, "the server does not listen: {}", read(&logs[0]).trim());
            std::thread::sleep(LOOK);
        }
        let start = Instant::now();
        let mut qemu = packages.qemu();
        qemu.args(arguments(&packages.kernel()?, &image, &addresses, &sockets)?);
        let machine = Running::start(&mut qemu, &logs[1])?;
        Ok(Self { machine, server, socket, _room: room, logs, functions, start, time: scene.time })
    }

    /// Waits until a program in the guest has been under way for a while.
    ///
    /// # Errors
    /// When the guest ends before.
    pub fn wait_until_under_way(&mut self) -> Result<()> {
        let (log, limit) = (&self.logs[1], self.start + self.time);
        self.machine.wait(limit, || read(log).contains(guest::STARTED))?;
        std::thread::sleep(UNDER_WAY);
        ensure!(
            !self.machine.has_ended()?,
            "the guest ended before a side was to be killed: see {}",
            self.logs[1].display()
        );
        Ok(())
    }

    /// Kills the guest with its VMM.
    pub fn kill_guest(&mut self) {
        self.machine.kill();
        println!("vm: the guest was killed");
    }

    /// Kills the server.
    pub fn kill_server(&mut self) {
        self.server.kill();
        println!("vm: the server was killed");
    }

    /// The socket of function 0, if it is the only one.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until the guest has ended, or `enough` of what it printed; false if that did not come in its time.
    ///
    /// # Errors
    /// When its program cannot be waited for.
    pub fn wait(&mut self, enough: impl Fn(&str) -> bool) -> Result<bool> {
        let log = &self.logs[1];
        self.machine.wait(self.start + self.time, || enough(&read(log)))
    }

    /// Waits until the guest has ended, and prints what both sides said.
    ///
    /// # Errors
    /// When it does not end in its time.
    pub fn finish(&mut self) -> Result<Told> {
        let in_time = self.wait(|_| false)?;
        let took = self.start.elapsed();
        self.machine.kill();
        // It counts until its clients have gone.
        std::thread::sleep(LEAVE);
        let [served, told] = self.logs.each_ref().map(|path| read(path));
        for line in told.lines().skip_while(|line| !line.contains(guest::MARK)) {
            println!("guest  {line}");
        }
        for line in served.lines() {
            println!("server {line}");
        }
        let log = self.logs[1].display();
        ensure!(in_time, "the guest did not end within {} s: see {log}", self.time.as_secs());
        println!("vm: {:.1} s from the guest's start to its end", took.as_secs_f64());
        Ok(Told { ends: ends(&told), interrupts: interrupts(&served, self.functions), guest: told })
    }
}

/// The function's address in the guest.
pub fn address(function: u8) -> String {
    format!("0000:00:{:02x}.0", 3 + function)
}

/// As `doorbell vfio-user` names them.
fn sockets(socket: &Path, functions: u8) -> Vec<PathBuf> {
    let numbered = |function| PathBuf::from(format!("{}.{function}", socket.display()));
    if functions == 1 { vec![socket.to_owned()] } else { (0..functions).map(numbered).collect() }
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
        ["-append", APPEND],
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
