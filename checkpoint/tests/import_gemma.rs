//! A directory of Gemma 3N's shape, as transformers' `Gemma3nForCausalLM` writes one: what is read, what becomes of it, and what is refused.

use std::fs;
use std::path::Path;

use doorbell_checkpoint::import;
use doorbell_lm::judge::{judge, published};
use doorbell_lm::{MICRO_GLOBAL_ROPE_BASE, MICRO_ROPE_BASE, float, micro_gemma, quantise};
use proptest::prelude::*;
use rstest::rstest;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

/// micro-gemma's weights, as its authors would have published them.
fn model() -> float::Model {
    let mut model = published(&micro_gemma().model, MICRO_ROPE_BASE, Some(MICRO_GLOBAL_ROPE_BASE));
    let gain = model.layers[0].gemma.as_ref().unwrap().projection_gain.clone();
    for (number, layer) in model.layers.iter_mut().enumerate() {
        if let Some(own) = &mut layer.key_value {
            // Values have none there.
            own.gains.as_mut().unwrap()[1].fill(1.0);
        }
        let gemma = layer.gemma.as_mut().unwrap();
        gemma.projection_gain.clone_from(&gain);
        let scales = gemma.corrected_scale.iter_mut().enumerate();
        scales.for_each(|(channel, scale)| *scale = 0.75 + ((channel + number) % 8) as f32 / 16.0);
    }
    model
}

fn config() -> Value {
    json!({
        "model_type": "gemma3n_text", "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": [32, 32, 32, 32, 32], "vocab_size": 64,
        "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 32, "laurel_rank": 32,
        "altup_num_inputs": 4, "altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": true,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 41, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0],
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": null, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-5, "max_position_embeddings": 1024,
        "attention_bias": false, "eos_token_id": 0,
    })
}

type Tensor = (String, Vec<usize>, Vec<f32>);

/// Rows of heads in the order of Hugging Face: those that are rotated together lie half a head apart.
fn halves(rows: &[f32], columns: usize) -> Vec<f32> {
    let of = |half: usize, head: &[f32]| -> Vec<f32> {
        head.chunks(columns).skip(half).step_by(2).flatten().copied().collect()
    };
    rows.chunks(32 * columns).flat_map(|head| [of(0, head), of(1, head)].concat()).collect()
}

