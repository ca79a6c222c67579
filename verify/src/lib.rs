//! What Doorbell's devices are held against: the golden [`model`], the [`replay`] of traces, the [`mod@compare`]
//! of what devices did with one, and the [`conformance`] suite, which states the rules of `docs/contract.md` as cases.

pub mod compare;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod model;
pub mod replay;

pub use model::ModelPlatform;
