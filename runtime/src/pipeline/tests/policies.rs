//! Versions of the policy under load (R18 to R22).

use std::sync::Mutex;

use doorbell_contract::{DescFlags, Status};
use tempfile::tempdir;

use super::*;
use crate::trajectory::log::{Log, LogOptions, Piece, Reader};
use crate::trajectory::{RolloutMemory, WriterHandle, WriterOptions};
use doubles::Edited;

/// 4 queue pairs of 2 functions, groups of 4, checkpoints, and versions whenever the last one is in.
fn busy(publish: (usize, PolicyMode)) -> Setup {
    let options = Options { slots: 64, group: 4, checkpoint: 24, window: 4, ..Options::default() };
    Setup {
        queues: 4,
        functions: 2,
        depth: 16,
        publish: Some(publish),
        spans: 200,
        ..Setup::new(60, options)
    }
}

/// Every token is what the version of its span gives, and spans are whole: they begin at 0 and rise.
fn check_tokens(setup: &Setup, stored: &[Note], notes: &Notes) {
    for (finished, tokens) in stored {
        let spans = notes.spans(finished);
        assert_eq!(spans[0].first, 0);
        assert!(
            spans.windows(2).all(|pair| pair[0].first < pair[1].first && pair[0].version < pair[1].version)
        );
        assert_eq!(*tokens, setup.answer_of(finished, &spans), "R18: request {}", finished.request);
    }
}

/// 1,000 versions under load with KEEP: nothing is aborted, no token is lost, and each comes from the version of its span.
#[test]
fn r20_a_thousand_publishes_lose_nothing() {
    let setup = busy((1, PolicyMode::Keep));
    let mut feed = Feed::repeated(&setup.requests, u64::MAX);
    let (mut pipeline, notes) = setup.pipeline();
    let mut publisher = pipeline.publisher();
    let (mut resident, mut version, mut turns) = (0, 0u16, 0u64);
    pipeline
        .run(&mut feed, |_| {
            turns += 1;
            if let Some((of, answer)) = publisher.answer() {
                assert_eq!((of, answer), (version, PublishAnswer::Resident));
                resident += 1;
            }
            if publisher.awaited() == 0 && version < 1000 && turns % 40 == 0 {
                version += 1;
                publisher.publish(version, salt(version), PolicyMode::Keep).unwrap();
            }
            resident == 1000
        })
        .unwrap();
    pipeline.run(&mut Feed::new(&[]), |_| false).unwrap();
    let (stored, values) = (notes.take(), pipeline.metrics.counters.values());
    assert_eq!((values.publishes, values.policy_version), (1000, 1000));
    assert_eq!((values.rollouts_aborted, values.rollouts_failed, values.rollouts_stale), (0, 0, 0));
    assert_eq!(values.rollouts_completed, values.rollouts_admitted);
    let tokens: u64 = stored.iter().map(|(finished, _)| u64::from(finished.answer_tokens)).sum();
    assert_eq!(tokens, values.tokens_generated, "a token was lost");
    assert_eq!(pipeline.first_error(), None);
    check_tokens(&setup, &stored, &notes);
    let several = stored.iter().filter(|(finished, _)| finished.spans > 1).count();
    println!(
        "{} rollouts, {tokens} tokens, {} superseded, {several} rollouts of several versions",
        stored.len(),
        values.superseded
    );
    assert!(
        values.superseded > 100 && several > 100,
        "{} superseded, {several} of several",
        values.superseded
    );
}

/// With WAIT every rollout ends under the version that it began with, and no version waits for ever.
#[test]
fn r20_who_may_wait_ends_under_its_own_version() {
    let setup = busy((30, PolicyMode::Wait));
    let (pipeline, stored, notes) = setup.run_noted(&mut Feed::repeated(&setup.requests, 4));
    let values = pipeline.metrics.counters.values();
    assert_eq!((values.rollouts_completed, values.superseded), (960, 0));
    assert!(values.publishes > 5, "{} publishes", values.publishes);
    check_tokens(&setup, &stored, &notes);
    assert!(stored.iter().all(|(finished, _)| finished.spans == 1));
}

/// With ABORT what would go on under the version before ends as aborted, and is told of; what had its last token stays.
#[test]
fn r20_an_abort_ends_the_rollouts_of_the_version_before() {
    let setup = busy((150, PolicyMode::Abort));
    let (pipeline, stored, notes) = setup.run_noted(&mut Feed::repeated(&setup.requests, 4));
    let values = pipeline.metrics.counters.values();
    assert!(values.publishes > 3 && values.rollouts_aborted > 20, "{values:?}");
    assert_eq!(values.rollouts_aborted + values.rollouts_completed, 960);
    let lost = notes.lost();
    assert_eq!(lost.len() as u64, values.rollouts_aborted);
    assert!(lost.iter().all(|lost| lost.why == Unstored::Aborted));
    check_tokens(&setup, &stored, &notes);
    assert!(stored.iter().all(|(finished, _)| finished.spans == 1), "nobody goes on under another version");
}

