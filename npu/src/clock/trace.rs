//! What the RTL says of a step (`tb/npu/npu_top_tb.sv`, `+words`), and where a step differs from it.
//!
//! A line each: `step position token silent arena`, of the arena its first line modulo 16; `word unit pc cycle`, a unit is started;
//! `done unit cycle`; `over cycle`. With several gangs (`+both`) the gang is behind each, and behind a step's the cycle in which it begins.
//! Where it is kept a word has one line: `ran unit pc cycle cycles`, of the step that is last. Other lines are the bench's.

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
    /// Of which gang.
    pub gang: usize,
    /// The cycle in which it begins.
    pub began: u64,
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
/// At a line of these kinds that is not whole.
pub fn read(trace: &str) -> Vec<Traced> {
    let mut steps: Vec<Traced> = vec![];
    for line in trace.lines() {
        let mut parts = line.split_whitespace();
        let letter = parts.next().unwrap_or_default();
        let numbers: Vec<u64> = parts.map_while(|part| part.parse().ok()).collect();
        let number = |at: usize| *numbers.get(at).unwrap_or_else(|| panic!("{line:?} is cut off"));
        let gang = |at: usize| numbers.get(at).map_or(0, |&gang| gang as usize);
        // A bench tells of itself with a colon behind the number.
        if letter == "step" && !line.contains(':') {
            steps.push(Traced {
                position: number(0) as u32,
                token: number(1) as u32,
                silent: number(2) == 1,
                arena: number(3),
                gang: gang(4),
                began: numbers.get(5).copied().unwrap_or_default(),
                ..Traced::default()
            });
        }
        let of = match letter {
            "word" => gang(3),
            "done" => gang(2),
            "over" => gang(1),
            "ran" => steps.last().map_or(0, |step| step.gang),
            _ => continue,
        };
        let Some(step) = steps.iter_mut().rev().find(|step| step.gang == of) else { continue };
        let engine = || Engine::ALL[number(0) as usize];
        match letter {
            "over" => step.cycles = number(0),
            "done" => {
                let word = step.words.iter_mut().find(|word| word.engine == engine() && word.done == 0);
                word.expect("a unit is done with a word").done = number(1);
            }
            _ => {
                let (pc, start) = (number(1) as u32, number(2));
                let done = if letter == "ran" { start + number(3) } else { 0 };
                step.words.push(Word { engine: engine(), pc, start, done });
            }
        }
    }
    steps
}

/// Steps as they are kept, cycles counted from the first one's beginning; their words where they are asked for.
pub fn keep(steps: &[Traced], words: bool) -> String {
    let first = steps.first().map_or(0, |step| step.began);
    let mut kept = String::new();
    for step in steps {
        let Traced { position, token, arena, gang, cycles, .. } = step;
        let (silent, began) = (u8::from(step.silent), step.began - first);
        kept += &format!("step {position} {token} {silent} {arena} {gang} {began}\n");
        for word in step.words.iter().filter(|_| words) {
            let (unit, length) = (word.engine as usize, word.done - word.start);
            kept += &format!("ran {unit} {} {} {length}\n", word.pc, word.start);
        }
        kept += &format!("over {cycles} {gang}\n");
    }
    kept
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
        (self.cycles != timed.cycles || self.began != timed.began).then_some(Differs {
            at,
            rtl: None,
            model: None,
            cycles,
        })
    }
}
