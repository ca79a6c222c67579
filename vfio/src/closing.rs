//! What a client sent is closed on a thread of its own.
//!
//! A close may take as long as whoever made the file likes: a TCP socket lingers, a file system in user space does not answer. The
//! server's thread would wait for that, and with it every other client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Files of one function that wait to be closed, at most, before nothing more is read of its client. One message may bring more.
const MOST: usize = 16;

/// Closes the files of one function, in their order.
#[derive(Clone)]
pub(crate) struct Closing {
    /// `None` where the system gave no thread.
    sender: Option<Sender<(usize, Box<dyn Send>)>>,
    pending: Arc<AtomicUsize>,
}

impl Closing {
    /// A thread that waits for what there is to close. It ends once every clone has gone.
    pub fn new() -> Self {
        let pending = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel::<(usize, Box<dyn Send>)>();
        let done = pending.clone();
        let closes = move || {
            for (files, what) in receiver {
                drop(what);
                done.fetch_sub(files, Ordering::Release);
            }
        };
        let started = thread::Builder::new().name("doorbell-close".to_owned()).spawn(closes);
        Self { sender: started.is_ok().then_some(sender), pending }
    }

    /// Closes `what`, which holds so many files.
    pub fn close(&self, files: usize, what: impl Send + 'static) {
        // Without a thread it is closed here.
        let Some(sender) = &self.sender else { return };
        self.pending.fetch_add(files, Ordering::Relaxed);
        let _ = sender.send((files, Box::new(what)));
    }

    /// Whether something is not closed yet.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Whether so much is not closed yet that its client has to wait.
    pub fn is_full(&self) -> bool {
        self.pending.load(Ordering::Acquire) > MOST
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::time::{Duration, Instant};

    use super::*;

    /// Its drop waits for a word.
    struct Lingers(Receiver<()>);

    impl Drop for Lingers {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn what_does_not_close_holds_up_nobody_but_its_client() {
        let closing = Closing::new();
        let (lets_go, waits) = channel();
        closing.close(1, Lingers(waits));
        closing.close(MOST - 1, ());
        assert!(closing.is_pending() && !closing.is_full());
        closing.close(1, ());
        assert!(closing.is_full());
        lets_go.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while closing.is_pending() {
            assert!(Instant::now() < deadline, "what could be closed was not");
            thread::yield_now();
        }
        assert!(!closing.is_full());
    }
}
