//! Trajectories stored per second, beside the disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use doorbell_contract::PREFIX_NONE;
use doorbell_host::{SharedMemory, TokenRegion};
use doorbell_runtime::pipeline::TrajectoryStage;
use doorbell_runtime::rollout::RolloutId;
use doorbell_runtime::trajectory::log::{Log, LogOptions, Sync};
use doorbell_runtime::trajectory::{
    Finished, Outcome, PostError, RolloutMemory, Spans, WriterHandle, WriterOptions,
};
use serde_json::json;

use crate::BenchError;
use crate::leftovers::Folder;
use crate::{Section, median, table};

/// Rollouts on their way to disk at a time.
const SLOTS: u32 = 256;
/// Answers, in tokens: a short one, and one of a reasoning model.
const ANSWERS: [u32; 2] = [128, 2048];
const BUS: u64 = 1 << 32;

/// What one run came to.
#[derive(Clone, Copy)]
struct Run {
    seconds: f64,
    bytes: u64,
    groups: u64,
}

/// Rates of the whole way from the hot thread's ring to stored ids, each run beside a plain write of the same bytes, with
/// as many syncs.
pub fn stored(quick: bool) -> Result<Section, BenchError> {
    let (total_tokens, repeats) = if quick { (1u32 << 21, 3) } else { (1 << 24, 7) };
    let cases: Vec<(Sync, u32)> = [Sync::EveryGroup, Sync::Never]
        .into_iter()
        .flat_map(|sync| ANSWERS.map(|tokens| (sync, tokens)))
        .collect();
    let mut runs = vec![vec![]; cases.len()];
    let mut floors = vec![vec![]; cases.len()];
    let region = region()?;
    for _ in 0..repeats {
        for (row, &(sync, tokens)) in cases.iter().enumerate() {
            // Beside the work: a temporary directory often is no disk.
            let directory = Folder::new_in(Path::new(".")).map_err(|error| {
                BenchError::input(format!(
                    "cannot make a directory here: {error}; run it where files can be written"
                ))
            })?;
            let log = directory.path().join("log");
            let run = store(&log, &region, sync, tokens, total_tokens / tokens)?;
            floors[row].push(write_plainly(&log, &directory.path().join("plain"), sync, run)?);
            runs[row].push(run);
        }
    }
    let mut table = table(
        [
            "stored means",
            "tokens",
            "trajectories/s",
            "MB/s",
            "syncs",
            "plain write, MB/s",
            "of the plain write",
        ],
        1,
    );
    let mut rows = vec![];
    for (row, (sync, tokens)) in cases.into_iter().enumerate() {
        let (runs, floors) = (&runs[row], &floors[row]);
        let count = f64::from(total_tokens / tokens);
        let per_second = median(runs.iter().map(|run| count / run.seconds));
        let rate = median(runs.iter().map(|run| run.bytes as f64 / run.seconds));
        let floor = median(runs.iter().zip(floors).map(|(run, floor)| run.bytes as f64 / floor));
        let ratio = median(runs.iter().zip(floors).map(|(run, floor)| floor / run.seconds));
        let syncs = if sync == Sync::Never { 0.0 } else { median(runs.iter().map(|run| run.groups as f64)) };
        let name = if sync == Sync::Never { "in the page cache" } else { "on disk" };
        table.add_row([
            name.to_owned(),
            tokens.to_string(),
            format!("{per_second:.0}"),
            format!("{:.1}", rate / 1e6),
            format!("{syncs:.0}"),
            format!("{:.1}", floor / 1e6),
            format!("{ratio:.2}"),
        ]);
        rows.push(json!({
            "stored": name, "tokens": tokens, "trajectories_per_second": per_second, "bytes_per_second": rate,
            "syncs": syncs, "plain_bytes_per_second": floor,
        }));
    }
    Ok(Section {
        heading: format!(
            "Trajectories: stored per second through ring, writer and log, median of {repeats} runs of {total_tokens} \
             tokens"
        ),
        table,
        notes: vec![format!(
            "At most {SLOTS} are on their way at a time, as many as there are slots. The plain write takes the same bytes \
             from memory, in as many writes and with as many fdatasyncs as the log had groups."
        )],
        json: rows.into(),
    })
}

