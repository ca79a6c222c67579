//! `doorbell wave`, and the save file with which `cargo xtask wave` shows what it records.
#![cfg(feature = "cosim")]

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::doorbell;
use rstest::rstest;
use tempfile::{TempDir, tempdir};
use wellen::SignalRef;
use wellen::simple::{Waveform, read};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn save_file() -> String {
    read_save_file("descriptor")
}

fn read_save_file(name: &str) -> String {
    fs::read_to_string(repository().join(format!("tb/wave/{name}.gtkw"))).unwrap()
}

type Signals = HashMap<String, (SignalRef, u32)>;

/// The waveform of 'basic decode', and every signal in it by its name in GTKWave.
fn recorded() -> (TempDir, Waveform, Signals) {
    let (directory, told, waveform, signals) = record("");
    assert!(told.starts_with("case.fst: ") && told.ends_with(" cycles of case 'basic decode'\n"));
    (directory, waveform, signals)
}

/// What is recorded and told with these arguments.
fn record(arguments: &str) -> (TempDir, String, Waveform, Signals) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), &format!("wave {arguments} --out case.fst"));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let waveform = read(directory.path().join("case.fst")).unwrap();
    let hierarchy = waveform.hierarchy();
    let signals = hierarchy.iter_vars().map(|var| {
        let mut name = var.full_name(hierarchy);
        if let Some(index) = var.index() {
            name += &format!("[{}:{}]", index.msb(), index.lsb());
        }
        (name, (var.signal_ref(), var.length().unwrap_or(0)))
    });
    let signals = signals.collect();
    (directory, run.stdout, waveform, signals)
}

/// The number that a signal holds at each of its changes, by the time in ns.
fn changes(waveform: &mut Waveform, signal: SignalRef) -> Vec<(u64, u64)> {
    waveform.load_signals(&[signal]);
    let times = waveform.time_table().to_vec();
    let signal = waveform.get_signal(signal).unwrap();
    let number = |bits: String| u64::from_str_radix(&bits, 2).unwrap();
    signal
        .iter_changes()
        .map(|(index, value)| (times[index as usize], number(value.to_bit_string().unwrap())))
        .collect()
}

#[test]
fn every_signal_of_the_save_file_is_in_the_waveform() {
    let (_directory, _, signals) = recorded();
    assert!(all_are_there(&save_file(), &signals) > 60);
}

/// How many signals a save file names, all of which are there.
fn all_are_there(save_file: &str, signals: &Signals) -> usize {
    let mut count = 0;
    for line in save_file.lines().filter(|line| !line.starts_with(['[', '*', '@', '-', '^'])) {
        // `+{alias} signal`, or `#{alias} (bit)signal (bit)signal …`
        let words = line.split_once("} ").map_or(line, |(_, words)| words);
        for word in words.split(' ') {
            let (bit, name) = match word.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
                Some((bit, name)) => (bit.parse().unwrap(), name),
                None => (0, word),
            };
            let found = signals.get(name);
            assert!(found.is_some_and(|&(_, bits)| bit < bits), "{name}, bit {bit}, is not in the waveform");
            count += 1;
        }
    }
    count
}

/// A token of `micro`: the save file fits what is recorded, which shows what is told.
#[cfg(feature = "lm")]
#[test]
fn a_token_is_recorded_and_listed() {
    let (_directory, told, mut waveform, signals) = record("--model micro");
    assert!(all_are_there(&read_save_file("token"), &signals) > 30);
    assert!(told.starts_with("case.fst: cycles "), "{told}");
    let rows: Vec<Vec<&str>> =
        told.lines().skip(4).map(|row| row.split('|').map(str::trim).collect()).collect();
    // Two words ahead of the layers, 19 in each of four, three behind them.
    assert_eq!(rows.len(), 2 + 4 * 19 + 3, "{told}");
    assert!(rows.last().unwrap()[6].starts_with("head "), "{told}");
    // Each unit is busy for as many cycles as its words take; ahead of the step with those of the one before.
    let begun = told.split("begun in cycle ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let begun = 10 * begun.parse::<u64>().unwrap();
    let busy = signals["top.rl_runtime_top.gen_npu.u_engine_npu.u_npu.unit_busy_q[3:0]"].0;
    let busy = changes(&mut waveform, busy);
    let busy: Vec<(u64, u64)> = busy.into_iter().filter(|&(time, _)| time >= begun).collect();
    let cycles = |unit: u32| -> u64 {
        let pairs = busy.iter().zip(busy.iter().skip(1));
        pairs.map(|((from, units), (to, _))| if units >> unit & 1 == 1 { (to - from) / 10 } else { 0 }).sum()
    };
    let listed: u64 = rows.iter().map(|row| row[3].parse::<u64>().unwrap() + 1).sum();
    assert_eq!((0..4).map(cycles).sum::<u64>(), listed, "{told}");
    let directory = tempdir().unwrap();
    for (arguments, problem) in [
        ("--model nonsense", "error: there is no model nonsense: give a path"),
        ("basic_decode --model micro", "error: the argument '[CASE]' cannot be used with"),
    ] {
        let run = doorbell(directory.path(), &format!("wave {arguments} --out x.fst"));
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.starts_with(problem), "{}", run.stderr);
    }
}

