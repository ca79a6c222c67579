//! Bounded lock-free rings between threads: [`spsc`] joins one thread to one other, [`mpsc`] many to one.
//!
//! A ring refuses what does not fit and hands it back: it never overwrites and never drops. All memory is allocated and
//! touched in the constructor; nothing after it allocates, locks, waits or calls the system. Which orders the accesses to
//! memory have, why they suffice, and what shows it, is told in `docs/rings.md`.

pub mod mpsc;
mod slots;
pub mod spsc;
mod sync;

pub use slots::{Gauge, RingError};
