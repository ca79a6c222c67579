//! What a DECODE must answer, computed from the contract alone. Needed where a STOP lets two devices differ (R8): each
//! is then held to the policy instead of to the other.

use crate::replay::ReplayOptions;
use doorbell_contract::{
    CHECKPOINT_NEVER, CompletionFlags, DIGEST_INIT, DescFlags, HwCompletion, HwDesc, Status,
};
use doorbell_engine::hash::{Stream, fold, score};

/// The answer to `desc`, a valid DECODE, whose STOP takes effect once `stopped_at` tokens are produced (`None`: it
/// comes too late), and its tokens.
pub(super) fn answer(
    options: &ReplayOptions,
    desc: &HwDesc,
    stopped_at: Option<u32>,
) -> (HwCompletion, Vec<u32>) {
    let flags = DescFlags::from_bits_retain(desc.flags);
    let stream = Stream::new(desc.seed, desc.rollout_id);
    let mut tokens = Vec::new();
    let mut digest = DIGEST_INIT;
    let mut seen = CompletionFlags::empty();
    let status = loop {
        let produced = tokens.len() as u32;
        if stopped_at == Some(produced) {
            break Status::Stopped;
        }
        let draw = stream.at(desc.seq_len + produced);
        tokens.push(draw.token());
        digest = fold(digest, draw.token());
        let produced = produced + 1;
        let eos = draw.is_eos(options.eos_threshold.into());
        seen.set(CompletionFlags::EOS, seen.contains(CompletionFlags::EOS) || eos);
        if eos && flags.contains(DescFlags::EOS_STOPS) || produced == desc.max_tokens {
            break Status::Done;
        }
        let at_checkpoint = desc.checkpoint != CHECKPOINT_NEVER && produced.is_multiple_of(desc.checkpoint);
        if stopped_at != Some(produced) && at_checkpoint {
            if !flags.contains(DescFlags::RESIDENT) {
                break Status::RewardNeeded;
            }
            if score(digest) < options.reward_threshold {
                seen |= CompletionFlags::REJECTED;
                break Status::Done;
            }
        }
    };
    let completion = HwCompletion {
        user_data: desc.user_data,
        rollout_id: desc.rollout_id,
        final_seq_len: desc.seq_len + tokens.len() as u32,
        result: digest,
        reward_model_id: desc.reward_model_id,
        flags: seen.bits(),
        status: status as u8,
        ..bytemuck::Zeroable::zeroed()
    };
    (completion, tokens)
}
