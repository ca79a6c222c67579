//! Files as others write them: both formats give the same model, and what is malformed is told, without a panic and without a giant allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_checkpoint::text::Text;
use doorbell_checkpoint::{Imported, import, import_gguf};
use doorbell_lm::judge::published;
use doorbell_lm::{MICRO_ROPE_BASE, float, micro, quantise};
use proptest::prelude::*;
use rstest::rstest;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

/// Remembers the largest allocation.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all of it is the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// What no file of this size has a reason for.
const GIANT: usize = 16 << 20;

fn model() -> float::Model {
    published(&micro().model, MICRO_ROPE_BASE, None)
}

/// A value of GGUF.
#[derive(Clone, Copy)]
enum Held<'t> {
    Count(u32),
    Number(f32),
    Text(&'t str),
    Texts(&'t [&'t str]),
    Counts(&'t [i32]),
    Unsigned(&'t [i32]),
    Bytes(&'t [i32]),
    Bool(bool),
    /// Of this type: 0 to 5, 10 or 11.
    Integer(u32, u64),
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A tensor: name, dimensions with that of neighbours first, type, bytes.
type Tensor = (String, Vec<u64>, u32, Vec<u8>);

fn gguf(keys: &[(&str, Held<'_>)], tensors: &[Tensor]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for (key, held) in keys {
        text(&mut bytes, key);
        let mut array = |kind: u32, count: usize| {
            bytes.extend(9u32.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend((count as u64).to_le_bytes());
        };
        match held {
            Held::Count(count) => bytes.extend([4u32, *count].iter().flat_map(|word| word.to_le_bytes())),
            Held::Number(number) => {
                bytes.extend([6u32, number.to_bits()].iter().flat_map(|word| word.to_le_bytes()))
            }
            Held::Text(held) => {
                bytes.extend(8u32.to_le_bytes());
                text(&mut bytes, held);
            }
            Held::Texts(texts) => {
                array(8, texts.len());
                texts.iter().for_each(|held| text(&mut bytes, held));
            }
            Held::Bool(held) => {
                bytes.extend(7u32.to_le_bytes());
                bytes.push((*held).into());
            }
            Held::Integer(kind, value) => {
                bytes.extend(kind.to_le_bytes());
                let length = match kind {
                    0 | 1 => 1,
                    2 | 3 => 2,
                    4 | 5 => 4,
                    _ => 8,
                };
                bytes.extend(&value.to_le_bytes()[..length]);
            }
            Held::Unsigned(counts) => {
                array(4, counts.len());
                bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            }
            Held::Bytes(counts) => {
                array(0, counts.len());
                bytes.extend(counts.iter().map(|&count| count as u8));
            }
            Held::Counts(counts) => {
                array(5, counts.len());
                bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            }
        }
    }
    let mut offset = 0u64;
    for (name, dimensions, kind, content) in tensors {
        text(&mut bytes, name);
        bytes.extend((dimensions.len() as u32).to_le_bytes());
        bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset += (content.len() as u64).next_multiple_of(32);
    }
    for (.., content) in tensors {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(content);
    }
    bytes
}

const TOKENS: [&str; 64] = {
    let mut tokens = ["Ġz"; 64];
    let letters = [
        "<|end|>", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r",
        "s", "t", "u", "v", "w", "x", "y", "z", "Ġ", "0", "1", "2", "Ġa", "an",
    ];
    let mut k = 0;
    while k < letters.len() {
        tokens[k] = letters[k];
        k += 1;
    }
    // Names of their own, as a vocabulary has.
    let rest = [
        "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T",
        "U", "V", "W", "X", "Y", "Z", "3", "4", "5", "6", "7",
    ];
    let mut k = 0;
    while k < rest.len() {
        tokens[letters.len() + k] = rest[k];
        k += 1;
    }
    tokens
};

const KINDS: [i32; 64] = {
    let mut kinds = [1; 64];
    kinds[0] = 3;
    kinds
};

const KEYS: [(&str, Held<'static>); 18] = [
    ("general.architecture", Held::Text("llama")),
    ("general.name", Held::Text("Micro")),
    ("general.license", Held::Text("mit")),
    ("llama.block_count", Held::Count(4)),
    ("llama.context_length", Held::Count(1024)),
    ("llama.embedding_length", Held::Count(32)),
    ("llama.feed_forward_length", Held::Count(32)),
    ("llama.attention.head_count", Held::Count(2)),
    ("llama.attention.head_count_kv", Held::Count(1)),
    ("llama.attention.key_length", Held::Count(32)),
    ("llama.attention.layer_norm_rms_epsilon", Held::Number(1e-5)),
    ("llama.rope.freq_base", Held::Number(10_000.0)),
    ("tokenizer.ggml.model", Held::Text("gpt2")),
    ("tokenizer.ggml.pre", Held::Text("smollm")),
    ("tokenizer.ggml.tokens", Held::Texts(&TOKENS)),
    ("tokenizer.ggml.token_type", Held::Counts(&KINDS)),
    ("tokenizer.ggml.merges", Held::Texts(&["Ġ a", "a n"])),
    ("tokenizer.ggml.eos_token_id", Held::Count(0)),
];

/// The parts of a layer in the order of the formats' names, with their columns.
fn parts(layer: &float::Layer) -> [(&[f32], usize); 9] {
    let own = layer.key_value.as_ref().unwrap();
    [
        (&layer.attention_gain, 32),
        (&layer.query, 32),
        (&own.key, 32),
        (&own.value, 32),
        (&layer.output, 64),
        (&layer.hidden_gain, 32),
        (&layer.gate, 32),
        (&layer.up, 32),
        (&layer.down, 32),
    ]
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn tensors(model: &float::Model) -> Vec<Tensor> {
    const NAMES: [&str; 9] = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let tensor = |name: String, values: &[f32], columns: usize| {
        let mut dimensions = vec![columns as u64];
        if values.len() != columns {
            dimensions.push((values.len() / columns) as u64);
        }
        (name, dimensions, 0, bytes_of(values))
    };
    let mut tensors = vec![
        tensor("token_embd.weight".into(), &model.tokens, 32),
        tensor("output_norm.weight".into(), &model.last_gain, 32),
    ];
    for (number, layer) in model.layers.iter().enumerate() {
        for ((values, columns), name) in parts(layer).into_iter().zip(NAMES) {
            tensors.push(tensor(format!("blk.{number}.{name}.weight"), values, columns));
        }
    }
    tensors
}

fn file() -> Vec<u8> {
    gguf(&KEYS, &tensors(&model()))
}

/// Rows in the order of Hugging Face: those that are rotated together lie half a head apart.
fn halves(rows: &[f32], columns: usize) -> Vec<f32> {
    let of = |half: usize, head: &[f32]| -> Vec<f32> {
        head.chunks(columns).skip(half).step_by(2).flatten().copied().collect()
    };
    rows.chunks(32 * columns).flat_map(|head| [of(0, head), of(1, head)].concat()).collect()
}

fn config() -> Value {
    json!({
        "model_type": "llama", "tie_word_embeddings": true, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 32,
        "vocab_size": 64, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "eos_token_id": [0, 2],
    })
}

fn write_directory(directory: &Path, config: &Value) {
    const NAMES: [&str; 9] = [
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ];
    let model = model();
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![64, 32], bytes_of(&model.tokens)),
        ("model.norm.weight".to_owned(), vec![32], bytes_of(&model.last_gain)),
    ];
    for (number, layer) in model.layers.iter().enumerate() {
        for ((values, columns), name) in parts(layer).into_iter().zip(NAMES) {
            let values = if name.ends_with("q_proj") || name.ends_with("k_proj") {
                halves(values, columns)
            } else {
                values.to_vec()
            };
            let shape =
                if values.len() == columns { vec![columns] } else { vec![values.len() / columns, columns] };
            tensors.push((format!("model.layers.{number}.{name}.weight"), shape, bytes_of(&values)));
        }
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    fs::write(directory.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("tokenizer.json"), &micro().about.tokenizer).unwrap();
    fs::write(directory.join("tokenizer_config.json"), r#"{"chat_template": "{{ messages }}"}"#).unwrap();
    fs::write(directory.join("README.md"), "---\ntags: [one]\nlicense: mit\n---\nlicense: other\n").unwrap();
}

fn same(a: &float::Model, b: &float::Model) {
    assert_eq!((a.shape, a.rope_base), (b.shape, b.rope_base));
    assert!((a.epsilon - b.epsilon).abs() < 1e-6);
    assert_eq!((&a.tokens, &a.last_gain), (&b.tokens, &b.last_gain));
    for (a, b) in a.layers.iter().zip(&b.layers) {
        assert_eq!(parts(a), parts(b));
    }
}

#[test]
fn both_formats_give_the_same_model() {
    let exact = model();
    let Imported { model, about, notes } = import_gguf(&file(), "file").unwrap();
    assert_eq!(notes, [""; 0]);
    same(&exact, &model);
    assert_eq!(
        (about.name.as_str(), about.licence.as_str(), &about.ends[..], about.begin),
        ("Micro", "mit", &[0][..], None)
    );
    let text = Text::new(&about, 64).unwrap();
    assert_eq!(text.encode("an a12<|end|>").unwrap(), [32, 31, 29, 30, 0]);
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    let other = import(directory.path()).unwrap();
    same(&exact, &other.model);
    assert_eq!((other.about.ends, other.about.chat.as_str()), (vec![0, 2], "{{ messages }}"));
    assert_eq!(other.about.licence, "mit");
    // The integers of an image, read as numbers, become the same integers again.
    let again = quantise(&model).unwrap();
    for (again, layer) in again.layers.iter().zip(&micro().model.layers) {
        assert_eq!(again.attention_gain.factors.len(), layer.attention_gain.factors.len());
        let signs = |weights: &[i8]| weights.iter().map(|weight| weight.signum()).collect::<Vec<_>>();
        assert_eq!(signs(&again.gate.weights), signs(&layer.gate.weights));
    }
}

/// Changes one key.
fn with(key: &str, held: Held<'static>) -> Vec<u8> {
    let mut keys = KEYS.to_vec();
    match keys.iter_mut().find(|(name, _)| *name == key) {
        Some(place) => place.1 = held,
        None => keys.push((Box::leak(key.to_owned().into_boxed_str()), held)),
    }
    gguf(&keys, &tensors(&model()))
}

/// Leaves one out.
fn without(key: &str) -> Vec<u8> {
    let keys: Vec<_> = KEYS.into_iter().filter(|(name, _)| *name != key).collect();
    gguf(&keys, &tensors(&model()))
}

const TWICE: [&str; 64] = {
    let mut tokens = TOKENS;
    tokens[9] = "a";
    tokens
};

/// Changes the tensors.
fn but(change: impl Fn(&mut Vec<Tensor>)) -> Vec<u8> {
    let mut tensors = tensors(&model());
    change(&mut tensors);
    gguf(&KEYS, &tensors)
}

#[rstest]
#[case::empty(vec![], "not a GGUF file that can be read: ")]
#[case::other(b"PK\x03\x04 something else entirely".to_vec(), "not a GGUF file that can be read: ")]
#[case::cut(file()[..5000].to_vec(), "not a GGUF file that can be read: ")]
#[case::kind(
    with("general.architecture", Held::Text("gemma")),
    "general.architecture: it is \"gemma\"; give a model of architecture \"llama\""
)]
#[case::no_count(
    with("llama.block_count", Held::Text("4")),
    "llama.block_count: it is 4, expected a number up to 1048576; give a whole model"
)]
#[case::large(
    with("llama.block_count", Held::Count(u32::MAX)),
    "llama.block_count: it is 4294967295, expected a number up to 1048576"
)]
#[case::layers(with("llama.block_count", Held::Count(5)), "blk.4.attn_norm.weight: there is no such tensor")]
#[case::fewer(
    with("llama.block_count", Held::Count(3)),
    "blk.3.attn_norm.weight: a model of Llama's shape has no such tensor"
)]
#[case::odd(
    with("llama.feed_forward_length", Held::Count(33)),
    "the configuration: hidden is 33, expected a multiple of 32"
)]
#[case::hidden(
    with("llama.feed_forward_length", Held::Count(64)),
    "blk.0.ffn_gate.weight: its dimensions are [32, 32], expected 32 by 64"
)]
#[case::context(with("llama.context_length", Held::Count(1 << 17)), "context is 131072, expected 1 to 65536")]
#[case::no_heads(with("llama.attention.head_count", Held::Count(0)), "heads is 0, expected 1 to 4096")]
#[case::epsilon(
    with("llama.attention.layer_norm_rms_epsilon", Held::Number(f32::NAN)),
    "epsilon is NaN, expected 0 or more, and below 1 once"
)]
#[case::epsilon_as_an_image_holds_it(
    with("llama.attention.layer_norm_rms_epsilon", Held::Number(0.999_999_9)),
    "epsilon is 0.9999998807907104, expected 0 or more, and below 1 once it is rounded to a multiple of 2^-20"
)]
#[case::base(
    with("llama.rope.freq_base", Held::Number(0.0)),
    "the base of the rotations is 0, expected at least 1"
)]
#[case::scaled(
    with("llama.rope.scaling.type", Held::Text("linear")),
    "llama.rope.scaling.type: the rotations are scaled"
)]
#[case::tokenizer(
    with("tokenizer.ggml.model", Held::Text("llama")),
    "tokenizer.ggml.model: it is \"llama\", expected \"gpt2\"; give a directory with tokenizer.json instead"
)]
#[case::cuts(
    with("tokenizer.ggml.pre", Held::Text("qwen2")),
    "tokenizer.ggml.pre: texts are cut as \"qwen2\""
)]
#[case::tokens(with("tokenizer.ggml.tokens", Held::Texts(&["a"])), "tokenizer.ggml.tokens: there are 1, expected 64")]
#[case::merges(with("tokenizer.ggml.merges", Held::Texts(&["an"])), "tokenizer.ggml.merges: \"an\" is no pair of tokens")]
#[case::packed(but(|tensors| (tensors[2].2, tensors[2].3) = (6, vec![0; 22])), "blk.0.attn_norm.weight: it is packed as Q5_0; give a file with F32")]
#[case::no_cuts(
    without("tokenizer.ggml.pre"),
    "tokenizer.ggml.pre: nothing says how texts are cut, expected \"smollm\" or \"gpt-2\"; give a directory"
)]
#[case::default_cuts(
    with("tokenizer.ggml.pre", Held::Text("default")),
    "tokenizer.ggml.pre: texts are cut as \"default\""
)]
#[case::cuts_of_a_type(
    with("tokenizer.ggml.pre", Held::Count(1)),
    "tokenizer.ggml.pre: it is 1, expected a text"
)]
#[case::begin_of_a_type(
    with("tokenizer.ggml.add_bos_token", Held::Count(1)),
    "tokenizer.ggml.add_bos_token: it is 1, expected true or false"
)]
#[case::end_of_a_type(
    with("tokenizer.ggml.add_eos_token", Held::Text("true")),
    "tokenizer.ggml.add_eos_token: it is true, expected true or false"
)]
#[case::no_begin(
    with("tokenizer.ggml.add_bos_token", Held::Bool(true)),
    "tokenizer.ggml.add_bos_token: it is true, and there is no bos_token_id"
)]
#[case::kinds_of_a_type(
    with("tokenizer.ggml.token_type", Held::Text("1")),
    "tokenizer.ggml.token_type: it is 1, expected an array of kinds"
)]
#[case::few_kinds(with("tokenizer.ggml.token_type", Held::Counts(&[1])), "tokenizer.ggml.token_type: it is an array of 1, expected 64 integers from 1 to 6, one for each token")]
#[case::unknown_kinds(with("tokenizer.ggml.token_type", Held::Counts(&[7; 64])), "tokenizer.ggml.token_type: it is an array of 64, expected 64 integers from 1 to 6")]
#[case::a_token_twice(with("tokenizer.ggml.tokens", Held::Texts(&TWICE)), "tokenizer.ggml.tokens: tokens 1 and 9 are both \"a\"")]
#[case::ends_of_a_type(
    with("tokenizer.ggml.eos_token_ids", Held::Count(1)),
    "tokenizer.ggml.eos_token_ids: it is 1, expected an array of tokens"
)]
#[case::template_of_a_type(
    with("tokenizer.chat_template", Held::Count(1)),
    "tokenizer.chat_template: it is 1, expected a text"
)]
#[case::part(
    with("split.count", Held::Integer(2, 2)),
    "split.count: it is part 1 of 2 of a model; merge them by llama-gguf-split"
)]
#[case::adapter(with("general.type", Held::Text("adapter")), "general.type: it is \"adapter\"")]
#[case::experts(with("llama.expert_count", Held::Count(8)), "llama.expert_count: it has experts")]
#[case::not_causal(
    with("llama.attention.causal", Held::Bool(false)),
    "llama.attention.causal: each token attends to later ones too"
)]
#[case::head(but(|tensors| tensors.push(("output.weight".into(), vec![1], 0, vec![0; 4]))), "output.weight: the last matrix is another one")]
#[case::bias(but(|tensors| tensors.push(("blk.0.attn_q.bias".into(), vec![1], 0, vec![0; 4]))), "blk.0.attn_q.bias: a model of Llama's shape has no such tensor")]
#[case::missing(but(|tensors| { tensors.remove(5); }), "blk.0.attn_v.weight: there is no such tensor")]
fn what_is_wrong_with_a_gguf_file_is_told(#[case] bytes: Vec<u8>, #[case] expected: &str) {
    let told = import_gguf(&bytes, "file").unwrap_err().to_string();
    assert!(told.contains(expected) && told.contains("; "), "{told}");
}

