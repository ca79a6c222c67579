//! Events: what is paired with what, whatever comes in between.
//!
//! Flaw 12 of an earlier design of the kind: pairs vanish when completions come out of order, the report is wrong after the
//! ring wraps, and times of the device are the host's without saying so.

use std::collections::HashMap;

use doorbell_runtime::events::{
    Bound, Clock, Collector, Event, EventKind, LatencyReport, Pair, Perfetto, Recorder, Report, STAGES, Ticks,
};
use doorbell_runtime::rollout::RolloutId;
use proptest::prelude::*;
use rstest::rstest;

use EventKind::*;

const SLOTS: u32 = 4;

fn rig(capacity: usize) -> (Collector, Recorder) {
    Collector::new(Clock::simulated(), SLOTS, capacity)
}

fn id(slot: u32, generation: u32) -> RolloutId {
    RolloutId::new(slot, generation)
}

fn pair(report: &Report, pair: Pair) -> &LatencyReport {
    &report.pairs[pair as usize]
}

/// Count, sum, longest: durations below 2048 ns are told apart exactly.
fn figures(report: &LatencyReport) -> (u64, u64, u64) {
    (report.count, report.sum_ns, report.max_ns)
}

/// All that is left in the collector: what it says, and the trace.
fn finish(mut collector: Collector) -> (Report, String) {
    let mut perfetto = Perfetto::new(vec![], collector.clock().clone(), SLOTS).unwrap();
    let report = collector.finish(|event| perfetto.event(event).unwrap());
    (report, String::from_utf8(perfetto.finish().unwrap()).unwrap())
}

#[test]
fn flaw12_completions_out_of_order_are_paired_by_descriptor() {
    let (collector, mut hot) = rig(64);
    let rollouts = [id(0, 1), id(1, 1), id(2, 1)];
    for (k, rollout) in rollouts.into_iter().enumerate() {
        hot.record(DescPosted, rollout, k as u32, 0, Ticks::new(100 * k as u64));
    }
    for (k, rollout) in rollouts.into_iter().enumerate().rev() {
        hot.record(CompletionPolled, rollout, k as u32, 0, Ticks::new(1000 - 100 * k as u64));
    }
    let report = finish(collector).0;
    // 1000 - 0, 900 - 100, 800 - 200.
    assert_eq!(figures(pair(&report, Pair::PostedPolled)), (3, 2400, 1000));
    assert_eq!(pair(&report, Pair::PostedPolled).unpaired, 0);
}

#[rstest]
fn flaw12_pairs_stay_right_when_rings_and_numbers_wrap(
    #[values(0, u32::MAX - 1000)] first: u32,
    #[values(0, u32::MAX - 3)] generation: u32,
) {
    let (mut collector, mut hot) = rig(8);
    let mut sum = 0;
    for k in 0..3000u32 {
        // A ring of eight is gone through 750 times, and each slot has 750 rollouts.
        let rollout = id(k % SLOTS, generation.wrapping_add(k / SLOTS));
        let (number, posted, took) = (first.wrapping_add(k), 5000 * u64::from(k), u64::from(k % 1000));
        hot.record(DescPosted, rollout, number, 0, Ticks::new(posted));
        hot.record(CompletionPolled, rollout, number, 0, Ticks::new(posted + took));
        sum += took;
        collector.poll(|_| {});
    }
    let report = finish(collector).0;
    assert_eq!(figures(pair(&report, Pair::PostedPolled)), (3000, sum, 999));
    assert_eq!((report.recorded, report.dropped), (6000, 0));
}

