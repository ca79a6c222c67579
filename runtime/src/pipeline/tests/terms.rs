//! Requests that ask for something of their own, and rollouts that wait at the gate.

use doorbell_trace::Request;

use super::*;

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
