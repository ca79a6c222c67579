//! The thread that stores trajectories.

use std::collections::VecDeque;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use doorbell_host::{DeviceError, TokenRegion};
use rtrb::{Consumer, Producer, RingBuffer};

use super::keep::{Keep, Pace};
use super::log::{Log, LogError, Volume};
use super::record::{Body, Finished, PromptBody, Span};
use super::spans::Spans;
use crate::pipeline::TrajectoryStage;
use crate::rollout::RolloutId;
use crate::threads::{Backoff, panic_message};

/// How the writer is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterOptions {
    /// Rollouts that may be on their way to disk at a time, 1 to 2^24: with as many as there are slots of rollouts,
    /// [`post`](WriterHandle::post) never finds the ring full.
    pub capacity: usize,
    /// Tokens of the longest answer that is expected; longer ones are stored too, but take memory when they come.
    pub longest: usize,
}

impl WriterOptions {
    /// Room for `capacity` rollouts on their way to disk at a time, and for answers of `longest` tokens.
    pub const fn new(capacity: usize, longest: usize) -> Self {
        Self { capacity, longest }
    }
}

/// Where the writer reads what the hot thread does not hand over.
#[derive(Clone, Debug)]
pub struct RolloutMemory {
    /// The device's token regions ([`Device::token_regions`](doorbell_host::Device::token_regions)).
    pub tokens: Vec<TokenRegion>,
    /// Its log-probability regions, one beside each token region; none if nobody asks for log-probabilities.
    pub logprobs: Vec<TokenRegion>,
    /// The rollouts' spans.
    pub spans: Spans,
}

/// Where the writer finds the prompts, to store each with its answers. It asks on its own thread.
pub trait PromptStore: Send {
    /// Writes the tokens of the prompt of `request` to `out`, which is as long as that, and returns the text that they were made of, if there is one.
    fn prompt(&mut self, request: u64, out: &mut [u32]) -> Option<&str>;
}

/// Why trajectories are not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriterError {
    /// The log failed.
    #[error("trajectories cannot be stored: {0}")]
    Log(#[from] LogError),

    /// The tokens could not be read.
    #[error("the tokens of rollout {rollout} cannot be read from token region {shard}: {error}")]
    Tokens {
        /// The rollout.
        rollout: RolloutId,
        /// Its region.
        shard: u32,
        /// Why.
        error: DeviceError,
    },

    /// There is no such region.
    #[error("rollout {rollout} names region {shard}, but there are {regions}")]
    NoRegion {
        /// The rollout.
        rollout: RolloutId,
        /// The region that it names.
        shard: u32,
        /// How many there are.
        regions: usize,
    },

    /// It has more spans than there is room for.
    #[error("rollout {rollout} has {spans} spans, but there is room for {longest}")]
    Spans {
        /// The rollout.
        rollout: RolloutId,
        /// Its spans.
        spans: u32,
        /// Spans that a rollout may have.
        longest: usize,
    },

    /// Whoever carries them away failed.
    #[error("trajectories cannot be carried: {0}")]
    Carrier(String),

    /// The writer could not be started.
    #[error("the writer of trajectories could not be started: {0}")]
    Start(io::Error),

    /// A capacity that cannot be.
    #[error("{0} rollouts cannot be on their way to disk at a time; give 1 to 2^24")]
    Capacity(usize),

    /// The writer panicked, which is a bug.
    #[error("the writer of trajectories panicked: {0}")]
    Panicked(String),
}

/// Why a rollout was not taken; it is handed back.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// The ring is full: try again when something has been stored.
    Full(Finished),
    /// The writer has failed and takes nothing more; [`TrajectoryStage::finish`] says why.
    Failed(Finished),
}

/// What the writer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Trajectories stored.
    pub trajectories: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// Groups in which they were written.
    pub groups: u64,
}