#[test]
fn flaw12_device_times_are_told_as_bounds() {
    let (collector, mut hot) = rig(64);
    for (kind, at) in [(DescPosted, 0), (DescConsumed, 700), (CompletionPolled, 800)] {
        hot.record(kind, id(0, 1), 7, 0, Ticks::new(at));
    }
    let (report, trace) = finish(collector);
    for one in Pair::ALL {
        let bound = match one {
            // Consumed at 700 at the latest: it may have taken less to get there, and the rest more.
            Pair::PostedConsumed => Bound::AtMost,
            Pair::ConsumedPolled => Bound::AtLeast,
            _ => Bound::Exact,
        };
        assert_eq!(pair(&report, one).bound, bound, "{}", one.name());
    }
    let text = report.to_string();
    assert!(text.contains("DESC_POSTED→DESC_CONSUMED") && text.contains('≤') && text.contains('≥'), "{text}");
    for kind in EventKind::ALL.map(EventKind::name) {
        let seen = trace.contains(&format!("{kind} (seen by the host)"));
        assert_eq!(seen, kind == "DESC_CONSUMED", "{kind}: {trace}");
    }
}

#[test]
fn a_dropped_end_is_counted_and_never_paired_with_a_later_one() {
    let (mut collector, mut hot) = rig(4);
    let rollout = id(0, 1);
    // The ring holds four: the polls of 1 and 2 are dropped.
    for (kind, number) in
        [(DescPosted, 0), (CompletionPolled, 0), (DescPosted, 1), (DescPosted, 2), (CompletionPolled, 1)]
    {
        hot.record(kind, rollout, number, 0, Ticks::new(10));
    }
    hot.record(CompletionPolled, rollout, 2, 0, Ticks::new(20));
    assert_eq!(hot.dropped(), 2);
    collector.poll(|_| {});
    hot.record(DescPosted, rollout, 3, 0, Ticks::new(30));
    hot.record(CompletionPolled, rollout, 3, 0, Ticks::new(35));
    let mut lost = vec![];
    let report = collector.finish(|event| lost.push(event.lost));
    assert_eq!(lost, [2, 0], "the first event after the gap tells of it");
    assert_eq!(figures(pair(&report, Pair::PostedPolled)), (2, 5, 5));
    assert_eq!(pair(&report, Pair::PostedPolled).unpaired, 2);
    assert_eq!((report.recorded, report.dropped), (6, 2));
    assert!(report.to_string().contains("6 events, 2 dropped"));
}

#[test]
fn a_stage_during_which_an_event_was_dropped_is_not_measured() {
    let (mut collector, mut hot) = rig(2);
    let rollout = id(0, 1);
    hot.record(RolloutAlloc, rollout, 0, 0, Ticks::new(0));
    hot.record(StageEntered, rollout, 0, 2, Ticks::new(10));
    // Out to REWARD_PENDING and back, and nobody sees it.
    hot.record(StageEntered, rollout, 0, 3, Ticks::new(20));
    hot.record(StageEntered, rollout, 0, 2, Ticks::new(30));
    collector.poll(|_| {});
    hot.record(StageEntered, rollout, 0, 3, Ticks::new(40));
    hot.record(StageEntered, rollout, 0, 4, Ticks::new(45));
    let report = finish(collector).0;
    let of = |stage: usize| (figures(&report.stages[stage]), report.stages[stage].unpaired);
    assert_eq!(of(1), ((1, 10, 10), 0));
    assert_eq!(of(2), ((0, 0, 0), 1), "DECODING lasted 10, and then 10: not 30");
    assert_eq!(of(3), ((1, 5, 5), 0));
}

#[test]
fn a_slot_that_was_never_given_back_was_not_free() {
    let (collector, mut hot) = rig(16);
    for generation in 0..3 {
        let now = Ticks::new(100 * u64::from(generation));
        hot.record(RolloutAlloc, id(0, generation), 0, 0, now);
        hot.record(StageEntered, id(0, generation), 0, 5, Ticks::new(now.get() + 7));
        if generation == 1 {
            hot.record(RolloutFree, id(0, generation), 0, 0, Ticks::new(now.get() + 9));
        }
    }
    let report = finish(collector).0;
    let stages: Vec<_> = report.stages.iter().map(figures).collect();
    let nothing = (0, 0, 0);
    assert_eq!(stages, [(1, 91, 91), (3, 21, 7), nothing, nothing, nothing, (1, 2, 2)]);
}

