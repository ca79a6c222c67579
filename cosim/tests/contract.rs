//! Random bytes through Rust, C++ and RTL: every field of every record is the same number in all three.

use bytemuck::Pod;
use doorbell_contract::{Field, HwCompletion, HwDesc};
use doorbell_cosim::probe;
use proptest::prelude::*;

type Reader = fn(&[u8]) -> Vec<u64>;

/// The other languages' fields are listed by hand: a field that is missing there shows here.
fn check<T: Pod>(bytes: &[u8], fields: &[Field<T>], readers: [(&str, Reader); 2]) {
    let record: T = bytemuck::pod_read_unaligned(bytes);
    for (language, read) in readers {
        let values = read(bytes);
        assert_eq!(values.len(), fields.len(), "number of fields in {language}");
        for (field, value) in fields.iter().zip(values) {
            assert_eq!(value, (field.get)(&record), "{} in {language}", field.name);
        }
    }
}

fn check_descriptor(bytes: [u8; 64]) {
    let readers = [("C++", probe::c_descriptor_fields as Reader), ("RTL", probe::rtl_descriptor_fields)];
    check(&bytes, &HwDesc::FIELDS, readers);
}

fn check_completion(bytes: [u8; 32]) {
    let readers = [("C++", probe::c_completion_fields as Reader), ("RTL", probe::rtl_completion_fields)];
    check(&bytes, &HwCompletion::FIELDS, readers);
}

proptest! {
    #[test]
    fn descriptors_are_the_same_in_rust_cpp_and_rtl(bytes in any::<[u8; 64]>()) {
        check_descriptor(bytes);
    }

    #[test]
    fn completions_are_the_same_in_rust_cpp_and_rtl(bytes in any::<[u8; 32]>()) {
        check_completion(bytes);
    }
}

#[test]
fn every_single_bit_is_in_the_same_field() {
    for bit in 0..512 {
        let mut bytes = [0; 64];
        bytes[bit / 8] = 1 << (bit % 8);
        check_descriptor(bytes);
    }
    for bit in 0..256 {
        let mut bytes = [0; 32];
        bytes[bit / 8] = 1 << (bit % 8);
        check_completion(bytes);
    }
}
