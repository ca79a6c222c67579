//! The life of each descriptor of a replay, as the events of the device tell it (R23).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use bytemuck::Zeroable;
use doorbell_contract::{DescFlags, HwCompletion, HwDesc, HwEvent, Opcode};
use doorbell_host::device::Device;
use doorbell_host::error::DeviceError;

use crate::replay::ReplayPlan;

/// Events that are read at a time.
const BATCH: usize = 256;
/// A wait is named only if it ended at most this many of the device's own steps before the worker began. The limit is at least `SLACK_MIN`
/// ticks.
const SLACK: u64 = 8;
const SLACK_MIN: u64 = 32;
/// The longest chain of descriptors waiting their turn that is followed.
const TURNS: usize = 64;
/// Looks for the events of what has completed, before they count as lost.
const LAST_LOOKS: usize = 1000;

/// One descriptor of a replay.
#[derive(Clone, Debug)]
pub struct Life {
    /// The descriptor, as it was submitted.
    pub desc: HwDesc,
    /// Which of the device's completions answers it, from 0, and the completion.
    pub completion: Option<(usize, HwCompletion)>,
    /// Its LIFE event. `None` if the device has no events, or none came.
    pub event: Option<HwEvent>,
}

/// The moments are `None` without an event, and of one that [contradicts itself](Life::contradicts_itself).
impl Life {
    /// Whether its event breaks R23: by it a worker began after the end, or the completion was visible before it.
    pub fn contradicts_itself(&self) -> bool {
        self.event.is_some_and(|event| event.start > event.ended || event.ended > event.visible)
    }

    /// The tick at which its slot had been read.
    pub fn read(&self) -> Option<u64> {
        self.after(|_| 0)
    }

    fn after(&self, delta: impl Fn(&HwEvent) -> u32) -> Option<u64> {
        let event = self.event.filter(|_| !self.contradicts_itself())?;
        Some(event.stamp.saturating_add(delta(&event).into()))
    }

    /// The tick at which a worker began with it.
    pub fn began(&self) -> Option<u64> {
        self.after(|event| event.start)
    }

    /// The tick at which its end was known.
    pub fn ended(&self) -> Option<u64> {
        self.after(|event| event.ended)
    }

    /// The tick at which its completion was visible.
    pub fn visible(&self) -> Option<u64> {
        self.after(|event| event.visible)
    }

    fn has(&self, flag: DescFlags) -> bool {
        DescFlags::from_bits_retain(self.desc.flags).contains(flag)
    }
}

