//! Importer for the Azure LLM inference traces (Azure/AzurePublicDataset): CSV with absolute timestamps.

use std::time::SystemTime;

use super::lines::Lines;
use super::{Request, Trace, TraceError};

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const RECORD: &str =
    "a line `YYYY-MM-DD HH:MM:SS.fraction,ContextTokens (u32),GeneratedTokens (u32 of at least 1)`";

pub(super) fn parse(lines: &Lines<'_>) -> Result<Trace, TraceError> {
    if lines.first() != Some(HEADER) {
        return Err(lines.malformed(0, 0, "unknown columns", format!("the columns {HEADER}")));
    }
    let mut arrivals = Vec::new();
    let mut requests = Vec::new();
    for (index, line) in lines.enumerate(1) {
        let [time, context, generated] = fields(lines, index, line)?;
        let arrival = timestamp(time.text).map_err(|error| {
            lines.malformed(index, time.byte, format!("`{}` is not a timestamp ({error})", time.text), RECORD)
        })?;
        let request = Request {
            arrival_ms: 0,
            prompt_tokens: number(lines, index, &context)?,
            output_tokens: number(lines, index, &generated)?,
            prefix: Vec::new(),
        };
        if let Some((_, expected)) = request.flaw() {
            return Err(lines.malformed(index, generated.byte, "bad value of `GeneratedTokens`", expected));
        }
        arrivals.push(arrival);
        requests.push(request);
    }
    // Relative to the earliest, so that an unsorted file has no negative arrivals.
    if let Some(&start) = arrivals.iter().min() {
        for (request, arrival) in requests.iter_mut().zip(arrivals) {
            request.arrival_ms = arrival.duration_since(start).unwrap_or_default().as_millis() as u64;
        }
    }
    Ok(Trace { source: format!("azure: {}", lines.file()), requests })
}

/// In UTC, with up to nine digits behind the seconds; the files of 2024 say `+00:00` behind it.
fn timestamp(text: &str) -> Result<SystemTime, humantime::TimestampError> {
    let time = text.strip_suffix("+00:00").unwrap_or(text);
    // `humantime` stops at what is no digit of the fraction, and would take a zone or junk there as UTC.
    let fraction = time.split_once('.').map_or("", |(_, fraction)| fraction);
    let fraction = fraction.strip_suffix('Z').unwrap_or(fraction);
    if fraction.bytes().any(|byte| !byte.is_ascii_digit()) {
        return Err(humantime::TimestampError::InvalidFormat);
    }
    humantime::parse_rfc3339_weak(time)
}

struct Field<'a> {
    byte: usize,
    text: &'a str,
}

fn fields<'a>(lines: &Lines<'_>, index: usize, line: &'a str) -> Result<[Field<'a>; 3], TraceError> {
    let mut byte = 0;
    let fields: Vec<Field<'a>> = line
        .split(',')
        .map(|text| {
            let field = Field { byte, text };
            byte += text.len() + 1;
            field
        })
        .collect();
    let count = fields.len();
    fields.try_into().map_err(|_| {
        lines.malformed(index, line.len(), format!("{count} comma-separated fields instead of 3"), RECORD)
    })
}

fn number(lines: &Lines<'_>, index: usize, field: &Field<'_>) -> Result<u32, TraceError> {
    field.text.trim().parse().map_err(|error| {
        lines.malformed(index, field.byte, format!("`{}` is not a u32: {error}", field.text), RECORD)
    })
}
