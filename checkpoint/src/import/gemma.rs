//! A model of Gemma 3N's shape, from tensors by the names of transformers' `Gemma3nForCausalLM`.

use super::llama::{self, Source, neighbours};
use doorbell_lm::FileError;
use doorbell_lm::float::{GemmaLayer, GemmaParts, KeyValue, Layer, Model};
use doorbell_lm::{STREAMS, Shape};

/// What a configuration says.
pub(super) struct Plan {
    /// As of Llama's shape; the base of the rotations is that of local layers.
    pub plan: llama::Plan,
    pub global_rope_base: f64,
    /// Whether the corrected first stream is scaled ahead of the layer's embedding.
    pub scaled: bool,
}

const TOKENS: &str = "model.embed_tokens.weight";
const EMBEDDINGS: &str = "model.embed_tokens_per_layer.weight";
const PROJECTION: &str = "model.per_layer_model_projection.weight";
const PROJECTION_GAIN: &str = "model.per_layer_projection_norm.weight";
const LAST_GAIN: &str = "model.norm.weight";

/// Of a layer that reads another's keys and values these may be there, and mean nothing.
const OWN: [&str; 3] = ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"];

const LAYER: [&str; 24] = [
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "post_per_layer_input_norm.weight",
    "self_attn.q_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "altup.correct_output_scale",
    "altup.correction_coefs.weight",
    "altup.prediction_coefs.weight",
    "altup.modality_router.weight",
    "altup.router_norm.weight",
    "laurel.linear_left.weight",
    "laurel.linear_right.weight",
    "laurel.post_laurel_norm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "per_layer_input_gate.weight",
    "per_layer_projection.weight",
    OWN[0],
    OWN[1],
    OWN[2],
];

fn split(stream: usize) -> String {
    format!("model.altup_projections.{}.weight", stream - 1)
}

fn merge(stream: usize) -> String {
    format!("model.altup_unembed_projections.{}.weight", stream - 1)
}

/// Reads the model.
pub(super) fn read(source: &dyn Source, plan: Plan) -> Result<Model, FileError> {
    let Plan { plan, global_rope_base, scaled } = plan;
    plan.check(&[plan.rope_base, global_rope_base])?;
    let shape = plan.shape;
    refuse_others(source, &shape)?;
    let Shape { width, vocabulary, .. } = shape;
    let parts = shape.gemma.expect("the plan is one of this shape");
    let all = shape.layers * parts.embedding;
    let embeddings = source.take(EMBEDDINGS, vocabulary, all)?;
    let projections = source.take(PROJECTION, all, width)?;
    let projection_gain = source.take(PROJECTION_GAIN, 1, parts.embedding)?;
    let layer = |number: usize| {
        // Of each token's row the part of this layer.
        let rows = embeddings.chunks_exact(all);
        let embedding: Vec<f32> =
            rows.flat_map(|row| &row[number * parts.embedding..][..parts.embedding]).copied().collect();
        let each = parts.embedding * width;
        let projection = projections[number * each..][..each].to_vec();
        read_layer(source, &shape, number, scaled, [embedding, projection, projection_gain.clone()])
    };
    let matrices = |name: fn(usize) -> String| -> Result<[Vec<f32>; STREAMS - 1], FileError> {
        let [a, b, c] = [1, 2, 3].map(|stream| source.take(&name(stream), width, width));
        Ok([a?, b?, c?])
    };
    Ok(Model {
        shape,
        epsilon: plan.epsilon,
        rope_base: plan.rope_base,
        tokens: source.take(TOKENS, vocabulary, width)?,
        layers: (0..shape.layers).map(layer).collect::<Result<_, FileError>>()?,
        last_gain: source.take(LAST_GAIN, 1, width)?,
        gemma: Some(Box::new(GemmaParts {
            global_rope_base,
            split: matrices(split)?,
            merge: matrices(merge)?,
        })),
    })
}

