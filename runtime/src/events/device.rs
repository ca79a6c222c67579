//! What the device itself tells of its descriptors: their LIFE events (R23), by its own clock.

use serde::{Deserialize, Serialize};

use super::latency::{Bound, Latency, LatencyReport};
use doorbell_contract::HwEvent;

/// The parts of a descriptor's life on the device, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSpan {
    /// Fetched → begun by a worker.
    Queued,
    /// Fetched → first token; of a descriptor that has none its end.
    FirstToken,
    /// Begun → its end known.
    Ran,
    /// Its end known → its completion visible.
    Posted,
}

impl DeviceSpan {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Queued, Self::FirstToken, Self::Ran, Self::Posted];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "FETCHED→STARTED",
            Self::FirstToken => "FETCHED→FIRST_TOKEN",
            Self::Ran => "STARTED→ENDED",
            Self::Posted => "ENDED→VISIBLE",
        }
    }

    /// How long it was in this life, in ticks.
    pub fn of(self, life: &HwEvent) -> u32 {
        match self {
            Self::Queued => life.start,
            Self::FirstToken => life.first_token,
            Self::Ran => life.ended.saturating_sub(life.start),
            Self::Posted => life.visible.saturating_sub(life.ended),
        }
    }
}

/// The unit of the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickRate(
    /// CAP_TICK_HZ.
    pub u32,
);

impl TickRate {
    /// Nanoseconds that so many ticks take; the ticks themselves, where they are of no fixed length.
    pub fn nanos(self, ticks: u64) -> u64 {
        match u128::from(self.0) {
            0 => ticks,
            hz => u64::try_from(u128::from(ticks) * 1_000_000_000 / hz).unwrap_or(u64::MAX),
        }
    }

    /// What [`nanos`](Self::nanos) gives.
    pub const fn unit(self) -> Unit {
        if self.0 == 0 { Unit::Ticks } else { Unit::Nanoseconds }
    }
}

/// What a device's figures count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Ticks of a clock that has no fixed rate, as the golden model's.
    #[default]
    Ticks,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
}

/// Histograms of the spans.
#[derive(Debug)]
pub(super) struct DeviceLives {
    rate: TickRate,
    spans: [Latency; DeviceSpan::ALL.len()],
}

impl DeviceLives {
    pub fn new(rate: TickRate) -> Self {
        Self { rate, spans: DeviceSpan::ALL.map(|_| Latency::new()) }
    }

    pub fn take(&mut self, life: &HwEvent) {
        for span in DeviceSpan::ALL {
            self.spans[span as usize].record(self.rate.nanos(span.of(life).into()));
        }
    }

    pub fn report(&self) -> DeviceReport {
        let spans = DeviceSpan::ALL.iter().zip(&self.spans);
        let spans = spans.map(|(span, latency)| SpanReport::of(latency.report(span.name(), Bound::Exact)));
        DeviceReport { unit: self.rate.unit(), rate: self.rate, dropped: 0, spans: spans.collect() }
    }
}

/// What the device told of its descriptors.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct DeviceReport {
    /// That of the figures in `spans`.
    pub unit: Unit,
    /// CAP_TICK_HZ.
    pub rate: TickRate,
    /// Lives that found the ring between the threads full; what the device dropped, its EVENTS_DROPPED says.
    pub dropped: u64,
    /// In the order of [`DeviceSpan::ALL`].
    pub spans: Vec<SpanReport>,
}

/// What is known of a part of the descriptors' lives, in the [unit](DeviceReport::unit) of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanReport {
    /// From what to what.
    pub name: String,
    /// Descriptors that had it.
    pub count: u64,
    /// All of them together.
    pub sum: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
}

impl SpanReport {
    /// The histogram counts whatever it is given.
    pub(super) fn of(counted: LatencyReport) -> Self {
        let LatencyReport { name, count, sum_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns, .. } = counted;
        Self { name, count, sum: sum_ns, p50: p50_ns, p90: p90_ns, p99: p99_ns, p99_9: p99_9_ns, max: max_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r23_spans_are_those_of_the_events() {
        let life = HwEvent { start: 10, first_token: 17, ended: 40, visible: 45, ..HwEvent::default() };
        assert_eq!(DeviceSpan::ALL.map(|span| span.of(&life)), [10, 17, 30, 5]);
        let mut lives = DeviceLives::new(TickRate(250_000_000));
        lives.take(&life);
        let report = lives.report();
        assert_eq!(report.spans.iter().map(|span| span.max).collect::<Vec<_>>(), [40, 68, 120, 20]);
        assert!(report.unit == Unit::Nanoseconds && report.spans.iter().all(|span| span.count == 1));
        // A device without a clock of its own: ticks.
        let mut lives = DeviceLives::new(TickRate(0));
        lives.take(&life);
        let report = lives.report();
        assert_eq!(report.spans.iter().map(|span| span.sum).collect::<Vec<_>>(), [10, 17, 30, 5]);
        // No key says nanoseconds of ticks.
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["unit"], "ticks");
        assert!(!json.to_string().contains("_ns"), "{json}");
    }

    #[test]
    fn ticks_become_nanoseconds_without_wrapping() {
        assert_eq!(TickRate(1).nanos(u64::MAX), u64::MAX);
        assert_eq!(TickRate(1_000_000_000).nanos(u64::MAX), u64::MAX);
        assert_eq!(TickRate(3).nanos(1), 333_333_333);
    }
}
