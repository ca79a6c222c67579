//! The bare loop: what the same verilated model does in the smallest C++ harness that runs it.

use std::time::Duration;

use doorbell_contract::{HwDesc, Place, Register, SqKey};
use doorbell_host::QueueConfig;

use crate::bridge::ffi;
use crate::config::RtlConfig;
use crate::error::CosimError;
use crate::platform::variant_for;

/// What the bare loop did, from the doorbell to the last completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BareRun {
    /// Workers that the RTL was built with.
    pub workers: u32,
    /// Clock cycles.
    pub cycles: u64,
    /// Wall time.
    pub elapsed: Duration,
    /// Completions written; as many as there were descriptors.
    pub completions: u64,
    /// Token lines of 64 bytes written.
    pub token_beats: u64,
}

/// Runs `descs`, at most 65536, to their end on RTL with at least `workers` workers, without Rust, checks, latency or
/// faults. Of `config`, the depths and start indices are not used.
///
/// # Errors
/// `NotBuilt`, `Config` for too many descriptors, `Simulator` if the model does not take or finish them.
pub fn bare_loop(workers: u32, config: &QueueConfig, descs: &[HwDesc]) -> Result<BareRun, CosimError> {
    let workers = variant_for(&RtlConfig { workers, ..RtlConfig::default() })?.workers;
    if descs.is_empty() || descs.len() > 1 << 16 {
        let value = descs.len().to_string();
        return Err(CosimError::Config {
            field: "descriptors of the bare loop",
            value,
            expected: "1 to 65536",
        });
    }
    let registers = [
        (Register::CheckpointDefault, config.checkpoint_default),
        (Register::WaitStates, config.wait_states),
        (Register::LengthLimit, config.length_limit),
        (Register::EosThreshold, config.eos_threshold),
        (Register::RewardThreshold, config.reward_threshold as u32),
        (Register::FnWorkers, u32::MAX >> (32 - config.workers.unwrap_or(workers))),
    ]
    .map(|(register, value)| ffi::RegisterWrite { address: register.address(Place::FIRST), value });
    // What the register SQ_KEY holds behind a reset.
    let key = SqKey::new(0);
    let sealed: Vec<HwDesc> = (0..).zip(descs).map(|(index, desc)| desc.seal(&key, index)).collect();
    let run = ffi::bare_loop(workers, &registers, bytemuck::cast_slice(&sealed), config.token_bytes)
        .map_err(|error| CosimError::Simulator { message: error.what().to_owned() })?;
    Ok(BareRun {
        workers,
        cycles: run.cycles,
        elapsed: Duration::from_secs_f64(run.seconds),
        completions: run.completions,
        token_beats: run.token_beats,
    })
}
