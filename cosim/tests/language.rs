//! Engine 1 in RTL: the tests of the golden model, on the verilated device (R25 to R27).

#[path = "../../verify/tests/language/capped.rs"]
mod capped;
#[path = "../../verify/tests/language/extremes.rs"]
mod extremes;
#[path = "../../verify/tests/language/gemma.rs"]
mod gemma;
#[path = "../../verify/tests/language/host.rs"]
#[allow(dead_code, reason = "what plants faults is not here")]
mod host;
#[path = "../../verify/tests/language/memory.rs"]
mod memory;
#[path = "../../verify/tests/language/refusals.rs"]
mod refusals;
#[path = "../../verify/tests/language/rollouts.rs"]
mod rollouts;
#[path = "../../verify/tests/language/versions.rs"]
mod versions;
#[path = "../../verify/tests/language/wire.rs"]
mod wire;

use std::ops::RangeInclusive;

use doorbell_contract::{DescFlags, DeviceFault, PolicyMode, Register, State, Status};
use doorbell_cosim::{FaultyRange, RtlConfig, RtlPlatform, Weather};
use doorbell_host::Device as _;
use doorbell_host::platform::Platform;
use doorbell_lm::micro;
use rstest::rstest;

use host::Host;

/// What is tested.
type Device = RtlPlatform;

/// It, with so many queue pairs and functions, in a memory whose delays and order are drawn.
fn device(queues: u8, functions: u8) -> Device {
    let config = RtlConfig {
        queues: queues.into(),
        functions: functions.into(),
        engines: 2,
        changes: true,
        ..RtlConfig::default()
    };
    let seed = std::env::var("DOORBELL_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    RtlPlatform::new(&config.with_random_memory(seed))
        .expect("DOORBELL_RTL_WORKERS or the feature `variants` has it built")
}

/// Bytes of an image whose damage it does not notice: it does not fold it, so a shorter file is as sound.
const UNSEEN: &[u64] = &[16, 30_000];

/// Whether a step of one descriptor keeps all others waiting.
const ONE_AT_A_TIME: bool = false;

/// Lets time pass, in which it makes about one token of `micro` for each ten ticks.
fn pass(device: &mut Device, ticks: u32) {
    device.run(1000 * u64::from(ticks)).expect("the device goes on");
}

/// Has the memory answer accesses to this range with an error.
fn set_fault(device: &mut Device, range: Option<RangeInclusive<u64>>, is_write: bool, _: u64) {
    // Reads are of whole lines.
    let first = |range: &RangeInclusive<u64>| if is_write { *range.start() } else { range.start() & !63 };
    let faults = range.map(|range| FaultyRange { first: first(&range), last: *range.end(), one_in: 1 });
    let weather = Weather { latency: [0, 20], faults: faults.into_iter().collect(), ..Weather::default() };
    device.set_weather(&weather).expect("its memory changes");
}

/// R24: engine 1 lets go of a queue pair whose data, or whose writes of keys and values, the bus does not answer. The worker is free, what comes
/// late is dropped, and the next life runs.
#[rstest]
fn r24_engine_1_lets_go_of_a_dead_queue_pair(
    #[values(false, true)] reads: bool,
    #[values(400, 3000)] after: u64,
) {
    const TIMEOUT: u32 = 20_000;
    let mut platform = device(1, 1);
    platform.write_register(Register::BusTimeout, TIMEOUT).unwrap();
    let mut host = Host::over(platform);
    let mut sequence = host.sequence(&[1, 2, 3, 4, 5], 100, 1.0);
    host.prefill(&mut sequence);
    host.driver.submit(&[sequence.decode(60)]).unwrap();
    host.driver.platform_mut().run(after).unwrap();
    let withheld =
        Weather { latency: [0, 20], withholds_reads: reads, withholds_writes: !reads, ..Weather::default() };
    host.driver.platform_mut().set_weather(&withheld).unwrap();
    host.driver.platform_mut().run(u64::from(TIMEOUT) + 5_000).unwrap();
    let state = State::from_bits_retain(host.driver.read(Register::State).unwrap());
    assert!(state.contains(State::DEAD | State::ACTIVE | State::FAULT), "{state:?}");
    assert_eq!(host.driver.read(Register::Error).unwrap(), DeviceFault::BUS_TIMEOUT.bits());
    // What its step still asks for is given up as it comes.
    host.driver.platform_mut().run(20_000).unwrap();
    assert_eq!(host.driver.read(Register::WorkerState).unwrap(), 0, "a worker is held");

    host.driver.platform_mut().set_weather(&Weather { latency: [0, 20], ..Weather::default() }).unwrap();
    host.driver.disable().unwrap();
    let state = State::from_bits_retain(host.driver.read(Register::State).unwrap());
    assert!(!state.intersects(State::DEAD | State::ACTIVE), "{state:?}");
    assert_eq!(host.driver.read(Register::Error).unwrap(), DeviceFault::BUS_TIMEOUT.bits());
    host.driver.enable().unwrap();
    host.versions.clear();
    assert_eq!(host.publish(1, &micro(), PolicyMode::Wait).status, Status::Done as u8);
    let mut sequence = host.sequence(&[9, 8, 7], 60, 1.0);
    host.prefill(&mut sequence);
    host.decode(&mut sequence, 20, DescFlags::empty());
    assert_eq!(host.driver.read(Register::Error).unwrap(), 0);
}
