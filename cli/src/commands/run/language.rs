//! Rollouts of a language model (engine 1): its weights, the prompts, and trajectories held to the oracle.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use doorbell_checkpoint::text::Text;
use doorbell_contract::{HwImage, PolicyMode};
use doorbell_devices::Kind;
use doorbell_host::{Device, DeviceError, QueueConfig};
use doorbell_lm::{About, Image, KvCap};
use doorbell_runtime::kv::AnswerCap;
use doorbell_runtime::pipeline::{
    Busy, Language, Lost, Options, Partial, PromptSource, Publisher, SequenceMemory, TrajectoryStage, Weights,
};
use doorbell_runtime::reward::{JudgeError, Texts};
use doorbell_runtime::rollout::RolloutId;
use doorbell_runtime::trajectory::{Finished, PostError, PromptStore, Stored, WriterError};
use doorbell_trace::{Request, Trace};
use doorbell_verify::language::Given;
use doorbell_verify::replay;

use super::Args;
use super::prompts::Prompts;
use crate::failure::Failure;
use crate::models;

/// Different weights that versions take in turn, if the model has as many layers.
const TURNS: usize = 4;
/// Bytes of KV blocks if nobody says how many blocks: no request has less than it needs.
pub const ARENA: u64 = 1 << 30;

/// The model of a run, and the weights that are published while it goes on.
#[derive(Clone)]
pub struct Models {
    /// By version, less 1, in turn.
    turns: Arc<Vec<replay::Language>>,
    seed: u32,
    /// Requests of the trace.
    requests: Arc<Vec<Request>>,
    /// Their prompts; without any the seed draws them.
    prompts: Option<Arc<Prompts>>,
    about: Arc<About>,
}

impl Models {
    /// The model that was asked for. Without a trainer the weights of the versions that follow are its own, with the layers in another order.
    pub fn new(
        args: &Args,
        image: Image,
        prompts: Option<Prompts>,
        trace: &mut Trace,
    ) -> Result<Models, Failure> {
        if args.trace.is_none() && prompts.is_none() {
            models::fit(trace, image.model.shape.context as u32);
        }
        let sharpness = models::sharpness(args.temperature)?;
        let (kind, _) = Kind::choose(&args.device)?;
        let turns = if args.publish_every > 0 { TURNS.min(image.model.shape.kv_layers()) } else { 1 };
        let turn = |turn| {
            let mut image = image.clone();
            image.model = image.model.turned(turn);
            let language = models::language_of(image)?;
            models::fits(&language.published, kind)?;
            Ok::<_, Failure>(replay::Language { sharpness, ..language })
        };
        let turns = (0..turns).map(turn).collect::<Result<_, _>>()?;
        Ok(Models {
            turns: Arc::new(turns),
            seed: args.seed,
            requests: Arc::new(trace.requests.clone()),
            prompts: prompts.map(Arc::new),
            about: Arc::new(image.about),
        })
    }

    /// The text of answers, and the prompts' reference answers, for judges.
    pub fn texts(&self) -> Result<Texts, Failure> {
        let (text, mut references) = match &self.prompts {
            Some(prompts) => (prompts.text.clone(), prompts.references.clone()),
            None => {
                let vocabulary = self.turns[0].version.model.shape.vocabulary;
                (Arc::new(Text::new(&self.about, vocabulary).map_err(Failure::input)?), vec![])
            }
        };
        references.truncate(self.requests.len());
        Ok(Texts::new(move |tokens| text.decode(tokens).map_err(JudgeError::new), references))
    }

    fn record(&self) -> HwImage {
        self.turns[0].published.at(0)
    }

    /// Bytes of the weights of a version.
    fn longest(&self) -> u64 {
        self.turns.iter().map(|turn| turn.published.memory.len() as u64).max().unwrap_or(0)
    }

    /// Bytes of a KV block.
    pub fn block_bytes(&self) -> u64 {
        self.record().block_bytes()
    }

    /// What the model sees, if it has a cap.
    pub fn cap(&self) -> Option<AnswerCap> {
        let KvCap { window, sinks } = self.turns[0].version.model.shape.kv_cap?;
        // Both are at most 65,536: refusal sees to that.
        Some(AnswerCap { window: window as u32, sinks: sinks as u32 })
    }

    /// How rollouts run it.
    pub fn language(&self, args: &Args) -> Language {
        Language {
            positions: self.record().positions,
            block_bytes: self.block_bytes(),
            sharpness: self.turns[0].sharpness.0,
            max_prompt_tokens: self.requests.iter().map(|request| request.prompt_tokens).max().unwrap_or(0),
            prefill_tokens: args.prefill_tokens,
            swap_blocks: args.swap_blocks,
        }
    }

    /// Adds the regions that it needs.
    pub fn regions(&self, options: &Options, blocks: u32, config: QueueConfig) -> QueueConfig {
        QueueConfig {
            kv_bytes: options.kv_bytes(),
            model_bytes: Weights::region_bytes(self.longest(), self.turns.len() > 1),
            arena_bytes: [u64::from(blocks) * self.block_bytes(), 0, 0, 0],
            sequence_bytes: options.sequence_bytes(),
            ..config
        }
    }

    /// Place in the trace of a request with this number: the trace may run some times over.
    fn place(&self, number: u64) -> usize {
        (number % self.requests.len() as u64) as usize
    }

    /// The prompts of the requests.
    pub fn prompts(&self) -> Box<dyn PromptSource> {
        let models = self.clone();
        Box::new(move |number: u64, request: &Request, out: &mut [u32]| match &models.prompts {
            Some(prompts) => out.copy_from_slice(&prompts.tokens[models.place(number)]),
            None => models.turns[0].draw_prompt(models.seed, number as u32, &request.prefix, out),
        })
    }

