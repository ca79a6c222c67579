//! Completions, verdicts and stored trajectories: what moves rollouts on.

use doorbell_contract::{CompletionFlags, ErrorCode, HwCompletion, PREFIX_NONE, Status};
use doorbell_engine::Digest;

use super::options::Scoring;
use super::rollout::{Group, Prefill};
use super::submission::Tag;
use super::{FailureReason, Pipeline, RuntimeError};
use crate::events::EventKind;
use crate::reward::{self, JudgeFailure, Judged, Moment, Request, digest_score};
use crate::rollout::{RolloutId, State};
use crate::trajectory::{self, Finished, Outcome};

impl Pipeline {
    /// Takes what the device has completed; gives it time if `busy` is not set.
    pub(super) fn take_completions(&mut self, busy: bool) -> Result<bool, RuntimeError> {
        let out = &mut self.completions;
        let count = if busy { self.device.collect(out)? } else { self.device.poll(out)? };
        if count == 0 {
            return Ok(false);
        }
        self.journal.read_clock();
        for index in 0..count {
            let completion = self.completions[index];
            self.journal.consumed(completion.sq_head);
            self.take_completion(&completion)?;
        }
        self.metrics.counters.hot.descriptors_completed.add(count as u64);
        Ok(true)
    }

    fn take_completion(&mut self, completion: &HwCompletion) -> Result<(), RuntimeError> {
        if completion.has(CompletionFlags::NO_ECHO) {
            return self.unread(completion);
        }
        match Tag::from_bits(completion.user_data) {
            Some(Tag::Decode(id)) => self.decoded(id, completion),
            Some(Tag::Stop(id)) => self.stopped(id, completion),
            Some(Tag::Prefill(group)) => self.prefilled(group, completion),
            None => Err(self.unasked(completion, "no descriptor carries that user_data")),
        }
    }

    /// The device could trust nothing of a slot of the submission queue: its completion names that slot alone, and what lies in
    /// it has come to its end.
    #[cold]
    fn unread(&mut self, completion: &HwCompletion) -> Result<(), RuntimeError> {
        if !self.one_queue {
            return Err(RuntimeError::Unread {
                device: self.device.name().to_owned(),
                index: completion.result,
                code: ErrorCode::try_from(completion.error).map_or("an unknown code", ErrorCode::name),
            });
        }
        match self.in_flight_at(completion.result) {
            None => Err(self.unasked(completion, "nothing in flight lies in the slot that it names")),
            Some(Tag::Decode(id)) => {
                self.lives.get_mut(id)?.decoding = false;
                self.metrics.counters.hot.segments.add(1);
                self.refused(id, completion)
            }
            // It ends nothing: the DECODE goes on to its own end.
            Some(Tag::Stop(id)) => {
                let life = self.lives.get_mut(id)?;
                (life.stopping, life.stop_index) = (false, None);
                self.first_error.get_or_insert(*completion);
                self.end_decoding(id)
            }
            Some(Tag::Prefill(group)) => self.prefilled(group, completion),
        }
    }

    /// Whose descriptor in flight lies at running index `index` of the submission queue. A look at everything: this is
    /// needed once in a device's life, if ever.
    #[cold]
    fn in_flight_at(&mut self, index: u32) -> Option<Tag> {
        for slot in 0..self.options.slots {
            let life = self.lives.slot_mut(slot);
            let (decodes, stops) =
                (life.decoding && life.index == index, life.stopping && life.stop_index == Some(index));
            let id = self.lives.current(slot);
            if decodes || stops {
                return Some(if decodes { Tag::Decode(id) } else { Tag::Stop(id) });
            }
        }
        let runs = |group: &Group| group.prefill == Prefill::Running && group.prefill_index == index;
        self.groups.iter().position(runs).map(|group| Tag::Prefill(group as u32))
    }

    /// The device has completed a rollout's DECODE as ERROR.
    fn refused(&mut self, id: RolloutId, completion: &HwCompletion) -> Result<(), RuntimeError> {
        self.first_error.get_or_insert(*completion);
        self.note_failure(id, FailureReason::Device { error: completion.error })?;
        self.end_decoding(id)
    }

