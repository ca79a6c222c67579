//! The atomics of `std`, run by loom. Each has a name, by which the report calls it, and notes every access.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64 as Plain, Ordering::Relaxed};

pub use loom::sync::atomic::Ordering;

use crate::{ORDERS, end, note, push, push_of};

/// Loads return what was stored last, whatever their order, and so order everything.
pub(crate) static READS_NEWEST: AtomicBool = AtomicBool::new(false);

/// Small numbers as people write them, others in hexadecimal.
fn shown(value: u64) -> String {
    if value < 1 << 16 { value.to_string() } else { format!("{value:#x}") }
}

/// Ends the check where `std` has no `what` with this order: `rustc` rejects it by a lint, and the library panics.
#[track_caller]
fn require(is_there: bool, what: &str, order: Ordering, others: &str) {
    if !is_there {
        let place = Location::caller();
        end(format!("{place}: there is no {what} with the order {order:?}. It is {others}."), Some(ORDERS));
    }
}

macro_rules! atomic {
    ($name:ident, $integer:ty) => {
        #[doc = concat!("`std::sync::atomic::", stringify!($name), "` with a name.")]
        #[derive(Debug)]
        pub struct $name {
            name: String,
            inner: loom::sync::atomic::$name,
            /// What was stored last; loads may see an older value.
            newest: Plain,
        }

        impl $name {
            /// One that holds `value`.
            pub fn new(name: impl Into<String>, value: $integer) -> Self {
                Self {
                    name: name.into(),
                    inner: loom::sync::atomic::$name::new(value),
                    newest: Plain::new(value.into()),
                }
            }

            /// As in `std`.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $integer {
                let is_there = !matches!(order, Ordering::Release | Ordering::AcqRel);
                require(is_there, "load", order, "Relaxed, Acquire or SeqCst");
                let value = if READS_NEWEST.load(Relaxed) {
                    // A change of a value reads the newest one.
                    self.inner.fetch_add(0, Ordering::AcqRel)
                } else {
                    self.inner.load(order)
                };
                let newest = self.newest.load(Relaxed);
                let stale = if u64::from(value) == newest {
                    String::new()
                } else {
                    format!("   (an old value: {} is stored already)", shown(newest))
                };
                note(&format!("loads {} = {}, {order:?}{stale}", self.name, shown(value.into())));
                value
            }

            /// As in `std`.
            #[track_caller]
            pub fn store(&self, value: $integer, order: Ordering) {
                let is_there = !matches!(order, Ordering::Acquire | Ordering::AcqRel);
                require(is_there, "store", order, "Relaxed, Release or SeqCst");
                if READS_NEWEST.load(Relaxed) {
                    // Only changes of a value have one order among themselves, for all.
                    self.inner.swap(value, Ordering::AcqRel);
                } else {
                    self.inner.store(value, order);
                }
                // Afterwards, as others may run before it.
                note(&format!("stores {} = {}, {order:?}", self.name, shown(value.into())));
                self.newest.store(value.into(), Relaxed);
            }

            /// What the thread would load now. The report calls it a look of the check.
            #[track_caller]
            pub fn look(&self) -> $integer {
                let value = self.inner.load(Ordering::Relaxed);
                push_of("check", format!("looks at {}: {}", self.name, shown(value.into())), None);
                value
            }

            /// As in `std`.
            #[track_caller]
            pub fn swap(&self, value: $integer, order: Ordering) -> $integer {
                let old = self.inner.swap(value, order);
                note(&format!(
                    "swaps {} = {} for {}, {order:?}",
                    self.name,
                    shown(old.into()),
                    shown(value.into())
                ));
                self.newest.store(value.into(), Relaxed);
                old
            }

            /// As in `std`.
            #[track_caller]
            pub fn fetch_add(&self, value: $integer, order: Ordering) -> $integer {
                let old = self.inner.fetch_add(value, order);
                note(&format!(
                    "adds {} to {} = {}, {order:?}",
                    shown(value.into()),
                    self.name,
                    shown(old.into())
                ));
                self.newest.store(old.wrapping_add(value).into(), Relaxed);
                old
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

/// As `std::sync::atomic::fence`.
#[track_caller]
pub fn fence(order: Ordering) {
    require(order != Ordering::Relaxed, "fence", order, "Acquire, Release, AcqRel or SeqCst");
    loom::sync::atomic::fence(order);
    note(&format!("fence, {order:?}"));
}

/// Bytes without an order of their own: two threads must not use them at the same time, unless both only read.
#[derive(Debug)]
pub struct Cell<T> {
    name: String,
    inner: loom::cell::Cell<T>,
}

impl<T: Copy + Debug> Cell<T> {
    /// One that holds `value`.
    pub fn new(name: impl Into<String>, value: T) -> Self {
        Self { name: name.into(), inner: loom::cell::Cell::new(value) }
    }

    /// Reads it.
    #[track_caller]
    pub fn get(&self) -> T {
        push(format!("reads {}", self.name), Some(self.name.clone()));
        self.inner.get()
    }

    /// Writes it.
    #[track_caller]
    pub fn set(&self, value: T) {
        push(format!("writes {} = {value:?}", self.name), Some(self.name.clone()));
        self.inner.set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
    use super::*;
    use crate::explore;

    type Operation = fn(&AtomicU32, Ordering);

    const LOAD: Operation = |word, order| _ = word.load(order);
    const STORE: Operation = |word, order| word.store(1, order);
    const SWAP: Operation = |word, order| _ = word.swap(1, order);
    const FENCE: Operation = |_, order| fence(order);

    /// What is wrong with an operation on its own.
    fn fault_of(operation: Operation, order: Ordering) -> Option<String> {
        let run = move || {
            operation(&AtomicU32::new("word", 0), order);
            true
        };
        explore(run).err().map(|failure| failure.fault.what)
    }

    #[test]
    fn orders_are_those_of_std() {
        let all = [Relaxed, Acquire, Release, AcqRel, SeqCst];
        let refused: [(&str, Operation, &[Ordering]); 4] = [
            ("load", LOAD, &[Release, AcqRel]),
            ("store", STORE, &[Acquire, AcqRel]),
            ("swap", SWAP, &[]),
            ("fence", FENCE, &[Relaxed]),
        ];
        for (name, operation, refused) in refused {
            for order in all {
                let fault = fault_of(operation, order);
                assert_eq!(fault.is_some(), refused.contains(&order), "{name}, {order:?}: {fault:?}");
                if let Some(what) = fault {
                    assert!(what.contains("sync.rs:"), "the place: {what}");
                    assert!(what.contains(&format!("there is no {name} with the order {order:?}")), "{what}");
                }
            }
        }
    }
}