fn tensors(model: &float::Model) -> Vec<Tensor> {
    let matrix = |name: String, values: &[f32], columns: usize| -> Tensor {
        (format!("{name}.weight"), vec![values.len() / columns, columns], values.to_vec())
    };
    let gain = |name: String, values: &[f32]| -> Tensor {
        (format!("{name}.weight"), vec![values.len()], values.to_vec())
    };
    let parts = model.gemma.as_ref().unwrap();
    let gemma = |number: usize| model.layers[number].gemma.as_ref().unwrap();
    let layers = model.layers.len();
    // Of each token the rows of all layers.
    let embeddings: Vec<f32> = (0..64)
        .flat_map(|token| {
            (0..layers).flat_map(move |layer| gemma(layer).embedding[token * 32..][..32].to_vec())
        })
        .collect();
    let projections: Vec<f32> = (0..layers).flat_map(|layer| gemma(layer).projection.clone()).collect();
    let mut tensors = vec![
        matrix("model.embed_tokens".into(), &model.tokens, 32),
        matrix("model.embed_tokens_per_layer".into(), &embeddings, 32 * layers),
        matrix("model.per_layer_model_projection".into(), &projections, 32),
        gain("model.per_layer_projection_norm".into(), &gemma(0).projection_gain),
        gain("model.norm".into(), &model.last_gain),
    ];
    for stream in 0..3 {
        tensors.push(matrix(format!("model.altup_projections.{stream}"), &parts.split[stream], 32));
        tensors.push(matrix(format!("model.altup_unembed_projections.{stream}"), &parts.merge[stream], 32));
    }
    for (number, layer) in model.layers.iter().enumerate() {
        let gemma = gemma(number);
        let name = |part: &str| format!("model.layers.{number}.{part}");
        for (part, values) in [
            ("input_layernorm", &layer.attention_gain),
            ("post_attention_layernorm", &gemma.output_gain),
            ("pre_feedforward_layernorm", &layer.hidden_gain),
            ("post_feedforward_layernorm", &gemma.down_gain),
            ("post_per_layer_input_norm", &gemma.embedding_gain),
            ("altup.router_norm", &gemma.router_gain),
            ("laurel.post_laurel_norm", &gemma.laurel_gain),
            ("self_attn.q_norm", &halves(&gemma.query_gain, 1)),
        ] {
            tensors.push(gain(name(part), values));
        }
        for (part, values, columns) in [
            ("self_attn.q_proj", &halves(&layer.query, 32), 32),
            ("self_attn.o_proj", &layer.output, 64),
            ("altup.correction_coefs", &gemma.correct, 4),
            ("altup.prediction_coefs", &gemma.predict, 4),
            ("altup.modality_router", &gemma.router, 32),
            ("laurel.linear_left", &gemma.left, 32),
            ("laurel.linear_right", &gemma.right, 32),
            ("mlp.gate_proj", &layer.gate, 32),
            ("mlp.up_proj", &layer.up, 32),
            ("mlp.down_proj", &layer.down, 32),
            ("per_layer_input_gate", &gemma.embedding_gate, 32),
            ("per_layer_projection", &gemma.embedding_output, 32),
        ] {
            tensors.push(matrix(name(part), values, columns));
        }
        tensors.push((name("altup.correct_output_scale"), vec![32], gemma.corrected_scale.clone()));
        if let Some(own) = &layer.key_value {
            tensors.push(matrix(name("self_attn.k_proj"), &halves(&own.key, 32), 32));
            tensors.push(matrix(name("self_attn.v_proj"), &own.value, 32));
            tensors.push(gain(name("self_attn.k_norm"), &halves(&own.gains.as_ref().unwrap()[0], 1)));
        }
    }
    tensors
}

fn write_directory(directory: &Path, config: &Value, tensors: &[Tensor]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    fs::write(directory.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("tokenizer.json"), &micro_gemma().about.tokenizer).unwrap();
}

fn imported(config: &Value, tensors: &[Tensor]) -> Result<float::Model, String> {
    let directory = tempfile::tempdir().unwrap();
    write_directory(directory.path(), config, tensors);
    let result = import(directory.path()).map(|imported| imported.model);
    result.map_err(|error| {
        let told = error.to_string();
        assert!(told.starts_with(&directory.path().display().to_string()) && told.contains("; "), "{told}");
        told
    })
}

fn same(a: &float::Model, b: &float::Model) {
    assert_eq!((a.shape, a.rope_base, a.epsilon), (b.shape, b.rope_base, b.epsilon));
    assert_eq!((&a.tokens, &a.last_gain, &a.gemma), (&b.tokens, &b.last_gain, &b.gemma));
    for (number, (a, b)) in a.layers.iter().zip(&b.layers).enumerate() {
        assert!(a == b, "layer {number}");
    }
}

#[test]
fn a_directory_is_read_as_it_was_written() {
    let exact = float::Model { epsilon: 1e-5, ..model() };
    same(&imported(&config(), &tensors(&exact)).unwrap(), &exact);
    // Keys and values of layers that read another's may be there, and mean nothing.
    let mut more = tensors(&exact);
    for part in ["k_proj", "v_proj"] {
        more.push((format!("model.layers.3.self_attn.{part}.weight"), vec![32, 32], vec![7.0; 1024]));
    }
    more.push(("model.layers.4.self_attn.k_norm.weight".into(), vec![32], vec![7.0; 32]));
    same(&imported(&config(), &more).unwrap(), &exact);
    // One number for all layers, and the newer way to tell of rotations.
    let mut newer = config();
    newer["intermediate_size"] = json!(32);
    for key in ["rope_theta", "rope_local_base_freq", "rope_scaling"] {
        newer.as_object_mut().unwrap().remove(key);
    }
    newer["rope_parameters"] = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    same(&imported(&newer, &tensors(&exact)).unwrap(), &exact);
    // A scale that is not used.
    let mut unscaled = config();
    unscaled["altup_correct_scale"] = json!(false);
    let read = imported(&unscaled, &tensors(&exact)).unwrap();
    assert!(read.layers.iter().all(|layer| layer.gemma.as_ref().unwrap().corrected_scale == [1.0; 32]));
}

