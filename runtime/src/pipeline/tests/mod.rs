//! The pipeline against stages whose timing a seed decides.

mod doubles;
mod groups;
mod language;
mod lives;
mod policies;
mod rewards;
mod stalls;
mod terms;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use doorbell_contract::{Capability, Counter, HwDesc, MEMBERS_MAX, Opcode, PREFIX_NONE, PolicyMode, mix};
use doorbell_engine::{Engine, NO_RANGES, Ranges, RewardModel};
use doorbell_host::{Division, Driver, Ports, QueueConfig, Sharded};
use doorbell_trace::{Generator, Request};
use doorbell_verify::ModelPlatform;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::events::Clock;
use crate::kv::{AnswerStart, PrefixConfig, Sharing};
use crate::policy::PolicyKind;
use crate::reward::{
    Answer, AnswerMemory, DeviceRewards, DigestJudge, Judge, JudgeError, JudgeFailure, Pool, PoolOptions,
    QueueRewards, RangeJudge, Scale, Scorer,
};
use crate::trajectory::{Finished, Outcome, Span};
use doubles::{Less, Moody, Note, Notes, Shuffle, Sips, Tricky, Unreadable, repeated, tampered};

/// Turns after which a run counts as stalled: every double does something in some of them.
const TURNS: usize = 2_000_000;

/// What a run is made of, beyond its options.
struct Setup {
    options: Options,
    requests: Vec<Request>,
    policy: PolicyKind,
    /// Slots of the device's queues.
    depth: u32,
    eos_threshold: u32,
    reward_threshold: i32,
    blocks: u32,
    /// Who shares these.
    sharing: Sharing,
    /// Queue pairs of the device, and functions.
    queues: u8,
    functions: u8,
    /// Groups and versions that the device has at most.
    less: Features,
    /// Turns between two publishes, and what becomes of the version before.
    publish: Option<(usize, PolicyMode)>,
    /// Spans that a rollout may have.
    spans: u32,
    /// Who scores, by which model, and its ranges.
    judges: Judges,
    model: RewardModel,
    ranges: Ranges,
    /// Whether the device tells the lives of its descriptors.
    lives: bool,
    /// Where the device has its only time, if that is when its clock is read.
    slices: Option<lives::Slices>,
    /// Index of the first completion of each queue pair.
    cq_start: u32,
    /// Whether completions come to the pipeline in another order than from the device; else it takes descriptors one by one.
    shuffles: bool,
    /// The models that rollouts of engine 1 run, and bytes of each.
    models: Option<language::Models>,
    seed: u64,
}

/// Who scores where the reward stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judges {
    /// The host.
    Host,
    /// The device, on the rollouts' own queue pairs.
    Own,
    /// The device, on queue pairs beside them.
    Beside,
}

impl Setup {
    fn new(requests: usize, options: Options) -> Setup {
        let generator = Generator {
            output_median: 40,
            output_max: 200,
            prompt_median: 300,
            ..Generator::new(requests as u32, 7, 3)
        };
        let requests = generator.generate().unwrap().requests;
        let longest = requests.iter().map(|request| request.output_tokens).max().unwrap();
        Setup {
            options: Options { max_output_tokens: longest, patience: Duration::from_secs(5), ..options },
            requests,
            policy: PolicyKind::Fifo,
            depth: 64,
            eos_threshold: 0,
            reward_threshold: 0,
            blocks: 16_384,
            sharing: Sharing::Requests,
            queues: 1,
            functions: 1,
            less: Features {
                capability: Capability::all(),
                groups: 64,
                policy_slots: 2,
                reward_models: 2,
                tick_hz: 0,
                engines: 2,
            },
            publish: None,
            spans: 1,
            judges: Judges::Host,
            model: RewardModel::Digest,
            ranges: NO_RANGES,
            lives: false,
            slices: None,
            cq_start: 0,
            shuffles: true,
            models: None,
            seed: 1,
        }
    }

    fn kv(&self) -> Prefixes {
        // Of whoever gave its blocks back the end of the prompt is a part of the answer.
        let longest = self.options.language.map_or(0, |_| self.options.max_output_tokens + 32);
        let config = PrefixConfig {
            blocks: self.blocks,
            sharing: self.sharing,
            prefixes: self.options.slots,
            branches: self.options.slots,
            prompt_tokens: self.requests.iter().map(|request| request.prompt_tokens).max().unwrap(),
            answer_tokens: self.options.max_output_tokens.max(longest),
            nodes: 4096,
            answer_start: match self.models {
                Some(_) => AnswerStart::SamePage,
                None => AnswerStart::NewBlock,
            },
            cap: self.models.as_ref().and_then(language::Models::cap),
            ..PrefixConfig::default()
        };
        Prefixes::new(config).unwrap()
    }

    fn prompts(&self) -> Prompts {
        let ids = self.requests.iter().map(|request| request.prefix.len()).max().unwrap();
        Prompts::new(self.options.slots, ids)
    }

