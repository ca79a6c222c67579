//! The send ring under loom: every interleaving that the memory orders allow, of the very functions that the NIC and its posters
//! run (`src/ring.rs`). Each order is weakened in turn, and loom has to find what comes of it.

use std::sync::atomic::Ordering;

use doorbell_contract::{HwNicEntry, NIC_BELL_AT, NIC_COMPLETED_AT, NIC_SLOTS_AT};
use doorbell_host::queue::Depth;
use doorbell_nic::ring::{Agent, Cell, Looked, PostError, SendRing, Taker, Words, ring_bytes, send};
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use rstest::rstest;

use Ordering::Relaxed;

/// What is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The slot's last word is stored without an order.
    PublishRelaxed,
    /// The slot's last word is read without an order.
    LookRelaxed,
    /// A finisher learns without an order that a slot is free.
    CompletedRelaxed,
    /// The NIC completes without an order.
    CompleteRelaxed,
    /// The bell is read and then stored, and not added to in one step.
    BellStored,
    /// Finishers do not see what is completed: they take slots that are in use.
    NoRoomSeen,
    /// Two finishers may take the same slot.
    ReserveStored,
}

/// A word that has an order less, or a step in two.
struct Word {
    inner: AtomicU64,
    /// In its place, a word that is only accessed by who has it: loom finds two that nothing orders. All words of a slot but the last
    /// are such: an atomic one may not be torn, but loom would let no load see what is stored later, as processors do.
    plain: Option<loom::cell::Cell<u64>>,
    load: Option<Ordering>,
    store: Option<Ordering>,
    in_two: bool,
    hides: bool,
}

impl Cell for Word {
    fn load(&self, order: Ordering) -> u64 {
        if let Some(plain) = &self.plain {
            return plain.get();
        }
        let value = self.inner.load(self.load.unwrap_or(order));
        // As if all were completed that could be.
        if self.hides { u64::MAX / 2 } else { value }
    }

    fn store(&self, value: u64, order: Ordering) {
        if let Some(plain) = &self.plain {
            return plain.set(value);
        }
        self.inner.store(value, self.store.unwrap_or(order));
    }

    fn add(&self, value: u64, order: Ordering) {
        if self.in_two {
            self.inner.store(self.inner.load(Relaxed).wrapping_add(value), order);
        } else {
            self.inner.fetch_add(value, order);
        }
    }

    fn replace(&self, current: u64, new: u64) -> Result<u64, u64> {
        if self.in_two {
            let seen = self.inner.load(Relaxed);
            if seen != current {
                return Err(seen);
            }
            self.inner.store(new, Relaxed);
            return Ok(current);
        }
        self.inner.compare_exchange(current, new, Relaxed, Relaxed)
    }
}

#[derive(Clone)]
struct Memory(Arc<Vec<Word>>);

impl Words for Memory {
    type Cell = Word;

    fn word(&self, at: usize) -> &Word {
        &self.0[at / 8]
    }
}

fn memory(depth: Depth, mistake: Option<Mistake>) -> Memory {
    let is = |planted| mistake == Some(planted);
    let word = |at: usize| {
        let last = at >= NIC_SLOTS_AT as usize && at % 64 == 56;
        let completed = at == NIC_COMPLETED_AT as usize;
        let in_slot = at >= NIC_SLOTS_AT as usize && !last;
        Word {
            inner: AtomicU64::new(0),
            plain: in_slot.then(|| loom::cell::Cell::new(0)),
            load: (last && is(Mistake::LookRelaxed) || completed && is(Mistake::CompletedRelaxed))
                .then_some(Relaxed),
            store: (last && is(Mistake::PublishRelaxed) || completed && is(Mistake::CompleteRelaxed))
                .then_some(Relaxed),
            in_two: at == NIC_BELL_AT as usize && is(Mistake::BellStored),
            hides: completed && is(Mistake::NoRoomSeen),
        }
    };
    Memory(Arc::new((0..ring_bytes(depth)).step_by(8).map(word).collect()))
}

