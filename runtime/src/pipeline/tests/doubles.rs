//! Stages that take their time, as a seed decides.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use doorbell_contract::{CompletionFlags, Counter, DescFlags, HwDesc, HwEvent, Opcode, WorkerCounter};
use doorbell_host::language::LanguageRegions;
use doorbell_host::why::Why;
use doorbell_host::{
    Counters as DeviceCounters, DeviceError, Features, QueueCounters, TokenRegion, WorkerCounters,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::super::*;
use crate::reward::{self, Request, Scorer, Shutdown, Ticket};
use crate::trajectory::{self, Finished, Span, Spans, Stored, WriterError};

/// A rollout with its tokens at the moment at which it was stored.
pub type Note = (Finished, Vec<u32>);

/// What was stored.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<Note>>>, Arc<Mutex<Vec<Lost>>>, SpansOf);

/// Spans of what was stored, by request and member.
type SpansOf = Arc<Mutex<HashMap<(u64, u32), Vec<Span>>>>;

impl Notes {
    /// Rollouts of which the writer heard that they leave nothing.
    pub fn lost(&self) -> Vec<Lost> {
        std::mem::take(&mut self.1.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The spans of a rollout that was stored.
    pub fn spans(&self, finished: &Finished) -> Vec<Span> {
        let all = self.2.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(finished.request, finished.member)).cloned().unwrap_or_default()
    }

    pub fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn random(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

/// What a device does between the pipeline and another device.
pub trait Trick: Send {
    /// Hands on as much of `batch` as it likes.
    fn submit(&mut self, inner: &mut dyn Device, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        inner.submit(batch)
    }

    /// Gives completions; `poll` says whether there is time for more than those that are there.
    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError>;

    /// Hands a descriptor on to one queue pair.
    fn submit_to(
        &mut self,
        inner: &mut dyn Device,
        queue: usize,
        desc: &HwDesc,
    ) -> Result<bool, DeviceError> {
        inner.submit_to(queue, desc)
    }

    /// What the device says that it can do.
    fn features(&self, inner: &dyn Device) -> Features {
        inner.features()
    }

    /// The descriptor that a completion answers without naming it.
    fn unread(&self, inner: &dyn Device, completion: &HwCompletion) -> Option<HwDesc> {
        inner.unread(completion)
    }

    /// Completions that it holds back.
    fn held(&self) -> usize {
        0
    }
}

/// What the device itself gives.
fn fetch(inner: &mut dyn Device, out: &mut [HwCompletion], poll: bool) -> Result<usize, DeviceError> {
    if poll { inner.poll(out) } else { inner.collect(out) }
}

/// A device that plays a trick.
pub struct Tricky<T> {
    pub inner: Box<dyn Device>,
    pub trick: T,
}

impl<T: Trick> Device for Tricky<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn submit(&mut self, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        self.trick.submit(&mut *self.inner, batch)
    }

    fn poll(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.trick.take(&mut *self.inner, out, true)
    }

    fn collect(&mut self, out: &mut [HwCompletion]) -> Result<usize, DeviceError> {
        self.trick.take(&mut *self.inner, out, false)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.trick.held()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn tokens(&self, delta_offset: u64, out: &mut [u32]) -> Result<(), DeviceError> {
        self.inner.tokens(delta_offset, out)
    }

    fn token_regions(&self) -> Vec<TokenRegion> {
        self.inner.token_regions()
    }

    fn token_shard(&self, delta_offset: u64) -> usize {
        self.inner.token_shard(delta_offset)
    }

    fn unread(&self, completion: &HwCompletion) -> Option<HwDesc> {
        self.trick.unread(&*self.inner, completion)
    }

    fn events(&mut self, out: &mut [HwEvent]) -> Result<usize, DeviceError> {
        self.inner.events(out)
    }

    fn ticks(&mut self) -> Option<u64> {
        self.inner.ticks()
    }

    fn answered(&self, event: &HwEvent) -> Option<u64> {
        self.inner.answered(event)
    }

    fn taken(&self, queue: usize) -> Option<u32> {
        self.inner.taken(queue)
    }

    fn why(&mut self) -> Result<Vec<(usize, Why)>, DeviceError> {
        self.inner.why()
    }

    /// One worker that has made all tokens: the golden model does not count by worker.
    fn queue_counters(&mut self) -> Result<Vec<QueueCounters>, DeviceError> {
        self.inner.queue_counters()
    }

    fn worker_counters(&mut self) -> Result<Vec<WorkerCounters>, DeviceError> {
        let tokens = self.inner.counters()?.get(Counter::Tokens);
        let count = |counter| Ok(if counter == WorkerCounter::Tokens { tokens } else { 0 });
        Ok(vec![WorkerCounters::read(count)?])
    }

    fn features(&self) -> Features {
        self.trick.features(&*self.inner)
    }

    fn queue_of(&self, desc: &HwDesc) -> usize {
        self.inner.queue_of(desc)
    }

    fn functions(&self) -> Vec<usize> {
        self.inner.functions()
    }

    fn submit_to(&mut self, queue: usize, desc: &HwDesc) -> Result<bool, DeviceError> {
        self.trick.submit_to(&mut *self.inner, queue, desc)
    }

    fn logp_regions(&self) -> Vec<TokenRegion> {
        self.inner.logp_regions()
    }

    fn language_regions(&self) -> Vec<LanguageRegions> {
        self.inner.language_regions()
    }

    fn counters(&mut self) -> Result<DeviceCounters, DeviceError> {
        self.inner.counters()
    }

    fn disable(&mut self) -> Result<(), DeviceError> {
        self.inner.disable()
    }

    fn enable(&mut self) -> Result<(), DeviceError> {
        self.inner.enable()
    }
}

/// Takes one descriptor at a time, as if its queues were full. So STOPs go elsewhere than they would have when they were made: the DECODE before them
/// was not submitted yet then, or has completed meanwhile.
pub struct Sips;

impl Trick for Sips {
    fn submit(&mut self, inner: &mut dyn Device, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        inner.submit(&batch[..batch.len().min(1)])
    }

    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        fetch(inner, out, poll)
    }
}

/// Completions come in any order that R5 and R17 allow, some of them at a time.
pub struct Shuffle {
    random: ChaCha8Rng,
    /// Completions of each rollout, in order, each with its number among all and its group's prefix.
    held: Vec<VecDeque<Held>>,
    places: HashMap<u32, usize>,
    /// The group of each descriptor that was submitted, by `user_data`, and those that open one.
    prefixes: HashMap<u64, u32>,
    openers: HashSet<u64>,
    count: usize,
    number: u64,
}

struct Held {
    completion: HwCompletion,
    number: u64,
    prefix: Option<u32>,
}

impl Shuffle {
    pub fn new(seed: u64) -> Self {
        Self {
            random: random(seed, 1),
            held: vec![],
            places: HashMap::new(),
            prefixes: HashMap::new(),
            openers: HashSet::new(),
            count: 0,
            number: 0,
        }
    }

    fn hold(&mut self, completion: HwCompletion) {
        let place = *self.places.entry(completion.rollout_id).or_insert_with(|| {
            self.held.push(VecDeque::new());
            self.held.len() - 1
        });
        let prefix = self.prefixes.get(&completion.user_data).copied();
        self.number += 1;
        self.held[place].push_back(Held { completion, number: self.number, prefix });
        self.count += 1;
    }

    /// GROUP_DONE comes behind all that its group had before it, and before all that comes behind it there, and what opens a group before all
    /// of it (R17): a host sees the completions of a queue pair in one order.
    fn may_come(&self, place: usize) -> bool {
        let Some(held) = self.held[place].front() else { return false };
        let done = |held: &Held| {
            held.completion.has(CompletionFlags::GROUP_DONE)
                || self.openers.contains(&held.completion.user_data)
        };
        let before = |other: &&Held| {
            other.prefix.is_some() && other.prefix == held.prefix && other.number < held.number
        };
        !self.held.iter().flatten().filter(before).any(|other| done(held) || done(other))
    }
}

impl Trick for Shuffle {
    /// Now and then fewer than there was said to be room for.
    fn submit(&mut self, inner: &mut dyn Device, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        let some = if self.random.next_u32().is_multiple_of(8) { batch.len() / 2 } else { batch.len() };
        let taken = inner.submit(&batch[..some])?;
        let opens = |desc: &HwDesc| desc.opcode == Opcode::Prefill as u8 && desc.max_tokens > 0;
        for desc in &batch[..taken] {
            if opens(desc) {
                self.openers.insert(desc.user_data);
            } else {
                // A part of the prompt of another group that had this name.
                self.openers.remove(&desc.user_data);
                self.prefixes.remove(&desc.user_data);
            }
            if opens(desc) || desc.flags & DescFlags::COW_PREFIX.bits() != 0 {
                self.prefixes.insert(desc.user_data, desc.prefix_id);
            }
        }
        Ok(taken)
    }

    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        if poll && inner.in_flight() > 0 {
            let mut fresh = [HwCompletion::default(); 16];
            let count = inner.poll(&mut fresh)?;
            fresh[..count].iter().for_each(|&completion| self.hold(completion));
        }
        let wanted = (self.random.next_u32() as usize % 4).min(out.len()).min(self.count);
        for out in &mut out[..wanted] {
            let live: Vec<usize> = (0..self.held.len()).filter(|&place| self.may_come(place)).collect();
            let place = live[self.random.next_u32() as usize % live.len()];
            *out = self.held[place].pop_front().unwrap().completion;
            self.count -= 1;
        }
        Ok(wanted)
    }

    fn held(&self) -> usize {
        self.count
    }
}

/// Nothing ever completes.
pub struct Mute;

impl Trick for Mute {
    fn take(&mut self, _: &mut dyn Device, _: &mut [HwCompletion], _: bool) -> Result<usize, DeviceError> {
        Ok(0)
    }
}

/// What the device gives is edited: the completions that there are and how many; then how many there are now.
pub struct Edited<F>(pub F);

impl<F: FnMut(&mut [HwCompletion], usize) -> usize + Send> Trick for Edited<F> {
    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        let count = fetch(inner, out, poll)?;
        Ok((self.0)(out, count))
    }
}

/// One completion is rewritten: number `nth`, from 1.
pub fn tampered(mut nth: usize, tamper: fn(&mut HwCompletion)) -> impl Trick {
    Edited(move |out: &mut [HwCompletion], count: usize| {
        if let Some(completion) = nth.checked_sub(1).and_then(|place| out[..count].get_mut(place)) {
            tamper(completion);
        }
        nth = nth.saturating_sub(count);
        count
    })
}

/// Completions of DECODEs come behind those of REWARDs that are there: as R5 forbids.
pub fn overtaking() -> impl Trick {
    let mut held: Vec<HwCompletion> = vec![];
    Edited(move |out: &mut [HwCompletion], count: usize| {
        held.extend(&out[..count]);
        let scored = |end: &HwCompletion| end.status == doorbell_contract::Status::Scored as u8;
        if !held.iter().any(scored) {
            return 0;
        }
        held.sort_by_key(|end| !scored(end));
        let count = held.len().min(out.len());
        out.iter_mut().zip(held.drain(..count)).for_each(|(out, end)| *out = end);
        count
    })
}

/// Says that it can do less.
pub struct Less(pub Features);

impl Trick for Less {
    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        fetch(inner, out, poll)
    }

    fn features(&self, inner: &dyn Device) -> Features {
        inner.features().and(self.0)
    }
}

