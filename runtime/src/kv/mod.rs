//! KV blocks, prefixes and windows.

pub mod arena;
pub mod branch;
mod error;
pub mod layout;
pub mod pages;
pub mod prefix;
pub mod savings;
mod stack;
mod sync;
mod tree;
pub mod window;

pub use arena::{Arena, ArenaConfig, ArenaCounts, ArenaError, ArenaHandle, BlockId};
pub use branch::{Branch, Branches, Place};
pub use error::KvError;
pub use pages::{PageOptions, PageReport, PageSize};
pub use prefix::{AnswerStart, Group, PrefixConfig, PrefixCounts, PrefixId, Prefixes, Sharing};
pub use window::{Window, WindowConfig};
