//! What is kept of a rollout, and its bytes.

use std::fmt;

use doorbell_contract::PREFIX_NONE;

use crate::rollout::RolloutId;

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// It used up its budget of tokens.
    Completed = 0,
    /// The device saw an end of sequence.
    Eos = 1,
    /// A judge, or a RESIDENT device, ended it by its score.
    Rejected = 2,
    /// It was stopped, and what it had is kept.
    Stopped = 3,
}

impl Outcome {
    /// All, in the order of their codes.
    pub const ALL: [Outcome; 4] = [Self::Completed, Self::Eos, Self::Rejected, Self::Stopped];

    /// Its name in tables and in Parquet.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Eos => "eos",
            Self::Rejected => "rejected",
            Self::Stopped => "stopped",
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A rollout that is to be stored: all of it but its tokens, which stay where the device put them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of the request that it answers.
    pub request: u64,
    /// Which answer to that request, from 0.
    pub member: u32,
    /// `rollout_id` of its descriptors; with the seed and the length of the prompt it names the tokens of engine 0.
    pub device_rollout: u32,
    /// `seed` of its descriptors.
    pub seed: u32,
    /// `prefix_id` of its descriptors; [`PREFIX_NONE`] if it has none (0 is a prefix like any other).
    pub prefix_id: u32,
    /// Hash of the prefix's tokens, or whatever else names it beyond this run; without meaning if there is none.
    pub prefix_hash: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub answer_tokens: u32,
    /// Last score, signed Q16.16.
    pub score: i32,
    /// Descriptors that it took: checkpoints passed, and one.
    pub segments: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Which token region has its tokens ([`Device::token_shard`](doorbell_host::Device::token_shard)).
    pub shard: u32,
    /// Where in that region they begin, in bytes.
    pub offset: u64,
}

/// A stored rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trajectory {
    /// Number of its record in the log, from 0.
    pub number: u64,
    /// What was said of it. `shard` and `offset` are not stored and read as 0, as they mean nothing any more.
    pub finished: Finished,
    /// The answer.
    pub tokens: Vec<u32>,
}

impl Trajectory {
    /// The score as a number.
    pub fn score(&self) -> f64 {
        f64::from(self.finished.score) / 65536.0
    }

    /// The prefix, if it has one: its id, and its hash.
    pub fn prefix(&self) -> Option<(u32, u64)> {
        (self.finished.prefix_id != PREFIX_NONE)
            .then_some((self.finished.prefix_id, self.finished.prefix_hash))
    }
}

/// Bytes of a payload before the tokens.
pub(super) const FIXED: usize = 64;

/// Appends the payload to `out`, little-endian: the fields at the offsets of `docs/trajectories.md`, then the tokens.
pub(super) fn encode(finished: &Finished, tokens: &[u32], out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(FIXED + 4 * tokens.len());
    for wide in [finished.rollout.to_bits(), finished.request, finished.prefix_hash] {
        out.extend_from_slice(&wide.to_le_bytes());
    }
    let narrow = [
        finished.member,
        finished.device_rollout,
        finished.seed,
        finished.prefix_id,
        finished.prompt_tokens,
        finished.answer_tokens,
        finished.score as u32,
        finished.segments,
        u32::from(finished.outcome as u8),
        0,
    ];
    for word in narrow {
        out.extend_from_slice(&word.to_le_bytes());
    }
    debug_assert_eq!(out.len() - start, FIXED);
    out.resize(start + FIXED + 4 * tokens.len(), 0);
    let (words, _) = out[start + FIXED..].as_chunks_mut::<4>();
    for (word, token) in words.iter_mut().zip(tokens) {
        *word = token.to_le_bytes();
    }
}

/// The reverse of [`encode`]; says what is wrong with a payload that no [`encode`] made.
pub(super) fn decode(number: u64, payload: &[u8]) -> Result<Trajectory, &'static str> {
    let (fixed, tokens) = payload.split_at_checked(FIXED).ok_or("it is shorter than its fixed fields")?;
    let wide = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&fixed[8 * index..8 * index + 8]);
        u64::from_le_bytes(bytes)
    };
    let narrow = |index: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&fixed[24 + 4 * index..28 + 4 * index]);
        u32::from_le_bytes(bytes)
    };
    let answer_tokens = narrow(5);
    if tokens.len() as u64 != 4 * u64::from(answer_tokens) {
        return Err("it does not hold as many tokens as it says");
    }
    let outcome = u8::try_from(narrow(8))
        .ok()
        .and_then(Outcome::from_code)
        .ok_or("its outcome is unknown to this version")?;
    let finished = Finished {
        rollout: RolloutId::from_bits(wide(0)),
        request: wide(1),
        prefix_hash: wide(2),
        member: narrow(0),
        device_rollout: narrow(1),
        seed: narrow(2),
        prefix_id: narrow(3),
        prompt_tokens: narrow(4),
        answer_tokens,
        score: narrow(6) as i32,
        segments: narrow(7),
        outcome,
        shard: 0,
        offset: 0,
    };
    let (words, _) = tokens.as_chunks::<4>();
    Ok(Trajectory { number, finished, tokens: words.iter().map(|word| u32::from_le_bytes(*word)).collect() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn finished()(
            (id, request, prefix_hash) in any::<(u64, u64, u64)>(),
            words in any::<[u32; 7]>(),
            outcome in 0usize..Outcome::ALL.len(),
        ) -> Finished {
            let [member, device_rollout, seed, prefix_id, prompt_tokens, score, segments] = words;
            Finished {
                rollout: RolloutId::from_bits(id), request, member, device_rollout, seed, prefix_id, prefix_hash,
                prompt_tokens, answer_tokens: 0, score: score as i32, segments, outcome: Outcome::ALL[outcome], shard: 0, offset: 0,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            finished in finished(),
            tokens in prop::collection::vec(any::<u32>(), 0..50),
            cut in 1usize..80,
        ) {
            let finished = Finished { answer_tokens: tokens.len() as u32, ..finished };
            let mut payload = vec![];
            encode(&finished, &tokens, &mut payload);
            let read = decode(9, &payload).unwrap();
            prop_assert_eq!(&read, &Trajectory { number: 9, finished, tokens });
            // Shorter or longer ones are told, never read.
            prop_assert!(decode(9, &payload[..payload.len().saturating_sub(cut)]).is_err());
            payload.push(0);
            prop_assert!(decode(9, &payload).is_err());
        }
    }

    #[test]
    fn an_unknown_outcome_is_told() {
        let mut payload = vec![0; FIXED];
        payload[56] = Outcome::ALL.len() as u8;
        assert_eq!(decode(0, &payload), Err("its outcome is unknown to this version"));
    }
}
