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

    /// A kernel is about to start. Returns behind what is being freed, which is soon: nothing runs meanwhile.
    pub fn kernel_starts(&self) {
        self.with(|state| state.running += 1);
    }

    /// A kernel has ended. Whatever waited for the last one is freed.
    pub fn kernel_ended(&self) {
        self.with(|state| {
            state.running = state.running.saturating_sub(1);
            if state.running == 0 {
                state.graves.drain(..).for_each(|free| free());
            }
        });
    }

    /// Frees something: now, or when no kernel runs any more. No kernel starts meanwhile, which CUDA would wait for. `free` buries nothing.
    pub fn free(&self, free: impl FnOnce() + Send + 'static) {
        self.with(|state| match state.running {
            0 => free(),
            _ => state.graves.push(Box::new(free)),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// CUDA would wait for a kernel that starts while something is being freed.
    #[test]
    fn no_kernel_starts_while_something_is_freed() {
        use std::sync::mpsc::channel;
        use std::time::Duration;

        for at_the_end in [false, true] {
            let graveyard = Arc::new(Graveyard::new());
            let ((freeing, frees), (let_go, may_go), (started, starts)) = (channel(), channel(), channel());
            let free = move || {
                freeing.send(()).unwrap();
                may_go.recv().unwrap();
            };
            if at_the_end {
                graveyard.kernel_starts();
            }
            let other = graveyard.clone();
            let freer = std::thread::spawn(move || {
                other.free(free);
                if at_the_end {
                    other.kernel_ended();
                }
            });
            frees.recv().unwrap();
            let other = graveyard.clone();
            let starter = std::thread::spawn(move || {
                other.kernel_starts();
                started.send(()).unwrap();
            });
            assert!(starts.recv_timeout(Duration::from_millis(200)).is_err(), "a kernel starts meanwhile");
            let_go.send(()).unwrap();
            starts.recv_timeout(Duration::from_secs(30)).unwrap();
            freer.join().unwrap();
            starter.join().unwrap();
        }
    }

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
