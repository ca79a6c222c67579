//! R18 to R21: versions of the policy, their publication, what becomes of the one before, and of its prefixes.

use std::collections::HashMap;

use rand_chacha::rand_core::Rng;

use super::rig::{below, by_position, numbered};
use super::{Bench, Failure, Rig, ensure, ensure_eq};
use crate::groups::GroupJudge;
use crate::oracle::Oracle;
use doorbell_contract::{
    Capability, DescFlags, ErrorCode, HwCompletion, HwDesc, HwPolicy, PolicyMode, Register, SlotState, Status,
};
use doorbell_host::config::QueueConfig;
use doorbell_host::device::Device;

/// Where the header lies: behind the tokens of all cases here.
const HEADER: u64 = (1 << 20) - 64;

fn has_policies(rig: &Rig) -> bool {
    rig.features.capability.contains(Capability::POLICY)
}

/// Writes the header of a version, and gives the POLICY that publishes it.
fn policy(rig: &mut Rig, version: u16, salt: u32, mode: PolicyMode) -> Result<HwDesc, Failure> {
    rig.driver.place_policy(HEADER, &HwPolicy::new(version, 0, salt, 0))?;
    Ok(HwDesc { rollout_id: u32::MAX, ..HwDesc::policy(version, mode) }.with_delta_offset(HEADER))
}

/// Publishes a version while nothing else is in flight.
fn publish(rig: &mut Rig, version: u16, salt: u32, mode: PolicyMode) -> Result<(), Failure> {
    let desc = policy(rig, version, salt, mode)?;
    let end = rig.run(&[desc])?[0];
    ensure_eq!((end.status, end.error), (Status::Done as u8, 0), "R19: POLICY of version {version}");
    Ok(())
}

/// Runs descriptors, each of another rollout, with `user_data` = position, against an oracle.
fn check(rig: &mut Rig, oracle: &Oracle, descs: &[HwDesc]) -> Result<(), Failure> {
    let ends = by_position(&rig.run(descs)?, descs.len())?;
    for (desc, end) in descs.iter().zip(&ends) {
        let answer = oracle.answer(desc);
        ensure_eq!(end.without_timing(), answer.completion, "R18: the end of {desc:x?}");
        ensure!(
            rig.tokens(desc.delta_offset, answer.tokens.len())? == answer.tokens,
            "R18: a token of another version in {desc:x?}"
        );
    }
    Ok(())
}

fn slot(version: u16, state: SlotState, newest: bool) -> u32 {
    u32::from(newest) << 24 | (state as u32) << 16 | u32::from(version)
}

fn ensure_slots(rig: &mut Rig, expected: [u32; 2]) -> Result<(), Failure> {
    let found = [rig.driver.read(Register::PolicySlot0)?, rig.driver.read(Register::PolicySlot1)?];
    ensure_eq!(found, expected, "R19: POLICY_SLOT_0 and POLICY_SLOT_1");
    Ok(())
}

pub(super) fn r18_tokens_come_from_the_version_they_name(bench: &mut Bench<'_>) -> Result<(), Failure> {
    use SlotState::{Empty, Resident};
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_policies(&rig) {
        let end = rig.run(&[HwDesc::policy(1, PolicyMode::Wait)])?[0];
        ensure_eq!(end.error, ErrorCode::BadOpcode as u8, "R10: POLICY on a device that has none");
        return Ok(());
    }
    ensure_slots(&mut rig, [slot(0, Resident, true), slot(0, Empty, false)])?;
    publish(&mut rig, 0x8001, 0xCAFE_F00D, PolicyMode::Wait)?;
    ensure_slots(&mut rig, [slot(0, Resident, false), slot(0x8001, Resident, true)])?;
    let both = |k: u32| {
        HwDesc::decode(k, 5 * k, 1 + k % 50).with_version(if k.is_multiple_of(2) { 0 } else { 0x8001 })
    };
    let oracle = rig.oracle().with_version(0x8001, 0xCAFE_F00D);
    // Versions that are half of one that is resident, and that are none.
    let none = [1, 0x8000, 0x0180, 0xFFFF].map(|version| HwDesc::decode(1000, 0, 3).with_version(version));
    check(&mut rig, &oracle, &numbered((0..60).map(both).chain(none)))?;
    // The third one takes the place of the first.
    publish(&mut rig, 2, 3, PolicyMode::Wait)?;
    ensure_slots(&mut rig, [slot(2, Resident, true), slot(0x8001, Resident, false)])?;
    let end = rig.run(&[HwDesc::decode(1, 0, 3)])?[0];
    ensure_eq!(end.error, ErrorCode::BadVersion as u8, "R18: a version whose slot was loaded anew");
    let oracle = oracle.with_version(2, 3);
    let both = |k: u32| {
        HwDesc::decode(k, 5 * k, 1 + k % 50).with_version(if k.is_multiple_of(2) { 2 } else { 0x8001 })
    };
    check(&mut rig, &oracle, &numbered((0..60).map(both)))?;
    // The first queue pair of a function begins with version 0.
    rig.driver.disable()?;
    rig.driver.enable()?;
    ensure_slots(&mut rig, [slot(0, Resident, true), slot(0, Empty, false)])?;
    rig.check(&numbered((0..20).map(|k| HwDesc::decode(k, 0, 9))))?;
    let end = rig.run(&[HwDesc::decode(1, 0, 3).with_version(2)])?[0];
    ensure_eq!(end.error, ErrorCode::BadVersion as u8, "R18: a version of a queue that was");
    Ok(())
}

