//! Engine 1 without queues: rollouts that each take a prompt and go on alone, and the floor beneath them.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUfunction_attribute};
use cudarc::driver::{DriverError, LaunchConfig, PushKernelArg, result};
use doorbell_host::DeviceError;
use doorbell_host::memory::PAGE;
use static_assertions::const_assert_eq;

use super::Probes;
use crate::cuda::{count_launch, pinned};

/// Threads of a block of the kernels (`kBlockThreads`).
const THREADS: u32 = 512;
/// Of a warp.
const WARP: u32 = 32;
/// Dynamic shared memory of a block (`kMostShared`).
const SHARED: u32 = 200 << 10;

/// What every rollout does: takes the prompt, and goes on for `steps` tokens.
#[derive(Clone, Copy, Debug)]
pub struct LanguageTask<'t> {
    /// The image of the model.
    pub image: &'t [u8],
    /// Not empty, of tokens of the vocabulary.
    pub prompt: &'t [u32],
    /// Tokens behind it; prompt and these fit the context.
    pub steps: u32,
    /// Rollouts.
    pub blocks: u32,
    /// Whether each is a warp's, as small models have it, and not a block's.
    pub small: bool,
    /// Bytes of the keys and values of a sequence: whole blocks of 32 positions.
    pub cache_bytes: usize,
    /// log2(e) / temperature with 20 fraction bits.
    pub sharpness: u32,
    /// Of the draws.
    pub seed: u32,
    /// Of the first; the others' count on.
    pub rollout: u32,
    /// Whether keys and values are written into host memory as well.
    pub stored: bool,
    /// Bytes of device memory of each rollout with which a block takes its prompt by chunks; 0: step by step.
    pub scratch_bytes: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct LanguageRun {
    /// Of each in turn, `steps` tokens and their log-probabilities with 16 fraction bits.
    pub sampled: Vec<(u32, i32)>,
    /// The keys and values of each in turn.
    pub caches: Vec<u8>,
    /// The same as host memory has them; empty where none were wanted.
    pub stored: Vec<u8>,
    /// From the launch until the last block had ended.
    pub elapsed: Duration,
}

/// `LanguageProbe` of `kernels/language_probes.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LanguageArguments {
    /// Addresses.
    pub image: u64,
    /// Likewise.
    pub caches: u64,
    /// Likewise; 0: none.
    pub stored: u64,
    /// Likewise.
    pub prompt: u64,
    /// Likewise.
    pub sampled: u64,
    /// Likewise; 0: none.
    pub scratch: u64,
    cache_bytes: u64,
    scratch_bytes: u64,
    length: u32,
    steps: u32,
    sharpness: u32,
    seed: u32,
    rollout: u32,
    rollouts: u32,
    teams: u32,
    /// Out: 0 if the shape does not fit the kernel.
    pub fits: u32,
}

// The layout of the kernel, which asserts the size.
const_assert_eq!(size_of::<LanguageArguments>(), 96);
const_assert_eq!(offset_of!(LanguageArguments, cache_bytes), 48);
const_assert_eq!(offset_of!(LanguageArguments, length), 64);
const_assert_eq!(offset_of!(LanguageArguments, fits), 92);

impl LanguageTask<'_> {
    /// The kernel's arguments, still without addresses.
    pub fn arguments(&self) -> LanguageArguments {
        LanguageArguments {
            cache_bytes: self.cache_bytes as u64,
            scratch_bytes: self.scratch_bytes as u64,
            length: self.prompt.len() as u32,
            steps: self.steps,
            sharpness: self.sharpness,
            seed: self.seed,
            rollout: self.rollout,
            rollouts: self.blocks,
            teams: if self.small { THREADS / WARP } else { 1 },
            fits: 1,
            ..Default::default()
        }
    }

    /// Bytes of the caches of all rollouts.
    pub fn caches(&self) -> usize {
        self.cache_bytes * self.blocks as usize
    }

    /// Bytes of the scratch of all rollouts.
    pub fn scratch(&self) -> usize {
        self.scratch_bytes * self.blocks as usize
    }

    /// Tokens of all rollouts.
    pub fn tokens(&self) -> usize {
        self.steps as usize * self.blocks as usize
    }
}

impl LanguageArguments {
    /// Its bytes, as the kernel reads them.
    pub fn to_bytes(self) -> Vec<u8> {
        let longs = [
            self.image,
            self.caches,
            self.stored,
            self.prompt,
            self.sampled,
            self.scratch,
            self.cache_bytes,
            self.scratch_bytes,
        ];
        let words = [
            self.length,
            self.steps,
            self.sharpness,
            self.seed,
            self.rollout,
            self.rollouts,
            self.teams,
            self.fits,
        ];
        longs
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .chain(words.into_iter().flat_map(u32::to_le_bytes))
            .collect()
    }
}

/// Device memory, freed when dropped; no kernel uses it then.
struct DeviceMemory(u64);

impl DeviceMemory {
    fn new(bytes: usize) -> Result<Self, DriverError> {
        // SAFETY: a plain allocation, freed in `drop`.
        unsafe { result::malloc_sync(bytes.max(1)) }.map(Self)
    }

