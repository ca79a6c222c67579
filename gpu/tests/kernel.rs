//! The conformance suite on the kernel's own text, compiled for the CPU: one test per case, calm, with its lanes
//! interrupted at random, and with relaxed accesses that take effect late; on one queue pair, on the last of several, and
//! on several at once; and proof that the suite notices a faulty protocol. `DOORBELL_SEED` sets the seed; `DOORBELL_PART`, "k/n",
//! runs every n-th trial alone.
//!
//! What is interrupted at random on the last of several runs under ThreadSanitizer alone (`cargo xtask tsan`), where it
//! shows more, or with `--include-ignored`.

use std::sync::Arc;

use doorbell_contract::Place;
use doorbell_gpu::{Engine, GpuDevice};
use doorbell_gpu_cpu::{CpuKernel, Options};
use doorbell_host::{DeviceError, Division, Pages, Platform, Ports};
use doorbell_verify::conformance::{Bench, CASES, Case, Failure, Seat, TENANT_CASES, Tenancy, TenantCase};
use libtest_mimic::{Arguments, Failed, Trial};

/// How a kernel is paced.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Calm,
    Stress,
    Weak,
}

/// On so many queue pairs, of which it uses the last, each case runs at these paces.
const PACES: [(usize, &[Pace]); 2] = [(1, &[Pace::Calm, Pace::Weak]), (3, &[Pace::Stress])];

/// Cases that look at answers alone, and leave page 0 alone. The others look at how far a device is as well, which depends on
/// how many workers the rollouts of other queue pairs leave it.
const TOGETHER: [&str; 11] = [
    "r03_every_descriptor_has_one_completion",
    "r05_completions_of_a_rollout_keep_its_order",
    "r05_a_rollout_runs_one_descriptor_at_a_time",
    "r06_end_of_sequence",
    "r07_fences_separate",
    "r09_checkpoints_lose_nothing",
    "r13_every_rule_holds_across_the_wrap",
    "r17_a_group_closes_with_its_last_member",
    "r17_stops_end_members",
    "r18_tokens_come_from_the_version_they_name",
    "r21_prefixes_belong_to_their_version",
];

/// A fault, and a case that has to notice it.
const FAULTS: &[(&str, &str)] = &[
    ("AdmitsOutOfTurn", "r05_completions_of_a_rollout_keep_its_order"),
    ("ReservesBlindly", "r04_full_completion_queue_stalls_and_drops_nothing"),
    ("PostsBeforeTokens", "r04_full_completion_queue_stalls_and_drops_nothing"),
    ("TearsHalves", "r13_every_rule_holds_across_the_wrap"),
    ("LeavesEarly", "r05_completions_of_a_rollout_keep_its_order"),
    ("StaysInTable", "r05_a_rollout_runs_one_descriptor_at_a_time"),
    ("KeepsStop", "r08_stop_ends_a_running_rollout"),
    ("WrapsPlaces", "r13_every_rule_holds_across_the_wrap"),
    ("PassesFences", "r07_fences_separate"),
    ("AcknowledgesEarly", "r12_disable_in_the_middle_of_a_rollout"),
    ("CountsStallsLate", "r04_full_completion_queue_stalls_and_drops_nothing"),
    ("ScoutsOutOfTurn", "r05_completions_of_a_rollout_keep_its_order"),
    ("ScoutsBlindly", "r06_settings_change_no_answer"),
    ("LeavesBadSlots", "r02_a_stale_slot_is_never_executed"),
    ("ScoresAll", "r09_resident_rollouts_go_on_or_end_by_their_score"),
    ("ClosesEarly", "r17_random_groups_close_once"),
    ("OvertakesGroup", "r08_a_stop_ends_a_group_that_runs"),
    ("TakesStale", "r21_prefixes_belong_to_their_version"),
    ("SwapsSlots", "r18_tokens_come_from_the_version_they_name"),
    ("LoadsBusySlot", "r19_a_slot_in_use_is_not_loaded"),
    ("TellsEarly", "r23_events_and_drops_are_all_completions"),
    ("LosesDrops", "r23_a_full_ring_drops_and_holds_nobody_back"),
    ("KeepsEventPhase", "r13_r23_phases_alternate"),
    ("TakesLastQuarter", "r23_a_full_ring_drops_and_holds_nobody_back"),
];