/// No trajectory is taken whose oldest token lies more versions back than it may, and each that is dropped is told of.
#[rstest]
fn r22_stale_rollouts_are_dropped_and_told_of(#[values(0, 1, 3)] max_staleness: u32) {
    let mut setup = busy((60, PolicyMode::Keep));
    setup.options.max_staleness = Some(max_staleness);
    let (pipeline, stored, notes) = setup.run_noted(&mut Feed::repeated(&setup.requests, 4));
    let values = pipeline.metrics.counters.values();
    assert!(values.rollouts_stale > 0 && !stored.is_empty(), "{values:?}");
    check_tokens(&setup, &stored, &notes);
    for (finished, _) in &stored {
        let spans = notes.spans(finished);
        let window = spans.last().unwrap().version.wrapping_sub(spans[0].version);
        assert!(u32::from(window) <= max_staleness, "R22: {spans:?}");
    }
    let lost = notes.lost();
    assert_eq!(lost.len() as u64, values.rollouts_stale);
    for lost in lost {
        let Unstored::Stale(staleness) = lost.why else { panic!("{lost}") };
        assert!(staleness > max_staleness.into(), "{lost}");
        assert!(lost.to_string().contains("R22"));
    }
}

/// A device that scores is superseded at a checkpoint; its rollouts end as those that no version cuts, but for their tokens.
#[test]
fn r20_resident_rollouts_go_on_at_a_checkpoint() {
    let mut setup = busy((40, PolicyMode::Keep));
    setup.options.scoring = Scoring::Resident;
    let (pipeline, stored, notes) = setup.run_noted(&mut Feed::repeated(&setup.requests, 4));
    let values = pipeline.metrics.counters.values();
    assert_eq!(stored.len(), 960);
    check_tokens(&setup, &stored, &notes);
    let cut = stored.iter().filter(|(finished, _)| finished.segments > 1).count();
    assert!(cut > 5 && values.scored_resident == 960 - cut as u64, "{cut} cut");
    for (finished, tokens) in &stored {
        let spans = notes.spans(finished);
        assert!(spans.iter().all(|span| span.first % 24 == 0), "R20: {spans:?}");
        let score = crate::reward::digest_score(doorbell_engine::Digest::of(tokens));
        assert_eq!(finished.score, score, "the score is that of all tokens, however it was cut");
    }
}

#[test]
fn what_cannot_be_published_is_refused_with_the_reason() {
    let setup = Setup::new(4, Options { slots: 4, ..Options::default() });
    let run = |setup: &Setup, versions: &[u16], trick: Option<u8>| {
        let (mut pipeline, _) = setup.pipeline();
        if let Some(code) = trick {
            let refuse = move |out: &mut [HwCompletion], count: usize| {
                for completion in out[..count].iter_mut().filter(|end| end.rollout_id == PREFIX_NONE) {
                    (completion.status, completion.error) = (Status::Error as u8, code);
                }
                count
            };
            pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Edited(refuse) });
        }
        let mut publisher = pipeline.publisher();
        for &version in versions {
            // The double only says that the device refused it, which has it.
            let mode = if trick.is_some() { PolicyMode::Wait } else { PolicyMode::Keep };
            publisher.publish(version, 1, mode).unwrap();
        }
        pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
        assert_eq!(pipeline.metrics.counters.values().rollouts_completed, 4, "the run goes on");
        let answers: Vec<_> = std::iter::from_fn(|| publisher.answer()).map(|answer| answer.1).collect();
        drop(pipeline);
        assert!(publisher.is_over() && publisher.awaited() == 0);
        answers
    };
    let refused = PublishAnswer::Refused;
    let older = refused(PublishRefusal::NotNewer { current: 7 });
    let same = refused(PublishRefusal::NotNewer { current: 0 });
    let answers = run(&setup, &[0, 0x8000, 7, 7, 3], None);
    assert_eq!(answers, [same, same, PublishAnswer::Resident, older, older]);
    assert_eq!(run(&setup, &[1], Some(0x0E)), [refused(PublishRefusal::Device { code: 0x0E })]);
    let less = Features { policy_slots: 0, ..setup.less };
    let setup = Setup { less, ..setup };
    assert_eq!(run(&setup, &[1], None), [refused(PublishRefusal::Unsupported)]);
}

/// Where one function has a version and another one refuses it, no DECODE can name it or the one before: the run ends.
#[test]
fn r19_functions_that_diverge_end_the_run() {
    let setup = busy((1, PolicyMode::Keep));
    let (mut pipeline, _) = setup.pipeline();
    let mut seen = 0;
    let refuse = move |out: &mut [HwCompletion], count: usize| {
        for completion in out[..count].iter_mut().filter(|end| end.rollout_id == PREFIX_NONE) {
            seen += 1;
            if seen == 2 {
                (completion.status, completion.error) = (Status::Error as u8, 7);
            }
        }
        count
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Edited(refuse) });
    let mut publisher = pipeline.publisher();
    publisher.publish(1, 1, PolicyMode::Keep).unwrap();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Diverged { version: 1, resident: 1, functions: 2, .. }), "{error}");
    assert!(error.to_string().contains("DMA_FAULT"), "{error}");
}

