//! The thread that collects events.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Metrics;
use crate::events::{Collector, Perfetto, Report, Ticks};

/// How long it sleeps when there was nothing to take in. The ring has to hold what is recorded meanwhile.
const SLEEP: Duration = Duration::from_millis(1);
/// How often it shows a new report: making one takes milliseconds.
const PUBLISH: Duration = Duration::from_millis(250);

/// Takes in the events of a run on a thread of its own, shows a report of them in [`Metrics`], and writes a trace if one
/// is asked for.
#[derive(Debug)]
pub struct CollectorThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Report, io::Result<()>)>,
}

impl CollectorThread {
    /// Starts it.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start<W: Write + Send + 'static>(
        collector: Collector,
        metrics: Arc<Metrics>,
        trace: Option<Perfetto<W>>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("collector".to_owned())
            .spawn(move || run(collector, &metrics, Trace { open: trace, result: Ok(()) }, &stopped))?;
        Ok(Self { stop, thread })
    }

    /// Ends it, once the hot thread has ended: takes in what is left and hands back the last report, and whether
    /// the whole trace could be written; one that could not is a shorter trace, not a shorter report.
    ///
    /// # Panics
    /// If the collector's thread did.
    pub fn finish(self) -> (Report, io::Result<()>) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().expect("the collector does not panic")
    }
}

/// A trace that is written until that fails.
struct Trace<W: Write> {
    open: Option<Perfetto<W>>,
    result: io::Result<()>,
}

impl<W: Write> Trace<W> {
    fn write(&mut self, write: impl FnOnce(&mut Perfetto<W>) -> io::Result<()>) {
        if let Some(trace) = &mut self.open
            && let Err(error) = write(trace)
        {
            self.open = None;
            self.result = Err(error);
        }
    }

    /// What counters stood at, those that rise and fall and those whose slope tells something.
    fn counters(&mut self, now: Ticks, metrics: &Metrics) {
        let values = metrics.counters.values();
        let tokens = ("tokens_generated", values.tokens_generated);
        let blocks = ("kv_blocks_in_use", values.kv_blocks_in_use);
        let saved = ("kv_blocks_saved", values.kv_blocks_saved);
        self.write(|trace| {
            [tokens, blocks, saved].into_iter().try_for_each(|(name, value)| trace.counter(now, name, value))
        });
    }
}

fn run<W: Write>(
    mut collector: Collector,
    metrics: &Metrics,
    mut trace: Trace<W>,
    stopped: &AtomicBool,
) -> (Report, io::Result<()>) {
    let mut published = Instant::now();
    while !stopped.load(Ordering::Acquire) {
        let taken = collector.poll(|event| trace.write(|to| to.event(event)));
        collector.poll_lives(|life| trace.write(|to| to.life(life)));
        if published.elapsed() >= PUBLISH {
            published = Instant::now();
            trace.counters(collector.clock().now(), metrics);
            metrics.publish(collector.report());
        }
        if taken == 0 {
            thread::park_timeout(SLEEP);
        }
    }
    collector.finish_lives(|life| trace.write(|to| to.life(life)));
    let report = collector.finish(|event| trace.write(|to| to.event(event)));
    trace.counters(collector.clock().now(), metrics);
    metrics.publish(report.clone());
    let result = match trace.open {
        Some(open) => open.finish().map(drop),
        None => trace.result,
    };
    (report, result)
}
