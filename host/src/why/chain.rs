//! Who waits for whom among the descriptors of a queue pair, by the contract's rules.

use std::fmt;

use doorbell_contract::{DescFlags, HwDesc, MEMBER_NONE, MEMBERS_MAX, Opcode};

/// A descriptor without a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// Its running index in the submission queue.
    pub index: u32,
    /// What its slot holds.
    pub desc: HwDesc,
    /// What it waits for.
    pub cause: Cause,
}

/// What a descriptor waits for. Indices are running indices of the submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The device has not read its slot.
    Unread,
    /// An earlier descriptor of its rollout (R5).
    Order {
        /// The last of them.
        after: u32,
    },
    /// A fence before it (R7).
    Fence {
        /// The last one.
        at: u32,
    },
    /// It is a fence itself, and waits for everything before it (R7).
    Earlier {
        /// The last descriptor before it.
        last: u32,
    },
    /// The PREFILL of its group (R17).
    Prefill {
        /// The PREFILL.
        at: u32,
    },
    /// It is a STOP of a whole group, and waits for everything of it (R8).
    Group {
        /// The last descriptor of the group before it.
        last: u32,
    },
    /// Its turn in the queue pair: a descriptor before it has not begun (R16).
    Turn {
        /// That one.
        behind: u32,
    },
    /// Nothing in its queue pair: a worker has it, or is to take it.
    Ready,
    /// A worker: nothing in its queue pair holds it, and as many older ones are ready as workers are busy (R16).
    Worker,
}

