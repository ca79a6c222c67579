//! Rollouts that end: aborted, failed, or done.

use doorbell_contract::DescFlags;

use super::groups::Stop;
use super::rollout::Prefill;
use super::{FailureReason, Lost, Partial, Pipeline, RuntimeError, Unstored};
use crate::rollout::{RolloutId, State};

/// What came of an abort.
pub(super) struct Aborted {
    /// It ends.
    pub aborted: bool,
    /// A verdict on it was awaited of the call that judges its group.
    pub awaited: bool,
}

impl Pipeline {
    /// Lets a rollout end as soon as it can, without a trajectory, and says whether it does. What has ended, or is being
    /// stored, is left alone. No judge is waited for.
    pub(super) fn abort(&mut self, id: RolloutId) -> Result<bool, RuntimeError> {
        let ended = self.abort_member(id)?;
        if ended.awaited {
            let index = self.lives.get(id)?.group;
            self.one_verdict_less(index)?;
        }
        Ok(ended.aborted)
    }

    /// The same. Where the call that judges its group awaited a verdict on it, the caller has to say that it awaits one less.
    pub(super) fn abort_member(&mut self, id: RolloutId) -> Result<Aborted, RuntimeError> {
        const NOT: Aborted = Aborted { aborted: false, awaited: false };
        let mut awaited = false;
        let Ok(state) = self.lives.state(id) else { return Ok(NOT) };
        let life = self.lives.get_mut(id)?;
        // One that has failed has ended already, or does as its STOP comes back.
        if life.aborted || life.failure.is_some() {
            return Ok(NOT);
        }
        match state {
            State::Free | State::TrajectoryReady | State::Done => return Ok(NOT),
            // It comes to its turn of the policy, or its PREFILL completes, and then it ends.
            State::PrefillReady => {
                life.aborted = true;
                self.aborted_at_gate = true;
            }
            State::Decoding => {
                life.aborted = true;
                self.aborted_at_gate |= !life.decoding;
                if life.decoding && self.groups[life.group as usize].device.takes_part {
                    self.stop_member(id)?;
                } else if life.decoding {
                    life.stopping = true;
                    self.stops.push_back(Stop::Rollout(id));
                }
            }
            State::RewardPending => {
                life.aborted = true;
                let parked = life.parked;
                awaited = self.tickets.cancel(id) && parked;
                self.end_judged(id)?;
            }
        }
        self.metrics.counters.hot.rollouts_aborted.add(1);
        Ok(Aborted { aborted: true, awaited })
    }

    /// Aborts the members of a group that would make more DECODEs, and says how many do end: on the device by one STOP of the
    /// whole group.
    pub(super) fn abort_open_members(&mut self, index: u32) -> Result<u32, RuntimeError> {
        self.stop_group(index);
        let group = &mut self.groups[index as usize];
        if matches!(group.prefill, Prefill::Due | Prefill::Parted) {
            group.prefill = Prefill::Never;
        }
        let mut aborted = 0;
        let mut next = group.first;
        while let Some(slot) = next {
            let id = self.lives.current(slot);
            let life = self.lives.get(id)?;
            next = life.next;
            if !life.over {
                aborted += u32::from(self.abort(id)?);
            }
        }
        Ok(aborted)
    }

    /// A rollout makes no more DECODEs: its group may come to its end, on the device too.
    pub(super) fn makes_no_more(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        if std::mem::replace(&mut life.over, true) {
            return Ok(());
        }
        let index = life.group;
        self.groups[index as usize].open -= 1;
        self.unbind(index);
        self.stop_member(id)?;
        self.group_may_be_judged(index)
    }

    /// Ends a rollout that no verdict is awaited for, without a trajectory.
    fn end_judged(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        self.makes_no_more(id)?;
        self.advance(id, State::RewardPending, State::TrajectoryReady)?;
        self.advance(id, State::TrajectoryReady, State::Done)?;
        self.queues.done.push(id)
    }

    /// Ends a rollout on whose answer no judge has a verdict.
    pub(super) fn fail_judged(&mut self, id: RolloutId, reason: FailureReason) -> Result<(), RuntimeError> {
        self.end_judged(id)?;
        self.note_failure(id, reason)
    }

