//! Reward model 0 of the contract.

use doorbell_engine::Digest;

use super::{Answer, Judge, JudgeError, Verdict};

/// Scores the digest of the whole answer, and lets go on what reaches the threshold: bit for bit what a device does with
/// a RESIDENT descriptor and this threshold in REWARD_THRESHOLD (docs/contract.md, "Engine 0").
///
/// A RESIDENT descriptor is the whole rollout, whereas the completion of a rollout that the host continues has the digest
/// of its segment alone. So the digest is folded over all tokens, not taken from the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestJudge {
    /// A lower score ends the rollout; Q16.16.
    pub threshold: i32,
}

impl Judge for DigestJudge {
    fn score(&mut self, answer: &Answer<'_>) -> Result<Verdict, JudgeError> {
        let score = digest_score(Digest::of(answer.tokens));
        Ok(Verdict { score, proceed: score >= self.threshold })
    }
}

/// The score of a digest, Q16.16 from 0 to below 1.
#[inline]
pub(crate) fn digest_score(digest: Digest) -> i32 {
    digest.score()
}
