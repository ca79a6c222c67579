//! What a config.json says.

use serde_json::Value;

use crate::import::{gemma, llama};
use doorbell_lm::FileError;
use doorbell_lm::{Gemma, STREAMS, Shape};

/// What it says of a model of either shape.
pub(super) enum Plan {
    Llama(llama::Plan),
    Gemma(gemma::Plan),
}

impl Plan {
    pub fn shape(&self) -> Shape {
        match self {
            Plan::Llama(plan) => plan.shape,
            Plan::Gemma(gemma) => gemma.plan.shape,
        }
    }
}

const LLAMA: &str = "llama";
const GEMMA: &str = "gemma3n_text";

/// Reads it.
pub(super) fn plan(config: &Value) -> Result<Plan, FileError> {
    match config["model_type"].as_str() {
        Some(LLAMA) => llama_plan(&Config { config, remedy: "give a model whose config.json says so" }),
        Some(GEMMA) => gemma_plan(&Config {
            config,
            remedy: "give a model of Gemma 3N's shape as docs/engine.md has it",
        }),
        _ => {
            let remedy = "give a model of one of these types";
            Err(Config { config, remedy }.wrong("model_type", "\"llama\" or \"gemma3n_text\""))
        }
    }
}

/// The file, as it is asked for.
struct Config<'c> {
    config: &'c Value,
    remedy: &'static str,
}

impl Config<'_> {
    fn at(&self, key: &str) -> &Value {
        &self.config[key]
    }

    fn wrong(&self, key: &str, expected: &str) -> FileError {
        let found = match self.at(key) {
            Value::Null => "it is missing".to_owned(),
            value => format!("it is {value}"),
        };
        FileError::new(key, format!("{found}, expected {expected}"), self.remedy)
    }

    fn expect(&self, key: &str, fits: bool, expected: &str) -> Result<(), FileError> {
        if fits { Ok(()) } else { Err(self.wrong(key, expected)) }
    }

    /// Whether it is missing, or says no.
    fn no(&self, key: &str) -> bool {
        matches!(self.at(key), Value::Null | Value::Bool(false))
    }

    fn count(&self, key: &str) -> Result<usize, FileError> {
        match self.at(key).as_u64() {
            Some(value) if value <= 1 << 20 => Ok(value as usize),
            _ => Err(self.wrong(key, "a number up to 1048576")),
        }
    }

    fn optional(&self, key: &str, otherwise: usize) -> Result<usize, FileError> {
        if self.at(key).is_null() { Ok(otherwise) } else { self.count(key) }
    }

    fn number(&self, value: &Value, key: &str) -> Result<f64, FileError> {
        value.as_f64().ok_or_else(|| self.wrong(key, "a number"))
    }
}

fn llama_plan(config: &Config<'_>) -> Result<Plan, FileError> {
    config.expect("tie_word_embeddings", *config.at("tie_word_embeddings") == true, "true")?;
    for key in ["attention_bias", "mlp_bias"] {
        config.expect(key, config.no(key), "false")?;
    }
    let scaling = config.at("rope_scaling");
    let none = config.no("rope_scaling") || scaling.as_object().is_some_and(serde_json::Map::is_empty);
    config.expect("rope_scaling", none || is_default(scaling), "null")?;
    let whole = config.at("partial_rotary_factor");
    config.expect("partial_rotary_factor", whole.is_null() || whole.as_f64() == Some(1.0), "1")?;
    let silu = matches!(config.at("hidden_act").as_str(), None | Some("silu"));
    config.expect("hidden_act", silu, "\"silu\"")?;
    // Like transformers, prefer the older name.
    let rope = if none { config.at("rope_parameters") } else { scaling };
    config.expect(
        "rope_parameters",
        is_plain(config.at("rope_parameters")),
        "rotations of type \"default\"",
    )?;
    let (width, heads) = (config.count("hidden_size")?, config.count("num_attention_heads")?);
    let base = [&rope["rope_theta"], config.at("rope_theta")].into_iter().find(|base| !base.is_null());
    Ok(Plan::Llama(llama::Plan {
        shape: Shape {
            width,
            layers: config.count("num_hidden_layers")?,
            heads,
            kv_heads: config.optional("num_key_value_heads", heads)?,
            head_width: config.optional("head_dim", width.checked_div(heads).unwrap_or(0))?,
            hidden: config.count("intermediate_size")?,
            vocabulary: config.count("vocab_size")?,
            context: config.count("max_position_embeddings")?,
            gemma: None,
            kv_cap: None,
        },
        epsilon: config.number(config.at("rms_norm_eps"), "rms_norm_eps")?,
        rope_base: base.map_or(Ok(10_000.0), |base| config.number(base, "rope_theta"))?,
    }))
}

/// Whether rotations are not scaled: every type that is told is "default", and nothing else scales.
fn is_plain(rope: &Value) -> bool {
    if !(rope.is_null() || rope.is_object()) {
        return false;
    }
    let kinds = ["rope_type", "type"].map(|key| &rope[key]);
    let default = kinds.iter().all(|kind| kind.is_null() || **kind == "default");
    let one = |key: &str| rope[key].is_null() || rope[key].as_f64() == Some(1.0);
    default && one("factor") && one("partial_rotary_factor")
}

/// Whether a `rope_scaling` says by its type that it scales nothing.
fn is_default(rope: &Value) -> bool {
    (rope["rope_type"] == "default" || rope["type"] == "default") && is_plain(rope)
}

