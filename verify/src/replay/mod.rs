//! Drives a whole trace through a device and records what it answered.
//!
//! A [`ReplayPlan`] says what is submitted; [`replay`] submits it, continues rollouts at their checkpoints (R9), and
//! records every completion. The record is what [`compare`](crate::compare) holds two devices to.

mod language;
mod plan;
mod run;

pub use language::{Language, VERSION as LANGUAGE_VERSION};
pub use plan::{PlanError, ReplayOptions, ReplayPlan};
pub use run::{Progress, Replay, ReplayFailure, replay, replay_lives, watch_lives};

#[cfg(test)]
pub(crate) mod tamper;
#[cfg(test)]
mod tests;
