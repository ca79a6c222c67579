//! A global allocator that counts, per thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::ops::Sub;

use serde::Serialize;

/// Calls of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocationCounts {
    /// Calls that asked for memory; a reallocation is one of these and one free.
    pub allocations: u64,
    /// Calls that gave memory back.
    pub frees: u64,
    /// Bytes asked for; a reallocation asks for its whole new size.
    pub bytes: u64,
}

impl Sub for AllocationCounts {
    type Output = Self;

    /// What was counted between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            allocations: self.allocations - earlier.allocations,
            frees: self.frees - earlier.frees,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// Passes every call on to the system's allocator, and counts it.
///
/// Counting takes no lock, no system call and no memory of its own: the counts of a thread are constant-initialised
/// thread-local cells without a destructor, so even the first and the last allocation of a thread find them.
///
/// It sees what goes through Rust's allocator. Memory that C or C++ code takes by itself it does not see; what that
/// asks of the kernel is a system call.
///
/// ```
/// use doorbell_guard::{CountingAllocator, thread_counts};
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let before = thread_counts();
/// let boxed = std::hint::black_box(Box::new([0_u64; 4]));
/// let seen = thread_counts() - before;
/// assert_eq!((seen.allocations, seen.frees, seen.bytes), (1, 0, 32));
/// # drop(boxed);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator(());

impl CountingAllocator {
    /// One that has counted nothing.
    pub const fn new() -> Self {
        Self(())
    }
}

/// The cells of one thread.
struct Cells {
    allocations: Cell<u64>,
    frees: Cell<u64>,
    bytes: Cell<u64>,
}

thread_local! {
    static THREAD: Cells =
        const { Cells { allocations: Cell::new(0), frees: Cell::new(0), bytes: Cell::new(0) } };
}

/// Calls of the calling thread since its start, if [`CountingAllocator`] is the program's allocator; else all 0.
pub fn thread_counts() -> AllocationCounts {
    THREAD.with(|cells| AllocationCounts {
        allocations: cells.allocations.get(),
        frees: cells.frees.get(),
        bytes: cells.bytes.get(),
    })
}

/// Whether [`CountingAllocator`] is the program's allocator: allocates, and looks whether that was counted.
pub(super) fn is_installed() -> bool {
    let before = thread_counts();
    drop(black_box(Box::new(black_box(0_u8))));
    thread_counts() != before
}

#[inline]
fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get().wrapping_add(count));
}

#[inline]
fn count(allocations: u64, frees: u64, bytes: usize) {
    THREAD.with(|cells| {
        add(&cells.allocations, allocations);
        add(&cells.frees, frees);
        add(&cells.bytes, bytes as u64);
    });
}

// SAFETY: every call goes to the system's allocator unchanged, which keeps the contract; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, 0, layout.size());
        // SAFETY: the caller's promise is the one that is wanted.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, 0, layout.size());
        // SAFETY: the caller's promise is the one that is wanted.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, 1, 0);
        // SAFETY: the caller's promise is the one that is wanted.
        unsafe { System.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, 1, new_size);
        // SAFETY: the caller's promise is the one that is wanted.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
