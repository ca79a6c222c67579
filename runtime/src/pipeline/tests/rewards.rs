//! Scores by REWARD descriptors, on the rollouts' own queue pairs and beside them.

use std::sync::Mutex;

use doorbell_contract::{CompletionFlags, Status};
use doorbell_verify::oracle::Oracle;

use super::*;
use crate::reward::{GroupPostError, Moment, PostError, Request as Answered, Ticket};
use crate::trajectory::GroupScore;
use doubles::{Edited, Watched, overtaking};

const SOME: [(u32, u32); 3] = [(0, 9_999), (20_000, 20_001), (5, 4)];

/// Ranges of which the last two hold the same tokens, and one is empty.
fn ranges() -> Ranges {
    let mut ranges = NO_RANGES;
    ranges[..3].copy_from_slice(&SOME);
    ranges[15] = (100_000, 131_071);
    ranges[14] = ranges[15];
    ranges
}

/// What the contract says of these tokens, by a REWARD of the oracle's.
fn score_of(setup: &Setup, finished: &Finished, tokens: &[u32]) -> i32 {
    let desc = HwDesc::reward(finished.device_rollout, setup.model as u16, tokens.len() as u32);
    let answer = Oracle::new(&setup.config()).scored(&desc, tokens);
    assert_eq!(answer.completion.status, Status::Scored as u8);
    answer.completion.result as i32
}

/// Each score is that of its tokens, the device gave it, and everything is counted so.
fn check(setup: &Setup, pipeline: &Pipeline, stored: &[Note]) {
    for (finished, tokens) in stored {
        assert_eq!(finished.score, score_of(setup, finished, tokens), "request {}", finished.request);
        assert_eq!(finished.scorer, Some(Scorer::Device));
    }
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.scored_device, values.scored_host), (stored.len() as u64, 0));
    let sum: f64 = stored.iter().map(|(finished, _)| f64::from(finished.score) / 65536.0).sum();
    assert!((pipeline.metrics.status().score_sum - sum).abs() < 1e-6);
    assert_eq!(pipeline.rewards_in_flight, 0);
}

/// Whether two statistics are the same, whatever the order in which scores were added up.
fn same(found: Option<GroupScore>, expected: Option<GroupScore>) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    match (found, expected) {
        (Some(a), Some(b)) => near(a.mean, b.mean) && near(a.advantage, b.advantage),
        (found, expected) => found.is_none() && expected.is_none(),
    }
}

/// The device scores as the oracle does, whichever model, wherever, on however many queue pairs, alone or in groups.
#[rstest]
fn the_device_scores_as_the_contract_says(
    #[values(Judges::Own, Judges::Beside)] judges: Judges,
    #[values(RewardModel::Digest, RewardModel::Ranges)] model: RewardModel,
    #[values((1, 1), (3, 1), (4, 2))] (queues, functions): (u8, u8),
    #[values((1, 0, false), (4, 16, false), (4, 0, true), (3, 16, true))] (group, checkpoint, judge_group): (
        u32,
        u32,
        bool,
    ),
) {
    let options = Options { slots: 48, group, checkpoint, judge_group, ..Options::default() };
    let plain = Setup::new(40, options);
    let setup = Setup { judges, model, queues, functions, ranges: ranges(), ..plain };
    let (pipeline, stored) = setup.run();
    assert_eq!(stored.len(), 40 * group as usize);
    check(&setup, &pipeline, &stored);
    let scores: HashSet<i32> = stored.iter().map(|(finished, _)| finished.score).collect();
    assert!(scores.len() > 10, "{scores:?}");
    for request in 0..40 {
        let members = stored.iter().map(|(finished, _)| finished).filter(|of| of.request == request);
        let statistics = GroupScore::statistics(members.clone().map(|member| member.score));
        for member in members {
            let expected = judge_group.then(|| GroupScore::of(member.score, statistics));
            assert!(same(member.group, expected), "{:?} instead of {expected:?}", member.group);
        }
    }
}

