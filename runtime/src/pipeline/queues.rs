//! The six queues between the stages.

use super::RuntimeError;
use crate::ring::spsc;
use crate::rollout::RolloutId;

/// A ring of rollouts with room for every slot, both ends of it on the hot thread.
pub(super) struct Queue {
    name: &'static str,
    producer: spsc::Producer<RolloutId>,
    consumer: spsc::Consumer<RolloutId>,
}

impl Queue {
    pub fn new(name: &'static str, slots: u32) -> Result<Queue, RuntimeError> {
        let (producer, consumer) = spsc::channel((slots as usize).next_power_of_two().max(2))?;
        // Nobody gets ahead while the one thread of both waits.
        Ok(Queue { name, producer: producer.eager(), consumer: consumer.eager() })
    }

    #[inline]
    pub fn push(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        self.producer.push(id).map_err(|_| RuntimeError::Overflow { queue: self.name })
    }

    #[inline]
    pub fn pop(&mut self) -> Option<RolloutId> {
        self.consumer.pop()
    }

    /// Keeps what `keep` wants, in order.
    #[cold]
    pub fn retain(&mut self, mut keep: impl FnMut(RolloutId) -> bool) -> Result<(), RuntimeError> {
        for _ in 0..self.producer.gauge().len() {
            match self.pop() {
                Some(id) if keep(id) => self.push(id)?,
                _ => {}
            }
        }
        Ok(())
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
    pub fn new(slots: u32) -> Result<Queues, RuntimeError> {
        Ok(Queues {
            free: Queue::new("free", slots)?,
            prefill: Queue::new("prefill", slots)?,
            decode: Queue::new("decode", slots)?,
            reward: Queue::new("reward", slots)?,
            trajectory: Queue::new("trajectory", slots)?,
            done: Queue::new("done", slots)?,
        })
    }
}
