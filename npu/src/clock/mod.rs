//! A step of one rollout, cycle by cycle, as the RTL's NPU takes it: what each unit asks for and when, without the numbers.
//!
//! Units share on-chip memory's two ports and one reader of memory, and how long a word takes depends on what others ask for meanwhile. So
//! each block is here as the registers that say what it does in the next cycle; rtl/npu has the same names. Time depends on
//! numbers in one place alone: of a block that is below both of its bins `attn` computes no values, and which those are the interpreter says.

mod attend;
mod gemv;
mod mem;
mod ports;
mod sampler;
mod sequencer;
mod sfu;
pub mod trace;

use self::attend::Attend;
use self::gemv::Gemv;
use self::mem::Mem;
use self::ports::{BLOCKS, Blocks, CLIENTS, COPIES, Lines, PROGRAM, Port, Reader, VALUES, WEIGHTS};
use self::sampler::Sampler;
use self::sequencer::{Sequencer, line};
use self::sfu::Sfu;
use crate::run::{Engine, Hazards, Issue, Refused};

/// Where things are in memory, in lines, as far as it matters: pieces that the reader asks for end at multiples of 16 lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// The model.
    pub model: u64,
    /// Keys and values.
    pub arena: u64,
    /// The block table.
    pub table: u64,
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'m> {
    /// The program.
    pub words: &'m [u64],
    /// The model's memory.
    pub memory: &'m [u8],
    /// Where the program begins in it, in lines.
    pub program: u64,
    /// Lines of on-chip memory.
    pub lines: u32,
    /// Where memories begin.
    pub bases: Bases,
    /// The token, which the model has.
    pub token: u32,
    /// Its position, for which there is a block.
    pub position: u32,
    /// Whether no token is wanted.
    pub silent: bool,
    /// Number of the block of each 32 positions.
    pub blocks: &'m [u32],
    /// Of each `attn` of the step what [`Observer::skipped`](crate::run::Observer::skipped) says; behind its end nothing is skipped.
    pub skipped: &'m [Vec<bool>],
}

/// A word of a step, with its cycles: they count from the one in which the step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The word.
    pub issue: Issue,
    /// In which its unit is started.
    pub start: u64,
    /// In which its unit says that it is done.
    pub done: u64,
}

/// What a step took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// Until it is over.
    pub cycles: u64,
    /// Words of units, in the order in which they were started.
    pub words: Vec<Span>,
}

/// `npu_scoreboard`: the word that is next is compared with one unit's in a cycle.
#[derive(Debug, Default)]
struct Board {
    flights: [Option<Issue>; 4],
    start: Option<Issue>,
    sync: bool,
    held: [bool; 4],
    at: usize,
    known: bool,
}

impl Board {
    fn takes(&self, issue: Option<Issue>, idle: [bool; 4]) -> bool {
        issue.is_some_and(|issue| {
            let unit = issue.engine() as usize;
            let free = !self.held.contains(&true) && !self.sync && self.flights[unit].is_none();
            self.known && free && idle[unit]
        })
    }

