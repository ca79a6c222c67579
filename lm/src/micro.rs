//! The built-in model `micro`: small enough for every simulator, with every operator that a large one has. Its weights are the contract's
//! hash of where they stand, so it is no file, and the same everywhere.

use doorbell_contract::{GOLDEN, mix};

use crate::about::About;
use crate::image::Image;
use crate::ops::BLOCK;
use crate::shape::{Gemma, STREAMS, Shape};
use crate::tables::Rope;
use crate::weights::{Gain, GemmaLayer, GemmaParts, KeyValue, Layer, Matrix, Model};

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
    gemma: None,
    kv_cap: None,
};

/// Gemma 3N's, as small: two layers of five read another one's keys and values, one of them a global one's; the window ends within blocks, and two
/// layers cut their gate.
const GEMMA: Shape = Shape {
    layers: 5,
    gemma: Some(Gemma { embedding: 32, laurel: 32, window: 41, global: 2, own: 3, cut: 2 }),
    ..SHAPE
};

/// Base of its rotations.
pub const MICRO_ROPE_BASE: f64 = 10_000.0;

/// Base of the rotations of global layers.
pub const MICRO_GLOBAL_ROPE_BASE: f64 = 1_000_000.0;

/// Its tokens: an end, what is no letter of it, and 62 letters.
const LETTERS: &str = " \nabcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"()-+*/=<>@#$%&_|";

/// Images of the dimensions of `micro` (even numbers) and `micro-gemma` (odd ones) that see what `tiny` and `micro` never come near to. In 0 and 1
/// whatever can saturate does. 2 begins with vectors that are nearly 0. 3 has the largest ε, and embeddings by layer that saturate.
pub fn extreme(number: u32) -> Image {
    let shape = if number.is_multiple_of(2) { SHAPE } else { GEMMA };
    let mut model = if number < 2 { drawn(shape, Some(number)) } else { hashed(shape) };
    model.epsilon = if number == 3 { (1 << 20) - 1 } else { 1 };
    if number == 2 {
        model.tokens.exponent -= 9;
    }
    if number == 3 {
        for gemma in model.layers.iter_mut().filter_map(|layer| layer.gemma.as_mut()) {
            gemma.embedding.exponent = -4;
            gemma.projection_gain.exponent = 0;
        }
    }
    Image { model, about: About { name: format!("extreme-{number}"), ..about() } }
}

/// An image whose 32 upper tokens are together 2^-11 as likely as the most likely one, and two bins below it: only a device that keeps the third
/// bin gives its log-probability.
pub fn steep() -> Image {
    let mut model = hashed(SHAPE);
    // The first channel holds all of the stream, and logits follow the scales of rows.
    model.tokens.weights.fill(0);
    model.tokens.weights.iter_mut().step_by(SHAPE.width).for_each(|weight| *weight = 127);
    model.tokens.rows.fill(1500);
    model.tokens.rows[SHAPE.vocabulary / 2..].fill(STEEP.1);
    model.tokens.rows[3] = STEEP.0;
    model.tokens.exponent = -18;
    model.last_gain = Gain { factors: vec![1 << 13; SHAPE.width], exponent: -15 };
    model.layers.iter_mut().for_each(|layer| {
        layer.output.exponent -= 30;
        layer.down.exponent -= 30;
    });
    Image { model, about: About { name: "steep".into(), ..about() } }
}

/// Those that every device is held to.
pub const EXTREMES: std::ops::Range<u32> = 0..4;

/// Scales of the most likely token's row, and of the upper ones'.
const STEEP: (u16, u16) = (31_400, 15_100);

/// The model, its tokeniser, and no chat.
pub fn micro() -> Image {
    Image { model: hashed(SHAPE), about: about() }
}

/// The same of Gemma 3N's shape.
pub fn micro_gemma() -> Image {
    Image { model: hashed(GEMMA), about: About { name: "micro-gemma".into(), ..about() } }
}

/// A model of this shape, of which every weight is drawn by where it stands: what it says means nothing, and what it costs is what one
/// with these dimensions costs.
///
/// # Panics
/// For a shape that no device runs.
pub fn hashed(shape: Shape) -> Model {
    drawn(shape, None)
}

