//! The driver against devices that misbehave: each ends as a typed error that says who, what and what to do.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use doorbell_contract::{Counter, DeviceFault, HwCompletion, HwDesc, QueueCounter, Register};
use doorbell_host::{Device, DeviceError, Driver, Platform, QueueConfig, SharedMemory};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::Mutation;
use rstest::rstest;

mod common;
use common::Tampered;

fn small() -> QueueConfig {
    QueueConfig { sq_depth: 4, cq_depth: 4, patience: 20, ..Default::default() }
}

fn poll_until_error(driver: &mut impl Device) -> DeviceError {
    let mut out = [HwCompletion::default(); 4];
    (0..1_000_000).find_map(|_| driver.poll(&mut out).err()).expect("R15: poll gives up at some time")
}

#[test]
fn r15_a_device_that_never_answers_is_a_timeout_that_says_who_waited_for_what() {
    let model = ModelPlatform::new().with_mutation(Mutation::Hang { after: 1 });
    let mut driver = Driver::new(model, small()).unwrap();
    driver.submit(&[HwDesc::nop(), HwDesc::decode(1, 2, 3), HwDesc::nop()]).unwrap();
    let error = poll_until_error(&mut driver);
    insta::assert_snapshot!(error, @"model: a completion did not happen within 20 advances: 2 in flight, SQ tail 0x3, SQ head 0x1, CQ head 0x1; device: STATE 0x1 (ACTIVE), STATUS 0x00020000 (2 descriptors and 0 completions queued, 0 doorbells refused; 0 workers busy), ERROR none, consumed 1, completed 1, tokens 0; why: the device has not read slots 0x1 to 0x3, though all before them is completed and completions have room: a read of the ring is not answered, or the device has stopped (R3); disable and enable the device, or raise the patience");
    // The queue pair can be started anew, and hangs again.
    driver.disable().unwrap();
    driver.enable().unwrap();
    assert_eq!(driver.in_flight(), 0);
}

/// R12: after a disable that has not come to its end the rings are still the device's, so an enable touches nothing.
#[test]
fn r12_no_enable_before_the_disable_has_ended() {
    let mut driver = Driver::new(Tampered::default(), small()).unwrap();
    driver.submit(&[HwDesc::nop(), HwDesc::nop()]).unwrap();
    driver.platform_mut().deaf_to = Some(Register::Control);
    assert!(matches!(driver.disable(), Err(DeviceError::Timeout(_))));
    let before = driver.memory().clone();
    let ring = |memory: &SharedMemory| -> Vec<u32> {
        (0..64).map(|word| memory.word32(4 * word).unwrap().load(Relaxed)).collect()
    };
    let (held, key) = (ring(&before), driver.read(Register::SqKey).unwrap());
    assert!(held.iter().any(|&word| word != 0));
    let error = driver.enable().unwrap_err();
    assert!(error.to_string().contains("tampered did not start: it is still active"), "{error}");
    assert_eq!((ring(&before), driver.read(Register::SqKey).unwrap()), (held, key));
    // Once it has ended, all is as ever.
    driver.platform_mut().deaf_to = None;
    driver.disable().unwrap();
    driver.enable().unwrap();
    assert_eq!(driver.submit(&[HwDesc::nop()]).unwrap(), 1);
}

#[test]
fn r15_a_write_that_is_lost_is_named() {
    let deaf = |register| Tampered { deaf_to: Some(register), ..Default::default() };
    let mut driver = Driver::new(deaf(Register::Doorbell), small()).unwrap();
    driver.submit(&[HwDesc::nop()]).unwrap();
    let error = poll_until_error(&mut driver).to_string();
    assert!(
        error.contains(
            "why: the device knows of no slot from 0x0 on: its DOORBELL is 0x0, and the driver wrote 0x1 (R1)"
        ),
        "{error}"
    );

    let mut driver = Driver::new(deaf(Register::CqHead), small()).unwrap();
    let mut out = [HwCompletion::default(); 4];
    let error = (0..1_000_000).find_map(|_| {
        driver.submit(&[HwDesc::nop()]).unwrap();
        driver.poll(&mut out).err()
    });
    let error = error.expect("R15: poll gives up at some time").to_string();
    assert!(
        error.contains(
            "why: the completion queue is full: the device's CQ_HEAD is 0x0, and the driver wrote 0x4 (R4)"
        ),
        "{error}"
    );
}

