//! The conformance suite on every RTL that was built, with a memory that answers at once and with random ones; the cases of
//! several queue pairs where it has them.
//!
//! `DOORBELL_SEED` is the first seed (default 1), `DOORBELL_SEEDS` the number of random memories (default 1), `DOORBELL_ACCESSES`
//! the number of accesses of an owner who is hostile (default 10,000).
//!
//! With one random memory each case runs once on each device. Cases and devices take turns between the memory that answers at once and the
//! random one, so each case meets both, and each device does. Of a device that has several queue pairs, the first meets the former and the
//! last the latter. With more random memories each case meets all of them on each device, at each of these places.

use std::sync::Arc;

use doorbell_contract::Place;
use doorbell_cosim::{Built, RtlConfig, RtlPlatform, Watch, built};
use doorbell_host::{DeviceError, Pages, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case, HOSTILE, Seat, TENANT_CASES, Tenancy, TenantCase};
use libtest_mimic::{Arguments, Failed, Trial};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

/// The monitor behind the AXI port follows what the host writes; it does not know which ENABLE of a hostile owner is refused, or
/// when a drain of its ends. So his function is held to its windows alone, and what leaves them is counted.
const UNTRUSTED: &str = "r11_hostile_accesses_change_nothing_of_others";

fn config(built: Built, seed: u64, memory: Option<u64>) -> RtlConfig {
    let Built { workers, queues, functions, .. } = built;
    let plain = RtlConfig { workers, queues, functions, seed, ..RtlConfig::default() };
    memory.map_or(plain.clone(), |memory| plain.with_random_memory(memory))
}

fn skipped(config: &RtlConfig, seed: u64) -> Option<String> {
    let mut make = || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(RtlPlatform::new(config)?)) };
    Tenancy::new(&mut make, seed).skipped().unwrap_or_else(|failure| panic!("{failure}"))
}

fn run_tenants(case: &TenantCase, built: Built, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let is_untrusted = case.name == UNTRUSTED;
    let config = RtlConfig { hostile: is_untrusted.then_some(HOSTILE), ..config(built, seed, memory) };
    let mut watches: Vec<Arc<Watch>> = Vec::new();
    let mut make = || -> Result<Box<dyn Pages>, DeviceError> {
        let device = RtlPlatform::new(&config)?;
        watches.extend(device.watch());
        Ok(Box::new(device))
    };
    let accesses = u32::try_from(number("DOORBELL_ACCESSES", 10_000))?;
    let result = Tenancy::new(&mut make, seed).with_accesses(accesses).run(case);
    let (bursts, strays) = watches
        .iter()
        .fold((0, 0), |(bursts, strays), watch| (bursts + watch.bursts(), strays + watch.strays()));
    // Before what the case itself says: a stray may be its cause.
    if strays > 0 {
        return Err(format!("{} (seed {seed}): R11: {strays} bursts left the windows", case.name).into());
    }
    result?;
    if is_untrusted && built.functions > HOSTILE.into() && bursts == 0 {
        return Err(
            format!("{} (seed {seed}): no trial: the hostile function moved nothing", case.name).into()
        );
    }
    Ok(())
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
    let seeds = number("DOORBELL_SEEDS", 1);
    let memories: Vec<Option<u64>> = [None].into_iter().chain((seed..seed + seeds).map(Some)).collect();
    let mut trials = vec![];
    // What runs engine 1 has tests of its own.
    for (turn, built) in built().into_iter().filter(|built| built.engines == 1).enumerate() {
        let skipped = skipped(&config(built, seed, None), seed);
        let Built { workers, queues, functions, .. } = built;
        let device = match queues {
            1 => format!("{workers} workers"),
            _ => format!("{workers} workers, {queues} queue pairs, {functions} functions"),
        };
        if let Some(reason) = &skipped {
            eprintln!("{device}: the cases of several queue pairs do not run: {reason}");
        }
        let memories = if queues == 1 { &memories[..] } else { &memories[..memories.len().min(2)] };
        for &memory in memories {
            // Whose turn it is to meet this memory.
            let runs = |case: usize| seeds != 1 || (case + turn) % 2 == usize::from(memory.is_some());
            let device = memory.map_or(device.clone(), |memory| format!("{device}, memory {memory}"));
            // The last queue pair of the last function stands for all places but the first.
            let last = Place { function: functions as u8 - 1, queue: queues as u8 - 1 };
            let places = match (queues, seeds, memory) {
                (1, ..) => vec![Place::FIRST],
                (_, 0 | 1, None) => vec![Place::FIRST],
                (_, 1, Some(_)) => vec![last],
                _ => vec![Place::FIRST, last],
            };
            for place in places {
                let at = if place == Place::FIRST { "" } else { ", at the last place" };
                trials.extend((0..).zip(CASES).filter(|&(k, _)| runs(k)).map(|(_, case)| {
                    let run = move || run(case, built, place, seed, memory);
                    Trial::test(format!("{}: {device}{at}", case.name), run)
                }));
            }
            trials.extend((0..).zip(TENANT_CASES).filter(|&(k, _)| runs(k)).map(|(_, case)| {
                let run = move || run_tenants(case, built, seed, memory);
                Trial::test(format!("{}: {device}", case.name), run).with_ignored_flag(skipped.is_some())
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
