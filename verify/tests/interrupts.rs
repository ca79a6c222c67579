//! Interrupts as a host has them (R14): a driver arms and sleeps, on a device that has a thread of its own, or on one that it
//! gives its time itself.

use std::thread;
use std::time::{Duration, Instant};

use rstest::rstest;

use doorbell_contract::{CompletionFlags, DescFlags, HwCompletion, HwDesc, Register, State};
use doorbell_host::{Device, DeviceError, Division, Driver, Ports, QueueConfig, QueuePort, Sharded};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::Mutation;

type Attended = Driver<QueuePort<ModelPlatform>>;

fn config() -> QueueConfig {
    QueueConfig { sq_depth: 64, cq_depth: 64, token_bytes: 1 << 20, ..Default::default() }
}

fn ports(model: ModelPlatform, queues: u8, config: &QueueConfig) -> Ports<ModelPlatform> {
    let bytes = config.shared_bytes().unwrap();
    let division = Division { queues, functions: queues, bytes, ..Default::default() };
    Ports::divide(model, &division).unwrap().attended().unwrap()
}

fn attended(queues: u8, config: &QueueConfig) -> Vec<Attended> {
    let ports = ports(ModelPlatform::with_queues(queues, queues).unwrap(), queues, config);
    ports.take_all().unwrap().into_iter().map(|port| Driver::new(port, config.clone()).unwrap()).collect()
}

