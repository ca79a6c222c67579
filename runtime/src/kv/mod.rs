//! KV blocks, prefixes and windows.
