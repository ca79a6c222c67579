//! Several queue pairs and functions of one device, each with a driver of its own: what one does touches no other.
//!
//! These cases need a device that is reached by place ([`Pages`]) and was built with more than one queue pair; of any other
//! [`Tenancy::skipped`] says why they do not run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::events::{has_events, read};
use super::interrupts::{has_interrupts, told};
use super::rig::{Rig, below, by_position, numbered};
use super::{Failure, ensure, ensure_eq};
use crate::oracle::Oracle;
use doorbell_contract::{
    Access, Block, Capability, Control, Counter, DescFlags, DeviceFault, ErrorCode, EventKind,
    FunctionControl, HwCompletion, HwDesc, HwEvent, HwPolicy, Place, PolicyMode, QueueCounter, Register,
    SlotState, State, Status,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;
use doorbell_host::driver::Driver;
use doorbell_host::error::DeviceError;
use doorbell_host::platform::Platform;
use doorbell_host::ports::{Division, Pages, Ports, QueuePort};
use doorbell_host::registers::PolicySlots;
use doorbell_host::{SharedMemory, queue};

/// Queue pairs and functions that the cases use at most.
const QUEUES: u8 = 4;
const FUNCTIONS: u8 = 2;

/// The function whose owner is hostile, where there is one: whoever watches a device's bus cannot know what it does.
pub const HOSTILE: u8 = FUNCTIONS - 1;

/// Accesses of an owner who is hostile, if not told otherwise: enough for every register to be hit in every state, fewer where
/// each is checked.
const ACCESSES: u32 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };

/// One case.
#[derive(Clone, Copy)]
pub struct TenantCase {
    /// Name, which begins with the rule where there is one.
    pub name: &'static str,
    /// Runs the case.
    pub run: fn(&mut Tenancy<'_>) -> Result<(), Failure>,
}

macro_rules! cases {
    ($($name:ident,)*) => {
        /// Every case.
        pub const TENANT_CASES: &[TenantCase] = &[$(TenantCase { name: stringify!($name), run: $name }),*];
    };
}

cases! {
    everything_is_function_0s_after_reset,
    r04_a_queue_pair_that_is_never_reaped_holds_up_no_other,
    r05_a_rollout_of_another_queue_pair_is_another,
    r05_what_was_seen_complete_another_queue_pair_scores,
    r06_settings_are_a_functions_own,
    r07_a_fence_looks_at_its_own_queue_pair,
    r08_a_stop_ends_nothing_of_another_queue_pair,
    r11_windows_refuse_the_regions_of_another_function,
    r11_a_page_reaches_its_own_functions_queue_pairs,
    r11_hostile_accesses_change_nothing_of_others,
    r12_a_disable_touches_no_other,
    r12_a_function_reset_touches_no_other_function,
    r12_a_drain_touches_no_other,
    r12_resets_under_load_lose_nothing_of_others,
    r18_a_version_is_of_its_function_alone,
    r19_a_slot_in_use_by_another_queue_pair_is_not_loaded,
    r20_a_publish_ends_the_decodes_of_all_queue_pairs,
    r21_a_publish_reaches_the_groups_of_all_queue_pairs,
    r23_a_ring_is_of_its_function_alone,
    r23_a_ring_runs_as_long_as_its_function,
    shares_are_the_weights,
    an_eligible_queue_pair_waits_for_the_weights_of_the_others,
    counters_are_the_sums_of_all_queue_pairs,
}

/// Makes devices for cases.
pub struct Tenancy<'a> {
    make: &'a mut dyn FnMut() -> Result<Box<dyn Pages>, DeviceError>,
    seed: u64,
    accesses: u32,
}

type Port = QueuePort<Box<dyn Pages>>;

/// A device that was divided, with a driver for each queue pair.
struct House {
    ports: Ports<Box<dyn Pages>>,
    rigs: Vec<Rig<Port>>,
}

impl<'a> Tenancy<'a> {
    /// A tenancy whose devices come from `make`, each after reset, and whose random choices come from `seed`.
    pub fn new(make: &'a mut dyn FnMut() -> Result<Box<dyn Pages>, DeviceError>, seed: u64) -> Self {
        Self { make, seed, accesses: ACCESSES }
    }

    /// The same, with so many accesses of an owner who is hostile: fewer for a device that is slow.
    #[must_use]
    pub fn with_accesses(self, accesses: u32) -> Self {
        Self { accesses, ..self }
    }

    /// Why the cases do not run on this device, if they do not.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn skipped(&mut self) -> Result<Option<String>, Failure> {
        let mut device = (self.make)()?;
        let queues = device.read_at(Place::FIRST, Register::CapQueues)?;
        let reason = || format!("{} was built with one queue pair (CAP_QUEUES)", device.name());
        Ok((queues < 2).then(reason))
    }

    /// Runs `case`.
    ///
    /// # Errors
    /// What the device did wrong, with the case and the seed.
    pub fn run(&mut self, case: &TenantCase) -> Result<(), Failure> {
        (case.run)(self).map_err(|failure| Failure(format!("{} (seed {}): {failure}", case.name, self.seed)))
    }

    /// A device divided among as many queue pairs and functions as it has, each queue pair with what `config` says for it.
    fn open(&mut self, config: impl Fn(u8) -> QueueConfig) -> Result<House, Failure> {
        self.open_among(FUNCTIONS, config)
    }

    /// The same among at most so many functions.
    fn open_among(&mut self, most: u8, config: impl Fn(u8) -> QueueConfig) -> Result<House, Failure> {
        let mut device = (self.make)()?;
        let mut least = |register, most: u8| -> Result<u8, Failure> {
            Ok(device.read_at(Place::FIRST, register)?.min(most.into()) as u8)
        };
        let (queues, functions) = (least(Register::CapQueues, QUEUES)?, least(Register::CapFunctions, most)?);
        let mut bytes = 0;
        for queue in 0..queues {
            bytes = bytes.max(config(queue).shared_bytes()?);
        }
        let division =
            Division { queues, functions, row: 1, bytes, workers: None, wait_states: config(0).wait_states };
        let ports = Ports::divide(device, &division)?;
        let mut rigs = Vec::new();
        for port in ports.take_all()? {
            let config = config(port.place().queue);
            rigs.push(Rig::new(Driver::new(port, config)?));
        }
        Ok(House { ports, rigs })
    }

    fn random(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed)
    }
}

impl House {
    fn advance(&self, want: usize) -> Result<(), Failure> {
        Ok(self.ports.device().advance(want)?)
    }

    /// Runs `descs(queue)` on every queue pair of `queues` at the same time, and holds every answer against the oracle.
    fn check(
        &mut self,
        queues: impl Fn(u8) -> bool,
        descs: impl Fn(u8) -> Vec<HwDesc>,
    ) -> Result<(), Failure> {
        let mut runs: Vec<(usize, Vec<HwDesc>, usize, Vec<HwCompletion>)> = (0..self.rigs.len())
            .filter(|&queue| queues(queue as u8))
            .map(|queue| (queue, descs(queue as u8), 0, Vec::new()))
            .collect();
        let mut out = [HwCompletion::default(); 7];
        while runs.iter().any(|(_, descs, _, ends)| ends.len() < descs.len()) {
            for (queue, descs, submitted, ends) in &mut runs {
                let driver = &mut self.rigs[*queue].driver;
                *submitted += driver.submit(&descs[*submitted..])?;
                if driver.in_flight() > 0 {
                    let taken = driver.poll(&mut out)?;
                    ends.extend_from_slice(&out[..taken]);
                }
            }
        }
        for (queue, descs, _, ends) in &runs {
            let rig = &self.rigs[*queue];
            let named = |failure| Failure(format!("queue pair {queue}: {failure}"));
            by_position(ends, descs.len()).and_then(|ends| rig.compare(descs, &ends)).map_err(named)?;
        }
        Ok(())
    }

    /// Queue pairs of function 0, and one that is not, if there is another function.
    fn of_function(&self, queue: u8) -> u8 {
        self.ports.division().place(queue).function
    }
}

fn decodes(count: u32, tokens: u32, seed: u32) -> Vec<HwDesc> {
    numbered((0..count).map(|k| HwDesc::decode(k, 5, 1 + (7 * k + seed) % tokens).with_seed(seed)))
}

fn small(sq_depth: u32, cq_depth: u32) -> QueueConfig {
    QueueConfig { sq_depth, cq_depth, token_bytes: 1 << 18, ..QueueConfig::default() }
}

