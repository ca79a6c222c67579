//! The threads of the judges, and the rings that join each of them to the hot thread.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer};

use super::keeper::{Handover, Link, Starter};
use super::{AnswerMemory, Factory, Faults, Judge, JudgeFailure, JudgeFault, Judged, Request};
use crate::pipeline::{Judging, RewardStage, RuntimeError};
use crate::threads::panic_message;

/// How a pool is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Judges, and so threads; at least 1.
    pub judges: usize,
    /// Requests that one judge may have, the one that it is at and verdicts that were not collected included: 1 to 2^24.
    /// With as many as there are slots of rollouts, [`RewardStage::post`] never finds all full.
    pub capacity: usize,
    /// Tokens of the longest answer that is expected; longer ones are judged too, but take memory when they come.
    pub longest: usize,
    /// Whether each segment must have the digest that its completion tells, before it is judged: then no judge ever
    /// scores tokens other than those that the device completed. Costs about a nanosecond per token.
    pub check_digest: bool,
    /// How long a judge may take for an answer, or for a batch of them. A judge that misses it fails that answer,
    /// and is left behind with its thread, which nothing can end; another judge takes its place. With `None` the
    /// pool waits until the [patience](crate::pipeline::Options::patience) of the pipeline ends the run.
    pub deadline: Option<Duration>,
    /// How long making a judge may take, when the pool is started and when one takes the place of another. `None` is as long as
    /// `deadline`. A factory call that does not end in time is left behind; until it ends, no other judge is made.
    pub making: Option<Duration>,
    /// How many judges may be replaced in this way in total: each leaves a thread and its memory behind.
    pub replacements: usize,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            judges: 1,
            capacity: 1024,
            longest: 2048,
            check_digest: false,
            deadline: Some(Duration::from_secs(30)),
            making: None,
            replacements: 64,
        }
    }
}

/// Why a request was not taken; it is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// All judges have as many as they may: try again after verdicts have been collected.
    Full(Request),
    /// No judge is left. [`RewardStage::shutdown`] tells how.
    NoJudges(Request),
}

/// Why the answers of a group were not taken, none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupPostError {
    /// No judge has room for all of them: try again when verdicts have been collected. A group of more answers than
    /// [`PoolOptions::capacity`] never finds room.
    Full,
    /// No judge is left. [`RewardStage::shutdown`] tells how.
    NoJudges,
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No judges.
    #[error("a pool needs at least 1 judge")]
    NoJudges,
    /// A deadline of 0, which every judge misses.
    #[error("the judges' deadline is 0; give one of at least a millisecond, or none")]
    Deadline,
    /// An invalid capacity.
    #[error("a judge cannot have {0} requests; give 1 to 2^24")]
    Capacity(usize),
    /// A thread.
    #[error("judge {judge} could not be started: {source}")]
    Start {
        /// Which.
        judge: usize,
        /// Why.
        source: io::Error,
    },
    /// A judge that was not made in time.
    #[error(
        "making judge {judge} took more than {limit:?} (PoolOptions::making); look at what its factory waits for, or give it more \
         time"
    )]
    Making {
        /// Which.
        judge: usize,
        /// How long it might have taken.
        limit: Duration,
    },
    /// The thread that watches the judges.
    #[error("the thread that watches the judges' deadline could not be started: {0}")]
    Keeper(io::Error),
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

/// The boards of all judges that ever were, by their numbers. The hot thread never locks it.
#[derive(Clone, Debug, Default)]
pub(super) struct Boards(Arc<Mutex<Vec<Arc<Board>>>>);

