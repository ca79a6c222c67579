//! Finds the two ends of a latency among events that come in any order, late, twice or not at all.
//!
//! State is bounded: two lives a slot, the newest and the one before it, and of each the [`OPEN`] newest descriptors.
//! What falls out of it is counted as unpaired. An event is matched by what it names (slot, generation, descriptor
//! number), never by where it comes in the stream. Two things have no name of their own, the time in a stage and the
//! first REWARD_POSTED of a rollout: there the stream must be whole, and a duration during which the recorder dropped an
//! event is not measured but counted as unpaired.

use super::latency::{Bound, Latency, LatencyReport};
use super::{Clock, Event, EventKind, STAGES, Ticks};

/// Descriptors of a rollout that are remembered: more than a rollout ever has on the way.
const OPEN: usize = 4;

/// The latencies that are measured, each from one kind of event to another of the same rollout or descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pair {
    /// DESC_POSTED → DESC_COMMITTED.
    PostedCommitted,
    /// DESC_POSTED → DESC_CONSUMED.
    PostedConsumed,
    /// DESC_POSTED → COMPLETION_POLLED.
    PostedPolled,
    /// DESC_CONSUMED → COMPLETION_POLLED.
    ConsumedPolled,
    /// ROLLOUT_ALLOC → the rollout's first REWARD_POSTED.
    AllocRewardPosted,
    /// ROLLOUT_ALLOC → TRAJECTORY_DONE.
    AllocTrajectoryDone,
    /// REWARD_POSTED → REWARD_SCORED.
    RewardPostedScored,
    /// The rollout's last REWARD_POSTED → TRAJECTORY_DONE.
    RewardPostedTrajectoryDone,
}

impl Pair {
    /// Every pair.
    pub const ALL: [Pair; 8] = [
        Pair::PostedCommitted,
        Pair::PostedConsumed,
        Pair::PostedPolled,
        Pair::ConsumedPolled,
        Pair::AllocRewardPosted,
        Pair::AllocTrajectoryDone,
        Pair::RewardPostedScored,
        Pair::RewardPostedTrajectoryDone,
    ];

    /// Those whose ends name the same descriptor.
    const OF_A_DESCRIPTOR: [Pair; 6] = [
        Pair::PostedCommitted,
        Pair::PostedConsumed,
        Pair::PostedPolled,
        Pair::ConsumedPolled,
        Pair::RewardPostedScored,
        Pair::RewardPostedTrajectoryDone,
    ];

    /// The kinds at its two ends.
    pub const fn ends(self) -> (EventKind, EventKind) {
        match self {
            Pair::PostedCommitted => (EventKind::DescPosted, EventKind::DescCommitted),
            Pair::PostedConsumed => (EventKind::DescPosted, EventKind::DescConsumed),
            Pair::PostedPolled => (EventKind::DescPosted, EventKind::CompletionPolled),
            Pair::ConsumedPolled => (EventKind::DescConsumed, EventKind::CompletionPolled),
            Pair::AllocRewardPosted => (EventKind::RolloutAlloc, EventKind::RewardPosted),
            Pair::AllocTrajectoryDone => (EventKind::RolloutAlloc, EventKind::TrajectoryDone),
            Pair::RewardPostedScored => (EventKind::RewardPosted, EventKind::RewardScored),
            Pair::RewardPostedTrajectoryDone => (EventKind::RewardPosted, EventKind::TrajectoryDone),
        }
    }

    /// Its name in reports: `DESC_POSTED→DESC_COMMITTED`.
    pub fn name(self) -> String {
        let (begin, end) = self.ends();
        format!("{}→{}", begin.name(), end.name())
    }

    /// What its figures say of the true latency.
    pub const fn bound(self) -> Bound {
        let (begin, end) = self.ends();
        match (begin.is_bound(), end.is_bound()) {
            (_, true) => Bound::AtMost,
            (true, false) => Bound::AtLeast,
            (false, false) => Bound::Exact,
        }
    }

    /// Whether a beginning without an end is amiss. A rollout may be aborted before it has an answer, and only the last
    /// answer of a rollout is followed by its trajectory.
    const fn must_end(self) -> bool {
        !matches!(
            self,
            Pair::AllocRewardPosted | Pair::AllocTrajectoryDone | Pair::RewardPostedTrajectoryDone
        )
    }
}

/// What is known of one descriptor: when each kind of event happened that names it.
#[derive(Clone, Copy, Debug, Default)]
struct Descriptor {
    number: u32,
    /// A bit for each kind that was seen; 0 in a place that is not used.
    seen: u16,
    times: [Ticks; 7],
}

