//! The kernel on the CPU: the text of `gpu/kernels`, compiled for the CPU, over the same mailboxes and memory, so that a
//! mistake in the protocol shows where there is no GPU. It is built to be tested, not to be fast.
//!
//! A block is a thread, a lane a fibre of it (`kernel/runtime.cpp`); CUDA's language is `kernel/cuda.h`, and the names of
//! `memory_order.cuh` are atomics of the CPU (`kernel/memory_order.h`). A front end has two fetch warps, and there are 32
//! places. Addresses are those of the process.

use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use doorbell_gpu::probes::{LanguageArguments, LanguageRun, LanguageTask, does_it_fit, sampled_of};
use doorbell_gpu::{Engine, LanguageMemory, MAX_QUEUES, Pages};
use doorbell_host::memory::PAGE;
use doorbell_host::{DeviceError, SharedMemory};
use static_assertions::const_assert_eq;

/// What the device calls itself.
const NAME: &str = "kernel on the CPU";

/// The most blocks of workers: more only wait for the processor.
const MAX_BLOCKS: usize = 16;

/// Warps of a block.
const WARPS: u32 = 5;

/// Bytes of what went wrong, at most.
const TEXT: usize = 1024;

/// `doorbell_cpu_options` of `kernel/runtime.h`.
#[repr(C)]
struct RawOptions {
    queues: u32,
    worker_blocks: u32,
    language_blocks: u32,
    language_small: u32,
    seed: u64,
    stress: u32,
    weak: u32,
    scoped: u32,
    fault: *const c_char,
    mailboxes: *mut c_void,
    memory: *mut c_void,
    memory_bytes: usize,
    model_bytes: u64,
    cache_bytes: u64,
    language_teams: u32,
    language_columns: u32,
    page_set_bytes: u64,
    page_sets: u32,
    reserved: u32,
}

// The offsets that `kernel/runtime.h` asserts.
const_assert_eq!(size_of::<RawOptions>(), 112);
const_assert_eq!(offset_of!(RawOptions, seed), 16);
const_assert_eq!(offset_of!(RawOptions, stress), 24);
const_assert_eq!(offset_of!(RawOptions, fault), 40);
const_assert_eq!(offset_of!(RawOptions, memory_bytes), 64);
const_assert_eq!(offset_of!(RawOptions, cache_bytes), 80);
const_assert_eq!(offset_of!(RawOptions, page_set_bytes), 96);

/// A device of `kernel/runtime.cpp`.
#[repr(C)]
struct RawDevice {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn doorbell_cpu_fault(index: u32) -> *const c_char;
    fn doorbell_cpu_start(options: *const RawOptions) -> *mut RawDevice;
    fn doorbell_cpu_probe(
        options: *const RawOptions,
        arguments: *mut c_void,
        text: *mut c_char,
        bytes: usize,
    ) -> bool;
    fn doorbell_cpu_check(device: *mut RawDevice, text: *mut c_char, bytes: usize) -> bool;
    fn doorbell_cpu_stop(device: *mut RawDevice) -> bool;
}

/// How the kernel is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Queue pairs, 1 to [`MAX_QUEUES`]: so many blocks are front ends.
    pub queues: usize,
    /// Blocks of workers, five warps each.
    pub worker_blocks: usize,
    /// With engine 1, and memory for it.
    pub language: Option<LanguageMemory>,
    /// Blocks that run it, teams of them that take steps together, and rollouts that such a team has at a time. Where the model is small each warp is a
    /// team.
    pub teams: Teams,
    /// Keys and values that blocks keep between descriptors; the default is none.
    pub pages: Pages,
    /// Bytes of shared memory of each queue pair.
    pub bytes: usize,
    /// Seed of what is left to chance: delays, and when relaxed accesses take effect.
    pub seed: u64,
    /// Whether lanes are interrupted at random.
    pub stress: bool,
    /// Whether relaxed loads may be early and relaxed stores late, as the memory model of a GPU allows.
    pub weak: bool,
    /// Whether, beside that, what is released to a warp or a block alone may be seen late by everybody else. The cases of
    /// the conformance suite do not run so: several look at how soon something is seen.
    pub scoped: bool,
    /// What it does wrong: one of [`faults`].
    pub fault: Option<&'static str>,
}

/// How engine 1 has the kernel's blocks.
#[derive(Clone, Copy, Debug)]
pub struct Teams {
    /// Blocks, at least one.
    pub blocks: usize,
    /// Teams, to which they are dealt: at most as many.
    pub teams: usize,
    /// Rollouts of each at a time.
    pub columns: usize,
}

