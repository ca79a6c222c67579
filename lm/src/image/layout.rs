//! Where everything lies. All of it follows from the shape and the lengths of the texts, so a reader has nothing to trust.

use crate::ops::BLOCK;
use crate::shape::{Gemma, STREAMS, Shape};

/// What a file begins with.
pub(super) const MAGIC: [u8; 8] = *b"DoorbLM\0";
/// Of the layout.
pub(super) const VERSION: u32 = 2;
/// Bytes of the header, and of an entry of the directory behind it.
pub const HEADER: usize = 128;

/// Where the cap on keys and values stands in it: its window and its sinks, 4 bytes each.
pub const KV_CAP: usize = 84;
pub(super) const ENTRY: usize = 32;
/// Everything begins at a multiple of this, rows of weights too.
pub(super) const ALIGNMENT: usize = 64;

/// What an entry of the directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the equations in docs/engine.md")]
#[repr(u16)]
pub enum Kind {
    Tokens = 1,
    LastGain = 2,
    /// Cosine and sine by position and pair.
    Rope = 3,
    /// JSON.
    About = 4,
    /// tokenizer.json.
    Tokenizer = 5,
    /// That of global layers.
    GlobalRope = 6,
    /// By stream, from 1.
    Split = 7,
    /// By stream, from 1.
    Merge = 8,
    AttentionGain = 16,
    Query = 17,
    Key = 18,
    Value = 19,
    Output = 20,
    HiddenGain = 21,
    Gate = 22,
    Up = 23,
    Down = 24,
    RouterGain = 25,
    Router = 26,
    Predict = 27,
    Correct = 28,
    QueryGain = 29,
    KeyGain = 30,
    ValueGain = 31,
    OutputGain = 32,
    Left = 33,
    Right = 34,
    LaurelGain = 35,
    DownGain = 36,
    Embedding = 37,
    Projection = 38,
    ProjectionGain = 39,
    EmbeddingGate = 40,
    EmbeddingOutput = 41,
    EmbeddingGain = 42,
}

impl Kind {
    /// How its values lie: bytes of an element, and of what stands behind the rows for each of them.
    pub(super) fn form(self) -> Form {
        match self {
            Self::LastGain
            | Self::AttentionGain
            | Self::HiddenGain
            | Self::RouterGain
            | Self::QueryGain
            | Self::KeyGain
            | Self::ValueGain
            | Self::OutputGain
            | Self::LaurelGain
            | Self::DownGain
            | Self::ProjectionGain
            | Self::EmbeddingGain => Form::Gain,
            Self::Rope | Self::GlobalRope => Form::Rope,
            Self::About | Self::Tokenizer => Form::Text,
            _ => Form::Matrix,
        }
    }
}

/// How values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Rows of int8, each at a multiple of 64; then the rows' scales, uint16.
    Matrix,
    /// int16.
    Gain,
    /// Pairs of int16.
    Rope,
    /// UTF-8.
    Text,
}

/// An entry of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Of which layer, or of which stream; 0 for what belongs to none.
    pub layer: u16,
    /// Of a matrix and of a gain.
    pub exponent: i32,
    /// Rows of a matrix, positions of the rotations, else 1.
    pub rows: u32,
    /// Columns of a matrix, pairs of the rotations, channels of a gain, bytes of a text.
    pub columns: u32,
    /// Where it begins.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Entry {
    /// Bytes from one row of a matrix to the next.
    pub fn stride(&self) -> u64 {
        align(u64::from(self.columns))
    }
}

/// The next multiple of the alignment.
pub(super) fn align(offset: u64) -> u64 {
    offset.next_multiple_of(ALIGNMENT as u64)
}

/// The directory of a model of this shape, whose exponents are still 0. A shape that [`Shape::refusal`] takes gives no number
/// near 64 bits.
pub(super) fn layout(shape: &Shape, about: u32, tokenizer: u32) -> Vec<Entry> {
    let Shape { width, hidden, head_width, .. } = *shape;
    let (queries, keys) = (shape.heads * head_width, shape.kv_heads * head_width);
    let mut parts = vec![
        (Kind::About, 0, 1, about as usize),
        (Kind::Tokenizer, 0, 1, tokenizer as usize),
        (Kind::Rope, 0, shape.context, head_width / 2),
    ];
    if shape.gemma.is_some() {
        parts.push((Kind::GlobalRope, 0, shape.context, head_width / 2));
        parts.extend((1..STREAMS).map(|stream| (Kind::Split, stream, width, width)));
    }
    for layer in 0..shape.layers {
        parts.extend([(Kind::AttentionGain, layer, 1, width), (Kind::Query, layer, queries, width)]);
        if layer < shape.kv_layers() {
            parts.extend([(Kind::Key, layer, keys, width), (Kind::Value, layer, keys, width)]);
        }
        parts.extend([
            (Kind::Output, layer, width, queries),
            (Kind::HiddenGain, layer, 1, width),
            (Kind::Gate, layer, hidden, width),
            (Kind::Up, layer, hidden, width),
            (Kind::Down, layer, width, hidden),
        ]);
        let Some(Gemma { embedding, laurel, .. }) = shape.gemma else { continue };
        parts.extend([
            (Kind::RouterGain, layer, 1, width),
            (Kind::Router, layer, STREAMS, width),
            (Kind::Predict, layer, STREAMS * STREAMS, BLOCK),
            (Kind::Correct, layer, STREAMS, BLOCK),
            (Kind::QueryGain, layer, 1, head_width),
        ]);
        if layer < shape.kv_layers() {
            parts.extend([(Kind::KeyGain, layer, 1, head_width), (Kind::ValueGain, layer, 1, head_width)]);
        }
        parts.extend([
            (Kind::OutputGain, layer, 1, width),
            (Kind::Left, layer, laurel, width),
            (Kind::Right, layer, width, laurel),
            (Kind::LaurelGain, layer, 1, width),
            (Kind::DownGain, layer, 1, width),
            (Kind::Embedding, layer, shape.vocabulary, embedding),
            (Kind::Projection, layer, embedding, width),
            (Kind::ProjectionGain, layer, 1, embedding),
            (Kind::EmbeddingGate, layer, embedding, width),
            (Kind::EmbeddingOutput, layer, width, embedding),
            (Kind::EmbeddingGain, layer, 1, width),
        ]);
    }
    if shape.gemma.is_some() {
        parts.extend((1..STREAMS).map(|stream| (Kind::Merge, stream, width, width)));
    }
    parts.extend([(Kind::LastGain, 0, 1, width), (Kind::Tokens, 0, shape.vocabulary, width)]);
    let mut offset = (HEADER + ENTRY * parts.len()) as u64;
    let mut entries = vec![];
    for (kind, layer, rows, columns) in parts {
        offset = align(offset);
        let mut entry = Entry {
            kind,
            layer: layer as u16,
            exponent: 0,
            rows: rows as u32,
            columns: columns as u32,
            offset,
            bytes: 0,
        };
        let (rows, columns) = (rows as u64, columns as u64);
        entry.bytes = match kind.form() {
            Form::Matrix => rows * entry.stride() + rows * 2,
            Form::Gain => columns * 2,
            Form::Rope => rows * columns * 4,
            Form::Text => columns,
        };
        offset += entry.bytes;
        entries.push(entry);
    }
    entries
}

/// Bytes of a file with this directory.
pub(super) fn length(entries: &[Entry]) -> u64 {
    entries.last().map_or(0, |last| align(last.offset + last.bytes))
}
