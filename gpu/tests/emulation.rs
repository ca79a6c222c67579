//! The conformance suite on the emulation of the kernel: one test per case, calm and with its steps delayed at random, on
//! one queue pair, on the last of several, and on several at once; and proof that the suite notices a faulty protocol.
//! `DOORBELL_SEED` sets the seed.

use std::sync::Arc;

use doorbell_gpu::{Emulation, EmulationOptions, Engine, Fault, GpuPlatform};
use doorbell_host::{DeviceError, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case, Failure};
use libtest_mimic::{Arguments, Failed, Trial};

/// How often each case runs under stress on so many queue pairs, of which it uses the last.
const STRESS: [(usize, u64); 2] = [(1, 3), (3, 1)];

/// Cases that look at answers alone. The others look at how far a device is as well, which depends on how many workers the
/// rollouts of other queue pairs leave it.
const TOGETHER: [&str; 7] = [
    "r03_every_descriptor_has_one_completion",
    "r05_completions_of_a_rollout_keep_its_order",
    "r05_a_rollout_runs_one_descriptor_at_a_time",
    "r06_settings_change_no_answer",
    "r07_fences_separate",
    "r09_checkpoints_lose_nothing",
    "r13_every_rule_holds_across_the_wrap",
];

/// A fault, and a case that has to notice it.
const FAULTS: &[(Fault, &str)] = &[
    (Fault::AdmitsOutOfTurn, "r05_completions_of_a_rollout_keep_its_order"),
    (Fault::ReservesBlindly, "r04_full_completion_queue_stalls_and_drops_nothing"),
    (Fault::PostsBeforeTokens, "r04_full_completion_queue_stalls_and_drops_nothing"),
    (Fault::TearsHalves, "r13_every_rule_holds_across_the_wrap"),
    (Fault::LeavesEarly, "r05_completions_of_a_rollout_keep_its_order"),
    (Fault::StaysInTable, "r05_a_rollout_runs_one_descriptor_at_a_time"),
    (Fault::ForgetsStop, "r08_stop_ends_a_running_rollout"),
    (Fault::WrapsPlaces, "r13_every_rule_holds_across_the_wrap"),
    (Fault::PassesFences, "r07_fences_separate"),
    (Fault::AcknowledgesEarly, "r12_disable_in_the_middle_of_a_rollout"),
    (Fault::CountsStallsLate, "r04_full_completion_queue_stalls_and_drops_nothing"),
    (Fault::ScoutsOutOfTurn, "r04_full_completion_queue_stalls_and_drops_nothing"),
    (Fault::ScoutsBlindly, "r06_settings_change_no_answer"),
    (Fault::LeavesBadSlots, "r02_a_stale_slot_is_never_executed"),
    (Fault::ReadsTailEarly, "r03_every_descriptor_has_one_completion"),
];

/// How often the case is tried.
const TRIES: u64 = 10;

fn seed() -> u64 {
    std::env::var("DOORBELL_SEED").map_or(1, |text| text.parse().expect("DOORBELL_SEED is a number"))
}

/// The last queue pair of a new emulation.
fn open(options: EmulationOptions) -> Result<GpuPlatform, DeviceError> {
    let engine: Arc<dyn Engine> = Arc::new(Emulation::start(options)?);
    GpuPlatform::new(engine, options.queues - 1)
}

fn run(case: &Case, options: EmulationOptions) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(open(options)?)) };
    Bench::new(&mut make, seed()).run(case).map_err(Failed::from)
}

/// These cases on each of several queue pairs of one emulation, all at once.
fn run_together(options: EmulationOptions) -> Result<(), Failed> {
    let engine: Arc<dyn Engine> = Arc::new(Emulation::start(options)?);
    let engine = &engine;
    let run_all = |queue: usize| -> Result<(), Failure> {
        let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
            Ok(Box::new(GpuPlatform::new(engine.clone(), queue)?))
        };
        let mut cases = CASES.iter().filter(|case| TOGETHER.contains(&case.name));
        cases.try_for_each(|case| Bench::new(&mut make, options.seed + queue as u64).run(case))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.queues).map(|queue| scope.spawn(move || run_all(queue))).collect();
        threads.into_iter().try_for_each(|thread| Ok(thread.join().expect("cases do not panic")?))
    })
}

fn is_noticed(fault: Fault, name: &str) -> Result<(), Failed> {
    let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
    let passes =
        |seed| run(case, EmulationOptions { fault: Some(fault), seed, ..Default::default() }).is_ok();
    // What shows only while others run may be missed on a machine that is busy.
    if (0..TRIES).all(|k| passes(seed() + k)) { Err(Failed::from("the case passed")) } else { Ok(()) }
}

fn kind(stress: u64) -> String {
    if stress == 0 { "calm".to_owned() } else { format!("stress {stress}") }
}

fn main() {
    let mut trials = Vec::new();
    for case in CASES {
        for (queues, times) in STRESS {
            for stress in 0..=times {
                let name = format!("{} on the last of {queues}, {}", case.name, kind(stress));
                let seed = seed().wrapping_mul(100).wrapping_add(stress);
                let options = EmulationOptions { queues, seed, stress: stress > 0, ..Default::default() };
                trials.push(Trial::test(name, move || run(case, options)));
            }
        }
    }
    for stress in 0..=1 {
        let options = EmulationOptions { queues: 3, seed: seed(), stress: stress > 0, ..Default::default() };
        let name = format!("3 queue pairs at once, {}", kind(stress));
        trials.push(Trial::test(name, move || run_together(options)));
    }
    for &(fault, name) in FAULTS {
        trials.push(Trial::test(format!("{fault:?} is noticed by {name}"), move || is_noticed(fault, name)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
