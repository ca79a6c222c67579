//! The files and directories of a command line: each is of the kind that its argument takes, and no output replaces a file that is read.

use std::fs::{self, Metadata};
#[cfg(feature = "lm")]
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use clap::{Arg, ArgMatches, Command, ValueHint};

use crate::failure::Failure;

/// Arguments that name what a command writes. Every other value that names a file or a directory is an input.
const OUTPUTS: [&str; 9] = ["json", "wave", "perfetto", "png", "svg", "svg_dark", "out", "output", "parquet"];
/// Files of a directory that a command may read: a model's, and a log's.
const NAMES: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "runs.jsonl",
    "lock",
];
const SUFFIXES: [&str; 5] = ["safetensors", "gguf", "jinja", "doorbell", "trajectories"];

/// A file, by device and inode.
type FileId = (u64, u64);

static INPUTS: OnceLock<Vec<FileId>> = OnceLock::new();

/// What an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A file, a device or a pipe.
    File,
    Directory,
    /// What else has a path.
    Other,
}

/// By the name that `--help` gives its value; none where it is no path.
fn kind(arg: &Arg) -> Option<Kind> {
    // clap gives this one to paths that name no other.
    if arg.get_value_hint() != ValueHint::AnyPath {
        return None;
    }
    let name = match arg.get_value_names() {
        Some([name, ..]) => name.to_string(),
        _ => arg.get_id().as_str().to_uppercase(),
    };
    Some(match name.as_str() {
        "FILE" | "INPUT" | "OUTPUT" | "TEXT" => Kind::File,
        name if name.starts_with("FILE.") => Kind::File,
        "DIR" | "DIRECTORY" => Kind::Directory,
        _ => Kind::Other,
    })
}

/// Refuses a directory where a command takes a file, and what is no directory where it takes one.
pub fn check(command: &Command, matches: &ArgMatches) -> Result<(), Failure> {
    for (arg, kind) in command.get_arguments().filter_map(|arg| Some((arg, kind(arg)?))) {
        let Ok(Some(values)) = matches.try_get_raw(arg.get_id().as_str()) else { continue };
        for path in values.map(Path::new) {
            let is_directory = match fs::metadata(path) {
                Ok(metadata) => metadata.is_dir(),
                // It may be made, or whoever opens it tells why not.
                Err(_) => continue,
            };
            let problem = match kind {
                Kind::File if is_directory => "it is a directory; give a file",
                Kind::Directory if !is_directory => "it is no directory; give one",
                _ => continue,
            };
            return Err(Failure::input(format!("{} {}: {problem}", shown(arg), path.display())));
        }
    }
    match matches.subcommand().and_then(|(name, matches)| Some((command.find_subcommand(name)?, matches))) {
        Some((command, matches)) => check(command, matches),
        None => Ok(()),
    }
}

/// An argument as it stands in a command line.
fn shown(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => format!("--{long}"),
        None => arg.to_string(),
    }
}

/// Bytes of a text on standard input at most: more than any model takes.
#[cfg(feature = "lm")]
const STANDARD: u64 = 16 << 20;

/// The text on standard input; `what` names it in the error.
#[cfg(feature = "lm")]
pub fn standard(what: &str) -> Result<String, Failure> {
    text_of(std::io::stdin().lock(), STANDARD)
        .map_err(|why| Failure::input(format!("cannot read {what} from standard input: {why}")))
}

/// A text of at most so many bytes.
#[cfg(feature = "lm")]
fn text_of(reader: impl Read, most: u64) -> Result<String, String> {
    let mut bytes = vec![];
    reader.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it has more than {most} bytes; give a shorter text"));
    }
    String::from_utf8(bytes).map_err(|error| format!("it is no text: {error}"))
}

/// The text of a file; `what` names it in the error. A device is refused, as its text may never end.
#[cfg(feature = "lm")]
pub fn text(what: &str, path: &Path) -> Result<String, Failure> {
    let refused =
        |why: &dyn std::fmt::Display| Failure::input(format!("cannot read {what} {}: {why}", path.display()));
    let bytes = doorbell_trace::read_input(path).map_err(|error| refused(&error))?;
    String::from_utf8(bytes).map_err(|error| refused(&format!("it is no text: {error}")))
}

/// Notes the inputs of the command line.
pub fn note(matches: &ArgMatches) {
    let mut inputs = vec![];
    collect(matches, &mut inputs);
    // A command line is parsed once.
    let _ = INPUTS.set(inputs);
}

/// Whether the file is one of them.
pub fn has(metadata: &Metadata) -> bool {
    metadata.is_file() && INPUTS.get().is_some_and(|inputs| inputs.contains(&id(metadata)))
}

fn id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

fn collect(matches: &ArgMatches, inputs: &mut Vec<FileId>) {
    for name in matches.ids().filter(|name| !OUTPUTS.contains(&name.as_str())) {
        let Ok(Some(values)) = matches.try_get_raw(name.as_str()) else { continue };
        for path in values.map(Path::new) {
            match fs::metadata(path) {
                Ok(metadata) if metadata.is_file() => inputs.push(id(&metadata)),
                Ok(metadata) if metadata.is_dir() => of_directory(path, inputs),
                _ => {}
            }
        }
    }
    if let Some((_, matches)) = matches.subcommand() {
        collect(matches, inputs);
    }
}

fn of_directory(path: &Path, inputs: &mut Vec<FileId>) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is = |text: Option<&std::ffi::OsStr>, of: &[&str]| {
            text.is_some_and(|text| of.iter().any(|of| text == *of))
        };
        if is(path.file_name(), &NAMES) || is(path.extension(), &SUFFIXES) {
            inputs.extend(fs::metadata(&path).iter().filter(|metadata| metadata.is_file()).map(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What never ends is not read to its end.
    #[cfg(feature = "lm")]
    #[test]
    fn a_text_without_end_is_refused() {
        let told = text_of(std::io::repeat(b'a'), 100).unwrap_err();
        assert_eq!(told, "it has more than 100 bytes; give a shorter text");
        assert_eq!(text_of(&[b'a'; 100][..], 100).unwrap().len(), 100);
        assert!(text_of(&b"\xff"[..], 100).unwrap_err().starts_with("it is no text: "));
    }

    /// The kind of a path is told by a name that people see, so a new name has to be known here.
    #[test]
    fn each_path_is_a_file_or_a_directory() {
        fn others(command: &Command, found: &mut Vec<String>) {
            let paths = command.get_arguments().filter(|arg| kind(arg) == Some(Kind::Other));
            found.extend(paths.map(|arg| format!("{} {}", command.get_name(), arg.get_id())));
            command.get_subcommands().for_each(|command| others(command, found));
        }
        let mut found = vec![];
        others(&crate::command_line(), &mut found);
        found.sort();
        // A model is either, and a socket is neither.
        assert_eq!(found, ["import source", "vfio-user socket"]);
    }
}
