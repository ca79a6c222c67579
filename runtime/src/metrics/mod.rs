//! Counters and their export.
//!
//! [`Counters`] is the table of everything that is counted: the fields, the JSON, the Prometheus text and the table in
//! `docs/metrics.md` all follow from it. [`Metrics`] adds what the events say ([`CollectorThread`] brings it) and what the
//! threads did with their time; a [`Status`] of it is what a [`Server`] shows.

mod collect;
mod counters;
mod prometheus;
mod server;
mod status;
mod workers;

pub use collect::CollectorThread;
pub use counters::{
    BusyTime, Collected, Counter, CounterValues, Counters, Definition, Gauge, Hot, Kind, ScoreSum,
    StageCounters, StageGauges,
};
pub use server::{Bound, DEFAULT_ADDRESS, Server, ServerError};
pub use status::{Metrics, Status, ThreadTime};
pub use workers::WorkerTime;
pub(crate) use workers::Workers;
