//! The cycle model beside the RTL: how long each step of the built-in models takes in both, and the first word that differs.
//!
//!     cargo run --release -p doorbell-npu --example clock             # beside what npu/tests/clock keeps of the RTL
//!     cargo run --release -p doorbell-npu --example clock -- --rtl    # … which is made anew: Icarus Verilog, a few minutes
//!     cargo run --release -p doorbell-npu --example clock -- --words  # and each word

use std::fs;
use std::path::Path;
use std::process::Command;

#[path = "../tests/clock/steps.rs"]
mod steps;

use doorbell_npu::text::disassemble;
use steps::{Bench, LATENCIES, MODELS, SEED, TRACES, traces};

fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| panic!("{shown}: {error}"));
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs the bench of the whole NPU, and keeps what it says of words.
fn make() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let scratch = std::env::temp_dir().join(format!("clock-{}", std::process::id()));
    fs::create_dir_all(&scratch).expect("a directory for what is made on the way");
    let built = scratch.join("npu_top_tb.vvp");
    let common = fs::read_dir(root.join("tb/common")).expect("benches have files in common");
    let mut common: Vec<_> = common.map(|entry| entry.expect("an entry").path()).collect();
    common.sort();
    // tiny takes more lines than the bench has of itself.
    let sizes = ["-Pnpu_top_tb.Lines=256", "-Pnpu_top_tb.Model=16384"];
    let mut compiler = Command::new("iverilog");
    compiler.current_dir(root).args(["-g2012", "-s", "npu_top_tb"]).args(sizes).arg("-o").arg(&built);
    run(compiler.args(["-f", "rtl/files.f"]).args(common).arg("tb/npu/npu_top_tb.sv"));
    for model in MODELS {
        let script = scratch.join(model);
        let mut vectors = Command::new("cargo");
        vectors.current_dir(root).args([
            "run",
            "-q",
            "--release",
            "-p",
            "doorbell-npu",
            "--example",
            "vectors",
        ]);
        let text = run(vectors.args(["--", model, &SEED.to_string(), "0"]));
        fs::write(&script, text).expect("a script");
        for latency in LATENCIES {
            let mut bench = Command::new("vvp");
            bench.arg("-n").arg(&built).args(["+calm", "+words", "+seed=1"]);
            bench.arg(format!("+latency={latency}")).arg(format!("+script={}", script.display()));
            let said = run(&mut bench);
            assert!(said.contains("npu_top_tb: PASS"), "{model}, memory at {latency}: {said}");
            let letters = ["step ", "word ", "done ", "over "];
            let kept = said.lines().filter(|line| letters.iter().any(|letter| line.starts_with(letter)));
            let kept: String = kept.map(|line| format!("{line}\n")).collect();
            fs::write(format!("{TRACES}/{model}-{latency}.txt"), kept).expect("a trace");
        }
    }
    fs::remove_dir_all(&scratch).expect("it was made here");
}

fn main() {
    let asked = |name: &str| std::env::args().any(|argument| argument == name);
    if asked("--rtl") {
        make();
    }
    println!("| model | memory | position | words | RTL | model | first that differs |");
    println!("|---|--:|--:|--:|--:|--:|---|");
    for model in MODELS {
        for latency in LATENCIES {
            let mut bench = Bench::new(model);
            for traced in traces(model, latency) {
                let timed = bench.step(&traced, latency);
                let differs = traced.differs(&timed);
                let first = differs.map_or("none".into(), |differs| differs.to_string());
                let (position, words) = (traced.position, traced.words.len());
                let cycles = [traced.cycles, timed.cycles];
                println!(
                    "| {model} | {latency} | {position} | {words} | {} | {} | {first} |",
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
}
