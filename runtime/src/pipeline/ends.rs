//! Rollouts that end: aborted, failed, or done.

use super::{Pipeline, RuntimeError};
use crate::rollout::{RolloutId, State};

impl Pipeline {
    pub(super) fn take_aborts(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.aborts.pop() {
            moved = true;
            self.abort(id)?;
        }
        Ok(moved)
    }

    /// Lets a rollout end as soon as it can, without a trajectory. What has ended, or is being stored, is left alone. No
    /// judge is waited for.
    pub(super) fn abort(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let Ok(state) = self.lives.states().state(id) else { return Ok(()) };
        let life = self.lives.get_mut(id)?;
        if life.aborted {
            return Ok(());
        }
        match state {
            State::Free | State::TrajectoryReady | State::Done => return Ok(()),
            // It comes to its turn of the policy, or its PREFILL completes, and then it ends.
            State::PrefillReady => life.aborted = true,
            State::Decoding => {
                life.aborted = true;
                if life.decoding {
                    life.stopping = true;
                    self.stops.push_back(id);
                }
            }
            State::RewardPending => {
                life.aborted = true;
                self.tickets.cancel(id);
                self.advance(id, State::RewardPending, State::TrajectoryReady)?;
                self.advance(id, State::TrajectoryReady, State::Done)?;
                self.queues.done.push(id)?;
            }
        }
        self.metrics.counters.hot.rollouts_aborted.add(1);
        Ok(())
    }

    /// Ends a rollout that waits for its turn.
    pub(super) fn end_waiting(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.lives.states().state(id)? == State::PrefillReady {
            self.advance(id, State::PrefillReady, State::Decoding)?;
        }
        self.end_decoding(id)
    }

    /// Ends a rollout whose group has no prefix to decode from.
    pub(super) fn fail_unstarted(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if !self.lives.get(id)?.aborted {
            self.metrics.counters.hot.rollouts_failed.add(1);
        }
        self.end_waiting(id)
    }

    /// Ends a rollout that has nothing in flight, or else does so later: both its DECODE and its STOP come back.
    pub(super) fn end_decoding(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get(id)?;
        if life.decoding || life.stopping {
            return Ok(());
        }
        self.advance(id, State::Decoding, State::Done)?;
        self.queues.done.push(id)
    }

    /// Queues an answer for the reward stage. Ids of aborted rollouts may fill the queue; then they are dropped.
    pub(super) fn queue_answer(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.queues.reward.push(id).is_ok() {
            return Ok(());
        }
        self.metrics.counters.hot.pipeline_overflow.add(1);
        let states = self.lives.states().clone();
        self.queues.reward.retain(|id| states.state(id) == Ok(State::RewardPending))?;
        self.queues.reward.push(id)
    }

    /// Gives back what ended rollouts held.
    pub(super) fn end_done(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.queues.done.pop() {
            moved = true;
            let life = self.lives.get_mut(id)?;
            let (index, produced) = (life.group, life.produced);
            let ended_itself = life.outcome.is_some() && !life.aborted;
            self.kv.release(&mut life.branch)?;
            let group = &mut self.groups[index as usize];
            let tokens = u64::from(group.prompt_tokens) + u64::from(produced);
            self.blocks_alone += tokens.div_ceil(self.kv.block_tokens().into());
            group.left -= 1;
            if ended_itself {
                group.finished += 1;
                group.finished_tokens += u64::from(produced);
            }
            if group.left == 0 {
                self.free_groups.push(index);
            }
            self.advance(id, State::Done, State::Free)?;
            self.queues.free.push(self.lives.states().current(id.slot()))?;
        }
        if moved {
            self.publish_blocks();
        }
        Ok(moved)
    }

    fn publish_blocks(&mut self) {
        let arena = self.kv.counts().arena;
        let hot = &self.metrics.counters.hot;
        hot.kv_blocks_allocated.add(arena.acquired - hot.kv_blocks_allocated.get());
        hot.kv_blocks_freed.add(arena.released - hot.kv_blocks_freed.get());
        hot.kv_blocks_in_use.set(arena.in_use);
        hot.kv_blocks_saved.set(self.blocks_alone.saturating_sub(arena.acquired));
    }
}
