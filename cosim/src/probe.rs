//! The wire records as the other languages see them, for the test that Rust, C++ and RTL agree on every bit.

use doorbell_contract::{HwCompletion, HwDesc};

use crate::bridge::ffi;

/// Fields of a record, each as a number, in the order of the contract.
pub type Fields = Vec<u64>;

/// A descriptor as C++ reads it, through `contract/doorbell_contract.h`.
pub fn c_descriptor(desc: &HwDesc) -> Fields {
    ffi::c_descriptor_fields(bytemuck::bytes_of(desc))
}

/// A completion as C++ reads it.
pub fn c_completion(completion: &HwCompletion) -> Fields {
    ffi::c_completion_fields(bytemuck::bytes_of(completion))
}

/// A descriptor as RTL decodes it, through `rtl/desc_pkg.sv`.
pub fn rtl_descriptor(desc: &HwDesc) -> Fields {
    ffi::rtl_descriptor_fields(bytemuck::bytes_of(desc))
}

/// A completion as RTL decodes it.
pub fn rtl_completion(completion: &HwCompletion) -> Fields {
    ffi::rtl_completion_fields(bytemuck::bytes_of(completion))
}
