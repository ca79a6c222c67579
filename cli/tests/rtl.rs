//! `doorbell compare` with the RTL: agreement on small traces, and a waveform where there is none.
#![cfg(feature = "rtl")]

mod common;

use std::fs;

use common::doorbell;
use rstest::rstest;
use serde_json::Value;
use tempfile::tempdir;

/// Runs a comparison of model and RTL, and returns its exit code, what it printed and the JSON.
fn compare(arguments: &str) -> (i32, String, Value) {
    run(&format!("--devices model,rtl {arguments}"))
}

fn run(arguments: &str) -> (i32, String, Value) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), &format!("compare {arguments} --json out.json"));
    let json =
        fs::read_to_string(directory.path().join("out.json")).unwrap_or_else(|_| panic!("{}", run.stderr));
    assert_eq!(
        directory.path().join("divergence.fst").exists(),
        run.code == 1,
        "a waveform comes with a difference"
    );
    (run.code, run.stdout, serde_json::from_str(&json).unwrap())
}

#[test]
fn r06_without_arguments_all_devices_agree_and_the_missing_are_named() {
    let (code, text, json) = run("");
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("identical: 256 completions and 21285 tokens on model, rtl"), "{text}");
    assert_eq!(json["devices"][0]["digest"], json["devices"][1]["digest"]);
    // Whether there is a GPU is the machine's business.
    let (here, missing) = (&json["devices"][2]["name"], &json["skipped"][0]["device"]);
    assert!((here == "gpu") ^ (missing == "gpu"), "{text}");
    if missing == "gpu" {
        let reason = json["skipped"][0]["reason"].as_str().unwrap();
        assert!(text.contains(&format!("skipped: gpu ({reason})\n")), "{text}");
    }
}

#[rstest]
#[case::groups("--group 4 --limit 40")]
#[case::checkpoints("--checkpoint 32 --limit 100")]
#[case::every_token("--checkpoint 1 --limit 10")]
#[case::resident("--checkpoint 16 --resident --reward-threshold 0.1")]
#[case::eos("--eos 0.01 --checkpoint 32")]
#[case::stops("--stop-every 2")]
#[case::stops_at_checkpoints("--stop-every 1 --checkpoint 16 --group 2 --limit 60 --eos 0.002")]
#[case::smallest_queues("--sq-depth 2 --cq-depth 2 --limit 60")]
#[case::backpressure("--cq-depth 2 --checkpoint 8 --limit 60")]
#[case::wait_states("--wait-states 3 --limit 40")]
fn r06_rtl_agrees_with_the_model(#[case] arguments: &str, #[values(1, 4, 15)] workers: u32) {
    let (code, text, _) = compare(&format!("--workers {workers} {arguments}"));
    assert_eq!(code, 0, "{text}");
}

#[rstest]
fn r06_memory_does_not_matter(
    #[values(1, 2, 3, 4, 5, 6, 7, 8)] seed: u32,
    #[values("", "--stop-every 3")] stops: &str,
) {
    let (code, text, _) = compare(&format!(
        "--random-memory --seed {seed} --checkpoint 24 --group 2 --limit 24 --eos 0.003 {stops}"
    ));
    assert_eq!(code, 0, "{text}");
}

#[rstest]
#[case::token("token:20:3", "token ")]
#[case::result("completion:30:result", "result ")]
#[case::status("completion:30:status", "status ")]
#[case::unread("read-error:40", "DMA_FAULT")]
#[case::lost_tokens("token-error:40", "DMA_FAULT")]
#[case::hang("hang:5", "failed: rtl did not finish: rtl: a completion did not happen within")]
#[case::assertion("response:500", "failed: rtl did not finish: rtl: assertion failed: R3")]
fn a_fault_is_found_and_recorded(#[case] fault: &str, #[case] told: &str) {
    let (code, text, json) = compare(&format!("--inject {fault}"));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(told), "{text}");
    assert_eq!(json["waveform"]["file"], "divergence.fst");
    assert!(json["waveform"]["problem"].is_null(), "{}", json["waveform"]);
    let cycle = |name: &str| json["waveform"][name].as_u64().unwrap();
    let (first, last) = (cycle("first_cycle"), cycle("last_cycle"));
    let seen = cycle("divergence_cycle");
    assert!(first < last && (first..=last).contains(&seen), "{}", json["waveform"]);
    assert!(cycle("divergence_after_cycle") <= seen);
    assert!(text.contains(&format!("divergence: seen in cycle {seen}")), "{text}");
    assert!(text.contains("open it: gtkwave divergence.fst divergence.gtkw"), "{text}");
}