fn group(prefix: u32, tokens: u32) -> Vec<HwDesc> {
    let members = (0..8).map(|member| {
        HwDesc::decode(8 * prefix + member, 0, tokens)
            .with_member(prefix, member as u16)
            .with_delta_offset(u64::from(4 * tokens * member))
    });
    [HwDesc::open_group(prefix, 0, 8)].into_iter().chain(members).collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn take(device: &mut dyn Device) -> Vec<HwCompletion> {
    let mut out = [HwCompletion::default(); 64];
    let taken = device.collect(&mut out).unwrap();
    out[..taken].to_vec()
}

fn sleeps_through(device: &mut dyn Device, prefix: u32, tokens: u32) {
    assert_eq!(device.submit(&group(prefix, tokens)).unwrap(), 9);
    assert!(device.arm().unwrap());
    assert!(device.wait(soon()).unwrap(), "R14: it fires");
    let ends = take(device);
    assert_eq!(ends.len(), 9, "R14: woken once, and all is there");
    assert!(ends[8].has(CompletionFlags::GROUP_DONE));
    assert!(!device.wait(Instant::now()).unwrap(), "nothing is in flight");
}

#[test]
fn r14_a_host_sleeps_through_a_group_and_is_woken_once() {
    let mut driver = attended(1, &config()).remove(0);
    for prefix in 0..50 {
        sleeps_through(&mut driver, prefix, 1 + 500 * (prefix % 3));
    }
}

#[test]
fn r14_a_driver_that_has_the_device_alone_gives_it_its_time() {
    let mut driver = Driver::new(ModelPlatform::new(), config()).unwrap();
    for prefix in 0..50 {
        sleeps_through(&mut driver, prefix, 1 + 500 * (prefix % 3));
    }
}

#[test]
fn r14_hosts_on_threads_of_their_own_are_woken_by_their_own_queue_pairs() {
    let drivers = attended(4, &config());
    thread::scope(|scope| {
        for mut driver in drivers {
            scope.spawn(move || (0..50).for_each(|prefix| sleeps_through(&mut driver, prefix, 200)));
        }
    });
}

#[test]
fn r14_who_sleeps_on_several_queue_pairs_is_woken_by_any() {
    let shards = attended(3, &config()).into_iter().map(|driver| Box::new(driver) as Box<dyn Device>);
    let mut device = Sharded::new("three", shards.collect()).unwrap();
    for rollout in 0..30 {
        let asks = HwDesc::decode(rollout, 0, 100).with_flags(DescFlags::INTERRUPT);
        assert_eq!(device.submit(&[asks]).unwrap(), 1);
        assert!(device.arm().unwrap());
        assert!(device.wait(soon()).unwrap());
        assert_eq!(take(&mut device).len(), 1);
    }
}

/// What does not ask wakes nobody before the deadline, and is no failure of the device.
#[rstest]
#[case::on_a_thread_of_its_own(true)]
#[case::alone(false)]
fn r14_what_does_not_ask_wakes_nobody(#[case] own: bool) {
    let mut device: Box<dyn Device> = if own {
        Box::new(attended(1, &config()).remove(0))
    } else {
        Box::new(Driver::new(ModelPlatform::new(), config()).unwrap())
    };
    device.submit(&[HwDesc::decode(1, 0, 10)]).unwrap();
    assert!(device.arm().unwrap());
    let start = Instant::now();
    let deadline = start + Duration::from_millis(60);
    assert!(!device.wait(deadline).unwrap());
    assert!(Instant::now() >= deadline);
    // Still armed: the next one that asks wakes.
    device.submit(&[HwDesc::nop().with_flags(DescFlags::INTERRUPT)]).unwrap();
    assert!(device.wait(soon()).unwrap());
    assert_eq!(take(&mut *device).len(), 2);
}

/// What was there before the arming wakes at once: nothing is lost between the last look and the sleep.
#[test]
fn r14_what_came_before_the_arming_counts() {
    let mut driver = attended(1, &config()).remove(0);
    driver.submit(&[HwDesc::nop().with_flags(DescFlags::INTERRUPT)]).unwrap();
    while driver.read(Register::State).unwrap() & State::IDLE.bits() == 0 {}
    assert!(driver.arm().unwrap());
    assert!(driver.wait(soon()).unwrap());
}

#[rstest]
#[case::by_number(QueueConfig { coalesce_count: 4, ..config() }, 4)]
#[case::by_time(QueueConfig { coalesce_time: 1_000_000, ..config() }, 5)]
fn r14_completions_are_coalesced(#[case] config: QueueConfig, #[case] least: usize) {
    let mut driver = attended(1, &config).remove(0);
    for round in 0..20 {
        let descs: Vec<HwDesc> = (0..5).map(|k| HwDesc::decode(5 * round + k, 0, 20)).collect();
        assert_eq!(driver.submit(&descs).unwrap(), 5);
        assert!(driver.arm().unwrap());
        assert!(driver.wait(soon()).unwrap());
        let woken_by = take(&mut driver).len();
        assert!(woken_by >= least, "woken by {woken_by}");
        while driver.in_flight() > 0 {
            take(&mut driver);
        }
    }
}

/// Looking works as ever while the device has a thread of its own.
#[test]
fn a_device_on_a_thread_of_its_own_can_be_polled() {
    let mut driver = attended(1, &config()).remove(0);
    let mut out = [HwCompletion::default(); 16];
    for prefix in 0..20 {
        assert_eq!(driver.submit(&group(prefix, 300)).unwrap(), 9);
        let mut taken = 0;
        while taken < 9 {
            taken += driver.poll(&mut out).unwrap();
        }
        driver.submit(&[HwDesc::decode(1, 0, 100)]).unwrap();
        assert!(driver.wait(soon()).unwrap());
        assert_eq!(take(&mut driver).len(), 1);
    }
    driver.disable().unwrap();
    driver.enable().unwrap();
    driver.submit(&[HwDesc::nop()]).unwrap();
    assert!(driver.wait(soon()).unwrap());
}

#[test]
fn r15_a_device_that_hangs_is_told_to_whoever_sleeps() {
    let config = QueueConfig { patience: 10, ..config() };
    let model = ModelPlatform::new().with_mutation(Mutation::Hang { after: 0 });
    let mut driver = Driver::new(ports(model, 1, &config).take(0).unwrap(), config).unwrap();
    driver.submit(&[HwDesc::nop().with_flags(DescFlags::INTERRUPT)]).unwrap();
    assert!(driver.arm().unwrap());
    let error = (0..100).find_map(|_| driver.wait(Instant::now() + Duration::from_millis(1)).err());
    assert!(matches!(error, Some(DeviceError::Timeout(_))), "{error:?}");
}

/// The thread of a device ends with its last port, and another one may begin.
#[test]
fn a_devices_thread_lives_as_long_as_its_ports() {
    let config = config();
    let owner = ports(ModelPlatform::new(), 1, &config);
    for _ in 0..3 {
        let mut driver = Driver::new(owner.take(0).unwrap(), config.clone()).unwrap();
        sleeps_through(&mut driver, 1, 10);
    }
    let mut driver = Driver::new(owner.take(0).unwrap(), config).unwrap();
    drop(owner);
    sleeps_through(&mut driver, 1, 10);
}
