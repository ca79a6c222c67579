//! From a model to the bytes of an image.

use super::Image;
use super::layout::{ENTRY, Entry, HEADER, KV_CAP, Kind, MAGIC, VERSION, layout, length};
use crate::about::About;
use crate::tables::Rope;
use crate::weights::{Gain, Matrix, Model};

/// The whole file.
pub(super) fn write(image: &Image) -> Vec<u8> {
    let Image { model, about } = image;
    let text = about_text(about);
    let mut entries = layout(&model.shape, text.len() as u32, about.tokenizer.len() as u32);
    let mut bytes = vec![0; length(&entries) as usize];
    for entry in &mut entries {
        match entry.kind {
            Kind::About => put(&mut bytes, entry, text.as_bytes()),
            Kind::Tokenizer => put(&mut bytes, entry, about.tokenizer.as_bytes()),
            Kind::Rope => put_rope(&mut bytes, entry, &model.rope, model.shape.context),
            Kind::GlobalRope => {
                let rope = &model.gemma.as_ref().expect("the shape has global layers").global_rope;
                put_rope(&mut bytes, entry, rope, model.shape.context);
            }
            Kind::LastGain => put_gain(&mut bytes, entry, &model.last_gain),
            _ => match part(model, entry) {
                Part::Matrix(matrix) => put_matrix(&mut bytes, entry, matrix),
                Part::Gain(gain) => put_gain(&mut bytes, entry, gain),
            },
        }
    }
    let shape = &model.shape;
    let words = [
        shape.width,
        // Both halves have 16 bits: refusal sees to that.
        shape.layers | shape.gemma.map_or(0, |gemma| gemma.own) << 16,
        shape.heads,
        shape.kv_heads,
        shape.head_width,
        shape.hidden,
        shape.vocabulary,
        shape.context,
        model.epsilon as usize,
        entries.len(),
    ];
    let total = bytes.len() as u64;
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&total.to_le_bytes());
    for (word, at) in words.into_iter().zip((24..).step_by(4)) {
        bytes[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
    }
    if let Some(gemma) = shape.gemma {
        let words = [gemma.embedding, gemma.laurel, gemma.window, gemma.global, gemma.cut];
        for (word, at) in words.into_iter().zip((64..).step_by(4)) {
            bytes[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
        }
    }
    if let Some(cap) = shape.kv_cap {
        for (word, at) in [cap.window, cap.sinks].into_iter().zip((KV_CAP..).step_by(4)) {
            bytes[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
        }
    }
    for (entry, at) in entries.iter().zip((HEADER..).step_by(ENTRY)) {
        bytes[at..at + ENTRY].copy_from_slice(&encode(entry));
    }
    let check = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&check.to_le_bytes());
    bytes
}

enum Part<'m> {
    Matrix(&'m Matrix),
    Gain(&'m Gain),
}

/// The matrix or the gain of an entry.
fn part<'m>(model: &'m Model, entry: &Entry) -> Part<'m> {
    use Part::{Gain, Matrix};
    let number = usize::from(entry.layer);
    let parts = || model.gemma.as_ref().expect("the shape has streams");
    match entry.kind {
        Kind::Tokens => return Matrix(&model.tokens),
        Kind::Split => return Matrix(&parts().split[number - 1]),
        Kind::Merge => return Matrix(&parts().merge[number - 1]),
        _ => {}
    }
    let layer = &model.layers[number];
    let own = || layer.key_value.as_ref().expect("the layer has keys and values of its own");
    let head = |part: usize| &own().gains.as_ref().expect("the shape has gains of heads")[part];
    let gemma = || layer.gemma.as_ref().expect("the shape has them in each layer");
    match entry.kind {
        Kind::AttentionGain => Gain(&layer.attention_gain),
        Kind::Query => Matrix(&layer.query),
        Kind::Key => Matrix(&own().key),
        Kind::Value => Matrix(&own().value),
        Kind::Output => Matrix(&layer.output),
        Kind::HiddenGain => Gain(&layer.hidden_gain),
        Kind::Gate => Matrix(&layer.gate),
        Kind::Up => Matrix(&layer.up),
        Kind::Down => Matrix(&layer.down),
        Kind::RouterGain => Gain(&gemma().router_gain),
        Kind::Router => Matrix(&gemma().router),
        Kind::Predict => Matrix(&gemma().predict),
        Kind::Correct => Matrix(&gemma().correct),
        Kind::QueryGain => Gain(&gemma().query_gain),
        Kind::KeyGain => Gain(head(0)),
        Kind::ValueGain => Gain(head(1)),
        Kind::OutputGain => Gain(&gemma().output_gain),
        Kind::Left => Matrix(&gemma().left),
        Kind::Right => Matrix(&gemma().right),
        Kind::LaurelGain => Gain(&gemma().laurel_gain),
        Kind::DownGain => Gain(&gemma().down_gain),
        Kind::Embedding => Matrix(&gemma().embedding),
        Kind::Projection => Matrix(&gemma().projection),
        Kind::ProjectionGain => Gain(&gemma().projection_gain),
        Kind::EmbeddingGate => Matrix(&gemma().embedding_gate),
        Kind::EmbeddingOutput => Matrix(&gemma().embedding_output),
        Kind::EmbeddingGain => Gain(&gemma().embedding_gain),
        kind => unreachable!("{kind:?} is neither a matrix nor a gain of a layer"),
    }
}

