//! A word, made ready: its shapes and descriptors read, its operands checked, and which lines it reads and writes.

use crate::isa::Fault;
use crate::layout::{self, Block, LINE_WORDS};

/// What executes a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    /// MEMCPY: between memory and the context.
    Mem,
    /// GEMV and HEAD: whatever streams weights.
    Gemv,
    /// VEC: 16 lanes.
    Sfu,
    /// ATTN: whatever streams keys and values.
    Kv,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mem, Self::Gemv, Self::Sfu, Self::Kv];
}

/// A matrix in the model's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixAt {
    /// First byte of its rows, each of whole lines.
    pub weights: u64,
    /// First byte of its rows' scales, 16 bits each.
    pub scales: u64,
    /// Common to all rows.
    pub exponent: i16,
    /// Rows.
    pub rows: u32,
    /// Columns, a multiple of 32.
    pub columns: u32,
}

/// Where keys and values of a layer lie in a block of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvAt {
    /// Bytes from one block to the next.
    pub block: u64,
    /// First byte of the layer in a block.
    pub layer: u64,
    /// Heads of keys and values.
    pub heads: u32,
    /// Channels of a head.
    pub width: u32,
}

/// Of VEC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// a + b.
    Add,
    /// a · b.
    Multiply,
    /// Activation of a.
    Activate,
    /// Activation of swish(a) · b.
    Swiglu,
    /// Activation of a, normalised, times the gain b; ε.
    Normalise(u32),
    /// Heads of a, turned by b.
    Rotate,
    /// Heads of a, stored.
    Store,
    /// Heads of a, normalised each, times the gain b, as integers; ε.
    Level(u32),
    /// Activation of tanh of a.
    Tanh,
    /// Activation of gelu(a) · b.
    Geglu,
    /// √½ (a + b).
    Blend,
    /// What a is above its mean and so many deviations.
    Cut(u32),
    /// a with the root mean square of b; ε.
    Rescale(u32),
    /// Streams a by coefficients b.
    Predict,
    /// Streams at the destination by what was found, a, and coefficients b.
    Correct,
}

/// What a word does; addresses of on-chip operands in lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are those of the words, with shapes and descriptors put in")]
pub enum Work {
    Copy { dst: u32, from: u64, lines: u32 },
    Gain { dst: u32, from: u64, exponent: i16, lines: u32 },
    Row { dst: u32, from: u64, stride: u64, rows: u32, lines: u32 },
    Embed { dst: u32, matrix: MatrixAt },
    Append { src: u32, kv: KvAt },
    Out { src: u32, to: u64, lines: u32 },
    Multiply { dst: u32, src: u32, matrix: MatrixAt, accumulate: bool, scaled: bool },
    Vector { function: Function, dst: u32, a: u32, b: u32, heads: u32, width: u32 },
    Attend { dst: u32, src: u32, heads: u32, kv: KvAt, factor: u32, seen: Seen },
    Head { src: u32, matrix: MatrixAt, first: bool, last: bool, cap: bool },
}

/// Lines of a context, or a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Range {
    /// On-chip lines from the first to behind the last.
    Lines(u32, u32),
    /// Keys and values from this byte of a block on: one layer's.
    Kv(u64),
}

impl Range {
    /// Whether both name the same byte.
    pub fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Lines(a, b), Self::Lines(c, d)) => a < d && c < b,
            (Self::Kv(a), Self::Kv(b)) => a == b,
            _ => false,
        }
    }
}

/// What an attn sees of the positions up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// How many of the last ones; without a window all of them.
    pub window: Option<u32>,
    /// How many of the first ones besides, a multiple of 32.
    pub sinks: u32,
}

impl Seen {
    /// Whole blocks at the start that are seen, and the first position of the others, at least behind these blocks.
    pub fn at(self, position: u32) -> (u32, u32) {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        if first <= self.sinks { (0, 0) } else { (self.sinks / 32, first) }
    }

    /// The block that is seen after this one.
    pub fn after(self, block: u32, position: u32) -> u32 {
        let (sinks, first) = self.at(position);
        if block + 1 == sinks { first / 32 } else { block + 1 }
    }
}

