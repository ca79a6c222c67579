//! Completions, verdicts and stored trajectories: what moves rollouts on.

use doorbell_contract::{
    CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwEvent, MEMBERS_MAX, PREFIX_NONE, PolicyMode,
    Status,
};
use doorbell_engine::Digest;

use super::groups::Stop;
use super::options::Scoring;
use super::rollout::Prefill;
use super::submission::Tag;
use super::{FailureReason, Pipeline, RuntimeError};
use crate::events::{EventKind, Ticks};
use crate::reward::{self, JudgeFailure, Judged, Moment, Request, Scorer, digest_score};
use crate::rollout::{RolloutId, State};
use crate::trajectory::{self, Finished, Outcome};

/// Batches of 64 events that a turn passes on: more than a turn's completions can have.
const LIVES_PER_TURN: usize = 64;

impl Pipeline {
    /// Takes what the device has completed; gives it time if `busy` is not set.
    pub(super) fn take_completions(&mut self, busy: bool) -> Result<bool, RuntimeError> {
        let out = &mut self.completions;
        let count =
            if busy || self.options.sleeps { self.device.collect(out)? } else { self.device.poll(out)? };
        if count == 0 {
            return Ok(false);
        }
        self.read_clock();
        for index in 0..count {
            let completion = self.completions[index];
            if self.journal.records() {
                self.note_completion(&completion);
            }
            self.take_completion(&completion)?;
        }
        self.metrics.counters.hot.descriptors_completed.add(count as u64);
        if self.journal.wants_lives() {
            self.take_lives(LIVES_PER_TURN)?;
        }
        Ok(true)
    }

    /// The time of all that is noted from here on, and what the device's clock reads just before.
    #[inline]
    pub(super) fn read_clock(&mut self) -> Ticks {
        let now = self.journal.read_clock();
        if self.journal.wants_lives()
            && let Some(ticks) = self.device.ticks()
        {
            // A device on a thread of its own works meanwhile: it was asked, and answered later.
            let answered = self.journal.read_clock();
            self.journal.ticks(ticks, now);
            return answered;
        }
        now
    }

