//! The workloads of `cargo xtask perf`, as a program: all of them, or those that are named. After each it prints what ran, the unit, and
//! how many there were. As a test it holds each to its own result, without counting.

use std::ffi::c_void;
use std::fmt::Display;
use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io, slice};

use doorbell_bench::BenchError;
use doorbell_bench::perf::{WORKLOADS, Workload, count_only, timed};
use doorbell_checkpoint::import;
use doorbell_contract::{HwDesc, PREFIX_NONE, SqKey};
use doorbell_lm::judge::published;
use doorbell_lm::{Image, MICRO_ROPE_BASE, float, micro, quantise};
use doorbell_runtime::rollout::RolloutId;
use doorbell_runtime::trajectory::log::{Log, LogOptions, Sync};
use doorbell_runtime::trajectory::{Body, Finished, Outcome};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::json;

/// What needs a crate or a feature that the benches do not have.
const MORE: &[Workload] = &[
    Workload { name: "check_seal", unit: "descriptor", run: seal },
    Workload { name: "check_verify", unit: "descriptor", run: verify },
    Workload { name: "log_append", unit: "record of 128 tokens", run: append },
    Workload { name: "model_import", unit: "model", run: import_model },
    Workload { name: "model_quantise", unit: "model", run: quantise_model },
    Workload { name: "model_read", unit: "image", run: read_image },
];

/// Rounds over a ring of descriptors.
const ROUNDS: u32 = 64;
const DEPTH: u32 = 1024;
const RECORDS: u32 = 2048;
const MODELS: u64 = 4;

/// The system's source of random numbers, for this program: hash tables take their seeds from it, and are to be the same in every run.
///
/// # Safety
/// As the C library's: `length` bytes at `buffer` are the caller's to be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller's, as above.
    unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), length) }.fill(0x5A);
    length as isize
}

