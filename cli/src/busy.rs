//! A line that says what takes long, while it does and somebody watches.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// How long something may take without a word.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line moves.
const TICK: Duration = Duration::from_millis(100);

/// The line, on standard error. It comes after a second, and goes when this is dropped.
#[derive(Debug)]
pub struct Busy {
    /// Ends the thread that shows it.
    bar: Option<(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
}

impl Busy {
    /// Says `what` as long as it lives.
    pub fn new(what: impl Into<String>) -> Self {
        if !output::shows_progress() {
            return Self { bar: None };
        }
        let what = output::plain(&what.into());
        let (end, ended) = std::sync::mpsc::channel();
        let show = move || {
            if ended.recv_timeout(PATIENCE) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("the template is valid");
            bar.set_style(style);
            bar.set_message(what);
            while ended.recv_timeout(TICK) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                bar.tick();
            }
            bar.finish_and_clear();
        };
        Self { bar: Some((end, std::thread::spawn(show))) }
    }

    /// Says `what` while `work` runs.
    pub fn during<T>(what: impl Into<String>, work: impl FnOnce() -> T) -> T {
        let _busy = Self::new(what);
        work()
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if let Some((end, thread)) = self.bar.take() {
            drop(end);
            // A line that cannot be drawn is no reason to end.
            let _ = thread.join();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.clear();
    }
}
