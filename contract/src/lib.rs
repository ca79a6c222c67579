//! The wire contract: layouts, code points and registers (generated), the check word and constructors.

#![no_std]

mod define;
mod generated;

pub use define::{Access, Field, UnknownCode};
pub use generated::*;

use bytemuck::cast_ref;

/// Weight of the running index in the check word (R2): `(index + 1) × GOLDEN`.
const fn index_mark(index: u32) -> u32 {
    index.wrapping_add(1).wrapping_mul(GOLDEN)
}

impl HwDesc {
    /// Words of 32 bits in a descriptor, the check word included.
    const WORDS: usize = 16;

    /// The check word (R2) that these fields must carry in the slot of running index `index`.
    #[inline]
    pub fn check_for(&self, index: u32) -> u32 {
        let words: &[u32; Self::WORDS] = cast_ref(self);
        // Word k is to be rotated by 2k + 1. By Horner's scheme that is one rotation by 4 per word, in two
        // independent chains: half the instructions, and what runs on every descriptor twice.
        let (mut even, mut odd) = (words[14], 0u32);
        for k in (0..7).rev() {
            even = even.rotate_left(4) ^ words[2 * k];
            odd = odd.rotate_left(4) ^ words[2 * k + 1];
        }
        index_mark(index) ^ even.rotate_left(1) ^ odd.rotate_left(3)
    }

    /// This descriptor with the check word for running index `index`.
    #[inline]
    #[must_use]
    pub fn seal(mut self, index: u32) -> Self {
        self.check = self.check_for(index);
        self
    }

    /// Whether the check word matches fields and running index (R2).
    #[inline]
    pub fn verify(&self, index: u32) -> bool {
        self.check == self.check_for(index)
    }

    /// What an unused slot holds: nothing, under a check word that is wrong for `index`.
    ///
    /// Zeroes are not enough: at index `u32::MAX` they would verify.
    pub fn vacant(index: u32) -> Self {
        let blank: Self = bytemuck::Zeroable::zeroed();
        Self { check: !blank.check_for(index), ..blank }
    }

    fn new(opcode: Opcode) -> Self {
        Self { opcode: opcode as u8, prefix_id: PREFIX_NONE, ..bytemuck::Zeroable::zeroed() }
    }

    /// NOP: completes as DONE, adds nothing.
    pub fn nop() -> Self {
        Self::new(Opcode::Nop)
    }

    /// DECODE: up to `max_tokens` tokens for `rollout_id`, which stands at `seq_len`; token region offset 0,
    /// seed 0, no prefix, default checkpoint.
    pub fn decode(rollout_id: u32, seq_len: u32, max_tokens: u32) -> Self {
        Self { rollout_id, seq_len, max_tokens, ..Self::new(Opcode::Decode) }
    }

    /// PREFILL: registers `prefix_id` of `seq_len` tokens.
    pub fn prefill(prefix_id: u32, seq_len: u32) -> Self {
        Self { prefix_id, seq_len, ..Self::new(Opcode::Prefill) }
    }

    /// STOP: ends `rollout_id` (R8).
    pub fn stop(rollout_id: u32) -> Self {
        Self { rollout_id, ..Self::new(Opcode::Stop) }
    }

    /// The descriptor that continues `self` after a REWARD_NEEDED completion (R9), its tokens behind those
    /// already written. `None` when nothing is left to continue.
    pub fn continued(&self, completion: &HwCompletion) -> Option<Self> {
        let added = completion.final_seq_len.checked_sub(self.seq_len)?;
        let max_tokens = self.max_tokens.checked_sub(added).filter(|&left| left > 0)?;
        let delta_offset = self.delta_offset.checked_add(4 * u64::from(added))?;
        Some(Self { seq_len: completion.final_seq_len, max_tokens, delta_offset, ..*self })
    }

    /// With `user_data`, which the completion echoes.
    #[must_use]
    pub fn with_user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// With these flags instead of those it had.
    #[must_use]
    pub fn with_flags(self, flags: DescFlags) -> Self {
        Self { flags: flags.bits(), ..self }
    }

    /// With its tokens at `delta_offset` bytes into the token region.
    #[must_use]
    pub fn with_delta_offset(self, delta_offset: u64) -> Self {
        Self { delta_offset, ..self }
    }

    /// With a checkpoint after `checkpoint` tokens; 0 is the device's default, [`CHECKPOINT_NEVER`] is never.
    #[must_use]
    pub fn with_checkpoint(self, checkpoint: u32) -> Self {
        Self { checkpoint, ..self }
    }

    /// With the seed of the sampling policy.
    #[must_use]
    pub fn with_seed(self, seed: u32) -> Self {
        Self { seed, ..self }
    }

    /// With a shared prefix; [`PREFIX_NONE`] is none, 0 is a prefix like any other.
    #[must_use]
    pub fn with_prefix(self, prefix_id: u32) -> Self {
        Self { prefix_id, ..self }
    }
}

impl HwCompletion {
    /// This completion with the fields that depend on timing zeroed: what all devices agree on (R6).
    #[must_use]
    pub fn without_timing(self) -> Self {
        Self { sq_head: 0, worker_id: 0, phase: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::cast;
    use rstest::rstest;

    /// Computed by an independent program from rule R2.
    #[rstest]
    #[case([0; 15], 0, 0x9E37_79B9)]
    #[case([0; 15], u32::MAX, 0)]
    #[case([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], 5, 0x386A_0225)]
    fn r02_check_word_known_answers(#[case] words: [u32; 15], #[case] index: u32, #[case] check: u32) {
        let mut all = [0u32; 16];
        all[..15].copy_from_slice(&words);
        let desc: HwDesc = cast(all);
        assert_eq!(desc.check_for(index), check);
        assert!(desc.seal(index).verify(index));
    }

    #[test]
    fn r02_every_bit_and_the_index_count() {
        let sealed = HwDesc::decode(7, 100, 32).with_user_data(0x0123_4567_89AB_CDEF).seal(41);
        assert!(!sealed.verify(42) && !sealed.verify(41 + 0x1_0000));
        for bit in 0..512 {
            let mut bytes: [u8; 64] = cast(sealed);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!cast::<_, HwDesc>(bytes).verify(41), "bit {bit}");
        }
    }

    #[test]
    fn r06_without_timing_keeps_the_compared_fields() {
        let ones: HwCompletion = cast([0xFFu8; 32]);
        let kept = ones.without_timing();
        for field in HwCompletion::FIELDS {
            let compared = HwCompletion::COMPARED.iter().any(|other| other.name == field.name);
            assert_eq!((field.get)(&kept) != 0, compared, "{}", field.name);
        }
    }

    #[rstest]
    #[case(0)]
    #[case(1)]
    #[case(u32::MAX)]
    fn r02_a_vacant_slot_never_verifies(#[case] index: u32) {
        assert!(!HwDesc::vacant(index).verify(index));
    }
}
