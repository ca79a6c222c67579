//! Directories of Hugging Face: config.json, safetensors, tokenizer.json.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Imported;
use super::blocks::Packing;
use super::llama::{self, Names, Source};
use super::{gemma, stem};
use doorbell_lm::file::{FileError, read};
use doorbell_lm::limits::{JSON_BYTES, TEMPLATE_BYTES, WEIGHT_BYTES};
use doorbell_lm::{About, Shape};

/// What to do with a file that is not as it was published.
const FETCH: &str = "fetch the file again";

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

/// Where the files of a model are that hold no weights: in its directory, or in that of a model whose weights it is to take the place of.
struct Place<'p> {
    directory: &'p Path,
    other: Option<&'p Path>,
}

impl Place<'_> {
    fn file(&self, name: &str) -> PathBuf {
        let own = self.directory.join(name);
        match self.other.map(|other| other.join(name)) {
            Some(other) if !own.exists() && other.exists() => other,
            _ => own,
        }
    }
}

/// Reads a whole directory.
pub(super) fn import(directory: &Path) -> Result<Imported, FileError> {
    read_from(&Place { directory, other: None }, None)
}

/// Reads a directory of weights of this shape. What it lacks beside them is that of `other`.
pub(super) fn update(directory: &Path, other: Option<&Path>, shape: &Shape) -> Result<Imported, FileError> {
    read_from(&Place { directory, other }, Some(shape))
}

