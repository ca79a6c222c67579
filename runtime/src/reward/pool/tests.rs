//! The hand-over to judges: nothing is lost, nothing waits, and a judge that breaks breaks alone.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, channel};

use doorbell_engine::Digest;
use doorbell_host::{SharedMemory, TokenRegion};
use rstest::rstest;

use super::*;
use crate::reward::{Answer, DigestJudge, JudgeError, Moment, ONE, Prompts, SlowJudge, Tickets, Verdict};
use crate::rollout::RolloutId;

const BUS: u64 = 1 << 32;
/// Long enough for any machine: it is waited for by tests that fail.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(judges: usize, capacity: usize) -> PoolOptions {
    PoolOptions { judges, capacity, longest: 4, check_digest: true, deadline: None, ..PoolOptions::default() }
}

/// With a deadline, and few replacements.
fn hurried(judges: usize, replacements: usize) -> PoolOptions {
    PoolOptions { deadline: Some(Duration::from_millis(20)), replacements, ..options(judges, 64) }
}

/// What is read of these regions, by judges who know 4 prompts of 3 ids each.
fn memory(tokens: Vec<TokenRegion>) -> AnswerMemory {
    let prompts = Prompts::new(4, 3);
    (0..4).for_each(|group| prompts.write(group, &[10 * group, 10 * group + 1, 10 * group + 2]));
    AnswerMemory { tokens, prompts }
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
        member: slot % 3,
        device_rollout: slot,
        prefix_id: u32::MAX,
        group: slot % 4,
        prompt_ids: slot % 4,
        avoid: None,
        together: 1,
        shard: 0,
        offset: 4 * u64::from(slot),
        answer_tokens: tokens,
        segment_start: 0,
        digest_start: 0,
        scored: false,
        prompt_tokens: 7,
        moment: Moment::End { eos: false },
        digest: Digest::of(&answer).value(),
    }
}

fn sum(tokens: &[u32]) -> i32 {
    tokens.iter().sum::<u32>() as i32
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
        let taken = pool.collect(&mut out).unwrap();
        all.extend_from_slice(&out[..taken]);
        thread::yield_now();
    }
    all
}

/// Scores by a function.
struct By<F>(F);

impl<F: FnMut(&Answer<'_>) -> i32 + Send> Judge for By<F> {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        Ok(Verdict { score: (self.0)(answer), proceed: true })
    }
}

/// Waits at a gate with each answer: says that it is there, and goes on when the test says so.
struct Gated {
    arrived: Sender<RolloutId>,
    gate: Receiver<()>,
}

impl Judge for Gated {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        self.arrived.send(answer.rollout).unwrap();
        // A test that has failed opens the gate by its end.
        let _ = self.gate.recv();
        Ok(Verdict { score: sum(answer.tokens), proceed: true })
    }
}

fn gated(capacity: usize) -> (Pool, Receiver<RolloutId>, Sender<()>) {
    let (arrived, arrivals) = channel();
    let (opener, gate) = channel();
    let mut judge = Some(Gated { arrived, gate });
    let pool =
        Pool::start(options(1, capacity), &memory(vec![region().1]), move |_| judge.take().unwrap()).unwrap();
    (pool, arrivals, opener)
}

#[test]
fn no_judges_are_no_pool() {
    let error = Pool::start(options(0, 4), &memory(vec![]), |_| DigestJudge { threshold: 0 }).unwrap_err();
    assert_eq!(error.to_string(), "a pool needs at least 1 judge");
    for capacity in [0, usize::MAX] {
        let of = options(2, capacity);
        let error = Pool::start(of, &memory(vec![]), |_| DigestJudge { threshold: 0 }).unwrap_err();
        assert!(matches!(error, PoolError::Capacity(found) if found == capacity), "{error}");
    }
    let hurry = PoolOptions { deadline: Some(Duration::ZERO), ..options(1, 4) };
    let error = Pool::start(hurry, &memory(vec![]), |_| DigestJudge { threshold: 0 }).unwrap_err();
    assert!(error.to_string().contains("deadline is 0"), "{error}");
}

