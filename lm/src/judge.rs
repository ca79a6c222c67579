//! How good the integers are, against the published equations in 64-bit floating point.

use std::f64::consts::SQRT_2;

use rayon::prelude::*;

use crate::fast::Runner;
use crate::float::{self, divergence, log_softmax};
use crate::number::FRACTION;
use crate::ops::BLOCK;
use crate::oracle::{Cache, Oracle};
use crate::shape::{STREAMS, Shape};
use crate::weights::{Gain, GemmaLayer, Matrix, Model};

/// Positions whose logits are there at once.
const AT_ONCE: usize = 32;

/// What was found, over all positions so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Positions.
    pub positions: u64,
    /// Those whose successor is known.
    pub followed: u64,
    /// Sum of the divergences of the integers' distribution from the exact one, in nats.
    pub divergence: f64,
    /// The largest of them.
    pub largest: f64,
    /// Sum of the successors' log-probabilities, exactly and by the integers.
    pub logs: [f64; 2],
    /// Positions at which both find the same token most likely.
    pub agreed: u64,
    /// Largest scale of a stored key or value; at 65,535 one may have been cut.
    pub largest_scale: u32,
}

impl Judgement {
    /// Mean divergence, in nats.
    pub fn mean_divergence(&self) -> f64 {
        self.divergence / self.positions.max(1) as f64
    }

    /// Perplexities, exactly and by the integers.
    pub fn perplexities(&self) -> [f64; 2] {
        self.logs.map(|log| (-log / self.followed.max(1) as f64).exp())
    }

    /// Share of the positions at which both find the same token most likely.
    pub fn agreement(&self) -> f64 {
        self.agreed as f64 / self.positions.max(1) as f64
    }

    /// Counts what was found elsewhere too.
    pub fn add(&mut self, other: &Self) {
        self.positions += other.positions;
        self.followed += other.followed;
        self.divergence += other.divergence;
        self.largest = self.largest.max(other.largest);
        (self.logs[0], self.logs[1]) = (self.logs[0] + other.logs[0], self.logs[1] + other.logs[1]);
        self.agreed += other.agreed;
        self.largest_scale = self.largest_scale.max(other.largest_scale);
    }
}

/// Judges one sequence: each of its positions sees those before it.
///
/// # Panics
/// If the vocabulary has no such token, or the context no room for them.
pub fn judge(exact: &float::Model, held: &Model, tokens: &[u32]) -> Judgement {
    let runner = Runner::new(held);
    let exact_streams = exact.streams(tokens);
    let mut cache = Cache::new(held);
    let held_streams = runner.extend(&mut cache, tokens);
    let stored = cache.layers.iter().flatten().flatten().flatten();
    let largest_scale = stored.map(|stored| stored.scale).max().unwrap_or(0);
    let mut judgement = Judgement { largest_scale, ..Judgement::default() };
    let parts = exact_streams.chunks(AT_ONCE).zip(held_streams.chunks(AT_ONCE));
    for (part, (exact_part, held_part)) in parts.enumerate() {
        let logits = exact.logits(exact_part).into_par_iter().zip(runner.logits(held_part));
        let judged: Vec<Judgement> = logits
            .enumerate()
            .map(|(index, (exact, held))| {
                position(&exact, &held, tokens.get(part * AT_ONCE + index + 1).copied())
            })
            .collect();
        // In order, so that the sums are the same each time.
        judged.iter().for_each(|other| judgement.add(other));
    }
    judgement
}

/// Whether one pass over all tokens gives what the plain oracle gives for each: every logit, key and value.
///
/// # Panics
/// As [`judge`].
pub fn vouches(model: &Model, tokens: &[u32]) -> bool {
    let (oracle, mut plain) = (Oracle::new(model), Cache::new(model));
    let runner = Runner::new(model);
    let mut cache = Cache::new(model);
    let logits = runner.logits(&runner.extend(&mut cache, tokens));
    let each = tokens.iter().map(|&token| oracle.logits(&oracle.step(&mut plain, token)));
    each.eq(logits) && cache == plain
}

fn position(exact: &[f64], held: &[i32], next: Option<u32>) -> Judgement {
    let held: Vec<f64> = held.iter().map(|&logit| f64::from(logit) / f64::from(1 << FRACTION)).collect();
    let logs = [log_softmax(exact), log_softmax(&held)];
    let divergence = divergence(&logs[0], &logs[1]);
    Judgement {
        positions: 1,
        followed: u64::from(next.is_some()),
        divergence,
        largest: divergence,
        logs: [0, 1].map(|which| next.map_or(0.0, |next| logs[which][next as usize])),
        agreed: u64::from(most_likely(&logs[0]) == most_likely(&logs[1])),
        largest_scale: 0,
    }
}

