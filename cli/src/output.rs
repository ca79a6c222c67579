//! Writing results: to the terminal, and to files that are known to be writable before the work begins.

mod fit;

use std::fmt::Display;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

use crate::failure::Failure;
#[cfg(feature = "rtl")]
use crate::full_disk::FullDisk;
use crate::inputs;
use crate::paint;

/// Prints a text for people to standard output, as wide as the terminal is. A reader that went away is no error; a full disk is.
pub fn print(text: &str) -> Result<(), Failure> {
    let text = shown(text);
    let text = match width() {
        Some(width) => fit::fit(&text, width),
        None => text,
    };
    print_raw(&if paint::is_on(&io::stdout()) { paint::verdicts(&text) } else { text })
}

/// Columns of the terminal that standard output is, if it is one.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(terminal_size::Width(width), _)| width.into())
}

/// The lines of a text in so many columns, broken at blanks.
pub fn broken(text: &str, width: usize) -> Vec<String> {
    fit::fit(text, width).lines().map(|line| line.trim().to_owned()).collect()
}

/// Prints what programs read to standard output, as it is.
pub fn print_raw(text: &str) -> Result<(), Failure> {
    reached(io::stdout().lock().write_all(text.as_bytes()))
}

/// Whether what was written to standard output has arrived there, as far as anybody reads it.
pub fn reached(written: io::Result<()>) -> Result<(), Failure> {
    match written.and_then(|()| io::stdout().flush()) {
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

/// Says something on standard error. That nobody can read it there is no reason to end.
pub fn tell(text: impl Display) {
    let text = shown(&text.to_string()) + "\n";
    let text = if paint::is_on(&io::stderr()) { paint::verdicts(&text) } else { text };
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Says something on standard error that nobody needs, if `--quiet` was not given.
#[cfg_attr(
    not(any(feature = "lm", feature = "vfio")),
    expect(dead_code, reason = "notes are those of language models and of benches")
)]
pub fn note(text: impl Display) {
    if !QUIET.load(Ordering::Relaxed) {
        tell(text);
    }
}

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out progress and notes from here on.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// The form of what `--json` prints: raised when a field goes or changes its meaning.
const JSON_VERSION: u32 = 1;

/// JSON of several lines with sorted fields, which steers no terminal. An object says which form it has, and which program made it.
pub fn json(value: &Value) -> String {
    let mut value = value.clone();
    if let Value::Object(fields) = &mut value {
        fields.insert("json_version".into(), JSON_VERSION.into());
        fields.insert("doorbell".into(), env!("CARGO_PKG_VERSION").into());
    }
    value.sort_all_objects();
    json_shown(&(serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"))
}

/// A path as JSON has it, which is text. serde would panic at one that is not UTF-8.
pub fn path(path: &Path) -> String {
    path.display().to_string()
}

/// JSON for a terminal: the format lets C1 and DEL stand in strings as they are.
fn json_shown(text: &str) -> String {
    escaped(text, &['\n', '\t'], |letter| format!("\\u{:04x}", u32::from(letter)))
}

/// A text of a file, for a terminal: with what would begin another line, or steer the terminal, as an escape.
pub fn plain(text: &str) -> String {
    escaped(text, &[], |letter| letter.escape_default().to_string())
}

/// A text of several lines, for a terminal: with what would steer the terminal as an escape.
pub fn shown(text: &str) -> String {
    escaped(text, &['\n', '\t'], |letter| letter.escape_default().to_string())
}

/// The text with all control characters but those `kept` as escapes.
fn escaped(text: &str, kept: &[char], escape: impl Fn(char) -> String) -> String {
    let steers = |letter: char| letter.is_control() && !kept.contains(&letter);
    if !text.contains(steers) {
        return text.to_owned();
    }
    text.chars().map(|letter| if steers(letter) { escape(letter) } else { letter.to_string() }).collect()
}

/// A rate: three digits or more and a unit.
pub fn thousands(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.1}"),
    }
}

/// Whether progress bars would be seen.
pub fn shows_progress() -> bool {
    io::stderr().is_terminal() && !QUIET.load(Ordering::Relaxed)
}

/// Why an output is refused that is an input.
const READ: &str = "this command reads that file; give another";
/// Why an output is refused that would be a file of this name, where users mean standard output.
const STANDARD: &str =
    "only JSON and traces can go to standard output ('-'); give a file, or ./- for one of that name";

/// What stands for standard output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A regular file, by device and inode.
type FileId = (u64, u64);

/// The regular files that outputs are being written to.
static TAKEN: Mutex<Vec<FileId>> = Mutex::new(vec![]);

/// A regular file that no other output of this command may write.
#[derive(Debug)]
struct Taken(Option<FileId>);

impl Taken {
    /// Takes it; devices and pipes may be shared.
    fn new(metadata: &Metadata) -> Result<Taken, &'static str> {
        if inputs::has(metadata) {
            return Err(READ);
        }
        let id = metadata.is_file().then(|| (metadata.dev(), metadata.ino()));
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if id.is_some_and(|id| taken.contains(&id)) {
            return Err("another output of this command goes to the same file; give another");
        }
        taken.extend(id);
        Ok(Taken(id))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|&id| Some(id) != self.0);
    }
}

