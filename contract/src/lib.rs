//! The wire contract: layouts, code points and registers (generated), the check word and constructors.

#![no_std]

mod define;
mod generated;

pub use define::{Access, Field, Place, UnknownCode};
pub use generated::*;

use bytemuck::cast;

/// The finaliser *lowbias32* of C. Wellons' hash prospector: a bijection with good avalanche.
#[inline]
pub const fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(MIX_MUL_1);
    x ^= x >> 15;
    x = x.wrapping_mul(MIX_MUL_2);
    x ^ (x >> 16)
}

/// The key of a submission queue (R2), as its check words need it: a word for each word of a descriptor, in the same
/// pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqKey {
    value: u32,
    pairs: [u64; HwDesc::PAIRS],
}

impl SqKey {
    /// What the register SQ_KEY stands for.
    pub const fn new(key: u32) -> Self {
        let mut pairs = [0; HwDesc::PAIRS];
        let mut k = 0;
        while k < 2 * HwDesc::PAIRS {
            let word = key.rotate_left(2 * k as u32 + 1) ^ mix((k as u32 + 1).wrapping_mul(GOLDEN));
            pairs[k / 2] |= (word as u64) << (32 * (k % 2));
            k += 1;
        }
        Self { value: key, pairs }
    }

    /// What SQ_KEY holds.
    pub const fn value(&self) -> u32 {
        self.value
    }
}

impl Register {
    /// The register at `address` of the device's pages, and the function and queue pair to which it belongs. For a block
    /// that belongs to no function, or to no queue pair, that number is 0. In [`Block::Worker`] `queue` is the worker's
    /// number. `None` if there is no register at `address`.
    pub fn at(address: u32) -> Option<(Self, Place)> {
        const MOST: u32 = 16;
        Self::ALL.into_iter().find_map(|register| {
            let block = register.block();
            // No block belongs to queue pairs and to workers.
            let (functions, queues) = (block.per_function(), block.per_queue() + block.per_worker());
            let above = address.checked_sub(register as u32)?;
            // A block that belongs to both has its queue pairs within the function's page.
            let function = above.checked_div(functions).unwrap_or(0);
            let rest = above - function * functions;
            let queue = rest.checked_div(queues).unwrap_or(0);
            let found = function < MOST && queue < MOST && rest == queue * queues;
            found.then_some((register, Place { function: function as u8, queue: queue as u8 }))
        })
    }
}

/// The lower word of a pair.
#[inline]
const fn low(pair: u64) -> u64 {
    pair & 0xFFFF_FFFF
}

impl HwDesc {
    /// Pairs of 32-bit words in a descriptor; the check word is the upper one of the last pair.
    const PAIRS: usize = 8;

    /// The check word (R2) that these fields must carry in the slot of running index `index` of the queue with this
    /// key. It is never 0.
    #[inline]
    pub fn check_for(&self, key: &SqKey, index: u32) -> u32 {
        let mut pairs: [u64; Self::PAIRS] = cast(*self);
        // The check word itself counts as 0.
        pairs[7] = low(pairs[7]);
        // Both words of a pair are added in 64 bits and cut off, which compilers know as lanes of vectors; of words of 32
        // bits they make multiplications one at a time.
        let products: [u64; Self::PAIRS] = core::array::from_fn(|j| {
            low(pairs[j].wrapping_add(key.pairs[j])) * low((pairs[j] >> 32).wrapping_add(key.pairs[j] >> 32))
        });
        let sum = products.into_iter().fold(u64::from(index).wrapping_mul(GOLDEN_64), u64::wrapping_add);
        match (sum >> 32) as u32 ^ sum as u32 {
            0 => u32::MAX,
            check => check,
        }
    }

    /// This descriptor with the check word for running index `index` of the queue with this key.
    #[inline]
    #[must_use]
    pub fn seal(mut self, key: &SqKey, index: u32) -> Self {
        self.check = self.check_for(key, index);
        self
    }

    /// Whether the check word matches fields, running index and the queue's key (R2). With a check word of 0 it never
    /// does: memory that was cleared is no descriptor.
    #[inline]
    pub fn verify(&self, key: &SqKey, index: u32) -> bool {
        self.check == self.check_for(key, index)
    }

