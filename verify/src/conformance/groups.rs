//! R17: groups open, end and close. R8: a STOP of a whole group.

use rand_chacha::ChaCha8Rng;

use super::interrupts::{arm, has_interrupts, told};
use super::rig::{below, by_position, numbered};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use crate::groups::GroupJudge;
use doorbell_contract::{
    CompletionFlags, Counter, DescFlags, ErrorCode, HwCompletion, HwDesc, MEMBER_NONE, Opcode, PREFIX_NONE,
    Status,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;

/// Runs descriptors, whose `user_data` is their position, and judges their completions, in the order in which they came.
fn run(rig: &mut Rig, judge: &mut GroupJudge, descs: &[HwDesc]) -> Result<Vec<HwCompletion>, Failure> {
    descs.iter().for_each(|desc| judge.submitted(desc));
    let completions = rig.run(descs)?;
    for completion in &completions {
        let desc = descs.get(completion.user_data as usize);
        let desc = desc.ok_or_else(|| Failure(format!("R3: {completion:x?} answers nothing")))?;
        judge.completed(desc, completion).map_err(Failure)?;
    }
    by_position(&completions, descs.len())
}

fn has_groups(rig: &Rig) -> bool {
    rig.features.groups > 0
}

fn member(prefix_id: u32, member: u16, tokens: u32) -> HwDesc {
    HwDesc::decode(prefix_id << 8 | u32::from(member), 64, tokens).with_member(prefix_id, member)
}

pub(super) fn r17_a_group_closes_with_its_last_member(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_groups(&rig) {
        let ends = rig.run(&[HwDesc::open_group(1, 64, 1)])?;
        ensure_eq!(ends[0].error, ErrorCode::GroupFull as u8, "R17: a group on a device that has none");
        return Ok(());
    }
    // In one batch, so that members are there before their PREFILL has completed; and twice, so that entries come back.
    for lap in 0..2 {
        for members in [1u16, 2, 3, 31, 32, 33, 63, 64] {
            let prefix = u32::from(members) + 1000 * lap;
            let mut judge = GroupJudge::default();
            let open = HwDesc::open_group(prefix, 64, members.into());
            let decodes = (0..members).map(|k| member(prefix, k, 1 + u32::from(k) % 40));
            let descs = numbered([open].into_iter().chain(decodes));
            let ends = run(&mut rig, &mut judge, &descs)?;
            rig.compare(&descs, &ends)?;
            ensure_eq!((judge.closed(), judge.open()), (1, 0), "R17: groups of {members} closed, open");
        }
    }
    Ok(())
}

pub(super) fn r17_what_leaves_a_member_open(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_groups(&rig) {
        return Ok(());
    }
    let mut judge = GroupJudge::default();
    let mut step = |rig: &mut Rig, descs: Vec<HwDesc>, open: usize| -> Result<(), Failure> {
        run(rig, &mut judge, &numbered(descs))?;
        ensure_eq!(judge.open(), open, "R17: groups that are open");
        Ok(())
    };
    let cut = |k| member(7, k, 20).with_checkpoint(8);
    step(&mut rig, vec![HwDesc::open_group(7, 64, 2), cut(0), cut(1)], 1)?;
    // BAD_LENGTH, of each twice; what names no member, and what is no member of it.
    step(&mut rig, vec![member(7, 0, 0), member(7, 1, 0), member(7, 0, 0), member(7, 1, 0)], 1)?;
    let strangers = [member(7, 2, 4), member(7, 64, 4), member(7, MEMBER_NONE, 4), member(8, 0, 4)];
    step(&mut rig, strangers.to_vec(), 1)?;
    let without_flag = HwDesc { flags: 0, ..member(7, 0, 4) };
    step(&mut rig, vec![without_flag, HwDesc { flags: 0, ..member(7, 1, 4) }, HwDesc::stop(7 << 8)], 1)?;
    // A member that has ended ends once.
    step(&mut rig, vec![member(7, 0, 4), member(7, 0, 4), member(7, 0, 4)], 1)?;
    step(&mut rig, vec![member(7, 1, 4)], 0)?;
    // Behind the end of a group its descriptors belong to none.
    step(&mut rig, vec![member(7, 1, 4), HwDesc::stop(1).with_member(7, 0), HwDesc::stop_group(7)], 0)?;
    Ok(())
}

pub(super) fn r17_stops_end_members(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_groups(&rig) {
        return Ok(());
    }
    let mut judge = GroupJudge::default();
    let stop = |k: u16| HwDesc::stop(7 << 8 | u32::from(k)).with_member(7, k);
    // Members that never came, one that has ended, one beyond the last.
    let open = || HwDesc::open_group(7, 64, 3);
    run(
        &mut rig,
        &mut judge,
        &numbered([open(), stop(1), member(7, 0, 5), stop(0), stop(3), member(7, 2, 9)]),
    )?;
    ensure_eq!((judge.closed(), judge.open()), (1, 0), "R17: groups closed, open");
    // All at once: some ended, some running, most of them absent.
    for (lap, members) in [1, 2, 40, 64].into_iter().enumerate() {
        let some = (0..members.min(20)).map(|k| member(7, k as u16, 30));
        let descs = numbered([HwDesc::open_group(7, 64, members)].into_iter().chain(some).chain([
            HwDesc::stop_group(7),
            HwDesc::nop(),
            HwDesc::decode(1, 0, 3),
        ]));
        let ends = run(&mut rig, &mut judge, &descs)?;
        ensure_eq!((judge.closed(), judge.open()), (2 + lap as u64, 0), "R17: groups closed, open");
        let last = ends.len() - 3;
        ensure_eq!(ends[last].status, Status::Stopped as u8, "R8: status of the STOP of a group");
        check_stopped(&rig, &descs[1..last], &ends[1..last])?;
        rig.compare(&descs[last + 1..], &ends[last + 1..])?;
    }
    // None of a prefix without a group, or of 'none'.
    let ends =
        run(&mut rig, &mut judge, &numbered([HwDesc::stop_group(9), HwDesc::stop_group(PREFIX_NONE)]))?;
    ensure_eq!(ends[0].status, Status::Stopped as u8, "R8: a STOP of a group that is not there");
    ensure_eq!(ends[1].error, ErrorCode::BadPrefix as u8, "R10: a STOP of the group of no prefix");
    Ok(())
}

/// Each DECODE is whole, or a STOPPED prefix (R8).
fn check_stopped(rig: &Rig, descs: &[HwDesc], ends: &[HwCompletion]) -> Result<(), Failure> {
    for (desc, end) in descs.iter().zip(ends) {
        let length = end.final_seq_len.wrapping_sub(desc.seq_len);
        let expected = if end.status == Status::Stopped as u8 {
            rig.oracle().cut(desc, length, Status::Stopped)
        } else {
            rig.oracle().answer(desc)
        };
        ensure_eq!(end.without_timing(), expected.completion, "R8: the end of {desc:x?}");
        ensure!(
            rig.tokens(desc.delta_offset, expected.tokens.len())? == expected.tokens,
            "R8: tokens of {desc:x?}"
        );
    }
    Ok(())
}

pub(super) fn r08_a_stop_ends_a_group_that_runs(bench: &mut Bench<'_>) -> Result<(), Failure> {
    const TOKENS: u32 = 100_000;
    let config = QueueConfig { wait_states: 200, token_bytes: 8 << 20, ..Default::default() };
    let mut rig = bench.open(config)?;
    if !has_groups(&rig) {
        return Ok(());
    }
    let mut judge = GroupJudge::default();
    // Another group, and another rollout, run on.
    let apart = [member(3, 0, 20), HwDesc::decode(1, 64, 20)];
    let opens = [HwDesc::open_group(7, 64, 8), HwDesc::open_group(3, 64, 1)];
    let runs = (0..8).map(|k| member(7, k, TOKENS));
    let descs = numbered(opens.into_iter().chain(apart).chain(runs).chain([HwDesc::stop_group(7)]));
    let ends = run(&mut rig, &mut judge, &descs)?;
    check_stopped(&rig, &descs[2..12], &ends[2..12])?;
    for end in &ends[2..4] {
        ensure_eq!(end.status, Status::Done as u8, "R8: what does not belong to the group that is stopped");
    }
    for end in &ends[4..12] {
        ensure_eq!(end.status, Status::Stopped as u8, "R8: a member of the group that is stopped");
    }
    ensure_eq!((judge.closed(), judge.open()), (2, 0), "R17: groups closed, open");
    Ok(())
}

pub(super) fn r17_entries_run_out_and_come_back(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_groups(&rig) {
        return Ok(());
    }
    let entries = rig.features.groups;
    let mut judge = GroupJudge::default();
    let open = |prefix| HwDesc::open_group(prefix, 64, 2);
    let prefixes = rig.driver.counter(Counter::Prefixes)?;
    let all = (0..entries).map(open);
    // One too many, one that is open, one of more members than there are, a PREFILL without members.
    let bad = [open(entries), open(0), HwDesc::open_group(0, 64, 65), HwDesc::prefill(0, 64)];
    let ends = run(&mut rig, &mut judge, &numbered(all.chain(bad)))?;
    let codes: Vec<u8> = ends[entries as usize..].iter().map(|end| end.error).collect();
    let expected =
        [ErrorCode::GroupFull, ErrorCode::PrefixBusy, ErrorCode::BadLength, ErrorCode::None].map(|c| c as u8);
    ensure_eq!(codes, expected.to_vec(), "R17: what no entry, a prefix in use, and 65 members answer");
    ensure_eq!(rig.driver.counter(Counter::Prefixes)? - prefixes, u64::from(entries) + 1, "PREFIXES");
    // Each that closes gives room for one more.
    for prefix in (0..entries).rev() {
        run(&mut rig, &mut judge, &numbered([member(prefix, 1, 3), HwDesc::stop(5).with_member(prefix, 0)]))?;
        let ends = run(&mut rig, &mut judge, &numbered([open(prefix + 5000), open(prefix + 6000)]))?;
        let codes = [ends[0].error, ends[1].error];
        ensure_eq!(codes, [0, ErrorCode::GroupFull as u8], "R17: two groups where there is room for one");
    }
    ensure_eq!(judge.open(), entries as usize, "R17: groups that are open");
    // R12: a disable forgets them, and so does the judge.
    rig.driver.disable()?;
    rig.driver.enable()?;
    let mut judge = GroupJudge::default();
    let stop = (0..entries).map(|prefix| HwDesc::stop_group(prefix + 5000));
    let ends = run(&mut rig, &mut judge, &numbered((0..entries).map(|k| open(k + 5000)).chain(stop)))?;
    let good = ends.iter().all(|end| end.error == 0);
    ensure!(good, "R12: entries that a disable did not give back: {ends:x?}");
    ensure_eq!((judge.closed(), judge.open()), (entries.into(), 0), "R17: groups closed, open");
    Ok(())
}

pub(super) fn r17_the_end_of_a_group_asks_for_an_interrupt(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_groups(&rig) || !has_interrupts(&rig) {
        return Ok(());
    }
    let mut judge = GroupJudge::default();
    arm(&mut rig)?;
    run(&mut rig, &mut judge, &numbered([HwDesc::open_group(7, 64, 2), member(7, 1, 5)]))?;
    ensure_eq!(told(&mut rig)?, (true, false), "R14: armed, told, while a member is open");
    run(&mut rig, &mut judge, &numbered([member(7, 0, 5)]))?;
    ensure_eq!(told(&mut rig)?, (false, true), "R14: armed, told, once the group has closed");
    Ok(())
}

/// Groups of a random run; the environment variable `DOORBELL_GROUPS` asks for another number.
const RANDOM_GROUPS: u64 = 300;

pub(super) fn r17_random_groups_close_once(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let asked = std::env::var("DOORBELL_GROUPS").ok().and_then(|text| text.parse().ok());
    let mut random = bench.random();
    let config = QueueConfig { eos_threshold: 500, sq_depth: 128, cq_depth: 64, ..Default::default() };
    let mut rig = bench.open(config)?;
    if !has_groups(&rig) {
        return Ok(());
    }
    let mut judge = GroupJudge::default();
    let mut lives = Lives { open: Vec::new(), next: 0 };
    while judge.closed() < asked.unwrap_or(RANDOM_GROUPS) {
        let count = 1 + below(&mut random, 60);
        let entries = rig.features.groups as usize;
        let batch: Vec<HwDesc> = (0..count).map(|_| lives.draw(&mut random, entries)).collect();
        // Tokens may be written over each other: the digests stand for them.
        let descs: Vec<HwDesc> = batch.into_iter().zip(0..).map(|(desc, k)| desc.with_user_data(k)).collect();
        let before = judge.clone();
        let ends = run(&mut rig, &mut judge, &descs)?;
        for (desc, end) in descs.iter().zip(&ends) {
            let length = end.final_seq_len.wrapping_sub(desc.seq_len);
            let stopped = desc.opcode == Opcode::Decode as u8 && end.status == Status::Stopped as u8;
            let answer = if stopped {
                rig.oracle().cut(desc, length, Status::Stopped)
            } else {
                rig.oracle().answer(desc)
            };
            ensure_eq!(end.without_timing(), answer.completion, "R6: the end of {desc:x?}");
        }
        // The host has seen all GROUP_DONEs: these prefixes may be opened anew.
        let done = |prefix: u32| {
            descs
                .iter()
                .zip(&ends)
                .any(|(desc, end)| desc.prefix_id == prefix && end.has(CompletionFlags::GROUP_DONE))
        };
        lives.open.retain(|&(prefix, _)| !done(prefix));
        ensure!(judge.open() <= entries, "R17: {} groups are open, after {before:?}", judge.open());
    }
    Ok(())
}

/// Groups that a host has opened, and not seen closed.
struct Lives {
    /// Prefix and members.
    open: Vec<(u32, u32)>,
    next: u32,
}

impl Lives {
    /// A descriptor: most of them of a group that is open, some of which ended, stopped, failed or never came.
    fn draw(&mut self, random: &mut ChaCha8Rng, entries: usize) -> HwDesc {
        let kind = below(random, 100);
        if self.open.is_empty() || kind < 12 && self.open.len() < entries {
            let members = match below(random, 4) {
                0 => 1,
                1 => 64,
                _ => 2 + below(random, 7),
            };
            self.next += 1;
            self.open.push((self.next, members));
            return HwDesc { rollout_id: self.next << 8, ..HwDesc::open_group(self.next, 64, members) };
        }
        let (prefix, members) = self.open[below(random, self.open.len() as u32) as usize];
        let k = match below(random, 12) {
            0 => members as u16,
            1 => MEMBER_NONE,
            _ => below(random, members) as u16,
        };
        let desc = member(prefix, k, 1 + below(random, 40));
        match kind {
            0..50 => desc,
            50..60 => desc.with_checkpoint(1 + below(random, 20)),
            60..66 => HwDesc { max_tokens: 0, ..desc },
            66..70 => HwDesc { flags: desc.flags | DescFlags::FENCE.bits(), ..desc },
            70..74 => HwDesc { flags: desc.flags | DescFlags::EOS_STOPS.bits(), ..desc },
            74..78 => HwDesc::nop(),
            78..96 => HwDesc::stop(desc.rollout_id).with_member(prefix, k),
            _ => HwDesc::stop_group(prefix),
        }
    }
}
