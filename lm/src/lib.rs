//! The language model behind engine 1, in integers: docs/engine.md is its specification.
//!
//! Sums and maxima of integers come to the same in any order. So a device may cut a model as it likes, and every token,
//! log-probability and byte of its KV cache is the one that the [oracle](Oracle) says.

mod about;
pub mod fast;
pub mod file;
pub mod float;
pub mod image;
pub mod judge;
pub mod limits;
mod micro;
pub mod number;
pub mod ops;
mod oracle;
mod quantise;
mod rival;
pub mod sample;
mod shape;
pub mod tables;
mod tiny;
mod weights;

pub use about::About;
pub use file::FileError;
pub use image::Image;
pub use micro::{
    EXTREMES, MICRO_GLOBAL_ROPE_BASE, MICRO_ROPE_BASE, extreme, hashed, micro, micro_gemma, steep,
};
pub use oracle::{CUT, Cache, Oracle, SUMMED};
pub use quantise::{Unfit, UnfitModel, gain, matrix, quantise};
pub use shape::{Gemma, KvCap, STREAMS, Seen, Shape};
pub use tables::{Rope, weight_of};
pub use tiny::tiny;
pub use weights::{Gain, GemmaLayer, GemmaParts, KeyValue, Layer, Matrix, Model};
