//! Why a command did not do what it was asked to, as an exit code.

use std::fmt;
use std::process::ExitCode;

use doorbell_devices::OpenError;
use doorbell_host::DeviceError;

/// Exit code when devices differ or one failed.
pub const DIFFERENT: u8 = 1;

/// An error message with its exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Bad usage, input or output.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure { code: 2, message: message.to_string() }
    }

    /// What was run failed, or is not what it must be.
    #[cfg(any(feature = "lm", feature = "runtime"))]
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure { code: DIFFERENT, message: message.to_string() }
    }

    /// A device that was asked for is not there.
    pub fn unavailable(message: impl fmt::Display) -> Failure {
        Failure { code: 3, message: message.to_string() }
    }

    /// Whoever read standard output has enough of it: the command ends, which is no error.
    #[cfg(feature = "lm")]
    pub fn reader_gone() -> Failure {
        Failure { code: 0, message: String::new() }
    }

    /// Whether there is nothing to tell.
    pub fn is_quiet(&self) -> bool {
        self.code == 0
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A device that could not be set up.
impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        let code = match error {
            DeviceError::RingDepth { .. }
            | DeviceError::Config { .. }
            | DeviceError::Memory { .. }
            | DeviceError::Placement { .. } => 2,
            DeviceError::Unavailable { .. }
            | DeviceError::NotADevice { .. }
            | DeviceError::Version { .. } => 3,
            _ => DIFFERENT,
        };
        Failure { code, message: error.to_string() }
    }
}

/// A device that was not opened.
impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::Device(error) => error.into(),
            other => Failure::input(other),
        }
    }
}
