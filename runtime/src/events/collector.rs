//! The ring of events: the hot thread's end, and the end that the collector reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rtrb::{Consumer, Producer, RingBuffer};
use serde::{Deserialize, Serialize};

use super::device::{DeviceLives, DeviceReport, TickRate, Unit};
use super::latency::{LatencyReport, duration};
use super::one_clock::{DeviceLife, MappedLife, Note, OneClock, OneClockReport};
use super::pairing::Pairing;
use super::{Bound, Clock, Event, EventKind, Ticks};
use crate::rollout::RolloutId;
use doorbell_contract::HwEvent;

/// Records the events of the hot thread. It can be sent to a thread but not shared:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<doorbell_runtime::events::Recorder>();
/// ```
#[derive(Debug)]
pub struct Recorder {
    ring: Producer<Event>,
    /// Dropped since the last event that was not.
    lost: u8,
    /// Dropped ever; only this recorder writes it.
    dropped: Arc<AtomicU64>,
    /// What the device tells of its descriptors, and how many of those were dropped.
    lives: Option<(Producer<Note>, Arc<AtomicU64>)>,
}

impl Recorder {
    /// Records that `kind` happened at `now`, or drops it if the ring is full. Several events may share one reading of
    /// the clock; times must not decrease.
    ///
    /// `descriptor` and `value` are as [`EventKind`] says, and 0 where it says nothing.
    #[inline]
    pub fn record(&mut self, kind: EventKind, rollout: RolloutId, descriptor: u32, value: u32, now: Ticks) {
        let event = Event { time: now, rollout, descriptor, value, kind, lost: self.lost };
        match self.ring.push(event) {
            Ok(()) => self.lost = 0,
            Err(_) => self.drop_one(),
        }
    }

    #[cold]
    fn drop_one(&mut self) {
        self.lost = self.lost.saturating_add(1);
        self.dropped.store(self.dropped() + 1, Relaxed);
    }

    /// Passes the life of a descriptor on, or drops it if the ring is full.
    #[inline]
    pub fn record_life(&mut self, life: DeviceLife) {
        self.note_life(Note::Life(life));
    }

    /// Passes the life of a descriptor on of which nobody knows what the host did with it, or drops it if the ring is full.
    pub fn record_unpaired(&mut self, event: HwEvent) {
        self.note_life(Note::Unpaired(event));
    }

