//! How a client wants its answers drawn, by the names that vLLM and SGLang have in common.

use doorbell_contract::{GOLDEN, mix};
use doorbell_lm::sample::{Sharpness, Truncation};
use doorbell_runtime::pipeline::Draws;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Server;
use super::error::Wrong;
use super::named::{self, Seed};
use super::raw::Raw;
use crate::engine::{Ask, Stops};

/// One text, or several.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of texts")]
pub enum Texts {
    /// None.
    #[default]
    None,
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// Parameters of sampling. A field that is not here is in `rest`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sampling {
    #[serde(deserialize_with = "named::n")]
    pub n: Option<u32>,
    #[serde(deserialize_with = "named::temperature")]
    pub temperature: Option<f64>,
    #[serde(deserialize_with = "named::top_p")]
    pub top_p: Option<f64>,
    #[serde(deserialize_with = "named::top_k")]
    pub top_k: Option<i64>,
    #[serde(deserialize_with = "named::min_p")]
    pub min_p: Option<f64>,
    #[serde(deserialize_with = "named::seed")]
    pub seed: Option<Seed>,
    #[serde(deserialize_with = "named::sampling_seed")]
    pub sampling_seed: Option<Seed>,
    #[serde(deserialize_with = "named::max_tokens")]
    pub max_tokens: Option<u32>,
    #[serde(deserialize_with = "named::max_completion_tokens")]
    pub max_completion_tokens: Option<u32>,
    #[serde(deserialize_with = "named::max_new_tokens")]
    pub max_new_tokens: Option<u32>,
    #[serde(deserialize_with = "named::stop")]
    pub stop: Option<Texts>,
    #[serde(deserialize_with = "named::stop_token_ids")]
    pub stop_token_ids: Option<Vec<u32>>,
    #[serde(deserialize_with = "named::ignore_eos")]
    pub ignore_eos: Option<bool>,
    #[serde(deserialize_with = "named::include_stop_str_in_output")]
    pub include_stop_str_in_output: Option<bool>,
    /// SGLang's name of the same.
    #[serde(deserialize_with = "named::no_stop_trim")]
    pub no_stop_trim: Option<bool>,
    #[serde(deserialize_with = "named::prompt_logprobs")]
    pub prompt_logprobs: Option<u32>,
    #[serde(deserialize_with = "named::logprobs_mode")]
    pub logprobs_mode: Option<String>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What would change an answer and cannot be had, with the values that leave it as it is.
const NEUTRAL: [(&str, &[f64]); 8] = [
    ("repetition_penalty", &[1.0]),
    ("presence_penalty", &[0.0]),
    ("frequency_penalty", &[0.0]),
    ("min_tokens", &[0.0]),
    ("min_new_tokens", &[0.0]),
    ("length_penalty", &[1.0]),
    ("top_logprobs_num", &[0.0]),
    // As many as the model takes: longer ones are refused in any case.
    ("truncate_prompt_tokens", &[-1.0]),
];
/// The same of what is neutral only where it is missing, null, false or empty, or has the value that [`is_neutral`] knows.
const ABSENT: [&str; 43] = [
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "audio_data",
    "bad_words",
    "best_of",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "custom_logit_processor",
    "custom_params",
    "documents",
    "ebnf",
    "features",
    "functions",
    "guided_choice",
    "guided_decoding",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "image_data",
    "input_embeds",
    "json_schema",
    "logit_bias",
    "logits_processors",
    "lora_path",
    "mm_processor_kwargs",
    "prompt_embeds",
    "regex",
    "response_format",
    "return_hidden_states",
    "return_routed_experts",
    "return_text_in_logprobs",
    "session_params",
    "stop_regex",
    "structural_tag",
    "structured_outputs",
    "suffix",
    "thinking_token_budget",
    "token_ids_logprob",
    "tool_choice",
    "use_beam_search",
    "video_data",
];
/// What changes only how a text is told: left alone, and named unless it has this value or is empty.
const LEFT: [(&str, Value); 3] =
    [("skip_special_tokens", Value::Bool(true)), ("nvext", Value::Null), ("extra_args", Value::Null)];

/// Letters of the name of a field that was left alone.
const LONGEST: usize = 100;

/// Whether there is nothing in a value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether a field that cannot be had has a value with which it changes no answer.
fn is_neutral(name: &str, value: &Value, members: u32) -> bool {
    match (name, value) {
        ("add_generation_prompt", Value::Bool(adds)) => *adds,
        // A best of n is n itself.
        ("best_of", Value::Number(best)) => best.as_u64() == Some(members.into()),
        ("response_format", Value::Object(values)) if !values.is_empty() => {
            values.get("type").is_some_and(|kind| kind == "text")
        }
        ("tool_choice", Value::String(choice)) => matches!(&**choice, "auto" | "none"),
        (_, value) => *value == Value::Bool(false) || is_empty(value),
    }
}

/// Refuses fields that cannot be had, and tells which are not known and were left alone; `members` answers are asked for.
pub fn unknown(fields: &Map<String, Value>, known: &[&str], members: u32) -> Result<Vec<String>, Wrong> {
    let mut unknown = vec![];
    for (name, value) in fields {
        if let Some((_, neutral)) = NEUTRAL.iter().find(|(neutral, _)| neutral == name) {
            let is_neutral = value.as_f64().is_some_and(|value| neutral.contains(&value));
            if !value.is_null() && !is_neutral {
                let message = format!("{name} is {value}; only {} can be had", neutral[0]);
                return Err(Wrong::field(name, message));
            }
        } else if ABSENT.contains(&name.as_str()) {
            if !is_neutral(name, value, members) {
                return Err(Wrong::field(name, format!("{name} cannot be had; leave it out")));
            }
        } else if let Some((_, neutral)) = LEFT.iter().find(|(left, _)| left == name) {
            if value != neutral && !is_empty(value) {
                unknown.push(name.clone());
            }
        } else if !known.contains(&name.as_str()) {
            // Kept until the answer is told, however long the client made it.
            unknown.push(name.chars().take(LONGEST).collect());
        }
    }
    Ok(unknown)
}

impl Sampling {
    /// Refuses what cannot be had, and tells what is not known and was left alone.
    pub fn unknown(&self, known: &[&str]) -> Result<Vec<String>, Wrong> {
        unknown(&self.rest, known, self.members())
    }

