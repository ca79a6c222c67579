//! Engine 1 on the golden model, held to the plain oracle of crate `lm` (R25 to R27): tokens, log-probabilities, keys and values.

mod capped;
mod extremes;
mod faults;
mod gemma;
mod host;
mod memory;
mod refusals;
mod rollouts;
mod versions;
mod wire;

use std::ops::RangeInclusive;

use doorbell_verify::ModelPlatform;
use doorbell_verify::model::{BusFaults, FaultyRange};

/// What is tested.
type Device = ModelPlatform;

/// It, with so many queue pairs and functions.
fn device(queues: u8, functions: u8) -> Device {
    ModelPlatform::with_queues(queues, functions).unwrap()
}

/// Bytes of an image whose damage it does not notice.
const UNSEEN: &[u64] = &[];

/// Whether a step of one descriptor keeps all others waiting.
const ONE_AT_A_TIME: bool = true;

/// Lets time pass, in which it makes one token of `micro` for each ten ticks.
fn pass(device: &mut Device, ticks: u32) {
    device.pass(ticks);
}

/// Has the memory answer accesses to this range with an error.
fn set_fault(device: &mut Device, range: Option<RangeInclusive<u64>>, _is_write: bool, seed: u64) {
    let ranges = |range: RangeInclusive<u64>| {
        vec![FaultyRange { first: *range.start(), last: *range.end(), one_in: 1 }]
    };
    device.set_faults(range.map(|range| BusFaults::new(ranges(range), seed)));
}
