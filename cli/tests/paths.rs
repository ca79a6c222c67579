//! Paths of every option and argument, and results that cannot be printed.
#![cfg(feature = "full")]

mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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

/// Runs `doorbell` in `directory`; each '@' stands for a byte that is in no text in UTF-8.
fn with_bytes(directory: &Path, arguments: &str) -> Output {
    let mut command = Command::cargo_bin("doorbell").unwrap();
    command.args(arguments.split_whitespace().map(named)).current_dir(directory).output().unwrap()
}

fn named(word: &str) -> OsString {
    OsString::from_vec(word.bytes().map(|byte| if byte == b'@' { 0xFF } else { byte }).collect())
}

/// A path that is no UTF-8 is a path like any other: what it names is read and written, and JSON says it with U+FFFD in the place of the bytes.
#[rstest]
#[case("run --limit 2 --store x@ --json -")]
#[case("run --limit 2 --store x@ --perfetto y@ --json z@")]
#[case("run --limit 2 --trace trace@ --json -")]
#[case("run --model micro --max-tokens 2 --prompts prompts@ --json -")]
#[case("trajectories info log@ --json")]
#[case("trajectories verify log@ --json")]
#[case("trajectories show log@ --json")]
#[case("trajectories export log@ --parquet x@ --json")]
#[case("model import micro -o x@ --json")]
#[case("model judge micro text@ --tokens 20 --max-divergence 99 --max-change 1 --json")]
#[case("compare --devices model,model --limit 2 --trace trace@ --json -")]
#[case("compare --devices model,model --limit 2 --json x@")]
#[case("wave --png x@ --out x.fst --json")]
#[case("demo --devices model --tokens 1 --json x@ --svg y@")]
#[case("trace info trace@ --json")]
#[case("nic show log@ --json")]
#[case("bench cow --quick --trace trace@ --json -")]
fn a_path_may_have_any_bytes(#[case] arguments: &str) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(named(name));
    let head = doorbell(directory.path(), "trace head -n 3");
    fs::write(at("trace@"), head.stdout).unwrap();
    fs::write(at("prompts@"), "{\"prompt\":\"hello\"}\n").unwrap();
    fs::write(at("text@"), "some text of some words, ".repeat(9)).unwrap();
    if arguments.contains("log@") {
        assert!(with_bytes(directory.path(), "run --limit 2 --store log@").status.success());
    }
    let run = with_bytes(directory.path(), arguments);
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{told}");
    let json = String::from_utf8(run.stdout).expect("JSON is text");
    if arguments.ends_with("--json") || arguments.ends_with('-') {
        serde_json::from_str::<serde_json::Value>(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    }
    // Those whose JSON names what they wrote, or read.
    let names_it = ["--store x@ --json", "--prompts", "--parquet", "import", "wave"];
    let names_it = names_it.iter().any(|word| arguments.contains(word));
    assert!(!names_it || json.contains('\u{fffd}'), "{json}");
}

/// The simulator takes no such path, which is told before anything is simulated.
#[rstest]
#[case("wave --out x@")]
#[case("wave --out x@ --json")]
#[case("wave --png x@")]
#[case("compare --devices model,rtl --limit 2 --wave x@ --json -")]
#[case("vfio-user --socket s --stop DOORBELL --wave x@")]
fn a_waveform_has_a_path_in_utf_8(#[case] arguments: &str) {
    let directory = tempfile::tempdir().unwrap();
    let run = with_bytes(directory.path(), arguments);
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!((run.status.code(), run.stdout.as_slice()), (Some(2), &b""[..]), "{told}");
    assert!(told.starts_with("error: cannot write waveform x\u{fffd}"), "{told}");
    assert!(told.ends_with(": the simulator takes only paths in UTF-8; give another\n"), "{told}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "something is left behind");
}

/// Where '-' is not standard output, no file of this name is made.
#[rstest]
#[case("run --limit 1 --perfetto -")]
#[case("compare --devices model,rtl --limit 1 --wave -")]
#[case("wave --out -")]
#[case("wave --png -")]
#[case("wave --png x.png --out -")]
#[case("report --devices model --limit 1 --out -")]
#[case("trajectories export log --parquet -")]
#[case("model import micro --output -")]
#[case("demo --devices model --tokens 1 --svg -")]
#[case("demo --devices model --tokens 1 --svg-dark -")]
#[case("bench policies --quick --svg -")]
#[case("vfio-user --socket s --stop DOORBELL --wave -")]
fn standard_output_takes_json_and_traces(#[case] arguments: &str) {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), arguments);
    let advice = " -: only JSON and traces can go to standard output ('-'); give a file, or ./- for one of that name\n";
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with("error: cannot write "), "{}", run.stderr);
    assert!(run.stderr.ends_with(advice), "{}", run.stderr);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "something is left behind");
}

#[test]
fn a_file_may_have_the_name_of_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "model import micro --output ./-");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(directory.path().join("-").is_file());
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
