//! The NPU behind engine 1: docs/isa.md is its specification.

pub mod arithmetic;
pub mod audit;
pub mod clock;
mod compile;
pub mod cycles;
pub mod isa;
pub mod layout;
mod publish;
pub mod run;
pub mod text;

pub use compile::{CompileError, Part, Program, compile};
pub use publish::{PublishError, Published};
