//! Which shard has the tokens of which bytes.

use std::ops::Range;

/// Bounds for which there is room without growing: a few for each of some thousand areas, as DECODEs of many lengths follow one
/// another in each, on different shards.
const ROOM: usize = 1 << 15;

/// A shard for every byte, or none: each bound says from which byte on, up to the next bound. Bytes that were never assigned are nobody's.
///
/// The bounds lie in order in a vector: areas that are used again and again keep theirs, so that nothing is allocated or
/// moved then, and areas that follow one another are appended.
pub(super) struct Regions(Vec<(u64, Option<usize>)>);

impl Regions {
    pub fn new() -> Self {
        // Written, so that no page of it is touched first by whoever must not wait.
        let mut bounds = vec![(u64::MAX, Some(0)); ROOM];
        bounds.truncate(1);
        bounds[0] = (0, None);
        Self(bounds)
    }

    /// The shard of the byte at `offset`, and up to where it is the same in any case.
    pub fn at(&self, offset: u64) -> (Option<usize>, u64) {
        let next = self.0.partition_point(|&(start, _)| start <= offset);
        let shard = next.checked_sub(1).and_then(|bound| self.0[bound].1);
        (shard, self.0.get(next).map_or(u64::MAX, |&(start, _)| start))
    }

    /// Gives `range` to `shard`.
    pub fn assign(&mut self, range: Range<u64>, shard: usize) {
        let (before, end) = self.at(range.start);
        // A rollout that goes on stays within the range of its first DECODE.
        let shard = Some(shard);
        if range.is_empty() || before == shard && range.end <= end {
            return;
        }
        let after = self.at(range.end).0;
        let from = self.0.partition_point(|&(start, _)| start < range.start);
        let to = self.0.partition_point(|&(start, _)| start <= range.end);
        self.0.splice(from..to, [(range.start, shard), (range.end, after)]);
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
            let mut expected = [None; 60];
            for (start, length, shard) in ranges {
                let range = start..start + length;
                regions.assign(range.clone(), shard);
                expected[range.start as usize..range.end as usize].fill(Some(shard));
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
