//! The pipeline against stages whose timing a seed decides.

mod doubles;

use std::time::Duration;

use doorbell_contract::HwDesc;
use doorbell_engine::Engine;
use doorbell_host::{Driver, QueueConfig};
use doorbell_trace::{Generator, Request};
use doorbell_verify::ModelPlatform;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::kv::{PrefixConfig, Sharing};
use crate::policy::PolicyKind;
use crate::reward::DigestJudge;
use crate::trajectory::{Finished, Outcome};
use doubles::{Moody, Note, Notes, Repeat, Shuffle, Tamper, Tricky};

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
    reward_threshold: u32,
    blocks: u32,
    seed: u64,
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
            seed: 1,
        }
    }

    fn kv(&self) -> Prefixes {
        let config = PrefixConfig {
            blocks: self.blocks,
            block_bytes: 64,
            sharing: Sharing::Requests,
            prefixes: self.options.slots,
            branches: self.options.slots,
            prompt_tokens: self.requests.iter().map(|request| request.prompt_tokens).max().unwrap(),
            answer_tokens: self.options.max_output_tokens,
            nodes: 4096,
            ..PrefixConfig::default()
        };
        Prefixes::new(config).unwrap()
    }

    fn pipeline(&self) -> (Pipeline, Notes) {
        let config = QueueConfig {
            sq_depth: self.depth,
            cq_depth: self.depth,
            token_bytes: self.options.token_bytes(),
            eos_threshold: self.eos_threshold,
            reward_threshold: self.reward_threshold,
            ..QueueConfig::default()
        };
        let device = Driver::new(ModelPlatform::new(), config).unwrap();
        let regions = device.token_regions();
        let notes = Notes::default();
        let judge = DigestJudge { threshold: self.reward_threshold };
        let slots = self.options.slots;
        let inline = Inline::new(judge, regions.clone(), slots, self.options.max_output_tokens);
        let parts = Parts {
            device: Box::new(Tricky { inner: Box::new(device), trick: Shuffle::new(self.seed) }),
            sq_start: None,
            policy: self.policy.build(slots),
            kv: self.kv(),
            rewards: Box::new(Moody::new(inline, self.seed)),
            trajectories: Box::new(doubles::Store::new(regions, notes.clone(), self.seed)),
            recorder: None,
            metrics: Arc::new(Metrics::new("test", Clock::simulated(), 0)),
        };
        (Pipeline::new(self.options.clone(), parts).unwrap(), notes)
    }

    /// Runs all requests; every rollout that was admitted has ended, and everything was given back.
    fn run(&self) -> (Pipeline, Vec<Note>) {
        let (mut pipeline, notes) = self.pipeline();
        let mut turns = 0;
        pipeline
            .run(&mut Feed::new(&self.requests), |pipeline, _| {
                turns += 1;
                assert!(turns < TURNS, "seed {}: stalled with {}", self.seed, pipeline.occupancy());
                false
            })
            .unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        let rollouts = self.requests.len() as u64 * u64::from(self.options.group);
        let values = pipeline.metrics.counters.values();
        let stored = notes.take();
        assert_eq!(values.rollouts_admitted, rollouts);
        assert_eq!(values.rollouts_completed, stored.len() as u64);
        assert_eq!(
            values.rollouts_completed + values.rollouts_aborted + values.rollouts_failed,
            rollouts,
            "seed {}: a rollout got lost",
            self.seed
        );
        assert!(pipeline.is_idle());
        let counts = pipeline.kv.counts();
        assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
        (pipeline, stored)
    }

    /// The answer that engine 0 gives to a rollout of this trace.
    fn answer(&self, finished: &Finished) -> Vec<u32> {
        let request = &self.requests[finished.request as usize];
        let desc = HwDesc::decode(finished.device_rollout, request.prompt_tokens, finished.answer_tokens)
            .with_seed(self.options.seed);
        let mut decoder = Engine::Hash.begin(&desc, 0);
        (0..finished.answer_tokens).map(|_| decoder.step().token).collect()
    }
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

