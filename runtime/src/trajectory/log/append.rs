//! Writing a log: groups of records, each group one write and one sync.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::frame::{FILE_HEAD, MAX_TOKENS, RECORD_HEAD, file_head, seal};
use super::read::{Damage, Piece, Scan, Torn};
use super::volume::{Append, Disk, Volume};
use super::{LogError, LogOptions, Run, Sync, file_name, files, runs};
use crate::trajectory::record::{self, Body, Finished, PromptBody};

/// A log that is being written: the only writer of its directory.
#[derive(Debug)]
pub struct Log<V: Volume = Disk> {
    volume: V,
    directory: PathBuf,
    options: LogOptions,
    current: Option<Current<V::File>>,
    /// Whether the next group goes to a new file. The current one stays open, and locked, until that one is.
    full: bool,
    /// Records that were appended and not yet written.
    group: Vec<u8>,
    /// Number of the next record.
    next: u64,
    /// Number of the first record that is not stored.
    stored: u64,
    /// Groups written.
    groups: u64,
    /// Why nothing more is taken.
    dead: Option<String>,
    /// Holds off other writers; the system lets go of it when the process ends, however it ends.
    _lock: Lock,
}

/// The file that is being written.
#[derive(Debug)]
struct Current<F> {
    path: PathBuf,
    file: F,
    /// Without the group.
    bytes: u64,
}

/// A run that has not begun.
#[derive(Clone, Debug)]
pub struct NextRun {
    directory: PathBuf,
    first: u64,
}

impl NextRun {
    /// Notes the run, as [`Log::begin_run`] does.
    ///
    /// # Errors
    /// `Io` if it cannot be noted.
    pub fn begin(self, run: Run) -> Result<Run, LogError> {
        runs::note(&self.directory, Run { first: self.first, ..run })
    }
}

/// What was found in a log's last file when it was opened for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of the next record.
    pub next: u64,
    /// A write that had not come to its end, and was cut off.
    pub torn: Option<Torn>,
    /// Damage in the last file, which is left as it is; a new file is begun. [`Reader`](super::Reader) tells of all
    /// files.
    pub damage: Vec<Damage>,
}

impl Log {
    /// Opens the log in `directory` for writing, or begins one.
    ///
    /// Of an older log only the last file is read. A torn write at its end is cut off. What is damaged is left as it is,
    /// and a new file is begun behind it, as behind one of an older version of the format: what was stored is never deleted.
    ///
    /// # Errors
    /// `Locked` if another log is open on it, `Version`, or `Io`.
    pub fn open(directory: &Path, options: LogOptions) -> Result<(Self, Recovery), LogError> {
        Self::open_on(Disk, directory, options)
    }
}

impl<V: Volume> Log<V> {
    /// As [`open`](Log::open), writing through `volume`.
    ///
    /// # Errors
    /// As [`open`](Log::open).
    pub fn open_on(
        mut volume: V,
        directory: &Path,
        options: LogOptions,
    ) -> Result<(Self, Recovery), LogError> {
        make(&mut volume, directory, options)?;
        let lock = lock(directory)?;
        let mut recovery = Recovery::default();
        let mut current = None;
        if let Some((first, path)) = files(directory)?.pop() {
            let mut scan = Scan::open(&path, first, None)?;
            while let Some(piece) = scan.read()? {
                match piece {
                    Piece::Record(_) => {}
                    Piece::Damage(damage) => recovery.damage.push(damage),
                    Piece::Torn(torn) => recovery.torn = Some(torn),
                }
            }
            recovery.next = scan.next;
            let kept = recovery.torn.as_ref().map_or(scan.position(), |torn| torn.offset);
            // A file of an older version without a record holds nothing that was stored. The next file would have its name, so it
            // becomes that file.
            let unused = scan.older && recovery.damage.is_empty() && scan.next == first;
            let bytes = if unused { 0 } else { kept };
            let reopened = reopen(&mut volume, path, bytes, first, options)?;
            current = (recovery.damage.is_empty() && (!scan.older || unused)).then_some(reopened);
        }
        let next = recovery.next;
        let log = Self {
            volume,
            directory: directory.to_owned(),
            options,
            current,
            full: false,
            group: Vec::with_capacity(options.group_bytes),
            next,
            stored: next,
            groups: 0,
            dead: None,
            _lock: lock,
        };
        Ok((log, recovery))
    }

