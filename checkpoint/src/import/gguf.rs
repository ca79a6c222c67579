//! GGUF files.

use std::collections::BTreeMap;
use std::io::Cursor;

use gguf_rs_lib::format::types::GGUFTensorType;
use gguf_rs_lib::format::{Metadata, MetadataValue};
use gguf_rs_lib::reader::GGUFFileReader;
use serde_json::{Map, Value, json};

use super::Imported;
use super::blocks::Packing;
use super::llama::{self, Names, Plan, Source};
use doorbell_lm::About;
use doorbell_lm::FileError;
use doorbell_lm::Shape;

const NAMES: Names = Names {
    tokens: "token_embd.weight",
    last_gain: "output_norm.weight",
    head: "output.weight",
    layers: "blk.",
    layer: [
        ".attn_norm.weight",
        ".attn_q.weight",
        ".attn_k.weight",
        ".attn_v.weight",
        ".attn_output.weight",
        ".ffn_norm.weight",
        ".ffn_gate.weight",
        ".ffn_up.weight",
        ".ffn_down.weight",
    ],
    halves: false,
};

/// What to do where a file is damaged.
const FETCH: &str = "fetch the file again";

struct File<'b> {
    bytes: &'b [u8],
    reader: GGUFFileReader<Cursor<&'b [u8]>>,
}

impl Source for File<'_> {
    fn names(&self) -> Vec<String> {
        self.reader.tensor_infos().iter().map(|tensor| tensor.name().to_owned()).collect()
    }

    fn take(&self, name: &str, rows: usize, columns: usize) -> Result<Vec<f32>, FileError> {
        let wrong = |problem: String, remedy: &str| FileError::new(name, problem, remedy);
        let tensor = self
            .reader
            .get_tensor_info(name)
            .ok_or_else(|| wrong("there is no such tensor".into(), "give a whole model"))?;
        // The first dimension is that of neighbours.
        let held = tensor.shape().dims();
        let fits = match *held {
            [c] => rows == 1 && c == columns as u64,
            [c, r] => r == rows as u64 && c == columns as u64,
            _ => false,
        };
        if !fits {
            let problem =
                format!("its dimensions are {held:?}, expected {columns} by {rows} by the configuration");
            return Err(wrong(problem, FETCH));
        }
        let packing = match tensor.tensor_type() {
            GGUFTensorType::F32 => Packing::F32,
            GGUFTensorType::F16 => Packing::F16,
            GGUFTensorType::BF16 => Packing::Bf16,
            GGUFTensorType::Q4_0 => Packing::Q4_0,
            GGUFTensorType::Q4_1 => Packing::Q4_1,
            GGUFTensorType::Q8_0 => Packing::Q8_0,
            GGUFTensorType::Q6_K => Packing::Q6K,
            other => {
                let problem = format!("it is packed as {}", other.name());
                return Err(wrong(
                    problem,
                    "give a file with F32, F16, BF16, Q4_0, Q4_1, Q8_0 and Q6_K alone",
                ));
            }
        };
        let from = self.reader.tensor_data_offset().checked_add(tensor.data_offset());
        let length = rows.checked_mul(columns).and_then(|values| packing.bytes(values));
        let bytes = from.and_then(|from| usize::try_from(from).ok()).zip(length);
        let bytes = bytes.and_then(|(from, length)| self.bytes.get(from..from.checked_add(length)?));
        match bytes {
            Some(bytes) => Ok(packing.unpack(bytes)),
            None => {
                Err(wrong(format!("it ends past the end of the file, {} bytes", self.bytes.len()), FETCH))
            }
        }
    }
}

/// The remedy for a file that another converter, or an old one, wrote.
const CONVERT: &str =
    "convert the model again by a current llama.cpp, to GGUF of version 3 in little-endian order";

