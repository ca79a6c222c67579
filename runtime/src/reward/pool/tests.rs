//! The hand-over to judges: nothing is lost, nothing waits, and a judge that breaks breaks alone.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use doorbell_contract::{HwCompletion, HwDesc, Status};
use doorbell_engine::RewardModel;
use doorbell_host::SharedMemory;
use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_verify::ModelPlatform;
use rstest::rstest;

use super::*;
use crate::reward::{DigestJudge, ONE, SlowJudge, Tickets};

const BUS: u64 = 1 << 32;
/// Long enough for any machine: it is waited for by tests that fail.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(judges: usize, capacity: usize) -> PoolOptions {
    PoolOptions { judges, capacity, longest: 4, check_digest: true }
}

/// A region whose tokens are their own word's number.
fn region() -> (SharedMemory, TokenRegion) {
    let memory = SharedMemory::allocate(4096, BUS).unwrap();
    for word in 0..1024 {
        memory.bus_write_u32(BUS + 4 * word, word as u32).unwrap();
    }
    (memory.clone(), TokenRegion::new(memory, 0, 4096).unwrap())
}

/// The answer of `tokens` tokens from word `slot` on, at its end.
fn request(tickets: &mut Tickets, slot: u32, tokens: u32) -> Request {
    let rollout = RolloutId::new(slot, 0);
    let answer: Vec<u32> = (slot..slot + tokens).collect();
    Request {
        ticket: tickets.issue(rollout),
        rollout,
        request: slot.into(),
        shard: 0,
        offset: 4 * u64::from(slot),
        answer_tokens: tokens,
        segment_start: 0,
        prompt_tokens: 7,
        moment: Moment::End { eos: false },
        digest: Digest::of(&answer).value(),
    }
}

/// Collects until nothing is pending.
fn collect_all(pool: &mut Pool) -> Vec<Judged> {
    let mut all = vec![];
    let none = Judged {
        ticket: Tickets::new(1).issue(RolloutId::new(0, 0)),
        rollout: RolloutId::new(0, 0),
        judge: 0,
        verdict: Err(JudgeFailure::Tokens),
    };
    let mut out = [none; 8];
    let begun = Instant::now();
    while pool.pending() > 0 {
        assert!(begun.elapsed() < PATIENCE, "{} requests have no verdict", pool.pending());
        let taken = pool.collect(&mut out);
        all.extend_from_slice(&out[..taken]);
        thread::yield_now();
    }
    all
}

/// Scores by a function.
struct By<F>(F);

impl<F: FnMut(&Answer<'_>) -> u32 + Send> Judge for By<F> {
    fn score(&mut self, answer: &Answer<'_>) -> Verdict {
        Verdict { score: (self.0)(answer), proceed: true }
    }
}

/// Waits at a gate with each answer: says that it is there, and goes on when the test says so.
struct Gated {
    arrived: Sender<RolloutId>,
    gate: Receiver<()>,
}

impl Judge for Gated {
    fn score(&mut self, answer: &Answer<'_>) -> Verdict {
        self.arrived.send(answer.rollout).unwrap();
        // A test that has failed opens the gate by its end.
        let _ = self.gate.recv();
        Verdict { score: answer.tokens.iter().sum(), proceed: true }
    }
}

fn gated(capacity: usize) -> (Pool, Receiver<RolloutId>, Sender<()>) {
    let (arrived, arrivals) = channel();
    let (opener, gate) = channel();
    let mut judge = Some(Gated { arrived, gate });
    let pool = Pool::start(options(1, capacity), &[region().1], |_| judge.take().unwrap()).unwrap();
    (pool, arrivals, opener)
}

#[test]
fn no_judges_are_no_pool() {
    let error = Pool::start(options(0, 4), &[], |_| DigestJudge { threshold: 0 }).unwrap_err();
    assert_eq!(error.to_string(), "a pool needs at least 1 judge");
    let error = Pool::start(options(2, 3), &[], |_| DigestJudge { threshold: 0 }).unwrap_err();
    assert!(matches!(error, PoolError::Ring(_)), "{error}");
}

