//! The steps of a segment that have no section in `doorbell bench`, each beside what it could be at least.
//!
//!     cargo bench -p doorbell-runtime --bench steps

use std::collections::VecDeque;

use divan::{Bencher, black_box};
use doorbell_runtime::policy::{Candidate, PolicyKind};
use doorbell_runtime::reward::Tickets;
use doorbell_runtime::rollout::{RolloutId, State, StateTable};

fn main() {
    divan::main();
}

const WAITING: u32 = 1024;

/// Two edges: from DECODING to REWARD_PENDING and back.
#[divan::bench]
fn two_edges(bencher: Bencher) {
    let mut table = StateTable::new(1);
    let id = table.current(0);
    table.advance(id, State::Free, State::PrefillReady).unwrap();
    table.advance(id, State::PrefillReady, State::Decoding).unwrap();
    bencher.bench_local(|| {
        let id = black_box(id);
        table.advance(id, State::Decoding, State::RewardPending).unwrap();
        table.advance(id, State::RewardPending, State::Decoding).unwrap();
    });
}

/// The floor of that: a word is looked at and written, twice.
#[divan::bench]
fn two_edges_floor(bencher: Bencher) {
    let mut word = 0u64;
    bencher.bench_local(|| {
        for next in [1, 0] {
            let word = black_box(&mut word);
            assert_ne!(*word, next);
            *word = next;
        }
    });
}

/// One candidate out and in again, with 1024 that wait.
#[divan::bench(args = PolicyKind::ALL)]
fn policy(bencher: Bencher, kind: PolicyKind) {
    let mut policy = kind.build(WAITING);
    for slot in 0..WAITING {
        let remaining = slot.wrapping_mul(2_654_435_761) % 2000;
        policy.push(Candidate {
            id: RolloutId::new(slot, 0),
            group: slot / 8,
            remaining,
            expected: remaining,
        });
    }
    bencher.bench_local(|| {
        let candidate = policy.pop().unwrap();
        policy.push(black_box(candidate));
    });
}

/// The floor of that: a queue of the standard library.
#[divan::bench]
fn policy_floor(bencher: Bencher) {
    let candidate = Candidate { id: RolloutId::new(0, 0), group: 0, remaining: 0, expected: 0 };
    let mut queue: VecDeque<Candidate> = std::iter::repeat_n(candidate, WAITING as usize).collect();
    bencher.bench_local(|| {
        let candidate = queue.pop_front().unwrap();
        queue.push_back(black_box(candidate));
    });
}

/// A ticket for an answer, and its verdict.
#[divan::bench]
fn ticket(bencher: Bencher) {
    let mut tickets = Tickets::new(1);
    let id = RolloutId::new(0, 0);
    bencher.bench_local(|| {
        let ticket = tickets.issue(black_box(id));
        tickets.redeem(id, ticket)
    });
}