/// Refuses what its reader does not know, where another file would help and the same one would not.
fn header(bytes: &[u8]) -> Result<(), FileError> {
    let Some(rest) = bytes.strip_prefix(b"GGUF") else { return Ok(()) };
    let Some(version) = rest.first_chunk().map(|version| u32::from_le_bytes(*version)) else { return Ok(()) };
    let problem = match version {
        3 => return Ok(()),
        _ if (1..=3).contains(&version.swap_bytes()) => "it is GGUF in big-endian order".to_owned(),
        _ => format!("it is GGUF of version {version}, and version 3 is read"),
    };
    Err(FileError::new("", problem, CONVERT))
}

/// Reads a whole file.
pub(super) fn import(bytes: &[u8], name: &str) -> Result<Imported, FileError> {
    header(bytes)?;
    let reader = GGUFFileReader::new(Cursor::new(bytes))
        .map_err(|error| FileError::new("", format!("not a GGUF file that can be read: {error}"), FETCH))?;
    let file = File { bytes, reader };
    let metadata = file.reader.metadata();
    let keys = Keys(metadata);
    let architecture = keys.text("general.architecture")?;
    if architecture != "llama" {
        let problem = format!("it is {architecture:?}");
        return Err(FileError::new(
            "general.architecture",
            problem,
            "give a model of architecture \"llama\"",
        ));
    }
    whole(&keys)?;
    let model = llama::read(&file, &NAMES, plan(&keys, &file)?)?;
    let (about, notes) = about(&keys, name, model.shape.vocabulary)?;
    Ok(Imported { model, about, notes })
}

/// Rejects a file that holds only a part of a model, or a model whose equations differ from the architecture's.
fn whole(keys: &Keys<'_>) -> Result<(), FileError> {
    let refused = |key: &str, problem: String, remedy: &str| Err(FileError::new(key, problem, remedy));
    let integer = |key: &str| keys.0.get(key).and_then(integer);
    if let Some(parts) = integer("split.count").filter(|&parts| parts > 1) {
        let part = integer("split.no").unwrap_or(0) + 1;
        let problem = format!("it is part {part} of {parts} of a model");
        return refused("split.count", problem, "merge them by llama-gguf-split");
    }
    if let Some(kind) = keys.optional_text("general.type")?.filter(|&kind| kind != "model") {
        return refused("general.type", format!("it is {kind:?}"), "give a file of type \"model\"");
    }
    if keys.0.contains_key("llama.expert_count") && integer("llama.expert_count") != Some(0) {
        return refused("llama.expert_count", "it has experts".into(), "give a model without experts");
    }
    if keys.flag("llama.attention.causal")? == Some(false) {
        let problem = "each token attends to later ones too".to_owned();
        return refused("llama.attention.causal", problem, "give a model that writes texts");
    }
    Ok(())
}

fn plan(keys: &Keys<'_>, file: &File<'_>) -> Result<Plan, FileError> {
    let (width, heads) = (keys.count("llama.embedding_length")?, keys.count("llama.attention.head_count")?);
    let optional = |key: &str, otherwise: usize| {
        if keys.0.contains_key(key) { keys.count(key) } else { Ok(otherwise) }
    };
    let head_width = optional("llama.attention.key_length", width.checked_div(heads).unwrap_or(0))?;
    let turned = optional("llama.rope.dimension_count", head_width)?;
    let values = optional("llama.attention.value_length", head_width)?;
    if turned != head_width || values != head_width {
        let problem =
            format!("heads of {head_width} keys have {values} values, and {turned} channels are rotated");
        return Err(FileError::new(
            "llama.rope.dimension_count",
            problem,
            "give a model where they are as many",
        ));
    }
    unscaled(keys)?;
    // By the matrix itself: the key is newer than the format.
    let rows =
        file.reader.get_tensor_info(NAMES.tokens).and_then(|tensor| tensor.shape().dims().get(1).copied());
    let shape = Shape {
        width,
        layers: keys.count("llama.block_count")?,
        heads,
        kv_heads: optional("llama.attention.head_count_kv", heads)?,
        head_width,
        hidden: keys.count("llama.feed_forward_length")?,
        vocabulary: usize::try_from(rows.unwrap_or(0)).unwrap_or(usize::MAX),
        context: keys.count("llama.context_length")?,
        gemma: None,
        kv_cap: None,
    };
    Ok(Plan {
        shape,
        epsilon: keys.number("llama.attention.layer_norm_rms_epsilon")?,
        rope_base: if keys.0.contains_key("llama.rope.freq_base") {
            keys.number("llama.rope.freq_base")?
        } else {
            10_000.0
        },
    })
}

