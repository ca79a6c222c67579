//! What the caller of `cargo xtask` sees: exit codes and the last word.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fake::fake;
use rstest::rstest;

#[path = "../../setup/src/fake.rs"]
mod fake;

/// Runs xtask with `path` as the only directory of `PATH`.
fn xtask(path: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    for variable in
        ["VERILATOR", "DOORBELL_CUDA", "DOORBELL_CUDA_ARCHITECTURES", "NVCC", "CUDA_HOME", "CUDA_PATH"]
    {
        command.env_remove(variable);
    }
    command
        .args(args)
        .env("PATH", path)
        .env("CARGO", path.join("cargo"))
        .env("CARGO_TARGET_DIR", path.join("target"))
        .env("XDG_CACHE_HOME", path.join("cache"))
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[rstest]
#[case::rtl_test(&["rtl-test"], "iverilog is not installed")]
#[case::cocotb(&["cocotb"], "there is no apt-get here")]
#[case::setup(&["setup", "--check"], "missing: g++ iverilog make perl verilator")]
#[case::setup_without_apt(&["setup"], "there is no apt-get here")]
#[case::test(&["test"], "there is no apt-get here")]
#[case::lint(&["lint"], "steps failed: ")]
#[case::cosim(&["cosim"], "cannot run ")]
fn without_programs_every_command_fails_and_says_why(#[case] args: &[&str], #[case] expected: &str) {
    let empty = tempfile::tempdir().unwrap();
    let output = xtask(empty.path(), args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

/// An Icarus that compiles everything, and refuses what the table of parameters says is to be refused.
const ICARUS: &str = r#"case "$*" in
*npu_port.Depth=8|*npu_gemv.Lines=1) echo 'repeat may not be negative' >&2; exit 1 ;;
*Queues=1|*Queues=3|*Queues=16|*Functions=1|*Functions=5|*Functions=16) exit 0 ;;
*Workers=1|*Workers=3|*Workers=16|*FetchDepth=2|*FetchDepth=4096|*CompletionDepth=8|*CompletionDepth=4096) exit 0 ;;
*Engines=1|*Engines=2|*npu_top.Gangs=1|*npu_top.Gangs=4|*.Contexts=1|*.Contexts=8) exit 0 ;;
*.Depth=2|*.Depth=8|*.Depth=64|*.Width=1|*.N=1|*.Places=8|*.Places=9) exit 0 ;;
*.Lines=1|*.Lines=2|*.Lines=1000|*.Lines=32768|*.Depth=16|*.Writes=2|*.Pieces=2) exit 0 ;;
*' -P'*) echo 'repeat may not be negative' >&2; exit 1 ;;
esac"#;

/// What builds the writer of scripts, into a folder of its own: one that writes nothing.
const CARGO: &str = r#"/bin/mkdir -p "$CARGO_TARGET_DIR/release/examples" && cd "$CARGO_TARGET_DIR/release/examples" &&
echo '#!/bin/sh' > vectors && /bin/chmod +x vectors"#;

