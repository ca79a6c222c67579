//! The oracle: what every token's logits are, in plain loops.

mod gemma;

pub use gemma::{CUT, SUMMED};

use crate::ops::{
    Activation, Attended, Stored, activate_plain, add, embed, level, multiply, normalise, product, rotate,
    score, score_factor, softcap, store, swish,
};
use crate::rival::{Rival, is};
use crate::weights::{Gain, KeyValue, Layer, Matrix, Model};

/// Keys and values of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// By layer that has keys and values of its own, by head of keys and values, by position.
    pub(crate) layers: Vec<Vec<[Vec<Stored>; 2]>>,
    pub(crate) tokens: usize,
}

impl Cache {
    /// The cache of an empty sequence.
    pub fn new(model: &Model) -> Self {
        let heads = vec![[vec![], vec![]]; model.shape.kv_heads];
        Self { layers: vec![heads; model.shape.kv_layers()], tokens: 0 }
    }

    /// Tokens that it holds.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Adds a token whose keys and values were kept elsewhere, by layer and head.
    pub fn push(&mut self, mut stored: impl FnMut(usize, usize) -> [Stored; 2]) {
        for (layer, heads) in self.layers.iter_mut().enumerate() {
            for (head, held) in heads.iter_mut().enumerate() {
                let [key, value] = stored(layer, head);
                held[0].push(key);
                held[1].push(value);
            }
        }
        self.tokens += 1;
    }

    /// The key and the value of a token.
    ///
    /// # Panics
    /// If there is no such layer, head or position.
    pub fn stored(&self, layer: usize, head: usize, position: usize) -> [&Stored; 2] {
        let [keys, values] = &self.layers[layer][head];
        [&keys[position], &values[position]]
    }
}

/// A model that is run token by token.
#[derive(Clone, Copy, Debug)]
pub struct Oracle<'m> {
    model: &'m Model,
}

impl<'m> Oracle<'m> {
    /// The oracle of a model.
    pub fn new(model: &'m Model) -> Self {
        Self { model }
    }

    /// Runs one token behind those in `cache`; the residual stream behind the last layer.
    ///
    /// # Panics
    /// If the vocabulary has no such token, or the context no room for it.
    pub fn step(&self, cache: &mut Cache, token: u32) -> Vec<i32> {
        let mut x = embed(&self.model.tokens, token);
        match &self.model.gemma {
            Some(parts) => x = gemma::step(self, parts, cache, token, x),
            None => {
                for (number, layer) in self.model.layers.iter().enumerate() {
                    let input = normalise(&x, &layer.attention_gain, self.model.epsilon);
                    add(&mut x, self.attend(number, cache, &input));
                    self.feed_forward(layer, &mut x);
                }
            }
        }
        cache.tokens += 1;
        x
    }

    /// The logits of a token's successors, with 10 fraction bits.
    pub fn logits(&self, x: &[i32]) -> Vec<i32> {
        let model = self.model;
        // Of Gemma 3N's shape x is the sum of the streams, not their mean.
        let is_sum = model.gemma.is_some() && !is(Rival::LastNormHasOneEpsilon);
        let epsilon = if is_sum { model.epsilon * gemma::SUMMED } else { model.epsilon };
        let mut logits = multiply(&model.tokens, &normalise(x, &model.last_gain, epsilon));
        if model.gemma.is_some() {
            logits.iter_mut().for_each(|logit| *logit = softcap(*logit));
        }
        logits
    }

    /// The output of a layer's attention; keys and values, where the layer has its own, go into the cache.
    fn attend(&self, number: usize, cache: &mut Cache, input: &Activation) -> Vec<i32> {
        let (shape, layer) = (&self.model.shape, &self.model.layers[number]);
        let position = cache.tokens;
        let turns = self.model.rope_of(number).at(position);
        let heads = |matrix: &Matrix, gain: Option<&Gain>, turned: bool| -> Vec<Stored> {
            let values = multiply(matrix, input);
            let heads = values.chunks(shape.head_width).map(|head| {
                let mut head = match gain {
                    Some(gain) => level(head, gain, self.model.epsilon),
                    None => head.to_vec(),
                };
                if turned {
                    rotate(&mut head, turns);
                }
                store(&head)
            });
            heads.collect()
        };
        let query_gain = layer.gemma.as_ref().map(|gemma| &gemma.query_gain);
        let queries = heads(&layer.query, query_gain, true);
        if let Some(KeyValue { key, value, gains }) = &layer.key_value {
            let gain = |part: usize| gains.as_ref().map(|gains| &gains[part]);
            let (keys, values) = (heads(key, gain(0), true), heads(value, gain(1), false));
            for (stored, pair) in cache.layers[number].iter_mut().zip(keys.into_iter().zip(values)) {
                stored[0].push(pair.0);
                stored[1].push(pair.1);
            }
        }
        let cache = &cache.layers[shape.kv_source(number)];
        let factor = score_factor(shape.head_width);
        let seen = shape.seen(number, position);
        let mut means = Vec::with_capacity(shape.heads * shape.head_width);
        for (head, query) in queries.iter().enumerate() {
            let [keys, values] = &cache[head / shape.sharing()];
            let mut attended = Attended::new(shape.head_width);
            // Blocks of absolute positions, of which the window's first may be seen in part.
            for block in seen.blocks(position) {
                let scores: Vec<i64> =
                    keys[block.clone()].iter().map(|key| score(query, key, factor)).collect();
                attended.add(&scores, &values[block].iter().collect::<Vec<_>>());
            }
            means.extend(attended.mean().into_iter().map(i64::from));
        }
        multiply(&layer.output, &activate_plain(&means))
    }

    fn feed_forward(&self, layer: &Layer, x: &mut [i32]) {
        let input = normalise(x, &layer.hidden_gain, self.model.epsilon);
        let (gate, up) = (multiply(&layer.gate, &input), multiply(&layer.up, &input));
        let hidden: Vec<i64> = gate.iter().zip(&up).map(|(&gate, &up)| product(swish(gate), up)).collect();
        add(x, multiply(&layer.down, &activate_plain(&hidden)));
    }
}
