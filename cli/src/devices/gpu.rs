//! The persistent CUDA kernel, its queue pair behind a driver.

use doorbell_gpu::GpuOptions;
use doorbell_host::{Device, DeviceError, Driver, QueueConfig};

use super::Settings;

/// Advances without progress after which the device counts as hung: the platform waits for 100 us in each, so that this
/// is 2 s.
const PATIENCE: u32 = 20_000;

/// See [`Kind::missing`](super::Kind::missing).
pub fn missing() -> Option<String> {
    match doorbell_gpu::open(GpuOptions { gpu: 0, queues: 1, bytes: 0 }) {
        Ok(_) => None,
        Err(DeviceError::Unavailable { reason, .. }) => Some(reason),
        Err(other) => Some(other.to_string()),
    }
}

/// Starts the kernel and opens its queue pair.
pub fn open(settings: &Settings) -> Result<Box<dyn Device>, DeviceError> {
    let patience = settings.patience.unwrap_or(PATIENCE);
    let queue = QueueConfig { patience, ..settings.queue.clone() };
    let options = GpuOptions { gpu: 0, queues: 1, bytes: queue.shared_bytes()? };
    let platform = doorbell_gpu::open(options)?.pop().expect("as many platforms as queues");
    Ok(Box::new(Driver::new(platform, queue)?))
}