/// What goes to the device and what comes back, for a test to look at.
pub struct Watched<S, C> {
    pub sent: S,
    pub came: C,
}

impl<S: FnMut(&HwDesc) + Send, C: FnMut(&HwCompletion) + Send> Trick for Watched<S, C> {
    fn submit(&mut self, inner: &mut dyn Device, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        let taken = inner.submit(batch)?;
        batch[..taken].iter().for_each(&mut self.sent);
        Ok(taken)
    }

    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        let count = fetch(inner, out, poll)?;
        out[..count].iter().for_each(&mut self.came);
        Ok(count)
    }
}

/// The first completion is given again.
pub fn repeated() -> impl Trick {
    let (mut first, mut again) = (None, false);
    Edited(move |out: &mut [HwCompletion], count: usize| {
        match first {
            None if count > 0 => first = Some(out[0]),
            Some(first) if !again && count < out.len() => {
                again = true;
                out[count] = first;
                return count + 1;
            }
            _ => {}
        }
        count
    })
}

/// A reward stage that takes and gives when it feels like it, and in any order.
pub struct Moody<R> {
    inner: R,
    random: ChaCha8Rng,
    held: Vec<Judged>,
}

impl<R: RewardStage> Moody<R> {
    pub fn new(inner: R, seed: u64) -> Self {
        Self { inner, random: random(seed, 2), held: vec![] }
    }
}