/// Refuses scaled rotations, whether their type is told or not.
fn unscaled(keys: &Keys<'_>) -> Result<(), FileError> {
    for key in keys.0.keys().filter(|key| key.contains("rope.scal")) {
        let value = keys.0.get(key);
        let plain = match value {
            Some(MetadataValue::String(kind)) => kind == "none",
            Some(MetadataValue::Bool(scaled)) => !scaled,
            // Factors: 1 and 0 change nothing. The length of the context before scaling does nothing by itself.
            Some(value) if !key.ends_with("original_context_length") => keys
                .0
                .get_f64(key)
                .or(integer(value).map(|value| value as f64))
                .is_some_and(|value| value == 0.0 || value == 1.0),
            _ => true,
        };
        if !plain {
            let value = value.map_or_else(String::new, MetadataValue::to_string_representation);
            return Err(FileError::new(
                key,
                format!("the rotations are scaled: it is {value}"),
                "give a model without scaled rotations",
            ));
        }
    }
    Ok(())
}

/// A whole number of any type.
fn integer(value: &MetadataValue) -> Option<i64> {
    value.as_i64().or_else(|| value.as_u64().and_then(|value| i64::try_from(value).ok()))
}

/// The metadata, as it is asked for.
struct Keys<'m>(&'m Metadata);

impl Keys<'_> {
    fn wrong<T>(&self, key: &str, expected: &str) -> Result<T, FileError> {
        let problem = match self.0.get(key) {
            Some(MetadataValue::Array(array)) => {
                format!("it is an array of {}, expected {expected}", array.length)
            }
            Some(value) => format!("it is {}, expected {expected}", value.to_string_representation()),
            None => format!("there is no such key, expected {expected}"),
        };
        Err(FileError::new(key, problem, "give a whole model"))
    }

    fn text(&self, key: &str) -> Result<&str, FileError> {
        self.0.get_string(key).map_or_else(|| self.wrong(key, "a text"), Ok)
    }

    fn count(&self, key: &str) -> Result<usize, FileError> {
        // The largest that anything here may be; the shape's own bounds are closer.
        let small = |value: &u64| *value <= 1 << 20;
        let value = self.0.get(key).and_then(integer).and_then(|value| u64::try_from(value).ok());
        match value.filter(small) {
            Some(value) => Ok(value as usize),
            None => self.wrong(key, "a number up to 1048576"),
        }
    }

    fn number(&self, key: &str) -> Result<f64, FileError> {
        match self.0.get_f64(key).or(self.0.get(key).and_then(integer).map(|value| value as f64)) {
            Some(value) => Ok(value),
            None => self.wrong(key, "a number"),
        }
    }

    /// Returns the value of `key`, or `None` if the key is missing. A value of another type is an error.
    fn optional<T>(&self, key: &str, held: Option<T>, expected: &str) -> Result<Option<T>, FileError> {
        match (held, self.0.get(key)) {
            (Some(held), _) => Ok(Some(held)),
            (None, None) => Ok(None),
            (None, Some(_)) => self.wrong(key, expected),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, FileError> {
        self.optional(key, self.0.get_bool(key), "true or false")
    }

    fn optional_text(&self, key: &str) -> Result<Option<&str>, FileError> {
        self.optional(key, self.0.get_string(key), "a text")
    }

    fn texts(&self, key: &str) -> Result<Vec<&str>, FileError> {
        let Some(MetadataValue::Array(array)) = self.0.get(key) else {
            return self.wrong(key, "an array of texts");
        };
        let texts: Option<Vec<&str>> = array.iter().map(MetadataValue::as_str).collect();
        texts.map_or_else(|| self.wrong(key, "an array of texts"), Ok)
    }

    /// A token of the vocabulary, as an integer of any type; none where there is no such key.
    fn token(&self, key: &str, vocabulary: usize) -> Result<Option<u32>, FileError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let token = integer(value).and_then(|token| usize::try_from(token).ok());
        match token.filter(|&token| token < vocabulary) {
            Some(token) => Ok(Some(token as u32)),
            None => self.wrong(key, &format!("a token below {vocabulary}")),
        }
    }
}

