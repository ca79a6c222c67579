//! What the rings share between threads. The tests under loom put a module of their own in this one's place, and so run
//! the very same rings.

use std::mem::MaybeUninit;

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A cell that is accessed as loom's is.
#[repr(transparent)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

impl<T> UnsafeCell<MaybeUninit<T>> {
    /// The entry of the first of these slots.
    #[inline(always)]
    fn raw_get(slots: &[Self]) -> *mut T {
        std::cell::UnsafeCell::raw_get(slots.as_ptr().cast::<std::cell::UnsafeCell<T>>())
    }
}

/// Writes `values` into as many slots.
///
/// # Safety
/// The slots are the caller's to write, and as many as the values.
#[inline(always)]
pub(super) unsafe fn copy_in<T: Copy>(slots: &[UnsafeCell<MaybeUninit<T>>], values: &[T]) {
    debug_assert_eq!(slots.len(), values.len());
    // SAFETY: a cell lies in memory as its entry does, and its content may change behind a shared reference.
    unsafe { UnsafeCell::raw_get(slots).copy_from_nonoverlapping(values.as_ptr(), values.len()) }
}

/// Reads `out` from as many slots.
///
/// # Safety
/// The slots are the caller's to read, hold entries, and are as many as `out`.
#[inline(always)]
pub(super) unsafe fn copy_out<T: Copy>(slots: &[UnsafeCell<MaybeUninit<T>>], out: &mut [T]) {
    debug_assert_eq!(slots.len(), out.len());
    // SAFETY: as in `copy_in`.
    unsafe { out.as_mut_ptr().copy_from_nonoverlapping(UnsafeCell::raw_get(slots), out.len()) }
}

/// Fetches the line at `target`, to write to it; it reads and writes nothing that a program could see.
#[inline(always)]
pub(super) fn prefetch_for_write<T>(target: &T) {
    // The intrinsic of the standard library fetches for reading, unless the target is told to have the instruction; a
    // processor that has not takes it as no operation.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on caches.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) std::ptr::from_ref(target), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
