//! The engine: a pipeline of the runtime on a thread of its own, and all that reaches it.

mod ask;
mod control;
mod intake;
mod teller;
mod versions;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use doorbell_checkpoint::text::Text;
use doorbell_contract::{Capability, MEMBERS_MAX, PolicyMode};
use doorbell_host::{Device, QueueConfig};
use doorbell_npu::Published;
use doorbell_runtime::events::Clock;
use doorbell_runtime::kv::{AnswerCap, AnswerStart, PrefixConfig, Prefixes, Sharing};
use doorbell_runtime::metrics::Metrics;
use doorbell_runtime::pipeline::{
    Cache, Credits, Language, LanguageParts, Options, Parts, Pipeline, PromptSpans, Weights,
};
use doorbell_runtime::policy::PolicyKind;
use doorbell_runtime::reward::Prompts;
use doorbell_runtime::trajectory::Spans;
use tokio::sync::{mpsc, oneshot, watch};

pub use ask::{Ask, End, Finish, Piece, Stops, VersionSpan};
pub use intake::{Load, Refused};

use ask::Job;
use control::{Command, Control};
use intake::{Intake, Queue};
use teller::Memory;
use versions::Names;

use crate::fault::{self, Fault, Wait};

/// Tokens of a KV block.
const BLOCK_TOKENS: u32 = 32;
/// How long the hot thread rests at a time while nothing lives.
const REST: Duration = Duration::from_millis(50);
/// The same while rollouts wait at the gate, and something might be aborted or published.
const SHORT_REST: Duration = Duration::from_micros(200);

/// How large an engine is.
#[derive(Clone, Debug)]
pub struct Size {
    /// Rollouts at a time.
    pub slots: u32,
    /// Answers to a prompt, at most 64 of them.
    pub members: u32,
    /// Longest prompt, in tokens.
    pub prompt_tokens: u32,
    /// Longest answer, in tokens.
    pub answer_tokens: u32,
    /// Blocks of keys and values, of 32 positions each.
    pub blocks: u32,
    /// Whether keys and values are kept for later asks.
    pub keeps: bool,
    /// Asks that may wait for room.
    pub waiting: usize,
    /// Tokens between checkpoints of answers that are told as they come, or end by a stop of the client's.
    pub checkpoint: u32,
    /// Decides what is drawn for asks without a key.
    pub seed: u32,
    /// A fault that is planted, for suites that look for it.
    pub fault: Option<Fault>,
}

impl Size {
    /// Options of the pipeline, for a model.
    pub fn options(&self, model: &Published) -> Options {
        let record = model.at(0);
        Options {
            slots: self.slots,
            group: self.members.clamp(1, MEMBERS_MAX.min(self.slots)),
            checkpoint: self.checkpoint,
            eos_stops: true,
            seed: self.seed,
            max_output_tokens: self.answer_tokens,
            credits: Credits::new(self.slots),
            logprobs: true,
            scores_prompts: true,
            language: Some(Language {
                positions: record.positions,
                block_bytes: record.block_bytes(),
                sharpness: 0,
                max_prompt_tokens: self.prompt_tokens,
                prefill_tokens: 0,
                swap_blocks: 0,
            }),
            ..Options::default()
        }
    }

    /// What the device's queue pair needs.
    pub fn queue(&self, model: &Published, config: QueueConfig) -> QueueConfig {
        let options = self.options(model);
        QueueConfig {
            token_bytes: options.token_bytes(),
            logp_bytes: options.logp_bytes(),
            kv_bytes: options.kv_bytes(),
            model_bytes: Weights::region_bytes(model.memory.len() as u64, true),
            arena_bytes: [u64::from(self.blocks) * model.at(0).block_bytes(), 0, 0, 0],
            // An ask may have its draws truncated, which a GPU keeps the logits for.
            sequence_bytes: options.sequence_bytes()
                + (4 * u64::from(model.at(0).vocabulary)).next_multiple_of(64),
            length_limit: options.length_limit,
            ..config
        }
    }