/// The host's judge and a RESIDENT device end the same rollouts at the same token, with the same score.
#[rstest]
fn r9_host_and_device_score_alike(
    #[values(PolicyKind::Fifo, PolicyKind::ShortestRemaining)] policy: PolicyKind,
) {
    let run = |scoring| {
        let options =
            Options { slots: 32, group: 2, checkpoint: 16, scoring, eos_stops: true, ..Options::default() };
        let setup = Setup { reward_threshold: 9000, eos_threshold: 120, policy, ..Setup::new(80, options) };
        let mut stored = setup.run().1;
        stored.sort_by_key(|(finished, _)| finished.device_rollout);
        stored
    };
    let (host, device) = (run(Scoring::Host), run(Scoring::Device));
    assert_eq!(host.len(), device.len());
    let mut outcomes = std::collections::HashSet::new();
    for ((host, host_tokens), (device, device_tokens)) in host.iter().zip(&device) {
        outcomes.insert(host.outcome);
        let what = |finished: &Finished| {
            (finished.device_rollout, finished.outcome, finished.answer_tokens, finished.score)
        };
        assert_eq!(what(host), what(device));
        assert_eq!(host_tokens, device_tokens);
    }
    assert_eq!(
        outcomes.len(),
        3,
        "the case should have rollouts that complete, end and are rejected: {outcomes:?}"
    );
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
    let handle = pipeline.abort_handle();
    let ids: Vec<RolloutId> = (0..8).map(|slot| pipeline.states().current(slot)).collect();
    ids.iter().for_each(|&id| handle.abort(id).unwrap());
    pipeline.turn().unwrap();
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

#[test]
fn r15_a_judge_that_never_answers_ends_the_run_with_who_waits_for_what() {
    let options = Options { slots: 8, checkpoint: 16, ..Options::default() };
    let mut setup = Setup::new(8, options);
    setup.options.patience = Duration::from_millis(20);
    let (mut pipeline, _) = setup.pipeline();
    pipeline.rewards = Box::new(doubles::Silent::default());
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_, _| false).unwrap_err().to_string();
    assert!(
        error.contains("R15") && error.contains("8 REWARD_PENDING") && error.contains("8 answers"),
        "{error}"
    );
}

#[test]
fn what_can_never_run_is_refused_with_the_reason() {
    let options = Options { slots: 8, ..Options::default() };
    let mut setup = Setup { blocks: 64, ..Setup::new(4, options) };
    setup.requests[2].prompt_tokens = 64 * 32;
    let (mut pipeline, _) = setup.pipeline();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_, _| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Request { request: 2, .. }), "{error}");

    setup.requests[2] = Request { output_tokens: 100_000, ..setup.requests[2].clone() };
    let (mut pipeline, _) = setup.pipeline();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_, _| false).unwrap_err().to_string();
    assert!(error.contains("100000 tokens") && error.contains("max_output_tokens"), "{error}");
}

#[rstest]
#[case(Options { group: 0, ..Options::default() }, "group is 0")]
#[case(Options { slots: 3, group: 4, ..Options::default() }, "slots is 3")]
#[case(Options { credits: Credits::new(3), group: 4, ..Options::default() }, "credits is 3")]
#[case(Options { scoring: Scoring::Device, ..Options::default() }, "checkpoint is 0")]
fn bad_options_are_told(#[case] options: Options, #[case] expected: &str) {
    let error = options.check().unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

/// R3: whatever a device answers that nobody asked is an error, never a panic.
#[rstest]
#[case::unknown_tag(|completion: &mut HwCompletion| completion.user_data = u64::MAX)]
#[case::unknown_slot(|completion: &mut HwCompletion| completion.user_data = 0xFFFF)]
#[case::other_generation(|completion: &mut HwCompletion| completion.user_data |= 5 << 32)]
#[case::stop(|completion: &mut HwCompletion| completion.user_data |= 1 << 62)]
#[case::prefill(|completion: &mut HwCompletion| completion.user_data |= 2 << 62)]
#[case::too_long(|completion: &mut HwCompletion| completion.final_seq_len += 1)]
#[case::shorter_than_before(|completion: &mut HwCompletion| completion.final_seq_len = 0)]
#[case::another_rollout(|completion: &mut HwCompletion| completion.rollout_id ^= 1)]
#[case::no_status(|completion: &mut HwCompletion| completion.status = 0x77)]
#[case::stopped(|completion: &mut HwCompletion| completion.status = 3)]
#[case::checkpoint_at_the_end(|completion: &mut HwCompletion| completion.status = 2)]
fn r3_what_nobody_asked_is_an_error(#[case] tamper: fn(&mut HwCompletion)) {
    let setup = Setup::new(3, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Tamper { countdown: 1, tamper } });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_, _| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
}

#[test]
fn r3_a_completion_that_comes_twice_is_an_error() {
    let setup = Setup::new(3, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Repeat::default() });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_, _| false).unwrap_err();
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
    pipeline.device =
        Box::new(Tricky { inner: pipeline.device, trick: Tamper { countdown: 5, tamper: refuse } });
    pipeline.run(&mut Feed::new(&setup.requests), |_, _| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.rollouts_failed, values.rollouts_completed), (1, 11));
    assert_eq!(pipeline.first_error().map(|completion| completion.error), Some(4));
    assert_eq!(notes.take().len(), 11);
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
    ) {
        let scoring = if resident && checkpoint > 0 { Scoring::Device } else { Scoring::Host };
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
            ..Options::default()
        };
        let setup = Setup {
            policy: PolicyKind::ALL[policy],
            depth: 1 << depth,
            eos_threshold: 200,
            reward_threshold: 2000,
            blocks,
            seed,
            ..Setup::new(24, options)
        };
        let (_, stored) = setup.run();
        for (finished, tokens) in &stored {
            prop_assert_eq!(tokens, &setup.answer(finished));
        }
    }
}
