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

    /// Whether ticks have a length.
    pub const fn is_time(self) -> bool {
        self.0 != 0
    }
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
        let spans = spans.map(|(span, latency)| latency.report(span.name(), Bound::Exact));
        DeviceReport { rate: self.rate, dropped: 0, spans: spans.collect() }
    }
}

/// What the device told of its descriptors.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Where it is 0, the figures of `spans` are ticks, whatever they are called.
    pub rate: TickRate,
    /// Lives that found the ring between the threads full; what the device dropped, its EVENTS_DROPPED says.
    pub dropped: u64,
    /// In the order of [`DeviceSpan::ALL`].
    pub spans: Vec<LatencyReport>,
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
        assert_eq!(report.spans.iter().map(|span| span.max_ns).collect::<Vec<_>>(), [40, 68, 120, 20]);
        assert!(report.spans.iter().all(|span| span.count == 1 && span.bound == Bound::Exact));
        // A device without a clock of its own: ticks.
        let mut lives = DeviceLives::new(TickRate(0));
        lives.take(&life);
        assert_eq!(lives.report().spans.iter().map(|span| span.sum_ns).collect::<Vec<_>>(), [10, 17, 30, 5]);
    }

    #[test]
    fn ticks_become_nanoseconds_without_wrapping() {
        assert_eq!(TickRate(1).nanos(u64::MAX), u64::MAX);
        assert_eq!(TickRate(1_000_000_000).nanos(u64::MAX), u64::MAX);
        assert_eq!(TickRate(3).nanos(1), 333_333_333);
    }
}
