//! The same bytes as the [`Oracle`](crate::Oracle)'s, sooner: many tokens in one pass over the weights, on all threads of the pool that it is called
//! in, with the processor's own instructions.
//!
//! A sequence is known when its tokens are (teacher forcing), so its positions go through a layer together; only their attention
//! looks back, each at the keys before it.

mod attend;
pub mod dot;
mod gemma;

use rayon::prelude::*;

use crate::ops::{
    Activation, BLOCK, Stored, activate_plain, add, embed, level, normalise, product, requantise, rotate,
    softcap, store, swish,
};
use crate::oracle::{Cache, SUMMED};
use crate::weights::{Gain, KeyValue, Layer, Matrix, Model};

pub use dot::Instructions;

/// Tokens up to which what is done to each by itself is not shared among threads.
const FEW: usize = 8;

/// Multiplications that are a thread's at least: some microseconds, as long as it takes to wake one.
const PART: usize = 1 << 16;

/// A model that is run with many tokens at once.
#[derive(Clone, Copy, Debug)]
pub struct Runner<'m> {
    model: &'m Model,
    instructions: dot::Present,
}

/// An activation with the blocks' shifts applied, as 16-bit multipliers take it: what it is a product with comes to the same.
struct Wide {
    values: Vec<i16>,
    activation: Activation,
}

impl Wide {
    fn new(activation: Activation) -> Self {
        let blocks = activation.mantissas.chunks(BLOCK).zip(&activation.shifts);
        // 127 · 2^8 fits.
        let values = blocks.flat_map(|(block, &shift)| block.iter().map(move |&m| i16::from(m) << shift));
        Self { values: values.collect(), activation }
    }
}

/// Rows of results, each with a number for every token.
struct Results {
    values: Vec<i32>,
    tokens: usize,
}

impl Results {
    /// What belongs to a token.
    fn of(&self, token: usize) -> impl Iterator<Item = i32> {
        self.values.iter().skip(token).step_by(self.tokens).copied()
    }
}

impl<'m> Runner<'m> {
    /// With the best instructions that this processor has.
    pub fn new(model: &'m Model) -> Self {
        Self { model, instructions: dot::Present::best() }
    }

    /// With these instructions.
    ///
    /// # Panics
    /// If this processor does not have them: [`Instructions::available`].
    pub fn with(model: &'m Model, instructions: Instructions) -> Self {
        Self { model, instructions: instructions.present() }
    }

    /// Runs tokens behind those in `cache`; the residual stream behind the last layer, for each.
    ///
    /// # Panics
    /// If the vocabulary has no such token, or the context no room for it.
    pub fn extend(&self, cache: &mut Cache, tokens: &[u32]) -> Vec<Vec<i32>> {
        if tokens.is_empty() {
            return vec![];
        }
        let mut streams: Vec<Vec<i32>> =
            tokens.iter().map(|&token| embed(&self.model.tokens, token)).collect();
        match &self.model.gemma {
            Some(parts) => streams = self.extend_gemma(parts, cache, tokens, streams),
            None => {
                for (number, layer) in self.model.layers.iter().enumerate() {
                    let epsilon = self.model.epsilon;
                    let inputs = self.inputs(&streams, |x| normalise(x, &layer.attention_gain, epsilon));
                    add_all(&mut streams, &self.attend(number, cache, &inputs));
                    self.feed_forward(layer, &mut streams);
                }
            }
        }
        cache.tokens += tokens.len();
        streams
    }

    /// The logits of each one's successors, with 10 fraction bits.
    pub fn logits(&self, streams: &[Vec<i32>]) -> Vec<Vec<i32>> {
        let model = self.model;
        if streams.is_empty() {
            return vec![];
        }
        // Of Gemma 3N's shape x is the sum of the streams, not their mean.
        let capped = model.gemma.is_some();
        let epsilon = if capped { model.epsilon * SUMMED } else { model.epsilon };
        let inputs = self.inputs(streams, |x| normalise(x, &model.last_gain, epsilon));
        let mut results = self.multiply(&model.tokens, &inputs);
        if capped {
            results.values.iter_mut().for_each(|logit| *logit = softcap(*logit));
        }
        (0..streams.len()).map(|token| results.of(token).collect()).collect()
    }

    fn inputs<T: Sync>(&self, tokens: &[T], activate: impl Fn(&T) -> Activation + Sync) -> Vec<Wide> {
        each(tokens.len(), |token| Wide::new(activate(&tokens[token])))
    }

