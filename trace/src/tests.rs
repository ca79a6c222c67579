//! Formats, their errors, and the generator.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const HEADER: &str = r#"{"doorbell_trace":1,"source":"test"}"#;
const RECORD: &str = r#"{"arrival_ms":0,"prompt_tokens":6758,"output_tokens":500,"prefix":[0,1]}"#;
const MOONCAKE: &str =
    r#"{"timestamp": 27482, "input_length": 891, "output_length": 12, "hash_ids": [0, 7]}"#;
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

fn parse(text: &str) -> Result<(Trace, Format), TraceError> {
    Trace::parse("t", text.as_bytes())
}

fn request(arrival_ms: u64, prompt_tokens: u32, output_tokens: u32, prefix: &[u32]) -> Request {
    Request { arrival_ms, prompt_tokens, output_tokens, prefix: prefix.to_vec() }
}

#[test]
fn native_is_read() {
    let (trace, format) = parse(&format!("{HEADER}\n{RECORD}\n")).unwrap();
    assert_eq!(format, Format::Doorbell);
    assert_eq!(trace, Trace { source: "test".into(), requests: vec![request(0, 6758, 500, &[0, 1])] });
}

#[test]
fn mooncake_is_recognised() {
    let (trace, format) = parse(&format!("{MOONCAKE}\n{MOONCAKE}")).unwrap();
    assert_eq!(format, Format::Mooncake);
    assert_eq!(trace.requests, vec![request(27482, 891, 12, &[0, 7]); 2]);
}

#[test]
fn azure_is_recognised_and_starts_at_its_first_arrival() {
    let text =
        format!("{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109");
    let (trace, format) = parse(&text).unwrap();
    assert_eq!(format, Format::Azure);
    assert_eq!(trace.requests, vec![request(0, 374, 44, &[]), request(4314, 396, 109, &[])]);
}

#[test]
fn azure_of_2024_has_other_timestamps() {
    let text = format!("{AZURE}\n2024-05-11 00:00:01+00:00,1,2\n2024-05-10 23:59:59.009930+00:00,3,4\n");
    let arrivals: Vec<u64> = parse(&text).unwrap().0.requests.iter().map(|r| r.arrival_ms).collect();
    assert_eq!(arrivals, [1990, 0], "relative to the earliest");
}

#[rstest]
#[case::native(format!("{HEADER}\n{RECORD}\n{RECORD}"))]
#[case::mooncake(format!("{MOONCAKE}\n{MOONCAKE}"))]
#[case::azure(format!("{AZURE}\n2023-11-16 18:15:46.68,374,44"))]
fn line_ends_marks_and_trailing_blanks_do_not_matter(#[case] text: String) {
    let plain = parse(&text).unwrap();
    for variant in [
        format!("{text}\n"),
        format!("{text}\r\n\r\n \t\n\n"),
        text.replace('\n', "\r\n"),
        format!("\u{feff}{text}\n"),
        format!("\u{feff}{}\r\n", text.replace('\n', "\r\n")),
    ] {
        assert_eq!(parse(&variant).unwrap(), plain, "{variant:?}");
    }
}

/// Each malformed line is the second of its file; columns count bytes from 1.
#[rstest]
#[case::missing("{\"arrival_ms\":0,\"prompt_tokens\":1,\"output_tokens\":1}", 52, "missing field `prefix`")]
#[case::extra(
    r#"{"arrival_ms":0,"prompt_tokens":1,"output_tokens":1,"prefix":[],"temperature":1}"#,
    77,
    "unknown field `temperature`"
)]
#[case::beyond_u32(r#"{"output_tokens":4294967296}"#, 27, "integer `4294967296`, expected u32")]
#[case::no_output(
    r#"{"arrival_ms":0,"prompt_tokens":1,"output_tokens":0,"prefix":[]}"#,
    35,
    "bad value of `output_tokens`\nexpected at least 1"
)]
#[case::blocks_beyond_prompt(
    r#"{"arrival_ms":0,"prompt_tokens":513,"output_tokens":1,"prefix":[1,2,3]}"#,
    55,
    "bad value of `prefix`\nexpected at most 2 block ids for 513 prompt tokens"
)]
#[case::cut_off(r#"{"arrival_ms":0,"prompt_tok"#, 27, "EOF while parsing a string")]
#[case::array("[0,1,1,[]]", 1, "not a JSON object")]
#[case::blank_between("\n{}", 1, "blank line before the end of the file")]
#[case::second_header(HEADER, 17, "unknown field `doorbell_trace`")]
fn malformed_native_line(#[case] line: &str, #[case] column: usize, #[case] problem: &str) {
    expect_malformed(&format!("{HEADER}\n{line}\n{RECORD}\n"), 2, column, problem);
}

#[rstest]
#[case::newer(r#"{"doorbell_trace":2,"source":"x","more":1}"#, 2, "trace version 2 is not known")]
#[case::text(r#"{"doorbell_trace":"1","source":"x"}"#, 2, "trace version \"1\" is not known")]
#[case::no_source(r#"{"doorbell_trace":1}"#, 20, "missing field `source`")]
#[case::extra(r#"{"doorbell_trace":1,"source":"x","more":1}"#, 39, "unknown field `more`")]
#[case::broken(r#"{"doorbell_trace":1,"#, 20, "EOF while parsing")]
fn malformed_header(#[case] header: &str, #[case] column: usize, #[case] problem: &str) {
    expect_malformed(&format!("{header}\n{RECORD}\n"), 1, column, problem);
}

