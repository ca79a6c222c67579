//! What only a device with a clock and pins has: cycles, byte strobes, holes in the register page, messages, reset.

use std::sync::atomic::Ordering;

use doorbell_contract::{
    Control, Counter, DescFlags, DeviceFault, HwCompletion, HwDesc, MessageControl, Place, Register, SqKey,
    State,
};
use doorbell_cosim::{Built, RtlConfig, RtlPlatform, built, built_workers};
use doorbell_host::{Device, Division, Driver, Platform, Ports, QueueConfig, QueuePort};
use doorbell_verify::conformance::{Rig, numbered};
use rstest::rstest;

type Rtl = Rig<RtlPlatform>;

fn open(config: &RtlConfig, queue: QueueConfig) -> Rtl {
    Rig::new(Driver::new(RtlPlatform::new(config).unwrap(), queue).unwrap())
}

/// On every RTL that was built, with a memory that answers at once and with random ones.
fn on_each(queue: QueueConfig, test: impl Fn(&mut Rtl)) {
    for workers in built_workers() {
        let plain = RtlConfig { workers, ..Default::default() };
        for config in [plain.clone(), plain.clone().with_random_memory(1), plain.with_random_memory(2)] {
            test(&mut open(&config, queue.clone()));
        }
    }
}

fn pass(rtl: &mut Rtl, cycles: u64) {
    rtl.driver.platform_mut().run(cycles).unwrap();
}

fn count(rtl: &mut Rtl, counter: Counter) -> u64 {
    rtl.driver.counter(counter).unwrap()
}

#[test]
fn holes_in_the_page_and_writes_of_some_bytes_are_refused() {
    on_each(QueueConfig::default(), |rtl| {
        let platform = rtl.driver.platform_mut();
        for address in [0x018, 0x0FC, 0x180, 0xFFC, 0x10FFC, 0x11000, 0x20024, 0x21000, 0x3FFFC] {
            assert_eq!(platform.read_address(address).unwrap(), (0, false), "{address:#x}");
            assert!(!platform.write_bytes(address, 1, 0xF).unwrap(), "{address:#x}");
        }
        for strobe in [0x0, 0x1, 0x7, 0xE] {
            assert!(
                !platform.write_bytes(Register::Arm.address(Place::FIRST), 1, strobe).unwrap(),
                "{strobe:#x}"
            );
        }
        assert_eq!(rtl.driver.read(Register::Arm).unwrap(), 0);
        rtl.check(&numbered([HwDesc::decode(1, 0, 20)])).unwrap();
    });
}

/// The entry of the table of messages, unmasked at the end.
fn set_entry(rtl: &mut RtlPlatform, place: Place, address: u64, data: u32) {
    for (register, value) in [
        (Register::MessageAddressLo, address as u32),
        (Register::MessageAddressHi, (address >> 32) as u32),
        (Register::MessageData, data),
        (Register::MessageControl, 0),
    ] {
        rtl.write_at(place, register, value).unwrap();
    }
}

#[test]
fn r14_an_arming_brings_one_message_of_four_bytes() {
    on_each(QueueConfig::default(), |rtl| {
        let asks = [HwDesc::decode(1, 0, 10).with_flags(DescFlags::INTERRUPT)];
        let messages = |rtl: &mut Rtl| rtl.driver.platform().messages(0);
        let arm = |rtl: &mut Rtl, index: u32| {
            rtl.driver.write(Register::Arm, index).unwrap();
            pass(rtl, 1000);
        };
        rtl.driver.submit(&asks).unwrap();
        pass(rtl, 2000);
        assert_eq!(messages(rtl), 0, "disarmed");
        arm(rtl, 0);
        assert_eq!(messages(rtl), 1, "armed late, with a completion that asked");
        rtl.drain().unwrap();
        assert_eq!(messages(rtl), 1, "one message for one arming");
        arm(rtl, 1);
        assert_eq!(messages(rtl), 1, "armed with nothing visible");
        assert!(rtl.driver.read(Register::State).unwrap() & State::ARMED.bits() != 0);
        rtl.driver.write(Register::MessageControl, MessageControl::MASK.bits()).unwrap();
        rtl.driver.submit(&asks).unwrap();
        pass(rtl, 2000);
        assert_eq!((messages(rtl), rtl.driver.read(Register::MessagesPending).unwrap()), (1, 1), "masked");
        rtl.driver.write(Register::MessageControl, 0).unwrap();
        pass(rtl, 1000);
        assert_eq!((messages(rtl), rtl.driver.read(Register::MessagesPending).unwrap()), (2, 0), "unmasked");
    });
}

