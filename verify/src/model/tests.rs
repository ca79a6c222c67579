//! What only the model can show: DMA faults, the reach of a STOP, the latch of the counters, its faults on purpose.

use std::sync::{Arc, Mutex, MutexGuard};

use rstest::rstest;

use super::*;
use doorbell_contract::{
    CompletionFlags, Control, DescFlags, DeviceFault, ErrorCode, FunctionControl, HwCompletion, HwDesc,
    QueueCounter, State,
};
use doorbell_host::ports::{Division, Ports, QueuePort};
use doorbell_host::registers::Registers;
use doorbell_host::{Device, Driver, QueueConfig};

fn driver(config: QueueConfig) -> Driver<ModelPlatform> {
    Driver::new(ModelPlatform::new(), config).unwrap()
}

fn drain(driver: &mut Driver<ModelPlatform>) -> Vec<HwCompletion> {
    let mut out = [HwCompletion::default(); 64];
    let mut all = Vec::new();
    while driver.in_flight() > 0 {
        let taken = driver.poll(&mut out).unwrap();
        all.extend_from_slice(&out[..taken]);
    }
    all
}

/// A driver whose device was told, behind the driver's back, that a region lies elsewhere.
fn misled(register: Register, value: u32) -> Driver<ModelPlatform> {
    let mut driver = driver(QueueConfig { sq_start: 7, ..Default::default() });
    driver.write(Register::Control, 0).unwrap();
    driver.write(register, value).unwrap();
    driver.write(Register::Control, Control::ENABLE.bits()).unwrap();
    driver
}

#[test]
fn r10_an_unreadable_slot_is_a_dma_fault_with_its_index() {
    let mut driver = misled(Register::SqBaseHi, 0x7777);
    driver.submit(&[HwDesc::decode(5, 6, 7).with_user_data(8), HwDesc::nop()]).unwrap();
    let ends = drain(&mut driver);
    let blank = HwCompletion {
        status: Status::Error as u8,
        error: ErrorCode::DmaFault as u8,
        flags: CompletionFlags::NO_ECHO.bits(),
        ..HwCompletion::default()
    };
    let found: Vec<HwCompletion> = ends.iter().map(|end| end.without_timing()).collect();
    assert_eq!(found, [HwCompletion { result: 7, ..blank }, HwCompletion { result: 8, ..blank }]);
    assert_eq!(driver.read(Register::Error).unwrap(), DeviceFault::DMA_READ.bits());
    assert!(State::from_bits_retain(driver.read(Register::State).unwrap()).contains(State::FAULT));
}

#[test]
fn r11_a_token_region_outside_the_memory_is_a_dma_fault() {
    let mut driver = misled(Register::TokenBaseHi, 0x7777);
    driver.submit(&[HwDesc::decode(5, 6, 7).with_user_data(8), HwDesc::nop()]).unwrap();
    let ends = drain(&mut driver);
    assert_eq!((ends[0].status, ends[0].error), (Status::Error as u8, ErrorCode::DmaFault as u8));
    assert_eq!((ends[0].user_data, ends[0].final_seq_len), (8, 6));
    assert_eq!(ends[1].status, Status::Done as u8);
    assert_eq!(driver.read(Register::Error).unwrap(), DeviceFault::DMA_WRITE.bits());
}

#[test]
fn r11_a_completion_queue_outside_the_memory_is_a_fault_and_ends_as_timeout() {
    let mut driver = misled(Register::CqBaseHi, 0x7777);
    driver.submit(&[HwDesc::nop()]).unwrap();
    let mut out = [HwCompletion::default()];
    let error = (0..10_000).find_map(|_| driver.poll(&mut out).err()).expect("R15: poll gives up");
    assert!(error.to_string().contains("ERROR COMPLETION_WRITE"), "{error}");
    assert_eq!(
        driver.queue_counter(QueueCounter::Completions).unwrap(),
        0,
        "a lost completion is not counted"
    );
    assert!(State::from_bits_retain(driver.read(Register::State).unwrap()).contains(State::IDLE));
}

