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
use std::mem::{ManuallyDrop, MaybeUninit, needs_drop};
use std::ptr::NonNull;

use super::slots::{Gauge, Indices, RingError, Slots};
use super::sync::{Arc, AtomicBool, Ordering, UnsafeCell, copy_in, copy_out, prefetch_for_write, spin_loop};

/// Lines of 64 bytes that a half that streams wants to find at a look.
const STRIDE: usize = 32;
/// Lines of 64 bytes by which the producer asks for slots ahead.
const AHEAD: usize = 8;

/// What both halves hold.
struct Shared<T> {
    indices: Arc<Indices>,
    slots: Slots<Slot<T>>,
    /// Whether a half is gone.
    abandoned: AtomicBool,
}

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

// SAFETY: a slot belongs to the producer or to the consumer, as the indices tell; entries go from thread to thread, and
// are never shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let mut head = self.indices.head.0.load(Ordering::Relaxed);
        while needs_drop::<T>() && head != self.indices.tail.0.load(Ordering::Relaxed) {
            // SAFETY: both halves are gone; what lies between the indices was pushed and not popped.
            unsafe { self.slots.slot(head).with_mut(|entry| (*entry).assume_init_drop()) };
            head = head.wrapping_add(1);
        }
        // SAFETY: both halves are gone, and this runs once.
        unsafe { self.slots.free() };
    }
}

/// What a half works with. The pointers are copies out of `shared`, which keeps their targets: a compiler that need not
/// fear that a store changes them keeps them in registers.
struct Half<T> {
    shared: ManuallyDrop<Arc<Shared<T>>>,
    indices: NonNull<Indices>,
    slots: Slots<Slot<T>>,
    /// The half's own index, as published.
    index: usize,
    /// Index up to which slots are known to be the half's: from the other's index, as last seen.
    limit: usize,
    /// Whether the last look at the other's index found something.
    streams: bool,
    /// Slots that a half that streams wants to find at a look.
    stride: usize,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: as `Shared`, which is all that it points to.
unsafe impl<T: Send> Send for Half<T> {}

impl<T> Half<T> {
    fn new(shared: Arc<Shared<T>>, index: usize, limit: usize) -> Self {
        let (indices, slots) = (NonNull::from(&*shared.indices), shared.slots);
        let stride = (STRIDE * Self::PER_LINE).min(slots.capacity() / 4);
        Self {
            shared: ManuallyDrop::new(shared),
            indices,
            slots,
            index,
            limit,
            streams: false,
            stride,
            not_sync: PhantomData,
        }
    }

    #[inline(always)]
    fn indices(&self) -> &Indices {
        // SAFETY: `shared` keeps them.
        unsafe { self.indices.as_ref() }
    }

    /// Slots known to be the half's.
    #[inline(always)]
    fn known(&self) -> usize {
        self.limit.wrapping_sub(self.index)
    }

    /// Moves the limit to where `look` finds it, and returns how many slots are known then.
    ///
    /// A half that follows on the other's heels would fetch the line of its index, and that of the slot it works on, again
    /// and again. So a half that found something the last time as well lets the other get a stride ahead, for as long as
    /// 60 pauses; after an empty look, and where it finds nothing, it never waits.
    #[inline]
    fn refresh(&mut self, look: impl Fn(&Indices) -> usize) -> usize {
        self.limit = look(self.indices());
        for pauses in [4, 8, 16, 32] {
            if !self.streams || self.known() == 0 || self.known() >= self.stride {
                break;
            }
            (0..pauses).for_each(|_| spin_loop());
            self.limit = look(self.indices());
        }
        self.streams = self.known() > 0;
        self.known()
    }

    /// Entries that begin in a line of 64 bytes, as a power of two.
    const PER_LINE: usize = match 64usize.checked_div(size_of::<T>()) {
        None | Some(0) => 1,
        Some(entries) => 1 << entries.ilog2(),
    };

    /// Asks for the slot `ahead` of the index, which is to be written soon: else each store that enters a line waits until
    /// the other core, which has read it, gives it up. What that core may still read is left to it.
    #[inline(always)]
    fn fetch(&self, ahead: usize) {
        if self.known() > ahead {
            // SAFETY: `shared` keeps the slots.
            prefetch_for_write(unsafe { self.slots.slot(self.index.wrapping_add(ahead)) });
        }
    }
}

impl<T> Drop for Half<T> {
    #[inline]
    fn drop(&mut self) {
        // Moved out, so that the half itself is at no address that somebody else knows.
        // SAFETY: it is not used again.
        let shared = unsafe { ManuallyDrop::take(&mut self.shared) };
        // Release: whoever sees it sees all that the half did.
        shared.abandoned.store(true, Ordering::Release);
    }
}

/// The half that pushes.
#[repr(align(128))]
pub struct Producer<T>(Half<T>);

/// The half that pops.
#[repr(align(128))]
pub struct Consumer<T>(Half<T>);

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
    let consumer = Half::new(shared.clone(), start, start);
    let producer = Half::new(shared, start, start.wrapping_add(capacity));
    Ok((Producer(producer), Consumer(consumer)))
}

