//! Devices each of whose functions has a host of its own, to be served at sockets.

use std::path::PathBuf;

use doorbell_host::{Device, DeviceError, Driver, FunctionMemory, QueueConfig};
use doorbell_verify::ModelPlatform;
use doorbell_vfio::VfioUser;

use crate::{Kind, OpenError, Settings};

/// Advances after which a device behind a socket counts as hung: seconds, of the 50 µs that each takes at least.
const PATIENCE: u32 = 100_000;

/// What a device that is served is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Functions, 1 to 16.
    pub functions: u8,
    /// Queue pairs of each function; `functions` times as many are 16 at most.
    pub queues: u8,
    /// Workers of the RTL, of all functions together; by default as many as are built where there is one function, else one each.
    pub workers: Option<u32>,
    /// Whether it runs language models (engine 1). The golden model always does.
    pub language: bool,
}

impl Kind {
    /// Opens a device of this kind, after reset, whose functions reach what they are given of the memory of their hosts.
    ///
    /// # Errors
    /// `Unavailable` for a kind that has no such memory, or was not built with so much.
    pub fn open_by_function(self, served: &Served) -> Result<Box<dyn FunctionMemory>, OpenError> {
        let queues = served.functions.saturating_mul(served.queues);
        match self {
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
    let Some(socket) = &settings.socket else {
        let (option, problem) =
            ("vfio-user".to_owned(), "give the socket of its server, as in vfio-user:PATH".to_owned());
        return Err(OpenError::Option { option, problem });
    };
    if settings.queues > 1 || settings.functions > 1 {
        let value = settings.queues.max(settings.functions).into();
        let expected =
            "1 of each behind a socket, which is one function: its driver takes the first queue pair"
                .to_owned();
        return Err(DeviceError::Config { field: "queues or functions", value, expected }.into());
    }
    let patience = settings.patience.unwrap_or(PATIENCE);
    let queue = QueueConfig { patience, ..settings.queue.clone() };
    Ok(Box::new(Driver::new(VfioUser::open(&PathBuf::from(socket))?, queue)?))
}
