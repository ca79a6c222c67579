//! KV blocks, and the prompts that share them.

pub mod arena;
pub mod branch;
mod error;
pub mod prefix;
pub mod region;
mod tree;

pub use arena::{Arena, ArenaConfig, ArenaCounts, ArenaError, BlockId};
pub use branch::{Branch, Place};
pub use error::KvError;
pub use prefix::{AnswerStart, Group, PrefixConfig, PrefixCounts, PrefixId, Prefixes, Sharing};
