//! What the kernel's text does where a conformance case does not look, on the CPU. `DOORBELL_SEED` sets the seed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::{DescFlags, HwCompletion, HwDesc, HwPolicy, PolicyMode, Register, State, Status};
use doorbell_gpu::{Engine, GpuDevice};
use doorbell_gpu_cpu::{CpuKernel, Options};
use doorbell_host::device::Device;
use doorbell_host::why::{Cause, Root};
use doorbell_host::{Division, Driver, Platform, Ports, QueueConfig, QueuePort};

fn seed() -> u64 {
    std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("DOORBELL_SEED is a number"))
}

fn kernel(options: Options) -> Arc<dyn Engine> {
    Arc::new(CpuKernel::start(options).unwrap())
}

fn driver(options: Options, config: QueueConfig) -> Driver<GpuDevice> {
    Driver::new(GpuDevice::new(kernel(options)).unwrap(), config).unwrap()
}

type Port = QueuePort<GpuDevice>;

/// A kernel with two queue pairs of one function, each with its driver.
fn pair(options: Options, configs: [QueueConfig; 2]) -> [Driver<Port>; 2] {
    let bytes = configs.each_ref().map(|config| config.shared_bytes().unwrap()).into_iter().max().unwrap();
    let engine = kernel(Options { queues: 2, ..options });
    let wait_states = configs[0].wait_states;
    let division = Division { queues: 2, bytes, wait_states, ..Division::default() };
    let ports = Ports::divide(GpuDevice::new(engine).unwrap(), &division).unwrap();
    let [first, second] = configs;
    [(0, first), (1, second)].map(|(queue, config)| Driver::new(ports.take(queue).unwrap(), config).unwrap())
}

/// Whether the completion of this index has both its halves; `before` is what its slot held when the host left it.
fn has_arrived(driver: &Driver<GpuDevice>, index: usize, before: [u64; 4]) -> bool {
    let cq = driver.layout().cq;
    (0..4).all(|word| {
        let at = cq + 32 * index + 8 * word;
        let now = driver.memory().word64(at).unwrap().load(std::sync::atomic::Ordering::Acquire);
        // The third word may stay 0: it holds result and SQ head, of which the head is never 0 here.
        now != before[word]
    })
}

/// Twenty NOPs, and a DECODE behind a fence: which completion comes behind the DECODE's first token, if one does.
fn late_completion(seed: u64, fault: Option<&'static str>) -> Option<usize> {
    let options = Options { seed, stress: true, weak: true, scoped: true, fault, ..Default::default() };
    let config = QueueConfig { sq_depth: 64, cq_depth: 64, token_bytes: 1 << 16, ..Default::default() };
    let mut driver = driver(options, config);
    let cq = driver.layout().cq;
    let slot = |driver: &Driver<GpuDevice>, index: usize| -> [u64; 4] {
        std::array::from_fn(|word| {
            let at = cq + 32 * index + 8 * word;
            driver.memory().word64(at).unwrap().load(std::sync::atomic::Ordering::Acquire)
        })
    };
    let before: Vec<[u64; 4]> = (0..20).map(|index| slot(&driver, index)).collect();
    let mut descs = vec![HwDesc::nop().with_user_data(7); 20];
    let mut fence = HwDesc::decode(1, 0, 2);
    fence.flags |= DescFlags::FENCE.bits();
    descs.push(fence);
    assert_eq!(driver.submit(&descs).unwrap(), 21);
    let token = driver.layout().tokens;
    let start = Instant::now();
    while driver.memory().word32(token).unwrap().load(std::sync::atomic::Ordering::Acquire) == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the fence never starts");
    }
    before.iter().enumerate().position(|(index, &before)| !has_arrived(&driver, index, before))
}

