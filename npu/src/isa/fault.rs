//! What can be wrong with a word. Each ends the program that it stands in, or only the context that it struck, and is logged
//! with the word and its place.

use thiserror::Error;

/// Why a word was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Opcodes 9 to 15.
    #[error("there is no such opcode")]
    UnknownOpcode,
    /// A function of CVO, VEC or CTRL, or a kind of MEMCPY.
    #[error("the opcode has no such function")]
    UnknownFunction,
    /// A register of MEMSET.
    #[error("there is no such register")]
    UnknownRegister,
    /// A kind of MEMCPY the wrong way round.
    #[error("this kind of copy does not go that way")]
    BadRoute,
    /// Bits that are 0 in every word of its kind.
    #[error("bits {bits:#018x} are reserved, and not 0")]
    ReservedBits {
        /// Those that are 1.
        bits: u64,
    },
    /// A word of the reference's set that this engine has not.
    #[error("the word is sound, but this engine was built without it")]
    NotBuilt,
    /// An operand that does not begin at a line of four words.
    #[error("word address {address} is no multiple of 4")]
    Misaligned {
        /// In words.
        address: u32,
    },
    /// An operand that ends outside of the context's memory.
    #[error("lines {start} to {end} are not in the {lines} that a context has")]
    OutOfRange {
        /// First line.
        start: u64,
        /// Behind the last line.
        end: u64,
        /// Lines that there are.
        lines: u32,
    },
    /// A source that is written while it is read.
    #[error("the destination lies over a source that is still read when it is written")]
    Overlap,
    /// A shape that no MEMSET has set.
    #[error("shape {index} is not set")]
    ShapeUnset {
        /// Which one.
        index: u8,
    },
    /// A descriptor that no MEMSET has set.
    #[error("descriptor {index} is not set")]
    DescriptorUnset {
        /// Which one.
        index: u8,
    },
    /// A register that no MEMSET has set.
    #[error("the register that it needs is not set")]
    RegisterUnset,
    /// A dimension that the operator cannot have.
    #[error("a dimension of {value} cannot be had here")]
    BadLength {
        /// What it is.
        value: u64,
    },
    /// An exponent outside of 8 bits with a sign, or a stride with one.
    #[error("aux {value} cannot be had here")]
    BadAux {
        /// What it is.
        value: i16,
    },
    /// The model's memory ends before.
    #[error("bytes {start:#x} to {end:#x} are not in the model's memory")]
    MemoryOutOfRange {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// The context's output region ends before.
    #[error("bytes {start:#x} to {end:#x} are not in the output region")]
    OutputOutOfRange {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// The block table has no entry for a position.
    #[error("the block table has no entry {entry}")]
    BlockMissing {
        /// Which one.
        entry: u32,
    },
    /// A block number whose bytes lie outside of the context's arena.
    #[error("entry {entry} of the block table is {block}, which is not in the arena")]
    BlockOutOfRange {
        /// Which entry.
        entry: u32,
        /// What it holds.
        block: u32,
    },
    /// The layers' keys and values are more than a block has room for.
    #[error("keys and values up to here take {needed} bytes of a block or more than a layer's stride")]
    BlockTooSmall {
        /// Bytes up to the end of this layer.
        needed: u64,
    },
    /// A token that is no row of the matrix.
    #[error("token {token} is beyond the {rows} of the matrix")]
    BadToken {
        /// The token.
        token: u32,
        /// Rows of the matrix.
        rows: u32,
    },
    /// A position that is no row of the table.
    #[error("position {position} is beyond the {rows} of the table")]
    BadPosition {
        /// The position.
        position: u32,
        /// Rows of the table.
        rows: u32,
    },
    /// `layers` in a loop, or of no layers.
    #[error("a loop cannot begin here")]
    BadLoop,
    /// `next` or a layer's descriptor without `layers`.
    #[error("there is no loop here")]
    NoLoop,
    /// A layer's words are MEMSETs alone.
    #[error("word {word:#018x} of the layer is not a MEMSET")]
    BadLayerWord {
        /// The word.
        word: u64,
    },
    /// `head` without a first one.
    #[error("the sampler was not begun")]
    NoFirst,
    /// The program ran over its last word.
    #[error("the program has no end")]
    NoEnd,
}

impl Fault {
    /// Names of all, in the order of their codes, which begin at 1.
    pub const NAMES: [&'static str; 26] = [
        "UnknownOpcode",
        "UnknownFunction",
        "UnknownRegister",
        "BadRoute",
        "ReservedBits",
        "NotBuilt",
        "Misaligned",
        "OutOfRange",
        "Overlap",
        "ShapeUnset",
        "DescriptorUnset",
        "RegisterUnset",
        "BadLength",
        "BadAux",
        "MemoryOutOfRange",
        "OutputOutOfRange",
        "BlockMissing",
        "BlockOutOfRange",
        "BlockTooSmall",
        "BadToken",
        "BadPosition",
        "BadLoop",
        "NoLoop",
        "BadLayerWord",
        "NoFirst",
        "NoEnd",
    ];

    /// Its number in the registers of a device; 0 is none.
    pub const fn code(&self) -> u8 {
        match self {
            Self::UnknownOpcode => 1,
            Self::UnknownFunction => 2,
            Self::UnknownRegister => 3,
            Self::BadRoute => 4,
            Self::ReservedBits { .. } => 5,
            Self::NotBuilt => 6,
            Self::Misaligned { .. } => 7,
            Self::OutOfRange { .. } => 8,
            Self::Overlap => 9,
            Self::ShapeUnset { .. } => 10,
            Self::DescriptorUnset { .. } => 11,
            Self::RegisterUnset => 12,
            Self::BadLength { .. } => 13,
            Self::BadAux { .. } => 14,
            Self::MemoryOutOfRange { .. } => 15,
            Self::OutputOutOfRange { .. } => 16,
            Self::BlockMissing { .. } => 17,
            Self::BlockOutOfRange { .. } => 18,
            Self::BlockTooSmall { .. } => 19,
            Self::BadToken { .. } => 20,
            Self::BadPosition { .. } => 21,
            Self::BadLoop => 22,
            Self::NoLoop => 23,
            Self::BadLayerWord { .. } => 24,
            Self::NoFirst => 25,
            Self::NoEnd => 26,
        }
    }
}
