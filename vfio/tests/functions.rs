//! Several functions of one device at once, each driven by a process of its own through its socket: the conformance suite as far as a function
//! reaches that does not own page 0, and chaos. Each process judges its function as if it were alone.
//!
//! `DOORBELL_SEED` is the first seed of chaos (default 1), `DOORBELL_SEEDS` how many all functions draw together (default 6).

mod common;

use std::path::Path;
use std::process::{Command, ExitCode};

use doorbell_host::{DeviceError, Platform};
use doorbell_verify::chaos::{Options, OwnClock};
use doorbell_verify::conformance::{Bench, CASES};
use libtest_mimic::{Arguments, Failed, Trial};

use common::Served;
use common::owner::{Owner, Page0};

/// Functions, a process each.
const FUNCTIONS: u8 = 4;
/// Before the arguments of such a process: what it does, its socket, and the number of its function.
const CHILD: &str = "--of-a-function";

/// Cases of what one function of several does not have, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("r06_settings_change_no_answer", OWNERS),
    ("r08_stop_ends_a_running_rollout", OWNERS),
    ("r08_stop_right_behind_its_rollout", OWNERS),
    ("r08_stop_leaves_other_rollouts_alone", OWNERS),
    ("r08_an_abort_reaches_what_was_published", OWNERS),
    ("r08_a_stop_ends_a_group_that_runs", OWNERS),
    ("r11_regions_lie_in_windows", OWNERS),
    ("r12_disable_in_the_middle_of_a_rollout", OWNERS),
    ("r15_a_slow_device_is_waited_for", OWNERS),
    ("r19_a_slot_in_use_is_not_loaded", OWNERS),
    ("r20_a_retired_version_ends", OWNERS),
    ("r20_publishes_under_load_lose_nothing", OWNERS),
    ("r23_a_bad_ring_does_not_start", OWNERS),
    ("registers_refuse_what_their_access_forbids", OWNERS),
    ("counters_count", OWNERS),
    ("r01_only_what_is_published_is_executed", COUNTERS),
    ("r06_prefix_zero_is_a_prefix", COUNTERS),
    ("r14_time_fires", COUNTERS),
    ("r17_entries_run_out_and_come_back", COUNTERS),
    ("r14_a_message_that_nobody_takes_is_told", MESSAGES),
    ("r23_a_fault_is_told_once", MESSAGES),
    ("r23_the_last_quarter_is_left_for_faults", MESSAGES),
    ("r23_without_life_only_faults_are_told", MESSAGES),
    ("r12_r23_a_ring_ends_with_its_function", NUMBERS),
    ("r23_events_and_drops_are_all_completions", NUMBERS),
    ("r23_every_completion_has_its_life", NUMBERS),
    ("registers_after_reset", UNMASKED),
];
const OWNERS: &str = "it writes page 0, which is the owner's of the device";
const COUNTERS: &str = "it reads counters of page 0 that are not the function's own";
const MESSAGES: &str = "a message becomes an eventfd, and is never answered with an error";
const NUMBERS: &str = "its events carry the number that the queue pair has in the device";
const UNMASKED: &str =
    "whoever sets an eventfd has unmasked its vector, and the client does when it connects";

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, child, what, socket, function] = &arguments[..]
        && child == CHILD
    {
        let function = function.parse().expect("a number");
        let done = match what.as_str() {
            "conformance" => conformance(Path::new(socket)),
            _ => chaos(Path::new(socket), function),
        };
        return match done {
            Ok(told) => {
                println!("{told}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    for (name, reason) in LEFT_OUT {
        assert!(CASES.iter().any(|case| case.name == *name), "there is no case {name}");
        println!("left out: {name}: {reason}");
    }
    let mut trials = vec![];
    for what in ["conformance", "chaos"] {
        for kind in ["model", "rtl"] {
            trials.push(Trial::test(format!("{what} on {FUNCTIONS} functions at once: {kind}"), move || {
                at_once(what, kind)
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Starts a process for each function, and has all of them succeed.
fn at_once(what: &str, kind: &str) -> Result<(), Failed> {
    let served = match kind {
        "model" => Served::new(common::model(FUNCTIONS), FUNCTIONS.into()),
        _ => Served::new(common::rtl(FUNCTIONS.into()), FUNCTIONS.into()),
    };
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let children: Vec<_> = (0..FUNCTIONS)
        .map(|function| {
            let mut command = Command::new(&own);
            command.args([CHILD, what]).arg(served.socket(function.into())).arg(function.to_string());
            command.stdout(std::process::Stdio::piped()).spawn().expect("this program can be started")
        })
        .collect();
    let mut failed = vec![];
    for (function, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&output.stdout);
        println!("{kind}, function {function}: {}", told.trim());
        if !output.status.success() {
            failed.push(format!("function {function}: {}", told.trim()));
        }
    }
    served.end();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// Every case that is not left out.
fn conformance(socket: &Path) -> Result<String, String> {
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
        Ok(Box::new(Owner::connect(socket, Page0::Refused)?))
    };
    let (mut passed, mut failed) = (0, vec![]);
    for case in CASES.iter().filter(|case| LEFT_OUT.iter().all(|(name, _)| *name != case.name)) {
        match Bench::new(&mut make, 1).run(case) {
            Ok(()) => passed += 1,
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    if failed.is_empty() {
        Ok(format!("{passed} cases passed, {} left out", LEFT_OUT.len()))
    } else {
        Err(failed.join("\n"))
    }
}

/// Rounds of chaos, each function with seeds of its own.
fn chaos(socket: &Path, function: u64) -> Result<String, String> {
    let seeds = number("DOORBELL_SEEDS", 6).div_ceil(FUNCTIONS.into());
    let first = number("DOORBELL_SEED", 1) + function * seeds;
    let mut descriptors = 0;
    for seed in first..first + seeds {
        let mut make =
            |_| Ok(Box::new(OwnClock(Owner::connect(socket, Page0::Ignored { wait_states: 0 })?)) as _);
        let options = Options { rounds: 2, descriptors: 200, ..Options::new(seed) };
        let tally = doorbell_verify::chaos::run(&options, &mut make);
        descriptors += tally.map_err(|broken| format!("DOORBELL_SEED={seed}: {broken}"))?.descriptors;
    }
    if descriptors < 100 * seeds {
        return Err(format!("{seeds} seeds made {descriptors} descriptors"));
    }
    Ok(format!("{seeds} seeds of chaos from {first}: {descriptors} descriptors"))
}