impl<R: RewardStage> RewardStage for Moody<R> {
    fn post(&mut self, request: Request) -> Result<(), reward::PostError> {
        if self.random.next_u32().is_multiple_of(3) {
            return Err(reward::PostError::Full(request));
        }
        self.inner.post(request)
    }

    fn post_group(&mut self, requests: &[Request]) -> Result<(), reward::GroupPostError> {
        if self.random.next_u32().is_multiple_of(3) {
            return Err(reward::GroupPostError::Full);
        }
        self.inner.post_group(requests)
    }

    fn collect(&mut self, out: &mut [Judged]) -> Result<usize, RuntimeError> {
        let mut fresh = vec![nothing_judged(); 16];
        let count = self.inner.collect(&mut fresh)?;
        self.held.extend(&fresh[..count]);
        let wanted = (self.random.next_u32() as usize % 4).min(out.len()).min(self.held.len());
        for out in &mut out[..wanted] {
            let place = self.random.next_u32() as usize % self.held.len();
            *out = self.held.swap_remove(place);
        }
        Ok(wanted)
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.held.len()
    }

    fn shutdown(self: Box<Self>, patience: Duration) -> Shutdown {
        Box::new(self.inner).shutdown(patience)
    }

    fn scorer(&self) -> Scorer {
        self.inner.scorer()
    }

