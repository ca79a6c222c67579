//! The handovers of the kernel's protocol as small models, of which loom runs the interleavings that the memory orders
//! allow; what the kernel accesses plainly is a cell that loom watches for races. Each model runs again with an order
//! weakened, or a step left out or moved, and loom has to reject that.
//!
//! The models repeat the steps of `kernels/front_end.cuh`, `worker.cuh` and `running_table.cuh` (and of `src/emulation/`,
//! which runs them all together) on as few slots and threads as show the handover.

use loom::cell::Cell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use rstest::rstest;

use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Looks at what somebody else is to change before a thread gives up: loom cannot run loops without end. What happens
/// after more looks happens after fewer as well.
const LOOKS: u32 = 3;

/// Switches away from a thread that could go on.
const PREEMPTIONS: usize = 3;

/// Runs every interleaving of a model, which says whether it came to its end or gave up.
fn check(model: impl Fn() -> Option<()> + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = ended.clone();
    builder.check(move || {
        if model().is_some() {
            seen.store(true, Relaxed);
        }
    });
    assert!(ended.load(Relaxed), "no interleaving came to its end");
}

/// Waits for somebody else; `None` if it gives up.
fn until(mut done: impl FnMut() -> bool) -> Option<()> {
    for _ in 0..LOOKS {
        if done() {
            return Some(());
        }
        thread::yield_now();
    }
    None
}

// ---------------------------------------------------------------- claim and turn

/// Two fetch warps claim a descriptor each, and admit them in turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Claims by compare-exchange; else by a load and a store.
    exchange: bool,
    load_admitted: Ordering,
    store_admitted: Ordering,
}

const TURN: Turn = Turn { exchange: true, load_admitted: Acquire, store_admitted: Release };

impl Turn {
    fn check(self) {
        check(move || {
            let claimed = Arc::new(AtomicU32::new(0));
            let admitted = Arc::new(AtomicU32::new(0));
            // `places_taken`, say: whoever has the turn changes it.
            let taken = Arc::new(Cell::new(0));
            let fetcher = {
                let (claimed, admitted, taken) = (claimed.clone(), admitted.clone(), taken.clone());
                move || {
                    let first = self.claim(&claimed);
                    until(|| admitted.load(self.load_admitted) == first)?;
                    assert_eq!(taken.get(), first, "out of turn");
                    taken.set(first + 1);
                    admitted.store(first + 1, self.store_admitted);
                    Some(())
                }
            };
            let other = thread::spawn(fetcher.clone());
            fetcher()?;
            other.join().unwrap()
        });
    }

    fn claim(self, claimed: &AtomicU32) -> u32 {
        loop {
            let first = claimed.load(Acquire);
            if !self.exchange {
                claimed.store(first + 1, Release);
                return first;
            }
            if claimed.compare_exchange(first, first + 1, AcqRel, Acquire).is_ok() {
                return first;
            }
        }
    }
}

#[test]
fn descriptors_are_admitted_in_turn() {
    TURN.check();
}