fn near(what: &str, held: &[f32], exact: &[f32]) {
    assert_eq!(held.len(), exact.len(), "{what}");
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let off = norm(&mut held.iter().zip(exact).map(|(a, b)| a - b));
    let size = norm(&mut exact.iter().copied());
    assert!(off <= 0.01 * size, "{what}: {off} of {size}");
}

/// What an importer puts into other things comes out of them again, and the model that it makes says nearly the same.
#[test]
fn constants_are_where_the_integers_have_them() {
    let mut exact = model();
    for layer in &mut exact.layers {
        let gemma = layer.gemma.as_mut().unwrap();
        let scales = gemma.corrected_scale.clone();
        let scaled = gemma.embedding_gate.iter_mut().zip(scales.iter().cycle());
        scaled.for_each(|(weight, scale)| *weight /= scale);
    }
    let quantised = quantise(&exact).unwrap();
    assert_eq!(quantised.shape, micro_gemma().model.shape);
    let held = published(&quantised, MICRO_ROPE_BASE, Some(MICRO_GLOBAL_ROPE_BASE));
    near("tokens", &held.tokens, &exact.tokens);
    near("last_gain", &held.last_gain, &exact.last_gain);
    let parts = [&held, &exact].map(|model| model.gemma.as_ref().unwrap());
    for stream in 0..3 {
        near("split", &parts[0].split[stream], &parts[1].split[stream]);
        near("merge", &parts[0].merge[stream], &parts[1].merge[stream]);
    }
    for (held, exact) in held.layers.iter().zip(&exact.layers) {
        let [a, b] = [held, exact].map(|layer| layer.gemma.as_ref().unwrap());
        near("query", &held.query, &exact.query);
        near("router_gain", &a.router_gain, &b.router_gain);
        near("router", &a.router, &b.router);
        near("predict", &a.predict, &b.predict);
        near("correct", &a.correct, &b.correct);
        near("query_gain", &a.query_gain, &b.query_gain);
        near("embedding", &a.embedding, &b.embedding);
        near("projection", &a.projection, &b.projection);
        near("projection_gain", &a.projection_gain, &b.projection_gain);
        let scaled: Vec<f32> =
            b.embedding_gate.iter().zip(b.corrected_scale.iter().cycle()).map(|(a, b)| a * b).collect();
        near("embedding_gate", &a.embedding_gate, &scaled);
        if let Some(own) = &held.key_value {
            assert_eq!(own.gains.as_ref().unwrap()[1], [1.0; 32]);
        }
    }
    let tokens: Vec<u32> = (0..200u32).map(|k| doorbell_contract::mix(k) % 64).collect();
    let judged = judge(&exact, &quantised, &tokens);
    println!("{judged:?}, {}", judged.mean_divergence());
    assert!(judged.mean_divergence() < 0.06, "{judged:?}");
}

