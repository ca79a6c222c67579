//! The threads of the judges, and the rings that join them to the hot thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use doorbell_engine::Digest;
use doorbell_host::TokenRegion;

use super::{Answer, Judge, Moment, Ticket, Verdict};
use crate::ring::{RingError, mpsc, spsc};
use crate::rollout::RolloutId;
use crate::threads::{Backoff, panic_message};

/// How a pool is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Judges, and so threads; at least 1.
    pub judges: usize,
    /// Requests that one judge may have, the one that it is at and verdicts that were not collected included: a power of
    /// two from 2 up. With as many as there are slots of rollouts, [`Pool::post`] never finds all full.
    pub capacity: usize,
    /// Tokens of the longest answer that is expected; longer ones are judged too, but take memory when they come.
    pub longest: usize,
    /// Whether each segment must have the digest that its completion tells, before it is judged: then no judge ever
    /// scores tokens other than those that the device completed. Costs about a nanosecond per token.
    pub check_digest: bool,
}

/// An answer for a judge: all of it but its tokens, which stay where the device put them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request ([`Tickets`](super::Tickets)).
    pub ticket: Ticket,
    /// The rollout.
    pub rollout: RolloutId,
    /// Number of the request that it answers.
    pub request: u64,
    /// Which token region has its tokens ([`Device::token_shard`](doorbell_host::Device::token_shard)).
    pub shard: u32,
    /// Where in that region the answer begins, in bytes.
    pub offset: u64,
    /// Tokens of the answer so far.
    pub answer_tokens: u32,
    /// Those of them that were judged before.
    pub segment_start: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// When it is judged.
    pub moment: Moment,
    /// `result` of the completion.
    pub digest: u32,
}

impl Request {
    /// The answer, its tokens read from `region` into `tokens`, which grows if it is shorter.
    ///
    /// # Errors
    /// `Tokens` if the answer does not lie in the region.
    pub(crate) fn read<'a>(
        &self,
        region: &TokenRegion,
        tokens: &'a mut Vec<u32>,
    ) -> Result<Answer<'a>, JudgeFailure> {
        let (count, start) = (self.answer_tokens as usize, self.segment_start as usize);
        // A length that no region has is refused before memory is taken for it.
        if start > count || 4 * count as u64 > region.bytes() {
            return Err(JudgeFailure::Tokens);
        }
        if tokens.len() < count {
            tokens.resize(count, 0);
        }
        let tokens = &mut tokens[..count];
        region.read(self.offset, tokens).map_err(|_| JudgeFailure::Tokens)?;
        Ok(Answer {
            rollout: self.rollout,
            request: self.request,
            prompt_tokens: self.prompt_tokens,
            tokens,
            segment: start..count,
            moment: self.moment,
            digest: self.digest,
        })
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The request's ticket: a verdict that is not awaited any more is to be dropped.
    pub ticket: Ticket,
    /// The rollout.
    pub rollout: RolloutId,
    /// Which judge had it.
    pub judge: u32,
    /// The verdict.
    pub verdict: Result<Verdict, JudgeFailure>,
}

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeFailure {
    /// The judge panicked, at this request or before.
    #[error("its judge panicked")]
    Panicked,
    /// There is no such token region, or the answer does not lie in it.
    #[error("its tokens cannot be read: shard, offset or length lie outside the token regions")]
    Tokens,
    /// The segment's tokens do not have the digest that the completion told.
    #[error("its tokens are not those that the device completed: the digest differs")]
    Digest,
}

/// Why a request was not taken; it is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// All judges have as many as they may: try again when verdicts have been collected.
    Full(Request),
    /// No judge is left: all have panicked. [`Pool::shutdown`] tells how.
    NoJudges(Request),
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No judges.
    #[error("a pool needs at least 1 judge")]
    NoJudges,
    /// A ring.
    #[error("the judges: {0}")]
    Ring(#[from] RingError),
    /// A thread.
    #[error("judge {judge} could not be started: {source}")]
    Start {
        /// Which.
        judge: usize,
        /// Why.
        source: io::Error,
    },
}

/// What happened to a judge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeFault {
    /// It panicked.
    #[error("judge {judge} panicked: {message}")]
    Panicked {
        /// Which.
        judge: usize,
        /// What it said.
        message: String,
    },
    /// It did not come to the end of an answer in time, and was left behind.
    #[error("judge {judge} was still at an answer after {patience:?}")]
    Stuck {
        /// Which.
        judge: usize,
        /// How long it was waited for.
        patience: Duration,
    },
}

/// What a judge has been doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Answers that it has judged, or failed to.
    pub judged: u64,
    /// Time at answers, the present one included.
    pub busy: Duration,
    /// Time since the pool was started.
    pub alive: Duration,
}

impl Load {
    /// Which part of the time it was busy, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.alive.is_zero() { 0.0 } else { self.busy.as_secs_f64() / self.alive.as_secs_f64() }
    }
}

