//! The cycle model beside the RTL: how long each step of the built-in models takes in both, and the first word that differs.
//!
//!     cargo run --release -p doorbell-npu --example clock             # beside what npu/tests/clock keeps of the RTL
//!     cargo run --release -p doorbell-npu --example clock -- --rtl    # … which is made anew: Icarus Verilog, half an hour
//!     cargo run --release -p doorbell-npu --example clock -- --words  # and each word
//!     cargo run --release -p doorbell-npu --example clock -- --drawn [GANGS …]
//!
//! The last one holds programs by chance, words of all units side by side, with 1, 2 and 4 gangs: Icarus Verilog, as long again.
//!
//! Ends with 1 where anything differs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[path = "../tests/clock/steps.rs"]
mod steps;

use doorbell_npu::arithmetic::Speed;
use doorbell_npu::clock::trace::{Traced, keep, read};
use doorbell_npu::clock::{self, Bases, Begin, GANGS, Setup, Step, Timed};
use doorbell_npu::layout::LINE;
use doorbell_npu::run::{Arena, Machine, Settings};
use doorbell_npu::text::disassemble;
use steps::{Bench, SEED, Skipped, TRACES, both, traces};

/// Models of which there are traces, and a program of every kind of word.
const MODELS: [&str; 4] = ["words", "micro", "micro-gemma", "tiny"];
/// Cycles until memory answers.
const LATENCIES: [u64; 3] = [0, 16, 64];

fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The bench of the whole NPU, compiled.
struct Rtl {
    scratch: PathBuf,
}

impl Rtl {
    /// With so many gangs.
    fn new(gangs: usize) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let scratch = std::env::temp_dir().join(format!("clock-{}-{gangs}", std::process::id()));
        fs::create_dir_all(&scratch).expect("a directory for what is made on the way");
        let common = fs::read_dir(root.join("tb/common")).expect("benches have files in common");
        let mut common: Vec<_> = common.map(|entry| entry.expect("an entry").path()).collect();
        common.sort();
        // tiny takes more lines than the bench has of itself.
        let sizes = ["-Pnpu_top_tb.Lines=256", "-Pnpu_top_tb.Model=16384"];
        let mut compiler = Command::new("iverilog");
        compiler.current_dir(root).args(["-g2012", "-s", "npu_top_tb"]).args(sizes);
        compiler.arg(format!("-Pnpu_top_tb.Gangs={gangs}"));
        compiler.arg("-o").arg(scratch.join("npu_top_tb.vvp")).args(["-f", "rtl/files.f"]).args(common);
        run(compiler.arg("tb/npu/npu_top_tb.sv"));
        Self { scratch }
    }

    /// A script of the bench.
    fn script(&self, arguments: [&str; 3]) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let mut vectors = Command::new("cargo");
        vectors.current_dir(root).args(["run", "-q", "--release", "-p", "doorbell-npu", "--example"]);
        run(vectors.args(["vectors", "--"]).args(arguments))
    }

    /// What the bench says of words; without a latency memory is as it comes.
    fn says(&self, script: &str, latency: Option<u64>, both: bool) -> String {
        let path = self.scratch.join("script");
        fs::write(&path, script).expect("a script");
        let mut bench = Command::new("vvp");
        bench.arg("-n").arg(self.scratch.join("npu_top_tb.vvp")).args(["+words", "+seed=1"]);
        bench.arg(format!("+script={}", path.display()));
        if both {
            bench.arg("+both");
        }
        if let Some(latency) = latency {
            bench.arg("+calm").arg(format!("+latency={latency}"));
        }
        let said = run(&mut bench);
        assert!(said.contains("npu_top_tb: PASS"), "memory at {latency:?}: {said}");
        let letters = ["step ", "word ", "done ", "over "];
        let kept = said.lines().filter(|line| letters.iter().any(|letter| line.starts_with(letter)));
        kept.map(|line| format!("{line}\n")).collect()
    }
}

