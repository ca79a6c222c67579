//! The floors and rivals that `doorbell bench gpu` sets beside the device. All times are wall time, seen by the host.

mod language;

use std::hint;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, result, sys,
};
use doorbell_contract::{HwCompletion, HwDesc, NIC_SLOTS_AT};
use doorbell_host::memory::PAGE;
use doorbell_host::{DeviceError, SharedMemory};

pub use crate::cuda::launches;
use crate::cuda::{count_launch, pinned};
use crate::graveyard::GRAVEYARD;
use crate::image::{self, Kernels};

pub use language::{LanguageArguments, LanguageRun, LanguageTask, does_it_fit, sampled_of};

/// A wait of a probe that takes longer has failed (R15).
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Looks at memory between two looks at the clock.
pub const LOOKS: u32 = 1 << 16;

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// The floors and rivals, on a GPU on which no persistent kernel runs.
#[derive(Debug)]
pub struct Probes {
    gpu: usize,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
}

impl Probes {
    /// Probes on GPU `gpu`.
    ///
    /// # Errors
    /// `Unavailable` where there is no GPU, no driver or no kernel.
    pub fn open(gpu: usize) -> Result<Self, DeviceError> {
        let unavailable = |error: image::ImageError| DeviceError::Unavailable {
            device: format!("GPU {gpu}"),
            reason: error.to_string(),
        };
        let context = image::open(gpu).map_err(unavailable)?;
        let kernels = image::load(&context).map_err(unavailable)?;
        let stream = context.new_stream().map_err(|error| failed(gpu, "making a stream", error))?;
        Ok(Self { gpu, context, stream, kernels })
    }

    /// The GPU's name, and what its kernels are run from: machine code, PTX or what NVRTC made.
    ///
    /// # Errors
    /// `Failed`.
    pub fn describe(&self) -> Result<String, DeviceError> {
        let name = self.context.name().map_err(self.failed("asking for its name"))?;
        Ok(format!("{name} ({})", self.kernels.origin))
    }

    fn failed(&self, what: &'static str) -> impl Fn(DriverError) -> DeviceError + use<> {
        let gpu = self.gpu;
        move |error| failed(gpu, what, error)
    }

    fn function(&self, name: &'static str) -> Result<CudaFunction, DeviceError> {
        self.kernels.module.load_function(name).map_err(self.failed("finding a kernel"))
    }