#[rstest]
#[case::missing(r#"{"timestamp":0,"input_length":1,"output_length":1}"#, 50, "missing field `hash_ids`")]
#[case::no_output(
    r#"{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[]}"#,
    33,
    "bad value of `output_length`"
)]
#[case::blocks(
    r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[1,2]}"#,
    51,
    "bad value of `hash_ids`"
)]
fn malformed_mooncake_line(#[case] line: &str, #[case] column: usize, #[case] problem: &str) {
    expect_malformed(&format!("{MOONCAKE}\n{line}\n{MOONCAKE}\n"), 2, column, problem);
}

#[rstest]
#[case::time("16 Nov 2023,1,2", 1, "`16 Nov 2023` is not a timestamp")]
#[case::zone("2023-11-16 18:15:46.5+02:00,1,2", 1, "`2023-11-16 18:15:46.5+02:00` is not a timestamp")]
#[case::west("2023-11-16 18:15:46.5-07:00,1,2", 1, "`2023-11-16 18:15:46.5-07:00` is not a timestamp")]
#[case::junk("2023-11-16 18:15:46.5 PST,1,2", 1, "`2023-11-16 18:15:46.5 PST` is not a timestamp")]
#[case::fields("2023-11-16 18:15:46,1", 22, "2 comma-separated fields instead of 3")]
#[case::number("2023-11-16 18:15:46,1,x", 23, "`x` is not a u32")]
#[case::no_output("2023-11-16 18:15:46,1,0", 23, "bad value of `GeneratedTokens`\nexpected at least 1")]
#[case::blank("\n", 1, "1 comma-separated fields instead of 3")]
fn malformed_azure_line(#[case] line: &str, #[case] column: usize, #[case] problem: &str) {
    expect_malformed(&format!("{AZURE}\n{line}\n2023-11-16 18:15:47,1,2\n"), 2, column, problem);
}

#[test]
fn azure_with_other_columns() {
    expect_malformed(
        "TIMESTAMP,GeneratedTokens,ContextTokens\n",
        1,
        1,
        "unknown columns\nexpected the columns",
    );
}

#[test]
fn not_utf8_is_placed() {
    let mut bytes = format!("{HEADER}\n{RECORD}\n").into_bytes();
    let at = HEADER.len() + 1 + 4;
    bytes[at] = 0xFF;
    let error = Trace::parse("t", &bytes).unwrap_err().to_string();
    assert!(error.starts_with("t:2:5: byte 0xff is not UTF-8"), "{error}");
}

#[rstest]
#[case(b"\x1F\x8B\x08\x00\xFF", "gzip", "gunzip")]
#[case(b"\x28\xB5\x2F\xFD\x24", "zstd", "unzstd")]
#[case(b"\xFD7zXZ\x00", "xz", "unxz")]
#[case(b"BZh9\xFF", "bzip2", "bunzip2")]
#[case(b"PK\x03\x04\xFF", "zip", "unzip")]
fn a_packed_file_is_told_with_what_unpacks_it(
    #[case] bytes: &[u8],
    #[case] name: &str,
    #[case] unpack: &str,
) {
    let error = Trace::parse("t", bytes).unwrap_err().to_string();
    assert!(
        error.contains(&format!("packed by {name}")) && error.contains(&format!("`{unpack}`")),
        "{error}"
    );
}

#[rstest]
#[case::other("hello\n", "t:1:1: not a trace in a known format; found `hello`")]
#[case::record_first(RECORD, "t:1:1: not a trace in a known format; found `{\\\"arrival_ms")]
#[case::binary("\u{0}\u{1}", "found `\\0\\u{1}`")]
#[case::nothing("", "t: the file is empty")]
#[case::blank("\u{feff}\r\n\n", "t: the file is empty")]
fn unknown_file_names_the_known_formats(#[case] text: &str, #[case] problem: &str) {
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(problem), "{error}");
    for format in Format::ALL {
        assert!(error.contains(format.signature()), "{error}");
    }
}

