//! Scores rollouts, on threads of their own.
//!
//! The hot thread posts a [`Request`] for each answer that reached a checkpoint or its end to a [`Pool`] of [`Judge`]s,
//! and later collects what was [`Judged`]. Neither waits for the other: a slow judge delays its own verdicts only. See
//! `docs/rewards.md`.

mod desk;
mod device;
mod digest;
mod keeper;
mod number;
mod pool;
mod prompts;
mod rules;
mod slow;
mod text;
mod tickets;

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use doorbell_contract::ErrorCode;

use crate::rollout::RolloutId;

pub(crate) use desk::{Desk, Factory, Faults};
pub(crate) use device::NAMES;
pub use device::{DeviceRewards, QueueRewards, Scale};
pub(crate) use digest::digest_score;
pub use digest::{DigestJudge, RangeJudge};
pub use pool::{GroupPostError, Load, Loads, Pool, PoolError, PoolOptions, PostError, Shutdown};
pub use prompts::{AnswerMemory, Prompts};
pub use rules::{RuleJudge, Rules, RulesError};
pub use slow::SlowJudge;
pub use text::Texts;
pub use tickets::{Ticket, Tickets};

/// 1.0 as a score, Q16.16.
pub const ONE: i32 = 1 << 16;

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

/// Who has given a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scorer {
    /// A judge of the host.
    Host = 1,
    /// The device, at a checkpoint of its own (RESIDENT).
    Resident = 2,
    /// The device, asked by a REWARD descriptor.
    Device = 3,
}

impl Scorer {
    /// All.
    pub const ALL: [Scorer; 3] = [Scorer::Host, Scorer::Resident, Scorer::Device];

    /// Its name in tables and in Parquet.
    pub const fn name(self) -> &'static str {
        match self {
            Scorer::Host => "host",
            Scorer::Resident => "resident",
            Scorer::Device => "device",
        }
    }
}

/// An answer as far as it goes.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of the request that it answers.
    pub request: u64,
    /// Which answer to that request, from 0.
    pub member: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// What names them: the ids of the prompt's blocks of 512 tokens, as the request has them; empty if it has none.
    pub prompt: &'a [u32],
    /// All tokens of the answer so far.
    pub tokens: &'a [u32],
    /// Which of them are new since the last time.
    pub segment: Range<usize>,
    /// When it is judged.
    pub moment: Moment,
    /// `result` of the completion: the device's digest of its descriptor's tokens, which end the segment, and mostly are all of it.
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
    /// The score, signed Q16.16: 65536 is 1, -65536 is -1.
    pub score: i32,
    /// Whether the rollout goes on. Without meaning at the end.
    pub proceed: bool,
}

/// Why a judge has no verdict on an answer: its own words, for the report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JudgeError(String);

impl JudgeError {
    /// With `reason` as the text.
    pub fn new(reason: impl Display) -> JudgeError {
        JudgeError(reason.to_string())
    }
}

/// Scores answers. Each judge belongs to one thread; what judges share, they have to share themselves.
pub trait Judge: Send {
    /// Scores one answer. It may take its time, up to the [deadline](PoolOptions::deadline).
    ///
    /// After a panic the judge is dropped and another one made in its place; the answer is given to another judge.
    ///
    /// If a rollout was aborted meanwhile, its answer may hold tokens of another rollout; the verdict is then dropped.
    ///
    /// # Errors
    /// What kept it from a verdict: the answer is given to another judge.
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError>;

    /// Most answers that it takes at a time; it gets as many as wait. The deadline is for all of them together. A group that is
    /// judged as one comes as a whole and by itself, whatever this returns. Asked once, when the judge is made.
    fn batch(&self) -> usize {
        1
    }

    /// Scores several answers: appends a verdict for each to `verdicts`, in their order. Those that it does not give
    /// fail; each answer that failed is judged once more, alone and by another judge.
    fn score_batch(&mut self, answers: &[Answer<'_>], verdicts: &mut Vec<Result<Verdict, JudgeError>>) {
        for answer in answers {
            verdicts.push(self.score(answer));
        }
    }
}

impl<J: Judge + ?Sized> Judge for Box<J> {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        (**self).score(answer)
    }

    fn batch(&self) -> usize {
        (**self).batch()
    }

