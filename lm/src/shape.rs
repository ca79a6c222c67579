//! What a model is made of.

use crate::ops::BLOCK;

/// Residual streams of Gemma 3N's shape.
pub const STREAMS: usize = 4;

/// Dimensions of a model of Llama's shape, or of Gemma 3N's.
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
    /// What Gemma 3N's shape has besides.
    pub gemma: Option<Gemma>,
    /// What layers without a window of their own see; without it, all tokens up to the one that asks.
    pub kv_cap: Option<KvCap>,
}

/// A cap on the keys and values that a rollout needs: layers that would see all tokens see the first and the last ones.
///
/// The first ones are *attention sinks*, as in Xiao et al., <https://arxiv.org/abs/2309.17453>. Positions stay absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCap {
    /// Last tokens that are seen, the one that asks included.
    pub window: usize,
    /// First tokens that are seen, whole blocks of [`BLOCK`].
    pub sinks: usize,
}

/// Positions that a token sees: `0..sinks`, and from `first` up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How many of the first positions, a multiple of [`BLOCK`]; 0 if nothing is left out behind them.
    pub sinks: usize,
    /// The first of the positions up to its own, at least `sinks`.
    pub first: usize,
}

impl Seen {
    /// Blocks of [`BLOCK`] positions of which something is seen by the token at `position`, each with its positions that are.
    pub fn blocks(self, position: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let sinks = (0..self.sinks / BLOCK).map(|block| block * BLOCK..(block + 1) * BLOCK);
        let last = self.first / BLOCK..position / BLOCK + 1;
        sinks.chain(
            last.map(move |block| self.first.max(block * BLOCK)..(position + 1).min((block + 1) * BLOCK)),
        )
    }

    /// How many positions are seen by the token at `position`.
    pub fn count(self, position: usize) -> usize {
        self.sinks + position + 1 - self.first
    }
}

