//! How a co-simulation fails.

use doorbell_host::DeviceError;

use crate::bridge::ffi;
use crate::platform::NAME;

/// Workers that the RTL can be built with.
const MOST_WORKERS: u32 = 16;

/// A failure of the simulated device or of its surroundings. A device that failed is done: every later use of it
/// returns the same failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CosimError {
    /// The device broke a rule or AXI, or did not answer in time (R15).
    #[error("{rule} {message}{seen} cycle {cycle}")]
    Broken {
        /// The rule, `R1` … `R15`, or `AXI`; empty if an assertion names none.
        rule: String,
        /// What was seen; of an assertion its text, and where it stands.
        message: String,
        /// Who saw it, before the cycle.
        seen: &'static str,
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
        "no RTL with {wanted} workers was built, only with {}: {}",
        join(built),
        if *wanted > MOST_WORKERS { "it takes at most 16; give fewer" } else { "add it to DOORBELL_RTL_WORKERS and build again" }
    )]
    NotBuilt {
        /// Workers asked for.
        wanted: u32,
        /// Variants that exist.
        built: Vec<u32>,
    },
    /// No RTL with so many queue pairs or functions was built.
    #[error(
        "no RTL with {workers} workers, {queues} queue pairs, {functions} functions and {engines} engines was built: the feature `full` \
         of the program `doorbell` brings some: cargo build --release --package doorbell --features full"
    )]
    NoSuchDevice {
        /// Workers asked for.
        workers: u32,
        /// Queue pairs asked for.
        queues: u32,
        /// Functions asked for.
        functions: u32,
        /// Engines asked for.
        engines: u32,
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
        let (rule, seen) = match kind {
            ffi::FailureKind::None => return None,
            ffi::FailureKind::Assertion => (rule, ", in"),
            ffi::FailureKind::Memory => (rule, "; seen on the AXI port in"),
            ffi::FailureKind::Timeout => ("R15".to_owned(), "; gave up in"),
            _ => return Some(Self::Simulator { message }),
        };
        Some(Self::Broken { rule, message, seen, cycle })
    }
}

impl From<CosimError> for DeviceError {
    fn from(error: CosimError) -> Self {
        let device = NAME.to_owned();
        match error {
            CosimError::Broken { .. } => {
                Self::Assertion { device, message: error.to_string().trim_start().to_owned() }
            }
            _ => Self::Unavailable { device, reason: error.to_string() },
        }
    }
}

fn join(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
