//! What the device tells of its descriptors (R23), beside what the host sees.

use std::collections::BTreeMap;
use std::sync::Mutex;

use doorbell_contract::Register;
use doorbell_host::{DeviceError, Platform, SharedMemory};
use serde_json::Value;

use super::*;
use crate::events::{Collector, DeviceSpan, EventKind, MappedLife, Perfetto, Report, TickRate, Ticks};
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
    pipeline.journal = Journal::new(Some(recorder), None, &*pipeline.device, 8);
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

/// Runs all requests: the tokens of each DECODE as the host saw them, the lives, and the report.
fn run_with_lives(setup: &Setup, clock: Clock) -> (BTreeMap<(RolloutId, u32), u32>, Vec<MappedLife>, Report) {
    let (mut pipeline, _) = setup.pipeline();
    let slots = setup.options.slots;
    let (mut collector, recorder) = Collector::with_device(clock, slots, 1 << 16, TickRate(0));
    pipeline.journal = Journal::new(Some(recorder), None, &*pipeline.device, slots);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let (mut polled, mut lives) = (BTreeMap::new(), vec![]);
    collector.poll(|event| {
        if event.kind == EventKind::CompletionPolled {
            polled.insert((event.rollout, event.descriptor), event.value);
        }
    });
    collector.finish_lives(|life| lives.push(*life));
    (polled, lives, collector.finish(|_| {}))
}

/// A life is paired with the DECODE that it is of: where completions begin at another index, where STOPs go to another queue pair than
/// was thought when they were made, and where completions reach the runtime in another order. The model adds a token a tick, which tells
/// one DECODE from most others.
#[rstest]
fn each_life_is_that_of_its_own_decode(
    #[values(1, 3)] queues: u8,
    #[values(0, u32::MAX - 5)] cq_start: u32,
    #[values(false, true)] shuffles: bool,
) {
    let options = Options { slots: 16, checkpoint: 16, abort_every: 2, window: 16, ..Options::default() };
    let setup = Setup { queues, cq_start, shuffles, lives: true, depth: 8, ..Setup::new(200, options) };
    let (polled, lives, report) = run_with_lives(&setup, Clock::new());
    let one = report.one_clock.unwrap();
    assert_eq!((one.unmapped, one.unpaired), (0, 0));
    let mut paired = 0;
    for MappedLife { life, .. } in &lives {
        let Some(host) = life.host else { continue };
        paired += 1;
        let ran = life.event.ended - life.event.start;
        assert_eq!(polled[&(host.rollout, host.descriptor)], ran, "{life:?}");
    }
    assert_eq!(paired, polled.len());
}

/// What the device has taken of its submission queues is told of each DECODE once, after it was submitted and before its completion was seen: with several
/// queue pairs, too, between which STOPs go to where the rollout that they end is in flight by then.
#[rstest]
fn each_decode_is_consumed_between_its_doorbell_and_its_completion(
    #[values(1, 2, 3)] queues: u8,
    #[values(0, 64)] groups: u32,
) {
    let options =
        Options { slots: 16, group: 2, checkpoint: 16, abort_every: 2, window: 16, ..Options::default() };
    let mut setup = Setup { queues, shuffles: false, depth: 8, ..Setup::new(200, options) };
    // Without groups of the device a rollout's STOP names no prefix, and its DECODEs do.
    setup.less.groups = groups;
    let (mut pipeline, _) = setup.pipeline();
    let (mut collector, recorder) = Collector::new(Clock::new(), 16, 1 << 18);
    pipeline.journal = Journal::new(Some(recorder), Some(0), &*pipeline.device, 16);
    pipeline.run(&mut Feed::new(&setup.requests), |_| false).unwrap();
    let mut told: BTreeMap<_, Vec<EventKind>> = BTreeMap::new();
    let of_decodes = [
        EventKind::DescPosted,
        EventKind::DescCommitted,
        EventKind::DescConsumed,
        EventKind::CompletionPolled,
    ];
    collector.poll(|event| {
        if of_decodes.contains(&event.kind) {
            told.entry((event.rollout, event.descriptor)).or_default().push(event.kind);
        }
    });
    assert_eq!(told.len() as u64, pipeline.metrics.counters.values().segments);
    for (decode, events) in told {
        assert_eq!(events, of_decodes, "{decode:?}");
    }
}

/// A device whose clock can be read, and which has its time while somebody waits for that: long, if the doorbell was rung before.
#[derive(Clone)]
pub struct Slices {
    clock: Clock,
    told: Arc<Mutex<Vec<Slice>>>,
}

/// The ticks of a slice, and the times that it lay between.
#[derive(Clone, Copy, Debug)]
struct Slice {
    ticks: (u64, u64),
    times: (Ticks, Ticks),
}

impl Slices {
    pub fn platform(&self) -> impl Platform + use<> {
        Sliced { model: ModelPlatform::new(), rung: false, slices: self.clone() }
    }
}

struct Sliced {
    model: ModelPlatform,
    rung: bool,
    slices: Slices,
}

impl Platform for Sliced {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.model.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.rung |= register == Register::Doorbell;
        self.model.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.model.read_register(register)
    }

    fn advance(&mut self, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn ticks(&mut self) -> Option<u64> {
        if std::mem::take(&mut self.rung) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let Slices { clock, told } = &self.slices;
        let (before, from) = (self.model.ticks()?, clock.now());
        self.model.advance(1).unwrap();
        let ticks = (before, self.model.ticks()?);
        told.lock().unwrap().push(Slice { ticks, times: (from, clock.now()) });
        self.model.ticks()
    }
}

/// No moment is wrong by more than the error where the clock answers late.
#[test]
fn moments_lie_within_the_error_where_the_clock_answers_late() {
    let clock = Clock::new();
    let slices = Slices { clock: clock.clone(), told: Arc::default() };
    let options = Options { slots: 1, group: 1, ..Options::default() };
    let mut setup =
        Setup { slices: Some(slices.clone()), lives: true, shuffles: false, ..Setup::new(1, options) };
    // More than the model does in a slice: it is read in one, and ends in another.
    setup.requests[0].output_tokens = 50_000;
    setup.options.max_output_tokens = 50_000;
    let (polled, lives, report) = run_with_lives(&setup, clock.clone());
    let (one, told) = (report.one_clock.unwrap(), slices.told.lock().unwrap().clone());
    assert_eq!((one.unmapped, one.unpaired, polled.len()), (0, 0, 1));
    let mut checked = 0;
    for MappedLife { life, moments } in lives {
        if life.host.is_none() {
            continue;
        }
        let ticks = [life.event.stamp, life.event.stamp + u64::from(life.event.visible)];
        let [fetched, .., visible] = moments.unwrap();
        for (tick, moment) in ticks.into_iter().zip([fetched, visible]) {
            let slice = told
                .iter()
                .rfind(|slice| {
                    slice.ticks.0 <= tick && tick <= slice.ticks.1 && slice.ticks.0 < slice.ticks.1
                })
                .unwrap();
            let (from, to) =
                (clock.nanos(clock.origin(), slice.times.0), clock.nanos(clock.origin(), slice.times.1));
            let early = from.saturating_sub(moment);
            assert!(
                early.max(moment.saturating_sub(to)) <= one.error_ns,
                "{tick} at {moment}: {slice:?} {one:?}"
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 2);
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
