//! The log under torn writes, full disks, flipped bits and lost power.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use doorbell_contract::PREFIX_NONE;
use proptest::prelude::*;
use rstest::rstest;
use tempfile::tempdir;

use super::*;
use crate::reward::Scorer;
use crate::rollout::RolloutId;
use crate::trajectory::{Body, Finished, Outcome, Span, Trajectory, record};

#[path = "histories.rs"]
mod histories;

/// Trajectory number `k`, of `tokens` tokens.
fn trajectory(number: u64, tokens: usize) -> Trajectory {
    let word = number as u32;
    Trajectory {
        number,
        finished: Finished {
            rollout: RolloutId::new(word % 7, word / 7),
            request: number / 4,
            member: word % 4,
            device_rollout: word,
            seed: !word,
            prefix_id: if word.is_multiple_of(3) { PREFIX_NONE } else { word % 5 },
            prefix_hash: number << 40,
            prompt_tokens: 100 + word,
            answer_tokens: tokens as u32,
            score: 1000 * word as i32,
            scorer: Scorer::ALL.get(word as usize % 4).copied(),
            segments: 1 + word % 9,
            outcome: Outcome::ALL[number as usize % 4],
            spans: 0,
            group: None,
            has_logprobs: false,
            shard: 0,
            offset: 0,
        },
        tokens: (0..tokens as u32).map(|k| k.wrapping_mul(0x9E37_79B9) ^ word).collect(),
        spans: vec![],
        logprobs: None,
        prompt: None,
    }
}

fn append<V: Volume>(log: &mut Log<V>, number: u64, tokens: usize) -> Result<u64, LogError> {
    let trajectory = trajectory(number, tokens);
    log.append(&trajectory.finished, &trajectory.body())
}

fn small() -> LogOptions {
    LogOptions { sync: Sync::EveryGroup, file_bytes: 1000, group_bytes: 400, group_delay: Duration::ZERO }
}

/// Lengths of the trajectories that tests write.
fn length(number: u64) -> usize {
    (number as usize * 7) % 23
}

/// A log of `count` trajectories in groups of up to three, and its files.
fn written(directory: &Path, count: u64, options: LogOptions) -> Vec<PathBuf> {
    let (mut log, recovery) = Log::open(directory, options).unwrap();
    for number in recovery.next..recovery.next + count {
        assert_eq!(append(&mut log, number, length(number)).unwrap(), number);
        if number % 3 == 2 {
            log.commit().unwrap();
            assert_eq!(log.stored(), number + 1);
        }
    }
    log.commit().unwrap();
    files(directory).unwrap().into_iter().map(|(_, path)| path).collect()
}

fn pieces(directory: &Path) -> Vec<Piece> {
    Reader::open(directory).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The numbers of the whole records, each of which must be right.
fn whole(pieces: &[Piece]) -> Vec<u64> {
    pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::Record(found) => {
                assert_eq!(*found, trajectory(found.number, length(found.number)));
                Some(found.number)
            }
            _ => None,
        })
        .collect()
}

fn damage(pieces: &[Piece]) -> Vec<Damage> {
    let damage = |piece: &Piece| match piece {
        Piece::Damage(damage) => Some(damage.clone()),
        _ => None,
    };
    pieces.iter().filter_map(damage).collect()
}

#[test]
fn what_is_committed_is_read_across_files_and_runs() {
    let directory = tempdir().unwrap();
    assert!(matches!(Reader::open(directory.path()), Err(LogError::NoLog { .. })));
    for run in 1..=3 {
        let files = written(directory.path(), 20, small());
        assert!(files.len() > 2 * run, "files are rotated by size");
        for file in &files {
            assert!(file.metadata().unwrap().len() <= 1000, "{}", file.display());
        }
        let pieces = pieces(directory.path());
        assert_eq!(whole(&pieces), (0..20 * run as u64).collect::<Vec<_>>());
        assert_eq!(pieces.len(), 20 * run, "nothing else");
    }
    let verified = Reader::open(directory.path()).unwrap().verify().unwrap();
    let bytes: u64 =
        files(directory.path()).unwrap().iter().map(|(_, path)| path.metadata().unwrap().len()).sum();
    assert_eq!((verified.records, verified.torn, verified.damage.len()), (60, None, 0));
    assert_eq!(verified.bytes + verified.files as u64 * frame::FILE_HEAD as u64, bytes);
    assert_eq!(verified.tokens, (0..60).map(|number| length(number) as u64).sum::<u64>());
}

