//! R14: arming, firing, masking, coalescing, and the message.

use std::sync::atomic::Ordering;

use rand_chacha::rand_core::Rng;

use super::rig::{below, refused};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use doorbell_contract::{
    Capability, Control, Counter, DescFlags, DeviceFault, HwCompletion, HwDesc, MessageControl, Register,
    State,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;
use doorbell_host::error::DeviceError;
use doorbell_host::memory::PAGE;
use doorbell_host::platform::Platform;

/// Races of a random run; the environment variable `DOORBELL_ARMINGS` asks for another number.
const RACES: u32 = 2000;

pub(super) fn has_interrupts<P: Platform>(rig: &Rig<P>) -> bool {
    rig.features.capability.contains(Capability::INTERRUPT)
}

/// A device with interrupts, configured so; `None` if it has none: the driver would refuse to coalesce them.
fn open(bench: &mut Bench<'_>, config: QueueConfig) -> Result<Option<Rig>, Failure> {
    let plain = bench.open(QueueConfig::default())?;
    let has = has_interrupts(&plain);
    drop(plain);
    if has { bench.open(config).map(Some) } else { Ok(None) }
}

/// Arms the queue pair at the completion that the host would read next.
pub(super) fn arm(rig: &mut Rig) -> Result<(), Failure> {
    let next = rig.driver.read(Register::CqHead)?;
    Ok(rig.driver.write(Register::Arm, next)?)
}

/// Whether the message has come since it was last looked for.
fn message<P: Platform>(rig: &Rig<P>) -> Result<bool, Failure> {
    let word = rig.driver.memory().word32(rig.driver.layout().message)?;
    Ok(word.swap(0, Ordering::Acquire) != 0)
}

/// Whether the queue pair is armed, and whether its message has come since it was last looked for.
pub(super) fn told<P: Platform>(rig: &mut Rig<P>) -> Result<(bool, bool), Failure> {
    let state = State::from_bits_retain(rig.driver.read(Register::State)?);
    Ok((state.contains(State::ARMED), message(rig)?))
}

fn is_pending(rig: &mut Rig) -> Result<bool, Failure> {
    Ok(rig.driver.read(Register::MessagesPending)? != 0)
}

fn mask(rig: &mut Rig, masked: bool) -> Result<(), Failure> {
    let control = if masked { MessageControl::MASK } else { MessageControl::empty() };
    Ok(rig.driver.write(Register::MessageControl, control.bits())?)
}

fn asking() -> HwDesc {
    HwDesc::decode(1, 0, 3).with_flags(DescFlags::INTERRUPT)
}

/// Has `desc` complete, and leaves its completion where it is.
fn post(rig: &mut Rig, desc: HwDesc) -> Result<(), Failure> {
    rig.driver.submit(&[desc])?;
    rig.settle()
}

pub(super) fn r14_one_message_per_arming(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_interrupts(&rig) {
        refused(rig.driver.write(Register::Arm, 0), "R14: ARM without CAPABILITY.INTERRUPT")?;
        return Ok(());
    }
    ensure_eq!(told(&mut rig)?, (false, false), "armed, told, after ENABLE");
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (false, false), "armed, told, unarmed, after a completion that asked");
    arm(&mut rig)?;
    rig.settle()?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, armed late, with such a completion visible");
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (false, false), "armed, told, by another one, not armed anew");
    rig.drain()?;

    arm(&mut rig)?;
    rig.settle()?;
    ensure_eq!(told(&mut rig)?, (true, false), "armed, told, with nothing at or above ARM");
    post(&mut rig, HwDesc::decode(2, 0, 3))?;
    ensure_eq!(told(&mut rig)?, (true, false), "armed, told, after a completion that did not ask");
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, after one that asked, after it");

    // ARM names an index, whatever is released: at the one that asked, and at the next.
    let asked = rig.driver.read(Register::CqTail)?.wrapping_sub(1);
    rig.drain()?;
    rig.driver.write(Register::Arm, asked)?;
    rig.settle()?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, at one that asked and is released");
    rig.driver.write(Register::Arm, asked.wrapping_add(1))?;
    rig.settle()?;
    ensure_eq!(told(&mut rig)?, (true, false), "armed, told, after the last one that asked");
    ensure_eq!(rig.driver.read(Register::Arm)?, asked.wrapping_add(1), "ARM");
    // Armed anew in place of the other.
    rig.driver.write(Register::Arm, asked.wrapping_add(3))?;
    post(&mut rig, asking())?;
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (true, false), "armed, told, above those that asked");
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, by the one at ARM");
    rig.drain()?;
    Ok(())
}

