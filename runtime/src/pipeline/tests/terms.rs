//! Requests that ask for something of their own, and rollouts that wait at the gate.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_trace::Request;

use super::super::rollout::Prefill;
use super::super::submission::Tag;
use super::*;
use doubles::{Edited, Mute};

/// Requests, each with terms of its own.
struct Own<'a> {
    requests: &'a [Request],
    terms: fn(usize, &Options) -> Terms,
    options: &'a Options,
    next: usize,
}

impl Source for Own<'_> {
    fn next(&mut self) -> Next<'_> {
        match self.requests.get(self.next) {
            Some(request) => Next::Asks(request, (self.terms)(self.next, self.options)),
            None => Next::End,
        }
    }

    fn admitted(&mut self, _: u64) {
        self.next += 1;
    }
}

/// R17: groups of 1 to 8 on one device, cut at checkpoints or not: those of several rollouts are the device's, each ends, and tokens are those
/// of the engine.
#[rstest]
fn r17_each_request_has_rollouts_and_checkpoints_of_its_own(#[values(8, 24)] slots: u32) {
    let setup = Setup::new(64, Options { slots, group: 8, checkpoint: 5, ..Options::default() });
    let members = |index: usize| 1 + index as u32 % 8;
    let terms = |index: usize, options: &Options| Terms {
        members: 1 + index as u32 % 8,
        checkpoint: [0, 16, 33][index % 3],
        ..Terms::of(options)
    };
    let (mut pipeline, notes) = setup.pipeline();
    let mut source = Own { requests: &setup.requests, terms, options: &setup.options, next: 0 };
    pipeline.run(&mut source, |_| false).unwrap();
    assert!(pipeline.is_idle());
    let stored = notes.take();
    for (index, request) in setup.requests.iter().enumerate() {
        let of: Vec<_> = stored.iter().filter(|(finished, _)| finished.request == index as u64).collect();
        assert_eq!(of.len(), members(index) as usize, "request {index}");
        for (finished, tokens) in of {
            assert_eq!(*tokens, setup.answer(finished), "request {index}");
            let checkpoint = [0, 16, 33][index % 3];
            let cuts = if checkpoint == 0 { 1 } else { request.output_tokens.div_ceil(checkpoint) };
            assert_eq!(finished.segments, cuts, "request {index}");
        }
    }
    let groups = (0..64).filter(|&index| members(index) > 1).count();
    assert_eq!(pipeline.metrics.counters.values().groups_done, groups as u64);
    let counts = pipeline.kv.counts();
    assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
}