/// What nobody answers for is lost, and ERROR says so.
#[test]
fn r14_a_message_to_no_memory_is_a_fault_of_the_queue_pair() {
    on_each(QueueConfig::default(), |rtl| {
        set_entry(rtl.driver.platform_mut(), Place::FIRST, 0xFFFF_FFFF_FFFF_FFFC, 7);
        rtl.driver.write(Register::Arm, 0).unwrap();
        rtl.driver.submit(&[HwDesc::nop().with_flags(DescFlags::INTERRUPT)]).unwrap();
        pass(rtl, 2000);
        assert_eq!(rtl.driver.read(Register::Error).unwrap(), DeviceFault::MESSAGE_WRITE.bits());
        assert_eq!(rtl.driver.platform().messages(0), 0);
        rtl.driver.write(Register::Error, DeviceFault::MESSAGE_WRITE.bits()).unwrap();
        rtl.drain().unwrap();
    });
}

/// A slice of time ends with a message, so that who sleeps on it is woken at once, not at its end.
#[test]
fn a_message_ends_a_slice_of_time() {
    let rtl = &mut open(&RtlConfig::default(), QueueConfig::default());
    rtl.driver.submit(&numbered((0..2).map(|id| HwDesc::decode(id, 0, 3)))).unwrap();
    pass(rtl, 2000);
    rtl.driver.write(Register::Arm, 2).unwrap();
    rtl.driver.submit(&[HwDesc::decode(3, 0, 30).with_flags(DescFlags::INTERRUPT)]).unwrap();
    let (before, start) = (rtl.driver.platform().messages(0), rtl.driver.platform().cycles());
    rtl.driver.platform_mut().advance(1000).unwrap();
    let took = rtl.driver.platform().cycles() - start;
    assert_eq!(rtl.driver.platform().messages(0), before + 1);
    assert!(took < 300, "{took} cycles");
    let took = rtl.driver.platform().cycles();
    pass(rtl, 777);
    assert_eq!(rtl.driver.platform().cycles() - took, 777, "what is to be exact is");
}

/// In whichever cycle it comes (R12).
#[rstest]
fn a_disable_or_reset_stops_every_write_and_the_next_start_is_clean(#[values(false, true)] reset: bool) {
    on_each(QueueConfig { cq_depth: 8, token_bytes: 1 << 16, ..Default::default() }, |rtl| {
        for cycles in [1, 7, 10, 20, 33, 64, 100, 150, 300, 900, 5000] {
            rtl.driver.submit(&numbered((0..200).map(|id| HwDesc::decode(id, 0, 30)))).unwrap();
            pass(rtl, cycles);
            if reset {
                rtl.driver.platform_mut().reset(3).unwrap();
                // It has no engine 1.
                let absent =
                    |register: &Register| (Register::ModelBaseLo..=Register::Arena3SizeHi).contains(register);
                for register in Register::ALL.into_iter().filter(|register| !absent(register)) {
                    if let Some(value) = register.reset() {
                        assert_eq!(
                            rtl.driver.read(register).unwrap(),
                            value,
                            "{register} after {cycles} cycles"
                        );
                    }
                }
            } else {
                rtl.driver.disable().unwrap();
                assert_eq!(rtl.driver.read(Register::State).unwrap(), State::IDLE.bits());
            }
            let before = rtl.snapshot().unwrap();
            // The memory itself fails the test if the device still accesses it.
            pass(rtl, 1000);
            assert!(rtl.snapshot().unwrap() == before, "memory was written after {cycles} cycles");
            if reset {
                rtl.driver.disable().unwrap();
            }
            rtl.driver.enable().unwrap();
            assert_eq!(count(rtl, Counter::Tokens), 0);
            rtl.check(&numbered((0..30).map(|id| HwDesc::decode(id, 3, 1 + id)))).unwrap();
        }
    });
}

