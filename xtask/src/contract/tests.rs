use std::fs;
use std::path::Path;

use rstest::rstest;
use tempfile::TempDir;

use super::filters::hex;
use super::spec::{Spec, camel};
use super::{PAGE, PAGES, SOURCE, renewed, run};

const CONTRACT: &str = include_str!("../../../contract/contract.toml");

/// The contract with `from` replaced by `to`, which must change it.
fn edited(from: &str, to: &str) -> String {
    assert_eq!(CONTRACT.matches(from).count(), 1, "{from:?} must occur once in the contract");
    CONTRACT.replace(from, to)
}

/// A directory with the repository's contract and page, generated files included.
fn workspace() -> TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for path in [SOURCE].into_iter().chain(PAGES) {
        fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        fs::copy(root.join(path), dir.path().join(path)).unwrap();
    }
    run(dir.path(), false).unwrap();
    dir
}

#[rstest]
#[case::overlap(
    "\"model_id\",        type = \"u16\", offset = 2, ",
    "\"model_id\",        type = \"u32\", offset = 0, ",
    "HwDesc, field model_id: offset 0 overlaps"
)]
#[case::hole(
    "\"model_id\",        type = \"u16\", offset = 2, ",
    "\"model_id\",        type = \"u8\", offset = 3, ",
    "HwDesc, field model_id: bytes 2 to 2 before it"
)]
#[case::misaligned(
    "type = \"u16\", offset = 46, ",
    "type = \"u16\", offset = 45, ",
    "HwDesc, field policy_version: offset 45 is not a multiple of its size 2"
)]
#[case::short_of_size(
    "type = \"u8\",  offset = 31, ",
    "type = \"u8\",  offset = 32, ",
    "field phase: bytes 31 to 31"
)]
#[case::keyword(
    "{ name = \"check\",           type = \"u32\", offset = 60,",
    "{ name = \"end\",           type = \"u32\", offset = 60,",
    "HwDesc, field end: the name is a keyword of SystemVerilog or C++"
)]
#[case::size(
    "hw_completion_t\"\nsize = 32",
    "hw_completion_t\"\nsize = 64",
    "HwCompletion: its fields end at byte 32, its size is 64"
)]
#[case::size_no_power(
    "hw_completion_t\"\nsize = 32",
    "hw_completion_t\"\nsize = 33",
    "HwCompletion: size 33 is not a power of two"
)]
#[case::same_value(
    "name = \"STOP\",    value = 255",
    "name = \"STOP\",    value = 3",
    "PREFILL and STOP have the same value 3"
)]
#[case::wide_value(
    "name = \"STOP\",    value = 255",
    "name = \"STOP\",    value = 256",
    "value STOP: 256 does not fit 8 bits"
)]
#[case::same_bit(
    "\"RESIDENT\",   bit = 4",
    "\"RESIDENT\",   bit = 3",
    "INTERRUPT and RESIDENT have the same bit 3"
)]
#[case::wide_bit(
    "\"RESIDENT\",   bit = 4",
    "\"RESIDENT\",   bit = 64",
    "bit RESIDENT: 64 is outside the 8 bits"
)]
#[case::register_overlap(
    "name = \"VERSION\"\nblock = \"DEVICE\"\noffset = 0x004",
    "name = \"VERSION\"\nblock = \"DEVICE\"\noffset = 0x000",
    "register VERSION: offset 0x000 overlaps register ID"
)]
#[case::register_misaligned(
    "name = \"VERSION\"\nblock = \"DEVICE\"\noffset = 0x004",
    "name = \"VERSION\"\nblock = \"DEVICE\"\noffset = 0x006",
    "register VERSION: offset 0x006 is not a multiple of 4"
)]
#[case::register_outside(
    "name = \"SQ_KEY\"\nblock = \"FUNCTION_QUEUE\"\noffset = 0x048",
    "name = \"SQ_KEY\"\nblock = \"FUNCTION_QUEUE\"\noffset = 0x080",
    "register SQ_KEY: offset 0x080 is outside its block of 0x80 bytes"
)]
#[case::register_of_no_block(
    "name = \"SQ_KEY\"\nblock = \"FUNCTION_QUEUE\"",
    "name = \"SQ_KEY\"\nblock = \"NOWHERE\"",
    "register SQ_KEY: no block NOWHERE"
)]
#[case::block_overlap(
    "base = 0x00800",
    "base = 0x00780",
    "block DEVICE_QUEUE: 0x00790 overlaps block DEVICE_FUNCTION"
)]
#[case::block_of_the_next_queue(
    "size = 0x80\nper_function",
    "size = 0x88\nper_function",
    "overlaps block FUNCTION_QUEUE, which ends at 0x10888"
)]
#[case::functions_in_one_page(
    "base = 0x10000\nsize = 0x800\nper_function = 0x1000",
    "base = 0x10000\nsize = 0x80\nper_function = 0x80",
    "block FUNCTION: functions share a page"
)]
#[case::counter_overlap(
    "offset = 0x108\ndoc = \"descriptors",
    "offset = 0x100\ndoc = \"descriptors",
    "overlaps counter CYCLES"
)]
#[case::counter_on_register(
    "offset = 0x100\ndoc = \"clock",
    "offset = 0x050\ndoc = \"clock",
    "overlaps counter CYCLES at 0x050"
)]
#[case::counter_outside(
    "offset = 0x178\ndoc = \"completions",
    "offset = 0x400\ndoc = \"completions",
    "counter ERRORS: offset 0x400 is outside the block DEVICE"
)]
#[case::queue_counter_on_register(
    "offset = 0x100\ndoc = \"descriptors",
    "offset = 0x020\ndoc = \"descriptors",
    "counter QUEUE_DESCRIPTORS: offset 0x20020 overlaps register ABORT at 0x20020"
)]
#[case::queue_counter_outside(
    "offset = 0x110\ndoc = \"tokens",
    "offset = 0xFFC\ndoc = \"tokens",
    "counter QUEUE_TOKENS: offset 0xffc is outside the block QUEUE"
)]
#[case::queue_counter_of_nothing(
    "name = \"STALL_CQ\"\noffset = 0x118",
    "name = \"STALLS\"\noffset = 0x118",
    "counter QUEUE_STALLS: the device has no counter STALLS"
)]
#[case::same_name("name = \"CQ_BASE_LO\"", "name = \"SQ_BASE_LO\"", "would both be called REG_SQ_BASE_LO")]
#[case::clash(
    "name = \"GOLDEN\"",
    "name = \"OP_STOP\"",
    "Opcode.STOP and constant OP_STOP would both be called OP_STOP"
)]
#[case::counter_half_clash(
    "name = \"CQ_SIZE\"",
    "name = \"TOKENS_LO\"",
    "would both be called Register::TokensLo"
)]
#[case::case("name = \"MIX_MUL_1\"", "name = \"mixMul\"", "constant mixMul: the name is not UPPER_CASE")]
#[case::field_case(
    "name = \"max_tokens\"",
    "name = \"MaxTokens\"",
    "field MaxTokens: the name is not snake_case"
)]
#[case::wide_constant("value = 0x3F", "value = 0x13F", "constant DESC_FLAGS_MASK: 0x13f does not fit u8")]
#[case::mask_disagrees("value = 0x3F", "value = 0x1F", "DESC_FLAGS_MASK: 0x1f is not all of DescFlags")]
#[case::version_disagrees("reset = 0x0002_0002", "reset = 0x0002_0000", "register VERSION: its reset value")]
#[case::id_disagrees("reset = 0x4C45_4244", "reset = 0x4C45_4245", "register ID: its reset value")]
#[case::unknown_type(
    "name = \"seed\",            type = \"u32\"",
    "name = \"seed\",            type = \"u33\"",
    "unknown variant `u33`"
)]
#[case::unknown_key("sv = \"hw_desc_t\"", "sv = \"hw_desc_t\"\nsb = 1", "unknown field `sb`")]
#[case::array_of_a_record(
    "\"policy_version\",  type = \"u16\", offset = 46,",
    "\"policy_version\", count = 2, type = \"u8\", offset = 46,",
    "HwDesc, field policy_version: only the mailbox has arrays"
)]
#[case::mailbox_lines(
    "offset = 320\n",
    "offset = 256\n",
    "part at 256 begins no line of its own: the one before ends at 264"
)]
#[case::mailbox_hole(
    "\"heartbeat\",   type = \"u32\", offset = 476",
    "\"heartbeat\",   type = \"u32\", offset = 480",
    "field heartbeat: bytes 476 to 479"
)]
#[case::mailbox_padding(
    "{ name = \"arenas\",             type = \"u64\", offset = 200,  count = 8,",
    "{ name = \"arenas\",             type = \"u32\", offset = 200,  count = 15,",
    "mailbox, part at 64: a structure that ends at byte 260 is padded behind it"
)]
#[case::mailbox_name("name = \"cq_tail\"", "name = \"cq_head\"", "mailbox: two fields are called cq_head")]
#[case::mailbox_size("size = 4096", "size = 256", "mailbox: its fields end at byte 1108, its size is 256")]
fn an_unsound_contract_is_refused_by_name(#[case] from: &str, #[case] to: &str, #[case] expected: &str) {
    let error = format!("{:#}", Spec::parse(&edited(from, to)).unwrap_err());
    assert!(error.contains(expected), "{error}");
}

