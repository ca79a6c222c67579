//! Plans, and the way of rollouts through a replay.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rstest::rstest;

use super::tamper::{Tampered, model, mutant};
use super::*;
use crate::model::Mutation;
use doorbell_contract::{CompletionFlags, HwCompletion, HwDesc, Opcode, Status};
use doorbell_host::device::Device;
use doorbell_host::error::DeviceError;
use doorbell_trace::{Generator, Request, Trace};

fn trace(requests: &[(u32, u32)]) -> Trace {
    let requests = requests
        .iter()
        .map(|&(prompt_tokens, output_tokens)| Request {
            arrival_ms: 0,
            prompt_tokens,
            output_tokens,
            prefix: vec![],
        })
        .collect();
    Trace { source: "test".into(), requests }
}

fn small_trace() -> Trace {
    Generator { output_median: 30, output_max: 200, ..Generator::new(60, 5, 3) }.generate().unwrap()
}

fn run(plan: &ReplayPlan, device: &mut dyn Device) -> Replay {
    replay(plan, device, &mut |_| ControlFlow::Continue(()))
}

#[rstest]
#[case::empty(trace(&[]), ReplayOptions::default(), "the trace has no requests")]
#[case::limit(trace(&[(1, 1)]), ReplayOptions { limit: 0, ..Default::default() }, "the trace has no requests")]
#[case::group(trace(&[(1, 1)]), ReplayOptions { group: 0, ..Default::default() }, "the group size is 0")]
#[case::ids(
    trace(&[(1, 1), (1, 1)]),
    ReplayOptions { group: u32::MAX / 2, ..Default::default() },
    "2 requests in groups of 2147483647 need more rollout ids"
)]
#[case::long(
    trace(&[(1, 1), (1000, 25)]),
    ReplayOptions { length_limit: 1024, ..Default::default() },
    "request 1 needs 1000 + 25 tokens, and a sequence has at most 1024 here; shorten it"
)]
#[case::wrap(trace(&[(u32::MAX, 1)]), ReplayOptions { length_limit: u32::MAX, ..Default::default() }, "request 0 needs")]
#[case::resident(trace(&[(1, 1)]), ReplayOptions { resident: true, ..Default::default() }, "resident scoring happens at")]
fn impossible_plans_say_why(#[case] trace: Trace, #[case] options: ReplayOptions, #[case] problem: &str) {
    let error = ReplayPlan::new(&trace, options).unwrap_err().to_string();
    assert!(error.starts_with(problem), "{error}");
}

proptest! {
    #[test]
    fn token_areas_are_aligned_disjoint_and_large_enough(
        requests in prop::collection::vec((0u32..5000, 1u32..300), 1..40), group in 1u32..5,
    ) {
        let plan = ReplayPlan::new(&trace(&requests), ReplayOptions { group, ..Default::default() }).unwrap();
        let mut end = 0;
        let mut rollouts = 0;
        for id in 0..plan.ids() {
            let Some(area) = plan.area(id) else {
                prop_assert_eq!(plan.first(id).opcode, Opcode::Prefill as u8);
                continue;
            };
            rollouts += 1;
            let desc = plan.first(id);
            prop_assert_eq!(area.start, end);
            prop_assert_eq!(area.start % 64, 0);
            prop_assert_eq!(desc.delta_offset, area.start);
            prop_assert!(area.start + 4 * u64::from(desc.max_tokens) <= area.end);
            end = area.end;
        }
        prop_assert_eq!(end, plan.token_bytes());
        prop_assert_eq!(rollouts, plan.rollouts());
    }
}

