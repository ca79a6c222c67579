//! Directories of Hugging Face: config.json, safetensors, tokenizer.json.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Imported;
use super::blocks::Packing;
use super::llama::{self, Names, Source};
use super::{closing, gemma, stem};
use crate::about::About;
use crate::file_error::{FileError, read};
use crate::limits::JSON_BYTES;

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

/// Tensors by name, each with the file that holds it.
struct Files<'b> {
    files: Vec<SafeTensors<'b>>,
    names: BTreeMap<String, usize>,
}

impl Source for Files<'_> {
    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn take(&self, name: &str, rows: usize, columns: usize) -> Result<Vec<f32>, FileError> {
        let wrong = |problem: String, remedy: &str| Err(FileError::new(name, problem, remedy));
        let held = self.names.get(name).and_then(|&file| self.files[file].tensor(name).ok());
        let Some(tensor) = held else {
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
    let (named, files) = weights(directory)?;
    let mut tensors = vec![];
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (number, (path, bytes)) in files.iter().enumerate() {
        let file = SafeTensors::deserialize(bytes).map_err(|error| {
            let problem = format!("not a safetensors file that can be read: {error}");
            FileError::new(path.display(), problem, "fetch the file again")
        })?;
        // What the index does not name of a file is left over.
        for name in file.names() {
            if let Some(named) = &named
                && named.get(name) != Some(&number)
            {
                if named.contains_key(name) {
                    let problem = format!("{name} is in this file too, and the index names another one");
                    return Err(FileError::new(path.display(), problem, "fetch the directory again"));
                }
                continue;
            }
            names.insert(name.to_owned(), number);
        }
        tensors.push(file);
    }
    for (name, &file) in named.iter().flatten() {
        if !names.contains_key(name) {
            let problem = format!("there is no {name}, which the index says is in it");
            return Err(FileError::new(files[file].0.display(), problem, "fetch the directory again"));
        }
    }
    let files = Files { files: tensors, names };
    let model = match plan {
        config::Plan::Llama(plan) => llama::read(&files, &NAMES, plan),
        config::Plan::Gemma(plan) => gemma::read(&files, plan),
    };
    let model = model.map_err(|error| error.within(directory))?;
    let about = about(directory, &config, model.shape.vocabulary)?;
    Ok(Imported { model, about })
}

fn json(path: &Path) -> Result<Value, FileError> {
    let bytes = read(path)?;
    if bytes.len() as u64 > JSON_BYTES.value() {
        return Err(FileError::new(path.display(), JSON_BYTES.exceeded(), "give a smaller file"));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| FileError::new(path.display(), format!("not JSON: {error}"), "fetch the file again"))
}

/// A JSON file that need not be there.
fn optional_json(path: &Path) -> Result<Value, FileError> {
    if path.exists() { json(path) } else { Ok(Value::Null) }
}

/// The number of a file by the name of each tensor in it.
type Named = BTreeMap<String, usize>;

/// model.safetensors; without it, the files that model.safetensors.index.json names, and what it says is in each.
fn weights(directory: &Path) -> Result<(Option<Named>, Vec<(PathBuf, Vec<u8>)>), FileError> {
    let single = directory.join("model.safetensors");
    if single.exists() {
        let bytes = read(&single)?;
        return Ok((None, vec![(single, bytes)]));
    }
    let index = directory.join("model.safetensors.index.json");
    if !index.exists() {
        return Err(FileError::new(
            directory.display(),
            "there are no weights in it",
            "give a directory with model.safetensors, or with shards and model.safetensors.index.json",
        ));
    }
    let wrong = |problem: String| FileError::new(index.display(), problem, "fetch the directory again");
    let value = json(&index)?;
    let map = value["weight_map"].as_object().ok_or_else(|| wrong("it has no weight_map".into()))?;
    let mut shards: Vec<&str> = vec![];
    let mut named = Named::new();
    for (tensor, file) in map {
        let file =
            file.as_str().filter(|file| !file.is_empty() && !file.contains(['/', '\\']) && *file != "..");
        let file = file.ok_or_else(|| wrong(format!("{tensor} is in no file of this directory")))?;
        let number = shards.iter().position(|shard| *shard == file).unwrap_or_else(|| {
            shards.push(file);
            shards.len() - 1
        });
        named.insert(tensor.clone(), number);
    }
    if shards.is_empty() {
        return Err(wrong("its weight_map is empty".into()));
    }
    let files = shards.into_iter().map(|shard| {
        let path = directory.join(shard);
        read(&path).map(|bytes| (path, bytes))
    });
    Ok((Some(named), files.collect::<Result<_, _>>()?))
}

fn about(directory: &Path, config: &Value, vocabulary: usize) -> Result<About, FileError> {
    let path = directory.join("tokenizer.json");
    let mut tokenizer = json(&path)?;
    if !tokenizer.is_object() {
        return Err(FileError::new(path.display(), "it is no object", "fetch the file again"));
    }
    // transformers resets both when it loads the file.
    for key in ["truncation", "padding"] {
        tokenizer[key] = Value::Null;
    }
    let other = optional_json(&directory.join("tokenizer_config.json"))?;
    let map = optional_json(&directory.join("special_tokens_map.json"))?;
    let generation = optional_json(&directory.join("generation_config.json"))?;
    let special = special(&[&other, &map]);
    let id = |name: &str| special.get(name).and_then(|text| token_id(&tokenizer, text));

    // As transformers: a flag that is told replaces the post-processor.
    let flag = |key: &str| other[key].as_bool();
    let [begins, closes] = ["add_bos_token", "add_eos_token"].map(flag);
    let mut begin = None;
    if begins.is_some() || closes.is_some() || tokenizer["post_processor"].is_null() {
        begin = id("bos_token").filter(|_| begins == Some(true));
        let end = id("eos_token").filter(|_| closes == Some(true));
        let end = end.zip(special.get("eos_token"));
        tokenizer["post_processor"] = end.map_or(Value::Null, |(id, text)| closing(id, text));
    }

    let mut ends = vec![];
    for (file, value) in [("generation_config.json", &generation), ("config.json", config)] {
        let value = &value["eos_token_id"];
        let list = match value {
            Value::Null => &[][..],
            Value::Array(list) => list,
            value => std::slice::from_ref(value),
        };
        for value in list {
            let token = value.as_u64().filter(|&token| token < vocabulary as u64).ok_or_else(|| {
                let problem = format!("eos_token_id is {value}, expected tokens below {vocabulary}");
                FileError::new(
                    directory.join(file).display(),
                    problem,
                    "give the ids of tokens that the model has",
                )
            })?;
            ends.push(token as u32);
        }
    }
    ends.extend(id("eos_token").filter(|&token| (token as usize) < vocabulary));
    let mut seen = BTreeSet::new();
    ends.retain(|&token| seen.insert(token));
    Ok(About {
        name: stem(directory),
        licence: licence(directory),
        tokenizer: tokenizer.to_string(),
        chat: chat(directory, &other)?,
        ends,
        begin,
        special,
    })
}

/// chat_template.jinja if it is there; of named templates the one called "default".
fn chat(directory: &Path, other: &Value) -> Result<String, FileError> {
    let jinja = directory.join("chat_template.jinja");
    if jinja.exists() {
        return String::from_utf8(read(&jinja)?).map_err(|error| {
            FileError::new(jinja.display(), format!("not a text: {error}"), "fetch the file again")
        });
    }
    let problem = match &other["chat_template"] {
        Value::Null => return Ok(String::new()),
        Value::String(chat) => return Ok(chat.clone()),
        Value::Array(list) => {
            let default = list.iter().find(|named| named["name"] == "default");
            if let Some(chat) = default.and_then(|named| named["template"].as_str()) {
                return Ok(chat.to_owned());
            }
            let names = list.iter().filter_map(|named| named["name"].as_str()).collect::<Vec<_>>();
            format!("chat_template names {}, and none is \"default\"", names.join(", "))
        }
        _ => "chat_template is neither a text nor a list of named templates".to_owned(),
    };
    let path = directory.join("tokenizer_config.json");
    Err(FileError::new(path.display(), problem, "give the template to use as chat_template.jinja"))
}

/// The texts of tokens that have a role; those of the first file that tells one.
fn special(files: &[&Value]) -> BTreeMap<String, String> {
    let names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let of = |name: &str| files.iter().find_map(|file| text(&file[name]));
    names.iter().filter_map(|&name| Some((name.to_owned(), of(name)?))).collect()
}

/// The token of a text, by a tokenizer.json.
fn token_id(tokenizer: &Value, text: &str) -> Option<u32> {
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter(|token| token["content"] == text).find_map(|token| token["id"].as_u64());
    let id = added.or_else(|| tokenizer["model"]["vocab"][text].as_u64())?;
    u32::try_from(id).ok()
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
