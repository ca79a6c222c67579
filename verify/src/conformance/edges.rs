//! The edges of the numbers that the other cases use: sums past 32 and 64 bits, thresholds that are met exactly, lengths
//! past 16 bits, counts that saturate, what is refused while inactive.

use super::rig::{by_position, numbered, refused};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use doorbell_contract::{
    CompletionFlags, Control, Counter, DescFlags, DeviceFault, ErrorCode, HwDesc, LENGTH_LIMIT_MAX, Register,
    State, Status,
};
use doorbell_engine::{Digest, Engine};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;

pub(super) fn r11_no_half_of_an_offset_is_ignored(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig {
        length_limit: LENGTH_LIMIT_MAX,
        token_bytes: 4096,
        kv_bytes: 4096,
        ..Default::default()
    };
    let mut rig = bench.open(config)?;
    let at = |delta_offset, max_tokens| HwDesc::decode(1, 0, max_tokens).with_delta_offset(delta_offset);
    let single = (32..64).flat_map(|bit| {
        let kv = HwDesc { kv_offset: 1 << bit, ..at(0, 4) };
        [at(1 << bit, 4), at(1 << bit | 64, 4), kv]
    });
    // Ends at 2^32 and at 2^64, and a little behind them: a sum that wraps lies inside the region.
    let sums = [
        at(0xFFFF_FFFC, 1),
        at(0xFFFF_FFFC, 3),
        at(u64::MAX - 3, 1),
        at(u64::MAX - 3, 3),
        at(0xFFFF_FFFF_0000_0000, 1 << 30),
        at(0xFFFF_FFFF_0000_0000, (1 << 30) + 1),
        at(0, 1 << 30),
        at(0, (1 << 30) + 1),
        at(0, LENGTH_LIMIT_MAX),
    ];
    let bad: Vec<HwDesc> =
        single.chain(sums).zip(0..).map(|(desc, position)| desc.with_user_data(position)).collect();
    let before = rig.snapshot()?;
    let ends = by_position(&rig.run(&bad)?, bad.len())?;
    for (desc, end) in bad.iter().zip(&ends) {
        ensure_eq!(end.error, ErrorCode::BadRegion as u8, "R11: error of {desc:x?}");
    }
    ensure_eq!(rig.driver.counter(Counter::Tokens)?, 0, "R11: tokens of rejected descriptors");
    let tokens = rig.driver.layout().tokens / 4..;
    ensure!(rig.snapshot()?[tokens.clone()] == before[tokens], "R11: a rejected descriptor wrote tokens");
    rig.check(&numbered([HwDesc::decode(1, 0, 1024)]))?;
    Ok(())
}

pub(super) fn r06_a_draw_at_eos_threshold_is_no_end(bench: &mut Bench<'_>) -> Result<(), Failure> {
    // Probability n / 32768: a draw ends its sequence below the threshold, not at it.
    let ends = |position, threshold| {
        Engine::Hash
            .begin(&HwDesc::decode(5, position, 1), 0, threshold)
            .expect("of the descriptor alone")
            .step()
            .eos
    };
    let drawn = |position| (1..0x8000).find(|&threshold| ends(position, threshold)).map(|t| t - 1);
    for position in [0, 7, 20] {
        let drawn = drawn(position).ok_or_else(|| Failure("a draw is below 32768".into()))?;
        for (eos_threshold, flags) in [(drawn, CompletionFlags::empty()), (drawn + 1, CompletionFlags::EOS)] {
            let mut rig = bench.open(QueueConfig { eos_threshold, ..Default::default() })?;
            let one = HwDesc::decode(5, position, 1);
            let ends = rig.check(&numbered([one, one.with_flags(DescFlags::EOS_STOPS)]))?;
            for end in ends {
                ensure_eq!(
                    end.flags,
                    flags.bits(),
                    "R6: flags of a token drawn at {drawn:#x} with EOS_THRESHOLD {eos_threshold:#x}"
                );
            }
        }
    }
    Ok(())
}

