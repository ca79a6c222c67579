//! Engine 1 as the model runs it: weights that a POLICY loads (R25), sequences that lie in memory (R26), and what their steps
//! read and write (R27). What a step computes is crate `lm`'s; here is where its numbers come from and go to.

use std::sync::Arc;

use bytemuck::{cast, cast_slice};
use doorbell_contract::{
    ARENAS, BLOCK_TOKENS, DescFlags, DeviceFault, ErrorCode, HwDesc, HwImage, HwSequence, Opcode,
    SHARPNESS_MAX, TOKEN_NONE,
};
use doorbell_engine::Step;
use doorbell_host::memory::BusFault;
use doorbell_host::registers::{Region, Session};
use doorbell_lm::fast::Runner;
use doorbell_lm::image::{HEADER, Header, header};
use doorbell_lm::limits::WEIGHT_BYTES;
use doorbell_lm::ops::Stored;
use doorbell_lm::sample::{Draw, Sharpness, Truncation, log_probability, sample_among};
use doorbell_lm::{Cache, Image, Model, Oracle, Shape};
use doorbell_npu::layout::Block;

use super::bus::Bus;
use super::mutation::LanguageFault;

/// Multiplications that count as one token of engine 0, in a slice of time and in a step.
const MACS_OF_A_STEP: u64 = 4096;

/// Models of fewer of these go token by token through the plain oracle, which costs less than handing their parts to threads.
const PLAIN_STEPS: u32 = 64;

/// Bytes of a record: of an HwImage, of the header of an image, of a HwSequence.
const RECORD: u64 = 64;

/// What keeps engine 1 from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The memory answered a read with an error.
    Read,
    /// Or a write.
    Write,
    /// What lies in memory is malformed.
    Malformed(ErrorCode),
}

impl Trouble {
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Read | Self::Write => ErrorCode::DmaFault,
            Self::Malformed(code) => code,
        }
    }

    /// What ERROR tells of it.
    pub fn fault(self) -> DeviceFault {
        match self {
            Self::Read => DeviceFault::DMA_READ,
            Self::Write => DeviceFault::DMA_WRITE,
            Self::Malformed(_) => DeviceFault::empty(),
        }
    }
}

const BAD_POLICY: Trouble = Trouble::Malformed(ErrorCode::BadPolicy);
const BAD_SEQUENCE: Trouble = Trouble::Malformed(ErrorCode::BadSequence);

/// Words of a program, at most: a device may count them with 16 bits.
const MOST_WORDS: u32 = 0xFFFF;
/// Bytes of a model within which its program begins.
const PROGRAM_WITHIN: u64 = 1 << 40;

fn require(holds: bool, trouble: Trouble) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(trouble) }
}

fn reads<T>(read: Result<T, BusFault>) -> Result<T, Trouble> {
    read.map_err(|BusFault| Trouble::Read)
}

/// A version of engine 1: what its policy slot holds.
#[derive(Debug)]
pub(super) struct Weights {
    pub image: HwImage,
    model: Model,
}

/// The image that a POLICY loads, as far as it has been read. Its size is the host's choice.
#[derive(Debug)]
pub(super) struct Loading {
    image: HwImage,
    start: u64,
    length: u64,
    file: Vec<u8>,
    /// What the header of the policy says.
    pub salt: u32,
}

impl Loading {
    /// Comes to the image that the HwImage at `address` tells of, which a POLICY loads (R25, and "Which error", 12).
    pub fn begin(bus: &Bus, session: &Session, address: u64, salt: u32) -> Result<Self, Trouble> {
        let mut words = [0u32; 16];
        for (word, k) in words.iter_mut().zip(0..) {
            *word = reads(bus.read_u32(address.wrapping_add(4 * k)))?;
        }
        let image: HwImage = cast(words);
        let Region { base, size } = session.model;
        require(image.verify(), BAD_POLICY)?;
        let lines = [image.offset, image.length, image.program_at];
        require(lines.iter().all(|bytes| bytes.is_multiple_of(RECORD)), BAD_POLICY)?;
        let end = image.offset.checked_add(image.length);
        require(end.is_some_and(|end| end <= size), BAD_POLICY)?;
        let end = image.program_at.checked_add(8 * u64::from(image.words));
        require(end.is_some_and(|end| end <= image.length), BAD_POLICY)?;
        let counts = (1..=MOST_WORDS).contains(&image.words) && image.program_at < PROGRAM_WITHIN;
        require(counts, BAD_POLICY)?;
        let is_end = |&end: &u32| end == TOKEN_NONE || end < image.vocabulary;
        require(image.ends().iter().all(is_end), BAD_POLICY)?;

        let start = base.wrapping_add(image.offset);
        let Header { shape, check, length, .. } =
            header(&bytes(bus, start, HEADER as u64)?).map_err(|_| BAD_POLICY)?;
        let agrees = length <= image.program_at
            && check == image.image_check
            && shape.vocabulary == image.vocabulary as usize
            && shape.context == image.positions as usize
            && block_bytes(&shape) == image.block_bytes();
        require(agrees, BAD_POLICY)?;
        // A device need not have room for an image of any size.
        require(WEIGHT_BYTES.value().is_ok_and(|most| length <= most), BAD_POLICY)?;
        Ok(Self { image, start, length, file: vec![], salt })
    }

