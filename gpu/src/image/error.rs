//! Why there are no kernels on a GPU.

use cudarc::driver::DriverError;

/// Why a GPU cannot be opened, or the kernels cannot be loaded onto it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// libcuda is not there.
    #[error(
        "there is no NVIDIA driver here: libcuda.so.1 is not found; install the driver, or if it is installed, name the \
         directory of libcuda.so.1 in LD_LIBRARY_PATH"
    )]
    NoDriver,
    /// The driver sees no GPU.
    #[error("the NVIDIA driver sees no GPU: look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES")]
    NoGpu,
    /// The driver sees fewer GPUs.
    #[error("there is no GPU {ordinal}: the driver sees {count}, counted from 0")]
    NoSuchGpu {
        /// The GPU that was asked for.
        ordinal: usize,
        /// GPUs that there are.
        count: usize,
    },
    /// The GPU lacks what the kernels use.
    #[error("{name} has compute capability {major}.{minor}, and the kernels need 8.0 (A100) or later")]
    OldGpu {
        /// The GPU.
        name: String,
        /// Its compute capability.
        major: i32,
        /// Its compute capability.
        minor: i32,
    },
    /// This build has no image, and nothing here can make one.
    #[error(
        "this program was built without nvcc and so has no code for the GPU, and NVRTC, which could compile it now, is \
         not found either: run `cargo xtask setup --gpu` and build again, or install libnvrtc"
    )]
    NoImage,
    /// The kernels that take times are compiled when they are wanted, and nothing here can.
    #[error(
        "the times of a step's parts need kernels of their own, which NVRTC compiles, and it is not found: install libnvrtc"
    )]
    NoProfile,
    /// The driver takes none of the images that there are.
    #[error(
        "the driver, of CUDA {driver}, takes no image of the kernels for compute capability {major}.{minor} ({refused}): \
         install a newer driver, or build with an nvcc that is no newer than it (environment variable NVCC)"
    )]
    OldDriver {
        /// Version of CUDA that it stands for.
        driver: String,
        /// Compute capability of the GPU.
        major: i32,
        /// Compute capability of the GPU.
        minor: i32,
        /// Each image with the driver's answer.
        refused: String,
    },
    /// NVRTC does not compile the kernels.
    #[error("NVRTC {version} does not compile the kernels for {architecture}:\n{log}")]
    Compile {
        /// Version of NVRTC.
        version: String,
        /// What it was to compile for.
        architecture: String,
        /// What it said.
        log: String,
    },
    /// NVRTC fails for a reason of its own.
    #[error("NVRTC fails in {what}: {code}")]
    Nvrtc {
        /// The call.
        what: &'static str,
        /// Its result.
        code: String,
    },
    /// The driver fails for a reason of its own.
    #[error("the CUDA driver fails in {what}: {source}")]
    Driver {
        /// What it was to do.
        what: &'static str,
        /// Its result.
        source: DriverError,
    },
}
