//! Engine 1 on the kernel: the tests of the golden model (R25 to R27), on the kernel's own text, compiled for the CPU; with
//! `DOORBELL_LANGUAGE=gpu` on a GPU, one after the other (`--test-threads 1`).

#[path = "../../verify/tests/language/host.rs"]
#[allow(dead_code, reason = "what plants faults is not here")]
mod host;
#[path = "../../verify/tests/language/refusals.rs"]
mod refusals;
#[path = "../../verify/tests/language/rollouts.rs"]
mod rollouts;
#[path = "../../verify/tests/language/versions.rs"]
mod versions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_contract::Counter;
use doorbell_gpu::{GpuDevice, GpuOptions, LanguageMemory};
use doorbell_gpu_cpu::{CpuKernel, Options};
use doorbell_host::Platform;

/// What is tested.
type Device = GpuDevice;

/// Room for `micro`.
const MEMORY: LanguageMemory = LanguageMemory { model_bytes: 1 << 18, cache_bytes: 32 * host::BLOCK };

/// It, with so many queue pairs; a function has at least one.
fn device(queues: u8, _functions: u8) -> Device {
    let (queues, bytes) = (queues.into(), host::config().shared_bytes().unwrap());
    if is_gpu() {
        let options = GpuOptions { queues, bytes, language: Some(MEMORY), ..GpuOptions::default() };
        return doorbell_gpu::open(options).expect("DOORBELL_LANGUAGE asks for a GPU");
    }
    let seed = std::env::var("DOORBELL_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let options = Options { queues, bytes, seed, language: Some(MEMORY), ..Options::default() };
    GpuDevice::new(Arc::new(CpuKernel::start(options).unwrap())).unwrap()
}

fn is_gpu() -> bool {
    std::env::var("DOORBELL_LANGUAGE").is_ok_and(|name| name == "gpu")
}

/// Bytes of an image whose damage it does not notice: it holds the length of a file to its shape, and does not fold it.
const UNSEEN: &[u64] = &[30_000];

/// Whether a step of one descriptor keeps all others waiting.
const ONE_AT_A_TIME: bool = false;

/// Lets time pass, until it has made a token for each twenty ticks, or as long as those of a PREFILL may take.
fn pass(device: &mut Device, ticks: u32) {
    let tick = Duration::from_micros(if is_gpu() { 5 } else { 100 });
    let start = Instant::now();
    let mut tokens = || device.read_register(Counter::Tokens.lo()).expect("a counter is read at any time");
    let goal = tokens() + ticks / 20;
    while tokens() < goal && start.elapsed() < tick * ticks {
        std::thread::sleep(Duration::from_micros(20));
    }
}