pub(super) fn r14_an_error_asks_for_an_interrupt(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_interrupts(&rig) {
        return Ok(());
    }
    arm(&mut rig)?;
    post(&mut rig, HwDesc::decode(1, 0, 0))?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, after an ERROR");
    rig.drain()?;
    Ok(())
}

pub(super) fn r14_what_is_masked_is_pending_and_sent_once(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_interrupts(&rig) {
        return Ok(());
    }
    mask(&mut rig, true)?;
    for _ in 0..2 {
        arm(&mut rig)?;
        post(&mut rig, asking())?;
        ensure_eq!(told(&mut rig)?, (false, false), "armed, told, while masked");
        ensure!(is_pending(&mut rig)?, "MESSAGES_PENDING while masked");
    }
    mask(&mut rig, false)?;
    rig.settle()?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, once unmasked");
    ensure!(!is_pending(&mut rig)?, "MESSAGES_PENDING once it is sent");
    mask(&mut rig, true)?;
    mask(&mut rig, false)?;
    rig.settle()?;
    ensure_eq!(told(&mut rig)?, (false, false), "armed, told, unmasked again");
    rig.drain()?;
    Ok(())
}

pub(super) fn r14_a_number_of_completions_fires(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for count in [1, 2, 5] {
        let config = QueueConfig { coalesce_count: count, ..Default::default() };
        let Some(mut rig) = open(bench, config)? else { return Ok(()) };
        for round in 0..3 {
            arm(&mut rig)?;
            for k in 1..=count {
                post(&mut rig, HwDesc::nop())?;
                let fires = k == count;
                ensure_eq!(
                    told(&mut rig)?,
                    (!fires, fires),
                    "armed, told, by {k} of {count} in round {round}"
                );
            }
            rig.drain()?;
        }
        // One that asks does not wait for them.
        arm(&mut rig)?;
        post(&mut rig, asking())?;
        ensure_eq!(told(&mut rig)?, (false, true), "armed, told, by one that asks, of {count}");
        rig.drain()?;
    }
    Ok(())
}

pub(super) fn r14_time_fires(bench: &mut Bench<'_>) -> Result<(), Failure> {
    const TIME: u32 = 20_000;
    let config = QueueConfig { coalesce_time: TIME, ..Default::default() };
    let Some(mut rig) = open(bench, config)? else { return Ok(()) };
    let has_time = rig.driver.read(Register::CapTickHz)? != 0;
    for round in 0..3 {
        arm(&mut rig)?;
        rig.settle()?;
        ensure_eq!(told(&mut rig)?, (true, false), "armed, told, with nothing visible, in round {round}");
        rig.driver.submit(&[HwDesc::nop()])?;
        let before = rig.driver.counter(Counter::Cycles)?;
        let mut advances = 0;
        while told(&mut rig)? == (true, false) {
            ensure!(advances < 100, "R15: COALESCE_TIME is over, and nothing has fired");
            rig.driver.platform_mut().advance(1)?;
            advances += 1;
        }
        let passed = rig.driver.counter(Counter::Cycles)? - before;
        ensure!(
            !has_time || passed >= u64::from(TIME),
            "R14: fired {passed} cycles after a doorbell, of {TIME}"
        );
        rig.drain()?;
        // What is in time takes the time back with it.
        arm(&mut rig)?;
        post(&mut rig, asking())?;
        ensure_eq!(told(&mut rig)?, (false, true), "armed, told, by one that asks, in round {round}");
        rig.settle()?;
        ensure_eq!(told(&mut rig)?, (false, false), "armed, told, after it");
        rig.drain()?;
    }
    Ok(())
}

/// However the host coalesces, and whether it is armed before the completion or while the queue pair drains.
pub(super) fn r14_a_drain_tells_of_its_last_completion(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for (coalesce_count, coalesce_time) in [(0, 0), (100, 0), (0, 1 << 30), (3, 1 << 30)] {
        let config = QueueConfig { coalesce_count, coalesce_time, ..Default::default() };
        let Some(mut rig) = open(bench, config)? else { return Ok(()) };
        let what = format!("with COALESCE_COUNT {coalesce_count} and COALESCE_TIME {coalesce_time}");
        // Armed at the completion, and above it.
        for (ahead, fires) in [(0, true), (1, false)] {
            let start = rig.driver.read(Register::CqTail)?;
            rig.driver.write(Register::Arm, start.wrapping_add(ahead))?;
            rig.driver.submit(&[HwDesc::nop()])?;
            rig.driver.write(Register::Control, (Control::ENABLE | Control::DRAIN).bits())?;
            end_of_drain(&mut rig)?;
            ensure_eq!(message(&rig)?, fires, "told, armed {ahead} ahead, {what}");
            rig.driver.disable()?;
            rig.driver.enable()?;
        }
        // Masked: it is taken back, and holds nothing up.
        mask(&mut rig, true)?;
        arm(&mut rig)?;
        rig.driver.submit(&[HwDesc::nop()])?;
        rig.driver.write(Register::Control, (Control::ENABLE | Control::DRAIN).bits())?;
        end_of_drain(&mut rig)?;
        ensure!(!is_pending(&mut rig)?, "MESSAGES_PENDING after a drain, {what}");
        mask(&mut rig, false)?;
        rig.settle()?;
        ensure!(!message(&rig)?, "R12: a message after a drain, {what}");
    }
    Ok(())
}

