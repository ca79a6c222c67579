//! Gemma 3N's shape: two loops, of the layers with keys and values of their own and of those that read others'.
//!
//! In order of docs/engine.md but where an engine would be idle: the embedding of a layer is made while the streams are predicted and queries
//! levelled, a LAuReL while queries attend, and gains come one by one, ahead of what takes them.

use doorbell_lm::image::Kind;
use doorbell_lm::ops::score_factor;
use doorbell_lm::{CUT, Gemma, STREAMS, SUMMED, Shape};

use super::{
    CompileError, Layout, Model, Part, Program, Words, block, factors, fits, matrix, record, vector,
};
use crate::layout::{self, LINE};

/// Descriptors: 62 of 64. A matrix has two: of its rows, and of their scales.
mod at {
    pub const TOKENS: u64 = 0;
    pub const LAST_GAIN: u64 = 2;
    pub const OWN: u64 = 3;
    pub const OTHERS: u64 = 4;
    pub const KV: u64 = 5;
    pub const SPLIT: u64 = 6;
    pub const MERGE: u64 = 12;
    // Of a layer.
    pub const ROPE: u64 = 18;
    pub const ROUTER_GAIN: u64 = 19;
    pub const ATTENTION_GAIN: u64 = 20;
    pub const KEY_GAIN: u64 = 21;
    pub const VALUE_GAIN: u64 = 22;
    pub const QUERY_GAIN: u64 = 23;
    pub const PROJECTION_GAIN: u64 = 24;
    pub const LAUREL_GAIN: u64 = 25;
    pub const OUTPUT_GAIN: u64 = 26;
    pub const HIDDEN_GAIN: u64 = 27;
    pub const DOWN_GAIN: u64 = 28;
    pub const EMBEDDING_GAIN: u64 = 29;
    pub const ROUTER: u64 = 30;
    pub const PREDICT: u64 = 32;
    pub const CORRECT: u64 = 34;
    pub const KEY: u64 = 36;
    pub const VALUE: u64 = 38;
    pub const QUERY: u64 = 40;
    pub const OUTPUT: u64 = 42;
    pub const LEFT: u64 = 44;
    pub const RIGHT: u64 = 46;
    pub const GATE: u64 = 48;
    pub const UP: u64 = 50;
    pub const DOWN: u64 = 52;
    pub const EMBEDDING: u64 = 54;
    pub const PROJECTION: u64 = 56;
    pub const EMBEDDING_GATE: u64 = 58;
    pub const EMBEDDING_OUTPUT: u64 = 60;
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
    pub const STREAMS: u64 = 7;
    pub const ROUTES: u64 = 8;
    pub const HEAD: u64 = 9;
    pub const LAUREL: u64 = 10;
    pub const EMBEDDING: u64 = 11;
}

/// Shapes of matrices.
mod weight {
    pub const TOKENS: u64 = 0;
    pub const QUERY: u64 = 1;
    pub const KEY: u64 = 2;
    pub const OUTPUT: u64 = 3;
    pub const UP: u64 = 4;
    pub const DOWN: u64 = 5;
    pub const STREAM: u64 = 6;
    pub const ROUTER: u64 = 7;
    pub const PREDICT: u64 = 8;
    pub const CORRECT: u64 = 9;
    pub const LEFT: u64 = 10;
    pub const RIGHT: u64 = 11;
    pub const EMBEDDING: u64 = 12;
    pub const PROJECTION: u64 = 13;
    pub const EMBEDDING_OUTPUT: u64 = 14;
}

/// Numbers that the coefficients' matrices have for columns, of which the router gives the first.
const ROUTES: usize = 32;

/// A window that every position is in.
const ALL: u64 = 65_536;

