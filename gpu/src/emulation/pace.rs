//! How fast the threads go: they rest when there is nothing to do, go on when the host gives the device time, and are
//! delayed at random under stress.

use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::state::Shared;

/// Looks in vain before a thread rests.
const LOOKS: u32 = 32;
/// How long a thread rests at most.
const REST: Duration = Duration::from_micros(500);
/// How often the host lets every thread look, one after the other, when it gives the device time: enough for news to pass
/// through all roles and back.
const ROUNDS: u32 = 4;
/// How long the host waits for them at most (R15).
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a fault that is a matter of timing holds its window open.
const WINDOW: Duration = Duration::from_millis(2);

/// How often each thread has looked for something to do.
#[derive(Debug)]
pub(super) struct Beats(Vec<AtomicU64>);

impl Beats {
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits until every thread has looked at what the others had done, [`ROUNDS`] times over.
    pub fn advance(&self, threads: &[JoinHandle<()>]) {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // The look that is under way may have missed something; the one behind it does not.
            let goals: Vec<u64> = self.0.iter().map(|beat| beat.load(Ordering::Relaxed) + 2).collect();
            for ((beat, goal), thread) in self.0.iter().zip(goals).zip(threads) {
                while beat.load(Ordering::Relaxed) < goal
                    && !thread.is_finished()
                    && start.elapsed() < PATIENCE
                {
                    thread.thread().unpark();
                    thread::yield_now();
                }
            }
        }
    }
}

/// The pace of one thread.
pub(super) struct Pace<'a> {
    shared: &'a Shared,
    seat: usize,
    random: u64,
}

impl<'a> Pace<'a> {
    pub fn new(shared: &'a Shared, seat: usize) -> Self {
        Self { shared, seat, random: shared.options.seed.wrapping_mul(0x1000).wrapping_add(seat as u64) }
    }

    /// A number below `bound`: splitmix64 of S. Vigna (public domain).
    pub fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u64::from((z ^ z >> 31) as u32) * u64::from(bound)) >> 32) as u32
    }

    /// Between two steps: under stress somebody else may come first.
    pub fn step(&mut self) {
        if self.shared.options.stress && self.below(6) == 0 {
            self.delay();
        }
    }

    /// Lets others come first, the host among them: it does not wait for who is delayed.
    pub fn delay(&mut self) {
        for _ in 0..self.below(6) {
            self.beat();
            match self.below(4) {
                0 => thread::sleep(Duration::from_micros(20)),
                1 => (0..self.below(2000)).for_each(|_| std::hint::spin_loop()),
                _ => thread::yield_now(),
            }
        }
    }

    /// Holds the window of `fault` open, if the emulation has it.
    pub fn window(&self, fault: Fault) {
        let start = Instant::now();
        while self.has(fault) && start.elapsed() < WINDOW {
            self.beat();
            thread::yield_now();
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.shared.options.fault == Some(fault)
    }

    /// Notes that the thread lives.
    pub fn beat(&self) {
        self.shared.beats.0[self.seat].fetch_add(1, Ordering::Relaxed);
        if self.shared.dead.load(Ordering::Relaxed) {
            // Another thread has panicked, and said so; this one would wait for it.
            panic::resume_unwind(Box::new(()));
        }
    }

    /// The wait for a change by somebody else: short first, then resting.
    pub fn relax(&self, spins: &mut u32) {
        self.beat();
        *spins += 1;
        if *spins < LOOKS { thread::yield_now() } else { thread::park_timeout(REST) }
    }
}

/// Tells the other threads if this one panics.
pub(super) struct Dead<'a>(pub &'a Shared);

impl Drop for Dead<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.0.dead.swap(true, Ordering::Relaxed) {
            let name = thread::current().name().unwrap_or("a thread").to_owned();
            self.0.complain(format!("{name} panicked"));
        }
    }
}
