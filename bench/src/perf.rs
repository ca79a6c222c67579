//! Fixed workloads: `cargo xtask perf` counts the instructions that each takes, and holds them to a baseline.
//!
//! They are those of the benches, shorter: what `doorbell bench` times is what is counted. A workload depends on nothing but the
//! program: no clock, no thread, no random number decides what it does.

use std::sync::atomic::Ordering;

use doorbell_contract::Opcode;
use doorbell_trace::Trace;

use crate::pipeline::{self, Setup};
use crate::queue::{batch, round_trip};
use crate::rtl::{self, cosimulate};
use crate::{BenchError, Load};

/// Descriptors of each round trip's run.
const DESCRIPTORS: usize = 1 << 15;
/// Segments of each run of the runtime.
const SEGMENTS: u32 = 1 << 14;
/// Tokens of a descriptor on the RTL.
const TOKENS: u32 = 64;
/// Descriptors that each worker of the RTL runs.
const SHARE: u32 = 64;

/// A workload. Its function runs it, through [`timed`] once, and says how many units it had.
pub struct Workload {
    /// Its row in the baseline.
    pub name: &'static str,
    /// What its instructions are divided by.
    pub unit: &'static str,
    /// Runs it.
    pub run: fn() -> Result<u64, BenchError>,
}

const fn workload(name: &'static str, unit: &'static str, run: fn() -> Result<u64, BenchError>) -> Workload {
    Workload { name, unit, run }
}

/// Those of this crate.
pub const WORKLOADS: &[Workload] = &[
    workload("nop_256", "descriptor", || descriptors(Opcode::Nop, 256, 1)),
    workload("nop_1", "descriptor", || descriptors(Opcode::Nop, 1, 1)),
    workload("decode_256", "descriptor", || descriptors(Opcode::Decode, 256, 1)),
    workload("decode_1", "descriptor", || descriptors(Opcode::Decode, 1, 1)),
    workload("nop_256_q4", "descriptor", || descriptors(Opcode::Nop, 256, 4)),
    workload("nop_1_q4", "descriptor", || descriptors(Opcode::Nop, 1, 4)),
    workload("decode_256_q4", "descriptor", || descriptors(Opcode::Decode, 256, 4)),
    workload("decode_1_q4", "descriptor", || descriptors(Opcode::Decode, 1, 4)),
    workload("segment_1", "segment", || segments(1)),
    workload("segment_8", "segment", || segments(8)),
    workload("segment_32", "segment", || segments(32)),
    workload("cycle_w1", "cycle", || cycles(1)),
    workload("cycle_w4", "cycle", || cycles(4)),
    workload("cycle_w16", "cycle", || cycles(16)),
];

/// Has instructions counted in the place of time, from here on.
pub fn count_only() {
    crate::COUNTS.store(true, Ordering::Relaxed);
}

/// Runs `work` where its instructions count.
pub fn timed<T>(work: impl FnOnce() -> T) -> T {
    crate::timed(work).0
}

/// Round trips through driver and model in batches of `size`, of one-token DECODEs or NOPs, on so many queue pairs of one function.
fn descriptors(opcode: Opcode, size: usize, queues: u8) -> Result<u64, BenchError> {
    let trace = Trace { source: String::new(), requests: vec![] };
    let load = Load {
        trace: &trace,
        quick: true,
        queues,
        functions: 1,
        entries: None,
        language: None,
        decode: None,
    };
    round_trip(&load, &batch(opcode, size), (DESCRIPTORS / size) as u64)?;
    Ok(DESCRIPTORS as u64)
}

/// Segments of so many tokens through the runtime's hot thread, over the model.
fn segments(tokens: u32) -> Result<u64, BenchError> {
    let workload = pipeline::Workload::new(tokens, SEGMENTS);
    workload.run(Setup::Alone)?;
    Ok(workload.segments())
}

/// Cycles of the RTL that was built with so many workers, all of them busy.
fn cycles(workers: u32) -> Result<u64, BenchError> {
    Ok(cosimulate(workers, 0, &rtl::Workload::uniform(SHARE * workers, TOKENS)?)?.cycles)
}