/// The same, or one whose numbers are `extreme`, drawn by that number too.
fn drawn(shape: Shape, extreme: Option<u32>) -> Model {
    assert_eq!(shape.refusal(), None);
    let mut tensors = 0u32;
    let salt = extreme.map_or(0, |number| mix(number + 1));
    let mut tensor = || {
        tensors += 1;
        Draws { base: mix(tensors ^ GOLDEN ^ salt), drawn: 0, is_extreme: extreme.is_some() }
    };
    let Shape { width, hidden, head_width, .. } = shape;
    let (queries, keys) = (shape.heads * head_width, shape.kv_heads * head_width);
    let tokens = matrix(tensor(), shape.vocabulary, width, 0);
    let split = shape.gemma.map(|_| [(); STREAMS - 1].map(|()| matrix(tensor(), width, width, 0)));
    let layers = (0..shape.layers).map(|number| Layer {
        attention_gain: gain(tensor(), width),
        query: matrix(tensor(), queries, width, 0),
        key_value: (number < shape.kv_layers()).then(|| KeyValue {
            key: matrix(tensor(), keys, width, 0),
            value: matrix(tensor(), keys, width, 0),
            gains: shape.gemma.map(|_| [(); 2].map(|()| gain(tensor(), head_width))),
        }),
        output: matrix(tensor(), width, queries, 0),
        hidden_gain: gain(tensor(), width),
        gate: matrix(tensor(), hidden, width, 0),
        up: matrix(tensor(), hidden, width, 0),
        down: matrix(tensor(), width, hidden, 1),
        gemma: shape.gemma.map(|gemma| Box::new(gemma_layer(&mut tensor, &shape, gemma))),
    });
    let layers = layers.collect();
    let merge = shape.gemma.map(|_| [(); STREAMS - 1].map(|()| matrix(tensor(), width, width, 0)));
    let last_gain = gain(tensor(), width);
    let rope = Rope::of(MICRO_ROPE_BASE, head_width, shape.context);
    let gemma = split.zip(merge).map(|(split, merge)| {
        let global_rope = Rope::of(MICRO_GLOBAL_ROPE_BASE, head_width, shape.context);
        Box::new(GemmaParts { global_rope, split, merge })
    });
    Model { shape, epsilon: 10, tokens, layers, last_gain, rope, gemma }
}

fn gemma_layer(tensor: &mut impl FnMut() -> Draws, shape: &Shape, gemma: Gemma) -> GemmaLayer {
    let Shape { width, head_width, vocabulary, .. } = *shape;
    let Gemma { embedding, laurel, .. } = gemma;
    // Coefficients are small beside the 1 that is added to them, and only the first columns are of streams.
    let mut coefficients = |rows: usize| {
        let mut coefficients = matrix(tensor(), rows, BLOCK, 2);
        for row in coefficients.weights.chunks_exact_mut(BLOCK) {
            row[STREAMS..].fill(0);
        }
        coefficients
    };
    let (predict, correct) = (coefficients(STREAMS * STREAMS), coefficients(STREAMS));
    GemmaLayer {
        router_gain: gain(tensor(), width),
        router: matrix(tensor(), STREAMS, width, 0),
        predict,
        correct,
        query_gain: gain(tensor(), head_width),
        output_gain: gain(tensor(), width),
        left: matrix(tensor(), laurel, width, 0),
        right: matrix(tensor(), width, laurel, 0),
        laurel_gain: gain(tensor(), width),
        down_gain: gain(tensor(), width),
        embedding: matrix(tensor(), vocabulary, embedding, 0),
        projection: matrix(tensor(), embedding, width, 0),
        projection_gain: gain(tensor(), embedding),
        embedding_gate: matrix(tensor(), embedding, width, 0),
        embedding_output: matrix(tensor(), width, embedding, 0),
        embedding_gain: gain(tensor(), width),
    }
}

/// The numbers of one tensor.
struct Draws {
    base: u32,
    drawn: u32,
    is_extreme: bool,
}

impl Draws {
    fn next(&mut self) -> u32 {
        self.drawn += 1;
        mix(self.base.wrapping_add(self.drawn.wrapping_mul(GOLDEN)))
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.next() as usize % values.len()]
    }
}

