//! `cargo xtask rtl-test`: the testbenches in `tb/` under Icarus Verilog.
//!
//! Icarus exits with 0 after `$error` and `$stop`, and a bench that stops early says nothing at all. So a bench passes
//! only when it exits with 0, prints the line `<bench>: PASS`, prints no line that starts with `ERROR` or `FATAL`, and
//! does so in time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::seeds::{LONG, Start};
use doorbell_setup::{self as setup, shell};

mod parameters;
pub mod script;
mod wave;

use wave::Wave;

/// Sources of the device, relative to the repository.
const RTL: &str = "rtl/files.f";
/// Log size at which a bench counts as running wild.
const FLOOD: u64 = 64 << 20;
/// Lines of a failed bench's log that are shown.
const TAIL: usize = 20;

/// Which benches to run, and how.
#[derive(clap::Args)]
pub struct Options {
    /// Benches, with or without `_tb`; all of them when none is given
    benches: Vec<String>,
    /// Every bench gets the seed as +seed=N
    #[command(flatten)]
    start: Start,
    /// Runs of every bench, each with the next seed; 1 when not given, 200 with --long
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seeds: Option<u32>,
    /// Long random draws (+long) over 200 seeds
    #[arg(long)]
    long: bool,
    /// Seconds that one run of a bench may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Plusargs for every bench; +wave records a waveform, +wave=FILE into this file
    #[arg(last = true)]
    plusargs: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        let start = Start::default();
        Options { benches: vec![], start, seeds: None, long: false, timeout: 600, plusargs: vec![] }
    }
}

impl Options {
    /// Every bench, its long draw over 200 seeds from this one on.
    pub fn long(first: u32) -> Options {
        Options { start: Start::at(first), long: true, timeout: 3600, ..Options::default() }
    }
}