/// The judges' loads, to be read by any thread, also after the pool has ended.
#[derive(Clone, Debug)]
pub struct Loads {
    boards: Vec<Arc<Board>>,
    started: Instant,
}

impl Loads {
    /// What each judge has been doing. Reads the clock, and allocates.
    pub fn get(&self) -> Vec<Load> {
        let now = since(self.started);
        let load = |board: &Arc<Board>| Load {
            judged: board.judged.load(Ordering::Relaxed),
            busy: Duration::from_nanos(board.busy(now)),
            alive: Duration::from_nanos(now),
        };
        self.boards.iter().map(load).collect()
    }
}

/// How a pool ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shutdown {
    /// What each judge did.
    pub loads: Vec<Load>,
    /// What happened to them.
    pub faults: Vec<JudgeFault>,
    /// Requests whose verdicts were not collected.
    pub uncollected: usize,
}

/// Judges on threads of their own: the hot thread's end.
///
/// Every request that was taken yields exactly one [`Judged`]. Nothing but [`start`](Self::start) and
/// [`shutdown`](Self::shutdown) waits, allocates or calls the system; judges find what is posted by looking.
///
/// A dropped pool ends its threads, each when it is through with its answer, and does not wait for them.
#[derive(Debug)]
pub struct Pool {
    judges: Vec<Seat>,
    verdicts: mpsc::Receiver<Judged>,
    capacity: usize,
    /// Where the search for a judge begins.
    turn: usize,
    started: Instant,
    closing: Arc<AtomicBool>,
}

/// One judge, as the hot thread sees it.
#[derive(Debug)]
struct Seat {
    requests: spsc::Producer<Request>,
    /// Posted and not collected.
    pending: usize,
    board: Arc<Board>,
    thread: JoinHandle<()>,
}

/// What a judge tells of itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Board {
    judged: AtomicU64,
    /// In nanoseconds: the time at answers while idle; the time at which it would have begun if it had been busy ever
    /// since, plus [`BUSY`](Self::BUSY), while busy. One word, so that whoever looks sees what belongs together.
    clock: AtomicU64,
    retired: AtomicBool,
    message: Mutex<Option<String>>,
}

impl Board {
    const BUSY: u64 = 1 << 63;

    fn begin(&self, now: u64) {
        let busy = self.clock.load(Ordering::Relaxed);
        self.clock.store(Self::BUSY | now.saturating_sub(busy), Ordering::Relaxed);
    }

    fn end(&self, now: u64) {
        self.judged.fetch_add(1, Ordering::Relaxed);
        self.clock.store(self.busy(now), Ordering::Relaxed);
    }

    fn busy(&self, now: u64) -> u64 {
        let clock = self.clock.load(Ordering::Relaxed);
        if clock & Self::BUSY == 0 { clock } else { now.saturating_sub(clock & !Self::BUSY) }
    }
}

fn since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

