//! The server over a golden model: what clients get is held to the oracle.

mod answers;
mod control;
mod failing;
mod kept;
mod refusals;
mod running;
mod words;