    /// Blocks that an ask needs.
    fn need(cap: Option<AnswerCap>, prompt: u32, answer: u32, members: u32) -> u32 {
        let prompt = prompt.saturating_sub(1);
        let (whole, partial) = (prompt / BLOCK_TOKENS, prompt % BLOCK_TOKENS);
        let most = cap.map_or(u32::MAX, |cap| cap.blocks(BLOCK_TOKENS, whole));
        let each = (partial + answer).div_ceil(BLOCK_TOKENS).min(most);
        whole + u32::from(partial > 0) + members.saturating_mul(each)
    }
}

/// What bounds the blocks of an answer of this model.
fn cap_of(model: &Published) -> Option<AnswerCap> {
    // Both are at most 65,536: an image is refused otherwise.
    model.kv_cap.map(|cap| AnswerCap { window: cap.window as u32, sinks: cap.sinks as u32 })
}

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The pipeline cannot be.
    #[error("{0}")]
    Pipeline(String),
    /// The device lacks something.
    #[error("device {device} {lacks}")]
    Device {
        /// Its name.
        device: String,
        /// What it lacks, and what to do.
        lacks: &'static str,
    },
    /// A thread could not be started.
    #[error("a thread of the engine could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Whether the engine decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pause {
    /// It does.
    #[default]
    Running,
    /// What decodes goes on, and nothing new begins.
    Holding,
    /// Nothing decodes: rollouts stay where they are.
    Resting,
}

/// What a pause does to rollouts that decode. New ones wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// They end with what they have, and so does what waits.
    Abort,
    /// They go on to their end.
    Wait,
    /// They stay where they are.
    Keep,
}

/// Why nothing says that the engine is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPaused {
    /// It has ended.
    #[error("the engine has ended; /health says why")]
    Ended,
    /// Somebody resumed it, or paused it in another way, while this pause waited for rollouts to end.
    #[error(
        "the engine was resumed, or paused in another way, before all rollouts had ended; send the pause again"
    )]
    Overtaken,
}

/// A running engine. It ends when this is dropped, or by [`Engine::stop`].
#[derive(Debug)]
pub struct Engine {
    intake: Arc<Intake>,
    commands: Sender<Command>,
    cache: Cache,
    metrics: Arc<Metrics>,
    size: Size,
    /// What bounds the blocks of an answer.
    cap: Option<AnswerCap>,
    /// Whether the device truncates draws.
    truncates: bool,
    device: String,
    /// Only the control thread sets it.
    pause: watch::Receiver<Pause>,
    names: Names,
    /// Why the hot thread ended, once it has.
    failure: Arc<Mutex<Option<String>>>,
    hot: Mutex<Option<JoinHandle<()>>>,
}

/// An ask that lives. Whoever drops it before its end aborts it.
#[derive(Debug)]
pub struct Answers {
    /// What comes of it.
    pub pieces: mpsc::UnboundedReceiver<Piece>,
    /// Names it for [`Engine::abort`].
    pub ticket: u64,
    /// How many answers end.
    pub members: u32,
    cancelled: Arc<AtomicBool>,
    intake: Arc<Intake>,
    commands: Sender<Command>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some(number) = self.intake.cancel(self.ticket) {
            // Where the control is gone the engine has ended.
            let _ = self.commands.send(Command::Abort(number));
        }
    }
}

