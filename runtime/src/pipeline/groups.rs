//! Groups of the device (R17): opened by a PREFILL, closed by the completion with which the last member ends.
//!
//! What the device does with a group follows from the completions of its queue pair, which come in one order: so the host knows
//! which of them must carry GROUP_DONE, and takes a group for ended by that flag alone.

use doorbell_contract::{CompletionFlags, ErrorCode, HwCompletion, HwDesc, Status};

use super::aborts::NO_REQUEST;
use super::rollout::OnDevice;
use super::submission::Tag;
use super::{Pipeline, RuntimeError};
use crate::rollout::RolloutId;

/// STOPs of a group that the device may refuse before that is an error.
const REFUSED_STOPS: u32 = 8;

/// A STOP that waits to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Of a rollout that is in no group of the device.
    Rollout(RolloutId),
    /// Of a member of a group, which ends it there.
    Member { group: u32, member: u16 },
    /// Of a whole group.
    Group(u32),
}

impl Pipeline {
    /// The queue pair to which the next group would go, and whether that has an entry for it. The host counts an entry until
    /// the completions of all that belongs to the group were seen, so that no PREFILL is ever refused for want of one.
    pub(super) fn entry_for(&self, wire_id: u32) -> Option<usize> {
        let queue = self.queue_for(wire_id);
        (self.entries[queue] < self.features.groups).then_some(queue)
    }

    /// The queue pair to which all goes that names the group with this first id. No other rollout is asked where it is, whatever is in
    /// flight.
    pub(super) fn queue_for(&self, wire_id: u32) -> usize {
        self.device.queue_of(&HwDesc { rollout_id: wire_id, ..HwDesc::prefill(wire_id, 0) })
    }

    /// A completion of something that belongs to group `index`, and ends these members of it.
    ///
    /// # Errors
    /// `Group` if GROUP_DONE is where it must not be, or is not where it must be (R17).
    #[inline]
    pub(super) fn belongs(
        &mut self,
        index: u32,
        ends: u64,
        completion: &HwCompletion,
    ) -> Result<(), RuntimeError> {
        let done = completion.has(CompletionFlags::GROUP_DONE);
        let group = &mut self.groups[index as usize];
        let device = &mut group.device;
        let all = OnDevice::all(group.terms.members);
        device.ended |= ends;
        let last = device.is_open() && device.ended == all;
        if last != done {
            let what = match (device.opened, device.closed) {
                (true, false) if last => "its last member has ended, and the completion has no GROUP_DONE",
                (true, false) => "GROUP_DONE has come before its last member has ended",
                (true, true) => "GROUP_DONE has come twice",
                _ => "GROUP_DONE has come for a group that was never opened",
            };
            return Err(self.group_error(index, what));
        }
        if last {
            device.closed = true;
            self.metrics.counters.hot.groups_done.add(1);
        }
        self.landed(index)?;
        if last { self.group_may_be_judged(index) } else { Ok(()) }
    }

    /// One thing less that belongs to group `index` is on its way. With the last, its entry is free.
    pub(super) fn landed(&mut self, index: u32) -> Result<(), RuntimeError> {
        let group = &mut self.groups[index as usize];
        group.device.flying -= 1;
        if group.device.flying == 0
            && !group.device.is_open()
            && let Some(queue) = group.device.queue.take()
        {
            self.give_entry_back(queue);
        }
        self.free_group(index)
    }

    pub(super) fn give_entry_back(&mut self, queue: usize) {
        self.entries[queue] -= 1;
        self.open_groups -= 1;
        self.metrics.counters.hot.groups_open.set(self.open_groups.into());
    }

    /// Gives the place of a group back if nothing of it lives, on the host or on the device.
    pub(super) fn free_group(&mut self, index: u32) -> Result<(), RuntimeError> {
        let group = &mut self.groups[index as usize];
        if group.lives() || group.wire_id.is_none() {
            return Ok(());
        }
        group.wire_id = None;
        let called = group.called;
        self.requests_by_group[index as usize] = NO_REQUEST;
        // That of a group whose PREFILL was never made.
        if let Some(queue) = self.groups[index as usize].device.queue.take() {
            self.give_entry_back(queue);
        }
        if called {
            self.call_off(index);
        }
        self.end_prefill(index)?;
        self.free_groups.push(index);
        Ok(())
    }

    #[cold]
    pub(super) fn group_error(&self, index: u32, what: &'static str) -> RuntimeError {
        let group = &self.groups[index as usize];
        RuntimeError::Group {
            device: self.device.name().to_owned(),
            request: group.request,
            prefix: group.wire_id.unwrap_or_default(),
            what,
        }
    }

