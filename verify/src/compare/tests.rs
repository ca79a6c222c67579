//! Agreement, and every kind of divergence.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::ModelPlatform;
use crate::model::{Mutation, PolicyFault};
use crate::replay::tamper::{Tampered, model, mutant};
use crate::replay::{ReplayOptions, ReplayPlan};
use doorbell_contract::{CompletionFlags, ErrorCode, HwCompletion, PolicyMode, Status};
use doorbell_host::ports::{Division, Ports};
use doorbell_host::sharded::Sharded;
use doorbell_host::{Driver, QueueConfig};
use doorbell_trace::{Generator, Request, Trace};

fn small_trace() -> Trace {
    Generator { output_median: 30, output_max: 200, ..Generator::new(48, 5, 3) }.generate().unwrap()
}

fn plan(options: ReplayOptions) -> ReplayPlan {
    ReplayPlan::new(&small_trace(), options).unwrap()
}

/// Rollouts so long that the model, which looks for a STOP when it is given time, finds one while they run.
fn long_plan(options: ReplayOptions) -> ReplayPlan {
    let requests =
        (0..8).map(|k| Request { arrival_ms: 0, prompt_tokens: k, output_tokens: 40_000, prefix: vec![] });
    let trace = Trace { source: "test".into(), requests: requests.collect() };
    ReplayPlan::new(&trace, ReplayOptions { stop_every: 1, ..options }).unwrap()
}

fn compare_with(plan: &ReplayPlan, other: impl Device + 'static) -> Vec<Outcome> {
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(model(plan, 256)), Box::new(other)];
    compare(plan, &mut devices, &|_, _| ControlFlow::Continue(()))
}

/// The second device's divergence; the first must be sound.
fn divergence(plan: &ReplayPlan, other: impl Device + 'static) -> Option<Divergence> {
    let mut outcomes = compare_with(plan, other);
    assert!(outcomes[0].agrees(), "{:?}", outcomes[0]);
    outcomes.remove(1).divergence
}

#[rstest]
#[case::plain(ReplayOptions::default())]
#[case::groups(ReplayOptions { group: 4, ..Default::default() })]
#[case::checkpoints(ReplayOptions { checkpoint: 32, ..Default::default() })]
#[case::eos(ReplayOptions { eos_threshold: 1000, checkpoint: 7, ..Default::default() })]
#[case::resident(ReplayOptions { checkpoint: 8, resident: true, reward_threshold: 0x2000, ..Default::default() })]
#[case::stops(ReplayOptions { stop_every: 1, checkpoint: 16, eos_threshold: 300, group: 2, ..Default::default() })]
#[case::resident_stops(ReplayOptions {
    stop_every: 2, checkpoint: 8, resident: true, reward_threshold: 0x1000, ..Default::default()
})]
fn r06_depths_do_not_matter(#[case] options: ReplayOptions, #[values(2, 8, 1024)] depth: u32) {
    let plan = plan(options);
    let outcomes = compare_with(&plan, model(&plan, depth));
    for outcome in &outcomes {
        assert!(outcome.agrees(), "{outcome:?}");
        assert_eq!(outcome.descriptors, outcome.completions);
        assert_eq!(outcome.digest, outcomes[0].digest);
    }
}

