//! One step of `micro` and of `micro-gemma` with every vector in between: the listings of `docs/engine-example.md`.
//!
//!     cargo run -p doorbell-lm --example worked_example             # micro
//!     cargo run -p doorbell-lm --example worked_example -- gemma    # micro-gemma

use std::fmt::{Display, Write};

use doorbell_contract::{GOLDEN, mix};
use doorbell_lm::number::{bits, clamp, isqrt, round_divide, round_shift};
use doorbell_lm::ops::{
    Activation, Attended, Stored, activate, activate_plain, activate_tanh, add, blend, correct, cut, embed,
    gelu, level, multiply, normalise, predict, product, rescale, rotate, score, score_factor, softcap, store,
    swish, within,
};
use doorbell_lm::sample::{Draw, Sharpness, gumbel, sample};
use doorbell_lm::tables::{LOG2, POWERS};
use doorbell_lm::{
    CUT, Cache, Gain, GemmaLayer, GemmaParts, Image, Layer, Matrix, Model, Oracle, SUMMED, micro,
    micro_gemma, weight_of,
};

/// The sequence: the step of the second token is listed.
const TOKENS: [u32; 2] = [11, 8];
/// The layer that is listed.
const LAYER: usize = 0;
const TEMPERATURE: f64 = 0.7;
const SEED: u32 = 0;
const ROLLOUT: u32 = 0;

/// Numbers in a line.
const PER_LINE: usize = 16;
/// Tokens of the vocabulary in a block.
const BLOCK: usize = 32;

/// The lines that are printed.
#[derive(Default)]
struct Listing {
    text: String,
    is_on: bool,
}

impl Listing {
    fn title(&mut self, title: &str) {
        if self.is_on {
            let gap = if self.text.is_empty() { "" } else { "\n" };
            writeln!(self.text, "{gap}{title}").unwrap();
        }
    }

    fn number(&mut self, name: &str, value: impl Display) {
        if self.is_on {
            writeln!(self.text, "{name} = {value}").unwrap();
        }
    }

    fn vector<T: Display>(&mut self, name: &str, values: &[T]) {
        if self.is_on {
            writeln!(self.text, "{name} =").unwrap();
            for line in values.chunks(PER_LINE) {
                writeln!(self.text, "  {}", joined(line)).unwrap();
            }
        }
    }

    fn activation(&mut self, name: &str, values: &Activation) {
        let Activation { mantissas, shifts, scale, exponent } = values;
        let name =
            format!("{name}: exponent {exponent}, scale {scale}, shifts {}, mantissas", joined(shifts));
        self.vector(&name, mantissas);
    }

    fn stored(&mut self, name: &str, values: &Stored) {
        self.vector(&format!("{name}: scale {}, mantissas", values.scale), &values.mantissas);
    }

    /// The parts of a root mean square; t and k / 2.
    fn root(&mut self, name: &str, x: &[i32], epsilon: u32) -> (u16, i32) {
        let sum: u64 = x.iter().map(|&value| u64::from(within(value.into()).unsigned_abs()).pow(2)).sum();
        let count = x.len() as u64;
        let mean = ((sum + count / 2) / count + u64::from(epsilon)).max(1);
        let up = (62 - bits(mean)) / 2 * 2;
        let root = isqrt(mean << up);
        let inverse = ((1u64 << 46) / root).min(65_535);
        self.number(&format!("{name}: S"), sum);
        self.number(&format!("{name}: mu"), mean);
        self.number(&format!("{name}: k"), up);
        self.number(&format!("{name}: rho"), root);
        self.number(&format!("{name}: t"), inverse);
        (inverse as u16, up as i32 / 2)
    }

    fn normalised(&mut self, name: &str, x: &[i32], gain: &Gain, epsilon: u32) -> Activation {
        let (scale, half) = self.root(name, x, epsilon);
        let products: Vec<i64> =
            x.iter().zip(&gain.factors).map(|(&x, &g)| i64::from(within(x.into())) * i64::from(g)).collect();
        let out = activate(&products, scale, gain.exponent - 46 + half);
        assert_eq!(out, normalise(x, gain, epsilon));
        self.activation(name, &out);
        out
    }

