//! `cargo xtask perf`: counts the instructions of fixed workloads under callgrind, and holds them to `bench/perf.toml`.
//!
//! Instructions are the same in every run of the same program, on a busy machine too. A row may take 2 % more than the last line of its
//! history says, since that line and not since the last change: losses do not add up unseen. More than that takes a line that says what was
//! bought, which `--accept` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lint;
use doorbell_setup::shell;

/// The rows and their histories.
const BASELINE: &str = "bench/perf.toml";
/// What a count may be above the last line of its history, as a share of it.
const LIMIT: f64 = 0.02;
/// The function inside which instructions count, as `bench/src/lib.rs` has it.
const COUNTED: &str = "doorbell_bench_timed";
/// The target of cargo that has the workloads, as one of the whole workspace: `cargo test` has built it by then, with the same features.
const PROGRAM: [&str; 9] = [
    "test",
    "--workspace",
    "--features",
    crate::test::FULL,
    "--release",
    "--test",
    "perf",
    "--no-run",
    "--message-format=json-render-diagnostics",
];
/// Every row, for `--accept`.
const ALL: &str = "all";

const HEAD: &str = "\
# Instructions for each unit of the workloads of `cargo xtask perf`, counted by callgrind.
#
# `first` is the count of 594c174, the first version whose speed was compared. The last line of `history` is what holds: a row
# fails at 2 % above it. `cargo xtask perf --accept ROW \"what was bought\"` appends the line that allows more, or keeps a gain. Each line
# names the tools that it was counted with; with others a row is reported, and not judged.

";

/// What is counted, and what becomes of it.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Only these rows
    rows: Vec<String>,
    /// Take the count of ROW (or of `all`) into the baseline's history, with REASON: what was bought by a rise, or won
    #[arg(long, num_args = 2, value_names = ["ROW", "REASON"])]
    accept: Option<Vec<String>>,
    /// Leave what callgrind wrote in target/perf, for `callgrind_annotate`
    #[arg(long)]
    keep: bool,
}

/// A row of the baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    unit: String,
    /// Instructions for each unit in 594c174, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<f64>,
    history: Vec<Line>,
}

/// What a row was allowed at a time, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Instructions for each unit.
    count: f64,
    /// What counted and compiled them.
    tools: String,
    /// What was bought by more, or won.
    bought: String,
}

type Baseline = BTreeMap<String, Row>;

/// What a workload took.
#[derive(Clone, Debug, PartialEq)]
struct Counted {
    name: String,
    unit: String,
    /// Instructions for each unit.
    count: f64,
}

/// How a row stands.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// Within the limit.
    Holds,
    /// So much less, as a share, that it should be kept.
    Gained,
    /// Counted with other tools than the baseline, which are named.
    NotJudged(String),
    /// What fails.
    Fails(String),
}

/// The tools that counts depend on.
struct Tools {
    /// For Rust alone.
    rust: String,
    /// For the verilated device too.
    rtl: String,
}

impl Tools {
    fn of(&self, unit: &str) -> &str {
        if unit == "cycle" { &self.rtl } else { &self.rust }
    }

    fn this(root: &Path) -> Result<Tools> {
        let told = |mut command: Command, arguments: &[&str]| -> Result<String> {
            command.args(arguments).current_dir(root);
            let output = command.output().with_context(|| {
                format!("cannot run {}: `cargo xtask setup --perf` installs it", shell::shown(&command))
            })?;
            Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
        };
        let said = |program: &str, arguments: &[&str]| told(Command::new(program), arguments);
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let rustc = said(&env("RUSTC").unwrap_or("rustc".into()), &["--version"])?;
        let libc = said("ldd", &["--version"])?;
        let libc = libc.rsplit(' ').next().unwrap_or_default().to_owned();
        // The C library chooses its copying by what the processor has; callgrind shows it no more than AVX2.
        let mut rust = format!(
            "{}, {}, libc {libc}, {}",
            first_words(&rustc),
            said("valgrind", &["--version"])?,
            processor()
        );
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            rust += &env(name).map(|flags| format!(", {name}={flags}")).unwrap_or_default();
        }
        let verilator = told(lint::verilator(), &["--version"])?;
        let compiler = env("CXX").unwrap_or("g++".into());
        let compiler_version = said(&compiler, &["-dumpfullversion"])?;
        let rtl = format!("{rust}, {}, {compiler} {compiler_version}", first_words(&verilator));
        Ok(Tools { rust, rtl })
    }
}

