//! Small models of the contract's riskiest rules, which `cargo test -p doorbell-models` explores to the last state.
//!
//! Each module is one question, with a type of planted [`credits::Mistake`]s, [`groups::Mistake`]s or [`nic::Mistake`]s: a model that
//! finds none of its mistakes proves nothing.

pub mod credits;
pub mod groups;
pub mod nic;