#[test]
fn nothing_is_stored_before_its_group_is() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    append(&mut log, 0, 0).unwrap();
    assert_eq!((log.stored(), log.groups()), (0, 0));
    log.commit().unwrap();
    log.commit().unwrap();
    assert_eq!((log.stored(), log.groups()), (1, 1), "an empty group is none");
    // A group that is full is written by the next append.
    for number in 1..=5 {
        append(&mut log, number, 0).unwrap();
    }
    assert_eq!((log.stored(), log.groups()), (5, 2));
}

#[test]
fn a_record_longer_than_a_file_has_one_of_its_own() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    for (number, tokens) in [(0, 3), (1, 5000), (2, 3)] {
        append(&mut log, number, tokens).unwrap();
    }
    log.commit().unwrap();
    let files: Vec<u64> = files(directory.path()).unwrap().iter().map(|file| file.0).collect();
    assert_eq!(files, [0, 1, 2]);
    let found = pieces(directory.path());
    assert!(matches!(&found[1], Piece::Record(found) if *found == trajectory(1, 5000)));
}

#[test]
fn a_record_that_announces_something_else_is_refused_and_the_log_goes_on() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    let error = log
        .append(&trajectory(0, 3).finished, &Body { tokens: &[1, 2], ..Body::default() })
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the record of rollout 0.0 has 2 tokens and announces 3: both must be the same, and at most 268435456"
    );
    append(&mut log, 0, 0).unwrap();
    log.commit().unwrap();
    assert_eq!(whole(&pieces(directory.path())), [0]);
}

#[test]
fn a_directory_has_one_writer() {
    let directory = tempdir().unwrap();
    let (log, _) = Log::open(directory.path(), small()).unwrap();
    let error = Log::open(directory.path(), small()).unwrap_err();
    assert!(matches!(error, LogError::Locked { .. }), "{error}");
    drop(log);
    Log::open(directory.path(), small()).unwrap();
}

#[test]
fn another_version_is_told_and_left_alone() {
    let directory = tempdir().unwrap();
    let files = written(directory.path(), 2, small());
    let mut bytes = fs::read(&files[0]).unwrap();
    bytes[8] = 5;
    let check = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&check.to_le_bytes());
    fs::write(&files[0], &bytes).unwrap();
    let error = Log::open(directory.path(), small()).unwrap_err();
    assert!(matches!(error, LogError::Version { found: 5, .. }), "{error}");
    let mut reader = Reader::open(directory.path()).unwrap();
    assert!(matches!(reader.next(), Some(Err(LogError::Version { found: 5, .. }))));
    assert!(reader.next().is_none());
    assert_eq!(fs::read(&files[0]).unwrap(), bytes);
}

/// Files of older versions are read, and never written on: what comes later has a file of its own.
#[rstest]
fn an_older_version_is_read_and_left_alone(#[values(1, 2, 3)] version: u8) {
    let directory = tempdir().unwrap();
    let files = written(directory.path(), 2, small());
    let mut bytes = fs::read(&files[0]).unwrap();
    bytes[8] = version;
    let check = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&check.to_le_bytes());
    fs::write(&files[0], &bytes).unwrap();
    let files = written(directory.path(), 2, small());
    assert_eq!(files.len(), 2);
    assert_eq!(fs::read(&files[0]).unwrap(), bytes);
    assert_eq!(whole(&pieces(directory.path())), [0, 1, 2, 3]);
}

/// What an older program left when it was killed before its first record was whole. The next file would have the same name.
#[rstest]
fn a_last_file_without_a_record_is_written_on(
    #[values(1, 2, 3, 4)] version: u8,
    #[values(0, 1)] before: u64,
    #[values(0, 1, 23, 24, 60)] torn: usize,
) {
    let directory = tempdir().unwrap();
    let path = directory.path().join(file_name(3 * before));
    if before > 0 {
        written(directory.path(), 3, small());
    }
    let mut head = frame::file_head(3 * before);
    head[8] = version;
    let check = crc32c::crc32c(&head[..28]);
    head[28..].copy_from_slice(&check.to_le_bytes());
    let mut record = vec![0; 200];
    frame::seal(&mut record, 3 * before);
    fs::write(&path, [&head[..], &record[..torn]].concat()).unwrap();
    for run in 1..=2 {
        written(directory.path(), 2, small());
        let pieces = pieces(directory.path());
        assert_eq!(whole(&pieces), (0..3 * before + 2 * run).collect::<Vec<_>>());
        assert!(damage(&pieces).is_empty());
    }
}