#[rstest]
fn every_request_has_exactly_one_verdict(#[values(1, 2, 5)] judges: usize, #[values(2, 64)] capacity: usize) {
    let mut tickets = Tickets::new(256);
    let mut pool = Pool::start(options(judges, capacity), &[region().1], |_| {
        By(|answer: &Answer<'_>| answer.tokens.iter().sum::<u32>() + answer.prompt_tokens)
    })
    .unwrap();
    let (mut expected, mut judged) = (HashMap::new(), vec![]);
    let mut refused = 0;
    for k in 0..20_000u32 {
        let mut next = request(&mut tickets, k % 256, k % 9);
        expected.insert(next.ticket, (next.rollout, (k % 256..k % 256 + k % 9).sum::<u32>() + 7));
        while let Err(back) = pool.post(next) {
            let PostError::Full(back) = back else { panic!("judges are left") };
            assert_eq!(back, next, "handed back as it was");
            (next, refused) = (back, refused + 1);
            judged.extend(collect_all(&mut pool));
        }
    }
    judged.extend(collect_all(&mut pool));
    assert_eq!(judged.len(), 20_000);
    for judged in judged {
        let (rollout, score) = expected.remove(&judged.ticket).expect("one verdict for each ticket");
        assert_eq!(judged.rollout, rollout);
        assert_eq!(judged.verdict, Ok(Verdict { score, proceed: true }));
    }
    assert!(refused > 0);
    let loads = pool.loads().get();
    assert!(loads.iter().all(|load| load.judged > 0), "all judges have work: {loads:?}");
    assert_eq!(loads.iter().map(|load| load.judged).sum::<u64>(), 20_000);
    assert!(loads.iter().all(|load| (0.0..=1.0).contains(&load.share())), "{loads:?}");
    let end = pool.shutdown(PATIENCE);
    assert_eq!((end.faults, end.uncollected), (vec![], 0));
}

/// What users of such runtimes complain of: a slow reward model blocks decode and abort. A judge stands at a gate; the
/// device decodes, a rollout is aborted, its slot is used again, and only then does the judge go on.
#[test]
fn a_slow_judge_blocks_neither_decode_nor_abort() {
    let mut device = Driver::new(ModelPlatform::new(), QueueConfig::default()).unwrap();
    let decode = |device: &mut Driver<ModelPlatform>, id: u32| {
        let desc = HwDesc { checkpoint: 10, ..HwDesc::decode(id, 0, 100) };
        assert_eq!(device.submit(&[desc]).unwrap(), 1);
        let mut out = [HwCompletion::default()];
        while device.poll(&mut out).unwrap() == 0 {}
        assert_eq!(out[0].status, Status::RewardNeeded as u8);
        out[0]
    };
    let first = decode(&mut device, 1);
    let regions = device.token_regions();
    let (arrived, arrivals) = channel();
    let (open, gate) = channel();
    let mut judge = Some(Gated { arrived, gate });
    let mut pool = Pool::start(options(1, 4), &regions, |_| judge.take().unwrap()).unwrap();
    let mut tickets = Tickets::new(4);
    let of = |tickets: &mut Tickets, rollout: RolloutId, completion: &HwCompletion| Request {
        ticket: tickets.issue(rollout),
        rollout,
        request: 0,
        shard: 0,
        offset: 0,
        answer_tokens: 10,
        segment_start: 0,
        prompt_tokens: 0,
        moment: Moment::Checkpoint,
        digest: completion.result,
    };

    let aborted = RolloutId::new(0, 0);
    pool.post(of(&mut tickets, aborted, &first)).unwrap();
    assert_eq!(arrivals.recv().unwrap(), aborted, "the judge is at it, and stays there");

    // Decode goes on, also into the area that the judge has read.
    assert!(tickets.cancel(aborted), "an abort waits for nobody");
    let successor = RolloutId::new(0, 1);
    let second = decode(&mut device, 2);
    pool.post(of(&mut tickets, successor, &second)).unwrap();
    assert_eq!(pool.pending(), 2);

    open.send(()).unwrap();
    open.send(()).unwrap();
    let judged = collect_all(&mut pool);
    assert_eq!(judged.len(), 2);
    assert!(!tickets.redeem(judged[0].rollout, judged[0].ticket), "late: dropped");
    assert_eq!(judged[1].rollout, successor);
    let mut answer = [0; 10];
    device.tokens(0, &mut answer).unwrap();
    assert_eq!(judged[1].verdict, Ok(Verdict { score: answer.iter().sum(), proceed: true }));
    assert!(tickets.redeem(judged[1].rollout, judged[1].ticket));
    assert_eq!(tickets.late(), 1);
}

/// Flaw 12 of a reference: pairs vanish when answers come out of order. Here the first request is answered last.
#[test]
fn the_judge_that_has_least_to_do_is_asked_and_order_does_not_matter() {
    // Judge 0 stands at its gate; the other one has all the rest.
    let (arrived, arrivals) = channel();
    let (open, gate) = channel::<()>();
    let mut gate = Some(gate);
    let mut tickets = Tickets::new(64);
    let mut pool = Pool::start(options(2, 64), &[region().1], |judge| {
        let (arrived, gate) = (arrived.clone(), (judge == 0).then(|| gate.take().unwrap()));
        By(move |_: &Answer<'_>| {
            if let Some(gate) = &gate {
                arrived.send(()).unwrap();
                let _ = gate.recv();
            }
            1
        })
    })
    .unwrap();
    let first = request(&mut tickets, 0, 1);
    pool.post(first).unwrap();
    arrivals.recv().unwrap();
    let mut judged = vec![];
    for slot in 1..64 {
        pool.post(request(&mut tickets, slot, 1)).unwrap();
        let begun = Instant::now();
        while pool.pending() > 1 {
            assert!(begun.elapsed() < PATIENCE, "it was given to the judge that stands at the gate");
            let mut out = [Judged {
                ticket: first.ticket,
                rollout: first.rollout,
                judge: 9,
                verdict: Err(JudgeFailure::Tokens),
            }];
            if pool.collect(&mut out) > 0 {
                assert!(tickets.redeem(out[0].rollout, out[0].ticket));
                judged.push(out[0].judge);
            }
        }
    }
    assert_eq!(judged, vec![1; 63]);
    let loads = pool.loads().get();
    let (stuck, other) = (loads[0], loads[1]);
    assert_eq!((stuck.judged, other.judged), (0, 63));
    // A judge that has been at one answer all the time is busy, though it has told of none.
    assert!(stuck.busy > other.busy, "{stuck:?} {other:?}");
    open.send(()).unwrap();
    let [last] = collect_all(&mut pool)[..] else { panic!("one is left") };
    assert_eq!(last.ticket, first.ticket);
    assert!(tickets.redeem(last.rollout, last.ticket));
    assert_eq!(tickets.late(), 0);
}

