//! The hand-over to the writer, and what reaches the hot thread when it fails.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use doorbell_contract::PREFIX_NONE;
use doorbell_host::SharedMemory;
use tempfile::tempdir;

use super::*;
use crate::trajectory::log::LogOptions;
use crate::trajectory::log::{Append, Piece, Reader};
use crate::trajectory::{Carried, Carrier, Outcome};

const BUS: u64 = 1 << 32;

fn finished(slot: u32, tokens: u32) -> Finished {
    Finished {
        rollout: RolloutId::new(slot, 3),
        request: slot.into(),
        member: 0,
        device_rollout: slot,
        seed: 0,
        prefix_id: PREFIX_NONE,
        prefix_hash: 0,
        prompt_tokens: 5,
        answer_tokens: tokens,
        score: 0,
        scorer: None,
        segments: 1,
        outcome: Outcome::Completed,
        spans: 0,
        group: None,
        has_logprobs: false,
        shard: slot % 2,
        offset: 64 * u64::from(slot),
    }
}

/// Two regions of 4096 bytes, the token at word w of region r being 1000 r + w.
fn regions() -> Vec<TokenRegion> {
    let region = |region: u32| {
        let memory = SharedMemory::allocate(4096, BUS).unwrap();
        for word in 0..1024 {
            memory.bus_write_u32(BUS + 4 * u64::from(word), 1000 * region + word).unwrap();
        }
        TokenRegion::new(memory, 0, 4096).unwrap()
    };
    (0..2).map(region).collect()
}

/// Beside them log-probabilities, at word w of region r -(1000 r + w) / 65536, and spans of slot 5.
fn memory() -> RolloutMemory {
    let logprobs = |region: u32| {
        let memory = SharedMemory::allocate(4096, BUS).unwrap();
        for word in 0..1024 {
            let value = -((1000 * region + word) as i32);
            memory.bus_write_u32(BUS + 4 * u64::from(word), value as u32).unwrap();
        }
        TokenRegion::new(memory, 0, 4096).unwrap()
    };
    let spans = Spans::new(16, 2);
    spans.write(5, 0, Span { version: 7, first: 0 });
    spans.write(5, 1, Span { version: 9, first: 2 });
    RolloutMemory { tokens: regions(), logprobs: (0..2).map(logprobs).collect(), spans }
}

const OPTIONS: WriterOptions = WriterOptions { capacity: 16, longest: 8 };

fn recorder(directory: &Path) -> WriterHandle {
    let (log, _) = Log::open(directory, LogOptions::default()).unwrap();
    WriterHandle::start(log, memory(), OPTIONS).unwrap()
}

/// What lies beside the tokens is stored with them: log-probabilities of the same region and place, and the slot's spans.
#[test]
fn log_probabilities_and_spans_are_stored() {
    let directory = tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    recorder.post(Finished { spans: 2, has_logprobs: true, ..finished(5, 3) }).unwrap();
    recorder.post(Finished { spans: 3, ..finished(4, 3) }).unwrap();
    let error = Box::new(recorder).finish().unwrap_err().to_string();
    assert_eq!(error, "rollout 4.3 has 3 spans, but there is room for 2");
    let (mut log, _) = Log::open(directory.path(), LogOptions::default()).unwrap();
    drop(log.commit());
    let mut recorder = WriterHandle::start(log, memory(), OPTIONS).unwrap();
    recorder.post(Finished { spans: 2, has_logprobs: true, ..finished(5, 3) }).unwrap();
    Box::new(recorder).finish().unwrap();
    let last = Reader::open(directory.path()).unwrap().last().unwrap().unwrap();
    let Piece::Record(found) = last else { panic!("{last:?}") };
    assert_eq!(found.tokens, [1080, 1081, 1082]);
    assert_eq!(found.logprobs, Some([1080.0, 1081.0, 1082.0].map(|k: f32| -k / 65536.0).to_vec()));
    assert_eq!(found.spans, [Span { version: 7, first: 0 }, Span { version: 9, first: 2 }]);
}

/// Long enough for any machine: it is waited for by tests that fail.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes what is stored until `count` have come.
fn await_stored(recorder: &mut WriterHandle, count: usize) -> Vec<RolloutId> {
    let mut all = vec![];
    let mut out = [RolloutId::from_bits(0); 4];
    let begun = Instant::now();
    while all.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count} were stored", all.len());
        let taken = recorder.stored(&mut out);
        all.extend_from_slice(&out[..taken]);
        assert!(!recorder.has_failed(), "the writer failed");
        thread::yield_now();
    }
    all
}

/// Waits until the writer has failed: it does as soon as it comes to what it cannot do.
fn await_failure(recorder: &WriterHandle) {
    let begun = Instant::now();
    while !recorder.has_failed() {
        assert!(begun.elapsed() < PATIENCE, "the writer has not failed");
        thread::yield_now();
    }
}