/// Whatever the last file holds, a writer goes on: it takes the file, or begins the next one.
#[rstest]
#[case(vec![])]
#[case(b"text of somebody".to_vec())]
#[case(vec![0; 500])]
#[case(vec![0xA5; 500])]
#[case(frame::file_head(7).to_vec())]
fn any_last_file_lets_a_writer_go_on(#[case] content: Vec<u8>) {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join(file_name(0)), content).unwrap();
    for run in 1..=2 {
        written(directory.path(), 3, small());
        assert_eq!(whole(&pieces(directory.path())).len(), 3 * run);
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_by_its_name() {
    let directory = tempdir().unwrap();
    let path = directory.path().join(file_name(0));
    let refused = || {
        let written = Log::open(directory.path(), small()).map(drop).unwrap_err();
        let read = Reader::open(directory.path()).map(drop).unwrap_err();
        assert!(
            matches!((&written, &read), (LogError::Foreign { .. }, LogError::Foreign { .. })),
            "{written}"
        );
        assert!(written.to_string().starts_with(&path.display().to_string()), "{written}");
    };
    fs::create_dir(&path).unwrap();
    refused();
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &path).unwrap();
    refused();
}

/// The lock file can be deleted, but neither the directory nor the segment in use.
#[test]
fn a_deleted_lock_file_lets_no_second_writer_in() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    let refused = |when: &str| {
        fs::remove_file(directory.path().join("lock")).unwrap();
        let second = Log::open(directory.path(), small());
        assert!(matches!(second, Err(LogError::Locked { .. })), "{when}: {second:?}");
    };
    refused("before the first file");
    for number in 0..20 {
        append(&mut log, number, length(number)).unwrap();
        log.commit().unwrap();
        refused("while files rotate");
    }
    // The segment has a lock of its own, for file systems that lock no directories.
    let (_, last) = files(directory.path()).unwrap().pop().unwrap();
    let bytes = fs::read(&last).unwrap();
    assert_eq!(Disk.reopen(&last, 0).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(fs::read(&last).unwrap(), bytes, "nothing was cut off");
    drop(log);
    assert_eq!(Log::open(directory.path(), small()).unwrap().1.next, 20);
}

/// Runs into one log are told apart, also where one was killed as it noted itself, or an older program wrote before.
#[test]
fn a_record_tells_its_run() {
    let directory = tempdir().unwrap();
    written(directory.path(), 2, small());
    assert!(runs(directory.path()).unwrap().is_empty());
    for run in 1..=3 {
        let (mut log, recovery) = Log::open(directory.path(), small()).unwrap();
        let noted = log.begin_run(Run { seed: 7, ..Run::default() }).unwrap();
        assert_eq!((noted.run, noted.first, noted.seed), (run, recovery.next, 7));
        assert!(
            noted.id.len() == 16
                && runs(directory.path()).unwrap().iter().filter(|run| run.id == noted.id).count() == 1
        );
        append(&mut log, recovery.next, 3).unwrap();
        log.commit().unwrap();
        let mut file = fs::File::options().append(true).open(directory.path().join("runs.jsonl")).unwrap();
        file.write_all(b"{\"run\":9").unwrap();
    }
    let runs = runs(directory.path()).unwrap();
    let told: Vec<_> = (0..5).map(|number| run_of(&runs, number).map(|run| run.run)).collect();
    assert_eq!(told, [None, None, Some(1), Some(2), Some(3)]);
}

/// Half a line is what a killed writer leaves. A whole line that is no run, and something else than a file, are told.
#[test]
fn a_damaged_table_of_runs_is_told() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    log.begin_run(Run::default()).unwrap();
    drop(log);
    let file = directory.path().join("runs.jsonl");
    let whole = fs::read(&file).unwrap();
    for junk in ["junk{\n", "{\"run\":\"one\"}\n", "[]\n"] {
        fs::write(&file, [&whole[..], junk.as_bytes()].concat()).unwrap();
        assert!(matches!(runs(directory.path()), Err(LogError::Runs { line: 2, .. })), "{junk}");
        let (mut log, _) = Log::open(directory.path(), small()).unwrap();
        assert!(matches!(log.begin_run(Run::default()), Err(LogError::Runs { .. })), "{junk}");
    }
    // A run whose line lost its last bytes, as the newest one, and with a run behind it that counted it.
    let text = String::from_utf8(whole.clone()).unwrap();
    let half = format!("{}\n", &text[..text.len() / 2]);
    let second = text.replacen("\"run\":1", "\"run\":2", 1);
    for lines in
        [half.clone(), format!("{half}{second}"), format!("{text}{half}"), format!("{half}{half}{text}")]
    {
        fs::write(&file, &lines).unwrap();
        assert!(matches!(runs(directory.path()), Err(LogError::Runs { .. })), "{lines}");
    }
    // An older program ended half a line, for which no run was counted.
    for (lines, count) in [(format!("{half}{text}"), 1), (format!("{text}{half}{second}"), 2)] {
        fs::write(&file, &lines).unwrap();
        assert_eq!(runs(directory.path()).unwrap().len(), count, "{lines}");
    }
    fs::write(&file, [&whole[..], b"junk"].concat()).unwrap();
    assert_eq!(runs(directory.path()).unwrap().len(), 1);
    // What is passed over before a run is noted is passed over afterwards, too.
    for (rest, noted) in [(&b"junk"[..], 2), (&[0; 64], 3), (&whole[..9], 4)] {
        let lines = fs::read(&file).unwrap();
        let whole = lines.iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        fs::write(&file, [&lines[..whole], rest].concat()).unwrap();
        let (mut log, _) = Log::open(directory.path(), small()).unwrap();
        log.begin_run(Run::default()).unwrap();
        drop(log);
        assert_eq!(runs(directory.path()).unwrap().len(), noted);
    }
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert!(matches!(runs(directory.path()), Err(LogError::Foreign { .. })));
}

