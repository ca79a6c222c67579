//! What a rollout goes through: rewards, end of sequence, STOP, order, fences, prefixes.

use doorbell_contract::{CompletionFlags, Counter, DescFlags, HwCompletion, HwDesc, PREFIX_NONE, Status};
use doorbell_engine::{Digest, RewardModel};
use doorbell_host::{Device, QueueConfig};

use super::support::{
    agree, compare, drain, equal, holds, in_order, laid_out, model, policy, run, statuses, tokens,
};
use super::{Case, CaseError, Rtl};
use crate::config::RtlConfig;

pub const REWARD_BOUNDARY: Case = Case {
    name: "reward boundary",
    about: "checkpoints one below, at and one above the budget; a cut rollout yields the tokens of an uncut one (R9)",
    setup: || (RtlConfig::default(), QueueConfig { checkpoint_default: 8, ..Default::default() }),
    script: reward_boundary,
    portable: true,
};

fn reward_boundary(rtl: &mut Rtl) -> Result<(), CaseError> {
    let budget = 20;
    let decode = |id| HwDesc::decode(id, 100, budget);
    let descs = laid_out([
        decode(0).with_checkpoint(budget - 1),
        decode(1).with_checkpoint(budget),
        decode(2).with_checkpoint(budget + 1),
        decode(3).with_checkpoint(1),
        decode(4).with_checkpoint(0),
        decode(5).with_checkpoint(u32::MAX),
    ]);
    let completions = agree(rtl, &descs)?;
    let (done, needed) = (Status::Done as u8, Status::RewardNeeded as u8);
    equal("statuses", statuses(&completions), vec![needed, done, done, needed, needed, done])?;
    let lengths: Vec<u32> = completions.iter().map(|completion| completion.final_seq_len - 100).collect();
    equal("tokens added", lengths, vec![19, 20, 20, 1, 8, 20])?;

    // Continued to the end, each rollout has the tokens of one piece.
    for (desc, completion) in descs.iter().zip(&completions) {
        let (mut desc, mut completion, mut pieces) = (*desc, *completion, 1);
        let whole = desc;
        while completion.status == needed {
            let next = desc.continued(&completion);
            desc = next.ok_or_else(|| CaseError::Unexpected {
                what: "REWARD_NEEDED".to_owned(),
                expected: "budget left".to_owned(),
                found: format!("{completion:?} of {desc:?}"),
            })?;
            completion = run(rtl, &[desc])?[0];
            pieces += 1;
        }
        equal("status at the end", completion.status, done)?;
        equal(format!("final_seq_len after {pieces} pieces"), completion.final_seq_len, 120)?;
        let uncut = policy(&HwDesc { max_tokens: 20, ..whole });
        equal(format!("tokens of {pieces} pieces"), tokens(rtl, &whole, 20)?, uncut)?;
    }
    Ok(())
}

/// Tokens after which the resident cases score.
const SCORED: u32 = 16;

/// The score of `rollout_id` after its first `SCORED` tokens.
fn score_of(rollout_id: u32) -> u32 {
    RewardModel::Digest.score(Digest::of(&policy(&HwDesc::decode(rollout_id, 0, SCORED))))
}

pub const RESIDENT_REWARD: Case = Case {
    name: "resident reward",
    about: "a score at the threshold goes on, one below it is rejected, and the host hears only of the end (R9)",
    setup: || {
        let queue = QueueConfig { reward_threshold: score_of(0), token_bytes: 1 << 16, ..Default::default() };
        (RtlConfig::default(), queue)
    },
    script: resident_reward,
    portable: true,
};