pub(super) fn r19_what_a_publish_refuses(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_policies(&rig) {
        return Ok(());
    }
    publish(&mut rig, 7, 1, PolicyMode::Wait)?;
    let good = HwPolicy::new(8, 0, 5, 0);
    let torn = HwPolicy { salt: 6, ..good };
    let desc = HwDesc::policy(8, PolicyMode::Wait).with_delta_offset(HEADER);
    let cases = [
        (good, HwDesc { checkpoint: 3, ..desc }, ErrorCode::BadPolicy),
        (good, HwDesc { checkpoint: 0x101, ..desc }, ErrorCode::BadPolicy),
        (HwPolicy::new(7, 0, 5, 0), HwDesc { policy_version: 7, ..desc }, ErrorCode::BadPolicy),
        (HwPolicy::new(0, 0, 5, 0), HwDesc { policy_version: 0, ..desc }, ErrorCode::BadPolicy),
        (torn, desc, ErrorCode::BadPolicy),
        (HwPolicy::default(), desc, ErrorCode::BadPolicy),
        (HwPolicy::new(9, 0, 5, 0), desc, ErrorCode::BadPolicy),
        (HwPolicy::new(8, 1, 5, 0), desc, ErrorCode::BadPolicy),
        (HwPolicy::new(8, 0, 5, 64), desc, ErrorCode::BadPolicy),
        (good, HwDesc { model_id: 2, ..desc }, ErrorCode::BadModel),
        (good, HwDesc { delta_offset: HEADER - 32, ..desc }, ErrorCode::BadRegion),
        (good, HwDesc { delta_offset: HEADER + 64, ..desc }, ErrorCode::BadRegion),
        (good, HwDesc { delta_offset: u64::MAX - 63, ..desc }, ErrorCode::BadRegion),
    ];
    for (header, desc, code) in cases {
        rig.driver.place_policy(HEADER, &header)?;
        let end = rig.run(&[desc])?[0];
        ensure_eq!((end.status, end.error), (Status::Error as u8, code as u8), "R19: {desc:x?}, {header:x?}");
        ensure_slots(&mut rig, [slot(0, SlotState::Resident, false), slot(7, SlotState::Resident, true)])?;
    }
    rig.driver.place_policy(HEADER, &good)?;
    let end = rig.run(&[HwDesc { seq_len: 77, user_data: 5, ..desc }])?[0];
    let found = (end.status, end.final_seq_len, end.result, end.user_data);
    ensure_eq!(found, (Status::Done as u8, 77, 0, 5), "R19: a POLICY as it should be");
    Ok(())
}

/// Submits, gives the device some time, submits more, and returns the completions in the order in which they came.
fn interleaved(rig: &mut Rig, first: &[HwDesc], then: &[HwDesc]) -> Result<Vec<HwCompletion>, Failure> {
    let taken = rig.driver.submit(first)?;
    ensure_eq!(taken, first.len(), "descriptors taken by an empty queue");
    rig.driver.platform_mut().advance(1)?;
    let taken = rig.driver.submit(then)?;
    ensure_eq!(taken, then.len(), "descriptors taken");
    rig.drain()
}

