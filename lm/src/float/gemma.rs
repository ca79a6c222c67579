//! Gemma 3N's equations, as its authors' `Gemma3nForCausalLM` of transformers computes them: a pass with many tokens, of which one is a
//! special case.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use rayon::prelude::*;

use super::batch::{Rows, multiply};
use super::{Cache, GemmaLayer, GemmaParts, KeyValue, Layer, Model, add, row};
use crate::shape::{Gemma, STREAMS, Shape};

/// How many standard deviations above its mean 5 % of a normal distribution lie.
const CUT: f64 = 1.644_853_6;

/// Mean square that a stream counts as having at least where it is rescaled.
const LEAST: f64 = 1e-5;

/// Largest logit.
const CAP: f64 = 30.0;

/// The residual streams of one token.
type Streams = [Vec<f64>; STREAMS];

/// Runs tokens behind those in `cache`; the mean of their residual streams behind the last layer.
pub(super) fn extend(model: &Model, parts: &GemmaParts, cache: &mut Cache, tokens: &[u32]) -> Rows {
    let Shape { width, .. } = model.shape;
    let embedding_width = shape(model).embedding;
    let root = (width as f64).sqrt();
    let first: Rows = tokens.iter().map(|&token| scaled(model.embed(token), root)).collect();
    let others = parts.split.each_ref().map(|matrix| multiply(matrix, &first));
    let mut streams: Vec<Streams> = (0..tokens.len())
        .map(|at| {
            let [a, b, c] = others.each_ref().map(|others| rescaled(&others[at], &first[at]));
            [first[at].clone(), a, b, c]
        })
        .collect();
    for (number, layer) in model.layers.iter().enumerate() {
        let gemma = of(layer);
        let projected = multiply(&gemma.projection, &first);
        let embeddings = projected.into_iter().zip(tokens).map(|(projected, &token)| {
            let mut embedding = model.normalise(&scaled(projected, 1.0 / root), &gemma.projection_gain);
            let held = row(&gemma.embedding, embedding_width, token);
            add(&mut embedding, &scaled(held, (embedding_width as f64).sqrt()));
            scaled(embedding, FRAC_1_SQRT_2)
        });
        let embeddings: Rows = embeddings.collect();

        let active: Rows = streams.iter().map(|streams| streams[0].clone()).collect();
        let coefficients = routed(model, gemma, &gemma.predict, &active);
        for (streams, coefficients) in streams.iter_mut().zip(&coefficients) {
            *streams = predicted(streams, coefficients);
        }
        let active: Rows = streams.iter().map(|streams| streams[0].clone()).collect();
        let found = found(model, number, cache, &active);
        let coefficients = routed(model, gemma, &gemma.correct, &found);
        for (((streams, active), found), coefficients) in
            streams.iter_mut().zip(&active).zip(&found).zip(&coefficients)
        {
            for (stream, coefficient) in streams.iter_mut().zip(coefficients) {
                for ((x, active), found) in stream.iter_mut().zip(active).zip(found) {
                    *x += (coefficient + 1.0) * (found - active);
                }
            }
        }
        let corrected: Rows = streams
            .iter()
            .map(|streams| {
                streams[0]
                    .iter()
                    .zip(&gemma.corrected_scale)
                    .map(|(x, &scale)| x * f64::from(scale))
                    .collect()
            })
            .collect();
        let gates = multiply(&gemma.embedding_gate, &corrected);
        let gated: Rows =
            gates.iter().zip(&embeddings).map(|(gate, embedding)| gated(gate, embedding)).collect();
        let addends = model.inputs(&multiply(&gemma.embedding_output, &gated), &gemma.embedding_gain);
        for (streams, addend) in streams.iter_mut().zip(&addends) {
            streams[1..].iter_mut().for_each(|stream| add(stream, addend));
        }
    }
    let mut sums: Rows = streams.iter().map(|streams| streams[0].clone()).collect();
    for (other, matrix) in (1..).zip(&parts.merge) {
        let inputs: Rows = streams.iter().map(|streams| streams[other].clone()).collect();
        for ((sum, merged), streams) in sums.iter_mut().zip(multiply(matrix, &inputs)).zip(&streams) {
            add(sum, &rescaled(&merged, &streams[0]));
        }
    }
    sums.into_iter().map(|sum| scaled(sum, 1.0 / STREAMS as f64)).collect()
}

fn shape(model: &Model) -> Gemma {
    model.shape.gemma.expect("a model with these parts is of this shape")
}

fn of(layer: &Layer) -> &GemmaLayer {
    layer.gemma.as_ref().expect("a model of this shape has them in each layer")
}

fn scaled(mut values: Vec<f64>, factor: f64) -> Vec<f64> {
    values.iter_mut().for_each(|value| *value *= factor);
    values
}

fn mean_square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64
}

/// x with the root mean square of `like`.
fn rescaled(x: &[f64], like: &[f64]) -> Vec<f64> {
    scaled(x.to_vec(), mean_square(like).sqrt() / mean_square(x).max(LEAST).sqrt())
}

