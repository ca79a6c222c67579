//! From a model to the bytes of an image.

use super::Image;
use super::layout::{ENTRY, Entry, HEADER, Kind, MAGIC, VERSION, layout, length};
use crate::about::About;
use crate::weights::{Gain, Layer, Matrix};

/// The whole file.
pub(super) fn write(image: &Image) -> Vec<u8> {
    let Image { model, about } = image;
    let text = about_text(about);
    let mut entries = layout(&model.shape, text.len() as u32, about.tokenizer.len() as u32);
    let mut bytes = vec![0; length(&entries) as usize];
    for entry in &mut entries {
        let layer = || &model.layers[usize::from(entry.layer)];
        match entry.kind {
            Kind::About => put(&mut bytes, entry, text.as_bytes()),
            Kind::Tokenizer => put(&mut bytes, entry, about.tokenizer.as_bytes()),
            Kind::Rope => {
                let turns = (0..model.shape.context).flat_map(|position| model.rope.at(position)).flatten();
                put_words(&mut bytes, entry, turns.map(|&part| part as u16));
            }
            Kind::LastGain => put_gain(&mut bytes, entry, &model.last_gain),
            Kind::Tokens => put_matrix(&mut bytes, entry, &model.tokens),
            Kind::AttentionGain => put_gain(&mut bytes, entry, &layer().attention_gain),
            Kind::HiddenGain => put_gain(&mut bytes, entry, &layer().hidden_gain),
            kind => put_matrix(&mut bytes, entry, matrix(layer(), kind)),
        }
    }
    let shape = &model.shape;
    let words = [
        shape.width,
        shape.layers,
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
    for (entry, at) in entries.iter().zip((HEADER..).step_by(ENTRY)) {
        bytes[at..at + ENTRY].copy_from_slice(&encode(entry));
    }
    let check = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// A matrix of a layer.
///
/// # Panics
/// If the layer has no such matrix.
pub(super) fn matrix(layer: &Layer, kind: Kind) -> &Matrix {
    match kind {
        Kind::Query => &layer.query,
        Kind::Key => &layer.key,
        Kind::Value => &layer.value,
        Kind::Output => &layer.output,
        Kind::Gate => &layer.gate,
        Kind::Up => &layer.up,
        Kind::Down => &layer.down,
        kind => panic!("{kind:?} is no matrix of a layer"),
    }
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
    let About { name, licence, chat, ends, begin, tokenizer: _ } = about;
    serde_json::json!({"name": name, "licence": licence, "chat": chat, "ends": ends, "begin": begin})
        .to_string()
}
