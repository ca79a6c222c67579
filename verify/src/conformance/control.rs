//! R12, R14, R15 and the register page.

use super::rig::{numbered, refused};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use doorbell_contract::{
    Access, Capability, Control, Counter, DeviceFault, EventControl, FunctionControl, HwCompletion, HwDesc,
    LENGTH_LIMIT_MAX, QueueCounter, Register, State, WorkerCounter,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::{Device, Features};
use doorbell_host::error::DeviceError;
use doorbell_host::memory::PAGE;
use doorbell_host::platform::Platform;

/// Disables the device, which must then leave memory alone, and starts it again, clean.
fn disable_and_restart(rig: &mut Rig) -> Result<(), Failure> {
    rig.driver.disable()?;
    let state = State::from_bits_retain(rig.driver.read(Register::State)?);
    ensure_eq!(state, State::IDLE, "R12: STATE after a disable, which empties the queues");
    let before = rig.snapshot()?;
    for _ in 0..4 {
        rig.driver.platform_mut().advance(1)?;
    }
    ensure!(rig.snapshot()? == before, "R12: memory written after a disable was acknowledged");
    refused(rig.driver.write(Register::Doorbell, 1), "a doorbell while inactive")?;
    refused(rig.driver.write(Register::CqHead, 1), "CQ_HEAD while inactive")?;
    let mut out = [HwCompletion::default()];
    ensure!(
        matches!(rig.driver.submit(&[HwDesc::nop()]), Err(DeviceError::Disabled { .. })),
        "submit while disabled"
    );
    ensure!(matches!(rig.driver.poll(&mut out), Err(DeviceError::Disabled { .. })), "poll while disabled");

    rig.driver.enable()?;
    rig.settle()?;
    for counter in [Counter::Descriptors, Counter::Completions, Counter::Tokens] {
        ensure_eq!(rig.driver.counter(counter)?, 0, "R12: {counter} after a restart");
    }
    rig.check(&numbered((0..40).map(|k| HwDesc::decode(k, 5, 6))))?;
    Ok(())
}

pub(super) fn r12_disable_with_a_full_completion_queue(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 32, cq_depth: 2, ..Default::default() })?;
    rig.driver.submit(&numbered((0..32).map(|k| HwDesc::decode(k, 0, 20))))?;
    rig.settle()?;
    ensure_eq!(rig.driver.counter(Counter::Completions)?, 2, "R4: completions in a queue of 2");
    disable_and_restart(&mut rig)
}

pub(super) fn r12_disable_in_the_middle_of_a_rollout(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for wait_states in [0, 7] {
        let config = QueueConfig { token_bytes: 8 << 20, wait_states, sq_depth: 64, ..Default::default() };
        let mut rig = bench.open(config)?;
        rig.driver.submit(&numbered((0..40).map(|k| HwDesc::decode(k, 0, 40_000))))?;
        rig.driver.platform_mut().advance(1)?;
        disable_and_restart(&mut rig)?;
    }
    Ok(())
}

