//! What the host knows of a queue pair's descriptors, to hold completions against (R3, R13).

use doorbell_contract::HwCompletion;

/// Counts completions and follows `sq_head`.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// SQ_START.
    start: u32,
    completed: u64,
    sq_head: u32,
}

/// What a device did that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub rule: &'static str,
    pub what: String,
}

impl Ledger {
    /// The ledger of a queue pair that starts at running index `start`.
    pub fn new(start: u32) -> Self {
        Self { start, completed: 0, sq_head: start }
    }

    /// Completions taken over.
    #[inline]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// SQ slots consumed so far, a running index.
    #[inline]
    pub fn sq_head(&self) -> u32 {
        self.sq_head
    }

    /// The running index behind `count` descriptors.
    #[inline]
    pub fn index(&self, count: u64) -> u32 {
        self.start.wrapping_add(count as u32)
    }

    /// Takes `completions` over, of which there can be `published` in all, and whose `sq_head` is at most `tail`. The
    /// first that cannot be ends it: then with how many came before it.
    #[inline]
    pub fn take(
        &mut self,
        completions: &[HwCompletion],
        published: u64,
        tail: u32,
    ) -> Result<(), (usize, Broken)> {
        let due = (completions.len() as u64).min(published.saturating_sub(self.completed)) as usize;
        let (due, more) = completions.split_at(due);
        // Up to the tail: from the newest `sq_head`, and from what has completed.
        let (mut ahead, mut left) =
            (tail.wrapping_sub(self.sq_head), tail.wrapping_sub(self.index(self.completed)));
        for (place, completion) in due.iter().enumerate() {
            // Each completion's own descriptor, at least, has been consumed.
            left = left.wrapping_sub(1);
            let behind = tail.wrapping_sub(completion.sq_head);
            if behind > ahead || behind > left {
                self.advance(place, tail, ahead);
                return Err((place, self.broken(self.completed + 1, published, completion.sq_head, tail)));
            }
            ahead = behind;
        }
        self.advance(due.len(), tail, ahead);
        match more {
            [] => Ok(()),
            [first, ..] => Err((due.len(), self.broken(self.completed + 1, published, first.sq_head, tail))),
        }
    }

    /// So many more have completed, and `sq_head` is `ahead` slots before the tail.
    #[inline]
    fn advance(&mut self, count: usize, tail: u32, ahead: u32) {
        self.completed += count as u64;
        self.sq_head = tail.wrapping_sub(ahead);
    }

    #[cold]
    fn broken(&self, completed: u64, published: u64, found: u32, tail: u32) -> Broken {
        if completed > published {
            let what = format!("{completed} completions for {published} descriptors");
            return Broken { rule: "R3", what };
        }
        let what = format!(
            "sq_head {found:#x} of completion {completed} is not within {:#x} to {tail:#x}, or less than the \
             completions",
            self.sq_head
        );
        Broken { rule: "R13", what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    fn r13_sq_head_stays_between_what_was_seen_and_the_tail(#[values(0, u32::MAX - 1, u32::MAX)] start: u32) {
        let with = |k: u32| HwCompletion { sq_head: start.wrapping_add(k), ..HwCompletion::default() };
        let mut ledger = Ledger::new(start);
        let tail = start.wrapping_add(4);
        assert_eq!(ledger.take(&[with(3)], 4, tail), Ok(()));
        for (impossible, rule) in [(2, "R13"), (5, "R13"), (u32::MAX, "R13")] {
            let (place, broken) = ledger.take(&[with(3), with(impossible)], 4, tail).unwrap_err();
            assert_eq!((place, broken.rule, ledger.completed()), (1, rule, 2));
            ledger.completed = 1;
        }
        // Four completions say that four were consumed.
        assert_eq!(ledger.take(&[with(3), with(3)], 4, tail), Ok(()));
        assert_eq!(ledger.take(&[with(3)], 4, tail).unwrap_err().1.rule, "R13");
        let (place, broken) = ledger.take(&[with(4), with(4)], 4, tail).unwrap_err();
        assert_eq!((place, broken.rule), (1, "R3"), "the first of them is taken over");
        assert_eq!(ledger.take(&[with(4)], 4, tail).unwrap_err().1.rule, "R3");
        assert_eq!((ledger.completed(), ledger.sq_head()), (4, tail));
    }
}
