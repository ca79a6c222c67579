use std::collections::VecDeque;

use super::{Candidate, Policy};

/// Candidates of one group that may go in a row while others wait.
const QUANTUM: u32 = 32;

/// Members of one group together, so that a shared prefix is read while it is warm; groups in the order in which they
/// began to wait, each for at most 32 candidates at a time.
#[derive(Debug)]
pub struct PrefixSharing {
    /// For each slot its candidate and the next slot of the same group.
    entries: Box<[Option<Entry>]>,
    /// First and last slot of each group.
    groups: Box<[Option<(u32, u32)>]>,
    /// Groups that have candidates, each once.
    turns: VecDeque<u32>,
    /// Candidates that the first of them may yet give.
    left: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    candidate: Candidate,
    next: Option<u32>,
}

impl PrefixSharing {
    /// For `slots` slots, and as many groups.
    pub fn new(slots: u32) -> PrefixSharing {
        PrefixSharing {
            entries: vec![None; slots as usize].into(),
            groups: vec![None; slots as usize].into(),
            turns: VecDeque::with_capacity(slots as usize),
            left: QUANTUM,
            len: 0,
        }
    }
}

impl Policy for PrefixSharing {
    #[inline]
    fn push(&mut self, candidate: Candidate) {
        let slot = candidate.id.slot();
        self.entries[slot as usize] = Some(Entry { candidate, next: None });
        self.len += 1;
        match &mut self.groups[candidate.group as usize] {
            Some((_, last)) => {
                if let Some(entry) = &mut self.entries[*last as usize] {
                    entry.next = Some(slot);
                }
                *last = slot;
            }
            none => {
                *none = Some((slot, slot));
                self.turns.push_back(candidate.group);
            }
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Candidate> {
        let &group = self.turns.front()?;
        let (first, last) = self.groups[group as usize]?;
        let Entry { candidate, next } = self.entries[first as usize].take()?;
        self.len -= 1;
        self.left -= 1;
        self.groups[group as usize] = next.map(|next| (next, last));
        if next.is_none() || self.left == 0 {
            self.turns.pop_front();
            self.left = QUANTUM;
            if next.is_some() {
                self.turns.push_back(group);
            }
        }
        Some(candidate)
    }

    fn len(&self) -> usize {
        self.len
    }
}
