//! SIGINT and SIGTERM, by which a run is to end in order.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// What came of them.
pub struct Signals {
    /// The first that has come, or 0.
    signal: Arc<AtomicUsize>,
}

impl Signals {
    /// From now on the first of them is noted here, and another one ends the process as ever.
    ///
    /// # Errors
    /// If the system refuses that.
    pub fn catch() -> Result<Signals, Failure> {
        let (signal, again) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for number in [SIGINT, SIGTERM] {
            let caught = flag::register_conditional_default(number, again.clone())
                .and_then(|_| flag::register(number, again.clone()))
                .and_then(|_| flag::register_usize(number, signal.clone(), number as usize));
            caught.map_err(|error| Failure::failed(format!("signals cannot be caught: {error}")))?;
        }
        Ok(Signals { signal })
    }

    /// Whether one has come.
    #[inline]
    pub fn come(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// What the process exits with then: 128 and the signal's number.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(128 + self.signal.load(Ordering::Relaxed) as u8)
    }
}
