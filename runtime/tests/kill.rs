//! A process that writes trajectories is killed at any moment: what it had reported as stored is there, whole and right.
//!
//! The process is this test binary once more, running [`child`]. `DOORBELL_KILL_SEED` and `DOORBELL_KILL_ROUNDS` choose
//! the moments and how many there are.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use doorbell_contract::PREFIX_NONE;
use doorbell_host::{SharedMemory, TokenRegion};
use doorbell_runtime::pipeline::TrajectoryStage;
use doorbell_runtime::rollout::RolloutId;
use doorbell_runtime::trajectory::log::{Log, LogOptions, Piece, Reader, Sync};
use doorbell_runtime::trajectory::{
    Finished, Outcome, PostError, RolloutMemory, Spans, WriterHandle, WriterOptions,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tempfile::tempdir;

/// Slots, and with each an area of the token region.
const SLOTS: u32 = 64;
const AREA: u32 = 16_384;
const DIRECTORY: &str = "DOORBELL_KILL_DIRECTORY";
const RUN: &str = "DOORBELL_KILL_RUN";

/// The answer of rollout `generation` in `slot`, of run number `run`.
fn answer(run: u32, id: RolloutId) -> Vec<u32> {
    let seed = u64::from(run) << 48 ^ u64::from(id.generation()) << 16 ^ u64::from(id.slot());
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let longest = if is_large(run) { AREA } else { 256 };
    (0..random.next_u32() % longest).map(|_| random.next_u32()).collect()
}

/// Whether the groups of run number `run` are large: only then does a kill find a write half done.
fn is_large(run: u32) -> bool {
    run.is_multiple_of(3)
}

fn options(run: u32) -> LogOptions {
    let group_delay = Duration::from_micros(200);
    if is_large(run) {
        // The page cache survives the kill of a process.
        return LogOptions { sync: Sync::Never, file_bytes: 16 << 20, group_bytes: 4 << 20, group_delay };
    }
    // Some groups to a file, so that many kills meet a rotation.
    LogOptions { sync: Sync::EveryGroup, file_bytes: 40_000, group_bytes: 10_000, group_delay }
}

/// Writes as fast as it can and reports each stored id, until it is killed.
#[test]
#[ignore = "the process that the kill test kills"]
fn child() {
    let (Ok(directory), Ok(run)) = (env::var(DIRECTORY), env::var(RUN)) else { return };
    let run: u32 = run.parse().unwrap();
    let memory = SharedMemory::allocate((4 * SLOTS * AREA) as usize, 1 << 32).unwrap();
    let region = TokenRegion::new(memory.clone(), 0, memory.len() as u64).unwrap();
    let (log, recovery) = Log::open(Path::new(&directory), options(run)).unwrap();
    assert_eq!(recovery.damage, [], "a kill damages nothing");
    let writer = WriterOptions::new(SLOTS as usize, AREA as usize);
    let mut recorder = WriterHandle::start(log, memory_of(region), writer).unwrap();
    let mut free: Vec<RolloutId> = (0..SLOTS).map(|slot| RolloutId::new(slot, 0)).collect();
    let mut stored = [RolloutId::from_bits(0); SLOTS as usize];
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nbegun").unwrap();
    loop {
        for id in free.drain(..) {
            let tokens = answer(run, id);
            let offset = u64::from(4 * AREA * id.slot());
            for (token, word) in tokens.iter().zip(0..) {
                memory.bus_write_u32((1 << 32) + offset + 4 * word, *token).unwrap();
            }
            let finished = Finished {
                rollout: id,
                request: run.into(),
                member: 0,
                device_rollout: id.generation(),
                seed: run,
                prefix_id: PREFIX_NONE,
                prefix_hash: 0,
                prompt_tokens: 1,
                answer_tokens: tokens.len() as u32,
                score: 0,
                scorer: None,
                segments: 1,
                outcome: Outcome::Completed,
                spans: 0,
                group: None,
                has_logprobs: false,
                shard: 0,
                offset,
            };
            match recorder.post(finished) {
                Ok(()) => {}
                Err(PostError::Full(_)) => panic!("the ring holds as many as there are slots"),
                Err(_) => panic!("{:?}", Box::new(recorder).finish()),
            }
        }
        let count = recorder.stored(&mut stored);
        for id in &stored[..count] {
            writeln!(out, "stored {}", id.to_bits()).unwrap();
            // Its slot is used again, and its area written over.
            free.push(RolloutId::new(id.slot(), id.generation() + 1));
        }
        out.flush().unwrap();
        if count == 0 {
            std::thread::yield_now();
        }
    }
}

fn memory_of(region: TokenRegion) -> RolloutMemory {
    RolloutMemory { tokens: vec![region], logprobs: vec![], spans: Spans::new(SLOTS, 0) }
}

/// Runs the child in `directory` and kills it behind its `moment`-th report and `spins` more turns; returns what it had
/// reported.
fn run_and_kill(directory: &Path, run: u32, moment: u32, spins: u32) -> Vec<u64> {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(RUN, run.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = vec![];
    let mut kill_after = Some(moment);
    let mut pipe = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // Read to the end of the pipe: what was reported before the kill counts.
    loop {
        if kill_after == Some(0) {
            (0..spins).for_each(|_| std::hint::spin_loop());
            // SIGKILL.
            child.kill().unwrap();
            kill_after = None;
        }
        line.clear();
        pipe.read_line(&mut line).unwrap();
        // A line that the kill cut reports nothing.
        let Some(whole) = line.strip_suffix('\n') else { break };
        if let Some(bits) = whole.strip_prefix("stored ") {
            reported.push(bits.parse().unwrap());
        } else if whole != "begun" {
            continue;
        }
        kill_after = kill_after.map(|left| left - 1);
    }
    assert!(kill_after.is_none(), "run {run} ended by itself, after {} reports", reported.len());
    assert!(!child.wait().unwrap().success());
    reported
}

#[test]
fn what_was_reported_as_stored_survives_a_kill() {
    let number = |name, otherwise: u64| env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let seed = number("DOORBELL_KILL_SEED", 1);
    let rounds = number("DOORBELL_KILL_ROUNDS", 40) as u32;
    println!("DOORBELL_KILL_SEED={seed} DOORBELL_KILL_ROUNDS={rounds}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut directory = tempdir().unwrap();
    let mut expected: BTreeSet<(u32, u64)> = BTreeSet::new();
    let (mut torn, mut files, mut records) = (0, 0, 0);
    for run in 1..=rounds {
        // The log is reopened after a kill, a few times; then comes a new one.
        if run.is_multiple_of(5) {
            directory = tempdir().unwrap();
            expected.clear();
        }
        // From the first record on; often while a file is being made.
        let moment = 1 + random.next_u32() % if run.is_multiple_of(2) { 20 } else { 1500 };
        let reported = run_and_kill(directory.path(), run, moment, random.next_u32() % 200_000);
        expected.extend(reported.into_iter().map(|bits| (run, bits)));

        let mut found = BTreeSet::new();
        if expected.is_empty() {
            continue;
        }
        for piece in Reader::open(directory.path()).unwrap() {
            match piece.unwrap() {
                Piece::Record(trajectory) => {
                    let (run, id) = (trajectory.finished.seed, trajectory.finished.rollout);
                    assert_eq!(trajectory.tokens, answer(run, id), "rollout {id} of run {run}, seed {seed}");
                    assert!(
                        found.insert((run, id.to_bits())),
                        "rollout {id} of run {run} twice, seed {seed}"
                    );
                }
                Piece::Torn(_) => torn += 1,
                Piece::Damage(damage) => panic!("{damage}; run {run}, seed {seed}"),
            }
        }
        let lost: Vec<_> = expected.difference(&found).collect();
        assert!(
            lost.is_empty(),
            "run {run}, seed {seed}: {} of {} are lost: {lost:?}",
            lost.len(),
            expected.len()
        );
        records += found.len();
        files = files.max(std::fs::read_dir(directory.path()).unwrap().count());
    }
    println!("{records} records checked, {torn} torn tails, up to {files} files");
    assert!(files > 3, "files were rotated while it was killed");
}
