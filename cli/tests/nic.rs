//! `doorbell nic`, and `doorbell run --nic`, from end to end.
#![cfg(feature = "runtime")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Run, doorbell};
use doorbell_contract::HwNicEntry;
use doorbell_nic::store::{Store, body};
use rstest::rstest;
use serde_json::Value;

/// A collector in a process of its own, and its address. It ends with the test.
struct Collecting(Child, String);

impl Drop for Collecting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn collect(directory: &Path, address: &str) -> Collecting {
    let mut child = Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .current_dir(directory)
        .args(["nic", "collect", "--store", "collected", "--listen", address])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let first = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let address =
        first.strip_prefix("modelled NIC: collector listening at ").expect("the first line").to_owned();
    Collecting(child, address)
}

/// The payloads of a log's records, by the table of docs/trajectories.md, in any order.
fn stored(log: &Path) -> Vec<Vec<u8>> {
    let mut payloads = vec![];
    for file in std::fs::read_dir(log).unwrap().map(|file| file.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap();
        if !bytes.starts_with(b"DBTRAJEC") {
            continue;
        }
        let mut rest = &bytes[32..];
        while let Some((head, body)) = rest.split_at_checked(24) {
            assert_eq!(&head[..4], b"DbTr");
            let length = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
            payloads.push(body[..length].to_vec());
            rest = &body[length..];
        }
    }
    payloads.sort();
    payloads
}

/// The payloads of a collector's records, by the list of docs/nic.md.
fn collected(directory: &Path) -> Vec<Vec<u8>> {
    let mut payloads = vec![];
    for file in std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap();
        let mut rest = &bytes[32..];
        while let Some((head, body)) = rest.split_at_checked(24) {
            let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
            payloads.push(body[64..64 + length].to_vec());
            rest = &body[64 + length..];
        }
    }
    payloads.sort();
    payloads
}

/// What arrives is what the log has, byte for byte, with and without one beside it.
#[test]
fn the_collector_has_the_records_that_the_log_has() {
    let directory = tempfile::tempdir().unwrap();
    let collector = collect(directory.path(), "127.0.0.1:0");
    let args = "run --checkpoint 16 --group 2 --logprobs --seed 5 --no-sync";
    let both = doorbell(directory.path(), &format!("{args} --store log --nic {}", collector.1));
    assert_eq!(both.code, 0, "{}", both.stderr);
    let lines: Vec<&str> = both.stderr.lines().filter(|line| line.contains("NIC")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("modelled")), "{}", both.stderr);
    let log = stored(&directory.path().join("log"));
    assert_eq!(log.len(), 512);
    assert!(collected(&directory.path().join("collected")) == log);
    let alone = doorbell(directory.path(), &format!("{args} --nic {}", collector.1));
    assert_eq!(alone.code, 0, "{}", alone.stderr);
    assert!(alone.stdout.contains("carried by a modelled NIC"), "{}", alone.stdout);
    drop(collector);
    let Run { code, stdout, stderr } = doorbell(directory.path(), "nic show collected --json");
    assert_eq!(code, 0, "{stderr}");
    let streams: Value = serde_json::from_str(&stdout).unwrap();
    let counts: Vec<_> =
        streams["streams"].as_array().unwrap().iter().map(|stream| stream["payloads"].as_u64()).collect();
    assert_eq!(counts, [Some(512), Some(512)]);

    // As a log they are what a trainer reads, each stream as a run.
    let Run { code, stdout, stderr } = doorbell(directory.path(), "nic extract collected --store extracted");
    assert_eq!(
        (code, stdout.contains("1024 trajectories written to extracted, of 2 files")),
        (0, true),
        "{stdout}{stderr}"
    );
    let extracted = stored(&directory.path().join("extracted"));
    let mut twice = [&log[..], &log[..]].concat();
    twice.sort();
    assert!(extracted == twice);
    let Run { code, stdout, stderr } = doorbell(directory.path(), "trajectories verify extracted");
    assert!(code == 0 && stdout.contains("1024 of 1024 records whole"), "{stdout}{stderr}");
    let again = doorbell(directory.path(), "nic extract collected --store extracted");
    assert!(again.code == 2 && again.stderr.contains("extracted has records"), "{}", again.stderr);
}

/// A payload that is no trajectory is told with its file and its number.
#[test]
fn what_is_no_trajectory_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(directory.path(), 7, false).unwrap();
    store.append(&body(&HwNicEntry::default(), b"no trajectory"));
    store.commit().unwrap();
    drop(store);
    let run = doorbell(directory.path(), "nic extract . --store log");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let told = "0000000000000007.nic: record 0 is no trajectory: it is shorter than its fixed fields";
    assert!(run.stderr.contains(told), "{}", run.stderr);
}

/// A run without a collector does not begin, and says what to start.
#[test]
fn a_collector_that_is_not_there_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let run = doorbell(directory.path(), "run --limit 4 --nic 127.0.0.1:1");
    assert_eq!(run.code, 2, "{}", run.stderr);
    let told = "modelled NIC: no collector at 127.0.0.1:1";
    assert!(run.stderr.contains(told) && run.stderr.contains("doorbell nic collect"), "{}", run.stderr);
}

