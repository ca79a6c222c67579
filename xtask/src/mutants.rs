//! `cargo xtask mutants`: the mistakes of `tb/mutants.toml`, each made in a copy of `rtl/`, must be noticed.
//!
//! A bench notices when it runs to an end and fails; it must pass on the device as it is. A mutant that does not
//! compile, or whose bench has to be killed, shows nothing: that is an error, as is one whose text is no longer there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;

use crate::rtl_test::{Job, Simulator, benches, in_parallel, scratch, script, shared_sources};
use crate::seeds::Start;
use doorbell_setup::shell;

/// The mistakes, relative to the repository.
const TABLE: &str = "tb/mutants.toml";
/// One error is enough to be noticed.
const GIVE_UP: &str = "+errors=1";

/// Which mistakes to make, and how.
#[derive(clap::Args)]
pub struct Options {
    /// Only mutants whose name, file, rule or bench contains one of these; all of them when none is given
    words: Vec<String>,
    /// Every bench gets the seed as +seed=N
    #[command(flatten)]
    start: Start,
    /// Runs of every mutant, each with the next seed; it must be noticed in every one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Seconds that one run of a bench may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutant: Vec<Mutant>,
}

/// One mistake.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// What the mistake is, in words.
    name: String,
    /// What it breaks.
    rule: String,
    /// Source in `rtl/`.
    file: String,
    /// Text that occurs once in it.
    find: String,
    /// What stands there instead.
    replace: String,
    /// Bench that must fail, without `_tb`.
    bench: String,
}

/// The `source` of `rtl/{file}` with `find` replaced, a mistake that `table` names.
///
/// # Errors
/// Where that changes nothing, or `find` does not occur once.
pub fn plant(source: &str, file: &str, [find, replace]: [&str; 2], table: &str) -> Result<String> {
    ensure!(find != replace, "changes nothing");
    let places = source.matches(find).count();
    ensure!(
        places == 1,
        "its text '{find}' occurs {places} times in rtl/{file}, and must occur once: adapt `find` in {table}"
    );
    Ok(source.replacen(find, replace, 1))
}

impl Mutant {
    /// The source with the mistake in it.
    fn apply(&self, source: &str) -> Result<String> {
        plant(source, &self.file, [&self.find, &self.replace], TABLE)
    }

    fn bench(&self) -> String {
        format!("{}_tb", self.bench)
    }

    fn has(&self, word: &str) -> bool {
        [&self.name, &self.rule, &self.file, &self.bench].iter().any(|text| text.contains(word))
    }
}

/// Makes each mistake and runs its bench.
///
/// # Errors
/// When a mutant survives at some seed or cannot be tried, a bench fails without any, or Icarus is not installed.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let simulator = Simulator::find(shell::path())?;
    let mutants = table(root)?;
    let all = mutants.len();
    let mutants: Vec<Mutant> = mutants
        .into_iter()
        .filter(|mutant| options.words.is_empty() || options.words.iter().any(|word| mutant.has(word)))
        .collect();
    ensure!(
        !mutants.is_empty(),
        "none of the {all} mutants in {TABLE} is called {}",
        options.words.join(" or ")
    );
    let first = options.start.first();
    let seeds: Vec<u32> = (0..options.seeds).map(|k| first.wrapping_add(k)).collect();
    let span = match seeds[..] {
        [seed] => format!("seed {seed}"),
        _ => format!("seeds {first} to {}", seeds[seeds.len() - 1]),
    };
    println!("mutants: {} of {all}, {span}", mutants.len());

    let out = scratch(root, "mutants-")?;
    let trial = Trial {
        root,
        simulator: &simulator,
        out: &out.path().canonicalize()?,
        seeds: &seeds,
        limit: Duration::from_secs(options.timeout),
        plusargs: [GIVE_UP.to_owned()],
        vectors: script::generator(root, &mutants.iter().map(Mutant::bench).collect::<Vec<_>>())?,
    };
    let wrong = Mutex::new(Vec::new());
    let note = |what: String| {
        println!("{what}");
        wrong.lock().expect("no holder panics").push(what);
    };

    // What fails without a mistake proves nothing by failing with one.
    let names: BTreeSet<String> = mutants.iter().map(Mutant::bench).collect();
    in_parallel(names.iter(), |bench| {
        if let Err(error) = trial.passes(bench) {
            note(format!("{bench}: FAIL without any mutant: {error:#}"));
        }
    });
    if wrong.lock().expect("no holder panics").is_empty() {
        in_parallel(mutants.iter().enumerate(), |(number, mutant)| {
            let start = Instant::now();
            match trial.notices(&number.to_string(), mutant) {
                Ok(how) => {
                    println!("{}: noticed ({:.1} s): {how}", mutant.name, start.elapsed().as_secs_f64());
                }
                Err(error) => note(format!("{} ({}): {error:#}", mutant.name, mutant.rule)),
            }
        });
    }
    let wrong = wrong.into_inner().expect("no holder panics");
    ensure!(wrong.is_empty(), "mutants: {} wrong, {span}:\n{}", wrong.len(), wrong.join("\n"));
    println!("mutants: {0} of {0} were noticed, {span}", mutants.len());
    Ok(())
}

