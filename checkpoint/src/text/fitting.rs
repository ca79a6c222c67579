//! What crate `tokenizers` does not check in a tokenizer.json: at these it panics, asks for gigabytes, or does not end.
//!
//! [`fitted`] walks every stage of the file, knows its type, and takes the product of how many times as long each may make a text. Where a
//! stage has no type, or one that is unknown, the crate's reader goes by the fields that it has, so such a stage is refused.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use doorbell_lm::limits::{JSON_BYTES, TOKENIZER_GROWTH};
use serde_json::Value;

/// Letters of a word that a WordPiece model may search for tokens: it takes the third power of them. BERT's has 100.
const WORD: u64 = 1000;
/// Bytes of a token's text that count as one token: the crate keeps about as much beside it for each token of a text.
const TEXT_OF_A_TOKEN: u64 = 64;
/// The longest grapheme that a `Precompiled` looks up in its map.
const GRAPHEME: usize = 5;

/// Reads a tokenizer.json, and refuses one with one of them. What was checked is what is given: where a field is there twice, the last
/// one.
///
/// What a training script cut and padded its batches to is no part of the text, and neither is the chance with which it left out merges:
/// they are taken out.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn fitted(tokenizer: &str) -> Result<Value, String> {
    let mut file: Value = serde_json::from_str(tokenizer).map_err(|error| error.to_string())?;
    let Some(fields) = file.as_object_mut() else {
        return Err("tokenizer.json is no object".into());
    };
    fields.remove("truncation");
    fields.remove("padding");
    if let Some(Value::Object(model)) = fields.get_mut("model") {
        model.remove("dropout");
        // Files of before types were written have merges, which no other model has.
        if !model.contains_key("type") && model.contains_key("merges") {
            model.insert("type".into(), "BPE".into());
        }
    }
    let mut walk = Walk { most: TOKENIZER_GROWTH.value()?, stages: 0 };
    let normalizer = walk.part(&mut file, &NORMALIZER)?;
    let pre_tokenizer = walk.part(&mut file, &PRE_TOKENIZER)?;
    let model = model(&file["model"])?;
    let processor = walk.processor(&file["post_processor"], "post_processor")?;
    let decoder = walk.part(&mut file, &DECODER)?;
    let exceeded = || TOKENIZER_GROWTH.exceeded(walk.most);
    let all = [normalizer, pre_tokenizer, model, processor.copies];
    if all.into_iter().fold(1, u64::saturating_mul) > walk.most {
        let [normalizer, pre_tokenizer, model, copies] = all;
        return Err(format!(
            "tokenizer.json: its stages make a text longer (normalizer {normalizer} times, pre_tokenizer {pre_tokenizer}, model {model}, \
             post_processor {copies}): {}",
            exceeded()
        ));
    }
    if processor.tokens > walk.most {
        return Err(format!(
            "tokenizer.json: its post_processor puts {} tokens around a text: {}",
            processor.tokens,
            exceeded()
        ));
    }
    if decoder > walk.most {
        return Err(format!("tokenizer.json: its decoder makes a text longer: {}", exceeded()));
    }
    tokens(&file, normalizer, decoder, walk.most)?;
    Ok(file)
}

/// A part of the file whose stages take texts.
struct Part {
    /// Its field.
    name: &'static str,
    /// The field of a sequence's stages.
    inner: &'static str,
    /// What a stage of a type makes of a byte at most, in bytes, unless it depends on the stage's fields.
    types: &'static [(&'static str, u64)],
}

// By Unicode 16, U+FDFA becomes 11 times as long in the forms for compatibility, and U+1D160 3 times in the others; U+0130 half as long
// again in lower case. BertNormalizer puts blanks around some letters, and may do the other two.
const NORMALIZER: Part = Part {
    name: "normalizer",
    inner: "normalizers",
    types: &[
        ("Strip", 1),
        ("StripAccents", 1),
        ("NFC", 3),
        ("NFD", 3),
        ("NFKC", 11),
        ("NFKD", 11),
        ("Lowercase", 2),
        ("Nmt", 1),
        ("ByteLevel", 2),
    ],
};
const PRE_TOKENIZER: Part = Part {
    name: "pre_tokenizer",
    inner: "pretokenizers",
    types: &[
        ("BertPreTokenizer", 1),
        ("CharDelimiterSplit", 1),
        ("Whitespace", 1),
        ("Split", 1),
        ("Punctuation", 1),
        ("WhitespaceSplit", 1),
        ("Digits", 1),
        ("UnicodeScripts", 1),
        ("FixedLength", 1),
    ],
};
// What is no letter becomes U+FFFD, which has three bytes.
const DECODER: Part = Part {
    name: "decoder",
    inner: "decoders",
    types: &[
        ("ByteLevel", 3),
        ("WordPiece", 2),
        ("Metaspace", 1),
        ("Fuse", 1),
        ("Strip", 1),
        ("ByteFallback", 1),
    ],
};

