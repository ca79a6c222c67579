//! From the shape of a model, and where its image has what, to a program and a memory map.
//!
//! A program is a step of one token. It is a loop over the layers, not each layer written out: 49 words do for any number of layers, and a
//! person reads them. What differs between layers, where their weights lie and the exponents of those, stands in a table behind
//! the image, 16 MEMSETs for each layer, which `layers` and `next` execute.

use doorbell_lm::Shape;
use doorbell_lm::image::{Entry, Kind};
use doorbell_lm::ops::score_factor;
use thiserror::Error;

use crate::isa::Form;
use crate::layout::{self, Block, LINE};

/// Why there is no program for a model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// The shape is none that devices run.
    #[error("{0}")]
    Shape(String),
    /// The image lacks a part, or it is of another size.
    #[error("{kind:?} of layer {layer} is not in the image as its shape says")]
    Part {
        /// Which part.
        kind: Kind,
        /// Of which layer.
        layer: u16,
    },
    /// A number that no field of a word holds.
    #[error("{what} is {value}, and words hold {most} at most")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: u64,
        /// How large it may be.
        most: u64,
    },
    /// Rows that are no M · N of 16 bits each.
    #[error("{what} is {value}, which is no product of two numbers of 16 bits")]
    Rows {
        /// What has as many.
        what: &'static str,
        /// How many.
        value: u64,
    },
}

/// Some lines of a context's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What lies there.
    pub name: &'static str,
    /// First line.
    pub start: u32,
    /// How many.
    pub lines: u32,
}

/// A program, and where it expects what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Words of the program.
    pub words: Vec<u64>,
    /// Words of each layer, MEMSETs alone.
    pub layers: Vec<Vec<u64>>,
    /// Byte of the model's memory at which the layers' words are expected, a record of whole lines for each.
    pub table: u64,
    /// Byte of the model's memory at which the program itself stands.
    pub start: u64,
    /// On-chip memory.
    pub map: Vec<Part>,
    /// Bytes of a block: keys and values of 32 tokens in all layers.
    pub block: u64,
}

impl Program {
    /// Lines of on-chip memory that a context needs.
    pub fn lines(&self) -> u32 {
        self.map.last().map_or(0, |part| part.start + part.lines)
    }

    /// The model's memory: the image, the layers' words behind it, and the program behind those.
    ///
    /// # Panics
    /// If the image is not as long as the one that was compiled.
    pub fn memory(&self, mut image: Vec<u8>) -> Vec<u8> {
        image.resize(image.len().next_multiple_of(LINE), 0);
        assert_eq!(image.len() as u64, self.table, "the program is not of this image");
        for words in self.layers.iter().chain([&self.words]) {
            image.extend(layout::whole(words.iter().flat_map(|word| word.to_le_bytes()).collect()));
        }
        image
    }
}

/// Descriptors. A matrix has two: of its rows, and of their scales.
mod at {
    pub const TOKENS: u64 = 0;
    pub const LAST_GAIN: u64 = 2;
    pub const ROPE: u64 = 3;
    pub const LAYERS: u64 = 4;
    pub const KV: u64 = 5;
    pub const ATTENTION_GAIN: u64 = 32;
    pub const HIDDEN_GAIN: u64 = 33;
    pub const QUERY: u64 = 34;
    pub const KEY: u64 = 36;
    pub const VALUE: u64 = 38;
    pub const OUTPUT: u64 = 40;
    pub const GATE: u64 = 42;
    pub const UP: u64 = 44;
    pub const DOWN: u64 = 46;
}

/// Shapes of vectors.
mod fmap {
    pub const RESIDUAL: u64 = 0;
    pub const TURNS: u64 = 1;
    pub const KEYS: u64 = 2;
    pub const KEYS_VALUES: u64 = 3;
    pub const QUERIES: u64 = 4;
    pub const ATTENTION: u64 = 5;
    pub const HIDDEN: u64 = 6;
}

/// Shapes of matrices.
mod weight {
    pub const TOKENS: u64 = 0;
    pub const QUERY: u64 = 1;
    pub const KEY: u64 = 2;
    pub const OUTPUT: u64 = 3;
    pub const UP: u64 = 4;
    pub const DOWN: u64 = 5;
}

/// The words, one by one.
#[derive(Debug, Default)]
struct Words(Vec<u64>);

impl Words {
    fn add(&mut self, mnemonic: &str, fields: &[(&str, u64)]) {
        let form = Form::named(mnemonic).unwrap_or_else(|| panic!("there is no {mnemonic}"));
        self.0.push(form.word(fields));
    }

