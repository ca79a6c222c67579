//! What the hot thread notes of what it does.

use std::collections::VecDeque;

use super::submission::Tag;
use crate::events::{Clock, DeviceLife, EventKind, HostTimes, Recorder, Ticks};
use crate::rollout::{RolloutId, State};
use doorbell_contract::{EventKind as HwEventKind, HwEvent};
use doorbell_host::Device;

/// The events of the hot thread: one reading of the clock for all that happens in a step.
pub(super) struct Journal {
    recorder: Option<Recorder>,
    clock: Clock,
    now: Ticks,
    /// The submission queues, by the places of their regions; none if nothing is recorded.
    rings: Box<[Ring]>,
    /// The queue of each rollout's last DECODE, by slot, where there are several queues.
    queues: Box<[u32]>,
    /// What pairs the device's LIFE events with what the host did; `None` unless they are recorded.
    partners: Option<Partners>,
}

/// Descriptors in the order of their completions' indices, by queue pair: what the host knows of each, and what the device tells.
struct Partners {
    queues: Box<[Partner]>,
    /// The last DECODE of each slot.
    decodes: Box<[Option<Flight>]>,
}

/// A DECODE that was posted.
#[derive(Clone, Copy)]
struct Flight {
    times: HostTimes,
    /// Its completion was handled.
    completed: bool,
    /// Queue pair and index of its completion, once the device has given it.
    place: Option<(usize, u32)>,
}

struct Partner {
    /// Index of the next completion whose name was not asked for; `None` where the device does not say.
    next: Option<u32>,
    /// What completions answer, without gaps.
    ends: VecDeque<(u32, End)>,
    events: VecDeque<HwEvent>,
}

/// What a completion answers.
#[derive(Clone, Copy)]
enum End {
    /// A DECODE whose completion was handled.
    Decode(HostTimes),
    /// A DECODE whose completion the device has given, and which is not handled yet.
    Awaited,
    /// Another descriptor.
    Other,
    /// Nobody knows: its name is not known, or that DECODE is not in flight.
    Unknown,
}

/// Completions that wait for their events, and events for their completions, at most: neither grows.
const MOST_WAITING: usize = 1 << 14;

impl Partner {
    fn new(next: Option<u32>) -> Partner {
        // Written, so that the pages are there.
        let (mut ends, mut events) = (VecDeque::new(), VecDeque::new());
        ends.resize(MOST_WAITING + 1, (0, End::Other));
        events.resize(MOST_WAITING + 1, HwEvent::default());
        ends.clear();
        events.clear();
        Partner { next, ends, events }
    }

    fn push(&mut self, index: u32, end: End) {
        self.ends.push_back((index, end));
        if self.ends.len() > MOST_WAITING {
            self.ends.pop_front();
        }
    }

    /// The end of this index, if it still waits for its event.
    fn end_mut(&mut self, index: u32) -> Option<&mut End> {
        let &(first, _) = self.ends.front()?;
        self.ends.get_mut(index.wrapping_sub(first) as usize).map(|(_, end)| end)
    }
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
    /// For the submission queues of `device`, which start at `sq_start`, and for rollouts in `slots` slots.
    pub fn new(
        recorder: Option<Recorder>,
        sq_start: Option<u32>,
        device: &dyn Device,
        slots: u32,
    ) -> Journal {
        let (capacity, queues) = (device.capacity(), device.token_regions().len().max(1));
        let ring = sq_start.filter(|_| recorder.is_some()).map(|start| Ring {
            slots: vec![None; capacity.next_power_of_two()].into(),
            tail: start,
            head: start,
        });
        let rings = ring.map_or(vec![], |ring| vec![ring; queues]);
        let partners = recorder.as_ref().filter(|recorder| recorder.wants_lives()).map(|_| Partners {
            queues: (0..queues).map(|queue| Partner::new(device.taken(queue))).collect(),
            decodes: vec![None; slots as usize].into(),
        });
        Journal {
            queues: vec![0; if rings.len() > 1 { slots as usize } else { 0 }].into(),
            rings: rings.into(),
            clock: Clock::new(),
            now: Ticks::default(),
            recorder,
            partners,
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

    /// The device's clock was read between `from` and now.
    pub fn ticks(&mut self, ticks: u64, from: Ticks) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_ticks(ticks, from, self.now);
        }
    }

