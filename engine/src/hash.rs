//! Engine 0, the hash policy: tokens and end of sequence (docs/contract.md, "Engine 0").
//!
//! Everything is `u32` arithmetic modulo 2^32, and a token depends on (salt, seed, rollout, position) alone, so every
//! device can compute it, in any order, and a rollout that is cut at checkpoints yields the tokens of an uncut one.

use crate::Step;
use doorbell_contract::{GOLDEN, VOCAB_BITS, mix};

/// One rollout's stream of tokens under one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    base: u32,
}

impl Stream {
    /// The stream of `rollout_id` under `seed` and a version's `salt` (R18).
    #[inline]
    pub const fn new(seed: u32, rollout_id: u32, salt: u32) -> Self {
        Self { base: mix((seed ^ mix(rollout_id.wrapping_add(GOLDEN))).wrapping_add(salt)) }
    }

    /// What the policy draws at `position` (prompt included: the first token of a descriptor is at its `seq_len`).
    #[inline]
    pub const fn at(self, position: u32) -> Draw {
        Draw(mix(self.base.wrapping_add(position.wrapping_mul(GOLDEN))))
    }
}

/// One draw of the policy: a token, and whether the sequence ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw(u32);

impl Draw {
    /// The token, below 2^[`VOCAB_BITS`].
    #[inline]
    pub const fn token(self) -> u32 {
        self.0 & ((1 << VOCAB_BITS) - 1)
    }

    /// Whether this token ends the sequence, with probability `threshold` / 32768.
    #[inline]
    pub const fn is_eos(self, threshold: u32) -> bool {
        self.0 >> VOCAB_BITS < threshold
    }

    /// The token's log-probability, Q16.16 in (-16, 0].
    #[inline]
    pub const fn logp(self) -> i32 {
        -((self.0 >> 12) as i32)
    }
}

/// A rollout under the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder {
    stream: Stream,
    position: u32,
    eos_threshold: u32,
}

impl Decoder {
    #[inline]
    pub(crate) const fn new(stream: Stream, position: u32, eos_threshold: u32) -> Self {
        Self { stream, position, eos_threshold }
    }

    #[inline]
    pub(crate) const fn step(&mut self) -> Step {
        let draw = self.stream.at(self.position);
        self.position = self.position.wrapping_add(1);
        Step { token: draw.token(), eos: draw.is_eos(self.eos_threshold), logp: draw.logp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, 0)]
    #[case(1, 0x6889_90C0)]
    #[case(2, 0xD113_2181)]
    #[case(0x1234_5678, 0xF5E7_1C96)]
    #[case(0xFFFF_FFFF, 0x6768_824A)]
    fn mix_known_answers(#[case] x: u32, #[case] expected: u32) {
        assert_eq!(mix(x), expected);
    }

    /// Computed by an independent program from the formulas of docs/contract.md.
    #[rstest]
    #[case(0, 0, 0, [0x1B554, 0x1B2B1, 0x19228, 0xD170], [0x4A27, 0x7DC, 0x576F, 0x1B88])]
    #[case(1, 7, 100, [0xAF37, 0x5FD3, 0x1A18B, 0x8B54], [0x3F91, 0x433A, 0xBED, 0x46D])]
    #[case(0xDEAD_BEEF, 0xFFFF_FFFF, 0xFFFF_FFFE, [0x15E29, 0xCE72, 0xCDEC, 0xD832],
           [0x609E, 0x6783, 0x1024, 0x2ECA])]
    fn stream_known_answers(
        #[case] seed: u32,
        #[case] rollout: u32,
        #[case] first: u32,
        #[case] tokens: [u32; 4],
        #[case] eos_draws: [u32; 4],
    ) {
        let stream = Stream::new(seed, rollout, 0);
        for k in 0..4 {
            let draw = stream.at(first.wrapping_add(k as u32));
            assert_eq!(draw.token(), tokens[k]);
            assert!(!draw.is_eos(eos_draws[k]), "a draw equal to the threshold goes on");
            assert!(draw.is_eos(eos_draws[k] + 1));
        }
    }

    /// Computed by an independent program from the formulas of docs/contract.md.
    #[rstest]
    #[case(1, 7, 0xCAFE_F00D, 100, (0xCED, -0x885a0))]
    #[case(0xDEAD_BEEF, 0xFFFF_FFFF, 1, 0xFFFF_FFFE, (0x624D, -0x22b06))]
    fn r18_another_salt_is_another_stream(
        #[case] seed: u32,
        #[case] rollout: u32,
        #[case] salt: u32,
        #[case] position: u32,
        #[case] drawn: (u32, i32),
    ) {
        let draw = Stream::new(seed, rollout, salt).at(position);
        assert_eq!((draw.token(), draw.logp()), drawn);
        assert_ne!(Stream::new(seed, rollout, 0).at(position), draw);
    }

    #[test]
    fn eos_threshold_bounds() {
        let stream = Stream::new(3, 5, 0);
        assert!((0..10_000).all(|p| !stream.at(p).is_eos(0)));
        assert!((0..10_000).all(|p| stream.at(p).is_eos(0x8000)));
    }
}
