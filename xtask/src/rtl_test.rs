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
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use doorbell_setup::{self as setup, shell};

mod parameters;
pub mod script;

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
    /// Seed that every bench gets as +seed=N; a new one each time when not given
    #[arg(long)]
    seed: Option<u32>,
    /// Runs of every bench, each with the next seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Seconds that one run of a bench may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Plusargs for every bench, such as +wave
    #[arg(last = true)]
    plusargs: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options { benches: vec![], seed: None, seeds: 1, timeout: 600, plusargs: vec![] }
    }
}

/// Compiles and runs the benches, several at a time.
///
/// # Errors
/// When a bench fails or hangs, there is none, one is unknown, or Icarus is not installed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let simulator = Simulator::find(shell::path())?;
    let names = select(benches(root)?, &options.benches)?;
    let first = options.seed.unwrap_or_else(fresh_seed);
    let seeds = || (0..options.seeds).map(|k| first.wrapping_add(k));
    let several = options.seeds > 1;
    let span = if several {
        format!("seeds {first} to {}", first.wrapping_add(options.seeds - 1))
    } else {
        format!("seed {first}")
    };

    let out = scratch(root, "rtl-test-")?;
    let job = Job {
        root,
        simulator: &simulator,
        shared: shared_sources(root)?,
        out: &out.path().canonicalize()?,
        plusargs: &options.plusargs,
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
    // Benches that compile, with the number of seeds left.
    let built: Vec<(&String, AtomicU32)> = names
        .iter()
        .filter(|name| !failed.lock().expect("no holder panics").contains_key(name.as_str()))
        .map(|name| (name, AtomicU32::new(options.seeds)))
        .collect();
    in_parallel(
        built.iter().flat_map(|bench| seeds().map(move |seed| (bench, seed))),
        |((name, left), seed)| {
            let start = Instant::now();
            match job.run(name, seed) {
                Ok(()) if several => {}
                Ok(()) => println!("{name}: PASS ({:.1} s)", start.elapsed().as_secs_f64()),
                Err(error) => fail(name, seed, &error, &run_name(name, seed)),
            }
            if left.fetch_sub(1, Ordering::Relaxed) == 1 && several {
                let lost = failed.lock().expect("no holder panics").get(name.as_str()).map_or(0, Vec::len);
                println!("{name}: {} of {} seeds passed", options.seeds as usize - lost, options.seeds);
            }
        },
    );

    let failed = failed.into_inner().expect("no holder panics");
    if failed.is_empty() {
        println!("rtl-test: {0} of {0} benches passed, {span}", names.len());
        return Ok(());
    }
    let benches: Vec<&str> = failed.keys().copied().collect();
    let again = if several {
        let runs = failed.iter().map(|(name, seeds)| format!("{name} --seed {}", seeds[0]));
        runs.collect::<Vec<_>>().join(", ")
    } else {
        format!("{} --seed {first}", benches.join(" "))
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
    Ok(tempfile::Builder::new().prefix(prefix).tempdir_in(&target)?)
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
    /// How long one run may take.
    pub limit: Duration,
    /// What writes the scripts of the benches that want one.
    pub vectors: Option<PathBuf>,
}

impl Job<'_> {
    /// Compiles a bench; gives what the compiler warned of. An input that nothing drives and a wire that nobody
    /// declared are errors: the bench would run, with unknown values or one bit of many.
    pub fn build(&self, name: &str) -> Result<Vec<String>> {
        let (status, log) = self.bounded(self.compile(name), name, "compilation")?;
        ensure!(status.success(), "does not compile ({status})");
        let warnings = warnings(&log);
        if let Some(line) = warnings.iter().find(|line| UNDRIVEN.iter().any(|words| line.contains(words))) {
            bail!("{line}");
        }
        Ok(warnings)
    }

    fn run(&self, name: &str, seed: u32) -> Result<()> {
        self.judge(name, seed)?
    }

    /// Runs a bench to its end: the outer error is that it did not come to one.
    pub fn judge(&self, name: &str, seed: u32) -> Result<Result<()>> {
        let mut command = self.simulate(name, seed);
        if let Some(script) = self.script(name, seed)? {
            command.arg(format!("+script={}", script.display()));
        }
        let (status, log) = self.bounded(command, &run_name(name, seed), "the bench")?;
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
    fn bounded(&self, mut command: Command, log: &str, what: &str) -> Result<(ExitStatus, String)> {
        let path = self.log(log);
        let log = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let mut child = command.spawn().with_context(|| format!("cannot run {}", shell::shown(&command)))?;
        let deadline = Instant::now() + self.limit;
        loop {
            if let Some(status) = child.try_wait()? {
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

/// Differs from call to call; fits a signed 32-bit integer, as $value$plusargs reads one.
pub fn fresh_seed() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u32 ^ std::process::id()) & 0x7FFF_FFFF
}

#[cfg(test)]
mod tests;
