//! The device's moments on the host's clock.
//!
//! A device whose clock can be read ([`Device::ticks`](doorbell_host::Device::ticks)) lives in the time that it is given: what it did
//! between two readings happened between the two times of the host at which they were taken. Of any other device every descriptor is an exchange: its slot is
//! read after the doorbell was rung, and its completion is seen after it was visible. So the difference of the two clocks lies above every
//! *rung - read* and below every *seen - visible*. Half the distance of the nearest two is the error, and what the clocks may run apart meanwhile.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::device::SpanReport;
use super::latency::{Bound, Latency};
use super::{Clock, TickRate, Ticks};
use crate::rollout::RolloutId;
use doorbell_contract::HwEvent;

/// Descriptors, and nanoseconds between the first and the last that are read, whose exchanges are taken together.
const WINDOW: usize = 4096;
const WINDOW_NANOS: u64 = 20_000_000;
/// Two clocks run apart by no more, in parts of a million: each is within 100 of the true time.
const DRIFT_PPM: u128 = 200;
/// Readings of the device's clock that are kept, and the part of their age that old ones may lie apart.
const READINGS: usize = 4096;
const SHARE: u64 = 64;
/// Lives that wait for a reading that covers them, at most.
const MOST_WAITING: usize = 1 << 14;

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
    /// The life of a descriptor of which nobody knows what the host did with it.
    Unpaired(HwEvent),
    /// The device's clock, which was read between these times.
    Reading {
        ticks: u64,
        from: Ticks,
        to: Ticks,
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

/// The device's clock, and the times between which it was read, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ticks: u64,
    from: u64,
    to: u64,
}

/// Lives of one queue pair whose clock is not compared yet, and the ticks that they lie between.
#[derive(Debug)]
struct Window {
    lives: Vec<DeviceLife>,
    first_read: u64,
    last_read: u64,
    last_visible: u64,
}

/// Maps lives, and measures.
#[derive(Debug)]
pub(super) struct OneClock {
    clock: Clock,
    rate: TickRate,
    readings: VecDeque<Reading>,
    /// Lives that end behind the last reading.
    waiting: VecDeque<DeviceLife>,
    /// By queue pair: those of several devices have several clocks.
    windows: HashMap<u8, Window>,
    spans: [Latency; SPANS.len()],
    /// By slot: the last descriptor, and when its completion was visible; and the same of what was stored.
    visible: HashMap<u32, (RolloutId, u32, u64)>,
    stored: HashMap<u32, (RolloutId, u32, u64)>,
    error: u64,
    unmapped: u64,
    unpaired: u64,
}

impl OneClock {
    pub fn new(clock: Clock, rate: TickRate) -> Self {
        let spans = std::array::from_fn(|_| Latency::new());
        Self {
            clock,
            rate,
            readings: VecDeque::new(),
            waiting: VecDeque::new(),
            windows: HashMap::new(),
            spans,
            visible: HashMap::new(),
            stored: HashMap::new(),
            error: 0,
            unmapped: 0,
            unpaired: 0,
        }
    }

    fn nanos(&self, time: Ticks) -> u64 {
        self.clock.nanos(self.clock.origin(), time)
    }

    /// Takes in what the hot thread notes, and shows each life to `see` once its clock is known.
    pub fn take(&mut self, note: Note, see: &mut dyn FnMut(&MappedLife)) {
        match note {
            Note::Reading { ticks, from, to } => {
                self.read(Reading { ticks, from: self.nanos(from), to: self.nanos(to) });
                while let Some(&life) = self.waiting.front()
                    && self.is_covered(&life)
                {
                    self.waiting.pop_front();
                    self.map(life, see);
                }
            }
            Note::Stored { rollout, descriptor, time } => {
                let time = self.nanos(time);
                self.stored.insert(rollout.slot(), (rollout, descriptor, time));
                self.join(rollout.slot());
            }
            Note::Unpaired(event) => {
                self.unpaired += 1;
                self.live(DeviceLife { event, host: None }, see);
            }
            Note::Life(life) => self.live(life, see),
        }
    }

