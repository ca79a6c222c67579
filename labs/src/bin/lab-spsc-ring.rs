//! Lab 2: a ring between two threads, made fast step by step.
#![forbid(unsafe_code)]

use std::borrow::Borrow;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use Ordering::{Acquire, Relaxed, Release, SeqCst};
use clap::Parser;
use doorbell_labs::{Options, Pair, Report, Spin, median, table};
use rtrb::RingBuffer;

#[derive(Parser)]
#[command(about = "Lab 2, an SPSC ring from scratch: what each step brings")]
struct Args {
    #[command(flatten)]
    options: Options,
}

/// Entries of every ring.
const CAPACITY: usize = 1024;
/// Entries handed over at a time in the steps that do so.
const BATCH: usize = 32;

/// An index on a pair of lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicUsize);

impl Borrow<AtomicUsize> for Padded {
    fn borrow(&self) -> &AtomicUsize {
        &self.0
    }
}

/// The ring. A slot is an atomic, read and written without order: as cheap as a plain word, and no `unsafe`.
/// Indices run free and wrap; the slot is the index modulo the capacity.
struct Ring<I> {
    /// Where the consumer is, and beside it where the producer is.
    indices: [I; 2],
    slots: Box<[AtomicU64; CAPACITY]>,
}

impl<I: Borrow<AtomicUsize> + Default + Sync> Ring<I> {
    fn new() -> Self {
        Self { indices: Default::default(), slots: Box::new([const { AtomicU64::new(0) }; CAPACITY]) }
    }

    #[inline]
    fn head(&self) -> &AtomicUsize {
        self.indices[0].borrow()
    }

    #[inline]
    fn tail(&self) -> &AtomicUsize {
        self.indices[1].borrow()
    }

    #[inline]
    fn slot(&self, index: usize) -> &AtomicU64 {
        &self.slots[index % CAPACITY]
    }

    /// Steps 1 and 2: looks at both indices each time. `load` and `store` are the orders of the peer's index and of
    /// one's own.
    #[inline]
    fn push(&self, value: u64, load: Ordering, store: Ordering) -> bool {
        let tail = self.tail().load(Relaxed);
        if tail.wrapping_sub(self.head().load(load)) == CAPACITY {
            return false;
        }
        self.slot(tail).store(value, Relaxed);
        self.tail().store(tail.wrapping_add(1), store);
        true
    }

    #[inline]
    fn pop(&self, load: Ordering, store: Ordering) -> Option<u64> {
        let head = self.head().load(Relaxed);
        if head == self.tail().load(load) {
            return None;
        }
        let value = self.slot(head).load(Relaxed);
        self.head().store(head.wrapping_add(1), store);
        Some(value)
    }

    fn halves(&self) -> (Half<'_, I>, Half<'_, I>) {
        (Half { ring: self, index: 0, limit: CAPACITY }, Half { ring: self, index: 0, limit: 0 })
    }
}

/// Steps 3 to 5: a side keeps its own index and the last that it saw of the peer's, and so knows up to which index it
/// may go without a look.
struct Half<'a, I> {
    ring: &'a Ring<I>,
    index: usize,
    limit: usize,
}

impl<I: Borrow<AtomicUsize> + Default + Sync> Half<'_, I> {
    /// Entries that may be taken, up to `want`; looks at the peer's index only if fewer are known of.
    #[inline]
    fn room(&mut self, want: usize, peer: &AtomicUsize, ahead: usize) -> usize {
        if self.limit.wrapping_sub(self.index) < want {
            self.limit = peer.load(Acquire).wrapping_add(ahead);
        }
        want.min(self.limit.wrapping_sub(self.index))
    }

    #[inline]
    fn push(&mut self, values: &[u64]) -> usize {
        let ring = self.ring;
        let room = self.room(values.len(), ring.head(), CAPACITY);
        for (k, value) in values[..room].iter().enumerate() {
            ring.slot(self.index.wrapping_add(k)).store(*value, Relaxed);
        }
        self.publish(room, ring.tail());
        room
    }

    #[inline]
    fn pop(&mut self, out: &mut [u64]) -> usize {
        let ring = self.ring;
        let ready = self.room(out.len(), ring.tail(), 0);
        for (k, out) in out[..ready].iter_mut().enumerate() {
            *out = ring.slot(self.index.wrapping_add(k)).load(Relaxed);
        }
        self.publish(ready, ring.head());
        ready
    }

    #[inline]
    fn publish(&mut self, count: usize, own: &AtomicUsize) {
        // A look in vain stores nothing: that would take the line away from the peer for no news.
        if count > 0 {
            self.index = self.index.wrapping_add(count);
            own.store(self.index, Release);
        }
    }
}

