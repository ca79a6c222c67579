//! Finds the two ends of a latency among the events of the hot thread.
//!
//! They come in the order in which they happened, but some may be missing. A rollout has one descriptor on the way at a
//! time, so of each slot its rollout and that descriptor are all that is remembered; an end is matched by what it names
//! (slot, generation, descriptor number). Two things have no name of their own, the time in a stage and the first
//! REWARD_POSTED of a rollout: there the stream must be whole, and a duration during which an event was dropped is not
//! measured but counted as unpaired.

use super::latency::{Bound, Latency, LatencyReport};
use super::{Clock, Event, EventKind, STAGES, Ticks};
use crate::rollout::State;

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

    /// Whether its ends name the same descriptor, else the same rollout.
    const fn of_a_descriptor(self) -> bool {
        !matches!(self, Pair::AllocRewardPosted | Pair::AllocTrajectoryDone)
    }
}

/// A moment, and how often events had been dropped by then.
type Stamp = (Ticks, u64);

/// What is known of the rollout in a slot.
#[derive(Clone, Debug, Default)]
struct Life {
    generation: u32,
    alloc: Option<Stamp>,
    rewarded: bool,
    /// The stage that the slot is in, and since when.
    stage: Option<(usize, Stamp)>,
    /// Number of the newest descriptor, and when each kind of event happened that names it.
    descriptor: u32,
    times: [Option<Ticks>; EventKind::ALL.len()],
}

#[derive(Debug)]
pub(super) struct Pairing {
    clock: Clock,
    lives: Vec<Life>,
    pairs: [Latency; Pair::ALL.len()],
    stages: [Latency; STAGES.len()],
    /// How often events have been dropped.
    gaps: u64,
}

impl Pairing {
    pub(super) fn new(clock: Clock, slots: u32) -> Self {
        Self {
            clock,
            lives: vec![Life::default(); slots as usize],
            pairs: std::array::from_fn(|_| Latency::new()),
            stages: std::array::from_fn(|_| Latency::new()),
            gaps: 0,
        }
    }

    /// Of the pairs, and of the stages.
    pub(super) fn reports(&self) -> (Vec<LatencyReport>, Vec<LatencyReport>) {
        let pairs = Pair::ALL.iter().zip(&self.pairs);
        let stages = STAGES.iter().zip(&self.stages);
        (
            pairs.map(|(pair, latency)| latency.report(&pair.name(), pair.bound())).collect(),
            stages.map(|(name, latency)| latency.report(name, Bound::Exact)).collect(),
        )
    }

    /// Forgets everything: what has no other end by now never will.
    pub(super) fn settle(&mut self) {
        for slot in 0..self.lives.len() {
            self.forget_descriptor(slot);
            self.lives[slot] = Life::default();
        }
    }

    /// Takes in the next event.
    pub(super) fn take(&mut self, event: &Event) {
        self.gaps += u64::from(event.lost != 0);
        let (slot, now) = (event.rollout.slot() as usize, (event.time, self.gaps));
        // A batch is of no rollout, and no other event is of a slot that is not there.
        if event.kind == EventKind::DecodeBatch || slot >= self.lives.len() {
            return;
        }
        if self.lives[slot].generation != event.rollout.generation() {
            self.forget_descriptor(slot);
            // Between two rollouts the slot is free.
            let stage = self.lives[slot].stage.filter(|&(stage, _)| stage == State::Free as usize);
            let generation = event.rollout.generation();
            self.lives[slot] = Life { generation, stage, ..Life::default() };
        }
        match event.kind {
            EventKind::RolloutAlloc => {
                self.lives[slot].alloc = Some(now);
                self.enter(slot, State::PrefillReady as usize, now);
            }
            EventKind::RolloutFree => self.enter(slot, State::Free as usize, now),
            EventKind::StageEntered => self.enter(slot, event.value as usize, now),
            _ => self.take_of_descriptor(slot, event, now),
        }
    }

    /// Ends the stay in a stage, and begins that in `to`.
    fn enter(&mut self, slot: usize, to: usize, now: Stamp) {
        let next = (to < STAGES.len()).then_some((to, now));
        if let Some((stage, since)) = std::mem::replace(&mut self.lives[slot].stage, next) {
            self.stages[stage].between(&self.clock, Some(since.0).filter(|_| since.1 == now.1), now.0);
        }
    }

    /// Takes in an event that names a descriptor, and measures what it completes.
    fn take_of_descriptor(&mut self, slot: usize, event: &Event, now: Stamp) {
        if self.lives[slot].descriptor != event.descriptor {
            self.forget_descriptor(slot);
        }
        let life = &mut self.lives[slot];
        life.descriptor = event.descriptor;
        life.times[event.kind as usize] = Some(now.0);
        let first_reward = event.kind == EventKind::RewardPosted && !life.rewarded;
        life.rewarded |= first_reward;
        for pair in Pair::ALL {
            let (begin, end) = pair.ends();
            if end != event.kind || pair == Pair::AllocRewardPosted && !first_reward {
                continue;
            }
            let since = match pair {
                Pair::AllocRewardPosted => life.alloc.filter(|alloc| alloc.1 == now.1).map(|alloc| alloc.0),
                Pair::AllocTrajectoryDone => life.alloc.map(|alloc| alloc.0),
                _ => life.times[begin as usize],
            };
            self.pairs[pair as usize].between(&self.clock, since, now.0);
        }
    }

    /// Counts what the slot's descriptor lacks. A beginning need not have an end where only the last answer of a rollout
    /// is followed by its trajectory.
    fn forget_descriptor(&mut self, slot: usize) {
        let times = std::mem::take(&mut self.lives[slot].times);
        for pair in Pair::ALL.into_iter().filter(|pair| pair.of_a_descriptor()) {
            let (begin, end) = pair.ends();
            let amiss = times[begin as usize].is_some() && times[end as usize].is_none();
            self.pairs[pair as usize].unpaired += u64::from(amiss && end != EventKind::TrajectoryDone);
        }
    }
}
