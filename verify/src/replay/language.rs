//! Rollouts of engine 1 in a plan: where their prompts, sequences and blocks lie, and what their prompts are.

use std::ops::Range;

use doorbell_contract::{BLOCK_TOKENS, HwDesc, HwSequence, PolicyMode, mix};
use doorbell_host::device::Device;
use doorbell_host::error::DeviceError;
use doorbell_host::language::{LanguageRegions, language_policy, sequence_bytes};
use doorbell_lm::sample::Sharpness;
use doorbell_npu::Published;
use doorbell_trace::PREFIX_BLOCK_TOKENS;

use crate::language::{Sampling, Version};

/// The version that a plan's rollouts run under.
pub const VERSION: u16 = 1;

/// Bytes of the line ahead of a rollout's tokens, whose last word is the token before them.
pub(super) const LEAD: u64 = 64;

/// A language model that the rollouts of a plan run.
#[derive(Clone, Debug)]
pub struct Language {
    /// What is laid out on devices.
    pub published: Published,
    /// What the oracle runs.
    pub version: Version,
    /// How tokens are drawn.
    pub sharpness: Sharpness,
}

/// Where the rollouts of a plan have their sequences and blocks: all apart, so that each can be looked at when it has ended.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Bytes from one sequence to the next, which are numbered by rollout id.
    stride: u64,
    /// By request, the number of its first block; one more at the end.
    first: Vec<u32>,
}

/// What of a request decides where its blocks lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub prompt: u32,
    pub most: u32,
    pub rollouts: u32,
}

impl Extent {
    /// Blocks of the prefix, which holds all of the prompt but its last token; those of them that its rollouts share; and those that
    /// each rollout has of its own.
    fn blocks(self) -> [u32; 3] {
        let prefix = (self.prompt - 1).div_ceil(BLOCK_TOKENS);
        let shared = (self.prompt - 1) / BLOCK_TOKENS;
        [prefix, shared, (self.prompt + self.most - 1).div_ceil(BLOCK_TOKENS) - shared]
    }
}

impl Places {
    /// `None` where a block's number has more than 32 bits.
    pub fn new(requests: impl Iterator<Item = Extent>) -> Option<Self> {
        let (mut first, mut longest, mut next) = (vec![0], 0, 0u32);
        for extent in requests {
            let [prefix, shared, own] = extent.blocks();
            longest = longest.max(shared + own);
            next = own.checked_mul(extent.rollouts)?.checked_add(prefix)?.checked_add(next)?;
            first.push(next);
        }
        Some(Self { stride: sequence_bytes(longest.into()), first })
    }

    /// Blocks of all.
    pub fn blocks(&self) -> u32 {
        self.first[self.first.len() - 1]
    }

    /// Where the sequence of a rollout id lies in the KV region.
    pub fn sequence(&self, id: u32) -> u64 {
        self.stride * u64::from(id)
    }

    /// Bytes of the KV region.
    pub fn sequence_bytes(&self, ids: u32) -> u64 {
        self.sequence(ids)
    }

    /// The block table of a request's PREFILL.
    pub fn prefix(&self, request: u32, extent: Extent) -> Range<u32> {
        let first = self.first[request as usize];
        first..first + extent.blocks()[0]
    }

    /// The block table of the `member`-th rollout of a request: what it shares of the prefix, and what is its own.
    pub fn rollout(&self, request: u32, member: u32, extent: Extent) -> Vec<u32> {
        let [prefix, shared, own] = extent.blocks();
        let first = self.first[request as usize];
        let start = first + prefix + member * own;
        (first..first + shared).chain(start..start + own).collect()
    }
}

impl Language {
    /// The prompt of a request.
    pub fn prompt(&self, seed: u32, request: u32, length: u32) -> Vec<u32> {
        let mut prompt = vec![0; length as usize];
        self.draw_prompt(seed, request, &[], &mut prompt);
        prompt
    }