impl KvAt {
    /// Bytes of a head in a block.
    pub fn head(self) -> Block {
        Block { width: self.width.into() }
    }
}

impl Work {
    /// What executes it.
    pub fn engine(&self) -> Engine {
        match self {
            Self::Multiply { .. } | Self::Head { .. } => Engine::Gemv,
            Self::Vector { .. } => Engine::Sfu,
            Self::Attend { .. } => Engine::Kv,
            _ => Engine::Mem,
        }
    }

    /// What it reads.
    pub fn reads(&self) -> Vec<Range> {
        match *self {
            Self::Copy { .. } | Self::Gain { .. } | Self::Row { .. } | Self::Embed { .. } => vec![],
            Self::Append { src, kv } => {
                vec![lines(src, layout::stored(2 * u64::from(kv.heads), kv.width.into()))]
            }
            Self::Out { src, lines: count, .. } => vec![lines(src, count.into())],
            Self::Multiply { dst, src, matrix, accumulate, .. } => {
                let mut reads = vec![lines(src, layout::activation(matrix.columns.into()))];
                reads.extend(accumulate.then(|| lines(dst, layout::products(matrix.rows.into()))));
                reads
            }
            Self::Vector { function, dst, a, b, heads, width } => {
                let [streams, channels] = [heads, width].map(u64::from);
                let count = streams * channels;
                let other = match function {
                    Function::Add
                    | Function::Multiply
                    | Function::Swiglu
                    | Function::Geglu
                    | Function::Blend
                    | Function::Rescale(_) => Some(layout::integers(count)),
                    Function::Normalise(_) => Some(layout::gain(count)),
                    Function::Level(_) => Some(layout::gain(channels)),
                    Function::Rotate => Some(layout::turns(channels)),
                    Function::Predict => Some(layout::integers(streams * streams)),
                    Function::Correct => Some(layout::integers(streams)),
                    Function::Activate | Function::Store | Function::Tanh | Function::Cut(_) => None,
                };
                let is_correct = function == Function::Correct;
                let first = lines(a, layout::integers(if is_correct { channels } else { count }));
                // What is written is read too, behind the others.
                let last = is_correct.then(|| lines(dst, layout::integers(count)));
                [Some(first), other.map(|count| lines(b, count)), last].into_iter().flatten().collect()
            }
            Self::Attend { src, heads, kv, .. } => {
                vec![lines(src, layout::stored(heads.into(), kv.width.into())), Range::Kv(kv.layer)]
            }
            Self::Head { src, matrix, .. } => vec![lines(src, layout::activation(matrix.columns.into()))],
        }
    }

    /// What it writes.
    pub fn writes(&self) -> Option<Range> {
        match *self {
            Self::Copy { dst, lines: count, .. }
            | Self::Gain { dst, lines: count, .. }
            | Self::Row { dst, lines: count, .. } => Some(lines(dst, count.into())),
            Self::Embed { dst, matrix } => Some(lines(dst, layout::integers(matrix.columns.into()))),
            Self::Append { kv, .. } => Some(Range::Kv(kv.layer)),
            Self::Out { .. } | Self::Head { .. } => None,
            Self::Multiply { dst, matrix, .. } => Some(lines(dst, layout::products(matrix.rows.into()))),
            Self::Vector { function, dst, heads, width, .. } => {
                let count = u64::from(heads) * u64::from(width);
                let written = match function {
                    Function::Add
                    | Function::Multiply
                    | Function::Rotate
                    | Function::Level(_)
                    | Function::Blend
                    | Function::Cut(_)
                    | Function::Rescale(_)
                    | Function::Predict
                    | Function::Correct => layout::integers(count),
                    Function::Activate
                    | Function::Swiglu
                    | Function::Normalise(_)
                    | Function::Tanh
                    | Function::Geglu => layout::activation(count),
                    Function::Store => layout::stored(heads.into(), width.into()),
                };
                Some(lines(dst, written))
            }
            Self::Attend { dst, heads, kv, .. } => {
                Some(lines(dst, layout::integers(u64::from(heads) * u64::from(kv.width))))
            }
        }
    }

