//! R23: what LIFE events say is what the AXI port, and the waveform, show.
//!
//! `DOORBELL_LIVES` is the number of descriptors (default 100,000).

mod mixture;

use std::collections::VecDeque;

use doorbell_contract::{EventKind, HwCompletion, HwDesc, HwEvent, Register};
use doorbell_cosim::{RtlConfig, RtlPlatform, Wave};
use doorbell_host::{Device, Driver, QueueConfig};
use rstest::rstest;
use wellen::simple::{Waveform, read};

use mixture::desc;

/// AWID of the completions of queue pair 0.
const COMPLETIONS: u32 = 16;

fn lives() -> u64 {
    std::env::var("DOORBELL_LIVES").map_or(100_000, |text| text.parse().expect("DOORBELL_LIVES is a number"))
}

fn open(config: &RtlConfig) -> Driver<RtlPlatform> {
    let queue = QueueConfig {
        sq_depth: 128,
        cq_depth: 256,
        event_slots: 1024,
        life_events: true,
        token_bytes: 1 << 16,
        ..QueueConfig::default()
    };
    Driver::new(RtlPlatform::new(config).unwrap(), queue).unwrap()
}

/// Runs descriptors one behind the other, at most `window` in flight, and reads all that comes. `each` is given what is new:
/// completions, events.
fn run(
    driver: &mut Driver<RtlPlatform>,
    lives: u64,
    window: u64,
    mut each: impl FnMut(&mut RtlPlatform, &[HwCompletion], &[HwEvent]),
) {
    let (mut submitted, mut completed, mut quiet) = (0, 0, 0);
    let mut out = [HwCompletion::default(); 64];
    let mut events = [HwEvent::default(); 256];
    while quiet < 4 {
        let more = window.saturating_sub(submitted - completed).min(lives - submitted);
        let descs: Vec<HwDesc> = (submitted..submitted + more).map(desc).collect();
        submitted += driver.submit(&descs).unwrap() as u64;
        if completed < lives {
            // A few at a time, so that the ring never fills.
            driver.platform_mut().run(64).unwrap();
        } else {
            quiet += 1;
            driver.platform_mut().run(1000).unwrap();
        }
        let taken = driver.collect(&mut out).unwrap();
        completed += taken as u64;
        let told = driver.events(&mut events).unwrap();
        each(driver.platform_mut(), &out[..taken], &events[..told]);
    }
    assert_eq!(completed, lives);
}

