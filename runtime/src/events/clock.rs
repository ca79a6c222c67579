//! The clock of events.

/// A moment: counts of the [`Clock`] that read it, comparable between threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Ticks(u64);

impl Ticks {
    /// The moment at this count.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Its count.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Counts from `earlier` to here; 0 if it is not earlier.
    pub const fn since(self, earlier: Ticks) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Reads the time stamp counter where that is invariant, else the operating system's monotonic clock; converts counts
/// into nanoseconds off the hot path. All clocks of a process share one calibration, made by the first.
#[derive(Clone, Debug)]
pub struct Clock {
    inner: quanta::Clock,
    origin: Ticks,
}

impl Clock {
    /// Calibrates, which takes up to 200 ms the first time; now is the origin.
    pub fn new() -> Self {
        Self::over(quanta::Clock::new())
    }

    /// A clock whose counts are nanoseconds from 0: for events whose times are made up.
    pub fn simulated() -> Self {
        Self::over(quanta::Clock::mock().0)
    }

    fn over(inner: quanta::Clock) -> Self {
        let origin = Ticks(inner.raw());
        Self { inner, origin }
    }

    /// The time: about as dear as one instruction that reads the counter.
    #[inline]
    pub fn now(&self) -> Ticks {
        Ticks(self.inner.raw())
    }

    /// When the clock was made.
    pub fn origin(&self) -> Ticks {
        self.origin
    }

    /// Nanoseconds from one moment to another; 0 if they are the other way round.
    pub fn nanos(&self, from: Ticks, to: Ticks) -> u64 {
        self.inner.delta_as_nanos(from.0, to.0)
    }

    /// Nanoseconds that a count of ticks takes.
    pub fn ticks_as_nanos(&self, ticks: u64) -> u64 {
        self.inner.delta_as_nanos(0, ticks)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// No bound on how long anything takes: both clocks see the same sleep, and differ by less than half of it.
    #[test]
    fn counts_convert_to_the_systems_nanoseconds() {
        let clock = Clock::new();
        let (outer, from) = (Instant::now(), clock.now());
        let inner = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let inner = inner.elapsed().as_nanos() as u64;
        let to = clock.now();
        let outer = outer.elapsed().as_nanos() as u64;
        let nanos = clock.nanos(from, to);
        assert!(inner - inner / 100 <= nanos && nanos <= outer + outer / 100, "{inner} {nanos} {outer}");
        assert_eq!(clock.nanos(to, from), 0);
    }
}
