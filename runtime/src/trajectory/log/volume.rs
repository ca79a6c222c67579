//! Where a log's files are written: a disk, or in tests one that fails.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// What a [`Log`](super::Log) asks of a file system.
pub trait Volume: Send {
    /// A file that is being written.
    type File: Append;

    /// Makes a file that must not exist yet.
    ///
    /// # Errors
    /// What the system says.
    fn create(&mut self, path: &Path) -> io::Result<Self::File>;

    /// Opens a file, cuts it to `bytes`, and appends there.
    ///
    /// # Errors
    /// What the system says.
    fn reopen(&mut self, path: &Path, bytes: u64) -> io::Result<Self::File>;

    /// Makes what files the directory has survive a loss of power.
    ///
    /// # Errors
    /// What the system says.
    fn sync_directory(&mut self, directory: &Path) -> io::Result<()>;
}

/// A file that is appended to.
pub trait Append: Write + Send {
    /// Makes the content survive a loss of power.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Volume for Disk {
    type File = File;

    fn create(&mut self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        lock(&file)?;
        Ok(file)
    }

    fn reopen(&mut self, path: &Path, bytes: u64) -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        // Before anything is cut off, as another writer may be appending.
        lock(&file)?;
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        file.seek(SeekFrom::Start(bytes))?;
        Ok(file)
    }

    fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
        fs::File::open(directory)?.sync_all()
    }
}

/// Keeps other writers off the segment until the file is closed.
///
/// # Errors
/// `WouldBlock` if another writer has it.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        // A file system without locks: the file `lock` could not be locked either.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

impl Append for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