/// Icarus exits with 0 whatever a bench found: that must not be taken for success.
#[rstest]
#[case::silent("exit 0", "benches failed")]
#[case::failing("echo 'ERROR: lost a completion'", "benches failed")]
#[case::token_of_another("echo 'some_tb: PASS'", "benches failed")]
fn benches_that_do_not_pass_fail_the_command(#[case] vvp: &str, #[case] expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path(), "iverilog", ICARUS);
    fake(dir.path(), "cargo", CARGO);
    fake(dir.path(), "vvp", vvp);
    let output = xtask(dir.path(), &["rtl-test", "--seed", "3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    assert!(stderr(&output).contains("--seed 3"), "{}", stderr(&output));
}

#[test]
fn benches_that_pass_pass() {
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path(), "iverilog", ICARUS);
    fake(dir.path(), "cargo", CARGO);
    // The compiled bench is the third argument: …/<bench>.vvp.
    fake(dir.path(), "vvp", "name=${3##*/}; echo \"${name%.vvp}: PASS\"");
    let output = xtask(dir.path(), &["rtl-test"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let left = fs::read_dir(dir.path().join("target")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != "release").collect();
    assert!(left.is_empty(), "a passing run leaves {left:?}");
}

/// Every bench runs with every seed; those that fail are named, and one failure fails the command.
#[test]
fn a_sweep_runs_all_seeds_and_names_those_that_fail() {
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path(), "iverilog", ICARUS);
    fake(dir.path(), "cargo", CARGO);
    fake(
        dir.path(),
        "vvp",
        "name=${3##*/}; name=${name%.vvp}; case $name$4 in round_robin_tb+seed=5) exit 1;; esac; echo \"$name: PASS\"",
    );
    let output = xtask(dir.path(), &["rtl-test", "round_robin", "sync_fifo", "--seed", "4", "--seeds", "3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(out.contains("round_robin_tb, seed 5: FAIL: ended with exit status: 1"), "{out}");
    assert!(out.contains("round_robin_tb: 2 of 3 seeds passed"), "{out}");
    assert!(out.contains("sync_fifo_tb: 3 of 3 seeds passed"), "{out}");
    let error = stderr(&output);
    assert!(error.contains("1 of 2 benches failed, seeds 4 to 6: round_robin_tb;"), "{error}");
    assert!(error.contains("again: cargo xtask rtl-test round_robin_tb --seed 5"), "{error}");

    let output = xtask(dir.path(), &["rtl-test", "sync_fifo", "--seed", "4", "--seeds", "3"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// What ran and whether it passed is what the Python program says; without it being run there is no success.
#[rstest]
#[case::both_pass(0, 0, 0, "")]
#[case::icarus_fails(1, 0, 1, "cocotb: 1 of 2 steps failed: icarus, seed 7")]
#[case::verilator_fails(0, 1, 1, "cocotb: 1 of 2 steps failed: verilator, seed 7")]
fn cocotb_runs_both_simulators(
    #[case] icarus: i32,
    #[case] verilator: i32,
    #[case] code: i32,
    #[case] expected: &str,
) {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().display();
    for program in ["verilator", "perl", "g++", "iverilog", "vvp", "make"] {
        fake(dir.path(), program, "");
    }
    let make = format!("/bin/mkdir -p \"$3/bin\" && /bin/cp {here}/inner \"$3/bin/python\"");
    fake(dir.path(), "python3", &format!("case \"$2\" in venv) {make};; esac"));
    let inner = format!(
        "case \"$*\" in *run.py*--seed\\ 7*) echo \"$@\" >> {here}/log;; esac\n\
         case \"$*\" in *icarus*) exit {icarus};; *verilator*) exit {verilator};; esac"
    );
    fake(dir.path(), "inner", &inner);
    let output = xtask(dir.path(), &["cocotb", "--seed", "7"]);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(log.lines().count(), 2, "one failure does not hold up the other: {log}");
}

const CLEAN: &str = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
const SPILLING: &str = "8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads";

/// A disassembler that prints a kernel with a bulk copy, and behind it what is given.
fn disassembler(dir: &Path, then: &str) {
    let text = format!("echo '.text.entry:'; echo '  /*0010*/  UBLKCP.S.G [UR6], [UR4], UR8 ;'; {then}");
    fake(dir, "nvdisasm", &text);
}

/// The case of a compiler's script that writes PTX to the file that is named last.
const PTX: &str = "*-ptx*) for file; do :; done; echo .version 9.0 > $file; exit;;";

/// What prints a proxy fence.
const FENCE: &str = "echo '  /*0020*/  FENCE.VIEW.ASYNC.G ;'";

#[rstest]
#[case::clean("entry", CLEAN, 0, 0, "")]
#[case::spilling("entry", SPILLING, 0, 1, "registers are spilled to memory in worker of entry for sm_80")]
#[case::spilling_for_engine_1("language", SPILLING, 0, 0, "worker of language")]
#[case::not_compiling("entry", CLEAN, 2, 1, "steps failed: nvcc 13.0")]
#[case::another_language("entry", "all is well", 0, 1, "ptxas gives no bytes stack frame of worker")]
fn gpu_check_judges_what_ptxas_reports(
    #[case] kernel: &str,
    #[case] properties: &str,
    #[case] status: i32,
    #[case] code: i32,
    #[case] expected: &str,
) {
    let dir = tempfile::tempdir().unwrap();
    let nvcc = format!(
        "case \"$*\" in --version) echo 'release 13.0, V13.0.1';; --list-gpu-arch) echo compute_80;; {PTX}\n\
         *) echo \"Compiling entry function '{kernel}' for 'sm_80'\"; echo 'Function properties for worker'\n\
         echo '  {properties}'; echo 'Used 32 registers'; exit {status};; esac"
    );
    fake(dir.path(), "nvcc", &nvcc);
    let output = xtask(dir.path(), &["gpu-check"]);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let out = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(out.contains(expected), "{out}");
}

#[test]
fn gpu_check_judges_every_architecture() {
    let dir = tempfile::tempdir().unwrap();
    // The first is the last to end.
    let nvcc = format!(
        "case \"$*\" in --version) echo 'release 13.0, V13.0.1'; exit;;\n\
         --list-gpu-arch) echo compute_80; echo compute_90; echo compute_100; exit;; {PTX}\n\
         *sm_80*) /bin/sleep 0.5;; esac\n\
         echo \"Compiling entry function 'worker' for 'sm_??'\"; echo 'Function properties for worker'\n\
         case \"$*\" in *sm_90a*) echo '  {SPILLING}';; *) echo '  {CLEAN}';; esac\n\
         echo 'Used 32 registers'"
    );
    fake(dir.path(), "nvcc", &nvcc);
    disassembler(dir.path(), FENCE);
    let output = xtask(dir.path(), &["gpu-check"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let out = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<&str> = out.lines().filter_map(|line| line.trim().strip_suffix("  worker")).collect();
    let named: Vec<&str> = rows.iter().filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(named, ["sm_80", "sm_90a", "sm_100"], "{out}");
    assert!(out.contains("spilled to memory in worker for sm_90a: "), "{out}");
}

/// The machine code decides: a kernel for one architecture without a fence fails, as does machine code in which nothing is found.
#[rstest]
#[case::fenced(FENCE.to_owned(), None)]
#[case::without_a_fence(format!("case \"$*\" in *sm_100*) ;; *) {FENCE};; esac"), Some("entry for sm_100 has 1 bulk copies from global memory and 0 proxy fences"))]
#[case::without_those_of_the_publisher(format!("{FENCE}; echo '$entry$Publication4load:'"), Some("1 proxy fences (fence.proxy.async.global), and needs 3"))]
#[case::a_fence_of_shared_memory("echo '  /*0020*/  FENCE.VIEW.ASYNC.S ;'".to_owned(), Some("entry for sm_90a has 1 bulk copies from global memory and 0"))]
#[case::failing("exit 3".to_owned(), Some("nvdisasm ended with exit status: 3"))]
fn gpu_check_counts_fences_in_the_machine_code(#[case] then: String, #[case] expected: Option<&str>) {
    let dir = tempfile::tempdir().unwrap();
    compiler(dir.path());
    disassembler(dir.path(), &then);
    let output = xtask(dir.path(), &["gpu-check"]);
    assert_eq!(output.status.code(), Some(i32::from(expected.is_some())), "{output:?}");
    let out = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert!(out.contains(expected.unwrap_or("sm_100: entry: 1 bulk copies, 1 proxy fences")), "{out}");
}

#[test]
fn gpu_check_needs_a_disassembler_that_names_bulk_copies() {
    let dir = tempfile::tempdir().unwrap();
    compiler(dir.path());
    let refused = || {
        let output = xtask(dir.path(), &["gpu-check"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output))
    };
    let out = refused();
    assert!(out.contains("there is no nvdisasm beside nvcc"), "{out}");
    fake(dir.path(), "nvdisasm", "echo '.text.entry:'; echo '  /*0010*/  BULKCOPY ;'");
    let out = refused();
    assert!(out.contains("names no bulk copy in the machine code for sm_90a, which has some"), "{out}");
}

/// A compiler for two architectures, with nothing to object to.
fn compiler(dir: &Path) {
    let nvcc = format!(
        "case \"$*\" in --version) echo 'release 13.0, V13.0.1'; exit;;\n\
         --list-gpu-arch) echo compute_90; echo compute_100; exit;; esac\n\
         echo \"Compiling entry function 'entry' for 'sm_??'\"; echo 'Function properties for entry'\n\
         echo '  {CLEAN}'; echo 'Used 32 registers'"
    );
    fake(dir, "nvcc", &nvcc);
}

#[test]
fn synth_names_its_modules_before_it_installs_anything() {
    let dir = tempfile::tempdir().unwrap();
    let output = xtask(dir.path(), &["synth", "--module", "desc_rung"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = stderr(&output);
    assert!(
        error.contains("there is no module desc_rung; there are ") && error.contains("desc_ring"),
        "{error}"
    );
    assert!(!error.contains("desc_pkg"), "{error}");
    // A speed grade that is not made.
    assert_eq!(xtask(dir.path(), &["synth", "--speed", "9"]).status.code(), Some(2));
}

#[test]
fn gpu_check_needs_the_compiler_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path(), "nvcc", "echo 'release 12.3, V12.3.1'");
    let check = |variable, value| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let output = command.arg("gpu-check").env("PATH", dir.path()).env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        stderr(&output)
    };
    assert!(check("NVCC", "nvcc").contains("of CUDA 12.3, and 12.4 is the oldest that works"));
    assert!(
        check("NVCC", "/no/such/nvcc").contains("NVCC names no working compiler: cannot run /no/such/nvcc")
    );
    assert!(check("DOORBELL_CUDA", "off").contains("DOORBELL_CUDA is off"));
}

#[rstest]
#[case(0)]
#[case(1)]
#[case(2)]
#[case(3)]
fn compare_hands_on_exit_code_and_arguments(#[case] code: i32) {
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path(), "cargo", &format!("echo \"$@\"; exit {code}"));
    let output = xtask(dir.path(), &["compare", "--devices", "model,rtl", "--help"]);
    assert_eq!(output.status.code(), Some(code));
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(out.trim_end().ends_with("-- compare --devices model,rtl --help"), "{out}");
}

#[rstest]
#[case(&["no-such-command"])]
#[case(&["rtl-test", "--seed", "many"])]
#[case(&["rtl-test", "--seeds", "0"])]
#[case(&[])]
fn bad_usage_is_exit_code_2(#[case] args: &[&str]) {
    assert_eq!(xtask(Path::new("/"), args).status.code(), Some(2));
}