/// Flaw 1 of naive queues: a rollout that reaches a checkpoint must go on, from where it stood.
#[rstest]
fn r09_every_rollout_reaches_its_end(
    #[values(1, 4)] group: u32,
    #[values(0, 1, 32)] checkpoint: u32,
    #[values(2, 16, 1024)] depth: u32,
) {
    let trace = small_trace();
    let plan = ReplayPlan::new(&trace, ReplayOptions { group, checkpoint, ..Default::default() }).unwrap();
    let replay = run(&plan, &mut model(&plan, depth));
    assert!(replay.failure.is_none(), "{:?}", replay.failure);
    assert_eq!(replay.tokens, plan.token_budget());
    assert_eq!(replay.descriptors, replay.completions.len() as u64);
    for id in 0..plan.ids() {
        let own: Vec<&HwCompletion> = replay
            .completions
            .iter()
            .zip(&replay.owners)
            .filter(|&(_, &owner)| owner == id)
            .map(|(c, _)| c)
            .collect();
        let first = plan.first(id);
        let segments = match checkpoint {
            _ if plan.is_prefill(id) => 1,
            0 => 1,
            interval => first.max_tokens.div_ceil(interval) as usize,
        };
        assert_eq!(own.len(), segments, "rollout {id}");
        let (last, before) = own.split_last().unwrap();
        let tokens = if plan.is_prefill(id) { 0 } else { first.max_tokens };
        assert_eq!((last.status, last.final_seq_len), (Status::Done as u8, first.seq_len + tokens));
        assert!(before.iter().all(|completion| completion.status == Status::RewardNeeded as u8));
    }
}

/// R17: whose group is open at a device that holds them back may come with their PREFILL, but in no more groups than there are
/// entries; and each group closes once.
#[rstest]
#[case::members(ReplayOptions { group: 64, ..Default::default() })]
#[case::checkpoints(ReplayOptions { group: 3, checkpoint: 8, eos_threshold: 400, ..Default::default() })]
#[case::stops(ReplayOptions { group: 3, checkpoint: 8, stop_every: 2, ..Default::default() })]
#[case::group_stops(ReplayOptions { group: 4, checkpoint: 8, stop_group_every: 2, ..Default::default() })]
#[case::all_stopped(ReplayOptions { group: 2, stop_every: 3, stop_group_every: 1, ..Default::default() })]
fn r17_groups_are_opened_within_their_entries(#[case] options: ReplayOptions) {
    let plan = ReplayPlan::new(&small_trace(), options).unwrap();
    let replay = run(&plan, &mut model(&plan, 1024));
    assert!(replay.failure.is_none(), "{:?}", replay.failure);
    assert!(replay.completions.iter().all(|completion| completion.error == 0));
    let closed = replay.completions.iter().filter(|end| end.has(CompletionFlags::GROUP_DONE)).count();
    assert_eq!(closed, plan.requests());
}

/// Lives are put together from what the replay keeps: they have every descriptor as it was submitted, in that order, and each completion
/// with the descriptor that it answers, whatever the completion names. It is the same whether they are entered at the end or meanwhile.
#[rstest]
#[case::checkpoints(ReplayOptions { checkpoint: 8, stop_every: 2, ..Default::default() })]
#[case::groups(ReplayOptions { group: 3, checkpoint: 8, stop_every: 2, eos_threshold: 400, ..Default::default() })]
#[case::group_stops(ReplayOptions { group: 4, checkpoint: 8, stop_group_every: 2, ..Default::default() })]
#[case::versions(ReplayOptions { checkpoint: 8, publish_every: 20, ..Default::default() })]
fn lives_have_what_was_submitted_and_what_answered_it(
    #[case] options: ReplayOptions,
    #[values(false, true)] meanwhile: bool,
) {
    const RENAMED: usize = 33;
    let plan = ReplayPlan::new(&small_trace(), options).unwrap();
    let submitted = Arc::new(Mutex::new(vec![]));
    let answered = Arc::new(Mutex::new(vec![]));
    let (sees, hears) = (Arc::clone(&submitted), Arc::clone(&answered));
    let mut device = Tampered::new(&plan, move |ordinal, completion| {
        let named = match ordinal {
            RENAMED => HwCompletion { user_data: completion.user_data ^ 1 << 20, ..completion },
            _ => completion,
        };
        hears.lock().unwrap().push((completion.user_data, named));
        vec![named]
    })
    .watched(move |desc| sees.lock().unwrap().push(*desc));
    let (replay, lives) = if meanwhile {
        watch_lives(&plan, &mut device, &mut |_| ControlFlow::Continue(()))
    } else {
        replay_lives(&plan, &mut device, &mut |_| ControlFlow::Continue(()))
    };
    assert!(replay.failure.is_none(), "{:?}", replay.failure);
    let descs: Vec<HwDesc> = lives.all().iter().map(|life| life.desc).collect();
    assert_eq!(descs, *submitted.lock().unwrap());
    let answered = answered.lock().unwrap();
    assert_eq!(answered.len(), descs.len());
    for (number, &(name, completion)) in answered.iter().enumerate() {
        assert_eq!(lives.of(name).unwrap().completion, Some((number, completion)), "{name:#x}");
    }
}

