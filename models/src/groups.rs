//! Groups: is there exactly one GROUP_DONE, on the last completion that ends a member, whatever STOPs race with?
//!
//! One queue, one prefix, groups of two members. The host submits any sequence of [`Op`]s; a descriptor is admitted in
//! that order and bound to the group that is open then. DECODEs of different members run side by side and end in any
//! order; completions of one member are posted in its order (R5), a STOP's behind those of the member that it names, a
//! STOP of the group behind all of the group that came before it (R8). Where a completion is posted the group's bitmap is
//! updated, and the completion that fills it carries GROUP_DONE.

use stateright::{Model, Property};

/// Members of a group.
const MEMBERS: usize = 2;

/// What the host may submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// DECODE of a member.
    Decode(usize),
    /// STOP that names a member.
    Stop(usize),
    /// STOP of the whole group.
    StopAll,
    /// PREFILL: opens a group, if none is open.
    Open,
}

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// DONE: ends the member.
    Done,
    /// STOPPED: ends the member.
    Stopped,
    /// REWARD_NEEDED or SUPERSEDED: the member goes on.
    GoesOn,
    /// ERROR: the member is as it was.
    Error,
}

/// What an implementation may get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The bitmap is updated where a DECODE ends, not where its completion is posted.
    DecideWhereItEnds,
    /// Ends are counted, instead of members.
    CountEnds,
    /// A STOP of the group does not wait for what came before it.
    StopAllOvertakes,
    /// A STOP of the group ends only the members that have been seen.
    AbsentMembersStay,
    /// REWARD_NEEDED ends the member.
    CheckpointEnds,
    /// ERROR ends the member.
    ErrorEnds,
    /// A STOP ends a member only if it stopped a DECODE of it.
    StopNeedsADecode,
    /// A descriptor counts for the group that is open when it completes, not for its own.
    NoGeneration,
}

/// Where a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Admitted,
    /// Has ended; with the planted mistake, whether it has been told that it closes the group.
    Ended(End, bool),
    Posted,
}

/// A descriptor, with the generation of the group that was open when it was admitted (0 is none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    op: Op,
    generation: u8,
    stage: Stage,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    ended: [bool; MEMBERS],
    seen: [bool; MEMBERS],
    open: bool,
    ends: u8,
}

/// Everything; `closed` and `truth` judge what was posted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    entries: Vec<Entry>,
    groups: Vec<Group>,
    /// GROUP_DONEs posted, by generation.
    closed: Vec<u8>,
    /// Members that posted completions have ended, by generation, as the contract says it.
    truth: Vec<[bool; MEMBERS]>,
    /// A GROUP_DONE came before the last end, or the last end without it.
    wrong: bool,
    /// A STOP of a group was posted before a descriptor that it follows.
    overtaken: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The host submits, the device admits.
    Submit(Op),
    /// A DECODE ends.
    End(usize, End),
    /// A completion is posted.
    Post(usize),
}

/// The model, with at most one mistake.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Descriptors behind the first PREFILL.
    pub length: usize,
    /// What is wrong with it.
    pub mistake: Option<Mistake>,
}

impl Groups {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// The members that a completion ends, as the device sees it.
    fn ends(&self, entry: Entry, end: End, group: &Group, stopped_one: bool) -> [bool; MEMBERS] {
        let own = |m| std::array::from_fn(|k| k == m);
        match (entry.op, end) {
            (Op::Decode(m), End::Done | End::Stopped) => own(m),
            (Op::Decode(m), End::GoesOn) if self.has(Mistake::CheckpointEnds) => own(m),
            (Op::Decode(m), End::Error) if self.has(Mistake::ErrorEnds) => own(m),
            (Op::Stop(_), _) if self.has(Mistake::StopNeedsADecode) && !stopped_one => [false; MEMBERS],
            (Op::Stop(m), _) => own(m),
            (Op::StopAll, _) if self.has(Mistake::AbsentMembersStay) => group.seen,
            (Op::StopAll, _) => [true; MEMBERS],
            _ => [false; MEMBERS],
        }
    }

    /// Marks what `entry` ends; whether this closed its group.
    fn account(&self, state: &mut State, index: usize, end: End) -> bool {
        let entry = state.entries[index];
        let generation =
            if self.has(Mistake::NoGeneration) { state.groups.len() as u8 } else { entry.generation };
        let Some(at) = (generation as usize).checked_sub(1) else { return false };
        let stopped_one = state.entries[..index].iter().any(|earlier| match (earlier.op, entry.op) {
            (Op::Decode(m), Op::Stop(n)) => m == n && matches!(earlier.stage, Stage::Ended(End::Stopped, _)),
            _ => false,
        });
        let ends = self.ends(entry, end, &state.groups[at], stopped_one);
        let count_ends = self.has(Mistake::CountEnds);
        let group = &mut state.groups[at];
        if !group.open {
            return false;
        }
        for (ended, ends) in group.ended.iter_mut().zip(ends) {
            *ended |= ends;
            group.ends += u8::from(ends);
        }
        let full =
            if count_ends { usize::from(group.ends) >= MEMBERS } else { group.ended == [true; MEMBERS] };
        group.open = !full;
        full
    }
}