pub(super) fn r12_a_bad_configuration_does_not_start(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut platform = bench.platform()?;
    let memory = platform.map(4 * PAGE)?;
    let low = memory.bus_address() as u32;
    let high = (memory.bus_address() >> 32) as u32;
    use Register as R;
    let good = [
        (R::SqBaseLo, low),
        (R::SqBaseHi, high),
        (R::CqBaseLo, low + PAGE as u32),
        (R::CqBaseHi, high),
        (R::TokenBaseLo, low + 2 * PAGE as u32),
        (R::TokenBaseHi, high),
        (R::TokenSizeLo, PAGE as u32),
        (R::KvBaseLo, low + 3 * PAGE as u32),
        (R::KvBaseHi, high),
        (R::SqSize, 64),
        (R::CqSize, 128),
    ];
    let bad = [
        (R::SqSize, 0),
        (R::SqSize, 1),
        (R::SqSize, 48),
        (R::SqSize, 1 << 17),
        (R::SqSize, 0x1_0040),
        (R::CqSize, 0),
        (R::CqSize, 3),
        (R::CqSize, 1 << 31),
        (R::SqBaseLo, low + 32),
        (R::CqBaseLo, low + PAGE as u32 + 4),
        (R::TokenBaseLo, low + 1),
        (R::KvBaseLo, low + 63),
    ];
    for (register, value) in good {
        platform.write_register(register, value)?;
    }
    for (register, value) in bad {
        let kept = platform.read_register(register)?;
        platform.write_register(register, value)?;
        platform.write_register(R::Control, Control::ENABLE.bits())?;
        platform.advance(1)?;
        let state = State::from_bits_retain(platform.read_register(R::State)?);
        ensure!(!state.contains(State::ACTIVE), "{register} = {value:#x} was started");
        ensure!(state.contains(State::FAULT), "STATE.FAULT after {register} = {value:#x}");
        let fault = platform.read_register(R::Error)?;
        ensure_eq!(fault, DeviceFault::BAD_CONFIG.bits(), "ERROR after {register} = {value:#x}");
        platform.write_register(R::Control, 0)?;
        platform.write_register(R::Error, 0xFFFF_FFFF)?;
        ensure_eq!(platform.read_register(R::Error)?, 0, "ERROR after it was cleared");
        platform.write_register(register, kept)?;
    }
    platform.write_register(R::Control, Control::ENABLE.bits())?;
    platform.advance(1)?;
    let state = platform.read_register(R::State)?;
    ensure_eq!(state, (State::ACTIVE | State::IDLE).bits(), "STATE after a good ENABLE");
    ensure_eq!(platform.read_register(R::Control)?, Control::ENABLE.bits(), "CONTROL after a good ENABLE");
    Ok(())
}

pub(super) fn r15_a_slow_device_is_waited_for(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { wait_states: 0xFFFF, patience: 64, ..Default::default() })?;
    rig.check(&numbered([HwDesc::decode(1, 0, 40), HwDesc::decode(2, 0, 1)]))?;
    Ok(())
}

/// R11: an active queue pair reaches nothing outside one window of its function.
pub(super) fn r11_regions_lie_in_windows(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { kv_bytes: 4096, ..Default::default() })?;
    rig.driver.disable()?;
    if rig.driver.read(Register::CapWindows)? == 0 {
        for register in Register::ALL.into_iter().filter(|register| is_window(*register)) {
            ensure!(rig.driver.read(register).is_err(), "{register} of a device without windows");
        }
        return Ok(());
    }
    use Register as R;
    let (layout, bus) = (rig.driver.layout(), rig.driver.memory().bus_address());
    let config = rig.driver.config();
    let regions = [
        (layout.sq, 64 * u64::from(config.sq_depth)),
        (layout.cq, 32 * u64::from(config.cq_depth)),
        (layout.tokens, config.token_bytes),
        (layout.kv, config.kv_bytes),
    ]
    .map(|(offset, bytes)| (bus + offset as u64, bytes));
    let (start, end) = (bus, regions[3].0 + regions[3].1);
    let set = |rig: &mut Rig, low: [Register; 2], base: u64, size: u64| -> Result<(), Failure> {
        let high = [low[0], low[1]].map(|low| Register::at(low as u32 + 4).expect("its high half").0);
        for (register, value) in [
            (low[0], base as u32),
            (high[0], (base >> 32) as u32),
            (low[1], size as u32),
            (high[1], (size >> 32) as u32),
        ] {
            rig.driver.write(register, value)?;
        }
        Ok(())
    };
    let starts = |rig: &mut Rig| -> Result<bool, Failure> {
        rig.driver.write(R::Control, Control::ENABLE.bits())?;
        rig.driver.platform_mut().advance(1)?;
        let active = rig.driver.read(R::State)? & State::ACTIVE.bits() != 0;
        let fault = rig.driver.read(R::Error)?;
        ensure_eq!(
            fault == DeviceFault::BAD_CONFIG.bits(),
            !active,
            "ERROR is {fault:#x} with ACTIVE {active}"
        );
        rig.driver.write(R::Control, 0)?;
        for _ in 0..100 {
            if rig.driver.read(R::State)? & State::ACTIVE.bits() == 0 {
                break;
            }
            rig.driver.platform_mut().advance(1)?;
        }
        rig.driver.write(R::Error, u32::MAX)?;
        Ok(active)
    };
    let windows = [
        [R::Window0BaseLo, R::Window0SizeLo],
        [R::Window1BaseLo, R::Window1SizeLo],
        [R::Window2BaseLo, R::Window2SizeLo],
    ];
    let mut cases = vec![
        (vec![(start, end - start)], true),
        (vec![(0, u64::MAX)], true),
        // Up to the end of all addresses, and past it.
        (vec![(start, start.wrapping_neg())], true),
        (vec![(start, start.wrapping_neg() + 1)], false),
        (vec![(start, u64::MAX)], false),
        (vec![], false),
        (vec![(start + 1, end - start)], false),
        (vec![(start, end - start - 1)], false),
        (vec![(start + (1 << 32), end - start)], false),
        (vec![(start - (1 << 32), end - start)], false),
        // The sum wraps, and the window ends before it begins.
        (vec![(end, u64::MAX)], false),
        // In two windows together, but in none whole.
        (vec![(start, 64), (start + 64, end - start - 64)], false),
        // A window for the queues, and one for the rest.
        (vec![(start, regions[2].0 - start), (regions[2].0, end - regions[2].0)], true),
    ];
    for &(base, bytes) in &regions {
        // All but the first, or the last, byte of one region, each half in a window of its own.
        cases.push((vec![(start, base - start), (base + 1, end - base - 1)], false));
        cases.push((vec![(start, base + bytes - 1 - start), (base + bytes, end - base - bytes)], false));
    }
    for (case, expected) in cases {
        for turn in 0..3 {
            for (k, &window) in windows.iter().enumerate() {
                let (base, size) = case.get((k + turn) % 3).copied().unwrap_or((0, 0));
                set(&mut rig, window, base, size)?;
            }
            ensure_eq!(starts(&mut rig)?, expected, "R11: regions {regions:#x?} in windows {case:#x?}");
        }
    }
    // An empty region lies everywhere.
    for (low, high) in [(R::KvSizeLo, R::KvSizeHi), (R::TokenSizeLo, R::TokenSizeHi)] {
        rig.driver.write(low, 0)?;
        rig.driver.write(high, 0)?;
    }
    set(&mut rig, windows[0], start, regions[2].0 - start)?;
    set(&mut rig, windows[1], 0, 0)?;
    set(&mut rig, windows[2], 0, 0)?;
    ensure!(starts(&mut rig)?, "R11: empty regions outside all windows");
    set(&mut rig, windows[0], 0, u64::MAX)?;
    rig.driver.enable()?;
    for window in windows {
        refused(rig.driver.write(window[0], 0), "a window of a function that is active")?;
    }
    rig.check(&numbered([HwDesc::decode(1, 0, 3)]))?;
    Ok(())
}

