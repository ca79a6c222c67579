//! Requests to abort, from other threads.

use rtrb::{Consumer, Producer, RingBuffer};

use super::{ASKS_PER_TURN, Pipeline, RuntimeError};

/// Requests to abort, of one handle, that may wait for their answers.
const ASKS: usize = 1024;
/// No request has this number.
pub(super) const NO_REQUEST: u64 = u64::MAX;

/// What became of a request to abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbortAnswer {
    /// The request lives: so many of its rollouts end now, without a trajectory. Those that have ended, or whose
    /// trajectories are being stored, are not touched.
    Aborted(u32),
    /// All its rollouts had ended before.
    Ended,
    /// No request has had that number yet.
    Unknown,
}

/// Too many requests to abort wait for their answers: take these, and ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests to abort wait for their answers; take these, and ask again")]
pub struct Busy;

/// Asks for requests to be aborted, from any thread, and hears what became of it. A thread that wants one of its own takes
/// another one from the pipeline.
#[derive(Debug)]
pub struct AbortHandle {
    asks: Producer<u64>,
    answers: Consumer<(u64, AbortAnswer)>,
    /// Asked and not answered.
    awaited: usize,
}

impl AbortHandle {
    /// Asks for all rollouts of request number `request` to end as soon as they can, without trajectories. Waits for
    /// nobody; [`answer`](Self::answer) tells what became of it.
    ///
    /// # Errors
    /// `Busy` if too many wait.
    pub fn abort(&mut self, request: u64) -> Result<(), Busy> {
        if self.awaited == ASKS {
            return Err(Busy);
        }
        self.asks.push(request).map_err(|_| Busy)?;
        self.awaited += 1;
        Ok(())
    }

    /// The next answer, in the order in which this handle has asked: the number of the request and what became of it.
    /// `None` if there is none yet.
    pub fn answer(&mut self) -> Option<(u64, AbortAnswer)> {
        let answer = self.answers.pop().ok()?;
        self.awaited -= 1;
        Some(answer)
    }

    /// Requests that were asked about and not answered.
    pub fn awaited(&self) -> usize {
        self.awaited
    }
}

/// The pipeline's end of a handle.
pub(super) struct Asker {
    asks: Consumer<u64>,
    answers: Producer<(u64, AbortAnswer)>,
}

impl Pipeline {
    /// A handle by which another thread can ask for requests to be aborted. Allocates: take it before the run.
    pub fn abort_handle(&mut self) -> AbortHandle {
        let (asks, asked) = RingBuffer::new(ASKS);
        let (answer, answers) = RingBuffer::new(ASKS);
        self.askers.push(Asker { asks: asked, answers: answer });
        AbortHandle { asks, answers, awaited: 0 }
    }

    /// Answers some requests to abort, one of each handle in turn. The rest waits for the next turns, however fast more come.
    pub(super) fn take_aborts(&mut self) -> Result<bool, RuntimeError> {
        let handles = self.askers.len();
        let (mut left, mut silent) = (ASKS_PER_TURN, 0);
        while left > 0 && silent < handles {
            let index = self.next_asker;
            self.next_asker = (index + 1) % handles;
            let Ok(request) = self.askers[index].asks.pop() else {
                silent += 1;
                continue;
            };
            (left, silent) = (left - 1, 0);
            let answer = self.abort_request(request)?;
            // There is room for all that the handle waits for; where it is gone, nobody waits.
            let _ = self.askers[index].answers.push((request, answer));
        }
        Ok(left < ASKS_PER_TURN)
    }

    /// Aborts all rollouts that would make more DECODEs, and says how many those are. What has come to its end is judged and stored as ever: run the
    /// pipeline on, with a source that gives nothing more. A look at all groups.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn abort_all(&mut self) -> Result<u64, RuntimeError> {
        let mut aborted = 0;
        for index in 0..self.groups.len() as u32 {
            if self.groups[index as usize].lives() {
                aborted += u64::from(self.abort_open_members(index)?);
            }
        }
        Ok(aborted)
    }

    /// Aborts what lives of request number `request`.
    fn abort_request(&mut self, request: u64) -> Result<AbortAnswer, RuntimeError> {
        if request >= self.next_request {
            return Ok(AbortAnswer::Unknown);
        }
        // A look at all numbers: no other step needs to find a request by its own.
        let found = self.requests_by_group.iter().position(|&number| number == request);
        let lives = |&group: &usize| self.groups[group].left > 0;
        let Some(group) = found.filter(lives) else { return Ok(AbortAnswer::Ended) };
        // Those that make more DECODEs first: one STOP ends them all.
        let mut aborted = self.abort_open_members(group as u32)?;
        let mut next = self.groups[group].first;
        let mut unjudged = 0;
        while let Some(slot) = next {
            let id = self.lives.current(slot);
            next = self.lives.get(id)?.next;
            let ended = self.abort_member(id)?;
            aborted += u32::from(ended.aborted);
            unjudged += u32::from(ended.awaited);
        }
        // All have ended before the verdicts that are there are taken for those of the whole group.
        for _ in 0..unjudged {
            self.one_verdict_less(group as u32)?;
        }
        Ok(AbortAnswer::Aborted(aborted))
    }
}