impl Engine {
    /// Starts one on `device`, which was opened with [`Size::queue`], and publishes `model` as the version `name`.
    ///
    /// # Errors
    /// If the device or the size cannot run it.
    pub fn start(
        device: Box<dyn Device>,
        size: Size,
        model: Published,
        text: Arc<Text>,
        name: &str,
    ) -> Result<Engine, StartError> {
        let options = size.options(&model);
        let features = device.features();
        let device_name = device.name().to_owned();
        let lacks = |lacks| StartError::Device { device: device_name.clone(), lacks };
        if features.engines < 2 {
            return Err(lacks("has no engine for language models (CAP_ENGINES); use one that has"));
        }
        if features.policy_slots < 2 {
            return Err(lacks("has one version of the policy only (CAP_POLICY_SLOTS); use one that has two"));
        }
        if !features.capability.contains(Capability::LOGP) {
            return Err(lacks("gives no log-probabilities (LOGP); use one that does"));
        }
        let slots = options.slots;
        let spans = Spans::new(slots, options.max_output_tokens);
        let made = PromptSpans::new(&options);
        let memory = Memory {
            tokens: device.token_regions(),
            logps: device.logp_regions(),
            spans: spans.clone(),
            made: made.clone(),
            options: options.clone(),
        };
        let intake = Arc::new(Intake::default());
        let names = Names::default();
        let (told, checkpoints, answers) = teller::start(text, names.clone(), intake.clone(), &memory)?;
        let (commands, commanded) = channel();
        let mut queue = Queue::new(intake.clone(), told, commands.clone(), size.checkpoint);
        let failed = |error: &dyn std::fmt::Display| StartError::Pipeline(error.to_string());
        let cap = cap_of(&model);
        let kv = Prefixes::new(PrefixConfig {
            blocks: size.blocks,
            block_tokens: BLOCK_TOKENS,
            sharing: if size.keeps { Sharing::Tokens } else { Sharing::Group },
            answer_start: AnswerStart::SamePage,
            nodes: size.blocks.max(size.prompt_tokens.div_ceil(BLOCK_TOKENS)),
            prefixes: slots,
            branches: slots,
            prompt_tokens: size.prompt_tokens,
            answer_tokens: size.answer_tokens,
            cap,
        })
        .map_err(|error| failed(&error))?;
        let metrics = Arc::new(Metrics::new(&format!("serve on {device_name}"), Clock::new(), None));
        let weights = Weights::new(&*device, model.memory.len() as u64);
        let parts = Parts {
            device,
            sq_start: None,
            policy: PolicyKind::Fifo.build(slots),
            kv,
            rewards: Box::new(checkpoints),
            prompts: Prompts::new(slots, 0),
            trajectories: Box::new(answers),
            spans,
            language: Some(LanguageParts { prompts: Box::new(queue.prompt()), made }),
            recorder: None,
            metrics: metrics.clone(),
        };
        let mut pipeline = Pipeline::new(options, parts).map_err(|error| failed(&error))?;
        if size.fault == Some(Fault::StaleKv) {
            pipeline.mix_versions();
        }
        let (pause, paused) = watch::channel(Pause::Running);
        let control = Control {
            commands: commanded,
            aborts: pipeline.abort_handle(),
            publisher: pipeline.publisher().without_waiting(),
            weights,
            gate: pipeline.gate(),
            names: names.clone(),
            intake: intake.clone(),
            pause,
            fault: size.fault,
            current: 0,
            published: None,
            sets: 0,
        };
        let cache = pipeline.cache();
        let failure = Arc::new(Mutex::new(None));
        let (noted, rests, gate) = (failure.clone(), intake.clone(), pipeline.gate());
        let run = move || {
            let ended = pipeline.run(&mut queue, |pipeline| {
                if pipeline.is_idle() {
                    rests.rest(REST);
                } else if gate.is_at_rest() {
                    rests.rest(SHORT_REST);
                }
                false
            });
            let why = ended.err().map_or("it was stopped".to_owned(), |error| error.to_string());
            *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
            let finish = Finish::Failed(format!("the engine has ended: {why}"));
            rests.close(&finish);
            queue.end(&finish);
        };
        let hot = thread::Builder::new().name("hot".into()).spawn(run)?;
        thread::Builder::new().name("control".into()).spawn(move || control.run())?;
        let engine = Engine {
            intake,
            commands,
            cache,
            metrics,
            truncates: features.capability.contains(Capability::TRUNCATION),
            device: device_name,
            size,
            cap,
            pause: paused,
            names,
            failure,
            hot: Mutex::new(Some(hot)),
        };
        let published = engine.send_publish(Box::new(model), Some(name), PolicyMode::Wait);
        published
            .blocking_recv()
            .unwrap_or(Err("the engine has ended".into()))
            .map_err(StartError::Pipeline)?;
        Ok(engine)
    }

