//! The thread that wakes judges, watches them against their deadline and starts others in their place: the hot thread may not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};

use super::pool::{Bell, Board, Boards, PoolError, PoolOptions, Seat, since};
use super::{AnswerMemory, Desk, Factory, Faults, Judge, JudgeFailure, JudgeFault, Judged, Request};
use crate::threads::{Backoff, panic_message};

/// All that a judge's thread is started with.
pub(super) struct Starter<J> {
    pub options: PoolOptions,
    pub factory: Factory<J>,
    pub memory: AnswerMemory,
    pub started: Instant,
    pub closing: Arc<AtomicBool>,
    pub boards: Boards,
    pub faults: Faults,
}

impl<J: Judge + 'static> Starter<J> {
    /// How long making a judge may take.
    pub fn making(&self) -> Option<Duration> {
        self.options.making.or(self.options.deadline)
    }

    /// Starts judge `number` and waits until it is made; without one if that panics, which its thread's end tells.
    pub fn start_first(&self, number: u32) -> Result<Seat, PoolError> {
        let seat = self.start(number)?;
        let mut made = Backoff::default();
        while !seat.is_made() && !seat.is_over() {
            if let Some(limit) = self.making().filter(|&limit| self.factory.hangs(limit)) {
                self.closing.store(true, Ordering::Release);
                return Err(PoolError::Making { judge: number as usize, limit });
            }
            made.wait();
        }
        Ok(seat)
    }

    /// Starts the thread of judge `number`, which makes it there: whatever that takes, nobody waits for it.
    pub fn start(&self, number: u32) -> Result<Seat, PoolError> {
        let (requests, to_judge) = RingBuffer::new(self.options.capacity);
        let (judged, verdicts) = RingBuffer::new(self.options.capacity);
        let (board, bell) = (Arc::new(Board::default()), Arc::new(Bell::default()));
        let (factory, memory, faults) = (self.factory.clone(), self.memory.clone(), self.faults.clone());
        let (longest, check_digest) = (self.options.longest, self.options.check_digest);
        let making = board.clone();
        let note = self.faults.clone();
        let (judges, started, closing) = (board.clone(), self.started, self.closing.clone());
        let capacity = self.options.capacity;
        let make = move || {
            let desk = || Desk::new(number, factory, memory, longest, check_digest, faults);
            match catch_unwind(AssertUnwindSafe(desk)) {
                Ok(desk) => Some(desk),
                Err(panic) => {
                    note.note(JudgeFault::NotMade { judge: number, message: panic_message(&*panic) });
                    making.retired.store(true, Ordering::Release);
                    None
                }
            }
        };
        let died = self.faults.clone();
        let work = move |desk| Work {
            number,
            desk,
            requests: to_judge,
            kept: None,
            taken: Vec::with_capacity(capacity),
            results: Vec::with_capacity(capacity),
            verdicts: judged,
            board: judges,
            started,
            closing,
        };
        let thread = thread::Builder::new()
            .name(format!("judge {number}"))
            .spawn(move || {
                let Some(desk) = make() else { return };
                let mut work = work(desk);
                work.board.made.store(true, Ordering::Release);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work.run())) {
                    died.note(JudgeFault::Died { judge: number, message: panic_message(&*panic) });
                    work.die();
                    // Whoever drops it may panic once more.
                    std::mem::forget(panic);
                }
            })
            .map_err(|source| PoolError::Start { judge: number as usize, source })?;
        self.boards.lock().push(board.clone());
        Ok(Seat::new(number, requests, verdicts, self.options.capacity, board, bell, thread))
    }
}

/// Says that the judge in a seat has missed its deadline, or that its thread has ended.
#[derive(Debug)]
pub(super) struct Handover {
    pub seat: usize,
    /// The first of the answers that it is at.
    pub ticket: u64,
    /// How many these are.
    pub count: usize,
    /// Why it has no verdict on them.
    pub failure: JudgeFailure,
    /// Who takes its place, if anybody does.
    pub replacement: Option<Seat>,
}

/// The hot thread's ends of what joins it to the keeper.
#[derive(Debug)]
pub(super) struct Link {
    pub handovers: Consumer<Handover>,
    /// Seats that are not used any more; their memory is not the hot thread's to free.
    pub retired: Producer<Seat>,
    thread: JoinHandle<()>,
}

