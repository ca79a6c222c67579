//! Events of the hot path, and what is learnt from them.
//!
//! The hot thread owns a [`Recorder`], one end of a ring; a [`Collector`] on a thread of its own drains it, pairs events by
//! the ids that they carry, and keeps histograms. Nothing here waits for anything: an event that finds the ring full is
//! dropped and counted, and a pair that lost an end is counted as unpaired.
//!
//! **Whose clock.** Every time is the host's. Of one moment of the device the host only learns afterwards
//! ([`EventKind::is_bound`]), so latencies that touch them are bounds, and every report says which ([`Bound`]). What a device
//! with LIFE events (R23) tells by its own clock stands beside them ([`DeviceReport`]), and what lies between a moment of the device and one of the
//! host is measured on the host's clock with a stated error ([`OneClockReport`]).

mod clock;
mod collector;
mod device;
mod latency;
mod one_clock;
mod pairing;
mod perfetto;

pub use clock::{Clock, Ticks};
pub use collector::{Collector, Recorder, Report};
pub use device::{DeviceReport, DeviceSpan, SpanReport, TickRate, Unit};
pub use latency::{BUCKET_BOUNDS, Bound, LatencyReport, duration};
pub use one_clock::{DeviceLife, HostTimes, MappedLife, OneClockReport};
pub use pairing::Pair;
pub use perfetto::Perfetto;

use crate::rollout::{RolloutId, State};

/// What happened. Unless said otherwise, the event carries the rollout, and the *descriptor*: a number that no other
/// descriptor of the last 2^32 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A rollout got its slot: the edge FREE → PREFILL_READY. No descriptor.
    RolloutAlloc,
    /// A rollout gave its slot back: the edge DONE → FREE. No descriptor.
    RolloutFree,
    /// The rollout entered the stage `value` (an index into [`STAGES`]), by one of the edges between the two above. No
    /// descriptor.
    StageEntered,
    /// A descriptor was made and handed to the submission queue.
    DescPosted,
    /// Its slot was written and the doorbell rung: the device may see it.
    DescCommitted,
    /// The host learned, from the `sq_head` of a completion, that the device has taken it: it did so earlier.
    DescConsumed,
    /// Its completion was handled; `value` is the number of tokens that it brought.
    CompletionPolled,
    /// A batch of DECODEs was chosen; `value` is its size. Neither rollout nor descriptor.
    DecodeBatch,
    /// The answer of this descriptor went to a judge.
    RewardPosted,
    /// A judge scored the answer of this descriptor; `value` holds the bits of the score, signed Q16.16.
    RewardScored,
    /// The rollout's trajectory is stored; `value` is its tokens. The descriptor is the one whose REWARD_POSTED was the
    /// rollout's last.
    TrajectoryDone,
}

/// Names of the six stages, in the order of [`EventKind::StageEntered`]'s value.
pub const STAGES: [&str; State::ALL.len()] = {
    let mut names = [""; State::ALL.len()];
    let mut stage = 0;
    while stage < names.len() {
        names[stage] = State::ALL[stage].name();
        stage += 1;
    }
    names
};

impl EventKind {
    /// Every kind.
    pub const ALL: [EventKind; 11] = [
        EventKind::RolloutAlloc,
        EventKind::RolloutFree,
        EventKind::StageEntered,
        EventKind::DescPosted,
        EventKind::DescCommitted,
        EventKind::DescConsumed,
        EventKind::CompletionPolled,
        EventKind::DecodeBatch,
        EventKind::RewardPosted,
        EventKind::RewardScored,
        EventKind::TrajectoryDone,
    ];

    /// Its name in reports and traces.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::RolloutAlloc => "ROLLOUT_ALLOC",
            EventKind::RolloutFree => "ROLLOUT_FREE",
            EventKind::StageEntered => "STAGE_ENTERED",
            EventKind::DescPosted => "DESC_POSTED",
            EventKind::DescCommitted => "DESC_COMMITTED",
            EventKind::DescConsumed => "DESC_CONSUMED",
            EventKind::CompletionPolled => "COMPLETION_POLLED",
            EventKind::DecodeBatch => "DECODE_BATCH",
            EventKind::RewardPosted => "REWARD_POSTED",
            EventKind::RewardScored => "REWARD_SCORED",
            EventKind::TrajectoryDone => "TRAJECTORY_DONE",
        }
    }

    /// Whether it is a moment of the device, of which the host only knows that it is past: the event's time is an upper
    /// bound.
    pub const fn is_bound(self) -> bool {
        matches!(self, EventKind::DescConsumed)
    }
}

/// One event: half a cache line, aligned so that none spans two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Event {
    /// When, on the host's clock.
    pub time: Ticks,
    /// Whose.
    pub rollout: RolloutId,
    /// Which descriptor; 0 for kinds that carry none.
    pub descriptor: u32,
    /// What the kind says; else 0.
    pub value: u32,
    /// What.
    pub kind: EventKind,
    /// How many events the recorder dropped between the one before and this; 255 stands for more, too.
    pub lost: u8,
}

static_assertions::assert_eq_size!(Event, [u8; 32]);
static_assertions::const_assert_eq!(align_of::<Event>(), 32);