#[rstest]
#[case::directly_behind(&[HwDesc::stop(1)], true)]
#[case::past_other_rollouts(&[HwDesc::decode(2, 0, 5), HwDesc::nop(), HwDesc::stop(2), HwDesc::stop(1)], true)]
#[case::past_a_malformed_fence(&[HwDesc::decode(2, 0, 0).with_flags(DescFlags::FENCE), HwDesc::stop(1)], true)]
#[case::not_past_a_fence(&[HwDesc::decode(2, 0, 1).with_flags(DescFlags::FENCE), HwDesc::stop(1)], false)]
#[case::not_a_fence_itself(&[HwDesc::stop(1).with_flags(DescFlags::FENCE)], false)]
#[case::not_past_its_own_rollout(&[HwDesc::decode(1, 0, 1), HwDesc::stop(1)], false)]
#[case::another_rollout(&[HwDesc::stop(2)], false)]
#[case::not_published(&[], false)]
fn r08_reach_of_a_stop(#[case] behind: &[HwDesc], #[case] stops: bool) {
    let mut driver = driver(QueueConfig { token_bytes: 1 << 20, ..Default::default() });
    driver.submit(&[HwDesc::decode(1, 0, 100_000)]).unwrap();
    driver.platform_mut().advance(1).unwrap();
    assert_eq!(
        driver.read(Register::WorkerState).unwrap(),
        0x09,
        "one worker busy (bits 7:3), worker 0 in state 1 (bits 2:0)"
    );
    driver.submit(behind).unwrap();
    if behind.is_empty() {
        // R1: written, but not published.
        driver.submission_queue().push(&[HwDesc::stop(1)]).unwrap();
    }
    let end = drain(&mut driver)[0];
    let expected = if stops { Status::Stopped } else { Status::Done };
    assert_eq!(end.status, expected as u8);
    assert_eq!(end.final_seq_len < 100_000, stops);
}

#[test]
fn r08_a_fenced_decode_lets_no_stop_start() {
    let mut driver = driver(QueueConfig::default());
    driver.submit(&[HwDesc::decode(1, 0, 100_000).with_flags(DescFlags::FENCE)]).unwrap();
    driver.platform_mut().advance(1).unwrap();
    driver.submit(&[HwDesc::stop(1)]).unwrap();
    assert_eq!(drain(&mut driver)[0].status, Status::Done as u8);
}

#[test]
fn halves_of_a_counter_are_as_they_are_read() {
    let mut registers = Registers::new(BUILT);
    let read = |registers: &Registers, register| registers.read(register, Place::FIRST).unwrap();
    registers.count_of(0, QueueCounter::Tokens, 0x1_FFFF_FFFF);
    for (low, high) in
        [(Counter::Tokens.lo(), Counter::Tokens.hi()), (QueueCounter::Tokens.lo(), QueueCounter::Tokens.hi())]
    {
        assert_eq!((read(&registers, low), read(&registers, high)), (0xFFFF_FFFF, 1));
    }
    registers.count(Counter::Tokens, 1);
    assert_eq!(read(&registers, Counter::Tokens.hi()), 2);
    assert_eq!(read(&registers, QueueCounter::Tokens.hi()), 1);
}