    fn multiplied(&mut self, name: &str, matrix: &Matrix, activation: &Activation) -> Vec<i32> {
        let out = multiply(matrix, activation);
        self.vector(name, &out);
        out
    }

    fn levelled(&mut self, name: &str, x: &[i32], gain: &Gain, epsilon: u32) -> Vec<i32> {
        let out = level(x, gain, epsilon);
        self.vector(name, &out);
        out
    }

    fn activated(&mut self, name: &str, values: &[i64]) -> Activation {
        let out = activate_plain(values);
        self.activation(name, &out);
        out
    }
}

fn joined<T: Display>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

fn wide(values: &[i32]) -> Vec<i64> {
    values.iter().map(|&value| value.into()).collect()
}

/// A model that is run step by step.
struct Run<'m> {
    model: &'m Model,
    /// By layer that has its own, by position.
    cache: Vec<Vec<[Stored; 2]>>,
    position: usize,
    list: Listing,
}

impl Run<'_> {
    /// The logits behind a token.
    fn step(&mut self, token: u32, title: Option<&str>) -> (Vec<i32>, Vec<i32>) {
        let model = self.model;
        let epsilon = model.epsilon;
        let is_listed = title.is_some();
        self.list.is_on = is_listed;
        let mut x = embed(&model.tokens, token);
        self.list.title(&format!(
            "{}, token {token} at position {}",
            title.unwrap_or_default(),
            self.position
        ));
        self.list.vector("x", &x);
        match &model.gemma {
            Some(parts) => x = self.gemma(parts, token, x, is_listed),
            None => {
                for (number, layer) in model.layers.iter().enumerate() {
                    self.list.is_on = is_listed && number == LAYER;
                    self.list.title(&format!("layer {number}"));
                    self.plain(number, layer, &mut x);
                }
            }
        }
        self.position += 1;
        self.list.is_on = is_listed;
        self.list.title("after the last layer");
        let is_sum = model.gemma.is_some();
        self.list.vector(if is_sum { "s" } else { "x" }, &x);
        let epsilon = if is_sum { epsilon * SUMMED } else { epsilon };
        let last = self.list.normalised("last", &x, &model.last_gain, epsilon);
        let mut logits = multiply(&model.tokens, &last);
        if is_sum {
            self.list.vector("W_tokens · last", &logits);
            logits.iter_mut().for_each(|logit| *logit = softcap(*logit));
        }
        self.list.vector("logits", &logits);
        (x, logits)
    }

    fn plain(&mut self, number: usize, layer: &Layer, x: &mut [i32]) {
        let epsilon = self.model.epsilon;
        let input = self.list.normalised("a", x, &layer.attention_gain, epsilon);
        let attended = self.attend(number, layer, &input);
        add(x, attended);
        self.list.vector("x + W_o · activate(mean)", x);
        let input = self.list.normalised("b", x, &layer.hidden_gain, epsilon);
        let gate = self.list.multiplied("W_gate · b", &layer.gate, &input);
        let up = self.list.multiplied("W_up · b", &layer.up, &input);
        let gate: Vec<i32> = gate.into_iter().map(swish).collect();
        self.list.vector("swish", &gate);
        let products: Vec<i64> = gate.iter().zip(&up).map(|(&gate, &up)| product(gate, up)).collect();
        self.list.vector("swish · up", &products);
        let hidden = self.list.activated("activate(swish · up)", &products);
        let down = self.list.multiplied("W_down · activate", &layer.down, &hidden);
        add(x, down);
        self.list.vector("x after the layer", x);
    }

    /// A head's stored vectors.
    fn heads(
        &mut self,
        (name, matrix, gain): (&str, &Matrix, Option<&Gain>),
        input: &Activation,
        turns: Option<&[[i16; 2]]>,
    ) -> Vec<Stored> {
        let values = self.list.multiplied(name, matrix, input);
        let mut out = vec![];
        for (number, head) in values.chunks(self.model.shape.head_width).enumerate() {
            let name = format!("{name}, head {number}");
            let mut head = head.to_vec();
            if let Some(gain) = gain {
                head = self.list.levelled(&format!("{name}, level"), &head, gain, self.model.epsilon);
            }
            if let Some(turns) = turns {
                rotate(&mut head, turns);
                self.list.vector(&format!("{name}, rotated"), &head);
            }
            let stored = store(&head);
            self.list.stored(&format!("{name}, stored"), &stored);
            out.push(stored);
        }
        out
    }

    fn attend(&mut self, number: usize, layer: &Layer, input: &Activation) -> Vec<i32> {
        let model = self.model;
        let shape = &model.shape;
        assert!(self.position < BLOCK, "one block is listed");
        let turns = model.rope_of(number).at(self.position);
        self.list.vector("turns, c and s by pair", turns.as_flattened());
        let query_gain = layer.gemma.as_ref().map(|gemma| &gemma.query_gain);
        let queries = self.heads(("q", &layer.query, query_gain), input, Some(turns));
        if let Some(own) = &layer.key_value {
            let gain = |part: usize| own.gains.as_ref().map(|gains| &gains[part]);
            let keys = self.heads(("k", &own.key, gain(0)), input, Some(turns));
            let values = self.heads(("v", &own.value, gain(1)), input, None);
            assert_eq!(keys.len(), 1, "one head of keys and values is listed");
            self.cache[number].extend(keys.into_iter().zip(values).map(|(key, value)| [key, value]));
        }
        let seen = &self.cache[shape.kv_source(number)][shape.seen(number, self.position).first..];
        let factor = score_factor(shape.head_width);
        let mut means: Vec<i64> = vec![];
        for (head, query) in queries.iter().enumerate() {
            let scores: Vec<i64> = seen.iter().map(|[key, _]| score(query, key, factor)).collect();
            let ceiling = (scores.iter().max().expect("a token sees itself") + 255) >> 8;
            let weights: Vec<i64> = scores.iter().map(|score| weight_of((ceiling << 8) - score)).collect();
            let weight: i64 = weights.iter().sum();
            let channel = |channel: usize| -> i64 {
                let values = weights.iter().zip(seen);
                values
                    .map(|(weight, [_, value])| {
                        weight * i64::from(value.scale) * i64::from(value.mantissas[channel])
                    })
                    .sum()
            };
            let sums: Vec<i64> = (0..shape.head_width).map(channel).collect();
            let list = &mut self.list;
            list.vector(&format!("head {head}: scores"), &scores);
            list.number(&format!("head {head}: c"), ceiling);
            list.vector(&format!("head {head}: p"), &weights);
            list.number(&format!("head {head}: l"), weight);
            list.vector(&format!("head {head}: o"), &sums);
            let up = ceiling & 15;
            let mean: Vec<i32> =
                sums.iter().map(|&sum| clamp(round_divide(sum << up, (weight << up) * 16))).collect();
            let mut attended = Attended::new(shape.head_width);
            attended.add(&scores, &seen.iter().map(|[_, value]| value).collect::<Vec<_>>());
            assert_eq!(mean, attended.mean());
            list.vector(&format!("head {head}: mean"), &mean);
            means.extend(mean.into_iter().map(i64::from));
        }
        let activation = self.list.activated("activate(mean)", &means);
        self.list.multiplied("W_o · activate(mean)", &layer.output, &activation)
    }

    /// Coefficients for the streams, from one of them.
    fn route(&mut self, name: &str, coefficients: &Matrix, gemma: &GemmaLayer, stream: &[i32]) -> Vec<i32> {
        let input = self.list.normalised(name, stream, &gemma.router_gain, self.model.epsilon);
        let mut routes = self.list.multiplied(&format!("{name}: W_router"), &gemma.router, &input);
        routes.resize(coefficients.columns, 0);
        let activation = activate_tanh(&routes);
        self.list.activation(&format!("{name}: activate(tanh)"), &activation);
        self.list.multiplied(&format!("{name}: coefficients"), coefficients, &activation)
    }

    /// GELU of the one, times the other, as an activation; `names` are those of the first and of both.
    fn gated(&mut self, names: [&str; 2], gate: &[i32], up: &[i32]) -> Activation {
        let gate: Vec<i32> = gate.iter().map(|&gate| gelu(gate)).collect();
        self.list.vector(names[0], &gate);
        let products: Vec<i64> = gate.iter().zip(up).map(|(&gate, &up)| product(gate, up)).collect();
        self.list.vector(names[1], &products);
        self.list.activated(&format!("activate({})", names[1]), &products)
    }

    fn streams(&mut self, what: &str, streams: &[Vec<i32>]) {
        for (number, stream) in streams.iter().enumerate() {
            self.list.vector(&format!("x{number} {what}"), stream);
        }
    }

    fn gemma(&mut self, parts: &GemmaParts, token: u32, first: Vec<i32>, is_listed: bool) -> Vec<i32> {
        let model = self.model;
        let epsilon = model.epsilon;
        let input = self.list.activated("activate(x0)", &wide(&first));
        let mut streams = vec![first.clone()];
        for (number, matrix) in (1..).zip(&parts.split) {
            let split = self.list.multiplied(&format!("W_split,{number} · a"), matrix, &input);
            let stream = rescale(&split, &first, epsilon);
            self.list.vector(&format!("x{number}"), &stream);
            streams.push(stream);
        }
        for (number, layer) in model.layers.iter().enumerate() {
            self.list.is_on = is_listed && number == LAYER;
            self.list.title(&format!("layer {number}"));
            let gemma = layer.gemma.as_ref().expect("a model of this shape has them in each layer");
            let projected = self.list.multiplied("W_projection · a", &gemma.projection, &input);
            let mut embedding =
                self.list.levelled("level(W_projection · a)", &projected, &gemma.projection_gain, epsilon);
            let row = embed(&gemma.embedding, token);
            self.list.vector("r", &row);
            add(&mut embedding, row);
            self.list.vector("e", &embedding);

            let coefficients = self.route("predict", &gemma.predict, gemma, &streams[0]);
            streams = predict(&streams, &coefficients);
            self.streams("predicted", &streams);
            let found = self.found(number, layer, gemma, &streams[0]);
            let coefficients = self.route("correct", &gemma.correct, gemma, &found);
            correct(&mut streams, &found, &coefficients);
            self.streams("corrected", &streams);

            let input = self.list.activated("activate(x0 corrected)", &wide(&streams[0]));
            let gate = self.list.multiplied("W_e-gate", &gemma.embedding_gate, &input);
            let gated = self.gated(["gelu(W_e-gate)", "gelu(W_e-gate) · e"], &gate, &embedding);
            let output = self.list.multiplied("W_e-output", &gemma.embedding_output, &gated);
            let addend = self.list.levelled("d", &output, &gemma.embedding_gain, epsilon);
            for (number, stream) in streams.iter_mut().enumerate().skip(1) {
                add(stream, addend.iter().copied());
                self.list.vector(&format!("x{number} after the layer"), stream);
            }
        }
        self.list.is_on = is_listed;
        self.list.title("merge");
        self.list.vector("x0", &streams[0]);
        let mut sum = streams[0].clone();
        for (number, matrix) in (1..).zip(&parts.merge) {
            let input = self.list.activated(&format!("activate(x{number})"), &wide(&streams[number]));
            let merged = self.list.multiplied(&format!("W_merge,{number}"), matrix, &input);
            let addend = rescale(&merged, &streams[0], epsilon);
            self.list.vector(&format!("rescale(W_merge,{number})"), &addend);
            add(&mut sum, addend);
        }
        sum
    }

    /// What a layer makes of the first stream.
    fn found(&mut self, number: usize, layer: &Layer, gemma: &GemmaLayer, x: &[i32]) -> Vec<i32> {
        let epsilon = self.model.epsilon;
        self.list.root("n", x, epsilon);
        let levelled = self.list.levelled("n", x, &layer.attention_gain, epsilon);
        let input = self.list.activated("b", &wide(&levelled));
        let left = self.list.multiplied("W_left · b", &gemma.left, &input);
        let left = self.list.activated("activate(W_left · b)", &wide(&left));
        let right = self.list.multiplied("W_right", &gemma.right, &left);
        let mut laurel = level(&right, &gemma.laurel_gain, epsilon);
        add(&mut laurel, levelled);
        self.list.vector("l", &laurel);
        let attended = self.attend(number, layer, &input);
        let mut attended = self.list.levelled("level(W_o)", &attended, &gemma.output_gain, epsilon);
        add(&mut attended, x.iter().copied());
        self.list.vector("level(W_o) + x0", &attended);
        let mut x: Vec<i32> = attended.iter().zip(&laurel).map(|(&a, &b)| blend(a, b)).collect();
        self.list.vector("h", &x);

        let input = self.list.normalised("c", &x, &layer.hidden_gain, epsilon);
        let mut gate = self.list.multiplied("W_gate · c", &layer.gate, &input);
        let up = self.list.multiplied("W_up · c", &layer.up, &input);
        if self.model.shape.gemma.is_some_and(|gemma| number < gemma.cut) {
            gate = self.cut(&gate);
        }
        let gated = self.gated(["gelu", "gelu · up"], &gate, &up);
        let down = self.list.multiplied("W_down", &layer.down, &gated);
        let down = self.list.levelled("level(W_down)", &down, &gemma.down_gain, epsilon);
        add(&mut x, down);
        self.list.vector("y", &x);
        x
    }

    fn cut(&mut self, gate: &[i32]) -> Vec<i32> {
        let count = gate.len() as u64;
        let sum: i64 = wide(gate).iter().sum();
        let mean = ((sum.unsigned_abs() + count / 2) / count) as i64 * sum.signum();
        let squares: u64 = wide(gate).iter().map(|x| (x - mean).unsigned_abs().pow(2)).sum();
        let variance = (squares + count / 2) / count;
        let deviation = isqrt(variance << 10);
        self.list.number("cut: mean", mean);
        self.list.number("cut: v", variance);
        self.list.number("cut: sigma", deviation);
        let bound = mean + round_shift(deviation as i64 * i64::from(CUT), 21);
        let kept: Vec<i32> = gate.iter().map(|&x| clamp((i64::from(x) - bound).max(0))).collect();
        assert_eq!(kept, cut(gate, CUT));
        self.list.vector("cut", &kept);
        kept
    }

    fn sample(&mut self, logits: &[i32]) {
        let list = &mut self.list;
        let position = TOKENS.len() as u32;
        list.title(&format!(
            "sampling at position {position}, T = {TEMPERATURE}, seed {SEED}, rollout {ROLLOUT}"
        ));
        let sharpness = Sharpness::of(TEMPERATURE).expect("a temperature");
        let draw = Draw::new(SEED, ROLLOUT, position);
        let first =
            mix(mix(SEED ^ mix(ROLLOUT.wrapping_add(GOLDEN))).wrapping_add(position.wrapping_mul(GOLDEN)));
        let second = mix(mix(position ^ mix(SEED.wrapping_add(GOLDEN))).wrapping_add(ROLLOUT));
        let tokens = 0..logits.len() as u32;
        let hashes: Vec<u32> = tokens.map(|token| draw.of(token)).collect();
        let noise: Vec<i64> = hashes.iter().map(|&hash| gumbel(hash)).collect();
        let beta = i64::from(sharpness.0);
        let keys: Vec<i64> =
            logits.iter().zip(&noise).map(|(&logit, noise)| i64::from(logit) * beta + (noise << 6)).collect();
        let best = keys.iter().max().expect("there are logits");
        let token = keys.iter().position(|key| key == best).expect("it is there");
        list.number("beta", beta);
        list.number("a", first);
        list.number("b", second);
        list.vector("h", &hashes);
        list.vector("G", &noise);
        list.vector("logit · beta + G · 2^6", &keys);
        list.number("token", token);

        let powers: Vec<i64> = logits.iter().map(|&logit| round_shift(i64::from(logit) * beta, 20)).collect();
        let ceiling = |block: &[i64]| (block.iter().max().expect("it is not empty") + 1023) >> 10;
        let ceilings: Vec<i64> = powers.chunks(BLOCK).map(ceiling).collect();
        let sums: Vec<i64> = powers
            .chunks(BLOCK)
            .zip(&ceilings)
            .map(|(block, ceiling)| {
                block.iter().map(|power| power_of_two((ceiling << 10) - power)).sum::<i64>()
            })
            .collect();
        let bin = ceilings.iter().max().expect("it is not empty") >> 4;
        let in_bin = |below: i64| -> i64 {
            let blocks = ceilings.iter().zip(&sums).filter(|(ceiling, _)| *ceiling >> 4 == bin - below);
            blocks.map(|(ceiling, sum)| sum << (ceiling & 15)).sum()
        };
        let all = in_bin(0) + (in_bin(1) >> 16) + (in_bin(2) >> 32);
        let log = log2(all as u64);
        let difference = (powers[token] << 14) - log - ((16 * bin - 20) << 24);
        let nats = round_shift(difference * 11_629_080, 32).min(0);
        list.vector("y", &powers);
        list.vector("c by block", &ceilings);
        list.vector("l by block", &sums);
        list.number("bin", bin);
        list.number("L", all);
        list.number("log2(L)", log);
        list.number("log-probability", nats);
        let sampled = sample(logits, sharpness, draw);
        assert_eq!((sampled.token as usize, i64::from(sampled.log_probability)), (token, nats));
    }
}

