//! The conformance suite on every RTL that was built, with a memory that answers at once and with random ones; the cases of
//! several queue pairs where it has them.
//!
//! `DOORBELL_SEED` is the first seed (default 1), `DOORBELL_SEEDS` the number of random memories (default 4).

use doorbell_cosim::{RtlConfig, RtlPlatform, built_workers};
use doorbell_host::{DeviceError, Pages, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case, TENANT_CASES, Tenancy, TenantCase};
use libtest_mimic::{Arguments, Failed, Trial};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

fn config(workers: u32, seed: u64, memory: Option<u64>) -> RtlConfig {
    let plain = RtlConfig { workers, seed, ..RtlConfig::default() };
    memory.map_or(plain.clone(), |memory| plain.with_random_memory(memory))
}

/// Runs `what` with devices of several queue pairs.
fn with_tenancy<T>(config: &RtlConfig, seed: u64, what: impl FnOnce(&mut Tenancy<'_>) -> T) -> T {
    let mut make = || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(RtlPlatform::new(config)?)) };
    what(&mut Tenancy::new(&mut make, seed))
}

fn run_tenants(case: &TenantCase, workers: u32, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let config = config(workers, seed, memory);
    with_tenancy(&config, seed, |tenancy| tenancy.run(case)).map_err(Failed::from)
}

fn run(case: &Case, workers: u32, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let config = config(workers, seed, memory);
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(RtlPlatform::new(&config)?)) };
    Bench::new(&mut make, seed).run(case).map_err(Failed::from)
}

fn main() {
    let seed = number("DOORBELL_SEED", 1);
    let memories: Vec<Option<u64>> =
        [None].into_iter().chain((seed..seed + number("DOORBELL_SEEDS", 4)).map(Some)).collect();
    let mut trials = vec![];
    for workers in built_workers() {
        let skipped = with_tenancy(&config(workers, seed, None), seed, |tenancy| tenancy.skipped())
            .unwrap_or_else(|failure| panic!("{failure}"));
        if let Some(reason) = &skipped {
            eprintln!("{workers} workers: the cases of several queue pairs do not run: {reason}");
        }
        for &memory in &memories {
            let place =
                memory.map_or(format!("{workers} workers"), |m| format!("{workers} workers, memory {m}"));
            trials.extend(CASES.iter().map(|case| {
                Trial::test(format!("{}: {place}", case.name), move || run(case, workers, seed, memory))
            }));
            trials.extend(TENANT_CASES.iter().map(|case| {
                let run = move || run_tenants(case, workers, seed, memory);
                Trial::test(format!("{}: {place}", case.name), run).with_ignored_flag(skipped.is_some())
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