#[rstest]
#[case(id(SLOTS, 1))]
#[case(RolloutId::from_bits(u64::MAX))]
fn an_event_of_a_slot_that_is_not_there_is_passed_over(#[case] rollout: RolloutId) {
    let (collector, mut hot) = rig(64);
    for kind in EventKind::ALL {
        hot.record(kind, rollout, 0, u32::MAX, Ticks::new(1));
    }
    let report = finish(collector).0;
    assert!(report.pairs.iter().all(|pair| pair.count == 0));
    assert_eq!(report.recorded, EventKind::ALL.len() as u64);
}

/// One thing that happens in the made-up run below.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A rollout takes its next step.
    Rollout(u32),
    /// The hot thread reads the clock; until it does so again, its events carry this time.
    Clock,
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        prop_oneof![8 => (0..SLOTS).prop_map(Step::Rollout), 2 => Just(Step::Clock), 1 => Just(Step::Poll)];
    proptest::collection::vec(step, 0..1500)
}

/// A run of rollouts with made-up times, and what a collector with all the memory in the world would say of it.
#[derive(Default)]
struct Run {
    /// What was last read from the clock.
    now: u64,
    next_descriptor: u32,
    /// By slot: generation, what comes next, and its descriptor.
    rollouts: [(u32, u32, u32); SLOTS as usize],
    /// Everything that was recorded, and whether it got into the ring.
    told: Vec<(Event, bool)>,
}

impl Run {
    /// A rollout of two segments, step by step.
    fn step(&mut self, hot: &mut Recorder, slot: u32) {
        let (generation, at, mut descriptor) = self.rollouts[slot as usize];
        if matches!(at, 1 | 6) {
            descriptor = self.next_descriptor;
            self.next_descriptor = descriptor.wrapping_add(1);
        }
        let of = id(slot, generation);
        let mut tell = |kind, descriptor, value| {
            let (time, dropped) = (Ticks::new(self.now), hot.dropped());
            hot.record(kind, of, descriptor, value, time);
            let event = Event { time, rollout: of, descriptor, value, kind, lost: 0 };
            self.told.push((event, hot.dropped() == dropped));
        };
        match at {
            0 => tell(RolloutAlloc, 0, 0),
            1 | 6 => {
                tell(StageEntered, 0, 2);
                tell(DescPosted, descriptor, 0);
            }
            2 | 7 => tell(DescCommitted, descriptor, 0),
            3 | 8 => tell(DescConsumed, descriptor, 0),
            4 | 9 => {
                tell(CompletionPolled, descriptor, 3);
                tell(StageEntered, 0, 3);
                tell(RewardPosted, descriptor, 0);
            }
            5 => tell(RewardScored, descriptor, 9),
            10 => {
                tell(RewardScored, descriptor, 9);
                tell(StageEntered, 0, 4);
            }
            11 => {
                tell(StageEntered, 0, 5);
                tell(TrajectoryDone, descriptor, 6);
            }
            _ => tell(RolloutFree, 0, 0),
        }
        self.rollouts[slot as usize] =
            if at == 12 { (generation.wrapping_add(1), 0, 0) } else { (generation, at + 1, descriptor) };
    }