/// R7: what a descriptor behind a fence writes is seen behind every completion before the fence.
#[test]
fn r07_completions_are_visible_before_what_is_behind_the_fence_starts() {
    for seed in seed()..seed() + 60 {
        assert_eq!(late_completion(seed, None), None, "seed {seed}: a completion comes after a token");
    }
}

/// The count of completions, and the fence behind its sum, carry R7: without their orders it is broken.
#[test]
fn r07_needs_the_orders_that_carry_it() {
    let broken = (seed()..seed() + 300).any(|seed| late_completion(seed, Some("CountsUnordered")).is_some());
    assert!(broken, "no completion came late: the test of R7 shows nothing");
}

/// Errors of so many NOPs, told of one by one to a scout that finds nothing else to do.
fn errors(count: u64, fault: Option<&'static str>) -> usize {
    let options = Options { seed: seed(), stress: true, weak: true, fault, ..Default::default() };
    let config = QueueConfig { sq_depth: 4, cq_depth: 4, ..Default::default() };
    let mut driver = driver(options, config);
    let mut completions = [HwCompletion::default(); 4];
    let mut errors = 0;
    for k in 0..count {
        driver.submit(&[HwDesc::nop().with_user_data(k)]).unwrap();
        let mut fresh = 0;
        while fresh == 0 {
            fresh = driver.poll(&mut completions).unwrap();
        }
        assert_eq!(fresh, 1);
        errors += usize::from(completions[0].error != 0);
    }
    errors
}

/// R2: the doorbell told of the slot before it was read, so it verifies.
#[test]
fn r02_the_scout_reads_behind_what_it_was_told() {
    assert_eq!(errors(1000, None), 0, "a published descriptor was taken for corrupt");
    assert_eq!(errors(40, Some("HoldsScout")), 0, "the same, told to the lane that decides alone");
    assert_ne!(errors(40, Some("LooksAhead")), 0, "no lane read early: this test shows nothing");
}

/// After how many rounds a completion is lost, if one is. In each round a worker runs a DECODE of a drawn length, and after a drawn pause a NOP is published. So
/// the DECODE ends at any moment of the look that admits the NOP: before it, within it, or after it.
fn lost_in_round(rounds: u32, fault: Option<&'static str>) -> Option<u32> {
    let options = Options { seed: seed(), fault, ..Default::default() };
    let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
    let mut driver = driver(options, config);
    let mut state = seed() as u32;
    (0..rounds).find(|round| {
        state = doorbell_contract::mix(state);
        let descs = [HwDesc::decode(*round, 0, 5 + state % 300), HwDesc::nop()];
        let mut out = [HwCompletion::default(); 4];
        driver.submit(&descs[..1]).unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(state >> 16) % 6000));
        driver.submit(&descs[1..]).unwrap();
        let (start, mut ends) = (Instant::now(), 0);
        while ends < 2 && start.elapsed() < Duration::from_secs(5) {
            // A driver that finds an index where none can be breaks off, too.
            match driver.poll(&mut out) {
                Ok(count) => ends += count,
                Err(_) => break,
            }
        }
        ends != 2
    })
}

/// R3, R4: the tail of the completion queue is read after it is known that no worker will post.
#[test]
fn r03_a_rollout_that_ends_within_a_look_loses_no_completion() {
    assert_eq!(lost_in_round(100, None), None);
    assert!(
        lost_in_round(2000, Some("ReadsTailEarly")).is_some(),
        "no rollout ended within a look: this test shows nothing"
    );
}

