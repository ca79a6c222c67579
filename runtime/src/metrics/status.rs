//! A run as others see it: one struct, which is the JSON of `/status.json`, and which the Prometheus text is made of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::workers::Workers;
use super::{BusyTime, Collected, CounterValues, Counters, ScoreSum, WorkerTime};
use crate::events::{Clock, Report, Ticks};
use crate::reward::Loads;

/// Everything that a run counts and measures. Shared by its threads; the hot thread touches `counters.hot`, `scores` and
/// `hot_time` alone.
#[derive(Debug)]
pub struct Metrics {
    /// The counters.
    pub counters: Counters,
    /// The last scores of rollouts, all together.
    pub scores: ScoreSum,
    /// What the hot thread did with its time.
    pub hot_time: BusyTime,
    /// What the judges' threads do with their time.
    judges: Option<Loads>,
    /// What the device's workers did, where it is shown.
    pub(crate) workers: Option<Workers>,
    about: String,
    clock: Clock,
    started: Ticks,
    ended: AtomicBool,
    report: Mutex<Report>,
}

impl Metrics {
    /// Nothing counted yet. `about` says what runs, for those who look at it; `judges` are those on threads of their own.
    pub fn new(about: &str, clock: Clock, judges: Option<Loads>) -> Self {
        Self {
            counters: Counters::default(),
            scores: ScoreSum::default(),
            hot_time: BusyTime::default(),
            judges,
            workers: None,
            about: about.to_owned(),
            started: clock.now(),
            clock,
            ended: AtomicBool::new(false),
            report: Mutex::default(),
        }
    }

    /// Shows also what each worker of the device did. Whoever looks asks the hot thread, which then reads the device's counters:
    /// this takes the device's time and allocates.
    #[must_use]
    pub fn with_workers(self) -> Self {
        Self { workers: Some(Workers::default()), ..self }
    }

    /// Shows what the device's workers did. The pipeline calls it for whoever asked; after its last turn, whoever has the device.
    pub fn show_workers(&self, workers: Vec<WorkerTime>) {
        if let Some(shown) = &self.workers {
            shown.show(workers);
        }
    }

    /// Shows a newer report of the events. Only the collector's thread calls it.
    pub fn publish(&self, report: Report) {
        let Collected { events_recorded, events_dropped } = &self.counters.collected;
        events_recorded.add(report.recorded.saturating_sub(events_recorded.get()));
        events_dropped.add(report.dropped.saturating_sub(events_dropped.get()));
        // A reader that panicked has not changed it.
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Shows that the run is over.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// What is known now, after the hot thread was asked for the device's workers and has had `patience` to answer.
    pub fn status_within(&self, patience: Duration) -> Status {
        match &self.workers {
            Some(workers) if !self.ended.load(Ordering::Acquire) => {
                Status { workers: workers.ask(patience), ..self.status() }
            }
            _ => self.status(),
        }
    }

    /// What is known now. Of the device's workers it is what the hot thread answered last.
    pub fn status(&self) -> Status {
        // First, so that who sees the end sees the last figures, too.
        let ended = self.ended.load(Ordering::Acquire);
        let busy = |name: String, time: &BusyTime| ThreadTime {
            name,
            busy_ns: self.clock.ticks_as_nanos(time.busy.get()),
            idle_ns: self.clock.ticks_as_nanos(time.idle.get()),
        };
        let loads = self.judges.as_ref().map(Loads::get).unwrap_or_default();
        let judges = loads.iter().enumerate().map(|(k, load)| ThreadTime {
            name: format!("judge {k}"),
            busy_ns: load.busy.as_nanos() as u64,
            idle_ns: load.alive.saturating_sub(load.busy).as_nanos() as u64,
        });
        Status {
            about: self.about.clone(),
            ended,
            uptime_ns: self.clock.nanos(self.started, self.clock.now()),
            counters: self.counters.values(),
            score_sum: self.scores.get(),
            threads: std::iter::once(busy("hot".to_owned(), &self.hot_time)).chain(judges).collect(),
            workers: self.workers.as_ref().map(Workers::last).unwrap_or_default(),
            events: self.report.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// A run at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What runs.
    pub about: String,
    /// Whether it is over.
    pub ended: bool,
    /// Since when it runs.
    pub uptime_ns: u64,
    /// The counters.
    pub counters: CounterValues,
    /// Sum of the last scores of all rollouts that were scored.
    #[serde(default)]
    pub score_sum: f64,
    /// The hot thread first, then the judges.
    pub threads: Vec<ThreadTime>,
    /// The workers of the device, by number; empty where the device does not count them, or they are not shown.
    #[serde(default)]
    pub workers: Vec<WorkerTime>,
    /// What the events say.
    pub events: Report,
}

impl Status {
    /// Mean of the last scores; `None` before there is one.
    pub fn mean_score(&self) -> Option<f64> {
        let CounterValues { scored_host, scored_resident, scored_device, .. } = self.counters;
        let count = scored_host.saturating_add(scored_resident).saturating_add(scored_device);
        (count > 0).then(|| self.score_sum / count as f64)
    }
}

/// What a thread did with its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// The thread.
    pub name: String,
    /// Time with work.
    pub busy_ns: u64,
    /// Time without.
    pub idle_ns: u64,
}

impl ThreadTime {
    /// Share of the time without work, 0 to 1; `None` if it has not begun.
    pub fn idle_share(&self) -> Option<f64> {
        let all = self.busy_ns + self.idle_ns;
        (all != 0).then(|| self.idle_ns as f64 / all as f64)
    }
}
