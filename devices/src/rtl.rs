//! The RTL device.

use doorbell_contract::HwCompletion;
use doorbell_cosim::{
    CosimError, Fault, FaultKind, RtlConfig, RtlPlatform, SHARED_SLICE, SLICE, Wave, built_workers,
};
use doorbell_host::{Device, DeviceError, Driver, QueueConfig};

use crate::{Memory, OpenError, Opened, Settings};

/// See [`Kind::description`](crate::Kind::description).
pub(crate) fn description() -> String {
    let workers: Vec<String> = built_workers().iter().map(u32::to_string).collect();
    format!("the SystemVerilog device, verilated, with {} workers", workers.join(" or "))
}

/// Opens the device with as many queue pairs as `settings` say, and with `rewards` another one beside each.
pub(crate) fn open_queues(settings: &Settings, rewards: bool) -> Result<Opened, OpenError> {
    if settings.is_alone(rewards) {
        let device: Box<dyn Device> = Box::new(open(settings, None)?);
        return Ok(device.into());
    }
    let (platform, queue) = make(settings, settings.queues * crate::row(rewards), None)?;
    Ok(crate::divided(platform, settings, &queue, rewards)?)
}

/// Opens the device; `wave` is what to record.
///
/// # Errors
/// `Setting` for what the simulated memory cannot do, `Device` for what keeps the device from starting.
pub fn open(settings: &Settings, wave: Option<Wave>) -> Result<Driver<RtlPlatform>, OpenError> {
    let (platform, queue) = make(settings, settings.queues, wave)?;
    Ok(Driver::new(platform, queue)?)
}

/// The patience that [`open`] gives the driver: that of the settings, or if they have none what suits the device and its work.
///
/// # Errors
/// `Setting` for a fault that it does not know.
pub fn patience(settings: &Settings) -> Result<u32, OpenError> {
    let config = config(settings, settings.queues, None)?;
    Ok(settings.patience.unwrap_or_else(|| usual_patience(&config, &settings.queue)))
}

/// What is simulated, with so many queue pairs.
fn config(settings: &Settings, queues: u8, wave: Option<Wave>) -> Result<RtlConfig, OpenError> {
    let Memory { latency, stalls, reorder, random, seed } = settings.memory.clone();
    // Whoever has a region for models wants an engine for them, which all workers share.
    let engines = if settings.queue.model_bytes > 0 { 2 } else { 1 };
    let most = if engines == 1 { built_workers().last().copied() } else { None };
    let workers = settings.queue.workers.or(most).unwrap_or(1);
    let faults = settings.fault.as_deref().map(parse_fault).transpose()?;
    let config = RtlConfig {
        workers,
        queues: queues.into(),
        functions: settings.functions.into(),
        engines,
        latency,
        stall_percent: [stalls; 5],
        reorder,
        seed,
        faults: faults.into_iter().collect(),
        hostile: None,
        by_function: false,
        changes: false,
        slice: if settings.own_thread { SHARED_SLICE } else { SLICE },
        moments: false,
        wave,
    };
    Ok(if random { config.with_random_memory(seed) } else { config })
}

/// The device with so many queue pairs after reset, and what its queue pair, or each, is to be set to.
fn make(
    settings: &Settings,
    queues: u8,
    wave: Option<Wave>,
) -> Result<(RtlPlatform, QueueConfig), OpenError> {
    let config = config(settings, queues, wave)?;
    let workers = config.workers;
    let platform = RtlPlatform::new(&config).map_err(|error| match error {
        CosimError::Config { .. } => OpenError::Setting(error.to_string()),
        other => DeviceError::from(other).into(),
    })?;
    let mut platform = platform.with_placement(settings.placement);
    let patience = settings.patience.unwrap_or_else(|| usual_patience(&config, &settings.queue));
    let mut queue = QueueConfig { workers: Some(workers), patience, ..settings.queue.clone() };
    if settings.tap {
        platform.watch_lives().map_err(DeviceError::from)?;
        queue.event_slots = 0;
    }
    Ok((platform, queue))
}

