//! How a co-simulation fails.

use doorbell_host::DeviceError;

use crate::bridge::ffi;
use crate::platform::NAME;

/// A failure of the simulated device or of its surroundings. A device that failed is done: every later use of it
/// returns the same failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CosimError {
    /// An assertion in RTL failed.
    #[error("{rule} {message}, in cycle {cycle}")]
    Assertion {
        /// The rule that the assertion holds, `R1` … `R15`; empty if it names none.
        rule: String,
        /// Its text, and where it stands.
        message: String,
        /// Clock cycle since the device was made.
        cycle: u64,
    },
    /// The memory side saw the device break AXI or a rule of the contract.
    #[error("{rule} {message}; seen on the AXI port in cycle {cycle}")]
    Memory {
        /// `AXI`, or the rule.
        rule: String,
        /// What was seen.
        message: String,
        /// Clock cycle since the device was made.
        cycle: u64,
    },
    /// The register port did not answer in time (R15).
    #[error("R15 {message}; gave up in cycle {cycle}")]
    Silent {
        /// Who waited for what.
        message: String,
        /// Clock cycle since the device was made.
        cycle: u64,
    },
    /// The simulator itself cannot go on.
    #[error("simulator: {message}")]
    Simulator {
        /// What it said.
        message: String,
    },
    /// No RTL with enough workers was built.
    #[error(
        "no RTL with {wanted} workers was built, only with {}: add it to DOORBELL_RTL_WORKERS (1 to 16) and build again",
        join(built)
    )]
    NotBuilt {
        /// Workers asked for.
        wanted: u32,
        /// Variants that exist.
        built: Vec<u32>,
    },
    /// A configuration value outside its range.
    #[error("{field} is {value}: it must be {expected}")]
    Config {
        /// Field of the configuration.
        field: &'static str,
        /// What it held.
        value: String,
        /// The range, in words.
        expected: &'static str,
    },
}

impl CosimError {
    pub(crate) fn from_failure(failure: ffi::Failure) -> Option<Self> {
        let ffi::Failure { kind, rule, message, cycle } = failure;
        match kind {
            ffi::FailureKind::None => None,
            ffi::FailureKind::Assertion => Some(Self::Assertion { rule, message, cycle }),
            ffi::FailureKind::Memory => Some(Self::Memory { rule, message, cycle }),
            ffi::FailureKind::Timeout => Some(Self::Silent { message, cycle }),
            _ => Some(Self::Simulator { message }),
        }
    }

    /// The rule that was broken, as in `R4`; `AXI` for the bus protocol; `None` if it is none of the device's.
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Assertion { rule, .. } | Self::Memory { rule, .. } => {
                Some(rule.as_str()).filter(|rule| !rule.is_empty())
            }
            Self::Silent { .. } => Some("R15"),
            _ => None,
        }
    }
}

impl From<CosimError> for DeviceError {
    fn from(error: CosimError) -> Self {
        let device = NAME.to_owned();
        match error {
            CosimError::Assertion { .. } | CosimError::Memory { .. } | CosimError::Silent { .. } => {
                Self::Assertion { device, message: error.to_string().trim_start().to_owned() }
            }
            _ => Self::Unavailable { device, reason: error.to_string() },
        }
    }
}

fn join(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
