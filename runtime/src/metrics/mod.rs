//! Counters and their export.
//!
//! [`Counters`] is the table of everything that is counted: the fields, the JSON, the Prometheus text and the table in
//! `docs/metrics.md` all follow from it.

mod counters;

pub use counters::{
    BusyTime, Collected, Counter, CounterValues, Counters, Definition, Gauge, Hot, Kind, StageCounters,
    StageGauges, Stored,
};
