//! The hot thread: moves rollouts from admission to their end.
//!
//! [`Pipeline::run`] is a loop of [`turns`](Pipeline::turn). A turn takes in what other threads have brought, rings the
//! device for a window of descriptors, takes completions, and hands answers and trajectories on. It never waits: what
//! does not fit anywhere stays where it is until a later turn. Nothing in it allocates, locks or calls the system, but a look at
//! the counters of a device that has given nothing for long.

mod aborts;
mod admission;
mod cache;
mod completion;
mod ends;
mod error;
mod failure;
mod gate;
mod groups;
mod ids;
mod inline;
mod journal;
mod language;
mod occupancy;
mod options;
mod ports;
mod queues;
mod rollout;
mod source;
mod stalled;
mod submission;
#[cfg(test)]
mod tests;
mod together;
mod versions;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::{Capability, DescFlags, HwCompletion, HwDesc, QueueCounter};
use doorbell_host::{Device, Features, QueueCounters, TokenRegion};

pub use aborts::{AbortAnswer, AbortHandle, Busy};
pub use admission::Held;
pub use cache::Cache;
pub use error::RuntimeError;
pub use failure::{FailureReason, Lost, Partial, Unstored};
pub use gate::Gate;
pub use inline::Inline;
pub use language::{Language, LanguageParts, PromptSource, PromptSpans, Sequence, SequenceMemory, Weights};
pub use occupancy::Occupancy;
pub use options::{Credits, Options, Scoring};
pub use ports::{Discard, RewardStage, TrajectoryStage};
pub use source::{Draws, Feed, Next, Source, Terms};
pub use stalled::{Judging, Stall};
pub use versions::{PublishAnswer, PublishRefusal, Publisher};

use crate::events::{Clock, Recorder};
use crate::kv::{PrefixConfig, PrefixCounts, Prefixes};
use crate::metrics::{Metrics, WorkerTime, Workers};
use crate::policy::{Policy, PolicyKind};
use crate::reward::{AnswerMemory, Judged, Prompts, Request, Tickets, Verdict};
use crate::rollout::{RolloutId, Slab, State, TransitionError};
use crate::trajectory::Spans;
use aborts::{Asker, NO_REQUEST};
use admission::Admission;
use groups::Stop;
use ids::WireIds;
use journal::Journal;
use language::Sequences;
use queues::Queues;
use rollout::{Group, Life};
use submission::decode_flags;
use versions::{Publishes, Versions};

/// Completions taken at a time.
const POLL: usize = 256;
/// How many requests of each kind from other threads a turn answers at most: they must not keep it from the device.
const ASKS_PER_TURN: usize = 16;
/// Number of failed rollouts whose details are kept.
const FAILURES: usize = 64;
/// Idle turns between two looks at the clock.
const IDLE_TURNS: u32 = 1024;
/// How long the hot thread sleeps at a time: while it also waits for others than the device, and while it waits only for the device.
const SHORT_SLEEP: Duration = Duration::from_micros(200);
const LONG_SLEEP: Duration = Duration::from_millis(10);

/// What a pipeline works with.
pub struct Parts {
    /// The device, with a token region of at least [`Options::token_bytes`].
    pub device: Box<dyn Device>,
    /// Running index at which each of its submission queues starts, if they start alike: then the host can tell from `sq_head`
    /// which descriptors the device has taken.
    pub sq_start: Option<u32>,
    /// Which waiting rollout decodes next.
    pub policy: Box<dyn Policy>,
    /// The KV blocks.
    pub kv: Prefixes,
    /// Where answers are scored.
    pub rewards: Box<dyn RewardStage>,
    /// Where judges read prompts, with room for as many groups as there are slots.
    pub prompts: Prompts,
    /// Where trajectories are stored.
    pub trajectories: Box<dyn TrajectoryStage>,
    /// Where it reads which versions of the policy tokens come from, with room for as many rollouts as there are slots, and
    /// in each for as many versions as a rollout may see; one that would see more is dropped as stale.
    pub spans: Spans,
    /// What a language model needs, where rollouts run one ([`Options::language`]).
    pub language: Option<LanguageParts>,
    /// Records events, if they are wanted.
    pub recorder: Option<Recorder>,
    /// What is counted and measured, for other threads to read.
    pub metrics: Arc<Metrics>,
}