    fn decoded(&mut self, id: RolloutId, completion: &HwCompletion) -> Result<(), RuntimeError> {
        let status = Status::try_from(completion.status);
        let Some(life) = self.lives.get_mut(id).ok().filter(|life| life.decoding) else {
            return Err(self.unasked(completion, "no DECODE of that rollout is in flight"));
        };
        if life.device_rollout != completion.rollout_id {
            return Err(self.unasked(completion, "its rollout_id is not that of its user_data"));
        }
        let group = &self.groups[life.group as usize];
        let before = group.prompt_tokens + life.produced;
        let added = completion.final_seq_len.wrapping_sub(before);
        if added > life.asked {
            return Err(self.unasked(completion, "its length is not one that was asked for"));
        }
        life.decoding = false;
        life.produced += added;
        life.added = added;
        life.digest = completion.result;
        life.segments += 1;
        let (number, ended, left) = (life.descriptor, life.aborted, group.output_tokens - life.produced);
        let counters = &self.metrics.counters.hot;
        counters.segments.add(1);
        counters.tokens_generated.add(added.into());
        self.journal.record(EventKind::CompletionPolled, id, number, added);
        let flags = CompletionFlags::from_bits_retain(completion.flags);
        let outcome = match status {
            Ok(Status::Error) => return self.refused(id, completion),
            // Aborted: whatever it has is dropped.
            Ok(Status::Done | Status::RewardNeeded | Status::Stopped) if ended => {
                return self.end_decoding(id);
            }
            Ok(Status::Done) if flags.contains(CompletionFlags::REJECTED) => Some(Outcome::Rejected),
            Ok(Status::Done) if self.options.eos_stops && flags.contains(CompletionFlags::EOS) => {
                Some(Outcome::Eos)
            }
            Ok(Status::Done) if left == 0 => Some(Outcome::Completed),
            // R9: at a checkpoint there is something left, and something was added.
            Ok(Status::RewardNeeded) if left > 0 && added > 0 && self.options.scoring == Scoring::Host => {
                None
            }
            _ => return Err(self.unasked(completion, "a DECODE does not end so here")),
        };
        self.advance(id, State::Decoding, State::RewardPending)?.outcome = outcome;
        if self.options.scoring == Scoring::Device {
            // The device has scored already; this is the score by which it did.
            let life = self.lives.get_mut(id)?;
            life.score = digest_score(Digest::from(life.digest));
            return self.finish(id);
        }
        self.queue_answer(id)
    }

    fn stopped(&mut self, id: RolloutId, completion: &HwCompletion) -> Result<(), RuntimeError> {
        let Some(life) = self.lives.get_mut(id).ok().filter(|life| life.stopping) else {
            return Err(self.unasked(completion, "no STOP of that rollout is in flight"));
        };
        if life.decoding {
            return Err(self.unasked(completion, "a STOP completed before the DECODE that it ends (R5)"));
        }
        life.stopping = false;
        self.end_decoding(id)
    }

    fn prefilled(&mut self, index: u32, completion: &HwCompletion) -> Result<(), RuntimeError> {
        let group = self.groups.get_mut(index as usize).filter(|group| group.prefill == Prefill::Running);
        let Some(group) = group else {
            return Err(self.unasked(completion, "no PREFILL of that group is in flight"));
        };
        let registered = completion.status == Status::Done as u8;
        group.prefill = if registered { Prefill::Done } else { Prefill::Failed };
        group.error = completion.error;
        let mut next = group.first;
        self.metrics.counters.hot.prefills.add(1);
        if !registered {
            self.first_error.get_or_insert(*completion);
        }
        while let Some(slot) = next {
            let id = self.lives.current(slot);
            let life = self.lives.get_mut(id)?;
            next = life.next;
            if std::mem::take(&mut life.waits) {
                if registered { self.queues.decode.push(id)? } else { self.fail_unstarted(id)? }
            }
        }
        Ok(())
    }

    /// Offers answers to the reward stage as long as it takes them.
    pub(super) fn post_answers(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.queues.reward.front() {
            // Aborted while it waited here.
            if self.lives.state(id) != Ok(State::RewardPending) {
                self.queues.reward.pop();
                moved = true;
                continue;
            }
            let offset = u64::from(id.slot()) * self.area_bytes;
            let life = self.lives.get_mut(id)?;
            let group = &self.groups[life.group as usize];
            let request = Request {
                ticket: self.tickets.issue(id),
                rollout: id,
                request: group.request,
                member: life.member,
                group: life.group,
                prompt_ids: group.prompt_ids,
                shard: self.device.token_shard(offset) as u32,
                offset,
                answer_tokens: life.produced,
                segment_start: life.produced - life.added,
                prompt_tokens: group.prompt_tokens,
                moment: match life.outcome {
                    None => Moment::Checkpoint,
                    Some(outcome) => Moment::End { eos: outcome == Outcome::Eos },
                },
                digest: life.digest,
                avoid: life.avoid,
            };
            let number = life.descriptor;
            match self.rewards.post(request) {
                Ok(()) => {}
                Err(reward::PostError::Full(_)) => {
                    self.tickets.cancel(id);
                    break;
                }
                Err(reward::PostError::NoJudges(_)) => return Err(RuntimeError::NoJudges),
            }
            self.queues.reward.pop();
            moved = true;
            self.metrics.counters.hot.reward_handoffs.add(1);
            self.journal.record(EventKind::RewardPosted, id, number, 0);
        }
        Ok(moved)
    }