#[rstest]
fn every_request_has_exactly_one_verdict(#[values(1, 2, 5)] judges: usize, #[values(2, 64)] capacity: usize) {
    let mut tickets = Tickets::new(256);
    let mut pool = Pool::start(options(judges, capacity), &memory(vec![region().1]), |_| {
        By(|answer: &Answer<'_>| sum(answer.tokens) + answer.prompt_tokens as i32)
    })
    .unwrap();
    let (mut expected, mut judged) = (HashMap::new(), vec![]);
    let mut refused = 0;
    for k in 0..20_000u32 {
        let mut next = request(&mut tickets, k % 256, k % 9);
        expected.insert(next.ticket, (next.rollout, (k % 256..k % 256 + k % 9).sum::<u32>() as i32 + 7));
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
    let end = Box::new(pool).shutdown(PATIENCE);
    assert_eq!((end.faults, end.uncollected), (vec![], 0));
}

/// Flaw 12 of a reference: pairs vanish when answers come out of order. Here the first request is answered last.
#[test]
fn the_judge_that_has_least_to_do_is_asked_and_order_does_not_matter() {
    // Judge 0 stands at its gate; the other one has all the rest.
    let (arrived, arrivals) = channel();
    let (open, gate) = channel::<()>();
    let mut gate = Some(gate);
    let mut tickets = Tickets::new(64);
    let mut pool = Pool::start(options(2, 64), &memory(vec![region().1]), move |judge| {
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
            if pool.collect(&mut out).unwrap() > 0 {
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
}

/// A judge that panics fails the one answer that it is at: another one is made, which has all that waits.
#[test]
fn a_judge_that_panics_is_named_and_fails_that_verdict_alone() {
    let mut made = 0;
    let mut pool = Pool::start(options(2, 64), &memory(vec![region().1]), move |_| {
        made += 1;
        let number = made;
        By(move |answer: &Answer<'_>| {
            assert!(answer.request % 10 != 3, "no model for request {}", answer.request);
            number
        })
    })
    .unwrap();
    let mut tickets = Tickets::new(64);
    let posted: Vec<Request> = (0..60).map(|slot| request(&mut tickets, slot, 1)).collect();
    for request in &posted {
        pool.post(*request).unwrap();
    }
    let judged = collect_all(&mut pool);
    assert_eq!(judged.len(), 60, "a verdict for each, in any case");
    for judged in &judged {
        let failed = judged.rollout.slot() % 10 == 3;
        assert_eq!(judged.verdict.is_err(), failed, "{judged:?}");
        assert!(!failed || judged.verdict == Err(JudgeFailure::Panicked));
    }
    // Each panic made a new judge: none goes on that has panicked.
    let scores: HashSet<i32> = judged.iter().filter_map(|judged| Some(judged.verdict.ok()?.score)).collect();
    assert!(scores.len() > 2, "{scores:?}");
    assert_eq!(pool.judges_left(), 2);
    let end = Box::new(pool).shutdown(PATIENCE);
    assert_eq!(end.faults.len(), 6);
    let of_third = JudgeFault::Panicked {
        judge: end.faults.iter().find_map(of_request_3).unwrap(),
        request: 3,
        member: 0,
        message: "no model for request 3".into(),
    };
    assert!(end.faults.contains(&of_third), "{:?}", end.faults);
}

fn of_request_3(fault: &JudgeFault) -> Option<u32> {
    match fault {
        JudgeFault::Panicked { judge, request: 3, .. } => Some(*judge),
        _ => None,
    }
}

/// What failed is given to another judge, as long as there is one.
#[test]
fn a_retry_goes_to_another_judge() {
    let mut pool =
        Pool::start(options(3, 64), &memory(vec![region().1]), |_| By(|_: &Answer<'_>| 1)).unwrap();
    let mut tickets = Tickets::new(64);
    for avoid in (0..3).cycle().take(30) {
        pool.post(Request { avoid: Some(avoid), ..request(&mut tickets, 1, 1) }).unwrap();
        assert_ne!(collect_all(&mut pool)[0].judge, avoid);
    }
    let mut pool =
        Pool::start(options(1, 64), &memory(vec![region().1]), |_| By(|_: &Answer<'_>| 1)).unwrap();
    pool.post(Request { avoid: Some(0), ..request(&mut tickets, 1, 1) }).unwrap();
    assert_eq!(collect_all(&mut pool)[0].judge, 0, "there is no other");
}

#[test]
fn errors_scores_below_zero_and_prompts_come_through() {
    struct Strange;

    impl Judge for Strange {
        fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
            match answer.prompt {
                [] => Err(JudgeError::new("it has no prompt")),
                ids => Ok(Verdict { score: -ONE - sum(ids), proceed: answer.member == 1 }),
            }
        }
    }

    let mut pool = Pool::start(options(1, 64), &memory(vec![region().1]), |_| Strange).unwrap();
    let mut tickets = Tickets::new(64);
    (0..4).for_each(|slot| pool.post(request(&mut tickets, slot, 2)).unwrap());
    let judged: Vec<_> = collect_all(&mut pool).iter().map(|judged| judged.verdict).collect();
    let score = |score, proceed| Ok(Verdict { score, proceed });
    assert_eq!(
        judged,
        [
            Err(JudgeFailure::Error),
            score(-ONE - 10, true),
            score(-ONE - 20 - 21, false),
            score(-ONE - 30 - 31 - 32, false)
        ]
    );
    let faults = Box::new(pool).shutdown(PATIENCE).faults;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].to_string(), "judge 0 has no verdict on request 0, member 0: it has no prompt");
}

/// A judge of batches has what waits at once. What it does not come to fails, and is judged alone when it is tried again.
#[test]
fn batches_are_judged_at_once_and_retries_alone() {
    struct Batches {
        arrived: Sender<usize>,
        gate: Receiver<()>,
    }

    impl Judge for Batches {
        fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
            self.arrived.send(1).unwrap();
            let _ = self.gate.recv();
            Ok(Verdict { score: sum(answer.tokens), proceed: true })
        }

        fn batch(&self) -> usize {
            8
        }

        fn score_batch(&mut self, answers: &[Answer<'_>], verdicts: &mut Vec<Result<Verdict, JudgeError>>) {
            self.arrived.send(answers.len()).unwrap();
            let _ = self.gate.recv();
            for answer in &answers[..answers.len() - 2] {
                verdicts.push(Ok(Verdict { score: sum(answer.tokens), proceed: true }));
            }
            // One too few without a panic, two with it.
            if answers[0].request == 1 {
                panic!("at the last but one");
            }
            verdicts.push(Err(JudgeError::new("not this one")));
        }
    }

    let (arrived, arrivals) = channel();
    let (open, gate) = channel();
    let gate = Arc::new(Mutex::new(Some(gate)));
    let mut spare = None;
    let mut pool = Pool::start(options(1, 64), &memory(vec![region().1]), move |_| {
        let gate = gate.lock().unwrap().take().unwrap_or_else(|| {
            // Behind the panic nobody waits.
            let (sender, gate) = channel();
            spare = Some(sender);
            (0..64).for_each(|_| spare.as_ref().unwrap().send(()).unwrap());
            gate
        });
        Batches { arrived: arrived.clone(), gate }
    })
    .unwrap();
    let mut tickets = Tickets::new(64);
    pool.post(request(&mut tickets, 0, 1)).unwrap();
    assert_eq!(arrivals.recv().unwrap(), 1, "alone, as nothing else waits");
    // Ten wait meanwhile: eight are judged at once, and then three with one that is tried again between them.
    (1..11).for_each(|slot| pool.post(request(&mut tickets, slot, 1)).unwrap());
    pool.post(Request { avoid: Some(0), ..request(&mut tickets, 11, 1) }).unwrap();
    pool.post(request(&mut tickets, 12, 1)).unwrap();
    // The judge may have panicked, and its gate be gone, before the last of these.
    (0..64).for_each(|_| _ = open.send(()));
    let mut verdicts: Vec<_> =
        collect_all(&mut pool).iter().map(|judged| (judged.rollout.slot(), judged.verdict)).collect();
    verdicts.sort_by_key(|(slot, _)| *slot);
    assert_eq!(arrivals.try_iter().collect::<Vec<_>>(), [8, 2, 1, 1]);
    for (slot, verdict) in verdicts {
        let expected = match slot {
            7 | 8 => Err(JudgeFailure::Panicked),
            9 => Err(JudgeFailure::Error),
            10 => Err(JudgeFailure::Missing),
            _ => Ok(Verdict { score: slot as i32, proceed: true }),
        };
        assert_eq!(verdict, expected, "{slot}");
    }
}

/// A judge that hangs holds nobody up: its answer fails at the deadline, what waits for it goes to others, and its verdict
/// counts for nothing when it comes.
#[test]
fn a_judge_that_hangs_is_replaced_and_its_late_verdict_is_dropped() {
    let (arrived, arrivals) = channel();
    let (open, gate) = channel::<()>();
    let mut gate = Some(gate);
    // Longer than a judge that is well may have to wait for its turn on a busy machine.
    let deadline = Duration::from_secs(2);
    let options = PoolOptions { deadline: Some(deadline), ..hurried(2, 4) };
    let mut pool = Pool::start(options, &memory(vec![region().1]), move |judge| {
        let (arrived, gate) = (arrived.clone(), (judge == 0).then(|| gate.take().unwrap()));
        By(move |_: &Answer<'_>| {
            if let Some(gate) = &gate {
                arrived.send(()).unwrap();
                let _ = gate.recv();
            }
            judge as i32
        })
    })
    .unwrap();
    let mut tickets = Tickets::new(64);
    let posted: Vec<Request> = (0..40).map(|slot| request(&mut tickets, slot, 1)).collect();
    for request in &posted {
        pool.post(*request).unwrap();
    }
    arrivals.recv().unwrap();
    let judged = collect_all(&mut pool);
    assert_eq!(judged.len(), 40, "a verdict for each, in any case");
    let failed: Vec<_> = judged.iter().filter(|judged| judged.verdict.is_err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!((failed[0].judge, failed[0].verdict), (0, Err(JudgeFailure::Deadline)));
    assert_eq!(pool.judges_left(), 2);
    // The one in its place has a new number, and judges.
    let mut judges = HashSet::new();
    let begun = Instant::now();
    while !judges.contains(&2) {
        assert!(begun.elapsed() < PATIENCE, "{judges:?}");
        (0..8).for_each(|slot| pool.post(request(&mut tickets, slot, 1)).unwrap());
        judges.extend(collect_all(&mut pool).iter().map(|judged| judged.judge));
    }
    assert!(!judges.contains(&0), "{judges:?}");
    // Late: whoever was left behind says nothing any more.
    drop(open);
    thread::sleep(Duration::from_millis(20));
    let mut out = [failed[0].to_owned(); 8];
    assert_eq!(pool.collect(&mut out).unwrap(), 0);
    let end = Box::new(pool).shutdown(PATIENCE);
    let hung = JudgeFault::Hung { judge: 0, deadline, replaced: true };
    assert_eq!(end.faults, [hung]);
    assert_eq!(end.loads.len(), 3);
}

/// Threads that hang cannot be had back, so there are only so many replacements; then the pool says that nobody is left.
#[test]
fn replacements_are_bounded() {
    let mut pool = Pool::start(hurried(2, 3), &memory(vec![region().1]), |_| {
        By(|_: &Answer<'_>| {
            loop {
                thread::park();
            }
        })
    })
    .unwrap();
    let mut tickets = Tickets::new(64);
    for slot in 0..20 {
        pool.post(request(&mut tickets, slot, 1)).unwrap();
    }
    let judged = collect_all(&mut pool);
    let count = |failure| judged.iter().filter(|judged| judged.verdict == Err(failure)).count();
    assert_eq!(judged.len(), 20);
    // Two judges and three that replaced them each hold one for ever.
    assert_eq!((count(JudgeFailure::Deadline), count(JudgeFailure::Gone)), (5, 15));
    let refused = request(&mut tickets, 1, 1);
    assert_eq!(pool.post(refused), Err(PostError::NoJudges(refused)));
    let begun = Instant::now();
    let end = Box::new(pool).shutdown(PATIENCE);
    assert!(begun.elapsed() < PATIENCE / 2, "it waits for nobody who hangs");
    let replaced = end.faults.iter().map(|fault| matches!(fault, JudgeFault::Hung { replaced: true, .. }));
    assert_eq!(replaced.collect::<Vec<_>>(), [true, true, true, false, false]);
}

#[test]
fn when_no_judge_is_left_posting_says_so() {
    struct Bomb;

    impl Judge for Bomb {
        fn score(&mut self, _: &Answer<'_>) -> Result<Verdict, JudgeError> {
            panic!("at the first answer")
        }
    }

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("and once more when it is dropped");
        }
    }

    let mut bomb = Some(Bomb);
    let mut pool = Pool::start(options(1, 4), &memory(vec![region().1]), move |_| {
        bomb.take().unwrap_or_else(|| panic!("there is no other"))
    })
    .unwrap();
    let mut tickets = Tickets::new(4);
    pool.post(request(&mut tickets, 0, 1)).unwrap();
    assert_eq!(collect_all(&mut pool)[0].verdict, Err(JudgeFailure::Panicked));
    let refused = request(&mut tickets, 1, 1);
    let begun = Instant::now();
    // What was taken before it was known yields a verdict as well.
    while pool.post(refused) != Err(PostError::NoJudges(refused)) {
        assert!(begun.elapsed() < PATIENCE);
        assert_eq!(collect_all(&mut pool)[0].verdict, Err(JudgeFailure::Gone));
    }
    let faults: Vec<String> =
        Box::new(pool).shutdown(PATIENCE).faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "judge 0 panicked at request 0, member 0: at the first answer",
            "judge 0 is gone: making another one panicked: there is no other"
        ]
    );
}

