//! The device in a tab: the verilated RTL, the driver and the oracle in one module that a page drives.
//!
//! [`Tab`] is a device with one language model and at most one answer under way. It does nothing by itself: the page gives it clock
//! cycles, and takes a [`Snapshot`]. [`Calls`] is the same as texts in JSON, which is what crosses into the module. `src/main.rs`
//! exports it to JavaScript where it is built for `wasm32-unknown-emscripten`, and is a command line everywhere else, for a native run to
//! compare with.

mod ask;
mod calls;
mod chain;
mod check;
mod samples;
mod snapshot;
mod tab;
mod units;

pub use ask::{Ask, Phase};
pub use calls::Calls;
pub use check::{Checked, Wrong};
pub use samples::{STORY, texts};
pub use snapshot::{Snapshot, Token};
pub use tab::{Flip, Hold, LATENCY, Step, Tab, TabError};
pub use units::{UNITS, Units};
