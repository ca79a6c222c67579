//! Counters and their export.
