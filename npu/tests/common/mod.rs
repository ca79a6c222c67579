//! A model in a machine, beside the oracle.
#![allow(dead_code, reason = "each test takes what it needs")]

use doorbell_lm::image::{entries, header};
use doorbell_lm::sample::{Draw, Sharpness, sample};
use doorbell_lm::{Cache, Image, Oracle};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::layout::Block;
use doorbell_npu::run::{Arena, Context, Machine, Observer, Place, Sample, Sampling, Settings, Space, Write};
use doorbell_npu::{Program, compile};

/// Numbers from a seed.
pub struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub fn program(image: &Image) -> (Program, Vec<u8>) {
    let bytes = image.to_bytes();
    let header = header(&bytes).unwrap();
    let entries = entries(&bytes).unwrap();
    let program = compile(&header.shape, header.epsilon, &entries, bytes.len() as u64).unwrap();
    let memory = program.memory(bytes);
    (program, memory)
}

/// A machine with so many contexts, each in an arena of its own with its blocks in an order of their own.
pub fn machine(
    program: &Program,
    memory: Vec<u8>,
    contexts: usize,
    blocks: u32,
    speed: Speed,
    seed: u64,
) -> Machine {
    let arena = program.block * u64::from(blocks);
    let settings = Settings { lines: program.lines(), speed };
    let mut machine = Machine::new(settings, memory, arena as usize * contexts);
    let mut draws = Draws(seed);
    for context in 0..contexts {
        let mut order: Vec<u32> = (0..blocks).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, draws.below(last as u64 + 1) as usize);
        }
        machine.admit(Arena { base: context as u64 * arena, bytes: arena }, order);
    }
    // What nobody wrote is nonsense, and may not matter.
    machine.kv.iter_mut().for_each(|byte| *byte = draws.next() as u8);
    for (number, context) in (0..).zip(&mut machine.contexts) {
        // The first one takes the most likely token.
        let sharpness = Sharpness::of(f64::from(number) / 2.0).unwrap();
        context.sampling = Sampling { sharpness, seed: draws.next() as u32, rollout: number, scores: false };
        context.chip_mut().iter_mut().for_each(|byte| *byte = draws.next() as u8);
    }
    machine
}

/// Keeps the logits of each context.
#[derive(Default)]
pub struct Logits(pub Vec<Vec<i32>>);

impl Observer for Logits {
    fn executed(&mut self, place: &Place, writes: &[Write]) {
        for write in writes.iter().filter(|write| write.space == Space::Logits) {
            let values = write.bytes.chunks_exact(4).map(|four| i32::from_le_bytes(four.try_into().unwrap()));
            self.0.resize(self.0.len().max(place.context + 1), vec![]);
            self.0[place.context] = values.collect();
        }
    }
}

/// Holds the keys and values of a context to those of the oracle, byte by byte.
pub fn assert_same_kv(machine: &Machine, image: &Image, program: &Program, number: usize, cache: &Cache) {
    let (shape, context) = (image.model.shape, &machine.contexts[number]);
    let place = Block { width: shape.head_width as u64 };
    for layer in 0..shape.kv_layers() {
        for head in 0..shape.kv_heads {
            for position in 0..cache.len() {
                let stored = cache.stored(layer, head, position);
                let block = u64::from(context.blocks[position / 32]) * program.block;
                let of_head = (layer * shape.kv_heads + head) as u64 * place.bytes();
                let start = context.arena.base + block + of_head;
                for (part, stored) in stored.into_iter().enumerate() {
                    let token = position as u64 % 32;
                    let at = (start + place.scale(part as u64, token)) as usize;
                    assert_eq!(
                        machine.kv[at..][..2],
                        (stored.scale as u16).to_le_bytes(),
                        "{layer} {head} {position}"
                    );
                    let at = (start + place.mantissas(part as u64, token)) as usize;
                    let found: Vec<i8> =
                        machine.kv[at..][..shape.head_width].iter().map(|&byte| byte as i8).collect();
                    assert_eq!(found, stored.mantissas, "{layer} {head} {position} {part}");
                }
            }
        }
    }
}

/// The oracle beside a context.
pub struct Beside<'m> {
    pub oracle: Oracle<'m>,
    pub cache: Cache,
}

impl<'m> Beside<'m> {
    pub fn new(image: &'m Image) -> Self {
        Self { oracle: Oracle::new(&image.model), cache: Cache::new(&image.model) }
    }

    /// The logits behind a token.
    pub fn step(&mut self, token: u32) -> Vec<i32> {
        let x = self.oracle.step(&mut self.cache, token);
        self.oracle.logits(&x)
    }
}

/// The token of these logits, and its log-probability.
pub fn chosen(logits: &[i32], context: &Context) -> Sample {
    let Sampling { sharpness, seed, rollout, .. } = context.sampling;
    let sampled = sample(logits, sharpness, Draw::new(seed, rollout, context.position + 1));
    Sample { token: sampled.token, log_probability: sampled.log_probability }
}

/// A model of SmolLM2-135M's shape, with weights by chance.
pub fn smollm2(context: usize) -> Image {
    use doorbell_lm::{About, Gain, KeyValue, Layer, Matrix, Model, Rope, Shape};
    let shape = Shape { context, ..Shape::SMOLLM2 };
    let mut draws = Draws(2);
    let mut matrix = |rows: usize, columns: usize, exponent| {
        // At most 63, so that no row of 1536 can overflow.
        let weights =
            (0..rows * columns / 8).flat_map(|_| draws.next().to_le_bytes()).map(|byte| byte as i8 / 2);
        let weights = weights.collect();
        let rows = (0..rows).map(|_| 0x8000 | draws.next() as u16 & 0x7FFF).collect();
        Matrix { columns, weights, rows, exponent }
    };
    let mut more = Draws(3);
    let mut gain = || {
        let factors = (0..576).map(|_| 0x1000 + (more.next() & 0x1FFF) as i16).collect();
        Gain { factors, exponent: -13 }
    };
    let layers = (0..30).map(|_| Layer {
        attention_gain: gain(),
        query: matrix(576, 576, -25),
        key_value: Some(KeyValue { key: matrix(192, 576, -25), value: matrix(192, 576, -25), gains: None }),
        output: matrix(576, 576, -26),
        hidden_gain: gain(),
        gate: matrix(1536, 576, -25),
        up: matrix(1536, 576, -25),
        down: matrix(576, 1536, -27),
        gemma: None,
    });
    let layers = layers.collect();
    let tokens = matrix(49_152, 576, -22);
    let rope = Rope::of(100_000.0, 64, context);
    let model = Model { shape, epsilon: 10, tokens, layers, last_gain: gain(), rope, gemma: None };
    Image { model, about: About::default() }
}
