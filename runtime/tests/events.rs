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
    let mut collector = Collector::new(Clock::simulated(), SLOTS);
    let recorder = collector.recorder("hot", capacity).unwrap();
    (collector, recorder)
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

#[test]
fn flaw12_completions_out_of_order_are_paired_by_descriptor() {
    let (mut collector, mut hot) = rig(64);
    let rollouts = [id(0, 1), id(1, 1), id(2, 1)];
    for (k, rollout) in rollouts.into_iter().enumerate() {
        hot.record(DescPosted, rollout, k as u32, 0, Ticks::new(100 * k as u64));
    }
    for (k, rollout) in rollouts.into_iter().enumerate().rev() {
        hot.record(CompletionPolled, rollout, k as u32, 0, Ticks::new(1000 - 100 * k as u64));
    }
    let report = collector.finish(|_, _| {});
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
        collector.poll(Ticks::new(posted + took), |_, _| {});
    }
    let report = collector.finish(|_, _| {});
    assert_eq!(figures(pair(&report, Pair::PostedPolled)), (3000, sum, 999));
    assert_eq!((report.recorded(), report.dropped()), (6000, 0));
    assert!(report.pairs.iter().all(|pair| pair.reversed == 0));
}

#[test]
fn flaw12_device_times_are_told_as_bounds() {
    let (mut collector, mut hot) = rig(64);
    for (kind, at) in [(DescPosted, 0), (DescConsumed, 700), (CompletionPolled, 800)] {
        hot.record(kind, id(0, 1), 7, 0, Ticks::new(at));
    }
    let mut perfetto = Perfetto::new(vec![], collector.clock().clone(), collector.threads(), SLOTS).unwrap();
    let report = collector.finish(|thread, event| perfetto.event(thread, event).unwrap());
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
    let trace = String::from_utf8(perfetto.finish().unwrap()).unwrap();
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
    collector.poll(Ticks::new(20), |_, _| {});
    hot.record(DescPosted, rollout, 3, 0, Ticks::new(30));
    hot.record(CompletionPolled, rollout, 3, 0, Ticks::new(35));
    let mut lost = vec![];
    let report = collector.finish(|_, event| lost.push(event.lost));
    assert_eq!(lost, [2, 0], "the first event after the gap tells of it");
    assert_eq!(figures(pair(&report, Pair::PostedPolled)), (2, 5, 5));
    assert_eq!(pair(&report, Pair::PostedPolled).unpaired, 2);
    assert_eq!((report.recorded(), report.dropped()), (6, 2));
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
    collector.poll(Ticks::new(30), |_, _| {});
    hot.record(StageEntered, rollout, 0, 3, Ticks::new(40));
    hot.record(StageEntered, rollout, 0, 4, Ticks::new(45));
    let report = collector.finish(|_, _| {});
    let of = |stage: usize| (figures(&report.stages[stage]), report.stages[stage].unpaired);
    assert_eq!(of(1), ((1, 10, 10), 0));
    assert_eq!(of(2), ((0, 0, 0), 1), "DECODING lasted 10, and then 10: not 30");
    assert_eq!(of(3), ((1, 5, 5), 0));
}

#[test]
fn a_slot_that_was_never_given_back_was_not_free() {
    let (mut collector, mut hot) = rig(16);
    for generation in 0..3 {
        let now = Ticks::new(100 * u64::from(generation));
        hot.record(RolloutAlloc, id(0, generation), 0, 0, now);
        hot.record(StageEntered, id(0, generation), 0, 5, Ticks::new(now.get() + 7));
        if generation == 1 {
            hot.record(RolloutFree, id(0, generation), 0, 0, Ticks::new(now.get() + 9));
        }
    }
    let report = collector.finish(|_, _| {});
    let stages: Vec<_> = report.stages.iter().map(figures).collect();
    let nothing = (0, 0, 0);
    assert_eq!(stages, [(1, 91, 91), (3, 21, 7), nothing, nothing, nothing, (1, 2, 2)]);
}

#[rstest]
fn either_end_may_come_first(#[values(0, 1, 2, 3, 5, 6, 7)] which: usize) {
    let one = Pair::ALL[which];
    let (begin, end) = one.ends();
    let (mut collector, mut hot) = rig(4);
    let mut other = collector.recorder("other", 4).unwrap();
    other.record(end, id(0, 1), 5, 0, Ticks::new(6));
    collector.poll(Ticks::new(6), |_, _| {});
    hot.record(begin, id(0, 1), 5, 0, Ticks::new(7));
    let report = collector.finish(|_, _| {});
    let told = pair(&report, one);
    assert_eq!((told.count, told.max_ns, told.reversed, told.unpaired), (1, 0, 1, 0));
}

