//! Engine 1's arithmetic as the kernel's text has it (`gpu/kernels/language.cuh`), on the CPU and, where there is one, on a GPU: every token,
//! log-probability and byte of keys and values is the oracle's. `DOORBELL_SEED` sets the seed.
//!
//!     cargo test --release -p doorbell-gpu --test language_arithmetic
//!     cargo test --release -p doorbell-gpu --test language_arithmetic -- --ignored --nocapture   # tokens a second of a GPU
//!
//! The second takes `DOORBELL_LANGUAGE_MODEL` (a file of an image; default: SmolLM2's shape with hashed weights),
//! `DOORBELL_LANGUAGE_BLOCKS` (default 1,131) and `DOORBELL_LANGUAGE_STEPS` (default 128). `prompt_tokens_a_second_of_a_gpu` is its counterpart for prompts.

use doorbell_gpu::LanguageMemory;
use doorbell_gpu::probes::{LanguageRun, LanguageTask, Probes};
use doorbell_gpu_cpu::Options;
use doorbell_lm::ops::{BLOCK, LARGEST_SUM, Stored};
use doorbell_lm::sample::{Draw, Sharpness, sample};
use doorbell_lm::{
    About, Cache, Gain, Image, KeyValue, Layer, MICRO_ROPE_BASE, Matrix, Model, Oracle, Rope, Shape, micro,
};
use libtest_mimic::{Arguments, Trial};

