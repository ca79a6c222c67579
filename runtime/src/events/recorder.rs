//! The end of an event ring that a thread writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Event, EventKind, Ticks};
use crate::ring::spsc;
use crate::rollout::RolloutId;

/// Records the events of one thread. Made by [`Collector::recorder`](super::Collector::recorder). It can be sent to a thread
/// but not shared:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<doorbell_runtime::events::Recorder>();
/// ```
#[derive(Debug)]
pub struct Recorder {
    ring: spsc::Producer<Event>,
    /// Dropped since the last event that was not.
    lost: u8,
    /// Dropped ever; only this recorder writes it.
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    pub(super) fn new(ring: spsc::Producer<Event>, dropped: Arc<AtomicU64>) -> Self {
        Self { ring, lost: 0, dropped }
    }

    /// Records that `kind` happened at `now`, or drops it if the ring is full. Several events may share one reading of
    /// the clock; a recorder's times must not decrease.
    ///
    /// `descriptor` and `value` are as [`EventKind`] says, and 0 where it says nothing.
    #[inline]
    pub fn record(&mut self, kind: EventKind, rollout: RolloutId, descriptor: u32, value: u32, now: Ticks) {
        let event = Event { time: now, rollout, descriptor, value, kind, lost: self.lost };
        match self.ring.push(event) {
            Ok(()) => self.lost = 0,
            Err(_) => self.drop_one(),
        }
    }

    #[cold]
    fn drop_one(&mut self) {
        self.lost = self.lost.saturating_add(1);
        self.dropped.store(self.dropped.load(Relaxed) + 1, Relaxed);
    }

    /// How many events found the ring full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}
