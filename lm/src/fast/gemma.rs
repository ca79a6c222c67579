//! Many tokens of a model of Gemma 3N's shape in one pass: docs/engine.md, Gemma 3N.

use super::{Results, Runner, Wide, add_all, each, each_mut};
use crate::ops::{
    Activation, activate_plain, activate_tanh, add, blend, correct, cut, embed, gelu, level, normalise,
    predict, product, rescale,
};
use crate::oracle::{CUT, Cache};
use crate::weights::{Gain, GemmaLayer, GemmaParts, Layer, Matrix};

/// A vector for each token.
type Rows = Vec<Vec<i32>>;

impl Runner<'_> {
    /// The sums of the residual streams behind the last layer, of tokens that begin with `first`.
    pub(super) fn extend_gemma(
        &self,
        parts: &GemmaParts,
        cache: &mut Cache,
        tokens: &[u32],
        first: Rows,
    ) -> Rows {
        let (model, count) = (self.model, tokens.len());
        let epsilon = model.epsilon;
        let inputs = self.plain(&first);
        let others = parts.split.each_ref().map(|matrix| self.multiply(matrix, &inputs));
        // By token, then by stream.
        let mut streams: Vec<Rows> = each(count, |token| {
            let others = others.iter().map(|found| rescale(&row(found, token), &first[token], epsilon));
            std::iter::once(first[token].clone()).chain(others).collect()
        });
        for (number, layer) in model.layers.iter().enumerate() {
            let gemma = of(layer);
            let projected = self.multiply(&gemma.projection, &inputs);
            let embeddings = each(count, |token| {
                let mut embedding = level(&row(&projected, token), &gemma.projection_gain, epsilon);
                add(&mut embedding, embed(&gemma.embedding, tokens[token]));
                embedding
            });

            let active = streams.iter().map(|streams| &streams[0]).collect::<Vec<_>>();
            let routes = self.route(&gemma.predict, gemma, &active);
            streams = each(count, |token| predict(&streams[token], &row(&routes, token)));
            let found = self.found(number, cache, &streams);
            let routes = self.route(&gemma.correct, gemma, &found);
            each_mut(&mut streams, |token, streams| {
                correct(streams, &found[token], &row(&routes, token));
            });

            let active = self.inputs(&streams, |streams| plain(&streams[0]));
            let gates = self.multiply(&gemma.embedding_gate, &active);
            let addends = self.gated(count, |token| (row(&gates, token), embeddings[token].clone()));
            let addends = self.multiply(&gemma.embedding_output, &addends);
            each_mut(&mut streams, |token, streams| {
                let addend = level(&row(&addends, token), &gemma.embedding_gain, epsilon);
                streams[1..].iter_mut().for_each(|stream| add(stream, addend.iter().copied()));
            });
        }
        let mut sums: Rows = streams.iter().map(|streams| streams[0].clone()).collect();
        for (other, matrix) in (1..).zip(&parts.merge) {
            let merged = self.multiply(matrix, &self.inputs(&streams, |streams| plain(&streams[other])));
            each_mut(&mut sums, |token, sum| {
                add(sum, rescale(&row(&merged, token), &streams[token][0], epsilon));
            });
        }
        sums
    }

    /// Coefficients for the streams, from one of them.
    fn route<S: AsRef<[i32]> + Sync>(
        &self,
        coefficients: &Matrix,
        gemma: &GemmaLayer,
        streams: &[S],
    ) -> Results {
        let inputs = self.inputs(streams, |x| normalise(x.as_ref(), &gemma.router_gain, self.model.epsilon));
        let routes = self.multiply(&gemma.router, &inputs);
        let tokens: Vec<usize> = (0..streams.len()).collect();
        let inputs = self.inputs(&tokens, |&token| {
            let mut routes = row(&routes, token);
            routes.resize(coefficients.columns, 0);
            activate_tanh(&routes)
        });
        self.multiply(coefficients, &inputs)
    }

    /// What a layer makes of the first streams.
    fn found(&self, number: usize, cache: &mut Cache, streams: &[Rows]) -> Rows {
        let (layer, epsilon, count) = (&self.model.layers[number], self.model.epsilon, streams.len());
        let gemma = of(layer);
        let levelled = each(count, |token| level(&streams[token][0], &layer.attention_gain, epsilon));
        let inputs = self.plain(&levelled);
        let narrow = self.multiply(&gemma.left, &inputs);
        let narrow = each(count, |token| row(&narrow, token));
        let laurels = self.multiply(&gemma.right, &self.plain(&narrow));
        let attended = self.attend(number, cache, &inputs);
        let mut found = each(count, |token| {
            let mut laurel = level(&row(&laurels, token), &gemma.laurel_gain, epsilon);
            add(&mut laurel, levelled[token].iter().copied());
            let mut attended = level(&row(&attended, token), &gemma.output_gain, epsilon);
            add(&mut attended, streams[token][0].iter().copied());
            attended.iter().zip(&laurel).map(|(&a, &b)| blend(a, b)).collect::<Vec<i32>>()
        });
        let addends = self.gemma_feed_forward(number, layer, &gemma.down_gain, &found);
        add_all(&mut found, &addends);
        found
    }

    fn gemma_feed_forward(&self, number: usize, layer: &Layer, gain: &Gain, x: &[Vec<i32>]) -> Results {
        let model = self.model;
        let inputs = self.inputs(x, |x| normalise(x, &layer.hidden_gain, model.epsilon));
        let [gates, ups] = [&layer.gate, &layer.up].map(|matrix| self.multiply(matrix, &inputs));
        let sparse = model.shape.gemma.is_some_and(|gemma| number < gemma.cut);
        let hidden = self.gated(x.len(), |token| {
            let gate = row(&gates, token);
            (if sparse { cut(&gate, CUT) } else { gate }, row(&ups, token))
        });
        let mut addends = self.multiply(&layer.down, &hidden);
        let levelled = each(x.len(), |token| level(&row(&addends, token), gain, model.epsilon));
        for (token, levelled) in levelled.into_iter().enumerate() {
            let places = addends.values.iter_mut().skip(token).step_by(addends.tokens);
            places.zip(levelled).for_each(|(place, value)| *place = value);
        }
        addends
    }

    fn plain(&self, rows: &[Vec<i32>]) -> Vec<Wide> {
        self.inputs(rows, |row| plain(row))
    }

    /// The activations of GELU of the one, times the other.
    fn gated(&self, tokens: usize, of: impl Fn(usize) -> (Vec<i32>, Vec<i32>) + Sync) -> Vec<Wide> {
        let tokens: Vec<usize> = (0..tokens).collect();
        self.inputs(&tokens, |&token| {
            let (gate, up) = of(token);
            let products: Vec<i64> =
                gate.iter().zip(&up).map(|(&gate, &up)| product(gelu(gate), up)).collect();
            activate_plain(&products)
        })
    }
}

fn of(layer: &Layer) -> &GemmaLayer {
    layer.gemma.as_ref().expect("a model of this shape has them in each layer")
}

/// What belongs to a token.
fn row(results: &Results, token: usize) -> Vec<i32> {
    results.of(token).collect()
}

fn plain(x: &[i32]) -> Activation {
    activate_plain(&x.iter().map(|&x| x.into()).collect::<Vec<i64>>())
}