/// What a descriptor waited for between the read of its slot and its beginning.
#[derive(Clone, Copy, Debug)]
pub enum Waited<'a> {
    /// The descriptor before it of its rollout (R5).
    Order(&'a Life),
    /// A fence before it (R7).
    Fence(&'a Life),
    /// It is a fence: the last to complete of all before it (R7).
    Earlier(&'a Life),
    /// The PREFILL of its group (R17).
    Prefill(&'a Life),
    /// The worker that ran it, which had another descriptor (R16).
    Worker(&'a Life),
    /// Its turn: the descriptor before it in its queue pair had not begun (R16).
    Turn(&'a Life),
    /// Nothing that events show, as a slot of the completion queue (R4).
    Unknown,
}

/// What a replay keeps of its own, from which lives are made.
#[derive(Clone, Copy)]
pub(crate) struct Records<'a> {
    pub plan: &'a ReplayPlan,
    /// The `user_data` of each descriptor that was made, in the order of submission; POLICYs are none of them.
    pub names: &'a [u64],
    /// The completions that answer them, in the order in which they came.
    pub completions: &'a [HwCompletion],
}

/// All descriptors of a replay on one device, in the order in which they were submitted.
#[derive(Debug, Default)]
pub struct Lives {
    lives: Vec<Life>,
    /// Places in `lives` by `user_data`, which no two descriptors of a plan share.
    places: HashMap<u64, usize, BuildHasherDefault<NameHasher>>,
    completed: usize,
    /// LIFE events that came, of descriptors of the replay.
    has_told: usize,
    /// Stamp of the first event.
    first: Option<u64>,
    /// Whether the device keeps its events until it is asked for them.
    device_keeps: bool,
    /// What is noted and not yet in `lives`.
    notes: Notes,
    /// How many of [`Records::names`] and of [`Records::completions`] are in `lives`.
    entered: (usize, usize),
}

/// What came beside a replay's own records. The device waits while the host notes, and memory that is touched for the first time costs more
/// than what is written there, so little is noted for each descriptor.
#[derive(Debug, Default)]
struct Notes {
    made: Vec<Made>,
    /// How many of those were submitted.
    submitted: usize,
    /// POLICYs, each with how many other descriptors were submitted before it.
    policies: Vec<(usize, HwDesc)>,
    /// Completions that are not among the replay's: each with how many of those came before it, and with the `user_data` of what it answers.
    others: Vec<(usize, u64, HwCompletion)>,
    /// Of the replay's completions those with another `user_data` than their descriptor, which follows.
    renamed: Vec<(usize, u64)>,
    /// Of a device that does not keep them, each with the `user_data` of its descriptor.
    events: Vec<(u64, HwEvent)>,
}

/// What neither the plan nor the `user_data` of a descriptor says.
#[derive(Clone, Copy, Debug)]
struct Made {
    seq_len: u32,
    version: u16,
}

/// Spreads the `user_data` of a plan, which nobody chooses to collide.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, name: u64) {
        let product = u128::from(name ^ name >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
}

impl Lives {
    /// The lives of a replay on `device` that is about to begin.
    pub(crate) fn new(device: &dyn Device) -> Self {
        Self { device_keeps: device.keeps_lives(), ..Self::default() }
    }

    /// Notes a descriptor that was made: the version that it names and, of a DECODE, where its rollout stands.
    pub(crate) fn made(&mut self, seq_len: u32, version: u16) {
        self.notes.made.push(Made { seq_len, version });
    }

    /// Notes that so many more of them were submitted.
    pub(crate) fn submitted(&mut self, count: usize) {
        self.notes.submitted += count;
    }

    /// Notes a POLICY that was submitted.
    pub(crate) fn policy(&mut self, desc: &HwDesc) {
        self.notes.policies.push((self.notes.submitted, *desc));
    }

    /// Notes that completion `place` of the replay's answers the descriptor with this `user_data`, and has another.
    pub(crate) fn renamed(&mut self, place: usize, name: u64) {
        self.notes.renamed.push((place, name));
    }

    /// Notes a completion that is not among the replay's, `before` of which have come.
    pub(crate) fn other(&mut self, before: usize, completion: &HwCompletion, device: &dyn Device) {
        // Of a slot that could not be read the driver knows which it was.
        let name = device.unread(completion).map_or(completion.user_data, |desc| desc.user_data);
        self.notes.others.push((before, name, *completion));
    }

    /// Notes the events that are there, if the device does not keep them.
    pub(crate) fn looked(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        if self.device_keeps {
            return Ok(());
        }
        let events = &mut self.notes.events;
        told(device, &mut |name, event| events.push((name, event)))
    }

    /// Enters what was noted, and what the device has kept.
    pub(crate) fn catch_up(
        &mut self,
        device: &mut dyn Device,
        records: Records<'_>,
    ) -> Result<(), DeviceError> {
        self.book(records);
        told(device, &mut |name, event| self.enter_event(name, event))
    }

    /// Enters what was noted.
    fn book(&mut self, records: Records<'_>) {
        let Notes { made, submitted, policies, others, renamed, events } = std::mem::take(&mut self.notes);
        let (mut name, mut completion) = self.entered;
        self.entered = (submitted, records.completions.len());
        let count = submitted - name + policies.len();
        self.lives.reserve(count);
        self.places.reserve(count);
        let mut policies = policies.into_iter().peekable();
        loop {
            if let Some((_, policy)) = policies.next_if(|&(at, _)| at == name) {
                self.enter(policy);
            } else if name < submitted {
                let Made { seq_len, version } = made[name];
                self.enter(records.plan.named(records.names[name], seq_len).with_version(version));
                name += 1;
            } else {
                break;
            }
        }
        let (mut others, mut renamed) = (others.into_iter().peekable(), renamed.into_iter().peekable());
        loop {
            if let Some((_, name, other)) = others.next_if(|&(at, ..)| at == completion) {
                self.complete(name, other);
            } else if let Some(&answer) = records.completions.get(completion) {
                let other = renamed.next_if(|&(place, _)| place == completion);
                self.complete(other.map_or(answer.user_data, |(_, name)| name), answer);
                completion += 1;
            } else {
                break;
            }
        }
        for (name, event) in events {
            self.enter_event(name, event);
        }
        (self.notes.made, self.notes.submitted) = (made, submitted);
    }

    fn enter(&mut self, desc: HwDesc) {
        self.places.insert(desc.user_data, self.lives.len());
        self.lives.push(Life { desc, completion: None, event: None });
    }

    fn complete(&mut self, name: u64, completion: HwCompletion) {
        if let Some(&place) = self.places.get(&name) {
            self.lives[place].completion = Some((self.completed, completion));
        }
        self.completed += 1;
    }

    fn enter_event(&mut self, name: u64, event: HwEvent) {
        if let Some(&place) = self.places.get(&name) {
            self.first = Some(self.first.map_or(event.stamp, |first| first.min(event.stamp)));
            self.has_told += usize::from(self.lives[place].event.is_none());
            self.lives[place].event = Some(event);
        }
    }

    /// Reads the events of what completed last, which come behind the completions, and enters all.
    pub(crate) fn finish(&mut self, device: &mut dyn Device, records: Records<'_>) {
        for _ in 0..LAST_LOOKS {
            // A device that has failed says no more, and what it said is kept.
            if self.catch_up(device, records).is_err() || self.has_told >= self.completed {
                break;
            }
        }
        self.notes = Notes::default();
    }

    /// All descriptors, in the order in which they were submitted.
    pub fn all(&self) -> &[Life] {
        &self.lives
    }

    /// The descriptor with this `user_data`, if it was submitted.
    pub fn of(&self, user_data: u64) -> Option<&Life> {
        self.places.get(&user_data).map(|&place| &self.lives[place])
    }

    /// Whether the descriptor with this `user_data` has completed, and its event has come.
    pub fn is_told(&self, user_data: u64) -> bool {
        self.of(user_data).is_some_and(|life| life.completion.is_some() && life.event.is_some())
    }

    /// Which of all descriptors `life` is, from 0, in the order of submission.
    ///
    /// # Panics
    /// `life` is of another replay.
    pub fn place(&self, life: &Life) -> usize {
        self.places[&life.desc.user_data]
    }

    /// The descriptors of rollout `id`, in the order of submission.
    pub fn of_rollout(&self, id: u32) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |life| life.desc.rollout_id == id)
    }

    /// Ticks from the first event of the replay until the slot of `life` had been read.
    pub fn since_first(&self, life: &Life) -> Option<u64> {
        Some(life.read()? - self.first?)
    }

    /// What `life` waited for before a worker began with it: the wait that ended last. If that was its turn, the result is what held the
    /// descriptor before it. `None` if the worker began as soon after the read of the slot as for any descriptor of the replay, or nearly
    /// as soon and nothing held it. Applies to a device with one clock.
    ///
    /// # Panics
    /// If `life` belongs to another replay.
    pub fn waited(&self, life: &Life) -> Option<Waited<'_>> {
        // The device's own steps.
        let steps = self.lives.iter().filter_map(|life| Some(life.began()? - life.read()?)).min()?;
        Some(self.held(self.place(life), steps, TURNS)?.1)
    }

    /// Like [`waited`](Self::waited), with the tick at which the wait ended.
    fn held(&self, place: usize, steps: u64, turns: usize) -> Option<(u64, Waited<'_>)> {
        let life = &self.lives[place];
        let (event, read, began) = (life.event?, life.read()?, life.began()?);
        let ready = read.saturating_add(steps);
        if began <= ready {
            return None;
        }
        let slack = (SLACK * steps).max(SLACK_MIN);
        let same_queue = |other: &&Life| other.event.is_some_and(|other| other.queue_id == event.queue_id);
        let holds = |at: Option<u64>| at.is_some_and(|at| ready < at && at <= began && began - at <= slack);
        // A device may let the next descriptor begin before the bus has answered the write of the completion. The completion counts as
        // visible from that answer on.
        let let_go =
            |other: &Life| Some(other.visible()?.min(began)).filter(|_| other.ended() <= Some(began));
        // Of the descriptors that were submitted earlier to its queue pair, the last to complete of those that hold it.
        let last = |rule: &dyn Fn(&Life) -> bool| {
            let earlier = self.lives[..place].iter().filter(same_queue);
            earlier.filter(|other| holds(let_go(other)) && rule(other)).max_by_key(|other| other.ended())
        };
        let desc = &life.desc;
        let opens = |earlier: &Life| {
            let earlier = &earlier.desc;
            earlier.opcode == Opcode::Prefill as u8
                && earlier.max_tokens > 0
                && earlier.prefix_id == desc.prefix_id
        };
        let member = life.has(DescFlags::COW_PREFIX) && desc.opcode != Opcode::Prefill as u8;
        let by_rule = [
            last(&|earlier| earlier.desc.rollout_id == desc.rollout_id).map(Waited::Order),
            last(&|earlier| earlier.has(DescFlags::FENCE)).map(Waited::Fence),
            last(&|_| life.has(DescFlags::FENCE)).map(Waited::Earlier),
            last(&|earlier| member && opens(earlier)).map(Waited::Prefill),
        ];
        let by_rule =
            by_rule.into_iter().flatten().filter_map(|waited| Some((let_go(waited.other()?)?, waited)));
        let had = self.lives.iter().filter(|other| {
            other.event.is_some_and(|other| other.worker_id == event.worker_id)
                && other.began() < Some(began)
                && holds(other.ended())
        });
        let worker = had
            .max_by_key(|other| other.ended())
            .and_then(|other| Some((other.ended()?, Waited::Worker(other))));
        let before = (0..place).filter(|&other| {
            let other = &self.lives[other];
            same_queue(&other) && holds(other.began())
        });
        let before = before.max_by_key(|&other| self.lives[other].began());
        let turn = before.and_then(|before| {
            let deeper = turns.checked_sub(1).and_then(|turns| self.held(before, steps, turns));
            let other = &self.lives[before];
            deeper.filter(|&(end, _)| end > ready).or(Some((other.began()?, Waited::Turn(other))))
        });
        // If several waits ended at the same tick, the last in this order counts.
        let held = turn.into_iter().chain(worker).chain(by_rule).max_by_key(|&(end, _)| end);
        held.or((began - read > slack).then_some((began, Waited::Unknown)))
    }
}

/// Hands the events that are there to `take`, each with the `user_data` of its descriptor.
fn told(device: &mut dyn Device, take: &mut dyn FnMut(u64, HwEvent)) -> Result<(), DeviceError> {
    let mut events = [HwEvent::zeroed(); BATCH];
    loop {
        let taken = device.events(&mut events)?;
        for event in &events[..taken] {
            if let Some(name) = device.answered(event) {
                take(name, *event);
            }
        }
        if taken < BATCH {
            return Ok(());
        }
    }
}

impl<'a> Waited<'a> {
    /// The descriptor that was waited for, where it is known.
    pub fn other(self) -> Option<&'a Life> {
        match self {
            Self::Order(life)
            | Self::Fence(life)
            | Self::Earlier(life)
            | Self::Prefill(life)
            | Self::Worker(life)
            | Self::Turn(life) => Some(life),
            Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(name: u64, desc: HwDesc, stamp: u64, [start, ended, visible]: [u32; 3], worker_id: u16) -> Life {
        let event =
            HwEvent { stamp, start, first_token: start, ended, visible, worker_id, ..HwEvent::zeroed() };
        Life { desc: desc.with_user_data(name), completion: None, event: Some(event) }
    }

    fn lives(all: Vec<Life>) -> Lives {
        let places = all.iter().enumerate().map(|(place, life)| (life.desc.user_data, place)).collect();
        Lives { lives: all, places, ..Lives::default() }
    }

    /// An event that breaks R23 tells no moments, and nothing that others waited for.
    #[test]
    fn an_event_that_contradicts_itself_has_no_moments() {
        for (deltas, contradicts) in
            [([4, 5, 6], false), ([4, 4, 4], false), ([90, 4, 5], true), ([4, 90, 5], true)]
        {
            let life = life(0, HwDesc::decode(1, 4, 4), 10, deltas, 0);
            assert_eq!(life.contradicts_itself(), contradicts, "{deltas:?}");
            for moment in [life.read(), life.began(), life.ended(), life.visible()] {
                assert_eq!(moment.is_none(), contradicts, "{deltas:?}");
            }
        }
    }

    #[test]
    fn what_held_a_descriptor_is_named_by_its_rule() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let lives = lives(vec![
            life(0, of(1), 10, [4, 90, 100], 0),
            life(1, of(2), 11, [4, 20, 30], 1),
            // Worker 1 was with rollout 2 until 31.
            life(2, of(3), 12, [21, 30, 35], 1),
            // R5: rollout 1 until 110.
            life(3, of(1), 13, [100, 110, 120], 0),
            // R7: until all before it are visible, 133 the last.
            life(
                4,
                HwDesc { rollout_id: 9, ..HwDesc::nop().with_flags(DescFlags::FENCE) },
                14,
                [122, 123, 130],
                1,
            ),
            // R7: until the fence is, 144.
            life(5, of(4), 15, [131, 140, 150], 1),
            // Nothing but steps.
            life(6, of(5), 200, [4, 10, 12], 0),
            // Nothing that shows.
            life(7, of(6), 300, [40, 41, 42], 3),
            // Its turn came at 340, so what held rollout 6 held it.
            life(8, of(7), 301, [40, 41, 42], 2),
            // Rollout 7 was complete before the steps were.
            life(9, of(7), 340, [5, 9, 10], 2),
            // R16: rollout 8 began a tick later than it could have.
            life(10, of(8), 400, [5, 9, 10], 4),
            life(11, of(9), 400, [6, 9, 10], 5),
        ]);
        let waited = |name| lives.waited(lives.of(name).unwrap());
        let named = |life: &Life| life.desc.user_data;
        assert!(waited(0).is_none() && waited(1).is_none() && waited(6).is_none());
        assert!(matches!(waited(2), Some(Waited::Worker(life)) if named(life) == 1));
        assert!(matches!(waited(3), Some(Waited::Order(life)) if named(life) == 0));
        assert!(matches!(waited(4), Some(Waited::Earlier(life)) if named(life) == 3));
        assert!(matches!(waited(7), Some(Waited::Unknown)));
        assert!(matches!(waited(8), Some(Waited::Unknown)));
        assert!(waited(9).is_none());
        assert!(matches!(waited(11), Some(Waited::Turn(life)) if named(life) == 10));
        assert!(matches!(waited(5), Some(Waited::Fence(life)) if named(life) == 4));
    }

    /// A worker that was free long before, or a turn that came long before, does not explain the wait: a full completion queue (R4) may.
    #[test]
    fn what_held_a_descriptor_long_ago_is_not_named() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let lives = lives(vec![
            life(0, of(1), 10, [6, 26, 40], 0),
            life(1, of(2), 11, [4000, 4020, 4030], 1),
            life(2, of(3), 12, [8000, 8020, 8030], 0),
            life(3, of(4), 12, [8001, 8020, 8030], 1),
        ]);
        for name in [2, 3] {
            assert!(matches!(lives.waited(lives.of(name).unwrap()), Some(Waited::Unknown)), "{name}");
        }
    }

    /// The RTL lets the next descriptor begin before the bus has answered the write of the completion. The completion counts as visible
    /// from that answer on.
    #[test]
    fn a_device_that_lets_go_before_the_response_is_believed() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let group = HwDesc { rollout_id: 9, ..HwDesc::open_group(7, 4, 2) };
        let member = HwDesc::decode(3, 4, 4).with_flags(DescFlags::COW_PREFIX).with_member(7, 0);
        let lives = lives(vec![
            life(0, of(1), 10, [6, 26, 426], 0),
            life(1, of(1), 11, [35, 50, 450], 0),
            life(2, group, 500, [6, 210, 418], 1),
            life(3, member, 502, [215, 230, 430], 2),
        ]);
        let waited = |name| lives.waited(lives.of(name).unwrap());
        assert!(matches!(waited(1), Some(Waited::Order(life)) if life.desc.user_data == 0));
        assert!(matches!(waited(3), Some(Waited::Prefill(life)) if life.desc.user_data == 2));
    }
}