#[test]
fn a_judge_that_panics_is_named_and_its_requests_fail() {
    let (arrived, arrivals) = channel();
    let (open, gate) = channel::<()>();
    let mut gate = Some(gate);
    let mut pool = Pool::start(options(2, 8), &[region().1], |judge| {
        let (arrived, gate) = (arrived.clone(), (judge == 1).then(|| gate.take().unwrap()));
        By(move |answer: &Answer<'_>| {
            if let Some(gate) = &gate {
                arrived.send(()).unwrap();
                let _ = gate.recv();
                panic!("no model for request {}", answer.request);
            }
            1
        })
    })
    .unwrap();
    let mut tickets = Tickets::new(64);
    let posted: Vec<Request> = (0..8).map(|slot| request(&mut tickets, slot, 1)).collect();
    for request in &posted {
        pool.post(*request).unwrap();
    }
    arrivals.recv().unwrap();
    assert_eq!(pool.judges_left(), 2);
    open.send(()).unwrap();
    let judged = collect_all(&mut pool);
    assert_eq!(judged.len(), 8, "a verdict for each, in any case");
    for judged in &judged {
        let failed = judged.judge == 1;
        assert_eq!(judged.verdict.is_err(), failed, "{judged:?}");
    }
    assert!(judged.iter().any(|judged| judged.verdict == Err(JudgeFailure::Panicked)));
    assert_eq!(pool.judges_left(), 1);
    // The other one goes on, and alone.
    for slot in 0..8 {
        pool.post(request(&mut tickets, slot, 1)).unwrap();
    }
    assert!(collect_all(&mut pool).iter().all(|judged| judged.judge == 0 && judged.verdict.is_ok()));
    let end = pool.shutdown(PATIENCE);
    let [fault] = &end.faults[..] else { panic!("{end:?}") };
    assert!(fault.to_string().starts_with("judge 1 panicked: no model for request "), "{fault}");
}