/// Coefficients for the streams, from one of them.
fn routed(model: &Model, gemma: &GemmaLayer, coefficients: &[f32], streams: &[Vec<f64>]) -> Rows {
    let inputs = model.inputs(streams, &gemma.router_gain);
    let inputs: Rows = inputs.into_iter().map(|x| scaled(x, 1.0 / model.shape.width as f64)).collect();
    let mut routes = multiply(&gemma.router, &inputs);
    routes.iter_mut().flatten().for_each(|route| *route = route.tanh());
    multiply(coefficients, &routes)
}

fn predicted(streams: &Streams, coefficients: &[f64]) -> Streams {
    std::array::from_fn(|which| {
        let mut stream = streams[which].clone();
        for (other, coefficient) in streams.iter().zip(&coefficients[which * STREAMS..]) {
            add(&mut stream, &scaled(other.clone(), *coefficient));
        }
        stream
    })
}

/// What a layer makes of the first stream.
fn found(model: &Model, number: usize, cache: &mut Cache, active: &[Vec<f64>]) -> Rows {
    let layer = &model.layers[number];
    let gemma = of(layer);
    let inputs = model.inputs(active, &layer.attention_gain);
    let attended = attended(model, number, cache, &inputs);
    let attended = model.inputs(&multiply(&layer.output, &attended), &gemma.output_gain);
    let laurels = multiply(&gemma.right, &multiply(&gemma.left, &inputs));
    let laurels = model.inputs(&laurels, &gemma.laurel_gain);
    let mut streams: Rows = active.to_vec();
    for (((x, attended), input), laurel) in streams.iter_mut().zip(&attended).zip(&inputs).zip(&laurels) {
        [attended, input, laurel].into_iter().for_each(|addend| add(x, addend));
        x.iter_mut().for_each(|x| *x *= FRAC_1_SQRT_2);
    }
    let inputs = model.inputs(&streams, &layer.hidden_gain);
    let [mut gates, ups] = [&layer.gate, &layer.up].map(|matrix| multiply(matrix, &inputs));
    if number < shape(model).cut {
        gates.iter_mut().for_each(|gate| cut(gate));
    }
    let hidden: Rows = gates.par_iter().zip(&ups).map(|(gate, up)| gated(gate, up)).collect();
    let addends = model.inputs(&multiply(&layer.down, &hidden), &gemma.down_gain);
    streams.iter_mut().zip(&addends).for_each(|(x, addend)| add(x, addend));
    streams
}

/// The means of values, all heads of a token behind each other.
fn attended(model: &Model, number: usize, cache: &mut Cache, inputs: &[Vec<f64>]) -> Rows {
    let (layer, shape) = (&model.layers[number], &model.shape);
    let global = model.gemma.as_ref().filter(|_| shape.is_global(number));
    let base = global.map_or(model.rope_base, |parts| parts.global_rope_base);
    let source = shape.kv_source(number);
    // Its own come to as many as those that it reads.
    let position = cache.0[source][0].len() - if layer.key_value.is_some() { 0 } else { inputs.len() };
    let heads = |matrix: &[f32], gain: &[f32], turned: bool| -> Rows {
        let mut rows = multiply(matrix, inputs);
        for (at, row) in rows.iter_mut().enumerate() {
            *row = row.chunks(shape.head_width).flat_map(|head| model.normalise(head, gain)).collect();
            if turned {
                model.rotate(base, row, position + at);
            }
        }
        rows
    };
    let queries = heads(&layer.query, &of(layer).query_gain, true);
    if let Some(KeyValue { key, value, gains: Some([key_gain, value_gain]) }) = &layer.key_value {
        cache.0[number][0].extend(heads(key, key_gain, true));
        cache.0[number][1].extend(heads(value, value_gain, false));
    }
    let [keys, values] = &cache.0[source];
    let mean = |at: usize| -> Vec<f64> {
        let heads = queries[at].chunks_exact(shape.head_width).enumerate();
        heads
            .flat_map(|(head, query)| model.attend((number, position + at), head, query, keys, values))
            .collect()
    };
    (0..inputs.len()).into_par_iter().map(mean).collect()
}

/// What a sparse layer leaves of its gate.
fn cut(gate: &mut [f64]) {
    let mean = gate.iter().sum::<f64>() / gate.len() as f64;
    let variance = gate.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / gate.len() as f64;
    let bound = mean + CUT * variance.sqrt();
    gate.iter_mut().for_each(|x| *x = (*x - bound).max(0.0));
}

/// GELU by the hyperbolic tangent, of the one, times the other.
fn gated(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(&gate, &up)| gelu(gate) * up).collect()
}

fn gelu(x: f64) -> f64 {
    x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()) / 2.0
}

/// A logit within ±30.
pub(super) fn softcap(logit: f64) -> f64 {
    CAP * (logit / CAP).tanh()
}