/// GTKWave opens the waveform with signals that are there, for any number of workers, and a marker at the divergence.
#[rstest]
fn the_save_file_beside_the_waveform_fits_it(#[values("--workers 1", "")] workers: &str) {
    let directory = tempdir().unwrap();
    let run = doorbell(
        directory.path(),
        &format!("compare --devices model,rtl --inject token:20:3 {workers} --json -"),
    );
    assert_eq!(run.code, 1, "{}", run.stderr);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    let waveform = wellen::simple::read(directory.path().join("divergence.fst")).unwrap();
    let hierarchy = waveform.hierarchy();
    let names: std::collections::HashSet<String> = hierarchy
        .iter_vars()
        .map(|var| {
            let index = var.index().map(|index| format!("[{}:{}]", index.msb(), index.lsb()));
            var.full_name(hierarchy) + &index.unwrap_or_default()
        })
        .collect();
    let save = fs::read_to_string(directory.path().join("divergence.gtkw")).unwrap();
    let mut count = 0;
    for line in save.lines().filter(|line| !line.starts_with(['[', '*', '@', '-', '^'])) {
        for word in line.split_once("} ").map_or(line, |(_, words)| words).split(' ') {
            let name =
                word.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(word, |(_, name)| name);
            assert!(names.contains(name), "{name} is not in the waveform");
            count += 1;
        }
    }
    assert!(count > 60);
    let marker = save.lines().find_map(|line| line.strip_prefix('*')?.split(' ').nth(1)?.parse::<u64>().ok());
    assert_eq!(marker, json["waveform"]["divergence_cycle"].as_u64().map(|cycle| 10 * cycle));
    let times = waveform.time_table();
    assert!((times[0]..=*times.last().unwrap()).contains(&marker.unwrap()));
}

/// The window holds the place: far into a longer run, it is not the whole run.
#[test]
fn the_waveform_is_a_window() {
    let (code, text, json) = compare("--group 8 --workers 1 --inject completion:1500:result");
    assert_eq!(code, 1, "{text}");
    let cycles = json["devices"][1]["cycles"].as_u64().unwrap();
    let (first, last) =
        (json["waveform"]["first_cycle"].as_u64().unwrap(), json["waveform"]["last_cycle"].as_u64().unwrap());
    assert!(first > cycles / 4 && last - first < cycles / 2, "{first} to {last} of {cycles}");
}

/// A PREFILL of a language model is silent for long, which is no hang: neither where cycles after it are asked for, nor where the run
/// goes wrong after it.
#[cfg(feature = "lm")]
#[test]
fn a_waveform_reaches_behind_a_long_prefill() {
    let directory = tempdir().unwrap();
    let request = r#"{"timestamp":0,"input_length":150,"output_length":8,"hash_ids":[]}"#;
    fs::write(directory.path().join("long.jsonl"), request).unwrap();
    let common = "compare --trace long.jsonl --model micro --devices rtl --json -";
    let run = |more: &str| {
        let run = doorbell(directory.path(), &format!("{common} {more}"));
        let json: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr));
        (run.code, run.stderr, json)
    };
    let (code, errors, json) = run("");
    assert_eq!(code, 0, "{errors}");
    // The answer has 8 positions of 157.
    let cycles = json["devices"][0]["cycles"].as_u64().unwrap();
    let (from, to) = (cycles - 5000, cycles - 4000);
    assert!(from > 300_000, "{cycles}");
    let (code, errors, json) = run(&format!("--wave asked.fst --trace-from {from} --trace-to {to}"));
    assert_eq!(code, 0, "{errors}");
    assert_eq!(
        (&json["waveform"]["first_cycle"], &json["waveform"]["last_cycle"]),
        (&from.into(), &to.into())
    );
    let (code, errors, json) = run("--wave wrong.fst --inject token:0:3");
    assert_eq!(code, 1, "{errors}");
    assert!(json["waveform"]["problem"].is_null(), "{}", json["waveform"]);
    assert!(json["waveform"]["divergence_cycle"].as_u64().unwrap() > 300_000, "{}", json["waveform"]);
}