impl Parts {
    /// Parts whose sizes follow from `options` and from the longest of `requests`: groups share KV blocks in an arena of
    /// `kv_blocks`, first come is first served, and trajectories are discarded. `rewards` makes the reward stage, given the memory
    /// that judges read. Any of the fields may be replaced after.
    ///
    /// # Errors
    /// `Kv` if the arena cannot be made.
    pub fn sized(
        options: &Options,
        device: Box<dyn Device>,
        requests: &[doorbell_trace::Request],
        kv_blocks: u32,
        rewards: impl FnOnce(AnswerMemory) -> Box<dyn RewardStage>,
    ) -> Result<Parts, RuntimeError> {
        let slots = options.slots;
        let prompt_ids = requests.iter().map(|request| request.prefix.len()).max().unwrap_or(0);
        let prompt_tokens = requests.iter().map(|request| request.prompt_tokens).max().unwrap_or(1);
        let prompts = Prompts::new(slots, prompt_ids);
        let memory = AnswerMemory { tokens: device.token_regions(), prompts: prompts.clone() };
        let kv = PrefixConfig {
            blocks: kv_blocks,
            prefixes: slots,
            branches: slots,
            prompt_tokens,
            answer_tokens: options.max_output_tokens,
            ..PrefixConfig::default()
        };
        let name = device.name().to_owned();
        Ok(Parts {
            device,
            sq_start: None,
            policy: PolicyKind::Fifo.build(slots),
            kv: Prefixes::new(kv)?,
            rewards: rewards(memory),
            prompts,
            trajectories: Box::new(Discard::new(slots)),
            spans: Spans::new(slots, 1),
            language: None,
            recorder: None,
            metrics: Arc::new(Metrics::new(&name, Clock::new(), None)),
        })
    }

    /// Checks sizes against each other.
    fn check(&self, options: &Options) -> Result<(), RuntimeError> {
        let short =
            |field, value: u64, expected: String| Err(RuntimeError::Options { field, value, expected });
        let slots = options.slots as usize;
        if self.prompts.groups() < slots {
            let expected = format!("at least {slots}, as many as there are slots (Prompts::new)");
            return short("the number of prompts", self.prompts.groups() as u64, expected);
        }
        if self.spans.slots() < slots {
            let expected = format!("at least {slots}, as many as there are slots (Spans::new)");
            return short("the number of slots with spans", self.spans.slots() as u64, expected);
        }
        let least = self.device.token_regions().iter().map(|region| region.bytes()).min().unwrap_or(0);
        if least < options.token_bytes() {
            let expected = format!(
                "at least {} (Options::token_bytes, for QueueConfig::token_bytes)",
                options.token_bytes()
            );
            return short("the device's token region in bytes", least, expected);
        }
        Ok(())
    }
}

/// What is left of a pipeline.
pub struct Ends {
    /// The device, for its counters.
    pub device: Box<dyn Device>,
    /// The reward stage, to be shut down.
    pub rewards: Box<dyn RewardStage>,
    /// The writer, to be finished: it returns why it failed, if it did.
    pub trajectories: Box<dyn TrajectoryStage>,
}