    fn holding(bytes: &[u8]) -> Result<Self, DriverError> {
        let memory = Self::new(bytes.len())?;
        // SAFETY: the allocation is as long as what is copied.
        unsafe { result::memcpy_htod_sync(memory.0, bytes) }?;
        Ok(memory)
    }

    fn read(&self, bytes: usize) -> Result<Vec<u8>, DriverError> {
        let mut read = vec![0; bytes];
        // SAFETY: the caller asks for no more than there is.
        unsafe { result::memcpy_dtoh_sync(&mut read, self.0) }?;
        Ok(read)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and the stream was waited for.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

impl Probes {
    /// Runs `probe_language` to its end.
    ///
    /// # Errors
    /// `Failed`, `Memory`, or `Config` for a model that does not fit the kernel.
    pub fn language(&self, task: &LanguageTask<'_>) -> Result<LanguageRun, DeviceError> {
        let failed = self.failed("a language model");
        self.context.bind_to_thread().map_err(&failed)?;
        let image = DeviceMemory::holding(task.image).map_err(&failed)?;
        let caches = DeviceMemory::holding(&vec![0; task.caches()]).map_err(&failed)?;
        let prompt: Vec<u8> = task.prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        let prompt = DeviceMemory::holding(&prompt).map_err(&failed)?;
        let sampled = DeviceMemory::new(task.tokens() * 8).map_err(&failed)?;
        let scratch = DeviceMemory::new(task.scratch()).map_err(&failed)?;
        let stored = if task.stored {
            Some(pinned(&self.context, task.caches().next_multiple_of(PAGE))?)
        } else {
            None
        };
        let arguments = LanguageArguments {
            image: image.0,
            caches: caches.0,
            stored: stored.as_ref().map_or(0, doorbell_host::SharedMemory::bus_address),
            prompt: prompt.0,
            sampled: sampled.0,
            scratch: if task.scratch_bytes == 0 { 0 } else { scratch.0 },
            ..task.arguments()
        };
        let probe = DeviceMemory::holding(&arguments.to_bytes()).map_err(&failed)?;
        let function = self.function(if task.small { "probe_language_small" } else { "probe_language" })?;
        function
            .set_attribute(
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                SHARED as i32,
            )
            .map_err(&failed)?;
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&probe.0);
        // Warps are spread over all multiprocessors, as the device spreads them.
        let full = task.blocks.div_ceil(arguments.teams);
        let processors =
            self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(&failed)?;
        let blocks = if task.small { full.max(task.blocks.min(processors as u32)) } else { full };
        let config =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: SHARED };
        let start = Instant::now();
        count_launch();
        // SAFETY: the argument is that of the kernel, and names allocations that outlive it.
        unsafe { launch.launch(config) }.map_err(&failed)?;
        self.stream.synchronize().map_err(&failed)?;
        let elapsed = start.elapsed();
        let ran = probe.read(size_of::<LanguageArguments>()).map_err(&failed)?;
        does_it_fit(&ran)?;
        let sampled = sampled.read(task.tokens() * 8).map_err(&failed)?;
        let caches = caches.read(task.caches()).map_err(&failed)?;
        let stored = match stored {
            None => vec![],
            Some(memory) => {
                let mut words = vec![0; task.caches() / 4];
                memory.load_u32s(0, &mut words)?;
                words.into_iter().flat_map(u32::to_le_bytes).collect()
            }
        };
        Ok(LanguageRun { sampled: sampled_of(&sampled), caches, stored, elapsed })
    }

    /// The floor of [`Probes::language`]: as many blocks read the same bytes of weights `times` over, and do nothing else.
    ///
    /// # Errors
    /// `Failed`.
    pub fn weights(
        &self,
        image: &[u8],
        from: usize,
        blocks: u32,
        times: u32,
    ) -> Result<Duration, DeviceError> {
        let failed = self.failed("reading weights");
        self.context.bind_to_thread().map_err(&failed)?;
        let memory = DeviceMemory::holding(image).map_err(&failed)?;
        let to = DeviceMemory::new(4).map_err(&failed)?;
        let function = self.function("probe_weights")?;
        let from = from.next_multiple_of(16);
        let (first, bytes) = (memory.0 + from as u64, ((image.len() - from) / 16 * 16) as u64);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&first).arg(&bytes).arg(&times).arg(&to.0);
        let config =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        let start = Instant::now();
        count_launch();
        // SAFETY: the arguments are those of the kernel: the image from `from` on, and a word, which outlive it.
        unsafe { launch.launch(config) }.map_err(&failed)?;
        self.stream.synchronize().map_err(&failed)?;
        Ok(start.elapsed())
    }
}

/// Whether the kernel found that its model fits, of its arguments' bytes behind a run.
///
/// # Errors
/// `Config` if it does not.
pub fn does_it_fit(ran: &[u8]) -> Result<(), DeviceError> {
    if ran[size_of::<LanguageArguments>() - 4..] != [0; 4] {
        return Ok(());
    }
    let expected = "a model whose vectors fit 200 KB of shared memory, or a warp's part of it".to_owned();
    Err(DeviceError::Config { field: "image", value: 0, expected })
}

/// Tokens and log-probabilities, of their bytes.
pub fn sampled_of(bytes: &[u8]) -> Vec<(u32, i32)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks_exact(8).map(|two| (word(&two[..4]), word(&two[4..]) as i32)).collect()
}
