//! Named end-to-end cases: each drives one simulated device through the driver and holds it to the contract, mostly
//! by comparing it with the model.

mod basic;
mod life;
mod memory;
mod queues;
mod rollouts;
mod support;

use doorbell_host::{DeviceError, Driver, QueueConfig};

use crate::config::{RtlConfig, Wave};
use crate::platform::RtlPlatform;

/// A device under test.
pub type Rtl = Driver<RtlPlatform>;

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, as users type it.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// Device and queue pair that it runs on.
    setup: fn() -> (RtlConfig, QueueConfig),
    script: fn(&mut Rtl) -> Result<(), CaseError>,
    /// Whether it holds for any number of workers and any memory; else it counts cycles or needs its own faults.
    portable: bool,
}

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The device or its driver failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device did something else than expected.
    #[error("{what}: expected {expected}, found {found}")]
    Unexpected {
        /// What was looked at.
        what: String,
        /// What should have been there.
        expected: String,
        /// What was.
        found: String,
    },
}

/// How to run a case other than on its own terms.
#[derive(Clone, Debug, Default)]
pub struct CaseOptions {
    /// Workers of the RTL; ignored by cases that are not portable.
    pub workers: Option<u32>,
    /// Seed of a memory with random latency, stalls and order; ignored by cases that are not portable.
    pub memory_seed: Option<u64>,
    /// Waveform to be written.
    pub wave: Option<Wave>,
}

/// Every case, in the order in which they are worth reading.
pub const CASES: &[Case] = &[
    basic::BASIC_DECODE,
    basic::REGISTERS,
    basic::ERROR_CODES,
    rollouts::REWARD_BOUNDARY,
    rollouts::RESIDENT_REWARD,
    rollouts::END_OF_SEQUENCE,
    rollouts::STOP,
    rollouts::ORDER,
    rollouts::FENCE,
    rollouts::PREFILL,
    queues::COMPLETION_BACKPRESSURE,
    queues::DOORBELL_GATING,
    queues::INDEX_WRAP,
    queues::INTERRUPT,
    queues::SATURATED_FETCH,
    queues::WAIT_STATES,
    life::DISABLE_WITH_FULL_QUEUE,
    life::RESET_IN_MID_RUN,
    memory::RANDOM_MEMORY,
    memory::DMA_FAULT,
];

/// The case of this name.
pub fn find(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.name == name)
}

impl Case {
    /// Whether `workers` and `memory_seed` of [`CaseOptions`] apply.
    pub fn is_portable(&self) -> bool {
        self.portable
    }

    /// Runs the case to its end, or to the first thing that is not as it should be; returns the clock cycles that it
    /// took. A waveform is written in either case.
    ///
    /// # Errors
    /// What failed.
    pub fn run(&self, options: &CaseOptions) -> Result<u64, CaseError> {
        let (mut rtl, queue) = (self.setup)();
        if self.portable {
            rtl.workers = options.workers.unwrap_or(rtl.workers);
            if let Some(seed) = options.memory_seed {
                rtl = rtl.with_random_memory(seed);
            }
        }
        rtl.wave.clone_from(&options.wave);
        let platform = RtlPlatform::new(&rtl).map_err(DeviceError::from)?;
        let mut device = Driver::new(platform, queue)?;
        let outcome = (self.script)(&mut device);
        device.platform_mut().flush_wave().map_err(DeviceError::from)?;
        outcome.map(|()| device.platform().cycles())
    }
}
