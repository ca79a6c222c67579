//! R6, R8, R9 and R11: what a DECODE means, what ends it, and what it writes beside its tokens.

use super::rig::{below, by_position, numbered, refused};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use doorbell_contract::{
    CHECKPOINT_NEVER, Capability, CompletionFlags, Counter, DescFlags, ErrorCode, HwCompletion, HwDesc,
    LENGTH_LIMIT_MAX, PREFIX_NONE, Register, State, Status,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;
use doorbell_host::platform::Platform;

pub(super) fn basic_decode(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    let lengths = [5, 1, 16, 17, 33, 2, 100, 15];
    let decode = |(id, tokens)| HwDesc::decode(id, 10 * id, tokens).with_seed(7);
    rig.check(&numbered((0..).zip(lengths).map(decode)))?;
    let total = u64::from(lengths.iter().sum::<u32>());
    for (counter, expected) in
        [(Counter::Tokens, total), (Counter::Descriptors, 8), (Counter::Completions, 8)]
    {
        ensure_eq!(rig.driver.counter(counter)?, expected, "{counter}");
    }
    Ok(())
}

pub(super) fn r06_settings_change_no_answer(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut random = bench.random();
    let descs = numbered((0..150).map(|_| {
        HwDesc::decode(below(&mut random, 40), below(&mut random, 100_000), 1 + below(&mut random, 70))
            .with_seed(below(&mut random, 1000))
            .with_checkpoint([0, 0, 1, 16, 33, CHECKPOINT_NEVER][below(&mut random, 6) as usize])
            .with_flags(DescFlags::from_bits_truncate(
                below(&mut random, 32) as u8 & !DescFlags::COW_PREFIX.bits(),
            ))
    }));
    let base = QueueConfig { eos_threshold: 400, reward_threshold: 0x4000, ..Default::default() };
    let mut first: Option<Vec<HwCompletion>> = None;
    for config in [
        base.clone(),
        QueueConfig { wait_states: 3, sq_depth: 8, ..base.clone() },
        QueueConfig { cq_depth: 2, sq_depth: 2, ..base.clone() },
        QueueConfig { workers: Some(1), cq_depth: 4, wait_states: 1, ..base },
    ] {
        let completions = bench.open(config)?.check(&descs)?;
        let compared: Vec<HwCompletion> =
            completions.iter().map(|completion| completion.without_timing()).collect();
        ensure!(
            *first.get_or_insert_with(|| compared.clone()) == compared,
            "R6: another setting, another answer"
        );
    }
    Ok(())
}

pub(super) fn r06_lengths_beyond_16_bits(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig { length_limit: LENGTH_LIMIT_MAX, ..Default::default() };
    let mut rig = bench.open(config)?;
    let lengths = [65_535, 65_536, 1 << 20, LENGTH_LIMIT_MAX - 2, LENGTH_LIMIT_MAX - 1, u32::MAX - 1];
    let completions = rig.check(&numbered(lengths.map(|seq_len| HwDesc::decode(1, seq_len, 2))))?;
    ensure_eq!(completions[0].final_seq_len, 65_537, "final_seq_len from 65535 on");
    Ok(())
}

pub(super) fn r06_opcodes_without_tokens(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { length_limit: 1000, kv_bytes: 4096, ..Default::default() })?;
    // NOP and STOP look at nothing but check word, opcode and reserved bits.
    let wild = HwDesc {
        model_id: 9,
        kv_offset: u64::MAX,
        delta_offset: 3,
        seq_len: 70_000,
        max_tokens: u32::MAX,
        reward_model_id: 77,
        flags: DescFlags::RESIDENT.bits() | DescFlags::COW_PREFIX.bits(),
        ..HwDesc::default()
    };
    let descs = [
        HwDesc { opcode: HwDesc::nop().opcode, ..wild },
        HwDesc { opcode: HwDesc::stop(0).opcode, rollout_id: 5, ..wild },
        HwDesc { opcode: HwDesc::nop().opcode, prefix_id: PREFIX_NONE, ..wild },
        HwDesc::prefill(3, 1000),
        HwDesc { delta_offset: 3, kv_offset: 4095, max_tokens: 7, ..HwDesc::prefill(3, 12) },
        HwDesc { reward_model_id: 4, flags: DescFlags::RESIDENT.bits(), ..HwDesc::prefill(3, 12) },
        HwDesc { opcode: 2, ..HwDesc::nop() },
    ];
    let descs: Vec<HwDesc> = descs.into_iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
    rig.check(&descs)?;
    ensure_eq!(rig.driver.counter(Counter::Tokens)?, 0, "tokens of opcodes that have none");
    Ok(())
}

