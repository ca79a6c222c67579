//! Directories of Hugging Face: config.json, safetensors, tokenizer.json.

mod config;
mod tokens;

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

/// Where to look for the files that hold no weights: in the model's own directory, then in that of the model that it replaces.
struct Place<'p> {
    directory: &'p Path,
    other: Option<&'p Path>,
}

impl Place<'_> {
    /// The path of a file of this name. If its presence cannot be determined, the later read reports the error.
    fn file(&self, name: &str) -> PathBuf {
        let lacks = |path: &Path| is_there(path).is_ok_and(|there| !there);
        let own = self.directory.join(name);
        match self.other.map(|other| other.join(name)) {
            Some(other) if lacks(&own) && !lacks(&other) => other,
            _ => own,
        }
    }
}

/// Reads a whole directory.
pub(super) fn import(directory: &Path) -> Result<Imported, FileError> {
    read_from(&Place { directory, other: None }, None)
}

/// Reads a directory of weights of this shape. Other files that are missing there are read from `other`.
pub(super) fn update(directory: &Path, other: Option<&Path>, shape: &Shape) -> Result<Imported, FileError> {
    read_from(&Place { directory, other }, Some(shape))
}

fn read_from(place: &Place<'_>, shape: Option<&Shape>) -> Result<Imported, FileError> {
    let directory = place.directory;
    let adapter = directory.join("adapter_config.json");
    if is_there(&adapter)? {
        let problem = "it is an adapter, which is not added to the weights";
        return Err(FileError::new(adapter.display(), problem, "merge it into the model, and give that"));
    }
    let path = place.file("config.json");
    let config = object(&path)?;
    let plan = config::plan(&config).map_err(|error| error.within(&path))?;
    // Check the shape before any weight is read: reading a model takes several times the size of its files in memory.
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
    if names.contains_key("embed_tokens.weight") && !names.contains_key(NAMES.tokens) {
        let problem = "its tensors have no \"model.\" before their names";
        return Err(FileError::new(
            directory.display(),
            problem,
            "give the model as LlamaForCausalLM saves it",
        ));
    }
    // Early checkpoints have these tensors. They follow from the base of the rotations.
    names.retain(|name, _| !name.ends_with(".rotary_emb.inv_freq"));
    let files = Files { files: tensors, names };
    let model = match plan {
        config::Plan::Llama(plan) => llama::read(&files, &NAMES, plan),
        config::Plan::Gemma(plan) => gemma::read(&files, plan),
    };
    let model = model.map_err(|error| error.within(directory))?;
    let (about, notes) = about(place, &config, model.shape.vocabulary)?;
    Ok(Imported { model, about, notes })
}

/// Whether a file of this name exists. A dangling symlink counts as a file, and reading it then fails.
fn is_there(path: &Path) -> Result<bool, FileError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::new(path.display(), format!("cannot be looked at: {error}"), FETCH)),
    }
}

fn json(path: &Path) -> Result<Value, FileError> {
    let bytes = read(path, JSON_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        // Python writes and reads NaN and Infinity, which JSON does not have.
        let odd =
            [&b"NaN"[..], b"Infinity"].iter().any(|word| bytes.windows(word.len()).any(|part| part == *word));
        let remedy = if odd { "write null or a number in the place of NaN and Infinity" } else { FETCH };
        FileError::new(path.display(), format!("not JSON: {error}"), remedy)
    })
}

/// A JSON file that holds an object, as all but those of weights do. Any other value has no members, and would pass for an empty object.
fn object(path: &Path) -> Result<Value, FileError> {
    let value = json(path)?;
    is_object(&value).map_err(|problem| FileError::new(path.display(), problem, FETCH)).map(|()| value)
}

