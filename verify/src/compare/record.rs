//! A replay's completions by rollout, and the tokens that belong to them.

use bytemuck::cast;

use crate::replay::{Replay, ReplayFailure, ReplayPlan};
use doorbell_contract::{CompletionFlags, HwCompletion, HwDesc, Opcode};
use doorbell_host::TokenRegion;
use doorbell_host::device::Device;
use doorbell_host::error::DeviceError;

/// One device's replay, sorted by rollout id; within one, in the order of arrival.
pub(super) struct Record<'a> {
    plan: &'a ReplayPlan,
    replay: Replay,
    /// Where each id's completions begin in `order`; one more at the end.
    starts: Vec<u32>,
    /// Ordinals of completions.
    order: Vec<u32>,
}

/// One completion of a rollout and the descriptor that it answers.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// Place of the completion among all of the device.
    pub ordinal: usize,
    pub desc: HwDesc,
    pub completion: HwCompletion,
}

impl Answer {
    /// Tokens that the completion accounts for, within the descriptor's budget.
    pub fn tokens(&self) -> u32 {
        if self.desc.opcode != Opcode::Decode as u8 {
            return 0;
        }
        self.completion.final_seq_len.saturating_sub(self.desc.seq_len).min(self.desc.max_tokens)
    }
}

impl<'a> Record<'a> {
    pub fn new(plan: &'a ReplayPlan, replay: Replay) -> Record<'a> {
        let mut starts = vec![0u32; plan.ids() as usize + 1];
        for &owner in &replay.owners {
            starts[owner as usize + 1] += 1;
        }
        for id in 1..starts.len() {
            starts[id] += starts[id - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0u32; replay.owners.len()];
        for (ordinal, &owner) in replay.owners.iter().enumerate() {
            let place = &mut next[owner as usize];
            order[*place as usize] = ordinal as u32;
            *place += 1;
        }
        Record { plan, replay, starts, order }
    }

    /// The completions of `id` with their descriptors, as far as the descriptors follow from the plan.
    pub fn answers(&self, id: u32) -> impl Iterator<Item = Answer> + '_ {
        let range = self.starts[id as usize] as usize..self.starts[id as usize + 1] as usize;
        let mut next = Some(self.plan.first(id));
        self.order[range].iter().map_while(move |&ordinal| {
            let desc = next?.with_version(self.replay.versions[ordinal as usize]);
            let completion = self.replay.completions[ordinal as usize];
            next = self.plan.next(&desc, &completion);
            Some(Answer { ordinal: ordinal as usize, desc, completion })
        })
    }

    /// Versions that were published.
    pub fn published(&self) -> u16 {
        self.replay.published
    }

    /// Whether the replay reached the end of its plan.
    pub fn is_complete(&self) -> bool {
        self.replay.failure.is_none()
    }

    /// Notes a failure behind the replay, if that had none.
    pub fn fail(&mut self, error: DeviceError) {
        self.replay.failure.get_or_insert(ReplayFailure::Device { error, waiting: None });
    }

    pub fn into_replay(self) -> Replay {
        self.replay
    }

    /// See [`Outcome::digest`](super::Outcome::digest).
    pub fn digest(&self, device: &dyn Device) -> Result<u64, DeviceError> {
        let mut digest = Digest::new();
        let mut area = Vec::new();
        for id in 0..self.plan.ids() {
            let mut produced = 0;
            for answer in self.answers(id).filter(|answer| !self.plan.may_be_stopped(&answer.desc)) {
                compared(&answer.completion).iter().for_each(|&word| digest.fold(word));
                produced += answer.tokens() as usize;
            }
            if produced > 0 {
                read_tokens(self.plan, device, id, &mut area)?;
                area[..produced].iter().for_each(|&token| digest.fold(token.into()));
            }
        }
        Ok(digest.0)
    }
}

/// The words of the token area of `id` on `device`, padding included; none for a PREFILL.
pub(super) fn read_tokens(
    plan: &ReplayPlan,
    device: &dyn Device,
    id: u32,
    out: &mut Vec<u32>,
) -> Result<(), DeviceError> {
    let area = plan.area(id).unwrap_or(0..0);
    out.resize(((area.end - area.start) / 4) as usize, 0);
    device.tokens(area.start, out)
}

/// The log-probabilities from `offset` on; what kept them from being read.
pub(super) fn read_logps(region: Option<&TokenRegion>, offset: u64, out: &mut [u32]) -> Result<(), String> {
    let region = region.ok_or("the device has no log-probabilities")?;
    region.read(offset, out).map_err(|error| error.to_string())
}

/// GROUP_DONE depends on timing, and is judged by itself (R17).
pub(super) fn without_group_done(completion: &HwCompletion) -> HwCompletion {
    HwCompletion { flags: completion.flags & !CompletionFlags::GROUP_DONE.bits(), ..*completion }
}

/// A completion with zeroes in the fields that depend on timing.
#[inline]
pub(super) fn compared(completion: &HwCompletion) -> [u64; 4] {
    const MASK: [u64; 4] = {
        let mut words = [0u64; 4];
        let mut field = 0;
        while field < HwCompletion::COMPARED.len() {
            let mut byte = 0;
            while byte < HwCompletion::COMPARED[field].size {
                let at = HwCompletion::COMPARED[field].offset + byte;
                words[at / 8] |= 0xFF << (8 * (at % 8));
                byte += 1;
            }
            field += 1;
        }
        words
    };
    let words: [u64; 4] = cast(without_group_done(completion));
    std::array::from_fn(|k| words[k] & MASK[k])
}

/// Folds 64-bit words; each step is a bijection of the state, so two inputs that differ in one word never collide.
struct Digest(u64);

impl Digest {
    const fn new() -> Self {
        Digest(0)
    }

    #[inline]
    fn fold(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
