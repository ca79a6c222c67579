//! What a device tells of its NPU while it runs, so that its words can be held to the interpreter's one by one.

use super::context::{Arena, Sample, Sampling};
use super::execute::Write;
use super::observe::Place;

/// What happened, in the order in which it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A step begins. One that was begun before and has not ended is forgotten.
    Begun(Begun),
    /// A word is done, all that it writes is written.
    Retired(Retired),
    /// The step is over.
    Ended(Ended),
}

/// A step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Which context has it: one step of each runs at a time.
    pub context: usize,
    /// The gang that shares its words: all of its contexts begin and end together.
    pub gang: usize,
    /// Clock cycle.
    pub cycle: u64,
    /// The token whose successor is wanted.
    pub token: u32,
    /// Where it stands.
    pub position: u32,
    /// Whether no token is wanted.
    pub silent: bool,
    /// How one is drawn.
    pub sampling: Sampling,
    /// Where keys and values lie; bus addresses.
    pub arena: Arena,
    /// Bus address of the block table.
    pub table: u64,
    /// Entries of it.
    pub entries: u32,
}

/// A word is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Clock cycle.
    pub cycle: u64,
    /// Clock cycle in which its unit began.
    pub began: u64,
    /// Which word, and of which context's step.
    pub place: Place,
    /// Whether it could be finished; else the step ends.
    pub is_fine: bool,
    /// What it wrote; keys and values from the arena's first byte on, logits from the word's first on.
    pub writes: Vec<Write>,
}

/// A step is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose step.
    pub context: usize,
    /// Clock cycle.
    pub cycle: u64,
    /// The token, where one was wanted.
    pub sample: Option<Sample>,
    /// The word that stopped it, and why, as [`Fault::code`](crate::isa::Fault::code) numbers it; 31 is memory that answered with an error.
    pub stop: Option<(Place, u8)>,
}