    /// Notes the run whose records follow, and returns it with its number and its first record.
    ///
    /// # Errors
    /// `Io` if it cannot be noted.
    pub fn begin_run(&mut self, run: Run) -> Result<Run, LogError> {
        self.next_run().begin(run)
    }

    /// To note the run whose records follow once it begins, where the log itself is given away before. Nothing may be appended until then.
    pub fn next_run(&self) -> NextRun {
        NextRun { directory: self.directory.clone(), first: self.next }
    }

    /// Adds a record to the group, and returns its number. It is stored once [`stored`](Self::stored) is above that.
    ///
    /// Writes the group first if it is full, or the record needs a new file.
    ///
    /// # Errors
    /// `Record` if `body` is not what `finished` announces, or too long; the log goes on. `Io` or `Dead` if the log has
    /// failed: nothing more is taken, and what is not stored by then may or may not be there.
    pub fn append(&mut self, finished: &Finished, body: &Body<'_>) -> Result<u64, LogError> {
        let (rollout, announced, tokens) = (finished.rollout, finished.answer_tokens, body.tokens.len());
        if tokens != announced as usize || tokens > MAX_TOKENS {
            return Err(LogError::Record { rollout, tokens, announced });
        }
        let logprobs = if finished.has_logprobs { tokens } else { 0 };
        let (spans, most) = (body.spans.len(), record::SPANS_MAX);
        if body.logprobs.len() != logprobs || spans != finished.spans as usize || spans > most {
            return Err(LogError::Parts { rollout, spans, logprobs: body.logprobs.len() });
        }
        let fits = body.prompt.is_none_or(|PromptBody { tokens, text }| {
            tokens.len() == finished.prompt_tokens as usize
                && tokens.len() <= MAX_TOKENS
                && text.is_none_or(|text| text.len() <= record::TEXT_MAX)
        });
        if !fits {
            return Err(LogError::Parts { rollout, spans, logprobs: body.logprobs.len() });
        }
        self.require_alive()?;
        let frame = RECORD_HEAD + record::payload_bytes(finished, body);
        if !self.group.is_empty() && self.group.len() + frame > self.options.group_bytes {
            self.commit()?;
        }
        let current = self.current.as_ref().filter(|_| !self.full);
        let begun = current.map_or(0, |current| current.bytes) + self.group.len() as u64;
        if begun > FILE_HEAD as u64 && begun + frame as u64 > self.options.file_bytes {
            self.commit()?;
            self.full = true;
        }
        let start = self.group.len();
        self.group.resize(start + RECORD_HEAD, 0);
        record::encode(finished, body, &mut self.group);
        seal(&mut self.group[start..], self.next);
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Stores what has been appended: one write, and with [`Sync::EveryGroup`] one sync.
    ///
    /// # Errors
    /// `Io` or `Dead`, as [`append`](Self::append).
    pub fn commit(&mut self) -> Result<(), LogError> {
        self.require_alive()?;
        if self.group.is_empty() {
            return Ok(());
        }
        let written = self.write_group();
        if let Err(error) = &written {
            // Not tried again: after a failed sync nobody knows what the disk has.
            self.dead = Some(error.to_string());
        }
        written
    }

    fn write_group(&mut self) -> Result<(), LogError> {
        let current = match &mut self.current {
            Some(current) if !self.full => current,
            other => other.insert(begin(&mut self.volume, &self.directory, self.stored, self.options)?),
        };
        self.full = false;
        current.file.write_all(&self.group).map_err(LogError::io("write", &current.path))?;
        if self.options.sync == Sync::EveryGroup {
            current.file.sync().map_err(LogError::io("sync", &current.path))?;
        }
        current.bytes += self.group.len() as u64;
        self.group.clear();
        // One long record must not hold memory for ever.
        self.group.shrink_to(self.options.group_bytes);
        self.stored = self.next;
        self.groups += 1;
        Ok(())
    }

    /// Number of the first record that is not stored: all before it are.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Groups written since the log was opened.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// How it is written.
    pub fn options(&self) -> LogOptions {
        self.options
    }

    /// Bytes that the next [`commit`](Self::commit) writes.
    pub fn group_len(&self) -> usize {
        self.group.len()
    }

    fn require_alive(&self) -> Result<(), LogError> {
        match &self.dead {
            None => Ok(()),
            Some(reason) => Err(LogError::Dead { reason: reason.clone() }),
        }
    }
}

/// Makes the directory of a log, and those above it, so that the loss of power takes none of them. A process may have ended
/// between making one and syncing it: so the one that is found is synced too, unless it has files, and so had a writer that
/// came further.
fn make<V: Volume>(volume: &mut V, directory: &Path, options: LogOptions) -> Result<(), LogError> {
    if directory.is_dir() && !files(directory)?.is_empty() {
        return Ok(());
    }
    let above = |directory: &Path| match directory.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        parent => parent.map(Path::to_owned),
    };
    // Each with the one that has its name; the last was there before.
    let mut named = vec![];
    let mut next = Some(directory.to_owned());
    while let Some(directory) = next {
        let found = directory.exists();
        next = above(&directory).filter(|_| !found);
        named.extend(above(&directory).map(|parent| (parent, found)));
    }
    fs::create_dir_all(directory).map_err(LogError::io("make the directory", directory))?;
    if options.sync == Sync::Never {
        return Ok(());
    }
    for (parent, found) in named.iter().rev() {
        match volume.sync_directory(parent) {
            // Who may not read it did not make anything in it.
            Err(error) if *found && error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced.map_err(LogError::io("sync the directory", parent))?,
        }
    }
    Ok(())
}