/// The host's judge of model 1 and the device end the same rollouts, with the same scores.
#[rstest]
fn host_and_device_count_alike(#[values(Judges::Own, Judges::Beside)] judges: Judges) {
    let run = |judges| {
        let options = Options { slots: 32, group: 2, checkpoint: 16, eos_stops: true, ..Options::default() };
        let plain = Setup::new(60, options);
        // Of 16 tokens a third lies in the ranges.
        let setup = Setup {
            judges,
            model: RewardModel::Ranges,
            ranges: ranges(),
            reward_threshold: 3 << 16,
            eos_threshold: 120,
            ..plain
        };
        let mut stored = setup.run().1;
        stored.sort_by_key(|(finished, _)| finished.device_rollout);
        let what =
            |(finished, tokens): Note| (finished.device_rollout, finished.outcome, finished.score, tokens);
        stored.into_iter().map(what).collect::<Vec<_>>()
    };
    let host = run(Judges::Host);
    assert_eq!(host, run(judges));
    let rejected = host.iter().filter(|(_, outcome, ..)| *outcome == Outcome::Rejected).count();
    assert!((10..110).contains(&rejected), "{rejected} of {} were rejected", host.len());
}

/// A device whose completions are edited: for one placement that of the rollouts, for the other the queue pairs beside it.
fn edited(setup: &Setup, edit: impl FnMut(&mut HwCompletion) + Clone + Send + 'static) -> (Pipeline, Notes) {
    let trick = move || {
        let mut edit = edit.clone();
        Edited(move |out: &mut [HwCompletion], count: usize| {
            out[..count].iter_mut().for_each(&mut edit);
            count
        })
    };
    if setup.judges == Judges::Beside {
        return setup.pipeline_with(|inner| Box::new(Tricky { inner, trick: trick() }));
    }
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: trick() });
    (pipeline, notes)
}

fn is_score(completion: &HwCompletion) -> bool {
    completion.status == Status::Scored as u8
}

/// A score that the device gets wrong is in the trajectory as the device gave it, and no other: so whoever holds scores to their
/// tokens sees it.
#[rstest]
fn a_wrong_score_is_noticed(#[values(Judges::Own, Judges::Beside)] judges: Judges) {
    let setup = Setup { judges, ..Setup::new(20, Options { slots: 8, ..Options::default() }) };
    let tamper = |completion: &mut HwCompletion| {
        completion.result ^= u32::from(is_score(completion) && completion.rollout_id == 7);
    };
    let (mut pipeline, notes) = edited(&setup, tamper);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let stored = notes.take();
    assert_eq!(stored.len(), 20);
    for (finished, tokens) in &stored {
        let wrong = i32::from(finished.device_rollout == 7);
        assert_eq!(finished.score, score_of(&setup, finished, tokens) ^ wrong);
    }
}

/// Scores have a sign, and may be as small or as large as 32 bits allow; a threshold below zero is one, too.
#[rstest]
#[case::below(-5, 0, Outcome::Rejected)]
#[case::at_the_threshold(-5, -5, Outcome::Completed)]
#[case::above_it(-5, -6, Outcome::Completed)]
#[case::least(i32::MIN, i32::MIN + 1, Outcome::Rejected)]
#[case::least_of_all_passes(i32::MIN, i32::MIN, Outcome::Completed)]
#[case::most(i32::MAX, i32::MAX, Outcome::Completed)]
fn scores_have_a_sign(
    #[case] score: i32,
    #[case] reward_threshold: i32,
    #[case] outcome: Outcome,
    #[values(Judges::Own, Judges::Beside)] judges: Judges,
) {
    let options = Options { slots: 8, checkpoint: 1, ..Options::default() };
    let mut setup = Setup { judges, reward_threshold, ..Setup::new(6, options) };
    setup.requests.iter_mut().for_each(|request| request.output_tokens = 3);
    let tamper = move |completion: &mut HwCompletion| {
        if is_score(completion) {
            completion.result = score as u32;
        }
    };
    let (mut pipeline, notes) = edited(&setup, tamper);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let stored = notes.take();
    assert_eq!(stored.len(), 6);
    let tokens = if outcome == Outcome::Rejected { 1 } else { 3 };
    for (finished, _) in &stored {
        assert_eq!((finished.score, finished.outcome, finished.answer_tokens), (score, outcome, tokens));
    }
}

