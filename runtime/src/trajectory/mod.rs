//! Finished rollouts on disk.
//!
//! The hot thread posts a [`Finished`] for each rollout to its [`WriterHandle`], which is two rings' ends. The *writer*, a
//! thread of its own, reads the tokens from the device's token region, appends a record to the [log](log::Log), and
//! gives the rollout's id back once the record is stored. `docs/trajectories.md` tells the format of the log, what
//! "stored" promises, and what is left after a crash.

#[cfg(feature = "parquet")]
mod columns;
mod keep;
pub mod log;
#[cfg(feature = "parquet")]
pub mod parquet;
mod record;
mod spans;
mod writer;

pub use keep::{Carried, Carrier, Keep, Pace};
pub use record::{Body, Finished, GroupScore, Outcome, Prompt, PromptBody, Span, Trajectory};
pub use spans::Spans;
pub use writer::{PostError, PromptStore, RolloutMemory, Stored, WriterError, WriterHandle, WriterOptions};
