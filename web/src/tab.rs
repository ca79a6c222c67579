//! A device with a language model, driven step by step.

mod view;

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};

use doorbell_checkpoint::text::{Stream, Text, TextError};
use doorbell_contract::{
    BLOCK_TOKENS, CompletionFlags, DescFlags, ErrorCode, HwCompletion, HwDesc, HwSequence, PolicyMode,
    Register as R, Status, TOKEN_NONE,
};
use doorbell_cosim::{CosimError, RtlConfig, RtlPlatform, Weather};
use doorbell_host::language::{language_policy, sequence_bytes};
use doorbell_host::{Device as _, DeviceError, Driver, LanguageRegions, QueueConfig, TokenRegion};
use doorbell_lm::image::{Kind, entries};
use doorbell_lm::sample::Sharpness;
use doorbell_lm::{FileError, Image, micro};
use doorbell_npu::layout::Block;
use doorbell_npu::{PublishError, Published};
use doorbell_verify::language::Version;
use serde::Deserialize;
use thiserror::Error;

use crate::ask::{Ask, Phase};
use crate::chain::chain;
use crate::check::Check;
use crate::snapshot::{Register, Token};
use crate::units::Seen;

/// The version that is published.
const VERSION: u16 = 1;
/// Where its POLICY lies in the token region, and the prompt with the answer after it, as `doorbell generate` has them.
const POLICY: u64 = 0;
const TOKENS: u64 = 128;
/// Most tokens of a prompt: each takes tens of thousands of cycles before the first token of the answer.
const PROMPT: usize = 128;
/// Slots of both rings: few, so that they wrap before a visitor's eyes.
const DEPTH: u32 = 8;
/// Clock cycles in which nothing of the device moves before it is said who waits for whom. With the longest latency that the page
/// offers no word takes a tenth of that.
const STILL: u64 = 200_000;
/// Longest latency of the memory that can be asked for, in cycles.
pub const LATENCY: u32 = 400;
/// Registers that a page shows.
const REGISTERS: [R; 9] =
    [R::Doorbell, R::SqHead, R::CqTail, R::CqHead, R::Control, R::State, R::Status, R::WorkerState, R::Error];

/// Why the tab cannot do what it was asked.
#[derive(Debug, Error)]
pub enum TabError {
    /// The image is none.
    #[error("{0}")]
    Image(#[from] FileError),
    /// The device cannot run the model.
    #[error("{0}")]
    Publish(#[from] PublishError),
    /// The tokeniser.
    #[error("{0}")]
    Text(#[from] TextError),
    /// The driver.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The simulator.
    #[error("{0}")]
    Simulator(#[from] CosimError),
    /// What was asked is out of bounds.
    #[error("{0}")]
    Asked(String),
}

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// About so many cycles, or until the answer is whole.
    Run(u64),
    /// Exactly one cycle.
    Cycle,
    /// Until engine 1 has done a word.
    Instruction,
    /// Until a completion comes.
    Descriptor,
    /// Until a token is in memory.
    Token,
}

/// A bit to flip in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flip {
    /// Of a weight in the middle of the first layer's matrix of queries, which every token goes through.
    Weight,
    /// Of the first position's key in the first layer.
    Key,
}

/// Which answers of the memory are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hold {
    /// None.
    #[default]
    Nothing,
    /// Read data.
    Reads,
    /// Write responses.
    Writes,
}

/// What is asked, and what has come of it.
struct Answer {
    /// The prompt's tokens.
    prompt: Vec<u32>,
    /// The text of each.
    texts: Vec<String>,
    ask: Ask,
    tokens: Vec<Token>,
    check: Check,
    /// Its tokens and their log-probabilities, a line each.
    lines: String,
}

/// A device with one language model and at most one answer.
pub struct Tab {
    image: Image,
    version: Version,
    published: Published,
    text: Text,
    driver: Only,
    tokens: TokenRegion,
    regions: LanguageRegions,
    seen: Seen,
    phase: Phase,
    answer: Option<Answer>,
    descriptor: Option<HwDesc>,
    completion: Option<HwCompletion>,
    completions: u64,
    registers: Vec<Register>,
    registers_at: u64,
    latency: u32,
    hold: Hold,
    note: Option<String>,
    chain: Vec<String>,
    /// Words of engine 1 and completions, when something was seen to move last, and in which cycle.
    moved: (u64, u64, u64),
}

impl Tab {
    /// A device with the model of this image; of none, with `micro`, which is built in. The model is still to be published: the first
    /// steps do that.
    ///
    /// # Errors
    /// If the image is none, or the device cannot be made.
    pub fn open(image: &[u8]) -> Result<Self, TabError> {
        let image = if image.is_empty() { micro() } else { Image::from_bytes(image)? };
        let text = Text::new(&image.about, image.model.shape.vocabulary)?;
        let published = Published::new(image.to_bytes(), &image.about.ends)?;
        let version = Version { model: image.model.clone(), ends: image.about.ends.clone() };
        let seen = Seen::default();
        let driver = Only(Some(device(&published, image.model.shape.context, &seen)?));
        let (tokens, regions) = regions_of(&driver)?;
        let mut tab = Self {
            image,
            version,
            published,
            text,
            driver,
            tokens,
            regions,
            seen,
            phase: Phase::Publish,
            answer: None,
            descriptor: None,
            completion: None,
            completions: 0,
            registers: vec![],
            registers_at: 0,
            latency: 0,
            hold: Hold::Nothing,
            note: None,
            chain: vec![],
            moved: (0, 0, 0),
        };
        tab.publish()?;
        Ok(tab)
    }