    /// Not always when it is asked.
    fn descriptor(&mut self) -> Option<HwDesc> {
        if self.random.next_u32().is_multiple_of(3) { None } else { self.inner.descriptor() }
    }

    fn completed(
        &mut self,
        name: u64,
        completion: &HwCompletion,
    ) -> Result<(RolloutId, Ticket), &'static str> {
        self.inner.completed(name, completion)
    }

    fn follows(&self) -> bool {
        self.inner.follows()
    }

    fn first_refused(&self) -> Option<&HwCompletion> {
        self.inner.first_refused()
    }
}

/// A reward stage that takes all and never answers.
#[derive(Default)]
pub struct Silent(usize);

impl RewardStage for Silent {
    fn post(&mut self, _: Request) -> Result<(), reward::PostError> {
        self.0 += 1;
        Ok(())
    }

    fn post_group(&mut self, requests: &[Request]) -> Result<(), reward::GroupPostError> {
        self.0 += requests.len();
        Ok(())
    }

    fn collect(&mut self, _: &mut [Judged]) -> Result<usize, RuntimeError> {
        Ok(0)
    }

    fn pending(&self) -> usize {
        self.0
    }

    fn shutdown(self: Box<Self>, _: Duration) -> Shutdown {
        Shutdown::default()
    }
}

/// The descriptor at running index `index`, from 0, lies in a slot that cannot be read.
pub struct Unreadable {
    index: u32,
    /// Whether the device can tell what lay there.
    tells: bool,
    submitted: Vec<HwDesc>,
    done: bool,
}

impl Unreadable {
    pub fn new(index: u32, tells: bool) -> Self {
        Self { index, tells, submitted: vec![], done: false }
    }
}

