//! The root: what a queue pair waits for in the end, as far as registers show it.

use std::fmt;

use doorbell_contract::{Capability, Control, DeviceFault, Register, State};

use super::Known;
use crate::driver::{Parts, names};
use crate::error::DeviceError;
use crate::platform::Platform;

/// What a queue pair waits for in the end. Indices are running indices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Root {
    /// The queue pair is dead: faults of ERROR, in words.
    Dead(String),
    /// Somebody other than this driver has disabled or reset the queue pair. Its transfers may still drain.
    Inactive,
    /// A party other than this driver has set CONTROL.DRAIN.
    Drains,
    /// A configuration register of the queue pair does not hold what the driver wrote.
    Setting {
        /// The register.
        register: Register,
        /// What the driver wrote.
        wrote: u32,
        /// What the device holds.
        has: u32,
    },
    /// The device missed a write of DOORBELL, or holds another value.
    LostDoorbell {
        /// What the driver wrote.
        wrote: u32,
        /// What the device has.
        has: u32,
    },
    /// The device does not hold what the driver wrote to CQ_HEAD. Either its completion queue is full, or it counts slots as released that
    /// are not.
    LostRelease {
        /// What the driver wrote.
        wrote: u32,
        /// What the device has.
        has: u32,
    },
    /// The completion queue is full, and the host takes nothing.
    FullQueue {
        /// Completions in it.
        completions: u32,
    },
    /// A completion is there, and the message of the interrupt is held: by a mask, as messages are switched off, or by the message before.
    Masked,
    /// The next completion is in memory, and the device's ARM differs from what the driver wrote.
    LostArm {
        /// What the driver wrote.
        wrote: u32,
        /// What the device holds.
        has: u32,
    },
    /// The next completion is in memory, the interrupt is not armed, and its message has not arrived.
    LostMessage {
        /// Faults of ERROR, in words.
        faults: String,
    },
    /// A completion is there, and none at or above ARM asks for the interrupt.
    Unasked {
        /// What ARM was written with.
        arm: u32,
    },
    /// Everything that was submitted has completed, and the host has not taken it.
    Untaken {
        /// The next completion that it would take.
        from: u32,
    },
    /// The device counts completions as written that memory does not show.
    Unseen {
        /// The first of them.
        from: u32,
        /// The index behind the last.
        to: u32,
        /// Faults of ERROR, in words.
        faults: String,
    },
    /// A completion is in its slot, but its phase is not right in both halves.
    Phase {
        /// Its index.
        at: u32,
    },
    /// A worker waits for the write port.
    WritePort,
    /// A worker is in wait states.
    WaitStates,
    /// A worker runs and gives no token.
    Running,
    /// Slots that were published and not read, with nothing before them that is not completed.
    Unread {
        /// The first of them.
        from: u32,
        /// The index behind the last.
        to: u32,
    },
    /// Descriptors that were read, with no worker that runs them. The oldest does not wait for another descriptor.
    Held {
        /// How many.
        descriptors: u64,
    },
    /// Descriptors that were read, on a device that does not show whether a worker runs them.
    Unshown {
        /// How many.
        descriptors: u64,
    },
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead(faults) => write!(f, "the queue pair is dead, ERROR {faults} (R24)"),
            Self::Inactive => {
                write!(
                    f,
                    "the queue pair is disabled: something other than this driver disabled or reset it (R12)"
                )
            }
            Self::Drains => {
                write!(f, "the queue pair drains: something other than this driver set CONTROL.DRAIN (R12)")
            }
            &Self::Setting { register, wrote, has } => write!(
                f,
                "the device's {register} is {has:#x}, and the driver wrote {wrote:#x} ({})",
                rule_of(register)
            ),
            Self::LostDoorbell { wrote, has } if is_ahead(*has, *wrote) => write!(
                f,
                "the device's DOORBELL is {has:#x}, and the driver wrote {wrote:#x}: it reads slots that were not published (R1)"
            ),
            Self::LostDoorbell { wrote, has } => write!(
                f,
                "the device knows of no slot from {has:#x} on: its DOORBELL is {has:#x}, and the driver wrote {wrote:#x} (R1)"
            ),
            Self::LostRelease { wrote, has } if is_ahead(*has, *wrote) => write!(
                f,
                "the device's CQ_HEAD is {has:#x}, and the driver wrote {wrote:#x}: it writes completions over those that the host \
                 has not taken (R4)"
            ),
            Self::LostRelease { wrote, has } => write!(
                f,
                "the completion queue is full: the device's CQ_HEAD is {has:#x}, and the driver wrote {wrote:#x} (R4)"
            ),
            Self::FullQueue { completions } => {
                write!(
                    f,
                    "the completion queue is full: the host has not taken {completions} completions (R4)"
                )
            }
            Self::Masked => write!(
                f,
                "a completion is there, and the message of its interrupt is held: its vector is masked, messages are \
                 switched off, or the message before is not answered (R14)"
            ),
            Self::LostArm { wrote, has } => write!(
                f,
                "a completion is there, and no message announces it: the device's ARM is {has:#x}, and the driver wrote {wrote:#x} \
                 (R14)"
            ),
            Self::LostMessage { faults } => write!(
                f,
                "a completion is there, the interrupt is not armed, and its message did not come to memory, ERROR {faults}: the \
                 message or a write of ARM was lost, or MESSAGE_ADDRESS is not the driver's (R14)"
            ),
            Self::Unasked { arm } => write!(
                f,
                "a completion is there, and none at or above ARM ({arm:#x}) asks for the interrupt: submit with INTERRUPT, \
                 or set COALESCE_COUNT or COALESCE_TIME (R14)"
            ),
            Self::Untaken { from } => {
                write!(f, "completion {from:#x} is there, and the host has not taken it (R4)")
            }
            Self::Unseen { from, to, faults } => write!(
                f,
                "the device has written completions {from:#x} to {to:#x}, and memory does not show the first, ERROR {faults}: its \
                 write was lost or went elsewhere (R3)"
            ),
            Self::Phase { at } => write!(
                f,
                "completion {at:#x} is in its slot, and does not carry the phase of its pass in both halves (R4)"
            ),
            Self::WaitStates => f.write_str(
                "a worker is in wait states, as WAIT_STATES says: raise the patience above them (R15)",
            ),
            Self::WritePort => write!(
                f,
                "a worker waits for the write port: the bus has not taken or answered a write (R15)"
            ),
            Self::Running => write!(
                f,
                "a worker is busy and gives no token: its engine, or a read of it, does not answer (R15)"
            ),
            Self::Unread { from, to } => write!(
                f,
                "the device has not read slots {from:#x} to {to:#x}, though all before them is completed and completions have room: a \
                 read of the ring is not answered, or the device has stopped (R3)"
            ),
            Self::Held { descriptors } => write!(
                f,
                "no worker is busy, {descriptors} descriptors were read and are not completed, and the oldest waits for no other: the bus \
                 has not answered a write of its tokens or of its completion, or a read of what a REWARD or POLICY names (R15)"
            ),
            Self::Unshown { descriptors } => write!(
                f,
                "the device has read {descriptors} descriptors and completed none of them, and the oldest waits for no other: a worker \
                 or the bus does not answer (R15). What workers do is not shown to its host"
            ),
        }
    }
}