impl Default for Teams {
    fn default() -> Self {
        Self { blocks: 1, teams: 1, columns: 32 }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1,
            worker_blocks: 1,
            language: None,
            teams: Teams::default(),
            pages: Pages::default(),
            bytes: 32 << 20,
            seed: 0,
            stress: false,
            weak: false,
            scoped: false,
            fault: None,
        }
    }
}

/// The mistakes that the kernel can be told to make, `kernel/fault.h`.
pub fn faults() -> impl Iterator<Item = &'static CStr> {
    (0..).map_while(|index| {
        // SAFETY: it takes any index, and gives a name, which is static, or null.
        let name = unsafe { doorbell_cpu_fault(index) };
        // SAFETY: a name ends with a zero.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    })
}

/// The fault of this name.
fn named(name: Option<&str>) -> Result<Option<&'static CStr>, DeviceError> {
    let Some(name) = name else { return Ok(None) };
    let found = faults().find(|fault| fault.to_bytes() == name.as_bytes());
    let unknown =
        || DeviceError::Config { field: "fault", value: 0, expected: format!("a known fault, not {name}") };
    found.map(Some).ok_or_else(unknown)
}

/// The kernel, running. Dropped, it ends.
pub struct CpuKernel {
    device: NonNull<RawDevice>,
    mailboxes: SharedMemory,
    memory: SharedMemory,
    queues: usize,
    engines: u32,
}

// SAFETY: the device may be asked from any thread, and by several at a time: what they share is atomic or locked.
unsafe impl Send for CpuKernel {}
// SAFETY: as above.
unsafe impl Sync for CpuKernel {}

/// Memory that a device on this machine sees where the host sees it.
fn shared(bytes: usize) -> Result<SharedMemory, DeviceError> {
    let memory = SharedMemory::allocate(bytes, 0)?;
    let base = memory.host_pointer();
    // SAFETY: the block is as long as it says, lives in the owner that it becomes, and is accessed through the new block
    // alone, and by the kernel, atomically.
    unsafe { SharedMemory::from_raw_parts(base, memory.len(), base.addr().get() as u64, Arc::new(memory)) }
}

impl CpuKernel {
    /// Starts the kernel.
    ///
    /// # Errors
    /// `Config` for options out of range, `Memory` if there is no memory.
    pub fn start(options: Options) -> Result<Self, DeviceError> {
        let within = |field, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(DeviceError::Config { field, value: value as u64, expected: format!("1 to {most}") })
        };
        within("queues", options.queues, MAX_QUEUES)?;
        within("worker_blocks", options.worker_blocks, MAX_BLOCKS)?;
        let Teams { blocks, teams, columns } = options.teams;
        within("blocks", blocks, MAX_BLOCKS)?;
        within("teams", teams, blocks)?;
        within("columns", columns, usize::MAX)?;
        let fault = named(options.fault)?;
        let bytes = options.bytes.max(1).next_multiple_of(PAGE);
        let mailboxes = shared(options.queues * PAGE)?;
        let memory = shared(options.queues * bytes)?;
        let raw = RawOptions {
            queues: options.queues as u32,
            worker_blocks: options.worker_blocks as u32,
            language_blocks: if options.language.is_some() { blocks as u32 } else { 0 },
            language_small: options.language.is_some_and(|language| language.is_small()).into(),
            seed: options.seed,
            stress: options.stress.into(),
            weak: options.weak.into(),
            scoped: (options.weak && options.scoped).into(),
            fault: fault.map_or(std::ptr::null(), CStr::as_ptr),
            mailboxes: mailboxes.host_pointer().as_ptr().cast(),
            memory: memory.host_pointer().as_ptr().cast(),
            memory_bytes: memory.len(),
            model_bytes: options.language.map_or(0, |language| language.model_bytes.next_multiple_of(64)),
            cache_bytes: options.language.map_or(0, |language| language.cache_bytes.next_multiple_of(64)),
            language_teams: teams as u32,
            language_columns: columns as u32,
            page_set_bytes: options.pages.set_bytes,
            page_sets: options.pages.sets,
            reserved: 0,
        };
        // SAFETY: the options are read during the call alone; the memory that they name outlives the device (see `drop`).
        let device = unsafe { doorbell_cpu_start(&raw) };
        let device = NonNull::new(device)
            .ok_or_else(|| DeviceError::Memory { bytes: 0, reason: "the kernel's own memory".to_owned() })?;
        let engines = 1 + u32::from(options.language.is_some());
        Ok(Self { device, mailboxes, memory, queues: options.queues, engines })
    }
}

impl Engine for CpuKernel {
    fn name(&self) -> &str {
        NAME
    }

    fn mailbox(&self, queue: usize) -> Result<SharedMemory, DeviceError> {
        self.mailboxes.part(queue * PAGE, PAGE)
    }

    fn queues(&self) -> usize {
        self.queues
    }