/// More tokens in a range than a score can count, and none at all.
#[rstest]
#[case::all(0, u32::MAX, i32::MAX)]
#[case::none(1 << 17, u32::MAX, 0)]
#[case::empty(9, 8, 0)]
fn counts_end_at_what_a_score_holds(
    #[case] first: u32,
    #[case] last: u32,
    #[case] expected: i32,
    #[values(Judges::Own, Judges::Beside)] judges: Judges,
) {
    let mut options = Options { slots: 2, ..Options::default() };
    let mut setup = Setup { judges, model: RewardModel::Ranges, ..Setup::new(2, options.clone()) };
    setup.ranges[7] = (first, last);
    for (request, tokens) in setup.requests.iter_mut().zip([0x7FFF, 0x8000]) {
        request.output_tokens = tokens;
    }
    options.max_output_tokens = 0x8000;
    setup.options = Options { patience: Duration::from_secs(60), ..options };
    let (pipeline, mut stored) = setup.run();
    check(&setup, &pipeline, &stored);
    stored.sort_by_key(|(finished, _)| finished.request);
    let scores: Vec<i32> = stored.iter().map(|(finished, _)| finished.score).collect();
    assert_eq!(scores, [expected & 0x7FFF_0000, expected]);
}

/// What the device refuses to score is asked once more, and then fails its rollout, and no other.
#[rstest]
fn r10_a_reward_that_is_refused_fails_its_rollout_alone(
    #[values(Judges::Own, Judges::Beside)] judges: Judges,
    #[values(false, true)] judge_group: bool,
    #[values(1, 2)] times: u32,
) {
    let options = Options { slots: 12, group: 3, judge_group, ..Options::default() };
    let setup = Setup { judges, ..Setup::new(10, options) };
    let left = Arc::new(Mutex::new(times));
    // The second rollout of the third request: 3 ids of each, and one for its PREFILL.
    let refuse = move |completion: &mut HwCompletion| {
        let mut left = left.lock().unwrap();
        if is_score(completion) && completion.rollout_id == 10 && *left > 0 {
            *left -= 1;
            (completion.status, completion.error, completion.result) = (Status::Error as u8, 7, 0);
        }
    };
    let (mut pipeline, notes) = edited(&setup, refuse);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let (stored, lost) = (notes.take(), notes.lost());
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.verdicts_failed, values.rollouts_failed), (times.into(), u64::from(times == 2)));
    assert_eq!(pipeline.first_error().map(|end| (end.rollout_id, end.error)), Some((10, 7)));
    assert_eq!((stored.len(), lost.len()), (31 - times as usize, times as usize - 1));
    check(&setup, &pipeline, &stored);
    if let Some(lost) = lost.first() {
        assert_eq!((lost.request, lost.member), (2, 1));
        assert_eq!(
            lost.to_string(),
            "request 2, member 1: no verdict from judge 0: the device refused its REWARD with DMA_FAULT"
        );
    }
    let others = stored.iter().filter(|(finished, _)| finished.request == 2);
    let statistics = GroupScore::statistics(others.clone().map(|(finished, _)| finished.score));
    for (finished, _) in others {
        let expected = judge_group.then(|| GroupScore::of(finished.score, statistics));
        assert!(same(finished.group, expected), "{:?} instead of {expected:?}", finished.group);
    }
    assert!(pipeline.is_idle());
}

