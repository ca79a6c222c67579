//! Which of the rollouts that wait for the device decodes next.
//!
//! A policy orders; it never decides whether. Whatever is pushed comes out again exactly once, and within a bounded
//! number of others: a rollout that a policy disfavours ages until it is next. [`Policy`] is open: the pipeline takes
//! any.

mod fifo;
mod keyed;
mod prefix;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use fifo::Fifo;
pub use keyed::{Keyed, PENALTY_MAX};
pub use prefix::PrefixSharing;

use crate::rollout::RolloutId;

/// A rollout that waits for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The rollout.
    pub id: RolloutId,
    /// Its group, whose members share a prefix: a number below the number of slots.
    pub group: u32,
    /// Tokens of its budget that are left; it ends at or before that.
    pub remaining: u32,
    /// Tokens that it is expected to add yet, at most `remaining`: what its group's finished members had, else
    /// `remaining`.
    pub expected: u32,
}

/// An order of waiting rollouts.
///
/// The hot thread calls it for every segment: an implementation allocates at construction alone. There are never more
/// candidates than slots, and never two of one slot.
pub trait Policy: Send {
    /// Takes a candidate in.
    fn push(&mut self, candidate: Candidate);

    /// Gives out the next one; `None` only if none is left.
    fn pop(&mut self) -> Option<Candidate>;

    /// Candidates within.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies that come with the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Fewest tokens left first.
    ShortestRemaining,
    /// Members of one group together.
    PrefixSharing,
    /// Most tokens expected first, so that the long tail begins early.
    LongestExpected,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 4] = [
        PolicyKind::Fifo,
        PolicyKind::ShortestRemaining,
        PolicyKind::PrefixSharing,
        PolicyKind::LongestExpected,
    ];

    /// The name that users type.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::ShortestRemaining => "shortest-remaining",
            PolicyKind::PrefixSharing => "prefix-sharing",
            PolicyKind::LongestExpected => "longest-expected",
        }
    }

    /// A policy of this kind for `slots` slots.
    pub fn build(self, slots: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fifo => Box::new(Fifo::new(slots)),
            PolicyKind::ShortestRemaining => Box::new(Keyed::shortest_remaining(slots)),
            PolicyKind::PrefixSharing => Box::new(PrefixSharing::new(slots)),
            PolicyKind::LongestExpected => Box::new(Keyed::longest_expected(slots)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyKind, String> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("no policy is called '{text}'; there are {}", names.join(", "))
        })
    }
}