/// R12: rollouts that no worker has taken do not hold up the end of their session.
#[test]
fn r12_a_disable_waits_for_no_worker_of_other_queues() {
    let config = QueueConfig { token_bytes: 16 << 20, wait_states: 0xFFFF, ..Default::default() };
    let options = Options { seed: seed(), ..Default::default() };
    let [mut busy, mut queued] = pair(options, [config.clone(), config]);
    // More rollouts than there are warps, each of seconds.
    busy.submit(&(0..8).map(|k| HwDesc::decode(k, 0, 100_000)).collect::<Vec<_>>()).unwrap();
    for _ in 0..20 {
        busy.platform_mut().advance(1).unwrap();
    }
    queued.submit(&(0..6).map(|k| HwDesc::decode(k, 0, 1000)).collect::<Vec<_>>()).unwrap();
    for _ in 0..20 {
        queued.platform_mut().advance(1).unwrap();
    }
    let mut platform = queued.into_platform();
    platform.write_register(Register::Control, 0).unwrap();
    let mut advances = 0;
    while platform.read_register(Register::State).unwrap() & State::ACTIVE.bits() != 0 {
        platform.advance(1).unwrap();
        advances += 1;
        assert!(advances < 400, "a disable waits for the rollouts of another queue");
    }
    // And the next session starts, beside what was cancelled.
    platform.write_register(Register::Control, 1).unwrap();
    while platform.read_register(Register::State).unwrap() & State::ACTIVE.bits() == 0 {
        platform.advance(1).unwrap();
        advances += 1;
        assert!(advances < 800, "no session starts after one that was cancelled");
    }
}

/// Completions of a queue pair that floods the workers when the one rollout of another, submitted behind the flood, is
/// complete.
fn completed_before_another_queue(fault: Option<&'static str>) -> usize {
    let config = QueueConfig { token_bytes: 16 << 20, wait_states: 0xFFFF, ..Default::default() };
    let options = Options { seed: seed(), fault, ..Default::default() };
    let [mut flood, mut other] = pair(options, [config.clone(), config]);
    // Of 20 ms each: five run at a time, so the host sees in which order they start, if it is away for less than that.
    assert_eq!(flood.submit(&(0..31).map(|k| HwDesc::decode(k, 0, 300)).collect::<Vec<_>>()).unwrap(), 31);
    flood.platform_mut().advance(1).unwrap();
    other.submit(&[HwDesc::decode(1, 0, 5)]).unwrap();
    let mut completions = [HwCompletion::default(); 31];
    let mut completed = 0;
    loop {
        completed += flood.poll(&mut completions).unwrap();
        if other.collect(&mut completions).unwrap() != 0 {
            return completed;
        }
    }
}

/// Between queue pairs: a rollout waits for the share of the work queue that another may fill, not for all that was
/// submitted to that one.
#[test]
fn a_flooded_queue_pair_delays_another_by_its_share_alone() {
    // Five run, eight wait, and two waves of five are left for a host that looks late.
    let completed = completed_before_another_queue(None);
    assert!(completed <= 23, "{completed} of 31 rollouts of another queue pair came first");
    let completed = completed_before_another_queue(Some("SharesNothing"));
    assert!(completed > 23, "without shares only {completed} of 31 came first: this test shows nothing");
}

/// Queue pairs that always have more to come get workers as their weights are to each other.
#[test]
fn weights_divide_the_workers() {
    let config = QueueConfig {
        sq_depth: 256,
        cq_depth: 256,
        token_bytes: 1 << 20,
        wait_states: 300,
        ..Default::default()
    };
    let configs = [1, 3].map(|weight| QueueConfig { weight, ..config.clone() });
    let mut drivers = pair(Options { seed: seed(), ..Default::default() }, configs);
    let descs: Vec<HwDesc> = (0..256).map(|k| HwDesc::decode(k, 0, 40)).collect();
    let mut completions = [HwCompletion::default(); 256];
    let mut completed = [0; 2];
    // All is full before the count begins.
    let mut base = None;
    while completed.iter().sum::<usize>() < 1500 {
        for (driver, completed) in drivers.iter_mut().zip(&mut completed) {
            while driver.submit(&descs).unwrap() > 0 {}
            *completed += driver.collect(&mut completions).unwrap();
        }
        drivers[0].platform_mut().advance(1).unwrap();
        if base.is_none() && completed.iter().sum::<usize>() >= 100 {
            base = Some(completed);
        }
    }
    let [one, three] = std::array::from_fn(|queue| completed[queue] - base.unwrap()[queue]);
    let share = three as f64 / (one + three) as f64;
    assert!((0.70..0.80).contains(&share), "{three} against {one} completions with weights 3 and 1");
}