/// Looks of a thread at what another one is to change, at most: loom runs no endless loops.
const LOOKS: u32 = 4;

/// Two finishers post two entries each, or one, into a ring of two slots; the NIC takes and completes them. What it takes is whole, in
/// order, each of them once. A NIC that finds the bell as it left it waits for the bell to change, and for nothing else.
fn run(posts: [u32; 2], preemptions: usize, mistake: Option<Mistake>) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = ended.clone();
    builder.check(move || {
        let depth = Depth::new("depth", 2).unwrap();
        let memory = memory(depth, mistake);
        let ring = SendRing::over(memory, depth, 5);
        let reserved = Word {
            inner: AtomicU64::new(0),
            plain: None,
            load: None,
            store: None,
            in_two: mistake == Some(Mistake::ReserveStored),
            hides: false,
        };
        let agent = Arc::new(Agent::with(ring.clone(), reserved));
        let finishers: Vec<_> = (0..2)
            .filter(|&finisher| posts[finisher] > 0)
            .map(|finisher| {
                let agent = agent.clone();
                thread::spawn(move || {
                    let mut posted = 0;
                    'entries: for k in 0..posts[finisher] {
                        let name = 16 * (finisher as u64 + 1) + u64::from(k);
                        // Fields that depend on each other: a mixture of two entries shows.
                        let entry = HwNicEntry { rollout_id: name as u32, ..send(name, name << 8, 0) };
                        for _ in 0..LOOKS {
                            match agent.post(entry) {
                                Ok(_) => {
                                    posted += 1;
                                    continue 'entries;
                                }
                                Err(PostError::Full) => thread::yield_now(),
                                Err(error) => panic!("{error}"),
                            }
                        }
                        break;
                    }
                    posted
                })
            })
            .collect();
        let mut taker = Taker::new(ring);
        let mut took = vec![];
        let mut take = |taker: &mut Taker<Memory>| {
            let Looked::Entry(index, entry) = taker.look().expect("an entry is whole") else { return false };
            assert_eq!(index, took.len() as u64, "in order");
            let name = entry.user_data;
            assert_eq!((u64::from(entry.rollout_id), entry.offset), (name, name << 8), "an entry is torn");
            assert!(!took.contains(&name), "an entry is doubled");
            took.push(name);
            taker.complete(1);
            true
        };
        for _ in 0..LOOKS {
            if !take(&mut taker) {
                thread::yield_now();
            }
        }
        let posted: u32 = finishers.into_iter().map(|finisher| finisher.join().unwrap()).sum();
        // All bells were rung: whatever is left is found by them.
        while take(&mut taker) {}
        assert_eq!(took.len() as u32, posted, "an entry is lost, or its bell");
        if posted == posts.iter().sum() {
            seen.store(true, Relaxed);
        }
    });
    assert!(ended.load(Relaxed), "no interleaving came to its end");
}

#[rstest]
#[case([1, 1], 3)]
// With three switches away from a thread that could go on it takes 12 s.
#[case([2, 1], 2)]
#[case([3, 0], 3)]
fn w3_w5_entries_are_taken_whole_in_order_and_once(#[case] posts: [u32; 2], #[case] preemptions: usize) {
    run(posts, preemptions, None);
}

#[rstest]
// One finisher's entry is ordered by its bell, too; another one's is not.
#[case(Mistake::PublishRelaxed, [1, 1])]
#[case(Mistake::LookRelaxed, [1, 1])]
#[case(Mistake::CompletedRelaxed, [3, 0])]
#[case(Mistake::CompleteRelaxed, [3, 0])]
#[case(Mistake::BellStored, [1, 1])]
#[case(Mistake::NoRoomSeen, [3, 0])]
#[case(Mistake::ReserveStored, [1, 1])]
fn w3_w5_each_mistake_is_found(#[case] mistake: Mistake, #[case] posts: [u32; 2]) {
    let ran = std::panic::catch_unwind(|| run(posts, 3, Some(mistake)));
    assert!(ran.is_err(), "{mistake:?} was not noticed");
}
