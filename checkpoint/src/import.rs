//! Models as others publish them: GGUF files, and directories of Hugging Face with safetensors.

mod blocks;
mod gemma;
mod gguf;
mod hf;
mod llama;

use std::path::Path;

use doorbell_lm::file::{FileError, read};
use doorbell_lm::float;
use doorbell_lm::limits::WEIGHT_BYTES;
use doorbell_lm::{About, Shape};

/// A model with the weights that were published, and what surrounds it.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The weights.
    pub model: float::Model,
    /// Name, tokeniser, prompts.
    pub about: About,
    /// Notes for the user, one line each: what the files ask for and the model does not do.
    pub notes: Vec<String>,
}

/// Reads a GGUF file, or a directory with config.json, model.safetensors and tokenizer.json.
///
/// # Errors
/// If it cannot be read, is malformed, or is a model of another kind: where, what, and what to do.
pub fn import(path: &Path) -> Result<Imported, FileError> {
    if path.is_dir() {
        return hf::import(path);
    }
    import_gguf(&read(path, WEIGHT_BYTES)?, &stem(path)).map_err(|error| error.within(path))
}

/// Reads weights that replace those of a served model of this shape. Unlike [`import`], it needs only the weights in a directory: it reads
/// any other file that is missing there from the directory `other`.
///
/// # Errors
/// As [`import`]. A directory of another shape is rejected before its weights are read.
pub fn import_update(path: &Path, other: Option<&Path>, shape: &Shape) -> Result<Imported, FileError> {
    if path.is_dir() {
        return hf::update(path, other, shape);
    }
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        return Err(FileError::new(
            path.display(),
            "it is one file of a model",
            "give the directory that it is in",
        ));
    }
    import(path)
}

/// Reads the bytes of a GGUF file; `name` is the model's if the file does not say.
///
/// # Errors
/// As [`import`].
pub fn import_gguf(bytes: &[u8], name: &str) -> Result<Imported, FileError> {
    gguf::import(bytes, name)
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned())
}
