//! What `transformers` makes of files, the importer and the chat path make of them too: `transformers/cases.json` has both, and
//! `transformers/cases.py` beside it writes that.

use std::fs;
use std::path::Path;

use doorbell_checkpoint::text::Text;
use doorbell_checkpoint::{import, import_gguf};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

/// The columns of each matrix of a layer, and its rows.
const PARTS: [(&str, usize, usize); 9] = [
    ("input_layernorm", 0, 32),
    ("self_attn.q_proj", 32, 32),
    ("self_attn.k_proj", 32, 32),
    ("self_attn.v_proj", 32, 32),
    ("self_attn.o_proj", 32, 32),
    ("post_attention_layernorm", 0, 32),
    ("mlp.gate_proj", 32, 32),
    ("mlp.up_proj", 32, 32),
    ("mlp.down_proj", 32, 32),
];

/// A model of one layer without any weights, whose tokens are `vocabulary` many.
fn write_model(directory: &Path, vocabulary: usize) {
    let config = json!({
        "model_type": "llama", "tie_word_embeddings": true, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 32, "vocab_size": vocabulary,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "bos_token_id": 0,
    });
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let zeros = vec![0; 4 * 32 * vocabulary];
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, 32]),
        ("model.norm.weight".to_owned(), vec![32]),
    ];
    shapes.extend(PARTS.map(|(name, rows, columns)| {
        let shape = if rows == 0 { vec![columns] } else { vec![rows, columns] };
        (format!("model.layers.0.{name}.weight"), shape)
    }));
    let views = shapes.into_iter().map(|(name, shape)| {
        let bytes = 4 * shape.iter().product::<usize>();
        (name, TensorView::new(Dtype::F32, shape, &zeros[..bytes]).unwrap())
    });
    fs::write(directory.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
}

