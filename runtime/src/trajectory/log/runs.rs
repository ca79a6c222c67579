//! Which runs wrote a log: a line of JSON for each, in the file `runs.jsonl` beside the log's files.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::LogError;

/// Name of the file.
const FILE: &str = "runs.jsonl";

/// What a run says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Number of the run in this log, from 1.
    pub run: u32,
    /// Names the run among those of all logs: 16 hexadecimal digits, drawn.
    pub id: String,
    /// Number of its first record. Its records end where those of the next run begin.
    pub first: u64,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// Seed of its draws.
    pub seed: u64,
    /// Version of the program.
    pub doorbell: String,
    /// The device.
    pub device: String,
    /// The language model, if there is one.
    pub model: Option<String>,
    /// Arguments of the command, without the program.
    pub arguments: Vec<String>,
}

/// The runs that wrote the log in `directory`, in order; none if programs did that knew of no runs. Half a last line is passed over: its
/// writer was killed. So is half a line that an older program ended before it noted the next run. No run was counted for such a line,
/// so the next run has the number that follows the run before it.
///
/// # Errors
/// `Io` if the file is there and cannot be read, `Foreign` if it is no regular file, `Runs` if a whole line is no run.
pub fn runs(directory: &Path) -> Result<Vec<Run>, LogError> {
    let path = directory.join(FILE);
    match fs::metadata(&path) {
        Ok(metadata) if !metadata.is_file() => return Err(LogError::Foreign { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        _ => {}
    }
    let bytes = fs::read(&path).map_err(LogError::io("read", &path))?;
    let mut runs: Vec<Run> = vec![];
    let mut half: Option<LogError> = None;
    for (number, line) in whole_lines(&bytes).split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Run>(line) {
            Ok(run) => {
                let next = runs.last().map_or(1, |last| last.run.saturating_add(1));
                if let Some(half) = half.take()
                    && run.run != next
                {
                    return Err(half);
                }
                runs.push(run);
            }
            Err(error) => {
                let is_half = error.is_eof();
                let told =
                    LogError::Runs { path: path.clone(), line: number + 1, problem: error.to_string() };
                match half {
                    Some(half) => return Err(half),
                    None if is_half => half = Some(told),
                    None => return Err(told),
                }
            }
        }
    }
    half.map_or(Ok(runs), Err)
}

/// All up to the last line end. What follows is what a writer that was killed, or a power failure, has left.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1)]
}

/// The run that wrote record `number`.
pub fn run_of(runs: &[Run], number: u64) -> Option<&Run> {
    runs.iter().rev().find(|run| run.first <= number)
}

/// Notes a run, which gets the next number.
pub(super) fn note(directory: &Path, run: Run) -> Result<Run, LogError> {
    let last = runs(directory)?.iter().map(|run| run.run).max().unwrap_or(0);
    // The keys of a hasher are drawn by the system.
    let id = format!("{:016x}", RandomState::new().hash_one((std::process::id(), run.started_ms)));
    let run = Run { run: last.saturating_add(1), id, ..run };
    let path = directory.join(FILE);
    let io = |source| LogError::io("write", &path)(source);
    let mut line = serde_json::to_vec(&run).map_err(|error| io(error.into()))?;
    line.push(b'\n');
    let is_new = !path.exists();
    let mut file = File::options().read(true).append(true).create(true).open(&path).map_err(io)?;
    // A killed writer, or a power failure, may have left half a line or zeros. Ended with a line end they would be a line that is no run.
    let mut bytes = vec![];
    file.read_to_end(&mut bytes).map_err(io)?;
    if whole_lines(&bytes).len() < bytes.len() {
        file.set_len(whole_lines(&bytes).len() as u64).map_err(io)?;
    }
    file.write_all(&line).and_then(|()| file.sync_data()).map_err(io)?;
    if is_new {
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(LogError::io("sync", directory))?;
    }
    Ok(run)
}