/// Sends 0, 1, 2, … through a ring, `N` at a time, and returns entries per second; `None` if one was lost, doubled or
/// out of turn.
fn transfer<const N: usize>(
    total: u64,
    pair: &Pair,
    mut push: impl FnMut(&[u64]) -> usize + Send,
    mut pop: impl FnMut(&mut [u64]) -> usize,
) -> Option<f64> {
    let barrier = &Barrier::new(2);
    thread::scope(|scope| {
        // Moved, so that what the producer keeps lies on its own stack and not beside what the consumer keeps: see lab 1.
        scope.spawn(move || {
            pair.pin(1);
            barrier.wait();
            let mut next = 0;
            while next < total {
                let batch: [u64; N] = std::array::from_fn(|k| next + k as u64);
                let mut sent = 0;
                let mut spin = Spin::default();
                while sent < N {
                    match push(&batch[sent..]) {
                        0 => spin.wait(),
                        pushed => sent += pushed,
                    }
                }
                next += N as u64;
            }
        });
        pair.pin(0);
        barrier.wait();
        let start = Instant::now();
        let mut in_turn = true;
        let (mut next, mut out) = (0, [0; N]);
        let mut spin = Spin::default();
        while next < total {
            let popped = pop(&mut out);
            for value in &out[..popped] {
                in_turn &= *value == next;
                next += 1;
            }
            if popped == 0 {
                spin.wait();
            }
        }
        in_turn.then(|| total as f64 / start.elapsed().as_secs_f64())
    })
}

type Step = (&'static str, &'static str, fn(u64, &Pair) -> Option<f64>);

const STEPS: [Step; 7] = [
    ("1 sequentially consistent", "every index access in one order of all threads", |total, pair| {
        let ring = Ring::<AtomicUsize>::new();
        transfer::<1>(
            total,
            pair,
            |values| ring.push(values[0], SeqCst, SeqCst).into(),
            |out| ring.pop(SeqCst, SeqCst).map(|value| out[0] = value).is_some().into(),
        )
    }),
    ("2 acquire and release", "an index orders only the slots below it", |total, pair| {
        let ring = Ring::<AtomicUsize>::new();
        transfer::<1>(
            total,
            pair,
            |values| ring.push(values[0], Acquire, Release).into(),
            |out| ring.pop(Acquire, Release).map(|value| out[0] = value).is_some().into(),
        )
    }),
    ("3 cached indices", "looks at the peer only when it must", |total, pair| {
        let ring = Ring::<AtomicUsize>::new();
        let (mut producer, mut consumer) = ring.halves();
        transfer::<1>(total, pair, move |values| producer.push(values), move |out| consumer.pop(out))
    }),
    ("4 padded", "each index on lines of its own", |total, pair| {
        let ring = Ring::<Padded>::new();
        let (mut producer, mut consumer) = ring.halves();
        transfer::<1>(total, pair, move |values| producer.push(values), move |out| consumer.pop(out))
    }),
    ("5 batches of 32", "one index store for 32 entries", |total, pair| {
        let ring = Ring::<Padded>::new();
        let (mut producer, mut consumer) = ring.halves();
        transfer::<BATCH>(total, pair, move |values| producer.push(values), move |out| consumer.pop(out))
    }),
    ("rtrb", "push and pop", |total, pair| {
        let (mut producer, mut consumer) = RingBuffer::<u64>::new(CAPACITY);
        transfer::<1>(
            total,
            pair,
            move |values| producer.push(values[0]).is_ok().into(),
            |out| consumer.pop().map(|value| out[0] = value).is_ok().into(),
        )
    }),
    ("rtrb, 32", "push_partial_slice, pop_partial_slice", |total, pair| {
        let (mut producer, mut consumer) = RingBuffer::<u64>::new(CAPACITY);
        transfer::<BATCH>(
            total,
            pair,
            move |values| producer.push_partial_slice(values).0.len(),
            |out| consumer.pop_partial_slice(out).0.len(),
        )
    }),
];

fn main() -> ExitCode {
    let Args { options } = Args::parse();
    let pair = Pair::find();
    let (total, repeats) = options.pick((64_000, 3), (320_000, 25));
    let mut rates = [const { vec![] }; STEPS.len()];
    for _ in 0..repeats {
        for ((name, _, run), rates) in STEPS.iter().zip(&mut rates) {
            match run(total, &pair) {
                Some(rate) => rates.push(rate),
                None => {
                    eprintln!("error: {name}: an entry was lost, doubled or out of turn");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    let best = rates.each_ref().map(|rates| rates.iter().copied().fold(0.0, f64::max));
    let rates = rates.map(median);
    let mut table = table(
        ["step", "what it changes", "M entries/s", "ns/entry", "of step 1", "best run, M entries/s"],
        2,
    );
    for (((name, what, _), rate), best) in STEPS.iter().zip(rates).zip(best) {
        table.add_row([
            (*name).to_owned(),
            (*what).to_owned(),
            format!("{:.1}", rate / 1e6),
            format!("{:.2}", 1e9 / rate),
            format!("{:.1}", rate / rates[0]),
            format!("{:.1}", best / 1e6),
        ]);
    }
    Report {
        heading: format!(
            "An SPSC ring from scratch: u64 entries through {CAPACITY} slots, median of {repeats} runs of {total}; every \
             entry arrived once and in turn"
        ),
        table,
        look: "on x86 a sequentially consistent store is an exchange that empties the store buffer, and step 2 does away \
               with it. Steps 3 and 4 do away with traffic: a look at the peer's index is a line that comes from the \
               other core, and an unpadded index takes the peer's along. A batch pays for index and line once. Where \
               the best run is far above the median, one thread often waited for a processor that others had. The last \
               rows are the library's ring that the runtime uses, which is steps 3 to 5 with entries of any type."
            .into(),
        unmeasured: pair.unmeasured,
    }
    .print();
    ExitCode::SUCCESS
}