/// Every event agrees with its completion, and its moments with the cycles in which its descriptor came over the bus and its
/// completion was answered there.
#[rstest]
#[case::calm(RtlConfig { workers: 4, ..RtlConfig::default() }, 16)]
#[case::crowded(RtlConfig { workers: 16, ..RtlConfig::default() }, 100)]
#[case::random_1(RtlConfig { workers: 4, ..RtlConfig::default() }.with_random_memory(1), 64)]
#[case::random_2(RtlConfig { workers: 16, ..RtlConfig::default() }.with_random_memory(2), 100)]
#[case::several(RtlConfig { workers: 4, queues: 4, functions: 4, ..RtlConfig::default() }, 16)]
fn r23_moments_are_those_of_the_bus(#[case] config: RtlConfig, #[case] window: u64) {
    let mut driver = open(&RtlConfig { moments: true, ..config.clone() });
    let lives = lives();
    // What the bus has shown: by number of the descriptor, by index of the completion.
    let (mut read, mut answered) = (Vec::new(), Vec::new());
    let mut completions: Vec<(u64, u16)> = Vec::new();
    // Events that came before their completion was read.
    let mut waiting: VecDeque<HwEvent> = VecDeque::new();
    let (mut offset, mut seen, mut tokens_seen) = (None, 0u64, 0u64);
    let mut next = 0;
    run(&mut driver, lives, window, |platform, ends, events| {
        for moment in platform.take_moments() {
            match moment.id {
                u32::MAX if moment.count == 1 => read.push(moment.cycle),
                COMPLETIONS => answered.extend((0..moment.count).map(|_| moment.cycle)),
                _ => {}
            }
        }
        completions.extend(ends.iter().map(|end| (end.user_data, end.worker_id)));
        waiting.extend(events);
        while let Some(event) = waiting.pop_front() {
            let index = event.index as usize;
            let Some(&(number, worker)) = completions.get(index) else {
                waiting.push_front(event);
                break;
            };
            assert_eq!((event.kind, event.queue_id), (EventKind::Life as u8, 0), "{event:?}");
            assert_eq!(event.worker_id, worker, "{event:?}");
            assert!(index >= next, "completion {index} is told after {next}");
            next = index + 1;
            let came = read[number as usize];
            let base = *offset.get_or_insert(came - event.stamp);
            assert_eq!(came - base, event.stamp, "descriptor {number} was read in cycle {came}");
            let visible = event.stamp + u64::from(event.visible) + base;
            assert_eq!(visible, answered[index], "completion {index} of descriptor {number}");
            let moments = [0, event.start, event.first_token, event.ended, event.visible];
            assert!(moments.is_sorted(), "{event:?}");
            // One token in a cycle, at most: and no cycle is lost where nothing holds a worker back.
            let desc = desc(number);
            if desc.opcode == 1 && desc.max_tokens > 0 && event.first_token < event.ended {
                let ran = event.ended - event.first_token;
                assert!(window > 16 || ran < desc.max_tokens, "{event:?} of {} tokens", desc.max_tokens);
                tokens_seen += 1;
            }
            seen += 1;
        }
    });
    assert!(waiting.is_empty());
    let dropped = u64::from(driver.read(Register::EventsDropped).unwrap());
    assert_eq!(seen + dropped, lives, "events, and those that were dropped");
    println!("{config:?}: {seen} of {lives} lives told, {tokens_seen} of them ran");
    assert!(tokens_seen > lives / 100 || dropped > lives / 2, "{tokens_seen} of {seen}");
    if window == 16 && config.queues == 1 {
        assert_eq!(dropped, 0, "there was room for all");
    }
}

/// A signal of the top, a bit for each worker, in each cycle: as of the rising edge.
fn by_cycle(wave: &mut Waveform, name: &str, cycles: u64) -> Vec<u64> {
    let hierarchy = wave.hierarchy();
    let var = hierarchy
        .iter_vars()
        .find(|var| {
            let full = var.full_name(hierarchy);
            full.ends_with(&format!("rl_runtime_top.{name}"))
        })
        .unwrap_or_else(|| panic!("the waveform has no signal {name}"));
    let signal = var.signal_ref();
    wave.load_signals(&[signal]);
    let times = wave.time_table().to_vec();
    let loaded = wave.get_signal(signal).unwrap();
    (0..cycles)
        .map(|cycle| {
            // Before the rising edge, at 10 c + 5: what stands there in the cycle.
            let at = times.partition_point(|&time| time < 10 * cycle + 5);
            let Some(index) = at.checked_sub(1) else { return 0 };
            let Some(offset) = loaded.get_offset(index as u32) else { return 0 };
            let value = loaded.get_value_at(&offset, 0).to_bit_string().unwrap_or_default();
            u64::from_str_radix(&value, 2).unwrap_or(0)
        })
        .collect()
}

