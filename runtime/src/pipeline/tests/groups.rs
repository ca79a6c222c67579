//! Groups of the device (R17), and groups that are judged as one.

use std::sync::Mutex;

use doorbell_contract::{CompletionFlags, DescFlags, ErrorCode, MEMBER_NONE, Status};

use super::super::submission::Tag;
use super::*;
use crate::reward::Moment;
use crate::trajectory::GroupScore;
use doubles::{Edited, Watched};

fn is_prefill(desc: &HwDesc) -> bool {
    desc.opcode == Opcode::Prefill as u8
}

fn is_stop(desc: &HwDesc) -> bool {
    desc.opcode == Opcode::Stop as u8
}

/// All descriptors that a run sends, in order.
fn sent(setup: &Setup) -> (Vec<HwDesc>, Pipeline) {
    let (mut pipeline, _) = setup.pipeline();
    let descs = Arc::new(Mutex::new(vec![]));
    let note = descs.clone();
    let trick = Watched { sent: move |desc: &HwDesc| note.lock().unwrap().push(*desc), came: |_: &_| {} };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    assert!(pipeline.is_idle());
    (std::mem::take(&mut descs.lock().unwrap()), pipeline)
}

/// A PREFILL opens its group, and the first DECODEs of its members follow without waiting for it: with room for all, next to it.
#[test]
fn r17_members_follow_their_prefill_at_once() {
    let setup = Setup { depth: 1024, ..Setup::new(8, Options { slots: 32, group: 4, ..Options::default() }) };
    let (descs, pipeline) = sent(&setup);
    assert!(pipeline.features.groups > 0);
    let prefills: Vec<_> = descs.iter().filter(|desc| is_prefill(desc)).collect();
    assert_eq!(prefills.len(), 8);
    for prefill in prefills {
        assert_eq!(prefill.max_tokens, 4);
        let members: Vec<_> = descs.iter().filter(|desc| desc.prefix_id == prefill.prefix_id).collect();
        assert!(is_prefill(members[0]), "SQ order is the order of admission");
        for (desc, member) in members[1..].iter().zip(0..) {
            assert_eq!((desc.member, desc.flags & DescFlags::COW_PREFIX.bits() != 0), (member, true));
        }
    }
    // All eight PREFILLs stand before the first DECODE: they went with one doorbell.
    assert!(descs[..8].iter().all(is_prefill) && !descs[8..].iter().any(is_prefill));
}

/// Where the device has no groups, members wait for their PREFILL, as ever.
#[test]
fn without_groups_members_wait_for_their_prefill() {
    let plain = Setup::new(8, Options { slots: 32, group: 4, checkpoint: 16, ..Options::default() });
    let setup = Setup { less: Features { groups: 0, ..plain.less }, ..plain };
    let (pipeline, stored) = setup.run();
    assert_eq!(pipeline.features.groups, 0);
    assert_eq!(stored.len(), 32);
    let (descs, _) = sent(&setup);
    assert!(
        descs.iter().all(|desc| desc.member == MEMBER_NONE && (!is_prefill(desc) || desc.max_tokens == 0))
    );
}

