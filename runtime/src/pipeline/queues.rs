//! The six queues between the stages.

use std::collections::VecDeque;

use super::RuntimeError;
use crate::rollout::RolloutId;

/// Rollouts in order, with room for every slot: it never grows.
pub(super) struct Queue {
    name: &'static str,
    ids: VecDeque<RolloutId>,
    slots: usize,
}

impl Queue {
    fn new(name: &'static str, slots: u32) -> Queue {
        let slots = slots as usize;
        // Written one by one, so that the pages are there: zeroed memory would only be promised.
        let mut ids: VecDeque<_> =
            (0..slots).map(|_| std::hint::black_box(RolloutId::from_bits(0))).collect();
        ids.clear();
        Queue { name, ids, slots }
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.ids.len() == self.slots
    }

    #[inline]
    pub fn push(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.is_full() {
            return Err(RuntimeError::Overflow { queue: self.name });
        }
        self.ids.push_back(id);
        Ok(())
    }

    #[inline]
    pub fn pop(&mut self) -> Option<RolloutId> {
        self.ids.pop_front()
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

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.ids.capacity()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_holds_as_many_as_there_are_slots() {
        let id = |slot| RolloutId::new(slot, 7);
        let mut queue = Queue::new("test", 3);
        let room = queue.capacity();
        for slot in 0..3 {
            queue.push(id(slot)).unwrap();
        }
        assert!(matches!(queue.push(id(9)), Err(RuntimeError::Overflow { queue: "test" })));
        assert_eq!((queue.pop(), queue.front()), (Some(id(0)), Some(id(1))));
        queue.push(id(3)).unwrap();
        assert_eq!(queue.capacity(), room, "it never grows");
    }
}
