//! What ends a run early.

use doorbell_contract::HwCompletion;
use doorbell_host::DeviceError;

use super::failure::Lost;
use super::{Stall, stalled};
use crate::kv::KvError;
use crate::rollout::TransitionError;

/// Why a pipeline cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A value that cannot be.
    #[error("{field} is {value}; it must be {expected}")]
    Options {
        /// The option.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What was expected of it.
        expected: String,
    },
    /// A request that can never be admitted.
    #[error("request {request} cannot run: {reason}")]
    Request {
        /// Its number.
        request: u64,
        /// Why not, and what to do.
        reason: String,
    },
    /// The device failed, or stopped answering (R15).
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A completion that no descriptor in flight asked for (R3).
    #[error(
        "{device} answered what nobody asked (R3): user_data {:#x}, rollout_id {}, status {:#04x}, final_seq_len {}: \
         {what}", completion.user_data, completion.rollout_id, completion.status, completion.final_seq_len
    )]
    Unasked {
        /// The device.
        device: String,
        /// What is wrong with it.
        what: &'static str,
        /// The completion.
        completion: HwCompletion,
    },
    /// Nothing of a slot of the submission queue could be trusted (NO_ECHO), and which descriptor that was cannot be told.
    #[error(
        "{device} could trust nothing of slot {index:#x} of a submission queue ({code}), and with several queues that index names \
         no rollout; look at the memory of the queues"
    )]
    Unread {
        /// The device.
        device: String,
        /// The running index in that queue.
        index: u32,
        /// The error code.
        code: &'static str,
    },
    /// Answers were to be scored by a device that cannot.
    #[error("{device} cannot score answers: {reason}")]
    Rewards {
        /// The device.
        device: String,
        /// What it lacks, and what to do.
        reason: String,
    },
    /// A group of the device did not end as it has to.
    #[error("{device} broke R17 in the group of request {request} (prefix_id {prefix}): {what}")]
    Group {
        /// The device.
        device: String,
        /// Number of the request.
        request: u64,
        /// The group's prefix.
        prefix: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// Some functions have a version of the policy that others refuse, so that no DECODE can name it, or the one before.
    #[error(
        "version {version} of the policy is resident on {resident} of {functions} functions of {device}, and the others refuse \
         it with {code} (R19)"
    )]
    Diverged {
        /// The device.
        device: String,
        /// The version.
        version: u16,
        /// Functions that have it.
        resident: usize,
        /// Functions that there are.
        functions: usize,
        /// The first error code of the others.
        code: &'static str,
    },
    /// A rollout was where it cannot be: an error of the runtime.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// Blocks were used as they cannot be, or not promised: an error of the runtime.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// More rollouts have failed than may.
    #[error("{failed} rollouts have failed, and at most {limit} may; the last was {last}")]
    Failures {
        /// How many have.
        failed: u64,
        /// How many may ([`Options::max_failures`](super::Options::max_failures)).
        limit: u64,
        /// The last one.
        last: Lost,
    },
    /// Nobody is left to judge.
    #[error(
        "no judge is left: each has hung with no replacement left, or could not be made anew after a panic"
    )]
    NoJudges,
    /// The writer of trajectories has failed: what it failed of is told where it is ended.
    #[error("trajectories cannot be stored any more")]
    WriterFailed,
    /// A queue that holds every slot was full: an error of the runtime.
    #[error("the queue '{queue}' is full, though it holds every slot; an id is in it twice")]
    Overflow {
        /// The queue.
        queue: &'static str,
    },
    /// Nothing moved for too long (R15).
    #[error(
        "nothing has moved for {seconds:.0} s (R15): {in_flight} descriptors in flight on {device}; rollouts by state: \
         {occupancy}; why: {}",
        stalled::told(why)
    )]
    Stalled {
        /// How long.
        seconds: f64,
        /// The device.
        device: String,
        /// Its descriptors.
        in_flight: usize,
        /// Where the rollouts are.
        occupancy: String,
        /// What holds it, the root first as far as the runtime can tell.
        why: Vec<Stall>,
    },
}
