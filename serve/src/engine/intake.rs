//! Asks that wait for the hot thread, and those that live.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use doorbell_runtime::pipeline::{Next, PromptSource, Source, Terms};
use doorbell_trace::Request;
use tokio::sync::Notify;

use super::ask::{Finish, Job};
use super::control::Command;
use super::teller::Told;
use crate::fault;

/// How many times as long an answer that nobody watches goes on without a checkpoint. It has some, as a simulated device runs a DECODE in one go, and a
/// pause or an abort has to wait for that.
const SELDOM: u32 = 8;

/// Shared by whoever asks, the hot thread, and the teller.
#[derive(Debug, Default)]
pub(super) struct Intake {
    inner: Mutex<Inner>,
    /// Told whenever there is something for a hot thread that rests.
    wake: Condvar,
    /// Asks that wait: the hot thread looks at this in each turn.
    waiting: AtomicUsize,
    /// Whether asks wait although there is room.
    held: AtomicBool,
    /// Whether nothing more is taken.
    over: AtomicBool,
    /// Whether nobody is left who would tell of ends.
    gone: AtomicBool,
    /// How often the pipeline has asked for the next ask.
    looks: AtomicU64,
    /// Told whenever an ask has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: VecDeque<Job>,
    /// Asks that live, by ticket.
    live: HashMap<u64, Live>,
    next_ticket: u64,
    /// Something has come that a hot thread that rests does not see by itself.
    rung: bool,
}

#[derive(Debug)]
struct Live {
    /// The request's number, once admitted.
    number: Option<u64>,
    cancelled: Arc<AtomicBool>,
}

/// How many asks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Those that wait for room.
    pub waiting: usize,
    /// All that live, these among them.
    pub live: usize,
}

impl Intake {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an ask, which `job` makes of its ticket, unless `most` wait already or nothing is taken any more. With `None` any number may wait.
    pub fn ask(&self, most: Option<usize>, job: impl FnOnce(u64) -> Job) -> Result<u64, Refused> {
        let mut inner = self.lock();
        if self.over.load(Ordering::Acquire) {
            return Err(Refused::Over);
        }
        if most.is_some_and(|most| inner.jobs.len() >= most) {
            return Err(Refused::Full);
        }
        let ticket = inner.next_ticket;
        inner.next_ticket += 1;
        let job = job(ticket);
        inner.live.insert(ticket, Live { number: None, cancelled: job.cancelled.clone() });
        inner.jobs.push_back(job);
        self.waiting.fetch_add(1, Ordering::Release);
        drop(inner);
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Lets an ask end that waits; tells the number of one that was admitted, and `None` of one that has ended, or ends now.
    pub fn cancel(&self, ticket: u64) -> Option<u64> {
        let mut inner = self.lock();
        let live = inner.live.get(&ticket)?;
        // Of one that is the next to be admitted nobody else hears.
        live.cancelled.store(true, Ordering::Release);
        let number = live.number;
        if number.is_none()
            && let Some(place) = inner.jobs.iter().position(|job| job.ticket == ticket)
            && let Some(job) = inner.jobs.remove(place)
        {
            self.waiting.fetch_sub(1, Ordering::Release);
            inner.live.remove(&ticket);
            drop(inner);
            job.end(&Finish::Aborted);
            self.ended.notify_waiters();
            return None;
        }
        drop(inner);
        self.ring();
        number
    }

    /// All that live.
    pub fn tickets(&self) -> Vec<u64> {
        self.lock().live.keys().copied().collect()
    }

    /// Those of them that were admitted.
    pub fn running(&self) -> Vec<u64> {
        let inner = self.lock();
        inner.live.iter().filter_map(|(&ticket, live)| live.number.map(|_| ticket)).collect()
    }

    pub fn load(&self) -> Load {
        let inner = self.lock();
        Load { waiting: inner.jobs.len(), live: inner.live.len() }
    }

    /// An ask has ended.
    pub fn end(&self, ticket: u64) {
        self.lock().live.remove(&ticket);
        self.ended.notify_waiters();
    }

    /// Waits until none of `tickets` lives, or the run is over.
    pub async fn until_gone(&self, tickets: &[u64]) {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            let lives = {
                let inner = self.lock();
                tickets.iter().any(|ticket| inner.live.contains_key(ticket))
            };
            if !lives || self.gone.load(Ordering::Acquire) {
                return;
            }
            ended.await;
        }
    }