#[rstest]
#[case(id(SLOTS, 1))]
#[case(RolloutId::from_bits(u64::MAX))]
fn an_event_of_a_slot_that_is_not_there_is_unpaired(#[case] rollout: RolloutId) {
    let (mut collector, mut hot) = rig(64);
    for kind in EventKind::ALL {
        hot.record(kind, rollout, 0, u32::MAX, Ticks::new(1));
    }
    let mut perfetto = Perfetto::new(vec![], collector.clock().clone(), collector.threads(), SLOTS).unwrap();
    let report = collector.finish(|thread, event| perfetto.event(thread, event).unwrap());
    perfetto.finish().unwrap();
    assert!(report.pairs.iter().all(|pair| pair.count == 0));
    assert_eq!(pair(&report, Pair::PostedPolled).unpaired, 2);
}

#[test]
fn a_ring_of_a_size_that_cannot_be_is_refused() {
    let mut collector = Collector::new(Clock::simulated(), SLOTS);
    assert!(collector.recorder("hot", 3).is_err());
}

/// One thing that happens in the made-up run below.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A rollout takes its next event, if it has one.
    Rollout(u32),
    /// The judge, or the writer, deals with the oldest thing it has to.
    Judge,
    Writer,
    /// A thread reads the clock; until it does so again, its events carry this time.
    Clock(usize),
    /// The collector polls, up to now or up to a little before.
    Poll(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..SLOTS).prop_map(Step::Rollout),
        2 => Just(Step::Judge),
        2 => Just(Step::Writer),
        2 => (0..3usize).prop_map(Step::Clock),
        1 => (0..40u64).prop_map(Step::Poll),
    ];
    proptest::collection::vec(step, 0..1500)
}

/// A run of rollouts with made-up times, and what a collector with all the memory in the world would say of it.
#[derive(Default)]
struct Run {
    now: u64,
    /// What each thread last read from the clock.
    read: [u64; 3],
    next_descriptor: u32,
    /// By slot: generation, and what comes next.
    rollouts: [(u32, u32, u32); SLOTS as usize],
    judge: Vec<(RolloutId, u32)>,
    writer: Vec<(RolloutId, u32)>,
    /// By recorder: everything it was told, and whether it got into the ring.
    told: [Vec<(Event, bool)>; 3],
}

impl Run {
    fn record(
        &mut self,
        recorders: &mut [Recorder; 3],
        by: usize,
        kind: EventKind,
        of: RolloutId,
        d: u32,
        v: u32,
    ) {
        let dropped = recorders[by].dropped();
        let time = Ticks::new(self.read[by]);
        recorders[by].record(kind, of, d, v, time);
        let event = Event { time, rollout: of, descriptor: d, value: v, kind, lost: 0 };
        self.told[by].push((event, recorders[by].dropped() == dropped));
    }

