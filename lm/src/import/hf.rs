//! Directories of Hugging Face: config.json, safetensors, tokenizer.json.

mod config;

use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Imported;
use super::blocks::Packing;
use super::llama::{self, Names, Source};
use super::{gemma, stem};
use crate::about::About;
use crate::file_error::{FileError, read};

const NAMES: Names = Names {
    tokens: "model.embed_tokens.weight",
    last_gain: "model.norm.weight",
    head: "lm_head.weight",
    layers: "model.layers.",
    layer: [
        ".input_layernorm.weight",
        ".self_attn.q_proj.weight",
        ".self_attn.k_proj.weight",
        ".self_attn.v_proj.weight",
        ".self_attn.o_proj.weight",
        ".post_attention_layernorm.weight",
        ".mlp.gate_proj.weight",
        ".mlp.up_proj.weight",
        ".mlp.down_proj.weight",
    ],
    halves: true,
};

struct Files<'b>(Vec<SafeTensors<'b>>);

impl Source for Files<'_> {
    fn names(&self) -> Vec<String> {
        self.0.iter().flat_map(SafeTensors::names).map(str::to_owned).collect()
    }

    fn take(&self, name: &str, rows: usize, columns: usize) -> Result<Vec<f32>, FileError> {
        let wrong = |problem: String, remedy: &str| Err(FileError::new(name, problem, remedy));
        let Some(tensor) = self.0.iter().find_map(|file| file.tensor(name).ok()) else {
            return wrong("there is no such tensor".into(), "give a whole model");
        };
        let fits = match *tensor.shape() {
            [c] => rows == 1 && c == columns,
            [r, c] => r == rows && c == columns,
            _ => false,
        };
        if !fits {
            let problem =
                format!("its shape is {:?}, expected {rows} by {columns} by config.json", tensor.shape());
            return wrong(problem, "fetch the directory again");
        }
        let packing = match tensor.dtype() {
            Dtype::F32 => Packing::F32,
            Dtype::F16 => Packing::F16,
            Dtype::BF16 => Packing::Bf16,
            other => return wrong(format!("its values are {other:?}"), "give a model with F32, F16 or BF16"),
        };
        Ok(packing.unpack(tensor.data()))
    }
}

/// Reads a whole directory.
pub(super) fn import(directory: &Path) -> Result<Imported, FileError> {
    let path = directory.join("config.json");
    let config = json(&path)?;
    let plan = config::plan(&config).map_err(|error| error.within(&path))?;
    let files = weights(directory)?;
    let mut tensors = vec![];
    for (path, bytes) in &files {
        let file = SafeTensors::deserialize(bytes).map_err(|error| {
            let problem = format!("not a safetensors file that can be read: {error}");
            FileError::new(path.display(), problem, "fetch the file again")
        })?;
        tensors.push(file);
    }
    let files = Files(tensors);
    let model = match plan {
        config::Plan::Llama(plan) => llama::read(&files, &NAMES, plan),
        config::Plan::Gemma(plan) => gemma::read(&files, plan),
    };
    let model = model.map_err(|error| error.within(directory))?;
    Ok(Imported { model, about: about(directory, &config)? })
}

fn json(path: &Path) -> Result<Value, FileError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| FileError::new(path.display(), format!("not JSON: {error}"), "fetch the file again"))
}

/// model.safetensors, or the parts model-…-of-….safetensors.
fn weights(directory: &Path) -> Result<Vec<(std::path::PathBuf, Vec<u8>)>, FileError> {
    let failed = |problem: String| {
        FileError::new(directory.display(), problem, "give a directory with model.safetensors")
    };
    let entries = fs::read_dir(directory).map_err(|error| failed(format!("cannot be listed: {error}")))?;
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name == "model.safetensors" || (name.starts_with("model-") && name.ends_with(".safetensors"))
        })
        .collect();
    paths.sort();
    if paths.is_empty() {
        return Err(failed("there are no weights in it".into()));
    }
    paths.into_iter().map(|path| read(&path).map(|bytes| (path, bytes))).collect()
}

fn about(directory: &Path, config: &Value) -> Result<About, FileError> {
    let path = directory.join("tokenizer.json");
    let tokenizer = String::from_utf8(read(&path)?).map_err(|error| {
        FileError::new(path.display(), format!("not a text: {error}"), "fetch the file again")
    })?;
    let tokens = |value: &Value| -> Vec<u32> {
        let one = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        match value {
            Value::Array(list) => list.iter().filter_map(one).collect(),
            value => one(value).into_iter().collect(),
        }
    };
    let path = directory.join("tokenizer_config.json");
    let other = if path.exists() { json(&path)? } else { Value::Null };
    let jinja = directory.join("chat_template.jinja");
    let chat = match other["chat_template"].as_str() {
        Some(chat) => chat.to_owned(),
        None if jinja.exists() => String::from_utf8_lossy(&read(&jinja)?).into_owned(),
        None => String::new(),
    };
    let begin = tokens(&config["bos_token_id"]).first().copied();
    Ok(About {
        name: stem(directory),
        licence: licence(directory),
        tokenizer,
        chat,
        ends: tokens(&config["eos_token_id"]),
        begin: begin.filter(|_| other["add_bos_token"] == true),
    })
}

/// The licence that the card of a model names: `license: …` between the lines of dashes that README.md begins with.
fn licence(directory: &Path) -> String {
    let card = fs::read_to_string(directory.join("README.md")).unwrap_or_default();
    let mut lines = card.lines();
    if lines.next() != Some("---") {
        return String::new();
    }
    let named = lines.take_while(|&line| line != "---").find_map(|line| line.strip_prefix("license:"));
    named.map_or_else(String::new, |name| name.trim().to_owned())
}
