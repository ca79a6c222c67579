//! Every malformed word, and every operand beyond an edge, gives its own error with its place and its bits; what lies on the edge runs.

mod common;

use common::{Beside, Draws, Logits, machine, program};
use doorbell_lm::micro;
use doorbell_npu::arithmetic::Speed;
use doorbell_npu::isa::Fault;
use doorbell_npu::run::{Arena, Latency, Machine, Scoreboard, Settings};
use doorbell_npu::text::assemble;
use rstest::rstest;

/// Lines of a context, and of the model's memory.
const LINES: u32 = 32;
const MEMORY: u64 = 200;
/// Bytes of a block: keys and values of one head of 32 channels in two layers.
const BLOCK: u64 = 2 * 34 * 64;

/// Shapes: fmap 0 is 64 numbers (four lines), 1 two heads of 32, 2 16 words (four lines), 3 a table of five rows of four words. Matrix 0 has
/// 64 rows of 64, from descriptor 0 on, its scales from 1 on.
const SET: &str = "memset.fmap index=0 m=1 n=2 k=32\nmemset.fmap index=1 m=2 n=1 k=32\nmemset.fmap index=2 m=1 n=4 k=4
memset.fmap index=3 m=1 n=5 k=4\nmemset.fmap index=4 m=1 n=1 k=33\nmemset.fmap index=5 m=0 n=1 k=32
memset.fmap index=6 m=1 n=1 k=288\nmemset.fmap index=7 m=3 n=2 k=32\nmemset.fmap index=8 m=1 n=65535 k=65535
memset.weight index=0 m=1 n=64 k=64\nmemset.weight index=1 m=1 n=33 k=64\nmemset.weight index=2 m=1 n=64 k=48
memset.weight index=3 m=0 n=64 k=64\nmemset.desc index=0 base=100 aux=-20\nmemset.desc index=1 base=164 aux=0
memset.desc index=2 base=137 aux=0\nmemset.desc index=3 base=199 aux=0\nmemset.desc index=4 base=0 aux=128
memset.desc index=5 base=68 aux=34\nmemset.desc index=6 base=67 aux=34\nmemset.desc index=7 base=68 aux=33
memset.desc index=8 base=195 aux=1\nmemset.desc index=9 base=196 aux=1\nmemset.desc index=10 base=0 aux=-1
memset.desc index=11 base=4294967295 aux=0\nmemset.desc index=12 base=0 aux=0\nmemset.desc index=13 base=198 aux=0
memset.desc index=14 base=200 aux=0\nmemset.desc index=17 base=136 aux=68\nmemset.epsilon value=10\nmemset.factor value=16715
memset.window value=40\nmemset.source value=1\nmemset.cut value=107797\nmemset.sinks value=32\n";

fn small(contexts: usize) -> Machine {
    let mut draws = Draws(1);
    let mut memory: Vec<u8> = (0..MEMORY * 64).map(|_| draws.next() as u8).collect();
    // Nothing else stands where layers' words are looked for: one line of `end`, one of MEMSETs.
    for (place, eight) in memory[198 * 64..].chunks_exact_mut(8).enumerate() {
        let word: u64 = if place < 8 { 0x3000_0010_0020_0200 } else { 0x8000_0000_0000_0000 };
        eight.copy_from_slice(&word.to_le_bytes());
    }
    let mut machine =
        Machine::new(Settings { lines: LINES, speed: Speed::Fast }, memory, BLOCK as usize * 2 * contexts);
    for context in 0..contexts as u64 {
        machine.admit(Arena { base: context * 2 * BLOCK, bytes: 2 * BLOCK }, vec![1, 0, 2]);
    }
    for context in &mut machine.contexts {
        context.output = vec![0; 5 * 64];
    }
    machine
}

