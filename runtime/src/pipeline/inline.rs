//! Judging on the hot thread.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_host::TokenRegion;

use super::RewardStage;
use crate::reward::{self, Judge, JudgeFailure, Judged, Request, Shutdown};

/// A judge that needs no thread: it scores where the answer is posted. For judges that take less time than a hand-over,
/// and to tell what the hand-over costs.
pub struct Inline<J> {
    judge: J,
    regions: Vec<TokenRegion>,
    tokens: Vec<u32>,
    judged: VecDeque<Judged>,
    capacity: usize,
}

impl<J: Judge> Inline<J> {
    /// `judge` over the device's token regions, for `slots` slots and answers of at most `longest` tokens; longer ones
    /// are judged too, but take memory when they come.
    pub fn new(judge: J, regions: Vec<TokenRegion>, slots: u32, longest: u32) -> Inline<J> {
        let capacity = slots as usize;
        Inline {
            judge,
            regions,
            tokens: vec![0; longest as usize],
            judged: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    fn verdict(&mut self, request: &Request) -> Result<reward::Verdict, JudgeFailure> {
        let region = self.regions.get(request.shard as usize).ok_or(JudgeFailure::Tokens)?;
        let answer = request.read(region, &mut self.tokens)?;
        Ok(self.judge.score(&answer))
    }
}

impl<J: Judge> RewardStage for Inline<J> {
    fn post(&mut self, request: Request) -> Result<(), reward::PostError> {
        if self.judged.len() == self.capacity {
            return Err(reward::PostError::Full(request));
        }
        let verdict = self.verdict(&request);
        self.judged.push_back(Judged { ticket: request.ticket, rollout: request.rollout, judge: 0, verdict });
        Ok(())
    }

    fn collect(&mut self, out: &mut [Judged]) -> usize {
        let count = out.len().min(self.judged.len());
        for (out, judged) in out.iter_mut().zip(self.judged.drain(..count)) {
            *out = judged;
        }
        count
    }

    fn pending(&self) -> usize {
        self.judged.len()
    }

    fn shutdown(self: Box<Self>, _: Duration) -> Shutdown {
        Shutdown { uncollected: self.judged.len(), ..Shutdown::default() }
    }
}