    /// Takes an ask that [`check`](Self::check) finds right.
    ///
    /// # Errors
    /// If as many wait as may, or the engine has ended.
    pub fn ask(&self, ask: Ask) -> Result<Answers, Refused> {
        self.take(Some(self.size.waiting), ask, None)
    }

    /// The same of one that belongs to a request that was taken: it is taken too, however many wait.
    pub(crate) fn ask_more(&self, ask: Ask) -> Result<Answers, Refused> {
        self.take(None, ask, None)
    }

    /// The same of one that waits for something by a fault.
    pub(crate) fn ask_by_fault(&self, ask: Ask, wait: Option<Wait>) -> Result<Answers, Refused> {
        self.take(Some(self.size.waiting), ask, wait)
    }

    fn take(&self, most: Option<usize>, ask: Ask, wait: Option<Wait>) -> Result<Answers, Refused> {
        let (to, pieces) = mpsc::unbounded_channel();
        let members = ask.members;
        let cancelled = Arc::new(AtomicBool::new(false));
        let (flag, fault) = (cancelled.clone(), self.size.fault);
        let job = |ticket| Job { ticket, ask, to, cancelled: flag, fault, wait };
        let ticket = self.intake.ask(most, job)?;
        let (intake, commands) = (self.intake.clone(), self.commands.clone());
        Ok(Answers { pieces, ticket, members, cancelled, intake, commands })
    }

    /// What is wrong with an ask, if it can never run.
    ///
    /// # Errors
    /// The reason, with what to do.
    pub fn check(&self, ask: &Ask) -> Result<(), String> {
        let size = &self.size;
        let prompt = ask.prompt.len() as u32;
        let most = size.members.min(size.slots);
        if ask.members == 0 || ask.members > most {
            return Err(format!("n is {}; it must be 1 to {most}", ask.members));
        }
        if prompt == 0 {
            return Err("the prompt has no tokens; give at least one".into());
        }
        if prompt > size.prompt_tokens {
            return Err(format!(
                "the prompt has {prompt} tokens, and there is room for {}",
                size.prompt_tokens
            ));
        }
        if ask.most == 0 || ask.most > size.answer_tokens {
            return Err(format!("max_tokens is {}; it must be 1 to {}", ask.most, size.answer_tokens));
        }
        let need = Size::need(self.cap, prompt, ask.most, ask.members);
        if need > size.blocks {
            return Err(format!(
                "{} answers of {} tokens to a prompt of {prompt} need {need} KV blocks, and there are {}; ask for fewer or shorter ones",
                ask.members, ask.most, size.blocks
            ));
        }
        let draws = &ask.draws;
        if !self.truncates && (draws.top_k, draws.top_p, draws.min_p) != (0, 0, 0) {
            return Err(format!(
                "top_k, top_p and min_p need a device that truncates draws (CAPABILITY.TRUNCATION), and {} does not; leave them out",
                self.device
            ));
        }
        Ok(())
    }

    /// How many asks there are.
    pub fn load(&self) -> Load {
        self.intake.load()
    }

    /// Aborts these asks, or all that live; waits until they have ended.
    pub async fn abort(&self, tickets: Option<&[u64]>) {
        let live = self.intake.tickets();
        let wanted: Option<HashSet<u64>> = tickets.map(|tickets| tickets.iter().copied().collect());
        let tickets: Vec<u64> = live
            .into_iter()
            .filter(|ticket| wanted.as_ref().is_none_or(|wanted| wanted.contains(ticket)))
            .collect();
        for &ticket in &tickets {
            if let Some(number) = self.intake.cancel(ticket) {
                let _ = self.commands.send(Command::Abort(number));
            }
        }
        self.intake.until_gone(&tickets).await;
    }

    /// Whether it decodes.
    pub fn pause_of(&self) -> Pause {
        *self.pause.borrow()
    }