/// How a program ends that consists of these lines behind [`SET`]: at which of its own lines, and why.
fn ends(lines: &str, change: impl Fn(&mut Machine)) -> Result<(), (usize, u64, Fault)> {
    let words = assemble(&format!("{SET}{lines}")).unwrap();
    let first = assemble(SET).unwrap().len();
    let run = |step: &dyn Fn(&mut Machine) -> _| {
        let mut machine = small(1);
        change(&mut machine);
        step(&mut machine)
    };
    let plain = run(&|machine: &mut Machine| machine.step(&words, &[0], &mut ()));
    let scoreboard = Scoreboard::new(Latency::Random(1));
    assert_eq!(plain, run(&|machine: &mut Machine| scoreboard.step(machine, &words, &[0], &mut ()).0));
    plain[0].map(|_| ()).map_err(|stop| {
        assert_eq!(stop.word, words.get(stop.pc as usize).copied().unwrap_or(0));
        (stop.pc as usize - first, stop.word, stop.fault)
    })
}

/// The first of these lines is at fault.
#[rstest]
// Words.
#[case::opcode(".word 0x9000000000000000", Fault::UnknownOpcode)]
#[case::last_opcode(".word 0xffffffffffffffff", Fault::UnknownOpcode)]
#[case::vec_function(".word 0x53c0000000000000", Fault::UnknownFunction)]
#[case::cvo_function(".word 0x4800000000000000", Fault::UnknownFunction)]
#[case::control_function(".word 0x8400000000000000", Fault::UnknownFunction)]
#[case::copy_kind(".word 0x280000000000a000", Fault::UnknownFunction)]
#[case::copy_route(".word 0x2400000000002000", Fault::BadRoute)]
#[case::register(".word 0x3c60000000000000", Fault::UnknownRegister)]
#[case::reserved_gemv(".word 0x0000000000000004", Fault::ReservedBits { bits: 4 })]
#[case::reserved_control(".word 0x8000000000000001", Fault::ReservedBits { bits: 1 })]
#[case::unary_with_b(".word 0x5080000000008000", Fault::ReservedBits { bits: 0x8000 })]
#[case::gemm("gemm dest=0 src=0 desc=0 shape=0 lanes=0", Fault::NotBuilt)]
#[case::max("gemv dest=0 src=64 desc=0 shape=0 lanes=0 max", Fault::NotBuilt)]
#[case::exp("cvo.exp src=0 dst=0 length=16", Fault::NotBuilt)]
#[case::no_end("vec.act dst=16 a=0 shape=0\nvec.act dst=16 a=0 shape=0", Fault::NoEnd)]
// What is not set.
#[case::fmap("vec.act dst=16 a=0 shape=63", Fault::ShapeUnset { index: 63 })]
#[case::weight("gemv dest=0 src=64 desc=0 shape=9 lanes=0", Fault::ShapeUnset { index: 9 })]
#[case::desc("gemv dest=0 src=64 desc=15 shape=0 lanes=0", Fault::DescriptorUnset { index: 15 })]
#[case::scales("gemv dest=0 src=64 desc=14 shape=0 lanes=0", Fault::DescriptorUnset { index: 15 })]
#[case::last_scales("memset.desc index=63 base=0 aux=0\ngemv dest=0 src=64 desc=63 shape=0 lanes=0", Fault::DescriptorUnset { index: 64 })]
// Addresses.
#[case::odd_dest("gemv dest=2 src=64 desc=0 shape=0 lanes=0", Fault::Misaligned { address: 2 })]
#[case::odd_src("gemv dest=0 src=65 desc=0 shape=0 lanes=0", Fault::Misaligned { address: 65 })]
#[case::odd_copy("memcpy.in dest=3 src=0 desc=12 shape=2", Fault::Misaligned { address: 3 })]
#[case::odd_kv("layers count=1 words=0 desc=12\nmemcpy.kv src=1 desc=5 shape=1", Fault::Misaligned { address: 1 })]
#[case::odd_out("memcpy.out dest=0 src=7 shape=2", Fault::Misaligned { address: 7 })]
#[case::dest("gemv dest=116 src=64 desc=0 shape=0 lanes=0", Fault::OutOfRange { start: 29, end: 33, lines: LINES })]
#[case::src("gemv dest=0 src=120 desc=0 shape=0 lanes=0", Fault::OutOfRange { start: 30, end: 33, lines: LINES })]
#[case::far("memcpy.in dest=131068 src=0 desc=12 shape=2", Fault::OutOfRange { start: 32_767, end: 32_771, lines: LINES })]
#[case::vec_dst("vec.act dst=120 a=0 shape=0", Fault::OutOfRange { start: 30, end: 33, lines: LINES })]
#[case::vec_a("vec.act dst=0 a=116 shape=0", Fault::OutOfRange { start: 29, end: 33, lines: LINES })]
#[case::gain("vec.norm dst=0 a=16 b=120 shape=0", Fault::OutOfRange { start: 30, end: 33, lines: LINES })]
#[case::turns("vec.rope dst=0 a=0 b=128 shape=1", Fault::OutOfRange { start: 32, end: 33, lines: LINES })]
#[case::head("head src=120 desc=0 shape=0 first last", Fault::OutOfRange { start: 30, end: 33, lines: LINES })]
#[case::over_itself("vec.act dst=0 a=8 shape=0", Fault::Overlap)]
#[case::half_in_place("vec.add dst=4 a=0 b=32 shape=0", Fault::Overlap)]
#[case::over_its_activation("gemv dest=64 src=64 desc=0 shape=0 lanes=0", Fault::Overlap)]
// Dimensions.
#[case::odd_length("vec.act dst=16 a=0 shape=4", Fault::BadLength { value: 33 })]
#[case::no_length("vec.act dst=16 a=0 shape=5", Fault::BadLength { value: 0 })]
#[case::wide_head("vec.store dst=16 a=0 shape=6", Fault::BadLength { value: 288 })]
#[case::long("vec.act dst=16 a=0 shape=8", Fault::BadLength { value: 65_535 * 65_535 })]
#[case::odd_rows("gemv dest=0 src=64 desc=0 shape=1 lanes=0 acc", Fault::BadLength { value: 33 })]
#[case::odd_columns("gemv dest=0 src=64 desc=0 shape=2 lanes=0", Fault::BadLength { value: 48 })]
#[case::no_rows("gemv dest=0 src=64 desc=0 shape=3 lanes=0", Fault::BadLength { value: 0 })]
#[case::odd_words("memcpy.in dest=0 src=0 desc=12 shape=4", Fault::BadLength { value: 33 })]
#[case::no_keys("layers count=1 words=0 desc=12\nmemcpy.kv src=0 desc=5 shape=0", Fault::BadLength { value: 1 })]
#[case::heads("layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=7 desc=17", Fault::BadLength { value: 2 })]
// Memory.
#[case::rows("memset.desc index=14 base=137 aux=0\nmemset.desc index=15 base=0 aux=0\ngemv dest=0 src=64 desc=14 shape=0 lanes=0", Fault::MemoryOutOfRange { start: 137 * 64, end: 201 * 64 })]
#[case::row_scales("memset.desc index=2 base=199 aux=0\ngemv dest=0 src=64 desc=1 shape=0 lanes=0", Fault::MemoryOutOfRange { start: 164 * 64, end: 228 * 64 })]
#[case::only_scales("memset.desc index=1 base=199 aux=0\ngemv dest=0 src=64 desc=0 shape=0 lanes=0", Fault::MemoryOutOfRange { start: 199 * 64, end: 201 * 64 })]
#[case::copy("memcpy.in dest=0 src=1 desc=9 shape=2", Fault::MemoryOutOfRange { start: 197 * 64, end: 201 * 64 })]
#[case::far_copy("memcpy.in dest=0 src=131071 desc=11 shape=2", Fault::MemoryOutOfRange { start: (131_071 + 0xFFFF_FFFF) * 64, end: (131_075 + 0xFFFF_FFFF) * 64 })]
#[case::factors("memcpy.gain dest=0 desc=3 shape=0", Fault::MemoryOutOfRange { start: 199 * 64, end: 201 * 64 })]
#[case::table("memcpy.row dest=0 desc=9 shape=3", Fault::MemoryOutOfRange { start: 196 * 64, end: 201 * 64 })]
#[case::exponent("memcpy.gain dest=0 desc=4 shape=0", Fault::BadAux { value: 128 })]
#[case::stride("memcpy.row dest=0 desc=10 shape=3", Fault::BadAux { value: -1 })]
#[case::output("memcpy.out dest=2 src=0 shape=2", Fault::OutputOutOfRange { start: 128, end: 384 })]
// Loops, keys and values, the sampler.
#[case::no_loop("next", Fault::NoLoop)]
#[case::no_layers("layers count=0 words=0 desc=12", Fault::BadLoop)]
#[case::two_loops("layers count=1 words=0 desc=12\nlayers count=1 words=0 desc=12", Fault::BadLoop)]
#[case::end_in_loop("layers count=1 words=0 desc=12\nend", Fault::BadLoop)]
#[case::silent_in_loop("layers count=1 words=0 desc=12\nend.silent", Fault::BadLoop)]
#[case::layer_word("layers count=1 words=1 desc=3", Fault::BadLayerWord { word: 0x8000_0000_0000_0000 })]
#[case::no_layer_words("layers count=1 words=1 desc=14", Fault::MemoryOutOfRange { start: 200 * 64, end: 201 * 64 })]
#[case::kv_out_of_loop("attn dst=0 src=64 shape=1 desc=5", Fault::NoLoop)]
#[case::kv_layer("layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=7 desc=5", Fault::BlockTooSmall { needed: 2 * 34 * 64 })]
#[case::kv_stride("layers count=1 words=0 desc=12\nmemcpy.kv src=0 desc=7 shape=1", Fault::BlockTooSmall { needed: 34 * 64 })]
#[case::no_first("head src=0 desc=0 shape=0 last", Fault::NoFirst)]
#[case::odd_head("head src=0 desc=0 shape=1 first", Fault::BadLength { value: 33 })]
// Gemma 3N's words: dimensions, registers, places.
#[case::filled_up("gemv dest=116 src=64 desc=0 shape=1 lanes=0", Fault::OutOfRange { start: 29, end: 33, lines: LINES })]
#[case::no_heads("vec.level dst=0 a=0 b=64 shape=5", Fault::BadLength { value: 0 })]
#[case::many_heads("memset.fmap index=9 m=17 n=241 k=32\nvec.level dst=0 a=0 b=64 shape=9", Fault::BadLength { value: 4097 })]
#[case::wide_level("memset.fmap index=9 m=1 n=1 k=4128\nvec.level dst=0 a=0 b=64 shape=9", Fault::BadLength { value: 4128 })]
#[case::odd_level("vec.level dst=0 a=0 b=64 shape=4", Fault::BadLength { value: 33 })]
#[case::long_tanh("vec.tanh dst=64 a=0 shape=8", Fault::BadLength { value: 65_535 * 65_535 })]
#[case::long_rescale("memset.fmap index=9 m=1 n=129 k=32\nvec.rescale dst=0 a=0 b=64 shape=9", Fault::BadLength { value: 4128 })]
#[case::long_cut("memset.fmap index=9 m=2 n=1025 k=32\nvec.cut dst=0 a=0 shape=9", Fault::BadLength { value: 65_600 })]
#[case::streams("memset.fmap index=9 m=5 n=1 k=32\nvec.predict dst=0 a=0 b=64 shape=9", Fault::BadLength { value: 5 })]
#[case::corrected("memset.fmap index=9 m=1 n=5 k=32\nvec.correct dst=0 a=40 b=64 shape=9", Fault::BadLength { value: 5 })]
#[case::wide_streams("memset.fmap index=9 m=1 n=1 k=4128\nvec.predict dst=0 a=0 b=64 shape=9", Fault::BadLength { value: 4128 })]
#[case::no_window("memset.window value=0\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=17 window", Fault::BadLength { value: 0 })]
#[case::window("memset.window value=65537\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=17 window", Fault::BadLength { value: 65_537 })]
#[case::odd_sinks("memset.sinks value=33\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=17 window sinks", Fault::BadLength { value: 33 })]
#[case::sinks("memset.sinks value=65568\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=17 window sinks", Fault::BadLength { value: 65_568 })]
#[case::source("memset.source value=65536\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=17 source", Fault::BadLength { value: 65_536 })]
#[case::source_beyond("memset.source value=2\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 source", Fault::BlockTooSmall { needed: 3 * 34 * 64 })]
#[case::last_source("memset.source value=65535\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 source", Fault::BlockTooSmall { needed: 65_536 * 34 * 64 })]
#[case::source_out_of_loop("attn dst=0 src=64 shape=1 desc=5 source", Fault::NoLoop)]
#[case::behind_a_loop(
    "layers count=1 words=0 desc=12\nnext\nattn dst=0 src=64 shape=1 desc=5 source",
    Fault::NoLoop
)]
#[case::level_overlaps("vec.level dst=4 a=0 b=64 shape=1", Fault::Overlap)]
#[case::gain_overlaps("memset.fmap index=9 m=1 n=1 k=32\nvec.level dst=64 a=0 b=64 shape=9", Fault::Overlap)]
#[case::tanh_in_place("vec.tanh dst=0 a=0 shape=0", Fault::Overlap)]
#[case::geglu_in_place("vec.geglu dst=16 a=0 b=16 shape=0", Fault::Overlap)]
#[case::blend_overlaps("vec.blend dst=4 a=32 b=0 shape=0", Fault::Overlap)]
#[case::cut_overlaps("vec.cut dst=4 a=0 shape=0", Fault::Overlap)]
#[case::rescaled_by_itself("vec.rescale dst=0 a=0 b=0 shape=0", Fault::Overlap)]
#[case::rescaled_over_b("vec.rescale dst=16 a=0 b=16 shape=0", Fault::Overlap)]
#[case::predicted_beside("vec.predict dst=8 a=0 b=64 shape=1", Fault::Overlap)]
#[case::predicted_over("vec.predict dst=0 a=0 b=12 shape=1", Fault::Overlap)]
#[case::corrected_over("vec.correct dst=0 a=32 b=12 shape=1", Fault::Overlap)]
#[case::corrected_by_itself("vec.correct dst=0 a=0 b=32 shape=1", Fault::Overlap)]
#[case::one_corrected_by_itself(
    "memset.fmap index=9 m=1 n=1 k=32\nvec.correct dst=0 a=0 b=64 shape=9",
    Fault::Overlap
)]
#[case::corrected_by_another("vec.correct dst=0 a=8 b=32 shape=1", Fault::Overlap)]
#[case::stream_range("vec.correct dst=116 a=0 b=16 shape=1", Fault::OutOfRange { start: 29, end: 33, lines: LINES })]
#[case::coefficients("vec.predict dst=0 a=0 b=128 shape=1", Fault::OutOfRange { start: 32, end: 33, lines: LINES })]
#[case::found_range("vec.correct dst=0 a=124 b=16 shape=1", Fault::OutOfRange { start: 31, end: 33, lines: LINES })]
#[case::level_gain("vec.level dst=0 a=0 b=124 shape=1", Fault::OutOfRange { start: 31, end: 33, lines: LINES })]
#[case::spent("head src=0 desc=0 shape=0 first last\nhead src=0 desc=0 shape=0", Fault::NoFirst)]
fn a_word_is_refused_by_name(#[case] lines: &str, #[case] fault: Fault) {
    let last = lines.lines().count();
    let at = if fault == Fault::NoEnd { last } else { last - 1 };
    let found = ends(lines, |_| ());
    assert_eq!(found.map_err(|(line, _, fault)| (line, fault)), Err((at, fault)));
    let said = format!("{fault:?}");
    let name = said.split(' ').next().unwrap();
    assert!(include_str!("../../docs/isa.md").contains(name), "docs/isa.md does not know {name}");
}

