//! Chaos through a socket, on a device of one queue pair: hosts that write nonsense, disable, drain and reset, and the rules still hold.
//! `DOORBELL_SEED` is the first seed (default 1), `DOORBELL_SEEDS` how many (default 6).

mod common;

use std::sync::{Arc, Mutex};

use doorbell_host::FunctionMemory;
use doorbell_verify::chaos::{Options, OwnClock, run};
use rstest::rstest;

use common::Served;
use common::owner::{Owner, Page0, Shared};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn rounds(device: impl FunctionMemory + 'static) {
    let device = Arc::new(Mutex::new(device));
    let served = Served::new(Shared(device.clone()), 1);
    let (first, seeds) = (number("DOORBELL_SEED", 1), number("DOORBELL_SEEDS", 6));
    let mut descriptors = 0;
    for seed in first..first + seeds {
        let mut make =
            |_| Ok(Box::new(OwnClock(Owner::connect(served.socket(0), Page0::Owned(device.clone()))?)) as _);
        let options = Options { rounds: 2, descriptors: 200, ..Options::new(seed) };
        match run(&options, &mut make) {
            Ok(tally) => descriptors += tally.descriptors,
            Err(broken) => panic!("DOORBELL_SEED={seed}: {broken}"),
        }
    }
    println!("{seeds} seeds from {first}: {descriptors} descriptors; {}", served.tallies[0]);
    assert!(descriptors > 100 * seeds);
}

#[rstest]
fn chaos_through_a_socket_keeps_every_rule(#[values("model", "rtl")] kind: &str) {
    match kind {
        "model" => rounds(common::model(1)),
        _ => rounds(common::rtl_of(1, doorbell_cosim::SHARED_SLICE)),
    }
}