fn most_likely(logs: &[f64]) -> usize {
    logs.iter()
        .enumerate()
        .fold((0, f64::NEG_INFINITY), |best, (at, &log)| if log > best.1 { (at, log) } else { best })
        .0
}

/// The numbers that the integers of an image stand for, as a model for 64-bit floating point: for one that was never published. An image
/// has its rotations as tables, so their bases are to be told: of all layers, or of the local ones and the global ones.
///
/// # Panics
/// If a model of Gemma 3N's shape is given no base for its global layers.
pub fn published(model: &Model, rope_base: f64, global_rope_base: Option<f64>) -> float::Model {
    let shape = &model.shape;
    // What an importer put into other things is taken out of them again, but for the scale of corrected outputs, which is 1 here.
    let root = if model.gemma.is_some() { (shape.width as f64).sqrt() } else { 1.0 };
    let layers = model.layers.iter().map(|layer| float::Layer {
        attention_gain: factors(&layer.attention_gain, 1.0),
        query: numbers(&layer.query, 1.0),
        key_value: layer.key_value.as_ref().map(|own| float::KeyValue {
            key: numbers(&own.key, 1.0),
            value: numbers(&own.value, 1.0),
            gains: own.gains.as_ref().map(|gains| gains.each_ref().map(|gain| factors(gain, 1.0))),
        }),
        output: numbers(&layer.output, 1.0),
        hidden_gain: factors(&layer.hidden_gain, 1.0),
        gate: numbers(&layer.gate, 1.0),
        up: numbers(&layer.up, 1.0),
        down: numbers(&layer.down, 1.0),
        gemma: layer.gemma.as_ref().map(|gemma| Box::new(published_layer(gemma, shape))),
    });
    let all = |matrices: &[Matrix; STREAMS - 1]| matrices.each_ref().map(|matrix| numbers(matrix, 1.0));
    float::Model {
        shape: *shape,
        epsilon: f64::from(model.epsilon) / f64::from(1 << 20),
        rope_base,
        tokens: numbers(&model.tokens, 1.0 / root),
        layers: layers.collect(),
        last_gain: factors(&model.last_gain, root),
        gemma: model.gemma.as_ref().map(|parts| {
            Box::new(float::GemmaParts {
                global_rope_base: global_rope_base.expect("a model with global layers has a base for them"),
                split: all(&parts.split),
                merge: all(&parts.merge),
            })
        }),
    }
}

fn published_layer(layer: &GemmaLayer, shape: &Shape) -> float::GemmaLayer {
    let root = |channels: usize| (channels as f64).sqrt();
    let coefficients = |matrix: &Matrix| -> Vec<f32> {
        numbers(matrix, 1.0).chunks(BLOCK).flat_map(|row| row[..STREAMS].to_vec()).collect()
    };
    float::GemmaLayer {
        router_gain: factors(&layer.router_gain, shape.width as f64),
        router: numbers(&layer.router, 1.0),
        predict: coefficients(&layer.predict),
        correct: coefficients(&layer.correct),
        query_gain: factors(&layer.query_gain, 1.0 / root(shape.head_width)),
        output_gain: factors(&layer.output_gain, 1.0),
        left: numbers(&layer.left, 1.0),
        right: numbers(&layer.right, 1.0),
        laurel_gain: factors(&layer.laurel_gain, 1.0),
        down_gain: factors(&layer.down_gain, 1.0),
        embedding: numbers(&layer.embedding, SQRT_2 / root(layer.embedding.columns)),
        projection: numbers(&layer.projection, root(shape.width)),
        projection_gain: factors(&layer.projection_gain, SQRT_2),
        corrected_scale: vec![1.0; shape.width],
        embedding_gate: numbers(&layer.embedding_gate, 1.0),
        embedding_output: numbers(&layer.embedding_output, 1.0),
        embedding_gain: factors(&layer.embedding_gain, 1.0),
    }
}

/// What a matrix stands for, times a factor.
fn numbers(matrix: &Matrix, factor: f64) -> Vec<f32> {
    let rows = matrix.weights.chunks_exact(matrix.columns).zip(&matrix.rows);
    let unit = |&scale: &u16| f64::from(scale) * 2f64.powi(matrix.exponent) * factor;
    rows.flat_map(|(row, scale)| row.iter().map(move |&weight| (f64::from(weight) * unit(scale)) as f32))
        .collect()
}

/// What a gain stands for, times a factor.
fn factors(gain: &Gain, factor: f64) -> Vec<f32> {
    let unit = 2f64.powi(gain.exponent) * factor;
    gain.factors.iter().map(|&value| (f64::from(value) * unit) as f32).collect()
}

#[cfg(test)]
mod tests;