/// One more of anything would be too much.
#[rstest]
#[case("gemv dest=112 src=0 desc=0 shape=0 lanes=31 scale")]
#[case("gemv dest=0 src=116 desc=0 shape=0 lanes=0 acc")]
#[case("vec.act dst=116 a=0 shape=0")]
#[case("vec.act dst=0 a=112 shape=0")]
#[case("vec.act dst=0 a=16 shape=0")]
#[case("vec.norm dst=0 a=16 b=116 shape=0")]
#[case("vec.rope dst=0 a=0 b=124 shape=1")]
#[case("vec.add dst=0 a=0 b=0 shape=0")]
#[case("vec.mul dst=0 a=0 b=112 shape=0\nvec.store dst=0 a=12 shape=1")]
#[case("memcpy.in dest=112 src=0 desc=9 shape=2")]
#[case("memcpy.gain dest=0 desc=13 shape=0")]
#[case("memcpy.row dest=0 desc=8 shape=3")]
#[case("memcpy.out dest=1 src=112 shape=2")]
#[case("head src=116 desc=0 shape=0 first\nhead src=0 desc=0 shape=0 last")]
#[case("head src=116 desc=0 shape=1 first last")]
#[case(
    "layers count=2 words=8 desc=13\nmemcpy.kv src=0 desc=5 shape=1\nattn dst=0 src=64 shape=1 desc=5\nnext"
)]
#[case("layers count=65535 words=0 desc=12\nnext")]
#[case("gemv dest=112 src=0 desc=0 shape=1 lanes=0\ngemv dest=0 src=116 desc=0 shape=1 lanes=0 scale")]
#[case("vec.level dst=0 a=0 b=120 shape=1\nvec.level dst=112 a=0 b=96 shape=1")]
#[case("vec.tanh dst=116 a=0 shape=0\nvec.geglu dst=16 a=0 b=0 shape=0")]
#[case(
    "vec.blend dst=0 a=0 b=112 shape=0\nvec.blend dst=112 a=0 b=112 shape=0\nvec.blend dst=0 a=0 b=0 shape=0"
)]
#[case("vec.cut dst=0 a=0 shape=0\nvec.rescale dst=0 a=0 b=112 shape=0\nvec.rescale dst=0 a=16 b=16 shape=0")]
#[case(
    "vec.predict dst=0 a=0 b=124 shape=1\nvec.correct dst=112 a=104 b=108 shape=1\nvec.correct dst=0 a=16 b=16 shape=1"
)]
#[case(
    "memset.window value=65536\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 window\nnext"
)]
#[case(
    "memset.window value=1\nlayers count=2 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 window source\nnext\nlayers count=5 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 source\nnext"
)]
#[case("head src=0 desc=0 shape=0 first cap\nhead src=0 desc=0 shape=1 last cap")]
fn what_lies_on_the_edge_runs(#[case] lines: &str) {
    assert_eq!(ends(&format!("{lines}\nend"), |_| ()), Ok(()));
}

