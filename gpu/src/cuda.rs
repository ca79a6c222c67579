//! The kernel on a GPU: started once, it serves every queue pair until it is dropped. Whatever runs on the GPU or frees its
//! memory is here.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, result,
};
use doorbell_host::memory::PAGE;
use doorbell_host::{DeviceError, Placement, SharedMemory};

use crate::engine::Engine;
use crate::graveyard::GRAVEYARD;
use crate::image::{self, ImageError, Kernels};
use crate::info::{self, GpuInfo};
use crate::mailbox::Mailbox;
use crate::phases::Phases;

/// How long the kernel may take to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// GPUs on which kernels of this process run, or are about to; none, if empty. To make another GPU ready would be to wait for them to end, for ever.
static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The GPUs of the one [`Cuda`] that a process has at a time.
#[derive(Debug)]
struct Taken(());

impl Taken {
    /// # Errors
    /// Why they cannot be had.
    fn take(gpus: impl IntoIterator<Item = usize>) -> Result<Self, String> {
        Self::take_of(&TAKEN, gpus).map(Self)
    }

    fn take_of(taken: &Mutex<Vec<usize>>, gpus: impl IntoIterator<Item = usize>) -> Result<(), String> {
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = Vec::new();
        for gpu in gpus {
            if taken.contains(&gpu) || wanted.contains(&gpu) {
                return Err(format!(
                    "this process already runs a kernel on GPU {gpu}, which fills it; open it once, with more queues"
                ));
            }
            wanted.push(gpu);
        }
        let Some(&other) = wanted.first() else {
            return Err("it was asked to open no GPU; name one at least".to_owned());
        };
        let Some(&first) = taken.first() else {
            *taken = wanted;
            return Ok(());
        };
        Err(format!(
            "this process already runs a kernel on GPU {first}, and CUDA would wait for its end to open GPU {other}; open both at once \
             (gpus={first}+{other}), or close the first one"
        ))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The CUDA context that the calling thread has, which it gets back: it may compute with CUDA itself, on this GPU or another one.
struct Caller(sys::CUcontext);

impl Caller {
    /// Keeps it. The driver's library is loaded.
    fn keep() -> Self {
        Self(Self::current())
    }

    /// Null if there is none.
    fn current() -> sys::CUcontext {
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes a pointer, or fails where nobody has initialised the driver.
        let _ = unsafe { sys::cuCtxGetCurrent(&mut context) };
        context
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if Self::current() != self.0 {
            // SAFETY: it was this thread's before, and it is the caller's to keep it alive; null takes back what was made current.
            let _ = unsafe { sys::cuCtxSetCurrent(self.0) };
        }
    }
}

/// Kernels and graphs that this process has launched, for the benches.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Counts a launch; every one of this crate is counted.
pub(crate) fn count_launch() {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
}

/// Launches so far.
pub fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Queue pairs that one kernel serves at most.
pub const MAX_QUEUES: usize = 16;

/// How a GPU is opened. The default is GPU 0 with one queue pair and all multiprocessors.
#[derive(Clone, Copy, Debug)]
pub struct GpuOptions {
    /// Which GPU, as the driver counts them.
    pub gpu: usize,
    /// Queue pairs, 1 to [`MAX_QUEUES`].
    pub queues: usize,
    /// Bytes of shared memory of each queue pair: what
    /// [`QueueConfig::shared_bytes`](doorbell_host::QueueConfig::shared_bytes) says.
    pub bytes: usize,
    /// Multiprocessors to take, one block on each: at least one more than queue pairs, and two more with [`language`](Self::language). `None` is all; with
    /// fewer, the others are left to whoever else computes on the GPU.
    pub sms: Option<u32>,
    /// With engine 1, and device memory for it.
    pub language: Option<LanguageMemory>,
    /// Blocks of a team that takes steps of up to 32 rollouts of engine 1 together, as far as they can be dealt evenly; `None` is 15. Models whose rollouts a warp runs
    /// ([`LanguageMemory::is_small`]) have none.
    pub ranks: Option<u32>,
    /// Bytes of device memory in which keys and values stay between descriptors that name a generation (rule R26); 0 keeps none. `None` is a quarter of what is
    /// free when all else has its own, and at most twice the host memory of the queue pairs; none if that cannot be had.
    pub kept_bytes: Option<u64>,
    /// How the shared memory is placed; near is the GPU's node. With the default CUDA allocates it.
    pub placement: Placement,
    /// Whether leaders of teams take the time of the parts of a step ([`GpuDevice::phases`](crate::GpuDevice::phases)). NVRTC compiles the kernels for it then, which takes a
    /// minute or more, and steps take longer.
    pub phases: bool,
}

/// Blocks of a team if [`GpuOptions::ranks`] does not tell. More of them make a step of few rollouts of a large model shorter, as a block takes in no more than
/// 115 GB of weights a second, and leave fewer teams for many rollouts.
const RANKS: u32 = 15;
/// Of a team, at most: `kMostRanks`, gpu/kernels/language_team.cuh.
const MOST_RANKS: u32 = 128;
/// Rollouts of a team at a time: `kColumns`, gpu/kernels/language_tiles.cuh.
const COLUMNS: u32 = 32;

/// How engine 1 has its blocks: teams, to which they are dealt, and rollouts that each has at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Teams {
    teams: u32,
    columns: u32,
}

impl Teams {
    /// Of so many blocks, where so many bytes are there for keys and values of `cache_bytes` each. A block that runs a rollout alone has room for one, too.
    fn of(blocks: u32, ranks: Option<u32>, bytes: u64, language: LanguageMemory) -> Self {
        let ranks = ranks.unwrap_or(RANKS).clamp(1, MOST_RANKS);
        let teams = (blocks / ranks).max(blocks.div_ceil(MOST_RANKS)).max(1);
        let room = bytes / language.cache_bytes.max(1) / u64::from(teams);
        Self { teams, columns: (room.min(COLUMNS.into()) as u32).max(blocks.div_ceil(teams)) }
    }

