//! Importer for Mooncake's traces (kvcache-ai/Mooncake): JSON lines without a header.

use serde::Deserialize;

use super::lines::Lines;
use super::{Request, Trace, TraceError};

const RECORD: &str = r#"a record {"timestamp":u64 (ms),"input_length":u32,"output_length":u32 of at least 1,"hash_ids":[u32, …]}"#;

/// Further fields are ignored: the format is not ours to close.
#[derive(Deserialize)]
struct Record {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u32>,
}

pub(super) fn parse(lines: &Lines<'_>) -> Result<Trace, TraceError> {
    let requests = lines
        .enumerate(0)
        .map(|(index, _)| {
            let record: Record = lines.json(index, RECORD)?;
            let request = Request {
                arrival_ms: record.timestamp,
                prompt_tokens: record.input_length,
                output_tokens: record.output_length,
                prefix: record.hash_ids,
            };
            match request.flaw() {
                Some((field, expected)) => {
                    let field = if field == "prefix" { "hash_ids" } else { "output_length" };
                    let byte = lines.byte_of_key(index, field);
                    Err(lines.malformed(index, byte, format!("bad value of `{field}`"), expected))
                }
                None => Ok(request),
            }
        })
        .collect::<Result<_, _>>()?;
    Ok(Trace { source: format!("mooncake: {}", lines.file()), requests })
}