/// What a post-processor makes of a text.
struct Processed {
    /// How many times it has the text.
    copies: u64,
    /// Tokens around it.
    tokens: u64,
}

struct Walk {
    most: u64,
    stages: u64,
}

impl Walk {
    fn part(&mut self, file: &mut Value, part: &Part) -> Result<u64, String> {
        match file.get_mut(part.name) {
            None | Some(Value::Null) => Ok(1),
            Some(stage) => self.stage(stage, part, part.name),
        }
    }

    /// The type of a stage. Each stage takes time for the whole text, so there are so many at most.
    fn kind<'v>(&mut self, stage: &'v Value, at: &str) -> Result<&'v str, String> {
        self.stages += 1;
        if self.stages > self.most {
            let exceeded = TOKENIZER_GROWTH.exceeded(self.most);
            return Err(format!("tokenizer.json has more than {} stages: {exceeded}", self.most));
        }
        stage["type"].as_str().ok_or_else(|| {
            format!("tokenizer.json: {at} has no type, expected an object with a text as its \"type\"")
        })
    }

    /// How many times as long a stage, or a sequence of them, makes a text.
    fn stage(&mut self, stage: &mut Value, part: &Part, at: &str) -> Result<u64, String> {
        let Part { name, inner, types } = *part;
        let kind = self.kind(stage, at)?;
        let named = |field: &str| length(&stage[field]);
        Ok(match (name, kind) {
            (_, "Sequence") => {
                let Some(stages) = stage[inner].as_array_mut() else {
                    return Err(format!("tokenizer.json: {at} has no list {inner:?}"));
                };
                let mut growth = 1_u64;
                for (number, inside) in stages.iter_mut().enumerate() {
                    let at = format!("{at}.{inner}[{number}]");
                    growth = growth.saturating_mul(self.stage(inside, part, &at)?);
                }
                growth
            }
            // The reader's name of it, and the one that is written.
            ("normalizer", "Bert" | "BertNormalizer") => {
                stage["type"] = "Bert".into();
                12
            }
            // Each piece of a text between two added tokens gets it, and such a piece may be one letter.
            ("normalizer", "Prepend") => named("prepend").saturating_add(1),
            ("normalizer", "Precompiled") => charsmap(&stage["precompiled_charsmap"])
                .map_err(|problem| format!("the precompiled_charsmap of its {name} {problem}"))?,
            ("normalizer" | "decoder", "Replace") | ("pre_tokenizer", "Split") => {
                let pattern = &stage["pattern"];
                if ["String", "Regex"].iter().any(|kind| pattern[kind].as_str() == Some("")) {
                    return Err(format!("the pattern of {kind} in its {name} is empty"));
                }
                match length(&pattern["String"]) {
                    _ if kind == "Split" => 1,
                    // An expression may match between any two letters.
                    0 => named("content").saturating_add(1),
                    length => named("content").div_ceil(length).max(1),
                }
            }
            // Each piece may get a blank, and a byte becomes a letter of two.
            ("pre_tokenizer", "ByteLevel") => {
                if stage["add_prefix_space"] == false {
                    2
                } else {
                    4
                }
            }
            ("pre_tokenizer", "Metaspace") => named("replacement").saturating_add(1),
            ("pre_tokenizer", "FixedLength") if stage["length"].as_u64() == Some(0) => {
                return Err(format!("the length of {kind} in its {name} is 0"));
            }
            // Where these are empty, a blank comes before and behind each letter.
            ("decoder", "BPEDecoder") => {
                if named("suffix") == 0 {
                    3
                } else {
                    1
                }
            }
            ("decoder", "CTC") => {
                if named("word_delimiter_token") == 0 {
                    3
                } else {
                    1
                }
            }
            (_, kind) => match types.iter().find(|(known, _)| *known == kind) {
                Some((_, growth)) => *growth,
                None => return Err(unknown(at, kind)),
            },
        })
    }

    /// The crate's reader chooses a post-processor by its fields, whatever the type, and so does this.
    fn processor(&mut self, stage: &Value, at: &str) -> Result<Processed, String> {
        let mut all = Processed { copies: 1, tokens: 0 };
        if stage.is_null() {
            return Ok(all);
        }
        let kind = self.kind(stage, at)?;
        let known = ["RobertaProcessing", "BertProcessing", "ByteLevel", "TemplateProcessing", "Sequence"]
            .contains(&kind);
        if !known {
            return Err(unknown(at, kind));
        }
        for (number, inside) in stage["processors"].as_array().into_iter().flatten().enumerate() {
            let inside = self.processor(inside, &format!("{at}.processors[{number}]"))?;
            all.copies = all.copies.saturating_mul(inside.copies);
            all.tokens = all.tokens.saturating_add(inside.tokens);
        }
        for text in ["sep", "cls"] {
            let tokens = length(&stage[text][0]).div_ceil(TEXT_OF_A_TOKEN).saturating_mul(2);
            all.tokens = all.tokens.saturating_add(tokens);
        }
        let (mut copies, mut tokens) = (1, 0_u64);
        for template in ["single", "pair"] {
            let pieces = stage[template].as_array().map(Vec::as_slice).unwrap_or_default();
            let special = pieces.iter().filter(|piece| piece.get("Sequence").is_none());
            let texts = pieces.len() - special.clone().count();
            copies = copies.max(texts as u64);
            let around = special.map(|piece| self::special(piece, stage)).fold(0, u64::saturating_add);
            tokens = tokens.max(around);
        }
        all.copies = all.copies.saturating_mul(copies);
        all.tokens = all.tokens.saturating_add(tokens);
        Ok(all)
    }
}