    fn rollouts(self) -> u32 {
        self.teams * self.columns
    }
}

/// Pages in device memory for the keys and values that stay there, each for a block of a model (`Pool`, gpu/kernels/language_pool.cuh).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Sets of up to 32 pages. A block has its page in the set that its number tells. 0: nothing is kept.
    pub sets: u32,
    /// Bytes of the pages of a set, a multiple of 64.
    pub set_bytes: u64,
}

impl Pages {
    /// Bytes of a set, at least: 31 pages of SmolLM2's.
    const SET: u64 = 12 << 20;

    /// As many as so many bytes hold. What is known of each set comes on top.
    pub fn of(bytes: u64) -> Self {
        let sets = u32::try_from(bytes / Self::SET).unwrap_or(1 << 20).clamp(1, 1 << 20);
        let set_bytes = bytes / u64::from(sets) / 64 * 64;
        if set_bytes == 0 { Self::default() } else { Self { sets, set_bytes } }
    }

    /// Bytes of all pages.
    pub fn bytes(self) -> u64 {
        u64::from(self.sets) * self.set_bytes
    }

    /// Bytes of all pages, and of what is known of each set; `None` is more than there can be.
    fn memory(self, known: u64) -> Option<usize> {
        let all = u64::from(self.sets).checked_mul(known)?.checked_add(self.bytes())?;
        usize::try_from(all).ok()
    }
}

/// What engine 1 gets of a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LanguageMemory {
    /// Bytes of the largest image that a version may have: there are two versions of each function, and one may be on its way.
    pub model_bytes: u64,
    /// Bytes of keys and values of the longest sequence, which each block or warp that runs rollouts has; fewer where all of them would take more than
    /// half of the memory that is free.
    pub cache_bytes: u64,
}

impl LanguageMemory {
    /// Room for models up to which a warp runs a rollout, and not a block.
    pub const SMALL: u64 = 8 << 20;

    /// Device memory of a block for what passes between the phases of a step: `kMostScratch`, gpu/kernels/language_prefill.cuh.
    const SCRATCH: u64 = 2 << 20;

    /// Whether models are small: then each warp runs a rollout of its own, and a shape has to fit its part of the shared memory.
    pub const fn is_small(self) -> bool {
        self.model_bytes <= Self::SMALL
    }

    /// What to say where a sequence gets less memory than was asked for, `given`, with so many rollouts at a time.
    fn cut(self, given: Self, rollouts: u32) -> Option<String> {
        (given.cache_bytes < self.cache_bytes).then(|| {
            format!(
                "each of {rollouts} rollouts at a time gets {} bytes for keys and values, not {}, as all of them take half of the free \
                 memory at most: a longer sequence ends with BAD_SEQUENCE. Use a GPU with more free memory, or fewer of its \
                 multiprocessors (GpuOptions::sms)",
                given.cache_bytes, self.cache_bytes
            )
        })
    }

    /// What all of it is, for an error.
    fn named(self, queues: usize, rollouts: u32) -> String {
        format!(
            " (engine 1 takes three models of {} bytes for each of {queues} queue pairs, any of which may be a function of its own, and {} \
             bytes for each of {rollouts} rollouts at a time: use fewer queue pairs, or a smaller model)",
            self.model_bytes, self.cache_bytes
        )
    }

    /// Both in whole lines, for so many rollouts at a time, where so many bytes are free.
    fn within(self, free: u64, rollouts: u32) -> Self {
        let lines = |bytes: u64| bytes.next_multiple_of(64);
        let most = free / 2 / u64::from(rollouts.max(1)) / 64 * 64;
        Self { model_bytes: lines(self.model_bytes), cache_bytes: lines(self.cache_bytes.min(most)) }
    }
}

impl GpuOptions {
    /// Decode engines.
    fn engines(&self) -> u32 {
        1 + u32::from(self.language.is_some())
    }
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            gpu: 0,
            queues: 1,
            bytes: 0,
            sms: None,
            language: None,
            ranks: None,
            kept_bytes: None,
            placement: Placement::default(),
            phases: false,
        }
    }
}

/// Of so many blocks besides the front ends, those that run engine 1: all but one of 48, and at least one of
/// each kind.
fn language_blocks(blocks: u32) -> u32 {
    blocks - blocks.div_ceil(48)
}

