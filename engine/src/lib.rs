//! What runs behind DECODE, and what scores it: the seam between a device and its engines.
//!
//! A device checks descriptors, writes tokens, counts, and decides what ends a DECODE; of the tokens it knows only what
//! is here. An [`Engine`] is found by `model_id`. One whose tokens follow from the descriptor [begins](Engine::begin) a rollout at the
//! length at which its descriptor stands; the [`Decoder`] that this gives makes
//! one token a [step](Decoder::step). The language model's follow from memory too: its steps are crate `doorbell-lm`'s, and whoever has memory makes a [`Step`] of each. Nothing of a decoder outlives a *checkpoint*: a descriptor that continues the
//! rollout begins anew, from what descriptor and memory hold (R9). A [`RewardModel`] is found by `reward_model_id`, and
//! scores tokens; number 0 their [`Digest`] alone.
//!
//! ```
//! use doorbell_contract::HwDesc;
//! use doorbell_engine::{Digest, Engine};
//!
//! let desc = HwDesc::decode(7, 100, 3).with_seed(1);
//! let engine = Engine::of(desc.model_id).expect("engine 0 is the hash policy");
//! let mut decoder = engine.begin(&desc, 0, 0).expect("it needs the descriptor alone");
//! let mut digest = Digest::EMPTY;
//! for _ in 0..desc.max_tokens {
//!     digest.push(decoder.step().token);
//! }
//! assert!((0..0x1_0000).contains(&digest.score()), "Q16.16, in [0, 1)");
//! ```

#![no_std]

#[cfg(test)]
extern crate std;

mod hash;

use doorbell_contract::{DIGEST_INIT, DIGEST_PRIME, HwDesc, RANGES};

/// A decode engine, by `model_id`.
///
/// An enumeration, so that a device's loop over tokens is compiled for each engine and calls nothing through a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// 0: the hash policy, whose tokens depend on (salt, seed, rollout, position) alone.
    Hash,
    /// 1: a language model, whose weights and sequences lie in memory (R25 to R27).
    Language,
}

impl Engine {
    /// Every engine; its place is its `model_id`.
    pub const ALL: [Self; 2] = [Self::Hash, Self::Language];

    /// The engine with this `model_id`; any other is BAD_MODEL.
    #[inline]
    pub const fn of(model_id: u16) -> Option<Self> {
        match model_id {
            0 => Some(Self::Hash),
            1 => Some(Self::Language),
            _ => None,
        }
    }