#[rstest]
#[case(0)]
#[case(9)]
fn a_request_that_asks_for_too_many_rollouts_or_none_is_refused(#[case] members: u32) {
    let setup = Setup::new(1, Options { slots: 8, group: 8, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    let terms = match members {
        0 => |_: usize, options: &Options| Terms { members: 0, ..Terms::of(options) },
        _ => |_: usize, options: &Options| Terms { members: 9, ..Terms::of(options) },
    };
    let mut source = Own { requests: &setup.requests, terms, options: &setup.options, next: 0 };
    let told = pipeline.run(&mut source, |_| false).unwrap_err().to_string();
    assert!(told.contains(&format!("it asks for {members} rollouts")), "{told}");
}

/// Once a version was published with KEEP behind a closed gate, nothing decodes until it is opened, however long that takes. Rollouts that are
/// aborted meanwhile end; the others go on, and their tokens are those of their versions.
#[rstest]
fn r20_nothing_decodes_behind_a_closed_gate(#[values(1, 4)] group: u32, #[values(1, 2, 3, 4)] seed: u64) {
    let patience = Duration::from_millis(200);
    let options = Options { slots: 32, group, checkpoint: 8, patience, ..Options::default() };
    let setup = Setup { spans: 4, seed, ..Setup::new(40, options) };
    let (mut pipeline, notes) = setup.pipeline();
    let (mut publisher, mut aborts) = (pipeline.publisher(), pipeline.abort_handle());
    let gate = pipeline.gate();
    let mut feed = Feed::new(&setup.requests);
    let (mut published, mut turns, mut closed, mut kept, mut since, mut aborted) =
        (false, 0, false, None, 0, 0);
    pipeline
        .run(&mut feed, |pipeline| {
            turns += 1;
            assert!(turns < TURNS, "stalled with {}", pipeline.occupancy());
            let values = pipeline.metrics.counters.values();
            if !closed && values.tokens_generated > 300 {
                closed = true;
                gate.close();
                publisher.publish(1, salt(1), PolicyMode::Keep).unwrap();
            }
            published |= publisher.answer().is_some();
            if published && kept.is_none() && gate.is_at_rest() {
                kept = Some(values.tokens_generated);
                since = turns;
                // One that decodes, or waits for its turn.
                aborts.abort(pipeline.admitted() - 1).unwrap();
            }
            if let Some((_, answer)) = aborts.answer() {
                let AbortAnswer::Aborted(count) = answer else { panic!("{answer:?}") };
                aborted = count;
            }
            if let Some(tokens) = kept {
                assert_eq!(values.tokens_generated, tokens, "turn {turns}");
                // STOPs, of what was aborted too, were in flight for a while.
                if turns > since + 50 {
                    assert_eq!(pipeline.device.in_flight(), 0, "turn {turns}");
                }
                // Longer than the pipeline's patience, which does not run out at the gate.
                if turns == since + 50 {
                    assert_eq!(values.rollouts_aborted, u64::from(aborted));
                    assert_eq!(notes.lost().len(), aborted as usize, "they end behind the gate");
                    std::thread::sleep(Duration::from_millis(250));
                }
                if turns == since + 4000 {
                    gate.open();
                    (published, kept) = (false, None);
                }
            }
            false
        })
        .unwrap();
    assert_eq!(aborted, group);
    let stored = notes.take();
    assert_eq!(stored.len() as u32, (40 - 1) * group);
    for (finished, tokens) in &stored {
        let spans = notes.spans(finished);
        assert_eq!(*tokens, setup.answer_of(finished, &spans));
    }
    assert!(stored.iter().any(|(finished, _)| finished.spans == 2), "some went on under the second version");
    assert!(pipeline.is_idle());
}

/// Holds back the completions of PREFILLs while `holds` says so.
fn holding_prefills(holds: Arc<AtomicBool>) -> impl doubles::Trick {
    let mut held: Vec<HwCompletion> = vec![];
    Edited(move |out: &mut [HwCompletion], count: usize| {
        let is_prefill = |end: &HwCompletion| matches!(Tag::from_bits(end.user_data), Some(Tag::Prefill(_)));
        let came: Vec<HwCompletion> = out[..count].to_vec();
        let (prefills, mut others): (Vec<_>, Vec<_>) = came.into_iter().partition(is_prefill);
        held.extend(prefills);
        if !holds.load(Ordering::Relaxed) {
            let room = out.len() - others.len();
            others.extend(held.drain(..held.len().min(room)));
        }
        out[..others.len()].copy_from_slice(&others);
        others.len()
    })
}

/// Rollouts that are aborted while the PREFILL for which they wait is in flight end behind the gate once that has completed, and so do those of
/// whose prompt a part is made.
#[rstest]
#[case::whole(0)]
#[case::in_parts(16)]
fn aborted_rollouts_whose_prefill_is_in_flight_end_behind_the_gate(#[case] prefill_tokens: u32) {
    let options = Options { slots: 8, group: 3, ..Options::default() };
    let mut setup = match prefill_tokens {
        0 => Setup::new(2, options),
        tokens => language::setup_of_prompts(&[100, 100], options, tokens),
    };
    // The members wait for their PREFILL.
    setup.less.groups = 0;
    let (mut pipeline, notes) = setup.pipeline();
    let laid = language::lay(&setup.models, &pipeline);
    if let Some(laid) = &laid {
        pipeline.publisher().publish_weights(1, laid.lay(1), PolicyMode::Wait).unwrap();
    }
    let holds = Arc::new(AtomicBool::new(true));
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: holding_prefills(holds.clone()) });
    let (mut aborts, gate) = (pipeline.abort_handle(), pipeline.gate());
    let mut feed = Feed::new(&setup.requests);
    let in_flight = |pipeline: &Pipeline| {
        pipeline.groups.iter().filter(|group| group.prefill == Prefill::Running).count()
    };
    pipeline.run(&mut feed, |pipeline| in_flight(pipeline) == 2).unwrap();
    aborts.abort(0).unwrap();
    aborts.abort(1).unwrap();
    gate.close();
    let after = |limit: u32| {
        let mut turns = 0;
        move |_: &Pipeline| {
            turns += 1;
            turns > limit
        }
    };
    // The gate has looked for whoever was aborted.
    pipeline.run(&mut feed, after(10)).unwrap();
    assert_eq!((in_flight(&pipeline), notes.lost().len()), (2, 0));
    for request in 0..2 {
        assert_eq!(aborts.answer(), Some((request, AbortAnswer::Aborted(3))));
    }
    holds.store(false, Ordering::Relaxed);
    pipeline.run(&mut feed, after(1000)).unwrap();
    assert!(pipeline.is_idle(), "{}", pipeline.occupancy());
    assert_eq!(notes.lost().len(), 6);
    let counts = pipeline.kv_counts();
    assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
}

