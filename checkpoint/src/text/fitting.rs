//! What crate `tokenizers` does not check in a tokenizer.json: at these it panics, asks for gigabytes, or does not end.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use doorbell_lm::limits::TOKENIZER_GROWTH;
use serde_json::Value;

/// Refuses a tokenizer.json with one of them.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn check(tokenizer: &str) -> Result<(), String> {
    merges(tokenizer)?;
    // What is no JSON, its reader refuses.
    let Ok(file) = serde_json::from_str::<Value>(tokenizer) else { return Ok(()) };
    for (part, parts) in
        [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")]
    {
        let mut growth = 1;
        stage(&file[part], part, parts, &mut growth)?;
        let most = TOKENIZER_GROWTH.value()?;
        if growth > most {
            return Err(format!("its {part} makes a text longer: {}", TOKENIZER_GROWTH.exceeded(most)));
        }
    }
    Ok(())
}

/// One stage, or a sequence of them; multiplies `growth` by how many times as long a text gets.
fn stage(stage: &Value, part: &str, parts: &str, growth: &mut u64) -> Result<(), String> {
    let kind = stage["type"].as_str().unwrap_or_default();
    match kind {
        "Sequence" => {
            // The reader of these limits how deep they are.
            for inner in stage[parts].as_array().into_iter().flatten() {
                self::stage(inner, part, parts, growth)?;
            }
        }
        "Replace" | "Split" => {
            let pattern = &stage["pattern"];
            if ["String", "Regex"].iter().any(|kind| pattern[kind].as_str() == Some("")) {
                return Err(format!("the pattern of {kind} in its {part} is empty"));
            }
            if kind == "Replace" {
                *growth = growth.saturating_mul(length(&stage["content"]).max(1));
            }
        }
        // A short text may consist of little else.
        "Prepend" => *growth = growth.saturating_mul(length(&stage["prepend"]).max(1)),
        "FixedLength" if stage["length"].as_u64() == Some(0) => {
            return Err(format!("the length of {kind} in its {part} is 0"));
        }
        "Precompiled" => charsmap(&stage["precompiled_charsmap"])
            .map_err(|problem| format!("the precompiled_charsmap of its {part} {problem}"))?,
        _ => {}
    }
    Ok(())
}

fn length(text: &Value) -> u64 {
    text.as_str().unwrap_or_default().len() as u64
}

/// A map begins with the number of bytes of its tree, and has at least so many behind that.
fn charsmap(map: &Value) -> Result<(), String> {
    // What is of another form, its reader refuses.
    let Some(Ok(bytes)) = map.as_str().map(|text| STANDARD.decode(text)) else { return Ok(()) };
    let Some((size, rest)) = bytes.split_first_chunk() else {
        return Err(format!("has {} bytes, expected at least 4", bytes.len()));
    };
    let size = u32::from_le_bytes(*size);
    match size {
        0..4 => Err("has an empty tree".into()),
        _ if size as usize > rest.len() => {
            Err(format!("announces a tree of {size} bytes, and {} follow", rest.len()))
        }
        _ => Ok(()),
    }
}

/// Refuses merges at which crate `tokenizers` panics: they have parts of which one is shorter than the prefix that it is to have, or
/// come to more than any token of the vocabulary.
fn merges(tokenizer: &str) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(serde::Deserialize)]
    struct Model {
        #[serde(default)]
        continuing_subword_prefix: Option<String>,
        #[serde(default)]
        vocab: serde_json::Value,
        #[serde(default)]
        merges: Vec<Merge>,
    }
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Pair(String, String),
        Line(String),
    }
    // What is of another form, its reader refuses.
    let Ok(File { model }) = serde_json::from_str::<File>(tokenizer) else { return Ok(()) };
    let Some(vocabulary) = model.vocab.as_object() else { return Ok(()) };
    let prefix = model.continuing_subword_prefix.unwrap_or_default();
    for merge in &model.merges {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Line(line) => line.split_once(' ').unwrap_or((line, "")),
        };
        let whole = right.get(prefix.len()..).map(|right| format!("{left}{right}"));
        if !whole.is_some_and(|whole| vocabulary.contains_key(&whole)) {
            return Err(format!("its merge of {left:?} and {right:?} is no token of the vocabulary"));
        }
    }
    Ok(())
}