    fn score_batch(&mut self, answers: &[Answer<'_>], verdicts: &mut Vec<Result<Verdict, JudgeError>>) {
        (**self).score_batch(answers, verdicts);
    }
}

/// An answer for a judge, without its tokens, which stay where the device put them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request ([`Tickets`]).
    pub ticket: Ticket,
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of the request that it answers.
    pub request: u64,
    /// Which answer to that request, from 0.
    pub member: u32,
    /// `rollout_id` of its descriptors.
    pub device_rollout: u32,
    /// `prefix_id` of its descriptors: with their `rollout_id` it says where they go.
    pub prefix_id: u32,
    /// Place of the group among the [`Prompts`].
    pub group: u32,
    /// Ids of the prompt that lie there.
    pub prompt_ids: u32,
    /// Which token region has its tokens ([`Device::token_shard`](doorbell_host::Device::token_shard)).
    pub shard: u32,
    /// Where in that region the answer begins, in bytes.
    pub offset: u64,
    /// Tokens of the answer so far.
    pub answer_tokens: u32,
    /// Those of them that were judged before.
    pub segment_start: u32,
    /// Those of them that the completion does not tell of: more than were judged before, if the last segment took several
    /// descriptors, as it does where a version was superseded (R20).
    pub digest_start: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Whether the prompt was scored: then the log-probabilities of its tokens lie where its PREFILL has left them.
    pub scored: bool,
    /// When it is judged.
    pub moment: Moment,
    /// `result` of the completion.
    pub digest: u32,
    /// The judge that failed at it, which should not get it again while there is another one. It is then also judged by itself.
    pub avoid: Option<u32>,
    /// Answers that are judged in one call: for the first of a group that is posted as one, their number; for the others of it,
    /// 0. 1 is an answer by itself.
    pub together: u32,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The request's ticket: a verdict that is not awaited any more is to be dropped.
    pub ticket: Ticket,
    /// The rollout.
    pub rollout: RolloutId,
    /// Which judge had it.
    pub judge: u32,
    /// The verdict.
    pub verdict: Result<Verdict, JudgeFailure>,
}

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum JudgeFailure {
    /// The judge panicked at it, or at the batch that it was in.
    #[error("its judge panicked")]
    Panicked,
    /// The judge said that it has no verdict.
    #[error("its judge answered with an error")]
    Error,
    /// The judge did not come to its end in time.
    #[error("its judge missed the deadline")]
    Deadline,
    /// The judge gave fewer verdicts than its batch had answers.
    #[error("its judge gave no verdict for it")]
    Missing,
    /// There is no such token region or prompt, or the answer does not lie in it.
    #[error("its tokens cannot be read: shard, offset or length lie outside the token regions")]
    Tokens,
    /// The segment's tokens do not have the digest in the completion.
    #[error("its tokens are not those that the device completed: the digest differs")]
    Digest,
    /// The judge is gone, and none could be made in its place.
    #[error("its judge is gone")]
    Gone,
    /// The device completed its REWARD as ERROR.
    #[error("the device refused its REWARD with {}", code_name(*error))]
    Device {
        /// The error code.
        error: u8,
    },
}

fn code_name(error: u8) -> &'static str {
    ErrorCode::try_from(error).map_or("an unknown code", ErrorCode::name)
}

/// What happened to a judge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeFault {
    /// It panicked, and another one took its place.
    #[error("judge {judge} panicked at request {request}, member {member}: {message}")]
    Panicked {
        /// Which.
        judge: u32,
        /// At the answer to which request.
        request: u64,
        /// Which answer to it.
        member: u32,
        /// What it said.
        message: String,
    },
    /// It answered with an error.
    #[error("judge {judge} has no verdict on request {request}, member {member}: {message}")]
    Error {
        /// Which.
        judge: u32,
        /// On the answer to which request.
        request: u64,
        /// Which answer to it.
        member: u32,
        /// What it said.
        message: String,
    },
    /// It panicked, and so did whoever was to make another one.
    #[error("judge {judge} is gone: making another one panicked: {message}")]
    NotMade {
        /// Which.
        judge: u32,
        /// What was said.
        message: String,
    },
    /// Its thread panicked outside a call that scores, for example while it dropped the payload of a panic. What was given to it goes to
    /// another judge.
    #[error("judge {judge} is gone: its thread panicked outside an answer: {message}")]
    Died {
        /// Which.
        judge: u32,
        /// What was said.
        message: String,
    },
    /// It was to be made, and that took too long.
    #[error(
        "judge {judge} is gone: making it took more than {limit:?} (PoolOptions::making); look at what the factory waits for"
    )]
    NotMadeInTime {
        /// Which.
        judge: u32,
        /// How long it might have taken.
        limit: Duration,
    },
    /// It missed the deadline, and was left behind.
    #[error("judge {judge} was at an answer for more than {deadline:?} and was left behind; {}",
        if *replaced { "another one took its place" } else { "no other could be started in its place (PoolOptions::replacements, or a factory that hangs)" })]
    Hung {
        /// Which.
        judge: u32,
        /// How long it might have taken.
        deadline: Duration,
        /// Whether another one took its place.
        replaced: bool,
    },
    /// It did not come to the end of an answer when all was over, and was left behind.
    #[error("judge {judge} was still at an answer after {patience:?}")]
    Stuck {
        /// Which.
        judge: u32,
        /// How long it was waited for.
        patience: Duration,
    },
}
