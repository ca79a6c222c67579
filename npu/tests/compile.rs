//! What a compiler gives, and what it refuses.

mod common;

use common::{Beside, Logits, machine, program};
use doorbell_lm::image::{Entry, Kind, directory, entries};
use doorbell_lm::{Image, Rope, Shape, micro, micro_gemma};
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

/// Two loops, each with a table of its own.
#[test]
fn gemma_has_two_loops() {
    let image = micro_gemma();
    let (program, memory) = program(&image);
    assert_eq!(assemble(&listing(&program.words)).unwrap(), program.words);
    let text: Vec<String> = program.words.iter().map(|&word| disassemble(word)).collect();
    let loops: Vec<&str> =
        text.iter().filter(|line| line.starts_with("layers ")).map(String::as_str).collect();
    assert_eq!(loops, ["layers count=3 words=46 desc=3", "layers count=2 words=41 desc=4"]);
    let attends: Vec<&String> = text.iter().filter(|line| line.starts_with("attn ")).collect();
    assert!(attends[0].ends_with(" window") && attends[1].ends_with(" window source"), "{attends:?}");
    assert_eq!(text.iter().filter(|line| line.starts_with("memcpy.kv ")).count(), 1);
    assert_eq!(
        (program.words.len(), program.lines(), program.block),
        (200, 95, 3 * Block { width: 32 }.bytes())
    );
    // What a layer's words say: who is global, who cuts, whose keys and values it reads; and where they lie.
    let register = |layer: usize, name: &str| {
        let line = program.layers[layer].iter().map(|&word| disassemble(word));
        let mut found = line.filter(|line| line.starts_with(name));
        found.next().map(|line| line.split('=').nth(1).unwrap().trim().parse::<u64>().unwrap())
    };
    let all = |name| [0, 1, 2, 3, 4].map(|layer| register(layer, name));
    assert_eq!(all("memset.window"), [41, 65_536, 41, 65_536, 41].map(Some));
    assert_eq!(all("memset.cut"), [107_797, 107_797, 0, 0, 0].map(Some));
    assert_eq!(all("memset.source"), [None, None, None, Some(1), Some(2)]);
    for (layer, words) in program.layers.iter().enumerate() {
        assert!(words.iter().all(|&word| disassemble(word).starts_with("memset.")));
        let at = program.table as usize + layer * 6 * 64;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(memory[at..][..bytes.len()], bytes, "layer {layer}");
    }
    let base = |text: &str| text.split("base=").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>();
    let tables = [3, 4].map(|index| {
        let found = text.iter().find(|line| line.starts_with(&format!("memset.desc index={index} ")));
        base(found.unwrap()).unwrap() * 64
    });
    assert_eq!(tables, [program.table, program.table + 3 * 6 * 64]);
    assert_eq!(program.start, program.table + 5 * 6 * 64);
}

/// Gemma 3N E4B's language model has a program: descriptors, on-chip memory and a block are all in their bounds.
#[test]
fn gemma_3n_e4b_fits() {
    let shape = Shape::GEMMA_3N_E4B;
    let (entries, bytes) = directory(&shape, 1000, 1000);
    let program = compile(&shape, 1, &entries, bytes).unwrap();
    assert_eq!((program.words.len(), program.layers.len()), (200, 35));
    assert_eq!(
        program.layers.iter().map(Vec::len).collect::<Vec<_>>(),
        [[46; 20].as_slice(), &[41; 15]].concat()
    );
    assert_eq!((program.lines(), program.block), (4410, 20 * 2 * Block { width: 256 }.bytes()));
    let image = bytes / 64;
    assert!((100_000_000..u64::from(u32::MAX)).contains(&image), "{image} lines");
    // Twice as wide a gate does not.
    let wide = Shape { hidden: 65_504, ..shape };
    let (entries, bytes) = directory(&wide, 1000, 1000);
    let error = compile(&wide, 1, &entries, bytes).unwrap_err();
    assert!(
        matches!(error, CompileError::TooLarge { what: "on-chip memory in lines", most: 8192, .. }),
        "{error}"
    );
}

/// Every line of the map is written by a step, but for what fills up a line.
#[rstest]
#[case(micro())]
#[case(micro_gemma())]
fn a_step_writes_all_of_its_memory(#[case] image: Image) {
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

#[rstest]
#[case::missing(|shape: &mut Shape| shape.layers = 6, "RouterGain of layer 5 is not in the image")]
#[case::own(|shape: &mut Shape| shape.gemma.as_mut().unwrap().own = 4, "KeyGain of layer 3 is not in the image")]
#[case::embedding(|shape: &mut Shape| shape.gemma.as_mut().unwrap().embedding = 64, "ProjectionGain of layer 0 is not in the image")]
#[case::laurel(|shape: &mut Shape| shape.gemma.as_mut().unwrap().laurel = 64, "Left of layer 0 is not in the image")]
#[case::window(|shape: &mut Shape| shape.gemma.as_mut().unwrap().window = 0, "window is 0")]
fn what_does_not_fit_gemma_is_refused(#[case] change: fn(&mut Shape), #[case] reason: &str) {
    let (mut shape, entries, bytes) = of(&micro_gemma());
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
