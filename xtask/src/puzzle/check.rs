//! Builds what somebody made of a puzzle together with its checker, and runs it for a bounded time.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::ROOM;
use crate::rtl_test::scratch;
use doorbell_setup::{self as setup, shell};

/// How long a compilation may take.
const COMPILATION: Duration = Duration::from_secs(60);
/// How long a check may take.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Bytes that a check may print.
const FLOOD: u64 = 1 << 20;
/// Lines of a compiler's output that are shown.
const LINES: usize = 40;
/// What a check prints that found nothing wrong; it also exits with 0.
const SOLVED: &str = "SOLVED";
/// By this variable a check is told a word of its run, which it prints behind [`SOLVED`]: a file that prints `SOLVED` and ends the program is not solved.
const WORD: &str = "DOORBELL_PUZZLE_WORD";
/// What a check prints that found something.
const STILL_WRONG: &str = "STILL WRONG";

/// What a puzzle is written in, and so how it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Rust, with a check that needs the standard library alone.
    Rust,
    /// Rust on atomics of loom.
    Loom,
    /// SystemVerilog under Icarus.
    Verilog,
    /// CUDA, compiled for the CPU.
    Cuda,
}

impl Language {
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust | Language::Loom => "Rust",
            Language::Verilog => "Verilog",
            Language::Cuda => "CUDA",
        }
    }
}

/// What came of a check.
#[derive(Debug)]
pub struct Verdict {
    pub is_solved: bool,
    /// What to tell whoever edits the file.
    pub text: String,
}

impl Verdict {
    fn wrong(text: String) -> Verdict {
        Verdict { is_solved: false, text }
    }
}

/// How a program ended, and what it printed.
struct Ended {
    status: ExitStatus,
    log: String,
}

impl Ended {
    /// Files as somebody in the repository names them. A checker includes the file from its own folder.
    fn with_plain_paths(mut self, root: &Path) -> Ended {
        self.log = self.log.replace(&format!("{}/", root.display()), "").replace("/checks/../", "/");
        self
    }
}

/// Checks the puzzle in `folder`, for no longer than `limit`. Programs, logs and waveforms are files whose names begin with `out`.
///
/// # Errors
/// When a compiler or the check cannot be run.
pub fn check(root: &Path, language: Language, folder: &Path, out: &Path, limit: Duration) -> Result<Verdict> {
    let program = out.with_extension("program");
    let wave = out.with_extension("vcd");
    let mut compile = compiler(root, language, folder, &program)?;
    let Some(Ended { status, log }) = bounded(&mut compile, &out.with_extension("build.log"), COMPILATION)?
        .map(|ended| ended.with_plain_paths(root))
    else {
        return Ok(Verdict::wrong(format!(
            "The file was not compiled within {} s, and the compiler was stopped.",
            COMPILATION.as_secs()
        )));
    };
    if !status.success() || log.contains("implicit definition of wire") {
        return Ok(Verdict::wrong(format!(
            "The file does not compile with its checker. Names, types and parameters that the checker uses must stay.\n\n{}",
            head(&log)
        )));
    }
    let word = format!("{:016x}", RandomState::new().build_hasher().finish());
    let mut command = match language {
        Language::Verilog => {
            // Of an earlier check.
            fs::remove_file(&wave).or_else(|error| match error.kind() {
                ErrorKind::NotFound => Ok(()),
                _ => Err(error).with_context(|| format!("cannot remove {}", wave.display())),
            })?;
            let mut command = Command::new("vvp");
            command
                .arg("-n")
                .arg(&program)
                .arg(format!("+wave={}", wave.display()))
                .arg(format!("+word={word}"));
            command
        }
        _ => Command::new(&program),
    };
    command.env(WORD, &word);
    let Some(Ended { status, log }) =
        bounded(&mut command, &out.with_extension("log"), limit)?.map(|ended| ended.with_plain_paths(root))
    else {
        return Ok(Verdict::wrong(format!(
            "The check did not end within {} s, or printed without end, and was stopped: look for a loop in the file that never ends.",
            limit.as_secs_f64()
        )));
    };
    Ok(verdict(root, language, status, &word, &log, &wave))
}

fn verdict(
    root: &Path,
    language: Language,
    status: ExitStatus,
    word: &str,
    log: &str,
    wave: &Path,
) -> Verdict {
    let says = |log: &str, word: &str| log.lines().any(|line| line.starts_with(word));
    let is_solved = status.success()
        && says(log, SOLVED)
        && log.lines().any(|line| line == word)
        && !says(log, STILL_WRONG);
    // Without what the simulator says of the waveform.
    let shown = |line: &&str| !line.starts_with("VCD info") && *line != word;
    let log: String = log.lines().filter(shown).map(|line| format!("{line}\n")).collect();
    if is_solved {
        return Verdict { is_solved, text: log };
    }
    let mut text = match status.signal() {
        Some(signal) => format!(
            "The check was ended by signal {signal}: the file reads or writes outside of its memory, or calls itself without end.\n\n{log}"
        ),
        None if says(&log, STILL_WRONG) => log,
        None => format!("The check stopped before it came to a verdict.\n\n{log}"),
    };
    if language == Language::Verilog && wave.exists() {
        let wave = wave.strip_prefix(root).unwrap_or(wave);
        text = format!("{}\n\nThe waveform: gtkwave {}", text.trim_end(), shell::word(wave));
    }
    Verdict::wrong(text)
}