#[test]
fn a_full_completion_queue_holds_up_the_fetch_too() {
    on_each(QueueConfig { cq_depth: 2, ..Default::default() }, |rtl| {
        let descs = numbered((0..400).map(|k| HwDesc::decode(k, 0, 1 + k % 40)));
        assert_eq!(rtl.driver.submit(&descs).unwrap(), 400);
        pass(rtl, 20_000);
        let consumed = count(rtl, Counter::Descriptors);
        assert!(consumed < 400, "{consumed} descriptors consumed after a full queue (R4)");
        let stalled = count(rtl, Counter::StallCq);
        pass(rtl, 20_000);
        assert_eq!((count(rtl, Counter::Completions), count(rtl, Counter::Descriptors)), (2, consumed));
        assert!(count(rtl, Counter::StallCq) >= stalled + 20_000, "each of these cycles is a stall");
        assert_eq!(rtl.drain().unwrap().len(), 400);
    });
}

#[test]
fn wait_states_stretch_every_token() {
    let queue = QueueConfig { wait_states: 7, workers: Some(1), ..Default::default() };
    let rtl = &mut open(&RtlConfig { workers: 1, ..Default::default() }, queue);
    rtl.check(&numbered((0..10).map(|id| HwDesc::decode(id, 0, 1 + 3 * id)))).unwrap();
    let tokens = count(rtl, Counter::Tokens);
    // One cycle from idle to the first token's wait.
    assert_eq!((count(rtl, Counter::Wait), count(rtl, Counter::Busy)), (7 * tokens, 8 * tokens + 1));
}

/// A queue pair of another function beside the first one: its own registers, rings and interrupt.
#[test]
fn queue_pairs_have_registers_rings_and_interrupts_of_their_own() {
    for Built { workers, queues, functions, .. } in
        built().into_iter().filter(|built| built.queues > 1 && built.engines == 1)
    {
        let plain = RtlConfig { workers, queues, functions, ..Default::default() };
        for config in [plain.clone(), plain.with_random_memory(3)] {
            let mut rtl = RtlPlatform::new(&config).unwrap();
            let memory = rtl.map(2 << 14).unwrap();
            let message = |at: usize| memory.word32(at + (1 << 13) + 4).unwrap().load(Ordering::Acquire);
            let (first, last) =
                (Place::FIRST, Place { function: functions as u8 - 1, queue: queues as u8 - 1 });
            rtl.write_at(last, Register::QueueFunction, u32::from(last.function)).unwrap();
            rtl.write_at(last, Register::Window0SizeHi, u32::MAX).unwrap();
            assert!(
                rtl.read_at(Place { function: 0, ..last }, Register::Weight).is_err(),
                "another function's page"
            );
            for (place, at) in [(first, 0), (last, 1 << 14)] {
                let bus = memory.bus_address() + at as u64;
                for (register, value) in [
                    (Register::SqBaseLo, bus),
                    (Register::SqBaseHi, bus >> 32),
                    (Register::CqBaseLo, bus + 4096),
                    (Register::CqBaseHi, bus >> 32),
                    (Register::SqSize, 4),
                    (Register::CqSize, 4),
                ] {
                    rtl.write_at(place, register, value as u32).unwrap();
                }
                let asks = HwDesc::nop().with_flags(DescFlags::INTERRUPT).seal(&SqKey::new(0), 0);
                memory.slots::<8>(at, 4).unwrap().store(0, bytemuck::cast(asks));
                rtl.write_at(place, Register::Control, Control::ENABLE.bits()).unwrap();
                set_entry(&mut rtl, place, bus + (1 << 13) + 4, 0x1234_5600 | u32::from(place.queue));
                rtl.write_at(place, Register::Arm, 0).unwrap();
            }
            let completed =
                |at: usize| memory.word64(at + 4096 + 24).unwrap().load(Ordering::Acquire) >> 63 == 1;
            rtl.write_at(last, Register::Doorbell, 1).unwrap();
            rtl.run(5000).unwrap();
            assert_eq!((completed(0), completed(1 << 14)), (false, true));
            assert_eq!((rtl.messages(0), rtl.messages(queues - 1)), (0, 1));
            assert_eq!((message(0), message(1 << 14)), (0, 0x1234_5600 | (queues - 1)));
            rtl.write_at(first, Register::Doorbell, 1).unwrap();
            rtl.run(5000).unwrap();
            assert!(completed(0));
            assert_eq!((rtl.messages(0), message(0)), (1, 0x1234_5600));
            rtl.write_at(last, Register::Control, 0).unwrap();
            rtl.run(5000).unwrap();
            assert_eq!(rtl.read_at(last, Register::State).unwrap(), State::IDLE.bits());
            assert_eq!(rtl.read_at(first, Register::State).unwrap(), (State::ACTIVE | State::IDLE).bits());
        }
    }
}