#[rstest]
#[case::kind("model_type", json!("gemma3n"), "model_type: it is \"gemma3n\", expected \"llama\" or \"gemma3n_text\"; give a model of one of these types")]
#[case::head("tie_word_embeddings", json!(false), "tie_word_embeddings: it is false, expected true")]
#[case::bias("attention_bias", json!(true), "attention_bias: it is true, expected false")]
#[case::scaled("rope_scaling", json!({"factor": 2}), "rope_scaling: it is {\"factor\":2}, expected null")]
#[case::function("hidden_activation", json!("gelu"), "hidden_activation: it is \"gelu\", expected \"gelu_pytorch_tanh\"")]
#[case::cap("final_logit_softcapping", json!(null), "final_logit_softcapping: it is missing, expected 30")]
#[case::streams("altup_num_inputs", json!(2), "altup_num_inputs: it is 2, expected 4")]
#[case::active("altup_active_idx", json!(1), "altup_active_idx: it is 1, expected 0")]
#[case::correct("altup_correct_scale", json!(null), "altup_correct_scale: it is missing, expected true or false")]
#[case::layers("num_hidden_layers", json!(-1), "num_hidden_layers: it is -1, expected a number up to 1048576")]
#[case::vocabulary("vocab_size", json!("64"), "vocab_size: it is \"64\", expected a number up to 1048576")]
#[case::other_vocabulary("vocab_size_per_layer_input", json!(60), "vocab_size_per_layer_input: it is 60, expected 64, as vocab_size is")]
#[case::shared("num_kv_shared_layers", json!(6), "num_kv_shared_layers: it is 6, expected at most 5")]
#[case::all_shared("num_kv_shared_layers", json!(5), "0 layers have keys and values of their own")]
#[case::one_kind("num_kv_shared_layers", json!(4), "1 layers have keys and values of their own, and the first global one is 1")]
#[case::width("hidden_size", json!(null), "hidden_size: it is missing, expected a number")]
#[case::odd("hidden_size", json!(33), "the configuration: width is 33, expected a multiple of 32")]
#[case::heads("num_attention_heads", json!(null), "num_attention_heads: it is missing")]
#[case::kv_heads("num_key_value_heads", json!(3), "2 heads cannot share 3 of keys and values")]
#[case::head_width("head_dim", json!(null), "head_dim: it is missing")]
#[case::hidden("intermediate_size", json!([32, 32, 32, 32, 64]), "intermediate_size: it is [32,32,32,32,64], expected a number up to 1048576, or 5 times the same")]
#[case::few_hidden("intermediate_size", json!([32]), "or 5 times the same")]
#[case::context("max_position_embeddings", json!(1 << 17), "context is 131072, expected 1 to 65536")]
#[case::embedding("hidden_size_per_layer_input", json!(0), "embedding is 0, expected a multiple of 32")]
#[case::laurel("laurel_rank", json!(48), "laurel is 48, expected a multiple of 32")]
#[case::window("sliding_window", json!(0), "window is 0, expected 1 to 65536")]
#[case::no_types("layer_types", json!(null), "layer_types: it is missing, expected 5 times \"sliding_attention\" or \"full_attention\"")]
#[case::types("layer_types", json!(["full_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]), "layer_types: it is [")]
#[case::local("layer_types", json!(["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"]), "layer_types: it is [")]
#[case::chunked("layer_types", json!(["sliding_attention", "full_attention", "chunked_attention", "full_attention", "sliding_attention"]), "layer_types: it is [")]
#[case::cut("activation_sparsity_pattern", json!([0.95, 0.0, 0.95, 0.0, 0.0]), "activation_sparsity_pattern: it is [0.95,0.0,0.95,0.0,0.0], expected 5 numbers, 0.95 for the first layers and 0 for all others")]
#[case::share("activation_sparsity_pattern", json!([0.9, 0.9, 0.0, 0.0, 0.0]), "activation_sparsity_pattern: it is [0.9,")]
#[case::cuts("activation_sparsity_pattern", json!(null), "activation_sparsity_pattern: it is missing")]
#[case::base("rope_theta", json!(null), "rope_theta: it is missing, expected a number")]
#[case::small_base("rope_theta", json!(0.5), "the base of the rotations is 0.5, expected at least 1")]
#[case::local_base("rope_local_base_freq", json!("large"), "rope_local_base_freq: it is \"large\", expected a number")]
#[case::yarn("rope_parameters", json!({"full_attention": {"rope_type": "yarn", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}), "expected rotations of type \"default\" and their base of full_attention")]
#[case::half("rope_parameters", json!({"full_attention": {"rope_theta": 1e6}}), "and their base of sliding_attention")]
#[case::epsilon("rms_norm_eps", json!(1.5), "epsilon is 1.5, expected 0 or more, and below 1 once")]
#[case::no_epsilon("rms_norm_eps", json!(null), "rms_norm_eps: it is missing, expected a number")]
fn what_is_wrong_with_a_configuration_is_told(
    #[case] key: &str,
    #[case] value: Value,
    #[case] expected: &str,
) {
    let mut config = config();
    config[key] = value;
    let told = imported(&config, &tensors(&model())).unwrap_err();
    assert!(told.contains(expected), "{told}");
}