/// How many blocks are started: one per multiprocessor of `processors`, or of the `sms` of them that are wanted, each of
/// which holds `per_processor` at a time. All of them are to run at the same time: one per queue pair is a front end, and
/// without one more nobody would work.
fn blocks(
    processors: u32,
    per_processor: u32,
    queues: usize,
    sms: Option<u32>,
    engines: u32,
) -> Result<u32, DeviceError> {
    let needed = queues as u32 + engines;
    if let Some(sms) = sms.filter(|sms| !(needed..=processors).contains(sms)) {
        let expected = format!(
            "{needed} to {processors}: one multiprocessor per queue pair, at least one for the workers of each engine, and \
             no more than the GPU has"
        );
        return Err(DeviceError::Config { field: "sms", value: sms.into(), expected });
    }
    let (blocks, room) = (sms.unwrap_or(processors.max(needed)), processors * per_processor);
    if blocks > room {
        let expected = format!(
            "at most {}: {room} blocks of the kernel fit this GPU at a time ({per_processor} on each of {processors} \
             multiprocessors), one is needed per queue pair and one for the workers of each engine",
            room.saturating_sub(engines)
        );
        return Err(DeviceError::Config { field: "queues", value: queues as u64, expected });
    }
    Ok(blocks)
}

/// Kernels that run, one on each GPU.
///
/// CUDA waits for every running kernel of the process, on whichever GPU, when memory is page-locked, freed, or code
/// loaded. So all GPUs are made ready before the first kernel starts, none is taken down before the last has ended, and a process has one of these at a
/// time.
///
/// A thread that calls it, or drops it, has the same current CUDA context afterwards.
#[derive(Debug)]
pub struct Cuda {
    gpus: Vec<Gpu>,
    /// Given back behind the GPUs.
    taken: Option<Taken>,
}

impl Cuda {
    /// Makes all GPUs ready, and starts a kernel on each.
    ///
    /// # Errors
    /// `Config` for options out of range, or more queue pairs than the GPU can serve at a time; `Unavailable` where there
    /// is no GPU, no driver or no kernel, or the GPU or the environment is such that the kernel could not run on, or where this process has GPUs open;
    /// `Memory` if pinned memory cannot be had.
    pub fn open(options: &[GpuOptions]) -> Result<Self, DeviceError> {
        if info::blocking() {
            let (device, reason) = ("gpu".to_owned(), info::BLOCKING_REFUSED.to_owned());
            return Err(DeviceError::Unavailable { device, reason });
        }
        let taken = Taken::take(options.iter().map(|options| options.gpu))
            .map_err(|reason| DeviceError::Unavailable { device: "gpu".to_owned(), reason })?;
        // If there is no driver, the first GPU says so.
        let _caller = image::count().is_ok().then(Caller::keep);
        let mut cuda = Self { gpus: Vec::with_capacity(options.len()), taken: Some(taken) };
        for &options in options {
            cuda.gpus.push(Gpu::ready(options)?);
        }
        for gpu in &cuda.gpus {
            gpu.start().map_err(|error| gpu.failed("starting the kernel", error))?;
        }
        Ok(cuda)
    }

    /// The engine of GPU number `gpu` of those that were opened.
    ///
    /// # Errors
    /// `Config` if there are fewer.
    pub fn engine(self: &Arc<Self>, gpu: usize) -> Result<Arc<dyn Engine>, DeviceError> {
        if gpu < self.gpus.len() {
            return Ok(Arc::new(Member { cuda: self.clone(), gpu }));
        }
        let expected = format!("below {}", self.gpus.len());
        Err(DeviceError::Config { field: "gpu", value: gpu as u64, expected })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let _caller = (!self.gpus.is_empty()).then(Caller::keep);
        for gpu in &self.gpus {
            gpu.exit();
        }
        for gpu in &mut self.gpus {
            if !gpu.wait_for_the_end() {
                std::mem::forget(self.taken.take());
            }
        }
        // Here: what is freed makes its context the current one.
        self.gpus.clear();
    }
}

/// One GPU of several. The last member to go takes all of them down.
struct Member {
    cuda: Arc<Cuda>,
    gpu: usize,
}

impl Member {
    fn gpu(&self) -> &Gpu {
        &self.cuda.gpus[self.gpu]
    }
}

impl Engine for Member {
    fn name(&self) -> &str {
        &self.gpu().name
    }

    fn mailbox(&self, queue: usize) -> Result<SharedMemory, DeviceError> {
        self.gpu().mailbox(queue)
    }

    fn queues(&self) -> usize {
        self.gpu().options.queues
    }

    fn engines(&self) -> u32 {
        self.gpu().options.engines()
    }

    fn kept_bytes(&self) -> u64 {
        self.gpu().pages.bytes()
    }

    fn memory(&self) -> Result<SharedMemory, DeviceError> {
        Ok(self.gpu().memory.clone())
    }

    fn phases(&self) -> Option<Phases> {
        self.gpu().phases()
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.gpu().check()
    }
}

