//! The operators of docs/engine.md as engines stream them: from bytes of memory to bytes of memory, defined for any bytes. Sums
//! wrap; for what an importer accepts, none of them does.

mod attend;
mod sum;
mod vector;

pub use attend::{Joined, Query};
pub use sum::{Factor, Multipliers, Prepared};
pub use vector::{activate, embed, normalise, plain, rotate, store, swiglu};

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
