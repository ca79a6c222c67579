//! The language model behind engine 1, in integers: docs/engine.md is its specification.
//!
//! Sums and maxima of integers come to the same in any order. So a device may cut a model as it likes, and every token,
//! log-probability and byte of its KV cache is the one that the [oracle](Oracle) says.

pub mod float;
pub mod number;
pub mod ops;
mod oracle;
mod quantise;
mod shape;
mod tables;
mod weights;

pub use oracle::{Cache, Oracle};
pub use quantise::{Unfit, gain, matrix};
pub use shape::Shape;
pub use tables::Rope;
pub use weights::{Gain, Layer, Matrix, Model};
