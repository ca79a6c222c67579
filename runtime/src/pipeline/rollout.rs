//! What the hot thread knows of a rollout and of a group.

use super::failure::FailureReason;
use crate::kv::Branch;
use crate::trajectory::Outcome;

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
    /// Where its last DECODE lies in the submission queue, if there is one queue: the running index.
    pub index: u32,
    /// Where its STOP lies there.
    pub stop_index: Option<u32>,
    /// Tokens that its last DECODE added.
    pub added: u32,
    /// Tokens that its last DECODE may add before a checkpoint or the end.
    pub asked: u32,
    /// Its KV blocks.
    pub branch: Branch,
    /// Digest of its last segment.
    pub digest: u32,
    /// Last score, Q16.16.
    pub score: i32,
    /// Judges that have failed to judge the answer that it has now.
    pub failed_verdicts: u32,
    /// The last of them.
    pub avoid: Option<u32>,
    /// How it ends, if it ends with its last segment.
    pub outcome: Option<Outcome>,
    /// A DECODE of it is in flight.
    pub decoding: bool,
    /// A STOP of it is in flight, or waits to be submitted.
    pub stopping: bool,
    /// It is to end as soon as it can.
    pub aborted: bool,
    /// Why it has failed, if it has.
    pub failure: Option<FailureReason>,
    /// It waits for its group's PREFILL.
    pub waits: bool,
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
            index: 0,
            stop_index: None,
            added: 0,
            asked: 0,
            branch: Branch::default(),
            digest: 0,
            score: 0,
            failed_verdicts: 0,
            avoid: None,
            outcome: None,
            decoding: false,
            stopping: false,
            aborted: false,
            failure: None,
            waits: false,
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
    /// Registered.
    Done,
    /// Refused by the device: nothing can be decoded behind it.
    Failed,
}

/// The rollouts of one request.
#[derive(Debug)]
pub(super) struct Group {
    /// Number of the request.
    pub request: u64,
    /// First of its ids on the device: that of its PREFILL, if it has one, and its `prefix_id`. Those of its members
    /// follow.
    pub wire_id: u32,
    /// Hash of what the trace tells of the prompt; names the prefix beyond this run.
    pub prefix_hash: u64,
    pub prompt_tokens: u32,
    /// Ids of the prompt, which judges read.
    pub prompt_ids: u32,
    pub output_tokens: u32,
    pub prefill: Prefill,
    /// Where its PREFILL lies in the submission queue, if there is one queue.
    pub prefill_index: u32,
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
            wire_id: 0,
            prefix_hash: 0,
            prompt_tokens: 0,
            prompt_ids: 0,
            output_tokens: 0,
            prefill: Prefill::Due,
            prefill_index: 0,
            error: 0,
            first: None,
            last: None,
            left: 0,
            finished: 0,
            finished_tokens: 0,
        }
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
