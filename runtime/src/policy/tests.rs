use std::collections::BTreeSet;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const SLOTS: u32 = 64;

fn candidate(slot: u32, group: u32, remaining: u32, expected: u32) -> Candidate {
    Candidate { id: RolloutId::new(slot, 0), group, remaining, expected }
}

fn order(kind: PolicyKind, candidates: &[Candidate]) -> Vec<u32> {
    let mut policy = kind.build(SLOTS);
    candidates.iter().for_each(|&candidate| policy.push(candidate));
    std::iter::from_fn(|| policy.pop()).map(|candidate| candidate.id.slot()).collect()
}

#[rstest]
#[case(PolicyKind::Fifo, &[0, 1, 2, 3, 4])]
#[case(PolicyKind::ShortestRemaining, &[3, 1, 4, 0, 2])]
#[case(PolicyKind::PrefixSharing, &[0, 2, 4, 1, 3])]
#[case(PolicyKind::LongestExpected, &[4, 2, 0, 1, 3])]
fn each_has_its_order(#[case] kind: PolicyKind, #[case] expected: &[u32]) {
    let waiting = [
        candidate(0, 7, 500, 400),
        candidate(1, 3, 100, 100),
        candidate(2, 7, 900, 700),
        candidate(3, 3, 10, 10),
        candidate(4, 7, 300, 1000),
    ];
    assert_eq!(order(kind, &waiting), expected);
    assert_eq!(kind.name().parse(), Ok(kind));
}

#[test]
fn an_unknown_name_is_told_with_those_that_there_are() {
    let error = "best".parse::<PolicyKind>().unwrap_err();
    assert!(error.contains("'best'") && error.contains("shortest-remaining"), "{error}");
}

/// One candidate that the policy likes least waits while others that it likes best come for ever, one for each that
/// goes. It comes out within a bound that depends on the policy alone.
#[rstest]
fn none_starves(#[values(0, 1, 2, 3)] kind: usize, #[values(1, 7, 63)] others: u32) {
    let kind = PolicyKind::ALL[kind];
    let mut policy = kind.build(SLOTS);
    for slot in 1..=others {
        policy.push(candidate(slot, 1, 1, u32::MAX));
    }
    policy.push(candidate(0, 0, u32::MAX, 0));
    let bound = others + PENALTY_MAX as u32 + 64;
    let waited = (0..=bound).position(|_| {
        let next = policy.pop().unwrap();
        if next.id.slot() != 0 {
            policy.push(candidate(next.id.slot(), 1, 1, u32::MAX));
        }
        next.id.slot() == 0
    });
    assert!(waited.is_some(), "{kind} let a candidate wait for more than {bound} others");
}

proptest! {
    /// Whatever is pushed comes out exactly once, in any mixture of pushes and pops.
    #[test]
    fn none_is_lost_or_doubled(
        kind in 0usize..4,
        steps in prop::collection::vec((any::<bool>(), 0u32..8, 1u32..10_000, 0u32..10_000), 1..400),
    ) {
        let mut policy = PolicyKind::ALL[kind].build(SLOTS);
        let mut outside: BTreeSet<u32> = (0..SLOTS).collect();
        for (push, group, remaining, expected) in steps {
            if push && let Some(slot) = outside.pop_first() {
                policy.push(candidate(slot, group, remaining, expected));
            } else if let Some(next) = policy.pop() {
                prop_assert!(outside.insert(next.id.slot()), "{} came out twice", next.id);
            }
            prop_assert_eq!(policy.len(), SLOTS as usize - outside.len());
        }
        while let Some(next) = policy.pop() {
            prop_assert!(outside.insert(next.id.slot()), "{} came out twice", next.id);
        }
        prop_assert_eq!(outside.len(), SLOTS as usize);
        prop_assert!(policy.is_empty());
    }
}