    fn step(&mut self, recorders: &mut [Recorder; 3], step: Step) {
        match step {
            Step::Rollout(slot) => {
                let (generation, at, descriptor) = self.rollouts[slot as usize];
                let of = id(slot, generation);
                let posted = if matches!(at, 1 | 6) { self.next_descriptor } else { descriptor };
                let waits = |queue: &[(RolloutId, u32)]| queue.iter().any(|(waiting, _)| *waiting == of);
                let (judged, stored) = (!waits(&self.judge), !waits(&self.writer));
                let mut hot = |kind, d, v| self.record(recorders, 0, kind, of, d, v);
                match at {
                    0 => hot(RolloutAlloc, 0, 0),
                    1 | 6 => {
                        hot(StageEntered, 0, 2);
                        // Two at a time, of which the second completes first.
                        hot(DescPosted, posted, 0);
                        hot(DescPosted, posted.wrapping_add(1), 0);
                    }
                    2 | 7 => {
                        hot(DescCommitted, descriptor, 0);
                        hot(DescCommitted, descriptor.wrapping_add(1), 0);
                    }
                    3 | 8 => {
                        hot(DescConsumed, descriptor, 0);
                        hot(DescConsumed, descriptor.wrapping_add(1), 0);
                    }
                    4 | 9 => {
                        hot(CompletionPolled, descriptor.wrapping_add(1), 0);
                        hot(CompletionPolled, descriptor, 3);
                        hot(RewardPosted, descriptor, 0);
                        hot(StageEntered, 0, 3);
                        self.judge.push((of, descriptor));
                    }
                    5 | 10 if !judged => return,
                    5 => {}
                    10 => {
                        hot(StageEntered, 0, 4);
                        self.writer.push((of, descriptor));
                    }
                    11 if !stored => return,
                    11 => hot(StageEntered, 0, 5),
                    _ => {
                        hot(RolloutFree, 0, 0);
                        // No thread's turn takes longer than a rollout.
                        self.read = [self.now; 3];
                    }
                }
                let rollout = &mut self.rollouts[slot as usize];
                self.next_descriptor =
                    self.next_descriptor.wrapping_add(if matches!(at, 1 | 6) { 2 } else { 0 });
                *rollout =
                    if at == 12 { (generation.wrapping_add(1), 0, 0) } else { (generation, at + 1, posted) };
            }
            Step::Judge if !self.judge.is_empty() => {
                let (of, descriptor) = self.judge.remove(0);
                self.record(recorders, 1, RewardScored, of, descriptor, 9);
            }
            Step::Writer if !self.writer.is_empty() => {
                let (of, descriptor) = self.writer.remove(0);
                self.record(recorders, 2, TrajectoryDone, of, descriptor, 6);
            }
            _ => {}
        }
    }

    /// Count, sum, longest, unpaired and reversed of a pair, from those events that got into their ring.
    fn expected(&self, pair: Pair) -> ((u64, u64, u64), u64, u64) {
        let (begin, end) = pair.ends();
        let of_a_rollout = begin == RolloutAlloc;
        let mut ends: HashMap<_, [Option<u64>; 2]> = HashMap::new();
        for (event, _) in self.told.iter().flatten().filter(|(_, there)| *there) {
            let key = (event.rollout, if of_a_rollout { 0 } else { event.descriptor });
            let both = ends.entry(key).or_default();
            for (side, kind) in [begin, end].into_iter().enumerate() {
                if event.kind == kind {
                    both[side] = Some(event.time.get());
                }
            }
        }
        let (mut durations, mut unpaired, mut reversed) = (vec![], 0, 0);
        for both in ends.values() {
            match both {
                [Some(begin), Some(end)] => {
                    durations.push(end.saturating_sub(*begin));
                    reversed += u64::from(end < begin);
                }
                [None, Some(_)] => unpaired += 1,
                // Rollouts that are under way, and checkpoints: their trajectory is yet to come.
                [Some(_), None] if end == TrajectoryDone => {}
                [Some(_), None] => unpaired += 1,
                [None, None] => {}
            }
        }
        (sums(&durations), unpaired, reversed)
    }

