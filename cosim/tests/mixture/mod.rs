//! Descriptors whose lives are looked at.

use doorbell_contract::{DescFlags, HwDesc};

/// Descriptor number `k` of a mixture: nothing to do, tokens, errors, scores, fences.
pub fn desc(k: u64) -> HwDesc {
    let draw = doorbell_contract::mix(k as u32);
    let rollout = draw >> 24;
    let desc = match draw % 16 {
        0 => HwDesc::nop(),
        1 => HwDesc::decode(rollout, 0, 0),
        2 => HwDesc::stop(rollout),
        3 => HwDesc::nop().with_flags(DescFlags::FENCE),
        4 => HwDesc::reward(rollout, 0, 1 + draw % 40),
        _ => HwDesc::decode(rollout, 0, 1 + (draw >> 8) % 90),
    };
    desc.with_user_data(k)
}
