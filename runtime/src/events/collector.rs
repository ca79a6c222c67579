//! The end of the event rings that the collector reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::latency::{LatencyReport, duration};
use super::pairing::Pairing;
use super::{Bound, Clock, Event, EventKind, Recorder, Ticks};
use crate::ring::{RingError, spsc};
use crate::rollout::RolloutId;

/// Events taken out of a ring at once.
const BATCH: usize = 256;

/// What no ring holds.
const NOTHING: Event = Event {
    time: Ticks::MAX,
    rollout: RolloutId::from_bits(u64::MAX),
    descriptor: 0,
    value: 0,
    kind: EventKind::DecodeBatch,
    lost: 0,
};

/// Drains the rings of all recorders and pairs what they hold.
///
/// The rings are merged by time up to a horizon, the time at which a poll began, so that what one thread caused in
/// another is mostly seen in order. Pairing does not depend on it: either end may come first.
#[derive(Debug)]
pub struct Collector {
    clock: Clock,
    sources: Vec<Source>,
    pairing: Pairing,
}

#[derive(Debug)]
struct Source {
    name: String,
    ring: spsc::Consumer<Event>,
    /// Taken out of the ring and not looked at yet: those in `next..end`.
    pending: Box<[Event; BATCH]>,
    next: usize,
    end: usize,
    recorded: u64,
    dropped: Arc<AtomicU64>,
}

impl Source {
    /// Time of the oldest event that was not looked at yet.
    fn head(&mut self) -> Option<Ticks> {
        if self.next == self.end {
            (self.next, self.end) = (0, self.ring.pop_slice(&mut self.pending[..]));
        }
        (self.next < self.end).then(|| self.pending[self.next].time)
    }
}

impl Collector {
    /// A collector for rollouts in slots below `slots`; all its memory is allocated here.
    pub fn new(clock: Clock, slots: u32) -> Self {
        Self { pairing: Pairing::new(clock.clone(), slots), clock, sources: vec![] }
    }

    /// The recorder of a further thread, with a ring of `capacity` events (32 bytes each), a power of two.
    ///
    /// # Errors
    /// Those of the ring.
    pub fn recorder(&mut self, name: &str, capacity: usize) -> Result<Recorder, RingError> {
        let (producer, ring) = spsc::channel(capacity)?;
        let dropped = Arc::new(AtomicU64::new(0));
        self.sources.push(Source {
            name: name.to_owned(),
            ring,
            pending: Box::new([NOTHING; BATCH]),
            next: 0,
            end: 0,
            recorded: 0,
            dropped: dropped.clone(),
        });
        self.pairing.add_source();
        Ok(Recorder::new(producer.eager(), dropped))
    }

    /// The clock of its events.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Names of the threads that record, in the order of the index that [`poll`](Self::poll) hands out.
    pub fn threads(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|source| source.name.as_str())
    }

    /// Takes in what was recorded up to `horizon`, in the order of time as far as it is known, shows each event to `see`
    /// with the index of its thread, and returns how many there were. Later events stay for the next call.
    pub fn poll(&mut self, horizon: Ticks, mut see: impl FnMut(usize, &Event)) -> u64 {
        let mut taken = 0;
        loop {
            // The source with the oldest event, and until when it stays so.
            let (mut oldest, mut until) = (None, horizon);
            for k in 0..self.sources.len() {
                let Some(head) = self.sources[k].head().filter(|head| *head <= horizon) else { continue };
                match oldest {
                    Some((_, time)) if time <= head => until = until.min(head),
                    Some((_, time)) => (oldest, until) = (Some((k, head)), time),
                    None => oldest = Some((k, head)),
                }
            }
            let Some((k, _)) = oldest else { return taken };
            while self.sources[k].head().is_some_and(|head| head <= until) {
                let source = &mut self.sources[k];
                let event = source.pending[source.next];
                source.next += 1;
                source.recorded += 1;
                taken += 1;
                self.pairing.take(k, &event);
                see(k, &event);
            }
        }
    }

    /// Takes in all that is left, once the recording threads have ended, counts what has no other end, and reports.
    pub fn finish(&mut self, see: impl FnMut(usize, &Event)) -> Report {
        self.poll(Ticks::MAX, see);
        self.pairing.settle();
        self.report()
    }

    /// What is known so far.
    pub fn report(&self) -> Report {
        let threads: Vec<_> = self
            .sources
            .iter()
            .map(|source| ThreadReport {
                name: source.name.clone(),
                recorded: source.recorded,
                dropped: source.dropped.load(Relaxed),
            })
            .collect();
        Report { threads, pairs: self.pairing.pairs(), stages: self.pairing.stages() }
    }
}

/// What the events say.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// The threads that record.
    pub threads: Vec<ThreadReport>,
    /// The eight latencies, in the order of [`Pair::ALL`](super::Pair::ALL).
    pub pairs: Vec<LatencyReport>,
    /// How long rollouts stayed in each stage, in the order of [`STAGES`](super::STAGES).
    pub stages: Vec<LatencyReport>,
}

/// One thread's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadReport {
    /// The thread.
    pub name: String,
    /// Events that the collector took in.
    pub recorded: u64,
    /// Events that found the ring full.
    pub dropped: u64,
}

impl Report {
    /// Events that the collector took in.
    pub fn recorded(&self) -> u64 {
        self.threads.iter().map(|thread| thread.recorded).sum()
    }

    /// Events that found a ring full.
    pub fn dropped(&self) -> u64 {
        self.threads.iter().map(|thread| thread.dropped).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} events, {} dropped because a ring was full", self.recorded(), self.dropped())?;
        for thread in self.threads.iter().filter(|thread| thread.dropped != 0) {
            writeln!(
                f,
                "  {} dropped {} of {}",
                thread.name,
                thread.dropped,
                thread.dropped + thread.recorded
            )?;
        }
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
