//! What the caller of `cargo xtask rtl-test` gets beside a verdict: waveforms, seeds, CPU time.

use std::path::Path;
use std::process::{Command, Output};

use fake::fake;
use tempfile::TempDir;

#[path = "../../setup/src/fake.rs"]
mod fake;

/// A directory with an Icarus that says what it was told, writes the waveform it is asked for and passes.
fn icarus() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path(), "iverilog", "");
    fake(
        dir.path(),
        "vvp",
        "name=${3##*/}; echo \"$@\" >> \"$CARGO_TARGET_DIR/../told\"
         for a; do case $a in +wave=*) echo wave > \"${a#+wave=}\";; esac; done; echo \"${name%.vvp}: PASS\"",
    );
    dir
}

fn rtl_test(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("rtl-test").args(args).current_dir(dir);
    command.env("PATH", dir).env("CARGO_TARGET_DIR", dir.join("target")).output().unwrap()
}

fn passes(dir: &Path, args: &[&str]) -> String {
    let output = rtl_test(dir, args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn told(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("told")).unwrap()
}

/// N04: the file lies where the user said, and stays there though the bench passed.
#[test]
fn a_waveform_goes_into_the_users_file() {
    let dir = icarus();
    let out = passes(dir.path(), &["sync_fifo", "--", "+wave=mine.vcd"]);
    let file = dir.path().canonicalize().unwrap().join("mine.vcd");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "wave\n");
    assert!(out.contains(&format!("waveform: {}\n", file.display())), "{out}");
    assert!(!told(dir.path()).contains("-fst"), "VCD is no FST: {}", told(dir.path()));
}

/// N04: without a name each run has a file of its own, which is printed.
#[test]
fn a_waveform_without_a_name_is_recorded_and_named() {
    let dir = icarus();
    let out = passes(dir.path(), &["sync_fifo", "round_robin", "--seed", "5", "--", "+wave"]);
    for run in ["sync_fifo_tb-5", "round_robin_tb-5"] {
        let file = dir.path().join("target/wave").join(run).with_extension("fst");
        assert!(file.exists(), "{}: {out}", file.display());
        assert!(out.contains(&format!("wave/{run}.fst\n")), "{out}");
    }
    assert!(told(dir.path()).lines().all(|line| line.ends_with("-fst")), "{}", told(dir.path()));
}

#[test]
fn one_file_is_not_for_several_runs_nor_for_a_folder_that_is_not_there() {
    let dir = icarus();
    for (args, expected) in [
        (&["sync_fifo", "round_robin", "--", "+wave=a.fst"][..], "+wave=a.fst is the file of one run"),
        (&["sync_fifo", "--seeds", "2", "--", "+wave=a.fst"], "+wave=a.fst is the file of one run"),
        (&["sync_fifo", "--", "+wave=none/a.fst"], "cannot write "),
        (&["sync_fifo", "--", "+wave", "+wave=a.fst"], "there are 2 of +wave"),
    ] {
        let output = rtl_test(dir.path(), args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(expected), "{error}");
    }
}

/// A red run means something only where the next one draws the same.
#[test]
fn seeds_are_committed_unless_they_are_to_be_fresh() {
    let dir = icarus();
    for _ in 0..2 {
        let out = passes(dir.path(), &["sync_fifo"]);
        assert!(out.contains("1 benches, seed 1\n"), "{out}");
        assert!(out.contains("sync_fifo_tb: PASS (0.0 s of CPU)"), "{out}");
    }
    assert!(told(dir.path()).lines().all(|line| line.contains(" +seed=1")), "{}", told(dir.path()));
    let out = passes(dir.path(), &["sync_fifo", "--fresh"]);
    let seed = out.lines().find_map(|line| line.strip_prefix("fresh seed ")).unwrap();
    assert!(told(dir.path()).lines().last().unwrap().contains(&format!("+seed={seed}")), "{out}");
    assert_eq!(rtl_test(dir.path(), &["sync_fifo", "--fresh", "--seed", "3"]).status.code(), Some(2));
}

#[test]
fn a_long_draw_takes_200_seeds() {
    let dir = icarus();
    let out = passes(dir.path(), &["sync_fifo", "--long"]);
    assert!(out.contains("sync_fifo_tb: 200 of 200 seeds passed ("), "{out}");
    assert!(out.contains("seeds 1 to 200"), "{out}");
    assert!(told(dir.path()).lines().all(|line| line.contains(" +long")), "{}", told(dir.path()));
}