/// R3, R5: whatever comes that no REWARD in flight asked for is an error.
#[rstest]
#[case::another_name(|end: &mut HwCompletion| end.user_data ^= 1 << 30, "R3")]
#[case::another_place(|end: &mut HwCompletion| end.user_data ^= 4, "R3")]
#[case::no_name(|end: &mut HwCompletion| end.user_data &= !0xFFFF_FFFF_FFFF, "R3")]
#[case::another_rollout(|end: &mut HwCompletion| end.rollout_id ^= 64, "does not echo")]
#[case::another_model(|end: &mut HwCompletion| end.reward_model_id ^= 1, "does not echo")]
#[case::done(|end: &mut HwCompletion| end.status = Status::Done as u8, "does not end so")]
#[case::stopped(|end: &mut HwCompletion| end.status = Status::Stopped as u8, "does not end so")]
fn r3_a_score_that_nobody_asked_for_is_an_error(
    #[case] tamper: fn(&mut HwCompletion),
    #[case] what: &str,
    #[values(Judges::Own, Judges::Beside)] judges: Judges,
) {
    let setup = Setup { judges, ..Setup::new(3, Options { slots: 4, ..Options::default() }) };
    let tamper = move |completion: &mut HwCompletion| {
        if is_score(completion) {
            tamper(completion);
        }
    };
    let (mut pipeline, _) = edited(&setup, tamper);
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn r5_a_score_before_its_decode_is_an_error() {
    let setup = Setup { judges: Judges::Own, ..Setup::new(3, Options { slots: 4, ..Options::default() }) };
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: setup.device(setup.config()), trick: overtaking() });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }) && error.to_string().contains("R5"), "{error}");
}

/// A slot with a REWARD that the device could not read: it is asked once more.
#[test]
fn r10_an_unreadable_reward_is_asked_anew() {
    let options = Options { slots: 4, eos_stops: true, ..Options::default() };
    let setup = Setup { judges: Judges::Own, ..Setup::new(4, options) };
    // Four DECODEs, and what comes behind them.
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Unreadable::new(4, true) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.verdicts_failed, values.rollouts_completed), (1, 4));
    check(&setup, &pipeline, &notes.take());
}

/// What went to the devices and what came back, in order: the DECODEs and REWARDs of each rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Sent(u8, u32),
    Came(u8, u32),
}

/// The steps of a run, and whose they were.
fn steps(setup: &Setup) -> Vec<Step> {
    let steps = Arc::new(Mutex::new(vec![]));
    let watched = |inner: Box<dyn Device>| -> Box<dyn Device> {
        let (going, coming) = (steps.clone(), steps.clone());
        let sent = move |desc: &HwDesc| {
            going.lock().unwrap().push(Step::Sent(desc.opcode, desc.rollout_id));
        };
        let came = move |end: &HwCompletion| {
            let reward = end.status == Status::Scored as u8;
            let opcode = if reward { Opcode::Reward } else { Opcode::Decode } as u8;
            coming.lock().unwrap().push(Step::Came(opcode, end.rollout_id));
        };
        Box::new(Tricky { inner, trick: Watched { sent, came } })
    };
    let (mut pipeline, _) = setup.pipeline_with(watched);
    pipeline.device = watched(pipeline.device);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let values = pipeline.metrics.counters.values();
    assert_eq!(values.rollouts_completed, setup.requests.len() as u64);
    assert_eq!(values.reward_handoffs, setup.requests.len() as u64);
    drop(pipeline);
    std::mem::take(&mut *steps.lock().unwrap())
}

/// R5: on its own queue pair a REWARD is behind the last DECODE of its rollout before that has completed, if it is known what it
/// will score. Where it is not, and on a queue pair beside, it is sent once the DECODE's completion was seen.
#[rstest]
#[case::behind(Judges::Own, false, true)]
#[case::unknown_length(Judges::Own, true, false)]
#[case::beside(Judges::Beside, false, false)]
fn r5_a_reward_follows_its_decode(#[case] judges: Judges, #[case] eos_stops: bool, #[case] ahead: bool) {
    let options = Options { slots: 8, eos_stops, ..Options::default() };
    let setup = Setup { judges, ..Setup::new(8, options) };
    let steps = steps(&setup);
    let place = |step: Step| steps.iter().position(|found| *found == step).expect("it is there");
    let (decode, reward) = (Opcode::Decode as u8, Opcode::Reward as u8);
    let mut before = 0;
    for rollout in 0..8 {
        assert!(place(Step::Sent(decode, rollout)) < place(Step::Sent(reward, rollout)));
        assert!(place(Step::Came(decode, rollout)) < place(Step::Came(reward, rollout)), "R5");
        before += u32::from(place(Step::Sent(reward, rollout)) < place(Step::Came(decode, rollout)));
    }
    assert_eq!(before > 0, ahead, "{before} of 8 were sent before their DECODE had completed");
}

