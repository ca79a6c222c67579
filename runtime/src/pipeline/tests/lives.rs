//! What the device tells of its descriptors (R23), beside what the host sees.

use super::*;
use crate::events::{Collector, DeviceSpan, Perfetto, TickRate};
use crate::pipeline::journal::Journal;

/// Every completion's life comes to the report and, as a slice of its worker, into the trace; whichever queue pair reads the ring.
#[rstest]
fn r23_the_lives_of_all_descriptors_are_told(#[values(1, 3)] queues: u8) {
    let options = Options { slots: 8, checkpoint: 16, ..Options::default() };
    let setup = Setup { queues, lives: true, ..Setup::new(40, options) };
    let (mut pipeline, _) = setup.pipeline();
    let rate = TickRate(0);
    let (mut collector, recorder) = Collector::with_device(Clock::simulated(), 8, 1 << 16, rate);
    pipeline.journal = Journal::new(Some(recorder), None, 64, queues.into(), 8);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();

    let trace = Perfetto::new(vec![], collector.clock().clone(), 8).unwrap();
    let mut trace = trace.with_device(rate);
    let mut seen = [0u64; 4];
    collector.poll_lives(|life| {
        trace.life(life).unwrap();
        seen[usize::from(life.queue_id)] += 1;
    });
    let report = collector.finish(|_| {});
    let completed = pipeline.metrics.counters.values().descriptors_completed;
    assert!(completed > 40 && seen.iter().sum::<u64>() == completed, "{seen:?} of {completed}");
    assert_eq!(seen.iter().filter(|&&lives| lives > 0).count(), usize::from(queues));
    let device = report.device.clone().unwrap();
    assert_eq!((device.dropped, device.rate), (0, rate));
    for (span, report) in DeviceSpan::ALL.into_iter().zip(&device.spans) {
        assert_eq!((report.name.as_str(), report.count), (span.name(), completed));
    }
    // The model adds a token a tick, and posts in one.
    let ran = &device.spans[DeviceSpan::Ran as usize];
    assert_eq!(ran.sum, pipeline.metrics.counters.values().tokens_generated);
    assert_eq!(device.spans[DeviceSpan::Posted as usize].sum, completed);
    assert!(report.to_string().contains("in ticks of the device"), "{report}");

    let text = String::from_utf8(trace.finish().unwrap()).unwrap();
    let entries: serde_json::Value = serde_json::from_str(&text).unwrap();
    let slices = entries.as_array().unwrap().iter().filter(|entry| entry["ph"] == "X").count();
    assert_eq!(slices as u64, completed);
    assert!(text.contains("a tick of its own clock shown as 1 ns"), "{text:.500}");
    for queue in 0..queues {
        assert!(text.contains(&format!("queue pair {queue}, worker 0")), "{text:.500}");
    }
}
