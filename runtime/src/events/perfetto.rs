//! Events as a file that <https://ui.perfetto.dev> opens: the JSON trace event format, written as the events come.
//!
//! A track with the events of the hot thread, a track for each slot with its rollouts and their stages, tracks of
//! counters, and, where the device tells the lives of its descriptors (R23), a track for each worker. The file is an array whose closing bracket the format lets one leave out, so that what a run wrote before it
//! died can be opened.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, Write};

use super::{Clock, Event, EventKind, STAGES, TickRate, Ticks, Unit};
use crate::rollout::{RolloutId, State};
use doorbell_contract::HwEvent;

/// Process numbers in the file: the threads and counters, the slots, and the device.
const THREADS: u32 = 1;
const SLOTS: u32 = 2;
const DEVICE: u32 = 3;

/// Writes a trace.
#[derive(Debug)]
pub struct Perfetto<W: Write> {
    out: W,
    clock: Clock,
    slots: Vec<Slot>,
    /// When the last event was.
    now: Ticks,
    /// The device's clock, and the workers that have a track, by queue pair and number.
    rate: TickRate,
    workers: HashSet<(u8, u16)>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    named: bool,
    /// The rollout whose slice is open, and whether one of a stage is open in it.
    open: Option<(RolloutId, bool)>,
}