/// Rollouts that gave their blocks back, and wait for others to go on, end behind the gate when they are aborted.
#[test]
fn aborted_rollouts_that_wait_for_blocks_end_behind_the_gate() {
    let options = Options { slots: 24, checkpoint: 5, ..Options::default() };
    let mut setup = language::swapping_setup(options);
    setup.options.patience = Duration::from_secs(5);
    let (mut pipeline, notes) = setup.pipeline();
    let laid = language::lay(&setup.models, &pipeline).unwrap();
    pipeline.publisher().publish_weights(1, laid.lay(1), PolicyMode::Wait).unwrap();
    let (mut aborts, gate) = (pipeline.abort_handle(), pipeline.gate());
    let mut feed = Feed::new(&setup.requests);
    pipeline.run(&mut feed, Pipeline::has_returning).unwrap();
    gate.close();
    pipeline.run(&mut feed, |_| gate.is_at_rest()).unwrap();
    assert!(pipeline.has_returning());
    for request in 0..pipeline.admitted() {
        aborts.abort(request).unwrap();
    }
    let mut turns = 0;
    pipeline
        .run(&mut Feed::new(&[]), |_| {
            turns += 1;
            aborts.answer();
            turns > 5000
        })
        .unwrap();
    assert!(pipeline.is_idle() && !pipeline.has_returning(), "{}", pipeline.occupancy());
    assert!(!notes.lost().is_empty());
    let counts = pipeline.kv_counts();
    assert_eq!((counts.committed, counts.branches, counts.prefixes), (0, 0, 0), "blocks are kept");
}

/// A window that does not fill is sent once nothing else moves, whether the hot thread spins or sleeps.
#[rstest]
fn a_partial_window_is_sent_when_nothing_moves(#[values(false, true)] sleeps: bool) {
    let setup = Setup::new(11, Options { slots: 16, window: 8, sleeps, ..Options::default() });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Mute });
    pipeline.run(&mut Feed::new(&setup.requests[..8]), |pipeline| pipeline.device.in_flight() == 8).unwrap();
    let mut turns = 0;
    pipeline
        .run(&mut Feed::new(&setup.requests[8..]), |_| {
            turns += 1;
            turns > 10
        })
        .unwrap();
    assert_eq!(pipeline.device.in_flight(), 11, "three wait beside a device that has a window");
}