    /// Answers to a prompt.
    pub fn members(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// The largest number of tokens of the answer, from whichever field gives it.
    fn most(&self) -> Option<u32> {
        self.max_completion_tokens.or(self.max_tokens).or(self.max_new_tokens)
    }

    /// Whether log-probabilities of the prompt's tokens are wanted.
    fn scores(&self) -> Result<bool, Wrong> {
        match self.prompt_logprobs {
            None => Ok(false),
            Some(0) => Ok(true),
            Some(most) => {
                let message = format!(
                    "prompt_logprobs is {most}; there are log-probabilities of the prompt's own tokens alone, so ask for 0"
                );
                Err(Wrong::field("prompt_logprobs", message))
            }
        }
    }

    /// Whether log-probabilities are to be those before temperature and truncation, by vLLM's names.
    pub fn wants_raw(&self) -> Result<bool, Wrong> {
        match self.logprobs_mode.as_deref() {
            None | Some("processed_logprobs") => Ok(false),
            Some("raw_logprobs") => Ok(true),
            Some(mode) => {
                let message =
                    format!("logprobs_mode is {mode}; it must be processed_logprobs or raw_logprobs");
                Err(Wrong::field("logprobs_mode", message))
            }
        }
    }

    /// What scores the answers to these asks, if raw log-probabilities are wanted.
    pub fn raw(&self, server: &Server, asks: &[Ask]) -> Result<Option<Raw>, Wrong> {
        if self.wants_raw()? { Raw::new(server, asks).map(Some) } else { Ok(None) }
    }

    /// The ask that this makes of a prompt; `key` draws where the client gave no seed, and an answer is `most` tokens long at most where it says
    /// nothing.
    pub fn ask(&self, prompt: Vec<u32>, most: u32, key: u64, streams: bool) -> Result<Ask, Wrong> {
        let temperature = self.temperature.unwrap_or(1.0);
        let sharpness = Sharpness::of(temperature).ok_or_else(|| {
            Wrong::field(
                "temperature",
                format!("temperature is {temperature}; it must be 0, or 0.006 to 1000000"),
            )
        })?;
        let (top_p, min_p) = (self.top_p.unwrap_or(1.0), self.min_p.unwrap_or(0.0));
        // SGLang's default names more tokens than any model has; both stand for all.
        let top_k = match self.top_k.unwrap_or(-1) {
            -1 | 0 => 0,
            k if (1..1 << 30).contains(&k) => k as u32,
            k if k >= 1 << 30 => 0,
            k => {
                return Err(Wrong::field(
                    "top_k",
                    format!("top_k is {k}; it must be -1 or 0 for all, or at least 1"),
                ));
            }
        };
        let truncation = Truncation::new(top_k, top_p, min_p).ok_or_else(|| {
            let message = format!("top_p is {top_p} and min_p is {min_p}; the first must be above 0 and at most 1, the second 0 to 1");
            Wrong::field("top_p", message)
        })?;
        let texts = match self.stop.clone().unwrap_or_default() {
            Texts::None => vec![],
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        };
        if texts.len() > 64 || texts.iter().any(|text| text.is_empty() || text.len() > 1024) {
            let message = "stop has an empty text, one of more than 1024 bytes, or more than 64 of them";
            return Err(Wrong::field("stop", message));
        }
        Ok(Ask {
            prompt,
            members: self.members(),
            most: self.most().unwrap_or(most),
            draws: Draws {
                sharpness: sharpness.0,
                key: self.seed.or(self.sampling_seed).map_or(key, |Seed(seed)| key_of(seed)),
                top_k: truncation.top_k,
                top_p: truncation.top_p,
                min_p: truncation.min_p,
            },
            ends: !self.ignore_eos.unwrap_or(false),
            stops: Stops {
                tokens: self.stop_token_ids.clone().unwrap_or_default(),
                texts,
                keeps_text: self.include_stop_str_in_output == Some(true) || self.no_stop_trim == Some(true),
            },
            streams,
            scored: self.scores()?,
            salt: 0,
        })
    }
}

/// The draw key of a seed: another one for each seed, never 0, and far from those of its neighbours, as answers of a group take the keys behind it.
pub fn key_of(seed: u64) -> u64 {
    let (low, high) = (seed as u32, (seed >> 32) as u32);
    let first = mix(low ^ mix(high.wrapping_add(GOLDEN)));
    let second = mix(high ^ mix(first));
    (u64::from(second) << 32 | u64::from(first)).max(1)
}
