//! The rollouts of one queue that are at workers, by id: `kernels/running_table.cuh`, smaller.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use doorbell_contract::GOLDEN;

use super::state::PLACES;

const SETS: u32 = PLACES;
const WAYS: usize = 4;
const SET_BITS: u32 = SETS.trailing_zeros();
/// A free way: the last place is never given out.
const NONE: u32 = u32::MAX;

/// Mixed, an id's low bits choose the set, and the others, with the place, are the entry: the table knows ids exactly.
#[derive(Debug, Default)]
pub(super) struct RunningTable {
    ways: [[AtomicU32; WAYS]; SETS as usize],
    entries: AtomicU32,
}

fn locate(id: u32) -> (usize, u32) {
    let mixed = id.wrapping_mul(GOLDEN);
    ((mixed % SETS) as usize, mixed >> SET_BITS)
}

fn is_of(entry: u32, tag: u32) -> bool {
    entry != NONE && entry >> SET_BITS == tag
}

impl RunningTable {
    pub fn clear(&self) {
        for way in self.ways.iter().flatten() {
            way.store(NONE, Ordering::Relaxed);
        }
        self.entries.store(0, Ordering::Relaxed);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Acquire) == 0
    }

    /// The place of rollout `id`, or none: then what its last descriptor did has been seen.
    pub fn find(&self, id: u32) -> Option<u32> {
        let (set, tag) = locate(id);
        let entries = self.ways[set].iter().map(|way| way.load(Ordering::Relaxed));
        let place = entries.filter(|&entry| is_of(entry, tag)).last().map(|entry| entry % PLACES);
        fence(Ordering::AcqRel);
        place
    }

    /// Enters a rollout that is not in the table; false if its set is full.
    pub fn enter(&self, id: u32, place: u32) -> bool {
        let (set, tag) = locate(id);
        let entry = tag << SET_BITS | place;
        let free =
            |way: &&AtomicU32| way.compare_exchange(NONE, entry, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let entered = self.ways[set].iter().find(free).is_some();
        if entered {
            self.entries.fetch_add(1, Ordering::AcqRel);
        }
        entered
    }

    /// Removes a rollout. Whoever then finds it gone sees what came before.
    pub fn leave(&self, id: u32) {
        let (set, tag) = locate(id);
        if let Some(way) = self.ways[set].iter().find(|way| is_of(way.load(Ordering::Relaxed), tag)) {
            way.store(NONE, Ordering::Release);
            self.entries.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_takes_as_many_rollouts_as_it_has_ways() {
        let table = RunningTable::default();
        table.clear();
        let (set, _) = locate(0);
        let mut same_set = (0..u32::MAX).filter(|&id| locate(id).0 == set);
        let ids: Vec<u32> = same_set.by_ref().take(WAYS).collect();
        for (&id, place) in ids.iter().zip(0..) {
            assert_eq!(table.find(id), None);
            assert!(table.enter(id, place));
            assert_eq!(table.find(id), Some(place));
        }
        let other = same_set.next().unwrap();
        assert!(!table.enter(other, 9));
        table.leave(ids[2]);
        assert_eq!((table.find(ids[2]), table.find(ids[3])), (None, Some(3)));
        assert!(table.enter(other, 9));
        [ids[0], ids[1], ids[3], other].iter().for_each(|&id| table.leave(id));
        assert!(table.is_empty());
    }
}
