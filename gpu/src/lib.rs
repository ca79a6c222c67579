//! Doorbell's device of persistent CUDA workers, behind the driver's [`Platform`](doorbell_host::Platform).
//!
//! A kernel is started once and serves up to [`MAX_QUEUES`] queue pairs: it polls their slots in page-locked host
//! memory, runs rollouts and posts completions, without a launch, a copy or a step of the host per token. `docs/gpu.md`
//! tells how, and why its memory orders suffice. The crate `doorbell-gpu-cpu` runs the kernel's text on the CPU, to test
//! the protocol and the platform where there is no GPU.

mod cuda;
mod engine;
mod graveyard;
mod image;
mod info;
mod layout;
mod mailbox;
mod platform;
pub mod probes;

use std::sync::Arc;

pub use cuda::{Cuda, GpuOptions, MAX_QUEUES};
pub use engine::Engine;
pub use image::ImageError;
pub use info::{GpuInfo, describe};
pub use platform::GpuPlatform;

use doorbell_host::DeviceError;

/// Opens a GPU: one platform per queue pair, served by one kernel, which ends when the last of them is dropped.
///
/// # Errors
/// As [`Cuda::open`].
pub fn open(options: GpuOptions) -> Result<Vec<GpuPlatform>, DeviceError> {
    open_all(&[options])
}

/// Opens several GPUs: one platform per queue pair, GPU by GPU. Their kernels end together, when the last platform is
/// dropped. All GPUs of a process are to be opened by one call: CUDA may wait for a running kernel to open another.
///
/// # Errors
/// As [`Cuda::open`].
pub fn open_all(options: &[GpuOptions]) -> Result<Vec<GpuPlatform>, DeviceError> {
    let cuda = Arc::new(Cuda::open(options)?);
    let mut platforms = Vec::new();
    for (gpu, options) in options.iter().enumerate() {
        for queue in 0..options.queues {
            platforms.push(GpuPlatform::new(cuda.engine(gpu)?, queue)?);
        }
    }
    Ok(platforms)
}
