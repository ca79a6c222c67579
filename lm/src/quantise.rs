//! From floating-point weights to those of an image, and the proof that no order of additions can overflow.

use std::f64::consts::FRAC_1_SQRT_2;

use thiserror::Error;

use crate::float;
use crate::ops::{BLOCK, LARGEST_SUM};
use crate::shape::{Gemma, STREAMS, Shape};
use crate::tables::Rope;
use crate::weights::{Gain, GemmaLayer, GemmaParts, KeyValue, Layer, Matrix, Model};

/// Exponents of matrices and gains lie within this, on both sides: shifts beyond it are no reader's.
pub const LARGEST_EXPONENT: i32 = 100;

/// Why weights cannot be had as integers.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Unfit {
    /// The accumulator of a row could overflow.
    #[error(
        "row {row}: its weights add up to {sum} without their signs, at most {LARGEST_SUM} can be had, or sums of 32 bits could overflow"
    )]
    Overflow {
        /// Which row.
        row: usize,
        /// Sum of its weights' magnitudes.
        sum: u64,
    },
    /// The values are not a matrix of whole blocks.
    #[error("{len} values are no rows of {columns} columns, which have to be a multiple of {BLOCK}")]
    Shape {
        /// Values given.
        len: usize,
        /// Columns wanted.
        columns: usize,
    },
    /// Values are too large or too small for an exponent that readers accept.
    #[error(
        "row {row}: its largest value is {value:e}, which takes the exponent {exponent}; devices take -{LARGEST_EXPONENT} to {LARGEST_EXPONENT}"
    )]
    Exponent {
        /// The row of the largest value.
        row: usize,
        /// The largest value, without its sign.
        value: f64,
        /// Its exponent.
        exponent: i32,
    },
    /// A weight is infinite, or none at all.
    #[error("value {index} is {value}, expected a finite number")]
    NotFinite {
        /// Which value.
        index: usize,
        /// What it is.
        value: f32,
    },
}

/// A tensor of a model that cannot be had as integers.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{tensor}: {unfit}")]
pub struct UnfitModel {
    /// Which one.
    pub tensor: String,
    /// Why.
    #[source]
    pub unfit: Unfit,
}

/// The model of an image, from the weights that were published.
///
/// # Errors
/// The tensor that cannot be had as integers, and why.
pub fn quantise(model: &float::Model) -> Result<Model, UnfitModel> {
    let Shape { width, head_width, hidden, context, .. } = model.shape;
    let queries = model.shape.heads * head_width;
    // Of Gemma 3N's shape, what tokens begin with is multiplied by this, and what logits are computed with is not.
    let root = if model.gemma.is_some() { (width as f64).sqrt() } else { 1.0 };
    let mut layers = vec![];
    for (number, layer) in model.layers.iter().enumerate() {
        let named = Named(format!("layer {number}, "));
        let key_value = layer.key_value.as_ref().map(|own| {
            let gains = own.gains.as_ref().map(|[key, value]| {
                Ok([named.gain("key_gain", key, 1.0)?, named.gain("value_gain", value, 1.0)?])
            });
            Ok(KeyValue {
                key: named.matrix("key", &own.key, width)?,
                value: named.matrix("value", &own.value, width)?,
                gains: gains.transpose()?,
            })
        });
        let gemma = layer.gemma.as_ref().zip(model.shape.gemma);
        let gemma = gemma.map(|(gemma, parts)| gemma_layer(&named, gemma, &model.shape, parts).map(Box::new));
        layers.push(Layer {
            attention_gain: named.gain("attention_gain", &layer.attention_gain, 1.0)?,
            query: named.matrix("query", &layer.query, width)?,
            key_value: key_value.transpose()?,
            output: named.matrix("output", &layer.output, queries)?,
            hidden_gain: named.gain("hidden_gain", &layer.hidden_gain, 1.0)?,
            gate: named.matrix("gate", &layer.gate, width)?,
            up: named.matrix("up", &layer.up, width)?,
            down: named.matrix("down", &layer.down, hidden)?,
            gemma: gemma.transpose()?,
        });
    }
    let named = Named(String::new());
    let gemma = model.gemma.as_ref().map(|parts| {
        let all = |name: &str, [a, b, c]: &[Vec<f32>; STREAMS - 1]| {
            let one = |stream: usize, values: &[f32]| {
                named.matrix(&format!("{name} of stream {stream}"), values, width)
            };
            Ok::<_, UnfitModel>([one(1, a)?, one(2, b)?, one(3, c)?])
        };
        let global_rope = Rope::of(parts.global_rope_base, head_width, context);
        Ok(Box::new(GemmaParts {
            global_rope,
            split: all("split", &parts.split)?,
            merge: all("merge", &parts.merge)?,
        }))
    });
    Ok(Model {
        shape: model.shape,
        epsilon: (model.epsilon * f64::from(1 << 20)).round() as u32,
        tokens: named.matrix("tokens", &scaled(&model.tokens, root), width)?,
        layers,
        last_gain: named.gain("last_gain", &model.last_gain, 1.0 / root)?,
        rope: Rope::of(model.rope_base, head_width, context),
        gemma: gemma.transpose()?,
    })
}