/// Waits until a drain has ended.
fn end_of_drain(rig: &mut Rig) -> Result<(), Failure> {
    for _ in 0..10_000 {
        if !State::from_bits_retain(rig.driver.read(Register::State)?).contains(State::ACTIVE) {
            return Ok(());
        }
        rig.driver.platform_mut().advance(1)?;
    }
    Err(Failure("R15: the drain does not end".to_owned()))
}

/// MESSAGE_CONTROL shows MASK as it was written, and SENDING only while a message is under way.
pub(super) fn r14_a_message_that_was_sent_is_shown_until_its_answer(
    bench: &mut Bench<'_>,
) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_interrupts(&rig) {
        return Ok(());
    }
    for _ in 0..20 {
        arm(&mut rig)?;
        rig.driver.submit(&[asking()])?;
        let mut tries = 0;
        while !message(&rig)? {
            ensure!(tries < 10_000, "R14: no message");
            rig.driver.platform_mut().advance(1)?;
            tries += 1;
        }
        mask(&mut rig, true)?;
        let mut tries = 0;
        while rig.driver.read(Register::MessageControl)? & MessageControl::SENDING.bits() != 0 {
            ensure!(tries < 10_000, "R15: MESSAGE_CONTROL.SENDING stays");
            rig.driver.platform_mut().advance(1)?;
            tries += 1;
        }
        // SENDING is read-only.
        rig.driver.write(Register::MessageControl, MessageControl::all().bits())?;
        let control = rig.driver.read(Register::MessageControl)?;
        ensure_eq!(control, MessageControl::MASK.bits(), "MESSAGE_CONTROL, masked, with nothing under way");
        mask(&mut rig, false)?;
        ensure_eq!(rig.driver.read(Register::MessageControl)?, 0, "MESSAGE_CONTROL");
        rig.drain()?;
    }
    Ok(())
}

pub(super) fn r12_r14_a_disable_takes_the_interrupt_back(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_interrupts(&rig) {
        return Ok(());
    }
    let start = rig.driver.config().cq_start;
    arm(&mut rig)?;
    rig.driver.disable()?;
    refused(rig.driver.write(Register::Arm, start), "ARM while inactive")?;
    rig.driver.enable()?;
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (false, false), "armed, told, after a disable");
    // What is pending, too.
    mask(&mut rig, true)?;
    rig.driver.write(Register::Arm, start)?;
    rig.settle()?;
    ensure!(is_pending(&mut rig)?, "MESSAGES_PENDING while masked");
    rig.driver.disable()?;
    ensure!(!is_pending(&mut rig)?, "MESSAGES_PENDING after a disable");
    mask(&mut rig, false)?;
    rig.settle()?;
    ensure!(!message(&rig)?, "R12: a message after a disable");
    rig.driver.enable()?;
    arm(&mut rig)?;
    post(&mut rig, asking())?;
    ensure_eq!(told(&mut rig)?, (false, true), "armed, told, in the next life");
    rig.drain()?;
    Ok(())
}