    /// Makes the device anew, as one that was switched off and on, with the same model. What was asked is forgotten, and so is what was
    /// broken; the latency stays.
    ///
    /// # Errors
    /// If the device cannot be made; then there is none, and nothing helps but to open the tab anew.
    pub fn reset(&mut self) -> Result<(), TabError> {
        self.seen = Seen::default();
        self.driver = Only(None);
        self.driver = Only(Some(device(&self.published, self.image.model.shape.context, &self.seen)?));
        (self.tokens, self.regions) = regions_of(&self.driver)?;
        (self.answer, self.descriptor, self.completion, self.note) = (None, None, None, None);
        (self.completions, self.registers_at, self.moved) = (0, 0, (0, 0, 0));
        self.registers.clear();
        self.chain.clear();
        self.hold = Hold::Nothing;
        self.weather()?;
        self.publish()
    }

    /// What the model is called.
    pub fn model(&self) -> &str {
        &self.image.about.name
    }

    /// The texts of the tokens of a text.
    ///
    /// # Errors
    /// Those of the tokeniser.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TabError> {
        Ok(self.text.encode(text)?)
    }

    fn publish(&mut self) -> Result<(), TabError> {
        let record = self.published.at(0);
        self.regions.model.write(record.offset, &self.published.memory)?;
        self.tokens.write(POLICY, &language_policy(VERSION, &record))?;
        let desc = HwDesc { model_id: 1, ..HwDesc::policy(VERSION, PolicyMode::Wait) };
        self.phase = Phase::Publish;
        self.submit(desc.with_delta_offset(POLICY))
    }

    fn submit(&mut self, desc: HwDesc) -> Result<(), TabError> {
        // Descriptors of one rollout and one name cannot be told apart once the rings have wrapped: then nobody knows who waits.
        let desc = desc.with_user_data(self.driver.submission_queue().tail().into());
        // One descriptor is in flight at a time, so there is room.
        self.driver.submit(std::slice::from_ref(&desc))?;
        self.descriptor = Some(desc);
        Ok(())
    }

    /// Asks for an answer: the device works at it in the steps that follow.
    ///
    /// # Errors
    /// `Asked` if another answer is under way, the prompt is empty or too long, or the temperature is none.
    pub fn ask(&mut self, ask: Ask) -> Result<(), TabError> {
        let refused = |why: String| Err(TabError::Asked(why));
        if self.phase.is_busy() {
            return refused("the device is busy: wait until it has answered, or reset it".into());
        }
        if self.phase == Phase::Failed {
            return refused("the device has failed: reset it".into());
        }
        let prompt = self.text.encode(&ask.prompt)?;
        let most = self.image.model.shape.context;
        if prompt.is_empty() {
            return refused("the beginning is empty: give at least a letter".into());
        }
        if prompt.len() > PROMPT.min(most - 1) {
            let most = PROMPT.min(most - 1);
            return refused(format!("the beginning has {} tokens: give at most {most}", prompt.len()));
        }
        let Some(sharpness) = Sharpness::of(ask.temperature) else {
            return refused(format!("the temperature is {}: give 0, or about 0.1 to 2", ask.temperature));
        };
        let ask = Ask { tokens: ask.tokens.clamp(1, most - prompt.len()), ..ask };
        self.tokens.write(TOKENS, &prompt)?;
        let length = prompt.len() as u32;
        // A token is never torn, so one that is there is one that was made.
        self.tokens.write(TOKENS + 4 * u64::from(length), &vec![TOKEN_NONE; ask.tokens])?;
        let blocks = (length + ask.tokens as u32).div_ceil(BLOCK_TOKENS);
        let record =
            HwSequence { sharpness: sharpness.0, prompt: TOKENS, generation: 1, ..HwSequence::default() };
        self.regions.place_sequence(0, record, &(0..blocks).collect::<Vec<_>>())?;
        let check = Check::new(&self.version, &prompt, sharpness, ask.seed);
        let seed = ask.seed;
        let texts = prompt.iter().map(|&token| self.text.decode(&[token])).collect::<Result<_, _>>()?;
        self.answer = Some(Answer { prompt, texts, ask, tokens: vec![], check, lines: String::new() });
        (self.note, self.chain) = (None, vec![]);
        self.still_now();
        if length > 1 {
            self.phase = Phase::Prefill;
            self.submit(of_model(HwDesc::prefill(0, length), seed))
        } else {
            self.decode()
        }
    }