    /// Times of `rounds` round trips of a flag, host to GPU and back, before each of which `pause` is called.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn ping_pong(&self, rounds: u32, pause: impl Fn(u32)) -> Result<Vec<Duration>, DeviceError> {
        let memory = pinned(&self.context, 2 * PAGE)?;
        let (to, from) = (memory.bus_address(), memory.bus_address() + PAGE as u64);
        let function = self.function("probe_ping_pong")?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&to).arg(&from).arg(&rounds);
        count_launch();
        // SAFETY: the arguments are those of the kernel: two words in `memory`, which outlives it (`synchronize` or `abandon` below).
        unsafe { launch.launch(ONE_THREAD) }.map_err(self.failed("starting the ping-pong"))?;
        let (to, from) = (memory.word32(0)?, memory.word32(PAGE)?);
        let trip = |round| {
            pause(round);
            let start = Instant::now();
            to.store(round, Ordering::Release);
            let mut looks = 0u32;
            while from.load(Ordering::Acquire) != round {
                hint::spin_loop();
                // The clock is not part of a usual round trip.
                looks += 1;
                if looks.is_multiple_of(LOOKS) && start.elapsed() > PATIENCE {
                    return Err(self.silent("the ping-pong"));
                }
            }
            Ok(start.elapsed())
        };
        let times =
            (1..=rounds).map(trip).collect::<Result<_, _>>().inspect_err(|_| self.abandon(&memory))?;
        self.stream.synchronize().map_err(self.failed("the ping-pong"))?;
        Ok(times)
    }

    /// The one way in which a kernel that runs on can have the GPU interrupt the host: a second stream waits for a word that the kernel
    /// writes, and behind it an event for which the host sleeps. Times from when the kernel is told to write the word to when
    /// the host runs, `rounds` of them, each told `asleep` behind the begin of the sleep.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn interrupts(&self, rounds: u32, asleep: Duration) -> Result<Vec<Duration>, DeviceError> {
        let memory = pinned(&self.context, 2 * PAGE)?;
        let (to, from) = (memory.bus_address(), memory.bus_address() + PAGE as u64);
        let second = self.context.new_stream().map_err(self.failed("making a stream"))?;
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        let event = self.context.new_event(Some(flags)).map_err(self.failed("making an event"))?;
        let function = self.function("probe_ping_pong")?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&to).arg(&from).arg(&rounds);
        count_launch();
        // SAFETY: the arguments are those of the kernel: two words in `memory`, which outlives it (`synchronize` or `abandon` below).
        unsafe { launch.launch(ONE_THREAD) }.map_err(self.failed("starting the ping-pong"))?;
        let word = memory.word32(0)?;
        let mut sleep = |round| {
            let geq = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
            // SAFETY: the stream lives, and the word outlives what waits for it (`synchronize` or `abandon` below).
            unsafe { sys::cuStreamWaitValue32_v2(second.cu_stream(), from, round, geq) }.result()?;
            event.record(&second)?;
            thread::scope(|scope| {
                let teller = scope.spawn(|| {
                    thread::sleep(asleep);
                    let told = Instant::now();
                    word.store(round, Ordering::Release);
                    told
                });
                event.synchronize()?;
                let awake = Instant::now();
                Ok(awake - teller.join().unwrap_or(awake))
            })
        };
        let times = (1..=rounds).map(&mut sleep).collect::<Result<_, _>>();
        // Lets the kernel end, whatever failed: it waits for each number in turn.
        if times.is_err() {
            let answer = memory.word32(PAGE)?;
            for round in 1..=rounds {
                word.store(round, Ordering::Release);
                let start = Instant::now();
                while answer.load(Ordering::Acquire) < round {
                    if start.elapsed() > PATIENCE {
                        self.abandon(&memory);
                        std::mem::forget((second, event));
                        return Err(self.silent("the ping-pong"));
                    }
                    hint::spin_loop();
                }
            }
        }
        self.stream.synchronize().map_err(self.failed("the ping-pong"))?;
        times.map_err(self.failed("sleeping until the GPU interrupts"))
    }

    /// Gives up a kernel that uses `memory` and may run for ever: to free that, or to unload its code, would be to wait for its end (R15). Nothing that this
    /// process frees from now on is freed, as with a device's kernel that does not end.
    pub fn abandon(&self, memory: &SharedMemory) {
        GRAVEYARD.kernel_starts();
        std::mem::forget((memory.clone(), self.stream.clone(), self.kernels.module.clone()));
    }

    /// That the GPU did not answer within [`PATIENCE`].
    pub fn silent(&self, what: &str) -> DeviceError {
        DeviceError::Failed {
            device: format!("GPU {}", self.gpu),
            what: format!("{what} got no answer within {PATIENCE:?}"),
        }
    }

    fn launch_token(&self, function: &CudaFunction, to: u64, position: u32) -> Result<(), DriverError> {
        let (seed, rollout) = (1u32, 2u32);
        let mut launch = self.stream.launch_builder(function);
        launch.arg(&to).arg(&seed).arg(&rollout).arg(&position);
        count_launch();
        // SAFETY: the arguments are those of the kernel; `to` is a word of pinned memory whose owner waits for the stream.
        unsafe { launch.launch(ONE_THREAD) }.map(|_| ())
    }

    /// Times of tokens by a kernel launch each, waited for.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn launches(&self, rounds: u32) -> Result<Vec<Duration>, DeviceError> {
        let memory = pinned(&self.context, PAGE)?;
        let function = self.function("probe_token")?;
        let token = |position| {
            let start = Instant::now();
            self.launch_token(&function, memory.bus_address(), position)
                .and_then(|()| self.stream.synchronize())
                .map_err(self.failed("launching a token"))?;
            Ok(start.elapsed())
        };
        (0..rounds).map(token).collect()
    }

    /// Tokens by kernel launches one behind the other, waited for at the end: time per token.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn launches_back_to_back(&self, tokens: u32) -> Result<Duration, DeviceError> {
        let memory = pinned(&self.context, PAGE)?;
        let function = self.function("probe_token")?;
        let start = Instant::now();
        for position in 0..tokens {
            self.launch_token(&function, memory.bus_address(), position)
                .map_err(self.failed("launching tokens"))?;
        }
        self.stream.synchronize().map_err(self.failed("launching tokens"))?;
        Ok(start.elapsed() / tokens)
    }

    /// Times of tokens by the launch of a graph of one kernel each, waited for.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn graph_launches(&self, rounds: u32) -> Result<Vec<Duration>, DeviceError> {
        let memory = pinned(&self.context, PAGE)?;
        let function = self.function("probe_token")?;
        let failed = self.failed("launching a graph");
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(&failed)?;
        self.launch_token(&function, memory.bus_address(), 0).map_err(&failed)?;
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).map_err(&failed)?;
        let graph = graph.ok_or_else(|| DeviceError::Failed {
            device: format!("GPU {}", self.gpu),
            what: "capturing a graph gave none".to_owned(),
        })?;
        let token = |_| {
            let start = Instant::now();
            count_launch();
            graph.launch().and_then(|()| self.stream.synchronize()).map_err(&failed)?;
            Ok(start.elapsed())
        };
        (0..rounds).map(token).collect()
    }

    /// Starts `probe_transport`: as many bare rings as `queues`, of `depth` slots and as many completions, that take
    /// `total` descriptors each, with no driver, no dispatch and no rules. Returns their memory, ring by ring, each
    /// [`TRANSPORT_SLOT`] bytes for a slot: the descriptors, then the completions. [`Probes::wait`] is to be called before
    /// it goes, or [`Probes::abandon`] if the GPU does not answer.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn transport(&self, queues: usize, depth: u32, total: u32) -> Result<SharedMemory, DeviceError> {
        let stride = depth as usize * TRANSPORT_SLOT;
        let memory = pinned(&self.context, queues * stride)?;
        let function = self.function("probe_transport")?;
        let (base, stride) = (memory.bus_address(), stride as u64);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&base).arg(&stride).arg(&depth).arg(&total);
        let config =
            LaunchConfig { grid_dim: (queues as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        count_launch();
        // SAFETY: the arguments are those of the kernel: `queues` rings of `depth` slots in `memory`, which outlives it.
        unsafe { launch.launch(config) }.map_err(self.failed("starting the bare transport"))?;
        Ok(memory)
    }

    /// `probe_nic`: `finishers` warps post `each` payloads of [`NIC_PAYLOAD`] bytes into a send ring of `slots` slots, which is at the
    /// start of the first memory that `serve` is given; the payloads are in the second. `serve` starts who takes them, before the kernel
    /// runs. Returns how many each finisher posted: fewer than `each` if the ring stopped, or if nothing was completed for a long time.
    ///
    /// # Errors
    /// `Failed`, `Memory`, or the error of `serve`.
    pub fn nic(
        &self,
        slots: u32,
        key: u32,
        finishers: u32,
        each: u32,
        serve: impl FnOnce(SharedMemory, SharedMemory) -> Result<(), DeviceError>,
    ) -> Result<Vec<u32>, DeviceError> {
        /// Looks of a finisher at what the last look across the bus found: some twenty seconds.
        const LOOKS_OF_A_FINISHER: u64 = 1 << 25;
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE);
        let places = finishers as usize * NIC_PAYLOADS * NIC_PAYLOAD;
        let ring = pinned(&self.context, pages(NIC_SLOTS_AT as usize + 64 * slots as usize))?;
        let region = pinned(&self.context, pages(places))?;
        let outcomes = pinned(&self.context, pages(4 * finishers as usize))?;
        let function = self.function("probe_nic")?;
        // Zeroed device memory for what finishers share, the count of reserved slots above all, which is the GPU's own (W3).
        let shared = self.stream.alloc_zeros::<u8>(NIC_SHARED).map_err(self.failed("allocating"))?;
        self.wait()?;
        serve(ring.clone(), region.clone())?;
        let (base, payloads, told) = (ring.bus_address(), region.bus_address(), outcomes.bus_address());
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&base).arg(&shared).arg(&slots).arg(&key).arg(&payloads).arg(&each);
        launch.arg(&LOOKS_OF_A_FINISHER).arg(&told);
        let config = LaunchConfig { grid_dim: (finishers, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        count_launch();
        // SAFETY: the arguments are those of the kernel, a finisher in each block; what they point to outlives the wait.
        unsafe { launch.launch(config) }.map_err(self.failed("starting finishers"))?;
        self.wait()?;
        let mut posted = vec![0; finishers as usize];
        outcomes.load_u32s(0, &mut posted)?;
        Ok(posted)
    }

    /// Waits for what was started.
    ///
    /// # Errors
    /// `Failed`.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(self.failed("waiting for a probe"))
    }
}

