//! What may only be freed when no kernel runs.
//!
//! CUDA frees memory only once every running kernel of the process has ended, on whichever GPU, and a kernel of ours runs
//! until its device is closed: the last clone of a token region, dropped while another device runs, would wait for it.
//! What is dropped then is buried, and freed when the last kernel has ended.

use std::sync::{Mutex, PoisonError};

/// Frees something.
type Grave = Box<dyn FnOnce() + Send>;

/// What waits for kernels to end.
pub(crate) struct Graveyard(Mutex<State>);

struct State {
    /// Kernels that run, or may still run.
    running: usize,
    graves: Vec<Grave>,
}

/// The one of this process.
pub(crate) static GRAVEYARD: Graveyard = Graveyard::new();

impl Graveyard {
    const fn new() -> Self {
        Self(Mutex::new(State { running: 0, graves: Vec::new() }))
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A kernel is about to start.
    pub fn kernel_starts(&self) {
        self.with(|state| state.running += 1);
    }

    /// A kernel has ended. Whatever waited for the last one is freed.
    pub fn kernel_ended(&self) {
        let graves = self.with(|state| {
            state.running = state.running.saturating_sub(1);
            if state.running == 0 { std::mem::take(&mut state.graves) } else { Vec::new() }
        });
        graves.into_iter().for_each(|free| free());
    }

    /// Frees something: now, or when no kernel runs any more.
    pub fn free(&self, free: impl FnOnce() + Send + 'static) {
        let now = self.with(|state| {
            if state.running == 0 {
                return Some(Box::new(free) as Grave);
            }
            state.graves.push(Box::new(free));
            None
        });
        if let Some(free) = now {
            free();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn nothing_is_freed_while_any_kernel_runs() {
        let graveyard = Graveyard::new();
        let freed = Arc::new(AtomicU32::new(0));
        let bury = || {
            let freed = freed.clone();
            graveyard.free(move || {
                freed.fetch_add(1, Ordering::Relaxed);
            });
        };
        let count = || freed.load(Ordering::Relaxed);
        bury();
        assert_eq!(count(), 1, "no kernel runs");
        graveyard.kernel_starts();
        graveyard.kernel_starts();
        bury();
        bury();
        assert_eq!(count(), 1, "two kernels run");
        graveyard.kernel_ended();
        assert_eq!(count(), 1, "one still runs");
        bury();
        graveyard.kernel_ended();
        assert_eq!(count(), 4);
        bury();
        assert_eq!(count(), 5);
    }
}
