//! Models as others publish them: GGUF files, and directories of Hugging Face with safetensors.

mod blocks;
mod gemma;
mod gguf;
mod hf;
mod llama;

use std::path::Path;

use crate::about::About;
use crate::file_error::{FileError, read};
use crate::float;

/// A model with the weights that were published, and what surrounds it.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The weights.
    pub model: float::Model,
    /// Name, tokeniser, prompts.
    pub about: About,
}

/// Reads a GGUF file, or a directory with config.json, model.safetensors and tokenizer.json.
///
/// # Errors
/// If it cannot be read, is malformed, or is a model of another kind: where, what, and what to do.
pub fn import(path: &Path) -> Result<Imported, FileError> {
    if path.is_dir() {
        return hf::import(path);
    }
    import_gguf(&read(path)?, &stem(path)).map_err(|error| error.within(path))
}

/// Reads the bytes of a GGUF file; `name` is the model's if the file does not say.
///
/// # Errors
/// As [`import`].
pub fn import_gguf(bytes: &[u8], name: &str) -> Result<Imported, FileError> {
    gguf::import(bytes, name)
}

/// The post-processor that puts this token behind a raw text.
fn closing(id: u32, text: &str) -> serde_json::Value {
    let (own, end) = (|id: &str| serde_json::json!({"Sequence": {"id": id, "type_id": 0}}), text);
    let end = serde_json::json!({"SpecialToken": {"id": end, "type_id": 0}});
    serde_json::json!({
        "type": "TemplateProcessing",
        "single": [own("A"), end],
        "pair": [own("A"), end, own("B"), end],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned())
}