fn is_window(register: Register) -> bool {
    (Register::Window0BaseLo..=Register::Window2SizeHi).contains(&register)
}

/// The registers that the device has: those of a part that its capability words deny answer SLVERR.
fn present(platform: &mut dyn Platform) -> Result<Vec<Register>, Failure> {
    let features = Features::of(platform)?;
    let has = |feature| features.capability.contains(feature);
    let windows = platform.read_register(Register::CapWindows)? > 0;
    ensure_eq!(
        platform.read_register(Register::CapPolicySlots)?,
        if has(Capability::POLICY) { 2 } else { 0 },
        "CAP_POLICY_SLOTS"
    );
    let absent = [
        (!windows, Register::Window0BaseLo..=Register::Window2SizeHi),
        (!has(Capability::POLICY), Register::PolicySlot0..=Register::PolicySlot1),
        (features.reward_models < 2, Register::Range0Lo..=Register::Range15Hi),
        (features.engines < 2, Register::ModelBaseLo..=Register::Arena3SizeHi),
        (!has(Capability::LOGP), Register::LogpBaseLo..=Register::LogpSizeHi),
        (!has(Capability::EVENTS), Register::EqBaseLo..=Register::EventsDropped),
        (!has(Capability::ABORT), Register::Abort..=Register::Abort),
        (!has(Capability::WATCHDOG), Register::BusTimeout..=Register::BusTimeout),
        (!has(Capability::INTERRUPT), Register::Arm..=Register::Arm),
        (!has(Capability::INTERRUPT), Register::CoalesceCount..=Register::CoalesceCount),
        (!has(Capability::INTERRUPT), Register::CoalesceTime..=Register::CoalesceTime),
        (!has(Capability::INTERRUPT), Register::MessageAddressLo..=Register::MessageControl),
        (!has(Capability::WORKER_COUNTERS), Register::WorkerTokensLo..=Register::WorkerStallWriteHi),
    ];
    let is_absent =
        |register: &Register| absent.iter().any(|(absent, range)| *absent && range.contains(register));
    for register in Register::ALL.into_iter().filter(is_absent) {
        let read = platform.read_register(register);
        ensure!(read.is_err(), "{register}, which the device does not have, can be read");
        refused(platform.write_register(register, 0), &format!("a write of {register}"))?;
    }
    Ok(Register::ALL.into_iter().filter(|register| !is_absent(register)).collect())
}