/// Name and version.
fn first_words(line: &str) -> String {
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

fn processor() -> String {
    let mut name = std::env::consts::ARCH.to_owned();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        name += " with AVX2";
    }
    name
}

/// Counts, and compares or accepts.
///
/// # Errors
/// When the workloads cannot be built or run, a row takes more than it may, or rows and workloads are not the same.
pub fn run(root: &Path, options: &Options) -> Result<Option<String>> {
    let path = root.join(BASELINE);
    let mut baseline = read(&path)?;
    let tools = Tools::this(root)?;
    let counted = count(root, &options.rows, options.keep)?;
    if let Some([row, reason]) = options.accept.as_deref() {
        let changes = accept(&mut baseline, &counted, &tools, row, reason)?;
        fs::write(&path, text_of(&baseline)?).with_context(|| format!("cannot write {}", path.display()))?;
        changes.iter().for_each(|change| println!("{change}"));
    }
    let rows = judge(&counted, &baseline, &tools, options.rows.is_empty());
    print!("{}", table(&rows, &counted, &baseline));
    let failed: Vec<&str> = rows
        .iter()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Fails(_)))
        .map(|(name, _)| name.as_str())
        .collect();
    ensure!(
        failed.is_empty(),
        "{} of {} rows fail: {}. `cargo xtask perf --keep ROW` and `callgrind_annotate` show where instructions go; a rise that is worth \
         it is accepted by `cargo xtask perf --accept ROW \"what was bought\"`",
        failed.len(),
        rows.len(),
        failed.join(", ")
    );
    Ok(nothing_judged(&rows))
}

/// The reason, if no row was judged.
fn nothing_judged(rows: &[(String, Verdict)]) -> Option<String> {
    let unjudged = rows.iter().filter(|(_, verdict)| matches!(verdict, Verdict::NotJudged(_))).count();
    (unjudged == rows.len() && unjudged > 0)
        .then(|| format!("counted, and not judged: {BASELINE} was counted with other tools"))
}

fn read(path: &Path) -> Result<Baseline> {
    if !path.exists() {
        return Ok(Baseline::new());
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is no baseline", path.display()))
}

fn parse(text: &str) -> Result<Baseline> {
    let baseline: Baseline = toml::from_str(text)?;
    for (name, Row { history, .. }) in &baseline {
        ensure!(!history.is_empty(), "{name} has no line in its history");
        for Line { count, bought, .. } in history {
            ensure!(count.is_finite() && *count > 0.0, "{name}: {count} is no count of instructions");
            ensure!(!bought.trim().is_empty(), "{name}: a line does not say what was bought");
        }
    }
    Ok(baseline)
}

fn text_of(baseline: &Baseline) -> Result<String> {
    Ok(HEAD.to_owned() + &toml::to_string(baseline)?)
}

/// Builds the program and counts what it runs.
fn count(root: &Path, rows: &[String], keep: bool) -> Result<Vec<Counted>> {
    let program = build(root)?;
    let folder = if keep {
        let folder = doorbell_setup::target(root).join("perf");
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir_all(&folder)?,
        }
        println!("what callgrind writes stays in {}, a file for each row", folder.display());
        Folder::Kept(folder)
    } else {
        Folder::Passing(tempfile::tempdir()?)
    };
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .args([format!("--toggle-collect={COUNTED}"), format!("--dump-after={COUNTED}")])
        .arg(format!("--callgrind-out-file={}", folder.path().join("out").display()))
        .arg(program)
        .args(rows)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run valgrind: `cargo xtask setup --perf` installs it")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the workloads ended with {}:\n{said}", output.status);
    let totals = totals(folder.path())?;
    assign(&said, &totals)
}

/// Where callgrind writes.
enum Folder {
    Kept(PathBuf),
    Passing(tempfile::TempDir),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Passing(folder) => folder.path(),
        }
    }
}

/// The program that has the workloads.
fn build(root: &Path) -> Result<PathBuf> {
    let mut command = shell::cargo(root, &PROGRAM);
    println!("$ {}", shell::shown(&command));
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "`{}` ended with {}", shell::shown(&command), output.status);
    let programs: BTreeSet<PathBuf> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "perf")
        .filter_map(|message| Some(message["executable"].as_str()?.into()))
        .collect();
    match programs.into_iter().collect::<Vec<_>>().as_slice() {
        [program] => Ok(program.clone()),
        other => bail!("cargo names {} programs with the workloads: {other:?}", other.len()),
    }
}

