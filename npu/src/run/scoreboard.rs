//! The executor of the hardware's order: issue in order, engines that each run one word at a time, and a scoreboard of ranges that holds
//! a word back while one in flight on another engine could still read or write what it writes or reads.

use std::collections::VecDeque;

use super::execute::Effect;
use super::machine::{Gang, Machine, Outcome, Stop};
use super::observe::Observer;
use super::sequence::{Issue, Next, Sequencer};
use super::work::{Engine, Range};
use crate::cycles::Costs;
use crate::isa::Fault;

/// Which hazards the scoreboard looks for; a machine without one of them is wrong, and tests have to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hazards {
    /// A word reads what one in flight writes.
    pub raw: bool,
    /// A word writes what one in flight reads.
    pub war: bool,
    /// A word writes what one in flight writes.
    pub waw: bool,
    /// Keys and values, by layer.
    pub kv: bool,
}

impl Default for Hazards {
    fn default() -> Self {
        Self { raw: true, war: true, waw: true, kv: true }
    }
}

impl Hazards {
    /// Whether `issue` has to wait for `before`.
    pub fn between(&self, before: &Issue, issue: &Issue) -> bool {
        let (earlier, later) = (before.writes(), issue.writes());
        let meets = |written: Option<Range>, others: &[Range]| {
            written
                .into_iter()
                .any(|written| others.iter().any(|&other| self.looks(written) && written.meets(other)))
        };
        // A range of keys and values is looked for as such alone.
        let lines = |range: Option<Range>, wanted: bool| {
            range.filter(|range| wanted || matches!(range, Range::Kv(_)))
        };
        meets(lines(earlier, self.raw), &issue.reads())
            || meets(lines(later, self.war), &before.reads())
            || lines(earlier, self.waw).is_some_and(|earlier| meets(later, &[earlier]))
    }

    fn looks(&self, range: Range) -> bool {
        self.kv || !matches!(range, Range::Kv(_))
    }
}

/// How long engines take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// As long as the hardware is expected to.
    Expected(Costs),
    /// Any time, from this seed: reads and writes of a word lie far apart.
    Random(u64),
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the first word to the end.
    pub cycles: u64,
    /// In which each of [`Engine::ALL`] had a word.
    pub busy: [u64; 4],
    /// Words, those that the sequencer executes itself among them.
    pub words: u64,
}

/// The executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scoreboard {
    /// What holds words back.
    pub hazards: Hazards,
    /// How long engines take.
    pub latency: Latency,
    /// Words that an engine's queue holds, the one that it runs among them.
    pub depth: usize,
}

impl Scoreboard {
    /// With all hazards, and queues of four.
    pub fn new(latency: Latency) -> Self {
        Self { hazards: Hazards::default(), latency, depth: 4 }
    }
}

/// A word in flight.
struct Flight {
    issue: Issue,
    /// Contexts, by place in the gang.
    places: Vec<usize>,
    /// When it reads and when its writes are there, once its engine has begun.
    times: Option<(u64, u64)>,
    effects: Option<Vec<Result<Effect, Fault>>>,
}

struct Run<'a, 'g> {
    board: &'a Scoreboard,
    machine: &'a mut Machine,
    memory: &'a [u8],
    gang: Gang<'g>,
    queues: [VecDeque<Flight>; 4],
    now: u64,
    draws: u64,
    timing: Timing,
}

impl Scoreboard {
    /// As [`Machine::step`], in the order in which words complete, and how long it took.
    ///
    /// What a context holds that was stopped is not said: words behind the one that stopped it may have been executed.
    ///
    /// # Panics
    /// As [`Machine::step`].
    pub fn step(
        &self,
        machine: &mut Machine,
        words: &[u64],
        gang: &[usize],
        observer: &mut dyn Observer,
    ) -> (Vec<Result<Outcome, Stop>>, Timing) {
        gang.iter().for_each(|&context| machine.begin(context));
        let memory = std::mem::take(&mut machine.memory);
        let lines = machine.settings.lines;
        let draws = match self.latency {
            Latency::Random(seed) => seed ^ 0x9E37_79B9_7F4A_7C15,
            Latency::Expected(_) => 1,
        };
        let queues = std::array::from_fn(|_| VecDeque::new());
        let gang = Gang::new(gang);
        let timing = Timing::default();
        let mut run = Run { board: self, machine, memory: &memory, gang, queues, now: 0, draws, timing };
        run.all(Sequencer::new(words, &memory, lines), observer);
        let (outcomes, timing) = (run.gang.outcomes(), Timing { cycles: run.now, ..run.timing });
        machine.memory = memory;
        (outcomes, timing)
    }
}

