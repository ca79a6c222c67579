//! What it costs to hand a descriptor to another thread, and to tell another thread that there is something to do.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use doorbell_contract::HwDesc;
use doorbell_runtime::ring::spsc;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{read, write};
use serde_json::json;

use crate::BenchError;
use crate::rings::{one_by_one, quantile, ring_round_trips, round_trips};
use crate::{Section, median, table};

/// Descriptors that may wait.
const CAPACITY: usize = 1024;

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
    let (mut producer, mut consumer) = spsc::channel(CAPACITY).map_err(BenchError::input)?;
    one_by_one::<HwDesc>(count, move |desc| producer.push(desc).is_ok(), move || consumer.pop())
}

fn through_lock(count: u64, wake: Option<Condvar>) -> Result<f64, BenchError> {
    let queue = Locked::new(wake);
    one_by_one::<HwDesc>(count, |desc| queue.push(desc), || queue.pop())
}

/// Descriptors of 64 bytes to another thread, through the ring and through locks.
pub fn submission(quick: bool) -> Result<Section, BenchError> {
    let (count, repeats) = if quick { (1 << 16, 3) } else { (1 << 19, 15) };
    type Run = fn(u64) -> Result<f64, BenchError>;
    let ways: [(&str, Run); 3] = [
        ("spsc ring", through_ring),
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

/// Round trips between threads that look now and then, and let others run in between.
fn polling(rounds: u64) -> Result<Vec<Duration>, BenchError> {
    let (mut ask, mut asked) = spsc::channel(CAPACITY).map_err(BenchError::input)?;
    let (mut answer, mut heard) = spsc::channel(CAPACITY).map_err(BenchError::input)?;
    fn poll(consumer: &mut spsc::Consumer<u64>) -> Option<u64> {
        std::thread::yield_now();
        consumer.pop()
    }
    round_trips(
        rounds,
        // At most one is under way.
        move |key| {
            let _ = ask.push(key);
        },
        move || poll(&mut heard),
        move || poll(&mut asked),
        move |key| {
            let _ = answer.push(key);
        },
    )
}

/// What a step costs that another thread has to be told of, and to answer.
pub fn telling(quick: bool) -> Result<Section, BenchError> {
    let (rounds, repeats) = if quick { (1 << 10, 3) } else { (1 << 13, 9) };
    type Run = fn(u64) -> Result<Vec<Duration>, BenchError>;
    let ways: [(&str, Run); 4] = [
        ("spsc rings, both spin", ring_round_trips),
        ("spsc rings, both poll and yield", polling),
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
        assert!(through_lock(5_000, None).is_ok());
        assert!(through_lock(5_000, Some(Condvar::new())).is_ok());
        for way in [eventfds, condvars, polling] {
            assert_eq!(way(50).unwrap().len(), 50);
        }
    }
}
