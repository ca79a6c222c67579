//! Events as a file that <https://ui.perfetto.dev> opens: the JSON trace event format, written as the events come.
//!
//! A track with the events of the hot thread, a track for each slot with its rollouts and their stages, tracks of
//! counters, and, where the device tells the lives of its descriptors (R23), a track for each worker. An arrow leads from a DECODE in its slot over
//! the worker that ran it to where the host saw its completion. The file is an array whose closing bracket the format lets one leave out, so that what a run wrote before it
//! died can be opened.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::io::{self, Write};

use super::{Clock, Event, EventKind, MappedLife, STAGES, TickRate, Ticks, Unit};
use crate::rollout::{RolloutId, State};
use doorbell_contract::HwEvent;

/// Process numbers in the file: the threads and counters, the slots, and the device.
const THREADS: u32 = 1;
const SLOTS: u32 = 2;
const DEVICE: u32 = 3;
const DEVICE_ALONE: u32 = 4;

/// Writes a trace.
#[derive(Debug)]
pub struct Perfetto<W: Write> {
    out: W,
    clock: Clock,
    slots: Vec<Slot>,
    /// When the last event was.
    now: Ticks,
    /// The device's clock, and the workers that have a track, by process, queue pair and number, each with the end of its last slice.
    rate: TickRate,
    workers: HashMap<(u32, u8, u16), u64>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    named: bool,
    /// The rollout whose slice is open, and whether one of a stage is open in it.
    open: Option<(RolloutId, bool)>,
    /// The DECODE whose slice is open in that of the stage.
    descriptor: Option<u32>,
}

impl<W: Write> Perfetto<W> {
    /// A trace of the events that a [`Collector`](super::Collector) shows, of slots below `slots`. `out` should be
    /// buffered.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, clock: Clock, slots: u32) -> io::Result<Self> {
        let (now, slots) = (clock.origin(), vec![Slot::default(); slots as usize]);
        let (rate, workers) = (TickRate::default(), HashMap::new());
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

    /// Writes what the device tells of a descriptor: a slice on the track of its worker, and an arrow to it. Where the clocks could not be
    /// compared, the slice lies by the device's own clock, and there is no arrow.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn life(&mut self, mapped: &MappedLife) -> io::Result<()> {
        let MappedLife { life, moments } = mapped;
        let HwEvent { queue_id, worker_id, index, start: queued, first_token, visible, .. } = life.event;
        let process = if moments.is_some() { DEVICE } else { DEVICE_ALONE };
        let track = 1 + (usize::from(queue_id) << 16) + usize::from(worker_id);
        let key = (process, queue_id, worker_id);
        if !self.workers.keys().any(|&(named, ..)| named == process) {
            write!(self.out, ",")?;
            let clock = match (moments, self.rate.unit()) {
                (Some(_), _) => "the device, on the host's clock",
                (None, Unit::Nanoseconds) => "the device, by its own clock",
                (None, Unit::Ticks) => "the device, a tick of its own clock shown as 1 ns",
            };
            self.name(process, 0, "process_name", clock)?;
        }
        if !self.workers.contains_key(&key) {
            write!(self.out, ",")?;
            self.name(process, track, "thread_name", &format!("queue pair {queue_id}, worker {worker_id}"))?;
        }
        let at = |delta: u32| self.rate.nanos(life.event.stamp + u64::from(delta));
        let (start, end) =
            moments.map_or((at(queued), at(life.event.ended)), |moments| (moments[1], moments[2]));
        // A worker has one at a time, however its moments are rounded.
        let last = self.workers.entry(key).or_default();
        let start = start.max(*last);
        let end = end.max(start);
        *last = end;
        write!(
            self.out,
            ",\n{{\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":{process},\"tid\":{track},\
             \"name\":\"completion {index}\",\"args\":{{\"queued_ticks\":{queued},\
             \"first_token_ticks\":{first_token},\"visible_ticks\":{visible}}}}}",
            Micros(start),
            Micros(end - start),
        )?;
        match (moments, life.host) {
            (Some(_), Some(host)) => self.flow('t', Micros(start), process, track, host.descriptor),
            _ => Ok(()),
        }
    }

    /// A step of the arrow of a DECODE, in the slice that is open there.
    fn flow(&mut self, phase: char, at: Micros, pid: u32, tid: usize, descriptor: u32) -> io::Result<()> {
        write!(
            self.out,
            ",\n{{\"ph\":\"{phase}\",\"bp\":\"e\",\"ts\":{at},\"pid\":{pid},\"tid\":{tid},\"cat\":\"descriptor\",\
             \"name\":\"descriptor\",\"id\":{descriptor}}}"
        )
    }

    /// Opens the slice of a DECODE in that of its stage, where its arrow begins.
    fn open_descriptor(&mut self, rollout: RolloutId, descriptor: u32) -> io::Result<()> {
        let slot = rollout.slot() as usize;
        self.close_descriptor(slot)?;
        if self.slots.get(slot).is_none_or(|state| state.open != Some((rollout, true))) {
            return Ok(());
        }
        self.edge(slot, 'B', format_args!("descriptor {descriptor}"))?;
        self.slots[slot].descriptor = Some(descriptor);
        self.flow('s', self.micros(self.now), SLOTS, slot + 1, descriptor)
    }

    /// Ends the slice of a slot's DECODE, if one is open.
    fn close_descriptor(&mut self, slot: usize) -> io::Result<()> {
        match self.slots.get_mut(slot).and_then(|state| state.descriptor.take()) {
            Some(_) => self.edge(slot, 'E', ""),
            None => Ok(()),
        }
    }

    /// The host has seen its completion: there its arrow ends.
    fn end_descriptor(&mut self, rollout: RolloutId, descriptor: u32) -> io::Result<()> {
        let slot = rollout.slot() as usize;
        if self.slots.get(slot).is_some_and(|state| state.descriptor == Some(descriptor)) {
            self.flow('f', self.micros(self.now), SLOTS, slot + 1, descriptor)?;
        }
        self.close_descriptor(slot)
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
            EventKind::DescPosted => self.open_descriptor(rollout, descriptor)?,
            EventKind::CompletionPolled => self.end_descriptor(rollout, descriptor)?,
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
        let at = self.micros(time);
        write!(self.out, ",\n{{\"ph\":\"{phase}\",\"ts\":{at},{rest}}}")
    }

    fn micros(&self, time: Ticks) -> Micros {
        Micros(self.clock.nanos(self.clock.origin(), time))
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
        self.close_descriptor(slot)?;
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
        self.close_descriptor(slot)?;
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

/// Nanoseconds, as the format's unit of time has them.
#[derive(Clone, Copy)]
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