fn gemma_plan(config: &Config<'_>) -> Result<Plan, FileError> {
    // What transformers leaves out where it is what every model of this type has.
    let tied = matches!(config.at("tie_word_embeddings"), Value::Null | Value::Bool(true));
    config.expect("tie_word_embeddings", tied, "true")?;
    config.expect("attention_bias", config.no("attention_bias"), "false")?;
    // A base given there would differ from the ones read below.
    let scaling = config.at("rope_scaling");
    let plain = is_default(scaling) && scaling["rope_theta"].is_null();
    config.expect("rope_scaling", config.no("rope_scaling") || plain, "null")?;
    config.expect(
        "hidden_activation",
        *config.at("hidden_activation") == "gelu_pytorch_tanh",
        "\"gelu_pytorch_tanh\"",
    )?;
    let is = |key: &str, value: f64| config.at(key).as_f64() == Some(value);
    config.expect("final_logit_softcapping", is("final_logit_softcapping", 30.0), "30")?;
    config.expect("altup_num_inputs", is("altup_num_inputs", STREAMS as f64), "4")?;
    config.expect("altup_active_idx", is("altup_active_idx", 0.0), "0")?;
    let scaled = config.at("altup_correct_scale").as_bool();
    let scaled = scaled.ok_or_else(|| config.wrong("altup_correct_scale", "true or false"))?;

    let (layers, vocabulary) = (config.count("num_hidden_layers")?, config.count("vocab_size")?);
    let same = config.count("vocab_size_per_layer_input")? == vocabulary;
    config.expect("vocab_size_per_layer_input", same, &format!("{vocabulary}, as vocab_size is"))?;
    let shared = config.count("num_kv_shared_layers")?;
    let own = layers.checked_sub(shared);
    let own = own.ok_or_else(|| config.wrong("num_kv_shared_layers", &format!("at most {layers}")))?;
    let [rope_base, global_rope_base] = gemma_rotations(config)?;
    Ok(Plan::Gemma(gemma::Plan {
        plan: llama::Plan {
            shape: Shape {
                width: config.count("hidden_size")?,
                layers,
                heads: config.count("num_attention_heads")?,
                kv_heads: config.count("num_key_value_heads")?,
                head_width: config.count("head_dim")?,
                hidden: hidden(config, layers)?,
                vocabulary,
                context: config.count("max_position_embeddings")?,
                gemma: Some(Gemma {
                    embedding: config.count("hidden_size_per_layer_input")?,
                    laurel: config.count("laurel_rank")?,
                    window: config.count("sliding_window")?,
                    global: global(config, layers)?,
                    own,
                    cut: cut(config, layers)?,
                }),
                kv_cap: None,
            },
            epsilon: config.number(config.at("rms_norm_eps"), "rms_norm_eps")?,
            rope_base,
        },
        global_rope_base,
        scaled,
    }))
}

/// Bases of the rotations: of local layers, of global ones.
fn gemma_rotations(config: &Config<'_>) -> Result<[f64; 2], FileError> {
    let rope = config.at("rope_parameters");
    if rope.is_null() {
        let base = |key: &str| config.number(config.at(key), key);
        return Ok([base("rope_local_base_freq")?, base("rope_theta")?]);
    }
    let base = |kind: &str| {
        let base = rope[kind]["rope_theta"].as_f64().filter(|_| is_plain(&rope[kind]));
        base.ok_or_else(|| {
            config
                .wrong("rope_parameters", &format!("rotations of type \"default\" and their base of {kind}"))
        })
    };
    Ok([base("sliding_attention")?, base("full_attention")?])
}

/// Channels between the halves of a feed-forward layer: one number, or the same for each layer.
fn hidden(config: &Config<'_>, layers: usize) -> Result<usize, FileError> {
    const KEY: &str = "intermediate_size";
    let Value::Array(list) = config.at(KEY) else { return config.count(KEY) };
    let first = list.first().and_then(Value::as_u64).filter(|&first| first <= 1 << 20);
    let same = list.len() == layers && list.iter().all(|value| value.as_u64() == first);
    let first = first
        .filter(|_| same)
        .ok_or_else(|| config.wrong(KEY, &format!("a number up to 1048576, or {layers} times the same")))?;
    Ok(first as usize)
}

/// Every so many layers one is global.
fn global(config: &Config<'_>, layers: usize) -> Result<usize, FileError> {
    const KEY: &str = "layer_types";
    let wrong = || {
        let expected = format!(
            "{layers} times \"sliding_attention\" or \"full_attention\", the latter every so many layers, as the last of them"
        );
        config.wrong(KEY, &expected)
    };
    let list = config.at(KEY).as_array().filter(|list| list.len() == layers).ok_or_else(wrong)?;
    let global = 1 + list.iter().position(|kind| kind == "full_attention").ok_or_else(wrong)?;
    let fits = list.iter().enumerate().all(|(layer, kind)| {
        kind == if layer % global == global - 1 { "full_attention" } else { "sliding_attention" }
    });
    if fits { Ok(global) } else { Err(wrong()) }
}

/// Layers that cut their gate, the first ones.
fn cut(config: &Config<'_>, layers: usize) -> Result<usize, FileError> {
    const KEY: &str = "activation_sparsity_pattern";
    let wrong =
        || config.wrong(KEY, &format!("{layers} numbers, 0.95 for the first layers and 0 for all others"));
    let list = config.at(KEY).as_array().filter(|list| list.len() == layers).ok_or_else(wrong)?;
    let cut = list.iter().take_while(|share| share.as_f64() == Some(0.95)).count();
    let rest = list[cut..].iter().all(|share| share.as_f64() == Some(0.0));
    if rest { Ok(cut) } else { Err(wrong()) }
}
