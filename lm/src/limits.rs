//! What a file that others made may cost. Importer, tokeniser and chat templates take their limits from here.
//!
//! Each limit can be raised by an environment variable, which its error names.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// A bound of what a file may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is bounded.
    pub what: &'static str,
    /// The environment variable that sets it.
    pub variable: &'static str,
    /// The bound where the variable is not set.
    pub usual: u64,
}

/// Bytes of a JSON file: config.json, tokenizer.json, an index of shards.
pub const JSON_BYTES: Limit =
    Limit { what: "bytes of a JSON file", variable: "DOORBELL_LIMIT_JSON_BYTES", usual: 256 << 20 };
/// Bytes of a chat template.
pub const TEMPLATE_BYTES: Limit =
    Limit { what: "bytes of a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_BYTES", usual: 1 << 20 };
/// Instructions that a chat template executes.
pub const TEMPLATE_STEPS: Limit =
    Limit { what: "steps of a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_STEPS", usual: 2_000_000 };
/// Bytes that a chat template writes.
pub const TEMPLATE_OUTPUT: Limit = Limit {
    what: "bytes that a chat template writes",
    variable: "DOORBELL_LIMIT_TEMPLATE_OUTPUT",
    usual: 16 << 20,
};
/// Macros, includes and loops of a chat template within each other.
pub const TEMPLATE_DEPTH: Limit =
    Limit { what: "depth of a chat template", variable: "DOORBELL_LIMIT_TEMPLATE_DEPTH", usual: 100 };

impl Limit {
    /// The bound that holds.
    pub fn value(self) -> u64 {
        let set = std::env::var(self.variable).ok().and_then(|text| text.parse().ok());
        set.unwrap_or(self.usual)
    }

    /// What was exceeded, and how to raise it.
    pub fn exceeded(self) -> String {
        format!("more than {} {} (raise it with {}=N)", self.value(), self.what, self.variable)
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Turns a panic within a library that reads untrusted bytes into an error, without a message of the panic on standard error.
///
/// # Errors
/// What the panic said.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(outer);
    result.map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it panicked".to_owned())
}
