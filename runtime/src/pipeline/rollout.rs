//! What the hot thread knows of a rollout and of a group.

use doorbell_contract::MEMBERS_MAX;

use super::failure::FailureReason;
use super::source::Terms;
use crate::kv::{Branch, PrefixId};
use crate::reward::{JudgeFailure, Scorer};
use crate::trajectory::{GroupScore, Outcome};

/// What one slot holds.
#[derive(Debug)]
pub(super) struct Life {
    /// Number of the group.
    pub group: u32,
    /// Which of its rollouts, from 0.
    pub member: u32,
    /// Its `rollout_id` on the device.
    pub device_rollout: u32,
    /// Tokens that it has.
    pub produced: u32,
    /// DECODEs that have completed.
    pub segments: u32,
    /// Running number of its last descriptor.
    pub descriptor: u32,
    /// Tokens that its last DECODE added.
    pub added: u32,
    /// Tokens that no judge has seen: more than its last DECODE added if that was not the first since it was judged.
    pub unjudged: u32,
    /// The version that its last DECODE named.
    pub version: u16,
    /// Spans of its tokens, the version of the last, and the number of the publish that brought the version of the first.
    pub spans: u32,
    pub last_version: u16,
    pub oldest: u64,
    /// Tokens that its last DECODE may add before a checkpoint or the end.
    pub asked: u32,
    /// Its KV blocks, and the tokens that they are for.
    pub branch: Branch,
    pub appended: u32,
    /// Of one that has given its blocks back, those that host memory keeps for it; it has no branch then.
    pub kept: u32,
    /// Digest of its last segment.
    pub digest: u32,
    /// Last score, Q16.16, and who gave it.
    pub score: i32,
    pub scorer: Option<Scorer>,
    /// Judges that have failed to judge the answer that it has now.
    pub failed_verdicts: u32,
    /// The last of them.
    pub avoid: Option<u32>,
    /// How it ends, if it ends with its last segment.
    pub outcome: Option<Outcome>,
    /// A DECODE of it is in flight.
    pub decoding: bool,
    /// Its answer was posted before that DECODE has ended it.
    pub posted_ahead: bool,
    /// A STOP of it is in flight, or waits to be submitted; of one in a group of the device, the group counts its STOPs.
    pub stopping: bool,
    /// A STOP has been made of it as a member of its group (R17).
    pub left_group: bool,
    /// It makes no more DECODEs.
    pub over: bool,
    /// It is to end as soon as it can.
    pub aborted: bool,
    /// Why it has failed, if it has.
    pub failure: Option<FailureReason>,
    /// How many versions its oldest token lies back, if it was dropped for that.
    pub stale: Option<u64>,
    /// It waits for its group's PREFILL.
    pub waits: bool,
    /// It has come to its end, and waits for the others of its group, with which it is judged.
    pub parked: bool,
    /// Which judge has failed to judge it with its group, and of what.
    pub unscored: Option<(u32, JudgeFailure)>,
    /// What it is worth in its group.
    pub group_score: Option<GroupScore>,
    /// Slots of its group's members before and behind it, of those that live.
    pub previous: Option<u32>,
    pub next: Option<u32>,
}

impl Life {
    /// A slot that holds nothing.
    pub fn none() -> Life {
        Life {
            group: 0,
            member: 0,
            device_rollout: 0,
            produced: 0,
            segments: 0,
            descriptor: 0,
            added: 0,
            unjudged: 0,
            version: 0,
            spans: 0,
            last_version: 0,
            oldest: 0,
            asked: 0,
            branch: Branch::default(),
            appended: 0,
            kept: 0,
            digest: 0,
            score: 0,
            scorer: None,
            failed_verdicts: 0,
            avoid: None,
            outcome: None,
            decoding: false,
            posted_ahead: false,
            stopping: false,
            left_group: false,
            over: false,
            aborted: false,
            failure: None,
            stale: None,
            waits: false,
            parked: false,
            unscored: None,
            group_score: None,
            previous: None,
            next: None,
        }
    }

    /// The slot's next rollout.
    pub fn begin(&mut self, group: u32, member: u32, device_rollout: u32, branch: Branch) {
        *self = Life { group, member, device_rollout, branch, ..Life::none() };
    }
}

/// Where a group's PREFILL is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefill {
    /// To be submitted.
    Due,
    /// On the device.
    Running,
    /// A part of the prompt is made (engine 1), and the next is to be submitted.
    Parted,
    /// Registered.
    Done,
    /// Refused by the device: nothing can be decoded behind it.
    Failed,
    /// Never to be submitted: its request was aborted before.
    Never,
}

