//! A program without some commands, as `make compare` builds it: `cargo test -p doorbell --no-default-features --test left_out`.
#![cfg(not(feature = "lm"))]

mod common;

use common::doorbell;
use rstest::rstest;

#[rstest]
#[case("demo", "demo")]
#[case("completions bash", "completions")]
#[case("run", "run")]
#[case("run --model micro --help", "run")]
#[case("generate hello --device rtl", "generate")]
#[case("model list", "model")]
#[case("trajectories verify x", "trajectories")]
#[case("trajectories export x --parquet y", "trajectories")]
#[case("wave --out x.fst", "wave")]
#[case("cosim", "cosim")]
#[case("bench all", "bench")]
#[case("top --once", "top")]
#[case("serve --model micro", "serve")]
#[case("report --devices model", "report")]
#[case("vfio-user --socket s", "vfio-user")]
#[case("compare --model", "--model")]
#[case("compare --trace-scope u_dispatcher", "--trace-scope")]
#[case("compare --model micro --lockstep", "--lockstep")]
fn what_was_left_out_says_so(#[case] arguments: &str, #[case] name: &str) {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), arguments);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    let feature = match name {
        "run" | "trajectories" | "top" => "runtime",
        "wave" | "cosim" | "--trace-scope" => "cosim",
        "bench" => "bench",
        "completions" => "shell",
        "serve" => "serve",
        "report" => "report",
        "vfio-user" => "vfio",
        _ => "lm",
    };
    let brings = format!("the feature '{feature}'");
    for part in [
        &format!("'{name}' was not built"),
        &brings,
        "cargo build --release --package doorbell --features full",
    ] {
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
}

#[test]
fn help_says_that_there_are_more_commands() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "--help");
    assert_eq!(run.code, 0);
    assert!(
        run.stdout.contains("cargo build --release --package doorbell --features full"),
        "{}",
        run.stdout
    );
}