impl Trick for Unreadable {
    fn submit(&mut self, inner: &mut dyn Device, batch: &[HwDesc]) -> Result<usize, DeviceError> {
        // Nothing of it is executed.
        let mut read = batch.to_vec();
        let lost = (self.index as usize).checked_sub(self.submitted.len());
        if let Some(desc) = lost.and_then(|place| read.get_mut(place)) {
            let HwDesc { rollout_id, user_data, .. } = *desc;
            *desc = HwDesc { rollout_id, user_data, ..HwDesc::nop() };
        }
        let taken = inner.submit(&read)?;
        self.submitted.extend(&batch[..taken]);
        Ok(taken)
    }

    fn take(
        &mut self,
        inner: &mut dyn Device,
        out: &mut [HwCompletion],
        poll: bool,
    ) -> Result<usize, DeviceError> {
        let count = fetch(inner, out, poll)?;
        let lost = self.submitted.get(self.index as usize);
        for completion in &mut out[..count] {
            if lost.is_some_and(|lost| lost.user_data == completion.user_data) && !self.done {
                self.done = true;
                *completion = HwCompletion {
                    sq_head: completion.sq_head,
                    status: 0xFF,
                    error: doorbell_contract::ErrorCode::DmaFault as u8,
                    flags: doorbell_contract::CompletionFlags::NO_ECHO.bits(),
                    result: self.index,
                    ..HwCompletion::default()
                };
            }
        }
        Ok(count)
    }

    fn unread(&self, _: &dyn Device, completion: &HwCompletion) -> Option<HwDesc> {
        let known = self.tells && completion.has(CompletionFlags::NO_ECHO);
        self.submitted.get(completion.result as usize).copied().filter(|_| known)
    }
}

/// Looks at what is stored.
pub type Check = Box<dyn Fn(&Finished) + Send>;

/// A writer that notes what it gets, when it feels like it.
pub struct Store {
    regions: Vec<TokenRegion>,
    spans: Spans,
    notes: Notes,
    random: ChaCha8Rng,
    held: Vec<Finished>,
    /// Holds what is stored to the oracle of engine 1.
    pub check: Option<Check>,
}

impl Store {
    pub fn new(regions: Vec<TokenRegion>, spans: Spans, notes: Notes, seed: u64) -> Self {
        Self { regions, spans, notes, random: random(seed, 3), held: vec![], check: None }
    }
}

impl TrajectoryStage for Store {
    fn post(&mut self, finished: Finished) -> Result<(), trajectory::PostError> {
        if self.random.next_u32().is_multiple_of(3) {
            return Err(trajectory::PostError::Full(finished));
        }
        self.held.push(finished);
        Ok(())
    }

    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        let wanted = (self.random.next_u32() as usize % 4).min(out.len()).min(self.held.len());
        for out in &mut out[..wanted] {
            let place = self.random.next_u32() as usize % self.held.len();
            let finished = self.held.swap_remove(place);
            // The tokens are read as late as they may be.
            let mut tokens = vec![0; finished.answer_tokens as usize];
            self.regions[finished.shard as usize].read(finished.offset, &mut tokens).unwrap();
            *out = finished.rollout;
            if let Some(check) = &self.check {
                check(&finished);
            }
            let spans = self.spans.read(finished.rollout.slot(), finished.spans as usize).unwrap().collect();
            let mut all = self.notes.2.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert((finished.request, finished.member), spans);
            drop(all);
            self.notes.0.lock().unwrap_or_else(PoisonError::into_inner).push((finished, tokens));
        }
        wanted
    }

    fn lost(&mut self, lost: Lost, _: Partial) {
        self.notes.1.lock().unwrap_or_else(PoisonError::into_inner).push(lost);
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        Ok(Stored::default())
    }
}

/// A writer that takes all and stores nothing.
pub struct Stuck;

impl TrajectoryStage for Stuck {
    fn post(&mut self, _: Finished) -> Result<(), trajectory::PostError> {
        Ok(())
    }

    fn stored(&mut self, _: &mut [RolloutId]) -> usize {
        0
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        Ok(Stored::default())
    }
}