/// What only the second layer does wrong is told with the word and its place in the program.
#[rstest]
#[case("layers count=2 words=8 desc=13\nnext", 1, Fault::BadLayerWord { word: 0x8000_0000_0000_0000 })]
#[case("layers count=3 words=0 desc=12\nmemcpy.kv src=0 desc=5 shape=1\nnext", 1, Fault::BlockTooSmall { needed: 3 * 34 * 64 })]
#[case("layers count=2 words=0 desc=12\nmemcpy.kv src=0 desc=6 shape=1\nnext", 1, Fault::BlockTooSmall { needed: 2 * 34 * 64 })]
fn a_later_layer_is_refused_too(#[case] lines: &str, #[case] at: usize, #[case] fault: Fault) {
    // Line 198 has MEMSETs, line 199 has none.
    let lines = lines.replace("desc=13", "desc=16");
    let lines = format!("memset.desc index=16 base=198 aux=1\n{lines}");
    assert_eq!(ends(&lines, |_| ()).map_err(|(line, _, fault)| (line, fault)), Err((at + 1, fault)));
}

/// Rows that are no multiple of 32 are filled up with zeros, whatever stood there.
#[test]
fn behind_the_last_row_stand_zeros() {
    let words = assemble(&format!("{SET}gemv dest=0 src=64 desc=0 shape=1 lanes=0\nend")).unwrap();
    let mut machine = small(1);
    machine.contexts[0].chip_mut().fill(0xA5);
    machine.step(&words, &[0], &mut ())[0].unwrap();
    let chip = machine.contexts[0].chip();
    assert!(chip[33 * 4..64 * 4].iter().all(|&byte| byte == 0), "31 of them");
    assert!(chip[..33 * 4].iter().any(|&byte| byte != 0) && chip[64 * 4..].iter().all(|&byte| byte == 0xA5));
}

