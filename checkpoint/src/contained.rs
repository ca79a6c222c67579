//! Panics of libraries that read untrusted bytes.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static CONTAINS: Cell<bool> = const { Cell::new(false) };
}

/// Turns a panic within such a library into an error. The process's panic hook runs as for any panic; it may ask [`contains`].
///
/// # Errors
/// What the panic said.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CONTAINS.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| said(&*panic));
    CONTAINS.set(outer);
    result
}

/// Whether a panic of this thread would become an error now, so that a panic hook need not print it.
pub fn contains() -> bool {
    CONTAINS.get()
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(contained(|| 3), Ok(3));
        assert_eq!(contained(|| -> u8 { panic!("of {}", 1) }), Err("of 1".into()));
        assert_eq!(contained(|| (contained(contains), contains())), Ok((Ok(true), true)));
        assert!(!contains());
    }
}