    fn new(opcode: Opcode) -> Self {
        Self {
            opcode: opcode as u8,
            prefix_id: PREFIX_NONE,
            member: MEMBER_NONE,
            ..bytemuck::Zeroable::zeroed()
        }
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

    /// PREFILL: registers `prefix_id` of `seq_len` tokens, and opens no group.
    pub fn prefill(prefix_id: u32, seq_len: u32) -> Self {
        Self { prefix_id, seq_len, ..Self::new(Opcode::Prefill) }
    }

    /// PREFILL that opens the group of `prefix_id` with `members`, 1 to [`MEMBERS_MAX`] (R17).
    pub fn open_group(prefix_id: u32, seq_len: u32, members: u32) -> Self {
        Self { max_tokens: members, ..Self::prefill(prefix_id, seq_len) }
    }

    /// STOP: ends `rollout_id` (R8).
    pub fn stop(rollout_id: u32) -> Self {
        Self { rollout_id, ..Self::new(Opcode::Stop) }
    }

    /// STOP of the whole group of `prefix_id` (R8, R17).
    pub fn stop_group(prefix_id: u32) -> Self {
        Self::new(Opcode::Stop).with_member(prefix_id, MEMBER_NONE)
    }

    /// REWARD: scores `tokens` tokens of `rollout_id` by a reward model, from token region offset 0 on.
    pub fn reward(rollout_id: u32, reward_model_id: u16, tokens: u32) -> Self {
        Self { rollout_id, reward_model_id, max_tokens: tokens, ..Self::new(Opcode::Reward) }
    }

    /// POLICY: publishes `version`, whose [`HwPolicy`] lies at token region offset 0 (R19).
    pub fn policy(version: u16, mode: PolicyMode) -> Self {
        Self { policy_version: version, checkpoint: mode as u32, ..Self::new(Opcode::Policy) }
    }

    /// The descriptor that continues `self` after a REWARD_NEEDED completion (R9), with its tokens after
    /// those already written. `None` when nothing is left to continue.
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

    /// As a member of the group of `prefix_id`, with COW_PREFIX (R17); [`MEMBER_NONE`] continues the prefix and is in no group,
    /// and makes a STOP one of the whole group.
    #[must_use]
    pub fn with_member(self, prefix_id: u32, member: u16) -> Self {
        let flags = self.flags | DescFlags::COW_PREFIX.bits();
        Self { prefix_id, member, flags, ..self }
    }

    /// Under this version of the policy (R18).
    #[must_use]
    pub fn with_version(self, policy_version: u16) -> Self {
        Self { policy_version, ..self }
    }
}

impl HwPolicy {
    /// The header of a version of an engine's policy, which `length` bytes of weights follow.
    pub fn new(version: u16, model_id: u16, salt: u32, length: u32) -> Self {
        let unsealed = Self { version, model_id, salt, length, check: 0 };
        Self { check: unsealed.check_word(), ..unsealed }
    }

    /// Whether the check word fits. That of cleared memory does not.
    pub fn verify(&self) -> bool {
        self.check == self.check_word()
    }

    fn check_word(&self) -> u32 {
        let [words @ .., _]: [u32; 4] = cast(*self);
        fold(&words)
    }
}

/// The check word of a record in memory that a descriptor reads, computed over the words before it.
fn fold(words: &[u32]) -> u32 {
    words.iter().fold(GOLDEN, |sum, word| mix(sum ^ word))
}

impl HwImage {
    /// This image with its check word.
    #[must_use]
    pub fn seal(self) -> Self {
        Self { check: self.check_word(), ..self }
    }

    /// Whether the check word fits. That of cleared memory does not.
    pub fn verify(&self) -> bool {
        self.check == self.check_word()
    }

    fn check_word(&self) -> u32 {
        let [words @ .., _]: [u32; 16] = cast(*self);
        fold(&words)
    }

    /// The tokens that end a sequence; [`TOKEN_NONE`] is none.
    pub const fn ends(&self) -> [u32; 4] {
        [self.end_0, self.end_1, self.end_2, self.end_3]
    }

    /// Bytes of a block of keys and values.
    pub fn block_bytes(&self) -> u64 {
        64 * u64::from(self.block_lines)
    }
}

impl HwSequence {
    /// This sequence with its check word.
    #[must_use]
    pub fn seal(self) -> Self {
        Self { check: self.check_word(), ..self }
    }

    /// Whether the check word fits. That of cleared memory does not.
    pub fn verify(&self) -> bool {
        self.check == self.check_word()
    }

    fn check_word(&self) -> u32 {
        let [words @ .., _]: [u32; 16] = cast(*self);
        fold(&words)
    }

    /// Whether all that is reserved is 0.
    pub const fn is_plain(&self) -> bool {
        self.reserved_0 == 0 && self.reserved_1 == 0
    }

    /// Whether its draws are truncated, for which a device has [`Capability::TRUNCATION`].
    pub const fn is_truncated(&self) -> bool {
        self.top_k != 0 || self.top_p != 0 || self.min_p != 0
    }
}

impl HwCompletion {
    /// The bit of each 16-byte half's last 64-bit word that holds its phase (R4).
    pub const PHASE: u64 = 1 << 63;