/// No queue pair ever has more groups than it may, counted until all that belongs to a group was seen, however few these are.
#[rstest]
fn r17_no_more_groups_than_a_queue_pair_may_have(#[values(1, 2, 5)] groups: u32, #[values(1, 3)] queues: u8) {
    let options = Options { slots: 64, group: 3, checkpoint: 8, abort_every: 5, ..Options::default() };
    let plain = Setup::new(40, options);
    let setup = Setup { less: Features { groups, ..plain.less }, queues, reward_threshold: 20_000, ..plain };
    let (pipeline, _) = setup.run();
    assert_eq!(pipeline.metrics.counters.values().groups_done, 40);
    // Seen from outside: descriptors of a group in flight, by prefix.
    let (mut pipeline, _) = setup.pipeline();
    let flying = Arc::new(Mutex::new((HashMap::<u32, i64>::new(), HashMap::<u64, u32>::new(), 0)));
    let (going, coming) = (flying.clone(), flying);
    let trick = Watched {
        sent: move |desc: &HwDesc| {
            let (groups, prefixes, most) = &mut *going.lock().unwrap();
            *groups.entry(desc.prefix_id).or_default() += 1;
            prefixes.insert(desc.user_data, desc.prefix_id);
            *most = (*most).max(groups.len());
        },
        came: move |completion: &HwCompletion| {
            let (groups, prefixes, _) = &mut *coming.lock().unwrap();
            let prefix = prefixes[&completion.user_data];
            *groups.get_mut(&prefix).unwrap() -= 1;
            groups.retain(|_, count| *count > 0);
        },
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick });
    let mut most = 0;
    pipeline
        .run(&mut Feed::new(&setup.requests), |pipeline| {
            assert!(pipeline.entries.iter().all(|&entries| entries <= groups), "R17: {:?}", pipeline.entries);
            most = most.max(pipeline.open_groups);
            false
        })
        .unwrap();
    assert!(most > 0 && most <= groups * u32::from(queues));
}

/// GROUP_DONE that is missing, too early, twice, or of no group: an error that names group and rule.
#[rstest]
#[case::missing(|flags: u8, _: usize| flags & !CompletionFlags::GROUP_DONE.bits(), "has no GROUP_DONE")]
#[case::early(|flags: u8, nth: usize| if nth == 2 { flags | CompletionFlags::GROUP_DONE.bits() } else { flags }, "before its last")]
#[case::with_the_prefill(|flags: u8, nth: usize| if nth == 1 { flags | CompletionFlags::GROUP_DONE.bits() } else { flags }, "before its last")]
fn r17_group_done_where_it_must_not_be_is_an_error(#[case] edit: fn(u8, usize) -> u8, #[case] what: &str) {
    let setup = Setup::new(1, Options { slots: 4, group: 3, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    let mut seen = 0;
    let trick = Edited(move |out: &mut [HwCompletion], count: usize| {
        for completion in &mut out[..count] {
            seen += 1;
            completion.flags = edit(completion.flags, seen);
        }
        count
    });
    // In the order of the device.
    let config = QueueConfig { token_bytes: setup.options.token_bytes(), ..QueueConfig::default() };
    pipeline.device = Box::new(Tricky { inner: setup.device(config), trick });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Group { request: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("R17") && text.contains("prefix_id 0") && text.contains(what), "{text}");
}

/// GROUP_DONE with the STOP of an aborted request, behind the last member: twice.
#[test]
fn r17_group_done_twice_is_an_error() {
    let setup = Setup::new(1, Options { slots: 4, group: 2, abort_every: 1, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    let mut done = 0;
    let trick = Edited(move |out: &mut [HwCompletion], count: usize| {
        for completion in &mut out[..count] {
            if done > 0 {
                completion.flags |= CompletionFlags::GROUP_DONE.bits();
            }
            done += u32::from(completion.has(CompletionFlags::GROUP_DONE));
        }
        count
    });
    let config = QueueConfig { token_bytes: setup.options.token_bytes(), ..QueueConfig::default() };
    pipeline.device = Box::new(Tricky { inner: setup.device(config), trick });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err().to_string();
    assert!(error.contains("R17") && error.contains("twice"), "{error}");
}

#[test]
fn r17_group_done_of_what_is_in_no_group_is_an_error() {
    let setup = Setup::new(2, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    let tamper = |completion: &mut HwCompletion| completion.flags |= CompletionFlags::GROUP_DONE.bits();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: tampered(1, tamper) });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }) && error.to_string().contains("R17"), "{error}");
}

