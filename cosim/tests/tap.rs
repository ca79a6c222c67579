//! R23: the lives that are read off the device's signals are those that its event ring tells, on the same run.
//!
//! `DOORBELL_TAPPED` is the number of descriptors (default 20,000).

mod mixture;

use std::collections::HashMap;

use doorbell_contract::{HwCompletion, HwDesc, HwEvent, QueueCounter};
use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::ports::{Division, Ports};
use doorbell_host::{Device, Driver, Platform, QueueConfig};
use rstest::rstest;

use mixture::desc;

fn lives() -> u64 {
    let text = std::env::var("DOORBELL_TAPPED");
    text.map_or(20_000, |text| text.parse().expect("DOORBELL_TAPPED is a number"))
}

fn queue() -> QueueConfig {
    QueueConfig {
        sq_depth: 128,
        cq_depth: 256,
        event_slots: 1024,
        life_events: true,
        token_bytes: 1 << 16,
        ..QueueConfig::default()
    }
}

/// Everything that a tap has told of a queue pair.
fn tapped(platform: &mut impl Platform, queue: u8) -> Vec<HwEvent> {
    let (mut all, mut some) = (vec![], [HwEvent::default(); 100]);
    loop {
        let taken = platform.tapped(queue, &mut some).unwrap();
        all.extend_from_slice(&some[..taken]);
        if taken < some.len() {
            return all;
        }
    }
}

/// Completions of a queue pair that have become visible since it was enabled.
fn visible<P: Platform>(driver: &mut Driver<P>) -> usize {
    driver.queue_counters().unwrap()[0].get(QueueCounter::Completions) as usize
}

/// Each event of the ring is one of the tap, but for where its clock began. Returns how many there were.
fn same(ring: &[HwEvent], tap: &[HwEvent]) -> usize {
    let by_index: HashMap<u32, HwEvent> = tap.iter().map(|event| (event.index, *event)).collect();
    assert_eq!(by_index.len(), tap.len(), "each completion is told once");
    let began = ring.first().map_or(0, |event| by_index[&event.index].stamp - event.stamp);
    for event in ring {
        let other = by_index[&event.index];
        assert_eq!(HwEvent { stamp: event.stamp + began, ..*event }, other);
    }
    ring.len()
}

/// With a ring that runs beside the tap, both tell the same, and the tap tells of every completion.
#[rstest]
#[case::one(RtlConfig { workers: 1, ..RtlConfig::default() }, 16)]
#[case::calm(RtlConfig { workers: 4, ..RtlConfig::default() }, 16)]
#[case::crowded(RtlConfig { workers: 16, ..RtlConfig::default() }, 100)]
#[case::random_1(RtlConfig { workers: 4, ..RtlConfig::default() }.with_random_memory(1), 64)]
#[case::random_2(RtlConfig { workers: 16, ..RtlConfig::default() }.with_random_memory(2), 100)]
#[case::language(RtlConfig { workers: 8, engines: 2, ..RtlConfig::default() }, 64)]
fn r23_a_tap_tells_what_the_ring_tells(#[case] config: RtlConfig, #[case] window: u64) {
    let mut platform = RtlPlatform::new(&config).unwrap();
    platform.watch_lives().unwrap();
    let mut driver = Driver::new(platform, queue()).unwrap();
    let (mut completed, mut told) = (0, 0);
    // Every life of the queue pair begins anew, and what the last one left is nobody's.
    for life in 0..4 {
        let lives = lives() / 4;
        let mut ring = vec![];
        let (mut submitted, mut taken, mut quiet) = (0, 0, 0);
        let mut out = [HwCompletion::default(); 64];
        let mut events = [HwEvent::default(); 256];
        // The last life runs to its end.
        while quiet < 4 && (life == 3 || taken < lives - window / 2) {
            let more = window.saturating_sub(submitted - taken).min(lives - submitted);
            let descs: Vec<HwDesc> = (submitted..submitted + more).map(desc).collect();
            submitted += driver.submit(&descs).unwrap() as u64;
            quiet += u64::from(taken == lives);
            driver.platform_mut().run(if taken < lives { 64 } else { 1000 }).unwrap();
            taken += driver.collect(&mut out).unwrap() as u64;
            let there = driver.events(&mut events).unwrap();
            ring.extend_from_slice(&events[..there]);
        }
        driver.disable().unwrap();
        let there = driver.events(&mut events).unwrap();
        ring.extend_from_slice(&events[..there]);
        let tap = tapped(driver.platform_mut(), 0);
        let visible = visible(&mut driver);
        assert_eq!(tap.len(), visible, "each completion that became visible");
        told += same(&ring, &tap);
        completed += visible;
        driver.enable().unwrap();
    }
    println!("{config:?}: {told} of {completed} completions were told by both");
    assert!(told > lives() as usize / 10, "the ring told of {told}");
}

/// Queue pairs of several functions, each with a ring: the tap keeps them apart.
#[rstest]
#[case::several(RtlConfig { workers: 4, queues: 4, functions: 4, ..RtlConfig::default() })]
#[case::language(RtlConfig { workers: 8, queues: 2, functions: 2, engines: 2, ..RtlConfig::default() })]
fn r23_a_tap_keeps_queue_pairs_apart(#[case] config: RtlConfig) {
    let mut platform = RtlPlatform::new(&config).unwrap();
    platform.watch_lives().unwrap();
    let (queues, functions) = (config.queues as u8, config.functions as u8);
    let bytes = queue().shared_bytes().unwrap();
    let ports =
        Ports::divide(platform, &Division { queues, functions, bytes, ..Division::default() }).unwrap();
    let mut ports = ports.take_all().unwrap();
    let mut drivers: Vec<_> = ports.drain(..).map(|port| Driver::new(port, queue()).unwrap()).collect();
    let (mut out, mut events) = ([HwCompletion::default(); 64], [HwEvent::default(); 256]);
    let (lives, mut next, mut taken) = (lives() / 4, 0, 0);
    let mut rings = vec![vec![]; drivers.len()];
    while taken < lives {
        for (driver, ring) in drivers.iter_mut().zip(&mut rings) {
            let room = (driver.capacity() - driver.in_flight()).min(16).min((lives - next) as usize) as u64;
            let descs: Vec<HwDesc> = (next..next + room).map(desc).collect();
            next += driver.submit(&descs).unwrap() as u64;
            taken += driver.poll(&mut out).unwrap() as u64;
            let there = driver.events(&mut events).unwrap();
            ring.extend_from_slice(&events[..there]);
        }
    }
    let mut told = 0;
    for (driver, ring) in drivers.iter_mut().zip(&mut rings) {
        driver.disable().unwrap();
        let there = driver.events(&mut events).unwrap();
        ring.extend_from_slice(&events[..there]);
        let number = driver.platform().queue();
        let tap = tapped(driver.platform_mut(), number);
        assert_eq!(tap.len(), visible(driver));
        told += same(ring, &tap);
    }
    assert!(told > lives as usize / 10, "the rings told of {told} of {lives}");
}
