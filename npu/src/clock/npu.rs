//! `npu_top`: gangs, and what they share.

use super::attend::{self, Attend};
use super::gang::{Gang, Run};
use super::gemv::{self, Gemv};
use super::mem::{self, Mem};
use super::ports::{CLIENTS, COPIES, GANGS, Lines, PROGRAMS, Port, Reader, TABLES, Turn, VALUES, WEIGHTS};
use super::sampler::Sampler;
use super::sequencer::line;
use super::sfu::{self, Sfu};
use super::{Begin, Setup, Timed};
use crate::run::{Engine, Issue, Refused, Work};

const MEM: usize = Engine::Mem as usize;
const GEMV: usize = Engine::Gemv as usize;
const SFU: usize = Engine::Sfu as usize;
const KV: usize = Engine::Kv as usize;

/// All of it.
pub(super) struct Npu<'m> {
    gangs: [Gang<'m>; GANGS],
    // Whose word a unit takes; whose it has, or had last.
    turns: [Turn; 4],
    whose: [usize; 4],
    busy: [bool; 4],
    mem: Mem,
    gemv: Gemv,
    sampler: Sampler,
    /// Whose chain of HEADs the sampler has, or had last.
    head: usize,
    sfu: Sfu,
    attend: Attend,
    reader: Reader,
    reads: Port,
    writes: Port,
    /// Whose line of on-chip memory is there.
    answers: [bool; 4],
    /// A line is written in this cycle; one was in the cycle before.
    store: bool,
    stored: bool,
}

impl<'m> Npu<'m> {
    pub fn new(begins: &[Begin<'m>], setup: Setup) -> Self {
        let of = |gang| begins.iter().copied().enumerate().filter(move |(_, begin)| begin.gang == gang);
        Self {
            gangs: std::array::from_fn(|gang| Gang::new(of(gang), setup.overlap)),
            turns: std::array::from_fn(|_| Turn::new()),
            whose: [0; 4],
            busy: [false; 4],
            mem: Mem::new(),
            gemv: Gemv::default(),
            sampler: Sampler::default(),
            head: 0,
            sfu: Sfu::default(),
            attend: Attend::new(),
            reader: Reader::new(setup),
            reads: Port::new(),
            writes: Port::new(),
            answers: [false; 4],
            store: false,
            stored: false,
        }
    }

    /// Cycles until all of so many steps are over.
    pub fn run(mut self, steps: usize) -> Result<Vec<Timed>, Refused> {
        let mut timed = vec![Timed::default(); steps];
        let mut now = 0;
        while self.gangs.iter().any(|gang| !gang.rests()) {
            self.clock(now, &mut timed)?;
            now += 1;
        }
        Ok(timed)
    }

    /// The step that a unit's word is of.
    fn of(&self, unit: usize) -> Option<&Run<'m>> {
        self.gangs[self.whose[unit]].run.as_ref()
    }

    /// Which gang's word each unit takes.
    fn grants(&self) -> [Option<usize>; 4] {
        let idle = [self.mem.idle(), self.gemv.idle(), self.sfu.idle(), self.attend.idle()];
        let mut requests = [0u16; 4];
        for (g, gang) in self.gangs.iter().enumerate() {
            let Some((unit, issue)) = gang.asks() else { continue };
            // A chain of HEADs that has begun is nobody else's to go on with.
            let head = matches!(issue.work, Work::Head { .. });
            let others = head && self.sampler.begun && self.head != g;
            requests[unit] |= u16::from(!self.busy[unit] && idle[unit] && !others) << g;
        }
        std::array::from_fn(|unit| self.turns[unit].grant(requests[unit]))
    }

    /// What clients ask of memory, in lines of all of it, and which of them would take a line.
    fn fetches(&self, logit_ready: bool) -> ([Option<Lines>; CLIENTS], [bool; CLIENTS]) {
        let (mut fetches, mut takes) = ([None; CLIENTS], [false; CLIENTS]);
        for (g, gang) in self.gangs.iter().enumerate() {
            [fetches[PROGRAMS + g], fetches[TABLES + g]] = gang.fetches();
            (takes[PROGRAMS + g], takes[TABLES + g]) = (gang.takes(), gang.blocks.takes());
        }
        let bases = |unit: usize| self.of(unit).map(|run| run.step.bases).unwrap_or_default();
        fetches[COPIES] = self.mem.asks().map(|lines| lines.from(bases(MEM).model));
        fetches[WEIGHTS] = self.gemv.asks().map(|lines| lines.from(bases(GEMV).model));
        fetches[VALUES] = self.attend.asks().map(|lines| lines.from(bases(KV).arena));
        takes[COPIES] = self.mem.takes();
        takes[WEIGHTS] = self.gemv.takes(logit_ready);
        takes[VALUES] = self.attend.takes();
        (fetches, takes)
    }