pub(super) fn r06_prefix_zero_is_a_prefix(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    let cow = |prefix| HwDesc::decode(1, 64, 4).with_prefix(prefix).with_flags(DescFlags::COW_PREFIX);
    rig.check(&numbered([
        HwDesc::prefill(0, 64),
        HwDesc::prefill(PREFIX_NONE - 1, 64),
        HwDesc::prefill(PREFIX_NONE, 64),
    ]))?;
    ensure_eq!(
        rig.driver.counter(Counter::Prefixes)?,
        2,
        "PREFIXES after two good PREFILLs and one of 'none'"
    );
    let ends = rig.check(&numbered([cow(0), cow(PREFIX_NONE), HwDesc::decode(1, 64, 4)]))?;
    ensure_eq!(ends[0].status, Status::Done as u8, "status of a DECODE that continues prefix 0");
    ensure_eq!(ends[1].status, Status::Error as u8, "status of a DECODE that continues prefix 'none'");
    ensure_eq!(ends[0].result, ends[2].result, "digest with and without COW_PREFIX");
    Ok(())
}

pub(super) fn r06_end_of_sequence(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for eos_threshold in [0, 1, 600, 0x7FFF, 0x8000, 0xFFFF] {
        let mut rig = bench.open(QueueConfig { eos_threshold, ..Default::default() })?;
        let stops = |k| HwDesc::decode(k, 17 * k, 60).with_flags(DescFlags::EOS_STOPS);
        let ends =
            rig.check(&numbered((0..30).map(stops).chain((0..30).map(|k| HwDesc::decode(k, 17 * k, 60)))))?;
        if eos_threshold >= 0x8000 {
            let one = ends[..30].iter().all(|end| end.flags == CompletionFlags::EOS.bits());
            ensure!(one, "every token ends its sequence at EOS_THRESHOLD {eos_threshold:#x}");
        }
    }
    Ok(())
}

/// Tokens of a rollout that no device is through with, at [`SLOW_WAIT_STATES`], before its STOP comes.
const SLOW_TOKENS: u32 = 200_000;
const SLOW_WAIT_STATES: u32 = 200;

/// Checks that `stopped` is a STOPPED prefix of the full answer to `desc` (R8).
fn check_prefix(rig: &Rig, desc: &HwDesc, stopped: &HwCompletion) -> Result<(), Failure> {
    ensure_eq!(stopped.status, Status::Stopped as u8, "R8: status of a DECODE that was stopped");
    let length = stopped.final_seq_len.wrapping_sub(desc.seq_len);
    ensure!(length < desc.max_tokens, "R8: {length} tokens of {} before a STOP", desc.max_tokens);
    let expected = rig.oracle().cut(desc, length, Status::Stopped);
    ensure_eq!(stopped.without_timing(), expected.completion, "R8: completion after {length} tokens");
    ensure!(rig.tokens(desc.delta_offset, length as usize)? == expected.tokens, "R8: tokens of the prefix");
    Ok(())
}

pub(super) fn r08_stop_ends_a_running_rollout(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig { wait_states: SLOW_WAIT_STATES, token_bytes: 4 << 20, ..Default::default() };
    let mut rig = bench.open(config)?;
    let long = HwDesc::decode(7, 50, SLOW_TOKENS).with_user_data(0);
    rig.driver.submit(&[long])?;
    rig.driver.platform_mut().advance(1)?;
    let others = [HwDesc::stop(7).with_user_data(1), HwDesc::nop().with_user_data(2)];
    rig.driver.submit(&others)?;
    let arrived = rig.drain()?;
    let ends = by_position(&arrived, 3)?;
    check_prefix(&rig, &long, &ends[0])?;
    rig.compare(&others, &ends[1..])?;
    let place = |k| arrived.iter().position(|completion| completion.user_data == k);
    ensure!(place(0) < place(1), "R8: the STOP completed before what it stopped");
    // STOP does not outlive its completion.
    rig.check(&numbered([HwDesc::decode(7, 50, 20), HwDesc::decode(7, 70, 5)]))?;
    // Nor does it stay in what the device kept of the rollout, whoever gets that next.
    rig.check(&numbered((0..40).map(|k| HwDesc::decode(100 + k, 0, 5))))?;
    Ok(())
}

pub(super) fn r08_stop_right_behind_its_rollout(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig { wait_states: SLOW_WAIT_STATES, token_bytes: 4 << 20, ..Default::default() };
    let mut rig = bench.open(config)?;
    for _ in 0..20 {
        // The rollout has been accepted, and perhaps not started, when the device comes to the STOP.
        let long = HwDesc::decode(7, 50, SLOW_TOKENS).with_user_data(0);
        rig.driver.submit(&[long])?;
        rig.driver.submit(&[HwDesc::stop(7).with_user_data(1)])?;
        let ends = by_position(&rig.drain()?, 2)?;
        check_prefix(&rig, &long, &ends[0])?;
    }
    Ok(())
}

