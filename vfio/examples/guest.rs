//! What `cargo xtask vm --long` runs in a guest, beside the program `doorbell`:
//!
//!     guest sleeps ADDRESS N          N DECODEs, each of which is slept for: every sleep must end by its interrupt
//!     guest conformance ADDRESS       the conformance suite of one queue pair, as far as a function reaches over a bus that posts writes

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_contract::{Block, HwCompletion, HwDesc, Register};
use doorbell_host::{
    Awaited, Device, DeviceError, Driver, Platform, QueueConfig, SharedDevice, SharedMemory,
};
use doorbell_verify::conformance::{Bench, CASES};
use doorbell_vfio::VfioPci;

/// A sleep that takes so long has missed its interrupt.
const LOST: Duration = Duration::from_secs(20);
/// How long the kernel may take to reset a function before it is opened again.
const FREE: Duration = Duration::from_secs(10);

/// Cases of what a function over such a bus does not have, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("r06_settings_change_no_answer", OWNERS),
    ("r08_stop_ends_a_running_rollout", OWNERS),
    ("r08_stop_right_behind_its_rollout", OWNERS),
    ("r08_stop_leaves_other_rollouts_alone", OWNERS),
    ("r08_an_abort_reaches_what_was_published", OWNERS),
    ("r08_a_stop_ends_a_group_that_runs", OWNERS),
    ("r11_regions_lie_in_windows", OWNERS),
    ("r15_a_slow_device_is_waited_for", OWNERS),
    ("r19_a_slot_in_use_is_not_loaded", OWNERS),
    ("r20_a_retired_version_ends", OWNERS),
    ("r20_publishes_under_load_lose_nothing", OWNERS),
    ("r23_a_bad_ring_does_not_start", OWNERS),
    ("counters_count", OWNERS),
    ("r01_impossible_doorbells_are_refused", POSTED),
    ("r04_impossible_releases_are_refused", POSTED),
    ("r12_disable_with_a_full_completion_queue", POSTED),
    ("r12_disable_in_the_middle_of_a_rollout", POSTED),
    ("r12_drain_completes_what_is_published", POSTED),
    ("r12_a_function_reset_disables", POSTED),
    ("r12_an_enable_is_refused_until_the_disable_is_over", POSTED),
    ("r12_r14_a_disable_takes_the_interrupt_back", POSTED),
    ("r12_r23_a_ring_ends_with_its_function", POSTED),
    ("r13_r23_phases_alternate", POSTED),
    ("r14_a_message_that_nobody_takes_is_told", POSTED),
    ("r23_without_events_there_are_no_registers", POSTED),
    ("registers_after_reset", POSTED),
    ("registers_refuse_what_their_access_forbids", POSTED),
    ("r12_nothing_is_taken_while_inactive", POSTED),
    ("refused_doorbells_are_counted_up_to_255", POSTED),
    ("r01_only_what_is_published_is_executed", COUNTERS),
    ("r06_prefix_zero_is_a_prefix", COUNTERS),
    ("r14_time_fires", COUNTERS),
    ("r17_entries_run_out_and_come_back", COUNTERS),
    ("r14_a_drain_tells_of_its_last_completion", TABLE),
    ("r14_a_message_that_was_sent_is_shown_until_its_answer", TABLE),
    ("r14_what_is_masked_is_pending_and_sent_once", TABLE),
    ("r23_a_fault_is_told_once", MESSAGES),
    ("r23_the_last_quarter_is_left_for_faults", MESSAGES),
    ("r23_without_life_only_faults_are_told", MESSAGES),
];
const OWNERS: &str = "it writes page 0, which is the owner's of the device";
const POSTED: &str = "it needs an access that is refused, and on a bus that posts writes nobody is told";
const COUNTERS: &str = "it reads counters of page 0 that are not the function's own";
const TABLE: &str = "the kernel has the table of MSI-X";
const MESSAGES: &str = "a message becomes an eventfd, and is never answered with an error";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["sleeps", address, count] => match count.parse() {
            Ok(count) => sleeps(address, count),
            Err(_) => Err(format!("'{count}' is no number of sleeps")),
        },
        ["conformance", address] => conformance(address),
        _ => Err("it takes `sleeps ADDRESS N` or `conformance ADDRESS`".to_owned()),
    };
    match outcome {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sleeps over and over; a lost wake-up ends it.
fn sleeps(address: &str, count: u32) -> Result<String, String> {
    let told = |error: DeviceError| error.to_string();
    let config = QueueConfig { sq_depth: 8, cq_depth: 8, patience: 1_000_000, ..QueueConfig::default() };
    let mut driver = Driver::new(open(address).map_err(told)?, config).map_err(told)?;
    let mut out = [HwCompletion::default(); 8];
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    for k in 0..count {
        let desc = HwDesc { flags: 8, ..HwDesc::decode(k, 0, 1 + k % 40) };
        if driver.submit(&[desc]).map_err(told)? != 1 || !driver.arm().map_err(told)? {
            return Err(format!("sleep {k}: the queue pair takes no descriptor, or has no interrupt"));
        }
        let asleep = Instant::now();
        if !driver.wait(asleep + LOST).map_err(told)? {
            return Err(format!("sleep {k} was not ended: its interrupt is lost"));
        }
        longest = longest.max(asleep.elapsed());
        if driver.collect(&mut out).map_err(told)? != 1 {
            return Err(format!("sleep {k} ended without its completion"));
        }
    }
    let each = start.elapsed() / count.max(1);
    Ok(format!("{count} sleeps, each ended by its interrupt; {each:?} each, the longest {longest:?}"))
}

/// Opens the function, once it is free.
fn open(address: &str) -> Result<Function, DeviceError> {
    let deadline = Instant::now() + FREE;
    loop {
        match VfioPci::open(address) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            opened => return opened.map(Function),
        }
    }
}

