//! Descriptors: from waiting rollouts to the device.

use doorbell_contract::{CHECKPOINT_NEVER, DescFlags, HwDesc};

use super::options::{Options, Scoring};
use super::rollout::{Group, Life, Prefill};
use super::{Pipeline, Request, RuntimeError};
use crate::events::{EventKind, Ticks};
use crate::policy::Candidate;
use crate::reward::{Moment, NAMES};
use crate::rollout::{RolloutId, State};

/// What `user_data` says of a descriptor: in its highest two bits the kind, below them a rollout, or something of a group or of
/// all. Generations of rollouts end below these bits. None is 0, which is what a completion echoes whose descriptor could not be
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Decode(RolloutId),
    Stop(RolloutId),
    Prefill(u32),
    MemberStop {
        group: u32,
        member: u16,
    },
    GroupStop(u32),
    /// To which of the functions.
    Policy(u32),
    /// By its name at the reward stage.
    Reward(u64),
}

const TAG_SHIFT: u32 = 62;
const DECODE: u64 = 1;
const STOP: u64 = 2;
const OTHER: u64 = 3;

/// Of the others, above the number of a group or a function and a member's.
const OTHER_SHIFT: u32 = 48;
const PREFILL: u64 = 0;
const MEMBER_STOP: u64 = 1;
const GROUP_STOP: u64 = 2;
const POLICY: u64 = 3;
/// Above all of these: the rest is the name of a REWARD.
const REWARD: u64 = 1 << 61;
const _: () = assert!(NAMES <= REWARD);

impl Tag {
    #[inline]
    pub fn to_bits(self) -> u64 {
        let other = |what: u64, member: u16, number: u32| {
            OTHER << TAG_SHIFT | what << OTHER_SHIFT | u64::from(member) << 32 | u64::from(number)
        };
        match self {
            Tag::Decode(id) => DECODE << TAG_SHIFT | id.to_bits(),
            Tag::Stop(id) => STOP << TAG_SHIFT | id.to_bits(),
            Tag::Prefill(group) => other(PREFILL, 0, group),
            Tag::MemberStop { group, member } => other(MEMBER_STOP, member, group),
            Tag::GroupStop(group) => other(GROUP_STOP, 0, group),
            Tag::Policy(function) => other(POLICY, 0, function),
            Tag::Reward(name) => OTHER << TAG_SHIFT | REWARD | name,
        }
    }

