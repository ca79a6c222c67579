//! The instruction set: docs/isa.md.

mod fault;
mod form;

pub use fault::Fault;
pub use form::{FORMS, Field, Form, Unit, table};

#[cfg(test)]
mod tests;