/// What came in one poll with a completion that nobody asked for has come too.
#[test]
fn lives_have_what_came_with_a_failure() {
    let plan = ReplayPlan::new(&small_trace(), ReplayOptions::default()).unwrap();
    let answered = Arc::new(Mutex::new(vec![]));
    let hears = Arc::clone(&answered);
    let mut device = Tampered::new(&plan, move |ordinal, completion| {
        hears.lock().unwrap().push(completion);
        let twice = if ordinal == 30 { 2 } else { 1 };
        vec![completion; twice]
    });
    let (replay, lives) = replay_lives(&plan, &mut device, &mut |_| ControlFlow::Continue(()));
    assert!(
        matches!(replay.failure, Some(ReplayFailure::Unasked { ordinal: 31, .. })),
        "{:?}",
        replay.failure
    );
    let answered = answered.lock().unwrap();
    assert!(answered.len() > 32, "the completion that came twice is not the last of its poll");
    for completion in answered.iter() {
        let life = lives.of(completion.user_data).unwrap();
        assert_eq!(life.completion.map(|(_, completion)| completion), Some(*completion));
    }
}

/// A publish that waits for PREFILLs goes on when everything has completed at once, and so does what waits for it: here each
/// PREFILL is seen behind its members.
#[test]
fn r19_a_publish_that_is_due_holds_nothing_up() {
    let options = ReplayOptions { group: 4, publish_every: 20, ..Default::default() };
    let plan = ReplayPlan::new(&trace(&[(5, 1); 200]), options).unwrap();
    let mut held: HashMap<u32, HwCompletion> = HashMap::new();
    let mut device = Tampered::new(&plan, move |_, completion| {
        let (request, member) = (completion.rollout_id / 5, completion.rollout_id % 5);
        match member {
            _ if completion.rollout_id == u32::MAX => vec![completion],
            0 => {
                held.insert(request, completion);
                vec![]
            }
            4 => [Some(completion), held.remove(&request)].into_iter().flatten().collect(),
            _ => vec![completion],
        }
    });
    let replay = run(&plan, &mut device);
    assert!(replay.failure.is_none(), "{:?}", replay.failure);
    let whole = replay.completions.iter().filter(|end| end.status == Status::Done as u8).count();
    assert_eq!(whole, plan.ids() as usize);
    assert!(replay.published > 0);
}

#[test]
fn rollouts_wait_for_their_prefill() {
    let options = ReplayOptions { group: 4, ..Default::default() };
    let plan = ReplayPlan::new(&small_trace(), options).unwrap().without_groups();
    let done: Arc<Mutex<HashSet<u64>>> = Arc::default();
    let seen = Arc::clone(&done);
    let mut submitted = 0;
    let mut device = Tampered::new(&plan, move |_, completion| {
        done.lock().unwrap().insert(completion.user_data);
        vec![completion]
    })
    .watched(move |desc: &HwDesc| {
        submitted += 1;
        if desc.opcode == Opcode::Decode as u8 {
            let prefill = u64::from(desc.rollout_id / 5 * 5) << 32;
            assert!(seen.lock().unwrap().contains(&prefill), "descriptor {submitted} came before its prefix");
        }
    });
    let replay = run(&plan, &mut device);
    assert!(replay.failure.is_none());
    assert_eq!(replay.completions.len(), 60 * 5);
}

