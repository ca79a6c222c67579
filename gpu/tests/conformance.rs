//! The conformance suite on a GPU: one test per case, on a kernel of its own, and again on the last of several queue
//! pairs. Where there is no GPU, every test is skipped by name. `DOORBELL_SEED` sets the seed, `DOORBELL_GPU` the GPU,
//! `DOORBELL_SLICE` the microseconds that the host gives it at a time (more under a sanitizer).

use std::time::Duration;

use doorbell_gpu::{GpuOptions, GpuPlatform};
use doorbell_host::{DeviceError, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case};
use libtest_mimic::{Arguments, Failed, Trial};

/// More than any case maps.
const BYTES: usize = 32 << 20;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn open(queues: usize) -> Result<GpuPlatform, DeviceError> {
    let gpu = number("DOORBELL_GPU", 0) as usize;
    let mut platforms = doorbell_gpu::open(GpuOptions { gpu, queues, bytes: BYTES, sms: None })?;
    let mut platform = platforms.pop().expect("as many platforms as queues, and at least one");
    platform.set_slice(Duration::from_micros(number("DOORBELL_SLICE", 100)));
    Ok(platform)
}

fn run(case: &Case, queues: usize) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> { Ok(Box::new(open(queues)?)) };
    Bench::new(&mut make, number("DOORBELL_SEED", 1)).run(case).map_err(Failed::from)
}

fn main() {
    let mut arguments = Arguments::from_args();
    // One kernel fills a GPU.
    arguments.test_threads = Some(1);
    let missing = open(1).err();
    if let Some(reason) = &missing {
        println!("skipping the GPU's conformance suite: {reason}");
    }
    let trials = CASES.iter().flat_map(|case| {
        [1, 3].map(|queues| {
            let name = format!("{} on the last of {queues}", case.name);
            Trial::test(name, move || run(case, queues)).with_ignored_flag(missing.is_some())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
