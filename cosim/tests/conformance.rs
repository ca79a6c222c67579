//! The conformance suite on every RTL that was built, with a memory that answers at once and with random ones.
//!
//! `DOORBELL_SEED` is the first seed (default 1), `DOORBELL_SEEDS` the number of random memories (default 4).

use doorbell_cosim::{RtlConfig, RtlPlatform, built_workers};
use doorbell_host::{DeviceError, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case};
use libtest_mimic::{Arguments, Failed, Trial};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

fn run(case: &Case, workers: u32, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let plain = RtlConfig { workers, seed, ..RtlConfig::default() };
    let config = memory.map_or(plain.clone(), |memory| plain.with_random_memory(memory));
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(RtlPlatform::new(&config)?)) };
    Bench::new(&mut make, seed).run(case).map_err(Failed::from)
}

fn main() {
    let seed = number("DOORBELL_SEED", 1);
    let memories: Vec<Option<u64>> =
        [None].into_iter().chain((seed..seed + number("DOORBELL_SEEDS", 4)).map(Some)).collect();
    let mut trials = vec![];
    for workers in built_workers() {
        for &memory in &memories {
            let place =
                memory.map_or(format!("{workers} workers"), |m| format!("{workers} workers, memory {m}"));
            trials.extend(CASES.iter().map(|case| {
                Trial::test(format!("{}: {place}", case.name), move || run(case, workers, seed, memory))
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
