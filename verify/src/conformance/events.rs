//! R23: what LIFE and FAULT events tell, what finds no room, and how a ring starts and ends.

use std::sync::atomic::Ordering;

use super::interrupts::{arm, has_interrupts};
use super::rig::{below, refused};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use doorbell_contract::{
    Capability, Control, DescFlags, DeviceFault, EVENT_DELTA_MAX, EventControl, EventKind, HwCompletion,
    HwDesc, HwEvent, Register, State,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;
use doorbell_host::memory::PAGE;
use doorbell_host::platform::Platform;

/// Descriptors of a random run; the environment variable `DOORBELL_LIVES` asks for another number.
const LIVES: u32 = 5000;

pub(super) fn has_events<P: Platform>(rig: &Rig<P>) -> bool {
    rig.features.capability.contains(Capability::EVENTS)
}

/// A device with an event ring, unless it has no events.
fn open(bench: &mut Bench<'_>, config: QueueConfig) -> Result<Option<Rig>, Failure> {
    // Some can be open only once at a time.
    let word = bench.platform()?.read_register(Register::Capability)?;
    let capability = Capability::from_bits_retain(word);
    if capability.contains(Capability::EVENTS) { Ok(Some(bench.open(config)?)) } else { Ok(None) }
}

fn ring(slots: u32) -> QueueConfig {
    QueueConfig { event_slots: slots, life_events: true, ..Default::default() }
}

/// What lies in the ring.
pub(super) fn read<P: Platform>(rig: &mut Rig<P>) -> Result<Vec<HwEvent>, Failure> {
    let mut events = Vec::new();
    let mut out = [HwEvent::default(); 5];
    loop {
        let taken = rig.driver.events(&mut out)?;
        events.extend_from_slice(&out[..taken]);
        if taken == 0 {
            return Ok(events);
        }
    }
}

fn dropped(rig: &mut Rig) -> Result<u32, Failure> {
    Ok(rig.driver.read(Register::EventsDropped)?)
}

/// Has `descs` complete one after the other, so that no event waits for another one on its way.
fn post(rig: &mut Rig, descs: &[HwDesc]) -> Result<Vec<HwCompletion>, Failure> {
    let mut ends = Vec::new();
    for &desc in descs {
        ends.extend(rig.run(&[desc])?);
        rig.settle()?;
    }
    Ok(ends)
}

/// What every LIFE event holds to, beside its completion of running index `index`.
fn agree<P: Platform>(rig: &Rig<P>, event: &HwEvent, index: u32, end: &HwCompletion) -> Result<(), Failure> {
    ensure_eq!(event.kind, EventKind::Life as u8, "R23: kind of the event of completion {index}");
    ensure_eq!(
        event.queue_id,
        rig.driver.platform().queue(),
        "R23: queue of the event of completion {index}"
    );
    ensure_eq!(event.index, index, "R23: index of an event");
    ensure_eq!(event.worker_id, end.worker_id, "R23: worker_id of the event of completion {index}");
    let moments = [0, event.start, event.first_token, event.ended, event.visible];
    ensure!(moments.is_sorted(), "R23: moments of {event:x?} are out of order");
    Ok(())
}

/// When the completion was visible.
fn visible(event: &HwEvent) -> u64 {
    event.stamp + u64::from(event.visible)
}

pub(super) fn r23_without_events_there_are_no_registers(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if has_events(&rig) {
        // With them, and without a ring, nothing is told and nothing is missed.
        post(&mut rig, &[HwDesc::nop(), HwDesc::decode(1, 0, 0)])?;
        ensure!(read(&mut rig)?.is_empty(), "R23: events without a ring");
        let words = [Register::EqSize, Register::EqHead, Register::EqTail, Register::EventsDropped];
        for word in words {
            ensure_eq!(rig.driver.read(word)?, 0, "{word} without a ring");
        }
        return refused(rig.driver.write(Register::EqHead, 0), "EQ_HEAD without a ring");
    }
    let first = Register::EqBaseLo.address(doorbell_contract::Place::FIRST);
    let last = Register::EventsDropped.address(doorbell_contract::Place::FIRST);
    for address in (first..=last).step_by(4) {
        let Some((register, _)) = Register::at(address) else { continue };
        ensure!(rig.driver.read(register).is_err(), "{register} reads without CAPABILITY.EVENTS");
        refused(rig.driver.write(register, 0), &format!("{register} without CAPABILITY.EVENTS"))?;
    }
    let mut events = [HwEvent::default()];
    ensure_eq!(rig.driver.events(&mut events)?, 0, "events of a device that has none");
    Ok(())
}

pub(super) fn r23_every_completion_has_its_life(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let start = 0u32.wrapping_sub(3);
    let Some(mut rig) = open(bench, QueueConfig { cq_start: start, ..ring(64) })? else { return Ok(()) };
    // One of each kind, more of them in one rollout, and one whose tokens take their time.
    let mut descs = vec![
        HwDesc::nop(),
        HwDesc::decode(1, 0, 1),
        HwDesc::decode(1, 1, 8).with_checkpoint(3),
        HwDesc::decode(1, 0, 0),
        HwDesc::prefill(5, 3),
        HwDesc::stop(1),
        HwDesc { opcode: 0x77, ..HwDesc::nop() },
        HwDesc::decode(2, 0, 4000),
        HwDesc::decode(3, 0, 2).with_flags(DescFlags::FENCE),
    ];
    descs.iter_mut().zip(100..).for_each(|(desc, user_data)| desc.user_data = user_data);
    let ends = post(&mut rig, &descs)?;
    let events = read(&mut rig)?;
    ensure_eq!(dropped(&mut rig)?, 0, "EVENTS_DROPPED of a ring with room");
    ensure_eq!(events.len(), descs.len(), "R23: events of so many completions");
    for (k, (event, (desc, end))) in (0..).zip(events.iter().zip(descs.iter().zip(&ends))) {
        agree(&rig, event, start.wrapping_add(k), end)?;
        ensure_eq!(rig.driver.answered(event), Some(desc.user_data), "whose life event {k} tells");
        let tokens = end.final_seq_len.wrapping_sub(desc.seq_len);
        ensure!(tokens > 0 || event.first_token == event.ended, "R23: a first token of none: {event:x?}");
        ensure!(tokens < 1000 || event.first_token < event.ended, "R23: {tokens} tokens at once: {event:x?}");
    }
    for pair in events.windows(2) {
        ensure!(visible(&pair[0]) <= pair[1].stamp, "R23: one after the other: {pair:x?}");
    }
    Ok(())
}

pub(super) fn r23_without_life_only_faults_are_told(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig { life_events: false, ..ring(8) };
    let Some(mut rig) = open(bench, config)? else { return Ok(()) };
    ensure_eq!(rig.driver.read(Register::EventControl)?, 0, "EVENT_CONTROL");
    post(&mut rig, &[HwDesc::nop(), HwDesc::decode(1, 0, 0), HwDesc::decode(1, 0, 5)])?;
    ensure!(read(&mut rig)?.is_empty(), "R23: LIFE events without EVENT_CONTROL.LIFE");
    if has_interrupts(&rig) {
        let bit = fault(&mut rig)?;
        let events = read(&mut rig)?;
        ensure_eq!(events.len(), 1, "R23: events of one fault");
        told(&mut rig, &events[0], bit)?;
    }
    ensure_eq!(dropped(&mut rig)?, 0, "EVENTS_DROPPED");
    Ok(())
}

/// Has a message go to where nobody takes it, which is a fault of every device with interrupts.
fn fault(rig: &mut Rig) -> Result<DeviceFault, Failure> {
    let memory = rig.driver.memory().clone();
    let behind = memory.bus_address() + (memory.len() + PAGE) as u64;
    rig.driver.write(Register::MessageAddressLo, behind as u32)?;
    rig.driver.write(Register::MessageAddressHi, (behind >> 32) as u32)?;
    arm(rig)?;
    post(rig, &[HwDesc::nop().with_flags(DescFlags::INTERRUPT)])?;
    let found = rig.driver.read(Register::Error)?;
    ensure_eq!(found, DeviceFault::MESSAGE_WRITE.bits(), "ERROR");
    Ok(DeviceFault::MESSAGE_WRITE)
}

/// What a FAULT event holds, of a fault behind the last completion.
fn told(rig: &mut Rig, event: &HwEvent, fault: DeviceFault) -> Result<(), Failure> {
    let index = rig.driver.read(Register::CqTail)?;
    let queue = rig.driver.platform().queue();
    let (kind, start, stamp) = (EventKind::Fault as u8, fault.bits(), event.stamp);
    let expected = HwEvent { kind, queue_id: queue, index, start, stamp, ..HwEvent::default() };
    ensure_eq!(*event, expected, "R23: a FAULT event");
    Ok(())
}

pub(super) fn r23_a_fault_is_told_once(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Some(mut rig) = open(bench, ring(64))? else { return Ok(()) };
    if !has_interrupts(&rig) {
        return Ok(());
    }
    let bit = fault(&mut rig)?;
    let events = read(&mut rig)?;
    let (faults, lives): (Vec<_>, Vec<_>) =
        events.iter().partition(|event| event.kind == EventKind::Fault as u8);
    ensure_eq!(
        (faults.len(), lives.len()),
        (1, 1),
        "R23: FAULT events of a fault, LIFE events of its completion"
    );
    told(&mut rig, faults[0], bit)?;
    // It is sticky: another one is none that was not set.
    fault(&mut rig)?;
    let events = read(&mut rig)?;
    ensure!(
        events.iter().all(|event| event.kind == EventKind::Life as u8),
        "R23: a fault that was set is told again"
    );
    rig.driver.write(Register::Error, bit.bits())?;
    ensure_eq!(rig.driver.read(Register::Error)?, 0, "ERROR, cleared");
    fault(&mut rig)?;
    let events = read(&mut rig)?;
    let faults = events.iter().filter(|event| event.kind == EventKind::Fault as u8);
    ensure_eq!(faults.count(), 1, "R23: FAULT events of a fault that was cleared and is set again");
    Ok(())
}

pub(super) fn r23_a_full_ring_drops_and_holds_nobody_back(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for (slots, room) in [(2, 1), (4, 3), (16, 12)] {
        let Some(mut rig) = open(bench, ring(slots))? else { return Ok(()) };
        post(&mut rig, &vec![HwDesc::nop(); room as usize])?;
        ensure_eq!(dropped(&mut rig)?, 0, "EVENTS_DROPPED with {room} of {slots} slots in use");
        // Nobody reads, and all complete.
        let more = vec![HwDesc::decode(1, 0, 2); 50];
        rig.run(&more)?;
        ensure_eq!(
            rig.driver.read(Register::EqTail)?,
            room,
            "R23: EQ_TAIL of {slots} slots, all but a quarter in use"
        );
        ensure_eq!(dropped(&mut rig)?, 50, "EVENTS_DROPPED of {slots} slots");
        let events = read(&mut rig)?;
        ensure_eq!(events.len(), room as usize, "R23: events of {slots} slots");
        // What is read is room again.
        post(&mut rig, &[HwDesc::nop()])?;
        let index = rig.driver.read(Register::CqTail)?.wrapping_sub(1);
        let events: Vec<_> = read(&mut rig)?.iter().map(|event| event.index).collect();
        ensure_eq!(events, [index], "R23: the event after those that were dropped");
        ensure_eq!(dropped(&mut rig)?, 50, "EVENTS_DROPPED of {slots} slots, with room again");
    }
    Ok(())
}

pub(super) fn r23_the_last_quarter_is_left_for_faults(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Some(mut rig) = open(bench, ring(8))? else { return Ok(()) };
    if !has_interrupts(&rig) {
        return Ok(());
    }
    rig.run(&[HwDesc::nop(); 20])?;
    let before = dropped(&mut rig)?;
    for k in 1..=3 {
        fault(&mut rig)?;
        let used = rig.driver.read(Register::EqTail)?;
        ensure_eq!(used, (6 + k).min(8), "R23: EQ_TAIL after fault {k}");
        // Its completion's event, and where the ring is full its own.
        ensure_eq!(dropped(&mut rig)? - before, k + u32::from(k == 3), "EVENTS_DROPPED after fault {k}");
        rig.driver.write(Register::Error, u32::MAX)?;
    }
    let kinds: Vec<_> = read(&mut rig)?.iter().map(|event| event.kind).collect();
    ensure_eq!(kinds, [1, 1, 1, 1, 1, 1, 2, 2], "R23: kinds of the events");
    Ok(())
}

pub(super) fn r13_r23_phases_alternate(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Some(mut rig) = open(bench, ring(4))? else { return Ok(()) };
    let (memory, at) = (rig.driver.memory().clone(), rig.driver.layout().events);
    for index in 0..40u32 {
        post(&mut rig, &[HwDesc::nop()])?;
        ensure_eq!(rig.driver.read(Register::EqTail)?, index + 1, "EQ_TAIL");
        let slot = at + 32 * (index as usize % 4);
        for half in [8, 24] {
            let word = memory.word64(slot + half)?.load(Ordering::Acquire);
            ensure_eq!(word >> 63 == 1, index / 4 % 2 == 0, "R23: the phase at byte {half} of event {index}");
        }
        refused(rig.driver.write(Register::EqHead, index + 2), "EQ_HEAD beyond EQ_TAIL")?;
        ensure_eq!(read(&mut rig)?.len(), 1, "R23: events of completion {index}");
        ensure_eq!(rig.driver.read(Register::EqHead)?, index + 1, "EQ_HEAD");
        refused(rig.driver.write(Register::EqHead, index), "EQ_HEAD below the one before")?;
    }
    Ok(())
}

pub(super) fn r12_r23_a_ring_ends_with_its_function(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Some(mut rig) = open(bench, ring(8))? else { return Ok(()) };
    rig.run(&[HwDesc::nop(); 20])?;
    let (tail, lost) = (rig.driver.read(Register::EqTail)?, dropped(&mut rig)?);
    ensure_eq!(tail + lost, 20, "R23: events, and those that were dropped, of 20 completions");
    for (register, value) in [(Register::EqSize, 16), (Register::EqBaseLo, 64), (Register::EventControl, 0)] {
        refused(rig.driver.write(register, value), &format!("{register} while active"))?;
    }
    rig.driver.disable()?;
    ensure_eq!(rig.driver.read(Register::EqTail)?, tail, "EQ_TAIL after a disable");
    ensure_eq!(dropped(&mut rig)?, lost, "EVENTS_DROPPED after a disable");
    refused(rig.driver.write(Register::EqHead, tail), "EQ_HEAD while inactive")?;
    ensure_eq!(read(&mut rig)?.len() as u32, tail, "R23: events that lie in the ring after a disable");
    rig.driver.enable()?;
    for register in [Register::EqHead, Register::EqTail, Register::EventsDropped] {
        ensure_eq!(rig.driver.read(register)?, 0, "{register} of a ring that starts");
    }
    let ends = post(&mut rig, &[HwDesc::nop()])?;
    let events = read(&mut rig)?;
    ensure_eq!(events.len(), 1, "R23: events of the next life");
    agree(&rig, &events[0], rig.driver.config().cq_start, &ends[0])
}

pub(super) fn r23_a_bad_ring_does_not_start(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Some(mut rig) = open(bench, ring(8))? else { return Ok(()) };
    let base = rig.driver.read(Register::EqBaseLo)?;
    rig.driver.disable()?;
    let enable = |rig: &mut Rig| -> Result<(bool, u32), Failure> {
        rig.driver.write(Register::Error, u32::MAX)?;
        rig.driver.write(Register::Control, Control::ENABLE.bits())?;
        rig.driver.platform_mut().advance(1)?;
        let state = State::from_bits_retain(rig.driver.read(Register::State)?);
        Ok((state.contains(State::ACTIVE), rig.driver.read(Register::Error)?))
    };
    for (register, bad, good) in [
        (Register::EqSize, 1, 8),
        (Register::EqSize, 6, 8),
        (Register::EqSize, 1 << 17, 8),
        (Register::EqSize, 1 << 31, 8),
        (Register::EqBaseLo, base + 32, base),
        (Register::EqBaseLo, base + 1, base),
    ] {
        rig.driver.write(register, bad)?;
        let refusal = (false, DeviceFault::BAD_CONFIG.bits());
        ensure_eq!(enable(&mut rig)?, refusal, "active, ERROR, with {register} = {bad:#x}");
        ensure_eq!(rig.driver.read(Register::EqTail)?, 0, "EQ_TAIL of a ring that did not start");
        rig.driver.write(register, good)?;
    }
    if rig.driver.read(Register::CapWindows)? > 1 {
        // Two windows that meet in the middle of the ring: every other region lies in one of them.
        let memory = rig.driver.memory();
        let (start, bytes) = (memory.bus_address(), memory.len() as u64);
        let middle = rig.driver.layout().events as u64 + 128;
        let refusal = (false, DeviceFault::BAD_CONFIG.bits());
        for (sizes, expected) in
            [([middle, bytes - middle], refusal), ([middle + 128, bytes - middle], (true, 0))]
        {
            let windows = [start, sizes[0], start + middle, sizes[1]];
            for (first, value) in [
                Register::Window0BaseLo,
                Register::Window0SizeLo,
                Register::Window1BaseLo,
                Register::Window1SizeLo,
            ]
            .into_iter()
            .zip(windows)
            {
                let high = Register::at(first as u32 + 4).map_or(first, |(register, _)| register);
                rig.driver.write(first, value as u32)?;
                rig.driver.write(high, (value >> 32) as u32)?;
            }
            ensure_eq!(enable(&mut rig)?, expected, "R11: active, ERROR, with windows {windows:x?}");
        }
        return Ok(());
    }
    ensure_eq!(enable(&mut rig)?, (true, 0), "active, ERROR, with a good ring");
    Ok(())
}

pub(super) fn r23_an_event_that_is_lost_is_counted(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Some(mut rig) = open(bench, ring(4))? else { return Ok(()) };
    // Elsewhere what lies behind the memory may be somebody's.
    if !rig.features.capability.contains(Capability::ISOLATED) {
        return Ok(());
    }
    rig.driver.disable()?;
    let memory = rig.driver.memory().clone();
    let behind = memory.bus_address() + (memory.len() + PAGE) as u64;
    rig.driver.write(Register::EqBaseLo, behind as u32)?;
    rig.driver.write(Register::EqBaseHi, (behind >> 32) as u32)?;
    rig.driver.write(Register::Control, Control::ENABLE.bits())?;
    rig.driver.platform_mut().advance(1)?;
    let before = rig.driver.layout().events..rig.driver.layout().events + 128;
    let words = |rig: &Rig| rig.snapshot().map(|words| words[before.start / 4..before.end / 4].to_vec());
    let ring = words(&rig)?;
    rig.driver.submission_queue().push(&[HwDesc::nop(); 3])?;
    let tail = rig.driver.submission_queue().tail();
    rig.driver.write(Register::Doorbell, tail)?;
    rig.settle()?;
    let start = rig.driver.config().cq_start;
    ensure_eq!(rig.driver.read(Register::CqTail)?, start.wrapping_add(3), "R23: CQ_TAIL, with lost events");
    ensure_eq!(rig.driver.read(Register::EqTail)?, 3, "EQ_TAIL passes events that are lost");
    ensure_eq!(dropped(&mut rig)?, 3, "EVENTS_DROPPED of events that are lost");
    ensure_eq!(rig.driver.read(Register::Error)?, 0, "ERROR of events that are lost");
    ensure_eq!(words(&rig)?, ring, "R11: memory where the ring is not");
    rig.driver.write(Register::EqHead, 3)?;
    ensure_eq!(rig.driver.read(Register::EqHead)?, 3, "EQ_HEAD");
    Ok(())
}

/// Every completion of random traffic has its event, or is counted; whenever the host reads.
pub(super) fn r23_events_and_drops_are_all_completions(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    let asked = std::env::var("DOORBELL_LIVES").ok().and_then(|text| text.parse().ok());
    let (lives, slots) = (asked.unwrap_or(LIVES), 2 << below(&mut random, 7));
    let start = 0u32.wrapping_sub(below(&mut random, 2000));
    let config = QueueConfig { cq_start: start, sq_depth: 64, cq_depth: 128, ..ring(slots) };
    let Some(mut rig) = open(bench, config)? else { return Ok(()) };
    // By index, worker and user_data of the last completions.
    let mut ends: Vec<HwCompletion> = Vec::with_capacity(lives as usize);
    let (mut events, mut submitted): (Vec<HwEvent>, u32) = (Vec::new(), 0);
    let (mut known, mut told, mut last) = (0u32, 0u32, None::<HwEvent>);
    let mut out = [HwCompletion::default(); 32];
    while (ends.len() as u32) < lives {
        match below(&mut random, 4) {
            0 | 1 => {
                let count = (1 + below(&mut random, 24)).min(lives - submitted);
                let descs: Vec<HwDesc> = (0..count)
                    .map(|k| match below(&mut random, 4) {
                        0 => HwDesc::nop(),
                        1 => HwDesc::decode(submitted + k, 0, 0),
                        _ => HwDesc::decode(submitted + k, 0, 1 + below(&mut random, 20)),
                    })
                    .zip(submitted..)
                    .map(|(desc, user_data)| desc.with_user_data(user_data.into()))
                    .collect();
                submitted += rig.driver.submit(&descs)? as u32;
            }
            2 if rig.driver.in_flight() > 0 => {
                let taken = rig.driver.poll(&mut out)?;
                ends.extend_from_slice(&out[..taken]);
            }
            _ => {
                let fresh = read(&mut rig)?;
                for event in &fresh {
                    // R23: behind the visibility of its completion.
                    if event.index.wrapping_sub(start) as usize >= ends.len() {
                        known += u32::from(rig.driver.answered(event).is_some());
                        told += 1;
                    }
                }
                events.extend(fresh);
            }
        }
    }
    ensure_eq!(known, told, "R23: completions that were visible before their events");
    rig.settle()?;
    events.extend(read(&mut rig)?);
    for event in &events {
        let at = event.index.wrapping_sub(start) as usize;
        ensure!(at < ends.len(), "R23: an event of completion {at} of {}", ends.len());
        agree(&rig, event, event.index, &ends[at])?;
        if let Some(last) = last {
            let behind = event.index.wrapping_sub(last.index) as i32;
            ensure!(behind > 0, "R23: event {event:x?} after {last:x?}");
            ensure!(visible(&last) <= visible(event), "R23: event {event:x?} was visible before {last:x?}");
        }
        last = Some(*event);
    }
    let lost = dropped(&mut rig)?;
    ensure_eq!(
        events.len() as u32 + lost,
        lives,
        "R23: events, and those that were dropped, of all completions"
    );
    ensure!(events.iter().all(|event| event.visible <= EVENT_DELTA_MAX), "R23: a phase is told");
    ensure_eq!(rig.driver.read(Register::EventControl)?, EventControl::LIFE.bits(), "EVENT_CONTROL");
    Ok(())
}
