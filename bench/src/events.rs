//! What an event ring (R23) costs: descriptors per second without one, with one into which no lives go, and with all lives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_contract::{HwCompletion, HwDesc, HwEvent};
use doorbell_devices::{Kind, Settings};
use doorbell_host::{Device, QueueConfig};
use serde_json::{Value, json};

use crate::{BenchError, Section, median, table, verdict};

/// Slots of the rings, and of the event ring.
const DEPTH: u32 = 4096;
const SLOTS: u32 = 1 << 16;
/// Descriptors per submit.
const BATCH: usize = 256;
/// Batches between two looks at the event ring.
const LOOK: u32 = 32;
/// Events of one look.
const LOOKED: usize = LOOK as usize * BATCH;
/// How long a thread of its own that has read all there was waits.
const PAUSE: Duration = Duration::from_micros(100);

/// Tokens of each DECODE: as short as they get, where the events weigh most, and those of 'Events' in docs/measurements.md.
const TOKENS: [u32; 2] = [1, 50];

/// What of a ring there is.
const RINGS: [(&str, u32, bool); 3] =
    [("none", 0, false), ("without LIFE", SLOTS, false), ("with LIFE", SLOTS, true)];

/// Share of the rate without a ring that is left without LIFE, and with it.
fn bars(kind: Kind) -> [Option<f64>; 2] {
    match kind {
        Kind::Gpu => [Some(0.99), Some(0.97)],
        // Its rate is that of the simulation: 'Events' of docs/measurements.md has it in instructions.
        _ => [None, None],
    }
}

/// Who reads the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The thread that submits and collects, now and then.
    Same,
    /// A thread of its own, through another queue pair of the function, which has the ring.
    Own,
}

impl Reader {
    fn name(self) -> &'static str {
        match self {
            Reader::Same => "same thread",
            Reader::Own => "own thread",
        }
    }
}

/// A device under load, and who reads the ring beside it.
struct Opened {
    load: Box<dyn Device>,
    reader: Option<Box<dyn Device + Send>>,
}

impl Opened {
    fn new(kind: Kind, reader: Reader, queue: QueueConfig) -> Result<Self, BenchError> {
        #[cfg(feature = "gpu")]
        if reader == Reader::Own {
            let [reader, load] = crate::gpu::open_function(queue).map_err(BenchError::failed)?;
            return Ok(Opened { load: Box::new(load), reader: Some(Box::new(reader)) });
        }
        debug_assert!(reader == Reader::Same, "a GPU alone runs by itself");
        let settings = Settings { queue, ..Settings::default() };
        Ok(Opened { load: kind.open(&settings).map_err(BenchError::failed)?, reader: None })
    }

    /// Descriptors per second, DECODEs of `tokens` tokens, and events told of each.
    fn rate(&mut self, tokens: u32, count: u64) -> Result<(f64, f64), BenchError> {
        let Opened { load, reader } = self;
        let Some(reader) = reader else { return rate(&mut **load, tokens, count) };
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let mut events = vec![HwEvent::default(); LOOKED];
                let mut told = 0;
                loop {
                    // Asked before the look: what came before the end is seen.
                    let last = done.load(Ordering::Acquire);
                    let taken = reader.events(&mut events)?;
                    told += taken as u64;
                    match taken {
                        0 if last => return Ok::<_, BenchError>(told),
                        // It looks often enough to leave room, and no more: a look costs who writes, too.
                        0..LOOKED => thread::sleep(PAUSE),
                        _ => {}
                    }
                }
            });
            let measured = rate(&mut **load, tokens, count);
            done.store(true, Ordering::Release);
            let told = reads.join().expect("the reader does not panic")?;
            Ok((measured?.0, told as f64 / count as f64))
        })
    }
}

