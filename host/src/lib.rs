//! Doorbell's host side: the driver of a queue pair, over any platform.
//!
//! A [`device::Device`] takes work orders ([`contract::HwDesc`]) and returns results ([`contract::HwCompletion`]).
//! [`driver::Driver`] implements it once, over any [`platform::Platform`].

pub mod config;
pub mod device;
pub mod driver;
pub mod error;
pub mod memory;
pub mod platform;
pub mod queue;
pub mod registers;
pub mod sharded;

pub use doorbell_contract as contract;

pub use config::QueueConfig;
pub use device::{Counters, Device, TokenRegion};
pub use driver::Driver;
pub use error::DeviceError;
pub use memory::SharedMemory;
pub use platform::Platform;
pub use sharded::Sharded;