/// 2^20 · 2^(-below / 1024).
fn power_of_two(below: i64) -> i64 {
    let (whole, part) = (below >> 10, (below & 1023) as usize);
    if whole > 21 { 0 } else { round_shift(POWERS[part].into(), whole as i32) }
}

/// log2 of a whole number, with 24 fraction bits.
fn log2(x: u64) -> i64 {
    let whole = x.ilog2();
    let part = (x << (63 - whole)) << 1 >> 32;
    let (index, rest) = ((part >> 24) as usize, (part & 0xFF_FFFF) as i64);
    let (low, high) = (i64::from(LOG2[index]), i64::from(LOG2[index + 1]));
    (i64::from(whole) << 24) + low + round_shift((high - low) * rest, 24)
}

/// The listing of `micro`, or of `micro-gemma`.
///
/// # Panics
/// If a listed number is not the oracle's.
pub fn text(is_gemma: bool) -> String {
    let Image { model, about } = if is_gemma { micro_gemma() } else { micro() };
    let cache = vec![vec![]; model.shape.kv_layers()];
    let mut run = Run { model: &model, cache, position: 0, list: Listing::default() };
    let (oracle, mut held) = (Oracle::new(&model), Cache::new(&model));
    let mut last = vec![];
    for (number, &token) in TOKENS.iter().enumerate() {
        let title = (number + 1 == TOKENS.len()).then_some(about.name.as_str());
        let (x, logits) = run.step(token, title);
        assert_eq!(x, oracle.step(&mut held, token));
        assert_eq!(logits, oracle.logits(&x));
        last = logits;
    }
    run.sample(&last);
    run.list.text
}

#[allow(dead_code, reason = "the test takes the text alone")]
fn main() {
    print!("{}", text(std::env::args().nth(1).as_deref() == Some("gemma")));
}