    /// Passes on what the device has told of its descriptors (R23), so many batches at most.
    pub(super) fn take_lives(&mut self, batches: usize) -> Result<(), RuntimeError> {
        self.journal.place(&*self.device);
        let mut events = [HwEvent::default(); 64];
        for _ in 0..batches {
            let taken = self.device.events(&mut events)?;
            self.journal.lives(&events[..taken]);
            if taken < events.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Notes what a completion tells of its descriptor, and of those that the device has taken.
    fn note_completion(&mut self, completion: &HwCompletion) {
        self.journal.consumed(Tag::from_bits(completion.user_data), completion.sq_head);
        if self.journal.wants_lives() {
            let unread = self.device.unread(completion).map(|desc| desc.user_data);
            self.journal.completed(unread.unwrap_or(completion.user_data));
        }
    }

    fn take_completion(&mut self, completion: &HwCompletion) -> Result<(), RuntimeError> {
        if completion.has(CompletionFlags::NO_ECHO) {
            return self.unread(completion);
        }
        match Tag::from_bits(completion.user_data) {
            Some(Tag::Decode(id)) => self.decoded(id, completion),
            Some(tag) => self.completed(tag, completion),
            None => Err(self.unasked(completion, "no descriptor carries that user_data")),
        }
    }

    fn completed(&mut self, tag: Tag, completion: &HwCompletion) -> Result<(), RuntimeError> {
        match tag {
            Tag::Decode(id) => self.decoded(id, completion),
            Tag::Stop(id) => self.stopped(id, completion),
            Tag::Prefill(group) => self.prefilled(group, completion),
            Tag::MemberStop { group, member } => {
                self.group_stopped(group, Stop::Member { group, member }, completion)
            }
            Tag::GroupStop(group) => self.group_stopped(group, Stop::Group(group), completion),
            Tag::Policy(function) => self.published(function, completion),
            Tag::Reward(name) => self.rewarded(name, completion),
        }
    }

    /// The device has scored, or refused to: the reward stage says later what comes of it.
    fn rewarded(&mut self, name: u64, completion: &HwCompletion) -> Result<(), RuntimeError> {
        let (id, ticket) =
            self.rewards.completed(name, completion).map_err(|what| self.unasked(completion, what))?;
        self.rewards_in_flight = self.rewards_in_flight.saturating_sub(1);
        let decodes = self.lives.get(id).is_ok_and(|life| life.decoding);
        if decodes && self.tickets.awaits(id, ticket) {
            return Err(self.unasked(completion, "a REWARD completed before the DECODE that it follows (R5)"));
        }
        Ok(())
    }

    /// The device could trust nothing of a slot of the submission queue: its completion names that slot alone, and what lies in
    /// it has come to its end.
    #[cold]
    fn unread(&mut self, completion: &HwCompletion) -> Result<(), RuntimeError> {
        let Some(desc) = self.device.unread(completion) else {
            return Err(RuntimeError::Unread {
                device: self.device.name().to_owned(),
                index: completion.result,
                code: ErrorCode::try_from(completion.error).map_or("an unknown code", ErrorCode::name),
            });
        };
        match Tag::from_bits(desc.user_data) {
            None => Err(self.unasked(completion, "nothing in flight lies in the slot that it names")),
            Some(Tag::Decode(id)) => {
                let Some(life) = self.lives.get_mut(id).ok().filter(|life| life.decoding) else {
                    return Err(self.unasked(completion, "nothing in flight lies in the slot that it names"));
                };
                life.decoding = false;
                let (index, version) = (life.group, life.version);
                if std::mem::take(&mut life.posted_ahead) {
                    self.tickets.cancel(id);
                }
                self.metrics.counters.hot.segments.add(1);
                self.named(version, false);
                if self.groups[index as usize].device.takes_part {
                    self.belongs(index, 0, completion)?;
                }
                self.refused(id, completion)
            }
            // It ends nothing: the DECODE goes on to its own end.
            Some(Tag::Stop(id)) => {
                let Some(life) = self.lives.get_mut(id).ok().filter(|life| life.stopping) else {
                    return Err(self.unasked(completion, "nothing in flight lies in the slot that it names"));
                };
                life.stopping = false;
                self.first_error.get_or_insert(*completion);
                self.end_decoding(id)
            }
            Some(tag) => self.completed(tag, completion),
        }
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
        let index = life.group;
        let group = &self.groups[index as usize];
        let before = group.prompt_tokens + life.produced;
        let added = completion.final_seq_len.wrapping_sub(before);
        if added > life.asked {
            return Err(self.unasked(completion, "its length is not one that was asked for"));
        }
        life.decoding = false;
        life.produced += added;
        life.added = added;
        life.unjudged += added;
        life.digest = completion.result;
        life.segments += 1;
        let ahead = std::mem::take(&mut life.posted_ahead);
        let (number, version, member) = (life.descriptor, life.version, life.member);
        let (over, left) = (life.aborted || life.failure.is_some(), group.output_tokens - life.produced);
        let (failed, eos_stops) = (group.prefill == Prefill::Failed, group.terms.eos_stops);
        let counters = &self.metrics.counters.hot;
        counters.segments.add(1);
        counters.tokens_generated.add(added.into());
        self.journal.record(EventKind::CompletionPolled, id, number, added);
        self.note_span(id, added)?;
        if added > 0 && self.language.is_some() {
            // The first step has made the copy of the prompt's last block.
            self.kv.drop_source(&mut self.lives.get_mut(id)?.branch)?;
        }
        self.named(version, false);
        if self.groups[index as usize].device.takes_part {
            let ends = matches!(status, Ok(Status::Done | Status::Stopped));
            let ends = if ends { 1 << (member % MEMBERS_MAX) } else { 0 };
            self.belongs(index, ends, completion)?;
        } else if completion.has(CompletionFlags::GROUP_DONE) {
            return Err(self.unasked(completion, "GROUP_DONE, and it belongs to no group (R17)"));
        }
        // What was posted before is of the whole answer: it counts if that is what there is.
        let counts = ahead && status == Ok(Status::Done) && left == 0 && !over && !failed;
        if ahead && !counts {
            self.tickets.cancel(id);
        }
        let flags = CompletionFlags::from_bits_retain(completion.flags);
        let ended = |status: Status| status != Status::Error && status != Status::Scored;
        let outcome = match status {
            Ok(Status::Error) => return self.refused(id, completion),
            // Aborted: whatever it has is dropped.
            Ok(status) if over && ended(status) => return self.end_decoding(id),
            // Its group was never opened: the STOP of all of it came, or it ended by itself.
            Ok(status) if failed && ended(status) => return self.fail_unstarted(id),
            Ok(Status::Done) if flags.contains(CompletionFlags::REJECTED) => Some(Outcome::Rejected),
            Ok(Status::Done) if eos_stops && flags.contains(CompletionFlags::EOS) => Some(Outcome::Eos),
            Ok(Status::Done) if left == 0 => Some(Outcome::Completed),
            // R9: at a checkpoint there is something left, and something was added.
            Ok(Status::RewardNeeded) if left > 0 && added > 0 && self.options.scoring == Scoring::Stage => {
                None
            }
            // R20: it goes on under the new version with what it has.
            Ok(Status::Superseded) if left > 0 && self.versions.is_retired(version, PolicyMode::Keep) => {
                self.metrics.counters.hot.superseded.add(1);
                return self.queues.decode.push(id);
            }
            // R20: its version was retired, and its rollouts with it.
            Ok(Status::Stopped) if self.versions.is_retired(version, PolicyMode::Abort) => {
                self.abort(id)?;
                return self.end_decoding(id);
            }
            _ => return Err(self.unasked(completion, "a DECODE does not end so here")),
        };
        let life = self.advance(id, State::Decoding, State::RewardPending)?;
        life.outcome = outcome;
        let segments = life.segments;
        if outcome.is_some() {
            self.makes_no_more(id)?;
        }
        // The device has scored already; this is the score by which it did. Of a rollout that went on under another version it
        // tells of the last part alone: a judge scores the whole.
        if self.options.scoring == Scoring::Resident && segments == 1 {
            let life = self.lives.get_mut(id)?;
            life.score = digest_score(Digest::from(life.digest));
            life.scorer = Some(Scorer::Resident);
            return self.finish(id);
        }
        if counts {
            self.metrics.counters.hot.reward_handoffs.add(1);
            self.journal.record(EventKind::RewardPosted, id, number, 0);
            return Ok(());
        }
        if outcome.is_some() && self.options.judge_group { self.park(id) } else { self.queue_answer(id) }
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
        let (opened, version) = (group.device.opened, group.version.unwrap_or_default());
        self.named(version, true);
        if registered && self.part_made(index)? {
            return Ok(());
        }
        self.metrics.counters.hot.prefills.add(1);
        self.end_prefill(index)?;
        if !registered {
            self.first_error.get_or_insert(*completion);
        }
        if opened {
            if !registered {
                // There is no group, unless it was opened all the same (R17): what follows belongs to none, and is ended by its prefix.
                self.stop_group(index);
                let read = !completion.has(CompletionFlags::NO_ECHO);
                let began = [ErrorCode::BadSequence as u8, ErrorCode::DmaFault as u8];
                let open = read && began.contains(&completion.error);
                self.groups[index as usize].device.opened = open;
            }
            return self.belongs(index, 0, completion);
        }
        self.wake(index)
    }

    /// Lets the members of a group that wait for its PREFILL go on, or end. Who was aborted ends here, since the gate may hold the others.
    pub(super) fn wake(&mut self, index: u32) -> Result<(), RuntimeError> {
        let group = &self.groups[index as usize];
        let (mut next, prefill) = (group.first, group.prefill);
        while let Some(slot) = next {
            let id = self.lives.current(slot);
            let life = self.lives.get_mut(id)?;
            next = life.next;
            if std::mem::take(&mut life.waits) {
                match prefill {
                    Prefill::Failed => self.fail_unstarted(id)?,
                    Prefill::Never => self.end_waiting(id)?,
                    _ if life.aborted => self.end_waiting(id)?,
                    _ => self.queues.decode.push(id)?,
                }
            }
        }
        Ok(())
    }

    /// Offers answers to the reward stage as long as it takes them.
    pub(super) fn post_answers(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.queues.reward.front() {
            // Aborted while it waited here.
            if !self.lives.is_in(id, State::RewardPending) {
                self.queues.reward.pop();
                moved = true;
                continue;
            }
            let request = self.request(id)?;
            let number = self.lives.get(id)?.descriptor;
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

    /// The answer of a rollout, for a judge, with a ticket of its own. Inline, it is built where it is handed over.
    #[inline(always)]
    pub(super) fn request(&mut self, id: RolloutId) -> Result<Request, RuntimeError> {
        let offset = self.options.answer_offset(id.slot());
        let life = self.lives.get_mut(id)?;
        let group = &self.groups[life.group as usize];
        Ok(Request {
            ticket: self.tickets.issue(id),
            rollout: id,
            request: group.request,
            member: life.member,
            device_rollout: life.device_rollout,
            prefix_id: group.wire_id.filter(|_| self.options.has_prefills()).unwrap_or(PREFIX_NONE),
            group: life.group,
            prompt_ids: group.prompt_ids,
            shard: self.device.token_shard(offset) as u32,
            offset,
            answer_tokens: life.produced,
            segment_start: life.produced - life.unjudged,
            digest_start: life.produced - life.added,
            scored: group.terms.scored,
            prompt_tokens: group.prompt_tokens,
            moment: match life.outcome {
                None => Moment::Checkpoint,
                Some(outcome) => Moment::End { eos: outcome == Outcome::Eos },
            },
            digest: life.digest,
            avoid: life.avoid,
            together: 1,
        })
    }

    pub(super) fn take_verdicts(&mut self) -> Result<bool, RuntimeError> {
        let count = self.rewards.collect(&mut self.verdicts)?;
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
        if self.lives.get(id)?.parked {
            return self.judged_together(id, judged.judge, judged.verdict);
        }
        let verdict = match judged.verdict {
            Ok(verdict) => verdict,
            Err(failure) => return self.not_judged(id, judged.judge, failure),
        };
        let life = self.lives.get_mut(id)?;
        life.score = verdict.score;
        life.scorer = Some(self.rewards.scorer());
        life.unjudged = 0;
        (life.failed_verdicts, life.avoid) = (0, None);
        self.journal.record(EventKind::RewardScored, id, life.descriptor, verdict.score as u32);
        if life.outcome.is_none() && verdict.proceed {
            self.advance(id, State::RewardPending, State::Decoding)?;
            return self.go_on(id);
        }
        life.outcome.get_or_insert(Outcome::Rejected);
        self.makes_no_more(id)?;
        if self.options.judge_group { self.park(id) } else { self.finish(id) }
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
    pub(super) fn finish(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.advance(id, State::RewardPending, State::TrajectoryReady)?;
        let (score, scorer) = (life.score, life.scorer);
        let hot = &self.metrics.counters.hot;
        match scorer {
            Some(Scorer::Resident) => hot.scored_resident.add(1),
            Some(Scorer::Device) => hot.scored_device.add(1),
            Some(Scorer::Host) | None => hot.scored_host.add(1),
        }
        self.metrics.scores.add(score);
        self.queues.trajectory.push(id)
    }

    /// Offers finished rollouts to the writer as long as it takes them.
    pub(super) fn post_trajectories(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(id) = self.queues.trajectory.front() {
            if let Some(staleness) = self.stale(id, None)? {
                self.queues.trajectory.pop();
                self.drop_stale(id, staleness)?;
                moved = true;
                continue;
            }
            // Whoever hears of its end finds what it leaves.
            if self.language.is_some() {
                self.keep_answer(id)?;
            }
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
        let offset = self.options.answer_offset(id.slot());
        Ok(Finished {
            rollout: id,
            request: group.request,
            member: life.member,
            device_rollout: life.device_rollout,
            seed: self.options.seed,
            prefix_id: group.wire_id.filter(|_| self.options.has_prefills()).unwrap_or(PREFIX_NONE),
            prefix_hash: group.prefix_hash,
            prompt_tokens: group.prompt_tokens,
            answer_tokens: life.produced,
            score: life.score,
            scorer: life.scorer,
            segments: life.segments,
            outcome: life.outcome.unwrap_or(Outcome::Stopped),
            spans: life.spans,
            group: life.group_score,
            has_logprobs: self.decode_flags.contains(DescFlags::LOGP),
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
            self.journal.stored(id, number, tokens);
            self.queues.done.push(id)?;
        }
        Ok(count > 0)
    }

    #[cold]
    pub(super) fn unasked(&self, completion: &HwCompletion, what: &'static str) -> RuntimeError {
        RuntimeError::Unasked { device: self.device.name().to_owned(), what, completion: *completion }
    }
}
