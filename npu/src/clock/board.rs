//! `npu_scoreboard`: the word that is next is compared with one unit's in a cycle.

use crate::run::{Engine, Hazards, Issue};

/// A gang's.
#[derive(Debug, Default)]
pub(super) struct Board {
    flights: [Option<Issue>; 4],
    /// A word whose unit is started in this cycle.
    pub start: Option<Issue>,
    sync: bool,
    held: [bool; 4],
    at: usize,
    known: bool,
}

impl Board {
    /// The unit that the word may go to.
    pub fn asks(&self, issue: Option<Issue>) -> Option<usize> {
        let unit = issue?.engine() as usize;
        let free = !self.held.contains(&true) && !self.sync && self.flights[unit].is_none();
        (self.known && free).then_some(unit)
    }

    /// Whether no unit has a word of it.
    pub fn quiet(&self) -> bool {
        self.flights.iter().all(Option::is_none)
    }

    /// A cycle: the word that is next, whether its unit takes it, which units are done with a word of this gang.
    pub fn clock(&mut self, issue: Option<Issue>, taken: bool, done: [bool; 4]) {
        self.start = None;
        if let Some(issue) = issue.filter(|_| !self.known) {
            let own = issue.engine() as usize;
            let meets = |before: &Issue| Hazards::default().between(before, &issue);
            self.held[self.at] = self.at != own && self.flights[self.at].as_ref().is_some_and(meets);
            self.known = self.at == 3;
            self.at = (self.at + 1) % 4;
        }
        if let Some(issue) = issue.filter(|_| taken) {
            self.start = Some(issue);
            self.flights[issue.engine() as usize] = Some(issue);
            self.sync = issue.waited_for();
            self.known = false;
        }
        for unit in (0..4).filter(|&unit| done[unit]) {
            self.flights[unit] = None;
            self.held[unit] = false;
        }
        self.sync &= !done[Engine::Mem as usize];
    }
}
