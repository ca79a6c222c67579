//! Handovers between the kernel and the host as small models, of which loom runs the interleavings that the memory orders
//! allow. Each model runs again with an order weakened, or a step left out or moved, and loom has to reject that.
//!
//! Between the kernel's own warps its text speaks for itself (`tests/kernel.rs`). Here is what that cannot show: the
//! host's half of an order, which a CPU that keeps its stores and loads in order never breaks. The models repeat the steps
//! of `kernels/front_end/`, `host/src/queue.rs` and `src/mailbox.rs` on as few slots and threads as show the handover.

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
                // It has been read, and is the device's again.
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
