//! KV blocks, prefixes and windows.

pub mod arena;
pub mod pages;
mod stack;
