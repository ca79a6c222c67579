//! The thread that watches judges against their deadline and starts others in their place: the hot thread may not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};

use super::pool::{Board, Boards, PoolError, PoolOptions, Seat, since};
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
    /// Starts judge `number`.
    pub fn start(&self, number: u32) -> Result<Seat, PoolError> {
        let (requests, to_judge) = RingBuffer::new(self.options.capacity);
        let (judged, verdicts) = RingBuffer::new(self.options.capacity);
        let board = Arc::new(Board::default());
        let mut work = Work {
            number,
            desk: Desk::new(
                number,
                self.factory.clone(),
                self.memory.clone(),
                self.options.longest,
                self.options.check_digest,
                self.faults.clone(),
            ),
            requests: to_judge,
            kept: None,
            taken: Vec::with_capacity(self.options.capacity),
            results: Vec::with_capacity(self.options.capacity),
            verdicts: judged,
            board: board.clone(),
            started: self.started,
            closing: self.closing.clone(),
        };
        let thread = thread::Builder::new()
            .name(format!("judge {number}"))
            .spawn(move || work.run())
            .map_err(|source| PoolError::Start { judge: number as usize, source })?;
        self.boards.lock().push(board.clone());
        Ok(Seat::new(number, requests, verdicts, self.options.capacity, board, thread))
    }
}

/// Says that the judge in a seat has missed its deadline.
#[derive(Debug)]
pub(super) struct Handover {
    pub seat: usize,
    /// The first of the answers that it is at.
    pub ticket: u64,
    /// How many these are.
    pub count: usize,
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
    /// Starts the keeper of the judges on `boards`, in the order of their seats.
    pub fn start<J: Judge + 'static>(
        starter: Starter<J>,
        deadline: Duration,
        boards: Vec<Arc<Board>>,
    ) -> Result<Link, PoolError> {
        // At most one handover for each judge that there ever is.
        let room = boards.len() + starter.options.replacements;
        let (handovers, to_hot) = RingBuffer::new(room);
        let (retired, from_hot) = RingBuffer::new(room);
        let mut keeper = Keeper {
            next_number: boards.len() as u32,
            left: starter.options.replacements,
            seats: boards.into_iter().zip(0..).map(Some).collect(),
            starter,
            deadline,
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

struct Keeper<J> {
    starter: Starter<J>,
    deadline: Duration,
    /// Who sits in each seat, with its number; nobody once it could not be replaced.
    seats: Vec<Option<(Arc<Board>, u32)>>,
    next_number: u32,
    /// Replacements that may yet be made.
    left: usize,
    handovers: Producer<Handover>,
    retired: Consumer<Seat>,
}

impl<J: Judge + 'static> Keeper<J> {
    fn run(&mut self) {
        // Looks often enough that no answer takes much longer than its deadline.
        let look = (self.deadline / 8).clamp(Duration::from_millis(1), Duration::from_millis(50));
        while !self.starter.closing.load(Ordering::Acquire) {
            thread::park_timeout(look);
            while self.retired.pop().is_ok() {}
            for seat in 0..self.seats.len() {
                self.look_at(seat);
            }
        }
    }

    fn look_at(&mut self, seat: usize) {
        let Some((board, number)) = &self.seats[seat] else { return };
        let Some((ticket, count)) = board.overdue(since(self.starter.started), self.deadline) else { return };
        let number = *number;
        board.abandoned.store(true, Ordering::Release);
        let replacement = self.replace();
        self.starter.faults.note(JudgeFault::Hung {
            judge: number,
            deadline: self.deadline,
            replaced: replacement.is_some(),
        });
        self.seats[seat] = replacement.as_ref().map(|seat| (seat.board.clone(), seat.number));
        // There is room for one of each judge that there ever is.
        let _ = self.handovers.push(Handover { seat, ticket, count, replacement });
    }

    fn replace(&mut self) -> Option<Seat> {
        self.left = self.left.checked_sub(1)?;
        let number = self.next_number;
        self.next_number += 1;
        match catch_unwind(AssertUnwindSafe(|| self.starter.start(number))) {
            Ok(Ok(seat)) => return Some(seat),
            Ok(Err(error)) => {
                self.starter.faults.note(JudgeFault::NotMade { judge: number, message: error.to_string() });
            }
            Err(panic) => {
                let message = panic_message(&*panic);
                self.starter.faults.note(JudgeFault::NotMade { judge: number, message });
            }
        }
        None
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
                idle.wait();
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
        let at = (self.ticket.load(Ordering::Acquire), self.count.load(Ordering::Acquire) as usize);
        // Both were read while it was at the same answer.
        (self.began.load(Ordering::Acquire) == began).then_some(at)
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