#[rstest]
#[case::missing(|tensors: &mut Vec<Tensor>| tensors.retain(|(name, ..)| !name.ends_with("1.altup.router_norm.weight")),
                "model.layers.1.altup.router_norm.weight: there is no such tensor; give a whole model")]
#[case::no_key(|tensors: &mut Vec<Tensor>| tensors.retain(|(name, ..)| !name.ends_with("2.self_attn.k_proj.weight")),
               "model.layers.2.self_attn.k_proj.weight: there is no such tensor")]
#[case::head(|tensors: &mut Vec<Tensor>| tensors.push(("lm_head.weight".into(), vec![1], vec![0.0])),
             "lm_head.weight: the last matrix is another one")]
#[case::bias(|tensors: &mut Vec<Tensor>| tensors.push(("model.layers.0.self_attn.q_proj.bias".into(), vec![1], vec![0.0])),
             "model.layers.0.self_attn.q_proj.bias: a model of Gemma 3N's shape has no such tensor; give the language model alone")]
#[case::layer(|tensors: &mut Vec<Tensor>| tensors.push(("model.layers.5.input_layernorm.weight".into(), vec![32], vec![0.0; 32])),
              "model.layers.5.input_layernorm.weight: a model of Gemma 3N's shape has no such tensor")]
#[case::vision(|tensors: &mut Vec<Tensor>| tensors.push(("model.vision_tower.weight".into(), vec![1], vec![0.0])),
               "model.vision_tower.weight: a model of Gemma 3N's shape has no such tensor")]
#[case::stream(|tensors: &mut Vec<Tensor>| tensors.push(("model.altup_projections.3.weight".into(), vec![1], vec![0.0])),
               "model.altup_projections.3.weight: a model of Gemma 3N's shape has no such tensor")]
#[case::shape(|tensors: &mut Vec<Tensor>| { tensors[1].1 = vec![32, 320]; },
              "model.embed_tokens_per_layer.weight: its shape is [32, 320], expected 64 by 160 by config.json")]
fn what_is_wrong_with_the_tensors_is_told(#[case] change: fn(&mut Vec<Tensor>), #[case] expected: &str) {
    let mut tensors = tensors(&model());
    change(&mut tensors);
    let told = imported(&config(), &tensors).unwrap_err();
    assert!(told.contains(expected), "{told}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_directory_makes_it_panic(flips in prop::collection::vec((0..12_000usize, any::<u8>()), 0..4), told in prop::collection::vec((0..1100usize, b' '..b'~'), 0..4), cut in 0..600_000usize) {
        let directory = tempfile::tempdir().unwrap();
        write_directory(directory.path(), &config(), &tensors(&model()));
        let changed = |name: &str, flips: &[(usize, u8)], cut: usize| {
            let path = directory.path().join(name);
            let mut bytes = fs::read(&path).unwrap();
            for &(at, byte) in flips {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(cut);
            fs::write(&path, bytes).unwrap();
        };
        changed("model.safetensors", &flips, cut);
        changed("config.json", &told, usize::MAX);
        let _ = import(directory.path()).map(|imported| quantise(&imported.model).map(drop));
    }
}