    /// Judges on threads, beside a device that takes its turns as they come.
    fn threaded<J: Judge + 'static>(
        &self,
        options: PoolOptions,
        factory: impl FnMut(usize) -> J + Send + 'static,
    ) -> (Pipeline, Notes) {
        let (mut pipeline, notes) = self.pipeline();
        let memory =
            AnswerMemory { tokens: pipeline.device.token_regions(), prompts: pipeline.prompts.clone() };
        pipeline.rewards = Box::new(Pool::start(options, &memory, factory).unwrap());
        (pipeline, notes)
    }

    /// A model with so many queue pairs, as one device.
    fn device(&self, config: QueueConfig) -> Box<dyn Device> {
        if let Some(slices) = &self.slices {
            return Box::new(Driver::new(slices.platform(), config).unwrap());
        }
        if self.queues == 1 {
            return Box::new(Driver::new(ModelPlatform::new(), config).unwrap());
        }
        let division = Division {
            queues: self.queues,
            functions: self.functions,
            bytes: config.shared_bytes().unwrap(),
            ..Division::default()
        };
        let model = ModelPlatform::with_queues(self.queues, self.functions).unwrap();
        let ports = Ports::divide(model, &division).unwrap();
        let driver = |port| -> Box<dyn Device> { Box::new(Driver::new(port, config.clone()).unwrap()) };
        let drivers = ports.take_all().unwrap().into_iter().map(driver).collect();
        Box::new(Sharded::new("models", drivers).unwrap())
    }

    /// The same, with a queue pair for REWARDs beside each.
    fn device_with_rewards(&self, config: QueueConfig) -> (Box<dyn Device>, Vec<Box<dyn Device>>) {
        let queues = 2 * self.queues;
        let bytes = config.shared_bytes().unwrap();
        let division = Division { queues, functions: self.functions, row: 2, bytes, ..Division::default() };
        let ports = Ports::divide(ModelPlatform::with_queues(queues, self.functions).unwrap(), &division);
        let mut rollouts: Vec<Box<dyn Device>> = vec![];
        let mut rewards: Vec<Box<dyn Device>> = vec![];
        for port in ports.unwrap().take_all().unwrap() {
            if rewards.len() == rollouts.len() {
                rollouts.push(Box::new(Driver::new(port, config.clone()).unwrap()));
            } else {
                let tokens = rollouts[rewards.len()].token_regions().remove(0);
                rewards.push(Box::new(Driver::over(port, config.clone(), tokens).unwrap()));
            }
        }
        (Box::new(Sharded::new("models", rollouts).unwrap()), rewards)
    }

    fn config(&self) -> QueueConfig {
        QueueConfig {
            sq_depth: self.depth,
            cq_depth: self.depth,
            cq_start: self.cq_start,
            token_bytes: self.options.token_bytes(),
            logp_bytes: self.options.logp_bytes(),
            eos_threshold: self.eos_threshold,
            reward_threshold: self.reward_threshold,
            length_limit: self.options.length_limit,
            ranges: self.ranges,
            event_slots: if self.lives { 4096 } else { 0 },
            life_events: self.lives,
            ..language::regions(self)
        }
    }

    fn pipeline(&self) -> (Pipeline, Notes) {
        self.pipeline_with(|queue| queue)
    }

    /// The same; `edit` has the queue pairs for REWARDs, if there are any.
    fn pipeline_with(&self, edit: impl Fn(Box<dyn Device>) -> Box<dyn Device>) -> (Pipeline, Notes) {
        let (device, beside) = match self.judges {
            Judges::Beside => self.device_with_rewards(self.config()),
            _ => (self.device(self.config()), vec![]),
        };
        let device = Tricky { inner: device, trick: Less(self.less) };
        let regions = device.token_regions();
        let spans = Spans::new(self.options.slots, self.spans);
        let notes = Notes::default();
        let threshold = self.reward_threshold;
        let slots = self.options.slots;
        let prompts = self.prompts();
        let memory = AnswerMemory { tokens: regions.clone(), prompts: prompts.clone() };
        let (scale, longest) = (Scale { model: self.model, threshold }, self.options.max_output_tokens);
        let rewards: Box<dyn RewardStage> = match (self.judges, self.model) {
            (Judges::Host, RewardModel::Digest) => {
                let inline = Inline::new(memory, slots, longest, move |_| DigestJudge { threshold });
                Box::new(Moody::new(inline, self.seed))
            }
            (Judges::Host, RewardModel::Ranges) => {
                let ranges = self.ranges;
                let inline = Inline::new(memory, slots, longest, move |_| RangeJudge { ranges, threshold });
                Box::new(Moody::new(inline, self.seed))
            }
            (Judges::Own, _) => {
                let rewards = DeviceRewards::new(device.name(), device.features(), slots, scale);
                Box::new(Moody::new(rewards.unwrap(), self.seed))
            }
            (Judges::Beside, _) => {
                let queues = beside.into_iter().map(edit).collect();
                Box::new(Moody::new(QueueRewards::new(queues, slots, scale).unwrap(), self.seed))
            }
        };
        let mut store = doubles::Store::new(regions, spans.clone(), notes.clone(), self.seed);
        let language = self.models.as_ref().map(|models| models.parts(self, &device, &mut store, &spans));
        let device: Box<dyn Device> = Box::new(device);
        let device: Box<dyn Device> = match self.shuffles {
            true => Box::new(Tricky { inner: device, trick: Shuffle::new(self.seed) }),
            false => Box::new(Tricky { inner: device, trick: Sips }),
        };
        let parts = Parts {
            device,
            sq_start: None,
            policy: self.policy.build(slots),
            kv: self.kv(),
            rewards,
            prompts,
            trajectories: Box::new(store),
            spans,
            language,
            recorder: None,
            metrics: Arc::new(Metrics::new("test", Clock::simulated(), None)),
        };
        (Pipeline::new(self.options.clone(), parts).unwrap(), notes)
    }

    /// Runs all requests; every rollout that was admitted has ended, and everything was given back.
    fn run(&self) -> (Pipeline, Vec<Note>) {
        let (pipeline, stored, _) = self.run_noted(&mut Feed::new(&self.requests));
        let rollouts = self.requests.len() as u64 * u64::from(self.options.group);
        assert_eq!(pipeline.metrics.counters.values().rollouts_admitted, rollouts);
        (pipeline, stored)
    }

    /// Runs what a feed gives; also the notes of what was stored. Versions are published as `publish` says, each of which
    /// must become resident.
    fn run_noted(&self, feed: &mut Feed<'_>) -> (Pipeline, Vec<Note>, Notes) {
        let (mut pipeline, notes) = self.pipeline();
        let mut publisher = pipeline.publisher();
        let (mut turns, mut version) = (0, 0u16);
        let mut weights = language::lay(&self.models, &pipeline);
        if let Some(weights) = &mut weights {
            version = 1;
            publisher.publish_weights(version, weights.lay(version), PolicyMode::Wait).unwrap();
        }
        pipeline
            .run(feed, |pipeline| {
                turns += 1;
                assert!(turns < TURNS, "seed {}: stalled with {}", self.seed, pipeline.occupancy());
                if let Some((version, answer)) = publisher.answer() {
                    assert_eq!(answer, PublishAnswer::Resident, "seed {}: version {version}", self.seed);
                    weights.iter_mut().for_each(language::Laid::published);
                }
                if let Some((every, mode)) = self.publish
                    && turns % every == 0
                    && publisher.awaited() == 0
                {
                    version += 1;
                    match &weights {
                        None => publisher.publish(version, salt(version), mode).unwrap(),
                        Some(weights) => {
                            publisher.publish_weights(version, weights.lay(version), mode).unwrap();
                        }
                    }
                }
                false
            })
            .unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        let values = pipeline.metrics.counters.values();
        let stored = notes.take();
        assert_eq!(values.rollouts_completed, stored.len() as u64);
        assert_eq!(pipeline.ended(), values.rollouts_admitted, "seed {}: a rollout got lost", self.seed);
        assert!(pipeline.is_idle());
        assert_eq!(pipeline.free_groups.len(), self.options.slots as usize, "groups are kept");
        let opened = if pipeline.features.groups > 0 && (2..=MEMBERS_MAX).contains(&self.options.group) {
            values.prefills
        } else {
            0
        };
        assert_eq!(values.groups_done, opened, "R17: a group that was opened has ended");
        assert_eq!(pipeline.first_error(), None, "the device has refused what the host should not have sent");
        let counts = pipeline.kv.counts();
        assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
        (pipeline, stored, notes)
    }

    /// The answer that engine 0 gives to a rollout of this trace whose tokens come from versions as its spans say; request
    /// numbers go on behind the trace's end.
    fn answer_of(&self, finished: &Finished, spans: &[Span]) -> Vec<u32> {
        let request = &self.requests[(finished.request % self.requests.len() as u64) as usize];
        let ends = spans.iter().skip(1).map(|span| span.first).chain([finished.answer_tokens]);
        let parts = spans.iter().zip(ends).map(|(span, end)| {
            let from = request.prompt_tokens + span.first;
            let desc =
                HwDesc::decode(finished.device_rollout, from, end - span.first).with_seed(self.options.seed);
            let mut decoder = Engine::Hash.begin(&desc, salt(span.version), 0).unwrap();
            (span.first..end).map(move |_| decoder.step().token).collect::<Vec<_>>()
        });
        parts.flatten().collect()
    }

    /// The answer that engine 0 gives to a rollout of this trace.
    fn answer(&self, finished: &Finished) -> Vec<u32> {
        let request = &self.requests[finished.request as usize];
        let desc = HwDesc::decode(finished.device_rollout, request.prompt_tokens, finished.answer_tokens)
            .with_seed(self.options.seed);
        let mut decoder = Engine::Hash.begin(&desc, 0, 0).unwrap();
        (0..finished.answer_tokens).map(|_| decoder.step().token).collect()
    }
}

