//! The append-only log of trajectories: files of checked records in one directory.
//!
//! [`Log`] appends, [`Reader`] reads, also while somebody appends.

mod append;
mod frame;
mod read;
mod runs;
#[cfg(test)]
mod tests;
mod volume;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use append::{Log, NextRun, Recovery};
pub use frame::MAX_TOKENS;
pub use read::{Damage, DamageKind, Piece, Reader, Torn, Verified};
pub use runs::{Run, run_of, runs};
pub use volume::{Append, Disk, Volume};

/// When a group of records counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// After one `fdatasync` for the group: what is stored survives a loss of power.
    EveryGroup,
    /// Once the system has taken the bytes: what is stored survives the end of the process, SIGKILL included, as it lies
    /// in the page cache, but not the end of the machine.
    Never,
}

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// When records count as stored.
    pub sync: Sync,
    /// Bytes after which a new file is begun. A longer record has a file of its own.
    pub file_bytes: u64,
    /// Bytes after which a group is written.
    pub group_bytes: usize,
    /// How long the first record of a group waits for others; without syncs it does not.
    pub group_delay: Duration,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            sync: Sync::EveryGroup,
            file_bytes: 256 << 20,
            group_bytes: 1 << 20,
            group_delay: Duration::from_millis(1),
        }
    }
}

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The system refused something.
    #[error("cannot {what} {}: {source}{}", path.display(), advice(what, source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// Another log is open on the directory.
    #[error("{} is in use by another writer; give each run a directory of its own", directory.display())]
    Locked {
        /// The directory.
        directory: PathBuf,
    },

    /// There is no log.
    #[error("{} holds no trajectories (files *.{SUFFIX}); give the directory that a run wrote", directory.display())]
    NoLog {
        /// The directory.
        directory: PathBuf,
    },

    /// A file is of another version of the format.
    #[error("{} is of version {found} of the log; this program reads up to version {}", path.display(), frame::VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },

    /// Something else has the name of a file of the log.
    #[error("{} is no regular file, so it is no part of a log; move it away, or give another directory", path.display())]
    Foreign {
        /// What has the name.
        path: PathBuf,
    },

    /// A line of the table of runs is damaged.
    #[error("{} line {line} is no run: {problem}; without that line the runs that the others name can be read, and records of its run count as those of the run before", path.display())]
    Runs {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },

    /// A record that the log cannot hold.
    #[error(
        "the record of rollout {rollout} has {tokens} tokens and announces {announced}: both must be the same, and at \
         most {MAX_TOKENS}"
    )]
    Record {
        /// The rollout.
        rollout: crate::rollout::RolloutId,
        /// Tokens that were given.
        tokens: usize,
        /// `answer_tokens`.
        announced: u32,
    },

    /// A record whose parts are not those that it announces.
    #[error(
        "the record of rollout {rollout} has {spans} spans and {logprobs} log-probabilities, and announces others; or there are \
         more than 2^24 - 1 spans, or its prompt is not as long as announced, or has over 2^28 tokens or bytes of text"
    )]
    Parts {
        /// The rollout.
        rollout: crate::rollout::RolloutId,
        /// Spans that were given.
        spans: usize,
        /// Log-probabilities that were given.
        logprobs: usize,
    },

    /// The log failed before.
    #[error("the log has failed before and takes nothing more: {reason}; open it anew")]
    Dead {
        /// The failure.
        reason: String,
    },
}

impl LogError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

fn advice(what: &str, source: &io::Error) -> &'static str {
    let reads = what.starts_with("read") || what == "look at";
    match source.kind() {
        io::ErrorKind::PermissionDenied if reads => "; give a directory that can be read",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, or give a directory on another disk: what was stored is kept"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; give a directory that can be written"
        }
        _ => "",
    }
}

/// Numbers stay below it, so that one more is a number, too.
const MAX_NUMBER: u64 = 1 << 63;

/// Ending of the log's files.
const SUFFIX: &str = "trajectories";

/// The file whose first record is number `first`.
fn file_name(first: u64) -> String {
    format!("{first:020}.{SUFFIX}")
}

/// The log's files in `directory`, in order, each with the number of its first record.
///
/// # Errors
/// `Io` if the directory cannot be read, `Foreign` if an entry with such a name is no regular file.
fn files(directory: &Path) -> Result<Vec<(u64, PathBuf)>, LogError> {
    let entries = std::fs::read_dir(directory).map_err(LogError::io("read the directory", directory))?;
    let mut files = vec![];
    for entry in entries {
        let path = entry.map_err(LogError::io("read the directory", directory))?.path();
        let first = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(SUFFIX)?.strip_suffix('.'))
            .filter(|digits| digits.len() == 20)
            .and_then(|digits| digits.parse().ok())
            .filter(|&first| first < MAX_NUMBER);
        let Some(first) = first else { continue };
        // A pipe would never end, and a directory or a dangling link holds no record.
        if !path.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(LogError::Foreign { path });
        }
        files.push((first, path));
    }
    files.sort();
    Ok(files)
}