    /// The rollout of `desc`, a DECODE, at its `seq_len`, under the version with this `salt` (R18); a token ends the sequence with
    /// probability `eos_threshold` / 32768. `None` of an engine whose tokens do not follow from that.
    #[inline]
    pub const fn begin(self, desc: &HwDesc, salt: u32, eos_threshold: u32) -> Option<Decoder> {
        match self {
            Self::Hash => {
                let stream = hash::Stream::new(desc.seed, desc.rollout_id, salt);
                Some(Decoder::Hash(hash::Decoder::new(stream, desc.seq_len, eos_threshold)))
            }
            Self::Language => None,
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
    /// Its log-probability, Q16.16.
    pub logp: i32,
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

    /// The score that reward model 0 gives to the tokens with this digest, Q16.16 in [0, 1): what RESIDENT goes by (R9).
    #[inline]
    pub const fn score(self) -> i32 {
        ((self.0 >> 16) ^ (self.0 & 0xFFFF)) as i32
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
    /// 1: counts the tokens that lie in ranges.
    Ranges,
}

/// The ranges of reward model 1: the first and the last token of each; one whose last is below its first is empty.
pub type Ranges = [(u32, u32); RANGES as usize];

/// No ranges.
pub const NO_RANGES: Ranges = [(u32::MAX, 0); RANGES as usize];

impl RewardModel {
    /// Every reward model; its place is its `reward_model_id`.
    pub const ALL: [Self; 2] = [Self::Digest, Self::Ranges];

    /// The reward model with this id; any other is BAD_MODEL where the device is to score.
    #[inline]
    pub const fn of(reward_model_id: u16) -> Option<Self> {
        match reward_model_id {
            0 => Some(Self::Digest),
            1 => Some(Self::Ranges),
            _ => None,
        }
    }

    /// Whether RESIDENT rollouts may be scored by it.
    #[inline]
    pub const fn is_resident(self) -> bool {
        matches!(self, Self::Digest)
    }

    /// The score of `tokens`, Q16.16.
    pub fn score(self, tokens: impl IntoIterator<Item = u32>, ranges: &Ranges) -> i32 {
        let mut scoring = self.begin();
        tokens.into_iter().for_each(|token| scoring.push(token, ranges));
        scoring.score()
    }

    /// The same, token by token.
    #[inline]
    pub const fn begin(self) -> Scoring {
        Scoring { model: self, digest: Digest::EMPTY, hits: 0 }
    }
}

/// What a reward model has seen so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scoring {
    model: RewardModel,
    digest: Digest,
    hits: u32,
}

impl Scoring {
    /// Takes the next token.
    #[inline]
    pub fn push(&mut self, token: u32, ranges: &Ranges) {
        match self.model {
            RewardModel::Digest => self.digest.push(token),
            RewardModel::Ranges => {
                self.hits += u32::from(ranges.iter().any(|&(lo, hi)| (lo..=hi).contains(&token)));
            }
        }
    }

    /// The score of all of them, Q16.16.
    #[inline]
    pub const fn score(self) -> i32 {
        match self.model {
            RewardModel::Digest => self.digest.score(),
            RewardModel::Ranges if self.hits < 1 << 15 => (self.hits << 16) as i32,
            RewardModel::Ranges => i32::MAX,
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
    fn digest_and_score_known_answers(#[case] tokens: [u32; 4], #[case] digest: u32, #[case] score: i32) {
        assert_eq!(Digest::of(&tokens).value(), digest);
        assert_eq!(Digest::from(digest).score(), score);
        assert_eq!(RewardModel::Digest.score(tokens, &NO_RANGES), score);
    }

    #[rstest]
    #[case::none(NO_RANGES, 4, 0)]
    #[case::one_token([(5, 5); 16], 10, 0x1_0000)]
    #[case::once_however_many_hold_it([(0, 7); 16], 10, 8 * 0x1_0000)]
    #[case::empty([(7, 6); 16], 10, 0)]
    #[case::all([(0, u32::MAX); 16], 0x7FFF, 0x7FFF_0000)]
    #[case::saturates([(0, u32::MAX); 16], 0x8000, 0x7FFF_FFFF)]
    fn ranges_score(#[case] ranges: Ranges, #[case] tokens: u32, #[case] score: i32) {
        assert_eq!(RewardModel::Ranges.score(0..tokens, &ranges), score);
    }

    #[rstest]
    fn each_range_counts(#[values(0, 7, 15)] k: usize) {
        let mut ranges = NO_RANGES;
        ranges[k] = (100, 200);
        assert_eq!(RewardModel::Ranges.score([99, 100, 200, 201], &ranges), 2 << 16);
    }

    #[rstest]
    fn r09_a_rollout_that_begins_anew_at_a_checkpoint_goes_on(#[values(0, 1, 7, 31, 32)] cut: u32) {
        let whole = HwDesc::decode(7, u32::MAX - 5, 32).with_seed(3);
        let steps = |desc: &HwDesc| -> Vec<Step> {
            let mut decoder = Engine::Hash.begin(desc, 9, 600).unwrap();
            (0..desc.max_tokens).map(|_| decoder.step()).collect()
        };
        let head = HwDesc { max_tokens: cut, ..whole };
        let tail =
            HwDesc { seq_len: whole.seq_len.wrapping_add(cut), max_tokens: whole.max_tokens - cut, ..whole };
        assert_eq!([steps(&head), steps(&tail)].concat(), steps(&whole));
    }
}