fn about(keys: &Keys<'_>, name: &str, vocabulary: usize) -> Result<(About, Vec<String>), FileError> {
    let mut ends: Vec<u32> = vec![];
    for role in ["eos", "eot", "eom"] {
        let token = keys.token(&format!("tokenizer.ggml.{role}_token_id"), vocabulary)?;
        ends.extend(token.filter(|token| !ends.contains(token)));
    }
    const ENDS: &str = "tokenizer.ggml.eos_token_ids";
    match keys.0.get(ENDS) {
        None => {}
        Some(MetadataValue::Array(list)) => {
            for value in list.iter() {
                let token = integer(value).and_then(|token| u32::try_from(token).ok());
                let token = token.filter(|&token| (token as usize) < vocabulary);
                let Some(token) = token else {
                    return keys.wrong(ENDS, &format!("tokens below {vocabulary}"));
                };
                if !ends.contains(&token) {
                    ends.push(token);
                }
            }
        }
        Some(_) => return keys.wrong(ENDS, "an array of tokens"),
    }
    let around = |key: &str, token: Option<u32>, of: &str| {
        let adds = keys.flag(key)?.unwrap_or(false);
        if adds && token.is_none() {
            let problem = format!("it is true, and there is no {of}");
            return Err(FileError::new(key, problem, "give a whole model"));
        }
        Ok(token.filter(|_| adds))
    };
    let begin = keys.token("tokenizer.ggml.bos_token_id", vocabulary)?;
    let begin = around("tokenizer.ggml.add_bos_token", begin, "bos_token_id")?;
    let end = around("tokenizer.ggml.add_eos_token", ends.first().copied(), "eos_token_id")?;
    let name = match keys.0.get_string("general.name") {
        Some(own) if !own.trim().is_empty() => own.trim().to_owned(),
        _ => name.to_owned(),
    };
    let tokens = keys.texts("tokenizer.ggml.tokens")?;
    let end = end.and_then(|end| Some((end, *tokens.get(end as usize)?)));
    let mut special = BTreeMap::new();
    for (role, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        // Of these two, files have ids that no token has.
        let id = keys.0.get(&format!("tokenizer.ggml.{key}_token_id")).and_then(integer);
        let text = id.and_then(|id| tokens.get(usize::try_from(id).ok()?));
        special.extend(text.map(|text| (format!("{role}_token"), (*text).to_owned())));
    }
    let mut notes = vec![];
    if ends.is_empty() {
        notes.push("nothing says which token ends an answer, so each is as long as it may be".into());
    }
    if !keys.0.contains_key(KINDS) {
        notes.push(format!("there is no {KINDS}, so tokens that only steer are cut as any text is"));
    }
    let template = |key: &str| Ok(keys.optional_text(key)?.unwrap_or_default().to_owned());
    let about = About {
        name,
        licence: keys.0.get_string("general.license").unwrap_or_default().to_owned(),
        tokenizer: tokenizer(keys, vocabulary, end)?,
        chat: template("tokenizer.chat_template")?,
        chat_tools: template("tokenizer.chat_template.tool_use")?,
        ends,
        begin,
        special: Some(special),
    };
    Ok((about, notes))
}

const KINDS: &str = "tokenizer.ggml.token_type";