/// Whether running index `a` is larger than `b`, modulo 2^32.
fn is_ahead(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// The rule that a register of [`Parts::settings`] serves.
fn rule_of(register: Register) -> &'static str {
    use Register as R;
    match register {
        R::SqStart | R::CqStart => "R13",
        R::CqSize | R::CqBaseLo | R::CqBaseHi => "R4",
        R::CoalesceCount | R::CoalesceTime => "R14",
        _ => "R1",
    }
}

/// What the registers of a queue pair show.
pub(crate) struct Seen {
    control: Control,
    state: State,
    fault: DeviceFault,
    /// WORKER_STATE, if the device shows it to the function.
    workers: Option<u32>,
    doorbell: u32,
    pub(super) sq_head: u32,
    pub(super) cq_tail: u32,
    cq_head: u32,
    cq_size: u32,
    /// ARM, if the device has interrupts.
    arm: Option<u32>,
    /// The first configuration register that does not hold what the driver wrote: the register, the written value and the held value.
    setting: Option<(Register, u32, u32)>,
    /// The interrupt has fired, and its message is not sent.
    held: bool,
}

/// Bits of WORKER_STATE: some worker of the device is busy, in wait states, held back by the write port.
const BUSY: u32 = 1 << 0;
const WAITS: u32 = 1 << 1;
const HELD_BACK: u32 = 1 << 2;

