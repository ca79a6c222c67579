//! The device with what rests, while engine 1 alone is at work or between descriptors, and the same device with all of it awake: the same
//! bytes in the same cycles. What `rl_runtime_top` leaves out of what moves a part shows here.

mod common;

use std::ops::ControlFlow;

use doorbell_contract::{Counter, HwCompletion};
use doorbell_cosim::{Moment, RtlConfig, RtlPlatform};
use doorbell_host::{Device, Driver};
use doorbell_trace::{Request, Trace};
use doorbell_verify::replay::{ReplayOptions, ReplayPlan, replay};

use common::plan;

/// What can be seen of a run, and the cycles in which a part of the device rested.
type Seen = (Vec<HwCompletion>, u64, Vec<Moment>);

fn run(config: &RtlConfig, plan: &ReplayPlan, awake: bool) -> (Seen, u64) {
    let mut platform = RtlPlatform::new(config).unwrap();
    platform.watch_rests(awake);
    let mut driver = Driver::new(platform, plan.queue_config()).unwrap();
    let replay = replay(plan, &mut driver, &mut |_| ControlFlow::Continue(()));
    assert!(replay.failure.is_none(), "awake {awake}, {config:?}: {:?}", replay.failure);
    let cycles = driver.counters().map_or(0, |counters| counters.get(Counter::Cycles));
    let platform = driver.platform_mut();
    ((replay.completions, cycles, platform.take_moments()), platform.rested())
}

fn seed() -> u64 {
    let seed = std::env::var("DOORBELL_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("DOORBELL_SEED={seed}");
    seed
}

/// Runs `plan` on `calm`, and in two random memories, resting and awake. At least 1 / `share` of the cycles are rested in.
fn hold(calm: &RtlConfig, plan: &ReplayPlan, share: u64) {
    let seed = seed();
    for config in
        [calm.clone(), calm.clone().with_random_memory(seed), calm.clone().with_random_memory(seed + 1)]
    {
        let (resting, rested) = run(&config, plan, false);
        let (awake, never) = run(&config, plan, true);
        assert_eq!(resting, awake, "{config:?}");
        assert_eq!(never, 0);
        assert!(rested > resting.1 / share, "{rested} of {} cycles, {config:?}", resting.1);
    }
}

#[test]
fn a_device_that_rests_is_the_device_that_does_not() {
    // Engine 1 alone is at work for most of the time.
    hold(&RtlConfig { engines: 2, moments: true, ..RtlConfig::default() }, &plan(), 2);
}

#[test]
fn a_device_of_one_engine_that_rests_is_the_device_that_does_not() {
    let request = |k: u32| Request {
        arrival_ms: 0,
        prompt_tokens: 1 + 17 * k % 41,
        output_tokens: 1 + 37 * k % 150,
        prefix: vec![],
    };
    let trace = Trace { source: "test".into(), requests: (0..60).map(request).collect() };
    for (group, checkpoint) in [(1, 0), (3, 32)] {
        let options = ReplayOptions { group, checkpoint, seed: 3, ..Default::default() };
        let plan = ReplayPlan::new(&trace, options).unwrap();
        hold(&RtlConfig { moments: true, ..RtlConfig::default() }, &plan, 10);
    }
}
