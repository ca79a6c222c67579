//! R15: a run in which nothing moves ends with the root, and with what waits behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::pipeline::{Held, Stall};
use crate::reward::{Answer, Judge, JudgeError, PoolOptions};
use doorbell_verify::model::Mutation;

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
struct Slow(Arc<AtomicBool>);

impl Judge for Slow {
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
    let (mut pipeline, _) = setup.threaded(options, move |_| Slow(let_go.clone()));
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
