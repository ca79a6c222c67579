//! What the hot thread notes of what it does.

use super::submission::Tag;
use crate::events::{Clock, EventKind, Recorder, Ticks};
use crate::rollout::{RolloutId, State};
use doorbell_contract::{EventKind as HwEventKind, HwEvent};

/// The events of the hot thread: one reading of the clock for all that happens in a step.
pub(super) struct Journal {
    recorder: Option<Recorder>,
    clock: Clock,
    now: Ticks,
    /// What lies in each slot of the submission queue, if it is one queue.
    slots: Box<[Option<(RolloutId, u32)>]>,
    /// Running index of the next descriptor to be submitted.
    tail: u32,
    /// Running index below which the device has taken all.
    head: u32,
}

impl Journal {
    pub fn new(recorder: Option<Recorder>, sq_start: Option<u32>, capacity: usize) -> Journal {
        let slots = if recorder.is_some() && sq_start.is_some() { capacity } else { 0 };
        let start = sq_start.unwrap_or(0);
        Journal {
            clock: Clock::new(),
            now: Ticks::default(),
            slots: vec![None; slots].into(),
            tail: start,
            head: start,
            recorder,
        }
    }

    #[inline]
    pub fn read_clock(&mut self) -> Ticks {
        self.now = self.clock.now();
        self.now
    }

    /// Whether anything that is noted is kept.
    #[inline]
    pub fn records(&self) -> bool {
        self.recorder.is_some()
    }

    #[inline]
    pub fn record(&mut self, kind: EventKind, id: RolloutId, descriptor: u32, value: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(kind, id, descriptor, value, self.now);
        }
    }

    /// Whether the device's LIFE events are kept.
    #[inline]
    pub fn wants_lives(&self) -> bool {
        self.recorder.as_ref().is_some_and(Recorder::wants_lives)
    }

    /// Passes on what the device tells of its descriptors.
    pub fn lives(&mut self, events: &[HwEvent]) {
        let Some(recorder) = &mut self.recorder else { return };
        for event in events.iter().filter(|event| event.kind == HwEventKind::Life as u8) {
            recorder.record_life(event);
        }
    }

    #[inline]
    pub fn entered(&mut self, id: RolloutId, stage: State) {
        match stage {
            State::PrefillReady => self.record(EventKind::RolloutAlloc, id, 0, 0),
            State::Free => self.record(EventKind::RolloutFree, id, 0, 0),
            stage => self.record(EventKind::StageEntered, id, 0, stage as u32),
        }
    }

    /// A descriptor was put into the batch, with its running number if it is a DECODE.
    #[inline]
    pub fn posted(&mut self, tag: Tag, descriptor: u32) {
        let index = self.tail;
        self.tail = index.wrapping_add(1);
        if self.records() {
            self.record_posted(tag, descriptor, index);
        }
    }

    fn record_posted(&mut self, tag: Tag, descriptor: u32, index: u32) {
        let decode = match tag {
            Tag::Decode(id) => Some((id, descriptor)),
            _ => None,
        };
        if let Some((id, descriptor)) = decode {
            self.record(EventKind::DescPosted, id, descriptor, 0);
        }
        let mask = self.slots.len().wrapping_sub(1);
        if let Some(slot) = self.slots.get_mut(index as usize & mask) {
            *slot = decode;
        }
    }

    /// The device has taken all below `sq_head`, as a completion tells.
    #[inline]
    pub fn consumed(&mut self, sq_head: u32) {
        if self.slots.is_empty() {
            return;
        }
        let mask = self.slots.len() - 1;
        // What the driver let through lies between head and tail.
        while self.head != sq_head && self.head != self.tail {
            if let Some((id, descriptor)) = self.slots[self.head as usize & mask] {
                self.record(EventKind::DescConsumed, id, descriptor, 0);
            }
            self.head = self.head.wrapping_add(1);
        }
    }
}