/// splitmix64 of S. Vigna (public domain).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn seed() -> u64 {
    std::env::var("DOORBELL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// What weights are like.
#[derive(Clone, Copy, Debug)]
enum Weights {
    /// Anything, and magnitudes that stay in range.
    Usual,
    /// Rows as large as they may be, exponents of every size: what can saturate does.
    Extreme,
    /// All of the matrix of the tokens alike: so are all logits.
    Equal,
}

fn matrix(random: &mut Random, weights: Weights, rows: usize, columns: usize, exponent: i32) -> Matrix {
    let most = 127.min(LARGEST_SUM / columns as u64);
    let draw = |random: &mut Random| -> i8 {
        match weights {
            Weights::Usual => (random.below(2 * most + 1) as i64 - most as i64) as i8,
            Weights::Extreme if random.below(8) == 0 => 0,
            Weights::Extreme => {
                if random.below(5) == 0 {
                    -(most as i8)
                } else {
                    most as i8
                }
            }
            Weights::Equal => 3,
        }
    };
    let values = (0..rows * columns).map(|_| draw(random)).collect();
    let scale = |random: &mut Random| match weights {
        Weights::Usual => 0x8000 | random.below(0x8000) as u16,
        Weights::Extreme => [1, 0xFFFF, 0x7FFF, 0x8000][random.below(4) as usize],
        Weights::Equal => 0x9000,
    };
    let exponent = match weights {
        Weights::Extreme => exponent + random.below(25) as i32 - 10,
        _ => exponent,
    };
    Matrix { columns, weights: values, rows: (0..rows).map(|_| scale(random)).collect(), exponent }
}

fn gain(random: &mut Random, weights: Weights, channels: usize) -> Gain {
    let factor = |random: &mut Random| match weights {
        Weights::Extreme => [i16::MIN, i16::MAX, 0, 1, -1][random.below(5) as usize],
        _ => 0x1000 + random.below(0x2000) as i16,
    };
    Gain { factors: (0..channels).map(|_| factor(random)).collect(), exponent: -13 }
}

fn model(random: &mut Random, weights: Weights, shape: Shape) -> Model {
    assert_eq!(shape.refusal(), None);
    let Shape { width, hidden, head_width, .. } = shape;
    let (queries, keys) = (shape.heads * head_width, shape.kv_heads * head_width);
    let of = |columns: usize| -24 - (columns.ilog2() as i32 - 4) / 2;
    let usual = match weights {
        Weights::Equal => Weights::Usual,
        weights => weights,
    };
    let layers = (0..shape.layers).map(|_| Layer {
        attention_gain: gain(random, usual, width),
        query: matrix(random, usual, queries, width, of(width)),
        key_value: Some(KeyValue {
            key: matrix(random, usual, keys, width, of(width)),
            value: matrix(random, usual, keys, width, of(width)),
            gains: None,
        }),
        output: matrix(random, usual, width, queries, of(queries)),
        hidden_gain: gain(random, usual, width),
        gate: matrix(random, usual, hidden, width, of(width)),
        up: matrix(random, usual, hidden, width, of(width)),
        down: matrix(random, usual, width, hidden, of(hidden) - 1),
        gemma: None,
    });
    let layers = layers.collect();
    let epsilon = random.below(1 << 20) as u32;
    let last_gain = gain(random, usual, width);
    let tokens = matrix(random, weights, shape.vocabulary, width, of(width));
    let rope = Rope::of(MICRO_ROPE_BASE, head_width, shape.context);
    Model { shape, epsilon, tokens, layers, last_gain, rope, gemma: None }
}

fn image(model: Model) -> Image {
    let name = "drawn".to_owned();
    let about = About {
        name,
        licence: String::new(),
        tokenizer: String::new(),
        chat: String::new(),
        chat_tools: String::new(),
        ends: vec![],
        begin: None,
        special: None,
    };
    Image { model, about }
}

/// What a block does, and how it is looked at.
#[derive(Clone, Debug)]
struct Case {
    prompt: Vec<u32>,
    steps: u32,
    blocks: u32,
    sharpness: u32,
    seed: u32,
    rollout: u32,
}

/// Bytes of a block of keys and values of one head in one layer: docs/isa.md.
fn half(shape: &Shape) -> usize {
    64 + BLOCK * shape.head_width
}

fn put(
    bytes: &mut [u8],
    shape: &Shape,
    position: usize,
    layer: usize,
    head: usize,
    part: usize,
    stored: &Stored,
) {
    let block = 2 * shape.kv_layers() * shape.kv_heads * half(shape);
    let at = position / BLOCK * block + (2 * (layer * shape.kv_heads + head) + part) * half(shape);
    let slot = position % BLOCK;
    bytes[at + 2 * slot..][..2].copy_from_slice(&(stored.scale as u16).to_le_bytes());
    let mantissas = &mut bytes[at + 64 + slot * shape.head_width..][..shape.head_width];
    mantissas.iter_mut().zip(&stored.mantissas).for_each(|(to, &from)| *to = from as u8);
}

/// What the oracle says that must come of it.
fn expected(model: &Model, case: &Case, cache_bytes: usize) -> LanguageRun {
    let oracle = Oracle::new(model);
    let mut run =
        LanguageRun { sampled: vec![], caches: vec![], stored: vec![], elapsed: Default::default() };
    for block in 0..case.blocks {
        let mut cache = Cache::new(model);
        let mut tokens = case.prompt.clone();
        for position in 0..case.prompt.len() + case.steps as usize - 1 {
            let x = oracle.step(&mut cache, tokens[position]);
            if position + 1 == tokens.len() {
                let draw = Draw::new(case.seed, case.rollout + block, tokens.len() as u32);
                let sampled = sample(&oracle.logits(&x), Sharpness(case.sharpness), draw);
                tokens.push(sampled.token);
                run.sampled.push((sampled.token, sampled.log_probability));
            }
        }
        let mut bytes = vec![0; cache_bytes];
        for position in 0..cache.len() {
            for layer in 0..model.shape.kv_layers() {
                for head in 0..model.shape.kv_heads {
                    for (part, stored) in cache.stored(layer, head, position).into_iter().enumerate() {
                        put(&mut bytes, &model.shape, position, layer, head, part, stored);
                    }
                }
            }
        }
        run.caches.extend(bytes);
    }
    run.stored = run.caches.clone();
    run
}

/// Who runs the kernel's text.
enum Device {
    Cpu(Options),
    Gpu(Box<Probes>),
}

impl Device {
    fn run(&self, task: &LanguageTask<'_>) -> LanguageRun {
        match self {
            Self::Cpu(options) => doorbell_gpu_cpu::language(task, options),
            Self::Gpu(probes) => probes.language(task),
        }
        .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The GPU, if there is one.
    fn gpu() -> Option<Self> {
        match Probes::open(0) {
            Ok(probes) => Some(Self::Gpu(Box::new(probes))),
            Err(error) => {
                eprintln!("skipped on a GPU: {error}");
                None
            }
        }
    }

    /// Where each test runs.
    fn all() -> Vec<Self> {
        [Self::Cpu(Options { seed: seed(), ..Options::default() })].into_iter().chain(Self::gpu()).collect()
    }
}

fn cache_bytes(shape: &Shape, positions: usize) -> usize {
    positions.div_ceil(BLOCK) * 2 * shape.kv_layers() * shape.kv_heads * half(shape)
}

/// Device memory with which a block takes a prompt by chunks: enough for all shapes here.
const SCRATCH: usize = 1 << 20;

/// The prompt step by step, and by chunks.
fn check(device: &Device, bytes: &[u8], model: &Model, case: &Case) {
    let cache_bytes = cache_bytes(&model.shape, case.prompt.len() + case.steps as usize);
    let task = LanguageTask {
        image: bytes,
        prompt: &case.prompt,
        steps: case.steps,
        blocks: case.blocks,
        small: false,
        cache_bytes,
        sharpness: case.sharpness,
        seed: case.seed,
        rollout: case.rollout,
        stored: true,
        scratch_bytes: 0,
    };
    check_task(device, &task, model, case);
    check_task(device, &LanguageTask { scratch_bytes: SCRATCH, ..task }, model, case);
}

fn check_task(device: &Device, task: &LanguageTask<'_>, model: &Model, case: &Case) {
    let cache_bytes = task.cache_bytes;
    let found = device.run(task);
    let expected = expected(model, case, cache_bytes);
    let name = match device {
        Device::Cpu(_) => "CPU",
        Device::Gpu(_) => "GPU",
    };
    for (found, expected, what) in
        [(&found.caches, &expected.caches, "cache"), (&found.stored, &expected.stored, "host memory")]
    {
        if let Some(at) = (0..expected.len()).find(|&at| found[at] != expected[at]) {
            panic!(
                "{name}, {:?}, {what}: byte {at} of {cache_bytes} each is {:#x}, expected {:#x}",
                model.shape, found[at], expected[at]
            );
        }
    }
    assert_eq!(found.sampled, expected.sampled, "{name}, {:?}, {case:?}", model.shape);
}

/// Every sharpness that counts: temperature 0, 1, high, low, the least and the most.
const SHARPNESSES: [u32; 6] = [0, 1_512_775, 300_000, 15_127_750, 1, (1 << 28) - 1];

fn case(random: &mut Random, shape: &Shape, length: usize, steps: u32) -> Case {
    Case {
        prompt: (0..length).map(|_| random.below(shape.vocabulary as u64) as u32).collect(),
        steps,
        blocks: 1,
        sharpness: SHARPNESSES[random.below(6) as usize],
        seed: random.next() as u32,
        rollout: random.next() as u32,
    }
}

/// Odd counts of everything: half lines, vocabularies that end within 32, heads that share by 1, 2 and 3, of every width.
const SHAPES: [Shape; 9] = [
    Shape {
        width: 32,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_width: 32,
        hidden: 32,
        vocabulary: 1,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 64,
        layers: 2,
        heads: 3,
        kv_heads: 1,
        head_width: 32,
        hidden: 96,
        vocabulary: 50,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 96,
        layers: 3,
        heads: 2,
        kv_heads: 2,
        head_width: 64,
        hidden: 160,
        vocabulary: 33,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 160,
        layers: 2,
        heads: 6,
        kv_heads: 2,
        head_width: 96,
        hidden: 224,
        vocabulary: 200,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 128,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_width: 128,
        hidden: 352,
        vocabulary: 1000,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 96,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_width: 256,
        hidden: 64,
        vocabulary: 64,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 64,
        layers: 1,
        heads: 3,
        kv_heads: 3,
        head_width: 160,
        hidden: 32,
        vocabulary: 31,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    Shape {
        width: 576,
        layers: 1,
        heads: 9,
        kv_heads: 3,
        head_width: 64,
        hidden: 1536,
        vocabulary: 777,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
    // A pair of warps has a head of 64 channels, and three are no multiple of a block's pairs.
    Shape {
        width: 96,
        layers: 2,
        heads: 3,
        kv_heads: 1,
        head_width: 64,
        hidden: 160,
        vocabulary: 33,
        context: 256,
        gemma: None,
        kv_cap: None,
    },
];

fn micro_is_the_oracles() {
    let micro = micro();
    let bytes = micro.to_bytes();
    for device in Device::all() {
        let mut random = Random(seed());
        for sharpness in SHARPNESSES {
            let length = 66 + random.below(20) as usize;
            let case = Case { sharpness, blocks: 2, ..case(&mut random, &micro.model.shape, length, 12) };
            check(&device, &bytes, &micro.model, &case);
        }
    }
}

/// So few that racecheck comes to an end with them: a prompt step by step and by a chunk, and two tokens.
fn a_few_tokens_are_the_oracles() {
    let micro = micro();
    let bytes = micro.to_bytes();
    for device in Device::all() {
        let mut random = Random(seed() + 4);
        let case = case(&mut random, &micro.model.shape, 3, 2);
        check(&device, &bytes, &micro.model, &case);
    }
}

fn models_of_any_shape_are_the_oracles() {
    for device in Device::all() {
        let mut random = Random(seed() + 1);
        for shape in SHAPES {
            let drawn = image(model(&mut random, Weights::Usual, shape));
            let case = case(&mut random, &shape, 70, 5);
            check(&device, &drawn.to_bytes(), &drawn.model, &case);
        }
    }
}

fn what_saturates_does_so_as_the_oracles() {
    for device in Device::all() {
        let mut random = Random(seed() + 2);
        for shape in SHAPES {
            for _ in 0..3 {
                let drawn = image(model(&mut random, Weights::Extreme, shape));
                let case = case(&mut random, &shape, 35, 4);
                check(&device, &drawn.to_bytes(), &drawn.model, &case);
            }
        }
    }
}

fn of_equal_logits_the_lowest_token_is_taken() {
    for device in Device::all() {
        let mut random = Random(seed() + 3);
        for shape in [SHAPES[1], SHAPES[4]] {
            for sharpness in SHARPNESSES {
                let drawn = image(model(&mut random, Weights::Equal, shape));
                let case = Case { sharpness, ..case(&mut random, &shape, 3, 3) };
                check(&device, &drawn.to_bytes(), &drawn.model, &case);
            }
        }
    }
}

/// The image that `DOORBELL_LANGUAGE_MODEL` names; without it SmolLM2's shape, whose weights do not matter to the speed.
fn large() -> Image {
    match std::env::var_os("DOORBELL_LANGUAGE_MODEL") {
        Some(path) => Image::read(path.as_ref()).unwrap_or_else(|error| panic!("{error}")),
        None => image(doorbell_lm::hashed(Shape::SMOLLM2)),
    }
}

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// 134 million multiplications a token, twice: 20 s.
fn a_large_model_is_the_oracles() {
    let large = large();
    let bytes = large.to_bytes();
    for device in Device::all() {
        let case = case(&mut Random(seed()), &large.model.shape, 3, 2);
        check(&device, &bytes, &large.model, &case);
    }
}

fn tokens_a_second_of_a_gpu() {
    let probes = match Probes::open(0) {
        Ok(probes) => probes,
        Err(error) => return println!("skipped: {error}"),
    };
    let large = large();
    let bytes = large.to_bytes();
    let shape = &large.model.shape;
    let steps = number("DOORBELL_LANGUAGE_STEPS", 128);
    let blocks = std::env::var("DOORBELL_LANGUAGE_BLOCKS").unwrap_or("1,131".to_owned());
    let entries = doorbell_lm::image::entries(&bytes).unwrap();
    // Behind text and rotations: gains and matrices.
    let from = entries[3].offset as usize;
    println!(
        "{}, {} bytes of weights a token, {steps} tokens each",
        probes.describe().unwrap(),
        bytes.len() - from
    );
    for blocks in blocks.split(',').map(|blocks| blocks.parse::<u32>().unwrap()) {
        let task = LanguageTask {
            image: &bytes,
            prompt: &[1, 2, 3, 4],
            steps,
            blocks,
            small: bytes.len() as u64 <= LanguageMemory::SMALL,
            cache_bytes: cache_bytes(shape, 4 + steps as usize),
            sharpness: Sharpness::ONE.0,
            seed: 1,
            rollout: 0,
            stored: true,
            scratch_bytes: 0,
        };
        probes.language(&LanguageTask { steps: 1, ..task }).unwrap();
        let run = probes.language(&task).unwrap();
        let floor = probes.weights(&bytes, from, blocks, steps).unwrap();
        // The prompt's other tokens take no logits: of a step nearly as much.
        let tokens = f64::from(steps * blocks);
        let rate = |seconds: f64| (tokens / seconds, tokens * (bytes.len() - from) as f64 / seconds / 1e9);
        let (ran, read) = (rate(run.elapsed.as_secs_f64()), rate(floor.as_secs_f64()));
        println!(
            "{blocks:>4} blocks: {:>9.1} tokens/s ({:>7.1} GB/s); the same bytes read and nothing else: {:>9.1} ({:>7.1} GB/s): {:.0} %",
            ran.0,
            ran.1,
            read.0,
            read.1,
            100.0 * ran.0 / read.0
        );
    }
}

/// Prompts of `DOORBELL_LANGUAGE_PROMPT` tokens (default 250, 1,000, 2,000), step by step and by chunks, whose keys, values and first token are the same.
fn prompt_tokens_a_second_of_a_gpu() {
    let probes = match Probes::open(0) {
        Ok(probes) => probes,
        Err(error) => return println!("skipped: {error}"),
    };
    let large = large();
    let bytes = large.to_bytes();
    let shape = &large.model.shape;
    println!("{}", probes.describe().unwrap());
    let lengths = std::env::var("DOORBELL_LANGUAGE_PROMPT").unwrap_or("250,1000,2000".to_owned());
    for length in lengths.split(',').map(|length| length.parse::<usize>().unwrap()) {
        let prompt = case(&mut Random(seed()), shape, length, 1).prompt;
        let task = LanguageTask {
            image: &bytes,
            prompt: &prompt,
            steps: 1,
            blocks: 1,
            small: false,
            cache_bytes: cache_bytes(shape, length + 1),
            sharpness: Sharpness::ONE.0,
            seed: 1,
            rollout: 0,
            stored: true,
            scratch_bytes: 0,
        };
        let by_chunks = LanguageTask { scratch_bytes: SCRATCH, ..task };
        probes.language(&by_chunks).unwrap();
        let (steps, chunks) = (probes.language(&task).unwrap(), probes.language(&by_chunks).unwrap());
        assert!(
            steps.caches == chunks.caches && steps.stored == chunks.stored,
            "{length}: keys and values differ"
        );
        assert_eq!(steps.sampled, chunks.sampled);
        let rate = |run: &LanguageRun| length as f64 / run.elapsed.as_secs_f64();
        println!(
            "prompt of {length:>5}: {:>8.1} tokens/s step by step, {:>8.1} by chunks of 32",
            rate(&steps),
            rate(&chunks)
        );
    }
}

/// The standard harness takes a test's result through a channel that ThreadSanitizer reports (`cargo xtask tsan`).
fn main() {
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("micro_is_the_oracles", micro_is_the_oracles),
        trial("a_few_tokens_are_the_oracles", a_few_tokens_are_the_oracles),
        trial("models_of_any_shape_are_the_oracles", models_of_any_shape_are_the_oracles),
        trial("what_saturates_does_so_as_the_oracles", what_saturates_does_so_as_the_oracles),
        trial("of_equal_logits_the_lowest_token_is_taken", of_equal_logits_the_lowest_token_is_taken),
        trial("a_large_model_is_the_oracles", a_large_model_is_the_oracles).with_ignored_flag(true),
        trial("tokens_a_second_of_a_gpu", tokens_a_second_of_a_gpu).with_ignored_flag(true),
        trial("prompt_tokens_a_second_of_a_gpu", prompt_tokens_a_second_of_a_gpu).with_ignored_flag(true),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
