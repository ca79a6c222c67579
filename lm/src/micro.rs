//! The built-in model `micro`: small enough for every simulator, with every operator that a large one has. Its weights are the contract's
//! hash of where they stand, so it is no file, and the same everywhere.

use doorbell_contract::{GOLDEN, mix};

use crate::about::About;
use crate::image::Image;
use crate::shape::Shape;
use crate::tables::Rope;
use crate::weights::{Gain, Layer, Matrix, Model};

/// Two heads share one of keys and values, and the heads are wider than the residual stream.
const SHAPE: Shape = Shape {
    width: 32,
    layers: 4,
    heads: 2,
    kv_heads: 1,
    head_width: 32,
    hidden: 32,
    vocabulary: 64,
    context: 1024,
};

/// Base of its rotations.
pub const MICRO_ROPE_BASE: f64 = 10_000.0;

/// Its tokens: an end, what is no letter of it, and 62 letters.
const LETTERS: &str = " \nabcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"()-+*/=<>@#$%&_|";

/// The model, its tokeniser, and no chat.
pub fn micro() -> Image {
    Image { model: hashed(SHAPE), about: about() }
}

/// A model of this shape, of which every weight is drawn by where it stands: what it says means nothing, and what it costs is what one
/// with these dimensions costs.
///
/// # Panics
/// For a shape that no device runs.
pub fn hashed(shape: Shape) -> Model {
    assert_eq!(shape.refusal(), None);
    let mut tensors = 0u32;
    let mut tensor = || {
        tensors += 1;
        Draws { base: mix(tensors ^ GOLDEN), drawn: 0 }
    };
    let Shape { width, hidden, head_width, .. } = shape;
    let (queries, keys) = (shape.heads * head_width, shape.kv_heads * head_width);
    let tokens = matrix(tensor(), shape.vocabulary, width, 0);
    let layers = (0..shape.layers).map(|_| Layer {
        attention_gain: gain(tensor(), width),
        query: matrix(tensor(), queries, width, 0),
        key: matrix(tensor(), keys, width, 0),
        value: matrix(tensor(), keys, width, 0),
        output: matrix(tensor(), width, queries, 0),
        hidden_gain: gain(tensor(), width),
        gate: matrix(tensor(), hidden, width, 0),
        up: matrix(tensor(), hidden, width, 0),
        down: matrix(tensor(), width, hidden, 1),
    });
    let layers = layers.collect();
    let last_gain = gain(tensor(), width);
    let rope = Rope::of(MICRO_ROPE_BASE, head_width, shape.context);
    Model { shape, epsilon: 10, tokens, layers, last_gain, rope }
}

/// The numbers of one tensor.
struct Draws {
    base: u32,
    drawn: u32,
}

impl Draws {
    fn next(&mut self) -> u32 {
        self.drawn += 1;
        mix(self.base.wrapping_add(self.drawn.wrapping_mul(GOLDEN)))
    }
}

/// Weights up to 127, or as large as the sum of a row may be, and scales of which the largest is twice the smallest. What a matrix gives is about as large as
/// what it is given, by `down` powers of 2 smaller.
fn matrix(mut draws: Draws, rows: usize, columns: usize, down: i32) -> Matrix {
    let most = 127.min(110_000 / columns as u32);
    let weights =
        (0..rows * columns).map(|_| ((draws.next() % (2 * most + 1)) as i32 - most as i32) as i8).collect();
    let rows = (0..rows).map(|_| 0x8000 | (draws.next() & 0x7FFF) as u16).collect();
    // 18 of the bits are the weights' and their scales', half of one for each doubling of the columns.
    let exponent = -24 - (columns.ilog2() as i32 - 4) / 2 - down;
    Matrix { columns, weights, rows, exponent }
}

/// Factors from 1/2 to 3/2; every eighth channel's is twice that.
fn gain(mut draws: Draws, channels: usize) -> Gain {
    let factors = (0..channels).map(|channel| {
        let factor = 0x1000 + (draws.next() & 0x1FFF);
        (if channel % 8 == 5 { factor * 2 } else { factor }) as i16
    });
    Gain { factors: factors.collect(), exponent: -13 }
}

fn about() -> About {
    let named = ["<end>".to_owned(), "<other>".to_owned()];
    let letters = named.into_iter().chain(LETTERS.chars().map(String::from));
    let vocabulary: serde_json::Map<_, _> =
        letters.zip(0..).map(|(letter, id)| (letter, id.into())).collect();
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true})
    };
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(0, "<end>"), special(1, "<other>")],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<other>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    });
    About {
        name: "micro".into(),
        licence: "MIT".into(),
        tokenizer: tokenizer.to_string(),
        chat: String::new(),
        ends: vec![0],
        begin: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_is_small_and_of_a_shape_that_is_taken() {
        assert_eq!(SHAPE.refusal(), None);
        assert_eq!(SHAPE.weight_macs(), (38_912, 2048));
        assert_eq!(LETTERS.chars().count(), 62);
    }
}
