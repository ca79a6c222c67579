//! A host with sequences on the golden model, each beside the oracle's.

use std::time::{Duration, Instant};

use doorbell_contract::{
    ARENAS, BLOCK_TOKENS, DescFlags, HwCompletion, HwDesc, HwImage, HwSequence, PolicyMode, Status,
};
use doorbell_engine::Step;
use doorbell_host::language::{LanguageRegions, language_policy};
use doorbell_host::platform::Platform;
use doorbell_host::{Device, Driver, QueueConfig};
use doorbell_lm::sample::{Sharpness, Truncation};
use doorbell_lm::{Image, micro, micro_gemma};
use doorbell_npu::Published;
use doorbell_npu::layout::Block;
use doorbell_verify::language::{Reference, Sampling, Version};
use doorbell_verify::oracle::Oracle;

/// Bytes of a block of `micro`.
pub const BLOCK: u64 = 4 * 2 * (64 + 32 * 32);
/// Blocks of each arena.
pub const ARENA_BLOCKS: [u64; ARENAS as usize] = [96, 48, 0, 7];
/// Where policies lie in the token region.
pub const POLICY: u64 = 0;
/// Where the first sequence has its tokens, and what lies between two.
pub const TOKENS: u64 = 4096;
const AREA: u64 = 4096;
/// What lies between two sequences in the KV region.
const SLOT: u64 = 256;
/// Bytes of the MODEL region for a version of each parity.
pub const HALF: u64 = 1 << 19;

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end)) as u32
    }

    pub fn prompt(&mut self, length: usize) -> Vec<u32> {
        (0..length).map(|_| self.below(64)).collect()
    }

    pub fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last as u32 + 1) as usize);
        }
        order
    }
}

/// `micro-gemma`, or, of other numbers, models of its shape with the layers that have keys and values of their own in another order.
pub fn gemma(number: u32) -> Image {
    let mut image = micro_gemma();
    image.model = image.model.turned(number as usize);
    image
}

/// `micro`, or, of other numbers, models of its shape with the same weights in other layers.
pub fn model(number: u32) -> Image {
    let mut image = micro();
    image.model = image.model.turned(number as usize);
    if number >= 4 {
        image.model.layers.reverse();
    }
    image
}

pub fn config() -> QueueConfig {
    QueueConfig {
        token_bytes: 1 << 18,
        logp_bytes: 1 << 18,
        kv_bytes: 1 << 14,
        model_bytes: 2 * HALF,
        arena_bytes: ARENA_BLOCKS.map(|blocks| blocks * BLOCK),
        sq_depth: 64,
        cq_depth: 64,
        patience: 100_000,
        ..QueueConfig::default()
    }
}

pub struct Host<P: Platform = crate::Device> {
    pub driver: Driver<P>,
    pub regions: LanguageRegions,
    /// What was published.
    pub versions: Vec<(u16, Version)>,
    /// Blocks of arena 0 that nobody has.
    pub free: Vec<u32>,
    /// Of keys and values: what a sequence begins with. Raise it where the host writes to an arena.
    pub generation: u32,
    sequences: u64,
}

impl Host {
    /// With version 1, which is `micro`.
    pub fn new() -> Self {
        Self::over(crate::device(1, 1))
    }
}

impl<P: Platform> Host<P> {
    pub fn over(platform: P) -> Self {
        Self::of(platform, &micro())
    }

    /// With version 1, which is this model.
    pub fn of(platform: P, image: &Image) -> Self {
        let mut host = Self::empty(platform);
        assert_eq!(host.publish(1, image, PolicyMode::Wait).status, Status::Done as u8);
        host
    }

    /// Without any version of engine 1, and with nonsense wherever blocks lie.
    pub fn empty(platform: P) -> Self {
        Self::configured(platform, config())
    }