/// A worker that is held up for as long as the others go all round the work queue still gets its ticket.
#[test]
fn r15_a_worker_that_is_lapped_is_waited_for() {
    let options = Options { seed: seed(), fault: Some("StallsWorker"), ..Default::default() };
    let config = QueueConfig { sq_depth: 64, cq_depth: 64, token_bytes: 1 << 16, ..Default::default() };
    let mut driver = driver(options, config);
    let (mut submitted, mut taken) = (0u32, 0);
    let mut completions = [HwCompletion::default(); 64];
    while submitted < 2200 || taken < submitted {
        while submitted < 2200 && submitted - taken < 30 {
            let descs: Vec<HwDesc> = (submitted..taken + 30).map(|id| HwDesc::decode(id, 0, 5)).collect();
            submitted += driver.submit(&descs).unwrap() as u32;
        }
        taken += driver.poll(&mut completions).unwrap() as u32;
    }
    assert_eq!(taken, submitted);
}

/// R15: the report counts what is outstanding, not what is not yet.
#[test]
fn r15_the_report_counts_what_is_outstanding() {
    let options = Options { seed: seed(), ..Default::default() };
    let config = QueueConfig { token_bytes: 1 << 20, wait_states: 0xFFFF, ..Default::default() };
    let mut driver = driver(options, config);
    // One warp takes them all: three complete, while the last waits for its rollout.
    let nop = HwDesc::nop();
    driver.submit(&[nop, nop, nop, HwDesc::decode(1, 0, 2000), HwDesc::decode(1, 2000, 2000)]).unwrap();
    for _ in 0..50 {
        driver.platform_mut().advance(1).unwrap();
    }
    let report = driver.platform_mut().report().unwrap();
    let outstanding: u64 = report.split_whitespace().rev().nth(2).unwrap().parse().unwrap();
    assert!(outstanding <= 5, "{report}");
}

/// Makes `version` resident, whose header lies at the end of the token region, and retires the one before as `mode` says.
fn policy<P: Platform>(driver: &mut Driver<P>, version: u16, mode: PolicyMode) -> HwDesc {
    let at = driver.config().token_bytes - 64;
    driver.place_policy(at, &HwPolicy::new(version, 0, 0x5EED, 0)).unwrap();
    HwDesc { delta_offset: at, ..HwDesc::policy(version, mode) }
}

/// The completions of these descriptors, by their position.
fn all(driver: &mut Driver<GpuDevice>, descs: &[HwDesc]) -> Vec<HwCompletion> {
    let descs: Vec<HwDesc> = descs.iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
    assert_eq!(driver.submit(&descs).unwrap(), descs.len());
    let mut out = vec![HwCompletion::default(); descs.len()];
    let mut taken = 0;
    while taken < descs.len() {
        taken += driver.poll(&mut out[taken..]).unwrap();
    }
    out.sort_by_key(|completion| completion.user_data);
    out
}

/// How many of the short DECODEs that lie behind the POLICY that retires their version add tokens.
fn started_behind_their_retirement(seed: u64, fault: Option<&'static str>) -> usize {
    let options = Options { seed, fault, ..Default::default() };
    let config = QueueConfig { sq_depth: 128, cq_depth: 128, token_bytes: 1 << 16, ..Default::default() };
    let mut driver = driver(options, config);
    let mut descs = vec![policy(&mut driver, 1, PolicyMode::Keep)];
    descs.extend((1..100).map(|id| HwDesc::decode(id, 0, 2)));
    let ends = all(&mut driver, &descs);
    assert_eq!(ends[0].status, Status::Done as u8, "{:?}", ends[0]);
    ends[1..].iter().filter(|end| end.status != Status::Superseded as u8 || end.final_seq_len != 0).count()
}

