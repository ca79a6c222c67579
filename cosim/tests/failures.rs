//! What goes wrong becomes an error that names the rule, and never ends the process.

use std::ops::RangeInclusive;
use std::thread;

use doorbell_contract::{CompletionFlags, DeviceFault, ErrorCode, HwCompletion, HwDesc, Register, Status};
use doorbell_cosim::{Built, CosimError, Fault, FaultKind, RtlConfig, RtlPlatform, Wave, built};
use doorbell_host::{Device, DeviceError, Division, Driver, Platform, Ports, QueueConfig};
use rstest::rstest;

type Rtl = Driver<RtlPlatform>;

fn open(config: RtlConfig, queue: QueueConfig) -> Rtl {
    Driver::new(RtlPlatform::new(&config).unwrap(), queue).unwrap()
}

/// One worker, whatever the build has: a run then outlasts the cycles in which faults strike.
fn one_worker() -> QueueConfig {
    QueueConfig { workers: Some(1), ..Default::default() }
}

fn with_fault(fault: Fault) -> Rtl {
    let config = RtlConfig { workers: 1, faults: vec![fault], ..Default::default() };
    open(config, QueueConfig { patience: 3, ..one_worker() })
}

fn descs() -> Vec<HwDesc> {
    (0..8)
        .map(|id| HwDesc::decode(id, 0, 40).with_delta_offset(160 * u64::from(id)).with_user_data(id.into()))
        .collect()
}

fn run(rtl: &mut Rtl) -> Result<Vec<HwCompletion>, DeviceError> {
    let descs = descs();
    let (mut submitted, mut all) = (0, vec![]);
    while all.len() < descs.len() {
        submitted += rtl.submit(&descs[submitted..])?;
        let mut out = [HwCompletion::default(); 8];
        let taken = rtl.poll(&mut out)?;
        all.extend_from_slice(&out[..taken]);
    }
    Ok(all)
}

#[test]
fn a_failing_assertion_is_an_error_that_names_the_rule_and_stays() {
    let mut rtl = with_fault(FaultKind::SpuriousResponse.at(400));
    let error = run(&mut rtl).unwrap_err();
    let DeviceError::Assertion { device, message } = &error else { panic!("{error:?}") };
    assert_eq!(device, "rtl");
    assert!(message.starts_with("R3 "), "{message}");
    assert!(message.contains(".sv:") && message.contains("in cycle 4"), "{message}");
    let failure = rtl.platform().failure().unwrap();
    assert!(matches!(&failure, CosimError::Broken { rule, .. } if rule == "R3"), "{failure:?}");

    // The device is done: everything says so, in the same words.
    let platform = rtl.platform_mut();
    let cycles = platform.cycles();
    assert_eq!(platform.run(10).unwrap_err(), failure);
    assert_eq!(platform.reset(2).unwrap_err(), failure);
    assert_eq!(platform.read_register(Register::Id).unwrap_err().to_string(), error.to_string());
    assert_eq!(platform.write_register(Register::Arm, 1).unwrap_err().to_string(), error.to_string());
    assert_eq!(platform.advance(1).unwrap_err().to_string(), error.to_string());
    assert_eq!(platform.cycles(), cycles);
}

#[test]
fn a_memory_that_never_answers_is_a_timeout() {
    let error = run(&mut with_fault(FaultKind::HangReads.at(0))).unwrap_err();
    let DeviceError::Timeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!((timeout.waited_for, timeout.in_flight, timeout.consumed), ("a completion", 8, 0));
}

#[test]
fn a_flipped_token_bit_changes_that_token_alone() {
    let mut good = open(RtlConfig { workers: 1, ..Default::default() }, one_worker());
    let mut bad = with_fault(Fault { bit: 37, ..FaultKind::CorruptToken.at(4) });
    assert_eq!(run(&mut good).unwrap(), run(&mut bad).unwrap());
    let tokens = |rtl: &Rtl| {
        let mut tokens = vec![0; 8 * 40];
        rtl.tokens(0, &mut tokens).unwrap();
        tokens
    };
    let (good, bad) = (tokens(&good), tokens(&bad));
    let differing: Vec<_> = good.iter().zip(&bad).filter(|(good, bad)| good != bad).collect();
    assert_eq!(differing.len(), 1);
    assert_eq!((differing[0].0 ^ differing[0].1).count_ones(), 1);
}