/// The salt of a version, which the tests publish it with; that of version 0 is 0.
fn salt(version: u16) -> u32 {
    mix(u32::from(version))
}

/// Flaw 1: a rollout that reaches a checkpoint is continued, and its trajectory is that of an uncut one. Flaw 16: none
/// is stored before it was decoded.
#[rstest]
fn r9_trajectories_are_whole_however_they_are_cut(
    #[values(0, 1, 7, 32)] checkpoint: u32,
    #[values(1, 4)] group: u32,
) {
    let setup = Setup::new(60, Options { slots: 64, group, checkpoint, ..Options::default() });
    let (_, stored) = setup.run();
    assert_eq!(stored.len(), 60 * group as usize);
    for (finished, tokens) in &stored {
        let request = &setup.requests[finished.request as usize];
        assert_eq!(finished.answer_tokens, request.output_tokens);
        assert_eq!(finished.outcome, Outcome::Completed);
        let segments = if checkpoint == 0 { 1 } else { request.output_tokens.div_ceil(checkpoint) };
        assert_eq!(finished.segments, segments);
        assert_eq!(*tokens, setup.answer(finished), "rollout {}", finished.rollout);
    }
}

/// The host's judge, a RESIDENT device and one that is asked by REWARDs end the same rollouts at the same token, with the same score: by the end of
/// sequence, by their budget, and, with a threshold between, by their score.
#[rstest]
#[case(PolicyKind::Fifo, 9000)]
#[case(PolicyKind::ShortestRemaining, 9000)]
#[case(PolicyKind::Fifo, 0)]
#[case(PolicyKind::Fifo, 40_000)]
#[case(PolicyKind::Fifo, 65_536)]
fn r9_host_and_device_score_alike(#[case] policy: PolicyKind, #[case] reward_threshold: i32) {
    let run = |scoring, judges| {
        let options =
            Options { slots: 32, group: 2, checkpoint: 16, scoring, eos_stops: true, ..Options::default() };
        let setup = Setup { reward_threshold, eos_threshold: 120, policy, judges, ..Setup::new(80, options) };
        let mut stored = setup.run().1;
        stored.sort_by_key(|(finished, _)| finished.device_rollout);
        stored
    };
    let host = run(Scoring::Stage, Judges::Host);
    let mut outcomes = HashSet::new();
    for (scoring, judges, scorer) in [
        (Scoring::Resident, Judges::Host, Scorer::Resident),
        (Scoring::Stage, Judges::Own, Scorer::Device),
        (Scoring::Stage, Judges::Beside, Scorer::Device),
    ] {
        let device = run(scoring, judges);
        assert_eq!(host.len(), device.len());
        for ((host, host_tokens), (device, device_tokens)) in host.iter().zip(&device) {
            outcomes.insert(host.outcome);
            let what = |finished: &Finished| {
                (finished.device_rollout, finished.outcome, finished.answer_tokens, finished.score)
            };
            assert_eq!(what(host), what(device), "{judges:?}");
            assert_eq!(host_tokens, device_tokens);
            assert_eq!((host.scorer, device.scorer), (Some(Scorer::Host), Some(scorer)));
        }
    }
    assert!(outcomes.len() > 1, "the case should have rollouts that end in several ways: {outcomes:?}");
    assert_eq!(outcomes.contains(&Outcome::Rejected), reward_threshold > 0);
}

