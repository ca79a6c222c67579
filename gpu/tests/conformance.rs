//! The conformance suite on a GPU: one test per case, on a kernel of its own, and again on the last queue pair of the last
//! function of several; and the cases of several queue pairs at once. Where there is no GPU, every test is skipped by name. `DOORBELL_SEED` sets the seed, `DOORBELL_GPU` the GPU,
//! `DOORBELL_SLICE` the microseconds that the host gives it at a time (more under a sanitizer).

use std::time::Duration;

use doorbell_contract::Place;
use doorbell_gpu::{GpuDevice, GpuOptions};
use doorbell_host::{DeviceError, Pages, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case, Seat, TENANT_CASES, Tenancy, TenantCase};
use libtest_mimic::{Arguments, Failed, Trial};

/// More than any case maps.
const BYTES: usize = 32 << 20;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Accesses of a hostile owner.
const ACCESSES: u32 = 100_000;

fn open(queues: usize) -> Result<GpuDevice, DeviceError> {
    let gpu = number("DOORBELL_GPU", 0) as usize;
    let mut device = doorbell_gpu::open(GpuOptions { gpu, queues, bytes: BYTES, ..GpuOptions::default() })?;
    device.set_slice(Duration::from_micros(number("DOORBELL_SLICE", 100)));
    Ok(device)
}

/// On the last of so many queue pairs, which the last function owns.
fn run(case: &Case, queues: usize) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
        let (device, last) = (open(queues)?, queues as u8 - 1);
        Ok(if queues == 1 {
            Box::new(device)
        } else {
            Box::new(Seat::new(Box::new(device), Place { function: last, queue: last })?)
        })
    };
    Bench::new(&mut make, number("DOORBELL_SEED", 1)).run(case).map_err(Failed::from)
}

fn run_tenants(case: &TenantCase, queues: usize) -> Result<(), Failed> {
    let mut make = || -> Result<Box<dyn Pages>, DeviceError> { Ok(Box::new(open(queues)?)) };
    let accesses = number("DOORBELL_ACCESSES", ACCESSES.into()) as u32;
    let seed = number("DOORBELL_SEED", 1);
    Tenancy::new(&mut make, seed).with_accesses(accesses).run(case).map_err(Failed::from)
}

fn main() {
    let mut arguments = Arguments::from_args();
    // One kernel fills a GPU.
    arguments.test_threads = Some(1);
    let missing = doorbell_gpu::missing();
    if let Some(reason) = &missing {
        println!("skipping the GPU's conformance suite: {reason}");
    }
    let trials = CASES.iter().flat_map(|case| {
        [1, 3].map(|queues| {
            let name = format!("{} on the last of {queues}", case.name);
            Trial::test(name, move || run(case, queues)).with_ignored_flag(missing.is_some())
        })
    });
    let tenants = TENANT_CASES.iter().flat_map(|case| {
        [2, 4].map(|queues| {
            let name = format!("{} of {queues} queue pairs", case.name);
            Trial::test(name, move || run_tenants(case, queues)).with_ignored_flag(missing.is_some())
        })
    });
    libtest_mimic::run(&arguments, trials.chain(tenants).collect()).exit();
}
