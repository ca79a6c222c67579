//! What engine 1 must do: a sequence as the plain oracle of crate `lm` has it, beside the one in a device's memory. Its versions are an
//! input: each token goes through the model that its step names (R6, R27).

use std::fmt;

use doorbell_engine::Step;
use doorbell_lm::fast::Runner;
use doorbell_lm::ops::BLOCK;
use doorbell_lm::sample::{Draw, Sampled, Sharpness, Truncation, log_probability, sample_among};
use doorbell_lm::{Cache, Model, Oracle};
use doorbell_npu::layout::Block;

/// How the tokens of a rollout are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Of its sequence.
    pub sharpness: Sharpness,
    /// Of its descriptors.
    pub seed: u32,
    /// Likewise.
    pub rollout: u32,
    /// Of its sequence; 0 leaves it to seed and rollout.
    pub key: u64,
    /// Of its sequence.
    pub truncation: Truncation,
}

impl Sampling {
    /// Without a key, from all tokens.
    pub const fn new(sharpness: Sharpness, seed: u32, rollout: u32) -> Self {
        Self { sharpness, seed, rollout, key: 0, truncation: Truncation::NONE }
    }

    /// What is drawn from these logits, for the token of a position.
    fn sample(&self, logits: &[i32], position: u32) -> Sampled {
        let draw = Draw::keyed(self.key, self.seed, self.rollout, position);
        sample_among(logits, self.sharpness, self.truncation, draw)
    }
}

/// A version of engine 1.
#[derive(Clone, Debug)]
pub struct Version {
    /// Its weights.
    pub model: Model,
    /// The tokens that end a sequence.
    pub ends: Vec<u32>,
}

/// A sequence: its tokens, and the keys and values of all but the last.
#[derive(Clone, Debug)]
pub struct Reference {
    /// From position 0 on.
    pub tokens: Vec<u32>,
    cache: Cache,
}

/// What a device has given of a rollout that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// What it began with, at least a token.
    pub prompt: &'a [u32],
    /// What the device has added.
    pub tokens: &'a [u32],
    /// The log-probability of each of these, 16 fraction bits, if they were asked for.
    pub logps: Option<&'a [i32]>,
    /// The bytes of each block of the sequence, if the device has them still.
    pub blocks: Option<&'a [Vec<u8>]>,
}

impl Given<'_> {
    /// Holds all of it to the oracle: tokens, log-probabilities, keys and values; of one without tokens only [whole](Reference::whole) blocks.
    /// `spans` as [`Reference::teach`] has them.
    ///
    /// # Errors
    /// The first thing that is another, in words.
    ///
    /// # Panics
    /// If there is no prompt, no version, or the spans end before the sequence.
    pub fn check(&self, spans: &[(usize, &Version)], sampling: Sampling) -> Result<(), String> {
        self.check_after(Reference::new(spans[0].1, self.prompt), spans, sampling)
    }

    /// The same, where some keys and values of the prompt are made already: `reference` has its tokens, and what the first spans make of them.
    ///
    /// # Errors
    /// Likewise.
    ///
    /// # Panics
    /// Likewise.
    pub fn check_after(
        &self,
        mut reference: Reference,
        spans: &[(usize, &Version)],
        sampling: Sampling,
    ) -> Result<(), String> {
        let Given { prompt, tokens, logps, blocks } = *self;
        let (_, version) = spans[0];
        let vocabulary = version.model.shape.vocabulary as u32;
        if let Some(place) = prompt.iter().chain(tokens).position(|&token| token >= vocabulary) {
            return Err(format!(
                "R26: the token of position {place} is beyond the vocabulary of {vocabulary}"
            ));
        }
        reference.tokens.extend(tokens);
        let steps = reference.teach(spans, sampling, prompt.len());
        for (place, (step, &token)) in steps.iter().zip(tokens).enumerate() {
            if step.token != token {
                return Err(format!("R6: token {place} is {token}, expected {}", step.token));
            }
            if let Some(&logp) = logps.and_then(|logps| logps.get(place))
                && step.logp != logp
            {
                let expected = step.logp;
                return Err(format!(
                    "R6: the log-probability of token {place} is {logp}, expected {expected}"
                ));
            }
        }
        let made = reference.made();
        let missing = blocks.is_some_and(|blocks| blocks.len() < made.div_ceil(BLOCK));
        if missing || logps.is_some_and(|logps| logps.len() < tokens.len()) {
            return Err("blocks or log-probabilities are missing".into());
        }
        let held = if tokens.is_empty() { reference.whole() } else { made };
        match blocks.and_then(|blocks| reference.kv_difference(version, blocks, 0, held)) {
            None => Ok(()),
            Some(difference) => Err(difference.to_string()),
        }
    }
}

/// Where a device's keys and values differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvDifference {
    /// The position.
    pub position: usize,
    /// Its layer.
    pub layer: usize,
    /// The head of keys and values.
    pub head: usize,
    /// Whether it is the value, else the key.
    pub is_value: bool,
}

impl fmt::Display for KvDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { position, layer, head, is_value } = self;
        let what = if is_value { "value" } else { "key" };
        write!(f, "R27: the {what} of position {position}, layer {layer}, head {head} is another")
    }
}

impl Reference {
    /// A sequence of a prompt, none of whose keys and values is made, of models of `version`'s shape.
    pub fn new(version: &Version, prompt: &[u32]) -> Self {
        Self { tokens: prompt.to_vec(), cache: Cache::new(&version.model) }
    }