/// One GPU and its kernel.
#[derive(Debug)]
struct Gpu {
    name: String,
    options: GpuOptions,
    mailboxes: SharedMemory,
    memory: SharedMemory,
    /// What leaders of teams tell of their steps, if they do: words of each block.
    told: Option<SharedMemory>,
    stream: Arc<CudaStream>,
    /// The kernel's state, and of engine 1 the models, the keys and values of each rollout at a time, what each block has beside them, and the keys and values
    /// that are kept.
    device_memory: [DeviceMemory; 5],
    pages: Pages,
    /// Blocks that run engine 1, and how it has them.
    language_blocks: u32,
    teams: Teams,
    /// Bytes of what each of them has beside keys and values.
    bench_bytes: u64,
    function: CudaFunction,
    /// Of a block: threads, and bytes of shared memory.
    threads: u32,
    shared: u32,
    blocks: u32,
    /// Whether the kernel was started, and is not known to have ended.
    started: AtomicBool,
}

impl Gpu {
    /// Does everything but start the kernel.
    fn ready(options: GpuOptions) -> Result<Self, DeviceError> {
        let GpuOptions { gpu, queues, bytes, sms, language, ranks, kept_bytes, placement, phases } = options;
        if !(1..=MAX_QUEUES).contains(&queues) {
            let expected = format!("1 to {MAX_QUEUES}");
            return Err(DeviceError::Config { field: "queues", value: queues as u64, expected });
        }
        let name = if gpu == 0 { "gpu".to_owned() } else { format!("gpu{gpu}") };
        let unavailable =
            |error: ImageError| DeviceError::Unavailable { device: name.clone(), reason: error.to_string() };
        let context = image::open(gpu).map_err(unavailable)?;
        let about = GpuInfo::of(gpu).map_err(unavailable)?;
        if !about.refusals.is_empty() {
            let reason = about.refusals.join("; ");
            return Err(DeviceError::Unavailable { device: name, reason });
        }
        for warning in &about.warnings {
            eprintln!("warning: {name}: {warning}");
        }
        let kernels = if phases { image::load_for_phases(&context) } else { image::load(&context) }
            .map_err(unavailable)?;
        let driver = |what| {
            let name = name.clone();
            move |error: DriverError| DeviceError::Failed { device: name, what: format!("{what}: {error:?}") }
        };

        let stream = context.new_stream().map_err(driver("making a stream"))?;
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let all = queues.checked_mul(bytes).ok_or_else(|| DeviceError::Memory {
            bytes,
            reason: format!("{queues} queue pairs with {bytes} bytes each are more than memory holds"),
        })?;
        let mailboxes = pinned(&context, queues * PAGE)?;
        let memory = match placement.is_default() {
            true => pinned(&context, all)?,
            false => placed(&context, all, &placement.near(about.numa_node))?,
        };

        let sizes =
            Sizes::ask(&kernels, &stream, &mailboxes).map_err(driver("asking the kernel for its sizes"))?;
        mailboxes.clear();
        let small = language.is_some_and(LanguageMemory::is_small);
        let kernel = match language {
            Some(_) if small => "doorbell_language_small",
            Some(_) => "doorbell_language",
            None => "doorbell_persistent",
        };
        let function = kernels.module.load_function(kernel).map_err(driver("finding the kernel"))?;
        // Loads its code, too: later a running kernel would be waited for.
        let shared = if language.is_some() { sizes.front_end.max(sizes.language) } else { sizes.front_end };
        let fixed =
            function.shared_size_bytes().map_err(driver("asking for the kernel's shared memory"))? as u32;
        if let Some(reason) = info::lacks_shared_memory(kernel, shared + fixed, about.shared_bytes) {
            return Err(DeviceError::Unavailable { device: name, reason });
        }
        function
            .set_attribute(
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared as i32,
            )
            .map_err(driver("giving the kernel its shared memory"))?;
        let per_processor = function
            .occupancy_max_active_blocks_per_multiprocessor(sizes.threads, shared as usize, None)
            .map_err(driver("asking how many blocks fit"))?;
        let blocks = blocks(about.processors, per_processor, queues, sms, options.engines())?;
        let told_bytes = (blocks as usize * 8 * Phases::WORDS).next_multiple_of(PAGE);
        let told = phases.then(|| pinned(&context, told_bytes)).transpose()?;
        if let Some(told) = &told {
            let address = told.bus_address().to_le_bytes();
            let tell = || {
                let mut symbol = kernels.module.get_global("doorbell_phases", &stream)?;
                stream.memcpy_htod(&address, &mut symbol)?;
                stream.synchronize()
            };
            tell().map_err(driver("saying where a step's times are told"))?;
        }
        let others = blocks - queues as u32;
        let language_blocks = if language.is_some() { language_blocks(others) } else { 0 };
        let (free, _) = result::mem_get_info().map_err(driver("asking for free memory"))?;
        let bench_bytes =
            if language.is_some() && !small { sizes.bench + LanguageMemory::SCRATCH } else { 0 };
        let benches = u64::from(language_blocks) * bench_bytes;
        let free = (free as u64).saturating_sub(benches);
        let teams = Teams::of(language_blocks, ranks, free / 2, language.unwrap_or_default());
        let rollouts =
            if small { language_blocks * (sizes.threads / sizes.team_threads) } else { teams.rollouts() };
        let asked = language;
        let language = language.map(|language| language.within(free, rollouts));
        if let Some(cut) = asked.zip(language).and_then(|(asked, given)| asked.cut(given, rollouts)) {
            eprintln!("warning: {name}: {cut}");
        }
        let models = language.map_or(0, |language| 3 * queues as u64 * language.model_bytes);
        let caches = language.map_or(0, |language| u64::from(rollouts) * language.cache_bytes);
        let lacks = |bytes: usize, problem: DriverError| DeviceError::Memory {
            bytes,
            reason: format!(
                "device memory of {name}{}: {problem:?}",
                language.map_or_else(String::new, |it| it.named(queues, rollouts))
            ),
        };
        let allocate =
            |bytes: usize| DeviceMemory::zeroed(&context, &name, bytes).map_err(|error| lacks(bytes, error));
        let [state, models, caches, benches] = [
            allocate(sizes.state)?,
            allocate(models as usize)?,
            allocate(caches as usize)?,
            allocate(benches as usize)?,
        ];
        // Last, of what is left then: without it all goes on, only slower.
        let (left, _) = result::mem_get_info().map_err(driver("asking for free memory"))?;
        let usual = (left as u64 / 4).min(2 * memory.len() as u64);
        let mut pages = match language {
            Some(_) if !small => Pages::of(kept_bytes.unwrap_or(usual)),
            _ => Pages::default(),
        };
        let kept = pages.memory(sizes.page_set).ok_or_else(|| DeviceError::Memory {
            bytes: kept_bytes.map_or(usize::MAX, |bytes| bytes as usize),
            reason: format!("kept_bytes is more than memory of {name} can have; give less"),
        });
        let kept = match kept.and_then(allocate) {
            Err(_) if kept_bytes.is_none() => {
                pages = Pages::default();
                allocate(0)?
            }
            other => other?,
        };
        let device_memory = [state, models, caches, benches, kept];
        let options = GpuOptions { bytes, language, ..options };
        let started = AtomicBool::new(false);
        Ok(Self {
            name,
            options,
            mailboxes,
            memory,
            told,
            stream,
            device_memory,
            pages,
            language_blocks,
            teams,
            bench_bytes,
            function,
            threads: sizes.threads,
            shared,
            blocks,
            started,
        })
    }