/// Spans, group statistics and log-probabilities count as bytes of a record.
#[test]
fn every_byte_of_a_record_is_counted() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    let mut record = trajectory(0, 3);
    record.finished.spans = 1;
    record.finished.has_logprobs = true;
    record.finished.group = Some(crate::trajectory::GroupScore { mean: 0.5, advantage: 1.0 });
    let spans = [Span { version: 1, first: 0 }];
    let body =
        Body { tokens: &record.tokens, spans: &spans, logprobs: &[-1.0, -2.0, -3.0], ..Body::default() };
    log.append(&record.finished, &body).unwrap();
    log.commit().unwrap();
    let (_, file) = files(directory.path()).unwrap().pop().unwrap();
    let verified = Reader::open(directory.path()).unwrap().verify().unwrap();
    assert_eq!(verified.bytes + frame::FILE_HEAD as u64, file.metadata().unwrap().len());
}

#[test]
fn parts_that_are_not_announced_are_refused_and_the_log_goes_on() {
    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open(directory.path(), small()).unwrap();
    let trajectory = trajectory(0, 0);
    let spans = [Span { version: 1, first: 0 }];
    for body in [Body { spans: &spans, ..Body::default() }, Body { logprobs: &[0.5], ..Body::default() }] {
        let error = log.append(&trajectory.finished, &body).unwrap_err();
        assert!(matches!(error, LogError::Parts { .. }), "{error}");
    }
    append(&mut log, 0, 0).unwrap();
    log.commit().unwrap();
    assert_eq!(whole(&pieces(directory.path())), [0]);
}

#[test]
fn a_missing_file_is_a_gap() {
    let directory = tempdir().unwrap();
    let files = written(directory.path(), 9, LogOptions { file_bytes: 0, ..small() });
    assert_eq!(files.len(), 9);
    fs::remove_file(&files[4]).unwrap();
    fs::remove_file(&files[0]).unwrap();
    let pieces = pieces(directory.path());
    assert_eq!(whole(&pieces), [1, 2, 3, 5, 6, 7, 8], "the oldest may be deleted");
    let [damage] = &damage(&pieces)[..] else { panic!("{pieces:?}") };
    assert_eq!((damage.number, damage.lost, damage.kind), (4, 1, DamageKind::Gap));
}

/// Files that no log made: nothing hangs, nothing panics, and what is a record is read.
#[test]
fn foreign_files_are_told_or_passed_over() {
    for content in [&b""[..], b"short", &[0; 32], &[0xFF; 5000]] {
        let directory = tempdir().unwrap();
        let files = written(directory.path(), 6, LogOptions { file_bytes: 0, ..small() });
        fs::write(&files[2], content).unwrap();
        let found = pieces(directory.path());
        assert_eq!(whole(&found), [0, 1, 3, 4, 5]);
        let [damage] = &damage(&found)[..] else { panic!("{found:?}") };
        assert_eq!((&damage.file, damage.number, damage.lost), (&files[2], 2, 1));
        for name in [
            "notes.txt",
            "7.trajectories",
            "99999999999999999999.trajectories",
            "18446744073709551615.trajectories",
        ] {
            fs::write(directory.path().join(name), content).unwrap();
        }
        assert_eq!(pieces(directory.path()), found);
        assert_eq!(Log::open(directory.path(), small()).unwrap().1.next, 6);
    }
}