/// R20: what one warp publishes holds for those behind it, which others have prepared before.
#[test]
fn r20_what_was_prepared_before_a_publish_is_prepared_anew() {
    for seed in seed()..seed() + 10 {
        assert_eq!(started_behind_their_retirement(seed, None), 0, "seed {seed}");
    }
    let noticed = |seed| started_behind_their_retirement(seed, Some("KeepsVersions")) != 0;
    assert!((seed()..seed() + 40).any(noticed), "no warp was ahead: this test shows nothing");
}

/// Lengths that DECODEs reach which no worker has come to when their version is retired, behind five that run.
fn lengths_of_those_in_the_queue(fault: Option<&'static str>) -> Vec<u32> {
    let options = Options { seed: seed(), fault, ..Default::default() };
    let config = QueueConfig { token_bytes: 1 << 20, wait_states: 0xFFFF, ..Default::default() };
    let mut driver = driver(options, config);
    let space = |id: u32| HwDesc::decode(id, 0, 1000).with_delta_offset(4096 * u64::from(id));
    let running: Vec<HwDesc> = (0..5).map(space).collect();
    assert_eq!(driver.submit(&running).unwrap(), 5);
    let tokens = driver.layout().tokens;
    let start = Instant::now();
    let has_begun = |driver: &Driver<GpuDevice>, id: usize| {
        driver.memory().word32(tokens + 4096 * id).unwrap().load(std::sync::atomic::Ordering::Acquire) != 0
    };
    while !(0..5).all(|id| has_begun(&driver, id)) {
        driver.platform_mut().advance(1).unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "five DECODEs never run");
    }
    let mut descs: Vec<HwDesc> = (5..10).map(space).collect();
    descs.push(HwDesc { rollout_id: 99, ..policy(&mut driver, 1, PolicyMode::Keep) });
    assert_eq!(driver.submit(&descs).unwrap(), 6);
    let mut out = [HwCompletion::default(); 16];
    let mut lengths = vec![0; 10];
    let mut taken = 0;
    while taken < 11 {
        let fresh = driver.poll(&mut out).unwrap();
        for end in out[..fresh].iter().filter(|end| end.rollout_id != 99) {
            assert_eq!(end.status, Status::Superseded as u8, "{end:?}");
            lengths[end.rollout_id as usize] = end.final_seq_len;
        }
        taken += fresh;
    }
    assert!(lengths[..5].iter().all(|&length| (1..1000).contains(&length)), "{lengths:?}");
    lengths.split_off(5)
}

/// R20: one that has not started when its version is retired adds no token.
#[test]
fn r20_what_no_worker_has_come_to_adds_no_token() {
    assert_eq!(lengths_of_those_in_the_queue(None), [0; 5]);
    let started = lengths_of_those_in_the_queue(Some("StartsRetired"));
    assert!(started.iter().all(|&length| length > 0), "{started:?}: this test shows nothing");
}

/// How many of the short DECODEs that wait behind a long one of their rollout do not end as an ABORT has it.
fn untouched_by_an_abort(fault: Option<&'static str>) -> usize {
    const LONG: u32 = 900_000;
    let options = Options { seed: seed(), fault, ..Default::default() };
    let config = QueueConfig { token_bytes: 4 << 20, ..Default::default() };
    let mut driver = driver(options, config);
    let mut descs = vec![HwDesc::decode(1, 0, LONG)];
    descs.extend([HwDesc::decode(1, 0, 2).with_delta_offset(4 * u64::from(LONG)); 5]);
    let descs: Vec<HwDesc> = descs.iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
    assert_eq!(driver.submit(&descs).unwrap(), 6);
    driver.abort(1).unwrap();
    let mut out = [HwCompletion::default(); 6];
    let mut taken = 0;
    while taken < 6 {
        taken += driver.poll(&mut out[taken..]).unwrap();
    }
    assert_eq!(out[0].status, Status::Stopped as u8, "{:?}", out[0]);
    out[1..].iter().filter(|end| end.status != Status::Stopped as u8 || end.final_seq_len != 0).count()
}