    /// The trajectory of a rollout is stored, whose last descriptor this is.
    pub fn stored(&mut self, id: RolloutId, descriptor: u32, tokens: u32) {
        self.record(EventKind::TrajectoryDone, id, descriptor, tokens);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_stored(id, descriptor, self.now);
        }
    }

    /// The doorbell was rung for a DECODE, behind `ringing`.
    #[inline]
    pub fn committed(&mut self, id: RolloutId, descriptor: u32, ringing: Ticks) {
        self.record(EventKind::DescCommitted, id, descriptor, 0);
        let partners = self.partners.as_mut();
        if let Some(Some(flight)) = partners.and_then(|partners| partners.decodes.get_mut(id.slot() as usize))
        {
            flight.times.ringing = ringing;
        }
    }

    /// The completion that answers the descriptor of this name is handled.
    pub fn completed(&mut self, name: u64) {
        let (Some(Partners { queues, decodes }), Some(Tag::Decode(id))) =
            (&mut self.partners, Tag::from_bits(name))
        else {
            return;
        };
        let Some(flight) = flight(decodes, id) else { return };
        flight.completed = true;
        flight.times.polled = self.now;
        if let Some((queue, index)) = flight.place
            && let Some(end @ End::Awaited) = queues[queue].end_mut(index)
        {
            *end = End::Decode(flight.times);
        }
    }

    /// Asks the device what the completions answer that it has given since: their queue pair and index name their events. A rollout has one
    /// DECODE in flight, so this is to be called before the next one of a rollout whose completion was handled is posted.
    pub fn place(&mut self, device: &dyn Device) {
        let Some(Partners { queues, decodes }) = &mut self.partners else { return };
        for (queue, partner) in queues.iter_mut().enumerate() {
            let (Some(mut next), Some(taken)) = (partner.next, device.taken(queue)) else { continue };
            while next != taken {
                let event = HwEvent {
                    kind: HwEventKind::Life as u8,
                    queue_id: queue as u8,
                    index: next,
                    ..HwEvent::default()
                };
                let end = match device.answered(&event).map(Tag::from_bits) {
                    Some(Some(Tag::Decode(id))) => match flight(decodes, id) {
                        Some(flight) if flight.place.is_some() => End::Unknown,
                        Some(flight) => {
                            flight.place = Some((queue, next));
                            if flight.completed { End::Decode(flight.times) } else { End::Awaited }
                        }
                        None => End::Unknown,
                    },
                    Some(Some(_)) => End::Other,
                    Some(None) | None => End::Unknown,
                };
                partner.push(next, end);
                next = next.wrapping_add(1);
            }
            partner.next = Some(next);
        }
    }

    /// Passes on what the device tells of its descriptors.
    pub fn lives(&mut self, events: &[HwEvent]) {
        let (Some(recorder), Some(partners)) = (&mut self.recorder, &mut self.partners) else { return };
        for &event in events.iter().filter(|event| event.kind == HwEventKind::Life as u8) {
            match partners.queues.get_mut(usize::from(event.queue_id)) {
                Some(partner) => {
                    partner.events.push_back(event);
                    if partner.events.len() > MOST_WAITING
                        && let Some(event) = partner.events.pop_front()
                    {
                        recorder.record_unpaired(event);
                    }
                }
                // Of a queue pair that takes no DECODEs.
                None => recorder.record_life(DeviceLife { event, host: None }),
            }
        }
        for Partner { ends, events, .. } in partners.queues.iter_mut() {
            while let (Some(&(index, end)), Some(&event)) = (ends.front(), events.front()) {
                let behind = index.wrapping_sub(event.index) as i32;
                match end {
                    // Its event was dropped.
                    _ if behind < 0 => {}
                    // Its end was forgotten, or was there before.
                    _ if behind > 0 => recorder.record_unpaired(event),
                    End::Awaited => break,
                    End::Decode(host) => recorder.record_life(DeviceLife { event, host: Some(host) }),
                    End::Other => recorder.record_life(DeviceLife { event, host: None }),
                    End::Unknown => recorder.record_unpaired(event),
                }
                if behind <= 0 {
                    ends.pop_front();
                }
                if behind >= 0 {
                    events.pop_front();
                }
            }
        }
    }

    /// Passes on what is left of it, once the device has told all.
    pub fn finish_lives(&mut self) {
        self.lives(&[]);
        let (Some(recorder), Some(partners)) = (&mut self.recorder, &mut self.partners) else { return };
        let left = partners.queues.iter_mut().flat_map(|partner| partner.events.drain(..));
        left.for_each(|event| recorder.record_unpaired(event));
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

    /// A descriptor was put into the batch, with its running number if it is a DECODE.
    #[inline]
    pub fn posted(&mut self, tag: Tag, descriptor: u32) {
        if self.records()
            && let Tag::Decode(id) = tag
        {
            self.record_posted(id, descriptor);
        }
    }

    fn record_posted(&mut self, id: RolloutId, descriptor: u32) {
        self.record(EventKind::DescPosted, id, descriptor, 0);
        let posted = self.now;
        let partners = self.partners.as_mut();
        if let Some(flight) = partners.and_then(|partners| partners.decodes.get_mut(id.slot() as usize)) {
            let times = HostTimes { rollout: id, descriptor, posted, ringing: posted, polled: posted };
            *flight = Some(Flight { times, completed: false, place: None });
        }
    }

    /// A descriptor was submitted to this queue, if it is a DECODE that of this rollout and number: behind all that was submitted to it before.
    #[inline]
    pub fn submitted(&mut self, decode: Option<(RolloutId, u32)>, queue: usize) {
        if let Some((id, _)) = decode
            && let Some(place) = self.queues.get_mut(id.slot() as usize)
        {
            *place = queue as u32;
        }
        if let Some(Ring { slots, tail, .. }) = self.rings.get_mut(queue) {
            let mask = slots.len() - 1;
            slots[*tail as usize & mask] = decode;
            *tail = tail.wrapping_add(1);
        }
    }

    /// The device has taken all below `sq_head` of the queue that has completed `tag`. Of several queues only the completion of a DECODE names its
    /// own.
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

/// The last DECODE of this rollout.
fn flight(decodes: &mut [Option<Flight>], id: RolloutId) -> Option<&mut Flight> {
    decodes.get_mut(id.slot() as usize)?.as_mut().filter(|flight| flight.times.rollout == id)
}