fn everything_is_function_0s_after_reset(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut device = (tenancy.make)()?;
    let mut read = |place, register| device.read_at(place, register);
    let (queues, functions) =
        (read(Place::FIRST, Register::CapQueues)?, read(Place::FIRST, Register::CapFunctions)?);
    let has_windows = read(Place::FIRST, Register::CapWindows)? > 0;
    for queue in 0..queues as u8 {
        let place = Place { function: 0, queue };
        ensure_eq!(read(place, Register::QueueFunction)?, 0, "QUEUE_FUNCTION of queue pair {queue}");
        for register in Register::ALL.into_iter().filter(|register| register.block().per_queue() > 0) {
            // Which registers a device has, `registers_after_reset` holds.
            let is_there = read(Place::FIRST, register).is_ok();
            if let Some(reset) = register.reset().filter(|_| is_there) {
                ensure_eq!(read(place, register)?, reset, "{register} of queue pair {queue} after reset");
            }
        }
    }
    for function in (0..functions as u8).filter(|_| has_windows) {
        for half in [Register::Window0SizeLo, Register::Window0SizeHi] {
            let expected = if function == 0 { u32::MAX } else { 0 };
            let found = read(Place { function, queue: 0 }, half)?;
            ensure_eq!(found, expected, "{half} of function {function} after reset");
        }
    }
    // What was not built is nowhere.
    for (place, register) in [
        (Place { function: 0, queue: queues as u8 }, Register::State),
        (Place { function: 0, queue: queues as u8 }, Register::QueueFunction),
        (Place { function: 0, queue: queues as u8 }, Register::SqSize),
        (Place { function: functions as u8, queue: 0 }, Register::FnControl),
        (Place { function: functions as u8, queue: 0 }, Register::FnWorkers),
    ] {
        // There are addresses for sixteen of each; behind them lies something else.
        let is_addressable = place.function < 16 && place.queue < 16;
        ensure!(
            !is_addressable || read(place, register).is_err(),
            "{register} at {place:?}, which was not built"
        );
    }
    Ok(())
}

fn r04_a_queue_pair_that_is_never_reaped_holds_up_no_other(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    for stuck in 0..2u8 {
        let mut house = tenancy.open(|queue| small(64, if queue == stuck { 2 } else { 16 }))?;
        // Work of every kind that could wait for a slot: none, short and long.
        let descs = numbered((0..40).map(|k| match k % 3 {
            0 => HwDesc::nop(),
            1 => HwDesc::decode(k, 0, 3),
            _ => HwDesc::decode(k, 0, 300),
        }));
        let at = usize::from(stuck);
        ensure_eq!(house.rigs[at].driver.submit(&descs)?, 40, "descriptors taken by an empty queue of 64");
        house.check(|queue| queue != stuck, |queue| decodes(200, 40, queue.into()))?;
        house.rigs[at].settle()?;
        let tail = house.rigs[at].driver.read(Register::CqTail)?;
        ensure_eq!(tail, 2, "R4: completions written to a queue of 2 that nobody reads");
        ensure!(
            house.rigs[at].driver.counter(Counter::StallCq)? > 0,
            "R4: STALL_CQ is 0 although a completion queue is full"
        );
        for (rig, queue) in house.rigs.iter_mut().zip(0u8..) {
            let waited = rig.driver.queue_counter(QueueCounter::StallCq)? > 0;
            ensure!(
                waited || queue != stuck,
                "R4: STALL_CQ of queue pair {queue} is 0 although its completion queue is full"
            );
        }
        house.check(|queue| queue != stuck, |queue| decodes(50, 400, queue.into()))?;
        let ends = by_position(&house.rigs[at].drain()?, descs.len())?;
        house.rigs[at].compare(&descs, &ends)?;
    }
    Ok(())
}

/// A queue pair whose rollout 7 is in flight for as long as nobody reads its completions.
fn hold_rollout_7(rig: &mut Rig<Port>, flags: DescFlags) -> Result<Vec<HwDesc>, Failure> {
    let descs = numbered((0..8).map(|k| HwDesc::decode(7, 10 * k, 4).with_flags(flags)));
    ensure_eq!(rig.driver.submit(&descs)?, 8, "descriptors taken by an empty queue");
    rig.settle()?;
    Ok(descs)
}

fn r05_a_rollout_of_another_queue_pair_is_another(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut house = tenancy.open(|queue| small(16, if queue == 0 { 2 } else { 16 }))?;
    let held = hold_rollout_7(&mut house.rigs[0], DescFlags::empty())?;
    // R5 holds within each: the same rollout, with other seeds, again and again.
    house.check(
        |queue| queue != 0,
        |queue| numbered((0..60).map(|k| HwDesc::decode(7, k, 1 + k % 50).with_seed(queue.into()))),
    )?;
    let ends = house.rigs[0].drain()?;
    ensure!(ends.iter().map(|end| end.user_data).is_sorted(), "R5: completions of one rollout out of order");
    house.rigs[0].compare(&held, &by_position(&ends, held.len())?)
}

/// The tokens of one queue pair, scored by another one over the same region as soon as their completions were seen, while the first
/// goes on.
fn r05_what_was_seen_complete_another_queue_pair_scores(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    const AREA: u64 = 512;
    let mut ranges = QueueConfig::default().ranges;
    (ranges[3], ranges[15]) = ((0, 40_000), (90_000, 90_500));
    let mut house = tenancy.open_among(1, |_| QueueConfig { ranges, ..small(32, 32) })?;
    let features = house.rigs[0].driver.features();
    if !features.capability.contains(Capability::REWARD) {
        return Ok(());
    }
    let models = features.reward_models.min(2) as u16;
    let tokens = house.rigs[0].driver.token_regions().remove(0);
    let Rig { driver, .. } = house.rigs.remove(1);
    let (config, port) = (driver.config().clone(), driver.into_platform());
    let mut judge = Driver::over(port, config, tokens)?;
    let oracle = Oracle::new(judge.config()).with_features(features);
    let mut random = tenancy.random();
    let (mut out, mut made, mut waiting, mut asked, mut scored) =
        ([HwCompletion::default(); 5], 0u32, 0u32, Vec::new(), 0usize);
    while scored < 200 {
        // Each in an area of its own, so that none is written while it is read.
        while made < 200 && waiting < 16 {
            let desc = HwDesc::decode(made, 9, 1 + below(&mut random, 120))
                .with_delta_offset(AREA * u64::from(made))
                .with_user_data(made.into());
            ensure_eq!(house.rigs[0].driver.submit(&[desc])?, 1, "descriptors taken by a queue with room");
            (made, waiting) = (made + 1, waiting + 1);
        }
        let taken = house.rigs[0].driver.poll(&mut out)?;
        for end in &out[..taken] {
            waiting -= 1;
            let tokens = end.final_seq_len - 9;
            let desc = HwDesc::reward(end.rollout_id, end.rollout_id as u16 % models, tokens)
                .with_delta_offset(AREA * end.user_data)
                .with_user_data(asked.len() as u64);
            let mut words = vec![0; tokens as usize];
            judge.tokens(desc.delta_offset, &mut words)?;
            asked.push(oracle.scored(&desc, &words).completion);
            while judge.submit(&[desc])? == 0 {
                scored += take_scores(&mut judge, &asked)?;
            }
        }
        scored += take_scores(&mut judge, &asked)?;
    }
    Ok(())
}

/// Takes the completions of REWARDs, each of which must be the one that was expected; how many came.
fn take_scores(judge: &mut Driver<Port>, expected: &[HwCompletion]) -> Result<usize, Failure> {
    let mut out = [HwCompletion::default(); 5];
    let taken = judge.poll(&mut out)?;
    for end in &out[..taken] {
        let expected = expected.get(end.user_data as usize).copied().unwrap_or_default();
        ensure_eq!(end.without_timing(), expected, "R5: the score of tokens whose completion was seen");
    }
    Ok(taken)
}

fn r06_settings_are_a_functions_own(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let set = |queue: u8, functions: u8| {
        let function = u32::from(queue % functions);
        QueueConfig {
            length_limit: 200 + 100 * function,
            eos_threshold: 300 * function,
            checkpoint_default: 20 + 7 * function,
            reward_threshold: 0x1000 * function as i32,
            ..small(32, 32)
        }
    };
    let functions = tenancy.open(|_| small(32, 32))?.ports.division().functions;
    let mut house = tenancy.open(|queue| set(queue, functions))?;
    for round in 0..5 {
        house.check(
            |_| true,
            |queue| {
                numbered((0..40).map(|k| {
                    let desc = HwDesc::decode(k, 170 + 5 * k, 1 + k).with_seed(round + u32::from(queue));
                    if k % 2 == 0 {
                        desc
                    } else {
                        desc.with_flags(DescFlags::RESIDENT | DescFlags::EOS_STOPS)
                    }
                }))
            },
        )?;
    }
    Ok(())
}

fn r07_a_fence_looks_at_its_own_queue_pair(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    for fenced in [DescFlags::empty(), DescFlags::FENCE] {
        let mut house = tenancy.open(|queue| small(16, if queue == 0 { 2 } else { 8 }))?;
        let held = hold_rollout_7(&mut house.rigs[0], fenced)?;
        house.check(
            |queue| queue != 0,
            |queue| {
                numbered((0..60).map(|k| {
                    let desc = HwDesc::decode(k, queue.into(), 1 + k % 30);
                    if k % 3 == 0 { desc.with_flags(DescFlags::FENCE) } else { desc }
                }))
            },
        )?;
        let ends = by_position(&house.rigs[0].drain()?, held.len())?;
        house.rigs[0].compare(&held, &ends)?;
    }
    Ok(())
}