/// DRAIN: no doorbell any more, what is published completes (R3), then the queue pair is inactive by itself.
pub(super) fn r12_drain_completes_what_is_published(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for count in [0, 1, 40] {
        let mut rig = bench.open(QueueConfig { sq_depth: 64, ..Default::default() })?;
        let descs = numbered((0..count).map(|k| HwDesc::decode(k, 5, 6)));
        rig.driver.submit(&descs)?;
        rig.driver.write(Register::Control, (Control::ENABLE | Control::DRAIN).bits())?;
        refused(rig.driver.write(Register::Doorbell, count + 1), "a doorbell while it drains")?;
        let mut patience = 100_000;
        while rig.driver.read(Register::State)? & State::ACTIVE.bits() != 0 {
            rig.driver.platform_mut().advance(1)?;
            patience -= 1;
            ensure!(patience > 0, "R12: a drain of {count} descriptors does not end");
        }
        ensure_eq!(rig.driver.read(Register::Control)?, 0, "CONTROL after a drain");
        for (register, expected) in [(Register::SqHead, count), (Register::CqTail, count)] {
            ensure_eq!(rig.driver.read(register)?, expected, "{register} after a drain of {count}");
        }
        ensure_eq!(rig.driver.counter(Counter::Completions)?, u64::from(count), "R3: completions of a drain");
        rig.driver.disable()?;
        rig.driver.enable()?;
        rig.check(&descs)?;
    }
    Ok(())
}

/// A reset of a function is a disable of all its queue pairs.
pub(super) fn r12_a_function_reset_disables(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { token_bytes: 8 << 20, sq_depth: 64, ..Default::default() })?;
    rig.driver.submit(&numbered((0..40).map(|k| HwDesc::decode(k, 0, 40_000))))?;
    rig.driver.platform_mut().advance(1)?;
    rig.driver.write(Register::FnControl, FunctionControl::RESET.bits())?;
    let mut patience = 100_000;
    while rig.driver.read(Register::FnControl)? != 0 {
        rig.driver.platform_mut().advance(1)?;
        patience -= 1;
        ensure!(patience > 0, "R12: a reset of a function does not end");
    }
    let state = State::from_bits_retain(rig.driver.read(Register::State)?);
    ensure_eq!(state, State::IDLE, "R12: STATE once a reset of the function is over");
    disable_and_restart(&mut rig)
}

/// An ENABLE right behind a disable is refused while ACTIVE is still 1, and enables behind it: none is accepted without effect.
pub(super) fn r12_an_enable_is_refused_until_the_disable_is_over(
    bench: &mut Bench<'_>,
) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { token_bytes: 8 << 20, sq_depth: 64, ..Default::default() })?;
    for written in [Control::ENABLE, Control::ENABLE | Control::DRAIN] {
        rig.driver.submit(&numbered((0..40).map(|k| HwDesc::decode(k, 0, 40_000))))?;
        rig.driver.platform_mut().advance(1)?;
        rig.driver.write(Register::Control, 0)?;
        let answer = rig.driver.write(Register::Control, written.bits());
        let control = Control::from_bits_retain(rig.driver.read(Register::Control)?);
        if answer.is_ok() {
            ensure_eq!(control, Control::ENABLE, "R12: CONTROL behind an ENABLE that was accepted");
        } else {
            refused(answer, "an ENABLE while ACTIVE is 1")?;
            ensure_eq!(control, Control::empty(), "R12: CONTROL behind an ENABLE that was refused");
        }
        disable_and_restart(&mut rig)?;
    }
    Ok(())
}

