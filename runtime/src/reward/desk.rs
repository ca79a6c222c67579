//! One judge at work: reads answers, scores them, and is made anew when it panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_engine::Digest;

use super::{Answer, AnswerMemory, Judge, JudgeError, JudgeFailure, JudgeFault, Request, Verdict};
use crate::threads::panic_message;

/// Faults of which the texts are kept.
const FAULTS_KEPT: usize = 64;

/// What happened to the judges: the first faults with their texts, and how many there were. Only judges' threads and
/// whoever ends them lock it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<(Vec<JudgeFault>, u64)>>);

impl Faults {
    pub fn note(&self, fault: JudgeFault) {
        let (kept, count) = &mut *self.lock();
        *count += 1;
        if kept.len() < FAULTS_KEPT {
            kept.push(fault);
        }
    }

    /// Those that were kept, and how many more there were.
    pub fn take(&self) -> (Vec<JudgeFault>, u64) {
        let (kept, count) = std::mem::take(&mut *self.lock());
        let more = count - kept.len() as u64;
        (kept, more)
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<JudgeFault>, u64)> {
        // What is done under the lock leaves the list whole, whatever panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes judges one after the other, given the numbers of those who will have them.
pub(crate) struct Factory<J> {
    make: Arc<Mutex<dyn FnMut(usize) -> J + Send>>,
    /// When it began with the judge that it is at, in nanoseconds behind `epoch`; 0 if it is at none.
    began: Arc<AtomicU64>,
    epoch: Instant,
}

impl<J> Clone for Factory<J> {
    fn clone(&self) -> Self {
        Factory { make: self.make.clone(), began: self.began.clone(), epoch: self.epoch }
    }
}

/// Says that the factory is at no judge any more, whether it came to its end or panicked.
struct Made<'a>(&'a AtomicU64);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl<J> Factory<J> {
    pub fn new(make: impl FnMut(usize) -> J + Send + 'static) -> Factory<J> {
        Factory { make: Arc::new(Mutex::new(make)), began: Arc::default(), epoch: Instant::now() }
    }

    pub fn make(&self, number: u32) -> J {
        // One that panicked may panic again; that is the caller's to catch.
        let mut make = self.make.lock().unwrap_or_else(PoisonError::into_inner);
        self.began.store((self.epoch.elapsed().as_nanos() as u64).max(1), Ordering::Release);
        let _made = Made(&self.began);
        make(number as usize)
    }

    /// Whether it has been at one judge for longer than `limit`: until it comes to its end there is no other.
    pub fn hangs(&self, limit: Duration) -> bool {
        let began = self.began.load(Ordering::Acquire);
        let now = self.epoch.elapsed().as_nanos();
        began != 0 && now.saturating_sub(began.into()) >= limit.as_nanos()
    }
}

/// Copies of what is judged. They grow to what they have to hold, and are kept.
#[derive(Default)]
struct Copies {
    tokens: Vec<u32>,
    used: usize,
    prompts: Vec<u32>,
}

/// Where in the copies an answer is.
#[derive(Clone, Copy)]
struct Place {
    token: usize,
    prompt: usize,
}

impl Copies {
    #[inline]
    fn clear(&mut self) {
        self.used = 0;
        self.prompts.clear();
    }

    /// Copies the tokens of `request` and what is known of its prompt.
    #[inline]
    fn add(&mut self, request: &Request, memory: &AnswerMemory) -> Result<Place, JudgeFailure> {
        let region = memory.tokens.get(request.shard as usize).ok_or(JudgeFailure::Tokens)?;
        let (count, start) = (request.answer_tokens as usize, request.segment_start as usize);
        // A length that no region has is refused before memory is taken for it.
        if start > count || request.digest_start as usize > count || 4 * count as u64 > region.bytes() {
            return Err(JudgeFailure::Tokens);
        }
        let place = Place { token: self.used, prompt: self.prompts.len() };
        let end = self.used + count;
        if self.tokens.len() < end {
            self.tokens.resize(end, 0);
        }
        region.read(request.offset, &mut self.tokens[self.used..end]).map_err(|_| JudgeFailure::Tokens)?;
        if request.prompt_ids > 0 {
            let ids = memory.prompts.read(request.group, request.prompt_ids as usize);
            self.prompts.extend(ids.ok_or(JudgeFailure::Tokens)?);
        }
        self.used = end;
        Ok(place)
    }

    #[inline]
    fn answer(&self, request: &Request, place: Place) -> Answer<'_> {
        let count = request.answer_tokens as usize;
        Answer {
            rollout: request.rollout,
            request: request.request,
            member: request.member,
            prompt_tokens: request.prompt_tokens,
            prompt: &self.prompts[place.prompt..place.prompt + request.prompt_ids as usize],
            tokens: &self.tokens[place.token..place.token + count],
            segment: request.segment_start as usize..count,
            moment: request.moment,
            digest: request.digest,
        }
    }
}

/// A judge, and how many answers it takes at a time.
fn made<J: Judge>(factory: &Factory<J>, number: u32) -> (J, usize) {
    let judge = factory.make(number);
    let batch = judge.batch().max(1);
    (judge, batch)
}

