//! Why nothing moves: what a stalled pipeline waits for in the end.

use std::fmt;
use std::time::Duration;

use doorbell_host::why::Why;

use super::{Held, Pipeline, RuntimeError};
use crate::rollout::{RolloutId, State};

/// What a pipeline waits for in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// The device gives no completion.
    Device {
        /// Which of its queue pairs.
        queue: usize,
        /// Who waits for whom there.
        why: Box<Why>,
    },
    /// The device gives no completion, and cannot be asked why.
    Unreachable {
        /// Why not.
        problem: String,
    },
    /// A judge gives no score.
    Judge(Judging),
    /// The reward stage gives no score, and does not say who has what.
    Rewards {
        /// Answers that it has.
        answers: usize,
    },
    /// The writer stores nothing.
    Writer {
        /// Rollouts that it has.
        rollouts: u32,
    },
    /// A version waits to be published: descriptors or rollouts name the one whose slot it takes (R19).
    Version {
        /// The version that waits.
        version: u16,
        /// The one that is in use.
        used: u16,
        /// Descriptors in flight that name it.
        descriptors: u32,
        /// Rollouts that go on under it.
        rollouts: u32,
    },
    /// Groups are open that wait for members (R17).
    Groups {
        /// How many.
        open: u32,
    },
    /// The next request finds no room.
    Admission(Held),
    /// Rollouts live, and none of the above holds them.
    Unknown,
}

/// What a judge is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judging {
    /// Its number.
    pub judge: u32,
    /// The rollout whose answer it is at, or comes to next.
    pub rollout: RolloutId,
    /// For how long; `None` if it has not begun.
    pub since: Option<Duration>,
    /// Answers that it has.
    pub answers: usize,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { queue, why } => {
                write!(f, "queue pair {queue} of the device gives no completion: {why}")
            }
            Self::Unreachable { problem } => {
                write!(f, "the device gives no completion, and cannot be asked why: {problem}")
            }
            Self::Judge(Judging { judge, rollout, since: Some(since), answers }) => write!(
                f,
                "judge {judge} has been at the answer of rollout {rollout} for {:.0} s and has {answers} answers: give judges a \
                 deadline (--judge-deadline; PoolOptions::deadline)",
                since.as_secs_f64()
            ),
            Self::Judge(Judging { judge, rollout, since: None, answers }) => write!(
                f,
                "judge {judge} has {answers} answers, the first that of rollout {rollout}, and has not begun with it"
            ),
            Self::Rewards { answers } => write!(f, "the reward stage has {answers} answers and scores none"),
            Self::Writer { rollouts } => {
                write!(
                    f,
                    "the writer of trajectories has {rollouts} rollouts and stores none: look at its disk"
                )
            }
            Self::Version { version, used, descriptors, rollouts } => write!(
                f,
                "version {version} waits to be published: version {used}, whose slot it takes, is named by {descriptors} \
                 descriptors in flight and {rollouts} rollouts (R19)"
            ),
            Self::Groups { open } => {
                write!(f, "{open} groups are open and wait for the ends of their members (R17)")
            }
            Self::Admission(held) => write!(f, "the next request waits for {held}"),
            Self::Unknown => f.write_str(
                "nothing is with device, judges or writer, and no request waits: an error of the runtime",
            ),
        }
    }
}

impl Pipeline {
    /// The error of a pipeline in which nothing has moved for so long.
    #[cold]
    pub(super) fn stalled(&mut self, seconds: f64) -> RuntimeError {
        RuntimeError::Stalled {
            seconds,
            device: self.device.name().to_owned(),
            in_flight: self.device.in_flight(),
            occupancy: self.occupancy.to_string(),
            why: self.stalls(),
        }
    }

    /// All that hold. The first is the root as far as the runtime can tell: what comes later in a rollout's life waits for what comes
    /// earlier.
    fn stalls(&mut self) -> Vec<Stall> {
        let mut all = vec![];
        if self.device.in_flight() > 0 {
            match self.device.why() {
                Ok(queues) => all.extend(
                    queues.into_iter().map(|(queue, why)| Stall::Device { queue, why: Box::new(why) }),
                ),
                Err(error) => all.push(Stall::Unreachable { problem: error.to_string() }),
            }
        }
        match (self.rewards.slowest(), self.rewards.pending()) {
            (Some(judging), _) => all.push(Stall::Judge(judging)),
            (None, 0) => {}
            (None, answers) => all.push(Stall::Rewards { answers }),
        }
        let rollouts = self.occupancy.of(State::TrajectoryReady);
        if rollouts > 0 {
            all.push(Stall::Writer { rollouts });
        }
        all.extend(self.versions.stall());
        if self.open_groups > 0 {
            all.push(Stall::Groups { open: self.open_groups });
        }
        all.extend(self.held.map(Stall::Admission));
        if all.is_empty() {
            all.push(Stall::Unknown);
        }
        all
    }
}

/// What holds a stalled pipeline, on one line.
pub(super) fn told(stalls: &[Stall]) -> String {
    let all: Vec<String> = stalls.iter().map(Stall::to_string).collect();
    all.join("; also: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stall_names_its_rule_or_what_to_do() {
        let rollout = RolloutId::from_bits(7);
        let judging = Judging { judge: 2, rollout, since: Some(Duration::from_secs(61)), answers: 5 };
        let stalls = [
            (Stall::Judge(judging), "deadline"),
            (Stall::Judge(Judging { since: None, ..judging }), "not begun"),
            (Stall::Writer { rollouts: 3 }, "disk"),
            (Stall::Version { version: 4, used: 2, descriptors: 0, rollouts: 1 }, "R19"),
            (Stall::Groups { open: 2 }, "R17"),
            (Stall::Admission(Held::Blocks), "KV blocks"),
        ];
        for (stall, word) in stalls {
            assert!(stall.to_string().contains(word), "{stall}");
        }
    }
}
