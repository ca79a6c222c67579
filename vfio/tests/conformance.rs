//! The conformance suite of one queue pair through a socket: the pages of the function and of its queue pair as a client reaches them, and
//! page 0 as the device's owner does, who is in this process. Each device is the function that its last client left reset.

mod common;

use std::sync::{Arc, Mutex};

use doorbell_cosim::SLICE;
use doorbell_host::{DeviceError, FunctionMemory, Platform};
use doorbell_verify::conformance::{Bench, CASES, Case};
use libtest_mimic::{Arguments, Failed, Trial};

use common::Served;
use common::owner::{Owner, Page0, Shared};

/// Cases of what a function behind a socket does not have, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("r14_a_message_that_nobody_takes_is_told", MESSAGES),
    ("r23_without_life_only_faults_are_told", MESSAGES),
    ("r23_a_fault_is_told_once", MESSAGES),
    ("r23_the_last_quarter_is_left_for_faults", MESSAGES),
    (
        "registers_after_reset",
        "whoever sets an eventfd has unmasked its vector, and the client does when it connects",
    ),
];
const MESSAGES: &str = "a message becomes an eventfd, and is never answered with an error";

fn run(case: &Case, device: impl FunctionMemory + 'static) -> Result<(), Failed> {
    let device = Arc::new(Mutex::new(device));
    let served = Served::new(Shared(device.clone()), 1);
    let mut make = || -> Result<Box<dyn Platform>, DeviceError> {
        Ok(Box::new(Owner::connect(served.socket(0), Page0::Owned(device.clone()))?))
    };
    Bench::new(&mut make, 1).run(case).map_err(Failed::from)
}

fn main() {
    let mut trials = vec![];
    for case in CASES {
        let left_out = LEFT_OUT.iter().any(|(name, _)| *name == case.name);
        let trial = |kind: &str, run: fn(&'static Case) -> Result<(), Failed>| {
            Trial::test(format!("{}: {kind}", case.name), move || run(case)).with_ignored_flag(left_out)
        };
        trials.push(trial("model", |case| run(case, common::model(1))));
        trials.push(trial("rtl", |case| run(case, common::rtl_of(1, SLICE))));
    }
    for (name, reason) in LEFT_OUT {
        assert!(CASES.iter().any(|case| case.name == *name), "there is no case {name}");
        println!("left out: {name}: {reason}");
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