    /// Count, sum, longest and unpaired of a pair, from those events that got into the ring.
    fn expected(&self, pair: Pair) -> ((u64, u64, u64), u64) {
        let (begin, end) = pair.ends();
        let of_a_rollout = begin == RolloutAlloc;
        let mut ends: HashMap<_, [Option<u64>; 2]> = HashMap::new();
        for (event, _) in self.told.iter().filter(|(_, there)| *there) {
            let key = (event.rollout, if of_a_rollout { 0 } else { event.descriptor });
            let both = ends.entry(key).or_default();
            for (side, kind) in [begin, end].into_iter().enumerate() {
                if event.kind == kind {
                    both[side] = Some(event.time.get());
                }
            }
        }
        let (mut durations, mut unpaired) = (vec![], 0);
        for both in ends.values() {
            match both {
                [Some(begin), Some(end)] => durations.push(end - begin),
                [None, Some(_)] => unpaired += 1,
                // Rollouts that are under way, and checkpoints: their trajectory is yet to come.
                [Some(_), None] => unpaired += u64::from(end != TrajectoryDone),
                [None, None] => {}
            }
        }
        (sums(&durations), unpaired)
    }

    /// The events in turn, cut where one was dropped.
    fn whole_pieces(&self) -> impl Iterator<Item = Vec<Event>> {
        self.told.split(|(_, there)| !there).map(|piece| piece.iter().map(|(event, _)| *event).collect())
    }

    /// Count, sum, longest of the times in a stage, where nothing was dropped.
    fn expected_in(&self, stage: usize) -> (u64, u64, u64) {
        let mut durations = vec![];
        for piece in self.whole_pieces() {
            let mut at: [Option<(usize, u64)>; SLOTS as usize] = Default::default();
            for event in piece {
                let to = match event.kind {
                    RolloutAlloc => 1,
                    StageEntered => event.value as usize,
                    RolloutFree => 0,
                    _ => continue,
                };
                let now = event.time.get();
                if let Some((from, since)) = at[event.rollout.slot() as usize].replace((to, now))
                    && from == stage
                {
                    durations.push(now - since);
                }
            }
        }
        sums(&durations)
    }

    /// Count, sum, longest from ROLLOUT_ALLOC to the first REWARD_POSTED, where nothing was dropped.
    fn expected_to_first_reward(&self) -> (u64, u64, u64) {
        let mut durations = vec![];
        for piece in self.whole_pieces() {
            let mut alloc: HashMap<RolloutId, u64> = HashMap::new();
            for event in piece {
                match event.kind {
                    RolloutAlloc => drop(alloc.insert(event.rollout, event.time.get())),
                    RewardPosted => {
                        durations.extend(alloc.remove(&event.rollout).map(|since| event.time.get() - since));
                    }
                    _ => {}
                }
            }
        }
        sums(&durations)
    }
}

fn sums(durations: &[u64]) -> (u64, u64, u64) {
    (durations.len() as u64, durations.iter().sum(), durations.iter().copied().max().unwrap_or(0))
}

/// Plays a run into a ring of `capacity`, in times that stay below what histograms tell apart exactly.
fn play(steps: &[Step], capacity: usize, generation: u32, descriptor: u32) -> (Run, Report, String) {
    let (mut collector, mut hot) = rig(capacity);
    let mut perfetto = Perfetto::new(vec![], collector.clock().clone(), SLOTS).unwrap();
    let mut run = Run { next_descriptor: descriptor, ..Run::default() };
    run.rollouts.iter_mut().for_each(|rollout| rollout.0 = generation);
    for (k, step) in steps.iter().enumerate() {
        match step {
            Step::Poll => _ = collector.poll(|event| perfetto.event(event).unwrap()),
            Step::Clock => run.now = k as u64,
            Step::Rollout(slot) => run.step(&mut hot, *slot),
        }
    }
    let report = collector.finish(|event| perfetto.event(event).unwrap());
    perfetto.counter(Ticks::new(run.now), "kv_blocks_in_use", 5).unwrap();
    (run, report, String::from_utf8(perfetto.finish().unwrap()).unwrap())
}

