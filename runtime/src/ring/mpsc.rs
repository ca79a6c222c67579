//! A ring from many threads to one, after Vyukov: each slot carries a stamp, which says whose turn it is.
//!
//! A producer claims a slot by moving the tail, writes its entry, and publishes it by the slot's stamp. One that is held up
//! in between holds up nobody's push; the receiver sees the ring end before its entry, though later ones may be complete,
//! and gets them all, in the order of the claims, once it goes on.
//!
//! The receiver can be sent to a thread but neither shared nor cloned.
//!
//! ```compile_fail,E0599
//! let (sender, receiver) = doorbell_runtime::ring::mpsc::channel::<u64>(8).unwrap();
//! let second = receiver.clone();
//! ```
//! ```compile_fail,E0277
//! fn shared<T: Sync>(_: &T) {}
//! let (sender, receiver) = doorbell_runtime::ring::mpsc::channel::<u64>(8).unwrap();
//! shared(&receiver);
//! ```

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, needs_drop};

use super::slots::{Gauge, Indices, RingError, Slots};
use super::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// The stamp of a slot is the index for which it is free, or one more once that entry is there.
struct Slot<T> {
    stamp: AtomicUsize,
    entry: UnsafeCell<MaybeUninit<T>>,
}

struct Shared<T> {
    indices: Arc<Indices>,
    slots: Slots<Slot<T>>,
}

// SAFETY: a slot belongs to the producer that claimed its index, or to the receiver, as its stamp tells; entries go from
// thread to thread, and are never shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let mut head = self.indices.head.0.load(Ordering::Relaxed);
        while needs_drop::<T>() && head != self.indices.tail.0.load(Ordering::Relaxed) {
            // SAFETY: all halves are gone; what lies between the indices was pushed, whole, and not popped.
            unsafe { self.slots.slot(head).entry.with_mut(|entry| (*entry).assume_init_drop()) };
            head = head.wrapping_add(1);
        }
        // SAFETY: all halves are gone, and this runs once.
        unsafe { self.slots.free() };
    }
}

/// A half that pushes; clones push to the same ring.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The half that pops.
#[repr(align(128))]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Next index to pop.
    head: usize,
    not_sync: PhantomData<Cell<()>>,
}

/// An empty ring of `capacity` entries, a power of two from 2 up.
///
/// # Errors
/// `Capacity`, or `Memory` if there is not enough.
pub fn channel<T: Send>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), RingError> {
    with_start(capacity, 0)
}

/// As [`channel`], with the running index of the first entry: for tests of the wrap (R13).
///
/// # Errors
/// As [`channel`].
pub fn with_start<T: Send>(capacity: usize, start: usize) -> Result<(Sender<T>, Receiver<T>), RingError> {
    let slots = Slots::new(capacity, start, |index| Slot {
        stamp: AtomicUsize::new(index),
        entry: UnsafeCell::new(MaybeUninit::uninit()),
    })?;
    let shared = Arc::new(Shared { indices: Indices::new(capacity, start), slots });
    Ok((Sender { shared: shared.clone() }, Receiver { shared, head: start, not_sync: PhantomData }))
}

impl<T> Sender<T> {
    /// Appends an entry. It waits for nobody; only another producer that gets ahead makes it try again.
    ///
    /// # Errors
    /// The entry itself if the ring is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        let tail = &self.shared.indices.tail.0;
        // Relaxed: the stamps order the entries; the tail only hands out indices.
        let mut index = tail.load(Ordering::Relaxed);
        loop {
            // SAFETY: `shared` keeps the slots.
            let slot = unsafe { self.shared.slots.slot(index) };
            // Acquire: the receiver has read the entry out of the slot.
            let ahead = slot.stamp.load(Ordering::Acquire).wrapping_sub(index) as isize;
            if ahead < 0 {
                // The slot still holds the entry of the pass before.
                return Err(value);
            }
            if ahead > 0 {
                index = tail.load(Ordering::Relaxed);
                continue;
            }
            let next = index.wrapping_add(1);
            match tail.compare_exchange_weak(index, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: the stamp says that the slot is free for this index, which nobody else can claim.
                    slot.entry.with_mut(|entry| unsafe { (*entry).write(value) });
                    // Release: whoever sees the stamp sees the entry.
                    slot.stamp.store(next, Ordering::Release);
                    return Ok(());
                }
                Err(seen) => index = seen,
            }
        }
    }

    /// How full the ring is, for any thread; entries that are being pushed count.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.shared.indices.clone())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest entry; `None` if the ring is empty, or the oldest is still being pushed.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        // SAFETY: `shared` keeps the slots.
        let slot = unsafe { self.shared.slots.slot(self.head) };
        let next = self.head.wrapping_add(1);
        // Acquire: the producer has written the entry.
        if slot.stamp.load(Ordering::Acquire) != next {
            return None;
        }
        // SAFETY: the stamp says that the entry is there, and it is read once, as the stamp then gives the slot back.
        let value = slot.entry.with(|entry| unsafe { (*entry).assume_init_read() });
        // Release: whoever sees the stamp may write the slot, as it has been read.
        slot.stamp.store(self.head.wrapping_add(self.shared.slots.capacity()), Ordering::Release);
        self.head = next;
        // Only for the gauge, and for dropping what is left.
        self.shared.indices.head.0.store(next, Ordering::Release);
        Some(value)
    }

    /// How full the ring is, for any thread; entries that are being pushed count.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.shared.indices.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("ring", &self.gauge()).finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("ring", &self.gauge()).finish_non_exhaustive()
    }
}
