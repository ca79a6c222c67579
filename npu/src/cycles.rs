//! How many cycles each word is expected to take in hardware: docs/isa.md has the same as formulas.

use crate::layout;
use crate::run::{Function, Work};

/// What the hardware is built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Cycles from a read's address to its first beat of 64 bytes, and from a write to its answer.
    pub memory: u64,
    /// Numbers of 32 bits that the SFU takes in a cycle.
    pub lanes: u64,
    /// Channels of a key, and of a value, that the KV engine takes in a cycle: a beat of them.
    pub channels: u64,
    /// Heads of queries that one pass over a block serves, as far as they share its head.
    pub queries: u64,
    /// From the last number that goes into an engine to the last that comes out.
    pub pipeline: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { memory: 64, lanes: 16, channels: 64, queries: 1, pipeline: 8 }
    }
}

/// Steps of dividers and of the root, a bit each: a mean square, its root, the inverse of that.
const MEAN: u64 = 64;
const ROOT: u64 = 31;
const INVERSE: u64 = 17;
/// A mantissa of a stored head, and its scale.
const MANTISSA: u64 = 8;
const SCALE: u64 = 24;
/// A mean of values, up to where it saturates.
const VALUE: u64 = 48;
/// Between a block's last score and its first weight.
const WEIGHT: u64 = 16;

impl Costs {
    /// Cycles of a word for contexts at these positions.
    pub fn of(&self, work: &Work, positions: &[u32]) -> u64 {
        let each = positions.len() as u64;
        match *work {
            Work::Copy { lines, .. } | Work::Gain { lines, .. } => self.memory + each * u64::from(lines),
            Work::Row { lines, .. } | Work::Out { lines, .. } => self.memory + each * u64::from(lines),
            Work::Embed { matrix, .. } => {
                self.memory + each * layout::integers(matrix.columns.into()) + self.pipeline
            }
            Work::Append { kv, .. } => {
                self.memory + each * 2 * u64::from(kv.heads) * (1 + u64::from(kv.width).div_ceil(64))
            }
            Work::Multiply { src: _, matrix, .. } | Work::Head { matrix, .. } => {
                // A beat for each line of a row, one for the scales of 32 rows; the preamble hides the memory's latency.
                let rows = u64::from(matrix.rows);
                let beats = rows * layout::row(matrix.columns.into()) / 64 + rows.div_ceil(32);
                let preamble = each * layout::activation(matrix.columns.into());
                preamble.max(self.memory) + beats + self.pipeline
            }
            Work::Vector { function, heads, width, .. } => {
                let (heads, width) = (u64::from(heads), u64::from(width));
                let pass = heads * width / self.lanes;
                // A context's memory gives a line a cycle, so what counts is lines read: a second operand costs as much again,
                // and a gain, of half as many bits, half of that.
                let cycles = match function {
                    Function::Add | Function::Multiply => 2 * pass,
                    Function::Activate => 2 * pass,
                    Function::Swiglu => 4 * pass,
                    Function::Normalise(_) => 2 * (pass + pass.div_ceil(2)) + MEAN + ROOT + INVERSE,
                    Function::Rotate => pass + heads * layout::turns(width),
                    Function::Store => pass + heads * SCALE + pass * MANTISSA,
                    Function::Level(_) => 2 * (pass + pass.div_ceil(2)) + heads * (MEAN + ROOT + INVERSE),
                    Function::Tanh => 2 * pass,
                    Function::Geglu => 4 * pass,
                    Function::Blend => 2 * pass,
                    // Sum, squares, what is kept: a mean behind each of the first two.
                    Function::Cut(_) => 3 * pass + 2 * MEAN + ROOT,
                    // Squares of both, then the product.
                    Function::Rescale(_) => 3 * pass + 2 * (MEAN + ROOT) + INVERSE,
                    // A group of 16 channels of all streams at a time: a line of each is read, a product and a line that is written follow.
                    Function::Predict => pass + pass * heads + pass,
                    Function::Correct => pass / heads + 3 * pass,
                };
                each * (cycles + self.pipeline)
            }
            Work::Attend { heads, kv, seen, .. } => {
                let (heads, width) = (u64::from(heads), u64::from(kv.width));
                let sharing = heads / u64::from(kv.heads);
                let passes = u64::from(kv.heads) * sharing.div_ceil(self.queries);
                // Keys, then values, each behind a line of scales: a beat a cycle.
                let block = 2 * (1 + 32 * width.div_ceil(self.channels)) + WEIGHT;
                let means = heads * width / self.lanes * VALUE;
                let blocks = |&position: &u32| {
                    let tokens = u64::from(position) + 1;
                    let (sinks, first) = seen.at(position);
                    tokens.div_ceil(32) - u64::from(first / 32) + u64::from(sinks)
                };
                let one = |position: &u32| passes * blocks(position) * block + means;
                self.memory + positions.iter().map(one).sum::<u64>()
            }
        }
    }
}
