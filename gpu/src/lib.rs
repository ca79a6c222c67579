//! Doorbell's device of persistent CUDA workers, behind the driver's [`Platform`](doorbell_host::Platform).
//!
//! A kernel is started once and serves up to [`MAX_QUEUES`] queue pairs: it polls their slots in page-locked host
//! memory, runs rollouts and posts completions, without a launch, a copy or a step of the host per token. `docs/gpu.md`
//! tells how, and why its memory orders suffice. The crate `doorbell-gpu-cpu` runs the kernel's text on the CPU, to test
//! the protocol and the platform where there is no GPU.

mod cuda;
mod device;
mod engine;
mod graveyard;
mod image;
mod info;
mod layout;
mod line;
mod mailbox;
mod phases;
pub mod probes;

use std::sync::Arc;

pub use cuda::{Cuda, GpuOptions, LanguageMemory, MAX_QUEUES, Pages};
pub use device::GpuDevice;
pub use engine::Engine;
pub use image::ImageError;
pub use info::{GpuInfo, describe};
pub use phases::Phases;

use doorbell_host::DeviceError;

/// Why there is no GPU here at all: no driver, or none that the driver sees. `None` if there is one, whether or not it can be opened.
pub fn missing() -> Option<String> {
    missing_of(image::count())
}

fn missing_of(found: Result<usize, ImageError>) -> Option<String> {
    match found {
        Err(error @ (ImageError::NoDriver | ImageError::NoGpu)) => Some(error.to_string()),
        _ => None,
    }
}

/// Opens a GPU: one device, served by one kernel, which ends when it is dropped.
///
/// # Errors
/// As [`Cuda::open`].
pub fn open(options: GpuOptions) -> Result<GpuDevice, DeviceError> {
    GpuDevice::new(Arc::new(Cuda::open(&[options])?).engine(0)?)
}

/// Opens several GPUs, a device each. Their kernels end together, when the last of them is dropped. All GPUs of a process are opened by one call: CUDA would wait for a
/// running kernel to open another, so that is refused.
///
/// # Errors
/// As [`Cuda::open`].
pub fn open_all(options: &[GpuOptions]) -> Result<Vec<GpuDevice>, DeviceError> {
    let cuda = Arc::new(Cuda::open(options)?);
    (0..options.len()).map(|gpu| GpuDevice::new(cuda.engine(gpu)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests on a GPU that is there, and cannot be used, fail: they are not skipped.
    #[test]
    fn a_gpu_that_cannot_be_used_is_not_missing() {
        for error in [ImageError::NoDriver, ImageError::NoGpu] {
            assert_eq!(missing_of(Err(error.clone())), Some(error.to_string()));
        }
        let old = ImageError::OldGpu { name: "GPU".to_owned(), major: 7, minor: 5 };
        for found in
            [Ok(1), Err(ImageError::NoSuchGpu { ordinal: 1, count: 1 }), Err(ImageError::NoImage), Err(old)]
        {
            assert_eq!(missing_of(found.clone()), None, "{found:?}");
        }
    }
}