/// The hot thread's end of the writer. Nothing but [`finish`](TrajectoryStage::finish) waits, allocates or calls the system.
///
/// Dropped without it, the writer stores what was posted, and nobody learns how that went.
#[derive(Debug)]
pub struct WriterHandle {
    finished: Producer<Finished>,
    stored: Consumer<RolloutId>,
    writer: JoinHandle<Result<Stored, WriterError>>,
}

impl WriterHandle {
    /// Starts the thread that appends to `log` what is posted, with the rest read from `memory`.
    ///
    /// # Errors
    /// `Capacity`, or `Start` if there is no thread.
    pub fn start<V: Volume + 'static>(
        log: Log<V>,
        memory: RolloutMemory,
        options: WriterOptions,
    ) -> Result<Self, WriterError>
    where
        V::File: 'static,
    {
        Self::start_with_prompts(log, memory, options, None)
    }

    /// As [`start`](Self::start), and stores the prompts too.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_prompts<V: Volume + 'static>(
        log: Log<V>,
        memory: RolloutMemory,
        options: WriterOptions,
        prompts: Option<Box<dyn PromptStore>>,
    ) -> Result<Self, WriterError>
    where
        V::File: 'static,
    {
        Self::start_keeping(log, memory, options, prompts)
    }

    /// As [`start_with_prompts`](Self::start_with_prompts), with what keeps them in place of a log.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_keeping(
        keeper: impl Keep + 'static,
        memory: RolloutMemory,
        options: WriterOptions,
        prompts: Option<Box<dyn PromptStore>>,
    ) -> Result<Self, WriterError> {
        if !(1..=1 << 24).contains(&options.capacity) {
            return Err(WriterError::Capacity(options.capacity));
        }
        let (finished, to_store) = RingBuffer::new(options.capacity);
        let (done, stored) = RingBuffer::new(options.capacity);
        let mut writer = Writer {
            keeper,
            tokens: vec![0; options.longest],
            logprobs: if memory.logprobs.is_empty() { vec![] } else { Vec::with_capacity(options.longest) },
            spans: Vec::with_capacity(memory.spans.longest()),
            memory,
            prompts,
            prompt: vec![],
            to_store,
            done,
            waiting: VecDeque::with_capacity(options.capacity),
            capacity: options.capacity,
            sum: Stored::default(),
        };
        let writer = thread::Builder::new()
            .name("trajectories".into())
            .spawn(move || writer.run())
            .map_err(WriterError::Start)?;
        Ok(Self { finished, stored, writer })
    }
}

impl TrajectoryStage for WriterHandle {
    /// Hands a rollout over. Its slot and its tokens must stay as they are until [`stored`](Self::stored) returns its id.
    #[inline]
    fn post(&mut self, finished: Finished) -> Result<(), PostError> {
        if self.has_failed() {
            return Err(PostError::Failed(finished));
        }
        self.finished.push(finished).map_err(|_| PostError::Full(finished))
    }

    /// In the order in which they were posted.
    #[inline]
    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        self.stored.pop_partial_slice(out).0.len()
    }

    /// What has not come out of [`stored`](Self::stored) by then will not come.
    #[inline]
    fn has_failed(&self) -> bool {
        // As long as there is a handle the writer ends in no other way.
        self.writer.is_finished()
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        // Without a producer the ring ends; without a consumer the writer need not report.
        drop((self.finished, self.stored));
        self.writer.join().unwrap_or_else(|panic| Err(WriterError::Panicked(panic_message(&*panic))))
    }
}

struct Writer<K> {
    keeper: K,
    memory: RolloutMemory,
    prompts: Option<Box<dyn PromptStore>>,
    /// Tokens of the last prompt.
    prompt: Vec<u32>,
    to_store: Consumer<Finished>,
    done: Producer<RolloutId>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    spans: Vec<Span>,
    /// Appended and not yet reported, by number.
    waiting: VecDeque<(u64, RolloutId)>,
    capacity: usize,
    sum: Stored,
}