pub(super) fn r09_a_score_at_reward_threshold_goes_on(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for rollout in 0..4 {
        let mut decoder =
            Engine::Hash.begin(&HwDesc::decode(rollout, 0, 5), 0, 0).expect("of the descriptor alone");
        let tokens: Vec<u32> = (0..5).map(|_| decoder.step().token).collect();
        let score = Digest::of(&tokens).score();
        for (reward_threshold, length, flags) in
            [(score, 8, CompletionFlags::empty()), (score + 1, 5, CompletionFlags::REJECTED)]
        {
            let mut rig = bench.open(QueueConfig { reward_threshold, ..Default::default() })?;
            let desc = HwDesc::decode(rollout, 0, 8).with_checkpoint(5).with_flags(DescFlags::RESIDENT);
            let end = rig.check(&numbered([desc]))?[0];
            let found = (end.status, end.final_seq_len, end.flags);
            let expected = (Status::Done as u8, length, flags.bits());
            ensure_eq!(
                found,
                expected,
                "R9: a score of {score:#x} at REWARD_THRESHOLD {reward_threshold:#x}"
            );
        }
    }
    Ok(())
}

pub(super) fn r09_checkpoints_beyond_16_bits(bench: &mut Bench<'_>) -> Result<(), Failure> {
    // None of these is reached, though the low half of each would be, or would be 'never'. Any score would reject.
    for far in [0x1_0000, 0x1_0001, 0x1_0005, 0x100_0013, 0x8000_0014] {
        for (own, checkpoint_default) in [(far, 3), (0, far)] {
            let config = QueueConfig { checkpoint_default, reward_threshold: i32::MAX, ..Default::default() };
            let mut rig = bench.open(config)?;
            let desc = HwDesc::decode(1, 0, 20).with_checkpoint(own);
            let ends = rig.check(&numbered([desc, desc.with_flags(DescFlags::RESIDENT)]))?;
            for end in ends {
                let found = (end.status, end.final_seq_len, end.flags);
                ensure_eq!(found, (Status::Done as u8, 20, 0), "R9: 20 tokens with a checkpoint of {far:#x}");
            }
        }
    }
    Ok(())
}

pub(super) fn r06_a_decode_of_more_than_65536_tokens(bench: &mut Bench<'_>) -> Result<(), Failure> {
    const WHOLE: u32 = 65_600;
    const CUT: u32 = 65_541;
    let mut rig = bench.open(QueueConfig { token_bytes: 64 + 8 * u64::from(WHOLE), ..Default::default() })?;
    // The first tokens lie in the middle of a line, and what was before them stays.
    let uncut = HwDesc::decode(1, 0, WHOLE).with_delta_offset(12).with_user_data(0);
    let cut = HwDesc::decode(1, 0, WHOLE).with_delta_offset(12 + 4 * u64::from(WHOLE)).with_checkpoint(CUT);
    let ends = rig.check(&[uncut, HwDesc { rollout_id: 2, ..cut }.with_user_data(1)])?;
    let found = (ends[1].status, ends[1].final_seq_len);
    ensure_eq!(found, (Status::RewardNeeded as u8, CUT), "R9: end of a DECODE at its checkpoint");
    ensure_eq!(rig.tokens(0, 3)?, vec![0; 3], "R11: words before the tokens");
    ensure_eq!(rig.driver.counter(Counter::Tokens)?, u64::from(WHOLE + CUT), "TOKENS");
    Ok(())
}

/// STATUS's count of refused doorbells.
fn refusals(rig: &mut Rig) -> Result<u32, Failure> {
    Ok(rig.driver.read(Register::Status)? & 0xFF)
}