pub(super) fn r08_stop_of_an_ended_rollout(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    rig.check(&numbered([HwDesc::stop(3)]))?;
    rig.check(&numbered([HwDesc::decode(3, 0, 10)]))?;
    rig.check(&numbered([HwDesc::stop(3), HwDesc::stop(3)]))?;
    rig.check(&numbered([HwDesc::decode(3, 0, 10)]))?;
    Ok(())
}

pub(super) fn r08_stop_leaves_other_rollouts_alone(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { wait_states: 50, ..Default::default() })?;
    let descs = numbered((0..12).map(|k| if k == 6 { HwDesc::stop(100) } else { HwDesc::decode(k, 0, 150) }));
    rig.check(&descs)?;
    Ok(())
}

pub(super) fn r08_an_abort_reaches_what_was_published(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig { wait_states: 100, sq_depth: 256, token_bytes: 8 << 20, ..Default::default() };
    let mut rig = bench.open(config)?;
    if !rig.features.capability.contains(Capability::ABORT) {
        return Ok(());
    }
    for behind in [0u32, 1, 30, 200] {
        // One that runs, others, and more of the rollout that may not have been read yet.
        let long = |k: u32| HwDesc::decode(7, 50, 20_000).with_delta_offset(u64::from(k % 40) << 17);
        let other = |k: u32| HwDesc::decode(100 + k, 0, 2).with_delta_offset((6 << 20) + u64::from(8 * k));
        let more = (0..behind).map(|k| if k % 8 == 7 { long(k / 8) } else { other(k) });
        let descs: Vec<HwDesc> =
            [long(39)].into_iter().chain(more).zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
        ensure_eq!(rig.driver.submit(&descs)?, descs.len(), "descriptors taken");
        rig.driver.platform_mut().advance(1)?;
        rig.driver.abort(7)?;
        ensure_eq!(rig.driver.read(Register::Abort)?, 7, "ABORT, read back");
        let ends = by_position(&rig.drain()?, descs.len())?;
        for (desc, end) in descs.iter().zip(&ends) {
            let length = end.final_seq_len.wrapping_sub(desc.seq_len);
            let answer = if desc.rollout_id == 7 {
                rig.oracle().cut(desc, length, Status::Stopped)
            } else {
                rig.oracle().answer(desc)
            };
            ensure_eq!(end.without_timing(), answer.completion, "R8: the end of {desc:x?} after an ABORT");
            let stopped = end.status == Status::Stopped as u8;
            ensure_eq!(stopped, desc.rollout_id == 7, "R8: whether an ABORT ended {desc:x?}");
        }
        // It does not outlive what it was for, once the device has had the time to say so.
        rig.settle()?;
        let state = State::from_bits_retain(rig.driver.read(Register::State)?);
        ensure!(!state.contains(State::ABORTING), "R8: ABORTING with nothing left");
        rig.check(&numbered([HwDesc::decode(7, 0, 5), HwDesc::decode(8, 0, 5)]))?;
    }
    rig.driver.disable()?;
    refused(rig.driver.write(Register::Abort, 7), "ABORT while inactive")?;
    Ok(())
}

pub(super) fn r09_checkpoints_lose_nothing(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for (own, default) in [(1, 5), (7, 0), (16, 0), (32, 1), (0, 32), (0, 13)] {
        let config = QueueConfig { checkpoint_default: default, eos_threshold: 300, ..Default::default() };
        let mut rig = bench.open(config)?;
        let uncut: Vec<HwDesc> = numbered((0..16).map(|k| {
            let flags = if k % 2 == 0 { DescFlags::EOS_STOPS } else { DescFlags::empty() };
            HwDesc::decode(k, 1000 * k, 64 + k)
                .with_seed(9)
                .with_flags(flags)
                .with_checkpoint(CHECKPOINT_NEVER)
        }));
        let mut open: Vec<HwDesc> = uncut.iter().map(|desc| desc.with_checkpoint(own)).collect();
        let mut cuts = 0;
        while !open.is_empty() {
            let descs: Vec<HwDesc> = open.iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
            let ends = rig.check(&descs)?;
            open.clear();
            for (desc, end) in descs.iter().zip(ends) {
                if end.status == Status::RewardNeeded as u8 {
                    let next = desc.continued(&end);
                    ensure!(next.is_some(), "R9: REWARD_NEEDED with nothing left: {end:x?}");
                    open.extend(next);
                    cuts += 1;
                }
            }
        }
        ensure!(cuts > 0, "R9: no checkpoint was reached");
        // The tokens of the continued rollouts are those of the uncut ones.
        for desc in &uncut {
            let expected = rig.oracle().answer(desc).tokens;
            ensure!(rig.tokens(desc.delta_offset, expected.len())? == expected, "R9: tokens of {desc:x?}");
        }
    }
    Ok(())
}