/// Runs every case that is not left out.
fn conformance(address: &str) -> Result<String, String> {
    for (name, reason) in LEFT_OUT {
        if !CASES.iter().any(|case| case.name == *name) {
            return Err(format!("there is no case {name}"));
        }
        println!("left out: {name}: {reason}");
    }
    let mut make =
        || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(open(address)?) as Box<dyn Platform>) };
    let (mut passed, mut failed) = (0, vec![]);
    for case in CASES {
        if LEFT_OUT.iter().any(|(name, _)| *name == case.name) {
            continue;
        }
        match Bench::new(&mut make, 1).run(case) {
            Ok(()) => passed += 1,
            Err(failure) => {
                println!("FAIL {failure}");
                failed.push(case.name);
            }
        }
    }
    if failed.is_empty() {
        Ok(format!("{passed} of {} cases passed, {} left out", CASES.len(), LEFT_OUT.len()))
    } else {
        Err(format!("{} cases failed: {}", failed.len(), failed.join(", ")))
    }
}

/// A function, whose driver is told that it does not own page 0: a posted write there would be lost, and a case that needs it would pass
/// without having tested anything.
struct Function(VfioPci);

impl Platform for Function {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.0.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        if matches!(
            register.block(),
            Block::Device | Block::DeviceFunction | Block::DeviceQueue | Block::Worker
        ) {
            let device = self.name().to_owned();
            return Err(DeviceError::WriteRefused { device, register, value });
        }
        self.0.write_register(register, value)
    }

    fn shows_workers(&self) -> bool {
        self.0.shows_workers()
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.0.read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        self.0.advance(want)
    }

    fn route(&mut self, memory: &SharedMemory, offset: usize) -> Result<(), DeviceError> {
        self.0.route(memory, offset)
    }

    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> Result<(), DeviceError> {
        self.0.wait(awaited, deadline)
    }

    fn runs_alone(&self) -> bool {
        self.0.runs_alone()
    }

    fn shared_device(&self) -> Option<SharedDevice> {
        self.0.shared_device()
    }
}
