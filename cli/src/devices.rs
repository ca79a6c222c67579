//! The devices that this program knows, and how each is opened.

use std::ops::RangeInclusive;

use doorbell_host::{Device, DeviceError, Driver, QueueConfig};
use doorbell_verify::ModelPlatform;
use doorbell_verify::model::Mutation;

use crate::failure::Failure;

#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "rtl")]
pub mod rtl;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The golden model.
    Model,
    /// The verilated RTL.
    Rtl,
    /// The persistent CUDA kernel.
    Gpu,
}

/// What a device is opened with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The queue pair.
    pub queue: QueueConfig,
    /// Advances without progress after which a device counts as hung, if not the device's usual.
    pub patience: Option<u32>,
    /// The memory of simulated devices.
    #[cfg_attr(not(feature = "rtl"), allow(dead_code, reason = "no simulated device is built"))]
    pub memory: Memory,
    /// The GPUs.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "no GPU is opened"))]
    pub gpus: Gpus,
    /// A fault to put into the device.
    pub fault: Option<String>,
}

/// The memory behind a simulated device.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "rtl"), allow(dead_code, reason = "no simulated device is built"))]
pub struct Memory {
    /// Cycles that it takes to answer.
    pub latency: RangeInclusive<u32>,
    /// Chance, in percent, that a channel stands still in a cycle.
    pub stalls: u8,
    /// Whether it answers writes out of order.
    pub reorder: bool,
    /// Draw all of that from `seed` instead.
    pub random: bool,
    /// Seed of what is random.
    pub seed: u64,
}

/// The GPUs that are one device together.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "no GPU is opened"))]
pub struct Gpus {
    /// By number, each once, and at least one.
    pub gpus: Vec<usize>,
    /// Queue pairs on each.
    pub queues: usize,
}

impl Kind {
    /// Every kind, in the order in which they are compared by default.
    pub const ALL: [Kind; 3] = [Kind::Model, Kind::Rtl, Kind::Gpu];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Rtl => "rtl",
            Kind::Gpu => "gpu",
        }
    }

    /// What it is.
    pub fn description(self) -> String {
        match self {
            Kind::Model => "golden model in Rust, the executable specification".into(),
            #[cfg(feature = "rtl")]
            Kind::Rtl => rtl::description(),
            #[cfg(not(feature = "rtl"))]
            Kind::Rtl => "the SystemVerilog device, verilated".into(),
            Kind::Gpu => "persistent CUDA workers".into(),
        }
    }

    /// Why it cannot be used here, if it cannot. Opens the device where there is no other way to know.
    pub fn missing(self) -> Option<String> {
        match self {
            #[cfg(feature = "gpu")]
            Kind::Gpu => gpu::missing(),
            _ => self.left_out(),
        }
    }

    /// Why it is not part of this build, if it is not.
    fn left_out(self) -> Option<String> {
        let built = match self {
            Kind::Model => true,
            Kind::Rtl => cfg!(feature = "rtl"),
            Kind::Gpu => cfg!(feature = "gpu"),
        };
        (!built).then(|| format!("not part of this build; build with the feature '{}'", self.name()))
    }

    /// Whether a fault can be put into it.
    pub fn takes_faults(self) -> bool {
        self != Kind::Gpu
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Result<Kind, Failure> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            Failure::input(format!("unknown device '{name}'; known devices: {}", known.join(", ")))
        })
    }

    /// Opens a device of this kind.
    ///
    /// # Errors
    /// [`Failure::missing`] says so where the device is not there.
    pub fn open(self, settings: &Settings) -> Result<Box<dyn Device>, Failure> {
        match self {
            Kind::Model => open_model(settings),
            #[cfg(feature = "rtl")]
            Kind::Rtl => Ok(Box::new(rtl::open(settings, None)?)),
            #[cfg(feature = "gpu")]
            Kind::Gpu => Ok(gpu::open(settings)?),
            #[allow(unreachable_patterns, reason = "a build with every feature has every kind")]
            _ => {
                let (device, reason) = (self.name().to_owned(), self.left_out().unwrap_or_default());
                Err(DeviceError::Unavailable { device, reason }.into())
            }
        }
    }
}

fn open_model(settings: &Settings) -> Result<Box<dyn Device>, Failure> {
    let mut model = ModelPlatform::new();
    if let Some(fault) = &settings.fault {
        let text = match fault.as_str() {
            "token" => "token:1000",
            "completion" => "completion:100:result",
            "hang" => "hang:100",
            other => other,
        };
        let mutation: Mutation = text.parse().map_err(Failure::input)?;
        model = model.with_mutation(mutation);
    }
    // The model runs one descriptor at a time, whatever the number of workers of the others.
    let patience = settings.patience.unwrap_or(settings.queue.patience);
    let queue = QueueConfig { workers: None, patience, ..settings.queue.clone() };
    Ok(Box::new(Driver::new(model, queue)?))
}