    /// The hot thread's events in turn, cut where one was dropped.
    fn whole_pieces(&self) -> impl Iterator<Item = Vec<Event>> {
        self.told[0].split(|(_, there)| !there).map(|piece| piece.iter().map(|(event, _)| *event).collect())
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

/// Plays a run into recorders with rings of `capacity`, in times that stay below what histograms tell apart exactly.
fn play(steps: &[Step], capacity: usize, generation: u32, descriptor: u32) -> (Run, Report, String) {
    let mut collector = Collector::new(Clock::simulated(), SLOTS);
    let mut recorders =
        ["hot", "judge \"0\"", "writer"].map(|name| collector.recorder(name, capacity).unwrap());
    let mut perfetto = Perfetto::new(vec![], collector.clock().clone(), collector.threads(), SLOTS).unwrap();
    let mut run = Run { next_descriptor: descriptor, ..Run::default() };
    run.rollouts.iter_mut().for_each(|rollout| rollout.0 = generation);
    for (k, step) in steps.iter().enumerate() {
        run.now = k as u64;
        match step {
            Step::Poll(behind) => {
                let horizon = Ticks::new(run.now.saturating_sub(*behind));
                collector.poll(horizon, |thread, event| perfetto.event(thread, event).unwrap());
            }
            Step::Clock(thread) => run.read[*thread] = run.now,
            step => run.step(&mut recorders, *step),
        }
    }
    let report = collector.finish(|thread, event| perfetto.event(thread, event).unwrap());
    perfetto.counter(Ticks::new(run.now), "kv_blocks_in_use", 5).unwrap();
    (run, report, String::from_utf8(perfetto.finish().unwrap()).unwrap())
}

proptest! {
    /// Flaw 12, all of it at once: three threads, completions and scores in any order, rings and numbers that wrap, slots
    /// that are used again, polls at any time, and with small rings many events that are dropped.
    #[test]
    fn flaw12_every_run_is_told_as_it_was(
        steps in steps(),
        capacity in (1u32..11).prop_map(|log2| 1 << log2),
        generation in prop_oneof![Just(0), Just(u32::MAX - 2)],
        descriptor in prop_oneof![Just(0), Just(u32::MAX - 9)],
    ) {
        let (run, report, trace) = play(&steps, capacity, generation, descriptor);
        for one in Pair::ALL {
            let told = pair(&report, one);
            if one == Pair::AllocRewardPosted {
                prop_assert_eq!(figures(told), run.expected_to_first_reward(), "{}", one.name());
            } else {
                prop_assert_eq!((figures(told), told.unpaired, told.reversed), run.expected(one), "{}", one.name());
            }
        }
        for (stage, name) in STAGES.iter().enumerate() {
            prop_assert_eq!(figures(&report.stages[stage]), run.expected_in(stage), "{}", name);
        }
        let told: usize = run.told.iter().map(Vec::len).sum();
        prop_assert_eq!(report.recorded() + report.dropped(), told as u64);
        let there = run.told.iter().flatten().filter(|(_, there)| *there).count();
        prop_assert_eq!(report.recorded(), there as u64);
        check_trace(&trace, &report);
    }
}

/// Holds a trace to the format: every slice that begins ends, inside the one around it, and time does not go back.
fn check_trace(trace: &str, report: &Report) {
    let entries: Vec<serde_json::Value> = serde_json::from_str(trace).expect("the trace is JSON");
    let mut tracks: HashMap<(u64, u64), (f64, Vec<String>)> = HashMap::new();
    let mut names = vec![];
    let mut instants = 0;
    for entry in &entries {
        let phase = entry["ph"].as_str().unwrap();
        if phase == "M" {
            names.push(entry["args"]["name"].as_str().unwrap());
            continue;
        }
        let track = (entry["pid"].as_u64().unwrap(), entry["tid"].as_u64().unwrap_or(0));
        let (last, open) = tracks.entry(track).or_insert((0.0, vec![]));
        let ts = entry["ts"].as_f64().unwrap();
        assert!(ts >= *last, "time goes back on {track:?} at {entry}");
        *last = ts;
        match phase {
            "B" => open.push(entry["name"].as_str().unwrap().to_owned()),
            "E" => drop(open.pop().unwrap_or_else(|| panic!("an end without a beginning: {entry}"))),
            "i" if entry["name"] != "events dropped" => instants += 1,
            "i" | "C" => {}
            other => panic!("{other}?"),
        }
        assert!(open.len() <= 2, "{open:?}");
        if let [rollout, stage] = &open[..] {
            assert!(rollout.starts_with("rollout ") && STAGES.contains(&stage.as_str()), "{open:?}");
        }
    }
    assert!(tracks.values().all(|(_, open)| open.is_empty()), "a slice never ends");
    assert_eq!(instants, report.recorded());
    assert!(names.contains(&"judge \"0\""), "{names:?}");
}

#[test]
fn a_trace_shows_rollouts_with_their_stages() {
    let (mut collector, mut hot) = rig(64);
    let rollout = id(3, 9);
    hot.record(RolloutAlloc, rollout, 0, 0, Ticks::new(1_500));
    hot.record(DecodeBatch, RolloutId::from_bits(0), 0, 17, Ticks::new(2_000));
    hot.record(StageEntered, rollout, 0, 2, Ticks::new(2_001));
    let mut perfetto = Perfetto::new(vec![], collector.clock().clone(), collector.threads(), SLOTS).unwrap();
    collector.finish(|thread, event| perfetto.event(thread, event).unwrap());
    let trace = String::from_utf8(perfetto.finish().unwrap()).unwrap();
    insta::assert_snapshot!(trace);
}

#[test]
fn the_report_reads_well() {
    let steps: Vec<Step> = (0..4000u32)
        .map(|k| match k * 7 % 13 {
            0 => Step::Judge,
            1 => Step::Writer,
            2 => Step::Poll(20),
            3 | 4 => Step::Clock(k as usize % 3),
            _ => Step::Rollout(k * 3 % SLOTS),
        })
        .collect();
    let (_, report, _) = play(&steps, 32, 0, 0);
    insta::assert_snapshot!(report.to_string());
}
