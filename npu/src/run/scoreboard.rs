//! The executor of the hardware's order: issue in order, engines that each run one word at a time, and a scoreboard of ranges that holds
//! a word back while one in flight on another engine could still read or write what it writes or reads.

use std::collections::VecDeque;
use std::fmt;

use super::execute::Effect;
use super::machine::{Gang, Machine, Outcome, Stop};
use super::observe::Observer;
use super::sequence::{Issue, Next, Refused, Sequencer};
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

/// Why an engine has no word in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// The word that is next is its own, and waits for what a word on another engine writes or reads.
    Operand,
    /// The word that is next is its own, and a token has to be there first.
    Token,
    /// The word that is next is another engine's, and waits: words are issued in the order of the program.
    Order,
    /// The sequencer has no word ready.
    Words,
    /// There is no word any more.
    End,
}

impl Idle {
    /// All of them. With several gangs the first one counts that any of them has.
    pub const ALL: [Self; 5] = [Self::Operand, Self::Token, Self::Order, Self::Words, Self::End];
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operand => "operand",
            Self::Token => "token",
            Self::Order => "order",
            Self::Words => "words",
            Self::End => "end",
        })
    }
}

/// What a run took. Of each engine `busy` and `idle` add up to `cycles`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the first word to the end.
    pub cycles: u64,
    /// In which each of [`Engine::ALL`] had a word.
    pub busy: [u64; 4],
    /// In which each had none, for each of [`Idle::ALL`].
    pub idle: [[u64; 5]; 4],
    /// Words, those that the sequencers execute themselves among them.
    pub words: u64,
}

/// The executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scoreboard {
    /// What holds words back.
    pub hazards: Hazards,
    /// How long engines take.
    pub latency: Latency,
    /// Whether words of a gang run on several engines at a time; else each waits for the one before.
    pub overlap: bool,
    /// Words that an engine's queue holds, the one that it runs among them.
    pub depth: usize,
}

impl Scoreboard {
    /// With all hazards, and queues of four.
    pub fn new(latency: Latency) -> Self {
        Self { hazards: Hazards::default(), latency, overlap: true, depth: 4 }
    }
}

/// A word in flight.
struct Flight {
    issue: Issue,
    /// Which gang's it is.
    gang: usize,
    /// Contexts, by place in the gang.
    places: Vec<usize>,
    /// When its engine began with it, when it reads and when its writes are there.
    times: Option<[u64; 3]>,
    effects: Option<Vec<Result<Effect, Fault>>>,
}

/// A gang and how far its program is.
struct Thread<'a, 'g> {
    gang: Gang<'g>,
    sequencer: Sequencer<'a>,
    /// The word that waits, and when it is there.
    waiting: Option<Result<Next, Refused>>,
    fetched: u64,
    /// Words of it in flight.
    flying: usize,
    over: bool,
}

struct Run<'a, 'g> {
    board: &'a Scoreboard,
    machine: &'a mut Machine,
    memory: &'a [u8],
    threads: Vec<Thread<'a, 'g>>,
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
        let (mut outcomes, timing) = self.steps(machine, words, &[gang], observer);
        (outcomes.remove(0), timing)
    }

    /// The same of several gangs, which have a sequencer each and share the engines: of those whose words may be issued the first in turn
    /// behind the one that had a word issued last.
    ///
    /// # Panics
    /// As [`Machine::step`], or if a context is in several gangs.
    pub fn steps(
        &self,
        machine: &mut Machine,
        words: &[u64],
        gangs: &[&[usize]],
        observer: &mut dyn Observer,
    ) -> (Vec<Vec<Result<Outcome, Stop>>>, Timing) {
        let mut all = gangs.concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]), "a context is in two places of {gangs:?}");
        all.iter().for_each(|&context| machine.begin(context));
        let memory = std::mem::take(&mut machine.memory);
        let lines = machine.settings.lines;
        let draws = match self.latency {
            Latency::Random(seed) => seed ^ 0x9E37_79B9_7F4A_7C15,
            Latency::Expected(_) => 1,
        };
        let threads = gangs.iter().map(|gang| Thread {
            gang: Gang::new(gang),
            sequencer: Sequencer::new(words, &memory, lines),
            waiting: None,
            fetched: 0,
            flying: 0,
            over: false,
        });
        let mut run = Run {
            board: self,
            machine,
            memory: &memory,
            threads: threads.collect(),
            queues: std::array::from_fn(|_| VecDeque::new()),
            now: 0,
            draws,
            timing: Timing::default(),
        };
        run.all(observer);
        let timing = Timing { cycles: run.now, ..run.timing };
        let outcomes = run.threads.into_iter().map(|thread| thread.gang.outcomes()).collect();
        machine.memory = memory;
        (outcomes, timing)
    }
}

impl Run<'_, '_> {
    fn all(&mut self, observer: &mut dyn Observer) {
        let mut turn = 0;
        while self.threads.iter().any(|thread| !thread.over) {
            let many = self.threads.len();
            let issued = (0..many).map(|k| (turn + k) % many).find(|&gang| self.go_on(gang));
            if let Some(gang) = issued {
                turn = gang + 1;
            } else if self.threads.iter().any(|thread| !thread.over) {
                self.begin();
                self.advance(observer);
            }
        }
    }

