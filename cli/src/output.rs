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

/// A text of a file, for a terminal: with what would begin another line, or steer the terminal, as an escape.
pub fn plain(text: &str) -> String {
    let shown = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(shown).collect()
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

    /// Replaces the content of a regular file, and writes through a device, a pipe or a link.
    pub fn write(mut self, content: &[u8]) -> Result<(), Failure> {
        // Devices and pipes cannot be cut, and need not be.
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            self.file.set_len(0).map_err(|error| self.failed(&error))?;
        }
        let mut written = 0;
        while written < content.len() {
            match self.file.write(&content[written..]) {
                Ok(0) => {
                    return Err(self.failed_at(written, content.len(), &io::ErrorKind::WriteZero.into()));
                }
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed_at(written, content.len(), &error)),
            }
        }
        self.file.flush().map_err(|error| self.failed(&error))?;
        self.remove = false;
        Ok(())
    }

    /// Leaves the file to whoever wrote it by its path.
    pub fn keep(mut self) {
        self.remove = false;
    }

    fn failed_at(&self, written: usize, bytes: usize, error: &io::Error) -> Failure {
        let failure = self.failed(error);
        Failure::input(format!("{failure} ({written} of {bytes} bytes were written)"))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        let advice = if error.kind() == io::ErrorKind::StorageFull {
            "; free some space, or give a path on another disk"
        } else {
            ""
        };
        Failure::input(format!("cannot write {}: {error}{advice}", self.path.display()))
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

/// Prints the report, and writes its JSON. Every output is tried, so that one that fails takes no other with it; the report comes first.
/// Returns why an output failed: the caller's exit code then says so too.
pub fn report(text: &str, json: Option<(Sink, String)>) -> Vec<Failure> {
    let mut failures = vec![];
    match json {
        Some((Sink::Standard, json)) => {
            // A closed standard error is no reason to lose the JSON.
            let _ = io::stderr().write_all(text.as_bytes());
            failures.extend(print(&json).err());
        }
        Some((Sink::File(output), json)) => {
            failures.extend(print(text).err());
            failures.extend(output.write(json.as_bytes()).err());
        }
        None => failures.extend(print(text).err()),
    }
    failures
}

/// A waveform that is being recorded. The recorder replaces whatever has the name that it is given, and maps what it has written, where a full
/// disk is a SIGBUS. So it records under a name of its own on a disk with room to spare; what it made is copied to the target's disk by plain
/// writes if that is another one, and renamed once it is whole.
#[cfg(feature = "rtl")]
#[derive(Debug)]
pub struct Recording {
    target: PathBuf,
    /// Beside the target, what is renamed.
    partial: PathBuf,
    /// What the recorder writes; the same file where the target's disk has room.
    scratch: PathBuf,
}

#[cfg(feature = "rtl")]
impl Recording {
    /// Room for any waveform and for each recorded cycle, before it is compressed: many times what was seen (500 kB, and 40 bytes a cycle).
    const LEAST: u64 = 64 << 20;
    const CYCLE: u64 = 1 << 10;

    /// Prepares to record about `cycles` cycles to `path`, following a link.
    pub fn open(path: &Path, cycles: u64) -> Result<Recording, Failure> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::input(format!("cannot write waveform {}: {why}", path.display()))
        };
        let target = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => fs::canonicalize(path).map_err(|error| refused(&error))?,
            Ok(_) => {
                return Err(refused(
                    &"it is no regular file, and a waveform cannot go to a device, a pipe or a directory; give a file",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(refused(&"it is a link to a file that is not there; give the file itself"));
                }
                path.to_owned()
            }
            Err(error) => return Err(refused(&error)),
        };
        let advice = |error: io::Error| refused(&format!("{error}; give a path that can be written"));
        // It must be writable itself: a rename asks only for the directory.
        if target.exists() {
            OpenOptions::new().write(true).open(&target).map_err(advice)?;
        }
        let Some(name) = target.file_name() else { return Err(refused(&"it names no file")) };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let partial = target.with_file_name(&hidden);
        OpenOptions::new().write(true).create_new(true).open(&partial).map_err(advice)?;
        let needed = Self::LEAST + Self::CYCLE * cycles;
        let has_room = |directory: &Path| {
            rustix::fs::statvfs(directory)
                .is_ok_and(|room| room.f_bavail.saturating_mul(room.f_frsize) >= needed)
        };
        // Removes what was made from here on.
        let mut recording = Recording { target, scratch: partial.clone(), partial };
        let beside = recording.partial.parent().filter(|parent| !parent.as_os_str().is_empty());
        if !has_room(beside.unwrap_or(Path::new("."))) {
            let temporary = std::env::temp_dir();
            if !has_room(&temporary) {
                return Err(refused(&format!(
                    "No space left on device: neither its directory nor {} has {needed} bytes free to record in; free some space, or give \
                     a path on another disk",
                    temporary.display()
                )));
            }
            recording.scratch = temporary.join(&hidden);
            OpenOptions::new().write(true).create_new(true).open(&recording.scratch).map_err(advice)?;
        }
        Ok(recording)
    }

    /// Where the recorder writes.
    pub fn path(&self) -> &Path {
        &self.scratch
    }

    /// Replaces the target, once the recorder has closed its file and if that is whole.
    pub fn finish(self) -> Result<(), Failure> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::input(format!("cannot write waveform {}: {why}", self.target.display()))
        };
        let bytes = File::open(&self.scratch).and_then(|mut file| is_whole(&mut file));
        match bytes {
            Ok(true) => {}
            Ok(false) => {
                return Err(refused(
                    &"the recorded file is cut off; is the disk full? Free some space, or give a path on another disk",
                ));
            }
            Err(error) => return Err(refused(&error)),
        }
        if self.scratch != self.partial {
            let copied = File::open(&self.scratch).and_then(|mut from| {
                let mut to = File::create(&self.partial)?;
                io::copy(&mut from, &mut to)?;
                to.sync_all()
            });
            copied.map_err(|error| {
                refused(&format!("{error}; free some space, or give a path on another disk"))
            })?;
        }
        fs::rename(&self.partial, &self.target).map_err(|error| refused(&error))
    }
}

