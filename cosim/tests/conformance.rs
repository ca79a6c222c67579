//! The conformance suite on every RTL that was built, with a memory that answers at once and with random ones; the cases of
//! several queue pairs where it has them.
//!
//! `DOORBELL_SEED` is the first seed (default 1), `DOORBELL_SEEDS` the number of random memories (default 4).

use doorbell_contract::Place;
use doorbell_cosim::{Built, RtlConfig, RtlPlatform, built};
use doorbell_host::{DeviceError, Pages, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case, Seat, TENANT_CASES, Tenancy, TenantCase};
use libtest_mimic::{Arguments, Failed, Trial};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

/// The monitor behind the AXI port follows what the host writes; it does not know which ENABLE of a hostile owner is refused, or
/// when a drain of its ends.
const UNWATCHED: &str = "r11_hostile_accesses_change_nothing_of_others";

fn config(built: Built, seed: u64, memory: Option<u64>) -> RtlConfig {
    let Built { workers, queues, functions } = built;
    let plain = RtlConfig { workers, queues, functions, seed, ..RtlConfig::default() };
    memory.map_or(plain.clone(), |memory| plain.with_random_memory(memory))
}

/// Runs `what` with devices of several queue pairs.
fn with_tenancy<T>(config: &RtlConfig, seed: u64, what: impl FnOnce(&mut Tenancy<'_>) -> T) -> T {
    let mut make = || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(RtlPlatform::new(config)?)) };
    what(&mut Tenancy::new(&mut make, seed))
}

fn run_tenants(case: &TenantCase, built: Built, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let config = config(built, seed, memory);
    with_tenancy(&config, seed, |tenancy| tenancy.run(case)).map_err(Failed::from)
}

/// Runs a case of one queue pair at `place`.
fn run(case: &Case, built: Built, place: Place, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let config = config(built, seed, memory);
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
        let device = RtlPlatform::new(&config)?;
        Ok(if place == Place::FIRST {
            Box::new(device)
        } else {
            Box::new(Seat::new(Box::new(device), place)?)
        })
    };
    Bench::new(&mut make, seed).run(case).map_err(Failed::from)
}

fn main() {
    let seed = number("DOORBELL_SEED", 1);
    let memories: Vec<Option<u64>> =
        [None].into_iter().chain((seed..seed + number("DOORBELL_SEEDS", 4)).map(Some)).collect();
    let mut trials = vec![];
    for built in built() {
        let skipped = with_tenancy(&config(built, seed, None), seed, |tenancy| tenancy.skipped())
            .unwrap_or_else(|failure| panic!("{failure}"));
        let Built { workers, queues, functions } = built;
        let device = match queues {
            1 => format!("{workers} workers"),
            _ => format!("{workers} workers, {queues} queue pairs, {functions} functions"),
        };
        if let Some(reason) = &skipped {
            eprintln!("{device}: the cases of several queue pairs do not run: {reason}");
        }
        let memories = if queues == 1 { &memories[..] } else { &memories[..memories.len().min(2)] };
        for &memory in memories {
            let device = memory.map_or(device.clone(), |memory| format!("{device}, memory {memory}"));
            // The last queue pair of the last function stands for all places but the first.
            let last = Place { function: functions as u8 - 1, queue: queues as u8 - 1 };
            let places = if queues == 1 { vec![Place::FIRST] } else { vec![Place::FIRST, last] };
            for place in places {
                let at = if place == Place::FIRST { "" } else { ", at the last place" };
                trials.extend(CASES.iter().map(|case| {
                    let run = move || run(case, built, place, seed, memory);
                    Trial::test(format!("{}: {device}{at}", case.name), run)
                }));
            }
            trials.extend(TENANT_CASES.iter().map(|case| {
                let run = move || run_tenants(case, built, seed, memory);
                let ignored = skipped.is_some() || case.name == UNWATCHED;
                Trial::test(format!("{}: {device}", case.name), run).with_ignored_flag(ignored)
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