impl Seen {
    /// Reads the registers.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn of(platform: &mut impl Platform, parts: &Parts) -> Result<Self, DeviceError> {
        let (shows_workers, queue) = (platform.shows_workers(), platform.queue());
        let mut read = |register| platform.read_register(register);
        let mut setting = None;
        for (register, wrote) in parts.settings() {
            let has = read(register)?;
            if has != wrote && setting.is_none() {
                setting = Some((register, wrote, has));
            }
        }
        let interrupts = parts.features.capability.contains(Capability::INTERRUPT);
        Ok(Self {
            control: Control::from_bits_retain(read(Register::Control)?),
            state: State::from_bits_retain(read(Register::State)?),
            fault: DeviceFault::from_bits_retain(read(Register::Error)?),
            workers: if shows_workers { Some(read(Register::WorkerState)?) } else { None },
            doorbell: read(Register::Doorbell)?,
            sq_head: read(Register::SqHead)?,
            cq_tail: read(Register::CqTail)?,
            cq_head: read(Register::CqHead)?,
            cq_size: read(Register::CqSize)?,
            arm: if interrupts { Some(read(Register::Arm)?) } else { None },
            setting,
            // Not every device has vectors.
            held: match read(Register::MessagesPending) {
                Err(DeviceError::ReadRefused { .. }) => false,
                read => read? >> queue & 1 != 0,
            },
        })
    }

    /// Workers of the device that are busy.
    pub fn busy(&self) -> u32 {
        self.workers.unwrap_or(0) >> 3 & 0x1F
    }

    /// The root, if the queue pair is dead or a party other than the driver has ended its work.
    fn ended(&self) -> Option<Root> {
        if self.state.contains(State::DEAD) {
            return Some(Root::Dead(names(self.fault)));
        }
        // With ENABLE 0 the other registers mean nothing, even while ACTIVE is 1 and transfers drain.
        let is_on = self.state.contains(State::ACTIVE) && self.control.contains(Control::ENABLE);
        (!is_on).then_some(Root::Inactive)
    }

    /// A register that does not hold what the driver wrote, whatever the consequences, and the rule that this breaks.
    pub fn altered(&self, known: &Known) -> Option<(Root, &'static str)> {
        if self.ended().is_some() {
            return None;
        }
        if let Some((register, wrote, has)) = self.setting {
            return Some((Root::Setting { register, wrote, has }, rule_of(register)));
        }
        if is_ahead(self.doorbell, known.sq_tail) {
            return Some((Root::LostDoorbell { wrote: known.sq_tail, has: self.doorbell }, "R1"));
        }
        let released = Root::LostRelease { wrote: known.cq_head, has: self.cq_head };
        is_ahead(self.cq_head, known.cq_head).then_some((released, "R4"))
    }

    /// Why the device refuses a write of DOORBELL, CQ_HEAD or ARM.
    pub fn refuses(&self, known: &Known) -> Option<Root> {
        let drains = self.control.contains(Control::DRAIN).then_some(Root::Drains);
        self.ended().or(drains).or_else(|| Some(self.altered(known)?.0))
    }

    /// The first root that applies. Each root explains the ones after it.
    pub fn root(&self, known: &Known) -> Root {
        if let Some(root) = self.ended().or_else(|| Some(self.altered(known)?.0)) {
            return root;
        }
        let waiting = self.cq_tail.wrapping_sub(self.cq_head);
        let is_full = self.cq_size > 0 && waiting >= self.cq_size;
        if is_full && self.cq_head != known.cq_head {
            return Root::LostRelease { wrote: known.cq_head, has: self.cq_head };
        }
        // Other roots come first where the queue fills up because nothing wakes the host, or because memory does not show a completion.
        if known.is_fresh {
            return match (known.armed, self.arm) {
                (None, _) if is_full => Root::FullQueue { completions: waiting },
                (None, _) => Root::Untaken { from: known.cq_head },
                (Some(wrote), Some(has)) if wrote != has => Root::LostArm { wrote, has },
                (Some(arm), _) if self.state.contains(State::ARMED) => Root::Unasked { arm },
                (Some(_), _) if self.held => Root::Masked,
                (Some(_), _) => Root::LostMessage { faults: names(self.fault) },
            };
        }
        // A submitter on another thread may not have rung yet: what the device does know of is done. A DOORBELL behind what was read
        // has gone back.
        let is_behind = (self.doorbell.wrapping_sub(self.sq_head) as i32) < 0;
        if self.doorbell != known.sq_tail
            && (is_behind || self.doorbell == known.sq_tail.wrapping_sub(known.in_flight as u32))
        {
            return Root::LostDoorbell { wrote: known.sq_tail, has: self.doorbell };
        }
        if self.cq_tail != known.cq_head {
            return Root::Unseen { from: known.cq_head, to: self.cq_tail, faults: names(self.fault) };
        }
        let workers = self.workers.unwrap_or(0);
        if workers & HELD_BACK != 0 {
            return Root::WritePort;
        }
        if workers & WAITS != 0 {
            return Root::WaitStates;
        }
        if workers & BUSY != 0 {
            return Root::Running;
        }
        // Where something that was read is not completed, it is what holds up the reading: the device's buffers are full.
        let descriptors = known.in_flight.saturating_sub(known.sq_tail.wrapping_sub(self.sq_head).into());
        if self.sq_head != self.doorbell && descriptors == 0 {
            return Root::Unread { from: self.sq_head, to: self.doorbell };
        }
        match self.workers {
            Some(_) => Root::Held { descriptors },
            None => Root::Unshown { descriptors },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Three descriptors from index 0xFFFF_FFFE on, of which one has completed; none of them runs.
    fn seen() -> Seen {
        Seen {
            control: Control::ENABLE,
            state: State::ACTIVE,
            fault: DeviceFault::empty(),
            workers: Some(0),
            doorbell: 1,
            sq_head: 1,
            cq_tail: 9,
            cq_head: 9,
            cq_size: 4,
            arm: Some(9),
            setting: None,
            held: false,
        }
    }

    const KNOWN: Known =
        Known { in_flight: 2, sq_tail: 1, sq_head: 1, cq_head: 9, is_fresh: false, armed: None, stale: None };

    #[rstest]
    #[case::held(seen(), Root::Held { descriptors: 2 })]
    #[case::unread(Seen { sq_head: u32::MAX, ..seen() }, Root::Unread { from: u32::MAX, to: 1 })]
    #[case::read_and_held(Seen { sq_head: 0, ..seen() }, Root::Held { descriptors: 1 })]
    #[case::not_shown(Seen { workers: None, ..seen() }, Root::Unshown { descriptors: 2 })]
    #[case::unread_and_not_shown(
        Seen { workers: None, sq_head: u32::MAX, ..seen() },
        Root::Unread { from: u32::MAX, to: 1 }
    )]
    #[case::runs(Seen { workers: Some(0b1001), sq_head: 0, ..seen() }, Root::Running)]
    #[case::wait_states(Seen { workers: Some(0b1011), ..seen() }, Root::WaitStates)]
    #[case::write_port(Seen { workers: Some(0b1101), ..seen() }, Root::WritePort)]
    #[case::unseen(Seen { cq_tail: 11, workers: Some(1), ..seen() }, Root::Unseen { from: 9, to: 11, faults: "none".into() })]
    #[case::unseen_and_full(Seen { cq_tail: 13, ..seen() }, Root::Unseen { from: 9, to: 13, faults: "none".into() })]
    #[case::released_too_far(Seen { cq_head: 10, cq_tail: 14, ..seen() }, Root::LostRelease { wrote: 9, has: 10 })]
    #[case::doorbell_too_far(Seen { doorbell: 2, ..seen() }, Root::LostDoorbell { wrote: 1, has: 2 })]
    #[case::setting(
        Seen { setting: Some((Register::CqSize, 8, 4)), cq_tail: 13, ..seen() },
        Root::Setting { register: Register::CqSize, wrote: 8, has: 4 }
    )]
    #[case::release(Seen { cq_head: 5, ..seen() }, Root::LostRelease { wrote: 9, has: 5 })]
    #[case::release_on_its_way(Seen { cq_head: 6, ..seen() }, Root::Held { descriptors: 2 })]
    #[case::doorbell(Seen { doorbell: u32::MAX, sq_head: u32::MAX, ..seen() }, Root::LostDoorbell { wrote: 1, has: u32::MAX })]
    #[case::doorbell_of_another_thread(Seen { doorbell: 0, sq_head: 0, ..seen() }, Root::Held { descriptors: 1 })]
    #[case::doorbell_went_back(Seen { doorbell: u32::MAX - 1, ..seen() }, Root::LostDoorbell { wrote: 1, has: u32::MAX - 1 })]
    #[case::drains(Seen { control: Control::empty(), sq_head: 0, doorbell: 0, ..seen() }, Root::Inactive)]
    #[case::inactive(Seen { state: State::IDLE, doorbell: 0, ..seen() }, Root::Inactive)]
    #[case::dead(
        Seen { state: State::DEAD, fault: DeviceFault::BUS_TIMEOUT, ..seen() },
        Root::Dead("BUS_TIMEOUT".into())
    )]
    fn the_first_reason_is_the_root(#[case] seen: Seen, #[case] root: Root) {
        assert_eq!(seen.root(&KNOWN), root);
    }

    #[rstest]
    #[case::untaken(seen(), None, Root::Untaken { from: 9 })]
    #[case::full(Seen { cq_tail: 13, ..seen() }, None, Root::FullQueue { completions: 4 })]
    #[case::arm(Seen { arm: Some(8), state: State::ACTIVE | State::ARMED, ..seen() }, Some(9), Root::LostArm { wrote: 9, has: 8 })]
    #[case::full_and_arm(Seen { arm: Some(8), cq_tail: 13, ..seen() }, Some(9), Root::LostArm { wrote: 9, has: 8 })]
    #[case::full_and_unasked(
        Seen { state: State::ACTIVE | State::ARMED, cq_tail: 13, ..seen() },
        Some(9),
        Root::Unasked { arm: 9 }
    )]
    #[case::full_and_masked(Seen { held: true, cq_tail: 13, ..seen() }, Some(9), Root::Masked)]
    #[case::unasked(Seen { state: State::ACTIVE | State::ARMED, ..seen() }, Some(9), Root::Unasked { arm: 9 })]
    #[case::masked(Seen { held: true, ..seen() }, Some(9), Root::Masked)]
    #[case::message(
        Seen { fault: DeviceFault::MESSAGE_WRITE, ..seen() },
        Some(9),
        Root::LostMessage { faults: "MESSAGE_WRITE".into() }
    )]
    fn what_is_there_and_not_taken_is_the_root(
        #[case] seen: Seen,
        #[case] armed: Option<u32>,
        #[case] root: Root,
    ) {
        assert_eq!(seen.root(&Known { is_fresh: true, armed, ..KNOWN }), root);
    }

    /// If the device refuses an index, the root names what ended or changed the queue pair; the registers tell nothing about the index
    /// itself.
    #[rstest]
    #[case::drains(Seen { control: Control::ENABLE | Control::DRAIN, ..seen() }, Some(Root::Drains))]
    #[case::inactive(Seen { state: State::IDLE, control: Control::empty(), ..seen() }, Some(Root::Inactive))]
    #[case::setting(
        Seen { setting: Some((Register::SqSize, 8, 4)), ..seen() },
        Some(Root::Setting { register: Register::SqSize, wrote: 8, has: 4 })
    )]
    #[case::value(seen(), None)]
    fn what_refuses_an_index_is_the_root(#[case] seen: Seen, #[case] root: Option<Root>) {
        assert_eq!(seen.refuses(&KNOWN), root);
    }
}
