//! Events as a file that <https://ui.perfetto.dev> opens: the JSON trace event format, written as the events come.
//!
//! A track for each thread with the events that it recorded, a track for each slot with its rollouts and their stages, and
//! tracks of counters. The file is an array whose closing bracket the format lets one leave out, so that what a run
//! wrote before it died can be opened.

use std::fmt::{self, Display};
use std::io::{self, Write};

use super::pairing::PREFILL_READY;
use super::{Clock, Event, EventKind, STAGES, Ticks};
use crate::rollout::RolloutId;

/// Process numbers in the file: the threads and counters, and the slots.
const THREADS: u32 = 1;
const SLOTS: u32 = 2;

/// Writes a trace.
#[derive(Debug)]
pub struct Perfetto<W: Write> {
    out: W,
    clock: Clock,
    threads: Vec<Track>,
    slots: Vec<Slot>,
    counters: Track,
}

/// Nanoseconds of the newest entry of a track: within a track time does not go back, though events of several threads may.
#[derive(Clone, Copy, Debug, Default)]
struct Track(u64);

impl Track {
    fn at(&mut self, nanos: u64) -> Micros {
        self.0 = self.0.max(nanos);
        Micros(self.0)
    }
}

/// The format's unit of time, with nanoseconds as decimals.
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[derive(Clone, Debug, Default)]
struct Slot {
    track: Track,
    named: bool,
    /// The rollout whose slice is open, and whether one of a stage is open in it.
    open: Option<(RolloutId, bool)>,
}

impl<W: Write> Perfetto<W> {
    /// A trace of these threads, in the order of the index that [`Collector::poll`](super::Collector::poll) hands out, and
    /// of slots below `slots`. `out` should be buffered.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new<'a>(
        mut out: W,
        clock: Clock,
        threads: impl Iterator<Item = &'a str>,
        slots: u32,
    ) -> io::Result<Self> {
        write!(out, "[")?;
        name(&mut out, THREADS, 0, "process_name", "threads, by the host's clock")?;
        let mut tracks = vec![];
        for thread in threads {
            tracks.push(Track::default());
            write!(out, ",")?;
            name(&mut out, THREADS, tracks.len(), "thread_name", thread)?;
        }
        write!(out, ",")?;
        name(&mut out, SLOTS, 0, "process_name", "slots and their rollouts")?;
        let slots = vec![Slot::default(); slots as usize];
        Ok(Self { out, clock, threads: tracks, slots, counters: Track::default() })
    }

    /// Writes an event of thread `thread`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn event(&mut self, thread: usize, event: &Event) -> io::Result<()> {
        let nanos = self.nanos(event.time);
        if event.lost != 0 {
            self.instant(thread, nanos, "events dropped", format_args!(r#""at_least":{}"#, event.lost))?;
        }
        let rollout = event.rollout;
        match event.kind {
            EventKind::RolloutAlloc => self.slice(rollout, nanos, Some(PREFILL_READY))?,
            EventKind::StageEntered => self.slice(rollout, nanos, Some(event.value as usize))?,
            EventKind::RolloutFree => self.slice(rollout, nanos, None)?,
            EventKind::DecodeBatch => return self.counter_at(nanos, "decode batch", event.value.into()),
            _ => {}
        }
        let name = event.kind.name();
        let (descriptor, value) = (event.descriptor, event.value);
        if event.kind.is_bound() {
            let args = format_args!(
                r#""rollout":"{rollout}","descriptor":{descriptor},"clock":"host; the device did it earlier""#
            );
            return self.instant(thread, nanos, format_args!("{name} (seen by the host)"), args);
        }
        let args = format_args!(r#""rollout":"{rollout}","descriptor":{descriptor},"value":{value}"#);
        self.instant(thread, nanos, name, args)
    }

    /// Writes the value that a counter has now.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn counter(&mut self, now: Ticks, name: &str, value: u64) -> io::Result<()> {
        self.counter_at(self.nanos(now), name, value)
    }

    /// Ends the slices that are open and the file, and hands the latter back.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        for slot in 0..self.slots.len() {
            self.end_rollout(slot, 0)?;
        }
        writeln!(self.out, "\n]")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn nanos(&self, time: Ticks) -> u64 {
        self.clock.nanos(self.clock.origin(), time)
    }

    fn instant(
        &mut self,
        thread: usize,
        nanos: u64,
        name: impl Display,
        args: impl Display,
    ) -> io::Result<()> {
        let Some(track) = self.threads.get_mut(thread) else { return Ok(()) };
        let (ts, tid) = (track.at(nanos), thread + 1);
        write!(
            self.out,
            ",\n{{\"ph\":\"i\",\"s\":\"t\",\"pid\":{THREADS},\"tid\":{tid},\"ts\":{ts},\"name\":\"{name}\",\"args\":{{{args}}}}}"
        )
    }

    fn counter_at(&mut self, nanos: u64, name: &str, value: u64) -> io::Result<()> {
        let ts = self.counters.at(nanos);
        write!(
            self.out,
            ",\n{{\"ph\":\"C\",\"pid\":{THREADS},\"ts\":{ts},\"name\":\"{name}\",\"args\":{{\"value\":{value}}}}}"
        )
    }

    /// Puts a rollout into a stage, or ends it.
    fn slice(&mut self, rollout: RolloutId, nanos: u64, stage: Option<usize>) -> io::Result<()> {
        let slot = rollout.slot() as usize;
        let Some(state) = self.slots.get_mut(slot) else { return Ok(()) };
        if !std::mem::replace(&mut state.named, true) {
            write!(self.out, ",")?;
            name(&mut self.out, SLOTS, slot + 1, "thread_name", &format!("slot {slot}"))?;
        }
        match self.slots[slot].open {
            Some((open, true)) if open == rollout => self.edge(slot, nanos, 'E', "")?,
            Some((open, false)) if open == rollout => {}
            _ if stage.is_none() => return Ok(()),
            _ => {
                self.end_rollout(slot, nanos)?;
                self.edge(slot, nanos, 'B', format_args!("rollout {rollout}"))?;
            }
        }
        self.slots[slot].open = Some((rollout, false));
        let Some(stage) = stage else { return self.end_rollout(slot, nanos) };
        if let Some(name) = STAGES.get(stage) {
            self.edge(slot, nanos, 'B', name)?;
            self.slots[slot].open = Some((rollout, true));
        }
        Ok(())
    }

    fn end_rollout(&mut self, slot: usize, nanos: u64) -> io::Result<()> {
        if let Some((_, stage)) = self.slots[slot].open.take() {
            for _ in 0..1 + usize::from(stage) {
                self.edge(slot, nanos, 'E', "")?;
            }
        }
        Ok(())
    }

    /// Begins (`B`) a slice on a slot's track or ends (`E`) the innermost.
    fn edge(&mut self, slot: usize, nanos: u64, phase: char, name: impl Display) -> io::Result<()> {
        let (ts, tid) = (self.slots[slot].track.at(nanos), slot + 1);
        write!(
            self.out,
            ",\n{{\"ph\":\"{phase}\",\"pid\":{SLOTS},\"tid\":{tid},\"ts\":{ts},\"name\":\"{name}\"}}"
        )
    }
}

/// Names a process or a thread.
fn name(out: &mut impl Write, pid: u32, tid: usize, what: &str, name: &str) -> io::Result<()> {
    // A thread may be called anything.
    let name = serde_json::to_string(name)?;
    write!(
        out,
        "\n{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{what}\",\"args\":{{\"name\":{name}}}}}"
    )
}