/// The same file again would not help.
#[rstest]
#[case::first([1, 0, 0, 0], "it is GGUF of version 1, and version 3 is read; convert the model again")]
#[case::fourth([4, 0, 0, 0], "it is GGUF of version 4, and version 3 is read; convert the model again")]
#[case::second([2, 0, 0, 0], "it is GGUF of version 2, and version 3 is read; convert the model again")]
#[case::swapped([0, 0, 0, 3], "it is GGUF in big-endian order; convert the model again")]
fn other_kinds_of_gguf_are_named(#[case] version: [u8; 4], #[case] expected: &str) {
    let told = import_gguf(&[&b"GGUF"[..], &version, &[0; 64]].concat(), "file").unwrap_err().to_string();
    assert!(told.contains(expected), "{told}");
}

/// Q8_0, Q4_0 and F16 are unpacked where they stand.
#[test]
fn packed_weights_are_those_that_they_stand_for() {
    let block = |kind: u32| -> Vec<u8> {
        let one = [0x00, 0x3C];
        match kind {
            // One row of 32: 1 each.
            2 => one.into_iter().chain([0x99; 16]).collect(),
            3 => one.into_iter().chain([0, 0]).chain([0x11; 16]).collect(),
            8 => one.into_iter().chain([1; 32]).collect(),
            _ => one.repeat(32),
        }
    };
    for kind in [1, 2, 3, 8] {
        let bytes = but(|tensors| (tensors[5].2, tensors[5].3) = (kind, block(kind).repeat(32)));
        let model = import_gguf(&bytes, "file").unwrap().model;
        assert_eq!(model.layers[0].key_value.as_ref().unwrap().value, vec![1.0; 1024], "{kind}");
    }
}

