//! A global allocator that counts, per thread and for the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

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

/// Passes every call on to `A`, and counts it.
///
/// Counting takes no lock, no system call and no memory of its own: the counts of a thread are constant-initialised
/// thread-local cells without a destructor, so even the first and the last allocation of a thread find them. While a
/// [`Watch`](super::Watch) runs on any thread, the calls of all threads are added up for the process as well.
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
pub struct CountingAllocator<A = System>(A);

impl CountingAllocator {
    /// Counts over the system's allocator.
    pub const fn new() -> Self {
        Self(System)
    }
}

impl<A> CountingAllocator<A> {
    /// Counts over `inner`.
    pub const fn over(inner: A) -> Self {
        Self(inner)
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

/// Watches that run: without one, nobody pays for lines that all threads write.
static WATCHES: AtomicUsize = AtomicUsize::new(0);
static PROCESS_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static PROCESS_FREES: AtomicU64 = AtomicU64::new(0);
static PROCESS_BYTES: AtomicU64 = AtomicU64::new(0);

/// Calls of the calling thread since its start, if [`CountingAllocator`] is the program's allocator; else all 0.
pub fn thread_counts() -> AllocationCounts {
    THREAD.with(|cells| AllocationCounts {
        allocations: cells.allocations.get(),
        frees: cells.frees.get(),
        bytes: cells.bytes.get(),
    })
}

/// Calls of all threads, of those that ended too, while at least one [`Watch`](super::Watch) ran.
pub fn process_counts() -> AllocationCounts {
    AllocationCounts {
        allocations: PROCESS_ALLOCATIONS.load(Relaxed),
        frees: PROCESS_FREES.load(Relaxed),
        bytes: PROCESS_BYTES.load(Relaxed),
    }
}

/// Counts for the process while it lives.
pub(super) struct CountProcess(());

impl CountProcess {
    pub(super) fn start() -> Self {
        WATCHES.fetch_add(1, Relaxed);
        Self(())
    }
}

impl Drop for CountProcess {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Relaxed);
    }
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
    if WATCHES.load(Relaxed) != 0 {
        PROCESS_ALLOCATIONS.fetch_add(allocations, Relaxed);
        PROCESS_FREES.fetch_add(frees, Relaxed);
        PROCESS_BYTES.fetch_add(bytes as u64, Relaxed);
    }
}

// SAFETY: every call goes to `A` unchanged, which keeps the contract; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, 0, layout.size());
        // SAFETY: the caller's promise is `A`'s.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, 0, layout.size());
        // SAFETY: the caller's promise is `A`'s.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, 1, 0);
        // SAFETY: the caller's promise is `A`'s.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, 1, new_size);
        // SAFETY: the caller's promise is `A`'s.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }
}
