//! SIGINT and SIGTERM, by which a run is to end in order.

#[cfg(feature = "bench")]
use std::io::Read;
#[cfg(feature = "bench")]
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
#[cfg(feature = "bench")]
use signal_hook::low_level;

use crate::failure::Failure;

/// From now on `work` is done on a thread of its own when one of them comes, and then it ends the process as ever.
///
/// # Errors
/// If the system refuses that.
#[cfg(feature = "bench")]
pub fn before_the_end(work: fn()) -> Result<(), Failure> {
    for number in [SIGINT, SIGTERM] {
        let caught = UnixStream::pair().and_then(|(mut come, goes)| {
            low_level::pipe::register(number, goes)?;
            std::thread::Builder::new().name("signal".into()).spawn(move || {
                // One byte for each that has come.
                if come.read_exact(&mut [0]).is_ok() {
                    work();
                    let _ = low_level::emulate_default_handler(number);
                }
            })
        });
        caught.map_err(|error| Failure::failed(format!("signals cannot be caught: {error}")))?;
    }
    Ok(())
}

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