impl Pool {
    /// Starts the judges that `factory` makes, given their numbers, on threads that read tokens from `regions`.
    ///
    /// # Errors
    /// `NoJudges`; `Ring` if the capacity is no power of two or there is no memory; `Start` if there is no thread.
    pub fn start<J: Judge + 'static>(
        options: PoolOptions,
        regions: &[TokenRegion],
        mut factory: impl FnMut(usize) -> J,
    ) -> Result<Self, PoolError> {
        if options.judges == 0 {
            return Err(PoolError::NoJudges);
        }
        // No judge ever finds it full: it has room for all that may be pending.
        let room = options.judges.saturating_mul(options.capacity).checked_next_power_of_two();
        let (sender, verdicts) = mpsc::channel(room.unwrap_or(usize::MAX))?;
        let mut pool = Self {
            judges: Vec::with_capacity(options.judges),
            verdicts,
            capacity: options.capacity,
            turn: 0,
            started: Instant::now(),
            closing: Arc::default(),
        };
        for judge in 0..options.judges {
            let (requests, to_judge) = spsc::channel(options.capacity)?;
            let board = Arc::new(Board::default());
            let mut work = Work {
                number: judge as u32,
                judge: Some(factory(judge)),
                requests: to_judge,
                verdicts: sender.clone(),
                regions: regions.to_vec(),
                tokens: vec![0; options.longest],
                check_digest: options.check_digest,
                board: board.clone(),
                started: pool.started,
                closing: pool.closing.clone(),
            };
            let thread = thread::Builder::new()
                .name(format!("judge {judge}"))
                .spawn(move || work.run())
                .map_err(|source| PoolError::Start { judge, source })?;
            pool.judges.push(Seat { requests: requests.eager(), pending: 0, board, thread });
        }
        Ok(pool)
    }

    /// Hands an answer to the judge that has least to do. Its tokens should stay as they are until the verdict; if the
    /// rollout is aborted, they need not, as the verdict will be dropped ([`Tickets`](super::Tickets)).
    ///
    /// # Errors
    /// `Full` or `NoJudges`, with the request.
    #[inline]
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        let count = self.judges.len();
        let mut best: Option<(usize, usize)> = None;
        let mut left = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let seat = &self.judges[index];
            if seat.board.retired.load(Ordering::Relaxed) {
                continue;
            }
            left = true;
            if seat.pending < best.map_or(self.capacity, |(pending, _)| pending) {
                best = Some((seat.pending, index));
            }
        }
        let Some((_, index)) = best else {
            return Err(if left { PostError::Full(request) } else { PostError::NoJudges(request) });
        };
        let seat = &mut self.judges[index];
        seat.requests.push(request).map_err(PostError::Full)?;
        seat.pending += 1;
        self.turn = (index + 1) % count;
        Ok(())
    }

    /// Takes what has been judged since, as much as fits, and returns how many.
    #[inline]
    pub fn collect(&mut self, out: &mut [Judged]) -> usize {
        let mut taken = 0;
        while taken < out.len()
            && let Some(judged) = self.verdicts.pop()
        {
            self.judges[judged.judge as usize].pending -= 1;
            out[taken] = judged;
            taken += 1;
        }
        taken
    }

    /// Requests that were taken and not yet collected.
    pub fn pending(&self) -> usize {
        self.judges.iter().map(|seat| seat.pending).sum()
    }

    /// Judges that have not panicked.
    pub fn judges_left(&self) -> usize {
        self.judges.iter().filter(|seat| !seat.board.retired.load(Ordering::Relaxed)).count()
    }

    /// What the judges are doing, for any thread to look at.
    pub fn loads(&self) -> Loads {
        Loads { boards: self.judges.iter().map(|seat| seat.board.clone()).collect(), started: self.started }
    }

    /// Ends the judges, each when it is through with its present answer; what else is queued is not judged any more. A
    /// judge that is not through after `patience` is left behind: it ends by itself, or with the process. Not for the
    /// hot path.
    pub fn shutdown(mut self, patience: Duration) -> Shutdown {
        let loads = self.loads().get();
        let uncollected = self.pending();
        self.closing.store(true, Ordering::Release);
        let begun = Instant::now();
        let mut faults = vec![];
        for (judge, seat) in std::mem::take(&mut self.judges).into_iter().enumerate() {
            while !seat.thread.is_finished() && begun.elapsed() < patience {
                thread::sleep(Duration::from_micros(200).min(patience));
            }
            let stuck = !seat.thread.is_finished();
            // What is said under the lock is but a string: a panic there leaves it whole.
            if let Some(message) = seat.board.message.lock().unwrap_or_else(PoisonError::into_inner).take() {
                faults.push(JudgeFault::Panicked { judge, message });
            }
            if stuck {
                faults.push(JudgeFault::Stuck { judge, patience });
            } else if let Err(panic) = seat.thread.join() {
                faults.push(JudgeFault::Panicked { judge, message: panic_message(&*panic) });
            }
        }
        Shutdown { loads, faults, uncollected }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
    }
}

/// A judge's thread.
struct Work<J> {
    number: u32,
    /// `None` once it has panicked.
    judge: Option<J>,
    requests: spsc::Consumer<Request>,
    verdicts: mpsc::Sender<Judged>,
    regions: Vec<TokenRegion>,
    tokens: Vec<u32>,
    check_digest: bool,
    board: Arc<Board>,
    started: Instant,
    closing: Arc<AtomicBool>,
}

impl<J: Judge> Work<J> {
    fn run(&mut self) {
        let mut idle = Backoff::default();
        while !self.closing.load(Ordering::Acquire) {
            let Some(request) = self.requests.pop() else {
                idle.wait();
                continue;
            };
            idle.reset();
            self.board.begin(since(self.started));
            let verdict = self.judge(&request);
            self.board.end(since(self.started));
            let mut judged =
                Judged { ticket: request.ticket, rollout: request.rollout, judge: self.number, verdict };
            while let Err(back) = self.verdicts.push(judged) {
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                judged = back;
                thread::yield_now();
            }
        }
    }

    fn judge(&mut self, request: &Request) -> Result<Verdict, JudgeFailure> {
        let judge = self.judge.as_mut().ok_or(JudgeFailure::Panicked)?;
        let region = self.regions.get(request.shard as usize).ok_or(JudgeFailure::Tokens)?;
        let answer = request.read(region, &mut self.tokens)?;
        if self.check_digest && Digest::of(answer.segment()).value() != request.digest {
            return Err(JudgeFailure::Digest);
        }
        // Whatever a panic leaves behind in the judge is dropped with it.
        catch_unwind(AssertUnwindSafe(|| judge.score(&answer))).map_err(|panic| {
            self.retire(&*panic);
            JudgeFailure::Panicked
        })
    }

    #[cold]
    fn retire(&mut self, panic: &(dyn std::any::Any + Send)) {
        *self.board.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic_message(panic));
        self.board.retired.store(true, Ordering::Release);
        let judge = self.judge.take();
        // It may panic once more.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(judge)));
    }
}

#[cfg(test)]
mod tests;