#[test]
fn r12_an_enable_is_refused_until_the_last_session_has_ended() {
    let mut registers = Registers::new(BUILT);
    let write = |registers: &mut Registers, register, value| registers.write(register, Place::FIRST, value);
    for register in [Register::SqSize, Register::CqSize] {
        write(&mut registers, register, 2).unwrap();
    }
    write(&mut registers, Register::Control, Control::ENABLE.bits()).unwrap();
    write(&mut registers, Register::FnControl, FunctionControl::RESET.bits()).unwrap();
    registers.queue_mut(0).wait_for_the_end();
    for control in [Control::ENABLE, Control::ENABLE | Control::DRAIN] {
        assert!(write(&mut registers, Register::Control, control.bits()).is_err());
        assert_eq!(registers.read(Register::Control, Place::FIRST).unwrap(), 0);
    }
    assert_eq!(registers.read(Register::FnControl, Place::FIRST).unwrap(), 1);
    registers.queue_mut(0).ended(0, 0);
    write(&mut registers, Register::Control, Control::ENABLE.bits()).unwrap();
    assert_eq!(registers.read(Register::Control, Place::FIRST).unwrap(), Control::ENABLE.bits());
    assert_eq!(registers.read(Register::FnControl, Place::FIRST).unwrap(), 0);
}

#[test]
fn r14_the_interrupt_survives_the_wrap_of_the_completion_index() {
    let mut driver = driver(QueueConfig { cq_start: u32::MAX - 1, ..Default::default() });
    let asks = HwDesc::nop().with_flags(DescFlags::INTERRUPT);
    driver.submit(&[HwDesc::nop(), HwDesc::nop(), asks, HwDesc::nop()]).unwrap();
    driver.platform_mut().advance(4).unwrap();
    let mut out = [HwCompletion::default(); 2];
    assert_eq!(driver.poll(&mut out).unwrap(), 2);
    // The one that asked has index 0.
    for (index, fires) in [(u32::MAX - 1, true), (u32::MAX, true), (0, true), (1, false), (2, false)] {
        driver.write(Register::Arm, index).unwrap();
        let state = State::from_bits_retain(driver.read(Register::State).unwrap());
        assert_eq!(state.contains(State::ARMED), !fires, "armed at {index}");
    }
}

#[rstest]
#[case("token")]
#[case("token:x")]
#[case("hang:-1")]
#[case("completion:3")]
#[case("completion:3:nonsense")]
#[case("")]
#[case("policy")]
#[case("policy:late")]
#[case("language:policy")]
#[case("event:3")]
#[case("event:3:user_data")]
fn a_bad_mutation_says_what_was_expected(#[case] text: &str) {
    let error = text.parse::<Mutation>().unwrap_err().to_string();
    let expected = format!(
        "'{text}' is no fault of the model: expected token:NTH, completion:NTH:FIELD, hang:AFTER, policy:FAULT, language:FAULT, \
         event:NTH:FIELD or event:full, with FIELD one of user_data, rollout_id,"
    );
    assert!(error.starts_with(&expected), "{error}");
}

/// A model that the test keeps in hand beside its ports.
#[derive(Clone)]
struct Held(Arc<Mutex<ModelPlatform>>);

impl Held {
    fn model(&self) -> MutexGuard<'_, ModelPlatform> {
        self.0.lock().unwrap()
    }
}

impl Platform for Held {
    fn name(&self) -> &str {
        "model"
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.model().map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.model().write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.model().read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.model().advance(want)
    }
}

impl Pages for Held {
    fn write_at(&mut self, place: Place, register: Register, value: u32) -> Result<(), DeviceError> {
        self.model().write_at(place, register, value)
    }

    fn read_at(&mut self, place: Place, register: Register) -> Result<u32, DeviceError> {
        self.model().read_at(place, register)
    }
}

/// A driver of each of two queue pairs, in functions of their own; and the first one's memory.
fn with_a_watchdog(timeout: u32) -> (Held, [Driver<QueuePort<Held>>; 2], RangeInclusive<u64>) {
    let config = QueueConfig { token_bytes: 1 << 14, sq_depth: 8, patience: 20, ..QueueConfig::default() };
    let bytes = config.shared_bytes().unwrap();
    let held = Held(Arc::new(Mutex::new(ModelPlatform::with_queues(2, 2).unwrap())));
    held.clone().write_register(Register::BusTimeout, timeout).unwrap();
    let division = Division { queues: 2, functions: 2, bytes, ..Division::default() };
    let ports = Ports::divide(held.clone(), &division).unwrap().take_all().unwrap();
    let drivers = ports.into_iter().map(|port| Driver::new(port, config.clone()).unwrap());
    let drivers: [_; 2] = drivers.collect::<Vec<_>>().try_into().ok().unwrap();
    let base = drivers[0].memory().bus_address();
    (held, drivers, base..=base + bytes as u64 - 1)
}