    fn shape(&mut self, mnemonic: &str, index: u64, [m, n, k]: [u64; 3]) {
        self.add(mnemonic, &[("index", index), ("m", m), ("n", n), ("k", k)]);
    }

    fn descriptor(&mut self, index: u64, byte: u64, aux: i16) {
        let base = byte / LINE as u64;
        self.add("memset.desc", &[("index", index), ("base", base), ("aux", aux as u16 as u64)]);
    }

    /// A matrix's: its scales lie behind its rows.
    fn matrix(&mut self, index: u64, entry: &Entry) {
        self.descriptor(index, entry.offset, entry.exponent as i16);
        self.descriptor(index + 1, entry.offset + u64::from(entry.rows) * entry.stride(), 0);
    }

    fn gemv(&mut self, dst: Part, src: Part, matrix: u64, shape: u64, flags: &[&str]) {
        let fields =
            [("dest", words(dst)), ("src", words(src)), ("desc", matrix), ("shape", shape), ("scale", 1)];
        let flags = flags.iter().map(|&flag| (flag, 1));
        self.add("gemv", &fields.into_iter().chain(flags).collect::<Vec<_>>());
    }

    fn vector(&mut self, mnemonic: &str, dst: Part, a: Part, b: Option<Part>, shape: u64) {
        let b = b.map(|part| ("b", part.start.into()));
        let fields = [("dst", dst.start.into()), ("a", a.start.into()), ("shape", shape)];
        self.add(mnemonic, &fields.into_iter().chain(b).collect::<Vec<_>>());
    }

    /// Nothing waits for a copy: the scoreboard holds back what needs it.
    fn copy(&mut self, kind: &str, dst: Part, descriptor: u64, shape: u64) {
        self.add(kind, &[("dest", words(dst)), ("desc", descriptor), ("shape", shape), ("async", 1)]);
    }
}

fn words(part: Part) -> u64 {
    u64::from(part.start) * u64::from(layout::LINE_WORDS)
}

/// What of an image a program needs to know.
struct Parts<'e>(&'e [Entry]);

impl Parts<'_> {
    fn get(&self, kind: Kind, layer: u16, rows: usize, columns: usize) -> Result<&Entry, CompileError> {
        let found = self.0.iter().find(|entry| entry.kind == kind && entry.layer == layer);
        let entry = found.ok_or(CompileError::Part { kind, layer })?;
        let sound = entry.rows as usize == rows
            && entry.columns as usize == columns
            && entry.offset % LINE as u64 == 0
            && i8::try_from(entry.exponent).is_ok();
        if !sound {
            return Err(CompileError::Part { kind, layer });
        }
        fits("offset in lines", (entry.offset + entry.bytes) / LINE as u64, u32::MAX.into())?;
        Ok(entry)
    }
}

fn fits(what: &'static str, value: u64, most: u64) -> Result<u64, CompileError> {
    if value > most { Err(CompileError::TooLarge { what, value, most }) } else { Ok(value) }
}

/// M and N of so many rows.
fn factors(what: &'static str, rows: usize) -> Result<[u64; 2], CompileError> {
    let rows = rows as u64;
    let m = (1..=u64::from(u16::MAX)).find(|&m| rows.is_multiple_of(m) && rows / m <= u16::MAX.into());
    m.map(|m| [m, rows / m]).ok_or(CompileError::Rows { what, value: rows })
}

