//! Language models as others publish them. The importers make [`float::Model`](doorbell_lm::float::Model) of GGUF files and of directories of
//! Hugging Face. [`text`] has the tokeniser and the chat template.
//!
//! Whatever they are given, they neither panic nor take more than the [limits](doorbell_lm::limits) say.

/// Number of what the importers make. It is raised whenever they, or the integers that follow, come out otherwise for a file that was imported before:
/// what was kept of an import has it in its name.
pub const IMPORTER: u32 = 3;

mod contained;
mod import;
pub mod text;

pub use contained::contains;
pub use import::{Imported, import, import_gguf, import_update};