    pub(super) fn take_verdicts(&mut self) -> Result<bool, RuntimeError> {
        let count = self.rewards.collect(&mut self.verdicts);
        for index in 0..count {
            let judged = self.verdicts[index];
            self.judged(&judged)?;
        }
        Ok(count > 0)
    }

    pub(super) fn judged(&mut self, judged: &Judged) -> Result<(), RuntimeError> {
        let id = judged.rollout;
        if !self.tickets.redeem(id, judged.ticket) {
            self.metrics.counters.hot.verdicts_late.add(1);
            return Ok(());
        }
        let verdict = match judged.verdict {
            Ok(verdict) => verdict,
            Err(failure) => return self.not_judged(id, judged.judge, failure),
        };
        let life = self.lives.get_mut(id)?;
        life.score = verdict.score;
        (life.failed_verdicts, life.avoid) = (0, None);
        self.journal.record(EventKind::RewardScored, id, life.descriptor, verdict.score as u32);
        if life.outcome.is_none() && verdict.proceed {
            self.advance(id, State::RewardPending, State::Decoding)?;
            return self.queues.decode.push(id);
        }
        life.outcome.get_or_insert(Outcome::Rejected);
        self.finish(id)
    }

    /// A judge has no verdict: another one is asked, or the rollout has failed.
    #[cold]
    fn not_judged(&mut self, id: RolloutId, judge: u32, failure: JudgeFailure) -> Result<(), RuntimeError> {
        self.metrics.counters.hot.verdicts_failed.add(1);
        let life = self.lives.get_mut(id)?;
        life.failed_verdicts += 1;
        if life.failed_verdicts > self.options.judge_retries {
            return self.fail_judged(id, FailureReason::Judge { judge, failure });
        }
        life.avoid = Some(judge);
        self.queue_answer(id)
    }

    /// Sends a rollout that has its last score to the writer.
    fn finish(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        self.advance(id, State::RewardPending, State::TrajectoryReady)?;
        self.queues.trajectory.push(id)
    }

    /// Offers finished rollouts to the writer as long as it takes them.
    pub(super) fn post_trajectories(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.queues.trajectory.front() {
            let finished = self.finished(id)?;
            match self.trajectories.post(finished) {
                Ok(()) => {
                    self.queues.trajectory.pop();
                    moved = true;
                }
                Err(trajectory::PostError::Full(_)) => {
                    break;
                }
                Err(trajectory::PostError::Failed(_)) => return Err(RuntimeError::WriterFailed),
            }
        }
        Ok(moved)
    }

    fn finished(&self, id: RolloutId) -> Result<Finished, RuntimeError> {
        let life = self.lives.get(id)?;
        let group = &self.groups[life.group as usize];
        let offset = u64::from(id.slot()) * self.area_bytes;
        Ok(Finished {
            rollout: id,
            request: group.request,
            member: life.member,
            device_rollout: life.device_rollout,
            seed: self.options.seed,
            prefix_id: if self.options.has_prefills() { group.wire_id } else { PREFIX_NONE },
            prefix_hash: group.prefix_hash,
            prompt_tokens: group.prompt_tokens,
            answer_tokens: life.produced,
            score: life.score,
            segments: life.segments,
            outcome: life.outcome.unwrap_or(Outcome::Stopped),
            shard: self.device.token_shard(offset) as u32,
            offset,
        })
    }

    pub(super) fn take_stored(&mut self) -> Result<bool, RuntimeError> {
        let count = self.trajectories.stored(&mut self.stored);
        if count == 0 && self.trajectories.has_failed() {
            return Err(RuntimeError::WriterFailed);
        }
        for index in 0..count {
            let id = self.stored[index];
            let life = self.advance(id, State::TrajectoryReady, State::Done)?;
            let (number, tokens) = (life.descriptor, life.produced);
            self.metrics.counters.hot.rollouts_completed.add(1);
            self.journal.record(EventKind::TrajectoryDone, id, number, tokens);
            self.queues.done.push(id)?;
        }
        Ok(count > 0)
    }

    #[cold]
    fn unasked(&self, completion: &HwCompletion, what: &'static str) -> RuntimeError {
        RuntimeError::Unasked { device: self.device.name().to_owned(), what, completion: *completion }
    }
}
