//! What can go wrong between a host and a device: each error says what, where, and what to do next.

use doorbell_contract::Register;

use crate::placement::Placement;
use crate::why::{Root, Why};

/// Any failure of a driver, a platform or a device as a whole.
///
/// A malformed descriptor is not one of these: it completes as ERROR (R10).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A ring depth that no queue pair can have.
    #[error(
        "{field} is {value}: a ring has a power of two of slots, from 2 to 65536; the nearest: {}",
        nearest_depths(*value)
    )]
    RingDepth {
        /// Field of the configuration.
        field: &'static str,
        /// What it held.
        value: u32,
    },

    /// A configuration value outside its range.
    #[error("{field} is {value}: it must be {expected}")]
    Config {
        /// Field of the configuration.
        field: &'static str,
        /// What it held.
        value: u64,
        /// The range, in words.
        expected: String,
    },

    /// The device cannot be had: not built, not found, no memory.
    #[error("{device} is not available: {reason}")]
    Unavailable {
        /// Name of the device.
        device: String,
        /// Why, and what to do about it.
        reason: String,
    },

    /// The ID register does not name a Doorbell device.
    #[error(
        "{device}: register ID reads {found:#010x} instead of {expected:#010x}: no Doorbell device answers there"
    )]
    NotADevice {
        /// Name of the device.
        device: String,
        /// What ID read.
        found: u32,
        /// What it must read.
        expected: u32,
    },

    /// The device speaks another major version of the contract.
    #[error(
        "{device}: contract version {}.{} instead of {}.{}: rebuild host and device from one contract.toml",
        found >> 16, found & 0xFFFF, expected >> 16, expected & 0xFFFF
    )]
    Version {
        /// Name of the device.
        device: String,
        /// What VERSION read.
        found: u32,
        /// What this driver was built for.
        expected: u32,
    },

    /// The device answered a register write with SLVERR; it changed nothing.
    #[error(
        "{device}: write of {value:#010x} to {register} ({:#07x}) was refused (SLVERR): the register is \
         read-only, or read-only while the device is active; or the value is out of range; or the queue pair is inactive or \
         drains (R12). See docs/contract.md, Registers",
        *register as u32
    )]
    WriteRefused {
        /// Name of the device.
        device: String,
        /// The register.
        register: Register,
        /// The refused value.
        value: u32,
    },

    /// The same, of an index of a queue pair that is not as this driver left it.
    #[error(
        "{device}: write of {value:#010x} to {register} was refused (SLVERR): {root}; disable and enable the device, or open it again"
    )]
    Refused {
        /// Name of the device.
        device: String,
        /// The register.
        register: Register,
        /// The refused value.
        value: u32,
        /// Why.
        root: Box<Root>,
    },

    /// The device answered a register read with SLVERR.
    #[error(
        "{device}: read of {register} ({:#07x}) was refused (SLVERR): the device does not have it; see docs/contract.md, \
         Registers",
        *register as u32
    )]
    ReadRefused {
        /// Name of the device.
        device: String,
        /// The register.
        register: Register,
    },

    /// ENABLE was refused, or the device did not become active.
    #[error("{device} did not start: {reason}")]
    NotStarted {
        /// Name of the device.
        device: String,
        /// What the device said.
        reason: String,
    },

    /// An operation that needs an enabled device.
    #[error("{device} is disabled: call enable() before {operation}")]
    Disabled {
        /// Name of the device.
        device: String,
        /// What was asked for.
        operation: &'static str,
    },

    /// A bounded wait ran out (R15).
    #[error("{0}")]
    Timeout(Box<Timeout>),

    /// The device broke the contract in a way that the driver can see.
    #[error("{device} broke {rule}: {what}; the queue pair is lost: disable and enable the device")]
    Protocol {
        /// Name of the device.
        device: String,
        /// The rule, as in `R3`.
        rule: &'static str,
        /// What was seen.
        what: String,
    },

    /// An assertion inside the device failed.
    #[error("{device}: assertion failed: {message}")]
    Assertion {
        /// Name of the device.
        device: String,
        /// The assertion's text, which begins with its rule.
        message: String,
    },

    /// The device is dead: it will answer nothing more.
    #[error("{device} has failed: {what}")]
    Failed {
        /// Name of the device.
        device: String,
        /// What is known of it, and what to do.
        what: String,
    },

    /// A byte range outside the memory or region that it names.
    #[error(
        "{bytes} bytes at offset {offset:#x} do not fit the {what} of {size:#x} bytes, or are misaligned"
    )]
    OutOfBounds {
        /// Which memory.
        what: &'static str,
        /// Byte offset.
        offset: u64,
        /// Length of the range.
        bytes: u64,
        /// Size of the memory.
        size: u64,
    },

    /// One of several devices that are used as one.
    #[error("shard {shard} (of 0 to {}): {error}", shards - 1)]
    Shard {
        /// Which, counted from 0.
        shard: usize,
        /// How many there are.
        shards: usize,
        /// What happened to it.
        error: Box<DeviceError>,
    },

    /// Memory for the queue pair could not be had.
    #[error("{bytes} bytes of shared memory could not be mapped: {reason}; ask for smaller regions")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the system said.
        reason: String,
    },

    /// Memory for the queue pair could not be placed as it was asked for.
    #[error("{bytes} bytes of shared memory cannot be placed as {placement}: {reason}")]
    Placement {
        /// How much was asked for.
        bytes: usize,
        /// How it was to be placed.
        placement: Placement,
        /// What the machine lacks, and what to do about it.
        reason: String,
    },
}

