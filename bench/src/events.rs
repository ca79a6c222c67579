//! What it costs to record an event, and how fast events are collected.

use std::hint::black_box;
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

/// Wall time of a round.
type Measure = fn(&mut Rig) -> Duration;

/// What is measured, each with how its figure is called. The floor comes first.
const ROWS: [(&str, &str, Measure); 5] = [
    ("floor", "floor: read the clock, store 32 bytes", |rig| rig.store(1)),
    ("record", "record an event, one reading of the clock each", |rig| rig.record(1)),
    ("floor_shared", "floor, one reading for 64", |rig| rig.store(SHARED)),
    ("record_shared", "record an event, one reading for 64", |rig| rig.record(SHARED)),
    ("collect", "collect: pair, count", Rig::collect),
];

/// The cost of an event where it happens, beside the least that it can cost, and where it is collected.
pub fn recording(quick: bool) -> Result<Section, BenchError> {
    let (rounds, repeats) = if quick { (8, 5) } else { (64, 15) };
    let mut rig = Rig::new();
    let mut figures = ROWS.map(|_| vec![]);
    for _ in 0..repeats {
        for ((.., measure), figures) in ROWS.iter().zip(&mut figures) {
            let spent: Duration = (0..rounds).map(|_| measure(&mut rig)).sum();
            figures.push(spent.as_secs_f64() * 1e9 / (rounds * ROUND) as f64);
        }
    }
    let dropped = rig.recorder.dropped();
    if dropped != 0 {
        return Err(BenchError::failed(format!(
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
             rounds, and that is not counted.",
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
}

/// The `k`-th event of a made-up run: four of a descriptor, and descriptors of all slots in turn.
fn event(k: usize, time: Ticks) -> Event {
    let number = (k / KINDS.len()) as u32;
    let rollout = RolloutId::new(number % SLOTS, 1);
    Event { time, rollout, descriptor: number, value: 1, kind: KINDS[k % KINDS.len()], lost: 0 }
}

impl Rig {
    fn new() -> Self {
        let clock = Clock::new();
        let (collector, recorder) = Collector::new(clock.clone(), SLOTS, ROUND);
        let memory = vec![event(0, clock.now()); ROUND];
        Self { clock, recorder, collector, memory }
    }

    /// A round of events, the clock read for every `every` of them.
    fn events(&mut self, every: usize, mut store: impl FnMut(&mut Self, usize, Event)) -> Duration {
        let start = Instant::now();
        let mut now = self.clock.now();
        for k in 0..ROUND {
            if k % every == 0 {
                now = self.clock.now();
            }
            store(self, k, event(k, now));
        }
        black_box(&mut self.memory);
        start.elapsed()
    }

    fn store(&mut self, every: usize) -> Duration {
        self.events(every, |rig, k, event| rig.memory[k] = event)
    }

    fn fill(&mut self, every: usize) -> Duration {
        self.events(every, |rig, _, event| {
            let Event { time, rollout, descriptor, value, kind, .. } = event;
            rig.recorder.record(kind, rollout, descriptor, value, time);
        })
    }

    fn record(&mut self, every: usize) -> Duration {
        let spent = self.fill(every);
        self.collector.poll(|_| {});
        spent
    }

    fn collect(&mut self) -> Duration {
        self.fill(1);
        let start = Instant::now();
        black_box(self.collector.poll(|_| {}));
        start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rig records what it says: nothing is dropped, and every descriptor pairs.
    #[test]
    fn the_rig_measures_recording() {
        let mut rig = Rig::new();
        (0..3).for_each(|_| _ = rig.record(1));
        (0..2).for_each(|_| _ = rig.record(SHARED));
        rig.collect();
        let report = rig.collector.report();
        assert_eq!((report.recorded, report.dropped), (6 * ROUND as u64, 0));
        assert!(report.pairs[..4].iter().all(|pair| pair.count != 0));
    }
}
