//! Histograms of durations.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{Clock, Ticks};

/// Upper bounds of the buckets of [`LatencyReport::buckets`], in nanoseconds; one more bucket has none.
pub const BUCKET_BOUNDS: [u64; 28] = {
    let mut bounds = [0; 28];
    let (mut decade, mut k) = (100, 0);
    while k < 28 {
        bounds[k] = decade * [1, 2, 5][k % 3];
        if k % 3 == 2 {
            decade *= 10;
        }
        k += 1;
    }
    bounds
};

/// Longest duration that is told apart, in nanoseconds: an hour. Longer ones count as that.
const LONGEST: u64 = 3_600_000_000_000;

/// What a measured duration says of the true one, where an end of it is a moment of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Both ends are the host's own.
    Exact,
    /// The true end was earlier: the true duration is at most the measured one.
    AtMost,
    /// The true beginning was earlier: the true duration is at least the measured one.
    AtLeast,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bound::Exact => "=",
            Bound::AtMost => "≤",
            Bound::AtLeast => "≥",
        })
    }
}

/// A histogram of durations with a relative error below 0.1 %; allocates only when made.
#[derive(Clone, Debug)]
pub(super) struct Latency {
    histogram: Histogram<u64>,
    sum: u64,
    /// Events whose other end never came, or came when it could no longer be told that it was the other end.
    pub(super) unpaired: u64,
}

impl Latency {
    /// An empty one.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are constants that fit");
        Self { histogram, sum: 0, unpaired: 0 }
    }

    /// Counts one duration.
    pub fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos);
        self.sum = self.sum.saturating_add(nanos);
    }

    /// Counts the duration up to `to`, or, if nobody knows since when, an end without a beginning.
    pub(super) fn between(&mut self, clock: &Clock, from: Option<Ticks>, to: Ticks) {
        match from {
            Some(from) => self.record(clock.nanos(from, to)),
            None => self.unpaired += 1,
        }
    }

    /// Percentiles and buckets as they are now.
    pub fn report(&self, name: &str, bound: Bound) -> LatencyReport {
        let mut buckets = vec![0; BUCKET_BOUNDS.len() + 1];
        for value in self.histogram.iter_recorded() {
            let bucket = BUCKET_BOUNDS.partition_point(|bound| *bound < value.value_iterated_to());
            buckets[bucket] += value.count_at_value();
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        LatencyReport {
            name: name.to_owned(),
            bound,
            count: self.histogram.len(),
            unpaired: self.unpaired,
            sum_ns: self.sum,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p99_9_ns: at(0.999),
            max_ns: self.histogram.max(),
            buckets,
        }
    }
}

/// What is known of a kind of duration; times in nanoseconds, 0 if there was none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// From what to what, or which stage.
    pub name: String,
    /// What the figures say of the true durations.
    pub bound: Bound,
    /// Durations measured.
    pub count: u64,
    /// Events that lack the other end, because it was dropped, never happened, or came too late.
    pub unpaired: u64,
    /// All of them together.
    pub sum_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p99_9_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many lie in each bucket of [`BUCKET_BOUNDS`] and above the last.
    pub buckets: Vec<u64>,
}

/// A duration for people: three digits and a unit.
pub fn duration(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        1_000_000_000..10_000_000_000_000 => (nanos as f64 / 1e9, "s"),
        _ => (nanos as f64 / 3.6e12, "h"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}
