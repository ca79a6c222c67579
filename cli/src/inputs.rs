//! The files that a command reads, so that none of its outputs replaces one.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use clap::ArgMatches;

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