fn region() -> Result<TokenRegion, BenchError> {
    let bytes = 4 * u64::from(SLOTS) * u64::from(ANSWERS[1]);
    let memory = SharedMemory::allocate(bytes as usize, BUS)?;
    for word in 0..bytes / 4 {
        // It lies in the block by construction.
        let _ = memory.bus_write_u32(BUS + 4 * word, (word as u32).wrapping_mul(doorbell_contract::GOLDEN));
    }
    Ok(TokenRegion::new(memory, 0, bytes)?)
}

/// Stores `count` trajectories of `tokens` tokens each.
fn store(
    directory: &Path,
    region: &TokenRegion,
    sync: Sync,
    tokens: u32,
    count: u32,
) -> Result<Run, BenchError> {
    let (log, _) =
        Log::open(directory, LogOptions { sync, ..LogOptions::default() }).map_err(BenchError::input)?;
    let options = WriterOptions::new(SLOTS as usize, tokens as usize);
    let memory =
        RolloutMemory { tokens: vec![region.clone()], logprobs: vec![], spans: Spans::new(SLOTS, 0) };
    let mut recorder = WriterHandle::start(log, memory, options).map_err(BenchError::input)?;
    let mut ids = [RolloutId::from_bits(0); SLOTS as usize];
    let start = Instant::now();
    let (mut posted, mut stored) = (0, 0);
    while stored < count {
        if posted < count && posted - stored < SLOTS {
            let slot = posted % SLOTS;
            let finished = Finished {
                rollout: RolloutId::new(slot, posted / SLOTS),
                request: posted.into(),
                member: 0,
                device_rollout: posted,
                seed: 0,
                prefix_id: PREFIX_NONE,
                prefix_hash: 0,
                prompt_tokens: 100,
                answer_tokens: tokens,
                score: 0,
                scorer: None,
                segments: 1,
                outcome: Outcome::Completed,
                spans: 0,
                group: None,
                has_logprobs: false,
                shard: 0,
                offset: u64::from(slot) * 4 * u64::from(ANSWERS[1]),
            };
            match recorder.post(finished) {
                Ok(()) => posted += 1,
                Err(PostError::Full(_)) => {}
                Err(_) => break,
            }
            continue;
        }
        let taken = recorder.stored(&mut ids);
        stored += taken as u32;
        if taken == 0 {
            if recorder.has_failed() {
                break;
            }
            // The writer may need this core.
            std::thread::yield_now();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let sum = Box::new(recorder).finish().map_err(BenchError::input)?;
    let bytes = files(directory)?.iter().map(|content| content.len() as u64).sum();
    Ok(Run { seconds, bytes, groups: sum.groups })
}

/// The content of the log's files.
fn files(directory: &Path) -> Result<Vec<Vec<u8>>, BenchError> {
    let read = || {
        let mut contents = vec![];
        for entry in fs::read_dir(directory)? {
            contents.push(fs::read(entry?.path())?);
        }
        Ok::<_, std::io::Error>(contents)
    };
    read().map_err(|error| BenchError::input(format!("cannot read {}: {error}", directory.display())))
}

/// How long the same bytes take, in seconds.
fn write_plainly(log: &Path, path: &Path, sync: Sync, run: Run) -> Result<f64, BenchError> {
    let content = files(log)?.concat();
    let group = content.len().div_ceil(run.groups.max(1) as usize).max(1);
    let write = || {
        let mut file = File::create(path)?;
        let start = Instant::now();
        for group in content.chunks(group) {
            file.write_all(group)?;
            if sync == Sync::EveryGroup {
                file.sync_data()?;
            }
        }
        Ok::<_, std::io::Error>(start.elapsed().as_secs_f64())
    };
    write().map_err(|error| BenchError::input(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trajectory_is_stored() {
        let directory = tempfile::tempdir().unwrap();
        let run = store(directory.path(), &region().unwrap(), Sync::Never, 100, 1000).unwrap();
        // 24 + 64 bytes and the tokens for each, and the head of the file.
        assert_eq!(run.bytes, 1000 * (88 + 400) + 32);
        let verified =
            doorbell_runtime::trajectory::log::Reader::open(directory.path()).unwrap().verify().unwrap();
        assert_eq!((verified.records, verified.damage.len()), (1000, 0));
        assert!(run.groups >= 1 && run.seconds > 0.0);
    }
}