/// A file that can be written, opened before the work whose result it takes. Its old content stays until then; a file
/// that did not exist is removed again if nothing comes.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    /// The file itself, behind links, to be removed if nothing comes.
    made: Option<PathBuf>,
    _taken: Taken,
}

impl Output {
    /// Opens `path` for writing; `what` names it in the error.
    pub fn open(what: &str, path: &Path) -> Result<Output, Failure> {
        let existed = path.exists();
        let refused =
            |why: &dyn Display| Failure::input(format!("cannot write {what} {}: {why}", path.display()));
        let advice = |error: io::Error| refused(&format!("{error}; give a path that can be written"));
        if is_standard(path) {
            return Err(refused(&STANDARD));
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(advice)?;
        let taken = Taken::new(&file.metadata().map_err(advice)?).map_err(|why| refused(&why))?;
        // A link to a file that was not there stays as it was.
        let made = if existed { None } else { fs::canonicalize(path).ok() };
        Ok(Output { path: path.to_owned(), file, made, _taken: taken })
    }

    /// Devices and pipes cannot be cut, and need not be.
    fn cut(&self) -> Result<(), Failure> {
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            self.file.set_len(0).map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// To be written bit by bit, in place of the old content. What was written stays if the rest does not come.
    #[cfg(feature = "runtime")]
    pub fn stream(mut self) -> Result<io::BufWriter<Output>, Failure> {
        self.cut()?;
        self.made = None;
        Ok(io::BufWriter::new(self))
    }

    /// Replaces the content of a regular file, and writes through a device, a pipe or a link.
    pub fn write(mut self, content: &[u8]) -> Result<(), Failure> {
        self.cut()?;
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
        self.made = None;
        Ok(())
    }

    fn failed_at(&self, written: usize, bytes: usize, error: &io::Error) -> Failure {
        let failure = self.failed(error);
        Failure::input(format!("{failure} ({written} of {bytes} bytes were written)"))
    }

    /// An error that says where, and what to do.
    #[cfg(feature = "runtime")]
    fn named(&self, error: io::Error) -> io::Error {
        if error.kind() == io::ErrorKind::Interrupted {
            error
        } else {
            io::Error::new(error.kind(), self.failed(&error).to_string())
        }
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

#[cfg(feature = "runtime")]
impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| self.named(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| self.named(error))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            // Best effort: the empty file does no harm.
            let _ = fs::remove_file(made);
        }
    }
}

/// Refuses an output that another writer opens, if it is standard output or a file that this command reads; `what` names it in the error.
#[cfg(feature = "parquet")]
pub fn check(what: &str, path: &Path) -> Result<(), Failure> {
    let problem = match fs::metadata(path) {
        _ if is_standard(path) => STANDARD,
        Ok(metadata) if inputs::has(&metadata) => READ,
        _ => return Ok(()),
    };
    Err(Failure::input(format!("cannot write {what} {}: {problem}", path.display())))
}

/// Where JSON goes that the user may want on standard output: `-` is that.
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
        if is_standard(path) { Ok(Sink::Standard) } else { Output::open(what, path).map(Sink::File) }
    }

    /// Writes all of it.
    pub fn write(self, content: &str) -> Result<(), Failure> {
        match self {
            Sink::Standard => print_raw(&json_shown(content)),
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
            tell(text.trim_end_matches('\n'));
            failures.extend(print_raw(&json).err());
        }
        Some((Sink::File(output), json)) => {
            failures.extend(print(text).err());
            failures.extend(output.write(json.as_bytes()).err());
        }
        None => failures.extend(print(text).err()),
    }
    failures
}

/// A waveform that is being recorded. The recorder replaces whatever has the name that it is given, ignores failed writes, and maps what it
/// has written, where a full disk is a SIGBUS. So it records under a name of its own beside the target, under a [`FullDisk`], and what it has
/// made is renamed once it is whole.
#[cfg(feature = "rtl")]
#[derive(Debug)]
pub struct Recording {
    target: PathBuf,
    /// What the recorder writes, beside the target.
    partial: PathBuf,
    disk: FullDisk,
    _taken: Option<Taken>,
}