/// The moments in between are those at which the waveform shows them: each worker's ends come in the order in which it began.
#[test]
fn r23_moments_are_those_of_the_waveform() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lives.fst");
    let wave = Some(Wave { path: path.clone(), window: None });
    let mut driver = open(&RtlConfig { workers: 4, wave, ..RtlConfig::default() });
    let (mut events, mut completions): (Vec<HwEvent>, Vec<HwCompletion>) = (Vec::new(), Vec::new());
    run(&mut driver, 2000, 16, |_, ends, told| {
        events.extend(told);
        completions.extend(ends);
    });
    assert_eq!(driver.read(Register::EventsDropped).unwrap(), 0);
    let cycles = driver.platform().cycles();
    driver.platform_mut().flush_wave().unwrap();
    drop(driver);
    let mut wave = read(&path).unwrap();
    let [begun, token, ended, slot] =
        ["begun", "token", "ended", "slot_valid"].map(|name| by_cycle(&mut wave, name, cycles));
    // The first descriptor that is read has the smallest stamp.
    let first = slot.iter().position(|&bit| bit == 1).unwrap() as u64;
    let base = first - events.iter().map(|event| event.stamp).min().unwrap();
    let scored = |event: &HwEvent| desc(completions[event.index as usize].user_data).opcode == 2;
    for worker in 0..4u16 {
        let set = |bits: &[u64], cycle: u64| bits[cycle as usize] >> worker & 1 == 1;
        // What a worker does before its reset is nobody's.
        let all = |bits: &[u64]| (first..cycles).filter(|&cycle| set(bits, cycle)).collect::<Vec<_>>();
        let (starts, ends) = (all(&begun), all(&ended));
        let mine: Vec<&HwEvent> = events.iter().filter(|event| event.worker_id == worker).collect();
        assert_eq!((starts.len(), ends.len()), (mine.len(), mine.len()), "descriptors of worker {worker}");
        assert!(mine.len() > 100, "worker {worker} ran {}", mine.len());
        for (event, (start, end)) in mine.iter().zip(starts.into_iter().zip(ends)) {
            let at = |delta: u32| base + event.stamp + u64::from(delta);
            assert_eq!(at(event.start), start, "{event:?}");
            if scored(event) {
                assert!(at(event.ended) > end && event.first_token == event.ended, "{event:?}");
                continue;
            }
            assert_eq!(at(event.ended), end, "{event:?}");
            let produced = (start + 1..=end).find(|&cycle| set(&token, cycle)).unwrap_or(end);
            assert_eq!(at(event.first_token), produced, "{event:?}");
        }
    }
}

/// Cycles of 2,000 DECODEs of 50 tokens, from the first doorbell until all are reaped, with a ring of so many slots.
fn cycles(workers: u32, event_slots: u32, life_events: bool) -> u64 {
    let config = RtlConfig { workers, ..RtlConfig::default() };
    let queue = QueueConfig {
        sq_depth: 2048,
        cq_depth: 2048,
        event_slots,
        life_events,
        token_bytes: 1 << 20,
        ..QueueConfig::default()
    };
    let mut driver = Driver::new(RtlPlatform::new(&config).unwrap(), queue).unwrap();
    let descs: Vec<HwDesc> =
        (0..2000).map(|k| HwDesc::decode(k, 0, 50).with_delta_offset(u64::from(k) * 256)).collect();
    let first = driver.platform().cycles();
    assert_eq!(driver.submit(&descs).unwrap(), descs.len());
    let mut out = [HwCompletion::default(); 64];
    let mut reaped = 0;
    while reaped < descs.len() {
        driver.platform_mut().run(16).unwrap();
        reaped += driver.collect(&mut out).unwrap();
    }
    driver.platform().cycles() - first
}

/// A ring costs no cycle without LIFE, and with it one in twenty at most, however busy the write port is. What it costs the
/// simulation is counted in instructions, see `docs/measurements.md`: `DOORBELL_RING` is what is run then, none, off or on.
#[rstest]
#[case::four(4)]
#[case::sixteen(16)]
fn r23_events_hold_nothing_back(#[case] workers: u32) {
    if let Ok(ring) = std::env::var("DOORBELL_RING") {
        cycles(workers, if ring == "none" { 0 } else { 4096 }, ring == "on");
        return;
    }
    let none = cycles(workers, 0, false);
    assert_eq!(cycles(workers, 4096, false), none, "a ring without LIFE");
    let lives = cycles(workers, 4096, true);
    println!("{workers} workers: {none} cycles, {lives} with LIFE events");
    assert!(lives * 19 <= none * 20, "{lives} cycles with LIFE events, {none} without");
}
