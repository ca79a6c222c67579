//! The NIC's transport: does the collector store each entry once, whatever the network loses, doubles and reorders, and whenever the
//! collector is killed?
//!
//! A NIC sends entries of a window again and again, in any order, as if every time-out had run down. Frames and ACKs on their way are lost,
//! doubled or overtaken. A collector stores in order, holds what is early, writes to its file, then acknowledges. It is killed at any step:
//! what it holds, and what it appended and did not write, is gone; what is on its way is gone with the connection. It comes back with its
//! file, and says in its WELCOME what is next.

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// What an implementation may get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The collector acknowledges what it has appended and not written.
    AcknowledgesFirst,
    /// A collector that comes back counts from 0.
    ForgetsItsNumber,
    /// It comes back with a number that it wrote beside the file, before the file.
    NumberInAnotherFile,
    /// It stores what comes, early or not.
    StoresEarly,
    /// It stores what it has already.
    StoresTwice,
    /// The NIC completes what the collector holds and has not stored.
    CompletesHeld,
    /// The NIC sends nothing again that it sent before the collector was killed.
    SendsNothingAgain,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Entries that the NIC has completed: all below it.
    completed: u8,
    /// Entries that were sent on any connection: all below it.
    sent: u8,
    /// Frames on their way, by number.
    frames: BTreeSet<u8>,
    /// ACKs on their way: the next number, and whether the one behind it is held.
    acks: BTreeSet<(u8, bool)>,
    /// Numbers of the records in the file.
    file: Vec<u8>,
    /// For a mistake: the number beside it.
    beside: u8,
    /// What was appended and not written.
    appended: Vec<u8>,
    /// What came early.
    held: BTreeSet<u8>,
    /// The number that the collector takes next.
    next: u8,
    kills: u8,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The NIC sends a frame, for the first time or again.
    Send(u8),
    /// A frame is lost.
    Lose(u8),
    /// A frame arrives; with `true` another copy of it stays on its way.
    Arrive(u8, bool),
    /// The collector writes what it has appended.
    Write,
    /// The collector acknowledges.
    Acknowledge,
    /// An ACK is lost.
    LoseAck(u8, bool),
    /// An ACK arrives.
    ArriveAck(u8, bool),
    /// The collector is killed after it has written so many of the records that it appended, and comes back.
    Kill(u8),
}

/// The model, with at most one mistake.
#[derive(Clone, Debug)]
pub struct Transport {
    /// Entries.
    pub entries: u8,
    /// Entries on their way, at most.
    pub window: u8,
    /// How often the collector is killed, at most.
    pub kills: u8,
    /// What is wrong with it.
    pub mistake: Option<Mistake>,
}

impl Transport {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// A frame comes to the collector.
    fn take(&self, state: &mut State, number: u8) {
        let is_known = number < state.next || state.held.contains(&number);
        if is_known && !self.has(Mistake::StoresTwice) {
            return;
        }
        if number > state.next && !self.has(Mistake::StoresEarly) {
            state.held.insert(number);
            return;
        }
        state.appended.push(number);
        state.next = state.next.max(number + 1);
        while state.held.remove(&state.next) {
            state.appended.push(state.next);
            state.next += 1;
        }
    }
}

impl Model for Transport {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            completed: 0,
            sent: 0,
            frames: BTreeSet::new(),
            acks: BTreeSet::new(),
            file: vec![],
            beside: 0,
            appended: vec![],
            held: BTreeSet::new(),
            next: 0,
            kills: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let end = self.entries.min(state.completed.saturating_add(self.window));
        let first = if self.has(Mistake::SendsNothingAgain) { state.sent } else { state.completed };
        // Numbers are first sent in their order.
        actions.extend((first..end).filter(|&number| number <= state.sent).map(Action::Send));
        for &number in &state.frames {
            actions.extend([
                Action::Lose(number),
                Action::Arrive(number, false),
                Action::Arrive(number, true),
            ]);
        }
        if !state.appended.is_empty() {
            actions.push(Action::Write);
        }
        if state.appended.is_empty() || self.has(Mistake::AcknowledgesFirst) {
            actions.push(Action::Acknowledge);
        }
        for &(next, holds) in &state.acks {
            actions.extend([Action::LoseAck(next, holds), Action::ArriveAck(next, holds)]);
        }
        if state.kills < self.kills {
            actions.extend((0..=state.appended.len() as u8).map(Action::Kill));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Send(number) => {
                state.sent = state.sent.max(number + 1);
                state.frames.insert(number);
            }
            Action::Lose(number) => {
                state.frames.remove(&number);
            }
            Action::Arrive(number, is_doubled) => {
                if !is_doubled {
                    state.frames.remove(&number);
                }
                self.take(&mut state, number);
            }
            Action::Write => {
                state.file.append(&mut state.appended);
                state.beside = state.next;
            }
            Action::Acknowledge => {
                state.acks.insert((state.next, state.held.contains(&(state.next + 1))));
            }
            Action::LoseAck(next, holds) => {
                state.acks.remove(&(next, holds));
            }
            Action::ArriveAck(next, holds) => {
                state.acks.remove(&(next, holds));
                let to = if holds && self.has(Mistake::CompletesHeld) { next + 2 } else { next };
                state.completed = state.completed.max(to);
            }
            Action::Kill(written) => {
                state.kills += 1;
                state.file.extend(state.appended.drain(..usize::from(written)));
                // Written before the records themselves.
                state.beside = if written > 0 { state.next } else { state.beside };
                state.appended.clear();
                state.held.clear();
                state.frames.clear();
                state.acks.clear();
                state.next = match self.mistake {
                    Some(Mistake::ForgetsItsNumber) => 0,
                    Some(Mistake::NumberInAnotherFile) => state.beside,
                    _ => state.file.len() as u8,
                };
                // The WELCOME acknowledges as an ACK does.
                state.completed = state.completed.max(state.next);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each record is stored once, in order", |_, state: &State| {
                state.file.iter().zip(0..).all(|(&number, place)| number == place)
            }),
            Property::always("what is completed is stored", |_, state: &State| {
                usize::from(state.completed) <= state.file.len()
            }),
            Property::sometimes(
                "all arrive, through a collector that was killed",
                |model: &Self, state: &State| state.completed == model.entries && state.kills == model.kills,
            ),
            Property::always("what is not completed can be sent", |model: &Self, state: &State| {
                let mut actions = vec![];
                model.actions(state, &mut actions);
                state.completed == model.entries
                    || !state.frames.is_empty()
                    || !state.acks.is_empty()
                    || usize::from(state.completed) < state.file.len() + state.appended.len()
                    || actions.iter().any(|action| matches!(action, Action::Send(_)))
            }),
        ]
    }
}