fn put_rope(bytes: &mut [u8], entry: &Entry, rope: &Rope, positions: usize) {
    let turns = (0..positions).flat_map(|position| rope.at(position)).flatten();
    put_words(bytes, entry, turns.map(|&part| part as u16));
}

fn put(bytes: &mut [u8], entry: &Entry, content: &[u8]) {
    bytes[entry.offset as usize..][..content.len()].copy_from_slice(content);
}

fn put_words(bytes: &mut [u8], entry: &Entry, words: impl Iterator<Item = u16>) {
    let place = &mut bytes[entry.offset as usize..][..entry.bytes as usize];
    place.chunks_exact_mut(2).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
}

fn put_gain(bytes: &mut [u8], entry: &mut Entry, gain: &Gain) {
    entry.exponent = gain.exponent;
    put_words(bytes, entry, gain.factors.iter().map(|&factor| factor as u16));
}

fn put_matrix(bytes: &mut [u8], entry: &mut Entry, matrix: &Matrix) {
    entry.exponent = matrix.exponent;
    let place = &mut bytes[entry.offset as usize..][..entry.bytes as usize];
    let (weights, scales) = place.split_at_mut(matrix.rows.len() * entry.stride() as usize);
    for (place, row) in
        weights.chunks_exact_mut(entry.stride() as usize).zip(matrix.weights.chunks_exact(matrix.columns))
    {
        place.iter_mut().zip(row).for_each(|(place, &weight)| *place = weight as u8);
    }
    scales
        .chunks_exact_mut(2)
        .zip(&matrix.rows)
        .for_each(|(place, scale)| place.copy_from_slice(&scale.to_le_bytes()));
}

fn encode(entry: &Entry) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[0..2].copy_from_slice(&(entry.kind as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&entry.layer.to_le_bytes());
    bytes[4..8].copy_from_slice(&entry.exponent.to_le_bytes());
    bytes[8..12].copy_from_slice(&entry.rows.to_le_bytes());
    bytes[12..16].copy_from_slice(&entry.columns.to_le_bytes());
    bytes[16..24].copy_from_slice(&entry.offset.to_le_bytes());
    bytes[24..32].copy_from_slice(&entry.bytes.to_le_bytes());
    bytes
}

fn about_text(about: &About) -> String {
    let About { name, licence, chat, chat_tools, ends, begin, special, tokenizer: _ } = about;
    let mut text =
        serde_json::json!({"name": name, "licence": licence, "chat": chat, "ends": ends, "begin": begin});
    if !chat_tools.is_empty() {
        text["chat_tools"] = chat_tools.as_str().into();
    }
    if let Some(special) = special {
        text["special"] = serde_json::json!(special);
    }
    // The bytes of an image do not depend on whether a program keeps the order of fields, as `doorbell serve` does.
    text.sort_all_objects();
    text.to_string()
}