/// R20: a REWARD behind a DECODE that was superseded counts for nothing; the score is that of all tokens.
#[rstest]
fn r20_a_superseded_answer_is_scored_whole(#[values(Judges::Own, Judges::Beside)] judges: Judges) {
    let options = Options { slots: 64, group: 4, window: 4, ..Options::default() };
    let setup = Setup {
        queues: 4,
        functions: 2,
        depth: 16,
        publish: Some((3, PolicyMode::Keep)),
        spans: 200,
        judges,
        ..Setup::new(60, options)
    };
    let (pipeline, stored, notes) = setup.run_noted(&mut Feed::repeated(&setup.requests, 4));
    let values = pipeline.metrics.counters.values();
    assert!(values.superseded > 10, "{} superseded", values.superseded);
    assert_eq!(stored.len(), 960);
    check(&setup, &pipeline, &stored);
    for (finished, tokens) in &stored {
        assert_eq!(*tokens, setup.answer_of(finished, &notes.spans(finished)));
    }
    assert_eq!(values.verdicts_late > 0, judges == Judges::Own, "{} late", values.verdicts_late);
}

/// Who is aborted is not judged, whatever is on its way; the others are.
#[rstest]
fn aborted_rollouts_are_not_judged(
    #[values(Judges::Own, Judges::Beside)] judges: Judges,
    #[values(false, true)] judge_group: bool,
) {
    let options =
        Options { slots: 24, group: 3, checkpoint: 16, abort_every: 4, judge_group, ..Options::default() };
    let setup = Setup { judges, queues: 2, ..Setup::new(40, options) };
    let (pipeline, stored) = setup.run();
    let values = pipeline.metrics.counters.values();
    assert!(values.rollouts_aborted > 10);
    assert_eq!(values.rollouts_aborted + values.rollouts_completed, 120);
    check(&setup, &pipeline, &stored);
}

/// An abort while the device scores: the rollout is over at once, its slot is used anew, and its score counts for nothing.
#[rstest]
fn an_abort_does_not_wait_for_its_score(#[values(Judges::Own, Judges::Beside)] judges: Judges) {
    let options = Options { slots: 4, eos_stops: true, ..Options::default() };
    let setup = Setup { judges, ..Setup::new(8, options) };
    let (mut pipeline, notes) = setup.pipeline();
    let mut feed = Feed::new(&setup.requests);
    pipeline
        .run(&mut feed, |pipeline| {
            let waits = pipeline.occupancy().of(State::RewardPending) > 0;
            waits
                && (pipeline.rewards_in_flight > 0
                    || judges == Judges::Beside && pipeline.rewards.pending() > 0)
        })
        .unwrap();
    let waits = |slot: &RolloutId| pipeline.lives.state(*slot) == Ok(State::RewardPending);
    let id = (0..4).map(|slot| pipeline.lives.current(slot)).find(waits).unwrap();
    assert!(pipeline.abort(id).unwrap());
    assert_eq!(pipeline.lives.state(id), Ok(State::Done));
    pipeline.run(&mut feed, |_| false).unwrap();
    assert!(pipeline.is_idle());
    let stored = notes.take();
    assert_eq!((stored.len(), notes.lost().len()), (7, 1));
    check(&setup, &pipeline, &stored);
}

#[test]
fn a_device_that_cannot_score_is_told() {
    let all = Features { capability: Capability::all(), reward_models: 2, ..Features::default() };
    let told = |features: Features, model: RewardModel| {
        let error = DeviceRewards::new("rtl", features, 4, Scale { model, threshold: 0 }).err();
        error.map(|error| error.to_string())
    };
    assert_eq!(told(all, RewardModel::Ranges), None);
    assert_eq!(told(Features { reward_models: 1, ..all }, RewardModel::Digest), None);
    assert_eq!(
        told(Features { reward_models: 1, ..all }, RewardModel::Ranges).unwrap(),
        "rtl cannot score answers: it has reward model 0 alone (CAP_REWARD_MODELS), and model 1 is none of them; take \
         another model, or let judges of the host score them"
    );
    let features = Features { capability: Capability::all() - Capability::REWARD, ..all };
    assert_eq!(
        told(features, RewardModel::Digest).unwrap(),
        "rtl cannot score answers: it has no REWARD (CAPABILITY.REWARD); let judges of the host score them"
    );
}

