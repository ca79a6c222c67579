//! The device's moments on the host's clock.
//!
//! A device whose clock can be read ([`Device::ticks`](doorbell_host::Device::ticks)) lives in the time that it is given: what it did
//! between two readings happened between the two times of the host at which they were taken. Of any other device every descriptor is an exchange: its slot is
//! read after the doorbell was rung, and its completion is seen after it was visible. So the difference of the two clocks lies above every
//! *rung - read* and below every *seen - visible*. Half the distance of the nearest two is the error.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::device::SpanReport;
use super::latency::{Bound, Latency};
use super::{Clock, TickRate, Ticks};
use crate::rollout::RolloutId;
use doorbell_contract::HwEvent;

/// Descriptors, and nanoseconds, whose exchanges are taken together: two clocks that run apart by 50 ppm do so by 1 µs meanwhile.
const WINDOW: usize = 4096;
const WINDOW_NANOS: i64 = 20_000_000;
/// Readings of the device's clock that are kept.
const READINGS: usize = 4096;

/// A descriptor that came through the device, as both sides saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLife {
    /// What the device tells.
    pub event: HwEvent,
    /// What the host knows of it, if it is the DECODE of a rollout.
    pub host: Option<HostTimes>,
}

/// When the host did what it did with a DECODE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTimes {
    /// Whose it is.
    pub rollout: RolloutId,
    /// Its number.
    pub descriptor: u32,
    /// It was handed to the submission queue.
    pub posted: Ticks,
    /// It was about to be written, and the doorbell to be rung.
    pub ringing: Ticks,
    /// Its completion was handled.
    pub polled: Ticks,
}

/// What the hot thread passes on of the device and its clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    Life(DeviceLife),
    /// The device's clock, and when it was read.
    Reading {
        ticks: u64,
        time: Ticks,
    },
    /// The trajectory of a rollout is stored, whose last descriptor this is.
    Stored {
        rollout: RolloutId,
        descriptor: u32,
        time: Ticks,
    },
}

/// A life with its moments on the host's clock, in nanoseconds since the clock's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedLife {
    /// As it was told.
    pub life: DeviceLife,
    /// Its slot had been read, a worker began, its end was known, its completion was visible; `None` if the clocks could not be compared.
    pub moments: Option<[u64; 4]>,
}

/// Spans that have an end on each side.
const SPANS: [&str; 3] = ["POSTED→FETCHED", "VISIBLE→POLLED", "VISIBLE→TRAJECTORY_DONE"];

/// Maps lives, and measures.
#[derive(Debug)]
pub(super) struct OneClock {
    clock: Clock,
    rate: TickRate,
    readings: VecDeque<(u64, u64)>,
    /// Lives whose clock is not compared yet, by queue pair: those of several devices have several clocks.
    windows: HashMap<u8, Vec<DeviceLife>>,
    spans: [Latency; SPANS.len()],
    /// By slot: the last descriptor, and when its completion was visible; and the same of what was stored.
    visible: HashMap<u32, (RolloutId, u32, u64)>,
    stored: HashMap<u32, (RolloutId, u32, u64)>,
    error: u64,
    unmapped: u64,
}

impl OneClock {
    pub fn new(clock: Clock, rate: TickRate) -> Self {
        let spans = std::array::from_fn(|_| Latency::new());
        Self {
            clock,
            rate,
            readings: VecDeque::new(),
            windows: HashMap::new(),
            spans,
            visible: HashMap::new(),
            stored: HashMap::new(),
            error: 0,
            unmapped: 0,
        }
    }

    fn nanos(&self, time: Ticks) -> u64 {
        self.clock.nanos(self.clock.origin(), time)
    }

    /// Takes in what the hot thread notes, and shows each life to `see` once its clock is known.
    pub fn take(&mut self, note: Note, see: &mut dyn FnMut(&MappedLife)) {
        match note {
            Note::Reading { ticks, time } => {
                let reading = (ticks, self.nanos(time));
                // The first and the last of those that say the same.
                let same = |back: usize| {
                    self.readings.len().checked_sub(back).is_some_and(|at| self.readings[at].0 == ticks)
                };
                if same(1) && same(2) {
                    self.readings.pop_back();
                }
                if self.readings.len() == READINGS {
                    self.readings.pop_front();
                }
                self.readings.push_back(reading);
            }
            Note::Stored { rollout, descriptor, time } => {
                let time = self.nanos(time);
                self.stored.insert(rollout.slot(), (rollout, descriptor, time));
                self.join(rollout.slot());
            }
            Note::Life(life) if !self.readings.is_empty() => {
                let moments = moments(&life.event).map(|tick| self.between_readings(tick));
                self.enter(life, moments, see);
            }
            Note::Life(life) => {
                let window = self.windows.entry(life.event.queue_id).or_default();
                window.push(life);
                let span = self.rate.nanos(life.event.stamp.saturating_sub(window[0].event.stamp));
                if window.len() >= WINDOW || span >= WINDOW_NANOS as u64 {
                    self.close(life.event.queue_id, see);
                }
            }
        }
    }