/// A STOP of a member that completes a second time, in the place of something else that is in flight, is an error.
#[test]
fn r3_a_stop_of_a_member_that_completes_twice_is_an_error() {
    let options = Options { slots: 64, group: 4, checkpoint: 16, ..Options::default() };
    let setup = Setup { reward_threshold: 20_000, ..Setup::new(40, options) };
    let (mut pipeline, _) = setup.pipeline();
    let is_stop = |completion: &HwCompletion| {
        matches!(Tag::from_bits(completion.user_data), Some(Tag::MemberStop { .. }))
    };
    let mut stop = None;
    let trick = Edited(move |out: &mut [HwCompletion], count: usize| {
        for completion in &mut out[..count] {
            match stop {
                None if is_stop(completion) => stop = Some(*completion),
                // Once.
                Some(first) if !first.has(CompletionFlags::GROUP_DONE) && !is_stop(completion) => {
                    *completion = first;
                    stop = Some(HwCompletion { flags: CompletionFlags::GROUP_DONE.bits(), ..first });
                }
                _ => {}
            }
        }
        count
    });
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
    assert!(error.to_string().contains("no STOP of that group or member is in flight"), "{error}");
}

/// An aborted request ends its group by one STOP of all of it; one rollout by a STOP that names it.
#[test]
fn r17_a_request_is_aborted_by_one_stop_of_its_group() {
    let options = Options { slots: 16, group: 4, checkpoint: 8, ..Options::default() };
    let setup = Setup { depth: 256, ..Setup::new(2, options) };
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.rewards = Box::new(doubles::Silent::default());
    let stops = Arc::new(Mutex::new(vec![]));
    let note = stops.clone();
    let sent = move |desc: &HwDesc| {
        if is_stop(desc) {
            note.lock().unwrap().push(*desc);
        }
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Watched { sent, came: |_: &_| {} } });
    let mut handle = pipeline.abort_handle();
    let mut feed = Feed::new(&setup.requests);
    pipeline.run(&mut feed, |pipeline| pipeline.occupancy().of(State::RewardPending) == 8).unwrap();
    handle.abort(1).unwrap();
    pipeline.run(&mut feed, |pipeline| pipeline.open_groups == 1).unwrap();
    assert_eq!(handle.answer(), Some((1, AbortAnswer::Aborted(4))));
    let prefix = 5;
    let stops = std::mem::take(&mut *stops.lock().unwrap());
    assert_eq!(stops.len(), 1, "{stops:?}");
    assert_eq!((stops[0].prefix_id, stops[0].member), (prefix, MEMBER_NONE));
    assert_eq!(notes.lost().len(), 4);
    assert_eq!(pipeline.metrics.counters.values().groups_done, 1);
    // One rollout of the other one.
    let id = (0..16)
        .map(|slot| pipeline.lives.current(slot))
        .find(|&id| pipeline.lives.state(id) == Ok(State::RewardPending));
    assert!(pipeline.abort(id.unwrap()).unwrap());
    for _ in 0..100 {
        pipeline.turn().unwrap();
    }
    assert_eq!((pipeline.open_groups, pipeline.metrics.counters.values().rollouts_aborted), (1, 5));
}

/// Members that a judge rejects at a checkpoint, or cannot judge there, end on the device by a STOP that names them.
#[test]
fn r17_who_is_given_up_without_the_device_ends_there_too() {
    let options = Options { slots: 32, group: 4, checkpoint: 8, ..Options::default() };
    let setup = Setup { reward_threshold: 20_000, ..Setup::new(20, options) };
    let (descs, pipeline) = sent(&setup);
    let members: Vec<_> = descs.iter().filter(|desc| is_stop(desc)).collect();
    assert!(!members.is_empty() && members.iter().all(|desc| desc.member < 4));
    assert_eq!(pipeline.metrics.counters.values().groups_done, 20);

    let (mut pipeline, notes) =
        setup.threaded(PoolOptions { judges: 2, capacity: 64, ..PoolOptions::default() }, |number| Breaks {
            number,
            how: |answer, _| match answer.member {
                2 => Err(JudgeError::new("never")),
                _ => Ok(()),
            },
        });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    assert!(pipeline.is_idle());
    assert_eq!((notes.lost().len(), pipeline.metrics.counters.values().groups_done), (20, 20));
}