pub(super) fn compile(model: &Model<'_>, gemma: &Gemma) -> Result<Program, CompileError> {
    let Model { shape, parts, table, .. } = model;
    let &&Shape { width, heads, kv_heads, head_width, hidden, .. } = shape;
    let &Gemma { embedding, laurel, .. } = gemma;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    let layers = (0..shape.layers as u16).map(|layer| layer_words(model, gemma, layer));
    let layers: Vec<Vec<u64>> = layers.collect::<Result<_, _>>()?;
    let (own, others) = layers.split_at(shape.kv_layers());
    let [kv_layer, block] = block(shape)?;
    let (map, all) = Map::new(shape, gemma)?;
    let lines = |bytes: u64| (bytes / LINE as u64) as i16;

    let mut words = Words::default();
    words.matrix(at::TOKENS, parts.get(Kind::Tokens, 0, shape.vocabulary, width)?);
    words.gain(at::LAST_GAIN, parts.get(Kind::LastGain, 0, 1, width)?);
    words.descriptor(at::OWN, *table, lines(record(own)));
    let others_at = table + own.len() as u64 * record(own);
    if !others.is_empty() {
        words.descriptor(at::OTHERS, others_at, lines(record(others)));
    }
    words.descriptor(at::KV, block, lines(kv_layer));
    for (first, kind) in [(at::SPLIT, Kind::Split), (at::MERGE, Kind::Merge)] {
        for stream in 1..STREAMS as u16 {
            let index = first + 2 * u64::from(stream - 1);
            words.matrix(index, parts.get(kind, stream, width, width)?);
        }
    }

    let row = |count: usize| [1, 1, count as u64];
    let heads_of = |m: usize, n: usize| [m as u64, n as u64, head_width as u64];
    let [m, n] = factors("context", shape.context)?;
    let turns = layout::turns(head_width as u64) * u64::from(layout::LINE_WORDS);
    for (index, shape) in [
        (fmap::RESIDUAL, row(width)),
        (fmap::TURNS, [m, n, turns]),
        (fmap::KEYS, heads_of(1, kv_heads)),
        (fmap::KEYS_VALUES, heads_of(2, kv_heads)),
        (fmap::QUERIES, heads_of(1, heads)),
        (fmap::ATTENTION, heads_of(heads, kv_heads)),
        (fmap::HIDDEN, vector(hidden)),
        (fmap::STREAMS, [1, STREAMS as u64, width as u64]),
        (fmap::ROUTES, row(ROUTES)),
        (fmap::HEAD, row(head_width)),
        (fmap::LAUREL, row(laurel)),
        (fmap::EMBEDDING, row(embedding)),
    ] {
        words.shape("memset.fmap", index, shape);
    }
    let [m, n] = factors("vocabulary", shape.vocabulary)?;
    for (index, shape) in [
        (weight::TOKENS, [m, n, width as u64]),
        (weight::QUERY, matrix(queries, width)),
        (weight::KEY, matrix(keys, width)),
        (weight::OUTPUT, matrix(width, queries)),
        (weight::UP, matrix(hidden, width)),
        (weight::DOWN, matrix(width, hidden)),
        (weight::STREAM, matrix(width, width)),
        (weight::ROUTER, matrix(STREAMS, width)),
        (weight::PREDICT, matrix(STREAMS * STREAMS, ROUTES)),
        (weight::CORRECT, matrix(STREAMS, ROUTES)),
        (weight::LEFT, matrix(laurel, width)),
        (weight::RIGHT, matrix(width, laurel)),
        (weight::EMBEDDING, [m, n, embedding as u64]),
        (weight::PROJECTION, matrix(embedding, width)),
        (weight::EMBEDDING_OUTPUT, matrix(width, embedding)),
    ] {
        words.shape("memset.weight", index, shape);
    }
    words.set("memset.epsilon", model.epsilon.into());
    words.set("memset.factor", score_factor(head_width).into());

    split(&mut words, &map);
    let capped = shape.kv_cap.is_some();
    words.layers(own, at::OWN);
    layer(&mut words, &map, true, capped);
    words.add("next", &[]);
    if !others.is_empty() {
        words.layers(others, at::OTHERS);
        layer(&mut words, &map, false, capped);
        words.add("next", &[]);
    }
    words.add("end.silent", &[]);
    merge(&mut words, &map);
    // Of the sum of four streams, not of their mean.
    words.set("memset.epsilon", u64::from(model.epsilon) * u64::from(SUMMED));
    words.vector("vec.norm", map.input, map.found, Some(map.attention_gain), fmap::RESIDUAL);
    words.head(map.input, at::TOKENS, weight::TOKENS, &["cap"]);
    words.add("end", &[]);
    let start = others_at + others.len() as u64 * record(others);
    Ok(Program { words: words.0, layers, table: *table, start, map: all, block })
}