fn r08_a_stop_ends_nothing_of_another_queue_pair(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    const LONG: u32 = 60_000;
    let mut house = tenancy.open(|_| small(16, 16))?;
    let long = numbered([HwDesc::decode(7, 0, LONG)]);
    house.rigs[0].driver.submit(&long)?;
    house.advance(1)?;
    // Behind something long, so that a device has read them and they are there for a while.
    let others = numbered([HwDesc::decode(9, 0, 5000), HwDesc::nop(), HwDesc::stop(7), HwDesc::stop(8)]);
    for rig in &mut house.rigs[1..] {
        ensure_eq!(rig.driver.submit(&others)?, others.len(), "descriptors taken by an empty queue");
    }
    let ends = house.rigs[0].drain()?;
    house.rigs[0].compare(&long, &by_position(&ends, 1)?)?;
    for rig in &mut house.rigs[1..] {
        let ends = by_position(&rig.drain()?, others.len())?;
        rig.compare(&others, &ends)?;
    }
    // Its own does.
    house.rigs[0].driver.submit(&long)?;
    house.advance(1)?;
    house.rigs[0].driver.submit(&[HwDesc::stop(7).with_user_data(1)])?;
    let ends = by_position(&house.rigs[0].drain()?, 2)?;
    ensure_eq!(ends[0].status, Status::Stopped as u8, "R8: end of a DECODE with a STOP after it");
    ensure!(ends[0].final_seq_len < LONG, "R8: a STOP ended nothing");
    Ok(())
}

/// The bases of the regions of a queue pair, and how long each is.
fn regions(rig: &Rig<Port>) -> [([Register; 2], u64, u64); 4] {
    use Register as R;
    let (layout, config) = (rig.driver.layout(), rig.driver.config());
    let bus = rig.driver.memory().bus_address();
    [
        ([R::SqBaseLo, R::SqBaseHi], layout.sq, 64 * u64::from(config.sq_depth)),
        ([R::CqBaseLo, R::CqBaseHi], layout.cq, 32 * u64::from(config.cq_depth)),
        ([R::TokenBaseLo, R::TokenBaseHi], layout.tokens, config.token_bytes),
        ([R::KvBaseLo, R::KvBaseHi], layout.kv, config.kv_bytes),
    ]
    .map(|(registers, offset, bytes)| (registers, bus + offset as u64, bytes))
}

/// Enables a queue pair that is inactive as it is configured; whether it is active then. It is inactive again behind this.
fn starts(house: &House, place: Place) -> Result<bool, Failure> {
    let mut device = house.ports.device();
    device.write_at(place, Register::Error, u32::MAX)?;
    device.write_at(place, Register::Control, Control::ENABLE.bits())?;
    device.advance(1)?;
    let active = device.read_at(place, Register::State)? & State::ACTIVE.bits() != 0;
    let fault = device.read_at(place, Register::Error)? & DeviceFault::BAD_CONFIG.bits() != 0;
    ensure!(active != fault, "R11: ACTIVE {active} with BAD_CONFIG {fault}");
    device.write_at(place, Register::Control, 0)?;
    for _ in 0..1000 {
        if device.read_at(place, Register::State)? & State::ACTIVE.bits() == 0 {
            device.write_at(place, Register::Error, u32::MAX)?;
            return Ok(active);
        }
        device.advance(1)?;
    }
    Err(Failure("R12: a disable does not end".into()))
}

fn r11_windows_refuse_the_regions_of_another_function(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut house = tenancy.open(|_| QueueConfig { kv_bytes: 4096, ..small(64, 64) })?;
    let windows = house.rigs[0].driver.read(Register::CapWindows)?;
    if windows == 0 || house.ports.division().functions < 2 {
        return Ok(());
    }
    for rig in &mut house.rigs {
        rig.driver.disable()?;
    }
    let all: Vec<_> = house.rigs.iter().map(regions).collect();
    for thief in 0..house.rigs.len() {
        let place = house.ports.division().place(thief as u8);
        ensure!(starts(&house, place)?, "a queue pair with its own regions did not start");
        for (owner, theirs) in all.iter().enumerate() {
            let own = house.of_function(owner as u8) == place.function;
            for &(_, base, bytes) in theirs {
                // The whole of it, and one that begins a little before or ends a little behind.
                for target in [base, base.wrapping_sub(64), base + bytes - 64] {
                    for &([low, high], kept, length) in &all[thief] {
                        let set = |base: u64| -> Result<(), Failure> {
                            let mut device = house.ports.device();
                            device.write_at(place, low, base as u32)?;
                            Ok(device.write_at(place, high, (base >> 32) as u32)?)
                        };
                        set(target)?;
                        let reaches = |other: usize| {
                            let (start, end) = (all[other][0].1, all[other][3].1 + all[other][3].2);
                            target < end && start < target.saturating_add(length)
                        };
                        let steals = (0..all.len())
                            .any(|other| house.of_function(other as u8) != place.function && reaches(other));
                        let started = starts(&house, place)?;
                        ensure!(
                            !(steals && started),
                            "R11: queue pair {thief} of function {} started with {low} {target:#x}, of which {owner} has some",
                            place.function
                        );
                        ensure!(
                            started || !(own && target == base && bytes >= length),
                            "R11: queue pair {thief} did not start with {low} in its own function's memory"
                        );
                        set(kept)?;
                    }
                }
            }
        }
    }
    for rig in &mut house.rigs {
        rig.driver.enable()?;
    }
    house.check(|_| true, |queue| decodes(40, 40, queue.into()))
}

fn r11_a_page_reaches_its_own_functions_queue_pairs(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut house = tenancy.open(|_| small(64, 64))?;
    let functions = house.rigs[0].driver.read(Register::CapFunctions)? as u8;
    let before = snapshot(&house, |_| true)?;
    for queue in 0..16 {
        for function in 0..16 {
            let place = Place { function, queue };
            let own = usize::from(queue) < house.rigs.len() && house.ports.division().place(queue) == place;
            let beyond = usize::from(queue) >= house.rigs.len();
            if own || beyond && function < functions && is_built(&house, place)? {
                continue;
            }
            let mut device = house.ports.device();
            for register in Register::ALL.into_iter().filter(|r| r.block() == Block::FunctionQueue) {
                ensure!(device.read_at(place, register).is_err(), "R11: {register} was read at {place:?}");
                for value in [0, 1, 2, 3, u32::MAX] {
                    let written = device.write_at(place, register, value);
                    ensure!(written.is_err(), "R11: {register} was written at {place:?}");
                }
            }
        }
    }
    ensure!(snapshot(&house, |_| true)? == before, "R11: what was refused changed something");
    house.check(|_| true, |queue| decodes(40, 40, queue.into()))
}

/// Whether a queue pair that the division left out is there, and belongs to the function of `place`.
fn is_built(house: &House, place: Place) -> Result<bool, Failure> {
    let mut device = house.ports.device();
    if u32::from(place.queue) >= device.read_at(Place::FIRST, Register::CapQueues)? {
        return Ok(false);
    }
    Ok(device.read_at(place, Register::QueueFunction)? == u32::from(place.function))
}

/// Every register that says what page 0, and the functions and queue pairs for which `counts` holds, were set to.
fn snapshot(house: &House, counts: impl Fn(u8) -> bool) -> Result<Vec<(Register, Place, u32)>, Failure> {
    let mut device = house.ports.device();
    let functions = device.read_at(Place::FIRST, Register::CapFunctions)? as u8;
    let windows = device.read_at(Place::FIRST, Register::CapWindows)? > 0;
    let (mut found, mut seen) = (Vec::new(), std::collections::HashSet::new());
    for queue in 0..house.rigs.len() as u8 {
        for function in 0..functions {
            let place = Place { function, queue };
            for register in Register::ALL.into_iter().filter(|r| r.access() == Access::Config) {
                let counts = match register.block() {
                    Block::Device | Block::DeviceQueue => true,
                    Block::DeviceFunction => windows || register == Register::FnWorkers,
                    Block::Function => counts(function),
                    _ => counts(function) && house.of_function(queue) == function,
                };
                let is_there = device.read_at(Place::FIRST, register).is_ok();
                if counts && is_there && seen.insert(register.address(place)) {
                    found.push((register, place, device.read_at(place, register)?));
                }
            }
        }
    }
    Ok(found)
}

fn is_language(register: Register) -> bool {
    (Register::ModelBaseLo..=Register::Arena3SizeHi).contains(&register)
}

