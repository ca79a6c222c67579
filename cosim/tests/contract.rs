//! Random bytes through Rust, C++ and RTL: every field of every record is the same number in all three.

use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_cosim::probe;
use proptest::prelude::*;

/// The other languages' fields are listed by hand: a field that is missing there shows here.
fn check<T>(record: &T, fields: &[doorbell_contract::Field<T>], seen: [(&str, Vec<u64>); 2]) {
    for (language, values) in seen {
        assert_eq!(values.len(), fields.len(), "number of fields in {language}");
        for (field, value) in fields.iter().zip(values) {
            assert_eq!(value, (field.get)(record), "{} in {language}", field.name);
        }
    }
}

fn check_descriptor(bytes: [u8; 64]) {
    let desc: HwDesc = bytemuck::cast(bytes);
    let seen = [("C++", probe::c_descriptor(&desc)), ("RTL", probe::rtl_descriptor(&desc))];
    check(&desc, &HwDesc::FIELDS, seen);
}

fn check_completion(bytes: [u8; 32]) {
    let completion: HwCompletion = bytemuck::cast(bytes);
    let seen = [("C++", probe::c_completion(&completion)), ("RTL", probe::rtl_completion(&completion))];
    check(&completion, &HwCompletion::FIELDS, seen);
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
