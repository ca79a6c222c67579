//! Where the time of a device's workers went.

use std::collections::HashMap;

use doorbell_contract::{Counter, DescFlags, Opcode};
use doorbell_host::Counters;
use doorbell_verify::life::Life;

/// What a worker did, or why it did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It had a descriptor.
    Ran,
    /// It had one that was in wait states.
    Wait,
    /// It had one whose result the write port held back.
    WritePort,
    /// Completions waited for slots of the completion queue (R4).
    FullQueue,
    /// What had been read waited for the descriptor before it in its rollout (R5).
    Order,
    /// What had been read waited for a fence (R7).
    Fence,
    /// What had been read waited for the PREFILL of its group (R17).
    Prefill,
    /// A descriptor that nothing held was on its way through the device.
    Steps,
    /// The device had read no descriptor that had not begun: the host gave none, or the device took none.
    Nothing,
}

impl Cause {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Cause; 9] = [
        Cause::Ran,
        Cause::Wait,
        Cause::WritePort,
        Cause::FullQueue,
        Cause::Order,
        Cause::Fence,
        Cause::Prefill,
        Cause::Steps,
        Cause::Nothing,
    ];

    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Ran => "ran a descriptor",
            Cause::Wait => "in wait states",
            Cause::FullQueue => "idle: the completion queue was full (R4)",
            Cause::WritePort => "held back by the write port",
            Cause::Order => "idle: the rollout's descriptor before was not complete (R5)",
            Cause::Fence => "idle: a fence (R7)",
            Cause::Prefill => "idle: the group's PREFILL was not complete (R17)",
            Cause::Steps => "idle: a descriptor was on its way to a worker",
            Cause::Nothing => "idle: no descriptor waited in the device",
        }
    }
}

/// Where the shares of idle time come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From what waited in the device at each tick: nearly all descriptors have LIFE events.
    Lives,
    /// In proportion to the device's stall counters: many LIFE events are missing or inconsistent.
    Counters,
}

/// Worker ticks by cause. They add up to what the device counts as BUSY and IDLE; where it counts neither, to the workers times the span of
/// the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalls {
    /// Where the shares of idle time come from.
    pub source: Source,
    by: [u64; Cause::ALL.len()],
    /// Ticks of the run in which workers were idle while descriptors were on their way.
    steps: u64,
}

/// LIFE events give the shares if at most one in this many is missing.
const MISSING: usize = 100;

impl Stalls {
    /// Of a device with so many workers, from the lives of all descriptors in the order of submission, and from its counters.
    pub fn of(lives: &[Life], workers: u64, counters: &Counters) -> Stalls {
        let completed = lives.iter().filter(|life| life.completion.is_some());
        let untold = completed.clone().filter(|life| life.read().is_none()).count();
        let complete = untold * MISSING <= completed.count();
        let mut told = Self::of_lives(lives, workers);
        // Events do not show a full completion queue, so they count its ticks as `Steps`. Move these ticks by the counter.
        told.fill_queue(counters.get(Counter::StallCq));
        let [busy, idle, wait, held] = [Counter::Busy, Counter::Idle, Counter::Wait, Counter::StallWrite]
            .map(|counter| counters.get(counter));
        if busy == 0 && idle == 0 {
            return told;
        }
        let source = if complete { Source::Lives } else { Source::Counters };
        let mut stalls = Stalls { source, by: [0; Cause::ALL.len()], steps: 0 };
        let (wait, held) = (wait.min(busy), held.min(busy - wait.min(busy)));
        stalls.by[Cause::Wait as usize] = wait;
        stalls.by[Cause::WritePort as usize] = held;
        stalls.by[Cause::Ran as usize] = busy - wait - held;
        let count = |counter| counters.get(counter);
        let parts: Vec<(Cause, u64)> = if complete {
            IDLE.map(|cause| (cause, told.get(cause))).into()
        } else {
            // STALL_ORDER counts both causes. The LIFE events that exist give the ratio.
            let held_by_rule = count(Counter::StallOrder);
            let [ordered, opened] = [Cause::Order, Cause::Prefill].map(|cause| u128::from(told.get(cause)));
            let order = (u128::from(held_by_rule) * ordered).checked_div(ordered + opened);
            let order = order.map_or(held_by_rule, |order| order as u64);
            let stalled = [
                (Cause::FullQueue, count(Counter::StallCq)),
                (Cause::Order, order),
                (Cause::Prefill, held_by_rule - order),
                (Cause::Fence, count(Counter::StallFence)),
                (Cause::Steps, count(Counter::StallFetch)),
            ];
            let all = stalled.iter().fold(0u64, |all, &(_, cycles)| all.saturating_add(cycles));
            let rest = (Cause::Nothing, count(Counter::Cycles).saturating_sub(all));
            stalled.into_iter().chain([rest]).collect()
        };
        stalls.split(idle, &parts);
        stalls
    }

