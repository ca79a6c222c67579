//! What a run of chaos drew, and what came of it.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use doorbell_contract::{ErrorCode, HwCompletion, Status};

/// Counts of one or many rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rounds: devices made anew.
    pub rounds: u64,
    /// Descriptors published.
    pub descriptors: u64,
    /// Completions judged, by status; those of ERROR by their code.
    pub completions: BTreeMap<&'static str, u64>,
    /// Descriptors whose completion got lost, as its write was answered with an error.
    pub lost: u64,
    /// Descriptors that a disable or a reset cancelled.
    pub cancelled: u64,
    /// Disturbances by kind.
    pub disturbances: BTreeMap<&'static str, u64>,
    /// Lives of queue pairs, from ENABLE to the end.
    pub lives: u64,
}

impl Tally {
    pub(super) fn completed(&mut self, completion: &HwCompletion) {
        let status = Status::try_from(completion.status).map_or("unknown", Status::name);
        let name = match ErrorCode::try_from(completion.error) {
            Ok(code) if code != ErrorCode::None => code.name(),
            _ => status,
        };
        *self.completions.entry(name).or_default() += 1;
    }

    pub(super) fn disturbed(&mut self, kind: &'static str) {
        *self.disturbances.entry(kind).or_default() += 1;
    }

    /// Completions of every kind.
    pub fn completed_total(&self) -> u64 {
        self.completions.values().sum()
    }
}

impl AddAssign<&Tally> for Tally {
    fn add_assign(&mut self, other: &Tally) {
        self.rounds += other.rounds;
        self.descriptors += other.descriptors;
        self.lost += other.lost;
        self.cancelled += other.cancelled;
        self.lives += other.lives;
        for (from, to) in
            [(&other.completions, &mut self.completions), (&other.disturbances, &mut self.disturbances)]
        {
            for (&name, count) in from {
                *to.entry(name).or_default() += count;
            }
        }
    }
}
