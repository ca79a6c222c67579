//! Doorbell's host side: the driver of a queue pair, over any platform.
//!
//! A [`device::Device`] takes work orders ([`contract::HwDesc`]) and returns results ([`contract::HwCompletion`]).
//! [`driver::Driver`] implements it once, over any [`platform::Platform`].
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use doorbell_host::contract::{HwCompletion, HwDesc, Status};
//! use doorbell_host::{Device, Driver, QueueConfig};
//! use doorbell_verify::ModelPlatform; // or a platform of your own
//!
//! # fn main() -> Result<(), doorbell_host::DeviceError> {
//! let mut device = Driver::new(ModelPlatform::new(), QueueConfig::default())?;
//! let decode = HwDesc::decode(7, 100, 32).with_user_data(1);
//! assert_eq!(device.submit(&[decode])?, 1);
//!
//! let mut completions = [HwCompletion::default(); 16];
//! while device.in_flight() > 0 {
//!     device.wait(Instant::now() + Duration::from_secs(1))?;
//!     let count = device.collect(&mut completions)?;
//!     for completion in &completions[..count] {
//!         assert_eq!((completion.user_data, completion.status), (1, Status::Done as u8));
//!         let mut tokens = vec![0; (completion.final_seq_len - decode.seq_len) as usize];
//!         device.tokens(decode.delta_offset, &mut tokens)?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod attendant;
pub mod config;
pub mod device;
pub mod driver;
pub mod error;
mod function_memory;
pub mod language;
mod ledger;
pub mod memory;
pub mod placement;
pub mod platform;
pub mod ports;
pub mod queue;
pub mod registers;
pub mod sharded;
pub mod split;
pub mod why;

pub use doorbell_contract as contract;

pub use config::QueueConfig;
pub use device::{Counters, Device, Features, QueueCounters, TokenRegion, WorkerCounters};
pub use driver::Driver;
pub use error::DeviceError;
pub use function_memory::{FunctionMemory, Move, Mover};
pub use language::LanguageRegions;
pub use memory::SharedMemory;
pub use placement::Placement;
pub use platform::{Awaited, Platform};
pub use ports::{Division, Line, Pages, Ports, QueuePort, SharedDevice};
pub use sharded::Sharded;
pub use split::{Completer, Submitter};
pub use why::Root;
