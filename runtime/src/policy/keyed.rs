//! Policies that order by a key which is known when a candidate comes.
//!
//! Each key is the running number of the push plus a penalty that is bounded by [`PENALTY_MAX`]: candidates that come
//! more than that many pushes later have larger keys whatever they are, so none waits for more than `PENALTY_MAX`
//! others beyond those that wait already. That is aging without ever touching a candidate again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Candidate, Policy};

/// Largest penalty, in pushes: a token of length costs one push of age, up to this.
pub const PENALTY_MAX: u64 = 4096;

/// Candidates by a key, those with the same key in the order in which they came.
pub struct Keyed {
    /// At most [`PENALTY_MAX`].
    penalty: fn(&Candidate) -> u64,
    heap: BinaryHeap<Reverse<Entry>>,
    pushes: u64,
}

impl Keyed {
    /// Fewest remaining tokens first, for `slots` slots.
    pub fn shortest_remaining(slots: u32) -> Keyed {
        Keyed::new(|candidate| u64::from(candidate.remaining).min(PENALTY_MAX), slots)
    }

    /// Most expected tokens first, for `slots` slots: what takes longest begins early, so that the tail of a batch is
    /// short.
    pub fn longest_expected(slots: u32) -> Keyed {
        let penalty = |candidate: &Candidate| PENALTY_MAX - u64::from(candidate.expected).min(PENALTY_MAX);
        Keyed::new(penalty, slots)
    }

    fn new(penalty: fn(&Candidate) -> u64, slots: u32) -> Keyed {
        Keyed { penalty, heap: BinaryHeap::with_capacity(slots as usize), pushes: 0 }
    }
}

impl Policy for Keyed {
    #[inline]
    fn push(&mut self, candidate: Candidate) {
        let number = self.pushes;
        self.pushes += 1;
        self.heap.push(Reverse(Entry { key: number + (self.penalty)(&candidate), number, candidate }));
    }

    #[inline]
    fn pop(&mut self) -> Option<Candidate> {
        self.heap.pop().map(|Reverse(entry)| entry.candidate)
    }

    fn len(&self) -> usize {
        self.heap.len()
    }
}

#[derive(Debug)]
struct Entry {
    key: u64,
    /// Running number of the push: no two are equal.
    number: u64,
    candidate: Candidate,
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.key, self.number).cmp(&(other.key, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}