pub(super) fn registers_after_reset(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut platform = bench.platform()?;
    let has_windows = platform.read_register(Register::CapWindows)? > 0;
    for register in present(&mut *platform)? {
        // Whose the queue pair is was said already.
        if let Some(reset) = register.reset().filter(|_| register != Register::QueueFunction) {
            ensure_eq!(platform.read_register(register)?, reset, "{register} after reset");
        }
    }
    let built = platform.read_register(Register::CapWorkers)?;
    ensure!(built > 0, "CAP_WORKERS is 0");
    ensure_eq!(platform.read_register(Register::FnWorkers)?, every(built), "FN_WORKERS after reset");
    for (word, most) in [(Register::CapQueues, 16), (Register::CapFunctions, 16)] {
        let value = platform.read_register(word)?;
        ensure!((1..=most).contains(&value), "{word} is {value}");
    }
    let engines = platform.read_register(Register::CapEngines)?;
    ensure!((1..=2).contains(&engines), "CAP_ENGINES is {engines}");
    let models = platform.read_register(Register::CapRewardModels)?;
    ensure!((1..=2).contains(&models), "CAP_REWARD_MODELS is {models}");
    ensure_eq!(platform.read_register(Register::CapPageBytes)?, 4096, "CAP_PAGE_BYTES");
    if has_windows {
        for half in [Register::Window0SizeLo, Register::Window0SizeHi] {
            ensure_eq!(platform.read_register(half)?, u32::MAX, "{half} of function 0 after reset");
        }
    }
    Ok(())
}

/// FN_WORKERS of a function that may use all of so many workers.
fn every(workers: u32) -> u32 {
    u32::MAX >> 32u32.saturating_sub(workers)
}

pub(super) fn registers_refuse_what_their_access_forbids(bench: &mut Bench<'_>) -> Result<(), Failure> {
    // Inactive: cfg registers hold what is written, within their width.
    let mut platform = bench.platform()?;
    let present = present(&mut *platform)?;
    for register in present.iter().copied().filter(|register| register.access() == Access::Config) {
        let mask = match register {
            Register::FnWorkers | Register::LengthLimit | Register::Weight | Register::QueueFunction => {
                continue;
            }
            Register::WaitStates | Register::EosThreshold | Register::CoalesceCount => 0xFFFF,
            Register::EventControl => EventControl::all().bits(),
            _ => u32::MAX,
        };
        let before = platform.read_register(register)?;
        for value in [0xA5A5_5A5A, 0x5A5A_A5A5, 0, before] {
            platform.write_register(register, value)?;
            ensure_eq!(
                platform.read_register(register)?,
                value & mask,
                "{register} after {value:#x} was written"
            );
        }
    }
    let built = platform.read_register(Register::CapWorkers)?;
    let functions = platform.read_register(Register::CapFunctions)?;
    let every = every(built);
    for (register, bad, good) in [
        (Register::LengthLimit, vec![LENGTH_LIMIT_MAX + 1, u32::MAX], vec![0, LENGTH_LIMIT_MAX]),
        (Register::Weight, vec![0, 256, 0x101, u32::MAX], vec![255, 2, 1]),
        (Register::QueueFunction, vec![functions, functions | 0x100, u32::MAX], vec![functions - 1, 0]),
        (Register::FnWorkers, vec![0, !every], vec![1 << (built.min(32) - 1), 1, every]),
    ] {
        for value in bad.into_iter().filter(|&value| register != Register::FnWorkers || value & every == 0) {
            refused(platform.write_register(register, value), &format!("{register} = {value:#x}"))?;
        }
        for value in good {
            platform.write_register(register, value)?;
            ensure_eq!(platform.read_register(register)?, value, "{register}");
        }
    }
    platform.write_register(Register::FnWorkers, u32::MAX)?;
    ensure_eq!(
        platform.read_register(Register::FnWorkers)?,
        every,
        "FN_WORKERS with bits that were not built"
    );

    // Active: they refuse, as read-only ones always do. (A GPU has room for one device at a time.)
    drop(platform);
    let mut rig = bench.open(QueueConfig::default())?;
    for register in present {
        let before = rig.driver.read(register)?;
        match register.access() {
            Access::ReadOnly => {}
            Access::Config => ensure!(
                rig.driver.read(Register::State)? & State::ACTIVE.bits() != 0,
                "STATE.ACTIVE after the driver enabled the device"
            ),
            Access::ReadWrite | Access::WriteOneClears => continue,
        }
        refused(rig.driver.write(register, !before), &format!("a write of {register} while active"))?;
        if register.access() == Access::Config {
            ensure_eq!(rig.driver.read(register)?, before, "{register} after a refused write");
        }
    }
    rig.check(&numbered([HwDesc::decode(1, 0, 3)]))?;
    Ok(())
}