/// Every cut of the last file: nothing that lies before it is lost, the rest is cut off and told, and the log goes on.
#[test]
fn a_torn_tail_is_cut_off_wherever_it_is_torn() {
    let directory = tempdir().unwrap();
    let files = written(directory.path(), 24, small());
    let last = files.last().unwrap();
    let bytes = fs::read(last).unwrap();
    let before: Vec<u64> = whole(&pieces(directory.path()));
    let mut ends = vec![];
    // Where a record begins, a file system may have left zeros, too.
    let first = self::files(directory.path()).unwrap().last().unwrap().0 as usize;
    let mut borders = vec![0, frame::FILE_HEAD];
    for number in first..before.len() {
        let frame = frame::RECORD_HEAD + record::FIXED + 4 * length(number as u64);
        borders.push(borders.last().unwrap() + frame);
    }
    assert_eq!(borders.last(), Some(&bytes.len()));
    for cut in (0..bytes.len()).rev() {
        for zeros in [0, 50] {
            if zeros > 0 && !borders.contains(&cut) {
                continue;
            }
            fs::write(last, [&bytes[..cut], &vec![0; zeros]].concat()).unwrap();
            let pieces = pieces(directory.path());
            assert_eq!(damage(&pieces), [], "cut at {cut}, {zeros} zeros");
            let kept = whole(&pieces);
            assert_eq!(kept, before[..kept.len()]);
            ends.push(kept.len());
            let told = pieces.into_iter().find_map(|piece| match piece {
                Piece::Torn(torn) => Some(torn),
                _ => None,
            });
            let (log, recovery) = Log::open(directory.path(), small()).unwrap();
            drop(log);
            assert_eq!(recovery.torn, told);
            assert_eq!(recovery.next, kept.len() as u64);
            let left = told.as_ref().map_or(cut + zeros, |torn| torn.offset as usize);
            assert_eq!(left + told.map_or(0, |torn| torn.bytes as usize), cut + zeros);
            // What is appended next is read behind what was kept.
            written(directory.path(), 1, small());
            assert_eq!(whole(&self::pieces(directory.path())).len(), kept.len() + 1);
            for (_, path) in self::files(directory.path()).unwrap() {
                if path > *last {
                    fs::remove_file(path).unwrap();
                }
            }
        }
    }
    ends.sort_unstable();
    ends.dedup();
    assert!(ends.len() > 2, "records were cut away one by one: {ends:?}");
}

/// Every bit of a log: what is flipped is told with file, offset and number; nothing wrong is read, and nothing else is
/// lost. Opening deletes nothing.
#[test]
fn a_flipped_bit_is_told_and_costs_one_record() {
    let directory = tempdir().unwrap();
    let files = written(directory.path(), 12, small());
    assert!(files.len() >= 2);
    for file in &files {
        let bytes = fs::read(file).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(file, &flipped).unwrap();
            let result: Result<Vec<Piece>, LogError> = Reader::open(directory.path()).unwrap().collect();
            let pieces = result.unwrap();
            let [damage] = &damage(&pieces)[..] else {
                panic!("byte {at} of {}: {pieces:#?}", file.display())
            };
            assert_eq!(damage.file, *file);
            let span = damage.offset..damage.offset + damage.bytes;
            assert!(span.contains(&(at as u64)), "byte {at}: {damage}");
            let kept = whole(&pieces);
            assert_eq!(damage.lost, u64::from(at >= frame::FILE_HEAD), "byte {at}: {damage}");
            assert_eq!(kept.len() as u64, 12 - damage.lost, "byte {at}: {damage}");
            assert!(damage.lost == 0 || !kept.contains(&damage.number));
            if file == files.last().unwrap() {
                let (log, recovery) = Log::open(directory.path(), small()).unwrap();
                drop(log);
                assert_eq!(
                    (&recovery.damage[..], recovery.torn, recovery.next),
                    (&[damage.clone()][..], None, 12)
                );
                assert_eq!(fs::read(file).unwrap(), flipped, "what was stored is never deleted");
            }
        }
        fs::write(file, &bytes).unwrap();
    }
}

