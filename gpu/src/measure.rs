//! What `doorbell bench gpu` measures: the device through its drivers, and the floors and rivals beside it. All times
//! are wall time, seen by the host.

use std::hint;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, result, sys,
};
use doorbell_contract::GOLDEN;
use doorbell_contract::{HwCompletion, HwDesc, Status};
use doorbell_host::memory::PAGE;
use doorbell_host::queue::{CompletionQueue, Depth, SubmissionQueue};
use doorbell_host::{Device, DeviceError, Driver, QueueConfig, SharedMemory};

use crate::GpuPlatform;
use crate::cuda::{count_launch, launches, pinned};
use crate::image::{self, Kernels};

/// A wait of a probe that takes longer has failed (R15).
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 1 << 16;

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// Samples of a time.
#[derive(Clone, Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// The sample below which lie `share` of them, 0 to 1.
    ///
    /// # Panics
    /// Without samples.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.0.len() - 1;
        self.0[((last as f64 * share).round() as usize).min(last)]
    }
}

/// What a host does between two round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Think {
    /// Nothing: it starts the next at once, so that both sides fall into step.
    Nothing,
    /// It spins for 0 to 4,095 ns, another time in each round, and meets the GPU at any point of its rhythm.
    Random,
}

impl Think {
    fn pass(self, round: u32) {
        if self == Self::Random {
            let (start, time) =
                (Instant::now(), Duration::from_nanos(u64::from(round.wrapping_mul(GOLDEN) >> 20)));
            while start.elapsed() < time {
                hint::spin_loop();
            }
        }
    }
}

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

    /// Round trips of a flag: host to GPU and back.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn ping_pong(&self, think: Think, rounds: u32) -> Result<Times, DeviceError> {
        let memory = pinned(&self.context, 2 * PAGE)?;
        let (to, from) = (memory.bus_address(), memory.bus_address() + PAGE as u64);
        let function = self.function("probe_ping_pong")?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&to).arg(&from).arg(&rounds);
        count_launch();
        // SAFETY: the arguments are those of the kernel: two words in `memory`, which outlives it (`synchronize` below).
        unsafe { launch.launch(ONE_THREAD) }.map_err(self.failed("starting the ping-pong"))?;
        let (to, from) = (memory.word32(0)?, memory.word32(PAGE)?);
        let mut samples = Vec::with_capacity(rounds as usize);
        for round in 1..=rounds {
            think.pass(round);
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
            samples.push(start.elapsed());
        }
        self.stream.synchronize().map_err(self.failed("the ping-pong"))?;
        Ok(Times::new(samples))
    }

    fn silent(&self, what: &str) -> DeviceError {
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

    /// A token by a kernel launch, waited for.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn launches(&self, rounds: u32) -> Result<Times, DeviceError> {
        let memory = pinned(&self.context, PAGE)?;
        let function = self.function("probe_token")?;
        let mut samples = Vec::with_capacity(rounds as usize);
        for position in 0..rounds {
            let start = Instant::now();
            self.launch_token(&function, memory.bus_address(), position)
                .and_then(|()| self.stream.synchronize())
                .map_err(self.failed("launching a token"))?;
            samples.push(start.elapsed());
        }
        Ok(Times::new(samples))
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

    /// A token by the launch of a graph of one kernel, waited for.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    pub fn graph_launches(&self, rounds: u32) -> Result<Times, DeviceError> {
        let memory = pinned(&self.context, PAGE)?;
        let function = self.function("probe_token")?;
        let failed = self.failed("launching a graph");
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(&failed)?;
        self.launch_token(&function, memory.bus_address(), 0).map_err(&failed)?;
        let flags =
            cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).map_err(&failed)?;
        let graph = graph.ok_or_else(|| DeviceError::Failed {
            device: format!("GPU {}", self.gpu),
            what: "capturing a graph gave none".to_owned(),
        })?;
        let mut samples = Vec::with_capacity(rounds as usize);
        for _ in 0..rounds {
            let start = Instant::now();
            count_launch();
            graph.launch().and_then(|()| self.stream.synchronize()).map_err(&failed)?;
            samples.push(start.elapsed());
        }
        Ok(Times::new(samples))
    }

    /// Descriptors per second of a bare ring (`probe_transport`): the same slots and completions, with no driver, no
    /// dispatch and no rules.
    ///
    /// # Errors
    /// `Failed`, or `Memory`.
    ///
    /// # Panics
    /// If `load.queues` is no multiple of `load.threads`.
    pub fn transport(&self, load: &Load) -> Result<f64, DeviceError> {
        let Load { queues, threads, batch, descriptors } = *load;
        // A warp takes 32 at a time and waits for all.
        let total = descriptors.next_multiple_of(32 * batch.max(1) as u64) as u32;
        let queue_bytes = DEPTH as usize * (64 + 32);
        let memory = pinned(&self.context, queues * queue_bytes)?;
        let parts: Vec<SharedMemory> =
            (0..queues).map(|k| memory.part(k * queue_bytes, queue_bytes)).collect::<Result<_, _>>()?;
        let mut pairs = Vec::new();
        for part in &parts {
            let depth = Depth::new("depth", DEPTH)?;
            pairs.push(Bare {
                sq: SubmissionQueue::new(part, 0, depth, 0, 0)?,
                cq: CompletionQueue::new(part, 64 * DEPTH as usize, depth, 0)?,
                submitted: 0,
                completed: 0,
            });
        }
        let function = self.function("probe_transport")?;
        let (base, stride, depth) = (memory.bus_address(), queue_bytes as u64, DEPTH);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&base).arg(&stride).arg(&depth).arg(&total);
        let config =
            LaunchConfig { grid_dim: (queues as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        count_launch();
        // SAFETY: the arguments are those of the kernel: `queues` rings of `depth` slots in `memory`, which outlives it.
        unsafe { launch.launch(config) }.map_err(self.failed("starting the bare transport"))?;
        let batch = one_token_batch(batch);
        let elapsed = in_threads(pairs, threads, |pairs| {
            let mut out = vec![HwCompletion::default(); batch.len()];
            let (mut idle, mut since) = (0u32, Instant::now());
            while pairs.iter().any(|pair| pair.completed < total) {
                let before: u32 = pairs.iter().fold(0, |sum, pair| sum.wrapping_add(pair.completed));
                for pair in &mut *pairs {
                    if pair.submitted < total && pair.submitted - pair.completed + batch.len() as u32 <= DEPTH
                    {
                        let head = pair.completed;
                        pair.sq.consumed_to(head, head);
                        pair.submitted += pair.sq.push(&batch)? as u32;
                    }
                    pair.completed += pair.cq.pop(&mut out)? as u32;
                }
                if pairs.iter().fold(0, |sum: u32, pair| sum.wrapping_add(pair.completed)) != before {
                    idle = 0;
                    continue;
                }
                idle += 1;
                if idle == 1 {
                    since = Instant::now();
                } else if idle.is_multiple_of(LOOKS) && since.elapsed() > PATIENCE {
                    return Err(self.silent("the bare transport"));
                }
            }
            Ok(())
        })?;
        self.stream.synchronize().map_err(self.failed("the bare transport"))?;
        Ok(f64::from(total) * queues as f64 / elapsed.as_secs_f64())
    }
}

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