pub(super) fn r19_a_slot_in_use_is_not_loaded(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let config = QueueConfig { wait_states: 100, ..Default::default() };
    let mut rig = bench.open(config)?;
    if !has_policies(&rig) {
        return Ok(());
    }
    publish(&mut rig, 1, 11, PolicyMode::Wait)?;
    let long = HwDesc::decode(1, 0, 2000).with_user_data(0);
    let desc = policy(&mut rig, 2, 22, PolicyMode::Wait)?.with_user_data(1);
    let arrived = interleaved(&mut rig, &[long], &[desc])?;
    let place = |k| arrived.iter().position(|end| end.user_data == k);
    let ends = by_position(&arrived, 2)?;
    // A device that runs one descriptor after the other comes to the POLICY when the slot is free.
    let code = if place(1) < place(0) { ErrorCode::PolicyBusy } else { ErrorCode::None };
    ensure_eq!(ends[1].error, code as u8, "R19: a POLICY while its slot is in use");
    ensure_eq!(ends[0].without_timing(), rig.oracle().answer(&long).completion, "R18: the DECODE in it");
    // The other slot's DECODEs are in nobody's way.
    if code == ErrorCode::PolicyBusy {
        let oracle = rig.oracle().with_version(1, 11);
        let long = long.with_version(1);
        let arrived = interleaved(&mut rig, &[long], &[desc])?;
        let ends = by_position(&arrived, 2)?;
        ensure_eq!(
            (ends[1].status, ends[1].error),
            (Status::Done as u8, 0),
            "R19: a POLICY into a free slot"
        );
        ensure_eq!(ends[0].without_timing(), oracle.answer(&long).completion, "R18: the DECODE beside it");
    }
    Ok(())
}

pub(super) fn r20_a_retired_version_ends(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for mode in [PolicyMode::Keep, PolicyMode::Abort, PolicyMode::Wait] {
        let config = QueueConfig { wait_states: 60, eos_threshold: 20, ..Default::default() };
        let mut rig = bench.open(config)?;
        if !has_policies(&rig) {
            return Ok(());
        }
        let cut = match mode {
            PolicyMode::Keep => Some(Status::Superseded),
            PolicyMode::Abort => Some(Status::Stopped),
            PolicyMode::Wait => None,
        };
        let resident = DescFlags::RESIDENT | DescFlags::EOS_STOPS;
        let running = (0..24).map(|k| match k % 4 {
            0 => HwDesc::decode(k, 0, 3000).with_flags(resident).with_checkpoint(8 + k),
            1 => HwDesc::decode(k, 0, 3000).with_flags(DescFlags::EOS_STOPS),
            _ => HwDesc::decode(k, 0, 1 + 100 * k),
        });
        // Behind the POLICY: of the version that is retired, and of the one that is new once it is known to be there.
        let behind = (50..60).map(|k| HwDesc::decode(k, 0, 40));
        let descs = numbered(running.chain(behind));
        let oracle = rig.oracle();
        let desc = policy(&mut rig, 5, 55, mode)?.with_user_data(descs.len() as u64);
        let (first, last) = descs.split_at(24);
        let then: Vec<HwDesc> = [desc].into_iter().chain(last.iter().copied()).collect();
        let arrived = interleaved(&mut rig, first, &then)?;
        let published = arrived.iter().position(|end| end.user_data == desc.user_data);
        let ends = by_position(&arrived, descs.len() + 1)?;
        ensure_eq!(ends[descs.len()].status, Status::Done as u8, "R19: POLICY while DECODEs run");
        for (desc, end) in descs.iter().zip(&ends) {
            let length = end.final_seq_len.wrapping_sub(desc.seq_len);
            let answer = match cut {
                Some(status) if end.status == status as u8 => oracle.cut(desc, length, status),
                _ => oracle.answer(desc),
            };
            ensure_eq!(end.without_timing(), answer.completion, "R20: the end of {desc:x?} with {mode}");
            ensure!(
                rig.tokens(desc.delta_offset, answer.tokens.len())? == answer.tokens,
                "R20: tokens of {desc:x?}"
            );
        }
        // Now that the version is known to be retired.
        let late = numbered(
            (100..110).map(|k| HwDesc::decode(k, 7, 30).with_version(if k % 2 == 0 { 0 } else { 5 })),
        );
        let oracle = oracle.with_version(5, 55);
        let ends = by_position(&rig.run(&late)?, late.len())?;
        for (desc, end) in late.iter().zip(&ends) {
            let answer = match cut.filter(|_| desc.policy_version == 0) {
                Some(status) => oracle.cut(desc, 0, status),
                None => oracle.answer(desc),
            };
            ensure_eq!(
                end.without_timing(),
                answer.completion,
                "R20: {desc:x?} after its retirement by {mode}"
            );
        }
        ensure!(published.is_some(), "R3: no completion of the POLICY");
        // A PREFILL begins nothing under a version that is retired.
        let end = rig.run(&[HwDesc::prefill(3, 5)])?[0];
        let code = if cut.is_some() { ErrorCode::BadVersion } else { ErrorCode::None };
        ensure_eq!(end.error, code as u8, "R18: a PREFILL of the version before, with {mode}");
    }
    Ok(())
}