    fn multiply(&self, matrix: &Matrix, inputs: &[Wide]) -> Results {
        let tokens = inputs.len();
        let mut values = vec![0; matrix.rows.len() * tokens];
        // Two parts for each thread even out what one is held up by.
        let rows = matrix.rows.len();
        let least = PART.div_ceil(tokens * matrix.row(0).len());
        let part = rows.div_ceil(2 * rayon::current_num_threads()).max(least);
        let multiply = |(number, results): (usize, &mut [i32])| {
            for (row, results) in (part * number..).zip(results.chunks_mut(tokens)) {
                let weights = matrix.row(row);
                for (inputs, results) in inputs.chunks(4).zip(results.chunks_mut(4)) {
                    let sums = match inputs {
                        [a, b, c, d] => dot::four(
                            self.instructions,
                            weights,
                            [&a.values, &b.values, &c.values, &d.values],
                        ),
                        few => {
                            let mut sums = [0; 4];
                            for (sum, input) in sums.iter_mut().zip(few) {
                                *sum = dot::one(self.instructions, weights, &input.values);
                            }
                            sums
                        }
                    };
                    for ((result, sum), input) in results.iter_mut().zip(sums).zip(inputs) {
                        *result = requantise(matrix, row, sum, &input.activation);
                    }
                }
            }
        };
        if part >= rows {
            multiply((0, &mut values));
        } else {
            values.par_chunks_mut(part * tokens).enumerate().for_each(multiply);
        }
        Results { values, tokens }
    }

    /// The output of a layer's attention; keys and values, where the layer has its own, go into the cache.
    fn attend(&self, number: usize, cache: &mut Cache, inputs: &[Wide]) -> Results {
        let (model, layer) = (self.model, &self.model.layers[number]);
        let (shape, position) = (&model.shape, cache.tokens);
        let rope = model.rope_of(number);
        let stored = |matrix: &Matrix, gain: Option<&Gain>, turned: bool| -> Vec<Vec<Stored>> {
            let products = self.multiply(matrix, inputs);
            let heads = |token: usize| -> Vec<Stored> {
                let values: Vec<i32> = products.of(token).collect();
                let heads = values.chunks(shape.head_width).map(|head| {
                    let mut head = match gain {
                        Some(gain) => level(head, gain, model.epsilon),
                        None => head.to_vec(),
                    };
                    if turned {
                        rotate(&mut head, rope.at(position + token));
                    }
                    store(&head)
                });
                heads.collect()
            };
            each(inputs.len(), heads)
        };
        let queries = stored(&layer.query, layer.gemma.as_ref().map(|gemma| &gemma.query_gain), true);
        if let Some(KeyValue { key, value, gains }) = &layer.key_value {
            let gain = |part: usize| gains.as_ref().map(|gains| &gains[part]);
            let (keys, values) = (stored(key, gain(0), true), stored(value, gain(1), false));
            for (keys, values) in keys.into_iter().zip(values) {
                for (held, pair) in cache.layers[number].iter_mut().zip(keys.into_iter().zip(values)) {
                    held[0].push(pair.0);
                    held[1].push(pair.1);
                }
            }
        }
        let (cache, sharing) = (&cache.layers[shape.kv_source(number)], shape.sharing());
        let means = |token: usize| -> Vec<i64> {
            let position = position + token;
            let seen = shape.seen(number, position);
            let queries = &queries[token];
            let mean = |head: usize| {
                let [keys, values] = &cache[head / sharing];
                attend::attend(self.instructions, &queries[head], keys, values, (seen, position))
            };
            let means: Vec<Vec<i32>> = if seen.count(position) < 256 {
                (0..queries.len()).map(mean).collect()
            } else {
                (0..queries.len()).into_par_iter().map(mean).collect()
            };
            means.into_iter().flatten().map(i64::from).collect()
        };
        let means: Vec<Vec<i64>> = if inputs.len() == 1 {
            vec![means(0)]
        } else {
            (0..inputs.len()).into_par_iter().map(means).collect()
        };
        let inputs = self.inputs(&means, |means| activate_plain(means));
        self.multiply(&layer.output, &inputs)
    }

    fn feed_forward(&self, layer: &Layer, streams: &mut [Vec<i32>]) {
        let model = self.model;
        let inputs = self.inputs(streams, |x| normalise(x, &layer.hidden_gain, model.epsilon));
        let [gate, up] = [&layer.gate, &layer.up].map(|matrix| self.multiply(matrix, &inputs));
        let tokens: Vec<usize> = (0..streams.len()).collect();
        let inputs = self.inputs(&tokens, |&token| {
            let hidden: Vec<i64> =
                gate.of(token).zip(up.of(token)).map(|(gate, up)| product(swish(gate), up)).collect();
            activate_plain(&hidden)
        });
        add_all(streams, &self.multiply(&layer.down, &inputs));
    }
}

/// What each token has.
fn each<T: Send>(tokens: usize, of: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    if tokens <= FEW {
        (0..tokens).map(of).collect()
    } else {
        (0..tokens).into_par_iter().with_min_len(FEW).map(of).collect()
    }
}

/// Changes what each token has.
fn each_mut<T: Send>(held: &mut [T], change: impl Fn(usize, &mut T) + Sync + Send) {
    if held.len() <= FEW {
        held.iter_mut().enumerate().for_each(|(token, held)| change(token, held));
    } else {
        let held = held.par_iter_mut().with_min_len(FEW).enumerate();
        held.for_each(|(token, held)| change(token, held));
    }
}

fn add_all(streams: &mut [Vec<i32>], addends: &Results) {
    streams.iter_mut().enumerate().for_each(|(token, x)| add(x, addends.of(token)));
}

#[cfg(test)]
mod tests;
