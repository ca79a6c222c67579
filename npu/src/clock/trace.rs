//! What the RTL says of a step (`tb/npu/npu_top_tb.sv`, `+words`), and where a step differs from it.
//!
//! A line each: `step position token silent arena`, of the arena its first line modulo 16; `word unit pc cycle`, a unit is started;
//! `done unit cycle`; `over cycle`. Other lines are the bench's.

use std::fmt;

use super::Timed;
use crate::run::Engine;

/// A word: its unit and place, in which cycle its unit was started and in which it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its unit.
    pub engine: Engine,
    /// Its place in the program.
    pub pc: u32,
    /// First cycle.
    pub start: u64,
    /// Last cycle.
    pub done: u64,
}

/// A step of the RTL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// Of its token.
    pub position: u32,
    /// The token.
    pub token: u32,
    /// Whether none was wanted.
    pub silent: bool,
    /// First line of keys and values, modulo 16.
    pub arena: u64,
    /// Until it was over.
    pub cycles: u64,
    /// In the order in which they were started.
    pub words: Vec<Word>,
}

/// The first word that differs, or the step's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs {
    /// Which word of the step's; behind the last one, its end.
    pub at: usize,
    /// In the RTL: what there is of it.
    pub rtl: Option<Word>,
    /// In the model.
    pub model: Option<Word>,
    /// Cycles of both.
    pub cycles: [u64; 2],
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, rtl, model, cycles } = self;
        match (rtl, model) {
            (None, None) => write!(f, "the end: RTL {}, model {}", cycles[0], cycles[1]),
            _ => write!(f, "word {at}: RTL {rtl:?}, model {model:?}"),
        }
    }
}

/// Steps of a trace.
///
/// # Panics
/// At a line of the four kinds that is not whole.
pub fn read(trace: &str) -> Vec<Traced> {
    let mut steps: Vec<Traced> = vec![];
    for line in trace.lines() {
        let mut parts = line.split_whitespace();
        let letter = parts.next().unwrap_or_default();
        let mut number = || -> u64 {
            parts.next().and_then(|part| part.parse().ok()).unwrap_or_else(|| panic!("{line:?} is cut off"))
        };
        // A bench tells of itself with a colon behind the number.
        if letter == "step" && !line.contains(':') {
            let (position, token, silent, arena) =
                (number() as u32, number() as u32, number() == 1, number());
            steps.push(Traced { position, token, silent, arena, ..Traced::default() });
        }
        let Some(step) = steps.last_mut() else { continue };
        match letter {
            "word" => {
                let (engine, pc, start) = (Engine::ALL[number() as usize], number() as u32, number());
                step.words.push(Word { engine, pc, start, done: 0 });
            }
            "done" => {
                let (engine, done) = (Engine::ALL[number() as usize], number());
                let word = step.words.iter_mut().find(|word| word.engine == engine && word.done == 0);
                word.expect("a unit is done with a word").done = done;
            }
            "over" => step.cycles = number(),
            _ => {}
        }
    }
    steps
}

impl Traced {
    /// Where a step of the model differs first.
    pub fn differs(&self, timed: &Timed) -> Option<Differs> {
        let cycles = [self.cycles, timed.cycles];
        let words = timed.words.iter().map(|span| Word {
            engine: span.issue.engine(),
            pc: span.issue.pc,
            start: span.start,
            done: span.done,
        });
        let words: Vec<Word> = words.collect();
        for at in 0..self.words.len().max(words.len()) {
            let (rtl, model) = (self.words.get(at).copied(), words.get(at).copied());
            if rtl != model {
                return Some(Differs { at, rtl, model, cycles });
            }
        }
        let at = words.len();
        (self.cycles != timed.cycles).then_some(Differs { at, rtl: None, model: None, cycles })
    }
}