/// What the other functions do while function 0 works.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Neighbours {
    Idle,
    /// Completion queues of two, which nobody reads.
    NeverReap,
    /// The shortest descriptors there are, thousands at once.
    Flood,
    /// The longest.
    Longest,
}

/// A driver for each queue pair of a device whose functions have `workers` of their own between them, or share one.
fn tenants(
    built: Built,
    workers: u32,
    neighbours: Neighbours,
) -> (Ports<RtlPlatform>, Vec<Driver<QueuePort<RtlPlatform>>>) {
    let Built { queues, functions, .. } = built;
    let config = |place: Place| {
        let cq_depth = if place.function != 0 && neighbours == Neighbours::NeverReap { 2 } else { 1 << 13 };
        QueueConfig { sq_depth: 1 << 13, cq_depth, token_bytes: 1 << 22, ..Default::default() }
    };
    let bytes = config(Place::FIRST).shared_bytes().unwrap();
    let division = Division {
        row: 1,
        queues: queues as u8,
        functions: functions as u8,
        bytes,
        workers: Some(workers),
        wait_states: 0,
    };
    let rtl = RtlConfig { workers: built.workers, queues, functions, ..Default::default() };
    let ports = Ports::divide(RtlPlatform::new(&rtl).unwrap(), &division).unwrap();
    let ports_taken = ports.take_all().unwrap();
    let drivers = ports_taken.into_iter().map(|port| {
        let config = config(port.place());
        Driver::new(port, config).unwrap()
    });
    let mut drivers: Vec<_> = drivers.collect();
    for (queue, driver) in drivers.iter_mut().enumerate() {
        if (queue as u32).is_multiple_of(functions) {
            continue;
        }
        let descs: Vec<HwDesc> = match neighbours {
            Neighbours::Idle => vec![],
            Neighbours::NeverReap => (0..4000).map(|k| HwDesc::decode(k, 0, 1 + k % 300)).collect(),
            Neighbours::Flood => {
                (0..8000).map(|k| if k % 2 == 0 { HwDesc::nop() } else { HwDesc::decode(k, 0, 1) }).collect()
            }
            Neighbours::Longest => (0..100).map(|k| HwDesc::decode(k, 0, 1 << 20)).collect(),
        };
        assert_eq!(driver.submit(&descs).unwrap(), descs.len());
    }
    (ports, drivers)
}

/// Places for descriptors that are read ahead, divided among the queue pairs; the default of the RTL.
const FETCH_DEPTH: u32 = 128;

/// Token lines of what the queue pairs of function 0 have to do, each.
const LINES: u64 = 486;

