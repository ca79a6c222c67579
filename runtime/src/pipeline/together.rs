//! Groups that are judged as one: their final answers wait until the group has ended, and go to one judge in one call.

use super::{FailureReason, Pipeline, RuntimeError};
use crate::events::EventKind;
use crate::reward::{self, GroupPostError, JudgeFailure, Verdict};
use crate::rollout::{RolloutId, State};
use crate::trajectory::{GroupScore, Outcome};

impl Pipeline {
    /// A rollout has come to its end, and waits for the others of its group.
    pub(super) fn park(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        life.parked = true;
        let index = life.group;
        self.group_may_be_judged(index)
    }

    /// Sends the answers of a group to a judge if no member makes more DECODEs, and the device has told that it has ended.
    pub(super) fn group_may_be_judged(&mut self, index: u32) -> Result<(), RuntimeError> {
        let group = &mut self.groups[index as usize];
        if !self.options.judge_group || group.judging || group.open > 0 || group.device.is_open() {
            return Ok(());
        }
        group.judging = true;
        if group.left > 0 {
            self.call(index);
        }
        Ok(())
    }

    /// Queues a group for a judge.
    fn call(&mut self, index: u32) {
        self.groups[index as usize].called = true;
        self.calls.push_back(index);
    }

    /// Takes a group out of the queue for judges, as its place is about to be given back: the next group there has a call of its
    /// own.
    #[cold]
    pub(super) fn call_off(&mut self, index: u32) {
        self.groups[index as usize].called = false;
        self.calls.retain(|&called| called != index);
    }

    /// Takes the first group out of the queue for judges.
    fn take_call(&mut self) {
        if let Some(index) = self.calls.pop_front() {
            self.groups[index as usize].called = false;
        }
    }

    /// Slots of the members that wait with a final answer; `to_judge` those alone that need a verdict.
    fn parked(&mut self, index: u32, to_judge: bool) -> Result<usize, RuntimeError> {
        self.members.clear();
        let mut next = self.groups[index as usize].first;
        while let Some(slot) = next {
            let id = self.lives.current(slot);
            let waits = self.lives.state(id)? == State::RewardPending;
            let life = self.lives.get(id)?;
            next = life.next;
            // Who was rejected at a checkpoint has its score from there.
            if waits && life.parked && !(to_judge && life.outcome == Some(Outcome::Rejected)) {
                self.members.push(id);
            }
        }
        Ok(self.members.len())
    }

    /// Offers groups to the reward stage as long as it takes them.
    pub(super) fn post_groups(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while let Some(&index) = self.calls.front() {
            let count = self.parked(index, true)?;
            if count == 0 {
                self.take_call();
                self.settle(index)?;
                moved = true;
                continue;
            }
            let avoid = self.groups[index as usize].avoid;
            self.requests.clear();
            for place in 0..count {
                let id = self.members[place];
                let request = reward::Request { avoid, ..self.request(id)? };
                self.requests.push(request);
            }
            match self.rewards.post_group(&self.requests) {
                Ok(()) => {}
                Err(GroupPostError::Full) => {
                    for place in 0..count {
                        self.tickets.cancel(self.members[place]);
                    }
                    break;
                }
                Err(GroupPostError::NoJudges) => return Err(RuntimeError::NoJudges),
            }
            self.take_call();
            moved = true;
            self.groups[index as usize].awaited = count as u32;
            self.metrics.counters.hot.reward_handoffs.add(count as u64);
            for place in 0..count {
                let id = self.members[place];
                let number = self.lives.get(id)?.descriptor;
                self.journal.record(EventKind::RewardPosted, id, number, 0);
            }
        }
        Ok(moved)
    }

    /// A verdict on a member of a group that is judged as one, or why there is none.
    pub(super) fn judged_together(
        &mut self,
        id: RolloutId,
        judge: u32,
        verdict: Result<Verdict, JudgeFailure>,
    ) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        let (index, number) = (life.group, life.descriptor);
        life.unscored = verdict.err().map(|failure| (judge, failure));
        match verdict {
            Ok(verdict) => {
                life.score = verdict.score;
                life.scorer = Some(self.rewards.scorer());
                self.journal.record(EventKind::RewardScored, id, number, verdict.score as u32);
            }
            Err(_) => self.metrics.counters.hot.verdicts_failed.add(1),
        }
        self.one_verdict_less(index)
    }

    /// One verdict less is awaited of the call that judges group `index`.
    pub(super) fn one_verdict_less(&mut self, index: u32) -> Result<(), RuntimeError> {
        let group = &mut self.groups[index as usize];
        group.awaited -= 1;
        if group.awaited == 0 { self.settle(index) } else { Ok(()) }
    }

    /// All verdicts of a call are there. Where one is missing the call has failed, and another judge gets all answers anew; if
    /// that may be no more, who has no verdict fails, and what the others have stands.
    fn settle(&mut self, index: u32) -> Result<(), RuntimeError> {
        let count = self.parked(index, false)?;
        let mut failed = None;
        for place in 0..count {
            failed = failed.or(self.lives.get(self.members[place])?.unscored);
        }
        if let Some((judge, _)) = failed {
            let group = &mut self.groups[index as usize];
            group.failed_calls += 1;
            if group.failed_calls <= self.options.judge_retries {
                group.avoid = Some(judge);
                for place in 0..count {
                    self.lives.get_mut(self.members[place])?.unscored = None;
                }
                self.call(index);
                return Ok(());
            }
        }
        // Of those that will have a trajectory.
        let mut scores = std::mem::take(&mut self.scores);
        scores.clear();
        for place in 0..count {
            let life = self.lives.get(self.members[place])?;
            scores.extend(life.unscored.is_none().then_some(life.score));
        }
        let statistics = GroupScore::statistics(scores.iter().copied());
        self.scores = scores;
        for place in 0..count {
            let id = self.members[place];
            let life = self.lives.get_mut(id)?;
            match life.unscored {
                Some((judge, failure)) => self.fail_judged(id, FailureReason::Judge { judge, failure })?,
                None => {
                    life.group_score = Some(GroupScore::of(life.score, statistics));
                    self.finish(id)?;
                }
            }
        }
        Ok(())
    }
}