fn resident_reward(rtl: &mut Rtl) -> Result<(), CaseError> {
    let threshold = score_of(0);
    let below = (1..).find(|&id| score_of(id) + 1 == threshold).unwrap_or_default();
    let resident =
        |id, tokens| HwDesc::decode(id, 0, tokens).with_checkpoint(SCORED).with_flags(DescFlags::RESIDENT);
    let descs = laid_out([
        resident(0, SCORED + 1),
        resident(below, SCORED + 1),
        // The budget ends at the checkpoint: nothing is scored.
        resident(below, SCORED),
        resident(3, 500),
        resident(4, 500),
    ]);
    let completions = agree(rtl, &descs)?;
    let rejected = CompletionFlags::REJECTED.bits();
    let ends: Vec<_> = completions.iter().map(|c| (c.status, c.flags, c.final_seq_len)).take(3).collect();
    let done = Status::Done as u8;
    equal("ends", ends, vec![(done, 0, SCORED + 1), (done, rejected, SCORED), (done, 0, SCORED)])
}

pub const END_OF_SEQUENCE: Case = Case {
    name: "end of sequence",
    about: "EOS ends a descriptor that asks for it and is flagged on one that does not",
    setup: || {
        let queue = QueueConfig { eos_threshold: 1000, token_bytes: 1 << 16, ..Default::default() };
        (RtlConfig::default(), queue)
    },
    script: end_of_sequence,
    portable: true,
};

fn end_of_sequence(rtl: &mut Rtl) -> Result<(), CaseError> {
    let decode = |id: u32| {
        let flags = if id.is_multiple_of(2) { DescFlags::EOS_STOPS } else { DescFlags::empty() };
        HwDesc::decode(id / 2, 5, 200).with_flags(flags)
    };
    let completions = agree(rtl, &laid_out((0..64).map(decode)))?;
    let short = completions.iter().filter(|completion| completion.final_seq_len < 205).count();
    holds("descriptors that end early", short > 10, "more than 10", short)?;
    for pair in completions.chunks(2) {
        equal("flag EOS with and without EOS_STOPS", pair[0].flags, pair[1].flags)?;
    }
    Ok(())
}

pub const STOP: Case = Case {
    name: "stop",
    about: "STOP ends a running DECODE with a prefix of its answer, and no other; its id may be used anew (R8)",
    setup: || (RtlConfig::default(), QueueConfig { token_bytes: 1 << 18, ..Default::default() }),
    script: stop,
    portable: true,
};

fn stop(rtl: &mut Rtl) -> Result<(), CaseError> {
    const LONG: u32 = 20_000;
    let descs =
        laid_out([HwDesc::decode(1, 0, LONG), HwDesc::stop(1), HwDesc::decode(2, 0, 3000), HwDesc::stop(77)]);
    rtl.submit(&descs[..1])?;
    rtl.platform_mut().run(500).map_err(|error| CaseError::Device(error.into()))?;
    rtl.submit(&descs[1..])?;
    let found = in_order(drain(rtl)?)?;
    let stopped = Status::Stopped as u8;
    equal("statuses", statuses(&found), vec![stopped, stopped, Status::Done as u8, stopped])?;

    let length = found[0].final_seq_len;
    holds("length of the stopped DECODE", length < LONG, format!("below {LONG}"), length)?;
    let prefix = policy(&HwDesc::decode(1, 0, length));
    equal("digest of the stopped DECODE", found[0].result, Digest::of(&prefix).value())?;
    equal("tokens of the stopped DECODE", tokens(rtl, &descs[0], length as usize)?, prefix)?;
    for stop in [found[1], found[3]] {
        equal("result and final_seq_len of a STOP", (stop.result, stop.final_seq_len), (0, 0))?;
    }

    // The STOP is over: the id may be used anew.
    agree(rtl, &laid_out([HwDesc::decode(1, 0, 50), HwDesc::decode(77, 0, 50)])).map(drop)
}

pub const ORDER: Case = Case {
    name: "order",
    about: "descriptors of one rollout run one after the other, others pass them (R5)",
    setup: || (RtlConfig::default(), QueueConfig { token_bytes: 1 << 18, ..Default::default() }),
    script: order,
    portable: true,
};