#[rstest]
#[case::kind("model_type", json!("mistral"), "model_type: it is \"mistral\", expected \"llama\" or \"gemma3n_text\"; give a model of one of these types")]
#[case::head("tie_word_embeddings", json!(false), "tie_word_embeddings: it is false, expected true")]
#[case::scaled("rope_scaling", json!({"factor": 32}), "rope_scaling: it is {\"factor\":32}, expected null")]
#[case::negative("num_hidden_layers", json!(-1), "num_hidden_layers: it is -1, expected a number up to 1048576")]
#[case::shape("hidden_size", json!(64), "model.layers.0.input_layernorm.weight: its shape is [32], expected 1 by 64")]
fn what_is_wrong_with_a_directory_is_told(#[case] key: &str, #[case] value: Value, #[case] expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config();
    config[key] = value;
    write_directory(directory.path(), &config);
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(told.contains(expected), "{told}");
    assert!(told.starts_with(&directory.path().display().to_string()), "{told}");
}

#[test]
fn what_a_directory_lacks_is_told() {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    for (name, expected) in [
        ("tokenizer.json", "tokenizer.json: cannot be read"),
        ("model.safetensors", "there are no weights in it; give a directory with model.safetensors"),
        ("config.json", "config.json: cannot be read"),
    ] {
        fs::remove_file(directory.path().join(name)).unwrap();
        let told = import(directory.path()).unwrap_err().to_string();
        assert!(told.contains(expected), "{told}");
    }
    let told = import(&directory.path().join("none")).unwrap_err().to_string();
    assert!(
        told.contains("none: cannot be read") && told.contains("; give a file that can be read"),
        "{told}"
    );
}

