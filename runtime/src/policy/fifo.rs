use std::collections::VecDeque;

use super::{Candidate, Policy};

/// First in, first out.
#[derive(Debug)]
pub struct Fifo(VecDeque<Candidate>);

impl Fifo {
    /// For `slots` slots.
    pub fn new(slots: u32) -> Fifo {
        Fifo(VecDeque::with_capacity(slots as usize))
    }
}

impl Policy for Fifo {
    #[inline]
    fn push(&mut self, candidate: Candidate) {
        self.0.push_back(candidate);
    }

    #[inline]
    fn pop(&mut self) -> Option<Candidate> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