#[test]
fn a_picture_needs_no_other_program() {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), "wave --png case.png --span 2500..4000");
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let png = fs::read(directory.path().join("case.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "{} bytes", png.len());
    assert!(directory.path().join("case.fst").exists());
    std::os::unix::fs::symlink("/dev/full", directory.path().join("full")).unwrap();
    let run = doorbell(directory.path(), "wave --png full --out full.fst");
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.starts_with("error: cannot write full: No space left on device"), "{}", run.stderr);
    assert!(directory.path().join("full").symlink_metadata().unwrap().is_symlink());
    assert!(read(directory.path().join("full.fst")).is_ok(), "the waveform is there all the same");
    for (arguments, problem) in [
        ("--png no/such/case.png", "error: cannot write picture no/such/case.png: "),
        ("--png x.png --out x.png", "error: --out and --png are the same file"),
        ("--out x.fst --span 1..2", "error: the following required arguments were not provided:\n  --png"),
        ("--png x.png --span 2..1", "error: invalid value '2..1' for '--span <NS..NS>'"),
    ] {
        let run = doorbell(directory.path(), &format!("wave {arguments}"));
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.starts_with(problem), "{}", run.stderr);
        assert!(!directory.path().join("x.png").exists(), "nothing is left behind");
    }
}

#[test]
fn the_save_file_opens_at_the_first_doorbell() {
    let (_directory, mut waveform, signals) = recorded();
    let doorbell = changes(&mut waveform, signals["top.rl_runtime_top.doorbell"].0);
    let first = doorbell.iter().find(|&&(time, value)| time > 5 && value == 1).unwrap().0;
    let save_file = save_file();
    let number = |prefix: &str, word: usize| {
        let line = save_file.lines().find(|line| line.starts_with(prefix)).unwrap();
        line.split_whitespace().nth(word).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(number("*", 1), first, "the marker of tb/wave/descriptor.gtkw is at the first doorbell");
    let start = number("[timestart]", 1);
    assert!((first - 40..first).contains(&start), "the view starts at {start} ns, shortly before it");
}

#[test]
fn filters_are_there_and_worker_states_have_their_names() {
    let save_files = save_file() + &read_save_file("token");
    let filters = save_files.lines().filter(|line| line.starts_with('^'));
    let filters: Vec<&str> = filters.map(|line| line.split_once(' ').unwrap().1).collect();
    assert!(filters.len() >= 12);
    for filter in filters {
        assert!(repository().join(filter).is_file(), "{filter} is missing");
    }

    // The state of worker 0 is shown as {run_q, wait_q}: every value that it takes has a name.
    let (_directory, mut waveform, signals) = recorded();
    let text = fs::read_to_string(repository().join("tb/wave/worker_state.txt")).unwrap();
    let named: HashMap<u64, &str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(value, name)| (value.parse().unwrap(), name))
        .collect();
    assert_eq!(named.len(), 3);
    let workers = "top.rl_runtime_top.u_rollout_worker_fsm";
    let ever = |waveform: &mut Waveform, name: &str| {
        let signal = signals[&format!("{workers}.{name}[3:0]")].0;
        changes(waveform, signal).iter().any(|&(time, value)| time > 50 && value & 1 == 1)
    };
    assert!(ever(&mut waveform, "run_q"), "worker 0 never runs");
    assert_eq!((named[&0], named[&1], named[&2]), ("Idle", "Wait", "Run"));
}

#[rstest]
#[case::unknown_case(
    "nonsense --out x.fst",
    2,
    "error: unknown case 'nonsense'; the cases are:\n  'basic decode'\n"
)]
#[case::unwritable("--out no/such/place.fst", 2, "error: cannot write waveform no/such/place.fst: ")]
#[case::too_many_workers("--out x.fst --workers 17", 2, "error: invalid value '17'")]
fn refusals(#[case] arguments: &str, #[case] code: i32, #[case] message: &str) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), &format!("wave {arguments}"));
    assert_eq!(run.code, code);
    assert!(run.stderr.starts_with(message), "{}", run.stderr);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_waveform_is_named_after_its_case() {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), "wave basic_decode --json");
    let json: serde_json::Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr));
    assert_eq!((&json["waveform"], &json["passed"]), (&"basic-decode.fst".into(), &true.into()), "{json}");
    assert!(directory.path().join("basic-decode.fst").is_file());
}