/// R18 to R20: wherever versions switch, each token is of the version of its span, and the model has the same bytes at the same
/// switch points. A device of several queue pairs switches in the middle of what runs.
#[rstest]
#[case::keep(ReplayOptions { publish_every: 20, ..Default::default() })]
#[case::wait(ReplayOptions { publish_every: 20, publish_mode: PolicyMode::Wait, ..Default::default() })]
#[case::abort(ReplayOptions { publish_every: 20, publish_mode: PolicyMode::Abort, ..Default::default() })]
#[case::groups(ReplayOptions { publish_every: 16, group: 4, checkpoint: 16, eos_threshold: 200, ..Default::default() })]
#[case::stops(ReplayOptions { publish_every: 16, group: 3, checkpoint: 16, stop_every: 3, ..Default::default() })]
#[case::resident(ReplayOptions {
    publish_every: 12, checkpoint: 8, resident: true, reward_threshold: 0x800, ..Default::default()
})]
fn r20_publishes_change_no_byte_of_a_span(#[case] options: ReplayOptions, #[values(8, 64)] depth: u32) {
    let requests = (0..150).map(|k| Request {
        arrival_ms: 0,
        prompt_tokens: 10 + k,
        output_tokens: if k % 9 == 0 { 3000 } else { 1 + k % 60 },
        prefix: vec![],
    });
    let trace = Trace { source: "test".into(), requests: requests.collect() };
    let plan = ReplayPlan::new(&trace, options).unwrap();
    let config = QueueConfig { sq_depth: depth, cq_depth: depth, ..plan.queue_config() };
    let division =
        Division { queues: 4, functions: 2, bytes: config.shared_bytes().unwrap(), ..Default::default() };
    let ports = Ports::divide(ModelPlatform::with_queues(4, 2).unwrap(), &division).unwrap();
    let mut shards: Vec<Box<dyn Device>> = Vec::new();
    for port in ports.take_all().unwrap() {
        shards.push(Box::new(Driver::new(port, config.clone()).unwrap()));
    }
    let outcomes = compare_with(&plan, Sharded::new("four", shards).unwrap());
    for outcome in &outcomes {
        assert!(outcome.agrees(), "{outcome:?}");
        assert!(outcome.published > 0, "{} versions were published", outcome.published);
    }
    if plan.options().publish_mode == PolicyMode::Keep && depth == 8 {
        assert!(outcomes[1].published > 2, "{} versions were published", outcomes[1].published);
        assert!(outcomes[1].superseded > 0, "nothing was superseded");
    }
}

/// What goes wrong with versions shows in the bytes.
#[rstest]
#[case::late_load(PolicyFault::LateLoad)]
#[case::swapped_slot(PolicyFault::SwappedSlot)]
fn r18_a_token_of_another_version_is_found(#[case] fault: PolicyFault) {
    let plan = plan(ReplayOptions { publish_every: 10, ..Default::default() });
    let faulty = ModelPlatform::new().with_mutation(Mutation::Policy(fault));
    let config = QueueConfig { sq_depth: 8, cq_depth: 8, ..plan.queue_config() };
    let outcomes = compare_with(&plan, Driver::new(faulty, config).unwrap());
    assert!(outcomes[0].agrees() && outcomes[1].divergence.is_some() && outcomes[1].rerun.is_some());
}

/// A device may cut at any token (R8): here the reference never does, and the other does.
#[rstest]
#[case::plain(ReplayOptions::default())]
#[case::checkpoints(ReplayOptions { checkpoint: 20_000, ..Default::default() })]
fn r08_a_cut_rollout_agrees_with_an_uncut_one(#[case] options: ReplayOptions) {
    let plan = long_plan(options);
    let cut = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&cut);
    let counted = Tampered::new(&plan, move |_, completion| {
        let stopped = completion.status == Status::Stopped as u8 && completion.final_seq_len > 0;
        seen.fetch_add(stopped.into(), Ordering::Relaxed);
        vec![completion]
    });
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(model(&plan, 2)), Box::new(counted)];
    for outcome in compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(())) {
        assert!(outcome.agrees(), "{outcome:?}");
    }
    assert!(cut.load(Ordering::Relaxed) > 2);
}

