//! What runs behind DECODE, as a specification in Rust.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod hash;
