//! R4 stated by credits: can one function's full rings hold up another function?
//!
//! Two functions with a queue each share one worker. A descriptor of a queue is fetched into one of the queue's places,
//! assigned once the slots are reserved where its completion may go, run, and posted; the host reaps what is visible.
//! Function 0 may stop reaping at any time, for ever; function 1 reaps, and goes on reaping while it waits for room in
//! its submission queue. Every action but function 0's is finite work, so if function 1 is never *stuck* (it has work,
//! and nothing but function 0's host can move) then it ends in every fair order.

use stateright::{Model, Property};

/// What a descriptor may complete as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// In the completion queue.
    Plain,
    /// At a checkpoint: in the completion queue (DONE) or in the reward queue (REWARD_NEEDED, and then it is
    /// continued by one more descriptor).
    Checkpointed,
}

/// What an implementation may get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// A slot is sought when the completion is posted; the worker waits for it.
    ReserveWhenPosting,
    /// Where a completion may go to either ring, only one is reserved.
    ReserveOneRing,
    /// The ring that was not used keeps its reservation.
    KeepBothReservations,
    /// The queue is chosen first and its credit asked for then: the choice stands until there is one.
    CreditBehindTheChoice,
    /// Functions share the places for fetched descriptors.
    SharedPlaces,
    /// Function 1 does not reap while it waits for room in its submission queue.
    SubmitBlocks,
}

/// Slots of each submission queue.
const SUBMISSIONS: usize = 2;
/// Slots of each completion queue and of each reward queue.
const SLOTS: [u8; 2] = [2, 1];
/// Places for fetched descriptors, of each queue.
const PLACES: usize = 2;
/// Descriptors that each function submits, continuations not counted: enough that function 0 fills both its rings, and
/// that function 1 fills its reward queue and its submission queue, and has one more.
const WORK: [u8; 2] = [3, 4];

/// One function: its host, its queue, its credits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Descriptors that the host has yet to submit.
    left: u8,
    /// Continuations that the host has yet to submit.
    continued: u8,
    /// The host waits for room in the submission queue.
    waits: bool,
    /// Published, not fetched.
    published: Vec<Kind>,
    /// Fetched, not assigned, oldest first.
    fetched: Vec<Kind>,
    /// Slots reserved or unreleased: completion queue, reward queue.
    used: [u8; 2],
    /// Of these, visible to the host.
    visible: [u8; 2],
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    functions: [Function; 2],
    /// What the worker has: function, kind, and whether it has ended and waits for a slot of this ring.
    worker: Option<(usize, Kind, Option<usize>)>,
    /// The queue that was chosen and waits for its credit.
    chosen: Option<usize>,
    /// A completion was posted that had no slot.
    overflow: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The host submits one descriptor, or a continuation, if there is room; else it waits.
    Submit(usize, Kind),
    /// The host reaps one completion of a ring.
    Reap(usize, usize),
    /// The device fetches the next published descriptor.
    Fetch(usize),
    /// The device chooses a queue.
    Choose(usize),
    /// The device assigns the oldest fetched descriptor to the worker.
    Assign(usize),
    /// The worker's descriptor ends, and completes in this ring.
    End(usize),
    /// What has ended gets a slot.
    Post,
}

/// The model, with at most one mistake.
#[derive(Clone, Debug)]
pub struct Credits {
    /// What is wrong with it.
    pub mistake: Option<Mistake>,
}

impl Credits {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Slots that a descriptor of `kind` reserves in each ring when it is assigned.
    fn reserves(&self, kind: Kind) -> [u8; 2] {
        match kind {
            _ if self.has(Mistake::ReserveWhenPosting) => [0, 0],
            Kind::Plain => [1, 0],
            Kind::Checkpointed if self.has(Mistake::ReserveOneRing) => [1, 0],
            Kind::Checkpointed => [1, 1],
        }
    }

    fn has_credit(&self, function: &Function) -> bool {
        function.fetched.first().is_some_and(|&kind| {
            let wants = self.reserves(kind);
            (0..2).all(|ring| function.used[ring] + wants[ring] <= SLOTS[ring])
        })
    }

    fn may_fetch(&self, state: &State, id: usize) -> bool {
        let places = |id: usize| state.functions[id].fetched.len();
        let room = if self.has(Mistake::SharedPlaces) {
            places(0) + places(1) < PLACES
        } else {
            places(id) < PLACES
        };
        room && !state.functions[id].published.is_empty()
    }

    /// All actions that are possible in `state` and not function 0's host's.
    fn without_host_0(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.retain(|action| !matches!(action, Action::Submit(0, _) | Action::Reap(0, _)));
        actions
    }
}

impl Function {
    fn new(work: u8) -> Self {
        Self {
            left: work,
            continued: 0,
            waits: false,
            published: vec![],
            fetched: vec![],
            used: [0; 2],
            visible: [0; 2],
        }
    }

    /// Everything that was submitted has been reaped, and nothing is left to submit.
    fn is_done(&self) -> bool {
        self.left + self.continued == 0
            && self.published.is_empty()
            && self.fetched.is_empty()
            && self.used == [0; 2]
    }