    fn live(&mut self, life: DeviceLife, see: &mut dyn FnMut(&MappedLife)) {
        if self.readings.is_empty() {
            self.exchange(life, see);
        } else if self.waiting.is_empty() && self.is_covered(&life) {
            self.map(life, see);
        } else {
            self.waiting.push_back(life);
            if self.waiting.len() > MOST_WAITING
                && let Some(life) = self.waiting.pop_front()
            {
                self.map(life, see);
            }
        }
    }

    /// Keeps a reading. Of those that say the same the first and the last are enough; when there are too many, older ones go.
    fn read(&mut self, reading: Reading) {
        let same = |back: usize| {
            let at = self.readings.len().checked_sub(back);
            at.is_some_and(|at| self.readings[at].ticks == reading.ticks)
        };
        if same(1) && same(2) {
            self.readings.pop_back();
        }
        if self.readings.len() == READINGS {
            self.thin(reading.to);
        }
        self.readings.push_back(reading);
    }

    /// Forgets readings of the older half, so that two that are next to each other lie apart by no more than a [`SHARE`]th of their age, unless they
    /// did before.
    fn thin(&mut self, now: u64) {
        let old: Vec<Reading> = self.readings.drain(..READINGS / 2).collect();
        let mut kept: Vec<Reading> = vec![];
        for (place, &reading) in old.iter().enumerate() {
            let next = old.get(place + 1).or(self.readings.front()).unwrap_or(&reading);
            let is_near = |last: &Reading| next.to - last.from <= now.saturating_sub(reading.to) / SHARE;
            if !kept.last().is_some_and(is_near) {
                kept.push(reading);
            }
        }
        // Of a clock that stood still most of the time.
        if kept.len() > old.len() - old.len() / 8 {
            kept = old.into_iter().step_by(2).collect();
        }
        for reading in kept.into_iter().rev() {
            self.readings.push_front(reading);
        }
    }

    /// Whether the last reading is no earlier than its end.
    fn is_covered(&self, life: &DeviceLife) -> bool {
        let [.., visible] = moments(&life.event);
        self.readings.back().is_some_and(|last| last.ticks >= visible)
    }

    /// Maps a life by the readings.
    fn map(&mut self, life: DeviceLife, see: &mut dyn FnMut(&MappedLife)) {
        let moments = moments(&life.event).map(|tick| self.between_readings(tick));
        self.enter(life, moments, see);
    }

    /// Takes a life to others that were read at about the same time.
    fn exchange(&mut self, life: DeviceLife, see: &mut dyn FnMut(&MappedLife)) {
        let [read, .., visible] = moments(&life.event);
        let queue = life.event.queue_id;
        let is_far = |window: &Window| {
            let ticks = window.last_read.max(read) - window.first_read.min(read);
            window.lives.len() >= WINDOW || self.rate.nanos(ticks) > WINDOW_NANOS
        };
        if self.windows.get(&queue).is_some_and(is_far) {
            self.close(queue, see);
        }
        let new = || Window { lives: vec![], first_read: read, last_read: read, last_visible: visible };
        let window = self.windows.entry(queue).or_insert_with(new);
        window.first_read = window.first_read.min(read);
        window.last_read = window.last_read.max(read);
        window.last_visible = window.last_visible.max(visible);
        window.lives.push(life);
    }

    /// Maps what still waits for more exchanges, or for a reading.
    pub fn finish(&mut self, see: &mut dyn FnMut(&MappedLife)) {
        let queues: Vec<u8> = self.windows.keys().copied().collect();
        queues.into_iter().for_each(|queue| self.close(queue, see));
        while let Some(life) = self.waiting.pop_front() {
            self.map(life, see);
        }
    }

