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
    /// The submission queues, by the places of their regions; none if nothing is recorded.
    rings: Box<[Ring]>,
    /// The queue of each rollout's last DECODE, by slot, where there are several queues.
    queues: Box<[u32]>,
}

/// A submission queue.
#[derive(Clone)]
struct Ring {
    /// What lies in each slot.
    slots: Box<[Option<(RolloutId, u32)>]>,
    /// Running index of the next descriptor to be submitted.
    tail: u32,
    /// Running index below which the device has taken all.
    head: u32,
}

impl Journal {
    /// For `queues` submission queues that start at `sq_start` and hold `capacity` descriptors together, and for rollouts in `slots` slots.
    pub fn new(
        recorder: Option<Recorder>,
        sq_start: Option<u32>,
        capacity: usize,
        queues: usize,
        slots: u32,
    ) -> Journal {
        let ring = sq_start.filter(|_| recorder.is_some()).map(|start| Ring {
            slots: vec![None; capacity.next_power_of_two()].into(),
            tail: start,
            head: start,
        });
        let rings = ring.map_or(vec![], |ring| vec![ring; queues.max(1)]);
        Journal {
            queues: vec![0; if rings.len() > 1 { slots as usize } else { 0 }].into(),
            rings: rings.into(),
            clock: Clock::new(),
            now: Ticks::default(),
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

    /// Whether it matters which queue a descriptor goes to.
    #[inline]
    pub fn tells_queues(&self) -> bool {
        self.rings.len() > 1
    }

    /// A descriptor was put into the batch, for this queue, with its running number if it is a DECODE.
    #[inline]
    pub fn posted(&mut self, tag: Tag, descriptor: u32, queue: usize) {
        if self.records() {
            self.record_posted(tag, descriptor, queue);
        }
    }

    fn record_posted(&mut self, tag: Tag, descriptor: u32, queue: usize) {
        let decode = match tag {
            Tag::Decode(id) => Some((id, descriptor)),
            _ => None,
        };
        if let Some((id, descriptor)) = decode {
            self.record(EventKind::DescPosted, id, descriptor, 0);
            if let Some(place) = self.queues.get_mut(id.slot() as usize) {
                *place = queue as u32;
            }
        }
        if let Some(Ring { slots, tail, .. }) = self.rings.get_mut(queue) {
            let mask = slots.len() - 1;
            slots[*tail as usize & mask] = decode;
            *tail = tail.wrapping_add(1);
        }
    }

    /// The device has taken all below `sq_head` of the queue that has completed `tag`. Of several queues only the completion of a DECODE names its
    /// own.
    #[inline]
    pub fn consumed(&mut self, tag: Option<Tag>, sq_head: u32) {
        let queue = match (self.rings.len(), tag) {
            (0, _) => return,
            (1, _) => 0,
            (_, Some(Tag::Decode(id))) => {
                self.queues.get(id.slot() as usize).map_or(0, |&queue| queue as usize)
            }
            _ => return,
        };
        // What the driver let through lies between head and tail.
        while let Some(Ring { slots, tail, head }) = self.rings.get_mut(queue)
            && *head != sq_head
            && *head != *tail
        {
            let taken = slots[*head as usize & (slots.len() - 1)];
            *head = head.wrapping_add(1);
            if let Some((id, descriptor)) = taken {
                self.record(EventKind::DescConsumed, id, descriptor, 0);
            }
        }
    }
}