    /// Positions that have keys and values.
    pub fn made(&self) -> usize {
        self.cache.len()
    }

    /// Of these, those that lie in whole blocks: where a rollout has added no token, what a device has of the others may be a copy that
    /// it has not come to (R27).
    pub fn whole(&self) -> usize {
        self.made() / BLOCK * BLOCK
    }

    /// Makes keys and values of the positions below `end`, as a PREFILL does, token by token.
    pub fn prefill(&mut self, version: &Version, end: usize) {
        let oracle = Oracle::new(&version.model);
        for position in self.cache.len()..end {
            oracle.step(&mut self.cache, self.tokens[position]);
        }
    }

    /// Takes the keys and values of a whole block, by its place in the sequence, from another sequence, as where a host writes their bytes
    /// under the same table.
    pub fn take_block(&mut self, version: &Version, other: &Self, block: usize) {
        let mut cache = Cache::new(&version.model);
        for position in 0..self.cache.len() {
            let from = if position / BLOCK == block { &other.cache } else { &self.cache };
            cache.push(|layer, head| from.stored(layer, head, position).map(Clone::clone));
        }
        self.cache = cache;
    }

    /// A step of a DECODE: adds a token.
    ///
    /// # Panics
    /// If positions before the last have no keys and values.
    pub fn step(&mut self, version: &Version, sampling: Sampling) -> Step {
        assert_eq!(self.cache.len() + 1, self.tokens.len(), "a PREFILL comes before");
        let oracle = Oracle::new(&version.model);
        let x = oracle.step(&mut self.cache, self.tokens[self.tokens.len() - 1]);
        let Sampled { token, log_probability } =
            sampling.sample(&oracle.logits(&x), self.tokens.len() as u32);
        self.tokens.push(token);
        Step { token, eos: version.ends.contains(&token), logp: log_probability }
    }

    /// The steps that must have given the last tokens of a sequence, from position `from` on, when it is made under these versions, each up to
    /// (not including) a position of the token that it adds. All positions go through the weights together; of tokens that a device
    /// has given, the first wrong one shows as another token here.
    ///
    /// # Panics
    /// If the spans end before the sequence, or a token is beyond the vocabulary.
    pub fn teach(&mut self, spans: &[(usize, &Version)], sampling: Sampling, from: usize) -> Vec<Step> {
        let mut steps = vec![];
        for &(end, version) in spans {
            let first = self.cache.len();
            // The step that adds the token of position p makes keys and values of p - 1.
            let last = end.min(self.tokens.len()) - 1;
            if last <= first {
                continue;
            }
            let runner = Runner::new(&version.model);
            let streams = runner.extend(&mut self.cache, &self.tokens[first..last]);
            let wanted = from.saturating_sub(first + 1).min(streams.len());
            if wanted == streams.len() {
                continue;
            }
            for (logits, position) in runner.logits(&streams[wanted..]).iter().zip(first + 1 + wanted..) {
                let Sampled { token, log_probability: logp } = sampling.sample(logits, position as u32);
                steps.push(Step { token, eos: version.ends.contains(&token), logp });
            }
        }
        assert_eq!(self.cache.len() + 1, self.tokens.len(), "the spans hold every token");
        steps
    }

    /// The log-probabilities of its tokens but the first, as a PREFILL with LOGP writes them.
    pub fn scores(&self, version: &Version, sharpness: Sharpness) -> Vec<i32> {
        let runner = Runner::new(&version.model);
        let count = self.tokens.len() - 1;
        let streams = runner.extend(&mut Cache::new(&version.model), &self.tokens[..count]);
        let logits = runner.logits(&streams);
        let given = logits.iter().zip(&self.tokens[1..]);
        given.map(|(logits, &token)| log_probability(logits, sharpness, token)).collect()
    }

    /// The first difference of keys and values of the positions from `from` up to, not including, `end`; `blocks` has the bytes of each block
    /// of the sequence as a device has them. Positions that a cap on keys and values leaves to no later token are not compared: their blocks may hold
    /// others.
    pub fn kv_difference(
        &self,
        version: &Version,
        blocks: &[Vec<u8>],
        from: usize,
        end: usize,
    ) -> Option<KvDifference> {
        let shape = &version.model.shape;
        let place = Block { width: shape.head_width as u64 };
        let heads =
            (0..shape.kv_layers()).flat_map(|layer| (0..shape.kv_heads).map(move |head| (layer, head)));
        let differs = |position: usize, layer: usize, head: usize, part: usize| {
            let stored = self.cache.stored(layer, head, position)[part];
            let start = (layer * shape.kv_heads + head) as u64 * place.bytes();
            let (token, part) = ((position % BLOCK) as u64, part as u64);
            let bytes = &blocks[position / BLOCK];
            let scale = (start + place.scale(part, token)) as usize;
            let mantissas = (start + place.mantissas(part, token)) as usize;
            bytes[scale..][..2] != (stored.scale as u16).to_le_bytes()
                || !bytes[mantissas..].iter().zip(&stored.mantissas).all(|(&a, &b)| a as i8 == b)
        };
        let kept = |position: &usize| {
            let sinks = shape.kv_cap.map_or(0, |cap| cap.sinks);
            *position < sinks || *position >= shape.first_kept(end)
        };
        (from..end).filter(kept).find_map(|position| {
            heads.clone().find_map(|(layer, head)| {
                let part = (0..2).find(|&part| differs(position, layer, head, part))?;
                Some(KvDifference { position, layer, head, is_value: part == 1 })
            })
        })
    }
}