#[test]
fn missing_file_is_named() {
    let error = Trace::read(Path::new("no/such.trace")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read no/such.trace: "), "{error}");
}

fn expect_malformed(text: &str, line: usize, column: usize, problem: &str) {
    let error = parse(text).unwrap_err();
    let TraceError::Malformed { line: found_line, column: found_column, .. } = error else {
        panic!("not malformed: {error}");
    };
    let text = error.to_string();
    assert_eq!((found_line, found_column), (line, column), "{text}");
    assert!(text.contains(problem), "{text}");
    assert!(text.contains("\nexpected "), "{text}");
}

fn any_request() -> impl Strategy<Value = Request> {
    (any::<u64>(), any::<u32>(), 1u32.., prop::collection::vec(any::<u32>(), 0..8)).prop_map(
        |(arrival_ms, prompt_tokens, output_tokens, mut prefix)| {
            prefix.truncate(prompt_tokens.div_ceil(PREFIX_BLOCK_TOKENS) as usize);
            Request { arrival_ms, prompt_tokens, output_tokens, prefix }
        },
    )
}

proptest! {
    #[test]
    fn written_traces_read_back(source in ".*", requests in prop::collection::vec(any_request(), 0..20)) {
        let trace = Trace { source, requests };
        let mut bytes = Vec::new();
        trace.write(&mut bytes).unwrap();
        let (read, format) = Trace::parse("t", &bytes).unwrap();
        prop_assert_eq!(format, Format::Doorbell);
        prop_assert_eq!(read, trace);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), native in any::<bool>()) {
        let mut text = if native { format!("{HEADER}\n").into_bytes() } else { Vec::new() };
        text.extend(bytes);
        let _ = Trace::parse("t", &text);
    }

    /// One changed byte in a good file either still makes a sound trace or is reported at a place inside the file.
    #[test]
    fn one_changed_byte(at in 0usize..1000, byte in any::<u8>()) {
        let mut text = format!("{HEADER}\n{RECORD}\n{RECORD}\n").into_bytes();
        let at = at % text.len();
        text[at] = byte;
        match Trace::parse("t", &text) {
            Ok((trace, _)) => prop_assert!(trace.requests.iter().all(|request| request.flaw().is_none())),
            Err(TraceError::Malformed { line, column, .. }) => {
                // The byte may have been the end of a line, and may be one now.
                let bytes = text.split(|&byte| byte == b'\n').nth(line - 1).map(<[u8]>::len);
                prop_assert!(bytes.is_some_and(|bytes| (1..=bytes + 1).contains(&column)), "{line}:{column}");
            }
            Err(TraceError::Unrecognised { .. }) => prop_assert!(at <= HEADER.len()),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn generated_traces_are_sound(requests in 1u32..400, seed in any::<u64>(), group in 1u32..9) {
        let trace = Generator::new(requests, seed, group).generate().unwrap();
        prop_assert_eq!(trace.requests.len(), requests as usize);
        prop_assert!(trace.requests.iter().all(|request| request.flaw().is_none()));
        prop_assert!(trace.requests.is_sorted_by_key(|request| request.arrival_ms));
        for prompt in trace.requests.chunks(group as usize) {
            let same = |r: &Request| (r.arrival_ms, r.prompt_tokens, r.prefix.clone());
            prop_assert!(prompt.iter().all(|request| same(request) == same(&prompt[0])));
        }
    }
}

#[test]
fn a_seed_gives_one_trace_and_another_seed_another() {
    let generate = |seed| Generator::new(100, seed, 4).generate().unwrap();
    assert_eq!(generate(7), generate(7));
    assert_ne!(generate(7).requests, generate(8).requests);
}

/// The generator is part of what users compare across machines: these values may not change.
#[test]
fn the_built_in_trace_is_pinned() {
    let trace = Trace::built_in();
    let summary = trace.summary();
    assert_eq!(summary.requests, 256);
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    let fnv =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    assert_eq!((summary.output.total, fnv), (21_285, 5_097_761_426_459_897_954));
}

#[test]
fn generated_lengths_have_a_long_tail_and_shared_prefixes() {
    let summary = Generator::new(10_000, 3, 4).generate().unwrap().summary();
    let Lengths { p50, p99, max, .. } = summary.output;
    assert!((330..370).contains(&p50), "{p50}");
    assert!(p99 > 5 * p50, "{p99}");
    assert_eq!(max, 2000, "the cap is reached");
    // Four requests share each prompt, and prompts share more among themselves.
    assert!(summary.prefix_blocks > 5 * summary.distinct_prefix_blocks, "{summary:?}");
}

#[rstest]
#[case::requests(Generator { requests: 0, ..Generator::new(1, 0, 1) }, "requests is 0; it must be 1 to")]
#[case::group(Generator { group: 0, ..Generator::new(1, 0, 1) }, "group is 0; it must be 1 to")]
#[case::median(Generator { output_max: 9, output_median: 10, ..Generator::new(1, 0, 1) }, "output_median is 10; it must be 1 to 9")]
#[case::max(Generator { output_max: 0, ..Generator::new(1, 0, 1) }, "output_max is 0")]
#[case::prompt(Generator { prompt_median: u32::MAX, ..Generator::new(1, 0, 1) }, "prompt_median is 4294967295")]
fn bad_parameters(#[case] generator: Generator, #[case] problem: &str) {
    let error = generator.generate().unwrap_err().to_string();
    assert!(error.starts_with(problem), "{error}");
}

#[test]
fn quantiles_are_nearest_ranks() {
    let requests = (1..=200).map(|n| request(n, 1, n as u32, &[])).collect();
    let summary = Trace { source: String::new(), requests }.summary();
    assert_eq!(summary.output, Lengths { total: 20_100, p50: 100, p99: 198, max: 200 });
    assert_eq!(summary.span_ms, 199);
    assert_eq!(Trace { source: String::new(), requests: vec![] }.summary(), TraceSummary::default());
}