/// Compiles and runs the benches, several at a time.
///
/// # Errors
/// When a bench fails or hangs, there is none, one is unknown, or Icarus is not installed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let simulator = Simulator::find(shell::path())?;
    let names = select(benches(root)?, &options.benches)?;
    let first = options.start.first();
    let count = options.seeds.unwrap_or(if options.long { LONG } else { 1 });
    let seeds = || (0..count).map(|k| first.wrapping_add(k));
    let several = count > 1;
    let span = if several {
        format!("seeds {first} to {}", first.wrapping_add(count - 1))
    } else {
        format!("seed {first}")
    };

    let (mut plusargs, wave) = wave::plusargs(root, &options.plusargs, names.len() > 1 || several)?;
    plusargs.extend(options.long.then(|| "+long".to_owned()));
    let out = scratch(root, "rtl-test-")?;
    let job = Job {
        root,
        simulator: &simulator,
        shared: shared_sources(root)?,
        out: &out.path().canonicalize()?,
        plusargs: &plusargs,
        wave: wave.as_ref(),
        limit: Duration::from_secs(options.timeout),
        vectors: script::generator(root, &names)?,
    };
    if options.benches.is_empty() {
        parameters::check(root, &simulator)?;
        println!("parameters: PASS");
    }
    println!("rtl-test: {} benches, {span}", names.len());
    println!("$ {}", shell::shown(&job.compile("BENCH_tb")));
    println!("$ {}", shell::shown(&job.simulate("BENCH_tb", first)));

    // Seeds of the runs that failed.
    let failed = Mutex::new(BTreeMap::<&str, Vec<u32>>::new());
    let fail = |name, seed, error: &anyhow::Error, log: &str| {
        let which = if several { format!(", seed {seed}") } else { String::new() };
        println!("{name}{which}: FAIL: {error:#}\n{}", job.tail(log));
        failed.lock().expect("no holder panics").entry(name).or_default().push(seed);
    };
    in_parallel(names.iter(), |name| match job.build(name) {
        Ok(warnings) => warnings.iter().for_each(|line| println!("{name}: {line}")),
        Err(error) => fail(name, first, &error, name),
    });
    // Benches that compile, with the number of seeds left, and the CPU time in ms of the others.
    let built: Vec<(&String, AtomicU32, AtomicU64)> = names
        .iter()
        .filter(|name| !failed.lock().expect("no holder panics").contains_key(name.as_str()))
        .map(|name| (name, AtomicU32::new(count), AtomicU64::new(0)))
        .collect();
    in_parallel(
        built.iter().flat_map(|bench| seeds().map(move |seed| (bench, seed))),
        |((name, left, spent), seed)| {
            match job.run(name, seed, spent) {
                Ok(()) if several => {}
                Ok(()) => println!("{name}: PASS ({:.1} s of CPU)", seconds(spent)),
                Err(error) => fail(name, seed, &error, &run_name(name, seed)),
            }
            if let Some(wave) = &wave {
                println!("waveform: {}", wave.of(&run_name(name, seed)).display());
            }
            if left.fetch_sub(1, Ordering::Relaxed) == 1 && several {
                let lost = failed.lock().expect("no holder panics").get(name.as_str()).map_or(0, Vec::len);
                let passed = count as usize - lost;
                println!("{name}: {passed} of {count} seeds passed ({:.1} s of CPU)", seconds(spent));
            }
        },
    );

    let total: f64 = built.iter().map(|(_, _, spent)| seconds(spent)).sum();
    println!("rtl-test: {total:.0} s of CPU in simulations");
    let failed = failed.into_inner().expect("no holder panics");
    if failed.is_empty() {
        println!("rtl-test: {0} of {0} benches passed, {span}", names.len());
        return Ok(());
    }
    let benches: Vec<&str> = failed.keys().copied().collect();
    let long = if options.long { " --long --seeds 1" } else { "" };
    let again = if several {
        let runs = failed.iter().map(|(name, seeds)| format!("{name} --seed {}{long}", seeds[0]));
        runs.collect::<Vec<_>>().join(", ")
    } else {
        format!("{} --seed {first}{long}", benches.join(" "))
    };
    let logs = out.keep();
    bail!(
        "rtl-test: {} of {} benches failed, {span}: {}; logs are in {}; again: cargo xtask rtl-test {again}",
        benches.len(),
        names.len(),
        benches.join(", "),
        logs.display(),
    )
}

/// A directory of its own under `target/`, which goes with its owner.
///
/// # Errors
/// When it cannot be created.
pub fn scratch(root: &Path, prefix: &str) -> Result<TempDir> {
    let target = setup::target(root);
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    remove_forgotten(&target, prefix);
    Ok(tempfile::Builder::new().prefix(prefix).tempdir_in(&target)?)
}

/// Removes folders that begin with `prefix` and are a week old: their programs were killed.
fn remove_forgotten(target: &Path, prefix: &str) {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    for entry in fs::read_dir(target).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(prefix);
        let is_old = || {
            entry
                .metadata()
                .and_then(|data| data.modified())
                .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > WEEK))
        };
        if is_ours && is_old() {
            // Another one may be removing it, too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Hands the items to as many threads as there are cores.
pub fn in_parallel<T>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let queue = Mutex::new(items);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(item) = queue.lock().expect("no holder panics").next() else { break };
                    work(item);
                }
            });
        }
    });
}

fn seconds(ms: &AtomicU64) -> f64 {
    ms.load(Ordering::Relaxed) as f64 / 1e3
}

/// CPU time in ms of a process that is not reaped, by the 10 ms ticks of Linux.
fn cpu_ms(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the program's name, which may hold anything: the fields from 3 on. 14 and 15 are user and system time.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(10 * (fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?))
}

/// Name of the log of one run.
fn run_name(name: &str, seed: u32) -> String {
    format!("{name}-{seed}")
}

/// Icarus Verilog.
pub struct Simulator {
    iverilog: PathBuf,
    vvp: PathBuf,
}

