//! `doorbell trace …`: formats, errors and exit codes.

mod common;

use std::fs;

use common::doorbell;
use rstest::rstest;
use tempfile::tempdir;

const MOONCAKE: &str = "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 50, \"hash_ids\": [0, 1]}\n\
                        {\"timestamp\": 500, \"input_length\": 700, \"output_length\": 7, \"hash_ids\": [0, 2]}\n";
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n\
                     2023-11-16 18:15:50.9951690,396,109";

#[test]
fn info_tells_what_a_trace_holds() {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("mooncake"), MOONCAKE).unwrap();
    fs::write(directory.path().join("azure"), AZURE).unwrap();
    let of = |arguments| {
        let run = doorbell(directory.path(), arguments);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
        run.stdout
    };
    insta::assert_snapshot!(format!(
        "{}\n{}\n{}\n{}",
        of("trace info mooncake"),
        of("trace info azure"),
        of("trace info"),
        of("trace info mooncake --json")
    ));
}

#[rstest]
#[case::mooncake(MOONCAKE)]
#[case::azure(AZURE)]
fn converted_traces_hold_the_same(#[case] text: &str) {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("in"), text).unwrap();
    assert_eq!(doorbell(directory.path(), "trace convert in out").code, 0);
    let requests = |file: &str| {
        let run = doorbell(directory.path(), &format!("trace info {file}"));
        run.stdout.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(requests("in"), requests("out"));
    let to_stdout = doorbell(directory.path(), "trace convert in -");
    assert_eq!(to_stdout.stdout, fs::read_to_string(directory.path().join("out")).unwrap());
}

#[test]
fn generated_traces_are_reproducible_and_can_be_cut() {
    let directory = tempdir().unwrap();
    let generate = "trace generate --requests 40 --seed 3 --group 4";
    let first = doorbell(directory.path(), generate);
    assert_eq!(first.code, 0);
    assert_eq!(first.stdout, doorbell(directory.path(), generate).stdout);
    assert_ne!(
        first.stdout,
        doorbell(directory.path(), "trace generate --requests 40 --seed 4 --group 4").stdout
    );
    assert_eq!(doorbell(directory.path(), &format!("{generate} -o file")).code, 0);
    let head = doorbell(directory.path(), "trace head file -n 5");
    assert_eq!(head.stdout.lines().collect::<Vec<_>>(), first.stdout.lines().take(6).collect::<Vec<_>>());
}

#[rstest]
#[case::missing("trace info nothing-there", "error: cannot read nothing-there: ")]
#[case::zero("trace generate --requests 0", "error: --requests is 0; it must be 1 to 10000000")]
#[case::median(
    "trace generate --requests 1 --output-median 9 --output-max 8",
    "error: --output-median is 9; it must be 1 to 8"
)]
#[case::unwritable("trace generate --requests 1 -o no/such/file", "error: cannot write trace no/such/file: ")]
#[case::full("trace generate --requests 1 -o /dev/full", "error: cannot write /dev/full: ")]
#[case::directory("trace convert good .", "error: <OUTPUT> .: it is a directory; give a file")]
#[case::malformed(
    "trace info bad",
    "error: bad:3:35: invalid type: string \"7\", expected u32\nexpected a record {"
)]
#[case::unknown(
    "trace info unknown",
    "error: unknown:1:1: not a trace in a known format; found `hello`\nknown formats:"
)]
#[case::compare("compare --devices model,model --trace bad", "error: bad:3:35: invalid type")]
fn bad_input_is_told_with_code_2(#[case] arguments: &str, #[case] problem: &str) {
    let directory = tempdir().unwrap();
    let good = doorbell(directory.path(), "trace head -n 1").stdout;
    fs::write(directory.path().join("good"), &good).unwrap();
    fs::write(directory.path().join("bad"), format!("{good}{{\"arrival_ms\":0,\"prompt_tokens\":\"7\"}}\n"))
        .unwrap();
    fs::write(directory.path().join("unknown"), "hello\n").unwrap();
    let run = doorbell(directory.path(), arguments);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with(problem), "{}", run.stderr);
}

/// What a trace says of itself, right or wrong, is shown as text.
#[test]
fn a_traces_own_words_steer_no_terminal() {
    let directory = tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let steers = |text: &str| text.contains(|letter: char| letter.is_control() && letter != '\n');
    let own = concat!(
        r#"{"doorbell_trace":1,"source":"a\u001b[31m\u009b2J\nidentical: forged"}"#,
        "\n",
        r#"{"arrival_ms":0,"prompt_tokens":9,"output_tokens":5,"prefix":[]}"#,
        "\n"
    );
    fs::write(at("source"), own).unwrap();
    fs::write(at("csv"), "TIMESTAMP,ContextTokens,GeneratedTokens\n\u{1b}[31m,\u{9b}2J,1\n").unwrap();
    fs::write(at("other"), "\u{1b}[31m\n").unwrap();
    for (command, code) in [
        ("trace info source", 0),
        ("trace info source --json", 0),
        ("trace head source", 0),
        ("compare --devices model,model --trace source", 0),
        ("compare --devices model,model --trace source --json -", 0),
        ("trace info csv", 2),
        ("trace info other", 2),
    ] {
        let run = doorbell(directory.path(), command);
        assert_eq!(run.code, code, "{command}: {}", run.stderr);
        assert!(!steers(&run.stdout) && !steers(&run.stderr), "{command}: {:?}{:?}", run.stdout, run.stderr);
        assert!(!run.stdout.contains("\nidentical: forged"), "{command}: {}", run.stdout);
    }
}