/// The device after reset, each of whose functions has a host of its own.
#[cfg(feature = "vfio")]
pub(crate) fn open_by_function(served: &crate::Served, queues: u8) -> Result<RtlPlatform, OpenError> {
    let alone = served.functions == 1 && queues == 1 && !served.language;
    let most = if alone { built_workers().last().copied() } else { None };
    let config = RtlConfig {
        workers: served.workers.or(most).unwrap_or(served.functions.into()),
        queues: queues.into(),
        functions: served.functions.into(),
        engines: if served.language { 2 } else { 1 },
        by_function: true,
        slice: SERVED_SLICE,
        wave: served.wave.clone().map(|path| Wave { path, window: None }),
        ..RtlConfig::default()
    };
    Ok(RtlPlatform::new(&config).map_err(DeviceError::from)?)
}

/// Cycles of a slice of a device that is served: its clients wait until it is over.
#[cfg(feature = "vfio")]
const SERVED_SLICE: u64 = 64;

/// Slices of time after which a device counts as hung: several times what one token can take, so that a slow memory is no
/// hang, and few enough for a hang to be told within seconds.
fn usual_patience(config: &RtlConfig, queue: &QueueConfig) -> u32 {
    let stall = config.stall_percent.into_iter().max().unwrap_or(0);
    let stretch = 100 / (100 - u64::from(stall)).max(1);
    let token = u64::from(queue.wait_states) + 16 * u64::from(*config.latency.end()) * stretch;
    // A step of a language model reads all of it, and a PREFILL has a step for each token that there is room for.
    let step = (queue.model_bytes / 64 + 10_000) * (2 + u64::from(*config.latency.end()) / 16) * stretch;
    let prefill = if queue.model_bytes > 0 { (queue.token_bytes / 4).saturating_mul(step) } else { 0 };
    u32::try_from((50 * SLICE + 4 * token).saturating_add(prefill) / config.slice).unwrap_or(u32::MAX)
}

/// Reads a fault of the memory.
fn parse_fault(text: &str) -> Result<Fault, OpenError> {
    let text = match text {
        "token" => "token:100:0",
        "completion" => "completion:100:result",
        "hang" => "hang:10",
        other => other,
    };
    let (name, place) = text.split_once(':').unwrap_or((text, ""));
    let (at, bit) = place.split_once(':').map_or((place, None), |(at, bit)| (at, Some(bit)));
    let fault = at.parse().ok().and_then(|at| {
        Some(match (name, bit) {
            ("hang", None) => FaultKind::HangReads.at(at),
            ("read-error", None) => FaultKind::ReadError.at(at),
            ("token-error", None) => FaultKind::TokenWriteError.at(at),
            ("completion-error", None) => FaultKind::CompletionWriteError.at(at),
            ("response", None) => FaultKind::SpuriousResponse.at(at),
            ("read", Some(bit)) => Fault { bit: bit.parse().ok()?, ..FaultKind::CorruptRead.at(at) },
            ("token", Some(bit)) => Fault { bit: bit.parse().ok()?, ..FaultKind::CorruptToken.at(at) },
            ("completion", Some(name)) => {
                let field = HwCompletion::FIELDS.into_iter().find(|field| field.name == name)?;
                Fault { bit: 8 * field.offset as u32, ..FaultKind::CorruptCompletion.at(at) }
            }
            _ => return None,
        })
    });
    fault.ok_or_else(|| {
        OpenError::Setting(format!(
            "'{text}' is no fault of the RTL's memory: expected token:BEAT:BIT, completion:NTH:FIELD, hang:BURST, \
             read:BEAT:BIT, read-error:BEAT, token-error:BEAT, completion-error:NTH or response:CYCLE, with FIELD one of {}",
            HwCompletion::FIELDS.map(|field| field.name).join(", ")
        ))
    })
}