    pub fn configured(platform: P, config: QueueConfig) -> Self {
        let driver = Driver::new(platform, config).unwrap();
        let regions = driver.language_regions().remove(0);
        let mut draws = Draws(99);
        for arena in &regions.arenas {
            for offset in (0..arena.bytes()).step_by(8) {
                arena.write(offset, &draws.next().to_le_bytes()).unwrap();
            }
        }
        let free = Draws(5).shuffled(ARENA_BLOCKS[0] as u32);
        Self { driver, regions, versions: vec![], free, generation: 1, sequences: 0 }
    }

    /// Lays a model out for `version`; the POLICY that publishes it.
    pub fn place(&mut self, version: u16, image: &Image, mode: PolicyMode) -> (HwDesc, HwImage) {
        let published = Published::new(image.to_bytes(), &image.about.ends).unwrap();
        let offset = u64::from(version % 2) * HALF;
        self.regions.model.write(offset, &published.memory).unwrap();
        let record = published.at(offset);
        self.place_policy(version, &record);
        (HwDesc { model_id: 1, ..HwDesc::policy(version, mode) }.with_delta_offset(POLICY), record)
    }

    pub fn place_policy(&mut self, version: u16, record: &HwImage) {
        self.driver.token_regions()[0].write(POLICY, &language_policy(version, record)).unwrap();
    }

    pub fn publish(&mut self, version: u16, image: &Image, mode: PolicyMode) -> HwCompletion {
        let (desc, _) = self.place(version, image, mode);
        self.note(version, image);
        self.run(&[desc])[0]
    }

    /// A version that is published.
    pub fn note(&mut self, number: u16, image: &Image) {
        self.versions.retain(|(other, _)| *other != number);
        let version = Version { model: image.model.clone(), ends: image.about.ends.clone() };
        self.versions.push((number, version));
    }

    pub fn version(&self, number: u16) -> &Version {
        &self.versions.iter().find(|(other, _)| *other == number).expect("it was published").1
    }

    /// Runs descriptors; their completions in order of arrival.
    pub fn run(&mut self, descs: &[HwDesc]) -> Vec<HwCompletion> {
        assert_eq!(self.driver.submit(descs).unwrap(), descs.len());
        self.reap(descs.len())
    }

    pub fn reap(&mut self, count: usize) -> Vec<HwCompletion> {
        let mut ends = vec![];
        let mut out = [HwCompletion::default(); 8];
        let mut last = Instant::now();
        while ends.len() < count {
            let taken = self.driver.poll(&mut out).unwrap();
            ends.extend(out[..taken].iter().map(|end| end.without_timing()));
            if taken > 0 {
                last = Instant::now();
            }
            assert!(
                last.elapsed() < Duration::from_secs(60),
                "R15: {} of {count} completions, and none for 60 s",
                ends.len()
            );
        }
        ends
    }

    pub fn oracle(&self) -> Oracle {
        let oracle = Oracle::new(self.driver.config());
        self.versions.iter().fold(oracle, |oracle, (number, version)| {
            oracle.with_language(*number, version.model.shape.context as u32)
        })
    }

    /// A sequence of a prompt, with blocks for so many positions.
    pub fn sequence(&mut self, prompt: &[u32], positions: usize, temperature: f64) -> Sequence {
        let blocks = positions.div_ceil(BLOCK_TOKENS as usize);
        let table = self.free.split_off(self.free.len() - blocks);
        self.sequences += 1;
        let number = self.sequences;
        let sequence = Sequence {
            reference: Reference::new(self.version(1), prompt),
            record: HwSequence {
                sharpness: Sharpness::of(temperature).unwrap().0,
                prompt: TOKENS + AREA * (number - 1),
                generation: self.generation,
                ..HwSequence::default()
            },
            table,
            arena: 0,
            kv_offset: SLOT * (number - 1),
            rollout: 100 + number as u32,
            seed: 0xABCD_0000 + number as u32,
            version: 1,
            first: 0,
            done: prompt.len(),
        };
        self.driver.token_regions()[0].write(sequence.record.prompt, prompt).unwrap();
        self.lay(&sequence);
        sequence
    }

