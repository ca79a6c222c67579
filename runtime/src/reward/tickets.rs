//! Which verdicts are awaited.

use crate::rollout::RolloutId;

/// Names one request to a judge. No two requests of a run have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// Its number.
    pub const fn to_bits(self) -> u64 {
        self.0
    }
}

/// The tickets that are awaited, at most one for each slot of rollouts: the hot thread's memory of what it asked.
///
/// A verdict is late if its rollout was aborted meanwhile: then its ticket is not the one of its slot any more, whatever
/// the slot has been used for since. Numbers are 64 bits and never used twice.
#[derive(Debug)]
pub struct Tickets {
    /// By slot; the ticket is 0 where none is awaited.
    awaited: Vec<(RolloutId, u64)>,
    issued: u64,
}

impl Tickets {
    /// For rollouts in the slots below `slots`.
    pub fn new(slots: usize) -> Self {
        let mut awaited = Vec::with_capacity(slots);
        // Written one by one, so that the pages are there: zeroed memory would only be promised.
        awaited.resize_with(slots, || std::hint::black_box((RolloutId::from_bits(0), 0)));
        Self { awaited, issued: 0 }
    }

    /// A ticket for the next request of `rollout`, whose verdict is awaited from now on, and no other of its slot.
    ///
    /// # Panics
    /// If the slot is not below `slots`.
    #[inline]
    pub fn issue(&mut self, rollout: RolloutId) -> Ticket {
        self.issued += 1;
        self.awaited[rollout.slot() as usize] = (rollout, self.issued);
        Ticket(self.issued)
    }

    /// The rollout has been aborted: its verdict is not awaited any more. Returns whether one was.
    #[inline]
    pub fn cancel(&mut self, rollout: RolloutId) -> bool {
        match self.awaited.get_mut(rollout.slot() as usize) {
            Some((whose, ticket)) if *whose == rollout => std::mem::take(ticket) != 0,
            _ => false,
        }
    }

    /// Whether the verdict with this ticket is awaited, which it stays.
    #[inline]
    pub fn awaits(&self, rollout: RolloutId, ticket: Ticket) -> bool {
        self.awaited.get(rollout.slot() as usize) == Some(&(rollout, ticket.0))
    }

    /// Whether the verdict with this ticket is awaited; it is not any more then. One that is not is late, and is to be
    /// dropped.
    #[inline]
    pub fn redeem(&mut self, rollout: RolloutId, ticket: Ticket) -> bool {
        match self.awaited.get_mut(rollout.slot() as usize) {
            Some(awaited) if *awaited == (rollout, ticket.0) => {
                awaited.1 = 0;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_for_an_aborted_rollout_is_late_whoever_has_the_slot_now() {
        let mut tickets = Tickets::new(2);
        let (old, new) = (RolloutId::new(1, 0), RolloutId::new(1, 1));
        let first = tickets.issue(old);
        assert!(tickets.cancel(old));
        assert!(!tickets.cancel(old), "nothing is awaited any more");
        let second = tickets.issue(new);
        assert_ne!(first, second);
        assert!(!tickets.redeem(old, first), "late");
        assert!(!tickets.redeem(new, first), "another's");
        assert!(!tickets.cancel(old), "not that one's");
        assert!(tickets.redeem(new, second), "the late ones took nothing away");
        assert!(!tickets.redeem(new, second), "once");
        assert!(!tickets.redeem(RolloutId::new(2, 0), second), "no such slot");
    }
}