    /// When the device's clock read `tick`, and by how much that can be wrong.
    fn between_readings(&self, tick: u64) -> Option<(u64, u64)> {
        let at_least = self.readings.partition_point(|reading| reading.ticks < tick);
        let above = self.readings.partition_point(|reading| reading.ticks <= tick);
        let next = self.readings.get(at_least)?;
        // The last reading below, or the first of all; the first above, or the last of all: what they say may have been reached just then.
        let first = Some(next).filter(|next| next.ticks == tick);
        let below = at_least.checked_sub(1).and_then(|at| self.readings.get(at)).or(first)?;
        let above = self.readings.get(above).or(self.readings.back())?;
        let place = if next.ticks == tick {
            next.to
        } else {
            let (spent, all) = (u128::from(tick - below.ticks), u128::from(next.ticks - below.ticks));
            below.to + (u128::from(next.to - below.to) * spent / all) as u64
        };
        // What was read while the host waited may be as early as its question, and as late as its answer.
        Some((place, above.to - below.from))
    }

    /// Compares the clocks by all exchanges of a window.
    fn close(&mut self, queue: u8, see: &mut dyn FnMut(&MappedLife)) {
        let Some(window) = self.windows.remove(&queue) else { return };
        let rate = self.rate;
        let at = |tick: u64| rate.nanos(tick) as i64;
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        for DeviceLife { event, host } in &window.lives {
            let Some(host) = host else { continue };
            let [fetched, .., visible] = moments(event);
            low = low.max(self.nanos(host.ringing) as i64 - at(fetched));
            high = high.min(self.nanos(host.polled) as i64 - at(visible));
        }
        // At any time of the window the difference lies between the two, but for what the clocks run apart in it.
        let span = rate.nanos(window.last_visible.saturating_sub(window.first_read));
        let drift = (u128::from(span) * DRIFT_PPM).div_ceil(1_000_000) as i64;
        let width = if low == i64::MIN { -1 } else { high.saturating_sub(low).saturating_add(2 * drift) };
        let known = rate.0 > 0 && width >= 0;
        let (offset, error) =
            if known { (low + (high - low) / 2, width.unsigned_abs().div_ceil(2)) } else { (0, 0) };
        for life in window.lives {
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
            unpaired: self.unpaired,
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
    /// Lives of which it is not known what the host did: no completion of their index was seen, or its name is that of nothing in flight.
    #[serde(default)]
    pub unpaired: u64,
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

    fn read(ticks: u64, from: u64, to: u64) -> Note {
        Note::Reading { ticks, from: Ticks::new(from), to: Ticks::new(to) }
    }

    /// The device's clock is 1,000 ns ahead. The tightest exchanges have 4 ns before and 6 ns behind, so the error is 5 ns, and 1 ns that
    /// the clocks may run apart meanwhile.
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
        assert_eq!((report.error_ns, report.unmapped, seen.len()), (6, 0, 4));
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
            one.take(read(ticks, time, time), &mut |_| {});
        }
        one.take(Note::Life(life(110, 90, 1150, 2300, 1)), &mut |life| seen.push(*life));
        // Read 10 ticks behind 100, which was left at 1200; visible at 200, which was reached by 2200 or later.
        assert_eq!(seen[0].moments.unwrap()[..2], [1300, 1310]);
        assert_eq!(one.report().error_ns, 1100);
        // Before all readings: nobody knows.
        one.take(Note::Life(life(50, 10, 500, 2300, 2)), &mut |life| seen.push(*life));
        assert_eq!((seen[1].moments, one.report().unmapped), (None, 1));
    }

    /// A question that waited: what the device did meanwhile may be as late as the answer.
    #[test]
    fn a_clock_that_answers_late_was_read_between_question_and_answer() {
        let mut one = OneClock::new(Clock::simulated(), TickRate(0));
        let mut seen = vec![];
        one.take(read(100, 1000, 1010), &mut |_| {});
        // Its end is behind all readings: it waits for one.
        one.take(Note::Life(life(150, 50, 1005, 9000, 1)), &mut |life| seen.push(*life));
        assert!(seen.is_empty());
        one.take(read(200, 1020, 5020), &mut |life| seen.push(*life));
        assert_eq!(seen[0].moments, Some([3015, 3055, 4979, 5020]));
        assert_eq!((one.report().error_ns, one.report().unmapped), (4020, 0));
        // None comes any more.
        one.take(Note::Life(life(190, 20, 1005, 9000, 2)), &mut |life| seen.push(*life));
        one.finish(&mut |life| seen.push(*life));
        assert_eq!((seen[1].moments, one.report().unmapped), (None, 1));
    }