fn small(told: &str) {
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < GIANT, "{largest} bytes at once, then: {told}");
}

proptest! {
    /// Bytes of the head are changed, where lengths and counts are, and the file is cut.
    #[test]
    fn no_gguf_file_makes_it_panic(flips in prop::collection::vec((0..6000usize, any::<u8>()), 0..4), cut in 0..400_000usize) {
        let mut bytes = file();
        for (at, byte) in flips {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        let told = import_gguf(&bytes, "file").map(|imported| quantise(&imported.model).map(drop));
        small(&format!("{told:?}"));
    }

    #[test]
    fn no_safetensors_make_it_panic(flips in prop::collection::vec((0..5000usize, any::<u8>()), 0..4), cut in 0..400_000usize) {
        let directory = tempfile::tempdir().unwrap();
        write_directory(directory.path(), &config());
        let path = directory.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in flips {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        fs::write(&path, bytes).unwrap();
        let told = import(directory.path()).map(|imported| quantise(&imported.model).map(drop));
        small(&format!("{told:?}"));
    }
}

/// Which tensors a file takes, by their names.
type Takes<'t> = &'t dyn Fn(&str) -> bool;

/// The tensors of a directory, in files of these names; a tensor may be in several.
fn shard(directory: &Path, files: &[(&str, Takes<'_>)]) {
    let whole = directory.join("model.safetensors");
    let bytes = fs::read(&whole).unwrap();
    let held = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (file, takes) in files {
        let tensors = held.tensors().into_iter().filter(|(name, _)| takes(name));
        fs::write(directory.join(file), serialize(tensors, None).unwrap()).unwrap();
    }
    fs::remove_file(whole).unwrap();
}

fn norm(name: &str) -> bool {
    name == "model.norm.weight"
}

/// Weights come from model.safetensors, else from where the index says, else from one whole set of shards.
#[test]
fn weights_are_those_of_one_checkpoint() {
    let exact = model();
    let written = || {
        let directory = tempfile::tempdir().unwrap();
        write_directory(directory.path(), &config());
        directory
    };
    let rest = |name: &str| !norm(name);
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

    // A whole set of shards.
    let directory = written();
    shard(directory.path(), &[(first, &norm), (second, &rest)]);
    same(&exact, &import(directory.path()).unwrap().model);
    // Another set's shard beside it.
    let left = directory.path().join("model-00001-of-00001.safetensors");
    fs::copy(directory.path().join(first), &left).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(told.contains("its shards are of several sets, and no index names one"), "{told}");
    // The index says which are meant, and what lies beside those is of no account.
    let index = directory.path().join("model.safetensors.index.json");
    let names: Vec<String> = {
        let bytes = fs::read(directory.path().join(second)).unwrap();
        safetensors::SafeTensors::deserialize(&bytes)
            .unwrap()
            .names()
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    let mut map: serde_json::Map<String, Value> =
        names.into_iter().map(|name| (name, second.into())).collect();
    map.insert("model.norm.weight".into(), first.into());
    fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    same(&exact, &import(directory.path()).unwrap().model);
    // A tensor that is not where the index says, and one that is in another file too.
    let mut other = map.clone();
    other.insert("model.norm.weight".into(), second.into());
    fs::write(&index, json!({"weight_map": other}).to_string()).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(told.contains("there is no model.norm.weight, which the index says is in it"), "{told}");
    for path in ["../x.safetensors", "/x.safetensors", "", ".."] {
        let mut other = map.clone();
        other.insert("model.norm.weight".into(), path.into());
        fs::write(&index, json!({"weight_map": other}).to_string()).unwrap();
        let told = import(directory.path()).unwrap_err().to_string();
        assert!(told.contains("model.norm.weight is in no file of this directory"), "{told}");
    }
    // model.safetensors comes before all of these.
    let whole = written();
    for file in [first, "model-00001-of-00001.safetensors"] {
        fs::copy(directory.path().join(first), whole.path().join(file)).unwrap();
    }
    same(&exact, &import(whole.path()).unwrap().model);

    let refused = |files: &[(&str, Takes<'_>)]| {
        let directory = written();
        shard(directory.path(), files);
        import(directory.path()).unwrap_err().to_string()
    };
    let all = |_: &str| true;
    for (files, expected) in [
        (&[(second, &all as Takes<'_>)][..], "its shards are not 1 to 2 of 2: model-00002-of-00002"),
        (&[(first, &all), (second, &norm)], "model.norm.weight is in this file and in "),
        (&[("model-1-of-1.safetensors", &all), ("model-01-of-01.safetensors", &all)], "are the same part"),
        (&[("model-old.safetensors", &all)], "nothing says what model-old.safetensors is a part of"),
        (&[("weights.safetensors", &all)], "there are no weights in it"),
    ] {
        let told = refused(files);
        assert!(told.contains(expected), "{told}");
    }
}

/// Both files say where sequences end, and a token that the model has not is refused.
#[test]
fn ends_are_those_of_both_files() {
    let directory = tempfile::tempdir().unwrap();
    let ends = |own: Value, generation: Value| {
        let mut config = config();
        config["eos_token_id"] = own;
        write_directory(directory.path(), &config);
        let text = json!({"eos_token_id": generation}).to_string();
        fs::write(directory.path().join("generation_config.json"), text).unwrap();
        import(directory.path()).map(|imported| imported.about.ends).map_err(|error| error.to_string())
    };
    assert_eq!(ends(json!(1), json!([1, 21])), Ok(vec![1, 21]));
    assert_eq!(ends(Value::Null, json!(21)), Ok(vec![21]));
    assert_eq!(ends(json!([3, 4]), Value::Null), Ok(vec![3, 4]));
    assert_eq!(ends(json!([3, 4]), json!([5, 4])), Ok(vec![5, 4, 3]));
    assert_eq!(ends(Value::Null, Value::Null), Ok(vec![]));
    for (own, generation, file) in [
        (json!(99_999), Value::Null, "/config.json"),
        (json!(0), json!([0, 64]), "generation_config.json"),
        (json!(-1), Value::Null, "/config.json"),
        (json!("0"), Value::Null, "/config.json"),
        (json!(1.5), Value::Null, "/config.json"),
    ] {
        let told = ends(own, generation).unwrap_err();
        assert!(told.contains(file) && told.contains("expected tokens below 64"), "{told}");
    }
    // Only where neither file says anything is it the tokeniser's.
    fs::write(directory.path().join("tokenizer_config.json"), r#"{"eos_token": "b"}"#).unwrap();
    let mut config = config();
    config["eos_token_id"] = Value::Null;
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    fs::remove_file(directory.path().join("generation_config.json")).unwrap();
    let ends = import(directory.path()).unwrap().about.ends;
    assert_eq!(ends.len(), 1, "{ends:?}");
}

/// As `transformers`, which fails on them: what is no object is not taken for one without members.
#[test]
fn files_that_are_no_objects_are_refused() {
    const OBJECT: &str = "expected an object: names with values, in braces; fetch the file again";
    let files = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ];
    for file in files {
        for (content, kind) in [
            (json!([{"eos_token_id": 1}]), "a list"),
            (json!([]), "a list"),
            (json!("eos_token_id"), "a text"),
            (json!(1), "a number"),
            (json!(true), "true or false"),
            (Value::Null, "null"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            write_directory(directory.path(), &config());
            fs::write(directory.path().join(file), content.to_string()).unwrap();
            let told = import(directory.path()).unwrap_err().to_string();
            assert!(told.ends_with(&format!("/{file}: it is {kind}, {OBJECT}")), "{told}");
        }
    }
}

/// What adds tokens is refused where it cannot be read, and not left out.
#[rstest]
#[case("tokenizer_config.json", json!({"added_tokens_decoder": [{"content": "<x>"}]}), "its added_tokens_decoder is no object")]
#[case("tokenizer_config.json", json!({"added_tokens_decoder": {"one": {"content": "<x>"}}}), "\"one\" of its added_tokens_decoder is no id of a token")]
#[case("tokenizer_config.json", json!({"added_tokens_decoder": {"63": "<x>"}}), "token 63 of its added_tokens_decoder has no content")]
#[case("tokenizer.json", json!({"added_tokens": {"63": "<x>"}}), "its added_tokens are no list")]
fn tokens_that_cannot_be_added_are_told(#[case] file: &str, #[case] members: Value, #[case] expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    fs::write(directory.path().join(file), members.to_string()).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(told.contains(&format!("/{file}: {expected}")), "{told}");
}

/// A tokeniser's ids are those of tokens that the model has. `transformers` loads any, and fails on the first text with another id.
#[test]
fn tokens_that_the_model_has_not_are_refused_or_told() {
    let directory = tempfile::tempdir().unwrap();
    let imported = |tokenizer: &Value, settings: &Value| {
        write_directory(directory.path(), &config());
        fs::write(directory.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        fs::write(directory.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
        import(directory.path()).map_err(|error| error.to_string())
    };
    let none = json!({});
    let own: Value = serde_json::from_str(&micro().about.tokenizer).unwrap();
    let highest = own["model"]["vocab"].as_object().unwrap().values().filter_map(Value::as_u64).max();
    assert!(highest < Some(64), "the tokeniser is the model's");

    // Of its vocabulary: it is another model's.
    let mut other = own.clone();
    other["model"]["vocab"]["zz"] = json!(65);
    other["model"]["vocab"]["z"] = json!(64);
    let told = imported(&other, &none).unwrap_err();
    let expected = "/tokenizer.json: its vocabulary has 2 tokens that the model lacks, the first \"z\" with id 64; the model has 64 \
                    by config.json; give the tokenizer.json of this model";
    assert!(told.ends_with(expected), "{told}");

    // The end of a sequence: no answer would end.
    let mut added = own.clone();
    added["added_tokens"] = json!([]);
    let vocabulary = added["model"]["vocab"].as_object_mut().unwrap();
    // Added tokens have the ids behind those of the vocabulary.
    (vocabulary.len()..64).for_each(|id| drop(vocabulary.insert(format!("<unused{id}>"), json!(id))));
    let token = |text: &str, id: u64| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    added["added_tokens"] = json!([token("<image>", 64), token("<sound>", 65)]);
    fs::remove_file(directory.path().join("generation_config.json")).ok();
    let mut without = config();
    without["eos_token_id"] = Value::Null;
    write_directory(directory.path(), &without);
    fs::write(directory.path().join("tokenizer.json"), added.to_string()).unwrap();
    fs::write(directory.path().join("tokenizer_config.json"), r#"{"eos_token": "<sound>"}"#).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    let expected = "/tokenizer_config.json: eos_token is \"<sound>\", token 65, expected a token below 64";
    assert!(told.contains(expected), "{told}");

    // Any other that is added: it is told of, and a text that holds it is refused.
    let imported = imported(&added, &none).unwrap();
    let text = Text::new(&imported.about, imported.model.shape.vocabulary).unwrap().tried().unwrap();
    assert_eq!(
        text.notes(),
        [
            "the model has 64 tokens, and the tokeniser adds 2 beyond them, the first \"<image>\" with id 64; a text that holds one is refused"
        ]
    );
    assert!(text.encode("a picture").is_ok());
    let told = text.encode("a picture <sound>").unwrap_err().to_string();
    assert!(
        told.starts_with("the tokeniser gives token 65 for the text, and the model has 64; give a text"),
        "{told}"
    );
}

/// Scaled rotations change the model, however they are told.
#[rstest]
#[case("rope_scaling", json!({"type": "linear", "factor": 2.0}), false)]
#[case("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}), false)]
#[case("rope_scaling", json!({"type": "default"}), true)]
#[case("rope_scaling", json!({"rope_type": "default"}), true)]
#[case("rope_parameters", json!({"type": "linear", "factor": 2.0, "rope_theta": 10000.0}), false)]
#[case("rope_parameters", json!({"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0}), false)]
#[case("rope_parameters", json!({"rope_type": "default", "type": "linear", "rope_theta": 10000.0}), false)]
#[case("rope_parameters", json!({"factor": 4.0, "rope_theta": 10000.0}), false)]
#[case("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5}), false)]
#[case("rope_parameters", json!({"rope_type": 3}), false)]
#[case("rope_parameters", json!("linear"), false)]
#[case("rope_parameters", json!({"rope_type": "default", "rope_theta": 10000.0}), true)]
#[case("rope_parameters", json!({"type": "default", "rope_theta": 10000.0}), true)]
#[case("partial_rotary_factor", json!(0.5), false)]
#[case("partial_rotary_factor", json!(1.0), true)]
fn scaled_rotations_are_refused(#[case] key: &str, #[case] value: Value, #[case] taken: bool) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config();
    config[key] = value;
    write_directory(directory.path(), &config);
    match import(directory.path()) {
        Ok(imported) => assert!(taken && imported.model.rope_base == 10_000.0),
        Err(error) => assert!(!taken && error.to_string().contains(key), "{error}"),
    }
}

/// The same of GGUF, whether a type is told or not.
#[rstest]
#[case(&[("llama.rope.scaling.type", Held::Text("linear")), ("llama.rope.scaling.factor", Held::Number(2.0))], false)]
#[case(&[("llama.rope.scaling.factor", Held::Number(2.0))], false)]
#[case(&[("llama.rope.scaling.factor", Held::Count(4))], false)]
#[case(&[("llama.rope.scale_linear", Held::Number(2.0))], false)]
#[case(&[("llama.rope.scaling.finetuned", Held::Bool(true))], false)]
#[case(&[("llama.rope.scaling.attn_factor", Held::Number(1.5))], false)]
#[case(&[("llama.rope.scaling.type", Held::Texts(&["none"]))], false)]
#[case(&[("llama.rope.scaling.type", Held::Text("none")), ("llama.rope.scaling.factor", Held::Number(1.0))], true)]
#[case(&[("llama.rope.scaling.factor", Held::Number(0.0)), ("llama.rope.scaling.finetuned", Held::Bool(false))], true)]
#[case(&[("llama.rope.scaling.original_context_length", Held::Count(1024))], true)]
fn scaled_rotations_of_gguf_are_refused(#[case] more: &[(&str, Held<'_>)], #[case] taken: bool) {
    let keys = [&KEYS[..], more].concat();
    match import_gguf(&gguf(&keys, &tensors(&model())), "file") {
        Ok(_) => assert!(taken),
        Err(error) => assert!(!taken && error.to_string().contains("rotations are scaled"), "{error}"),
    }
}

/// What a GGUF file of these keys says besides its weights.
fn about(more: &[(&'static str, Held<'static>)]) -> Result<doorbell_lm::About, String> {
    let mut keys = KEYS.to_vec();
    for (key, held) in more {
        match keys.iter_mut().find(|(name, _)| name == key) {
            Some(place) => place.1 = *held,
            None => keys.push((key, *held)),
        }
    }
    let imported = import_gguf(&gguf(&keys, &tensors(&model())), "file");
    imported.map(|imported| imported.about).map_err(|error| error.to_string())
}

/// A token's number may be of any integer type; of each, one that the model has not is refused.
#[test]
fn ids_of_gguf_are_of_any_type() {
    const KEY: &str = "tokenizer.ggml.eos_token_id";
    for kind in [0, 1, 2, 3, 4, 5, 10, 11] {
        assert_eq!(about(&[(KEY, Held::Integer(kind, 7))]).unwrap().ends, [7], "{kind}");
        let told = about(&[(KEY, Held::Integer(kind, 64))]).unwrap_err();
        assert!(told.contains("expected a token below 64"), "{told}");
        assert!(about(&[("llama.block_count", Held::Integer(kind, 4))]).is_ok(), "{kind}");
    }
    for held in [Held::Integer(5, u64::MAX), Held::Number(7.0), Held::Text("7")] {
        assert!(about(&[(KEY, held)]).unwrap_err().contains("expected a token below 64"));
    }
    let more = [
        ("tokenizer.ggml.eot_token_id", Held::Integer(5, 3)),
        ("tokenizer.ggml.eom_token_id", Held::Integer(4, 0)),
        ("tokenizer.ggml.eos_token_ids", Held::Counts(&[0, 9])),
    ];
    assert_eq!(about(&more).unwrap().ends, [0, 3, 9]);
}

/// CONTROL and USER_DEFINED tokens are never cut, and only the former say nothing.
#[test]
fn tokens_of_gguf_are_whole() {
    const KINDS_BOTH: [i32; 64] = {
        let mut kinds = KINDS;
        kinds[30] = 4;
        kinds
    };
    const NAMED: [&str; 64] = {
        let mut tokens = TOKENS;
        tokens[30] = "<tool>";
        tokens
    };
    for kinds in [Held::Counts(&KINDS_BOTH), Held::Unsigned(&KINDS_BOTH), Held::Bytes(&KINDS_BOTH)] {
        let about =
            about(&[("tokenizer.ggml.token_type", kinds), ("tokenizer.ggml.tokens", Held::Texts(&NAMED))]);
        let text = Text::new(&about.unwrap(), 64).unwrap();
        assert_eq!(text.encode("a<tool>b<|end|>").unwrap(), [1, 30, 2, 0]);
        assert_eq!(text.decode(&[1, 30, 2, 0]).unwrap(), "a<tool>b");
    }
}

/// The template is given the texts of tokens whatever the flags say, and a chat has no token that the template did not write.
#[test]
fn beginnings_and_ends_of_gguf() {
    const BOS: (&str, Held<'_>) = ("tokenizer.ggml.bos_token_id", Held::Count(2));
    const ADD: (&str, Held<'_>) = ("tokenizer.ggml.add_bos_token", Held::Bool(true));
    const CHAT: (&str, Held<'_>) =
        ("tokenizer.chat_template", Held::Text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"));
    let of = |more: &[(&'static str, Held<'static>)]| {
        let text = Text::new(&about(more).unwrap(), 64).unwrap();
        let chat = text.chat("a").unwrap();
        (text.encode("a").unwrap(), text.encode_chat(&chat).unwrap())
    };
    assert_eq!(of(&[BOS, CHAT]), (vec![1], vec![2, 1, 0]));
    assert_eq!(of(&[BOS, ADD, CHAT]), (vec![2, 1], vec![2, 1, 0]));
    assert_eq!(of(&[CHAT]), (vec![1], vec![1, 0]));
    let end = ("tokenizer.ggml.add_eos_token", Held::Bool(true));
    assert_eq!(of(&[BOS, ADD, end, CHAT]), (vec![2, 1, 0], vec![2, 1, 0]));
}

/// Where a file says nothing of a thing that matters, a note says so.
#[test]
fn what_gguf_leaves_open_is_noted() {
    let notes = |bytes: &[u8]| import_gguf(bytes, "file").unwrap().notes.join("; ");
    let told = notes(&without("tokenizer.ggml.token_type"));
    assert!(told.contains("no tokenizer.ggml.token_type, so tokens that only steer are cut"), "{told}");
    let told = notes(&without("tokenizer.ggml.eos_token_id"));
    assert!(told.contains("nothing says which token ends an answer"), "{told}");
}

/// A base of the rotations is a number whatever its type; a second copy of the tokens is no other matrix.
#[test]
fn what_says_the_same_is_taken() {
    let imported = import_gguf(&with("llama.rope.freq_base", Held::Count(10_000)), "file").unwrap();
    assert_eq!(imported.model.rope_base, 10_000.0);
    let twice = but(|tensors| {
        let (_, dimensions, kind, bytes) = tensors[0].clone();
        tensors.push(("output.weight".into(), dimensions, kind, bytes));
    });
    same(&model(), &import_gguf(&twice, "file").unwrap().model);
}

/// As `transformers`: a `rope_scaling` that says something comes before `rope_parameters`, and its base before all others.
#[rstest]
#[case(json!({"rope_scaling": {"rope_type": "default", "rope_theta": 5000.0}}), 5000.0)]
#[case(json!({"rope_scaling": {"rope_type": "default", "rope_theta": 5000.0}, "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}), 5000.0)]
#[case(json!({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}), 10_000.0)]
#[case(json!({"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}), 9.0)]
#[case(json!({"rope_scaling": null, "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}}), 9.0)]
fn the_base_of_the_rotations_is_that_of_transformers(#[case] more: Value, #[case] base: f64) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config();
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    write_directory(directory.path(), &config);
    assert_eq!(import(directory.path()).unwrap().model.rope_base, base);
}

/// What files say and nothing obeys is noted; what would change every text is refused.
#[rstest]
#[case("generation_config.json", r#"{"repetition_penalty": 1.5, "top_k": 0, "temperature": 0.6, "do_sample": true, "suppress_tokens": [5], "eos_token_id": 1}"#,
       Some("generation_config.json says repetition_penalty 1.5, temperature 0.6, suppress_tokens [5], which is not obeyed"))]
#[case("generation_config.json", r#"{"temperature": 1.0, "top_p": 1, "stop_strings": null, "bad_words_ids": [], "use_cache": true, "max_length": 20}"#, None)]
#[case(
    "tokenizer_config.json",
    r#"{"tokenizer_class": "GPT2TokenizerFast"}"#,
    Some("transformers 5 may build the tokeniser of class GPT2Tokenizer anew")
)]
#[case("tokenizer_config.json", r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#, None)]
#[case(
    "tokenizer_config.json",
    r#"{"chat_template": [{"name": "rag", "template": "R"}, {"name": "tool_use", "template": "T"}]}"#,
    Some(
        "the chat templates rag are not kept; serve takes one by --chat-template; its chat template is for chats with tools alone"
    )
)]
fn what_is_not_obeyed_is_noted(#[case] file: &str, #[case] content: &str, #[case] expected: Option<&str>) {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    fs::write(directory.path().join(file), content).unwrap();
    let notes = import(directory.path()).unwrap().notes.join("; ");
    match expected {
        Some(expected) => assert!(notes.contains(expected), "{notes}"),
        None => assert_eq!(notes, ""),
    }
}

#[rstest]
#[case(
    "tokenizer_config.json",
    r#"{"split_special_tokens": true}"#,
    "tokenizer_config.json: split_special_tokens is true: special tokens in a text would be cut"
)]
#[case(
    "adapter_config.json",
    "{}",
    "adapter_config.json: it is an adapter, which is not added to the weights; merge it into the model"
)]
#[case(
    "added_tokens.json",
    r#"{"<x>": "1"}"#,
    "added_tokens.json: \"<x>\" has \"1\", expected the id of a token"
)]
#[case(
    "tokenizer_config.json",
    r#"{"added_tokens_decoder": {"63": {"content": "<x>", "lstrip": 1}}}"#,
    "lstrip of token 63 of its added_tokens_decoder is 1, expected true or false"
)]
#[case(
    "generation_config.json",
    r#"{"temperature": NaN}"#,
    "write null or a number in the place of NaN and Infinity"
)]
fn what_would_change_texts_is_refused(#[case] file: &str, #[case] content: &str, #[case] expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    fs::write(directory.path().join(file), content).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(told.contains(expected), "{told}");
}

/// A link to a file that was not fetched is no absence.
#[test]
fn a_link_to_nothing_is_told() {
    for file in [
        "generation_config.json",
        "chat_template.jinja",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "model.safetensors",
        "adapter_config.json",
    ] {
        let directory = tempfile::tempdir().unwrap();
        write_directory(directory.path(), &config());
        let link = directory.path().join(file);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink("blob", &link).unwrap();
        let told = import(directory.path()).unwrap_err().to_string();
        assert!(told.contains(&format!("{file}: ")), "{told}");
    }
}

/// The time to add tokens is that of their number, not of its square: this took half a minute.
#[test]
fn many_tokens_are_added_in_time() {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    let tokens: serde_json::Map<String, Value> =
        (0..30_000).map(|id| ((64 + id).to_string(), json!({"content": format!("<x{id}>")}))).collect();
    let settings = json!({"added_tokens_decoder": tokens}).to_string();
    fs::write(directory.path().join("tokenizer_config.json"), settings).unwrap();
    // What other work takes meanwhile is not counted.
    let seconds = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is of this thread.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        time.tv_sec
    };
    let start = seconds();
    import(directory.path()).unwrap();
    let taken = seconds() - start;
    assert!(taken < 15, "{taken} s");
}

