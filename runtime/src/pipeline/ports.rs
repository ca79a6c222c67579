//! What the hot thread hands work to and takes it back from: no side ever waits for the other.

use std::time::Duration;

use super::failure::Lost;
use crate::reward::{self, Judged, Request, Shutdown};
use crate::rollout::RolloutId;
use crate::trajectory::{self, Finished, Stored, WriterError};

/// Where answers are scored: a [`Pool`](reward::Pool) of threads, or something in its place.
pub trait RewardStage: Send {
    /// Hands an answer over.
    ///
    /// # Errors
    /// The request, if there is no room for it now, or no judge any more.
    fn post(&mut self, request: Request) -> Result<(), reward::PostError>;

    /// Hands the answers of a group over, all of them or none: one judge gets them, in one call and in this order
    /// ([`Judge::score_batch`](reward::Judge::score_batch)). Whom the first is to [avoid](Request::avoid), all are.
    ///
    /// # Errors
    /// If there is no room for all of them now, or no judge any more.
    fn post_group(&mut self, requests: &[Request]) -> Result<(), reward::GroupPostError>;

    /// Takes what has been judged since, in any order, as much as fits, and returns how many.
    fn collect(&mut self, out: &mut [Judged]) -> usize;

    /// Answers that were posted and not collected.
    fn pending(&self) -> usize;

    /// Ends what runs beside the hot thread, waiting for at most `patience`.
    fn shutdown(self: Box<Self>, patience: Duration) -> Shutdown;
}

/// Where trajectories are stored: the hot thread's end of a [writer](trajectory::WriterHandle), or something in its place.
pub trait TrajectoryStage: Send {
    /// Hands a finished rollout over.
    ///
    /// # Errors
    /// The record, if there is no room for it now, or the writer has failed.
    fn post(&mut self, finished: Finished) -> Result<(), trajectory::PostError>;

    /// Takes the ids of what has been stored since, as many as fit, and returns how many.
    fn stored(&mut self, out: &mut [RolloutId]) -> usize;

    /// A rollout has ended that will never be posted: it was aborted, or it failed. So whoever waits for the members of a
    /// group hears of each of them, once.
    fn lost(&mut self, _: Lost) {}

    /// Whether nothing more will be stored.
    fn has_failed(&self) -> bool;

    /// Waits until all is stored, and says how it went.
    ///
    /// # Errors
    /// What the writer failed of.
    fn finish(self: Box<Self>) -> Result<Stored, WriterError>;
}

/// Stores nothing: each rollout comes back at once.
#[derive(Debug)]
pub struct Discard {
    waiting: std::collections::VecDeque<RolloutId>,
    sum: Stored,
}

impl Discard {
    /// For `slots` slots.
    pub fn new(slots: u32) -> Discard {
        Discard { waiting: std::collections::VecDeque::with_capacity(slots as usize), sum: Stored::default() }
    }
}

impl TrajectoryStage for Discard {
    #[inline]
    fn post(&mut self, finished: Finished) -> Result<(), trajectory::PostError> {
        self.waiting.push_back(finished.rollout);
        self.sum.trajectories += 1;
        self.sum.tokens += u64::from(finished.answer_tokens);
        Ok(())
    }

    #[inline]
    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        let count = out.len().min(self.waiting.len());
        for (out, id) in out.iter_mut().zip(self.waiting.drain(..count)) {
            *out = id;
        }
        count
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        Ok(self.sum)
    }
}