/// Who waited for what, and what could be seen, when a bounded wait ran out (R15).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device}: {waited_for} did not happen within {patience} advances: {in_flight} in flight, SQ tail {sq_tail:#x}, \
     SQ head {sq_head:#x}, CQ head {cq_head:#x}; device: STATE {state}, STATUS {status}, ERROR {fault}, consumed \
     {consumed}, completed {completed}, tokens {tokens}{report}{}; disable and enable the device, or raise the patience",
    why.as_ref().map(|why| format!("; why: {}", why.root)).unwrap_or_default()
)]
pub struct Timeout {
    /// Name of the device.
    pub device: String,
    /// The event that did not come.
    pub waited_for: &'static str,
    /// For how many advances without progress the driver waited.
    pub patience: u32,
    /// Descriptors submitted and not completed.
    pub in_flight: usize,
    /// Running index of the next free SQ slot.
    pub sq_tail: u32,
    /// SQ slots that the device was last seen to have consumed, a running index.
    pub sq_head: u32,
    /// Running index of the completion waited for.
    pub cq_head: u32,
    /// STATE, decoded.
    pub state: String,
    /// STATUS, decoded.
    pub status: String,
    /// ERROR, decoded.
    pub fault: String,
    /// Counter DESCRIPTORS.
    pub consumed: u64,
    /// Counter COMPLETIONS.
    pub completed: u64,
    /// Counter TOKENS.
    pub tokens: u64,
    /// What the platform knows beside, behind a semicolon, or nothing.
    pub report: String,
    /// Who waits for whom; none where the wait was for STATE.
    pub why: Option<Why>,
}

fn nearest_depths(value: u32) -> String {
    match value {
        0..=2 => "2".to_owned(),
        65_536.. => "65536".to_owned(),
        _ => {
            let above = value.next_power_of_two();
            format!("{} and {above}", above / 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, "sq_depth is 0: a ring has a power of two of slots, from 2 to 65536; the nearest: 2")]
    #[case(
        1000,
        "sq_depth is 1000: a ring has a power of two of slots, from 2 to 65536; the nearest: 512 and 1024"
    )]
    #[case(1 << 20, "sq_depth is 1048576: a ring has a power of two of slots, from 2 to 65536; the nearest: 65536")]
    fn a_bad_depth_names_its_neighbours(#[case] value: u32, #[case] message: &str) {
        assert_eq!(DeviceError::RingDepth { field: "sq_depth", value }.to_string(), message);
    }

    #[test]
    fn a_refused_write_names_the_register() {
        let error =
            DeviceError::WriteRefused { device: "model".into(), register: Register::CqHead, value: 5 };
        assert!(error.to_string().starts_with("model: write of 0x00000005 to CQ_HEAD (0x20004) was refused"));
    }
}
