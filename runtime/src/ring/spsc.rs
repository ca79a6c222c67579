//! A ring from one thread to one other.
//!
//! The halves can be sent to a thread but not shared, and cannot be cloned: a second producer or consumer does not
//! compile.
//!
//! ```compile_fail,E0599
//! let (producer, consumer) = doorbell_runtime::ring::spsc::channel::<u64>(8).unwrap();
//! let second = consumer.clone();
//! ```
//! ```compile_fail,E0277
//! fn shared<T: Sync>(_: &T) {}
//! let (producer, consumer) = doorbell_runtime::ring::spsc::channel::<u64>(8).unwrap();
//! shared(&producer);
//! ```
//! ```compile_fail,E0277
//! fn shared<T: Sync>(_: &T) {}
//! let (producer, consumer) = doorbell_runtime::ring::spsc::channel::<u64>(8).unwrap();
//! shared(&consumer);
//! ```

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::slots::{Gauge, Indices, RingError, Slots};
use super::sync::{Arc, AtomicBool, Ordering, UnsafeCell};

/// What both halves hold.
struct Shared<T> {
    indices: Arc<Indices>,
    slots: Slots<UnsafeCell<MaybeUninit<T>>>,
    /// Whether a half is gone.
    abandoned: AtomicBool,
}

// SAFETY: a slot belongs to the producer or to the consumer, as the indices tell; entries go from thread to thread, and
// are never shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if !std::mem::needs_drop::<T>() {
            return;
        }
        let mut head = self.indices.head.0.load(Ordering::Relaxed);
        while head != self.indices.tail.0.load(Ordering::Relaxed) {
            // SAFETY: both halves are gone; what lies between the indices was pushed and not popped.
            self.slots.slot(head).with_mut(|entry| unsafe { (*entry).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

/// The half that pushes.
#[repr(align(128))]
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Next index to push, as published.
    tail: usize,
    /// Index at which the ring is full, from the head as last seen: the ring has at least that much room.
    limit: usize,
    not_sync: PhantomData<Cell<()>>,
}

/// The half that pops.
#[repr(align(128))]
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Next index to pop, as published.
    head: usize,
    /// The tail as last seen: there is at least what lies below.
    limit: usize,
    not_sync: PhantomData<Cell<()>>,
}

/// An empty ring of `capacity` entries, a power of two from 2 up.
///
/// # Errors
/// `Capacity`, or `Memory` if there is not enough.
pub fn channel<T: Send>(capacity: usize) -> Result<(Producer<T>, Consumer<T>), RingError> {
    with_start(capacity, 0)
}

/// As [`channel`], with the running index of the first entry: for tests of the wrap (R13).
///
/// # Errors
/// As [`channel`].
pub fn with_start<T: Send>(capacity: usize, start: usize) -> Result<(Producer<T>, Consumer<T>), RingError> {
    let slots = Slots::new(capacity, start, |_| UnsafeCell::new(MaybeUninit::uninit()))?;
    let indices = Indices::new(capacity, start);
    let shared = Arc::new(Shared { indices, slots, abandoned: AtomicBool::new(false) });
    let consumer = Consumer { shared: shared.clone(), head: start, limit: start, not_sync: PhantomData };
    let limit = start.wrapping_add(capacity);
    Ok((Producer { shared, tail: start, limit, not_sync: PhantomData }, consumer))
}

impl<T> Producer<T> {
    /// Appends an entry, which the consumer can see from then on.
    ///
    /// # Errors
    /// The entry itself if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.tail == self.limit && self.refresh() == 0 {
            return Err(value);
        }
        // SAFETY: below the limit a slot is the producer's: the consumer gave it back before it published the head that
        // `refresh` acquired.
        self.shared.slots.slot(self.tail).with_mut(|entry| unsafe { (*entry).write(value) });
        self.publish(1);
        Ok(())
    }

    /// Appends as many entries from the front of `values` as fit, makes them visible together, and returns how many.
    #[inline]
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        let mut room = self.limit.wrapping_sub(self.tail);
        if room < values.len() {
            room = self.refresh();
        }
        let count = room.min(values.len());
        let (first, second) = self.shared.slots.pieces(self.tail, count);
        for (slot, value) in first.iter().chain(second).zip(values) {
            // SAFETY: as in `push`.
            slot.with_mut(|entry| unsafe { (*entry).write(*value) });
        }
        self.publish(count);
        count
    }

    /// Looks at the head, and returns how much room there is.
    #[inline]
    fn refresh(&mut self) -> usize {
        let indices = &self.shared.indices;
        // Acquire: the consumer has read its entries out of the slots that are written next.
        self.limit = indices.head.0.load(Ordering::Acquire).wrapping_add(indices.capacity);
        self.limit.wrapping_sub(self.tail)
    }

    #[inline]
    fn publish(&mut self, count: usize) {
        self.tail = self.tail.wrapping_add(count);
        // Release: whoever sees the tail sees the entries below it.
        self.shared.indices.tail.0.store(self.tail, Ordering::Release);
    }

    /// How full the ring is, for any thread.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.shared.indices.clone())
    }

    /// Whether the consumer is gone: nobody will pop any more.
    pub fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Acquire)
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest entry; `None` if the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.limit && self.refresh() == 0 {
            return None;
        }
        // SAFETY: below the limit a slot holds an entry that is the consumer's: the producer wrote it before it published
        // the tail that `refresh` acquired. It is read once, as the head then passes it.
        let value = self.shared.slots.slot(self.head).with(|entry| unsafe { (*entry).assume_init_read() });
        self.release(1);
        Some(value)
    }

    /// Takes the oldest entries, as many as there are and fit, into the front of `out`, and returns how many.
    #[inline]
    pub fn pop_slice(&mut self, out: &mut [T]) -> usize
    where
        T: Copy,
    {
        let mut ready = self.limit.wrapping_sub(self.head);
        if ready < out.len() {
            ready = self.refresh();
        }
        let count = ready.min(out.len());
        let (first, second) = self.shared.slots.pieces(self.head, count);
        for (slot, out) in first.iter().chain(second).zip(out) {
            // SAFETY: as in `pop`.
            *out = slot.with(|entry| unsafe { (*entry).assume_init_read() });
        }
        self.release(count);
        count
    }

    /// Looks at the tail, and returns how many entries there are.
    #[inline]
    fn refresh(&mut self) -> usize {
        // Acquire: the producer has written the entries that are read next.
        self.limit = self.shared.indices.tail.0.load(Ordering::Acquire);
        self.limit.wrapping_sub(self.head)
    }

    #[inline]
    fn release(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count);
        // Release: whoever sees the head may write the slots below it, as they have been read.
        self.shared.indices.head.0.store(self.head, Ordering::Release);
    }

    /// How full the ring is, for any thread.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.shared.indices.clone())
    }

    /// Whether the producer is gone. What it pushed before can still be popped: once this is true, an empty ring stays so.
    pub fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Acquire)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("ring", &self.gauge()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("ring", &self.gauge()).finish_non_exhaustive()
    }
}
