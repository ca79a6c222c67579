use super::*;
use rstest::rstest;

/// The reference generator's own words.
#[rstest]
#[case(0x3030_0010_0010_0090, "memset.fmap", &[("index", 3), ("m", 1), ("n", 1), ("k", 9)])]
#[case(0x3090_0040_0040_0040, "memset.fmap", &[("index", 9), ("m", 4), ("n", 4), ("k", 4)])]
#[case(0x2800_c800_0000_0006, "memcpy.in", &[("dest", 100), ("src", 0), ("shape", 3), ("async", 0)])]
#[case(0x1010_0004_b080_4320, "gemm", &[("dest", 512), ("src", 300), ("scale", 1), ("desc", 1), ("shape", 3), ("lanes", 4)])]
#[case(0x0018_0006_4100_8920, "gemv", &[("dest", 768), ("src", 400), ("acc", 1), ("desc", 2), ("shape", 9), ("lanes", 4)])]
#[case(0x4501_8000_e000_1000, "cvo.reduce_sum", &[("src", 768), ("dst", 896), ("length", 64), ("async", 0)])]
#[case(0x2400_0003_8000_0006, "memcpy.out", &[("src", 896), ("shape", 3), ("async", 0)])]
fn words_of_the_reference_are_kept(
    #[case] word: u64,
    #[case] mnemonic: &str,
    #[case] fields: &[(&str, u64)],
) {
    let form = Form::of(word).unwrap();
    assert_eq!(form.mnemonic, mnemonic);
    for &(name, value) in fields {
        assert_eq!(form.get(word, name), value, "{name}");
    }
    assert_eq!(form.word(fields), word, "all other fields are 0");
}

#[test]
fn no_two_forms_share_a_word_and_no_two_fields_a_bit() {
    for (k, form) in FORMS.iter().enumerate() {
        assert_eq!(form.value & !form.select, 0, "{}", form.mnemonic);
        let mut taken = form.select;
        for field in form.fields {
            assert_eq!(taken & field.mask(), 0, "{} {}", form.mnemonic, field.name);
            taken |= field.mask();
        }
        for other in &FORMS[..k] {
            let both = form.select & other.select;
            assert_ne!(form.value & both, other.value & both, "{} and {}", form.mnemonic, other.mnemonic);
            assert_ne!(form.mnemonic, other.mnemonic);
        }
    }
}

/// Every value of what selects a form is one, or has its own name for what it is not.
#[rstest]
#[case(4, 56, 4, 8, Fault::UnknownFunction)]
#[case(5, 54, 6, 15, Fault::UnknownFunction)]
#[case(8, 56, 4, 4, Fault::UnknownFunction)]
fn functions_end(
    #[case] opcode: u64,
    #[case] low: u32,
    #[case] bits: u32,
    #[case] known: u64,
    #[case] fault: Fault,
) {
    for function in 0..1 << bits {
        let found = Form::of(opcode << 60 | function << low).map(|_| ());
        assert_eq!(found, if function < known { Ok(()) } else { Err(fault) }, "{opcode:x} {function}");
    }
}

#[test]
fn opcodes_routes_and_registers_end() {
    for opcode in 0..16u64 {
        let found = Form::of(opcode << 60);
        assert_eq!(found == Err(Fault::UnknownOpcode), opcode > 8, "{opcode:x}");
    }
    for route in 0..4u64 {
        for kind in 0..16u64 {
            let found = Form::of(2 << 60 | route << 58 | kind << 13).map(|form| form.mnemonic);
            let expected = match (route, kind) {
                (1, 0) => Ok("memcpy.out"),
                (2, 0) => Ok("memcpy.in"),
                (2, 1) => Ok("memcpy.gain"),
                (2, 2) => Ok("memcpy.row"),
                (2, 3) => Ok("memcpy.embed"),
                (1, 4) => Ok("memcpy.kv"),
                (_, 0..=4) => Err(Fault::BadRoute),
                _ => Err(Fault::UnknownFunction),
            };
            assert_eq!(found, expected, "{route} {kind}");
        }
    }
    for register in 0..64u64 {
        let found = Form::of(3 << 60 | 3 << 58 | register << 52).map(|_| ());
        assert_eq!(found, if register < 6 { Ok(()) } else { Err(Fault::UnknownRegister) }, "{register}");
    }
}

#[test]
fn the_page_has_this_table() {
    let page = include_str!("../../../docs/isa.md");
    assert!(page.contains(&table()), "docs/isa.md should have:\n{}", table());
}

/// A code is a name's place, and no two errors share one.
#[test]
fn codes_are_places_of_names() {
    let some = [
        Fault::UnknownOpcode,
        Fault::ReservedBits { bits: 1 },
        Fault::Misaligned { address: 1 },
        Fault::DescriptorUnset { index: 1 },
        Fault::BadAux { value: 1 },
        Fault::BlockOutOfRange { entry: 1, block: 1 },
        Fault::BadLoop,
        Fault::NoEnd,
    ];
    for fault in some {
        let name = Fault::NAMES[fault.code() as usize - 1];
        assert!(format!("{fault:?}").starts_with(name), "{fault:?} is {name}");
    }
    assert_eq!(Fault::NoEnd.code() as usize, Fault::NAMES.len());
}
