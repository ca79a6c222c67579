//! Many tokens in one pass over the weights, each with the bits that [`Model::step`] gives it: sums keep their order, and what lies side by
//! side in a register are tokens.

use rayon::prelude::*;

use super::{KeyValue, Model, add, gemma};

/// Tokens side by side.
const TILE: usize = 16;

/// Rows by token: `rows[token][row]`.
pub(super) type Rows = Vec<Vec<f64>>;

impl Model {
    /// The residual streams of a sequence's tokens, behind the last layer.
    ///
    /// # Panics
    /// If the vocabulary has no such token.
    pub fn streams(&self, tokens: &[u32]) -> Rows {
        if let Some(parts) = &self.gemma {
            return gemma::extend(self, parts, &mut self.cache(), tokens);
        }
        let head_width = self.shape.head_width;
        let mut streams: Rows = tokens.iter().map(|&token| self.embed(token)).collect();
        for (number, layer) in self.layers.iter().enumerate() {
            let inputs = self.inputs(&streams, &layer.attention_gain);
            let KeyValue { key, value, .. } = layer.own();
            let [mut queries, mut keys, values] =
                [&layer.query, key, value].map(|matrix| multiply(matrix, &inputs));
            for (position, (query, key)) in queries.iter_mut().zip(&mut keys).enumerate() {
                self.rotate(self.rope_base, query, position);
                self.rotate(self.rope_base, key, position);
            }
            let mean = |position: usize| -> Vec<f64> {
                let heads = queries[position].chunks_exact(head_width).enumerate();
                let mean = |(head, query)| self.attend((number, position), head, query, &keys, &values);
                heads.flat_map(mean).collect()
            };
            let means: Rows = (0..tokens.len()).into_par_iter().map(mean).collect();
            add_all(&mut streams, &multiply(&layer.output, &means));
            let inputs = self.inputs(&streams, &layer.hidden_gain);
            let [gate, up] = [&layer.gate, &layer.up].map(|matrix| multiply(matrix, &inputs));
            let hidden: Rows =
                gate.into_par_iter().zip(up).map(|(gate, up)| super::hidden(&gate, &up)).collect();
            add_all(&mut streams, &multiply(&layer.down, &hidden));
        }
        streams
    }

    /// The logits of their successors.
    pub fn logits(&self, streams: &[Vec<f64>]) -> Rows {
        let mut logits = multiply(&self.tokens, &self.inputs(streams, &self.last_gain));
        if self.gemma.is_some() {
            logits.iter_mut().flatten().for_each(|logit| *logit = gemma::softcap(*logit));
        }
        logits
    }

    pub(super) fn inputs(&self, streams: &[Vec<f64>], gain: &[f32]) -> Rows {
        streams.par_iter().map(|x| self.normalise(x, gain)).collect()
    }
}

fn add_all(streams: &mut [Vec<f64>], addends: &[Vec<f64>]) {
    streams.iter_mut().zip(addends).for_each(|(x, addend)| add(x, addend));
}

pub(super) fn multiply(weights: &[f32], inputs: &[Vec<f64>]) -> Rows {
    let columns = inputs[0].len();
    let rows = weights.len() / columns;
    // Channel by channel, the tokens of a tile beside each other.
    let tiles: Vec<Vec<[f64; TILE]>> = inputs
        .chunks(TILE)
        .map(|tokens| {
            let of =
                |channel: usize| std::array::from_fn(|token| tokens.get(token).map_or(0.0, |x| x[channel]));
            (0..columns).map(of).collect()
        })
        .collect();
    let mut results = vec![[0.0; TILE]; rows * tiles.len()];
    let part = rows.div_ceil(4 * rayon::current_num_threads());
    results.par_chunks_mut(part * tiles.len()).zip(weights.par_chunks(part * columns)).for_each(
        |(results, weights)| {
            for (results, row) in results.chunks_exact_mut(tiles.len()).zip(weights.chunks_exact(columns)) {
                for (result, tile) in results.iter_mut().zip(&tiles) {
                    *result = sum(row, tile);
                }
            }
        },
    );
    (0..inputs.len())
        .map(|token| {
            let of = |row: usize| results[row * tiles.len() + token / TILE][token % TILE];
            (0..rows).map(of).collect()
        })
        .collect()
}

fn sum(row: &[f32], tile: &[[f64; TILE]]) -> [f64; TILE] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { sum_avx512(row, tile) };
    }
    sum_plain(row, tile)
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn sum_avx512(row: &[f32], tile: &[[f64; TILE]]) -> [f64; TILE] {
    sum_plain(row, tile)
}

#[inline(always)]
fn sum_plain(row: &[f32], tile: &[[f64; TILE]]) -> [f64; TILE] {
    let mut sums = [0.0; TILE];
    for (&weight, inputs) in row.iter().zip(tile) {
        let weight = f64::from(weight);
        for (sum, input) in sums.iter_mut().zip(inputs) {
            *sum += weight * input;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::published;
    use crate::{MICRO_ROPE_BASE, micro};

    #[test]
    fn a_pass_with_many_tokens_is_that_of_each() {
        let model = published(&micro().model, MICRO_ROPE_BASE, None);
        let tokens: Vec<u32> = (0..37).map(|k| k * k % 64).collect();
        let mut cache = model.cache();
        let each: Rows = tokens.iter().map(|&token| model.step(&mut cache, token)).collect();
        assert_eq!(model.logits(&model.streams(&tokens)), each);
    }
}
