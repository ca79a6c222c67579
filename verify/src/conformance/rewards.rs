//! REWARD: what it scores, and what it refuses.

use super::rig::by_position;
use super::{Bench, Failure, ensure, ensure_eq};
use doorbell_contract::{Capability, ErrorCode, HwDesc};
use doorbell_host::config::QueueConfig;

pub(super) fn reward_scores_what_lies_in_memory(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut ranges = [(u32::MAX, 0); 16];
    (ranges[0], ranges[9], ranges[15]) = ((1000, 20_000), (15_000, 40_000), (0x1_FFFF, 0x1_FFFF));
    let probe = bench.open(QueueConfig::default())?;
    if !probe.features.capability.contains(Capability::REWARD) {
        let mut rig = probe;
        let end = rig.run(&[HwDesc::reward(1, 0, 4)])?[0];
        ensure_eq!(end.error, ErrorCode::BadOpcode as u8, "R10: REWARD on a device that has none");
        return Ok(());
    }
    drop(probe);
    let mut rig = bench.open(QueueConfig { ranges, length_limit: 5000, ..Default::default() })?;
    // Behind its DECODE, whose tokens it scores, in one batch; and of parts of it that begin and end anywhere.
    for (lap, length) in [1, 2, 15, 16, 17, 63, 64, 65, 1000].into_iter().enumerate() {
        for model in 0..2u16 {
            let base = 4 * 7 * lap as u64;
            let decode = HwDesc::decode(3, 5, length).with_delta_offset(base);
            let reward = |skip: u32, tokens: u32| HwDesc {
                delta_offset: base + 4 * u64::from(skip),
                seq_len: 77,
                ..HwDesc::reward(3, model, tokens)
            };
            let parts = [(0, length), (0, 1), (length / 2, length - length / 2), (length - 1, 1)];
            let descs: Vec<HwDesc> = [decode]
                .into_iter()
                .chain(parts.map(|(skip, tokens)| reward(skip, tokens)))
                .zip(0..)
                .map(|(desc, k)| desc.with_user_data(k))
                .collect();
            let ends = by_position(&rig.run(&descs)?, descs.len())?;
            let tokens = rig.oracle().answer(&decode).tokens;
            for (end, (desc, (skip, count))) in ends[1..].iter().zip(descs[1..].iter().zip(parts)) {
                let part = &tokens[skip as usize..][..count as usize];
                let answer = rig.oracle().scored(desc, part);
                ensure_eq!(end.without_timing(), answer.completion, "REWARD: {desc:x?}");
            }
        }
    }
    // What it refuses.
    let good = HwDesc::reward(3, 1, 8);
    let bad = [
        HwDesc { reward_model_id: 2, ..good },
        HwDesc { reward_model_id: 0x100, ..good },
        HwDesc { max_tokens: 0, ..good },
        HwDesc { max_tokens: 5001, ..good },
        HwDesc { delta_offset: 2, ..good },
        HwDesc { delta_offset: (1 << 20) - 28, ..good },
        HwDesc { delta_offset: u64::MAX - 3, ..good },
    ];
    let descs: Vec<HwDesc> = bad.into_iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
    rig.check(&descs)?;
    Ok(())
}
