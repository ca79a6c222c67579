//! A model of Llama's shape, from tensors by name.

use doorbell_lm::FileError;
use doorbell_lm::Shape;
use doorbell_lm::float::{KeyValue, Layer, Model};

/// What a configuration says.
pub(super) struct Plan {
    pub shape: Shape,
    pub epsilon: f64,
    pub rope_base: f64,
}

/// Of 1 in an image.
const EPSILON_UNITS: f64 = (1 << 20) as f64;

impl Plan {
    /// What no device runs is refused, before any weight is looked at.
    pub fn check(&self, rope_bases: &[f64]) -> Result<(), FileError> {
        let refused =
            |what: &str| Err(FileError::new("the configuration", what, "give a model whose shape fits"));
        if let Some(problem) = self.shape.refusal() {
            return refused(&problem);
        }
        if let Some(base) = rope_bases.iter().find(|base| !(base.is_finite() && **base >= 1.0)) {
            return refused(&format!("the base of the rotations is {base}, expected at least 1"));
        }
        // As an image holds it.
        let rounded = (self.epsilon * EPSILON_UNITS).round();
        if !(0.0..EPSILON_UNITS).contains(&rounded) {
            return refused(&format!(
                "epsilon is {}, expected 0 or more, and below 1 once it is rounded to a multiple of 2^-20",
                self.epsilon
            ));
        }
        Ok(())
    }
}

/// The names that a format gives to tensors; those of a layer stand behind its number.
pub(super) struct Names {
    pub tokens: &'static str,
    pub last_gain: &'static str,
    /// A matrix of its own behind the last layer, which no device has.
    pub head: &'static str,
    pub layers: &'static str,
    pub layer: [&'static str; 9],
    /// Whether the channels that are rotated together lie half a head apart, instead of beside each other.
    pub halves: bool,
}

/// Where tensors come from.
pub(super) trait Source {
    /// Every name that there is.
    fn names(&self) -> Vec<String>;

    /// Values of a tensor that has to have these rows and columns.
    fn take(&self, name: &str, rows: usize, columns: usize) -> Result<Vec<f32>, FileError>;
}

/// Reads the model.
pub(super) fn read(source: &dyn Source, names: &Names, plan: Plan) -> Result<Model, FileError> {
    let Plan { shape, epsilon, rope_base } = plan;
    plan.check(&[rope_base])?;
    let name = |layer: usize, part: usize| format!("{}{layer}{}", names.layers, names.layer[part]);
    let mut wanted: Vec<String> = (0..shape.layers)
        .flat_map(|layer| (0..9).map(move |part| (layer, part)))
        .map(|(l, p)| name(l, p))
        .collect();
    wanted.extend([names.tokens, names.last_gain].map(str::to_owned));
    wanted.sort_unstable();
    let there = source.names();
    let Shape { width, hidden, head_width, .. } = shape;
    let tokens = source.take(names.tokens, shape.vocabulary, width);
    // A file may hold a copy of the token embeddings as the output head.
    let same =
        |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    if there.iter().any(|there| there == names.head) {
        let head = source.take(names.head, shape.vocabulary, width);
        if !matches!((&tokens, &head), (Ok(tokens), Ok(head)) if same(tokens, head)) {
            refuse_head(&there, names.head)?;
        }
    }
    let odd = |there: &&String| wanted.binary_search(there).is_err() && there.as_str() != names.head;
    if let Some(odd) = there.iter().find(odd) {
        return Err(FileError::new(
            odd,
            "a model of Llama's shape has no such tensor",
            "give a model without biases, adapters and scaled rotations",
        ));
    }
    let (queries, keys) = (shape.heads * head_width, shape.kv_heads * head_width);
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let take = |part: usize, rows: usize, columns: usize| source.take(&name(layer, part), rows, columns);
        let turned = |part: usize, rows: usize| {
            let rows = take(part, rows, width)?;
            Ok(if names.halves { neighbours(&rows, head_width, width) } else { rows })
        };
        layers.push(Layer {
            attention_gain: take(0, 1, width)?,
            query: turned(1, queries)?,
            key_value: Some(KeyValue { key: turned(2, keys)?, value: take(3, keys, width)?, gains: None }),
            output: take(4, width, queries)?,
            hidden_gain: take(5, 1, width)?,
            gate: take(6, hidden, width)?,
            up: take(7, hidden, width)?,
            down: take(8, width, hidden)?,
            gemma: None,
        });
    }
    Ok(Model {
        shape,
        epsilon,
        rope_base,
        tokens: tokens?,
        layers,
        last_gain: source.take(names.last_gain, 1, width)?,
        gemma: None,
    })
}

/// A last matrix of its own is what no device has.
pub(super) fn refuse_head(there: &[String], head: &str) -> Result<(), FileError> {
    if !there.iter().any(|there| there == head) {
        return Ok(());
    }
    Err(FileError::new(
        head,
        "the last matrix is another one than that of the tokens, which the devices do not have",
        "give a model with tied embeddings",
    ))
}

/// Rows of heads whose pairs lie half a head apart, in the order in which they are neighbours.
pub(super) fn neighbours(rows: &[f32], head_width: usize, columns: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_width * columns) {
        let (first, second) = head.split_at(head.len() / 2);
        for (a, b) in first.chunks_exact(columns).zip(second.chunks_exact(columns)) {
            turned.extend_from_slice(a);
            turned.extend_from_slice(b);
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_neighbours() {
        let rows: Vec<f32> = (0..8).flat_map(|row| [row as f32; 2]).collect();
        let order: Vec<f32> = neighbours(&rows, 4, 2).chunks(2).map(|row| row[0]).collect();
        assert_eq!(order, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