    /// Writes the sequence's record and table.
    pub fn lay(&self, sequence: &Sequence) {
        self.regions.place_sequence(sequence.kv_offset, sequence.record, &sequence.table).unwrap();
    }

    /// Runs a sequence's PREFILL.
    pub fn prefill(&mut self, sequence: &mut Sequence) {
        let desc = sequence.prefill(None);
        let end = self.run(&[desc])[0];
        assert_eq!(end, self.oracle().answer(&desc).completion, "{desc:x?}");
        self.catch_up(sequence);
    }

    /// Runs a PREFILL of a sequence that scores its tokens from `start` on, and checks what it wrote, and that it wrote nothing else.
    pub fn score(&mut self, sequence: &mut Sequence, start: usize) {
        sequence.record.start = start as u32;
        self.lay(sequence);
        let length = sequence.reference.tokens.len();
        let (region, at) = (self.driver.logp_regions()[0].clone(), sequence.record.prompt);
        let before: Vec<u32> = (0..length as u32 + 8).map(|k| 0xA5A5_0000 + k).collect();
        region.write(at, &before).unwrap();
        let desc = sequence.prefill(None).with_flags(DescFlags::LOGP);
        let end = self.run(&[desc])[0];
        assert_eq!(end, self.oracle().answer(&desc).completion, "{desc:x?}");
        let scores = sequence.reference.scores(self.version(sequence.version), sequence.sampling().sharpness);
        let expected: Vec<u32> = (0..before.len())
            .map(|k| if (start + 1..length).contains(&k) { scores[k - 1] as u32 } else { before[k] })
            .collect();
        let mut found = vec![0; before.len()];
        region.read(at, &mut found).unwrap();
        assert_eq!(found, expected, "R27: log-probabilities of given tokens from {start} on");
        self.catch_up(sequence);
    }

    /// The oracle makes what a PREFILL has made.
    pub fn catch_up(&self, sequence: &mut Sequence) {
        let end = sequence.reference.tokens.len() - 1;
        let version = self.version(sequence.version);
        sequence.reference.prefill(version, end);
        self.check_kv(sequence);
    }

    /// Holds the completion of `desc`, a DECODE, and all that it made, to the oracle, where `cut` says how it may have been cut.
    pub fn check(&mut self, sequence: &mut Sequence, desc: &HwDesc, end: &HwCompletion) {
        assert_eq!(sequence.done, desc.seq_len as usize, "the test goes on where it was");
        let cut = [Status::Stopped as u8, Status::Superseded as u8].contains(&end.status);
        let found = (end.final_seq_len - desc.seq_len) as usize;
        let (number, version) =
            self.versions.iter().find(|(other, _)| *other == desc.policy_version).unwrap();
        let mut full = sequence.reference.clone();
        let sampling = sequence.sampling();
        let steps: Vec<Step> = (0..desc.max_tokens).map(|_| full.step(version, sampling)).collect();
        let cut = cut.then(|| (found as u32, Status::try_from(end.status).unwrap()));
        let answer = self.oracle().stepped(desc, &steps, cut);
        assert_eq!(*end, answer.completion, "version {number}: {desc:x?}");
        let mut tokens = vec![0; found];
        self.driver.tokens(desc.delta_offset, &mut tokens).unwrap();
        assert_eq!(tokens, answer.tokens, "R6: tokens of {desc:x?}");
        let mut logps = vec![0; answer.logps.len()];
        self.driver.logps(desc.delta_offset, &mut logps).unwrap();
        assert_eq!(logps, answer.logps, "R6: log-probabilities of {desc:x?}");
        for _ in 0..found {
            sequence.reference.step(version, sampling);
        }
        sequence.done += found;
        self.check_kv(sequence);
    }

    /// Runs a DECODE of so many tokens, and checks it.
    pub fn decode(&mut self, sequence: &mut Sequence, tokens: u32, flags: DescFlags) -> HwCompletion {
        let desc = sequence.decode(tokens).with_flags(flags);
        let end = self.run(&[desc])[0];
        self.check(sequence, &desc, &end);
        end
    }