#[test]
fn every_problem_is_told_at_once() {
    let text = edited("hw_completion_t\"\nsize = 32", "hw_completion_t\"\nsize = 64")
        .replace("value = 255", "value = 3");
    assert_eq!(Spec::parse(&text).unwrap_err().to_string().lines().count(), 2);
}

#[test]
fn the_repository_has_not_drifted() {
    run(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap(), true).unwrap();
}

#[rstest]
#[case("contract/src/generated.rs", "32 seq_len: u32", "32 seq_len: u64")]
#[case("rtl/desc_pkg.sv", "REG_DOORBELL = 18'h2_0000", "REG_DOORBELL = 18'h2_0014")]
#[case("contract/doorbell_contract.h", "DOORBELL_OP_STOP = 0xFF", "DOORBELL_OP_STOP = 0xFE")]
#[case("tb/cocotb/doorbell/contract.py", "STOP = 0xFF", "STOP = 0xFE")]
#[case(PAGE, "| 0x000 | DOORBELL |", "| 0x014 | DOORBELL |")]
fn check_finds_an_edited_file_and_a_missing_one(#[case] path: &str, #[case] from: &str, #[case] to: &str) {
    let dir = workspace();
    run(dir.path(), true).unwrap();

    let file = dir.path().join(path);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from:?} must occur in {path}");
    fs::write(&file, text.replace(from, to)).unwrap();
    let error = run(dir.path(), true).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{path} is not what")), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text.replace(from, to), "--check wrote");

    run(dir.path(), false).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), text);

    fs::remove_file(&file).unwrap();
    assert!(run(dir.path(), true).is_err());
}

