//! How good the integers are, against the published equations in 64-bit floating point.

use rayon::prelude::*;

use crate::fast::Runner;
use crate::float::{self, divergence, log_softmax};
use crate::number::FRACTION;
use crate::oracle::{Cache, Oracle};
use crate::weights::{Gain, KeyValue, Layer, Matrix, Model};

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
/// has its rotations as a table, so their base is to be told.
pub fn published(model: &Model, rope_base: f64) -> float::Model {
    let matrix = |matrix: &Matrix| -> Vec<f32> {
        let rows = matrix.weights.chunks_exact(matrix.columns).zip(&matrix.rows);
        let unit = |&scale: &u16| f64::from(scale) * 2f64.powi(matrix.exponent);
        rows.flat_map(|(row, scale)| row.iter().map(move |&weight| (f64::from(weight) * unit(scale)) as f32))
            .collect()
    };
    let gain = |gain: &Gain| -> Vec<f32> {
        gain.factors.iter().map(|&factor| (f64::from(factor) * 2f64.powi(gain.exponent)) as f32).collect()
    };
    let of = |part: fn(&KeyValue) -> &Matrix, layer: &Layer| {
        layer.key_value.as_ref().map_or(vec![], |own| matrix(part(own)))
    };
    let layers = model.layers.iter().map(|layer| float::Layer {
        attention_gain: gain(&layer.attention_gain),
        query: matrix(&layer.query),
        key: of(|own| &own.key, layer),
        value: of(|own| &own.value, layer),
        output: matrix(&layer.output),
        hidden_gain: gain(&layer.hidden_gain),
        gate: matrix(&layer.gate),
        up: matrix(&layer.up),
        down: matrix(&layer.down),
    });
    float::Model {
        shape: model.shape,
        epsilon: f64::from(model.epsilon) / f64::from(1 << 20),
        rope_base,
        tokens: matrix(&model.tokens),
        layers: layers.collect(),
        last_gain: gain(&model.last_gain),
    }
}

#[cfg(test)]
mod tests;
