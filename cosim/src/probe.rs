//! The wire records as the other languages see them, for the test that Rust, C++ and RTL agree on every bit: the fields of
//! the record in these bytes, each as a number, in the order of the contract. C++ reads them through
//! `contract/doorbell_contract.h`, RTL through `rtl/desc_pkg.sv`.

pub use crate::bridge::ffi::{
    c_completion_fields, c_descriptor_fields, rtl_completion_fields, rtl_descriptor_fields,
};
