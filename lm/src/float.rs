//! The published equations in 64-bit floating point, to say how good the integers are. Nothing on the path of a token uses it.

mod batch;

use crate::shape::Shape;

/// One layer's weights, row by row.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct Layer {
    pub attention_gain: Vec<f32>,
    pub query: Vec<f32>,
    pub key: Vec<f32>,
    pub value: Vec<f32>,
    pub output: Vec<f32>,
    pub hidden_gain: Vec<f32>,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    pub down: Vec<f32>,
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

impl Model {
    /// The cache of an empty sequence.
    pub fn cache(&self) -> Cache {
        Cache(vec![[vec![], vec![]]; self.shape.layers])
    }

    fn normalise(&self, x: &[f64], gain: &[f32]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + self.epsilon).sqrt();
        x.iter().zip(gain).map(|(x, &gain)| x * factor * f64::from(gain)).collect()
    }

    fn rotate(&self, heads: &mut [f64], position: usize) {
        let width = self.shape.head_width;
        for head in heads.chunks_exact_mut(width) {
            for (pair, turned) in head.chunks_exact_mut(2).enumerate() {
                let angle = position as f64 * self.rope_base.powf(-2.0 * pair as f64 / width as f64);
                let (s, c) = angle.sin_cos();
                let [a, b] = [turned[0], turned[1]];
                (turned[0], turned[1]) = (a * c - b * s, a * s + b * c);
            }
        }
    }

    /// The mean of the values that a head of queries wants.
    fn attend(&self, head: usize, query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
        let width = self.shape.head_width;
        let at = head / self.shape.sharing() * width;
        let dot = |key: &Vec<f64>| query.iter().zip(&key[at..]).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = keys.iter().map(|key| dot(key) / (width as f64).sqrt()).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let all: f64 = weights.iter().sum();
        let mut mean = vec![0.0; width];
        for (weight, value) in weights.iter().zip(values) {
            mean.iter_mut().zip(&value[at..]).for_each(|(mean, value)| *mean += weight * value);
        }
        mean.iter_mut().for_each(|mean| *mean /= all);
        mean
    }

    /// The logits of the successors of one more token.
    ///
    /// # Panics
    /// If the vocabulary has no such token.
    pub fn step(&self, cache: &mut Cache, token: u32) -> Vec<f64> {
        let Shape { width, head_width, .. } = self.shape;
        let mut x: Vec<f64> =
            self.tokens[token as usize * width..][..width].iter().map(|&x| x.into()).collect();
        for (layer, [keys, values]) in self.layers.iter().zip(&mut cache.0) {
            let input = self.normalise(&x, &layer.attention_gain);
            let position = keys.len();
            let (mut query, mut key) = (multiply(&layer.query, &input), multiply(&layer.key, &input));
            self.rotate(&mut query, position);
            self.rotate(&mut key, position);
            keys.push(key);
            values.push(multiply(&layer.value, &input));
            let heads = query.chunks_exact(head_width).enumerate();
            let means: Vec<f64> =
                heads.flat_map(|(head, query)| self.attend(head, query, keys, values)).collect();
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