/// What Gemma 3N's shape has besides Llama's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemma {
    /// Channels of the embedding that each layer has of its own.
    pub embedding: usize,
    /// Channels between the two matrices of a LAuReL.
    pub laurel: usize,
    /// Tokens that a local layer sees, the one that asks included.
    pub window: usize,
    /// Every so many layers the last is global: layer i is where i mod this is this - 1.
    pub global: usize,
    /// Layers that have keys and values of their own, the first ones; each other reads those of the last of them that is local or global as it is.
    pub own: usize,
    /// Layers that cut their gate, the first ones.
    pub cut: usize,
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
        gemma: None,
        kv_cap: None,
    };

    /// Gemma 3N E4B's language model, as its configuration has it. Its embeddings by layer have 262,144 rows, of the 262,400 here.
    pub const GEMMA_3N_E4B: Self = Self {
        width: 2048,
        layers: 35,
        heads: 8,
        kv_heads: 2,
        head_width: 256,
        hidden: 16_384,
        vocabulary: 262_400,
        context: 32_768,
        gemma: Some(Gemma { embedding: 256, laurel: 64, window: 512, global: 5, own: 20, cut: 10 }),
        kv_cap: None,
    };

    /// Whether a layer sees all tokens before it; else those of its window.
    pub fn is_global(&self, layer: usize) -> bool {
        self.gemma.is_none_or(|gemma| layer % gemma.global == gemma.global - 1)
    }

    /// Layers that have keys and values of their own: the first ones.
    pub fn kv_layers(&self) -> usize {
        self.gemma.map_or(self.layers, |gemma| gemma.own)
    }

    /// The layer whose keys and values a layer reads.
    ///
    /// # Panics
    /// For a shape that [`Shape::refusal`] does not take.
    pub fn kv_source(&self, layer: usize) -> usize {
        if layer < self.kv_layers() {
            return layer;
        }
        let own = (0..self.kv_layers()).rev().find(|&own| self.is_global(own) == self.is_global(layer));
        own.expect("refusal sees to a layer of each kind")
    }

    /// Positions that a layer's token at `position` sees.
    pub fn seen(&self, layer: usize, position: usize) -> Seen {
        let KvCap { window, sinks } = match (self.gemma, self.kv_cap) {
            (Some(gemma), _) if !self.is_global(layer) => KvCap { window: gemma.window, sinks: 0 },
            (_, Some(cap)) => cap,
            _ => return Seen { sinks: 0, first: 0 },
        };
        let first = (position + 1).saturating_sub(window);
        if first <= sinks { Seen { sinks: 0, first: 0 } } else { Seen { sinks, first } }
    }

    /// The first position of those behind the sinks that the token at `position`, or one behind it, still sees in any layer.
    pub fn first_kept(&self, position: usize) -> usize {
        self.kv_cap.map_or(0, |cap| (position + 1).saturating_sub(cap.window))
    }

    /// Heads of queries to one of keys and values.
    pub fn sharing(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Multiplications by a weight for one token, and of these the ones of the last matrix, which a token without a successor
    /// does not need.
    pub fn weight_macs(&self) -> (u64, u64) {
        let (d, h, kv) = (self.width, self.heads * self.head_width, self.kv_heads * self.head_width);
        let layer = 2 * d * h + 3 * d * self.hidden;
        let head = d * self.vocabulary;
        let mut all = self.layers * layer + self.kv_layers() * 2 * d * kv + head;
        if let Some(Gemma { embedding, laurel, .. }) = self.gemma {
            let streams = 2 * STREAMS * d + (STREAMS + 1) * STREAMS * BLOCK;
            all += self.layers * (2 * d * laurel + 3 * d * embedding + streams) + 2 * (STREAMS - 1) * d * d;
        }
        (all as u64, head as u64)
    }

    /// What keeps the devices from running it.
    pub fn refusal(&self) -> Option<String> {
        let mut blocks =
            vec![("width", self.width), ("head_width", self.head_width), ("hidden", self.hidden)];
        blocks.extend(
            self.gemma.iter().flat_map(|gemma| [("embedding", gemma.embedding), ("laurel", gemma.laurel)]),
        );
        if let Some((name, value)) = blocks.into_iter().find(|(_, value)| value % BLOCK != 0 || *value == 0) {
            return Some(format!("{name} is {value}, expected a multiple of {BLOCK}"));
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Some(format!("{} heads cannot share {} of keys and values", self.heads, self.kv_heads));
        }
        // What lies beyond could leave the 64 bits of a sum: docs/engine.md, Numbers.
        let mut bounds = vec![
            ("width", self.width, 4096),
            ("head_width", self.head_width, 256),
            ("heads", self.heads, 4096),
            ("hidden", self.hidden, 1 << 16),
            ("layers", self.layers, 1 << 12),
            ("vocabulary", self.vocabulary, 1 << 20),
            ("context", self.context, 1 << 16),
        ];
        if let Some(Gemma { embedding, laurel, window, global, own, cut }) = self.gemma {
            bounds.extend([
                ("embedding", embedding, 4096),
                ("laurel", laurel, 4096),
                ("window", window, 1 << 16),
                ("global", global, self.layers),
                ("own", own, self.layers),
            ]);
            if cut > self.layers {
                return Some(format!("{cut} layers cut their gate, and there are {}", self.layers));
            }
            // The first global layer is global - 1; with one layer in each round all are global.
            if own < global || (own < self.layers && own == 0) {
                return Some(format!(
                    "{own} layers have keys and values of their own, and the first global one is {}",
                    global.saturating_sub(1)
                ));
            }
        }
        if let Some(KvCap { window, sinks }) = self.kv_cap {
            bounds.push(("window of the KV cap", window, 1 << 16));
            if !sinks.is_multiple_of(BLOCK) || sinks > 1 << 16 {
                return Some(format!(
                    "the KV cap has {sinks} sinks, expected a multiple of {BLOCK} up to 65536"
                ));
            }
            if let Some(gemma) = self.gemma.filter(|gemma| gemma.window > window) {
                return Some(format!(
                    "the KV cap's window is {window}, and local layers see {} tokens: give it {} at least",
                    gemma.window, gemma.window
                ));
            }
        }
        let (name, value, most) = bounds.into_iter().find(|(_, value, most)| !(1..=*most).contains(value))?;
        Some(format!("{name} is {value}, expected 1 to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemma_3n_e4b_is_what_its_configuration_says() {
        let shape = Shape::GEMMA_3N_E4B;
        assert_eq!(shape.refusal(), None);
        let globals: Vec<usize> = (0..35).filter(|&layer| shape.is_global(layer)).collect();
        assert_eq!(globals, [4, 9, 14, 19, 24, 29, 34]);
        assert_eq!([18, 19, 20, 24, 34].map(|layer| shape.kv_source(layer)), [18, 19, 18, 19, 19]);
        let first = |layer, position| shape.seen(layer, position).first;
        assert_eq!((first(0, 511), first(0, 512), first(4, 9999)), (0, 1, 0));
        let gemma = shape.gemma.unwrap();
        let no_global = Shape { gemma: Some(Gemma { own: 4, ..gemma }), ..shape };
        assert!(no_global.refusal().unwrap().contains("first global one is 4"));
        assert!(Shape { gemma: Some(Gemma { cut: 36, ..gemma }), ..shape }.refusal().is_some());
        assert!(Shape { gemma: Some(Gemma { laurel: 65, ..gemma }), ..shape }.refusal().is_some());
    }

    #[test]
    fn a_cap_leaves_the_first_and_the_last_tokens() {
        let cap = KvCap { window: 40, sinks: 64 };
        let shape = Shape { kv_cap: Some(cap), ..Shape::SMOLLM2 };
        assert_eq!(shape.refusal(), None);
        for position in 0..400 {
            let seen = shape.seen(0, position);
            let all: Vec<usize> = seen.blocks(position).flatten().collect();
            let expected: Vec<usize> =
                (0..=position).filter(|&at| at < cap.sinks || at + cap.window > position).collect();
            assert_eq!(all, expected, "position {position}");
            assert_eq!(seen.count(position), expected.len());
            assert!(seen.blocks(position).all(|block| block.start / BLOCK == (block.end - 1) / BLOCK));
        }
        let of = |kv_cap, shape: Shape| Shape { kv_cap: Some(kv_cap), ..shape }.refusal().unwrap();
        assert!(of(KvCap { sinks: 33, ..cap }, shape).contains("33 sinks"));
        assert!(of(KvCap { window: 0, ..cap }, shape).contains("window of the KV cap is 0"));
        assert!(of(cap, Shape::GEMMA_3N_E4B).contains("give it 512 at least"));
    }

    #[test]
    fn a_local_layer_keeps_its_window_and_has_no_sinks() {
        let shape = Shape { kv_cap: Some(KvCap { window: 600, sinks: 32 }), ..Shape::GEMMA_3N_E4B };
        assert_eq!(shape.seen(0, 9999), Seen { sinks: 0, first: 9488 });
        assert_eq!(shape.seen(4, 9999), Seen { sinks: 32, first: 9400 });
        assert_eq!(shape.first_kept(9999), 9400);
    }

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