    /// R27: keys and values of the positions below the length less one; without those of a copy that may be still to come.
    pub fn check_kv(&self, sequence: &Sequence) {
        let blocks = self.blocks(sequence);
        let (from, made) = (sequence.first, sequence.reference.made());
        let copies = sequence.record.shared as usize == made;
        let end = if copies { sequence.reference.whole() } else { made };
        let version = self.version(sequence.version);
        let found = sequence.reference.kv_difference(version, &blocks, from, end);
        assert_eq!(found, None, "R27: keys and values of rollout {}", sequence.rollout);
    }

    pub fn blocks(&self, sequence: &Sequence) -> Vec<Vec<u8>> {
        let held = sequence.reference.made().div_ceil(BLOCK_TOKENS as usize);
        sequence.table[..held].iter().map(|&number| self.block(sequence.arena, number)).collect()
    }

    pub fn block(&self, arena: u16, number: u32) -> Vec<u8> {
        let shape = &self.version(1).model.shape;
        let heads = (shape.kv_layers() * shape.kv_heads) as u64;
        let block = heads * Block { width: shape.head_width as u64 }.bytes();
        let mut bytes = vec![0; block as usize];
        self.regions.arenas[usize::from(arena)].read(u64::from(number) * block, &mut bytes).unwrap();
        bytes
    }
}

/// A sequence in the device's memory, and beside it the oracle's.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub reference: Reference,
    pub record: HwSequence,
    pub table: Vec<u32>,
    pub arena: u16,
    pub kv_offset: u64,
    pub rollout: u32,
    pub seed: u32,
    pub version: u16,
    /// The first position whose keys and values are looked at.
    pub first: usize,
    /// Tokens that are checked.
    pub done: usize,
}

impl Sequence {
    pub fn sampling(&self) -> Sampling {
        let HwSequence { sharpness, draw_key: key, top_k, top_p, min_p, .. } = self.record;
        let truncation = Truncation { top_k, top_p, min_p };
        Sampling { key, truncation, ..Sampling::new(Sharpness(sharpness), self.seed, self.rollout) }
    }

    fn desc(&self, desc: HwDesc) -> HwDesc {
        let desc = HwDesc { model_id: 1, kv_offset: self.kv_offset, kv_arena_id: self.arena, ..desc };
        let desc = HwDesc { rollout_id: self.rollout, ..desc };
        desc.with_seed(self.seed).with_version(self.version).with_user_data(self.rollout.into())
    }

    /// The PREFILL of its prompt, which opens a group of so many members.
    pub fn prefill(&self, members: Option<u32>) -> HwDesc {
        let length = self.reference.tokens.len() as u32;
        self.desc(HwDesc::open_group(self.rollout, length, members.unwrap_or(0)))
    }

    /// A DECODE behind what is checked.
    pub fn decode(&self, tokens: u32) -> HwDesc {
        let length = self.done as u32;
        let delta = self.record.prompt + 4 * u64::from(length);
        self.desc(HwDesc::decode(self.rollout, length, tokens)).with_delta_offset(delta)
    }

    /// A STOP of it.
    pub fn stop(&self) -> HwDesc {
        HwDesc::stop(self.rollout).with_user_data(1 << 32)
    }
}

/// The completions of a descriptor's `user_data`.
pub fn of(ends: &[HwCompletion], user_data: u64) -> HwCompletion {
    let mut found = ends.iter().filter(|end| end.user_data == user_data);
    let first = *found.next().unwrap_or_else(|| panic!("R3: no completion of {user_data}"));
    assert!(found.next().is_none(), "R3: two completions of {user_data}");
    first
}

/// Whether it is of this kind: for tests that look at many.
pub fn ended(end: &HwCompletion) -> Status {
    Status::try_from(end.status).unwrap()
}
