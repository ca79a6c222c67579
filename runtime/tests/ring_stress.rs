//! Threads that hand each other as much as they can through small rings whose indices wrap meanwhile. `cargo xtask tsan`
//! runs this under ThreadSanitizer, and sees to it that it reports rings with a weakened order.

use std::thread;

use doorbell_runtime::ring::{Gauge, mpsc, spsc};

#[path = "ring_stress/weakened.rs"]
#[allow(dead_code, reason = "the stress uses what it needs")]
mod weakened;

/// Under ThreadSanitizer a second, and a thousand times round the ring in any case.
const ENTRIES: u64 = 200_000;
const CAPACITY: usize = 16;
/// The wraps of 32 and of 64 bits lie in the middle.
const STARTS: [usize; 2] = [u32::MAX as usize - ENTRIES as usize / 2, usize::MAX - ENTRIES as usize / 2];

/// Runs `step` until it has something.
fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = step() {
            return value;
        }
        thread::yield_now();
    }
}

/// Looks at a gauge all the while.
fn watch(gauge: Gauge, work: impl FnOnce()) {
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            until(|| {
                assert!(gauge.len() <= gauge.capacity());
                done.load(std::sync::atomic::Ordering::Relaxed).then_some(())
            })
        });
        work();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(gauge.is_empty());
}

#[test]
fn spsc_one_by_one() {
    for start in STARTS {
        let (mut producer, mut consumer) = spsc::with_start(CAPACITY, start).unwrap();
        watch(consumer.gauge(), || {
            thread::scope(|scope| {
                scope.spawn(move || {
                    for k in 0..ENTRIES {
                        let mut entry = Some(Box::new(k));
                        until(|| producer.push(entry.take()?).map_err(|back| entry = Some(back)).ok());
                    }
                });
                for k in 0..ENTRIES {
                    assert_eq!(*until(|| consumer.pop()), k);
                }
                until(|| consumer.is_abandoned().then_some(()));
                assert_eq!(consumer.pop(), None);
            });
        });
    }
}

#[test]
fn spsc_in_slices() {
    for start in STARTS {
        let (mut producer, mut consumer) = spsc::with_start(CAPACITY, start).unwrap();
        watch(consumer.gauge(), || {
            thread::scope(|scope| {
                scope.spawn(move || {
                    let mut next = 0;
                    while next < ENTRIES {
                        // Of every length up to more than fits.
                        let last = (next + 1 + next % (CAPACITY as u64 + 3)).min(ENTRIES);
                        let slice: Vec<[u64; 3]> = (next..last).map(|k| [k, !k, k << 7]).collect();
                        next += until(|| Some(producer.push_slice(&slice)).filter(|&taken| taken > 0)) as u64;
                    }
                });
                let mut next = 0;
                let mut out = [[0; 3]; CAPACITY - 3];
                while next < ENTRIES {
                    let taken = until(|| Some(consumer.pop_slice(&mut out)).filter(|&taken| taken > 0));
                    for &entry in &out[..taken] {
                        assert_eq!(entry, [next, !next, next << 7]);
                        next += 1;
                    }
                }
                assert_eq!(consumer.pop_slice(&mut out), 0);
            });
        });
    }
}

#[test]
fn mpsc_from_three() {
    const PRODUCERS: u64 = 3;
    for start in STARTS {
        let (sender, mut receiver) = mpsc::with_start(CAPACITY, start).unwrap();
        watch(receiver.gauge(), || {
            thread::scope(|scope| {
                for producer in 0..PRODUCERS {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        for k in 0..ENTRIES / PRODUCERS {
                            let mut entry = Some(Box::new((producer, k)));
                            until(|| sender.push(entry.take()?).map_err(|back| entry = Some(back)).ok());
                        }
                    });
                }
                let mut next = [0; PRODUCERS as usize];
                for _ in 0..ENTRIES / PRODUCERS * PRODUCERS {
                    let (producer, k) = *until(|| receiver.pop());
                    assert_eq!(k, next[producer as usize], "lost, doubled or out of order");
                    next[producer as usize] += 1;
                }
                assert_eq!(receiver.pop(), None);
            });
        });
    }
}

#[test]
#[ignore = "races: `cargo xtask tsan` requires ThreadSanitizer to say so"]
fn weakened_spsc() {
    let (mut producer, mut consumer) = weakened::spsc::channel(CAPACITY).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || (0..ENTRIES).for_each(|k| until(|| producer.push(k).ok())));
        (0..ENTRIES).for_each(|k| assert_eq!(until(|| consumer.pop()), k));
    });
}

#[test]
#[ignore = "races: `cargo xtask tsan` requires ThreadSanitizer to say so"]
fn weakened_mpsc() {
    let (sender, mut receiver) = weakened::mpsc::channel(CAPACITY).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || (0..ENTRIES).for_each(|k| until(|| sender.push(k).ok())));
        (0..ENTRIES).for_each(|k| assert_eq!(until(|| receiver.pop()), k));
    });
}