fn state<P: Platform>(driver: &mut Driver<P>) -> State {
    State::from_bits_retain(driver.read(Register::State).unwrap())
}

/// R24: behind BUS_TIMEOUT the queue pair is dead, and its neighbour is not; an answer that comes late wakes nobody; a disable ends with that
/// answer, and the next life is as good as new.
#[test]
fn r24_what_is_not_answered_in_time_is_dead_until_it_is_disabled() {
    let (held, [mut dead, mut other], memory) = with_a_watchdog(5);
    held.model().withhold(vec![memory.clone()]);
    let decode = HwDesc::decode(1, 5, 6).with_user_data(7);
    dead.submit(&[decode, decode]).unwrap();
    let mut out = [HwCompletion::default(); 4];
    for _ in 0..4 {
        assert_eq!(dead.poll(&mut out).unwrap(), 0);
        assert!(!state(&mut dead).contains(State::DEAD), "before BUS_TIMEOUT");
    }
    // Its neighbour runs all the while, and longer.
    for _ in 0..10 {
        other.submit(&[decode]).unwrap();
        while other.poll(&mut out).unwrap() == 0 {}
    }
    assert_eq!(other.read(Register::Error).unwrap(), 0);
    assert!(state(&mut dead).contains(State::DEAD | State::FAULT | State::ACTIVE));
    assert_eq!(dead.read(Register::Error).unwrap(), DeviceFault::BUS_TIMEOUT.bits());
    assert!(matches!(dead.ring(), Err(DeviceError::Refused { .. })), "a doorbell of a dead queue pair");

    // Until the answer comes the memory is the device's, and no ENABLE is taken.
    let timeout = dead.disable().unwrap_err().to_string();
    assert!(timeout.contains("DEAD") && timeout.contains("BUS_TIMEOUT"), "{timeout}");
    assert!(dead.enable().is_err(), "R12: ENABLE while the bus owes an answer");
    held.model().withhold(Vec::new());
    dead.disable().unwrap();
    assert!(!state(&mut dead).intersects(State::DEAD | State::ACTIVE));
    dead.enable().unwrap();
    assert_eq!(dead.read(Register::Error).unwrap(), 0);
    dead.submit(&[decode]).unwrap();
    while dead.poll(&mut out).unwrap() == 0 {}
    assert_eq!((out[0].user_data, out[0].status), (7, Status::Done as u8));
}

#[rstest]
#[case::late(5, true)]
#[case::never(0, false)]
fn r24_an_answer_that_comes_late_revives_nobody(#[case] timeout: u32, #[case] dies: bool) {
    let (held, [mut driver, _other], memory) = with_a_watchdog(timeout);
    held.model().withhold(vec![memory]);
    driver.submit(&[HwDesc::nop()]).unwrap();
    let mut out = [HwCompletion::default(); 4];
    for _ in 0..10 {
        assert_eq!(driver.poll(&mut out).unwrap(), 0);
    }
    held.model().withhold(Vec::new());
    let taken: usize = (0..3).map(|_| driver.poll(&mut out).unwrap()).sum();
    assert_eq!((taken, state(&mut driver).contains(State::DEAD)), (usize::from(!dies), dies));
    // R12: the function's reset ends it as a disable does.
    driver.write(Register::FnControl, FunctionControl::RESET.bits()).unwrap();
    assert!(!state(&mut driver).intersects(State::ACTIVE | State::DEAD));
}