impl Link {
    /// Starts the keeper of the judges in `seats`; `posts` is rung with each post.
    pub fn start<J: Judge + 'static>(
        starter: Starter<J>,
        posts: Arc<Bell>,
        seats: &[Seat],
    ) -> Result<Link, PoolError> {
        // At most one handover for each judge that there ever is.
        let room = seats.len() + starter.options.replacements;
        let (handovers, to_hot) = RingBuffer::new(room);
        let (retired, from_hot) = RingBuffer::new(room);
        let mut keeper = Keeper {
            next_number: seats.len() as u32,
            left: starter.options.replacements,
            seats: seats.iter().map(|seat| Some(Kept::of(seat))).collect(),
            starter,
            posts,
            heard: 0,
            handovers,
            retired: from_hot,
        };
        let thread = thread::Builder::new()
            .name("judges' keeper".into())
            .spawn(move || keeper.run())
            .map_err(PoolError::Keeper)?;
        Ok(Link { handovers: to_hot, retired, thread })
    }

    /// Waits for the keeper, which has been told that all is over.
    pub fn join(self) {
        self.thread.thread().unpark();
        // What it panics of, if it does, changes nothing that is told.
        let _ = self.thread.join();
    }
}

/// A judge, as the keeper sees it.
struct Kept {
    number: u32,
    board: Arc<Board>,
    bell: Arc<Bell>,
    /// What of the bell it was woken for.
    heard: u64,
    thread: Thread,
}

impl Kept {
    fn of(seat: &Seat) -> Kept {
        Kept {
            number: seat.number,
            board: seat.board.clone(),
            bell: seat.bell.clone(),
            heard: 0,
            thread: seat.thread().clone(),
        }
    }
}

struct Keeper<J> {
    starter: Starter<J>,
    /// Rung with each post, and what of that was heard.
    posts: Arc<Bell>,
    heard: u64,
    /// Who sits in each seat; nobody once it could not be replaced.
    seats: Vec<Option<Kept>>,
    next_number: u32,
    /// Replacements that may yet be made.
    left: usize,
    handovers: Producer<Handover>,
    retired: Consumer<Seat>,
}

impl<J: Judge + 'static> Keeper<J> {
    fn run(&mut self) {
        // Looks often enough that no answer takes much longer than its deadline.
        let limits = [self.starter.options.deadline, self.starter.making()];
        let look = limits.into_iter().flatten().min();
        let look = look.unwrap_or(Duration::MAX) / 8;
        let look = look.clamp(Duration::from_millis(1), Duration::from_millis(50));
        let mut looked = Instant::now();
        let mut idle = Backoff::default();
        while !self.starter.closing.load(Ordering::Acquire) {
            if self.wake() {
                idle.reset();
            }
            idle.wait();
            if looked.elapsed() < look {
                continue;
            }
            looked = Instant::now();
            while self.retired.pop().is_ok() {}
            for seat in 0..self.seats.len() {
                self.look_at(seat);
            }
        }
        for kept in self.seats.iter().flatten() {
            kept.thread.unpark();
        }
    }

    /// Wakes the judges to whom something was posted since; says whether there were any.
    fn wake(&mut self) -> bool {
        let posts = self.posts.rung();
        if std::mem::replace(&mut self.heard, posts) == posts {
            return false;
        }
        for kept in self.seats.iter_mut().flatten() {
            let rung = kept.bell.rung();
            // One that has gone to sleep since returns at once, however the two meet.
            if std::mem::replace(&mut kept.heard, rung) != rung {
                kept.thread.unpark();
            }
        }
        true
    }

    fn look_at(&mut self, seat: usize) {
        let Some(Kept { board, number, .. }) = &self.seats[seat] else { return };
        let number = *number;
        if !board.made.load(Ordering::Acquire) && !board.retired.load(Ordering::Acquire) {
            // It has nothing to judge. Nor is another one made in its place, while the factory is not through.
            if let Some(limit) = self.starter.making().filter(|&limit| self.starter.factory.hangs(limit)) {
                self.leave(seat);
                self.starter.faults.note(JudgeFault::NotMadeInTime { judge: number, limit });
                let failure = JudgeFailure::Gone;
                let _ =
                    self.handovers.push(Handover { seat, ticket: 0, count: 0, failure, replacement: None });
            }
            return;
        }
        if board.died.load(Ordering::Acquire) {
            let (ticket, count) = board.at();
            self.hand_over(seat, ticket, count, JudgeFailure::Panicked);
            return;
        }
        let Some(deadline) = self.starter.options.deadline else { return };
        let Some((ticket, count)) = board.overdue(since(self.starter.started), deadline) else { return };
        let replaced = self.hand_over(seat, ticket, count, JudgeFailure::Deadline);
        self.starter.faults.note(JudgeFault::Hung { judge: number, deadline, replaced });
    }

    /// Leaves a judge behind, and tells the hot thread; says whether another one takes its place.
    fn hand_over(&mut self, seat: usize, ticket: u64, count: usize, failure: JudgeFailure) -> bool {
        self.leave(seat);
        let replacement = self.replace();
        let replaced = replacement.is_some();
        self.seats[seat] = replacement.as_ref().map(Kept::of);
        // The hot thread may post to it before the keeper's next look.
        self.heard = self.heard.wrapping_sub(1);
        // There is room for one of each judge that there ever is.
        let _ = self.handovers.push(Handover { seat, ticket, count, failure, replacement });
        replaced
    }

    /// Leaves a judge behind.
    fn leave(&mut self, seat: usize) {
        if let Some(kept) = self.seats[seat].take() {
            kept.board.abandoned.store(true, Ordering::Release);
            kept.thread.unpark();
        }
    }

    fn replace(&mut self) -> Option<Seat> {
        if self.starter.making().is_some_and(|limit| self.starter.factory.hangs(limit)) {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        let number = self.next_number;
        self.next_number += 1;
        match self.starter.start(number) {
            Ok(seat) => Some(seat),
            Err(error) => {
                self.starter.faults.note(JudgeFault::NotMade { judge: number, message: error.to_string() });
                None
            }
        }
    }
}