    /// Ends a member on the device that makes no more DECODEs and has not ended there, by a STOP that names it.
    pub(super) fn stop_member(&mut self, id: RolloutId) -> Result<(), RuntimeError> {
        let life = self.lives.get_mut(id)?;
        let device = &mut self.groups[life.group as usize].device;
        if life.left_group
            || !device.is_open()
            || device.stopping
            || device.ended & 1 << (life.member & 63) != 0
        {
            return Ok(());
        }
        life.left_group = true;
        device.flying += 1;
        self.stops.push_back(Stop::Member { group: life.group, member: life.member as u16 });
        Ok(())
    }

    /// Ends a whole group on the device: members that never came there, too.
    pub(super) fn stop_group(&mut self, index: u32) {
        let device = &mut self.groups[index as usize].device;
        if device.is_open() && !device.stopping {
            device.stopping = true;
            device.flying += 1;
            self.stops.push_back(Stop::Group(index));
        }
    }

    /// The STOP of a member, or of a whole group, and whose it is; `None` if there is nothing left for it to end.
    pub(super) fn describe_stop(&mut self, stop: Stop) -> Result<Option<(HwDesc, Tag)>, RuntimeError> {
        let all = |group: u32| OnDevice::all(self.groups[group as usize].terms.members);
        let (index, ends, tag) = match stop {
            Stop::Rollout(id) => {
                // A rollout whose STOP is due does not end before it.
                let life = self.lives.get(id)?;
                return Ok(Some((HwDesc::stop(life.device_rollout), Tag::Stop(id))));
            }
            Stop::Member { group, member } => (group, 1 << member, Tag::MemberStop { group, member }),
            Stop::Group(group) => (group, all(group), Tag::GroupStop(group)),
        };
        let group = &mut self.groups[index as usize];
        if group.device.closed && group.device.opened || group.device.ended & ends == ends {
            self.landed(index)?;
            return Ok(None);
        }
        match stop {
            Stop::Member { .. } => group.device.member_stops |= ends,
            _ => group.device.group_stop = true,
        }
        let prefix = group.wire_id.unwrap_or_default();
        let desc = match stop {
            Stop::Member { member, .. } => {
                let rollout = self.wire_rollout(prefix, member.into());
                HwDesc::stop(rollout).with_member(prefix, member)
            }
            _ => HwDesc { rollout_id: prefix, ..HwDesc::stop_group(prefix) },
        };
        Ok(Some((desc, tag)))
    }

    /// The STOP of a member or of a group has completed.
    pub(super) fn group_stopped(
        &mut self,
        index: u32,
        stop: Stop,
        completion: &HwCompletion,
    ) -> Result<(), RuntimeError> {
        let Some(group) = self.groups.get_mut(index as usize).filter(|group| group.wire_id.is_some()) else {
            return Err(self.unasked(completion, "no STOP of that group is in flight"));
        };
        let (device, members) = (&mut group.device, group.terms.members);
        let (ends, in_flight) = match stop {
            Stop::Member { member, .. } => {
                // The bit of a member that no group can have is never set.
                let bit = 1u64.checked_shl(member.into()).unwrap_or(0);
                let in_flight = device.member_stops & bit != 0;
                device.member_stops &= !bit;
                (bit, in_flight)
            }
            _ => (OnDevice::all(members), std::mem::take(&mut device.group_stop)),
        };
        if !in_flight {
            return Err(self.unasked(completion, "no STOP of that group or member is in flight"));
        }
        let faulted = completion.error == ErrorCode::DmaFault as u8;
        let read = !completion.has(CompletionFlags::NO_ECHO);
        // What it wrote, nothing, cannot be trusted; it has ended what it ends all the same (R17).
        if completion.status == Status::Stopped as u8 || read && faulted {
            return self.belongs(index, ends, completion);
        }
        // It was not executed: the members are where they were.
        self.first_error.get_or_insert(*completion);
        let device = &mut self.groups[index as usize].device;
        device.refused_stops += 1;
        if device.refused_stops > REFUSED_STOPS {
            return Err(self.group_error(index, "its STOPs are refused"));
        }
        self.stops.push_back(stop);
        Ok(())
    }

    /// `rollout_id` of a member of the group with this first id.
    pub(super) fn wire_rollout(&self, wire_id: u32, member: u32) -> u32 {
        wire_id + u32::from(self.options.has_prefills()) + member
    }
}
