//! The oracle: what every token's logits are, in plain loops.

use crate::ops::{
    Attended, BLOCK, Stored, activate_plain, add, embed, multiply, normalise, product, rotate, score,
    score_factor, store, swish,
};
use crate::weights::{Layer, Model};

/// Keys and values of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// By layer, by head of keys and values, by position.
    pub(crate) layers: Vec<Vec<[Vec<Stored>; 2]>>,
    pub(crate) tokens: usize,
}

impl Cache {
    /// The cache of an empty sequence.
    pub fn new(model: &Model) -> Self {
        let heads = vec![[vec![], vec![]]; model.shape.kv_heads];
        Self { layers: vec![heads; model.shape.layers], tokens: 0 }
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
        for (number, layer) in self.model.layers.iter().enumerate() {
            self.attend(layer, &mut cache.layers[number], cache.tokens, &mut x);
            self.feed_forward(layer, &mut x);
        }
        cache.tokens += 1;
        x
    }

    /// The logits of a token's successors, with 10 fraction bits.
    pub fn logits(&self, x: &[i32]) -> Vec<i32> {
        let model = self.model;
        multiply(&model.tokens, &normalise(x, &model.last_gain, model.epsilon))
    }

    fn attend(&self, layer: &Layer, cache: &mut [[Vec<Stored>; 2]], position: usize, x: &mut [i32]) {
        let shape = &self.model.shape;
        let input = normalise(x, &layer.attention_gain, self.model.epsilon);
        let turns = self.model.rope.at(position);
        let heads = |values: Vec<i32>, turned: bool| -> Vec<Stored> {
            let heads = values.chunks(shape.head_width).map(|head| {
                let mut head = head.to_vec();
                if turned {
                    rotate(&mut head, turns);
                }
                store(&head)
            });
            heads.collect()
        };
        let queries = heads(multiply(&layer.query, &input), true);
        let keys = heads(multiply(&layer.key, &input), true);
        let values = heads(multiply(&layer.value, &input), false);
        for (stored, pair) in cache.iter_mut().zip(keys.into_iter().zip(values)) {
            stored[0].push(pair.0);
            stored[1].push(pair.1);
        }
        let factor = score_factor(shape.head_width);
        let mut means = Vec::with_capacity(shape.heads * shape.head_width);
        for (head, query) in queries.iter().enumerate() {
            let [keys, values] = &cache[head / shape.sharing()];
            let mut attended = Attended::new(shape.head_width);
            for (keys, values) in keys.chunks(BLOCK).zip(values.chunks(BLOCK)) {
                let scores: Vec<i64> = keys.iter().map(|key| score(query, key, factor)).collect();
                attended.add(&scores, &values.iter().collect::<Vec<_>>());
            }
            means.extend(attended.mean().into_iter().map(i64::from));
        }
        add(x, multiply(&layer.output, &activate_plain(&means)));
    }

    fn feed_forward(&self, layer: &Layer, x: &mut [i32]) {
        let input = normalise(x, &layer.hidden_gain, self.model.epsilon);
        let (gate, up) = (multiply(&layer.gate, &input), multiply(&layer.up, &input));
        let hidden: Vec<i64> = gate.iter().zip(&up).map(|(&gate, &up)| product(swish(gate), up)).collect();
        add(x, multiply(&layer.down, &activate_plain(&hidden)));
    }
}