/// What a judge says of its batch is asked once: a judge that panics when it is asked again is never asked.
#[test]
fn a_judge_is_asked_for_its_batch_once() {
    struct Once(AtomicBool);

    impl Judge for Once {
        fn score(&mut self, _: &Answer<'_>) -> Result<Verdict, JudgeError> {
            Ok(Verdict { score: 1, proceed: false })
        }

        fn batch(&self) -> usize {
            assert!(!self.0.swap(true, Ordering::Relaxed), "it has lost its server");
            4
        }
    }

    let mut pool =
        Pool::start(options(1, 64), &memory(vec![region().1]), |_| Once(AtomicBool::new(false))).unwrap();
    let mut tickets = Tickets::new(64);
    (0..20).for_each(|slot| pool.post(request(&mut tickets, slot, 1)).unwrap());
    assert!(collect_all(&mut pool).iter().all(|judged| judged.verdict.is_ok()));
    assert_eq!(Box::new(pool).shutdown(PATIENCE).faults, []);
}

/// Where a judge's thread ends by a panic that is none of its calls', what it was at has failed, and the rest goes to whoever takes its place, or to
/// the others, without a deadline too.
#[rstest]
#[case::replaced(1, 1)]
#[case::others(2, 0)]
fn a_judge_whose_thread_dies_takes_no_answer_with_it(#[case] judges: usize, #[case] replacements: usize) {
    /// What the panic carries panics, when it is dropped.
    struct Carried;

    impl Drop for Carried {
        fn drop(&mut self) {
            panic!("as it is dropped");
        }
    }

    struct Dies(usize);

    impl Judge for Dies {
        fn score(&mut self, _: &Answer<'_>) -> Result<Verdict, JudgeError> {
            if self.0 == 0 {
                std::panic::panic_any(Carried);
            }
            Ok(Verdict { score: 1, proceed: false })
        }
    }

    let options = PoolOptions { replacements, ..options(judges, 64) };
    let mut pool = Pool::start(options, &memory(vec![region().1]), Dies).unwrap();
    let mut tickets = Tickets::new(64);
    (0..20).for_each(|slot| pool.post(request(&mut tickets, slot, 1)).unwrap());
    let judged = collect_all(&mut pool);
    assert_eq!(judged.len(), 20);
    let failed: Vec<_> = judged.iter().filter_map(|judged| judged.verdict.err()).collect();
    assert_eq!(failed, [JudgeFailure::Panicked]);
    let faults = Box::new(pool).shutdown(PATIENCE).faults;
    let died = JudgeFault::Died { judge: 0, message: "as it is dropped".into() };
    assert_eq!(faults[1..], [died], "{faults:?}");
    assert!(matches!(faults[0], JudgeFault::Panicked { judge: 0, .. }), "{faults:?}");
}