/// Flaw 14: credits gate admission only. With as few as there can be, and stages that take their time, all comes to an
/// end.
#[test]
fn full_credits_stall_admission_and_nothing_else() {
    let options =
        Options { slots: 64, group: 4, checkpoint: 8, credits: Credits::new(4), ..Options::default() };
    let setup = Setup::new(40, options);
    let (pipeline, stored) = setup.run();
    assert_eq!(stored.len(), 160);
    let stalls: u64 = pipeline.metrics.counters.values().credit_stalls.iter().sum();
    assert!(stalls > 0, "the credits never gated anything");
}

/// A judge that never answers blocks neither the others' decoding nor an abort.
#[test]
fn a_slow_judge_blocks_neither_decode_nor_abort() {
    let setup = Setup::new(8, Options { slots: 8, checkpoint: 16, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.rewards = Box::new(doubles::Silent::default());
    let mut feed = Feed::new(&setup.requests);
    // Every rollout decodes up to its first checkpoint, or its end.
    for _ in 0..TURNS {
        pipeline.admit_from(&mut feed).unwrap();
        pipeline.turn().unwrap();
        if pipeline.occupancy().of(State::RewardPending) == 8 {
            break;
        }
    }
    assert_eq!(pipeline.occupancy().of(State::RewardPending), 8, "{}", pipeline.occupancy());
    let mut handle = pipeline.abort_handle();
    let ids: Vec<RolloutId> = (0..8).map(|slot| pipeline.lives.current(slot)).collect();
    (0..8).for_each(|request| handle.abort(request).unwrap());
    pipeline.turn().unwrap();
    for request in 0..8 {
        assert_eq!(handle.answer(), Some((request, AbortAnswer::Aborted(1))));
    }
    assert!(pipeline.is_idle(), "{}", pipeline.occupancy());
    // The slots are used anew, and late verdicts for their old rollouts change nothing.
    let late: Vec<Judged> = ids
        .iter()
        .map(|&rollout| Judged {
            ticket: Tickets::new(8).issue(rollout),
            rollout,
            judge: 0,
            verdict: Ok(Verdict { score: 1, proceed: false }),
        })
        .collect();
    late.iter().for_each(|judged| pipeline.judged(judged).unwrap());
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.rollouts_aborted, values.verdicts_late), (8, 8));
    assert!(notes.take().is_empty());
}

/// Who looks at a run sees what each worker of the device has done so far; who has not asked costs the device nothing.
#[test]
fn who_looks_sees_the_workers() {
    let setup = Setup::new(40, Options { slots: 8, checkpoint: 16, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.metrics = Arc::new(Metrics::new("test", Clock::simulated(), None).with_workers());
    let (mut turns, mut seen) = (0, vec![]);
    pipeline
        .run(&mut Feed::new(&setup.requests), |pipeline| {
            turns += 1;
            let metrics = pipeline.metrics();
            // Every eighth turn somebody asks, and has the answer a turn later.
            let now = if turns % 8 == 0 { metrics.status_within(Duration::ZERO) } else { metrics.status() };
            seen.push(now.workers.iter().map(|worker| worker.tokens).sum::<u64>());
            false
        })
        .unwrap();
    assert!(seen[..8].iter().all(|&tokens| tokens == 0), "nobody had asked: {:?}", &seen[..8]);
    assert!(seen.is_sorted() && seen.last() > seen.get(8), "{seen:?}");
    let all = pipeline.device.counters().unwrap().get(Counter::Tokens);
    assert!(*seen.last().unwrap() <= all);
    // After the run whoever has the device shows its last counters.
    let workers = pipeline.device.worker_counters().unwrap();
    pipeline.metrics.show_workers(workers.iter().map(WorkerTime::from).collect());
    pipeline.metrics.end();
    let status = pipeline.metrics.status_within(Duration::from_secs(60));
    assert_eq!(status.workers.iter().map(|worker| worker.tokens).sum::<u64>(), all);
}

#[test]
fn r15_a_judge_that_never_answers_ends_the_run_with_who_waits_for_what() {
    let options = Options { slots: 8, checkpoint: 16, ..Options::default() };
    let mut setup = Setup::new(8, options);
    setup.options.patience = Duration::from_millis(20);
    let (mut pipeline, _) = setup.pipeline();
    pipeline.rewards = Box::new(doubles::Silent::default());
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err().to_string();
    assert!(
        error.contains("R15")
            && error.contains("8 REWARD_PENDING")
            && error.contains("has 8 answers and scores none"),
        "{error}"
    );
}

#[test]
fn what_can_never_run_is_refused_with_the_reason() {
    let options = Options { slots: 8, ..Options::default() };
    let mut setup = Setup { blocks: 64, ..Setup::new(4, options) };
    setup.requests[2].prompt_tokens = 64 * 32;
    let (mut pipeline, _) = setup.pipeline();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Request { request: 2, .. }), "{error}");

    setup.requests[2] = Request { output_tokens: 100_000, ..setup.requests[2].clone() };
    let (mut pipeline, _) = setup.pipeline();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err().to_string();
    assert!(error.contains("100000 tokens") && error.contains("max_output_tokens"), "{error}");
}