/// Each register is one of its own, and none is set by itself.
#[rstest]
#[case("epsilon", "vec.norm dst=64 a=0 b=16 shape=0")]
#[case("epsilon", "vec.level dst=64 a=0 b=16 shape=0")]
#[case("epsilon", "vec.rescale dst=64 a=0 b=16 shape=0")]
#[case("cut", "vec.cut dst=64 a=0 shape=0")]
#[case("factor", "layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5")]
#[case("window", "layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 window")]
#[case("source", "layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 source")]
#[case("sinks", "layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 sinks")]
fn a_register_has_to_be_set(#[case] register: &str, #[case] lines: &str) {
    let mut words = assemble(&format!("{SET}{lines}")).unwrap();
    let set = assemble(&format!("memset.{register} value=0")).unwrap()[0] >> 52;
    words.retain(|word| word >> 52 != set);
    let stop = small(1).step(&words, &[0], &mut ())[0].unwrap_err();
    assert_eq!((stop.pc as usize, stop.fault), (words.len() - 1, Fault::RegisterUnset));
    // With all of the others unset, nothing is missed but the end.
    let of = |name: &str| assemble(&format!("memset.{name} value=0")).unwrap()[0] >> 52;
    let others = ["epsilon", "factor", "window", "source", "cut", "sinks"].map(of);
    let needed = if lines.contains("attn") { of("factor") } else { set };
    let mut words = assemble(&format!("{SET}{lines}")).unwrap();
    words.retain(|word| !others.contains(&(word >> 52)) || [set, needed].contains(&(word >> 52)));
    assert_eq!(small(1).step(&words, &[0], &mut ())[0].unwrap_err().fault, Fault::NoEnd);
}