#[test]
fn r15_progress_of_the_device_extends_the_wait() {
    // 40 slices of the model's time without a completion, at a patience of 2.
    let config = QueueConfig { patience: 2, token_bytes: 4 << 20, ..Default::default() };
    let mut driver = Driver::new(ModelPlatform::new(), config).unwrap();
    driver.submit(&[HwDesc::decode(1, 0, 700_000)]).unwrap();
    let mut out = [HwCompletion::default()];
    while driver.poll(&mut out).unwrap() == 0 {}
    assert_eq!(out[0].final_seq_len, 700_000);
}

#[test]
fn a_device_that_is_none_of_ours() {
    let tampered = Tampered { read: Some(|_, _| 0xFFFF_FFFF), ..Default::default() };
    let error = Driver::new(tampered, small()).err().expect("ID is wrong");
    insta::assert_snapshot!(error, @"tampered: register ID reads 0xffffffff instead of 0x4c454244: no Doorbell device answers there");
}

#[test]
fn a_device_of_another_major_version() {
    let read = |register, value| if register == Register::Version { 0x0007_0002 } else { value };
    let error = Driver::new(Tampered { read: Some(read), ..Default::default() }, small()).err();
    insta::assert_snapshot!(error.expect("VERSION is wrong"), @"tampered: contract version 7.2 instead of 2.2: rebuild host and device from one contract.toml");
}

#[test]
fn r15_a_device_that_does_not_start() {
    let error =
        Driver::new(Tampered { deaf_to: Some(Register::Control), ..Default::default() }, small()).err();
    let message = error.expect("it never becomes active").to_string();
    assert!(
        message.starts_with("tampered: the start after ENABLE (STATE.ACTIVE = 1) did not happen within 20"),
        "{message}"
    );
}

#[test]
fn r15_a_device_that_does_not_stop() {
    let mut driver = Driver::new(Tampered::default(), small()).unwrap();
    driver.platform_mut().deaf_to = Some(Register::Control);
    let message = driver.disable().unwrap_err().to_string();
    assert!(
        message.starts_with("tampered: the end of a disable (STATE.ACTIVE = 0) did not happen within 20"),
        "{message}"
    );
}

#[test]
fn a_start_that_the_device_refuses() {
    let error =
        Driver::new(Tampered { deaf_to: Some(Register::SqSize), ..Default::default() }, small()).err();
    insta::assert_snapshot!(error.expect("SQ_SIZE is 0"), @"tampered did not start: ERROR reads BAD_CONFIG");
}

#[test]
fn more_workers_than_the_device_has() {
    let config = QueueConfig { workers: Some(3), ..small() };
    let error = Driver::new(ModelPlatform::new(), config).err().expect("the model has one worker");
    insta::assert_snapshot!(error, @"workers is 3: it must be at most 1, which is what model has");
}

#[test]
fn a_depth_that_is_no_power_of_two() {
    let error = Driver::new(ModelPlatform::new(), QueueConfig { cq_depth: 100, ..small() }).err();
    insta::assert_snapshot!(error.expect("100 is no power of two"), @"cq_depth is 100: a ring has a power of two of slots, from 2 to 65536; the nearest: 64 and 128");
}

/// Writes completion `slot` of the queue of [`small`] with this `sq_head`, fresh on the first pass.
fn forge(memory: &SharedMemory, slot: u64, sq_head: u32) {
    const CQ_OFFSET: u64 = 4096;
    let forged = HwCompletion { sq_head, ..Default::default() }.with_phase(true);
    let words: [u64; 4] = bytemuck::cast(forged);
    memory.bus_write(memory.bus_address() + CQ_OFFSET + 32 * slot, words).unwrap();
}

#[rstest]
#[case::beyond_the_tail(|memory: &SharedMemory| forge(memory, 0, 5), "R13", "sq_head 0x5")]
#[case::less_than_the_completions(|memory: &SharedMemory| forge(memory, 1, 1), "R13", "sq_head 0x1")]
#[case::backwards(|memory: &SharedMemory| forge(memory, 1, 0), "R13", "sq_head 0x0")]
#[case::too_many(|memory: &SharedMemory| forge(memory, 2, 2), "R3", "3 completions for 2 descriptors")]
fn r03_completions_that_cannot_be_are_protocol_errors(
    #[case] scribble: fn(&SharedMemory),
    #[case] broken: &str,
    #[case] seen: &str,
) {
    let mut driver = Driver::new(Tampered::default(), small()).unwrap();
    driver.submit(&[HwDesc::nop(), HwDesc::nop()]).unwrap();
    driver.platform_mut().advance(2).unwrap();
    scribble(driver.memory());
    let error = poll_until_error(&mut driver);
    let DeviceError::Protocol { device, rule, what } = &error else { panic!("{error}") };
    assert_eq!((device.as_str(), *rule), ("tampered", broken));
    assert!(what.contains(seen), "{what}");
}

