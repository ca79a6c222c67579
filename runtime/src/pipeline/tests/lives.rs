//! What the device tells of its descriptors (R23), beside what the host sees.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::events::{Collector, DeviceSpan, Perfetto, TickRate};
use crate::pipeline::journal::Journal;

/// Every completion's life comes to the report and, as a slice of its worker, into the trace; whichever queue pair reads the ring. Moments
/// of host and device lie on one clock, and an arrow leads through each DECODE.
#[rstest]
fn r23_the_lives_of_all_descriptors_are_told(#[values(1, 3)] queues: u8) {
    let options = Options { slots: 8, checkpoint: 16, ..Options::default() };
    let setup = Setup { queues, lives: true, ..Setup::new(40, options) };
    let (mut pipeline, _) = setup.pipeline();
    let rate = TickRate(0);
    let (mut collector, recorder) = Collector::with_device(Clock::new(), 8, 1 << 16, rate);
    pipeline.journal = Journal::new(Some(recorder), None, 64, queues.into(), 8);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();

    let trace = Perfetto::new(vec![], collector.clock().clone(), 8).unwrap();
    let mut trace = trace.with_device(rate);
    let mut seen = [0u64; 4];
    let mut decodes = 0;
    collector.poll(|event| trace.event(event).unwrap());
    collector.finish_lives(|mapped| {
        trace.life(mapped).unwrap();
        seen[usize::from(mapped.life.event.queue_id)] += 1;
        decodes += u64::from(mapped.life.host.is_some());
        assert!(mapped.moments.is_some_and(|moments| moments.is_sorted()), "{mapped:?}");
    });
    let report = collector.finish(|_| {});
    let counters = pipeline.metrics.counters.values();
    let completed = counters.descriptors_completed;
    assert!(completed > 40 && seen.iter().sum::<u64>() == completed, "{seen:?} of {completed}");
    assert_eq!(seen.iter().filter(|&&lives| lives > 0).count(), usize::from(queues));
    let device = report.device.clone().unwrap();
    assert_eq!((device.dropped, device.rate), (0, rate));
    for (span, report) in DeviceSpan::ALL.into_iter().zip(&device.spans) {
        assert_eq!((report.name.as_str(), report.count), (span.name(), completed));
    }
    // The model adds a token a tick, and posts in one.
    let ran = &device.spans[DeviceSpan::Ran as usize];
    assert_eq!(ran.sum, counters.tokens_generated);
    assert_eq!(device.spans[DeviceSpan::Posted as usize].sum, completed);
    assert!(report.to_string().contains("in ticks of the device"), "{report}");
    // Each DECODE has both ends on one clock, and each rollout its trajectory.
    let one = report.one_clock.as_ref().unwrap();
    assert_eq!(one.unmapped, 0);
    assert_eq!(decodes, counters.segments);
    assert_eq!(
        one.spans.iter().map(|span| span.count).collect::<Vec<_>>(),
        [decodes, decodes, counters.rollouts_completed]
    );
    assert!(report.to_string().contains("on one clock, within ±"), "{report}");

    let text = String::from_utf8(trace.finish().unwrap()).unwrap();
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
    let slices = entries.iter().filter(|entry| entry["ph"] == "X").count();
    assert_eq!(slices as u64, completed);
    assert!(text.contains("the device, on the host's clock"), "{text:.500}");
    for queue in 0..queues {
        assert!(text.contains(&format!("queue pair {queue}, worker 0")), "{text:.500}");
    }
    assert_eq!(arrows(&entries), decodes);
}

/// Arrows of a trace. Each is of a number of its own, begins, goes on and ends once, never backwards, and each time in a slice of that track.
fn arrows(entries: &[Value]) -> u64 {
    // As viewers do: by time, and what has one time in the order of the file.
    let nanos = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
    let mut order: Vec<&Value> = entries.iter().filter(|entry| entry["ph"] != "M").collect();
    order.sort_by_key(|entry| nanos(&entry["ts"]));
    let mut open: BTreeMap<(u64, u64), Vec<Option<u64>>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<(char, u64)>> = BTreeMap::new();
    for entry in order {
        let (phase, at) = (entry["ph"].as_str().unwrap().chars().next().unwrap(), nanos(&entry["ts"]));
        let track = (entry["pid"].as_u64().unwrap(), entry["tid"].as_u64().unwrap_or(0));
        let stack = open.entry(track).or_default();
        stack.retain(|end| end.is_none_or(|end| end >= at));
        match phase {
            'B' => stack.push(None),
            'E' => assert!(stack.pop().is_some(), "{entry} ends nothing"),
            'X' => {
                assert!(stack.iter().flatten().all(|&end| end <= at), "{entry} lies across another");
                stack.push(Some(at + nanos(&entry["dur"])));
            }
            's' | 't' | 'f' => {
                assert!(!stack.is_empty(), "{entry} lies in no slice");
                arrows.entry(entry["id"].as_u64().unwrap()).or_default().push((phase, at));
            }
            _ => {}
        }
    }
    for (id, steps) in &arrows {
        assert_eq!(steps.iter().map(|&(phase, _)| phase).collect::<String>(), "stf", "arrow {id}: {steps:?}");
    }
    arrows.len() as u64
}