    /// Moves idle time from `Steps` to the full completion queue, for `ticks` ticks of the run.
    fn fill_queue(&mut self, ticks: u64) {
        let steps = self.by[Cause::Steps as usize];
        let share = u128::from(steps) * u128::from(ticks.min(self.steps));
        let full = share.checked_div(u128::from(self.steps)).unwrap_or(0) as u64;
        self.by[Cause::Steps as usize] -= full;
        self.by[Cause::FullQueue as usize] += full;
    }

    /// Divides `ticks` in proportion, to the last one.
    fn split(&mut self, ticks: u64, parts: &[(Cause, u64)]) {
        let all: u128 = parts.iter().map(|&(_, part)| u128::from(part)).sum();
        let mut left = ticks;
        for &(cause, part) in parts {
            let share = (u128::from(ticks) * u128::from(part)).checked_div(all).unwrap_or(0) as u64;
            self.by[cause as usize] += share;
            left -= share;
        }
        self.by[Cause::Nothing as usize] += left;
    }

    fn of_lives(lives: &[Life], workers: u64) -> Stalls {
        let (first, last) = span(lives);
        let mut stalls = Stalls { source: Source::Lives, by: [0; Cause::ALL.len()], steps: 0 };
        // What changes when: descriptors that wait by cause, and workers that run.
        let mut changes: Vec<(u64, Cause, i64)> = vec![];
        for (life, cause) in lives.iter().zip(causes(lives)) {
            let (Some(read), Some(began), Some(ended)) = (life.read(), life.began(), life.ended()) else {
                continue;
            };
            if began > read {
                changes.extend([(read, cause, 1), (began, cause, -1)]);
            }
            if ended > began {
                changes.extend([(began, Cause::Ran, 1), (ended, Cause::Ran, -1)]);
            }
        }
        changes.sort_by_key(|&(at, ..)| at);
        let mut now = [0i64; Cause::ALL.len()];
        let mut at = first;
        for (next, cause, change) in changes {
            stalls.add(next - at, workers, &now);
            now[cause as usize] += change;
            at = next;
        }
        stalls.add(last - at, workers, &now);
        stalls
    }

    fn add(&mut self, ticks: u64, workers: u64, now: &[i64; Cause::ALL.len()]) {
        let ran = (now[Cause::Ran as usize].max(0) as u64).min(workers);
        let waits = [Cause::Steps, Cause::Prefill, Cause::Order, Cause::Fence];
        let idle = waits.into_iter().find(|&cause| now[cause as usize] > 0).unwrap_or(Cause::Nothing);
        if idle == Cause::Steps && ran < workers {
            self.steps = self.steps.saturating_add(ticks);
        }
        // Stamps may be anything: they are the device's.
        for (cause, of) in [(Cause::Ran, ran), (idle, workers - ran)] {
            let sum = &mut self.by[cause as usize];
            *sum = sum.saturating_add(ticks.saturating_mul(of));
        }
    }

    /// All worker ticks.
    pub fn total(&self) -> u64 {
        self.by.iter().fold(0, |sum, &ticks| sum.saturating_add(ticks))
    }

    /// Worker ticks of a cause.
    pub fn get(&self, cause: Cause) -> u64 {
        self.by[cause as usize]
    }

    /// The share of a cause in percent; all of them add up to 100.
    pub fn percent(&self, cause: Cause) -> f64 {
        100.0 * self.get(cause) as f64 / self.total().max(1) as f64
    }

    /// The shares in hundredths of a percent, rounded so that they add up to 100 %.
    pub fn hundredths(&self) -> [u64; Cause::ALL.len()] {
        const ALL: u128 = 10_000;
        let total: u128 = self.by.iter().map(|&ticks| u128::from(ticks)).sum();
        if total == 0 {
            return self.by;
        }
        let exact = self.by.map(|ticks| u128::from(ticks) * ALL);
        let mut shares = exact.map(|share| (share / total) as u64);
        let missing = ALL as u64 - shares.iter().sum::<u64>();
        let mut order: Vec<usize> = (0..exact.len()).collect();
        order.sort_by_key(|&place| std::cmp::Reverse(exact[place] % total));
        for &place in &order[..missing as usize] {
            shares[place] += 1;
        }
        shares
    }

    /// The largest cause but for running.
    pub fn bottleneck(&self) -> Cause {
        let idle = Cause::ALL.into_iter().filter(|&cause| cause != Cause::Ran);
        idle.max_by_key(|&cause| self.get(cause)).unwrap_or(Cause::Nothing)
    }
}