#[rstest]
#[case(Options { group: 0, ..Options::default() }, "group is 0")]
#[case(Options { slots: 3, group: 4, ..Options::default() }, "slots is 3")]
#[case(Options { credits: Credits::new(3), group: 4, ..Options::default() }, "credits is 3")]
#[case(Options { scoring: Scoring::Resident, ..Options::default() }, "checkpoint is 0")]
fn bad_options_are_told(#[case] options: Options, #[case] expected: &str) {
    let error = options.check().unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

/// R3: whatever a device answers that nobody asked is an error, never a panic.
#[rstest]
#[case::unknown_tag(|completion: &mut HwCompletion| completion.user_data = u64::MAX)]
#[case::unknown_slot(|completion: &mut HwCompletion| completion.user_data = 0xFFFF)]
#[case::other_generation(|completion: &mut HwCompletion| completion.user_data |= 5 << 32)]
#[case::stop(|completion: &mut HwCompletion| completion.user_data ^= 3 << 62)]
#[case::prefill(|completion: &mut HwCompletion| completion.user_data |= 2 << 62)]
#[case::no_tag(|completion: &mut HwCompletion| completion.user_data &= (1 << 62) - 1)]
#[case::zeroes(|completion: &mut HwCompletion| *completion = HwCompletion { sq_head: completion.sq_head, ..HwCompletion::default() })]
#[case::too_long(|completion: &mut HwCompletion| completion.final_seq_len += 1)]
#[case::shorter_than_before(|completion: &mut HwCompletion| completion.final_seq_len = 0)]
#[case::another_rollout(|completion: &mut HwCompletion| completion.rollout_id ^= 1)]
#[case::no_status(|completion: &mut HwCompletion| completion.status = 0x77)]
#[case::stopped(|completion: &mut HwCompletion| completion.status = 3)]
#[case::checkpoint_at_the_end(|completion: &mut HwCompletion| completion.status = 2)]
fn r3_what_nobody_asked_is_an_error(#[case] tamper: fn(&mut HwCompletion)) {
    let setup = Setup::new(3, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: tampered(1, tamper) });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
}

#[test]
fn r3_a_completion_that_comes_twice_is_an_error() {
    let setup = Setup::new(3, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: repeated() });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
}

/// R10: a descriptor that the device refuses ends its rollout, and the run goes on.
#[test]
fn r10_what_the_device_refuses_fails_one_rollout() {
    let setup = Setup::new(12, Options { slots: 4, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    let refuse = |completion: &mut HwCompletion| {
        completion.status = 0xFF;
        completion.error = 4;
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: tampered(5, refuse) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.rollouts_failed, values.rollouts_completed), (1, 11));
    assert_eq!(pipeline.first_error().map(|completion| completion.error), Some(4));
    assert_eq!(notes.take().len(), 11);
}

/// Scores nothing; panics, errs or hangs at what it is told to.
struct Breaks {
    number: usize,
    how: fn(&Answer<'_>, usize) -> Result<(), JudgeError>,
}

impl Judge for Breaks {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        (self.how)(answer, self.number)?;
        Ok(Verdict { score: -5, proceed: true })
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// 2,000 rollouts in groups, judges of whom all panic at 1 % of them and one hangs: every other rollout ends with its
/// trajectory, none is lost, the failed ones are counted and told of with their reasons, and everything is given back.
#[test]
fn judges_that_panic_and_hang_fail_their_rollouts_and_no_others() {
    fn broken(request: u64, member: u32) -> bool {
        (request * 4 + u64::from(member)) % 100 == 42
    }
    let mut setup = Setup::new(500, Options { slots: 64, group: 4, checkpoint: 16, ..Options::default() });
    setup.options.patience = Duration::from_secs(60);
    let pool = PoolOptions {
        judges: 4,
        capacity: 64,
        deadline: Some(Duration::from_secs(3)),
        replacements: 8,
        ..PoolOptions::default()
    };
    let how = |answer: &Answer<'_>, judge: usize| {
        assert!(!broken(answer.request, answer.member), "one of a hundred");
        if judge == 1 { hang() } else { Ok(()) }
    };
    let (mut pipeline, notes) = setup.threaded(pool, move |number| Breaks { number, how });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!(
        (values.rollouts_admitted, values.rollouts_failed, values.rollouts_completed),
        (2000, 20, 1980)
    );
    // Each is tried twice, and so is what the one that hung had.
    assert_eq!(values.verdicts_failed, 2 * 20 + 1);
    let mut ends: HashMap<(u64, u32), bool> = HashMap::new();
    for (finished, tokens) in notes.take() {
        assert_eq!(finished.score, -5, "scores may lie below zero");
        assert_eq!(tokens, setup.answer(&finished));
        assert_eq!(ends.insert((finished.request, finished.member), true), None);
    }
    for lost in notes.lost() {
        let Unstored::Failed(FailureReason::Judge { failure: JudgeFailure::Panicked, .. }) = lost.why else {
            panic!("{lost}");
        };
        assert_eq!(ends.insert((lost.request, lost.member), false), None);
    }
    for request in 0..500 {
        for member in 0..4 {
            assert_eq!(ends.get(&(request, member)), Some(&!broken(request, member)), "{request}, {member}");
        }
    }
    assert_eq!(pipeline.failures().len(), 20);
    // Not always the first: the judge that hangs may have it.
    let mut texts = pipeline.failures().iter().map(ToString::to_string);
    assert!(texts.any(|text| text.starts_with("request 10, member 2: no verdict from judge ")));
    assert!(pipeline.is_idle());
    let counts = pipeline.kv.counts();
    assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
    let end = pipeline.into_ends().rewards.shutdown(Duration::from_secs(60));
    assert_eq!((end.faults.len() as u64 + end.more_faults, end.uncollected), (41, 0));
}

/// An error of a judge at a checkpoint fails the rollout too; with one that only one judge makes, another one saves it.
#[test]
fn what_one_judge_cannot_judge_another_one_does() {
    let setup = Setup::new(60, Options { slots: 16, checkpoint: 16, ..Options::default() });
    let pool = PoolOptions { judges: 2, capacity: 16, ..PoolOptions::default() };
    let how = |_: &Answer<'_>, judge: usize| match judge {
        0 => Err(JudgeError::new("out of order")),
        _ => Ok(()),
    };
    let (mut pipeline, notes) = setup.threaded(pool, move |number| Breaks { number, how });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.rollouts_failed, values.rollouts_completed), (0, 60));
    assert!(values.verdicts_failed > 0);
    assert_eq!(notes.take().len(), 60);
}

