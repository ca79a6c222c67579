//! A server on a thread of its own, and devices to serve.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod owner;
pub mod rage;
pub mod raw;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_cosim::{RtlConfig, RtlPlatform};
use doorbell_host::{Device, Driver, FunctionMemory, QueueConfig};
use doorbell_verify::ModelPlatform;
use doorbell_vfio::{ServeError, Server, Tally, VfioUser};

/// Cycles of a slice of the device's time, as the command has it.
pub const SLICE: u64 = 64;

/// A device that is served as long as this lives.
pub struct Served {
    sockets: Vec<PathBuf>,
    pub tallies: Vec<Arc<Tally>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Serves `device` with so many functions.
    pub fn new(device: impl FunctionMemory + 'static, functions: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sockets: Vec<PathBuf> = (0..functions).map(|k| folder.path().join(format!("f{k}"))).collect();
        let mut server = Server::new(device, &sockets).unwrap();
        let tallies = server.tallies().to_vec();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let thread = std::thread::spawn(move || server.run(&stops, |_| {}));
        Self { sockets, tallies, stop, thread: Some(thread), _folder: folder }
    }

    pub fn socket(&self, function: usize) -> &Path {
        &self.sockets[function]
    }

    /// A driver of the function's first queue pair.
    pub fn driver(&self, function: usize, config: QueueConfig) -> Driver<VfioUser> {
        let config = QueueConfig { patience: 100_000, ..config };
        Driver::new(VfioUser::open(self.socket(function)).unwrap(), config).unwrap()
    }

    pub fn device(&self, function: usize, config: QueueConfig) -> Box<dyn Device> {
        Box::new(self.driver(function, config))
    }

    /// Ends the server; it has not failed.
    pub fn end(mut self) {
        self.join();
    }

    /// Waits until the server has ended by itself, and says why.
    pub fn failure(mut self) -> String {
        let thread = self.thread.take().expect("a server that runs");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "the server goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.join().expect("the server has not panicked").expect_err("a reason").to_string()
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join().expect("the server has not panicked");
            ended.expect("the server has not failed");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.join();
        }
    }
}

/// The RTL with so many functions, a queue pair each.
pub fn rtl(functions: u32) -> RtlPlatform {
    rtl_of(functions, SLICE)
}

/// The same with a slice of so many cycles.
pub fn rtl_of(functions: u32, slice: u64) -> RtlPlatform {
    let config = RtlConfig {
        workers: 4,
        queues: functions,
        functions,
        by_function: true,
        slice,
        ..RtlConfig::default()
    };
    RtlPlatform::new(&config).unwrap()
}

/// The golden model likewise.
pub fn model(functions: u8) -> ModelPlatform {
    ModelPlatform::with_queues(functions, functions).unwrap().by_function().unwrap()
}
