//! What was seen that must not be.

use std::fmt;

use doorbell_host::error::DeviceError;

/// A rule that was broken, or a device that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, as in `R3`; `device` where the device itself ended.
    pub rule: &'static str,
    /// What was seen, and where.
    pub what: String,
}

impl Violation {
    /// The device failed; of what its driver says that names a rule, by that rule.
    pub(super) fn failure(error: DeviceError) -> Self {
        let rule = match &error {
            DeviceError::Timeout(_) => "R15",
            DeviceError::NotStarted { .. } => "R12",
            DeviceError::Protocol { rule, .. } => rule,
            _ => "device",
        };
        Self { rule, what: error.to_string() }
    }

    /// Says where.
    pub(super) fn at(self, place: impl fmt::Display) -> Self {
        Self { what: format!("{place}: {}", self.what), ..self }
    }
}

impl From<DeviceError> for Violation {
    fn from(error: DeviceError) -> Self {
        Self::failure(error)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

impl std::error::Error for Violation {}

pub(super) fn violated(rule: &'static str, what: String) -> Violation {
    Violation { rule, what }
}