/// What holds off other writers: the file `lock`, the only one that older programs look at, and the directory itself. The file can be
/// deleted while a writer runs; the directory cannot be without the log. Each segment is locked too ([`Disk`]).
#[derive(Debug)]
struct Lock {
    _file: File,
    _directory: File,
}

fn lock(directory: &Path) -> Result<Lock, LogError> {
    let path = directory.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(LogError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(LogError::Locked { directory: directory.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(LogError::io("lock", &path)(source)),
    }
    let held = File::open(directory).map_err(LogError::io("open", directory))?;
    match held.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(LogError::Locked { directory: directory.to_owned() }),
        // Some network file systems lock no directories. The segments' locks remain.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    Ok(Lock { _file: file, _directory: held })
}

/// A segment that another writer has locked, or that the system refused.
fn opened<F>(file: io::Result<F>, what: &'static str, path: &Path) -> Result<F, LogError> {
    file.map_err(|source| match (source.kind(), path.parent()) {
        (io::ErrorKind::WouldBlock, Some(directory)) => LogError::Locked { directory: directory.to_owned() },
        _ => LogError::io(what, path)(source),
    })
}

/// Makes the file whose first record is number `first`. The file and its head are on disk before any record is.
fn begin<V: Volume>(
    volume: &mut V,
    directory: &Path,
    first: u64,
    options: LogOptions,
) -> Result<Current<V::File>, LogError> {
    let path = directory.join(file_name(first));
    let file = opened(volume.create(&path), "create", &path)?;
    let mut current = Current { path, file, bytes: 0 };
    write_head(&mut current, first)?;
    if options.sync == Sync::EveryGroup {
        volume.sync_directory(directory).map_err(LogError::io("sync the directory", directory))?;
    }
    Ok(current)
}

/// Goes on after `bytes` bytes of an existing file; fewer than a head means that it was made and never written.
fn reopen<V: Volume>(
    volume: &mut V,
    path: PathBuf,
    bytes: u64,
    first: u64,
    options: LogOptions,
) -> Result<Current<V::File>, LogError> {
    let file = opened(volume.reopen(&path, bytes), "reopen", &path)?;
    let mut current = Current { path, file, bytes };
    if bytes == 0 {
        write_head(&mut current, first)?;
    }
    if options.sync == Sync::EveryGroup {
        // What a killed writer left in the page cache counts as stored from here on.
        current.file.sync().map_err(LogError::io("sync", &current.path))?;
        if let Some(directory) = current.path.parent() {
            volume.sync_directory(directory).map_err(LogError::io("sync the directory", directory))?;
        }
    }
    Ok(current)
}

fn write_head<F: Append>(current: &mut Current<F>, first: u64) -> Result<(), LogError> {
    current.file.write_all(&file_head(first)).map_err(LogError::io("write", &current.path))?;
    current.bytes = FILE_HEAD as u64;
    Ok(())
}
