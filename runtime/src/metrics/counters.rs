//! What is counted.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::events::STAGES;

/// A count that grows. One thread writes it, so that adding needs no locked instruction; with two writers counts would
/// get lost. Any thread reads it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that rises and falls. One thread writes it, any thread reads it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Sets it to `value` if that is more.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }

    /// Its value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A counter for each stage, in the order of [`STAGES`].
pub type StageCounters = [Counter; STAGES.len()];

/// A gauge for each stage, in the order of [`STAGES`].
pub type StageGauges = [Gauge; STAGES.len()];

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It grows.
    Counter,
    /// It rises and falls.
    Gauge,
}

/// A row of the table of counters.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Its name, in JSON and, behind `doorbell_`, in Prometheus.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Whether it has a value for each of [`STAGES`], else one.
    pub by_stage: bool,
    /// The thread that writes it.
    pub writer: &'static str,
}

/// What the types of the table have in common. Public only because the table names it.
pub trait Metric {
    /// A copy of what it holds.
    type Value: Values;
    const KIND: Kind;
    fn value(&self) -> Self::Value;
}

pub trait Values {
    const BY_STAGE: bool;
    fn slice(&self) -> &[u64];
}

impl Values for u64 {
    const BY_STAGE: bool = false;
    fn slice(&self) -> &[u64] {
        std::slice::from_ref(self)
    }
}

impl Values for [u64; STAGES.len()] {
    const BY_STAGE: bool = true;
    fn slice(&self) -> &[u64] {
        self
    }
}

impl Metric for Counter {
    type Value = u64;
    const KIND: Kind = Kind::Counter;
    fn value(&self) -> u64 {
        self.get()
    }
}

impl Metric for Gauge {
    type Value = u64;
    const KIND: Kind = Kind::Gauge;
    fn value(&self) -> u64 {
        self.get()
    }
}

impl<M: Metric<Value = u64>> Metric for [M; STAGES.len()] {
    type Value = [u64; STAGES.len()];
    const KIND: Kind = M::KIND;
    fn value(&self) -> Self::Value {
        self.each_ref().map(M::value)
    }
}

