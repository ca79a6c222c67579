//! KV blocks, and the prompts that share them.

mod arena;
mod branch;
mod error;
mod fill;
mod prefix;
mod tree;

pub use arena::{Arena, ArenaCounts};
pub use branch::{Branch, Copied};
pub use error::KvError;
pub use prefix::{AnswerCap, AnswerStart, Group, PrefixConfig, PrefixCounts, PrefixId, Prefixes, Sharing};
