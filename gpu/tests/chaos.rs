//! Chaos on the kernel's own text, compiled for the CPU: hosts that write nonsense, disables, drains and resets of a function
//! at any time, garbage and torn descriptors above the tail, aborts, publishes; and proof that it notices a faulty kernel.
//! `DOORBELL_CHAOS` sets how many descriptors a round has, `DOORBELL_SEED` the first seed. On a GPU it is
//! `doorbell compare --devices gpu --chaos SEED`.

use std::sync::Arc;

use doorbell_gpu::{Engine, GpuDevice};
use doorbell_gpu_cpu::{CpuKernel, Options as Kernel};
use doorbell_verify::chaos::{self, Broken, Options, OwnClock, Tally};
use libtest_mimic::{Arguments, Failed, Trial};

/// Descriptors of a round, if nobody asks for another number.
const DESCRIPTORS: u64 = 200;

/// Queue pairs, whether lanes are interrupted at random, whether relaxed accesses take effect late.
const KERNELS: [(usize, bool, bool); 4] =
    [(1, false, false), (1, true, true), (4, true, false), (3, true, true)];

/// Mistakes of the kernel that the rules of the storm see.
const FAULTS: &[&str] = &[
    "AdmitsOutOfTurn",
    "PassesFences",
    "KeepsStop",
    "ClosesEarly",
    "LeavesEarly",
    "AcknowledgesEarly",
    "ReservesBlindly",
    "ScoresAll",
];

/// Seeds that a mistake has to be seen in.
const TRIES: u64 = 30;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn storm(kernel: Kernel, seed: u64, rounds: u32) -> Result<Tally, Box<Broken>> {
    let options =
        Options { rounds, descriptors: number("DOORBELL_CHAOS", DESCRIPTORS), ..Options::new(seed) };
    chaos::run(&options, &mut |seed| {
        let bytes = chaos::BYTES_OF_A_QUEUE_PAIR;
        let engine: Arc<dyn Engine> = Arc::new(CpuKernel::start(Kernel { seed, bytes, ..kernel })?);
        Ok(Box::new(OwnClock(GpuDevice::new(engine)?)))
    })
}

fn holds(kernel: Kernel) -> Result<(), Failed> {
    let tally = storm(kernel, number("DOORBELL_SEED", 1), 4)?;
    println!("{} queue pairs: {tally:?}", kernel.queues);
    if tally.lives < 10 || tally.disturbances.len() < 10 {
        return Err(format!("too little was drawn: {tally:?}").into());
    }
    Ok(())
}

fn is_noticed(fault: &'static str) -> Result<(), Failed> {
    let kernel = Kernel { queues: 2, stress: true, fault: Some(fault), ..Kernel::default() };
    let first = number("DOORBELL_SEED", 1);
    let broken = (first..first + TRIES).find_map(|seed| storm(kernel, seed, 1).err());
    match broken {
        Some(broken) => {
            println!("{broken}");
            Ok(())
        }
        None => Err("no seed has noticed it".into()),
    }
}

fn main() {
    let mut trials = Vec::new();
    for (queues, stress, weak) in KERNELS {
        let kernel = Kernel { queues, stress, weak, ..Kernel::default() };
        let pace = if weak {
            "weak"
        } else if stress {
            "stress"
        } else {
            "calm"
        };
        trials.push(Trial::test(format!("{queues} queue pairs, {pace}: every rule holds"), move || {
            holds(kernel)
        }));
    }
    for &fault in FAULTS {
        trials.push(Trial::test(format!("{fault} is noticed"), move || is_noticed(fault)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