/// A tensor that nothing reads would change what the model says.
fn refuse_others(source: &dyn Source, shape: &Shape) -> Result<(), FileError> {
    let there = source.names();
    llama::refuse_head(&there, "lm_head.weight")?;
    let others = [TOKENS, EMBEDDINGS, PROJECTION, PROJECTION_GAIN, LAST_GAIN].map(str::to_owned);
    let streams = (1..STREAMS).flat_map(|stream| [split(stream), merge(stream)]);
    let known: Vec<String> = others.into_iter().chain(streams).collect();
    let of_a_layer = |name: &str| {
        let (number, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let fits = number.parse::<usize>().is_ok_and(|number| number < shape.layers) && LAYER.contains(&part);
        fits.then_some(())
    };
    let odd = there.iter().find(|name| !known.contains(name) && of_a_layer(name).is_none());
    odd.map_or(Ok(()), |odd| {
        Err(FileError::new(
            odd,
            "a model of Gemma 3N's shape has no such tensor",
            "give the language model alone, without biases and adapters",
        ))
    })
}

fn read_layer(
    source: &dyn Source,
    shape: &Shape,
    number: usize,
    scaled: bool,
    [embedding, projection, projection_gain]: [Vec<f32>; 3],
) -> Result<Layer, FileError> {
    let Shape { width, hidden, head_width, .. } = *shape;
    let parts = shape.gemma.expect("the plan is one of this shape");
    let (queries, keys) = (shape.heads * head_width, shape.kv_heads * head_width);
    let take = |part: &str, rows: usize, columns: usize| {
        source.take(&format!("model.layers.{number}.{part}"), rows, columns)
    };
    let gain = |part: &str| take(part, 1, width);
    // Rows of heads, and the gain of a head.
    let turned = |rows: Vec<f32>, columns: usize| neighbours(&rows, head_width, columns);
    let own = number < shape.kv_layers();
    let key_value = own.then(|| {
        Ok(KeyValue {
            key: turned(take(OWN[0], keys, width)?, width),
            value: take(OWN[1], keys, width)?,
            gains: Some([turned(take(OWN[2], 1, head_width)?, 1), vec![1.0; head_width]]),
        })
    });
    let corrected_scale = gain("altup.correct_output_scale")?;
    let gemma = GemmaLayer {
        router_gain: gain("altup.router_norm.weight")?,
        router: take("altup.modality_router.weight", STREAMS, width)?,
        predict: take("altup.prediction_coefs.weight", STREAMS * STREAMS, STREAMS)?,
        correct: take("altup.correction_coefs.weight", STREAMS, STREAMS)?,
        query_gain: turned(take("self_attn.q_norm.weight", 1, head_width)?, 1),
        output_gain: gain("post_attention_layernorm.weight")?,
        left: take("laurel.linear_left.weight", parts.laurel, width)?,
        right: take("laurel.linear_right.weight", width, parts.laurel)?,
        laurel_gain: gain("laurel.post_laurel_norm.weight")?,
        down_gain: gain("post_feedforward_layernorm.weight")?,
        embedding,
        projection,
        projection_gain,
        corrected_scale: if scaled { corrected_scale } else { vec![1.0; width] },
        embedding_gate: take("per_layer_input_gate.weight", parts.embedding, width)?,
        embedding_output: take("per_layer_projection.weight", width, parts.embedding)?,
        embedding_gain: gain("post_per_layer_input_norm.weight")?,
    };
    Ok(Layer {
        attention_gain: gain("input_layernorm.weight")?,
        query: turned(take("self_attn.q_proj.weight", queries, width)?, width),
        key_value: key_value.transpose()?,
        output: take("self_attn.o_proj.weight", width, queries)?,
        hidden_gain: gain("pre_feedforward_layernorm.weight")?,
        gate: take("mlp.gate_proj.weight", hidden, width)?,
        up: take("mlp.up_proj.weight", hidden, width)?,
        down: take("mlp.down_proj.weight", width, hidden)?,
        gemma: Some(Box::new(gemma)),
    })
}
