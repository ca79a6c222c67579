//! `doorbell trajectories …`: tables, damage, exports and exit codes.
#![cfg(feature = "parquet")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use common::{Run, doorbell};
use doorbell_contract::PREFIX_NONE;
use doorbell_runtime::reward::Scorer;
use doorbell_runtime::rollout::RolloutId;
use doorbell_runtime::trajectory::log::{Log, LogOptions, Run as LogRun};
use doorbell_runtime::trajectory::{Body, Finished, Outcome, Span};
use rstest::rstest;
use tempfile::{TempDir, tempdir};

/// How one of them ended.
fn finished(k: u32, tokens: usize) -> Finished {
    Finished {
        rollout: RolloutId::new(k % 4, k / 4),
        request: u64::from(k / 2),
        member: k % 2,
        device_rollout: k,
        seed: 7 + k,
        prefix_id: if k < 5 { 0 } else { PREFIX_NONE },
        prefix_hash: 99,
        prompt_tokens: 50 * k,
        answer_tokens: tokens as u32,
        score: 6000 * k as i32,
        scorer: Scorer::ALL.get(k as usize % 4).copied(),
        segments: 1 + k / 3,
        outcome: Outcome::ALL[k as usize % 4],
        spans: 0,
        group: None,
        has_logprobs: false,
        shard: 0,
        offset: 0,
    }
}

/// A log of ten trajectories in `log`, two to a file.
fn written() -> TempDir {
    let directory = tempdir().unwrap();
    let options = LogOptions { file_bytes: 250, ..LogOptions::default() };
    let (mut log, _) = Log::open(&directory.path().join("log"), options).unwrap();
    for k in 0..10u32 {
        let tokens: Vec<u32> =
            (0..k + 1).map(|position| (100 * k + position).wrapping_mul(0x9E37_79B9) >> 15).collect();
        let finished = finished(k, tokens.len());
        log.append(&finished, &Body { tokens: &tokens, ..Body::default() }).unwrap();
        log.commit().unwrap();
    }
    directory
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some()).collect();
    files.sort();
    files
}

/// Flips a bit of the first token in the second file.
fn damage(directory: &Path) {
    let file = &files(directory)[1];
    let mut bytes = fs::read(file).unwrap();
    bytes[32 + 24 + 64] ^= 4;
    fs::write(file, bytes).unwrap();
}

fn all(directory: &Path) -> String {
    let commands = ["info log", "info log --json", "verify log", "show log", "show log --limit 3 --tokens 1"];
    let run = |command: &str| {
        let Run { code, stdout, stderr } = doorbell(directory, &format!("trajectories {command}"));
        format!("$ {command}\n{stdout}{stderr}exit {code}\n")
    };
    commands.map(run).join("\n")
}

#[test]
fn a_whole_log_is_shown() {
    let directory = written();
    insta::assert_snapshot!(all(directory.path()));
}

#[test]
fn damage_is_told_with_file_offset_and_number_and_exit_code_1() {
    let directory = written();
    damage(directory.path());
    insta::assert_snapshot!(all(directory.path()));
    let run = doorbell(directory.path(), "trajectories export log --parquet out.parquet");
    assert_eq!((run.code, run.stdout.starts_with("9 trajectories, ")), (1, true), "{}", run.stdout);
    assert!(run.stderr.starts_with("damaged: log/"), "{}", run.stderr);
    assert!(directory.path().join("out.parquet").exists(), "what is whole is exported");
}

#[test]
fn a_torn_tail_is_told_and_is_no_damage() {
    let directory = written();
    let last = files(directory.path()).pop().unwrap();
    OpenOptions::new().append(true).open(&last).unwrap().write_all(b"DbTr\x07").unwrap();
    for command in ["info log", "verify log", "show log", "export log --parquet out.parquet"] {
        let run = doorbell(directory.path(), &format!("trajectories {command}"));
        assert_eq!(run.code, 0, "{command}: {}", run.stderr);
        assert!(run.stderr.contains("5 bytes from offset"), "{command}: {}", run.stderr);
    }
    let parquet = fs::read(directory.path().join("out.parquet")).unwrap();
    assert_eq!((&parquet[..4], &parquet[parquet.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
}

/// Requests and versions of each run count from the beginning, so those of two runs are not the same.
#[test]
fn runs_share_no_request_and_no_version() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(&directory.path().join("log"), LogOptions::default()).unwrap();
    for _ in 0..3 {
        log.begin_run(LogRun::default()).unwrap();
        for k in 0..4 {
            let spans = [Span { version: 1, first: 0 }];
            log.append(
                &Finished { spans: 1, ..finished(k, 1) },
                &Body { tokens: &[k], spans: &spans, ..Body::default() },
            )
            .unwrap();
        }
        log.commit().unwrap();
    }
    let run = doorbell(directory.path(), "trajectories info log");
    assert!(run.stdout.contains("12 for 6 requests"), "{}{}", run.stdout, run.stderr);
    let run = doorbell(directory.path(), "trajectories info log --json");
    for expected in ["\"requests\": 6", "\"versions\": 3"] {
        assert!(run.stdout.contains(expected), "{}", run.stdout);
    }
}

#[rstest]
#[case::info("info nothing", "error: cannot read the directory nothing: ")]
#[case::verify("verify empty", "error: empty holds no trajectories (files *.trajectories)")]
#[case::show("show empty", "error: empty holds no trajectories")]
#[case::export("export empty --parquet out", "error: empty holds no trajectories")]
#[case::unwritable("export log --parquet no/such/file", "error: cannot write no/such/file: ")]
#[case::directory("export log --parquet empty", "error: --parquet empty: it is a directory; give a file")]
#[case::usage("export log", "error: the following required arguments were not provided")]
fn bad_input_is_told_with_code_2(#[case] arguments: &str, #[case] problem: &str) {
    let directory = written();
    fs::create_dir(directory.path().join("empty")).unwrap();
    let run = doorbell(directory.path(), &format!("trajectories {arguments}"));
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.starts_with(problem), "{}", run.stderr);
}