fn unknown(at: &str, kind: &str) -> String {
    format!("tokenizer.json: {at} is of type {kind:?}, which is unknown")
}

/// Tokens of one piece of a template, which names them, or has them in the place of the name.
fn special(piece: &Value, processor: &Value) -> u64 {
    let piece = &piece["SpecialToken"];
    let name = if piece.is_array() { &piece[0] } else { &piece["id"] };
    let token = name.as_str().map_or(&Value::Null, |name| &processor["special_tokens"][name]);
    let field = |name: &str, place: usize| {
        let field = if token.is_array() { &token[place] } else { &token[name] };
        field.as_array().map(Vec::as_slice).unwrap_or_default()
    };
    let (ids, texts) = (field("ids", 1), field("tokens", 2));
    let bytes = texts.iter().map(length).fold(0, u64::saturating_add);
    (ids.len().max(texts.len()) as u64).max(bytes.div_ceil(TEXT_OF_A_TOKEN))
}

fn length(text: &Value) -> u64 {
    text.as_str().unwrap_or_default().len() as u64
}

/// Refuses a model that does not end, and tells how many times as long it makes a text. The crate keeps a text for each token that it
/// makes: of a letter that it does not know, the one of the unknown token.
fn model(model: &Value) -> Result<u64, String> {
    let at = "model";
    let Some(kind) = model["type"].as_str() else {
        return Err(format!(
            "tokenizer.json: {at} has no type, expected an object with a text as its \"type\""
        ));
    };
    match kind {
        "BPE" => merges(model)?,
        "WordPiece" => {
            let letters = model["max_input_chars_per_word"].as_u64().unwrap_or(0);
            if letters > WORD {
                return Err(format!(
                    "tokenizer.json: {at}.max_input_chars_per_word is {letters}, expected at most {WORD}"
                ));
            }
        }
        "WordLevel" => {}
        "Unigram" => return Ok(1),
        kind => return Err(unknown(at, kind)),
    }
    let texts = ["unk_token", "continuing_subword_prefix", "end_of_word_suffix"];
    let longest = texts.into_iter().map(|text| length(&model[text])).max().unwrap_or(0);
    Ok(longest.div_ceil(TEXT_OF_A_TOKEN).max(1))
}