#[test]
fn names_are_told_apart_and_digests_depend_on_the_seed() {
    let digest = |seed| {
        let plan = plan(ReplayOptions { seed, ..Default::default() });
        let outcomes = compare_with(&plan, model(&plan, 64));
        assert_eq!([&*outcomes[0].name, &*outcomes[1].name], ["model", "model#2"]);
        outcomes[0].digest
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn a_wrong_token_is_found_and_placed() {
    let options = ReplayOptions { checkpoint: 16, ..Default::default() };
    let plan = plan(options);
    let found = divergence(&plan, mutant(&plan, Mutation::Token { nth: 700 })).expect("a token was changed");
    let token = found.token.expect("the token differs");
    assert!(found.fields.is_empty(), "the digest was that of the right token");
    assert_eq!(token.found, token.expected ^ 1);
    assert_eq!(token.offset, found.desc.delta_offset + 4 * u64::from(token.index));
    assert_eq!(token.position, found.desc.seq_len + token.index);
    assert!(token.index < 16 && !token.beyond);
}

#[test]
fn every_compared_field_counts() {
    let plan = plan(ReplayOptions::default());
    for field in HwCompletion::COMPARED {
        let found = divergence(&plan, mutant(&plan, Mutation::Completion { nth: 17, field }))
            .expect("a field was changed");
        assert_eq!(found.fields.len(), 1, "{found}");
        let difference = found.fields[0];
        assert_eq!((difference.name, difference.found), (field.name, difference.expected ^ 1));
        assert_eq!(found.ordinal, Some(17));
        assert_eq!((found.rollout_id, found.desc.rollout_id, found.completion), (17, 17, 0));
    }
}

#[test]
fn fields_that_depend_on_timing_do_not_count() {
    let plan = plan(ReplayOptions::default());
    let device = Tampered::new(&plan, |_, completion| {
        vec![HwCompletion { worker_id: 9, phase: completion.phase ^ 0x80, sq_head: 0, ..completion }]
    });
    let outcomes = compare_with(&plan, device);
    assert!(outcomes[1].agrees(), "{:?}", outcomes[1]);
    assert_eq!(outcomes[0].digest, outcomes[1].digest);
}

#[test]
fn of_several_the_first_in_the_devices_order_is_told_and_all_are_counted() {
    let plan = plan(ReplayOptions::default());
    let device = Tampered::new(&plan, |ordinal, completion| {
        // Rollout 30 is wrong, and is posted before the rest.
        let wrong = [4, 30, 40].contains(&completion.rollout_id);
        let _ = ordinal;
        vec![HwCompletion { result: completion.result ^ u32::from(wrong), ..completion }]
    });
    let outcomes = compare_with(&plan, device);
    assert_eq!(outcomes[1].differing, 3);
    assert_eq!(outcomes[1].divergence.as_ref().map(|found| found.rollout_id), Some(4));
    assert_ne!(outcomes[0].digest, outcomes[1].digest);
}

#[test]
fn a_hang_is_a_failure_and_no_divergence() {
    let plan = plan(ReplayOptions { group: 2, ..Default::default() });
    let outcomes = compare_with(&plan, mutant(&plan, Mutation::Hang { after: 30 }));
    assert!(outcomes[0].agrees());
    assert!(!outcomes[1].agrees() && outcomes[1].divergence.is_none(), "{:?}", outcomes[1].divergence);
    assert!(
        outcomes[1]
            .failure
            .as_ref()
            .is_some_and(|failure| failure.to_string().contains("did not happen within"))
    );
}

#[test]
fn a_rollout_that_ends_too_early_misses_completions() {
    let plan = plan(ReplayOptions { checkpoint: 16, ..Default::default() });
    let device = Tampered::new(&plan, |_, completion| {
        let cut = completion.rollout_id == 20 && completion.status == Status::RewardNeeded as u8;
        let status = if cut { Status::Done as u8 } else { completion.status };
        vec![HwCompletion { status, ..completion }]
    });
    let found = divergence(&plan, device).expect("rollout 20 was cut");
    assert_eq!(found.fields.iter().map(|field| field.name).collect::<Vec<_>>(), ["status"]);
    assert_eq!((found.rollout_id, found.completion), (20, 0));
}

/// R8 lets a STOP cut a DECODE at any token, but not report other tokens, flags or digests than those of the prefix.
#[rstest]
#[case::digest(|c: HwCompletion| HwCompletion { result: c.result ^ 1, ..c }, "result")]
#[case::length(|c: HwCompletion| HwCompletion { final_seq_len: c.final_seq_len + 1, ..c }, "result")]
#[case::eos(|c: HwCompletion| HwCompletion { flags: c.flags ^ CompletionFlags::EOS.bits(), ..c }, "flags")]
#[case::done(|c: HwCompletion| HwCompletion { status: Status::Done as u8, ..c }, "final_seq_len")]
#[case::beyond(|c: HwCompletion| HwCompletion { final_seq_len: c.final_seq_len + 1000, ..c }, "result")]
fn r08_a_stopped_decode_is_held_to_the_policy(
    #[case] edit: fn(HwCompletion) -> HwCompletion,
    #[case] field: &str,
    #[values(false, true)] as_reference: bool,
) {
    let plan = long_plan(ReplayOptions::default());
    let mut edited = false;
    let device = Tampered::new(&plan, move |_, completion| {
        let is_decode = completion.user_data >> 31 & 1 == 0;
        if edited || !is_decode || completion.status != Status::Stopped as u8 {
            return vec![completion];
        }
        edited = true;
        vec![edit(completion)]
    });
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(model(&plan, 64)), Box::new(device)];
    if as_reference {
        devices.reverse();
    }
    let outcomes = compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(()));
    let tampered = usize::from(!as_reference);
    assert!(
        outcomes[1 - tampered].divergence.is_none(),
        "{}",
        outcomes[1 - tampered].divergence.as_ref().unwrap()
    );
    let found = outcomes[tampered].divergence.as_ref().expect("a stopped DECODE was changed");
    assert!(found.fields.iter().any(|difference| difference.name == field), "{found}");
}