fn read_from(place: &Place<'_>, shape: Option<&Shape>) -> Result<Imported, FileError> {
    let directory = place.directory;
    let path = place.file("config.json");
    let config = object(&path)?;
    let plan = config::plan(&config).map_err(|error| error.within(&path))?;
    // Before any weight is read: a model takes several times the bytes of its files.
    if shape.is_some_and(|shape| plan.shape() != Shape { kv_cap: None, ..*shape }) {
        let problem = "the model has another shape than the one that is served";
        return Err(FileError::new(path.display(), problem, "start a server for it"));
    }
    let (named, files) = weights(directory)?;
    let mut tensors = vec![];
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (number, (path, bytes)) in files.iter().enumerate() {
        let file = SafeTensors::deserialize(bytes).map_err(|error| {
            let problem = format!("not a safetensors file that can be read: {error}");
            FileError::new(path.display(), problem, FETCH)
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
            if let Some(other) = names.insert(name.to_owned(), number) {
                let problem = format!("{name} is in this file and in {}", files[other].0.display());
                return Err(FileError::new(path.display(), problem, "fetch the directory again"));
            }
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
    let about = about(place, &config, model.shape.vocabulary)?;
    Ok(Imported { model, about })
}

fn json(path: &Path) -> Result<Value, FileError> {
    serde_json::from_slice(&read(path, JSON_BYTES)?)
        .map_err(|error| FileError::new(path.display(), format!("not JSON: {error}"), FETCH))
}

/// A JSON file that holds an object, as all but those of weights do. Any other value has no members, and would pass for an empty object.
fn object(path: &Path) -> Result<Value, FileError> {
    let value = json(path)?;
    is_object(&value).map_err(|problem| FileError::new(path.display(), problem, FETCH)).map(|()| value)
}

/// A JSON file that need not be there.
fn optional(path: &Path) -> Result<Value, FileError> {
    if path.exists() { object(path) } else { Ok(Value::Null) }
}

/// An error names the kind of any other value.
fn is_object(value: &Value) -> Result<(), String> {
    let kind = match value {
        Value::Object(_) => return Ok(()),
        Value::Array(_) => "a list",
        Value::String(_) => "a text",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        Value::Null => "null",
    };
    Err(format!("it is {kind}, expected an object: names with values, in braces"))
}

/// Files, with their paths.
type Held = Vec<(PathBuf, Vec<u8>)>;

/// The number of a file by the name of each tensor in it.
type Named = BTreeMap<String, usize>;

/// model.safetensors; without it, the files that model.safetensors.index.json names, and what it says is in each; without that too, a whole
/// set of shards.
fn weights(directory: &Path) -> Result<(Option<Named>, Held), FileError> {
    let single = directory.join("model.safetensors");
    let index = directory.join("model.safetensors.index.json");
    let (named, files) = if single.exists() {
        (None, vec!["model.safetensors".to_owned()])
    } else if index.exists() {
        let (named, files) = indexed(&index)?;
        (Some(named), files)
    } else {
        (None, shards(directory)?)
    };
    let files = files.into_iter().map(|file| {
        let path = directory.join(file);
        read(&path, WEIGHT_BYTES).map(|bytes| (path, bytes))
    });
    Ok((named, files.collect::<Result<_, _>>()?))
}

/// What an index names: the number of its file by each tensor, and the files.
fn indexed(index: &Path) -> Result<(Named, Vec<String>), FileError> {
    let wrong = |problem: String| FileError::new(index.display(), problem, "fetch the directory again");
    let value = json(index)?;
    let map = value["weight_map"].as_object().ok_or_else(|| wrong("it has no weight_map".into()))?;
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut named = Named::new();
    for (tensor, file) in map {
        let plain = |file: &&str| Path::new(file).file_name().is_some_and(|name| name == *file);
        let file = file.as_str().filter(plain);
        let file = file.ok_or_else(|| wrong(format!("{tensor} is in no file of this directory")))?;
        let next = numbers.len();
        named.insert(tensor.clone(), *numbers.entry(file).or_insert(next));
    }
    if numbers.is_empty() {
        return Err(wrong("its weight_map is empty".into()));
    }
    let mut files = vec![String::new(); numbers.len()];
    for (file, number) in numbers {
        files[number] = file.to_owned();
    }
    Ok((named, files))
}

/// All of model-00001-of-00002.safetensors, model-00002-of-00002.safetensors and so on, in order.
fn shards(directory: &Path) -> Result<Vec<String>, FileError> {
    let wrong = |problem: String| {
        let remedy =
            "give a directory with model.safetensors, or with model.safetensors.index.json and what it names";
        FileError::new(directory.display(), problem, remedy)
    };
    let cannot = |error: io::Error| wrong(format!("cannot be listed: {error}"));
    let mut found: BTreeMap<(u64, u64), String> = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
        let numbers = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
        let Some(numbers) = numbers else { continue };
        let numbers = numbers
            .split_once("-of-")
            .and_then(|(number, of)| Some((of.parse().ok()?, number.parse().ok()?)));
        let Some(numbers) = numbers else {
            return Err(wrong(format!("nothing says what {name} is a part of")));
        };
        if let Some(other) = found.insert(numbers, name.clone()) {
            return Err(wrong(format!("{other} and {name} are the same part")));
        }
    }
    let Some(&(of, _)) = found.keys().next() else {
        return Err(wrong("there are no weights in it".into()));
    };
    let names = || found.values().map(String::as_str).collect::<Vec<_>>().join(", ");
    if found.keys().any(|&(other, _)| other != of) {
        return Err(wrong(format!("its shards are of several sets, and no index names one: {}", names())));
    }
    if !found.keys().map(|&(_, number)| number).eq(1..=of) {
        return Err(wrong(format!("its shards are not 1 to {of} of {of}: {}", names())));
    }
    Ok(found.into_values().collect())
}

fn about(place: &Place<'_>, config: &Value, vocabulary: usize) -> Result<About, FileError> {
    let directory = place.directory;
    let path = place.file("tokenizer.json");
    let mut tokenizer = object(&path)?;
    // transformers resets both when it loads the file.
    for key in ["truncation", "padding"] {
        tokenizer[key] = Value::Null;
    }
    let settings = place.file("tokenizer_config.json");
    let other = optional(&settings)?;
    // As transformers: this file is of before added_tokens_decoder, and comes first where that is not told.
    let map = match other["added_tokens_decoder"] {
        Value::Null => optional(&place.file("special_tokens_map.json"))?,
        _ => Value::Null,
    };
    let generation = optional(&place.file("generation_config.json"))?;
    let special = special(&[&map, &other]);
    if !matches!(tokenizer["added_tokens"], Value::Null | Value::Array(_)) {
        return Err(FileError::new(path.display(), "its added_tokens are no list", FETCH));
    }
    add_tokens(&mut tokenizer, &other, &special)
        .map_err(|problem| FileError::new(settings.display(), problem, FETCH))?;
    fits(&tokenizer, vocabulary).map_err(|problem| {
        FileError::new(path.display(), problem, "give the tokenizer.json of this model")
    })?;

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
                    place.file(file).display(),
                    problem,
                    "give the ids of tokens that the model has",
                )
            })?;
            ends.push(token as u32);
        }
    }
    // transformers has no end then; the tokeniser's is what chats are trained with.
    if ends.is_empty()
        && let Some(text) = special.get("eos_token")
        && let Some(token) = token_id(&tokenizer, text)
    {
        if token as usize >= vocabulary {
            let problem =
                format!("eos_token is {text:?}, token {token}, expected a token below {vocabulary}");
            return Err(FileError::new(
                settings.display(),
                problem,
                "give the end's id as eos_token_id in generation_config.json",
            ));
        }
        ends.push(token);
    }
    let mut seen = BTreeSet::new();
    ends.retain(|&token| seen.insert(token));
    Ok(About {
        name: stem(directory),
        licence: licence(directory),
        tokenizer: tokenizer.to_string(),
        chat: chat(directory, &other)?,
        ends,
        // As transformers: where there is a tokenizer.json, its post-processor says what surrounds a raw text, and the flags
        // add_bos_token and add_eos_token say nothing.
        begin: None,
        special: Some(special),
    })
}