pub(super) fn r21_prefixes_belong_to_their_version(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut rig = bench.open(QueueConfig::default())?;
    if !has_policies(&rig) || rig.features.groups == 0 {
        return Ok(());
    }
    let mut judge = GroupJudge::default();
    let mut ends_of = |rig: &mut Rig, descs: &[HwDesc]| -> Result<Vec<(u8, u8)>, Failure> {
        let descs = numbered(descs.iter().copied());
        descs.iter().for_each(|desc| judge.submitted(desc));
        let arrived = rig.run(&descs)?;
        for end in &arrived {
            judge.completed(&descs[end.user_data as usize], end).map_err(Failure)?;
        }
        let ends = by_position(&arrived, descs.len())?;
        Ok(ends.iter().map(|end| (end.status, end.error)).collect())
    };
    let member = |k: u16, version| HwDesc::decode(k.into(), 9, 4).with_member(7, k).with_version(version);
    let done = (Status::Done as u8, 0);
    let stale = (Status::Error as u8, ErrorCode::StalePrefix as u8);
    let found = ends_of(&mut rig, &[HwDesc::open_group(7, 9, 8), member(0, 0)])?;
    ensure_eq!(found, vec![done; 2], "R21: a member under its group's version");
    publish(&mut rig, 1, 11, PolicyMode::Wait)?;
    let found = ends_of(&mut rig, &[member(1, 1), member(1, 0)])?;
    ensure_eq!(found, vec![stale, done], "R21: members under the new version and the group's, with WAIT");
    // Its slot is loaded anew: nothing of its version is left.
    let found = ends_of(&mut rig, &[HwDesc::open_group(8, 9, 1).with_version(1)])?;
    ensure_eq!(found, vec![done], "R17: a group under the new version");
    publish(&mut rig, 2, 22, PolicyMode::Keep)?;
    let on = HwDesc { prefix_id: 8, ..member(0, 2) };
    let found = ends_of(&mut rig, &[member(2, 2), on])?;
    ensure_eq!(
        found,
        vec![stale, done],
        "R21: a group whose version was overwritten, and one that passed on with KEEP"
    );
    let found = ends_of(&mut rig, &[HwDesc::stop_group(7)])?;
    ensure_eq!(found, vec![(Status::Stopped as u8, 0)], "R17: a STOP of a stale group");
    let found = ends_of(&mut rig, &[HwDesc::open_group(7, 9, 8).with_version(2)])?;
    ensure_eq!(found, vec![done], "R17: the prefix opened anew");
    publish(&mut rig, 3, 33, PolicyMode::Abort)?;
    let gone = (Status::Stopped as u8, 0);
    let found = ends_of(&mut rig, &[member(3, 3), member(3, 2)])?;
    ensure_eq!(found, vec![stale, gone], "R21: members of a group whose version was aborted");
    let found = ends_of(&mut rig, &[HwDesc::stop_group(7)])?;
    ensure_eq!(found, vec![gone], "R17: a STOP of a stale group");
    ensure_eq!((judge.closed(), judge.open()), (3, 0), "R17: groups closed, open");
    Ok(())
}

/// Publishes of a random run; the environment variable `DOORBELL_PUBLISHES` asks for another number.
const PUBLISHES: u16 = 40;