#[cfg(feature = "rtl")]
impl Recording {
    /// Prepares to record to `path`, following a link.
    pub fn open(path: &Path) -> Result<Recording, Failure> {
        let refused =
            |why: &dyn Display| Failure::input(format!("cannot write waveform {}: {why}", path.display()));
        let advice = |error: io::Error| refused(&format!("{error}; give a path that can be written"));
        if is_standard(path) {
            return Err(refused(&STANDARD));
        }
        let (target, taken) = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {
                // It must be writable itself: a rename asks only for the directory.
                OpenOptions::new().write(true).open(path).map_err(advice)?;
                let taken = Taken::new(&metadata).map_err(|why| refused(&why))?;
                (fs::canonicalize(path).map_err(advice)?, Some(taken))
            }
            Ok(_) => {
                return Err(refused(
                    &"it is no regular file, and a waveform cannot go to a device or a pipe; give a file",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(refused(&"it is a link to a file that is not there; give the file itself"));
                }
                (path.to_owned(), None)
            }
            Err(error) => return Err(refused(&error)),
        };
        let Some(name) = target.file_name() else { return Err(refused(&"it names no file")) };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let partial = target.with_file_name(&hidden);
        if partial.to_str().is_none() {
            return Err(refused(&"the simulator takes only paths in UTF-8; give another"));
        }
        OpenOptions::new().write(true).create_new(true).open(&partial).map_err(advice)?;
        Ok(Recording { target, partial, disk: FullDisk::watch(), _taken: taken })
    }

    /// Where the recorder writes.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Replaces the target, once the recorder has closed its file and if that is whole.
    pub fn finish(self) -> Result<(), Failure> {
        const FULL: &str = "No space left on device: what was recorded is cut off; free some space there and in /tmp, or give a path on another disk";
        // No page was lost: a write that failed for another reason, or somebody else's hand.
        const CUT: &str = "what was recorded is cut off: the recorder did not write all of it, or another program changed its file meanwhile; record it again, and \
                           look first that there is space there and in /tmp";
        let refused = |why: &dyn Display| {
            Failure::input(format!("cannot write waveform {}: {why}", self.target.display()))
        };
        let whole =
            File::open(&self.partial).and_then(|mut file| Ok((is_whole(&mut file)?, file.sync_all()?).0));
        match whole {
            Ok(true) if !self.disk.was_full() => {
                fs::rename(&self.partial, &self.target).map_err(|error| refused(&error))
            }
            Ok(_) if self.disk.was_full() => Err(refused(&FULL)),
            Ok(_) => Err(refused(&CUT)),
            Err(error) => Err(refused(&error)),
        }
    }
}

#[cfg(feature = "rtl")]
impl Drop for Recording {
    fn drop(&mut self) {
        let mut hierarchy = self.partial.clone().into_os_string();
        hierarchy.push(".hier");
        // Best effort: after `finish` neither is there.
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
        let _one = crate::full_disk::ONE.lock().unwrap_or_else(PoisonError::into_inner);
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
            Recording::open(path).unwrap_err();
        }
        let cut = Recording::open(&file).unwrap();
        fs::write(cut.path(), &whole[..whole.len() - 1]).unwrap();
        let failure = cut.finish().unwrap_err().to_string();
        // No disk was full.
        assert!(failure.contains("is cut off") && !failure.contains("No space left"), "{failure}");
        assert_eq!(fs::read(&file).unwrap(), b"old");
        let recording = Recording::open(&link).unwrap();
        fs::write(recording.path(), &whole).unwrap();
        recording.finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), whole);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "nothing is left over");
    }
}

#[cfg(test)]
mod text {
    use super::*;

    #[test]
    fn plain_text_steers_no_terminal() {
        let hostile = "a\u{1b}[31mb\nc\u{9b}d\u{7f} é\t";
        assert_eq!(plain(hostile), "a\\u{1b}[31mb\\nc\\u{9b}d\\u{7f} é\\t");
        assert_eq!(shown(hostile), "a\\u{1b}[31mb\nc\\u{9b}d\\u{7f} é\t");
        let json = json(&hostile.into());
        assert_eq!(json, "\"a\\u001b[31mb\\nc\\u009bd\\u007f é\\t\"\n");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }

    /// A link to a file that is not there is left as it was, and so is nothing: the file comes with the content.
    #[test]
    fn an_output_through_a_dangling_link_leaves_the_link() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        std::os::unix::fs::symlink("target", &link).unwrap();
        drop(Output::open("JSON", &link).unwrap());
        assert!(fs::symlink_metadata(&link).is_ok_and(|about| about.is_symlink()), "the link is gone");
        assert!(!target.exists(), "an empty file stayed");
        Output::open("JSON", &link).unwrap().write(b"{}").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"{}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn two_outputs_never_share_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("a"), directory.path().join("b"));
        let first = Output::open("JSON", &file).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let failure = Output::open("picture", &link).unwrap_err().to_string();
        assert!(failure.contains("goes to the same file"), "{failure}");
        #[cfg(feature = "rtl")]
        Recording::open(&link).unwrap_err();
        drop(first);
        Output::open("JSON", &file).unwrap();
        let null = Path::new("/dev/null");
        let (_first, _second) = (Output::open("JSON", null).unwrap(), Output::open("picture", null).unwrap());
    }
}