/// R8: an ABORT ends what was published before it and has not started, without a token.
#[test]
fn r08_an_abort_ends_what_waits_behind_its_rollout() {
    assert_eq!(untouched_by_an_abort(None), 0);
    assert_eq!(untouched_by_an_abort(Some("AbortsLate")), 5, "this test shows nothing");
}

/// How many long DECODEs of one queue pair outlive the version that another of the function retires, or do not even know it.
fn outlive_a_publish_of_another_queue_pair(seed: u64, stress: bool, fault: Option<&'static str>) -> usize {
    let config = QueueConfig { token_bytes: 1 << 20, wait_states: 0xFFFF, ..Default::default() };
    let options = Options { seed, stress, weak: stress, fault, ..Default::default() };
    let [mut publisher, mut other] = pair(options, [config.clone(), config]);
    let mut out = [HwCompletion::default(); 8];
    let mut outlive = 0;
    for version in 1..=8 {
        // Submitted right before the POLICY, so that some are admitted while it is executed.
        let long = |id: u32| HwDesc::decode(id, 0, 1000).with_version(version - 1);
        let descs: Vec<HwDesc> = (0..6).map(|id| long(id).with_delta_offset(4096 * u64::from(id))).collect();
        assert_eq!(other.submit(&descs).unwrap(), 6);
        let desc = policy(&mut publisher, version, PolicyMode::Keep);
        assert_eq!(publisher.submit(&[desc]).unwrap(), 1);
        while publisher.poll(&mut out).unwrap() == 0 {}
        assert_eq!((out[0].status, out[0].error), (Status::Done as u8, 0), "R19: POLICY of {version}");
        let mut taken = 0;
        while taken < 6 {
            let fresh = other.poll(&mut out).unwrap();
            outlive += out[..fresh].iter().filter(|end| end.status != Status::Superseded as u8).count();
            taken += fresh;
        }
    }
    outlive
}

/// R20: the versions change in one moment for all queue pairs of a function, whatever these are about to admit.
#[test]
fn r20_nothing_is_admitted_under_a_version_that_another_queue_pair_retires() {
    for seed in seed()..seed() + 4 {
        for stress in [false, true] {
            assert_eq!(outlive_a_publish_of_another_queue_pair(seed, stress, None), 0, "seed {seed}");
        }
    }
    let noticed = |seed| outlive_a_publish_of_another_queue_pair(seed, false, Some("HoldsNobody")) != 0;
    assert!((seed()..seed() + 40).any(noticed), "nothing was admitted meanwhile: this test shows nothing");
}