pub(super) fn refused_doorbells_are_counted_up_to_255(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 8, cq_depth: 8, ..Default::default() })?;
    ensure_eq!(refusals(&mut rig)?, 0, "STATUS: refused doorbells after ENABLE");
    let bad = [
        (Register::Doorbell, 9),
        (Register::Doorbell, u32::MAX),
        (Register::CqHead, 1),
        (Register::CqHead, u32::MAX),
    ];
    for ((register, value), count) in bad.into_iter().zip(1..) {
        refused(rig.driver.write(register, value), &format!("{register} = {value:#x}"))?;
        ensure_eq!(refusals(&mut rig)?, count, "STATUS: refused doorbells after {register} = {value:#x}");
    }
    // An ENABLE of what is enabled starts nothing and clears nothing.
    rig.driver.write(Register::Control, Control::ENABLE.bits())?;
    ensure_eq!(refusals(&mut rig)?, 4, "STATUS: refused doorbells after another ENABLE");
    for count in 5..=258 {
        refused(rig.driver.write(Register::Doorbell, 9), "a doorbell beyond the ring")?;
        if count >= 253 {
            ensure_eq!(refusals(&mut rig)?, count.min(255), "STATUS: refused doorbells after {count}");
        }
    }
    rig.check(&numbered([HwDesc::decode(1, 0, 3)]))?;
    Ok(())
}

pub(super) fn r12_nothing_is_taken_while_inactive(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 8, cq_depth: 8, ..Default::default() })?;
    // Three completions that nobody takes, then a disable.
    rig.driver.submit(&numbered([HwDesc::nop(); 3]))?;
    rig.settle()?;
    rig.driver.disable()?;
    ensure_eq!(
        rig.driver.read(Register::Status)?,
        0,
        "R12: STATUS after a disable, which empties the queues"
    );
    let mut count = 0;
    for register in [Register::Doorbell, Register::CqHead] {
        let index = rig.driver.read(register)?;
        // Not even the index that is there.
        for value in [index, index.wrapping_add(1), index.wrapping_sub(1), 3] {
            refused(rig.driver.write(register, value), &format!("{register} = {value:#x} while inactive"))?;
            count += 1;
            ensure_eq!(refusals(&mut rig)?, count, "STATUS: refused doorbells while inactive");
            ensure_eq!(rig.driver.read(register)?, index, "{register} after a refused write");
        }
    }
    // An ENABLE that is refused keeps the count; one that succeeds clears it.
    let size = rig.driver.read(Register::CqSize)?;
    rig.driver.write(Register::CqSize, 3)?;
    rig.driver.write(Register::Control, Control::ENABLE.bits())?;
    rig.driver.platform_mut().advance(1)?;
    ensure_eq!(rig.driver.read(Register::Error)?, DeviceFault::BAD_CONFIG.bits(), "ERROR after a bad ENABLE");
    ensure_eq!(refusals(&mut rig)?, count, "STATUS: refused doorbells after a refused ENABLE");
    rig.driver.write(Register::Control, 0)?;
    rig.driver.write(Register::Error, u32::MAX)?;
    rig.driver.write(Register::CqSize, size)?;
    let state = State::from_bits_retain(rig.driver.read(Register::State)?);
    ensure_eq!(state, State::IDLE, "STATE after a refused ENABLE");
    rig.driver.enable()?;
    ensure_eq!(refusals(&mut rig)?, 0, "STATUS: refused doorbells after a good ENABLE");
    rig.check(&numbered([HwDesc::decode(1, 0, 3)]))?;
    Ok(())
}

pub(super) fn status_fills_saturate_at_255(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig { sq_depth: 512, cq_depth: 512, ..Default::default() })?;
    let fill = |rig: &mut Rig| -> Result<u32, Failure> { Ok(rig.driver.read(Register::Status)? >> 8 & 0xFF) };
    for (count, more) in [(254, 254), (255, 1), (256, 1), (257, 1), (511, 254)] {
        ensure_eq!(rig.driver.submit(&vec![HwDesc::nop(); more])?, more, "descriptors taken");
        rig.settle()?;
        ensure_eq!(fill(&mut rig)?, count.min(255), "STATUS: fill of the completion ring with {count}");
    }
    ensure_eq!(rig.drain()?.len(), 511, "R3: completions");
    ensure_eq!(fill(&mut rig)?, 0, "STATUS: fill of an empty completion ring");
    Ok(())
}