/// Launches of kernels and graphs during `work`, and what it returned.
pub fn counting_launches<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = launches();
    let value = work();
    (launches() - before, value)
}

/// How often per second the front ends of idle `drivers` look at host memory: each control warp at its mailbox, and each
/// scout, in the same rhythm, at a slot.
pub fn looks_per_second(drivers: &[Driver<GpuPlatform>]) -> f64 {
    let beats = || -> Vec<u32> { drivers.iter().map(|driver| driver.platform().heartbeat()).collect() };
    let (before, start) = (beats(), Instant::now());
    thread::sleep(Duration::from_millis(300));
    let (after, elapsed) = (beats(), start.elapsed());
    let looks: u32 = before.iter().zip(&after).map(|(before, after)| after.wrapping_sub(*before)).sum();
    2.0 * f64::from(looks) / elapsed.as_secs_f64()
}

fn failed(gpu: usize, what: &str, error: DriverError) -> DeviceError {
    DeviceError::Failed { device: format!("GPU {gpu}"), what: format!("{what}: {error:?}") }
}

/// One queue pair of the bare transport.
struct Bare {
    sq: SubmissionQueue,
    cq: CompletionQueue,
    submitted: u32,
    completed: u32,
}

/// Slots of each ring that is measured for its rate.
pub const DEPTH: u32 = 4096;

/// What a rate is measured under.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Queue pairs.
    pub queues: usize,
    /// Host threads; each serves as many queue pairs.
    pub threads: usize,
    /// Descriptors per submit.
    pub batch: usize,
    /// Descriptors in all, per queue pair.
    pub descriptors: u64,
}

/// DECODEs of one token each, of different rollouts, their tokens side by side.
fn one_token_batch(size: usize) -> Vec<HwDesc> {
    (0..size as u32).map(|k| HwDesc::decode(k, 0, 1).with_delta_offset(4 * u64::from(k))).collect()
}

/// The configuration of queue pairs that are measured.
pub fn queue_config() -> QueueConfig {
    QueueConfig {
        sq_depth: DEPTH,
        cq_depth: DEPTH,
        token_bytes: 1 << 20,
        patience: 20_000,
        ..QueueConfig::default()
    }
}