#[test]
fn a_flipped_completion_bit_changes_that_completion_alone() {
    let good = run(&mut open(RtlConfig { workers: 1, ..Default::default() }, one_worker())).unwrap();
    // Bit 70 is bit 6 of rollout_id.
    let bad = run(&mut with_fault(Fault { bit: 70, ..FaultKind::CorruptCompletion.at(3) })).unwrap();
    for (number, (good, bad)) in good.iter().zip(&bad).enumerate() {
        assert_eq!(good.rollout_id ^ bad.rollout_id, if number == 3 { 64 } else { 0 });
    }
}

/// The second token line of the first descriptor is lost, the third descriptor cannot be read, and the device goes on.
#[test]
fn an_error_answer_is_a_dma_fault_of_its_descriptor_alone() {
    let faults = vec![FaultKind::ReadError.at(2), FaultKind::TokenWriteError.at(1)];
    let mut rtl = open(RtlConfig { workers: 1, faults, ..Default::default() }, one_worker());
    let found = run(&mut rtl).unwrap();
    for (completion, number) in found.iter().zip(0..) {
        let expected = match number {
            0 => HwCompletion { error: ErrorCode::DmaFault as u8, final_seq_len: 40, ..*completion },
            // Nothing of it is known but its place.
            2 => HwCompletion {
                error: ErrorCode::DmaFault as u8,
                flags: CompletionFlags::NO_ECHO.bits(),
                result: 2,
                ..HwCompletion::default()
            },
            _ => HwCompletion { user_data: number, final_seq_len: 40, ..*completion },
        };
        let status = if matches!(number, 0 | 2) { Status::Error } else { Status::Done };
        let expected = HwCompletion { status: status as u8, ..expected };
        assert_eq!(completion.without_timing(), expected.without_timing(), "completion {number}");
    }
    let both = DeviceFault::DMA_READ | DeviceFault::DMA_WRITE;
    assert_eq!(rtl.read(Register::Error).unwrap(), both.bits());
    rtl.write(Register::Error, DeviceFault::DMA_READ.bits()).unwrap();
    assert_eq!(rtl.read(Register::Error).unwrap(), DeviceFault::DMA_WRITE.bits());
    rtl.write(Register::Error, both.bits()).unwrap();
    assert_eq!(rtl.read(Register::Error).unwrap(), 0);
    let mut good = open(RtlConfig { workers: 1, ..Default::default() }, one_worker());
    let compared = |rtl: &mut Rtl| run(rtl).unwrap().iter().map(|c| c.without_timing()).collect::<Vec<_>>();
    assert_eq!(compared(&mut rtl), compared(&mut good));
}

#[test]
fn a_lost_completion_is_a_device_fault_and_a_timeout() {
    let mut rtl = with_fault(FaultKind::CompletionWriteError.at(2));
    let error = run(&mut rtl).unwrap_err();
    assert!(matches!(error, DeviceError::Timeout(_)), "{error:?}");
    assert!(error.to_string().contains("COMPLETION_WRITE"), "{error}");
}

#[test]
fn memory_that_was_not_registered_is_not_touched() {
    // The device is told of a queue that lies beyond the shared block.
    let mut platform = RtlPlatform::new(&RtlConfig::default()).unwrap();
    let memory = platform.map(4096).unwrap();
    let beyond = memory.bus_address() + (1 << 20);
    let registers = [
        (Register::SqBaseLo, beyond as u32),
        (Register::SqBaseHi, (beyond >> 32) as u32),
        (Register::SqSize, 2),
        (Register::CqSize, 2),
        (Register::Control, 1),
        (Register::Doorbell, 1),
    ];
    let outcome =
        registers.iter().try_for_each(|&(register, value)| platform.write_register(register, value));
    let error = outcome.and_then(|()| platform.advance(1)).unwrap_err();
    let DeviceError::Assertion { message, .. } = &error else { panic!("{error:?}") };
    assert!(message.starts_with("R11 "), "{message}");
}

