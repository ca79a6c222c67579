//! Reward model 0 of the contract.

use doorbell_engine::Digest;

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

/// The score of a digest, Q16.16 from 0 to below 1.
#[inline]
pub(crate) fn digest_score(digest: Digest) -> i32 {
    digest.score()
}