impl Simulator {
    /// The simulator in `path`.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn find(path: OsString) -> Result<Simulator> {
        let find = |program: &str| {
            shell::find(program, &path).with_context(|| {
                format!(
                    "{program} is not installed, so no testbench can run: `cargo xtask setup` installs it"
                )
            })
        };
        Ok(Simulator { iverilog: find("iverilog")?, vvp: find("vvp")? })
    }
}

/// Words of warnings that are errors.
const UNDRIVEN: [&str; 2] = ["dangling input port", "implicit definition of wire"];

/// What all benches of one call have in common.
pub struct Job<'a> {
    /// Where `rtl/` and `tb/` lie.
    pub root: &'a Path,
    /// The simulator.
    pub simulator: &'a Simulator,
    /// Sources that every bench is compiled with.
    pub shared: Vec<OsString>,
    /// Where compiled benches and logs go.
    pub out: &'a Path,
    /// Arguments that every bench gets.
    pub plusargs: &'a [String],
    /// Where waveforms go, if they are recorded.
    pub wave: Option<&'a Wave>,
    /// How long one run may take.
    pub limit: Duration,
    /// What writes the scripts of the benches that want one.
    pub vectors: Option<PathBuf>,
}

impl Job<'_> {
    /// Compiles a bench; gives what the compiler warned of. An input that nothing drives and a wire that nobody
    /// declared are errors: the bench would run, with unknown values or one bit of many.
    pub fn build(&self, name: &str) -> Result<Vec<String>> {
        let (status, log) = self.bounded(self.compile(name), name, "compilation", &AtomicU64::new(0))?;
        ensure!(status.success(), "does not compile ({status})");
        let warnings = warnings(&log);
        if let Some(line) = warnings.iter().find(|line| UNDRIVEN.iter().any(|words| line.contains(words))) {
            bail!("{line}");
        }
        Ok(warnings)
    }

    fn run(&self, name: &str, seed: u32, spent: &AtomicU64) -> Result<()> {
        self.timed(name, seed, spent)?
    }

    /// Runs a bench to its end: the outer error is that it did not come to one.
    pub fn judge(&self, name: &str, seed: u32) -> Result<Result<()>> {
        self.timed(name, seed, &AtomicU64::new(0))
    }

    fn timed(&self, name: &str, seed: u32, spent: &AtomicU64) -> Result<Result<()>> {
        let mut command = self.simulate(name, seed);
        if let Some(script) = self.script(name, seed)? {
            command.arg(format!("+script={}", script.display()));
        }
        if let Some(wave) = self.wave {
            let file = wave.of(&run_name(name, seed));
            command.arg(format!("+wave={}", file.display())).args(wave::format(&file));
        }
        let (status, log) = self.bounded(command, &run_name(name, seed), "the bench", spent)?;
        Ok(verdict(name, status, &log))
    }

    fn compile(&self, name: &str) -> Command {
        let mut command = Command::new(&self.simulator.iverilog);
        command.args(["-g2012", "-Wall", "-s", name, "-o"]).arg(self.out.join(format!("{name}.vvp")));
        command.args(["-f", RTL]).args(&self.shared).arg(bench_file(self.root, name));
        command.current_dir(self.root);
        command
    }

    /// Runs in the output directory, so that what a bench dumps stays apart; unbuffered, so that the log of a hang is
    /// complete.
    fn simulate(&self, name: &str, seed: u32) -> Command {
        let mut command = Command::new(&self.simulator.vvp);
        command.args(["-n", "-i"]).arg(self.out.join(format!("{name}.vvp"))).arg(format!("+seed={seed}"));
        command.args(self.plusargs);
        command.current_dir(self.out);
        command
    }

    fn log(&self, name: &str) -> PathBuf {
        self.out.join(format!("{name}.log"))
    }

    /// Last lines of a log.
    fn tail(&self, log: &str) -> String {
        let text = fs::read(self.log(log)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(64 << 10)..]).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| format!("    {line}\n")).collect()
    }

    /// Runs `command` with `log` as its output; past the time limit, or when the log overflows, it is killed.
    /// Its CPU time is added to `spent`.
    fn bounded(
        &self,
        mut command: Command,
        log: &str,
        what: &str,
        spent: &AtomicU64,
    ) -> Result<(ExitStatus, String)> {
        let path = self.log(log);
        let log = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let mut child = command.spawn().with_context(|| format!("cannot run {}", shell::shown(&command)))?;
        let deadline = Instant::now() + self.limit;
        let mut cpu = 0;
        loop {
            cpu = cpu_ms(child.id()).unwrap_or(cpu);
            if let Some(status) = child.try_wait()? {
                spent.fetch_add(cpu, Ordering::Relaxed);
                let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                return Ok((status, String::from_utf8_lossy(&text).into_owned()));
            }
            let flood = log.metadata()?.len() > FLOOD;
            if flood || Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                let limit = self.limit.as_secs_f64();
                if flood {
                    bail!("{what} wrote more than {} MiB and was killed", FLOOD >> 20);
                }
                bail!("hang: {what} had not ended after {limit} s and was killed; --timeout sets the limit");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Warnings of the compiler, each once. Left out is that an assertion's `$fatal` is not synthesised: so it should be.
fn warnings(log: &str) -> Vec<String> {
    let expected = "System task ($fatal) cannot be synthesized";
    let lines = log.lines().filter(|line| line.contains("warning: ") && !line.contains(expected));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// Whether a bench that ended has passed.
fn verdict(name: &str, status: ExitStatus, log: &str) -> Result<()> {
    if let Some(line) = log.lines().find(|line| line.starts_with("ERROR") || line.starts_with("FATAL")) {
        bail!("{line}");
    }
    ensure!(status.success(), "ended with {status}");
    let token = format!("{name}: PASS");
    ensure!(
        log.lines().any(|line| line.trim_end() == token),
        "ended with exit code 0, but never said '{token}'"
    );
    Ok(())
}

/// Folders of benches.
const ROOMS: [&str; 2] = ["tb", "tb/npu"];

/// The source of a bench, relative to the repository.
fn bench_file(root: &Path, name: &str) -> PathBuf {
    let files = ROOMS.map(|room| Path::new(room).join(format!("{name}.sv")));
    files.iter().find(|file| root.join(file).exists()).unwrap_or(&files[0]).clone()
}

/// Names of the benches, sorted.
pub fn benches(root: &Path) -> Result<Vec<String>> {
    let rooms = ROOMS.iter().enumerate().filter(|(number, room)| *number == 0 || root.join(room).exists());
    let files = rooms.map(|(_, room)| sources(&root.join(room))).collect::<Result<Vec<_>>>()?;
    let mut names: Vec<String> = files
        .concat()
        .iter()
        .filter_map(|file| file.file_stem()?.to_str())
        .filter(|stem| stem.ends_with("_tb"))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    ensure!(!names.is_empty(), "there is no tb/*_tb.sv: nothing to test");
    Ok(names)
}

/// Sources that every bench is compiled with: all of `tb/common`.
pub fn shared_sources(root: &Path) -> Result<Vec<OsString>> {
    let common = Path::new("tb/common");
    let files = sources(&root.join(common))?;
    Ok(files.iter().filter_map(|file| Some(common.join(file.file_name()?).into_os_string())).collect())
}

/// SystemVerilog files in `dir`, sorted.
fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "sv"));
    files.sort_unstable();
    Ok(files)
}

/// The benches that were asked for.
fn select(all: Vec<String>, wanted: &[String]) -> Result<Vec<String>> {
    if wanted.is_empty() {
        return Ok(all);
    }
    let mut names = Vec::new();
    for name in wanted {
        let full = if name.ends_with("_tb") { name.clone() } else { format!("{name}_tb") };
        ensure!(all.contains(&full), "there is no bench {name}; there are {}", all.join(", "));
        if !names.contains(&full) {
            names.push(full);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
