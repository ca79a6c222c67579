//! What the rings share between threads, of loom. Atomics are numbered as a model makes them; a weakening relaxes one
//! kind of access to some of them, by the model's main thread or by the others.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ops::Range;

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::Arc;
use loom::sync::atomic;
pub(crate) use loom::sync::atomic::Ordering;
use loom::thread::{self, ThreadId};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Access {
    Load,
    Store,
}

/// Accesses that are relaxed, whatever order the ring asks for.
#[derive(Clone, Debug)]
pub(crate) struct Weakening {
    /// Numbers of the atomics.
    pub(crate) of: Range<usize>,
    pub(crate) access: Access,
    /// By the main thread, else by all but it.
    pub(crate) by_main: bool,
}

// Loom runs all threads of a model on one thread of the system.
thread_local! {
    static WEAKENING: RefCell<Option<(Weakening, ThreadId)>> = const { RefCell::new(None) };
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// Begins an interleaving, in its main thread.
pub(crate) fn begin(weakening: Option<Weakening>) {
    MADE.set(0);
    WEAKENING.set(weakening.map(|weakening| (weakening, thread::current().id())));
}

fn number() -> usize {
    MADE.replace(MADE.get() + 1)
}

fn order(number: usize, access: Access, order: Ordering) -> Ordering {
    WEAKENING.with_borrow(|weakening| match weakening {
        Some((weakening, main))
            if weakening.of.contains(&number)
                && weakening.access == access
                && weakening.by_main == (thread::current().id() == *main) =>
        {
            Ordering::Relaxed
        }
        _ => order,
    })
}

pub(crate) struct AtomicUsize(atomic::AtomicUsize, usize);

impl AtomicUsize {
    pub(crate) fn new(value: usize) -> Self {
        Self(atomic::AtomicUsize::new(value), number())
    }

    pub(crate) fn load(&self, asked: Ordering) -> usize {
        self.0.load(order(self.1, Access::Load, asked))
    }

    pub(crate) fn store(&self, value: usize, asked: Ordering) {
        self.0.store(value, order(self.1, Access::Store, asked));
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        current: usize,
        new: usize,
        success: Ordering,
        failure: Ordering,
    ) -> Result<usize, usize> {
        self.0.compare_exchange_weak(current, new, success, failure)
    }
}

pub(crate) struct AtomicBool(atomic::AtomicBool, usize);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(atomic::AtomicBool::new(value), number())
    }

    pub(crate) fn load(&self, asked: Ordering) -> bool {
        self.0.load(order(self.1, Access::Load, asked))
    }

    pub(crate) fn store(&self, value: bool, asked: Ordering) {
        self.0.store(value, order(self.1, Access::Store, asked));
    }
}

/// # Safety
/// As the crate's.
pub(crate) unsafe fn copy_in<T: Copy>(slots: &[UnsafeCell<MaybeUninit<T>>], values: &[T]) {
    assert_eq!(slots.len(), values.len());
    for (slot, value) in slots.iter().zip(values) {
        // SAFETY: as the caller says, and loom watches.
        slot.with_mut(|entry| unsafe { (*entry).write(*value) });
    }
}

/// # Safety
/// As the crate's.
pub(crate) unsafe fn copy_out<T: Copy>(slots: &[UnsafeCell<MaybeUninit<T>>], out: &mut [T]) {
    assert_eq!(slots.len(), out.len());
    for (slot, out) in slots.iter().zip(out) {
        // SAFETY: as the caller says, and loom watches.
        *out = slot.with(|entry| unsafe { (*entry).assume_init_read() });
    }
}

pub(crate) fn prefetch_for_write<T>(_: &T) {}

/// A look follows each wait, so nothing waits for anything else here.
pub(crate) fn spin_loop() {}
