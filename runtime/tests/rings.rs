//! The rings, one thread at a time: what they take, refuse, hand back and drop, wherever their indices start.

use doorbell_runtime::ring::{RingError, mpsc, spsc};
use rstest::rstest;
use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

/// Where running indices start: at zero, and where 32 and 64 bits wrap.
const STARTS: [usize; 4] = [0, u32::MAX as usize - 2, usize::MAX - 2, usize::MAX];

#[rstest]
#[case(0)]
#[case(1)]
#[case(3)]
#[case(usize::MAX)]
fn capacities_that_are_refused(#[case] capacity: usize) {
    let expected = RingError::Capacity { capacity };
    assert_eq!(spsc::channel::<u64>(capacity).err(), Some(expected));
    assert_eq!(mpsc::channel::<u64>(capacity).err(), Some(expected));
    assert!(expected.to_string().contains(&capacity.to_string()));
}

#[rstest]
#[case(1 << 63)]
#[case(1 << 60)]
#[case(1 << 47)]
fn what_no_memory_can_hold_is_an_error(#[case] capacity: usize) {
    let no_memory = |error| matches!(error, Some(RingError::Memory { capacity: c, .. }) if c == capacity);
    assert!(no_memory(spsc::channel::<[u64; 8]>(capacity).err()));
    assert!(no_memory(mpsc::channel::<[u64; 8]>(capacity).err()));
}

/// Flaws: an index past 2^32 empties the ring for ever; a full ring is overwritten.
#[test]
fn a_full_ring_refuses_and_hands_back_across_the_wrap() {
    for start in STARTS {
        let (mut producer, mut consumer) = spsc::with_start(4, start).unwrap();
        let (sender, mut receiver) = mpsc::with_start(4, start).unwrap();
        for pass in 0..5u64 {
            for k in 0..4 {
                assert_eq!((producer.push(pass * 4 + k), sender.push(pass * 4 + k)), (Ok(()), Ok(())));
            }
            for _ in 0..3 {
                assert_eq!((producer.push(99), sender.push(99)), (Err(99), Err(99)), "start {start:#x}");
            }
            assert_eq!(producer.push_slice(&[99]), 0);
            assert_eq!((consumer.gauge().len(), receiver.gauge().len()), (4, 4));
            for k in 0..4 {
                assert_eq!((consumer.pop(), receiver.pop()), (Some(pass * 4 + k), Some(pass * 4 + k)));
            }
            for _ in 0..3 {
                assert_eq!((consumer.pop(), receiver.pop()), (None, None), "start {start:#x}");
            }
            assert!(consumer.gauge().is_empty() && receiver.gauge().is_empty());
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u8),
    Pop(u8),
    PushSlice(u8),
    PopSlice(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let count = 0..12u8;
    prop_oneof![
        count.clone().prop_map(Step::Push),
        count.clone().prop_map(Step::Pop),
        count.clone().prop_map(Step::PushSlice),
        count.prop_map(Step::PopSlice),
    ]
}

proptest! {
    /// Both rings do what a bounded `VecDeque` does.
    #[test]
    fn rings_are_queues(
        steps in proptest::collection::vec(step(), 0..200),
        log_capacity in 1..5u32,
        start in proptest::sample::select(&STARTS),
    ) {
        let capacity = 1 << log_capacity;
        let (mut producer, mut consumer) = spsc::with_start(capacity, start).unwrap();
        let (sender, mut receiver) = mpsc::with_start(capacity, start).unwrap();
        let mut queue = VecDeque::new();
        let mut next = 0u32;
        for step in steps {
            match step {
                Step::Push(count) => for _ in 0..count {
                    let expected = if queue.len() < capacity { queue.push_back(next); Ok(()) } else { Err(next) };
                    prop_assert_eq!(producer.push(next), expected);
                    prop_assert_eq!(sender.push(next), expected);
                    next += 1;
                },
                Step::Pop(count) => for _ in 0..count {
                    let expected = queue.pop_front();
                    prop_assert_eq!(consumer.pop(), expected);
                    prop_assert_eq!(receiver.pop(), expected);
                },
                Step::PushSlice(count) => {
                    let values: Vec<u32> = (next..next + u32::from(count)).collect();
                    let taken = values.len().min(capacity - queue.len());
                    prop_assert_eq!(producer.push_slice(&values), taken);
                    for &value in &values[..taken] {
                        queue.push_back(value);
                        prop_assert_eq!(sender.push(value), Ok(()));
                    }
                    next += u32::from(count);
                }
                Step::PopSlice(count) => {
                    let mut out = vec![u32::MAX; usize::from(count)];
                    let taken = out.len().min(queue.len());
                    prop_assert_eq!(consumer.pop_slice(&mut out), taken);
                    let expected: Vec<u32> = queue.drain(..taken).collect();
                    prop_assert_eq!(&out[..taken], &expected);
                    prop_assert!(out[taken..].iter().all(|&value| value == u32::MAX), "wrote past what it took");
                    for value in expected {
                        prop_assert_eq!(receiver.pop(), Some(value));
                    }
                }
            }
            prop_assert_eq!((producer.gauge().len(), sender.gauge().len()), (queue.len(), queue.len()));
        }
    }
}

/// Every entry is dropped once: those that were popped by whoever has them, those that were not by the ring.
#[test]
fn what_is_left_is_dropped_once() {
    for start in STARTS {
        let counted = Arc::new(());
        let (mut producer, mut consumer) = spsc::with_start(4, start).unwrap();
        let (sender, mut receiver) = mpsc::with_start(4, start).unwrap();
        for _ in 0..4 {
            producer.push(counted.clone()).unwrap();
            sender.push(counted.clone()).unwrap();
        }
        let held = (producer.push(counted.clone()), sender.push(counted.clone()));
        assert!(held.0.is_err() && held.1.is_err());
        assert_eq!(Arc::strong_count(&counted), 11);
        drop(held);
        drop((consumer.pop(), receiver.pop()));
        assert_eq!(Arc::strong_count(&counted), 7);
        drop((producer, sender));
        assert_eq!(Arc::strong_count(&counted), 7);
        assert!(consumer.is_abandoned());
        drop((consumer.pop(), receiver.pop()));
        drop((consumer, receiver));
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
