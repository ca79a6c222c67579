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

/// Fewest remaining tokens first.
#[derive(Debug)]
pub struct ShortestRemaining(Keyed);

impl ShortestRemaining {
    /// For `slots` slots.
    pub fn new(slots: u32) -> ShortestRemaining {
        ShortestRemaining(Keyed::new(slots))
    }
}

impl Policy for ShortestRemaining {
    fn name(&self) -> &str {
        "shortest-remaining"
    }

    #[inline]
    fn push(&mut self, candidate: Candidate) {
        self.0.push(u64::from(candidate.remaining).min(PENALTY_MAX), candidate);
    }

    #[inline]
    fn pop(&mut self) -> Option<Candidate> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.heap.len()
    }
}

/// Most expected tokens first: what takes longest begins early, so that the tail of a batch is short.
#[derive(Debug)]
pub struct LongestExpected(Keyed);

impl LongestExpected {
    /// For `slots` slots.
    pub fn new(slots: u32) -> LongestExpected {
        LongestExpected(Keyed::new(slots))
    }
}

impl Policy for LongestExpected {
    fn name(&self) -> &str {
        "longest-expected"
    }

    #[inline]
    fn push(&mut self, candidate: Candidate) {
        self.0.push(PENALTY_MAX - u64::from(candidate.expected).min(PENALTY_MAX), candidate);
    }

    #[inline]
    fn pop(&mut self) -> Option<Candidate> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.heap.len()
    }
}

/// Candidates by key, those with the same key in the order in which they came.
#[derive(Debug)]
struct Keyed {
    heap: BinaryHeap<Reverse<Entry>>,
    pushes: u64,
}

#[derive(Debug)]
struct Entry {
    key: u64,
    /// Running number of the push: no two are equal.
    number: u64,
    candidate: Candidate,
}

impl Keyed {
    fn new(slots: u32) -> Keyed {
        Keyed { heap: BinaryHeap::with_capacity(slots as usize), pushes: 0 }
    }

    #[inline]
    fn push(&mut self, penalty: u64, candidate: Candidate) {
        let number = self.pushes;
        self.pushes += 1;
        self.heap.push(Reverse(Entry { key: number + penalty, number, candidate }));
    }

    #[inline]
    fn pop(&mut self) -> Option<Candidate> {
        self.heap.pop().map(|Reverse(entry)| entry.candidate)
    }
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