/// Rollouts, and all that moves them. Belongs to one thread, the hot one.
pub struct Pipeline {
    options: Options,
    device: Box<dyn Device>,
    policy: Box<dyn Policy>,
    kv: Prefixes,
    rewards: Box<dyn RewardStage>,
    prompts: Prompts,
    trajectories: Box<dyn TrajectoryStage>,
    metrics: Arc<Metrics>,
    journal: Journal,
    features: Features,
    decode_flags: DescFlags,
    /// The device's token regions.
    regions: Vec<TokenRegion>,
    spans: Spans,
    versions: Versions,
    /// Of engine 1.
    language: Option<Sequences>,
    /// The handles that may publish versions.
    publishers: Vec<Publishes>,
    /// Groups that take an entry of a queue pair, by queue pair, and all together.
    entries: Box<[u32]>,
    open_groups: u32,
    lives: Slab<Life>,
    groups: Box<[Group]>,
    free_groups: Vec<u32>,
    /// The request of each group's place, for aborts to find it.
    requests_by_group: Box<[u64]>,
    /// Number of the next request: none is ever used twice.
    next_request: u64,
    wire_ids: WireIds,
    /// The ids of the next request, if it was held back, and for how many rollouts they are.
    next_wire_id: Option<(u32, u32)>,
    queues: Queues,
    occupancy: Occupancy,
    /// Answers that verdicts are awaited for.
    tickets: Tickets,
    /// REWARDs in flight, or made, on the queue pairs of their rollouts.
    rewards_in_flight: u32,
    /// Running number of the last DECODE.
    descriptors: u32,
    /// STOPs that wait to be submitted.
    stops: VecDeque<Stop>,
    /// Groups whose answers wait for a judge; members, requests and scores of the one at hand.
    calls: VecDeque<u32>,
    members: Vec<RolloutId>,
    requests: Vec<Request>,
    scores: Vec<i32>,
    /// Whether rollouts may go on.
    gate: Gate,
    /// Whether some were aborted that may wait at the gate.
    aborted_at_gate: bool,
    /// The handles that may ask for aborts.
    askers: Vec<Asker>,
    /// Whose turn it is among them, and among those who publish.
    next_asker: usize,
    next_publisher: usize,
    /// Descriptors made and not yet taken by the device.
    batch: Vec<HwDesc>,
    completions: Box<[HwCompletion]>,
    verdicts: Box<[Judged]>,
    stored: Box<[RolloutId]>,
    /// Why the next request is not admitted.
    held: Option<Held>,
    /// Whether prompts share blocks across versions, which is a fault.
    mixes_versions: bool,
    cache: Cache,
    /// Blocks that all ended rollouts would have taken had nobody shared.
    blocks_alone: u64,
    idle_turns: u32,
    idle_since: Option<Instant>,
    /// When the device was last seen to move, and by how much it had by then, while the pipeline is idle.
    device_moved: Option<(Instant, u64)>,
    first_error: Option<HwCompletion>,
    /// The first rollouts that failed.
    failures: Vec<Lost>,
}