impl<W: Write> Perfetto<W> {
    /// A trace of the events that a [`Collector`](super::Collector) shows, of slots below `slots`. `out` should be
    /// buffered.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, clock: Clock, slots: u32) -> io::Result<Self> {
        let (now, slots) = (clock.origin(), vec![Slot::default(); slots as usize]);
        let (rate, workers) = (TickRate::default(), HashSet::new());
        let mut this = Self { out, now, clock, slots, rate, workers };
        write!(this.out, "[")?;
        this.name(THREADS, 0, "process_name", "threads, by the host's clock")?;
        write!(this.out, ",")?;
        this.name(THREADS, 1, "thread_name", "hot")?;
        write!(this.out, ",")?;
        this.name(SLOTS, 0, "process_name", "slots and their rollouts")?;
        Ok(this)
    }

    /// With a device whose clock has this rate: without one, its ticks are shown as nanoseconds.
    #[must_use]
    pub fn with_device(self, rate: TickRate) -> Self {
        Self { rate, ..self }
    }

    /// Writes what the device tells of a descriptor: a slice on the track of its worker, by the device's own clock, which has
    /// nothing to do with the host's.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn life(&mut self, life: &HwEvent) -> io::Result<()> {
        let (queue, worker) = (life.queue_id, life.worker_id);
        let track = 1 + (usize::from(queue) << 16) + usize::from(worker);
        if self.workers.is_empty() {
            write!(self.out, ",")?;
            let clock = match self.rate.unit() {
                Unit::Nanoseconds => "the device, by its own clock",
                Unit::Ticks => "the device, a tick of its own clock shown as 1 ns",
            };
            self.name(DEVICE, 0, "process_name", clock)?;
        }
        if self.workers.insert((queue, worker)) {
            write!(self.out, ",")?;
            self.name(DEVICE, track, "thread_name", &format!("queue pair {queue}, worker {worker}"))?;
        }
        let at = |delta: u32| self.rate.nanos(life.stamp + u64::from(delta));
        let (start, end) = (at(life.start), at(life.ended));
        let (length, HwEvent { index, start: queued, first_token, visible, .. }) = (end - start, life);
        write!(
            self.out,
            ",\n{{\"ph\":\"X\",\"ts\":{}.{:03},\"dur\":{}.{:03},\"pid\":{DEVICE},\"tid\":{track},\
             \"name\":\"completion {index}\",\"args\":{{\"queued_ticks\":{queued},\
             \"first_token_ticks\":{first_token},\"visible_ticks\":{visible}}}}}",
            start / 1000,
            start % 1000,
            length / 1000,
            length % 1000
        )
    }

    /// Writes an event; times must not decrease.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let &Event { time, rollout, descriptor, value, kind, lost } = event;
        self.now = time;
        if lost != 0 {
            self.instant("events dropped", format_args!(r#""at_least":{lost}"#))?;
        }
        match kind {
            EventKind::RolloutAlloc => self.slice(rollout, Some(State::PrefillReady as usize))?,
            EventKind::StageEntered => self.slice(rollout, Some(value as usize))?,
            EventKind::RolloutFree => self.slice(rollout, None)?,
            EventKind::DecodeBatch => return self.counter(time, "decode batch", value.into()),
            _ => {}
        }
        let name = kind.name();
        if kind.is_bound() {
            let args = format_args!(
                r#""rollout":"{rollout}","descriptor":{descriptor},"clock":"host; the device did it earlier""#
            );
            return self.instant(format_args!("{name} (seen by the host)"), args);
        }
        self.instant(name, format_args!(r#""rollout":"{rollout}","descriptor":{descriptor},"value":{value}"#))
    }

    /// Writes the value that a counter has now.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn counter(&mut self, now: Ticks, name: &str, value: u64) -> io::Result<()> {
        self.entry('C', now, format_args!(r#""pid":{THREADS},"name":"{name}","args":{{"value":{value}}}"#))
    }

    /// Ends the slices that are open and the file, and hands the latter back.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        for slot in 0..self.slots.len() {
            self.end_rollout(slot)?;
        }
        writeln!(self.out, "\n]")?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// An entry of kind `phase`. The format's unit of time is a microsecond, with nanoseconds as decimals.
    fn entry(&mut self, phase: char, time: Ticks, rest: impl Display) -> io::Result<()> {
        let nanos = self.clock.nanos(self.clock.origin(), time);
        let (micros, decimals) = (nanos / 1000, nanos % 1000);
        write!(self.out, ",\n{{\"ph\":\"{phase}\",\"ts\":{micros}.{decimals:03},{rest}}}")
    }

    /// Names a process or a thread.
    fn name(&mut self, pid: u32, tid: usize, what: &str, name: &str) -> io::Result<()> {
        write!(
            self.out,
            "\n{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{what}\",\"args\":{{\"name\":\"{name}\"}}}}"
        )
    }

    fn instant(&mut self, name: impl Display, args: impl Display) -> io::Result<()> {
        let rest = format_args!(r#""s":"t","pid":{THREADS},"tid":1,"name":"{name}","args":{{{args}}}"#);
        self.entry('i', self.now, rest)
    }

    /// Puts a rollout into a stage, or ends it.
    fn slice(&mut self, rollout: RolloutId, stage: Option<usize>) -> io::Result<()> {
        let slot = rollout.slot() as usize;
        let Some(state) = self.slots.get_mut(slot) else { return Ok(()) };
        if !std::mem::replace(&mut state.named, true) {
            write!(self.out, ",")?;
            self.name(SLOTS, slot + 1, "thread_name", &format!("slot {slot}"))?;
        }
        match self.slots[slot].open {
            Some((open, true)) if open == rollout => self.edge(slot, 'E', "")?,
            Some((open, false)) if open == rollout => {}
            _ if stage.is_none() => return Ok(()),
            _ => {
                self.end_rollout(slot)?;
                self.edge(slot, 'B', format_args!("rollout {rollout}"))?;
            }
        }
        self.slots[slot].open = Some((rollout, false));
        let Some(stage) = stage else { return self.end_rollout(slot) };
        if let Some(name) = STAGES.get(stage) {
            self.edge(slot, 'B', name)?;
            self.slots[slot].open = Some((rollout, true));
        }
        Ok(())
    }

    fn end_rollout(&mut self, slot: usize) -> io::Result<()> {
        if let Some((_, stage)) = self.slots[slot].open.take() {
            for _ in 0..1 + usize::from(stage) {
                self.edge(slot, 'E', "")?;
            }
        }
        Ok(())
    }

    /// Begins (`B`) a slice on a slot's track or ends (`E`) the innermost.
    fn edge(&mut self, slot: usize, phase: char, name: impl Display) -> io::Result<()> {
        self.entry(phase, self.now, format_args!(r#""pid":{SLOTS},"tid":{},"name":"{name}""#, slot + 1))
    }
}
