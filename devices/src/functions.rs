//! Devices each of whose functions has a host of its own: those that are served at sockets, and those that are driven there or over
//! vfio-pci.

use std::path::PathBuf;

use doorbell_host::{Device, DeviceError, Driver, FunctionMemory, Platform, QueueConfig};
use doorbell_verify::ModelPlatform;
pub use doorbell_vfio::functions as pcie_functions;
use doorbell_vfio::{VfioPci, VfioUser};

use crate::{Kind, OpenError, Settings};

/// Advances after which a device behind a socket or a bus counts as hung: seconds, of the 50 µs that each takes at least.
const PATIENCE: u32 = 100_000;

/// What a device that is served is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Functions, 1 to 16.
    pub functions: u8,
    /// Queue pairs of each function; `functions` times as many are 16 at most.
    pub queues: u8,
    /// Workers of the RTL, of all functions together; by default as many as are built where there is one function, else one each.
    pub workers: Option<u32>,
    /// Whether it runs language models (engine 1). The golden model always does.
    pub language: bool,
    /// File that the RTL records a waveform to, as long as it lives.
    pub wave: Option<PathBuf>,
}

impl Kind {
    /// Opens a device of this kind, after reset, whose functions reach what they are given of the memory of their hosts.
    ///
    /// # Errors
    /// `Unavailable` for a kind that has no such memory, or was not built with so much.
    pub fn open_by_function(self, served: &Served) -> Result<Box<dyn FunctionMemory>, OpenError> {
        let queues = served.functions.saturating_mul(served.queues);
        match self {
            Kind::Model if served.wave.is_some() => {
                let reason = "it has no signals to record, and no waveform: serve rtl".to_owned();
                Err(DeviceError::Unavailable { device: self.name().to_owned(), reason }.into())
            }
            Kind::Model => Ok(Box::new(ModelPlatform::with_queues(queues, served.functions)?.by_function()?)),
            #[cfg(feature = "rtl")]
            Kind::Rtl => Ok(Box::new(crate::rtl::open_by_function(served, queues)?)),
            _ => {
                let reason = self.left_out().unwrap_or_else(|| {
                    "functions with hosts of their own are those of model and rtl".to_owned()
                });
                Err(DeviceError::Unavailable { device: self.name().to_owned(), reason }.into())
            }
        }
    }
}

/// The function at the socket of a server: its first queue pair.
pub(crate) fn open_socket(settings: &Settings) -> Result<Box<dyn Device>, OpenError> {
    let place =
        place(settings, "vfio-user", &settings.socket, "the socket of its server, as in vfio-user:PATH")?;
    drive(VfioUser::open(&PathBuf::from(place))?, settings)
}

/// The function of PCI Express at an address: its first queue pair.
pub(crate) fn open_address(settings: &Settings) -> Result<Box<dyn Device>, OpenError> {
    let place =
        place(settings, "pcie", &settings.address, "the address of the function, as in pcie:0000:00:03.0")?;
    drive(VfioPci::open(place)?, settings)
}

/// Where the function is.
fn place<'a>(
    settings: &Settings,
    kind: &str,
    place: &'a Option<String>,
    what: &str,
) -> Result<&'a str, OpenError> {
    let Some(place) = place else {
        let (option, problem) = (kind.to_owned(), format!("give {what}"));
        return Err(OpenError::Option { option, problem });
    };
    if settings.queues > 1 || settings.functions > 1 {
        let value = settings.queues.max(settings.functions).into();
        let expected =
            format!("1 of each, as {kind}:{place} is one function: its driver takes the first queue pair");
        return Err(DeviceError::Config { field: "queues or functions", value, expected }.into());
    }
    if !settings.placement.is_default() {
        let problem = format!("{kind} shares memory of its own kind; memory= is for model, rtl and gpu");
        return Err(OpenError::Option { option: format!("memory={}", settings.placement), problem });
    }
    Ok(place)
}

fn drive(platform: impl Platform + 'static, settings: &Settings) -> Result<Box<dyn Device>, OpenError> {
    let patience = settings.patience.unwrap_or(PATIENCE);
    let queue = QueueConfig { patience, ..settings.queue.clone() };
    Ok(Box::new(Driver::new(platform, queue)?))
}