impl<T> Producer<T> {
    /// As it is, but never waits: a half that streams otherwise gives the other up to 60 pauses to get ahead, which makes
    /// both faster. For a thread that has other things to do.
    pub fn eager(mut self) -> Self {
        self.0.stride = 0;
        self
    }

    /// Appends an entry, which the consumer can see from then on.
    ///
    /// # Errors
    /// The entry itself if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.0.known() == 0 && self.refresh() == 0 {
            return Err(value);
        }
        // SAFETY: below the limit a slot is the producer's: the consumer read it before it published the head that
        // `refresh` acquired.
        unsafe { self.0.slots.slot(self.0.index).with_mut(|entry| (*entry).write(value)) };
        if self.0.index.is_multiple_of(Half::<T>::PER_LINE) {
            self.0.fetch(AHEAD * Half::<T>::PER_LINE);
        }
        self.publish(1);
        Ok(())
    }

    /// Appends as many entries from the front of `values` as fit, makes them visible together, and returns how many.
    #[inline]
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        if self.0.known() < values.len() {
            self.refresh();
        }
        let count = self.0.known().min(values.len());
        // SAFETY: no more is known than the capacity.
        let [first, second] = unsafe { self.0.slots.pieces(self.0.index, count) };
        let (values, rest) = values[..count].split_at(first.len());
        for (slots, values) in [(first, values), (second, rest)] {
            // SAFETY: as in `push`; the pieces are as long as what goes there.
            unsafe { copy_in(slots, values) };
        }
        for line in 0..AHEAD {
            self.0.fetch(count + line * Half::<T>::PER_LINE);
        }
        self.publish(count);
        count
    }

    /// Looks at the head, and returns how much room there is.
    #[inline]
    fn refresh(&mut self) -> usize {
        // Acquire: the consumer has read the slots that are written next.
        self.0.refresh(|indices| indices.head.0.load(Ordering::Acquire).wrapping_add(indices.capacity))
    }

    #[inline(always)]
    fn publish(&mut self, count: usize) {
        self.0.index = self.0.index.wrapping_add(count);
        // Release: whoever sees the tail sees the entries below it.
        self.0.indices().tail.0.store(self.0.index, Ordering::Release);
    }

    /// How full the ring is, for any thread.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.0.shared.indices.clone())
    }

    /// Whether the consumer is gone: nobody will pop any more.
    pub fn is_abandoned(&self) -> bool {
        self.0.shared.abandoned.load(Ordering::Acquire)
    }
}

impl<T> Consumer<T> {
    /// As it is, but never waits: a half that streams otherwise gives the other up to 60 pauses to get ahead, which makes
    /// both faster. For a thread that has other things to do.
    pub fn eager(mut self) -> Self {
        self.0.stride = 0;
        self
    }

    /// Takes the oldest entry; `None` if the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.0.known() == 0 && self.refresh() == 0 {
            return None;
        }
        // SAFETY: below the limit a slot is the consumer's: the producer wrote its entry before it published the tail that
        // `refresh` acquired. It is read once, as the head then passes it.
        let value = unsafe { self.0.slots.slot(self.0.index).with(|entry| (*entry).assume_init_read()) };
        self.release(1);
        Some(value)
    }

    /// Takes the oldest entries, as many as there are and fit, into the front of `out`, and returns how many.
    #[inline]
    pub fn pop_slice(&mut self, out: &mut [T]) -> usize
    where
        T: Copy,
    {
        if self.0.known() < out.len() {
            self.refresh();
        }
        let count = self.0.known().min(out.len());
        // SAFETY: no more is known than the capacity.
        let [first, second] = unsafe { self.0.slots.pieces(self.0.index, count) };
        let (out, rest) = out[..count].split_at_mut(first.len());
        for (slots, out) in [(first, out), (second, rest)] {
            // SAFETY: as in `pop`; the pieces are as long as what comes from there.
            unsafe { copy_out(slots, out) };
        }
        self.release(count);
        count
    }

    /// Looks at the tail, and returns how many entries there are.
    #[inline]
    fn refresh(&mut self) -> usize {
        // Acquire: the producer has written the entries that are read next.
        self.0.refresh(|indices| indices.tail.0.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn release(&mut self, count: usize) {
        self.0.index = self.0.index.wrapping_add(count);
        // Release: whoever sees the head may write the slots below it, as they have been read.
        self.0.indices().head.0.store(self.0.index, Ordering::Release);
    }

    /// How full the ring is, for any thread.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.0.shared.indices.clone())
    }

    /// Whether the producer is gone. What it pushed before can still be popped: once this is true, an empty ring stays so.
    pub fn is_abandoned(&self) -> bool {
        self.0.shared.abandoned.load(Ordering::Acquire)
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
