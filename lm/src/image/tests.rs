use proptest::prelude::*;
use rstest::rstest;

use super::layout::HEADER;
use super::*;
use crate::{micro, micro_gemma};

fn check(bytes: &mut [u8]) {
    let check = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&check.to_le_bytes());
}

fn offset(bytes: &[u8], kind: Kind, layer: u16) -> usize {
    let entries = entries(bytes).unwrap();
    entries.iter().find(|entry| (entry.kind, entry.layer) == (kind, layer)).unwrap().offset as usize
}

/// A device may find it by these alone: another check is another model, or another layout, and then another version.
#[rstest]
#[case(micro(), 0x996A_CFDC)]
#[case(micro_gemma(), 0xD11E_46AA)]
fn built_in_models_are_the_same_everywhere(#[case] image: Image, #[case] check: u32) {
    let bytes = image.to_bytes();
    assert_eq!(Image::from_bytes(&bytes).unwrap(), image);
    let header = header(&bytes).unwrap();
    assert_eq!((header.length, header.check), (bytes.len() as u64, check));
}

#[test]
fn what_a_device_reads_is_aligned() {
    let bytes = micro().to_bytes();
    let entries = entries(&bytes).unwrap();
    assert_eq!(entries.len(), 5 + 4 * 9);
    for entry in &entries {
        assert_eq!((entry.offset % 64, entry.stride() % 64), (0, 0), "{entry:?}");
        assert!(entry.offset + entry.bytes <= bytes.len() as u64);
    }
    let query = entries.iter().find(|entry| (entry.kind, entry.layer) == (Kind::Query, 2)).unwrap();
    let model = micro().model;
    let at = (query.offset + 5 * query.stride()) as usize;
    assert_eq!(
        bytes[at..at + 32].iter().map(|&byte| byte as i8).collect::<Vec<_>>(),
        model.layers[2].query.row(5)
    );
    assert!(bytes[at + 32..at + 64].iter().all(|&byte| byte == 0));
    let at = (query.offset + u64::from(query.rows) * query.stride()) as usize + 2 * 5;
    assert_eq!(u16::from_le_bytes([bytes[at], bytes[at + 1]]), model.layers[2].query.rows[5]);
}

#[rstest]
#[case::empty(|bytes: &mut Vec<u8>| bytes.clear(), "it has 0 bytes, and an image at least 128; import the model again")]
#[case::text(|bytes: &mut Vec<u8>| bytes[0] = b'G', "it is no image of a model: it begins with other bytes; make one with `doorbell model import`")]
#[case::version(|bytes: &mut Vec<u8>| bytes[8] = 1, "it is of version 1, this program reads version 2; import the model again")]
#[case::cut(|bytes: &mut Vec<u8>| bytes.truncate(1000), "it has 1000 bytes, and says that it has ")]
#[case::bit(|bytes: &mut Vec<u8>| bytes[5000] ^= 4, "it is damaged; import the model again")]
#[case::width(|bytes: &mut Vec<u8>| { bytes[24] = 33; check(bytes) }, "header: width is 33, expected a multiple of 32")]
#[case::layers(|bytes: &mut Vec<u8>| { bytes[28] = 5; check(bytes) }, "directory: its shape takes 50 entries")]
#[case::large(|bytes: &mut Vec<u8>| { bytes[26..28].fill(0xFF); check(bytes) }, "header: width is 4294901792, expected 1 to 4096")]
#[case::moved(|bytes: &mut Vec<u8>| { bytes[HEADER + 32 * 3 + 16] ^= 64; check(bytes) }, "directory: entry 3 is not the one that its shape takes")]
#[case::exponent(|bytes: &mut Vec<u8>| { bytes[HEADER + 32 * 4 + 6] = 9; check(bytes) }, "directory: entry 4, Query of 0: its exponent is ")]
#[case::exponent_of_a_rope(|bytes: &mut Vec<u8>| { bytes[HEADER + 32 * 2 + 4] = 1; check(bytes) }, "directory: entry 2, Rope of 0: its exponent is 1, expected 0 for rotations or a text")]
#[case::exponent_of_a_text(|bytes: &mut Vec<u8>| { bytes[HEADER + 4] = 5; check(bytes) }, "directory: entry 0, About of 0: its exponent is 5, expected 0")]
#[case::large_exponent(|bytes: &mut Vec<u8>| { bytes[HEADER + 32 * 4 + 4..][..4].copy_from_slice(&101i32.to_le_bytes()); check(bytes) }, "its exponent is 101, expected -100 to 100 for a matrix or a gain")]
#[case::rest_of_the_header(|bytes: &mut Vec<u8>| { bytes[127] = 1; check(bytes) }, "byte 127 is 1, expected 0, as it stands for nothing")]
#[case::gap(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::Rope, 0) - 1; bytes[at] = 7; check(bytes) }, " is 7, expected 0, as it stands for nothing")]
#[case::weight(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::Gate, 3) + 64; bytes[at] = 0x80; check(bytes) },
               "layer 3, Gate, row 1: a weight is -128")]