    /// The same, with their texts, for the log.
    pub fn stored_prompts(&self) -> Box<dyn PromptStore> {
        Box::new(StoredPrompts { source: self.prompts(), models: self.clone() })
    }

    /// Where its versions are laid on a device.
    pub fn weights(&self, device: &dyn Device) -> Publishing {
        Publishing { weights: Weights::new(device, self.longest()), models: self.clone() }
    }

    fn of(&self, version: u16) -> &replay::Language {
        &self.turns[usize::from(version.wrapping_sub(1)) % self.turns.len()]
    }

    /// Holds a sequence to the oracle.
    fn check(&self, memory: &SequenceMemory, finished: &Finished) -> Result<(), String> {
        let failed = |error: DeviceError| error.to_string();
        let sequence = memory.read(finished).map_err(failed)?;
        let request = &self.requests[self.place(finished.request)];
        let mut prompt = vec![0; request.prompt_tokens as usize];
        self.prompts().prompt(finished.request, request, &mut prompt);
        let spans: Vec<_> =
            sequence.spans.iter().map(|&(end, version)| (end, &self.of(version).version)).collect();
        let given = Given {
            prompt: &prompt,
            tokens: &sequence.tokens,
            logps: sequence.logps.as_deref(),
            blocks: sequence.blocks.as_deref(),
        };
        given.check(&spans, self.turns[0].sampling(finished.seed, finished.device_rollout))
    }
}

/// The prompts as the log keeps them.
struct StoredPrompts {
    source: Box<dyn PromptSource>,
    models: Models,
}

impl PromptStore for StoredPrompts {
    fn prompt(&mut self, request: u64, out: &mut [u32]) -> Option<&str> {
        let place = self.models.place(request);
        self.source.prompt(request, &self.models.requests[place], out);
        Some(self.models.prompts.as_ref()?.texts.get(place)?)
    }
}

/// Lays versions out and publishes them.
pub struct Publishing {
    weights: Weights,
    models: Models,
}

impl Publishing {
    /// Asks for a version to be published.
    pub fn publish(&self, publisher: &mut Publisher, version: u16, mode: PolicyMode) -> Result<(), Failure> {
        let published = &self.models.of(version).published;
        let image = published.at(self.weights.lay(&published.memory)?);
        publisher
            .publish_weights(version, image, mode)
            .map_err(|Busy| Failure::failed("too many versions wait to be published"))
    }

    /// The last one is resident.
    pub fn published(&mut self) {
        self.weights.published();
    }
}

/// What the oracle says of the trajectories.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Trajectories that were held to it.
    pub checked: u64,
    /// Those that differ.
    pub different: u64,
    /// How the first of them does.
    pub first: Option<String>,
}

/// A stage that holds each trajectory to the oracle, on a thread of its own, before it hands it on.
pub struct Checked {
    inner: Box<dyn TrajectoryStage>,
    to: SyncSender<Finished>,
    from: Receiver<Finished>,
    /// Checked, and not yet taken by the stage behind.
    waiting: Option<Finished>,
    thread: JoinHandle<()>,
}

impl Checked {
    /// In front of `inner`, for `slots` rollouts at a time. What comes of it is told in the second.
    pub fn start(
        inner: Box<dyn TrajectoryStage>,
        models: Models,
        memory: SequenceMemory,
        slots: u32,
    ) -> Result<(Checked, Arc<Mutex<Verdict>>), Failure> {
        let (to, finished) = sync_channel::<Finished>(slots as usize);
        let (done, from) = sync_channel(slots as usize);
        let verdict = Arc::new(Mutex::new(Verdict::default()));
        let noted = verdict.clone();
        let check = move || {
            for finished in finished {
                let found = models.check(&memory, &finished);
                let mut verdict = noted.lock().unwrap_or_else(PoisonError::into_inner);
                verdict.checked += 1;
                if let Err(what) = found {
                    verdict.different += 1;
                    let Finished { request, member, .. } = finished;
                    verdict.first.get_or_insert(format!("request {request}, member {member}: {what}"));
                }
                drop(verdict);
                // Where nobody takes it any more the run is over.
                let _ = done.send(finished);
            }
        };
        let thread = thread::Builder::new().name("oracle".into()).spawn(check);
        let thread = thread
            .map_err(|error| Failure::failed(format!("the oracle's thread could not be started: {error}")))?;
        Ok((Checked { inner, to, from, waiting: None, thread }, verdict))
    }
}

impl TrajectoryStage for Checked {
    fn post(&mut self, finished: Finished) -> Result<(), PostError> {
        match self.to.try_send(finished) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(finished)) => Err(PostError::Full(finished)),
            Err(TrySendError::Disconnected(finished)) => Err(PostError::Failed(finished)),
        }
    }

    fn stored(&mut self, out: &mut [RolloutId]) -> usize {
        while let Some(finished) = self.waiting.take().or_else(|| self.from.try_recv().ok()) {
            if self.inner.post(finished).is_err() {
                self.waiting = Some(finished);
                break;
            }
        }
        self.inner.stored(out)
    }

    fn lost(&mut self, lost: Lost, partial: Partial) {
        self.inner.lost(lost, partial);
    }

    fn has_failed(&self) -> bool {
        self.thread.is_finished() || self.inner.has_failed()
    }

    fn finish(self: Box<Self>) -> Result<Stored, WriterError> {
        let Checked { inner, to, from, thread, .. } = *self;
        drop((to, from));
        match thread.join() {
            Ok(()) => inner.finish(),
            Err(_) => inner.finish().and(Err(WriterError::Panicked("the oracle panicked".into()))),
        }
    }
}