/// The causes of workers without a descriptor.
const IDLE: [Cause; 6] =
    [Cause::FullQueue, Cause::Order, Cause::Fence, Cause::Prefill, Cause::Steps, Cause::Nothing];

/// The first and the last tick of a run.
pub fn span(lives: &[Life]) -> (u64, u64) {
    let first = lives.iter().filter_map(Life::read).min().unwrap_or(0);
    (first, lives.iter().filter_map(Life::visible).max().unwrap_or(first))
}

/// What held each descriptor before a worker began with it; `Steps` if nothing did. A descriptor that waited for its turn has the cause of
/// the one before it.
fn causes(lives: &[Life]) -> Vec<Cause> {
    let mut rollouts: HashMap<(u8, u32), u64> = HashMap::new();
    let mut prefills: HashMap<(u8, u32), u64> = HashMap::new();
    let mut fences: HashMap<u8, u64> = HashMap::new();
    let mut latest: HashMap<u8, u64> = HashMap::new();
    let mut before: HashMap<u8, (u64, Cause)> = HashMap::new();
    let cause = |life: &Life| {
        let (Some(event), Some(read), Some(visible)) = (life.event, life.read(), life.visible()) else {
            return Cause::Steps;
        };
        let (queue, desc) = (event.queue_id, &life.desc);
        let flags = DescFlags::from_bits_retain(desc.flags);
        let later = |at: Option<&u64>| at.is_some_and(|&at| at > read);
        let fence = flags.contains(DescFlags::FENCE);
        let is_prefill = desc.opcode == Opcode::Prefill as u8;
        let member = flags.contains(DescFlags::COW_PREFIX) && !is_prefill;
        let cause = if later(rollouts.get(&(queue, desc.rollout_id))) {
            Cause::Order
        } else if later(fences.get(&queue)) || fence && later(latest.get(&queue)) {
            Cause::Fence
        } else if member && later(prefills.get(&(queue, desc.prefix_id))) {
            Cause::Prefill
        } else {
            before.get(&queue).filter(|(began, _)| *began > read).map_or(Cause::Steps, |&(_, cause)| cause)
        };
        let began = life.began().unwrap_or(read);
        let last = before.entry(queue).or_insert((began, cause));
        if began >= last.0 {
            *last = (began, cause);
        }
        rollouts.insert((queue, desc.rollout_id), visible);
        if is_prefill && desc.max_tokens > 0 {
            prefills.insert((queue, desc.prefix_id), visible);
        }
        if fence {
            fences.insert(queue, visible);
        }
        let all = latest.entry(queue).or_default();
        *all = visible.max(*all);
        cause
    };
    lives.iter().map(cause).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_contract::{HwDesc, HwEvent};

    fn life(desc: HwDesc, stamp: u64, [start, ended, visible]: [u32; 3], worker_id: u16) -> Life {
        let event =
            HwEvent { stamp, start, first_token: start, ended, visible, worker_id, ..HwEvent::default() };
        Life { desc, completion: None, event: Some(event) }
    }

    #[test]
    fn every_worker_tick_has_one_cause() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let lives = [
            // 10 to 14 on its way, 14 to 100 runs.
            life(of(1), 10, [4, 90, 95], 0),
            // 20 to 105 held by rollout 1, then 105 to 110 runs.
            life(of(1), 20, [85, 90, 100], 0),
        ];
        let stalls = Stalls::of_lives(&lives, 2);
        // Both workers wait for 4 ticks; the second has none to wait for until 20, and the first after 110.
        assert_eq!((stalls.get(Cause::Ran), stalls.get(Cause::Steps)), (86 + 5, 8));
        assert_eq!(stalls.get(Cause::Order), 80 + 2 * 5);
        assert_eq!(stalls.get(Cause::Nothing), 6 + 5 + 2 * 10);
        assert_eq!((stalls.total(), stalls.bottleneck()), (2 * 110, Cause::Order));
        adds_up(&stalls);
        // The device counts exactly: 100 busy ticks, 6 of them held, and 120 idle ones.
        let count = |counter| {
            Ok(match counter {
                Counter::Busy => 100,
                Counter::Idle => 120,
                Counter::StallWrite => 6,
                Counter::StallFence => 30,
                Counter::Cycles => 110,
                _ => 0,
            })
        };
        let counters = Counters::read(count).unwrap();
        let stalls = Stalls::of(&lives, 2, &counters);
        assert_eq!((stalls.get(Cause::Ran), stalls.get(Cause::WritePort), stalls.total()), (94, 6, 220));
        assert_eq!(stalls.get(Cause::Fence), 0);
        adds_up(&stalls);
        // A completion without an event: then the counters of stalls divide the idle time.
        let mut dropped = lives.to_vec();
        dropped[1].completion = Some((0, doorbell_contract::HwCompletion::default()));
        dropped[1].event = None;
        let stalls = Stalls::of(&dropped, 2, &counters);
        assert_eq!(
            (stalls.source, stalls.get(Cause::Fence), stalls.total()),
            (Source::Counters, 120 * 30 / 110, 220)
        );
        adds_up(&stalls);
    }

    /// A life whose event breaks R23 is left out; the time of the others is what it would be without it.
    #[test]
    fn a_life_that_contradicts_itself_is_left_out() {
        let sound = life(HwDesc::decode(1, 4, 4), 10, [4, 90, 95], 0);
        for deltas in [[90, 4, 5], [4, 90, 5], [1 << 30, 4, 5]] {
            let lives = [sound.clone(), life(HwDesc::decode(2, 4, 4), 20, deltas, 0)];
            let of_sound = Stalls::of_lives(&lives[..1], 2);
            assert_eq!(Stalls::of_lives(&lives, 2), of_sound, "{deltas:?}");
            assert_eq!(of_sound.total(), 2 * 95);
        }
        // The largest stamp that the format has.
        let late = life(HwDesc::decode(2, 4, 4), u64::MAX >> 1, [4, 90, 95], 0);
        Stalls::of_lives(&[sound, late], 16);
    }

    /// R4: events do not show a completion that waits for its slot, but STALL_CQ does.
    #[test]
    fn a_full_completion_queue_is_told_by_its_counter() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let lives = [life(of(1), 10, [2, 10, 12], 0), life(of(2), 12, [100, 108, 110], 0)];
        let count = |counter| {
            Ok(match counter {
                Counter::Busy => 16,
                Counter::Idle => 96,
                Counter::StallCq => 90,
                _ => 0,
            })
        };
        let stalls = Stalls::of(&lives, 1, &Counters::read(count).unwrap());
        assert_eq!(stalls.bottleneck(), Cause::FullQueue);
        assert!(stalls.get(Cause::FullQueue) >= 85, "{stalls:?}");
        adds_up(&stalls);
    }

    /// If one event in a hundred is missing, the source stays the same. If more are missing, the remaining ones divide STALL_ORDER between
    /// R5 and R17.
    #[test]
    fn missing_events_do_not_turn_a_group_into_an_order() {
        let prefill = HwDesc { rollout_id: 900, ..HwDesc::open_group(7, 4, 60) };
        let member =
            |k: u16| HwDesc::decode(k.into(), 4, 4).with_flags(DescFlags::COW_PREFIX).with_member(7, k);
        let answered =
            |life: Life| Life { completion: Some((0, doorbell_contract::HwCompletion::default())), ..life };
        let mut lives = vec![answered(life(prefill, 10, [4, 500, 600], 0))];
        lives.extend((0..60).map(|k| answered(life(member(k), 20, [592, 600, 610], 1))));
        let count = |counter| {
            Ok(match counter {
                Counter::Busy => 500,
                Counter::Idle => 700,
                Counter::StallOrder => 580,
                Counter::Cycles => 620,
                _ => 0,
            })
        };
        let counters = Counters::read(count).unwrap();
        assert_eq!(Stalls::of(&lives, 2, &counters).bottleneck(), Cause::Prefill);
        for dropped in &mut lives[40..] {
            dropped.event = None;
        }
        let stalls = Stalls::of(&lives, 2, &counters);
        assert_eq!(
            (stalls.source, stalls.bottleneck(), stalls.get(Cause::Order)),
            (Source::Counters, Cause::Prefill, 0)
        );
        adds_up(&stalls);
    }

    /// A descriptor that waits its turn has the same cause as the descriptor before it.
    #[test]
    fn a_turn_has_the_cause_of_what_it_waits_behind() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let lives = [
            life(of(1), 10, [4, 90, 95], 0),
            life(of(1), 20, [90, 95, 100], 0),
            life(of(2), 21, [90, 95, 100], 1),
        ];
        assert_eq!(causes(&lives), [Cause::Steps, Cause::Order, Cause::Order]);
    }

    fn adds_up(stalls: &Stalls) {
        let percent: f64 = Cause::ALL.into_iter().map(|cause| stalls.percent(cause)).sum();
        assert!((percent - 100.0).abs() < 1e-9, "{percent}");
        assert_eq!(stalls.hundredths().iter().sum::<u64>(), 10_000);
    }
}