#[test]
fn check_finds_a_changed_contract() {
    let dir = workspace();
    fs::write(dir.path().join(SOURCE), edited("name = \"KV_SIZE_HI\"", "name = \"KV_SIZE_TOP\"")).unwrap();
    let error = run(dir.path(), true).unwrap_err().to_string();
    let header = "contract/doorbell_contract.h";
    for path in
        ["contract/src/generated.rs", "rtl/desc_pkg.sv", header, "tb/cocotb/doorbell/contract.py", PAGE]
    {
        assert!(error.contains(path), "{path} in: {error}");
    }
}

#[rstest]
#[case("<!-- generated:codes -->", "<!-- generated:cods -->", "nothing generates block 'cods'")]
#[case("<!-- generated:codes -->", "", "block 'codes' is missing")]
#[case("<!-- generated:codes -->", "<!-- generated:codes --", "")]
#[case("<!-- /generated -->", "", "")]
fn a_page_with_broken_markers_is_refused(#[case] from: &str, #[case] to: &str, #[case] expected: &str) {
    let spec = Spec::parse(CONTRACT).unwrap();
    let page = include_str!("../../../docs/contract.md");
    let error = renewed(&spec.on(PAGE), &page.replace(from, to)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_table_on_a_page_that_is_none_is_refused() {
    let dir = workspace();
    fs::write(dir.path().join(SOURCE), CONTRACT.replace("docs/nic.md", "docs/none.md")).unwrap();
    let error = run(dir.path(), true).unwrap_err().to_string();
    assert!(error.contains("docs/none.md"), "{error}");
}

#[test]
fn prose_between_the_blocks_survives() {
    let spec = Spec::parse(CONTRACT).unwrap();
    let block = |name: &str| format!("<!-- generated:{name} -->\nold\n<!-- /generated -->");
    let page =
        ["HwDesc", "HwCompletion", "HwPolicy", "HwImage", "HwSequence", "HwEvent", "codes", "registers"]
            .map(block)
            .join("\nprose\n")
            + "\nend\n";
    let out = renewed(&spec.on(PAGE), &page).unwrap();
    assert_eq!((out.matches("\nprose\n").count(), out.matches("\nold\n").count()), (7, 0));
    assert!(out.ends_with("<!-- /generated -->\nend\n"), "{out}");
}

#[rstest]
#[case(0x9E37_79B9, 32, "0x9E37_79B9")]
#[case(0, 8, "0x00")]
#[case(0x10, 12, "0x010")]
fn numbers_are_grouped(#[case] value: u64, #[case] bits: usize, #[case] expected: &str) {
    assert_eq!(hex(value, bits), expected);
}

#[rstest]
#[case("SQ_BASE_LO", "SqBaseLo")]
#[case("ID", "Id")]
fn names_become_camel_case(#[case] upper: &str, #[case] expected: &str) {
    assert_eq!(camel(upper), expected);
}
