//! A model's weights, as an image has them.

use crate::shape::{STREAMS, Shape};
use crate::tables::Rope;

/// A matrix of 8-bit weights: row r, column c is `weights[r * columns + c]` · `rows[r]` · 2^`exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Columns, a multiple of 32.
    pub columns: usize,
    /// -127 to 127, row by row.
    pub weights: Vec<i8>,
    /// Scale of each row, at least 1.
    pub rows: Vec<u16>,
    /// Common to all rows.
    pub exponent: i32,
}

impl Matrix {
    /// The weights of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[i8] {
        &self.weights[row * self.columns..][..self.columns]
    }
}

/// Factors of a normalised vector: channel c is `factors[c]` · 2^`exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gain {
    /// One for each channel.
    pub factors: Vec<i16>,
    /// Common to all.
    pub exponent: i32,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct Layer {
    pub attention_gain: Gain,
    pub query: Matrix,
    /// None where the layer reads those of another.
    pub key_value: Option<KeyValue>,
    pub output: Matrix,
    pub hidden_gain: Gain,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    /// Of Gemma 3N's shape alone.
    pub gemma: Option<Box<GemmaLayer>>,
}

/// What makes a layer's keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct KeyValue {
    pub key: Matrix,
    pub value: Matrix,
    /// Of a head of keys, and of one of values; of Gemma 3N's shape alone.
    pub gains: Option<[Gain; 2]>,
}

/// What a layer of Gemma 3N's shape has besides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
pub struct GemmaLayer {
    pub router_gain: Gain,
    pub router: Matrix,
    pub predict: Matrix,
    pub correct: Matrix,
    /// Of a head of queries.
    pub query_gain: Gain,
    pub output_gain: Gain,
    pub left: Matrix,
    pub right: Matrix,
    pub laurel_gain: Gain,
    pub down_gain: Gain,
    /// A row for each token.
    pub embedding: Matrix,
    pub projection: Matrix,
    pub projection_gain: Gain,
    pub embedding_gate: Matrix,
    pub embedding_output: Matrix,
    pub embedding_gain: Gain,
}

/// What Gemma 3N's shape has outside of the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GemmaParts {
    /// The rotations of global layers; the model's other ones are those of local layers.
    pub global_rope: Rope,
    /// From the first stream to each of the others, ahead of the first layer.
    pub split: [Matrix; STREAMS - 1],
    /// Of each of the others, behind the last layer.
    pub merge: [Matrix; STREAMS - 1],
}

/// A whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What it is made of.
    pub shape: Shape,
    /// What is added to the mean square of a vector that is normalised, with 20 fraction bits.
    pub epsilon: u32,
    /// A row for each token: what it begins with, and what its logit is computed with.
    pub tokens: Matrix,
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// Before the last matrix.
    pub last_gain: Gain,
    /// The rotations of positions.
    pub rope: Rope,
    /// Of Gemma 3N's shape alone.
    pub gemma: Option<Box<GemmaParts>>,
}

impl Model {
    /// Another model of this shape, of the same weights: its layers by `turn` places further on, those with keys and values of their own
    /// among themselves and the others likewise.
    pub fn turned(mut self, turn: usize) -> Self {
        let (own, others) = self.layers.split_at_mut(self.shape.kv_layers());
        for layers in [own, others].into_iter().filter(|layers| !layers.is_empty()) {
            layers.rotate_left(turn % layers.len());
        }
        self
    }

    /// The rotations that a layer takes.
    pub fn rope_of(&self, layer: usize) -> &Rope {
        match &self.gemma {
            Some(gemma) if self.shape.is_global(layer) => &gemma.global_rope,
            _ => &self.rope,
        }
    }
}
