//! What a model is made of.

use crate::ops::BLOCK;

/// Dimensions of a model of Llama's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Channels of the residual stream.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, which as many heads of queries share each.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_width: usize,
    /// Channels between the two halves of a feed-forward layer.
    pub hidden: usize,
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
}

impl Shape {
    /// SmolLM2-135M's, as its authors publish them.
    pub const SMOLLM2: Self = Self {
        width: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_width: 64,
        hidden: 1536,
        vocabulary: 49_152,
        context: 8192,
    };

    /// Heads of queries to one of keys and values.
    pub fn sharing(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Multiplications by a weight for one token, and of these the ones of the last matrix, which a token without a successor
    /// does not need.
    pub fn weight_macs(&self) -> (u64, u64) {
        let (d, h, kv) = (self.width, self.heads * self.head_width, self.kv_heads * self.head_width);
        let layer = d * (h + 2 * kv) + h * d + 3 * d * self.hidden;
        let head = d * self.vocabulary;
        ((self.layers * layer + head) as u64, head as u64)
    }

    /// What keeps the devices from running it.
    pub fn refusal(&self) -> Option<String> {
        let blocks = [("width", self.width), ("head_width", self.head_width), ("hidden", self.hidden)];
        if let Some((name, value)) = blocks.into_iter().find(|(_, value)| value % BLOCK != 0 || *value == 0) {
            return Some(format!("{name} is {value}, expected a multiple of {BLOCK}"));
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Some(format!("{} heads cannot share {} of keys and values", self.heads, self.kv_heads));
        }
        // What lies beyond could leave the 64 bits of a sum: docs/engine.md, Numbers.
        let bounds = [
            ("width", self.width, 4096),
            ("head_width", self.head_width, 256),
            ("heads", self.heads, 4096),
            ("hidden", self.hidden, 1 << 16),
            ("layers", self.layers, 1 << 12),
            ("vocabulary", self.vocabulary, 1 << 20),
            ("context", self.context, 1 << 16),
        ];
        let (name, value, most) = bounds.into_iter().find(|(_, value, most)| !(1..=*most).contains(value))?;
        Some(format!("{name} is {value}, expected 1 to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smollm2_takes_134_million_multiplications_for_a_token() {
        assert_eq!(Shape::SMOLLM2.weight_macs(), (134_479_872, 28_311_552));
        assert_eq!(Shape::SMOLLM2.refusal(), None);
        let odd = Shape { hidden: 1500, ..Shape::SMOLLM2 };
        assert_eq!(odd.refusal().unwrap(), "hidden is 1500, expected a multiple of 32");
        assert!(Shape { kv_heads: 2, ..Shape::SMOLLM2 }.refusal().unwrap().contains("cannot share"));
        assert!(Shape { layers: 0, ..Shape::SMOLLM2 }.refusal().is_some());
    }
}