/// Accesses of a hostile owner.
const ACCESSES: u32 = 4_000;

/// A fault, and a case of several queue pairs that has to notice it.
const TENANT_FAULTS: &[(&str, &str)] = &[
    ("PublishesAlone", "r18_a_version_is_of_its_function_alone"),
    ("OverlooksOthers", "r19_a_slot_in_use_by_another_queue_pair_is_not_loaded"),
];

/// How often the case is tried, at most, each time with another seed: some faults show with few.
const TRIES: u64 = 40;

fn seed() -> u64 {
    std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("DOORBELL_SEED is a number"))
}

impl Pace {
    fn options(self, queues: usize, seed: u64) -> Options {
        let (stress, weak) = match self {
            Self::Calm => (false, false),
            Self::Stress => (true, false),
            Self::Weak => (true, true),
        };
        Options { queues, seed, stress, weak, ..Default::default() }
    }

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// A new kernel.
fn open(options: Options) -> Result<GpuDevice, DeviceError> {
    let engine: Arc<dyn Engine> = Arc::new(CpuKernel::start(options)?);
    GpuDevice::new(engine)
}

/// On its last queue pair, which the last function owns.
fn run(case: &Case, options: Options) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
        let (device, last) = (open(options)?, options.queues as u8 - 1);
        Ok(if last == 0 {
            Box::new(device)
        } else {
            Box::new(Seat::new(Box::new(device), Place { function: last, queue: last })?)
        })
    };
    Bench::new(&mut make, options.seed).run(case).map_err(Failed::from)
}

/// A case of several queue pairs at once.
fn run_tenants(case: &TenantCase, options: Options) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(open(options)?)) };
    Tenancy::new(&mut make, options.seed).with_accesses(ACCESSES).run(case).map_err(Failed::from)
}

/// These cases on several queue pairs of one kernel, all at once: each on each queue pair, or where accesses take effect late, which takes
/// long, each on one of them.
fn run_together(options: Options) -> Result<(), Failed> {
    let queues = options.queues as u8;
    let division = Division { queues, functions: queues, bytes: options.bytes, ..Division::default() };
    let ports = &Ports::divide(open(options)?, &division)?;
    let run_all = |queue: usize| -> Result<(), Failure> {
        let mut make =
            || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(ports.take(queue as u8)?)) };
        let (first, step) = if options.weak { (queue, options.queues) } else { (0, 1) };
        let mut cases = CASES.iter().filter(|case| TOGETHER.contains(&case.name)).skip(first).step_by(step);
        cases.try_for_each(|case| Bench::new(&mut make, options.seed + queue as u64).run(case))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.queues).map(|queue| scope.spawn(move || run_all(queue))).collect();
        threads.into_iter().try_for_each(|thread| Ok(thread.join().expect("cases do not panic")?))
    })
}

fn is_noticed(fault: &'static str, name: &str) -> Result<(), Failed> {
    let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
    let passes = |seed| run(case, Options { fault: Some(fault), ..Pace::Calm.options(1, seed) }).is_ok();
    // What shows only while others run may be missed on a machine that is busy, or with the work of one seed.
    if (0..TRIES).all(|k| passes(seed() + k)) { Err(Failed::from("the case passed")) } else { Ok(()) }
}

fn is_noticed_by_tenants(fault: &'static str, name: &str) -> Result<(), Failed> {
    let case = TENANT_CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
    let passes =
        |seed| run_tenants(case, Options { fault: Some(fault), ..Pace::Calm.options(4, seed) }).is_ok();
    if (0..TRIES).all(|k| passes(seed() + k)) { Err(Failed::from("the case passed")) } else { Ok(()) }
}

fn run_weakened(name: &str) -> Result<(), Failed> {
    let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
    run(case, Options { fault: Some("RelaxesReleases"), ..Pace::Calm.options(1, seed()) })
}