/// The program of a model of this shape whose image has these parts, and `image` bytes.
///
/// # Errors
/// If no device runs the shape, the parts are not those of it, or a number is beyond what words hold.
pub fn compile(shape: &Shape, epsilon: u32, entries: &[Entry], image: u64) -> Result<Program, CompileError> {
    if let Some(refusal) = shape.refusal() {
        return Err(CompileError::Shape(refusal));
    }
    let &Shape { width, heads, kv_heads, head_width, hidden, .. } = shape;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    for (what, value) in
        [("width", width), ("queries", queries), ("keys and values", 2 * keys), ("hidden", hidden)]
    {
        fits(what, value as u64, 65_504)?;
    }
    let parts = Parts(entries);
    let table = image.next_multiple_of(LINE as u64);
    let layers = (0..shape.layers as u16).map(|layer| layer_words(&parts, shape, layer));
    let layers: Vec<Vec<u64>> = layers.collect::<Result<_, _>>()?;
    let record = (layers[0].len() * 8).div_ceil(LINE) as i16;
    fits("table in lines", table / LINE as u64, u32::MAX.into())?;

    let kv_layer = kv_heads as u64 * Block { width: head_width as u64 }.bytes();
    let block = kv_layer * shape.layers as u64;
    fits("keys and values of a layer, in lines", kv_layer / LINE as u64, i16::MAX as u64)?;

    let map = Map::new(shape)?;
    let mut words = Words::default();
    let part = |kind, rows, columns| parts.get(kind, 0, rows, columns);
    let last_gain = part(Kind::LastGain, 1, width)?;
    words.matrix(at::TOKENS, part(Kind::Tokens, shape.vocabulary, width)?);
    words.descriptor(at::LAST_GAIN, last_gain.offset, last_gain.exponent as i16);
    let turns = layout::turns(head_width as u64);
    words.descriptor(at::ROPE, part(Kind::Rope, shape.context, head_width / 2)?.offset, turns as i16);
    words.descriptor(at::LAYERS, table, record);
    words.descriptor(at::KV, block, (kv_layer / LINE as u64) as i16);

    let vector = |count: usize| [1, count as u64 / 32, 32];
    let heads_of = |m: usize, n: usize| [m as u64, n as u64, head_width as u64];
    let [m, n] = factors("context", shape.context)?;
    words.shape("memset.fmap", fmap::RESIDUAL, vector(width));
    words.shape("memset.fmap", fmap::TURNS, [m, n, turns * u64::from(layout::LINE_WORDS)]);
    words.shape("memset.fmap", fmap::KEYS, heads_of(1, kv_heads));
    words.shape("memset.fmap", fmap::KEYS_VALUES, heads_of(2, kv_heads));
    words.shape("memset.fmap", fmap::QUERIES, heads_of(1, heads));
    words.shape("memset.fmap", fmap::ATTENTION, heads_of(heads, kv_heads));
    words.shape("memset.fmap", fmap::HIDDEN, vector(hidden));
    let matrix = |rows: usize, columns: usize| [1, rows as u64, columns as u64];
    let [m, n] = factors("vocabulary", shape.vocabulary)?;
    words.shape("memset.weight", weight::TOKENS, [m, n, width as u64]);
    words.shape("memset.weight", weight::QUERY, matrix(queries, width));
    words.shape("memset.weight", weight::KEY, matrix(keys, width));
    words.shape("memset.weight", weight::OUTPUT, matrix(width, queries));
    words.shape("memset.weight", weight::UP, matrix(hidden, width));
    words.shape("memset.weight", weight::DOWN, matrix(width, hidden));
    words.add("memset.epsilon", &[("value", epsilon.into())]);
    words.add("memset.factor", &[("value", score_factor(head_width).into())]);

    words.copy("memcpy.embed", map.residual, at::TOKENS, weight::TOKENS);
    words.copy("memcpy.row", map.turns, at::ROPE, fmap::TURNS);
    let count = fits("layers", shape.layers as u64, u16::MAX.into())?;
    words.add("layers", &[("count", count), ("words", layers[0].len() as u64), ("desc", at::LAYERS)]);
    layer(&mut words, &map);
    words.add("next", &[]);
    words.add("end.silent", &[]);
    words.copy("memcpy.gain", map.attention_gain, at::LAST_GAIN, fmap::RESIDUAL);
    words.vector("vec.norm", map.input, map.residual, Some(map.attention_gain), fmap::RESIDUAL);
    let head = [("src", map.input.start.into()), ("desc", at::TOKENS), ("shape", weight::TOKENS)];
    words.add("head", &[&head[..], &[("first", 1), ("last", 1)]].concat());
    words.add("end", &[]);
    let start = table + (layers.len() * record as usize * LINE) as u64;
    Ok(Program { words: words.0, layers, table, start, map: map.all(), block })
}

