//! What units share: turns, on-chip memory's ports, the reader of memory, memory itself, the block table.

use std::collections::VecDeque;

use super::Setup;

/// Whose turn it is: the one after the last that was served comes first (rtl/common/round_robin.sv).
#[derive(Clone, Debug)]
pub(super) struct Turn {
    above: u16,
}

impl Turn {
    pub fn new() -> Self {
        Self { above: u16::MAX }
    }

    /// Of those that ask.
    pub fn grant(&self, asks: u16) -> Option<usize> {
        let preferred = asks & self.above;
        let candidates = if preferred != 0 { preferred } else { asks };
        (candidates != 0).then_some(candidates.trailing_zeros() as usize)
    }

    pub fn served(&mut self, who: usize) {
        self.above = !((2u32 << who) - 1) as u16;
    }
}

/// Lines that follow each other, asked for at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub first: u64,
    pub count: u64,
}

impl Lines {
    /// Where the memory begins in which they are.
    pub fn from(self, base: u64) -> Self {
        Self { first: base + self.first, ..self }
    }
}

/// Gangs that there can be. Those that have no step ask for nothing, so fewer are as if there were no more.
pub const GANGS: usize = 4;

/// Clients of the reader: programs of all gangs, units, block tables of all gangs.
pub(super) const CLIENTS: usize = 2 * GANGS + 3;
pub(super) const PROGRAMS: usize = 0;
pub(super) const COPIES: usize = GANGS;
pub(super) const WEIGHTS: usize = GANGS + 1;
pub(super) const VALUES: usize = GANGS + 2;
pub(super) const TABLES: usize = GANGS + 3;

/// Lines of a piece, which ends at a multiple of as many.
const PIECE: u64 = 16;
/// Pieces in flight.
const PIECES: usize = 16;

/// `npu_reader`, and memory that answers a line a cycle, the first one so many cycles behind the question.
#[derive(Debug)]
pub(super) struct Reader {
    setup: Setup,
    left: [Option<Lines>; CLIENTS],
    turn: Turn,
    tags: VecDeque<(usize, u64)>,
    taken: u64,
    /// What memory is asked: whose lines, and how many.
    read: Option<(usize, u64)>,
    due: VecDeque<u64>,
    beat: bool,
}

impl Reader {
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            left: [None; CLIENTS],
            turn: Turn::new(),
            tags: VecDeque::new(),
            taken: 0,
            read: None,
            due: VecDeque::new(),
            beat: false,
        }
    }

    /// Whether what a client asks for is taken in this cycle.
    pub fn ready(&self) -> [bool; CLIENTS] {
        self.left.map(|left| left.is_none())
    }

    /// Whose line is there.
    pub fn beat(&self) -> Option<usize> {
        self.tags.front().filter(|_| self.beat).map(|&(whose, _)| whose)
    }

    /// A cycle: what clients ask for, in lines of all memory, and which of them would take a line.
    pub fn clock(&mut self, now: u64, asks: [Option<Lines>; CLIENTS], takes: [bool; CLIENTS]) {
        let goes = self.beat().is_some_and(|whose| takes[whose]);
        let (whose, asked) = self.read.take().unwrap_or_default();
        let latency = if whose == WEIGHTS { self.setup.weights } else { self.setup.latency };
        // Memory takes a question in the cycle in which it is put.
        if goes {
            self.due.pop_front();
        }
        self.due.extend((0..asked).map(|_| now + latency));
        let waits = self.beat && !goes;

        let some = (0..CLIENTS).filter(|&k| self.left[k].is_some()).fold(0, |some, k| some | 1 << k);
        let full = self.tags.len() == PIECES;
        if goes {
            self.taken += 1;
            if self.taken == self.tags[0].1 {
                self.tags.pop_front();
                self.taken = 0;
            }
        }
        let client = self.turn.grant(some).filter(|_| !full);
        for (left, ask) in self.left.iter_mut().zip(asks) {
            if left.is_none() {
                *left = ask;
            }
        }
        if let Some(client) = client {
            self.turn.served(client);
            let left = self.left[client].as_mut().expect("it asks");
            let piece = left.count.min(PIECE - left.first % PIECE);
            self.read = Some((client, piece));
            self.tags.push_back((client, piece));
            *left = Lines { first: left.first + piece, count: left.count - piece };
            if left.count == 0 {
                self.left[client] = None;
            }
        }
        self.beat = waits || self.due.front().is_some_and(|&due| due <= now);
    }
}

/// A port of on-chip memory.
#[derive(Debug)]
pub(super) struct Port(Turn);

impl Port {
    pub fn new() -> Self {
        Self(Turn::new())
    }

    /// Which unit has it in this cycle.
    pub fn grant(&self, asks: [bool; 4]) -> [bool; 4] {
        let bits = (0..4).fold(0, |bits, unit| bits | u16::from(asks[unit]) << unit);
        let who = self.0.grant(bits);
        std::array::from_fn(|unit| who == Some(unit))
    }

    pub fn clock(&mut self, grant: [bool; 4]) {
        if let Some(who) = grant.iter().position(|&granted| granted) {
            self.0.served(who);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Idle,
    Look,
    Fetch,
    Times,
    Check,
    Answer,
}

/// `npu_blocks`: of MEM 0, of KV 1.
#[derive(Debug)]
pub(super) struct Blocks {
    state: Table,
    who: usize,
    kept: Option<u32>,
    fetch: bool,
    entry: u32,
    /// Who has an answer in this cycle.
    pub answer: [bool; 2],
    /// First line of the table in memory.
    first: u64,
}

impl Blocks {
    pub fn new(first: u64) -> Self {
        Self { state: Table::Idle, who: 0, kept: None, fetch: false, entry: 0, answer: [false; 2], first }
    }

    /// A step begins, whose table may be another.
    pub fn forget(&mut self) {
        self.kept = None;
    }

    pub fn asks(&self) -> Option<Lines> {
        // A line has 16 entries.
        self.fetch.then(|| Lines { first: self.first + u64::from(self.entry / 16), count: 1 })
    }

    pub fn takes(&self) -> bool {
        self.state == Table::Fetch
    }

    pub fn clock(&mut self, asks: [Option<u32>; 2], fetch_ready: bool, beat: bool) {
        match self.state {
            Table::Idle => {
                let other = 1 - self.who;
                let next = if asks[other].is_some() { other } else { self.who };
                if let Some(entry) = asks[next] {
                    (self.who, self.entry, self.state) = (next, entry, Table::Look);
                }
            }
            Table::Look if self.kept == Some(self.entry / 16) => self.state = Table::Times,
            Table::Look => {
                self.kept = None;
                self.fetch = true;
                self.state = Table::Fetch;
            }
            Table::Fetch => {
                if fetch_ready {
                    self.fetch = false;
                }
                if beat {
                    self.kept = Some(self.entry / 16);
                    self.state = Table::Times;
                }
            }
            Table::Times => self.state = Table::Check,
            Table::Check => {
                self.answer[self.who] = true;
                self.state = Table::Answer;
            }
            Table::Answer => {
                self.answer = [false; 2];
                self.state = Table::Idle;
            }
        }
    }
}