    fn submission_room(&self) -> bool {
        self.published.len() + self.fetched.len() < SUBMISSIONS
    }
}

impl Model for Credits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { functions: WORK.map(Function::new), worker: None, chosen: None, overflow: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, function) in state.functions.iter().enumerate() {
            // A host that waits already, and finds no room again, does nothing.
            if function.left + function.continued > 0 && (function.submission_room() || !function.waits) {
                // A continuation first: what it was reserved for has been decided long ago.
                if function.continued > 0 {
                    actions.push(Action::Submit(id, Kind::Plain));
                } else {
                    actions.extend([Kind::Plain, Kind::Checkpointed].map(|kind| Action::Submit(id, kind)));
                }
            }
            let blocked = self.has(Mistake::SubmitBlocks) && function.waits;
            actions.extend(
                (0..2)
                    .filter(|&ring| function.visible[ring] > 0 && !blocked)
                    .map(|ring| Action::Reap(id, ring)),
            );
            if self.may_fetch(state, id) {
                actions.push(Action::Fetch(id));
            }
            if self.has(Mistake::CreditBehindTheChoice) {
                if state.chosen.is_none() && state.worker.is_none() && !function.fetched.is_empty() {
                    actions.push(Action::Choose(id));
                }
                if state.chosen == Some(id) && state.worker.is_none() && self.has_credit(function) {
                    actions.push(Action::Assign(id));
                }
            } else if state.worker.is_none() && self.has_credit(function) {
                actions.push(Action::Assign(id));
            }
        }
        match state.worker {
            Some((_, Kind::Plain, None)) => actions.push(Action::End(0)),
            Some((_, Kind::Checkpointed, None)) => actions.extend([Action::End(0), Action::End(1)]),
            Some((id, _, Some(ring))) if state.functions[id].used[ring] < SLOTS[ring] => {
                actions.push(Action::Post)
            }
            _ => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Submit(id, kind) => {
                let function = &mut state.functions[id];
                function.waits = !function.submission_room();
                if !function.waits {
                    function.published.push(kind);
                    if function.continued > 0 {
                        function.continued -= 1;
                    } else {
                        function.left -= 1;
                    }
                }
            }
            Action::Reap(id, ring) => {
                let function = &mut state.functions[id];
                function.visible[ring] -= 1;
                function.used[ring] -= 1;
                function.continued += ring as u8;
            }
            Action::Fetch(id) => {
                let function = &mut state.functions[id];
                let kind = function.published.remove(0);
                function.fetched.push(kind);
            }
            Action::Choose(id) => state.chosen = Some(id),
            Action::Assign(id) => {
                let function = &mut state.functions[id];
                let kind = function.fetched.remove(0);
                let wants = self.reserves(kind);
                (0..2).for_each(|ring| function.used[ring] += wants[ring]);
                state.worker = Some((id, kind, None));
                state.chosen = None;
            }
            Action::End(ring) => {
                let (id, kind, _) = state.worker?;
                let reserved = self.reserves(kind);
                let function = &mut state.functions[id];
                // Given back where it was not needed.
                if reserved[1 - ring] > 0 && !self.has(Mistake::KeepBothReservations) {
                    function.used[1 - ring] -= 1;
                }
                if reserved[ring] > 0 {
                    function.visible[ring] += 1;
                    state.overflow |= function.used[ring] > SLOTS[ring];
                    state.worker = None;
                } else {
                    state.worker = Some((id, kind, Some(ring)));
                }
            }
            Action::Post => {
                let (id, _, ring) = state.worker?;
                let (function, ring) = (&mut state.functions[id], ring?);
                function.used[ring] += 1;
                function.visible[ring] += 1;
                state.worker = None;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no slot is written that is not free", |_, state: &State| {
                !state.overflow
                    && state.functions.iter().all(|f| (0..2).all(|ring| f.used[ring] <= SLOTS[ring]))
            }),
            Property::always("function 1 is never stuck", |model: &Credits, state: &State| {
                state.functions[1].is_done() || !model.without_host_0(state).is_empty()
            }),
            Property::always(
                "a function that reaps waits for itself alone",
                |model: &Credits, state: &State| {
                    // Its host and its own queue can go on, or the worker is at work that ends by itself.
                    let running = matches!(state.worker, Some((_, _, None)));
                    let own = |action: &Action| match *action {
                        Action::Submit(id, _)
                        | Action::Reap(id, _)
                        | Action::Fetch(id)
                        | Action::Assign(id)
                        | Action::Choose(id) => id == 1,
                        Action::End(_) => true,
                        Action::Post => matches!(state.worker, Some((1, ..))),
                    };
                    state.functions[1].is_done() || running || model.without_host_0(state).iter().any(own)
                },
            ),
            Property::sometimes("function 1 ends while function 0 reaps nothing", |_, state: &State| {
                let stuck = &state.functions[0];
                state.functions[1].is_done() && stuck.used == SLOTS && stuck.visible == SLOTS
            }),
            Property::sometimes("both end", |_, state: &State| state.functions.iter().all(Function::is_done)),
        ]
    }
}
