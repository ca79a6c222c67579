//! The NPU behind engine 1: docs/isa.md is its specification.
pub mod isa;
pub mod text;