    /// Submits a DECODE of one token: so each is in memory as soon as it is made, and the ring moves with it.
    fn decode(&mut self) -> Result<(), TabError> {
        let Some(answer) = &self.answer else { return Ok(()) };
        let length = (answer.prompt.len() + answer.tokens.len()) as u32;
        let desc = of_model(HwDesc::decode(0, length, 1), answer.ask.seed)
            .with_delta_offset(TOKENS + 4 * u64::from(length))
            .with_flags(DescFlags::EOS_STOPS | DescFlags::LOGP);
        self.phase = Phase::Decode;
        self.submit(desc)
    }

    /// Gives the device clock cycles. Nothing happens where it has nothing to do.
    ///
    /// # Errors
    /// What the device fails with; from then on nothing but [`reset`](Self::reset) helps.
    pub fn step(&mut self, step: Step) -> Result<(), TabError> {
        let result = self.stepped(step);
        if let Err(error) = &result {
            self.phase = Phase::Failed;
            self.note = Some(error.to_string());
        }
        result
    }

    fn stepped(&mut self, step: Step) -> Result<(), TabError> {
        let start = self.cycle();
        let (words, made, completions) = (self.seen.units().words, self.made(), self.completions);
        let end = start.saturating_add(if let Step::Run(cycles) = step { cycles } else { u64::MAX });
        while self.phase.is_busy() && self.cycle() < end {
            match step {
                // The last bit of a run is as long as it may be, so that the page keeps its pace.
                Step::Run(_) | Step::Descriptor | Step::Token => self.poll()?,
                Step::Cycle | Step::Instruction => {
                    self.driver.platform_mut().run(1)?;
                    self.collect()?;
                }
            }
            self.look_for_movement()?;
            let over = match step {
                Step::Run(_) => false,
                Step::Cycle => true,
                Step::Instruction => self.seen.units().words > words,
                Step::Descriptor => self.completions > completions,
                Step::Token => self.made() > made,
            };
            if over || !self.chain.is_empty() {
                break;
            }
        }
        if !matches!(step, Step::Cycle | Step::Instruction) {
            self.read_registers()?;
        }
        Ok(())
    }

    /// Lets the driver give the device a slice of time, up to the next completion.
    fn poll(&mut self) -> Result<(), TabError> {
        let mut out = [HwCompletion::default()];
        match self.driver.poll(&mut out)? {
            0 => Ok(()),
            _ => self.completed(out[0]),
        }
    }

    fn collect(&mut self) -> Result<(), TabError> {
        let mut out = [HwCompletion::default()];
        match self.driver.collect(&mut out)? {
            0 => Ok(()),
            _ => self.completed(out[0]),
        }
    }

    fn completed(&mut self, completion: HwCompletion) -> Result<(), TabError> {
        self.completion = Some(completion);
        self.completions += 1;
        if completion.status != Status::Done as u8 {
            let error = ErrorCode::try_from(completion.error)
                .map_or_else(|_| "an unknown error".into(), |code| format!("{code:?}"));
            return Err(TabError::Asked(format!(
                "the device ended a descriptor with status {:#04x}, {error}; docs/contract.md says why",
                completion.status
            )));
        }
        match self.phase {
            Phase::Prefill => self.decode(),
            Phase::Decode => self.decoded(&completion),
            _ => {
                self.phase = Phase::Ready;
                Ok(())
            }
        }
    }