    fn engines(&self) -> u32 {
        self.engines
    }

    fn memory(&self) -> Result<SharedMemory, DeviceError> {
        Ok(self.memory.clone())
    }

    /// Gives the blocks the processor: each lets all its warps look, some times over.
    fn check(&self) -> Result<(), DeviceError> {
        let mut text = [0; TEXT];
        // SAFETY: the device lives, and the text is as long as it says.
        if unsafe { doorbell_cpu_check(self.device.as_ptr(), text.as_mut_ptr(), TEXT) } {
            return Ok(());
        }
        // SAFETY: what went wrong ends with a zero.
        let what = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        Err(DeviceError::Failed { device: NAME.to_owned(), what })
    }
}

impl Drop for CpuKernel {
    fn drop(&mut self) {
        // SAFETY: started by `start`, and not used behind this. It returns once no thread of it runs.
        if !unsafe { doorbell_cpu_stop(self.device.as_ptr()) } {
            eprintln!("warning: the {NAME} did not end, and was cut off");
        }
    }
}

/// Bytes in memory of their own, at the beginning of a page.
fn placed(bytes: &[u8]) -> Result<SharedMemory, DeviceError> {
    let memory = shared(bytes.len().max(1).next_multiple_of(PAGE))?;
    let mut padded = bytes.to_vec();
    padded.resize(memory.len(), 0);
    let words: Vec<u32> =
        padded.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes"))).collect();
    memory.store_u32s(0, &words)?;
    Ok(memory)
}

/// The first bytes of memory.
fn read(memory: &SharedMemory, bytes: usize) -> Result<Vec<u8>, DeviceError> {
    let mut words = vec![0; bytes.div_ceil(4)];
    memory.load_u32s(0, &mut words)?;
    let mut read: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    read.truncate(bytes);
    Ok(read)
}

/// Runs `probe_language` on the CPU, as `Probes::language` does on a GPU; what chance decides is `options`' seed, stress and weakness, and it does what their
/// fault says.
///
/// # Errors
/// `Failed` with what went wrong, `Memory`, or `Config` for a model that does not fit the kernel, or an unknown fault.
pub fn language(task: &LanguageTask<'_>, options: &Options) -> Result<LanguageRun, DeviceError> {
    let fault = named(options.fault)?;
    let image = placed(task.image)?;
    let caches = placed(&vec![0; task.caches()])?;
    let stored = placed(&vec![0; task.caches()])?;
    let prompt: Vec<u8> = task.prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let prompt = placed(&prompt)?;
    let sampled = placed(&vec![0; task.tokens() * 8])?;
    let mut arguments = task.arguments();
    arguments.image = image.bus_address();
    arguments.caches = caches.bus_address();
    arguments.stored = if task.stored { stored.bus_address() } else { 0 };
    arguments.prompt = prompt.bus_address();
    arguments.sampled = sampled.bus_address();
    let scratch = placed(&vec![0xA5; task.scratch()])?;
    arguments.scratch = if task.scratch_bytes == 0 { 0 } else { scratch.bus_address() };
    let probe = placed(&arguments.to_bytes())?;
    let raw = RawOptions {
        queues: 0,
        worker_blocks: if task.small { task.blocks.div_ceil(WARPS) } else { task.blocks },
        language_blocks: 0,
        language_small: 0,
        model_bytes: 0,
        cache_bytes: 0,
        language_teams: 0,
        language_columns: 0,
        page_set_bytes: 0,
        page_sets: 0,
        reserved: 0,
        seed: options.seed,
        stress: options.stress.into(),
        weak: options.weak.into(),
        scoped: (options.weak && options.scoped).into(),
        fault: fault.map_or(std::ptr::null(), CStr::as_ptr),
        mailboxes: std::ptr::null_mut(),
        memory: stored.host_pointer().as_ptr().cast(),
        memory_bytes: stored.len(),
    };
    let mut text = [0; TEXT];
    let start = Instant::now();
    // SAFETY: the arguments are those of the probe, and name memory that outlives the call, behind which no thread of it runs.
    let ended =
        unsafe { doorbell_cpu_probe(&raw, probe.host_pointer().as_ptr().cast(), text.as_mut_ptr(), TEXT) };
    let elapsed = start.elapsed();
    if !ended {
        // SAFETY: what went wrong ends with a zero.
        let what = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        return Err(DeviceError::Failed { device: NAME.to_owned(), what });
    }
    does_it_fit(&read(&probe, size_of::<LanguageArguments>())?)?;
    let sampled = sampled_of(&read(&sampled, task.tokens() * 8)?);
    let stored = if task.stored { read(&stored, task.caches())? } else { vec![] };
    Ok(LanguageRun { sampled, caches: read(&caches, task.caches())?, stored, elapsed })
}
