//! Why a call of the prefix tables was refused.

/// What was refused has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// No such tables can be.
    #[error("{field} is {value}: it must be {expected}")]
    Config {
        /// Field of the configuration.
        field: &'static str,
        /// What it held.
        value: u64,
        /// The range, in words.
        expected: &'static str,
    },
    /// The group could not run even alone: waiting does not help.
    #[error("the group's {field} is {value}, and the tables are made for at most {limit}; configure more")]
    TooLarge {
        /// Field of the group.
        field: &'static str,
        /// What it held.
        value: u64,
        /// The most that it may be.
        limit: u64,
    },
    /// Not all that the group may come to need is free now: try again when others have ended.
    #[error("the group may come to need {need} {what}, and only {available} can be promised now")]
    Full {
        /// Of what there is too little.
        what: &'static str,
        /// What the group may come to need.
        need: u64,
        /// What can be promised.
        available: u64,
    },
    /// The name of a prefix that was released, or of other tables.
    #[error("prefix {slot} was released before, or is of other tables")]
    Prefix {
        /// Its slot.
        slot: u32,
    },
    /// As many branches as were admitted have been made.
    #[error("prefix {slot} has all the branches that were admitted with it; admit more members")]
    Members {
        /// Slot of the prefix.
        slot: u32,
    },
    /// The branch was released before, never made, or is of other tables.
    #[error("the branch was released before, or is of other tables")]
    Branch,
    /// The position has no token yet.
    #[error("position {position} is beyond the sequence, which has {tokens} tokens")]
    Position {
        /// The position.
        position: u32,
        /// Tokens of prompt and answer so far.
        tokens: u32,
    },
    /// The branch would need more blocks than were promised to it at admission.
    #[error(
        "the branch needs {need} blocks and has {left} left of what it was admitted with; admit more answer tokens"
    )]
    Promise {
        /// Blocks that it needs.
        need: u32,
        /// Blocks that it may still take.
        left: u32,
    },
    /// No block is free.
    #[error("none of the arena's {blocks} blocks is free; release some first")]
    Exhausted {
        /// How many there are.
        blocks: u32,
    },
    /// Nobody holds the block.
    #[error("block {block} is not in use: it was released before, or never acquired")]
    Free {
        /// Which block.
        block: u32,
    },
}