    /// A token is in memory.
    fn decoded(&mut self, completion: &HwCompletion) -> Result<(), TabError> {
        let Some(answer) = &mut self.answer else { return Ok(()) };
        let place = TOKENS + 4 * (answer.prompt.len() + answer.tokens.len()) as u64;
        let (mut token, mut logp) = ([0], [0]);
        self.driver.tokens(place, &mut token)?;
        self.driver.logps(place, &mut logp)?;
        let ([token], [logp]) = (token, logp);
        let ends = self.text.ends(token);
        answer.check.token(&self.version, token, logp);
        // As `doorbell generate --logprobs` prints it: 16 digits after the point say a multiple of 2^-16 exactly.
        let _ = writeln!(answer.lines, "{token} {:.16}", f64::from(logp) / 65_536.0);
        answer.tokens.push(Token { token, text: String::new(), logp, ends });
        let text = said(&self.text, &answer.tokens)?;
        if let Some(last) = answer.tokens.last_mut() {
            last.text = text;
        }
        if completion.has(CompletionFlags::EOS) || answer.tokens.len() >= answer.ask.tokens {
            return self.end();
        }
        self.decode()
    }

    /// The answer is whole.
    fn end(&mut self) -> Result<(), TabError> {
        self.phase = Phase::Done;
        let Some(answer) = &mut self.answer else { return Ok(()) };
        let bytes = self.published.at(0).block_bytes();
        let held = answer.check.made().div_ceil(BLOCK_TOKENS as usize) as u64;
        let mut blocks = vec![vec![0; bytes as usize]; held as usize];
        for (number, block) in (0..).zip(&mut blocks) {
            self.regions.arenas[0].read(number * bytes, block)?;
        }
        answer.check.end(&self.version, &blocks);
        if answer.tokens.iter().all(|token| token.ends) {
            self.note = Some(format!(
                "{} ended its answer at once, as it takes the beginning for a whole text; it tells stories: give one that it can go \
                 on from, as \"Once upon a time\", or another seed",
                self.image.about.name
            ));
        }
        Ok(())
    }

    /// Says who waits for whom once nothing has moved for long.
    fn look_for_movement(&mut self) -> Result<(), TabError> {
        let (words, cycle) = (self.seen.units().words, self.cycle());
        let (before, completions, since) = self.moved;
        if (words, self.completions) != (before, completions) || !self.phase.is_busy() {
            self.chain.clear();
            self.moved = (words, self.completions, cycle);
            return Ok(());
        }
        // The POLICY of a large model is folded without a word of engine 1.
        let still = if self.phase == Phase::Publish { 100 * STILL } else { STILL };
        if cycle - since >= still {
            let last = self.seen.units().last();
            let Some((_, why)) = self.driver.why()?.into_iter().next() else { return Ok(()) };
            let (pins, owed) = (self.driver.platform().strip(), self.driver.platform().owed());
            self.chain = chain(&self.waited(), &why, &pins, owed, last.as_ref(), cycle);
            self.moved.2 = cycle;
        }
        Ok(())
    }

    fn still_now(&mut self) {
        self.moved = (self.seen.units().words, self.completions, self.cycle());
    }

    /// What the host waits for, in words.
    fn waited(&mut self) -> String {
        let what = match self.phase {
            Phase::Publish => "POLICY, which publishes the model",
            Phase::Prefill => "PREFILL, which reads the beginning",
            _ => "DECODE of the next token",
        };
        let slot = self.driver.submission_queue().tail().wrapping_sub(1);
        format!("the host waits for the completion of slot {slot:#x}, the {what} (R3, R15)")
    }

    /// A register access takes a few cycles, so single steps leave them as they were read last.
    fn read_registers(&mut self) -> Result<(), TabError> {
        self.registers_at = self.cycle();
        let driver = &mut self.driver;
        let read = |register: R| {
            Ok::<_, DeviceError>(Register { name: register.name(), value: driver.read(register)? })
        };
        self.registers = REGISTERS.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// From here on the memory answers so many cycles later than it can, at most [`LATENCY`].
    ///
    /// # Errors
    /// `Asked` for a longer one; else failures of the device.
    pub fn set_latency(&mut self, cycles: u32) -> Result<(), TabError> {
        if cycles > LATENCY {
            return Err(TabError::Asked(format!("a latency of {cycles} cycles: give at most {LATENCY}")));
        }
        self.latency = cycles;
        self.weather()
    }

    /// From here on the memory holds back these answers, or lets go what it held back.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn hold(&mut self, hold: Hold) -> Result<(), TabError> {
        self.hold = hold;
        self.chain.clear();
        self.still_now();
        self.weather()
    }

