//! The rings between threads beside their rivals: entries per second, and round trips.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use doorbell_contract::HwDesc;
use doorbell_runtime::ring::{mpsc, spsc};
use rtrb::RingBuffer;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

use crate::BenchError;
use crate::{Section, median, table, verdict};

/// Entries per second over those of rtrb and of `ArrayQueue`.
const BARS: [f64; 2] = [1.2, 2.0];
/// Slots of every ring.
const CAPACITY: usize = 1024;
/// Entries of a slice.
const SLICE: usize = 64;

/// What goes through a ring: it says which one it is.
pub trait Entry: Copy + Send + 'static {
    const NAME: &str;
    fn new(key: u64) -> Self;
    fn key(&self) -> u64;
}

impl Entry for u64 {
    const NAME: &str = "u64";
    fn new(key: u64) -> Self {
        key
    }
    fn key(&self) -> u64 {
        *self
    }
}

impl Entry for HwDesc {
    const NAME: &str = "descriptor, 64 B";
    fn new(key: u64) -> Self {
        HwDesc { user_data: key, ..HwDesc::default() }
    }
    fn key(&self) -> u64 {
        self.user_data
    }
}

/// Puts the calling thread on the `nth` processor that the process may use, if there is another for the peer.
pub fn pin(nth: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    if let [_, _, ..] = cpus[..] {
        let mut set = CpuSet::new();
        set.set(cpus[nth % cpus.len()]);
        // Refused, the threads stay where the system puts them: slower, but no less right.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Waits a moment: others may need the processor, if there are more threads than processors.
pub fn relax(waits: &mut u32) {
    *waits += 1;
    if waits.is_multiple_of(1 << 12) {
        thread::yield_now();
    } else {
        spin_loop();
    }
}

/// Runs until `step` has done something.
fn until(mut step: impl FnMut() -> bool) {
    let mut waits = 0;
    while !step() {
        relax(&mut waits);
    }
}

/// Entries per second from as many threads as there are `pushers` to the one that pops. A pusher is asked for entries from
/// a key up to another and tells how many it pushed; the popper is given the next key, takes what there is from there, and
/// tells how many, or `None` if another key came.
pub fn transfer<P, Q>(count: u64, pushers: Vec<P>, mut pop: Q) -> Result<f64, BenchError>
where
    P: FnMut(u64, u64) -> usize + Send,
    Q: FnMut(u64) -> Option<usize> + Send,
{
    let threads = pushers.len() as u32 + 1;
    let share = count / pushers.len() as u64;
    let count = share * pushers.len() as u64;
    let ready = AtomicU32::new(0);
    let meet = || {
        ready.fetch_add(1, Ordering::AcqRel);
        until(|| ready.load(Ordering::Acquire) == threads);
    };
    let elapsed = thread::scope(|scope| {
        for (nth, mut push) in pushers.into_iter().enumerate() {
            let meet = &meet;
            scope.spawn(move || {
                pin(nth + 1);
                meet();
                let (mut key, mut waits) = (0, 0);
                while key < share {
                    match push(key, share) {
                        0 => relax(&mut waits),
                        pushed => key += pushed as u64,
                    }
                }
            });
        }
        let popper = scope.spawn(|| {
            pin(0);
            meet();
            let start = Instant::now();
            let (mut key, mut waits) = (0, 0);
            let mut right = true;
            while key < count {
                match pop(key) {
                    Some(0) => relax(&mut waits),
                    Some(popped) => key += popped as u64,
                    // The pushers have to come to their end.
                    None => (right, key) = (false, key + 1),
                }
            }
            right.then(|| start.elapsed())
        });
        popper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    match elapsed {
        Some(elapsed) => Ok(count as f64 / elapsed.as_secs_f64()),
        None => Err(BenchError::failed("a ring lost, doubled or swapped entries")),
    }
}

/// One entry at a time, in order.
pub fn one_by_one<T: Entry>(
    count: u64,
    mut push: impl FnMut(T) -> bool + Send,
    mut pop: impl FnMut() -> Option<T> + Send,
) -> Result<f64, BenchError> {
    transfer(count, vec![move |key, _| usize::from(push(T::new(key)))], move |key| match pop() {
        Some(entry) => (entry.key() == key).then_some(1),
        None => Some(0),
    })
}

fn in_slices<T: Entry>(
    count: u64,
    mut push: impl FnMut(&[T]) -> usize + Send,
    mut pop: impl FnMut(&mut [T]) -> usize + Send,
) -> Result<f64, BenchError> {
    let mut out = [T::new(0); SLICE];
    transfer(
        count,
        vec![move |key, end: u64| {
            let slice: [T; SLICE] = std::array::from_fn(|k| T::new(key + k as u64));
            push(&slice[..SLICE.min((end - key) as usize)])
        }],
        move |key| {
            let popped = pop(&mut out);
            let wrong =
                out[..popped].iter().zip(key..).fold(0, |wrong, (entry, key)| wrong | (entry.key() ^ key));
            (wrong == 0).then_some(popped)
        },
    )
}

fn ring<T: Entry>(count: u64) -> Result<f64, BenchError> {
    let (mut producer, mut consumer) = spsc::channel(CAPACITY).map_err(BenchError::input)?;
    one_by_one::<T>(count, move |entry| producer.push(entry).is_ok(), move || consumer.pop())
}

fn ring_slices<T: Entry>(count: u64) -> Result<f64, BenchError> {
    let (mut producer, mut consumer) = spsc::channel::<T>(CAPACITY).map_err(BenchError::input)?;
    in_slices(count, move |slice| producer.push_slice(slice), move |out| consumer.pop_slice(out))
}

fn rtrb<T: Entry>(count: u64) -> Result<f64, BenchError> {
    let (mut producer, mut consumer) = RingBuffer::new(CAPACITY);
    one_by_one::<T>(count, move |entry| producer.push(entry).is_ok(), move || consumer.pop().ok())
}

fn rtrb_slices<T: Entry>(count: u64) -> Result<f64, BenchError> {
    let (mut producer, mut consumer) = RingBuffer::<T>::new(CAPACITY);
    in_slices(
        count,
        move |slice| producer.push_partial_slice(slice).0.len(),
        move |out| consumer.pop_partial_slice(out).0.len(),
    )
}

fn array_queue<T: Entry>(count: u64) -> Result<f64, BenchError> {
    let queue = ArrayQueue::new(CAPACITY);
    one_by_one::<T>(count, |entry| queue.push(entry).is_ok(), || queue.pop())
}

fn channel<T: Entry>(count: u64) -> Result<f64, BenchError> {
    let (sender, receiver) = sync_channel(CAPACITY);
    one_by_one::<T>(count, move |entry| sender.try_send(entry).is_ok(), move || receiver.try_recv().ok())
}

/// Bits of a key that tell the producer.
const PRODUCER_SHIFT: u32 = 56;

/// `producers` threads to one; the order of each one's entries is looked at.
fn from_many<P>(
    count: u64,
    producers: usize,
    push: impl Fn(u64) -> P,
    mut pop: impl FnMut() -> Option<u64> + Send,
) -> Result<f64, BenchError>
where
    P: FnMut(u64) -> bool + Send,
{
    let pushers = (0..producers as u64)
        .map(|producer| {
            let mut push = push(producer);
            move |key, _| usize::from(push(producer << PRODUCER_SHIFT | key))
        })
        .collect();
    let mut next = vec![0; producers];
    transfer(count, pushers, move |_| match pop() {
        None => Some(0),
        Some(entry) => {
            let next = next.get_mut((entry >> PRODUCER_SHIFT) as usize)?;
            *next += 1;
            (entry & ((1 << PRODUCER_SHIFT) - 1) == *next - 1).then_some(1)
        }
    })
}

fn mpsc_ring(count: u64, producers: usize) -> Result<f64, BenchError> {
    let (sender, mut receiver) = mpsc::channel(CAPACITY).map_err(BenchError::input)?;
    from_many(
        count,
        producers,
        |_| {
            let sender = sender.clone();
            move |entry| sender.push(entry).is_ok()
        },
        || receiver.pop(),
    )
}

fn mpsc_array_queue(count: u64, producers: usize) -> Result<f64, BenchError> {
    let queue = ArrayQueue::new(CAPACITY);
    from_many(count, producers, |_| |entry| queue.push(entry).is_ok(), || queue.pop())
}

fn mpsc_channel(count: u64, producers: usize) -> Result<f64, BenchError> {
    let (sender, receiver) = sync_channel(CAPACITY);
    from_many(
        count,
        producers,
        |_| {
            let sender = sender.clone();
            move |entry| sender.try_send(entry).is_ok()
        },
        move || receiver.try_recv().ok(),
    )
}

/// One of those that are compared: its name, and a run of so many entries, which tells the entries per second.
type Contender = (&'static str, Box<dyn Fn(u64) -> Result<f64, BenchError>>);

/// Runs that take turns; the rates of each contender.
fn take_turns(contenders: &[Contender], count: u64, repeats: usize) -> Result<Vec<Vec<f64>>, BenchError> {
    let mut rates = vec![vec![]; contenders.len()];
    for _ in 0..repeats {
        for (rates, (_, run)) in rates.iter_mut().zip(contenders) {
            rates.push(run(count)?);
        }
    }
    Ok(rates)
}

/// Median of the ratios of runs that followed each other.
fn ratio(rates: &[f64], rivals: &[f64]) -> f64 {
    median(rates.iter().zip(rivals).map(|(rate, rival)| rate / rival))
}

fn million(rate: f64) -> String {
    format!("{:.1} M", rate / 1e6)
}

/// Entries per second of all rings.
pub fn sections(quick: bool) -> Result<Vec<Section>, BenchError> {
    Ok(vec![spsc_section(quick)?, mpsc_section(quick)?, round_trip_section(quick)?])
}

fn spsc_section(quick: bool) -> Result<Section, BenchError> {
    let (count, repeats) = if quick { (1 << 18, 3) } else { (1 << 21, 15) };
    fn rows<T: Entry>() -> [(&'static str, &'static str, Vec<Contender>); 2] {
        [
            (
                T::NAME,
                "one by one",
                vec![
                    ("spsc", Box::new(ring::<T>)),
                    ("rtrb", Box::new(rtrb::<T>)),
                    ("ArrayQueue", Box::new(array_queue::<T>)),
                    ("sync_channel", Box::new(channel::<T>)),
                ],
            ),
            (
                T::NAME,
                "slices of 64",
                vec![("spsc", Box::new(ring_slices::<T>)), ("rtrb", Box::new(rtrb_slices::<T>))],
            ),
        ]
    }
    let mut table = table(
        [
            "entry",
            "API",
            "spsc",
            "rtrb",
            "ArrayQueue",
            "sync_channel",
            "of rtrb",
            "of ArrayQueue",
            "bars",
            "bars are",
        ],
        2,
    );
    let mut figures = vec![];
    for (entry, api, contenders) in rows::<u64>().into_iter().chain(rows::<HwDesc>()) {
        let rates = take_turns(&contenders, count, repeats)?;
        let ratios: Vec<f64> =
            rates[1..].iter().take(BARS.len()).map(|rivals| ratio(&rates[0], rivals)).collect();
        let met = ratios.iter().zip(BARS).all(|(ratio, bar)| *ratio >= bar);
        let bars: Vec<String> = BARS[..ratios.len()].iter().map(|bar| format!("{bar:.1}")).collect();
        let cell = |nth: usize| {
            rates.get(nth).map(|rates| million(median(rates.iter().copied()))).unwrap_or_default()
        };
        let ratio = |nth: usize| ratios.get(nth).map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        table.add_row([
            entry.to_owned(),
            api.to_owned(),
            cell(0),
            cell(1),
            cell(2),
            cell(3),
            ratio(0),
            ratio(1),
            bars.join(", "),
            verdict(met).to_owned(),
        ]);
        for ((name, _), rates) in contenders.iter().zip(&rates) {
            figures.push(json!({
                "ring": name, "entry": entry, "api": api, "per_second": median(rates.iter().copied()),
            }));
        }
    }
    Ok(Section {
        heading: format!(
            "From one thread to one other: entries per second through {CAPACITY} slots, median of {repeats} runs of \
             {count}; ratios of runs that took turns"
        ),
        table,
        notes: vec!["Every entry was looked at: none was lost, doubled or out of order.".to_owned()],
        json: figures.into(),
    })
}

fn mpsc_section(quick: bool) -> Result<Section, BenchError> {
    let (count, repeats) = if quick { (1 << 16, 3) } else { (1 << 19, 15) };
    let mut table = table(["producers", "mpsc", "ArrayQueue", "sync_channel", "of ArrayQueue"], 0);
    let mut figures = vec![];
    for producers in [1, 3] {
        let contenders: [Contender; 3] = [
            ("mpsc", Box::new(move |count| mpsc_ring(count, producers))),
            ("ArrayQueue", Box::new(move |count| mpsc_array_queue(count, producers))),
            ("sync_channel", Box::new(move |count| mpsc_channel(count, producers))),
        ];
        let rates = take_turns(&contenders, count, repeats)?;
        let cell = |nth: usize| million(median(rates[nth].iter().copied()));
        table.add_row([
            producers.to_string(),
            cell(0),
            cell(1),
            cell(2),
            format!("{:.2}", ratio(&rates[0], &rates[1])),
        ]);
        for ((name, _), rates) in contenders.iter().zip(&rates) {
            figures.push(json!({
                "ring": name, "producers": producers, "per_second": median(rates.iter().copied()),
            }));
        }
    }
    Ok(Section {
        heading: format!(
            "From many threads to one: u64 per second through {CAPACITY} slots, median of {repeats} runs of {count}"
        ),
        table,
        notes: vec!["Each producer's entries came in order, and all of them.".to_owned()],
        json: figures.into(),
    })
}

/// How long each of `rounds` round trips took, sorted: the calling side sends a key and waits until it comes back.
pub fn round_trips(
    rounds: u64,
    mut ask: impl FnMut(u64) + Send,
    mut heard: impl FnMut() -> Option<u64> + Send,
    mut asked: impl FnMut() -> Option<u64> + Send,
    mut answer: impl FnMut(u64) + Send,
) -> Result<Vec<Duration>, BenchError> {
    let times = thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            for _ in 0..rounds {
                until(|| asked().map(&mut answer).is_some());
            }
        });
        let asker = scope.spawn(move || {
            pin(0);
            let mut times = Vec::with_capacity(rounds as usize);
            let mut right = true;
            for key in 0..rounds {
                let start = Instant::now();
                ask(key);
                until(|| {
                    heard().is_some_and(|heard| {
                        right &= heard == key;
                        true
                    })
                });
                times.push(start.elapsed());
            }
            right.then_some(times)
        });
        asker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let mut times = times.ok_or_else(|| BenchError::failed("a ring answered with another entry"))?;
    times.sort_unstable();
    Ok(times)
}

/// The time that `share` of the sorted times do not exceed, in ns.
pub fn quantile(times: &[Duration], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e9
}

pub fn ring_round_trips(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (mut ask, mut asked) = spsc::channel(CAPACITY).map_err(BenchError::input)?;
    let (mut answer, mut heard) = spsc::channel(CAPACITY).map_err(BenchError::input)?;
    round_trips(
        rounds,
        move |key| until(|| ask.push(key).is_ok()),
        move || heard.pop(),
        move || asked.pop(),
        move |key| until(|| answer.push(key).is_ok()),
    )
}

fn rtrb_round_trips(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (mut ask, mut asked) = RingBuffer::new(CAPACITY);
    let (mut answer, mut heard) = RingBuffer::new(CAPACITY);
    round_trips(
        rounds,
        move |key| until(|| ask.push(key).is_ok()),
        move || heard.pop().ok(),
        move || asked.pop().ok(),
        move |key| until(|| answer.push(key).is_ok()),
    )
}

fn array_queue_round_trips(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (there, back) = (ArrayQueue::new(CAPACITY), ArrayQueue::new(CAPACITY));
    round_trips(
        rounds,
        |key| until(|| there.push(key).is_ok()),
        || back.pop(),
        || there.pop(),
        |key| until(|| back.push(key).is_ok()),
    )
}

fn round_trip_section(quick: bool) -> Result<Section, BenchError> {
    let (rounds, repeats) = if quick { (1 << 12, 3) } else { (1 << 16, 9) };
    type RoundTrips = fn(u64) -> Result<Vec<Duration>, BenchError>;
    let contenders: [(&str, RoundTrips); 3] =
        [("spsc", ring_round_trips), ("rtrb", rtrb_round_trips), ("ArrayQueue", array_queue_round_trips)];
    let mut quantiles = vec![[vec![], vec![]]; contenders.len()];
    for _ in 0..repeats {
        for (quantiles, (_, run)) in quantiles.iter_mut().zip(contenders) {
            let times = run(rounds)?;
            quantiles[0].push(quantile(&times, 0.5));
            quantiles[1].push(quantile(&times, 0.99));
        }
    }
    let mut table = table(["two rings of", "p50", "p99"], 1);
    let mut figures = vec![];
    for ((name, _), [p50, p99]) in contenders.into_iter().zip(quantiles) {
        let (p50, p99) = (median(p50), median(p99));
        table.add_row([name.to_owned(), format!("{p50:.0} ns"), format!("{p99:.0} ns")]);
        figures.push(json!({ "ring": name, "p50_ns": p50, "p99_ns": p99 }));
    }
    Ok(Section {
        heading: format!(
            "Round trips of a u64 to another thread and back, both spinning: medians of {repeats} runs of {rounds}"
        ),
        table,
        notes: vec!["Reading the clock is part of each.".to_owned()],
        json: figures.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_go_astray_are_an_error() {
        let mut key = 0;
        let swapped = one_by_one::<u64>(
            100,
            |_| true,
            move || {
                key += 1;
                Some(if key == 50 { 7 } else { key - 1 })
            },
        );
        assert!(swapped.unwrap_err().to_string().contains("lost, doubled or swapped"));
        assert!(from_many(9, 3, |_| |_| true, || Some(0)).is_err());
        assert!(round_trips(3, |_| (), || Some(1), || Some(1), |_| ()).is_err());
    }

    #[test]
    fn every_ring_carries_every_entry() {
        let contenders = [
            ring::<u64>,
            ring_slices::<u64>,
            rtrb::<u64>,
            rtrb_slices::<u64>,
            array_queue::<u64>,
            channel::<u64>,
        ];
        assert!(contenders.iter().all(|run| run(10_000).is_ok()));
        assert!([mpsc_ring, mpsc_array_queue, mpsc_channel].iter().all(|run| run(9_000, 3).is_ok()));
        assert_eq!(ring_round_trips(100).unwrap().len(), 100);
    }
}