impl Pipeline {
    /// A pipeline without rollouts. Everything that it will need is allocated here.
    ///
    /// # Errors
    /// `Options` for an invalid value.
    pub fn new(options: Options, parts: Parts) -> Result<Pipeline, RuntimeError> {
        options.check()?;
        let slots = options.slots;
        parts.check(&options)?;
        let mut queues = Queues::new(slots);
        let lives = Slab::new(slots, |_| Life::none());
        for slot in 0..slots {
            queues.free.push(lives.current(slot))?;
        }
        let hot = &parts.metrics.counters.hot;
        for stage in State::ALL.into_iter().filter(|&stage| stage != State::Free) {
            hot.stage_credits[stage as usize].set(options.credits.limit(stage).into());
        }
        hot.stage_occupancy[State::Free as usize].set(slots.into());
        hot.kv_blocks_capacity.set(parts.kv.arena().blocks().into());
        let capacity = parts.device.capacity();
        let features = parts.device.features();
        let regions = parts.device.token_regions();
        let has_logprobs = options.logprobs
            && features.capability.contains(Capability::LOGP)
            && !parts.device.logp_regions().is_empty();
        let group = options.group as usize;
        let language = Sequences::new(&options, parts.language, &*parts.device, &parts.kv)?;
        Ok(Pipeline {
            journal: Journal::new(parts.recorder, parts.sq_start, &*parts.device, options.slots),
            decode_flags: decode_flags(&options, has_logprobs),
            features,
            entries: vec![0; regions.len()].into(),
            open_groups: 0,
            regions,
            spans: parts.spans,
            versions: Versions::new(parts.device.functions()),
            language,
            publishers: vec![],
            device: parts.device,
            policy: parts.policy,
            kv: parts.kv,
            rewards: parts.rewards,
            prompts: parts.prompts,
            trajectories: parts.trajectories,
            metrics: parts.metrics,
            lives,
            groups: (0..slots).map(|_| Group::none()).collect(),
            requests_by_group: vec![NO_REQUEST; slots as usize].into(),
            free_groups: (0..slots).rev().collect(),
            next_request: 0,
            wire_ids: WireIds::new(),
            next_wire_id: None,
            queues,
            occupancy: Occupancy::all_free(slots),
            tickets: Tickets::new(slots as usize),
            rewards_in_flight: 0,
            descriptors: 0,
            // One of each member and one of each group at most.
            stops: VecDeque::with_capacity(2 * slots as usize),
            calls: VecDeque::with_capacity(slots as usize),
            members: Vec::with_capacity(group),
            requests: Vec::with_capacity(group),
            scores: Vec::with_capacity(group),
            gate: Gate::default(),
            aborted_at_gate: false,
            askers: vec![],
            next_asker: 0,
            next_publisher: 0,
            batch: Vec::with_capacity(capacity),
            completions: vec![HwCompletion::default(); POLL].into(),
            verdicts: vec![nothing_judged(); POLL].into(),
            stored: vec![RolloutId::from_bits(0); POLL].into(),
            held: None,
            mixes_versions: false,
            cache: Cache::default(),
            blocks_alone: 0,
            idle_turns: 0,
            idle_since: None,
            device_moved: None,
            first_error: None,
            failures: Vec::with_capacity(FAILURES),
            options,
        })
    }

    /// Admits what `source` gives and moves rollouts until it has come to its end and all have ended, or `until` says so
    /// after a turn. A source that has nothing for a while is asked again, however long that takes. Can be called again,
    /// with another source too: numbers go on where they were.
    ///
    /// # Errors
    /// The first: of the device, of the writer, `NoJudges`, `Failures` if more rollouts failed than may, `Request` for one
    /// that can never run, or `Stalled` if rollouts live and nothing moves for too long (R15).
    pub fn run(
        &mut self,
        source: &mut (impl Source + ?Sized),
        mut until: impl FnMut(&Pipeline) -> bool,
    ) -> Result<(), RuntimeError> {
        loop {
            if until(self) {
                return Ok(());
            }
            let began = self.read_clock();
            let Admission { admitted, ended } = self.admit_from(source)?;
            if ended && self.is_idle() {
                if self.journal.wants_lives() {
                    self.take_lives(usize::MAX)?;
                    // The last of them are no later than this.
                    self.read_clock();
                    self.journal.finish_lives();
                }
                return Ok(());
            }
            let moved = self.turn()? || admitted;
            let spent = self.read_clock().since(began);
            let time = &self.metrics.hot_time;
            if moved {
                time.busy.add(spent)
            } else {
                time.idle.add(spent)
            }
            if self.metrics.workers.as_ref().is_some_and(Workers::asked) {
                self.show_workers()?;
            }
            // Without rollouts there is nothing that could move.
            let rests = self.is_idle() && self.held != Some(Held::Version) || self.gate.is_closed();
            // What waits for a fuller window goes in the next turn, and is not slept over.
            if !moved && self.options.sleeps && (rests || self.idle_turns > 0) {
                self.sleep()?;
            }
            self.note_idle(moved || rests)?;
        }
    }

    /// Reads the counters of the device's workers, for other threads to read.
    #[cold]
    fn show_workers(&mut self) -> Result<(), RuntimeError> {
        let workers = self.device.worker_counters()?;
        self.metrics.show_workers(workers.iter().map(WorkerTime::from).collect());
        Ok(())
    }

