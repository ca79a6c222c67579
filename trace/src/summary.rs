//! Totals and quantiles of a trace.

use std::collections::HashSet;

use serde::Serialize;

use super::Trace;

/// What `doorbell trace info` shows. Token counts are in tokens, times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TraceSummary {
    /// Number of requests.
    pub requests: usize,
    /// Time from the first arrival to the last.
    pub span_ms: u64,
    /// Prompt lengths.
    pub prompt: Lengths,
    /// Answer lengths.
    pub output: Lengths,
    /// Prefix blocks over all requests.
    pub prefix_blocks: usize,
    /// Distinct prefix blocks.
    pub distinct_prefix_blocks: usize,
}

/// Distribution of one length over the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lengths {
    /// Sum.
    pub total: u64,
    /// Median (nearest rank).
    pub p50: u32,
    /// 99th percentile (nearest rank).
    pub p99: u32,
    /// Largest.
    pub max: u32,
}

impl Lengths {
    fn of(lengths: impl Iterator<Item = u32>) -> Lengths {
        let mut sorted: Vec<u32> = lengths.collect();
        sorted.sort_unstable();
        let rank = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(0)
        };
        Lengths {
            total: sorted.iter().map(|&length| u64::from(length)).sum(),
            p50: rank(50),
            p99: rank(99),
            max: rank(100),
        }
    }
}

impl TraceSummary {
    pub(super) fn of(trace: &Trace) -> TraceSummary {
        let requests = &trace.requests;
        let arrivals = || requests.iter().map(|request| request.arrival_ms);
        let blocks = || requests.iter().flat_map(|request| &request.prefix);
        TraceSummary {
            requests: requests.len(),
            span_ms: arrivals().max().unwrap_or(0) - arrivals().min().unwrap_or(0),
            prompt: Lengths::of(requests.iter().map(|request| request.prompt_tokens)),
            output: Lengths::of(requests.iter().map(|request| request.output_tokens)),
            prefix_blocks: blocks().count(),
            distinct_prefix_blocks: blocks().collect::<HashSet<_>>().len(),
        }
    }
}
