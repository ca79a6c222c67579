//! Descriptors: from waiting rollouts to the device.

use doorbell_contract::{CHECKPOINT_NEVER, DescFlags, HwDesc};

use super::options::{Options, Scoring};
use super::rollout::{Group, Life, Prefill};
use super::{Pipeline, RuntimeError};
use crate::events::EventKind;
use crate::policy::Candidate;
use crate::rollout::{RolloutId, State};

/// What `user_data` says of a descriptor: in its highest two bits the kind, below them a rollout or a group. Generations
/// of rollouts end below these bits. None is 0, which is what a completion echoes whose descriptor could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Decode(RolloutId),
    Stop(RolloutId),
    Prefill(u32),
}

const TAG_SHIFT: u32 = 62;
const DECODE: u64 = 1;
const STOP: u64 = 2;
const PREFILL: u64 = 3;

impl Tag {
    #[inline]
    pub fn to_bits(self) -> u64 {
        match self {
            Tag::Decode(id) => DECODE << TAG_SHIFT | id.to_bits(),
            Tag::Stop(id) => STOP << TAG_SHIFT | id.to_bits(),
            Tag::Prefill(group) => PREFILL << TAG_SHIFT | u64::from(group),
        }
    }

    /// `None` if no descriptor of a pipeline carries that.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Tag> {
        let rest = bits & ((1 << TAG_SHIFT) - 1);
        match bits >> TAG_SHIFT {
            DECODE => Some(Tag::Decode(RolloutId::from_bits(rest))),
            STOP => Some(Tag::Stop(RolloutId::from_bits(rest))),
            PREFILL => u32::try_from(rest).ok().map(Tag::Prefill),
            _ => None,
        }
    }
}

impl Pipeline {
    /// Submits a window of descriptors with one doorbell.
    pub(super) fn submit(&mut self) -> Result<bool, RuntimeError> {
        self.take_stops();
        let mut moved = self.take_prefills()?;
        while let Some(id) = self.queues.decode.pop() {
            moved = true;
            let candidate = self.candidate(id)?;
            self.policy.push(candidate);
        }
        moved |= self.take_decodes()?;
        if self.batch.is_empty() {
            return Ok(moved);
        }
        let taken = self.device.submit(&self.batch)?;
        if taken == 0 {
            return Ok(moved);
        }
        self.journal.read_clock();
        if self.journal.records() {
            for desc in &self.batch[..taken] {
                if let Some(Tag::Decode(id)) = Tag::from_bits(desc.user_data)
                    && let Ok(life) = self.lives.get(id)
                {
                    self.journal.record(EventKind::DescCommitted, id, life.descriptor, 0);
                }
            }
        }
        self.batch.drain(..taken);
        Ok(true)
    }

    /// Descriptors that the batch may grow to.
    #[inline]
    pub(super) fn batch_limit(&self) -> usize {
        self.batch.len() + self.room()
    }

    fn take_stops(&mut self) {
        while self.batch.len() < self.batch_limit() {
            let Some(id) = self.stops.pop_front() else { break };
            // A rollout whose STOP is due does not end before it.
            if let Ok(life) = self.lives.get(id) {
                let device_rollout = life.device_rollout;
                let index = self.post(HwDesc::stop(device_rollout), Tag::Stop(id), 0);
                self.lives.slot_mut(id.slot()).stop_index = Some(index);
            }
        }
    }

    fn take_decodes(&mut self) -> Result<bool, RuntimeError> {
        let window = self.occupancy().suggested_window(self.options.window);
        let mut made = 0;
        let mut moved = false;
        while made < window {
            let Some(candidate) = self.policy.pop() else { break };
            moved = true;
            made += u32::from(self.decode(candidate.id)?) as usize;
        }
        if made > 0 {
            let counters = &self.metrics.counters.hot;
            counters.decode_batches.add(1);
            counters.decode_rollouts_scheduled.add(made as u64);
            counters.decode_batch_peak.raise(made as u64);
            self.journal.record(EventKind::DecodeBatch, RolloutId::from_bits(0), 0, made as u32);
        }
        Ok(moved)
    }