/// The kind of each token. Every token is a plain one if the file has no kinds.
fn kinds(keys: &Keys<'_>, vocabulary: usize) -> Result<Vec<i64>, FileError> {
    let list = match keys.0.get(KINDS) {
        None => return Ok(vec![1; vocabulary]),
        Some(MetadataValue::Array(list)) => list,
        Some(_) => return keys.wrong(KINDS, "an array of kinds"),
    };
    let kinds: Option<Vec<i64>> =
        list.iter().map(|kind| integer(kind).filter(|kind| (1..=6).contains(kind))).collect();
    match kinds.filter(|kinds| kinds.len() == vocabulary) {
        Some(kinds) => Ok(kinds),
        None => keys.wrong(KINDS, &format!("{vocabulary} integers from 1 to 6, one for each token")),
    }
}

/// The post-processor that puts this token behind a raw text.
fn closing(id: u32, text: &str) -> Value {
    let (own, end) = (|id: &str| json!({"Sequence": {"id": id, "type_id": 0}}), text);
    let end = json!({"SpecialToken": {"id": end, "type_id": 0}});
    json!({
        "type": "TemplateProcessing",
        "single": [own("A"), end],
        "pair": [own("A"), end, own("B"), end],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}

/// The tokeniser as a tokenizer.json; `end` follows each raw text.
fn tokenizer(keys: &Keys<'_>, vocabulary: usize, end: Option<(u32, &str)>) -> Result<String, FileError> {
    let directory = "give a directory with tokenizer.json instead";
    let kind = keys.text("tokenizer.ggml.model")?;
    if kind != "gpt2" {
        let problem = format!("it is {kind:?}, expected \"gpt2\"");
        return Err(FileError::new("tokenizer.ggml.model", problem, directory));
    }
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let before = match keys.optional_text("tokenizer.ggml.pre")? {
        Some("smollm") => json!({"type": "Sequence", "pretokenizers": [digits, bytes]}),
        Some("gpt-2") => bytes.clone(),
        other => {
            let cut = match other {
                Some(other) => format!("texts are cut as {other:?}"),
                None => "nothing says how texts are cut".to_owned(),
            };
            let problem = format!("{cut}, expected \"smollm\" or \"gpt-2\"");
            return Err(FileError::new("tokenizer.ggml.pre", problem, directory));
        }
    };
    let tokens = keys.texts("tokenizer.ggml.tokens")?;
    if tokens.len() != vocabulary {
        let problem =
            format!("there are {}, expected {vocabulary}, as the matrix of the tokens has", tokens.len());
        return Err(FileError::new("tokenizer.ggml.tokens", problem, FETCH));
    }
    let mut merges = vec![];
    for merge in keys.texts("tokenizer.ggml.merges")? {
        let Some((left, right)) = merge.split_once(' ') else {
            let problem = format!("{merge:?} is no pair of tokens with a space between");
            return Err(FileError::new("tokenizer.ggml.merges", problem, FETCH));
        };
        merges.push(json!([left, right]));
    }
    // 3: CONTROL, which no text becomes; 4: USER_DEFINED, a text that is never cut.
    let kinds = kinds(keys, vocabulary)?;
    let added: Vec<Value> = tokens
        .iter()
        .zip(kinds)
        .enumerate()
        .filter(|(_, (_, kind))| matches!(kind, 3 | 4))
        .map(|(id, (token, kind))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": kind == 3})
        })
        .collect();
    let mut vocabulary: Map<String, Value> = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(other) = vocabulary.insert(token.to_string(), id.into()) {
            let problem = format!("tokens {other} and {id} are both {token:?}");
            return Err(FileError::new("tokenizer.ggml.tokens", problem, directory));
        }
    }
    let mut tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": before,
        "post_processor": end.map(|(id, text)| closing(id, text)),
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges,
        },
    });
    tokenizer.sort_all_objects();
    Ok(tokenizer.to_string())
}