fn head(log: &str) -> String {
    let lines: Vec<&str> = log.lines().take(LINES).collect();
    lines.join("\n")
}

/// What compiles the puzzle and its checker into `program`.
fn compiler(root: &Path, language: Language, folder: &Path, program: &Path) -> Result<Command> {
    let harness = root.join(ROOM).join("harness");
    let checks = folder.join("checks");
    let mut command;
    match language {
        Language::Rust | Language::Loom => {
            command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
            command.args(["--edition", "2024", "--crate-name", "puzzle", "--color", "never", "-Awarnings"]);
            command.args(["-Copt-level=0", "-Cdebug-assertions=on", "-Cdebuginfo=0"]).current_dir(root);
            if language == Language::Loom {
                let library = loom_harness(root)?;
                let dependencies = library.parent().unwrap_or(root).join("deps");
                let mut external = OsString::from("doorbell_puzzles=");
                external.push(library);
                command.arg("--extern").arg(external);
                command.arg("-L").arg(format!("dependency={}", dependencies.display()));
            }
            command.arg(checks.join("check.rs")).arg("-o").arg(program);
        }
        Language::Verilog => {
            command = Command::new("iverilog");
            command.args(["-g2012", "-Wimplicit", "-Wportbind", "-s", "bench", "-o"]).arg(program);
            command.arg(harness.join("sv/puzzle_pkg.sv")).args(sources(folder)?).arg(checks.join("bench.sv"));
        }
        Language::Cuda => {
            command = cxx();
            command.args(["-O0", "-I"]).arg(harness.join("cuda"));
            command.arg(checks.join("check.cpp")).arg(cuda_harness(root)?).arg("-o").arg(program);
        }
    }
    Ok(command)
}

/// The SystemVerilog of a folder.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sv"));
    files.sort();
    Ok(files)
}

/// The library that runs a puzzle under loom, built once in a run.
fn loom_harness(root: &Path) -> Result<PathBuf> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library.clone());
    }
    let build =
        ["build", "--quiet", "--package", "doorbell-puzzles", "--message-format", "json-render-diagnostics"];
    if !setup::target(root).join("debug/libdoorbell_puzzles.rlib").exists() {
        eprintln!("Compiling loom, once: this takes about 15 s.");
    }
    let output = shell::cargo(root, &build).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "`cargo {}` ended with {}", build.join(" "), output.status);
    let library = String::from_utf8_lossy(&output.stdout).lines().find_map(rlib);
    let library = library.context("cargo names no library of doorbell-puzzles")?;
    Ok(LIBRARY.get_or_init(|| library).clone())
}

/// The library that a message of cargo's names, if it is about the harness.
fn rlib(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != "doorbell_puzzles" {
        return None;
    }
    let files = message["filenames"].as_array()?.iter().filter_map(|file| file.as_str());
    files.map(PathBuf::from).find(|file| file.extension().is_some_and(|extension| extension == "rlib"))
}

/// The compiler of C++.
fn cxx() -> Command {
    let mut command = Command::new(env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    command.args(["-std=c++17", "-w"]);
    command
}

/// What stands for CUDA and its memory, compiled once in a run.
fn cuda_harness(root: &Path) -> Result<PathBuf> {
    static OBJECT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut object = OBJECT.lock().expect("no holder panics");
    if let Some(object) = &*object {
        return Ok(object.clone());
    }
    let folder = root.join(ROOM).join("harness/cuda");
    let room = scratch(root, "puzzles-")?;
    let file = room.path().join("harness.o");
    let mut command = cxx();
    command.args(["-O1", "-r", "-nostdlib", "-o"]).arg(&file);
    command.args(["check.cpp", "order.cpp", "warp.cpp"].map(|name| folder.join(name)));
    match bounded(&mut command, &room.path().join("log"), COMPILATION)? {
        Some(Ended { status, .. }) if status.success() => {}
        Some(Ended { log, .. }) => bail!("{} does not compile:\n{log}", folder.display()),
        None => bail!("{} was not compiled within {} s", folder.display(), COMPILATION.as_secs()),
    }
    // In one step: another run may link it.
    let place = super::room(root)?.join("harness.o");
    fs::rename(&file, &place).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(object.insert(place).clone())
}

/// Runs `command` with the file `log` as its output; `None` if it took or printed too much, and was killed.
fn bounded(command: &mut Command, log: &Path, limit: Duration) -> Result<Option<Ended>> {
    let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let child = command.spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "{} is not installed: `cargo xtask setup` installs it",
            Path::new(command.get_program()).display()
        ),
        Err(error) => return Err(error).with_context(|| format!("cannot run {}", shell::shown(command))),
    };
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
            return Ok(Some(Ended { status, log: String::from_utf8_lossy(&text).into_owned() }));
        }
        if Instant::now() >= deadline || file.metadata()?.len() > FLOOD {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
