//! A model's weights, as an image has them.

use crate::shape::Shape;
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
    pub key: Matrix,
    pub value: Matrix,
    pub output: Matrix,
    pub hidden_gain: Gain,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
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
}