    /// Sleeps until the device interrupts, or for a limited time, because others cannot interrupt: judges, the writer, the source,
    /// and threads with something to abort or to publish.
    #[cold]
    fn sleep(&mut self) -> Result<(), RuntimeError> {
        let others = self.rewards.pending() > 0 || self.occupancy.of(State::TrajectoryReady) > 0;
        let longest = if others { SHORT_SLEEP } else { LONG_SLEEP };
        if self.device.in_flight() == 0 {
            std::thread::sleep(SHORT_SLEEP);
        } else {
            // Without interrupts of its own it has none for each completion: it is waited for as it can be.
            if self.features.capability.contains(Capability::INTERRUPT) {
                self.device.arm()?;
            }
            self.device.wait(Instant::now() + longest)?;
        }
        self.idle_turns = IDLE_TURNS;
        Ok(())
    }

    /// One turn: whatever can move now moves by one stage or more. Says whether anything did.
    ///
    /// # Errors
    /// As [`run`](Self::run), but for `Stalled`.
    pub fn turn(&mut self) -> Result<bool, RuntimeError> {
        // Whoever asks without end must not keep the device from its time.
        let asked = self.take_aborts()? | self.take_publishes() | self.take_flushes()?;
        let mut moved = self.take_verdicts()?;
        moved |= self.take_stored()?;
        moved |= self.submit()?;
        // A device that gets its time in `poll` gets it when there is nothing else to do.
        moved |= self.take_completions(moved)?;
        moved |= self.post_answers()?;
        moved |= self.post_groups()?;
        moved |= self.post_trajectories()?;
        moved |= self.end_done()? | asked;
        if moved {
            self.publish();
        }
        Ok(moved)
    }

    /// Lets prompts share blocks across versions of a language model, against the rule of [`kv::Group::domain`](crate::kv::Group::domain): a fault,
    /// for suites that look for it.
    #[doc(hidden)]
    pub fn mix_versions(&mut self) {
        self.mixes_versions = true;
    }

    /// Whether no rollout is under way, and nothing else on the device either: no group that has not ended, no version that is
    /// being published, no REWARD of a rollout that was aborted.
    pub fn is_idle(&self) -> bool {
        self.occupancy.of(State::Free) == self.options.slots
            && self.open_groups == 0
            && self.rewards_in_flight == 0
            && !self.versions.is_publishing()
    }

    /// Rollouts that have ended, in whichever way.
    pub fn ended(&self) -> u64 {
        let hot = &self.metrics.counters.hot;
        hot.rollouts_completed.get()
            + hot.rollouts_aborted.get()
            + hot.rollouts_failed.get()
            + hot.rollouts_stale.get()
    }

    /// How full the stages are.
    pub fn occupancy(&self) -> Occupancy {
        let mut occupancy = self.occupancy;
        // Whatever can be submitted is with the policy: the queue before it is emptied in each turn.
        occupancy.ready = self.policy.len();
        occupancy.in_flight = self.device.in_flight();
        occupancy.room = self.room();
        occupancy
    }

    /// Requests that have been admitted: the next one gets this number.
    pub fn admitted(&self) -> u64 {
        self.next_request
    }

    /// The first 64 rollouts that failed. [`TrajectoryStage::lost`] hears of all.
    pub fn failures(&self) -> &[Lost] {
        &self.failures
    }

    /// The first completion that was an ERROR, if one was.
    pub fn first_error(&self) -> Option<&HwCompletion> {
        self.first_error.as_ref().or(self.rewards.first_refused())
    }

    /// What is counted and measured.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// KV blocks that the rollouts which have ended would have taken had nobody shared.
    pub fn blocks_alone(&self) -> u64 {
        self.blocks_alone
    }

    /// How the KV blocks stand.
    pub fn kv_counts(&mut self) -> PrefixCounts {
        self.kv.counts()
    }