/// The streams that a token begins with. Its activation stays: each layer makes its embedding of it.
fn split(words: &mut Words, map: &Map) {
    let [first, others @ ..] = map.streams;
    words.copy("memcpy.embed", first, at::TOKENS, weight::TOKENS);
    words.vector("vec.act", map.token, first, None, fmap::RESIDUAL);
    for (index, stream) in (0..).zip(others) {
        words.gemv(stream, map.token, at::SPLIT + 2 * index, weight::STREAM, &[]);
        // The one before, while this one's rows stream.
        if let Some(before) = (index as usize).checked_sub(1) {
            words.vector("vec.rescale", others[before], others[before], Some(first), fmap::RESIDUAL);
        }
    }
    let [.., last] = others;
    words.vector("vec.rescale", last, last, Some(first), fmap::RESIDUAL);
}

/// The sum of the streams. What a layer needed holds what is on its way to it.
fn merge(words: &mut Words, map: &Map) {
    let [first, others @ ..] = map.streams;
    words.copy("memcpy.gain", map.attention_gain, at::LAST_GAIN, fmap::RESIDUAL);
    let inputs = [map.input, map.routing, map.token];
    let parts = [map.addend, map.laurel, map.levelled];
    let add = |words: &mut Words, index: usize| {
        let part = parts[index];
        words.vector("vec.rescale", part, part, Some(first), fmap::RESIDUAL);
        let sum = if index == 0 { first } else { map.found };
        words.vector("vec.add", map.found, sum, Some(part), fmap::RESIDUAL);
    };
    for index in 0..parts.len() {
        words.vector("vec.act", inputs[index], others[index], None, fmap::RESIDUAL);
        words.gemv(parts[index], inputs[index], at::MERGE + 2 * index as u64, weight::STREAM, &[]);
        if let Some(before) = index.checked_sub(1) {
            add(words, before);
        }
    }
    add(words, parts.len() - 1);
}

/// Coefficients for the streams, from one of them.
fn route(words: &mut Words, map: &Map, stream: Part, descriptor: u64, shape: u64) {
    words.vector("vec.norm", map.routing, stream, Some(map.router_gain), fmap::RESIDUAL);
    words.gemv(map.routes, map.routing, at::ROUTER, weight::ROUTER, &[]);
    words.vector("vec.tanh", map.routed, map.routes, None, fmap::ROUTES);
    words.gemv(map.coefficients, map.routed, descriptor, shape, &[]);
}

