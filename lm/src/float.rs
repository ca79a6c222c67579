//! The published equations in 64-bit floating point, to say how good the integers are. Nothing on the path of a token uses it.

mod batch;
mod gemma;

use crate::shape::{STREAMS, Shape};

/// One layer's weights, row by row.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct Layer {
    pub attention_gain: Vec<f32>,
    pub query: Vec<f32>,
    /// None where the layer reads those of another.
    pub key_value: Option<KeyValue>,
    pub output: Vec<f32>,
    pub hidden_gain: Vec<f32>,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    pub down: Vec<f32>,
    /// Of Gemma 3N's shape alone.
    pub gemma: Option<Box<GemmaLayer>>,
}

/// What makes a layer's keys and values.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct KeyValue {
    pub key: Vec<f32>,
    pub value: Vec<f32>,
    /// Of a head of keys, and of one of values, which are ones in what its authors publish; of Gemma 3N's shape alone.
    pub gains: Option<[Vec<f32>; 2]>,
}

/// What a layer of Gemma 3N's shape has besides, before anything is put into anything else.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct GemmaLayer {
    pub router_gain: Vec<f32>,
    pub router: Vec<f32>,
    /// Rows of 4.
    pub predict: Vec<f32>,
    /// Rows of 4.
    pub correct: Vec<f32>,
    pub query_gain: Vec<f32>,
    pub output_gain: Vec<f32>,
    pub left: Vec<f32>,
    pub right: Vec<f32>,
    pub laurel_gain: Vec<f32>,
    pub down_gain: Vec<f32>,
    /// A row for each token.
    pub embedding: Vec<f32>,
    pub projection: Vec<f32>,
    pub projection_gain: Vec<f32>,
    /// Of the first stream, ahead of `embedding_gate`.
    pub corrected_scale: Vec<f32>,
    pub embedding_gate: Vec<f32>,
    pub embedding_output: Vec<f32>,
    pub embedding_gain: Vec<f32>,
}

/// What Gemma 3N's shape has outside of the layers.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmaParts {
    /// Base of the rotations of global layers; the model's other one is that of local layers.
    pub global_rope_base: f64,
    /// From the first stream to each of the others, ahead of the first layer.
    pub split: [Vec<f32>; STREAMS - 1],
    /// Of each of the others, behind the last layer.
    pub merge: [Vec<f32>; STREAMS - 1],
}

/// A model as it was published.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it is made of.
    pub shape: Shape,
    /// Added to the mean square of what is normalised.
    pub epsilon: f64,
    /// Base of the rotations.
    pub rope_base: f64,
    /// A row for each token.
    pub tokens: Vec<f32>,
    /// In order.
    pub layers: Vec<Layer>,
    /// Before the last matrix.
    pub last_gain: Vec<f32>,
    /// Of Gemma 3N's shape alone.
    pub gemma: Option<Box<GemmaParts>>,
}

/// Keys and values by layer, position by position.
#[derive(Clone, Debug, Default)]
pub struct Cache(Vec<[Vec<Vec<f64>>; 2]>);

fn multiply(weights: &[f32], x: &[f64]) -> Vec<f64> {
    weights
        .chunks_exact(x.len())
        .map(|row| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum())
        .collect()
}

/// A token's row of a matrix with so many columns.
fn row(matrix: &[f32], columns: usize, token: u32) -> Vec<f64> {
    matrix[token as usize * columns..][..columns].iter().map(|&x| x.into()).collect()
}

impl Layer {
    /// What makes the keys and values, of a layer that has them.
    fn own(&self) -> &KeyValue {
        self.key_value.as_ref().expect("the layer has keys and values of its own")
    }
}

impl Model {
    /// The cache of an empty sequence.
    pub fn cache(&self) -> Cache {
        Cache(vec![[vec![], vec![]]; self.shape.kv_layers()])
    }

