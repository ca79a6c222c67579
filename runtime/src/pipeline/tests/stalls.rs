//! R15: a run in which nothing moves ends with the root, and with what waits behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::pipeline::{Held, Stall};
use crate::reward::{Answer, Judge, JudgeError, PoolOptions};
use doorbell_host::DeviceError;
use doorbell_verify::model::{Mutation, STEP_TOKENS};
use doubles::Trick;

fn setup() -> Setup {
    let mut setup = Setup::new(8, Options { slots: 8, checkpoint: 16, ..Options::default() });
    setup.options.patience = Duration::from_millis(20);
    setup
}

/// What holds the run, the root first.
fn ends(pipeline: &mut Pipeline, setup: &Setup) -> Vec<Stall> {
    match pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap_err() {
        RuntimeError::Stalled { why, .. } => why,
        other => panic!("{other}"),
    }
}

/// A judge that is at its first answer until it is let go.
struct SlowJudge(Arc<AtomicBool>);

impl Judge for SlowJudge {
    fn score(&mut self, _: &Answer<'_>) -> Result<Verdict, JudgeError> {
        while !self.0.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Verdict { score: 0, proceed: false })
    }
}

#[test]
fn r15_a_stuck_judge_is_the_root_and_a_version_in_use_waits_behind_it() {
    let setup = setup();
    let go = Arc::new(AtomicBool::new(false));
    let let_go = go.clone();
    let options = PoolOptions { judges: 1, deadline: None, ..PoolOptions::default() };
    let (mut pipeline, _) = setup.threaded(options, move |_| SlowJudge(let_go.clone()));
    let mut publisher = pipeline.publisher();
    // The second takes the slot of version 0, which the rollouts name.
    publisher.publish(1, 5, PolicyMode::Wait).unwrap();
    publisher.publish(2, 6, PolicyMode::Wait).unwrap();
    let mut feed = Feed::new(&setup.requests);
    pipeline.admit_from(&mut feed).unwrap();
    let why = ends(&mut pipeline, &setup);
    go.store(true, Ordering::Relaxed);
    let Stall::Judge(judging) = &why[0] else { panic!("{why:?}") };
    assert!(judging.judge == 0 && judging.since.is_some() && judging.answers == 8, "{judging:?}");
    assert!(matches!(why[1], Stall::Version { version: 2, used: 0, rollouts: 1.., .. }), "{why:?}");
}

#[test]
fn r15_a_writer_that_stores_nothing_is_the_root() {
    let mut setup = Setup::new(16, Options { slots: 8, checkpoint: 16, ..Options::default() });
    setup.options.patience = Duration::from_millis(20);
    let (mut pipeline, _) = setup.pipeline();
    pipeline.trajectories = Box::new(doubles::Stuck);
    let why = ends(&mut pipeline, &setup);
    assert!(matches!(why[0], Stall::Writer { rollouts: 8 }), "{why:?}");
    assert_eq!(why.last(), Some(&Stall::Admission(Held::Slots)));
}

#[test]
fn r15_a_device_that_stops_is_the_root_and_groups_wait_behind_it() {
    let mut setup = setup();
    setup.options.group = 4;
    let hangs = ModelPlatform::new().with_mutation(Mutation::Hang { after: 5 });
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device =
        Box::new(Driver::new(hangs, QueueConfig { patience: u32::MAX, ..setup.config() }).unwrap());
    let why = ends(&mut pipeline, &setup);
    assert!(matches!(&why[0], Stall::Device { queue: 0, .. }), "{why:?}");
    assert!(why.iter().any(|stall| matches!(stall, Stall::Groups { open: 1.. })), "{why:?}");
}

/// A device that is looked at every 20 ms only, and does a slice of its work each time.
struct Slow(Option<Instant>);

impl Trick for Slow {
    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        if self.0.is_some_and(|last| last.elapsed() < Duration::from_millis(20)) {
            return Ok(0);
        }
        self.0 = Some(Instant::now());
        if poll { inner.poll(out) } else { inner.collect(out) }
    }
}

/// One DECODE may take longer than the patience of the run, as long as it gives tokens.
#[test]
fn r15_a_device_that_gives_tokens_is_waited_for() {
    let mut setup = Setup::new(1, Options { slots: 1, ..Options::default() });
    // What the model makes in twelve looks at it.
    let tokens = 12 * 16 * STEP_TOKENS;
    setup.requests[0].output_tokens = tokens;
    setup.options.max_output_tokens = tokens;
    setup.blocks = 1 << 16;
    setup.options.patience = Duration::from_millis(60);
    let (mut pipeline, _) = setup.pipeline();
    pipeline.device = Box::new(Tricky { inner: pipeline.device, trick: Slow(None) });
    let began = Instant::now();
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    assert!(began.elapsed() > 2 * setup.options.patience, "nothing was slow");
}

/// A deadline of judges beyond the patience of the run ends the judge, and not the run.
#[test]
fn r15_judges_have_their_deadline_beside_the_patience() {
    let mut setup = setup();
    setup.options.judge_retries = 0;
    setup.requests.truncate(1);
    let go = Arc::new(AtomicBool::new(false));
    let let_go = go.clone();
    let deadline = Some(Duration::from_millis(200));
    let options = PoolOptions { judges: 1, deadline, ..PoolOptions::default() };
    let (mut pipeline, _) = setup.threaded(options, move |_| SlowJudge(let_go.clone()));
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    go.store(true, Ordering::Relaxed);
    assert_eq!(pipeline.metrics.counters.values().rollouts_failed, 1);
}

/// A source that offers a request once, and then has nothing.
struct Withdraws<'a>(Feed<'a>, bool);

impl Source for Withdraws<'_> {
    fn next(&mut self) -> Next<'_> {
        if std::mem::replace(&mut self.1, true) { Next::Nothing } else { self.0.next() }
    }

    fn admitted(&mut self, number: u64) {
        self.0.admitted(number);
    }
}

/// What a request waited for that was withdrawn is no reason to end the run.
#[test]
fn r15_a_request_that_was_withdrawn_holds_nothing() {
    let mut setup = language::setup_of_prompts(&[1], Options { slots: 2, ..Options::default() }, 0);
    setup.options.patience = Duration::from_millis(30);
    let (mut pipeline, _) = setup.pipeline();
    let until = Instant::now() + Duration::from_millis(200);
    let mut source = Withdraws(Feed::new(&setup.requests), false);
    pipeline.run(&mut source, |_| Instant::now() > until).unwrap();
}