    /// Makes the next DECODE of a rollout, unless it is to end.
    fn decode(&mut self, id: RolloutId) -> Result<bool, RuntimeError> {
        if self.lives.get(id)?.aborted {
            self.end_waiting(id)?;
            return Ok(false);
        }
        if self.lives.state(id)? == State::PrefillReady {
            self.advance(id, State::PrefillReady, State::Decoding)?;
        }
        self.descriptors = self.descriptors.wrapping_add(1);
        let number = self.descriptors;
        let life = self.lives.get_mut(id)?;
        let group = &self.groups[life.group as usize];
        let remaining = group.output_tokens - life.produced;
        let stops = self.options.scoring == Scoring::Host && self.options.checkpoint > 0;
        life.asked = if stops { remaining.min(self.options.checkpoint) } else { remaining };
        life.descriptor = number;
        life.decoding = true;
        // The device may write these blocks from now on.
        self.kv.append(&mut life.branch, life.asked)?;
        let desc = describe(&self.options, group, life, u64::from(id.slot()) * self.area_bytes);
        let abort = is_nth(life.device_rollout, self.options.abort_every);
        let index = self.post(desc, Tag::Decode(id), number);
        self.lives.slot_mut(id.slot()).index = index;
        if abort {
            self.abort(id)?;
        }
        Ok(true)
    }

    pub(super) fn post_prefill(&mut self, index: u32) {
        let group = &mut self.groups[index as usize];
        group.prefill = Prefill::Running;
        let prefill = HwDesc::prefill(group.wire_id, group.prompt_tokens);
        let desc = HwDesc { rollout_id: group.wire_id, ..prefill };
        self.groups[index as usize].prefill_index = self.post(desc, Tag::Prefill(index), 0);
    }

    /// Puts a descriptor into the batch; returns its running index in the submission queue, if there is one queue.
    #[inline]
    fn post(&mut self, desc: HwDesc, tag: Tag, number: u32) -> u32 {
        self.batch.push(desc.with_user_data(tag.to_bits()));
        self.metrics.counters.hot.descriptors_posted.add(1);
        self.journal.posted(tag, number)
    }

    fn candidate(&self, id: RolloutId) -> Result<Candidate, RuntimeError> {
        let life = self.lives.get(id)?;
        let group = &self.groups[life.group as usize];
        Ok(Candidate {
            id,
            group: life.group,
            remaining: group.output_tokens - life.produced,
            expected: group.expected(life.produced),
        })
    }
}

/// Whether `id` is one of every `n`; with 0 none is.
#[inline]
fn is_nth(id: u32, n: u32) -> bool {
    n > 0 && id % n == n - 1
}

/// The DECODE that goes on where `life` is; its tokens lie in the area at `area` bytes.
#[inline]
fn describe(options: &Options, group: &Group, life: &Life, area: u64) -> HwDesc {
    let resident = options.scoring == Scoring::Device;
    let mut flags = DescFlags::empty();
    flags.set(DescFlags::EOS_STOPS, options.eos_stops);
    flags.set(DescFlags::RESIDENT, resident);
    flags.set(DescFlags::COW_PREFIX, options.has_prefills());
    let remaining = group.output_tokens - life.produced;
    let desc = HwDesc::decode(life.device_rollout, group.prompt_tokens + life.produced, remaining)
        .with_flags(flags)
        .with_delta_offset(area + 4 * u64::from(life.produced))
        .with_checkpoint(if options.checkpoint == 0 { CHECKPOINT_NEVER } else { options.checkpoint })
        .with_seed(options.seed);
    if options.has_prefills() { desc.with_prefix(group.wire_id) } else { desc }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::GENERATIONS;

    #[test]
    fn tags_do_not_meet_ids() {
        let last = RolloutId::new(u32::MAX, GENERATIONS - 1);
        for tag in [Tag::Decode(last), Tag::Stop(last), Tag::Prefill(u32::MAX), Tag::Prefill(0)] {
            assert_eq!(Tag::from_bits(tag.to_bits()), Some(tag));
        }
        assert_eq!(Tag::from_bits(u64::MAX), None);
        assert_eq!(Tag::from_bits(PREFILL << TAG_SHIFT | 1 << 32), None);
        // What a completion without its descriptor carries names nobody, the first rollout of slot 0 least of all.
        assert_eq!(Tag::from_bits(0), None);
        assert_ne!(Tag::Decode(RolloutId::new(0, 0)).to_bits(), 0);
    }
}
