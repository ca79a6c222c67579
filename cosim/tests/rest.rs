//! The device with what rests while engine 1 alone is at work, and the same device with all of it awake: the same bytes in the same cycles.
//! What `moves` of `rl_runtime_top` leaves out shows here.

mod common;

use std::ops::ControlFlow;

use doorbell_contract::{Counter, HwCompletion};
use doorbell_cosim::{Moment, RtlConfig, RtlPlatform};
use doorbell_host::{Device, Driver};
use doorbell_verify::replay::replay;

use common::plan;

/// What can be seen of a run, and the cycles in which a part of the device rested.
type Seen = (Vec<HwCompletion>, u64, Vec<Moment>);

fn run(config: &RtlConfig, awake: bool) -> (Seen, u64) {
    let plan = plan();
    let mut platform = RtlPlatform::new(config).unwrap();
    platform.watch_rests(awake);
    let mut driver = Driver::new(platform, plan.queue_config()).unwrap();
    let replay = replay(&plan, &mut driver, &mut |_| ControlFlow::Continue(()));
    assert!(replay.failure.is_none(), "awake {awake}, {config:?}: {:?}", replay.failure);
    let cycles = driver.counters().map_or(0, |counters| counters.get(Counter::Cycles));
    let platform = driver.platform_mut();
    ((replay.completions, cycles, platform.take_moments()), platform.rested())
}

#[test]
fn a_device_that_rests_is_the_device_that_does_not() {
    let seed = std::env::var("DOORBELL_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    println!("DOORBELL_SEED={seed}");
    let calm = RtlConfig { engines: 2, moments: true, ..RtlConfig::default() };
    for config in [calm.clone(), calm.clone().with_random_memory(seed), calm.with_random_memory(seed + 1)] {
        let (resting, rested) = run(&config, false);
        let (awake, never) = run(&config, true);
        assert_eq!(resting, awake, "{config:?}");
        assert_eq!(never, 0);
        // Engine 1 alone is at work for most of the time.
        assert!(rested > resting.1 / 2, "{rested} of {} cycles, {config:?}", resting.1);
    }
}