    /// Starts the front ends, and workers on all other blocks. The launch is a cooperative one: CUDA refuses it if the
    /// blocks cannot all run at the same time.
    fn start(&self) -> Result<(), DriverError> {
        let queues = self.options.queues as u32;
        let config = LaunchConfig {
            grid_dim: (self.blocks, 1, 1),
            block_dim: (self.threads, 1, 1),
            shared_mem_bytes: self.shared,
        };
        let mailboxes = self.mailboxes.bus_address();
        let [state, models, caches, benches, pages] =
            self.device_memory.each_ref().map(|memory| memory.address);
        let LanguageMemory { model_bytes, cache_bytes } = self.options.language.unwrap_or_default();
        let mut launch = self.stream.launch_builder(&self.function);
        launch.arg(&state).arg(&mailboxes).arg(&queues);
        if self.options.language.is_some() {
            launch.arg(&models).arg(&model_bytes).arg(&caches).arg(&cache_bytes).arg(&self.language_blocks);
            launch.arg(&self.teams.teams).arg(&self.teams.columns).arg(&benches).arg(&self.bench_bytes);
            launch.arg(&pages).arg(&self.pages.set_bytes).arg(&self.pages.sets);
        }
        count_launch();
        GRAVEYARD.kernel_starts();
        self.started.store(true, Ordering::Relaxed);
        // SAFETY: the arguments are those of the kernel: device memory of the sizes that it asked for and is told, and
        // one mailbox per queue, all of which outlive it (see `wait_for_the_end`).
        unsafe { launch.launch_cooperative(config) }.map(|_| ())
    }

    fn failed(&self, what: &str, error: DriverError) -> DeviceError {
        DeviceError::Failed { device: self.name.clone(), what: format!("{what}: {error:?}") }
    }

    /// Whether the kernel still runs.
    fn is_running(&self) -> Result<bool, DriverError> {
        let _caller = Caller::keep();
        self.stream.context().bind_to_thread()?;
        // SAFETY: the stream lives as long as `self`.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(true),
            other => other.result().map(|()| false),
        }
    }

    fn phases(&self) -> Option<Phases> {
        let told = self.told.as_ref()?;
        let mut halves = vec![0; 2 * Phases::WORDS * self.blocks as usize];
        told.load_u32s(0, &mut halves).ok()?;
        let words: Vec<u64> =
            halves.chunks_exact(2).map(|half| u64::from(half[1]) << 32 | u64::from(half[0])).collect();
        Some(Phases::of(words.chunks_exact(Phases::WORDS)))
    }

    fn mailbox(&self, queue: usize) -> Result<SharedMemory, DeviceError> {
        self.mailboxes.part(queue * PAGE, PAGE)
    }

    fn check(&self) -> Result<(), DeviceError> {
        match self.is_running() {
            Ok(true) => Ok(()),
            Ok(false) => Err(DeviceError::Failed {
                device: self.name.clone(),
                what: "the kernel has ended although nobody asked it to; open the device anew".to_owned(),
            }),
            Err(error) => Err(DeviceError::Failed {
                device: self.name.clone(),
                what: format!(
                    "the kernel died: {error:?}; no CUDA call of this process will work again: restart it"
                ),
            }),
        }
    }

    /// Asks the kernel to end.
    fn exit(&self) {
        for queue in 0..self.options.queues {
            if let Ok(mailbox) = self.mailbox(queue).and_then(Mailbox::new) {
                mailbox.exit();
            }
        }
    }

    /// Whether the kernel has ended.
    fn wait_for_the_end(&mut self) -> bool {
        if !self.started.load(Ordering::Relaxed) {
            return true;
        }
        let start = Instant::now();
        while self.is_running().unwrap_or(false) {
            if start.elapsed() > PATIENCE {
                // It still uses its memory, which thus has to stay: that of the host too.
                eprintln!(
                    "warning: {}: the kernel did not end within {PATIENCE:?}; its memory is not freed",
                    self.name
                );
                // To unload its code would be to wait for it again, without end.
                let code = (self.function.clone(), self.stream.clone());
                std::mem::forget((self.mailboxes.clone(), self.memory.clone(), self.told.take(), code));
                self.device_memory.iter_mut().for_each(|memory| memory.address = 0);
                return false;
            }
            std::thread::yield_now();
        }
        self.started.store(false, Ordering::Relaxed);
        GRAVEYARD.kernel_ended();
        true
    }
}