/// chat_template.jinja if it is there; of named templates the one called "default".
fn chat(directory: &Path, other: &Value) -> Result<String, FileError> {
    let jinja = directory.join("chat_template.jinja");
    if jinja.exists() {
        return String::from_utf8(read(&jinja, TEMPLATE_BYTES)?)
            .map_err(|error| FileError::new(jinja.display(), format!("not a text: {error}"), FETCH));
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
        Value::Object(named) => match named.get("default").and_then(Value::as_str) {
            Some(chat) => return Ok(chat.to_owned()),
            None => "chat_template names templates, and none is \"default\"".to_owned(),
        },
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

/// Cuts out of texts what tokenizer_config.json says are tokens and tokenizer.json does not: as transformers does.
fn add_tokens(
    tokenizer: &mut Value,
    config: &Value,
    special: &BTreeMap<String, String>,
) -> Result<(), String> {
    let told = match &config["added_tokens_decoder"] {
        Value::Null => None,
        Value::Object(told) => Some(told),
        _ => return Err("its added_tokens_decoder is no object".into()),
    };
    let mut missing: Vec<(u64, Value)> = vec![];
    for (id, token) in told.into_iter().flatten() {
        match id.parse() {
            Ok(id) if token["content"].is_string() => missing.push((id, token.clone())),
            Ok(_) => return Err(format!("token {id} of its added_tokens_decoder has no content")),
            Err(_) => return Err(format!("{id:?} of its added_tokens_decoder is no id of a token")),
        }
    }
    missing.sort_by_key(|&(id, _)| id);
    let lists = ["additional_special_tokens", "extra_special_tokens"].iter();
    let lists = lists.filter_map(|&list| config[list].as_array()).flatten();
    let listed = lists.filter_map(|token| token.as_str().or_else(|| token["content"].as_str()));
    for text in special.values().map(String::as_str).chain(listed) {
        if let Some(id) = tokenizer["model"]["vocab"][text].as_u64() {
            missing.push((id, serde_json::json!({"content": text, "special": true})));
        }
    }
    if !tokenizer["added_tokens"].is_array() {
        tokenizer["added_tokens"] = serde_json::json!([]);
    }
    let Some(added) = tokenizer["added_tokens"].as_array_mut() else { return Ok(()) };
    for (id, token) in missing {
        if added.iter().any(|held| held["content"] == token["content"]) {
            continue;
        }
        let is = |flag: &str, otherwise: bool| token[flag].as_bool().unwrap_or(otherwise);
        let special = is("special", false);
        added.push(serde_json::json!({
            "id": id, "content": token["content"], "single_word": is("single_word", false), "lstrip": is("lstrip", false),
            "rstrip": is("rstrip", false), "normalized": is("normalized", !special), "special": special,
        }));
    }
    Ok(())
}

/// Refuses a tokeniser of another model, whose vocabulary has tokens that this one has not. Those that are added to it may: they are often of
/// parts that the model lacks, as of pictures, and `Text::notes` tells of them.
fn fits(tokenizer: &Value, vocabulary: usize) -> Result<(), String> {
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added: BTreeSet<&str> = added.filter_map(|token| token["content"].as_str()).collect();
    let is_beyond = |&(text, id): &(&str, u64)| id >= vocabulary as u64 && !added.contains(text);
    let held = &tokenizer["model"]["vocab"];
    let by_name = held.as_object().into_iter().flatten();
    let by_name = by_name.filter_map(|(text, id)| Some((text.as_str(), id.as_u64()?)));
    // Texts with their scores, in the order of the ids.
    let in_order = (0..).zip(held.as_array().into_iter().flatten());
    let in_order = in_order.filter_map(|(id, pair)| Some((pair[0].as_str()?, id)));
    let beyond: Vec<(&str, u64)> = by_name.chain(in_order).filter(is_beyond).collect();
    match beyond.iter().min_by_key(|(_, id)| id) {
        None => Ok(()),
        Some((text, id)) => Err(format!(
            "its vocabulary has {} tokens that the model lacks, the first {text:?} with id {id}; the model has {vocabulary} by config.json",
            beyond.len()
        )),
    }
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
    let mut card = vec![];
    let path = directory.join("README.md");
    if path.is_file()
        && let Ok(file) = fs::File::open(path)
    {
        // The licence is at the beginning. What cannot be read has none.
        let _ = file.take(1 << 16).read_to_end(&mut card);
    }
    let card = String::from_utf8_lossy(&card);
    let mut lines = card.lines();
    if lines.next() != Some("---") {
        return String::new();
    }
    let named = lines.take_while(|&line| line != "---").find_map(|line| line.strip_prefix("license:"));
    named.map_or_else(String::new, |name| name.trim().to_owned())
}