/// A judge's thread.
struct Work<J> {
    number: u32,
    desk: Desk<J>,
    requests: Consumer<Request>,
    /// Taken from the ring, and to be judged alone after what is at hand.
    kept: Option<Request>,
    taken: Vec<Request>,
    results: Vec<Result<super::Verdict, JudgeFailure>>,
    verdicts: Producer<Judged>,
    board: Arc<Board>,
    started: Instant,
    closing: Arc<AtomicBool>,
}

impl<J: Judge> Work<J> {
    fn run(&mut self) {
        let mut idle = Backoff::default();
        while !self.is_over() {
            self.take();
            let Some(first) = self.taken.first() else {
                // Who has slept and found nothing sleeps on, until the keeper has something for it, or it is to end.
                if idle.is_long() {
                    thread::park();
                } else {
                    idle.wait();
                }
                continue;
            };
            idle.reset();
            self.board.begin(since(self.started), first.ticket.to_bits(), self.taken.len());
            self.desk.judge_batch(&self.taken, &mut self.results);
            self.board.end(since(self.started), self.taken.len() as u64);
            if self.desk.is_empty() {
                self.board.retired.store(true, Ordering::Release);
            }
            self.reply();
        }
    }

    /// Takes what waits, as much as the judge wants at a time; a group that is judged as one whole, and alone.
    fn take(&mut self) {
        self.taken.clear();
        let most = self.desk.batch();
        while self.taken.len() < most
            && let Some(request) = self.kept.take().or_else(|| self.requests.pop().ok())
        {
            let alone = request.avoid.is_some() || request.together != 1;
            if alone && !self.taken.is_empty() {
                self.kept = Some(request);
                break;
            }
            self.taken.push(request);
            // The others of its group were pushed at once with it.
            for _ in 1..request.together {
                self.taken.extend(self.requests.pop());
            }
            if alone {
                break;
            }
        }
    }

    fn reply(&mut self) {
        for (request, verdict) in self.taken.iter().zip(&self.results) {
            // There is room for a verdict on each request that was posted.
            let _ = self.verdicts.push(Judged {
                ticket: request.ticket,
                rollout: request.rollout,
                judge: self.number,
                verdict: *verdict,
            });
        }
    }

    /// Its thread has panicked: what it was at has failed, and nobody judges here.
    fn die(&mut self) {
        self.board.rest(since(self.started), 0);
        self.board.died.store(true, Ordering::Release);
    }

    /// Whether nobody wants anything of it any more.
    fn is_over(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.board.abandoned.load(Ordering::Acquire)
    }
}

impl Board {
    /// The first answer of what has taken longer than `deadline` by `now`, and how many these are.
    fn overdue(&self, now: u64, deadline: Duration) -> Option<(u64, usize)> {
        let began = self.began.load(Ordering::Acquire);
        if began == 0 || u128::from(now.saturating_sub(began)) < deadline.as_nanos() {
            return None;
        }
        let at = self.at();
        // Both were read while it was at the same answer.
        (self.began.load(Ordering::Acquire) == began).then_some(at)
    }

    /// The first answer of what it is at, or was last, and how many these are.
    fn at(&self) -> (u64, usize) {
        (self.ticket.load(Ordering::Acquire), self.count.load(Ordering::Acquire) as usize)
    }

    fn begin(&self, now: u64, ticket: u64, count: usize) {
        self.work(now);
        self.ticket.store(ticket, Ordering::Release);
        self.count.store(count as u64, Ordering::Release);
        self.began.store(now.max(1), Ordering::Release);
    }

    fn end(&self, now: u64, count: u64) {
        self.began.store(0, Ordering::Release);
        self.rest(now, count);
    }
}