/// Descriptors per second, DECODEs of `tokens` tokens, and events told of each to this thread.
fn rate(device: &mut dyn Device, tokens: u32, count: u64) -> Result<(f64, f64), BenchError> {
    let place = |k: u32| u64::from(k) * u64::from(tokens) * 4;
    let pool: Vec<HwDesc> =
        (0..DEPTH).map(|k| HwDesc::decode(k, 0, tokens).with_delta_offset(place(k))).collect();
    let mut out = vec![HwCompletion::default(); BATCH];
    let mut events = vec![HwEvent::default(); LOOKED];
    let (mut submitted, mut completed, mut told, mut turn) = (0u64, 0u64, 0u64, 0u32);
    let start = Instant::now();
    while completed < count {
        let from = (submitted % u64::from(DEPTH)) as usize;
        let size = BATCH.min((count - submitted) as usize).min(pool.len() - from);
        let moved = if size > 0 { device.submit(&pool[from..from + size])? } else { 0 };
        submitted += moved as u64;
        let mut taken = device.collect(&mut out)?;
        if moved + taken == 0 {
            taken = device.poll(&mut out)?;
        }
        completed += taken as u64;
        turn += 1;
        if turn.is_multiple_of(LOOK) {
            told += device.events(&mut events)? as u64;
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    while let taken @ 1.. = device.events(&mut events)? {
        told += taken as u64;
    }
    Ok((rate, told as f64 / count as f64))
}

/// Of each of `RINGS`, the rates of all turns and the events told of each descriptor.
type Rates = [(Vec<f64>, f64); 3];

/// DECODEs of `tokens` tokens with each ring, in turns, so that all see the same machine.
fn rates(kind: Kind, reader: Reader, tokens: u32, count: u64, turns: usize) -> Result<Rates, BenchError> {
    let mut found = Rates::default();
    for _ in 0..turns {
        for ((_, slots, life), found) in RINGS.into_iter().zip(&mut found) {
            let queue = QueueConfig {
                sq_depth: DEPTH,
                cq_depth: DEPTH,
                token_bytes: 1 << 20,
                event_slots: slots,
                life_events: life,
                ..QueueConfig::default()
            };
            let mut opened = Opened::new(kind, reader, queue)?;
            // A first run brings all of it into its caches.
            opened.rate(tokens, count / 20)?;
            let (per_second, told) = opened.rate(tokens, count)?;
            found.0.push(per_second);
            found.1 = told;
        }
    }
    Ok(found)
}

/// The table, of the devices that have events.
pub fn cost(quick: bool) -> Result<Section, BenchError> {
    let turns = if quick { 3 } else { 9 };
    let mut table = table(
        ["device", "tokens", "read by", "event ring", "descriptors/s", "of none", "bar", "bar is", "told"],
        4,
    );
    let (mut rows, mut notes): (Vec<Value>, Vec<String>) = (vec![], vec![]);
    for kind in Kind::ALL {
        if let Some(reason) = kind.missing() {
            notes.push(format!("{}: left out, {reason}", kind.name()));
            continue;
        }
        let most = match kind {
            Kind::Gpu => 20_000_000,
            Kind::Model => 500_000,
            _ => 20_000,
        };
        let readers: &[Reader] =
            if kind == Kind::Gpu { &[Reader::Same, Reader::Own] } else { &[Reader::Same] };
        let loads = TOKENS.into_iter().zip([most, most / 4]);
        for ((tokens, count), &reader) in
            loads.flat_map(|load| readers.iter().map(move |reader| (load, reader)))
        {
            let found = rates(kind, reader, tokens, count, turns)?;
            let none = median(found[0].0.iter().copied());
            let bars = [None].into_iter().chain(bars(kind));
            for (((ring, ..), (rates, told)), bar) in RINGS.into_iter().zip(&found).zip(bars) {
                let per_second = median(rates.iter().copied());
                let share = per_second / none;
                table.add_row([
                    kind.name().to_owned(),
                    tokens.to_string(),
                    reader.name().to_owned(),
                    ring.to_owned(),
                    format!("{:.3} M", per_second / 1e6),
                    format!("{share:.3}"),
                    bar.map_or(String::new(), |bar| format!("{bar:.2}")),
                    bar.map_or("", |bar| verdict(share >= bar)).to_owned(),
                    format!("{told:.2}"),
                ]);
                rows.push(json!({
                    "device": kind.name(), "tokens": tokens, "reader": reader.name(), "ring": ring,
                    "per_second": per_second, "of_none": share, "bar": bar, "told": told,
                }));
            }
        }
    }
    notes.push(format!(
        "one queue pair and thread that submit and collect, batches of {BATCH}; the same thread reads the ring every {LOOK} \
         of them, or one of its own through another queue pair; medians of {turns} turns; \
         told: events read for each completion, the others found no room"
    ));
    Ok(Section { heading: "Events: what a ring costs".to_owned(), table, notes, json: json!(rows) })
}