/// A layer with keys and values of its own, or one that reads others'; `capped` if global layers see sinks and a window.
fn layer(words: &mut Words, map: &Map, own: bool, capped: bool) {
    let [first, others @ ..] = map.streams;
    words.copy("memcpy.gain", map.router_gain, at::ROUTER_GAIN, fmap::RESIDUAL);
    words.copy("memcpy.gain", map.attention_gain, at::ATTENTION_GAIN, fmap::RESIDUAL);
    route(words, map, first, at::PREDICT, weight::PREDICT);
    // The layer's embedding while the streams are predicted.
    words.gemv(map.embedding, map.token, at::PROJECTION, weight::PROJECTION, &[]);
    words.vector("vec.predict", first, first, Some(map.coefficients), fmap::STREAMS);
    words.copy("memcpy.row", map.turns, at::ROPE, fmap::TURNS);
    words.vector("vec.level", map.levelled, first, Some(map.attention_gain), fmap::RESIDUAL);
    words.copy("memcpy.gain", map.query_gain, at::QUERY_GAIN, fmap::HEAD);
    words.vector("vec.act", map.input, map.levelled, None, fmap::RESIDUAL);

    if own {
        words.copy("memcpy.gain", map.key_gain, at::KEY_GAIN, fmap::HEAD);
        words.gemv(map.keys, map.input, at::KEY, weight::KEY, &[]);
        words.copy("memcpy.gain", map.value_gain, at::VALUE_GAIN, fmap::HEAD);
        words.gemv(map.values, map.input, at::VALUE, weight::KEY, &[]);
    }
    words.gemv(map.queries, map.input, at::QUERY, weight::QUERY, &[]);
    if own {
        words.vector("vec.level", map.keys, map.keys, Some(map.key_gain), fmap::KEYS);
        words.vector("vec.rope", map.keys, map.keys, Some(map.turns), fmap::KEYS);
        words.vector("vec.level", map.values, map.values, Some(map.value_gain), fmap::KEYS);
        words.vector("vec.store", map.stored, map.keys, None, fmap::KEYS_VALUES);
        words.append(map.stored, at::KV, fmap::KEYS_VALUES);
    }
    words.copy("memcpy.gain", map.projection_gain, at::PROJECTION_GAIN, fmap::EMBEDDING);
    words.vector("vec.level", map.embedding, map.embedding, Some(map.projection_gain), fmap::EMBEDDING);
    words.copy("memcpy.embed", map.row, at::EMBEDDING, weight::EMBEDDING);
    words.gemv(map.low, map.input, at::LEFT, weight::LEFT, &[]);
    words.vector("vec.level", map.queries, map.queries, Some(map.query_gain), fmap::QUERIES);
    words.vector("vec.rope", map.queries, map.queries, Some(map.turns), fmap::QUERIES);
    words.vector("vec.store", map.stored_queries, map.queries, None, fmap::QUERIES);
    let source = (!own).then_some("source");
    let flags: Vec<&str> = ["window"].into_iter().chain(source).chain(capped.then_some("sinks")).collect();
    words.attend(map.means, map.stored_queries, fmap::ATTENTION, at::KV, &flags);

    // A LAuReL while queries attend.
    words.copy("memcpy.gain", map.laurel_gain, at::LAUREL_GAIN, fmap::RESIDUAL);
    words.vector("vec.act", map.low_input, map.low, None, fmap::LAUREL);
    words.gemv(map.laurel, map.low_input, at::RIGHT, weight::RIGHT, &[]);
    words.vector("vec.add", map.embedding, map.embedding, Some(map.row), fmap::EMBEDDING);
    words.copy("memcpy.gain", map.output_gain, at::OUTPUT_GAIN, fmap::RESIDUAL);
    words.vector("vec.level", map.laurel, map.laurel, Some(map.laurel_gain), fmap::RESIDUAL);
    words.vector("vec.add", map.laurel, map.laurel, Some(map.levelled), fmap::RESIDUAL);
    words.copy("memcpy.gain", map.hidden_gain, at::HIDDEN_GAIN, fmap::RESIDUAL);
    words.vector("vec.act", map.attended, map.means, None, fmap::QUERIES);
    words.gemv(map.found, map.attended, at::OUTPUT, weight::OUTPUT, &[]);
    words.copy("memcpy.gain", map.down_gain, at::DOWN_GAIN, fmap::RESIDUAL);
    words.vector("vec.level", map.found, map.found, Some(map.output_gain), fmap::RESIDUAL);
    words.vector("vec.add", map.found, map.found, Some(first), fmap::RESIDUAL);
    words.vector("vec.blend", map.found, map.found, Some(map.laurel), fmap::RESIDUAL);

    words.vector("vec.norm", map.input, map.found, Some(map.hidden_gain), fmap::RESIDUAL);
    words.gemv(map.gate, map.input, at::GATE, weight::UP, &[]);
    words.gemv(map.up, map.input, at::UP, weight::UP, &[]);
    words.vector("vec.cut", map.gate, map.gate, None, fmap::HIDDEN);
    words.vector("vec.geglu", map.hidden, map.gate, Some(map.up), fmap::HIDDEN);
    words.gemv(map.addend, map.hidden, at::DOWN, weight::DOWN, &[]);
    words.copy("memcpy.gain", map.embedding_gain, at::EMBEDDING_GAIN, fmap::RESIDUAL);
    words.vector("vec.level", map.addend, map.addend, Some(map.down_gain), fmap::RESIDUAL);
    words.vector("vec.add", map.found, map.found, Some(map.addend), fmap::RESIDUAL);

    route(words, map, map.found, at::CORRECT, weight::CORRECT);
    words.vector("vec.correct", first, map.found, Some(map.coefficients), fmap::STREAMS);
    words.vector("vec.act", map.input, first, None, fmap::RESIDUAL);
    words.gemv(map.embedding_gate, map.input, at::EMBEDDING_GATE, weight::PROJECTION, &[]);
    let gated = (map.embedding_input, map.embedding_gate, map.embedding);
    words.vector("vec.geglu", gated.0, gated.1, Some(gated.2), fmap::EMBEDDING);
    words.gemv(map.addend, map.embedding_input, at::EMBEDDING_OUTPUT, weight::EMBEDDING_OUTPUT, &[]);
    words.vector("vec.level", map.addend, map.addend, Some(map.embedding_gain), fmap::RESIDUAL);
    for stream in others {
        words.vector("vec.add", stream, stream, Some(map.addend), fmap::RESIDUAL);
    }
}