    fn clock(&mut self, now: u64, timed: &mut [Timed]) -> Result<(), Refused> {
        let mut forget = false;
        for (g, gang) in self.gangs.iter_mut().enumerate() {
            if let Some((which, over)) = gang.over(now) {
                timed[which] = over;
                forget |= self.head == g && self.sampler.begun;
            }
        }

        // What is seen in this cycle.
        let done = [self.mem.done, self.gemv.done, self.sfu.done, self.attend.done];
        let grants = self.grants();
        let start = |gang: &Gang<'_>| gang.run.as_ref().and_then(|run| run.board.start);
        let starts: [Option<Issue>; GANGS] = std::array::from_fn(|g| start(&self.gangs[g]));
        let asks = self.reads.grant([self.mem.read, self.gemv.read, self.sfu.read, self.attend.read]);
        let gives = self.writes.grant([self.mem.write, self.gemv.write, self.sfu.write, self.attend.write]);
        let (fetch_ready, beat) = (self.reader.ready(), self.reader.beat());
        let (logit, begin, logit_ready) = (self.gemv.logit, self.gemv.begin, self.sampler.ready());
        let sampler_idle = self.sampler.idle();
        let (fetches, takes) = self.fetches(logit_ready);
        let looks = [self.mem.looks(), self.attend.looks()];
        // A unit is answered by its own gang's table.
        let answer = |unit: usize, of: usize| self.gangs[self.whose[unit]].blocks.answer[of];
        let block = [answer(MEM, 0), answer(KV, 1)];
        let first = looks[1]
            .filter(|_| block[1])
            .zip(self.of(KV))
            .map(|(entry, run)| u64::from(run.step.blocks[entry as usize]) * line(self.attend.stride()));
        let (read, write) = (self.answers, self.store);

        // What is in the next one.
        for (g, gang) in self.gangs.iter_mut().enumerate() {
            let own = |unit: usize| self.whose[unit] == g;
            let asked = [looks[0].filter(|_| own(MEM)), looks[1].filter(|_| own(KV))];
            gang.blocks.clock(asked, fetch_ready[TABLES + g], beat == Some(TABLES + g));
            let done = std::array::from_fn(|unit| done[unit] && own(unit));
            let taken = grants.contains(&Some(g));
            gang.clock(now, [fetch_ready[PROGRAMS + g], beat == Some(PROGRAMS + g), taken], done)?;
        }
        self.store = self.mem.store && !write;
        self.mem.clock(&mem::In {
            read_ready: asks[MEM],
            read_answer: read[MEM],
            write_ready: gives[MEM],
            fetch_ready: fetch_ready[COPIES],
            beat: beat == Some(COPIES),
            store_ready: !write,
            stored: self.stored,
            block_answer: block[0],
        });
        self.stored = write;
        self.gemv.clock(&gemv::In {
            read_ready: asks[GEMV],
            read_answer: read[GEMV],
            write_ready: gives[GEMV],
            fetch_ready: fetch_ready[WEIGHTS],
            beat: beat == Some(WEIGHTS),
            sampler_idle,
            logit_ready,
        });
        self.sampler.clock(begin, logit);
        if begin {
            self.head = self.whose[GEMV];
        }
        if forget {
            self.sampler.forget();
        }
        self.sfu.clock(&sfu::In { read_ready: asks[SFU], read_answer: read[SFU], write_ready: gives[SFU] });
        self.attend.clock(&attend::In {
            read_ready: asks[KV],
            read_answer: read[KV],
            write_ready: gives[KV],
            fetch_ready: fetch_ready[VALUES],
            beat: beat == Some(VALUES),
            block: first,
        });
        self.reads.clock(asks);
        self.writes.clock(gives);
        self.reader.clock(now, fetches, takes);
        self.answers = asks;
        for (g, issue) in starts.into_iter().enumerate() {
            if let Some(issue) = issue {
                self.start(g, issue);
            }
        }
        for unit in 0..4 {
            if let Some(gang) = grants[unit] {
                self.turns[unit].served(gang);
                self.whose[unit] = gang;
            }
            self.busy[unit] = grants[unit].is_some() || (self.busy[unit] && !done[unit]);
        }
        Ok(())
    }

    /// A unit begins with a word of a gang.
    fn start(&mut self, gang: usize, issue: Issue) {
        let run = self.gangs[gang].run.as_mut().expect("its step runs");
        let step = run.step;
        match issue.engine() {
            Engine::Mem => self.mem.start(issue.work, step.token, step.position),
            Engine::Gemv => self.gemv.start(issue.work),
            Engine::Sfu => self.sfu.start(issue.work),
            Engine::Kv => self.attend.start(issue.work, step.position, run.skips()),
        }
    }
}