/// Of what a window does not reach no block is looked up.
#[rstest]
#[case(1, None)]
#[case(9, None)]
#[case(10, Some(Fault::BlockOutOfRange { entry: 0, block: 7 }))]
#[case(65_536, Some(Fault::BlockOutOfRange { entry: 0, block: 7 }))]
fn blocks_ahead_of_a_window_may_be_missing(#[case] window: u32, #[case] fault: Option<Fault>) {
    let lines = format!(
        "memset.window value={window}\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 window\nnext\nend"
    );
    // Position 40 with a window of 9 sees 32 and more.
    let found = ends(&lines, |machine| {
        machine.contexts[0].position = 40;
        machine.contexts[0].blocks = vec![7, 1];
    });
    assert_eq!(found.map_err(|(.., fault)| fault), fault.map_or(Ok(()), Err));
}

/// Sinks are looked up besides the window, and what lies between them is not.
#[rstest]
#[case(0, vec![7, 7, 1], None)]
#[case(32, vec![0, 7, 1], None)]
#[case(32, vec![7, 7, 1], Some(Fault::BlockOutOfRange { entry: 0, block: 7 }))]
#[case(64, vec![0, 7, 1], Some(Fault::BlockOutOfRange { entry: 1, block: 7 }))]
#[case(65_536, vec![0, 1, 7], Some(Fault::BlockOutOfRange { entry: 2, block: 7 }))]
fn blocks_between_sinks_and_window_may_be_missing(
    #[case] sinks: u32,
    #[case] blocks: Vec<u32>,
    #[case] fault: Option<Fault>,
) {
    let lines = format!(
        "memset.window value=9\nmemset.sinks value={sinks}\nlayers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5 window sinks\nnext\nend"
    );
    // Position 72 with a window of 9 sees 64 and more.
    let found = ends(&lines, |machine| {
        machine.contexts[0].position = 72;
        machine.contexts[0].blocks = blocks.clone();
    });
    assert_eq!(found.map_err(|(.., fault)| fault), fault.map_or(Ok(()), Err));
}

