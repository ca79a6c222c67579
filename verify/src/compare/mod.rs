//! Runs several devices on one plan and holds them to each other: every compared field of every completion, and every
//! token byte (R6).
//!
//! The first device is the reference. Each runs on its own thread, from the same [`ReplayPlan`].

mod divergence;
mod judge;
mod record;
mod switches;

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

pub use divergence::{Divergence, FieldDifference, TokenDifference};

use crate::life::Lives;
use crate::lockstep::Held;
use crate::replay::{Progress, ReplayFailure, ReplayPlan, replay, replay_lives};
use doorbell_contract::{Counter, Status};
use doorbell_host::device::{Counters, Device, WorkerCounters};
use doorbell_host::error::DeviceError;
use judge::{Side, judge};
use record::Record;

/// What one device did, and how it differs from the first.
#[derive(Debug)]
pub struct Outcome {
    /// The device's name; with a number where several have the same.
    pub name: String,
    /// Descriptors submitted.
    pub descriptors: u64,
    /// Completions received.
    pub completions: u64,
    /// Tokens that the completions account for.
    pub tokens: u64,
    /// Digest over the compared fields of all completions and all tokens, in the order of rollouts: independent of
    /// timing. What a STOP may cut is left out.
    pub digest: u64,
    /// Counter CYCLES at the end; `None` where the device no longer answered.
    pub cycles: Option<u64>,
    /// All counters at the end; `None` where the device no longer answered.
    pub counters: Option<Counters>,
    /// The life of each descriptor, where it was [kept](compare_lives).
    pub lives: Option<Lives>,
    /// Counters of each worker at the end; empty where the device has none.
    pub workers: Vec<WorkerCounters>,
    /// Versions of the policy that were published.
    pub published: u16,
    /// Completions as SUPERSEDED.
    pub superseded: u64,
    /// What differs when the model runs the same descriptors again, each cut where this device cut it; with publishes alone.
    pub rerun: Option<String>,
    /// What was held of its NPU in lockstep, by whoever had the device observed.
    pub lockstep: Option<Held>,
    /// Wall time of the replay.
    pub wall: Duration,
    /// Why the replay ended early, if it did.
    pub failure: Option<ReplayFailure>,
    /// The first completion, in the order in which the device posted them, that differs from the reference or breaks
    /// a rule. On the reference itself, a broken rule.
    pub divergence: Option<Divergence>,
    /// Rollout ids that differ.
    pub differing: u32,
}

impl Outcome {
    /// Whether the device finished and agrees with the reference.
    pub fn agrees(&self) -> bool {
        let in_step = self.lockstep.as_ref().is_none_or(|held| held.difference.is_none());
        self.failure.is_none() && self.divergence.is_none() && self.rerun.is_none() && in_step
    }
}

/// Replays `plan` on every device and compares each with the first. `progress` is called with a device's place in
/// `devices`, on that device's thread; breaking ends its replay.
///
/// Always ends (R15); a device that fails is part of the result.
///
/// # Panics
/// `devices` is empty, or `progress` panics.
pub fn compare(
    plan: &ReplayPlan,
    devices: &mut [Box<dyn Device>],
    progress: &(dyn Fn(usize, Progress) -> ControlFlow<()> + Sync),
) -> Vec<Outcome> {
    run(plan, devices, progress, false)
}

/// The same, and keeps the [life](Outcome::lives) of each descriptor. The devices have event rings with LIFE events.
///
/// # Panics
/// As [`compare`].
pub fn compare_lives(
    plan: &ReplayPlan,
    devices: &mut [Box<dyn Device>],
    progress: &(dyn Fn(usize, Progress) -> ControlFlow<()> + Sync),
) -> Vec<Outcome> {
    run(plan, devices, progress, true)
}

fn run(
    plan: &ReplayPlan,
    devices: &mut [Box<dyn Device>],
    progress: &(dyn Fn(usize, Progress) -> ControlFlow<()> + Sync),
    keeps: bool,
) -> Vec<Outcome> {
    let groups = devices.iter().all(|device| device.features().groups > 0);
    let (names, plan) = (unique_names(devices), if groups { plan } else { &plan.clone().without_groups() });
    let runs: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter_mut()
            .enumerate()
            .map(|(place, device)| {
                scope.spawn(move || {
                    let (replay, lives) = if keeps {
                        let (replay, lives) =
                            replay_lives(plan, &mut **device, &mut |at| progress(place, at));
                        (replay, Some(lives))
                    } else {
                        (replay(plan, &mut **device, &mut |at| progress(place, at)), None)
                    };
                    let counters = device.counters().ok();
                    let workers = device.worker_counters().unwrap_or_default();
                    let mut record = Record::new(plan, replay);
                    let digest = record.digest(&**device).unwrap_or_else(|error| {
                        record.fail(error);
                        0
                    });
                    (record, digest, (counters, workers, lives))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let side = |place: usize| Side { record: &runs[place].0, device: &*devices[place] };
    let verdicts: Vec<_> = (0..runs.len()).map(|place| judge(plan, side(0), side(place))).collect();
    let rerun = |place: usize| {
        let Side { record, device } = side(place);
        let complete = plan.publishes() && record.is_complete();
        let told = |error: DeviceError| Some(format!("the model cannot run it again: {error}"));
        if complete { switches::rerun(plan, record, device).unwrap_or_else(told) } else { None }
    };
    let reruns: Vec<_> = (0..runs.len()).map(rerun).collect();
    names
        .into_iter()
        .zip(runs)
        .zip(verdicts.into_iter().zip(reruns))
        .map(|((name, (record, digest, (counters, workers, lives))), ((divergence, differing), rerun))| {
            let replay = record.into_replay();
            let superseded =
                replay.completions.iter().filter(|end| end.status == Status::Superseded as u8).count();
            Outcome {
                name,
                descriptors: replay.descriptors,
                completions: replay.completions.len() as u64,
                tokens: replay.tokens,
                published: replay.published,
                superseded: superseded as u64,
                rerun,
                lockstep: None,
                digest,
                cycles: counters.map(|counters| counters.get(Counter::Cycles)),
                counters,
                workers,
                lives,
                wall: replay.wall,
                failure: replay.failure,
                divergence,
                differing,
            }
        })
        .collect()
}

/// The name of each device; with a number where several have the same.
pub fn unique_names(devices: &[Box<dyn Device>]) -> Vec<String> {
    let name = |place: usize| devices[place].name();
    (0..devices.len())
        .map(|place| {
            let earlier = (0..place).filter(|&other| name(other) == name(place)).count();
            if earlier == 0 { name(place).to_owned() } else { format!("{}#{}", name(place), earlier + 1) }
        })
        .collect()
}

#[cfg(test)]
mod language_tests;
#[cfg(test)]
mod tests;
