//! Doorbell's RTL as a device: `rtl/` verilated, with its memory and clock in C++, behind the driver's
//! [`Platform`](doorbell_host::Platform).
//!
//! The C++ beside this file: `model_simulator.h` is the clock loop, `axi_memory` the memory on the device's AXI port,
//! `dma_ranges` that of functions with hosts of their own, `queue_monitor` and `window_watch` what that memory checks, `failure` how a failing assertion becomes an error, `bare_loop.h` the
//! rival that the clock loop is measured against, `npu_watch.h` what is seen of the NPU, `strip.h` the pins of the last cycles. `bridge.rs` is
//! the seam.

#[cfg(feature = "bare")]
mod bare;
mod bridge;
mod config;
mod error;
mod function_memory;
mod npu;
mod platform;
pub mod probe;
pub mod strip;

#[cfg(feature = "bare")]
pub use bare::{BareRun, bare_loop};
pub use bridge::ffi::{Built, Owed};
pub use config::{
    CHANNELS, Fault, FaultKind, FaultyRange, Injected, MAX_LATENCY, Moment, RtlConfig, SHARED_SLICE, SLICE,
    Wave, Weather,
};
pub use error::CosimError;
pub use platform::{RtlPlatform, Watch};

/// The numbers of workers for which RTL of one queue pair was built, in rising order.
pub fn built_workers() -> Vec<u32> {
    built()
        .into_iter()
        .filter(|built| built.queues == 1 && built.engines == 1)
        .map(|built| built.workers)
        .collect()
}

/// All devices that were built, by engines, queue pairs, functions and workers in rising order.
pub fn built() -> Vec<Built> {
    bridge::ffi::built_variants()
}
