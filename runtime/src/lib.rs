//! Doorbell's runtime: drives rollouts from admission to stored trajectory, over any [`Device`](doorbell_host::Device).
//!
//! One thread, the *hot* one, owns the device and moves rollouts through their states; judges, the trajectory writer and
//! the collector of events are threads of their own, joined to it by lock-free rings (crate `rtrb`). See `docs/runtime.md`.
//!
//! A whole program, `runtime/examples/own_judge.rs`:
//!
#![doc = concat!("```no_run\n", include_str!("../examples/own_judge.rs"), "```")]

pub mod events;
pub mod kv;
pub mod metrics;
pub mod pipeline;
pub mod policy;
pub mod reward;
pub mod rollout;
mod threads;
pub mod trajectory;