    /// Reads so many beats of 64 bytes, or what is left; how many it were.
    pub fn read(&mut self, bus: &Bus, beats: u32) -> Result<u32, Trouble> {
        // A file ends where its header says, which need not be a whole word.
        let left = self.length.next_multiple_of(8) - self.file.len() as u64;
        let now = left.min(RECORD * u64::from(beats));
        self.file.try_reserve(now as usize).map_err(|_| BAD_POLICY)?;
        let from = self.start.wrapping_add(self.file.len() as u64);
        for offset in (0..now).step_by(8) {
            self.file.extend(reads(bus.read_word(from.wrapping_add(offset)))?.to_le_bytes());
        }
        Ok(now.div_ceil(RECORD) as u32)
    }

    /// Whether all of it has been read.
    pub fn is_read(&self) -> bool {
        self.file.len() as u64 >= self.length
    }

    /// What was read.
    pub fn weights(mut self) -> Result<Weights, Trouble> {
        self.file.truncate(self.length as usize);
        let Image { model, .. } = Image::from_bytes(&self.file).map_err(|_| BAD_POLICY)?;
        Ok(Weights { image: self.image, model })
    }
}

impl Weights {
    /// What a token counts for in a slice of time.
    pub fn cost(&self) -> u32 {
        let (all, _) = self.model.shape.weight_macs();
        all.div_ceil(MACS_OF_A_STEP).min(u32::MAX.into()) as u32
    }

    /// Runs tokens behind those in `cache`; the residual stream behind the last layer, for each.
    fn extend(&self, cache: &mut Cache, tokens: &[u32]) -> Vec<Vec<i32>> {
        if self.cost() < PLAIN_STEPS {
            let oracle = Oracle::new(&self.model);
            return tokens.iter().map(|&token| oracle.step(cache, token)).collect();
        }
        Runner::new(&self.model).extend(cache, tokens)
    }

    /// The logits of the tokens behind those of each stream.
    fn logits(&self, streams: &[Vec<i32>]) -> Vec<Vec<i32>> {
        if self.cost() < PLAIN_STEPS {
            let oracle = Oracle::new(&self.model);
            return streams.iter().map(|stream| oracle.logits(stream)).collect();
        }
        Runner::new(&self.model).logits(streams)
    }

    /// These weights up to the layer in the middle, and another version's behind it.
    fn mixed(&self, other: &Self) -> Self {
        let mut model = self.model.clone();
        let middle = model.layers.len() / 2;
        if other.model.shape == model.shape {
            model.layers[middle..].clone_from_slice(&other.model.layers[middle..]);
        }
        Self { image: self.image, model }
    }
}

/// Bytes of a block: keys and values of 32 tokens in all layers that have their own.
fn block_bytes(shape: &Shape) -> u64 {
    (shape.kv_layers() * shape.kv_heads) as u64 * Block { width: shape.head_width as u64 }.bytes()
}

/// So many bytes of memory, whole words.
fn bytes(bus: &Bus, address: u64, count: u64) -> Result<Vec<u8>, Trouble> {
    let mut found = Vec::with_capacity(count as usize);
    for offset in (0..count).step_by(8) {
        found.extend(reads(bus.read_word(address.wrapping_add(offset)))?.to_le_bytes());
    }
    Ok(found)
}

/// A sequence while a descriptor of it runs.
#[derive(Debug)]
pub(super) struct Sequence {
    weights: Arc<Weights>,
    sharpness: Sharpness,
    truncation: Truncation,
    key: u64,
    seed: u32,
    rollout: u32,
    arena: Region,
    table: Vec<u32>,
    cache: Cache,
    /// Of a PREFILL: the position at which it ends, and where its tokens lie, from position 0 on.
    end: u32,
    prompt: u64,
    /// Of one that scores its tokens: where the log-probability of that of position 0 would be.
    scores: Option<u64>,
    /// Of a DECODE: the token of the position that is next.
    token: u32,
}

