//! What the bench of decoding is told; `gpu/decode.rs` runs it.

use doorbell_lm::Shape;

/// What is decoded, from the command line.
#[derive(Clone, Debug)]
pub struct Decode {
    /// Shapes, by name.
    pub shapes: Vec<DecodeShape>,
    /// Rollouts at a time.
    pub batches: Vec<u32>,
    /// Positions before the first token of each rollout.
    pub contexts: Vec<u32>,
    /// A Python that has torch, for the rival.
    pub python: Option<String>,
    /// Threads of the host that compute beside the driver's.
    pub busy: usize,
    /// Bytes of GPU memory in which keys and values stay between descriptors (R26), 0 for none; `None` is the GPU's default.
    pub kept_bytes: Option<u64>,
    /// Blocks of a team that takes steps together; `None` is the GPU's default.
    pub ranks: Option<u32>,
    /// GPUs that decode at the same time, to be compared with the first of them alone; fewer than two are not.
    pub gpus: Vec<usize>,
    /// Whether the parts of steps are timed, by kernels that are compiled for it.
    pub phases: bool,
}

/// A shape whose weights are drawn by hash: what they are costs no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DecodeShape {
    /// SmolLM2-135M's
    Smollm2,
    /// 0.6 billion weights, as Qwen3-0.6B has
    #[value(name = "0.6b")]
    Half,
    /// 1.0 billion weights, as Llama-3.2-1B has, with a vocabulary of 49,152
    #[value(name = "1b")]
    One,
}

impl DecodeShape {
    /// Its dimensions.
    pub fn shape(self) -> Shape {
        match self {
            Self::Smollm2 => Shape::SMOLLM2,
            Self::Half => Shape {
                width: 1024,
                layers: 28,
                heads: 16,
                kv_heads: 8,
                head_width: 128,
                hidden: 3072,
                vocabulary: 151_936,
                ..Shape::SMOLLM2
            },
            Self::One => Shape {
                width: 2048,
                layers: 16,
                heads: 32,
                kv_heads: 8,
                head_width: 64,
                hidden: 8192,
                vocabulary: 49_152,
                ..Shape::SMOLLM2
            },
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Smollm2 => "SmolLM2-135M's shape",
            Self::Half => "a shape of 0.6 B",
            Self::One => "a shape of 1 B",
        }
    }
}