/// R24: a queue pair that a disable ends dies likewise; ABORT, ARM and DRAIN of a dead one are taken and do nothing.
#[rstest]
fn r24_what_a_dead_queue_pair_takes_and_what_dies_while_it_ends(#[values(false, true)] ends: bool) {
    let (held, [mut driver, _other], memory) = with_a_watchdog(5);
    held.model().withhold(vec![memory]);
    driver.write(Register::Arm, 0).unwrap();
    driver.submit(&[HwDesc::decode(1, 5, 6).with_flags(DescFlags::INTERRUPT)]).unwrap();
    let mut out = [HwCompletion::default(); 4];
    driver.poll(&mut out).unwrap();
    if ends {
        driver.write(Register::Control, 0).unwrap();
        assert!(!state(&mut driver).contains(State::DEAD));
    }
    for _ in 0..10 {
        held.clone().advance(1).unwrap();
    }
    assert!(state(&mut driver).contains(State::DEAD | State::ACTIVE | State::FAULT));
    assert!(!state(&mut driver).contains(State::ARMED));
    if !ends {
        for (register, value) in [
            (Register::Arm, 0),
            (Register::Abort, 1),
            (Register::Control, (Control::ENABLE | Control::DRAIN).bits()),
        ] {
            driver.write(register, value).unwrap();
        }
        assert!(!state(&mut driver).intersects(State::ARMED | State::ABORTING));
        driver.write(Register::Control, 0).unwrap();
    }
    assert!(state(&mut driver).contains(State::DEAD | State::ACTIVE));
    held.model().withhold(Vec::new());
    assert!(!state(&mut driver).intersects(State::DEAD | State::ACTIVE));
}

/// R24: where no answer comes at all, the reset of the device with the bus is the way back.
#[test]
fn r24_a_reset_of_the_device_ends_every_death() {
    let (held, [mut driver, _other], memory) = with_a_watchdog(1);
    held.model().withhold(vec![memory]);
    driver.submit(&[HwDesc::nop()]).unwrap();
    driver.poll(&mut [HwCompletion::default(); 4]).unwrap();
    assert!(state(&mut driver).contains(State::DEAD));
    driver.write(Register::Control, 0).unwrap();
    assert!(state(&mut driver).contains(State::DEAD | State::ACTIVE));
    held.model().reset();
    assert!(!state(&mut driver).intersects(State::DEAD | State::ACTIVE));
}

/// A cut that no descriptor comes to keeps a model from running any in the loop of `plain.rs`.
#[rstest]
fn plain_descriptors_end_as_all_others_do(#[values(1, 2, 3, 4)] seed: u64, #[values(0, 3)] wait_states: u32) {
    let config = QueueConfig {
        sq_depth: 32,
        cq_depth: 8,
        sq_start: u32::MAX - 40,
        cq_start: u32::MAX - 9,
        eos_threshold: 2000,
        sq_key: Some(7),
        wait_states,
        ..Default::default()
    };
    let run = |model: ModelPlatform| {
        let mut driver = Driver::new(model, config.clone()).unwrap();
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut ends, mut out) = (vec![], [HwCompletion::default(); 5]);
        for user_data in 0..600 {
            let length = if draw(20) == 0 { 40_000 } else { 1 + draw(40) as u32 };
            let mut desc =
                HwDesc::decode(draw(9) as u32, draw(100) as u32, length).with_seed(draw(50) as u32);
            match draw(12) {
                0..3 => desc = HwDesc::nop(),
                3 => desc = HwDesc::stop(draw(9) as u32),
                4 => desc.policy_version = 1,
                5 => desc.delta_offset = 2,
                6 => desc.flags = DescFlags::RESIDENT.bits(),
                7 => desc.checkpoint = 5,
                8 => desc.opcode = 99,
                _ => desc.flags = draw(16) as u8 & !DescFlags::COW_PREFIX.bits(),
            }
            let desc = desc.with_user_data(user_data);
            if draw(60) == 0 {
                driver.arm().unwrap();
            }
            while driver.submit(&[desc]).unwrap() == 0 {
                let taken = driver.poll(&mut out).unwrap();
                ends.extend_from_slice(&out[..taken]);
            }
        }
        ends.extend(drain(&mut driver));
        let mut tokens = vec![0; 2000];
        driver.tokens(0, &mut tokens).unwrap();
        (ends, tokens, driver.counters().unwrap(), driver.queue_counters().unwrap())
    };
    let cuts = HashMap::from([(u64::MAX, (1, Status::Stopped))]);
    let (found, expected) = (run(ModelPlatform::new()), run(ModelPlatform::new().with_cuts(cuts)));
    assert_eq!(found.0.len(), 600);
    assert!(found == expected, "completions, tokens or counters differ");
}

