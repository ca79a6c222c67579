//! The persistent CUDA kernel, on one or several GPUs.

use doorbell_gpu::{GpuOptions, LanguageMemory};
use doorbell_host::{DeviceError, Platform, QueueConfig};

use crate::{Gpus, Opened, Settings};

/// Advances without progress after which a lone queue pair counts as hung: 1 s for whoever polls, as each waits for 100 us, and 5 s for whoever sleeps in
/// `wait`, for 500 us each. What a driver takes for progress may have happened long before, so a hang is told after one or two such times.
const PATIENCE: u32 = 10_000;
/// Queue pairs are given time in turn, so each gets a part of that patience; this much at least, as the last that has
/// work is waited for alone.
const LEAST_PATIENCE: u32 = 2_500;
/// Keys and values of a sequence of unknown length, at most, in bytes: each lane has so many, and an arena may hold many sequences.
const LARGEST_CACHE: u64 = 256 << 20;

/// Environment variable that says of how many blocks a team is that takes steps of a language model ([`GpuOptions::ranks`]).
const RANKS: &str = "DOORBELL_GPU_RANKS";

/// Environment variable that says how many bytes of keys and values stay on the GPU between descriptors ([`GpuOptions::kept_bytes`]).
const KEPT: &str = "DOORBELL_GPU_KEPT_BYTES";

/// The number that it says.
fn kept_bytes(text: &str) -> Result<u64, DeviceError> {
    text.trim().parse().map_err(|_| DeviceError::Config {
        field: "DOORBELL_GPU_KEPT_BYTES",
        value: 0,
        expected: format!("a number of bytes, 0 for none, not {text:?}"),
    })
}

/// The number that it says.
fn ranks(text: &str) -> Result<u32, DeviceError> {
    let known = text.trim().parse().ok().filter(|ranks| (1..=128).contains(ranks));
    known.ok_or_else(|| DeviceError::Config {
        field: "DOORBELL_GPU_RANKS",
        value: 0,
        expected: format!("a number from 1 to 128, not {text:?}"),
    })
}

/// See [`Kind::missing`](crate::Kind::missing).
pub(crate) fn missing() -> Option<String> {
    match doorbell_gpu::open(GpuOptions::default()) {
        Ok(_) => None,
        Err(DeviceError::Unavailable { reason, .. }) => Some(reason),
        Err(other) => Some(other.to_string()),
    }
}

/// The first GPU with so many queue pairs, each with room for a chaos' memory.
pub(crate) fn open_bare(queues: u8) -> Result<doorbell_gpu::GpuDevice, DeviceError> {
    let bytes = doorbell_verify::chaos::BYTES_OF_A_QUEUE_PAIR;
    doorbell_gpu::open(GpuOptions { queues: queues.into(), bytes, ..GpuOptions::default() })
}

/// Starts a kernel on each GPU and opens its queue pairs, divided among the functions: GPU by GPU, where shards are counted.
pub(crate) fn open(settings: &Settings, rewards: bool) -> Result<Opened, DeviceError> {
    let (Gpus { gpus, sms }, each) = (&settings.gpus, usize::from(settings.queues));
    let queues = each * usize::from(crate::row(rewards));
    let patience = settings.patience.unwrap_or_else(|| patience(gpus.len() * queues, &settings.queue));
    let config = QueueConfig { patience, ..settings.queue.clone() };
    let bytes = config.shared_bytes()?;
    let language = language(&config);
    let ranks = std::env::var(RANKS).ok().map(|text| ranks(&text)).transpose()?;
    let kept_bytes = std::env::var(KEPT).ok().map(|text| kept_bytes(&text)).transpose()?;
    let sms = *sms;
    let placement = settings.placement;
    let options: Vec<GpuOptions> = gpus
        .iter()
        .map(|&gpu| GpuOptions {
            gpu,
            queues,
            bytes,
            sms,
            language,
            ranks,
            kept_bytes,
            placement,
            ..GpuOptions::default()
        })
        .collect();
    let devices = doorbell_gpu::open_all(&options)?;
    let first = devices.first().map_or("gpu", |device| device.name()).to_owned();
    let name = name(&first, gpus.len(), each, settings.functions.into());
    if queues == 1 {
        return crate::paired(name, devices, &config, rewards);
    }
    let mut divided = (vec![], config.clone());
    for device in devices {
        let (ports, config) = crate::divide(device, settings, &config, rewards)?;
        divided.0.extend(ports);
        divided.1 = config;
    }
    crate::paired(name, divided.0, &divided.1, rewards)
}

