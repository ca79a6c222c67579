//! Faults that the emulation can be given on purpose.

/// One mistake in the protocol, to prove that a test notices it. What depends on timing comes with a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Descriptors are admitted as they come, not in turn.
    AdmitsOutOfTurn,
    /// Completion slots are reserved although the host has not released them.
    ReservesBlindly,
    /// The completion of a short DECODE is posted before its tokens.
    PostsBeforeTokens,
    /// The half of a completion that holds the phase is written before the rest of that half.
    TearsHalves,
    /// A rollout leaves the running table before its completion has a slot.
    LeavesEarly,
    /// A rollout never leaves the running table.
    StaysInTable,
    /// A place is marked as not stopped only when its rollout goes to the workers, behind the turn.
    ForgetsStop,
    /// The ring of free places is not a power of two.
    WrapsPlaces,
    /// A fence waits for nothing.
    PassesFences,
    /// The end of a session is acknowledged before it has come.
    AcknowledgesEarly,
    /// The time spent waiting for completion slots is told only when it is over.
    CountsStallsLate,
    /// The scout executes at once what others have not come to the end before.
    ScoutsOutOfTurn,
    /// The scout executes what a fetch thread has claimed.
    ScoutsBlindly,
    /// The scout takes a slot that does not verify for one that is not published, although the doorbell has told of it.
    LeavesBadSlots,
    /// The tail of the completion queue is read before it is known that no rollout runs.
    ReadsTailEarly,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 15] = [
        Self::AdmitsOutOfTurn,
        Self::ReservesBlindly,
        Self::PostsBeforeTokens,
        Self::TearsHalves,
        Self::LeavesEarly,
        Self::StaysInTable,
        Self::ForgetsStop,
        Self::WrapsPlaces,
        Self::PassesFences,
        Self::AcknowledgesEarly,
        Self::CountsStallsLate,
        Self::ScoutsOutOfTurn,
        Self::ScoutsBlindly,
        Self::LeavesBadSlots,
        Self::ReadsTailEarly,
    ];
}