    /// `None` if no descriptor of a pipeline carries that.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Tag> {
        let rest = bits & ((1 << TAG_SHIFT) - 1);
        match bits >> TAG_SHIFT {
            DECODE => Some(Tag::Decode(RolloutId::from_bits(rest))),
            STOP => Some(Tag::Stop(RolloutId::from_bits(rest))),
            OTHER if rest & REWARD != 0 => Some(Tag::Reward(rest ^ REWARD)).filter(|_| rest ^ REWARD < NAMES),
            OTHER => {
                let (number, member) = (rest as u32, (rest >> 32) as u16);
                match (rest >> OTHER_SHIFT, member) {
                    (PREFILL, 0) => Some(Tag::Prefill(number)),
                    (MEMBER_STOP, member) => Some(Tag::MemberStop { group: number, member }),
                    (GROUP_STOP, 0) => Some(Tag::GroupStop(number)),
                    (POLICY, 0) => Some(Tag::Policy(number)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

impl Pipeline {
    /// Submits a window of descriptors with one doorbell.
    pub(super) fn submit(&mut self) -> Result<bool, RuntimeError> {
        // What was made before a POLICY goes before it.
        let mut moved = if self.batch.is_empty() { self.send_policies()? } else { false };
        if self.batch.is_empty() || !self.versions.is_due() {
            moved |= self.fill_batch()?;
        }
        if self.batch.is_empty() {
            return Ok(moved);
        }
        let ringing = if self.journal.wants_lives() { self.read_clock() } else { Ticks::default() };
        let taken = self.device.submit(&self.batch)?;
        if taken == 0 {
            return Ok(moved);
        }
        self.read_clock();
        if self.journal.records() {
            for desc in &self.batch[..taken] {
                let decode = match Tag::from_bits(desc.user_data) {
                    Some(Tag::Decode(id)) => self.lives.get(id).ok().map(|life| (id, life.descriptor)),
                    _ => None,
                };
                // Only now: where a STOP goes that names no prefix depends on what is in flight when it is submitted.
                let queue = if self.journal.tells_queues() { self.device.queue_of(desc) } else { 0 };
                self.journal.submitted(decode, queue);
                if let Some((id, descriptor)) = decode {
                    self.journal.committed(id, descriptor, ringing);
                }
            }
        }
        self.batch.drain(..taken);
        Ok(true)
    }

    /// Makes descriptors: STOPs first, then REWARDs, then PREFILLs, then DECODEs as the policy orders them, and behind each those
    /// that follow it.
    fn fill_batch(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = self.take_stops()?;
        moved |= self.take_rewards();
        if self.gate.is_closed() {
            return Ok(self.wait_at_gate()? || moved);
        }
        moved |= self.take_prefills()?;
        moved |= self.take_returning()?;
        while let Some(id) = self.queues.decode.pop() {
            moved = true;
            let candidate = self.candidate(id)?;
            self.policy.push(candidate);
        }
        moved |= self.take_decodes()?;
        moved |= self.take_rewards();
        Ok(moved)
    }

    /// Takes what the reward stage wants the device to score.
    fn take_rewards(&mut self) -> bool {
        let mut moved = false;
        while self.batch.len() < self.batch_limit() {
            let Some(desc) = self.rewards.descriptor() else { break };
            moved = true;
            self.rewards_in_flight += 1;
            self.post(desc, Tag::Reward(desc.user_data), 0);
        }
        moved
    }

    /// Descriptors that the batch may grow to.
    #[inline]
    pub(super) fn batch_limit(&self) -> usize {
        self.batch.len() + self.room()
    }

    fn take_stops(&mut self) -> Result<bool, RuntimeError> {
        let mut moved = false;
        while self.batch.len() < self.batch_limit() {
            let Some(stop) = self.stops.pop_front() else { break };
            moved = true;
            if let Some((desc, tag)) = self.describe_stop(stop)? {
                self.post(desc, tag, 0);
            }
        }
        Ok(moved)
    }

    fn take_decodes(&mut self) -> Result<bool, RuntimeError> {
        if self.versions.holds_decodes() {
            return Ok(false);
        }
        let window = self.occupancy().suggested_window(self.options.window, self.idle_turns > 0);
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
        let life = self.lives.get(id)?;
        let index = life.group;
        if life.aborted || self.groups[index as usize].prefill == Prefill::Failed {
            let aborted = life.aborted;
            if aborted {
                self.end_waiting(id)?
            } else {
                self.fail_unstarted(id)?
            }
            return Ok(false);
        }
        let version = self.bind(index);
        if let Some(staleness) = self.stale(id, Some(version))? {
            self.drop_stale(id, staleness)?;
            return Ok(false);
        }
        if self.lives.is_in(id, State::PrefillReady) {
            self.advance(id, State::PrefillReady, State::Decoding)?;
        }
        self.names(version, false);
        self.descriptors = self.descriptors.wrapping_add(1);
        let number = self.descriptors;
        let life = self.lives.get_mut(id)?;
        let group = &mut self.groups[index as usize];
        let remaining = group.output_tokens - life.produced;
        let checkpoint = group.terms.checkpoint;
        let stops = self.options.scoring == Scoring::Stage && checkpoint > 0;
        life.asked = if stops { remaining.min(checkpoint) } else { remaining };
        let ends = life.asked == remaining;
        life.descriptor = number;
        life.decoding = true;
        life.version = version;
        let abort = is_nth(life.device_rollout, self.options.abort_every);
        group.device.flying += u32::from(group.device.takes_part);
        // The device may write these blocks from now on. Of one that was superseded some are there already.
        let grows = (life.produced + life.asked).saturating_sub(life.appended);
        life.appended += grows;
        let copied = self.kv.append(&mut life.branch, grows)?;
        if let Some(copied) = copied
            && self.language.is_some()
        {
            // The device makes the copy with its first step, whenever that is.
            self.kv.hold_source(&mut life.branch, copied)?;
        }
        let area = self.options.answer_offset(id.slot());
        let desc = describe(&self.options, self.decode_flags, group, life, area);
        let desc = self.lay_sequence(id, desc)?;
        self.post(desc, Tag::Decode(id), number);
        if abort {
            self.abort(id)?;
        } else if ends {
            self.post_ahead(id)?;
        }
        Ok(true)
    }

    /// Posts the answer that a DECODE is to end, before it has run, if the reward stage keeps behind it (R5) and it is known how
    /// long it will be. What comes of it counts if the DECODE ends so.
    fn post_ahead(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let Options { scoring, judge_group, .. } = self.options;
        if !self.rewards.follows() || scoring != Scoring::Stage || judge_group {
            return Ok(());
        }
        let group = &self.groups[self.lives.get(id)?.group as usize];
        if group.terms.eos_stops {
            return Ok(());
        }
        let answer_tokens = group.output_tokens;
        let request = self.request(id)?;
        let request = Request { answer_tokens, moment: Moment::End { eos: false }, ..request };
        match self.rewards.post(request) {
            Ok(()) => self.lives.get_mut(id)?.posted_ahead = true,
            // It is posted when it is there.
            Err(_) => {
                self.tickets.cancel(id);
            }
        }
        Ok(())
    }

    /// Makes the PREFILL of a group, or the next part of it; where the device has groups, it opens one, and DECODEs may follow at once.
    pub(super) fn post_prefill(&mut self, index: u32) -> Result<(), RuntimeError> {
        let version = self.bind(index);
        self.names(version, true);
        let part = self.language_prefill(index, version)?;
        let group = &mut self.groups[index as usize];
        group.prefill = Prefill::Running;
        let wire_id = group.wire_id.unwrap_or_default();
        let desc = match part {
            Some(part) => part,
            None if group.device.takes_part => {
                group.device.opened = true;
                group.device.flying += 1;
                HwDesc::open_group(wire_id, group.prompt_tokens, group.terms.members)
            }
            None => HwDesc::prefill(wire_id, group.prompt_tokens),
        };
        let opened = group.device.opened;
        self.post(HwDesc { rollout_id: wire_id, ..desc }.with_version(version), Tag::Prefill(index), 0);
        // The device holds the DECODEs of a group that it has opened.
        if opened && self.language.is_some() { self.wake(index) } else { Ok(()) }
    }

    /// Puts a descriptor into the batch. Inline, it is made there.
    #[inline(always)]
    fn post(&mut self, desc: HwDesc, tag: Tag, number: u32) {
        self.batch.push(desc.with_user_data(tag.to_bits()));
        self.metrics.counters.hot.descriptors_posted.add(1);
        self.journal.posted(tag, number);
    }

    pub(super) fn candidate(&self, id: RolloutId) -> Result<Candidate, RuntimeError> {
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
fn describe(options: &Options, mut flags: DescFlags, group: &Group, life: &Life, area: u64) -> HwDesc {
    let remaining = group.output_tokens - life.produced;
    let checkpoint = group.terms.checkpoint;
    flags.set(DescFlags::EOS_STOPS, group.terms.eos_stops);
    let desc = HwDesc::decode(life.device_rollout, group.prompt_tokens + life.produced, remaining)
        .with_flags(flags)
        .with_delta_offset(area + 4 * u64::from(life.produced))
        .with_checkpoint(if checkpoint == 0 { CHECKPOINT_NEVER } else { checkpoint })
        .with_seed(options.seed)
        .with_version(life.version);
    match group.wire_id {
        Some(prefix) if group.device.takes_part => desc.with_member(prefix, life.member as u16),
        Some(prefix) if options.has_prefills() => desc.with_prefix(prefix),
        _ => desc,
    }
}

/// The flags of every DECODE, apart from EOS_STOPS.
pub(super) fn decode_flags(options: &Options, logprobs: bool) -> DescFlags {
    let mut flags = DescFlags::empty();
    flags.set(DescFlags::RESIDENT, options.scoring == Scoring::Resident);
    flags.set(DescFlags::COW_PREFIX, options.has_prefills());
    flags.set(DescFlags::LOGP, logprobs);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::GENERATIONS;

    #[test]
    fn tags_do_not_meet_ids() {
        let last = RolloutId::new(u32::MAX, GENERATIONS - 1);
        let member = |member| Tag::MemberStop { group: u32::MAX, member };
        for tag in [
            Tag::Decode(last),
            Tag::Stop(last),
            Tag::Prefill(u32::MAX),
            Tag::Prefill(0),
            member(0),
            member(63),
            Tag::GroupStop(u32::MAX),
            Tag::Policy(15),
            Tag::Reward(0),
            Tag::Reward(NAMES - 1),
        ] {
            assert_eq!(Tag::from_bits(tag.to_bits()), Some(tag));
        }
        assert_eq!(Tag::from_bits(u64::MAX), None);
        assert_eq!(Tag::from_bits(OTHER << TAG_SHIFT | REWARD | NAMES), None);
        assert_eq!(Tag::from_bits(OTHER << TAG_SHIFT | 1 << 32), None);
        // What a completion without its descriptor carries names nobody, the first rollout of slot 0 least of all.
        assert_eq!(Tag::from_bits(0), None);
        assert_ne!(Tag::Decode(RolloutId::new(0, 0)).to_bits(), 0);
    }
}