    fn weather(&mut self) -> Result<(), TabError> {
        let weather = Weather {
            latency: [self.latency; 2],
            withholds_reads: self.hold == Hold::Reads,
            withholds_writes: self.hold == Hold::Writes,
            ..Weather::default()
        };
        Ok(self.driver.platform_mut().set_weather(&weather)?)
    }

    /// Flips a bit in the memory that host and device share; what was flipped, in words. It is the second bit from the top of a weight, or
    /// of a mantissa: one that counts.
    ///
    /// # Errors
    /// `Asked` if the model has no such weight.
    pub fn flip(&mut self, flip: Flip) -> Result<String, TabError> {
        const BIT: u32 = 6;
        let (region, byte, what) = match flip {
            Flip::Weight => {
                let entries = entries(&self.image.to_bytes())?;
                let query = entries.iter().find(|entry| entry.kind == Kind::Query && entry.layer == 0);
                let lacks = || TabError::Asked("the model has no matrix of queries".into());
                let query = query.ok_or_else(lacks)?;
                let row = u64::from(query.rows / 2) * query.stride();
                let byte = query.offset + row + u64::from(query.columns / 2);
                (&self.regions.model, byte, "a weight of the queries of layer 0")
            }
            Flip::Key => {
                let width = self.image.model.shape.head_width as u64;
                (&self.regions.arenas[0], Block { width }.mantissas(0, 0), "the key of position 0 in layer 0")
            }
        };
        let mut word = [0; 8];
        region.read(byte & !7, &mut word)?;
        word[(byte & 7) as usize] ^= 1 << BIT;
        region.write(byte & !7, &word)?;
        Ok(format!("bit {BIT} of the byte at bus address {:#x}, {what}", region.bus_address() + byte))
    }

    /// Clock cycles since the device was made.
    pub fn cycle(&self) -> u64 {
        self.driver.platform().cycles()
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn made(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.tokens.len())
    }
}

/// The device: a browser has room for one, so it goes before another is made.
struct Only(Option<Driver<RtlPlatform>>);

impl Deref for Only {
    type Target = Driver<RtlPlatform>;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("there is a device, unless it could not be made anew")
    }
}

impl DerefMut for Only {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut().expect("there is a device, unless it could not be made anew")
    }
}

fn of_model(desc: HwDesc, seed: u32) -> HwDesc {
    HwDesc { model_id: 1, ..desc }.with_version(VERSION).with_seed(seed)
}

/// The device out of reset, with memory for the model and a sequence as long as its context, and a driver.
fn device(published: &Published, context: usize, seen: &Seen) -> Result<Driver<RtlPlatform>, TabError> {
    let config = RtlConfig { workers: 1, engines: 2, changes: true, ..RtlConfig::default() };
    let mut platform = RtlPlatform::new(&config)?;
    let listener = seen.clone();
    platform.observe_words(move |event| {
        listener.happened(event);
        Ok(())
    })?;
    platform.keep_strip();
    let blocks = (context as u64).div_ceil(BLOCK_TOKENS.into());
    let tokens = TOKENS + 4 * context as u64;
    let queue = QueueConfig {
        sq_depth: DEPTH,
        cq_depth: DEPTH,
        // The same descriptors in every run, check words included.
        sq_key: Some(0xD00B_E11A),
        token_bytes: tokens,
        logp_bytes: tokens,
        kv_bytes: sequence_bytes(blocks),
        model_bytes: published.memory.len() as u64,
        arena_bytes: [blocks * published.at(0).block_bytes(), 0, 0, 0],
        // Who waits too long is found here: see STILL.
        patience: u32::MAX,
        ..QueueConfig::default()
    };
    Ok(Driver::new(platform, queue)?)
}

fn regions_of(driver: &Driver<RtlPlatform>) -> Result<(TokenRegion, LanguageRegions), TabError> {
    let lacks = || TabError::Asked("the device has no regions of a language model".into());
    let tokens = driver.token_regions().into_iter().next().ok_or_else(lacks)?;
    Ok((tokens, driver.language_regions().into_iter().next().ok_or_else(lacks)?))
}

/// What the last token adds to the text of the answer; nothing as long as a letter is not whole.
fn said(text: &Text, tokens: &[Token]) -> Result<String, TextError> {
    let mut stream: Stream<'_> = text.stream();
    let mut new = String::new();
    for token in tokens.iter().filter(|token| !token.ends) {
        new = stream.next(token.token)?;
    }
    if tokens.last().is_some_and(|token| token.ends) { stream.end() } else { Ok(new) }
}