/// An answer of this many tokens, of which some were judged before.
fn answer(tickets: &mut Tickets, slot: u32, tokens: u32, judged: u32, moment: Moment) -> (Answered, Ticket) {
    let rollout = RolloutId::new(slot, 3);
    let ticket = tickets.issue(rollout);
    let request = Answered {
        ticket,
        rollout,
        request: 9,
        member: 0,
        device_rollout: 70 + slot,
        prefix_id: 8,
        group: 0,
        prompt_ids: 0,
        shard: 0,
        offset: 256 * u64::from(slot),
        answer_tokens: tokens,
        segment_start: judged,
        digest_start: judged,
        scored: false,
        prompt_tokens: 5,
        moment,
        digest: 0,
        avoid: None,
        together: 1,
    };
    (request, ticket)
}

const CHECKPOINT: Moment = Moment::Checkpoint;
const END: Moment = Moment::End { eos: false };

/// What is asked of the device, place by place.
#[test]
fn what_is_new_is_scored_at_a_checkpoint_and_all_of_it_at_the_end() {
    let features = Features { capability: Capability::all(), reward_models: 2, ..Features::default() };
    let scale = Scale { model: RewardModel::Ranges, threshold: 10 };
    let mut rewards = DeviceRewards::new("test", features, 4, scale).unwrap();
    let mut tickets = Tickets::new(4);
    let mut ask = |rewards: &mut DeviceRewards, tokens, judged, moment| {
        rewards.post(answer(&mut tickets, 2, tokens, judged, moment).0).unwrap();
        let desc = rewards.descriptor().unwrap();
        assert_eq!((desc.opcode, desc.reward_model_id, desc.rollout_id), (Opcode::Reward as u8, 1, 72));
        assert_eq!((desc.prefix_id, desc.flags), (8, 0), "it goes where its rollout is, and is of no group");
        (desc.delta_offset, desc.max_tokens, desc.user_data)
    };
    let scored = |rewards: &mut DeviceRewards, name: u64, result: i32| {
        let completion = HwCompletion {
            rollout_id: 72,
            reward_model_id: 1,
            status: Status::Scored as u8,
            result: result as u32,
            ..HwCompletion::default()
        };
        rewards.completed(name, &completion)
    };
    let verdict = |rewards: &mut DeviceRewards| {
        let mut out = [nothing_judged(); 2];
        assert_eq!(rewards.collect(&mut out).unwrap(), 1);
        out[0].verdict.unwrap()
    };
    // The first checkpoint: what is new is all.
    let (offset, tokens, name) = ask(&mut rewards, 16, 0, CHECKPOINT);
    assert_eq!((offset, tokens), (512, 16));
    assert!(scored(&mut rewards, name, 10).is_ok());
    assert_eq!(verdict(&mut rewards), Verdict { score: 10, proceed: true });
    assert!(scored(&mut rewards, name, 10).is_err(), "R3: once");
    let (.., name) = ask(&mut rewards, 16, 0, CHECKPOINT);
    scored(&mut rewards, name, 9).unwrap();
    assert_eq!(verdict(&mut rewards), Verdict { score: 9, proceed: false });
    // A later one: what is new decides, and who ends there has the score of all.
    let (offset, tokens, name) = ask(&mut rewards, 40, 16, CHECKPOINT);
    assert_eq!((offset, tokens), (512 + 64, 24));
    scored(&mut rewards, name, 9).unwrap();
    assert_eq!(rewards.pending(), 1, "it is not judged yet");
    assert!(scored(&mut rewards, name, 50).is_err(), "R3: nothing is in flight");
    let desc = rewards.descriptor().unwrap();
    assert_eq!((desc.delta_offset, desc.max_tokens, desc.user_data), (512, 40, name));
    scored(&mut rewards, name, 50).unwrap();
    assert_eq!(verdict(&mut rewards), Verdict { score: 50, proceed: false });
    let (.., name) = ask(&mut rewards, 40, 16, CHECKPOINT);
    scored(&mut rewards, name, 10).unwrap();
    assert!(verdict(&mut rewards).proceed);
    // The end: all of it, whatever was judged before.
    let (offset, tokens, name) = ask(&mut rewards, 41, 40, END);
    assert_eq!((offset, tokens), (512, 41));
    scored(&mut rewards, name, -1).unwrap();
    assert_eq!(verdict(&mut rewards).score, -1);
    assert_eq!(rewards.pending(), 0);
    assert_eq!(rewards.descriptor(), None);
}

