//! The six queues between the stages.

use std::collections::VecDeque;

use super::RuntimeError;
use crate::rollout::RolloutId;

/// Rollouts in order, with room for every slot: it never grows.
pub(super) struct Queue {
    name: &'static str,
    ids: VecDeque<RolloutId>,
}

impl Queue {
    fn new(name: &'static str, slots: u32) -> Queue {
        Queue { name, ids: VecDeque::with_capacity(slots as usize) }
    }

    #[inline]
    pub fn push(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.ids.len() == self.ids.capacity() {
            return Err(RuntimeError::Overflow { queue: self.name });
        }
        self.ids.push_back(id);
        Ok(())
    }

    #[inline]
    pub fn pop(&mut self) -> Option<RolloutId> {
        self.ids.pop_front()
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.ids.capacity()
    }

    /// The oldest, which stays.
    #[inline]
    pub fn front(&self) -> Option<RolloutId> {
        self.ids.front().copied()
    }

    /// Keeps what `keep` wants, in order.
    #[cold]
    pub fn retain(&mut self, mut keep: impl FnMut(RolloutId) -> bool) {
        self.ids.retain(|&id| keep(id));
    }
}

/// The queues, each with what it holds.
pub(super) struct Queues {
    /// Free slots, by the id of their next rollout.
    pub free: Queue,
    /// Admitted rollouts whose group's PREFILL is not yet submitted.
    pub prefill: Queue,
    /// Rollouts whose next DECODE can be submitted.
    pub decode: Queue,
    /// Answers that no judge has taken yet.
    pub reward: Queue,
    /// Rollouts that the writer has not taken yet.
    pub trajectory: Queue,
    /// Rollouts that have ended.
    pub done: Queue,
}

impl Queues {
    pub fn new(slots: u32) -> Queues {
        Queues {
            free: Queue::new("free", slots),
            prefill: Queue::new("prefill", slots),
            decode: Queue::new("decode", slots),
            reward: Queue::new("reward", slots),
            trajectory: Queue::new("trajectory", slots),
            done: Queue::new("done", slots),
        }
    }
}