/// A PREFILL that met a bus error has opened its group, if its completion names it: the group's rollouts fail, and the run goes on.
#[rstest]
#[case(ErrorCode::DmaFault)]
#[case(ErrorCode::BadSequence)]
fn r17_a_group_whose_prefill_failed_is_open_and_ends(#[case] code: ErrorCode) {
    let setup = Setup::new(12, Options { slots: 16, group: 4, checkpoint: 16, ..Options::default() });
    let (mut pipeline, notes) = setup.pipeline();
    let mut seen = 0;
    let fault = move |out: &mut [HwCompletion], count: usize| {
        for end in &mut out[..count] {
            if matches!(Tag::from_bits(end.user_data), Some(Tag::Prefill(_))) {
                seen += 1;
                if seen % 4 == 2 {
                    (end.status, end.error) = (Status::Error as u8, code as u8);
                }
            }
        }
        count
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Edited(fault) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let (stored, lost) = (notes.take(), notes.lost());
    assert_eq!((stored.len(), lost.len()), (36, 12), "3 of 12 groups fail");
    let reason = FailureReason::Device { error: code as u8 };
    assert!(lost.iter().all(|lost| lost.why == Unstored::Failed(reason)), "{lost:?}");
    assert!(pipeline.is_idle());
    assert_eq!(pipeline.metrics.counters.values().groups_done, 12);
}

/// A STOP that the device could not read is made anew, so that its group still ends.
#[test]
fn r10_an_unreadable_stop_of_a_group_is_made_anew() {
    let options = Options { slots: 4, group: 2, abort_every: 1, ..Options::default() };
    let setup = Setup::new(1, options);
    let (descs, _) = sent(&setup);
    let stop = descs.iter().position(is_stop).unwrap();
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Unreadable::new(stop as u32, true) });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    assert!(pipeline.is_idle());
    assert_eq!((notes.lost().len(), pipeline.metrics.counters.values().groups_done), (2, 1));
}

/// What a call of a judge held: requests and members.
type Call = Vec<(u64, u32)>;
type Calls = Arc<Mutex<Vec<Call>>>;

/// Scores members by their number, in calls that it notes; lets nobody go on whose member is `rejected`.
struct Together {
    number: usize,
    calls: Calls,
    rejected: u32,
    how: fn(&Answer<'_>, usize) -> Result<(), JudgeError>,
}

impl Judge for Together {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        (self.how)(answer, self.number)?;
        let score = (answer.member as i32 + 1) << 16;
        Ok(Verdict { score, proceed: answer.member != self.rejected })
    }

