//! What a compiler gives, and what it refuses.

mod common;

use common::{Beside, Logits, machine, program};
use doorbell_lm::image::{Entry, Kind, entries};
use doorbell_lm::{Image, Rope, Shape, micro};
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::layout::Block;
use doorbell_npu::run::Place;
use doorbell_npu::text::{assemble, disassemble, listing};
use doorbell_npu::{CompileError, compile};
use rstest::rstest;

fn of(image: &Image) -> (Shape, Vec<Entry>, u64) {
    let bytes = image.to_bytes();
    (image.model.shape, entries(&bytes).unwrap(), bytes.len() as u64)
}

#[test]
fn a_program_is_small_and_text() {
    let image = micro();
    let (program, memory) = program(&image);
    assert_eq!((program.words.len(), program.layers.len()), (49, 4));
    assert_eq!(assemble(&listing(&program.words)).unwrap(), program.words);
    for words in &program.layers {
        assert_eq!(words.len(), 16, "two lines");
        assert!(words.iter().all(|&word| disassemble(word).starts_with("memset.desc ")));
    }
    let words = |at: u64, count: usize| -> Vec<u64> {
        memory[at as usize..]
            .chunks_exact(8)
            .take(count)
            .map(|eight| u64::from_le_bytes(eight.try_into().unwrap()))
            .collect()
    };
    assert_eq!(words(program.table + 3 * 128, 16), program.layers[3]);
    assert_eq!(words(program.start, 49), program.words);
    assert_eq!(program.block, 4 * Block { width: 32 }.bytes());
    // Nothing lies over anything else.
    let mut end = 0;
    for part in &program.map {
        assert_eq!(part.start, end, "{}", part.name);
        assert!(part.lines > 0, "{}", part.name);
        end += part.lines;
    }
    assert_eq!((program.lines(), end), (36, 36));
}

/// Every line of the map is written by a step, but for what fills up a line.
#[test]
fn a_step_writes_all_of_its_memory() {
    let image = micro();
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 1, 1, Speed::Fast, 1);
    struct Written(Vec<bool>);
    impl doorbell_npu::run::Observer for Written {
        fn executed(&mut self, _: &Place, writes: &[doorbell_npu::run::Write]) {
            for write in writes.iter().filter(|write| write.space == doorbell_npu::run::Space::Chip) {
                self.0[write.at as usize / 64..][..write.bytes.len() / 64].fill(true);
            }
        }
    }
    let mut written = Written(vec![false; program.lines() as usize]);
    machine.step(&program.words, &[0], &mut written)[0].unwrap();
    assert_eq!(written.0, vec![true; program.lines() as usize]);
}

/// More tokens than 16 bits count: M and N together do.
#[test]
fn a_vocabulary_may_be_large() {
    let mut image = micro();
    let model = &mut image.model;
    model.shape.vocabulary = 66_000;
    model.shape.context = 65_536;
    model.shape.layers = 1;
    model.layers.truncate(1);
    model.tokens.weights =
        (0..66_000 * 32u32).map(|k| (k.wrapping_mul(0x9E37_79B9) >> 24) as i8 / 2).collect();
    model.tokens.rows = (0..66_000u32).map(|k| 0x8000 | (k.wrapping_mul(0x85EB_CA6B) >> 17) as u16).collect();
    model.rope = Rope::of(10_000.0, 32, 65_536);
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 1, 1, Speed::Fast, 2);
    let mut oracle = Beside::new(&image);
    machine.contexts[0].token = 65_999;
    let mut logits = Logits::default();
    machine.step(&program.words, &[0], &mut logits)[0].unwrap();
    assert_eq!(logits.0[0], oracle.step(65_999));
}

#[rstest]
#[case::heads(|shape: &mut Shape| shape.kv_heads = 3, "2 heads cannot share 3")]
#[case::width(|shape: &mut Shape| shape.width = 33, "multiple of 32")]
#[case::missing(|shape: &mut Shape| shape.layers = 5, "AttentionGain of layer 4 is not in the image")]
#[case::size(|shape: &mut Shape| shape.hidden = 64, "Gate of layer 0 is not in the image")]
#[case::last(|shape: &mut Shape| shape.vocabulary = 65, "Tokens of layer 0 is not in the image")]
#[case::queries(|shape: &mut Shape| shape.heads = 4096, "queries is 131072, and words hold 65504 at most")]
fn what_does_not_fit_is_refused(#[case] change: fn(&mut Shape), #[case] reason: &str) {
    let (mut shape, entries, bytes) = of(&micro());
    change(&mut shape);
    let error = compile(&shape, 10, &entries, bytes).unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn what_fields_do_not_hold_is_refused() {
    let (shape, entries, bytes) = of(&micro());
    let changed = |change: &dyn Fn(&mut Shape, &mut Vec<Entry>)| {
        let (mut shape, mut entries) = (shape, entries.clone());
        change(&mut shape, &mut entries);
        compile(&shape, 10, &entries, bytes).unwrap_err()
    };
    // A prime above 16 bits.
    let prime = changed(&|shape, entries| {
        shape.vocabulary = 65_537;
        entries.iter_mut().filter(|entry| entry.kind == Kind::Tokens).for_each(|entry| entry.rows = 65_537);
    });
    assert_eq!(prime, CompileError::Rows { what: "vocabulary", value: 65_537 });
    let far = changed(&|_, entries| entries[3].offset = 1 << 40);
    assert!(matches!(far, CompileError::TooLarge { what: "offset in lines", .. }), "{far}");
    let exponent = changed(&|_, entries| entries[4].exponent = 128);
    assert!(matches!(exponent, CompileError::Part { .. }), "{exponent}");
    let askew = changed(&|_, entries| entries[5].offset += 32);
    assert!(matches!(askew, CompileError::Part { .. }), "{askew}");
    let table = compile(&shape, 10, &entries, 1 << 40).unwrap_err();
    assert!(matches!(table, CompileError::TooLarge { what: "table in lines", .. }), "{table}");
}