/// What a context brings along.
#[rstest]
#[case::token("memcpy.embed dest=0 desc=0 shape=0", 64, 0, Some(Fault::BadToken { token: 64, rows: 64 }))]
#[case::last_token("memcpy.embed dest=0 desc=0 shape=0", 63, 0, None)]
#[case::position("memcpy.row dest=0 desc=8 shape=3", 0, 5, Some(Fault::BadPosition { position: 5, rows: 5 }))]
#[case::last_position("memcpy.row dest=0 desc=8 shape=3", 0, 4, None)]
#[case::block("layers count=1 words=0 desc=12\nmemcpy.kv src=0 desc=5 shape=1\nnext", 0, 64, Some(Fault::BlockOutOfRange { entry: 2, block: 2 }))]
#[case::last_block("layers count=1 words=0 desc=12\nmemcpy.kv src=0 desc=5 shape=1\nnext", 0, 63, None)]
#[case::no_block("layers count=1 words=0 desc=12\nmemcpy.kv src=0 desc=5 shape=1\nnext", 0, 96, Some(Fault::BlockMissing { entry: 3 }))]
#[case::attended("layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5\nnext", 0, 64, Some(Fault::BlockOutOfRange { entry: 2, block: 2 }))]
#[case::none_attended("layers count=1 words=0 desc=12\nattn dst=0 src=64 shape=1 desc=5\nnext", 0, 96, Some(Fault::BlockOutOfRange { entry: 2, block: 2 }))]
fn a_context_is_stopped_alone(
    #[case] lines: &str,
    #[case] token: u32,
    #[case] position: u32,
    #[case] fault: Option<Fault>,
) {
    let words = assemble(&format!("{SET}{lines}\nvec.act dst=64 a=0 shape=0\nend")).unwrap();
    for board in [false, true] {
        let mut machine = small(3);
        (machine.contexts[1].token, machine.contexts[1].position) = (token, position);
        let mut alone = small(1);
        alone.step(&words, &[0], &mut ());
        let outcomes = match board {
            false => machine.step(&words, &[0, 1, 2], &mut ()),
            true => Scoreboard::new(Latency::Random(3)).step(&mut machine, &words, &[0, 1, 2], &mut ()).0,
        };
        assert_eq!(
            outcomes[1].map_err(|stop| (stop.context, stop.position, stop.fault)).err(),
            fault.map(|fault| (1, position, fault))
        );
        for context in [0, 2] {
            assert!(outcomes[context].is_ok());
            assert_eq!(machine.contexts[context].chip(), alone.contexts[0].chip());
        }
    }
}