    /// Maps what still waits for more exchanges.
    pub fn finish(&mut self, see: &mut dyn FnMut(&MappedLife)) {
        let queues: Vec<u8> = self.windows.keys().copied().collect();
        queues.into_iter().for_each(|queue| self.close(queue, see));
    }

    /// When the device's clock read `tick`, and by how much that can be wrong.
    fn between_readings(&self, tick: u64) -> Option<(u64, u64)> {
        let at_least = self.readings.partition_point(|&(ticks, _)| ticks < tick);
        let above = self.readings.partition_point(|&(ticks, _)| ticks <= tick);
        let next = self.readings.get(at_least)?;
        // The last reading below, or the first of all; the first above, or the last of all: what they say may have been reached just then.
        let first = Some(next).filter(|next| next.0 == tick);
        let &(from, from_time) = at_least.checked_sub(1).and_then(|at| self.readings.get(at)).or(first)?;
        let &(_, to_time) = self.readings.get(above).or(self.readings.back())?;
        let place = if next.0 == tick {
            next.1
        } else {
            let (spent, all) = (u128::from(tick - from), u128::from(next.0 - from));
            from_time + (u128::from(next.1 - from_time) * spent / all) as u64
        };
        Some((place, to_time - from_time))
    }

    /// Compares the clocks by all exchanges of a window.
    fn close(&mut self, queue: u8, see: &mut dyn FnMut(&MappedLife)) {
        let lives = self.windows.remove(&queue).unwrap_or_default();
        let rate = self.rate;
        let at = |tick: u64| rate.nanos(tick) as i64;
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        for DeviceLife { event, host } in &lives {
            let Some(host) = host else { continue };
            let [fetched, .., visible] = moments(event);
            low = low.max(self.nanos(host.ringing) as i64 - at(fetched));
            high = high.min(self.nanos(host.polled) as i64 - at(visible));
        }
        let known = rate.0 > 0 && low != i64::MIN;
        let (offset, error) =
            if known { (low + (high - low) / 2, (high - low).unsigned_abs().div_ceil(2)) } else { (0, 0) };
        for life in lives {
            let moved = |tick: u64| known.then(|| ((at(tick) + offset).max(0) as u64, error));
            let moments = moments(&life.event).map(moved);
            self.enter(life, moments, see);
        }
    }

    /// Measures a life whose moments are known, each with its error.
    fn enter(
        &mut self,
        life: DeviceLife,
        moments: [Option<(u64, u64)>; 4],
        see: &mut dyn FnMut(&MappedLife),
    ) {
        let [Some(fetched), Some(began), Some(ended), Some(visible)] = moments else {
            self.unmapped += 1;
            see(&MappedLife { life, moments: None });
            return;
        };
        self.error =
            [fetched, began, ended, visible].iter().fold(self.error, |most, &(_, error)| most.max(error));
        // No earlier than the doorbell, no later than the look.
        let host = life.host.map(|host| (host, self.nanos(host.ringing), self.nanos(host.polled)));
        let (first, last) = host.map_or((0, u64::MAX), |(_, ringing, polled)| (ringing, polled.max(ringing)));
        let times = [fetched, began, ended, visible].map(|(time, _)| time.clamp(first, last));
        if let Some((host, _, polled)) = host {
            self.spans[0].record(times[0].saturating_sub(self.nanos(host.posted)));
            self.spans[1].record(polled.saturating_sub(times[3]));
            self.visible.insert(host.rollout.slot(), (host.rollout, host.descriptor, times[3]));
            self.join(host.rollout.slot());
        }
        see(&MappedLife { life, moments: Some(times) });
    }

