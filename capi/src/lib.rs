//! Doorbell's devices behind a C interface; `include/doorbell.h` states it.
//!
//! A handle is a key into a table, not an address, so that none that was closed, or made up, is ever followed.

mod code;
mod exports;
mod handle;
mod score;