/// The instructions of each stretch that counted, in their order.
fn totals(folder: &Path) -> Result<Vec<u64>> {
    let mut totals = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path.extension().and_then(|number| number.to_str()?.parse::<u32>().ok());
        // The last file is of what came behind the last stretch.
        let Some(number) = number else { continue };
        let text = fs::read_to_string(&path)?;
        let total = text
            .lines()
            .find_map(|line| line.strip_prefix("summary: ")?.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("{} has no sum", path.display()))?;
        totals.insert(number, total);
    }
    Ok(totals.into_values().collect())
}

/// Which workload had which instructions: the program names them in the order in which they ran.
fn assign(said: &str, totals: &[u64]) -> Result<Vec<Counted>> {
    let lines: Vec<&str> = said.lines().collect();
    ensure!(
        lines.len() == totals.len() && !lines.is_empty(),
        "{} workloads ran, and callgrind counted {} stretches: each runs {COUNTED} once",
        lines.len(),
        totals.len()
    );
    let one = |(line, &total): (&&str, &u64)| {
        let [name, unit, count] = line.split('\t').collect::<Vec<_>>()[..] else {
            bail!("{line:?} names no workload, unit and number of units");
        };
        let units: u64 = count.parse().with_context(|| format!("{line:?}"))?;
        ensure!(units > 0 && total > 0, "{name}: {total} instructions for {units} units are no count");
        // A tenth of an instruction is enough, and shorter.
        let count = (10.0 * total as f64 / units as f64).round() / 10.0;
        Ok(Counted { name: name.to_owned(), unit: unit.to_owned(), count })
    };
    lines.iter().zip(totals).map(one).collect()
}

/// Holds what was counted to the baseline; `whole`: every workload has run.
fn judge(counted: &[Counted], baseline: &Baseline, tools: &Tools, whole: bool) -> Vec<(String, Verdict)> {
    let mut rows: Vec<(String, Verdict)> = counted
        .iter()
        .map(|counted| (counted.name.clone(), verdict(counted, baseline.get(&counted.name), tools)))
        .collect();
    if whole {
        let ran: BTreeSet<&str> = counted.iter().map(|counted| counted.name.as_str()).collect();
        let gone = baseline.keys().filter(|name| !ran.contains(name.as_str()));
        rows.extend(
            gone.map(|name| (name.clone(), Verdict::Fails("no workload of this name ran".to_owned()))),
        );
    }
    rows
}

fn verdict(counted: &Counted, row: Option<&Row>, tools: &Tools) -> Verdict {
    let Some((row, line)) = row.and_then(|row| Some((row, row.history.last()?))) else {
        return Verdict::Fails(format!("{BASELINE} has no such row: --accept writes it"));
    };
    if row.unit != counted.unit {
        return Verdict::Fails(format!(
            "counted for each {}, in {BASELINE} for each {}",
            counted.unit, row.unit
        ));
    }
    let here = tools.of(&counted.unit);
    if line.tools != here {
        return Verdict::NotJudged(line.tools.clone());
    }
    let change = counted.count / line.count - 1.0;
    // What the file rounds is not held against anybody.
    if change > LIMIT + 1e-9 {
        Verdict::Fails(format!(
            "{:+.1} % of {}, the limit is {:+.1} %",
            100.0 * change,
            line.count,
            100.0 * LIMIT
        ))
    } else if change < -LIMIT {
        Verdict::Gained
    } else {
        Verdict::Holds
    }
}

/// Appends a line to the history of `row`, or of all that were counted; what was done.
fn accept(
    baseline: &mut Baseline,
    counted: &[Counted],
    tools: &Tools,
    row: &str,
    reason: &str,
) -> Result<Vec<String>> {
    ensure!(!reason.trim().is_empty(), "--accept needs what was bought");
    let chosen: Vec<&Counted> = counted.iter().filter(|counted| row == ALL || counted.name == row).collect();
    ensure!(!chosen.is_empty(), "{row} was not counted: there are {}", names(counted));
    Ok(chosen
        .into_iter()
        .map(|Counted { name, unit, count }| {
            let line =
                Line { count: *count, tools: tools.of(unit).to_owned(), bought: reason.trim().to_owned() };
            let fresh = || Row { unit: unit.clone(), first: None, history: vec![] };
            let row = baseline.entry(name.clone()).or_insert_with(fresh);
            let before = row.history.last().map_or("nothing".to_owned(), |line| line.count.to_string());
            row.unit.clone_from(unit);
            row.history.push(line);
            format!("accepted: {name}, {before} -> {count}: {}", reason.trim())
        })
        .collect())
}

