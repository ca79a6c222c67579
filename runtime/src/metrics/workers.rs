//! What each worker of the device did, for those who look at a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use doorbell_contract::WorkerCounter;
use doorbell_host::WorkerCounters;
use serde::{Deserialize, Serialize};

/// A worker of the device, since the device was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTime {
    /// Tokens that it wrote.
    pub tokens: u64,
    /// Ticks of the device in which it had a descriptor.
    pub busy: u64,
    /// Ticks of those in which a result waited for the write port.
    pub held: u64,
}

impl From<&WorkerCounters> for WorkerTime {
    fn from(counters: &WorkerCounters) -> Self {
        let [tokens, busy, held] = [WorkerCounter::Tokens, WorkerCounter::Busy, WorkerCounter::StallWrite]
            .map(|name| counters.get(name));
        Self { tokens, busy, held }
    }
}

/// The workers' counters, on their way from the hot thread, which alone may read the device's registers, to who looks.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    asked: AtomicBool,
    last: Mutex<Vec<WorkerTime>>,
    answered: Condvar,
}

impl Workers {
    /// Whether somebody has asked since the last answer.
    #[inline]
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Answers whoever has asked.
    pub fn show(&self, workers: Vec<WorkerTime>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = workers;
        // Under the lock: who asks looks at it there, and begins to wait before it is let go.
        self.asked.store(false, Ordering::Relaxed);
        self.answered.notify_all();
    }

    /// Asks, waits for the answer for `patience` at most, and gives the newest that there is.
    pub fn ask(&self, patience: Duration) -> Vec<WorkerTime> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.asked.store(true, Ordering::Relaxed);
        let waited = self.answered.wait_timeout_while(last, patience, |_| self.asked());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// The newest answer.
    pub fn last(&self) -> Vec<WorkerTime> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_asks_gets_the_answer_or_the_last_one() {
        let workers = Workers::default();
        let [first, second] = [1, 2].map(|tokens| vec![WorkerTime { tokens, ..WorkerTime::default() }]);
        assert_eq!(workers.ask(Duration::ZERO), vec![], "nobody has answered yet");
        assert!(workers.asked());
        workers.show(first.clone());
        assert!(!workers.asked());
        assert_eq!(workers.ask(Duration::ZERO), first, "nobody answers: the last one");
        workers.show(first);
        let got = thread::scope(|scope| {
            let asks = scope.spawn(|| workers.ask(Duration::from_secs(60)));
            let patience = Instant::now() + Duration::from_secs(60);
            while !workers.asked() {
                assert!(Instant::now() < patience, "nobody asks");
                thread::yield_now();
            }
            workers.show(second.clone());
            asks.join().unwrap()
        });
        assert_eq!(got, second);
    }
}
