//! How many descriptors a device completes per second.

use std::time::{Duration, Instant};

use doorbell_contract::{HwCompletion, HwDesc, Status};
use doorbell_host::Device;
use doorbell_host::DeviceError;

/// What [`measure`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throughput {
    /// Descriptors submitted; each has completed.
    pub descriptors: u64,
    /// Completions that are DONE.
    pub done: u64,
    /// Wall time from the first submission to the last completion.
    pub elapsed: Duration,
}

/// Submits `batch` again and again until `rounds` batches have completed, never waiting for a batch as a whole.
/// The clock is read twice in all.
///
/// # Errors
/// The first of the device.
pub fn measure<D: Device + ?Sized>(
    device: &mut D,
    batch: &[HwDesc],
    rounds: u64,
) -> Result<Throughput, DeviceError> {
    let mut out = vec![HwCompletion::default(); batch.len()];
    let descriptors = batch.len() as u64 * rounds;
    let (mut submitted, mut completed, mut done) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    while completed < descriptors {
        if submitted < descriptors {
            let from = (submitted % batch.len() as u64) as usize;
            submitted += device.submit(&batch[from..])? as u64;
        }
        let taken = device.poll(&mut out)?;
        completed += taken as u64;
        done +=
            out[..taken].iter().filter(|completion| completion.status == Status::Done as u8).count() as u64;
    }
    Ok(Throughput { descriptors, done, elapsed: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_host::{Driver, QueueConfig};
    use doorbell_verify::ModelPlatform;

    #[test]
    fn every_descriptor_is_done() {
        let config = QueueConfig { sq_depth: 8, cq_depth: 4, ..Default::default() };
        let mut device = Driver::new(ModelPlatform::new(), config).unwrap();
        let batch = [HwDesc::nop(), HwDesc::decode(1, 0, 1), HwDesc::prefill(0, 1)];
        let seen = measure(&mut device, &batch, 1000).unwrap();
        assert_eq!((seen.descriptors, seen.done), (3000, 3000));
    }
}
