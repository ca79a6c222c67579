//! A device that breaks under load.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_contract::{HwCompletion, HwDesc};
use doorbell_host::language::LanguageRegions;
use doorbell_host::{Counters, Device, DeviceError, Features, TokenRegion};
use doorbell_serve::engine::Pause;
use rstest::rstest;
use serde_json::json;

use crate::running::{Running, begin, limits, size};

/// A device that fails from some moment on.
struct Breaks {
    device: Box<dyn Device>,
    broken: Arc<AtomicBool>,
}

impl Breaks {
    fn check(&self) -> Result<(), DeviceError> {
        match self.broken.load(Ordering::Relaxed) {
            true => Err(DeviceError::Unavailable { device: "model".into(), reason: "it broke".into() }),
            false => Ok(()),
        }
    }
}

impl Device for Breaks {
    fn name(&self) -> &str {
        self.device.name()
    }
    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.check()?;
        self.device.submit(batch)
    }
    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.check()?;
        self.device.poll(out)
    }
    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.check()?;
        self.device.collect(out)
    }
    fn wait(&mut self, deadline: Instant) -> Result<bool, DeviceError> {
        self.check()?;
        self.device.wait(deadline)
    }
    fn in_flight(&self) -> usize {
        self.device.in_flight()
    }
    fn capacity(&self) -> usize {
        self.device.capacity()
    }
    fn room(&self) -> usize {
        self.device.room()
    }
    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.device.tokens(delta_offset, out)
    }
    fn token_regions(&self) -> Vec<TokenRegion> {
        self.device.token_regions()
    }
    fn logp_regions(&self) -> Vec<TokenRegion> {
        self.device.logp_regions()
    }
    fn language_regions(&self) -> Vec<LanguageRegions> {
        self.device.language_regions()
    }
    fn token_shard(&self, delta_offset: u64) -> usize {
        self.device.token_shard(delta_offset)
    }
    fn features(&self) -> Features {
        self.device.features()
    }
    fn disable(&mut self) -> Result<(), DeviceError> {
        self.device.disable()
    }
    fn enable(&mut self) -> Result<(), DeviceError> {
        self.device.enable()
    }
    fn counters(&mut self) -> Result<Counters, DeviceError> {
        self.device.counters()
    }
}

/// If the engine fails while requests run and wait, one of them just before its admission, each client hears of it, nothing lives, and the server ends
/// when it is told to.
#[rstest]
fn an_engine_that_fails_ends_every_request(#[values(false, true)] streams: bool) {
    for round in 0..4u64 {
        let broken = Arc::new(AtomicBool::new(false));
        let flag = broken.clone();
        let server =
            Running::over(None, size(), limits(), None, |device| Box::new(Breaks { device, broken: flag }));
        let body = json!({ "prompt": [1], "n": 8, "max_tokens": 64, "ignore_eos": true, "stream": streams });
        let clients: Vec<_> = (0..40).map(|_| begin(&server, "/v1/completions", &body, "")).collect();
        let since = Instant::now();
        while server.server.engine.load().waiting == 0 {
            assert!(since.elapsed() < Duration::from_secs(10));
        }
        std::thread::sleep(Duration::from_millis(round));
        broken.store(true, Ordering::Relaxed);
        for mut client in clients {
            let mut told = String::new();
            // Some were answered before.
            client.read_to_string(&mut told).unwrap();
            let ends = told.contains("the engine has ended") || told.contains("\"finish_reason\":\"length\"");
            assert!(ends, "round {round}: {told}");
        }
        assert_eq!(server.server.engine.load().live, 0);
        assert_eq!(server.post("/pause?mode=abort", &json!({})).0, 503);
        server.ok("/abort_requests", &json!({}));
    }
}

/// A pause that waits for answers hears that the engine has ended, and not that it is paused.
#[test]
fn a_pause_that_waits_hears_that_the_engine_ended() {
    let broken = Arc::new(AtomicBool::new(false));
    let flag = broken.clone();
    let server =
        Running::over(None, size(), limits(), None, |device| Box::new(Breaks { device, broken: flag }));
    let body = json!({ "prompt": [1], "n": 8, "max_tokens": 64, "ignore_eos": true });
    let clients: Vec<_> = (0..40).map(|_| begin(&server, "/v1/completions", &body, "")).collect();
    let since = Instant::now();
    while server.server.engine.load().waiting == 0 {
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    let mut pause = begin(&server, "/pause?mode=wait", &json!({}), "");
    while server.server.engine.pause_of() != Pause::Holding {
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    broken.store(true, Ordering::Relaxed);
    let mut told = String::new();
    pause.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    // It ended in the pause, and so it is still paused.
    assert_ne!(server.server.engine.pause_of(), Pause::Running);
    for endpoint in ["/health", "/health_generate"] {
        let refused = ureq::get(server.url(endpoint)).call().unwrap_err();
        assert!(matches!(refused, ureq::Error::StatusCode(503)), "{endpoint}: {refused}");
    }
    drop(clients);
}