/// The mistakes of the table, each of which can be made.
fn table(root: &Path) -> Result<Vec<Mutant>> {
    let path = root.join(TABLE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Table { mutant: mutants } =
        toml::from_str(&text).with_context(|| format!("{TABLE} is no table of mutants"))?;
    let benches = benches(root)?;
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for mutant in &mutants {
        let check = || {
            ensure!(benches.contains(&mutant.bench()), "there is no bench {}", mutant.bench());
            let path = root.join("rtl").join(&mutant.file);
            let source =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            mutant.apply(&source).map(drop)
        };
        if !names.insert(&mutant.name) {
            wrong.push(format!("mutant '{}': there are two of this name", mutant.name));
        }
        if let Err(error) = check() {
            wrong.push(format!("mutant '{}': {error:#}", mutant.name));
        }
    }
    ensure!(wrong.is_empty(), "{TABLE}: {}", wrong.join("\n"));
    Ok(mutants)
}

/// What all mutants of one call have in common.
struct Trial<'a> {
    root: &'a Path,
    simulator: &'a Simulator,
    out: &'a Path,
    seeds: &'a [u32],
    limit: Duration,
    plusargs: [String; 1],
    vectors: Option<PathBuf>,
}

impl Trial<'_> {
    /// Whether a bench passes on the device as it is, at every seed.
    fn passes(&self, bench: &str) -> Result<()> {
        let out = self.out.join(bench);
        fs::create_dir(&out)?;
        let job = self.job(self.root, &out)?;
        job.build(bench)?;
        self.seeds
            .iter()
            .try_for_each(|&seed| job.judge(bench, seed)?.with_context(|| format!("seed {seed}")))
    }

    /// Whether the mutant's bench fails at every seed; gives what it said at the first.
    fn notices(&self, number: &str, mutant: &Mutant) -> Result<String> {
        let room = self.out.join(number);
        copy(&self.root.join("rtl"), &room.join("rtl"))?;
        std::os::unix::fs::symlink(self.root.join("tb").canonicalize()?, room.join("tb"))?;
        let file = room.join("rtl").join(&mutant.file);
        fs::write(&file, mutant.apply(&fs::read_to_string(&file)?)?)?;

        let bench = mutant.bench();
        let job = self.job(&room, &room)?;
        job.build(&bench).context("the mutant shows nothing")?;
        let mut said = Vec::new();
        for &seed in self.seeds {
            match job.judge(&bench, seed).with_context(|| format!("seed {seed} shows nothing"))? {
                Ok(()) => bail!("SURVIVED: {bench} passes with it at seed {seed}"),
                Err(error) => said.push(error.to_string()),
            }
        }
        said.into_iter().next().ok_or_else(|| anyhow!("no seed"))
    }

    fn job<'a>(&'a self, root: &'a Path, out: &'a Path) -> Result<Job<'a>> {
        Ok(Job {
            root,
            simulator: self.simulator,
            shared: shared_sources(root)?,
            out,
            plusargs: &self.plusargs,
            wave: None,
            limit: self.limit,
            vectors: self.vectors.clone(),
        })
    }
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        let to = to.join(path.file_name().expect("a listed file has a name"));
        if path.is_dir() {
            copy(&path, &to)?;
        } else {
            fs::copy(&path, to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
