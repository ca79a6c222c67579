//! The reward models of the contract, by judges of the host.

use doorbell_engine::{Digest, Ranges, RewardModel};

use super::{Answer, Judge, JudgeError, Verdict};

/// Scores the digest of the whole answer, and at a checkpoint lets go on what has had a score at or above the threshold since the
/// last one: bit for bit what a device does with a RESIDENT descriptor and this threshold in REWARD_THRESHOLD (R9).
///
/// A RESIDENT descriptor is the whole rollout, and its completion has the digest of all tokens. That of a rollout which the host
/// continues has the digest of its segment alone. So both digests are folded over tokens, not taken from the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestJudge {
    /// A lower score ends the rollout; Q16.16.
    pub threshold: i32,
}

impl Judge for DigestJudge {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        let since = digest_score(Digest::of(answer.segment()));
        Ok(Verdict { score: digest_score(Digest::of(answer.tokens)), proceed: since >= self.threshold })
    }
}

/// Counts the tokens of the whole answer that lie in ranges (reward model 1), and at a checkpoint lets go on what has had a score at or
/// above the threshold since the last one: what a device does that is asked by REWARD descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeJudge {
    /// The first and the last token of each range.
    pub ranges: Ranges,
    /// A lower score ends the rollout; Q16.16.
    pub threshold: i32,
}

impl Judge for RangeJudge {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        let score = |tokens: &[u32]| RewardModel::Ranges.score(tokens.iter().copied(), &self.ranges);
        Ok(Verdict { score: score(answer.tokens), proceed: score(answer.segment()) >= self.threshold })
    }
}

/// The score of a digest, Q16.16 from 0 to below 1.
#[inline]
pub(crate) fn digest_score(digest: Digest) -> i32 {
    digest.score()
}
