//! Whether a queue pair keeps R17: a second statement of it beside the devices', for whoever sees descriptors and
//! completions.
//!
//! ```
//! use doorbell_contract::{CompletionFlags, HwCompletion, HwDesc, Status};
//! use doorbell_verify::groups::GroupJudge;
//!
//! let mut judge = GroupJudge::default();
//! let (open, member) = (HwDesc::open_group(5, 100, 1), HwDesc::decode(1, 100, 8).with_member(5, 0));
//! judge.submitted(&open);
//! judge.submitted(&member);
//! let done = HwCompletion { status: Status::Done as u8, ..Default::default() };
//! assert_eq!(judge.completed(&open, &done), Ok(()));
//! assert!(judge.completed(&member, &done).is_err(), "the last member has ended, and GROUP_DONE is missing");
//! ```

use std::collections::HashMap;

use doorbell_contract::{
    CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc, MEMBER_NONE, Opcode, Status,
};

/// Judges one queue pair whose host opens no prefix anew before it has seen its GROUP_DONE.
#[derive(Clone, Debug, Default)]
pub struct GroupJudge {
    groups: HashMap<u32, Group>,
    /// What stood before a STOP of its whole group that has completed: it was rejected, and so of no group, or it is late.
    overtaken: HashMap<u64, u32>,
    closed: u64,
}

#[derive(Clone, Debug)]
struct Group {
    members: u32,
    ended: u64,
    /// Its PREFILL has completed.
    filled: bool,
    /// The rollout of a descriptor that completed before it: it was of no group, if the PREFILL is rejected.
    early: Option<u32>,
    /// What was submitted behind its PREFILL and has not completed: is it a STOP of the whole group?
    pending: Vec<(u64, bool)>,
}

impl GroupJudge {
    /// Notes a descriptor, in the order of submission.
    pub fn submitted(&mut self, desc: &HwDesc) {
        if opens(desc) {
            // One that is open answers PREFIX_BUSY, and stays.
            self.groups.entry(desc.prefix_id).or_insert(Group {
                members: desc.max_tokens,
                ended: 0,
                filled: false,
                early: None,
                pending: Vec::new(),
            });
        } else if belongs(desc)
            && let Some(group) = self.groups.get_mut(&desc.prefix_id)
            && (stops_all(desc) || u32::from(desc.member) < group.members)
        {
            group.pending.push((desc.user_data, stops_all(desc)));
        }
    }

    /// Judges the completion of `desc`, in the order of the completion queue. `user_data` tells descriptors of a group apart.
    ///
    /// # Errors
    /// How it breaks R17.
    pub fn completed(&mut self, desc: &HwDesc, completion: &HwCompletion) -> Result<(), String> {
        let found = completion.has(CompletionFlags::GROUP_DONE);
        let expected = self.expect(desc, completion)?;
        if found == expected {
            return Ok(());
        }
        let what = if found { "has GROUP_DONE and is not" } else { "lacks GROUP_DONE and is" };
        Err(format!(
            "R17: the completion of rollout {} {what} the last end of group {:#x}",
            desc.rollout_id, desc.prefix_id
        ))
    }

    /// Groups that have closed.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Groups that are open.
    pub fn open(&self) -> usize {
        self.groups.len()
    }

