//! Steps of gangs of one rollout each, cycle by cycle, as the RTL's NPU takes them: what each unit asks for and when, without the numbers.
//!
//! Units share on-chip memory's two ports and one reader of memory, and how long a word takes depends on what others ask for meanwhile. So
//! each block is here as the registers that say what it does in the next cycle; rtl/npu has the same names. Time depends on
//! numbers in one place alone: of a block that is below both of its bins `attn` computes no values, and which those are the interpreter says.

mod attend;
mod board;
mod gang;
mod gemv;
mod mem;
mod npu;
mod ports;
mod sampler;
mod sequencer;
mod sfu;
pub mod trace;

use self::npu::Npu;
pub use self::ports::GANGS;
use crate::run::{Issue, Refused};

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
    /// The cycle in which it begins.
    pub began: u64,
    /// Until it is over.
    pub cycles: u64,
    /// Words of units, in the order in which they were started.
    pub words: Vec<Span>,
}

/// A step of a gang.
#[derive(Clone, Copy, Debug)]
pub struct Begin<'m> {
    /// The gang, below [`GANGS`].
    pub gang: usize,
    /// The cycle in which it begins; a later one where the gang's step before it is not over by then.
    pub at: u64,
    /// The step.
    pub step: Step<'m>,
}

/// What steps meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Cycles until memory answers: a line a cycle, so many cycles behind the one that follows the question. It writes in the cycle behind them.
    pub latency: u64,
    /// The same for weights of `gemv` and `head`. As the lines of all come in the order of asking, 0 is the most that asking earlier could bring.
    pub weights: u64,
    /// Whether a word of a gang may begin while another one of it runs.
    pub overlap: bool,
}

impl Setup {
    /// What the RTL is, with memory that answers so late.
    pub fn rtl(latency: u64) -> Self {
        Self { latency, weights: latency, overlap: true }
    }
}

/// How long a step of one rollout takes in the RTL, with memory that answers so late.
///
/// # Errors
/// A word that nothing could execute.
pub fn step(step: &Step<'_>, latency: u64) -> Result<Timed, Refused> {
    Ok(steps(&[Begin { gang: 0, at: 0, step: *step }], Setup::rtl(latency))?.remove(0))
}

/// How long steps of several gangs take that share units, ports and memory, each in the place that it has among those that begin.
/// A gang's begin in the order in which they are here.
///
/// # Errors
/// A word that nothing could execute.
///
/// # Panics
/// At a gang that there is none of.
pub fn steps(begins: &[Begin<'_>], setup: Setup) -> Result<Vec<Timed>, Refused> {
    assert!(begins.iter().all(|begin| begin.gang < GANGS), "at most {GANGS} gangs");
    Npu::new(begins, setup).run(begins.len())
}