impl Run<'_, '_> {
    fn all(&mut self, mut sequencer: Sequencer<'_>, observer: &mut dyn Observer) {
        // The word that waits, and when it is there.
        let mut waiting = None;
        let mut fetched = 0;
        loop {
            if waiting.is_none() {
                let before = sequencer.own;
                waiting = Some(sequencer.next());
                // A cycle for each word, its own among them.
                fetched = self.now.max(fetched) + 1 + sequencer.own - before;
                self.timing.words += 1 + sequencer.own - before;
            }
            let idle = self.queues.iter().all(VecDeque::is_empty);
            if fetched <= self.now {
                match waiting {
                    Some(Ok(Next::Issue(issue))) if self.may_issue(&issue) => {
                        self.issue(issue);
                        waiting = None;
                        continue;
                    }
                    Some(Ok(over)) if idle && !matches!(over, Next::Issue(_)) => {
                        if self.gang.over(self.machine, over) {
                            return;
                        }
                        waiting = None;
                        continue;
                    }
                    Some(Err(refused)) if idle => {
                        for place in self.gang.running() {
                            self.gang.stop(self.machine, place, refused);
                        }
                        return;
                    }
                    _ => {}
                }
            }
            if idle && self.gang.running().is_empty() {
                return;
            }
            self.begin();
            self.advance(fetched, observer);
        }
    }

    /// Whether no hazard and no full queue holds a word back.
    fn may_issue(&self, issue: &Issue) -> bool {
        let own = issue.engine() as usize;
        let room = self.queues[own].len() < self.board.depth;
        // An engine runs its words one behind the other, so its own are no hazard.
        let others = self.queues.iter().enumerate().filter(|&(engine, _)| engine != own);
        let held = others
            .flat_map(|(_, queue)| queue)
            .any(|flight| self.board.hazards.between(&flight.issue, issue));
        let waits = self.queues.iter().flatten().any(|flight| flight.issue.waited_for());
        room && !held && !waits
    }

    fn issue(&mut self, issue: Issue) {
        let places = self.gang.running();
        let flight = Flight { issue, places, times: None, effects: None };
        self.queues[issue.engine() as usize].push_back(flight);
    }

    /// Engines that have a word begin with it.
    fn begin(&mut self) {
        for engine in Engine::ALL {
            let Some(flight) = self.queues[engine as usize].front() else { continue };
            if flight.times.is_some() {
                continue;
            }
            let (read, run) = match self.board.latency {
                Latency::Expected(costs) => {
                    let position = |&place: &usize| self.machine.contexts[self.gang.members[place]].position;
                    let positions: Vec<u32> = flight.places.iter().map(position).collect();
                    (0, costs.of(&flight.issue.work, &positions))
                }
                Latency::Random(_) => (self.draw(), self.draw()),
            };
            let times = (self.now + read, self.now + read + run.max(1));
            self.queues[engine as usize][0].times = Some(times);
        }
    }

    /// Mostly short, sometimes very long.
    fn draw(&mut self) -> u64 {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        let most = if self.draws >> 60 < 4 { 4000 } else { 40 };
        (self.draws >> 20) % most
    }

    /// To the next time at which something happens, and lets it happen.
    fn advance(&mut self, fetched: u64, observer: &mut dyn Observer) {
        let next = |flight: &Flight| match (flight.times, &flight.effects) {
            (Some((read, _)), None) => Some(read),
            (Some((_, done)), Some(_)) => Some(done),
            (None, _) => None,
        };
        let due = self.queues.iter().filter_map(|queue| queue.front().and_then(next)).min();
        let fetch = (fetched > self.now).then_some(fetched);
        let Some(now) = due.into_iter().chain(fetch).min() else {
            unreachable!("a word waits for none that is in flight")
        };
        self.now = self.now.max(now);
        for engine in Engine::ALL {
            let queue = &mut self.queues[engine as usize];
            let Some(flight) =
                queue.front_mut().filter(|flight| next(flight).is_some_and(|time| time <= now))
            else {
                continue;
            };
            match flight.effects {
                None => {
                    let (issue, places) = (flight.issue, flight.places.clone());
                    let effects = self.machine.effects(self.memory, &issue, self.gang.members, &places);
                    self.queues[engine as usize][0].effects = Some(effects);
                }
                Some(_) => {
                    let flight = queue.pop_front().expect("it was looked at");
                    let (read, done) = flight.times.expect("it was due");
                    self.timing.busy[engine as usize] += done - read;
                    let running = self.gang.running();
                    for (place, effect) in flight.places.into_iter().zip(flight.effects.into_iter().flatten())
                    {
                        if running.contains(&place) {
                            self.machine.take(&mut self.gang, place, &flight.issue, effect, observer);
                        }
                    }
                }
            }
        }
    }
}