/// R17: GROUP_DONE is no compared field, as it depends on timing, and yet it is with one completion of each group and with no other.
#[rstest]
#[case::missing(true, "lacks GROUP_DONE and is the last end of group")]
#[case::surplus(false, "has GROUP_DONE and is not the last end of group")]
fn r17_a_group_done_that_is_missing_or_surplus_is_noticed(
    #[case] missing: bool,
    #[case] what: &str,
    #[values(false, true)] as_reference: bool,
) {
    let plan = plan(ReplayOptions { group: 4, checkpoint: 16, ..Default::default() });
    let tampered = Arc::new(AtomicU32::new(u32::MAX));
    let place = Arc::clone(&tampered);
    let device = Tampered::new(&plan, move |ordinal, completion| {
        // Of the DECODEs, behind the first few groups: one that ends a member, and is the last of its group or is not.
        let ends = completion.status == Status::Done as u8 && completion.result != 0;
        let hit = ends && ordinal > 20 && completion.has(CompletionFlags::GROUP_DONE) == missing;
        if !hit || place.load(Ordering::Relaxed) != u32::MAX {
            return vec![completion];
        }
        place.store(ordinal as u32, Ordering::Relaxed);
        vec![HwCompletion { flags: completion.flags ^ CompletionFlags::GROUP_DONE.bits(), ..completion }]
    });
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(model(&plan, 64)), Box::new(device)];
    if as_reference {
        devices.reverse();
    }
    let outcomes = compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(()));
    let place = tampered.load(Ordering::Relaxed);
    assert_ne!(place, u32::MAX, "nothing was tampered with");
    let (at, other) = if as_reference { (0, 1) } else { (1, 0) };
    assert!(outcomes[other].agrees(), "{:?}", outcomes[other]);
    let found = outcomes[at].divergence.as_ref().expect("GROUP_DONE was changed");
    let broken = found.broken.as_ref().expect("R17 is broken");
    assert!(broken.starts_with("R17: ") && broken.contains(what), "{broken}");
    assert_eq!((found.ordinal, outcomes[at].differing), (Some(place as usize), 1), "{found}");
    assert!(found.fields.is_empty() && found.token.is_none(), "{found}");
    assert!(found.to_string().contains(broken.as_str()), "{found}");
    assert_eq!(outcomes[0].digest, outcomes[1].digest, "no compared field differs");
}

/// What lies behind the tokens of an ended rollout is compared too: nobody was to write there.
#[rstest]
#[case::behind_an_early_end(ReplayOptions { eos_threshold: 3000, checkpoint: 8, ..Default::default() })]
#[case::in_the_padding(ReplayOptions { checkpoint: 8, ..Default::default() })]
fn a_word_behind_the_tokens_counts(#[case] options: ReplayOptions) {
    let plan = plan(options);
    let last = plan.area(20).unwrap().end - 4;
    let found = divergence(&plan, Tampered::new(&plan, |_, completion| vec![completion]).spoilt(last));
    let found = found.expect("a word was changed");
    let token = found.token.expect("it is told");
    assert_eq!((found.rollout_id, token.offset, token.beyond), (20, last, true));
    assert_eq!((token.expected, token.found), (0, 1));
}

