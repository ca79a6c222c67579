//! What Doorbell's devices are held against: the golden [`model`], the [`replay`] of traces, the [`mod@compare`]
//! of what devices did with one, and the [`conformance`] suite, which states the rules of `docs/contract.md` as cases.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use doorbell_host::{Device, Driver};
//! use doorbell_trace::Generator;
//! use doorbell_verify::ModelPlatform;
//! use doorbell_verify::compare::compare;
//! use doorbell_verify::replay::{ReplayOptions, ReplayPlan};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let trace = Generator::new(20, 5, 3).generate()?;
//! let plan = ReplayPlan::new(&trace, ReplayOptions { checkpoint: 16, ..ReplayOptions::default() })?;
//! let mut devices: Vec<Box<dyn Device>> = Vec::new();
//! for depth in [8, 1024] {
//!     let config = doorbell_host::QueueConfig { sq_depth: depth, cq_depth: depth, ..plan.queue_config() };
//!     devices.push(Box::new(Driver::new(ModelPlatform::new(), config)?));
//! }
//! for outcome in compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(())) {
//!     assert!(outcome.agrees(), "{outcome:?}");
//! }
//! # Ok(())
//! # }
//! ```

pub mod chaos;
pub mod compare;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod groups;
pub mod language;
pub mod life;
pub mod lockstep;
pub mod model;
pub mod oracle;
pub mod replay;

pub use model::ModelPlatform;
