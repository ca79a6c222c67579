//! What both rings are made of: the slots, and the two running indices.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::slice;

use super::sync::{Arc, AtomicUsize, Ordering};

/// What the adjacent-line prefetcher moves together, in bytes: what two threads write lies that far apart.
const LINE: usize = 128;
const PAGE: usize = 4096;

/// Why a ring could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// The capacity is no power of two from 2 up.
    Capacity {
        /// What was asked for, in entries.
        capacity: usize,
    },
    /// There is no memory for that many entries.
    Memory {
        /// What was asked for, in entries.
        capacity: usize,
        /// Size of a slot, in bytes.
        slot: usize,
    },
}

// By hand: the rings need nothing but std, so that they build in seconds under loom and ThreadSanitizer.
impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { capacity } => {
                write!(f, "a ring of {capacity} entries cannot be: give a power of two from 2 up")
            }
            Self::Memory { capacity, slot } => {
                write!(f, "no memory for a ring of {capacity} slots of {slot} bytes: give a smaller capacity")
            }
        }
    }
}

impl std::error::Error for RingError {}

/// A value on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

const _: () = assert!(align_of::<Apart<u8>>() == LINE);
// Flaw 20 of an earlier design: both indices on one line.
const _: () = assert!(mem::offset_of!(Indices, head).abs_diff(mem::offset_of!(Indices, tail)) >= LINE);

/// Running indices of a ring: the slot is the index modulo the capacity, the distance the wrapping difference (R13). A
/// full ring and an empty one thus differ, and no slot is wasted.
pub(super) struct Indices {
    /// Of the next entry to pop.
    pub(super) head: Apart<AtomicUsize>,
    /// Of the next entry to push.
    pub(super) tail: Apart<AtomicUsize>,
    pub(super) capacity: usize,
}

impl Indices {
    pub(super) fn new(capacity: usize, start: usize) -> Arc<Self> {
        Arc::new(Self {
            head: Apart(AtomicUsize::new(start)),
            tail: Apart(AtomicUsize::new(start)),
            capacity,
        })
    }

    /// Entries in the ring at some moment of the call, to any thread.
    pub(super) fn len(&self) -> usize {
        // The head first: a tail read before it might lie below it. Meanwhile the tail may run on by more than a ring.
        let head = self.head.0.load(Ordering::Acquire);
        let tail = self.tail.0.load(Ordering::Acquire);
        tail.wrapping_sub(head).min(self.capacity)
    }
}

/// Tells how full a ring is, from any thread.
#[derive(Clone)]
pub struct Gauge(pub(super) Arc<Indices>);

impl Gauge {
    /// Entries in the ring: as many as there were at some moment of the call if nobody pops meanwhile, else perhaps some
    /// more; never more than the capacity.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries that the ring holds when full.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gauge({} of {})", self.len(), self.capacity())
    }
}

/// Slots on lines of their own, as many as a power of two. Whoever makes them frees them, by `free`.
///
/// A plain pair of words, so that a half of a ring keeps it in registers rather than behind its pointer to what is shared.
pub(super) struct Slots<S> {
    first: NonNull<S>,
    mask: usize,
}

impl<S> Clone for Slots<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Slots<S> {}

impl<S> Slots<S> {
    /// `capacity` slots, each made from its running index `start`, `start + 1` …; every page has been touched.
    pub(super) fn new(
        capacity: usize,
        start: usize,
        mut slot: impl FnMut(usize) -> S,
    ) -> Result<Self, RingError> {
        if !capacity.is_power_of_two() || capacity < 2 {
            return Err(RingError::Capacity { capacity });
        }
        let no_memory = RingError::Memory { capacity, slot: size_of::<S>() };
        let layout = Self::layout(capacity).ok_or(no_memory)?;
        // SAFETY: the layout has a size, as `layout` looks.
        let memory = unsafe { alloc(layout) };
        let first = NonNull::new(memory.cast::<S>()).ok_or(no_memory)?;
        for byte in (0..layout.size()).step_by(PAGE) {
            // What a slot is made of may be nothing, and a compiler may turn zeroes into pages that nobody has touched.
            // SAFETY: the byte lies in the block.
            unsafe { memory.add(byte).write_volatile(0) };
        }
        let mask = capacity - 1;
        for index in (0..capacity).map(|k| start.wrapping_add(k)) {
            // SAFETY: the slot lies in the block, which nobody else knows yet.
            unsafe { first.add(index & mask).write(slot(index)) };
        }
        Ok(Self { first, mask })
    }

    /// `None` if it would have no size or one too large.
    fn layout(capacity: usize) -> Option<Layout> {
        // A ring of entries without a size has to have a block as well.
        let bytes = Layout::array::<S>(capacity).ok()?.align_to(LINE).ok()?;
        Layout::from_size_align(bytes.size().max(1), bytes.align()).ok()
    }

    #[inline(always)]
    pub(super) fn capacity(self) -> usize {
        self.mask + 1
    }

    /// The slot of a running index.
    ///
    /// # Safety
    /// The slots have not been freed, and are not within the life of what is returned.
    #[inline(always)]
    pub(super) unsafe fn slot<'a>(self, index: usize) -> &'a S {
        // SAFETY: the mask keeps the place below the capacity; the caller keeps the slots.
        unsafe { self.first.add(index & self.mask).as_ref() }
    }

    /// The slots of `count` indices from `index` up, which may fall into two pieces.
    ///
    /// # Safety
    /// As [`slot`](Self::slot), and `count` is at most the capacity.
    #[inline(always)]
    pub(super) unsafe fn pieces<'a>(self, index: usize, count: usize) -> [&'a [S]; 2] {
        let place = index & self.mask;
        let first = count.min(self.capacity() - place);
        // SAFETY: both pieces lie within the slots, as the count is no more than there are.
        unsafe {
            [
                slice::from_raw_parts(self.first.add(place).as_ptr(), first),
                slice::from_raw_parts(self.first.as_ptr(), count - first),
            ]
        }
    }

    /// Drops and frees the slots.
    ///
    /// # Safety
    /// They are not freed yet, and nobody looks at them from now on.
    pub(super) unsafe fn free(self) {
        let slots = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.capacity());
        // SAFETY: all slots were made in `new`, and nobody refers to them any more.
        unsafe { std::ptr::drop_in_place(slots) };
        if let Some(layout) = Self::layout(self.capacity()) {
            // SAFETY: the block was allocated with this layout.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}