/// Makes of one table: a struct for each writing thread, all of them together, a copy of their values, and its rows.
macro_rules! counters {
    ($($(#[doc = $about:literal])+ $group:ident $Group:ident {
        $($(#[doc = $help:literal])+ $name:ident: $Kind:ident,)+
    })+) => {
        $(
            $(#[doc = $about])+
            #[derive(Debug, Default)]
            // What two threads write stays two lines apart, as the prefetcher moves pairs of them.
            #[repr(align(128))]
            pub struct $Group {
                $($(#[doc = $help])+ pub $name: $Kind,)+
            }
        )+

        /// Everything that is counted, in one group for each thread that writes.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $about])+ pub $group: $Group,)+
        }

        /// A copy of [`Counters`]. A field that is missing in JSON is 0, and one that is unknown is passed over, so that
        /// different versions understand one another.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct CounterValues {
            $($($(#[doc = $help])+ pub $name: <$Kind as Metric>::Value,)+)+
        }

        impl Counters {
            /// The table, in the order of the fields of [`CounterValues`].
            pub const TABLE: &'static [Definition] = &[$($(Definition {
                name: stringify!($name),
                help: concat!($($help),+).trim_ascii(),
                kind: <$Kind as Metric>::KIND,
                by_stage: <<$Kind as Metric>::Value as Values>::BY_STAGE,
                writer: stringify!($group),
            },)+)+];

            /// What they hold. Each is read by itself: two may be of different moments.
            pub fn values(&self) -> CounterValues {
                CounterValues { $($($name: self.$group.$name.value(),)+)+ }
            }
        }

        impl CounterValues {
            /// Each row of the table with its value, or its values by stage.
            pub fn rows(&self) -> impl Iterator<Item = (&'static Definition, &[u64])> {
                Counters::TABLE.iter().zip([$($(self.$name.slice(),)+)+])
            }
        }
    };
}

counters! {
    /// Written by the hot thread.
    hot Hot {
        /// Rollouts that got a slot.
        rollouts_admitted: Counter,
        /// Rollouts that ended with their trajectory stored.
        rollouts_completed: Counter,
        /// Rollouts that were ended by request.
        rollouts_aborted: Counter,
        /// Rollouts that ended because no judge had a verdict, or a descriptor completed as ERROR.
        rollouts_failed: Counter,
        /// Rollouts that were dropped because their oldest tokens lay too many versions back.
        rollouts_stale: Counter,
        /// Tokens that completions brought.
        tokens_generated: Counter,
        /// DECODE descriptors that completed.
        segments: Counter,
        /// PREFILL descriptors that completed.
        prefills: Counter,
        /// With a language model, tokens of the prompts that were begun.
        prompt_tokens: Counter,
        /// Those of them whose keys and values were kept from earlier requests.
        prompt_tokens_cached: Counter,
        /// Groups that take an entry of a queue pair.
        groups_open: Gauge,
        /// Groups that the device has told to have ended.
        groups_done: Counter,
        /// Versions of the policy that were published.
        publishes: Counter,
        /// The version that new rollouts decode under.
        policy_version: Gauge,
        /// DECODEs that ended because their version was retired, and went on under the next.
        superseded: Counter,
        /// Rollouts whose last score a judge of the host gave.
        scored_host: Counter,
        /// Rollouts whose last score the device gave at a checkpoint of its own (RESIDENT).
        scored_resident: Counter,
        /// Rollouts whose last score the device gave when it was asked (REWARD).
        scored_device: Counter,
        /// Descriptors handed to the submission queue.
        descriptors_posted: Counter,
        /// Descriptors whose completion was seen.
        descriptors_completed: Counter,
        /// Batches of DECODEs that were chosen.
        decode_batches: Counter,
        /// Rollouts in these batches, all together.
        decode_rollouts_scheduled: Counter,
        /// Largest of these batches.
        decode_batch_peak: Gauge,
        /// Answers handed to a judge, or to the device to score.
        reward_handoffs: Counter,
        /// Answers without a verdict: a judge panicked, erred or missed its deadline, or the device refused a REWARD.
        verdicts_failed: Counter,
        /// Verdicts that were dropped because their rollout no longer waited for them.
        verdicts_late: Counter,
        /// Polls that found no completion while descriptors were with the device.
        device_idle_polls: Counter,
        /// Times that a queue between stages had to be freed of aborted rollouts to make room.
        pipeline_overflow: Counter,
        /// Allocations that the guard saw on the hot thread (`run --strict`).
        hotpath_mallocs_caught: Counter,
        /// KV blocks handed out.
        kv_blocks_allocated: Counter,
        /// KV blocks given back.
        kv_blocks_freed: Counter,
        /// KV blocks in use, cold ones among them.
        kv_blocks_in_use: Gauge,
        /// KV blocks that nobody uses, and that are kept to be found again.
        kv_blocks_cold: Gauge,
        /// KV blocks that sharing has saved: what ended rollouts would have taken alone, less what was handed out.
        kv_blocks_saved: Gauge,
        /// KV blocks that there are.
        kv_blocks_capacity: Gauge,
        /// Rollouts in each stage.
        stage_occupancy: StageGauges,
        /// Limit of rollouts in each stage; 0 where there is none.
        stage_credits: StageGauges,
        /// Times that admission began to wait for a stage at its limit; under FREE, for slots, KV blocks or groups of
        /// the device.
        credit_stalls: StageCounters,
    }
    /// Written by the collector of events.
    collected Collected {
        /// Events that the collector took in.
        events_recorded: Counter,
        /// Events that found the ring full.
        events_dropped: Counter,
    }
}

/// A sum of scores, signed Q16.16. One thread adds to it, any thread reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ScoreSum(AtomicI64);

impl ScoreSum {
    /// Adds a score.
    #[inline]
    pub fn add(&self, score: i32) {
        self.0.store(self.0.load(Relaxed).wrapping_add(score.into()), Relaxed);
    }

    /// The sum as a number.
    pub fn get(&self) -> f64 {
        self.0.load(Relaxed) as f64 / 65536.0
    }
}

/// How long a thread had work to do and how long it had none, in ticks of the run's clock. The thread adds to it; any
/// thread reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct BusyTime {
    /// With work.
    pub busy: Counter,
    /// Without.
    pub idle: Counter,
}