fn main() -> ExitCode {
    // The runner of tests may hand over options of its own.
    let asked: Vec<String> = env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let all = || WORKLOADS.iter().chain(MORE);
    let unknown: Vec<&String> =
        asked.iter().filter(|name| !all().any(|workload| workload.name == **name)).collect();
    if env::args().any(|argument| argument == "--list") || !unknown.is_empty() {
        all().for_each(|workload| println!("{}: {}", workload.name, workload.unit));
        return if unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    count_only();
    for Workload { name, unit, run } in all() {
        if !asked.is_empty() && !asked.iter().any(|asked| asked == name) {
            continue;
        }
        match run() {
            Ok(count) if count > 0 => println!("{name}\t{unit}\t{count}"),
            Ok(_) => return failed(name, "it had nothing to do"),
            Err(error) => return failed(name, error),
        }
        // Of a workload that ends the program, what came before is known.
        if let Err(error) = io::stdout().flush() {
            return failed(name, error);
        }
    }
    ExitCode::SUCCESS
}

fn failed(name: &str, error: impl Display) -> ExitCode {
    eprintln!("{name}: {error}");
    ExitCode::FAILURE
}

fn wrong(error: impl Display) -> BenchError {
    BenchError::Failed(error.to_string())
}

fn descriptors() -> Vec<HwDesc> {
    (0..DEPTH).map(|k| HwDesc::decode(k, 100 + k, 1 + k).with_delta_offset(64 * u64::from(k))).collect()
}

/// The check word of each descriptor is computed (R2).
fn seal() -> Result<u64, BenchError> {
    let (key, batch) = (SqKey::new(1), descriptors());
    let mut slots = vec![HwDesc::default(); batch.len()];
    timed(|| {
        for round in 0..ROUNDS {
            for ((index, slot), desc) in (round * DEPTH..).zip(&mut slots).zip(black_box(&batch)) {
                *slot = desc.seal(&key, index);
            }
            black_box(&mut slots);
        }
    });
    Ok(u64::from(ROUNDS * DEPTH))
}

/// The check word of each descriptor is looked at (R2).
fn verify() -> Result<u64, BenchError> {
    let key = SqKey::new(1);
    let slots: Vec<HwDesc> = (0..).zip(descriptors()).map(|(index, desc)| desc.seal(&key, index)).collect();
    let mut good = 0;
    timed(|| {
        for _ in 0..ROUNDS {
            good += (0..).zip(black_box(&slots)).filter(|(index, desc)| desc.verify(&key, *index)).count();
        }
    });
    let all = u64::from(ROUNDS * DEPTH);
    if good as u64 == all { Ok(all) } else { Err(wrong(format!("{good} of {all} check words hold"))) }
}

/// Trajectories are appended to a log, and written in groups.
fn append() -> Result<u64, BenchError> {
    let folder = tempfile::tempdir().map_err(wrong)?;
    let options = LogOptions { sync: Sync::Never, ..LogOptions::default() };
    let (mut log, _) = Log::open(&folder.path().join("log"), options).map_err(wrong)?;
    let tokens: Vec<u32> = (0..128).collect();
    let ended = timed(|| {
        for k in 0..RECORDS {
            let finished = Finished {
                rollout: RolloutId::new(k, 0),
                request: k.into(),
                member: 0,
                device_rollout: k,
                seed: 0,
                prefix_id: PREFIX_NONE,
                prefix_hash: 0,
                prompt_tokens: 100,
                answer_tokens: 128,
                score: 0,
                scorer: None,
                segments: 1,
                outcome: Outcome::Completed,
                spans: 0,
                group: None,
                has_logprobs: false,
                shard: 0,
                offset: 0,
            };
            log.append(&finished, &Body { tokens: &tokens, ..Body::default() })?;
        }
        log.commit()
    });
    ended.map_err(wrong)?;
    if log.stored() == u64::from(RECORDS) { Ok(RECORDS.into()) } else { Err(wrong("records are missing")) }
}

/// A model in Hugging Face's files is read.
fn import_model() -> Result<u64, BenchError> {
    let folder = tempfile::tempdir().map_err(wrong)?;
    let exact = published(&micro().model, MICRO_ROPE_BASE, None);
    write_directory(folder.path(), &exact).map_err(wrong)?;
    for_each_model(
        || import(folder.path()),
        |imported| {
            imported.model.shape == exact.shape
                && imported.model.tokens == exact.tokens
                && imported.model.layers.len() == exact.layers.len()
        },
    )
}

/// Its weights become integers.
fn quantise_model() -> Result<u64, BenchError> {
    let exact = published(&micro().model, MICRO_ROPE_BASE, None);
    for_each_model(|| quantise(black_box(&exact)), |model| model.layers.len() == exact.layers.len())
}

/// An image of integers is read, with all that is held against it.
fn read_image() -> Result<u64, BenchError> {
    let image = micro();
    let bytes = image.to_bytes();
    for_each_model(|| Image::from_bytes(black_box(&bytes)), |read| *read == image)
}

/// Makes a few models, and looks whether the last one is right.
fn for_each_model<M, E: Display>(
    mut make: impl FnMut() -> Result<M, E>,
    is_right: impl FnOnce(&M) -> bool,
) -> Result<u64, BenchError> {
    let mut last = None;
    timed(|| (0..MODELS).for_each(|_| last = Some(make())));
    let last = last.ok_or_else(|| wrong("no model was made"))?.map_err(wrong)?;
    if is_right(&last) { Ok(MODELS) } else { Err(wrong("the model is another")) }
}

/// Writes the weights as Hugging Face's Llama has them.
fn write_directory(folder: &Path, model: &float::Model) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![64, 32], bytes(&model.tokens)),
        ("model.norm.weight".to_owned(), vec![32], bytes(&model.last_gain)),
    ];
    for (number, layer) in model.layers.iter().enumerate() {
        let own = layer.key_value.as_ref().ok_or("a layer without keys and values")?;
        let parts: [(&str, &[f32], usize); 9] = [
            ("input_layernorm", &layer.attention_gain, 32),
            ("self_attn.q_proj", &layer.query, 32),
            ("self_attn.k_proj", &own.key, 32),
            ("self_attn.v_proj", &own.value, 32),
            ("self_attn.o_proj", &layer.output, 64),
            ("post_attention_layernorm", &layer.hidden_gain, 32),
            ("mlp.gate_proj", &layer.gate, 32),
            ("mlp.up_proj", &layer.up, 32),
            ("mlp.down_proj", &layer.down, 32),
        ];
        for (name, values, columns) in parts {
            let rows = values.len() / columns;
            let shape = if rows == 1 { vec![columns] } else { vec![rows, columns] };
            tensors.push((format!("model.layers.{number}.{name}.weight"), shape, bytes(values)));
        }
    }
    let mut views = vec![];
    for (name, shape, bytes) in &tensors {
        views.push((name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes)?));
    }
    let config = json!({
        "model_type": "llama", "tie_word_embeddings": true, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 32,
        "vocab_size": 64, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "eos_token_id": [0, 2],
    });
    fs::write(folder.join("model.safetensors"), serialize(views, None)?)?;
    fs::write(folder.join("config.json"), config.to_string())?;
    fs::write(folder.join("tokenizer.json"), &micro().about.tokenizer)?;
    Ok(())
}
