//! Which shard has the tokens of which bytes.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// A shard for every byte: each entry says from which byte on, up to the next entry. Bytes that were never assigned are
/// shard 0's.
pub(super) struct Regions(BTreeMap<u64, usize>);

impl Regions {
    pub fn new() -> Self {
        Self(BTreeMap::from([(0, 0)]))
    }

    /// The shard of the byte at `offset`, and up to where it is the same in any case.
    pub fn at(&self, offset: u64) -> (usize, u64) {
        let shard = self.0.range(..=offset).next_back().map_or(0, |(_, &shard)| shard);
        let next = self.0.range((Bound::Excluded(offset), Bound::Unbounded)).next();
        (shard, next.map_or(u64::MAX, |(&start, _)| start))
    }

    /// Gives `range` to `shard`.
    pub fn assign(&mut self, range: Range<u64>, shard: usize) {
        let (before, end) = self.at(range.start);
        // A rollout that goes on stays within the range of its first DECODE.
        if range.is_empty() || before == shard && range.end <= end {
            return;
        }
        let after = self.at(range.end).0;
        while let Some((&start, _)) = self.0.range(range.clone()).next() {
            self.0.remove(&start);
        }
        self.0.insert(range.start, shard);
        self.0.insert(range.end, after);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_is_whose_it_was_last_assigned(
            ranges in prop::collection::vec((0u64..40, 0u64..20, 0usize..4), 0..20),
        ) {
            let mut regions = Regions::new();
            let mut expected = [0; 60];
            for (start, length, shard) in ranges {
                let range = start..start + length;
                regions.assign(range.clone(), shard);
                expected[range.start as usize..range.end as usize].fill(shard);
            }
            for (offset, &shard) in expected.iter().enumerate() {
                let (found, end) = regions.at(offset as u64);
                prop_assert_eq!(found, shard);
                let same = expected[offset..].iter().take_while(|&&other| other == shard).count();
                prop_assert!(end > offset as u64, "at {}", offset);
                prop_assert!(end <= (offset + same) as u64 || offset + same == 60, "at {}", offset);
            }
        }
    }

    #[test]
    fn a_rollout_that_goes_on_costs_nothing() {
        let mut regions = Regions::new();
        regions.assign(64..640, 1);
        regions.assign(128..640, 1);
        assert_eq!(regions.0.len(), 3);
    }
}