/// A JSON file that need not be there.
fn optional(path: &Path) -> Result<Value, FileError> {
    if is_there(path)? { object(path) } else { Ok(Value::Null) }
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
    let (named, files) = if is_there(&single)? {
        (None, vec!["model.safetensors".to_owned()])
    } else if is_there(&index)? {
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
        let torch = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
        if torch.iter().any(|name| directory.join(name).exists()) {
            let problem = "its weights are pytorch_model.bin, which is not read";
            return Err(FileError::new(directory.display(), problem, "convert them to safetensors"));
        }
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

fn about(place: &Place<'_>, config: &Value, vocabulary: usize) -> Result<(About, Vec<String>), FileError> {
    let directory = place.directory;
    let path = place.file("tokenizer.json");
    let mut tokenizer = object(&path)?;
    // transformers resets both when it loads the file.
    for key in ["truncation", "padding"] {
        tokenizer[key] = Value::Null;
    }
    let settings = place.file(tokens::CONFIG);
    let other = optional(&settings)?;
    // Like transformers, read these older files only if there is no added_tokens_decoder. Their entries come first then.
    let old = |file: &str| match other["added_tokens_decoder"] {
        Value::Null => optional(&place.file(file)),
        _ => Ok(Value::Null),
    };
    let (map, added) = (old(tokens::MAP)?, old(tokens::ADDED)?);
    let generation = optional(&place.file("generation_config.json"))?;
    if !matches!(tokenizer["added_tokens"], Value::Null | Value::Array(_)) {
        return Err(FileError::new(path.display(), "its added_tokens are no list", FETCH));
    }
    let files = tokens::Files { config: &other, map: &map, added: &added };
    let roles = tokens::add(&mut tokenizer, &files).map_err(|(file, problem)| {
        let remedy = "fetch the file again; if it is as it was published, change that in it";
        FileError::new(place.file(file).display(), problem, remedy)
    })?;
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
        && let Some(text) = roles.texts.get("eos_token")
        && let Some(&token) = roles.ids.get(text)
    {
        if token >= vocabulary as u64 {
            let problem =
                format!("eos_token is {text:?}, token {token}, expected a token below {vocabulary}");
            return Err(FileError::new(
                settings.display(),
                problem,
                "give the end's id as eos_token_id in generation_config.json",
            ));
        }
        ends.push(token as u32);
    }
    let mut seen = BTreeSet::new();
    ends.retain(|&token| seen.insert(token));
    let mut notes = ignored(&generation);
    notes.extend(rebuilt(&tokenizer, config, &other));
    if ends.is_empty() {
        notes.push("nothing says which token ends an answer, so each is as long as it may be".into());
    }
    let templates = Templates::of(place, &other, &mut notes)?;
    tokenizer.sort_all_objects();
    let about = About {
        name: stem(directory),
        licence: licence(directory),
        tokenizer: tokenizer.to_string(),
        chat: templates.default,
        chat_tools: templates.tools,
        ends,
        // As transformers: where there is a tokenizer.json, its post-processor says what surrounds a raw text, and the flags
        // add_bos_token and add_eos_token say nothing.
        begin: None,
        special: Some(roles.texts),
    };
    Ok((about, notes))
}

/// The fields of generation_config.json that affect sampling and that this program ignores, in one line; empty if there are none.
fn ignored(generation: &Value) -> Vec<String> {
    // Fields that do not affect sampling, and eos_token_id, which is read elsewhere.
    const OTHER: [&str; 13] = [
        "_from_model_config",
        "bos_token_id",
        "cache_implementation",
        "eos_token_id",
        "max_length",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "return_dict_in_generate",
        "transformers_version",
        "trust_remote_code",
        "use_cache",
    ];
    // Values that have no effect.
    let neutral = |name: &str, value: &Value| match name {
        "temperature"
        | "top_p"
        | "typical_p"
        | "repetition_penalty"
        | "encoder_repetition_penalty"
        | "length_penalty"
        | "num_beams"
        | "num_beam_groups"
        | "num_return_sequences" => value.as_f64() == Some(1.0),
        "top_k"
        | "min_p"
        | "min_length"
        | "min_new_tokens"
        | "no_repeat_ngram_size"
        | "encoder_no_repeat_ngram_size"
        | "epsilon_cutoff"
        | "eta_cutoff"
        | "diversity_penalty" => value.as_f64() == Some(0.0),
        // This program always samples.
        "do_sample" => *value == true,
        _ => *value == false || value.as_array().is_some_and(Vec::is_empty),
    };
    let fields = generation.as_object().into_iter().flatten();
    let fields = fields
        .filter(|(name, value)| !OTHER.contains(&name.as_str()) && !value.is_null() && !neutral(name, value));
    let fields: Vec<String> = fields.map(|(name, value)| format!("{name} {value}")).collect();
    if fields.is_empty() {
        return vec![];
    }
    vec![format!(
        "generation_config.json says {}, which is not obeyed; ask for it yourself",
        fields.join(", ")
    )]
}

/// Notes for files of which transformers may build a different tokeniser.
fn rebuilt(tokenizer: &Value, config: &Value, other: &Value) -> Vec<String> {
    let mut notes = vec![];
    let class = other["tokenizer_class"].as_str().or_else(|| config["tokenizer_class"].as_str());
    let plain = ["TokenizersBackend", "PreTrainedTokenizer", "PythonBackend"];
    let class = class.map(|class| class.strip_suffix("Fast").unwrap_or(class));
    // transformers uses the file of this class unchanged if the tokeniser works on bytes.
    let bytes = || tokenizer["pre_tokenizer"].to_string().contains("\"ByteLevel\"");
    if let Some(class) =
        class.filter(|class| !(plain.contains(class) || *class == "LlamaTokenizer" && bytes()))
    {
        notes.push(format!(
            "transformers 5 may build the tokeniser of class {class} anew; here texts are cut by tokenizer.json as it stands"
        ));
    }
    if other["clean_up_tokenization_spaces"] == true && tokenizer["model"]["type"] != "BPE" {
        notes.push(
            "clean_up_tokenization_spaces is true, which is not obeyed: blanks before punctuation stay"
                .into(),
        );
    }
    notes
}

/// Chat templates; an empty string where there is none.
#[derive(Debug, Default)]
struct Templates {
    default: String,
    /// For chats with tools.
    tools: String,
}

impl Templates {
    /// Takes chat_template.jinja and the files of additional_chat_templates. If there are none, takes what tokenizer_config.json holds.
    fn of(place: &Place<'_>, other: &Value, notes: &mut Vec<String>) -> Result<Self, FileError> {
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        let text = |path: &Path| {
            String::from_utf8(read(path, TEMPLATE_BYTES)?)
                .map_err(|error| FileError::new(path.display(), format!("not a text: {error}"), FETCH))
        };
        let single = place.file("chat_template.jinja");
        if is_there(&single)? {
            named.insert("default".into(), text(&single)?);
        }
        let more = place.file("additional_chat_templates");
        if more.is_dir() {
            let cannot = |error: io::Error| {
                FileError::new(more.display(), format!("cannot be listed: {error}"), FETCH)
            };
            for entry in fs::read_dir(&more).map_err(cannot)? {
                let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
                if let Some(name) = name.strip_suffix(".jinja") {
                    named.insert(name.to_owned(), text(&more.join(format!("{name}.jinja")))?);
                }
            }
        }
        if named.is_empty() {
            named = Self::told(&other["chat_template"]).ok_or_else(|| {
                let problem = "chat_template is neither a text nor named templates";
                let path = place.file(tokens::CONFIG);
                FileError::new(path.display(), problem, "give the template to use as chat_template.jinja")
            })?;
        }
        let mut take = |name: &str| named.remove(name).unwrap_or_default();
        let templates = Self { default: take("default"), tools: take("tool_use") };
        if !named.is_empty() {
            let names = named.into_keys().collect::<Vec<_>>().join(", ");
            notes
                .push(format!("the chat templates {names} are not kept; serve takes one by --chat-template"));
        }
        if templates.default.is_empty() && !templates.tools.is_empty() {
            notes.push("its chat template is for chats with tools alone".into());
        }
        Ok(templates)
    }

    /// The templates by name, or `None` if the value is malformed.
    fn told(value: &Value) -> Option<BTreeMap<String, String>> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match value {
            Value::Null => Some(BTreeMap::new()),
            Value::String(chat) => Some(BTreeMap::from([("default".to_owned(), chat.clone())])),
            Value::Array(list) => {
                list.iter().map(|named| Some((text(&named["name"])?, text(&named["template"])?))).collect()
            }
            Value::Object(named) => {
                named.iter().map(|(name, template)| Some((name.clone(), text(template)?))).collect()
            }
            _ => None,
        }
    }
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