    /// Lets nothing new begin, and waits until nothing decodes any more. Whoever drops this before waits no more; the engine pauses all the same.
    ///
    /// # Errors
    /// If the engine has ended, or what ran was let go on before it had come to its end.
    pub async fn pause(&self, how: How) -> Result<(), NotPaused> {
        let (done, ends) = oneshot::channel();
        let _ = self.commands.send(Command::Pause(how, done));
        let ends = ends.await.map_err(|_| NotPaused::Ended)?;
        let mut pause = self.pause.clone();
        let paused = tokio::select! {
            biased;
            () = self.intake.until_gone(&ends) => Ok(()),
            _ = pause.wait_for(|pause| *pause != Pause::Holding), if how == How::Wait => Err(NotPaused::Overtaken),
        };
        // What it waited for is gone then, too.
        if self.failure().is_some() { Err(NotPaused::Ended) } else { paused }
    }

    /// Lets everything go on.
    pub async fn resume(&self) {
        let (done, resumed) = oneshot::channel();
        let _ = self.commands.send(Command::Resume(done));
        // Where the control is gone the engine has ended.
        let _ = resumed.await;
    }

    /// Forgets the keys and values that are kept for later asks; waits until that has happened.
    pub async fn flush(&self) {
        if self.size.fault == Some(Fault::NoFlush) {
            return;
        }
        let number = self.cache.flush();
        self.intake.ring();
        while !self.cache.is_flushed(number) && self.failure().is_none() {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    /// Publishes weights as version `name`, or under the next name, and tells it. `mode` says what becomes of rollouts that decode: with `Keep` they go on
    /// under it. Whoever drops this before it ends does not hear whether they are published.
    ///
    /// # Errors
    /// If the device refuses it, or rollouts still decode under the version before the present one: then the present one goes on. Also if the
    /// weights have another cap on keys and values than those that the engine began with.
    pub async fn publish(
        &self,
        weights: Box<Published>,
        name: Option<&str>,
        mode: PolicyMode,
    ) -> Result<String, String> {
        if cap_of(&weights) != self.cap {
            return Err("the weights have another cap on keys and values than the model that is served; give them the same".into());
        }
        let published = self.send_publish(weights, name, mode);
        let name = published.await.unwrap_or(Err("the engine has ended".into()))?;
        fault::updated();
        Ok(name)
    }

    fn send_publish(
        &self,
        weights: Box<Published>,
        name: Option<&str>,
        mode: PolicyMode,
    ) -> oneshot::Receiver<Result<String, String>> {
        let (done, published) = oneshot::channel();
        let name = name.map(str::to_owned);
        let _ = self.commands.send(Command::Publish { weights, name, mode, done });
        published
    }

    /// Gives the version that is resident another name.
    pub async fn rename(&self, name: &str) {
        let (done, renamed) = oneshot::channel();
        let _ = self.commands.send(Command::Rename(name.to_owned(), done));
        let _ = renamed.await;
    }

    /// Name of the version that is resident.
    pub fn version(&self) -> String {
        self.names.resident()
    }

    /// How large it is.
    pub fn size(&self) -> &Size {
        &self.size
    }

    /// What a token sees of a sequence, if that is bounded.
    pub fn cap(&self) -> Option<AnswerCap> {
        self.cap
    }

    /// Name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Counters and times of the pipeline.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Why it has ended, if it has.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes nothing new, aborts all that live, and waits until the pipeline has ended.
    pub async fn stop(&self) {
        self.intake.close(&Finish::Aborted);
        let _ = self.commands.send(Command::GoOn);
        self.abort(None).await;
        let hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hot) = hot {
            let _ = tokio::task::spawn_blocking(move || hot.join()).await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.intake.close(&Finish::Aborted);
        for ticket in self.intake.tickets() {
            if let Some(number) = self.intake.cancel(ticket) {
                let _ = self.commands.send(Command::Abort(number));
            }
        }
        let _ = self.commands.send(Command::GoOn);
    }
}
