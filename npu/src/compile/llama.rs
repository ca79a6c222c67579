//! Llama's shape: 49 words, of which 19 are a layer, and 16 for each layer.

use doorbell_lm::Shape;
use doorbell_lm::image::Kind;
use doorbell_lm::ops::score_factor;

use super::{CompileError, Layout, Model, Part, Program, Words, block, factors, matrix, record, vector};
use crate::layout::{self, LINE};

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

pub(super) fn compile(model: &Model<'_>) -> Result<Program, CompileError> {
    let Model { shape, parts, table, .. } = model;
    let &&Shape { width, heads, kv_heads, head_width, hidden, .. } = shape;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    let layers = (0..shape.layers as u16).map(|layer| layer_words(model, layer));
    let layers: Vec<Vec<u64>> = layers.collect::<Result<_, _>>()?;
    let [kv_layer, block] = block(shape)?;
    let (map, all) = Map::new(shape)?;
    let mut words = Words::default();
    let part = |kind, rows, columns| parts.get(kind, 0, rows, columns);
    let last_gain = part(Kind::LastGain, 1, width)?;
    words.matrix(at::TOKENS, part(Kind::Tokens, shape.vocabulary, width)?);
    words.gain(at::LAST_GAIN, last_gain);
    let turns = layout::turns(head_width as u64);
    words.rope(at::ROPE, part(Kind::Rope, shape.context, head_width / 2)?, turns);
    words.descriptor(at::LAYERS, *table, (record(&layers) / LINE as u64) as i16);
    words.descriptor(at::KV, block, (kv_layer / LINE as u64) as i16);

    let heads_of = |m: usize, n: usize| [m as u64, n as u64, head_width as u64];
    let [m, n] = factors("context", shape.context)?;
    words.shape("memset.fmap", fmap::RESIDUAL, vector(width));
    words.shape("memset.fmap", fmap::TURNS, [m, n, turns * u64::from(layout::LINE_WORDS)]);
    words.shape("memset.fmap", fmap::KEYS, heads_of(1, kv_heads));
    words.shape("memset.fmap", fmap::KEYS_VALUES, heads_of(2, kv_heads));
    words.shape("memset.fmap", fmap::QUERIES, heads_of(1, heads));
    words.shape("memset.fmap", fmap::ATTENTION, heads_of(heads, kv_heads));
    words.shape("memset.fmap", fmap::HIDDEN, vector(hidden));
    let [m, n] = factors("vocabulary", shape.vocabulary)?;
    words.shape("memset.weight", weight::TOKENS, [m, n, width as u64]);
    words.shape("memset.weight", weight::QUERY, matrix(queries, width));
    words.shape("memset.weight", weight::KEY, matrix(keys, width));
    words.shape("memset.weight", weight::OUTPUT, matrix(width, queries));
    words.shape("memset.weight", weight::UP, matrix(hidden, width));
    words.shape("memset.weight", weight::DOWN, matrix(width, hidden));
    words.set("memset.epsilon", model.epsilon.into());
    words.set("memset.factor", score_factor(head_width).into());
    if let Some(cap) = shape.kv_cap {
        words.set("memset.window", cap.window as u64);
        words.set("memset.sinks", cap.sinks as u64);
    }

    words.copy("memcpy.embed", map.residual, at::TOKENS, weight::TOKENS);
    words.copy("memcpy.row", map.turns, at::ROPE, fmap::TURNS);
    words.layers(&layers, at::LAYERS);
    let flags: &[&str] = if shape.kv_cap.is_some() { &["window", "sinks"] } else { &[] };
    layer(&mut words, &map, flags);
    words.add("next", &[]);
    words.add("end.silent", &[]);
    words.copy("memcpy.gain", map.attention_gain, at::LAST_GAIN, fmap::RESIDUAL);
    words.vector("vec.norm", map.input, map.residual, Some(map.attention_gain), fmap::RESIDUAL);
    words.head(map.input, at::TOKENS, weight::TOKENS, &[]);
    words.add("end", &[]);
    let start = table + layers.len() as u64 * record(&layers);
    Ok(Program { words: words.0, layers, table: *table, start, map: all, block })
}

/// Keys and values first, and queries behind them: while their rows stream, the SFU turns and stores keys, and they are on their way to memory.
/// Both gains are fetched ahead. `flags` are those of attention.
fn layer(words: &mut Words, map: &Map, flags: &[&str]) {
    words.copy("memcpy.gain", map.attention_gain, at::ATTENTION_GAIN, fmap::RESIDUAL);
    words.copy("memcpy.gain", map.hidden_gain, at::HIDDEN_GAIN, fmap::RESIDUAL);
    words.vector("vec.norm", map.input, map.residual, Some(map.attention_gain), fmap::RESIDUAL);
    words.gemv(map.keys, map.input, at::KEY, weight::KEY, &[]);
    words.gemv(map.values, map.input, at::VALUE, weight::KEY, &[]);
    words.gemv(map.queries, map.input, at::QUERY, weight::QUERY, &[]);
    words.vector("vec.rope", map.keys, map.keys, Some(map.turns), fmap::KEYS);
    words.vector("vec.store", map.stored, map.keys, None, fmap::KEYS_VALUES);
    words.append(map.stored, at::KV, fmap::KEYS_VALUES);
    words.vector("vec.rope", map.queries, map.queries, Some(map.turns), fmap::QUERIES);
    words.vector("vec.store", map.stored_queries, map.queries, None, fmap::QUERIES);
    words.attend(map.means, map.stored_queries, fmap::ATTENTION, at::KV, flags);
    words.vector("vec.act", map.attended, map.means, None, fmap::QUERIES);
    words.gemv(map.residual, map.attended, at::OUTPUT, weight::OUTPUT, &["acc"]);
    words.vector("vec.norm", map.input, map.residual, Some(map.hidden_gain), fmap::RESIDUAL);
    words.gemv(map.gate, map.input, at::GATE, weight::UP, &[]);
    words.gemv(map.up, map.input, at::UP, weight::UP, &[]);
    words.vector("vec.swiglu", map.hidden, map.gate, Some(map.up), fmap::HIDDEN);
    words.gemv(map.residual, map.hidden, at::DOWN, weight::DOWN, &["acc"]);
}

/// Where a layer's weights lie, and their exponents.
fn layer_words(model: &Model<'_>, layer: u16) -> Result<Vec<u64>, CompileError> {
    let Model { shape, parts, .. } = model;
    let &&Shape { width, heads, kv_heads, head_width, hidden, .. } = shape;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    let mut words = Words::default();
    for (index, kind) in [(at::ATTENTION_GAIN, Kind::AttentionGain), (at::HIDDEN_GAIN, Kind::HiddenGain)] {
        words.gain(index, parts.get(kind, layer, 1, width)?);
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
    /// The parts, by what they hold and all.
    fn new(shape: &Shape) -> Result<(Self, Vec<Part>), CompileError> {
        let [width, heads, kv_heads, head_width, hidden] =
            [shape.width, shape.heads, shape.kv_heads, shape.head_width, shape.hidden]
                .map(|count| count as u64);
        let (queries, keys) = (heads * head_width, kv_heads * head_width);
        let mut layout = Layout::default();
        let mut part = |name, lines| layout.part(name, lines);
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
        Ok((map, layout.map()?))
    }
}