pub(super) fn r14_a_message_that_nobody_takes_is_told(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_interrupts(&rig) {
        return Ok(());
    }
    let (memory, at) = (rig.driver.memory().clone(), rig.driver.layout().message);
    let behind = memory.bus_address() + (memory.len() + PAGE) as u64;
    refused(rig.driver.write(Register::MessageAddressLo, behind as u32 | 2), "a misaligned message")?;
    rig.driver.write(Register::MessageAddressLo, behind as u32)?;
    rig.driver.write(Register::MessageAddressHi, (behind >> 32) as u32)?;
    let before = rig.snapshot()?;
    arm(&mut rig)?;
    rig.driver.submit(&[asking()])?;
    rig.drain()?;
    rig.settle()?;
    ensure_eq!(rig.driver.read(Register::Error)?, DeviceFault::MESSAGE_WRITE.bits(), "ERROR");
    let after = rig.snapshot()?;
    let tokens = rig.driver.layout().tokens / 4;
    ensure!(before[tokens + 3..] == after[tokens + 3..], "R11: a message that nobody takes was written");
    // Another word of the page, and the four bytes alone.
    rig.driver.write(Register::Error, u32::MAX)?;
    let here = memory.bus_address() + (at + 60) as u64;
    rig.driver.write(Register::MessageAddressLo, here as u32)?;
    rig.driver.write(Register::MessageAddressHi, (here >> 32) as u32)?;
    rig.driver.write(Register::MessageData, 0xA5C3_96E1)?;
    for offset in [56, 64] {
        memory.word32(at + offset)?.store(0x5EED_5EED, Ordering::Relaxed);
    }
    arm(&mut rig)?;
    post(&mut rig, asking())?;
    let words =
        [56, 60, 64].map(|offset| memory.word32(at + offset).map(|word| word.load(Ordering::Acquire)));
    let words = words.into_iter().collect::<Result<Vec<_>, DeviceError>>()?;
    ensure_eq!(words, [0x5EED_5EED, 0xA5C3_96E1, 0x5EED_5EED], "what lies about the message");
    ensure_eq!(rig.driver.read(Register::Error)?, 0, "ERROR");
    rig.drain()?;
    Ok(())
}

/// Arms, masks, submits and reaps at random, and looks from time to time, when all is quiet: what has to have fired has, and
/// nothing else.
pub(super) fn r14_no_wake_up_is_lost(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    let asked = std::env::var("DOORBELL_ARMINGS").ok().and_then(|text| text.parse().ok());
    let (count, races) = (below(&mut random, 4), asked.unwrap_or(RACES));
    let start = 0u32.wrapping_sub(below(&mut random, 100));
    let config = QueueConfig { coalesce_count: count, cq_start: start, ..Default::default() };
    let Some(mut rig) = open(bench, config)? else { return Ok(()) };
    // By running index from `start`: whether the completion asked.
    let mut asks: Vec<bool> = Vec::new();
    let note =
        |asks: &mut Vec<bool>, ends: &[HwCompletion]| asks.extend(ends.iter().map(|end| end.user_data == 1));
    let (mut masked, mut armings, mut messages) = (false, 0, 0);
    // Where it is armed, and whether it has been told since.
    let (mut armed, mut heard) = (None, false);
    for race in 0..races {
        match below(&mut random, 8) {
            0..=2 => {
                let wants = random.next_u32() & 1;
                let flags = if wants == 1 { DescFlags::INTERRUPT } else { DescFlags::empty() };
                let desc = HwDesc::decode(race, 0, 1 + below(&mut random, 3)).with_flags(flags);
                rig.driver.submit(&[desc.with_user_data(wants.into())])?;
            }
            3 => rig.driver.platform_mut().advance(1)?,
            4 => {
                masked = random.next_u32() & 1 == 1;
                mask(&mut rig, masked)?;
            }
            5 => {
                let mut ends = [HwCompletion::default(); 8];
                let taken = rig.driver.collect(&mut ends)?;
                note(&mut asks, &ends[..taken]);
            }
            6 => {
                let tail = rig.driver.read(Register::CqTail)?;
                let index = tail.wrapping_add(below(&mut random, 6)).wrapping_sub(3);
                heard = false;
                messages += u32::from(message(&rig)?);
                rig.driver.write(Register::Arm, index)?;
                armings += 1;
                armed = Some(index);
            }
            _ => {
                let ends = rig.drain()?;
                rig.settle()?;
                note(&mut asks, &ends);
                let (is_armed, told) = told(&mut rig)?;
                heard |= told;
                messages += u32::from(told);
                ensure!(messages <= armings, "R14: {messages} messages of {armings} armings (race {race})");
                let Some(index) = armed else { continue };
                // Of the completions at or above ARM; what lies before the first is none.
                let above = (asks.len() as u32).wrapping_sub(index.wrapping_sub(start)) as i32;
                let above = usize::try_from(above).unwrap_or(0).min(asks.len());
                let due = asks[asks.len() - above..].contains(&true) || count != 0 && above >= count as usize;
                ensure_eq!(is_armed, !due, "R14: STATE.ARMED, armed at {index} (race {race})");
                let pending = is_pending(&mut rig)?;
                ensure!(!due || heard || pending, "R14: a wake-up is lost (race {race})");
                ensure!(masked || !pending, "R14: not masked, and pending (race {race})");
            }
        }
        let told = message(&rig)?;
        heard |= told;
        messages += u32::from(told);
    }
    rig.drain()?;
    Ok(())
}
