//! A gang: a step at a time, with a sequencer, a scoreboard and a block table to itself.

use std::collections::VecDeque;
use std::slice::Iter;

use super::board::Board;
use super::ports::{Blocks, Lines};
use super::sequencer::{self, Sequencer};
use super::{Begin, Span, Step, Timed};
use crate::run::{Issue, Refused};

/// From a step's end to the beginning of the next one at the earliest: its result, no step, the next one's registers.
const BETWEEN: u64 = 3;

/// A step that runs.
pub(super) struct Run<'m> {
    /// Which of all.
    which: usize,
    pub step: Step<'m>,
    pub sequencer: Sequencer<'m>,
    pub board: Board,
    skipped: Iter<'m, Vec<bool>>,
    timed: Timed,
    /// Of each unit its word's place in `timed`.
    spans: [usize; 4],
}

impl<'m> Run<'m> {
    fn new(which: usize, now: u64, step: Step<'m>) -> Self {
        Self {
            which,
            step,
            sequencer: Sequencer::new(step.words, step.memory, step.lines, step.program, step.silent),
            board: Board::default(),
            skipped: step.skipped.iter(),
            timed: Timed { began: now, ..Timed::default() },
            spans: [0; 4],
        }
    }

    /// Blocks of the next `attn` of which no values are computed.
    pub fn skips(&mut self) -> &'m [bool] {
        self.skipped.next().map(Vec::as_slice).unwrap_or_default()
    }
}

/// A gang.
pub(super) struct Gang<'m> {
    /// Whether its words may run side by side.
    overlap: bool,
    begins: VecDeque<(usize, Begin<'m>)>,
    free: u64,
    pub run: Option<Run<'m>>,
    pub blocks: Blocks,
}

impl<'m> Gang<'m> {
    /// With its steps, each with its place among those of all gangs.
    pub fn new(begins: impl Iterator<Item = (usize, Begin<'m>)>, overlap: bool) -> Self {
        Self { overlap, begins: begins.collect(), free: 0, run: None, blocks: Blocks::new(0) }
    }

    /// Whether it has, and will have, no step.
    pub fn rests(&self) -> bool {
        self.run.is_none() && self.begins.is_empty()
    }

    /// The unit that its word may go to, and the word.
    pub fn asks(&self) -> Option<(usize, Issue)> {
        let run = self.run.as_ref().filter(|run| self.overlap || run.board.quiet())?;
        run.board.asks(run.sequencer.issue).zip(run.sequencer.issue)
    }

    /// What it asks of memory: lines of its program, of its block table.
    pub fn fetches(&self) -> [Option<Lines>; 2] {
        let Some(run) = &self.run else { return [None; 2] };
        let bases = run.step.bases;
        [run.sequencer.asks().map(|l| l.from(bases.model)), self.blocks.asks().map(|l| l.from(bases.table))]
    }

    /// Whether it would take a line of its program.
    pub fn takes(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.sequencer.takes())
    }

    /// The step that is over in this cycle, and its place among all.
    pub fn over(&mut self, now: u64) -> Option<(usize, Timed)> {
        let run = self.run.take_if(|run| run.sequencer.over())?;
        self.free = now + BETWEEN;
        let cycles = now - run.timed.began;
        Some((run.which, Timed { cycles, ..run.timed }))
    }

    /// A cycle of what is its own, but the block table: whether a line of the program is taken, whether its word is, and which units are
    /// done with a word of it.
    pub fn clock(
        &mut self,
        now: u64,
        [fetch_ready, beat, taken]: [bool; 3],
        done: [bool; 4],
    ) -> Result<(), Refused> {
        if let Some(run) = &mut self.run {
            let cycle = now - run.timed.began;
            for unit in (0..4).filter(|&unit| done[unit]) {
                run.timed.words[run.spans[unit]].done = cycle;
            }
            if let Some(issue) = run.board.start {
                run.spans[issue.engine() as usize] = run.timed.words.len();
                run.timed.words.push(Span { issue, start: cycle, done: 0 });
            }
            let quiet = run.board.quiet();
            let issue = run.sequencer.issue;
            run.sequencer.clock(&sequencer::In { fetch_ready, beat, taken, quiet })?;
            run.board.clock(issue, taken, done);
        } else if self.free <= now && self.begins.front().is_some_and(|(_, begin)| begin.at <= now) {
            let (which, begin) = self.begins.pop_front().expect("there is one");
            self.run = Some(Run::new(which, now, begin.step));
            self.blocks.forget();
        }
        Ok(())
    }
}
