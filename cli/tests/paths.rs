//! Paths of every option and argument, and results that cannot be printed.
#![cfg(feature = "full")]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};

use assert_cmd::cargo::CommandCargoExt;
use common::doorbell;
use rstest::rstest;

/// Where a file is taken, a directory is refused by its path and with what to do, before the work begins.
#[rstest]
#[case("compare --trace d", "--trace")]
#[case("compare --devices model --json d", "--json")]
#[case("compare --devices model,rtl --inject token --wave d", "--wave")]
#[case("report --trace d", "--trace")]
#[case("report --out d", "--out")]
#[case("why --trace d", "--trace")]
#[case("run --trace d", "--trace")]
#[case("run --model micro --prompts d", "--prompts")]
#[case("run --model micro --rules d", "--rules")]
#[case("run --perfetto d", "--perfetto")]
#[case("run --json d", "--json")]
#[case("trace info d", "[FILE]")]
#[case("trace head d", "[FILE]")]
#[case("trace convert d out.jsonl", "<INPUT>")]
#[case("trace convert file d", "<OUTPUT>")]
#[case("trace generate --requests 3 --output d", "--output")]
#[case("trajectories export log --parquet d", "--parquet")]
#[case("bench policies --trace d", "--trace")]
#[case("bench policies --svg d", "--svg")]
#[case("bench sockets --json d", "--json")]
#[case("model import m --output d", "--output")]
#[case("model judge micro d", "[TEXT]...")]
#[case("wave case --out d", "--out")]
#[case("wave case --png d", "--png")]
#[case("serve --model micro --chat-template d", "--chat-template")]
#[case("vfio-user --socket s --stop DOORBELL --wave d", "--wave")]
#[case("demo --json d", "--json")]
#[case("demo --beside d", "--beside")]
#[case("demo --svg d", "--svg")]
#[case("demo --svg d.svg --svg-dark d", "--svg-dark")]
fn a_directory_is_no_file(#[case] arguments: &str, #[case] arg: &str) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("d")).unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let run = doorbell(directory.path(), arguments);
    let told = format!("error: {arg} d: it is a directory; give a file\n");
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (2, "", told.as_str()));
}

/// A name of the command that may also be a file's.
#[test]
fn a_directory_is_no_machine() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("d")).unwrap();
    let run = doorbell(directory.path(), "model audit micro --machine d");
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.starts_with("error: cannot read machine d: it is a directory; give a file; a machine is"),
        "{}",
        run.stderr
    );
}

/// Where a directory is taken, a file is refused likewise.
#[rstest]
#[case("run --limit 1 --store f", "--store")]
#[case("trajectories info f", "<DIRECTORY>")]
#[case("trajectories show f", "<DIRECTORY>")]
#[case("trajectories verify f", "<DIRECTORY>")]
#[case("trajectories export f --parquet p", "<DIRECTORY>")]
#[case("nic collect --store f", "--store")]
#[case("nic show f", "<DIRECTORY>")]
#[case("man f", "<DIRECTORY>")]
fn a_file_is_no_directory(#[case] arguments: &str, #[case] arg: &str) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("f"), "").unwrap();
    let run = doorbell(directory.path(), arguments);
    let told = format!("error: {arg} f: it is no directory; give one\n");
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (2, "", told.as_str()));
}

/// A device may never end, so no text is read from one.
#[rstest]
#[case("serve --model micro --chat-template /dev/zero", "the chat template")]
#[case("demo --model micro --beside /dev/zero", "the recording")]
#[case("model judge micro /dev/zero", "the text")]
#[case("model audit micro --machine /dev/zero", "machine")]
fn a_device_is_no_text(#[case] arguments: &str, #[case] what: &str) {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), arguments);
    let told = format!("error: cannot read {what} /dev/zero: it is a device; give a file or a pipe");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains(&told), "{}", run.stderr);
}

/// Help and version are results: one that a full disk does not take is an error, and a reader that has gone is none.
#[rstest]
#[case("--help")]
#[case("-h")]
#[case("--version")]
#[case("run --help")]
#[case("help run")]
#[case("trace")]
fn help_that_cannot_be_written_is_an_error(#[case] arguments: &str) {
    let start = |out: Stdio| {
        let mut command = Command::cargo_bin("doorbell").unwrap();
        command.args(arguments.split_whitespace()).stdout(out).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = start(full.into()).wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    // `doorbell trace` is a mistake, which is told on standard error.
    let is_result = arguments != "trace";
    let why = "error: cannot write to standard output: No space left on device (os error 28)\n";
    assert_eq!(told == why, is_result, "{told}");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = start(writer.into());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(if is_result { 0 } else { 2 }), "{told}");
    assert_eq!(told.is_empty(), is_result, "{told}");
}

/// A command that is printed can be given to a shell as it stands, whatever the path.
#[test]
fn printed_commands_take_any_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b; it's $HOME");
    fs::create_dir(&path).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::cargo_bin("doorbell").unwrap();
        let output = command.args(arguments).current_dir(directory.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let wave = "a b; it's $HOME/x.fst";
    let open = r"open it: gtkwave 'a b; it'\''s $HOME/x.fst' 'a b; it'\''s $HOME/x.gtkw'  (the marker is at";
    let compared = run(&["compare", "--devices", "model,rtl", "--inject", "token:20:3", "--wave", wave]);
    assert!(compared.contains(&format!("{open} the divergence)")), "{compared}");
    let man = run(&["man", "a b; it's $HOME"]);
    assert!(man.contains(r"read one with `man 'a b; it'\''s $HOME/doorbell.1'`"), "{man}");
}
