//! Judging on the hot thread.

use std::collections::VecDeque;
use std::time::Duration;

use super::{RewardStage, RuntimeError};
use crate::reward::{
    self, AnswerMemory, Desk, Factory, Faults, Judge, JudgeFailure, Judged, Request, Shutdown, Verdict,
};

/// A judge that needs no thread: it scores where the answer is posted. For judges that take less time than a hand-over,
/// and to tell what the hand-over costs. No deadline can be kept here: while it judges, nothing else moves.
pub struct Inline<J> {
    desk: Desk<J>,
    faults: Faults,
    judged: VecDeque<Judged>,
    /// Verdicts of the group at hand.
    verdicts: Vec<Result<Verdict, JudgeFailure>>,
    capacity: usize,
}

impl<J: Judge> Inline<J> {
    /// The judge that `factory` makes, given 0, over answers in `memory`, for `slots` slots and answers of at most
    /// `longest` tokens; longer ones are judged too, but take memory when they come. `factory` is kept, to make another
    /// one when it panics.
    pub fn new(
        memory: AnswerMemory,
        slots: u32,
        longest: u32,
        factory: impl FnMut(usize) -> J + Send + 'static,
    ) -> Inline<J> {
        let (capacity, faults) = (slots as usize, Faults::default());
        let desk = Desk::new(0, Factory::new(factory), memory, longest as usize, false, faults.clone());
        let judged = VecDeque::with_capacity(capacity);
        Inline { desk, faults, judged, verdicts: Vec::with_capacity(capacity), capacity }
    }
}

impl<J: Judge> RewardStage for Inline<J> {
    fn post(&mut self, request: Request) -> Result<(), reward::PostError> {
        if self.judged.len() == self.capacity {
            return Err(reward::PostError::Full(request));
        }
        if self.desk.is_empty() {
            return Err(reward::PostError::NoJudges(request));
        }
        let verdict = self.desk.judge(&request);
        self.judged.push_back(Judged { ticket: request.ticket, rollout: request.rollout, judge: 0, verdict });
        Ok(())
    }

    fn post_group(&mut self, requests: &[Request]) -> Result<(), reward::GroupPostError> {
        if self.judged.len() + requests.len() > self.capacity {
            return Err(reward::GroupPostError::Full);
        }
        if self.desk.is_empty() {
            return Err(reward::GroupPostError::NoJudges);
        }
        self.desk.judge_batch(requests, &mut self.verdicts);
        self.judged.extend(requests.iter().zip(&self.verdicts).map(|(request, &verdict)| Judged {
            ticket: request.ticket,
            rollout: request.rollout,
            judge: 0,
            verdict,
        }));
        Ok(())
    }

    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError> {
        let count = out.len().min(self.judged.len());
        for (out, judged) in out.iter_mut().zip(self.judged.drain(..count)) {
            *out = judged;
        }
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.judged.len()
    }

    fn shutdown(self: Box<Self>, _: Duration) -> Shutdown {
        let (faults, more_faults) = self.faults.take();
        Shutdown { faults, more_faults, uncollected: self.judged.len(), ..Shutdown::default() }
    }
}