    fn expect(&mut self, desc: &HwDesc, completion: &HwCompletion) -> Result<bool, String> {
        let status = Status::try_from(completion.status);
        if opens(desc) {
            let Some(group) = self.groups.get_mut(&desc.prefix_id) else { return Ok(false) };
            if group.filled {
                // PREFIX_BUSY.
                return Ok(false);
            }
            // One that fails as it runs was admitted, and its group is open.
            let ran = match ErrorCode::try_from(completion.error) {
                Ok(ErrorCode::DmaFault) => !completion.has(CompletionFlags::NO_ECHO),
                Ok(ErrorCode::BadSequence) => true,
                _ => status == Ok(Status::Done),
            };
            if ran {
                if let Some(rollout) = group.early {
                    return Err(format!(
                        "R17: a descriptor of rollout {rollout}, of group {:#x}, has completed before its PREFILL",
                        desc.prefix_id
                    ));
                }
                group.filled = true;
            } else {
                self.groups.remove(&desc.prefix_id);
            }
            return Ok(false);
        }
        if !belongs(desc) {
            return Ok(false);
        }
        let overtaken = self.overtaken.remove(&desc.user_data);
        // The flags of a rejected descriptor have no effect: it belongs to no group.
        if status == Ok(Status::Error) && completion.error != ErrorCode::DmaFault as u8 {
            if let Some(group) = self.groups.get_mut(&desc.prefix_id) {
                group.pending.retain(|&(user_data, _)| user_data != desc.user_data);
            }
            return Ok(false);
        }
        if let Some(prefix_id) = overtaken {
            return Err(format!(
                "R8: the STOP of group {prefix_id:#x} has completed before a descriptor of it"
            ));
        }
        let Some(group) = self.groups.get_mut(&desc.prefix_id) else { return Ok(false) };
        let member = u32::from(desc.member);
        if !stops_all(desc) && member >= group.members {
            return Ok(false);
        }
        if !group.filled {
            group.early = Some(desc.rollout_id);
            group.pending.retain(|&(user_data, _)| user_data != desc.user_data);
            return Ok(false);
        }
        if let Some(at) = group.pending.iter().position(|&(user_data, _)| user_data == desc.user_data) {
            if stops_all(desc) {
                let before = group.pending.drain(..at).map(|(user_data, _)| (user_data, desc.prefix_id));
                self.overtaken.extend(before);
                group.pending.remove(0);
            } else {
                group.pending.remove(at);
            }
        }
        let all = u64::MAX >> (64 - group.members);
        if stops_all(desc) {
            group.ended = all;
        } else if desc.opcode == Opcode::Stop as u8 || matches!(status, Ok(Status::Done | Status::Stopped)) {
            group.ended |= 1 << member;
        }
        let closes = group.ended == all;
        if closes {
            self.groups.remove(&desc.prefix_id);
            self.closed += 1;
        }
        Ok(closes)
    }
}

fn opens(desc: &HwDesc) -> bool {
    desc.opcode == Opcode::Prefill as u8 && desc.max_tokens > 0
}

fn belongs(desc: &HwDesc) -> bool {
    let is = |opcode: Opcode| desc.opcode == opcode as u8;
    (is(Opcode::Decode) || is(Opcode::Stop)) && desc.flags & DescFlags::COW_PREFIX.bits() != 0
}