    #[inline]
    fn note_life(&mut self, note: Note) {
        if let Some((ring, dropped)) = &mut self.lives
            && ring.push(note).is_err()
        {
            dropped.store(dropped.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Notes that the device's clock read `ticks` at some time between `from` and `to`. If the ring is full, the next reading serves as well.
    pub fn record_ticks(&mut self, ticks: u64, from: Ticks, to: Ticks) {
        if let Some((ring, _)) = &mut self.lives {
            let _ = ring.push(Note::Reading { ticks, from, to });
        }
    }

    /// Notes that a trajectory is stored whose last descriptor this is. If the ring is full, that trajectory is not measured.
    pub fn record_stored(&mut self, rollout: RolloutId, descriptor: u32, time: Ticks) {
        if let Some((ring, _)) = &mut self.lives {
            let _ = ring.push(Note::Stored { rollout, descriptor, time });
        }
    }

    /// Whether LIFE events of the device are collected.
    pub fn wants_lives(&self) -> bool {
        self.lives.is_some()
    }

    /// How many events found the ring full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// Drains the ring of a [`Recorder`], and pairs what it holds.
#[derive(Debug)]
pub struct Collector {
    clock: Clock,
    ring: Consumer<Event>,
    dropped: Arc<AtomicU64>,
    recorded: u64,
    pairing: Pairing,
    lives: Option<Lives>,
}

/// The collector's end of the device's LIFE events.
#[derive(Debug)]
struct Lives {
    ring: Consumer<Note>,
    dropped: Arc<AtomicU64>,
    spans: DeviceLives,
    one_clock: OneClock,
}

impl Collector {
    /// A collector for rollouts in slots below `slots`, and the recorder that it hears from by way of a ring of `capacity`
    /// events (32 bytes each), at least 1. All its memory is allocated and touched here.
    pub fn new(clock: Clock, slots: u32, capacity: usize) -> (Self, Recorder) {
        let (mut producer, mut ring) = RingBuffer::new(capacity);
        let nothing = Event {
            time: Ticks::default(),
            rollout: RolloutId::from_bits(0),
            descriptor: 0,
            value: 0,
            kind: EventKind::DecodeBatch,
            lost: 0,
        };
        while producer.push(nothing).is_ok() {}
        while ring.pop().is_ok() {}
        let dropped = Arc::new(AtomicU64::new(0));
        let recorder = Recorder { ring: producer, lost: 0, dropped: dropped.clone(), lives: None };
        let pairing = Pairing::new(clock.clone(), slots);
        (Self { pairing, clock, ring, dropped, recorded: 0, lives: None }, recorder)
    }

    /// As [`new`](Self::new), for a device with LIFE events (R23), whose clock has this rate: `capacity` of them and of readings of its clock may wait, too.
    pub fn with_device(clock: Clock, slots: u32, capacity: usize, rate: TickRate) -> (Self, Recorder) {
        let (mut collector, mut recorder) = Self::new(clock.clone(), slots, capacity);
        let (mut producer, mut ring) = RingBuffer::new(capacity);
        while producer.push(Note::Life(DeviceLife::default())).is_ok() {}
        while ring.pop().is_ok() {}
        let dropped = Arc::new(AtomicU64::new(0));
        recorder.lives = Some((producer, dropped.clone()));
        collector.lives = Some(Lives {
            ring,
            dropped,
            spans: DeviceLives::new(rate),
            one_clock: OneClock::new(clock, rate),
        });
        (collector, recorder)
    }

    /// Takes in what the device has told, and shows each life to `see` once it is known where it lies on the host's clock. It is to be called
    /// beside [`poll`](Self::poll).
    pub fn poll_lives(&mut self, mut see: impl FnMut(&MappedLife)) {
        let Some(lives) = &mut self.lives else { return };
        for _ in 0..lives.ring.slots() {
            let Ok(note) = lives.ring.pop() else { break };
            if let Note::Life(DeviceLife { event, .. }) | Note::Unpaired(event) = &note {
                lives.spans.take(event);
            }
            lives.one_clock.take(note, &mut see);
        }
    }

    /// As [`poll_lives`](Self::poll_lives), once the recording thread has ended: shows all that are left.
    pub fn finish_lives(&mut self, mut see: impl FnMut(&MappedLife)) {
        self.poll_lives(&mut see);
        if let Some(lives) = &mut self.lives {
            lives.one_clock.finish(&mut see);
        }
    }

    /// The clock of its events.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Takes in what the ring holds now, shows each event to `see`, and returns how many there were.
    pub fn poll(&mut self, mut see: impl FnMut(&Event)) -> u64 {
        let before = self.recorded;
        for _ in 0..self.ring.slots() {
            let Ok(event) = self.ring.pop() else { break };
            self.recorded += 1;
            self.pairing.take(&event);
            see(&event);
        }
        self.recorded - before
    }

    /// Takes in all that is left, once the recording thread has ended, counts what has no other end, and reports.
    pub fn finish(&mut self, see: impl FnMut(&Event)) -> Report {
        self.poll(see);
        self.finish_lives(|_| {});
        self.pairing.settle();
        self.report()
    }

    /// What is known so far.
    pub fn report(&self) -> Report {
        let (pairs, stages) = self.pairing.reports();
        let device = self
            .lives
            .as_ref()
            .map(|lives| DeviceReport { dropped: lives.dropped.load(Relaxed), ..lives.spans.report() });
        let one_clock = self.lives.as_ref().map(|lives| lives.one_clock.report());
        Report {
            recorded: self.recorded,
            dropped: self.dropped.load(Relaxed),
            pairs,
            stages,
            device,
            one_clock,
        }
    }
}

/// What the events say.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Events that the collector took in.
    pub recorded: u64,
    /// Events that found the ring full.
    pub dropped: u64,
    /// The eight latencies, in the order of [`Pair::ALL`](super::Pair::ALL).
    pub pairs: Vec<LatencyReport>,
    /// How long rollouts stayed in each stage, in the order of [`STAGES`](super::STAGES).
    pub stages: Vec<LatencyReport>,
    /// What the device told of its descriptors, where its LIFE events are collected.
    #[serde(default)]
    pub device: Option<DeviceReport>,
    /// Latencies between a moment of the device and one of the host, likewise.
    #[serde(default)]
    pub one_clock: Option<OneClockReport>,
}

/// The heading of a table of latencies that are exact.
fn figures(f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
    writeln!(
        f,
        "\n{what:<34}   {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "p50", "p90", "p99", "p99.9", "max", "count"
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} events, {} dropped because the ring was full", self.recorded, self.dropped)?;
        for (what, rows) in [("latency", &self.pairs), ("time in stage", &self.stages)] {
            writeln!(
                f,
                "\n{what:<34}   {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>8}",
                "p50", "p90", "p99", "p99.9", "max", "count", "unpaired"
            )?;
            for row in rows {
                write!(f, "{:<34} {}", row.name, row.bound)?;
                for nanos in [row.p50_ns, row.p90_ns, row.p99_ns, row.p99_9_ns, row.max_ns] {
                    write!(f, " {:>9}", duration(nanos))?;
                }
                writeln!(f, " {:>10} {:>8}", row.count, row.unpaired)?;
            }
        }
        if let Some(device) = &self.device {
            let unit = match device.unit {
                Unit::Nanoseconds => "by the device's clock",
                Unit::Ticks => "in ticks of the device",
            };
            figures(f, unit)?;
            for row in &device.spans {
                write!(f, "{:<34} {}", row.name, Bound::Exact)?;
                for figure in [row.p50, row.p90, row.p99, row.p99_9, row.max] {
                    match device.unit {
                        Unit::Nanoseconds => write!(f, " {:>9}", duration(figure))?,
                        Unit::Ticks => write!(f, " {figure:>9}")?,
                    }
                }
                writeln!(f, " {:>10}", row.count)?;
            }
        }
        if let Some(one) = self.one_clock.as_ref().filter(|one| one.spans.iter().any(|row| row.count > 0)) {
            let error = format!("on one clock, within ±{}", duration(one.error_ns));
            figures(f, &error)?;
            for row in &one.spans {
                write!(f, "{:<34} {}", row.name, Bound::Exact)?;
                for nanos in [row.p50, row.p90, row.p99, row.p99_9, row.max] {
                    write!(f, " {:>9}", duration(nanos))?;
                }
                writeln!(f, " {:>10}", row.count)?;
            }
        }
        if let Some(one) = self.one_clock.as_ref().filter(|one| one.unmapped + one.unpaired > 0) {
            writeln!(
                f,
                "\nunmapped: {} lives of the device have no place on the host's clock; unpaired: of {} it is not known which \
                 descriptor they are of",
                one.unmapped, one.unpaired
            )?;
        }
        if self.pairs.iter().any(|pair| pair.bound != Bound::Exact) {
            writeln!(
                f,
                "\n≤ ≥: the host learns afterwards when a device took a descriptor; these latencies are at most (≤) or \
                 at least (≥) so long"
            )?;
        }
        Ok(())
    }
}