    fn normalise(&self, x: &[f64], gain: &[f32]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + self.epsilon).sqrt();
        x.iter().zip(gain).map(|(x, &gain)| x * factor * f64::from(gain)).collect()
    }

    fn rotate(&self, base: f64, heads: &mut [f64], position: usize) {
        let width = self.shape.head_width;
        for head in heads.chunks_exact_mut(width) {
            for (pair, turned) in head.chunks_exact_mut(2).enumerate() {
                let angle = position as f64 * base.powf(-2.0 * pair as f64 / width as f64);
                let (s, c) = angle.sin_cos();
                let [a, b] = [turned[0], turned[1]];
                (turned[0], turned[1]) = (a * c - b * s, a * s + b * c);
            }
        }
    }

    /// The mean of the values that a head of queries wants, of those that a layer's token at `position` sees; both are given from
    /// position 0 on.
    fn attend(
        &self,
        (number, position): (usize, usize),
        head: usize,
        query: &[f64],
        keys: &[Vec<f64>],
        values: &[Vec<f64>],
    ) -> Vec<f64> {
        let width = self.shape.head_width;
        // Gemma 3N's queries have a gain, and scores stay as they are.
        let divisor = if self.gemma.is_some() { 1.0 } else { (width as f64).sqrt() };
        let at = head / self.shape.sharing() * width;
        let dot = |key: &Vec<f64>| query.iter().zip(&key[at..]).map(|(q, k)| q * k).sum::<f64>();
        let seen: Vec<usize> = self.shape.seen(number, position).blocks(position).flatten().collect();
        let scores: Vec<f64> = seen.iter().map(|&at| dot(&keys[at]) / divisor).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let all: f64 = weights.iter().sum();
        let mut mean = vec![0.0; width];
        for (weight, &token) in weights.iter().zip(&seen) {
            mean.iter_mut().zip(&values[token][at..]).for_each(|(mean, value)| *mean += weight * value);
        }
        mean.iter_mut().for_each(|mean| *mean /= all);
        mean
    }

    /// A token's row.
    fn embed(&self, token: u32) -> Vec<f64> {
        row(&self.tokens, self.shape.width, token)
    }

    /// The logits of the successors of one more token.
    ///
    /// # Panics
    /// If the vocabulary has no such token.
    pub fn step(&self, cache: &mut Cache, token: u32) -> Vec<f64> {
        if let Some(parts) = &self.gemma {
            let streams = gemma::extend(self, parts, cache, &[token]);
            return self.logits(&streams).remove(0);
        }
        let head_width = self.shape.head_width;
        let mut x = self.embed(token);
        for (number, (layer, [keys, values])) in self.layers.iter().zip(&mut cache.0).enumerate() {
            let input = self.normalise(&x, &layer.attention_gain);
            let position = keys.len();
            let KeyValue { key, value, .. } = layer.own();
            let (mut query, mut key) = (multiply(&layer.query, &input), multiply(key, &input));
            self.rotate(self.rope_base, &mut query, position);
            self.rotate(self.rope_base, &mut key, position);
            keys.push(key);
            values.push(multiply(value, &input));
            let heads = query.chunks_exact(head_width).enumerate();
            let mean = |(head, query)| self.attend((number, position), head, query, keys, values);
            let means: Vec<f64> = heads.flat_map(mean).collect();
            add(&mut x, &multiply(&layer.output, &means));
            let input = self.normalise(&x, &layer.hidden_gain);
            let (gate, up) = (multiply(&layer.gate, &input), multiply(&layer.up, &input));
            let hidden = hidden(&gate, &up);
            add(&mut x, &multiply(&layer.down, &hidden));
        }
        multiply(&self.tokens, &self.normalise(&x, &self.last_gain))
    }
}

fn hidden(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
}

fn add(x: &mut [f64], addend: &[f64]) {
    x.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend);
}

/// log(softmax(logits)).
pub fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
    logits.iter().map(|logit| logit - most - sum.ln()).collect()
}

/// How far the distribution of `held` is from that of `exact`, both log-probabilities: Σ p (log p - log q), in nats.
pub fn divergence(exact: &[f64], held: &[f64]) -> f64 {
    exact.iter().zip(held).map(|(&p, &q)| p.exp() * (p - q)).sum()
}