#[test]
fn early_ends_are_accounted_for() {
    let options = ReplayOptions { eos_threshold: 3000, checkpoint: 16, ..Default::default() };
    let plan = ReplayPlan::new(&small_trace(), options).unwrap();
    let mut last = Progress::default();
    let replay = replay(&plan, &mut model(&plan, 64), &mut |progress| {
        last = progress;
        ControlFlow::Continue(())
    });
    assert!(replay.tokens < plan.token_budget() / 2, "an end of sequence every 11 tokens");
    assert_eq!(last.tokens + last.saved, plan.token_budget());
    assert_eq!((last.tokens, last.completions), (replay.tokens, replay.completions.len() as u64));
}

#[rstest]
#[case::every(1)]
#[case::some(3)]
fn r08_stops_are_sent_and_answered(#[case] stop_every: u32, #[values(0, 20_000)] checkpoint: u32) {
    let options = ReplayOptions { stop_every, checkpoint, group: 3, ..Default::default() };
    // So long that the model, which looks for a STOP when it is given time, finds some while they run.
    let plan = ReplayPlan::new(&trace(&[(5, 40_000); 8]), options).unwrap();
    let replay = run(&plan, &mut model(&plan, 256));
    assert!(replay.failure.is_none(), "{:?}", replay.failure);
    let stops = (0..plan.ids()).filter(|&id| plan.stop_after(id).is_some()).count();
    assert_eq!(stops, if stop_every == 1 { 24 } else { 8 });
    let answers = |stop: bool| {
        let is_stop = |c: &&HwCompletion| (c.user_data >> 31 & 1 == 1) == stop;
        replay.completions.iter().filter(is_stop).filter(|c| c.status == Status::Stopped as u8).count()
    };
    assert_eq!(answers(true), stops, "every STOP completes as STOPPED");
    assert!(answers(false) > 0, "and some DECODE was cut by one");
}

#[test]
fn a_device_that_stops_answering_is_named_with_what_it_owes() {
    let plan = ReplayPlan::new(&small_trace(), ReplayOptions::default()).unwrap();
    let replay = run(&plan, &mut mutant(&plan, Mutation::Hang { after: 10 }));
    let Some(failure @ ReplayFailure::Device { error: DeviceError::Timeout(_), .. }) = &replay.failure else {
        panic!("{:?}", replay.failure);
    };
    let text = failure.to_string();
    assert!(text.contains("the oldest descriptor without a completion is DECODE of rollout 10"), "{text}");
    assert_eq!(replay.completions.len(), 10);
}

#[test]
fn the_caller_may_end_it() {
    let plan = ReplayPlan::new(&small_trace(), ReplayOptions::default()).unwrap();
    let replay = replay(&plan, &mut model(&plan, 2), &mut |_| ControlFlow::Break(()));
    assert!(matches!(replay.failure, Some(ReplayFailure::Ended)));
    assert!((1..=2).contains(&replay.completions.len()));
}

#[rstest]
#[case::twice(|completion: HwCompletion| vec![completion, completion])]
#[case::unknown(|completion| vec![HwCompletion { user_data: 0xFFFF_FFFF << 32, rollout_id: 60, ..completion }])]
fn r03_completions_that_nobody_asked_for(#[case] edit: fn(HwCompletion) -> Vec<HwCompletion>) {
    let plan = ReplayPlan::new(&small_trace(), ReplayOptions::default()).unwrap();
    let mut device = Tampered::new(&plan, move |ordinal, c| if ordinal == 20 { edit(c) } else { vec![c] });
    let replay = run(&plan, &mut device);
    assert!(
        matches!(replay.failure, Some(ReplayFailure::Unasked { ordinal: 20 | 21, .. })),
        "{:?}",
        replay.failure
    );
}

#[rstest]
#[case::no_progress(0)]
#[case::backwards(u32::MAX)]
#[case::beyond(1 << 30)]
fn r15_a_checkpoint_without_sense_is_not_continued(#[case] step: u32) {
    let plan =
        ReplayPlan::new(&trace(&[(100, 50)]), ReplayOptions { checkpoint: 8, ..Default::default() }).unwrap();
    let mut device = Tampered::new(&plan, move |_, completion| {
        vec![HwCompletion { final_seq_len: 100u32.wrapping_add(step), ..completion }]
    });
    let replay = run(&plan, &mut device);
    assert!(replay.failure.is_none(), "{:?}", replay.failure);
    assert_eq!(replay.completions.len(), 1);
}
