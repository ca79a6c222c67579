//! The persistent CUDA kernel, on one or several GPUs.

use doorbell_gpu::GpuOptions;
use doorbell_host::{DeviceError, Platform, QueueConfig};

use crate::{Gpus, Opened, Settings};

/// Advances without progress after which a lone queue pair counts as hung: 1 s, as each waits for 100 us. What a driver
/// takes for progress may have happened long before, so a hang is told after one or two such times.
const PATIENCE: u32 = 10_000;
/// Queue pairs are given time in turn, so each gets a part of that patience; this much at least, as the last that has
/// work is waited for alone.
const LEAST_PATIENCE: u32 = 2_500;

/// See [`Kind::missing`](crate::Kind::missing).
pub(crate) fn missing() -> Option<String> {
    match doorbell_gpu::open(GpuOptions::default()) {
        Ok(_) => None,
        Err(DeviceError::Unavailable { reason, .. }) => Some(reason),
        Err(other) => Some(other.to_string()),
    }
}

/// Starts a kernel on each GPU and opens its queue pairs: GPU by GPU, where shards are counted. Each shows itself as a device
/// of its own, whose functions confine nothing (CAP_WINDOWS is 0), so their number changes nothing.
pub(crate) fn open(settings: &Settings, rewards: bool) -> Result<Opened, DeviceError> {
    let (Gpus { gpus }, each) = (&settings.gpus, usize::from(settings.queues));
    let queues = each * usize::from(crate::row(rewards));
    let patience = settings.patience.unwrap_or_else(|| patience(gpus.len() * queues));
    let config = QueueConfig { patience, ..settings.queue.clone() };
    let bytes = config.shared_bytes()?;
    let options: Vec<GpuOptions> =
        gpus.iter().map(|&gpu| GpuOptions { gpu, queues, bytes, sms: None }).collect();
    let platforms = doorbell_gpu::open_all(&options)?;
    let first = platforms.first().map_or("gpu", |platform| platform.name()).to_owned();
    crate::paired(name(&first, gpus.len(), each), platforms, &config, rewards)
}

/// See [`QueueConfig::patience`].
fn patience(queue_pairs: usize) -> u32 {
    (PATIENCE / queue_pairs as u32).max(LEAST_PATIENCE)
}

/// What reports call several queue pairs, the first of which is `first`'s.
fn name(first: &str, gpus: usize, queues: usize) -> String {
    match (gpus, queues) {
        (1, _) => format!("{first} ({queues} queues)"),
        (_, 1) => format!("gpu ({gpus} GPUs)"),
        _ => format!("gpu ({gpus} GPUs, {queues} queues each)"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(1, 4, "gpu1 (4 queues)")]
    #[case(2, 1, "gpu (2 GPUs)")]
    #[case(2, 16, "gpu (2 GPUs, 16 queues each)")]
    fn names_tell_what_runs(#[case] gpus: usize, #[case] queues: usize, #[case] expected: &str) {
        assert_eq!(name("gpu1", gpus, queues), expected);
    }
}
