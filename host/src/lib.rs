//! Doorbell's host side: the wire contract, the driver of a queue pair, and the golden model.
//!
//! A [`device::Device`] takes work orders ([`contract::HwDesc`]) and returns results ([`contract::HwCompletion`]).
//! [`driver::Driver`] implements it once, over any [`platform::Platform`]; [`model::ModelPlatform`] is the platform
//! that is pure Rust and the executable specification of the rules in `docs/contract.md`.

pub mod compare;
pub mod config;
pub mod conformance;
pub mod contract;
pub mod device;
pub mod driver;
pub mod error;
pub mod memory;
pub mod model;
pub mod platform;
pub mod policy;
pub mod queue;
pub mod registers;
pub mod replay;
pub mod sharded;
pub mod throughput;
pub mod trace;

pub use config::QueueConfig;
pub use device::{Counters, Device, TokenRegion};
pub use driver::Driver;
pub use error::DeviceError;
pub use memory::SharedMemory;
pub use model::ModelPlatform;
pub use platform::Platform;
pub use sharded::Sharded;
