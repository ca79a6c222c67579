//! The atomics of the stack; its loom test takes others.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