/// Weights up to 127, or as large as the sum of a row may be, and scales of which the largest is twice the smallest. What a matrix gives is about as large as
/// what it is given, by `down` powers of 2 smaller.
fn matrix(mut draws: Draws, rows: usize, columns: usize, down: i32) -> Matrix {
    let most = 127.min(110_000 / columns as u32);
    // 18 of the bits are the weights' and their scales', half of one for each doubling of the columns.
    let exponent = -24 - (columns.ilog2() as i32 - 4) / 2 - down;
    if draws.is_extreme {
        let most = most as i8;
        let weights = (0..rows * columns).map(|_| draws.of(&[0, most, most, most, -most])).collect();
        let exponent = exponent + (draws.next() % 33) as i32 - 10;
        let rows = (0..rows).map(|_| draws.of(&[1, 0x7FFF, 0x8000, 0xFFFF])).collect();
        return Matrix { columns, weights, rows, exponent };
    }
    let weights =
        (0..rows * columns).map(|_| ((draws.next() % (2 * most + 1)) as i32 - most as i32) as i8).collect();
    let rows = (0..rows).map(|_| 0x8000 | (draws.next() & 0x7FFF) as u16).collect();
    Matrix { columns, weights, rows, exponent }
}

/// Factors from 1/2 to 3/2; every eighth channel's is twice that.
fn gain(mut draws: Draws, channels: usize) -> Gain {
    if draws.is_extreme {
        let factors = (0..channels).map(|_| draws.of(&[i16::MIN, i16::MAX, 0, 1, -1])).collect();
        return Gain { factors, exponent: draws.of(&[-13, -7, 0]) };
    }
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
    let mut tokenizer = serde_json::json!({
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
    // As in `image::write`: the bytes are the same in every build.
    tokenizer.sort_all_objects();
    About {
        name: "micro".into(),
        licence: "MIT".into(),
        tokenizer: tokenizer.to_string(),
        chat: String::new(),
        chat_tools: String::new(),
        ends: vec![0],
        begin: None,
        special: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::rival::{Rival, with};
    use crate::sample::{Draw, Sharpness, sample};
    use crate::{Cache, Oracle};

    /// Tokens and log-probabilities behind a prompt, and the logits' sum.
    fn rollout(model: &Model, temperature: f64) -> Vec<(u32, i32, i64)> {
        let (oracle, mut cache) = (Oracle::new(model), Cache::new(model));
        let mut token = 5;
        let mut all = vec![];
        for position in 1..9 {
            let logits = oracle.logits(&oracle.step(&mut cache, token));
            let sampled = sample(&logits, Sharpness::of(temperature).unwrap(), Draw::new(1, 2, position));
            token = (7 * position + 3) % 64;
            all.push((
                sampled.token,
                sampled.log_probability,
                logits.iter().map(|&logit| i64::from(logit)).sum(),
            ));
        }
        all
    }

    /// Each other reading of docs/engine.md gives something else for one of the images that all devices run.
    #[test]
    fn extreme_images_see_what_tiny_does_not() {
        let mut unseen = vec![];
        for rival in Rival::ALL {
            let seen: Vec<u32> = EXTREMES
                .filter(|&number| {
                    let model = extreme(number).model;
                    [0.0, 0.01].iter().any(|&temperature| {
                        with(rival, || rollout(&model, temperature)) != rollout(&model, temperature)
                    })
                })
                .collect();
            println!("{rival:?} shows in {seen:?}");
            if seen.is_empty() {
                unseen.push(rival);
            }
        }
        assert!(unseen.is_empty(), "{unseen:?}");
    }

    /// 2^-11 of the sum: 31 or 32 with 16 fraction bits.
    #[test]
    fn the_third_bin_shows_in_steep() {
        let model = steep().model;
        let (oracle, mut cache) = (Oracle::new(&model), Cache::new(&model));
        for position in 0..4 {
            let logits = oracle.logits(&oracle.step(&mut cache, 3));
            let sampled = sample(&logits, Sharpness::ONE, Draw::new(1, 2, position));
            assert_eq!(sampled.token, 3);
            let seen = (logits[3], logits[2], logits[60]);
            assert!((-34..-20).contains(&sampled.log_probability), "{sampled:?} of {seen:?}");
        }
    }

    #[test]
    fn micro_is_small_and_of_a_shape_that_is_taken() {
        assert_eq!(SHAPE.refusal(), None);
        assert_eq!(SHAPE.weight_macs(), (38_912, 2048));
        assert_eq!(GEMMA.refusal(), None);
        assert_eq!(LETTERS.chars().count(), 62);
    }
}