    /// Counts a rollout as failed, unless it was aborted before.
    ///
    /// # Errors
    /// `Failures` if these are more than may be.
    #[cold]
    pub(super) fn note_failure(&mut self, id: RolloutId, reason: FailureReason) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        if life.aborted {
            return Ok(());
        }
        life.failure = Some(reason);
        let failed = &self.metrics.counters.hot.rollouts_failed;
        failed.add(1);
        let (member, request) = (life.member, self.groups[life.group as usize].request);
        let last = Lost { rollout: id, request, member, why: Unstored::Failed(reason) };
        if self.failures.len() < self.failures.capacity() {
            self.failures.push(last);
        }
        match self.options.max_failures {
            Some(limit) if failed.get() > limit => {
                Err(RuntimeError::Failures { failed: failed.get(), limit, last })
            }
            _ => Ok(()),
        }
    }

    /// Ends a rollout that waits for its turn.
    pub(super) fn end_waiting(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.lives.is_in(id, State::PrefillReady) {
            self.advance(id, State::PrefillReady, State::Decoding)?;
        }
        self.end_decoding(id)
    }

    /// Ends a rollout whose group has no prefix to decode from.
    pub(super) fn fail_unstarted(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let group = self.lives.get(id)?.group;
        let error = self.groups[group as usize].error;
        self.end_waiting(id)?;
        self.note_failure(id, FailureReason::Device { error })
    }

    /// Ends a rollout that has nothing in flight, or else does so later: both its DECODE and its STOP come back.
    pub(super) fn end_decoding(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get(id)?;
        if life.decoding || life.stopping {
            return Ok(());
        }
        self.makes_no_more(id)?;
        self.advance(id, State::Decoding, State::Done)?;
        self.queues.done.push(id)
    }

    /// Queues an answer for the reward stage. Ids of aborted rollouts may fill the queue; then they are dropped.
    #[inline]
    pub(super) fn queue_answer(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        if self.queues.reward.is_full() {
            self.drop_aborted_answers();
        }
        self.queues.reward.push(id)
    }

    #[cold]
    fn drop_aborted_answers(&mut self) {
        self.metrics.counters.hot.pipeline_overflow.add(1);
        let lives = &self.lives;
        self.queues.reward.retain(|id| lives.is_in(id, State::RewardPending));
    }

    /// Gives back what ended rollouts held.
    pub(super) fn end_done(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.queues.done.pop() {
            moved = true;
            let life = self.lives.get_mut(id)?;
            let (index, produced, appended) = (life.group, life.produced, life.appended);
            let ended_itself = life.outcome.is_some() && !life.aborted;
            let why = match (life.failure, life.stale) {
                _ if life.aborted => Some(Unstored::Aborted),
                (Some(reason), _) => Some(Unstored::Failed(reason)),
                (None, Some(staleness)) => Some(Unstored::Stale(staleness)),
                (None, None) => None,
            };
            let member = life.member;
            if self.language.is_some() {
                self.keep_answer(id)?;
            }
            self.release_blocks(id)?;
            self.unlink(id)?;
            let group = &mut self.groups[index as usize];
            // Blocks were taken for what was asked for, however soon it ended.
            let prompt = group.prompt_tokens - u32::from(self.language.is_some());
            self.blocks_alone += self.kv.alone(prompt, appended);
            group.left -= 1;
            if ended_itself {
                group.finished += 1;
                group.finished_tokens += u64::from(produced);
            }
            let request = group.request;
            self.free_group(index)?;
            if let Some(why) = why {
                let partial = self.partial(id)?;
                self.trajectories.lost(Lost { rollout: id, request, member, why }, partial);
            }
            self.advance(id, State::Done, State::Free)?;
            self.queues.free.push(self.lives.current(id.slot()))?;
        }
        if moved {
            self.publish_blocks();
        }
        Ok(moved)
    }

    /// What a rollout has come to that leaves no trajectory.
    #[cold]
    fn partial(&self, id: RolloutId) -> Result<Partial, RuntimeError> {
        let life = self.lives.get(id)?;
        let group = &self.groups[life.group as usize];
        let offset = self.options.answer_offset(id.slot());
        Ok(Partial {
            group: life.group,
            prompt_tokens: group.prompt_tokens,
            scored: group.terms.scored && group.prefill == Prefill::Done,
            answer_tokens: life.produced,
            spans: life.spans,
            has_logprobs: self.decode_flags.contains(DescFlags::LOGP),
            shard: self.device.token_shard(offset) as u32,
            offset,
        })
    }

    /// Appends a rollout to the living members of its group.
    #[inline]
    pub(super) fn link(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        let group = &mut self.groups[life.group as usize];
        life.previous = group.last.replace(id.slot());
        match life.previous {
            None => group.first = Some(id.slot()),
            Some(previous) => self.lives.slot_mut(previous).next = Some(id.slot()),
        }
        Ok(())
    }

    /// Takes a rollout from the living members of its group.
    #[inline]
    fn unlink(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        let (group, previous, next) = (life.group, life.previous.take(), life.next.take());
        let group = &mut self.groups[group as usize];
        match previous {
            None => group.first = next,
            Some(previous) => self.lives.slot_mut(previous).next = next,
        }
        match next {
            None => group.last = previous,
            Some(next) => self.lives.slot_mut(next).previous = previous,
        }
        Ok(())
    }

    pub(super) fn publish_blocks(&mut self) {
        let counts = self.kv.counts();
        let arena = counts.arena;
        let hot = &self.metrics.counters.hot;
        hot.kv_blocks_allocated.add(arena.acquired - hot.kv_blocks_allocated.get());
        hot.kv_blocks_freed.add(arena.released - hot.kv_blocks_freed.get());
        hot.kv_blocks_in_use.set(arena.in_use);
        hot.kv_blocks_cold.set(counts.cold.into());
        hot.kv_blocks_saved.set(self.blocks_alone.saturating_sub(arena.acquired));
    }
}