#[case::padding(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::Gate, 3) + 32; bytes[at] = 1; check(bytes) },
                "layer 3, Gate, row 0: a weight is -128, or what fills")]
#[case::scale(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::Tokens, 0) + 64 * 64 + 14; bytes[at..at + 2].fill(0); check(bytes) },
              "Tokens, row 7: its scale is 0")]
#[case::rope(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::Rope, 0); bytes[at + 1] = 0x7F; check(bytes) },
             "Rope: a cosine or a sine is beyond 1")]
#[case::text(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::Tokenizer, 0); bytes[at] = 0xFF; check(bytes) }, "Tokenizer: not a text")]
#[case::json(|bytes: &mut Vec<u8>| { let at = offset(bytes, Kind::About, 0); bytes[at] = b'['; check(bytes) }, "About: not JSON")]
fn what_is_wrong_is_told(#[case] change: fn(&mut Vec<u8>), #[case] expected: &str) {
    let mut bytes = micro().to_bytes();
    change(&mut bytes);
    let told = Image::from_bytes(&bytes).unwrap_err().to_string();
    assert!(told.contains(expected), "{told}");
}

/// Of Gemma 3N's shape: the parts that only it has, and those that only some layers have.
#[test]
fn the_directory_follows_from_the_shape() {
    let bytes = micro_gemma().to_bytes();
    let entries = entries(&bytes).unwrap();
    // Ahead of the layers, three layers with keys and values of their own, two without, behind them.
    assert_eq!(entries.len(), 7 + 3 * 27 + 2 * 23 + 5);
    for entry in &entries {
        assert_eq!((entry.offset % 64, entry.stride() % 64), (0, 0), "{entry:?}");
        assert!(entry.offset + entry.bytes <= bytes.len() as u64);
    }
    let layers_of = |kind: Kind| -> Vec<u16> {
        entries.iter().filter(|entry| entry.kind == kind).map(|entry| entry.layer).collect()
    };
    for kind in [Kind::Key, Kind::Value, Kind::KeyGain, Kind::ValueGain] {
        assert_eq!(layers_of(kind), [0, 1, 2], "{kind:?}");
    }
    for kind in [Kind::Query, Kind::QueryGain, Kind::Router, Kind::Embedding] {
        assert_eq!(layers_of(kind), [0, 1, 2, 3, 4], "{kind:?}");
    }
    for kind in [Kind::Split, Kind::Merge] {
        assert_eq!(layers_of(kind), [1, 2, 3], "{kind:?}");
    }
    let sizes = |kind: Kind| {
        let entry = entries.iter().find(|entry| entry.kind == kind).unwrap();
        (entry.rows, entry.columns)
    };
    assert_eq!(
        (sizes(Kind::Predict), sizes(Kind::Correct), sizes(Kind::Router)),
        ((16, 32), (4, 32), (4, 32))
    );
    assert_eq!((sizes(Kind::Embedding), sizes(Kind::GlobalRope)), ((64, 32), (1024, 16)));
}

#[rstest]
#[case::embedding(64, 33, "header: embedding is 33, expected a multiple of 32")]
#[case::no_embedding(64, 0, "header: embedding is 0, expected a multiple of 32")]
#[case::large_embedding(64, 8192, "header: embedding is 8192, expected 1 to 4096")]
#[case::other_embedding(64, 64, "directory: its shape takes 139 entries")]
#[case::laurel(68, 0, "header: laurel is 0, expected a multiple of 32")]
#[case::odd_laurel(68, 48, "header: laurel is 48, expected a multiple of 32")]
#[case::large_laurel(68, 8192, "header: laurel is 8192, expected 1 to 4096")]
#[case::window(72, 0, "header: window is 0, expected 1 to 65536")]
#[case::large_window(72, 65_537, "header: window is 65537, expected 1 to 65536")]
#[case::no_global(76, 0, "header: global is 0, expected 1 to 5")]
#[case::few_global(
    76,
    4,
    "header: 3 layers have keys and values of their own, and the first global one is 3"
)]
#[case::own(28, 5 | 1 << 16, "header: 1 layers have keys and values of their own, and the first global one is 1")]
#[case::no_own(28, 5, "header: 0 layers have keys and values of their own")]
#[case::more_own(28, 5 | 4 << 16, "directory: its shape takes 143 entries")]
#[case::many_own(28, 5 | 6 << 16, "header: own is 6, expected 1 to 5")]
#[case::cut(80, 6, "header: 6 layers cut their gate, and there are 5")]
fn what_gemma_cannot_be_is_told(#[case] at: usize, #[case] value: u32, #[case] expected: &str) {
    let mut bytes = micro_gemma().to_bytes();
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    check(&mut bytes);
    let told = Image::from_bytes(&bytes).unwrap_err().to_string();
    assert!(told.starts_with(expected) && told.ends_with("; import the model again"), "{told}");
}

