//! A step of a model of Gemma 3N's shape: docs/engine.md, Gemma 3N.

use super::Oracle;
use crate::ops::{
    RESIDUAL, activate_plain, activate_tanh, add, blend, correct, cut, embed_within, gelu, level, multiply,
    normalise, predict, product, rescale,
};
use crate::oracle::Cache;
use crate::rival::{Rival, is};
use crate::weights::{Gain, GemmaLayer, GemmaParts, Layer, Matrix};

/// How many standard deviations above its mean a gate has to be in a sparse layer, with 16 fraction bits: 1.6448536, which 5 % of a normal
/// distribution are.
pub const CUT: u32 = 107_797;

/// What ε is multiplied by where a sum of four streams stands for their mean.
pub const SUMMED: u32 = 16;

/// The residual stream behind the last layer: the sum of all of them.
pub(super) fn step(
    oracle: &Oracle<'_>,
    parts: &GemmaParts,
    cache: &mut Cache,
    token: u32,
    first: Vec<i32>,
) -> Vec<i32> {
    let epsilon = oracle.model.epsilon;
    let input = activate_plain(&wide(&first));
    let others = parts.split.iter().map(|matrix| rescale(&multiply(matrix, &input), &first, epsilon));
    let others: Vec<Vec<i32>> = others.collect();
    let mut streams = vec![first];
    streams.extend(others);
    for (number, layer) in oracle.model.layers.iter().enumerate() {
        let gemma = layer.gemma.as_ref().expect("a model of this shape has them in each layer");
        let mut embedding = level(&multiply(&gemma.projection, &input), &gemma.projection_gain, epsilon);
        let bound = if is(Rival::RowIsNotBounded) { i32::MAX } else { RESIDUAL };
        add(&mut embedding, embed_within(&gemma.embedding, token as usize, bound));

        streams = predict(&streams, &route(&gemma.predict, gemma, &streams[0], epsilon));
        let found = found(oracle, number, cache, &streams[0]);
        correct(&mut streams, &found, &route(&gemma.correct, gemma, &found, epsilon));

        let gate = multiply(&gemma.embedding_gate, &activate_plain(&wide(&streams[0])));
        let addend = multiply(&gemma.embedding_output, &gated(&gate, &embedding));
        let addend = level(&addend, &gemma.embedding_gain, epsilon);
        for stream in &mut streams[1..] {
            if is(Rival::StreamsAreNotBounded) {
                stream.iter_mut().zip(&addend).for_each(|(x, addend)| *x = x.saturating_add(*addend));
            } else {
                add(stream, addend.iter().copied());
            }
        }
    }
    let mut streams = streams.into_iter();
    let first = streams.next().expect("there are four");
    let mut sum = first.clone();
    for (stream, matrix) in streams.zip(&parts.merge) {
        add(&mut sum, rescale(&multiply(matrix, &activate_plain(&wide(&stream))), &first, epsilon));
    }
    sum
}

/// Coefficients for the streams, from one of them.
fn route(coefficients: &Matrix, gemma: &GemmaLayer, stream: &[i32], epsilon: u32) -> Vec<i32> {
    let mut routes = multiply(&gemma.router, &normalise(stream, &gemma.router_gain, epsilon));
    routes.resize(coefficients.columns, 0);
    multiply(coefficients, &activate_tanh(&routes))
}

/// What a layer makes of the first stream.
fn found(oracle: &Oracle<'_>, number: usize, cache: &mut Cache, x: &[i32]) -> Vec<i32> {
    let layer = &oracle.model.layers[number];
    let epsilon = oracle.model.epsilon;
    let gemma = layer.gemma.as_ref().expect("a model of this shape has them in each layer");
    let levelled = level(x, &layer.attention_gain, epsilon);
    let input = activate_plain(&wide(&levelled));
    let mut laurel = level(
        &multiply(&gemma.right, &activate_plain(&wide(&multiply(&gemma.left, &input)))),
        &gemma.laurel_gain,
        epsilon,
    );
    add(&mut laurel, levelled);
    let mut attended = level(&oracle.attend(number, cache, &input), &gemma.output_gain, epsilon);
    add(&mut attended, x.iter().copied());
    let mut x: Vec<i32> = attended.iter().zip(&laurel).map(|(&a, &b)| blend(a, b)).collect();
    let addend = feed_forward(oracle, number, layer, &gemma.down_gain, &x);
    add(&mut x, addend);
    x
}

fn feed_forward(oracle: &Oracle<'_>, number: usize, layer: &Layer, gain: &Gain, x: &[i32]) -> Vec<i32> {
    let epsilon = oracle.model.epsilon;
    let input = normalise(x, &layer.hidden_gain, epsilon);
    let (mut gate, up) = (multiply(&layer.gate, &input), multiply(&layer.up, &input));
    if oracle.model.shape.gemma.is_some_and(|gemma| number < gemma.cut) {
        gate = cut(&gate, CUT);
    }
    level(&multiply(&layer.down, &gated(&gate, &up)), gain, epsilon)
}

/// The activation of GELU of the one, times the other.
fn gated(gate: &[i32], up: &[i32]) -> crate::ops::Activation {
    let products: Vec<i64> = gate.iter().zip(up).map(|(&gate, &up)| product(gelu(gate), up)).collect();
    activate_plain(&products)
}

fn wide(values: &[i32]) -> Vec<i64> {
    values.iter().map(|&value| value.into()).collect()
}