/// What is put into the parts of a layer of Gemma 3N's shape: docs/engine.md, Gemma 3N.
fn gemma_layer(
    named: &Named,
    layer: &float::GemmaLayer,
    shape: &Shape,
    parts: Gemma,
) -> Result<GemmaLayer, UnfitModel> {
    let (width, embedding) = (shape.width, parts.embedding);
    let root = |channels: usize| (channels as f64).sqrt();
    let gain = |part: &str, values: &[f32]| named.gain(part, values, 1.0);
    let corrected = layer.embedding_gate.chunks(width.max(1)).flat_map(|row| {
        row.iter().zip(&layer.corrected_scale).map(|(&a, &b)| (f64::from(a) * f64::from(b)) as f32)
    });
    let corrected: Vec<f32> = corrected.collect();
    Ok(GemmaLayer {
        router_gain: named.gain("router_gain", &layer.router_gain, 1.0 / width as f64)?,
        router: named.matrix("router", &layer.router, width)?,
        predict: named.matrix("predict", &filled(&layer.predict), BLOCK)?,
        correct: named.matrix("correct", &filled(&layer.correct), BLOCK)?,
        query_gain: named.gain("query_gain", &layer.query_gain, root(shape.head_width))?,
        output_gain: gain("output_gain", &layer.output_gain)?,
        left: named.matrix("left", &layer.left, width)?,
        right: named.matrix("right", &layer.right, parts.laurel)?,
        laurel_gain: gain("laurel_gain", &layer.laurel_gain)?,
        down_gain: gain("down_gain", &layer.down_gain)?,
        embedding: named.matrix(
            "embedding",
            &scaled(&layer.embedding, root(embedding) * FRAC_1_SQRT_2),
            embedding,
        )?,
        projection: named.matrix("projection", &scaled(&layer.projection, 1.0 / root(width)), width)?,
        projection_gain: named.gain("projection_gain", &layer.projection_gain, FRAC_1_SQRT_2)?,
        embedding_gate: named.matrix("embedding_gate", &corrected, width)?,
        embedding_output: named.matrix("embedding_output", &layer.embedding_output, embedding)?,
        embedding_gain: gain("embedding_gain", &layer.embedding_gain)?,
    })
}

/// Where tensors stand.
struct Named(String);

impl Named {
    fn unfit(&self, part: &str) -> impl Fn(Unfit) -> UnfitModel {
        let tensor = format!("{}{part}", self.0);
        move |unfit| UnfitModel { tensor: tensor.clone(), unfit }
    }

    fn matrix(&self, part: &str, values: &[f32], columns: usize) -> Result<Matrix, UnfitModel> {
        matrix(values, columns).map_err(self.unfit(part))
    }

    fn gain(&self, part: &str, values: &[f32], factor: f64) -> Result<Gain, UnfitModel> {
        gain(&scaled(values, factor)).map_err(self.unfit(part))
    }
}

fn scaled(values: &[f32], factor: f64) -> Vec<f32> {
    values.iter().map(|&value| (f64::from(value) * factor) as f32).collect()
}

/// Rows of a number for each stream, filled up to a block with 0.
fn filled(coefficients: &[f32]) -> Vec<f32> {
    let row = |row: &[f32]| std::array::from_fn::<f32, BLOCK, _>(|at| row.get(at).copied().unwrap_or(0.0));
    coefficients.chunks(STREAMS).flat_map(row).collect()
}

fn finite(values: &[f32]) -> Result<(), Unfit> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Unfit::NotFinite { index, value: values[index] }),
        None => Ok(()),
    }
}

/// The exponent with which `largest` is below 2^`bits`; for 0 any would do.
fn exponent(largest: f64, bits: i32) -> i32 {
    if largest == 0.0 { 0 } else { largest.log2().floor() as i32 + 1 - bits }
}

/// Refuses an exponent that no reader accepts; `largest` are the largest values of the rows.
fn within(exponent: i32, largest: impl Iterator<Item = f64>) -> Result<(), Unfit> {
    if exponent.abs() <= LARGEST_EXPONENT {
        return Ok(());
    }
    let (row, value) = largest.enumerate().fold((0, 0.0), |most, of| if of.1 > most.1 { of } else { most });
    Err(Unfit::Exponent { row, value, exponent })
}