#[test]
fn when_no_judge_is_left_posting_says_so() {
    struct Bomb;

    impl Judge for Bomb {
        fn score(&mut self, _: &Answer<'_>) -> Verdict {
            panic!("at the first answer")
        }
    }

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("and once more when it is dropped");
        }
    }

    let mut pool = Pool::start(options(1, 4), &[region().1], |_| Bomb).unwrap();
    let mut tickets = Tickets::new(4);
    pool.post(request(&mut tickets, 0, 1)).unwrap();
    assert_eq!(collect_all(&mut pool)[0].verdict, Err(JudgeFailure::Panicked));
    let refused = request(&mut tickets, 1, 1);
    assert_eq!(pool.post(refused), Err(PostError::NoJudges(refused)));
    let end = pool.shutdown(PATIENCE);
    assert_eq!(end.faults, [JudgeFault::Panicked { judge: 0, message: "at the first answer".into() }]);
}

#[rstest]
#[case::no_such_region(Request { shard: 1, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::beyond(Request { offset: 4092, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::endless(Request { answer_tokens: u32::MAX, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::segment(Request { segment_start: 3, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::digest(Request { digest: 0, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Digest)]
fn what_is_not_the_devices_answer_is_not_judged(#[case] bad: Request, #[case] failure: JudgeFailure) {
    let mut pool =
        Pool::start(options(1, 4), &[region().1], |_| By(|_: &Answer<'_>| panic!("it was judged"))).unwrap();
    pool.post(bad).unwrap();
    assert_eq!(collect_all(&mut pool)[0].verdict, Err(failure));
    assert_eq!(pool.judges_left(), 1);
}

#[test]
fn shutdown_ends_though_a_judge_never_does() {
    let (mut pool, arrivals, open) = gated(4);
    let mut tickets = Tickets::new(4);
    for slot in 0..3 {
        pool.post(request(&mut tickets, slot, 1)).unwrap();
    }
    arrivals.recv().unwrap();
    let end = pool.shutdown(Duration::from_millis(1));
    assert_eq!(end.faults, [JudgeFault::Stuck { judge: 0, patience: Duration::from_millis(1) }]);
    assert_eq!(end.uncollected, 3);
    assert!(end.loads[0].busy > Duration::ZERO);
    drop(open);
    assert!(arrivals.recv().is_err(), "it ends behind its answer: the others are not judged");
}

#[test]
fn a_dropped_pool_ends_its_threads() {
    let (pool, arrivals, open) = gated(4);
    drop(pool);
    // The judge goes away, and with it the sender.
    assert!(arrivals.recv().is_err());
    drop(open);
}

#[test]
fn a_slow_judge_says_what_the_quick_one_says() {
    let answer = Answer {
        rollout: RolloutId::new(0, 0),
        request: 0,
        prompt_tokens: 0,
        tokens: &[1, 2, 3],
        segment: 1..3,
        moment: Moment::Checkpoint,
        digest: 0,
    };
    assert_eq!(answer.segment(), [2, 3]);
    let mut quick = DigestJudge { threshold: ONE / 2 };
    let mut slow = SlowJudge { judge: quick, delay: Duration::from_micros(1) };
    assert_eq!(slow.score(&answer), quick.score(&answer));
}

/// Flaw 1 of a reference: what a continuation needs is lost at a checkpoint. The host cuts rollouts at checkpoints and asks
/// the judge; a RESIDENT device does the same alone. Both end each rollout at the same token with the same score.
#[rstest]
fn the_digest_judge_decides_as_a_resident_device(#[values(0, 20_000, 40_000, 65_536)] threshold: u32) {
    let config = QueueConfig { reward_threshold: threshold, eos_threshold: 200, ..QueueConfig::default() };
    let mut resident = Driver::new(ModelPlatform::new(), config.clone()).unwrap();
    let mut cut = Driver::new(ModelPlatform::new(), config).unwrap();
    let run = |device: &mut Driver<ModelPlatform>, desc: HwDesc| {
        assert_eq!(device.submit(&[desc]).unwrap(), 1);
        let mut out = [HwCompletion::default()];
        while device.poll(&mut out).unwrap() == 0 {}
        out[0]
    };
    let mut pool = Pool::start(options(2, 4), &cut.token_regions(), |_| DigestJudge { threshold }).unwrap();
    let mut tickets = Tickets::new(1);
    let mut ends = HashMap::new();
    for id in 0..60 {
        use doorbell_contract::{CompletionFlags, DescFlags};
        let whole = HwDesc { checkpoint: 16, ..HwDesc::decode(id, 30, 100) };
        let whole = HwDesc { flags: DescFlags::EOS_STOPS.bits(), ..whole };
        let flags = (DescFlags::RESIDENT | DescFlags::EOS_STOPS).bits();
        let expected = run(&mut resident, HwDesc { flags, ..whole });
        let rollout = RolloutId::new(0, id);
        let mut produced = 0;
        let verdict = loop {
            let part = HwDesc {
                seq_len: 30 + produced,
                max_tokens: 100 - produced,
                delta_offset: 4 * u64::from(produced),
                ..whole
            };
            let completion = run(&mut cut, part);
            let segment_start = produced;
            produced = completion.final_seq_len - 30;
            let checkpoint = completion.status == Status::RewardNeeded as u8;
            let eos = CompletionFlags::from_bits_retain(completion.flags).contains(CompletionFlags::EOS);
            pool.post(Request {
                ticket: tickets.issue(rollout),
                rollout,
                request: 0,
                shard: 0,
                offset: 0,
                answer_tokens: produced,
                segment_start,
                prompt_tokens: 30,
                moment: if checkpoint { Moment::Checkpoint } else { Moment::End { eos } },
                digest: completion.result,
            })
            .unwrap();
            let judged = collect_all(&mut pool)[0];
            assert!(tickets.redeem(judged.rollout, judged.ticket));
            let verdict = judged.verdict.unwrap();
            if !checkpoint || !verdict.proceed {
                break (verdict.score, checkpoint);
            }
        };
        let rejected = CompletionFlags::from_bits_retain(expected.flags).contains(CompletionFlags::REJECTED);
        assert_eq!(
            (verdict, 30 + produced),
            ((RewardModel::Digest.score(Digest::from(expected.result)), rejected), expected.final_seq_len),
            "rollout {id}"
        );
        *ends.entry(rejected).or_insert(0) += 1;
    }
    if threshold == 20_000 || threshold == 40_000 {
        assert_eq!(ends.len(), 2, "some end by their score and some do not: {ends:?}");
    }
}