    fn score_batch(&mut self, answers: &[Answer<'_>], verdicts: &mut Vec<Result<Verdict, JudgeError>>) {
        let members = answers.iter().map(|answer| (answer.request, answer.member)).collect();
        self.calls.lock().unwrap().push(members);
        for answer in answers {
            verdicts.push(self.score(answer));
        }
    }
}

/// Runs 20 groups of 4 that are judged as one, by two judges; member 1 is rejected at a checkpoint if `rejects`.
fn judged(
    rejects: bool,
    how: fn(&Answer<'_>, usize) -> Result<(), JudgeError>,
) -> (Pipeline, Vec<Note>, Vec<Call>, Vec<Lost>) {
    let options = Options { slots: 32, group: 4, checkpoint: 16, judge_group: true, ..Options::default() };
    let setup = Setup::new(20, options);
    let calls = Calls::default();
    let note = calls.clone();
    let pool = PoolOptions { judges: 2, capacity: 64, check_digest: true, ..PoolOptions::default() };
    let rejected = if rejects { 1 } else { u32::MAX };
    let (mut pipeline, notes) =
        setup.threaded(pool, move |number| Together { number, calls: note.clone(), rejected, how });
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    assert!(pipeline.is_idle());
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    // Checkpoints are judged alone.
    let calls = calls.into_iter().filter(|call| call.len() > 1).collect();
    let mut stored = notes.take();
    stored.sort_by_key(|(finished, _)| (finished.request, finished.member));
    (pipeline, stored, calls, notes.lost())
}

/// The final answers of a group come to one judge in one call, in the order of its members, and each trajectory has the mean of
/// the group and its own advantage.
#[test]
fn groups_are_judged_as_one() {
    let (_, stored, mut calls, _) = judged(false, |_, _| Ok(()));
    assert_eq!(stored.len(), 80);
    calls.sort();
    let all: Vec<Vec<_>> = (0..20).map(|request| (0..4).map(|member| (request, member)).collect()).collect();
    assert_eq!(calls, all);
    for (finished, _) in &stored {
        // 1, 2, 3 and 4: by hand mean 2.5, deviation the root of 1.25.
        let advantage = (f64::from(finished.member) - 1.5) / 1.25f64.sqrt();
        assert_eq!(finished.group, Some(GroupScore { mean: 2.5, advantage }));
    }
}

/// Who was rejected at a checkpoint keeps that score, is not judged again, and counts in the group.
#[test]
fn who_was_rejected_counts_in_the_group() {
    let (_, stored, calls, _) = judged(true, |_, _| Ok(()));
    assert_eq!(stored.len(), 80);
    let rejected: HashSet<u64> = stored
        .iter()
        .filter(|(finished, _)| finished.outcome == Outcome::Rejected)
        .map(|(finished, _)| finished.request)
        .collect();
    assert!(rejected.len() > 5, "answers of one segment alone are not rejected");
    for call in &calls {
        let members = call.iter().filter(|(_, member)| *member == 1).count();
        assert_eq!(members == 0, rejected.contains(&call[0].0));
    }
    assert!(stored.iter().all(|(finished, _)| finished.group.unwrap().mean == 2.5));
}

/// A call in which an answer got no verdict is made again, whole and by another judge; what fails again fails alone, and the
/// others' statistics are without it.
#[test]
fn a_group_whose_call_fails_is_judged_by_another_judge() {
    // Judge 0 never has a verdict on member 2.
    let (pipeline, stored, calls, lost) = judged(false, |answer, judge| match answer.member {
        2 if judge == 0 && matches!(answer.moment, Moment::End { .. }) => {
            Err(JudgeError::new("not this one"))
        }
        _ => Ok(()),
    });
    assert_eq!((stored.len(), lost.len()), (80, 0));
    assert!(calls.iter().all(|call| call.len() == 4));
    let failed = pipeline.metrics.counters.values().verdicts_failed;
    assert!(failed > 0 && calls.len() as u64 == 20 + failed, "{failed} of {} calls", calls.len());
    assert!(stored.iter().all(|(finished, _)| finished.group.unwrap().mean == 2.5));
    // Nobody has.
    let (pipeline, stored, calls, lost) = judged(false, |answer, _| match answer.member {
        2 if matches!(answer.moment, Moment::End { .. }) => panic!("not this one"),
        _ => Ok(()),
    });
    // A panic takes what comes behind it, too: member 3.
    assert_eq!((stored.len(), lost.len(), calls.len()), (40, 40, 40));
    assert_eq!(pipeline.metrics.counters.values().rollouts_failed, 40);
    assert!(lost.iter().all(|lost| lost.member >= 2));
    for (finished, _) in &stored {
        let advantage = if finished.member == 0 { -1.0 } else { 1.0 };
        assert_eq!(finished.group, Some(GroupScore { mean: 1.5, advantage }));
    }
}

/// Aborts while a group waits for its judge: the others are judged, or settled, all the same.
#[test]
fn aborted_members_do_not_hold_up_a_judged_group() {
    let options = Options { slots: 8, group: 4, judge_group: true, ..Options::default() };
    let setup = Setup::new(2, options);
    let (mut pipeline, notes) = setup.pipeline();
    pipeline.rewards = Box::new(doubles::Silent::default());
    let mut feed = Feed::new(&setup.requests);
    pipeline
        .run(&mut feed, |pipeline| pipeline.groups.iter().filter(|group| group.awaited == 4).count() == 2)
        .unwrap();
    let mut handle = pipeline.abort_handle();
    handle.abort(0).unwrap();
    handle.abort(1).unwrap();
    pipeline.run(&mut feed, |_| false).unwrap();
    assert_eq!(pipeline.metrics.counters.values().rollouts_aborted, 8);
    assert_eq!(notes.lost().len(), 8);
    assert!(pipeline.is_idle());
}