/// R18: queue pairs that publish at the same time, without end, do so one after the other, and a queue pair of the function
/// that ends and starts meanwhile holds up none of them.
#[test]
fn r15_publishers_of_one_function_do_not_wait_for_each_other_for_ever() {
    for stress in [false, true] {
        let config = QueueConfig { token_bytes: 1 << 16, ..Default::default() };
        let engine = kernel(Options { queues: 3, seed: seed(), stress, weak: stress, ..Default::default() });
        let bytes = config.shared_bytes().unwrap();
        let division = Division { queues: 3, bytes, ..Division::default() };
        let ports = Ports::divide(GpuDevice::new(engine).unwrap(), &division).unwrap();
        let mut drivers: Vec<Driver<Port>> =
            (0..3).map(|queue| Driver::new(ports.take(queue).unwrap(), config.clone()).unwrap()).collect();
        let mut out = [HwCompletion::default(); 8];
        let mut published = [0; 2];
        for round in 1..=30u16 {
            for (queue, driver) in drivers[..2].iter_mut().enumerate() {
                let desc = policy(driver, 2 * round + queue as u16, PolicyMode::Keep);
                assert_eq!(driver.submit(&[desc]).unwrap(), 1);
            }
            if round % 3 == 0 {
                drivers[2].disable().unwrap();
                drivers[2].enable().unwrap();
            }
            for (driver, published) in drivers[..2].iter_mut().zip(&mut published) {
                while driver.in_flight() > 0 {
                    let fresh = driver.poll(&mut out).unwrap();
                    *published += out[..fresh].iter().filter(|end| end.status == Status::Done as u8).count();
                }
            }
        }
        assert_eq!(published, [30, 30], "R19: nothing names a version, so no slot is busy");
        let slots = [Register::PolicySlot0, Register::PolicySlot1].map(|slot| drivers[2].read(slot).unwrap());
        let newest = slots.into_iter().find(|slot| slot >> 24 & 1 == 1).unwrap() as u16;
        assert!(newest == 60 || newest == 61, "{slots:x?}");
        // All have the same.
        for driver in &mut drivers {
            driver.submit(&[HwDesc::decode(1, 0, 3).with_version(newest)]).unwrap();
            while driver.poll(&mut out).unwrap() == 0 {}
            assert_eq!((out[0].status, out[0].error), (Status::Done as u8, 0), "R18: version {newest}");
        }
    }
}

/// What a driver finds in memory that it maps is what it writes there: rollouts that another one left running have ended before it is cleared (R12).
#[test]
fn r12_memory_that_is_mapped_anew_stays_clear() {
    for seed in seed()..seed() + 8 {
        let config = QueueConfig { token_bytes: 1 << 16, wait_states: 2_000, ..Default::default() };
        let mut first = driver(Options { seed, ..Default::default() }, config.clone());
        let descs: Vec<HwDesc> =
            (0..5).map(|id| HwDesc::decode(id, 0, 2_000).with_delta_offset(8192 * u64::from(id))).collect();
        assert_eq!(first.submit(&descs).unwrap(), 5);
        let tokens = first.layout().tokens;
        let written = |driver: &Driver<GpuDevice>| {
            let words = (0..10_240).map(|word| tokens + 4 * word);
            let load =
                |at| driver.memory().word32(at).unwrap().load(std::sync::atomic::Ordering::Acquire) != 0;
            words.filter(|&at| load(at)).count()
        };
        let start = Instant::now();
        while written(&first) < 20 {
            assert!(start.elapsed() < Duration::from_secs(20), "five DECODEs never run");
        }
        let second = Driver::new(first.into_platform(), config).unwrap();
        assert_eq!(written(&second), 0, "seed {seed}: words of the token region are not 0");
    }
}

/// R15, R16: a GPU does not show its workers, so `why` takes no queue pair that is busy for the one worker that there is.
#[test]
fn r15_why_does_not_count_queue_pairs_as_workers() {
    let config =
        QueueConfig { token_bytes: 1 << 20, wait_states: 0xFFFF, patience: 200, ..Default::default() };
    let mut driver = driver(Options { seed: seed(), ..Default::default() }, config);
    let descs: Vec<HwDesc> =
        (0..3).map(|id| HwDesc::decode(id, 0, 2_000).with_delta_offset(8192 * u64::from(id))).collect();
    assert_eq!(driver.submit(&descs).unwrap(), 3);
    let start = Instant::now();
    while driver.read(Register::SqHead).unwrap() != 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "the kernel reads nothing");
    }
    let (_, why) = driver.why().unwrap().remove(0);
    assert_eq!(why.root, Root::Unshown { descriptors: 3 });
    let causes: Vec<_> = why.waiting.iter().map(|waiting| &waiting.cause).collect();
    assert!(causes.iter().all(|cause| matches!(cause, Cause::Ready)), "{causes:?}");
}