#[test]
fn more_failures_than_may_be_end_the_run() {
    let how = |_: &Answer<'_>, _: usize| Err(JudgeError::new("never"));
    let run = |limit| {
        let mut setup = Setup::new(20, Options { slots: 4, ..Options::default() });
        setup.options.max_failures = limit;
        let pool = PoolOptions { judges: 2, capacity: 4, ..PoolOptions::default() };
        let (mut pipeline, _) = setup.threaded(pool, move |number| Breaks { number, how });
        let result = pipeline.run(&mut Feed::new(&setup.requests), |_| false);
        (result, pipeline.metrics.counters.values().rollouts_failed)
    };
    for limit in [None, Some(20)] {
        let (result, failed) = run(limit);
        assert_eq!((result.is_ok(), failed), (true, 20));
    }
    for limit in [0, 19] {
        let (result, failed) = run(Some(limit));
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains(&format!("{} rollouts have failed, and at most {limit} may", limit + 1)),
            "{error}"
        );
        assert_eq!(failed, limit + 1);
    }
}

#[test]
fn when_all_judges_hang_for_good_the_run_says_so() {
    let setup = Setup::new(20, Options { slots: 4, ..Options::default() });
    let deadline = Some(Duration::from_millis(10));
    let pool = PoolOptions { judges: 2, capacity: 4, deadline, replacements: 1, ..PoolOptions::default() };
    let (mut pipeline, _) = setup.threaded(pool, |number| Breaks { number, how: |_, _| hang() });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::NoJudges), "{error}");
}

/// A source that has nothing for a while, and then more.
struct Drip<'a> {
    requests: &'a [Request],
    /// When it has the next one.
    ready: Instant,
    numbers: Vec<u64>,
}

impl Source for Drip<'_> {
    fn next(&mut self) -> Next<'_> {
        match self.requests.first() {
            Some(_) if Instant::now() < self.ready => Next::Nothing,
            request => request.map_or(Next::End, Next::Request),
        }
    }

    fn admitted(&mut self, number: u64) {
        self.numbers.push(number);
        self.requests = &self.requests[1..];
        self.ready = Instant::now() + Duration::from_millis(1500);
    }
}

/// No run is over before its source says so, and none stalls for want of requests, however impatient it is.
#[test]
fn a_source_may_have_nothing_for_a_while() {
    let mut setup = Setup::new(2, Options { slots: 4, group: 2, ..Options::default() });
    setup.options.patience = Duration::from_millis(700);
    let (mut pipeline, _) = setup.pipeline();
    let ready = Instant::now() + Duration::from_millis(1500);
    let mut drip = Drip { requests: &setup.requests, ready, numbers: vec![] };
    pipeline.run(&mut drip, |_| false).unwrap();
    assert_eq!(drip.numbers, [0, 1]);
    assert_eq!(pipeline.ended(), 4);
}