    /// A descriptor that was read many readings ago has its place, and the error says what was forgotten meanwhile.
    #[test]
    fn a_long_descriptor_keeps_its_place() {
        let mut one = OneClock::new(Clock::simulated(), TickRate(0));
        let mut seen = vec![];
        let all = 40 * READINGS as u64;
        for k in 0..all {
            one.take(read(10 * k, 1000 * k, 1000 * k), &mut |_| {});
        }
        assert!(one.readings.len() <= READINGS);
        // Both ends lie halfway between readings.
        let (stamp, end) = (10 * 3 + 5, 10 * (all - 9) + 5);
        let (rung, polled) = (100 * stamp - 2900, 100 * end + 4000);
        one.take(Note::Life(life(stamp, (end - stamp) as u32, rung, polled, 1)), &mut |life| {
            seen.push(*life)
        });
        let report = one.report();
        assert_eq!(report.unmapped, 0);
        let [fetched, .., visible] = seen[0].moments.unwrap();
        assert!(fetched.abs_diff(100 * stamp) <= report.error_ns, "{fetched} {report:?}");
        assert_eq!(visible, 100 * end, "what is new lies between all readings that there were");
        assert!((1000..=1000 * all / SHARE).contains(&report.error_ns), "{report:?}");
    }

    /// Exchanges that lie far apart are not taken together, and the error has what the clocks may run apart.
    #[test]
    fn clocks_that_run_apart_stay_within_the_error() {
        // The device's clock gains 150 ns in each ms, and is 5 s ahead.
        let device = |time: u64| 5_000_000_000 + time + time * 150 / 1_000_000;
        let mut one = OneClock::new(Clock::simulated(), TickRate(1_000_000_000));
        let mut seen: Vec<MappedLife> = vec![];
        // A run of 30 ms, an hour of nothing, and again.
        let starts = [1_000_000, 3_600_000_000_000];
        let starts = starts.into_iter().flat_map(|start| (0..60).map(move |k| start + 500_000 * k));
        let truth: Vec<(u64, u64)> = starts.map(|start| (start, start + 400_000)).collect();
        for (number, &(fetched, visible)) in truth.iter().enumerate() {
            let [stamp, end] = [fetched, visible].map(device);
            let note = life(stamp, (end - stamp) as u32, fetched - 40, visible + 40, number as u32);
            // Of some the host has no times that hold them.
            let note = DeviceLife { host: note.host.filter(|_| number % 4 != 1), ..note };
            one.take(Note::Life(note), &mut |life| seen.push(*life));
        }
        one.finish(&mut |life| seen.push(*life));
        let report = one.report();
        assert_eq!((report.unmapped, seen.len()), (0, truth.len()));
        // 40 ns and 20.4 ms times 200 ppm at most.
        assert!((40..=40 + 4080).contains(&report.error_ns), "{report:?}");
        for (mapped, (fetched, visible)) in seen.iter().zip(&truth) {
            let [from, .., to] = mapped.moments.unwrap();
            assert!(
                from.abs_diff(*fetched) <= report.error_ns && to.abs_diff(*visible) <= report.error_ns,
                "{mapped:?} {report:?}"
            );
        }
    }

    /// Exchanges that no two such clocks can have: a pair that is none, or a clock that was set.
    #[test]
    fn exchanges_that_contradict_each_other_are_not_mapped() {
        let mut one = OneClock::new(Clock::simulated(), TickRate(1_000_000_000));
        for (k, jump) in [0, 9000].into_iter().enumerate() {
            let note = life(2000 + jump, 50, 1000 - 5, 1050 + 5, k as u32);
            one.take(Note::Life(note), &mut |_| {});
        }
        one.finish(&mut |life| assert_eq!(life.moments, None));
        assert_eq!((one.report().error_ns, one.report().unmapped), (0, 2));
    }
}
