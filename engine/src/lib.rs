//! What runs behind DECODE, and what scores it: the seam between a device and its engines.
//!
//! A device checks descriptors, writes tokens, counts, and decides what ends a DECODE; of the tokens it knows only what
//! is here. An [`Engine`] is found by `model_id`. It says what it needs of the KV region ([`Engine::kv`]), and
//! [begins](Engine::begin) a rollout at the length at which its descriptor stands; the [`Decoder`] that this gives makes
//! one token a [step](Decoder::step). Nothing of a decoder outlives a *checkpoint*: a descriptor that continues the
//! rollout begins anew, from what descriptor and memory hold (R9). A [`RewardModel`] is found by `reward_model_id`, and
//! scores the [`Digest`] of the tokens so far.
//!
//! ```
//! use doorbell_contract::HwDesc;
//! use doorbell_engine::{Digest, Engine, RewardModel};
//!
//! let desc = HwDesc::decode(7, 100, 3).with_seed(1);
//! let engine = Engine::of(desc.model_id).expect("engine 0 is the hash policy");
//! let mut decoder = engine.begin(&desc, 0);
//! let mut digest = Digest::EMPTY;
//! for _ in 0..desc.max_tokens {
//!     digest.push(decoder.step().token);
//! }
//! let reward = RewardModel::of(desc.reward_model_id).expect("reward model 0 scores the digest");
//! assert!(reward.score(digest) < 0x1_0000, "Q16.16, in [0, 1)");
//! ```

#![no_std]

#[cfg(test)]
extern crate std;

mod hash;

use doorbell_contract::{DIGEST_INIT, DIGEST_PRIME, HwDesc};

/// A decode engine, by `model_id`.
///
/// An enumeration, so that a device's loop over tokens is compiled for each engine and calls nothing through a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// 0: the hash policy, whose tokens depend on (seed, rollout, position) alone.
    Hash,
}

/// What an engine needs of the KV region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvNeeds {
    /// Bytes for each token of a sequence.
    pub bytes_per_token: u64,
    /// Tokens in a block, the unit in which prefixes are shared; 0 for an engine that has none.
    pub block_tokens: u32,
}

impl Engine {
    /// Every engine; its place is its `model_id`.
    pub const ALL: [Self; 1] = [Self::Hash];

    /// The engine with this `model_id`; any other is BAD_MODEL.
    #[inline]
    pub const fn of(model_id: u16) -> Option<Self> {
        match model_id {
            0 => Some(Self::Hash),
            _ => None,
        }
    }

    /// What it needs of the KV region.
    pub const fn kv(self) -> KvNeeds {
        match self {
            Self::Hash => KvNeeds { bytes_per_token: 0, block_tokens: 0 },
        }
    }

    /// The rollout of `desc`, a DECODE, at its `seq_len`; a token ends the sequence with probability
    /// `eos_threshold` / 32768.
    #[inline]
    pub const fn begin(self, desc: &HwDesc, eos_threshold: u32) -> Decoder {
        match self {
            Self::Hash => {
                let stream = hash::Stream::new(desc.seed, desc.rollout_id);
                Decoder::Hash(hash::Decoder::new(stream, desc.seq_len, eos_threshold))
            }
        }
    }
}

/// A rollout that runs: the engine's state of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// Of the hash policy.
    #[doc(hidden)]
    Hash(hash::Decoder),
}

/// What a step gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The token.
    pub token: u32,
    /// Whether the sequence ends with it.
    pub eos: bool,
}

impl Decoder {
    /// The next token.
    #[inline]
    pub const fn step(&mut self) -> Step {
        match self {
            Self::Hash(decoder) => decoder.step(),
        }
    }
}

/// The digest of a descriptor's tokens: `result` of a DECODE, and what reward models see (FNV-1a over words).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u32);

impl Digest {
    /// Of no tokens.
    pub const EMPTY: Self = Self(DIGEST_INIT);

    /// Of `tokens`, in order.
    pub fn of(tokens: &[u32]) -> Self {
        let mut digest = Self::EMPTY;
        tokens.iter().for_each(|&token| digest.push(token));
        digest
    }

    /// Adds one token.
    #[inline]
    pub const fn push(&mut self, token: u32) {
        self.0 = (self.0 ^ token).wrapping_mul(DIGEST_PRIME);
    }

    /// As a completion has it.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// From a completion's `result`.
impl From<u32> for Digest {
    #[inline]
    fn from(value: u32) -> Self {
        Self(value)
    }
}

/// A reward model, by `reward_model_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewardModel {
    /// 0: folds the digest.
    Digest,
}

impl RewardModel {
    /// Every reward model; its place is its `reward_model_id`.
    pub const ALL: [Self; 1] = [Self::Digest];

    /// The reward model with this id; any other is BAD_MODEL where the device is to score (RESIDENT).
    #[inline]
    pub const fn of(reward_model_id: u16) -> Option<Self> {
        match reward_model_id {
            0 => Some(Self::Digest),
            _ => None,
        }
    }

    /// The score of the tokens with this digest, Q16.16; of reward model 0 in [0, 1).
    #[inline]
    pub const fn score(self, digest: Digest) -> u32 {
        match self {
            Self::Digest => (digest.0 >> 16) ^ (digest.0 & 0xFFFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::vec::Vec;

    #[test]
    fn ids_are_places_in_the_tables() {
        for id in 0..=u16::MAX {
            assert_eq!(Engine::of(id), Engine::ALL.get(usize::from(id)).copied());
            assert_eq!(RewardModel::of(id), RewardModel::ALL.get(usize::from(id)).copied());
        }
    }

    /// Computed by an independent program from the formulas of docs/contract.md.
    #[rstest]
    #[case([0x1B554, 0x1B2B1, 0x19228, 0xD170], 0x06B8_47BE, 0x4106)]
    #[case([0xAF37, 0x5FD3, 0x1A18B, 0x8B54], 0x5709_AC98, 0xFB91)]
    #[case([0x15E29, 0xCE72, 0xCDEC, 0xD832], 0x4C64_7308, 0x3F6C)]
    fn digest_and_score_known_answers(#[case] tokens: [u32; 4], #[case] digest: u32, #[case] score: u32) {
        assert_eq!(Digest::of(&tokens).value(), digest);
        assert_eq!(RewardModel::Digest.score(Digest::from(digest)), score);
    }

    #[rstest]
    fn r09_a_rollout_that_begins_anew_at_a_checkpoint_goes_on(#[values(0, 1, 7, 31, 32)] cut: u32) {
        let whole = HwDesc::decode(7, u32::MAX - 5, 32).with_seed(3);
        let steps = |desc: &HwDesc| -> Vec<Step> {
            let mut decoder = Engine::Hash.begin(desc, 600);
            (0..desc.max_tokens).map(|_| decoder.step()).collect()
        };
        let head = HwDesc { max_tokens: cut, ..whole };
        let tail =
            HwDesc { seq_len: whole.seq_len.wrapping_add(cut), max_tokens: whole.max_tokens - cut, ..whole };
        assert_eq!([steps(&head), steps(&tail)].concat(), steps(&whole));
    }
}
