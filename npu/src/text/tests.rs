use super::*;
use crate::isa::FORMS;
use proptest::prelude::*;
use rstest::rstest;

/// Any word that there is.
pub(crate) fn any_word() -> impl Strategy<Value = u64> {
    (0..FORMS.len(), any::<u64>()).prop_map(|(form, bits)| {
        let form = &FORMS[form];
        form.value | bits & !form.reserved() & !form.select
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn text_and_words_are_the_same(word in any_word()) {
        let text = disassemble(word);
        prop_assert_eq!(assemble(&text), Ok(vec![word]), "{}", text);
    }

    #[test]
    fn any_bits_are_a_word_or_refused_by_name(word in any::<u64>()) {
        let text = disassemble(word);
        prop_assert_eq!(text.starts_with(".word"), Form::of(word).is_err());
        prop_assert_eq!(assemble(&text), Ok(vec![word]), "{}", text);
    }

    #[test]
    fn a_reserved_bit_is_refused(word in any_word()) {
        let reserved = Form::of(word).unwrap().reserved();
        for bit in (0..64).filter(|bit| reserved >> bit & 1 == 1) {
            let found = Form::of(word | 1 << bit);
            prop_assert_eq!(found, Err(crate::isa::Fault::ReservedBits { bits: 1 << bit }));
        }
    }
}

#[test]
fn a_listing_is_a_program() {
    let words = [0x3030_0010_0010_0090, 0x0018_0006_4100_8920, u64::MAX, 0x8000_0000_0000_0000];
    let text = listing(&words);
    assert_eq!(assemble(&text), Ok(words.to_vec()), "{text}");
    assert!(text.contains("memset.fmap index=3 m=1 n=1 k=9"), "{text}");
    assert!(text.contains("there is no such opcode"), "{text}");
}

#[rstest]
#[case("nop", Wrong::UnknownName("nop".into()))]
#[case("end now", Wrong::UnknownField { mnemonic: "end", name: "now".into(), has: "none".into() })]
#[case("vec.act dst=0 a=0 b=0 shape=1", Wrong::UnknownField { mnemonic: "vec.act", name: "b".into(), has: "dst, a, shape".into() })]
#[case("vec.act dst=0 a=0 a=0 shape=1", Wrong::Twice("a"))]
#[case("vec.act dst=0 a=0", Wrong::Missing("shape"))]
#[case("vec.act dst=0 a shape=1", Wrong::Value("a".into()))]
#[case("gemv acc=1", Wrong::Value("acc=1".into()))]
#[case("vec.act dst=x a=0 shape=1", Wrong::Number("x".into()))]
#[case("vec.act dst=0 a=0 shape=64", Wrong::TooLarge { name: "shape", value: 64, least: 0, most: 63 })]
#[case("vec.act dst=-4 a=0 shape=6", Wrong::TooLarge { name: "dst", value: -4, least: 0, most: 32_764 })]
#[case("vec.act dst=2 a=0 shape=6", Wrong::Misaligned { name: "dst", value: 2 })]
#[case("memset.desc index=0 base=0 aux=32768", Wrong::TooLarge { name: "aux", value: 32_768, least: -32_768, most: 32_767 })]
#[case(".word 12", Wrong::Number("12".into()))]
#[case(".word 0x12345678901234567", Wrong::Number("0x12345678901234567".into()))]
fn a_line_that_is_no_word_is_refused_by_name(#[case] line: &str, #[case] wrong: Wrong) {
    let text = format!("; what follows is wrong\n\nend ; this is not\n{line}");
    assert_eq!(assemble(&text), Err(AssembleError { line: 4, wrong }));
}
