//! The event ring of one function of a device in software (R23).

use bytemuck::cast;

use super::Refused;
use crate::queue::{Depth, between};
use doorbell_contract::{DeviceFault, EVENT_DELTA_MAX, EventKind, HwEvent};

/// Where the ring of a function lies, and what goes into it: fixed while a queue pair of the function is active.
#[derive(Clone, Copy, Debug)]
pub struct EventRing {
    /// Bus address of slot 0.
    pub base: u64,
    /// Its slots.
    pub depth: Depth,
    /// Whether completions have events.
    pub life: bool,
}

/// The events of one function. Indices run freely (R13).
#[derive(Debug, Default)]
pub(super) struct Events {
    ring: Option<EventRing>,
    head: u32,
    tail: u32,
    dropped: u32,
}

/// An event on its way into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventWrite {
    /// Bus address of the slot.
    pub address: u64,
    /// What it holds.
    pub words: [u64; 4],
}

/// The moments of a descriptor's life, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Its slot had been read.
    pub fetched: u64,
    /// A worker began with it; or its end, if none did.
    pub started: u64,
    /// Its first token was there; or its end, if it has none.
    pub first_token: u64,
    /// Its end was known.
    pub ended: u64,
    /// Its completion was visible.
    pub visible: u64,
}

impl Life {
    /// The event that tells of it, for completion `index` of `queue`.
    pub fn event(&self, queue: u8, worker_id: u16, index: u32) -> HwEvent {
        let delta = |moment: u64| moment.saturating_sub(self.fetched).min(EVENT_DELTA_MAX.into()) as u32;
        HwEvent {
            kind: EventKind::Life as u8,
            queue_id: queue,
            worker_id,
            index,
            stamp: self.fetched,
            start: delta(self.started),
            first_token: delta(self.first_token),
            ended: delta(self.ended),
            visible: delta(self.visible),
        }
    }
}

/// Faults of a queue pair that no event has told of yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untold {
    pub faults: DeviceFault,
    /// The first completion whose write was not answered then.
    pub index: u32,
}

impl Untold {
    pub fn event(&self, queue: u8, now: u64) -> HwEvent {
        HwEvent {
            kind: EventKind::Fault as u8,
            queue_id: queue,
            index: self.index,
            stamp: now,
            start: self.faults.bits(),
            ..HwEvent::default()
        }
    }
}

impl Events {
    /// The first queue pair of the function is enabled, and EQ_SIZE is not 0 with `Some`.
    pub fn start(&mut self, ring: Option<EventRing>) {
        *self = Self { ring, ..Self::default() };
    }

    /// The ring, if there is one.
    pub fn ring(&self) -> Option<EventRing> {
        self.ring
    }

    /// What a device that writes the events elsewhere tells: events written up to, and those that were dropped.
    pub fn show(&mut self, tail: u32, dropped: u32) {
        (self.tail, self.dropped) = (tail, dropped);
    }

    /// Whether completions have events.
    pub fn has_life(&self) -> bool {
        self.ring.is_some_and(|ring| ring.life)
    }

    /// Releases the events below `head`, of a ring that runs.
    pub fn release(&mut self, head: u32) -> Result<(), Refused> {
        if self.ring.is_none() || !between(self.head, head, self.tail) {
            return Err(Refused);
        }
        self.head = head;
        Ok(())
    }

    /// Gives an event the next slot, or drops and counts it. Only `urgent` ones have the last quarter.
    pub fn place(&mut self, event: HwEvent, urgent: bool) -> Option<EventWrite> {
        let EventRing { base, depth, .. } = self.ring?;
        let kept = if urgent { 0 } else { (depth.slots() / 4).max(1) };
        if self.tail.wrapping_sub(self.head) >= depth.slots() - kept {
            self.lose();
            return None;
        }
        let index = self.tail;
        self.tail = index.wrapping_add(1);
        let offset = u64::from(depth.slot(index)) * size_of::<HwEvent>() as u64;
        Some(EventWrite {
            address: base.wrapping_add(offset),
            words: cast(event.with_phase(depth.phase(index))),
        })
    }

    /// Counts an event that was dropped, or whose write was answered with an error.
    pub fn lose(&mut self) {
        self.dropped = self.dropped.saturating_add(1);
    }

    /// EQ_HEAD, EQ_TAIL and EVENTS_DROPPED.
    pub fn words(&self) -> [u32; 3] {
        [self.head, self.tail, self.dropped]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn running(slots: u32) -> Events {
        let mut events = Events::default();
        let depth = Depth::new("event_slots", slots).unwrap();
        events.start(Some(EventRing { base: 1 << 32, depth, life: true }));
        events
    }

    /// R23: how many of each kind there is room for, of a ring that nobody reads.
    #[rstest]
    #[case(2, 1)]
    #[case(4, 3)]
    #[case(8, 6)]
    #[case(65_536, 49_152)]
    fn r23_life_leaves_the_last_quarter(#[case] slots: u32, #[case] life: u32) {
        let mut events = running(slots);
        let place = |events: &mut Events, urgent| events.place(HwEvent::default(), urgent).is_some();
        for k in 0..slots {
            assert_eq!(place(&mut events, false), k < life, "{k}");
        }
        assert_eq!(events.words(), [0, life, slots - life]);
        for k in life..=slots {
            assert_eq!(place(&mut events, true), k < slots, "{k}");
        }
        assert_eq!(events.words(), [0, slots, slots - life + 1]);
        // What is released is room for faults first.
        assert_eq!(events.release(slots - life), Ok(()));
        assert!(!place(&mut events, false) && place(&mut events, true));
        assert_eq!(events.release(slots + 1), Ok(()));
        assert!(place(&mut events, false));
    }

    #[test]
    fn r13_r23_slots_and_phases_go_round() {
        let mut events = running(4);
        for index in 0..11u32 {
            let write = events.place(HwEvent { index, ..HwEvent::default() }, false).unwrap();
            assert_eq!(write.address, (1 << 32) + 32 * u64::from(index % 4));
            let event = HwEvent { index, ..HwEvent::default() }.with_phase(index / 4 % 2 == 0);
            assert_eq!(cast::<_, HwEvent>(write.words), event);
            assert_eq!(events.release(index + 1), Ok(()));
        }
    }

    #[test]
    fn r23_impossible_releases_are_refused() {
        assert_eq!(Events::default().release(0), Err(Refused));
        let mut events = running(4);
        assert_eq!(events.release(1), Err(Refused));
        events.place(HwEvent::default(), false);
        events.place(HwEvent::default(), false);
        assert_eq!(
            [events.release(2), events.release(1), events.release(3)],
            [Ok(()), Err(Refused), Err(Refused)]
        );
        events.start(None);
        assert_eq!((events.words(), events.has_life()), ([0; 3], false));
        assert!(events.place(HwEvent::default(), true).is_none());
        assert_eq!(events.words(), [0; 3], "there is no ring to drop from");
    }

    #[test]
    fn r23_deltas_saturate() {
        let most = u64::from(EVENT_DELTA_MAX);
        let life = Life { fetched: 5, started: 4, first_token: 4 + most, ended: 5 + most, visible: u64::MAX };
        let event = life.event(3, 7, 9);
        assert_eq!([event.start, event.first_token], [0, EVENT_DELTA_MAX - 1]);
        assert_eq!([event.ended, event.visible], [EVENT_DELTA_MAX; 2]);
        assert_eq!((event.stamp, event.queue_id, event.worker_id, event.index), (5, 3, 7, 9));
    }
}
