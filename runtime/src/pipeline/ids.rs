//! Numbers for what the device knows of requests.

use std::ops::Range;

use doorbell_contract::PREFIX_NONE;

/// Ids on the wire end below this one: a prefix is named by the first id of its group, and this names none.
const END: u32 = PREFIX_NONE;

/// Gives each group a range of `rollout_id`s that no living one has.
///
/// They are used in order, so that for the first 2^32 of them the ids of a request follow from those before it alone, and
/// with them its tokens (R6). Then they begin anew, and those that are still in use are passed over.
#[derive(Debug)]
pub(super) struct WireIds {
    /// The next id.
    next: u32,
    /// The first one behind it that is in use, or [`END`].
    clear: u32,
}

impl WireIds {
    pub fn new() -> WireIds {
        WireIds { next: 0, clear: END }
    }

    #[cfg(test)]
    pub fn starting_at(next: u32) -> WireIds {
        WireIds { next, clear: next }
    }

    /// The first of `count` ids in a row; `living` gives the ranges that are in use.
    #[inline]
    pub fn take<L: Iterator<Item = Range<u32>>>(&mut self, count: u32, living: impl Fn() -> L) -> u32 {
        while self.clear - self.next < count {
            self.pass(&living);
        }
        let first = self.next;
        self.next += count;
        first
    }

    /// Goes on behind what is in the way. It comes to an end, as at most 2^26 of the 2^32 ids are in use: the ranges of at
    /// most 2^24 slots.
    #[cold]
    fn pass<L: Iterator<Item = Range<u32>>>(&mut self, living: impl Fn() -> L) {
        self.next = if self.clear == END { 0 } else { self.clear };
        while let Some(range) = living().find(|range| range.contains(&self.next)) {
            self.next = if range.end == END { 0 } else { range.end };
        }
        let next = self.next;
        self.clear = living().map(|range| range.start).filter(|&start| start > next).min().unwrap_or(END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_wrap_and_pass_over_what_lives() {
        let mut ids = WireIds::starting_at(END - 10);
        let mut living = vec![END - 4..END - 1, 0..3, 5..6];
        let mut take = |living: &[Range<u32>], count| ids.take(count, || living.iter().cloned());
        assert_eq!(take(&living, 3), END - 10);
        living.push(END - 10..END - 7);
        // Three are left before the first that lives, one at the end, two between 3 and 5.
        assert_eq!(take(&living, 3), END - 7);
        assert_eq!(take(&living, 1), END - 1);
        assert_eq!(take(&living, 3), 6);
        assert_eq!(take(&[], 3), 9);
    }

    /// Whatever lives, and wherever the ids are: no range that is given out touches one that lives, or reaches the end.
    #[test]
    fn no_id_is_in_use_twice() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut ids = WireIds::new();
        let mut living: Vec<Range<u32>> = vec![];
        for step in 0..20_000u32 {
            if step % 64 == 0 {
                // As if nearly all ids had been used since.
                let place =
                    living.get(random(8) as usize).map_or(END - 40, |range| range.start.saturating_sub(20));
                ids = WireIds::starting_at(place);
            }
            let count = 1 + random(9) as u32;
            let first = ids.take(count, || living.iter().cloned());
            let new = first..first.checked_add(count).expect("all ids are below END");
            for old in &living {
                assert!(new.end <= old.start || old.end <= new.start, "{new:?} meets {old:?}");
            }
            living.push(new);
            if living.len() > 50 {
                living.swap_remove(random(50) as usize);
            }
        }
    }
}
