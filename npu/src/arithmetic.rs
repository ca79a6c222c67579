//! The operators of docs/engine.md as engines stream them: from bytes of memory to bytes of memory, defined for any bytes. Sums
//! wrap; for what an importer accepts, none of them does.

mod attend;
mod norm;
mod streams;
mod sum;
mod vector;

pub use attend::{Joined, Query};
/// √½ of a + b within the bounds of the residual stream, and what a logit is capped by: numbers of 32 bits to numbers of 32 bits, as they stand
/// in crate `lm`.
pub use doorbell_lm::ops::{blend, softcap};
pub use norm::{cut, level, normalise, rescale};
pub use streams::{correct, predict};
pub use sum::{Factor, Multipliers, Prepared};
pub use vector::{activate, embed, geglu, plain, rotate, store, swiglu, tanh};

use doorbell_lm::number::{FRACTION, clamp, round_shift};
use doorbell_lm::ops::RESIDUAL;

/// How inner loops are run; the bits are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speed {
    /// As they are written down.
    Plain,
    /// By the processor's widest instructions.
    #[default]
    Fast,
}

/// a + b within the bounds of the residual stream.
pub fn add(a: i32, b: i32) -> i32 {
    a.saturating_add(b).clamp(-RESIDUAL, RESIDUAL)
}

/// [a · b >> 10] within 32 bits.
pub fn multiply(a: i32, b: i32) -> i32 {
    clamp(round_shift(i64::from(a) * i64::from(b), FRACTION))
}

#[cfg(test)]
mod tests;