/// Where a layer's weights lie, their exponents, and what its words find in registers.
fn layer_words(model: &Model<'_>, gemma: &Gemma, layer: u16) -> Result<Vec<u64>, CompileError> {
    let Model { shape, parts, .. } = model;
    let &&Shape { width, heads, kv_heads, head_width, hidden, .. } = shape;
    let &Gemma { embedding, laurel, window, cut, .. } = gemma;
    let (queries, keys) = (heads * head_width, kv_heads * head_width);
    let number = usize::from(layer);
    let (is_own, is_global) = (number < shape.kv_layers(), shape.is_global(number));
    let mut words = Words::default();
    let rope = if is_global { Kind::GlobalRope } else { Kind::Rope };
    let turns = layout::turns(head_width as u64);
    words.rope(at::ROPE, parts.get(rope, 0, shape.context, head_width / 2)?, turns);
    for (index, kind, channels) in [
        (at::ROUTER_GAIN, Kind::RouterGain, width),
        (at::ATTENTION_GAIN, Kind::AttentionGain, width),
        (at::KEY_GAIN, Kind::KeyGain, head_width),
        (at::VALUE_GAIN, Kind::ValueGain, head_width),
        (at::QUERY_GAIN, Kind::QueryGain, head_width),
        (at::PROJECTION_GAIN, Kind::ProjectionGain, embedding),
        (at::LAUREL_GAIN, Kind::LaurelGain, width),
        (at::OUTPUT_GAIN, Kind::OutputGain, width),
        (at::HIDDEN_GAIN, Kind::HiddenGain, width),
        (at::DOWN_GAIN, Kind::DownGain, width),
        (at::EMBEDDING_GAIN, Kind::EmbeddingGain, width),
    ] {
        if is_own || !matches!(kind, Kind::KeyGain | Kind::ValueGain) {
            words.gain(index, parts.get(kind, layer, 1, channels)?);
        }
    }
    for (index, kind, rows, columns) in [
        (at::ROUTER, Kind::Router, STREAMS, width),
        (at::PREDICT, Kind::Predict, STREAMS * STREAMS, ROUTES),
        (at::CORRECT, Kind::Correct, STREAMS, ROUTES),
        (at::KEY, Kind::Key, keys, width),
        (at::VALUE, Kind::Value, keys, width),
        (at::QUERY, Kind::Query, queries, width),
        (at::OUTPUT, Kind::Output, width, queries),
        (at::LEFT, Kind::Left, laurel, width),
        (at::RIGHT, Kind::Right, width, laurel),
        (at::GATE, Kind::Gate, hidden, width),
        (at::UP, Kind::Up, hidden, width),
        (at::DOWN, Kind::Down, width, hidden),
        (at::EMBEDDING, Kind::Embedding, shape.vocabulary, embedding),
        (at::PROJECTION, Kind::Projection, embedding, width),
        (at::EMBEDDING_GATE, Kind::EmbeddingGate, embedding, width),
        (at::EMBEDDING_OUTPUT, Kind::EmbeddingOutput, width, embedding),
    ] {
        if is_own || !matches!(kind, Kind::Key | Kind::Value) {
            words.matrix(index, parts.get(kind, layer, rows, columns)?);
        }
    }
    match (is_global, shape.kv_cap) {
        (false, _) => words.set("memset.window", window as u64),
        (true, None) => words.set("memset.window", ALL),
        (true, Some(cap)) => words.set("memset.window", cap.window as u64),
    }
    if let Some(cap) = shape.kv_cap {
        words.set("memset.sinks", if is_global { cap.sinks as u64 } else { 0 });
    }
    words.set("memset.cut", if number < cut { CUT.into() } else { 0 });
    if !is_own {
        words.set("memset.source", shape.kv_source(number) as u64);
    }
    fits("words of a layer", words.0.len() as u64, 63)?;
    Ok(words.0)
}

