//! Engine 1 on the golden model, held to the plain oracle of crate `lm` (R25 to R27): tokens, log-probabilities, keys and values.

mod faults;
mod host;
mod refusals;
mod rollouts;
mod versions;

use doorbell_verify::ModelPlatform;

/// What is tested.
type Device = ModelPlatform;

/// It, with so many queue pairs and functions.
fn device(queues: u8, functions: u8) -> Device {
    ModelPlatform::with_queues(queues, functions).unwrap()
}