/// Runs `work` on equal shares of `items`, a thread each, and returns the time from the first start to the last end.
fn in_threads<T: Send>(
    mut items: Vec<T>,
    threads: usize,
    work: impl Fn(&mut [T]) -> Result<(), DeviceError> + Sync,
) -> Result<Duration, DeviceError> {
    assert!(threads > 0 && items.len().is_multiple_of(threads), "each thread serves as many queues");
    let share = items.len() / threads;
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let (barrier, work) = (&barrier, &work);
        let running: Vec<_> = items
            .chunks_mut(share)
            .map(|share| {
                scope.spawn(move || {
                    barrier.wait();
                    work(share)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for thread in running {
            thread.join().expect("a bench thread does not panic")?;
        }
        Ok(start.elapsed())
    })
}

/// Descriptors per second through drivers, every one a DECODE of one token that has to end as DONE.
///
/// # Errors
/// The first of a device; `Protocol` if a descriptor did not end as DONE.
///
/// # Panics
/// If `load` is not about as many queue pairs as `drivers`, or these are no multiple of its threads.
pub fn throughput(drivers: &mut [Driver<GpuPlatform>], load: &Load) -> Result<f64, DeviceError> {
    let Load { queues, threads, batch, descriptors } = *load;
    assert_eq!(drivers.len(), queues, "a driver per queue pair");
    // Different rollouts: those of one would have to wait for each other (R5).
    let pool = one_token_batch(DEPTH as usize);
    let queues: Vec<Queue<'_>> =
        drivers.iter_mut().map(|driver| Queue { driver, submitted: 0, completed: 0, done: 0 }).collect();
    let count = queues.len();
    let elapsed = in_threads(queues, threads, |queues| {
        let mut out = vec![HwCompletion::default(); 256];
        while queues.iter().any(|queue| queue.completed < descriptors || queue.driver.in_flight() > 0) {
            for queue in &mut *queues {
                let mut moved = 0;
                if queue.submitted < descriptors {
                    let from = (queue.submitted % u64::from(DEPTH)) as usize;
                    let size = batch.min(pool.len() - from);
                    moved = queue.driver.submit(&pool[from..from + size])?;
                    queue.submitted += moved as u64;
                }
                let mut taken = queue.driver.collect(&mut out)?;
                if moved + taken == 0 && queue.driver.in_flight() > 0 {
                    taken = queue.driver.poll(&mut out)?;
                }
                queue.completed += taken as u64;
                queue.done +=
                    out[..taken].iter().filter(|done| done.status == Status::Done as u8).count() as u64;
            }
        }
        match queues.iter().find(|queue| queue.done != queue.submitted) {
            None => Ok(()),
            Some(queue) => Err(DeviceError::Protocol {
                device: "gpu".to_owned(),
                rule: "R10",
                what: format!(
                    "only {} of {} well-formed descriptors completed as DONE",
                    queue.done, queue.submitted
                ),
            }),
        }
    })?;
    Ok(descriptors as f64 * count as f64 / elapsed.as_secs_f64())
}

struct Queue<'a> {
    driver: &'a mut Driver<GpuPlatform>,
    submitted: u64,
    completed: u64,
    done: u64,
}

/// Round trips of one descriptor, one at a time, through a driver.
///
/// # Errors
/// The first of the device.
pub fn round_trips(
    driver: &mut dyn Device,
    desc: HwDesc,
    think: Think,
    rounds: u32,
) -> Result<Times, DeviceError> {
    let mut samples = Vec::with_capacity(rounds as usize);
    let mut out = [HwCompletion::default()];
    for round in 0..rounds {
        think.pass(round);
        let start = Instant::now();
        driver.submit(&[desc])?;
        while driver.poll(&mut out)? == 0 {}
        samples.push(start.elapsed());
    }
    Ok(Times::new(samples))
}

/// A token handed to another thread and back by two eventfds: what a host pays that sleeps between tokens.
///
/// # Errors
/// `Failed` if the system has no eventfds.
pub fn eventfd_round_trips(rounds: u32) -> Result<Times, DeviceError> {
    let failed = |error: rustix::io::Errno| DeviceError::Failed {
        device: "eventfd".to_owned(),
        what: error.to_string(),
    };
    let make = || rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).map_err(failed);
    let (there, back) = (make()?, make()?);
    let signal = |fd: &OwnedFd| rustix::io::write(fd, &1u64.to_ne_bytes()).map(|_| ());
    let wait = |fd: &OwnedFd| rustix::io::read(fd, &mut [0u8; 8]).map(|_| ());
    thread::scope(|scope| {
        let peer = scope.spawn(|| (0..rounds).try_for_each(|_| wait(&there).and_then(|()| signal(&back))));
        let mut samples = Vec::with_capacity(rounds as usize);
        for _ in 0..rounds {
            let start = Instant::now();
            signal(&there).and_then(|()| wait(&back)).map_err(failed)?;
            samples.push(start.elapsed());
        }
        peer.join().expect("the peer does not panic").map_err(failed)?;
        Ok(Times::new(samples))
    })
}