/// A text may hold the bytes of a record. If the head of the record that has the text is damaged, those bytes are not taken for a record
/// with a number far ahead: all records after it would be lost.
#[test]
fn bytes_of_a_record_in_a_text_do_not_move_the_numbers_on() {
    let directory = tempdir().unwrap();
    let options = LogOptions { file_bytes: 1 << 20, ..small() };
    let (mut log, _) = Log::open(directory.path(), options).unwrap();
    let inner = trajectory(0, 0);
    let mut forged = vec![0; frame::RECORD_HEAD];
    record::encode(&inner.finished, &inner.body(), &mut forged);
    frame::seal(&mut forged, 1 << 40);
    let mut host = trajectory(0, 0);
    // As tokens, whose bytes are any.
    forged.resize(forged.len().next_multiple_of(4), 0);
    host.tokens = forged.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
    host.finished.answer_tokens = host.tokens.len() as u32;
    log.append(&host.finished, &host.body()).unwrap();
    for number in 1..5 {
        append(&mut log, number, length(number)).unwrap();
    }
    log.commit().unwrap();
    drop(log);
    let (_, file) = files(directory.path()).unwrap().pop().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[frame::FILE_HEAD + 17] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(whole(&pieces(directory.path())), [1, 2, 3, 4]);
}