/// Whoever has a region for models wants an engine for them: with room for what that holds, and for the longest sequence. Where nobody knows that,
/// for one of all blocks of an arena.
fn language(config: &QueueConfig) -> Option<LanguageMemory> {
    let arena = config.arena_bytes.into_iter().max().unwrap_or(0);
    let cache_bytes =
        if config.sequence_bytes > 0 { config.sequence_bytes } else { arena.min(LARGEST_CACHE) };
    (config.model_bytes > 0).then_some(LanguageMemory { model_bytes: config.model_bytes, cache_bytes })
}

/// See [`QueueConfig::patience`].
fn patience(queue_pairs: usize, queue: &QueueConfig) -> u32 {
    let plain = (PATIENCE / queue_pairs as u32).max(LEAST_PATIENCE);
    // A step of a language model reads all of it, at 10 GB/s or more however many do, and a descriptor has a step for each token that there
    // is room for.
    let steps = if queue.model_bytes > 0 {
        (queue.token_bytes / 4).saturating_mul(queue.model_bytes / (1 << 20) + 1)
    } else {
        0
    };
    u32::try_from(steps).unwrap_or(u32::MAX).saturating_add(plain)
}

/// What reports call several queue pairs, the first of which is `first`'s.
fn name(first: &str, gpus: usize, queues: usize, functions: usize) -> String {
    match (gpus, queues, functions) {
        (1, _, 1) => format!("{first} ({queues} queues)"),
        (1, ..) => format!("{first} ({queues} queues, {functions} functions)"),
        (_, 1, _) => format!("gpu ({gpus} GPUs)"),
        (_, _, 1) => format!("gpu ({gpus} GPUs, {queues} queues each)"),
        _ => format!("gpu ({gpus} GPUs, {queues} queues and {functions} functions each)"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_language_model_takes_its_time() {
        let queue = QueueConfig { token_bytes: 4000, ..QueueConfig::default() };
        assert_eq!([1, 2, 64].map(|pairs| patience(pairs, &queue)), [10_000, 5_000, 2_500]);
        let queue = QueueConfig { model_bytes: 3 << 20, ..queue };
        assert_eq!(patience(1, &queue), 10_000 + 1_000 * 4);
        let queue = QueueConfig { model_bytes: 1 << 40, token_bytes: 1 << 40, ..queue };
        assert_eq!(patience(1, &queue), u32::MAX);
    }

    #[test]
    fn a_region_for_models_asks_for_engine_1() {
        assert_eq!(language(&QueueConfig::default()), None);
        let config = QueueConfig { model_bytes: 640, arena_bytes: [1, 64, 0, 7], ..QueueConfig::default() };
        assert_eq!(language(&config), Some(LanguageMemory { model_bytes: 640, cache_bytes: 64 }));
        let config = QueueConfig { arena_bytes: [1 << 40; 4], ..config };
        assert_eq!(language(&config).unwrap().cache_bytes, LARGEST_CACHE);
        // SmolLM2-1.7B's longest: what is too much for the GPU, it says when it is opened.
        let config = QueueConfig { sequence_bytes: 830_472_192, ..config };
        assert_eq!(language(&config).unwrap().cache_bytes, 830_472_192);
    }

    #[rstest]
    #[case("1", Some(1))]
    #[case(" 128 ", Some(128))]
    #[case("0", None)]
    #[case("129", None)]
    #[case("all", None)]
    fn sizes_of_teams(#[case] text: &str, #[case] expected: Option<u32>) {
        assert_eq!(ranks(text).ok(), expected);
    }

    #[rstest]
    #[case("0", Some(0))]
    #[case(" 4294967296 ", Some(1 << 32))]
    #[case("1G", None)]
    fn bytes_that_are_kept(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(kept_bytes(text).ok(), expected);
    }

    #[rstest]
    #[case(1, 4, 1, "gpu1 (4 queues)")]
    #[case(1, 4, 2, "gpu1 (4 queues, 2 functions)")]
    #[case(2, 1, 1, "gpu (2 GPUs)")]
    #[case(2, 16, 1, "gpu (2 GPUs, 16 queues each)")]
    #[case(2, 16, 4, "gpu (2 GPUs, 16 queues and 4 functions each)")]
    fn names_tell_what_runs(
        #[case] gpus: usize,
        #[case] queues: usize,
        #[case] functions: usize,
        #[case] expected: &str,
    ) {
        assert_eq!(name("gpu1", gpus, queues, functions), expected);
    }
}
