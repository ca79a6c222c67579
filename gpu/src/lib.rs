//! Doorbell's device of persistent CUDA workers, behind the driver's [`Platform`](doorbell_host::Platform).

mod image;

pub use image::ImageError;

/// Placeholder.
///
/// # Errors
/// When there is no GPU, or it takes no image.
pub fn probe(kernel: &str) -> Result<String, ImageError> {
    let kernels = image::load(&image::open(0)?)?;
    kernels
        .module
        .load_function(kernel)
        .map_err(|source| ImageError::Driver { what: "finding a kernel", source })?;
    Ok(kernels.origin.to_string())
}
