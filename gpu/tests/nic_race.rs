//! W1 to W7: the kernel's text that posts into a send ring, by threads of the CPU, beside a NIC that reads by plain accesses
//! (`nic_race.cpp`). With `DOORBELL_KERNEL_TSAN=1` under ThreadSanitizer.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use rstest::rstest;

fn is_instrumented() -> bool {
    std::env::var("DOORBELL_KERNEL_TSAN").is_ok_and(|value| value == "1")
}

/// The program, compiled once in a run of the tests.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let name = if is_instrumented() { "nic_race_tsan" } else { "nic_race" };
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
        compiler.args(["-std=c++17", "-O1", "-fno-exceptions", "-fno-strict-aliasing", "-w"]);
        for include in ["gpu/cpu/kernel", "gpu/kernels", "contract"] {
            compiler.arg("-I").arg(root.join(include));
        }
        if is_instrumented() {
            compiler.arg("-fsanitize=thread");
        }
        let output = compiler
            .arg(root.join("gpu/tests/nic_race.cpp"))
            .arg("-o")
            .arg(&program)
            .arg("-lpthread")
            .output();
        let output = output.unwrap_or_else(|error| panic!("cannot run {compiler:?}: {error}"));
        assert!(output.status.success(), "{compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

fn run(arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).env("TSAN_OPTIONS", "halt_on_error=1").output().unwrap()
}

#[rstest]
#[case(&["1", "20000", "2"])]
#[case(&["4", "4000", "2"])]
#[case(&["4", "20000", "64"])]
fn w1_w7_the_kernels_entries_are_taken_whole_in_order_and_once(#[case] arguments: &[&str]) {
    let output = run(arguments);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.starts_with("modelled NIC: "), "{}\n{out}{err}", output.status);
}

/// ThreadSanitizer sees what a processor that keeps its stores in order does not.
#[test]
fn w1_without_releases_a_race_is_reported() {
    if !is_instrumented() {
        return;
    }
    let output = run(&["4", "2000", "8", "releases"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("data race"), "{}\n{err}", output.status);
}