impl Descriptor {
    const fn place(kind: EventKind) -> Option<usize> {
        Some(match kind {
            EventKind::DescPosted => 0,
            EventKind::DescCommitted => 1,
            EventKind::DescConsumed => 2,
            EventKind::CompletionPolled => 3,
            EventKind::RewardPosted => 4,
            EventKind::RewardScored => 5,
            EventKind::TrajectoryDone => 6,
            _ => return None,
        })
    }

    fn time(&self, kind: EventKind) -> Option<Ticks> {
        let place = Self::place(kind)?;
        (self.seen & 1 << place != 0).then_some(self.times[place])
    }
}

/// A stream position from which no event is missing: the source, and how often it had dropped events by then.
type Whole = (usize, u32);

/// What is known of one generation of a slot.
#[derive(Clone, Debug, Default)]
struct Life {
    used: bool,
    generation: u32,
    alloc: Option<(Ticks, Whole)>,
    rewarded: bool,
    trajectory_done: Option<Ticks>,
    /// The stage it is in, and since when.
    stage: Option<(usize, Ticks, Whole)>,
    descriptors: [Descriptor; OPEN],
    /// Place of the descriptor that the next new one replaces.
    oldest: usize,
}

#[derive(Debug)]
pub(super) struct Pairing {
    /// Two a slot: that of an even generation, that of an odd one.
    lives: Vec<[Life; 2]>,
    measured: Measured,
    /// How often each source has dropped events.
    breaks: Vec<u32>,
}

#[derive(Debug)]
struct Measured {
    clock: Clock,
    pairs: [Latency; Pair::ALL.len()],
    stages: [Latency; STAGES.len()],
}

impl Measured {
    fn of(&mut self, pair: Pair) -> &mut Latency {
        &mut self.pairs[pair as usize]
    }

    fn pair(&mut self, pair: Pair, from: Ticks, to: Ticks) {
        self.pairs[pair as usize].record_between(&self.clock, from, to);
    }

    /// Counts an event that will not be matched, for each pair that it ends or should have ended.
    fn unmatched(&mut self, kind: EventKind, pairs: &[Pair]) {
        for pair in pairs {
            let (begin, end) = pair.ends();
            self.of(*pair).unpaired += u64::from(end == kind || begin == kind && pair.must_end());
        }
    }

    /// Counts what a descriptor that is forgotten lacks.
    fn forget(&mut self, descriptor: &Descriptor) {
        for pair in Pair::OF_A_DESCRIPTOR {
            let (begin, end) = pair.ends();
            let amiss = match (descriptor.time(begin), descriptor.time(end)) {
                (None, Some(_)) => true,
                (Some(_), None) => pair.must_end(),
                _ => false,
            };
            self.of(pair).unpaired += u64::from(amiss);
        }
    }

    fn forget_life(&mut self, life: &Life) {
        life.descriptors.iter().for_each(|descriptor| self.forget(descriptor));
        let orphan = life.trajectory_done.is_some() && life.alloc.is_none();
        self.of(Pair::AllocTrajectoryDone).unpaired += u64::from(orphan);
    }
}

impl Pairing {
    pub(super) fn new(clock: Clock, slots: u32) -> Self {
        let measured = Measured {
            clock,
            pairs: std::array::from_fn(|_| Latency::new()),
            stages: std::array::from_fn(|_| Latency::new()),
        };
        Self { lives: vec![Default::default(); slots as usize], measured, breaks: vec![] }
    }

    pub(super) fn add_source(&mut self) {
        self.breaks.push(0);
    }

    pub(super) fn pairs(&self) -> Vec<LatencyReport> {
        Pair::ALL
            .iter()
            .zip(&self.measured.pairs)
            .map(|(pair, latency)| latency.report(&pair.name(), pair.bound()))
            .collect()
    }

    pub(super) fn stages(&self) -> Vec<LatencyReport> {
        STAGES
            .iter()
            .zip(&self.measured.stages)
            .map(|(name, latency)| latency.report(name, Bound::Exact))
            .collect()
    }

    /// Forgets everything: what has no other end by now never will.
    pub(super) fn settle(&mut self) {
        for life in self.lives.iter_mut().flatten() {
            self.measured.forget_life(life);
            *life = Life::default();
        }
    }