    /// Whether asks wait although there is room.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Release);
        self.ring();
    }

    /// Waits, by `wait`, until the pipeline has seen the last [`hold`](Self::hold): it admits nothing against it from then on. Returns false if the
    /// pipeline has ended.
    pub fn wait_until_seen(&self, wait: impl Fn()) -> bool {
        let before = self.looks.load(Ordering::Acquire);
        while self.looks.load(Ordering::Acquire) == before {
            if self.over.load(Ordering::Acquire) {
                return false;
            }
            wait();
        }
        true
    }

    /// Nobody is left who would tell of ends.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Takes nothing more, and ends what waits.
    pub fn close(&self, finish: &Finish) {
        self.over.store(true, Ordering::Release);
        let jobs = {
            let mut inner = self.lock();
            let jobs = std::mem::take(&mut inner.jobs);
            for job in &jobs {
                inner.live.remove(&job.ticket);
            }
            self.waiting.store(0, Ordering::Release);
            jobs
        };
        jobs.iter().for_each(|job| job.end(finish));
        self.ended.notify_waiters();
        self.ring();
    }

    /// Wakes a hot thread that rests.
    pub fn ring(&self) {
        self.lock().rung = true;
        self.wake.notify_one();
    }

    /// Rests until something comes, for so long at most.
    pub fn rest(&self, longest: Duration) {
        let inner = self.lock();
        let takes = !self.held.load(Ordering::Acquire);
        let nothing = |inner: &mut Inner| {
            !inner.rung && (inner.jobs.is_empty() || !takes) && !self.over.load(Ordering::Acquire)
        };
        let (mut inner, _) =
            self.wake.wait_timeout_while(inner, longest, nothing).unwrap_or_else(PoisonError::into_inner);
        inner.rung = false;
    }
}

/// Why an ask was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// As many wait as may.
    Full,
    /// The engine takes nothing more.
    Over,
}

/// The asks in order, for the pipeline.
pub(super) struct Queue {
    intake: Arc<Intake>,
    told: Sender<Told>,
    control: Sender<Command>,
    /// The one that is to be admitted next.
    current: Option<(Job, Request)>,
    prompt: Prompt,
    /// Tokens between checkpoints of asks that need them.
    checkpoint: u32,
}

/// The prompt of the ask that is to be admitted next.
#[derive(Clone, Debug, Default)]
pub(super) struct Prompt(Arc<Mutex<Vec<u32>>>);

impl PromptSource for Prompt {
    fn prompt(&mut self, _: u64, _: &Request, out: &mut [u32]) {
        let prompt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.copy_from_slice(&prompt);
    }
}

impl Queue {
    pub fn new(intake: Arc<Intake>, told: Sender<Told>, control: Sender<Command>, checkpoint: u32) -> Queue {
        Queue { intake, told, control, current: None, prompt: Prompt::default(), checkpoint }
    }

    pub fn prompt(&self) -> Prompt {
        self.prompt.clone()
    }

    /// Ends the ask that was to be admitted next: it is neither among those that wait nor with the teller.
    pub fn end(&mut self, finish: &Finish) {
        if let Some((job, _)) = self.current.take() {
            job.end(finish);
            self.intake.end(job.ticket);
        }
    }

    /// Takes the ask that is to be admitted next.
    fn take(&mut self) -> Option<()> {
        if self.current.is_some() {
            return Some(());
        }
        if self.intake.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let job = {
            let jobs = &mut self.intake.lock().jobs;
            let place = fault::first(jobs, |job| job.wait)?;
            jobs.remove(place)?
        };
        self.intake.waiting.fetch_sub(1, Ordering::Release);
        let request = Request {
            arrival_ms: 0,
            prompt_tokens: job.ask.prompt.len() as u32,
            output_tokens: job.ask.most,
            prefix: vec![],
        };
        self.prompt.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&job.ask.prompt);
        self.current = Some((job, request));
        Some(())
    }
}

impl Source for Queue {
    fn next(&mut self) -> Next<'_> {
        self.intake.looks.fetch_add(1, Ordering::AcqRel);
        let over = self.intake.over.load(Ordering::Acquire);
        // Also while asks are held: whoever cancelled it may wait for its end.
        if over || self.current.as_ref().is_some_and(|(job, _)| job.is_cancelled()) {
            self.end(&Finish::Aborted);
        }
        if over {
            return Next::End;
        }
        if self.intake.held.load(Ordering::Acquire) || self.take().is_none() {
            return Next::Nothing;
        }
        match &self.current {
            Some((job, request)) => {
                let Job { ask, .. } = job;
                let often = ask.streams || !ask.stops.is_empty();
                let terms = Terms {
                    members: ask.members,
                    checkpoint: if often { self.checkpoint } else { self.checkpoint.saturating_mul(SELDOM) },
                    eos_stops: ask.ends,
                    draws: ask.draws,
                    scored: ask.scored,
                    salt: ask.salt,
                };
                Next::Asks(request, terms)
            }
            None => Next::Nothing,
        }
    }

    fn admitted(&mut self, number: u64) {
        let Some((job, _)) = self.current.take() else { return };
        if let Some(live) = self.intake.lock().live.get_mut(&job.ticket) {
            live.number = Some(number);
        }
        // Cancelled just now, by somebody who found no number.
        if job.is_cancelled() {
            let _ = self.control.send(Command::Abort(number));
        }
        // Where the teller is gone the run ends.
        let _ = self.told.send(Told::Admitted(number, job));
    }
}
