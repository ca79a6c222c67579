//! Language models as others publish them. The importers make [`float::Model`](doorbell_lm::float::Model) of GGUF files and of directories of
//! Hugging Face. [`text`] has the tokeniser and the chat template.
//!
//! Whatever they are given, they neither panic nor take more than the [limits](doorbell_lm::limits) say.

mod contained;
mod import;
pub mod text;

pub use contained::contains;
pub use import::{Imported, import, import_gguf, import_update};