/// Two feeds on one pipeline, the second while rollouts of the first live: no id is of two of them, on the host or on the
/// device, and an abort hits the request that it names.
#[test]
fn a_second_feed_shares_no_id_with_the_first() {
    let setup = Setup::new(8, Options { slots: 32, group: 2, checkpoint: 16, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.rewards = Box::new(doubles::Silent::default());
    let mut first = Feed::new(&setup.requests);
    pipeline.run(&mut first, |pipeline| pipeline.occupancy().of(State::RewardPending) == 16).unwrap();
    let mut second = Feed::new(&setup.requests);
    pipeline.run(&mut second, |pipeline| pipeline.occupancy().of(State::RewardPending) == 32).unwrap();
    assert_eq!(pipeline.admitted(), 16);
    let groups = || pipeline.groups.iter().filter(|group| group.wire_id.is_some());
    assert_eq!(groups().map(|group| group.request).collect::<HashSet<_>>(), (0..16).collect());
    assert_eq!(
        groups().map(|group| group.wire_id).collect::<HashSet<_>>().len(),
        16,
        "a prefix is named twice"
    );
    let mut wire: HashSet<u32> = (0..32).map(|slot| pipeline.lives.slot_mut(slot).device_rollout).collect();
    wire.extend(groups().filter_map(|group| group.wire_id));
    assert_eq!(wire.len(), 48, "a rollout_id is of two rollouts");

    let mut handle = pipeline.abort_handle();
    for request in [9, 9, 16, u64::MAX] {
        handle.abort(request).unwrap();
    }
    pipeline.turn().unwrap();
    handle.abort(9).unwrap();
    pipeline.turn().unwrap();
    let answers: Vec<_> = std::iter::from_fn(|| handle.answer()).collect();
    assert_eq!(
        answers,
        [
            (9, AbortAnswer::Aborted(2)),
            (9, AbortAnswer::Aborted(0)),
            (16, AbortAnswer::Unknown),
            (u64::MAX, AbortAnswer::Unknown),
            (9, AbortAnswer::Ended),
        ]
    );
    let lost: HashSet<_> = notes.lost().iter().map(|lost| (lost.request, lost.member, lost.why)).collect();
    assert_eq!(lost, [(9, 0, Unstored::Aborted), (9, 1, Unstored::Aborted)].into());
}

/// Looks at every descriptor that goes to the device: none names a rollout or a prefix that lives under another name.
struct Watch {
    /// Rollouts with a descriptor in flight, by `rollout_id`: whose they are, and how many descriptors.
    flying: HashMap<u32, (Option<u64>, u32)>,
    most: usize,
}

impl doubles::Trick for Watch {
    fn submit(
        &mut self,
        inner: &mut dyn Device,
        batch: &[HwDesc],
    ) -> Result<usize, doorbell_host::DeviceError> {
        let taken = inner.submit(batch)?;
        for desc in &batch[..taken] {
            assert_ne!(desc.user_data, 0);
            // STOPs of a group tell which member they end, and not who that is.
            let names = desc.opcode != Opcode::Stop as u8 || desc.prefix_id == PREFIX_NONE;
            let whose = names.then_some(desc.user_data & ((1 << 62) - 1));
            let flying = self.flying.entry(desc.rollout_id).or_insert((whose, 0));
            let same = flying.0.is_none() || whose.is_none() || flying.0 == whose;
            assert!(same, "rollout_id {} is of two rollouts", desc.rollout_id);
            (flying.0, flying.1) = (flying.0.or(whose), flying.1 + 1);
        }
        self.most = self.most.max(self.flying.len());
        Ok(taken)
    }

    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, doorbell_host::DeviceError> {
        let count = if poll { inner.poll(out)? } else { inner.collect(out)? };
        for completion in &out[..count] {
            let flying = self.flying.get_mut(&completion.rollout_id).unwrap();
            flying.1 -= 1;
            if flying.1 == 0 {
                self.flying.remove(&completion.rollout_id);
            }
        }
        Ok(count)
    }
}

/// Whether this is a process of this test alone; else the test has run in one, and passed. What it measures of its process
/// would else be other tests' as well.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "DOORBELL_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    let status = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").status().unwrap();
    assert!(status.success(), "{test} ended with {status} in a process of its own");
    false
}

/// Bytes of this process that lie in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) << 10
}

/// A source without end: as many rollouts as `DOORBELL_SOAK_ROLLOUTS` says, 3 × 10^5 without it, some of them aborted,
/// while the ids on the wire wrap. No id is of two living rollouts, and memory stays as it is.
#[test]
fn a_source_that_goes_on_uses_no_id_twice_and_no_more_memory() {
    if !is_alone("pipeline::tests::a_source_that_goes_on_uses_no_id_twice_and_no_more_memory") {
        return;
    }
    let rollouts: u64 =
        std::env::var("DOORBELL_SOAK_ROLLOUTS").map_or(300_000, |count| count.parse().unwrap());
    let options = Options {
        slots: 256,
        group: 2,
        checkpoint: 32,
        abort_every: 17,
        max_output_tokens: 48,
        ..Options::default()
    };
    let request = |k: u32| Request {
        arrival_ms: 0,
        prompt_tokens: 100 + k,
        output_tokens: 1 + k % 48,
        prefix: vec![k % 5],
    };
    let requests: Vec<Request> = (0..50).map(request).collect();
    let mut setup = Setup::new(1, options.clone());
    (setup.options, setup.requests) = (options, requests);
    let (mut pipeline, _) = setup.pipeline();
    let memory = AnswerMemory { tokens: pipeline.device.token_regions(), prompts: pipeline.prompts.clone() };
    let device = Driver::new(
        ModelPlatform::new(),
        QueueConfig { token_bytes: setup.options.token_bytes(), ..QueueConfig::default() },
    );
    let watch = Watch { flying: HashMap::new(), most: 0 };
    pipeline.device = Box::new(Tricky { inner: Box::new(device.unwrap()), trick: watch });
    let memory = AnswerMemory { tokens: pipeline.device.token_regions(), ..memory };
    pipeline.rewards = Box::new(Inline::new(memory, 256, 48, |_| DigestJudge { threshold: 0 }));
    pipeline.trajectories = Box::new(Discard::new(256));
    // They wrap after a tenth.
    pipeline.wire_ids = WireIds::starting_at(u32::MAX - (rollouts / 10) as u32);
    let mut feed = Feed::repeated(&setup.requests, u64::MAX);
    let ended = |count| move |pipeline: &Pipeline| pipeline.ended() >= count;
    pipeline.run(&mut feed, ended(rollouts / 5)).unwrap();
    let (before, capacity) = (resident(), pipeline.queues.done.capacity());
    pipeline.run(&mut feed, ended(rollouts)).unwrap();
    let after = resident();
    println!("{rollouts} rollouts: {} KiB resident after a fifth, {} at the end", before >> 10, after >> 10);
    assert!(after < before + (8 << 20), "{before} bytes grew to {after}");
    assert_eq!(pipeline.queues.done.capacity(), capacity);
    assert!(pipeline.admitted() * 2 >= rollouts);
    // What lives ends, and everything comes back.
    pipeline.run(&mut Feed::new(&[]), |_| false).unwrap();
    let counts = pipeline.kv.counts();
    assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
    let values = pipeline.metrics.counters.values();
    assert_eq!(values.rollouts_admitted, values.rollouts_completed + values.rollouts_aborted);
    assert!(values.rollouts_aborted > 0);
}

