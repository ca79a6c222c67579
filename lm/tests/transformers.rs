//! What `transformers` makes of files, the importer and the chat path make of them too: `transformers/cases.json` has both, and
//! `transformers/cases.py` beside it writes that.
#![cfg(all(feature = "import", feature = "text"))]

use std::fs;
use std::path::Path;

use doorbell_lm::import;
use doorbell_lm::text::Text;
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
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1,
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
        fs::write(directory.path().join(file), text).unwrap();
    }
    let text = match import(directory.path()) {
        Ok(imported) => Text::new(&imported.about, vocabulary).unwrap(),
        Err(error) => return vec![error.to_string()],
    };
    let mut told = vec![];
    for answer in case["answers"].as_array().unwrap() {
        let says = answer["says"].as_str().unwrap();
        let raw = text.encode(says).unwrap();
        if raw != tokens(&answer["raw"]) {
            told.push(format!("raw {says:?}: {raw:?} for {}", answer["raw"]));
        }
        if answer["text"].is_null() && answer["refused"].is_null() {
            assert!(!text.chats());
            continue;
        }
        match (text.chat(says), answer["text"].as_str()) {
            (Ok(chat), Some(expected)) if chat == expected => {
                assert_eq!(text.encode_chat(&chat).unwrap(), tokens(&answer["chat"]));
            }
            (Err(error), None) => assert!(error.to_string().ends_with("with --raw"), "{error}"),
            (chat, expected) => told.push(format!("chat {says:?}:\n  {chat:?} for\n  {expected:?}")),
        }
    }
    told
}

#[test]
fn files_become_what_transformers_makes_of_them() {
    let cases: Value = serde_json::from_str(include_str!("transformers/cases.json")).unwrap();
    let list = cases["cases"].as_array().unwrap();
    assert!(list.len() > 60);
    let mut told = vec![];
    for case in list {
        let found = differences(case, &cases["tokenizer"]);
        told.extend(found.into_iter().map(|difference| format!("{}: {difference}", case["name"])));
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
}
