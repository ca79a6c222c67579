//! The six queues between the stages.

use super::RuntimeError;
use crate::rollout::RolloutId;

/// Rollouts in order, with room for every slot: it never grows. (A `VecDeque`, which could, costs a segment 30 instructions
/// more.)
pub(super) struct Queue {
    name: &'static str,
    /// A power of two of places, of which `slots` are used.
    ids: Box<[RolloutId]>,
    slots: u32,
    /// Running index of the oldest, and of the next.
    head: u32,
    tail: u32,
}

impl Queue {
    fn new(name: &'static str, slots: u32) -> Queue {
        // Written one by one, so that the pages are there: zeroed memory would only be promised.
        let place = |_| std::hint::black_box(RolloutId::from_bits(0));
        let ids = (0..slots.next_power_of_two()).map(place).collect();
        Queue { name, ids, slots, head: 0, tail: 0 }
    }

    #[inline]
    fn place(&self, index: u32) -> usize {
        index as usize & (self.ids.len() - 1)
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() == self.slots
    }

    #[inline]
    pub fn push(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.is_full() {
            return Err(RuntimeError::Overflow { queue: self.name });
        }
        let place = self.place(self.tail);
        self.ids[place] = id;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub fn pop(&mut self) -> Option<RolloutId> {
        let id = self.front()?;
        self.head = self.head.wrapping_add(1);
        Some(id)
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.slots as usize
    }

    /// The oldest, which stays.
    #[inline]
    pub fn front(&self) -> Option<RolloutId> {
        (self.head != self.tail).then(|| self.ids[self.place(self.head)])
    }

    /// Keeps what `keep` wants, in order.
    #[cold]
    pub fn retain(&mut self, mut keep: impl FnMut(RolloutId) -> bool) {
        let mut kept = self.head;
        for index in 0..self.len() {
            let id = self.ids[self.place(self.head.wrapping_add(index))];
            if keep(id) {
                let place = self.place(kept);
                self.ids[place] = id;
                kept = kept.wrapping_add(1);
            }
        }
        self.tail = kept;
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
    fn a_queue_keeps_order_across_its_end_and_holds_as_many_as_there_are_slots() {
        let id = |slot| RolloutId::new(slot, 7);
        let mut queue = Queue::new("test", 5);
        (queue.head, queue.tail) = (u32::MAX - 2, u32::MAX - 2);
        for slot in 0..5 {
            queue.push(id(slot)).unwrap();
        }
        assert!(queue.is_full());
        assert!(matches!(queue.push(id(9)), Err(RuntimeError::Overflow { queue: "test" })));
        assert_eq!((queue.pop(), queue.front()), (Some(id(0)), Some(id(1))));
        queue.push(id(5)).unwrap();
        queue.retain(|id| id.slot() % 2 == 1);
        assert!(!queue.is_full());
        queue.push(id(6)).unwrap();
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left, [1, 3, 5, 6].map(id));
        assert_eq!((queue.pop(), queue.front()), (None, None));
    }
}