/// Refuses tokens whose texts are too long once a decoder has made them longer, and added tokens that are so once a normaliser has.
fn tokens(file: &Value, normalizer: u64, decoder: u64, most: u64) -> Result<(), String> {
    let added = || file["added_tokens"].as_array().into_iter().flatten().map(|token| &token["content"]);
    let json = JSON_BYTES.value()?;
    if added().map(length).fold(0, u64::saturating_add).saturating_mul(normalizer) > json {
        return Err(format!(
            "tokenizer.json: its normalizer makes its added_tokens longer: {}",
            JSON_BYTES.exceeded(json)
        ));
    }
    // Models whose tokens have scores list them.
    let vocabulary = &file["model"]["vocab"];
    let named = vocabulary.as_object().into_iter().flatten().map(|(text, _)| text.len() as u64);
    let scored = vocabulary.as_array().into_iter().flatten().map(|token| length(&token[0]));
    let longest = named.chain(scored).chain(added().map(length)).max().unwrap_or(0);
    // A stage may make that many bytes of one, so this is a token of as many bytes.
    let said = longest.saturating_mul(decoder);
    if said > most.saturating_mul(most) {
        return Err(format!(
            "tokenizer.json: a token of its vocabulary says up to {said} bytes, expected at most {}: {}",
            most.saturating_mul(most),
            TOKENIZER_GROWTH.exceeded(most)
        ));
    }
    Ok(())
}

/// How many times as long a map makes a text. It begins with the number of bytes of its tree, and has at least so many behind that; then
/// come texts, each with a NUL at its end.
fn charsmap(map: &Value) -> Result<u64, String> {
    // What is of another form, its reader refuses.
    let Some(Ok(bytes)) = map.as_str().map(|text| STANDARD.decode(text)) else { return Ok(1) };
    let Some((size, rest)) = bytes.split_first_chunk() else {
        return Err(format!("has {} bytes, expected at least 4", bytes.len()));
    };
    let size = u32::from_le_bytes(*size);
    match size {
        0..4 => return Err("has an empty tree".into()),
        _ if size as usize > rest.len() => {
            return Err(format!("announces a tree of {size} bytes, and {} follow", rest.len()));
        }
        _ => {}
    }
    // Its reader takes whole words.
    let (tree, texts) = rest.split_at(size as usize / 4 * 4);
    let tree: Vec<u32> =
        tree.chunks_exact(4).map(|word| u32::from_le_bytes(std::array::from_fn(|byte| word[byte]))).collect();
    Ok(growth(&tree, texts))
}

/// How many times as long the longest text for a key is as the key, among the keys that are looked up: of any, the shortest beginning.
///
/// The tree is a double array: a node is a place, and its child by a byte is the word at place ^ byte if that has the byte as its label.
fn growth(tree: &[u32], texts: &[u8]) -> u64 {
    let ends: Vec<usize> = (0..texts.len()).filter(|&place| texts[place] == 0).collect();
    let length = |begin: usize| {
        let end = ends.get(ends.partition_point(|&end| end < begin)).copied().unwrap_or(texts.len());
        end.saturating_sub(begin)
    };
    let next = |word: u32| ((word >> 10) << ((word & (1 << 9)) >> 6)) as usize;
    let mut growth = 1;
    let mut level = HashSet::from([tree.first().map_or(0, |&root| next(root))]);
    for bytes in 1..=GRAPHEME {
        let mut below = HashSet::new();
        for (place, &word) in tree.iter().enumerate() {
            let label = word & (1 << 31 | 0xFF);
            if !(1..=0xFF).contains(&label) || !level.contains(&(place ^ label as usize)) {
                continue;
            }
            let node = place ^ next(word);
            if word >> 8 & 1 == 0 {
                below.insert(node);
            } else if let Some(value) = tree.get(node) {
                growth = growth.max(length((value & !(1 << 31)) as usize).div_ceil(bytes));
            }
        }
        level = below;
    }
    growth as u64
}

/// Refuses merges at which crate `tokenizers` panics: they have parts of which one is shorter than the prefix that it is to have, or
/// come to more than any token of the vocabulary.
fn merges(model: &Value) -> Result<(), String> {
    // What is of another form, its reader refuses.
    let (Some(vocabulary), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array()) else {
        return Ok(());
    };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    let mut whole = String::new();
    for merge in merges {
        let pair = match merge {
            Value::String(line) => Some(line.split_once(' ').unwrap_or((line, ""))),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let Some((left, right)) = pair else { return Ok(()) };
        whole.clear();
        whole.push_str(left);
        let known = right.get(prefix.len()..).is_some_and(|right| {
            whole.push_str(right);
            vocabulary.contains_key(&whole)
        });
        if !known {
            return Err(format!("its merge of {left:?} and {right:?} is no token of the vocabulary"));
        }
    }
    Ok(())
}