impl Boards {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Arc<Board>>> {
        // A push leaves the list whole, or as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The judges' loads, to be read by any thread, also after the pool has ended.
#[derive(Clone, Debug)]
pub struct Loads {
    boards: Boards,
    started: Instant,
}

impl Loads {
    /// What each judge has been doing, those that replaced others last. Reads the clock, locks and allocates.
    pub fn get(&self) -> Vec<Load> {
        let now = since(self.started);
        let load = |board: &Arc<Board>| Load {
            judged: board.judged.load(Ordering::Relaxed),
            busy: Duration::from_nanos(board.busy(now)),
            alive: Duration::from_nanos(now),
        };
        self.boards.lock().iter().map(load).collect()
    }
}

/// How a pool ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shutdown {
    /// What each judge did.
    pub loads: Vec<Load>,
    /// What happened to them: the first 64 faults, and judges that do not end.
    pub faults: Vec<JudgeFault>,
    /// Faults that are not among these.
    pub more_faults: u64,
    /// Requests whose verdicts were not collected.
    pub uncollected: usize,
}

/// Judges on threads of their own: the hot thread's end.
///
/// Every request that was taken yields exactly one [`Judged`], whatever becomes of the judge. Nothing but
/// [`start`](Self::start) and [`shutdown`](RewardStage::shutdown) waits, allocates or calls the system; judges find what is
/// posted by looking.
///
/// A dropped pool ends its threads, each when it is through with its answer, and does not wait for them.
#[derive(Debug)]
pub struct Pool {
    seats: Vec<Seat>,
    /// Wakes the judges, and watches the deadline, if there is one.
    keeper: Option<Link>,
    /// Rung with each post, for the keeper.
    posts: Arc<Bell>,
    /// Verdicts that the pool gives in a judge's place.
    own: VecDeque<Judged>,
    /// Requests of a judge that was left behind, to be posted anew.
    again: VecDeque<Request>,
    /// The answers of the group at hand.
    group: Vec<Request>,
    capacity: usize,
    deadline: Option<Duration>,
    /// Where the search for a judge begins.
    turn: usize,
    started: Instant,
    closing: Arc<AtomicBool>,
    boards: Boards,
    faults: Faults,
}

/// A judge's place, as the hot thread sees it.
#[derive(Debug)]
pub(super) struct Seat {
    /// Number of the judge: each judge has another one.
    pub number: u32,
    requests: Producer<Request>,
    /// As many as there are requests always find room.
    verdicts: Consumer<Judged>,
    /// Posted and not collected, in the order in which the verdicts come.
    posted: VecDeque<Request>,
    pub board: Arc<Board>,
    /// Rung with each post.
    pub bell: Arc<Bell>,
    thread: JoinHandle<()>,
    /// It hangs, and nobody takes its place.
    lost: bool,
}

impl Seat {
    pub fn new(
        number: u32,
        requests: Producer<Request>,
        verdicts: Consumer<Judged>,
        capacity: usize,
        board: Arc<Board>,
        bell: Arc<Bell>,
        thread: JoinHandle<()>,
    ) -> Seat {
        let posted = VecDeque::with_capacity(capacity);
        Seat { number, requests, verdicts, posted, board, bell, thread, lost: false }
    }

    pub fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Whether its thread has come to its end.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Whether there is a judge: until then it is given nothing.
    #[inline]
    pub fn is_made(&self) -> bool {
        self.board.made.load(Ordering::Acquire)
    }