    fn clock(&mut self, issue: Option<Issue>, taken: bool, done: [bool; 4]) {
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

/// How long a step of one rollout takes, where memory answers a line a cycle, `latency` cycles behind the one that follows the question, and
/// writes in the cycle behind them.
///
/// # Errors
/// A word that nothing could execute.
pub fn step(step: &Step<'_>, latency: u64) -> Result<Timed, Refused> {
    const MEM: usize = Engine::Mem as usize;
    const GEMV: usize = Engine::Gemv as usize;
    const SFU: usize = Engine::Sfu as usize;
    const KV: usize = Engine::Kv as usize;
    let mut sequencer = Sequencer::new(step.words, step.memory, step.lines, step.program, step.silent);
    let mut board = Board::default();
    let mut reader = Reader::new(latency);
    let mut blocks = Blocks::new(0);
    let (mut reads, mut writes) = (Port::new(), Port::new());
    let mut mem = Mem::new(step.token, step.position);
    let (mut gemv, mut sampler, mut sfu) = (Gemv::default(), Sampler::default(), Sfu::default());
    let mut attend = Attend::new(step.position);
    let (mut answers, mut store, mut stored) = ([false; 4], false, false);
    let mut timed = Timed::default();
    let mut skipped = step.skipped.iter();
    // In the first cycle the sequencer is told to begin.
    let mut now = 1;
    while !sequencer.over() {
        // What is seen in this cycle.
        let done = [mem.done, gemv.done, sfu.done, attend.done];
        let idle = [mem.idle(), gemv.idle(), sfu.idle(), attend.idle()];
        let quiet = board.flights.iter().all(Option::is_none);
        let (issue, start) = (sequencer.issue, board.start);
        let taken = board.takes(issue, idle);
        let asks = reads.grant([mem.read, gemv.read, sfu.read, attend.read]);
        let gives = writes.grant([mem.write, gemv.write, sfu.write, attend.write]);
        let (fetch_ready, beat) = (reader.ready(), reader.beat());
        let at = |base: u64, lines: Option<Lines>| lines.map(|l| Lines { first: base + l.first, ..l });
        let mut fetches = [None; CLIENTS];
        fetches[PROGRAM] = at(step.bases.model, sequencer.asks());
        fetches[COPIES] = at(step.bases.model, mem.asks());
        fetches[WEIGHTS] = at(step.bases.model, gemv.asks());
        fetches[VALUES] = at(step.bases.arena, attend.asks());
        fetches[BLOCKS] = at(step.bases.table, blocks.asks());
        let (logit, begin, logit_ready) = (gemv.logit, gemv.begin, sampler.ready());
        let mut takes = [false; CLIENTS];
        takes[PROGRAM] = sequencer.takes();
        takes[COPIES] = mem.takes();
        takes[WEIGHTS] = gemv.takes(logit_ready);
        takes[VALUES] = attend.takes();
        takes[BLOCKS] = blocks.takes();
        let sampler_idle = sampler.idle();
        let block = blocks.answer;
        let looks = [mem.looks(), attend.looks()];
        let number = |entry: u32| u64::from(step.blocks[entry as usize]);
        let first = looks[1].filter(|_| block[1]).map(|entry| number(entry) * line(attend.stride()));
        let (read, write) = (answers, store);

        // What is in the next one.
        for span in &mut timed.words {
            if span.done == 0 && done[span.issue.engine() as usize] {
                span.done = now;
            }
        }
        if let Some(issue) = start {
            timed.words.push(Span { issue, start: now, done: 0 });
        }
        let seen =
            sequencer::In { fetch_ready: fetch_ready[PROGRAM], beat: beat == Some(PROGRAM), taken, quiet };
        sequencer.clock(&seen)?;
        board.clock(issue, taken, done);
        store = mem.store && !write;
        mem.clock(&mem::In {
            read_ready: asks[MEM],
            read_answer: read[MEM],
            write_ready: gives[MEM],
            fetch_ready: fetch_ready[COPIES],
            beat: beat == Some(COPIES),
            store_ready: !write,
            stored,
            block_answer: block[0],
        });
        stored = write;
        gemv.clock(&gemv::In {
            read_ready: asks[GEMV],
            read_answer: read[GEMV],
            write_ready: gives[GEMV],
            fetch_ready: fetch_ready[WEIGHTS],
            beat: beat == Some(WEIGHTS),
            sampler_idle,
            logit_ready,
        });
        sampler.clock(begin, logit);
        sfu.clock(&sfu::In { read_ready: asks[SFU], read_answer: read[SFU], write_ready: gives[SFU] });
        attend.clock(&attend::In {
            read_ready: asks[KV],
            read_answer: read[KV],
            write_ready: gives[KV],
            fetch_ready: fetch_ready[VALUES],
            beat: beat == Some(VALUES),
            block: first,
        });
        blocks.clock(looks, fetch_ready[BLOCKS], beat == Some(BLOCKS));
        reads.clock(asks);
        writes.clock(gives);
        reader.clock(now, fetches, takes);
        answers = asks;
        if let Some(issue) = start {
            match issue.engine() {
                Engine::Mem => mem.start(issue.work),
                Engine::Gemv => gemv.start(issue.work),
                Engine::Sfu => sfu.start(issue.work),
                Engine::Kv => {
                    attend.start(issue.work, skipped.next().map(Vec::as_slice).unwrap_or_default());
                }
            }
        }
        now += 1;
    }
    timed.cycles = now;
    Ok(timed)
}