/// Flaw 16 of a reference: its queue of finished rollouts is never popped.
#[test]
fn every_rollout_that_is_posted_comes_back_stored_in_order_with_its_own_tokens() {
    let directory = tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    let mut expected = vec![];
    for round in 0..50 {
        for slot in 0..16 {
            // Some longer than was expected.
            let finished = Finished { request: round, ..finished(slot, slot + 1) };
            assert_eq!(recorder.post(finished), Ok(()), "as many as there are slots always fit");
            expected.push(finished);
        }
        let stored = await_stored(&mut recorder, 16);
        assert_eq!(stored, (0..16).map(|slot| RolloutId::new(slot, 3)).collect::<Vec<_>>());
        // Stored means readable by anybody, now.
        let verified = Reader::open(directory.path()).unwrap().verify().unwrap();
        assert_eq!((verified.records, verified.torn), (16 * (round + 1), None));
    }
    let sum = Box::new(recorder).finish().unwrap();
    assert_eq!((sum.trajectories, sum.tokens), (800, 50 * (1..=16).sum::<u64>()));
    assert!(sum.groups >= 50 && sum.groups <= 800, "{sum:?}");
    for (piece, finished) in Reader::open(directory.path()).unwrap().zip(expected) {
        let Piece::Record(found) = piece.unwrap() else { panic!("damage") };
        let first = 1000 * finished.shard + finished.offset as u32 / 4;
        assert_eq!(found.tokens, (first..first + finished.answer_tokens).collect::<Vec<_>>());
        assert_eq!(found.finished, Finished { shard: 0, offset: 0, ..finished });
    }
}

#[test]
fn what_was_posted_is_stored_though_nobody_looks() {
    let directory = tempdir().unwrap();
    let mut recorder = recorder(directory.path());
    let mut posted = 0;
    // More than the ring of ids holds.
    while posted < 100 {
        if recorder.post(finished(posted % 16, 3)).is_ok() {
            posted += 1;
        }
    }
    assert_eq!(Box::new(recorder).finish().unwrap().trajectories, 100);
    assert_eq!(Reader::open(directory.path()).unwrap().verify().unwrap().records, 100);
}

#[test]
fn what_no_region_holds_is_an_error_that_names_the_rollout() {
    let bad = [
        (Finished { shard: 2, ..finished(1, 1) }, "rollout 1.3 names region 2, but there are 2"),
        (
            Finished { offset: 4092, ..finished(2, 2) },
            "the tokens of rollout 2.3 cannot be read from token region 0: 8 bytes at offset 0xffc do not fit the token \
             region of 0x1000 bytes, or are misaligned",
        ),
        (
            finished(3, u32::MAX),
            "the tokens of rollout 3.3 cannot be read from token region 1: 17179869180 bytes at offset 0xc0 do not fit \
             the token region of 0x1000 bytes, or are misaligned",
        ),
    ];
    for (bad, message) in bad {
        let directory = tempdir().unwrap();
        let mut recorder = recorder(directory.path());
        recorder.post(bad).unwrap();
        await_failure(&recorder);
        assert_eq!(recorder.post(finished(0, 1)), Err(PostError::Failed(finished(0, 1))));
        assert_eq!(Box::new(recorder).finish().unwrap_err().to_string(), message);
    }
}

/// A record that cannot be stored takes none with it that came before, though they wait for the same sync.
#[test]
fn whole_records_before_a_bad_one_are_kept() {
    let directory = tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let options = LogOptions { group_delay: hour, group_bytes: 1 << 20, ..LogOptions::default() };
    let (log, _) = Log::open(directory.path(), options).unwrap();
    let mut recorder = WriterHandle::start(log, memory(), OPTIONS).unwrap();
    for slot in 0..5 {
        recorder.post(finished(slot, 3)).unwrap();
    }
    recorder.post(Finished { shard: 2, ..finished(5, 3) }).unwrap();
    await_failure(&recorder);
    assert_eq!(recorder.stored(&mut [RolloutId::from_bits(0); 8]), 0, "nothing of its group is reported");
    Box::new(recorder).finish().unwrap_err();
    let verified = Reader::open(directory.path()).unwrap().verify().unwrap();
    assert_eq!((verified.records, verified.tokens, verified.torn), (5, 15, None));
    assert!(verified.damage.is_empty());
}

/// Takes records, and fails once it has three.
struct Failing(u64);

impl Carrier for Failing {
    fn carry(&mut self, _: &Finished, _: &[u8]) -> Result<bool, String> {
        self.0 += 1;
        Ok(true)
    }

    fn arrived(&mut self) -> Result<u64, String> {
        if self.0 < 3 { Ok(0) } else { Err("the carrier has ended".into()) }
    }
}