#[rstest]
#[case::no_such_region(Request { shard: 1, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::beyond(Request { offset: 4092, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::endless(Request { answer_tokens: u32::MAX, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::segment(Request { segment_start: 3, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::prompt(Request { prompt_ids: 4, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::group(Request { group: 4, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Tokens)]
#[case::digest(Request { digest: 0, ..request(&mut Tickets::new(8), 3, 2) }, JudgeFailure::Digest)]
fn what_is_not_the_devices_answer_is_not_judged(#[case] bad: Request, #[case] failure: JudgeFailure) {
    let mut pool = Pool::start(options(1, 4), &memory(vec![region().1]), |_| {
        By(|_: &Answer<'_>| panic!("it was judged"))
    })
    .unwrap();
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
    let end = Box::new(pool).shutdown(Duration::from_millis(1));
    assert_eq!(end.faults, [JudgeFault::Stuck { judge: 0, patience: Duration::from_millis(1) }]);
    assert_eq!(end.uncollected, 3);
    assert!(end.loads[0].busy > Duration::ZERO);
    drop(open);
    assert!(arrivals.recv().is_err(), "it ends after its answer: the others are not judged");
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
        member: 0,
        prompt_tokens: 0,
        prompt: &[],
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

/// Notes what comes in each call, and who had it.
struct Noted {
    number: usize,
    calls: Sender<(usize, Vec<u32>)>,
    most: usize,
}

impl Judge for Noted {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        Ok(Verdict { score: sum(answer.tokens), proceed: true })
    }

    fn batch(&self) -> usize {
        self.most
    }

    fn score_batch(&mut self, answers: &[Answer<'_>], verdicts: &mut Vec<Result<Verdict, JudgeError>>) {
        let slots = answers.iter().map(|answer| answer.rollout.slot()).collect();
        let _ = self.calls.send((self.number, slots));
        for answer in answers {
            verdicts.push(self.score(answer));
        }
    }
}

/// A group that is posted as one comes to one judge in one call, with nothing else, whatever else waits and however many a
/// judge takes at a time; and back come as many verdicts.
#[rstest]
fn groups_come_whole_to_one_judge(#[values(1, 3)] judges: usize, #[values(1, 64)] most: usize) {
    let (_memory, tokens) = region();
    let (calls, seen) = channel();
    let make = move |number| Noted { number, calls: calls.clone(), most };
    let mut pool = Pool::start(options(judges, 64), &memory(vec![tokens]), make).unwrap();
    let mut tickets = Tickets::new(200);
    let mut expected = HashMap::new();
    for round in 0..20u32 {
        let single = request(&mut tickets, 10 * round, 2);
        expected.insert(single.ticket, 20 * round as i32 + 1);
        pool.post(single).unwrap();
        let group: Vec<Request> = (1..5).map(|place| request(&mut tickets, 10 * round + place, 1)).collect();
        expected.extend(group.iter().map(|request| (request.ticket, request.rollout.slot() as i32)));
        while let Err(error) = pool.post_group(&group) {
            assert_eq!(error, GroupPostError::Full);
            for judged in collect_all(&mut pool) {
                assert_eq!(judged.verdict.unwrap().score, expected.remove(&judged.ticket).unwrap());
            }
        }
    }
    for judged in collect_all(&mut pool) {
        assert_eq!(judged.verdict.unwrap().score, expected.remove(&judged.ticket).unwrap());
    }
    assert!(expected.is_empty());
    let calls: Vec<(usize, Vec<u32>)> = seen.try_iter().collect();
    let mut groups: Vec<&Vec<u32>> = calls
        .iter()
        .map(|(_, slots)| slots)
        .filter(|slots| slots.iter().any(|slot| slot % 10 == 1))
        .collect();
    groups.sort();
    let whole: Vec<Vec<u32>> =
        (0..20).map(|round| (1..5).map(|place| 10 * round + place).collect()).collect();
    assert_eq!(groups, whole.iter().collect::<Vec<_>>());
}

/// A group that waits behind a judge that hangs goes to another one, whole; one that is larger than there is room for never does.
#[test]
fn a_group_behind_a_judge_that_hangs_stays_whole() {
    struct Hangs(Noted, bool);
    impl Judge for Hangs {
        fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
            self.0.score(answer)
        }

        fn score_batch(&mut self, answers: &[Answer<'_>], verdicts: &mut Vec<Result<Verdict, JudgeError>>) {
            if self.1 {
                loop {
                    thread::park();
                }
            }
            self.0.score_batch(answers, verdicts);
        }
    }
    let (_memory, tokens) = region();
    let (calls, seen) = channel();
    let make = move |number| Hangs(Noted { number, calls: calls.clone(), most: 1 }, number == 0);
    let mut pool = Pool::start(hurried(1, 4), &memory(vec![tokens]), make).unwrap();
    let mut tickets = Tickets::new(200);
    let group = |tickets: &mut Tickets, from: u32, count: u32| -> Vec<Request> {
        (from..from + count).map(|slot| request(tickets, slot, 1)).collect()
    };
    pool.post_group(&group(&mut tickets, 10, 3)).unwrap();
    pool.post_group(&group(&mut tickets, 20, 4)).unwrap();
    assert_eq!(pool.post_group(&group(&mut tickets, 100, 65)), Err(GroupPostError::Full));
    let judged = collect_all(&mut pool);
    let (hung, scored): (Vec<Judged>, Vec<Judged>) =
        judged.into_iter().partition(|judged| judged.verdict.is_err());
    assert!(hung.iter().all(|judged| judged.verdict == Err(JudgeFailure::Deadline)));
    assert_eq!((hung.len(), scored.len()), (3, 4));
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [(1, vec![20, 21, 22, 23])]);
}