/// A judge, and what it needs to judge.
pub(crate) struct Desk<J> {
    number: u32,
    /// `None` once it has panicked and none could be made in its place.
    judge: Option<J>,
    /// Answers that it takes at a time.
    batch: usize,
    factory: Factory<J>,
    memory: AnswerMemory,
    check_digest: bool,
    copies: Copies,
    faults: Faults,
}

impl<J: Judge> Desk<J> {
    /// The desk of judge `number`, whom `factory` makes, for answers of `longest` tokens.
    pub fn new(
        number: u32,
        factory: Factory<J>,
        memory: AnswerMemory,
        longest: usize,
        check_digest: bool,
        faults: Faults,
    ) -> Desk<J> {
        let prompts = Vec::with_capacity(memory.prompts.longest());
        let copies = Copies { tokens: vec![0; longest], used: 0, prompts };
        let (judge, batch) = made(&factory, number);
        Desk { number, judge: Some(judge), batch, factory, memory, check_digest, copies, faults }
    }

    /// Whether nobody judges here any more.
    pub fn is_empty(&self) -> bool {
        self.judge.is_none()
    }

    /// Answers that the judge takes at a time, at least 1.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Judges one answer.
    #[inline]
    pub fn judge(&mut self, request: &Request) -> Result<Verdict, JudgeFailure> {
        self.copies.clear();
        let place = self.add(request)?;
        let judge = self.judge.as_mut().ok_or(JudgeFailure::Gone)?;
        let answer = self.copies.answer(request, place);
        // Whatever a panic leaves behind in the judge is dropped with it.
        match catch_unwind(AssertUnwindSafe(|| judge.score(&answer))) {
            Ok(Ok(verdict)) => Ok(verdict),
            Ok(Err(error)) => Err(self.refused(request, error)),
            Err(panic) => Err(self.panicked(request, panic_message(&*panic))),
        }
    }

    /// Judges several answers at once; `verdicts` has one for each of `requests`, in their order, then.
    pub fn judge_batch(&mut self, requests: &[Request], verdicts: &mut Vec<Result<Verdict, JudgeFailure>>) {
        verdicts.clear();
        if let [request] = requests {
            verdicts.push(self.judge(request));
            return;
        }
        self.copies.clear();
        let places: Vec<_> = requests.iter().map(|request| self.add(request)).collect();
        let readable = || requests.iter().zip(&places);
        let answers: Vec<_> = readable()
            .filter_map(|(request, place)| Some(self.copies.answer(request, *place.as_ref().ok()?)))
            .collect();
        let mut given: Vec<Result<Verdict, JudgeError>> = Vec::with_capacity(answers.len());
        let Some(judge) = self.judge.as_mut() else {
            verdicts.extend(requests.iter().map(|_| Err(JudgeFailure::Gone)));
            return;
        };
        let ended = catch_unwind(AssertUnwindSafe(|| judge.score_batch(&answers, &mut given)));
        // What it gave before it panicked stands.
        let mut given = given.into_iter();
        let mut unjudged = None;
        for (request, place) in readable() {
            verdicts.push(match place {
                Err(failure) => Err(*failure),
                Ok(_) => match given.next() {
                    Some(Ok(verdict)) => Ok(verdict),
                    Some(Err(error)) => Err(self.refused(request, error)),
                    None => {
                        unjudged.get_or_insert(request);
                        Err(if ended.is_ok() { JudgeFailure::Missing } else { JudgeFailure::Panicked })
                    }
                },
            });
        }
        if let Err(panic) = ended {
            self.panicked(unjudged.unwrap_or(&requests[0]), panic_message(&*panic));
        }
    }

    #[inline(always)]
    fn add(&mut self, request: &Request) -> Result<Place, JudgeFailure> {
        let place = self.copies.add(request, &self.memory)?;
        if self.check_digest
            && Digest::of(&self.copies.answer(request, place).tokens[request.digest_start as usize..]).value()
                != request.digest
        {
            return Err(JudgeFailure::Digest);
        }
        Ok(place)
    }

    #[cold]
    fn refused(&self, request: &Request, error: JudgeError) -> JudgeFailure {
        self.faults.note(JudgeFault::Error {
            judge: self.number,
            request: request.request,
            member: request.member,
            message: error.to_string(),
        });
        JudgeFailure::Error
    }

    /// Puts another judge in the place of one that panicked.
    #[cold]
    fn panicked(&mut self, request: &Request, message: String) -> JudgeFailure {
        let Request { request, member, .. } = *request;
        self.faults.note(JudgeFault::Panicked { judge: self.number, request, member, message });
        let broken = self.judge.take();
        // It may panic once more, and so may whoever makes the next.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        match catch_unwind(AssertUnwindSafe(|| made(&self.factory, self.number))) {
            Ok((judge, batch)) => (self.judge, self.batch) = (Some(judge), batch),
            Err(panic) => {
                self.faults.note(JudgeFault::NotMade { judge: self.number, message: panic_message(&*panic) });
            }
        }
        JudgeFailure::Panicked
    }
}