proptest! {
    /// Flaw 12, all of it at once: completions in any order, rings and numbers that wrap, slots that are used again, polls
    /// at any time, and with small rings many events that are dropped.
    #[test]
    fn flaw12_every_run_is_told_as_it_was(
        steps in steps(),
        capacity in 1usize..1025,
        small in any::<bool>(),
        generation in prop_oneof![Just(0), Just(u32::MAX - 2)],
        descriptor in prop_oneof![Just(0), Just(u32::MAX - 9)],
    ) {
        let capacity = if small { 1 + capacity % 40 } else { capacity };
        let (run, report, trace) = play(&steps, capacity, generation, descriptor);
        for one in Pair::ALL {
            let told = pair(&report, one);
            if one == Pair::AllocRewardPosted {
                prop_assert_eq!(figures(told), run.expected_to_first_reward(), "{}", one.name());
            } else {
                prop_assert_eq!((figures(told), told.unpaired), run.expected(one), "{}", one.name());
            }
        }
        for (stage, name) in STAGES.iter().enumerate() {
            prop_assert_eq!(figures(&report.stages[stage]), run.expected_in(stage), "{}", name);
        }
        prop_assert_eq!(report.recorded + report.dropped, run.told.len() as u64);
        prop_assert_eq!(report.recorded, run.told.iter().filter(|(_, there)| *there).count() as u64);
        check_trace(&trace, &report);
    }
}

/// Holds a trace to the format: every slice that begins ends, inside the one around it, and time does not go back.
fn check_trace(trace: &str, report: &Report) {
    let entries: Vec<serde_json::Value> = serde_json::from_str(trace).expect("the trace is JSON");
    let mut tracks: HashMap<(u64, u64), (f64, Vec<String>)> = HashMap::new();
    let mut instants = 0;
    for entry in entries.iter().filter(|entry| entry["ph"] != "M") {
        let track = (entry["pid"].as_u64().unwrap(), entry["tid"].as_u64().unwrap_or(0));
        let (last, open) = tracks.entry(track).or_insert((0.0, vec![]));
        let ts = entry["ts"].as_f64().unwrap();
        assert!(ts >= *last, "time goes back on {track:?} at {entry}");
        *last = ts;
        match entry["ph"].as_str().unwrap() {
            "B" => open.push(entry["name"].as_str().unwrap().to_owned()),
            "E" => drop(open.pop().unwrap_or_else(|| panic!("an end without a beginning: {entry}"))),
            "i" if entry["name"] != "events dropped" => instants += 1,
            "i" | "C" => {}
            // An arrow begins and ends in the slice of its descriptor.
            "s" | "f" => {
                let named = format!("descriptor {}", entry["id"]);
                assert_eq!(open.last(), Some(&named), "{entry}");
            }
            other => panic!("{other}?"),
        }
        assert!(open.len() <= 3, "{open:?}");
        if let [rollout, stage, descriptor @ ..] = &open[..] {
            assert!(rollout.starts_with("rollout ") && STAGES.contains(&stage.as_str()), "{open:?}");
            assert!(descriptor.iter().all(|name| name.starts_with("descriptor ")), "{open:?}");
        }
    }
    assert!(tracks.values().all(|(_, open)| open.is_empty()), "a slice never ends");
    assert_eq!(instants, report.recorded);
}

#[test]
fn a_trace_shows_rollouts_with_their_stages() {
    let (collector, mut hot) = rig(64);
    let rollout = id(3, 9);
    hot.record(RolloutAlloc, rollout, 0, 0, Ticks::new(1_500));
    hot.record(DecodeBatch, RolloutId::from_bits(0), 0, 17, Ticks::new(2_000));
    hot.record(StageEntered, rollout, 0, 2, Ticks::new(2_001));
    insta::assert_snapshot!(finish(collector).1);
}

#[test]
fn the_report_reads_well() {
    let steps: Vec<Step> = (0..4000u32)
        .map(|k| match k * 7 % 13 {
            2 => Step::Poll,
            3 | 4 => Step::Clock,
            _ => Step::Rollout(k * 3 % SLOTS),
        })
        .collect();
    let (_, report, _) = play(&steps, 32, 0, 0);
    insta::assert_snapshot!(report.to_string());
}