    /// Measures a trajectory, once both its last descriptor and its end are known.
    fn join(&mut self, slot: u32) {
        let (Some(&(rollout, descriptor, from)), Some(&(stored, last, to))) =
            (self.visible.get(&slot), self.stored.get(&slot))
        else {
            return;
        };
        if (rollout, descriptor) == (stored, last) {
            self.spans[2].record(to.saturating_sub(from));
            self.stored.remove(&slot);
        }
    }

    pub fn report(&self) -> OneClockReport {
        let spans = SPANS.iter().zip(&self.spans);
        OneClockReport {
            error_ns: self.error,
            unmapped: self.unmapped,
            spans: spans.map(|(name, latency)| SpanReport::of(latency.report(name, Bound::Exact))).collect(),
        }
    }
}

/// Slot read, worker began, end known, completion visible; in ticks.
fn moments(event: &HwEvent) -> [u64; 4] {
    [0, event.start, event.ended, event.visible].map(|delta| event.stamp + u64::from(delta))
}

/// Latencies with one end on the device and one on the host, on the host's clock.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct OneClockReport {
    /// No moment of the device is wrong by more, in nanoseconds.
    pub error_ns: u64,
    /// Lives whose clock could not be compared.
    pub unmapped: u64,
    /// Figures in nanoseconds.
    pub spans: Vec<SpanReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(stamp: u64, visible: u32, ringing: u64, polled: u64, descriptor: u32) -> DeviceLife {
        let event =
            HwEvent { stamp, start: 1, first_token: 2, ended: visible - 1, visible, ..HwEvent::default() };
        let [posted, ringing, polled] = [ringing - 3, ringing, polled].map(Ticks::new);
        let rollout = RolloutId::new(0, 1);
        DeviceLife { event, host: Some(HostTimes { rollout, descriptor, posted, ringing, polled }) }
    }

    /// The device's clock is 1,000 ns ahead. The tightest exchanges have 4 ns before and 6 ns behind, so the error is 5 ns.
    #[test]
    fn a_clock_that_cannot_be_read_is_compared_by_exchanges() {
        let mut one = OneClock::new(Clock::simulated(), TickRate(1_000_000_000));
        let mut seen = vec![];
        for (k, (before, behind)) in [(9, 40), (4, 90), (30, 6), (20, 20)].into_iter().enumerate() {
            let read = 1000 * (k as u64 + 1);
            let note = life(read + 1000, 50, read - before, read + 50 + behind, k as u32);
            one.take(Note::Life(note), &mut |life| seen.push(*life));
        }
        assert!(seen.is_empty());
        one.take(
            Note::Stored { rollout: RolloutId::new(0, 1), descriptor: 3, time: Ticks::new(4100) },
            &mut |_| {},
        );
        one.finish(&mut |life| seen.push(*life));
        let report = one.report();
        assert_eq!((report.error_ns, report.unmapped, seen.len()), (5, 0, 4));
        // True: 4 is read at 4000 and visible at 4050; the difference is taken as 1 ns more than it is.
        assert_eq!(seen[3].moments, Some([4001, 4002, 4050, 4051]));
        assert_eq!(report.spans.iter().map(|span| span.count).collect::<Vec<_>>(), [4, 4, 1]);
        // 12 + 7 + 33 + 23, each and 1 more; 40 + 90 + 6 + 20, each and 1 less; 4100 - 4051.
        assert_eq!(report.spans.iter().map(|span| span.sum).collect::<Vec<_>>(), [79, 152, 49]);
    }

    /// A device that stands still between readings did it between them.
    #[test]
    fn a_clock_that_is_read_says_between_which_times() {
        let mut one = OneClock::new(Clock::simulated(), TickRate(0));
        let mut seen = vec![];
        for (ticks, time) in [(100, 1000), (100, 1100), (100, 1200), (200, 2200), (200, 2300)] {
            one.take(Note::Reading { ticks, time: Ticks::new(time) }, &mut |_| {});
        }
        one.take(Note::Life(life(110, 90, 1150, 2300, 1)), &mut |life| seen.push(*life));
        // Read 10 ticks behind 100, which was left at 1200; visible at 200, which was reached by 2200 or later.
        assert_eq!(seen[0].moments.unwrap()[..2], [1300, 1310]);
        assert_eq!(one.report().error_ns, 1100);
        // Before all readings: nobody knows.
        one.take(Note::Life(life(50, 10, 500, 2300, 2)), &mut |life| seen.push(*life));
        assert_eq!((seen[1].moments, one.report().unmapped), (None, 1));
    }
}