/// Its completion echoes nothing but the SQ index, and is still told as the answer to the right descriptor.
#[test]
fn a_slot_that_could_not_be_read_is_placed() {
    let plan = plan(ReplayOptions { group: 2, ..Default::default() });
    let device = Tampered::new(&plan, |ordinal, completion| {
        let unread = HwCompletion {
            result: 30,
            status: Status::Error as u8,
            error: ErrorCode::DmaFault as u8,
            flags: CompletionFlags::NO_ECHO.bits(),
            sq_head: completion.sq_head,
            ..HwCompletion::default()
        };
        vec![if ordinal == 30 { unread } else { completion }]
    });
    let found = divergence(&plan, device).expect("a completion was replaced");
    assert_eq!(found.ordinal, Some(30));
    assert_eq!(found.expected.map(|expected| expected.rollout_id), Some(found.rollout_id));
    assert_eq!(found.desc.rollout_id, found.rollout_id);
}

/// The order of one rollout's completions is part of the contract (R5).
#[test]
fn r05_a_stop_before_its_decode_is_found() {
    let plan = long_plan(ReplayOptions::default());
    let mut held = None;
    let device = Tampered::new(&plan, move |_, completion| match held.take() {
        Some(decode) => vec![completion, decode],
        None if completion.status == Status::Stopped as u8 && completion.rollout_id == 4 => {
            held = Some(completion);
            vec![]
        }
        None => vec![completion],
    });
    let found = divergence(&plan, device).expect("two completions were swapped");
    assert_eq!((found.rollout_id, found.completion), (4, 0));
    assert!(found.fields.iter().any(|difference| difference.name == "user_data"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any changed bit of any completion's compared fields is a divergence or a failure, whatever the device then goes
    /// on to do, and never a panic.
    #[test]
    fn any_changed_bit_shows(nth in 0usize..130, bit in 0usize..256, group in 1u32..3) {
        let byte = bit / 8;
        let field = HwCompletion::FIELDS.iter().find(|f| (f.offset..f.offset + f.size).contains(&byte)).unwrap();
        let compared = HwCompletion::COMPARED.iter().any(|c| c.name == field.name);
        let plan = plan(ReplayOptions { checkpoint: 16, group, ..Default::default() });
        let device = Tampered::new(&plan, move |ordinal, mut completion| {
            if ordinal == nth {
                bytemuck::bytes_of_mut(&mut completion)[byte] ^= 1 << (bit % 8);
            }
            vec![completion]
        });
        let outcomes = compare_with(&plan, device);
        prop_assert!(outcomes[0].agrees());
        prop_assert_eq!(outcomes[1].agrees(), !compared, "{} {:?}", field.name, outcomes[1]);
    }
}

#[test]
fn a_divergence_tells_everything() {
    let options =
        ReplayOptions { group: 2, checkpoint: 16, eos_threshold: 100, seed: 7, ..Default::default() };
    let plan = plan(options);
    let field = HwCompletion::COMPARED.into_iter().find(|field| field.name == "status").unwrap();
    let wrong_field = divergence(&plan, mutant(&plan, Mutation::Completion { nth: 70, field })).unwrap();
    let wrong_token = divergence(&plan, mutant(&plan, Mutation::Token { nth: 1000 })).unwrap();
    insta::assert_snapshot!(format!("{wrong_field}\n\n{wrong_token}"));
}

#[rstest]
#[case::the_reference(0)]
#[case::the_other(1)]
fn a_token_region_that_is_smaller_than_the_plan_is_that_devices_failure(#[case] place: usize) {
    let plan = plan(ReplayOptions { stop_every: 3, ..Default::default() });
    let config = QueueConfig { token_bytes: plan.token_bytes() - 64, ..plan.queue_config() };
    let small = Driver::new(ModelPlatform::new(), config).unwrap();
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(model(&plan, 64))];
    devices.insert(place, Box::new(small));
    let outcomes = compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(()));
    let failure = outcomes[place].failure.as_ref().map(ToString::to_string).unwrap_or_default();
    let expected =
        format!("token_bytes is {}: it must be at least {}", plan.token_bytes() - 64, plan.token_bytes());
    assert!(failure.contains(&expected), "{failure}");
    assert_eq!(outcomes[place].descriptors, 0);
    assert!(outcomes[1 - place].failure.is_none() && outcomes[1 - place].divergence.is_none());
}