impl Sequence {
    /// Comes to the sequence of `desc`, a DECODE or a PREFILL, as far as its first step ("Which error", 13).
    pub fn begin(
        bus: &Bus,
        session: &Session,
        desc: &HwDesc,
        weights: Arc<Weights>,
        fault: Option<LanguageFault>,
    ) -> Result<Self, Trouble> {
        let mut words = [0; 8];
        reads(bus.read(session.kv_base.wrapping_add(desc.kv_offset), &mut words))?;
        let held: HwSequence = cast(words);
        let end = desc.kv_offset + RECORD + 4 * u64::from(held.entries);
        let sound = held.verify()
            && held.is_plain()
            && held.sharpness <= SHARPNESS_MAX
            && held.top_p <= Truncation::TOP_P_MAX
            && end <= session.kv_size;
        require(sound, BAD_SEQUENCE)?;
        let is_prefill = desc.opcode == Opcode::Prefill as u8;
        let mut sequence = Self {
            sharpness: Sharpness(held.sharpness),
            truncation: Truncation { top_k: held.top_k, top_p: held.top_p, min_p: held.min_p },
            key: held.draw_key,
            seed: desc.seed,
            rollout: desc.rollout_id,
            arena: session.arenas[usize::from(desc.kv_arena_id) % ARENAS as usize],
            table: vec![],
            cache: Cache::new(&weights.model),
            // A DECODE or PREFILL of length 0 is BAD_LENGTH.
            end: desc.seq_len - 1,
            prompt: session.token_base.wrapping_add(held.prompt),
            scores: None,
            token: 0,
            weights,
        };
        let mut first = sequence.end;
        if is_prefill {
            let scores = desc.flags & DescFlags::LOGP.bits() != 0;
            // The last token is scored by the step before it.
            let tokens = if scores { desc.seq_len } else { sequence.end };
            let most = if scores { session.token_size.min(session.logp_size) } else { session.token_size };
            let end = held.prompt.checked_add(4 * u64::from(tokens));
            let lies = held.prompt.is_multiple_of(4) && end.is_some_and(|end| end <= most);
            sequence.scores = scores.then(|| session.logp_base.wrapping_add(held.prompt));
            require(lies && held.start <= sequence.end, BAD_SEQUENCE)?;
            first = held.start;
        } else {
            let before = session.token_base.wrapping_add(desc.delta_offset - 4);
            sequence.token = reads(bus.read_u32(before))?;
        }
        if is_prefill && first == sequence.end {
            sequence.end = 0;
            return Ok(sequence);
        }
        // Positions that it may come to, each once.
        let last = if is_prefill { sequence.end - 1 } else { desc.seq_len + desc.max_tokens - 2 };
        let wanted = held.entries.min(last / BLOCK_TOKENS + 1);
        let table = session.kv_base.wrapping_add(desc.kv_offset + RECORD);
        for entry in bytes(bus, table, (4 * u64::from(wanted)).next_multiple_of(8))?.chunks_exact(4) {
            sequence.table.push(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
        }
        sequence.table.truncate(wanted as usize);
        if fault == Some(LanguageFault::SwappedBlocks) && sequence.table.len() > 1 {
            sequence.table.swap(0, 1);
        }
        if held.shared == first {
            let mut copied = first % BLOCK_TOKENS;
            if fault == Some(LanguageFault::ShortCopy) {
                copied = copied.saturating_sub(1);
            }
            sequence.copy(bus, held.source, first, copied)?;
        }
        sequence.fetch(bus, first)?;
        Ok(sequence)
    }

    /// Bus address of a block that is used now (R26).
    fn block(&self, number: u32) -> Result<u64, Trouble> {
        let bytes = self.weights.image.block_bytes();
        let start = u64::from(number) * bytes;
        require(start + bytes <= self.arena.size, BAD_SEQUENCE)?;
        Ok(self.arena.base.wrapping_add(start))
    }

    /// Bus address of the block of a position.
    fn block_of(&self, position: u32) -> Result<u64, Trouble> {
        let entry = self.table.get((position / BLOCK_TOKENS) as usize).ok_or(BAD_SEQUENCE)?;
        self.block(*entry)
    }

    /// Where keys (part 0) and values (1) of a token lie in a block, by layer and head: byte of the scale, and of the mantissas.
    fn places(&self, token: u32) -> impl Iterator<Item = [u64; 2]> + use<> {
        let shape = &self.weights.model.shape;
        let (heads, block) = (shape.kv_layers() * shape.kv_heads, Block { width: shape.head_width as u64 });
        let token = u64::from(token);
        (0..heads as u64).flat_map(move |head| {
            let start = head * block.bytes();
            [0, 1].map(|part| [start + block.scale(part, token), start + block.mantissas(part, token)])
        })
    }

    fn width(&self) -> u64 {
        self.weights.model.shape.head_width as u64
    }

    /// Copies what block `source` holds of so many positions to the block of `position` (R27).
    fn copy(&self, bus: &Bus, source: u32, position: u32, count: u32) -> Result<(), Trouble> {
        if position.is_multiple_of(BLOCK_TOKENS) {
            return Ok(());
        }
        let (to, from) = (self.block_of(position)?, self.block(source)?);
        for [scale, mantissas] in (0..count).flat_map(|token| self.places(token)) {
            let held = Held::read(bus, from, [scale, mantissas], self.width())?;
            held.write(bus, to, [scale, mantissas])?;
        }
        Ok(())
    }

    /// Reads the keys and values of all positions below `end`, but those of blocks of which a cap lets no later step see anything.
    fn fetch(&mut self, bus: &Bus, end: u32) -> Result<(), Trouble> {
        let shape = self.weights.model.shape;
        let heads = shape.kv_heads;
        let sinks = shape.kv_cap.map_or(0, |cap| cap.sinks) as u32;
        let window = shape.first_kept(end as usize) as u32 / BLOCK_TOKENS * BLOCK_TOKENS;
        for position in 0..end {
            if (sinks..window).contains(&position) {
                let nothing = || Stored { mantissas: vec![0; shape.head_width], scale: 1 };
                self.cache.push(|_, _| [nothing(), nothing()]);
                continue;
            }
            let block = self.block_of(position)?;
            let mut stored = Vec::with_capacity(2 * heads * self.weights.model.shape.kv_layers());
            for place in self.places(position % BLOCK_TOKENS) {
                stored.push(Held::read(bus, block, place, self.width())?.stored());
            }
            let mut stored = stored.into_iter();
            let mut next = || stored.next().expect("the layout has every head");
            self.cache.push(|_, _| [next(), next()]);
        }
        Ok(())
    }

    /// The position that is next.
    fn position(&self) -> u32 {
        self.cache.len() as u32
    }

    /// Whether a PREFILL has made all of its positions.
    pub fn is_prefilled(&self) -> bool {
        self.position() >= self.end
    }

    pub fn cost(&self) -> u32 {
        self.weights.cost()
    }

    /// Makes keys and values of these tokens, from the next position on; the residual streams behind the last layer. Of one that scores, `given`
    /// has the tokens that follow each of them.
    fn extend(&mut self, bus: &Bus, tokens: &[u32], given: Option<&[u32]>) -> Result<Vec<Vec<i32>>, Trouble> {
        let first = self.position();
        // Looked at before anything is computed: no token of them leaves the vocabulary.
        let vocabulary = self.weights.image.vocabulary;
        let mut sound = 0;
        let mut trouble = None;
        for (token, position) in tokens.iter().zip(first..) {
            let next = given.map(|given| given[sound]);
            let is_known = *token < vocabulary && next.is_none_or(|next| next < vocabulary);
            let checked = require(is_known, BAD_SEQUENCE).and_then(|()| self.block_of(position));
            match checked {
                Ok(_) => sound += 1,
                Err(found) => {
                    trouble = Some(found);
                    break;
                }
            }
        }
        let streams = if sound > 0 { self.weights.extend(&mut self.cache, &tokens[..sound]) } else { vec![] };
        for position in first..self.position() {
            self.store(bus, position)?;
        }
        if let (Some(given), Some(to)) = (given, self.scores) {
            self.score(bus, &streams, given, to.wrapping_add(4 * u64::from(first + 1)))?;
        }
        trouble.map_or(Ok(streams), Err)
    }

    /// Writes the log-probability of each given token, of the streams before them, to one word behind the other.
    fn score(&self, bus: &Bus, streams: &[Vec<i32>], given: &[u32], to: u64) -> Result<(), Trouble> {
        // Logits of a large vocabulary are many.
        for (part, at) in streams.chunks(BLOCK_TOKENS as usize).zip((0..).step_by(BLOCK_TOKENS as usize)) {
            for (logits, place) in self.weights.logits(part).iter().zip(at..) {
                let logp = log_probability(logits, self.sharpness, given[place]);
                bus.write_u32(to.wrapping_add(4 * place as u64), logp as u32)
                    .map_err(|BusFault| Trouble::Write)?;
            }
        }
        Ok(())
    }

    /// Writes the keys and values of a position to its block.
    fn store(&self, bus: &Bus, position: u32) -> Result<(), Trouble> {
        let block = self.block_of(position)?;
        let heads = self.weights.model.shape.kv_heads;
        for (k, place) in self.places(position % BLOCK_TOKENS).enumerate() {
            let (head, part) = (k / 2, k % 2);
            let stored = self.cache.stored(head / heads, head % heads, position as usize)[part];
            Held::of(stored).write(bus, block, place)?;
        }
        Ok(())
    }

    /// One step of a DECODE: the next token.
    pub fn step(&mut self, bus: &Bus) -> Result<Step, Trouble> {
        let streams = self.extend(bus, &[self.token], None)?;
        let logits = self.weights.logits(&streams).remove(0);
        // Drawn at the position of the token that is added.
        let draw = Draw::keyed(self.key, self.seed, self.rollout, self.position());
        let sampled = sample_among(&logits, self.sharpness, self.truncation, draw);
        self.token = sampled.token;
        let eos = self.weights.image.ends().contains(&sampled.token);
        Ok(Step { token: sampled.token, eos, logp: sampled.log_probability })
    }

    /// A piece of a PREFILL: as many positions as `budget` has tokens for, and at least those up to the end of a block; how many.
    pub fn prefill(&mut self, bus: &Bus, budget: u32) -> Result<u32, Trouble> {
        let first = self.position();
        let block = first.next_multiple_of(BLOCK_TOKENS).max(first + 1);
        // Pieces of whole blocks; what is left of the last one goes with it.
        let most = first.saturating_add(budget) / BLOCK_TOKENS * BLOCK_TOKENS;
        let end = most.max(block).min(self.end);
        let wanted = if self.scores.is_some() { end + 1 } else { end };
        let mut tokens = Vec::with_capacity((wanted - first) as usize);
        let mut trouble = None;
        for position in first..wanted {
            match bus.read_u32(self.prompt.wrapping_add(4 * u64::from(position))) {
                Ok(token) => tokens.push(token),
                Err(BusFault) => {
                    trouble = Some(Trouble::Read);
                    break;
                }
            }
        }
        match self.scores {
            // The last one is given alone.
            Some(_) => {
                let count = tokens.len().saturating_sub(1);
                self.extend(bus, &tokens[..count], Some(&tokens[tokens.len() - count..]))?
            }
            None => self.extend(bus, &tokens, None)?,
        };
        trouble.map_or(Ok(end - first), Err)
    }

    /// Goes on with weights of which half are those of `other`.
    pub fn mix(&mut self, other: &Weights) {
        self.weights = Arc::new(self.weights.mixed(other));
    }
}

/// Key or value of a head as memory has it.
struct Held {
    scale: u64,
    /// In words.
    mantissas: Vec<u64>,
}

impl Held {
    fn read(bus: &Bus, block: u64, [scale, mantissas]: [u64; 2], width: u64) -> Result<Self, Trouble> {
        let word = reads(bus.read_word(block.wrapping_add(scale & !7)))?;
        let words = (0..width).step_by(8).map(|k| reads(bus.read_word(block.wrapping_add(mantissas + k))));
        Ok(Self { scale: word >> (8 * (scale & 7)) & 0xFFFF, mantissas: words.collect::<Result<_, _>>()? })
    }

    fn write(&self, bus: &Bus, block: u64, [scale, mantissas]: [u64; 2]) -> Result<(), Trouble> {
        let writes = |written: Result<(), BusFault>| written.map_err(|BusFault| Trouble::Write);
        let shift = 8 * (scale & 7);
        let value = self.scale << shift;
        writes(bus.write_word(block.wrapping_add(scale & !7), value, 0xFFFF << shift))?;
        for (word, k) in self.mantissas.iter().zip((0..).step_by(8)) {
            writes(bus.write_word(block.wrapping_add(mantissas + k), *word, u64::MAX))?;
        }
        Ok(())
    }

    fn of(stored: &Stored) -> Self {
        let word = |eight: &[i8]| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(cast_slice(eight));
            u64::from_le_bytes(bytes)
        };
        Self { scale: stored.scale.into(), mantissas: stored.mantissas.chunks_exact(8).map(word).collect() }
    }

    fn stored(&self) -> Stored {
        let bytes = self.mantissas.iter().flat_map(|word| word.to_le_bytes());
        Stored { mantissas: bytes.map(|byte| byte as i8).collect(), scale: self.scale as u32 }
    }
}