/// Bytes of a payload of [`Probes::nic`].
pub const NIC_PAYLOAD: usize = 64;

/// Bytes of what finishers share: at least `sizeof(Shared)` of `kernels/nic_ring.cuh`, which asserts it.
const NIC_SHARED: usize = 512;

/// Payloads of a finisher that may be on their way: `kPayloads` of `kernels/nic_ring.cuh`.
const NIC_PAYLOADS: usize = 8;

/// Bytes of a descriptor and of a completion.
pub const TRANSPORT_SLOT: usize = size_of::<HwDesc>() + size_of::<HwCompletion>();

/// Copies between host and GPU, which an idle persistent kernel must not slow down.
#[derive(Debug)]
pub struct Copies {
    gpu: usize,
    stream: Arc<CudaStream>,
    host: SharedMemory,
    device: u64,
}

impl Copies {
    const BYTES: usize = 64 << 20;
    const COPIES: usize = 16;

    /// Memory on both sides. It is to be made before, and dropped behind, any persistent kernel: CUDA waits for running
    /// kernels when device memory is freed.
    ///
    /// # Errors
    /// `Memory`, or `Failed`.
    pub fn new(probes: &Probes) -> Result<Self, DeviceError> {
        let host = pinned(&probes.context, Self::BYTES)?;
        // SAFETY: a plain allocation, freed in `drop`.
        let device = unsafe { result::malloc_sync(Self::BYTES) }.map_err(probes.failed("allocating"))?;
        let stream = probes.context.new_stream().map_err(probes.failed("making a stream"))?;
        Ok(Self { gpu: probes.gpu, stream, host, device })
    }

    /// Bytes per second to the GPU, and back.
    ///
    /// # Errors
    /// `Failed`.
    pub fn bandwidths(&self) -> Result<[f64; 2], DeviceError> {
        let host = self.host.bus_address();
        let mut rates = [0.0; 2];
        for (rate, [to, from]) in rates.iter_mut().zip([[self.device, host], [host, self.device]]) {
            let start = Instant::now();
            for _ in 0..Self::COPIES {
                // SAFETY: both are allocations of `BYTES` bytes that live until the stream is waited for.
                unsafe { sys::cuMemcpyAsync(to, from, Self::BYTES, self.stream.cu_stream()) }
                    .result()
                    .map_err(|error| failed(self.gpu, "copying", error))?;
            }
            self.stream.synchronize().map_err(|error| failed(self.gpu, "copying", error))?;
            *rate = (Self::BYTES * Self::COPIES) as f64 / start.elapsed().as_secs_f64();
        }
        Ok(rates)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and no copy is under way.
        let _ = unsafe { result::free_sync(self.device) };
    }
}

fn failed(gpu: usize, what: &str, error: DriverError) -> DeviceError {
    DeviceError::Failed { device: format!("GPU {gpu}"), what: format!("{what}: {error:?}") }
}
