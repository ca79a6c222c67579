//! Rollouts that fail, and those that leave no trajectory.

use std::fmt;

use doorbell_contract::ErrorCode;

use crate::reward::JudgeFailure;
use crate::rollout::RolloutId;

/// Why a rollout failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// No judge gave a verdict on its answer; this is how the last one failed.
    Judge {
        /// Number of the judge.
        judge: u32,
        /// What it failed of.
        failure: JudgeFailure,
    },
    /// The device completed its descriptor, or its group's PREFILL, as ERROR.
    Device {
        /// The error code.
        error: u8,
    },
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureReason::Judge { judge, failure } => write!(f, "no verdict from judge {judge}: {failure}"),
            FailureReason::Device { error } => {
                let code = ErrorCode::try_from(*error).map_or("an unknown code", ErrorCode::name);
                write!(f, "the device refused its descriptor with {code}")
            }
        }
    }
}

/// Why a rollout has no trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unstored {
    /// It was ended by request.
    Aborted,
    /// It failed.
    Failed(FailureReason),
    /// It was dropped: its oldest tokens come from a version of the policy that lies so many versions back (R22).
    Stale(u64),
}

/// A rollout that has ended without a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lost {
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of its request.
    pub request: u64,
    /// Which answer to that request, from 0.
    pub member: u32,
    /// Why.
    pub why: Unstored,
}

/// What a rollout that has ended without a trajectory has come to. It lies where it is until
/// [`TrajectoryStage::lost`](super::TrajectoryStage::lost) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partial {
    /// Tokens of its answer.
    pub answer_tokens: u32,
    /// Versions of the policy that they come from: so many spans lie in its slot of the [`Spans`](crate::trajectory::Spans).
    pub spans: u32,
    /// Whether log-probabilities lie beside its tokens.
    pub has_logprobs: bool,
    /// Which token region has its tokens.
    pub shard: u32,
    /// Where in that region they begin, in bytes.
    pub offset: u64,
    /// Names the prompt of its group in [`Options::prompt_offset`](super::Options::prompt_offset), and how many tokens that has.
    pub group: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Whether log-probabilities of the prompt's tokens lie there too: they were to be scored, and its PREFILL has ended as DONE.
    pub scored: bool,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}, member {}: ", self.request, self.member)?;
        match self.why {
            Unstored::Aborted => f.write_str("aborted"),
            Unstored::Failed(reason) => reason.fmt(f),
            Unstored::Stale(staleness) => write!(f, "its oldest tokens are {staleness} versions old (R22)"),
        }
    }
}