/// What lies where in a context.
struct Map {
    /// One behind the other.
    streams: [Part; STREAMS],
    /// The token's activation, which each layer's embedding is made of.
    token: Part,
    turns: Part,
    router_gain: Part,
    attention_gain: Part,
    key_gain: Part,
    value_gain: Part,
    query_gain: Part,
    projection_gain: Part,
    laurel_gain: Part,
    output_gain: Part,
    hidden_gain: Part,
    down_gain: Part,
    embedding_gain: Part,
    routing: Part,
    routes: Part,
    routed: Part,
    coefficients: Part,
    levelled: Part,
    input: Part,
    /// Values stand behind keys, so that both are stored by one word.
    keys: Part,
    values: Part,
    queries: Part,
    stored: Part,
    stored_queries: Part,
    means: Part,
    attended: Part,
    low: Part,
    low_input: Part,
    laurel: Part,
    found: Part,
    gate: Part,
    up: Part,
    hidden: Part,
    addend: Part,
    embedding: Part,
    row: Part,
    embedding_gate: Part,
    embedding_input: Part,
}

impl Map {
    /// The parts, by what they hold and all.
    fn new(shape: &Shape, gemma: &Gemma) -> Result<(Self, Vec<Part>), CompileError> {
        let [width, heads, kv_heads, head_width, hidden, embedding, laurel] = [
            shape.width,
            shape.heads,
            shape.kv_heads,
            shape.head_width,
            shape.hidden,
            gemma.embedding,
            gemma.laurel,
        ]
        .map(|count| count as u64);
        let (queries, keys) = (heads * head_width, kv_heads * head_width);
        let mut layout = Layout::default();
        let mut part = |name, lines| layout.part(name, lines);
        let map = Self {
            streams: ["stream 0", "stream 1", "stream 2", "stream 3"]
                .map(|name| part(name, layout::integers(width))),
            token: part("token", layout::activation(width)),
            turns: part("turns", layout::turns(head_width)),
            router_gain: part("router gain", layout::gain(width)),
            attention_gain: part("attention gain", layout::gain(width)),
            key_gain: part("key gain", layout::gain(head_width)),
            value_gain: part("value gain", layout::gain(head_width)),
            query_gain: part("query gain", layout::gain(head_width)),
            projection_gain: part("projection gain", layout::gain(embedding)),
            laurel_gain: part("laurel gain", layout::gain(width)),
            output_gain: part("output gain", layout::gain(width)),
            hidden_gain: part("hidden gain", layout::gain(width)),
            down_gain: part("down gain", layout::gain(width)),
            embedding_gain: part("embedding gain", layout::gain(width)),
            routing: part("routing", layout::activation(width)),
            routes: part("routes", layout::products(STREAMS as u64)),
            routed: part("routed", layout::activation(ROUTES as u64)),
            coefficients: part("coefficients", layout::products((STREAMS * STREAMS) as u64)),
            levelled: part("levelled", layout::integers(width)),
            input: part("input", layout::activation(width)),
            keys: part("keys", layout::integers(keys)),
            values: part("values", layout::integers(keys)),
            queries: part("queries", layout::integers(queries)),
            stored: part("stored keys and values", layout::stored(2 * kv_heads, head_width)),
            stored_queries: part("stored queries", layout::stored(heads, head_width)),
            means: part("means", layout::integers(queries)),
            attended: part("attended", layout::activation(queries)),
            low: part("low", layout::integers(laurel)),
            low_input: part("low input", layout::activation(laurel)),
            laurel: part("laurel", layout::integers(width)),
            found: part("found", layout::integers(width)),
            gate: part("gate", layout::integers(hidden)),
            up: part("up", layout::integers(hidden)),
            hidden: part("hidden", layout::activation(hidden)),
            addend: part("addend", layout::integers(width)),
            embedding: part("embedding", layout::integers(embedding)),
            row: part("row", layout::integers(embedding)),
            embedding_gate: part("embedding gate", layout::integers(embedding)),
            embedding_input: part("embedding input", layout::activation(embedding)),
        };
        Ok((map, layout.map()?))
    }
}