#[rstest]
#[case::relaxed_load(Turn { load_admitted: Relaxed, ..TURN })]
#[case::relaxed_store(Turn { store_admitted: Relaxed, ..TURN })]
#[should_panic(expected = "Causality violation")]
fn a_turn_that_orders_nothing_is_rejected(#[case] turn: Turn) {
    turn.check();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn claims_that_two_can_make_are_rejected() {
    Turn { exchange: false, ..TURN }.check();
}

// ---------------------------------------------------------------- scout

/// A rollout ends at the completion warp, a fetch warp and the scout are after the same descriptor, a short one of that
/// rollout, and the scout is to execute it at once if it finds the queue quiet: by what it read before it claimed.
#[derive(Clone, Copy, Debug)]
struct Scout {
    /// It executes only what it has claimed itself.
    claims: bool,
    /// It executes only when all before has been admitted.
    looks_at_turn: bool,
    /// It executes only while no rollout runs.
    looks_at_running: bool,
    /// It reads the completion queue's tail behind that.
    tail_last: bool,
    load_admitted: Ordering,
    load_running: Ordering,
}

const SCOUT: Scout = Scout {
    claims: true,
    looks_at_turn: true,
    looks_at_running: true,
    tail_last: true,
    load_admitted: Acquire,
    load_running: Acquire,
};

/// What the three share.
struct Quiet {
    claimed: AtomicU32,
    admitted: AtomicU32,
    running: AtomicU32,
    /// The completion queue's tail, and its slots.
    posted: AtomicU32,
    slots: [Cell<bool>; 4],
    /// The rollout's tokens (R5).
    tokens: Cell<u32>,
}

impl Quiet {
    /// Whoever has a slot to itself fills it, and writes tokens.
    fn fill(&self, slot: u32) {
        let slot = &self.slots[slot as usize];
        assert!(!slot.get(), "R4: a slot is taken twice");
        slot.set(true);
    }

    fn write_tokens(&self) {
        self.tokens.set(self.tokens.get() + 1);
    }

    /// Whoever has the turn and finds that nothing runs posts by a store.
    fn post(&self, tail: u32, admitted: u32) {
        self.posted.store(tail + 1, Relaxed);
        self.write_tokens();
        self.fill(tail);
        self.admitted.store(admitted, Release);
    }
}

impl Scout {
    fn check(self) {
        check(move || {
            let quiet = Arc::new(Quiet {
                claimed: AtomicU32::new(0),
                admitted: AtomicU32::new(0),
                running: AtomicU32::new(1),
                posted: AtomicU32::new(0),
                slots: std::array::from_fn(|_| Cell::new(false)),
                tokens: Cell::new(0),
            });
            let completion = {
                let quiet = quiet.clone();
                thread::spawn(move || {
                    quiet.write_tokens();
                    let slot = quiet.posted.fetch_add(1, Relaxed);
                    quiet.fill(slot);
                    quiet.running.fetch_sub(1, AcqRel);
                })
            };
            let fetcher = {
                let quiet = quiet.clone();
                thread::spawn(move || {
                    if quiet.claimed.compare_exchange(0, 1, AcqRel, Acquire).is_err() {
                        return Some(());
                    }
                    until(|| quiet.running.load(Acquire) == 0)?;
                    quiet.post(quiet.posted.load(Relaxed), 1);
                    Some(())
                })
            };
            let mut executed = 0;
            until(|| {
                executed += u32::from(self.look(&quiet));
                executed != 0
            })?;
            completion.join().unwrap();
            fetcher.join().unwrap()
        });
    }

    /// One look; whether a descriptor was executed.
    fn look(self, quiet: &Quiet) -> bool {
        let index = quiet.claimed.load(Acquire);
        let early = quiet.posted.load(Relaxed);
        let admitted = quiet.admitted.load(self.load_admitted);
        let running = quiet.running.load(self.load_running);
        let tail = if self.tail_last { quiet.posted.load(Relaxed) } else { early };
        let is_quiet = (admitted == index || !self.looks_at_turn) && (running == 0 || !self.looks_at_running);
        // The kernel claims in any case, and goes another way if it is not; here that is of no interest.
        if !is_quiet {
            return false;
        }
        let claimed = quiet.claimed.compare_exchange(index, index + 1, Relaxed, Relaxed).is_ok();
        if claimed || !self.claims {
            quiet.post(tail, index + 1);
        }
        claimed
    }
}

#[test]
fn what_the_scout_finds_quiet_stays_so_until_it_claims() {
    SCOUT.check();
}

#[rstest]
#[case::claimed_by_another(Scout { claims: false, ..SCOUT })]
#[case::not_its_turn(Scout { looks_at_turn: false, ..SCOUT })]
#[case::while_a_rollout_runs(Scout { looks_at_running: false, ..SCOUT })]
#[case::relaxed_admitted(Scout { load_admitted: Relaxed, ..SCOUT })]
#[case::relaxed_running(Scout { load_running: Relaxed, ..SCOUT })]
#[should_panic(expected = "Causality violation")]
fn a_scout_that_is_not_alone_is_rejected(#[case] scout: Scout) {
    scout.check();
}

#[test]
#[should_panic(expected = "R4: a slot is taken twice")]
fn a_tail_that_is_read_too_early_is_rejected() {
    Scout { tail_last: false, ..SCOUT }.check();
}

// ---------------------------------------------------------------- completion slots

/// A fetch warp, which advances the SQ head, and the completion warp reserve slots of a completion queue of one slot, and
/// the host takes what they post.
#[derive(Clone, Copy, Debug)]
struct Slots {
    /// Reserves no slot that is not released (R4).
    looks_at_room: bool,
    /// SQ head and CQ tail change together.
    together: bool,
    load_cq_head: Ordering,
    store_cq_head: Ordering,
}

const SLOTS: Slots =
    Slots { looks_at_room: true, together: true, load_cq_head: Acquire, store_cq_head: Release };

/// What the three share.
struct Queue {
    /// SQ head << 32 | CQ tail.
    posted: AtomicU64,
    /// For a variant: the SQ head on its own.
    sq_head: AtomicU32,
    cq_head: AtomicU32,
    /// The slot: what the completion says as SQ head, and the index up to which it is fresh.
    slot: Cell<u32>,
    fresh: AtomicU32,
}

impl Slots {
    fn check(self) {
        check(move || {
            let queue = Arc::new(Queue {
                posted: AtomicU64::new(0),
                sq_head: AtomicU32::new(0),
                cq_head: AtomicU32::new(0),
                slot: Cell::new(0),
                fresh: AtomicU32::new(0),
            });
            let parties = [Some(7), None].map(|advance| {
                let queue = queue.clone();
                thread::spawn(move || self.post(&queue, advance))
            });
            let mut newest = 0;
            for index in 0..2 {
                until(|| queue.fresh.load(Acquire) == index + 1)?;
                let sq_head = queue.slot.get();
                assert!(sq_head >= newest, "sq_head goes back");
                newest = sq_head;
                // The host's mark, and the release behind it.
                queue.slot.set(u32::MAX);
                queue.cq_head.store(index + 1, self.store_cq_head);
            }
            parties.into_iter().try_for_each(|party| party.join().unwrap())
        });
    }

    fn post(self, queue: &Queue, advance: Option<u32>) -> Option<()> {
        let mut reserved = None;
        until(|| {
            reserved = self.reserve(queue, advance);
            reserved.is_some()
        })?;
        let (index, sq_head) = reserved?;
        queue.slot.set(sq_head);
        queue.fresh.store(index + 1, Release);
        Some(())
    }

    /// One slot: its index, and the SQ head that goes with it.
    fn reserve(self, queue: &Queue, advance: Option<u32>) -> Option<(u32, u32)> {
        let mut old = queue.posted.load(Relaxed);
        loop {
            let tail = old as u32;
            let mut sq_head = advance.unwrap_or((old >> 32) as u32);
            if !self.together {
                match advance {
                    Some(advance) => queue.sq_head.store(advance, Release),
                    None => sq_head = queue.sq_head.load(Acquire),
                }
            }
            let room = 1u32.wrapping_sub(tail.wrapping_sub(queue.cq_head.load(self.load_cq_head)));
            if self.looks_at_room && room == 0 {
                return None;
            }
            let next = u64::from(sq_head) << 32 | u64::from(tail + 1);
            match queue.posted.compare_exchange(old, next, AcqRel, Acquire) {
                Ok(_) => return Some((tail, sq_head)),
                Err(seen) => old = seen,
            }
        }
    }
}

#[test]
fn completion_slots_are_reserved_once_and_only_when_released() {
    SLOTS.check();
}

#[rstest]
#[case::relaxed_load(Slots { load_cq_head: Relaxed, ..SLOTS })]
#[case::relaxed_store(Slots { store_cq_head: Relaxed, ..SLOTS })]
#[case::blindly(Slots { looks_at_room: false, ..SLOTS })]
#[should_panic(expected = "Causality violation")]
fn slots_that_the_host_still_holds_are_rejected(#[case] slots: Slots) {
    slots.check();
}

#[test]
#[should_panic(expected = "sq_head goes back")]
fn an_sq_head_apart_from_the_tail_is_rejected() {
    Slots { together: false, ..SLOTS }.check();
}

// ---------------------------------------------------------------- worker, completion, and the place back

/// Two descriptors of one rollout go, one after the other, through one place: from a fetch warp to a worker, from the worker
/// to the completion warp, and the place back to the fetch warp.
#[derive(Clone, Copy, Debug)]
struct Tickets {
    store_work: Ordering,
    load_work: Ordering,
    store_done: Ordering,
    load_done: Ordering,
    store_given: Ordering,
    load_given: Ordering,
    /// Of the way of the running table, relaxed loads of which a fence follows.
    store_way: Ordering,
    fence: bool,
}

const TICKETS: Tickets = Tickets {
    store_work: Release,
    load_work: Acquire,
    store_done: Release,
    load_done: Acquire,
    store_given: Release,
    load_given: Acquire,
    store_way: Release,
    fence: true,
};

/// What the three share.
struct Path {
    work: AtomicU32,
    done_tail: AtomicU32,
    done: AtomicU32,
    /// 1: the rollout is in the running table.
    way: AtomicU32,
    places_given: AtomicU32,
    /// What the place says to do, and what came of it.
    place: Cell<u32>,
    result: Cell<u32>,
    /// The rollout's tokens, which its next descriptor may overwrite (R5).
    tokens: Cell<u32>,
}

impl Tickets {
    fn check(self) {
        check(move || {
            let path = Arc::new(Path {
                work: AtomicU32::new(0),
                done_tail: AtomicU32::new(0),
                done: AtomicU32::new(0),
                way: AtomicU32::new(0),
                places_given: AtomicU32::new(0),
                place: Cell::new(0),
                result: Cell::new(0),
                tokens: Cell::new(0),
            });
            let worker = {
                let path = path.clone();
                thread::spawn(move || self.work(&path))
            };
            let completion = {
                let path = path.clone();
                thread::spawn(move || self.complete(&path))
            };
            // The first is long, the second short: the fetch warp runs it.
            path.place.set(10);
            path.way.store(1, Relaxed);
            path.work.store(1, self.store_work);
            until(|| {
                let gone = path.way.load(Relaxed) == 0;
                if self.fence {
                    fence(AcqRel);
                }
                gone
            })?;
            assert_eq!(path.tokens.get(), 10, "R5: the rollout still runs");
            path.tokens.set(11);
            // And the place goes to another.
            until(|| path.places_given.load(self.load_given) == 1)?;
            path.place.set(12);
            path.result.set(0);
            worker.join().unwrap()?;
            completion.join().unwrap()
        });
    }

    fn work(self, path: &Path) -> Option<()> {
        until(|| path.work.load(self.load_work) == 1)?;
        let work = path.place.get();
        path.tokens.set(work);
        path.result.set(work + 100);
        let ticket = path.done_tail.fetch_add(1, Relaxed);
        path.done.store(ticket + 1, self.store_done);
        Some(())
    }

    fn complete(self, path: &Path) -> Option<()> {
        until(|| path.done.load(self.load_done) == 1)?;
        assert_eq!(path.result.get(), 110);
        path.way.store(0, self.store_way);
        // What the rollout was is read until the place is given back.
        assert_eq!(path.place.get(), 10);
        path.places_given.store(1, self.store_given);
        Some(())
    }
}

#[test]
fn rollouts_and_places_are_handed_on() {
    TICKETS.check();
}

#[rstest]
#[case::work_store(Tickets { store_work: Relaxed, ..TICKETS })]
#[case::work_load(Tickets { load_work: Relaxed, ..TICKETS })]
#[case::done_store(Tickets { store_done: Relaxed, ..TICKETS })]
#[case::done_load(Tickets { load_done: Relaxed, ..TICKETS })]
#[case::given_store(Tickets { store_given: Relaxed, ..TICKETS })]
#[case::given_load(Tickets { load_given: Relaxed, ..TICKETS })]
#[case::way_store(Tickets { store_way: Relaxed, ..TICKETS })]
#[case::no_fence(Tickets { fence: false, ..TICKETS })]
#[should_panic(expected = "Causality violation")]
fn handovers_that_order_nothing_are_rejected(#[case] tickets: Tickets) {
    tickets.check();
}

// ---------------------------------------------------------------- what the host is told

/// A fetch warp consumes and completes a descriptor, the control warp tells how far it is, and the host takes a device
/// that has consumed everything and has nothing outstanding to be idle: then the completion is visible.
#[derive(Clone, Copy, Debug)]
struct News {
    /// The control warp tells `outstanding` before `sq_head`.
    outstanding_first: bool,
    /// A fence stands before what it tells.
    fence: bool,
    /// The host reads `sq_head` before `outstanding`.
    sq_head_first: bool,
}

const NEWS: News = News { outstanding_first: true, fence: true, sq_head_first: true };

impl News {
    fn check(self) {
        check(move || {
            let [outstanding, admitted, completion, told_outstanding, told_sq_head] =
                std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
            let fetcher = {
                let (outstanding, admitted, completion) =
                    (outstanding.clone(), admitted.clone(), completion.clone());
                thread::spawn(move || {
                    outstanding.fetch_add(1, AcqRel);
                    admitted.store(1, Release);
                    completion.store(1, Relaxed);
                    outstanding.fetch_sub(1, AcqRel);
                })
            };
            let control = {
                let (told_outstanding, told_sq_head) = (told_outstanding.clone(), told_sq_head.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let sq_head = admitted.load(Acquire);
                        let count = outstanding.load(Acquire);
                        if self.fence {
                            fence(AcqRel);
                        }
                        if self.outstanding_first {
                            told_outstanding.store(count, Relaxed);
                        }
                        told_sq_head.store(sq_head, Release);
                        if !self.outstanding_first {
                            told_outstanding.store(count, Relaxed);
                        }
                    }
                })
            };
            let (sq_head, count) = if self.sq_head_first {
                let sq_head = told_sq_head.load(Acquire);
                (sq_head, told_outstanding.load(Acquire))
            } else {
                let count = told_outstanding.load(Acquire);
                (told_sq_head.load(Acquire), count)
            };
            let is_idle = sq_head == 1 && count == 0;
            assert!(!is_idle || completion.load(Relaxed) == 1, "idle without the completion");
            fetcher.join().unwrap();
            control.join().unwrap();
            is_idle.then_some(())
        });
    }
}