/// Device memory of a kernel.
#[derive(Debug)]
struct DeviceMemory {
    context: Arc<CudaContext>,
    /// Of the GPU.
    name: String,
    /// 0 if there is none, or it has to stay.
    address: u64,
}

impl DeviceMemory {
    /// So many bytes, all 0; none is no memory.
    fn zeroed(context: &Arc<CudaContext>, name: &str, bytes: usize) -> Result<Self, DriverError> {
        let mut memory = Self { context: context.clone(), name: name.to_owned(), address: 0 };
        if bytes > 0 {
            context.bind_to_thread()?;
            // SAFETY: a plain allocation, zeroed before anybody reads it, and freed in `drop`.
            unsafe {
                memory.address = result::malloc_sync(bytes)?;
                result::memset_d8_sync(memory.address, 0, bytes)?;
            }
        }
        Ok(memory)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        let (context, address, name) = (self.context.clone(), self.address, self.name.clone());
        GRAVEYARD.free(move || {
            let _caller = Caller::keep();
            // SAFETY: allocated by `zeroed`, and the kernel, if it was started at all, has ended.
            let freed = context.bind_to_thread().and_then(|()| unsafe { result::free_sync(address) });
            if let Err(error) = freed {
                eprintln!("warning: {name}: freeing device memory: {error:?}");
            }
            drop(context);
        });
    }
}

/// What the kernel was compiled for.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Bytes of its device memory.
    state: usize,
    /// Bytes of shared memory of a front end.
    front_end: u32,
    /// Bytes of shared memory of a block where there is engine 1.
    language: u32,
    /// Threads of a block.
    threads: u32,
    /// Those of them that run a small model's rollout.
    team_threads: u32,
    /// Bytes that a block has of the state of its team.
    bench: u64,
    /// Bytes of what is known of a set of pages.
    page_set: u64,
}

impl Sizes {
    /// Asks the kernel, which answers into `page`.
    fn ask(kernels: &Kernels, stream: &Arc<CudaStream>, page: &SharedMemory) -> Result<Self, DriverError> {
        let function = kernels.module.load_function("doorbell_sizes")?;
        let to = page.bus_address();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&to);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        count_launch();
        // SAFETY: `doorbell_sizes` writes seven words to where `page`, which is larger, lies.
        unsafe { launch.launch(config) }?;
        stream.synchronize()?;
        let mut sizes = [0; 7];
        page.load_u32s(0, &mut sizes).expect("a page holds seven words");
        let [state, front_end, language, threads, team_threads, bench, page_set] = sizes;
        let (state, bench, page_set) = (state as usize, bench.into(), page_set.into());
        Ok(Self { state, front_end, language, threads, team_threads, bench, page_set })
    }
}

/// Host memory that the GPU reads and writes where it lies: page-locked, cached (not write-combined: the host reads it
/// too), and visible to every GPU.
pub(crate) fn pinned(context: &Arc<CudaContext>, bytes: usize) -> Result<SharedMemory, DeviceError> {
    let refused =
        |error: DriverError| DeviceError::Memory { bytes, reason: format!("page-locking: {error:?}") };
    context.bind_to_thread().map_err(refused)?;
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: a plain allocation, freed by its owner below.
    let pointer = unsafe { result::malloc_host(bytes, flags) }.map_err(refused)?;
    let owner = Pinned { context: context.clone(), pointer: pointer.expose_provenance() };
    let mut device = 0;
    // SAFETY: the pointer is that of an allocation with DEVICEMAP.
    unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, pointer, 0) }.result().map_err(refused)?;
    let base = NonNull::new(pointer.cast::<u8>()).ok_or_else(|| DeviceError::Memory {
        bytes,
        reason: "page-locking gave a null pointer".to_owned(),
    })?;
    // SAFETY: the allocation is `bytes` long, a multiple of a page, lives until the owner is dropped, and nothing but
    // the block and the kernel refer to it.
    let memory = unsafe {
        SharedMemory::from_raw_parts(base, bytes, device, Arc::new(owner) as Arc<dyn Any + Send + Sync>)
    }?;
    memory.clear();
    Ok(memory)
}