fn stops_all(desc: &HwDesc) -> bool {
    desc.opcode == Opcode::Stop as u8 && desc.member == MEMBER_NONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn end(status: Status, group_done: bool) -> HwCompletion {
        let flags = if group_done { CompletionFlags::GROUP_DONE.bits() } else { 0 };
        HwCompletion { status: status as u8, flags, ..Default::default() }
    }

    fn member(member: u16) -> HwDesc {
        HwDesc::decode(u32::from(member), 4, 1).with_member(9, member).with_user_data(u64::from(member))
    }

    fn opened(members: u32) -> GroupJudge {
        let open = HwDesc::open_group(9, 4, members).with_user_data(1000);
        let mut judge = GroupJudge::default();
        judge.submitted(&open);
        judge.completed(&open, &end(Status::Done, false)).unwrap();
        judge
    }

    #[rstest]
    #[case::missing([(0, Status::Done, false), (1, Status::Done, false)], false)]
    #[case::early([(0, Status::Done, true), (1, Status::Done, true)], false)]
    #[case::checkpoint([(0, Status::Done, false), (1, Status::RewardNeeded, true)], false)]
    #[case::error([(0, Status::Stopped, false), (1, Status::Error, true)], false)]
    #[case::superseded([(0, Status::Stopped, false), (1, Status::Superseded, true)], false)]
    #[case::right([(0, Status::Stopped, false), (1, Status::Done, true)], true)]
    #[case::open([(0, Status::Stopped, false), (1, Status::Superseded, false)], true)]
    fn r17_is_judged(#[case] ends: [(u16, Status, bool); 2], #[case] keeps: bool) {
        let mut judge = opened(2);
        (0..2).for_each(|k| judge.submitted(&member(k)));
        let verdicts: Result<Vec<()>, String> =
            ends.iter().map(|&(k, status, done)| judge.completed(&member(k), &end(status, done))).collect();
        assert_eq!(verdicts.is_ok(), keeps, "{verdicts:?}");
    }

    #[test]
    fn r08_a_stop_of_a_group_comes_last() {
        let mut judge = opened(64);
        let stop = HwDesc::stop_group(9).with_user_data(99);
        [member(63), stop].iter().for_each(|desc| judge.submitted(desc));
        let mut early = judge.clone();
        early.completed(&stop, &end(Status::Stopped, true)).unwrap();
        assert!(early.completed(&member(63), &end(Status::Stopped, false)).is_err());
        judge.completed(&member(63), &end(Status::Stopped, false)).unwrap();
        judge.completed(&stop, &end(Status::Stopped, true)).unwrap();
        assert_eq!((judge.closed(), judge.open()), (1, 0));
    }

    /// What was rejected, and what names no member, belongs to no group: a STOP need not wait for it, nor it for the PREFILL.
    #[test]
    fn r17_what_belongs_to_no_group_has_no_order() {
        let mut judge = GroupJudge::default();
        let open = HwDesc::open_group(9, 4, 2).with_user_data(1000);
        let [rejected, late] = [1, 0].map(|k| HwDesc { max_tokens: 0, ..member(k) });
        let stop = HwDesc::stop_group(9).with_user_data(99);
        [open, rejected, member(2), late, stop].iter().for_each(|desc| judge.submitted(desc));
        let bad = HwCompletion { error: ErrorCode::BadLength as u8, ..end(Status::Error, false) };
        judge.completed(&rejected, &bad).unwrap();
        judge.completed(&open, &end(Status::Done, false)).unwrap();
        judge.completed(&stop, &end(Status::Stopped, true)).unwrap();
        judge.completed(&member(2), &end(Status::Stopped, false)).unwrap();
        judge.completed(&late, &bad).unwrap();
        assert_eq!((judge.closed(), judge.open()), (1, 0));
    }

    #[rstest]
    #[case::failed(ErrorCode::DmaFault, CompletionFlags::empty(), true)]
    #[case::stuck(ErrorCode::BadSequence, CompletionFlags::empty(), true)]
    #[case::unreadable(ErrorCode::DmaFault, CompletionFlags::NO_ECHO, false)]
    #[case::rejected(ErrorCode::BadVersion, CompletionFlags::empty(), false)]
    fn r17_a_prefill_that_fails_as_it_runs_has_opened_its_group(
        #[case] error: ErrorCode,
        #[case] flags: CompletionFlags,
        #[case] opens: bool,
    ) {
        for found in [false, true] {
            let mut judge = GroupJudge::default();
            let open = HwDesc::open_group(9, 4, 1).with_user_data(1000);
            [open, member(0)].iter().for_each(|desc| judge.submitted(desc));
            let failed =
                HwCompletion { error: error as u8, flags: flags.bits(), ..end(Status::Error, false) };
            judge.completed(&open, &failed).unwrap();
            assert_eq!(judge.open(), usize::from(opens));
            let verdict = judge.completed(&member(0), &end(Status::Stopped, found));
            assert_eq!(verdict.is_ok(), found == opens, "GROUP_DONE {found}: {verdict:?}");
        }
    }

    #[test]
    fn r17_a_member_waits_for_its_prefill() {
        let mut judge = GroupJudge::default();
        let open = HwDesc::open_group(9, 4, 2);
        [open, member(1)].iter().for_each(|desc| judge.submitted(desc));
        judge.completed(&member(1), &end(Status::Done, false)).unwrap();
        let mut rejected = judge.clone();
        assert!(judge.completed(&open, &end(Status::Done, false)).is_err());
        // Of a group that was never opened it was no member.
        let bad = HwCompletion { error: ErrorCode::BadVersion as u8, ..end(Status::Error, false) };
        assert_eq!(rejected.completed(&open, &bad), Ok(()));
    }
}
