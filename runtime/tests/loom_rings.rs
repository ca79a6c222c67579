//! The rings under loom, which runs every order of their steps that the memory orders allow, up to a bound of
//! preemptions, and watches each slot for races. The sources are those of the crate: only `sync`, the module of what
//! threads share, is another. It can weaken a memory order, and loom has to reject each ring so weakened.

#[path = "../src/ring/mpsc.rs"]
#[allow(dead_code, reason = "the models use what they need")]
mod mpsc;
#[path = "../src/ring/slots.rs"]
#[allow(dead_code, reason = "the models use what they need")]
mod slots;
#[path = "../src/ring/spsc.rs"]
#[allow(dead_code, reason = "the models use what they need")]
mod spsc;
#[path = "loom_rings/sync.rs"]
mod sync;

use std::collections::VecDeque;

use loom::thread;
use rstest::rstest;
use sync::{Access, Weakening};

/// Looks at what somebody else is to change before a thread gives up: loom cannot run loops without end. What happens
/// after more looks happens after fewer as well.
const LOOKS: u32 = 3;
/// Switches away from a thread that could go on.
const PREEMPTIONS: usize = 3;
/// Where 64 bits wrap within the first entries.
const START: usize = usize::MAX - 1;

/// Runs every interleaving of a model, which says whether it came to its end or gave up.
fn check(weakening: Option<Weakening>, model: impl Fn() -> Option<()> + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = ended.clone();
    builder.check(move || {
        sync::begin(weakening.clone());
        if model().is_some() {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(ended.load(std::sync::atomic::Ordering::Relaxed), "no interleaving came to its end");
}

/// Waits for somebody else; `None` if it gives up.
fn until<T>(mut step: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LOOKS {
        if let Some(value) = step() {
            return Some(value);
        }
        thread::yield_now();
    }
    None
}

/// A producer pushes one by one and the consumer, the main thread, pops one by one: more entries than slots, so that
/// slots are used again.
fn one_by_one(capacity: usize, entries: u32, weakening: Option<Weakening>) {
    check(weakening, move || {
        let (mut producer, mut consumer) = spsc::with_start(capacity, START).unwrap();
        let pusher =
            thread::spawn(move || (0..entries).try_for_each(|entry| until(|| producer.push(entry).ok())));
        let popped = (0..entries).try_for_each(|entry| {
            assert_eq!(until(|| consumer.pop())?, entry);
            Some(())
        });
        let pushed = pusher.join().unwrap();
        popped?;
        assert_eq!(consumer.pop(), None, "more came out than went in");
        pushed
    });
}

#[test]
fn spsc_hands_over_one_by_one() {
    one_by_one(2, 3, None);
}

#[test]
fn spsc_hands_over_in_strides() {
    // From eight slots up a half that streams waits for more.
    one_by_one(8, 3, None);
}

/// The same in slices, of which one is cut by the end of the slots.
fn in_slices(weakening: Option<Weakening>) {
    const ENTRIES: [u32; 3] = [0, 1, 2];
    check(weakening, || {
        let (mut producer, mut consumer) = spsc::with_start(2, START).unwrap();
        let pusher = thread::spawn(move || {
            let mut rest = &ENTRIES[..];
            until(|| {
                rest = &rest[producer.push_slice(rest)..];
                rest.is_empty().then_some(())
            })
        });
        let mut out = [u32::MAX; 3];
        let mut count = 0;
        let popped = until(|| {
            count += consumer.pop_slice(&mut out[count..]);
            (count == ENTRIES.len()).then_some(())
        });
        assert_eq!(out[..count], ENTRIES[..count]);
        let pushed = pusher.join().unwrap();
        popped?;
        assert_eq!((out, consumer.pop()), (ENTRIES, None));
        pushed
    });
}

#[test]
fn spsc_hands_over_slices() {
    in_slices(None);
}

/// Numbers of the atomics of an SPSC ring, in the order in which it makes them.
const HEAD: usize = 0;
const TAIL: usize = 1;
const ABANDONED: usize = 2;

#[rstest]
#[case::producers_load_of_the_head(Weakening { of: HEAD..HEAD + 1, access: Access::Load, by_main: false })]
#[case::consumers_store_of_the_head(Weakening { of: HEAD..HEAD + 1, access: Access::Store, by_main: true })]
#[case::consumers_load_of_the_tail(Weakening { of: TAIL..TAIL + 1, access: Access::Load, by_main: true })]
#[case::producers_store_of_the_tail(Weakening { of: TAIL..TAIL + 1, access: Access::Store, by_main: false })]
fn a_weakened_spsc_is_rejected(#[case] weakening: Weakening) {
    for run in [|weakening| one_by_one(2, 3, weakening), in_slices as fn(Option<Weakening>)] {
        let weakening = weakening.clone();
        let error = std::panic::catch_unwind(move || run(Some(weakening))).unwrap_err();
        let message = error.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
        assert!(message.contains("Causality violation"), "{message}");
    }
}

/// The producer pushes and goes; a consumer that sees it gone sees all that it pushed.
fn abandoned(weakening: Option<Weakening>) {
    check(weakening, || {
        let (mut producer, mut consumer) = spsc::with_start(2, START).unwrap();
        let pusher = thread::spawn(move || producer.push(7).unwrap());
        let gone = consumer.is_abandoned();
        let entry = consumer.pop();
        assert!(!gone || entry == Some(7), "gone, and its entry lost");
        pusher.join().unwrap();
        gone.then_some(())
    });
}

#[test]
fn what_an_abandoned_ring_holds_is_seen() {
    abandoned(None);
}

#[rstest]
#[case::load(Weakening { of: ABANDONED..ABANDONED + 1, access: Access::Load, by_main: true })]
#[case::store(Weakening { of: ABANDONED..ABANDONED + 1, access: Access::Store, by_main: false })]
#[should_panic(expected = "gone, and its entry lost")]
fn a_weakened_farewell_is_rejected(#[case] weakening: Weakening) {
    abandoned(Some(weakening));
}

/// Two producers push and the receiver, the main thread, pops: entries `10 p + k` of producer `p`, in the order of `k`.
fn many_to_one(per_producer: [u32; 2], weakening: Option<Weakening>) {
    check(weakening, move || {
        let (sender, mut receiver) = mpsc::with_start(2, START).unwrap();
        let pushers = [0, 1].map(|producer| {
            let sender = sender.clone();
            thread::spawn(move || {
                (0..per_producer[producer as usize])
                    .try_for_each(|k| until(|| sender.push(10 * producer + k).ok()))
            })
        });
        let mut expected =
            [0, 1].map(|p| (0..per_producer[p]).map(|k| 10 * p as u32 + k).collect::<VecDeque<_>>());
        let mut popped = Some(());
        while popped.is_some() && expected.iter().any(|entries| !entries.is_empty()) {
            popped = until(|| receiver.pop()).map(|entry| {
                assert_eq!(
                    expected[(entry / 10) as usize].pop_front(),
                    Some(entry),
                    "lost, doubled or out of order"
                );
            });
        }
        let pushed = pushers.map(|pusher| pusher.join().unwrap());
        popped?;
        assert_eq!(receiver.pop(), None, "more came out than went in");
        pushed.into_iter().collect()
    });
}

#[test]
fn mpsc_hands_over() {
    many_to_one([2, 1], None);
}

#[rstest]
#[case::producers_load_of_a_stamp(Weakening { of: 0..2, access: Access::Load, by_main: false })]
#[case::producers_store_of_a_stamp(Weakening { of: 0..2, access: Access::Store, by_main: false })]
#[case::receivers_load_of_a_stamp(Weakening { of: 0..2, access: Access::Load, by_main: true })]
#[case::receivers_store_of_a_stamp(Weakening { of: 0..2, access: Access::Store, by_main: true })]
#[should_panic(expected = "Causality violation")]
fn a_weakened_mpsc_is_rejected(#[case] weakening: Weakening) {
    many_to_one([2, 1], Some(weakening));
}

/// A producer that is held up in mid-push holds up neither the other's push nor, in the end, any entry.
#[test]
fn mpsc_loses_nothing_behind_a_push_that_is_held_up() {
    check(None, || {
        let (sender, mut receiver) = mpsc::with_start(2, START).unwrap();
        let held_up = {
            let sender = sender.clone();
            thread::spawn(move || sender.push(1).unwrap())
        };
        // At the first try, whatever the other is doing.
        sender.push(2).unwrap();
        let early = receiver.pop();
        held_up.join().unwrap();
        let mut entries: Vec<_> = early.into_iter().chain(std::iter::from_fn(|| receiver.pop())).collect();
        entries.sort_unstable();
        assert_eq!(entries, [1, 2]);
        // The receiver did come before the entry was there.
        early.is_none().then_some(())
    });
}