/// Faults that no case notices, or not for sure: `tests/rows.rs`, `tests/events.rs` or `tests/language.rs` does, or ThreadSanitizer.
const ELSEWHERE: [&str; 48] = [
    "LeavesFunction",
    "HoldsNobody",
    "AbortsLate",
    "SharesNothing",
    "CountsUnordered",
    "LooksAhead",
    "KeepsVersions",
    "StartsRetired",
    "RelaxesReleases",
    "ClaimsApart",
    "TellsTogether",
    "HoldsScout",
    "StallsWorker",
    "ChangesTable",
    "DropsBin",
    "DropsLowestBin",
    "ScalesAhead",
    "LosesRow",
    "SwapsBlocks",
    "CopiesShort",
    "TakesOldPrefix",
    "SwitchesInStep",
    "LoadsInPlace",
    "TakesUnfinished",
    "ForgetsDigest",
    "RepeatsStep",
    "SharesLast",
    "SeesBefore",
    "CutsMore",
    "SwapsStreams",
    "AddsToFirst",
    "KeepsOneMore",
    "ScoresEarly",
    "SwapsColumns",
    "TakesLongChunk",
    "MeetsNobody",
    "HelpsElsewhere",
    "SkipsRows",
    "SwapsTile",
    "JoinsLate",
    "KeepsOldPages",
    "OverlooksWriters",
    "TakesPartPages",
    "FreesUnderReader",
    "SharesPages",
    "KeepsFunction",
    "KeepsUnstarted",
    "ReadsTailEarly",
];

/// Each fault of the text is one that a case here has to notice, or is noticed elsewhere.
fn every_fault_has_a_case() -> Result<(), Failed> {
    let known: Vec<String> =
        doorbell_gpu_cpu::faults().map(|name| name.to_string_lossy().into_owned()).collect();
    let noticed = FAULTS.iter().chain(TENANT_FAULTS).map(|&(fault, _)| fault);
    let tried: Vec<&str> = noticed.chain(ELSEWHERE).collect();
    if known == tried { Ok(()) } else { Err(format!("{known:?} are planted, {tried:?} are tried").into()) }
}

/// Every n-th trial from the k-th on, where `part` is "k/n": so several processes share the trials.
fn one_part(trials: Vec<Trial>, part: &str) -> Vec<Trial> {
    let numbers = part.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let (first, step): (usize, usize) = numbers
        .filter(|&(k, n)| k < n)
        .unwrap_or_else(|| panic!("DOORBELL_PART is {part:?}, not \"k/n\" with k below n"));
    trials.into_iter().skip(first).step_by(step).collect()
}

fn main() {
    let mut trials = Vec::new();
    let instrumented = std::env::var("DOORBELL_KERNEL_TSAN").is_ok_and(|value| value == "1");
    for case in CASES {
        for (queues, paces) in PACES {
            for &pace in paces {
                let name = format!("{} on the last of {queues}, {}", case.name, pace.name());
                let elsewhere = matches!(pace, Pace::Stress) && !instrumented;
                trials.push(
                    Trial::test(name, move || run(case, pace.options(queues, seed())))
                        .with_ignored_flag(elsewhere),
                );
            }
        }
    }
    for case in TENANT_CASES {
        for (queues, pace) in [(4, Pace::Calm), (2, Pace::Weak)] {
            let name = format!("{} of {queues} queue pairs, {}", case.name, pace.name());
            trials.push(Trial::test(name, move || run_tenants(case, pace.options(queues, seed()))));
        }
    }
    for pace in [Pace::Calm, Pace::Weak] {
        let name = format!("3 queue pairs at once, {}", pace.name());
        trials.push(Trial::test(name, move || run_together(pace.options(3, seed()))));
    }
    for &(fault, name) in FAULTS {
        trials.push(Trial::test(format!("{fault} is noticed by {name}"), move || is_noticed(fault, name)));
    }
    for &(fault, name) in TENANT_FAULTS {
        let run = move || is_noticed_by_tenants(fault, name);
        trials.push(Trial::test(format!("{fault} is noticed by {name}"), run));
    }
    // `cargo xtask tsan` expects a report of this one, which here may go well.
    trials.push(
        Trial::test("weakened", || run_weakened("r05_completions_of_a_rollout_keep_its_order"))
            .with_ignored_flag(true),
    );
    trials.push(Trial::test("every fault has a case", every_fault_has_a_case));
    if let Ok(part) = std::env::var("DOORBELL_PART") {
        trials = one_part(trials, &part);
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