#[rstest]
#[case::split(Kind::Split, 2, 64, 0x80, "Split of stream 2, row 1: a weight is -128")]
#[case::merge(Kind::Merge, 3, 40, 1, "Merge of stream 3, row 0: a weight is -128, or what fills")]
#[case::router(Kind::Router, 1, 4 * 64 + 2, 0, "layer 1, Router, row 1: its scale is 0")]
#[case::rope(Kind::GlobalRope, 0, 1, 0x7F, "GlobalRope: a cosine or a sine is beyond 1")]
fn what_is_wrong_with_its_parts_is_told(
    #[case] kind: Kind,
    #[case] layer: u16,
    #[case] at: usize,
    #[case] value: u8,
    #[case] expected: &str,
) {
    let mut bytes = micro_gemma().to_bytes();
    let at = offset(&bytes, kind, layer) + at;
    bytes[at..at + 1 + usize::from(value == 0)].fill(value);
    check(&mut bytes);
    let told = Image::from_bytes(&bytes).unwrap_err().to_string();
    assert!(told.starts_with(expected), "{told}");
}

/// Of Llama's shape there is nothing of it.
#[test]
fn half_of_gemma_is_told() {
    let mut bytes = micro().to_bytes();
    bytes[72] = 41;
    check(&mut bytes);
    let told = Image::from_bytes(&bytes).unwrap_err().to_string();
    assert!(told.starts_with("header: embedding is 0, expected a multiple of 32"), "{told}");
}

/// A row that could overflow is refused in an image too, whoever made it.
#[test]
fn a_row_that_could_overflow_is_refused() {
    let mut image = micro();
    let shape = &mut image.model.shape;
    (shape.width, shape.layers, shape.vocabulary) = (1024, 0, 2);
    shape.layers = 1;
    let wide = |rows: usize, columns: usize, weight: i8| crate::Matrix {
        columns,
        weights: vec![weight; rows * columns],
        rows: vec![1; rows],
        exponent: 0,
    };
    let gain = crate::Gain { factors: vec![1; 1024], exponent: 0 };
    let layer = crate::Layer {
        attention_gain: gain.clone(),
        query: wide(64, 1024, 1),
        key_value: Some(crate::KeyValue { key: wide(32, 1024, 1), value: wide(32, 1024, 1), gains: None }),
        output: wide(1024, 64, 1),
        hidden_gain: gain.clone(),
        gate: wide(32, 1024, 64),
        up: wide(32, 1024, 65),
        down: wide(1024, 32, 127),
        gemma: None,
    };
    (image.model.layers, image.model.last_gain, image.model.tokens) = (vec![layer], gain, wide(2, 1024, 1));
    let told = Image::from_bytes(&image.to_bytes()).unwrap_err().to_string();
    assert!(told.starts_with("layer 0, Up, row 0: its weights add up to 66560"), "{told}");
    image.model.layers[0].up = wide(32, 1024, -64);
    assert_eq!(Image::from_bytes(&image.to_bytes()).unwrap(), image);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(flips in prop::collection::vec((0..4096usize, any::<u8>()), 1..4), cut in 0..200_000usize, mend in any::<bool>(), gemma in any::<bool>()) {
        let mut bytes = if gemma { micro_gemma() } else { micro() }.to_bytes();
        for (at, byte) in flips {
            bytes[at] = byte;
        }
        bytes.truncate(cut.max(HEADER));
        if mend {
            let length = bytes.len() as u64;
            bytes[16..24].copy_from_slice(&length.to_le_bytes());
            check(&mut bytes);
        }
        let _ = Image::from_bytes(&bytes);
    }
}