/// Reads the words of a rollout's answer from its region, into `out`, which grows to what it has to hold.
fn read<'a>(
    regions: &[TokenRegion],
    finished: &Finished,
    out: &'a mut Vec<u32>,
) -> Result<&'a [u32], WriterError> {
    let &Finished { rollout, shard, answer_tokens, offset, .. } = finished;
    let region = regions.get(shard as usize).ok_or(WriterError::NoRegion {
        rollout,
        shard,
        regions: regions.len(),
    })?;
    let count = answer_tokens as usize;
    // A length that no region has is refused before memory is taken for it.
    if 4 * u64::from(answer_tokens) > region.bytes() {
        let (bytes, size) = (4 * u64::from(answer_tokens), region.bytes());
        let error = DeviceError::OutOfBounds { what: "token region", offset, bytes, size };
        return Err(WriterError::Tokens { rollout, shard, error });
    }
    if out.len() < count {
        out.resize(count, 0);
    }
    let words = &mut out[..count];
    region.read(offset, words).map_err(|error| WriterError::Tokens { rollout, shard, error })?;
    Ok(words)
}

impl<K: Keep> Writer<K> {
    fn run(&mut self) -> Result<Stored, WriterError> {
        let mut idle = Backoff::default();
        // When the first record of the group came.
        let mut begun = None;
        loop {
            // Asked before the ring is: what was pushed before the end is still there then.
            let over = self.to_store.is_abandoned();
            let next = self.to_store.pop().ok();
            if let Some(finished) = &next {
                idle.reset();
                if let Err(error) = self.append(finished) {
                    // What came before it is whole, and is stored.
                    self.keeper.commit()?;
                    return Err(error);
                }
                begun.get_or_insert_with(Instant::now);
            }
            // With as many waiting as can be on their way, there is none to wait for.
            let Pace { is_full, delay } = self.keeper.pace();
            let full = is_full || self.waiting.len() >= self.capacity;
            let due = |begun: Instant| begun.elapsed() >= delay;
            if full || next.is_none() && (over || begun.is_some_and(due)) {
                self.keeper.commit()?;
                begun = None;
            }
            if let Err(error) = self.report() {
                // Whoever carries records away has failed, and the log has not.
                self.keeper.commit()?;
                return Err(error);
            }
            match next {
                Some(_) => {}
                None if over && self.waiting.is_empty() => {
                    return Ok(Stored { groups: self.keeper.groups(), ..self.sum });
                }
                None => idle.wait(),
            }
        }
    }

    fn append(&mut self, finished: &Finished) -> Result<(), WriterError> {
        let Writer { memory, tokens, logprobs, spans, .. } = self;
        logprobs.clear();
        if finished.has_logprobs {
            let words = read(&memory.logprobs, finished, tokens)?;
            logprobs.extend(words.iter().map(|&word| word as i32 as f32 / 65536.0));
        }
        let tokens = read(&memory.tokens, finished, tokens)?;
        let &Finished { rollout, spans: announced, .. } = finished;
        spans.clear();
        let noted = memory.spans.read(rollout.slot(), announced as usize);
        let longest = memory.spans.longest();
        spans.extend(noted.ok_or(WriterError::Spans { rollout, spans: announced, longest })?);
        let prompt = self.prompts.as_mut().map(|prompts| {
            self.prompt.resize(finished.prompt_tokens as usize, 0);
            let text = prompts.prompt(finished.request, &mut self.prompt);
            PromptBody { tokens: &self.prompt, text }
        });
        let number = self.keeper.append(finished, &Body { tokens, spans, logprobs, prompt })?;
        self.sum.tokens += tokens.len() as u64;
        self.waiting.push_back((number, rollout));
        Ok(())
    }

    /// Gives back the ids of what is stored. The ring has room for as many as can be on their way; where the hot thread
    /// takes none, the rest waits for the next time.
    fn report(&mut self) -> Result<(), WriterError> {
        let stored = self.keeper.stored()?;
        while let Some(&(number, rollout)) = self.waiting.front()
            && number < stored
        {
            if !self.done.is_abandoned() && self.done.push(rollout).is_err() {
                return Ok(());
            }
            self.waiting.pop_front();
            self.sum.trajectories += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