pub(super) fn counters_count(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { wait_states: 2, ..Default::default() })?;
    let bad = HwDesc::decode(0, 0, 0);
    let good = (0..10).map(|k| HwDesc::decode(k, 0, 16 * (1 + k)));
    let descs = numbered(good.chain([HwDesc::nop(), bad, HwDesc::prefill(0, 4), bad]));
    rig.check(&descs)?;
    let counters = rig.driver.counters()?;
    let tokens = 16 * 55;
    for (counter, expected) in [
        (Counter::Descriptors, 14),
        (Counter::Completions, 14),
        (Counter::Tokens, tokens),
        (Counter::Wait, 2 * tokens),
        (Counter::Errors, 2),
        (Counter::Prefixes, 1),
        (Counter::ReadBeats, 14),
    ] {
        ensure_eq!(counters.get(counter), expected, "{counter}");
    }
    // Token lines of 64 bytes, aligned by construction; two completions may share a beat.
    let lines = tokens / 16;
    let beats = counters.get(Counter::WriteBeats);
    ensure!(
        (lines + 7..=lines + 14).contains(&beats),
        "WRITE_BEATS is {beats} for {lines} lines and 14 completions"
    );
    ensure!(counters.get(Counter::Busy) >= 3 * tokens, "BUSY is {}", counters.get(Counter::Busy));
    ensure!(counters.get(Counter::Cycles) > 0, "CYCLES is 0");
    counters_of_workers(&mut rig)?;
    counters_of_a_queue_pair(&mut rig)
}

/// Of a device that has them: added up over all workers they are the device's, and each is that of the worker's own rollouts.
fn counters_of_workers(rig: &mut Rig) -> Result<(), Failure> {
    let (workers, all) = (rig.driver.worker_counters()?, rig.driver.counters()?);
    if workers.is_empty() {
        return Ok(());
    }
    ensure_eq!(workers.len(), rig.driver.read(Register::CapWorkers)? as usize, "workers that have counters");
    for counter in WorkerCounter::ALL {
        let sum: u64 = workers.iter().map(|worker| worker.get(counter)).sum();
        ensure_eq!(sum, all.get(counter.of_device()), "{counter} of all workers");
    }
    for (number, worker) in workers.iter().enumerate() {
        let [tokens, busy] = [WorkerCounter::Tokens, WorkerCounter::Busy].map(|counter| worker.get(counter));
        // Two wait states before each token.
        ensure!(busy >= 3 * tokens, "worker {number} was busy for {busy} cycles and made {tokens} tokens");
    }
    Ok(())
}

/// They count for their queue pair, keep their value behind a disable, and clear at its ENABLE.
fn counters_of_a_queue_pair(rig: &mut Rig) -> Result<(), Failure> {
    let expect = |rig: &mut Rig, expected: [u64; 4], when: &str| -> Result<(), Failure> {
        use QueueCounter as Q;
        for (counter, expected) in
            [Q::Descriptors, Q::Completions, Q::Tokens, Q::Errors].into_iter().zip(expected)
        {
            ensure_eq!(rig.driver.queue_counter(counter)?, expected, "{counter} of the queue pair {when}");
        }
        Ok(())
    };
    expect(rig, [14, 14, 16 * 55, 2], "that has run")?;
    rig.driver.disable()?;
    expect(rig, [14, 14, 16 * 55, 2], "after its disable")?;
    rig.driver.enable()?;
    expect(rig, [0; 4], "at its ENABLE")?;
    // Odd lengths, lines that begin and end anywhere, and what writes no token.
    let odd = (0..20).map(|k| HwDesc::decode(k, 0, 1 + 3 * k).with_delta_offset(4 * (1 + u64::from(k) * 64)));
    rig.check(&numbered(odd.chain([HwDesc::stop(100), HwDesc::nop()])))?;
    expect(rig, [22, 22, 20 + 3 * 190, 0], "that has run again")?;
    ensure_eq!(
        rig.driver.queue_counter(QueueCounter::StallCq)?,
        0,
        "STALL_CQ of a queue pair that never waited"
    );
    Ok(())
}