/// A matrix of these values, row by row: each row's largest weight becomes 127.
///
/// # Errors
/// `Shape` for what are no rows of `columns`, `NotFinite`, `Exponent`; `Overflow` for a row whose sums could.
pub fn matrix(values: &[f32], columns: usize) -> Result<Matrix, Unfit> {
    if columns == 0 || !columns.is_multiple_of(BLOCK) || !values.len().is_multiple_of(columns) {
        return Err(Unfit::Shape { len: values.len(), columns });
    }
    finite(values)?;
    let scale =
        |row: &[f32]| row.iter().fold(0f64, |most, &weight| most.max(f64::from(weight).abs())) / 127.0;
    let scales: Vec<f64> = values.chunks_exact(columns).map(scale).collect();
    let exponent = exponent(scales.iter().fold(0.0, |most: f64, &scale| most.max(scale)), 16);
    within(exponent, scales.iter().map(|scale| scale * 127.0))?;
    let mut matrix = Matrix { columns, weights: Vec::with_capacity(values.len()), rows: vec![], exponent };
    for (row, (values, &scale)) in values.chunks_exact(columns).zip(&scales).enumerate() {
        // What is rounded is the row's scale first: the weights are then the nearest to what they stand for.
        let mantissa = (scale * 2f64.powi(-exponent)).round().clamp(1.0, 65_535.0);
        let unit = mantissa * 2f64.powi(exponent);
        let nearest = |&weight: &f32| (f64::from(weight) / unit).round().clamp(-127.0, 127.0) as i8;
        let from = matrix.weights.len();
        matrix.weights.extend(values.iter().map(nearest));
        matrix.rows.push(mantissa as u16);
        let sum = matrix.weights[from..].iter().map(|weight| u64::from(weight.unsigned_abs())).sum();
        if sum > LARGEST_SUM {
            return Err(Unfit::Overflow { row, sum });
        }
    }
    Ok(matrix)
}

/// The factors of a normalised vector.
///
/// # Errors
/// `NotFinite`, `Exponent`.
pub fn gain(values: &[f32]) -> Result<Gain, Unfit> {
    finite(values)?;
    let largest = values.iter().fold(0f64, |most, &value| most.max(f64::from(value).abs()));
    let exponent = exponent(largest, 15);
    within(exponent, std::iter::once(largest))?;
    let factor =
        |&value: &f32| (f64::from(value) * 2f64.powi(-exponent)).round().clamp(-32_767.0, 32_767.0) as i16;
    Ok(Gain { factors: values.iter().map(factor).collect(), exponent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn weights_are_the_nearest_of_their_row(values in prop::collection::vec(-3f32..3.0, 128)) {
            let matrix = matrix(&values, 64).unwrap();
            for (index, &value) in values.iter().enumerate() {
                let unit = f64::from(matrix.rows[index / 64]) * 2f64.powi(matrix.exponent);
                let held = f64::from(matrix.weights[index]) * unit;
                prop_assert!((held - f64::from(value)).abs() <= unit * 0.51, "{} for {}", held, value);
                prop_assert!(matrix.rows[index / 64] >= 1);
            }
        }

        #[test]
        fn factors_have_fifteen_bits(values in prop::collection::vec(-100f32..100.0, 32)) {
            let gain = gain(&values).unwrap();
            for (&factor, &value) in gain.factors.iter().zip(&values) {
                let unit = 2f64.powi(gain.exponent);
                prop_assert!((f64::from(factor) * unit - f64::from(value)).abs() <= unit * 1.01);
            }
        }
    }

    #[test]
    fn what_could_overflow_is_refused() {
        let even = vec![1.0; 1024];
        assert_eq!(matrix(&even, 1024), Err(Unfit::Overflow { row: 0, sum: 127 * 1024 }));
        let columns = LARGEST_SUM as usize / 127 / 32 * 32;
        assert!(matrix(&vec![1.0; columns], columns).is_ok());
        assert_eq!(matrix(&even, 1000), Err(Unfit::Shape { len: 1024, columns: 1000 }));
        assert_eq!(matrix(&even, 0), Err(Unfit::Shape { len: 1024, columns: 0 }));
        let mut odd = vec![1.0; 64];
        odd[3] = f32::INFINITY;
        assert_eq!(matrix(&odd, 32), Err(Unfit::NotFinite { index: 3, value: f32::INFINITY }));
        assert!(gain(&[f32::NAN]).is_err());
        let nothing = matrix(&[0.0; 64], 32).unwrap();
        assert_eq!((nothing.rows, nothing.exponent), (vec![1, 1], 0));
    }
}
