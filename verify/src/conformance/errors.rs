//! R10 and R11: what a device does with what it must not execute.

use super::rig::by_position;
use super::{Bench, Failure, ensure, ensure_eq};
use doorbell_contract::{Counter, DescFlags, ErrorCode, HwDesc, PREFIX_NONE};
use doorbell_host::config::QueueConfig;

/// A change that makes a good DECODE bad, and the code that it earns.
type Violation = (ErrorCode, fn(&mut HwDesc));

/// By rising precedence number, as in docs/contract.md, "Which error".
const VIOLATIONS: &[Violation] = &[
    (ErrorCode::BadOpcode, |desc| desc.opcode = 5),
    (ErrorCode::BadOpcode, |desc| desc.opcode = 254),
    (ErrorCode::ReservedSet, |desc| desc.flags |= 0x40),
    (ErrorCode::ReservedSet, |desc| desc.flags |= 0x80),
    (ErrorCode::BadModel, |desc| desc.model_id = 0x8000),
    (ErrorCode::BadModel, |desc| {
        desc.flags |= DescFlags::RESIDENT.bits();
        desc.reward_model_id = 1;
    }),
    (ErrorCode::BadLength, |desc| desc.max_tokens = 0),
    (ErrorCode::BadLength, |desc| desc.seq_len = LIMIT - 3),
    (ErrorCode::BadLength, |desc| desc.seq_len = u32::MAX),
    (ErrorCode::BadRegion, |desc| desc.delta_offset |= 2),
    (ErrorCode::BadRegion, |desc| desc.delta_offset = TOKENS - 12),
    (ErrorCode::BadRegion, |desc| desc.delta_offset = u64::MAX - 3),
    (ErrorCode::BadRegion, |desc| desc.kv_offset = KV),
    (ErrorCode::BadPrefix, |desc| {
        desc.flags |= DescFlags::COW_PREFIX.bits();
        desc.prefix_id = PREFIX_NONE;
    }),
    (ErrorCode::BadVersion, |desc| desc.policy_version = 1),
    (ErrorCode::BadVersion, |desc| desc.policy_version = 0x8000),
];

const LIMIT: u32 = 50_000;
const TOKENS: u64 = 1 << 14;
const KV: u64 = 1 << 13;

fn config() -> QueueConfig {
    QueueConfig { length_limit: LIMIT, token_bytes: TOKENS, kv_bytes: KV, ..Default::default() }
}

fn good() -> HwDesc {
    HwDesc { kv_offset: KV - 1, reward_model_id: 0, ..HwDesc::decode(0x1234_5678, LIMIT - 4, 4).with_seed(1) }
}

pub(super) fn r10_every_error_code_and_its_precedence(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(config())?;
    let mut descs = Vec::new();
    let mut expected = Vec::new();
    for (first, (code, violate)) in VIOLATIONS.iter().enumerate() {
        for (_, also_violate) in &VIOLATIONS[first..] {
            let mut desc = good();
            also_violate(&mut desc);
            violate(&mut desc);
            descs.push(desc);
            expected.push(*code);
        }
        descs.push(good());
        expected.push(ErrorCode::None);
    }
    let descs: Vec<HwDesc> = descs.into_iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
    let ends = rig.check(&descs)?;
    for ((desc, end), code) in descs.iter().zip(ends).zip(&expected) {
        ensure_eq!(end.error, *code as u8, "R10: error of {desc:x?}");
    }
    let errors = expected.iter().filter(|&&code| code != ErrorCode::None).count() as u64;
    ensure_eq!(rig.driver.counter(Counter::Errors)?, errors, "ERRORS");
    Ok(())
}

pub(super) fn r10_a_rejected_descriptor_writes_nothing(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(config())?;
    let before = rig.tokens(0, TOKENS as usize / 4)?;
    let descs: Vec<HwDesc> = VIOLATIONS
        .iter()
        .zip(0..)
        .map(|((_, violate), k)| {
            let mut desc = good();
            violate(&mut desc);
            desc.with_user_data(k)
        })
        .collect();
    rig.check(&descs)?;
    ensure!(rig.tokens(0, TOKENS as usize / 4)? == before, "R10: a rejected descriptor wrote tokens");
    ensure_eq!(rig.driver.counter(Counter::Tokens)?, 0, "R10: tokens of rejected descriptors");
    Ok(())
}

pub(super) fn r11_regions_contain_every_write(bench: &mut Bench<'_>) -> Result<(), Failure> {
    // A region that ends in the middle of a 64-byte line and of a page: what lies behind it must stay as it was.
    const BYTES: u64 = 4096 + 128;
    let mut rig =
        bench.open(QueueConfig { token_bytes: BYTES, sq_depth: 4, cq_depth: 4, ..Default::default() })?;
    let at = |delta_offset, max_tokens| HwDesc::decode(1, 0, max_tokens).with_delta_offset(delta_offset);
    let descs: Vec<HwDesc> = [
        at(BYTES - 100, 25),
        at(BYTES - 100, 26),
        at(BYTES, 1),
        at(BYTES - 4, 1),
        at(BYTES - 4, 2),
        at(u64::MAX - 7, 2),
        at(0, 1 << 19),
        at(4, 1024),
    ]
    .into_iter()
    .zip(0..)
    .map(|(desc, k)| desc.with_user_data(k))
    .collect();
    // Their tokens overlap, so only the completions can be compared; the digest stands for the tokens.
    let ends = by_position(&rig.run(&descs)?, descs.len())?;
    for (desc, end) in descs.iter().zip(&ends) {
        ensure_eq!(
            end.without_timing(),
            rig.oracle().answer(desc).completion,
            "R11: completion of {desc:x?}"
        );
    }
    let layout = rig.driver.layout();
    let outside = rig.snapshot()?[(layout.tokens + BYTES as usize) / 4..].to_vec();
    ensure!(outside.iter().all(|&word| word == 0), "R11: a write past the token region");
    let before_tokens = rig.snapshot()?[(layout.cq + 4 * 32) / 4..layout.tokens / 4].to_vec();
    ensure!(before_tokens.iter().all(|&word| word == 0), "R11: a write between completion queue and tokens");
    let between_queues = rig.snapshot()?[(layout.sq + 4 * 64) / 4..layout.cq / 4].to_vec();
    ensure!(between_queues.iter().all(|&word| word == 0), "R11: a write between the queues");
    Ok(())
}
