//! Why a completion does not come: who waits for whom, and the root.

mod chain;
mod outstanding;
mod root;

use std::fmt;

use doorbell_contract::{HwCompletion, HwDesc};

pub use chain::{Cause, Waiting};
pub(crate) use outstanding::Outstanding;
pub use root::Root;
pub(crate) use root::Seen;

/// What the host knows of a queue pair.
pub(crate) struct Known {
    pub in_flight: u64,
    pub sq_tail: u32,
    pub sq_head: u32,
    pub cq_head: u32,
    /// Whether the next completion is there.
    pub is_fresh: bool,
    /// Where the interrupt is armed, if it is waited for.
    pub armed: Option<u32>,
    /// If the next completion is absent: what its slot holds, and whether one half of it has the right phase.
    pub stale: Option<(HwCompletion, bool)>,
}

/// Why a completion of a queue pair does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// What all wait for in the end.
    pub root: Root,
    /// The descriptors without a completion that the slots of the submission queue still hold, oldest first.
    pub waiting: Vec<Waiting>,
    /// Further descriptors without a completion. Their slots have been used again, or the completion queue is too short to tell
    /// them from those that have completed.
    pub unknown: u64,
}

impl Why {
    /// From what the registers show. `known` is of a moment after they were read.
    pub(crate) fn of(seen: &Seen, known: &Known, outstanding: Outstanding) -> Why {
        let root = seen.root(known);
        // Some of them have completed, and nobody knows which.
        if !known.is_fresh && seen.cq_tail != known.cq_head && root != Root::Inactive {
            let unseen = u64::from(seen.cq_tail.wrapping_sub(known.cq_head));
            let is_there = |(completion, half): (HwCompletion, bool)| {
                half || outstanding.slots.iter().any(|slot| answers(&completion, slot, known.sq_tail))
            };
            let root = match root {
                Root::Unseen { from: at, .. } if known.stale.is_some_and(is_there) => Root::Phase { at },
                root => root,
            };
            return Why { root, waiting: vec![], unknown: known.in_flight.saturating_sub(unseen) };
        }
        let waiting = chain::causes(&outstanding.slots, seen.sq_head, seen.busy());
        Why { root, waiting, unknown: outstanding.unknown }
    }

    /// From the youngest descriptor that waits for another, or else the youngest of all, to one that waits for none.
    pub fn chain(&self) -> Vec<&Waiting> {
        let at = |index| self.waiting.iter().find(|waiting| waiting.index == index);
        let youngest = self.waiting.iter().rfind(|waiting| waiting.cause.older().is_some());
        let mut links: Vec<&Waiting> = youngest.or(self.waiting.last()).into_iter().collect();
        // Each link is older than the one before.
        while let Some(older) = links.last().and_then(|link| link.cause.older()).and_then(at) {
            links.push(older);
        }
        links
    }
}

/// Whether `completion` belongs to the descriptor: it carries the descriptor's ids, and its `sq_head` says that the slot was consumed.
fn answers(completion: &HwCompletion, &(index, desc): &(u32, HwDesc), sq_tail: u32) -> bool {
    let HwCompletion { rollout_id, user_data, sq_head, .. } = *completion;
    let consumed = sq_head.wrapping_sub(index);
    *completion != HwCompletion::default()
        && (rollout_id, user_data) == (desc.rollout_id, desc.user_data)
        && (1..=sq_tail.wrapping_sub(index)).contains(&consumed)
}

/// The root, and the chain where it has more than one link; on one line.
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root)?;
        for link in self.chain() {
            write!(f, "; {link}")?;
        }
        Ok(())
    }
}
