//! Rollouts: their names, states and slots.

mod state;

use std::fmt;

pub use state::{GENERATIONS, Slab, State, TransitionError};

/// Names one rollout: a slot of the slab, and which of the slot's rollouts.
///
/// A slot that is used again has a new generation, so a name that came late finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RolloutId(u64);

impl RolloutId {
    /// The rollout that is number `generation` in slot `slot`.
    pub const fn new(slot: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    /// Its slot.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Which of the slot's rollouts it is.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Generation in the high half, slot in the low one.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The reverse of [`to_bits`](Self::to_bits).
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.generation())
    }
}

impl fmt::Debug for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RolloutId({self})")
    }
}