/// A carrier that fails takes nothing from the log, though the log's group is still open.
#[test]
fn the_log_keeps_its_open_group_when_the_carrier_fails() {
    let directory = tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let options = LogOptions { group_delay: hour, group_bytes: 1 << 20, ..LogOptions::default() };
    let (log, _) = Log::open(directory.path(), options).unwrap();
    let keeper = Carried::new(Failing(0), Some(log));
    let mut recorder = WriterHandle::start_keeping(keeper, memory(), OPTIONS, None).unwrap();
    for slot in 0..3 {
        recorder.post(finished(slot, 3)).unwrap();
    }
    await_failure(&recorder);
    let error = Box::new(recorder).finish().unwrap_err();
    assert!(matches!(error, WriterError::Carrier(_)), "{error}");
    let verified = Reader::open(directory.path()).unwrap().verify().unwrap();
    assert_eq!((verified.records, verified.torn), (3, None));
}

/// A disk whose syncs wait until the test lets them, and fail or panic when it says so.
struct Gate(Receiver<Outlook>);

enum Outlook {
    Done,
    Full,
    Panic,
}

struct GateFile(Receiver<Outlook>);

impl Gate {
    fn new() -> (Self, Sender<Outlook>) {
        let (sender, receiver) = channel();
        (Self(receiver), sender)
    }
}

impl Volume for Gate {
    type File = GateFile;

    fn create(&mut self, path: &Path) -> io::Result<GateFile> {
        File::create(path)?;
        // There is but one file.
        let (_, none) = channel();
        Ok(GateFile(std::mem::replace(&mut self.0, none)))
    }

    fn reopen(&mut self, _: &Path, _: u64) -> io::Result<GateFile> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_directory(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl Write for GateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Append for GateFile {
    fn sync(&mut self) -> io::Result<()> {
        match self.0.recv() {
            Ok(Outlook::Done) => Ok(()),
            Ok(Outlook::Panic) => panic!("a bug"),
            Ok(Outlook::Full) | Err(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

fn gated(directory: &Path) -> (WriterHandle, Sender<Outlook>) {
    let (disk, gate) = Gate::new();
    let (log, _) = Log::open_on(disk, directory, LogOptions::default()).unwrap();
    (WriterHandle::start(log, memory(), OPTIONS).unwrap(), gate)
}

/// The reference's credits stop draining (flaw 14): here what stands still is told, and nothing waits.
#[test]
fn a_disk_that_stands_still_blocks_nobody_and_reports_nothing() {
    let directory = tempdir().unwrap();
    let (mut recorder, gate) = gated(directory.path());
    let mut posted = 0;
    let full = loop {
        match recorder.post(finished(posted % 16, 1)) {
            Ok(()) => posted += 1,
            Err(back) => break back,
        }
        assert!(posted < 1000, "more is taken than there is room for, and nothing is stored");
        // Whoever posts goes on in any case; to fill the ring, the writer must have had its chance.
        thread::yield_now();
    };
    assert_eq!(full, PostError::Full(finished(posted % 16, 1)), "handed back, not dropped");
    let mut out = [RolloutId::from_bits(0); 16];
    assert_eq!(recorder.stored(&mut out), 0, "nothing is stored before its sync");
    for _ in 0..posted {
        gate.send(Outlook::Done).unwrap();
    }
    assert_eq!(await_stored(&mut recorder, posted as usize).len(), posted as usize);
    Box::new(recorder).finish().unwrap();
}

#[test]
fn a_full_disk_reaches_the_run_and_reports_nothing_as_stored() {
    let directory = tempdir().unwrap();
    let (mut recorder, gate) = gated(directory.path());
    recorder.post(finished(0, 1)).unwrap();
    gate.send(Outlook::Done).unwrap();
    assert_eq!(await_stored(&mut recorder, 1), [RolloutId::new(0, 3)]);
    recorder.post(finished(1, 1)).unwrap();
    gate.send(Outlook::Full).unwrap();
    await_failure(&recorder);
    let mut out = [RolloutId::from_bits(0); 4];
    assert_eq!(recorder.stored(&mut out), 0, "what is not on disk is not stored");
    assert_eq!(recorder.post(finished(2, 1)), Err(PostError::Failed(finished(2, 1))));
    let error = Box::new(recorder).finish().unwrap_err().to_string();
    assert!(error.starts_with("trajectories cannot be stored: cannot sync "), "{error}");
    assert!(error.contains("free some space"), "{error}");
}

#[test]
fn a_writer_that_panics_is_an_error_and_no_hang() {
    let directory = tempdir().unwrap();
    let (mut recorder, gate) = gated(directory.path());
    recorder.post(finished(0, 1)).unwrap();
    gate.send(Outlook::Panic).unwrap();
    await_failure(&recorder);
    assert_eq!(
        Box::new(recorder).finish().unwrap_err().to_string(),
        "the writer of trajectories panicked: a bug"
    );
}