/// A REWARD of no tokens is malformed (BAD_LENGTH): what nothing is worth is known without the device.
#[rstest]
#[case(RewardModel::Digest, 0x811C ^ 0x9DC5)]
#[case(RewardModel::Ranges, 0)]
fn no_tokens_are_scored_without_the_device(#[case] model: RewardModel, #[case] score: i32) {
    let features = Features { capability: Capability::all(), reward_models: 2, ..Features::default() };
    let mut rewards = DeviceRewards::new("test", features, 4, Scale { model, threshold: 1 << 16 }).unwrap();
    let mut tickets = Tickets::new(4);
    rewards.post(answer(&mut tickets, 0, 0, 0, END).0).unwrap();
    rewards.post(answer(&mut tickets, 1, 7, 7, CHECKPOINT).0).unwrap();
    // Nothing new scores too little, and so all of it is asked for.
    let desc = rewards.descriptor().unwrap();
    assert_eq!((desc.rollout_id, desc.max_tokens), (71, 7));
    assert_eq!(rewards.descriptor(), None);
    let mut out = [nothing_judged(); 4];
    assert_eq!(rewards.collect(&mut out).unwrap(), 1);
    assert_eq!(out[0].verdict, Ok(Verdict { score, proceed: false }));
}

/// As many as there are slots, those that were not collected included; a group whole or not at all.
#[test]
fn a_stage_that_is_full_says_so() {
    let features = Features { capability: Capability::all(), reward_models: 1, ..Features::default() };
    let scale = Scale { model: RewardModel::Digest, threshold: 0 };
    let mut rewards = DeviceRewards::new("test", features, 3, scale).unwrap();
    let mut tickets = Tickets::new(8);
    let mut next = |slot| answer(&mut tickets, slot, 0, 0, END).0;
    rewards.post(next(0)).unwrap();
    let three = [next(1), next(2), next(3)];
    assert_eq!(rewards.post_group(&three), Err(GroupPostError::Full));
    assert_eq!(rewards.pending(), 1, "none of them");
    rewards.post_group(&three[..2]).unwrap();
    assert!(matches!(rewards.post(next(4)), Err(PostError::Full(_))));
    assert_eq!(rewards.descriptor(), None);
    assert!(matches!(rewards.post(next(4)), Err(PostError::Full(_))), "nobody has collected");
    let mut out = [nothing_judged(); 2];
    assert_eq!(rewards.collect(&mut out).unwrap(), 2);
    rewards.post(next(4)).unwrap();
    assert_eq!(rewards.pending(), 2);
}

/// A NO_ECHO of a slot that holds no REWARD names none.
#[test]
fn r3_a_completion_without_a_name_is_of_no_reward() {
    let features = Features { capability: Capability::all(), reward_models: 1, ..Features::default() };
    let scale = Scale { model: RewardModel::Digest, threshold: 0 };
    let mut rewards = DeviceRewards::new("test", features, 3, scale).unwrap();
    rewards.post(answer(&mut Tickets::new(4), 0, 5, 0, END).0).unwrap();
    rewards.descriptor().unwrap();
    let flags = CompletionFlags::NO_ECHO.bits();
    let completion = HwCompletion { status: 0xFF, flags, ..HwCompletion::default() };
    assert!(rewards.completed(0, &completion).is_err());
    assert_eq!(rewards.pending(), 1);
}
