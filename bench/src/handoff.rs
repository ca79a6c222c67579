//! What it costs to hand a descriptor to another thread, and to tell another thread that there is something to do.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::HwDesc;
use rtrb::{Consumer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{read, write};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

use crate::BenchError;
use crate::{Section, median, table};

/// Descriptors that may wait.
const CAPACITY: usize = 1024;

/// Puts the calling thread on the `nth` processor that the process may use, if there is another for the peer.
fn pin(nth: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    if let [_, _, ..] = cpus[..] {
        let mut set = CpuSet::new();
        set.set(cpus[nth % cpus.len()]);
        // Refused, the threads stay where the system puts them: slower, but no less right.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Runs until `step` has something. Now and then it lets others run: there may be more threads than processors.
fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let mut waits = 0u32;
    loop {
        if let Some(value) = step() {
            return value;
        }
        waits += 1;
        if waits.is_multiple_of(1 << 12) { thread::yield_now() } else { spin_loop() }
    }
}

/// Descriptors per second from one thread to another. The popper is looked at: none may be lost, doubled or swapped.
fn transfer(
    count: u64,
    mut push: impl FnMut(HwDesc) -> bool + Send,
    mut pop: impl FnMut() -> Option<HwDesc> + Send,
) -> Result<f64, BenchError> {
    let ready = AtomicU32::new(0);
    let meet = || {
        ready.fetch_add(1, Ordering::AcqRel);
        until(|| (ready.load(Ordering::Acquire) == 2).then_some(()));
    };
    let elapsed = thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            meet();
            for key in 0..count {
                until(|| push(HwDesc { user_data: key, ..HwDesc::default() }).then_some(()));
            }
        });
        let popper = scope.spawn(|| {
            pin(0);
            meet();
            let start = Instant::now();
            // All are taken in any case: the pusher has to come to its end.
            let wrong = (0..count).filter(|&key| until(&mut pop).user_data != key).count();
            (wrong == 0).then(|| start.elapsed())
        });
        popper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let elapsed = elapsed.ok_or_else(|| BenchError::failed("descriptors were lost, doubled or swapped"))?;
    Ok(count as f64 / elapsed.as_secs_f64())
}

/// How long each of `rounds` round trips took, sorted: the calling side sends a key and waits until it comes back.
pub(crate) fn round_trips(
    rounds: u64,
    mut ask: impl FnMut(u64) + Send,
    mut heard: impl FnMut() -> Option<u64> + Send,
    mut asked: impl FnMut() -> Option<u64> + Send,
    mut answer: impl FnMut(u64) + Send,
) -> Result<Vec<Duration>, BenchError> {
    let times = thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            (0..rounds).for_each(|_| answer(until(&mut asked)));
        });
        let asker = scope.spawn(move || {
            pin(0);
            let mut times = Vec::with_capacity(rounds as usize);
            let mut right = true;
            for key in 0..rounds {
                let start = Instant::now();
                ask(key);
                right &= until(&mut heard) == key;
                times.push(start.elapsed());
            }
            right.then_some(times)
        });
        asker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let mut times = times.ok_or_else(|| BenchError::failed("the answer was to another question"))?;
    times.sort_unstable();
    Ok(times)
}

/// The time that `share` of the sorted times do not exceed, in ns.
pub(crate) fn quantile(times: &[Duration], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e9
}

/// A queue under a lock, as much as its users have to wait for each other.
struct Locked {
    queue: Mutex<VecDeque<HwDesc>>,
    /// Told at each push; a pop that finds nothing sleeps on it.
    wake: Option<Condvar>,
}

impl Locked {
    fn new(wake: Option<Condvar>) -> Self {
        Self { queue: Mutex::new(VecDeque::with_capacity(CAPACITY)), wake }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<HwDesc>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, desc: HwDesc) -> bool {
        let mut queue = self.lock();
        if queue.len() == CAPACITY {
            return false;
        }
        queue.push_back(desc);
        drop(queue);
        self.wake.iter().for_each(Condvar::notify_one);
        true
    }