/// A function that answers a POLICY twice, in the place of another one that has not answered, is an error.
#[test]
fn r3_a_function_answers_a_policy_once() {
    let setup = busy((1, PolicyMode::Keep));
    let (mut pipeline, _) = setup.pipeline();
    let mut first = None;
    let repeat = move |out: &mut [HwCompletion], count: usize| {
        for completion in out[..count].iter_mut().filter(|end| end.rollout_id == PREFIX_NONE) {
            completion.user_data = *first.get_or_insert(completion.user_data);
        }
        count
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Edited(repeat) });
    pipeline.publisher().publish(1, 1, PolicyMode::Keep).unwrap();
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
}

/// R20: nothing is superseded whose version was not retired.
#[test]
fn r20_superseded_without_a_reason_is_an_error() {
    let setup = Setup::new(3, Options { slots: 4, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    let tamper = |completion: &mut HwCompletion| {
        completion.status = Status::Superseded as u8;
        completion.final_seq_len -= 1;
    };
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: tampered(1, tamper) });
    let error = pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err();
    assert!(matches!(error, RuntimeError::Unasked { .. }), "{error}");
}

/// Through the writer to the log and back: tokens, their log-probabilities and their versions are those that engine 0 gives.
#[test]
fn spans_log_probabilities_and_groups_are_stored() {
    let mut setup = busy((60, PolicyMode::Keep));
    (setup.options.logprobs, setup.options.judge_group) = (true, true);
    let directory = tempdir().unwrap();
    let (mut pipeline, _) = setup.pipeline();
    let (log, _) = Log::open(directory.path(), LogOptions::default()).unwrap();
    let memory = RolloutMemory {
        tokens: pipeline.device.token_regions(),
        logprobs: pipeline.device.logp_regions(),
        spans: pipeline.spans.clone(),
    };
    let options = WriterOptions { capacity: 64, longest: 200 };
    pipeline.trajectories = Box::new(WriterHandle::start(log, memory, options).unwrap());
    let mut publisher = pipeline.publisher();
    let (mut version, mut turns) = (0u16, 0);
    pipeline
        .run(&mut Feed::new(&setup.requests), |_| {
            turns += 1;
            publisher.answer();
            if publisher.awaited() == 0 && turns % 60 == 0 {
                version += 1;
                publisher.publish(version, salt(version), PolicyMode::Keep).unwrap();
            }
            false
        })
        .unwrap();
    pipeline.into_ends().trajectories.finish().unwrap();
    let (mut records, mut versions) = (0, HashSet::new());
    for piece in Reader::open(directory.path()).unwrap() {
        let Piece::Record(found) = piece.unwrap() else { panic!("damaged") };
        records += 1;
        versions.extend(found.spans.iter().map(|span| span.version));
        assert_eq!(found.tokens, setup.answer_of(&found.finished, &found.spans));
        assert!(found.finished.group.is_some());
        let request = &setup.requests[found.finished.request as usize];
        let logprobs = found.logprobs.unwrap();
        assert_eq!(logprobs.len(), found.tokens.len());
        for (place, logprob) in (0..).zip(&logprobs) {
            let span = found.spans.iter().rev().find(|span| span.first <= place).unwrap();
            let desc = HwDesc::decode(found.finished.device_rollout, request.prompt_tokens + place, 1)
                .with_flags(DescFlags::LOGP)
                .with_seed(setup.options.seed);
            let step = Engine::Hash.begin(&desc, salt(span.version), 0).unwrap().step();
            assert_eq!(*logprob, step.logp as f32 / 65536.0);
        }
    }
    assert_eq!(records, 240);
    assert!(versions.len() > 3, "{versions:?}");
}

/// Whatever mode follows whatever mode, under load: every version becomes resident, and every rollout ends.
#[test]
fn r19_any_mode_may_follow_any_other() {
    let setup = busy((1, PolicyMode::Keep));
    let (mut pipeline, notes) = setup.pipeline();
    let mut publisher = pipeline.publisher();
    let modes = [PolicyMode::Wait, PolicyMode::Keep, PolicyMode::Abort];
    let answers = Arc::new(Mutex::new(0u16));
    let (mut version, mut turns) = (0u16, 0usize);
    pipeline
        .run(&mut Feed::repeated(&setup.requests, 6), |pipeline| {
            turns += 1;
            assert!(turns < TURNS, "stalled with {}", pipeline.occupancy());
            if let Some((of, answer)) = publisher.answer() {
                assert_eq!((of, answer), (version, PublishAnswer::Resident));
                *answers.lock().unwrap() += 1;
            }
            if publisher.awaited() == 0 && turns % 25 == 0 {
                version += 1;
                let mode = modes[mix(version.into()) as usize % 3];
                publisher.publish(version, salt(version), mode).unwrap();
            }
            false
        })
        .unwrap();
    assert!(*answers.lock().unwrap() > 10, "{answers:?} versions");
    assert_eq!(pipeline.first_error(), None, "nothing was refused");
    assert_eq!(pipeline.ended(), 6 * 240);
    check_tokens(&setup, &notes.take(), &notes);
}
