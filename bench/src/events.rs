//! What it costs to record an event, and how fast events are collected.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use doorbell_runtime::events::{Clock, Collector, Event, EventKind, Recorder, Ticks};
use doorbell_runtime::rollout::RolloutId;
use serde_json::json;

use crate::BenchError;
use crate::{Section, median, table};

/// Events between two emptyings of what they are recorded into; all of them fit.
const ROUND: usize = 1 << 14;
/// Events that share one reading of the clock.
const SHARED: usize = 64;
const SLOTS: u32 = 256;

const KINDS: [EventKind; 4] =
    [EventKind::DescPosted, EventKind::DescCommitted, EventKind::DescConsumed, EventKind::CompletionPolled];

/// Nanoseconds of wall time for each event in a row of the table.
type Measure = fn(&mut Rig, rounds: usize) -> f64;

/// What is measured, each with how its figure is called. The floor comes first.
const ROWS: [(&str, &str, Measure); 8] = [
    ("floor", "floor: read the clock, store 32 bytes", floor),
    ("record", "record an event, one reading of the clock each", |rig, rounds| rig.record(rounds, 1)),
    ("record_shared", "record an event, one reading for 64", |rig, rounds| rig.record(rounds, SHARED)),
    ("floor_shared", "floor of that: store 32 bytes", floor_shared),
    ("mutex", "rival: push into a Mutex<Vec>, one reading each", mutex),
    ("clock", "read the clock", |rig, rounds| {
        per_event(rounds, || {
            (0..ROUND).for_each(|_| {
                black_box(rig.clock.now());
            })
        })
    }),
    ("instant", "rival: Instant::now", |_, rounds| {
        per_event(rounds, || {
            (0..ROUND).for_each(|_| {
                black_box(Instant::now());
            })
        })
    }),
    ("collect", "collect: merge, pair, count", Rig::collect),
];

/// The cost of an event where it happens, beside the least that it can cost, and where it is collected.
pub fn recording(quick: bool) -> Result<Section, BenchError> {
    let (rounds, repeats) = if quick { (8, 5) } else { (64, 15) };
    let mut rig = Rig::new().map_err(BenchError::input)?;
    let mut figures = ROWS.map(|_| vec![]);
    for _ in 0..repeats {
        for ((.., measure), figures) in ROWS.iter().zip(&mut figures) {
            figures.push(measure(&mut rig, rounds));
        }
    }
    let dropped = rig.recorder.dropped();
    if dropped != 0 {
        return Err(BenchError::input(format!(
            "{dropped} events found no room: the figures are not of recording"
        )));
    }

    let mut table = table(["what", "ns an event", "best run", "million a second", "of the floor"], 1);
    let mut rows = vec![];
    for ((key, name, _), of) in ROWS.iter().zip(&figures) {
        let (middle, best) = (median(of.iter().copied()), of.iter().copied().fold(f64::INFINITY, f64::min));
        let ratio = median(of.iter().zip(&figures[0]).map(|(figure, floor)| figure / floor));
        table.add_row([
            (*name).to_owned(),
            format!("{middle:.2}"),
            format!("{best:.2}"),
            format!("{:.1}", 1e3 / middle),
            format!("{ratio:.2}"),
        ]);
        rows.push(json!({ "what": key, "ns": middle, "best_ns": best, "of_the_floor": ratio }));
    }
    Ok(Section {
        heading: format!(
            "Events: nanoseconds for each, median of {repeats} interleaved runs of {}",
            rounds * ROUND
        ),
        table,
        notes: vec![format!(
            "One core: the ring ({ROUND} events of {} bytes, as the floor's memory) is emptied by the same thread between \
             rounds, and that is not counted. The collector's figure is that of one thread's descriptors, in order.",
            size_of::<Event>()
        )],
        json: rows.into(),
    })
}

struct Rig {
    clock: Clock,
    recorder: Recorder,
    collector: Collector,
    memory: Vec<Event>,
    shared: Mutex<Vec<Event>>,
}

/// The `k`-th event of a made-up run: four of a descriptor, and descriptors of all slots in turn.
fn event(k: usize, time: Ticks) -> Event {
    let number = (k / KINDS.len()) as u32;
    let rollout = RolloutId::new(number % SLOTS, 1);
    Event { time, rollout, descriptor: number, value: 1, kind: KINDS[k % KINDS.len()], lost: 0 }
}

impl Rig {
    fn new() -> Result<Self, doorbell_runtime::ring::RingError> {
        let clock = Clock::new();
        let mut collector = Collector::new(clock.clone(), SLOTS);
        let recorder = collector.recorder("bench", ROUND)?;
        let memory = vec![event(0, clock.now()); ROUND];
        let shared = Mutex::new(memory.clone());
        Ok(Self { clock, recorder, collector, memory, shared })
    }

    /// Records a round of events, reading the clock every `every` of them.
    fn fill(&mut self, every: usize) {
        let mut now = self.clock.now();
        for k in 0..ROUND {
            if k % every == 0 {
                now = self.clock.now();
            }
            let Event { kind, rollout, descriptor, value, .. } = event(k, now);
            self.recorder.record(kind, rollout, descriptor, value, now);
        }
    }

    fn record(&mut self, rounds: usize, every: usize) -> f64 {
        let mut spent = Duration::ZERO;
        for _ in 0..rounds {
            let start = Instant::now();
            self.fill(every);
            spent += start.elapsed();
            self.collector.poll(Ticks::MAX, |_, _| {});
        }
        each(spent, rounds)
    }

    fn collect(&mut self, rounds: usize) -> f64 {
        let mut spent = Duration::ZERO;
        for _ in 0..rounds {
            self.fill(1);
            let start = Instant::now();
            black_box(self.collector.poll(Ticks::MAX, |_, _| {}));
            spent += start.elapsed();
        }
        each(spent, rounds)
    }
}

fn floor(rig: &mut Rig, rounds: usize) -> f64 {
    per_event(rounds, || {
        for (k, slot) in rig.memory.iter_mut().enumerate() {
            *slot = event(k, rig.clock.now());
        }
        black_box(&mut rig.memory);
    })
}

fn floor_shared(rig: &mut Rig, rounds: usize) -> f64 {
    per_event(rounds, || {
        let now = rig.clock.now();
        for (k, slot) in rig.memory.iter_mut().enumerate() {
            *slot = event(k, now);
        }
        black_box(&mut rig.memory);
    })
}

fn mutex(rig: &mut Rig, rounds: usize) -> f64 {
    per_event(rounds, || {
        // Nobody else holds it, and it never grows: the best case.
        rig.shared.lock().expect("no thread panics with it").clear();
        for k in 0..ROUND {
            let event = event(k, rig.clock.now());
            rig.shared.lock().expect("no thread panics with it").push(event);
        }
        black_box(&mut rig.shared);
    })
}

fn per_event(rounds: usize, mut round: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..rounds).for_each(|_| round());
    each(start.elapsed(), rounds)
}

fn each(spent: Duration, rounds: usize) -> f64 {
    spent.as_secs_f64() * 1e9 / (rounds * ROUND) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rig records what it says: nothing is dropped, and every descriptor pairs.
    #[test]
    fn the_rig_measures_recording() {
        let mut rig = Rig::new().unwrap();
        rig.record(3, 1);
        rig.record(2, SHARED);
        rig.collect(1);
        let report = rig.collector.report();
        assert_eq!((report.recorded(), report.dropped()), (6 * ROUND as u64, 0));
        assert!(report.pairs[..4].iter().all(|pair| pair.count != 0));
    }
}
