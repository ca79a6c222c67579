//! Writing results: to the terminal, and to files that are known to be writable before the work begins.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, Table, presets};

use crate::failure::Failure;

/// Prints to standard output. A reader that went away is no error; a full disk is.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::input(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// An empty table with these columns, all but the first `left` ones aligned to the right.
pub fn table<const N: usize>(columns: [&str; N], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(columns);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Whether progress bars would be seen.
pub fn shows_progress() -> bool {
    io::stderr().is_terminal()
}

/// A file that can be written, opened before the work whose result it takes. Its old content stays until then; a file
/// that did not exist is removed again if nothing comes.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    remove: bool,
}

impl Output {
    /// Opens `path` for writing; `what` names it in the error.
    pub fn open(what: &str, path: &Path) -> Result<Output, Failure> {
        let existed = path.exists();
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|error| {
                Failure::input(format!(
                    "cannot write {what} {}: {error}; give a path that can be written",
                    path.display()
                ))
            })?;
        Ok(Output { path: path.to_owned(), file, remove: !existed })
    }

    /// Replaces the content.
    pub fn write(mut self, content: &[u8]) -> Result<(), Failure> {
        // Devices and pipes cannot be cut, and need not be.
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            self.file.set_len(0).map_err(|error| self.failed(&error))?;
        }
        self.file.write_all(content).and_then(|()| self.file.flush()).map_err(|error| self.failed(&error))?;
        self.remove = false;
        Ok(())
    }

    /// Leaves the file to whoever wrote it by its path.
    pub fn keep(mut self) {
        self.remove = false;
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::input(format!("cannot write {}: {error}", self.path.display()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.remove {
            // Best effort: the empty file does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where a text goes that the user may want on standard output: `-` is that.
#[derive(Debug)]
pub enum Sink {
    /// Standard output.
    Standard,
    /// A file.
    File(Output),
}

impl Sink {
    /// Opens `path`, or standard output for `-`.
    pub fn open(what: &str, path: &Path) -> Result<Sink, Failure> {
        if path == Path::new("-") { Ok(Sink::Standard) } else { Output::open(what, path).map(Sink::File) }
    }

    /// Writes all of it.
    pub fn write(self, content: &str) -> Result<(), Failure> {
        match self {
            Sink::Standard => print(content),
            Sink::File(output) => output.write(content.as_bytes()),
        }
    }
}