#[test]
fn r03_a_lost_queue_pair_keeps_its_count_and_stays_lost_until_it_is_enabled_anew() {
    let mut driver = Driver::new(Tampered::default(), small()).unwrap();
    driver.submit(&[HwDesc::nop().with_user_data(1), HwDesc::nop().with_user_data(2)]).unwrap();
    driver.platform_mut().advance(2).unwrap();
    forge(driver.memory(), 2, 2);
    // What came before the impossible one is not lost with it.
    let mut out = [HwCompletion::default(); 4];
    assert_eq!(driver.collect(&mut out).unwrap(), 2);
    assert_eq!((out[0].user_data, out[1].user_data), (1, 2));
    assert_eq!(driver.in_flight(), 0);
    let message = driver.collect(&mut out).unwrap_err().to_string();
    assert!(message.contains("3 completions for 2 descriptors"), "{message}");
    assert_eq!(driver.in_flight(), 0);
    // Whatever is asked of it now has the same answer.
    for error in [
        driver.poll(&mut out).unwrap_err(),
        driver.submit(&[HwDesc::nop()]).unwrap_err(),
        driver.ring().unwrap_err(),
    ] {
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(driver.in_flight(), 0);
    driver.disable().unwrap();
    driver.enable().unwrap();
    driver.submit(&[HwDesc::nop()]).unwrap();
    assert_eq!(driver.poll(&mut out).unwrap(), 1);
}

#[test]
fn r01_on_a_device_that_polls_slots_the_check_word_publishes() {
    let mut driver = Driver::new(Tampered { polls_slots: true, ..Default::default() }, small()).unwrap();
    driver
        .submission_queue()
        .push(&[HwDesc::nop().with_user_data(7), HwDesc::nop().with_user_data(8)])
        .unwrap();
    driver.platform_mut().advance(1).unwrap();
    let mut out = [HwCompletion::default(); 4];
    assert_eq!(driver.collect(&mut out).unwrap(), 1);
    assert_eq!((out[0].user_data, driver.in_flight()), (7, 0));
    driver.ring().unwrap();
    assert_eq!(driver.in_flight(), 1);
    assert_eq!(driver.poll(&mut out).unwrap(), 1);
    assert_eq!((out[0].user_data, driver.in_flight()), (8, 0));
    // More than was written is impossible here as well.
    forge(driver.memory(), 2, 2);
    assert!(matches!(driver.collect(&mut out), Err(DeviceError::Protocol { rule: "R3", .. })));
}

#[test]
fn r15_a_timeout_reads_the_bits_of_status_by_their_names() {
    let read = |register, value| if register == Register::WorkerState { 0x2F } else { value };
    let mut driver = Driver::new(Tampered { read: Some(read), ..Default::default() }, small()).unwrap();
    driver.platform_mut().deaf_to = Some(Register::Control);
    let message = driver.disable().unwrap_err().to_string();
    let status = "STATUS 0x00000000 (0 descriptors and 0 completions queued, 0 doorbells refused; 5 workers busy, one held back \
                  by the write port, one in wait states, one that runs)";
    assert!(message.contains(status), "{message}");
}

#[test]
fn a_refused_doorbell_is_an_error_not_a_loss() {
    let mut driver = Driver::new(Tampered::default(), small()).unwrap();
    driver.platform_mut().model.write_register(Register::Control, 0).unwrap();
    let error = driver.submit(&[HwDesc::nop()]).unwrap_err();
    assert!(matches!(error, DeviceError::Refused { register: Register::Doorbell, value: 1, .. }), "{error}");
}

#[test]
fn submit_takes_what_fits_and_poll_frees_it() {
    let mut driver = Driver::new(ModelPlatform::new(), small()).unwrap();
    assert_eq!(driver.capacity(), 4);
    assert_eq!(driver.submit(&[HwDesc::nop(); 6]).unwrap(), 4);
    assert_eq!(driver.submit(&[HwDesc::nop(); 6]).unwrap(), 0);
    assert_eq!(driver.in_flight(), 4);
    let mut out = [HwCompletion::default(); 8];
    assert_eq!(driver.poll(&mut []).unwrap(), 0);
    let mut seen = 0;
    while driver.in_flight() > 0 {
        seen += driver.poll(&mut out).unwrap();
    }
    assert_eq!(seen, 4);
    assert_eq!(driver.poll(&mut out).unwrap(), 0, "nothing is due");
    assert_eq!(driver.submit(&[HwDesc::nop(); 6]).unwrap(), 4);
}

#[test]
fn tokens_outside_the_region_are_an_error() {
    let driver = Driver::new(ModelPlatform::new(), QueueConfig { token_bytes: 100, ..small() }).unwrap();
    let mut tokens = [0; 2];
    assert!(driver.tokens(92, &mut tokens).is_ok());
    for offset in [96, 100, 2, u64::MAX - 3] {
        let error = driver.tokens(offset, &mut tokens).unwrap_err();
        assert!(
            error.to_string().ends_with("do not fit the token region of 0x64 bytes, or are misaligned"),
            "{error}"
        );
    }
}

#[test]
fn counters_are_named_values() {
    let mut driver = Driver::new(ModelPlatform::new(), small()).unwrap();
    driver.submit(&[HwDesc::decode(1, 2, 3)]).unwrap();
    let mut out = [HwCompletion::default()];
    driver.poll(&mut out).unwrap();
    let counters = driver.counters().unwrap();
    assert_eq!(counters.get(Counter::Tokens), 3);
    assert_eq!(counters.iter().find(|(counter, _)| counter.name() == "TOKENS"), Some((Counter::Tokens, 3)));
    assert_eq!(DeviceFault::empty().bits(), driver.read(Register::Error).unwrap());
    let own = driver.queue_counters().unwrap();
    let own: Vec<(&str, u64)> = own[0].iter().map(|(counter, value)| (counter.name(), value)).collect();
    let expected = [("DESCRIPTORS", 1), ("COMPLETIONS", 1), ("TOKENS", 3), ("STALL_CQ", 0), ("ERRORS", 0)];
    assert_eq!(own, expected);
}

thread_local! {
    /// A counter that counts whenever somebody looks.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// The high half is read on both sides of the low one, which may run over in between.
#[test]
fn a_counter_that_runs_over_between_its_halves_is_read_whole() {
    let read = |register, value| match register {
        Register::TokensLo | Register::QueueTokensLo => RUNNING.replace(RUNNING.get() + 1) as u32,
        Register::TokensHi | Register::QueueTokensHi => (RUNNING.replace(RUNNING.get() + 1) >> 32) as u32,
        _ => value,
    };
    let mut driver = Driver::new(Tampered { read: Some(read), ..Default::default() }, small()).unwrap();
    for start in 0x6_FFFF_FFF8..0x7_0000_0002 {
        RUNNING.set(start);
        let value = driver.counter(Counter::Tokens).unwrap();
        assert!((start..RUNNING.get()).contains(&value), "{value:#x} after {start:#x}");
        RUNNING.set(start);
        let value = driver.queue_counter(QueueCounter::Tokens).unwrap();
        assert!((start..RUNNING.get()).contains(&value), "{value:#x} of a queue pair after {start:#x}");
    }
}

#[test]
fn waiting_gives_the_device_time_and_ends_with_a_completion_the_deadline_or_nothing_to_wait_for() {
    let soon = || Instant::now() + Duration::from_secs(60);
    let config = QueueConfig { token_bytes: 4 << 20, ..small() };
    let mut driver = Driver::new(ModelPlatform::new(), config).unwrap();
    let mut out = [HwCompletion::default(); 4];
    assert!(!driver.wait(soon()).unwrap(), "nothing is in flight");
    // 40 slices of the model's time.
    driver.submit(&[HwDesc::decode(1, 0, 700_000)]).unwrap();
    assert!(!driver.wait(Instant::now()).unwrap(), "the deadline has passed");
    assert_eq!(driver.collect(&mut out).unwrap(), 0);
    assert!(driver.wait(soon()).unwrap());
    // What is there ends a wait at once, and takes nothing.
    let counters = driver.counters().unwrap();
    assert!(driver.wait(Instant::now()).unwrap() && driver.wait(soon()).unwrap());
    assert_eq!(driver.counters().unwrap(), counters);
    assert_eq!(driver.collect(&mut out).unwrap(), 1);
    assert_eq!(out[0].final_seq_len, 700_000);
    assert!(!driver.wait(soon()).unwrap());
}

#[test]
fn r15_waiting_for_a_device_that_never_answers_is_a_timeout() {
    let model = ModelPlatform::new().with_mutation(Mutation::Hang { after: 0 });
    let mut driver = Driver::new(model, small()).unwrap();
    driver.submit(&[HwDesc::nop()]).unwrap();
    let error = driver.wait(Instant::now() + Duration::from_secs(600)).unwrap_err();
    assert!(matches!(error, DeviceError::Timeout(_)), "{error}");
    driver.disable().unwrap();
    assert!(matches!(driver.wait(Instant::now()), Err(DeviceError::Disabled { .. })));
}