fn names(counted: &[Counted]) -> String {
    counted.iter().map(|counted| counted.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The rows, for people.
fn table(rows: &[(String, Verdict)], counted: &[Counted], baseline: &Baseline) -> String {
    let mut text = format!(
        "{:<16} {:>12} {:>12} {:>8} {:>12} {:>8}  instructions for each\n",
        "row", "count", "baseline", "change", "594c174", "of it"
    );
    for (name, verdict) in rows {
        let row = baseline.get(name);
        let now = counted.iter().find(|counted| counted.name == *name);
        let count = now.map(|now| now.count);
        let held = row.and_then(|row| row.history.last()).map(|line| line.count);
        let first = row.and_then(|row| row.first);
        let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let change = count
            .zip(held)
            .map_or("-".to_owned(), |(count, held)| format!("{:+.1} %", 100.0 * (count / held - 1.0)));
        // As much work for each instruction as 594c174 did.
        let of_it = count.zip(first).map_or("-".to_owned(), |(count, first)| format!("{:.2}", first / count));
        let unit = now.map(|now| now.unit.as_str()).or(row.map(|row| row.unit.as_str())).unwrap_or_default();
        let said = match verdict {
            Verdict::Holds => String::new(),
            Verdict::Gained => ": less, `--accept` keeps it".to_owned(),
            Verdict::NotJudged(tools) => format!(": NOT JUDGED, the baseline was counted with {tools}"),
            Verdict::Fails(why) => format!(": FAILED, {why}"),
        };
        text += &format!(
            "{name:<16} {:>12} {:>12} {change:>8} {:>12} {of_it:>8}  {unit}{said}\n",
            shown(count),
            shown(held),
            shown(first)
        );
    }
    let unjudged = rows.iter().filter(|(_, verdict)| matches!(verdict, Verdict::NotJudged(_))).count();
    if unjudged > 0 {
        text += &format!(
            "{unjudged} of {} rows were not judged: this machine's tools are others than the baseline's\n",
            rows.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const BOUGHT: &str = "counted first";

    fn tools() -> Tools {
        Tools { rust: "rustc 1, valgrind 2".to_owned(), rtl: "rustc 1, valgrind 2, verilator 3".to_owned() }
    }

    fn counted(name: &str, count: f64) -> Counted {
        Counted { name: name.to_owned(), unit: "descriptor".to_owned(), count }
    }

    fn baseline() -> Baseline {
        let mut baseline = Baseline::new();
        let both = [counted("nop", 1000.0), counted("decode", 500.0)];
        accept(&mut baseline, &both, &tools(), ALL, BOUGHT).unwrap();
        baseline
    }

    #[test]
    fn where_no_row_is_judged_the_step_is_skipped() {
        let judged = |tools: &Tools| {
            judge(&[counted("nop", 900.0), counted("decode", 500.0)], &baseline(), tools, true)
        };
        assert_eq!(nothing_judged(&judged(&tools())), None);
        let others = Tools { rust: "rustc 2".to_owned(), rtl: "rustc 2".to_owned() };
        assert!(nothing_judged(&judged(&others)).is_some_and(|reason| reason.contains(BASELINE)));
    }

    fn one(count: f64, baseline: &Baseline) -> Verdict {
        let rows = judge(&[counted("nop", count)], baseline, &tools(), false);
        assert_eq!(rows.len(), 1);
        rows[0].1.clone()
    }

    #[rstest]
    #[case(1019.0, Verdict::Holds)]
    #[case(1020.0, Verdict::Holds)]
    #[case(981.0, Verdict::Holds)]
    #[case(979.0, Verdict::Gained)]
    fn within_the_limit_a_row_holds(#[case] count: f64, #[case] expected: Verdict) {
        assert_eq!(one(count, &baseline()), expected);
    }

    #[test]
    fn above_the_limit_a_row_fails_until_a_line_says_what_was_bought() {
        let mut baseline = baseline();
        let Verdict::Fails(why) = one(1021.0, &baseline) else { panic!("+2.1 % passes") };
        assert_eq!(why, "+2.1 % of 1000, the limit is +2.0 %");
        let rise = [counted("nop", 1021.0)];
        accept(&mut baseline, &rise, &tools(), "nop", "events told in one write").unwrap();
        assert_eq!(one(1021.0, &baseline), Verdict::Holds);
        let text = text_of(&baseline).unwrap();
        assert_eq!(parse(&text).unwrap(), baseline);
        let bought: Vec<&str> = baseline["nop"].history.iter().map(|line| line.bought.as_str()).collect();
        assert_eq!(bought, [BOUGHT, "events told in one write"]);
        assert_eq!(baseline["decode"].history.len(), 1, "another row has no new line");
    }

    /// Each change stays below the limit, and their sum does not: it is the line that they are held to.
    #[test]
    fn small_rises_do_not_add_up_unseen() {
        let baseline = baseline();
        assert_eq!(one(1015.0, &baseline), Verdict::Holds);
        assert!(matches!(one(1030.0, &baseline), Verdict::Fails(_)));
    }

    #[test]
    fn rows_and_workloads_are_the_same() {
        let rows = judge(&[counted("nop", 1000.0)], &baseline(), &tools(), true);
        let gone = Verdict::Fails("no workload of this name ran".to_owned());
        assert_eq!(rows, [("nop".to_owned(), Verdict::Holds), ("decode".to_owned(), gone)]);
        let new = judge(&[counted("new", 1.0)], &baseline(), &tools(), false);
        assert!(matches!(&new[0].1, Verdict::Fails(why) if why.contains("has no such row")), "{new:?}");
        let other = Counted { unit: "token".to_owned(), ..counted("nop", 1000.0) };
        let other = judge(&[other], &baseline(), &tools(), false);
        assert!(matches!(&other[0].1, Verdict::Fails(why) if why.contains("for each token")), "{other:?}");
    }

    #[test]
    fn with_other_tools_a_row_is_told_and_not_judged() {
        let mut tools = tools();
        let cycle = |count| Counted { unit: "cycle".to_owned(), ..counted("cycle", count) };
        let mut baseline = baseline();
        accept(&mut baseline, &[cycle(10.0)], &tools, ALL, BOUGHT).unwrap();
        tools.rtl += ", g++ 4";
        let now = [counted("nop", 2000.0), cycle(20.0)];
        let rows = judge(&now, &baseline, &tools, false);
        assert!(matches!(rows[0].1, Verdict::Fails(_)), "it depends on no Verilator");
        assert_eq!(rows[1].1, Verdict::NotJudged("rustc 1, valgrind 2, verilator 3".to_owned()));
        let text = table(&rows, &now, &baseline);
        assert!(
            text.contains("NOT JUDGED, the baseline was counted with rustc 1, valgrind 2, verilator 3"),
            "{text}"
        );
        assert!(text.contains("1 of 2 rows were not judged"), "{text}");
    }

    #[test]
    fn a_line_says_what_was_bought() {
        let mut baseline = baseline();
        let now = [counted("nop", 1100.0)];
        assert!(accept(&mut baseline, &now, &tools(), "nop", " ").is_err());
        let error = accept(&mut baseline, &now, &tools(), "none", "more").unwrap_err().to_string();
        assert_eq!(error, "none was not counted: there are nop");
        baseline.get_mut("nop").unwrap().history[0].bought = String::new();
        assert!(parse(&text_of(&baseline).unwrap()).unwrap_err().to_string().contains("what was bought"));
        baseline.get_mut("nop").unwrap().history.clear();
        assert!(parse(&text_of(&baseline).unwrap()).is_err());
    }

    #[test]
    fn counts_belong_to_the_workloads_that_ran() {
        let said = "nop\tdescriptor\t100\ncycle_w1\tcycle\t10\n";
        let both = assign(said, &[1234, 500]).unwrap();
        assert_eq!(both[0], counted("nop", 12.3));
        assert_eq!((both[1].unit.as_str(), both[1].count), ("cycle", 50.0));
        assert!(assign(said, &[1234]).unwrap_err().to_string().contains("2 workloads ran"));
        assert!(assign("", &[]).is_err());
        assert!(assign("nop\tdescriptor\t0\n", &[5]).is_err());
        assert!(assign("nop\tdescriptor\t5\n", &[0]).is_err());
        assert!(assign("test nop ... ok\n", &[5]).is_err());
    }

    #[test]
    fn sums_are_taken_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in
            [("out", "summary: 9\n"), ("out.10", "summary: 3\n"), ("out.9", "a\nsummary: 2 1\n")]
        {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(totals(folder.path()).unwrap(), [2, 3]);
        fs::write(folder.path().join("out.11"), "events: Ir\n").unwrap();
        assert!(totals(folder.path()).is_err());
    }

    /// The committed baseline can be read, and is written back as it is.
    #[test]
    fn the_baseline_is_sound() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(BASELINE);
        let text = fs::read_to_string(path).unwrap();
        let baseline = parse(&text).unwrap();
        assert!(baseline.len() > 10, "{}", baseline.len());
        assert_eq!(text_of(&baseline).unwrap(), text);
    }
}