pub(super) fn r09_a_budget_that_ends_at_a_checkpoint_is_done(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig {
        checkpoint_default: 16,
        reward_threshold: 0x1_0000,
        ..Default::default()
    })?;
    let resident = HwDesc::decode(4, 0, 16).with_flags(DescFlags::RESIDENT);
    let ends = rig.check(&numbered([
        HwDesc::decode(1, 0, 16),
        HwDesc::decode(2, 0, 17),
        HwDesc::decode(3, 0, 15),
        resident,
    ]))?;
    let found: Vec<(u8, u8)> = ends.iter().map(|end| (end.status, end.flags)).collect();
    let expected =
        [Status::Done, Status::RewardNeeded, Status::Done, Status::Done].map(|status| (status as u8, 0));
    ensure_eq!(found, expected.to_vec(), "R9: status and flags around a checkpoint");
    Ok(())
}

pub(super) fn r09_resident_rollouts_go_on_or_end_by_their_score(
    bench: &mut Bench<'_>,
) -> Result<(), Failure> {
    for reward_threshold in [0, 0x2000, 0x8000, 0x1_0000] {
        let config = QueueConfig { reward_threshold, eos_threshold: 100, ..Default::default() };
        let mut rig = bench.open(config)?;
        let flags = DescFlags::RESIDENT | DescFlags::EOS_STOPS;
        let ends = rig.check(&numbered(
            (0..40).map(|k| HwDesc::decode(k, 3, 100).with_checkpoint(1 + 3 * k).with_flags(flags)),
        ))?;
        let rejected = ends.iter().filter(|end| end.flags & CompletionFlags::REJECTED.bits() != 0).count();
        match reward_threshold {
            0 => ensure_eq!(rejected, 0, "R9: rollouts rejected by a threshold of 0"),
            _ => ensure!(rejected > 0, "R9: no rollout was rejected by {reward_threshold:#x}"),
        }
    }
    Ok(())
}

pub(super) fn r11_log_probabilities_lie_beside_their_tokens(bench: &mut Bench<'_>) -> Result<(), Failure> {
    const BYTES: u64 = 4096 + 128;
    let probe = bench.open(QueueConfig::default())?;
    if !probe.features.capability.contains(Capability::LOGP) {
        let mut rig = probe;
        let end = rig.run(&[HwDesc::decode(1, 0, 4).with_flags(DescFlags::LOGP)])?[0];
        ensure_eq!(end.error, ErrorCode::ReservedSet as u8, "R10: LOGP on a device that has none");
        return Ok(());
    }
    drop(probe);
    let config =
        QueueConfig { logp_bytes: BYTES, token_bytes: 1 << 16, eos_threshold: 300, ..Default::default() };
    let mut rig = bench.open(config)?;
    let flags = |k| if k % 3 == 0 { DescFlags::LOGP | DescFlags::EOS_STOPS } else { DescFlags::LOGP };
    let decodes = (0..24).map(|k| HwDesc::decode(k, 3 * k, 1 + 3 * k).with_flags(flags(k)));
    let mut descs = numbered(decodes);
    // Up to the region's end, and beyond it; without the flag nothing is written.
    let end = |k: u32, tokens: u32, offset| {
        HwDesc::decode(k, 0, tokens).with_delta_offset(offset).with_user_data(k.into())
    };
    descs.push(end(24, 25, BYTES - 100).with_flags(DescFlags::LOGP));
    descs.push(end(25, 1, BYTES).with_flags(DescFlags::LOGP));
    descs.push(end(26, 2, BYTES - 4).with_flags(DescFlags::LOGP));
    descs.push(end(27, 16, 8192));
    let ends = rig.check(&descs)?;
    ensure_eq!(ends[25].error, ErrorCode::BadRegion as u8, "R11: a log-probability past its region");
    let mut expected = vec![0i32; BYTES as usize / 4];
    for desc in &descs {
        let start = desc.delta_offset as usize / 4;
        for (k, logp) in rig.oracle().answer(desc).logps.into_iter().enumerate() {
            expected[start + k] = logp;
        }
    }
    let mut found = vec![0i32; expected.len()];
    rig.driver.logps(0, &mut found)?;
    if let Some(k) = (0..found.len()).find(|&k| found[k] != expected[k]) {
        ensure_eq!(found[k], expected[k], "R11: word {k} of the log-probability region");
    }
    let (layout, memory) = (rig.driver.layout(), rig.snapshot()?);
    let behind = &memory[(layout.logp + BYTES as usize) / 4..];
    ensure!(behind.iter().all(|&word| word == 0), "R11: a write past the log-probability region");
    Ok(())
}
