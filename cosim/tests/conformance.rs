//! The conformance suite on every RTL that was built, with a memory that answers at once and with random ones; of a device of
//! several queue pairs on the first one, with one random memory.
//!
//! `DOORBELL_SEED` is the first seed (default 1), `DOORBELL_SEEDS` the number of random memories (default 4).

use doorbell_cosim::{Built, RtlConfig, RtlPlatform, built};
use doorbell_host::{DeviceError, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case};
use libtest_mimic::{Arguments, Failed, Trial};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

fn run(case: &Case, built: Built, seed: u64, memory: Option<u64>) -> Result<(), Failed> {
    let Built { workers, queues, functions } = built;
    let plain = RtlConfig { workers, queues, functions, seed, ..RtlConfig::default() };
    let config = memory.map_or(plain.clone(), |memory| plain.with_random_memory(memory));
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(RtlPlatform::new(&config)?)) };
    Bench::new(&mut make, seed).run(case).map_err(Failed::from)
}

fn main() {
    let seed = number("DOORBELL_SEED", 1);
    let memories: Vec<Option<u64>> =
        [None].into_iter().chain((seed..seed + number("DOORBELL_SEEDS", 4)).map(Some)).collect();
    let mut trials = vec![];
    for built in built() {
        let device = match built {
            Built { workers, queues: 1, .. } => format!("{workers} workers"),
            Built { workers, queues, .. } => format!("{workers} workers, {queues} queue pairs"),
        };
        let memories = if built.queues == 1 { &memories[..] } else { &memories[..memories.len().min(2)] };
        for &memory in memories {
            let place = memory.map_or(device.clone(), |m| format!("{device}, memory {m}"));
            trials.extend(CASES.iter().map(|case| {
                Trial::test(format!("{}: {place}", case.name), move || run(case, built, seed, memory))
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