/// Rollouts that begin anew for ever, and versions that are published meanwhile.
struct Load {
    oracle: Oracle,
    version: u16,
    /// The version and salt of the POLICY in flight.
    publishing: Option<(u16, u32)>,
    flying: HashMap<u64, HwDesc>,
    /// Descriptors to come, under the version that is resident then.
    due: Vec<HwDesc>,
    published: u16,
    superseded: u32,
    finished: u32,
}

impl Load {
    const ROLLOUTS: u32 = 16;
    const TOKENS: u32 = 600;

    fn fresh(id: u32, lap: u32) -> HwDesc {
        HwDesc::decode(lap << 8 | id, 0, Self::TOKENS)
            .with_delta_offset(u64::from(4 * id * Self::TOKENS))
            .with_user_data(id.into())
    }

    fn take(&mut self, rig: &Rig, end: &HwCompletion) -> Result<(), Failure> {
        if end.user_data == u64::from(Self::ROLLOUTS) {
            ensure_eq!((end.status, end.error), (Status::Done as u8, 0), "R19: POLICY {}", self.published);
            if let Some((version, salt)) = self.publishing.take() {
                self.oracle = self.oracle.clone().with_version(version, salt);
                self.version = version;
                self.published += 1;
            }
            return Ok(());
        }
        let desc = self.flying.remove(&end.user_data);
        let desc = desc.ok_or_else(|| Failure(format!("R3: {end:x?} answers nothing")))?;
        let length = end.final_seq_len.wrapping_sub(desc.seq_len);
        let cut = end.status == Status::Superseded as u8;
        let answer =
            if cut { self.oracle.cut(&desc, length, Status::Superseded) } else { self.oracle.answer(&desc) };
        ensure_eq!(end.without_timing(), answer.completion, "R20: the end of {desc:x?}");
        let tokens = rig.tokens(desc.delta_offset, answer.tokens.len())?;
        ensure!(tokens == answer.tokens, "R18: tokens of {desc:x?}");
        self.superseded += u32::from(cut);
        self.finished += u32::from(!cut);
        self.due.push(match desc.continued(end).filter(|_| cut) {
            Some(rest) => rest,
            None => Self::fresh(end.user_data as u32, (desc.rollout_id >> 8) + 1),
        });
        Ok(())
    }
}

/// Under load: every token is of the version of its span, and with KEEP no rollout is lost.
pub(super) fn r20_publishes_under_load_lose_nothing(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let asked = std::env::var("DOORBELL_PUBLISHES").ok().and_then(|text| text.parse().ok());
    let publishes = asked.unwrap_or(PUBLISHES);
    let mut random = bench.random();
    let mut rig = bench.open(QueueConfig { wait_states: 3, ..Default::default() })?;
    if !has_policies(&rig) {
        return Ok(());
    }
    let mut load = Load {
        oracle: rig.oracle(),
        version: 0,
        publishing: None,
        flying: HashMap::new(),
        due: (0..Load::ROLLOUTS).map(|id| Load::fresh(id, 0)).collect(),
        published: 0,
        superseded: 0,
        finished: 0,
    };
    let mut out = [HwCompletion::default(); 32];
    while load.published < publishes || !load.flying.is_empty() {
        // R19: nothing names a version before it is known to be resident, and the one that is to be overwritten is out of use.
        if load.publishing.is_none() && load.published < publishes {
            for desc in std::mem::take(&mut load.due) {
                let desc = desc.with_version(load.version);
                ensure_eq!(rig.driver.submit(&[desc])?, 1, "descriptors taken");
                load.flying.insert(desc.user_data, desc);
            }
            let old = load.flying.values().any(|desc| desc.policy_version != load.version);
            if !old && below(&mut random, 3) == 0 {
                let (version, salt) = (load.version + 1, random.next_u32());
                let desc = policy(&mut rig, version, salt, PolicyMode::Keep)?;
                rig.driver.submit(&[desc.with_user_data(Load::ROLLOUTS.into())])?;
                load.publishing = Some((version, salt));
            }
        }
        let taken = rig.driver.poll(&mut out)?;
        for end in &out[..taken] {
            load.take(&rig, end)?;
        }
    }
    let Load { finished, superseded, .. } = load;
    ensure!(finished > 0, "R20: no rollout has finished; {superseded} were superseded");
    Ok(())
}