#[cfg(feature = "rtl")]
impl Drop for Recording {
    fn drop(&mut self) {
        let mut hierarchy = self.scratch.clone().into_os_string();
        hierarchy.push(".hier");
        // Best effort: after `finish` neither is there.
        let _ = fs::remove_file(&self.scratch);
        let _ = fs::remove_file(&self.partial);
        let _ = fs::remove_file(hierarchy);
    }
}

/// Whether a file is a whole FST: a row of blocks, each a byte of type and eight of its length, that begins with the header and ends at the end of the file,
/// with the geometry and the hierarchy, which are written last.
#[cfg(feature = "rtl")]
fn is_whole(file: &mut (impl io::Read + io::Seek)) -> io::Result<bool> {
    const HEADER: u8 = 0;
    const GEOMETRY: u8 = 3;
    const HIERARCHY: [u8; 3] = [4, 6, 7];
    let bytes = file.seek(io::SeekFrom::End(0))?;
    let (mut at, mut geometry, mut hierarchy) = (0, false, false);
    while at < bytes {
        if bytes - at < 9 {
            return Ok(false);
        }
        let (mut kind, mut length) = ([0], [0; 8]);
        file.seek(io::SeekFrom::Start(at))?;
        file.read_exact(&mut kind)?;
        file.read_exact(&mut length)?;
        let length = u64::from_be_bytes(length);
        if length < 8 || length > bytes - at - 1 || (at == 0) != (kind[0] == HEADER) {
            return Ok(false);
        }
        geometry |= kind[0] == GEOMETRY;
        hierarchy |= HIERARCHY.contains(&kind[0]);
        at += 1 + length;
    }
    Ok(geometry && hierarchy)
}

#[cfg(all(test, feature = "rtl", unix))]
mod tests {
    use super::*;

    fn block(kind: u8, content: usize) -> Vec<u8> {
        let length = (content as u64 + 8).to_be_bytes();
        [&[kind][..], &length, &vec![7; content]].concat()
    }

    #[test]
    fn a_waveform_that_is_cut_anywhere_is_not_whole() {
        let whole = [block(0, 321), block(8, 90), block(3, 20), block(4, 30)].concat();
        let look = |bytes: &[u8]| is_whole(&mut io::Cursor::new(bytes)).unwrap();
        assert!(look(&whole));
        assert!((0..whole.len()).all(|bytes| !look(&whole[..bytes])));
        assert!(!look(&vec![0; 4096]) && !look(&[whole.clone(), vec![0; 9]].concat()));
    }

    #[test]
    fn a_waveform_replaces_a_regular_file_alone_and_follows_links() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link, dangling) = (
            directory.path().join("w.fst"),
            directory.path().join("link"),
            directory.path().join("dangling"),
        );
        let whole = [block(0, 321), block(3, 20), block(4, 30)].concat();
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink(directory.path().join("nowhere"), &dangling).unwrap();
        for path in [Path::new("/dev/null"), directory.path(), &dangling] {
            Recording::open(path, 1).unwrap_err();
        }
        let huge = Recording::open(&file, 1 << 55).unwrap_err().to_string();
        assert!(huge.contains("No space left on device"), "{huge}");
        let cut = Recording::open(&file, 1).unwrap();
        fs::write(cut.path(), &whole[..whole.len() - 1]).unwrap();
        cut.finish().unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        let recording = Recording::open(&link, 1).unwrap();
        fs::write(recording.path(), &whole).unwrap();
        recording.finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), whole);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "nothing is left over");
    }
}

#[cfg(test)]
mod text {
    #[test]
    fn plain_text_steers_no_terminal() {
        assert_eq!(super::plain("a\u{1b}[31mb\nc\u{9b}d\u{7f} é"), "a\\u{1b}[31mb\\nc\\u{9b}d\\u{7f} é");
    }
}
