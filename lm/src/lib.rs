//! The language model behind engine 1, in integers: docs/engine.md is its specification.
//!
//! Sums and maxima of integers come to the same in any order. So a device may cut a model as it likes, and every token,
//! log-probability and byte of its KV cache is the one that the [oracle](Oracle) says.

mod about;
pub mod fast;
mod file_error;
pub mod float;
pub mod image;
#[cfg(feature = "import")]
mod import;
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
#[cfg(feature = "text")]
pub mod text;
mod tiny;
mod weights;

pub use about::About;
pub use file_error::FileError;
pub use image::Image;
#[cfg(feature = "import")]
pub use import::{Imported, import, import_gguf};
pub use micro::{
    EXTREMES, MICRO_GLOBAL_ROPE_BASE, MICRO_ROPE_BASE, extreme, hashed, micro, micro_gemma, steep,
};
pub use oracle::{CUT, Cache, Oracle, SUMMED};
pub use quantise::{Unfit, UnfitModel, gain, matrix, quantise};
pub use shape::{Gemma, STREAMS, Shape};
pub use tables::{Rope, weight_of};
pub use tiny::tiny;
pub use weights::{Gain, GemmaLayer, GemmaParts, KeyValue, Layer, Matrix, Model};