/// A slot that the device could not read: its completion names no rollout, and slot 0's first rollout least of all. The one
/// whose descriptor lay there fails, whichever it is, and no other.
#[rstest]
fn r10_an_unreadable_slot_fails_the_rollout_that_lay_there(#[values(0, 1, 5, 13)] index: u32) {
    let setup = Setup::new(12, Options { slots: 4, checkpoint: 16, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Unreadable::new(index, true) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.rollouts_failed, values.rollouts_completed), (1, 11));
    let lost = notes.lost();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].why, Unstored::Failed(FailureReason::Device { error: 7 }));
    if index < 4 {
        assert_eq!(lost[0].request, u64::from(index), "the first window holds the requests in order");
    }
    let stored: HashSet<u64> = notes.take().iter().map(|(finished, _)| finished.request).collect();
    assert!(!stored.contains(&lost[0].request));
    assert_eq!(stored.len(), 11);
}

/// With several queues the index of the slot names nothing: an error that says so.
#[test]
fn r10_an_unreadable_slot_of_several_queues_is_an_error_that_says_so() {
    let setup = Setup::new(12, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Unreadable::new(2, false) });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unread { index: 2, .. }), "{error}");
    assert!(error.to_string().contains("DMA_FAULT"), "{error}");
}

/// An unreadable PREFILL fails its group, and an unreadable STOP ends nothing: its rollout still ends as aborted.
#[test]
fn r10_unreadable_prefills_and_stops_end_as_they_should() {
    let setup = Setup::new(3, Options { slots: 4, group: 2, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Unreadable::new(0, true) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let lost: HashSet<_> = notes.lost().iter().map(|lost| (lost.request, lost.member)).collect();
    assert_eq!(lost, [(0, 0), (0, 1)].into());
    assert_eq!(notes.take().len(), 4);

    let setup = Setup::new(1, Options { slots: 1, abort_every: 1, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Unreadable::new(1, true) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    assert_eq!(pipeline.metrics.counters.values().rollouts_aborted, 1);
    assert_eq!(notes.lost().len(), 1);
    assert!(pipeline.is_idle());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// No order of events stalls it for ever, and none loses a rollout: device, judges and writer each do something or
    /// nothing in a turn, in any order, with queues, credits, windows and blocks as small as they may be.
    #[test]
    fn no_order_of_events_stalls_it(
        seed in any::<u64>(),
        (group, extra, limit) in (1u32..6, 0u32..12, 0u32..8),
        (checkpoint, resident, eos) in (0u32..40, any::<bool>(), any::<bool>()),
        (in_flight, window, depth) in (0usize..20, 1usize..40, 1u32..6),
        abort_every in 0u32..5,
        policy in 0usize..4,
        blocks in 120u32..400,
        (queues, functions, groups) in (1u8..5, 1u8..5, 0u32..4),
        (judge_group, judges, publish, max_staleness) in (
            any::<bool>(),
            0usize..3,
            prop::option::of((20usize..300, 0usize..3)),
            prop::option::of(0u32..3),
        ),
    ) {
        let scoring = if resident && checkpoint > 0 { Scoring::Resident } else { Scoring::Stage };
        let options = Options {
            slots: group + extra,
            group,
            checkpoint,
            scoring,
            eos_stops: eos,
            credits: Credits::new(group + limit),
            in_flight,
            window,
            abort_every,
            judge_group: judge_group && scoring == Scoring::Stage,
            max_staleness,
            ..Options::default()
        };
        let modes = [PolicyMode::Wait, PolicyMode::Keep, PolicyMode::Abort];
        let plain = Setup::new(24, options);
        let setup = Setup {
            queues,
            functions: functions.min(queues),
            less: Features { groups, ..plain.less },
            publish: publish.map(|(every, mode)| (every, modes[mode])),
            spans: 200,
            judges: [Judges::Host, Judges::Own, Judges::Beside][judges],
            policy: PolicyKind::ALL[policy],
            depth: 1 << depth,
            eos_threshold: 200,
            reward_threshold: 2000,
            blocks,
            seed,
            ..plain
        };
        let (_, stored, notes) = setup.run_noted(&mut Feed::new(&setup.requests));
        for (finished, tokens) in &stored {
            prop_assert_eq!(tokens, &setup.answer_of(finished, &notes.spans(finished)));
            prop_assert_eq!(finished.score, RewardModel::Digest.score(tokens.iter().copied(), &NO_RANGES));
        }
    }
}
