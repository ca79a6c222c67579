//! Doorbell's own trace format: JSON lines, versioned and strict.

use std::io::{self, BufWriter, Write};

use serde::{Deserialize, Serialize};

use super::lines::Lines;
use super::{Request, Trace, TraceError};

/// Version of the format that this build reads and writes.
pub const VERSION: u32 = 1;

const HEADER: &str = r#"a header {"doorbell_trace":1,"source":"…"}"#;
const RECORD: &str =
    r#"a record {"arrival_ms":u64,"prompt_tokens":u32,"output_tokens":u32 of at least 1,"prefix":[u32, …]}"#;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    doorbell_trace: u32,
    source: String,
}

/// The part of a header that every version has.
#[derive(Deserialize)]
struct AnyHeader {
    doorbell_trace: serde_json::Value,
}

pub(super) fn parse(lines: &Lines<'_>) -> Result<Trace, TraceError> {
    let any: AnyHeader = lines.json(0, HEADER)?;
    if any.doorbell_trace != VERSION {
        let problem = format!("trace version {} is not known", any.doorbell_trace);
        let expected = format!(
            "version {VERSION}, the one that this build reads; convert the file with the \
                                build that wrote it, or update"
        );
        return Err(lines.malformed(0, lines.byte_of_key(0, "doorbell_trace"), problem, expected));
    }
    let header: Header = lines.json(0, HEADER)?;
    let requests = lines
        .enumerate(1)
        .map(|(index, _)| {
            let request: Request = lines.json(index, RECORD)?;
            match request.flaw() {
                Some((field, expected)) => {
                    let byte = lines.byte_of_key(index, field);
                    Err(lines.malformed(index, byte, format!("bad value of `{field}`"), expected))
                }
                None => Ok(request),
            }
        })
        .collect::<Result<_, _>>()?;
    Ok(Trace { source: header.source, requests })
}

pub(super) fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    let header = Header { doorbell_trace: VERSION, source: trace.source.clone() };
    serde_json::to_writer(&mut out, &header)?;
    out.write_all(b"\n")?;
    for request in &trace.requests {
        serde_json::to_writer(&mut out, request)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