    /// Lets a gang have a word issued, or end; whether a word was issued.
    fn go_on(&mut self, gang: usize) -> bool {
        let thread = &mut self.threads[gang];
        if thread.over {
            return false;
        }
        if thread.waiting.is_none() {
            let before = thread.sequencer.own;
            thread.waiting = Some(thread.sequencer.next());
            // A cycle for each word, its own among them.
            let words = 1 + thread.sequencer.own - before;
            thread.fetched = self.now.max(thread.fetched) + words;
            self.timing.words += words;
        }
        let (waiting, idle, ready) = (thread.waiting, thread.flying == 0, thread.fetched <= self.now);
        match waiting.filter(|_| ready) {
            Some(Ok(Next::Issue(issue))) if self.held(gang, &issue).is_none() => {
                self.issue(gang, issue);
                return true;
            }
            Some(Ok(over)) if idle && !matches!(over, Next::Issue(_)) => {
                let thread = &mut self.threads[gang];
                thread.waiting = None;
                thread.over = thread.gang.over(self.machine, over);
                return !thread.over;
            }
            Some(Err(refused)) if idle => {
                let thread = &mut self.threads[gang];
                for place in thread.gang.running() {
                    thread.gang.stop(self.machine, place, refused);
                }
            }
            _ => {}
        }
        let thread = &mut self.threads[gang];
        thread.over = thread.flying == 0 && thread.gang.running().is_empty();
        false
    }

    /// What holds a gang's word back: its own engine's queue is full (`Order`), or a word in flight.
    fn held(&self, gang: usize, issue: &Issue) -> Option<Idle> {
        let own = issue.engine() as usize;
        let flights = |engine: usize| self.queues[engine].iter().filter(move |flight| flight.gang == gang);
        if (0..4).flat_map(flights).any(|flight| flight.issue.waited_for()) {
            return Some(Idle::Token);
        }
        // An engine runs its words one behind the other, so its own are no hazard.
        let others = (0..4).filter(|&engine| engine != own).flat_map(flights);
        let meets = |flight: &Flight| self.board.hazards.between(&flight.issue, issue);
        if others.into_iter().any(meets) {
            return Some(Idle::Operand);
        }
        let room = self.queues[own].len() < self.board.depth;
        let alone = self.board.overlap || self.threads[gang].flying == 0;
        (!room || !alone).then_some(Idle::Order)
    }

    /// Why an engine without a word has none.
    fn idle(&self, engine: Engine) -> Idle {
        let reasons = self.threads.iter().enumerate().map(|(gang, thread)| match thread.waiting {
            _ if thread.over => Idle::End,
            Some(Ok(Next::Issue(_))) if thread.fetched > self.now => Idle::Words,
            Some(Ok(Next::Issue(issue))) if issue.engine() == engine => {
                self.held(gang, &issue).unwrap_or(Idle::Order)
            }
            Some(Ok(Next::Issue(_))) => Idle::Order,
            Some(_) => Idle::End,
            None => Idle::Words,
        });
        reasons.min_by_key(|&reason| reason as usize).unwrap_or(Idle::End)
    }

    fn issue(&mut self, gang: usize, issue: Issue) {
        let thread = &mut self.threads[gang];
        thread.waiting = None;
        thread.flying += 1;
        let flight = Flight { issue, gang, places: thread.gang.running(), times: None, effects: None };
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
                    let members = self.threads[flight.gang].gang.members;
                    let position = |&place: &usize| self.machine.contexts[members[place]].position;
                    let positions: Vec<u32> = flight.places.iter().map(position).collect();
                    (0, costs.of(&flight.issue.work, &positions))
                }
                Latency::Random(_) => (self.draw(), self.draw()),
            };
            let times = [self.now, self.now + read, self.now + read + run.max(1)];
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
    fn advance(&mut self, observer: &mut dyn Observer) {
        let next = |flight: &Flight| match (flight.times, &flight.effects) {
            (Some([_, read, _]), None) => Some(read),
            (Some([_, _, done]), Some(_)) => Some(done),
            (None, _) => None,
        };
        let due = self.queues.iter().filter_map(|queue| queue.front().and_then(next));
        let fetches = self.threads.iter().filter(|thread| !thread.over).map(|thread| thread.fetched);
        let Some(now) = due.chain(fetches.filter(|&fetch| fetch > self.now)).min() else {
            unreachable!("a word waits for none that is in flight")
        };
        let now = now.max(self.now);
        for engine in Engine::ALL {
            if self.queues[engine as usize].is_empty() {
                let reason = self.idle(engine);
                self.timing.idle[engine as usize][reason as usize] += now - self.now;
            } else {
                self.timing.busy[engine as usize] += now - self.now;
            }
        }
        self.now = now;
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
                    let members = self.threads[flight.gang].gang.members;
                    let effects = self.machine.effects(self.memory, &issue, members, &places);
                    self.queues[engine as usize][0].effects = Some(effects);
                }
                Some(_) => {
                    let flight = queue.pop_front().expect("it was looked at");
                    let thread = &mut self.threads[flight.gang];
                    thread.flying -= 1;
                    let running = thread.gang.running();
                    for (place, effect) in flight.places.into_iter().zip(flight.effects.into_iter().flatten())
                    {
                        if running.contains(&place) {
                            self.machine.take(&mut thread.gang, place, &flight.issue, effect, observer);
                        }
                    }
                }
            }
        }
    }
}