#[rstest]
#[case::no_workers(RtlConfig { workers: 0, ..Default::default() }, "workers is 0")]
#[case::too_many_workers(RtlConfig { workers: 17, ..Default::default() }, "no RTL with 17 workers was built")]
#[case::latency(RtlConfig { latency: RangeInclusive::new(5, 4), ..Default::default() }, "latency is 5..=4")]
#[case::stalls(RtlConfig { stall_percent: [0, 0, 96, 0, 0], ..Default::default() }, "stall_percent is 96 on AW")]
#[case::slice(RtlConfig { slice: 0, ..Default::default() }, "slice is 0")]
#[case::wave(
    RtlConfig { wave: Some(Wave { path: "/no/such/directory/x.fst".into(), window: None }), ..Default::default() },
    "cannot write the waveform /no/such/directory/x.fst"
)]
fn a_configuration_that_cannot_be_had_says_why(#[case] config: RtlConfig, #[case] start: &str) {
    let error = RtlPlatform::new(&config).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains(start), "{error}");
}

/// Verilator keeps state per thread: devices that live, fail and die side by side must not meet.
#[test]
fn devices_on_many_threads_do_not_disturb_each_other() {
    let expected = run(&mut open(RtlConfig { workers: 1, ..Default::default() }, one_worker())).unwrap();
    thread::scope(|scope| {
        for worker in 0..8 {
            let expected = &expected;
            scope.spawn(move || {
                for round in 0..6 {
                    let mut first = with_fault(FaultKind::SpuriousResponse.at(350 + 10 * worker + round));
                    let mut second = open(RtlConfig { workers: 1, ..Default::default() }, one_worker());
                    assert!(matches!(run(&mut first), Err(DeviceError::Assertion { .. })));
                    assert_eq!(&run(&mut second).unwrap(), expected);
                    if round % 2 == 0 {
                        // A failed device is dropped while another of the thread lives, and the other way round.
                        drop(first);
                        assert_eq!(second.platform_mut().failure(), None::<CosimError>);
                        second.platform_mut().run(10).unwrap();
                    }
                }
            });
        }
    });
}

/// A device may be made on one thread, run on a second and dropped on a third.
#[test]
fn a_device_moves_between_threads() {
    let rtl = thread::spawn(|| open(RtlConfig::default(), QueueConfig::default())).join().unwrap();
    let rtl = thread::spawn(move || {
        let mut rtl = rtl;
        run(&mut rtl).unwrap();
        rtl
    });
    drop(rtl.join().unwrap());
}

#[rstest]
fn the_same_seed_is_the_same_run(#[values(None, Some(5))] memory: Option<u64>) {
    let cycles = || {
        let plain = RtlConfig { workers: 4, seed: 3, ..Default::default() };
        let config = memory.map_or(plain.clone(), |seed| plain.with_random_memory(seed));
        let mut rtl = open(config, QueueConfig::default());
        let completions = run(&mut rtl).unwrap();
        (completions, rtl.platform().cycles())
    };
    assert_eq!(cycles(), cycles());
}

/// On the smallest device of several functions: a read in the name of another function ends the simulation, though the other may be hostile,
/// whose own strays are only counted.
#[test]
fn a_burst_in_another_functions_name_is_seen() {
    let Some(built) = built().into_iter().find(|built| built.functions > 1 && built.engines == 1) else {
        return;
    };
    let Built { workers, queues, functions, .. } = built;
    let open = |hostile| {
        let faults = vec![FaultKind::OtherFunction.at(0)];
        let config = RtlConfig { workers, queues, functions, faults, hostile, ..Default::default() };
        RtlPlatform::new(&config).unwrap()
    };
    let run = |rtl: RtlPlatform, queue: u8| {
        let division = Division { queues: 2, functions: 2, bytes: 1 << 16, ..Default::default() };
        let ports = Ports::divide(rtl, &division).unwrap();
        let config = QueueConfig { token_bytes: 1 << 13, sq_depth: 64, cq_depth: 64, ..Default::default() };
        let mut driver = Driver::new(ports.take(queue).unwrap(), config).unwrap();
        driver.submit(&[HwDesc::decode(1, 0, 40)])?;
        driver.poll(&mut [HwCompletion::default()])
    };
    let error = run(open(None), 1).unwrap_err().to_string();
    assert!(error.contains("R11") && error.contains("in no window of function 0"), "{error}");
    let rtl = open(Some(1));
    let watch = rtl.watch().unwrap();
    let error = run(rtl, 0).unwrap_err().to_string();
    assert!(error.contains("R11") && error.contains("not the function that owns the queue pair"), "{error}");
    assert_eq!((watch.bursts(), watch.strays()), (1, 1));
}