/// Other names and forms of weights are named.
#[test]
fn weights_of_other_forms_are_named() {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), &config());
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let held = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let renamed = |name: &str| name.strip_prefix("model.").unwrap().to_owned();
    let views = held.tensors().into_iter().map(|(name, view)| (renamed(&name), view));
    fs::write(&path, serialize(views, None).unwrap()).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(told.contains("its tensors have no \"model.\" before their names; give the model as"), "{told}");
    // Early checkpoints have what follows from the base of the rotations.
    let more = [0; 64];
    let extra = (
        "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
        TensorView::new(Dtype::F32, vec![16], &more).unwrap(),
    );
    fs::write(&path, serialize(held.tensors().into_iter().chain([extra]), None).unwrap()).unwrap();
    same(&model(), &import(directory.path()).unwrap().model);
    fs::rename(&path, directory.path().join("pytorch_model.bin")).unwrap();
    let told = import(directory.path()).unwrap_err().to_string();
    assert!(
        told.contains("its weights are pytorch_model.bin, which is not read; convert them to safetensors"),
        "{told}"
    );
}

/// A weight whose exponent no reader takes is refused with its place.
#[test]
fn weights_beyond_every_exponent_are_refused() {
    for value in [3e38f32, 1e-40] {
        let mut model = model();
        model.tokens.fill(value);
        let told = quantise(&model).unwrap_err().to_string();
        assert!(
            told.contains("which takes the exponent") && told.contains("devices take -100 to 100"),
            "{told}"
        );
    }
}

/// What is no regular file is not read.
#[test]
fn devices_and_pipes_are_no_models() {
    let told = import(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(told.contains("/dev/zero: cannot be read: it is no regular file; "), "{told}");
}