/// The same, placed as it is asked for: mapped by the host, and then page-locked for the GPU.
fn placed(
    context: &Arc<CudaContext>,
    bytes: usize,
    placement: &Placement,
) -> Result<SharedMemory, DeviceError> {
    let refused = |error: DriverError| DeviceError::Memory {
        bytes,
        reason: format!("page-locking memory={placement}: {error:?}"),
    };
    // The host's mapping; the GPU's address of it is known below.
    let mapped = SharedMemory::placed(bytes, 0, placement)?;
    context.bind_to_thread().map_err(refused)?;
    let (base, len) = (mapped.host_pointer(), mapped.len());
    let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    // SAFETY: the mapping is that long, and lives in the owner below, which takes the registration back before it goes.
    unsafe { sys::cuMemHostRegister_v2(base.as_ptr().cast(), len, flags) }.result().map_err(refused)?;
    let pointer = base.as_ptr().expose_provenance();
    let owner = Registered { context: context.clone(), pointer, mapped: Some(mapped) };
    let mut device = 0;
    // SAFETY: the pointer is that of a registration with DEVICEMAP.
    unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, base.as_ptr().cast(), 0) }
        .result()
        .map_err(refused)?;
    // SAFETY: the mapping is `len` long, a multiple of a page, lives in the owner, and nothing but the block and the kernel refer to
    // it.
    unsafe { SharedMemory::from_raw_parts(base, len, device, Arc::new(owner) as Arc<dyn Any + Send + Sync>) }
}

/// A mapping of the host's that is page-locked for the GPU.
struct Registered {
    context: Arc<CudaContext>,
    pointer: usize,
    mapped: Option<SharedMemory>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (context, pointer, mapped) = (self.context.clone(), self.pointer, self.mapped.take());
        GRAVEYARD.free(move || {
            let _caller = Caller::keep();
            if context.bind_to_thread().is_ok() {
                // SAFETY: registered by `placed`; the pointer was exposed by its address.
                let _ = unsafe { sys::cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(pointer)) };
            }
            drop((mapped, context));
        });
    }
}