/// Heads of records that each announce the rest of the file, and are right, make reading no slower than a few passes.
#[test]
fn crafted_heads_do_not_make_reading_quadratic() {
    let directory = tempdir().unwrap();
    let file = written(directory.path(), 1, small()).pop().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let (begin, count) = (bytes.len(), 40_000);
    bytes.resize(begin + 1 + count * frame::RECORD_HEAD, 7);
    for place in (0..count).map(|k| begin + 1 + k * frame::RECORD_HEAD) {
        let rest = (bytes.len() - place - frame::RECORD_HEAD) as u32;
        let head = &mut bytes[place..place + 20];
        head[..4].copy_from_slice(&frame::RECORD_MAGIC);
        head[4..8].copy_from_slice(&rest.to_le_bytes());
        head[8..16].copy_from_slice(&1u64.to_le_bytes());
        let check = crc32c::crc32c(&head[..16]);
        head[16..].copy_from_slice(&check.to_le_bytes());
    }
    fs::write(&file, &bytes).unwrap();
    let began = std::time::Instant::now();
    let pieces = pieces(directory.path());
    assert_eq!(whole(&pieces), [0]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Damage and a torn tail at once: the tail is cut off all the same, and what is stored behind is read from the new file.
#[test]
fn damage_and_a_torn_tail_cost_nothing_that_is_stored_later() {
    let directory = tempdir().unwrap();
    let options = LogOptions { file_bytes: 1 << 20, ..small() };
    let files = written(directory.path(), 11, options);
    let [file] = &files[..] else { panic!("{files:?}") };
    let mut bytes = fs::read(file).unwrap();
    let frame = |number| frame::RECORD_HEAD + record::FIXED + 4 * length(number);
    // Record 10 is torn after 30 bytes, and record 3 has a flipped bit in its payload.
    let ten = bytes.len() - frame(10);
    bytes.truncate(ten + 30);
    bytes[frame::FILE_HEAD + (0..3).map(frame).sum::<usize>() + 50] ^= 16;
    fs::write(file, &bytes).unwrap();
    let (mut log, recovery) = Log::open(directory.path(), options).unwrap();
    let torn = Torn { file: file.clone(), offset: ten as u64, bytes: 30 };
    assert_eq!((recovery.next, recovery.torn, recovery.damage.len()), (10, Some(torn), 1));
    assert_eq!(fs::read(file).unwrap(), bytes[..ten], "what is told as cut off is cut off, and nothing else");
    for number in 10..15 {
        append(&mut log, number, length(number)).unwrap();
    }
    log.commit().unwrap();
    assert_eq!(log.stored(), 15);
    let pieces = pieces(directory.path());
    assert_eq!(whole(&pieces), (0..15).filter(|&number| number != 3).collect::<Vec<_>>());
    let [damage] = &damage(&pieces)[..] else { panic!("{pieces:?}") };
    assert_eq!((&damage.file, damage.number, damage.lost), (file, 3, 1));
}

/// A file that a later one follows ends in what is no record: how many are lost is known from the later one's name, and
/// nothing of that one is blamed or refused.
#[test]
fn what_ends_a_file_in_the_middle_costs_nothing_in_the_next() {
    let directory = tempdir().unwrap();
    let files = written(directory.path(), 12, LogOptions { file_bytes: 300, ..small() });
    let before = whole(&pieces(directory.path()));
    let first = self::files(directory.path()).unwrap()[1].0;
    let bytes = fs::read(&files[0]).unwrap();
    for (lost, content) in [
        (0, [&bytes[..], b"DbTr and no more"].concat()),
        (0, [&bytes[..], &[0; 60]].concat()),
        (first, [&bytes[..frame::FILE_HEAD], &vec![0x5A; 5000]].concat()),
        (first, bytes[..frame::FILE_HEAD + 40].to_vec()),
    ] {
        fs::write(&files[0], &content).unwrap();
        let pieces = pieces(directory.path());
        assert_eq!(whole(&pieces), before[lost as usize..], "{lost} lost");
        let [damage] = &damage(&pieces)[..] else { panic!("{pieces:?}") };
        assert_eq!((&damage.file, damage.number, damage.lost), (&files[0], first - lost, lost));
        assert_eq!(damage.offset + damage.bytes, content.len() as u64);
    }
}

/// The directory of a new log, and those that had to be made above it, survive the loss of power too.
#[test]
fn what_names_the_directory_of_a_new_log_is_synced() {
    struct Synced(Vec<PathBuf>);

    impl Volume for &mut Synced {
        type File = fs::File;

        fn create(&mut self, path: &Path) -> io::Result<fs::File> {
            Disk.create(path)
        }

        fn reopen(&mut self, path: &Path, bytes: u64) -> io::Result<fs::File> {
            Disk.reopen(path, bytes)
        }

        fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
            assert!(directory.is_dir());
            self.0.push(directory.to_owned());
            Ok(())
        }
    }

    let root = tempdir().unwrap();
    let root = root.path();
    let log = root.join("a/b/log");
    let above = root.parent().unwrap().to_owned();
    for expected in [vec![above, root.to_owned(), root.join("a"), root.join("a/b")], vec![root.join("a/b")]] {
        let mut volume = Synced(vec![]);
        Log::open_on(&mut volume, &log, small()).unwrap();
        assert_eq!(volume.0, expected, "made now, or by a process that may have ended before it synced");
    }
    let mut volume = Synced(vec![]);
    let never = LogOptions { sync: Sync::Never, ..small() };
    Log::open_on(&mut volume, &root.join("c"), never).unwrap();
    assert_eq!(volume.0, [] as [PathBuf; 0]);
}

/// A disk with a page cache, and what can go wrong with it.
#[derive(Clone, Default)]
struct Flaky(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: HashMap<PathBuf, Contents>,
    /// Most bytes that one write takes.
    shortest: usize,
    /// Bytes that may still be written before the disk is full.
    space: Option<usize>,
    /// Syncs that may still be done before one fails.
    syncs: Option<usize>,
}

#[derive(Default)]
struct Contents {
    written: Vec<u8>,
    /// How much of it is on disk for sure.
    durable: usize,
    /// Whether the directory knows the file for sure.
    listed: bool,
}

struct FlakyFile(Flaky, PathBuf);

impl Flaky {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Writes to `directory` what is there when the power fails: what was synced, and of the rest what `luck` says.
    fn lose_power(&self, directory: &Path, mut luck: impl FnMut() -> u64) {
        for (path, contents) in &self.state().files {
            if !contents.listed && luck().is_multiple_of(2) {
                continue;
            }
            let mut bytes = contents.written.clone();
            // Pages behind what is durable were written, or not, or have only their place.
            let kept = contents.durable + luck() as usize % (bytes.len() - contents.durable + 1);
            match luck() % 3 {
                0 => bytes.truncate(kept),
                1 => bytes[kept..].fill(0),
                _ => {}
            }
            fs::write(directory.join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
}

impl Volume for Flaky {
    type File = FlakyFile;

    fn create(&mut self, path: &Path) -> io::Result<FlakyFile> {
        let old = self.state().files.insert(path.to_owned(), Contents::default());
        assert!(old.is_none(), "a file is made once");
        Ok(FlakyFile(self.clone(), path.to_owned()))
    }

    fn reopen(&mut self, path: &Path, bytes: u64) -> io::Result<FlakyFile> {
        let mut written = fs::read(path)?;
        written.truncate(bytes as usize);
        let contents = Contents { durable: written.len(), written, listed: true };
        self.state().files.insert(path.to_owned(), contents);
        Ok(FlakyFile(self.clone(), path.to_owned()))
    }

    fn sync_directory(&mut self, _: &Path) -> io::Result<()> {
        self.state().files.values_mut().for_each(|contents| contents.listed = true);
        Ok(())
    }
}

impl Write for FlakyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        let mut count = bytes.len();
        if state.shortest > 0 {
            count = count.min(state.shortest);
        }
        if let Some(space) = &mut state.space {
            count = count.min(*space);
            *space -= count;
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        state.files.get_mut(&self.1).unwrap().written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Append for FlakyFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.0.state();
        match &mut state.syncs {
            Some(0) => return Err(io::Error::other("the disk has died")),
            Some(left) => *left -= 1,
            None => {}
        }
        let contents = state.files.get_mut(&self.1).unwrap();
        contents.durable = contents.written.len();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The log is written through a disk that takes short writes, fills up or dies, loses power, and comes back. What was
    /// reported as stored is there; what is there is right.
    #[test]
    fn what_was_stored_survives_a_bad_disk_and_the_loss_of_power(
        rounds in prop::collection::vec(
            (1u64..30, 0usize..50, prop::option::of(0usize..4000), prop::option::of(0usize..12)), 1..4),
        commits in 1u64..6,
        file_bytes in 100u64..2000,
        seed in any::<u64>(),
    ) {
        let directory = tempdir().unwrap();
        let options = LogOptions { file_bytes, ..small() };
        let mut stored = vec![];
        let mut random = seed;
        for (count, shortest, space, syncs) in rounds {
            let disk = Flaky::default();
            *disk.state() = State { shortest, space, syncs, ..State::default() };
            if let Ok((mut log, recovery)) = Log::open_on(disk.clone(), directory.path(), options) {
                let first = recovery.next;
                let mut failed = None;
                for number in first..first + count {
                    let mut result = append(&mut log, number, length(number)).map(drop);
                    if result.is_ok() && number % commits == 0 {
                        result = log.commit();
                    }
                    if let Err(error) = result {
                        failed = Some(error);
                        break;
                    }
                }
                if let Some(error) = failed {
                    let io = matches!(error, LogError::Io { .. });
                    prop_assert!(io, "{}", error);
                    let again = [append(&mut log, 999, 1).map(drop), log.commit()];
                    let dead = again.iter().all(|result| matches!(result, Err(LogError::Dead { .. })));
                    prop_assert!(dead, "{:?}", again);
                }
                stored.extend(first..log.stored());
            }
            disk.lose_power(directory.path(), || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                random >> 33
            });
            if stored.is_empty() && files(directory.path()).unwrap().is_empty() {
                continue;
            }
            let pieces = pieces(directory.path());
            let kept = whole(&pieces);
            prop_assert!(stored.iter().all(|number| kept.contains(number)), "{stored:?} in {kept:?}");
            // Half a group that was never stored may be told as damage, but nothing that was.
            for damage in damage(&pieces) {
                let lost = damage.number..damage.number + damage.lost;
                prop_assert!(!stored.iter().any(|number| lost.contains(number)), "{}", damage);
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_typed_error_that_says_what_to_do() {
    /// Every file is the device that is always full.
    struct Full;

    impl Volume for Full {
        type File = fs::File;

        fn create(&mut self, _: &Path) -> io::Result<fs::File> {
            fs::File::options().write(true).open("/dev/full")
        }

        fn reopen(&mut self, _: &Path, _: u64) -> io::Result<fs::File> {
            unreachable!("nothing is there")
        }

        fn sync_directory(&mut self, _: &Path) -> io::Result<()> {
            Ok(())
        }
    }

    let directory = tempdir().unwrap();
    let (mut log, _) = Log::open_on(Full, directory.path(), small()).unwrap();
    append(&mut log, 0, 1).unwrap();
    let error = log.commit().unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");
    assert!(
        error.ends_with("free some space, or give a directory on another disk: what was stored is kept"),
        "{error}"
    );
    let again = log.commit().unwrap_err().to_string();
    assert!(again.starts_with("the log has failed before and takes nothing more: cannot write"), "{again}");
    assert_eq!(log.stored(), 0);
}

/// What cannot be read is not told to be written.
#[test]
fn advice_fits_what_was_refused() {
    let told =
        |what| LogError::io(what, Path::new("log"))(io::ErrorKind::PermissionDenied.into()).to_string();
    assert_eq!(told("read"), "cannot read log: permission denied; give a directory that can be read");
    assert_eq!(
        told("read the directory"),
        "cannot read the directory log: permission denied; give a directory that can be read"
    );
    assert_eq!(told("write"), "cannot write log: permission denied; give a directory that can be written");
}