/// A program that is stopped in the middle harms nobody who runs another one.
#[test]
fn others_go_on() {
    let image = micro();
    let (program, memory) = program(&image);
    let mut machine = machine(&program, memory, 3, 2, Speed::Fast, 11);
    let mut oracle = Beside::new(&image);
    for position in 0..34 {
        // The middle of the layers: a word that is none, one that is out of range, one that is not built.
        let mut bad = program.words.clone();
        let middle = bad.len() / 2 + position as usize % 8;
        bad[middle] =
            [u64::MAX, 0x00FF_FFFF_FFFF_FF00 & !0x0070_0000, 0x1000_0000_0000_0000][position as usize % 3];
        for context in &mut machine.contexts {
            (context.token, context.position) = (position * 11 % 64, position);
        }
        let stopped = machine.step(&bad, &[0, 2], &mut ());
        for stop in stopped {
            let stop = stop.unwrap_err();
            assert_eq!((stop.pc as usize, stop.word, stop.position), (middle, bad[middle], position));
            assert!(stop.to_string().contains(&format!("{:#018x}", bad[middle])), "{stop}");
        }
        let mut logits = Logits::default();
        assert!(machine.step(&program.words, &[1], &mut logits)[0].is_ok());
        assert_eq!(logits.0[1], oracle.step(position * 11 % 64));
    }
}

/// Nothing of one step reaches the next: a `head` begins in its own.
#[test]
fn a_sampler_does_not_outlive_its_step() {
    let program = |head: &str| assemble(&format!("{SET}{head}\nend")).unwrap();
    let (begins, ends) =
        (program("head src=0 desc=0 shape=0 first"), program("head src=0 desc=0 shape=0 last"));
    let mut plain = small(1);
    assert!(plain.step(&begins, &[0], &mut ())[0].is_ok());
    assert_eq!(plain.step(&ends, &[0], &mut ())[0].unwrap_err().fault, Fault::NoFirst);
    let (mut scored, board) = (small(1), Scoreboard::new(Latency::Random(1)));
    assert!(board.step(&mut scored, &begins, &[0], &mut ()).0[0].is_ok());
    assert_eq!(board.step(&mut scored, &ends, &[0], &mut ()).0[0].unwrap_err().fault, Fault::NoFirst);
}
