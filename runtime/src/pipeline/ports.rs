//! What the hot thread hands work to and takes it back from: no side ever waits for the other.

use std::time::Duration;

use doorbell_contract::{HwCompletion, HwDesc};

use super::failure::{Lost, Partial};
use super::{Judging, RuntimeError};
use crate::reward::{self, Judged, Request, Scorer, Shutdown, Ticket};
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
    ///
    /// # Errors
    /// What keeps it from ever judging again.
    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError>;

    /// Answers that were posted and not collected.
    fn pending(&self) -> usize;

    /// How long one answer may be with a judge, before another gets it or its rollout fails. None where nothing ends that: then
    /// [`Options::patience`](super::Options::patience) ends the run.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// The judge that has been at an answer for longest; none where no answer is pending, or nobody is known to have it. For the report of a
    /// pipeline in which nothing moves.
    fn slowest(&self) -> Option<Judging> {
        None
    }

    /// Ends what runs beside the hot thread, waiting for at most `patience`.
    fn shutdown(self: Box<Self>, patience: Duration) -> Shutdown;

    /// Who gives the scores.
    fn scorer(&self) -> Scorer {
        Scorer::Host
    }

    /// The next descriptor that is to be submitted to the queue pair of its rollout; its `user_data` is a name below 2^60 for
    /// [`completed`](Self::completed). None of a stage that needs no device.
    fn descriptor(&mut self) -> Option<HwDesc> {
        None
    }

    /// Takes the completion of the descriptor of that name; which rollout's it was, and for which ticket.
    ///
    /// # Errors
    /// What is wrong with a completion that nobody asked for (R3).
    fn completed(
        &mut self,
        name: u64,
        completion: &HwCompletion,
    ) -> Result<(RolloutId, Ticket), &'static str> {
        let _ = (name, completion);
        Err("no REWARD is in flight")
    }

    /// Whether an answer may be posted as soon as the DECODE that ends it was made, as what is sent for it is behind that
    /// in the order of the rollout (R5).
    fn follows(&self) -> bool {
        false
    }

    /// The first completion of its descriptors that was an ERROR.
    fn first_refused(&self) -> Option<&HwCompletion> {
        None
    }
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
    /// group hears of each of them, once. What it has come to may be read during the call.
    fn lost(&mut self, _: Lost, _: Partial) {}

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