/// Cycles from the doorbells of the queue pairs of function 0 to each of their completions, as they are seen.
fn cycles_of_function_0(built: Built, neighbours: Neighbours) -> Vec<u64> {
    let (ports, mut drivers) = tenants(built, built.workers, neighbours);
    // Whole lines: what waits for the write port loses nothing.
    let descs = numbered((0..60).map(|k| HwDesc::decode(k, 0, 16 * (1 + k % 16))));
    assert_eq!(descs.iter().map(|desc| u64::from(desc.max_tokens) / 16).sum::<u64>(), LINES);
    let own = (0..drivers.len()).filter(|&queue| (queue as u32).is_multiple_of(built.functions));
    let own: Vec<usize> = own.collect();
    // What the others have fetched ahead is there.
    ports.device().run(1000).unwrap();
    let start = ports.device().cycles();
    for &queue in &own {
        assert_eq!(drivers[queue].submit(&descs).unwrap(), descs.len());
    }
    let (mut seen, mut out) = (vec![], [HwCompletion::default(); 64]);
    while seen.len() < own.len() * descs.len() {
        ports.device().run(1).unwrap();
        let now = ports.device().cycles() - start;
        for &queue in &own {
            let count = drivers[queue].collect(&mut out).unwrap();
            seen.extend(std::iter::repeat_n(now, count));
        }
        assert!(now < 1_000_000, "R16: {neighbours:?}: function 0 has {} completions", seen.len());
    }
    seen
}

/// Those of a function with workers of its own share the fetch and the write port with the others, and nothing else.
#[test]
fn r16_what_others_ask_for_costs_workers_of_ones_own_nothing_but_the_port() {
    for built in built().into_iter().filter(|built| built.functions > 1 && built.engines == 1) {
        let alone = cycles_of_function_0(built, Neighbours::Idle);
        let late = |neighbours| {
            let beside = cycles_of_function_0(built, neighbours);
            alone.iter().zip(&beside).map(|(alone, beside)| beside.saturating_sub(*alone)).max().unwrap()
        };
        assert_eq!(
            late(Neighbours::NeverReap),
            0,
            "R4: cycles lost beside full completion queues, {built:?}"
        );
        // Between two lines of a worker every other one has the port once, and its completion.
        let turn = 3 * u64::from(built.workers);
        // This memory answers reads in the order of their addresses: the first descriptor comes after those that the others have
        // asked for before, at most all of their places.
        let others = built.queues - built.queues / built.functions;
        let ahead = u64::from(others * FETCH_DEPTH / built.queues.next_power_of_two());
        let bound = turn + LINES * turn.saturating_sub(16) + ahead;
        for neighbours in [Neighbours::Flood, Neighbours::Longest] {
            let late = late(neighbours);
            assert!(late <= bound, "R28: {late} cycles late, of {bound}, beside {neighbours:?}, {built:?}");
        }
    }
}

/// Where all share one worker, one that could go is passed over as often as the weights of the others say, each time for as
/// long as the longest descriptor takes.
#[test]
fn r16_what_others_ask_for_costs_a_shared_worker_their_turns() {
    const LONGEST: u64 = 1 << 20;
    for built in built().into_iter().filter(|built| built.functions > 1 && built.engines == 1) {
        let (ports, mut drivers) = tenants(built, 1, Neighbours::Longest);
        let others = u64::from(built.queues - built.queues / built.functions);
        ports.device().run(1000).unwrap();
        // Behind its own turn it waits for everybody's; on the largest device that takes too long to be looked at.
        for _ in 0..if built.queues > 4 { 1 } else { 2 } {
            let start = ports.device().cycles();
            assert_eq!(drivers[0].submit(&[HwDesc::decode(1, 0, 1)]).unwrap(), 1);
            let mut out = [HwCompletion::default(); 2];
            while drivers[0].collect(&mut out).unwrap() == 0 {
                ports.device().run(1000).unwrap();
                let waited = ports.device().cycles() - start;
                // The one that runs was there before it.
                let bound = (others + 1) * (LONGEST + 16) + 2000;
                assert!(
                    waited < bound,
                    "R16: waited for {waited} cycles, of {bound}, beside {others}, {built:?}"
                );
            }
        }
    }
}