/// Keys and values first, and queries behind them: while their rows stream, the SFU turns and stores keys, and they are on their way to memory.
/// Both gains are fetched ahead.
fn layer(words: &mut Words, map: &Map) {
    words.copy("memcpy.gain", map.attention_gain, at::ATTENTION_GAIN, fmap::RESIDUAL);
    words.copy("memcpy.gain", map.hidden_gain, at::HIDDEN_GAIN, fmap::RESIDUAL);
    words.vector("vec.norm", map.input, map.residual, Some(map.attention_gain), fmap::RESIDUAL);
    words.gemv(map.keys, map.input, at::KEY, weight::KEY, &[]);
    words.gemv(map.values, map.input, at::VALUE, weight::KEY, &[]);
    words.gemv(map.queries, map.input, at::QUERY, weight::QUERY, &[]);
    words.vector("vec.rope", map.keys, map.keys, Some(map.turns), fmap::KEYS);
    words.vector("vec.store", map.stored, map.keys, None, fmap::KEYS_VALUES);
    let append =
        [("src", self::words(map.stored)), ("desc", at::KV), ("shape", fmap::KEYS_VALUES), ("async", 1)];
    words.add("memcpy.kv", &append);
    words.vector("vec.rope", map.queries, map.queries, Some(map.turns), fmap::QUERIES);
    words.vector("vec.store", map.stored_queries, map.queries, None, fmap::QUERIES);
    let [dst, src] = [map.means, map.stored_queries].map(|part| u64::from(part.start));
    words.add("attn", &[("dst", dst), ("src", src), ("shape", fmap::ATTENTION), ("desc", at::KV)]);
    words.vector("vec.act", map.attended, map.means, None, fmap::QUERIES);
    words.gemv(map.residual, map.attended, at::OUTPUT, weight::OUTPUT, &["acc"]);
    words.vector("vec.norm", map.input, map.residual, Some(map.hidden_gain), fmap::RESIDUAL);
    words.gemv(map.gate, map.input, at::GATE, weight::UP, &[]);
    words.gemv(map.up, map.input, at::UP, weight::UP, &[]);
    words.vector("vec.swiglu", map.hidden, map.gate, Some(map.up), fmap::HIDDEN);
    words.gemv(map.residual, map.hidden, at::DOWN, weight::DOWN, &["acc"]);
}

/// Where a layer's weights lie, and their exponents.
fn layer_words(parts: &Parts<'_>, shape: &Shape, layer: u16) -> Result<Vec<u64>, CompileError> {
    let &Shape { width, heads, kv_heads, head_width, hidden, .. } = shape;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    let mut words = Words::default();
    for (index, kind) in [(at::ATTENTION_GAIN, Kind::AttentionGain), (at::HIDDEN_GAIN, Kind::HiddenGain)] {
        let entry = parts.get(kind, layer, 1, width)?;
        words.descriptor(index, entry.offset, entry.exponent as i16);
    }
    let matrices = [
        (at::QUERY, Kind::Query, queries, width),
        (at::KEY, Kind::Key, keys, width),
        (at::VALUE, Kind::Value, keys, width),
        (at::OUTPUT, Kind::Output, width, queries),
        (at::GATE, Kind::Gate, hidden, width),
        (at::UP, Kind::Up, hidden, width),
        (at::DOWN, Kind::Down, width, hidden),
    ];
    for (index, kind, rows, columns) in matrices {
        words.matrix(index, parts.get(kind, layer, rows, columns)?);
    }
    Ok(words.0)
}

/// What lies where in a context.
struct Map {
    residual: Part,
    turns: Part,
    attention_gain: Part,
    hidden_gain: Part,
    input: Part,
    /// Values stand behind keys, so that both are stored by one word.
    keys: Part,
    values: Part,
    queries: Part,
    stored: Part,
    stored_queries: Part,
    means: Part,
    attended: Part,
    gate: Part,
    up: Part,
    hidden: Part,
}

impl Map {
    fn new(shape: &Shape) -> Result<Self, CompileError> {
        let [width, heads, kv_heads, head_width, hidden] =
            [shape.width, shape.heads, shape.kv_heads, shape.head_width, shape.hidden]
                .map(|count| count as u64);
        let (queries, keys) = (heads * head_width, kv_heads * head_width);
        let mut start = 0u64;
        let mut part = |name, lines: u64| {
            let part = Part { name, start: start as u32, lines: lines as u32 };
            start += lines;
            part
        };
        let map = Self {
            residual: part("residual", layout::integers(width)),
            turns: part("turns", layout::turns(head_width)),
            attention_gain: part("attention gain", layout::gain(width)),
            hidden_gain: part("hidden gain", layout::gain(width)),
            input: part("input", layout::activation(width)),
            keys: part("keys", layout::integers(keys)),
            values: part("values", layout::integers(keys)),
            queries: part("queries", layout::integers(queries)),
            stored: part("stored keys and values", layout::stored(2 * kv_heads, head_width)),
            stored_queries: part("stored queries", layout::stored(heads, head_width)),
            means: part("means", layout::integers(queries)),
            attended: part("attended", layout::activation(queries)),
            gate: part("gate", layout::integers(hidden)),
            up: part("up", layout::integers(hidden)),
            hidden: part("hidden", layout::activation(hidden)),
        };
        fits("on-chip memory in lines", start, 1 << 13)?;
        Ok(map)
    }

    fn all(&self) -> Vec<Part> {
        vec![
            self.residual,
            self.turns,
            self.attention_gain,
            self.hidden_gain,
            self.input,
            self.keys,
            self.values,
            self.queries,
            self.stored,
            self.stored_queries,
            self.means,
            self.attended,
            self.gate,
            self.up,
            self.hidden,
        ]
    }
}