    /// Whether its operands lie in a context of so many lines, and its destination on no source that it still needs.
    pub(super) fn check(&self, there_are: u32) -> Result<(), Fault> {
        for range in self.reads().into_iter().chain(self.writes()) {
            if let Range::Lines(start, end) = range
                && end > there_are
            {
                return Err(Fault::OutOfRange { start: start.into(), end: end.into(), lines: there_are });
            }
        }
        let Some(written) = self.writes() else { return Ok(()) };
        let clash = |(place, read): (usize, &Range)| {
            read.meets(written) && !(self.in_place(place) && *read == written)
        };
        if self.reads().iter().enumerate().any(clash) { Err(Fault::Overlap) } else { Ok(()) }
    }

    /// Whether one of [`Work::reads`], by its place, may be the lines that are written: each line of it is read, for the last time, before it is
    /// written.
    fn in_place(&self, read: usize) -> bool {
        match *self {
            Self::Vector { function, .. } => match function {
                Function::Add | Function::Multiply | Function::Rotate | Function::Blend => true,
                Function::Level(_) | Function::Cut(_) | Function::Rescale(_) | Function::Predict => read == 0,
                Function::Correct => read == 2,
                _ => false,
            },
            Self::Multiply { accumulate, .. } => accumulate,
            _ => false,
        }
    }
}

/// Beyond 32 bits nothing is in range, so it may stay at the bound.
fn lines(start: u32, count: u64) -> Range {
    Range::Lines(start, u32::try_from(u64::from(start) + count).unwrap_or(u32::MAX))
}

/// A word address of a whole line, in lines.
pub(super) fn aligned(address: u64) -> Result<u32, Fault> {
    let address = address as u32;
    if address.is_multiple_of(LINE_WORDS) {
        Ok(address / LINE_WORDS)
    } else {
        Err(Fault::Misaligned { address })
    }
}

/// Bytes of the model's memory.
pub(super) fn in_memory(start: u64, bytes: u64, memory: usize) -> Result<(), Fault> {
    let end = start.saturating_add(bytes);
    if end <= memory as u64 { Ok(()) } else { Err(Fault::MemoryOutOfRange { start, end }) }
}

impl MatrixAt {
    /// Whether memory holds all of it: rows and scales are read in whole lines.
    pub(super) fn check(&self, memory: usize) -> Result<(), Fault> {
        let rows = u64::from(self.rows);
        in_memory(self.weights, rows * layout::row(self.columns.into()), memory)?;
        in_memory(self.scales, layout::row(2 * rows), memory)
    }

    /// A row's weights.
    pub(super) fn row<'m>(&self, memory: &'m [u8], row: usize) -> &'m [u8] {
        let bytes = layout::row(self.columns.into()) as usize;
        &memory[self.weights as usize + row * bytes..][..self.columns as usize]
    }

    /// A row's scale.
    pub(super) fn scale(&self, memory: &[u8], row: usize) -> u16 {
        layout::u16_at(memory, self.scales as usize + 2 * row)
    }
}

#[cfg(test)]
mod tests {
    use super::Range;

    #[test]
    fn ranges_meet_where_they_share_a_line() {
        let ranges = || (0..6).flat_map(|start| (start..6).map(move |end| (start, end)));
        for (first, second) in ranges().flat_map(|first| ranges().map(move |second| (first, second))) {
            let shared =
                (0..6).any(|line| [first, second].iter().all(|range| (range.0..range.1).contains(&line)));
            let [a, b] = [first, second].map(|(start, end)| Range::Lines(start, end));
            // An empty range is none of any word's.
            if first.0 < first.1 && second.0 < second.1 {
                assert_eq!(a.meets(b), shared, "{a:?} {b:?}");
            }
            assert!(!a.meets(Range::Kv(first.0.into())));
        }
        assert!(Range::Kv(64).meets(Range::Kv(64)) && !Range::Kv(64).meets(Range::Kv(0)));
    }
}