fn order(rtl: &mut Rtl) -> Result<(), CaseError> {
    let descs = laid_out((0..96).map(|k: u32| HwDesc::decode(k * 7 % 5, 100 * k, 1 + k * 37 % 60)));
    let mut model = model(rtl)?;
    let expected = in_order(run(&mut model, &descs)?)?;
    let arrived = run(rtl, &descs)?;
    for rollout in 0..5 {
        let numbers: Vec<u64> =
            arrived.iter().filter(|c| c.rollout_id == rollout).map(|c| c.user_data).collect();
        holds(format!("completions of rollout {rollout} (R5)"), numbers.is_sorted(), "SQ order", &numbers)?;
    }
    if rtl.platform().workers() == 1 {
        let numbers: Vec<u64> = arrived.iter().map(|c| c.user_data).collect();
        holds("completions of one worker (R5)", numbers.is_sorted(), "SQ order", &numbers)?;
    }
    compare(rtl, &model, &descs, &in_order(arrived)?, &expected)
}

pub const FENCE: Case = Case {
    name: "fence",
    about: "a FENCE completes behind all earlier and before all later descriptors (R7)",
    setup: || (RtlConfig::default(), QueueConfig { token_bytes: 1 << 18, ..Default::default() }),
    script: fence,
    portable: true,
};

fn fence(rtl: &mut Rtl) -> Result<(), CaseError> {
    let is_fence = |k: u32| k % 10 == 9;
    let descs = laid_out((0..60).map(|k| {
        let desc = if k % 20 == 9 { HwDesc::nop() } else { HwDesc::decode(k, 0, 1 + k * 53 % 90) };
        if is_fence(k) { desc.with_flags(DescFlags::FENCE) } else { desc }
    }));
    let arrived = run(rtl, &descs)?;
    let place = |number: u32| arrived.iter().position(|completion| completion.user_data == u64::from(number));
    for fence in (0..60).filter(|&k| is_fence(k)) {
        for other in 0..60 {
            let right = place(other).cmp(&place(fence)) == other.cmp(&fence);
            let what = format!("order of descriptor {other} and fence {fence} (R7)");
            holds(what, right, "SQ order", (place(other), place(fence)))?;
        }
    }
    let mut model = model(rtl)?;
    let expected: Vec<HwCompletion> = in_order(run(&mut model, &descs)?)?;
    compare(rtl, &model, &descs, &in_order(arrived)?, &expected)
}

pub const PREFILL: Case = Case {
    name: "prefill",
    about: "PREFILL registers prefixes, 0 among them; rollouts of a prefix decode as others do",
    setup: Default::default,
    script: prefill,
    portable: true,
};

fn prefill(rtl: &mut Rtl) -> Result<(), CaseError> {
    let prefixes = [0, 1, 0xFFFF_FFFE];
    let mut number = 0;
    let fills: Vec<HwDesc> = prefixes
        .map(|prefix| {
            number += 1;
            HwDesc::prefill(prefix, 40).with_user_data(number - 1)
        })
        .into();
    let completions = agree(rtl, &fills)?;
    equal("statuses", statuses(&completions), vec![Status::Done as u8; 3])?;
    equal("counter PREFIXES", rtl.counter(Counter::Prefixes)?, 3)?;
    let descs = laid_out((0..6).map(|k: u32| {
        HwDesc::decode(k, 40, 30).with_prefix(prefixes[k as usize % 3]).with_flags(DescFlags::COW_PREFIX)
    }));
    agree(rtl, &descs)?;
    let bad = agree(rtl, &laid_out([HwDesc::prefill(PREFIX_NONE, 40)]))?;
    equal("status of a PREFILL of 'none'", bad[0].status, Status::Error as u8)?;
    equal("counter PREFIXES after a refused PREFILL", rtl.counter(Counter::Prefixes)?, 3)
}