    /// This completion with `phase` in both halves, as it stands in its slot. A length above
    /// [`LENGTH_LIMIT_MAX`], which only a descriptor that adds nothing may have, is cut to 31 bits.
    #[inline]
    #[must_use]
    pub fn with_phase(self, phase: bool) -> Self {
        let phase = u8::from(phase);
        let final_seq_len = self.final_seq_len & LENGTH_LIMIT_MAX | u32::from(phase) << 31;
        Self { final_seq_len, phase: phase << 7, ..self }
    }

    /// Whether these flags are set.
    #[inline]
    pub fn has(&self, flags: CompletionFlags) -> bool {
        CompletionFlags::from_bits_retain(self.flags).contains(flags)
    }

    /// This completion with what depends on timing zeroed, the flag GROUP_DONE included: what all devices agree on (R6).
    #[must_use]
    pub fn without_timing(self) -> Self {
        let flags = self.flags & !CompletionFlags::GROUP_DONE.bits();
        Self { sq_head: 0, worker_id: 0, flags, ..self.with_phase(false) }
    }
}

impl HwEvent {
    /// This event with `phase` in both halves, as it stands in its slot (R23).
    #[inline]
    #[must_use]
    pub fn with_phase(self, phase: bool) -> Self {
        let stamp = self.stamp & !HwCompletion::PHASE | u64::from(phase) << 63;
        Self { stamp, visible: self.visible & EVENT_DELTA_MAX | u32::from(phase) << 31, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::cast;
    use rstest::rstest;

    /// Computed by an independent program from rule R2.
    #[rstest]
    #[case([0; 15], 0, 0, 0x65D1_9319)]
    #[case([0; 15], 0x1234_5678, u32::MAX, 0x45FA_4DB2)]
    #[case([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], 0xDEAD_BEEF, 5, 0x679B_7A07)]
    #[case([u32::MAX; 15], u32::MAX, 0x8000_0000, 0x720E_63ED)]
    fn r02_check_word_known_answers(
        #[case] words: [u32; 15],
        #[case] key: u32,
        #[case] index: u32,
        #[case] check: u32,
    ) {
        let mut all = [0u32; 16];
        all[..15].copy_from_slice(&words);
        let (desc, key): (HwDesc, _) = (cast(all), SqKey::new(key));
        assert_eq!(desc.check_for(&key, index), check);
        assert!(desc.seal(&key, index).verify(&key, index));
    }

    /// Keys that a host may choose, the register's reset value among them.
    const KEYS: [u32; 4] = [0, 1, 0x9E37_79B9, u32::MAX];

    #[test]
    fn r02_every_bit_the_index_and_the_key_count() {
        for key in KEYS {
            let (raw, key) = (key, SqKey::new(key));
            let sealed = HwDesc::decode(7, 100, 32).with_user_data(0x0123_4567_89AB_CDEF).seal(&key, 41);
            assert!(!sealed.verify(&key, 42) && !sealed.verify(&key, 41 + 0x1_0000));
            for bit in 0..512 {
                let mut bytes: [u8; 64] = cast(sealed);
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(!cast::<_, HwDesc>(bytes).verify(&key, 41), "key {raw:#x}, bit {bit}");
            }
            for bit in 0..32 {
                assert!(!sealed.verify(&SqKey::new(raw ^ 1 << bit), 41), "key {raw:#x}, its bit {bit}");
                assert!(!sealed.verify(&key, 41 ^ 1 << bit), "key {raw:#x}, bit {bit} of the index");
            }
        }
    }

    /// Of two descriptors whose fields depend on each other, as hosts lay them out, no mixture is taken for one. The check
    /// word of contract 1, the XOR of rotated words, takes 352 mixtures of the fourth structure.
    #[test]
    fn r02_no_mixture_of_two_descriptors_verifies() {
        type Structure = fn(HwDesc, u32) -> HwDesc;
        let structures: [Structure; 6] = [
            |desc, k| HwDesc { rollout_id: k, ..desc },
            |desc, k| HwDesc { rollout_id: k, delta_offset: u64::from(k) << 22, ..desc },
            |desc, k| HwDesc { rollout_id: k, user_data: u64::from(k), seed: k, ..desc },
            |desc, k| HwDesc { delta_offset: u64::from(k) << 8, kv_offset: u64::from(k) << 12, ..desc },
            |desc, k| HwDesc {
                seq_len: k,
                max_tokens: 0u32.wrapping_sub(k),
                user_data: !u64::from(k),
                ..desc
            },
            |desc, k| HwDesc {
                rollout_id: k,
                prefix_id: k,
                member: k as u16,
                policy_version: (k >> 8) as u16,
                seed: k.rotate_left(16),
                ..desc
            },
        ];
        for (number, structure) in structures.iter().enumerate() {
            for (step, key) in KEYS.into_iter().enumerate() {
                let key = SqKey::new(key);
                for pair in 0..40u32 {
                    let index = 64 + pair * 977;
                    let of = |k| structure(HwDesc::decode(5, 100, 32), k);
                    // The slot's life before, and its life now.
                    let old: [u32; 16] = cast(of(pair * 3 + step as u32).seal(&key, index.wrapping_sub(64)));
                    let new: [u32; 16] = cast(of(mix(pair) >> 8).seal(&key, index));
                    for taken in 0..=0xFFu32 {
                        // Whole words of 8 bytes, as buses tear them.
                        let torn: [u32; 16] =
                            core::array::from_fn(|k| if taken >> (k / 2) & 1 != 0 { new[k] } else { old[k] });
                        let desc: HwDesc = cast(torn);
                        assert!(
                            !desc.verify(&key, index) || torn == new,
                            "structure {number}, pair {pair}, mixture {taken:#x}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_address_is_one_register_of_one_place() {
        for (function, queue) in (0..16).flat_map(|function| (0..16).map(move |queue| (function, queue))) {
            for register in Register::ALL {
                let block = register.block();
                let place = Place {
                    function: if block.per_function() == 0 { 0 } else { function },
                    queue: if block.per_queue() + block.per_worker() == 0 { 0 } else { queue },
                };
                assert_eq!(
                    Register::at(register.address(Place { function, queue })),
                    Some((register, place))
                );
                assert_eq!(Register::at(register.address(place) + 1), None);
            }
        }
        for nowhere in [
            0x018,
            0x68,
            0x180,
            0xF_FFFC,
            0x0_0404,
            0x0_0900,
            0x1_0004,
            0x1_0180,
            0x1_0864,
            0x3_0000,
            u32::MAX,
        ] {
            assert_eq!(Register::at(nowhere), None, "{nowhere:#x}");
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

    /// Computed by an independent program from docs/contract.md, "Policy".
    #[test]
    fn r19_a_header_verifies_as_it_was_sealed() {
        let header = HwPolicy::new(7, 0, 0x1234_5678, 0);
        assert_eq!(header.check, 0x0BA2_2EF3);
        assert!(header.verify() && !HwPolicy::default().verify());
        for bit in 0..128 {
            let mut bytes: [u8; 16] = cast(header);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!cast::<_, HwPolicy>(bytes).verify(), "bit {bit}");
        }
    }

    /// Computed by an independent program from docs/contract.md, "Records of engine 1".
    #[test]
    fn r25_r26_records_verify_as_they_were_sealed() {
        let words: [u32; 16] = core::array::from_fn(|k| 0x0101_0101 * k as u32);
        let (image, sequence): (HwImage, HwSequence) = (cast(words), cast(words));
        assert_eq!([image.seal().check, sequence.seal().check], [0x5C6C_9E6B; 2]);
        assert!(!HwImage::default().verify() && !HwSequence::default().verify());
        assert!(HwSequence { sharpness: 7, entries: 3, ..HwSequence::default() }.is_plain());
        for bit in 0..512 {
            let mut bytes: [u8; 64] = cast(sequence.seal());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !cast::<_, HwSequence>(bytes).verify() && !cast::<_, HwImage>(bytes).verify(),
                "bit {bit}"
            );
            let one: HwSequence =
                cast(core::array::from_fn::<u8, 64, _>(
                    |byte| {
                        if byte == bit / 8 { 1 << (bit % 8) } else { 0 }
                    },
                ));
            assert_eq!(one.is_plain(), !(52..60).contains(&(bit / 8)), "bit {bit}");
        }
    }

    /// R23: the phases lie where those of a completion do, and nothing else changes with them.
    #[test]
    fn r23_phases_of_an_event_are_those_of_a_completion() {
        let clear: [u64; 4] = cast(cast::<_, HwEvent>([0xFFu8; 32]).with_phase(false));
        let set: [u64; 4] = cast(HwEvent::default().with_phase(true));
        let phase = HwCompletion::PHASE;
        assert_eq!(set, [0, phase, 0, phase]);
        assert_eq!(clear, [u64::MAX, !phase, u64::MAX, !phase]);
        let completion: [u64; 4] = cast(HwCompletion::default().with_phase(true));
        assert_eq!(completion, set);
    }

    #[rstest]
    fn r02_cleared_memory_never_verifies(#[values(0, 1, 7, u32::MAX)] index: u32) {
        for key in KEYS {
            assert!(!HwDesc::default().verify(&SqKey::new(key), index));
        }
    }
}
