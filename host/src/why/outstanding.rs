//! The descriptors without a completion, as the two rings in memory show them.

use std::collections::{HashMap, HashSet};

use doorbell_contract::{CompletionFlags, HwDesc};

use crate::queue::{CompletionQueue, Written};

/// Descriptors without a completion.
pub(crate) struct Outstanding {
    /// Those that the slots of the submission queue still hold, by their running indices, oldest first.
    pub slots: Vec<(u32, HwDesc)>,
    /// How many others there are.
    pub unknown: u64,
}

impl Outstanding {
    /// Looks at the slots below `sq_tail`, and at the completions of which `taken` have come from `cq`. `in_flight` descriptors have none
    /// that was taken; those of the slots from `sq_head` on are among them.
    pub fn find(
        written: &Written,
        cq: &CompletionQueue,
        taken: u64,
        (sq_head, sq_tail): (u32, u32),
        in_flight: u64,
    ) -> Self {
        let depth = written.depth().slots();
        let slots: Vec<(u32, HwDesc)> = (0..depth)
            .map(|k| sq_tail.wrapping_sub(depth - k))
            .filter_map(|index| Some((index, written.at(index)?)))
            .collect();
        let (popped, ahead) = cq.shown(taken);
        let without = in_flight.saturating_sub(ahead.len() as u64);
        let mut ended: HashMap<Name, u32> = HashMap::new();
        let mut nameless: HashSet<u32> = HashSet::new();
        for completion in popped.iter().chain(&ahead) {
            if completion.has(CompletionFlags::NO_ECHO) {
                nameless.insert(completion.result);
            } else {
                *ended.entry((completion.rollout_id, completion.user_data)).or_default() += 1;
            }
        }
        // Descriptors of one name complete in their order (R5): the first of them have.
        let mut has_ended = |&(index, desc): &(u32, HwDesc)| {
            let of_name = ended.get_mut(&(desc.rollout_id, desc.user_data)).filter(|count| **count > 0);
            nameless.contains(&index) || of_name.map(|count| *count -= 1).is_some()
        };
        let mut slots: Vec<(u32, HwDesc)> = slots.into_iter().filter(|slot| !has_ended(slot)).collect();
        if slots.len() as u64 > without {
            // Completions have been overwritten since: only what was never consumed is certain.
            slots.retain(|(index, _)| index.wrapping_sub(sq_head) < sq_tail.wrapping_sub(sq_head));
        }
        let unknown = without.saturating_sub(slots.len() as u64);
        Self { slots, unknown }
    }
}

/// What a completion echoes of its descriptor: rollout and `user_data`.
type Name = (u32, u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{SIMULATED_BUS_ADDRESS, SharedMemory};
    use crate::queue::{Depth, SubmissionQueue};
    use bytemuck::cast;
    use doorbell_contract::HwCompletion;
    use rstest::rstest;

    /// Submits ten DECODEs to rings of `slots` and 16 slots, completes all but the third and the sixth, and takes all but the last
    /// completion. Names differ, or are all the same.
    #[rstest]
    #[case::names(16, false, &[2, 5], 0)]
    #[case::reused_slots(4, false, &[], 2)]
    #[case::one_name(16, true, &[8, 9], 0)]
    fn what_has_no_completion_is_found(
        #[case] slots: u32,
        #[case] same: bool,
        #[case] expected: &[u32],
        #[case] unknown: u64,
        #[values(0, u32::MAX - 3)] start: u32,
    ) {
        let memory = SharedMemory::allocate(1 << 16, SIMULATED_BUS_ADDRESS).unwrap();
        let depth = |slots| Depth::new("depth", slots).unwrap();
        let mut sq = SubmissionQueue::new(&memory, 0, depth(slots), start, 9).unwrap();
        let mut cq = CompletionQueue::new(&memory, 1 << 12, depth(16), start).unwrap();
        let at = |k: u32| start.wrapping_add(k);
        let name = |k: u32| if same { (0, 0) } else { (k, u64::from(k)) };
        for k in 0..10 {
            let (rollout, user_data) = name(k);
            assert_eq!(sq.push(&[HwDesc::decode(rollout, 4, 4).with_user_data(user_data)]).unwrap(), 1);
            assert!(sq.consumed_to(start, at(k + 1)));
        }
        let mut out = [HwCompletion::default()];
        for (index, k) in (0..10).filter(|&k| k != 2 && k != 5).enumerate() {
            let (rollout_id, user_data) = name(k);
            let completion = HwCompletion { rollout_id, user_data, ..HwCompletion::default() };
            let index = at(index as u32);
            let words: [u64; 4] = cast(completion.with_phase(depth(16).phase(index)));
            memory.slots::<4>(1 << 12, 16).unwrap().store(index, words);
            if k < 9 {
                assert_eq!(cq.pop(&mut out).unwrap(), 1);
            }
        }
        let found = Outstanding::find(&sq.reader(), &cq, 7, (sq.head(), sq.tail()), 3);
        let indices: Vec<u32> = found.slots.iter().map(|(index, _)| *index).collect();
        assert_eq!((indices, found.unknown), (expected.iter().map(|&k| at(k)).collect(), unknown));
    }
}