    fn pop(&self) -> Option<HwDesc> {
        let mut queue = self.lock();
        if let Some(wake) = &self.wake {
            while queue.is_empty() {
                queue = wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
        queue.pop_front()
    }
}

fn through_ring(count: u64) -> Result<f64, BenchError> {
    let (mut producer, mut consumer) = RingBuffer::new(CAPACITY);
    transfer(count, move |desc| producer.push(desc).is_ok(), move || consumer.pop().ok())
}

fn through_lock(count: u64, wake: Option<Condvar>) -> Result<f64, BenchError> {
    let queue = Locked::new(wake);
    transfer(count, |desc| queue.push(desc), || queue.pop())
}

/// Descriptors of 64 bytes to another thread, through the ring and through locks.
pub fn submission(quick: bool) -> Result<Section, BenchError> {
    let (count, repeats) = if quick { (1 << 16, 3) } else { (1 << 19, 15) };
    type Run = fn(u64) -> Result<f64, BenchError>;
    let ways: [(&str, Run); 3] = [
        ("rtrb, the runtime's ring", through_ring),
        ("Mutex<VecDeque>, polled", |count| through_lock(count, None)),
        ("Mutex<VecDeque> and Condvar", |count| through_lock(count, Some(Condvar::new()))),
    ];
    let mut rates = [const { vec![] }; 3];
    for _ in 0..repeats {
        for (rates, (_, run)) in rates.iter_mut().zip(ways) {
            rates.push(run(count)?);
        }
    }
    let mut table = table(["descriptors to another thread", "per second", "each", "of the ring"], 1);
    let mut figures = vec![];
    for ((name, _), own) in ways.iter().zip(&rates) {
        let rate = median(own.iter().copied());
        let ratio = median(own.iter().zip(&rates[0]).map(|(rate, ring)| rate / ring));
        table.add_row([
            (*name).to_owned(),
            format!("{:.2} M", rate / 1e6),
            format!("{:.1} ns", 1e9 / rate),
            format!("{ratio:.3}"),
        ]);
        figures.push(json!({ "way": name, "per_second": rate, "of_ring": ratio }));
    }
    Ok(Section {
        heading: format!(
            "Handing descriptors of 64 bytes to another thread, {CAPACITY} at most under way: median of {repeats} runs \
             of {count}"
        ),
        table,
        notes: vec![],
        json: figures.into(),
    })
}

/// Round trips by eventfd: each thread sleeps in `read` until the other writes.
fn eventfds(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let new = || eventfd(0, EventfdFlags::CLOEXEC).map_err(BenchError::input);
    let (there, back) = (new()?, new()?);
    // The counter of an eventfd is reset by reading it, and must not be 0.
    let tell = |fd: &OwnedFd, key: u64| {
        // It takes 8 bytes or fails, and it fails at 2^64 - 1 alone.
        let _ = write(fd, &(key + 1).to_ne_bytes());
    };
    let told = |fd: &OwnedFd| {
        let mut count = [0; 8];
        read(fd, &mut count).ok().map(|_| u64::from_ne_bytes(count) - 1)
    };
    round_trips(rounds, |key| tell(&there, key), || told(&back), || told(&there), |key| tell(&back, key))
}

/// Round trips by a lock and a condition variable each way.
fn condvars(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (there, back) = (Locked::new(Some(Condvar::new())), Locked::new(Some(Condvar::new())));
    let push = |queue: &Locked, key| {
        // At most one is under way.
        let _ = queue.push(HwDesc { user_data: key, ..HwDesc::default() });
    };
    let pop = |queue: &Locked| queue.pop().map(|desc| desc.user_data);
    round_trips(rounds, |key| push(&there, key), || pop(&back), || pop(&there), |key| push(&back, key))
}

/// Round trips by two rings, each looked into by `poll`.
fn rings(rounds: u64, poll: fn(&mut Consumer<u64>) -> Option<u64>) -> Result<Vec<Duration>, BenchError> {
    let (mut ask, mut asked) = RingBuffer::new(CAPACITY);
    let (mut answer, mut heard) = RingBuffer::new(CAPACITY);
    round_trips(
        rounds,
        // At most one is under way.
        move |key| _ = ask.push(key),
        move || poll(&mut heard),
        move || poll(&mut asked),
        move |key| _ = answer.push(key),
    )
}

fn spinning(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    rings(rounds, |ring| ring.pop().ok())
}

/// Round trips between threads that look now and then, and let others run in between.
fn polling(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    rings(rounds, |ring| {
        thread::yield_now();
        ring.pop().ok()
    })
}

/// What a step costs that another thread has to be told of, and to answer.
pub fn telling(quick: bool) -> Result<Section, BenchError> {
    let (rounds, repeats) = if quick { (1 << 10, 3) } else { (1 << 13, 9) };
    type Run = fn(u64) -> Result<Vec<Duration>, BenchError>;
    let ways: [(&str, Run); 4] = [
        ("rings, both spin", spinning),
        ("rings, both poll and yield", polling),
        ("eventfd, both sleep", eventfds),
        ("Mutex and Condvar, both sleep", condvars),
    ];
    let mut quantiles = [const { [vec![], vec![]] }; 4];
    for _ in 0..repeats {
        for (quantiles, (_, run)) in quantiles.iter_mut().zip(ways) {
            let times = run(rounds)?;
            quantiles[0].push(quantile(&times, 0.5));
            quantiles[1].push(quantile(&times, 0.99));
        }
    }
    let spinning = median(quantiles[0][0].iter().copied());
    let mut table = table(["a step that another thread answers", "p50", "p99", "of spinning"], 1);
    let mut figures = vec![];
    for ((name, _), [p50, p99]) in ways.into_iter().zip(quantiles) {
        let (p50, p99) = (median(p50), median(p99));
        let ratio = p50 / spinning;
        table.add_row([
            name.to_owned(),
            format!("{p50:.0} ns"),
            format!("{p99:.0} ns"),
            format!("{ratio:.1}"),
        ]);
        figures.push(json!({ "way": name, "p50_ns": p50, "p99_ns": p99 }));
    }
    Ok(Section {
        heading: format!(
            "Telling another thread, and hearing from it: medians of {repeats} runs of {rounds} steps"
        ),
        table,
        notes: vec!["Reading the clock is part of each step.".to_owned()],
        json: figures.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_carries_every_descriptor() {
        assert!(through_ring(5_000).is_ok());
        assert!(through_lock(5_000, None).is_ok());
        assert!(through_lock(5_000, Some(Condvar::new())).is_ok());
        for way in [eventfds, condvars, polling, spinning] {
            assert_eq!(way(50).unwrap().len(), 50);
        }
    }

    #[test]
    fn what_goes_astray_is_an_error() {
        let mut key = 0;
        let swapped = transfer(
            100,
            |_| true,
            move || {
                key += 1;
                Some(HwDesc { user_data: if key == 50 { 7 } else { key - 1 }, ..HwDesc::default() })
            },
        );
        assert!(swapped.unwrap_err().to_string().contains("lost, doubled or swapped"));
        assert!(round_trips(3, |_| (), || Some(1), || Some(1), |_| ()).is_err());
    }
}