/// The same where queue pairs take turns, of several weights: what each ends as, and in whose step, counts.
#[rstest]
fn plain_descriptors_take_turns_as_all_others_do(#[values(1, 2, 3, 4)] seed: u64) {
    const WEIGHTS: [u32; 3] = [1, 3, 2];
    let config = |weight| QueueConfig {
        sq_depth: 32,
        cq_depth: 8,
        sq_start: u32::MAX - 40,
        eos_threshold: 300,
        sq_key: Some(7),
        weight,
        ..Default::default()
    };
    let run = |model: ModelPlatform| {
        let held = Held(Arc::new(Mutex::new(model)));
        let bytes = config(1).shared_bytes().unwrap();
        let division = Division { queues: 3, functions: 2, bytes, ..Division::default() };
        let ports = Ports::divide(held.clone(), &division).unwrap().take_all().unwrap();
        let mut drivers: Vec<_> = ports
            .into_iter()
            .zip(WEIGHTS)
            .map(|(port, weight)| Driver::new(port, config(weight)).unwrap())
            .collect();
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut ends, mut out) = (vec![], [HwCompletion::default(); 5]);
        for user_data in 0..900 {
            let length = if draw(10) == 0 { 1000 + draw(2000) as u32 } else { 1 + draw(40) as u32 };
            let mut desc =
                HwDesc::decode(draw(9) as u32, draw(100) as u32, length).with_seed(draw(50) as u32);
            match draw(12) {
                0..3 => desc = HwDesc::nop(),
                3 => desc = HwDesc::stop(draw(9) as u32),
                4 => desc.policy_version = 1,
                5 => desc.flags = DescFlags::RESIDENT.bits(),
                6 => desc.checkpoint = 5,
                _ => desc.flags = draw(16) as u8 & !DescFlags::COW_PREFIX.bits(),
            }
            let queue = draw(3) as usize;
            let desc = desc.with_user_data(user_data);
            while drivers[queue].submit(&[desc]).unwrap() == 0 {
                // Little time, so that who has come how far counts.
                held.model().pass(1 + draw(100) as u32);
                let queue = draw(3) as usize;
                let taken = drivers[queue].collect(&mut out).unwrap();
                let now = held.model().read_register(Register::CyclesLo).unwrap();
                ends.extend(out[..taken].iter().map(|end| (queue, now, *end)));
            }
        }
        for (queue, driver) in drivers.iter_mut().enumerate() {
            while driver.in_flight() > 0 {
                let taken = driver.poll(&mut out).unwrap();
                ends.extend(out[..taken].iter().map(|end| (queue, 0, *end)));
            }
        }
        let counters: Vec<_> = drivers.iter_mut().map(|driver| driver.queue_counters().unwrap()).collect();
        (ends, counters, drivers[0].counters().unwrap())
    };
    let model = || ModelPlatform::with_queues(3, 2).unwrap();
    let cuts = HashMap::from([(u64::MAX, (1, Status::Stopped))]);
    let (found, expected) = (run(model()), run(model().with_cuts(cuts)));
    assert_eq!(found.0.len(), 900);
    assert!(found == expected, "completions, their order or counters differ");
}