    /// Draws the prompt of a request. Where it has an id in the trace for a piece of 512 tokens, that decides in the place of the request: so
    /// prompts begin alike as far as their ids do.
    pub fn draw_prompt(&self, seed: u32, request: u32, ids: &[u32], out: &mut [u32]) {
        let vocabulary = self.version.model.shape.vocabulary as u32;
        for (position, token) in (0..).zip(out) {
            let id = ids.get((position / PREFIX_BLOCK_TOKENS) as usize).copied().unwrap_or(request);
            *token = mix(mix(seed ^ mix(id)) ^ position) % vocabulary;
        }
    }

    /// How a rollout's tokens are drawn.
    pub fn sampling(&self, seed: u32, rollout: u32) -> Sampling {
        Sampling::new(self.sharpness, seed, rollout)
    }

    /// The POLICY that publishes the model, whose record lies at `delta_offset`.
    pub fn policy(&self, delta_offset: u64) -> HwDesc {
        let desc = HwDesc::policy(VERSION, PolicyMode::Wait).with_delta_offset(delta_offset);
        HwDesc { model_id: 1, rollout_id: u32::MAX, ..desc }.with_user_data(u64::MAX)
    }
}

impl super::ReplayPlan {
    /// Lays the model, the prompts and the sequences out in every queue pair's memory.
    pub(super) fn lay_out(&self, device: &dyn Device) -> Result<(), DeviceError> {
        let (Some(language), Some(places)) = (self.language(), self.places()) else { return Ok(()) };
        let regions = device.language_regions();
        let tokens = device.token_regions();
        if regions.len() != tokens.len() {
            return Err(DeviceError::Config {
                field: "queues",
                value: tokens.len() as u64,
                expected: "one queue pair for each function, which has memory for a language model".into(),
            });
        }
        for (regions, tokens) in regions.iter().zip(&tokens) {
            regions.model.write(0, &language.published.memory)?;
            let record = language.published.at(0);
            tokens.write(self.policy_offset(), &language_policy(VERSION, &record))?;
            for request in 0..self.requests() as u32 {
                let extent = self.extent(request);
                let prompt = self.prompt(request);
                let (prompt_offset, _) = self.prompt_area(request);
                tokens.write(prompt_offset, &prompt)?;
                let prefix: Vec<u32> = places.prefix(request, extent).collect();
                let record = HwSequence { prompt: prompt_offset, ..HwSequence::default() };
                let id = request * self.ids_per_request();
                regions.place_sequence(places.sequence(id), record, &prefix)?;
                for member in 0..extent.rollouts {
                    let id = id + 1 + member;
                    let area = self.area(id).unwrap_or_default();
                    tokens.write(area.start - 4, &prompt[prompt.len() - 1..])?;
                    let record = HwSequence {
                        sharpness: language.sharpness.0,
                        shared: extent.prompt - 1,
                        source: prefix.last().copied().unwrap_or_default(),
                        ..HwSequence::default()
                    };
                    let table = places.rollout(request, member, extent);
                    regions.place_sequence(places.sequence(id), record, &table)?;
                }
            }
        }
        Ok(())
    }

    /// The blocks of rollout `id` as a device has them.
    pub(crate) fn blocks(&self, id: u32, regions: &LanguageRegions) -> Result<Vec<Vec<u8>>, DeviceError> {
        let (Some(language), Some(places)) = (self.language(), self.places()) else { return Ok(vec![]) };
        let bytes = language.published.at(0).block_bytes();
        let request = self.request_of(id);
        let member = id % self.ids_per_request() - 1;
        let table = places.rollout(request, member, self.extent(request));
        let read = |number: u32| {
            let mut block = vec![0; bytes as usize];
            regions.arenas[0].read(u64::from(number) * bytes, &mut block).map(|()| block)
        };
        table.into_iter().map(read).collect()
    }
}