fn tokens(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// What differs of a case.
fn differences(case: &Value, base: &Value) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let vocabulary = base["model"]["vocab"].as_object().unwrap().len();
    // Room for tokens that are added.
    let vocabulary = vocabulary + 10;
    write_model(directory.path(), vocabulary);
    for (file, content) in case["files"].as_object().unwrap() {
        let text = match (file.as_str(), content) {
            ("tokenizer.json", Value::Object(change)) => {
                let mut whole = base.clone();
                whole.as_object_mut().unwrap().extend(change.clone());
                whole.to_string()
            }
            (_, Value::String(text)) => text.clone(),
            (_, content) => content.to_string(),
        };
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    match (import(directory.path()), case["refused"].as_str()) {
        (Ok(imported), None) => {
            let mut told = compared(&Text::new(&imported.about, vocabulary).unwrap(), case);
            if let [end] = tokens(&case["ends"])[..]
                && imported.about.ends != [end]
            {
                told.push(format!("ends {:?} for {end}", imported.about.ends));
            }
            told
        }
        (Ok(_), Some(refused)) => vec![format!("it is taken, and refused there: {refused}")],
        (Err(error), None) => vec![error.to_string()],
        (Err(_), Some(_)) => vec![],
    }
}

/// The answers of a case that are others.
fn compared(text: &Text, case: &Value) -> Vec<String> {
    let mut told = vec![];
    for answer in case["answers"].as_array().unwrap() {
        let says = answer["says"].as_str().unwrap();
        let raw = text.encode(says).unwrap();
        if raw != tokens(&answer["raw"]) {
            told.push(format!("raw {says:?}: {raw:?} for {}", answer["raw"]));
        }
        let decoded = text.decode(&raw).unwrap();
        if answer["decoded"] != decoded {
            told.push(format!("text of {raw:?}: {decoded:?} for {}", answer["decoded"]));
        }
        if answer["text"].is_null() && answer["refused"].is_null() {
            assert!(!text.chats());
            continue;
        }
        let chat = match case["tools"].as_str() {
            None => text.chat(says),
            Some(tools) => {
                let tools: minijinja::Value = serde_json::from_str(tools).unwrap();
                let message = minijinja::context! { role => "user", content => says };
                text.chat_of(&[message], &tools, None)
            }
        };
        match (chat, answer["text"].as_str()) {
            (Ok(chat), Some(expected)) if chat == expected => {
                assert_eq!(text.encode_chat(&chat).unwrap(), tokens(&answer["chat"]));
            }
            (Err(error), None) => assert!(error.to_string().ends_with("with --raw"), "{error}"),
            (chat, expected) => told.push(format!("chat {says:?}:\n  {chat:?} for\n  {expected:?}")),
        }
    }
    told
}

/// A value of GGUF: its type, and its bytes.
type Held = (u32, Vec<u8>);

fn count(value: u64) -> Held {
    (4, (value as u32).to_le_bytes().to_vec())
}

fn string(text: &str) -> Held {
    let length = (text.len() as u64).to_le_bytes();
    (8, [&length, text.as_bytes()].concat())
}

fn array(kind: u32, items: &[Vec<u8>]) -> Held {
    let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    (9, [head, items.concat()].concat())
}

/// The same model and tokeniser as a GGUF file with this template, if GGUF can say what the case does.
fn gguf(case: &Value, base: &Value) -> Option<Vec<u8>> {
    let change = &case["files"]["tokenizer.json"];
    let config: Value = serde_json::from_str(case["files"]["tokenizer_config.json"].as_str()?).unwrap();
    let config = config.as_object().unwrap();
    let known = ["tokenizer_class", "bos_token", "eos_token", "chat_template"];
    let plain = change.as_object().unwrap().keys().all(|key| key == "added_tokens")
        && change["added_tokens"].as_array().is_none_or(|added| !added.is_empty())
        && case["files"].as_object().unwrap().len() == 2
        && case["tools"].is_null()
        && config.keys().all(|key| known.contains(&key.as_str()))
        && config.get("bos_token") == Some(&"<s>".into())
        && config.get("eos_token") == Some(&"</s>".into());
    let template = config.get("chat_template")?.as_str().filter(|_| plain)?;
    let vocabulary = base["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![""; vocabulary.len()];
    for (token, id) in vocabulary {
        tokens[id.as_u64().unwrap() as usize] = token;
    }
    let added = change["added_tokens"].as_array().or(base["added_tokens"].as_array()).unwrap();
    let kind = |token: &str| match added.iter().find(|added| added["content"] == token) {
        Some(added) if added["special"] == true => 3u32,
        Some(_) => 4,
        None => 1,
    };
    let merges = base["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|merge| format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
    let keys = [
        ("general.architecture", string("llama")),
        ("llama.block_count", count(1)),
        ("llama.context_length", count(1024)),
        ("llama.embedding_length", count(32)),
        ("llama.feed_forward_length", count(32)),
        ("llama.attention.head_count", count(1)),
        ("llama.attention.layer_norm_rms_epsilon", (6, 1e-5f32.to_le_bytes().to_vec())),
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.pre", string("gpt-2")),
        ("tokenizer.ggml.tokens", array(8, &tokens.iter().map(|token| string(token).1).collect::<Vec<_>>())),
        (
            "tokenizer.ggml.token_type",
            array(5, &tokens.iter().map(|token| kind(token).to_le_bytes().to_vec()).collect::<Vec<_>>()),
        ),
        ("tokenizer.ggml.merges", array(8, &merges.map(|merge| string(&merge).1).collect::<Vec<_>>())),
        ("tokenizer.ggml.bos_token_id", count(0)),
        ("tokenizer.ggml.eos_token_id", count(1)),
        ("tokenizer.chat_template", string(template)),
    ];
    let square = vec![32u64, 32];
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![32, tokens.len() as u64]),
        ("output_norm.weight".to_owned(), vec![32]),
    ];
    for name in ["attn_norm", "ffn_norm"] {
        tensors.push((format!("blk.0.{name}.weight"), vec![32]));
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        tensors.push((format!("blk.0.{name}.weight"), square.clone()));
    }
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for (key, (kind, held)) in keys {
        bytes.extend(string(key).1);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(held);
    }
    let mut offset = 0;
    for (name, dimensions) in &tensors {
        bytes.extend(string(name).1);
        bytes.extend((dimensions.len() as u32).to_le_bytes());
        bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(u64::to_le_bytes(offset));
        offset += 4 * dimensions.iter().product::<u64>();
    }
    bytes.resize(bytes.len().next_multiple_of(32) + offset as usize, 0);
    Some(bytes)
}

#[test]
fn files_become_what_transformers_makes_of_them() {
    let cases: Value = serde_json::from_str(include_str!("transformers/cases.json")).unwrap();
    let list = cases["cases"].as_array().unwrap();
    assert!(list.len() > 80);
    let mut told = vec![];
    for case in list {
        let found = differences(case, &cases["tokenizer"]);
        told.extend(found.into_iter().map(|difference| format!("{}: {difference}", case["name"])));
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
}

/// A GGUF file that says the same as a directory gives the same tokens.
#[test]
fn gguf_files_become_the_same() {
    let cases: Value = serde_json::from_str(include_str!("transformers/cases.json")).unwrap();
    let mut told = vec![];
    let mut files = 0;
    for case in cases["cases"].as_array().unwrap() {
        let Some(bytes) = gguf(case, &cases["tokenizer"]) else { continue };
        files += 1;
        let imported = import_gguf(&bytes, "file").unwrap();
        assert_eq!(imported.about.ends, [1]);
        let text = Text::new(&imported.about, imported.model.shape.vocabulary).unwrap();
        let found = compared(&text, case);
        told.extend(found.into_iter().map(|difference| format!("{}: {difference}", case["name"])));
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
    assert!(files > 35, "{files}");
}
