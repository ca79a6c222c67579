//! Scores of rollouts, by threads of their own.
//!
//! The hot thread posts a [`Request`] for each answer that reached a checkpoint or its end to a [`Pool`] of [`Judge`]s,
//! and later collects what was [`Judged`]. Neither waits for the other: a slow judge delays its own verdicts only. See
//! `docs/rewards.md`.

mod digest;
mod pool;
mod rules;
mod slow;
mod tickets;

use std::ops::Range;

use crate::rollout::RolloutId;

pub use digest::DigestJudge;
pub use pool::{
    JudgeFailure, JudgeFault, Judged, Load, Loads, Pool, PoolError, PoolOptions, PostError, Request, Shutdown,
};
pub use rules::{Check, Rule, RuleJudge, Rules, RulesError};
pub use slow::SlowJudge;
pub use tickets::{Ticket, Tickets};

/// 1.0 as a score, Q16.16.
pub const ONE: u32 = 1 << 16;

/// When an answer is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It can go on: its descriptor completed as REWARD_NEEDED (R9).
    Checkpoint,
    /// It has come to its end. `eos` says whether the device saw an end of sequence; else the budget was used up.
    End {
        /// Flag EOS of the completion.
        eos: bool,
    },
}

/// An answer as far as it goes.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of the request that it answers.
    pub request: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// All tokens of the answer so far.
    pub tokens: &'a [u32],
    /// Which of them are new since the last time.
    pub segment: Range<usize>,
    /// When it is judged.
    pub moment: Moment,
    /// `result` of the completion: the device's digest of its descriptor's tokens, which the segment is.
    pub digest: u32,
}

impl<'a> Answer<'a> {
    /// The tokens that are new since the last time.
    pub fn segment(&self) -> &'a [u32] {
        &self.tokens[self.segment.clone()]
    }
}

/// What a judge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The score, Q16.16: 65536 is 1.
    pub score: u32,
    /// Whether the rollout goes on. Without meaning at the end.
    pub proceed: bool,
}

/// Scores answers. Each judge belongs to one thread; what judges share, they have to share themselves.
pub trait Judge: Send {
    /// Scores one answer. It may take its time. A panic retires the judge and fails the answers that it has, and nothing
    /// else.
    ///
    /// The answer of a rollout that was aborted meanwhile may hold tokens of another one; the verdict is dropped then.
    fn score(&mut self, answer: &Answer<'_>) -> Verdict;
}

impl<J: Judge + ?Sized> Judge for Box<J> {
    fn score(&mut self, answer: &Answer<'_>) -> Verdict {
        (**self).score(answer)
    }
}