/// What the device has of a group (R17).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OnDevice {
    /// Whether the device knows the group: it opens it, and closes it with GROUP_DONE.
    pub takes_part: bool,
    /// Which queue pair it is in, if an entry of that is taken by it.
    pub queue: Option<usize>,
    /// Its PREFILL has been made, and not been refused.
    pub opened: bool,
    /// The last member has ended: GROUP_DONE was seen.
    pub closed: bool,
    /// Members that have ended there, a bit each.
    pub ended: u64,
    /// Descriptors that belong to it and whose completions were not seen, STOPs that wait to be submitted among them.
    pub flying: u32,
    /// A STOP of the whole group has been made.
    pub stopping: bool,
    /// STOPs of members whose completions were not seen, a bit each.
    pub member_stops: u64,
    /// The completion of the STOP of the whole group was not seen.
    pub group_stop: bool,
    /// STOPs that the device could not read, or refused.
    pub refused_stops: u32,
}

impl OnDevice {
    /// All members of a group of so many, a bit each.
    pub fn all(members: u32) -> u64 {
        u64::MAX >> (MEMBERS_MAX - members.clamp(1, MEMBERS_MAX))
    }

    /// Whether it is open, so that members may end in it.
    pub fn is_open(&self) -> bool {
        self.opened && !self.closed
    }
}

/// The rollouts of one request.
#[derive(Debug)]
pub(super) struct Group {
    /// Number of the request.
    pub request: u64,
    /// First of its ids on the device: that of its PREFILL, if it has one, and its `prefix_id`. Those of its members
    /// follow. `None` once nothing of it lives.
    pub wire_id: Option<u32>,
    /// Hash of what the trace tells of the prompt; names the prefix beyond this run.
    pub prefix_hash: u64,
    pub prompt_tokens: u32,
    /// Ids of the prompt, which judges read.
    pub prompt_ids: u32,
    pub output_tokens: u32,
    /// What its request asks for of its own.
    pub terms: Terms,
    pub prefill: Prefill,
    /// The prompt's blocks, until the PREFILL has come to its end.
    pub prefix: Option<PrefixId>,
    /// Of engine 1, the queue pair in whose memory prompt, sequences and blocks lie.
    pub region: usize,
    /// Positions of the prompt whose keys and values are made, once the group is the one that makes them; those that are once the PREFILL
    /// in flight is DONE; and the version that it names.
    pub made: Option<u32>,
    /// Those that were made before it.
    pub found: u32,
    pub part_end: u32,
    pub part_version: Option<u16>,
    pub device: OnDevice,
    /// The version of the policy that its rollouts decode under, once the first descriptor has named it.
    pub version: Option<u16>,
    /// Members that may make more DECODEs.
    pub open: u32,
    /// Whether its answers go to a judge, or have gone, and how many verdicts are awaited of that.
    pub judging: bool,
    pub awaited: u32,
    /// Whether it is queued for a judge: at most once at a time.
    pub called: bool,
    /// Calls of judges that did not give all verdicts, and whom to avoid therefore.
    pub failed_calls: u32,
    pub avoid: Option<u32>,
    /// Error code of its PREFILL, if that failed.
    pub error: u8,
    /// Slots of the first and the last member that live.
    pub first: Option<u32>,
    pub last: Option<u32>,
    /// Members that have not ended.
    pub left: u32,
    /// Members that have ended by themselves, and their tokens: what the others are expected to have.
    pub finished: u32,
    pub finished_tokens: u64,
}

impl Group {
    /// A number that no group has.
    pub fn none() -> Group {
        Group {
            request: 0,
            wire_id: None,
            prefix_hash: 0,
            prompt_tokens: 0,
            prompt_ids: 0,
            output_tokens: 0,
            terms: Terms::none(),
            prefill: Prefill::Due,
            prefix: None,
            region: 0,
            made: None,
            found: 0,
            part_end: 0,
            part_version: None,
            device: OnDevice::default(),
            version: None,
            open: 0,
            judging: false,
            awaited: 0,
            called: false,
            failed_calls: 0,
            avoid: None,
            error: 0,
            first: None,
            last: None,
            left: 0,
            finished: 0,
            finished_tokens: 0,
        }
    }

    /// Whether anything of it lives: a member, or something on the device.
    pub fn lives(&self) -> bool {
        self.left > 0 || self.device.flying > 0 || self.device.is_open()
    }

    /// Tokens that a member which has `produced` is expected to add yet: the mean of those that have ended, else its
    /// budget.
    pub fn expected(&self, produced: u32) -> u32 {
        let remaining = self.output_tokens - produced;
        match self.finished {
            0 => remaining,
            finished => {
                let mean = (self.finished_tokens / u64::from(finished)) as u32;
                // Who has outlived the mean may end with any token.
                mean.saturating_sub(produced).clamp(1, remaining.max(1))
            }
        }
    }
}