/// Whether the completion of `later` may not be posted before that of `earlier`.
fn follows(earlier: Op, later: Op) -> bool {
    match (earlier, later) {
        (Op::Decode(m) | Op::Stop(m), Op::Decode(n) | Op::Stop(n)) => m == n,
        (Op::Decode(_) | Op::Stop(_) | Op::StopAll, Op::StopAll) => true,
        _ => false,
    }
}

/// Whether `stop` stops a DECODE of `member`.
fn stops(stop: Op, member: usize) -> bool {
    stop == Op::Stop(member) || stop == Op::StopAll
}

impl Model for Groups {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let group = Group { ended: [false; MEMBERS], seen: [false; MEMBERS], open: true, ends: 0 };
        vec![State {
            entries: vec![],
            groups: vec![group],
            closed: vec![0],
            truth: vec![[false; MEMBERS]],
            wrong: false,
            overtaken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.entries.len() < self.length {
            // Members are alike: the first that is named is member 0.
            let named = state.entries.iter().any(|entry| matches!(entry.op, Op::Decode(_) | Op::Stop(_)));
            for m in 0..if named { MEMBERS } else { 1 } {
                actions.extend([Op::Decode(m), Op::Stop(m)].map(Action::Submit));
            }
            actions.extend([Op::StopAll, Op::Open].map(Action::Submit));
        }
        for (k, entry) in state.entries.iter().enumerate() {
            let earlier = &state.entries[..k];
            // R5: two descriptors of one rollout never run at the same time.
            let waits = |earlier: &[Entry]| {
                earlier.iter().any(|other| follows(other.op, entry.op) && other.stage != Stage::Posted)
            };
            match (entry.op, entry.stage) {
                (Op::Decode(m), Stage::Admitted) => {
                    let stopped = state.entries[k..].iter().any(|later| stops(later.op, m));
                    if !waits(earlier) {
                        actions.extend([End::Done, End::GoesOn, End::Error].map(|end| Action::End(k, end)));
                        if stopped {
                            actions.push(Action::End(k, End::Stopped));
                        }
                    }
                }
                (Op::Decode(_), Stage::Ended(..)) => actions.push(Action::Post(k)),
                (Op::Stop(_) | Op::Open, Stage::Admitted) if !waits(earlier) => actions.push(Action::Post(k)),
                (Op::StopAll, Stage::Admitted) if !waits(earlier) || self.has(Mistake::StopAllOvertakes) => {
                    actions.push(Action::Post(k));
                }
                _ => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Submit(op) => {
                let open = state.groups.last().is_some_and(|group| group.open);
                // An open one is PREFIX_BUSY, and nothing changes.
                if op == Op::Open && !open {
                    state.groups.push(Group {
                        ended: [false; MEMBERS],
                        seen: [false; MEMBERS],
                        open: true,
                        ends: 0,
                    });
                    state.closed.push(0);
                    state.truth.push([false; MEMBERS]);
                }
                if let (Op::Decode(m) | Op::Stop(m), Some(group)) = (op, state.groups.last_mut()) {
                    group.seen[m] = true;
                }
                let generation = state.groups.len() as u8;
                state.entries.push(Entry { op, generation, stage: Stage::Admitted });
            }
            Action::End(k, end) => {
                let closes = self.has(Mistake::DecideWhereItEnds) && self.account(&mut state, k, end);
                state.entries[k].stage = Stage::Ended(end, closes);
            }
            Action::Post(k) => {
                let entry = state.entries[k];
                let (end, decided) = match entry.stage {
                    Stage::Ended(end, closes) => {
                        (end, self.has(Mistake::DecideWhereItEnds).then_some(closes))
                    }
                    _ => (End::Stopped, None),
                };
                let group_done = decided.unwrap_or_else(|| self.account(&mut state, k, end));
                state.overtaken |= entry.op == Op::StopAll
                    && state.entries[..k].iter().any(|e| follows(e.op, entry.op) && e.stage != Stage::Posted);
                state.entries[k].stage = Stage::Posted;

                // The truth, by the contract's words alone.
                let at = usize::from(entry.generation) - 1;
                let before = state.truth[at] == [true; MEMBERS];
                for m in 0..MEMBERS {
                    state.truth[at][m] |= match entry.op {
                        Op::Decode(n) => n == m && matches!(end, End::Done | End::Stopped),
                        Op::Stop(n) => n == m,
                        Op::StopAll => true,
                        Op::Open => false,
                    };
                }
                let closes = !before && state.truth[at] == [true; MEMBERS];
                state.wrong |= group_done != closes;
                state.closed[at] += u8::from(group_done);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "GROUP_DONE is on the last end of its group, and only there",
                |_, state: &State| !state.wrong && state.closed.iter().all(|&count| count <= 1),
            ),
            Property::always("a STOP of the group completes last", |_, state: &State| !state.overtaken),
            Property::always("what has been admitted completes", |model: &Groups, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                actions.iter().any(|action| !matches!(action, Action::Submit(_)))
                    || state.entries.iter().all(|entry| entry.stage == Stage::Posted)
            }),
            Property::sometimes("two groups are closed", |_, state: &State| state.closed == [1, 1]),
            Property::sometimes("a group ends with an absent member", |_, state: &State| {
                state.closed[0] == 1 && !state.groups[0].seen[1]
            }),
        ]
    }
}