impl Drop for Rtl {
    fn drop(&mut self) {
        // It was made here; that it stays is no reason to fail.
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Keeps what the RTL says of the built-in models.
fn make(rtl: &Rtl) {
    for model in MODELS {
        let script = rtl.script([model, &SEED.to_string(), "0"]);
        for latency in LATENCIES.map(Some).into_iter().chain([None]) {
            let memory = latency.map_or("random".into(), |latency| latency.to_string());
            let path = |gangs: &str| format!("{TRACES}/{model}{gangs}-{memory}.txt");
            fs::write(path(""), rtl.says(&script, latency, false)).expect("a trace");
            let both = read(&rtl.says(&script, latency, true));
            // Of memory as it comes nothing is said word by word.
            fs::write(path("-both"), keep(&both, latency.is_some())).expect("a trace");
        }
    }
}

/// Lines of a memory, as a script fills them.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Memory {
    fn put(&mut self, line: usize, hex: &str) {
        let end = (line + 1) * LINE;
        self.0.resize(self.0.len().max(end), 0);
        // The highest byte first.
        for byte in 0..LINE {
            let at = hex.len() - 2 * (byte + 1);
            self.0[line * LINE + byte] = u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        }
    }
}

/// Steps of a script that end, beside what the RTL says of them with so many gangs: how many, and what differs.
fn drawn(script: &str, said: &str, latency: u64, gangs: usize) -> (usize, Vec<String>) {
    let mut memories: [Memory; 4] = Default::default();
    let (mut faulty, mut sets, mut where_) = (false, vec![], vec![]);
    let mut steps = read(said).into_iter();
    let (mut held, mut wrong) = (0, vec![]);
    for line in script.lines() {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let numbers = || parts[1..].iter().map(|part| u64::from_str_radix(part, 16).expect("hexadecimal"));
        match parts[0] {
            "C" | "M" | "A" | "B" => {
                let which = ["C", "M", "A", "B"].iter().position(|&letter| letter == parts[0]);
                let at = usize::from_str_radix(parts[1], 16).expect("a line");
                memories[which.expect("one of them")].put(at, parts[2]);
            }
            "F" | "G" | "V" => faulty = true,
            "S" => sets = numbers().collect(),
            "X" => where_ = numbers().collect(),
            "R" => {
                let rtl: Vec<Traced> = steps.by_ref().take(gangs).collect();
                assert_eq!(rtl.len(), gangs, "a step of the RTL");
                let [chip, model, arena, table] = &mut memories;
                let [lines, program, words, kv, entries, region] = where_[..] else { panic!("{where_:?}") };
                let first = program as usize * LINE;
                let eights = |bytes: &[u8]| -> Vec<u64> {
                    let eight = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes"));
                    bytes.chunks_exact(8).map(eight).collect()
                };
                let words = eights(&model.0[first..][..words as usize * 8]);
                let entry =
                    |k: usize| u32::from_le_bytes(table.0[4 * k..][..4].try_into().expect("four bytes"));
                let blocks: Vec<u32> = (0..entries as usize).map(entry).collect();
                let settings = Settings { lines: (chip.0.len() / LINE) as u32, speed: Speed::Fast };
                let bytes = kv as usize * LINE;
                let mut machine = Machine::new(settings, model.0[..lines as usize * LINE].to_vec(), bytes);
                machine.admit(Arena { base: 0, bytes: bytes as u64 }, blocks.clone());
                machine.kv.copy_from_slice(&arena.0[..bytes]);
                let context = &mut machine.contexts[0];
                context.chip_mut().copy_from_slice(&chip.0);
                context.output = vec![0; region as usize * LINE];
                (context.token, context.position, context.silent) =
                    (sets[0] as u32, sets[1] as u32, sets[2] == 1);
                let mut skipped = Skipped::default();
                let ends = machine.step(&words, &[0], &mut skipped)[0].is_ok();
                if !std::mem::take(&mut faulty) && ends {
                    let begins = rtl.iter().map(|traced| {
                        let step = Step {
                            words: &words,
                            memory: &machine.memory,
                            program,
                            lines: settings.lines,
                            bases: Bases { arena: traced.arena, ..Bases::default() },
                            token: sets[0] as u32,
                            position: sets[1] as u32,
                            silent: sets[2] == 1,
                            blocks: &blocks,
                            skipped: &skipped.0,
                        };
                        Begin { gang: traced.gang, at: traced.began - rtl[0].began, step }
                    });
                    let begins: Vec<Begin<'_>> = begins.collect();
                    let model =
                        clock::steps(&begins, Setup::rtl(latency)).expect("words that can be executed");
                    for (traced, timed) in rtl.iter().zip(model) {
                        held += 1;
                        let traced = Traced { began: traced.began - rtl[0].began, ..traced.clone() };
                        wrong.extend(traced.differs(&timed).map(|differs| {
                            let word = timed.words.get(differs.at).map(|span| disassemble(span.issue.word));
                            format!("step {held}, gang {}: {differs}; {word:?}", traced.gang)
                        }));
                    }
                }
                arena.0[..bytes].copy_from_slice(&machine.kv);
                chip.0.copy_from_slice(machine.contexts[0].chip());
            }
            _ => {}
        }
    }
    (held, wrong)
}

fn main() -> ExitCode {
    let asked = |name: &str| std::env::args().any(|argument| argument == name);
    let mut same = true;
    if asked("--rtl") {
        make(&Rtl::new(2));
    }
    if asked("--drawn") {
        let of = |gangs: &usize| asked(&gangs.to_string());
        let all = [1, 2, GANGS];
        let some = all.iter().any(of);
        for gangs in all.into_iter().filter(|gangs| !some || of(gangs)) {
            let rtl = Rtl::new(gangs);
            let seeds: &[&str] = if gangs == 1 { &["1", "2", "3"] } else { &["1"] };
            for &seed in seeds {
                let script = rtl.script(["step", seed, "60"]);
                for latency in LATENCIES {
                    let said = rtl.says(&script, Some(latency), gangs > 1);
                    let (held, wrong) = drawn(&script, &said, latency, gangs);
                    println!(
                        "programs by chance, gangs {gangs}, seed {seed}, memory {latency}: {held} steps, {} differ",
                        wrong.len()
                    );
                    wrong.iter().for_each(|differs| println!("{differs}"));
                    same &= wrong.is_empty();
                }
            }
        }
        return if same { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    println!("| model | gangs | memory | gang | position | words | RTL | model | first that differs |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|---|");
    for model in MODELS {
        for (gangs, latency) in [1, 2].into_iter().flat_map(|gangs| LATENCIES.map(|latency| (gangs, latency)))
        {
            let mut bench = Bench::new(model);
            let rtl = if gangs == 1 { traces(model, latency) } else { both(model, &latency.to_string()) };
            let timed: Vec<Timed> = match gangs {
                1 => rtl.iter().map(|traced| bench.step(traced, latency)).collect(),
                _ => bench.steps(&rtl, latency),
            };
            for (traced, timed) in rtl.iter().zip(&timed) {
                let differs = traced.differs(timed);
                same &= differs.is_none();
                let first = differs.map_or("none".into(), |differs| differs.to_string());
                let (gang, position, words) = (traced.gang, traced.position, traced.words.len());
                let cycles = [traced.cycles, timed.cycles];
                println!(
                    "| {model} | {gangs} | {latency} | {gang} | {position} | {words} | {} | {} | {first} |",
                    cycles[0], cycles[1]
                );
                if let Some(differs) = differs
                    && let Some(span) = timed.words.get(differs.at)
                {
                    println!("{}; {:?}", disassemble(span.issue.word), span.issue.work);
                }
                if asked("--words") {
                    for (rtl, span) in traced.words.iter().zip(&timed.words) {
                        let word = disassemble(span.issue.word);
                        println!(
                            "{} {} | {} {} | {:?} {word}",
                            rtl.start, rtl.done, span.start, span.done, rtl.engine
                        );
                    }
                }
            }
        }
    }
    if same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