    /// The parts that the pipeline worked with, for the caller to shut down.
    pub fn into_ends(self) -> Ends {
        Ends { device: self.device, rewards: self.rewards, trajectories: self.trajectories }
    }

    /// Descriptors that may be submitted now.
    fn room(&self) -> usize {
        let room = self.device.room().saturating_sub(self.batch.len());
        match self.options.in_flight {
            0 => room,
            limit => room.min(limit.saturating_sub(self.device.in_flight() + self.batch.len())),
        }
    }

    /// Moves a rollout along an edge, and updates the counts. Each caller passes a constant edge, so that inlining
    /// removes the choice of the edge.
    #[inline(always)]
    fn advance(&mut self, id: RolloutId, from: State, to: State) -> Result<&mut Life, TransitionError> {
        let life = self.lives.advance(id, from, to)?;
        self.occupancy.moved(from, to);
        self.journal.entered(id, to);
        Ok(life)
    }

    /// Shows other threads how full everything is.
    #[inline]
    fn publish(&self) {
        let hot = &self.metrics.counters.hot;
        for state in State::ALL {
            hot.stage_occupancy[state as usize].set(self.occupancy.of(state).into());
        }
    }

    #[cold]
    fn count_stall(&self, held: Held) {
        let stage = match held {
            Held::Stage(stage) => stage,
            // What is lacking is what ended rollouts give back.
            Held::Slots | Held::Blocks | Held::Groups | Held::Version => State::Free,
        };
        self.metrics.counters.hot.credit_stalls[stage as usize].add(1);
    }

    /// Gives up once nothing has moved for `patience` (R15), neither here nor on the device: one DECODE may take long, and its tokens count
    /// as progress.
    #[inline]
    fn note_idle(&mut self, moved: bool) -> Result<(), RuntimeError> {
        if moved {
            self.idle_turns = 0;
            (self.idle_since, self.device_moved) = (None, None);
            return Ok(());
        }
        if self.device.in_flight() > 0 {
            self.metrics.counters.hot.device_idle_polls.add(1);
        }
        std::hint::spin_loop();
        self.idle_turns += 1;
        if self.idle_turns < IDLE_TURNS {
            return Ok(());
        }
        // Nothing has moved yet.
        self.idle_turns = 1;
        let waited = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        let patience = self.options.patience;
        // Judges have their own time for an answer. Then another gets it, or its rollout fails: that moves.
        let judging =
            (self.rewards.pending() > 0).then(|| self.rewards.deadline()).flatten().unwrap_or_default();
        // The first look at the device comes early, so that a device that is stuck is told soon after `patience`.
        if self.device.in_flight() > 0 && (self.device_moved.is_some() || waited >= patience / 8) {
            return self.note_device(patience + judging);
        }
        if waited < patience + judging { Ok(()) } else { Err(self.stalled(waited.as_secs_f64())) }
    }

    /// Gives up once the device has not moved for `patience`. The only look that allocates: it comes when nothing has moved for long.
    #[cold]
    fn note_device(&mut self, patience: Duration) -> Result<(), RuntimeError> {
        if let Some((at, _)) = self.device_moved
            && at.elapsed() < patience
        {
            return Ok(());
        }
        let moves = |of: QueueCounters| {
            [QueueCounter::Descriptors, QueueCounter::Completions, QueueCounter::Tokens].map(|c| of.get(c))
        };
        let moved = self.device.queue_counters()?.into_iter().flat_map(moves).sum();
        match self.device_moved.replace((Instant::now(), moved)) {
            Some((at, before)) if before == moved => Err(self.stalled(at.elapsed().as_secs_f64())),
            _ => Ok(()),
        }
    }
}

/// A place for a verdict.
fn nothing_judged() -> Judged {
    let rollout = RolloutId::from_bits(0);
    let verdict = Ok(Verdict { score: 0, proceed: false });
    Judged { ticket: Tickets::new(1).issue(rollout), rollout, judge: 0, verdict }
}