impl Cause {
    /// The older descriptor that is waited for, if it is one.
    pub fn older(self) -> Option<u32> {
        match self {
            Self::Order { after: index }
            | Self::Fence { at: index }
            | Self::Earlier { last: index }
            | Self::Prefill { at: index }
            | Self::Group { last: index }
            | Self::Turn { behind: index } => Some(index),
            Self::Unread | Self::Ready | Self::Worker => None,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opcode = Opcode::try_from(self.desc.opcode).map_or("a descriptor", Opcode::name);
        write!(f, "slot {:#x} ({opcode} of rollout {}) ", self.index, self.desc.rollout_id)?;
        match self.cause {
            Cause::Unread => f.write_str("is published and not read"),
            Cause::Order { after } => write!(f, "waits for slot {after:#x} of its rollout (R5)"),
            Cause::Fence { at } => write!(f, "waits for the fence in slot {at:#x} (R7)"),
            Cause::Earlier { last } => {
                write!(f, "is a fence and waits for all before it, the last in slot {last:#x} (R7)")
            }
            Cause::Prefill { at } => write!(f, "waits for the PREFILL of its group in slot {at:#x} (R17)"),
            Cause::Group { last } => {
                write!(f, "is a STOP of a group and waits for all of it, the last in slot {last:#x} (R8)")
            }
            Cause::Turn { behind } => write!(f, "waits for its turn behind slot {behind:#x} (R16)"),
            Cause::Ready => f.write_str("was read, and nothing of its queue pair holds it"),
            Cause::Worker => f.write_str("waits for a worker (R16)"),
        }
    }
}

/// What each of `slots` waits for, oldest first: descriptors without a completion by their running indices. The device has read the slots
/// below `sq_head`, and `busy` of its workers run something.
pub(super) fn causes(slots: &[(u32, HwDesc)], sq_head: u32, busy: u32) -> Vec<Waiting> {
    let mut ready = 0;
    let mut cause = |place: usize, held: Option<u32>| {
        let (index, desc) = &slots[place];
        let earlier = &slots[..place];
        if sq_head.wrapping_sub(*index) as i32 <= 0 {
            return Cause::Unread;
        }
        let last = |holds: &dyn Fn(&HwDesc) -> bool| {
            earlier.iter().rev().find(|(_, earlier)| holds(earlier)).map(|&(index, _)| index)
        };
        if let Some(after) = last(&|earlier| earlier.rollout_id == desc.rollout_id) {
            return Cause::Order { after };
        }
        if let Some(at) = last(&|earlier| has(earlier, DescFlags::FENCE)) {
            return Cause::Fence { at };
        }
        if let (true, Some(&(last, _))) = (has(desc, DescFlags::FENCE), earlier.last()) {
            return Cause::Earlier { last };
        }
        let opens = |earlier: &HwDesc| {
            earlier.opcode == Opcode::Prefill as u8
                && (1..=MEMBERS_MAX).contains(&earlier.max_tokens)
                && earlier.prefix_id == desc.prefix_id
        };
        let opened = earlier.iter().rfind(|(_, earlier)| opens(earlier));
        // Where the PREFILL has completed, how many members it gave is not known any more.
        let members = opened.map_or(MEMBERS_MAX, |(_, prefill)| prefill.max_tokens);
        let belongs = |desc: &HwDesc| stops_group(desc) || is_member(desc, members);
        if let (true, Some(&(at, _))) = (belongs(desc), opened) {
            return Cause::Prefill { at };
        }
        let of_group = |earlier: &HwDesc| belongs(earlier) && earlier.prefix_id == desc.prefix_id;
        if let (true, Some(last)) = (stops_group(desc), last(&of_group)) {
            return Cause::Group { last };
        }
        if let Some(behind) = held {
            return Cause::Turn { behind };
        }
        ready += 1;
        // Which of them have a worker is nowhere told: a device hands them out in their order.
        if busy == 0 || ready <= busy { Cause::Ready } else { Cause::Worker }
    };
    let mut found = Vec::with_capacity(slots.len());
    let mut held = None;
    for (place, &(index, desc)) in slots.iter().enumerate() {
        let cause = cause(place, held);
        if cause.older().is_some() && held.is_none() {
            held = Some(index);
        }
        found.push(Waiting { index, desc, cause });
    }
    found
}

/// Whether it names one of the members of its group (R17).
fn is_member(desc: &HwDesc, members: u32) -> bool {
    let opcodes = [Opcode::Decode as u8, Opcode::Stop as u8];
    has(desc, DescFlags::COW_PREFIX) && opcodes.contains(&desc.opcode) && u32::from(desc.member) < members
}

/// Whether it is a STOP of a whole group (R8).
fn stops_group(desc: &HwDesc) -> bool {
    has(desc, DescFlags::COW_PREFIX) && desc.opcode == Opcode::Stop as u8 && desc.member == MEMBER_NONE
}

fn has(desc: &HwDesc, flag: DescFlags) -> bool {
    DescFlags::from_bits_retain(desc.flags).contains(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R5, R7, R16, R17 across the wrap of the indices.
    #[test]
    fn r13_each_waits_for_what_the_rules_name() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let first = u32::MAX - 2;
        let at = |place: u32| first.wrapping_add(place);
        let descs = [
            (of(2), Cause::Ready),
            (HwDesc { rollout_id: 90, ..HwDesc::open_group(7, 4, 2) }, Cause::Ready),
            (of(3), Cause::Worker),
            (of(1).with_flags(DescFlags::COW_PREFIX).with_member(7, 0), Cause::Prefill { at: at(1) }),
            (of(4), Cause::Turn { behind: at(3) }),
            (of(2), Cause::Order { after: at(0) }),
            (of(5).with_flags(DescFlags::FENCE), Cause::Earlier { last: at(5) }),
            (of(6), Cause::Fence { at: at(6) }),
            (of(5), Cause::Order { after: at(6) }),
            (of(8), Cause::Unread),
        ];
        let slots: Vec<(u32, HwDesc)> = (0..).map(at).zip(descs.map(|(desc, _)| desc)).collect();
        let found: Vec<Cause> = causes(&slots, at(9), 2).iter().map(|waiting| waiting.cause).collect();
        assert_eq!(found, descs.map(|(_, cause)| cause));
    }

    /// R8, R17: a STOP of a whole group, and what continues a prefix without being in a group.
    #[test]
    fn r13_a_stop_of_a_group_waits_for_all_of_it() {
        let of = |rollout| HwDesc::decode(rollout, 4, 4);
        let descs = [
            (HwDesc { rollout_id: 90, ..HwDesc::open_group(8, 4, 2) }, Cause::Ready),
            (of(1).with_member(7, 0), Cause::Ready),
            (of(2).with_member(7, 63), Cause::Ready),
            // No member of the group that the PREFILL opens.
            (of(3).with_member(8, MEMBER_NONE), Cause::Ready),
            (of(4).with_member(8, 2), Cause::Ready),
            (HwDesc { rollout_id: 91, ..HwDesc::stop_group(7) }, Cause::Group { last: 2 }),
            (of(5).with_member(8, 1), Cause::Prefill { at: 0 }),
            (of(6), Cause::Turn { behind: 5 }),
        ];
        let slots: Vec<(u32, HwDesc)> = (0..).zip(descs.map(|(desc, _)| desc)).collect();
        let found: Vec<Cause> = causes(&slots, 8, 0).iter().map(|waiting| waiting.cause).collect();
        assert_eq!(found, descs.map(|(_, cause)| cause));
    }
}