#[test]
fn an_idle_device_has_completed_everything() {
    NEWS.check();
}

#[rstest]
#[case::told_in_the_order_of_reading(News { outstanding_first: false, ..NEWS })]
#[case::read_in_the_order_of_telling(News { sq_head_first: false, ..NEWS })]
#[case::no_fence(News { fence: false, ..NEWS })]
#[should_panic(expected = "idle without the completion")]
fn news_in_the_wrong_order_is_rejected(#[case] news: News) {
    news.check();
}

/// Two completions ask for an interrupt at the same time, and the control warp tells how many have and which is the newest.
#[derive(Clone, Copy, Debug)]
struct Asks {
    /// The first to ask replaces whatever it finds, as nobody has been counted yet.
    first_replaces: bool,
    /// The control warp reads the count before the newest.
    count_first: bool,
}

const ASKS: Asks = Asks { first_replaces: false, count_first: true };

impl Asks {
    fn check(self) {
        check(move || {
            // One below the queue's start, at 3.
            let asked = Arc::new(AtomicU32::new(2));
            let asks = Arc::new(AtomicU32::new(0));
            let parties = [3, 4].map(|index| {
                let (asked, asks) = (asked.clone(), asks.clone());
                thread::spawn(move || self.note(&asked, &asks, index))
            });
            until(|| {
                let (count, newest) = if self.count_first {
                    let count = asks.load(Acquire);
                    (count, asked.load(Relaxed))
                } else {
                    let newest = asked.load(Relaxed);
                    (asks.load(Acquire), newest)
                };
                assert!(count < 2 || newest == 4, "the newest is not told");
                count == 2
            })?;
            parties.into_iter().try_for_each(|party| party.join().ok())
        });
    }

    fn note(self, asked: &AtomicU32, asks: &AtomicU32, index: u32) {
        let mut newest = asked.load(Relaxed);
        while self.first_replaces && asks.load(Relaxed) == 0 || index > newest {
            match asked.compare_exchange(newest, index, AcqRel, Acquire) {
                Ok(_) => break,
                Err(seen) => newest = seen,
            }
        }
        asks.fetch_add(1, AcqRel);
    }
}

#[test]
fn the_newest_that_asked_is_told() {
    ASKS.check();
}

#[rstest]
#[case::first_replaces(Asks { first_replaces: true, ..ASKS })]
#[case::newest_before_count(Asks { count_first: false, ..ASKS })]
#[should_panic(expected = "the newest is not told")]
fn an_older_that_asked_is_rejected(#[case] asks: Asks) {
    asks.check();
}