    /// Whether somebody judges here, or will.
    #[inline]
    fn judges(&self) -> bool {
        !self.lost && !self.board.retired.load(Ordering::Relaxed)
    }
}

/// Counts posts, for a thread that looks: whoever rings it waits for nobody and wakes nobody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Bell(AtomicU64);

impl Bell {
    /// What was pushed before is seen by whoever hears it. Rung by one thread alone.
    #[inline]
    fn ring(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    pub fn rung(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// What a judge tells of itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Board {
    judged: AtomicU64,
    /// In nanoseconds: the time at answers while idle; the time at which it would have begun if it had been busy ever
    /// since, plus [`BUSY`](Self::BUSY), while busy. One word, so that whoever looks sees what belongs together.
    clock: AtomicU64,
    /// When it began with what it is at, in nanoseconds; 0 if it is at nothing.
    pub began: AtomicU64,
    /// Ticket of the first answer that it is at.
    pub ticket: AtomicU64,
    /// How many answers it is at.
    pub count: AtomicU64,
    /// The judge is there.
    pub made: AtomicBool,
    /// Nobody judges there any more.
    pub retired: AtomicBool,
    /// Its thread has panicked.
    pub died: AtomicBool,
    /// It has missed its deadline, or died: what it has is of no use any more.
    pub abandoned: AtomicBool,
}

impl Board {
    const BUSY: u64 = 1 << 63;

    pub fn work(&self, now: u64) {
        let busy = self.clock.load(Ordering::Relaxed);
        self.clock.store(Self::BUSY | now.saturating_sub(busy), Ordering::Relaxed);
    }

    pub fn rest(&self, now: u64, judged: u64) {
        self.judged.fetch_add(judged, Ordering::Relaxed);
        self.clock.store(self.busy(now), Ordering::Relaxed);
    }

    fn busy(&self, now: u64) -> u64 {
        let clock = self.clock.load(Ordering::Relaxed);
        if clock & Self::BUSY == 0 { clock } else { now.saturating_sub(clock & !Self::BUSY) }
    }
}

pub(super) fn since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

impl Pool {
    /// Starts the judges that `factory` makes, given their numbers, on threads that read answers from `memory`. It is
    /// kept, to make others in the place of those that panic (with the same number), or that hang or whose thread dies (with a new one).
    ///
    /// # Errors
    /// `NoJudges`; `Deadline` if it is 0; `Capacity`; `Start` or `Keeper` if there is no thread; `Making` if `factory` does not come to
    /// its end in time.
    ///
    /// # Panics
    /// If `factory` does.
    pub fn start<J: Judge + 'static>(
        options: PoolOptions,
        memory: &AnswerMemory,
        factory: impl FnMut(usize) -> J + Send + 'static,
    ) -> Result<Self, PoolError> {
        if options.judges == 0 {
            return Err(PoolError::NoJudges);
        }
        if options.deadline == Some(Duration::ZERO) {
            return Err(PoolError::Deadline);
        }
        if !(1..=1 << 24).contains(&options.capacity) {
            return Err(PoolError::Capacity(options.capacity));
        }
        let pending = options.judges.saturating_mul(options.capacity);
        let starter = Starter {
            options,
            factory: Factory::new(factory),
            memory: memory.clone(),
            started: Instant::now(),
            closing: Arc::default(),
            boards: Boards::default(),
            faults: Faults::default(),
        };
        let mut pool = Self {
            seats: Vec::with_capacity(options.judges),
            keeper: None,
            posts: Arc::default(),
            own: VecDeque::with_capacity(pending),
            again: VecDeque::with_capacity(pending),
            group: Vec::with_capacity(options.capacity),
            capacity: options.capacity,
            deadline: options.deadline,
            turn: 0,
            started: starter.started,
            closing: starter.closing.clone(),
            boards: starter.boards.clone(),
            faults: starter.faults.clone(),
        };
        for judge in 0..options.judges {
            let seat = starter.start_first(judge as u32)?;
            if !seat.is_made() {
                let message = starter.faults.take().0.pop().map(|fault| fault.to_string());
                panic!("{}", message.unwrap_or_default());
            }
            pool.seats.push(seat);
        }
        pool.keeper = Some(Link::start(starter, pool.posts.clone(), &pool.seats)?);
        Ok(pool)
    }

    /// The seat with least to do of those that `may` have `more` answers, from the one whose turn it is.
    #[inline]
    fn idlest(&self, more: usize, may: impl Fn(&Seat) -> bool) -> Option<usize> {
        let count = self.seats.len();
        let mut best: Option<(usize, usize)> = None;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let seat = &self.seats[index];
            // So many may be pending, and `more` beside them.
            let most = (self.capacity + 1).saturating_sub(more);
            let least = best.map_or(most, |(pending, _)| pending);
            if seat.posted.len() < least && seat.judges() && seat.is_made() && may(seat) {
                best = Some((seat.posted.len(), index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Leaves a judge behind: what it is at has failed, and what waits for it goes to others.
    #[cold]
    fn hand_over(&mut self, Handover { seat, ticket, count, failure, replacement }: Handover) {
        let seat = &mut self.seats[seat];
        // What it has told is not lost with it.
        while let Ok(judged) = seat.verdicts.pop() {
            seat.posted.pop_front();
            self.own.push_back(judged);
        }
        // It may have come through since, and its verdicts been collected.
        let hung = match seat.posted.front() {
            Some(front) if front.ticket.to_bits() == ticket => count.min(seat.posted.len()),
            _ => 0,
        };
        let judge = seat.number;
        self.own.extend(seat.posted.drain(..hung).map(|request| Judged {
            ticket: request.ticket,
            rollout: request.rollout,
            judge,
            verdict: Err(failure),
        }));
        // A group of which it has told a part already is not judged in pieces: the rest has failed, and the pipeline asks anew.
        while seat.posted.front().is_some_and(|request| request.together == 0) {
            self.own.extend(seat.posted.pop_front().map(|request| Judged {
                ticket: request.ticket,
                rollout: request.rollout,
                judge,
                verdict: Err(failure),
            }));
        }
        self.again.extend(seat.posted.drain(..));
        match replacement {
            None => seat.lost = true,
            Some(replacement) => {
                let left = std::mem::replace(seat, replacement);
                if let Some(keeper) = &mut self.keeper {
                    // There is room for every judge that there ever is.
                    let _ = keeper.retired.push(left);
                }
            }
        }
    }

    #[cold]
    fn post_again(&mut self) {
        let mut again = std::mem::take(&mut self.again);
        while let Some(first) = again.front() {
            let count = (first.together.max(1) as usize).min(again.len());
            match self.post_together(&again.make_contiguous()[..count]) {
                Ok(()) => {}
                Err(GroupPostError::Full) => break,
                Err(GroupPostError::NoJudges) => {
                    self.own.extend(again.range(..count).map(|request| Judged {
                        ticket: request.ticket,
                        rollout: request.rollout,
                        judge: u32::MAX,
                        verdict: Err(JudgeFailure::Gone),
                    }))
                }
            }
            again.drain(..count);
        }
        self.again = again;
    }

    /// Hands answers to one judge: one, or those of a group.
    #[inline]
    fn post_together(&mut self, requests: &[Request]) -> Result<(), GroupPostError> {
        let Some(first) = requests.first() else { return Ok(()) };
        let count = requests.len();
        // Whom they should not have again gets them if there is nobody else.
        let wanted = match first.avoid {
            Some(number)
                if self.seats.iter().any(|seat| seat.judges() && seat.is_made() && seat.number != number) =>
            {
                self.idlest(count, |seat| seat.number != number)
            }
            _ => self.idlest(count, |_| true),
        };
        let Some(index) = wanted else {
            let left = self.judges_left() > 0;
            return Err(if left { GroupPostError::Full } else { GroupPostError::NoJudges });
        };
        let seat = &mut self.seats[index];
        // At once: the judge sees all of them or none.
        seat.requests.push_entire_slice(requests).map_err(|_| GroupPostError::Full)?;
        seat.posted.extend(requests);
        seat.bell.ring();
        self.posts.ring();
        self.turn = (index + 1) % self.seats.len();
        Ok(())
    }

    /// Judges that can be given answers, those that are still being made included.
    pub fn judges_left(&self) -> usize {
        self.seats.iter().filter(|seat| seat.judges()).count()
    }

    /// Tells all threads that all is over.
    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.seats.iter().for_each(|seat| seat.thread().unpark());
    }

    /// What the judges are doing, for any thread to look at.
    pub fn loads(&self) -> Loads {
        Loads { boards: self.boards.clone(), started: self.started }
    }
}

impl RewardStage for Pool {
    /// Hands an answer to the judge that has least to do. Its tokens should stay as they are until the verdict; if the
    /// rollout is aborted, they need not, as the verdict will be dropped ([`Tickets`](super::Tickets)).
    #[inline]
    fn post(&mut self, request: Request) -> Result<(), PostError> {
        self.post_together(&[request]).map_err(|error| match error {
            GroupPostError::Full => PostError::Full(request),
            GroupPostError::NoJudges => PostError::NoJudges(request),
        })
    }

    fn post_group(&mut self, requests: &[Request]) -> Result<(), GroupPostError> {
        let mut group = std::mem::take(&mut self.group);
        group.clear();
        group.extend_from_slice(requests);
        for (place, request) in group.iter_mut().enumerate() {
            request.together = if place == 0 { requests.len() as u32 } else { 0 };
        }
        let posted = self.post_together(&group);
        self.group = group;
        posted
    }

    #[inline]
    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError> {
        let mut taken = 0;
        for step in 0..self.seats.len() {
            // From another one each time, so that none that has much to tell comes before the rest for ever.
            let index = (self.turn + step) % self.seats.len();
            let seat = &mut self.seats[index];
            if seat.posted.is_empty() {
                continue;
            }
            // What comes of one that was left behind is of answers that others have by now.
            while taken < out.len()
                && !seat.lost
                && let Ok(judged) = seat.verdicts.pop()
            {
                seat.posted.pop_front();
                out[taken] = judged;
                taken += 1;
            }
        }
        if let Some(keeper) = &mut self.keeper
            && taken < out.len()
            && let Ok(handover) = keeper.handovers.pop()
        {
            self.hand_over(handover);
        }
        if !self.again.is_empty() {
            self.post_again();
        }
        while taken < out.len()
            && let Some(judged) = self.own.pop_front()
        {
            out[taken] = judged;
            taken += 1;
        }
        Ok(taken)
    }

    fn pending(&self) -> usize {
        self.seats.iter().map(|seat| seat.posted.len()).sum::<usize>() + self.own.len() + self.again.len()
    }

    fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    fn slowest(&self) -> Option<Judging> {
        let now = self.started.elapsed();
        let at = |seat: &Seat| {
            let began = seat.board.began.load(Ordering::Acquire);
            (began != 0).then(|| now.saturating_sub(Duration::from_nanos(began)))
        };
        let busy = self.seats.iter().filter(|seat| !seat.posted.is_empty());
        let seat = busy.max_by_key(|seat| at(seat))?;
        let rollout = seat.posted.front()?.rollout;
        Some(Judging { judge: seat.number, rollout, since: at(seat), answers: seat.posted.len() })
    }

    /// Ends the judges, each when it is through with its present answer; what else is queued is not judged any more. A
    /// judge that is not through after `patience`, or has missed its deadline, is left behind: it ends by itself, or
    /// with the process. Not for the hot path.
    fn shutdown(mut self: Box<Self>, patience: Duration) -> Shutdown {
        let begun = Instant::now();
        let loads = self.loads().get();
        let uncollected = self.pending();
        self.close();
        if let Some(keeper) = self.keeper.take() {
            keeper.join();
        }
        let (mut faults, more_faults) = self.faults.take();
        for seat in std::mem::take(&mut self.seats) {
            let judge = seat.number;
            // Whoever was left behind has been told of.
            if seat.board.abandoned.load(Ordering::Acquire) {
                continue;
            }
            while !seat.thread.is_finished() && begun.elapsed() < patience {
                thread::sleep(Duration::from_micros(200).min(patience));
            }
            if !seat.thread.is_finished() {
                faults.push(JudgeFault::Stuck { judge, patience });
            } else if let Err(panic) = seat.thread.join() {
                faults.push(JudgeFault::Died { judge, message: panic_message(&*panic) });
            }
        }
        Shutdown { loads, faults, more_faults, uncollected }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