#[test]
fn what_cannot_be_collected_is_bad_input() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    for args in [
        "nic collect --store file",
        "nic collect --store d --listen nowhere",
        "nic show missing",
        "nic extract missing --store d",
    ] {
        let run = doorbell(directory.path(), args);
        assert_eq!(run.code, 2, "{args}: {}", run.stderr);
    }
    std::fs::create_dir(directory.path().join("other")).unwrap();
    std::fs::write(directory.path().join("other/0.nic"), [7; 64]).unwrap();
    let run = doorbell(directory.path(), "nic show other");
    assert!(run.code == 2 && run.stderr.contains("0.nic"), "{}", run.stderr);
    // Files that a collector had begun when it was killed are shown beside it.
    std::fs::write(directory.path().join("other/000000000000000a.nic"), "DBN").unwrap();
    std::fs::write(directory.path().join("other/000000000000000b.nic"), "").unwrap();
    let run = doorbell(directory.path(), "nic show other");
    assert!(run.code == 2 && run.stderr.contains("0.nic"), "{}", run.stderr);
    for line in [
        "stream 000000000000000a: 0 payloads with 0 bytes, then 3 bytes",
        "stream 000000000000000b: 0 payloads",
    ] {
        assert!(run.stdout.contains(line), "{}", run.stdout);
    }
}

#[test]
fn the_bench_carries_every_entry_to_a_collector_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let Run { code, stdout, stderr } =
        doorbell(directory.path(), "bench nic --quick --entries 20000 --json -");
    assert_eq!(code, 0, "{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let found = &json["nic_entries"];
    assert_eq!(
        (&found["lost"], &found["doubled"], &found["torn"]),
        (&0.into(), &0.into(), &0.into()),
        "{found}"
    );
    assert!(
        found["frames_lost"].as_u64() > Some(100)
            && found["kills"] == 8
            && found["connections"].as_u64() >= Some(9),
        "{found}"
    );
    let rows: Vec<&str> = stderr.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.iter().filter(|row| row.contains("modelled")).count() >= 14, "{stderr}");
}

/// Clients that are refused, by the hundred, cause a few lines, of which one says how many were left out.
#[test]
fn a_flood_of_refused_clients_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .current_dir(directory.path())
        .args(["--quiet", "nic", "collect", "--store", "collected", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    let address = first.trim().rsplit_once(' ').unwrap().1.to_owned();
    let mut collector = Collecting(child, address);
    for _ in 0..200 {
        let mut client = TcpStream::connect(&collector.1).unwrap();
        // Nothing of this is a frame; the collector hangs up.
        client.write_all(&[0x55; 256]).unwrap();
        let _ = client.read_to_end(&mut vec![]);
    }
    let pid = collector.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut told = String::new();
    collector.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    let mut summary = String::new();
    out.read_to_string(&mut summary).unwrap();
    assert!(summary.contains("; 200 connections were refused"), "{summary}");
    assert!((1..60).contains(&told.lines().count()), "{} lines", told.lines().count());
    assert!(told.lines().all(|line| line.contains("was ended")), "{told}");
}

/// Processes that have `word` in their command line, and that have not ended.
fn running(word: &str) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has = |id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    ids.filter(has).collect()
}

/// A signal that ends a bench ends the programs that it started, and removes what it had made.
#[rstest]
#[case::nic("nic", "TERM", 15, true)]
#[case::nic_by_hand("nic", "INT", 2, true)]
#[case::serve("serve", "TERM", 15, true)]
#[case::trajectories("trajectories", "TERM", 15, false)]
fn a_bench_that_a_signal_ends_leaves_nothing(
    #[case] what: &str,
    #[case] name: &str,
    #[case] signal: i32,
    #[case] has_programs: bool,
) {
    if what == "serve" && !cfg!(feature = "serve") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let word = directory.path().to_str().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_doorbell"))
        .args(["bench", what])
        .current_dir(word)
        .env("TMPDIR", word)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let wait = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(since.elapsed() < Duration::from_secs(60), "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    let is_empty = || std::fs::read_dir(word).unwrap().next().is_none();
    wait("nothing is made", &|| !is_empty() && (!has_programs || !running(word).is_empty()));
    let pid = bench.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    let status = bench.wait().unwrap();
    assert_eq!(status.signal(), Some(signal), "{status}");
    wait("a program goes on", &|| running(word).is_empty());
    assert!(is_empty(), "{:?}", std::fs::read_dir(word).unwrap().collect::<Vec<_>>());
}

/// A place for temporary files that is not there is told by the variable that names it.
#[test]
fn a_missing_place_for_temporary_files_is_told() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    let output = command.args(["bench", "nic", "--quick"]).env("TMPDIR", "/nonexistent").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    let expected = "error: cannot make a folder in /nonexistent: entity not found; set TMPDIR to a directory that can be written\n";
    assert!(told.ends_with(expected), "{told}");
}
