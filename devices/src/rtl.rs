//! The RTL device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_contract::{HwCompletion, Register};
use doorbell_cosim::{CosimError, Fault, RtlConfig, RtlPlatform, SLICE, Wave, built_workers};
use doorbell_host::{DeviceError, Driver, Platform, QueueConfig, SharedMemory};

use crate::{Memory, OpenError, Settings};

/// See [`Kind::description`](crate::Kind::description).
pub(crate) fn description() -> String {
    let workers: Vec<String> = built_workers().iter().map(u32::to_string).collect();
    format!("the SystemVerilog device, verilated, with {} workers", workers.join(" or "))
}

/// Opens the device; `wave` is what to record.
///
/// # Errors
/// `Setting` for what the simulated memory cannot do, `Device` for what keeps the device from starting.
pub fn open(settings: &Settings, wave: Option<Wave>) -> Result<Driver<Clocked>, OpenError> {
    let Memory { latency, stalls, reorder, random, seed } = settings.memory.clone();
    let workers = settings.queue.workers.or_else(|| built_workers().last().copied()).unwrap_or(1);
    let faults = settings.fault.as_deref().map(parse_fault).transpose()?;
    let config = RtlConfig {
        workers,
        latency,
        stall_percent: [stalls; 5],
        reorder,
        seed,
        faults: faults.into_iter().collect(),
        wave,
    };
    let config = if random { config.with_random_memory(seed) } else { config };
    let platform = RtlPlatform::new(&config).map_err(|error| match error {
        CosimError::Config { .. } => OpenError::Setting(error.to_string()),
        other => DeviceError::from(other).into(),
    })?;
    let patience = settings.patience.unwrap_or_else(|| patience(&config, &settings.queue));
    let queue = QueueConfig { workers: Some(workers), patience, ..settings.queue.clone() };
    Ok(Driver::new(Clocked { platform, clock: Arc::default() }, queue)?)
}

/// Advances after which a device counts as hung: several times what one token can take, so that a slow memory is no
/// hang, and few enough for a hang to be told within seconds.
fn patience(config: &RtlConfig, queue: &QueueConfig) -> u32 {
    let stall = config.stall_percent.into_iter().max().unwrap_or(0);
    let stretch = 100 / (100 - u64::from(stall)).max(1);
    let token = u64::from(queue.wait_states) + 16 * u64::from(*config.latency.end()) * stretch;
    u32::try_from(50 + 4 * token / SLICE).unwrap_or(u32::MAX)
}

/// The simulator, with a clock that can be read while the driver has it.
pub struct Clocked {
    platform: RtlPlatform,
    clock: Arc<AtomicU64>,
}

impl Clocked {
    /// Clock cycles since the device was made, as of its last advance; to be read while the driver works.
    pub fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.clock)
    }

    /// Writes out what was recorded so far.
    ///
    /// # Errors
    /// As [`RtlPlatform::flush_wave`].
    pub fn flush_wave(&mut self) -> Result<(), CosimError> {
        self.platform.flush_wave()
    }
}

impl Platform for Clocked {
    fn name(&self) -> &str {
        self.platform.name()
    }

    fn map(&mut self, bytes: usize) -> Result<SharedMemory, DeviceError> {
        self.platform.map(bytes)
    }

    fn write_register(&mut self, register: Register, value: u32) -> Result<(), DeviceError> {
        self.platform.write_register(register, value)
    }

    fn read_register(&mut self, register: Register) -> Result<u32, DeviceError> {
        self.platform.read_register(register)
    }

    fn advance(&mut self, want: usize) -> Result<(), DeviceError> {
        let result = self.platform.advance(want);
        self.clock.store(self.platform.cycles(), Ordering::Relaxed);
        result
    }
}

/// Reads a fault of the memory.
fn parse_fault(text: &str) -> Result<Fault, OpenError> {
    let text = match text {
        "token" => "token:100:0",
        "completion" => "completion:100:result",
        "hang" => "hang:10",
        other => other,
    };
    let parts: Vec<&str> = text.split(':').collect();
    let fault = match parts[..] {
        ["hang", burst] => burst.parse().ok().map(|burst| Fault::HangReads { burst }),
        ["read-error", beat] => beat.parse().ok().map(|beat| Fault::ReadError { beat }),
        ["token-error", beat] => beat.parse().ok().map(|beat| Fault::TokenWriteError { beat }),
        ["completion-error", nth] => {
            nth.parse().ok().map(|completion| Fault::CompletionWriteError { completion })
        }
        ["response", cycle] => cycle.parse().ok().map(|cycle| Fault::SpuriousResponse { cycle }),
        ["token", beat, bit] => {
            beat.parse().ok().zip(bit.parse().ok()).map(|(beat, bit)| Fault::CorruptToken { beat, bit })
        }
        ["completion", nth, name] => nth.parse().ok().and_then(|completion| {
            let field = HwCompletion::FIELDS.into_iter().find(|field| field.name == name)?;
            Some(Fault::CorruptCompletion { completion, bit: 8 * field.offset as u32 })
        }),
        _ => None,
    };
    fault.ok_or_else(|| {
        OpenError::Setting(format!(
            "'{text}' is no fault of the RTL's memory: expected token:BEAT:BIT, completion:NTH:FIELD, hang:BURST, \
             read-error:BEAT, token-error:BEAT, completion-error:NTH or response:CYCLE, with FIELD one of {}",
            HwCompletion::FIELDS.map(|field| field.name).join(", ")
        ))
    })
}