/// The owner of the last function, who tries whatever its pages take.
struct Hostile {
    random: ChaCha8Rng,
    function: u8,
    queues: Vec<u8>,
    /// Numbers that mean something: addresses of everybody's regions, sizes, indices.
    values: Vec<u32>,
    /// Queue pairs that it started, and that were refused.
    started: [u32; 2],
}

impl Hostile {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[below(&mut self.random, from.len() as u32) as usize]
    }

    fn value(&mut self) -> u32 {
        match below(&mut self.random, 4) {
            0 => self.random.next_u32(),
            1 => below(&mut self.random, 5),
            _ => {
                let values = std::mem::take(&mut self.values);
                let value = self.pick(&values);
                self.values = values;
                value
            }
        }
    }

    /// One access to a register that this owner has mapped.
    fn access(&mut self, house: &House) -> Result<(), Failure> {
        let register = self.pick(&Register::ALL);
        // A seventeenth would lie in the next page.
        let mut queue = below(&mut self.random, 16) as u8;
        if register.block() == Block::Queue || below(&mut self.random, 2) == 0 {
            let own = self.queues.clone();
            queue = self.pick(&own);
        }
        // Page 0 can be read by everybody, whatever it says of whom.
        let page_0 = matches!(
            register.block(),
            Block::Device | Block::DeviceFunction | Block::DeviceQueue | Block::DeviceMessage
        );
        let function = if page_0 { below(&mut self.random, 16) as u8 } else { self.function };
        let (place, value) = (Place { function, queue }, self.value());
        let mut device = house.ports.device();
        if page_0 || below(&mut self.random, 3) == 0 {
            return match device.read_at(place, register) {
                Ok(_) | Err(DeviceError::ReadRefused { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        match device.write_at(place, register, value) {
            Ok(()) | Err(DeviceError::WriteRefused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets one of its queue pairs up as it should be, but for one register, and starts it.
    fn start(&mut self, house: &House) -> Result<(), Failure> {
        let own = self.queues.clone();
        let queue = self.pick(&own);
        let place = Place { function: self.function, queue };
        let rig = &house.rigs[usize::from(queue)];
        let mut device = house.ports.device();
        let mut write = |register, value| match device.write_at(place, register, value) {
            Ok(()) | Err(DeviceError::WriteRefused { .. }) => Ok(()),
            Err(error) => Err(Failure::from(error)),
        };
        write(Register::Control, 0)?;
        for ([low, high], base, _) in regions(rig) {
            write(low, base as u32)?;
            write(high, (base >> 32) as u32)?;
        }
        let config = rig.driver.config();
        let tokens = rig.driver.memory().bus_address() + rig.driver.layout().tokens as u64;
        for (register, value) in [
            (Register::SqSize, config.sq_depth),
            (Register::CqSize, config.cq_depth),
            (Register::TokenSizeLo, config.token_bytes as u32),
            (Register::TokenSizeHi, 0),
            (Register::KvSizeLo, config.kv_bytes as u32),
            (Register::KvSizeHi, 0),
            // Log-probabilities lie over the tokens; a device that has none refuses.
            (Register::LogpBaseLo, tokens as u32),
            (Register::LogpBaseHi, (tokens >> 32) as u32),
            (Register::LogpSizeLo, config.token_bytes as u32),
            (Register::LogpSizeHi, 0),
            (Register::SqStart, 0),
            (Register::CqStart, 0),
            // An event ring lies there, too, or there is none (R23).
            (Register::EqBaseLo, tokens as u32),
            (Register::EqBaseHi, (tokens >> 32) as u32),
            (Register::EqSize, 16 * below(&mut self.random, 2)),
        ]
        .into_iter()
        // No model, and no arenas: a device without engine 1 refuses.
        .chain(
            Register::ALL.into_iter().filter(|register| is_language(*register)).map(|register| (register, 0)),
        ) {
            write(register, value)?;
        }
        let registers = Register::ALL.into_iter().filter(|r| r.block() == Block::FunctionQueue);
        let registers: Vec<Register> = registers.filter(|r| r.access() == Access::Config).collect();
        // Half of the time a base: what leads out of a window.
        let bases = regions(rig).map(|([low, _], ..)| low);
        let register =
            if below(&mut self.random, 2) == 0 { self.pick(&bases) } else { self.pick(&registers) };
        let value = self.value();
        if below(&mut self.random, 4) > 0 {
            write(register, value)?;
        }
        write(Register::Control, Control::ENABLE.bits())?;
        write(Register::Doorbell, below(&mut self.random, config.sq_depth))?;
        let state = State::from_bits_retain(device.read_at(place, Register::State)?);
        self.started[usize::from(!state.contains(State::ACTIVE))] += 1;
        Ok(())
    }
}

fn r11_hostile_accesses_change_nothing_of_others(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    const KV: usize = 4096;
    let mut random = tenancy.random();
    let mut house = tenancy.open(|_| QueueConfig { kv_bytes: KV as u64, ..small(32, 16) })?;
    let function = HOSTILE;
    if house.ports.division().functions <= function {
        return Ok(());
    }
    let victims: Vec<u8> =
        (0..house.rigs.len() as u8).filter(|&queue| house.of_function(queue) != function).collect();
    let queues: Vec<u8> = (0..house.rigs.len() as u8).filter(|queue| !victims.contains(queue)).collect();
    for &queue in &queues {
        house.rigs[usize::from(queue)].driver.disable()?;
        // What it starts finds descriptors there that write tokens.
        let has_logp = house.rigs[usize::from(queue)].features.capability.contains(Capability::LOGP);
        let flags = if has_logp { DescFlags::LOGP } else { DescFlags::empty() };
        let descs = numbered((0..32).map(|k| HwDesc::decode(k, 0, 100).with_flags(flags)));
        house.rigs[usize::from(queue)].driver.submission_queue().push(&descs)?;
        // Its own memory is its own affair.
        house.rigs[usize::from(queue)].driver.memory().expect_any_words();
    }
    let bases = house.rigs.iter().flat_map(regions).flat_map(|(_, base, bytes)| [base, base + bytes]);
    let mut values: Vec<u32> = bases.flat_map(|base| [base as u32, (base >> 32) as u32]).collect();
    values.extend([32, 16, 64, 0x1_0000, KV as u32, 1 << 18, 255, 256, u32::MAX, 1 << 31]);
    let mut hostile = Hostile {
        random: ChaCha8Rng::seed_from_u64(random.next_u64()),
        function,
        queues,
        values,
        started: [0; 2],
    };

    // What lies behind the tokens of the victims, and their KV regions, are written by nobody.
    let canary = |rig: &Rig<Port>| -> Result<(SharedMemory, usize), Failure> {
        Ok((rig.driver.memory().clone(), rig.driver.layout().kv))
    };
    for &victim in &victims {
        let (memory, kv) = canary(&house.rigs[usize::from(victim)])?;
        for offset in (0..KV).step_by(4) {
            let address = memory.bus_address() + (kv + offset) as u64;
            memory
                .bus_write_u32(address, 0x5EED_0000 | offset as u32)
                .map_err(|_| Failure("no memory".into()))?;
        }
    }
    let before = snapshot(&house, |owner| owner != function)?;
    // None of their descriptors asks for an interrupt.
    for &victim in &victims {
        house.rigs[usize::from(victim)].driver.arm()?;
    }
    let rounds = 20;
    for round in 0..rounds {
        let descs: Vec<(u8, Vec<HwDesc>)> =
            victims.iter().map(|&victim| (victim, decodes(24, 200, random.next_u32() % 1000))).collect();
        let mut ends: Vec<Vec<HwCompletion>> = vec![Vec::new(); descs.len()];
        for (victim, descs) in &descs {
            house.rigs[usize::from(*victim)].driver.submit(descs)?;
        }
        let mut out = [HwCompletion::default(); 16];
        for access in 0..tenancy.accesses / rounds {
            if access % 64 == 0 {
                hostile.start(&house)?;
            }
            hostile.access(&house)?;
            if access % 16 == 0 {
                house.advance(1)?;
            }
            if access % 128 == 0 {
                for ((victim, _), ends) in descs.iter().zip(&mut ends) {
                    let taken = house.rigs[usize::from(*victim)].driver.collect(&mut out)?;
                    ends.extend_from_slice(&out[..taken]);
                }
            }
        }
        for ((victim, descs), mut ends) in descs.iter().zip(ends) {
            let rig = &mut house.rigs[usize::from(*victim)];
            while ends.len() < descs.len() {
                let taken = rig.driver.poll(&mut out)?;
                ends.extend_from_slice(&out[..taken]);
            }
            let named = |failure| Failure(format!("round {round}, queue pair {victim}: {failure}"));
            by_position(&ends, descs.len()).and_then(|ends| rig.compare(descs, &ends)).map_err(named)?;
            let fault = rig.driver.read(Register::Error)?;
            ensure_eq!(fault, 0, "R11: ERROR of queue pair {victim}");
            let told = told(rig)?;
            ensure_eq!(told, (has_interrupts(rig), false), "R14: armed, told, of queue pair {victim}");
            let refused = rig.driver.read(Register::Status)? & 0xFF;
            ensure_eq!(refused, 0, "R11: refused doorbells of queue pair {victim}");
            let (memory, kv) = canary(rig)?;
            let mut words = [0; KV / 4];
            memory.load_u32s(kv, &mut words)?;
            let untouched = words.iter().zip(0..).all(|(&word, k)| word == 0x5EED_0000 | (4 * k));
            ensure!(untouched, "R11: the KV region of queue pair {victim} was written");
        }
        let now = snapshot(&house, |owner| owner != function)?;
        if let Some((old, new)) = before.iter().zip(&now).find(|(old, new)| old != new) {
            return Err(Failure(format!("R11: {old:x?} became {new:x?}")));
        }
    }
    ensure!(hostile.started.iter().all(|&count| count > 10), "no trial: {:?} starts", hostile.started);
    // The hostile one's driver has it as clean as ever.
    for &queue in &hostile.queues {
        house.rigs[usize::from(queue)].driver.disable()?;
    }
    for &queue in &hostile.queues {
        house.rigs[usize::from(queue)].driver.enable()?;
    }
    house.check(|_| true, |queue| decodes(40, 40, queue.into()))
}

/// Long and short work for every queue pair, of which some is under way.
fn under_way(house: &mut House, descs: impl Fn(u8) -> Vec<HwDesc>) -> Result<Vec<Vec<HwDesc>>, Failure> {
    let mut all = Vec::new();
    for queue in 0..house.rigs.len() {
        let descs = descs(queue as u8);
        let taken = house.rigs[queue].driver.submit(&descs)?;
        ensure_eq!(taken, descs.len(), "descriptors taken by an empty queue");
        all.push(descs);
    }
    Ok(all)
}

fn long_and_short(queue: u8) -> Vec<HwDesc> {
    numbered((0..24).map(|k| {
        let tokens = if k % 5 == 0 { 3000 } else { 1 + k };
        HwDesc::decode(k, u32::from(queue), tokens)
    }))
}

/// Everything that was submitted to the queue pairs for which `runs` holds comes, and is right.
fn finish(house: &mut House, descs: &[Vec<HwDesc>], runs: impl Fn(u8) -> bool) -> Result<(), Failure> {
    for queue in (0..house.rigs.len()).filter(|&queue| runs(queue as u8)) {
        let ends = house.rigs[queue].drain()?;
        let named = |failure| Failure(format!("queue pair {queue}: {failure}"));
        let ends = by_position(&ends, descs[queue].len()).map_err(named)?;
        house.rigs[queue].compare(&descs[queue], &ends).map_err(named)?;
        // A completion can be seen before the memory has acknowledged it.
        house.rigs[queue].settle()?;
        let state = State::from_bits_retain(house.rigs[queue].driver.read(Register::State)?);
        ensure_eq!(state, State::ACTIVE | State::IDLE, "R12: STATE of queue pair {queue}");
    }
    Ok(())
}

/// The memory of queue pairs that were ended stays as it is.
fn memory_of(house: &House, ended: impl Fn(u8) -> bool) -> Result<Vec<Vec<u32>>, Failure> {
    let rigs = house.rigs.iter().zip(0..).filter(|&(_, queue)| ended(queue));
    rigs.map(|(rig, _)| rig.snapshot()).collect()
}

fn r12_a_disable_touches_no_other(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut random = tenancy.random();
    for round in 0..24 {
        let mut house = tenancy.open(|_| small(32, if round % 2 == 0 { 32 } else { 2 }))?;
        let ended = below(&mut random, house.rigs.len() as u32) as u8;
        let descs = under_way(&mut house, long_and_short)?;
        for _ in 0..below(&mut random, 6) {
            house.advance(1 + below(&mut random, 8) as usize)?;
        }
        house.rigs[usize::from(ended)].driver.disable()?;
        let before = memory_of(&house, |queue| queue == ended)?;
        finish(&mut house, &descs, |queue| queue != ended)?;
        ensure!(
            memory_of(&house, |queue| queue == ended)? == before,
            "R12: memory of a queue pair was written after its disable was acknowledged"
        );
        house.rigs[usize::from(ended)].driver.enable()?;
        house.check(|_| true, |queue| decodes(30, 30, queue.into()))?;
    }
    Ok(())
}

fn r12_a_function_reset_touches_no_other_function(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    for function in 0..FUNCTIONS {
        let mut house = tenancy.open(|_| small(32, 32))?;
        if function >= house.ports.division().functions {
            continue;
        }
        let of = |queue: u8| queue % house.ports.division().functions == function;
        let of: Vec<bool> = (0..house.rigs.len() as u8).map(of).collect();
        let of = |queue: u8| of[usize::from(queue)];
        let descs = under_way(&mut house, long_and_short)?;
        house.advance(3)?;
        let page = Place { function, queue: 0 };
        house.ports.device().write_at(page, Register::FnControl, FunctionControl::RESET.bits())?;
        let mut patience = 100_000;
        while house.ports.device().read_at(page, Register::FnControl)? != 0 {
            house.advance(1)?;
            patience -= 1;
            ensure!(patience > 0, "R12: a reset of a function does not end");
        }
        for queue in (0..house.rigs.len() as u8).filter(|&queue| of(queue)) {
            let state = house.rigs[usize::from(queue)].driver.read(Register::State)?;
            ensure_eq!(
                state,
                State::IDLE.bits(),
                "R12: STATE of queue pair {queue} of a function that was reset"
            );
        }
        let before = memory_of(&house, of)?;
        finish(&mut house, &descs, |queue| !of(queue))?;
        ensure!(memory_of(&house, of)? == before, "R12: memory written after the reset of a function");
        for queue in (0..house.rigs.len()).filter(|&queue| of(queue as u8)) {
            house.rigs[queue].driver.disable()?;
            house.rigs[queue].driver.enable()?;
        }
        house.check(|_| true, |queue| decodes(30, 30, queue.into()))?;
    }
    Ok(())
}

fn r12_a_drain_touches_no_other(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    for drained in 0..2u8 {
        let mut house = tenancy.open(|_| small(32, 32))?;
        let at = usize::from(drained);
        let descs = under_way(&mut house, long_and_short)?;
        house.rigs[at].driver.write(Register::Control, (Control::ENABLE | Control::DRAIN).bits())?;
        let refused = house.rigs[at].driver.write(Register::Doorbell, descs[at].len() as u32 + 1);
        ensure!(refused.is_err(), "a doorbell while it drains");
        finish(&mut house, &descs, |queue| queue != drained)?;
        let mut patience = 100_000;
        while house.rigs[at].driver.read(Register::State)? & State::ACTIVE.bits() != 0 {
            house.advance(1)?;
            patience -= 1;
            ensure!(patience > 0, "R12: a drain does not end");
        }
        let tail = house.rigs[at].driver.read(Register::CqTail)?;
        ensure_eq!(tail, descs[at].len() as u32, "R3: completions of a queue pair that drained");
        // They are read from memory: a queue pair that is inactive takes no CQ_HEAD.
        let (memory, layout) = (house.rigs[at].driver.memory().clone(), house.rigs[at].driver.layout());
        let slots = memory.slots::<{ queue::COMPLETION_WORDS }>(layout.cq, 32)?;
        let mut ends = Vec::new();
        for index in 0..tail {
            let mut words = [0; queue::COMPLETION_WORDS];
            slots.load(index, &mut words);
            ends.push(bytemuck::cast::<_, HwCompletion>(words).with_phase(false));
        }
        house.rigs[at].compare(&descs[at], &by_position(&ends, descs[at].len())?)?;
        house.check(|queue| queue != drained, |queue| decodes(30, 30, queue.into()))?;
        house.rigs[at].driver.disable()?;
        house.rigs[at].driver.enable()?;
        house.check(|_| true, |queue| decodes(30, 30, queue.into()))?;
    }
    Ok(())
}

fn r12_resets_under_load_lose_nothing_of_others(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    const DESCRIPTORS: u32 = 300;
    let mut random = tenancy.random();
    let mut house = tenancy.open(|_| small(32, 16))?;
    if house.ports.division().functions < 2 {
        return Ok(());
    }
    let mut runs: Vec<(usize, Vec<HwDesc>, usize, Vec<HwCompletion>)> = (0..house.rigs.len())
        .filter(|&queue| house.of_function(queue as u8) != 0)
        .map(|queue| (queue, decodes(DESCRIPTORS, 60, queue as u32), 0, Vec::new()))
        .collect();
    let reset: Vec<usize> =
        (0..house.rigs.len()).filter(|&queue| house.of_function(queue as u8) == 0).collect();
    let page = Place { function: 0, queue: 0 };
    let mut out = [HwCompletion::default(); 7];
    let (mut rounds, mut resets) = (0, 0);
    while runs.iter().any(|(_, descs, _, ends)| ends.len() < descs.len()) {
        for &queue in &reset {
            let driver = &mut house.rigs[queue].driver;
            driver.submit(&long_and_short(queue as u8))?;
            driver.collect(&mut out)?;
        }
        for (queue, descs, submitted, ends) in &mut runs {
            let driver = &mut house.rigs[*queue].driver;
            *submitted += driver.submit(&descs[*submitted..])?;
            if driver.in_flight() > 0 {
                let taken = driver.poll(&mut out)?;
                ends.extend_from_slice(&out[..taken]);
            }
        }
        rounds += 1;
        if rounds % (3 + below(&mut random, 5)) != 0 {
            continue;
        }
        house.ports.device().write_at(page, Register::FnControl, FunctionControl::RESET.bits())?;
        let mut patience = 100_000;
        while house.ports.device().read_at(page, Register::FnControl)? != 0 {
            house.advance(1)?;
            patience -= 1;
            ensure!(patience > 0, "R12: a reset of a function does not end");
        }
        for &queue in &reset {
            house.rigs[queue].driver.disable()?;
            house.rigs[queue].driver.enable()?;
        }
        resets += 1;
    }
    ensure!(resets > 3, "no trial: {resets} resets while others had {DESCRIPTORS} descriptors");
    for (queue, descs, _, ends) in &runs {
        let rig = &house.rigs[*queue];
        let named =
            |failure| Failure(format!("queue pair {queue}, {resets} resets of function 0: {failure}"));
        by_position(ends, descs.len()).and_then(|ends| rig.compare(descs, &ends)).map_err(named)?;
    }
    for &queue in &reset {
        house.rigs[queue].driver.disable()?;
        house.rigs[queue].driver.enable()?;
    }
    house.check(|_| true, |queue| decodes(30, 30, queue.into()))
}

/// Where the header of a policy lies: behind the tokens of all cases of versions.
const HEADER: u64 = (1 << 18) - 64;

/// A POLICY that publishes this version, whose header is there.
fn policy(rig: &mut Rig<Port>, version: u16, salt: u32, mode: PolicyMode) -> Result<HwDesc, Failure> {
    rig.driver.place_policy(HEADER, &HwPolicy::new(version, 0, salt, 0))?;
    Ok(HwDesc { rollout_id: u32::MAX, ..HwDesc::policy(version, mode) }.with_delta_offset(HEADER))
}

/// Publishes a version by a queue pair that has nothing in flight.
fn publish(rig: &mut Rig<Port>, version: u16, salt: u32, mode: PolicyMode) -> Result<ErrorCode, Failure> {
    let desc = policy(rig, version, salt, mode)?;
    ensure_eq!(rig.driver.submit(&[desc])?, 1, "descriptors taken by an empty queue");
    let ends = rig.drain()?;
    ensure_eq!(ends.len(), 1, "R3: completions of a POLICY");
    ErrorCode::try_from(ends[0].error).map_err(|_| Failure(format!("R10: {:x?}", ends[0])))
}

fn has_policies(house: &House) -> bool {
    house.rigs[0].features.capability.contains(Capability::POLICY)
}

/// How a DECODE ends that is submitted while these versions are in the slots of its function.
fn under(slots: &PolicySlots, oracle: &Oracle, desc: &HwDesc) -> HwCompletion {
    let Some(slot) = slots.find(desc.policy_version).map(|number| slots.slot(number)) else {
        return oracle.answer(desc).completion;
    };
    let oracle = oracle.clone().with_version(slot.version, slot.salt);
    let status = match slot.state {
        SlotState::Kept => Status::Superseded,
        SlotState::Aborted => Status::Stopped,
        SlotState::Empty | SlotState::Resident => return oracle.answer(desc).completion,
    };
    oracle.cut(desc, 0, status).completion
}

/// What every queue pair does with DECODEs of every version, all at once, and what it shows of its function's slots.
fn ensure_versions(house: &mut House, slots: &[PolicySlots]) -> Result<(), Failure> {
    let mut versions: Vec<u16> =
        slots.iter().flat_map(|slots| [slots.slot(0).version, slots.slot(1).version]).collect();
    versions.extend([0, 0x7777]);
    let descs = versions.iter().flat_map(|&version| {
        [3, 40].map(|tokens| HwDesc::decode(0, 5, tokens).with_version(version).with_seed(version.into()))
    });
    let descs = numbered(descs.zip(0..).map(|(desc, id)| HwDesc { rollout_id: id, ..desc }));
    for rig in &mut house.rigs {
        ensure_eq!(rig.driver.submit(&descs)?, descs.len(), "descriptors taken by an empty queue");
    }
    for queue in 0..house.rigs.len() {
        let function = house.of_function(queue as u8);
        let (slots, rig) = (&slots[usize::from(function)], &mut house.rigs[queue]);
        let ends = by_position(&rig.drain()?, descs.len())?;
        // An oracle that knows no version but those that it is told of.
        let oracle = rig.oracle().without_versions();
        for (desc, end) in descs.iter().zip(&ends) {
            let expected = under(slots, &oracle, desc);
            ensure_eq!(
                end.without_timing(),
                expected,
                "R18: {desc:x?} at queue pair {queue} of function {function} with {slots:x?}"
            );
        }
        let shown = [rig.driver.read(Register::PolicySlot0)?, rig.driver.read(Register::PolicySlot1)?];
        let expected = [slots.word(0), slots.word(1)];
        ensure_eq!(shown, expected, "R19: POLICY_SLOT_0 and _1 at queue pair {queue} of function {function}");
    }
    Ok(())
}

fn r18_a_version_is_of_its_function_alone(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut random = tenancy.random();
    let mut house = tenancy.open(|_| small(64, 64))?;
    if !has_policies(&house) {
        return Ok(());
    }
    let functions = house.ports.division().functions;
    let mut slots = vec![PolicySlots::new(); functions.into()];
    let mut published = vec![0u16; functions.into()];
    ensure_versions(&mut house, &slots)?;
    for round in 0..12 {
        let queue = below(&mut random, house.rigs.len() as u32) as usize;
        let function = usize::from(house.of_function(queue as u8));
        // The same numbers in every function, with other salts.
        published[function] += 1;
        let (version, salt) = (100 + published[function], random.next_u32());
        let mode = [PolicyMode::Wait, PolicyMode::Keep, PolicyMode::Abort][round % 3];
        let error = publish(&mut house.rigs[queue], version, salt, mode)?;
        ensure_eq!(error, ErrorCode::None, "R19: a POLICY of queue pair {queue} while nothing runs");
        slots[function].publish(version, 0, salt, mode);
        // Behind its completion the version is there for all queue pairs of the function, and for no others.
        ensure_versions(&mut house, &slots)?;
    }
    // One that comes back finds what its function has, and the first of a function begins anew.
    for function in 0..functions {
        let own: Vec<usize> =
            (0..house.rigs.len()).filter(|&queue| house.of_function(queue as u8) == function).collect();
        if own.len() > 1 {
            house.rigs[own[0]].driver.disable()?;
            house.rigs[own[0]].driver.enable()?;
            ensure_versions(&mut house, &slots)?;
        }
        for &queue in &own {
            house.rigs[queue].driver.disable()?;
        }
        for &queue in &own {
            house.rigs[queue].driver.enable()?;
        }
        slots[usize::from(function)] = PolicySlots::new();
        ensure_versions(&mut house, &slots)?;
    }
    Ok(())
}

/// Tokens of a DECODE that is to run for as long as nobody ends it, and the wait states that make it last.
const ENDLESS: u32 = 60_000;
const SLOW: u32 = 500;

/// Queue pairs of function 0, if there are several, and each can run a descriptor while the others do: those that share one
/// worker can if the device takes turns within a descriptor, as the model does.
fn of_function_0(house: &mut House) -> Result<Option<Vec<usize>>, Failure> {
    let own: Vec<usize> =
        (0..house.rigs.len()).filter(|&queue| house.of_function(queue as u8) == 0).collect();
    let driver = &mut house.rigs[0].driver;
    let built = driver.read(Register::CapWorkers)?;
    let workers = driver.read(Register::FnWorkers)?.count_ones();
    let enough = built == 1 || workers as usize >= own.len();
    Ok((own.len() > 1 && enough && has_policies(house)).then_some(own))
}

/// Gives the device time until it has made tokens, which somebody's DECODE has.
fn make_tokens(house: &mut House) -> Result<(), Failure> {
    let before = house.rigs[0].driver.counter(Counter::Tokens)?;
    let mut patience = 100_000;
    while house.rigs[0].driver.counter(Counter::Tokens)? == before {
        house.advance(1)?;
        patience -= 1;
        ensure!(patience > 0, "R15: a DECODE never starts");
    }
    Ok(())
}

fn r19_a_slot_in_use_by_another_queue_pair_is_not_loaded(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut house = tenancy.open(|_| QueueConfig { wait_states: SLOW, ..small(16, 16) })?;
    let Some(own) = of_function_0(&mut house)? else { return Ok(()) };
    for (&publisher, &user) in own.iter().zip(own.iter().cycle().skip(1)) {
        // Where it begins is version 0 in slot 0, and slot 1 is empty.
        for &queue in &own {
            house.rigs[queue].driver.disable()?;
        }
        for &queue in &own {
            house.rigs[queue].driver.enable()?;
        }
        let long = HwDesc::decode(7, 0, ENDLESS);
        house.rigs[user].driver.submit(&[long])?;
        make_tokens(&mut house)?;
        let error = publish(&mut house.rigs[publisher], 1, 11, PolicyMode::Wait)?;
        ensure_eq!(error, ErrorCode::None, "R19: a POLICY into a slot that is empty");
        let error = publish(&mut house.rigs[publisher], 2, 22, PolicyMode::Wait)?;
        ensure_eq!(error, ErrorCode::PolicyBusy, "R19: a POLICY while queue pair {user} uses its slot");
        house.rigs[user].driver.submit(&[HwDesc::stop(7)])?;
        let ends = house.rigs[user].drain()?;
        let length = ends[0].final_seq_len;
        let cut = house.rigs[user].oracle().cut(&long, length, Status::Stopped);
        ensure_eq!(ends[0].without_timing(), cut.completion, "R18: the DECODE in the slot");
        let error = publish(&mut house.rigs[publisher], 2, 22, PolicyMode::Wait)?;
        ensure_eq!(error, ErrorCode::None, "R19: a POLICY once nobody uses its slot");
    }
    Ok(())
}

fn r20_a_publish_ends_the_decodes_of_all_queue_pairs(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    for (mode, status) in [(PolicyMode::Keep, Status::Superseded), (PolicyMode::Abort, Status::Stopped)] {
        let mut house = tenancy.open(|_| QueueConfig { wait_states: SLOW, ..small(16, 16) })?;
        let Some(own) = of_function_0(&mut house)? else { return Ok(()) };
        let publisher = own[0];
        let long = HwDesc::decode(7, 0, ENDLESS);
        // Of some it runs, of others it may not have started.
        for queue in (0..house.rigs.len()).filter(|&queue| queue != publisher) {
            house.rigs[queue].driver.submit(&[long])?;
        }
        make_tokens(&mut house)?;
        let error = publish(&mut house.rigs[publisher], 1, 11, mode)?;
        ensure_eq!(error, ErrorCode::None, "R19: a POLICY into a slot that is empty");
        for queue in (0..house.rigs.len()).filter(|&queue| queue != publisher) {
            let is_own = own.contains(&queue);
            let rig = &mut house.rigs[queue];
            if !is_own {
                let mut out = [HwCompletion::default(); 4];
                let ended = rig.driver.collect(&mut out)?;
                let as_it_would = out[..ended].iter().all(|end| end.status == Status::Done as u8);
                ensure!(as_it_would, "R20: a publish of another function ended {:x?}", &out[..ended]);
                if ended == 0 {
                    rig.driver.submit(&[HwDesc::stop(7)])?;
                    rig.drain()?;
                }
                continue;
            }
            let ends = rig.drain()?;
            ensure_eq!(ends.len(), 1, "R3: completions of queue pair {queue}");
            let answer = rig.oracle().cut(&long, ends[0].final_seq_len, status);
            let end = ends[0].without_timing();
            ensure_eq!(end, answer.completion, "R20: a DECODE of queue pair {queue} with {mode}");
            ensure!(ends[0].final_seq_len < ENDLESS, "R20: a DECODE of queue pair {queue} ran to its end");
            let tokens = rig.tokens(0, answer.tokens.len())?;
            ensure!(tokens == answer.tokens, "R20: tokens of queue pair {queue} with {mode}");
        }
    }
    Ok(())
}

fn r21_a_publish_reaches_the_groups_of_all_queue_pairs(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut house = tenancy.open(|_| small(16, 16))?;
    let Some(own) = of_function_0(&mut house)? else { return Ok(()) };
    if house.rigs[0].features.groups == 0 {
        return Ok(());
    }
    let run = |rig: &mut Rig<Port>, descs: &[HwDesc]| -> Result<Vec<(u8, u8)>, Failure> {
        let descs = numbered(descs.iter().copied());
        ensure_eq!(rig.driver.submit(&descs)?, descs.len(), "descriptors taken by an empty queue");
        let ends = by_position(&rig.drain()?, descs.len())?;
        Ok(ends.iter().map(|end| (end.status, end.error)).collect())
    };
    let member = |k: u16, version| HwDesc::decode(k.into(), 9, 4).with_member(7, k).with_version(version);
    let done = (Status::Done as u8, 0);
    for rig in &mut house.rigs {
        let found = run(rig, &[HwDesc::open_group(7, 9, 8), member(0, 0)])?;
        ensure_eq!(found, vec![done; 2], "R21: a member under its group's version");
    }
    let error = publish(&mut house.rigs[own[1]], 1, 11, PolicyMode::Keep)?;
    ensure_eq!(error, ErrorCode::None, "R19: a POLICY into a slot that is empty");
    for (queue, rig) in house.rigs.iter_mut().enumerate() {
        let version = u16::from(own.contains(&queue));
        let found = run(rig, &[member(1, version)])?;
        ensure_eq!(found, vec![done], "R21: a group of queue pair {queue} after a KEEP of function 0");
    }
    let error = publish(&mut house.rigs[own[0]], 2, 22, PolicyMode::Abort)?;
    ensure_eq!(error, ErrorCode::None, "R19: a POLICY while nothing runs");
    for (queue, rig) in house.rigs.iter_mut().enumerate() {
        let (version, end) = if own.contains(&queue) {
            (2, (Status::Error as u8, ErrorCode::StalePrefix as u8))
        } else {
            (0, done)
        };
        let found = run(rig, &[member(2, version)])?;
        ensure_eq!(found, vec![end], "R21: a group of queue pair {queue} after an ABORT of function 0");
        let found = run(rig, &[HwDesc::stop_group(7)])?;
        ensure_eq!(found, vec![(Status::Stopped as u8, 0)], "R17: a STOP of a group");
    }
    Ok(())
}

/// Descriptors that were handed out and are not completed, which may be anybody's.
fn in_hand(house: &mut House) -> Result<u32, Failure> {
    match house.rigs[0].driver.read(Register::CapWorkers)? {
        1 => Ok(1),
        workers => Ok(2 * workers + 32),
    }
}

fn shares_are_the_weights(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    const WEIGHTS: [u32; QUEUES as usize] = [1, 2, 3, 5];
    const DEPTH: u32 = 1 << 14;
    let weight = |queue: u8| WEIGHTS[usize::from(queue)];
    // Of one function, whose workers all of them have.
    let mut house =
        tenancy.open_among(1, |queue| QueueConfig { weight: weight(queue), ..small(DEPTH, DEPTH) })?;
    if house.ports.device().runs_alone() {
        // It has done the work of the first queue pair before that of the last is there.
        return Ok(());
    }
    let sum: u32 = (0..house.rigs.len() as u8).map(weight).sum();
    let slack = in_hand(&mut house)?;
    // Long enough for workers, not the fetch, to be what is short.
    let descs: Vec<HwDesc> = (0..DEPTH).map(|k| HwDesc::decode(k, 0, 64)).collect();
    for rig in &mut house.rigs {
        ensure_eq!(rig.driver.submit(&descs)?, descs.len(), "descriptors taken by an empty queue");
    }
    let mut total = 0;
    while total < 10_000 {
        house.advance(100)?;
        let mut tails = Vec::new();
        for rig in &mut house.rigs {
            tails.push(rig.driver.read(Register::CqTail)?);
        }
        total = tails.iter().sum();
        for (tail, queue) in tails.iter().zip(0..) {
            let (share, weight) = (total / sum * weight(queue), weight(queue));
            ensure!(
                tail.abs_diff(share) <= 2 * weight + slack,
                "WEIGHT: queue pair {queue} of weight {weight} has {tail} of {total} completions, of {sum}"
            );
        }
    }
    Ok(())
}

fn an_eligible_queue_pair_waits_for_the_weights_of_the_others(
    tenancy: &mut Tenancy<'_>,
) -> Result<(), Failure> {
    const DEPTH: u32 = 1 << 13;
    let weight = |queue: u8| if queue == 0 { 1 } else { 2 * u32::from(queue) + 1 };
    // Of one function, whose workers all of them have.
    let mut house =
        tenancy.open_among(1, |queue| QueueConfig { weight: weight(queue), ..small(DEPTH, DEPTH) })?;
    let others: u32 = (1..house.rigs.len() as u8).map(weight).sum();
    let slack = in_hand(&mut house)?;
    let descs: Vec<HwDesc> = (0..DEPTH).map(|k| HwDesc::decode(k, 0, 64)).collect();
    for rig in &mut house.rigs[1..] {
        ensure_eq!(rig.driver.submit(&descs)?, descs.len(), "descriptors taken by an empty queue");
    }
    for round in 0..100 {
        house.advance(1 + round % 7)?;
        let before = house.rigs[0].driver.counter(Counter::Completions)?;
        let tail = house.rigs[0].driver.read(Register::CqTail)?;
        house.rigs[0].driver.submit(&[HwDesc::nop()])?;
        let mut waited = 0;
        while house.rigs[0].driver.read(Register::CqTail)? == tail {
            ensure!(
                waited <= u64::from(others + slack),
                "WEIGHT: a queue pair waited for {waited} others, whose weights are {others}"
            );
            house.advance(1)?;
            waited = house.rigs[0].driver.counter(Counter::Completions)? - before;
        }
        house.rigs[0].drain()?;
    }
    Ok(())
}

fn counters_are_the_sums_of_all_queue_pairs(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let mut house = tenancy.open(|_| small(64, 64))?;
    let count = house.rigs.len() as u64;
    house.check(
        |_| true,
        |_| {
            let good = (0..10).map(|k| HwDesc::decode(k, 0, 16 * (1 + k)));
            numbered(good.chain([HwDesc::nop(), HwDesc::decode(0, 0, 0), HwDesc::prefill(0, 4)]))
        },
    )?;
    house.rigs[0].settle()?;
    let mut all = Vec::new();
    for rig in &mut house.rigs {
        all.push(rig.driver.counters()?);
    }
    for (counter, each) in [
        (Counter::Descriptors, 13),
        (Counter::Completions, 13),
        (Counter::Tokens, 16 * 55),
        (Counter::Errors, 1),
        (Counter::Prefixes, 1),
        (Counter::ReadBeats, 13),
    ] {
        for (counters, queue) in all.iter().zip(0..) {
            ensure_eq!(counters.get(counter), each * count, "{counter} at queue pair {queue}");
        }
    }
    // Each has its own share.
    for (rig, queue) in house.rigs.iter_mut().zip(0..) {
        for (counter, each) in [
            (QueueCounter::Descriptors, 13),
            (QueueCounter::Completions, 13),
            (QueueCounter::Tokens, 16 * 55),
            (QueueCounter::Errors, 1),
        ] {
            ensure_eq!(rig.driver.queue_counter(counter)?, each, "{counter} of queue pair {queue}");
        }
    }
    // They go on as long as any queue pair is active, and clear behind that; those of a queue pair clear with it alone.
    house.rigs[0].driver.disable()?;
    house.rigs[0].driver.enable()?;
    ensure_eq!(
        house.rigs[0].driver.counter(Counter::Completions)?,
        13 * count,
        "COMPLETIONS after one queue pair was enabled anew"
    );
    for (rig, queue) in house.rigs.iter_mut().zip(0..) {
        let expected = if queue == 0 { 0 } else { 13 };
        ensure_eq!(
            rig.driver.queue_counter(QueueCounter::Completions)?,
            expected,
            "COMPLETIONS of queue pair {queue} after queue pair 0 was enabled anew"
        );
    }
    for rig in &mut house.rigs {
        rig.driver.disable()?;
    }
    house.rigs[1].driver.enable()?;
    ensure_eq!(
        house.rigs[1].driver.counter(Counter::Completions)?,
        0,
        "COMPLETIONS after a queue pair was enabled while none was active"
    );
    Ok(())
}

/// Queue pairs whose functions have event rings, unless the device has no events.
fn with_rings(tenancy: &mut Tenancy<'_>, slots: u32) -> Result<Option<House>, Failure> {
    // Whether it has them, a driver that wants none is told.
    if !has_events(&tenancy.open(|_| small(64, 64))?.rigs[0]) {
        return Ok(None);
    }
    let ring = QueueConfig { event_slots: slots, life_events: true, ..small(64, 64) };
    tenancy.open(|_| ring.clone()).map(Some)
}

fn r23_a_ring_is_of_its_function_alone(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    const EACH: u32 = 20;
    let Some(mut house) = with_rings(tenancy, 256)? else { return Ok(()) };
    let queues = house.rigs.len() as u8;
    let descs = |queue: u8| decodes(EACH, 9, queue.into());
    house.check(|_| true, descs)?;
    for function in 0..house.ports.division().functions {
        let own: Vec<u8> = (0..queues).filter(|&queue| house.of_function(queue) == function).collect();
        // The first of them was enabled first.
        for &queue in &own[1..] {
            ensure!(
                read(&mut house.rigs[usize::from(queue)])?.is_empty(),
                "R23: queue pair {queue} has a ring"
            );
        }
        let rig = &mut house.rigs[usize::from(own[0])];
        rig.settle()?;
        let events = read(rig)?;
        let lost = rig.driver.read(Register::EventsDropped)?;
        ensure_eq!(events.len() as u32 + lost, EACH * own.len() as u32, "R23: events of function {function}");
        for event in &events {
            ensure!(own.contains(&event.queue_id), "R23: function {function} sees {event:x?}");
            let known = house.rigs[usize::from(event.queue_id)].driver.answered(event);
            ensure!(
                known.is_some_and(|known| known < EACH.into()),
                "R23: whose life {event:x?} tells: {known:?}"
            );
        }
        for queue in own {
            let of_queue = events.iter().filter(|event| event.queue_id == queue);
            ensure!(
                of_queue.is_sorted_by_key(|event| event.index),
                "R23: events of queue pair {queue} are out of order"
            );
        }
    }
    Ok(())
}

fn r23_a_ring_runs_as_long_as_its_function(tenancy: &mut Tenancy<'_>) -> Result<(), Failure> {
    let Some(mut house) = with_rings(tenancy, 64)? else { return Ok(()) };
    let Some(own) = of_function_0(&mut house)? else { return Ok(()) };
    let (first, other) = (own[0], own[1]);
    for &queue in &own[2..] {
        house.rigs[queue].driver.disable()?;
    }
    let nops = |house: &mut House, queue: usize, count: usize| -> Result<(), Failure> {
        for _ in 0..count {
            house.rigs[queue].run(&[HwDesc::nop()])?;
        }
        Ok(())
    };
    let of = |events: &[HwEvent]| -> Vec<(u8, u32)> {
        events.iter().map(|event| (event.queue_id, event.index)).collect()
    };
    nops(&mut house, other, 3)?;
    // Whoever has laid it out may go: the ring runs on.
    house.rigs[first].driver.disable()?;
    nops(&mut house, other, 2)?;
    house.rigs[first].driver.enable()?;
    nops(&mut house, first, 1)?;
    let there: Vec<_> = (0..5).map(|index| (other as u8, index)).chain([(first as u8, 0)]).collect();
    let events = read(&mut house.rigs[first])?;
    ensure_eq!(of(&events), there, "R23: events after a disable of the queue pair whose ring it is");

    // One that is refused while the ring runs is told.
    house.rigs[other].driver.disable()?;
    let driver = &mut house.rigs[other].driver;
    let tail = driver.read(Register::CqTail)?;
    driver.write(Register::SqSize, 3)?;
    driver.write(Register::Control, Control::ENABLE.bits())?;
    let state = State::from_bits_retain(driver.read(Register::State)?);
    ensure!(!state.contains(State::ACTIVE), "ENABLE with an SQ_SIZE of 3");
    house.advance(1)?;
    house.rigs[first].settle()?;
    let events = read(&mut house.rigs[first])?;
    let stamp = events.first().map_or(0, |event| event.stamp);
    let expected = HwEvent {
        kind: EventKind::Fault as u8,
        queue_id: other as u8,
        index: tail,
        stamp,
        start: DeviceFault::BAD_CONFIG.bits(),
        ..HwEvent::default()
    };
    ensure_eq!(events, [expected], "R23: events of an ENABLE that was refused");
    house.rigs[other].driver.enable()?;

    // A new driver of that queue pair reads on from where the ring is.
    let old = house.rigs.remove(first);
    let config = old.driver.config().clone();
    drop(old);
    nops(&mut house, other - 1, 2)?;
    let port = house.ports.take(first as u8)?;
    house.rigs.insert(first, Rig::new(Driver::new(port, config)?));
    nops(&mut house, other, 1)?;
    let events = read(&mut house.rigs[first])?;
    ensure_eq!(
        of(&events),
        [(other as u8, 2)],
        "R23: events for a new driver of the queue pair whose ring it is"
    );

    // With the last of them it ends, and the next to start lays out its own.
    for queue in [first, other] {
        house.rigs[queue].driver.disable()?;
    }
    house.rigs[other].driver.enable()?;
    house.rigs[first].driver.enable()?;
    nops(&mut house, first, 1)?;
    ensure!(read(&mut house.rigs[first])?.is_empty(), "R23: two rings of a function");
    let events = read(&mut house.rigs[other])?;
    ensure_eq!(of(&events), [(first as u8, 0)], "R23: events of a ring that starts anew");
    Ok(())
}
