//! Engine 1 on the golden model, held to the plain oracle of crate `lm` (R25 to R27): tokens, log-probabilities, keys and values.

mod faults;
mod host;
mod refusals;
mod rollouts;
mod versions;