    /// Takes in one event of source `source`.
    pub(super) fn take(&mut self, source: usize, event: &Event) {
        self.breaks[source] += u32::from(event.lost != 0);
        if event.kind == EventKind::DecodeBatch {
            return;
        }
        let whole = (source, self.breaks[source]);
        let (slot, generation) = (event.rollout.slot() as usize, event.rollout.generation());
        let measured = &mut self.measured;
        let Some(lives) = self.lives.get_mut(slot) else { return measured.unmatched(event.kind, &Pair::ALL) };
        let [life, other] = match lives {
            [even, odd] if generation % 2 == 0 => [even, odd],
            [even, odd] => [odd, even],
        };
        if !life.used || life.generation != generation {
            // Wrapping, as generations are.
            if life.used && (generation.wrapping_sub(life.generation) as i32) < 0 {
                return measured.unmatched(event.kind, &Pair::ALL);
            }
            measured.forget_life(life);
            *life = Life { used: true, generation, ..Life::default() };
        }
        match event.kind {
            EventKind::RolloutAlloc => {
                if life.alloc.is_none() {
                    life.alloc = Some((event.time, whole));
                    if let Some(end) = life.trajectory_done {
                        measured.pair(Pair::AllocTrajectoryDone, event.time, end);
                    }
                }
                // The slot was free since its rollout before.
                if other.used
                    && other.generation == generation.wrapping_sub(1)
                    && matches!(other.stage, Some((FREE, ..)))
                {
                    leave(&mut other.stage, event.time, whole, measured);
                }
                enter(&mut life.stage, PREFILL_READY, event.time, whole, measured);
            }
            EventKind::RolloutFree => enter(&mut life.stage, FREE, event.time, whole, measured),
            EventKind::StageEntered => {
                enter(&mut life.stage, event.value as usize, event.time, whole, measured);
            }
            EventKind::RewardPosted if !life.rewarded => {
                life.rewarded = true;
                match life.alloc {
                    Some((begin, since)) if since == whole => {
                        measured.pair(Pair::AllocRewardPosted, begin, event.time);
                    }
                    _ => measured.of(Pair::AllocRewardPosted).unpaired += 1,
                }
            }
            EventKind::TrajectoryDone => match (life.trajectory_done, life.alloc) {
                (Some(_), _) => measured.of(Pair::AllocTrajectoryDone).unpaired += 1,
                (None, alloc) => {
                    life.trajectory_done = Some(event.time);
                    if let Some((begin, _)) = alloc {
                        measured.pair(Pair::AllocTrajectoryDone, begin, event.time);
                    }
                }
            },
            _ => {}
        }
        if let Some(place) = Descriptor::place(event.kind) {
            take_of_descriptor(life, place, event, measured);
        }
    }
}

const FREE: usize = 0;
pub(super) const PREFILL_READY: usize = 1;

/// Ends the stay in a stage.
fn leave(stage: &mut Option<(usize, Ticks, Whole)>, now: Ticks, whole: Whole, measured: &mut Measured) {
    if let Some((stage, since, entered)) = stage.take() {
        let stage = &mut measured.stages[stage];
        if entered == whole {
            stage.record_between(&measured.clock, since, now);
        } else {
            stage.unpaired += 1;
        }
    }
}

fn enter(
    stage: &mut Option<(usize, Ticks, Whole)>,
    to: usize,
    now: Ticks,
    whole: Whole,
    measured: &mut Measured,
) {
    leave(stage, now, whole, measured);
    *stage = (to < STAGES.len()).then_some((to, now, whole));
}

/// Takes in an event that names a descriptor, and measures what it completes.
fn take_of_descriptor(life: &mut Life, place: usize, event: &Event, measured: &mut Measured) {
    let known = life.descriptors.iter().position(|known| known.seen != 0 && known.number == event.descriptor);
    let at = known.unwrap_or_else(|| {
        let at = life.oldest;
        life.oldest = (at + 1) % OPEN;
        measured.forget(&life.descriptors[at]);
        life.descriptors[at] = Descriptor { number: event.descriptor, ..Descriptor::default() };
        at
    });
    let descriptor = &mut life.descriptors[at];
    if descriptor.seen & 1 << place != 0 {
        return measured.unmatched(event.kind, &Pair::OF_A_DESCRIPTOR);
    }
    descriptor.seen |= 1 << place;
    descriptor.times[place] = event.time;
    for pair in Pair::OF_A_DESCRIPTOR {
        let (begin, end) = pair.ends();
        if (event.kind == begin || event.kind == end)
            && let (Some(from), Some(to)) = (descriptor.time(begin), descriptor.time(end))
        {
            measured.pair(pair, from, to);
        }
    }
}
