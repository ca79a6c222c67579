//! The groups of a queue pair (R17), and what they belong to (R21).
//!
//! The model completes the descriptors of a queue pair one after the other: so nothing of a group is in flight when it
//! closes, and an entry is free as soon as its group is closed.

use doorbell_contract::{DescFlags, ErrorCode, HwDesc, MEMBER_NONE, Opcode};

/// Entries of a queue pair: CAP_GROUPS.
pub(super) const GROUPS: u32 = 64;

/// What of a group a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Member(u16),
    All,
}

#[derive(Debug)]
struct Group {
    prefix_id: u32,
    members: u32,
    /// A bit for each that has ended.
    ended: u64,
    /// The policy slot of its version.
    slot: usize,
    stale: bool,
}

/// The open groups of a queue pair.
#[derive(Debug)]
pub(super) struct Groups(Vec<Group>);

impl Default for Groups {
    /// None, with room for all that there can be: whoever gives the model its time may count what he allocates.
    fn default() -> Self {
        Self(Vec::with_capacity(GROUPS as usize))
    }
}

impl Groups {
    /// R12: nothing outlives a disable.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Opens the group of `desc`, a PREFILL whose version is in `slot`; without members none.
    pub fn open(&mut self, desc: &HwDesc, slot: usize) -> Result<(), ErrorCode> {
        let (prefix_id, members) = (desc.prefix_id, desc.max_tokens);
        if members == 0 {
            return Ok(());
        }
        if self.find(prefix_id).is_some() {
            return Err(ErrorCode::PrefixBusy);
        }
        if self.0.len() == GROUPS as usize {
            return Err(ErrorCode::GroupFull);
        }
        self.0.push(Group { prefix_id, members, ended: 0, slot, stale: false });
        Ok(())
    }

    fn find(&self, prefix_id: u32) -> Option<usize> {
        self.0.iter().position(|group| group.prefix_id == prefix_id)
    }

    /// What of an open group `desc`, a DECODE or STOP, belongs to.
    #[inline]
    pub fn part(&self, desc: &HwDesc, opcode: Opcode) -> Option<Part> {
        if desc.flags & DescFlags::COW_PREFIX.bits() == 0 {
            return None;
        }
        let group = &self.0[self.find(desc.prefix_id)?];
        match (opcode, desc.member) {
            (Opcode::Stop, MEMBER_NONE) => Some(Part::All),
            (Opcode::Decode | Opcode::Stop, member) if u32::from(member) < group.members => {
                Some(Part::Member(member))
            }
            _ => None,
        }
    }

    /// Whether the group of this prefix belongs to another version than the one in `slot`, or to none that is resident (R21).
    pub fn is_stale(&self, prefix_id: u32, slot: usize) -> bool {
        self.find(prefix_id).is_some_and(|at| self.0[at].stale || self.0[at].slot != slot)
    }

    /// Ends a part of the group of this prefix; whether that was the last.
    pub fn end(&mut self, prefix_id: u32, part: Part) -> bool {
        let Some(at) = self.find(prefix_id) else { return false };
        let group = &mut self.0[at];
        let all = u64::MAX >> (64 - group.members);
        group.ended |= match part {
            Part::Member(member) => 1 << member,
            Part::All => all,
        };
        let closes = group.ended == all;
        if closes {
            self.0.swap_remove(at);
        }
        closes
    }

    /// The version in slot `from` was retired with KEEP: its groups pass to the new one in `to`.
    pub fn pass(&mut self, from: usize, to: usize) {
        self.0
            .iter_mut()
            .filter(|group| group.slot == from && !group.stale)
            .for_each(|group| group.slot = to);
    }

    /// The version in `slot` is resident no more.
    pub fn spoil(&mut self, slot: usize) {
        self.0.iter_mut().filter(|group| group.slot == slot).for_each(|group| group.stale = true);
    }
}