#[test]
fn a_waveform_that_cannot_be_written_does_not_hide_the_verdict() {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("divergence.fst")).unwrap();
    let run = doorbell(directory.path(), "compare --devices model,rtl --inject token");
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stdout.contains("different: rtl differs from model"), "{}", run.stdout);
    assert!(run.stdout.contains("waveform: divergence.fst was not recorded: "), "{}", run.stdout);
}

#[rstest]
#[case::workers("--workers 17", 3, "no RTL with 17 workers was built")]
#[case::no_workers("--workers 0", 2, "workers is 0: it must be at least 1")]
#[case::latency("--latency 2000000", 2, "latency is 2000000..=2000000: it must be")]
#[case::fault("--inject fire", 2, "'fire' is no fault of the RTL's memory: expected token:BEAT:BIT")]
fn bad_rtl_arguments(#[case] arguments: &str, #[case] code: i32, #[case] problem: &str) {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), &format!("compare --devices model,rtl {arguments}"));
    assert_eq!(run.code, code, "{}", run.stderr);
    assert!(run.stderr.contains(problem), "{}", run.stderr);
}

/// A disk that is full under the waveform takes neither the report nor the program with it: sizes from nothing to enough. A limit of the file
/// size stands for the disk, as that needs no rights: writes fail, and mappings reach behind the end of their files.
#[test]
fn a_full_disk_under_a_waveform_leaves_the_report() {
    let (mut recorded, mut refused, mut full) = (0, 0, 0);
    for blocks in [1, 8, 40, 64, 100, 128, 200, 256, 400, 1 << 20] {
        let directory = tempdir().unwrap();
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let run = std::process::Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_doorbell"), "compare", "--devices", "model,rtl"])
            .args(["--limit", "5", "--inject", "token:3:1", "--wave", "x.fst"])
            .current_dir(directory.path())
            .output()
            .unwrap();
        let (told, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert_eq!(run.status.code(), Some(1), "{blocks}: {:?} {told}{errors}", run.status);
        assert!(told.contains("different: rtl differs from model"), "{blocks}: {told}");
        let waveform = directory.path().join("x.fst");
        if told.contains("waveform: x.fst (cycles ") {
            let waveform = wellen::simple::read(waveform).unwrap();
            assert!(!waveform.time_table().is_empty());
            recorded += 1;
        } else {
            assert!(
                told.contains("waveform: x.fst was not recorded: ") && told.contains("is cut off"),
                "{told}"
            );
            assert!(!waveform.exists());
            // Of writes that failed the recorder says nothing; of a page that found no room the system does.
            full += i32::from(told.contains("No space left"));
            refused += 1;
        }
        let left = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != "x.fst" && name != "x.gtkw").collect();
        assert!(left.is_empty(), "{blocks}: {left:?}");
    }
    assert!(
        recorded > 0 && refused > 2 && full > 0,
        "{recorded} recorded, {refused} refused, {full} of them full"
    );
}

/// No build gives the RTL more workers than it can have, so none is advised.
#[test]
fn more_workers_than_the_rtl_can_have_are_told() {
    let directory = tempdir().unwrap();
    let run = doorbell(directory.path(), "compare --devices model,rtl --workers 17");
    assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{}", run.stderr);
    assert!(run.stderr.ends_with(": it takes at most 16; give fewer\n"), "{}", run.stderr);
}