/// An allocation of page-locked memory.
struct Pinned {
    context: Arc<CudaContext>,
    pointer: usize,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let (context, pointer) = (self.context.clone(), self.pointer);
        GRAVEYARD.free(move || {
            let _caller = Caller::keep();
            if context.bind_to_thread().is_ok() {
                // SAFETY: allocated by `pinned`, which keeps nothing else of it; the pointer was exposed by its address.
                let _ = unsafe { result::free_host(std::ptr::with_exposed_provenance_mut(pointer)) };
            }
            drop(context);
        });
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_whole_gpu(132, 1, 16, None, 1, 132)]
    #[case::more_queues_than_processors(4, 2, 5, None, 1, 6)]
    #[case::just_enough(17, 1, 16, None, 1, 17)]
    #[case::just_enough_for_two_engines(17, 1, 15, None, 2, 17)]
    #[case::more_of_two_engines(4, 2, 5, None, 2, 7)]
    #[case::some_for_others(132, 1, 3, Some(4), 1, 4)]
    #[case::all(132, 1, 3, Some(132), 2, 132)]
    fn every_block_has_its_place(
        #[case] processors: u32,
        #[case] per_processor: u32,
        #[case] queues: usize,
        #[case] sms: Option<u32>,
        #[case] engines: u32,
        #[case] expected: u32,
    ) {
        assert_eq!(blocks(processors, per_processor, queues, sms, engines).unwrap(), expected);
    }

    #[test]
    fn caches_take_half_of_what_is_free() {
        let memory = LanguageMemory { model_bytes: 65, cache_bytes: 1 << 20 };
        assert_eq!(memory.cut(memory.within(1 << 30, 100), 100), None);
        let cut = memory.cut(memory.within(1 << 20, 3), 3).unwrap();
        assert!(
            cut.contains("174720 bytes") && cut.contains("not 1048576") && cut.contains("BAD_SEQUENCE"),
            "{cut}"
        );
        assert!(memory.named(16, 3).contains("three models of 65 bytes for each of 16 queue pairs"));
        assert_eq!(memory.within(1 << 30, 100), LanguageMemory { model_bytes: 128, cache_bytes: 1 << 20 });
        assert_eq!(memory.within(1 << 20, 3), LanguageMemory { model_bytes: 128, cache_bytes: 174_720 });
        let endless = LanguageMemory { cache_bytes: u64::MAX, ..memory };
        assert_eq!(endless.within(1 << 20, 3).cache_bytes, 174_720);
    }

    #[rstest]
    #[case::an_h100(122, None, 32, 8, 32)]
    #[case::little_memory(122, None, 1, 8, 16)]
    #[case::some_memory(122, None, 20, 8, 20)]
    #[case::each_alone(122, Some(1), 1, 122, 1)]
    #[case::as_large_as_may_be(122, Some(1000), 32, 1, 122)]
    #[case::more_than_a_team_has(130, Some(1000), 32, 2, 65)]
    #[case::few_blocks(3, None, 32, 1, 32)]
    #[case::none(0, None, 32, 1, 32)]
    fn blocks_are_dealt_to_teams(
        #[case] blocks: u32,
        #[case] ranks: Option<u32>,
        #[case] each: u64,
        #[case] teams: u32,
        #[case] columns: u32,
    ) {
        let memory = LanguageMemory { model_bytes: 1000, cache_bytes: 1000 };
        let found = Teams::of(blocks, ranks, u64::from(teams) * each * 1000 + 999, memory);
        assert_eq!(found, Teams { teams, columns });
        assert!(blocks.div_ceil(teams) <= MOST_RANKS && blocks.div_ceil(teams) <= columns);
        let team = include_str!("../kernels/language_team.cuh");
        assert!(team.contains(&format!("constexpr uint32_t kMostRanks = {MOST_RANKS};")));
        let prefill = include_str!("../kernels/language_prefill.cuh");
        let scratch = format!("constexpr uint64_t kMostScratch = {} << 20;", LanguageMemory::SCRATCH >> 20);
        assert!(prefill.contains(&scratch), "{scratch}");
    }

    #[rstest]
    #[case::nothing(0, 0, 0)]
    #[case::less_than_a_line(63, 0, 0)]
    #[case::a_small_card(1000, 1, 960)]
    #[case::one_and_a_half(18 << 20, 1, 18 << 20)]
    #[case::many(2500 << 20, 208, 12_603_072)]
    #[case::more_than_there_are(u64::MAX, 1 << 20, u64::MAX / (1 << 20) / 64 * 64)]
    fn pages_lie_in_sets(#[case] bytes: u64, #[case] sets: u32, #[case] set_bytes: u64) {
        let pages = Pages::of(bytes);
        assert_eq!(pages, Pages { sets, set_bytes });
        assert!(pages.bytes() <= bytes && bytes - pages.bytes() < 64 * u64::from(sets.max(1)) + 64);
    }

    /// The kernel writes as many pages as it is told of.
    #[test]
    fn more_pages_than_memory_holds_are_none() {
        let pages = Pages::of(24 << 20);
        assert_eq!(pages.memory(640), Some((24 << 20) + 2 * 640));
        assert_eq!(Pages::of(u64::MAX).memory(1024), None);
        assert_eq!(Pages { sets: 1 << 20, set_bytes: 64 }.memory(u64::MAX), None);
    }

    #[test]
    fn both_engines_have_blocks() {
        assert_eq!([2, 3, 48, 49, 131].map(language_blocks), [1, 2, 47, 47, 128]);
    }

    #[rstest]
    #[case::a_slice_with_no_worker(16, 1, 16, None, 1, "queues is 16: it must be at most 15")]
    #[case::a_slice_with_one_worker(16, 1, 15, None, 2, "queues is 15: it must be at most 14")]
    #[case::a_kernel_that_does_not_fit(16, 0, 1, None, 1, "queues is 1: it must be at most 0")]
    #[case::too_few_wanted(132, 1, 3, Some(3), 1, "sms is 3: it must be 4 to 132")]
    #[case::too_few_wanted_for_two_engines(132, 1, 3, Some(4), 2, "sms is 4: it must be 5 to 132")]
    #[case::more_wanted_than_there_are(132, 2, 3, Some(133), 1, "sms is 133: it must be 4 to 132")]
    #[case::none_wanted(132, 1, 1, Some(0), 1, "sms is 0: it must be 2 to 132")]
    fn blocks_that_could_not_all_run_are_refused(
        #[case] processors: u32,
        #[case] per_processor: u32,
        #[case] queues: usize,
        #[case] sms: Option<u32>,
        #[case] engines: u32,
        #[case] message: &str,
    ) {
        let error = blocks(processors, per_processor, queues, sms, engines).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }

    #[test]
    fn a_gpu_has_one_kernel_at_a_time() {
        let taken = Mutex::new(Vec::new());
        let reason = Taken::take_of(&taken, [3, 4, 3]).unwrap_err();
        assert!(
            reason.starts_with("this process already runs a kernel on GPU 3, which fills it"),
            "{reason}"
        );
        Taken::take_of(&taken, [3]).unwrap();
        // To open none forgets nobody.
        assert!(Taken::take_of(&taken, []).unwrap_err().contains("no GPU"));
        for gpus in [vec![3], vec![4, 3]] {
            let reason = Taken::take_of(&taken, gpus).unwrap_err();
            assert!(reason.contains("on GPU 3, which fills it"), "{reason}");
        }
        taken.lock().unwrap().clear();
        Taken::take_of(&taken, [3, 4]).unwrap();
    }

    /// CUDA waits for all kernels of a process before it makes another GPU ready.
    #[test]
    fn another_gpu_is_refused_while_a_kernel_runs() {
        let taken = Mutex::new(Vec::new());
        Taken::take_of(&taken, [0, 1]).unwrap();
        let reason = Taken::take_of(&taken, [2]).unwrap_err();
        assert!(
            reason.contains("on GPU 0") && reason.contains("gpus=0+2") && reason.contains("close"),
            "{reason}"
        );
        assert_eq!(*taken.lock().unwrap(), [0, 1]);
    }
}
